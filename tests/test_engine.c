/* The engine through its public functions: over the null backend, whose outputs show every mistake with blocks and tables;
   over the CPU, where a request's logits must have the same bits whatever happens around it; and the interface itself. */
#include "model_sample.h"
#include "test_alloc.h"

/* ---- jobs: requests, and what came of them */

enum { JOB_SAMPLES = 4, JOB_TOKENS = 192 };

typedef struct job_sample {
    int32_t tokens[JOB_TOKENS];
    float logprobs[JOB_TOKENS];
    int n_tokens, n_ends;
    fg_finish finish;
    fg_result result;
    char text[JOB_TOKENS * 8];
    size_t text_length;
} job_sample;

/* Logits of every sampled or reported row: [samples][positions][n_vocab]. */
typedef struct job_rows {
    float *rows;
    int n_positions, n_vocab;
    bool wrong;
} job_rows;

typedef struct job {
    fg_request_desc desc;
    int32_t prompt[JOB_TOKENS];
    char stop_text[2][8];
    const char *stop[2];
    int32_t stop_token;
    fg_logit_bias bias;
    fg_request handle;
    bool submitted, cancelled;
    /* what came */
    job_sample samples[JOB_SAMPLES];
    int n_ends, n_prompt_events, n_cached, n_preemptions, n_generated;
    bool wrong; /* events that made no sense */
    fg_finish finish;
    fg_result result;
    fg_times times;
    job_rows rows;
} job;

static void job_clear(job *j) {
    memset(j->samples, 0, sizeof(j->samples));
    j->submitted = j->cancelled = j->wrong = false;
    j->n_ends = j->n_prompt_events = j->n_cached = j->n_preemptions = j->n_generated = 0;
    j->finish = FG_FINISH_NONE;
    j->result = FG_OK;
}

static int job_n(const job *j) { return j->desc.n ? j->desc.n : 1; }

/* Lays the job's lists into its description; again whenever the job was copied. */
static void job_point(job *j) {
    j->desc.tokens = j->prompt;
    j->desc.stop = j->desc.n_stop ? j->stop : NULL;
    j->stop[0] = j->stop_text[0];
    j->stop[1] = j->stop_text[1];
    j->desc.stop_tokens = j->desc.n_stop_tokens ? &j->stop_token : NULL;
    j->desc.sampling.logit_bias = j->desc.sampling.n_logit_bias ? &j->bias : NULL;
    j->desc.user = j;
}

static fg_result job_submit(fg_engine *e, job *j) {
    fg_result r;
    job_point(j);
    r = fg_submit(e, &j->desc, &j->handle);
    j->submitted = r == FG_OK;
    return r;
}

static void job_event_token(job *j, const fg_event *event) {
    job_sample *s = &j->samples[event->sample];
    if (s->n_ends || event->position != (int)j->desc.n_tokens + s->n_tokens || s->n_tokens >= JOB_TOKENS) {
        j->wrong = true;
        return;
    }
    s->logprobs[s->n_tokens] = event->logprob;
    s->tokens[s->n_tokens++] = event->token;
}

static void job_event(job *j, const fg_event *event) {
    job_sample *s = &j->samples[event->sample];
    if (event->request.id != j->handle.id || j->n_ends || strlen(event->text) > event->text_length) j->wrong = true;
    if (event->text_length && s->text_length + event->text_length < sizeof(s->text)) {
        memcpy(s->text + s->text_length, event->text, event->text_length);
        s->text_length += event->text_length;
    }
    if (event->type == FG_EVENT_TOKEN) {
        job_event_token(j, event);
    } else if (event->type == FG_EVENT_PROMPT) {
        if (event->position != ++j->n_prompt_events || event->token != j->prompt[event->position]) j->wrong = true;
    } else if (event->type == FG_EVENT_SAMPLE_END) {
        s->n_ends++;
        s->finish = event->finish;
        s->result = event->result;
        if (event->n_generated != s->n_tokens) j->wrong = true;
    } else {
        j->n_ends++;
        j->n_cached = event->n_cached;
        j->n_preemptions = event->n_preemptions;
        j->n_generated = event->n_generated;
        j->finish = event->finish;
        j->result = event->result;
        j->times = event->times;
    }
}

/* Hands all events to their jobs. */
static void jobs_take(fg_engine *e) {
    fg_event event;
    while (fg_next_event(e, &event)) {
        if (event.user) job_event((job *)event.user, &event);
        else CHECK(false);
    }
}

static void jobs_run(fg_engine *e) {
    bool busy = true;
    int passes = 0;
    while (busy && passes++ < 100000) {
        CHECK(fg_step(e, 0, &busy) == FG_OK);
        jobs_take(e);
    }
    CHECKF(!busy, "still busy after %d passes", passes);
}

/* The engine is idle, and all its blocks are free or cached. */
static void engine_check_idle(fg_engine *e) {
    fg_stats stats;
    int g;
    fg_get_stats(e, &stats);
    CHECK(stats.n_running == 0 && stats.n_waiting == 0 && stats.blocks_used == 0 && stats.n_submitted == stats.n_finished);
    for (g = 0; g < e->kv.n_groups; g++) CHECK(fg__kv_available(&e->kv.groups[g]) == e->kv.groups[g].n_blocks);
    for (g = 0; e->draft && g < e->draft->kv.n_groups; g++) CHECK(e->draft->kv.groups[g].n_free == e->draft->kv.groups[g].n_blocks);
}

/* A job that ended well has one end for the request and one for each sample. */
static void job_check_ends(const job *j) {
    int i, sum = 0;
    CHECK(!j->wrong && j->n_ends == 1);
    for (i = 0; i < job_n(j); i++) {
        CHECK(j->samples[i].n_ends == 1);
        sum += j->samples[i].n_tokens;
    }
    CHECK(sum == j->n_generated);
}

/* `j` is as it was when it ran alone; when it was cut short, as far as it came. */
static bool job_same(const job *j, const job *alone) {
    int i;
    for (i = 0; i < job_n(j); i++) {
        const job_sample *a = &alone->samples[i], *b = &j->samples[i];
        bool cut = b->finish == FG_FINISH_CANCELLED || b->finish == FG_FINISH_ERROR;
        if (cut && (j->desc.best_of > job_n(j) || j->desc.n_beams) && b->n_tokens) return false; /* nothing is given out before the end */
        if (cut ? b->n_tokens > a->n_tokens : b->n_tokens != a->n_tokens) return false;
        if (memcmp(a->tokens, b->tokens, (size_t)b->n_tokens * sizeof(int32_t)) != 0) return false;
        if (cut ? b->text_length > a->text_length : b->text_length != a->text_length) return false;
        if (memcmp(a->text, b->text, b->text_length) != 0) return false;
        if (!cut && a->finish != b->finish) return false;
    }
    return true;
}

/* ---- random jobs over the null backend */

static const void *engine_options; /* of the backend, while a test sets them */
static int engine_token_budget;

/* Set by test_split.c: where engines have their layers and cache, and what stands for another device than the CPU. */
static int engine_gpu_layers;
static const char *engine_kv_device, *engine_experts_device;
static const fg_backend *engine_other;

static fg_engine_desc engine_desc(fg_model *model, const fg_backend *backend) {
    fg_engine_desc d;
    memset(&d, 0, sizeof(d));
    d.model = model;
    d.backend_options = engine_options;
    d.token_budget = engine_token_budget;
    d.backends[0] = engine_other && (!backend || backend == fg_backend_cpu() || strcmp(backend->name, engine_other->name) == 0) ? engine_other : backend;
    d.n_threads = 1;
    if (backend != fg_backend_null()) d.gpu_layers = engine_gpu_layers, d.kv_device = engine_kv_device, d.experts_device = engine_experts_device;
    return d;
}

static fg_engine *engine_new(const fg_engine_desc *d) {
    fg_engine *e = NULL;
    CHECKF(fg_engine_create(d, &e) == FG_OK, "%s", fg_last_error());
    return e;
}

static int job_below(uint64_t *random, int n) { return (int)(test_random(random) % (uint64_t)n); }

/* Prompts are the starts of a few documents and some tokens of their own. Temperatures and stops of all kinds. */
static void job_random(job *j, uint64_t *random, int most_prompt, int most_tokens) {
    int n = 1 + job_below(random, job_below(random, 3) ? 20 : most_prompt), document = job_below(random, 4), i;
    int leave = job_below(random, n + 1), n_vocab = model_n_vocab();
    memset(j, 0, sizeof(*j));
    for (i = 0; i < n; i++) j->prompt[i] = i < leave ? 4 + (document * 31 + i * 7) % 250 : job_below(random, n_vocab);
    j->desc.n_tokens = (size_t)n;
    j->desc.max_tokens = job_below(random, 20) ? 1 + job_below(random, most_tokens) : -1;
    j->desc.n = job_below(random, 4) ? 0 : 1 + job_below(random, JOB_SAMPLES);
    j->desc.priority = job_below(random, 5) - 2;
    j->desc.prompt_logprobs = job_below(random, 10) == 0;
    j->desc.logprobs = job_below(random, 4) == 0;
    j->desc.top_logprobs = job_below(random, 6) ? 0 : 3;
    j->desc.min_tokens = job_below(random, 6) ? 0 : job_below(random, 10);
    j->desc.ignore_eos = job_below(random, 2) == 0;
    j->desc.sampling.temperature = job_below(random, 2) ? 1.0f : 0.0f;
    j->desc.sampling.seed = test_random(random);
    j->desc.sampling.n_logit_bias = job_below(random, 8) == 0;
    j->bias.token = job_below(random, n_vocab);
    j->bias.bias = job_below(random, 2) ? 3.0f : 30.0f; /* 30: nothing but this token, which guesses foresee */
    j->desc.n_draft = job_below(random, 3) ? 0 : 1 + job_below(random, 16);
    j->desc.n_stop_tokens = job_below(random, 4) == 0;
    j->stop_token = job_below(random, n_vocab);
    j->desc.n_stop = job_below(random, 3) ? 0 : 2;
    if (job_below(random, 8) == 0) { /* samples that compete */
        j->desc.n = j->desc.n ? j->desc.n : 1;
        j->desc.best_of = j->desc.n + job_below(random, 4);
    } else if (job_below(random, 8) == 0) {
        j->desc.n_beams = (j->desc.n ? j->desc.n : 1) + job_below(random, 3);
        j->desc.length_penalty = 0.5f * (float)job_below(random, 4);
        j->desc.n_stop = j->desc.n_draft = j->desc.top_logprobs = j->desc.sampling.n_logit_bias = 0;
        j->desc.prompt_logprobs = false;
        if (j->desc.max_tokens < 0) j->desc.max_tokens = 1;
    }
    for (i = 0; i < 2; i++) snprintf(j->stop_text[i], sizeof(j->stop_text[i]), "%c", 'a' + job_below(random, 26));
    if (job_below(random, 2)) snprintf(j->stop_text[1], sizeof(j->stop_text[1]), "h%c", 'a' + job_below(random, 26));
}

/* Runs every job alone, each in an engine of its own. */
static void jobs_alone_on(fg_model *model, const fg_backend *backend, job *jobs, int n) {
    fg_engine_desc d = engine_desc(model, backend);
    int i;
    for (i = 0; i < n; i++) {
        fg_engine *e = engine_new(&d);
        int n_draft = jobs[i].desc.n_draft;
        if (!e) return;
        jobs[i].desc.n_draft = 0;
        CHECKF(job_submit(e, &jobs[i]) == FG_OK, "%s", fg_last_error());
        jobs_run(e);
        jobs[i].desc.n_draft = n_draft;
        job_check_ends(&jobs[i]);
        fg_engine_free(e);
    }
}

static void jobs_alone(fg_model *model, job *jobs, int n) { jobs_alone_on(model, fg_backend_null(), jobs, n); }

/* No block is free or another's that a pass in flight writes to. */
static void engine_check_flights(const fg_engine *e) {
    unsigned k;
    int g, i, t;
    for (k = e->n_landed; k != e->n_launched; k++) {
        const fg__flight *f = &e->flights[k & 1];
        for (g = 0; g < e->kv.n_groups; g++)
            for (i = 0; i < f->n_entries; i++)
                for (t = f->cu_q[i]; t < f->cu_q[i + 1]; t++) {
                    const fg__seq *seq = &f->entries[i].sequence->seq;
                    int32_t entry = f->positions[t] >> e->kv.shift;
                    int32_t block = e->kv.groups[g].state ? f->tables[g][i * e->graph.max_blocks_per_seq + entry] : f->slots[g][t] / e->kv.block_tokens;
                    if (block < 0 && e->kv.groups[g].state && t + 1 < f->cu_q[i + 1]) continue; /* a state that is not kept */
                    bool own = entry < seq->kv.n_blocks && (seq->kv.tables[g][entry] == block || entry < seq->kv.first_live[g]);
                    CHECK(own && (entry < seq->kv.first_live[g] || e->kv.groups[g].blocks[block].refs > 0));
                }
    }
}

/* Submits and cancels at random while stepping, until all are done; compares each with its run alone. */
static void jobs_storm(const fg_engine_desc *d, const job *alone, int n, uint64_t *random) {
    job *jobs = (job *)malloc((size_t)n * sizeof(job));
    fg_engine *e = engine_new(d);
    int next = 0, i, passes = 0, same = 0, n_cancels = 0;
    bool busy = false;
    memcpy(jobs, alone, (size_t)n * sizeof(job));
    for (i = 0; i < n; i++) job_clear(&jobs[i]);
    while (e && (next < n || busy) && passes++ < 200000) {
        for (i = job_below(random, 4); i > 0 && next < n; i--) CHECK(job_submit(e, &jobs[next++]) == FG_OK);
        if (next && job_below(random, 25) == 0 && n_cancels++ < n / 3) { /* on a slow device steps are many, and the others have to meet */
            job *j = &jobs[job_below(random, next)];
            fg_result r = fg_cancel(e, j->handle);
            CHECK(r == (j->n_ends ? FG_ERROR_NOT_FOUND : FG_OK));
            if (r == FG_OK) j->cancelled = true;
        }
        if (job_below(random, 200) == 0) fg_clear_prefix_cache(e);
        CHECK(fg_step(e, job_below(random, 8) ? 0 : 0.003 * job_below(random, 10), &busy) == FG_OK);
        jobs_take(e);
        engine_check_flights(e);
    }
    for (i = 0; e && i < n; i++) {
        job_check_ends(&jobs[i]);
        CHECK(jobs[i].finish != FG_FINISH_ERROR && (jobs[i].cancelled || jobs[i].finish != FG_FINISH_CANCELLED));
        same += job_same(&jobs[i], &alone[i]);
        CHECK(fg_cancel(e, jobs[i].handle) == FG_ERROR_NOT_FOUND);
    }
    CHECKF(same == n, "async %d, policy %d, %d KV tokens, budget %d: %d of %d as alone", (int)d->async, (int)d->policy, d->kv_tokens, d->token_budget, same, n);
    if (e) engine_check_idle(e);
    fg_engine_free(e);
    free(jobs);
}

static void engine_null_storm(const model_spec *spec, uint64_t seed, int n) {
    static const struct { int kv_tokens, budget, max_seqs, block_tokens; bool no_cache; } configs[] = {
        {224, 16, 8, 8, false}, {224, 64, 32, 16, true}, {256, 5, 4, 4, false}, {2048, 100, 16, 32, false}};
    model_sample m;
    job *alone = (job *)malloc((size_t)n * sizeof(job));
    uint64_t random = seed;
    int policy, c, i;
    model_sample_open(&m, spec);
    for (i = 0; i < n; i++) job_random(&alone[i], &random, 150, 40);
    jobs_alone(m.model, alone, n);
    for (policy = FG_POLICY_SPLITFUSE; policy <= FG_POLICY_STATIC; policy++)
        for (c = 0; c < 4; c++) {
            fg_allocator allocator = test_allocator(0);
            fg_engine_desc d = engine_desc(m.model, fg_backend_null());
            d.policy = (fg_policy)policy;
            d.kv_tokens = configs[c].kv_tokens;
            d.token_budget = configs[c].budget;
            d.max_seqs = configs[c].max_seqs;
            d.block_tokens = configs[c].block_tokens;
            d.no_prefix_cache = configs[c].no_cache;
            d.max_context = 192;
            d.priority_head_start = 1 + 20 * c;
            d.allocator = &allocator;
            jobs_storm(&d, alone, n, &random);
            CHECK(test_alloc_live() == 0);
        }
    model_sample_close(&m);
    free(alone);
}

static void test_engine_null_full(void) {
    model_spec spec = model_spec_tiny();
    engine_null_storm(&spec, 11, 150);
}

static void test_engine_null_window(void) {
    model_spec spec = model_spec_tiny();
    spec.window = 20;
    engine_null_storm(&spec, 12, 100);
}

static void test_engine_null_mixed(void) {
    model_spec spec = model_spec_tiny();
    spec.window = 9;
    spec.full_every = 2;
    engine_null_storm(&spec, 13, 150);
}

/* Recurrent layers, whose states are few. */
static void test_engine_null_state(void) {
    model_spec spec = model_spec_tiny();
    spec.arch = "qwen35";
    engine_null_storm(&spec, 14, 150);
}

/* ---- the invariant on the CPU: identical bits */

static void job_keep_row(void *user, int sample, int position, const int32_t *tokens, float *logits, int n_vocab) {
    job_rows *r = (job_rows *)user;
    (void)tokens;
    if (sample >= JOB_SAMPLES || position >= r->n_positions || n_vocab != r->n_vocab) {
        r->wrong = true;
        return;
    }
    memcpy(r->rows + ((size_t)sample * (size_t)r->n_positions + (size_t)position) * (size_t)n_vocab, logits, (size_t)n_vocab * sizeof(float));
}

enum { BITS_JOBS = 32, BITS_POSITIONS = 64 };

static size_t job_rows_bytes(const job_rows *r) {
    return (size_t)JOB_SAMPLES * (size_t)r->n_positions * (size_t)r->n_vocab * sizeof(float);
}

static void job_keep(job *j) {
    j->rows.n_positions = BITS_POSITIONS;
    j->rows.n_vocab = model_n_vocab();
    j->rows.wrong = false;
    j->rows.rows = (float *)calloc(1, job_rows_bytes(&j->rows));
    j->desc.n_beams = j->desc.best_of = 0; /* whose samples change places, or are more than we have room for */
    j->desc.on_logits = job_keep_row;
    j->desc.on_logits_user = &j->rows;
}

typedef struct bits_config {
    const char *name;
    int batch, budget, n_threads, kv_tokens, block_tokens;
    bool warm, preempt;
    fg_policy policy;
} bits_config;

static const bits_config bits_configs[] = {
    {"batch of 2", 2, 0, 1, 0, 0, false, false, FG_POLICY_SPLITFUSE},
    {"batch of 5", 5, 0, 1, 0, 0, false, false, FG_POLICY_SPLITFUSE},
    {"batch of 16", 16, 0, 2, 0, 0, false, false, FG_POLICY_ORCA},
    {"batch of 32", 32, 0, 1, 0, 0, false, false, FG_POLICY_SPLITFUSE},
    {"chunks of 1", 3, 1, 1, 0, 0, false, false, FG_POLICY_SPLITFUSE},
    {"chunks of 7", 8, 7, 1, 0, 0, false, false, FG_POLICY_SPLITFUSE},
    {"chunks of 32", 32, 32, 3, 0, 0, false, false, FG_POLICY_SPLITFUSE},
    {"chunks of 100", 32, 100, 4, 0, 0, false, false, FG_POLICY_SPLITFUSE},
    {"warm prefixes", 16, 0, 1, 0, 0, true, false, FG_POLICY_SPLITFUSE},
    {"preempted at every step", 6, 0, 1, 0, 0, false, true, FG_POLICY_SPLITFUSE},
    {"a pool for one", 16, 20, 2, 64, 0, false, false, FG_POLICY_SPLITFUSE},
    {"a pool for one, prompts first", 16, 0, 1, 64, 0, false, false, FG_POLICY_PREFILL_FIRST},
    {"small blocks", 8, 50, 1, 128, 16, false, false, FG_POLICY_STATIC},
};

/* Runs jobs first .. first+n-1 together in `e`. */
static void bits_batch(fg_engine *e, const bits_config *c, job *jobs, int n) {
    bool busy = true;
    int i;
    for (i = 0; i < n; i++) CHECK(job_submit(e, &jobs[i]) == FG_OK);
    while (busy) {
        CHECK(fg_step(e, 0, &busy) == FG_OK);
        jobs_take(e);
        while (c->preempt && e->sched.running.count) fg__sched_preempt(&e->sched, e->sched.running.items[e->sched.running.count - 1]);
    }
}

static fg_engine *bits_engine(fg_model *model, const char *path, const bits_config *c) {
    fg_engine_desc d = engine_desc(model, cpu_is_gpu(path) ? cpu_backend_of(path) : NULL);
    d.cpu_path = cpu_is_gpu(path) ? NULL : path;
    d.backend_options = cpu_gpu_options(path);
    d.device = cpu_gpu_device(path);
    d.n_threads = c->n_threads;
    d.token_budget = c->budget;
    d.kv_tokens = c->kv_tokens;
    d.block_tokens = c->block_tokens ? c->block_tokens : cpu_is_gpu(path) && !cpu_is_vulkan(path) ? 16 : 0;
    d.policy = c->policy;
    d.max_seqs = 32;
    d.no_prefix_cache = c->preempt; /* so that all is computed again */
    d.max_context = 64;
    return engine_new(&d);
}

/* Whether a job has the results that it has alone: the same bits, or, on another device, the same tokens and nearly the
   same logits. */
static bool bits_are(const job *a, const job *b, bool nearly) {
    size_t i, n = job_rows_bytes(&b->rows) / sizeof(float);
    if (!job_same(a, b) || a->rows.wrong) return false;
    if (!nearly)
        return memcmp(a->rows.rows, b->rows.rows, n * sizeof(float)) == 0 &&
               memcmp(a->samples[0].logprobs, b->samples[0].logprobs, sizeof(b->samples[0].logprobs)) == 0;
    for (i = 0; i < n; i++)
        if (!(fabsf(a->rows.rows[i] - b->rows.rows[i]) < 2e-4f * (1 + fabsf(b->rows.rows[i])))) return false;
    return true;
}

/* All jobs under a configuration, compared with their runs alone. */
static void bits_run(fg_model *model, const char *path, const bits_config *c, const job *alone, int n) {
    fg_engine *e = bits_engine(model, path, c);
    job *jobs = (job *)malloc((size_t)n * sizeof(job));
    int i, same = 0, preempted = 0, cached = 0;
    memcpy(jobs, alone, (size_t)n * sizeof(job));
    for (i = 0; i < n; i++) {
        job_clear(&jobs[i]);
        job_keep(&jobs[i]);
    }
    for (i = 0; e && c->warm && i < n; i += c->batch) bits_batch(e, c, jobs + i, FG__MIN(c->batch, n - i));
    for (i = 0; i < n; i++) job_clear(&jobs[i]);
    for (i = 0; e && i < n; i += c->batch) bits_batch(e, c, jobs + i, FG__MIN(c->batch, n - i));
    for (i = 0; e && i < n; i++) {
        job_check_ends(&jobs[i]);
        same += bits_are(&jobs[i], &alone[i], cpu_is_vulkan(path));
        preempted += jobs[i].n_preemptions;
        cached += jobs[i].n_cached;
    }
    /* another device may let one sampled token fall on the other side of a border */
    CHECKF(same >= n - cpu_is_vulkan(path), "%s, path %s: %d of %d have the results they have alone", c->name, path, same, n);
    if (c->preempt || c->kv_tokens == 64) CHECKF(preempted > (n < BITS_JOBS && !c->preempt ? 0 : 5), "%s: %d preemptions", c->name, preempted);
    if (c->warm) CHECKF(cached > n, "%s: %d cached tokens", c->name, cached);
    for (i = 0; i < n; i++) free(jobs[i].rows.rows);
    if (e) engine_check_idle(e);
    fg_engine_free(e);
    free(jobs);
}

static void bits_jobs(job *jobs, uint64_t seed) {
    int i;
    for (i = 0; i < BITS_JOBS; i++) {
        job_random(&jobs[i], &seed, 50, 10);
        jobs[i].desc.max_tokens = FG__MAX(jobs[i].desc.max_tokens, 1);
        jobs[i].desc.logprobs = true;
        jobs[i].desc.prompt_logprobs = i % 3 == 0;
        jobs[i].desc.n = i % 5 == 0 ? 3 : 0;
        if (i == 7) jobs[i].desc.n_tokens = 50; /* one fills the pool for one */
        if (i == 7) jobs[i].desc.max_tokens = 13;
        if (i == 7) jobs[i].desc.n_stop = jobs[i].desc.n_stop_tokens = 0;
        job_keep(&jobs[i]);
    }
}

static bool bits_has_path(fg_model *model, const char *path) {
    fg_engine_desc d = engine_desc(model, NULL);
    fg_engine *e = NULL;
    fg_result r;
    d.cpu_path = path;
    d.max_context = 64;
    d.kv_tokens = 64;
    r = fg_engine_create(&d, &e);
    CHECKF(r == FG_OK || (r == FG_ERROR_UNSUPPORTED && strcmp(path, "scalar") != 0), "path %s: %s", path, fg_last_error());
    fg_engine_free(e);
    return r == FG_OK;
}

static void bits_path(fg_model *model, const char *path) {
    static const bits_config one = {"alone", 1, 0, 1, 0, 0, false, false, FG_POLICY_SPLITFUSE};
    job *jobs = (job *)malloc(BITS_JOBS * sizeof(job));
    size_t c;
    int i;
    if (bits_has_path(model, path)) {
        bits_jobs(jobs, 99);
        for (i = 0; i < BITS_JOBS; i++) {
            fg_engine *e = bits_engine(model, path, &one);
            if (e) bits_batch(e, &one, &jobs[i], 1);
            job_check_ends(&jobs[i]);
            fg_engine_free(e);
        }
        for (c = 0; c < sizeof(bits_configs) / sizeof(bits_configs[0]); c++)
            bits_run(model, path, &bits_configs[c], jobs, bits_configs[c].preempt ? 6 : BITS_JOBS);
        for (i = 0; i < BITS_JOBS; i++) free(jobs[i].rows.rows);
    }
    free(jobs);
}

/* Jobs alone on one path against the same under configurations on another: batches, chunks, cached prefixes, copies on write,
   preemption. Every `step`th of them, for so many jobs. */
static void bits_gpu_of(const model_spec *spec, const char *alone, const char *path, size_t step, int n) {
    static const bits_config one = {"alone", 1, 0, 1, 0, 0, false, false, FG_POLICY_SPLITFUSE};
    model_sample m;
    job *jobs;
    size_t c;
    int i;
    model_sample_open(&m, spec);
    jobs = (job *)malloc(BITS_JOBS * sizeof(job));
    bits_jobs(jobs, 99);
    for (i = 0; m.model && i < n; i++) {
        fg_engine *e = bits_engine(m.model, alone, &one);
        if (e) bits_batch(e, &one, &jobs[i], 1);
        job_check_ends(&jobs[i]);
        fg_engine_free(e);
    }
    for (c = 0; m.model && c < sizeof(bits_configs) / sizeof(bits_configs[0]); c += step)
        bits_run(m.model, path, &bits_configs[c], jobs, bits_configs[c].preempt ? FG__MIN(n, 6) : n);
    for (i = 0; i < BITS_JOBS; i++) free(jobs[i].rows.rows);
    free(jobs);
    model_sample_close(&m);
}

static void bits_gpu(const char *alone, const char *path, size_t step, int n) {
    model_spec spec = model_spec_tiny();
    bits_gpu_of(&spec, alone, path, step, n);
}

/* With experts, their biases, sinks, and a layer with a window. */
static model_spec bits_experts(void) {
    model_spec spec = model_spec_tiny();
    spec.arch = "gpt-oss";
    spec.n_layers = 2;
    spec.n_experts = 8;
    spec.n_used = 3;
    spec.n_ff = 64;
    spec.window = 11;
    return spec;
}

/* Recurrent layers beside attention with gates, experts and a shared one. */
static model_spec bits_states(void) {
    model_spec spec = model_spec_tiny();
    spec.arch = "qwen35moe";
    spec.n_experts = 4;
    spec.n_used = 2;
    return spec;
}

static void test_vulkan_engine(void) {
    if (!cpu_vulkan_device(0)) SKIP("there is no Vulkan device");
    bits_gpu("scalar", "vulkan", 1, BITS_JOBS);
}

/* The same bits alone and in any batch, chunk, with prefixes from the cache, set back and resumed. */
static void test_vulkan_engine_invariant(void) {
    if (!cpu_vulkan_device(0)) SKIP("there is no Vulkan device");
    bits_gpu("vulkan-invariant", "vulkan-invariant", 3, 6);
}

/* With sinks and experts, of which a token takes some of the others' workgroups, or tiles with them. */
static void test_vulkan_engine_experts(void) {
    model_spec spec = bits_experts();
    if (!cpu_vulkan_device(0)) SKIP("there is no Vulkan device");
    spec.type = FG_TYPE_Q8_0;
    bits_gpu_of(&spec, "vulkan-invariant", "vulkan-invariant", 6, 5);
}

/* With recurrent layers. */
static void test_vulkan_engine_states(void) {
    model_spec spec = bits_states();
    if (!cpu_vulkan_device(0)) SKIP("there is no Vulkan device");
    bits_gpu_of(&spec, "vulkan-invariant", "vulkan-invariant", 6, 5);
}

static void bits_model(const model_spec *spec) {
    static const char *const paths[] = {"scalar", "avx2", "avx512", "amx", "neon"};
    model_sample m;
    size_t p;
    model_sample_open(&m, spec);
    for (p = 0; m.model && p < sizeof(paths) / sizeof(paths[0]); p++) bits_path(m.model, paths[p]);
    model_sample_close(&m);
}

static void test_engine_bits_f32(void) {
    model_spec spec = model_spec_tiny();
    bits_model(&spec);
}

static void test_engine_bits_q8_window(void) {
    model_spec spec = model_spec_tiny();
    spec.type = FG_TYPE_Q8_0;
    spec.window = 11;
    spec.full_every = 2;
    bits_model(&spec);
}

/* Norms after attention and feed-forward, whose results the next norm adds; two ropes, two cache groups. */
static void test_engine_bits_gemma3(void) {
    model_spec spec = model_spec_tiny();
    spec.arch = "gemma3";
    spec.type = FG_TYPE_Q8_0;
    spec.n_layers = 3;
    spec.window = 11;
    spec.full_every = 3;
    spec.tied = 1;
    bits_model(&spec);
}

/* Experts: which a token takes, and what they give, does not depend on the tokens beside it. */
static void test_engine_bits_experts(void) {
    model_spec spec = model_spec_tiny();
    spec.arch = "qwen3moe";
    spec.n_layers = 1;
    spec.n_experts = 8;
    spec.n_used = 3;
    spec.n_ff = 72; /* no whole number of panels */
    bits_model(&spec);
    spec = bits_experts();
    spec.type = FG_TYPE_Q8_0;
    bits_model(&spec);
}

/* Recurrent layers beside attention with gates, a shared expert. */
static void test_engine_bits_state(void) {
    model_spec spec = model_spec_tiny();
    spec.arch = "qwen35";
    spec.n_layers = 4;
    spec.type = FG_TYPE_Q8_0;
    bits_model(&spec);
    spec.arch = "qwen3next";
    spec.n_layers = 2;
    spec.n_experts = 4;
    spec.n_used = 2;
    spec.type = FG_TYPE_F32;
    bits_model(&spec);
}

/* Where activations are BF16, too: in pairs or in tiles. */
static void test_engine_bits_bf16(void) {
    model_spec spec = model_spec_tiny();
    spec.type = FG_TYPE_BF16;
    bits_model(&spec);
}

static void test_engine_bits_q4k(void) {
    model_spec spec = model_spec_tiny();
    spec.arch = "qwen3";
    spec.type = FG_TYPE_Q4_K;
    spec.n_layers = 1;
    spec.n_embd = spec.n_ff = 256;
    spec.n_heads = 8;
    spec.head_dim = 32;
    spec.tied = 1;
    bits_model(&spec);
}

/* Makes values of the first layer that halves do not hold of whatever has token 255 in it, and of nothing else. */
static void bound_model(model_sample *m) {
    fg_tensor t;
    int i, row;
    for (i = 0; fg_model_tensor(m->model, i, &t) == FG_OK; i++) {
        float *x = (float *)t.data; /* in the file */
        if (strcmp(t.name, "blk.0.attn_norm.weight") == 0) x[5] *= 1e7f;
        for (row = 0; row < t.dims[1] && strcmp(t.name, "token_embd.weight") == 0; row++) x[row * t.dims[0] + 5] = row == 255;
    }
}

/* A request whose values the cache does not hold leaves the blocks before them, which others find by their tokens, as they are. */
static void bound_path(fg_model *model, const char *path, fg_type type) {
    static job jobs[3];
    fg_engine_desc d = engine_desc(model, NULL);
    fg_engine *e;
    int i, k;
    d.cpu_path = path;
    d.kv_type = type;
    d.block_tokens = 16;
    for (i = 0; i < 3; i++) { /* the last in the second one's engine */
        job *j = &jobs[i];
        memset(j, 0, sizeof(*j));
        for (k = 0; k < 32; k++) j->prompt[k] = i == 1 && k == 16 ? 255 : 10 + k * 7 % 40;
        j->desc.n_tokens = 32;
        j->desc.max_tokens = 8;
        j->desc.ignore_eos = j->desc.logprobs = true;
        if (i < 2) e = engine_new(&d);
        CHECK(job_submit(e, j) == FG_OK);
        jobs_run(e);
        if (i != 1) fg_engine_free(e);
    }
    CHECK(jobs[2].n_cached == 16);
    CHECKF(memcmp(jobs[0].samples, jobs[2].samples, sizeof(jobs[0].samples)) == 0, "%s, %s", path, fg_type_name(type));
}

static void test_engine_kv_bound(void) {
    model_spec spec = model_spec_tiny();
    const char *paths[FG__CPU_PATHS];
    int p, n_paths = cpu_paths(paths);
    model_sample m;
    spec.head_dim = 32;
    model_sample_open(&m, &spec);
    if (m.model) bound_model(&m);
    for (p = 0; m.model && p < n_paths; p++) {
        bound_path(m.model, paths[p], FG_TYPE_F16);
        bound_path(m.model, paths[p], FG_TYPE_Q8_0);
    }
    model_sample_close(&m);
}

/* Sample i of a request is what a request of its own with seed + i gives, to the bit. */
static void test_engine_bits_samples(void) {
    model_spec spec = model_spec_tiny();
    model_sample m;
    job *jobs = (job *)malloc((JOB_SAMPLES + 1) * sizeof(job));
    fg_engine_desc d;
    fg_engine *e;
    uint64_t random = 5;
    int i;
    model_sample_open(&m, &spec);
    d = engine_desc(m.model, NULL);
    d.max_seqs = 3; /* not all samples have a place at once */
    e = engine_new(&d);
    job_random(&jobs[0], &random, 40, 20);
    jobs[0].desc.n = JOB_SAMPLES;
    jobs[0].desc.max_tokens = 20;
    jobs[0].desc.prompt_logprobs = false;
    jobs[0].desc.sampling.temperature = 1.5f;
    for (i = JOB_SAMPLES; i >= 0; i--) {
        if (i) jobs[i] = jobs[0];
        if (i) jobs[i].desc.n = 1;
        if (i) jobs[i].desc.sampling.seed += (uint64_t)(i - 1);
        job_keep(&jobs[i]);
        if (e) CHECK(job_submit(e, &jobs[i]) == FG_OK);
    }
    if (e) jobs_run(e);
    for (i = 0; i < JOB_SAMPLES; i++) {
        const job_sample *a = &jobs[0].samples[i], *b = &jobs[i + 1].samples[0];
        size_t bytes = job_rows_bytes(&jobs[0].rows) / JOB_SAMPLES;
        CHECK(a->n_tokens == b->n_tokens && memcmp(a->tokens, b->tokens, sizeof(a->tokens)) == 0);
        CHECK(memcmp((char *)jobs[0].rows.rows + (size_t)i * bytes, jobs[i + 1].rows.rows, bytes) == 0);
    }
    CHECK(memcmp(jobs[0].samples[0].tokens, jobs[0].samples[1].tokens, sizeof(jobs[0].samples[0].tokens)) != 0);
    for (i = 0; i <= JOB_SAMPLES; i++) free(jobs[i].rows.rows);
    fg_engine_free(e);
    model_sample_close(&m);
    free(jobs);
}

/* ---- output: a hook that makes the model write what a test wants */

/* What is to come: text as byte tokens, or `tokens`. After its end: letter x. */
typedef struct api_script {
    const char *text;
    int length, n_prompt;
    const int32_t *tokens;
    int32_t also; /* second best everywhere; 0: none */
} api_script;

static void api_write(void *user, int sample, int position, const int32_t *tokens, float *logits, int n_vocab) {
    const api_script *s = (const api_script *)user;
    int i, at = position - s->n_prompt;
    (void)sample;
    (void)tokens;
    if (at < 0) return;
    for (i = 0; i < n_vocab; i++) logits[i] = 0;
    if (s->also) logits[s->also] = 40;
    if (at >= s->length) logits[4 + 'x'] = 50;
    else if (s->tokens) logits[s->tokens[at]] = 50;
    else logits[4 + (unsigned char)s->text[at]] = 50;
}

/* A small engine over the tiny model. */
typedef struct api {
    model_sample m;
    fg_engine *e;
    job j;
    api_script script;
    double clock;
    fg_null_options null_options;
} api;

static double api_clock(void *user) { return *(double *)user; }

static api *api_open_async(const fg_backend *backend, int max_context, fg_async async) {
    api *a = (api *)calloc(1, sizeof(api));
    model_spec spec = model_spec_tiny();
    fg_engine_desc d;
    model_sample_open(&a->m, &spec);
    d = engine_desc(a->m.model, backend);
    d.max_context = max_context;
    d.async = async;
    a->null_options.base = 0.01;
    a->null_options.per_token = 0.001;
    a->null_options.clock = &a->clock;
    d.backend_options = &a->null_options;
    if (backend) d.clock = api_clock;
    d.clock_user = &a->clock;
    a->e = engine_new(&d);
    return a;
}

static api *api_open(const fg_backend *backend, int max_context) { return api_open_async(backend, max_context, FG_ASYNC_OFF); }

static void api_close(api *a) {
    if (a->e) engine_check_idle(a->e);
    fg_engine_free(a->e);
    model_sample_close(&a->m);
    free(a);
}

/* A request of three tokens. */
static job *api_job(api *a) {
    memset(&a->j, 0, sizeof(a->j));
    memset(&a->script, 0, sizeof(a->script));
    a->j.prompt[0] = 1;
    a->j.prompt[1] = 4 + 'h';
    a->j.prompt[2] = 4 + 'i';
    a->j.desc.n_tokens = 3;
    a->j.desc.max_tokens = 8;
    return &a->j;
}

static void api_run(api *a) {
    CHECKF(job_submit(a->e, &a->j) == FG_OK, "%s", fg_last_error());
    jobs_run(a->e);
    job_check_ends(&a->j);
}

/* Lets the model write `length` bytes of text, with up to two stop strings; compares what comes out. */
static void api_text(api *a, const char *text, int length, const char *stop, const char *stop2, const char *expected,
                     int expected_length, int n_tokens, fg_finish finish) {
    job *j = &a->j;
    a->script.text = text;
    a->script.length = length;
    a->script.n_prompt = 3;
    j->desc.on_logits = api_write;
    j->desc.on_logits_user = &a->script;
    j->desc.n_stop = (stop != NULL) + (stop2 != NULL);
    snprintf(j->stop_text[0], sizeof(j->stop_text[0]), "%s", stop ? stop : "");
    snprintf(j->stop_text[1], sizeof(j->stop_text[1]), "%s", stop2 ? stop2 : "");
    api_run(a);
    CHECKF(j->samples[0].text_length == (size_t)expected_length && memcmp(j->samples[0].text, expected, (size_t)expected_length) == 0,
           "\"%s\" where \"%s\" was to come", j->samples[0].text, expected);
    CHECKF(j->samples[0].n_tokens == n_tokens, "%d tokens of \"%s\"", j->samples[0].n_tokens, text);
    CHECK(j->samples[0].finish == finish && j->finish == finish && j->result == FG_OK);
}

static void api_stop(api *a, const char *stop, const char *stop2, const char *expected, int n_tokens, fg_finish finish) {
    api_job(a)->desc.max_tokens = 11;
    api_text(a, "hello world", 11, stop, stop2, expected, (int)strlen(expected), n_tokens, finish);
}

static void test_engine_stop_strings(void) {
    api *a = api_open(fg_backend_null(), 64);
    api_stop(a, NULL, NULL, "hello world", 11, FG_FINISH_LENGTH);
    api_stop(a, "lo w", NULL, "hel", 7, FG_FINISH_STOP);
    api_stop(a, "h", NULL, "", 1, FG_FINISH_STOP);
    api_stop(a, "xyz", "orl", "hello w", 10, FG_FINISH_STOP);
    api_stop(a, "llo", "ell", "h", 4, FG_FINISH_STOP);
    api_stop(a, "lox", NULL, "hello world", 11, FG_FINISH_LENGTH); /* held back, then given */
    api_stop(a, "d!", NULL, "hello world", 11, FG_FINISH_LENGTH);  /* held back at the end */
    api_stop(a, "ld", "world!", "hello wor", 11, FG_FINISH_STOP);
    api_job(a)->desc.min_tokens = 5; /* an l before that does not stop */
    a->j.desc.max_tokens = 11;
    api_text(a, "hello world", 11, "l", NULL, "hello wor", 9, 10, FG_FINISH_STOP);
    api_job(a)->desc.min_tokens = 4; /* nor does one that a longer stop string holds back */
    a->j.desc.max_tokens = 7;
    api_text(a, "abcdxyz", 7, "abcdef", "bc", "abcdxyz", 7, 7, FG_FINISH_LENGTH);
    api_job(a)->desc.min_tokens = 4; /* but for one that began before */
    a->j.desc.max_tokens = 9;
    api_text(a, "abcdbcxyz", 9, "abcdef", "cdb", "ab", 2, 5, FG_FINISH_STOP);
    api_job(a);
    api_text(a, "a\0bSTOP!", 8, "STOP", NULL, "a\0b", 3, 7, FG_FINISH_STOP); /* behind a zero byte */
    api_close(a);
}

/* Where the first of the strings that end behind `from` begins in a text; its length: none does. And what its end may begin. */
static size_t stop_first(const char *text, size_t length, size_t from, char stops[][8], int n_stops, size_t *hold) {
    size_t best = length, n, k;
    int i;
    *hold = 0;
    for (i = 0; i < n_stops; i++) {
        n = strlen(stops[i]);
        for (k = 0; k + n <= length; k++)
            if (k + n > from && k < best && memcmp(text + k, stops[i], n) == 0) best = k;
        for (k = 1; k < n && k <= length; k++)
            if (k > *hold && memcmp(text + length - k, stops[i], k) == 0) *hold = k;
    }
    return best;
}

/* Random strings of two letters, in a random text that comes in pieces, against their definition. */
static void test_engine_stops_random(void) {
    fg__env env = fg__env_make(NULL, NULL, NULL);
    uint64_t random = 31;
    int round, i, found = 0;
    for (round = 0; round < 4000; round++) {
        char stops[4][8], text[80];
        int32_t at[4] = {0, 0, 0, 0};
        fg__stop made[4];
        fg__request r;
        fg__sequence s;
        size_t length = 0, given = 0, from, first, hold;
        bool ended = false;
        memset(&r, 0, sizeof(r));
        memset(&s, 0, sizeof(s));
        r.stops = made;
        r.desc.n_stop = 1 + job_below(&random, 4);
        s.request = &r;
        s.at_stop = at;
        s.pending.env = &env;
        for (i = 0; i < r.desc.n_stop; i++) {
            int n = 1 + job_below(&random, 7), k;
            for (k = 0; k < n; k++) stops[i][k] = (char)('a' + job_below(&random, 2));
            stops[i][n] = 0;
            CHECK(fg__stop_make(&env, &made[i], stops[i]));
        }
        while (length < 60 && !ended) {
            int n = 1 + job_below(&random, 4), k;
            bool stop = job_below(&random, 3) == 0;
            from = length;
            for (k = 0; k < n; k++) text[length++] = (char)('a' + job_below(&random, 2));
            fg__text_add(&s.pending, text + from, length - from);
            first = stop_first(text, length, from, stops, r.desc.n_stop, &hold);
            ended = fg__sequence_see(&s, stop);
            CHECK(ended == (stop && first < length) && (!ended || given + s.pending.length == first));
            if (ended) break;
            CHECKF(fg__sequence_hold(&s) == hold, "%zu, not %zu", fg__sequence_hold(&s), hold);
            given += s.pending.length - fg__sequence_hold(&s);
            fg__sequence_drop_text(&s, s.pending.length - fg__sequence_hold(&s));
        }
        found += ended;
        for (i = 0; i < r.desc.n_stop; i++) {
            fg__free(&env, (void *)(size_t)made[i].text);
            fg__free(&env, made[i].back);
        }
        fg__text_free(&s.pending);
    }
    CHECK(found > 1000);
}

static void test_engine_utf8(void) {
    static const int32_t merged[] = {4 + 0xE2, 4 + 0x82, 4 + 0xAC};
    api *a = api_open(fg_backend_null(), 64);
    fg_event event;
    int i = 0;
    bool busy = true;
    api_job(a)->desc.max_tokens = 4;
    api_text(a, "h\303\251!", 4, NULL, NULL, "h\303\251!", 4, 4, FG_FINISH_LENGTH);
    api_job(a)->desc.max_tokens = 2;
    api_text(a, "\342\202", 2, NULL, NULL, "\357\277\275", 3, 2, FG_FINISH_LENGTH); /* cut: one replacement character */
    api_job(a)->desc.max_tokens = 3;
    api_text(a, "a\377b", 3, NULL, NULL, "a\357\277\275b", 5, 3, FG_FINISH_LENGTH);
    api_job(a)->desc.max_tokens = 3; /* no event has half a character */
    a->script.tokens = merged;
    a->script.length = a->script.n_prompt = 3;
    a->j.desc.on_logits = api_write;
    a->j.desc.on_logits_user = &a->script;
    CHECK(job_submit(a->e, &a->j) == FG_OK);
    while (busy) {
        CHECK(fg_step(a->e, 0, &busy) == FG_OK);
        while (fg_next_event(a->e, &event))
            if (event.type == FG_EVENT_TOKEN) CHECK(event.text_length == (i++ == 2 ? 3u : 0u));
    }
    CHECK(i == 3);
    api_close(a);
}

static void test_engine_end_tokens(void) {
    static const int32_t eos_third[] = {4 + 'a', 4 + 'b', 2, 4 + 'c'};
    api *a = api_open(fg_backend_null(), 64);
    int i;
    for (i = 0; i < 5; i++) {
        job *j = api_job(a);
        a->script.tokens = eos_third;
        a->script.n_prompt = 3;
        a->script.length = 4;
        a->script.also = 4 + 'y';
        j->desc.on_logits = api_write;
        j->desc.on_logits_user = &a->script;
        if (i == 1) j->desc.ignore_eos = true;
        if (i == 2) j->desc.min_tokens = 3;
        if (i >= 3) j->desc.n_stop_tokens = 1, j->stop_token = 4 + 'b';
        if (i == 4) j->desc.min_tokens = 2, j->desc.ignore_eos = true;
        api_run(a);
        if (i == 0) CHECK(j->samples[0].n_tokens == 3 && j->finish == FG_FINISH_STOP && strcmp(j->samples[0].text, "ab") == 0);
        if (i == 1) CHECK(j->samples[0].n_tokens == 8 && j->finish == FG_FINISH_LENGTH && strcmp(j->samples[0].text, "abcxxxx") == 0);
        if (i == 2) CHECK(j->samples[0].n_tokens == 8 && strcmp(j->samples[0].text, "abycxxxx") == 0);
        if (i == 3) CHECK(j->samples[0].n_tokens == 2 && j->finish == FG_FINISH_STOP && strcmp(j->samples[0].text, "a") == 0);
        if (i == 4) CHECK(j->samples[0].n_tokens == 8 && strcmp(j->samples[0].text, "aycxxxx") == 0);
    }
    api_close(a);
}

/* A hook sees the same row for every sample, whatever it did to it before. */
static void api_meddle(void *user, int sample, int position, const int32_t *tokens, float *logits, int n_vocab) {
    int i, *wrong = (int *)user;
    (void)tokens;
    (void)sample;
    if (position != 3) return;
    for (i = 0; i < n_vocab; i++) *wrong += !(logits[i] > -1000 && logits[i] < 1000);
    for (i = 0; i < n_vocab; i++) logits[i] = NAN;
}

static void test_engine_hook(void) {
    api *a = api_open(fg_backend_null(), 64);
    int wrong = 0, i, k;
    api_job(a)->desc.n = 4;
    a->j.desc.on_logits = api_meddle;
    a->j.desc.on_logits_user = &wrong;
    a->j.desc.top_logprobs = 5;
    a->j.desc.logprobs = true;
    api_run(a);
    CHECK(wrong == 0 && a->j.finish == FG_FINISH_LENGTH);
    for (i = 0; i < 4; i++)
        for (k = 0; k < a->j.samples[i].n_tokens; k++) CHECK(a->j.samples[i].tokens[k] >= 0 && a->j.samples[i].tokens[k] < model_n_vocab());
    api_close(a);
}

/* ---- sampling and log-probabilities, over the CPU */

static double api_log_softmax(const float *row, int n, int32_t token) {
    double max = -1e300, sum = 0;
    int i;
    for (i = 0; i < n; i++) max = row[i] > max ? row[i] : max;
    for (i = 0; i < n; i++) sum += exp(row[i] - max);
    return row[token] - max - log(sum);
}

static void api_check_top(const fg_event *event, const float *row, int n) {
    double sum = 0;
    int i;
    CHECK(event->n_top == 7);
    for (i = 0; i < event->n_top; i++) {
        sum += exp((double)event->top[i].logprob);
        CHECK(fabs(event->top[i].logprob - api_log_softmax(row, n, event->top[i].token)) < 1e-4);
        if (i) CHECK(event->top[i].logprob <= event->top[i - 1].logprob && event->top[i].token != event->top[i - 1].token);
    }
    CHECK(sum <= 1 + 1e-5 && sum > 0);
    CHECK(fabs(event->logprob - api_log_softmax(row, n, event->token)) < 1e-4);
}

static void test_engine_logprobs(void) {
    api *a = api_open(NULL, 64);
    job *j = api_job(a);
    fg_event event;
    int n = model_n_vocab(), prompts = 0, tokens = 0;
    bool busy = true;
    job_keep(j);
    for (tokens = 0; tokens < 20; tokens++) j->prompt[tokens] = 4 + tokens;
    j->desc.n_tokens = 20;
    j->desc.ignore_eos = j->desc.logprobs = j->desc.prompt_logprobs = true;
    j->desc.top_logprobs = 7;
    CHECK(job_submit(a->e, j) == FG_OK);
    tokens = 0;
    while (busy) {
        CHECK(fg_step(a->e, 0, &busy) == FG_OK);
        while (fg_next_event(a->e, &event)) {
            const float *row = j->rows.rows + (size_t)event.position * (size_t)n;
            if (event.type == FG_EVENT_PROMPT) CHECK(event.position == ++prompts && event.token == j->prompt[prompts]);
            if (event.type == FG_EVENT_TOKEN) CHECK(event.position == 20 + tokens++ && event.top[0].token == event.token);
            if (event.type == FG_EVENT_TOKEN) CHECK(event.top[0].logprob == event.logprob);
            if (event.type == FG_EVENT_PROMPT || event.type == FG_EVENT_TOKEN) api_check_top(&event, row, n);
        }
    }
    CHECK(prompts == 19 && tokens == 8);
    free(j->rows.rows);
    api_close(a);
}

/* Log-probabilities of one request, while another asks for none and a third for the highest, which it finds in the logits. */
static void test_engine_logprobs_mixed(void) {
    api *a = api_open(NULL, 64);
    job *jobs = (job *)calloc(3, sizeof(job));
    int i, k;
    for (i = 0; i < 3; i++) {
        jobs[i] = *api_job(a);
        jobs[i].desc.ignore_eos = true;
        jobs[i].desc.logprobs = i > 0;
        jobs[i].desc.max_tokens = i < 2 ? 8 : 4; /* the second one's last tokens come without logits */
        jobs[i].desc.top_logprobs = i == 2;
        CHECK(job_submit(a->e, &jobs[i]) == FG_OK);
    }
    jobs_run(a->e);
    for (i = 0; i < 3; i++) job_check_ends(&jobs[i]);
    for (k = 0; k < 8; k++) {
        float logprob = jobs[1].samples[0].logprobs[k];
        CHECKF(logprob < 0.0f && logprob > -20.0f && jobs[1].samples[0].tokens[k] == jobs[0].samples[0].tokens[k], "token %d: %g", k, (double)logprob);
    }
    for (k = 0; k < 4; k++) CHECK(jobs[1].samples[0].logprobs[k] == jobs[2].samples[0].logprobs[k]);
    free(jobs);
    api_close(a);
}

/* One request's tokens under a sampling. */
static void api_tokens(api *a, const fg_sampling *sampling, int32_t ban, int32_t *tokens) {
    job *j = api_job(a);
    j->desc.max_tokens = 16;
    j->desc.ignore_eos = true;
    j->desc.sampling = *sampling;
    j->desc.sampling.n_logit_bias = ban >= 0;
    j->bias.token = ban;
    j->bias.bias = -INFINITY;
    api_run(a);
    CHECK(j->samples[0].n_tokens == 16);
    memcpy(tokens, j->samples[0].tokens, 16 * sizeof(int32_t));
}

static void test_engine_sampling(void) {
    api *a = api_open(NULL, 64);
    fg_sampling s;
    int32_t x[16], y[16];
    int i, k;
    memset(&s, 0, sizeof(s));
    api_tokens(a, &s, -1, x);
    for (i = 0; i < 6; i++) { /* each of these leaves one choice: the greedy one */
        fg_sampling one = s;
        one.temperature = 0.8f;
        one.seed = (uint64_t)i;
        if (i == 0) one.top_k = 1;
        else if (i == 1) one.top_p = 1e-6f;
        else if (i == 2) one.min_p = 1;
        else if (i == 3) one.temperature = 1e-6f;
        else one.top_k = 1, one.typical_p = 0.99f;
        api_tokens(a, &one, -1, y);
        CHECKF(memcmp(x, y, sizeof(x)) == 0, "sampling %d", i);
    }
    api_tokens(a, &s, x[0], y); /* banned */
    for (i = 0; i < 16; i++) CHECK(y[i] != x[0]);
    s.frequency_penalty = 1000; /* nothing twice */
    api_tokens(a, &s, -1, y);
    for (i = 0; i < 16; i++)
        for (k = 0; k < i; k++) CHECK(y[i] != y[k]);
    memset(&s, 0, sizeof(s));
    s.temperature = 2;
    s.seed = 41;
    api_tokens(a, &s, -1, x);
    api_tokens(a, &s, -1, y);
    CHECK(memcmp(x, y, sizeof(x)) == 0);
    s.seed = 42;
    api_tokens(a, &s, -1, y);
    CHECK(memcmp(x, y, sizeof(x)) != 0);
    api_close(a);
}

/* ---- limits, queues, handles, time */

static void test_engine_lengths(void) {
    api *a = api_open(fg_backend_null(), 40);
    job *j = api_job(a);
    char *text = (char *)malloc(1 << 20);
    int i;
    j->desc.max_tokens = 0; /* to the end of the context */
    j->desc.ignore_eos = true;
    api_run(a);
    CHECK(j->n_generated == 37 && j->finish == FG_FINISH_LENGTH);
    api_job(a)->desc.max_tokens = 1000;
    j->desc.ignore_eos = true;
    api_run(a);
    CHECK(j->n_generated == 37 && j->finish == FG_FINISH_LENGTH);
    api_job(a)->desc.max_tokens = -1;
    j->desc.prompt_logprobs = true;
    j->desc.n = 3;
    api_run(a);
    CHECK(j->n_generated == 0 && j->n_prompt_events == 2 && j->finish == FG_FINISH_LENGTH);
    api_job(a)->desc.max_tokens = -1;
    for (i = 0; i < 40; i++) j->prompt[i] = 5;
    j->desc.n_tokens = 40; /* just fits */
    api_run(a);
    CHECK(j->finish == FG_FINISH_LENGTH);
    j->desc.max_tokens = 1;
    CHECK(job_submit(a->e, j) == FG_ERROR_TOO_LONG && fg_last_error()[0]);
    j->desc.max_tokens = -1;
    j->desc.n_tokens = 41;
    CHECK(job_submit(a->e, j) == FG_ERROR_TOO_LONG);
    api_job(a);
    job_point(j);
    j->desc.tokens = NULL;
    memset(text, 'q', (1 << 20) - 1);
    text[(1 << 20) - 1] = 0;
    j->desc.prompt = text;
    CHECK(fg_submit(a->e, &j->desc, &j->handle) == FG_ERROR_TOO_LONG && j->handle.id == 0);
    j->desc.prompt = "";
    j->desc.tokenize_flags = FG_NO_BOS;
    CHECK(fg_submit(a->e, &j->desc, &j->handle) == FG_ERROR_INVALID_ARGUMENT);
    j->desc.tokenize_flags = 0; /* the BOS alone */
    CHECK(fg_generate(a->e, &j->desc, NULL, NULL) == FG_OK);
    j->desc.prompt = "\377\376 \342\202\300\200";
    CHECK(fg_generate(a->e, &j->desc, NULL, NULL) == FG_OK);
    free(text);
    api_close(a);
}

static void test_engine_handles(void) {
    enum { N = 6000 };
    api *a = api_open(fg_backend_null(), 40);
    uint32_t *ids = (uint32_t *)malloc(N * sizeof(uint32_t));
    uint64_t random = 3;
    fg_request none = {0};
    int i, k, twice = 0;
    CHECK(fg_cancel(a->e, none) == FG_ERROR_NOT_FOUND);
    for (i = 0; i < 1000; i++) {
        none.id = (uint32_t)test_random(&random);
        CHECK(fg_cancel(a->e, none) == FG_ERROR_NOT_FOUND && fg_last_error()[0]);
    }
    for (i = 0; i < N; i++) {
        api_job(a)->desc.max_tokens = -1;
        api_run(a);
        ids[i] = a->j.handle.id;
        CHECK(ids[i] != 0 && fg_cancel(a->e, a->j.handle) == FG_ERROR_NOT_FOUND);
    }
    for (i = 0; i < N; i += 37)
        for (k = 0; k < i; k++) twice += ids[i] == ids[k];
    CHECKF(twice == 0, "%d handles came twice", twice);
    free(ids);
    api_close(a);
}

static void test_engine_queue(void) {
    model_spec spec = model_spec_tiny();
    model_sample m;
    fg_engine_desc d;
    fg_engine *e;
    fg_stats stats;
    job *jobs = (job *)calloc(8, sizeof(job));
    double order[2];
    int i;
    model_sample_open(&m, &spec);
    d = engine_desc(m.model, fg_backend_null());
    d.max_queue = 4;
    d.max_seqs = 1;
    e = engine_new(&d);
    for (i = 0; e && i < 8; i++) {
        jobs[i].prompt[0] = 5;
        jobs[i].desc.n_tokens = 1;
        jobs[i].desc.max_tokens = 5;
        jobs[i].desc.priority = i == 3;
        CHECK(job_submit(e, &jobs[i]) == (i < 4 ? FG_OK : FG_ERROR_QUEUE_FULL));
        fg_get_stats(e, &stats);
        CHECK(stats.n_waiting == FG__MIN(i + 1, 4) && stats.n_submitted == (uint64_t)FG__MIN(i + 1, 4));
    }
    CHECK(e && fg_step(e, 0, NULL) == FG_OK);
    fg_get_stats(e, &stats);
    CHECK(stats.n_running == 1 && stats.n_waiting == 3 && stats.pass_tokens == 1 && stats.n_passes == 1);
    CHECK(job_submit(e, &jobs[4]) == FG_OK && job_submit(e, &jobs[5]) == FG_ERROR_QUEUE_FULL);
    jobs_run(e);
    for (i = 0; i < 5; i++) job_check_ends(&jobs[i]);
    order[0] = jobs[3].times.finish; /* arrived last, went first */
    order[1] = jobs[0].times.finish;
    CHECK(order[0] < order[1] && jobs[0].times.finish <= jobs[1].times.finish && jobs[1].times.finish <= jobs[2].times.finish);
    fg_get_stats(e, &stats);
    CHECK(stats.n_finished == 5 && stats.n_cancelled == 0 && stats.generated_tokens == 25 && stats.prompt_tokens == 5);
    fg_reset_stats(e);
    fg_get_stats(e, &stats);
    CHECK(stats.n_finished == 0 && stats.n_passes == 0 && stats.blocks_total > 0);
    fg_engine_free(e);
    model_sample_close(&m);
    free(jobs);
}

/* ---- a queue while a pass takes its time: its backend submits, as another thread would */

static job *queue_jobs;
static fg_engine *queue_engine;
static fg_result queue_results[2];

static fg_result queue_wait(fg_device *device, fg_plan *plan, fg_output *output) {
    int i;
    for (i = 0; queue_engine && i < 2; i++) queue_results[i] = job_submit(queue_engine, &queue_jobs[1 + i]);
    queue_engine = NULL;
    return fg_backend_null()->wait(device, plan, output);
}

static fg_engine *queue_open(fg_model *model, const fg_backend *backend, int max_queue, int max_seqs, int n_jobs) {
    fg_engine_desc d = engine_desc(model, backend);
    int i;
    d.max_queue = max_queue;
    d.max_seqs = max_seqs;
    queue_jobs = (job *)calloc((size_t)n_jobs, sizeof(job));
    for (i = 0; i < n_jobs; i++) {
        queue_jobs[i].desc.n_tokens = 1;
        queue_jobs[i].desc.max_tokens = 5;
        queue_jobs[i].desc.ignore_eos = true;
    }
    return engine_new(&d);
}

static void queue_close(fg_engine *e, int n_jobs) {
    int i;
    jobs_run(e);
    for (i = 0; i < n_jobs; i++)
        if (queue_jobs[i].submitted) job_check_ends(&queue_jobs[i]);
    engine_check_idle(e);
    fg_engine_free(e);
    free(queue_jobs);
}

/* Who has boarded a pass waits no more: another has the place in the queue, and the next one not. */
static void test_engine_queue_boards(void) {
    model_spec spec = model_spec_tiny();
    model_sample m;
    fg_backend backend = *fg_backend_null();
    fg_engine *e;
    fg_stats stats;
    model_sample_open(&m, &spec);
    backend.wait = queue_wait;
    e = queue_open(m.model, &backend, 1, 4, 3);
    CHECK(job_submit(e, &queue_jobs[0]) == FG_OK && job_submit(e, &queue_jobs[1]) == FG_ERROR_QUEUE_FULL);
    queue_engine = e;
    CHECK(fg_step(e, 0, NULL) == FG_OK);
    CHECK(queue_results[0] == FG_OK && queue_results[1] == FG_ERROR_QUEUE_FULL);
    fg_get_stats(e, &stats);
    CHECK(stats.n_running == 1 && stats.n_waiting == 1);
    queue_close(e, 3);
    model_sample_close(&m);
}

/* Samples count each, in the inbox, behind a prompt that waits, and alone; a request of more than fit comes in where nobody waits. */
static void test_engine_queue_samples(void) {
    static const int n[] = {2, 2, 1, 2, 1};
    model_spec spec = model_spec_tiny();
    model_sample m;
    fg_engine *e;
    fg_stats stats;
    int i;
    model_sample_open(&m, &spec);
    e = queue_open(m.model, fg_backend_null(), 4, 1, 6);
    for (i = 0; i < 5; i++) queue_jobs[i].desc.n = n[i];
    for (i = 0; i < 3; i++) CHECK(job_submit(e, &queue_jobs[i]) == (i < 2 ? FG_OK : FG_ERROR_QUEUE_FULL));
    fg_get_stats(e, &stats);
    CHECK(stats.n_waiting == 4 && stats.n_running == 0);
    CHECK(fg_step(e, 0, NULL) == FG_OK); /* the second sample of the first request, which has no place, and the second request */
    fg_get_stats(e, &stats);
    CHECKF(stats.n_waiting == 3 && stats.n_running == 1, "%d wait", stats.n_waiting);
    CHECK(job_submit(e, &queue_jobs[3]) == FG_ERROR_QUEUE_FULL && job_submit(e, &queue_jobs[4]) == FG_OK);
    fg_get_stats(e, &stats);
    CHECK(stats.n_waiting == 4);
    jobs_run(e);
    queue_jobs[5].desc.best_of = 6; /* given out as one */
    CHECK(job_submit(e, &queue_jobs[5]) == FG_OK);
    fg_get_stats(e, &stats);
    CHECK(stats.n_waiting == 6);
    queue_close(e, 6);
    model_sample_close(&m);
}

static void test_engine_cancel(void) {
    api *a = api_open(fg_backend_null(), 200);
    job *j = api_job(a);
    fg_stats stats;
    int i;
    for (i = 0; i < 3; i++) { /* in the inbox, between passes, with samples */
        api_job(a)->desc.max_tokens = 100;
        j->desc.ignore_eos = true;
        j->desc.n = i == 2 ? 4 : 1;
        CHECK(job_submit(a->e, j) == FG_OK);
        if (i) CHECK(fg_step(a->e, 0, NULL) == FG_OK && fg_step(a->e, 0, NULL) == FG_OK);
        jobs_take(a->e);
        CHECK(fg_cancel(a->e, j->handle) == FG_OK && fg_cancel(a->e, j->handle) == FG_OK);
        jobs_run(a->e);
        job_check_ends(j);
        CHECK(j->finish == FG_FINISH_CANCELLED && j->result == FG_OK && j->n_generated == (i == 0 ? 0 : i == 1 ? 2 : 8));
    }
    fg_get_stats(a->e, &stats);
    CHECK(stats.n_cancelled == 3 && stats.n_finished == 3);
    api_close(a);
}

/* The clock is the null backend's: a pass takes 10 ms and 1 ms a token. */
static void test_engine_time(void) {
    api *a = api_open(fg_backend_null(), 256);
    job *jobs = (job *)calloc(6, sizeof(job));
    double before;
    int i, k;
    bool busy = true;
    for (i = 0; i < 6; i++) {
        for (k = 0; k < 150; k++) jobs[i].prompt[k] = 4 + i * 10 + k % 9;
        jobs[i].desc.n_tokens = 150;
        jobs[i].desc.max_tokens = 30;
        jobs[i].desc.ignore_eos = true;
        CHECK(job_submit(a->e, &jobs[i]) == FG_OK);
    }
    for (i = 0; busy && i < 10000; i++) {
        before = a->clock;
        CHECK(fg_step(a->e, 0.040, &busy) == FG_OK);
        if (busy && i > 5) CHECKF(a->clock - before < 0.0401 && a->clock - before > 0.02, "a step of %g s", a->clock - before);
        jobs_take(a->e);
    }
    CHECK(!busy);
    for (i = 0; i < 6; i++) {
        const fg_times *t = &jobs[i].times;
        job_check_ends(&jobs[i]);
        CHECK(t->arrival == 0 && t->arrival <= t->first_scheduled && t->first_scheduled <= t->scheduled);
        CHECK(t->first_scheduled <= t->inference_begin && t->inference_begin < t->first_token);
        CHECK(t->first_token < t->inference_end && t->inference_end <= t->finish && t->finish <= a->clock);
        if (i == 0) CHECK(t->first_scheduled == 0 && t->first_token > 0.15);
    }
    api_job(a);
    CHECK(job_submit(a->e, &a->j) == FG_OK);
    CHECK(fg_step(a->e, -1, &busy) == FG_ERROR_INVALID_ARGUMENT && fg_step(a->e, NAN, &busy) == FG_ERROR_INVALID_ARGUMENT);
    CHECK(fg_step(NULL, 0, &busy) == FG_ERROR_INVALID_ARGUMENT && !busy);
    CHECK(fg_step(a->e, INFINITY, &busy) == FG_OK && !busy); /* all of it */
    jobs_take(a->e);
    job_check_ends(&a->j);
    free(jobs);
    api_close(a);
}

static void test_engine_wait(void) {
    api *a = api_open(fg_backend_null(), 64);
    CHECK(!fg_wait(a->e, FG_WAIT_EVENT | FG_WAIT_WORK, 0) && !fg_wait(a->e, FG_WAIT_EVENT, 0.002));
    CHECK(!fg_wait(a->e, FG_WAIT_EVENT, NAN));
    api_job(a);
    CHECK(job_submit(a->e, &a->j) == FG_OK);
    CHECK(fg_wait(a->e, FG_WAIT_WORK, -1) && !fg_wait(a->e, FG_WAIT_EVENT, 0) && fg_wait(a->e, FG_WAIT_WORK, 1e300));
    CHECK(fg_step(a->e, 0, NULL) == FG_OK);
    CHECK(fg_wait(a->e, FG_WAIT_EVENT, INFINITY));
    jobs_run(a->e);
    CHECK(!fg_wait(a->e, FG_WAIT_EVENT | FG_WAIT_WORK, 0));
    api_close(a);
}

#if !defined(_WIN32) && !defined(__APPLE__) && !defined(FG_NO_THREADS)
/* Waits end by a clock that nobody sets back: a time of that clock, which has run since the start of the machine and not since 1970,
   is still to come. */
static void test_engine_wait_clock(void) {
    double begin = fg__now();
    struct timespec until;
    fg__mutex m;
    fg__cond c;
    int r = 0;
    fg__mutex_init(&m);
    fg__cond_init(&c);
    fg__mutex_lock(&m);
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += 20000000;
    if (until.tv_nsec >= 1000000000) until.tv_nsec -= 1000000000, until.tv_sec++;
    while (r == 0) r = pthread_cond_timedwait(&c, &m, &until);
    CHECKF(r == ETIMEDOUT && fg__now() - begin >= 0.019, "%g s", fg__now() - begin);
    begin = fg__now();
    while (fg__cond_wait(&c, &m, 0.01)) {}
    CHECKF(fg__now() - begin >= 0.009 && fg__now() - begin < 5, "%g s", fg__now() - begin);
    fg__mutex_unlock(&m);
    fg__cond_destroy(&c);
    fg__mutex_destroy(&m);
}
#endif

/* ---- arguments */

static void api_bad(api *a, const char *what) {
    fg_request handle;
    fg_result r;
    handle.id = 77;
    r = fg_submit(a->e, &a->j.desc, &handle);
    CHECKF(r == FG_ERROR_INVALID_ARGUMENT && handle.id == 0 && strlen(fg_last_error()) > 5, "%s: %s", what, fg_result_name(r));
    api_job(a);
    job_point(&a->j);
}

static void test_engine_bad_requests(void) {
    const float bad[] = {-1, NAN, INFINITY, -INFINITY};
    static const char *const stops[] = {"a", "", NULL};
    api *a = api_open(fg_backend_null(), 64);
    fg_request_desc *d = &a->j.desc;
    int32_t outside[] = {-1, 1 << 30, INT32_MIN, 0};
    fg_logit_bias bias = {0, NAN};
    char *long_stop = (char *)malloc(70000);
    static const char *const half[] = {"\xA9Z"}; /* the second byte of a character */
    const char *stop = long_stop;
    int i;
    memset(long_stop, 'a', 69999);
    long_stop[69999] = 0;
    outside[3] = model_n_vocab();
    api_job(a);
    job_point(&a->j);
    CHECK(fg_submit(NULL, d, NULL) == FG_ERROR_INVALID_ARGUMENT && fg_submit(a->e, NULL, NULL) == FG_ERROR_INVALID_ARGUMENT);
    d->prompt = "both", api_bad(a, "prompt and tokens");
    d->tokens = NULL, api_bad(a, "neither");
    d->n_tokens = 0, api_bad(a, "no tokens");
    for (i = 0; i < 4; i++) {
        a->j.prompt[1] = outside[i], api_bad(a, "a token outside");
        d->stop_tokens = &outside[i], d->n_stop_tokens = 1, api_bad(a, "a stop token outside");
        d->sampling.temperature = bad[i], api_bad(a, "temperature");
        d->sampling.top_p = bad[i], api_bad(a, "top_p");
        d->sampling.min_p = bad[i], api_bad(a, "min_p");
        d->sampling.typical_p = bad[i], api_bad(a, "typical_p");
        d->sampling.repetition_penalty = bad[i], api_bad(a, "repetition_penalty");
        if (i) d->sampling.presence_penalty = bad[i], api_bad(a, "presence_penalty");
        if (i) d->sampling.frequency_penalty = bad[i], api_bad(a, "frequency_penalty");
        bias.token = outside[i], bias.bias = 0;
        d->sampling.logit_bias = &bias, d->sampling.n_logit_bias = 1, api_bad(a, "a bias outside");
    }
    bias.token = 0, bias.bias = NAN;
    d->sampling.logit_bias = &bias, d->sampling.n_logit_bias = 1, api_bad(a, "bias NaN");
    d->sampling.n_logit_bias = 1, api_bad(a, "no bias");
    d->sampling.n_logit_bias = -1, api_bad(a, "negative biases");
    d->sampling.top_k = -1, api_bad(a, "top_k");
    d->sampling.penalty_window = -1, api_bad(a, "penalty_window");
    d->max_tokens = -2, api_bad(a, "max_tokens");
    d->stop = half, d->n_stop = 1, api_bad(a, "a stop string that begins within a character");
    d->min_tokens = -1, api_bad(a, "min_tokens");
    d->n = -1, api_bad(a, "n");
    d->n = 1 << 20, api_bad(a, "n");
    d->n_stop = 1, api_bad(a, "no stop strings");
    d->n_stop = -1, api_bad(a, "n_stop");
    d->n_stop_tokens = 1, api_bad(a, "no stop tokens");
    d->n_stop_tokens = -1, api_bad(a, "n_stop_tokens");
    d->stop = stops, d->n_stop = 2, api_bad(a, "an empty stop string");
    d->stop = stops, d->n_stop = 3, api_bad(a, "a missing stop string");
    d->stop = &stop, d->n_stop = 1, api_bad(a, "a long stop string");
    d->n_draft = -1, api_bad(a, "n_draft");
    d->n_draft = FG__MAX_DRAFT + 1, api_bad(a, "n_draft");
    d->top_logprobs = -1, api_bad(a, "top_logprobs");
    d->top_logprobs = FG_MAX_TOP_LOGPROBS + 1, api_bad(a, "top_logprobs");
    d->n_beams = 2, d->top_logprobs = 1, api_bad(a, "beams with top_logprobs");
    d->n_beams = 2, d->prompt_logprobs = true, api_bad(a, "beams with prompt_logprobs");
    d->n_beams = 2, d->n_draft = 1, api_bad(a, "beams with n_draft");
    d->n_beams = 2, d->sampling.frequency_penalty = 1, api_bad(a, "beams with a penalty");
    bias.bias = 1;
    d->n_beams = 2, d->sampling.logit_bias = &bias, d->sampling.n_logit_bias = 1, api_bad(a, "beams with logit_bias");
    d->tokenize_flags = 64, api_bad(a, "tokenize_flags");
    free(long_stop);
    CHECK(fg_cancel(NULL, a->j.handle) == FG_ERROR_INVALID_ARGUMENT);
    api_close(a);
}

static void api_bad_engine(fg_engine_desc *d, fg_model *model, fg_result expected, const char *what) {
    fg_engine *e = (fg_engine *)(void *)d;
    fg_memory memory;
    fg_result r = fg_engine_create(d, &e);
    CHECKF(r == expected && !e && strlen(fg_last_error()) > 5, "%s: %s", what, fg_result_name(r));
    CHECK(fg_estimate_memory(d, &memory) == expected);
    *d = engine_desc(model, fg_backend_null());
}

/* An engine has what was estimated, the outputs of FG_ASYNC_2 on the host among it. */
static void test_engine_memory(void) {
    model_spec spec = model_spec_tiny();
    model_sample m;
    fg_engine_desc d;
    fg_engine *e;
    fg_memory plain, own, outputs;
    model_sample_open(&m, &spec);
    d = engine_desc(m.model, fg_backend_cpu());
    CHECK(fg_estimate_memory(&d, &plain) == FG_OK);
    e = engine_new(&d);
    fg_engine_get_memory(e, &own);
    CHECK(own.total == plain.total && own.activations == plain.activations);
    fg_engine_free(e);
    d.async = FG_ASYNC_2;
    CHECK(fg_estimate_memory(&d, &outputs) == FG_OK);
    CHECK(outputs.activations >= plain.activations + 2 * sizeof(float) * (size_t)model_n_vocab());
    model_sample_close(&m);
    spec.arch = "qwen35"; /* with a pool of states */
    model_sample_open(&m, &spec);
    d = engine_desc(m.model, fg_backend_cpu());
    CHECK(fg_estimate_memory(&d, &plain) == FG_OK);
    e = engine_new(&d);
    fg_engine_get_memory(e, &own);
    CHECK(own.total == plain.total && own.kv == plain.kv && own.kv == e->desc.kv_bytes);
    fg_engine_free(e);
    model_sample_close(&m);
}

/* Metadata in buffers of any size: whole or cut, always with its closing zero. */
static void test_engine_meta(void) {
    model_spec spec = model_spec_tiny();
    model_sample m;
    char whole[256], cut[256];
    const char *key;
    size_t length, other, capacity;
    int i;
    model_sample_open(&m, &spec);
    for (i = 0; fg_model_meta(m.model, i, &key, whole, sizeof(whole), &length) == FG_OK; i++) {
        CHECKF(strlen(whole) == length && length < sizeof(whole), "%s: %s", key, whole);
        for (capacity = 0; capacity < length + 2; capacity++) {
            memset(cut, 'x', sizeof(cut));
            CHECK(fg_model_meta(m.model, i, &key, cut, capacity, &other) == (capacity > length ? FG_OK : FG_ERROR_BUFFER_TOO_SMALL));
            CHECK(other == length && cut[capacity] == 'x' && (!capacity || strlen(cut) == FG__MIN(length, capacity - 1)));
        }
    }
    CHECK(i > 5 && fg_model_meta(m.model, i, &key, NULL, 0, &length) == FG_ERROR_NOT_FOUND);
    model_sample_close(&m);
}

/* What the descriptor points to need not outlive fg_engine_create, and what is read back makes another such engine. */
static void test_engine_desc_back(void) {
    model_spec spec = model_spec_tiny();
    model_sample m;
    fg_engine_desc d;
    fg_allocator allocator = test_allocator(0);
    fg_engine *e = NULL, *other = NULL;
    char words[3][8] = {"scalar", "cpu", "cpu"};
    model_sample_open(&m, &spec);
    d = engine_desc(m.model, fg_backend_cpu());
    d.cpu_path = words[0];
    d.kv_device = words[1];
    d.experts_device = words[2];
    d.allocator = &allocator;
    CHECK(fg_engine_create(&d, &e) == FG_OK);
    memset(words, 'x', sizeof(words));
    allocator.realloc = NULL;
    fg_engine_get_desc(e, &d);
    CHECK(strcmp(d.cpu_path, "scalar") == 0 && strcmp(d.kv_device, "cpu") == 0 && strcmp(d.experts_device, "cpu") == 0 && d.allocator != &allocator);
    d.device = NULL; /* of another backend's */
    CHECK(fg_engine_create(&d, &other) == FG_OK);
    fg_engine_free(other);
    fg_engine_free(e);
    CHECK(test_alloc_live() == 0 && test_alloc_foreign() == 0);
    model_sample_close(&m);
}

static void test_engine_bad_engines(void) {
    model_spec spec = model_spec_tiny();
    model_sample m;
    fg_engine_desc d;
    fg_engine *e = NULL;
    fg_memory memory;
    model_sample_open(&m, &spec);
    d = engine_desc(m.model, fg_backend_null());
    CHECK(fg_engine_create(NULL, &e) == FG_ERROR_INVALID_ARGUMENT && fg_engine_create(&d, NULL) == FG_ERROR_INVALID_ARGUMENT);
    CHECK(fg_estimate_memory(&d, &memory) == FG_OK && memory.total == memory.weights + memory.kv + memory.activations);
    d.model_path = "both", api_bad_engine(&d, m.model, FG_ERROR_INVALID_ARGUMENT, "model and path");
    d.model = NULL, api_bad_engine(&d, m.model, FG_ERROR_INVALID_ARGUMENT, "no model");
    d.model = NULL, d.model_path = "/nowhere/at.all", api_bad_engine(&d, m.model, FG_ERROR_IO, "path");
    d.max_context = -1, api_bad_engine(&d, m.model, FG_ERROR_INVALID_ARGUMENT, "max_context");
    d.max_seqs = -1, api_bad_engine(&d, m.model, FG_ERROR_INVALID_ARGUMENT, "max_seqs");
    d.max_seqs = INT_MAX, api_bad_engine(&d, m.model, FG_ERROR_INVALID_ARGUMENT, "max_seqs");
    d.max_queue = -1, api_bad_engine(&d, m.model, FG_ERROR_INVALID_ARGUMENT, "max_queue");
    d.token_budget = -1, api_bad_engine(&d, m.model, FG_ERROR_INVALID_ARGUMENT, "token_budget");
    d.token_budget = INT_MAX, api_bad_engine(&d, m.model, FG_ERROR_INVALID_ARGUMENT, "token_budget");
    d.kv_tokens = -1, api_bad_engine(&d, m.model, FG_ERROR_INVALID_ARGUMENT, "kv_tokens");
    d.kv_tokens = 1, api_bad_engine(&d, m.model, FG_ERROR_INVALID_ARGUMENT, "kv_tokens");
    d.kv_bytes = 1, api_bad_engine(&d, m.model, FG_ERROR_INVALID_ARGUMENT, "kv_bytes");
    d.block_tokens = 3, api_bad_engine(&d, m.model, FG_ERROR_INVALID_ARGUMENT, "block_tokens");
    d.block_tokens = -4, api_bad_engine(&d, m.model, FG_ERROR_INVALID_ARGUMENT, "block_tokens");
    d.block_tokens = 1 << 20, api_bad_engine(&d, m.model, FG_ERROR_INVALID_ARGUMENT, "block_tokens");
    d.policy = (fg_policy)4, api_bad_engine(&d, m.model, FG_ERROR_INVALID_ARGUMENT, "policy");
    d.priority_head_start = -1, api_bad_engine(&d, m.model, FG_ERROR_INVALID_ARGUMENT, "priority_head_start");
    d.preemption = (fg_preemption)3, api_bad_engine(&d, m.model, FG_ERROR_INVALID_ARGUMENT, "preemption");
    d.target_tbt_ms = -1, api_bad_engine(&d, m.model, FG_ERROR_INVALID_ARGUMENT, "target_tbt_ms");
    d.target_tbt_ms = NAN, api_bad_engine(&d, m.model, FG_ERROR_INVALID_ARGUMENT, "target_tbt_ms");
    d.n_threads = -1, api_bad_engine(&d, m.model, FG_ERROR_INVALID_ARGUMENT, "n_threads");
    d.n_threads = 1 << 20, api_bad_engine(&d, m.model, FG_ERROR_INVALID_ARGUMENT, "n_threads");
    d.kv_type = (fg_type)63, api_bad_engine(&d, m.model, FG_ERROR_UNSUPPORTED, "kv_type");
    d.kv_type = (fg_type)-5, api_bad_engine(&d, m.model, FG_ERROR_UNSUPPORTED, "kv_type");
    d.backends[0] = NULL, d.kv_type = FG_TYPE_Q4_K, api_bad_engine(&d, m.model, FG_ERROR_UNSUPPORTED, "kv_type");
    d.backends[0] = NULL, d.cpu_path = "abacus", api_bad_engine(&d, m.model, FG_ERROR_INVALID_ARGUMENT, "cpu_path");
    d.backends[0] = fg_backend_cpu(), d.cpu_path = "abacus", api_bad_engine(&d, m.model, FG_ERROR_INVALID_ARGUMENT, "cpu_path");
    d.kv_bytes = 1 << 20; /* and what works */
    CHECK(fg_engine_create(&d, &e) == FG_OK);
    fg_engine_get_desc(e, &d);
    CHECK(d.kv_bytes <= 1 << 20 && d.kv_bytes == (size_t)d.kv_tokens * 2 * 2 * 2 * 16 * 4 && d.max_seqs == 64 && d.max_context == 256);
    CHECK(strcmp(fg_engine_get_backend(e), "null") == 0 && fg_engine_get_model(e) == m.model);
    fg_engine_free(e);
    fg_engine_free(NULL);
    model_sample_close(&m);
}

/* A question of n tokens, of which `common` are those of all questions, and behind 70 of them the answer that is given; the others are its own. */
static void state_job(job *j, int n, int common, int own, const int32_t *answer) {
    int k;
    memset(j, 0, sizeof(*j));
    for (k = 0; k < n; k++) j->prompt[k] = k >= common ? own : k < 70 ? 10 + k * 7 % 40 : answer[k - 70];
    j->desc.n_tokens = (size_t)n;
    j->desc.ignore_eos = j->desc.logprobs = true;
}

/* What the prefix cache finds with recurrent layers: of a conversation up to the last block that a pass filled, of the prompt and of the answer;
   of questions behind the same 50 tokens the second one leaves the state there that the third one finds. */
static void test_engine_state_prefix(void) {
    static const struct { int n, common, n_cached; } turns[] = {{70, 70, 0}, {70, 70, 64}, {94, 90, 80}, {70, 50, 0}, {80, 50, 48}, {50, 50, 48}};
    static job jobs[FG__COUNT(turns)];
    model_spec spec = model_spec_tiny();
    model_sample m;
    fg_engine_desc d;
    fg_engine *e;
    int i;
    spec.arch = "qwen35";
    model_sample_open(&m, &spec);
    d = engine_desc(m.model, NULL);
    d.block_tokens = 16;
    d.token_budget = 128;
    e = engine_new(&d);
    for (i = 0; i < FG__COUNT(turns); i++) {
        job *j = &jobs[i];
        state_job(j, turns[i].n, turns[i].common, 200 + i, jobs[1].samples[0].tokens);
        j->desc.max_tokens = 20;
        CHECK(job_submit(e, j) == FG_OK);
        jobs_run(e);
        CHECKF(j->n_cached == turns[i].n_cached, "turn %d: %d tokens cached, not %d", i, j->n_cached, turns[i].n_cached);
    }
    CHECK(memcmp(&jobs[0].samples[0], &jobs[1].samples[0], sizeof(job_sample)) == 0);
    fg_engine_free(e);
    model_sample_close(&m);
}

/* What sequences leave cached of their states: that of the prompt, in however many passes, and the last one of the answer; one more where
   prompts part. */
static void test_engine_state_kept(void) {
    static const struct { int n, common, kept; } turns[] = {{70, 70, 2}, {70, 50, 5}, {80, 50, 7}, {48, 0, 9}};
    static job jobs[FG__COUNT(turns)];
    model_spec spec = model_spec_tiny();
    model_sample m;
    fg_engine_desc d;
    fg_engine *e;
    int i;
    spec.arch = "qwen35";
    model_sample_open(&m, &spec);
    d = engine_desc(m.model, fg_backend_null());
    d.block_tokens = 16;
    d.token_budget = 24;
    e = engine_new(&d);
    for (i = 0; i < FG__COUNT(turns); i++) {
        job *j = &jobs[i];
        state_job(j, turns[i].n, turns[i].common, 200 + i, NULL);
        j->desc.max_tokens = 100;
        CHECK(job_submit(e, j) == FG_OK);
        jobs_run(e);
        CHECKF(e->kv.groups[1].n_cached == turns[i].kept, "turn %d: %d states cached, not %d", i, e->kv.groups[1].n_cached, turns[i].kept);
    }
    CHECK(e->kv.groups[0].n_cached > 30);
    fg_engine_free(e);
    model_sample_close(&m);
}

/* Recurrent layers: blocks of states for the sequences, the pool's bytes shared between them and the KV cache, no guesses, no draft model. */
static void test_engine_states(void) {
    static const struct { int max_seqs, kv_tokens; size_t kv_bytes; int states; } rows[] = {
        {2, 4096, 0, 36}, {2, 256, 0, 8}, {1, 64, 0, 4}, {64, 1 << 16, 0, 160}, {64, 0, 1 << 20, 0}};
    model_spec spec = model_spec_tiny();
    model_sample m, plain;
    fg_engine_desc d;
    fg_engine *e = NULL;
    int i;
    model_sample_open(&plain, &spec);
    spec.arch = "qwen35";
    model_sample_open(&m, &spec);
    for (i = 0; i < FG__COUNT(rows); i++) {
        d = engine_desc(m.model, fg_backend_null());
        d.max_seqs = rows[i].max_seqs;
        d.kv_tokens = rows[i].kv_tokens;
        d.kv_bytes = rows[i].kv_bytes;
        d.block_tokens = 32;
        e = engine_new(&d);
        if (rows[i].states) CHECKF(e->graph.groups[1].n_blocks == rows[i].states, "%d: %d states", i, e->graph.groups[1].n_blocks);
        else CHECK(e->desc.kv_bytes <= rows[i].kv_bytes && e->desc.kv_bytes > rows[i].kv_bytes * 3 / 4 && e->graph.groups[1].n_blocks > 30);
        CHECK(e->graph.groups[0].kind == FG_GROUP_FULL && e->graph.groups[1].kind == FG_GROUP_STATE);
        fg_engine_free(e);
    }
    d = engine_desc(plain.model, fg_backend_null());
    d.draft_model = m.model;
    CHECK(fg_engine_create(&d, &e) == FG_ERROR_UNSUPPORTED && strstr(fg_last_error(), "the draft model has recurrent") != NULL);
    d = engine_desc(m.model, fg_backend_null());
    d.draft_model = plain.model;
    CHECK(fg_engine_create(&d, &e) == FG_ERROR_UNSUPPORTED && strstr(fg_last_error(), "the model has recurrent") != NULL);
    model_sample_close(&m);
    model_sample_close(&plain);
}

/* kv_bytes is kept to whatever the mix of groups, and used. */
static void test_engine_pool_bytes(void) {
    int kind, size;
    for (kind = 0; kind < 4; kind++)
        for (size = 16; size <= 23; size++) {
            model_spec spec = model_spec_tiny();
            model_sample m;
            fg_engine_desc d;
            fg_memory memory;
            size_t bytes = (size_t)1 << size;
            spec.n_layers = 4;
            if (kind == 1 || kind == 2) spec.window = 24;
            if (kind == 2) spec.full_every = 4;
            if (kind == 3) spec.head_dim = 32;
            model_sample_open(&m, &spec);
            d = engine_desc(m.model, fg_backend_cpu());
            if (kind == 3) d.kv_type = FG_TYPE_Q8_0;
            d.kv_bytes = bytes;
            d.max_seqs = 2;
            d.token_budget = 16;
            CHECK(fg_estimate_memory(&d, &memory) == FG_OK);
            CHECKF(memory.kv <= bytes && (kind == 1 || memory.kv > bytes * 3 / 4), "%zu of %zu bytes", memory.kv, bytes);
            model_sample_close(&m);
        }
}

static void api_add_text(const char *text, size_t length, void *user) {
    strncat((char *)user, text, length);
}

static void test_engine_generate(void) {
    api *a = api_open(fg_backend_null(), 64);
    char text[256] = "";
    fg_request_desc d;
    api_job(a);
    api_text(a, "hello world", 8, NULL, NULL, "hello wo", 8, 8, FG_FINISH_LENGTH);
    d = a->j.desc;
    d.user = NULL;
    CHECK(fg_generate(a->e, &d, api_add_text, text) == FG_OK && strcmp(text, "hello wo") == 0);
    CHECK(fg_generate(a->e, &d, NULL, NULL) == FG_OK);
    d.n = -1;
    CHECK(fg_generate(a->e, &d, NULL, NULL) == FG_ERROR_INVALID_ARGUMENT);
    api_close(a);
}

/* ---- a device that fails */

static int api_fail_in, api_n_submits;

/* Without a queue. */
static void api_plain_caps(fg_device *device, fg_device_caps *caps) {
    fg_backend_null()->caps(device, caps);
    caps->in_flight = 1;
}

static fg_result api_fail_submit(fg_device *device, fg_plan *plan, const fg_batch *batch) {
    if (++api_n_submits == api_fail_in) return fg__fail(FG_ERROR_DEVICE, "the test's device fails in pass %d", api_n_submits);
    return fg_backend_null()->submit(device, plan, batch);
}

/* Whoever is in a pass that fails ends with the error; the others, and those that come later, go on as ever. */
static void test_engine_device_failure(void) {
    enum { N = 12 };
    model_spec spec = model_spec_tiny();
    model_sample m;
    fg_backend backend = *fg_backend_null();
    job *alone = (job *)malloc(N * sizeof(job)), *jobs = (job *)malloc(N * sizeof(job));
    uint64_t random = 77;
    fg_engine_desc d;
    int i, failed = 0, good = 0;
    backend.submit = api_fail_submit;
    model_sample_open(&m, &spec);
    for (i = 0; i < N; i++) job_random(&alone[i], &random, 60, 20);
    jobs_alone(m.model, alone, N);
    d = engine_desc(m.model, &backend);
    d.max_seqs = 3;
    d.token_budget = 20;
    d.kv_tokens = 256;
    for (api_fail_in = 1; api_fail_in < 120; api_fail_in++) {
        fg_engine *e;
        d.async = (fg_async)(api_fail_in % 3);
        backend.caps = api_fail_in % 2 ? fg_backend_null()->caps : api_plain_caps;
        e = engine_new(&d);
        api_n_submits = 0;
        memcpy(jobs, alone, N * sizeof(job));
        for (i = 0; e && i < N; i++) {
            job_clear(&jobs[i]);
            CHECK(job_submit(e, &jobs[i]) == FG_OK);
        }
        if (e) jobs_run(e);
        for (i = 0; e && i < N; i++) {
            job_check_ends(&jobs[i]);
            CHECKF(job_same(&jobs[i], &alone[i]), "job %d, fail in %d: n %d best %d beams %d finish %d", i, api_fail_in, jobs[i].desc.n, jobs[i].desc.best_of, jobs[i].desc.n_beams, jobs[i].finish);
            CHECK((jobs[i].finish == FG_FINISH_ERROR) == (jobs[i].result == FG_ERROR_DEVICE));
            failed += jobs[i].finish == FG_FINISH_ERROR;
            good += jobs[i].finish != FG_FINISH_ERROR;
        }
        if (e) engine_check_idle(e);
        fg_engine_free(e);
    }
    CHECK(failed > 100 && good > 1000);
    model_sample_close(&m);
    free(alone);
    free(jobs);
}

/* As of a backend in another translation unit, which cannot set the text. */
static fg_result api_fail_silently(fg_device *device, fg_plan *plan, const fg_batch *batch) {
    return ++api_n_submits == api_fail_in ? FG_ERROR_DEVICE : fg_backend_null()->submit(device, plan, batch);
}

/* The text of an earlier failure stays while all goes well, and never passes for that of a failure without one. */
static void test_engine_failure_text(void) {
    model_spec spec = model_spec_tiny();
    model_sample m;
    fg_backend backend = *fg_backend_null();
    fg_engine_desc d;
    fg_request_desc request;
    fg_engine *e;
    backend.submit = api_fail_silently;
    model_sample_open(&m, &spec);
    d = engine_desc(m.model, &backend);
    memset(&request, 0, sizeof(request));
    request.prompt = "ab";
    request.max_tokens = 5;
    request.ignore_eos = true;
    e = engine_new(&d);
    api_fail_in = 8;
    api_n_submits = 0;
    CHECK(fg_engine_create(NULL, NULL) == FG_ERROR_INVALID_ARGUMENT && strstr(fg_last_error(), "fg_engine_create"));
    CHECK(fg_generate(e, &request, NULL, NULL) == FG_OK && strstr(fg_last_error(), "fg_engine_create"));
    CHECK(fg_generate(e, &request, NULL, NULL) == FG_ERROR_DEVICE && strcmp(fg_last_error(), fg_result_text(FG_ERROR_DEVICE)) == 0);
    fg_engine_free(e);
    model_sample_close(&m);
}

/* Samples that end long before they might owe no load that later ones would wait for. */
static void test_engine_level_samples(void) {
    model_spec spec = model_spec_tiny();
    model_sample m;
    fg_engine_desc d;
    fg_request_desc request;
    fg_request id;
    fg_event event;
    fg_engine *e;
    bool busy = true;
    bool begun = false;
    model_sample_open(&m, &spec);
    d = engine_desc(m.model, fg_backend_null());
    d.kv_level = 2000;
    memset(&request, 0, sizeof(request));
    request.prompt = "ab";
    request.n = 8;
    request.sampling.temperature = 1;
    request.ignore_eos = true;
    e = engine_new(&d);
    CHECK(fg_submit(e, &request, &id) == FG_OK);
    while (!begun && fg_step(e, 0, &busy) == FG_OK && busy)
        while (fg_next_event(e, &event)) begun = begun || event.type == FG_EVENT_TOKEN;
    CHECK(e->sched.owed > 0);
    fg_cancel(e, id);
    while (busy && fg_step(e, 0, &busy) == FG_OK) {}
    while (fg_next_event(e, &event)) {}
    CHECKF(e->sched.owed == 0, "%g is owed", e->sched.owed);
    fg_engine_free(e);
    model_sample_close(&m);
}

/* ---- memory that runs out: every allocation in turn, from loading to the last event */

/* Whether a result may come of a failed allocation. A backend that cannot open is passed over. */
static bool memory_result(fg_result r) { return r == FG_OK || r == FG_ERROR_OUT_OF_MEMORY; }

static void memory_jobs(fg_engine *e, job *jobs, const job *alone, int n, int *ended_badly) {
    int i;
    bool busy = true;
    fg_request_desc text;
    fg_request request;
    fg_event event;
    memset(&text, 0, sizeof(text));
    text.prompt = "ab";
    CHECK(memory_result(fg_submit(e, &text, &request)));
    fg_cancel(e, request);
    fg_step(e, 0, &busy);
    while (fg_next_event(e, &event)) {}
    busy = true;
    for (i = 0; i < n; i++) {
        job_clear(&jobs[i]);
        CHECK(memory_result(job_submit(e, &jobs[i])));
    }
    while (busy) {
        CHECK(fg_step(e, 0, &busy) == FG_OK);
        jobs_take(e);
    }
    for (i = 0; i < n; i++) {
        if (!jobs[i].submitted) continue;
        job_check_ends(&jobs[i]);
        CHECKF(job_same(&jobs[i], &alone[i]), "job %d when allocation %d fails", i, test_alloc_fail_at);
        CHECK(jobs[i].finish != FG_FINISH_ERROR || jobs[i].result == FG_ERROR_OUT_OF_MEMORY);
        *ended_badly += jobs[i].finish == FG_FINISH_ERROR;
    }
    engine_check_idle(e);
}

static void memory_run(const model_spec *spec, const fg_backend *backend, int n_jobs, fg_async async) {
    enum { MOST = 6 };
    job alone[MOST], *jobs = (job *)malloc(MOST * sizeof(job));
    uint64_t random = 1234;
    model_sample m;
    int fail, i, ended_badly = 0, loaded = 0, created = 0;
    model_sample_open(&m, spec);
    for (i = 0; i < n_jobs; i++) job_random(&alone[i], &random, 40, 8);
    for (i = 0; i < n_jobs; i++) alone[i].desc.n = i ? 0 : 3;
    for (i = 0; i < n_jobs; i++) alone[i].desc.best_of = i == 1 ? 2 : 0;
    for (i = 0; i < n_jobs; i++) alone[i].desc.n_beams = 0;
    if (n_jobs > 2) {
        alone[2].desc.n_beams = 3;
        alone[2].desc.n_stop = alone[2].desc.n_draft = alone[2].desc.sampling.n_logit_bias = 0;
        alone[2].desc.prompt_logprobs = false;
        alone[2].desc.max_tokens = 6;
    }
    if (backend != fg_backend_cpu()) {
        jobs_alone(m.model, alone, n_jobs);
    } else {
        fg_engine_desc d = engine_desc(m.model, backend);
        fg_engine *e = engine_new(&d);
        for (i = 0; i < n_jobs; i++) CHECK(job_submit(e, &alone[i]) == FG_OK);
        jobs_run(e);
        fg_engine_free(e);
    }
    for (fail = 1;; fail++) {
        fg_allocator allocator = test_allocator(fail), engines = allocator; /* a model has its own, whoever shares it */
        fg_model_desc md;
        fg_model *model = NULL;
        fg_engine *e = NULL;
        fg_engine_desc d;
        fg_result r;
        memset(&md, 0, sizeof(md));
        md.data = m.file;
        md.size = m.size;
        md.allocator = &allocator;
        r = fg_model_load(&md, &model);
        CHECK(memory_result(r) && (r == FG_OK) == (model != NULL));
        loaded += model != NULL;
        d = engine_desc(model, backend);
        engines.user = &engines;
        d.allocator = &engines;
        d.token_budget = 32;
        d.kv_tokens = backend != fg_backend_cpu() ? 96 : 512; /* little, so that requests are set back */
        d.block_tokens = 16;
        d.preemption = FG_PREEMPT_SWAP;
        d.max_seqs = 4;
        d.async = async;
        if (async != FG_ASYNC_OFF) d.draft_model = model;
        if (model) r = fg_engine_create(&d, &e);
        CHECK(memory_result(r) && (r == FG_OK) == (e != NULL));
        created += e != NULL;
        memcpy(jobs, alone, (size_t)n_jobs * sizeof(job));
        if (e && strcmp(fg_engine_get_backend(e), backend->name) == 0) memory_jobs(e, jobs, alone, n_jobs, &ended_badly);
        fg_engine_free(e);
        fg_model_free(model);
        CHECKF(test_alloc_live() == 0, "%d leaks when allocation %d fails", test_alloc_live(), fail);
        CHECKF(test_alloc_foreign() == 0, "%d blocks went to another's allocator when allocation %d fails", test_alloc_foreign(), fail);
        if (!test_alloc_failed() || test_failures > 5) break;
    }
    CHECK(loaded > 10 && created > 10 && ended_badly > 10);
    model_sample_close(&m);
    free(jobs);
}

static void test_engine_memory_null(void) {
    model_spec spec = model_spec_tiny();
    spec.window = 9;
    spec.full_every = 2;
    memory_run(&spec, fg_backend_null(), 5, FG_ASYNC_OFF);
    spec.arch = "qwen3next";
    spec.n_experts = 4;
    spec.n_used = 2;
    memory_run(&spec, fg_backend_null(), 4, FG_ASYNC_OFF);
}

static void test_engine_memory_cpu(void) {
    model_spec spec = model_spec_tiny();
    spec.n_layers = 1;
    memory_run(&spec, fg_backend_cpu(), 2, FG_ASYNC_OFF);
}

/* With a draft model, and passes in flight that a thread drives. */
static void test_engine_memory_async(void) {
    model_spec spec = model_spec_tiny();
    static fg_backend backend;
    backend = *fg_backend_null();
    backend.caps = api_plain_caps;
    memory_run(&spec, &backend, 5, FG_ASYNC_OVERLAP);
}

/* ---- threads */

enum { THREAD_SUBMITTERS = 4, THREAD_JOBS = 30 };

typedef struct thread_world {
    fg_engine *e;
    job *jobs; /* [THREAD_SUBMITTERS * THREAD_JOBS] */
    int next;  /* submitter's number */
    int n_ended, stop, n_refused;
} thread_world;

/* Events point to these, for the job itself belongs to the thread that takes events. */
static void thread_submit(void *user) {
    thread_world *w = (thread_world *)user;
    int who = fg__atomic_add(&w->next, 1), i;
    uint64_t random = (uint64_t)who;
    for (i = 0; i < THREAD_JOBS; i++) {
        job *j = &w->jobs[who * THREAD_JOBS + i];
        fg_request handle;
        while (fg_submit(w->e, &j->desc, &handle) == FG_ERROR_QUEUE_FULL) {
            fg__atomic_add(&w->n_refused, 1);
            fg_wait(w->e, FG_WAIT_EVENT, 0.0005);
        }
        if (job_below(&random, 4) == 0) fg_cancel(w->e, handle);
    }
}

static void thread_step(void *user) {
    thread_world *w = (thread_world *)user;
    while (!fg__atomic_load(&w->stop))
        if (fg_wait(w->e, FG_WAIT_WORK, 0.01)) fg_step(w->e, 0, NULL);
}

static void thread_take(void *user) {
    thread_world *w = (thread_world *)user;
    fg_event event;
    while (fg__atomic_load(&w->n_ended) < THREAD_SUBMITTERS * THREAD_JOBS) {
        if (!fg_next_event(w->e, &event)) {
            fg_wait(w->e, FG_WAIT_EVENT, 0.01);
            continue;
        }
        ((job *)event.user)->handle = event.request;
        job_event((job *)event.user, &event);
        if (event.type != FG_EVENT_END) continue;
        if (fg_cancel(w->e, event.request) == FG_OK) ((job *)event.user)->wrong = true;
        fg__atomic_add(&w->n_ended, 1);
    }
}

static void thread_storm(const fg_backend *backend, int n_threads, fg_async async) {
    enum { N = THREAD_SUBMITTERS * THREAD_JOBS };
    model_spec spec = model_spec_tiny();
    model_sample m;
    thread_world w;
    fg__thread threads[THREAD_SUBMITTERS + 3];
    uint64_t random = 8;
    fg_engine_desc d;
    fg_stats stats;
    int i, n_threads_up = 0, cancelled = 0;
    memset(&w, 0, sizeof(w));
    w.jobs = (job *)malloc(N * sizeof(job));
    model_sample_open(&m, &spec);
    d = engine_desc(m.model, backend);
    d.n_threads = n_threads;
    d.async = async;
    d.max_queue = 10;
    d.max_seqs = 8;
    d.kv_tokens = 512;
    w.e = engine_new(&d);
    for (i = 0; i < N; i++) {
        job_random(&w.jobs[i], &random, 40, 12);
        job_point(&w.jobs[i]);
    }
    for (i = 0; w.e && i < THREAD_SUBMITTERS + 3; i++)
        n_threads_up += fg__thread_start(&threads[i], i < THREAD_SUBMITTERS ? thread_submit : i == THREAD_SUBMITTERS + 2 ? thread_take : thread_step, &w);
    CHECK(n_threads_up == THREAD_SUBMITTERS + 3);
    while (w.e && fg__atomic_load(&w.n_ended) < N) { /* a fourth kind of thread: looks on */
        fg_get_stats(w.e, &stats);
        CHECK(stats.n_running <= 8 && stats.blocks_used + stats.blocks_cached <= stats.blocks_total);
        if (stats.n_passes % 50 == 7) fg_clear_prefix_cache(w.e);
        if (stats.n_passes % 50 == 9) fg_reset_stats(w.e);
        fg_wait(w.e, FG_WAIT_EVENT, 0.001);
    }
    fg__atomic_store(&w.stop, 1);
    for (i = 0; i < n_threads_up; i++) fg__thread_join(&threads[i]);
    for (i = 0; i < N; i++) {
        job_check_ends(&w.jobs[i]);
        cancelled += w.jobs[i].finish == FG_FINISH_CANCELLED;
    }
    CHECK(cancelled < N);
    fg_engine_free(w.e);
    model_sample_close(&m);
    free(w.jobs);
}

static void thread_step_once(void *user) {
    thread_world *w = (thread_world *)user;
    fg_step(w->e, 0, NULL);
    fg__atomic_store(&w->stop, 1);
}

/* A thread that steps gives way to one that asks for something in between; else that might not get its turn for many passes. */
static void thread_turns(void) {
    api *a = api_open(fg_backend_null(), 64);
    thread_world w;
    fg__thread thread;
    memset(&w, 0, sizeof(w));
    w.e = a->e;
    CHECK(job_submit(a->e, api_job(a)) == FG_OK);
    fg__mutex_lock(&a->e->lock);
    a->e->n_asking++;
    fg__mutex_unlock(&a->e->lock);
    if (fg__thread_start(&thread, thread_step_once, &w)) {
        (void)fg_wait(a->e, FG_WAIT_EVENT, 0.02);
        CHECK(!fg__atomic_load(&w.stop));
        fg__mutex_lock(&a->e->lock);
        a->e->n_asking--; /* as this thread does when it comes */
        fg__mutex_unlock(&a->e->lock);
        fg_clear_prefix_cache(a->e);
        fg__thread_join(&thread);
        CHECK(w.stop && a->e->n_asking == 0);
    }
    jobs_run(a->e);
    api_close(a);
}

static void test_engine_threads(void) {
#if defined(FG_NO_THREADS)
    SKIP("this build has no threads");
#else
    thread_storm(fg_backend_null(), 1, FG_ASYNC_OFF);
    thread_storm(NULL, 2, FG_ASYNC_OFF);
    thread_storm(fg_backend_null(), 1, FG_ASYNC_OVERLAP);
    thread_storm(NULL, 2, FG_ASYNC_OVERLAP);
    thread_storm(NULL, 2, FG_ASYNC_2);
    thread_turns();
#endif
}

static void run_engine_tests(void) {
    RUN(test_engine_null_full);
    RUN(test_engine_null_window);
    RUN(test_engine_null_mixed);
    RUN(test_engine_null_state);
    RUN(test_engine_bits_f32);
    RUN(test_engine_bits_q8_window);
    RUN(test_engine_bits_gemma3);
    RUN(test_engine_bits_experts);
    RUN(test_engine_bits_state);
    RUN(test_engine_bits_bf16);
    RUN(test_engine_bits_q4k);
    RUN(test_engine_bits_samples);
    RUN(test_engine_kv_bound);
    RUN(test_engine_stop_strings);
    RUN(test_engine_stops_random);
    RUN(test_engine_utf8);
    RUN(test_engine_end_tokens);
    RUN(test_engine_hook);
    RUN(test_engine_logprobs);
    RUN(test_engine_logprobs_mixed);
    RUN(test_engine_sampling);
    RUN(test_engine_lengths);
    RUN(test_engine_handles);
    RUN(test_engine_queue);
    RUN(test_engine_queue_boards);
    RUN(test_engine_queue_samples);
    RUN(test_engine_cancel);
    RUN(test_engine_time);
    RUN(test_engine_wait);
#if !defined(_WIN32) && !defined(__APPLE__) && !defined(FG_NO_THREADS)
    RUN(test_engine_wait_clock);
#endif
    RUN(test_engine_bad_requests);
    RUN(test_engine_bad_engines);
    RUN(test_engine_desc_back);
    RUN(test_engine_memory);
    RUN(test_engine_meta);
    RUN(test_engine_states);
    RUN(test_engine_state_prefix);
    RUN(test_engine_state_kept);
    RUN(test_engine_pool_bytes);
    RUN(test_engine_generate);
    RUN(test_engine_device_failure);
    RUN(test_engine_failure_text);
    RUN(test_engine_level_samples);
    RUN(test_engine_memory_null);
    RUN(test_engine_memory_cpu);
    RUN(test_engine_memory_async);
    RUN(test_engine_threads);
}
