/* The shaders of the Vulkan backend on the driver of standin_vulkan.h: the op differentials of test_cpu.c, products and attention of
   every rung, small engines, with subgroups of 32 and 64 lanes. Whatever the driver finds fails the test. */

#if defined(__linux__) && defined(__x86_64__) && !defined(__TINYC__)
#define SPIRV_HERE (void)0
#else /* others would be slow, and many of them are emulated */
#define SPIRV_HERE SKIP("shaders are executed on Linux on x86-64, by a compiler that optimises")
#endif

#if defined(__SANITIZE_ADDRESS__)
#define SPIRV_SANITIZED
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(undefined_behavior_sanitizer)
#define SPIRV_SANITIZED
#endif
#endif
#ifdef SPIRV_SANITIZED
#define SPIRV_ALL SKIP("sanitizers make it slow")
#else
#define SPIRV_ALL SPIRV_HERE
#endif

/* Nothing was found since the last time. */
static void spirv_none(const char *what) {
    char text[4000];
    int n = svk_take(text, sizeof(text));
    CHECKF(n == 0, "%s: %d violations: %s", what, n, text);
}

/* All of a kind of op on one path. */
static void spirv_on(const char *path, void (*test)(void)) {
    cpu_only = path;
    test();
    cpu_only = NULL;
    spirv_none(path);
}

static void test_spirv_ops(void) {
    static const char *const paths[] = {"vulkan32", "vulkan64", "vulkan8"};
    size_t p;
    SPIRV_ALL;
    for (p = 0; p < 3; p++) {
        spirv_on(paths[p], test_cpu_embed);
        spirv_on(paths[p], test_cpu_sample);
        if (p == 2) break;
        spirv_on(paths[p], test_cpu_norm);
        spirv_on(paths[p], test_cpu_act_mul);
        spirv_on(paths[p], test_cpu_gemm_odd);
        draw_check_width(paths[p], 129);
        draw_check_width(paths[p], 9001);
        spirv_none(paths[p]);
    }
}

/* Recurrent layers, and gates. */
static void test_spirv_state(void) {
    static const char *const paths[] = {"vulkan32", "vulkan64", "vulkan8"};
    static const state_case cases[] = {{2, 1, 40, 4, 1, 8, {11, 1, 3, 0}, false}, {3, 3, 33, 2, 0, 4, {9, 5, 0, 0}, false}, {2, 1, 8, 6, 0, 2, {9, 3, 1, 0}, false}}, wide = {1, 1, 128, 4, 0, 32, {3, 2, 0, 0}, false};
    int p;
    SPIRV_ALL;
    for (p = 0; p < 3; p++) {
        state_check(paths[p], &cases[p], true);
        spirv_none(paths[p]);
    }
    state_check("vulkan64", &wide, true);
    spirv_none("vulkan64");
    state_check("vulkan32-split", &vulkan_states[0], true);
    spirv_none("vulkan32-split");
    gpu_check_state_prefix("vulkan64", &cases[2]);
    vulkan_check_state_model("vulkan64", &vulkan_states[1]);
    spirv_none("vulkan64");
    gpu_check_state_blocks("vulkan64-push", &vulkan_states[1]);
    spirv_none("vulkan64-push");
    for (p = 0; p < 2; p++) {
        vulkan_check_gates(p ? "vulkan64-dot" : "vulkan32");
        spirv_none(p ? "vulkan64-dot" : "vulkan32");
    }
}

/* Products of one row, of few and of many, of every `step`th type. */
static void spirv_gemm(const char *path, int first, int step) {
    static const int shapes[][3] = {{256, 33, 1}, {512, 31, 3}, {256, 19, 7}, {256, 70, 37}, {256, 40, 70}};
    bool matrix = strstr(path, "-matrix") != NULL, many = matrix || strstr(path, "-half"); /* where alone they do something */
    int i, s;
    for (i = first; i < CPU_TYPES; i += step)
        for (s = many ? 3 : 0; s < (matrix ? 5 : 4); s++) {
            double error = cpu_gemm_error(path, 1, cpu_types[i], shapes[s][0], shapes[s][1], shapes[s][2], FG_ACT_SILU, s > 2);
            CHECKF(error < (s > 2 ? 2 : 1) * cpu_gemm_limit(path, cpu_types[i], shapes[s][2]), "%s %s m %d: error %g", path, fg_type_name(cpu_types[i]),
                   shapes[s][2], error);
        }
    for (i = 0; many && i < 3; i++) { /* widths that are no whole units */
        double error = cpu_gemm_error(path, 1, i == 2 ? FG_TYPE_BF16 : FG_TYPE_F16, 17 + 30 * i, 40, 9, FG_ACT_NONE, false);
        CHECKF(error < 1e-3, "%s k %d: error %g", path, 17 + 30 * i, error);
    }
    spirv_none(path);
}

static void test_spirv_gemm(void) {
    static const struct { /* every step-th type */
        const char *path;
        int first, step;
    } runs[] = {{"vulkan32", 0, 1}, {"vulkan64", 1, 3}, {"vulkan8", 1, 8}, {"vulkan32-split", 0, 8}, {"vulkan64-push", 2, 16},
                {"vulkan32-dot", 0, 3}, {"vulkan64-dot", 1, 3}, {"vulkan32-half", 2, 5}, {"vulkan64-half", 1, 8}, {"vulkan32-matrix", 1, 3},
                {"vulkan64-matrix", 0, 4}, {"vulkan8-matrix", 2, 8}};
    size_t i;
    SPIRV_ALL;
    for (i = 0; i < sizeof(runs) / sizeof(runs[0]); i++) {
        const fg__vk_device *d = (const fg__vk_device *)(const void *)cpu_vulkan_device(cpu_vulkan_number(runs[i].path));
        CHECKF(d && d->rungs == cpu_vulkans[cpu_vulkan_number(runs[i].path)].force, "%s: rungs %u: %s", runs[i].path, d ? (unsigned)d->rungs : 0, fg_last_error());
        spirv_gemm(runs[i].path, runs[i].first, runs[i].step);
    }
}

/* Products of few rows whose k workgroups divide, and which have not a whole step at its end. */
static void test_spirv_together(void) {
    static const struct {
        const char *path;
        fg_type type;
        int k, rows;
    } runs[] = {{"vulkan64", FG_TYPE_F16, 520, 1}, {"vulkan8", FG_TYPE_Q4_K, 2304, 3}, {"vulkan32", FG_TYPE_Q8_0, 2080, 8}, {"vulkan64-dot", FG_TYPE_Q6_K, 2304, 1},
                {"vulkan64-dot", FG_TYPE_Q4_0, 2080, 7}, {"vulkan64-half", FG_TYPE_Q8_0, 2080, 2}};
    size_t i;
    SPIRV_ALL;
    for (i = 0; i < sizeof(runs) / sizeof(runs[0]); i++) {
        double error = cpu_gemm_error(runs[i].path, 1, runs[i].type, runs[i].k, 11, runs[i].rows, FG_ACT_SILU, true);
        CHECKF(error < 2 * cpu_gemm_limit(runs[i].path, runs[i].type, runs[i].rows), "%s, %s: error %g", runs[i].path, fg_type_name(runs[i].type), error);
        spirv_none(runs[i].path);
    }
}

/* Experts: who takes whom, pairs and tiles of every rung, in pieces, of a workgroup that divides k, with the same bits among few and many. */
static void test_spirv_experts(void) {
    static const struct {
        const char *path;
        fg_type type;
        cpu_experts c;
    } runs[] = {{"vulkan32", FG_TYPE_Q4_K, {256, 20, 3, 6, 2, false, true, true}},
                {"vulkan64", FG_TYPE_MXFP4, {64, 19, 12, 5, 3, false, true, true}},
                {"vulkan8", FG_TYPE_F16, {75, 17, 9, 3, 2, false, true, false}},
                {"vulkan32", FG_TYPE_Q8_0, {64, 18, 70, 2, 1, true, true, true}},
                {"vulkan64", FG_TYPE_Q8_0, {2080, 9, 2, 4, 2, false, true, true}},
                {"vulkan32-split", FG_TYPE_F32, {256, 16, 9, 7, 3, false, true, true}},
                {"vulkan64-push", FG_TYPE_Q6_K, {256, 20, 10, 4, 2, false, true, false}},
                {"vulkan32-dot", FG_TYPE_MXFP4, {64, 33, 10, 6, 2, false, true, true}},
                {"vulkan64-dot", FG_TYPE_Q2_K, {256, 20, 4, 6, 3, false, true, false}},
                {"vulkan64-half", FG_TYPE_Q8_0, {64, 40, 20, 3, 2, false, true, true}},
                {"vulkan32-matrix", FG_TYPE_MXFP4, {96, 40, 20, 3, 2, false, true, true}},
                {"vulkan64-matrix", FG_TYPE_F16, {79, 40, 60, 2, 2, false, true, false}},
                {"vulkan8-matrix", FG_TYPE_Q4_K, {256, 20, 12, 3, 1, false, true, true}}};
    static const char *const invariant[] = {"vulkan64-invariant", "vulkan32-dot-invariant", "vulkan64-half-invariant", "vulkan32-matrix-invariant"};
    static const cpu_experts c = {544, 20, 40, 6, 3, false, true, false}, choices[] = {{0, 0, 9, 70, 5, false, true, false}, {0, 0, 3, 3, 3, false, false, false}};
    size_t i;
    SPIRV_ALL;
    for (i = 0; i < sizeof(runs) / sizeof(runs[0]); i++) {
        vulkan_check_experts(runs[i].path, runs[i].type, &runs[i].c);
        cpu_check_routes(runs[i].path, &runs[i].c);
        vulkan_check_choice(runs[i].path, &choices[i % 2]);
        spirv_none(runs[i].path);
    }
    for (i = 0; i < 4; i++) {
        CHECKF(vulkan_expert_bits(invariant[i], i == 2 ? FG_TYPE_F16 : FG_TYPE_Q8_0, &c, i % 2) == 0, "%s", invariant[i]);
        spirv_none(invariant[i]);
    }
}

/* Experts of 40 tokens, of which bytes are made, behind a product that has bytes of the same rows where they are few. */
static void test_spirv_experts_bytes(void) {
    static const cpu_experts c = {64, 8, 40, 64, 2, false, true, false};
    SPIRV_ALL;
    vulkan_check_behind("vulkan32-all", &c, FG_OP_GEMM, FG_TYPE_Q8_0);
    spirv_none("bytes for products and experts");
}

static void test_spirv_attention(void) {
    static const char *const halves[] = {"vulkan32-half", "vulkan64-half", "vulkan32-matrix", "vulkan64-matrix", "vulkan8-matrix"};
    static const fg_type types[] = {FG_TYPE_F32, FG_TYPE_F16, FG_TYPE_BF16, FG_TYPE_Q8_0};
    static const cpu_attn cases[] = {
        {FG_TYPE_F16, 8, 2, 64, 64, 1, 0, 32, false, 0.0f, 1.0f, {70, 33, 1, 0, 0, 0}},
        {FG_TYPE_F16, 2, 2, 80, 32, 0, 20, 8, true, 30.0f, 1.0f, {50, 9, 0, 0, 0, 0}},
        {FG_TYPE_Q8_0, 4, 4, 96, 96, 1, 30, 64, false, 0.0f, 1.0f, {45, 40, 0, 0, 0, 0}},
    };
    size_t p, i;
    SPIRV_ALL;
    for (i = 0; i < (size_t)CPU_ATTNS; i++) /* the shorter ones */
        if (cpu_attn_total(&cpu_attns[i]) < 200) cpu_check_attention(i % 2 ? "vulkan32" : "vulkan64", (int)i);
    spirv_none("attention");
    for (p = 0; p < 5; p++) {
        for (i = p % 3; i < 3; i += 1 + p / 3) vulkan_check_attention(halves[p], &cases[i], cases[i].kv_type == FG_TYPE_Q8_0 ? 2e-2 : 8e-3);
        cpu_check_kv_bound(halves[p], p % 2 ? FG_TYPE_Q8_0 : FG_TYPE_F16, 1);
        spirv_none(halves[p]);
    }
    cpu_sinks = true;
    for (i = 0; i < 4; i++) vulkan_check_attention(i % 2 ? "vulkan32" : "vulkan8", &cases[i % 3], i % 3 == 2 ? 2e-2 : 1e-3);
    for (p = 0; p < 5; p++) vulkan_check_attention(halves[p], &cases[p % 3], p % 3 == 2 ? 2e-2 : 8e-3);
    cpu_sinks = false;
    spirv_none("sinks");
    for (i = 0; i < 4; i++) cpu_check_kv_bound(i % 2 ? "vulkan32" : "vulkan64", types[i], 1);
    spirv_none("values that the cache does not hold");
}

/* Contexts over a cut, items and their merging; one order of sums for every number of rows. */
static void test_spirv_invariant(void) {
    static const char *const paths[] = {"vulkan64-invariant", "vulkan8-invariant", "vulkan32-dot-invariant", "vulkan64-half-invariant", "vulkan32-matrix-invariant"};
    cpu_attn c = {FG_TYPE_F16, 2, 1, 16, 16, 1, 0, 32, false, 0.0f, 1.0f, {524, 515, 0, 0, 0, 0}};
    int p;
    SPIRV_ALL;
    vulkan_check_cuts("vulkan64-invariant", &c, 1e-3, 0.0f);
    spirv_none("cuts");
    vulkan_check_cuts("vulkan64", &c, 0, 3e-5f);
    spirv_none("cuts, short items");
    cpu_sinks = true;
    vulkan_check_cuts("vulkan64-invariant", &c, 1e-3, 0.0f);
    cpu_sinks = false;
    spirv_none("cuts, sinks");
    vulkan_check_cuts("vulkan32-matrix", &c, 0, 8e-3f);
    spirv_none("cuts, matrices");
    c.block_tokens = 16;
    for (p = 0; p < 2; p++) {
        cpu_sinks = p == 1;
        vulkan_check_cuts("vulkan64-kv", &c, 1e-3, 1e-5f);
        cpu_sinks = false;
    }
    spirv_none("cuts of pieces");
    for (p = 0; p < 5; p++) {
        int other = vulkan_other_bits(paths[p], p % 3 == 0 ? FG_TYPE_F16 : FG_TYPE_Q4_K, p % 3 == 0 ? 542 : 768);
        const fg__vk_device *d = (const fg__vk_device *)(const void *)cpu_vulkan_device(cpu_vulkan_number(paths[p]));
        CHECKF(d && d->narrow, "%s: products of few rows are not those of many", paths[p]);
        CHECKF(other == 0, "%s: %d values differ", paths[p], other);
        spirv_none(paths[p]);
    }
}

static void test_spirv_model(void) {
    static const char *const paths[] = {"vulkan64-kv", "vulkan32-all"};
    cpu_attn c = {FG_TYPE_F16, 8, 2, 32, 32, 1, 0, 32, false, 0.0f, 1.0f, {21, 9, 1, 0, 0, 0}};
    size_t p;
    SPIRV_ALL;
    for (p = 0; p < 2; p++) {
        const char *path = paths[p];
        gpu_check_model(path, &c, p ? 5 : CPU_TYPES - 1, CPU_TYPES, strstr(path, "-all") ? 0.1 : strstr(path, "half") || strstr(path, "matrix") ? 2e-2 : 1e-4);
        spirv_none(path);
    }
    cpu_check_copy_blocks("vulkan64-kv");
    gpu_check_swap("vulkan32");
    gpu_check_swap("vulkan64-kv");
    spirv_none("blocks");
}

/* ---- What the driver must find. ---- */

/* Closes a path's device, for what comes next to make it anew. */
static void spirv_fresh(const char *path) {
    cpu_vulkan *v = &cpu_vulkans[cpu_vulkan_number(path)];
    if (v->device) fg_backend_vulkan()->close(v->device);
    v->device = NULL;
    v->tried = false;
}

enum { SPIRV_MOST = FG__VK_SOME_ROWS + 3 };
static int spirv_rows = 12, spirv_width = 160;
static bool spirv_runs; /* the pass, not what comes before it */
static char spirv_text[4000]; /* of the violations of what ran last */

/* A layer norm and a product, that wide; the violations that this makes. */
static int spirv_small_gemm(const char *path) {
    uint64_t state = 3;
    cpu_rig *rig = cpu_rig_new(SPIRV_MOST);
    int x = cpu_slot(rig, spirv_width, false), y = cpu_slot(rig, spirv_width, false), z = cpu_slot(rig, 40, false);
    fg_op *op = cpu_op(rig, FG_OP_EMBED, -1, x, spirv_width);
    op->weight = cpu_weight(rig, FG_TYPE_F32, spirv_width, SPIRV_MOST, FG_OP_EMBED, &state);
    op = cpu_op(rig, FG_OP_NORM, x, y, spirv_width);
    op->weight = cpu_weight(rig, FG_TYPE_F32, spirv_width, 0, FG_OP_NORM, &state);
    op->bias = cpu_weight(rig, FG_TYPE_F32, spirv_width, 0, FG_OP_NORM, &state);
    op = cpu_op(rig, FG_OP_GEMM, y, z, 40);
    op->weight = cpu_weight(rig, FG_TYPE_Q4_0, spirv_width, 40, FG_OP_GEMM, &state);
    op->k = spirv_width;
    cpu_rig_end(rig, z);
    if (!svk.drop) spirv_fresh(path);
    if (cpu_rig_open(rig, path, 1) == FG_OK) {
        spirv_runs = true;
        svk.submissions = 0;
        (void)cpu_rig_run(rig, 0, spirv_rows);
        spirv_runs = false;
    }
    cpu_rig_free(rig);
    if (!svk.drop) spirv_fresh(path);
    return svk_take(spirv_text, sizeof(spirv_text));
}

/* Positions from `first` on in a pass, then those from `middle` to `end`. */
static void spirv_attend(const char *path, int window, int first, int middle, int end) {
    cpu_attn c = {FG_TYPE_F16, 2, 1, 32, 32, 1, window, 16, false, 0.0f, 1.0f, {end, 0, 0, 0, 0, 0}};
    cpu_rig *rig = cpu_attn_rig(&c, 80);
    static float rows[518 * 2 * 32];
    if (cpu_rig_open(rig, path, 1) == FG_OK) {
        spirv_runs = true;
        cpu_batch_start(rig);
        cpu_attn_add(&c, rig, 0, first, middle);
        cpu_attn_take(rig, rows);
        cpu_batch_start(rig);
        cpu_attn_add(&c, rig, 0, middle, end);
        cpu_attn_take(rig, rows);
        spirv_runs = false;
    }
    cpu_rig_free(rig);
}

static int spirv_small_attention(const char *path) {
    if (!svk.drop) spirv_fresh(path);
    spirv_attend(path, 0, 0, 64, 76);
    spirv_attend(path, 24, 470, 508, 518); /* past a cut: the softmax begins anew */
    if (!svk.drop) spirv_fresh(path);
    return svk_take(spirv_text, sizeof(spirv_text));
}

/* Two tokens more than pairs of have workgroups of their own, and a sum over their experts; the violations that this makes. */
static int spirv_small_experts(const char *path) {
    static const cpu_experts c = {64, 20, 11, 6, 3, false, true, false};
    cpu_rig *rig = cpu_rig_new(c.m);
    vulkan_expert_sum(rig, &c);
    if (!svk.drop) spirv_fresh(path);
    if (cpu_rig_open(rig, path, 1) == FG_OK) {
        spirv_runs = true;
        (void)cpu_rig_run(rig, 0, c.m);
        spirv_runs = false;
    }
    cpu_rig_free(rig);
    if (!svk.drop) spirv_fresh(path);
    return svk_take(spirv_text, sizeof(spirv_text));
}

/* Two passes of two sequences, of which the second begins within the blocks where the first ends; the violations that this makes. */
static int spirv_small_state(const char *path) {
    static const state_case c = {2, 1, 36, 4, 1, 8, {13, 7, 0, 0}, false};
    cpu_rig *rig = state_rig(&c, 16);
    int s;
    if (!svk.drop) spirv_fresh(path);
    if (cpu_rig_open(rig, path, 1) == FG_OK) {
        spirv_runs = true;
        for (s = 0; s < 4; s++) {
            if (s % 2 == 0) cpu_batch_start(rig);
            if (s < 2) state_add(&c, rig, s, 0, 6 - 3 * s);
            else state_add(&c, rig, s - 2, 6 - 3 * (s - 2), c.lengths[s - 2]);
            if (s % 2) (void)cpu_rig_submit(rig);
        }
        spirv_runs = false;
    }
    cpu_rig_free(rig);
    if (!svk.drop) spirv_fresh(path);
    return svk_take(spirv_text, sizeof(spirv_text));
}

static struct {
    int shader, which, count; /* the barrier of a shader, or of commands, that goes; how many there are */
    uint32_t from, to;        /* a built-in that becomes another */
    uint32_t op, instead;     /* an opcode that does */
    bool diverge;             /* where 64 is stored, gl_LocalInvocationIndex is: reduce.glsl goes round differently often */
} spirv_plant;

static void spirv_patch(int shader, uint32_t *code, size_t n) {
    uint32_t index = 0, loaded = 0, number = 0;
    size_t i, j;
    if (shader != spirv_plant.shader) return;
    spirv_plant.count = 0;
    for (i = 5; i < n && code[i] >> 16; i += code[i] >> 16) {
        if (code[i] == (4u << 16 | 224) && spirv_plant.count++ == spirv_plant.which)
            for (j = 0; j < 4; j++) code[i + j] = 1u << 16;
        if (code[i] == (4u << 16 | 71) && code[i + 2] == 11 && code[i + 3] == spirv_plant.from) code[i + 3] = spirv_plant.to;
        if (code[i] == (4u << 16 | 71) && code[i + 2] == 11 && code[i + 3] == 29) index = code[i + 1];
        if (code[i] == (4u << 16 | 43) && code[i + 3] == 64) number = code[i + 2];
        if (code[i] == (4u << 16 | 61) && code[i + 3] == index) loaded = code[i + 2];
        if (spirv_plant.diverge && code[i] == (3u << 16 | 62) && code[i + 2] == number && number) code[i + 2] = loaded;
        if (spirv_plant.op && (code[i] & 0xFFFF) == spirv_plant.op) code[i] += spirv_plant.instead - spirv_plant.op;
    }
}

/* Each barrier of a shader gone in turn. */
static void spirv_barriers(int shader, const char *path, int (*run)(const char *path), int spare) {
    int i, found = 0;
    memset(&spirv_plant, 0, sizeof(spirv_plant));
    spirv_plant.shader = shader;
    spirv_plant.count = 1;
    svk.patch = spirv_patch;
    for (i = 0; i < spirv_plant.count; i++) {
        spirv_plant.which = i;
        found += run(path) > 0;
    }
    svk.patch = NULL;
    CHECKF(spirv_plant.count > 0 && found == spirv_plant.count - spare, "shader %d on %s: %d of %d barriers are missed when they are gone", shader, path, found, spirv_plant.count);
}

/* In `spare` of the cases others do a barrier's work. */
static void test_spirv_finds_races(void) {
    static const char *const paths[] = {"vulkan32", "vulkan64", "vulkan64-dot", "vulkan32-half", "vulkan64-half", "vulkan64-matrix", "vulkan32-matrix"};
    size_t i;
    SPIRV_ALL;
    for (i = 0; i < 7; i++) CHECKF(spirv_small_gemm(paths[i]) == 0 && spirv_small_attention(paths[i]) == 0, "%s", paths[i]); /* and proves good */
    spirv_barriers(FG__VK_SHADER_NORM, "vulkan32", spirv_small_gemm, 2); /* those are for bytes */
    spirv_barriers(FG__VK_SHADER_NORM, "vulkan64-dot", spirv_small_gemm, 0);
    spirv_barriers(FG__VK_SHADER_GEMM, "vulkan64", spirv_small_gemm, 0);
    spirv_barriers(FG__VK_SHADER_GEMM_DOT, "vulkan64-dot", spirv_small_gemm, 0);
    spirv_barriers(FG__VK_SHADER_GEMM_HALF, "vulkan32-half", spirv_small_gemm, 0);
    spirv_barriers(FG__VK_SHADER_GEMM_FEW_MATRIX, "vulkan64-matrix", spirv_small_gemm, 0);
    svk.vendor = FG__VK_NVIDIA; /* src through shared memory */
    spirv_barriers(FG__VK_SHADER_GEMM_FEW_MATRIX, "vulkan64-matrix", spirv_small_gemm, 0);
    svk.vendor = 0;
    spirv_rows = SPIRV_MOST;
    spirv_barriers(FG__VK_SHADER_GEMM_MATRIX, "vulkan64-matrix", spirv_small_gemm, 0);
    spirv_rows = 3;
    spirv_width = 2048; /* from which on workgroups divide k */
    spirv_barriers(FG__VK_SHADER_GEMV, "vulkan32", spirv_small_gemm, 2); /* that is of slices, and before further rows */
    spirv_width = 160;
    spirv_barriers(FG__VK_SHADER_GEMV, "vulkan64-invariant", spirv_small_gemm, 2);
    spirv_rows = 12;
    spirv_barriers(FG__VK_SHADER_SAMPLE, "vulkan32", spirv_small_gemm, 1);
    spirv_barriers(FG__VK_SHADER_SORT, "vulkan32", spirv_small_experts, 0);
    CHECK(spirv_small_state("vulkan32") == 0);
    spirv_barriers(FG__VK_SHADER_STATE_CONV, "vulkan32", spirv_small_state, 0);
    spirv_barriers(FG__VK_SHADER_STATE_SCAN, "vulkan64", spirv_small_state, 0);
    spirv_barriers(FG__VK_SHADER_STATE_NORM, "vulkan32", spirv_small_state, 1); /* before the sum nobody has read another */
    spirv_barriers(FG__VK_SHADER_ATTENTION, "vulkan32", spirv_small_attention, 2);
    spirv_barriers(FG__VK_SHADER_ATTENTION_HALF, "vulkan64-half", spirv_small_attention, 2);
    spirv_barriers(FG__VK_SHADER_ATTENTION_MATRIX, "vulkan32-matrix", spirv_small_attention, 3);
}

/* Barriers between dispatches. */
static bool spirv_drop(const svk_command *c) {
    return spirv_runs && c->kind == SVK_BARRIER && c->from_stages == 1u << SPV_COMPUTE && c->to_stages == 1u << SPV_COMPUTE && spirv_plant.count++ == spirv_plant.which;
}

/* Other barriers: what brings a batch there, and results back. */
static bool spirv_drop_other(const svk_command *c) {
    return spirv_runs && c->kind == SVK_BARRIER && (c->from_stages != 1u << SPV_COMPUTE || c->to_stages != 1u << SPV_COMPUTE) && spirv_plant.count++ == spirv_plant.which;
}

static void spirv_hazards(const char *path, int (*run)(const char *path), bool (*drop)(const svk_command *), int least) {
    int i, n = 1, found = 0;
    memset(&spirv_plant, 0, sizeof(spirv_plant));
    svk.drop = drop;
    for (i = 0; i < n; i++) {
        spirv_plant.which = i;
        spirv_plant.count = 0;
        found += run(path) > 0;
        n = spirv_plant.count;
    }
    svk.drop = NULL;
    CHECKF(n > 0 && found >= (least ? least : n), "%s: of %d barriers between commands, %d are missed when they are gone", path, n, found);
}

static void test_spirv_finds_hazards(void) {
    SPIRV_ALL;
    spirv_hazards("vulkan32", spirv_small_gemm, spirv_drop, 0);
    spirv_hazards("vulkan64", spirv_small_attention, spirv_drop, 0);
    spirv_hazards("vulkan64-half", spirv_small_gemm, spirv_drop, 0);
    spirv_hazards("vulkan32", spirv_small_experts, spirv_drop, 0);
    spirv_hazards("vulkan64-half", spirv_small_experts, spirv_drop, 0);
    spirv_hazards("vulkan32", spirv_small_state, spirv_drop, 0);
    spirv_hazards("vulkan32", spirv_small_gemm, spirv_drop_other, 3); /* the host has waited before one */
}

/* Shaders that go wrong are told by what they do. */
static void test_spirv_finds_faults(void) {
    static const struct {
        int shader;
        uint32_t from, to, op, instead;
        int rows;
        const char *path, *says;
    } plants[] = {
        {FG__VK_SHADER_PREPARE, 0, 0, 0, 0, 12, "vulkan32-half", "a barrier that lanes of subgroup"},
        {FG__VK_SHADER_GEMV, 26, 27, 0, 0, 1, "vulkan64", "some of its lanes miss"},             /* a row for each lane */
        {FG__VK_SHADER_GEMM_MATRIX, 40, 29, 0, 0, SPIRV_MOST, "vulkan64-matrix", "on matrices that lanes of subgroup"},
        {FG__VK_SHADER_GEMM, 0, 0, 177, 179, 12, "vulkan32", "uses an array at"},                /* i <= n instead of i < n */
        {FG__VK_SHADER_EMBED, 0, 0, 132, 128, 12, "vulkan64", "same dispatch writes"},           /* sums instead of products */
        {FG__VK_SHADER_NORM, 0, 0, 132, 196, 12, "vulkan64", "a shift by 32 or more"},
        {FG__VK_SHADER_NORM, 0, 0, 128, 132, 12, "vulkan32", "it does not end"},                 /* i *= n instead of i += n */
    };
    size_t i;
    SPIRV_ALL;
    CHECK(spirv_small_gemm("vulkan32") == 0 && spirv_small_gemm("vulkan64") == 0 && spirv_small_gemm("vulkan64-matrix") == 0);
    svk.patch = spirv_patch;
    svk.most_steps = 1 << 18;
    for (i = 0; i < sizeof(plants) / sizeof(plants[0]); i++) {
        int n;
        memset(&spirv_plant, 0, sizeof(spirv_plant));
        spirv_plant.shader = plants[i].shader;
        spirv_plant.which = -1;
        spirv_plant.diverge = i == 0;
        spirv_plant.from = plants[i].from;
        spirv_plant.to = plants[i].to;
        spirv_plant.op = plants[i].op;
        spirv_plant.instead = plants[i].instead;
        spirv_rows = plants[i].rows;
        n = spirv_small_gemm(plants[i].path);
        CHECKF(n > 0 && strstr(spirv_text, plants[i].says), "plant %d: %d violations, not \"%s\": %s", (int)i, n, plants[i].says, spirv_text);
    }
    spirv_rows = 12;
    svk.patch = NULL;
    svk.most_steps = 0;
}

/* ---- Engines. ---- */

static void test_spirv_engine(void) {
    static const char *const paths[] = {"scalar", "vulkan32", "vulkan64-all"};
    fg_model_desc desc;
    fg_model *model = NULL;
    char texts[2][512];
    size_t p;
    SPIRV_ALL;
    memset(&desc, 0, sizeof(desc));
    desc.path = "examples/demo-model/demo.gguf";
    CHECKF(fg_model_load(&desc, &model) == FG_OK, "%s", fg_last_error());
    for (p = 0; model && p < 3; p++) {
        vulkan_story(model, paths[p], "Once upon a time", 6, texts[p > 0], sizeof(texts[0]));
        if (p == 2) texts[0][20] = texts[1][20] = 0; /* bytes and halves are rounded to */
        CHECKF(strlen(texts[p > 0]) >= 20 && strcmp(texts[0], texts[p > 0]) == 0, "%s: \"%s\", not \"%s\"", paths[p], texts[p > 0], texts[0]);
        spirv_none("a story");
    }
    fg_model_free(model);
    bits_gpu("scalar", "vulkan32", 7, 3);
    spirv_none("jobs");
}

/* The rungs that a device would try. */
static uint32_t spirv_rungs(const char *name, uint32_t vendor, uint32_t force, uint32_t off) {
    fg__env env = fg__env_make(NULL, NULL, NULL);
    fg__vk_device *d = (fg__vk_device *)fg__calloc(&env, 1, sizeof(fg__vk_device));
    uint32_t rungs;
    d->env = env;
    d->options.get_instance_proc_addr = svk_get;
    d->options.force = force;
    d->options.off = off;
    svk.vendor = vendor;
    CHECK(fg__vk_loader_open(&d->loader, &d->options) == FG_OK && fg__vk_choose(d, name) == FG_OK && fg__vk_find_rungs(d) == FG_OK);
    rungs = d->rungs;
    svk.vendor = 0;
    fg__vk_close((fg_device *)(void *)d);
    return rungs;
}

/* Matrices of Intel's are for GPUs whose smallest subgroup has 16 lanes or more, by AMD's own drivers for those that multiply bytes of which one
   has a sign; or by force. A driver is not asked about what is off. */
static void test_spirv_matrices(void) {
    const uint32_t all = FG_VULKAN_DOT | FG_VULKAN_HALF | FG_VULKAN_MATRIX | FG_VULKAN_PUSH, others = all & ~(uint32_t)FG_VULKAN_MATRIX;
    long shapes;
    SPIRV_HERE;
    CHECK(spirv_rungs("of 8", 0x10de, 0, 0) == all && spirv_rungs("of 32", 0x1002, 0, 0) == all);
    CHECK(spirv_rungs("of 8", 0x8086, 0, 0) == others && spirv_rungs("of 32", 0x8086, 0, 0) == others); /* 8 to 32 lanes */
    CHECK(spirv_rungs("of 8", 0x8086, FG_VULKAN_MATRIX, 0) == all && spirv_rungs("of 64", 0x8086, 0, 0) == all);
    for (svk.driver = FG__VK_AMD_PROPRIETARY; svk.driver <= FG__VK_AMD_OPEN; svk.driver++) {
        CHECK(spirv_rungs("of 64", 0x1002, 0, 0) == others && spirv_rungs("of 64", 0x1002, FG_VULKAN_MATRIX, 0) == all);
        svk.mixed = 1;
        CHECK(spirv_rungs("of 64", 0x1002, 0, 0) == all);
        svk.mixed = 0;
    }
    svk.driver = 0;
    svk.shared = 12288; /* the sums of 8 subgroups leave nothing for tiles */
    CHECK(spirv_rungs("of 32", 0x1002, 0, 0) == others && spirv_rungs("of 64", 0x1002, 0, 0) == all);
    svk.shared = 16384; /* which every device has */
    CHECK(spirv_rungs("of 32", 0x1002, 0, 0) == all && spirv_rungs("of 64", 0x1002, 0, 0) == all);
    svk.shared = 0;
    shapes = svk.shapes;
    CHECK(shapes > 0 && spirv_rungs("of 64", 0x1002, 0, FG_VULKAN_MATRIX) == others && svk.shapes == shapes);
}

/* The rows of a tile of many tokens on that path. */
static int spirv_tile(const char *path, const cpu_attn *c) {
    cpu_rig *rig = cpu_attn_rig(c, 256);
    int i, rows = 0;
    if (cpu_rig_open(rig, path, 1) == FG_OK) {
        const fg__vk_plan *plan = (const fg__vk_plan *)(const void *)rig->plan;
        for (i = 0; i < plan->n_steps; i++)
            if (plan->steps[i].kind == FG_OP_ATTENTION && plan->steps[i].part == FG__VK_WHOLE) rows = plan->steps[i].tile[FG__VK_MANY];
    }
    cpu_rig_free(rig);
    return rows;
}

/* On Intel's GPUs tiles have as many rows as registers suffice for. */
static void test_spirv_intel_rows(void) {
    static const cpu_attn cases[] = {
        {FG_TYPE_F16, 4, 2, 64, 64, 1, 0, 32, false, 0.0f, 1.0f, {20, 5, 0, 0, 0, 0}},
        {FG_TYPE_Q8_0, 2, 1, 128, 64, 1, 0, 32, false, 0.0f, 1.0f, {12, 0, 0, 0, 0, 0}},
        {FG_TYPE_F16, 2, 1, 256, 64, 1, 0, 32, false, 0.0f, 1.0f, {9, 0, 0, 0, 0, 0}},
        {FG_TYPE_F32, 2, 1, 64, 64, 1, 0, 32, false, 0.0f, 1.0f, {9, 0, 0, 0, 0, 0}},
    };
    static const int rows[] = {8, 4, 4, 16};
    const char *path = "vulkan64-half";
    fg__vk_device *d;
    int i;
    SPIRV_ALL;
    d = (fg__vk_device *)(void *)cpu_vulkan_device(cpu_vulkan_number(path));
    for (i = 0; i < 4; i++) {
        CHECK(spirv_tile(path, &cases[i]) == 16);
        d->properties.vendor = FG__VK_INTEL;
        CHECKF(spirv_tile(path, &cases[i]) == rows[i], "case %d", i);
        vulkan_check_attention(path, &cases[i], cases[i].kv_type == FG_TYPE_Q8_0 ? 2e-2 : 8e-3);
        d->properties.vendor = svk.vendor;
    }
    spirv_none("fewer rows");
}

/* Kernels of matrices keep to the least shared memory that a device may have: by smaller tiles, or tiles of fewer rows. Of a type that no trial has
   made kernels of. */
static void test_spirv_shared(void) {
    fg__vk_device *d;
    int i;
    SPIRV_ALL;
    d = (fg__vk_device *)(void *)cpu_vulkan_device(cpu_vulkan_number("vulkan64-matrix"));
    svk.shared = d->properties.limits.shared_bytes = 16384;
    for (i = 0; i < 2; i++) {
        const int rows = i ? 70 : 20;
        double error = cpu_gemm_error("vulkan64-matrix", 1, FG_TYPE_Q5_0, 256, 40, rows, FG_ACT_NONE, false);
        CHECKF(error < cpu_gemm_limit("vulkan64-matrix", FG_TYPE_Q5_0, rows), "%d rows: error %g", rows, error);
    }
    spirv_none("little shared memory");
    svk.shared = 0;
    d->properties.limits.shared_bytes = svk_shared();
}

/* Some rows of src through shared memory, as on NVIDIA's cards: every third type, and widths that are no whole step of k. */
static void test_spirv_shares_src(void) {
    const char *path = "vulkan64-matrix";
    fg__vk_device *d;
    int i;
    SPIRV_ALL;
    d = (fg__vk_device *)(void *)cpu_vulkan_device(cpu_vulkan_number(path));
    CHECK(!fg__vk_shares_src(d));
    d->properties.vendor = FG__VK_NVIDIA;
    CHECK(fg__vk_some_matrix(d, FG_TYPE_Q5_0) >= 0 && fg__vk_shares_src(d));
    spirv_gemm(path, 2, 3);
    for (i = 0; i < 3; i++) {
        double error = cpu_gemm_error(path, 1, i ? FG_TYPE_Q8_0 : FG_TYPE_F16, i ? 32 * i : 79, 21, 17, FG_ACT_NONE, false);
        CHECKF(error < cpu_gemm_limit(path, FG_TYPE_Q8_0, 17), "%d: error %g", i, error);
    }
    spirv_none("src in shared memory");
    d->properties.vendor = svk.vendor;
}

/* The stand-in's memory: of the types that are for buffers the first with the largest heap, of those on the host the cached one to read. */
static void test_spirv_memory(void) {
    fg__vk_device *d, limits;
    fg_device_caps caps;
    SPIRV_HERE;
    d = (fg__vk_device *)(void *)cpu_vulkan_device(cpu_vulkan_number("vulkan32"));
    CHECK(d->memory_types[FG__VK_ON_DEVICE] == 3 && d->memory_types[FG__VK_TO_DEVICE] == 4 && d->memory_types[FG__VK_FROM_DEVICE] == 5);
    fg_backend_vulkan()->caps((fg_device *)(void *)d, &caps);
    CHECK(caps.memory_bytes == svk_heaps[1]);
    limits.properties.limits.max_storage_range = UINT32_MAX;
    limits.max_allocation = UINT64_MAX;
    CHECK(fg__vk_most_range(&limits) == UINT32_MAX - 255);
    limits.max_allocation = 0x80000000u - 1; /* pieces are rounded up, to 256 bytes */
    CHECK(fg__vk_most_range(&limits) == 0x7FFFFF00u);
    spirv_none("memory");
}

/* Takes memory of the device while some heaps have no room: its type; -1: none. */
static int spirv_take(fg__vk_device *d, int device_type) {
    fg__vk_range range;
    int type = -1;
    d->properties.device_type = device_type;
    if (fg__vk_take(d, FG__VK_ON_DEVICE, FG__VK_CHUNK, &range) == FG_OK) {
        type = (int)((svk_object *)(size_t)range.chunk->memory)->type;
        fg__vk_give(d, &range);
    }
    d->properties.device_type = 2;
    return type;
}

/* When its heap is full a card has no more memory; a GPU of a processor goes on with the next, at last with that of the host. */
static void test_spirv_full(void) {
    fg__vk_device *d;
    SPIRV_HERE;
    d = (fg__vk_device *)(void *)cpu_vulkan_device(cpu_vulkan_number("vulkan32"));
    CHECK(spirv_take(d, 2) == 3 && spirv_take(d, 1) == 3);
    svk.full[1] = true;
    CHECK(spirv_take(d, 2) == -1 && strstr(fg_last_error(), "no room"));
    CHECK(spirv_take(d, 1) == 1);
    svk.full[0] = true;
    CHECK(spirv_take(d, 1) == 4);
    svk.full[2] = true;
    CHECK(spirv_take(d, 1) == -1 && strstr(fg_last_error(), "no room"));
    memset(svk.full, 0, sizeof(svk.full));
    spirv_none("memory elsewhere");
}

/* A long pass is submitted in pieces. */
static void test_spirv_pieces(void) {
    SPIRV_HERE;
    CHECK(spirv_small_gemm("vulkan64") == 0 && svk.submissions == 1);
    CHECK(spirv_small_gemm("vulkan64-kv") == 0);
    CHECKF(svk.submissions == 4, "%ld submissions of 5 ops", svk.submissions);
}

static void test_spirv_driver_faults(void) {
    SPIRV_HERE;
    vulkan_check_faults(true);
    spirv_none("calls that fail");
#ifndef SPIRV_SANITIZED
    vulkan_check_wrong_rungs(true);
    CHECK(svk_take(NULL, 0) > 0); /* of push descriptors that name what is written */
    vulkan_check_plants(true, 0, 1);
    (void)svk_take(NULL, 0);
#endif
}

static void run_spirv_tests(void) {
    RUN(test_spirv_ops);
    RUN(test_spirv_gemm);
    RUN(test_spirv_together);
    RUN(test_spirv_experts);
    RUN(test_spirv_state);
    RUN(test_spirv_experts_bytes);
    RUN(test_spirv_attention);
    RUN(test_spirv_invariant);
    RUN(test_spirv_model);
    RUN(test_spirv_finds_races);
    RUN(test_spirv_finds_hazards);
    RUN(test_spirv_finds_faults);
    RUN(test_spirv_engine);
    RUN(test_spirv_matrices);
    RUN(test_spirv_intel_rows);
    RUN(test_spirv_shared);
    RUN(test_spirv_shares_src);
    RUN(test_spirv_memory);
    RUN(test_spirv_full);
    RUN(test_spirv_pieces);
    RUN(test_spirv_driver_faults);
}
