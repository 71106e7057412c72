/* fastgen bench sweep: throughput and time of passes over their tokens; requests whose first 1000 tokens are the same, at shares
   of 0 to 100% that find them in the prefix cache, and what keeping the cache costs; and, in simulated time, inference time and
   latency over queries per second, with passes one after another, overlapped, and two in flight. */

enum { SWEEP_POINTS = 5, SWEEP_PREFIX = 1000, SWEEP_OWN = 16, SWEEP_OUTPUT = 4 };
enum { SWEEP_MOST = 1024, SWEEP_SIZES = 11, SWEEP_MODES = 3, SWEEP_RATES = 6, SWEEP_QUERIES = 200 };

static const char *const sweep_modes[SWEEP_MODES] = {"off", "overlap", "async-2"};
static const double sweep_rates[SWEEP_RATES] = {1.0, 2.0, 4.0, 8.0, 12.0, 16.0};

typedef struct sweep {
    const tool_args *args;
    session s;
    uint64_t random;
    int32_t shared[SWEEP_PREFIX];
    int n_vocab, n_requests;
    double share[SWEEP_POINTS], seconds[SWEEP_POINTS], tokens_s[SWEEP_POINTS], first_ms[SWEEP_POINTS], cached[SWEEP_POINTS];
    double hash_seconds, token_seconds; /* of each token: what the cache takes, what the model takes */
    double pass_tokens[SWEEP_SIZES], pass_ms[SWEEP_SIZES], pass_tokens_s[SWEEP_SIZES];
    int n_passes;
    double inference[SWEEP_MODES][SWEEP_RATES], latency[SWEEP_MODES][SWEEP_RATES];
} sweep;

/* A request that begins with the shared tokens, or with others. */
static fg_result sweep_send(sweep *w, bool shared) {
    int32_t tokens[SWEEP_PREFIX + SWEEP_OWN];
    fg_request_desc desc;
    fg_request request;
    int i;
    memset(&desc, 0, sizeof(desc));
    for (i = 0; i < SWEEP_PREFIX + SWEEP_OWN; i++)
        tokens[i] = shared && i < SWEEP_PREFIX ? w->shared[i] : (int32_t)(bench_random(&w->random) % (uint64_t)w->n_vocab);
    desc.tokens = tokens;
    desc.n_tokens = SWEEP_PREFIX + SWEEP_OWN;
    desc.max_tokens = SWEEP_OUTPUT;
    desc.ignore_eos = true;
    return fg_submit(w->s.engine, &desc, &request);
}

static fg_result sweep_drain(sweep *w) {
    bool busy = true;
    fg_event event;
    fg_result result = FG_OK;
    while (busy && result == FG_OK && !interrupted) {
        result = fg_step(w->s.engine, 0.0, &busy);
        while (fg_next_event(w->s.engine, &event)) {}
    }
    return result;
}

/* One share of hits: the shared prefix is computed before, and not counted. */
static fg_result sweep_point(sweep *w, int point) {
    fg_stats stats;
    fg_histograms h;
    fg_result result;
    double start;
    int i, hits = point * w->n_requests / (SWEEP_POINTS - 1);
    fg_clear_prefix_cache(w->s.engine);
    result = sweep_send(w, true);
    if (result == FG_OK) result = sweep_drain(w);
    fg_reset_stats(w->s.engine);
    start = now_seconds();
    for (i = 0; i < w->n_requests && result == FG_OK; i++) result = sweep_send(w, i < hits);
    if (result == FG_OK) result = sweep_drain(w);
    w->seconds[point] = now_seconds() - start;
    fg_get_stats(w->s.engine, &stats);
    fg_get_histograms(w->s.engine, &h);
    w->share[point] = 100.0 * hits / w->n_requests;
    w->cached[point] = 100.0 * (double)stats.prefix_hits / (double)(stats.prefix_queries ? stats.prefix_queries : 1);
    w->tokens_s[point] = (double)w->n_requests * (SWEEP_PREFIX + SWEEP_OWN + SWEEP_OUTPUT) / w->seconds[point];
    w->first_ms[point] = 1e3 * h.first_token.sum / (double)(h.first_token.count ? h.first_token.count : 1);
    return result;
}

static int sweep_open(sweep *w) {
    fg_engine_desc desc;
    fg_model_info info;
    int i, result = describe_engine(w->args, &desc);
    if (result == 0) result = load_model(w->args, false, &w->s.model);
    if (result != 0) return result;
    fg_model_get_info(w->s.model, &info);
    w->n_vocab = info.n_vocab;
    for (i = 0; i < SWEEP_PREFIX; i++) w->shared[i] = (int32_t)(bench_random(&w->random) % (uint64_t)w->n_vocab);
    desc.max_context = SWEEP_MOST + SWEEP_OWN; /* more than SWEEP_PREFIX + SWEEP_OWN + SWEEP_OUTPUT */
    if (!desc.token_budget) desc.token_budget = SWEEP_MOST;
    desc.kv_tokens = (w->n_requests + 2) * (desc.max_context + 256);
    return create_engine(w->args, &desc, &w->s);
}

/* ---- what keeping the cache costs ---- */

/* Seconds of the host for a token of a prompt, over a device that computes nothing: the best of three runs. */
static fg_result sweep_host(sweep *w, bool cache, double *seconds) {
    enum { PROMPTS = 16 };
    fg_engine *engine = w->s.engine;
    fg_engine_desc desc;
    fg_stats stats;
    fg_result result = FG_OK;
    int i, k;
    memset(&desc, 0, sizeof(desc));
    desc.model = w->s.model;
    desc.backends[0] = fg_backend_null();
    desc.max_context = SWEEP_PREFIX + SWEEP_OWN + SWEEP_OUTPUT;
    desc.kv_tokens = PROMPTS * (desc.max_context + 256);
    desc.no_prefix_cache = !cache;
    *seconds = HUGE_VAL;
    for (i = 0; i < 3 && result == FG_OK; i++) {
        result = fg_engine_create(&desc, &w->s.engine);
        for (k = 0; k < PROMPTS && result == FG_OK; k++) result = sweep_send(w, false);
        if (result == FG_OK) result = sweep_drain(w);
        if (result == FG_OK) {
            fg_get_stats(w->s.engine, &stats);
            if (stats.host_seconds / (double)stats.prompt_tokens < *seconds)
                *seconds = stats.host_seconds / (double)stats.prompt_tokens;
        }
        fg_engine_free(w->s.engine);
        w->s.engine = engine;
    }
    return result;
}

/* ---- passes of one prompt, by its tokens ---- */

/* Median time of passes that carry a prompt of n tokens, as each size allows in about half a second. */
static fg_result sweep_pass(sweep *w, int n, double *seconds) {
    double values[9], sum = 0.0;
    fg_result result = FG_OK;
    int i = 0, k;
    while (result == FG_OK && (i < 3 || (i < 9 && sum < 0.5)) && !interrupted) {
        int32_t tokens[SWEEP_MOST];
        fg_request_desc desc;
        fg_request request;
        fg_stats stats;
        memset(&desc, 0, sizeof(desc));
        for (k = 0; k < n; k++) tokens[k] = (int32_t)(bench_random(&w->random) % (uint64_t)w->n_vocab);
        desc.tokens = tokens;
        desc.n_tokens = (size_t)n;
        desc.max_tokens = 1;
        result = fg_submit(w->s.engine, &desc, &request);
        if (result == FG_OK) result = sweep_drain(w);
        fg_get_stats(w->s.engine, &stats);
        values[i] = stats.pass_seconds;
        sum += values[i++];
    }
    *seconds = i ? median(values, i) : 0.0;
    return result;
}

static fg_result sweep_passes(sweep *w) {
    fg_engine_desc desc;
    fg_result result = FG_OK;
    char what[32];
    int n;
    fg_engine_get_desc(w->s.engine, &desc);
    for (n = 1; n <= desc.token_budget && n <= desc.max_context - 1 && w->n_passes < SWEEP_SIZES && result == FG_OK && !interrupted; n *= 2) {
        double seconds;
        snprintf(what, sizeof(what), "passes of %d tokens", n);
        if (!w->args->quiet) show_progress(0.4 + 0.03 * w->n_passes, what);
        result = sweep_pass(w, n, &seconds);
        w->pass_tokens[w->n_passes] = n;
        w->pass_ms[w->n_passes] = 1e3 * seconds;
        w->pass_tokens_s[w->n_passes++] = seconds > 0.0 ? n / seconds : 0.0;
    }
    return result;
}

/* ---- queries per second, in simulated time ---- */

/* Requests that come at random (exponential gaps): 512 tokens, an answer of 128, each with a deviation of 30%. */
static fg_result sweep_query(sweep *w, sim *m) {
    m->prompt = 512;
    m->output = 128;
    m->clients[0].busy = false;
    return sim_send(m, &m->clients[0], w->n_vocab);
}

/* The host's work comes after each pass, and runs beside the next where that is in flight. */
static fg_result sweep_queries(sweep *w, sim *m, int mode, double rate, double *inference, double *latency) {
    double next = 0.0;
    fg_event event;
    fg_result result;
    int n_ended = 0, n_sent = 0;
    bool busy = false;
    m->clock = 0.0;
    m->random = 1 + w->args->seed; /* the same requests for all */
    m->desc.async = (fg_async)mode;
    *inference = *latency = 0.0;
    result = fg_engine_create(&m->desc, &m->s.engine);
    while (result == FG_OK && n_ended < SWEEP_QUERIES && !interrupted) {
        if (!busy && n_sent < SWEEP_QUERIES && m->clock < next) m->clock = next;
        for (; result == FG_OK && n_sent < SWEEP_QUERIES && next <= m->clock; n_sent++) {
            result = sweep_query(w, m);
            next -= log(((double)bench_random(&m->random) + 1.0) / 2147483649.0) / rate;
        }
        if (result == FG_OK) result = fg_step(m->s.engine, 0.0, &busy);
        m->clock += sim_host;
        while (fg_next_event(m->s.engine, &event)) {
            if (event.type != FG_EVENT_END) continue;
            *inference += (event.times.inference_end - event.times.inference_begin) / SWEEP_QUERIES;
            *latency += (event.times.finish - event.times.arrival) / SWEEP_QUERIES;
            n_ended++;
        }
    }
    fg_engine_free(m->s.engine);
    m->s.engine = NULL;
    return result;
}

static fg_result sweep_loads(sweep *w) {
    static sim m;
    fg_result result = FG_OK;
    int mode, i;
    m.args = w->args;
    sim_device(&m);
    m.device.overhead = 0.0; /* the host's work is counted by itself */
    m.desc.model = w->s.model;
    m.desc.max_seqs = 64;
    m.desc.token_budget = 512;
    for (mode = 0; mode < SWEEP_MODES; mode++)
        for (i = 0; i < SWEEP_RATES && result == FG_OK && !interrupted; i++) {
            if (!w->args->quiet)
                show_progress(0.75 + 0.25 * (mode * SWEEP_RATES + i) / (SWEEP_MODES * SWEEP_RATES), "queries/s");
            result = sweep_queries(w, &m, mode, sweep_rates[i], &w->inference[mode][i], &w->latency[mode][i]);
        }
    return result;
}

/* ---- what came of it ---- */

static void sweep_print_json(const sweep *w) {
    int i, k;
    printf("{\"hits\": [");
    for (i = 0; i < SWEEP_POINTS; i++)
        printf("%s{\"share\": %.0f, \"cached\": %.1f, \"tokens_s\": %.1f, \"first_token_ms\": %.2f}", i ? ", " : "", w->share[i], w->cached[i],
               w->tokens_s[i], w->first_ms[i]);
    printf("],\n\"hashing_ns\": %.2f, \"token_ns\": %.1f,\n\"passes\": [", 1e9 * w->hash_seconds, 1e9 * w->token_seconds);
    for (i = 0; i < w->n_passes; i++)
        printf("%s{\"tokens\": %.0f, \"ms\": %.3f, \"tokens_s\": %.1f}", i ? ", " : "", w->pass_tokens[i], w->pass_ms[i], w->pass_tokens_s[i]);
    printf("],\n\"queries\": [");
    for (k = 0; k < SWEEP_MODES; k++)
        for (i = 0; i < SWEEP_RATES; i++)
            printf("%s{\"async\": \"%s\", \"rate\": %g, \"inference_s\": %.4f, \"latency_s\": %.4f}", k || i ? ", " : "", sweep_modes[k], sweep_rates[i],
                   w->inference[k][i], w->latency[k][i]);
    printf("]}\n");
}

static void sweep_print(const sweep *w) {
    int i;
    printf("%d requests of %d + %d tokens that write %d\n\n", w->n_requests, SWEEP_PREFIX, SWEEP_OWN, SWEEP_OUTPUT);
    printf("share the prefix    tokens from the cache      tokens/s    mean first token\n");
    for (i = 0; i < SWEEP_POINTS; i++)
        printf("%15.0f%% %23.1f%% %13.1f %16.1f ms\n", w->share[i], w->cached[i], w->tokens_s[i], w->first_ms[i]);
    printf("\nthe throughput of all hits is %.1f times that of none\n", w->tokens_s[SWEEP_POINTS - 1] / w->tokens_s[0]);
    printf("keeping the cache takes %.1f ns of the host for each token, %.4f%% of what the model takes\n\n", 1e9 * w->hash_seconds,
           100.0 * w->hash_seconds / w->token_seconds);
    printf("tokens in the pass    pass, ms     tokens/s\n");
    for (i = 0; i < w->n_passes; i++)
        printf("%18.0f %11.2f %12.1f\n", w->pass_tokens[i], w->pass_ms[i], w->pass_tokens_s[i]);
    printf("\nsimulated: a 7B model on a data-centre GPU, 2 ms of the host's work for each pass\n"
           "queries/s    inference, s: off   overlap   async-2    latency, s: off   overlap   async-2\n");
    for (i = 0; i < SWEEP_RATES; i++)
        printf("%9g %20.2f %9.2f %9.2f %18.2f %9.2f %9.2f\n", sweep_rates[i], w->inference[0][i], w->inference[1][i], w->inference[2][i],
               w->latency[0][i], w->latency[1][i], w->latency[2][i]);
}

static void sweep_chart(plot_chart *chart, const char *title, const char *x, const char *y, const plot_line *lines,
                        int n_lines, bool log_x) {
    chart->title = title;
    chart->x_label = x;
    chart->y_label = y;
    chart->lines = lines;
    chart->n_lines = n_lines;
    chart->log_x = log_x;
}

static void sweep_line(plot_line *line, const char *name, const double *x, const double *y, int n) {
    line->name = name;
    line->x = x;
    line->y = y;
    line->n = n;
}

static int sweep_plot(const sweep *w) {
    plot_line lines[3 + 2 * SWEEP_MODES];
    plot_chart charts[5];
    int k;
    sweep_line(&lines[0], "tokens/s", w->pass_tokens, w->pass_tokens_s, w->n_passes);
    sweep_line(&lines[1], "ms", w->pass_tokens, w->pass_ms, w->n_passes);
    sweep_line(&lines[2], "tokens/s", w->share, w->tokens_s, SWEEP_POINTS);
    for (k = 0; k < SWEEP_MODES; k++) {
        sweep_line(&lines[3 + k], sweep_modes[k], sweep_rates, w->inference[k], SWEEP_RATES);
        sweep_line(&lines[3 + SWEEP_MODES + k], sweep_modes[k], sweep_rates, w->latency[k], SWEEP_RATES);
    }
    sweep_chart(&charts[0], "Throughput by tokens in the pass", "tokens in the pass", "tokens/s", &lines[0], 1, true);
    sweep_chart(&charts[1], "Time of a pass", "tokens in the pass", "ms", &lines[1], 1, true);
    sweep_chart(&charts[2], "Prefix cache: a shared prefix of 1000 tokens", "requests that share it, %", "tokens/s", &lines[2], 1, false);
    sweep_chart(&charts[3], "Inference time by load (7B model, simulated GPU)", "queries/s", "mean inference time, s", &lines[3], SWEEP_MODES, false);
    sweep_chart(&charts[4], "Latency by load (7B model, simulated GPU)", "queries/s", "mean latency, s", &lines[3 + SWEEP_MODES], SWEEP_MODES, false);
    return plot_write(w->args->plot, charts, 5) == 0 ? 0 : failure("%s: %s", w->args->plot, strerror(errno));
}

static fg_result sweep_hits(sweep *w) {
    fg_result r = FG_OK;
    char what[32];
    int i;
    for (i = 0; i < SWEEP_POINTS && r == FG_OK && !interrupted; i++) {
        snprintf(what, sizeof(what), "%d%% hits", 100 * i / (SWEEP_POINTS - 1));
        if (!w->args->quiet) show_progress(0.4 * i / SWEEP_POINTS, what);
        r = sweep_point(w, i);
    }
    w->token_seconds = w->seconds[0] / (w->n_requests * (SWEEP_PREFIX + SWEEP_OWN + SWEEP_OUTPUT));
    return r;
}

/* The difference that the cache makes to the host's time for a token. */
static fg_result sweep_hashing(sweep *w) {
    double with, without = 0.0;
    fg_result r = sweep_host(w, true, &with);
    if (r == FG_OK) r = sweep_host(w, false, &without);
    w->hash_seconds = with > without ? with - without : 0.0;
    return r;
}

static int cmd_sweep(tool_args *args) {
    static sweep w;
    fg_result r = FG_OK;
    int result;
    w.args = args;
    w.n_requests = 8;
    w.random = args->seed + 1;
    result = sweep_open(&w);
    catch_interrupts();
    if (result == 0) r = sweep_hits(&w);
    if (result == 0 && r == FG_OK) r = sweep_passes(&w);
    if (result == 0 && r == FG_OK) r = sweep_hashing(&w);
    if (result == 0 && r == FG_OK) r = sweep_loads(&w);
    clear_progress();
    if (r != FG_OK) result = failure("%s", fg_last_error());
    else if (result == 0 && interrupted) result = failure("interrupted");
    if (result == 0 && args->plot) result = sweep_plot(&w);
    if (result == 0 && args->json) sweep_print_json(&w);
    if (result == 0 && !args->json) sweep_print(&w);
    return session_close(&w.s, result);
}
