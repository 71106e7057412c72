/* KV blocks in host memory: requests that are set back and brought back, and requests that are saved and go on elsewhere. */

/* Under pressure, with every preemption a swap: the same outputs, and swaps did happen. */
static void swap_pressure(const fg_backend *backend, const char *arch, int window, int full_every, fg_preemption preemption) {
    enum { N = 24 };
    model_spec spec = model_spec_tiny();
    model_sample m;
    fg_engine_desc d;
    fg_engine *e;
    fg_stats stats;
    job *alone = (job *)calloc(N, sizeof(job)), *jobs = (job *)calloc(N, sizeof(job));
    uint64_t random = 31;
    int i;
    spec.arch = arch;
    spec.window = window;
    spec.full_every = full_every;
    model_sample_open(&m, &spec);
    for (i = 0; i < N; i++) {
        job_random(&alone[i], &random, 120, 60);
        alone[i].desc.max_tokens = 40;
        alone[i].desc.ignore_eos = true;
        alone[i].desc.n_stop = alone[i].desc.n_stop_tokens = 0;
    }
    jobs_alone_on(m.model, backend, alone, N);
    d = engine_desc(m.model, backend);
    d.kv_tokens = 256;
    d.block_tokens = 8;
    d.max_seqs = 12;
    d.token_budget = 48;
    d.no_prefix_cache = true;
    d.preemption = preemption;
    e = engine_new(&d);
    memcpy(jobs, alone, N * sizeof(job));
    for (i = 0; i < N; i++) job_clear(&jobs[i]);
    for (i = 0; i < N; i++) CHECK(job_submit(e, &jobs[i]) == FG_OK);
    jobs_run(e);
    for (i = 0; i < N; i++) {
        job_check_ends(&jobs[i]);
        CHECK(job_same(&jobs[i], &alone[i]));
    }
    fg_get_stats(e, &stats);
    CHECKF(stats.n_preemptions > 3, "%d preemptions", (int)stats.n_preemptions);
    if (preemption == FG_PREEMPT_SWAP) CHECKF(stats.n_swaps > 0 && stats.n_swaps <= stats.n_preemptions, "%d swaps", (int)stats.n_swaps);
    if (preemption == FG_PREEMPT_RECOMPUTE) CHECK(stats.n_swaps == 0);
    CHECK(e->swapped_bytes == 0);
    engine_check_idle(e);
    fg_engine_free(e);
    model_sample_close(&m);
    free(alone);
    free(jobs);
}

static void test_swap_null(void) {
    swap_pressure(fg_backend_null(), "llama", 0, 0, FG_PREEMPT_SWAP);
    swap_pressure(fg_backend_null(), "llama", 0, 0, FG_PREEMPT_RECOMPUTE);
    swap_pressure(fg_backend_null(), "llama", 0, 0, FG_PREEMPT_AUTO);
    swap_pressure(fg_backend_null(), "llama", 13, 2, FG_PREEMPT_SWAP);
    swap_pressure(fg_backend_null(), "qwen35", 0, 0, FG_PREEMPT_SWAP);
}

static void test_swap_cpu(void) {
    swap_pressure(fg_backend_cpu(), "llama", 0, 0, FG_PREEMPT_SWAP);
    swap_pressure(fg_backend_cpu(), "llama", 13, 2, FG_PREEMPT_SWAP);
    swap_pressure(fg_backend_cpu(), "qwen35", 0, 0, FG_PREEMPT_SWAP);
}

/* What is cheaper is chosen: where a token costs much, the swap; where it costs nothing, computing it again. */
static void test_swap_chooses(void) {
    api *a = api_open(fg_backend_null(), 256);
    fg__seq seq;
    int i;
    memset(&seq, 0, sizeof(seq));
    seq.n_computed = 100;
    CHECK(!fg__swap_pays(a->e, &seq, 1 << 20)); /* nothing is known yet */
    for (i = 1; i < 40; i++) fg__cost_add(&a->e->sched.cost, i, i * 37 % 100, 0.01 + 0.001 * i);
    CHECK(fg__swap_pays(a->e, &seq, 1 << 20));
    CHECK(!fg__swap_pays(a->e, &seq, (int64_t)1 << 40));
    api_close(a);
}

/* ---- saved requests */

/* Runs `j` until `after` tokens are written, saves it, and cancels it. */
static void swap_save(fg_engine *e, job *j, int after, trace_text *to) {
    bool busy = true;
    CHECKF(job_submit(e, j) == FG_OK, "%s", fg_last_error());
    while (busy && j->samples[0].n_tokens < after) {
        CHECK(fg_step(e, 0, &busy) == FG_OK);
        jobs_take(e);
    }
    CHECKF(fg_save_request(e, j->handle, trace_take, to) == FG_OK, "%s", fg_last_error());
    CHECK(fg_cancel(e, j->handle) == FG_OK);
    jobs_run(e);
    CHECK(fg_save_request(e, j->handle, trace_take, to) == FG_ERROR_NOT_FOUND);
}

/* Goes on in another engine over another copy of the model; what was written before and after is what was written at once. */
static void swap_continue(const fg_backend *backend, const char *arch, int window, int full_every, int after) {
    model_spec spec = model_spec_tiny();
    model_sample m, m2;
    fg_engine_desc d;
    fg_engine *e;
    trace_text file = {NULL, 0, 0};
    job whole, first, second;
    fg_stats stats;
    int i, total;
    spec.arch = arch;
    spec.window = window;
    spec.full_every = full_every;
    model_sample_open(&m, &spec);
    model_sample_open(&m2, &spec);
    memset(&whole, 0, sizeof(whole));
    for (i = 0; i < 70; i++) whole.prompt[i] = 5 + i * 11 % 200;
    whole.desc.n_tokens = 70;
    whole.desc.max_tokens = 50;
    whole.desc.ignore_eos = whole.desc.logprobs = true;
    whole.desc.sampling.temperature = 1;
    whole.desc.sampling.presence_penalty = 0.5f;
    whole.desc.sampling.seed = 99;
    first = whole;
    second = whole;
    d = engine_desc(m.model, backend);
    d.block_tokens = 8;
    e = engine_new(&d);
    CHECK(job_submit(e, &whole) == FG_OK);
    jobs_run(e);
    swap_save(e, &first, after, &file);
    fg_engine_free(e);
    d.model = m2.model;
    e = engine_new(&d);
    second.desc.n_tokens = (size_t)(70 + first.samples[0].n_tokens);
    second.desc.max_tokens = 50 - first.samples[0].n_tokens;
    second.desc.saved = file.data;
    second.desc.n_saved = file.length;
    job_point(&second);
    second.desc.tokens = NULL;
    CHECKF(fg_submit(e, &second.desc, &second.handle) == FG_OK, "%s", fg_last_error());
    jobs_run(e);
    job_check_ends(&second);
    fg_get_stats(e, &stats);
    CHECKF((int)stats.prompt_tokens == (after ? 1 : 70), "%d tokens computed again", (int)stats.prompt_tokens);
    total = first.samples[0].n_tokens + second.samples[0].n_tokens;
    CHECK(total == 50 && (after == 0 || second.n_cached == 70 + first.samples[0].n_tokens - 1));
    for (i = 0; i < total; i++) {
        bool before = i < first.samples[0].n_tokens;
        const job_sample *s = before ? &first.samples[0] : &second.samples[0];
        int at = before ? i : i - first.samples[0].n_tokens;
        CHECK(s->tokens[at] == whole.samples[0].tokens[i] && memcmp(&s->logprobs[at], &whole.samples[0].logprobs[i], sizeof(float)) == 0);
    }
    engine_check_idle(e);
    fg_engine_free(e);
    free(file.data);
    model_sample_close(&m);
    model_sample_close(&m2);
}

static void test_swap_continue(void) {
    swap_continue(fg_backend_cpu(), "llama", 0, 0, 20);
    swap_continue(fg_backend_cpu(), "llama", 13, 2, 27);
    swap_continue(fg_backend_null(), "llama", 13, 0, 1);
    swap_continue(fg_backend_cpu(), "qwen35", 0, 0, 21);
    swap_continue(fg_backend_null(), "qwen35", 0, 0, 2); /* where a block ends */
    swap_continue(fg_backend_null(), "llama", 0, 0, 0); /* not begun yet: there are only tokens */
}

/* Saved at any token, also within a character or where a stop string may begin, the text goes on where it was: for both samples of
   one that goes on twice. */
static void test_swap_text(void) {
    static const char text[] = "a\342\202\254 STx\303\251\360\237\230\200SSTOP!", whole[] = "a\342\202\254 STx\303\251\360\237\230\200S";
    enum { N = (int)sizeof(whole) - 1 + 4 }; /* to the end of the stop string */
    api *a = api_open(fg_backend_null(), 64);
    job *second = (job *)calloc(1, sizeof(job));
    int after, i;
    for (after = 1; after < N; after++) {
        trace_text file = {NULL, 0, 0};
        api_job(a)->desc.max_tokens = 40;
        a->j.desc.n_stop = 1;
        snprintf(a->j.stop_text[0], sizeof(a->j.stop_text[0]), "STOP");
        a->script.text = text;
        a->script.length = (int)sizeof(text) - 1;
        a->script.n_prompt = 3;
        a->j.desc.on_logits = api_write;
        a->j.desc.on_logits_user = &a->script;
        *second = a->j;
        swap_save(a->e, &a->j, after, &file);
        CHECK(a->j.samples[0].n_tokens == after);
        job_point(second);
        second->desc.tokens = NULL;
        second->desc.n_tokens = (size_t)(3 + after);
        second->desc.saved = file.data;
        second->desc.n_saved = file.length;
        second->desc.n = 2;
        CHECKF(fg_submit(a->e, &second->desc, &second->handle) == FG_OK, "%s", fg_last_error());
        jobs_run(a->e);
        job_check_ends(second);
        for (i = 0; i < 2; i++) {
            job_sample *s = &second->samples[i];
            CHECK(s->n_tokens == N - after && s->finish == FG_FINISH_STOP);
            CHECKF(strlen(a->j.samples[0].text) + strlen(s->text) == strlen(whole) && strncmp(a->j.samples[0].text, whole, a->j.samples[0].text_length) == 0 &&
                       strcmp(whole + a->j.samples[0].text_length, s->text) == 0, "saved after %d tokens: \"%s\", then \"%s\"", after, a->j.samples[0].text, s->text);
        }
        free(file.data);
    }
    free(second);
    api_close(a);
}

/* A stop string that came before min_tokens, and before the request was saved, ends nothing later. */
static void test_swap_stop(void) {
    api *a = api_open(fg_backend_null(), 64);
    job *second = (job *)calloc(1, sizeof(job));
    trace_text file = {NULL, 0, 0};
    job *j = api_job(a);
    j->desc.max_tokens = 7;
    j->desc.min_tokens = 4;
    j->desc.n_stop = 2;
    snprintf(j->stop_text[0], sizeof(j->stop_text[0]), "abcdef");
    snprintf(j->stop_text[1], sizeof(j->stop_text[1]), "bc");
    a->script.text = "abcdxyz";
    a->script.length = 7;
    a->script.n_prompt = 3;
    j->desc.on_logits = api_write;
    j->desc.on_logits_user = &a->script;
    *second = *j;
    swap_save(a->e, j, 3, &file);
    job_point(second);
    second->desc.tokens = NULL;
    second->desc.saved = file.data;
    second->desc.n_saved = file.length;
    second->desc.n_tokens = 6;
    second->desc.max_tokens = 4;
    second->desc.min_tokens = 1;
    CHECKF(fg_submit(a->e, &second->desc, &second->handle) == FG_OK, "%s", fg_last_error());
    jobs_run(a->e);
    job_check_ends(second);
    CHECKF(j->samples[0].text_length == 0 && strcmp(second->samples[0].text, "abcdxyz") == 0, "\"%s\"", second->samples[0].text);
    free(file.data);
    free(second);
    api_close(a);
}

/* Submits what was saved in `at` bytes with another head, and with blocks of zeros for what it says to have computed. `forged` has room. */
static void swap_forge(fg_engine *e, char *forged, size_t at, fg__saved *head) {
    fg_request_desc r;
    head->kv_bytes = fg__swap_bytes(e, head->n_computed, head->first);
    head->check = fg__saved_check(head, (const int32_t *)(const void *)(forged + sizeof(*head)), forged + at);
    memcpy(forged, head, sizeof(*head));
    memset(&r, 0, sizeof(r));
    r.saved = forged;
    r.n_saved = at + (size_t)head->kv_bytes;
    r.max_tokens = 40;
    r.ignore_eos = true;
    CHECKF(fg_submit(e, &r, NULL) == FG_OK, "%s", fg_last_error());
}

/* A saved request that says to have more blocks of a window than a sequence ever has: where these find no room they are computed
   anew, and swapped out later. */
static void test_swap_forged(void) {
    model_spec spec = model_spec_tiny();
    model_sample m;
    fg_engine_desc d;
    fg_engine *e;
    trace_text file = {NULL, 0, 0};
    job *j = (job *)calloc(1, sizeof(job));
    fg_request_desc r;
    fg_stats stats;
    fg__saved head;
    fg_event event;
    char *forged;
    size_t at;
    bool busy = true;
    int i, ends = 0;
    spec.window = 16;
    model_sample_open(&m, &spec);
    d = engine_desc(m.model, fg_backend_cpu());
    d.max_seqs = 1;
    d.block_tokens = d.token_budget = 8;
    d.max_context = 256;
    d.kv_tokens = 512;
    d.preemption = FG_PREEMPT_SWAP;
    d.no_prefix_cache = true;
    e = engine_new(&d);
    for (i = 0; i < 100; i++) j->prompt[i] = 5 + i * 11 % 200;
    j->desc.n_tokens = 100;
    j->desc.max_tokens = 40;
    j->desc.ignore_eos = true;
    swap_save(e, j, 3, &file);
    memcpy(&head, file.data, sizeof(head));
    at = sizeof(head) + (size_t)head.n_tokens * sizeof(int32_t);
    CHECK(head.first[0] > 5);
    head.first[0] = 0;
    forged = (char *)calloc(1, at + (size_t)fg__swap_bytes(e, head.n_computed, head.first));
    memcpy(forged, file.data, at);
    swap_forge(e, forged, at, &head);
    for (i = 0; i < 8; i++) CHECK(fg_step(e, 0, &busy) == FG_OK);
    memset(&r, 0, sizeof(r));
    r.tokens = j->prompt;
    r.n_tokens = 5;
    r.max_tokens = 4;
    r.priority = 1000;
    CHECK(fg_submit(e, &r, NULL) == FG_OK);
    for (busy = true; busy;) CHECK(fg_step(e, 0, &busy) == FG_OK);
    while (fg_next_event(e, &event)) ends += event.type == FG_EVENT_END && event.finish == FG_FINISH_LENGTH;
    CHECK(ends == 2);
    fg_get_stats(e, &stats);
    CHECKF(stats.n_swaps == 1, "%d swaps", (int)stats.n_swaps);
    CHECK(e->swapped_bytes == 0);
    engine_check_idle(e);
    /* and one that takes all there are goes on, without those outside of the window */
    head.n_computed = 40;
    CHECK(fg__kv_blocks_of(&e->kv, head.n_computed) == e->kv.groups[0].n_blocks);
    swap_forge(e, forged, at, &head);
    for (i = 0, busy = true; busy && i < 1000; i++) CHECK(fg_step(e, 0, &busy) == FG_OK);
    CHECKF(!busy, "it makes no passes");
    while (fg_next_event(e, &event)) ends += event.type == FG_EVENT_END && event.finish == FG_FINISH_LENGTH;
    CHECK(ends == 3);
    engine_check_idle(e);
    fg_engine_free(e);
    model_sample_close(&m);
    free(forged);
    free(file.data);
    free(j);
}

/* What a saved request says to have computed stays with it and its samples: others with the same tokens compute them anew. */
static void test_swap_foreign(void) {
    model_spec spec = model_spec_tiny();
    model_sample m;
    fg_engine_desc d;
    fg_engine *e;
    trace_text file = {NULL, 0, 0};
    job *alone = (job *)calloc(1, sizeof(job)), *j = (job *)calloc(1, sizeof(job));
    fg__saved head;
    size_t at, i;
    model_sample_open(&m, &spec);
    d = engine_desc(m.model, fg_backend_null());
    d.block_tokens = 8;
    e = engine_new(&d);
    for (i = 0; i < 70; i++) alone->prompt[i] = 5 + (int32_t)i * 11 % 200;
    alone->desc.n_tokens = 70;
    alone->desc.max_tokens = 40;
    alone->desc.ignore_eos = true;
    *j = *alone;
    CHECK(job_submit(e, alone) == FG_OK);
    jobs_run(e);
    swap_save(e, j, 3, &file);
    fg_engine_free(e);
    memcpy(&head, file.data, sizeof(head));
    at = sizeof(head) + (size_t)head.n_tokens * sizeof(int32_t);
    for (i = at; i < file.length; i++) file.data[i] ^= 0x41;
    head.check = fg__saved_check(&head, (const int32_t *)(const void *)(file.data + sizeof(head)), file.data + at);
    memcpy(file.data, &head, sizeof(head));
    e = engine_new(&d);
    job_clear(j);
    job_point(j);
    j->desc.tokens = NULL;
    j->desc.n_tokens = (size_t)head.n_tokens;
    j->desc.saved = file.data;
    j->desc.n_saved = file.length;
    j->desc.n = 2;
    CHECKF(fg_submit(e, &j->desc, &j->handle) == FG_OK, "%s", fg_last_error());
    jobs_run(e);
    job_check_ends(j);
    CHECK(j->n_cached == head.n_computed && memcmp(j->samples[0].tokens, alone->samples[0].tokens + 3, 10 * sizeof(int32_t)) != 0);
    *j = *alone;
    job_clear(j);
    CHECK(job_submit(e, j) == FG_OK);
    jobs_run(e);
    CHECKF(j->n_cached == 0 && job_same(j, alone), "%d tokens from the cache", j->n_cached);
    job_clear(j);
    CHECK(job_submit(e, j) == FG_OK);
    jobs_run(e);
    CHECKF(j->n_cached == 64 && job_same(j, alone), "%d tokens from the cache", j->n_cached);
    engine_check_idle(e);
    fg_engine_free(e);
    model_sample_close(&m);
    free(file.data);
    free(alone);
    free(j);
}

/* Every byte of a saved request counts, and it fits only where it came from. */
static void test_swap_damaged(void) {
    model_spec spec = model_spec_tiny(), other_spec = model_spec_tiny();
    model_sample m, other;
    fg_engine_desc d;
    fg_engine *e;
    trace_text file = {NULL, 0, 0};
    fg_request_desc r;
    fg_request handle;
    job j;
    size_t i, step;
    memset(&j, 0, sizeof(j));
    memset(&r, 0, sizeof(r));
    other_spec.n_layers++;
    model_sample_open(&m, &spec);
    model_sample_open(&other, &other_spec);
    for (i = 0; i < 30; i++) j.prompt[i] = 5 + (int32_t)i;
    j.desc.n_tokens = 30;
    j.desc.max_tokens = 20;
    j.desc.ignore_eos = true;
    d = engine_desc(m.model, fg_backend_null());
    e = engine_new(&d);
    swap_save(e, &j, 5, &file);
    r.saved = file.data;
    r.n_saved = file.length;
    step = file.length > 600 ? file.length / 500 : 1;
    for (i = 0; i < file.length; i += i < sizeof(fg__saved) ? 1 : step) {
        file.data[i] ^= 0x41;
        CHECKF(fg_submit(e, &r, &handle) != FG_OK, "byte %d", (int)i);
        file.data[i] ^= 0x41;
    }
    for (i = 0; i < file.length; i += step) {
        r.n_saved = i;
        CHECK(fg_submit(e, &r, &handle) == FG_ERROR_BAD_FILE);
    }
    r.n_saved = file.length;
    r.tokens = j.prompt;
    r.n_tokens = 3;
    CHECK(fg_submit(e, &r, &handle) == FG_ERROR_INVALID_ARGUMENT);
    r.tokens = NULL;
    CHECK(fg_submit(e, &r, &handle) == FG_OK && fg_cancel(e, handle) == FG_OK);
    while (fg_step(e, 0, NULL) == FG_OK && e->work) {}
    engine_check_idle(e);
    fg_engine_free(e);
    d.block_tokens = 4;
    e = engine_new(&d);
    CHECK(fg_submit(e, &r, &handle) == FG_ERROR_INVALID_ARGUMENT && strstr(fg_last_error(), "block size"));
    fg_engine_free(e);
    d.block_tokens = 0;
    d.model = other.model;
    e = engine_new(&d);
    CHECK(fg_submit(e, &r, &handle) == FG_ERROR_INVALID_ARGUMENT && strstr(fg_last_error(), "another model"));
    fg_engine_free(e);
    free(file.data);
    model_sample_close(&m);
    model_sample_close(&other);
}

static void run_swap_tests(void) {
    RUN(test_swap_null);
    RUN(test_swap_cpu);
    RUN(test_swap_chooses);
    RUN(test_swap_continue);
    RUN(test_swap_text);
    RUN(test_swap_stop);
    RUN(test_swap_forged);
    RUN(test_swap_foreign);
    RUN(test_swap_damaged);
}
