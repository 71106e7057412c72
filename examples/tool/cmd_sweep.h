/* fastgen bench sweep: requests whose first 1000 tokens are the same, at shares of 0 to 100% that find them in the prefix
   cache; and what keeping the cache costs. */

enum { SWEEP_POINTS = 5, SWEEP_PREFIX = 1000, SWEEP_OWN = 16, SWEEP_OUTPUT = 4 };

typedef struct sweep {
    const tool_args *args;
    session s;
    uint64_t random;
    int32_t shared[SWEEP_PREFIX];
    int n_vocab, n_requests;
    double share[SWEEP_POINTS], seconds[SWEEP_POINTS], tokens_s[SWEEP_POINTS], first_ms[SWEEP_POINTS], cached[SWEEP_POINTS];
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
    desc.max_context = SWEEP_PREFIX + SWEEP_OWN + SWEEP_OUTPUT;
    desc.kv_tokens = (w->n_requests + 2) * (desc.max_context + 256);
    return create_engine(w->args, &desc, &w->s);
}

static void sweep_print(const sweep *w) {
    int i;
    if (w->args->json) {
        printf("[");
        for (i = 0; i < SWEEP_POINTS; i++)
            printf("%s{\"share\": %.0f, \"cached\": %.1f, \"tokens_s\": %.1f, \"first_token_ms\": %.2f}", i ? ", " : "", w->share[i], w->cached[i],
                   w->tokens_s[i], w->first_ms[i]);
        printf("]\n");
        return;
    }
    printf("%d requests of %d + %d tokens that write %d\n\n", w->n_requests, SWEEP_PREFIX, SWEEP_OWN, SWEEP_OUTPUT);
    printf("share the prefix    tokens from the cache      tokens/s    mean first token\n");
    for (i = 0; i < SWEEP_POINTS; i++)
        printf("%15.0f%% %23.1f%% %13.1f %16.1f ms\n", w->share[i], w->cached[i], w->tokens_s[i], w->first_ms[i]);
    printf("\nthe throughput of all hits is %.1f times that of none\n", w->tokens_s[SWEEP_POINTS - 1] / w->tokens_s[0]);
}

static int sweep_plot(const sweep *w) {
    plot_line line;
    plot_chart chart;
    memset(&chart, 0, sizeof(chart));
    line.name = "tokens/s";
    line.x = w->share;
    line.y = w->tokens_s;
    line.n = SWEEP_POINTS;
    chart.title = "Prefix cache: a shared prefix of 1000 tokens";
    chart.x_label = "requests that share it, %";
    chart.y_label = "tokens/s";
    chart.lines = &line;
    chart.n_lines = 1;
    return plot_write(w->args->plot, &chart, 1) == 0 ? 0 : failure("%s: %s", w->args->plot, strerror(errno));
}

static int cmd_sweep(tool_args *args) {
    static sweep w;
    fg_result r = FG_OK;
    int i, result;
    char what[32];
    w.args = args;
    w.n_requests = 8;
    w.random = args->seed + 1;
    result = sweep_open(&w);
    catch_interrupts();
    for (i = 0; i < SWEEP_POINTS && result == 0 && r == FG_OK && !interrupted; i++) {
        snprintf(what, sizeof(what), "%d%% hits", 100 * i / (SWEEP_POINTS - 1));
        if (!args->quiet) show_progress((double)i / SWEEP_POINTS, what);
        r = sweep_point(&w, i);
    }
    clear_progress();
    if (r != FG_OK) result = failure("%s", fg_last_error());
    else if (result == 0 && interrupted) result = failure("interrupted");
    if (result == 0 && args->plot) result = sweep_plot(&w);
    if (result == 0) sweep_print(&w);
    session_close(&w.s);
    return result;
}
