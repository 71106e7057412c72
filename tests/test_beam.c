/* Samples that compete: best_of against samples drawn apart, beam search against a plain one made of single requests. */

enum { BEAM_MOST = 5, BEAM_TOKENS = 24 };

/* A model whose choices are close, so that beams cross. The end token is near at hand, too. */
static void beam_write(void *user, int sample, int position, const int32_t *tokens, float *logits, int n_vocab) {
    uint64_t h = fg__mix((uint64_t)position * 77 + (uint64_t)*(const int *)user);
    int i;
    (void)sample;
    for (i = 0; i < 3 && i < position; i++) h = fg__mix(h ^ (uint64_t)tokens[position - 1 - i]);
    for (i = 0; i < n_vocab; i++) logits[i] = i % 16 ? -20.0f : (float)(fg__mix(h + (uint64_t)i) >> 40) / 8388608.0f;
    logits[2] = (float)(h >> 40) / 8388608.0f - (position < 12 ? 1.0f : 0.3f);
}

typedef struct beam_text {
    int32_t tokens[BEAM_TOKENS];
    int n;
    double logprob, score;
    bool ended;
} beam_text;

static int beam_order(const void *x, const void *y) {
    double a = ((const beam_text *)x)->score, b = ((const beam_text *)y)->score;
    return a < b ? 1 : a > b ? -1 : 0;
}

/* The candidates after a text: a request of one token, alone. */
static int beam_candidates(fg_engine *e, const job *j, const beam_text *t, int n_top, fg_token_logprob *top) {
    fg_request_desc d = j->desc;
    int32_t tokens[JOB_TOKENS + BEAM_TOKENS];
    fg_event event;
    bool busy = true;
    int n = 0;
    memcpy(tokens, j->prompt, j->desc.n_tokens * sizeof(int32_t));
    memcpy(tokens + j->desc.n_tokens, t->tokens, (size_t)t->n * sizeof(int32_t));
    d.tokens = tokens;
    d.n_tokens += (size_t)t->n;
    d.max_tokens = 1;
    d.min_tokens = 0;
    d.n_beams = d.n = 0;
    d.top_logprobs = n_top;
    CHECK(fg_submit(e, &d, NULL) == FG_OK);
    while (busy) {
        CHECK(fg_step(e, 0, &busy) == FG_OK);
        while (fg_next_event(e, &event)) {
            if (event.type != FG_EVENT_TOKEN) continue;
            n = event.n_top;
            memcpy(top, event.top, (size_t)n * sizeof(*top));
        }
    }
    return n;
}

/* Beam search in the plainest way: every text computed anew for every token. */
static int beam_reference(fg_engine *e, const job *j, int width, double penalty, beam_text *ended) {
    beam_text live[BEAM_MOST], all[2 * BEAM_MOST * BEAM_MOST], next[BEAM_MOST];
    int n_live = 1, n_ended = 0, length, i, k, n;
    memset(live, 0, sizeof(live));
    for (length = 1; n_live; length++) {
        n = 0;
        for (i = 0; i < n_live; i++) {
            fg_token_logprob top[FG_MAX_TOP_LOGPROBS];
            int n_top = beam_candidates(e, j, &live[i], 2 * width, top);
            for (k = 0; k < n_top; k++, n++) {
                all[n] = live[i];
                all[n].tokens[all[n].n++] = top[k].token;
                all[n].score = all[n].logprob = live[i].logprob + (double)top[k].logprob;
                all[n].ended = fg_token_is_end(fg_engine_get_model(e), top[k].token);
            }
        }
        qsort(all, (size_t)n, sizeof(all[0]), beam_order);
        n_live = 0;
        for (i = 0; i < n && i < 2 * width && n_live < width; i++) {
            bool last = all[i].ended || length == j->desc.max_tokens;
            if (all[i].ended && (i >= width || length <= j->desc.min_tokens)) continue;
            if (!all[i].ended) next[n_live++] = all[i];
            if (!last) continue;
            all[i].score = all[i].logprob / pow(length, penalty);
            ended[n_ended++] = all[i];
            qsort(ended, (size_t)n_ended, sizeof(ended[0]), beam_order);
            n_ended = FG__MIN(n_ended, width);
        }
        memcpy(live, next, sizeof(live));
        if (length == j->desc.max_tokens) break;
        if (n_live && n_ended == width && live[0].logprob / pow(length, penalty) <= ended[width - 1].score) break;
    }
    return n_ended;
}

static void beam_compare(const fg_backend *backend, int width, double penalty, int document, fg_engine_desc *pressed) {
    model_spec spec = model_spec_tiny();
    model_sample m;
    fg_engine_desc d;
    fg_engine *e;
    beam_text ended[BEAM_MOST + 1];
    job *j = (job *)calloc(1, sizeof(job));
    int i, k, n;
    model_sample_open(&m, &spec);
    d = engine_desc(m.model, backend);
    e = engine_new(&d);
    j->desc.n_tokens = 20;
    for (i = 0; i < 20; i++) j->prompt[i] = 5 + (i * 7 + document) % 100;
    j->desc.max_tokens = 18;
    j->desc.min_tokens = document % 3 ? 0 : 7;
    j->desc.on_logits = beam_write;
    j->desc.on_logits_user = &document;
    n = beam_reference(e, j, width, penalty, ended);
    fg_engine_free(e);
    if (pressed) d = *pressed;
    d.model = m.model;
    d.backends[0] = backend;
    e = engine_new(&d);
    j->desc.n_beams = width;
    j->desc.n = FG__MIN(width, JOB_SAMPLES);
    j->desc.length_penalty = (float)penalty;
    j->desc.logprobs = true;
    CHECKF(job_submit(e, j) == FG_OK, "%s", fg_last_error());
    jobs_run(e);
    job_check_ends(j);
    CHECK(n > 0);
    for (i = 0; i < job_n(j) && i < n; i++) {
        double sum = 0;
        CHECKF(j->samples[i].n_tokens == ended[i].n && memcmp(j->samples[i].tokens, ended[i].tokens, (size_t)ended[i].n * sizeof(int32_t)) == 0,
               "width %d, document %d: text %d has %d tokens, not %d", width, document, i, j->samples[i].n_tokens, ended[i].n);
        for (k = 0; k < j->samples[i].n_tokens; k++) sum += (double)j->samples[i].logprobs[k];
        CHECK(fabs(sum - ended[i].logprob) < 1e-9);
        CHECK(j->samples[i].finish == (ended[i].ended ? FG_FINISH_STOP : FG_FINISH_LENGTH));
    }
    engine_check_idle(e);
    fg_engine_free(e);
    model_sample_close(&m);
    free(j);
}

static void test_beam_reference(void) {
    fg_engine_desc pressed;
    int document, width;
    memset(&pressed, 0, sizeof(pressed));
    pressed.kv_tokens = 48; /* room for one beam and a bit: they take turns */
    pressed.max_context = 44;
    pressed.block_tokens = 4;
    pressed.max_seqs = 3;
    pressed.token_budget = 8;
    for (document = 0; document < 12; document++)
        for (width = 1; width <= BEAM_MOST; width++) beam_compare(fg_backend_null(), width, document % 4 * 0.5 + 0.5, document, NULL);
    for (document = 0; document < 8; document++) {
        pressed.policy = (fg_policy)(document % 4);
        pressed.preemption = (fg_preemption)(document % 3);
        beam_compare(fg_backend_null(), 4, 1, document, &pressed);
        beam_compare(fg_backend_null(), 5, 1, document + 20, &pressed);
    }
    beam_compare(fg_backend_cpu(), 4, 1, 3, NULL);
}

/* Everywhere the end token and a stop token are likelier than what may come before min_tokens. */
static void beam_ends(void *user, int sample, int position, const int32_t *tokens, float *logits, int n_vocab) {
    int i;
    (void)user;
    (void)sample;
    (void)position;
    (void)tokens;
    for (i = 0; i < n_vocab; i++) logits[i] = 0;
    logits[2] = 10;
    logits[4 + 'b'] = 9;
    logits[4 + 'a'] = 5;
}

/* One beam is what greedy sampling gives: min_tokens counts the tokens before the end. */
static void test_beam_min_tokens(void) {
    api *a = api_open(fg_backend_null(), 64);
    double sum = (model_n_vocab() - 3) + exp(10) + exp(9) + exp(5);
    int i, beams;
    for (beams = 0; beams < 2; beams++) {
        job *j = api_job(a);
        j->desc.on_logits = beam_ends;
        j->desc.n_beams = beams;
        j->desc.logprobs = true;
        j->desc.min_tokens = 5;
        j->desc.n_stop_tokens = 1;
        j->stop_token = 4 + 'b';
        api_run(a);
        CHECKF(j->samples[0].n_tokens == 6 && j->finish == FG_FINISH_STOP && strcmp(j->samples[0].text, "aaaaa") == 0, "%d beams: %d tokens, \"%s\"",
               beams, j->samples[0].n_tokens, j->samples[0].text);
        for (i = 0; i < 6; i++) CHECK(fabs(j->samples[0].logprobs[i] - ((i < 5 ? 5 : 10) - log(sum))) < 1e-5);
    }
    api_close(a);
}

/* Brings the row that `user` points to, once. */
static fg_result beam_fetch(void *user, const float **logits) {
    const float **whole = (const float **)user;
    *logits = *whole;
    *whole = NULL;
    return FG_OK;
}

/* Of the best alternatives those that are allowed, with log-probabilities of the whole row: from the row, from candidates, and from the
   row where the candidates are too few. */
static void test_beam_allowed(void) {
    enum { N = 40, TOP = 6 };
    static const int32_t banned[] = {1, 3, 7, 200};
    float logits[N];
    fg_row_result row;
    fg_row_candidates candidates;
    fg__env env = fg__env_make(NULL, NULL, NULL);
    fg__sample_scratch scratch;
    fg__sampler greedy;
    fg__sample_input in;
    fg__sample_output out;
    double sum = 0;
    int round, i;
    memset(&scratch, 0, sizeof(scratch));
    memset(&greedy, 0, sizeof(greedy));
    for (i = 0; i < N; i++) sum += exp((double)(logits[i] = 5 - 0.25f * (float)i));
    row.token = 0;
    row.logit = logits[0];
    row.log_sum_exp = (float)log(sum);
    for (round = 0; round < 3; round++) {
        const float *whole = logits;
        memset(&in, 0, sizeof(in));
        in.n_vocab = N;
        in.row = &row;
        in.banned = banned;
        in.n_banned = 4;
        in.n_top = TOP;
        in.top_allowed = true;
        if (round == 0) in.logits = logits;
        candidates.n = round == 1 ? TOP + 3 : TOP + 2; /* three of them are banned */
        candidates.floor = logits[candidates.n];
        candidates.drawn = -1;
        for (i = 0; i < candidates.n; i++) candidates.items[i].token = i, candidates.items[i].logit = logits[i];
        if (round) in.candidates = &candidates, in.fetch = beam_fetch, in.fetch_user = &whole;
        CHECK(fg__sample(&env, &scratch, &greedy, &in, &out) == FG_OK);
        CHECK(out.token == 0 && out.n_top == TOP && (round == 2) == (whole == NULL));
        for (i = 0; i < TOP; i++) {
            int32_t token = i == 0 ? 0 : i == 1 ? 2 : i < 5 ? i + 2 : 8;
            CHECK(out.top[i].token == token && fabs(out.top[i].logprob - (logits[token] - log(sum))) < 1e-5);
        }
    }
    fg__sample_scratch_free(&env, &scratch);
}

/* best_of gives out what is best among the same samples drawn for themselves. */
static void test_beam_best_of(void) {
    api *a = api_open(fg_backend_null(), 256);
    job *all = (job *)calloc(1, sizeof(job)), *best = (job *)calloc(1, sizeof(job));
    double means[JOB_SAMPLES];
    int i, k, first = 0, second = -1, run;
    for (run = 0; run < 6; run++) {
        memset(all, 0, sizeof(*all));
        all->prompt[0] = 1;
        all->prompt[1] = 30 + run;
        all->desc.n_tokens = 2;
        all->desc.max_tokens = 20;
        all->desc.n = JOB_SAMPLES;
        all->desc.logprobs = true;
        all->desc.sampling.temperature = 1;
        all->desc.sampling.seed = (uint64_t)run * 100;
        memcpy(best, all, sizeof(*all));
        best->desc.n = 2;
        best->desc.best_of = JOB_SAMPLES;
        CHECK(job_submit(a->e, all) == FG_OK && job_submit(a->e, best) == FG_OK);
        jobs_run(a->e);
        job_check_ends(all);
        job_check_ends(best);
        for (i = 0; i < JOB_SAMPLES; i++) {
            means[i] = 0;
            for (k = 0; k < all->samples[i].n_tokens; k++) means[i] += (double)all->samples[i].logprobs[k] / all->samples[i].n_tokens;
        }
        for (first = 0, i = 1; i < JOB_SAMPLES; i++) first = means[i] > means[first] ? i : first;
        for (second = -1, i = 0; i < JOB_SAMPLES; i++)
            if (i != first && (second < 0 || means[i] > means[second])) second = i;
        for (i = 0; i < 2; i++) {
            const job_sample *s = &all->samples[i ? second : first], *b = &best->samples[i];
            CHECK(b->n_tokens == s->n_tokens && memcmp(b->tokens, s->tokens, sizeof(s->tokens)) == 0);
            CHECK(b->text_length == s->text_length && memcmp(b->text, s->text, s->text_length) == 0 && b->finish == s->finish);
        }
    }
    free(all);
    free(best);
    api_close(a);
}

/* What is cancelled says so, once for each text that was to come, and gives out nothing. */
static void test_beam_cancel(void) {
    api *a = api_open(fg_backend_null(), 256);
    int what, i;
    for (what = 0; what < 2; what++) {
        api_job(a);
        a->j.desc.max_tokens = 100;
        a->j.desc.n = 2;
        a->j.desc.ignore_eos = true;
        a->j.desc.best_of = what ? 4 : 0;
        a->j.desc.n_beams = what ? 0 : 4;
        CHECK(job_submit(a->e, &a->j) == FG_OK);
        for (i = 0; i < 20; i++) CHECK(fg_step(a->e, 0, NULL) == FG_OK);
        CHECK(fg_cancel(a->e, a->j.handle) == FG_OK);
        jobs_run(a->e);
        job_check_ends(&a->j);
        CHECK(a->j.finish == FG_FINISH_CANCELLED && a->j.n_generated == 0 && a->j.samples[1].finish == FG_FINISH_CANCELLED);
    }
    api_close(a);
}

/* Beams that wait for a place or for blocks begin although those that wait for them keep the KV load at its level. */
static void test_beam_level(void) {
    static const struct {
        int max_seqs, level, width, kv_tokens;
    } cases[] = {{2, 40, 4, 0}, {4, 1000, 5, 0}, {64, 100, 5, 96}};
    model_spec spec = model_spec_tiny();
    model_sample m;
    int i;
    model_sample_open(&m, &spec);
    for (i = 0; i < 3; i++) {
        fg_engine_desc d = engine_desc(m.model, fg_backend_null());
        job *j = (job *)calloc(1, sizeof(job));
        trace_text file = {NULL, 0, 0};
        bool busy;
        fg_engine *e;
        d.max_seqs = cases[i].max_seqs;
        d.kv_level = cases[i].level;
        d.kv_tokens = cases[i].kv_tokens;
        d.block_tokens = 8;
        d.max_context = 96;
        e = engine_new(&d);
        j->desc.n_tokens = 7;
        j->desc.max_tokens = 50;
        j->desc.n_beams = cases[i].width;
        j->desc.ignore_eos = true;
        CHECK(job_submit(e, j) == FG_OK && fg_step(e, 0, &busy) == FG_OK);
        CHECK(fg_save_request(e, j->handle, trace_take, &file) == FG_ERROR_UNSUPPORTED && file.length == 0);
        jobs_run(e);
        job_check_ends(j);
        engine_check_idle(e);
        fg_engine_free(e);
        free(file.data);
        free(j);
    }
    model_sample_close(&m);
}

static void run_beam_tests(void) {
    RUN(test_beam_reference);
    RUN(test_beam_min_tokens);
    RUN(test_beam_allowed);
    RUN(test_beam_best_of);
    RUN(test_beam_cancel);
    RUN(test_beam_level);
}
