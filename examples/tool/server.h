/* The server's parts and its connections: bytes in, requests out; answers in, bytes out.

   Four threads. The first has all connections, in one poll loop, and never waits for anything else: it reads requests,
   submits them, turns the engine's events into answers. The second, `reader`, turns bodies into prompts (JSON, chat
   templates, tokens), and the third, `long_reader`, those that take seconds, so that nobody else waits for them. The
   fourth, `stepper`, runs the engine's passes. Calls travel from the first to the readers and back in queues; a call
   belongs to one thread at a time. */

typedef struct server server;
typedef struct conn conn;
typedef struct call call;

/* Comes back in the engine's events: which prompt of which call. */
typedef struct call_part {
    call *owner;
    int prompt;
} call_part;

/* A request to the API under way. */
struct call {
    call *next;
    conn *connection;     /* NULL: the client has gone */
    api_kind kind;
    str body;
    uint64_t seed;
    api_request request;
    api_answer answer;
    call_part *parts;     /* [n_prompts] */
    fg_request *handles;  /* [n_prompts], the first n_submitted of them */
    int n_submitted, n_open;
    bool failed;
    double arrival;
};

typedef struct call_queue {
    call *first, **end;
} call_queue;

struct conn {
    socket_id socket;
    str in, body, out;
    size_t scanned, sent;
    http_head head;
    http_chunks chunks;
    bool has_head, head_only, close, half_closed, dead;
    bool streaming;        /* an event stream was begun */
    size_t stale;          /* of out: what was there when the last turn ended */
    size_t spared;         /* bytes of the stream that do not tell how well it is read */
    size_t held;           /* its part of server.unsent */
    call *call;            /* that is being answered */
    double since;          /* when it began to wait for what it waits for: a request, the rest of one, room to send */
    bool in_request;       /* some of a request has come */
};

enum {
    SERVER_LONG = 256 << 10,     /* a body of more bytes is read in a thread of its own; fewer take up to 60 ms */
    SERVER_READ = 65536,         /* bytes taken from a connection in one turn */
    SERVER_PIPELINED = 65536,    /* bytes kept of requests behind the one that is being answered */
    SERVER_MAX_UNSENT = 4 << 20, /* bytes that wait for a client to read */
    SERVER_IDLE_SECONDS = 75,
    SERVER_GRACE_SECONDS = 1,    /* that a connection has to send something before it may have to give way */
    SERVER_LINGER_SECONDS = 2,
    SERVER_EVENT_MS = 10         /* that events are taken for in one turn */
};

/* A pass, for the page's pictures. */
typedef struct pass_record {
    int prompt, decode;
} pass_record;

enum { SERVER_PASSES = 64 };

struct server {
    const tool_args *args;
    session s;
    fg_engine_desc engine;
    api_server api;
    grammar_vocab vocab;
    str model_name, labels;
    const char *api_key;
    size_t max_body;
    char host[256]; /* without the brackets of [::1] */
    int port;       /* the one chosen, where 0 was asked for */
    socket_id listener, loop;
    conn **conns;
    int n_conns, max_conns;
    socket_poll *polls;    /* loop, listener, conns */
    size_t buffered, unsent; /* bytes of requests that wait to be complete or read, of answers that clients have not read */
    size_t max_buffered;     /* the most of either */
    int n_calls;
    uint64_t n_ids;
    bool draining;
    double drain_until, accept_after, now;
    metrics m;             /* of the first thread, but for METRIC_PASS_TOKENS */
    long long started, dated;
    char date[40];         /* `dated` as text */
    /* between the threads */
    thread_lock lock, vocab_lock;
    thread_signal changed;
    call_queue to_read, to_read_long, read;
    histogram passes;
    pass_record recent[SERVER_PASSES]; /* pass number i at i % SERVER_PASSES */
    uint64_t n_passes;
    bool stopping, threaded;
    thread_id reader, long_reader, stepper;
    fg_result step_result;
};

static void queue_add(call_queue *q, call *c) {
    c->next = NULL;
    if (!q->first) q->end = &q->first;
    *q->end = c;
    q->end = &c->next;
}

static call *queue_take(call_queue *q) {
    call *c = q->first;
    if (c) q->first = c->next;
    return c;
}

/* ---- sending ----------------------------------------------------------------------------------- */

/* Bytes that may wait for a client before it is asked for no more. Once those of all are too many, its share of them. */
static size_t conn_limit(const server *s) {
    size_t share = s->max_buffered / (size_t)s->n_conns;
    return s->unsent > s->max_buffered && share < SERVER_MAX_UNSENT ? share : SERVER_MAX_UNSENT;
}

/* Forgets what was sent. A large buffer shrinks with its contents: clients could leave the last byte of it unread. */
static void conn_drop_sent(conn *c) {
    size_t left = c->out.length - c->sent;
    if (c->out.capacity > 1 << 20) {
        str rest = {NULL, 0, 0};
        if (left) str_add(&rest, c->out.data + c->sent, left);
        str_free(&c->out);
        c->out = rest;
    } else if (left) {
        memmove(c->out.data, c->out.data + c->sent, left);
    }
    c->stale = c->stale > c->sent ? c->stale - c->sent : 0;
    c->out.length = left;
    c->sent = 0;
}

/* Gives the system what it takes of the bytes that wait. */
static void conn_send(server *s, conn *c) {
    while (!c->dead && c->sent < c->out.length) {
        int n = socket_send(c->socket, c->out.data + c->sent, c->out.length - c->sent);
        if (n == -2) c->dead = true;
        if (n < 0) break;
        c->sent += (size_t)n;
        c->since = s->now;
    }
    if (c->dead) c->sent = c->out.length;
    if (c->sent >= c->out.length - c->sent) conn_drop_sent(c); /* no more is moved than was sent */
    s->unsent += c->out.length - c->held;
    c->held = c->out.length;
}

/* One chunk of a streamed body, or to HTTP/1.0 the bytes as they are. */
static void conn_add_chunk(conn *c, const str *data) {
    if (data->length == 0) return;
    if (c->head.minor) str_printf(&c->out, "%zx\r\n", data->length);
    str_add(&c->out, data->data, data->length);
    if (c->head.minor) str_puts(&c->out, "\r\n");
}

/* The request is answered: whatever follows on this connection is the next. */
static void conn_next(server *s, conn *c) {
    s->buffered -= c->body.length;
    str_free(&c->body);
    c->has_head = c->head_only = c->streaming = c->in_request = false;
    c->scanned = 0;
    c->since = s->now;
    memset(&c->chunks, 0, sizeof(c->chunks));
}

/* The time as a header has it (RFC 9110, 5.6.7). */
static const char *server_date(server *s) {
    long long now = (long long)time(NULL);
    time_t t = (time_t)now;
    struct tm *utc = now == s->dated ? NULL : gmtime(&t);
    if (utc) strftime(s->date, sizeof(s->date), "%a, %d %b %Y %H:%M:%S GMT", utc);
    s->dated = now;
    return s->date;
}

static void conn_add_head(server *s, conn *c, int status, const char *type) {
    if (s->draining || !c->head.keep_alive) c->close = true;
    str_printf(&c->out, "HTTP/1.1 %d %s\r\nServer: fastgen\r\nDate: %s\r\nAccess-Control-Allow-Origin: *\r\n", status, http_status_text(status),
               server_date(s));
    if (type) str_printf(&c->out, "Content-Type: %s\r\n", type);
    if (status == 401) str_puts(&c->out, "WWW-Authenticate: Bearer\r\n");
    if (status == 429 || status == 503) str_puts(&c->out, "Retry-After: 1\r\n");
    if (c->close) str_puts(&c->out, "Connection: close\r\n");
    else if (c->head.minor == 0) str_puts(&c->out, "Connection: keep-alive\r\n");
}

/* A whole answer. `more` are further header lines, or NULL. */
static void conn_respond(server *s, conn *c, int status, const char *type, const char *more, const char *body,
                         size_t length) {
    conn_add_head(s, c, status, type);
    if (more) str_puts(&c->out, more);
    if (status != 204) str_printf(&c->out, "Content-Length: %zu\r\n", length);
    str_puts(&c->out, "\r\n");
    if (!c->head_only && length) str_add(&c->out, body, length);
    conn_next(s, c);
    conn_send(s, c);
}

static void conn_respond_json(server *s, conn *c, int status, const str *body) {
    conn_respond(s, c, status, "application/json", NULL, body->data, body->length);
}

static void conn_respond_error(server *s, conn *c, const api_error *error, const char *more) {
    str body = {NULL, 0, 0};
    api_add_error(&body, error);
    conn_respond(s, c, error->status, "application/json", more, body.data, body.length);
    str_free(&body);
}

static void conn_fail(server *s, conn *c, int status, const char *code, const char *message) {
    api_error error;
    memset(&error, 0, sizeof(error));
    error.status = status;
    error.code = code;
    snprintf(error.message, sizeof(error.message), "%s", message);
    conn_respond_error(s, c, &error, NULL);
}

/* Answers bytes that are no request, or one that may not go on: where the next would begin is unknown or far. */
static void conn_refuse(server *s, conn *c, int status, const char *message) {
    c->head.keep_alive = false;
    c->close = true;
    conn_fail(s, c, status, NULL, message);
}

static void conn_begin_stream(server *s, conn *c) {
    if (!c->head.minor) c->close = true; /* HTTP/1.0 has no chunks: the end of the connection is that of the stream */
    conn_add_head(s, c, 200, "text/event-stream; charset=utf-8");
    str_puts(&c->out, "Cache-Control: no-cache\r\nX-Accel-Buffering: no\r\n");
    if (c->head.minor) str_puts(&c->out, "Transfer-Encoding: chunked\r\n");
    str_puts(&c->out, "\r\n");
    c->streaming = true;
    c->spared = 0;
}

static void conn_end_stream(server *s, conn *c) {
    if (c->head.minor) str_puts(&c->out, "0\r\n\r\n");
    conn_next(s, c);
    conn_send(s, c);
}

/* ---- receiving --------------------------------------------------------------------------------- */

static void server_dispatch(server *s, conn *c); /* a whole request has come */
static bool server_takes_body(const http_head *head);

static const char server_is_full[] = "too many requests are being received; try again";

static void conn_drop_input(conn *c, size_t n) {
    memmove(c->in.data, c->in.data + n, c->in.length - n);
    c->in.length -= n;
    c->scanned = 0;
}

static bool conn_may(const server *s, const conn *c) {
    bool open = strcmp(c->head.path, "/health") == 0 || strcmp(c->head.path, "/metrics") == 0 ||
                strcmp(c->head.path, "/stats") == 0 || strcmp(c->head.path, "/") == 0;
    return !s->api_key || open || strcmp(c->head.method, "OPTIONS") == 0 || http_bearer_is(c->head.authorization, s->api_key) ||
           http_key_is(c->head.api_key, s->api_key);
}

/* A body that nobody asked for is not taken, and the connection ends behind the answer. */
static void conn_skip_body(conn *c) {
    if (c->head.chunked || c->head.content_length) c->head.keep_alive = false;
    c->head.chunked = false;
    c->head.content_length = 0;
}

/* What can be said from the head alone, before any of the body is taken. False: it was answered. */
static bool conn_check_head(server *s, conn *c, int status) {
    static const char wrong[] = "the request is not well-formed HTTP/1.1, or too long";
    c->head_only = status == 0 && strcmp(c->head.method, "HEAD") == 0;
    if (c->head_only) memcpy(c->head.method, "GET", 4);
    if (status == 0 && !server_takes_body(&c->head)) conn_skip_body(c);
    if (status) conn_refuse(s, c, status, wrong);
    else if (!conn_may(s, c)) {
        c->close = c->head.has_length || c->head.chunked;
        conn_fail(s, c, 401, "invalid_api_key", "the API key is missing or wrong: send Authorization: Bearer KEY, or x-api-key: KEY");
    } else if (c->head.content_length > s->max_body) {
        conn_refuse(s, c, 413, "the body is larger than this server takes (--max-body)");
    } else if (s->buffered + c->head.content_length > s->max_buffered) {
        conn_refuse(s, c, 503, server_is_full);
    } else {
        return true;
    }
    return false;
}

/* Reads a head, or answers it with an error; false: not all of it has come. */
static bool conn_read_head(server *s, conn *c) {
    size_t length, skip = 0;
    while (c->in.length - skip >= 2 && memcmp(c->in.data + skip, "\r\n", 2) == 0) skip += 2; /* empty lines before it */
    if (skip) conn_drop_input(c, skip);
    c->in_request = c->in.length > 0;
    length = c->in.length ? http_find_end(c->in.data, c->in.length, &c->scanned) : 0;
    if (length == 0 || length > HTTP_MAX_HEAD) {
        memset(&c->head, 0, sizeof(c->head));
        if (c->in.length > HTTP_MAX_HEAD) conn_refuse(s, c, 431, "the request's headers are too long");
        return false;
    }
    c->has_head = conn_check_head(s, c, http_parse_head(c->in.data, length, &c->head));
    conn_drop_input(c, length);
    if (c->has_head && c->head.expects_continue && c->in.length == 0 && (c->head.content_length || c->head.chunked))
        str_puts(&c->out, "HTTP/1.1 100 Continue\r\n\r\n");
    return true;
}

/* Takes what has come of the body; 0, or the status that refuses it. Only what has come counts as memory: who announces much and
   sends nothing keeps nobody out. */
static int conn_take_body(server *s, conn *c) {
    size_t used = 0, before = c->body.length;
    int status = 0;
    if (c->head.chunked) {
        status = http_take_chunks(&c->chunks, c->in.data, c->in.length, &used, &c->body, s->max_body);
    } else if (c->head.content_length > c->body.length) {
        used = (size_t)c->head.content_length - c->body.length;
        if (used > c->in.length) used = c->in.length;
        str_add(&c->body, c->in.data, used);
    }
    s->buffered += c->body.length - before;
    if (used) conn_drop_input(c, used);
    return status ? status : s->buffered > s->max_buffered ? 503 : 0;
}

/* False: there is more of the body to come, or it was answered with an error. */
static bool conn_read_body(server *s, conn *c) {
    int status = conn_take_body(s, c);
    if (status)
        conn_refuse(s, c, status, status == 503 ? server_is_full : "the body's chunks are not well-formed, or too much");
    if (status) return false;
    return c->head.chunked ? c->chunks.state == CHUNK_DONE : c->body.length == c->head.content_length;
}

/* Goes through the requests that have come, until one takes time to answer or has not all come. */
static void conn_process(server *s, conn *c) {
    while (!c->call && !c->close && !c->dead && c->out.length < conn_limit(s)) {
        if (!c->has_head) {
            if (!conn_read_head(s, c)) return;
        } else {
            if (!conn_read_body(s, c)) return;
            server_dispatch(s, c);
        }
    }
}
