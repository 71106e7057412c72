/* fastgen serve: the OpenAI and Anthropic APIs over HTTP. server.h says how its threads share the work. */

/* ---- the reader: bodies to prompts ------------------------------------------------------------- */

static void read_call(server *s, call *c) {
    const char *body = c->body.data ? c->body.data : "";
    if (c->kind == API_RESPONSES) response_read(&c->request, &s->api, body, c->body.length, c->seed);
    else if (c->kind == API_MESSAGES || c->kind == API_COUNT) message_read(&c->request, &s->api, body, c->body.length, c->seed, c->kind == API_COUNT);
    else api_read(&c->request, &s->api, c->kind, body, c->body.length, c->seed);
}

static void read_queue(server *s, call_queue *from) {
    lock_take(&s->lock);
    while (!s->stopping) {
        call *c = queue_take(from);
        if (!c) {
            signal_wait(&s->changed, &s->lock);
            continue;
        }
        lock_give(&s->lock);
        read_call(s, c);
        lock_take(&s->lock);
        queue_add(&s->read, c);
        socket_wake(s->loop);
    }
    lock_give(&s->lock);
}

static void run_reader(void *user) { read_queue((server *)user, &((server *)user)->to_read); }
static void run_long_reader(void *user) { read_queue((server *)user, &((server *)user)->to_read_long); }

/* ---- the stepper: passes ----------------------------------------------------------------------- */

static void step_engine(server *s) {
    fg_stats before, after;
    fg_get_stats(s->s.engine, &before);
    s->step_result = fg_step(s->s.engine, 0.0, NULL);
    fg_get_stats(s->s.engine, &after);
    if (after.n_passes == before.n_passes) return;
    lock_take(&s->lock);
    histogram_add(&s->passes, after.pass_tokens);
    s->recent[s->n_passes % SERVER_PASSES].prompt = after.pass_prompt_tokens;
    s->recent[s->n_passes++ % SERVER_PASSES].decode = after.pass_decode_tokens;
    lock_give(&s->lock);
}

static void run_stepper(void *user) {
    server *s = (server *)user;
    bool stopping = false;
    while (!stopping) {
        if (fg_wait(s->s.engine, FG_WAIT_WORK, 0.25)) {
            step_engine(s);
            socket_wake(s->loop);
        }
        lock_take(&s->lock);
        stopping = s->stopping;
        lock_give(&s->lock);
    }
}

/* ---- calls ------------------------------------------------------------------------------------- */

static void call_free(server *s, call *c) {
    s->buffered -= c->body.length;
    s->n_calls--;
    str_free(&c->body);
    api_request_free(&c->request);
    answer_free(&c->answer);
    free(c->parts);
    free(c->handles);
    free(c);
}

/* The connection is free for its next request. */
static void call_detach(call *c) {
    if (c->connection) c->connection->call = NULL;
    c->connection = NULL;
}

static void call_cancel(server *s, call *c) {
    int i;
    for (i = 0; i < c->n_submitted; i++) fg_cancel(s->s.engine, c->handles[i]);
}

/* The end of an answer: the whole of it, or the rest of a stream. */
static void call_add_end(const call *c, const api_error *error, str *to) {
    bool output = has_output(&c->request), stream = c->request.stream;
    if (output && stream) output_end(&c->answer, error, to);
    else if (output) output_add_whole(&c->answer, to);
    else if (stream) add_stream_end(&c->answer, error, to);
    else add_answer(&c->answer, to);
}

/* Answers with an error; the call lives on until the engine has let go of it. */
static void call_fail(server *s, call *c, const api_error *error) {
    conn *to = c->connection;
    call_cancel(s, c);
    c->failed = true;
    call_detach(c);
    if (!to) return;
    if (to->streaming) {
        str data = {NULL, 0, 0};
        call_add_end(c, error, &data);
        conn_add_chunk(to, &data);
        str_free(&data);
        conn_end_stream(s, to);
    } else if (c->kind == API_MESSAGES || c->kind == API_COUNT) {
        str data = {NULL, 0, 0};
        message_add_error(&data, error);
        conn_respond_json(s, to, error->status, &data);
        str_free(&data);
    } else {
        conn_respond_error(s, to, error, NULL);
    }
}

static void call_finish(server *s, call *c) {
    conn *to = c->connection;
    str body = {NULL, 0, 0};
    call_detach(c);
    if (to) call_add_end(c, NULL, &body);
    if (to && c->request.stream) {
        conn_add_chunk(to, &body);
        conn_end_stream(s, to);
    } else if (to) {
        conn_respond_json(s, to, 200, &body);
    }
    str_free(&body);
}

static bool call_submit_prompts(server *s, call *c) {
    fg_request_desc desc = c->request.desc;
    int i;
    if (c->request.n_prompts > 1 && c->request.n_prompts > s->engine.max_queue / c->request.n) /* which trying again would not change */
        return api_fail(&c->request, 400, "prompt", "%d prompts, %d answers each, are more than this server takes at once: %d (--max-queue)",
                        c->request.n_prompts, c->request.n, s->engine.max_queue);
    if (!desc.n_beams) desc.n_draft = draft_tokens(s->args);
    for (i = 0; i < c->request.n_prompts; i++) {
        fg_result result;
        desc.prompt = NULL;
        desc.tokens = c->request.prompts[i].tokens;
        desc.n_tokens = c->request.prompts[i].n_tokens;
        desc.user = &c->parts[i];
        c->parts[i].owner = c;
        c->parts[i].prompt = i;
        result = fg_submit(s->s.engine, &desc, &c->handles[i]);
        if (result != FG_OK)
            return api_fail_result(&c->request, result, result == FG_ERROR_QUEUE_FULL ? NULL : api_prompt_field(&c->request));
        c->n_submitted++;
        c->n_open++;
    }
    return true;
}

static const char *call_prefix(api_kind kind) {
    return kind == API_RESPONSES ? "resp_" : kind == API_MESSAGES ? "msg_" : kind == API_CHAT ? "chatcmpl-" : "cmpl-";
}

/* A response begins with what was asked for, which comes at once, however well the client reads. */
static void call_begin_stream(server *s, call *c) {
    str data = {NULL, 0, 0};
    conn_begin_stream(s, c->connection);
    if (!has_output(&c->request)) return;
    output_begin(&c->answer, &data);
    c->connection->spared += data.length;
    conn_add_chunk(c->connection, &data);
    str_free(&data);
}

/* Hands a request that was read to the engine. */
static void call_submit(server *s, call *c) {
    api_request *r = &c->request;
    c->parts = (call_part *)xrealloc(NULL, (size_t)r->n_prompts * sizeof(call_part));
    c->handles = (fg_request *)xrealloc(NULL, (size_t)r->n_prompts * sizeof(fg_request));
    c->answer.model = s->s.model;
    c->answer.model_name = s->model_name.data;
    c->answer.created = (long long)time(NULL);
    snprintf(c->answer.id, sizeof(c->answer.id), "%s%016llx%08llx", call_prefix(r->kind),
             (unsigned long long)c->seed, (unsigned long long)++s->n_ids);
    if (!call_submit_prompts(s, c)) {
        call_fail(s, c, &r->error);
        return;
    }
    answer_begin(&c->answer, r); /* its events are taken later, by this thread */
    metrics_add(&s->m, METRIC_N, r->n);
    if (r->max_tokens > 0) metrics_add(&s->m, METRIC_MAX_TOKENS, r->max_tokens);
    if (r->stream) call_begin_stream(s, c);
}

/* A call that the reader is done with. */
static void call_take_read(server *s, call *c) {
    conn *to = c->connection;
    s->buffered -= c->body.length;
    str_free(&c->body);
    if (to && c->request.error.status) {
        call_fail(s, c, &c->request.error);
    } else if (to && c->kind >= API_TOKENIZE) {
        call_detach(c);
        conn_respond_json(s, to, 200, &c->request.reply);
    } else if (to) {
        call_submit(s, c);
    }
    if (c->n_open == 0) call_free(s, c);
    if (to) conn_process(s, to);
}

static void server_take_read(server *s) {
    call *c;
    do {
        lock_take(&s->lock);
        c = queue_take(&s->read);
        lock_give(&s->lock);
        if (c) call_take_read(s, c);
    } while (c);
}

/* ---- events ------------------------------------------------------------------------------------ */

static void count_token(server *s, call *c, const fg_event *event) {
    api_choice *choice = &c->answer.choices[((call_part *)event->user)->prompt * c->request.n + event->sample];
    if (choice->last_token > 0.0) metrics_add(&s->m, METRIC_TOKEN_GAP, s->now - choice->last_token);
    else metrics_add(&s->m, METRIC_FIRST_TOKEN, s->now - c->arrival);
    choice->last_token = s->now;
}

static void count_end(server *s, call *c, const fg_event *event) {
    static const finish_count counts[5] = {FINISH_ERROR, FINISH_STOP, FINISH_LENGTH, FINISH_ABORT, FINISH_ERROR};
    const fg_times *t = &event->times;
    s->m.finished[counts[event->finish]]++;
    if (event->finish == FG_FINISH_CANCELLED || event->finish == FG_FINISH_ERROR) return;
    metrics_add(&s->m, METRIC_LATENCY, s->now - c->arrival);
    metrics_add(&s->m, METRIC_QUEUE, t->first_scheduled - t->arrival);
    metrics_add(&s->m, METRIC_INFERENCE, t->inference_end - t->first_scheduled);
    metrics_add(&s->m, METRIC_PROMPT_TOKENS, event->n_prompt);
    metrics_add(&s->m, METRIC_OUTPUT_TOKENS, event->n_generated);
    if (event->n_generated < 1) return;
    metrics_add(&s->m, METRIC_PREFILL, t->first_token - t->first_scheduled);
    metrics_add(&s->m, METRIC_DECODE, t->inference_end - t->first_token);
    if (event->n_generated > 1)
        metrics_add(&s->m, METRIC_REQUEST_GAP, (t->inference_end - t->first_token) / (event->n_generated - 1));
}

/* Adds what a stream has to say after an event, which the turn of the connection sends. A prompt's echo comes at once, however
   well the client reads. */
static void stream_event(call *c, const fg_event *event) {
    int choice = ((call_part *)event->user)->prompt * c->request.n + event->sample;
    bool echo = c->request.echo && !c->answer.choices[choice].begun;
    str data = {NULL, 0, 0};
    if (event->type != FG_EVENT_TOKEN && event->type != FG_EVENT_SAMPLE_END) return;
    if (has_output(&c->request)) output_add_news(&c->answer, &data);
    else add_pieces(&c->answer, choice, &data);
    if (echo) c->connection->spared += data.length;
    conn_add_chunk(c->connection, &data);
    str_free(&data);
}

static void server_take_event(server *s, const fg_event *event) {
    const call_part *part = (const call_part *)event->user;
    call *c = part->owner;
    conn *to = c->connection;
    if (event->type == FG_EVENT_TOKEN && !c->failed) count_token(s, c, event);
    if (event->type == FG_EVENT_SAMPLE_END) count_end(s, c, event);
    if (!c->failed) answer_take(&c->answer, part->prompt, event);
    if (c->connection && c->request.stream) stream_event(c, event);
    if (event->type != FG_EVENT_END) return;
    c->n_open--;
    if (event->finish == FG_FINISH_ERROR && !c->failed) {
        api_fail(&c->request, 500, NULL, "the request failed: %s", fg_result_text(event->result));
        call_fail(s, c, &c->request.error);
    }
    if (c->n_open == 0) {
        if (!c->failed) call_finish(s, c);
        call_free(s, c);
    }
    if (to) conn_process(s, to); /* unless it still waits for this call */
}

/* Not all at once, however many there are: connections wait meanwhile. */
static void server_take_events(server *s) {
    double until = now_seconds() + SERVER_EVENT_MS * 1e-3;
    fg_event event;
    while (fg_next_event(s->s.engine, &event)) {
        server_take_event(s, &event);
        if (now_seconds() > until) break;
    }
}

/* ---- what can be asked -------------------------------------------------------------------------- */

static void answer_health(server *s, conn *c) {
    static const char ok[] = "{\"status\":\"ok\"}";
    if (s->draining) conn_fail(s, c, 503, NULL, "the server is shutting down");
    else conn_respond(s, c, 200, "application/json", NULL, ok, sizeof(ok) - 1);
}

static void answer_metrics(server *s, conn *c) {
    fg_stats stats;
    str body = {NULL, 0, 0};
    lock_take(&s->lock);
    s->m.histograms[METRIC_PASS_TOKENS] = s->passes;
    lock_give(&s->lock);
    fg_get_stats(s->s.engine, &stats);
    add_metrics(&body, s->labels.data, &s->m, &stats, &s->engine);
    conn_respond(s, c, 200, "text/plain; version=0.0.4; charset=utf-8", NULL, body.data, body.length);
    str_free(&body);
}

static void add_mean(str *to, const char *name, const histogram *h) {
    str_printf(to, "\"%s_count\":%llu,\"%s_sum\":%.9g,", name, (unsigned long long)h->count, name, h->sum);
}

/* What the page draws: now, and the last passes as [prompt tokens, decode tokens]. */
static void answer_stats(server *s, conn *c) {
    fg_stats stats;
    str body = {NULL, 0, 0};
    uint64_t i;
    fg_get_stats(s->s.engine, &stats);
    str_printf(&body, "{\"running\":%d,\"waiting\":%d,\"blocks_total\":%d,\"blocks_used\":%d,\"blocks_cached\":%d,", stats.n_running,
               stats.n_waiting, stats.blocks_total, stats.blocks_used, stats.blocks_cached);
    add_mean(&body, "first_token", &s->m.histograms[METRIC_FIRST_TOKEN]);
    add_mean(&body, "gap", &s->m.histograms[METRIC_TOKEN_GAP]);
    lock_take(&s->lock);
    str_printf(&body, "\"n_passes\":%llu,\"passes\":[", (unsigned long long)s->n_passes);
    for (i = s->n_passes > SERVER_PASSES ? s->n_passes - SERVER_PASSES : 0; i < s->n_passes; i++) {
        const pass_record *p = &s->recent[i % SERVER_PASSES];
        str_printf(&body, "[%d,%d]%s", p->prompt, p->decode, i + 1 < s->n_passes ? "," : "");
    }
    lock_give(&s->lock);
    str_puts(&body, "]}");
    conn_respond_json(s, c, 200, &body);
    str_free(&body);
}

static void answer_page(server *s, conn *c) {
    str body = {NULL, 0, 0};
    size_t i;
    for (i = 0; i < sizeof(page_lines) / sizeof(page_lines[0]); i++) str_puts(&body, page_lines[i]);
    conn_respond(s, c, 200, "text/html; charset=utf-8",
                 "Content-Security-Policy: default-src 'none'; connect-src 'self'; img-src data:; style-src 'unsafe-inline'; "
                 "script-src 'unsafe-inline'\r\n",
                 body.data, body.length);
    str_free(&body);
}

static void add_model_json(const server *s, str *to) {
    str_puts(to, "{\"id\":");
    str_json(to, s->model_name.data, s->model_name.length);
    str_printf(to, ",\"object\":\"model\",\"created\":%lld,\"owned_by\":\"fastgen\",\"max_model_len\":%d}", s->started,
               s->engine.max_context);
}

static void answer_models(server *s, conn *c) {
    str body = {NULL, 0, 0};
    str_puts(&body, "{\"object\":\"list\",\"data\":[");
    add_model_json(s, &body);
    str_puts(&body, "]}");
    conn_respond_json(s, c, 200, &body);
    str_free(&body);
}

static void answer_model(server *s, conn *c) {
    char name[sizeof(c->head.path)];
    str body = {NULL, 0, 0};
    add_model_json(s, &body);
    snprintf(name, sizeof(name), "%s", c->head.path + strlen("/v1/models/"));
    http_decode(name);
    if (strcmp(name, s->model_name.data) == 0) conn_respond_json(s, c, 200, &body);
    else conn_fail(s, c, 404, "model_not_found", "this server has no such model");
    str_free(&body);
}

static void answer_preflight(server *s, conn *c) {
    conn_respond(s, c, 204, NULL,
                 "Access-Control-Allow-Methods: GET, POST, OPTIONS\r\nAccess-Control-Allow-Headers: Authorization, *\r\n"
                 "Access-Control-Max-Age: 86400\r\n",
                 NULL, 0);
}

static uint64_t mix_seed(uint64_t x) {
    x = (x ^ x >> 32) * 0xD6E8FEB86659FD93ull;
    x = (x ^ x >> 32) * 0xD6E8FEB86659FD93ull;
    return x ^ x >> 32;
}

/* Gives the body to the reader. */
static void start_call(server *s, conn *c, api_kind kind) {
    call *made;
    fg_stats stats;
    fg_get_stats(s->s.engine, &stats);
    if (s->draining) {
        conn_fail(s, c, 503, NULL, "the server is shutting down");
        return;
    }
    if (kind < API_TOKENIZE && stats.n_waiting >= s->engine.max_queue) {
        conn_fail(s, c, 429, NULL, "too many requests are waiting; try again");
        return;
    }
    made = (call *)xrealloc(NULL, sizeof(call));
    memset(made, 0, sizeof(*made));
    made->connection = c;
    made->kind = kind;
    made->body = c->body;
    made->arrival = s->now;
    made->seed = mix_seed((uint64_t)s->started << 32 ^ (uint64_t)(s->now * 1e9) ^ ++s->n_ids << 48);
    memset(&c->body, 0, sizeof(c->body));
    c->call = made;
    s->n_calls++;
    lock_take(&s->lock);
    queue_add(s->threaded && made->body.length > SERVER_LONG ? &s->to_read_long : &s->to_read, made);
    signal_send(&s->changed);
    lock_give(&s->lock);
}

static void answer_completion(server *s, conn *c) { start_call(s, c, API_COMPLETION); }
static void answer_chat(server *s, conn *c) { start_call(s, c, API_CHAT); }
static void answer_responses(server *s, conn *c) { start_call(s, c, API_RESPONSES); }
static void answer_messages(server *s, conn *c) { start_call(s, c, API_MESSAGES); }
static void answer_count(server *s, conn *c) { start_call(s, c, API_COUNT); }
static void answer_tokenize(server *s, conn *c) { start_call(s, c, API_TOKENIZE); }
static void answer_detokenize(server *s, conn *c) { start_call(s, c, API_DETOKENIZE); }

static const struct {
    const char *method, *path;
    void (*answer)(server *s, conn *c);
} server_routes[] = {
    {"POST", "/v1/completions", answer_completion}, {"POST", "/v1/chat/completions", answer_chat},
    {"POST", "/v1/responses", answer_responses},    {"POST", "/v1/messages", answer_messages},
    {"POST", "/v1/messages/count_tokens", answer_count},
    {"GET", "/v1/models", answer_models},           {"POST", "/tokenize", answer_tokenize},
    {"POST", "/detokenize", answer_detokenize},     {"GET", "/health", answer_health},
    {"GET", "/metrics", answer_metrics},            {"GET", "/stats", answer_stats},
    {"GET", "/", answer_page},
};

static bool server_takes_body(const http_head *head) {
    size_t i;
    for (i = 0; i < sizeof(server_routes) / sizeof(server_routes[0]); i++)
        if (strcmp(server_routes[i].path, head->path) == 0 && strcmp(server_routes[i].method, head->method) == 0)
            return strcmp(head->method, "POST") == 0;
    return false;
}

static void server_dispatch(server *s, conn *c) {
    size_t i;
    const char *method = NULL;
    if (strcmp(c->head.method, "OPTIONS") == 0) {
        answer_preflight(s, c);
        return;
    }
    for (i = 0; i < sizeof(server_routes) / sizeof(server_routes[0]); i++) {
        if (strcmp(server_routes[i].path, c->head.path) != 0) continue;
        method = server_routes[i].method;
        if (strcmp(method, c->head.method) != 0) continue;
        server_routes[i].answer(s, c);
        return;
    }
    if (strncmp(c->head.path, "/v1/models/", 11) == 0 && strcmp(c->head.method, "GET") == 0) answer_model(s, c);
    else if (method) {
        api_error error;
        memset(&error, 0, sizeof(error));
        error.status = 405;
        snprintf(error.message, sizeof(error.message), "this address takes %s", method);
        conn_respond_error(s, c, &error, strcmp(method, "GET") == 0 ? "Allow: GET, HEAD, OPTIONS\r\n" : "Allow: POST, OPTIONS\r\n");
    } else conn_fail(s, c, 404, NULL, "there is nothing at this address");
}

/* ---- connections ------------------------------------------------------------------------------- */

static void conn_free(server *s, conn *c) {
    if (c->call) {
        call_cancel(s, c->call);
        c->call->connection = NULL;
    }
    s->buffered -= c->body.length;
    s->unsent -= c->held;
    socket_close(c->socket);
    str_free(&c->in);
    str_free(&c->body);
    str_free(&c->out);
    free(c);
}

static void conn_receive(server *s, conn *c) {
    int n;
    str_reserve(&c->in, SERVER_READ);
    n = socket_receive(c->socket, c->in.data + c->in.length, SERVER_READ);
    if (n == -1) return;
    if (n <= 0) { /* gone: nobody is left to answer */
        c->dead = true;
        return;
    }
    if (c->half_closed) return; /* what comes now is thrown away */
    if (!c->in_request && !c->call) c->since = s->now;
    c->in.length += (size_t)n;
    conn_process(s, c);
}

/* Everything was sent and nothing more will be: says so, and waits for the client to close, so that it can read the answer
   even while it is still sending. */
static void conn_half_close(server *s, conn *c) {
    c->half_closed = true;
    c->in.length = 0;
    c->since = s->now;
    shutdown(c->socket, 1);
}

static bool conn_wants_input(const server *s, const conn *c) {
    return c->half_closed || (c->in.length < SERVER_PIPELINED && c->out.length < conn_limit(s));
}

static bool conn_timed_out(const server *s, const conn *c) {
    double waited = s->now - c->since;
    if (c->half_closed) return waited > SERVER_LINGER_SECONDS;
    if (c->out.length) return waited > s->args->timeout;
    if (c->call) return false;
    return waited > (c->in_request || c->has_head ? s->args->timeout : SERVER_IDLE_SECONDS);
}

/* A client that does not read its stream is not waited for. What was added since the last turn it could not have read. */
static bool conn_reads(const server *s, const conn *c) {
    return !c->streaming || c->stale <= c->sent + conn_limit(s) + c->spared;
}

/* What became of a connection since the last turn. */
static void conn_turn(server *s, conn *c, int events) {
    bool had_unsent = c->out.length > 0; /* and so may have had to wait with its next request */
    if (events & (POLLERR | POLLNVAL)) c->dead = true;
    else if (events & (POLLIN | POLLHUP)) conn_receive(s, c);
    if (!c->dead && c->out.length) conn_send(s, c);
    if (!conn_reads(s, c)) c->dead = true;
    c->stale = c->out.length;
    if (!c->dead && had_unsent) conn_process(s, c);
    if (!c->dead && c->close && !c->call && !c->half_closed && c->out.length == 0) conn_half_close(s, c);
    if (!c->dead && conn_timed_out(s, c)) {
        if (c->in_request && !c->call && !c->out.length && !c->half_closed)
            conn_refuse(s, c, 408, "the request took too long to come");
        else c->dead = true;
    }
    if (s->draining && !c->call && !c->has_head && c->out.length == 0 && !c->half_closed) c->close = true;
}

/* The connection that has waited longest for a request to come, to make room for a new one; NULL: all are being answered, or
   have only just come. */
static conn *find_idle(const server *s) {
    conn *best = NULL;
    int i;
    for (i = 0; i < s->n_conns; i++) {
        conn *c = s->conns[i];
        if (!c->dead && !c->call && c->out.length == 0 && (!best || c->since < best->since)) best = c;
    }
    return best && s->now - best->since > SERVER_GRACE_SECONDS ? best : NULL;
}

static void server_add(server *s, socket_id accepted) {
    conn *c = (conn *)xrealloc(NULL, sizeof(conn));
    memset(c, 0, sizeof(*c));
    c->socket = accepted;
    c->since = s->now;
    socket_make_nonblocking(accepted);
    socket_set(accepted, IPPROTO_TCP, TCP_NODELAY);
    s->conns[s->n_conns++] = c;
}

static void server_remove(server *s, int i) {
    conn_free(s, s->conns[i]);
    s->conns[i] = s->conns[--s->n_conns];
}

/* With all places taken, the longest idle connection gives way; when none is idle the new ones wait with the system. */
static void server_accept(server *s) {
    int i, k;
    for (i = 0; i < 64; i++) {
        conn *idle = s->n_conns == s->max_conns ? find_idle(s) : NULL;
        socket_id accepted;
        if (s->n_conns == s->max_conns && !idle) return;
        accepted = accept(s->listener, NULL, NULL);
        if (accepted == NO_SOCKET) {
            if (!socket_blocked()) s->accept_after = s->now + 0.1; /* out of files, most likely */
            return;
        }
        for (k = 0; idle && s->conns[k] != idle; k++) {}
        if (idle) server_remove(s, k);
        server_add(s, accepted);
    }
}

/* ---- the loop ---------------------------------------------------------------------------------- */

static int server_fill_polls(server *s) {
    bool full = s->n_conns == s->max_conns && !find_idle(s);
    int i;
    s->polls[0].fd = s->loop;
    s->polls[0].events = POLLIN;
    for (i = 0; i < s->n_conns; i++) {
        const conn *c = s->conns[i];
        s->polls[1 + i].fd = c->socket;
        s->polls[1 + i].events = (short)((conn_wants_input(s, c) ? POLLIN : 0) | (c->out.length > c->sent ? POLLOUT : 0));
    }
    if (s->listener == NO_SOCKET || full || s->now < s->accept_after) return 1 + s->n_conns;
    s->polls[1 + i].fd = s->listener;
    s->polls[1 + i].events = POLLIN;
    return 2 + s->n_conns;
}

/* Without threads they all share this one: a body is read, a pass is run, in every turn of the loop. True: there is more to do. */
static bool server_work_alone(server *s) {
    call *c = s->threaded ? NULL : queue_take(&s->to_read);
    if (s->threaded) return fg_wait(s->s.engine, FG_WAIT_EVENT, 0.0);
    if (c) {
        read_call(s, c);
        queue_add(&s->read, c);
    }
    if (fg_wait(s->s.engine, FG_WAIT_WORK, 0.0)) step_engine(s);
    return c || fg_wait(s->s.engine, FG_WAIT_WORK | FG_WAIT_EVENT, 0.0);
}

static void server_turn(server *s, bool busy) {
    char drop[256];
    int n_polls = server_fill_polls(s), n = s->n_conns, i;
    for (i = 0; i < n_polls; i++) s->polls[i].revents = 0;
    wait_sockets(s->polls, n_polls, busy ? 0 : 250);
    s->now = now_seconds();
    if (s->polls[0].revents) while (socket_receive(s->loop, drop, sizeof(drop)) > 0) {}
    server_take_read(s);
    server_take_events(s);
    for (i = 0; i < n; i++) conn_turn(s, s->conns[i], s->polls[1 + i].revents);
    for (i = n - 1; i >= 0; i--)
        if (s->conns[i]->dead) server_remove(s, i);
    if (n_polls > 1 + n && s->polls[1 + n].revents) server_accept(s);
}

static void server_drain(server *s) {
    s->draining = true;
    s->drain_until = s->now + s->args->drain;
    if (!s->args->quiet) fprintf(stderr, "fastgen serve: stopping; %d requests are still being answered\n", s->n_calls);
    socket_close(s->listener);
    s->listener = NO_SOCKET;
}

/* Runs until it is asked to stop and all have their answers, or the time for that is up, or it is asked again. */
static int server_run(server *s) {
    bool busy = false;
    while (!s->draining || ((s->n_calls || s->n_conns) && s->now < s->drain_until && stops_asked < 2)) {
        server_turn(s, busy);
        busy = server_work_alone(s);
        if (stops_asked && !s->draining) server_drain(s);
    }
    return s->n_calls ? 1 : 0;
}

/* ---- beginning and end ------------------------------------------------------------------------- */

/* Ends the first n of them. */
static void server_stop_threads(server *s, int n) {
    lock_take(&s->lock);
    s->stopping = true;
    signal_send(&s->changed);
    lock_give(&s->lock);
    if (n > 0) thread_join(&s->reader);
    if (n > 1) thread_join(&s->long_reader);
    if (n > 2) thread_join(&s->stepper);
}

static void server_start_threads(server *s) {
    lock_init(&s->lock);
    signal_init(&s->changed);
    lock_init(&s->vocab_lock);
    s->api.vocab_lock = &s->vocab_lock;
    if (!thread_start(&s->reader, run_reader, s)) return;
    if (!thread_start(&s->long_reader, run_long_reader, s)) server_stop_threads(s, 1);
    else if (!thread_start(&s->stepper, run_stepper, s)) server_stop_threads(s, 2);
    else s->threaded = true;
}

static void server_close(server *s) {
    call *c;
    server_stop_threads(s, s->threaded ? 3 : 0);
    while (s->n_conns) server_remove(s, s->n_conns - 1);
    while ((c = queue_take(&s->to_read)) != NULL) call_free(s, c);
    while ((c = queue_take(&s->to_read_long)) != NULL) call_free(s, c);
    while ((c = queue_take(&s->read)) != NULL) call_free(s, c);
    while (s->n_calls && s->step_result == FG_OK) { /* all cancelled by now */
        s->step_result = fg_step(s->s.engine, 0.0, NULL);
        server_take_events(s);
    }
    socket_close(s->loop);
    if (s->listener != NO_SOCKET) socket_close(s->listener);
    str_free(&s->model_name);
    str_free(&s->labels);
    grammar_vocab_free(&s->vocab);
    free(s->conns);
    free(s->polls);
}

/* A name without what would break a label or a path. */
static void server_set_name(server *s) {
    const char *name = s->args->alias ? s->args->alias : base_name(s->args->model);
    size_t length = strlen(name), i;
    if (!s->args->alias && length > 5 && strcmp(name + length - 5, ".gguf") == 0) length -= 5;
    str_add(&s->model_name, name, length);
    str_puts(&s->labels, "engine=\"0\",model_name=\"");
    for (i = 0; i < length; i++)
        str_printf(&s->labels, name[i] == '"' || name[i] == '\\' ? "\\%c" : "%c", name[i] == '\n' ? ' ' : name[i]);
    str_puts(&s->labels, "\"");
}

/* Why the last call of sockets failed. Windows has numbers for them (WSAE...). */
static const char *socket_error(char *buffer, size_t size) {
#if defined(_WIN32)
    snprintf(buffer, size, "Windows' error %d", WSAGetLastError());
    return buffer;
#else
    (void)buffer;
    (void)size;
    return strerror(errno);
#endif
}

/* Takes the address, "::1" or "[::1]", so that no model is loaded where there is none. */
static int server_bind(server *s, tool_args *args) {
    socket_address address;
    size_t length = strlen(args->host);
    char why[40];
    s->loop = s->listener = NO_SOCKET;
    if (args->api_key && !*args->api_key) return usage_error(args, "--api-key: the key is empty");
    if (!sockets_start()) return failure("this system has no sockets");
    snprintf(s->host, sizeof(s->host), "%s", args->host);
    if (length > 2 && length < sizeof(s->host) && args->host[0] == '[' && args->host[length - 1] == ']')
        snprintf(s->host, sizeof(s->host), "%.*s", (int)length - 2, args->host + 1);
    s->port = args->port;
    if (!parse_address(s->host, s->port, &address)) return usage_error(args, "--host: there is no address '%s'", args->host);
    raise_file_limit(args->max_connections + 64);
    s->listener = socket_bind(&address, &s->port);
    if (s->listener == NO_SOCKET) return failure("cannot listen on %s port %d: %s", s->host, s->port, socket_error(why, sizeof(why)));
    s->loop = socket_loop();
    return s->loop == NO_SOCKET ? failure("cannot make a socket") : 0;
}

static int server_listen(server *s) {
    bool v6 = strchr(s->host, ':') != NULL;
    char why[40];
    if (!socket_listen(s->listener)) return failure("cannot listen on %s port %d: %s", s->host, s->port, socket_error(why, sizeof(why)));
    printf("listening on http://%s%s%s:%d\n", v6 ? "[" : "", s->host, v6 ? "]" : "", s->port);
    fflush(stdout);
    return 0;
}

/* An empty one of the environment is none. */
static const char *find_api_key(const tool_args *args) {
    const char *key = args->api_key;
    if (!key) key = getenv("FASTGEN_API_KEY");
    return key && *key ? key : NULL;
}

static void server_init(server *s, const tool_args *args) {
    fg_model_info info;
    s->args = args;
    s->api_key = find_api_key(args);
    s->max_body = (size_t)args->max_body << 20;
    s->max_buffered = s->max_body * 8;
    s->max_conns = args->max_connections;
    s->conns = (conn **)xrealloc(NULL, (size_t)s->max_conns * sizeof(conn *));
    s->polls = (socket_poll *)xrealloc(NULL, (size_t)(s->max_conns + 2) * sizeof(socket_poll));
    s->now = now_seconds();
    s->started = (long long)time(NULL);
    fg_engine_get_desc(s->s.engine, &s->engine);
    s->api.model = s->s.model;
    s->api.max_context = s->engine.max_context;
    s->api.vocab = &s->vocab;
    fg_model_get_info(s->s.model, &info);
    s->api.n_vocab = info.n_vocab;
    s->api.longest_token = api_longest_token(s->s.model, info.n_vocab);
    server_set_name(s);
    s->api.model_name = s->model_name.data;
    metrics_init(&s->m, s->engine.max_context);
    histogram_init(&s->passes, BUCKETS_PASS, 0);
}

/* Freed buffers of bodies and answers go back to the system. By itself glibc keeps ever larger ones, in a heap that does not shrink. */
static void give_back_buffers(void) {
#if defined(__GLIBC__)
    mallopt(M_MMAP_THRESHOLD, 256 << 10);
#endif
}

static int cmd_serve(tool_args *args) {
    static server s;
    int result;
    give_back_buffers();
    if (args->max_queue == 0) args->max_queue = 256;
    if (args->target_tbt < 0) args->target_tbt = 100;
    result = server_bind(&s, args);
    if (result != 0) return result;
    result = session_open(args, &s.s);
    if (result != 0) return result;
    server_init(&s, args);
    result = server_listen(&s);
    if (result == 0) {
        catch_stops(s.loop);
        server_start_threads(&s);
        result = server_run(&s);
        server_close(&s);
    }
    return session_close(&s.s, result);
}
