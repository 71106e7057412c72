/* fastgen bench serve: how OpenAI-compatible servers hold up under load, by the method of the FastGen paper (arXiv 2401.08671):
   a closed loop of clients, prompts and outputs of normally distributed lengths, and effective throughput: the rate of
   those requests whose first token and whose later tokens came fast enough. Every server gets the same requests. */

enum { LOAD_MAX_SERVERS = 8, LOAD_MAX_LEVELS = 16, LOAD_MAX_RATES = 6, LOAD_MAX_CLIENTS = 1024, LOAD_MAX_ROUNDS = 15, LOAD_SPAN = 16 };

typedef struct load_list {
    double *values;
    int n, capacity;
} load_list;

/* What was measured with so many clients; of several rounds, the median of each value. Nothing but doubles. */
typedef struct load_level {
    double requests_s, tokens_s, done, failed, seconds;
    double latency, first[2], gap[2]; /* mean; median and 99th percentile */
    double passed_s[LOAD_MAX_RATES];
} load_level;

enum { LOAD_VALUES = sizeof(load_level) / sizeof(double) };

typedef struct load_server {
    char name[128], host[64], prefix[128], model[128];
    const char *file; /* of its results; NULL: measured now */
    char reason[1300]; /* why the first request failed, of those that did */
    int port, n_good, n_failed; /* requests of all levels and rounds */
    socket_address address;
    load_level levels[LOAD_MAX_LEVELS];
} load_server;

/* A client and its request. */
typedef struct load_client {
    socket_id socket;
    str out, in, body;
    size_t sent, scanned, line; /* line: where in body the next line begins */
    http_chunks chunks;
    int status;
    bool chunked, ended;
    int prompt, tokens, counted; /* prompt tokens; pieces of text, and tokens as the server counted them */
    double start, first, last, average, worst; /* worst: of the moving average of gaps */
    double resume;               /* when to go on after a failure */
} load_client;

typedef struct load {
    const tool_args *args;
    load_server servers[LOAD_MAX_SERVERS];
    int n_servers, clients[LOAD_MAX_LEVELS], n_levels, n_rates;
    double rates[LOAD_MAX_RATES];
    load_client *all; /* [LOAD_MAX_CLIENTS] */
    socket_poll *polls;
    int started, total, round; /* of the level; round: of how many of all */
    int tokens, passed[LOAD_MAX_RATES];
    load_list firsts, gaps;
    str text;       /* of --words, cut at the spaces, and where each word begins */
    size_t *words;
    int n_words;
} load;

static void load_add(load_list *l, double value) {
    if (l->n == l->capacity) {
        l->capacity = l->capacity ? 2 * l->capacity : 256;
        l->values = (double *)xrealloc(l->values, (size_t)l->capacity * sizeof(double));
    }
    l->values[l->n++] = value;
}

/* ---- the requests ------------------------------------------------------------------------------ */

static double load_uniform(uint64_t *state) { return ((double)bench_random(state) + 0.5) / 2147483648.0; }

/* Normally distributed around `mean` with a deviation of 30%. */
static int load_length(uint64_t *state, int mean) {
    double u = load_uniform(state), v = load_uniform(state);
    double value = mean * (1.0 + 0.3 * sqrt(-2.0 * log(u)) * cos(6.283185307179586 * v));
    return value < 1.0 ? 1 : value > 3.0 * mean ? 3 * mean : (int)(value + 0.5);
}

static void load_write_tokens(const load *b, int n, uint64_t *state, str *to) {
    int low = b->args->vocab / 3, i;
    for (i = 0; i < n; i++)
        str_printf(to, i ? ",%d" : "[%d", low + (int)(bench_random(state) % (uint64_t)(b->args->vocab - low)));
    str_puts(to, "]");
}

static void load_write_words(const load *b, int n, uint64_t *state, str *to) {
    str text = {NULL, 0, 0};
    int i;
    for (i = 0; i < n; i++)
        str_printf(&text, i ? " %s" : "%s", b->text.data + b->words[bench_random(state) % (uint64_t)b->n_words]);
    str_json(to, text.data, text.length);
    str_free(&text);
}

/* Request number i of a level, the same for every server. */
static void load_write(const load *b, const load_server *s, load_client *c, int i) {
    uint64_t state = mix_seed((b->args->seed + (uint64_t)b->round * 7919u) * 1000003u + (uint64_t)b->total) + mix_seed((uint64_t)i + 1);
    str body = {NULL, 0, 0};
    int output;
    c->prompt = load_length(&state, b->args->bench_prompt);
    output = load_length(&state, b->args->n_predict);
    str_puts(&body, "{\"model\":");
    str_json(&body, s->model, strlen(s->model));
    str_printf(&body, ",\"max_tokens\":%d,\"temperature\":0,\"ignore_eos\":true,\"stream\":true,"
                      "\"stream_options\":{\"include_usage\":true},\"prompt\":", output);
    if (b->n_words) load_write_words(b, c->prompt, &state, &body);
    else load_write_tokens(b, c->prompt, &state, &body);
    str_puts(&body, "}");
    c->out.length = c->sent = 0;
    str_printf(&c->out, "POST %s/v1/completions HTTP/1.1\r\nHost: %s:%d\r\nContent-Type: application/json\r\nConnection: close\r\n",
               s->prefix, s->host, s->port);
    if (b->args->api_key) str_printf(&c->out, "Authorization: Bearer %s\r\n", b->args->api_key);
    str_printf(&c->out, "Content-Length: %zu\r\n\r\n", body.length);
    str_add(&c->out, body.data, body.length);
    str_free(&body);
}

static socket_id load_connect(const load_server *s) {
    socket_id id = socket(s->address.u.any.sa_family, SOCK_STREAM, 0);
    if (id != NO_SOCKET && connect(id, &s->address.u.any, (socklen_t)s->address.length) != 0) {
        socket_close(id);
        return NO_SOCKET;
    }
    if (id == NO_SOCKET) return NO_SOCKET;
    socket_make_nonblocking(id);
    socket_set(id, IPPROTO_TCP, TCP_NODELAY);
    return id;
}

/* ---- the answers ------------------------------------------------------------------------------- */

static void load_count(load *b, load_client *c, double now) {
    if (c->tokens++ == 0) {
        c->first = now - c->start;
        load_add(&b->firsts, c->first);
    } else {
        double gap = now - c->last;
        load_add(&b->gaps, gap);
        c->average = c->tokens == 2 ? gap : c->average + (gap - c->average) * 2.0 / (LOAD_SPAN + 1);
        if (c->average > c->worst) c->worst = c->average;
    }
    c->last = now;
}

/* The data of one event. */
static void load_take(load *b, load_client *c, const char *text, size_t length, double now) {
    const json_node *choices, *delta, *piece, *usage, *tokens;
    double count;
    json j;
    if (length == 6 && memcmp(text, "[DONE]", 6) == 0) c->ended = true;
    else if (json_parse(&j, text, length) && j.nodes->type == JSON_OBJECT) {
        choices = json_get(&j, j.nodes, "choices");
        usage = json_get(&j, j.nodes, "usage");
        tokens = usage ? json_get(&j, usage, "completion_tokens") : NULL;
        if (tokens && json_real(&j, tokens, &count)) c->counted = (int)count;
        tokens = usage ? json_get(&j, usage, "prompt_tokens") : NULL;
        if (b->n_words && tokens && json_real(&j, tokens, &count)) c->prompt = (int)count;
        if (choices && choices->type == JSON_ARRAY && choices->count) {
            delta = json_get(&j, choices + 1, "delta");
            piece = json_get(&j, delta ? delta : choices + 1, delta ? "content" : "text");
            if (piece && piece->type == JSON_STRING && piece->end > piece->begin) load_count(b, c, now);
        }
    }
    if (length != 6 || memcmp(text, "[DONE]", 6) != 0) json_free(&j);
}

/* Takes the whole lines of the body. */
static void load_take_lines(load *b, load_client *c, double now) {
    while (c->line < c->body.length && !c->ended) {
        const char *begin = c->body.data + c->line, *end = (const char *)memchr(begin, '\n', c->body.length - c->line);
        size_t length;
        if (!end) return;
        c->line = (size_t)(end - c->body.data) + 1;
        length = (size_t)(end - begin);
        if (length && begin[length - 1] == '\r') length--;
        if (length > 6 && memcmp(begin, "data: ", 6) == 0) load_take(b, c, begin + 6, length - 6, now);
    }
}

static bool load_read_head(load_client *c) {
    size_t end = http_find_end(c->in.data, c->in.length, &c->scanned), i;
    if (end == 0) return false;
    c->status = end > 12 ? atoi(c->in.data + 9) : -1;
    for (i = 0; i + 28 <= end; i++)
        if (http_same(c->in.data + i, 28, "\r\ntransfer-encoding: chunked")) c->chunked = true;
    memmove(c->in.data, c->in.data + end, c->in.length - end);
    c->in.length -= end;
    return true;
}

/* Takes what has come; false: the connection is over. */
static bool load_receive(load *b, load_client *c, double now) {
    size_t used;
    int n;
    str_reserve(&c->in, 65536);
    n = socket_receive(c->socket, c->in.data + c->in.length, 65536);
    if (n == -1) return true;
    if (n <= 0) return false;
    c->in.length += (size_t)n;
    if (c->status == 0 && !load_read_head(c)) return c->in.length < 65536;
    used = c->in.length;
    if (c->chunked && http_take_chunks(&c->chunks, c->in.data, c->in.length, &used, &c->body, (size_t)1 << 30) != 0)
        return false;
    if (!c->chunked) str_add(&c->body, c->in.data, c->in.length);
    c->in.length = 0;
    load_take_lines(b, c, now);
    return !c->ended && c->chunks.state != CHUNK_DONE;
}

/* ---- a level ----------------------------------------------------------------------------------- */

static void load_start(load *b, const load_server *s, load_client *c) {
    str out = c->out, in = c->in, body = c->body;
    memset(c, 0, sizeof(*c));
    out.length = in.length = body.length = 0;
    c->out = out;
    c->in = in;
    c->body = body;
    load_write(b, s, c, b->started++);
    c->start = now_seconds();
    c->socket = load_connect(s);
}

/* What the server said, of a stream its end, in one line without control characters. */
static void load_note_failure(load_server *s, const load_client *c) {
    enum { MOST = 300 };
    size_t at = c->status == 200 && c->body.length > MOST ? c->body.length - MOST : 0;
    str text = {NULL, 0, 0};
    str_puts(&text, "");
    add_columns(&text, c->body.data, c->body.length, &at, MOST);
    if (c->status == 0) snprintf(s->reason, sizeof(s->reason), "no answer");
    else snprintf(s->reason, sizeof(s->reason), "status %d: %s", c->status, text.data);
    str_free(&text);
}

static void load_end(load *b, load_server *s, load_level *level, load_client *c, double now) {
    bool good = c->ended && c->status == 200 && c->tokens > 0;
    int i;
    s->n_good += good;
    if (!good && s->n_failed++ == 0) load_note_failure(s, c);
    if (c->socket != NO_SOCKET) socket_close(c->socket);
    c->socket = NO_SOCKET;
    level->done += good;
    level->failed += !good;
    c->resume = good ? now : now + 0.5;
    if (!good) return;
    b->tokens += c->counted > c->tokens ? c->counted : c->tokens;
    level->latency += now - c->start;
    for (i = 0; i < b->n_rates; i++)
        b->passed[i] += c->first <= c->prompt / b->args->prompt_rate && c->worst <= 1.0 / b->rates[i];
}

static void load_turn(load *b, load_server *s, load_level *level, int n) {
    double now;
    int i, wait = 100;
    for (i = 0; i < n; i++) {
        load_client *c = &b->all[i];
        b->polls[i].fd = c->socket;
        b->polls[i].events = (short)(POLLIN | (c->sent < c->out.length ? POLLOUT : 0));
        b->polls[i].revents = 0;
        if (c->socket == NO_SOCKET) wait = 10;
    }
    wait_sockets(b->polls, n, wait);
    now = now_seconds();
    for (i = 0; i < n; i++) {
        load_client *c = &b->all[i];
        bool open = c->socket != NO_SOCKET;
        if (open && (b->polls[i].revents & POLLOUT)) {
            int sent = socket_send(c->socket, c->out.data + c->sent, c->out.length - c->sent);
            if (sent > 0) c->sent += (size_t)sent;
        }
        if (open && (b->polls[i].revents & ~POLLOUT) && !load_receive(b, c, now)) load_end(b, s, level, c, now);
        if (c->socket == NO_SOCKET && now >= c->resume && b->started < b->total) {
            load_start(b, s, c);
            if (c->socket == NO_SOCKET) load_end(b, s, level, c, now);
        }
    }
}

static void load_percentiles(load_list *l, double to[2]) {
    to[0] = to[1] = NAN;
    if (l->n == 0) return;
    qsort(l->values, (size_t)l->n, sizeof(double), compare_doubles);
    to[0] = l->values[l->n / 2];
    to[1] = l->values[l->n * 99 / 100];
}

/* One round with so many clients. */
static void load_run(load *b, load_server *s, int n, load_level *level) {
    double start = now_seconds();
    int i;
    memset(level, 0, sizeof(*level));
    memset(b->passed, 0, sizeof(b->passed));
    b->started = b->tokens = 0;
    b->total = n * b->args->requests;
    b->firsts.n = b->gaps.n = 0;
    for (i = 0; i < n; i++) {
        load_client *c = &b->all[i];
        load_start(b, s, c);
        if (c->socket == NO_SOCKET) load_end(b, s, level, c, start);
    }
    while (level->done + level->failed < b->total && !interrupted) {
        char what[80];
        snprintf(what, sizeof(what), "%.24s, %d clients, round %d", s->name, n, b->round + 1);
        if (!b->args->quiet) show_progress((level->done + level->failed) / b->total, what);
        load_turn(b, s, level, n);
    }
    for (i = 0; i < n; i++)
        if (b->all[i].socket != NO_SOCKET) socket_close(b->all[i].socket);
    level->seconds = now_seconds() - start;
    level->requests_s = level->done / level->seconds;
    level->tokens_s = b->tokens / level->seconds;
    for (i = 0; i < b->n_rates; i++) level->passed_s[i] = b->passed[i] / level->seconds;
    level->latency = level->done > 0.0 ? level->latency / level->done : NAN;
    load_percentiles(&b->firsts, level->first);
    load_percentiles(&b->gaps, level->gap);
}

/* All rounds with so many clients, of all servers by turns, so that what else the machine does hits all alike. */
static void load_measure(load *b, int index) {
    static load_level rounds[LOAD_MAX_SERVERS][LOAD_MAX_ROUNDS];
    double column[LOAD_MAX_ROUNDS];
    int n = b->args->repetitions, i, k;
    for (b->round = 0; b->round < n; b->round++)
        for (i = 0; i < b->n_servers && !interrupted; i++)
            load_run(b, &b->servers[i], b->clients[index], &rounds[i][b->round]);
    for (i = 0; i < b->n_servers && !interrupted; i++)
        for (k = 0; k < LOAD_VALUES; k++) {
            int r;
            for (r = 0; r < n; r++) column[r] = ((const double *)&rounds[i][r])[k];
            qsort(column, (size_t)n, sizeof(double), compare_doubles);
            ((double *)&b->servers[i].levels[index])[k] = column[n / 2];
        }
}

/* ---- what came out ----------------------------------------------------------------------------- */

static void print_load_table(const load *b) {
    int i, k, r;
    for (i = 0; i < b->n_servers; i++) {
        const load_server *s = &b->servers[i];
        if (s->port)
            printf("%s%s (http://%s:%d%s, %s)\n", i ? "\n" : "", s->name, s->host, s->port, s->prefix, s->model);
        else printf("%s%s (%s)\n", i ? "\n" : "", s->name, s->model);
        printf("clients  requests/s  tokens/s  latency s  first token s   p99 s   gap ms  p99 ms");
        for (r = 0; r < b->n_rates; r++) printf("  passed/s@%g", b->rates[r]);
        printf("  failed\n");
        for (k = 0; k < b->n_levels; k++) {
            const load_level *l = &s->levels[k];
            if (l->requests_s != l->requests_s) continue; /* not measured */
            printf("%7d %11.2f %9.1f %10.2f %14.2f %7.2f %8.1f %7.1f", b->clients[k], l->requests_s, l->tokens_s,
                   l->latency, l->first[0], l->first[1], l->gap[0] * 1e3, l->gap[1] * 1e3);
            for (r = 0; r < b->n_rates; r++) printf("  %*.2f", 9 + (int)(b->rates[r] >= 10.0) + 1, l->passed_s[r]);
            printf("  %6.0f\n", l->failed);
        }
    }
}

/* Says why requests to a server failed. 1 where none succeeded, else 0. */
static int load_report(const load *b, const load_server *s) {
    bool none = s->n_failed > 0 && s->n_good == 0;
    if (none) return failure("%s: all %d requests failed, the first: %s", s->name, s->n_failed, s->reason);
    if (s->n_failed > 0 && !b->args->quiet)
        fprintf(stderr, "%s: %d of %d requests failed, the first: %s\n", s->name, s->n_failed, s->n_failed + s->n_good, s->reason);
    return 0;
}

static void add_level_json(const load *b, const load_level *l, int clients, str *to) {
    static const char *const names[5] = {"latency_s", "first_p50_s", "first_p99_s", "gap_p50_s", "gap_p99_s"};
    const double values[5] = {l->latency, l->first[0], l->first[1], l->gap[0], l->gap[1]};
    int i;
    str_printf(to, "{\"clients\": %d, \"requests\": %.0f, \"failed\": %.0f, \"seconds\": %.3f, \"requests_s\": %.4f, \"tokens_s\": %.3f",
               clients, l->done, l->failed, l->seconds, l->requests_s, l->tokens_s);
    for (i = 0; i < 5; i++) {
        str_printf(to, ", \"%s\": ", names[i]);
        str_number(to, values[i], 5);
    }
    str_puts(to, ", \"passed_s\": {");
    for (i = 0; i < b->n_rates; i++) str_printf(to, "%s\"%g\": %.4f", i ? ", " : "", b->rates[i], l->passed_s[i]);
    str_puts(to, "}}");
}

static void print_load_json(const load *b) {
    str out = {NULL, 0, 0};
    int i, k;
    str_printf(&out, "{\"prompt\": %d, \"output\": %d, \"requests_per_client\": %d, \"rounds\": %d, \"prompt_rate\": %g, \"servers\": [", b->args->bench_prompt,
               b->args->n_predict, b->args->requests, b->args->repetitions, b->args->prompt_rate);
    for (i = 0; i < b->n_servers; i++) {
        str_puts(&out, i ? ", {\"name\": " : "{\"name\": ");
        str_json(&out, b->servers[i].name, strlen(b->servers[i].name));
        str_puts(&out, ", \"model\": ");
        str_json(&out, b->servers[i].model, strlen(b->servers[i].model));
        str_puts(&out, ", \"levels\": [");
        for (k = 0; k < b->n_levels; k++) {
            if (b->servers[i].levels[k].requests_s != b->servers[i].levels[k].requests_s) continue;
            if (out.data[out.length - 1] != '[') str_puts(&out, ", ");
            add_level_json(b, &b->servers[i].levels[k], b->clients[k], &out);
        }
        str_puts(&out, "]}");
    }
    str_puts(&out, "]}\n");
    fwrite(out.data, 1, out.length, stdout);
    str_free(&out);
}

typedef struct load_curves {
    double x[LOAD_MAX_SERVERS][LOAD_MAX_LEVELS], y[LOAD_MAX_SERVERS][LOAD_MAX_LEVELS];
    plot_line lines[LOAD_MAX_SERVERS];
    char title[96];
} load_curves;

/* Which: 0 latency over requests/s, 1 requests/s, 2 the gaps' 99th percentile, 3 and up effective throughput at rate - 3. */
static void load_fill_curves(const load *b, int which, load_curves *c) {
    int i, k;
    for (i = 0; i < b->n_servers; i++) {
        for (k = 0; k < b->n_levels; k++) {
            const load_level *l = &b->servers[i].levels[k];
            c->x[i][k] = which == 0 ? l->requests_s : b->clients[k];
            c->y[i][k] = which == 0 ? l->latency : which == 1 ? l->requests_s : which == 2 ? l->gap[1] * 1e3
                       : l->passed_s[which - 3];
        }
        c->lines[i].name = b->servers[i].name;
        c->lines[i].x = c->x[i];
        c->lines[i].y = c->y[i];
        c->lines[i].n = b->n_levels;
    }
}

static int load_plot(const load *b) {
    static const char *const titles[3] = {"Throughput and latency", "Throughput", "Gap between tokens, 99th percentile"};
    static const char *const labels[3] = {"mean latency, s", "requests/s", "ms"};
    load_curves *curves = (load_curves *)xrealloc(NULL, (3 + LOAD_MAX_RATES) * sizeof(load_curves));
    plot_chart charts[3 + LOAD_MAX_RATES];
    int i, n = 3 + b->n_rates, result = 0;
    for (i = 0; i < n; i++) {
        load_fill_curves(b, i, &curves[i]);
        if (i >= 3)
            snprintf(curves[i].title, sizeof(curves[i].title), "Effective throughput at %g tokens/s", b->rates[i - 3]);
        else snprintf(curves[i].title, sizeof(curves[i].title), "%s", titles[i]);
        charts[i].title = curves[i].title;
        charts[i].x_label = i == 0 ? "requests/s" : "clients";
        charts[i].y_label = i < 3 ? labels[i] : "requests/s that pass";
        charts[i].lines = curves[i].lines;
        charts[i].n_lines = b->n_servers;
        charts[i].log_x = i > 0;
    }
    if (plot_write(b->args->plot, charts, n) != 0) result = failure("%s: %s", b->args->plot, strerror(errno));
    free(curves);
    return result;
}

/* ---- arguments --------------------------------------------------------------------------------- */

static int parse_numbers(const tool_args *args, const char *option, const char *text, double least, double most,
                         double *to, int room) {
    int n = 0;
    while (*text) {
        char *end;
        double value = strtod(text, &end);
        if (end == text || (*end && *end != ',') || !(value >= least && value <= most) || n == room)
            return usage_error(args, "%s: not a list of at most %d numbers in %g to %g", option, room, least, most), -1;
        to[n++] = value;
        text = *end ? end + 1 : end;
    }
    return n ? n : (usage_error(args, "%s: no numbers", option), -1);
}

/* "http://127.0.0.1:8080/prefix" or "name=http://..." */
static int parse_url(const tool_args *args, const char *text, load_server *s) {
    const char *http = strstr(text, "http://"), *at, *slash, *colon;
    char port[8] = "80";
    size_t length;
    if (!http || (http != text && http[-1] != '='))
        return usage_error(args, "--url: '%s' is not [NAME=]http://ADDRESS:PORT", text);
    at = http + 7;
    slash = strchr(at, '/') ? strchr(at, '/') : at + strlen(at);
    colon = slash;
    while (colon > at && *colon != ':' && *colon != ']') colon--;
    if (*colon == ':') snprintf(port, sizeof(port), "%.*s", (int)(slash - colon - 1), colon + 1);
    else colon = slash;
    if (*at == '[') snprintf(s->host, sizeof(s->host), "%.*s", (int)(colon - at) - 2, at + 1);
    else snprintf(s->host, sizeof(s->host), "%.*s", (int)(colon - at), at);
    s->port = atoi(port);
    if (s->port < 1 || s->port > 65535 || !parse_address(s->host, s->port, &s->address))
        return usage_error(args, "--url: '%s' has no address and port that can be found", text);
    length = strlen(slash);
    while (length && slash[length - 1] == '/') length--;
    snprintf(s->prefix, sizeof(s->prefix), "%.*s", (int)length, slash);
    if (strlen(s->prefix) >= 3 && strcmp(s->prefix + strlen(s->prefix) - 3, "/v1") == 0)
        s->prefix[strlen(s->prefix) - 3] = 0;
    if (http == text) snprintf(s->name, sizeof(s->name), "%.*s", (int)(slash - at), at);
    else snprintf(s->name, sizeof(s->name), "%.*s", (int)(http - text) - 1, text);
    return 0;
}

static bool load_model_name(const str *body, load_server *s) {
    json j;
    bool ok = body->length && json_parse(&j, body->data, body->length);
    const json_node *data = ok ? json_get(&j, j.nodes, "data") : NULL;
    const json_node *id = data && data->type == JSON_ARRAY && data->count ? json_get(&j, data + 1, "id") : NULL;
    str name = {NULL, 0, 0};
    if (id && id->type == JSON_STRING) json_add_text(&j, id, &name);
    snprintf(s->model, sizeof(s->model), "%s", name.length ? name.data : "");
    str_free(&name);
    if (body->length) json_free(&j);
    return id != NULL;
}

/* Asks a server for the name of its model. */
static int load_ask_model(load *b, load_server *s) {
    load_client *c = &b->all[0];
    socket_poll p;
    bool more;
    memset(&p, 0, sizeof(p));
    c->socket = load_connect(s);
    if (c->socket == NO_SOCKET) return failure("%s: nobody answers on %s port %d", s->name, s->host, s->port);
    str_printf(&c->out, "GET %s/v1/models HTTP/1.1\r\nHost: %s:%d\r\nConnection: close\r\n", s->prefix, s->host, s->port);
    if (b->args->api_key) str_printf(&c->out, "Authorization: Bearer %s\r\n", b->args->api_key);
    str_puts(&c->out, "\r\n");
    socket_send(c->socket, c->out.data, c->out.length);
    do {
        p.fd = c->socket;
        p.events = POLLIN;
        more = wait_sockets(&p, 1, 10000) > 0 && load_receive(b, c, 0.0);
    } while (more);
    socket_close(c->socket);
    more = c->status == 200 && load_model_name(&c->body, s);
    str_free(&c->body);
    str_free(&c->in);
    str_free(&c->out);
    memset(c, 0, sizeof(*c));
    return more ? 0 : failure("%s: /v1/models does not answer as OpenAI's does", s->name);
}

/* ---- results of earlier runs ------------------------------------------------------------------- */

static double load_number(const json *j, const json_node *object, const char *name) {
    const json_node *node = json_get(j, object, name);
    double value = NAN;
    return node && json_real(j, node, &value) ? value : NAN;
}

/* Where so many clients are among the levels, which are in order; a new one has no results. -1: no place. */
static int load_find_level(load *b, int clients) {
    int k = 0, i, r;
    while (k < b->n_levels && b->clients[k] < clients) k++;
    if (k < b->n_levels && b->clients[k] == clients) return k;
    if (b->n_levels == LOAD_MAX_LEVELS || clients < 1) return -1;
    for (i = b->n_levels++; i > k; i--) b->clients[i] = b->clients[i - 1];
    b->clients[k] = clients;
    for (i = 0; i < LOAD_MAX_SERVERS; i++) {
        for (r = b->n_levels - 1; r > k; r--) b->servers[i].levels[r] = b->servers[i].levels[r - 1];
        for (r = 0; r < LOAD_VALUES; r++) ((double *)&b->servers[i].levels[k])[r] = NAN;
    }
    return k;
}

static bool load_take_level(load *b, load_server *s, const json *j, const json_node *level) {
    static const char *const names[10] = {"requests_s", "tokens_s", "requests", "failed", "seconds", "latency_s", "first_p50_s", "first_p99_s",
                                          "gap_p50_s", "gap_p99_s"}; /* as load_level has them */
    const json_node *passed = json_get(j, level, "passed_s");
    double clients = load_number(j, level, "clients");
    int k = clients >= 1 && clients <= 1e6 ? load_find_level(b, (int)clients) : -1, i;
    char rate[32];
    if (k < 0) return false;
    for (i = 0; i < 10; i++) ((double *)&s->levels[k])[i] = load_number(j, level, names[i]);
    for (i = 0; i < b->n_rates && passed; i++) {
        snprintf(rate, sizeof(rate), "%g", b->rates[i]);
        s->levels[k].passed_s[i] = load_number(j, passed, rate);
    }
    return true;
}

/* A server of the results in a file, without levels; NULL: it is none, or there is no place. */
static load_server *load_add_server(load *b, const json *j, const json_node *server, const char *path) {
    const json_node *name = json_get(j, server, "name"), *model = json_get(j, server, "model");
    load_server *s;
    str text = {NULL, 0, 0};
    int i, k;
    if (!name || name->type != JSON_STRING || !model || model->type != JSON_STRING || b->n_servers == LOAD_MAX_SERVERS) return NULL;
    s = &b->servers[b->n_servers++];
    s->file = path;
    json_add_text(j, name, &text);
    snprintf(s->name, sizeof(s->name), "%s", text.length ? text.data : "");
    text.length = 0;
    json_add_text(j, model, &text);
    snprintf(s->model, sizeof(s->model), "%s", text.length ? text.data : "");
    str_free(&text);
    for (k = 0; k < LOAD_MAX_LEVELS; k++)
        for (i = 0; i < LOAD_VALUES; i++) ((double *)&s->levels[k])[i] = NAN;
    return s;
}

static bool load_take_results(load *b, const json *j, const char *path) {
    const json_node *servers = json_get(j, j->nodes, "servers"), *server = servers ? servers + 1 : NULL;
    uint32_t i, k;
    if (!servers || servers->type != JSON_ARRAY) return false;
    for (i = 0; i < servers->count; i++, server = json_next(j, server)) {
        const json_node *levels = json_get(j, server, "levels"), *level = levels ? levels + 1 : NULL;
        load_server *s = load_add_server(b, j, server, path);
        if (!s || !levels || levels->type != JSON_ARRAY) return false;
        for (k = 0; k < levels->count; k++, level = json_next(j, level))
            if (!load_take_level(b, s, j, level)) return false;
    }
    return true;
}

/* What an earlier run printed with --json. 0, or 1 after a message. */
static int load_read_results(load *b, const char *path) {
    FILE *f = open_for_reading(path);
    str text = {NULL, 0, 0};
    size_t n = 0;
    json j;
    bool ok;
    if (!f) return failure("cannot read '%s': %s", path, strerror(errno));
    do {
        str_reserve(&text, 65536);
        n = fread(text.data + text.length, 1, 65536, f);
        text.length += n;
    } while (n && text.length < (size_t)16 << 20);
    fclose(f);
    ok = json_parse(&j, text.data, text.length) && load_take_results(b, &j, path);
    json_free(&j);
    str_free(&text);
    return ok ? 0 : failure("'%s' is not what bench serve --json prints, or has too many servers or levels", path);
}

/* Servers of the same name are told apart by the files of their results. */
static void load_name_files(load *b) {
    bool shared[LOAD_MAX_SERVERS] = {false};
    int i, k;
    for (i = 0; i < b->n_servers; i++)
        for (k = 0; k < b->n_servers; k++) shared[i] = shared[i] || (k != i && strcmp(b->servers[k].name, b->servers[i].name) == 0);
    for (i = 0; i < b->n_servers; i++) {
        load_server *s = &b->servers[i];
        size_t length = strlen(s->name);
        if (shared[i] && s->file) snprintf(s->name + length, sizeof(s->name) - length, " (%s)", s->file);
    }
}

/* The words of a file. 0, or 1 after a message. */
static int load_read_words(load *b) {
    FILE *f = open_for_reading(b->args->file);
    char *p;
    size_t n = 0;
    if (!f) return failure("cannot read '%s': %s", b->args->file, strerror(errno));
    do {
        str_reserve(&b->text, 65536);
        n = fread(b->text.data + b->text.length, 1, 65536, f);
        b->text.length += n;
    } while (n && b->text.length < (size_t)64 << 20);
    fclose(f);
    str_add(&b->text, "", 1);
    for (p = b->text.data; *p; p++) {
        bool space = (unsigned char)*p <= ' ';
        if (space) *p = 0;
        else if (p == b->text.data || p[-1] == 0) {
            b->words = (size_t *)xrealloc(b->words, (size_t)(b->n_words + 1) * sizeof(size_t));
            b->words[b->n_words++] = (size_t)(p - b->text.data);
        }
    }
    return b->n_words ? 0 : failure("'%s' has no words", b->args->file);
}

static int load_ascending(const void *a, const void *b) { return *(const int *)a - *(const int *)b; }

static int load_parse(load *b) {
    const tool_args *args = b->args;
    double counts[LOAD_MAX_LEVELS];
    int i;
    if (args->urls.count == 0 && args->results.count == 0) return usage_error(args, "no server: --url URL is missing");
    if (args->urls.count > LOAD_MAX_SERVERS) return usage_error(args, "--url: more than %d servers", LOAD_MAX_SERVERS);
    b->n_levels = args->urls.count == 0 ? 0 : parse_numbers(args, "--clients", args->clients, 1, LOAD_MAX_CLIENTS, counts, LOAD_MAX_LEVELS);
    b->n_rates = parse_numbers(args, "--rates", args->rates, 0.001, 1e6, b->rates, LOAD_MAX_RATES);
    if (b->n_levels < 0 || b->n_rates < 0) return 2;
    for (i = 0; i < b->n_levels; i++) b->clients[i] = (int)counts[i];
    qsort(b->clients, (size_t)b->n_levels, sizeof(b->clients[0]), load_ascending);
    for (i = 0; i < args->urls.count; i++)
        if (parse_url(args, args->urls.items[i], &b->servers[b->n_servers++]) != 0) return 2;
    return 0;
}

static void load_free(load *b) {
    int i;
    for (i = 0; i < LOAD_MAX_CLIENTS; i++) {
        str_free(&b->all[i].out);
        str_free(&b->all[i].in);
        str_free(&b->all[i].body);
    }
    free(b->all);
    free(b->polls);
    free(b->firsts.values);
    free(b->gaps.values);
    free(b->words);
    str_free(&b->text);
}

static int cmd_bench_serve(tool_args *args) {
    static load b;
    int result, i, k;
    if (args->bench_prompt == 0) args->bench_prompt = 600;
    if (args->requests == 0) args->requests = 4;
    if (args->repetitions == 0) args->repetitions = 1;
    if (args->n_predict < 0) args->n_predict = 60;
    b.args = args;
    b.all = (load_client *)xrealloc(NULL, LOAD_MAX_CLIENTS * sizeof(load_client));
    b.polls = (socket_poll *)xrealloc(NULL, LOAD_MAX_CLIENTS * sizeof(socket_poll));
    memset(b.all, 0, LOAD_MAX_CLIENTS * sizeof(load_client));
    result = sockets_start() ? load_parse(&b) : failure("this system has no sockets");
    if (result == 0 && args->file) result = load_read_words(&b);
    catch_interrupts();
    for (i = 0; i < b.n_servers && result == 0; i++) result = load_ask_model(&b, &b.servers[i]);
    for (k = 0; k < b.n_levels && result == 0; k++) load_measure(&b, k);
    clear_progress();
    for (i = 0; i < args->results.count && result == 0; i++) result = load_read_results(&b, args->results.items[i]);
    load_name_files(&b);
    if (result == 0 && interrupted) result = failure("interrupted");
    if (result == 0 && args->json) print_load_json(&b);
    else if (result == 0) print_load_table(&b);
    if (result == 0 && args->plot) result = load_plot(&b);
    for (i = 0; i < b.n_servers; i++) result |= load_report(&b, &b.servers[i]);
    load_free(&b);
    return result;
}
