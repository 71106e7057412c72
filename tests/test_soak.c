/* The soak: random requests with all that requests can have, in engines with all that engines can be, cancelled, preempted
   and fed at random. At the end every block is free, and every output is, bit for bit, what the request writes alone.
   FASTGEN_SOAK says how many requests (default 2000), FASTGEN_SOAK_SEED which; .ci/run takes 80000. */

static int soak_requests(void) {
    const char *text = getenv("FASTGEN_SOAK");
    int n = text ? atoi(text) : 0;
    return n > 0 ? n : 2000;
}

static void soak_engine(fg_engine_desc *d, fg_model *draft, uint64_t *random, fg_null_options *options, double *clock) {
    static const int budgets[] = {3, 7, 16, 24, 60, 200}, pools[] = {256, 272, 320, 512, 2048};
    d->policy = (fg_policy)(job_below(random, 2) ? 0 : job_below(random, 4));
    d->token_budget = budgets[job_below(random, FG__COUNT(budgets))];
    d->kv_tokens = pools[job_below(random, FG__COUNT(pools))];
    d->block_tokens = 4 << job_below(random, 4);
    d->max_seqs = 1 + job_below(random, 40);
    d->no_prefix_cache = job_below(random, 4) == 0;
    d->no_even_split = job_below(random, 3) == 0;
    d->preemption = (fg_preemption)job_below(random, 3);
    if (job_below(random, 3) == 0) d->swap_bytes = 1 + (size_t)job_below(random, 100000);
    d->priority_head_start = 1 + job_below(random, 64);
    *clock = 0;
    memset(options, 0, sizeof(*options));
    options->base = 0.01;
    options->per_token = 1e-3 / (1 + job_below(random, 20));
    options->per_kv_token = 1e-6 * job_below(random, 20);
    options->clock = clock;
    d->clock = api_clock;
    d->clock_user = clock;
    d->backend_options = options;
    d->async = (fg_async)job_below(random, 3);
    if (job_below(random, 3) == 0) d->draft_model = job_below(random, 2) ? draft : d->model;
    if (job_below(random, 2)) d->target_tbt_ms = (float)(5 + job_below(random, 60));
}

/* Half of the null backend's engines run it without its queue, from a thread. */
static void soak(const fg_backend *backend, int n, int at_once, uint64_t random) {
    job *jobs = (job *)malloc((size_t)at_once * sizeof(job));
    int done = 0, i;
    for (; done < n && test_failures == 0; done += at_once) {
        model_spec spec = model_spec_tiny(), small = model_spec_tiny();
        model_sample m, draft;
        fg_engine_desc d;
        fg_null_options options;
        double clock;
        uint64_t seed = random;
        if (job_below(&random, 2)) spec.window = 5 + job_below(&random, 20);
        if (spec.window && job_below(&random, 2)) spec.full_every = 2;
        small.n_layers = 1;
        small.seed = 2;
        model_sample_open(&m, &spec);
        model_sample_open(&draft, &small);
        d = engine_desc(m.model, backend == fg_backend_null() && job_below(&random, 2) ? async_plain_null() : backend);
        for (i = 0; i < at_once; i++) {
            if (job_below(&random, 3)) job_random(&jobs[i], &random, 130, 60);
            else spec_job(&jobs[i], &random);
        }
        jobs_alone_on(m.model, backend, jobs, at_once);
        soak_engine(&d, draft.model, &random, &options, &clock);
        jobs_storm(&d, jobs, at_once, &random);
        CHECKF(test_failures == 0, "requests from %d on, seed %llu", done, (unsigned long long)seed);
        model_sample_close(&m);
        model_sample_close(&draft);
    }
    free(jobs);
}

static uint64_t soak_seed(void) {
    const char *text = getenv("FASTGEN_SOAK_SEED");
    return text ? strtoull(text, NULL, 10) * 1000 : 0;
}

static void test_soak_null(void) { soak(fg_backend_null(), soak_requests(), 100, soak_seed() + 11); }
static void test_soak_cpu(void) { soak(fg_backend_cpu(), soak_requests() / 4, 50, soak_seed() + 12); }

static void run_soak_tests(void) {
    RUN(test_soak_null);
    RUN(test_soak_cpu);
}
