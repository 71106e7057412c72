/* Sampling from what a device picks out of a row: the same tokens, bit for bit, as from the row itself; the devices' candidates
   and draws beside sorting and adding up in doubles; the distribution of draws by Pearson's chi-squared test; what a request draws
   must not depend on what those beside it need. */

/* ---- The host's side ---- */

typedef struct draw_row {
    const float *logits;
    int fetched;
} draw_row;

static fg_result draw_fetch(void *user, const float **logits) {
    draw_row *row = (draw_row *)user;
    row->fetched++;
    *logits = row->logits;
    return FG_OK;
}

/* The `most` highest in order of ids, none where others are equal to one left out. */
static void draw_candidates(const float *x, int n, int most, fg_row_candidates *out) {
    float *sorted = (float *)malloc((size_t)n * sizeof(float));
    int i, j, count = 0;
    for (i = 0; i < n; i++)
        if (x[i] > -INFINITY) sorted[count++] = x[i];
    for (i = 1; i < count; i++) { /* the first most + 1 of an insertion sort */
        float one = sorted[i];
        for (j = i > most + 1 ? most + 1 : i; j > 0 && sorted[j - 1] < one; j--) sorted[j] = sorted[j - 1];
        sorted[j] = one;
    }
    out->floor = count > most ? sorted[most] : -INFINITY;
    out->n = 0;
    for (i = 0; i < n; i++)
        if (x[i] > out->floor) {
            out->items[out->n].token = i;
            out->items[out->n++].logit = x[i];
        }
    out->drawn = -1;
    out->drawn_logit = 0;
    free(sorted);
}

/* A request's parameters, some of them such that the row itself is needed. */
static fg_sampling draw_sampling(uint64_t *state, fg_logit_bias *bias) {
    static const float temperatures[] = {0.0f, 0.3f, 1.0f, 2.5f}, ps[] = {0.0f, 0.5f, 0.9f, 0.999f}, mins[] = {0.0f, 0.05f, 0.5f};
    static const int ks[] = {0, 1, 7, 40, 100, 128, 200};
    fg_sampling p;
    memset(&p, 0, sizeof(p));
    p.temperature = temperatures[test_random(state) % 4];
    if (test_random(state) % 2) p.top_k = ks[test_random(state) % 7];
    if (test_random(state) % 2) p.top_p = ps[test_random(state) % 4];
    if (test_random(state) % 3 == 0) p.min_p = mins[test_random(state) % 3];
    if (test_random(state) % 6 == 0) p.typical_p = 0.7f;
    if (test_random(state) % 4 == 0) p.repetition_penalty = test_random(state) % 4 ? 1.3f : 0.8f;
    if (test_random(state) % 6 == 0) p.presence_penalty = test_random(state) % 4 ? 0.5f : -0.5f;
    if (test_random(state) % 6 == 0) p.frequency_penalty = 0.25f;
    if (test_random(state) % 5 == 0) {
        bias[0].token = (int32_t)(test_random(state) % 20);
        bias[0].bias = test_random(state) % 2 ? -INFINITY : 1.5f;
        bias[1].token = (int32_t)(test_random(state) % 300);
        bias[1].bias = -2.0f;
        p.logit_bias = bias;
        p.n_logit_bias = 2;
    }
    return p;
}

/* Whatever the parameters: candidates give the row's token, log-probability and alternatives. */
static void test_draw_candidates(void) {
    fg_allocator allocator;
    fg__env env;
    fg__sample_scratch scratch;
    uint64_t state = 11;
    int round, fetched = 0, i;
    memset(&scratch, 0, sizeof(scratch));
    memset(&allocator, 0, sizeof(allocator));
    env = fg__env_make(&allocator, NULL, NULL);
    for (round = 0; round < 20000; round++) {
        static float x[700];
        fg_logit_bias bias[2];
        int32_t history[30], banned[2];
        fg__sampler sampler;
        fg__sample_input in;
        fg__sample_output from_row, from_some;
        fg_row_candidates some;
        fg_row_result best;
        draw_row row;
        int n = round % 5 == 0 ? 40 : 700, scale = 1 + (int)(test_random(&state) % 8);
        double sum = 0;
        for (i = 0; i < n; i++) {
            x[i] = (float)(int64_t)(test_random(&state) % 20001) / 10000.0f * (float)scale;
            if (round % 3 == 0) x[i] = floorf(x[i] * 4) / 4; /* many equals */
            if (round % 7 == 0 && test_random(&state) % 4 == 0) x[i] = -INFINITY;
        }
        for (i = 0; i < 30; i++) history[i] = (int32_t)(test_random(&state) % (uint64_t)n);
        banned[0] = (int32_t)(test_random(&state) % (uint64_t)n);
        banned[1] = fg__find_logit(x, n, fg__max_logit(x, n));
        draw_candidates(x, n, round % 2 ? FG_MAX_CANDIDATES : 30, &some);
        memset(&sampler, 0, sizeof(sampler));
        memset(&in, 0, sizeof(in));
        sampler.p = draw_sampling(&state, bias);
        for (i = 0; i < sampler.p.n_logit_bias; i++) bias[i].token %= n;
        best.token = banned[1];
        best.logit = x[best.token];
        for (i = 0; i < n; i++) sum += exp((double)x[i] - (double)best.logit);
        best.log_sum_exp = best.logit + (float)log(sum);
        in.n_vocab = n;
        in.history = history;
        in.n_history = 30;
        in.n_prompt = 10;
        in.seed = 5;
        in.position = round;
        in.row = &best;
        in.banned = banned;
        in.n_banned = round % 6 == 0 ? 2 : 0;
        in.n_top = round % 4 == 0 ? 5 : 0;
        in.want_logprob = round % 2 == 0;
        in.logits = x;
        CHECK(fg__sample(&env, &scratch, &sampler, &in, &from_row) == FG_OK);
        in.logits = NULL;
        in.candidates = &some;
        in.fetch = draw_fetch;
        in.fetch_user = &row;
        row.logits = x;
        row.fetched = 0;
        CHECK(fg__sample(&env, &scratch, &sampler, &in, &from_some) == FG_OK);
        fetched += row.fetched;
        CHECKF(memcmp(&from_row, &from_some, sizeof(from_row)) == 0,
               "round %d: token %d, not %d; k %d p %g min %g typical %g t %g; logprob %g %g", round, from_some.token, from_row.token, sampler.p.top_k,
               (double)sampler.p.top_p, (double)sampler.p.min_p, (double)sampler.p.typical_p, (double)sampler.p.temperature,
               (double)from_some.logprob, (double)from_row.logprob);
    }
    CHECKF(fetched > 1000 && fetched < 14000, "%d rows were needed", fetched);
    for (i = 0; i < scratch.capacity; i++) CHECK(scratch.marks[i] == 0);
    fg__sample_scratch_free(&env, &scratch);
}

/* ---- The devices' side ---- */

/* The row that a batch's token i has is row i of a table. */
static cpu_rig *draw_rig(int n, int rows, float **table) {
    cpu_rig *rig = cpu_rig_new(rows);
    uint64_t state = 23;
    int x = cpu_slot(rig, n, false);
    cpu_op(rig, FG_OP_EMBED, -1, x, n)->weight = cpu_weight(rig, FG_TYPE_F32, n, rows, FG_OP_EMBED, &state);
    *table = (float *)(void *)rig->data[0];
    cpu_rig_end(rig, x);
    return rig;
}

/* What adding up in doubles says of a draw: how far u is outside of the token's part of [0, 1). */
static double draw_miss(const float *x, int n, const fg_row_draw *draw, int token) {
    double sum = 0, before = 0, top = -INFINITY, from, to;
    int i;
    for (i = 0; i < n; i++)
        if ((double)x[i] > top) top = (double)x[i];
    for (i = 0; i < n; i++) {
        double w = x[i] == x[i] ? exp(((double)x[i] - top) / (double)draw->temperature) : 0;
        if (i < token) before += w;
        sum += w;
    }
    from = before / sum;
    to = (before + exp(((double)x[token] - top) / (double)draw->temperature)) / sum;
    return (double)draw->u < from ? from - (double)draw->u : (double)draw->u > to ? (double)draw->u - to : 0;
}

static void draw_check_width(const char *path, int n) {
    enum { ROWS = 8 };
    fg_row_draw draws[ROWS];
    fg_row_candidates expected;
    float *table;
    cpu_rig *rig = draw_rig(n, ROWS, &table);
    uint64_t state = (uint64_t)n;
    int row, i;
    for (i = 0; i < ROWS * n; i++) table[i] *= 4.0f;
    for (i = 0; i < n; i++) table[i] = 3.0f;                     /* row 0: all equal */
    for (i = 0; i < n; i++) table[n + i] = (float)NAN;           /* row 1: nothing */
    for (i = 0; i < n; i += 2) table[2 * n + i] = (float)NAN;    /* row 2: NaN between */
    for (i = 0; i < n; i += 3) table[3 * n + i] = -INFINITY;
    table[4 * n + n / 2] = INFINITY;
    for (i = 0; i < n; i++) table[5 * n + i] = floorf(table[5 * n + i]); /* row 5: many equals */
    for (row = 0; row < ROWS; row++) {
        draws[row].candidates = row != 7;
        draws[row].temperature = row == 6 ? 0.0f : 0.25f * (float)(row + 1);
        draws[row].u = (float)(test_random(&state) >> 40) / 16777216.0f;
    }
    draws[5].u = 0.99999994f;
    rig->batch.draws = draws;
    if (cpu_rig_open(rig, path, 2) == FG_OK) {
        CHECK(cpu_rig_run(rig, 0, ROWS) != NULL && rig->output.candidates != NULL);
        for (row = 0; row < ROWS && rig->output.candidates; row++) {
            const fg_row_candidates *got = &rig->output.candidates[row];
            const float *x = table + row * n;
            bool draws_one = draws[row].temperature > 0 && row != 1 && row != 4 && (n > 1 || (row != 2 && row != 3));
            draw_candidates(x, n, FG_MAX_CANDIDATES, &expected);
            if (!draws[row].candidates) expected.n = 0, expected.floor = INFINITY;
            CHECKF(got->n == expected.n && got->floor == expected.floor, "%s, %d wide, row %d: %d candidates over %g, not %d over %g", path, n, row,
                   got->n, (double)got->floor, expected.n, (double)expected.floor);
            CHECKF(got->n != expected.n || memcmp(got->items, expected.items, (size_t)got->n * sizeof(fg_candidate)) == 0, "%s, %d wide, row %d", path,
                   n, row);
            CHECKF((got->drawn >= 0) == draws_one && got->drawn < n, "%s, %d wide, row %d: drawn %d", path, n, row, got->drawn);
            if (got->drawn >= 0 && got->drawn < n) {
                CHECK(got->drawn_logit == x[got->drawn]);
                CHECKF(draw_miss(x, n, &draws[row], got->drawn) < 2e-6, "%s, %d wide, row %d: token %d misses u by %g", path, n, row, got->drawn,
                       draw_miss(x, n, &draws[row], got->drawn));
            }
            if (n == 5000) {
                float *whole = (float *)malloc((size_t)n * sizeof(float));
                CHECK(rig->backend->read_logits(rig->device, rig->plan, row, whole) == FG_OK);
                for (i = 0; i < n; i++) CHECK(memcmp(&whole[i], &x[i], 4) == 0 || (isnan(whole[i]) && isnan(x[i]))); /* NaN of any bits */
                free(whole);
            }
        }
        CHECK(rig->backend->read_logits(rig->device, rig->plan, -1, table) == FG_ERROR_INVALID_ARGUMENT);
        rig->batch.draws = NULL;
        CHECK(cpu_rig_run(rig, 0, ROWS) != NULL && rig->output.candidates == NULL);
    }
    cpu_rig_free(rig);
}

static const char *const draw_paths[] = {"vulkan", "cuda", "hip64"};

static bool draw_has(const char *path) { return cpu_is_vulkan(path) ? cpu_vulkan_device(0) != NULL : gpu_standin_open() && gpu_standin_image; }

static void test_draw_device(void) {
    static const int widths[] = {1, 3, 129, 300, 5000, 9001};
    int p, w, n = 0;
    for (p = 0; p < 3; p++)
        for (w = 0; w < 6 && draw_has(draw_paths[p]); w++, n++) draw_check_width(draw_paths[p], widths[w]);
    if (!n) SKIP("there is no GPU driver, and no stand-in");
}

/* Logits of a pass are read while the next one is in flight: not one of its kernels has run by then. */
static void test_draw_behind(void) {
    enum { ROWS = 4, N = 700 };
    standin_order late = {-1, 1}, usual = {-1, 0};
    standin_stats before, after;
    fg_row_draw draws[ROWS];
    float *table, whole[N];
    cpu_rig *rig;
    int p, i;
    if (!gpu_standin_open() || !gpu_standin_image) SKIP(GPU_NONE);
    for (p = 1; p < 3; p++) {
        rig = draw_rig(N, ROWS, &table);
        for (i = 0; i < ROWS; i++) draws[i].candidates = 1, draws[i].temperature = 0, draws[i].u = 0;
        rig->batch.draws = draws;
        gpu_standin.set_order(&late);
        if (cpu_rig_open(rig, draw_paths[p], 1) == FG_OK && cpu_rig_run(rig, 0, ROWS)) {
            CHECK(rig->backend->submit(rig->device, rig->plan, &rig->batch) == FG_OK);
            gpu_standin.get_stats(&before);
            for (i = 0; i < ROWS; i++) {
                CHECK(rig->backend->read_logits(rig->device, rig->plan, i, whole) == FG_OK && memcmp(whole, table + i * N, sizeof(whole)) == 0);
            }
            gpu_standin.get_stats(&after);
            CHECKF(after.launches == before.launches, "%s: %ld kernels of the next pass were waited for", draw_paths[p], after.launches - before.launches);
            CHECK(rig->backend->wait(rig->device, rig->plan, &rig->output) == FG_OK);
            gpu_standin.get_stats(&after);
            CHECK(after.launches > before.launches);
        }
        cpu_rig_free(rig);
        gpu_standin.set_order(&usual);
    }
    gpu_standin_check();
}

/* ---- The distribution ---- */

/* Of 3072 draws with the generator of requests: their chi-squared over tokens, beside the distribution at `expected`. */
static double draw_chi_squared(const char *path, int n, float temperature, float expected, int *degrees) {
    enum { ROWS = 32, PASSES = 96 };
    fg_row_draw draws[ROWS];
    float *table;
    cpu_rig *rig = draw_rig(n, ROWS, &table);
    double *p = (double *)calloc((size_t)n, sizeof(double)), sum = 0, chi = 0, rest = 0;
    int *counts = (int *)calloc((size_t)n, sizeof(int)), pass, row, i, others = 0;
    for (row = 0; row < ROWS; row++)
        for (i = 0; i < n; i++) table[row * n + i] = 3.0f * sinf(0.37f * (float)i) - (i % 100 ? 4.0f : 0.0f) * (n > 1000);
    for (i = 0; i < n; i++) sum += p[i] = exp((double)table[i] / (double)expected);
    memset(draws, 0, sizeof(draws));
    rig->batch.draws = draws;
    if (cpu_rig_open(rig, path, 2) == FG_OK)
        for (pass = 0; pass < PASSES; pass++) {
            for (row = 0; row < ROWS; row++) {
                draws[row].temperature = temperature;
                draws[row].u = (float)floor(fg__uniform(7, pass * ROWS + row) * 16777216.0) / 16777216.0f;
            }
            CHECK(cpu_rig_run(rig, 0, ROWS) != NULL);
            for (row = 0; row < ROWS; row++) counts[rig->output.candidates[row].drawn]++;
        }
    *degrees = 0;
    for (i = 0; i < n; i++) {
        double wanted = p[i] / sum * ROWS * PASSES;
        if (wanted < 5) {
            rest += wanted;
            others += counts[i];
            continue;
        }
        chi += ((double)counts[i] - wanted) * ((double)counts[i] - wanted) / wanted;
        ++*degrees;
    }
    if (rest >= 5) chi += ((double)others - rest) * ((double)others - rest) / rest;
    else --*degrees;
    cpu_rig_free(rig);
    free(p);
    free(counts);
    return chi;
}

/* Wilson and Hilferty: the cube root of chi-squared over its degrees of freedom is nearly normal. In standard deviations. */
static double draw_deviation(double chi, int degrees) {
    double d = degrees, spread = 2 / (9 * d);
    return (cbrt(chi / d) - (1 - spread)) / sqrt(spread);
}

static void test_draw_distribution(void) {
    int p, n = 0, degrees;
    for (p = 0; p < 3; p++) {
        double chi;
        if (!draw_has(draw_paths[p])) continue;
        chi = draw_chi_squared(draw_paths[p], 40, 1.5f, 1.5f, &degrees);
        CHECKF(degrees >= 25 && fabs(draw_deviation(chi, degrees)) < 4, "%s: chi-squared %g of %d degrees", draw_paths[p], chi, degrees);
        chi = draw_chi_squared(draw_paths[p], 40, 1.5f, 1.1f, &degrees); /* another distribution is told from it */
        CHECKF(draw_deviation(chi, degrees) > 6, "%s: chi-squared %g of %d degrees", draw_paths[p], chi, degrees);
        n++;
    }
    if (draw_has("vulkan")) { /* over several pieces */
        double chi = draw_chi_squared("vulkan", 9000, 1.0f, 1.0f, &degrees);
        CHECKF(degrees >= 25 && fabs(draw_deviation(chi, degrees)) < 4, "chi-squared %g of %d degrees", chi, degrees);
    }
    if (!n) SKIP("there is no GPU driver, and no stand-in");
}

/* ---- Engines ---- */

static void draw_hook(void *user, int sample, int position, const int32_t *tokens, float *logits, int n_vocab) {
    (void)user, (void)sample, (void)position, (void)tokens, (void)logits, (void)n_vocab;
}

/* Tokens and log-probabilities of requests of all kinds, with whole rows (a hook that does nothing) or with candidates. */
static int draw_generate(fg_model *model, const char *path, bool whole, fg_async async, int32_t *tokens, float *logprobs, int most) {
    fg_engine_desc d = engine_desc(model, cpu_backend_of(path));
    fg_engine *e;
    fg_event event;
    bool busy = true;
    int i, j, n[64] = {0};
    d.backend_options = cpu_gpu_options(path);
    d.device = cpu_gpu_device(path);
    d.token_budget = 20;
    d.max_context = 64;
    d.block_tokens = 16;
    d.async = async;
    e = engine_new(&d);
    CHECK(strcmp(fg_engine_get_backend(e), "cpu") != 0 && e->candidates == (e->native || async != FG_ASYNC_2));
    for (i = 0; i < 10; i++) {
        fg_request_desc r;
        fg_request handle;
        int32_t prompt[12];
        fg_logit_bias bias = {40, -3.0f};
        memset(&r, 0, sizeof(r));
        for (j = 0; j < 12; j++) prompt[j] = 5 + (i * 31 + j * 13) % 200;
        r.tokens = prompt;
        r.n_tokens = 12;
        r.max_tokens = 10;
        r.ignore_eos = r.logprobs = true;
        r.user = (void *)(size_t)(i * 4);
        r.sampling.temperature = i == 5 ? 0.0f : 1.2f;
        r.sampling.seed = (uint64_t)i;
        if (i == 0 || i == 4) r.sampling.top_k = 20;
        if (i == 1 || i == 4) r.sampling.top_p = 0.8f;
        if (i == 2) r.sampling.min_p = 0.2f;
        if (i == 3) r.sampling.repetition_penalty = 1.3f, r.sampling.top_k = 40;
        if (i == 5) r.sampling.logit_bias = &bias, r.sampling.n_logit_bias = 1, r.top_logprobs = 4;
        if (i == 7) r.n = 3; /* the first tokens of two samples come from another's row */
        if (i == 8) r.sampling.typical_p = 0.8f;
        if (i == 9) r.min_tokens = 5, r.ignore_eos = false, r.sampling.top_k = 5;
        if (whole) r.on_logits = draw_hook;
        CHECKF(fg_submit(e, &r, &handle) == FG_OK, "%s", fg_last_error());
    }
    while (busy) {
        CHECK(fg_step(e, 0, &busy) == FG_OK);
        while (fg_next_event(e, &event)) {
            int slot = (int)(size_t)event.user + event.sample;
            CHECKF(event.type != FG_EVENT_END || event.finish != FG_FINISH_ERROR, "%s", fg_result_name(event.result));
            if (event.type != FG_EVENT_TOKEN || slot >= most / 10 || n[slot] >= 10) continue;
            logprobs[slot * 10 + n[slot]] = event.logprob;
            tokens[slot * 10 + n[slot]++] = event.token;
        }
    }
    fg_engine_free(e);
    for (j = 0, i = 0; i < 64; i++) j += n[i];
    return j;
}

static void test_draw_engine(void) {
    enum { MOST = 400 };
    static const char *const paths[] = {"vulkan", "cuda-invariant", "hip64-invariant"};
    static int32_t tokens[4][MOST];
    static float logprobs[4][MOST];
    model_spec spec = model_spec_tiny();
    model_sample m;
    int p, i, j, n = 0;
    model_sample_open(&m, &spec);
    for (p = 0; p < 3 && m.model; p++) {
        const char *path = paths[p];
        if (!draw_has(path)) continue;
        for (i = 0; i < (p == 1 ? 4 : 2); i++) { /* passes of other tokens have the same bits only with invariance */
            static const fg_async asyncs[] = {FG_ASYNC_OFF, FG_ASYNC_OFF, FG_ASYNC_OVERLAP, FG_ASYNC_2};
            memset(tokens[i], 0, sizeof(tokens[i]));
            memset(logprobs[i], 0, sizeof(logprobs[i]));
            CHECK(draw_generate(m.model, path, i == 0, asyncs[i], tokens[i], logprobs[i], MOST) >= 110);
            for (j = 0; j < MOST; j++)
                CHECKF(tokens[i][j] == tokens[0][j], "%s, run %d, request %d, token %d: %d, not %d", path, i, j / 40, j % 10,
                       (int)tokens[i][j], (int)tokens[0][j]);
        }
        n++;
    }
    model_sample_close(&m);
    if (!n) SKIP("there is no GPU driver, and no stand-in");
}

/* ---- Beside others ---- */

enum { DRAW_TOKEN = 5 }; /* what the device below draws, whatever the logits */

static struct {
    fg_backend backend;
    fg_batch batch; /* as the engine gave it */
    float *logits;
    int n_vocab, fetched;
    fg_row_candidates found[64];
} draw_device;

static void draw_device_caps(fg_device *device, fg_device_caps *caps) {
    fg_backend_cpu()->caps(device, caps);
    caps->candidates = FG_MAX_CANDIDATES;
}

static fg_result draw_device_submit(fg_device *device, fg_plan *plan, const fg_batch *batch) {
    fg_batch own = *batch;
    CHECK(batch->n_rows <= 64);
    draw_device.batch = *batch;
    own.want_logits = true;
    own.draws = NULL;
    return fg_backend_cpu()->submit(device, plan, &own);
}

static fg_result draw_device_wait(fg_device *device, fg_plan *plan, fg_output *output) {
    fg_result r = fg_backend_cpu()->wait(device, plan, output);
    int i;
    if (r != FG_OK) return r;
    draw_device.logits = output->logits;
    for (i = 0; draw_device.batch.draws && i < draw_device.batch.n_rows; i++) {
        const fg_row_draw *ask = &draw_device.batch.draws[i];
        fg_row_candidates *found = &draw_device.found[i];
        draw_candidates(output->logits + (size_t)i * (size_t)draw_device.n_vocab, draw_device.n_vocab, FG_MAX_CANDIDATES, found);
        if (!ask->candidates) found->n = 0, found->floor = INFINITY;
        if (ask->temperature > 0) found->drawn = DRAW_TOKEN;
    }
    if (draw_device.batch.draws) output->candidates = draw_device.found;
    if (!draw_device.batch.want_logits) output->logits = NULL;
    return r;
}

static fg_result draw_device_read(fg_device *device, fg_plan *plan, int row, float *logits) {
    size_t n = (size_t)draw_device.n_vocab;
    (void)device, (void)plan;
    draw_device.fetched++;
    memcpy(logits, draw_device.logits + (size_t)row * n, n * sizeof(float));
    return FG_OK;
}

/* The CPU, but as a device that keeps its logits and draws. */
static fg_engine *draw_device_engine(fg_model *model, int max_seqs) {
    fg_engine_desc d = engine_desc(model, &draw_device.backend);
    draw_device.backend = *fg_backend_cpu();
    draw_device.backend.caps = draw_device_caps;
    draw_device.backend.submit = draw_device_submit;
    draw_device.backend.wait = draw_device_wait;
    draw_device.backend.read_logits = draw_device_read;
    draw_device.n_vocab = model_n_vocab();
    draw_device.fetched = 0;
    d.max_seqs = max_seqs;
    return engine_new(&d);
}

static void draw_job(job *j, int first, float temperature) {
    memset(j, 0, sizeof(*j));
    for (; j->desc.n_tokens < 6; j->desc.n_tokens++) j->prompt[j->desc.n_tokens] = first + (int)j->desc.n_tokens;
    j->desc.max_tokens = 8;
    j->desc.ignore_eos = true;
    j->desc.sampling.temperature = temperature;
}

/* Of the tokens of a sample from the i-th on, those that the device drew. */
static int draw_count(const job_sample *s, int i) {
    int n = 0;
    for (; i < s->n_tokens; i++) n += s->tokens[i] == DRAW_TOKEN;
    return n;
}

/* Greedy requests need no row, whoever is beside them, and a request's tokens are drawn by the device also where the rows came whole
   for another. */
static void draw_check_beside(fg_model *model, job *jobs, int whole) {
    fg_engine *e = draw_device_engine(model, 4);
    int i;
    for (i = 0; i < 4; i++) {
        draw_job(&jobs[i], 10 + 10 * i, i == 0 ? 1.0f : 0.0f);
        if (i == 3 && whole == 1) jobs[i].desc.sampling.temperature = 1, jobs[i].desc.sampling.typical_p = 0.5f;
        if (i == 3 && whole == 2) jobs[i].desc.prompt_logprobs = true;
        if (i == 3 && whole == 3) jobs[i].desc.on_logits = draw_hook;
        CHECKF(job_submit(e, &jobs[i]) == FG_OK, "%s", fg_last_error());
    }
    jobs_run(e);
    CHECKF(draw_device.fetched == 0, "case %d: %d rows were fetched", whole, draw_device.fetched);
    CHECKF(draw_count(&jobs[0].samples[0], 0) == 8, "case %d: %d of 8 tokens are the device's", whole, draw_count(&jobs[0].samples[0], 0));
    fg_engine_free(e);
}

/* The first tokens of a request's samples come from one row, in which the device drew for the first of them: the others are drawn
   here, also where they had to wait for a row of their own. */
static void draw_check_samples(fg_model *model, job *j, int max_seqs) {
    fg_engine *e = draw_device_engine(model, max_seqs);
    int i;
    draw_job(j, 10, 1.5f);
    j->desc.n = 3;
    CHECKF(job_submit(e, j) == FG_OK, "%s", fg_last_error());
    jobs_run(e);
    for (i = 0; i < 3; i++) {
        const job_sample *s = &j->samples[i];
        CHECK(s->n_tokens == 8 && draw_count(s, 1) == 7 && draw_count(s, 0) == (i ? 7 : 8));
    }
    CHECKF(draw_device.fetched == 2, "%d rows were fetched", draw_device.fetched);
    fg_engine_free(e);
}

static void test_draw_beside(void) {
    static job jobs[4], others[4];
    model_spec spec = model_spec_tiny();
    model_sample m;
    int i, whole;
    model_sample_open(&m, &spec);
    for (whole = 0; m.model && whole < 4; whole++) {
        draw_check_beside(m.model, jobs, whole);
        for (i = 1; i < 3; i++) {
            if (whole == 0) others[i] = jobs[i];
            CHECK(memcmp(jobs[i].samples[0].tokens, others[i].samples[0].tokens, sizeof(jobs[i].samples[0].tokens)) == 0);
        }
    }
    if (m.model) {
        draw_check_samples(m.model, &jobs[0], 4);
        draw_check_samples(m.model, &jobs[1], 1);
        for (i = 0; i < 3; i++) CHECK(jobs[0].samples[i].tokens[0] == jobs[1].samples[i].tokens[0]);
    }
    model_sample_close(&m);
}

static void run_draw_tests(void) {
    RUN(test_draw_candidates);
    RUN(test_draw_device);
    RUN(test_draw_behind);
    RUN(test_draw_distribution);
    RUN(test_draw_engine);
    RUN(test_draw_beside);
}
