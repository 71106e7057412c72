/* The token budget: the model of a pass's time, the target between tokens under a load that changes, the knee of the
   throughput curve, and turns where a pass cannot hold all decodes. Time is simulated. */

static void budget_model_passes(fg__cost *c, double a, double b, double kv, double noise, int n, uint64_t *random) {
    int i;
    for (i = 0; i < n; i++) {
        double tokens = 1 + (double)(test_random(random) % 256), read = (double)(test_random(random) % 20000);
        double jitter = 1 + noise * ((double)(test_random(random) % 2001) / 1000 - 1);
        fg__cost_add(c, tokens, read, (a + b * tokens + kv * read) * jitter);
    }
}

static void budget_model_is(const fg__cost *c, double a, double b, double kv, double within) {
    double tokens = 100, read = 8000, truth = a + b * tokens + kv * read;
    double found = fg__cost_pass(c) + fg__cost_token(c) * tokens + fg__cost_kv(c) * read;
    CHECKF(fabs(found / truth - 1) < within, "%g s, not %g s", found, truth);
    CHECKF(fabs(fg__cost_token(c) / b - 1) < 5 * within, "%g s a token, not %g s", fg__cost_token(c), b);
}

static void test_budget_model(void) {
    fg__cost c;
    uint64_t random = 5;
    int i;
    memset(&c, 0, sizeof(c));
    CHECK(fg__cost_pass(&c) == 0 && fg__cost_token(&c) == 0 && fg__cost_kv(&c) == 0);
    budget_model_passes(&c, 0.01, 1e-4, 1e-7, 0, 30, &random);
    budget_model_is(&c, 0.01, 1e-4, 1e-7, 0.001);
    budget_model_passes(&c, 0.02, 3e-4, 2e-7, 0, 600, &random); /* another device */
    budget_model_is(&c, 0.02, 3e-4, 2e-7, 0.01);
    for (i = 0; i < 100000; i++) fg__cost_add(&c, 8, 4000, 0.02 + 8 * 3e-4 + 4000 * 2e-7); /* nothing new for long */
    budget_model_is(&c, 0.02, 3e-4, 2e-7, 0.05);
    fg__cost_add(&c, 8, 4000, 100); /* the machine slept */
    budget_model_is(&c, 0.02, 3e-4, 2e-7, 0.3);
    budget_model_passes(&c, 0.02, 3e-4, 2e-7, 0.1, 1000, &random);
    budget_model_is(&c, 0.02, 3e-4, 2e-7, 0.05);
    fg__cost_add(&c, 8, 4000, NAN);
    fg__cost_add(&c, 8, 4000, -1);
    fg__cost_add(&c, 8, 4000, 0);
    budget_model_is(&c, 0.02, 3e-4, 2e-7, 0.05);
}

/* ---- clients that each send their next request when the one before has ended */

enum { BUDGET_CLIENTS = 32, BUDGET_MAX_GAPS = 1 << 17 };

typedef struct budget_world {
    model_sample m;
    fg_null_options options;
    double clock, jitter, slow; /* jitter: share of a pass's time; slow: factor */
    uint64_t random;
    fg_engine *e;
    fg_request live[BUDGET_CLIENTS];
    double last[BUDGET_CLIENTS];
    int n_live, most_prompt, n_draft;
    double *gaps;
    int n_gaps;
    double n_tokens;
} budget_world;

static budget_world *budget_now; /* the backend has no user pointer of ours */

/* The null backend with noise on its time, which passes while it is waited for; passes of the draft model take an eighth. */
static fg_result budget_wait(fg_device *device, fg_plan *plan, fg_output *output) {
    budget_world *w = budget_now;
    double before = w->clock;
    fg_result r = fg_backend_null()->wait(device, plan, output);
    double noise = 1 + w->jitter * ((double)(test_random(&w->random) % 2001) / 1000 - 1);
    if (w->e && w->e->draft && plan == w->e->draft->plan) noise /= 8;
    w->clock = before + (w->clock - before) * w->slow * noise;
    ((fg__null_plan *)(void *)plan)->until = w->clock;
    return r;
}

static void budget_begin(budget_world *w, int token_budget, double target_ms, double jitter) {
    static fg_backend backend;
    model_spec spec = model_spec_tiny();
    fg_engine_desc d;
    memset(w, 0, sizeof(*w));
    budget_now = w;
    spec.n_ctx = 2048;
    backend = *fg_backend_null();
    backend.wait = budget_wait;
    w->gaps = (double *)malloc(BUDGET_MAX_GAPS * sizeof(double));
    w->jitter = jitter;
    w->slow = 1;
    w->options.base = 0.012;
    w->options.per_token = 1e-4;
    w->options.per_kv_token = 4e-7;
    w->options.clock = &w->clock;
    model_sample_open(&w->m, &spec);
    d = engine_desc(w->m.model, &backend);
    d.backend_options = &w->options;
    d.clock = api_clock;
    d.clock_user = &w->clock;
    d.max_context = 2048;
    d.kv_tokens = BUDGET_CLIENTS * 2048;
    d.max_seqs = BUDGET_CLIENTS;
    d.no_prefix_cache = true;
    d.token_budget = token_budget;
    d.target_tbt_ms = (float)target_ms;
    w->e = engine_new(&d);
}

static void budget_end(budget_world *w) {
    fg_engine_free(w->e);
    model_sample_close(&w->m);
    free(w->gaps);
}

static void budget_send(budget_world *w, int client) {
    int32_t tokens[2048];
    fg_request_desc d;
    int n = w->most_prompt / 4 + (int)(test_random(&w->random) % (uint64_t)(w->most_prompt * 3 / 4)), i;
    memset(&d, 0, sizeof(d));
    for (i = 0; i < n; i++) tokens[i] = (int32_t)(test_random(&w->random) % 250);
    d.tokens = tokens;
    d.n_tokens = (size_t)n;
    d.max_tokens = 20 + (int)(test_random(&w->random) % 100);
    d.ignore_eos = true;
    d.n_draft = w->n_draft;
    d.user = &w->live[client];
    CHECK(fg_submit(w->e, &d, &w->live[client]) == FG_OK);
    w->last[client] = -1;
    w->n_live++;
}

/* A load of `clients` until `seconds` of simulated time are over. */
static void budget_load(budget_world *w, int clients, int most_prompt, double seconds) {
    double until = w->clock + seconds;
    fg_event event;
    int i;
    w->most_prompt = most_prompt;
    while (w->clock < until) {
        for (i = 0; i < BUDGET_CLIENTS && w->n_live < clients; i++)
            if (!w->live[i].id) budget_send(w, i);
        CHECK(fg_step(w->e, 0, NULL) == FG_OK);
        while (fg_next_event(w->e, &event)) {
            i = (int)((fg_request *)event.user - w->live);
            if (event.type == FG_EVENT_TOKEN) {
                if (w->last[i] >= 0 && w->n_gaps < BUDGET_MAX_GAPS) w->gaps[w->n_gaps++] = event.time - w->last[i];
                w->last[i] = event.time;
            }
            if (event.type != FG_EVENT_END) continue;
            w->n_tokens += event.n_prompt + event.n_generated;
            w->live[i].id = 0;
            w->n_live--;
        }
    }
}

static int budget_compare(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double budget_p99(budget_world *w) {
    qsort(w->gaps, (size_t)w->n_gaps, sizeof(double), budget_compare);
    CHECK(w->n_gaps > 1000);
    return w->gaps[w->n_gaps * 99 / 100];
}

/* Few clients, many, long prompts, a device that slows down, and back. */
static void budget_changing(budget_world *w) {
    budget_load(w, 4, 200, 15);
    budget_load(w, 32, 1500, 40);
    budget_load(w, 8, 2000, 15);
    w->slow = 1.3;
    budget_load(w, 24, 1000, 30);
    w->slow = 1;
    budget_load(w, 16, 400, 20);
}

/* The best of the fixed budgets that keep to the target, and how the adaptive one compares. */
static void budget_compare_all(double target_ms, double jitter) {
    static const int budgets[] = {32, 48, 64, 96, 128, 160, 192, 224, 256, 320, 384, 448, 512, 768, 1024};
    budget_world *w = (budget_world *)malloc(sizeof(budget_world));
    double best = 0, p99, adaptive;
    int i, best_budget = 0;
    for (i = 0; i < FG__COUNT(budgets); i++) {
        budget_begin(w, budgets[i], 0, jitter);
        budget_changing(w);
        if (budget_p99(w) <= target_ms / 1e3 && w->n_tokens > best) {
            best = w->n_tokens;
            best_budget = budgets[i];
        }
        budget_end(w);
    }
    budget_begin(w, 1024, target_ms, jitter);
    budget_changing(w);
    p99 = budget_p99(w);
    adaptive = w->n_tokens;
    budget_end(w);
    CHECK(best > 0);
    CHECKF(p99 <= 1.2 * target_ms / 1e3, "99%% of the gaps are up to %.1f ms, the target is %.1f ms", p99 * 1e3, target_ms);
    CHECKF(adaptive >= 0.95 * best, "%.0f tokens, a budget of %d makes %.0f", adaptive, best_budget, best);
    if (getenv("FASTGEN_VERBOSE"))
        printf("    target %.0f ms: p99 %.1f ms, %.1f%% of the tokens of the best fixed budget, %d\n", target_ms, p99 * 1e3, 100 * adaptive / best, best_budget);
    free(w);
}

static void test_budget_target(void) {
    budget_compare_all(40, 0);
    budget_compare_all(60, 0.05);
}

/* A draft model's passes are part of the gap: they leave less to prompts, and end where they would pass the target. */
static void test_budget_draft(void) {
    budget_world *w = (budget_world *)malloc(sizeof(budget_world));
    fg_engine_desc d;
    fg_stats stats;
    double p99;
    budget_begin(w, 1024, 0, 0);
    fg_engine_get_desc(w->e, &d);
    fg_engine_free(w->e);
    w->e = NULL;
    d.target_tbt_ms = 40;
    d.backend_options = &w->options;
    d.device = NULL;
    d.draft_model = w->m.model;
    w->e = engine_new(&d);
    w->n_draft = 8;
    budget_load(w, 4, 200, 10);
    budget_load(w, 24, 1000, 20);
    fg_get_stats(w->e, &stats);
    p99 = budget_p99(w);
    CHECKF(p99 <= 1.2 * 0.04, "99%% of the gaps are up to %.1f ms, the target is 40 ms", p99 * 1e3);
    CHECK(stats.drafted_tokens > 0 && stats.draft_seconds > 0);
    if (getenv("FASTGEN_VERBOSE"))
        printf("    p99 %.1f ms, %.0f tokens, %.1f of %.1f s drafting, %d of %d guesses right\n", p99 * 1e3, w->n_tokens, stats.draft_seconds, w->clock,
               (int)stats.accepted_tokens, (int)stats.drafted_tokens);
    budget_end(w);
    free(w);
}

/* A target that not even one decode meets: prompts still get on. */
static void test_budget_out_of_reach(void) {
    budget_world *w = (budget_world *)malloc(sizeof(budget_world));
    budget_begin(w, 256, 1, 0);
    budget_load(w, 16, 400, 60);
    CHECK(w->n_tokens > 60 * 300);
    budget_end(w);
    free(w);
}

/* The rate of n tokens is n / (0.01 + 0.0001 n): of 1024 it is 9110 a second, of which 512 tokens have 92%, 256 have 79%. */
static void test_budget_saturate(void) {
    budget_world *w = (budget_world *)malloc(sizeof(budget_world));
    fg_engine_desc d;
    budget_begin(w, 1024, 0, 0);
    w->options.base = 0.01;
    w->options.per_kv_token = 0;
    fg_engine_get_desc(w->e, &d);
    fg_engine_free(w->e);
    w->e = NULL;
    d.saturate_budget = true;
    d.backend_options = &w->options;
    d.device = NULL;
    w->e = engine_new(&d);
    fg_engine_get_desc(w->e, &d);
    CHECKF(d.token_budget == 512, "%d", d.token_budget);
    budget_load(w, 4, 200, 2); /* what was tried leaves nothing behind */
    budget_end(w);
    free(w);
}

/* Passes of three decodes, out of ten: everybody gets the same. */
static void test_budget_turns(void) {
    enum { N = 10 };
    sched_world *t = sched_new(FG_POLICY_SPLITFUSE, 90, 64, 16);
    sched_user *users[N];
    int i, least = 1000, most = 0;
    for (i = 0; i < N; i++) users[i] = sched_add(t, 4, 60, i % 3);
    sched_pass(t, 64);
    for (i = 0; i < 50; i++) sched_pass(t, 3);
    for (i = 0; i < N; i++) {
        least = FG__MIN(least, users[i]->seq.n_tokens);
        most = FG__MAX(most, users[i]->seq.n_tokens);
    }
    CHECKF(most - least <= 1 && least == 20, "%d to %d tokens", least, most);
    sched_free(t);
}

/* Frames that have time for two or three decodes: the requests still go on together. */
static void test_budget_frames(void) {
    enum { N = 8 };
    api *a = api_open(fg_backend_null(), 256);
    job *jobs = (job *)calloc(N, sizeof(job));
    int i, k, least = 1000, most = 0;
    double before;
    for (i = 0; i < N; i++) {
        for (k = 0; k < 6; k++) jobs[i].prompt[k] = 4 + i * 10 + k;
        jobs[i].desc.n_tokens = 6;
        jobs[i].desc.max_tokens = 150;
        jobs[i].desc.ignore_eos = true;
        CHECK(job_submit(a->e, &jobs[i]) == FG_OK);
    }
    for (i = 0; i < 20; i++) CHECK(fg_step(a->e, 0, NULL) == FG_OK);
    for (i = 0; i < 200; i++) {
        before = a->clock;
        CHECK(fg_step(a->e, 0.0135, NULL) == FG_OK); /* base 10 ms, 1 ms a token */
        CHECK(a->clock - before < 0.0136 && a->clock > before);
    }
    jobs_take(a->e);
    for (i = 0; i < N; i++) {
        least = FG__MIN(least, jobs[i].samples[0].n_tokens);
        most = FG__MAX(most, jobs[i].samples[0].n_tokens);
    }
    CHECKF(least > 60 && most - least <= 2, "%d to %d tokens", least, most);
    for (i = 0; i < N; i++) fg_cancel(a->e, jobs[i].handle);
    jobs_run(a->e);
    free(jobs);
    api_close(a);
}

/* Frames that have no time even for one decode: who comes while another decodes gets on, a block of its prompt now and then, in the
   time of that block and no more. */
static void budget_overrun(double target_ms) {
    api *a = api_open(fg_backend_null(), 256);
    job *jobs = (job *)calloc(2, sizeof(job));
    double before, most = 0;
    bool busy = true;
    int i, k, over = 0, passes = 0;
    a->e->sched.target = target_ms > 0 ? target_ms / 1e3 : HUGE_VAL;
    for (i = 0; i < 2; i++) {
        for (k = 0; k < 60; k++) jobs[i].prompt[k] = 4 + i * 70 + k;
        jobs[i].desc.n_tokens = i ? 60 : 6;
        jobs[i].desc.max_tokens = i ? 5 : 180;
        jobs[i].desc.ignore_eos = true;
        CHECK(job_submit(a->e, &jobs[i]) == FG_OK);
        for (k = 0; i == 0 && k < 20; k++) CHECK(fg_step(a->e, 0.001, NULL) == FG_OK);
    }
    for (; busy && passes < 1000; passes++) {
        before = a->clock;
        CHECK(fg_step(a->e, 0.001, &busy) == FG_OK); /* base 10 ms, 1 ms a token */
        jobs_take(a->e);
        most = FG__MAX(most, a->clock - before);
        over += a->clock - before > 0.0125;
    }
    CHECKF(jobs[1].times.first_token > 0 && jobs[1].times.first_token < jobs[0].times.finish / 2, "the first token after %g of %g s", jobs[1].times.first_token, jobs[0].times.finish);
    CHECKF(over == 2 && most < 0.010 + 0.001 * 33.5, "%d passes of up to %g s", over, most);
    for (i = 0; i < 2; i++) job_check_ends(&jobs[i]);
    free(jobs);
    api_close(a);
}

static void test_budget_overrun(void) {
    budget_overrun(0);
    budget_overrun(5);
}

/* Passes over a device with a queue of its own, two of three of which end long before their caller asks for them: the time between
   is not the device's, neither in the statistics nor in the model. */
static void test_budget_late_caller(void) {
    api *a = api_open_async(fg_backend_null(), 256, FG_ASYNC_OVERLAP);
    job *j = (job *)calloc(1, sizeof(job));
    fg_stats stats;
    double seconds;
    bool busy = true;
    int i;
    j->desc.n_tokens = 3;
    j->desc.max_tokens = 150;
    j->desc.ignore_eos = true;
    CHECK(job_submit(a->e, j) == FG_OK);
    for (i = 0; busy && i < 1000; i++) {
        CHECK(fg_step(a->e, 0, &busy) == FG_OK);
        if (i >= 20 && i % 3) a->clock += 0.1;
    }
    jobs_take(a->e);
    job_check_ends(j);
    fg_get_stats(a->e, &stats);
    CHECKF(stats.n_passes == 150 && fabs(stats.device_seconds - 150 * 0.011) < 0.02, "%g s in %d passes", stats.device_seconds, (int)stats.n_passes);
    seconds = fg__cost_all(&a->e->sched.cost, 1, 100);
    CHECKF(fabs(seconds - 0.011) < 0.0005, "%g s a pass", seconds);
    api_close(a);
    free(j);
}

static void run_budget_tests(void) {
    RUN(test_budget_model);
    RUN(test_budget_target);
    RUN(test_budget_draft);
    RUN(test_budget_out_of_reach);
    RUN(test_budget_saturate);
    RUN(test_budget_turns);
    RUN(test_budget_frames);
    RUN(test_budget_overrun);
    RUN(test_budget_late_caller);
}
