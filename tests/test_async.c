/* Passes in flight: outputs are those of one pass after another, bit for bit, over devices with a queue of their own and without;
   no block that a pass in flight uses is free; and a device with host work around its passes has no gaps. */

/* The null backend without a queue: the engine drives it from a thread. */
static const fg_backend *async_plain_null(void) {
    static fg_backend backend;
    backend = *fg_backend_null();
    backend.caps = api_plain_caps;
    return &backend;
}

/* Requests whose next pass needs nothing but a token. */
static void async_job(job *j, uint64_t *random) {
    job_random(j, random, 100, 60);
    j->desc.n_beams = j->desc.best_of = j->desc.n_draft = 0;
    j->desc.prompt_logprobs = false;
}

static void async_storm(const model_spec *spec, const fg_backend *backend, uint64_t random, int n) {
    model_sample m;
    fg_engine_desc d;
    job *jobs = (job *)malloc((size_t)n * sizeof(job));
    int i, async, policy;
    model_sample_open(&m, spec);
    for (i = 0; i < n; i++) async_job(&jobs[i], &random);
    jobs_alone_on(m.model, backend, jobs, n);
    for (async = FG_ASYNC_OVERLAP; async <= FG_ASYNC_2; async++)
        for (policy = 0; policy < 4; policy++) {
            d = engine_desc(m.model, backend);
            d.async = (fg_async)async;
            d.policy = (fg_policy)policy;
            d.kv_tokens = policy % 2 ? 256 : 2048;
            d.block_tokens = 4 << policy % 3;
            d.token_budget = policy % 2 ? 24 : 200;
            d.max_seqs = 4 + 10 * policy;
            jobs_storm(&d, jobs, n, &random);
        }
    model_sample_close(&m);
    free(jobs);
}

static void test_async_null(void) {
    model_spec spec = model_spec_tiny();
    async_storm(&spec, fg_backend_null(), 1, 150);
    spec.window = 9;
    async_storm(&spec, fg_backend_null(), 2, 80);
    spec.full_every = 2;
    async_storm(&spec, fg_backend_null(), 3, 80);
}

static void test_async_threads_null(void) {
    model_spec spec = model_spec_tiny();
    async_storm(&spec, async_plain_null(), 4, 100);
}

static void test_async_threads_cpu(void) {
    model_spec spec = model_spec_tiny();
    async_storm(&spec, NULL, 5, 30);
}

/* ---- tokens that come from the pass before */

static int async_n_passes, async_n_fed;

static fg_result async_submit(fg_device *device, fg_plan *plan, const fg_batch *batch) {
    int i;
    async_n_passes++;
    for (i = 0; batch->feed && i < batch->n_tokens; i++) async_n_fed += batch->feed[i] >= 0;
    return fg_backend_null()->submit(device, plan, batch);
}

/* A request of 3 + 100 tokens: passes, and tokens fed within the device. */
static void async_count(fg_async async, float temperature, bool ends, int *n_passes, int *n_fed) {
    model_spec spec = model_spec_tiny();
    model_sample m;
    fg_backend backend = *fg_backend_null();
    fg_engine_desc d;
    fg_engine *e;
    job *j = (job *)calloc(1, sizeof(job));
    model_sample_open(&m, &spec);
    backend.submit = async_submit;
    d = engine_desc(m.model, &backend);
    d.async = async;
    e = engine_new(&d);
    j->desc.n_tokens = 3;
    j->desc.max_tokens = 100;
    j->desc.ignore_eos = true;
    j->desc.sampling.temperature = temperature;
    async_n_passes = async_n_fed = 0;
    if (ends) { /* at the 50th token, which it has not written before */
        CHECK(job_submit(e, j) == FG_OK);
        jobs_run(e);
        j->stop_token = j->samples[0].tokens[49];
        j->desc.n_stop_tokens = 1;
        job_clear(j);
        async_n_passes = async_n_fed = 0;
    }
    CHECK(job_submit(e, j) == FG_OK);
    jobs_run(e);
    job_check_ends(j);
    CHECK(j->samples[0].n_tokens == (ends ? 50 : 100));
    engine_check_idle(e);
    *n_passes = async_n_passes;
    *n_fed = async_n_fed;
    fg_engine_free(e);
    model_sample_close(&m);
    free(j);
}

static void test_async_feed(void) {
    int n_passes, n_fed;
    async_count(FG_ASYNC_OFF, 0, false, &n_passes, &n_fed);
    CHECK(n_passes == 100 && n_fed == 0);
    async_count(FG_ASYNC_OVERLAP, 0, false, &n_passes, &n_fed);
    CHECK(n_passes == 100 && n_fed == 99);
    async_count(FG_ASYNC_OVERLAP, 1, false, &n_passes, &n_fed); /* drawn by the host */
    CHECK(n_passes == 100 && n_fed == 0);
    async_count(FG_ASYNC_2, 0, false, &n_passes, &n_fed);
    CHECK(n_passes == 100 && n_fed == 0);
    async_count(FG_ASYNC_OVERLAP, 0, true, &n_passes, &n_fed); /* one pass too many, which nobody sees */
    CHECKF(n_passes == 51 && n_fed == 50, "%d passes, %d tokens fed", n_passes, n_fed);
    async_count(FG_ASYNC_OFF, 0, true, &n_passes, &n_fed);
    CHECK(n_passes == 50);
}

/* ---- time: passes of 10 ms with 4 ms of host work between them */

static double async_seconds(fg_async async, float temperature, int n, fg_stats *stats) {
    model_spec spec = model_spec_tiny();
    model_sample m;
    fg_null_options options;
    fg_engine_desc d;
    fg_engine *e;
    job *jobs = (job *)calloc((size_t)n, sizeof(job));
    double clock = 0;
    bool busy = true;
    int i;
    memset(&options, 0, sizeof(options));
    options.base = 0.010;
    options.clock = &clock;
    model_sample_open(&m, &spec);
    d = engine_desc(m.model, fg_backend_null());
    d.backend_options = &options;
    d.clock = api_clock;
    d.clock_user = &clock;
    d.async = async;
    e = engine_new(&d);
    for (i = 0; i < n; i++) {
        jobs[i].prompt[0] = 10 + i;
        jobs[i].desc.n_tokens = 1;
        jobs[i].desc.max_tokens = 100;
        jobs[i].desc.ignore_eos = true;
        jobs[i].desc.sampling.temperature = temperature;
        CHECK(job_submit(e, &jobs[i]) == FG_OK);
    }
    while (busy) {
        CHECK(fg_step(e, 0, &busy) == FG_OK);
        jobs_take(e);
        clock += 0.004;
    }
    for (i = 0; i < n; i++) CHECK(jobs[i].n_generated == 100);
    fg_get_stats(e, stats);
    fg_engine_free(e);
    model_sample_close(&m);
    free(jobs);
    return clock;
}

static void test_async_time(void) {
    fg_stats s;
    double seconds = async_seconds(FG_ASYNC_OFF, 0, 4, &s);
    CHECKF(fabs(seconds - 1.4) < 0.02 && fabs(s.idle_seconds - 0.396) < 1e-6 && fabs(s.device_seconds - 1) < 1e-6, "%g s, idle %g", seconds, s.idle_seconds);
    seconds = async_seconds(FG_ASYNC_OVERLAP, 0, 4, &s);
    CHECKF(seconds < 1.02 && s.idle_seconds < 1e-6 && s.n_passes == 100, "%g s, idle %g", seconds, s.idle_seconds);
    seconds = async_seconds(FG_ASYNC_OVERLAP, 1, 4, &s); /* drawing takes no time here */
    CHECKF(seconds < 1.02 && s.idle_seconds < 1e-6, "%g s, idle %g", seconds, s.idle_seconds);
    seconds = async_seconds(FG_ASYNC_2, 1, 4, &s); /* each pass but the first has half of them */
    CHECKF(s.n_passes == 199 && fabs(seconds - 2) < 0.04 && s.idle_seconds < 0.011, "%g s, idle %g", seconds, s.idle_seconds);
}

static void run_async_tests(void) {
    RUN(test_async_null);
    RUN(test_async_threads_null);
    RUN(test_async_threads_cpu);
    RUN(test_async_feed);
    RUN(test_async_time);
}
