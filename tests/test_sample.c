/* The sampler against a reference that sorts everything in double precision, and against chi-squared limits. */

#define SAMPLE_MAX_VOCAB 5000

/* ---- the reference ---- */

typedef struct ref_token {
    int id;
    double logit, key, p; /* key: order of the filter in progress, smallest first */
} ref_token;

typedef struct ref_result {
    int n;
    ref_token kept[SAMPLE_MAX_VOCAB]; /* survivors in order of id; p at the sampling temperature, sums to 1 */
    bool close; /* some filter's cut was so near a border that rounding may decide it */
} ref_result;

static int ref_compare_keys(const void *a, const void *b) {
    const ref_token *x = (const ref_token *)a, *y = (const ref_token *)b;
    if (x->key != y->key) return x->key < y->key ? -1 : 1;
    return x->id - y->id;
}

static int ref_compare_ids(const void *a, const void *b) {
    return ((const ref_token *)a)->id - ((const ref_token *)b)->id;
}

static void ref_softmax(ref_result *r, double temperature) {
    double max = -INFINITY, sum = 0.0;
    int i;
    for (i = 0; i < r->n; i++) max = r->kept[i].logit > max ? r->kept[i].logit : max;
    for (i = 0; i < r->n; i++) sum += r->kept[i].p = exp((r->kept[i].logit - max) / temperature);
    for (i = 0; i < r->n; i++) r->kept[i].p /= sum;
}

/* Sorts by key and keeps the shortest prefix with a probability of at least `mass`. */
static void ref_nucleus(ref_result *r, double mass) {
    double sum = 0.0;
    int n = 0;
    qsort(r->kept, (size_t)r->n, sizeof(ref_token), ref_compare_keys);
    while (n < r->n) {
        sum += r->kept[n++].p;
        if (fabs(sum - mass) < 1e-5) r->close = true;
        if (sum >= mass) break;
    }
    if (n < r->n && r->kept[n].key != r->kept[n - 1].key && fabs(r->kept[n].key - r->kept[n - 1].key) < 1e-5)
        r->close = true;
    r->n = n;
}

static void ref_typical(ref_result *r, double mass) {
    double entropy = 0.0;
    int i;
    ref_softmax(r, 1.0);
    for (i = 0; i < r->n; i++)
        if (r->kept[i].p > 0.0) entropy -= r->kept[i].p * log(r->kept[i].p);
    for (i = 0; i < r->n; i++) r->kept[i].key = fabs(-log(r->kept[i].p) - entropy);
    ref_nucleus(r, mass);
}

static void ref_min_p(ref_result *r, double min_p) {
    double max = 0.0;
    int i, n = 0;
    ref_softmax(r, 1.0);
    for (i = 0; i < r->n; i++) max = r->kept[i].p > max ? r->kept[i].p : max;
    for (i = 0; i < r->n; i++) {
        if (fabs(r->kept[i].p / (min_p * max) - 1.0) < 1e-5) r->close = true;
        if (r->kept[i].p >= min_p * max) r->kept[n++] = r->kept[i];
    }
    r->n = n;
}

/* Logits after penalties and bias, from the definitions, one token at a time. */
static double ref_logit(const fg_sampling *p, const fg__sample_input *in, int token) {
    double x = in->logits[token];
    int i, seen = 0, generated = 0, first = p->penalty_window ? in->n_history - p->penalty_window : 0;
    for (i = first > 0 ? first : 0; i < in->n_history; i++) {
        seen += in->history[i] == token;
        generated += in->history[i] == token && i >= in->n_prompt;
    }
    if (seen && p->repetition_penalty > 0) x = x > 0 ? x / p->repetition_penalty : x * p->repetition_penalty;
    if (generated) x -= p->presence_penalty + generated * (double)p->frequency_penalty;
    for (i = 0; i < p->n_logit_bias; i++)
        if (p->logit_bias[i].token == token) x += p->logit_bias[i].bias;
    for (i = 0; i < in->n_banned; i++)
        if (in->banned[i] == token) x = -INFINITY;
    return x;
}

static void ref_filter(const fg_sampling *p, const fg__sample_input *in, ref_result *r) {
    int i;
    r->n = 0;
    r->close = false;
    for (i = 0; i < in->n_vocab; i++) {
        double x = ref_logit(p, in, i);
        if (!(x > -INFINITY)) continue;
        r->kept[r->n].id = i;
        r->kept[r->n].logit = x;
        r->kept[r->n].p = 0.0;
        r->kept[r->n++].key = -x;
    }
    if (p->top_k > 0 && p->top_k < r->n) {
        qsort(r->kept, (size_t)r->n, sizeof(ref_token), ref_compare_keys);
        r->n = p->top_k;
    }
    if (p->typical_p > 0 && p->typical_p < 1) ref_typical(r, p->typical_p);
    for (i = 0; i < r->n; i++) r->kept[i].key = -r->kept[i].logit;
    ref_softmax(r, 1.0);
    if (p->top_p > 0 && p->top_p < 1) ref_nucleus(r, p->top_p);
    if (p->min_p > 0) ref_min_p(r, p->min_p);
    qsort(r->kept, (size_t)r->n, sizeof(ref_token), ref_compare_ids);
    ref_softmax(r, p->temperature > 0 ? p->temperature : 1e-9);
}

/* The token where the running sum of probabilities, in order of id, passes u; -1 when u is too near a border. */
static int ref_draw(const ref_result *r, double u) {
    double sum = 0.0;
    int i;
    for (i = 0; i < r->n; i++) {
        sum += r->kept[i].p;
        if (fabs(sum - u) < 2e-5) return -1;
        if (u < sum) return r->kept[i].id;
    }
    return -1;
}

/* ---- inputs ---- */

static fg__sample_scratch sample_scratch;
static ref_result sample_ref;

static double sample_unit(uint64_t *state) { return (double)(test_random(state) >> 11) / 9007199254740992.0; }

static float sample_normal(uint64_t *state) {
    double sum = 0.0;
    int i;
    for (i = 0; i < 12; i++) sum += sample_unit(state);
    return (float)(sum - 6.0);
}

/* Like a model's: a bulk, a few high ones; a third of the rows have many equal logits. */
static void sample_logits(uint64_t *state, float *x, int n) {
    int i, peaks = (int)(test_random(state) % 12), ties = test_random(state) % 3 == 0;
    float width = 0.5f + 3.0f * (float)sample_unit(state);
    for (i = 0; i < n; i++) x[i] = width * sample_normal(state);
    for (i = 0; i < peaks; i++) x[test_random(state) % (unsigned)n] = 8.0f + 2.0f * sample_normal(state);
    for (i = 0; ties && i < n; i++) x[i] = (float)floor(x[i] * 2.0f) / 2.0f;
}

/* Any mix of filters, each in about half of the cases. */
static void sample_parameters(uint64_t *state, fg_sampling *p) {
    memset(p, 0, sizeof(*p));
    p->temperature = (float)(0.2 + 2.0 * sample_unit(state));
    if (test_random(state) % 2) p->top_k = 1 + (int)(test_random(state) % 100);
    if (test_random(state) % 2) p->top_p = (float)(0.01 + 0.99 * sample_unit(state));
    if (test_random(state) % 2) p->min_p = (float)(0.3 * sample_unit(state));
    if (test_random(state) % 3 == 0) p->typical_p = (float)(0.05 + 0.95 * sample_unit(state));
}

static void sample_penalties(uint64_t *state, fg_sampling *p) {
    if (test_random(state) % 2) p->repetition_penalty = (float)(0.5 + 1.5 * sample_unit(state));
    if (test_random(state) % 2) p->presence_penalty = (float)(4.0 * sample_unit(state) - 1.0);
    if (test_random(state) % 2) p->frequency_penalty = (float)(2.0 * sample_unit(state) - 0.5);
    if (test_random(state) % 2) p->penalty_window = 1 + (int)(test_random(state) % 60);
}

static void sample_row(const float *x, int n, fg_row_result *row) {
    double sum = 0.0;
    int i;
    memset(row, 0, sizeof(*row));
    for (i = 1; i < n; i++)
        if (x[i] > x[row->token]) row->token = i;
    row->logit = x[row->token];
    for (i = 0; i < n; i++) sum += exp((double)x[i] - row->logit);
    row->log_sum_exp = (float)(row->logit + log(sum));
}

static int32_t sample_once(const fg_sampling *p, const fg__sample_input *in) {
    fg__env env = fg__env_make(NULL, NULL, NULL);
    fg__sample_output out;
    fg__sampler s;
    s.p = *p;
    CHECK(fg__sampler_check(p, in->n_vocab) == FG_OK);
    CHECK(fg__sample(&env, &sample_scratch, &s, in, &out) == FG_OK);
    return out.token;
}

static int32_t sample_plain(const fg_sampling *p, const float *x, int n, int position) {
    fg__sample_input in;
    memset(&in, 0, sizeof(in));
    in.logits = x;
    in.n_vocab = n;
    in.position = position;
    return sample_once(p, &in);
}

static int sample_contains(const ref_result *r, int id) {
    int i;
    for (i = 0; i < r->n; i++)
        if (r->kept[i].id == id) return 1;
    return 0;
}

/* ---- against the reference ---- */

/* Every draw must be the reference's for the same random number; at a temperature of 1000 draws spread over all
   survivors, so a filter that keeps one too many or too few shows up. */
static void sample_compare(uint64_t *state, const fg_sampling *p, fg__sample_input *in, int draws, int *compared) {
    fg_sampling q = *p;
    int i;
    ref_filter(&q, in, &sample_ref);
    for (i = 0; i < draws && !sample_ref.close; i++) {
        int32_t token, expected;
        in->seed = test_random(state);
        in->position = i;
        token = sample_once(&q, in);
        CHECKF(sample_contains(&sample_ref, token), "token %d, k %d p %g min %g typical %g", token, q.top_k, q.top_p,
               q.min_p, q.typical_p);
        expected = ref_draw(&sample_ref, fg__uniform(in->seed, in->position));
        if (expected < 0) continue;
        CHECKF(token == expected, "%d, not %d: k %d p %g min %g typical %g t %g", token, expected, q.top_k, q.top_p,
               q.min_p, q.typical_p, q.temperature);
        ++*compared;
    }
}

static void sample_filters_equal_full_sort(void) {
    static float x[SAMPLE_MAX_VOCAB];
    uint64_t state = 1;
    int round, compared = 0;
    for (round = 0; round < 1500; round++) {
        fg_sampling p;
        fg__sample_input in;
        fg_row_result row;
        memset(&in, 0, sizeof(in));
        in.n_vocab = 1 + (int)(test_random(&state) % (round % 3 ? 300 : SAMPLE_MAX_VOCAB));
        in.logits = x;
        sample_logits(&state, x, in.n_vocab);
        sample_row(x, in.n_vocab, &row);
        if (round % 2) in.row = &row;
        sample_parameters(&state, &p);
        if (round % 4 == 0) p.temperature = 1000.0f;
        sample_compare(&state, &p, &in, 10, &compared);
    }
    CHECKF(compared > 12000, "only %d draws could be compared", compared);
}

static void sample_penalties_equal_definition(void) {
    static float x[SAMPLE_MAX_VOCAB];
    uint64_t state = 2;
    int round, i, compared = 0;
    for (round = 0; round < 800; round++) {
        fg_sampling p;
        fg__sample_input in;
        fg_logit_bias bias[8];
        int32_t history[100], banned[2];
        memset(&in, 0, sizeof(in));
        in.logits = x;
        in.n_vocab = 20 + (int)(test_random(&state) % 60);
        sample_logits(&state, x, in.n_vocab);
        for (i = 0; i < 100; i++) history[i] = (int32_t)(test_random(&state) % (unsigned)in.n_vocab);
        in.history = history;
        in.n_history = (int)(test_random(&state) % 101);
        in.n_prompt = in.n_history ? (int)(test_random(&state) % (unsigned)in.n_history) : 0;
        sample_parameters(&state, &p);
        sample_penalties(&state, &p);
        for (i = 0; i < 8; i++) {
            bias[i].token = (int32_t)(test_random(&state) % (unsigned)in.n_vocab);
            bias[i].bias = i == 0 ? -INFINITY : 2.0f * sample_normal(&state);
        }
        p.logit_bias = bias;
        p.n_logit_bias = (int)(test_random(&state) % 9);
        for (i = 0; i < 2; i++) banned[i] = (int32_t)(test_random(&state) % (unsigned)in.n_vocab);
        in.banned = banned;
        in.n_banned = (int)(test_random(&state) % 3);
        sample_compare(&state, &p, &in, 10, &compared);
    }
    CHECKF(compared > 6000, "only %d draws could be compared", compared);
}

static void sample_greedy(void) {
    static float x[SAMPLE_MAX_VOCAB];
    uint64_t state = 3;
    int round;
    for (round = 0; round < 200; round++) {
        int n = 1 + (int)(test_random(&state) % SAMPLE_MAX_VOCAB);
        fg_sampling p;
        fg_row_result row;
        sample_logits(&state, x, n);
        sample_row(x, n, &row);
        sample_parameters(&state, &p);
        p.temperature = 0.0f;
        CHECK(sample_plain(&p, x, n, round) == row.token);
        p.temperature = 1.0f;
        p.top_k = 1;
        p.top_p = p.typical_p = p.min_p = 0.0f;
        CHECK(sample_plain(&p, x, n, round) == row.token);
        p.top_k = 0;
        p.top_p = 1e-6f;
        CHECK(sample_plain(&p, x, n, round) == row.token);
        p.top_p = 0.0f;
        p.temperature = 1e-30f;
        CHECK(x[sample_plain(&p, x, n, round)] == row.logit); /* of equals any */
    }
}

/* Orders that defeat simple selections: rising, falling, all equal, two values, and cuts inside the equals. */
static void sample_hard_orders(void) {
    static float x[SAMPLE_MAX_VOCAB];
    uint64_t state = 4;
    int shape, k, i, compared = 0, n = SAMPLE_MAX_VOCAB;
    for (shape = 0; shape < 5; shape++) {
        for (i = 0; i < n; i++) {
            const float values[5] = {(float)i / 1000, (float)-i / 1000, 1.5f, (float)(i % 2), i % 2 ? 0.0f : -0.0f};
            x[i] = values[shape];
        }
        for (k = 1; k < n; k = k * 3 + 1) {
            fg_sampling p;
            fg__sample_input in;
            memset(&p, 0, sizeof(p));
            memset(&in, 0, sizeof(in));
            in.logits = x;
            in.n_vocab = n;
            p.temperature = 1000.0f;
            p.top_k = k;
            sample_compare(&state, &p, &in, 20, &compared);
            p.top_p = 0.37f;
            sample_compare(&state, &p, &in, 20, &compared);
        }
    }
    CHECKF(compared > 500, "only %d draws could be compared", compared);
}

/* ---- statistics ---- */

/* The chi-squared value that a right distribution exceeds once in a million times (Wilson and Hilferty). */
static double chi_limit(int freedom) {
    double a = 2.0 / (9.0 * freedom), b = 1.0 - a + 4.753 * sqrt(a);
    return freedom * b * b * b;
}

static double chi_squared(const double *expected, const int *counts, int n, int draws, int *freedom) {
    double sum = 0.0;
    int i;
    *freedom = -1;
    for (i = 0; i < n; i++) {
        double mean = expected[i] * draws;
        if (mean <= 0.0 && counts[i]) return INFINITY;
        if (mean <= 0.0) continue;
        sum += (counts[i] - mean) * (counts[i] - mean) / mean;
        ++*freedom;
    }
    return sum;
}

/* Draws `draws` times, over positions or over seeds, and compares with `expected` [n]. */
static bool sample_fits(const fg_sampling *p, const float *x, int n, const double *expected, int draws,
                        bool over_seeds) {
    int counts[64] = {0}, i, freedom;
    double chi;
    for (i = 0; i < draws; i++) {
        fg__sample_input in;
        memset(&in, 0, sizeof(in));
        in.logits = x;
        in.n_vocab = n;
        in.seed = over_seeds ? (uint64_t)i : 7;
        in.position = over_seeds ? 3 : i;
        counts[sample_once(p, &in)]++;
    }
    chi = chi_squared(expected, counts, n, draws, &freedom);
    return chi < chi_limit(freedom);
}

static void sample_expected(const fg_sampling *p, const float *x, int n, double *expected) {
    fg__sample_input in;
    int i;
    memset(&in, 0, sizeof(in));
    in.logits = x;
    in.n_vocab = n;
    ref_filter(p, &in, &sample_ref);
    for (i = 0; i < n; i++) expected[i] = 0.0;
    for (i = 0; i < sample_ref.n; i++) expected[sample_ref.kept[i].id] = sample_ref.kept[i].p;
}

static void sample_distribution(void) {
    float x[40];
    double expected[40];
    uint64_t state = 5;
    int round, i;
    for (round = 0; round < 8; round++) {
        fg_sampling p, wrong;
        for (i = 0; i < 40; i++) x[i] = 1.2f * sample_normal(&state);
        memset(&p, 0, sizeof(p));
        p.temperature = 0.6f + 0.2f * (float)round;
        p.top_k = round & 1 ? 20 : 0;
        p.top_p = round & 2 ? 0.9f : 0.0f;
        p.min_p = round & 4 ? 0.02f : 0.0f;
        sample_expected(&p, x, 40, expected);
        CHECKF(sample_fits(&p, x, 40, expected, 30000, round % 2), "round %d", round);
        wrong = p; /* the test can tell: a temperature 30% off does not fit */
        wrong.temperature *= 1.3f;
        CHECKF(!sample_fits(&wrong, x, 40, expected, 30000, round % 2), "round %d", round);
    }
}

/* Pairs of random numbers of neighbouring positions, neighbouring seeds, and of seed + 1 at position - 1. */
static void sample_random_pairs(void) {
    static int counts[3][256];
    double expected[256];
    int i, k, freedom, draws = 200000;
    memset(counts, 0, sizeof(counts));
    for (i = 0; i < 256; i++) expected[i] = 1.0 / 256;
    for (i = 0; i < draws; i++) {
        uint64_t seed = (uint64_t)(i / 1000);
        int position = i % 1000, here = (int)(fg__uniform(seed, position) * 16);
        counts[0][here * 16 + (int)(fg__uniform(seed, position + 1) * 16)]++;
        counts[1][here * 16 + (int)(fg__uniform(seed + 1, position) * 16)]++;
        counts[2][here * 16 + (int)(fg__uniform(seed + 1, position - 1) * 16)]++;
    }
    for (k = 0; k < 3; k++) {
        double chi = chi_squared(expected, counts[k], 256, draws, &freedom);
        CHECKF(chi < chi_limit(freedom), "pair kind %d: %g", k, chi);
    }
    for (i = 0; i < draws; i++) { /* a generator that repeats itself fails */
        int here = (int)(fg__uniform(0, i) * 16);
        counts[0][here * 16 + here]++;
    }
    CHECK(chi_squared(expected, counts[0], 256, 2 * draws, &freedom) > chi_limit(freedom));
}

static void sample_exp_is_exact_enough(void) {
    double worst = 0.0;
    float x;
    for (x = 0.0f; x > -87.3f; x -= 0.00037f) {
        double error = fabs((double)fg__exp_negative(x) / exp((double)x) - 1.0);
        worst = test_worse(worst, error);
    }
    CHECKF(worst < 3e-7, "worst relative error %g", worst);
    CHECK(fg__exp_negative(0.0f) == 1.0f);
    CHECK(fg__exp_negative(-INFINITY) == 0.0f);
    CHECK(fg__exp_negative(NAN) == 0.0f && fg__exp_negative(-NAN) == 0.0f);
    CHECK(fg__exp_negative(-FLT_MAX) == 0.0f);
}

/* Registers of every width give the same bits: what a seed draws does not depend on the machine. */
static void sample_exp_widths(void) {
    float x[FG__EXP_BLOCK], wide[FG__EXP_BLOCK];
    uint64_t random = 5;
    int round, i;
    for (round = 0; round < 20000; round++) {
        float temperature = round % 3 ? 1.0f : 0.7f, max = round % 4 ? 0.0f : 3.25f;
        for (i = 0; i < FG__EXP_BLOCK; i++) {
            uint32_t bits = (uint32_t)(random = fg__mix64(random + 1));
            x[i] = (float)(bits >> 8) * (-100.0f / 16777216.0f);
            if (round % 2) memcpy(&x[i], &bits, sizeof(bits)); /* NaN, infinities, denormals, ... */
        }
        fg__exp_all(x, max, temperature, wide);
        for (i = 0; i < FG__EXP_BLOCK; i++) {
            float one = fg__exp_negative((x[i] - max) / temperature);
            if (memcmp(&one, &wide[i], sizeof(one)) != 0) break;
        }
        CHECK(i == FG__EXP_BLOCK);
#if FG__X86
        if (__builtin_cpu_supports("avx2")) {
            float narrow[FG__EXP_BLOCK];
            fg__exp_all_avx2(x, max, temperature, narrow);
            CHECK(memcmp(narrow, wide, sizeof(wide)) == 0);
        }
#endif
    }
}

/* ---- logprobs ---- */

static void sample_check_logprobs(fg__sample_input *in, const fg_sampling *p) {
    fg__env env = fg__env_make(NULL, NULL, NULL);
    fg__sample_output out;
    fg__sampler s;
    double sum = 0.0;
    int i;
    s.p = *p;
    for (i = 0; i < in->n_vocab; i++) sum += exp((double)in->logits[i]);
    CHECK(fg__sample(&env, &sample_scratch, &s, in, &out) == FG_OK);
    CHECK(fabs(out.logprob - ((double)in->logits[out.token] - log(sum))) < 1e-5);
    CHECK(out.n_top == (in->n_top < in->n_vocab ? in->n_top : in->n_vocab));
    fg_sampling none;
    memset(&none, 0, sizeof(none));
    ref_filter(&none, in, &sample_ref);
    qsort(sample_ref.kept, (size_t)sample_ref.n, sizeof(ref_token), ref_compare_keys);
    for (i = 0; i < out.n_top; i++) {
        CHECK(out.top[i].token == sample_ref.kept[i].id);
        CHECK(fabs(out.top[i].logprob - (sample_ref.kept[i].logit - log(sum))) < 1e-5);
    }
}

static void sample_logprobs(void) {
    static float x[SAMPLE_MAX_VOCAB];
    uint64_t state = 6;
    int round;
    for (round = 0; round < 200; round++) {
        fg__sample_input in;
        fg_sampling p;
        fg_row_result row;
        int32_t history[3] = {0, 0, 0};
        memset(&in, 0, sizeof(in));
        in.logits = x;
        in.n_vocab = 1 + (int)(test_random(&state) % (round % 2 ? 30 : SAMPLE_MAX_VOCAB));
        sample_logits(&state, x, in.n_vocab);
        sample_row(x, in.n_vocab, &row);
        if (round % 3) in.row = &row;
        in.history = history; /* penalties must not show in logprobs */
        in.n_history = 3;
        in.want_logprob = true;
        in.n_top = (int)(test_random(&state) % (FG_MAX_TOP_LOGPROBS + 1));
        sample_parameters(&state, &p);
        p.repetition_penalty = 1.3f;
        sample_check_logprobs(&in, &p);
    }
}

static void sample_without_logits(void) {
    fg__env env = fg__env_make(NULL, NULL, NULL);
    fg__sample_scratch scratch;
    fg__sample_input in;
    fg__sample_output out;
    fg__sampler s;
    fg_row_result row = {17, 3.5f, 4.0f};
    memset(&scratch, 0, sizeof(scratch));
    memset(&in, 0, sizeof(in));
    memset(&s, 0, sizeof(s));
    in.n_vocab = 100;
    in.row = &row;
    in.want_logprob = true;
    CHECK(!fg__sampler_needs_logits(&s));
    CHECK(fg__sample(&env, &scratch, &s, &in, &out) == FG_OK && out.token == 17 && out.logprob == -0.5f);
    CHECK(scratch.capacity == 0);
    row.token = 100; /* a device gone wrong */
    CHECK(fg__sample(&env, &scratch, &s, &in, &out) == FG_OK && out.token == 0);
    in.n_top = 2;
    CHECK(fg__sample(&env, &scratch, &s, &in, &out) == FG_ERROR_INVALID_ARGUMENT);
    in.n_top = 0;
    s.p.temperature = 1.0f;
    CHECK(fg__sampler_needs_logits(&s));
    CHECK(fg__sample(&env, &scratch, &s, &in, &out) == FG_ERROR_INVALID_ARGUMENT);
}

/* ---- edges ---- */

static void sample_strange_logits(void) {
    float x[8] = {NAN, 1, INFINITY, -INFINITY, 2, INFINITY, -NAN, 0};
    int round, i, seen = 0;
    uint64_t state = 8;
    for (round = 0; round < 300; round++) { /* +inf beats all others, whatever the filters */
        fg_sampling p;
        int token;
        sample_parameters(&state, &p);
        if (round % 10 == 0) p.temperature = 0.0f;
        token = sample_plain(&p, x, 8, round);
        seen |= 1 << token;
        CHECK(token == 2 || token == 5);
    }
    CHECK(seen == (1 << 2 | 1 << 5));
    x[2] = x[5] = NAN;
    for (round = 0; round < 300; round++) { /* NaN and -inf never come */
        fg_sampling p;
        int token;
        sample_parameters(&state, &p);
        token = sample_plain(&p, x, 8, round);
        CHECK(token == 1 || token == 4 || token == 7);
    }
    for (i = 0; i < 8; i++) x[i] = NAN;
    for (round = 0; round < 50; round++) {
        fg_sampling p;
        sample_parameters(&state, &p);
        CHECK(sample_plain(&p, x, 8, round) == 0);
    }
    x[5] = -FLT_MAX;
    x[6] = FLT_MAX;
    for (round = 0; round < 50; round++) {
        fg_sampling p;
        sample_parameters(&state, &p);
        CHECK(sample_plain(&p, x, 8, round) == 6);
    }
}

static void sample_all_banned(void) {
    float x[4] = {1, 3, 2, 3};
    fg_logit_bias bias[4] = {{0, -INFINITY}, {1, -INFINITY}, {2, -INFINITY}, {3, -INFINITY}};
    fg_logit_bias others[3] = {{1, -INFINITY}, {2, -INFINITY}, {3, -INFINITY}};
    int32_t banned[5] = {0, 1, 3, 4000, -7}, end = 0;
    fg__sample_input in;
    fg_sampling p;
    int i;
    memset(&p, 0, sizeof(p));
    memset(&in, 0, sizeof(in));
    in.logits = x;
    in.n_vocab = 4;
    p.temperature = 1.0f;
    p.logit_bias = bias;
    p.n_logit_bias = 4;
    for (i = 0; i < 20; i++, in.position++) CHECK(sample_once(&p, &in) == 1); /* falls back to the model's best */
    p.n_logit_bias = 0;
    in.banned = banned;
    in.n_banned = 5;
    for (i = 0; i < 20; i++, in.position++) CHECK(sample_once(&p, &in) == 2);
    p.temperature = 0.0f;
    CHECK(sample_once(&p, &in) == 2);
    p.logit_bias = others; /* an end token that may not come yet, but is all that the bias leaves */
    p.n_logit_bias = 3;
    in.banned = &end;
    in.n_banned = 1;
    CHECK(sample_once(&p, &in) == 0);
    p.temperature = 1.0f;
    for (i = 0; i < 20; i++, in.position++) CHECK(sample_once(&p, &in) == 0);
}

static void sample_history_out_of_range(void) {
    float x[4] = {1, 3, 2, 0};
    int32_t history[5] = {-1, 4, 1 << 30, INT_MIN, 1};
    fg__sample_input in;
    fg_sampling p;
    memset(&p, 0, sizeof(p));
    memset(&in, 0, sizeof(in));
    in.logits = x;
    in.n_vocab = 4;
    in.history = history;
    in.n_history = 5;
    p.presence_penalty = 1.5f;
    CHECK(sample_once(&p, &in) == 2);
    in.n_prompt = 5; /* presence looks at the output only */
    CHECK(sample_once(&p, &in) == 1);
    p.repetition_penalty = 2.0f;
    CHECK(sample_once(&p, &in) == 2);
}

/* The same input gives the same token whatever the scratch was used for before; nothing else is changed by it. */
static void sample_is_pure(void) {
    static float x[SAMPLE_MAX_VOCAB], y[SAMPLE_MAX_VOCAB];
    uint64_t state = 9;
    int round, i;
    for (round = 0; round < 300; round++) {
        fg__env env = fg__env_make(NULL, NULL, NULL);
        fg__sample_scratch fresh;
        fg__sample_input in;
        fg__sample_output out;
        fg__sampler s;
        int32_t history[50];
        memset(&fresh, 0, sizeof(fresh));
        memset(&in, 0, sizeof(in));
        in.logits = x;
        in.n_vocab = 50 + (int)(test_random(&state) % 4000);
        sample_logits(&state, x, in.n_vocab);
        memcpy(y, x, sizeof(y));
        for (i = 0; i < 50; i++) history[i] = (int32_t)(test_random(&state) % 50);
        in.history = history;
        in.n_history = 50;
        in.n_prompt = 20;
        in.seed = test_random(&state);
        in.position = round;
        sample_parameters(&state, &s.p);
        sample_penalties(&state, &s.p);
        CHECK(fg__sample(&env, &fresh, &s, &in, &out) == FG_OK);
        CHECK(out.token == sample_once(&s.p, &in));
        CHECK(memcmp(x, y, sizeof(y)) == 0);
        for (i = 0; i < fresh.capacity; i++) CHECK(fresh.marks[i] == 0);
        fg__sample_scratch_free(&env, &fresh);
    }
}

/* Known tokens for known seeds: a change here changes what users' seeds mean. */
static void sample_seeds_stay(void) {
    float x[16];
    int i;
    uint64_t text = 0;
    fg_sampling p;
    memset(&p, 0, sizeof(p));
    p.temperature = 1.0f;
    for (i = 0; i < 16; i++) x[i] = (float)(i % 5) * 0.5f;
    for (i = 0; i < 16; i++) text = text * 16 + (uint64_t)sample_plain(&p, x, 16, i);
    CHECKF(text == 0x9b7ad3d469732996ull, "0x%llxull", (unsigned long long)text);
}

static void sample_bad_parameters(void) {
    fg_logit_bias bias = {5, 1.0f};
    fg_sampling p, zero;
    memset(&zero, 0, sizeof(zero));
    CHECK(fg__sampler_check(&zero, 10) == FG_OK);
#define SAMPLE_BAD(field, value, word)                              \
    p = zero;                                                       \
    p.field = (value);                                              \
    CHECK(fg__sampler_check(&p, 10) == FG_ERROR_INVALID_ARGUMENT);  \
    CHECKF(strstr(fg_last_error(), word) != NULL, "%s", fg_last_error())
    SAMPLE_BAD(temperature, -0.1f, "temperature");
    SAMPLE_BAD(temperature, NAN, "temperature");
    SAMPLE_BAD(temperature, INFINITY, "temperature");
    SAMPLE_BAD(top_k, -1, "top_k");
    SAMPLE_BAD(top_p, 1.01f, "top_p");
    SAMPLE_BAD(top_p, -0.01f, "top_p");
    SAMPLE_BAD(top_p, NAN, "top_p");
    SAMPLE_BAD(min_p, 2.0f, "min_p");
    SAMPLE_BAD(min_p, NAN, "min_p");
    SAMPLE_BAD(typical_p, -1.0f, "typical_p");
    SAMPLE_BAD(typical_p, NAN, "typical_p");
    SAMPLE_BAD(repetition_penalty, -1.0f, "repetition_penalty");
    SAMPLE_BAD(repetition_penalty, NAN, "repetition_penalty");
    SAMPLE_BAD(presence_penalty, INFINITY, "presence_penalty");
    SAMPLE_BAD(frequency_penalty, NAN, "frequency_penalty");
    SAMPLE_BAD(penalty_window, -1, "penalty_window");
    SAMPLE_BAD(n_logit_bias, 1, "logit_bias");
    SAMPLE_BAD(n_logit_bias, -1, "logit_bias");
#undef SAMPLE_BAD
    p = zero;
    p.logit_bias = &bias;
    p.n_logit_bias = 1;
    CHECK(fg__sampler_check(&p, 10) == FG_OK);
    CHECK(fg__sampler_check(&p, 5) == FG_ERROR_INVALID_ARGUMENT);
    bias.token = -1;
    CHECK(fg__sampler_check(&p, 10) == FG_ERROR_INVALID_ARGUMENT);
    bias.token = 5;
    bias.bias = NAN;
    CHECK(fg__sampler_check(&p, 10) == FG_ERROR_INVALID_ARGUMENT);
    bias.bias = INFINITY;
    CHECK(fg__sampler_check(&p, 10) == FG_ERROR_INVALID_ARGUMENT);
    bias.bias = -INFINITY;
    CHECK(fg__sampler_check(&p, 10) == FG_OK);
}

typedef struct sample_heap {
    int left, live, calls; /* allocations before failure; blocks not yet freed; calls that allocate */
} sample_heap;

static void *sample_realloc(void *pointer, size_t size, void *user) {
    sample_heap *heap = (sample_heap *)user;
    if (size == 0) {
        heap->live--;
        free(pointer);
        return NULL;
    }
    heap->calls++;
    if (heap->left-- <= 0) return NULL;
    if (!pointer) heap->live++;
    return realloc(pointer, size);
}

static void sample_out_of_memory(void) {
    sample_heap heap;
    fg_allocator allocator;
    fg__sample_scratch scratch;
    fg__sample_input in;
    fg__sample_output out;
    fg__sampler s;
    float x[100] = {0};
    int fail, round;
    memset(&scratch, 0, sizeof(scratch));
    memset(&in, 0, sizeof(in));
    memset(&s, 0, sizeof(s));
    memset(&heap, 0, sizeof(heap));
    allocator.realloc = sample_realloc;
    allocator.user = &heap;
    in.logits = x;
    in.n_vocab = 100;
    s.p.temperature = 1.0f;
    for (fail = 0;; fail++) {
        fg__env env = fg__env_make(&allocator, NULL, NULL);
        heap.left = fail;
        if (fg__sample(&env, &scratch, &s, &in, &out) == FG_OK) {
            heap.calls = 0; /* and from now on it allocates nothing */
            for (round = 0; round < 100; round++, in.position++)
                CHECK(fg__sample(&env, &scratch, &s, &in, &out) == FG_OK);
            CHECK(heap.calls == 0);
            fg__sample_scratch_free(&env, &scratch);
            break;
        }
        CHECK(strstr(fg_last_error(), "out of memory") != NULL);
        CHECK(heap.live == 0 && scratch.capacity == 0);
    }
    CHECK(fail == 3 && heap.live == 0);
}

static void run_sample_tests(void) {
    fg__env env = fg__env_make(NULL, NULL, NULL);
    RUN(sample_exp_is_exact_enough);
    RUN(sample_exp_widths);
    RUN(sample_filters_equal_full_sort);
    RUN(sample_penalties_equal_definition);
    RUN(sample_greedy);
    RUN(sample_hard_orders);
    RUN(sample_distribution);
    RUN(sample_random_pairs);
    RUN(sample_logprobs);
    RUN(sample_without_logits);
    RUN(sample_strange_logits);
    RUN(sample_all_banned);
    RUN(sample_history_out_of_range);
    RUN(sample_is_pure);
    RUN(sample_seeds_stay);
    RUN(sample_bad_parameters);
    RUN(sample_out_of_memory);
    fg__sample_scratch_free(&env, &sample_scratch);
}
