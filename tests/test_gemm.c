/* Matrix products of every SIMD path this CPU has, against dequantised weights in double precision. */

/* The kernel for this machine's CPU. */
static const fg__gemm_kernel *gemm_find(int path, fg_type type, int64_t k) {
    fg__cpu_features cpu = fg__cpu_detect();
    return fg__gemm_kernel_find(&cpu, path, type, k);
}

#if FG__X86 || FG__ARM

#define GEMM_TOKENS 33

static const fg_type gemm_types[] = {
#define GEMM_TYPE(name, id, elements, bytes) FG_TYPE_##name,
    FG_TYPES(GEMM_TYPE)
#undef GEMM_TYPE
};

/* Where a block has halves: scales, which random bytes would make infinite or absurd. MXFP4 has a byte. */
static void gemm_set_scales(fg_type type, uint8_t *block, uint64_t *seed) {
    int i, at = 0, n = 1;
    switch ((int)type) {
    case FG_TYPE_Q2_K: at = 80; n = 2; break;
    case FG_TYPE_Q3_K: at = 108; break;
    case FG_TYPE_Q6_K: at = 208; break;
    case FG_TYPE_Q4_1:
    case FG_TYPE_Q5_1:
    case FG_TYPE_Q4_K:
    case FG_TYPE_Q5_K: n = 2; break;
    case FG_TYPE_MXFP4: block[0] = (uint8_t)(120 + test_random(seed) % 8); return;
    default: break;
    }
    for (i = 0; i < n; i++) {
        uint16_t half = fg__f32_to_f16((float)(test_random(seed) % 2001) * 1e-5f - 0.01f);
        memcpy(block + at + 2 * i, &half, 2);
    }
}

static float gemm_random_float(uint64_t *seed) {
    float sum = 0;
    int i;
    for (i = 0; i < 4; i++) sum += (float)(test_random(seed) % 65536) / 32768.0f - 1.0f;
    return sum;
}

enum { GEMM_RANDOM = -1, GEMM_RANDOM_BF16 = -2 };

/* Rows of random weights of any type; quants of `fill` everywhere when that is not negative; GEMM_RANDOM_BF16: floats that BF16 can hold. */
static void gemm_random_weights(fg_type type, uint8_t *to, size_t bytes, int fill, uint64_t *seed) {
    size_t i, block = (size_t)fg_type_bytes(type, 1), step;
    for (i = 0; i < bytes; i++) to[i] = (uint8_t)(fill < 0 ? (int)(test_random(seed) & 255) : fill);
    for (i = 0; block && i < bytes; i += block) {
        float value = fill == GEMM_RANDOM_BF16 ? fg__bf16_to_f32(fg__f32_to_bf16(gemm_random_float(seed))) : gemm_random_float(seed);
        uint16_t half = type == FG_TYPE_F16 ? fg__f32_to_f16(value) : fg__f32_to_bf16(value);
        if (type == FG_TYPE_F32) memcpy(to + i, &value, 4);
        else memcpy(to + i, &half, 2);
    }
    step = (size_t)(fg_type_bytes(type, 32) ? fg_type_bytes(type, 32) : fg_type_bytes(type, 256));
    for (i = 0; !block && i < bytes; i += step) gemm_set_scales(type, to + i, seed);
}

static int gemm_acts_are_bf16(const fg__gemm_kernel *kernel) {
#if FG__HAS_AMX
    return kernel->act_bytes == fg__act_bf16_bytes;
#else
    (void)kernel;
    return 0;
#endif
}

static int gemm_acts_are_split(const fg__gemm_kernel *kernel) {
#if FG__HAS_AMX
    return kernel->act_pack == fg__act_split_pack;
#else
    (void)kernel;
    return 0;
#endif
}

/* F16 as two BF16, too: the product of both lesser halves, each 2^-8 of its number or 2^-7 at most, is left out. */
static int gemm_weights_are_split(const fg__gemm_kernel *kernel) {
#if FG__HAS_AMX
    return kernel->pack == fg__panel_pack && gemm_acts_are_split(kernel);
#else
    (void)kernel;
    return 0;
#endif
}

/* BF16 as integers of 12 bits. */
static int gemm_is_w12(const fg__gemm_kernel *kernel) {
#if FG__X86
    return kernel->pack == fg__w12_pack;
#else
    (void)kernel;
    return 0;
#endif
}

/* The activations that a kernel sees after packing. */
static void gemm_unpack_acts(const fg__gemm_kernel *kernel, const uint8_t *packed, int64_t k, float *x) {
    int64_t i;
    for (i = 0; i < k; i++) {
        if (kernel->act_bytes == fg__act_q8_bytes) {
            const fg__act_q8 *a = (const fg__act_q8 *)(const void *)packed + i / 256;
            x[i] = a->scale[i % 256 / 32] * (float)a->q[i % 256];
        } else if (gemm_acts_are_bf16(kernel)) {
            x[i] = fg__bf16_to_f32(((const uint16_t *)(const void *)packed)[i]);
#if FG__HAS_AMX
        } else if (gemm_acts_are_split(kernel)) {
            const uint16_t *upper = (const uint16_t *)(const void *)packed, *rest = upper + fg__act_bf16_bytes(k) / 2;
            x[i] = fg__bf16_to_f32(upper[i]) + fg__bf16_to_f32(rest[i]);
#endif
#if FG__X86
        } else if (gemm_is_w12(kernel)) {
            const fg__act_w12 *a = (const fg__act_w12 *)(const void *)packed + i / 256;
            x[i] = a->scale * (float)a->q[i % 256];
#endif
        } else {
            x[i] = ((const float *)(const void *)packed)[i];
        }
    }
}

typedef struct gemm_case {
    const fg__gemm_kernel *kernel;
    fg_type type;
    int64_t k;
    int n_rows;
    int fill; /* negative: random weights and activations, else the largest possible sums; from 256 on with signs by gemm_sign */
    uint8_t *rows, *panel, *acts;
    size_t row_bytes, panel_bytes, act_stride;
    float *w, *x, *seen; /* dequantised rows; activations before and after packing */
    float *out;          /* [GEMM_TOKENS][32] */
} gemm_case;

static void *gemm_aligned(void **memory, size_t bytes) {
    *memory = calloc(bytes + 64, 1);
    return (void *)(((uintptr_t)*memory + 63) / 64 * 64);
}

/* The sign of the largest magnitudes: all alike, or the opposite in some places, which kernels add up apart. */
static float gemm_sign(const gemm_case *c, int t, int64_t i) {
    static const int64_t places[] = {2, 1, 4, 8, 3};
    bool other = c->fill >= 256 && (i & places[t / 2 % FG__COUNT(places)]) != 0;
    return (t % 2 != 0) != other ? -1.0f : 1.0f;
}

/* One row of activations: the largest magnitudes, nothing, almost nothing, or random. */
static void gemm_random_acts(const gemm_case *c, int t, float *x, uint64_t *seed) {
    int64_t i;
    for (i = 0; i < c->k; i++) {
        if (c->fill >= 0) x[i] = gemm_sign(c, t, i);
        else x[i] = gemm_random_float(seed) * (t == 4 ? 0.0f : t == 5 ? 1e-37f : i % 7 ? 1.0f : 3.0f);
    }
}

/* What packing must not touch is 0x5a; what it should write is NaN before. */
static void gemm_pack(gemm_case *c, uint64_t *seed) {
    int i;
    gemm_random_weights(c->type, c->rows, c->row_bytes * (size_t)c->n_rows, c->fill, seed);
    for (i = 0; i < c->n_rows; i++)
        fg__dequantize_row(c->type, c->rows + (size_t)i * c->row_bytes, c->w + i * c->k, c->k);
    memset(c->panel, 0xff, c->panel_bytes);
    memset(c->panel + c->panel_bytes, 0x5a, 64);
    memset(c->acts, 0xff, c->act_stride * GEMM_TOKENS);
    memset(c->acts + c->act_stride * GEMM_TOKENS, 0x5a, 64);
    c->kernel->pack(c->type, c->rows, c->row_bytes, c->n_rows, c->k, c->panel);
    for (i = 0; i < 64; i++) CHECK(c->panel[c->panel_bytes + (size_t)i] == 0x5a);
    for (i = 0; i < GEMM_TOKENS; i++) {
        gemm_random_acts(c, i, c->x + i * c->k, seed);
        c->kernel->act_pack(c->x + i * c->k, c->k, c->acts + (size_t)i * c->act_stride);
        gemm_unpack_acts(c->kernel, c->acts + (size_t)i * c->act_stride, c->k, c->seen + i * c->k);
    }
    for (i = 0; i < 64; i++) CHECK(c->acts[c->act_stride * GEMM_TOKENS + (size_t)i] == 0x5a);
}

#if FG__X86
/* Weight k of block `from` of a panel in 12 bits. */
static float gemm_w12_weight(const uint8_t *block, int row, int k) {
    int part, i = k % 4 / 2 * 2 + row / 16, word = row % 16 * 2 + k % 2, value = 0; /* register of a group, lane */
    int16_t words[3];
    uint16_t scale;
    memcpy(&scale, block + 2 * row, 2);
    for (part = 2; part >= 0; part--) {
        memcpy(&words[part], block + 64 + k / 4 * 192 + 64 * part + 2 * word, 2);
        value = value * 16 + (words[part] & 15) - (part == 2 ? (words[part] & 8) * 2 : 0);
    }
    return fg__bf16_to_f32(scale) * (float)(i < 3 ? (words[i] - (words[i] & 15)) / 16 : value);
}

/* No weight may be off by more than 1/4094 of the largest of its 128, and what the scale's rounding adds. */
static void gemm_unpack_w12(const gemm_case *c, float *w) {
    int64_t i, j;
    int row;
    for (row = 0; row < c->n_rows; row++) {
        const uint8_t *block = c->panel;
        for (i = 0; i < c->k; i += 128, block += 64 + 32 * 192) {
            float most = 0;
            for (j = i; j < FG__MIN(i + 128, c->k); j++) most = fmaxf(most, fabsf(c->w[row * c->k + j]));
            for (j = i; j < FG__MIN(i + 128, c->k); j++) {
                w[row * c->k + j] = gemm_w12_weight(block, row, (int)(j - i));
                CHECK(fabsf(w[row * c->k + j] - c->w[row * c->k + j]) <= most * 1.01f / 4094);
            }
        }
    }
}
#endif

/* The weights that a kernel sees after packing. */
static void gemm_unpack_weights(const gemm_case *c, float *w) {
    memcpy(w, c->w, (size_t)(c->k * c->n_rows) * sizeof(float));
#if FG__X86
    if (gemm_is_w12(c->kernel)) gemm_unpack_w12(c, w);
#endif
}

/* What the words that Q2_K's minimums are multiplied with add to a row's sum. None may be off by more than half a unit. */
static double gemm_words_add(const gemm_case *c, int row, int t) {
    double sum = 0;
#if FG__X86
    int64_t h, i;
    for (h = 0; c->type == FG_TYPE_Q2_K && c->kernel->act_bytes == fg__act_q8_bytes && h < c->k / 16; h++) {
        const fg__act_q8 *a = (const fg__act_q8 *)(const void *)(c->acts + (size_t)t * c->act_stride) + h / 16;
        const uint8_t *block = c->rows + (size_t)row * c->row_bytes + h / 16 * 84; /* scales, quants, d, dmin */
        double off = a->unit / -128.0 * a->word[h % 16];
        uint16_t dmin;
        for (i = 16 * h; i < 16 * h + 16; i++) off -= c->seen[t * c->k + i];
        CHECKF(fabs(off) <= a->unit / -128.0 * 0.51 + 1e-38, "%g of %g", off, (double)a->unit / -128);
        memcpy(&dmin, block + 82, 2);
        sum -= off * (double)fg__f16_to_f32(dmin) * (block[h % 16] >> 4);
    }
#else
    (void)c;
    (void)row;
    (void)t;
#endif
    return sum;
}

/* Against doubles: nearly exact for the packed weights and activations, close for these themselves. */
static void gemm_check_errors(const gemm_case *c) {
    double worst = 0, noise = 0, signal = 0;
    double limit = c->kernel->act_bytes == fg__act_q8_bytes ? 1e-4 : 1e-11, nearly = gemm_weights_are_split(c->kernel) ? 3.1e-5 : 3e-6;
    float *weights = (float *)malloc((size_t)(c->k * c->n_rows) * sizeof(float));
    int t, row;
    int64_t i;
    if (gemm_acts_are_bf16(c->kernel)) limit = 1e-5;
    if (gemm_acts_are_split(c->kernel)) limit = 2e-11; /* 16 bits of each */
    if (gemm_weights_are_split(c->kernel)) limit = 1e-10;
    if (gemm_is_w12(c->kernel)) limit = 3e-7;
    gemm_unpack_weights(c, weights);
    for (t = 0; t < GEMM_TOKENS; t++) {
        for (row = 0; row < c->n_rows; row++) {
            const float *w = c->w + row * c->k, *x = c->x + t * c->k, *seen = c->seen + t * c->k;
            double packed = gemm_words_add(c, row, t), whole = 0, size = 1e-30, got = c->out[t * FG__PANEL + row];
            for (i = 0; i < c->k; i++) {
                packed += (double)weights[row * c->k + i] * (double)seen[i];
                whole += (double)w[i] * (double)x[i];
                size += fabs((double)w[i] * (double)seen[i]);
            }
            worst = test_worse(worst, fabs(got - packed) / size);
            noise += (got - whole) * (got - whole);
            signal += whole * whole + 1e-30;
        }
        for (; row < FG__PANEL; row++) CHECK(c->out[t * FG__PANEL + row] == 0);
    }
    CHECKF(worst < nearly, "%s k=%d: %g of the sum of magnitudes", fg_type_name(c->type), (int)c->k, worst);
    CHECKF(noise <= limit * signal, "%s k=%d: normalised error %g", fg_type_name(c->type), (int)c->k, noise / signal);
    free(weights);
}

/* The same bits for any number of rows, wherever they lie, and nothing written between them. */
static void gemm_check_invariance(const gemm_case *c) {
    float out[GEMM_TOKENS * 40];
    int t, from, m;
    for (m = 1; m <= GEMM_TOKENS; m++) { /* each number has tiles of its own */
        for (from = 0; from + m <= GEMM_TOKENS; from += m < 4 ? 5 : 16) {
            for (t = 0; t < GEMM_TOKENS * 40; t++) out[t] = 77;
            c->kernel->gemm(c->type, c->panel, c->k, c->acts + (size_t)from * c->act_stride, c->act_stride, m, out, 40);
            for (t = 0; t < GEMM_TOKENS; t++) {
                if (t < m) CHECK(memcmp(out + t * 40, c->out + (from + t) * FG__PANEL, FG__PANEL * sizeof(float)) == 0);
                CHECK(out[t * 40 + FG__PANEL] == 77 && out[t * 40 + 39] == 77);
            }
        }
    }
}

/* The same for more rows than are multiplied together. */
static void gemm_check_more(const gemm_case *c) {
    enum { ROWS = 130, STRIDE = 33 };
    static const int counts[] = {34, 64, 65, 96, 97, 129};
    void *memory[2];
    uint8_t *acts = (uint8_t *)gemm_aligned(&memory[0], ROWS * c->act_stride);
    float *out = (float *)gemm_aligned(&memory[1], ROWS * STRIDE * sizeof(float));
    int i, t;
    for (t = 0; t < ROWS; t++) memcpy(acts + (size_t)t * c->act_stride, c->acts + (size_t)(t % GEMM_TOKENS) * c->act_stride, c->act_stride);
    for (i = 0; i < FG__COUNT(counts); i++) {
        for (t = 0; t < ROWS * STRIDE; t++) out[t] = 77;
        c->kernel->gemm(c->type, c->panel, c->k, acts, c->act_stride, counts[i], out, STRIDE);
        for (t = 0; t < ROWS; t++) {
            if (t < counts[i]) CHECK(memcmp(out + t * STRIDE, c->out + t % GEMM_TOKENS * FG__PANEL, FG__PANEL * sizeof(float)) == 0);
            else CHECK(out[t * STRIDE] == 77);
            CHECK(out[t * STRIDE + FG__PANEL] == 77);
        }
    }
    free(memory[0]);
    free(memory[1]);
}

/* The way for many rows gives the same bits, for whole tiles and for tiles whose last rows are anything, and writes nothing else. */
static void gemm_check_many(const gemm_case *c) {
    enum { ROWS = 290, STRIDE = 40 };
    static const int counts[] = {1, 5, 12, 13, 16, 17, 31, 33, 255, 256, 257, 274};
    const fg__gemm_many *many = c->kernel->many;
    const size_t bytes = fg__round_up(ROWS, (size_t)many->tile) * c->act_stride;
    const fg__gemm_panels panels = {(const char *)c->panel, 1, c->panel_bytes, FG__PANEL};
    void *memory[2];
    uint8_t *acts = (uint8_t *)gemm_aligned(&memory[0], bytes + 64);
    float *out = (float *)gemm_aligned(&memory[1], ROWS * STRIDE * sizeof(float));
    int i, t, from, m;
    memset(acts, 0xff, bytes);
    memset(acts + bytes, 0x5a, 64);
    for (t = 0; t < ROWS; t++)
        many->act_pack(c->x + t % GEMM_TOKENS * c->k, c->k, acts + (size_t)(t / many->tile * many->tile) * c->act_stride, t % many->tile);
    from = (ROWS - 1) / many->tile * many->tile; /* the last tile */
    if (ROWS - from < many->tile) many->act_none(c->k, acts + (size_t)from * c->act_stride, ROWS - from);
    for (i = 0; i < 64; i++) CHECK(acts[bytes + (size_t)i] == 0x5a);
    many->gemm(c->type, &panels, c->k, acts + (size_t)from * c->act_stride, c->act_stride, many->tile, out, STRIDE);
    for (t = 0; t < many->tile; t++)
        for (i = 0; i < FG__PANEL; i++) CHECK(out[t * STRIDE + i] == (t < ROWS - from ? c->out[(from + t) % GEMM_TOKENS * FG__PANEL + i] : 0));
    for (i = 0; i < FG__COUNT(counts); i++) {
        m = counts[i];
        from = i % 2 * many->tile;
        for (t = 0; t < ROWS * STRIDE; t++) out[t] = 77;
        many->gemm(c->type, &panels, c->k, acts + (size_t)from * c->act_stride, c->act_stride, m, out, STRIDE);
        for (t = 0; t < ROWS; t++) {
            const float *expected = c->out + (from + t) % GEMM_TOKENS * FG__PANEL;
            if (t < m) CHECK(memcmp(out + t * STRIDE, expected, FG__PANEL * sizeof(float)) == 0);
            else CHECK(out[t * STRIDE] == 77 && out[t * STRIDE + FG__PANEL - 1] == 77);
            CHECK(out[t * STRIDE + FG__PANEL] == 77 && out[t * STRIDE + STRIDE - 1] == 77);
        }
    }
    free(memory[0]);
    free(memory[1]);
}

/* Several panels at once, each of the same rows from another one on, give the bits that each gives alone. */
static void gemm_check_panels(const gemm_case *c) {
    enum { PANELS = 13, STRIDE = PANELS * 40 };
    static const int counts[] = {1, 13, 16, 20};
    const fg__gemm_many *many = c->kernel->many;
    fg__gemm_panels panels = {NULL, PANELS, c->panel_bytes, 40};
    void *memory[3];
    uint8_t *all = (uint8_t *)gemm_aligned(&memory[0], PANELS * c->panel_bytes);
    uint8_t *acts = (uint8_t *)gemm_aligned(&memory[1], fg__round_up(GEMM_TOKENS, (size_t)many->tile) * c->act_stride);
    float *out = (float *)gemm_aligned(&memory[2], GEMM_TOKENS * STRIDE * sizeof(float));
    int i, p, row, t;
    for (p = 0; p < PANELS; p++) {
        row = 3 * p % c->n_rows;
        c->kernel->pack(c->type, c->rows + (size_t)row * c->row_bytes, c->row_bytes, c->n_rows - row, c->k, all + (size_t)p * c->panel_bytes);
    }
    for (t = 0; t < GEMM_TOKENS; t++)
        many->act_pack(c->x + t * c->k, c->k, acts + (size_t)(t / many->tile * many->tile) * c->act_stride, t % many->tile);
    panels.first = (const char *)all;
    for (i = 0; i < FG__COUNT(counts); i++) {
        for (t = 0; t < GEMM_TOKENS * STRIDE; t++) out[t] = 77;
        many->gemm(c->type, &panels, c->k, acts, c->act_stride, counts[i], out, STRIDE);
        for (p = 0; p < GEMM_TOKENS * PANELS; p++) {
            const float *got = out + p * 40, *expected = c->out + p / PANELS * FG__PANEL;
            row = 3 * (p % PANELS) % c->n_rows;
            if (p / PANELS < counts[i]) CHECK(memcmp(got, expected + row, (size_t)(c->n_rows - row) * sizeof(float)) == 0);
            else CHECK(got[0] == 77 && got[FG__PANEL - 1] == 77);
            CHECK(got[FG__PANEL] == 77 && got[39] == 77);
        }
    }
    for (i = 0; i < 3; i++) free(memory[i]);
}

/* Coded panels give the same bits, and take as much less as they should. Where a kernel of their own multiplies them (gemm_check_split), weights
   that are anything do not fit. */
static void gemm_check_coded(const gemm_case *c) {
    const size_t bytes = c->kernel->coded->panel_bytes(c->k);
    gemm_case coded = *c;
    void *memory;
    int i;
    if (!bytes) return;
    if (c->kernel->coded->kernel) {
        uint8_t *panel = (uint8_t *)gemm_aligned(&memory, bytes);
        CHECK(!c->kernel->coded->pack(c->type, c->rows, c->row_bytes, c->n_rows, c->k, panel));
        free(memory);
        return;
    }
    CHECK(bytes % 64 == 0 && (double)bytes <= 0.77 * 32 * (double)c->row_bytes + 256);
    coded.panel = (uint8_t *)gemm_aligned(&memory, bytes + 64);
    memset(coded.panel, 0xff, bytes);
    memset(coded.panel + bytes, 0x5a, 64);
    CHECK(c->kernel->coded->pack(c->type, c->rows, c->row_bytes, c->n_rows, c->k, coded.panel));
    for (i = 0; i < 64; i++) CHECK(coded.panel[bytes + (size_t)i] == 0x5a);
    gemm_check_invariance(&coded);
    gemm_check_more(&coded);
    gemm_check_many(&coded);
    free(memory);
}

static void gemm_check(const fg__gemm_kernel *kernel, fg_type type, int64_t k, int n_rows, int fill) {
    void *memory[7];
    gemm_case c;
    uint64_t seed = (uint64_t)(k * 131 + n_rows * 17 + (int)type);
    int i;
    memset(&c, 0, sizeof(c));
    c.kernel = kernel;
    c.type = type;
    c.k = k;
    c.n_rows = n_rows;
    c.fill = fill;
    c.row_bytes = (size_t)fg_type_bytes(type, k);
    c.panel_bytes = c.kernel->panel_bytes(type, k);
    c.act_stride = c.kernel->act_bytes(k);
    CHECK(c.panel_bytes % 64 == 0 && (double)c.panel_bytes <= (gemm_is_w12(kernel) ? 0.77 * 32 * (double)c.row_bytes + 256 : 1.06 * 32 * (double)c.row_bytes + 128));
    CHECK(c.act_stride % 64 == 0);
    c.rows = (uint8_t *)gemm_aligned(&memory[0], c.row_bytes * (size_t)n_rows + 1) + 1; /* at odd addresses */
    c.panel = (uint8_t *)gemm_aligned(&memory[1], c.panel_bytes + 64);
    c.acts = (uint8_t *)gemm_aligned(&memory[2], c.act_stride * GEMM_TOKENS + 64);
    c.w = (float *)gemm_aligned(&memory[3], (size_t)(k * n_rows) * sizeof(float));
    c.x = (float *)gemm_aligned(&memory[4], (size_t)(k * GEMM_TOKENS) * sizeof(float));
    c.seen = (float *)gemm_aligned(&memory[5], (size_t)(k * GEMM_TOKENS) * sizeof(float));
    c.out = (float *)gemm_aligned(&memory[6], FG__PANEL * GEMM_TOKENS * sizeof(float));
    gemm_pack(&c, &seed);
    c.kernel->gemm(type, c.panel, k, c.acts, c.act_stride, GEMM_TOKENS, c.out, FG__PANEL);
    gemm_check_errors(&c);
    gemm_check_invariance(&c);
    if (type == FG_TYPE_BF16 || gemm_acts_are_split(kernel)) gemm_check_more(&c);
    if (kernel->many) gemm_check_many(&c);
    if (kernel->many) gemm_check_panels(&c);
    if (kernel->coded) gemm_check_coded(&c);
    for (i = 0; i < 7; i++) free(memory[i]);
}

#if FG__HAS_AMX
static size_t gemm_split_bytes(fg_type type, int64_t k) {
    (void)type;
    return fg__bf16_coded_bytes(k);
}

static void gemm_split_pack(fg_type type, const void *rows, size_t row_bytes, int n_rows, int64_t k, void *panel) {
    CHECK(fg__bf16_code(type, rows, row_bytes, n_rows, k, panel));
}

/* F16 or F32 whose weights are all BF16, in coded panels. */
static void gemm_check_split(fg_type type, bool few) {
    fg__gemm_kernel kernel = fg__gemm_split_amx_kernel;
    kernel.panel_bytes = gemm_split_bytes;
    kernel.pack = gemm_split_pack;
    gemm_check(&kernel, type, 64, few ? 32 : 7, GEMM_RANDOM_BF16);
    if (few) return;
    gemm_check(&kernel, type, 32, 32, GEMM_RANDOM_BF16);
    gemm_check(&kernel, type, 256, 32, GEMM_RANDOM_BF16);
    gemm_check(&kernel, type, 1056, 31, GEMM_RANDOM_BF16);
}
#endif

/* A kernel with one type: widths with and without tails, whole and partial panels. */
static void gemm_check_kernel(const fg__gemm_kernel *kernel, fg_type type) {
    static const int64_t widths[] = {1, 2, 7, 33, 100, 255, 300};
    static const int fills[] = {0x00, 0x7f, 0x80, 0xff};
    int64_t block = fg_type_bytes(type, 1) ? 1 : fg_type_bytes(type, 32) ? 32 : 256;
    int i;
    for (i = 0; block == 1 && i < FG__COUNT(widths); i++) gemm_check(kernel, type, widths[i], i % 2 ? 32 : 5 + i, -1);
    if (block == 32) {
        gemm_check(kernel, type, 32, 32, -1);
        gemm_check(kernel, type, 224, 1, -1);
        gemm_check(kernel, type, 352, 31, -1);
    }
    gemm_check(kernel, type, 256, 32, -1);
    gemm_check(kernel, type, 1024, 19, -1);
    for (i = 0; block > 1 && i < FG__COUNT(fills); i++) gemm_check(kernel, type, 512, 8, fills[i]);
    for (i = 0; block > 1 && i < FG__COUNT(fills); i++) gemm_check(kernel, type, 512, 8, 256 + fills[i]);
}

/* A NaN among activations, wherever it is, makes a row NaN: a broken model must not go on with numbers that look well. */
static void gemm_check_nan(int path) {
    enum { K = 512 };
    static uint8_t weights[32 * K * 4 + 64], panel[32 * K * 6 + 64], acts[16 * K + 64];
    uint8_t *to = panel + (64 - (uintptr_t)panel % 64), *packed = acts + (64 - (uintptr_t)acts % 64);
    float x[K], out[FG__PANEL];
    uint64_t seed = 3;
    int i, k, row;
    for (i = 0; i < FG__COUNT(gemm_types); i++) {
        const fg__gemm_kernel *kernel = gemm_find(path, gemm_types[i], K);
        size_t row_bytes = (size_t)fg_type_bytes(gemm_types[i], K);
        if (!kernel) continue;
        gemm_random_weights(gemm_types[i], weights, row_bytes * FG__PANEL, -1, &seed);
        kernel->pack(gemm_types[i], weights, row_bytes, FG__PANEL, K, to);
        for (k = 0; k < K; k += 5) {
            for (row = 0; row < K; row++) x[row] = gemm_random_float(&seed);
            x[k] = NAN;
            kernel->act_pack(x, K, packed);
            kernel->gemm(gemm_types[i], to, K, packed, kernel->act_bytes(K), 1, out, FG__PANEL);
            for (row = 0; row < FG__PANEL && out[row] != out[row]; row++) {}
            CHECKF(row == FG__PANEL, "%s, NaN at %d: row %d is %g", fg_type_name(gemm_types[i]), k, row, (double)out[row % FG__PANEL]);
        }
    }
}

/* Every type has a kernel, which is exact for it; what is no type or splits a block has none. */
static void gemm_check_path(int path, bool has_products) {
    int i;
    for (i = 0; i < FG__COUNT(gemm_types); i++) {
        fg_type type = gemm_types[i];
        const fg__gemm_kernel *kernel = gemm_find(path, type, 256);
        CHECKF(kernel || !has_products, "%s on %s", fg_type_name(type), fg__cpu_path_names[path]);
        if (kernel) gemm_check_kernel(kernel, type);
        CHECK(!gemm_find(path, type, 0));
        if (!fg_type_bytes(type, 1)) CHECK(!gemm_find(path, type, 257));
    }
    CHECK(!gemm_find(path, (fg_type)9, 256));
}

static void test_gemm_avx2(void) {
    if (!fg__cpu_detect().avx2) SKIP("no AVX2");
    gemm_check_path(FG__CPU_AVX2, true);
    gemm_check_nan(FG__CPU_AVX2);
}

static void test_gemm_avx512(void) {
    if (!fg__cpu_detect().avx512) SKIP("no AVX-512");
    gemm_check_path(FG__CPU_AVX512, true);
    gemm_check_nan(FG__CPU_AVX512);
}

/* Emulated, which takes long, a type of each form: with no minimums, one for each 32 weights, one for each 16; and floats. test_cpu_amx has all. */
static void test_gemm_amx(void) {
    static const fg_type forms[] = {FG_TYPE_Q8_0, FG_TYPE_Q4_K, FG_TYPE_Q2_K, FG_TYPE_BF16};
    const fg__gemm_kernel *kernel;
    bool has = fg__cpu_detect().amx;
    int i;
    if (!cpu_amx_begin()) SKIP("no AMX and no AVX-512 VBMI2, or a compiler without AMX");
    if (has) gemm_check_path(FG__CPU_AMX, true);
#if FG__HAS_AMX
    gemm_check_split(FG_TYPE_F16, !has);
    if (has) gemm_check_split(FG_TYPE_F32, false);
    if (!has) gemm_check(&fg__gemm_f16_amx_kernel, FG_TYPE_F16, 101, 32, GEMM_RANDOM);
#endif
    for (i = 0; i < FG__COUNT(forms) && !has; i++) gemm_check_kernel(gemm_find(FG__CPU_AMX, forms[i], 256), forms[i]);
    cpu_emulated_end(has);
    kernel = gemm_find(FG__CPU_AMX, FG_TYPE_Q4_0, 256);
    CHECK(kernel->many && !kernel->many->takes(1) && kernel->many->takes(16) && kernel->many->takes(512));
}

#if FG__HAS_AMX
enum { SUMS_K = 290 };

static void gemm_check_amx_sums(const uint16_t *w, const uint8_t *panel, int k, const uint16_t *acts) {
    float out[FG__PANEL];
    int i, row, first;
    fg__gemm_bf16_amx(FG_TYPE_BF16, panel, k, acts, (SUMS_K + 64) * 2, 1, out, FG__PANEL);
    for (row = 0; row < 32; row++) {
        float sum = 0;
        for (first = 0; first < k; first += 32) {
            float of[2] = {0, 0};
            for (i = first; i < FG__MIN(first + 32, k); i++)
                of[i % 2] = fmaf(fg__bf16_to_f32(w[row * SUMS_K + i]), fg__bf16_to_f32(acts[i]), of[i % 2]);
            sum += of[0] + of[1];
        }
        CHECKF(memcmp(&sum, &out[row], sizeof(sum)) == 0, "k %d, row %d: %g, not %g", k, row, (double)out[row], (double)sum);
    }
}
#endif

/* One token gets the sums of AMX's instruction, as Intel's manual describes them: of 32 k those of the even and of the odd ones, each
   rounded once, then both added up, then added to what was there; of coded panels, too, a few of whose weights are listed. Needs no AMX;
   other numbers of tokens get the same bits where it is. */
static void test_gemm_amx_sums(void) {
#if FG__HAS_AMX
    enum { CODED = SUMS_K / 32 * 32 };
    uint16_t w[32 * SUMS_K], acts[SUMS_K + 64];
    uint8_t *panel;
    void *memory;
    uint64_t seed = 5;
    int i, listed;
    if (!fg__cpu_detect().avx512_vbmi2) SKIP("no AVX-512 VBMI2");
    panel = (uint8_t *)gemm_aligned(&memory, fg__bf16_panel_bytes(FG_TYPE_BF16, SUMS_K));
    for (i = 0; i < SUMS_K + 64; i++) acts[i] = i < SUMS_K ? fg__f32_to_bf16(gemm_random_float(&seed)) : 0;
    for (i = 0; i < 32 * SUMS_K; i++) w[i] = fg__f32_to_bf16(0.5f * (1.5f + gemm_random_float(&seed) / 8));
    for (i = 0; i < 9; i++) w[i * 999] = (uint16_t)(0x4800 + i);
    for (i = 0; i < 9; i++) w[i * SUMS_K + (i < 6 ? 40 : 60)] = (uint16_t)(0x4900 + i); /* several of a group, and two groups of a block */
    fg__bf16_pack(FG_TYPE_BF16, w, SUMS_K * 2, 32, SUMS_K, panel);
    gemm_check_amx_sums(w, panel, SUMS_K, acts);
    memset(acts + CODED, 0, sizeof(acts) - CODED * 2);
    CHECK(fg__bf16_code(FG_TYPE_BF16, w, SUMS_K * 2, 32, CODED, panel));
    for (i = listed = 0; i < CODED / 32; i++) listed += panel[sizeof(fg__bf16_head) + (size_t)i];
    CHECKF(listed == 18, "%d weights are listed", listed);
    gemm_check_amx_sums(w, panel, CODED, acts);
    free(memory);
#else
    SKIP("no AMX on this system");
#endif
}

#if FG__HAS_AMX
enum { CODED_K = 512, CODED_ROWS = 29, CODED_LISTED = CODED_K * FG__PANEL / FG__BF16_LISTED };

/* Every bit of a coded panel comes back. Returns false if it does not fit. */
FG__TARGET_AVX512VBMI2 static bool gemm_code(const uint16_t *rows, int n_rows) {
    size_t bytes = fg__bf16_coded_bytes(CODED_K), whole = fg__panel_bytes(FG_TYPE_BF16, CODED_K);
    void *memory[3];
    uint8_t *panel = (uint8_t *)gemm_aligned(&memory[0], bytes), *expected = (uint8_t *)gemm_aligned(&memory[1], whole);
    uint8_t *room = (uint8_t *)gemm_aligned(&memory[2], whole);
    bool fits = fg__bf16_code(FG_TYPE_BF16, rows, CODED_K * 2, n_rows, CODED_K, panel);
    fg__panel_pack(FG_TYPE_BF16, rows, CODED_K * 2, n_rows, CODED_K, expected);
    if (fits) {
        fg__bf16_reader r = fg__bf16_read(panel, CODED_K, room);
        int b;
        for (b = 0; b < CODED_K / 32; b++) fg__bf16_block(&r, b);
        CHECK(memcmp(room, expected, whole) == 0);
        CHECK(r.next == panel + bytes);
    }
    free(memory[0]);
    free(memory[1]);
    free(memory[2]);
    return fits;
}

static void gemm_code_fill(uint16_t *rows, uint64_t *seed) {
    int i;
    for (i = 0; i < CODED_K * CODED_ROWS; i++) rows[i] = fg__f32_to_bf16(0.5f * (1.5f + gemm_random_float(seed) / 8));
}

/* Any BF16 is coded without loss: zeros, denormals, infinities and NaNs, too, as long as few are far from the others. */
static void test_gemm_bf16_coded(void) {
    static uint16_t rows[CODED_K * FG__PANEL];
    uint64_t seed = 3;
    int i, j;
    if (!fg__cpu_detect().avx512_vbmi2) SKIP("no AVX-512 VBMI2");
    memset(rows, 0, sizeof(rows));
    CHECK(gemm_code(rows, CODED_ROWS));
    for (i = 0; i < CODED_K * CODED_ROWS; i++) rows[i] = (uint16_t)(i & 0x807f); /* zeros and denormals */
    CHECK(gemm_code(rows, CODED_ROWS));
    for (j = 0; j < 256; j += 6) { /* 14 exponents with zeros between */
        for (i = 0; i < CODED_K * CODED_ROWS; i++)
            rows[i] = (uint16_t)(i % 7 == 0 ? 0x8000 : FG__MIN(j + (i & 15) % 14, 255) << 7 | (test_random(&seed) & 0x807f));
        CHECKF(gemm_code(rows, CODED_ROWS), "zeros and exponents from %d", j);
    }
    for (j = 0; j <= 240; j += 6) { /* 16, in a whole panel, which has no zeros */
        for (i = 0; i < CODED_K * FG__PANEL; i++) rows[i] = (uint16_t)((j + (i & 15)) << 7 | (test_random(&seed) & 0x807f));
        CHECKF(gemm_code(rows, FG__PANEL), "exponents from %d", j);
    }
    gemm_code_fill(rows, &seed);
    for (i = 0; i < CODED_LISTED; i++) rows[i * 113] = (uint16_t)(i % 2 ? 0x7f80 + i : (i + 4) << 6); /* as many as may be listed */
    CHECK(gemm_code(rows, CODED_ROWS));
    rows[CODED_LISTED * 113] = 0x7f80;
    CHECK(!gemm_code(rows, CODED_ROWS));
    for (i = 0; i < CODED_K * CODED_ROWS; i++) rows[i] = (uint16_t)test_random(&seed);
    CHECK(!gemm_code(rows, CODED_ROWS));
}

/* Of F16 and F32 a value is BF16 if it has no more bits, and nothing else is: every half, and each bit of a float. */
static void test_gemm_bf16_exact(void) {
    uint16_t halves[2][32], to[2][32];
    float floats[32];
    int i, j;
    if (!fg__cpu_detect().avx512_vnni) SKIP("no AVX-512 VNNI");
    for (i = 0; i < 65536; i++) {
        float value = fg__f16_to_f32((uint16_t)i);
        bool exact = !(fg__float_bits(value) & 0xffff);
        memset(halves, 0, sizeof(halves));
        halves[i & 1][i % 32] = (uint16_t)i;
        CHECKF(fg__bf16_rows(FG_TYPE_F16, (const uint8_t *)halves, 64, 2, to) == exact, "half %04x", i);
        if (exact && value == value) CHECKF(to[i & 1][i % 32] == fg__f32_to_bf16(value) && to[~i & 1][i % 32] == 0, "half %04x", i);
    }
    for (i = 0; i < 32; i++) {
        uint32_t bit = 1u << i;
        for (j = 0; j < 32; j++) floats[j] = -0.0f;
        memcpy(&floats[31 - i], &bit, 4);
        CHECK(fg__bf16_rows(FG_TYPE_F32, (const uint8_t *)floats, 128, 1, to) == (i >= 16));
        if (i >= 16) CHECK(to[0][31 - i] == bit >> 16 && to[0][i] == (i == 15 ? bit >> 16 : 0x8000));
    }
}

/* Weights in F16 become coded where all are BF16, and have the kernel for that then; one that is not, and all stay as they are. */
static void gemm_check_float_weight(fg_device *device, const fg_tensor *bf16) {
    static uint16_t rows[3 * CODED_K * CODED_ROWS];
    fg_tensor tensor = *bf16;
    fg__cpu_weight w;
    void *memory;
    size_t most;
    int i, inexact;
    tensor.type = FG_TYPE_F16;
    tensor.data = rows;
    for (i = 0; i < FG__COUNT(rows); i++) rows[i] = fg__f32_to_f16(fg__bf16_to_f32(((const uint16_t *)bf16->data)[i]));
    for (inexact = 0; inexact < 2; inexact++) {
        if (inexact) rows[FG__COUNT(rows) - 1] = 0x3c01;
        CHECK(fg__cpu_weight_describe((const fg__cpu_device *)(const void *)device, &tensor, FG_OP_GEMM, &w) == FG_OK);
        w.kernel = &fg__gemm_f16_amx_kernel;
        w.panel_bytes = w.kernel->panel_bytes(FG_TYPE_F16, CODED_K);
        most = fg__cpu_panels(&w) * w.panel_bytes;
        w.data = (char *)gemm_aligned(&memory, most);
        CHECK((fg__pack_panels((fg__cpu_device *)(void *)device, &w) < most * 8 / 10) == !inexact);
        CHECK(w.kernel == (inexact ? &fg__gemm_f16_amx_kernel : &fg__gemm_split_amx_kernel));
        free(memory);
    }
}

/* A weight of which one panel does not fit is packed as any other, with the same results and the size that is said. */
static void gemm_check_weight(fg_device *device, const fg_tensor *tensor, bool coded) {
    const fg__gemm_kernel *kernel = &fg__gemm_bf16_amx_kernel;
    const fg_backend *backend = fg_backend_cpu();
    fg_weight *weight = NULL;
    fg__cpu_weight w;
    uint8_t acts[CODED_K * 4] __attribute__((aligned(64)));
    float x[CODED_K], out[FG__PANEL];
    void *memory;
    uint64_t seed = 9;
    size_t most, bytes;
    int i, row;
    for (i = 0; i < CODED_K; i++) x[i] = gemm_random_float(&seed);
    CHECK(fg__cpu_weight_describe((const fg__cpu_device *)(const void *)device, tensor, FG_OP_GEMM, &w) == FG_OK);
    w.kernel = kernel;
    w.panel_bytes = kernel->panel_bytes(FG_TYPE_BF16, CODED_K);
    most = fg__cpu_panels(&w) * w.panel_bytes;
    w.data = (char *)gemm_aligned(&memory, most);
    bytes = fg__pack_panels((fg__cpu_device *)(void *)device, &w);
    CHECK(coded ? bytes < most * 8 / 10 : bytes == most);
    CHECK(backend->pack(device, tensor, FG_OP_GEMM, NULL, &most) == FG_OK); /* the device's own kernel */
    CHECK(backend->pack(device, tensor, FG_OP_GEMM, &weight, &bytes) == FG_OK);
    CHECK(((const fg__cpu_weight *)(const void *)weight)->kernel->coded && coded ? bytes < most * 8 / 10 : bytes == most);
    backend->unpack(device, weight);
    kernel->act_pack(x, CODED_K, acts);
    for (row = 0; row < CODED_ROWS; row += 28) {
        double sum = 0;
        for (i = 0; i < CODED_K; i++) sum += (double)fg__bf16_to_f32(((const uint16_t *)tensor->data)[row * CODED_K + i]) * (double)x[i];
        kernel->gemm(FG_TYPE_BF16, w.data, CODED_K, acts, sizeof(acts), 1, out, FG__PANEL);
        CHECKF(fabs(sum - (double)out[row]) < 0.2, "row %d: %g, not %g", row, (double)out[row], sum);
    }
    free(memory);
}

static void test_gemm_bf16_refused(void) {
    static uint16_t rows[3 * CODED_K * CODED_ROWS];
    const fg_backend *backend = fg_backend_cpu();
    fg_device_desc desc;
    fg_device *device;
    fg_tensor tensor;
    uint64_t seed = 4;
    int i;
    if (!fg__cpu_detect().avx512_vbmi2 || !fg__cpu_detect().avx512_bf16) SKIP("no AVX-512 VBMI2 and BF16");
    memset(&desc, 0, sizeof(desc));
    desc.n_threads = 2;
    CHECK(backend->open(&desc, &device) == FG_OK);
    memset(&tensor, 0, sizeof(tensor));
    tensor.name = "weight";
    tensor.type = FG_TYPE_BF16;
    tensor.n_dims = 2;
    tensor.dims[0] = CODED_K;
    tensor.dims[1] = 3 * CODED_ROWS;
    tensor.data = rows;
    tensor.bytes = sizeof(rows);
    for (i = 0; i < 3; i++) gemm_code_fill(rows + i * CODED_K * CODED_ROWS, &seed);
    gemm_check_weight(device, &tensor, true);
    gemm_check_float_weight(device, &tensor);
    for (i = 2 * CODED_K * CODED_ROWS; i < 3 * CODED_K * CODED_ROWS; i++) rows[i] = (uint16_t)test_random(&seed);
    gemm_check_weight(device, &tensor, false);
    backend->close(device);
}
#endif

#if FG__X86
enum { W12_K = 398 };

/* 9 to 24 tokens, two or three tiles, get what one alone gets, whether each tile expands the weights (AMD's way) or the first one for all (Intel's). */
static void gemm_check_w12_tiles(const uint8_t *panel, const uint8_t *acts, const float *one) {
    const int rule = fg__fetch_rule;
    float out[24 * FG__PANEL];
    int way, m, t;
    for (way = FG__FETCH_ONCE; way <= FG__FETCH_FAR; way++) {
        fg__atomic_store(&fg__fetch_rule, way);
        for (m = 9; m <= 24; m++) {
            fg__gemm_w12_512(FG_TYPE_BF16, panel, W12_K, acts, fg__act_w12_bytes(W12_K), m, out, FG__PANEL);
            for (t = 0; t < m; t++) CHECKF(memcmp(out + t * FG__PANEL, one, sizeof(float) * FG__PANEL) == 0, "way %d, %d tokens", way, m);
        }
    }
    fg__atomic_store(&fg__fetch_rule, rule);
}

/* The products of rows of BF16 in 12 bits and of activations, for one token and for many that are the same. */
static void gemm_w12_products(const uint16_t *rows, const float *x, float *out) {
    const size_t stride = fg__act_w12_bytes(W12_K);
    void *memory[2];
    uint8_t *panel = (uint8_t *)gemm_aligned(&memory[0], fg__w12_bytes(W12_K)), *acts = (uint8_t *)gemm_aligned(&memory[1], 24 * stride);
    int t;
    fg__w12_pack(FG_TYPE_BF16, rows, W12_K * 2, FG__PANEL, W12_K, panel);
    for (t = 0; t < 24; t++) fg__act_w12_pack(x, W12_K, acts + (size_t)t * stride);
    fg__gemm_w12_512(FG_TYPE_BF16, panel, W12_K, acts, stride, 1, out, FG__PANEL);
    gemm_check_w12_tiles(panel, acts, out);
    free(memory[0]);
    free(memory[1]);
}

/* Rows of one value, and activations of one: the largest sums, of any sign; what is infinite or no number stays so; what is tiny is 0. */
static void test_gemm_w12_values(void) {
    static const uint16_t values[] = {0x717f, 0xf17f, 0x3f80, 0xbfff, 0x1780, 0x177f, 0x0001, 0x8000, 0x7f80, 0xff80, 0x7fc1};
    static uint16_t rows[FG__PANEL * W12_K];
    float x[W12_K], out[FG__PANEL];
    int i, j, sign;
    if (!fg__cpu_detect().avx512_vnni) SKIP("no AVX-512 VNNI");
    for (i = 0; i < FG__PANEL * W12_K; i++) rows[i] = values[i / W12_K % FG__COUNT(values)];
    for (sign = -1; sign <= 1; sign += 2) {
        for (i = 0; i < W12_K; i++) x[i] = (float)sign * 1e-3f;
        gemm_w12_products(rows, x, out);
        for (i = 0; i < FG__PANEL; i++) {
            float value = fg__bf16_to_f32(values[i % FG__COUNT(values)]), sum = value * x[0] * W12_K;
            if (!(fabsf(value) < INFINITY)) CHECK(out[i] != out[i]);
            else if (fabsf(value) < ldexpf(1.0f, -80)) CHECK(out[i] == 0);
            else CHECKF(fabsf(out[i] - sum) <= 3e-4f * fabsf(sum), "%g, not %g", (double)out[i], (double)sum);
        }
    }
    /* One weight of a block beside small ones, of which nothing is left, and blocks of their own scales. */
    for (i = 0; i < FG__PANEL * W12_K; i++) rows[i] = (uint16_t)(i % W12_K == 3 ? 0x3f80 : i % W12_K < 128 ? 0x3900 : 0x2000 + i % W12_K / 128 * 256);
    for (i = 0; i < W12_K; i++) x[i] = i == 3 ? 0.0f : 1.0f;
    gemm_w12_products(rows, x, out);
    for (i = 0; i < FG__PANEL; i++) {
        float sum = 0;
        for (j = 128; j < W12_K; j++) sum += fg__bf16_to_f32(rows[j]);
        CHECKF(fabsf(out[i] - sum) <= 3e-4f * sum, "%g, not %g", (double)out[i], (double)sum);
    }
}
#endif

static void test_gemm_neon(void) {
    if (!fg__cpu_detect().neon) SKIP("no NEON");
    gemm_check_path(FG__CPU_NEON, fg__cpu_detect().dotprod);
    gemm_check_nan(FG__CPU_NEON);
}

/* Kernels that a better CPU does not choose. */
static void test_gemm_older(void) {
    int i;
    fg__cpu_features cpu = fg__cpu_detect();
    for (i = 0; i < FG__COUNT(gemm_types); i++) {
        fg_type type = gemm_types[i];
        bool floats = !fg__panel_layout_of(type);
#if FG__X86
        if (cpu.avx2 && !floats) gemm_check_kernel(&fg__gemm_q8_256_kernel, type);
        if (cpu.avx2 && type == FG_TYPE_BF16) gemm_check_kernel(&fg__gemm_w12_256_kernel, type);
        if (cpu.avx512_vnni && floats)
            gemm_check_kernel(type == FG_TYPE_BF16 ? &fg__gemm_w12_512_kernel : &fg__gemm_f32_512_kernel, type);
#else
        if (cpu.dotprod && !floats) gemm_check_kernel(&fg__gemm_dot_neon_kernel, type);
#endif
    }
}

#if FG__X86
/* Kernels of a type whose results are the same bits; those of AVX-VNNI may be emulated. */
static int gemm_same_kernels(fg_type type, const fg__cpu_features *cpu, bool vnni, const fg__gemm_kernel **kernels) {
    bool words = type == FG_TYPE_BF16;
    int n = 0;
    kernels[n++] = words ? &fg__gemm_w12_256_kernel : &fg__gemm_q8_256_kernel;
    if (cpu->avx512_vnni) kernels[n++] = words ? &fg__gemm_w12_512_kernel : &fg__gemm_q8_512_kernel;
    if (cpu->avx512_vnni && cpu->avx512_vbmi2 && fg__gemm_table_of(type)) kernels[n++] = &fg__gemm_table_512_kernel;
#if FG__HAS_AVXVNNI
    if (vnni) kernels[n++] = words ? &fg__gemm_w12_vnni256_kernel : &fg__gemm_vnni256_kernel;
#else
    (void)vnni;
#endif
    return n;
}
#endif

/* Quantised products, and those of BF16 as integers, are the same bits on every path, for few tokens and for tiles of them. */
static void test_gemm_paths_agree(void) {
#if FG__X86
    enum { K = 768, M = 11 };
    static const int counts[] = {M, 1, 2, 3, 4};
    uint64_t seed = 3;
    fg__cpu_features cpu = fg__cpu_detect();
    uint8_t *rows, *panel, *acts;
    float x[K], out[4][M * FG__PANEL];
    long before = cpu_emulated_products();
    int i, j, m, t, n;
    bool vnni;
    if (!cpu.avx2) SKIP("no AVX2");
    rows = (uint8_t *)malloc(32 * K * 4), panel = (uint8_t *)malloc(32 * K * 4), acts = (uint8_t *)malloc(M * K * 4);
    vnni = cpu_emulated_begin(cpu.avx_vnni);
    for (i = 0; i < FG__COUNT(gemm_types); i++) {
        fg_type type = gemm_types[i];
        const fg__gemm_kernel *kernels[4];
        if (!fg__panel_layout_of(type) && type != FG_TYPE_BF16) continue;
        n = gemm_same_kernels(type, &cpu, vnni, kernels);
        gemm_random_weights(type, rows, 32 * (size_t)fg_type_bytes(type, K), -1, &seed);
        kernels[0]->pack(type, rows, (size_t)fg_type_bytes(type, K), 32, K, panel);
        for (t = 0; t < M; t++) {
            for (j = 0; j < K; j++) x[j] = gemm_random_float(&seed);
            kernels[0]->act_pack(x, K, acts + (size_t)t * kernels[0]->act_bytes(K));
        }
        for (m = 0; m < FG__COUNT(counts); m++)
            for (j = 0; j < n; j++) {
                kernels[j]->gemm(type, panel, K, acts, kernels[j]->act_bytes(K), counts[m], out[j], FG__PANEL);
                CHECKF(memcmp(out[0], out[j], (size_t)counts[m] * FG__PANEL * sizeof(float)) == 0, "%s, kernel %d, %d tokens", fg_type_name(type), j,
                       counts[m]);
            }
    }
    cpu_emulated_end(cpu.avx_vnni);
    CHECK(!vnni || cpu.avx_vnni || cpu_emulated_products() > before + 10000);
    free(rows);
    free(panel);
    free(acts);
    if (!cpu.avx512_vnni && !vnni) SKIP("no AVX-512 VNNI, no AVX-VNNI");
#else
    SKIP("one path");
#endif
}

#if FG__X86
enum { ACT_UNITS = 5 };

/* Also zeros, blocks of zeros, values so small that they become 0, and large ones. */
static void gemm_mixed_acts(float *x, int k, uint64_t *seed) {
    int i, kind = (int)(test_random(seed) % 5);
    for (i = 0; i < k; i++) {
        x[i] = gemm_random_float(seed) * (kind == 1 ? 1e-31f : kind == 2 ? 1e30f : 1.0f);
        if ((kind == 3 && i / 32 % 2) || (kind == 4 && test_random(seed) % 3)) x[i] = 0.0f;
    }
}

#if FG__HAS_AMX
static void gemm_check_act_tile(const fg__act_q8 *a, const float *x, int k, int place) {
    static fg__acts_amx tiles[ACT_UNITS];
    int unit, b;
    fg__act_amx_pack(x, k, tiles, place);
    for (unit = 0; unit < (k + 255) / 256; unit++, a++) {
        const fg__acts_amx *tile = &tiles[unit];
        for (b = 0; b < 8; b++) {
            CHECK(memcmp(a->q + 32 * b, tile->q[b / 2][place] + b % 2 * 32, 32) == 0);
            CHECK(a->scale[b] == tile->scale[place][b]);
            CHECK(-128.0f * (float)(a->sum[2 * b] + a->sum[2 * b + 1]) == tile->sum[place][b]);
        }
        CHECK(unit == k / 256 || (a->unit == tile->unit[place][0] && memcmp(a->word, tile->word[place], sizeof(a->word)) == 0));
    }
}
#endif
#endif

/* Every way of packing activations gives the same bits. */
static void test_gemm_act_packs(void) {
#if FG__X86
    float x[ACT_UNITS * 256];
    fg__act_q8 one[ACT_UNITS], other[ACT_UNITS];
    uint64_t seed = 11;
    int turn, unit;
    if (!fg__cpu_detect().avx512_vnni) SKIP("no AVX-512 VNNI");
    for (turn = 0; turn < 400; turn++) {
        int k = 32 * (1 + (int)(test_random(&seed) % (ACT_UNITS * 8)));
        gemm_mixed_acts(x, k, &seed);
        memset(one, 0, sizeof(one));
        memset(other, 0, sizeof(other));
        fg__act_q8_pack_256(x, k, one);
        fg__act_q8_pack_512(x, k, other);
        for (unit = 0; unit < ACT_UNITS; unit++) memcpy(other[unit].half, one[unit].half, sizeof(one[unit].half)); /* AVX2's alone */
        CHECKF(memcmp(one, other, sizeof(one)) == 0, "k %d", k);
#if FG__HAS_AMX
        gemm_check_act_tile(one, x, k, turn % FG__TILE_AMX);
#endif
    }
#else
    SKIP("one way");
#endif
}

/* The sums of some of 16 activations that AVX2 keeps: off by four at most. */
static void test_gemm_act_halves(void) {
#if FG__X86
    float x[ACT_UNITS * 256];
    fg__act_q8 acts[ACT_UNITS];
    uint64_t seed = 12;
    int turn, i, j, k, sum;
    if (!fg__cpu_detect().avx2) SKIP("no AVX2");
    for (turn = 0; turn < 400; turn++) {
        k = 32 * (1 + (int)(test_random(&seed) % (ACT_UNITS * 8)));
        gemm_mixed_acts(x, k, &seed);
        for (i = 0; turn % 4 == 0 && i < k; i++) x[i] = i / 64 % 2 ? -1.0f : 1.0f;
        fg__act_q8_pack_256(x, k, acts);
        for (i = 0; i < k; i += 16) {
            const fg__act_q8 *a = acts + i / 256;
            for (j = sum = 0; j < 16; j++) sum += j % 4 < 2 ? a->q[i % 256 + j] : 0;
            CHECKF(abs(sum - 8 * a->half[i % 256 / 16]) <= 4, "k %d, at %d: %d of %d", k, i, 8 * a->half[i % 256 / 16], sum);
        }
    }
#else
    SKIP("no AVX2");
#endif
}

static void run_gemm_tests(void) {
    RUN(test_gemm_avx2);
    RUN(test_gemm_act_packs);
    RUN(test_gemm_act_halves);
    RUN(test_gemm_avx512);
    RUN(test_gemm_amx);
    RUN(test_gemm_amx_sums);
#if FG__HAS_AMX
    RUN(test_gemm_bf16_coded);
    RUN(test_gemm_bf16_exact);
    RUN(test_gemm_bf16_refused);
#endif
#if FG__X86
    RUN(test_gemm_w12_values);
#endif
    RUN(test_gemm_neon);
    RUN(test_gemm_older);
    RUN(test_gemm_paths_agree);
}
#else
static void test_gemm_none(void) {
    CHECK(!gemm_find(FG__CPU_AVX2, FG_TYPE_Q8_0, 256));
    CHECK(!gemm_find(FG__CPU_NEON, FG_TYPE_F32, 256));
}

static void run_gemm_tests(void) { RUN(test_gemm_none); }
#endif
