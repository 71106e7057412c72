/* Guessing ahead: the output is that of plain decoding, whatever is guessed; it comes in fewer passes where guesses are right,
   and costs little where they are not. */

/* Text that repeats itself, but for slips: token `position` of document `user`. */
static int32_t spec_token(int document, int position) {
    uint64_t h = fg__mix((uint64_t)document * 1000003 + (uint64_t)position);
    int period = 3 + document % 9;
    if (h % 11 == 0) return 20 + (int32_t)(h / 11 % 40);
    return 70 + (document * 17 + position % period * 5) % 60;
}

static int spec_documents[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};

static void spec_write(void *user, int sample, int position, const int32_t *tokens, float *logits, int n_vocab) {
    (void)sample;
    (void)tokens;
    (void)n_vocab;
    logits[spec_token(*(const int *)user, position)] += 6; /* at temperature 1 nearly always, but not always */
}

static void spec_job(job *j, uint64_t *random) {
    int document = job_below(random, 16), i;
    job_random(j, random, 60, 100);
    for (i = 0; i < (int)j->desc.n_tokens; i++) j->prompt[i] = spec_token(document, i);
    j->desc.n_beams = 0;
    j->desc.n_draft = 1 + job_below(random, FG__MAX_DRAFT);
    j->desc.on_logits = spec_write;
    j->desc.on_logits_user = &spec_documents[document];
}

static void spec_storm(const model_spec *spec, uint64_t random, int n) {
    model_sample m;
    fg_engine_desc d;
    job *jobs = (job *)malloc((size_t)n * sizeof(job));
    int policy, i;
    model_sample_open(&m, spec);
    for (i = 0; i < n; i++) spec_job(&jobs[i], &random);
    jobs_alone(m.model, jobs, n);
    for (policy = 0; policy < 4; policy++) {
        d = engine_desc(m.model, fg_backend_null());
        d.policy = (fg_policy)policy;
        d.kv_tokens = policy % 2 ? 300 : 1024;
        d.block_tokens = 4 << policy % 3;
        d.token_budget = policy % 2 ? 24 : 200;
        d.max_seqs = 6 + 10 * policy;
        jobs_storm(&d, jobs, n, &random);
    }
    model_sample_close(&m);
    free(jobs);
}

static void test_spec_same(void) {
    model_spec spec = model_spec_tiny();
    spec_storm(&spec, 1, 60);
    spec.window = 9;
    spec_storm(&spec, 2, 40);
    spec.full_every = 2;
    spec_storm(&spec, 3, 60);
}

/* On the CPU, logits of a guess's row are those of a pass of its own, bit for bit. */
static void test_spec_bits(void) {
    enum { N = 10 };
    model_spec spec = model_spec_tiny();
    model_sample m;
    fg_engine_desc d;
    fg_stats stats;
    job *plain = (job *)calloc(N, sizeof(job)), *guessed = (job *)calloc(N, sizeof(job));
    uint64_t random = 8;
    int i, k, round, n_vocab;
    model_sample_open(&m, &spec);
    n_vocab = model_n_vocab();
    for (round = 0; round < 2; round++) {
        fg_engine *e;
        d = engine_desc(m.model, fg_backend_cpu());
        e = engine_new(&d);
        for (i = 0; i < N; i++) {
            job *j = round ? &guessed[i] : &plain[i];
            if (!round) spec_job(j, &random);
            else *j = plain[i], job_clear(j);
            j->desc.n = j->desc.best_of = 0;
            j->desc.logprobs = true;
            j->desc.top_logprobs = 0;
            j->desc.prompt_logprobs = false;
            if (i % 3 == 0) j->desc.on_logits = NULL, j->desc.sampling.n_logit_bias = 1, j->bias.bias = 30;
            k = j->desc.n_draft;
            if (!round) j->desc.n_draft = 0;
            CHECK(job_submit(e, j) == FG_OK);
            j->desc.n_draft = k;
        }
        jobs_run(e);
        fg_get_stats(e, &stats);
        CHECK(round ? stats.accepted_tokens > 20 : stats.drafted_tokens == 0);
        fg_engine_free(e);
    }
    for (i = 0; i < N; i++) {
        job_check_ends(&guessed[i]);
        CHECK(job_same(&guessed[i], &plain[i]));
        CHECK(memcmp(guessed[i].samples[0].logprobs, plain[i].samples[0].logprobs, sizeof(plain[i].samples[0].logprobs)) == 0);
    }
    (void)n_vocab;
    model_sample_close(&m);
    free(plain);
    free(guessed);
}

/* A text that repeats itself exactly takes far fewer passes; the counts agree everywhere. */
static void test_spec_pays(void) {
    api *a = api_open(fg_backend_null(), 256);
    fg_event event;
    fg_stats stats;
    int n_drafted = -1, n_accepted = -1;
    bool busy = true;
    api_job(a);
    a->j.desc.max_tokens = 150;
    a->j.desc.n_draft = 16;
    a->j.desc.sampling.n_logit_bias = 1;
    a->j.bias.token = 100;
    a->j.bias.bias = 30;
    CHECK(job_submit(a->e, &a->j) == FG_OK);
    while (busy) {
        CHECK(fg_step(a->e, 0, &busy) == FG_OK);
        while (fg_next_event(a->e, &event)) {
            job_event(&a->j, &event);
            if (event.type == FG_EVENT_END) n_drafted = event.n_drafted, n_accepted = event.n_accepted;
        }
    }
    job_check_ends(&a->j);
    fg_get_stats(a->e, &stats);
    CHECK(a->j.n_generated == 150 && stats.generated_tokens == 150 && stats.n_passes < 20);
    CHECK(n_accepted > 100 && n_drafted >= n_accepted && stats.drafted_tokens == (uint64_t)n_drafted && stats.accepted_tokens == (uint64_t)n_accepted);
    api_close(a);
}

/* Text in which pairs repeat, but never what follows them: guesses are given up. And where a token costs as much as a pass
   and one in three is right, none are made once that is known. */
static void spec_never(void *user, int sample, int position, const int32_t *tokens, float *logits, int n_vocab) {
    (void)user;
    (void)sample;
    (void)tokens;
    (void)n_vocab;
    logits[position % 3 == 2 ? 4 + (position / 3) % 200 : 230 + position % 3] += 50;
}

static void test_spec_backs_off(void) {
    api *a = api_open(fg_backend_null(), 256);
    fg_stats stats;
    api_job(a);
    a->j.desc.max_tokens = 180;
    a->j.desc.n_draft = 16;
    a->j.desc.on_logits = spec_never;
    api_run(a);
    fg_get_stats(a->e, &stats);
    CHECK(a->j.n_generated == 180 && stats.drafted_tokens > 0);
    CHECKF(stats.drafted_tokens < 60, "%d guesses", (int)stats.drafted_tokens);
    api_close(a);
}

/* ---- a draft model */

/* Jobs of all kinds, over a draft model that is the model itself, or another: the same output as alone. */
static void spec_draft_storm(const fg_backend *backend, int n, uint64_t random) {
    model_spec spec = model_spec_tiny(), small = model_spec_tiny();
    model_sample m, other;
    fg_engine_desc d;
    job *jobs = (job *)malloc((size_t)n * sizeof(job));
    int i, round;
    small.n_layers = 1;
    small.seed = 5;
    model_sample_open(&m, &spec);
    model_sample_open(&other, &small);
    for (i = 0; i < n; i++) {
        job_random(&jobs[i], &random, 100, 60);
        if (!jobs[i].desc.n_beams) jobs[i].desc.n_draft = 1 + job_below(&random, 8);
    }
    jobs_alone_on(m.model, backend, jobs, n);
    for (round = 0; round < 8; round++) {
        d = engine_desc(m.model, backend);
        d.draft_model = round % 4 == 3 ? other.model : m.model;
        d.kv_tokens = round % 2 ? 272 : 1024;
        d.block_tokens = 4 << round % 3;
        d.token_budget = round % 2 ? 20 : 200;
        d.max_seqs = 3 + 5 * round;
        d.async = (fg_async)(round % 3);
        jobs_storm(&d, jobs, n, &random);
    }
    model_sample_close(&m);
    model_sample_close(&other);
    free(jobs);
}

static void test_spec_draft_same(void) {
    spec_draft_storm(fg_backend_null(), 80, 31);
    spec_draft_storm(NULL, 24, 32);
}

/* On a clock that stands still, by which no guess costs anything. */
static fg_engine *spec_draft_engine(const model_sample *m, const model_sample *draft, const fg_backend *backend) {
    static double clock;
    fg_engine_desc d = engine_desc(m->model, backend);
    d.draft_model = draft->model;
    d.clock = api_clock;
    d.clock_user = &clock;
    return engine_new(&d);
}

/* A draft model that is the model itself is always right, also at temperature 1, since it draws with the same random numbers: 150
   tokens take a fifth of the passes. One that knows nothing is given up. The text is that of plain decoding. */
static void test_spec_draft_pays(void) {
    model_spec spec = model_spec_tiny(), small = model_spec_tiny();
    model_sample m, other;
    job *plain = (job *)calloc(1, sizeof(job)), *j = (job *)calloc(1, sizeof(job));
    fg_stats stats;
    int round;
    small.seed = 5;
    model_sample_open(&m, &spec);
    model_sample_open(&other, &small);
    for (round = 0; round < 6; round++) {
        fg_engine *e = spec_draft_engine(&m, round < 4 ? &m : &other, NULL);
        j->desc.n_tokens = 3;
        j->prompt[0] = 1;
        j->desc.max_tokens = 150;
        j->desc.ignore_eos = true;
        j->desc.sampling.temperature = round % 2 ? 1.0f : 0.0f;
        j->desc.n_draft = 4;
        *plain = *j;
        jobs_alone_on(m.model, NULL, plain, 1);
        CHECK(job_submit(e, j) == FG_OK);
        jobs_run(e);
        job_check_ends(j);
        CHECK(job_same(j, plain));
        fg_get_stats(e, &stats);
        if (round < 4) CHECKF(stats.drafted_tokens == stats.accepted_tokens && stats.n_passes <= 34, "%d passes, %d of %d right", (int)stats.n_passes, (int)stats.accepted_tokens, (int)stats.drafted_tokens);
        else CHECKF(stats.drafted_tokens > 0 && stats.drafted_tokens < 60, "%d guesses", (int)stats.drafted_tokens);
        job_clear(j);
        engine_check_idle(e);
        fg_engine_free(e);
    }
    model_sample_close(&m);
    model_sample_close(&other);
    free(plain);
    free(j);
}

/* A draft model that is right, but takes as long as the model itself, is given up. */
static void test_spec_draft_costs(void) {
    model_spec spec = model_spec_tiny();
    model_sample m;
    fg_null_options options;
    fg_engine_desc d;
    fg_engine *e;
    fg_stats stats;
    job *j = (job *)calloc(1, sizeof(job));
    double clock = 0;
    memset(&options, 0, sizeof(options));
    options.base = 0.010;
    options.per_token = 0.0001;
    options.clock = &clock;
    model_sample_open(&m, &spec);
    d = engine_desc(m.model, fg_backend_null());
    d.backend_options = &options;
    d.clock = api_clock;
    d.clock_user = &clock;
    d.draft_model = m.model;
    e = engine_new(&d);
    j->desc.n_tokens = 3;
    j->desc.max_tokens = 150;
    j->desc.ignore_eos = true;
    j->desc.n_draft = 4;
    CHECK(job_submit(e, j) == FG_OK);
    jobs_run(e);
    job_check_ends(j);
    fg_get_stats(e, &stats);
    CHECKF(stats.drafted_tokens >= 16 && stats.drafted_tokens < 60 && stats.draft_seconds < 0.7, "%d guesses took %g s", (int)stats.drafted_tokens, stats.draft_seconds);
    engine_check_idle(e);
    fg_engine_free(e);
    model_sample_close(&m);
    free(j);
}

static void spec_same_token(void *user, int sample, int position, const int32_t *tokens, float *logits, int n_vocab) {
    int i;
    (void)user;
    (void)sample;
    (void)position;
    (void)tokens;
    for (i = 0; i < n_vocab; i++) logits[i] = i == 7 ? 10.0f : -10.0f;
}

/* Another vocabulary, and memory that is counted. */
static void test_spec_draft_errors(void) {
    model_spec spec = model_spec_tiny();
    model_sample m;
    fg_engine_desc d;
    fg_engine *e = NULL;
    fg_memory plain, both;
    model_sample_open(&m, &spec);
    d = engine_desc(m.model, NULL);
    CHECK(fg_estimate_memory(&d, &plain) == FG_OK);
    d.draft_path = "no such file";
    CHECK(fg_engine_create(&d, &e) == FG_ERROR_IO && !e);
    d.draft_path = NULL;
    d.draft_model = m.model;
    CHECK(fg_estimate_memory(&d, &both) == FG_OK && both.weights == 2 * plain.weights && both.kv > plain.kv && both.total > plain.total);
    m.model->hp.n_vocab--;
    {
        model_sample other;
        model_sample_open(&other, &spec);
        d.model = other.model;
        CHECK(fg_engine_create(&d, &e) == FG_ERROR_INVALID_ARGUMENT && !e);
        model_sample_close(&other);
    }
    m.model->hp.n_vocab++;
    model_sample_close(&m);
}

/* A prompt as long as the context beside as many guesses as there may be, where whole prompts are taken: a pass holds no more than it can. */
static void test_spec_whole_prompt(void) {
    model_spec spec = model_spec_tiny();
    int32_t tokens[255];
    model_sample m;
    fg_engine_desc d;
    fg_engine *e;
    fg_event event;
    bool busy = true;
    int i, ends = 0;
    model_sample_open(&m, &spec);
    d = engine_desc(m.model, fg_backend_null());
    d.policy = FG_POLICY_ORCA;
    d.max_context = 256;
    d.token_budget = 64;
    d.max_seqs = 4;
    d.kv_tokens = 2048;
    d.no_prefix_cache = true;
    e = engine_new(&d);
    for (i = 0; i < 255; i++) tokens[i] = 7;
    for (i = 0; i < 4; i++) {
        fg_request_desc r;
        memset(&r, 0, sizeof(r));
        r.tokens = tokens;
        r.n_tokens = i < 3 ? 8 : 255;
        r.max_tokens = i < 3 ? 200 : 1;
        r.n_draft = i < 3 ? 16 : 0;
        r.ignore_eos = true;
        r.on_logits = spec_same_token;
        CHECK(fg_submit(e, &r, NULL) == FG_OK);
        for (busy = true; busy && e->stats.drafted_tokens < 200 && i == 2;) CHECK(fg_step(e, 0, &busy) == FG_OK);
    }
    for (busy = true; busy;) {
        CHECK(fg_step(e, 0, &busy) == FG_OK);
        CHECKF(e->stats.pass_tokens <= e->graph.max_tokens, "%d tokens in a pass of at most %d", e->stats.pass_tokens, e->graph.max_tokens);
    }
    while (fg_next_event(e, &event))
        if (event.type == FG_EVENT_END) {
            CHECKF(event.finish == FG_FINISH_LENGTH, "%s", fg_result_name(event.result));
            ends++;
        }
    CHECKF(ends == 4, "%d ends", ends);
    engine_check_idle(e);
    fg_engine_free(e);
    model_sample_close(&m);
}

/* Guesses that could fill all rows of a pass leave some to who comes: its first token waits for nobody's end. */
static void test_spec_leaves_rows(void) {
    enum { N = 4 };
    api *a = api_open(fg_backend_null(), 256);
    job *jobs = (job *)calloc(N + 1, sizeof(job));
    int i, k;
    for (i = 0; i <= N; i++) {
        for (k = 0; k < 8; k++) jobs[i].prompt[k] = 7;
        jobs[i].desc.n_tokens = 8;
        jobs[i].desc.max_tokens = i < N ? 180 : 1;
        jobs[i].desc.n_draft = i < N ? FG__MAX_DRAFT : 0;
        jobs[i].desc.ignore_eos = true;
        jobs[i].desc.on_logits = spec_same_token;
        for (k = 0; i == N && k < 100 && a->e->stats.drafted_tokens < 100; k++) CHECK(fg_step(a->e, 0, NULL) == FG_OK);
        CHECK(job_submit(a->e, &jobs[i]) == FG_OK);
    }
    CHECK(N * (1 + FG__MAX_DRAFT) > a->e->graph.max_rows);
    jobs_run(a->e);
    for (i = 0; i < N; i++) CHECKF(jobs[N].times.finish < jobs[i].times.finish, "%g s, request %d has ended after %g s", jobs[N].times.finish, i, jobs[i].times.finish);
    free(jobs);
    api_close(a);
}

/* ---- the distribution */

enum { SPEC_TOKENS = 6, SPEC_DRAWS = 20000 };

static double spec_probability[SPEC_TOKENS] = {0.4, 0.25, 0.15, 0.1, 0.07, 0.03};

/* Six tokens of known probability after any history. */
static void spec_six(void *user, int sample, int position, const int32_t *tokens, float *logits, int n_vocab) {
    int i;
    (void)user;
    (void)sample;
    (void)position;
    (void)tokens;
    for (i = 0; i < n_vocab; i++) logits[i] = -1e9f;
    for (i = 0; i < SPEC_TOKENS; i++) logits[100 + i] = (float)log(spec_probability[i]);
}

static double spec_chi_squared(const int *counts, int n) {
    double sum = 0;
    int i;
    for (i = 0; i < SPEC_TOKENS; i++) {
        double expected = n * spec_probability[i];
        sum += (counts[i] - expected) * (counts[i] - expected) / expected;
    }
    return sum;
}

/* Tokens drawn at temperature 1, with guesses that are often wrong: of five degrees of freedom 30 is exceeded once in 80000.
   The same statistic finds a bias of a twentieth towards what was guessed. */
static void test_spec_distribution(void) {
    api *a = api_open(fg_backend_null(), 256);
    int counts[SPEC_TOKENS] = {0}, biased[SPEC_TOKENS] = {0}, n = 0, i, run;
    fg_stats stats;
    uint64_t random = 4;
    for (run = 0; n < SPEC_DRAWS; run++) {
        api_job(a);
        a->j.desc.max_tokens = 150;
        a->j.desc.n_draft = 4;
        a->j.desc.on_logits = spec_six;
        a->j.desc.sampling.temperature = 1;
        a->j.desc.sampling.seed = (uint64_t)run;
        api_run(a);
        for (i = 0; i < a->j.samples[0].n_tokens; i++, n++) {
            int token = a->j.samples[0].tokens[i] - 100;
            CHECK(token >= 0 && token < SPEC_TOKENS);
            if (token < 0 || token >= SPEC_TOKENS) continue;
            counts[token]++;
            biased[test_random(&random) % 20 == 0 ? 0 : token]++;
        }
    }
    fg_get_stats(a->e, &stats);
    CHECK(stats.drafted_tokens > 500 && stats.accepted_tokens > 100 && stats.accepted_tokens < stats.drafted_tokens);
    CHECKF(spec_chi_squared(counts, n) < 30, "chi squared is %.1f", spec_chi_squared(counts, n));
    CHECKF(spec_chi_squared(biased, n) > 30, "of a bias chi squared is %.1f", spec_chi_squared(biased, n));
    api_close(a);
}

/* The same over a draft model that always guesses the likeliest of the six: its logits have a bias, which spec_biased takes out
   of the model's. */
static void spec_biased(void *user, int sample, int position, const int32_t *tokens, float *logits, int n_vocab) {
    spec_six(user, sample, position, tokens, logits, n_vocab);
    logits[100] -= 30;
}

static void test_spec_draft_distribution(void) {
    model_spec spec = model_spec_tiny();
    model_sample m;
    fg_engine *e;
    job *j = (job *)calloc(1, sizeof(job));
    int counts[SPEC_TOKENS] = {0}, biased[SPEC_TOKENS] = {0}, n = 0, i, run;
    fg_stats stats;
    uint64_t random = 4;
    model_sample_open(&m, &spec);
    e = spec_draft_engine(&m, &m, fg_backend_null());
    for (run = 0; n < SPEC_DRAWS; run++) {
        memset(j, 0, sizeof(*j));
        j->prompt[0] = 1;
        j->desc.n_tokens = 3;
        j->desc.max_tokens = 150;
        j->desc.n_draft = 4;
        j->desc.on_logits = spec_biased;
        j->desc.sampling.temperature = 1;
        j->desc.sampling.seed = (uint64_t)run;
        j->desc.sampling.n_logit_bias = 1;
        j->bias.token = 100;
        j->bias.bias = 30;
        CHECK(job_submit(e, j) == FG_OK);
        jobs_run(e);
        for (i = 0; i < j->samples[0].n_tokens; i++, n++) {
            int token = j->samples[0].tokens[i] - 100;
            CHECK(token >= 0 && token < SPEC_TOKENS);
            if (token < 0 || token >= SPEC_TOKENS) continue;
            counts[token]++;
            biased[test_random(&random) % 20 == 0 ? 0 : token]++;
        }
    }
    fg_get_stats(e, &stats);
    CHECKF(stats.accepted_tokens > 1000 && stats.accepted_tokens < stats.drafted_tokens * 3 / 4, "%d of %d right", (int)stats.accepted_tokens, (int)stats.drafted_tokens);
    CHECKF(spec_chi_squared(counts, n) < 30, "chi squared is %.1f", spec_chi_squared(counts, n));
    CHECKF(spec_chi_squared(biased, n) > 30, "of a bias chi squared is %.1f", spec_chi_squared(biased, n));
    engine_check_idle(e);
    fg_engine_free(e);
    model_sample_close(&m);
    free(j);
}

static void run_spec_tests(void) {
    RUN(test_spec_draft_same);
    RUN(test_spec_draft_pays);
    RUN(test_spec_draft_costs);
    RUN(test_spec_draft_errors);
    RUN(test_spec_draft_distribution);
    RUN(test_spec_same);
    RUN(test_spec_whole_prompt);
    RUN(test_spec_leaves_rows);
    RUN(test_spec_bits);
    RUN(test_spec_pays);
    RUN(test_spec_backs_off);
    RUN(test_spec_distribution);
}
