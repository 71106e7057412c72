/* What the engine tells of itself: the trace, checked against its format, the times of a request, and the histograms,
   over the null backend's simulated time. */

typedef struct trace_text {
    char *data;
    size_t length, capacity;
} trace_text;

static void trace_take(const void *data, size_t size, void *user) {
    trace_text *t = (trace_text *)user;
    if (t->length + size > t->capacity) t->data = (char *)realloc(t->data, t->capacity = 2 * (t->length + size));
    memcpy(t->data + t->length, data, size);
    t->length += size;
}

static bool trace_is(const fg__json *event, const char *key, const char *value) {
    const fg__json *node = fg__json_get(event, key);
    return node && node->type == FG__JSON_STRING && node->count == strlen(value) && memcmp(node->value.string, value, node->count) == 0;
}

static double trace_number(const fg__json *event, const char *key) { return fg__json_number(fg__json_get(event, key), -1e300); }

enum { TRACE_REQUESTS = 40 };

typedef struct trace_counts {
    int passes, requests, counters, metadata;
    double device_until, engine_until; /* spans of one thread follow each other */
    double tokens;
    int open[TRACE_REQUESTS + 8]; /* phases of each request that have begun and not ended */
    double last[TRACE_REQUESTS + 8];
} trace_counts;

/* Spans of a thread do not overlap (a nanosecond of rounding is let pass). */
static void trace_check_span(trace_counts *c, const fg__json *event) {
    double at = trace_number(event, "ts"), length = trace_number(event, "dur");
    double *until = trace_number(event, "tid") == 2 ? &c->device_until : &c->engine_until;
    CHECK(length >= 0 && at >= *until - 0.0015);
    *until = at + length;
    if (!trace_is(event, "name", "pass")) return;
    c->passes++;
    c->tokens += trace_number(fg__json_get(event, "args"), "tokens");
    CHECK(trace_number(event, "tid") == 2 && length > 0);
}

/* Begins and ends of a request are nested, and in order of time. */
static void trace_check_async(trace_counts *c, const fg__json *event, bool begin) {
    const fg__json *id = fg__json_get(event, "id");
    char text[32] = "";
    int i;
    CHECK(id && id->type == FG__JSON_STRING && id->count < sizeof(text) && trace_is(event, "cat", "request"));
    if (!id || id->count >= sizeof(text)) return;
    memcpy(text, id->value.string, id->count);
    i = (int)(strtoul(text, NULL, 0) & ((1u << FG__REQUEST_BITS) - 1));
    CHECK(i < TRACE_REQUESTS + 8);
    if (i >= TRACE_REQUESTS + 8) return;
    if (begin && trace_is(event, "name", "request")) {
        CHECK(c->open[i] == 0);
        c->requests++;
        c->last[i] = -1;
    } else {
        CHECK(c->open[i] >= 1);
    }
    CHECK(trace_number(event, "ts") >= c->last[i]);
    c->last[i] = trace_number(event, "ts");
    c->open[i] += begin ? 1 : -1;
}

static void trace_check_event(trace_counts *c, const fg__json *event) {
    CHECK(event->type == FG__JSON_OBJECT && fg__json_get(event, "name") && trace_number(event, "pid") == 1);
    CHECK(fg__json_get(event, "args") && fg__json_get(event, "args")->type == FG__JSON_OBJECT);
    if (trace_is(event, "ph", "M")) {
        c->metadata++;
        return;
    }
    CHECK(trace_number(event, "ts") >= 0);
    if (trace_is(event, "ph", "X")) trace_check_span(c, event);
    else if (trace_is(event, "ph", "b")) trace_check_async(c, event, true);
    else if (trace_is(event, "ph", "e")) trace_check_async(c, event, false);
    else if (trace_is(event, "ph", "C")) c->counters++;
    else CHECK(false);
}

static void trace_check(const trace_text *t, trace_counts *c) {
    fg__env env = fg__env_make(NULL, NULL, NULL);
    fg__json *root = NULL;
    size_t i;
    memset(c, 0, sizeof(*c));
    CHECKF(fg__json_parse(&env, t->data, t->length, &root) == FG_OK, "%s", fg_last_error());
    CHECK(root && root->type == FG__JSON_ARRAY);
    for (i = 0; root && root->type == FG__JSON_ARRAY && i < root->count; i++) trace_check_event(c, fg__json_item(root, i));
    for (i = 0; i < TRACE_REQUESTS + 8; i++) CHECK(c->open[i] == 0);
    fg__json_free(root);
}

/* An engine on simulated time; `o` needs a model open. */
typedef struct trace_world {
    model_sample m;
    fg_null_options options;
    double clock;
    trace_text text;
    fg_engine *e;
} trace_world;

static void trace_begin(trace_world *w) {
    model_spec spec = model_spec_tiny();
    fg_engine_desc d;
    memset(w, 0, sizeof(*w));
    w->clock = 5; /* a clock may start anywhere */
    model_sample_open(&w->m, &spec);
    d = engine_desc(w->m.model, fg_backend_null());
    w->options.base = 0.010;
    w->options.per_token = 0.0001;
    w->options.clock = &w->clock;
    d.backend_options = &w->options;
    d.clock = api_clock;
    d.clock_user = &w->clock;
    d.trace = trace_take;
    d.trace_user = &w->text;
    d.token_budget = 32;
    d.kv_tokens = 512;
    d.block_tokens = 8;
    d.max_seqs = 8;
    w->e = engine_new(&d);
}

static void trace_end(trace_world *w) {
    fg_engine_free(w->e);
    model_sample_close(&w->m);
    free(w->text.data);
}

/* Forty requests under pressure, some cancelled: before they began, in the midst, and after. */
static void test_trace_format(void) {
    trace_world *w = (trace_world *)malloc(sizeof(trace_world));
    job *jobs = (job *)calloc(TRACE_REQUESTS, sizeof(job));
    trace_counts c;
    fg_stats stats;
    uint64_t random = 3;
    bool busy = true;
    int i, passes = 0;
    trace_begin(w);
    for (i = 0; i < TRACE_REQUESTS; i++) {
        job_random(&jobs[i], &random, 100, 30);
        CHECK(job_submit(w->e, &jobs[i]) == FG_OK);
        if (i % 7 == 0) CHECK(fg_cancel(w->e, jobs[i].handle) == FG_OK);
    }
    while (busy && passes++ < 5000) {
        CHECK(fg_step(w->e, 0, &busy) == FG_OK);
        jobs_take(w->e);
        if (passes % 20 == 0) fg_cancel(w->e, jobs[passes / 20 % TRACE_REQUESTS].handle);
        w->clock += 0.001;
    }
    CHECK(!busy);
    fg_get_stats(w->e, &stats);
    fg_engine_free(w->e);
    w->e = NULL;
    trace_check(&w->text, &c);
    CHECK(c.metadata == 3 && c.requests == TRACE_REQUESTS && c.passes == (int)stats.n_passes && c.counters == 2 * c.passes);
    CHECK(stats.n_preemptions > 0 && stats.n_cancelled > 6);
    CHECK((uint64_t)c.tokens >= stats.prompt_tokens && c.tokens > 500);
    free(jobs);
    trace_end(w);
    free(w);
}

/* Two requests, of which the second has to wait: each of its times is known. */
static void test_trace_times(void) {
    trace_world *w = (trace_world *)malloc(sizeof(trace_world));
    job *jobs = (job *)calloc(2, sizeof(job));
    fg_event event;
    fg_histograms h;
    double times[2][16];
    int n[2] = {0, 0}, i, k;
    bool busy = true;
    trace_begin(w);
    w->e->sched.max_seqs = 1; /* one at a time */
    for (i = 0; i < 2; i++) {
        for (k = 0; k < 40; k++) jobs[i].prompt[k] = 10 + 40 * i + k;
        jobs[i].desc.n_tokens = 40;
        jobs[i].desc.max_tokens = 4;
        jobs[i].desc.ignore_eos = true;
        CHECK(job_submit(w->e, &jobs[i]) == FG_OK);
        w->clock += 0.5;
    }
    while (busy) {
        CHECK(fg_step(w->e, 0, &busy) == FG_OK);
        while (fg_next_event(w->e, &event)) {
            i = (int)((job *)event.user - jobs);
            job_event(&jobs[i], &event);
            if (event.type == FG_EVENT_TOKEN && n[i] < 16) times[i][n[i]++] = event.time;
        }
        w->clock += 0.25; /* the program does something else */
    }
    /* two passes of 20 prompt tokens (0.012 s), then three of one (0.0101 s), each followed by 0.25 s */
    for (i = 0; i < 2; i++) {
        const fg_times *t = &jobs[i].times;
        double begin = i ? 6 + 2 * 0.262 + 3 * 0.2601 : 6;
        job_check_ends(&jobs[i]);
        CHECK(n[i] == 4);
        CHECK(fabs(t->arrival - (5 + 0.5 * i)) < 1e-9 && fabs(t->first_scheduled - begin) < 1e-9 && fabs(t->scheduled - begin) < 1e-9);
        CHECK(fabs(t->inference_begin - begin) < 1e-9 && fabs(t->first_token - (begin + 0.274)) < 1e-9);
        CHECK(fabs(t->inference_end - (begin + 0.274 + 3 * 0.2601)) < 1e-9 && t->finish >= t->inference_end);
        for (k = 0; k < 4; k++) CHECK(fabs(times[i][k] - (begin + 0.274 + k * 0.2601)) < 1e-9);
    }
    fg_get_histograms(w->e, &h);
    CHECK(h.queue.count == 2 && fabs(h.queue.least - 1.0) < 1e-9 && fabs(h.queue.most - (6 + 2 * 0.262 + 3 * 0.2601 - 5.5)) < 1e-9);
    CHECK(h.first_token.count == 2 && h.request.count == 2 && h.token_gap.count == 6 && h.pass.count == 10 && h.idle.count == 9);
    CHECK(fabs(h.token_gap.least - 0.2601) < 1e-9 && fabs(h.token_gap.most - 0.2601) < 1e-9 && fabs(h.token_gap.sum - 6 * 0.2601) < 1e-9);
    CHECK(fabs(h.pass.sum - (4 * 0.012 + 6 * 0.0101)) < 1e-9 && fabs(h.idle.sum - 9 * 0.25) < 1e-9);
    fg_reset_stats(w->e);
    fg_get_histograms(w->e, &h);
    CHECK(h.pass.count == 0 && h.queue.count == 0);
    free(jobs);
    trace_end(w);
    free(w);
}

/* Quantiles against sorted values, and the ends of the range. */
static void test_trace_histogram(void) {
    enum { N = 5000 };
    fg_histogram h;
    static const double qs[] = {0.01, 0.25, 0.5, 0.9, 0.99};
    double *values = (double *)malloc(N * sizeof(double)), sum = 0;
    uint64_t random = 9;
    int i, k, pass;
    memset(&h, 0, sizeof(h));
    CHECK(fg_histogram_quantile(&h, 0.5) == 0);
    for (i = 0; i < N; i++) {
        values[i] = 1e-4 * exp((double)(test_random(&random) % 100000) * 1e-4); /* 0.1 ms to 2 s */
        fg__histogram_add(&h, values[i]);
        sum += values[i];
    }
    for (pass = N; pass > 1; pass /= 2) /* shell sort */
        for (i = pass / 2; i < N; i++)
            for (k = i; k >= pass / 2 && values[k - pass / 2] > values[k]; k -= pass / 2) {
                double other = values[k];
                values[k] = values[k - pass / 2];
                values[k - pass / 2] = other;
            }
    CHECK(h.count == N && h.least == values[0] && h.most == values[N - 1] && fabs(h.sum / sum - 1) < 1e-9);
    CHECK(fg_histogram_quantile(&h, 0) >= h.least && fg_histogram_quantile(&h, 1) == h.most);
    for (i = 0; i < FG__COUNT(qs); i++) {
        double exact = values[(int)(qs[i] * N)], found = fg_histogram_quantile(&h, qs[i]);
        CHECKF(fabs(found / exact - 1) < 0.11, "quantile %g is %g, not %g", qs[i], found, exact);
    }
    memset(&h, 0, sizeof(h));
    fg__histogram_add(&h, NAN);
    fg__histogram_add(&h, -1);
    fg__histogram_add(&h, 1e-5);
    fg__histogram_add(&h, 1e9);
    CHECK(h.count == 4 && h.buckets[0] == 3 && h.buckets[FG_HISTOGRAM_BUCKETS - 1] == 1 && h.least == 0 && h.most == 1e9);
    for (i = 1; i < FG_HISTOGRAM_BUCKETS - 1; i++) CHECK(fabs(fg_histogram_bound(i) / fg_histogram_bound(i - 1) - pow(2, 0.25)) < 1e-12);
    free(values);
}

/* Times of any clock are written as JSON numbers. */
static void test_trace_numbers(void) {
    char text[32];
    CHECK(strcmp(fg__trace_time(0, text), "0.000") == 0 && strcmp(fg__trace_time(1.5, text), "1500000.000") == 0);
    CHECK(strcmp(fg__trace_time(-2e-9, text), "-0.002") == 0 && strcmp(fg__trace_time(-1e-12, text), "0.000") == 0);
    CHECK(strcmp(fg__trace_time(NAN, text), "0.000") == 0 && strcmp(fg__trace_time(INFINITY, text), "0.000") == 0);
}

static void run_trace_tests(void) {
    RUN(test_trace_format);
    RUN(test_trace_times);
    RUN(test_trace_histogram);
    RUN(test_trace_numbers);
}
