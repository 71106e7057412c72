/* The Vulkan backend, on whatever device the machine's driver offers (Mesa's lavapipe is enough): what the op differentials of
   test_cpu.c and the engine's tests do not see. Skipped, saying so, where there is no driver. */

/* Weights in pieces: kernels that see no more than 32 KiB of a buffer at once. */
static void test_vulkan_split(void) {
    int i;
    if (!cpu_vulkan_device(1)) SKIP("there is no Vulkan device");
    for (i = 0; i < CPU_TYPES; i++) {
        static const int columns[] = {1, 3, 40};
        uint64_t state = 5;
        cpu_rig *rig = cpu_rig_new(16);
        int x = cpu_slot(rig, 512, false), row, j, bad = 0, c;
        fg_op *op = cpu_op(rig, FG_OP_EMBED, -1, x, 512);
        float expected[512];
        op->weight = cpu_weight(rig, cpu_types[i], 512, 300, FG_OP_EMBED, &state);
        cpu_rig_end(rig, x);
        if (cpu_rig_open(rig, "vulkan-split", 1) == FG_OK) {
            const float *out = cpu_rig_run(rig, 284, 16);
            CHECK(((fg__vk_weight *)(void *)rig->weights[0])->n_pieces > 1);
            for (row = 0; row < 16; row++) {
                cpu_weight_row(rig, op->weight, 284 + row, expected);
                for (j = 0; j < 512; j++) bad += out[row * 512 + j] != expected[j];
            }
            CHECKF(bad == 0, "%s: %d differ", fg_type_name(cpu_types[i]), bad);
        }
        cpu_rig_free(rig);
        for (c = 0; c < 3; c++) { /* of most types one: pieces are the host's, and drivers' compilers take long */
            double error;
            if (i > 1 && c != i % 3) continue;
            error = cpu_gemm_error("vulkan-split", 1, cpu_types[i], 512, 300, columns[c], FG_ACT_SILU, true);
            CHECKF(error < 2e-6, "%s, %d rows: error %g", fg_type_name(cpu_types[i]), columns[c], error);
        }
    }
}

/* A small model of every op on a GPU against the scalar CPU, for every `step`th weight type from the `first` on. */
static void gpu_check_model(const char *path, const cpu_attn *c, int first, int step, double most) {
    size_t n = (size_t)cpu_attn_total(c) * 300, j;
    float *scalar = (float *)calloc(n, sizeof(float)), *other = (float *)calloc(n, sizeof(float));
    int i, p;
    for (i = first; i < CPU_TYPES; i += step) {
        cpu_rig *rig = cpu_model_rig(c, cpu_types[i]);
        double square = 0, error = 0;
        for (p = 0; p < 2; p++) {
            if (cpu_rig_open(rig, p ? path : "scalar", 2) != FG_OK) break;
            rig->batch.tables[1] = rig->tables[0];
            rig->batch.slots[1] = rig->slots_of[0];
            cpu_attn_all(c, rig, 2, 90, p ? other : scalar);
            cpu_rig_close(rig);
        }
        for (j = 0; j < n; j++) {
            square += (double)scalar[j] * (double)scalar[j];
            error += ((double)other[j] - (double)scalar[j]) * ((double)other[j] - (double)scalar[j]);
        }
        error = sqrt(error / square);
        CHECKF(error < most, "%s, %s against scalar: %g", path, fg_type_name(cpu_types[i]), error);
        cpu_rig_free(rig);
    }
    free(scalar);
    free(other);
}

/* Wide products of many rows: drivers may limit how often loops run. */
static void test_vulkan_wide(void) {
    static const fg_type types[] = {FG_TYPE_F32, FG_TYPE_F16, FG_TYPE_Q8_0, FG_TYPE_Q4_K};
    int i;
    if (!cpu_vulkan_device(0)) SKIP("there is no Vulkan device");
    for (i = 0; i < 4; i++) {
        double error = cpu_gemm_error("vulkan", 1, types[i], 16384, 20, 12, FG_ACT_NONE, false);
        CHECKF(error < cpu_gemm_limit("vulkan", types[i], 12), "%s: error %g", fg_type_name(types[i]), error);
    }
}

/* Products of 40 rows, then of 1, 2, 5 and 9 of them: how many values have other bits. */
static int vulkan_other_bits(const char *path, fg_type type, int k) {
    enum { N = 70, MOST = 40 };
    static const int sizes[] = {1, 2, 5, 9};
    static float all[N * MOST];
    uint64_t state = 11;
    cpu_rig *rig = cpu_rig_new(MOST);
    int x = cpu_slot(rig, k, false), y = cpu_slot(rig, N, false), i, j, other = 0;
    fg_op *op = cpu_op(rig, FG_OP_EMBED, -1, x, k);
    op->weight = cpu_weight(rig, FG_TYPE_F32, k, MOST, FG_OP_EMBED, &state);
    op = cpu_op(rig, FG_OP_GEMM, x, y, N);
    op->k = k;
    op->act = FG_ACT_SILU;
    op->weight = cpu_weight(rig, type, k, N, FG_OP_GEMM, &state);
    cpu_rig_end(rig, y);
    if (cpu_rig_open(rig, path, 1) == FG_OK) {
        memcpy(all, cpu_rig_run(rig, 0, MOST), sizeof(all));
        for (i = 0; i < 4; i++) {
            const float *rows = cpu_rig_run(rig, 7 * i, sizes[i]);
            for (j = 0; j < N * sizes[i]; j++) other += memcmp(&rows[j], &all[7 * i * N + j], sizeof(float)) != 0;
        }
    }
    cpu_rig_free(rig);
    return other;
}

/* The invariant mode: one order of sums for every number of rows. Without it kernels differ. The order is that of blocks, whatever their
   type: floats and two of three quantised types are seen, each on one rung, as kernels take drivers long to compile. */
static void test_vulkan_invariant(void) {
    static const char *const paths[] = {"vulkan-invariant", "vulkan-dot-invariant", "vulkan-half-invariant", "vulkan-matrix-invariant"};
    int p, i, other = 0;
    if (!cpu_vulkan_device(0)) SKIP("there is no Vulkan device");
    for (i = 0; i < CPU_TYPES && !other; i += 5) other += vulkan_other_bits("vulkan", cpu_types[i], 512);
    CHECK(other > 0);
    for (p = 0; p < 4; p++) {
        const fg__vk_device *d = (const fg__vk_device *)(const void *)cpu_vulkan_device(cpu_vulkan_number(paths[p]));
        CHECK(d != NULL);
        if (!d || (p && d->rungs == 0)) continue;
        CHECKF(d->narrow, "%s: products of few rows are not those of many", paths[p]);
        for (i = 0; i < CPU_TYPES; i++) {
            if (p < 2 && (fg__vk_is_float(cpu_types[i]) ? p : i % 3 != p)) continue;
            if (p > 1 && i % 5 != p % 5) continue;
            other = vulkan_other_bits(paths[p], cpu_types[i], 768); /* slices of two blocks and of one */
            CHECKF(other == 0, "%s, %s: %d values differ", paths[p], fg_type_name(cpu_types[i]), other);
        }
        CHECK(p != 0 || (vulkan_other_bits(paths[p], FG_TYPE_F16, 75) == 0 && vulkan_other_bits(paths[p], FG_TYPE_F32, 1050) == 0)); /* no whole units */
    }
    CHECK(cpu_gemm_error("vulkan-invariant", 1, FG_TYPE_Q4_K, 512, 33, 1, FG_ACT_SILU, true) < 2e-6);
    CHECK(cpu_gemm_error("vulkan-invariant", 1, FG_TYPE_F16, 75, 70, 5, FG_ACT_NONE, false) < 2e-6);
}

static void test_vulkan_model(void) {
    cpu_attn c = {FG_TYPE_F16, 8, 2, 32, 32, 1, 0, 32, false, 0.0f, 1.0f, {180, 33, 1, 64, 5, 12}};
    if (!cpu_vulkan_device(0)) SKIP("there is no Vulkan device");
    gpu_check_model("vulkan", &c, 0, 1, 1e-4);
}

/* What a device may have beyond the floor, one rung at a time: products of every type, and a model. Lavapipe made to have other subgroups
   than its own of 8 (check_vulkan.sh) compiles all anew, and has some of the types: with 4 others than with 16. */
static void test_vulkan_rungs(void) {
    enum { DOT, HALF, MATRIX, PUSH, RUNGS };
    static const char *const paths[] = {"vulkan-dot", "vulkan-half", "vulkan-matrix", "vulkan-push"};
    static const uint32_t bits[] = {FG_VULKAN_DOT, FG_VULKAN_HALF, FG_VULKAN_MATRIX, FG_VULKAN_PUSH};
    cpu_attn c = {FG_TYPE_F16, 8, 2, 32, 32, 1, 0, 32, false, 0.0f, 1.0f, {180, 33, 1, 64, 5, 12}};
    const fg__vk_device *plain;
    int p, i, s, every;
    if (!cpu_vulkan_device(0)) SKIP("there is no Vulkan device");
    plain = (const fg__vk_device *)(const void *)cpu_vulkan_device(0);
    CHECK(plain->rungs == 0);
    every = plain->properties.device_type == 4 && plain->subgroup != 8 ? 3 : 1;
    for (p = 0; p < RUNGS; p++) {
        bool halves = p == HALF || p == MATRIX; /* where rows are many */
        const fg__vk_device *d;
        if (p == MATRIX && plain->properties.device_type == 4 && plain->subgroup > 8) {
            printf("%s: not tried, the compiler of Mesa 26.2's lavapipe crashes on them with subgroups of 16\n", paths[p]);
            continue;
        }
        d = (const fg__vk_device *)(const void *)cpu_vulkan_device(cpu_vulkan_number(paths[p]));
        if (d->rungs == 0) {
            printf("%s: the device has no such thing\n", paths[p]);
            continue;
        }
        CHECK(d->rungs == bits[p]);
        for (i = (int)plain->subgroup / 8 % every; i < CPU_TYPES; i += every) {
            static const int shapes[][3] = {{256, 70, 1}, {512, 33, 7}, {256, 66, 37}};
            if (p == PUSH && i > 2) break;
            for (s = halves ? 2 : i % 5 ? 1 : 0; s < 3; s++) {
                double error = cpu_gemm_error(paths[p], 1, cpu_types[i], shapes[s][0], shapes[s][1], shapes[s][2], FG_ACT_SILU, s == 2);
                double most = cpu_gemm_limit(paths[p], cpu_types[i], shapes[s][2]);
                CHECKF(error < (s == 2 ? 2 : 1) * most, "%s %s m %d: error %g", paths[p], fg_type_name(cpu_types[i]), shapes[s][2], error);
            }
        }
        for (i = 0; halves && i < 3; i++) { /* widths that are no whole units */
            double error = cpu_gemm_error(paths[p], 1, i == 2 ? FG_TYPE_BF16 : FG_TYPE_F16, 17 + 30 * i, 40, 9, FG_ACT_NONE, false);
            CHECKF(error < 1e-3, "k %d: error %g", 17 + 30 * i, error);
        }
        gpu_check_model(paths[p], &c, 9, 9, p == DOT ? 0.1 : halves ? 2e-2 : 1e-4); /* of Q4_K and F16; roundings add up over its layers */
    }
}

/* Greedy text, of n tokens, of the model that the repository has. */
static void vulkan_story(fg_model *model, const char *path, const char *prompt, int n, char *out, size_t size) {
    fg_engine_desc d;
    fg_request_desc r;
    fg_request handle;
    fg_engine *e = NULL;
    fg_event event;
    bool busy = true;
    memset(&d, 0, sizeof(d));
    memset(&r, 0, sizeof(r));
    out[0] = 0;
    d.model = model;
    d.max_context = 128;
    d.max_seqs = 2;
    d.n_threads = 1;
    CHECK(logits_choose(&d, path));
    r.prompt = prompt;
    r.max_tokens = n;
    r.ignore_eos = true;
    CHECKF(fg_engine_create(&d, &e) == FG_OK && fg_submit(e, &r, &handle) == FG_OK, "%s", fg_last_error());
    CHECK(!e || strcmp(fg_engine_get_backend(e), cpu_is_gpu(path) ? "vulkan" : "cpu") == 0);
    while (e && busy) {
        if (fg_step(e, 0, &busy) != FG_OK) break;
        while (fg_next_event(e, &event))
            if (event.text_length && strlen(out) + event.text_length < size) strcat(out, event.text);
    }
    CHECK(!busy);
    fg_engine_free(e);
}

/* With what a device may have beyond the floor it tells the story of the CPU, whose first and second choices are 0.2 or more apart up to here (two
   tokens later they are 0.013 apart: roundings decide). */
static void test_vulkan_story(void) {
    static const char *const paths[] = {"scalar", "vulkan", "vulkan-half", "vulkan-matrix", "vulkan-push"};
    static const char *const prompt = "Once upon a time, there was a little girl who loved to play outside with her dog and her old red ball";
    fg_model_desc desc;
    fg_model *model = NULL;
    char texts[2][1024];
    size_t p;
    if (!cpu_vulkan_device(0)) SKIP("there is no Vulkan device");
    memset(&desc, 0, sizeof(desc));
    desc.path = "examples/demo-model/demo.gguf";
    CHECKF(fg_model_load(&desc, &model) == FG_OK, "%s", fg_last_error());
    for (p = 0; model && p < sizeof(paths) / sizeof(paths[0]); p++) {
        vulkan_story(model, paths[p], prompt, 46, texts[p > 0], sizeof(texts[0]));
        CHECKF(strlen(texts[p > 0]) >= 100 && strcmp(texts[0], texts[p > 0]) == 0, "%s: \"%s\", not \"%s\"", paths[p], texts[p > 0], texts[0]);
    }
    fg_model_free(model);
}

/* Heads of several sizes over every KV type, many tokens at once and then one by one, with windows and shared KV heads. */
static void vulkan_check_attention(const char *path, const cpu_attn *c, double limit) {
    cpu_rig *rig = cpu_attn_rig(c, 256);
    float *all = (float *)calloc((size_t)(cpu_attn_total(c) * c->n_head * c->head_dim), sizeof(float));
    int s, mode;
    if (cpu_rig_open(rig, path, 1) == FG_OK)
        for (mode = 0; mode < 2; mode++) {
            cpu_attn_all(c, rig, 1, mode ? 3 : 50, all);
            for (s = 0; s < CPU_SEQS && c->lengths[s]; s++) {
                double rms, error = cpu_attn_error(c, rig, s, all, &rms);
                CHECKF(error < limit && rms < 0.1 * limit, "%s %s, heads of %d, sequence %d: error %g, rms %g", path, fg_type_name(c->kv_type),
                       c->head_dim, s, error, rms);
            }
        }
    free(all);
    cpu_rig_free(rig);
}

static void test_vulkan_attention(void) {
    static const char *const paths[] = {"vulkan", "vulkan-half", "vulkan-matrix"};
    static const cpu_attn cases[] = {
        {FG_TYPE_F16, 8, 2, 64, 64, 1, 0, 32, false, 0.0f, 1.0f, {130, 33, 1, 0, 0, 0}},
        {FG_TYPE_F16, 3, 1, 256, 64, 1, 40, 16, false, 30.0f, 1.0f, {90, 12, 0, 0, 0, 0}},
        {FG_TYPE_F16, 2, 2, 80, 32, 0, 0, 8, true, 0.0f, 1.0f, {70, 9, 0, 0, 0, 0}},
        {FG_TYPE_Q8_0, 8, 1, 128, 64, 1, 0, 32, false, 0.0f, 1.0f, {100, 20, 0, 0, 0, 0}},
        {FG_TYPE_Q8_0, 4, 4, 96, 96, 1, 30, 64, false, 0.0f, 1.0f, {75, 40, 0, 0, 0, 0}},
        {FG_TYPE_Q8_0, 40, 2, 256, 0, 0, 0, 32, false, 0.0f, 1.0f, {66, 0, 0, 0, 0, 0}},
        {FG_TYPE_BF16, 6, 2, 192, 64, 1, 0, 32, false, 0.0f, 1.0f, {67, 11, 0, 0, 0, 0}},
        {FG_TYPE_F32, 3, 1, 256, 64, 1, 0, 32, false, 0.0f, 1.0f, {67, 11, 0, 0, 0, 0}},
    };
    size_t i, p;
    int sinks;
    if (!cpu_vulkan_device(0)) SKIP("there is no Vulkan device");
    for (p = 0; p < 3; p++) {
        const fg__vk_device *d = (const fg__vk_device *)(const void *)cpu_vulkan_device(cpu_vulkan_number(paths[p]));
        if (p && d->rungs == 0) continue;
        for (i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
            fg_type type = cases[i].kv_type;
            if (p && type != FG_TYPE_F16 && type != FG_TYPE_Q8_0) continue; /* floats either way */
            if (p == 1 && i == 5) continue; /* half a minute in lavapipe's compiler for what cases 1, 3 and 4 have */
            for (sinks = 0; sinks < 2; sinks++) {
                cpu_sinks = sinks;
                vulkan_check_attention(paths[p], &cases[i], type == FG_TYPE_F32 ? 2e-5 : type == FG_TYPE_Q8_0 ? 2e-2 : type == FG_TYPE_F16 && p == 0 ? 1e-3 : 8e-3);
                cpu_sinks = false;
            }
        }
    }
}

/* A long context beside the CPU: drivers may limit how often loops run. */
static void test_vulkan_attention_long(void) {
    static const char *const paths[] = {NULL, "vulkan", "vulkan-half", "vulkan-matrix"};
    cpu_attn c = {FG_TYPE_F16, 4, 1, 128, 64, 1, 0, 64, false, 0.0f, 1.0f, {1100, 0, 0, 0, 0, 0}};
    size_t n = (size_t)(1100 * c.n_head * c.head_dim), i;
    float *all[2];
    int p;
    if (!cpu_vulkan_device(0)) SKIP("there is no Vulkan device");
    for (p = 0; p < 2; p++) all[p] = (float *)calloc(n, sizeof(float));
    for (p = 0; p < 4; p++) {
        cpu_rig *rig = cpu_attn_rig(&c, 256);
        double limit = p < 2 ? 1e-3 : 2e-2;
        for (i = 0; i < n; i++) all[p > 0][i] = NAN;
        CHECK(cpu_rig_open(rig, paths[p], 1) == FG_OK);
        cpu_attn_all(&c, rig, 1, 256, all[p > 0]);
        for (i = 0; i < n && fabs((double)all[0][i] - (double)all[p > 0][i]) < limit; i++) {}
        CHECKF(i == n, "%s: value %d is %g, not %g", paths[p], (int)i, (double)all[p > 0][i], (double)all[0][i]);
        cpu_rig_free(rig);
    }
    for (p = 0; p < 2; p++) free(all[p]);
}

/* The rows of the batch, against those of `all`: the same bits, or within `limit`. */
static void vulkan_check_rows(const char *path, cpu_rig *rig, const float *all, float limit) {
    int width = rig->graph.n_vocab, i, j;
    if (cpu_rig_submit(rig) != FG_OK) {
        CHECKF(false, "%s: %s", path, fg_last_error());
        return;
    }
    for (i = 0; i < rig->batch.n_rows; i++) {
        const float *is = rig->output.logits + (size_t)i * (size_t)width, *was = all + (size_t)rig->tokens[rig->rows[i]] * (size_t)width;
        if (limit == 0) {
            CHECKF(memcmp(is, was, sizeof(float) * (size_t)width) == 0, "%s: token %d differs", path, (int)rig->tokens[rig->rows[i]]);
            continue;
        }
        for (j = 0; j < width && fabsf(is[j] - was[j]) < limit; j++) {}
        CHECKF(j == width, "%s, token %d: value %d is %g, not %g", path, (int)rig->tokens[rig->rows[i]], j, (double)is[j], (double)was[j]);
    }
}

/* Contexts over several cuts: whole in chunks, with a limit against the reference, then the last queries as items, alone, beside others, and where there
   is no room for the items of all. */
static void vulkan_check_cuts(const char *path, const cpu_attn *c, double limit, float same) {
    cpu_rig *rig = cpu_attn_rig(c, 256);
    float *all = (float *)calloc((size_t)(cpu_attn_total(c) * c->n_head * c->head_dim), sizeof(float));
    int n = c->lengths[0], m = c->lengths[1], window = c->window ? c->window - 1 : n, s, t;
    fg__vk_cuts *cuts;
    if (cpu_rig_open(rig, path, 1) == FG_OK) {
        cuts = &((fg__vk_plan *)(void *)rig->plan)->cuts[0];
        cpu_attn_all(c, rig, 0, 250, all);
        for (s = 0; s < CPU_SEQS && c->lengths[s] && limit > 0; s++) {
            double rms, error = cpu_attn_error(c, rig, s, all, &rms);
            CHECKF(error < limit && rms < 0.1 * limit, "%s %s, heads of %d, sequence %d: error %g, rms %g", path, fg_type_name(c->kv_type),
                   c->head_dim, s, error, rms);
        }
        for (t = n - 3; t < n; t++) {
            cpu_batch_start(rig);
            cpu_attn_add(c, rig, 0, t, t + 1);
            vulkan_check_rows(path, rig, all, same);
            CHECKF(cuts->n_items == t / cuts->length - FG__MAX(0, t - window) / cuts->length + 1, "%d items of %d", cuts->n_items, cuts->length);
        }
        for (s = 0; s < 3; s++) {
            if (s == 2) cuts->most = cuts->n_items - 1;
            cpu_batch_start(rig);
            if (s) cpu_attn_add(c, rig, 1, 0, FG__MIN(m, 100));
            cpu_attn_add(c, rig, 0, n - 3, n - 1);
            cpu_attn_add(c, rig, 1, m - 1, m);
            vulkan_check_rows(path, rig, all, same);
            CHECK(s == 2 ? cuts->n_items <= cuts->most : cuts->n_items >= 4);
        }
    }
    free(all);
    cpu_rig_free(rig);
}

static void test_vulkan_attention_cuts(void) {
    static const char *const paths[] = {"vulkan", "vulkan-half", "vulkan-matrix", "vulkan-kv", "vulkan-invariant", "vulkan-half-invariant"};
    static const cpu_attn cases[] = {
        {FG_TYPE_F16, 4, 1, 64, 64, 1, 0, 32, false, 0.0f, 1.0f, {1030, 530, 0, 0, 0, 0}},
        {FG_TYPE_F16, 3, 1, 128, 64, 1, 600, 16, false, 0.0f, 1.0f, {1140, 90, 0, 0, 0, 0}},
        {FG_TYPE_Q8_0, 4, 2, 96, 64, 0, 0, 64, false, 20.0f, 1.0f, {600, 513, 0, 0, 0, 0}},
        {FG_TYPE_F32, 4, 2, 32, 32, 1, 0, 16, false, 0.0f, 1.0f, {1030, 600, 0, 0, 0, 0}},
        {FG_TYPE_BF16, 20, 1, 80, 64, 1, 0, 32, false, 0.0f, 1.0f, {560, 9, 0, 0, 0, 0}},
        {FG_TYPE_F16, 2, 2, 256, 64, 1, 0, 32, false, 0.0f, 1.0f, {580, 512, 0, 0, 0, 0}},
        {FG_TYPE_F32, 4, 2, 16, 16, 1, 0, 16, false, 0.0f, 1.0f, {540, 515, 0, 0, 0, 0}},
    };
    size_t i, p;
    int sinks;
    if (!cpu_vulkan_device(0)) SKIP("there is no Vulkan device");
    for (p = 0; p < 6; p++) {
        const fg__vk_device *d = (const fg__vk_device *)(const void *)cpu_vulkan_device(cpu_vulkan_number(paths[p]));
        bool halves = p == 1 || p == 2 || p == 5, gpu = d->properties.device_type != 4;
        if (halves && d->rungs == 0) continue;
        for (i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
            fg_type type = cases[i].kv_type;
            double limit = halves ? 0 : type == FG_TYPE_F32 ? 2e-5 : type == FG_TYPE_Q8_0 ? 2e-2 : type == FG_TYPE_F16 ? 1e-3 : 8e-3;
            if (halves && i != 0 && i != 2) continue; /* other types are floats either way; test_vulkan_attention_long has halves */
            if ((p == 3) != (i == 6)) continue; /* pieces of a pool: sums in the order of its blocks */
            if (p == 4 && i > 1 && i != 3) continue;
            /* where items have other lengths than cuts, and by compilers of GPUs, which contract sums of one shape and not of another */
            for (sinks = 0; sinks < (i == 0 || i == 6 ? 2 : 1); sinks++) {
                cpu_sinks = sinks;
                vulkan_check_cuts(paths[p], &cases[i], p < 4 ? limit : 0, p < 4 || gpu ? halves ? 8e-3f : p == 3 ? 1e-5f : 3e-5f : 0.0f);
                cpu_sinks = false;
            }
        }
    }
}

/* A context of 33,000: keys and values alone are made of all tokens, then attention of the last ones, whole and as items. */
static void vulkan_far(const char *path, float same) {
    enum { N = 33000, LAST = 9 };
    cpu_attn c = {FG_TYPE_F16, 1, 1, 128, 64, 1, 0, 64, false, 0.0f, 1.0f, {N, 0, 0, 0, 0, 0}};
    cpu_rig *rig;
    int t;
    rig = cpu_attn_rig(&c, 256);
    if (cpu_rig_open(rig, path, 1) == FG_OK) {
        fg__vk_cuts *cuts = &((fg__vk_plan *)(void *)rig->plan)->cuts[0];
        float *all = (float *)calloc((size_t)N * (size_t)c.head_dim, sizeof(float));
        rig->batch.n_ops = 2;
        for (t = 0; t < N; t += 256) {
            cpu_batch_start(rig);
            cpu_attn_add(&c, rig, 0, t, FG__MIN(N, t + 256));
            rig->batch.n_rows = 0;
            CHECK(cpu_rig_submit(rig) == FG_OK);
        }
        rig->batch.n_ops = 0;
        cpu_batch_start(rig);
        cpu_attn_add(&c, rig, 0, N - LAST, N);
        cpu_attn_take(rig, all);
        CHECK(cuts->n_items == 0);
        cpu_batch_start(rig);
        cpu_attn_add(&c, rig, 0, N - 1, N);
        vulkan_check_rows(path, rig, all, same);
        CHECK(cuts->n_items == N / FG__VK_SPLIT + 1 && cuts->length == FG__VK_SPLIT);
        free(all);
    }
    cpu_rig_free(rig);
}

static void test_vulkan_attention_far(void) {
    if (!cpu_vulkan_device(0)) SKIP("there is no Vulkan device");
    vulkan_far("vulkan", 3e-5f);
    vulkan_far("vulkan-invariant", ((const fg__vk_device *)(const void *)cpu_vulkan_device(0))->properties.device_type != 4 ? 3e-5f : 0.0f);
}

/* Values whose sums are more than halves hold; and the bits do not depend on the batch, but for items of other lengths. */
static void test_vulkan_attention_batch(void) {
    static const char *const paths[] = {"vulkan", "vulkan-half", "vulkan-matrix", "vulkan-invariant", "vulkan-half-invariant"};
    static const int runs[][2] = {{0, 256}, {0, 30}, {1, 50}, {1, 1}, {2, 20}}; /* passes of more than 8 tokens, then others */
    cpu_attn c = {FG_TYPE_F16, 6, 2, 64, 64, 1, 0, 32, false, 0.0f, 1.0f, {90, 40, 0, 0, 0, 0}};
    size_t n = (size_t)(cpu_attn_total(&c) * c.n_head * c.head_dim), p, j, i, bad;
    float *first = (float *)calloc(n, sizeof(float)), *other = (float *)calloc(n, sizeof(float));
    if (!cpu_vulkan_device(0)) {
        free(first);
        free(other);
        SKIP("there is no Vulkan device");
    }
    for (p = 0; p < 5; p++)
        for (j = 0; j < 2; j++) { /* 1: values of up to 30000 */
            cpu_rig *rig = cpu_attn_rig(&c, 256);
            float *rows = (float *)(void *)rig->data[0];
            double rms;
            int width = (c.n_head + 2 * c.n_kv_head) * c.head_dim, row, col;
            for (row = 0; j && row < cpu_attn_total(&c); row++)
                for (col = width - c.n_kv_head * c.head_dim; col < width; col++) rows[row * width + col] = 30000.0f * fmaxf(-1.0f, fminf(1.0f, rows[row * width + col]));
            if (cpu_rig_open(rig, paths[p], 1) == FG_OK) {
                cpu_attn_all(&c, rig, runs[0][0], runs[0][1], first);
                CHECKF(cpu_attn_error(&c, rig, 0, first, &rms) < (j ? 300 : 1e-2), "%s, large %d", paths[p], (int)j);
                for (i = 1; i < (p == 2 ? 3 : 5); i++) {
                    cpu_attn_all(&c, rig, runs[i][0], runs[i][1], other);
                    float limit = p > 2 || i < 3 ? 0.0f : (j ? 30000.0f : 1.0f) * (p == 0 ? 3e-5f : 8e-3f);
                    for (bad = 0; bad < n && (limit > 0 ? fabsf(first[bad] - other[bad]) <= limit : memcmp(&first[bad], &other[bad], sizeof(float)) == 0); bad++) {}
                    CHECKF(bad == n, "%s, run %d: value %d differs: %g, not %g", paths[p], (int)i, (int)bad, (double)other[bad], (double)first[bad]);
                }
            }
            cpu_rig_free(rig);
        }
    free(first);
    free(other);
}

/* ---- Mixtures of experts. ---- */

static void vulkan_check_experts(const char *path, fg_type type, const cpu_experts *c) {
    int sum;
    for (sum = 0; sum < 2; sum++) {
        double error = cpu_experts_error(path, 1, type, c, sum);
        CHECKF(error < 2 * cpu_gemm_limit(path, type, c->m), "%s %s, %d tokens, k %d, sum %d: error %g", path, fg_type_name(type), c->m, c->k, sum, error);
    }
}

/* Of one token, of few and of many, whose experts have rows of several tiles or none. */
static const cpu_experts vulkan_experts[] = {{256, 40, 1, 4, 1, false, true, true},   {256, 70, 37, 8, 3, false, false, false},
                                             {256, 33, 150, 3, 1, true, true, true},  {512, 32, 21, 5, 5, false, true, false},
                                             {256, 40, 6, 24, 8, false, true, true},  {256, 32, 50, 64, 2, false, true, false},
                                             {256, 70, 20, 8, 3, false, true, true},  {512, 33, 70, 3, 2, true, true, false}};
enum { VULKAN_EXPERTS = sizeof(vulkan_experts) / sizeof(vulkan_experts[0]) };

/* Experts of every type; widths that are no whole units. */
static void test_vulkan_experts(void) {
    static const cpu_experts ragged = {75, 33, 20, 4, 2, false, true, true}, longer = {75, 33, 70, 4, 2, false, true, true};
    int i, s;
    if (!cpu_vulkan_device(0)) SKIP("there is no Vulkan device");
    for (i = 0; i < CPU_TYPES; i++)
        for (s = i % 2; s < VULKAN_EXPERTS; s += 2) vulkan_check_experts("vulkan", cpu_types[i], &vulkan_experts[s]);
    for (i = 0; i < CPU_TYPES; i++)
        if (fg__vk_is_float(cpu_types[i])) vulkan_check_experts("vulkan", cpu_types[i], &ragged), vulkan_check_experts("vulkan", cpu_types[i], &longer);
}

static void test_vulkan_experts_rungs(void) {
    static const char *const paths[] = {"vulkan-dot", "vulkan-half", "vulkan-matrix", "vulkan-push"};
    static const fg_type types[][3] = {{FG_TYPE_Q4_K, FG_TYPE_MXFP4, FG_TYPE_Q6_K}, {FG_TYPE_Q8_0, FG_TYPE_BF16, FG_TYPE_Q2_K},
                                       {FG_TYPE_MXFP4, FG_TYPE_F16, FG_TYPE_Q5_K}, {FG_TYPE_F16, FG_TYPE_Q8_0, FG_TYPE_Q4_0}};
    int p, i;
    if (!cpu_vulkan_device(0)) SKIP("there is no Vulkan device");
    for (p = 0; p < 4; p++) {
        const fg__vk_device *d = (const fg__vk_device *)(const void *)cpu_vulkan_device(cpu_vulkan_number(paths[p]));
        for (i = 0; d && d->rungs && i < VULKAN_EXPERTS; i++) vulkan_check_experts(paths[p], types[p][i % 3], &vulkan_experts[i]);
    }
}

/* Kernels that see 32 KiB at once: two experts of F32, the whole of others; an expert that is larger is refused. */
static void test_vulkan_experts_pieces(void) {
    static const cpu_experts c = {256, 16, 33, 7, 3, false, true, true}, large = {256, 40, 2, 3, 2, false, true, false};
    uint64_t state = 3;
    cpu_rig *rig;
    int i;
    if (!cpu_vulkan_device(0)) SKIP("there is no Vulkan device");
    vulkan_check_experts("vulkan-split", FG_TYPE_F32, &c);
    vulkan_check_experts("vulkan-split", FG_TYPE_Q8_0, &c);
    rig = cpu_rig_new(2);
    for (i = 0; i < 2; i++) {
        fg_weight *weight = NULL;
        fg_tensor *tensor = &rig->tensors[cpu_expert_weights(rig, FG_TYPE_F32, i ? &c : &large, &state)];
        fg_device *device = cpu_vulkan_device(cpu_vulkan_number("vulkan-split"));
        fg_result r = fg_backend_vulkan()->pack(device, tensor, FG_OP_MOE_GEMM, &weight, NULL);
        CHECK(i ? r == FG_OK && ((fg__vk_weight *)(void *)weight)->n_pieces == 4 : r == FG_ERROR_UNSUPPORTED && strstr(fg_last_error(), "an expert"));
        if (weight) fg_backend_vulkan()->unpack(device, weight);
    }
    cpu_rig_free(rig);
}

/* As vulkan_other_bits, of experts. */
static int vulkan_expert_bits(const char *path, fg_type type, const cpu_experts *c, bool sum) {
    static const int sizes[] = {1, 2, 5, 9};
    uint64_t state = 11;
    cpu_rig *rig = cpu_rig_new(c->m);
    int routes = cpu_expert_routes(rig, c, &state), columns = sum ? c->n : c->n * c->n_used, width = sum ? c->k * c->n_used : c->k;
    int x = cpu_slot(rig, width, false), y = cpu_slot(rig, columns, false), i, other = 0;
    float *all = (float *)malloc(sizeof(float) * (size_t)(columns * c->m));
    fg_op *op = cpu_op(rig, FG_OP_EMBED, -1, x, width);
    op->weight = cpu_weight(rig, FG_TYPE_F32, width, c->m, FG_OP_EMBED, &state);
    op = cpu_op(rig, FG_OP_EMBED, -1, y, columns);
    op->weight = cpu_weight(rig, FG_TYPE_F32, columns, c->m, FG_OP_EMBED, &state);
    (void)cpu_expert_op(rig, c, type, x, routes, y, sum, &state);
    cpu_rig_end(rig, y);
    if (cpu_rig_open(rig, path, 1) == FG_OK) {
        memcpy(all, cpu_rig_run(rig, 0, c->m), sizeof(float) * (size_t)(columns * c->m));
        for (i = 0; i < 4; i++)
            other += memcmp(cpu_rig_run(rig, 7 * i, sizes[i]), all + 7 * i * columns, sizeof(float) * (size_t)(columns * sizes[i])) != 0;
    }
    free(all);
    cpu_rig_free(rig);
    return other;
}

/* One order of sums for every number of tokens; without `invariant` kernels differ. */
static void test_vulkan_experts_invariant(void) {
    static const char *const paths[] = {"vulkan-invariant", "vulkan-dot-invariant", "vulkan-half-invariant", "vulkan-matrix-invariant"};
    static const fg_type types[] = {FG_TYPE_F16, FG_TYPE_Q4_K, FG_TYPE_Q8_0, FG_TYPE_MXFP4};
    cpu_experts c = {768, 40, 40, 6, 3, false, true, false};
    int p;
    if (!cpu_vulkan_device(0)) SKIP("there is no Vulkan device");
    CHECK(vulkan_expert_bits("vulkan", FG_TYPE_F16, &c, false) + vulkan_expert_bits("vulkan", FG_TYPE_F16, &c, true) > 0);
    for (p = 0; p < 4; p++) {
        const fg__vk_device *d = (const fg__vk_device *)(const void *)cpu_vulkan_device(cpu_vulkan_number(paths[p]));
        if (!d || (p && d->rungs == 0)) continue;
        CHECKF(vulkan_expert_bits(paths[p], types[p], &c, false) == 0, "%s", paths[p]);
        CHECKF(vulkan_expert_bits(paths[p], types[p], &c, true) == 0, "%s, sums", paths[p]);
    }
    c.k = 75;
    CHECK(vulkan_expert_bits("vulkan-invariant", FG_TYPE_F32, &c, true) == 0);
}

/* Ids of a token's experts are such, and different ones, whatever the logits. */
static void vulkan_check_choice(const char *path, const cpu_experts *c) {
    const float strange[] = {NAN, INFINITY, -INFINITY, 0.0f, -0.0f, -NAN, 3e38f, -3e38f}; /* for tcc no constants */
    uint64_t state = 5;
    cpu_rig *rig = cpu_rig_new(c->m);
    int routes = cpu_expert_routes(rig, c, &state), width = 2 * c->n_used + 1, row, i, j, bad = 0;
    float *table = (float *)(void *)rig->data[rig->ops[0].weight];
    for (i = 0; i < c->m * c->n_expert; i++)
        if (i < c->n_expert || test_random(&state) % 2) table[i] = strange[i < c->n_expert ? 0 : test_random(&state) % 8];
    cpu_rig_end(rig, routes);
    if (cpu_rig_open(rig, path, 1) == FG_OK) {
        const float *out = cpu_rig_run(rig, 0, c->m);
        for (row = 0; row < c->m; row++)
            for (i = 0; i < c->n_used; i++) {
                const float *ids = out + row * width + 1;
                bad += !(ids[i] >= 0 && ids[i] < (float)c->n_expert && ids[i] == (float)(int)ids[i]);
                for (j = 0; j < i; j++) bad += ids[i] == ids[j];
            }
        CHECKF(bad == 0, "%s, %d of %d experts: %d", path, c->n_used, c->n_expert, bad);
    }
    cpu_rig_free(rig);
}

static void test_vulkan_route(void) {
    static const cpu_experts cases[] = {{0, 0, 9, 3, 3, false, true, false},   {0, 0, 40, 128, 8, false, true, false},
                                        {0, 0, 5, 1024, 16, false, false, false}, {0, 0, 7, 100, 4, true, true, false}};
    int s;
    if (!cpu_vulkan_device(0)) SKIP("there is no Vulkan device");
    for (s = 0; s < 6; s++) cpu_check_routes("vulkan", &vulkan_experts[s]);
    for (s = 0; s < 4; s++) {
        cpu_check_routes("vulkan", &cases[s]);
        vulkan_check_choice("vulkan", &cases[s]);
    }
}

/* Products with what a slot says that names no experts are those with the first. */
static void vulkan_check_strangers(const char *path, int m) {
    static const float ids[2][4] = {{NAN, -1.0f, 5.0f, 3e9f}, {0.0f, 0.0f, 0.0f, 0.0f}};
    static const cpu_experts c = {64, 32, 20, 5, 2, false, true, false};
    float out[2][20 * 64];
    int p, i;
    for (p = 0; p < 2; p++) {
        uint64_t state = 9;
        cpu_rig *rig = cpu_rig_new(m);
        int routes = cpu_slot(rig, 4, false), x = cpu_slot(rig, 64, false), y = cpu_slot(rig, 64, false);
        fg_op *op = cpu_op(rig, FG_OP_EMBED, -1, routes, 4);
        op->weight = cpu_weight(rig, FG_TYPE_F32, 4, c.m, FG_OP_EMBED, &state);
        for (i = 0; i < 4 * c.m; i++) ((float *)(void *)rig->data[op->weight])[i] = ids[p][(i + i / 4) % 4];
        op = cpu_op(rig, FG_OP_EMBED, -1, x, 64);
        op->weight = cpu_weight(rig, FG_TYPE_F32, 64, c.m, FG_OP_EMBED, &state);
        op = cpu_op(rig, FG_OP_MOE_GEMM, x, y, 32);
        op->weight = cpu_expert_weights(rig, FG_TYPE_F16, &c, &state);
        op->k = 64;
        op->src2 = routes;
        op->n_expert = c.n_expert;
        op->n_used = c.n_used;
        cpu_rig_end(rig, y);
        if (cpu_rig_open(rig, path, 1) == FG_OK) memcpy(out[p], cpu_rig_run(rig, 0, m), sizeof(float) * 64 * (size_t)m);
        cpu_rig_free(rig);
    }
    CHECKF(memcmp(out[0], out[1], sizeof(float) * 64 * (size_t)m) == 0, "%s, %d tokens", path, m);
}

/* Products with experts of Q8_0, behind one of another kind with the same rows, or alone (FG_OP_COUNT). */
static float *vulkan_behind(const char *path, const cpu_experts *c, fg_op_type before, fg_type type) {
    uint64_t state = 13;
    cpu_rig *rig = cpu_rig_new(c->m);
    int columns = c->n * c->n_used, routes = cpu_expert_routes(rig, c, &state), slots[3], i;
    float *out = (float *)calloc((size_t)(columns * c->m), sizeof(float));
    fg_op *op;
    for (i = 0; i < 3; i++) slots[i] = cpu_slot(rig, i ? columns : c->k, false);
    op = cpu_op(rig, FG_OP_EMBED, -1, slots[0], c->k);
    op->weight = cpu_weight(rig, FG_TYPE_F32, c->k, c->m, FG_OP_EMBED, &state);
    for (i = 0; i < 2; i++) {
        int weight = i && before == FG_OP_GEMM ? cpu_weight(rig, type, c->k, c->n, FG_OP_GEMM, &state) : cpu_expert_weights(rig, i ? type : FG_TYPE_Q8_0, c, &state);
        if (i && before == FG_OP_COUNT) break;
        op = cpu_op(rig, i ? before : FG_OP_MOE_GEMM, slots[0], slots[1 + i], c->n);
        op->weight = weight;
        op->k = c->k;
        op->src2 = i && before == FG_OP_GEMM ? -1 : routes;
        op->src2_col = 1;
        op->n_expert = c->n_expert;
        op->n_used = c->n_used;
    }
    if (before != FG_OP_COUNT) { /* the first comes last */
        fg_op own = op[-1];
        op[-1] = *op;
        *op = own;
    }
    cpu_rig_end(rig, slots[1]);
    if (cpu_rig_open(rig, path, 1) == FG_OK) memcpy(out, cpu_rig_run(rig, 0, c->m), sizeof(float) * (size_t)(columns * c->m));
    cpu_rig_free(rig);
    return out;
}

static void vulkan_check_behind(const char *path, const cpu_experts *c, fg_op_type before, fg_type type) {
    float *alone = vulkan_behind(path, c, FG_OP_COUNT, type), *behind = vulkan_behind(path, c, before, type);
    CHECKF(memcmp(alone, behind, sizeof(float) * (size_t)(c->n * c->n_used * c->m)) == 0, "%s, behind op %d", path, (int)before);
    free(alone);
    free(behind);
}

/* A sum over experts as a graph. */
static void vulkan_expert_sum(cpu_rig *rig, const cpu_experts *c) {
    uint64_t state = 5;
    int routes = cpu_expert_routes(rig, c, &state), x = cpu_slot(rig, c->k * c->n_used, false), y = cpu_slot(rig, c->n, false);
    fg_op *op = cpu_op(rig, FG_OP_EMBED, -1, x, c->k * c->n_used);
    op->weight = cpu_weight(rig, FG_TYPE_F32, c->k * c->n_used, c->m, FG_OP_EMBED, &state);
    op = cpu_op(rig, FG_OP_EMBED, -1, y, c->n);
    op->weight = cpu_weight(rig, FG_TYPE_F32, c->n, c->m, FG_OP_EMBED, &state);
    (void)cpu_expert_op(rig, c, FG_TYPE_F16, x, routes, y, true, &state);
    cpu_rig_end(rig, y);
}

/* The memory that is measured is what is taken, but for what is rounded up. */
static void vulkan_check_measure(const cpu_rig *rig) {
    const fg__vk_plan *plan = (const fg__vk_plan *)(const void *)rig->plan;
    size_t all = plan->memory.bytes + plan->batch.bytes + plan->rows.bytes + plan->tops.bytes + plan->candidates.bytes;
    fg_memory memory;
    int i;
    CHECK(rig->backend->prepare(rig->device, &rig->graph, NULL, &memory) == FG_OK);
    for (i = 0; i < FG__VK_TURNS; i++) {
        const fg__vk_turn *turn = &plan->turns[i];
        all += turn->batch.bytes + turn->rows.bytes + turn->candidates.bytes + turn->logits.bytes + turn->kept.bytes;
    }
    for (i = 0; i < plan->n_kv; i++) all += plan->layers[i].k.bytes + plan->layers[i].v.bytes;
    CHECKF(memory.total <= all && all < memory.total + 32 * FG__VK_ALIGN, "%zu bytes were measured, %zu taken", memory.total, all);
    CHECK(plan->n_steps <= plan->max_steps);
}

/* Room for tiles and products; what is refused. */
static void test_vulkan_experts_bounds(void) {
    static const cpu_experts c = {64, 32, 20, 5, 2, false, true, false}, most = {64, 8, 4, 64, 64, false, true, false},
                             many = {64, 8, 150, 2, 1, false, true, false};
    cpu_rig *rig;
    if (!cpu_vulkan_device(0)) SKIP("there is no Vulkan device");
    vulkan_check_strangers("vulkan", 3);
    vulkan_check_strangers("vulkan", 20);
    vulkan_check_behind("vulkan-dot", &many, FG_OP_MOE_GEMM, FG_TYPE_F32); /* in tiles of other sizes */
    rig = cpu_rig_new(c.m);
    vulkan_expert_sum(rig, &c);
    if (cpu_rig_open(rig, "vulkan", 1) == FG_OK) {
        const fg__vk_sorted *s = &((const fg__vk_plan *)(const void *)rig->plan)->sorted;
        CHECK(s->products_bytes == 20 * 2 * 32 * 4 && s->bytes >= 4 * (1 + 3 * 6 + 40) && s->products_at >= s->offset + s->bytes);
        vulkan_check_measure(rig);
        rig->backend->release(rig->device, rig->plan);
        rig->plan = NULL;
        rig->ops[1].n_expert = FG__GPU_EXPERTS + 1;
        CHECK(rig->backend->prepare(rig->device, &rig->graph, &rig->plan, NULL) == FG_ERROR_UNSUPPORTED && strstr(fg_last_error(), "MOE_ROUTE"));
    }
    cpu_rig_free(rig);
    rig = cpu_rig_new(most.m);
    vulkan_expert_sum(rig, &most);
    if (cpu_rig_open(rig, "vulkan", 1) == FG_OK) {
        rig->graph.max_tokens = 40000;
        CHECK(rig->backend->prepare(rig->device, &rig->graph, NULL, NULL) == FG_ERROR_UNSUPPORTED && strstr(fg_last_error(), "64 experts"));
        rig->graph.max_tokens = most.m;
    }
    cpu_rig_free(rig);
}

static void test_vulkan_copy_blocks(void) {
    if (!cpu_vulkan_device(0)) SKIP("there is no Vulkan device");
    cpu_check_copy_blocks("vulkan");
}

/* A block to the host, back into another one, and out again: the same bytes. */
static void gpu_check_swap(const char *path) {
    cpu_attn c = {FG_TYPE_Q8_0, 2, 1, 32, 32, 1, 0, 16, false, 0.0f, 1.0f, {48, 0, 0, 0, 0, 0}};
    const fg_backend *b = cpu_backend_of(path);
    cpu_rig *rig;
    float rows[48 * 64];
    uint8_t *host;
    int32_t block[2];
    size_t bytes = 0, i, other = 0;
    rig = cpu_attn_rig(&c, 64);
    if (cpu_rig_open(rig, path, 1) == FG_OK) {
        cpu_batch_start(rig);
        cpu_attn_add(&c, rig, 0, 0, 48);
        cpu_attn_take(rig, rows);
        block[0] = cpu_attn_block(&c, rig, 0, 0);
        block[1] = cpu_attn_block(&c, rig, 0, 3);
        CHECK(b->swap_blocks(rig->device, rig->plan, 0, block, 1, NULL, true, &bytes) == FG_OK && bytes > 2 * 16 * 32);
        host = (uint8_t *)calloc(3, bytes);
        CHECK(b->swap_blocks(rig->device, rig->plan, 0, block + 1, 1, host, false, NULL) == FG_OK); /* zeros, whatever was there */
        CHECK(b->swap_blocks(rig->device, rig->plan, 0, block, 2, host, true, NULL) == FG_OK);
        for (i = 0; i < bytes; i++) other += host[i] != host[bytes + i];
        CHECK(other > 0);
        CHECK(b->swap_blocks(rig->device, rig->plan, 0, block + 1, 1, host, false, NULL) == FG_OK);
        CHECK(b->swap_blocks(rig->device, rig->plan, 0, block + 1, 1, host + 2 * bytes, true, NULL) == FG_OK);
        CHECK(memcmp(host, host + 2 * bytes, bytes) == 0);
        block[0] = rig->graph.groups[0].n_blocks;
        CHECK(b->swap_blocks(rig->device, rig->plan, 0, block, 1, host, true, NULL) == FG_ERROR_INVALID_ARGUMENT);
        free(host);
    }
    cpu_rig_free(rig);
}

/* A KV pool of which kernels see 8 KiB at once: pieces of a few blocks. */
static void test_vulkan_kv_pieces(void) {
    static const fg_type types[] = {FG_TYPE_F32, FG_TYPE_F16, FG_TYPE_BF16, FG_TYPE_Q8_0};
    int i;
    if (!cpu_vulkan_device(cpu_vulkan_number("vulkan-kv"))) SKIP("there is no Vulkan device");
    for (i = 0; i < 4; i++) {
        cpu_attn c = {types[i], 8, 2, 32, 32, 1, 0, 16, false, 0.0f, 1.0f, {90, 33, 1, 40, 0, 0}};
        cpu_rig *rig = cpu_model_rig(&c, cpu_types[CPU_TYPES - 1]);
        if (cpu_rig_open(rig, "vulkan-kv", 1) == FG_OK) CHECK(((fg__vk_plan *)(void *)rig->plan)->n_pieces[0] > 1);
        cpu_rig_free(rig);
        gpu_check_model("vulkan-kv", &c, CPU_TYPES - 1, 1, i == 3 ? 1e-3 : 1e-4); /* a sum's last bit may move a byte by one */
    }
    cpu_check_copy_blocks("vulkan-kv");
    gpu_check_swap("vulkan-kv");
}

static void test_vulkan_swap(void) {
    if (!cpu_vulkan_device(0)) SKIP("there is no Vulkan device");
    gpu_check_swap("vulkan");
}

/* ---- Recurrent layers. ---- */

/* States' heads in one piece of the pool, and in several, of which the last has fewer; key heads whose value heads are in two. */
static const state_case vulkan_states[] = {{6, 3, 16, 4, 0, 8, {9, 8, 0, 0}, false}, {6, 2, 16, 4, 1, 8, {9, 8, 0, 0}, false}, {4, 2, 32, 4, 1, 16, {50, 3, 0, 0}, false}};

static int vulkan_state_pieces(const char *path, const state_case *c) {
    cpu_rig *rig = state_rig(c, 128);
    int n = cpu_rig_open(rig, path, 1) == FG_OK ? ((const fg__vk_plan *)(const void *)rig->plan)->n_pieces[0] : 0;
    cpu_rig_free(rig);
    return n;
}

static void test_vulkan_state(void) {
    static const char *const paths[] = {"vulkan-push", "vulkan-invariant"};
    int i;
    if (!cpu_vulkan_device(0)) SKIP("there is no Vulkan device");
    for (i = 0; i < STATE_CASES; i++) state_check("vulkan", &state_cases[i], true);
    for (i = 0; i < 2; i++) state_check(paths[i], &state_cases[i], true);
    for (i = 0; i < 3; i++) {
        CHECKF(vulkan_state_pieces("vulkan-split", &vulkan_states[i]) == (i < 2 ? 2 : 4), "%d", i);
        state_check("vulkan-split", &vulkan_states[i], true);
    }
    state_check("vulkan-kv", &vulkan_states[1], true); /* one head in each */
}

/* Blocks that are shorter than the convolution: what it needs of before the pass is in the first block that the pass ends. */
static void test_vulkan_state_short(void) {
    static const state_case cases[] = {{2, 1, 12, 16, 0, 2, {21, 5, 0, 0}, false}, {1, 1, 33, 6, 1, 1, {9, 8, 0, 0}, false}, {2, 2, 1, 4, 0, 4, {9, 3, 0, 0}, false}};
    int i;
    if (!cpu_vulkan_device(0)) SKIP("there is no Vulkan device");
    for (i = 0; i < 3; i++) state_check("vulkan", &cases[i], true);
}

/* Two recurrent layers between products, which write src's columns apart: x += W state_scan(W' x). */
static cpu_rig *vulkan_state_model(const state_case *c) {
    enum { W = 64 };
    uint64_t state = 17;
    cpu_rig *rig = state_rig(c, 64);
    fg_op scan = rig->ops[1], *op;
    int v = c->n_head * c->dim, z = v + 2 * c->n_kv_head * c->dim, firsts[5], x, h, y, layer, i;
    firsts[0] = 0;
    firsts[1] = z;
    firsts[2] = z + v;
    firsts[3] = z + v + c->n_head;
    firsts[4] = z + v + 2 * c->n_head;
    rig->graph.n_ops = rig->graph.n_slots = 0; /* of it stay weights and the group */
    x = cpu_slot(rig, W, false);
    h = cpu_slot(rig, firsts[4], false);
    y = cpu_slot(rig, v, false);
    cpu_op(rig, FG_OP_EMBED, -1, x, W)->weight = cpu_weight(rig, FG_TYPE_F32, W, state_token(c, STATE_SEQS, 0), FG_OP_EMBED, &state);
    for (layer = 0; layer < 2; layer++) {
        for (i = 0; i < 4; i++) {
            op = cpu_op(rig, FG_OP_GEMM, x, h, firsts[i + 1] - firsts[i]);
            op->dst_col = firsts[i];
            op->k = W;
            op->weight = cpu_weight(rig, FG_TYPE_F32, W, op->n, FG_OP_GEMM, &state);
        }
        op = cpu_op(rig, FG_OP_STATE_SCAN, h, y, v);
        *op = scan;
        op->src = h;
        op->dst = y;
        op->src_col = op->dst_col = 0;
        op->group_layer = layer;
        op = cpu_op(rig, FG_OP_GEMM, y, x, W);
        op->k = v;
        op->src2 = x;
        op->weight = cpu_weight(rig, FG_TYPE_F32, v, W, FG_OP_GEMM, &state);
    }
    cpu_rig_end(rig, x);
    return rig;
}

/* As the CPU has it. */
static void vulkan_check_state_model(const char *path, const state_case *c) {
    cpu_rig *rig = vulkan_state_model(c), *own = vulkan_state_model(c);
    size_t size = (size_t)state_token(c, STATE_SEQS, 0) * 64, i;
    float *want = (float *)calloc(size, sizeof(float)), *have = (float *)calloc(size, sizeof(float));
    double worst = 0, largest = 0;
    if (cpu_rig_open(rig, path, 1) == FG_OK && cpu_rig_open(own, "scalar", 1) == FG_OK) {
        CHECKF(((const fg__vk_plan *)(const void *)rig->plan)->slots[1].n_parts == 4, "%s", path);
        CHECK(state_all(c, rig, 7, true, have) && state_all(c, own, 64, false, want));
        for (i = 0; i < size; i++) {
            worst = test_worse(worst, fabs((double)have[i] - (double)want[i]));
            largest = test_worse(largest, fabs((double)want[i]));
        }
        CHECKF(largest > 0 && worst < 2e-4 * largest, "%s: error %g of %g", path, worst, largest);
    }
    free(want);
    free(have);
    cpu_rig_free(rig);
    cpu_rig_free(own);
}

static void test_vulkan_state_model(void) {
    if (!cpu_vulkan_device(0)) SKIP("there is no Vulkan device");
    vulkan_check_state_model("vulkan", &state_cases[1]);
    vulkan_check_state_model("vulkan-split", &vulkan_states[0]);
}

/* A sequence goes on from copies of its block, from one that was swapped out and in, and as it is: the same bits. */
static void gpu_check_state_blocks(const char *path, const state_case *c) {
    cpu_rig *rig = state_rig(c, 64);
    size_t width = (size_t)rig->graph.n_vocab, bytes = 0, floats = (size_t)fg__state_floats(&rig->graph.groups[0]), i, bad = 0;
    float *rows = (float *)calloc(width, 3 * sizeof(float)), *host = NULL;
    int n = c->lengths[0], bt = c->block_tokens, way, from = state_block(c, rig, 0, (n - 2) / bt), free_block = state_block(c, rig, 1, 0);
    int32_t blocks[2];
    fg_block_copy copy;
    blocks[0] = from;
    blocks[1] = free_block;
    for (way = 0; way < 3 && cpu_rig_open(rig, path, 1) == FG_OK; way++) {
        cpu_batch_start(rig);
        state_add(c, rig, 0, 0, n - 1);
        CHECK(cpu_rig_submit(rig) == FG_OK);
        CHECK(rig->backend->swap_blocks(rig->device, rig->plan, 0, blocks, 1, NULL, true, &bytes) == FG_OK && bytes == 2 * 4 * floats);
        if (!host) host = (float *)calloc(2, bytes);
        copy.group = 0;
        copy.from = from;
        copy.to = free_block;
        if (way == 1) CHECK(rig->backend->copy_blocks(rig->device, rig->plan, &copy, 1) == FG_OK);
        if (way == 2) {
            CHECK(rig->backend->swap_blocks(rig->device, rig->plan, 0, blocks, 1, host, true, NULL) == FG_OK);
            CHECK(rig->backend->swap_blocks(rig->device, rig->plan, 0, blocks + 1, 1, host, false, NULL) == FG_OK);
            CHECK(rig->backend->swap_blocks(rig->device, rig->plan, 0, blocks, 2, host, true, NULL) == FG_OK);
            CHECK(memcmp(host, (const char *)host + bytes, bytes) == 0);
            for (i = 0; i < floats; i++) bad += host[floats + i] == 0.0f; /* the second layer's: all of it is something */
            CHECKF(bad == 0, "%s: %zu zeros of %zu", path, bad, floats);
        }
        cpu_batch_start(rig);
        state_add(c, rig, 0, n - 1, n);
        for (i = 0; way && i < (size_t)rig->graph.max_blocks_per_seq; i++)
            if (rig->tables[0][i] == from) rig->tables[0][i] = free_block;
        CHECK(cpu_rig_submit(rig) == FG_OK);
        memcpy(rows + (size_t)way * width, rig->output.logits, width * sizeof(float));
        rig->backend->release(rig->device, rig->plan);
        rig->plan = NULL;
    }
    for (i = 5; way == 3 && i < width; i++) bad += rows[i] != rows[width + i] || rows[i] != rows[2 * width + i] || rows[i] == 0.0f;
    CHECKF(way == 3 && bad == 0, "%s: %zu other numbers: %s", path, bad, way == 3 ? "" : fg_last_error());
    free(rows);
    free(host);
    cpu_rig_free(rig);
}

/* Where any block ends within a pass another sequence may go on, with the same bits. */
static void gpu_check_state_prefix(const char *path, const state_case *c) {
    cpu_rig *rig = state_rig(c, 64);
    size_t width = (size_t)rig->graph.n_vocab, row, i, bad = 0;
    int n = c->lengths[0], bt = c->block_tokens, last = (n - 1) / bt, b;
    float *all = (float *)calloc(width * (size_t)n, sizeof(float));
    if (cpu_rig_open(rig, path, 1) == FG_OK) {
        cpu_batch_start(rig);
        state_add(c, rig, 0, 0, n);
        for (b = 0; b <= last; b++) rig->tables[0][b] = state_block(c, rig, 0, b);
        CHECK(cpu_rig_submit(rig) == FG_OK);
        memcpy(all, rig->output.logits, width * (size_t)n * sizeof(float));
        for (b = 0; b < last; b++) {
            cpu_batch_start(rig);
            state_add(c, rig, 0, (b + 1) * bt, n);
            for (i = 0; i <= (size_t)last; i++) rig->tables[0][i] = (int)i == b ? state_block(c, rig, 0, b) : (int)i == last ? state_block(c, rig, 1, 0) : -1;
            CHECK(cpu_rig_submit(rig) == FG_OK);
            for (row = 0; row < (size_t)(n - (b + 1) * bt); row++)
                for (i = 5; i < width; i++) bad += rig->output.logits[row * width + i] != all[((size_t)((b + 1) * bt) + row) * width + i];
        }
        CHECKF(bad == 0 && last > 1, "%s: %zu other numbers", path, bad);
    }
    free(all);
    cpu_rig_free(rig);
}

static void test_vulkan_state_prefix(void) {
    static const state_case cases[] = {{2, 1, 40, 4, 1, 8, {29, 1, 0, 0}, false}, {3, 3, 12, 9, 0, 2, {11, 1, 0, 0}, false}};
    if (!cpu_vulkan_device(0)) SKIP("there is no Vulkan device");
    gpu_check_state_prefix("vulkan", &cases[0]);
    gpu_check_state_prefix("vulkan-split", &cases[1]);
}

/* More than is staged at once: a layer of a block in several parts, of which the host has the same order. */
static void test_vulkan_state_blocks(void) {
    static const state_case small = {2, 2, 16, 4, 1, 8, {14, 1, 0, 0}, false}, large = {20, 20, 256, 4, 0, 32, {5, 1, 0, 0}, false};
    if (!cpu_vulkan_device(0)) SKIP("there is no Vulkan device");
    gpu_check_state_blocks("vulkan", &small);
    gpu_check_state_blocks("vulkan-split", &vulkan_states[2]);
    CHECK(vulkan_state_pieces("vulkan", &large) == 2);
    gpu_check_state_blocks("vulkan", &large);
}

static void test_vulkan_state_bounds(void) {
    static const state_case c = {2, 1, 64, 4, 1, 8, {20, 0, 0, 0}, false};
    cpu_rig *rig;
    if (!cpu_vulkan_device(0)) SKIP("there is no Vulkan device");
    rig = state_rig(&c, 32);
    if (cpu_rig_open(rig, "vulkan", 1) == FG_OK) {
        fg_device *small = cpu_vulkan_device(cpu_vulkan_number("vulkan-kv"));
        vulkan_check_measure(rig);
        if (small) CHECK(rig->backend->prepare(small, &rig->graph, NULL, NULL) == FG_ERROR_UNSUPPORTED && strstr(fg_last_error(), "states of a head of 64"));
        cpu_batch_start(rig);
        state_add(&c, rig, 0, 0, 20);
        rig->tables[0][2] = -1; /* where the state is to go */
        CHECK(cpu_rig_submit(rig) == FG_ERROR_INVALID_ARGUMENT);
    }
    cpu_rig_free(rig);
}

/* y = sigmoid(x[5..]) * y and y = sigmoid(x[2]) * y, in place, then, but with F32, a product. The largest error beside the norms of rows. */
static double vulkan_gates_error(const char *path, fg_type type, int m) {
    enum { N = 128, W = 20 };
    uint64_t state = 29;
    cpu_rig *rig = cpu_rig_new(m);
    int x = cpu_slot(rig, 140, false), y = cpu_slot(rig, N, false), z = cpu_slot(rig, W, false), i, j, row, tables[2], weight = -1;
    float a[140], b[N], w[N];
    double worst = 0;
    fg_op *op;
    for (i = 0; i < 2; i++) tables[i] = cpu_op(rig, FG_OP_EMBED, -1, i ? y : x, i ? N : 140)->weight = cpu_weight(rig, FG_TYPE_F32, i ? N : 140, m, FG_OP_EMBED, &state);
    for (i = 0; i < 140 * m; i++) ((float *)(void *)rig->data[tables[0]])[i] *= 3.0f;
    for (i = 0; i < 2; i++) {
        op = cpu_op(rig, FG_OP_ACT_MUL, x, y, N);
        op->src2 = y;
        op->src_col = i ? 2 : 5;
        op->k = i;
        op->act = FG_ACT_SIGMOID;
    }
    if (type != FG_TYPE_F32) {
        op = cpu_op(rig, FG_OP_GEMM, y, z, W);
        op->weight = weight = cpu_weight(rig, type, N, W, FG_OP_GEMM, &state);
        op->k = N;
    }
    cpu_rig_end(rig, weight < 0 ? y : z);
    if (cpu_rig_open(rig, path, 1) == FG_OK) {
        const float *out = cpu_rig_run(rig, 0, m);
        for (row = 0; row < m; row++) {
            cpu_weight_row(rig, tables[0], row, a);
            cpu_weight_row(rig, tables[1], row, b);
            for (i = 0; i < (weight < 0 ? N : W); i++) {
                double want = 0, all = 1e-9;
                if (weight >= 0) cpu_weight_row(rig, weight, i, w);
                for (j = weight < 0 ? i : 0; j < (weight < 0 ? i + 1 : N); j++) {
                    double one = (weight < 0 ? 1.0 : (double)w[j]) * (double)b[j] / (1 + exp(-(double)a[5 + j])) / (1 + exp(-(double)a[2]));
                    want += one;
                    all += one * one;
                }
                worst = test_worse(worst, fabs((double)out[row * (weight < 0 ? N : W) + i] - want) / sqrt(all));
            }
        }
    } else worst = 1e9;
    cpu_rig_free(rig);
    return worst;
}

static void vulkan_check_gates(const char *path) {
    static const int rows[] = {1, 7, 20};
    int i;
    for (i = 0; i < 3; i++) {
        double plain = vulkan_gates_error(path, FG_TYPE_F32, rows[i]), product = vulkan_gates_error(path, FG_TYPE_Q8_0, rows[i]);
        CHECKF(plain < 1e-5 && product < (strstr(path, "-") ? 3e-2 : 1e-5), "%s, %d rows: errors %g, %g", path, rows[i], plain, product);
    }
}

static void test_vulkan_gates(void) {
    static const char *const paths[] = {"vulkan", "vulkan-dot", "vulkan-half", "vulkan-matrix"};
    int p;
    if (!cpu_vulkan_device(0)) SKIP("there is no Vulkan device");
    for (p = 0; p < 4; p++)
        if (cpu_vulkan_device(cpu_vulkan_number(paths[p]))) vulkan_check_gates(paths[p]);
}

static void test_vulkan_device(void) {
    const fg_backend *b = fg_backend_vulkan();
    fg_device *device = cpu_vulkan_device(0), *other = NULL;
    fg_device_desc desc;
    fg_device_caps caps;
    fg_roofs roofs;
    uint8_t bytes[64] = {1, 2, 3}, back[64] = {0};
    void *memory;
    CHECK(b->abi == FG_BACKEND_ABI && b->size == sizeof(fg_backend));
    if (!device) SKIP("there is no Vulkan device");
    CHECK(b->probe() >= 1);
    b->caps(device, &caps);
    CHECKF(strstr(caps.name, "Vulkan 1.") && caps.memory_bytes > 1 << 20, "%s", caps.name);
    CHECK(caps.weight_types >> FG_TYPE_MXFP4 & 1 && caps.kv_types >> FG_TYPE_Q8_0 & 1 && caps.sinks);
    CHECK(caps.ops >> FG_OP_MOE_ROUTE & 1 && caps.ops >> FG_OP_MOE_GEMM & 1 && caps.ops >> FG_OP_STATE_SCAN & 1);
    memory = b->alloc(device, 64);
    CHECK(memory && b->write(device, memory, 4, bytes, 32) == FG_OK && b->read(device, memory, 4, back, 32) == FG_OK);
    CHECK(memcmp(bytes, back, 32) == 0);
    CHECK(b->write(device, memory, 1 << 20, bytes, 4) == FG_ERROR_INVALID_ARGUMENT);
    CHECK(b->read(device, memory, 0, back, SIZE_MAX) == FG_ERROR_INVALID_ARGUMENT);
    b->free(device, memory);
    CHECK(b->profile(device, &roofs) == FG_OK && roofs.read_bytes_per_s > 1e6);
    memset(&desc, 0, sizeof(desc));
    desc.device = "no such device";
    CHECK(b->open(&desc, &other) == FG_ERROR_NOT_FOUND && strstr(fg_last_error(), "no such device"));
    desc.device = "99";
    CHECK(b->open(&desc, &other) == FG_ERROR_NOT_FOUND && strstr(fg_last_error(), "99"));
    desc.device = "0";
    CHECK(b->open(&desc, &other) == FG_OK);
    b->close(other);
}

/* ---- A driver that fails on demand, around the real one. ---- */

/* A fault in some kernels of a shader: those that have `spec` for their constant number spec_at (-1: all of them). */
enum { PLANT_ADD, PLANT_MULTIPLY, PLANT_DIVIDE, PLANT_FOLD, PLANT_DOT, PLANT_MATRIX, PLANT_NEAR, PLANT_PIECES, PLANT_WINDOW, PLANT_CAP, PLANT_REFUSE };
typedef struct vulkan_plant {
    int shader, spec_at, spec, what;
    uint32_t rung; /* that is lost; 0: the floor, and the device does not open */
    bool invariant, opens;
    const char *says;
} vulkan_plant;

static struct {
    fg__vk_loader loader;
    int left;       /* calls until one fails */
    int32_t result; /* with which */
    const char *only; /* NULL, or the function that fails */
    uint32_t wrong;   /* FG_VULKAN_...: what the driver does wrong */
    bool attention;   /* in attention alone */
    bool own;         /* around the stand-in */
    const vulkan_plant *plant;
    uint64_t modules[FG__VK_SHADERS], planted[64]; /* of shaders; pipelines with the plant */
    int n_planted;
    bool bound; /* one of those */
} vulkan_faults;

static bool vulkan_fails(const char *name) {
    if (vulkan_faults.only && strcmp(vulkan_faults.only, name) != 0) return false;
    return vulkan_faults.left-- == 0;
}

static fg__vk_api vulkan_real;

static int32_t FG__VK_CALL vulkan_allocate(void *device, const fg__vk_allocate_info *info, const void *allocator, uint64_t *memory) {
    return vulkan_fails("vkAllocateMemory") ? vulkan_faults.result : vulkan_real.AllocateMemory(device, info, allocator, memory);
}
static int32_t FG__VK_CALL vulkan_buffer(void *device, const fg__vk_buffer_info *info, const void *allocator, uint64_t *buffer) {
    return vulkan_fails("vkCreateBuffer") ? vulkan_faults.result : vulkan_real.CreateBuffer(device, info, allocator, buffer);
}
/* Sums become differences, products sums, quotients products, what cuts are folded with something else, dot products differences, of
   products of matrices nothing; PLANT_NEAR: results stay near (64.0 is 60.0). */
static void vulkan_plant_in(int what, uint32_t *code, size_t n) {
    uint32_t pairs[8] = {0}; /* types of two numbers */
    size_t i, j, n_pairs = 0;
    for (i = 5; i < n && code[i] >> 16; i += code[i] >> 16) {
        uint32_t op = code[i] & 0xFFFF;
        if (op == 23 && code[i + 3] == 2 && n_pairs < 8) pairs[n_pairs++] = code[i + 1]; /* OpTypeVector */
        if (what == PLANT_ADD && op == 129) code[i] += 131 - 129;                     /* OpFAdd, OpFSub */
        if (what == PLANT_MULTIPLY && op == 133) code[i] -= 133 - 129;                /* OpFMul */
        if (what == PLANT_DIVIDE && op == 136) code[i] -= 136 - 133;                  /* OpFDiv */
        if (what == PLANT_NEAR && op == 43 && code[i + 3] == 0x42800000) code[i + 3] = 0x42700000;
        for (j = 0; what == PLANT_FOLD && op == 12 && code[i + 4] == 27 && j < n_pairs; j++) /* OpExtInst Exp, FAbs */
            if (code[i + 1] == pairs[j]) code[i + 4] = 4;
        if (what == PLANT_DOT && op == 4450) { /* OpSDotKHR: OpISub */
            code[i] = 5 << 16 | 130;
            code[i + 5] = 1 << 16;
        }
        if (what == PLANT_MATRIX && op == 4459) { /* OpCooperativeMatrixMulAddKHR: OpCopyObject of what is added to */
            size_t words = code[i] >> 16;
            code[i] = 4 << 16 | 83;
            code[i + 3] = code[i + 5];
            for (j = 4; j < words; j++) code[i + j] = 1 << 16; /* OpNop */
        }
    }
}

/* A pipeline whose shader has the plant. */
static int32_t vulkan_planted_pipeline(void *device, uint64_t cache, const fg__vk_pipeline_info *info, uint64_t *pipeline) {
    const vulkan_plant *plant = vulkan_faults.plant;
    void(FG__VK_CALL * destroy)(void *, uint64_t, const void *);
    fg_vulkan_fn found = vulkan_real.GetDeviceProcAddr(device, "vkDestroyShaderModule");
    fg__vk_pipeline_info other = *info;
    fg__vk_shader_info shader;
    uint32_t *code = (uint32_t *)malloc(fg__vk_spirv[plant->shader].bytes);
    int32_t result;
    memcpy(&destroy, &found, sizeof(found));
    memcpy(code, fg__vk_spirv[plant->shader].code, fg__vk_spirv[plant->shader].bytes);
    vulkan_plant_in(plant->what, code, fg__vk_spirv[plant->shader].bytes / 4);
    memset(&shader, 0, sizeof(shader));
    shader.type = FG__VK_SHADER_INFO;
    shader.bytes = fg__vk_spirv[plant->shader].bytes;
    shader.code = code;
    result = vulkan_real.CreateShaderModule(device, &shader, NULL, &other.stage.module);
    if (result >= 0) {
        result = vulkan_real.CreateComputePipelines(device, cache, 1, &other, NULL, pipeline);
        destroy(device, other.stage.module, NULL);
    }
    if (result >= 0) vulkan_faults.planted[fg__atomic_add(&vulkan_faults.n_planted, 1) % 64] = *pipeline;
    free(code);
    return result;
}

static int32_t FG__VK_CALL vulkan_pipelines(void *device, uint64_t cache, uint32_t n, const fg__vk_pipeline_info *info, const void *allocator,
                                            uint64_t *pipelines) {
    const vulkan_plant *plant = vulkan_faults.plant;
    int32_t spec[5], result, i;
    if (vulkan_fails("vkCreateComputePipelines")) return vulkan_faults.result;
    memcpy(spec, info->stage.spec->data, sizeof(spec));
    if (plant && info->stage.module == vulkan_faults.modules[plant->shader] && (plant->spec_at < 0 || spec[plant->spec_at] == plant->spec)) {
        if (plant->what == PLANT_REFUSE) return fg__atomic_add(&vulkan_faults.n_planted, 1), -13; /* VK_ERROR_UNKNOWN */
        return vulkan_planted_pipeline(device, cache, info, pipelines);
    }
    result = vulkan_real.CreateComputePipelines(device, cache, n, info, allocator, pipelines);
    for (i = 0; i < 64 && result >= 0; i++) /* one that is gone had the same handle */
        if (vulkan_faults.planted[i] == *pipelines) vulkan_faults.planted[i] = 0;
    return result;
}

static void FG__VK_CALL vulkan_bind(void *commands, int32_t point, uint64_t pipeline) {
    int i;
    vulkan_faults.bound = false;
    for (i = 0; i < vulkan_faults.n_planted && i < 64; i++) vulkan_faults.bound = vulkan_faults.bound || vulkan_faults.planted[i] == pipeline;
    vulkan_real.CmdBindPipeline(commands, point, pipeline);
}

/* With PLANT_PIECES what came of pieces before is forgotten, with PLANT_WINDOW and PLANT_CAP the window and the soft cap. */
static void FG__VK_CALL vulkan_constants(void *commands, uint64_t layout, uint32_t stages, uint32_t offset, uint32_t bytes, const void *data) {
    fg__vk_push push = *(const fg__vk_push *)data;
    int what = vulkan_faults.bound && vulkan_faults.plant ? vulkan_faults.plant->what : -1;
    if (what == PLANT_PIECES) push.has &= ~FG__VK_HAS_EARLIER;
    if (what == PLANT_WINDOW) push.window = 0;
    if (what == PLANT_CAP) push.softcap = 0.0f;
    vulkan_real.CmdPushConstants(commands, layout, stages, offset, bytes, &push);
}

static int32_t FG__VK_CALL vulkan_sets(void *device, const fg__vk_set_info *info, uint64_t *sets) {
    return vulkan_fails("vkAllocateDescriptorSets") ? vulkan_faults.result : vulkan_real.AllocateDescriptorSets(device, info, sets);
}
static int32_t FG__VK_CALL vulkan_pool(void *device, const fg__vk_pool_info *info, const void *allocator, uint64_t *pool) {
    return vulkan_fails("vkCreateDescriptorPool") ? vulkan_faults.result : vulkan_real.CreateDescriptorPool(device, info, allocator, pool);
}
static int32_t FG__VK_CALL vulkan_submit(void *queue, uint32_t n, const fg__vk_submit_info *info, uint64_t fence) {
    return vulkan_fails("vkQueueSubmit") ? vulkan_faults.result : vulkan_real.QueueSubmit(queue, n, info, fence);
}
static int32_t FG__VK_CALL vulkan_wait(void *device, uint32_t n, const uint64_t *fences, uint32_t all, uint64_t time) {
    int32_t result = vulkan_real.WaitForFences(device, n, fences, all, time);
    return vulkan_fails("vkWaitForFences") ? vulkan_faults.result : result;
}
/* Makes dot products differences, where there are half floats and no matrices, additions subtractions, of products of matrices nothing. */
static void vulkan_spoil(uint32_t *code, size_t n) {
    bool halves = false, matrices = false;
    size_t i;
    for (i = 5; i < n && code[i] == (2 << 16 | 17); i += 2) { /* OpCapability Float16, CooperativeMatrixKHR */
        halves = halves || code[i + 1] == 9;
        matrices = matrices || code[i + 1] == 6022;
    }
    if (vulkan_faults.wrong & FG_VULKAN_DOT) vulkan_plant_in(PLANT_DOT, code, n);
    if (vulkan_faults.wrong & FG_VULKAN_MATRIX) vulkan_plant_in(PLANT_MATRIX, code, n);
    if ((vulkan_faults.wrong & FG_VULKAN_HALF) && halves && !matrices) vulkan_plant_in(PLANT_ADD, code, n);
}

static int32_t FG__VK_CALL vulkan_shader(void *device, const fg__vk_shader_info *info, const void *allocator, uint64_t *shader) {
    fg__vk_shader_info other = *info;
    uint32_t *code = (uint32_t *)malloc(info->bytes);
    int32_t result;
    int i;
    memcpy(code, info->code, info->bytes);
    if (!vulkan_faults.attention || info->code == fg__vk_spirv[FG__VK_SHADER_ATTENTION_HALF].code ||
        info->code == fg__vk_spirv[FG__VK_SHADER_ATTENTION_MATRIX].code)
        vulkan_spoil(code, info->bytes / 4);
    other.code = code;
    result = vulkan_fails("vkCreateShaderModule") ? vulkan_faults.result : vulkan_real.CreateShaderModule(device, &other, allocator, shader);
    for (i = 0; i < FG__VK_SHADERS && result >= 0; i++) /* one that is gone had the same handle */
        if (info->code == fg__vk_spirv[i].code) vulkan_faults.modules[i] = *shader;
        else if (vulkan_faults.modules[i] == *shader) vulkan_faults.modules[i] = 0;
    free(code);
    return result;
}

/* What products read becomes what they write. */
static void FG__VK_CALL vulkan_push(void *commands, int32_t point, uint64_t layout, uint32_t set, uint32_t n, const fg__vk_write_info *writes) {
    fg__vk_write_info other[FG__VK_BINDINGS];
    memcpy(other, writes, n * sizeof(*writes));
    if (vulkan_faults.wrong & FG_VULKAN_PUSH) other[2].buffers = writes[3].buffers;
    vulkan_real.CmdPushDescriptorSetKHR(commands, point, layout, set, n, other);
}

/* Keeps the real function in vulkan_real and hands out ours. */
#define VULKAN_WRAP(member, ours)                                             \
    if (strcmp(name, "vk" #member) == 0) {                                    \
        memcpy(&vulkan_real.member, &real, sizeof(real));                     \
        wrapped = ours;                                                       \
        memcpy(&real, &wrapped, sizeof(real));                                \
    }

static fg_vulkan_fn FG__VK_CALL vulkan_device_function(void *device, const char *name) {
    fg_vulkan_fn real = vulkan_real.GetDeviceProcAddr(device, name);
    {
        int32_t(FG__VK_CALL * wrapped)(void *, const fg__vk_allocate_info *, const void *, uint64_t *);
        VULKAN_WRAP(AllocateMemory, vulkan_allocate)
    }
    {
        int32_t(FG__VK_CALL * wrapped)(void *, const fg__vk_buffer_info *, const void *, uint64_t *);
        VULKAN_WRAP(CreateBuffer, vulkan_buffer)
    }
    {
        int32_t(FG__VK_CALL * wrapped)(void *, uint64_t, uint32_t, const fg__vk_pipeline_info *, const void *, uint64_t *);
        VULKAN_WRAP(CreateComputePipelines, vulkan_pipelines)
    }
    {
        int32_t(FG__VK_CALL * wrapped)(void *, const fg__vk_set_info *, uint64_t *);
        VULKAN_WRAP(AllocateDescriptorSets, vulkan_sets)
    }
    {
        int32_t(FG__VK_CALL * wrapped)(void *, const fg__vk_pool_info *, const void *, uint64_t *);
        VULKAN_WRAP(CreateDescriptorPool, vulkan_pool)
    }
    {
        int32_t(FG__VK_CALL * wrapped)(void *, uint32_t, const fg__vk_submit_info *, uint64_t);
        VULKAN_WRAP(QueueSubmit, vulkan_submit)
    }
    {
        int32_t(FG__VK_CALL * wrapped)(void *, uint32_t, const uint64_t *, uint32_t, uint64_t);
        VULKAN_WRAP(WaitForFences, vulkan_wait)
    }
    {
        int32_t(FG__VK_CALL * wrapped)(void *, const fg__vk_shader_info *, const void *, uint64_t *);
        VULKAN_WRAP(CreateShaderModule, vulkan_shader)
    }
    {
        void(FG__VK_CALL * wrapped)(void *, int32_t, uint64_t);
        VULKAN_WRAP(CmdBindPipeline, vulkan_bind)
    }
    {
        void(FG__VK_CALL * wrapped)(void *, uint64_t, uint32_t, uint32_t, uint32_t, const void *);
        VULKAN_WRAP(CmdPushConstants, vulkan_constants)
    }
    if (real) {
        void(FG__VK_CALL * wrapped)(void *, int32_t, uint64_t, uint32_t, uint32_t, const fg__vk_write_info *);
        VULKAN_WRAP(CmdPushDescriptorSetKHR, vulkan_push)
    }
    return real;
}

static fg_vulkan_fn vulkan_faulty_get(void *instance, const char *name) {
    fg_vulkan_fn real = vulkan_faults.own ? svk_get(instance, name) : vulkan_faults.loader.get(instance, name);
    if (strcmp(name, "vkGetDeviceProcAddr") == 0) {
        fg_vulkan_fn(FG__VK_CALL * ours)(void *, const char *) = vulkan_device_function;
        memcpy(&vulkan_real.GetDeviceProcAddr, &real, sizeof(real));
        memcpy(&real, &ours, sizeof(real));
    }
    return real;
}

static fg_vulkan_fn vulkan_no_get(void *instance, const char *name) {
    (void)instance;
    (void)name;
    return NULL;
}

/* A small engine on a faulty driver that answers one request; the first result that is not FG_OK. */
static fg_result gpu_try(fg_model *model, const fg_backend *backend, const void *options, bool *created, fg_finish *finish) {
    fg_engine_desc d = engine_desc(model, backend);
    fg_request_desc request;
    fg_request handle;
    fg_engine *e = NULL;
    fg_event event;
    fg_result r, end = FG_OK;
    int32_t prompt[] = {1, 2, 3, 4, 5};
    bool busy = true;
    d.backend_options = options;
    d.max_context = 64;
    d.kv_tokens = 64;
    d.block_tokens = 16;
    *created = false;
    *finish = FG_FINISH_NONE;
    r = fg_engine_create(&d, &e);
    if (r != FG_OK) return r;
    *created = strcmp(fg_engine_get_backend(e), backend->name) == 0;
    memset(&request, 0, sizeof(request));
    request.tokens = prompt;
    request.n_tokens = 5;
    request.max_tokens = 4;
    request.ignore_eos = true;
    CHECK(fg_submit(e, &request, &handle) == FG_OK);
    while (busy && r == FG_OK) r = fg_step(e, 0, &busy);
    while (fg_next_event(e, &event))
        if (event.type == FG_EVENT_END) {
            *finish = event.finish;
            end = event.result;
        }
    fg_engine_free(e);
    return r != FG_OK ? r : end;
}

/* Puts vulkan_faults around the machine's driver, or the one of standin_vulkan.h. */
static void vulkan_faults_open(bool standin) {
    fg_vulkan_options options;
    memset(&options, 0, sizeof(options));
    options.get_instance_proc_addr = svk_get;
    CHECK(fg__vk_loader_open(&vulkan_faults.loader, standin ? &options : NULL) == FG_OK);
    vulkan_faults.own = standin;
}

/* Every call of a kind fails in turn: a result each time, or the CPU instead, never a crash or a hang. */
static void vulkan_check_faults(bool standin) {
    static const char *const calls[] = {"vkAllocateMemory", "vkCreateBuffer", "vkCreateShaderModule", "vkCreateComputePipelines",
                                        "vkAllocateDescriptorSets", "vkQueueSubmit", "vkWaitForFences"};
    model_spec spec = model_spec_tiny();
    model_sample m;
    fg_vulkan_options options;
    size_t c;
    int i;
    vulkan_faults_open(standin);
    memset(&options, 0, sizeof(options));
    model_sample_open(&m, &spec);
    for (c = 0; m.model && c < sizeof(calls) / sizeof(calls[0]); c++)
        for (i = 0; i < 200; i += standin ? 1 + 4 * i : i < 2 ? 1 : 1 + i) {
            bool lost = c >= 5, created;
            fg_finish finish;
            fg_result r;
            options.get_instance_proc_addr = vulkan_faulty_get;
            if (!standin || c + (size_t)i == 0) memset(fg__vk_proved, 0, sizeof(fg__vk_proved)); /* what proved good does so anew */
            vulkan_faults.only = calls[c];
            vulkan_faults.left = i;
            vulkan_faults.result = lost ? FG__VK_DEVICE_LOST : FG__VK_OUT_OF_DEVICE_MEMORY;
            r = gpu_try(m.model, fg_backend_vulkan(), &options, &created, &finish);
            if (vulkan_faults.left >= 0) { /* so many calls do not come */
                CHECKF(r == FG_OK && created && finish == FG_FINISH_LENGTH, "%s: %s", calls[c], fg_last_error());
                break;
            }
            if (!created && r == FG_OK) continue; /* it did not open, and the CPU did the work */
            CHECKF(r == (lost ? FG_ERROR_DEVICE : FG_ERROR_OUT_OF_MEMORY), "%s number %d: %s", calls[c], i, fg_result_name(r));
            CHECKF(!created || finish == FG_FINISH_ERROR, "%s number %d: finish %d", calls[c], i, (int)finish);
        }
    options.get_instance_proc_addr = vulkan_no_get; /* a loader that is none: the CPU */
    if (m.model) {
        bool created;
        fg_finish finish;
        CHECK(gpu_try(m.model, fg_backend_vulkan(), &options, &created, &finish) == FG_OK && !created && finish == FG_FINISH_LENGTH);
    }
    model_sample_close(&m);
    fg__vk_loader_close(&vulkan_faults.loader);
}

static void test_vulkan_faults(void) {
    if (!cpu_vulkan_device(0)) SKIP("there is no Vulkan device");
    vulkan_check_faults(false);
}

static bool vulkan_no_progress(float done, const char *what, void *user) {
    CHECKF(user, "%g: %s", done, what); /* once it is open there is nobody to tell */
    return true;
}

/* Measuring the memory, with descriptors of either kind: a call that fails is a result, after which it can be measured, unless the device is lost. */
static void test_vulkan_roofs(void) {
    static const char *const calls[] = {"vkCreateBuffer",           "vkAllocateMemory",       "vkCreateShaderModule",
                                        "vkCreateComputePipelines", "vkCreateDescriptorPool", "vkAllocateDescriptorSets"};
    static const char *const losing[] = {"vkQueueSubmit", "vkWaitForFences"};
    const fg_backend *b = fg_backend_vulkan();
    int pushes, c;
    if (!cpu_vulkan_device(0)) SKIP("there is no Vulkan device");
    vulkan_faults_open(false);
    vulkan_faults.only = "none";
    vulkan_faults.wrong = 0;
    for (pushes = 0; pushes < 2; pushes++) {
        fg_vulkan_options options;
        fg_device_desc desc;
        fg_device *device = NULL;
        fg_roofs roofs;
        double most; /* no such device reads more */
        memset(&options, 0, sizeof(options));
        options.get_instance_proc_addr = vulkan_faulty_get;
        options.force = pushes ? FG_VULKAN_PUSH : 0;
        options.off = ~options.force;
        memset(&desc, 0, sizeof(desc));
        desc.options = &options;
        desc.progress = vulkan_no_progress;
        desc.progress_user = &options;
        CHECK(b->open(&desc, &device) == FG_OK && device);
        if (!device) break;
        ((fg__vk_device *)device)->progress_user = NULL;
        most = ((fg__vk_device *)device)->properties.device_type == FG__VK_CPU ? 2e11 : 1e14;
        for (c = 0; c < (((fg__vk_device *)device)->rungs & FG_VULKAN_PUSH ? 4 : 6); c++) {
            vulkan_faults.only = calls[c];
            vulkan_faults.left = 0;
            vulkan_faults.result = FG__VK_OUT_OF_DEVICE_MEMORY;
            CHECKF(b->profile(device, &roofs) == FG_ERROR_OUT_OF_MEMORY, "%s: %s", calls[c], fg_last_error());
        }
        vulkan_faults.only = "none";
        CHECK(b->profile(device, &roofs) == FG_OK);
        CHECKF(roofs.read_bytes_per_s > 1e6 && roofs.read_bytes_per_s < most, "%g bytes/s: was it read?", roofs.read_bytes_per_s);
        CHECKF(roofs.float_ops_per_s > 1e6 && roofs.int8_ops_per_s == 0.0, "%g, %g products/s", roofs.float_ops_per_s, roofs.int8_ops_per_s);
        vulkan_faults.only = losing[pushes];
        vulkan_faults.left = 0;
        vulkan_faults.result = FG__VK_DEVICE_LOST;
        CHECK(b->profile(device, &roofs) == FG_ERROR_DEVICE && roofs.read_bytes_per_s == 0.0);
        vulkan_faults.only = "none";
        b->close(device);
    }
    fg__vk_loader_close(&vulkan_faults.loader);
}

/* Products by the rung that there is are measured, and those of a driver that does them wrong are not. */
static void vulkan_check_roof_rung(uint32_t rung, bool wrong) {
    fg_vulkan_options options;
    fg_device_desc desc;
    fg_device *device = NULL;
    fg_roofs roofs;
    uint32_t rungs;
    memset(&options, 0, sizeof(options));
    options.get_instance_proc_addr = vulkan_faulty_get;
    options.force = rung;
    options.off = ~rung;
    memset(&desc, 0, sizeof(desc));
    desc.options = &options;
    vulkan_faults.wrong = 0;
    CHECK(fg_backend_vulkan()->open(&desc, &device) == FG_OK && device);
    if (!device) return;
    rungs = ((fg__vk_device *)device)->rungs;
    vulkan_faults.wrong = wrong ? rung : 0;
    CHECK(fg_backend_vulkan()->profile(device, &roofs) == FG_OK);
    CHECKF((roofs.float_ops_per_s > 1e6) == !(wrong && (rungs & FG_VULKAN_MATRIX)), "rung %u, wrong %d: %g float products/s", (unsigned)rung, wrong,
           roofs.float_ops_per_s);
    CHECKF((roofs.int8_ops_per_s > 1e6) == (!wrong && (rungs & FG_VULKAN_DOT)), "rung %u, wrong %d: %g products of bytes/s", (unsigned)rung, wrong,
           roofs.int8_ops_per_s);
    fg_backend_vulkan()->close(device);
    vulkan_faults.wrong = 0;
}

static void test_vulkan_roof_rungs(void) {
    int wrong;
    if (!cpu_vulkan_device(0)) SKIP("there is no Vulkan device");
    vulkan_faults_open(false);
    vulkan_faults.only = "none";
    vulkan_check_roof_rung(0, false);
    for (wrong = 0; wrong < 2; wrong++) {
        vulkan_check_roof_rung(FG_VULKAN_DOT, wrong);
        vulkan_check_roof_rung(FG_VULKAN_MATRIX, wrong);
    }
    fg__vk_loader_close(&vulkan_faults.loader);
}

typedef struct vulkan_said {
    char text[1000];
} vulkan_said;

static void vulkan_listen(fg_log_level level, const char *message, void *user) {
    vulkan_said *said = (vulkan_said *)user;
    size_t n = strlen(said->text);
    (void)level;
    snprintf(said->text + n, sizeof(said->text) - n, "%s\n", message);
}

/* A driver that does wrong what a rung needs: the rung is not used, the log says so, and the others are; of the machine's driver, which compiles
   for long, one rung at a time. */
static void vulkan_check_wrong_rungs(bool standin) {
    static const uint32_t bits[] = {0, FG_VULKAN_DOT, FG_VULKAN_HALF, FG_VULKAN_MATRIX, FG_VULKAN_PUSH, FG_VULKAN_HALF, FG_VULKAN_MATRIX};
    static const char *const names[] = {"", "integer dot products are not used: a product", "half floats are not used: a product",
                                        "cooperative matrices are not used: a product", "push descriptors are not used: a product",
                                        "half floats are not used: attention", "cooperative matrices are not used: attention"};
    uint32_t all = FG_VULKAN_DOT | FG_VULKAN_HALF | FG_VULKAN_MATRIX | FG_VULKAN_PUSH, usual = 0;
    fg_vulkan_options options;
    fg_device_desc desc;
    int i;
    vulkan_faults_open(standin);
    vulkan_faults.only = "none";
    memset(&options, 0, sizeof(options));
    options.get_instance_proc_addr = vulkan_faulty_get;
    memset(&desc, 0, sizeof(desc));
    desc.options = &options;
    desc.log = vulkan_listen;
    for (i = 0; i < 7; i++) {
        vulkan_said said;
        fg_device *device = NULL;
        uint32_t rungs;
        memset(&said, 0, sizeof(said));
        desc.log_user = &said;
        options.force = standin || i == 0 ? all : bits[i];
        options.off = ~options.force;
        vulkan_faults.wrong = bits[i];
        vulkan_faults.attention = i > 4;
        memset(fg__vk_proved, 0, sizeof(fg__vk_proved));
        CHECK(fg_backend_vulkan()->open(&desc, &device) == FG_OK && device);
        if (!device) break;
        rungs = ((fg__vk_device *)(void *)device)->rungs;
        if (i == 0) usual = rungs;
        CHECKF(rungs == (usual & options.force & ~bits[i]), "with %u wrong the rungs are %u, not of %u", (unsigned)bits[i], (unsigned)rungs, (unsigned)usual);
        if (usual & bits[i]) CHECKF(strstr(said.text, names[i]) != NULL, "the log says: %s", said.text);
        if (i == 0 && usual) CHECK(strstr(said.text, "uses ") && !strstr(said.text, "not used"));
        fg_backend_vulkan()->close(device);
    }
    CHECK(!standin || usual == all);
    vulkan_faults.wrong = 0;
    vulkan_faults.attention = false;
    fg__vk_loader_close(&vulkan_faults.loader);
}

/* Faults that only some kernels have, each alone: the rung that needs them is lost, or the device does not open and says why. */
static const vulkan_plant vulkan_plants[] = {
    {FG__VK_SHADER_GEMV_DOT, 0, FG_TYPE_Q2_K, PLANT_DOT, FG_VULKAN_DOT, false, true, "a product"},
    {FG__VK_SHADER_GEMM_DOT, 0, FG_TYPE_Q8_0, PLANT_DOT, FG_VULKAN_DOT, false, true, "a product"},
    {FG__VK_SHADER_PREPARE, 0, FG__VK_BYTES, PLANT_MULTIPLY, FG_VULKAN_DOT, false, true, "a product"},
    {FG__VK_SHADER_GEMM_HALF, 0, FG_TYPE_Q8_0, PLANT_ADD, FG_VULKAN_HALF, false, true, "a product"},
    {FG__VK_SHADER_ATTENTION_HALF, 3, 1, PLANT_ADD, FG_VULKAN_HALF, false, true, "attention"},
    {FG__VK_SHADER_ATTENTION_HALF, 0, FG_TYPE_Q8_0, PLANT_ADD, FG_VULKAN_HALF, false, true, "attention"},
    {FG__VK_SHADER_ATTENTION_HALF, -1, 0, PLANT_FOLD, FG_VULKAN_HALF, false, true, "attention"},
    {FG__VK_SHADER_ATTENTION_HALF, 3, 1, PLANT_PIECES, FG_VULKAN_HALF, false, true, "attention"},
    {FG__VK_SHADER_GEMM_MATRIX, 0, FG_TYPE_Q8_0, PLANT_MATRIX, FG_VULKAN_MATRIX, false, true, "a product"},
    {FG__VK_SHADER_GEMM_FEW_MATRIX, 0, FG_TYPE_Q8_0, PLANT_MATRIX, FG_VULKAN_MATRIX, false, true, "a product"},
    {FG__VK_SHADER_GEMM_FEW_MATRIX, 0, FG_TYPE_F16, PLANT_MATRIX, FG_VULKAN_MATRIX, false, true, "a product"},
    {FG__VK_SHADER_ATTENTION_MATRIX, 0, FG_TYPE_Q8_0, PLANT_MATRIX, FG_VULKAN_MATRIX, false, true, "attention"},
    {FG__VK_SHADER_ATTENTION_MATRIX, -1, 0, PLANT_FOLD, FG_VULKAN_MATRIX, false, true, "attention"},
    {FG__VK_SHADER_ATTENTION_MATRIX, -1, 0, PLANT_PIECES, FG_VULKAN_MATRIX, false, true, "attention"},
    {FG__VK_SHADER_GEMV, 0, FG_TYPE_F16, PLANT_MULTIPLY, 0, false, false, "a product"},
    {FG__VK_SHADER_GEMM, 0, FG_TYPE_F16, PLANT_ADD, 0, false, false, "a product"},
    {FG__VK_SHADER_ATTENTION, 3, 1, PLANT_ADD, 0, false, false, "attention"},
    {FG__VK_SHADER_ATTENTION, -1, 0, PLANT_FOLD, 0, false, false, "attention"},
    {FG__VK_SHADER_ATTENTION, -1, 0, PLANT_PIECES, 0, false, false, "attention"},
    {FG__VK_SHADER_ATTENTION_MERGE, -1, 0, PLANT_FOLD, 0, false, false, "attention"},
    {FG__VK_SHADER_ROPE_KV, 0, FG_TYPE_Q8_0, PLANT_DIVIDE, FG_VULKAN_HALF, false, true, "attention"},
    {FG__VK_SHADER_GEMV, 3, 6, PLANT_MULTIPLY, 0, true, true, ""}, /* products of few rows are then those of many */
    {FG__VK_SHADER_GEMV_HALF, 3, 2, PLANT_MULTIPLY, FG_VULKAN_HALF, true, true, "a product"},
    {FG__VK_SHADER_ATTENTION_HALF, 3, 1, PLANT_NEAR, FG_VULKAN_HALF, true, true, "bits depend"},
    {FG__VK_SHADER_GEMM_MATRIX, -1, 0, PLANT_REFUSE, FG_VULKAN_MATRIX, false, true, "Vulkan error -13"},
    {FG__VK_SHADER_GEMV_DOT, -1, 0, PLANT_REFUSE, FG_VULKAN_DOT, false, true, "Vulkan error -13"},
    {FG__VK_SHADER_GEMV, 3, 6, PLANT_REFUSE, 0, true, true, ""},
    {FG__VK_SHADER_GEMM, -1, 0, PLANT_REFUSE, 0, false, false, "Vulkan error -13"},
};

/* Whether the device still does a product; nothing that it refused is in the way. */
static bool vulkan_still_works(fg_device *device) {
    bool differs = false;
    double error = 0;
    return fg__vk_try((fg__vk_device *)(void *)device, FG_TYPE_F16, FG__VK_TRIAL_K, false, &error, &differs) == FG_OK && error < 1e-5;
}

static void vulkan_check_plants(bool standin, size_t first, size_t step) {
    fg_vulkan_options options;
    fg_device_desc desc;
    size_t i;
    vulkan_faults_open(standin);
    vulkan_faults.only = "none";
    memset(&options, 0, sizeof(options));
    options.get_instance_proc_addr = vulkan_faulty_get;
    memset(&desc, 0, sizeof(desc));
    desc.options = &options;
    desc.log = vulkan_listen;
    for (i = first; i < sizeof(vulkan_plants) / sizeof(vulkan_plants[0]); i += step) {
        const vulkan_plant *plant = &vulkan_plants[i];
        vulkan_said said;
        fg_device *device = NULL;
        fg_result r;
        memset(&said, 0, sizeof(said));
        desc.log_user = &said;
        options.force = plant->rung;
        options.off = ~plant->rung;
        options.invariant = plant->invariant;
        vulkan_faults.plant = plant;
        vulkan_faults.n_planted = 0;
        memset(fg__vk_proved, 0, sizeof(fg__vk_proved));
        desc.device = standin && plant->shader == FG__VK_SHADER_GEMM_FEW_MATRIX ? "of 64" : NULL; /* with eight lanes it needs too much memory */
        r = fg_backend_vulkan()->open(&desc, &device);
        if (vulkan_faults.n_planted == 0 && plant->rung && !standin) { /* it has no such rung */
            if (device) fg_backend_vulkan()->close(device);
            continue;
        }
        CHECKF(vulkan_faults.n_planted > 0 && (r == FG_OK) == plant->opens, "plant %d in %d kernels: %s", (int)i, vulkan_faults.n_planted, fg_result_name(r));
        if (!plant->opens) CHECKF(r == FG_ERROR_UNSUPPORTED && strstr(fg_last_error(), "computes wrong") && strstr(fg_last_error(), plant->says), "%s", fg_last_error());
        else CHECKF(strstr(said.text, plant->says) && (!plant->rung || strstr(said.text, "not used")), "plant %d: the log says: %s", (int)i, said.text);
        if (!device) continue;
        CHECKF(((fg__vk_device *)(void *)device)->rungs == 0, "plant %d: the rung is used", (int)i);
        if (plant->invariant && !plant->rung) CHECK(!((fg__vk_device *)(void *)device)->narrow);
        if (plant->what == PLANT_REFUSE) CHECKF(vulkan_still_works(device), "plant %d: %s", (int)i, fg_last_error());
        fg_backend_vulkan()->close(device);
    }
    vulkan_faults.plant = NULL;
    fg__vk_loader_close(&vulkan_faults.loader);
}

/* Faults that only a graph's own attention shows, of heads of 128, maybe with a window or a soft cap: it falls to the floor, or
   the graph is refused. */
static void test_vulkan_shapes(void) {
    static const struct {
        vulkan_plant plant;
        int window;
        float softcap;
    } cases[] = {
        {{FG__VK_SHADER_ATTENTION_HALF, 1, 128, PLANT_ADD, FG_VULKAN_HALF, false, true, "is done in floats"}, 0, 0.0f},
        {{FG__VK_SHADER_ATTENTION_HALF, 1, 128, PLANT_WINDOW, FG_VULKAN_HALF, false, true, "a window of 24"}, 24, 0.0f},
        {{FG__VK_SHADER_ATTENTION_HALF, 1, 128, PLANT_CAP, FG_VULKAN_HALF, false, true, "a soft cap of 0.5"}, 0, 0.5f},
        {{FG__VK_SHADER_ATTENTION_MATRIX, 1, 128, PLANT_MATRIX, FG_VULKAN_MATRIX, false, true, "is done in floats"}, 0, 0.0f},
        {{FG__VK_SHADER_ATTENTION_MATRIX, 1, 128, PLANT_WINDOW, FG_VULKAN_MATRIX, false, true, "a window of 24"}, 24, 0.0f},
        {{FG__VK_SHADER_ATTENTION_MATRIX, 1, 128, PLANT_CAP, FG_VULKAN_MATRIX, false, true, "a soft cap of 0.5"}, 0, 0.5f},
        {{FG__VK_SHADER_ATTENTION, 1, 128, PLANT_ADD, 0, false, false, "heads of 128"}, 0, 0.0f},
        {{FG__VK_SHADER_ATTENTION, 1, 128, PLANT_WINDOW, 0, false, false, "a window of 24"}, 24, 0.0f},
        {{FG__VK_SHADER_ATTENTION, 1, 128, PLANT_CAP, 0, false, false, "a soft cap of 0.5"}, 0, 0.5f},
    };
    cpu_attn c = {FG_TYPE_F16, 2, 1, 128, 64, 1, 0, 32, false, 0.0f, 1.0f, {40, 9, 0, 0, 0, 0}};
    float *all = (float *)calloc((size_t)(cpu_attn_total(&c) * c.n_head * c.head_dim), sizeof(float));
    fg_vulkan_options options;
    fg_device_desc desc;
    int i, w;
    vulkan_faults_open(true);
    vulkan_faults.only = "none";
    memset(&options, 0, sizeof(options));
    options.get_instance_proc_addr = vulkan_faulty_get;
    memset(&desc, 0, sizeof(desc));
    desc.options = &options;
    desc.log = vulkan_listen;
    for (i = 0; i < (int)(sizeof(cases) / sizeof(cases[0])); i++) {
        const vulkan_plant *plant = &cases[i].plant;
        cpu_rig *rig;
        vulkan_said said;
        double rms;
        fg_result r;
        c.window = cases[i].window;
        c.softcap = cases[i].softcap;
        rig = cpu_attn_rig(&c, 64);
        memset(&said, 0, sizeof(said));
        desc.log_user = &said;
        options.force = plant->rung;
        options.off = ~plant->rung;
        vulkan_faults.plant = plant;
        vulkan_faults.n_planted = 0;
        memset(fg__vk_proved, 0, sizeof(fg__vk_proved));
        rig->backend = fg_backend_vulkan();
        CHECK(rig->backend->open(&desc, &rig->device) == FG_OK);
        if (rig->device) {
            CHECK(((fg__vk_device *)(void *)rig->device)->rungs == plant->rung); /* with heads of 80 all is well */
            for (w = 0; w < rig->graph.n_weights; w++)
                CHECK(rig->backend->pack(rig->device, &rig->tensors[w], rig->uses[w], &rig->weights[w], NULL) == FG_OK);
            r = rig->backend->prepare(rig->device, &rig->graph, &rig->plan, NULL);
            CHECKF(r == (plant->opens ? FG_OK : FG_ERROR_UNSUPPORTED), "plant %d: %s", i, fg_last_error());
            if (r != FG_OK) CHECKF(strstr(fg_last_error(), plant->says) != NULL, "%s", fg_last_error());
            else {
                CHECKF(strstr(said.text, plant->says) != NULL, "the log says: %s", said.text);
                cpu_attn_all(&c, rig, 1, 50, all);
                CHECK(cpu_attn_error(&c, rig, 0, all, &rms) < 1e-3);
            }
        }
        cpu_rig_end_device(rig);
        cpu_rig_free(rig);
    }
    free(all);
    vulkan_faults.plant = NULL;
    fg__vk_loader_close(&vulkan_faults.loader);
}

/* A graph of products with experts on a device with a plant: the largest error, relative to the norms of what is multiplied; what the log says, or
   why the graph is refused. */
static double vulkan_faulty_experts(fg_vulkan_options *options, fg_type type, const cpu_experts *c, const vulkan_plant *plant, vulkan_said *said) {
    uint64_t state = 43;
    cpu_rig *rig = cpu_rig_new(c->m);
    int routes = cpu_expert_routes(rig, c, &state), in = cpu_slot(rig, c->k, false), out_slot = cpu_slot(rig, c->n_used * c->n, false), w, row, j, i, l;
    fg_op *embed = cpu_op(rig, FG_OP_EMBED, -1, in, c->k), *op;
    float *weight = (float *)malloc(sizeof(float) * (size_t)c->k);
    double worst = 0, weights[16];
    fg_device_desc desc;
    int experts[16];
    fg_result r;
    memset(said, 0, sizeof(*said));
    memset(&desc, 0, sizeof(desc));
    desc.options = options, desc.log = vulkan_listen, desc.log_user = said;
    embed->weight = cpu_weight(rig, FG_TYPE_F32, c->k, c->m, FG_OP_EMBED, &state);
    op = cpu_expert_op(rig, c, type, in, routes, out_slot, false, &state);
    cpu_rig_end(rig, out_slot);
    rig->backend = fg_backend_vulkan();
    CHECK(rig->backend->open(&desc, &rig->device) == FG_OK && ((fg__vk_device *)(void *)rig->device)->rungs == plant->rung);
    for (w = 0; w < rig->graph.n_weights; w++)
        CHECK(rig->backend->pack(rig->device, &rig->tensors[w], rig->uses[w], &rig->weights[w], NULL) == FG_OK);
    r = rig->backend->prepare(rig->device, &rig->graph, &rig->plan, NULL);
    CHECKF(r == (plant->opens ? FG_OK : FG_ERROR_UNSUPPORTED), "%s", fg_last_error());
    if (r != FG_OK) snprintf(said->text, sizeof(said->text), "%s", fg_last_error());
    for (row = 0; r == FG_OK && row < c->m; row++) {
        const float *out = row ? rig->output.logits : cpu_rig_run(rig, 0, c->m), *x = (const float *)(const void *)rig->data[embed->weight] + row * c->k;
        cpu_expert_choice(rig, c, row, experts, weights);
        for (j = 0; j < c->n_used; j++)
            for (i = 0; i < c->n; i++) {
                double dot = 0, ww = 1e-30, xx = 1e-30;
                cpu_weight_row(rig, op->weight, (int64_t)experts[j] * c->n + i, weight);
                for (l = 0; l < c->k; l++) dot += (double)weight[l] * (double)x[l], ww += (double)weight[l] * (double)weight[l], xx += (double)x[l] * (double)x[l];
                worst = test_worse(worst, fabs((double)out[(row * c->n_used + j) * c->n + i] - dot) / sqrt(ww * xx));
            }
    }
    free(weight);
    cpu_rig_end_device(rig);
    cpu_rig_free(rig);
    return worst;
}

/* Faults that only products with experts have: these are done in floats, or the graph is refused. */
static void test_vulkan_experts_faults(void) {
    static const struct {
        vulkan_plant plant;
        fg_type type;
    } cases[] = {
        {{FG__VK_SHADER_GEMV, 4, FG__VK_PAIRS, PLANT_MULTIPLY, 0, false, false, "products with experts"}, FG_TYPE_F16},
        {{FG__VK_SHADER_GEMM, 4, FG__VK_TILES, PLANT_ADD, 0, false, false, "products with experts"}, FG_TYPE_Q4_K},
        {{FG__VK_SHADER_GEMV, 4, FG__VK_TILES, PLANT_MULTIPLY, 0, false, false, "products with experts"}, FG_TYPE_F16},
        {{FG__VK_SHADER_GEMV_DOT, 4, FG__VK_PAIRS, PLANT_DOT, FG_VULKAN_DOT, false, true, "are done in floats"}, FG_TYPE_Q8_0},
        {{FG__VK_SHADER_GEMM_DOT, 4, FG__VK_TILES, PLANT_DOT, FG_VULKAN_DOT, false, true, "are done in floats"}, FG_TYPE_Q8_0},
        {{FG__VK_SHADER_GEMM_HALF, 4, FG__VK_TILES, PLANT_ADD, FG_VULKAN_HALF, false, true, "are done in floats"}, FG_TYPE_BF16},
        {{FG__VK_SHADER_GEMM_MATRIX, 4, FG__VK_TILES, PLANT_MATRIX, FG_VULKAN_MATRIX, false, true, "are done in floats"}, FG_TYPE_MXFP4},
    };
    static const cpu_experts c = {256, 40, 20, 4, 2, false, true, false};
    fg_vulkan_options options;
    int i;
    vulkan_faults_open(true);
    vulkan_faults.only = "none";
    memset(&options, 0, sizeof(options));
    options.get_instance_proc_addr = vulkan_faulty_get;
    for (i = 0; i < (int)(sizeof(cases) / sizeof(cases[0])); i++) {
        const vulkan_plant *plant = &cases[i].plant;
        double error;
        vulkan_said said;
        options.force = plant->rung;
        options.off = ~plant->rung;
        vulkan_faults.plant = plant;
        vulkan_faults.n_planted = 0;
        memset(fg__vk_proved, 0, sizeof(fg__vk_proved));
        error = vulkan_faulty_experts(&options, cases[i].type, &c, plant, &said);
        CHECKF(vulkan_faults.n_planted > 0 && (!plant->opens || error < 2e-6), "plant %d in %d kernels: error %g", i, vulkan_faults.n_planted, error);
        CHECKF(strstr(said.text, plant->says) != NULL, "plant %d says: %s", i, said.text);
    }
    vulkan_faults.plant = NULL;
    fg__vk_loader_close(&vulkan_faults.loader);
}

/* What proved good is found again, whatever its remainders; past the last place one takes another's. */
static void test_vulkan_proofs(void) {
    const uint32_t n = FG__COUNT(fg__vk_proved);
    uint32_t i;
    memset(fg__vk_proved, 0, sizeof(fg__vk_proved));
    for (i = 0; i <= n; i++) {
        CHECK(!fg__vk_is_proved(1 + i * n));
        fg__atomic_store(fg__vk_proved_at(1 + i * n), (int)(1 + i * n));
        CHECK(fg__vk_is_proved(1 + i * n) && fg__vk_is_proved(1 + (i < n ? 0 : i) * n));
    }
    memset(fg__vk_proved, 0, sizeof(fg__vk_proved));
}

static void test_vulkan_wrong_rungs(void) {
    if (!cpu_vulkan_device(0)) SKIP("there is no Vulkan device");
    vulkan_check_wrong_rungs(false);
    vulkan_check_plants(false, 0, 7);
}

/* Commands that were recorded go when there are many, or no memory for more, and are recorded again: the same results. */
static void test_vulkan_forget(void) {
    cpu_attn c = {FG_TYPE_F16, 4, 2, 64, 64, 1, 0, 32, false, 0.0f, 1.0f, {70, 9, 0, 0, 0, 0}};
    size_t n = (size_t)(cpu_attn_total(&c) * c.n_head * c.head_dim);
    float *out[3];
    cpu_rig *rig;
    int i;
    if (!cpu_vulkan_device(0)) SKIP("there is no Vulkan device");
    for (i = 0; i < 3; i++) out[i] = (float *)calloc(n, sizeof(float));
    rig = cpu_attn_rig(&c, 64);
    if (cpu_rig_open(rig, "vulkan", 1) == FG_OK) {
        fg__vk_plan *plan = (fg__vk_plan *)(void *)rig->plan;
        size_t before;
        cpu_attn_all(&c, rig, 1, 50, out[0]);
        before = plan->n_commands;
        CHECK(before > 0 && fg__vk_forget_commands(plan) == FG_OK && plan->n_commands == 0);
        cpu_attn_all(&c, rig, 1, 50, out[1]);
        CHECK(plan->n_commands == before);
        while (plan->n_commands < FG__VK_RANGES) plan->whole = false, (void)fg__vk_range_of(plan, 1000 + (int)plan->n_commands, 0, 0);
        cpu_attn_all(&c, rig, 1, 50, out[2]);
        CHECKF(plan->n_commands == before, "%d ranges", (int)plan->n_commands);
        CHECK(memcmp(out[0], out[1], n * sizeof(float)) == 0 && memcmp(out[0], out[2], n * sizeof(float)) == 0);
    }
    cpu_rig_free(rig);
    for (i = 0; i < 3; i++) free(out[i]);
}

/* Every allocation of ours fails in turn. */
static void test_vulkan_out_of_memory(void) {
    cpu_attn c = {FG_TYPE_F16, 8, 2, 32, 32, 1, 0, 32, false, 0.0f, 1.0f, {40, 0, 0, 0, 0, 0}};
    cpu_rig *rig;
    if (!cpu_vulkan_device(0)) SKIP("there is no Vulkan device");
    rig = cpu_model_rig(&c, FG_TYPE_Q8_0);
    rig->backend = fg_backend_vulkan();
    cpu_fail_allocations(rig, 10);
    cpu_rig_free(rig);
}

static struct {
    int32_t(FG__VK_CALL *create)(void *, const fg__vk_cache_info *, const void *, uint64_t *);
    size_t given; /* bytes */
    int n;
    bool refuses;
} vulkan_caches;

/* What it is given is ours, not a driver's. */
static int32_t FG__VK_CALL vulkan_make_cache(void *device, const fg__vk_cache_info *info, const void *allocator, uint64_t *cache) {
    fg__vk_cache_info empty = *info;
    vulkan_caches.given = info->bytes;
    vulkan_caches.n++;
    if (vulkan_caches.refuses && info->bytes) return -13; /* VK_ERROR_UNKNOWN */
    empty.bytes = 0;
    empty.data = NULL;
    return vulkan_caches.create(device, &empty, allocator, cache);
}

static void vulkan_use_cache(fg__vk_device *d, const uint8_t *data, size_t bytes, size_t given, int calls) {
    uint64_t cache = d->cache;
    FILE *file = fopen(d->options.cache_path, "wb");
    CHECK(file && fwrite(data, 1, bytes, file) == bytes && fclose(file) == 0);
    vulkan_caches.n = 0;
    CHECK(fg__vk_make_cache(d) == FG_OK);
    CHECKF(vulkan_caches.given == given && vulkan_caches.n == calls, "%zu of %zu bytes, %d calls", vulkan_caches.given, bytes, vulkan_caches.n);
    d->api.DestroyPipelineCache(d->handle, d->cache, NULL);
    d->cache = cache;
}

/* A driver is given only what was kept whole by the same one, without it when it refuses that. The path's own memory may go. */
static void vulkan_check_cache(const char *path) {
    uint8_t data[140];
    char own[256];
    fg_vulkan_options options;
    fg_device_desc desc;
    fg_device *device = NULL;
    fg__vk_device *d;
    FILE *file;
    uint64_t hash;
    memset(&options, 0, sizeof(options));
    memset(&desc, 0, sizeof(desc));
    snprintf(own, sizeof(own), "%s", path);
    options.cache_path = own;
    desc.options = &options;
    CHECK(fg_backend_vulkan()->open(&desc, &device) == FG_OK);
    if (!device) return;
    memset(own, 'x', sizeof(own) - 1);
    d = (fg__vk_device *)(void *)device;
    vulkan_caches.create = d->api.CreatePipelineCache;
    d->api.CreatePipelineCache = vulkan_make_cache;
    memset(data, 7, sizeof(data));
    memset(data, 0, 8);
    data[0] = 32;
    data[4] = 1;
    memcpy(data + 8, &d->properties.vendor, 4);
    memcpy(data + 12, &d->properties.device, 4);
    memcpy(data + 16, d->properties.cache_uuid, 16);
    hash = fg__hash_bytes(0, data, 132);
    memcpy(data + 132, &hash, 8);
    vulkan_use_cache(d, data, 140, 132, 1);
    vulkan_caches.refuses = true;
    vulkan_use_cache(d, data, 140, 0, 2);
    vulkan_caches.refuses = false;
    vulkan_use_cache(d, data, 139, 0, 1);
    data[100] ^= 1;
    vulkan_use_cache(d, data, 140, 0, 1);
    data[100] ^= 1;
    data[20] ^= 1;
    vulkan_use_cache(d, data, 140, 0, 1);
    remove(path);
    fg_backend_vulkan()->close(device);
    file = fopen(path, "rb");
    CHECKF(file != NULL, "nothing was kept where the path was");
    if (file) fclose(file);
}

/* Compiled kernels are kept in a file, and a damaged file is no harm. */
static void test_vulkan_cache(void) {
    const char *build = getenv("BUILD");
    char path[256];
    model_spec spec = model_spec_tiny();
    model_sample m;
    fg_vulkan_options options;
    int i;
    if (!cpu_vulkan_device(0)) SKIP("there is no Vulkan device");
    snprintf(path, sizeof(path), "%s/test_vulkan.cache", build ? build : "build");
    memset(&options, 0, sizeof(options));
    options.cache_path = path;
    remove(path);
    model_sample_open(&m, &spec);
    for (i = 0; m.model && i < 4; i++) {
        bool created;
        fg_finish finish;
        FILE *file = i ? fopen(path, i == 2 ? "r+b" : "rb") : NULL;
        CHECK((i == 0) == (file == NULL));
        if (i == 2 && file) { /* the header is damaged */
            fseek(file, 5, SEEK_SET);
            fwrite("damaged", 1, 7, file);
        }
        if (file) fclose(file);
        if (i == 3 && (file = fopen(path, "wb")) != NULL) fclose(file); /* empty */
        CHECK(gpu_try(m.model, fg_backend_vulkan(), &options, &created, &finish) == FG_OK && created && finish == FG_FINISH_LENGTH);
    }
    model_sample_close(&m);
    vulkan_check_cache(path);
    remove(path);
}

static void run_vulkan_tests(void) {
    RUN(test_vulkan_device);
    RUN(test_vulkan_split);
    RUN(test_vulkan_route);
    RUN(test_vulkan_experts);
    RUN(test_vulkan_experts_rungs);
    RUN(test_vulkan_experts_pieces);
    RUN(test_vulkan_experts_invariant);
    RUN(test_vulkan_experts_bounds);
    RUN(test_vulkan_state);
    RUN(test_vulkan_state_short);
    RUN(test_vulkan_state_model);
    RUN(test_vulkan_state_prefix);
    RUN(test_vulkan_state_blocks);
    RUN(test_vulkan_state_bounds);
    RUN(test_vulkan_gates);
    RUN(test_vulkan_copy_blocks);
    RUN(test_vulkan_swap);
    RUN(test_vulkan_kv_pieces);
    RUN(test_vulkan_wide);
    RUN(test_vulkan_invariant);
    RUN(test_vulkan_model);
    RUN(test_vulkan_rungs);
    RUN(test_vulkan_story);
    RUN(test_vulkan_attention);
    RUN(test_vulkan_attention_long);
    RUN(test_vulkan_attention_batch);
    RUN(test_vulkan_attention_cuts);
    RUN(test_vulkan_attention_far);
    RUN(test_vulkan_shapes);
    RUN(test_vulkan_experts_faults);
    RUN(test_vulkan_proofs);
    RUN(test_vulkan_wrong_rungs);
    RUN(test_vulkan_engine);
    RUN(test_vulkan_engine_invariant);
    RUN(test_vulkan_engine_experts);
    RUN(test_vulkan_engine_states);
    RUN(test_vulkan_faults);
    RUN(test_vulkan_roofs);
    RUN(test_vulkan_roof_rungs);
    RUN(test_vulkan_forget);
    RUN(test_vulkan_out_of_memory);
    RUN(test_vulkan_cache);
}
