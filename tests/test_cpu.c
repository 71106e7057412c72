/* Backends through their vtable, op by op against references in double precision written here: every path of the CPU that
   this machine has, a Vulkan device where there is one, CUDA and HIP over a stand-in driver; and the CPU's invariant: a sequence's bits do not depend on
   batch, chunks, threads or block size. */

#include "gpu_standin.h"
#if FG__HAS_AMX
#include "cpu_emulated.h"
#endif

/* ---- Random data. ---- */

static double cpu_uniform(uint64_t *state) { return (double)(test_random(state) >> 11) / 9007199254740992.0; }

static float cpu_normal(uint64_t *state) {
    double sum = -6.0;
    int i;
    for (i = 0; i < 12; i++) sum += cpu_uniform(state);
    return (float)sum;
}

static void cpu_put_half(uint8_t *to, float value) {
    uint16_t half = fg__f32_to_f16(value);
    to[0] = (uint8_t)half;
    to[1] = (uint8_t)(half >> 8);
}

/* n random weights of any type, of size 1 or so: random bytes, with sensible scales. */
static void cpu_random_weights(fg_type type, uint8_t *to, int64_t n, uint64_t *state) {
    /* where a block's half floats are, and the size of what they multiply */
    static const struct {
        int type, first, second;
        float size;
    } halves[] = {{FG_TYPE_Q4_0, 0, -1, 4.0f},    {FG_TYPE_Q4_1, 0, 2, 8.0f},     {FG_TYPE_Q5_0, 0, -1, 8.0f},
                  {FG_TYPE_Q5_1, 0, 2, 16.0f},    {FG_TYPE_Q8_0, 0, -1, 64.0f},   {FG_TYPE_Q2_K, 80, 82, 12.0f},
                  {FG_TYPE_Q3_K, 108, -1, 32.0f}, {FG_TYPE_Q4_K, 0, 2, 200.0f},   {FG_TYPE_Q5_K, 0, 2, 400.0f},
                  {FG_TYPE_Q6_K, 208, -1, 1e3f},  {FG_TYPE_IQ4_NL, 0, -1, 60.0f}, {FG_TYPE_IQ4_XS, 0, -1, 1e3f}};
    int64_t bytes = fg_type_bytes(type, n), i, block = 1;
    size_t j, which = 0;
    for (j = 0; j < sizeof(halves) / sizeof(halves[0]); j++)
        if (halves[j].type == (int)type) which = j;
    while (!fg_type_bytes(type, block)) block *= 2;
    block = fg_type_bytes(type, block);
    for (i = 0; i < bytes; i++) to[i] = (uint8_t)test_random(state);
    for (i = 0; i < bytes; i += block) {
        float x = cpu_normal(state);
        if (type == FG_TYPE_F32) memcpy(to + i, &x, 4);
        else if (type == FG_TYPE_F16) cpu_put_half(to + i, x);
        else if (type == FG_TYPE_BF16) {
            uint16_t bits = fg__f32_to_bf16(x);
            memcpy(to + i, &bits, 2);
        } else if (type == FG_TYPE_MXFP4) to[i] = (uint8_t)(122 + test_random(state) % 6);
        else {
            cpu_put_half(to + i + halves[which].first, x / halves[which].size);
            if (halves[which].second >= 0)
                cpu_put_half(to + i + halves[which].second, cpu_normal(state) / halves[which].size);
        }
    }
}

/* ---- A small graph and what runs it. Slot 0 is filled from table 0 by token id, so that tests choose each row. ----
 */

#define CPU_MAX 32

typedef struct cpu_rig {
    const fg_backend *backend;
    const void *options;
    fg_device *device;
    fg_plan *plan;
    fg_graph graph;
    fg_op ops[CPU_MAX];
    fg_slot slots[CPU_MAX];
    fg_tensor tensors[CPU_MAX];
    fg_weight *weights[CPU_MAX];
    fg_op_type uses[CPU_MAX];
    uint8_t *data[CPU_MAX];
    /* one pass */
    int32_t tokens[1024], positions[1024], cu_q[65], kv_len[64], slots_of[2][1024], rows[1024];
    int32_t *tables[2];
    fg_batch batch;
    fg_output output;
} cpu_rig;

/* Any field a test does not set is "none". */
static fg_op *cpu_op(cpu_rig *rig, fg_op_type type, int src, int dst, int n) {
    fg_op *op = &rig->ops[rig->graph.n_ops++];
    memset(op, 0, sizeof(*op));
    op->type = (int32_t)type;
    op->src = src;
    op->dst = dst;
    op->n = n;
    op->src2 = op->weight = op->weight2 = op->bias = -1;
    op->eps = 1e-5f;
    return op;
}

static int cpu_slot(cpu_rig *rig, int width, bool per_row) {
    fg_slot *slot = &rig->slots[rig->graph.n_slots];
    slot->name = "slot";
    slot->width = width;
    slot->per_row = per_row;
    return rig->graph.n_slots++;
}

static int cpu_weight(cpu_rig *rig, fg_type type, int64_t k, int64_t n, fg_op_type use, uint64_t *state) {
    int i = rig->graph.n_weights++;
    fg_tensor *tensor = &rig->tensors[i];
    tensor->name = "weight";
    tensor->type = type;
    tensor->n_dims = n > 0 ? 2 : 1;
    tensor->dims[0] = k;
    tensor->dims[1] = tensor->dims[2] = tensor->dims[3] = 1;
    if (n > 0) tensor->dims[1] = n;
    tensor->bytes = (size_t)(fg_type_bytes(type, k) * tensor->dims[1]);
    rig->data[i] = (uint8_t *)malloc(tensor->bytes);
    cpu_random_weights(type, rig->data[i], k * tensor->dims[1], state);
    tensor->data = rig->data[i];
    rig->uses[i] = use;
    return i;
}

/* Element [row][column] of a weight. */
static void cpu_weight_row(const cpu_rig *rig, int weight, int64_t row, float *out) {
    const fg_tensor *tensor = &rig->tensors[weight];
    fg__dequantize_row(tensor->type, (const char *)tensor->data + row * fg_type_bytes(tensor->type, tensor->dims[0]),
                       out, tensor->dims[0]);
}

static cpu_rig *cpu_rig_new(int max_tokens) {
    cpu_rig *rig = (cpu_rig *)calloc(1, sizeof(*rig));
    rig->backend = fg_backend_cpu();
    rig->graph.ops = rig->ops;
    rig->graph.slots = rig->slots;
    rig->graph.tensors = rig->tensors;
    rig->graph.weights = rig->weights;
    rig->graph.max_tokens = rig->graph.max_rows = max_tokens;
    rig->graph.max_seqs = 64;
    rig->graph.max_blocks_per_seq = 1;
    return rig;
}

/* Ends the graph: rows of `slot` come back as logits. */
static void cpu_rig_end(cpu_rig *rig, int slot) {
    int width = rig->slots[slot].width, out = cpu_slot(rig, width, true);
    cpu_op(rig, FG_OP_GATHER_ROWS, slot, out, width);
    cpu_op(rig, FG_OP_SAMPLE, out, -1, width);
    rig->graph.n_vocab = width;
}

/* A device of the Vulkan backend, for the whole run: its kernels are compiled once. `limit`, `force`: see fg_vulkan_options. */
typedef struct cpu_vulkan {
    const char *path;
    fg_device *device;
    size_t limit;
    uint32_t force;
    bool tried;
    const char *standin; /* a device of standin_vulkan.h; NULL: the first of the machine's driver */
} cpu_vulkan;

enum { CPU_VULKANS = 31 };
static cpu_vulkan cpu_vulkans[CPU_VULKANS] = {
    {"vulkan", NULL, 0, 0, false, NULL},
    {"vulkan-split", NULL, 32768, 0, false, NULL},
    {"vulkan-kv", NULL, 8192, 0, false, NULL},
    {"vulkan-dot", NULL, 0, FG_VULKAN_DOT, false, NULL},
    {"vulkan-half", NULL, 0, FG_VULKAN_HALF, false, NULL},
    {"vulkan-matrix", NULL, 0, FG_VULKAN_MATRIX, false, NULL},
    {"vulkan-push", NULL, 0, FG_VULKAN_PUSH, false, NULL},
    {"vulkan-invariant", NULL, 0, 0, false, NULL},
    {"vulkan-dot-invariant", NULL, 0, FG_VULKAN_DOT, false, NULL},
    {"vulkan-half-invariant", NULL, 0, FG_VULKAN_HALF, false, NULL},
    {"vulkan-matrix-invariant", NULL, 0, FG_VULKAN_MATRIX, false, NULL},
    {"vulkan8", NULL, 0, 0, false, "of 8"},
    {"vulkan32", NULL, 0, 0, false, "of 32"},
    {"vulkan64", NULL, 0, 0, false, "of 64"},
    {"vulkan32-split", NULL, 32768, 0, false, "of 32"},
    {"vulkan64-kv", NULL, 8192, 0, false, "of 64"},
    {"vulkan64-push", NULL, 0, FG_VULKAN_PUSH, false, "of 64"},
    {"vulkan8-matrix", NULL, 0, FG_VULKAN_MATRIX, false, "of 8"},
    {"vulkan32-dot", NULL, 0, FG_VULKAN_DOT, false, "of 32"},
    {"vulkan32-half", NULL, 0, FG_VULKAN_HALF, false, "of 32"},
    {"vulkan32-matrix", NULL, 0, FG_VULKAN_MATRIX, false, "of 32"},
    {"vulkan64-dot", NULL, 0, FG_VULKAN_DOT, false, "of 64"},
    {"vulkan64-half", NULL, 0, FG_VULKAN_HALF, false, "of 64"},
    {"vulkan64-matrix", NULL, 0, FG_VULKAN_MATRIX, false, "of 64"},
    {"vulkan64-invariant", NULL, 0, 0, false, "of 64"},
    {"vulkan8-invariant", NULL, 0, 0, false, "of 8"},
    {"vulkan32-dot-invariant", NULL, 0, FG_VULKAN_DOT, false, "of 32"},
    {"vulkan64-half-invariant", NULL, 0, FG_VULKAN_HALF, false, "of 64"},
    {"vulkan32-matrix-invariant", NULL, 0, FG_VULKAN_MATRIX, false, "of 32"},
    {"vulkan32-all", NULL, 0, FG_VULKAN_DOT | FG_VULKAN_HALF | FG_VULKAN_MATRIX | FG_VULKAN_PUSH, false, "of 32"},
    {"vulkan64-all", NULL, 0, FG_VULKAN_DOT | FG_VULKAN_HALF | FG_VULKAN_MATRIX | FG_VULKAN_PUSH, false, "of 64"},
};

static const fg_vulkan_options *cpu_vulkan_options(int which) {
    static fg_vulkan_options all[CPU_VULKANS];
    fg_vulkan_options *options = &all[which];
    options->max_buffer_bytes = cpu_vulkans[which].limit;
    options->force = cpu_vulkans[which].force;
    options->off = ~cpu_vulkans[which].force;
    options->invariant = strstr(cpu_vulkans[which].path, "invariant") != NULL;
    options->submit_work = strstr(cpu_vulkans[which].path, "-kv") ? 1 : 0;
    if (cpu_vulkans[which].standin) options->get_instance_proc_addr = svk_get;
    return options;
}

static fg_device *cpu_vulkan_device(int which) {
    cpu_vulkan *v = &cpu_vulkans[which];
    fg_device_desc desc;
    memset(&desc, 0, sizeof(desc));
    desc.options = cpu_vulkan_options(which);
    desc.device = v->standin;
    if (!v->tried && fg_backend_vulkan()->open(&desc, &v->device) != FG_OK) v->device = NULL;
    v->tried = true;
    return v->device;
}

/* Which of them a path names. */
static int cpu_vulkan_number(const char *path) {
    int i = CPU_VULKANS - 1;
    while (i > 0 && strcmp(cpu_vulkans[i].path, path) != 0) i--;
    return i;
}

static void cpu_vulkan_close(void) {
    int i;
    for (i = 0; i < CPU_VULKANS; i++) {
        if (cpu_vulkans[i].device) fg_backend_vulkan()->close(cpu_vulkans[i].device);
        cpu_vulkans[i].device = NULL;
        cpu_vulkans[i].tried = false;
    }
}

/* A path is one of the CPU, or "vulkan" (the floor), "vulkan-split" and "vulkan-kv" (kernels that see little of a buffer at once; -kv: passes in pieces),
   "vulkan-dot", "vulkan-half", "vulkan-matrix", "vulkan-push" (with what a device may have beyond the floor, one of it at a time), the same
   with "-invariant" behind, or with 8, 32 or 64 behind "vulkan" for subgroups of so many over standin_vulkan.h, or "cuda", "hip", "hip64"
   (warps of 64 lanes), "cuda-invariant", "hip64-invariant": over the driver that build.sh names, which is that of standin_gpu.c. */
/* Until cpu_emulated_end, with the same argument, instructions may run that the CPU has not; true where it has them. False: they cannot be emulated. */
static bool cpu_emulated_begin(bool has) {
#if FG__HAS_AMX
    if (!has) emulated_begin();
    return true;
#else
    return has;
#endif
}

static void cpu_emulated_end(bool has) {
#if FG__HAS_AMX
    if (!has) emulated_end();
#else
    (void)has;
#endif
}

/* Products, of tiles and by AVX-VNNI, that were emulated so far. */
static long cpu_emulated_products(void) {
#if FG__HAS_AMX
    return amx_products + vnni_products;
#else
    return 0;
#endif
}

/* AMX as it is, or emulated; false: neither is possible. Between this and cpu_emulated_end its kernels may run. */
static bool cpu_amx_begin(void) {
    fg__cpu_features cpu = fg__cpu_detect();
    return cpu.avx512_vbmi2 && cpu_emulated_begin(cpu.amx) && (!cpu.amx || fg__cpu_ask_tiles());
}

/* The CPU as if it had AMX; see cpu_amx_begin. */
static fg_result cpu_amx_open(const fg_device_desc *desc, fg_device **out) {
    fg_device_desc as = *desc;
    fg__cpu_device *device;
    fg_result result;
    as.cpu_path = "avx512";
    if ((result = fg_backend_cpu()->open(&as, out)) != FG_OK) return result;
    device = (fg__cpu_device *)(void *)*out;
    device->features.amx = true;
    device->path = FG__CPU_AMX;
    device->ops = fg__cpu_ops_find(FG__CPU_AMX, &device->features);
    return FG_OK;
}

/* Asked for each number that is compared: the CPU, which takes long to say what it has on a virtual machine, is asked once. */
static const fg_backend *cpu_amx_backend(void) {
    static fg_backend backend;
    if (!backend.open) {
        backend = *fg_backend_cpu();
        if (!fg__cpu_detect().amx) backend.open = cpu_amx_open;
    }
    return &backend;
}

static const fg_backend *cpu_backend_of(const char *path) {
    return path && strncmp(path, "vulkan", 6) == 0 ? fg_backend_vulkan()
         : path && strncmp(path, "cuda", 4) == 0 ? fg_backend_cuda()
         : path && strncmp(path, "hip", 3) == 0 ? fg_backend_hip()
         : path && strcmp(path, "amx") == 0 ? cpu_amx_backend() : fg_backend_cpu();
}

static bool cpu_is_gpu(const char *path) { return strcmp(cpu_backend_of(path)->name, "cpu") != 0; }
static bool cpu_is_vulkan(const char *path) { return cpu_backend_of(path) == fg_backend_vulkan(); }

static bool cpu_is_standin(const char *path) { return cpu_is_gpu(path) && !cpu_is_vulkan(path); }

static bool cpu_has_gpu(const char *path) {
    if (cpu_is_vulkan(path)) return cpu_vulkan_device(cpu_vulkan_number(path)) != NULL;
    return gpu_standin_open() && cpu_backend_of(path)->probe() > 0;
}

static size_t gpu_scratch_bytes; /* see fg_gpu_options */

/* Options of a path, for as long as the tests run. */
static const void *cpu_gpu_options(const char *path) {
    static fg_gpu_options options;
    int which = cpu_is_vulkan(path) ? cpu_vulkan_number(path) : 0;
    if (which > 0) return cpu_vulkan_options(which);
    if (!cpu_is_gpu(path) || cpu_is_vulkan(path) || !gpu_standin_open()) return NULL;
    gpu_standin_width(strncmp(path, "hip64", 5) == 0 ? 64 : 32);
    options.image = gpu_standin_image;
    options.scratch_bytes = gpu_scratch_bytes;
    options.invariant = strstr(path, "invariant") != NULL;
    return &options;
}

static fg_result cpu_rig_open(cpu_rig *rig, const char *path, int n_threads) {
    fg_device_desc desc;
    fg_result result = FG_OK;
    int i;
    memset(&desc, 0, sizeof(desc));
    desc.cpu_path = path;
    desc.n_threads = n_threads;
    desc.options = cpu_gpu_options(path);
    rig->backend = cpu_backend_of(path);
    if (cpu_is_vulkan(path)) rig->device = cpu_vulkan_device(cpu_vulkan_number(path));
    else result = rig->backend->open(&desc, &rig->device);
    for (i = 0; i < rig->graph.n_weights && result == FG_OK; i++)
        result = rig->backend->pack(rig->device, &rig->tensors[i], rig->uses[i], &rig->weights[i], NULL);
    if (result == FG_OK) result = rig->backend->prepare(rig->device, &rig->graph, &rig->plan, NULL);
    CHECKF(result == FG_OK, "%s", fg_last_error());
    return result;
}

static void cpu_rig_end_device(cpu_rig *rig) {
    int i;
    if (rig->plan) rig->backend->release(rig->device, rig->plan);
    for (i = 0; i < rig->graph.n_weights; i++) {
        if (rig->weights[i]) rig->backend->unpack(rig->device, rig->weights[i]);
        rig->weights[i] = NULL;
    }
    if (rig->device) rig->backend->close(rig->device);
    rig->plan = NULL;
    rig->device = NULL;
}

/* The name of a path's device; NULL: any. */
static const char *cpu_gpu_device(const char *path) { return path && cpu_is_vulkan(path) ? cpu_vulkans[cpu_vulkan_number(path)].standin : NULL; }

/* As before opening; the Vulkan devices stay open for the next. */
static void cpu_rig_close(cpu_rig *rig) {
    int i;
    if (rig->device && rig->backend == fg_backend_vulkan()) {
        if (rig->plan) rig->backend->release(rig->device, rig->plan);
        for (i = 0; i < rig->graph.n_weights; i++) {
            rig->backend->unpack(rig->device, rig->weights[i]);
            rig->weights[i] = NULL;
        }
        rig->plan = NULL;
        rig->device = NULL;
    }
    cpu_rig_end_device(rig);
}

static void cpu_rig_free(cpu_rig *rig) {
    int i;
    cpu_rig_close(rig);
    for (i = 0; i < rig->graph.n_weights; i++) free(rig->data[i]);
    free(rig->tables[0]);
    free(rig->tables[1]);
    free(rig);
}

static fg_result cpu_rig_submit(cpu_rig *rig) {
    fg_result result = rig->backend->submit(rig->device, rig->plan, &rig->batch);
    if (result != FG_OK) return result;
    return rig->backend->wait(rig->device, rig->plan, &rig->output);
}

/* One pass of m one-token sequences; token i is `first + i`, all rows come back. */
static const float *cpu_rig_run(cpu_rig *rig, int first, int m) {
    int i;
    fg_result result;
    for (i = 0; i < m; i++) {
        rig->tokens[i] = first + i;
        rig->positions[i] = 0;
        rig->rows[i] = i;
        rig->kv_len[i % 64] = 1;
        rig->cu_q[i % 64] = i;
    }
    rig->batch.n_tokens = rig->batch.n_rows = m;
    rig->batch.n_seqs = m > 64 ? 1 : m;
    rig->cu_q[0] = 0;
    rig->cu_q[rig->batch.n_seqs] = m;
    if (m > 64) rig->kv_len[0] = m;
    rig->batch.tokens = rig->tokens;
    rig->batch.positions = rig->positions;
    rig->batch.rows = rig->rows;
    rig->batch.cu_q = rig->cu_q;
    rig->batch.kv_len = rig->kv_len;
    rig->batch.want_logits = true;
    result = cpu_rig_submit(rig);
    CHECKF(result == FG_OK, "%s", fg_last_error());
    return rig->output.logits;
}

static const char *cpu_only; /* the path that tests of all are for just now; NULL: those of cpu_targets */

/* The paths of this machine. */
static int cpu_paths(const char **paths) {
    fg__cpu_features features = fg__cpu_detect();
    int i, n = 0;
    if (cpu_only && !cpu_is_gpu(cpu_only)) {
        paths[0] = cpu_only;
        return 1;
    }
    for (i = 0; i < FG__CPU_PATHS; i++)
        if (fg__cpu_has_path(&features, i)) paths[n++] = fg__cpu_path_names[i];
    return n;
}

/* The paths of this machine, and of the GPUs that there are. */
static int cpu_targets(const char **paths) {
    static const char *const gpus[] = {"vulkan", "cuda", "hip64"};
    int n = cpu_paths(paths), i;
    if (cpu_only) {
        paths[0] = cpu_only;
        return 1;
    }
    for (i = 0; i < 3; i++)
        if (cpu_has_gpu(gpus[i])) paths[n++] = gpus[i];
    return n;
}
enum { CPU_TARGETS = FG__CPU_PATHS + 4 };

static const fg_type cpu_types[] = {
#define CPU_TYPE(name, id, elements, bytes) FG_TYPE_##name,
    FG_TYPES(CPU_TYPE)
#undef CPU_TYPE
};
#define CPU_TYPES ((int)(sizeof(cpu_types) / sizeof(cpu_types[0])))

/* ---- References. ---- */

static double cpu_act(int act, double x) {
    switch (act) {
    case FG_ACT_SILU: return x / (1.0 + exp(-x));
    case FG_ACT_GELU_TANH:
        return 0.5 * x * (1.0 + tanh(sqrt(2.0 / 3.14159265358979323846) * (x + 0.044715 * x * x * x)));
    case FG_ACT_GELU: return 0.5 * x * (1.0 + erf(x / sqrt(2.0)));
    case FG_ACT_RELU: return x > 0.0 ? x : 0.0;
    case FG_ACT_SIGMOID: return 1.0 / (1.0 + exp(-x));
    default: return x;
    }
}

static double cpu_act_mul(int act, double x, double y) {
    if (act != FG_ACT_SWIGLU_OAI) return cpu_act(act, x) * y;
    x = x < 7 ? x : 7;
    return x / (1 + exp(-1.702 * x)) * (1 + (y < -7 ? -7 : y > 7 ? 7 : y));
}

/* ---- Device, caps, errors. ---- */

static void test_cpu_device(void) {
    const fg_backend *b = fg_backend_cpu();
    fg_device_desc desc;
    fg_device *device = NULL;
    fg_device_caps caps;
    fg_roofs roofs;
    const char *paths[FG__CPU_PATHS];
    uint8_t bytes[16] = {1, 2, 3};
    void *memory;
    int i, n = cpu_paths(paths);
    CHECK(b->abi == FG_BACKEND_ABI && b->size == sizeof(fg_backend) && b->probe() == 1);
    memset(&desc, 0, sizeof(desc));
    desc.cpu_path = "mmx";
    CHECK(b->open(&desc, &device) == FG_ERROR_INVALID_ARGUMENT && strstr(fg_last_error(), "mmx"));
    for (i = 0; i < FG__CPU_PATHS; i++) {
        fg__cpu_features features = fg__cpu_detect();
        if (fg__cpu_has_path(&features, i)) continue;
        desc.cpu_path = fg__cpu_path_names[i];
        CHECK(b->open(&desc, &device) == FG_ERROR_UNSUPPORTED);
    }
    for (i = 0; i < n; i++) {
        desc.cpu_path = paths[i];
        desc.n_threads = 1 + i;
        CHECK(b->open(&desc, &device) == FG_OK);
        b->caps(device, &caps);
        CHECKF(strstr(caps.name, paths[i]) && strstr(caps.name, "thread"), "%s", caps.name);
        CHECK(caps.block_tokens == 32 && caps.token_budget == 256 && caps.n_threads >= 1);
        CHECK(caps.weight_types >> FG_TYPE_MXFP4 & 1 && caps.kv_types >> FG_TYPE_Q8_0 & 1 &&
              caps.ops >> FG_OP_GEMM & 1);
        CHECK(caps.ops >> FG_OP_MOE_GEMM & 1 && caps.ops >> FG_OP_STATE_SCAN & 1 && !(caps.ops >> FG_OP_ALLREDUCE & 1));
        memory = b->alloc(device, 16);
        CHECK(memory && b->write(device, memory, 4, bytes, 3) == FG_OK);
        CHECK(b->read(device, memory, 5, bytes, 1) == FG_OK && bytes[0] == 2);
        bytes[0] = 1;
        b->free(device, memory);
        memset(&roofs, 0, sizeof(roofs));
        CHECK(b->profile(device, &roofs) == FG_OK);
        CHECK(roofs.read_bytes_per_s > 1e6 && roofs.int8_ops_per_s > 1e6 && roofs.float_ops_per_s > 1e6);
        b->close(device);
    }
}

static void test_cpu_refuses(void) {
    uint64_t state = 1;
    cpu_rig *rig = cpu_rig_new(8);
    int x = cpu_slot(rig, 64, false), y = cpu_slot(rig, 64, false);
    fg_memory memory, again;
    fg_op *op = cpu_op(rig, FG_OP_EMBED, -1, x, 64);
    op->weight = cpu_weight(rig, FG_TYPE_F32, 64, 10, FG_OP_EMBED, &state);
    op = cpu_op(rig, FG_OP_NORM, x, y, 64);
    op->weight = cpu_weight(rig, FG_TYPE_F32, 64, 0, FG_OP_NORM, &state);
    op = cpu_op(rig, FG_OP_GEMM, y, x, 64);
    op->k = 64;
    op->weight = cpu_weight(rig, FG_TYPE_F32, 64, 64, FG_OP_GEMM, &state);
    cpu_rig_end(rig, x);
    if (cpu_rig_open(rig, NULL, 2) != FG_OK) return;
    CHECK(rig->backend->prepare(rig->device, &rig->graph, NULL, &memory) == FG_OK);
    CHECK(memory.kv == 0 && memory.activations > 8 * 64 * 4 * 3 && memory.total == memory.activations);
    rig->graph.weights = NULL; /* an estimate needs no packed weights */
    CHECK(rig->backend->prepare(rig->device, &rig->graph, NULL, &again) == FG_OK && again.total == memory.total);
    rig->graph.weights = rig->weights;
    CHECK(cpu_rig_run(rig, 0, 8) != NULL);
    rig->tokens[3] = 10;
    CHECK(cpu_rig_submit(rig) == FG_ERROR_INVALID_ARGUMENT);
    rig->tokens[3] = -1;
    CHECK(cpu_rig_submit(rig) == FG_ERROR_INVALID_ARGUMENT);
    rig->tokens[3] = 9;
    CHECK(cpu_rig_submit(rig) == FG_OK);
    rig->rows[2] = 8;
    CHECK(cpu_rig_submit(rig) == FG_ERROR_INVALID_ARGUMENT);
    rig->rows[2] = 2;
    rig->batch.n_tokens = 9;
    CHECK(cpu_rig_submit(rig) == FG_ERROR_INVALID_ARGUMENT);
    rig->batch.n_tokens = 8;
    rig->batch.n_rows = 0;
    CHECK(cpu_rig_submit(rig) == FG_OK);
    rig->backend->release(rig->device, rig->plan);
    rig->plan = NULL;
    op->n = 65;
    CHECK(rig->backend->prepare(rig->device, &rig->graph, &rig->plan, NULL) == FG_ERROR_INVALID_ARGUMENT);
    op->n = 64;
    op->weight = 7;
    CHECK(rig->backend->prepare(rig->device, &rig->graph, &rig->plan, NULL) == FG_ERROR_INVALID_ARGUMENT);
    op->weight = 1;
    CHECK(rig->backend->prepare(rig->device, &rig->graph, &rig->plan, NULL) == FG_ERROR_INVALID_ARGUMENT);
    op->weight = 2;
    op->type = FG_OP_ALLREDUCE;
    CHECK(rig->backend->prepare(rig->device, &rig->graph, &rig->plan, NULL) == FG_ERROR_UNSUPPORTED);
    CHECKF(strstr(fg_last_error(), "ALLREDUCE"), "%s", fg_last_error());
    cpu_rig_free(rig);
}

/* ---- Rows: embed, norm, act_mul, gather, sample. ---- */

static void test_cpu_embed(void) {
    const char *paths[CPU_TARGETS];
    int i, j, p, n_paths = cpu_targets(paths);
    for (p = 0; p < n_paths; p++)
        for (i = 0; i < CPU_TYPES; i++) {
            uint64_t state = 7 + (uint64_t)i;
            cpu_rig *rig = cpu_rig_new(16);
            int x = cpu_slot(rig, 600, false), bad = 0, row;
            fg_op *op = cpu_op(rig, FG_OP_EMBED, -1, x, 512);
            const float *out;
            float expected[512];
            op->weight = cpu_weight(rig, cpu_types[i], 512, 20, FG_OP_EMBED, &state);
            op->scale = 2.5f;
            op->dst_col = 10;
            cpu_rig_end(rig, x);
            if (cpu_rig_open(rig, paths[p], 1 + i % 3) == FG_OK) {
                out = cpu_rig_run(rig, 3, 16);
                for (row = 0; row < 16; row++) {
                    cpu_weight_row(rig, op->weight, 3 + row, expected);
                    for (j = 0; j < 512; j++) bad += out[row * 600 + 10 + j] != expected[j] * 2.5f;
                }
                CHECKF(bad == 0, "%s %s: %d differ", paths[p], fg_type_name(cpu_types[i]), bad);
            }
            cpu_rig_free(rig);
        }
}

/* kind 0: rms; 1: layer norm; 2: rms of a sum, the sum stays in src; 3: rms without weight */
static void cpu_check_norm(const char *path, int n, int kind) {
    uint64_t state = 11;
    cpu_rig *rig = cpu_rig_new(40);
    int x = cpu_slot(rig, n, false), y = cpu_slot(rig, n, false), z = cpu_slot(rig, 2 * n, false), row, i;
    int more = cpu_slot(rig, n, false);
    fg_op *embed = cpu_op(rig, FG_OP_EMBED, -1, x, n), *embed2 = cpu_op(rig, FG_OP_EMBED, -1, more, n), *op;
    float *a = (float *)malloc((size_t)n * 16), *b = a + n, *w = b + n, *bias = w + n;
    double worst = 0.0, sum_error = 0.0;
    const float *out;
    embed->weight = cpu_weight(rig, FG_TYPE_F32, n, 40, FG_OP_EMBED, &state);
    embed2->weight = cpu_weight(rig, FG_TYPE_F32, n, 40, FG_OP_EMBED, &state);
    op = cpu_op(rig, FG_OP_NORM, x, y, n);
    if (kind != 3) op->weight = cpu_weight(rig, FG_TYPE_F16, n, 0, FG_OP_NORM, &state);
    if (kind == 1) op->bias = cpu_weight(rig, FG_TYPE_F32, n, 0, FG_OP_NORM, &state);
    if (kind == 2) op->src2 = more;
    /* z = [x, y]: relu(x) * 1 cannot show x, so both go through a product with nothing: a gather of two slots */
    (void)z;
    cpu_rig_end(rig, kind == 2 ? x : y);
    if (cpu_rig_open(rig, path, 2) != FG_OK) return;
    out = cpu_rig_run(rig, 0, 40);
    if (kind == 2) { /* first the sum */
        for (row = 0; row < 40; row++) {
            cpu_weight_row(rig, embed->weight, row, a);
            cpu_weight_row(rig, embed2->weight, row, b);
            for (i = 0; i < n; i++) sum_error += fabs((double)out[row * n + i] - (double)(a[i] + b[i]));
        }
        CHECK(sum_error == 0.0);
        cpu_rig_close(rig);
        rig->ops[rig->graph.n_ops - 2].src = y;
        if (cpu_rig_open(rig, path, 2) != FG_OK) return;
        out = cpu_rig_run(rig, 0, 40);
    }
    if (op->weight >= 0) cpu_weight_row(rig, op->weight, 0, w);
    if (op->bias >= 0) cpu_weight_row(rig, op->bias, 0, bias);
    for (row = 0; row < 40; row++) {
        double mean = 0.0, square = 0.0, scale;
        cpu_weight_row(rig, embed->weight, row, a);
        cpu_weight_row(rig, embed2->weight, row, b);
        for (i = 0; i < n && kind == 2; i++) a[i] += b[i];
        for (i = 0; i < n && kind == 1; i++) mean += (double)a[i] / n;
        for (i = 0; i < n; i++) square += ((double)a[i] - mean) * ((double)a[i] - mean) / n;
        scale = 1.0 / sqrt(square + (double)op->eps);
        for (i = 0; i < n; i++) {
            double expected =
                ((double)a[i] - mean) * scale * (kind == 3 ? 1.0 : (double)w[i]) + (kind == 1 ? (double)bias[i] : 0.0);
            worst = test_worse(worst, fabs((double)out[row * n + i] - expected) / (1.0 + fabs(expected)));
        }
    }
    CHECKF(worst < 2e-6, "%s n %d kind %d: error %g", path, n, kind, worst);
    free(a);
    cpu_rig_free(rig);
}

static void test_cpu_norm(void) {
    static const int widths[] = {1, 7, 64, 100, 288, 2048, 4500};
    const char *paths[CPU_TARGETS];
    int i, kind, p, n_paths = cpu_targets(paths);
    for (p = 0; p < n_paths; p++)
        for (i = 0; i < 7; i++)
            for (kind = 0; kind < 4; kind++) cpu_check_norm(paths[p], widths[i], kind);
}

/* By elements, and, of FG_ACT_SIGMOID, with one column for all. */
static void test_cpu_act_mul(void) {
    const char *paths[CPU_TARGETS];
    int which, p, n_paths = cpu_targets(paths), row, i;
    for (p = 0; p < n_paths; p++)
        for (which = FG_ACT_NONE; which <= FG_ACT_SIGMOID + 1; which++) {
            int one = which > FG_ACT_SIGMOID, act = which - one;
            uint64_t state = 13;
            cpu_rig *rig = cpu_rig_new(33);
            int x = cpu_slot(rig, 300, false), y = cpu_slot(rig, 140, false);
            fg_op *embed = cpu_op(rig, FG_OP_EMBED, -1, x, 300), *op = cpu_op(rig, FG_OP_ACT_MUL, x, y, 133);
            float a[300], *table;
            double worst = 0.0;
            const float *out;
            embed->weight = cpu_weight(rig, FG_TYPE_F32, 300, 40, FG_OP_EMBED, &state);
            table = (float *)(void *)rig->data[embed->weight];
            for (i = 0; i < 300; i++) table[i] = 0.5f * (float)(i - 75); /* far into both tails */
            op->src2 = x;
            op->src_col = 5;
            op->src2_col = 160;
            op->act = act;
            op->k = one;
            cpu_rig_end(rig, y);
            if (cpu_rig_open(rig, paths[p], 3) == FG_OK) {
                out = cpu_rig_run(rig, 0, 33);
                for (row = 0; row < 33; row++) {
                    cpu_weight_row(rig, embed->weight, row, a);
                    for (i = 0; i < 133; i++) {
                        double x_i = (double)a[one ? 5 : 5 + i], expected = cpu_act_mul(act, x_i, (double)a[160 + i]);
                        worst = test_worse(worst, fabs((double)out[row * 140 + i] - expected) / (1.0 + fabs(x_i * (double)a[160 + i])));
                    }
                }
                CHECKF(worst < 2e-6, "%s act %d, one %d: error %g", paths[p], act, one, worst);
            }
            cpu_rig_free(rig);
        }
}

static void test_cpu_sample(void) {
    static const int widths[] = {1, 3, 100, 4096, 4097, 20001};
    const char *paths[CPU_TARGETS];
    int w, p, n_paths = cpu_targets(paths), row, i, n;
    for (p = 0; p < n_paths; p++)
        for (w = 0; w < 6; w++) {
            uint64_t state = 17;
            cpu_rig *rig = cpu_rig_new(12);
            fg_row_result before[12];
            int x;
            float *table;
            n = widths[w];
            x = cpu_slot(rig, n, false);
            cpu_op(rig, FG_OP_EMBED, -1, x, n)->weight = cpu_weight(rig, FG_TYPE_F32, n, 12, FG_OP_EMBED, &state);
            table = (float *)(void *)rig->data[0];
            for (i = 0; i < 12 * n; i++) table[i] *= 5.0f;
            for (i = 0; i < n; i++) table[i] = 3.0f;                  /* row 0: all equal */
            for (i = 0; i < n; i++) table[n + i] = (float)NAN;        /* row 1: nothing */
            for (i = 0; i < n; i += 2) table[2 * n + i] = (float)NAN; /* row 2: NaN between */
            table[3 * n] = -INFINITY;
            table[4 * n + n / 2] = INFINITY; /* row 4: infinite */
            for (i = 0; i < n; i++) table[5 * n + i] = -1e30f;
            table[6 * n + n - 1] = table[6 * n + n / 3] = 1000.0f; /* row 6: a tie, far above */
            cpu_rig_end(rig, x);
            if (cpu_rig_open(rig, paths[p], 2) != FG_OK) return;
            CHECK(cpu_rig_run(rig, 0, 12) != NULL);
            for (row = 0; row < 12; row++) {
                const fg_row_result *r = &rig->output.rows[row];
                const float *values = table + row * n;
                double best = -INFINITY, sum = 0.0, lse;
                int token = 0;
                for (i = 0; i < n; i++)
                    if ((double)values[i] > best) {
                        best = (double)values[i];
                        token = i;
                    }
                for (i = 0; i < n; i++)
                    if (values[i] == values[i]) sum += exp((double)values[i] - best);
                lse = best > -INFINITY && best < INFINITY ? best + log(sum) : best;
                CHECKF(r->token == token && (double)r->logit == best, "%s n %d row %d: %d %g, not %d %g", paths[p], n,
                       row, r->token, (double)r->logit, token, best);
                CHECKF((double)r->log_sum_exp == lse || fabs((double)r->log_sum_exp - lse) < 2e-6 * (1.0 + fabs(lse)),
                       "%s n %d row %d: %.9g, not %.9g", paths[p], n, row, (double)r->log_sum_exp, lse);
            }
            memcpy(before, rig->output.rows, sizeof(before));
            rig->batch.want_logits = false;
            rig->batch.no_sums = true;
            CHECK(cpu_rig_submit(rig) == FG_OK && rig->output.logits == NULL && rig->output.rows != NULL);
            for (row = 0; row < 12; row++) {
                const fg_row_result *r = &rig->output.rows[row];
                CHECK(r->token == before[row].token && r->logit == before[row].logit);
                CHECK(isnan(r->log_sum_exp) || cpu_is_gpu(paths[p]));
            }
            cpu_rig_free(rig);
        }
}

/* The exponential of each path, by way of softmax: scores 0 and -x give e^-x, and 0 below the floor. */
static void test_cpu_exp(void) {
    fg__cpu_features features = fg__cpu_detect();
    int path, i, j, lo = 0, hi = FG__SPAN;
    for (path = 0; path < FG__CPU_PATHS; path++) {
        fg__cpu_ops ops;
        double worst = 0.0;
        float s[FG__SCORE_ROW], x[FG__SPAN], max, sum;
        if (!fg__cpu_has_path(&features, path)) continue;
        ops = fg__cpu_ops_find(path, &features);
        for (i = 0; i < 2000; i++) {
            for (j = 0; j < FG__SPAN; j++)
                s[j] = x[j] = j ? FG__SCORE_FLOOR * (float)(i * FG__SPAN + j) / (2000.0f * FG__SPAN) : 0.0f;
            ops.softmax(s, 1, 0, FG__SPAN, &lo, &hi, 0.0f, NULL, &max, &sum);
            for (j = 0; j < FG__SPAN; j++) worst = test_worse(worst, fabs((double)s[j] / exp((double)x[j]) - 1.0));
        }
        CHECKF(worst < 1.3e-7, "%s: relative error %g", fg__cpu_path_names[path], worst);
        for (j = 0; j < FG__SPAN; j++) s[j] = j ? -1000.0f * (float)j : 50.0f;
        s[3] = -INFINITY;
        ops.softmax(s, 1, 0, FG__SPAN, &lo, &hi, 0.0f, NULL, &max, &sum);
        CHECK(s[0] == 1.0f && s[1] == 0.0f && s[3] == 0.0f && max == 50.0f && sum == 1.0f);
        for (j = 0; j < FG__SPAN; j++) s[j] = j ? FG__SCORE_FLOOR - 0.01f - 0.5f * (float)j : 0.0f;
        ops.softmax(s, 1, 0, FG__SPAN, &lo, &hi, 0.0f, NULL, &max, &sum);
        for (j = 1; j < FG__SPAN; j++) CHECK(s[j] == 0.0f); /* no denormal numbers */
    }
}

/* ---- Products. ---- */

/* Activations of quantised types are rounded to 8 bits on SIMD paths (as every engine of the field does), those of BF16
 * to BF16; of those of F16, 16 bits are left with AMX; CUDA and HIP round both sides to half floats where there are many rows. */
static double cpu_gemm_limit(const char *path, fg_type type, int m) {
    if (cpu_is_vulkan(path) && strstr(path, "-dot") && !fg__vk_is_float(type)) return 2e-3;
    if (cpu_is_vulkan(path) && (strstr(path, "-half") || strstr(path, "-matrix")) && m > 8 && type != FG_TYPE_F32) return 1e-3;
    if (cpu_is_gpu(path)) return cpu_is_vulkan(path) || m <= 8 ? 1e-6 : 2e-3;
    if (strcmp(path, "amx") == 0 && type == FG_TYPE_F16) return 1e-5;
    if (strcmp(path, "scalar") == 0 || type == FG_TYPE_F32 || type == FG_TYPE_F16) return 1e-6;
    return type == FG_TYPE_BF16 ? 4e-3 : 2e-3;
}

/* Largest error of out = act(x . W + bias) + residual, relative to the norms of x and the weight row. Three products of
   the same input run as one group: type, its neighbour in the list, and F32. */
static double cpu_gemm_error(const char *path, int n_threads, fg_type type, int k, int n, int m, int act, bool extras) {
    uint64_t state = 19 + (uint64_t)n;
    cpu_rig *rig = cpu_rig_new(m);
    int in = cpu_slot(rig, k + 5, false), res = cpu_slot(rig, n, false), out_slot = cpu_slot(rig, 2 * n + 9, false),
        row, i, j, part;
    fg_op *embed = cpu_op(rig, FG_OP_EMBED, -1, in, k + 5), *embed2 = cpu_op(rig, FG_OP_EMBED, -1, res, n), *op, *op2;
    float *x = (float *)malloc(sizeof(float) * (size_t)(2 * k + 2 * n + 5)), *w = x + k + 5, *bias = w + k,
          *more = bias + n;
    double worst = 0.0;
    const float *out;
    embed->weight = cpu_weight(rig, FG_TYPE_F32, k + 5, m, FG_OP_EMBED, &state);
    embed2->weight = cpu_weight(rig, FG_TYPE_F32, n, m, FG_OP_EMBED, &state);
    op = cpu_op(rig, FG_OP_GEMM, in, out_slot, n);
    op->weight = cpu_weight(rig, type, k, n, FG_OP_GEMM, &state);
    op->k = k;
    op->src_col = 5;
    op->dst_col = 9;
    op2 = cpu_op(rig, FG_OP_GEMM, in, out_slot, n);
    op2->weight = cpu_weight(rig, FG_TYPE_F32, k, n, FG_OP_GEMM, &state);
    op2->k = k;
    op2->src_col = 5;
    op2->dst_col = 9 + n;
    if (extras) {
        op->bias = cpu_weight(rig, FG_TYPE_F32, n, 0, FG_OP_GEMM == FG_OP_NORM ? FG_OP_GEMM : FG_OP_NORM, &state);
        op->act = act;
        op->src2 = res;
    }
    cpu_rig_end(rig, out_slot);
    if (cpu_rig_open(rig, path, n_threads) != FG_OK) return 1e9;
    out = cpu_rig_run(rig, 0, m);
    if (extras) cpu_weight_row(rig, op->bias, 0, bias);
    for (part = 0; part < 2; part++)
        for (j = 0; j < n; j++) {
            double norm_w = 1e-30;
            cpu_weight_row(rig, part ? op2->weight : op->weight, j, w);
            for (i = 0; i < k; i++) norm_w += (double)w[i] * (double)w[i];
            for (row = 0; row < m; row++) {
                double sum = 0.0, norm_x = 1e-30;
                memcpy(x, rig->data[embed->weight] + sizeof(float) * (size_t)(row * (k + 5)),
                       sizeof(float) * (size_t)(k + 5));
                memcpy(more, rig->data[embed2->weight] + sizeof(float) * (size_t)(row * n), sizeof(float) * (size_t)n);
                for (i = 0; i < k; i++) {
                    sum += (double)w[i] * (double)x[5 + i];
                    norm_x += (double)x[5 + i] * (double)x[5 + i];
                }
                if (extras && part == 0) sum = cpu_act(act, sum + (double)bias[j]) + (double)more[j];
                /* the part's own limit for the F32 one, the caller's for the other */
                sum = fabs((double)out[row * (2 * n + 9) + 9 + part * n + j] - sum) / (sqrt(norm_w * norm_x) + 1.0);
                if (part == 1) CHECKF(sum < cpu_gemm_limit(path, FG_TYPE_F32, m), "%s F32 beside %s: error %g", path, fg_type_name(type), sum);
                if (part == 0) worst = test_worse(worst, sum);
            }
        }
    free(x);
    cpu_rig_free(rig);
    return worst;
}

static void test_cpu_gemm(void) {
    const char *paths[CPU_TARGETS];
    int p, i, n_paths = cpu_targets(paths);
    for (p = 0; p < n_paths; p++)
        for (i = 0; i < CPU_TYPES; i++) {
            static const int shapes[][3] = {{256, 64, 1},  {256, 33, 7}, {512, 31, 2},
                                            {768, 96, 49}, {256, 1, 64}, {1024, 100, 12}};
            int s;
            for (s = cpu_is_standin(paths[p]) ? 4 + i % 2 : 0; s < 6; s++) {
                double error = cpu_gemm_error(paths[p], 1 + s % 3, cpu_types[i], shapes[s][0], shapes[s][1],
                                              shapes[s][2], FG_ACT_NONE, false);
                CHECKF(error < cpu_gemm_limit(paths[p], cpu_types[i], shapes[s][2]), "%s %s k %d n %d m %d: error %g", paths[p],
                       fg_type_name(cpu_types[i]), shapes[s][0], shapes[s][1], shapes[s][2], error);
            }
        }
}

static void test_cpu_gemm_extras(void) {
    static const fg_type types[] = {FG_TYPE_F32, FG_TYPE_F16, FG_TYPE_BF16, FG_TYPE_Q8_0, FG_TYPE_Q4_K};
    const char *paths[CPU_TARGETS];
    int p, i, act, n_paths = cpu_targets(paths);
    for (p = 0; p < n_paths; p++)
        for (i = 0; i < 5; i++)
            for (act = FG_ACT_NONE; act <= FG_ACT_RELU; act++) {
                double error = cpu_gemm_error(paths[p], 2, types[i], 256, 77, 50 + act, act, true);
                CHECKF(error < 2.0 * cpu_gemm_limit(paths[p], types[i], 50), "%s %s act %d: error %g", paths[p],
                       fg_type_name(types[i]), act, error);
            }
}

/* Widths that no block size divides: float types only. */
static void test_cpu_gemm_odd(void) {
    static const fg_type types[] = {FG_TYPE_F32, FG_TYPE_F16, FG_TYPE_BF16};
    static const int widths[] = {1, 3, 17, 31, 33, 65, 255};
    const char *paths[CPU_TARGETS];
    int p, i, w, n_paths = cpu_targets(paths);
    for (p = 0; p < n_paths; p++)
        for (i = 0; i < 3; i++)
            for (w = 0; w < 7; w++) {
                double error = cpu_gemm_error(paths[p], 2, types[i], widths[w], 40, 9, FG_ACT_NONE, false);
                CHECKF(error < cpu_gemm_limit(paths[p], types[i], 9), "%s %s k %d: error %g", paths[p],
                       fg_type_name(types[i]), widths[w], error);
            }
}

/* Two products and the ACT_MUL of their results run as one stage when nothing else reads the results: the same bits as
   apart. `apart`: a norm reads them too. */
static void cpu_gated_run(const char *path, fg_type type, bool apart, float *to) {
    enum { K = 256, N = 77, M = 100 };
    uint64_t state = 37;
    cpu_rig *rig = cpu_rig_new(M);
    int x = cpu_slot(rig, K, false), ff = cpu_slot(rig, 2 * N, false), y = cpu_slot(rig, N, false), i;
    int rest = cpu_slot(rig, 2 * N, false), before;
    fg_op *op = cpu_op(rig, FG_OP_EMBED, -1, x, K);
    op->weight = cpu_weight(rig, FG_TYPE_F32, K, M, FG_OP_EMBED, &state);
    for (i = 0; i < 2; i++) {
        op = cpu_op(rig, FG_OP_GEMM, x, ff, N);
        op->k = K;
        op->dst_col = i * N;
        op->weight = cpu_weight(rig, type, K, N, FG_OP_GEMM, &state);
    }
    op = cpu_op(rig, FG_OP_ACT_MUL, ff, y, N);
    op->src2 = ff;
    op->src2_col = N;
    op->act = FG_ACT_SILU;
    before = rig->graph.n_ops;
    if (apart) cpu_op(rig, FG_OP_NORM, ff, rest, 2 * N);
    cpu_rig_end(rig, y);
    if (cpu_rig_open(rig, path, 2) == FG_OK) {
        CHECK(((fg__cpu_plan *)(void *)rig->plan)->n_stages == (apart ? before + 2 : before));
        memcpy(to, cpu_rig_run(rig, 0, M), sizeof(float) * M * N);
    }
    cpu_rig_free(rig);
}

static void test_cpu_gated(void) {
    static const fg_type types[] = {FG_TYPE_F32, FG_TYPE_Q8_0, FG_TYPE_Q4_K};
    const char *paths[FG__CPU_PATHS];
    float *together = (float *)malloc(sizeof(float) * 7700), *apart = (float *)malloc(sizeof(float) * 7700);
    int p, i, n_paths = cpu_paths(paths);
    for (p = 0; p < n_paths; p++)
        for (i = 0; i < 3; i++) {
            cpu_gated_run(paths[p], types[i], false, together);
            cpu_gated_run(paths[p], types[i], true, apart);
            CHECKF(memcmp(together, apart, sizeof(float) * 7700) == 0, "%s %s", paths[p], fg_type_name(types[i]));
        }
    free(together);
    free(apart);
}

/* ---- Mixtures of experts. ---- */

typedef struct cpu_experts {
    int k, n, m, n_expert, n_used;
    bool same, norm; /* all tokens take the same experts; weights add up to 1 */
    bool bias;
} cpu_experts;

/* k x n of each of n_expert matrices. */
static int cpu_expert_weights(cpu_rig *rig, fg_type type, const cpu_experts *c, uint64_t *state) {
    int i = cpu_weight(rig, type, c->k, (int64_t)c->n * c->n_expert, FG_OP_MOE_GEMM, state);
    rig->tensors[i].n_dims = 3;
    rig->tensors[i].dims[1] = c->n;
    rig->tensors[i].dims[2] = c->n_expert;
    return i;
}

/* Router's logits out of a table, and who takes whom; returns the slot of that. */
static int cpu_expert_routes(cpu_rig *rig, const cpu_experts *c, uint64_t *state) {
    int router = cpu_slot(rig, c->n_expert + 2, false), routes = cpu_slot(rig, 2 * c->n_used + 1, false), table;
    fg_op *op = cpu_op(rig, FG_OP_EMBED, -1, router, c->n_expert);
    op->dst_col = 2;
    table = op->weight = cpu_weight(rig, FG_TYPE_F32, c->n_expert, c->m, FG_OP_EMBED, state);
    if (c->same) memset(rig->data[table], 0, rig->tensors[table].bytes);
    op = cpu_op(rig, FG_OP_MOE_ROUTE, router, routes, 0);
    op->src_col = 2;
    op->dst_col = 1;
    op->n_expert = c->n_expert;
    op->n_used = c->n_used;
    op->moe_norm = c->norm;
    op->scale = 1.5f;
    return routes;
}

/* The same in double precision: the experts of a row, and their weights. */
static void cpu_expert_choice(const cpu_rig *rig, const cpu_experts *c, int row, int *experts, double *weights) {
    const float *logits = (const float *)(const void *)rig->data[rig->ops[0].weight] + (size_t)row * (size_t)c->n_expert;
    double all = 0, sum = 0;
    int i, j, k;
    for (i = 0; i < c->n_expert; i++) all += exp((double)logits[i]);
    for (j = 0; j < c->n_used; j++) {
        int best = -1;
        for (i = 0; i < c->n_expert; i++) {
            for (k = 0; k < j && experts[k] != i; k++) {}
            if (k == j && (best < 0 || logits[i] > logits[best])) best = i;
        }
        experts[j] = best;
        sum += weights[j] = exp((double)logits[best]) / all;
    }
    for (j = 0; j < c->n_used; j++) weights[j] = 1.5 * weights[j] / (c->norm ? sum : 1);
}

static void cpu_check_routes(const char *path, const cpu_experts *c) {
    uint64_t state = 41;
    cpu_rig *rig = cpu_rig_new(c->m);
    int routes = cpu_expert_routes(rig, c, &state), experts[16], row, j, bad = 0;
    double weights[16], worst = 0;
    const float *out;
    cpu_rig_end(rig, routes);
    if (cpu_rig_open(rig, path, 2) == FG_OK) {
        out = cpu_rig_run(rig, 0, c->m);
        for (row = 0; row < c->m; row++) {
            cpu_expert_choice(rig, c, row, experts, weights);
            for (j = 0; j < c->n_used; j++) {
                const float *own = out + row * (2 * c->n_used + 1) + 1;
                bad += own[j] != (float)experts[j];
                worst = test_worse(worst, fabs((double)own[c->n_used + j] - weights[j]));
            }
        }
        CHECKF(bad == 0 && worst < 2e-6, "%s, %d of %d experts: %d differ, weights by %g", path, c->n_used, c->n_expert, bad, worst);
    }
    cpu_rig_free(rig);
}

/* A product of the slot `in` with the experts that `routes` names. */
static fg_op *cpu_expert_op(cpu_rig *rig, const cpu_experts *c, fg_type type, int in, int routes, int out, bool sum, uint64_t *state) {
    fg_op *op = cpu_op(rig, FG_OP_MOE_GEMM, in, out, c->n);
    op->weight = cpu_expert_weights(rig, type, c, state);
    op->k = c->k;
    op->src2 = routes;
    op->src2_col = 1;
    op->n_expert = c->n_expert;
    op->n_used = c->n_used;
    op->moe_sum = sum;
    return op;
}

/* As cpu_gemm_limit; CUDA and HIP multiply few pairs one by one, in floats. */
static double cpu_experts_limit(const char *path, fg_type type, const cpu_experts *c) {
    bool pairs = cpu_is_standin(path) && fg_gpu_experts_rows(c->m, c->n_used, c->n_expert, strstr(path, "invariant") != NULL) == 1;
    return cpu_gemm_limit(path, type, cpu_is_standin(path) ? (pairs ? 1 : 64) : c->m);
}

/* Largest error of MOE_GEMM, relative to the norms of what is multiplied. Without `sum` two products run as one group: of the type, and of F32. */
static double cpu_experts_error(const char *path, int n_threads, fg_type type, const cpu_experts *c, bool sum) {
    uint64_t state = 43;
    cpu_rig *rig = cpu_rig_new(c->m);
    int routes = cpu_expert_routes(rig, c, &state), width = c->k * (sum ? c->n_used : 1) + 3, columns = sum ? c->n : 2 * c->n_used * c->n;
    int in = cpu_slot(rig, width, false), out_slot = cpu_slot(rig, columns + 7, false), row, part, i, j, l, experts[16];
    fg_op *embed = cpu_op(rig, FG_OP_EMBED, -1, in, width), *before = cpu_op(rig, FG_OP_EMBED, -1, out_slot, columns + 7), *op[2];
    float *w = (float *)malloc(sizeof(float) * (size_t)c->k);
    double weights[16], worst = 0;
    const float *out, *x, *more;
    embed->weight = cpu_weight(rig, FG_TYPE_F32, width, c->m, FG_OP_EMBED, &state);
    before->weight = cpu_weight(rig, FG_TYPE_F32, columns + 7, c->m, FG_OP_EMBED, &state);
    for (part = 0; part < (sum ? 1 : 2); part++) {
        op[part] = cpu_expert_op(rig, c, part ? FG_TYPE_F32 : type, in, routes, out_slot, sum, &state);
        if (c->bias) op[part]->bias = cpu_weight(rig, FG_TYPE_F32, c->n, c->n_expert, FG_OP_NORM, &state);
        op[part]->src_col = 3;
        op[part]->dst_col = 7 + part * c->n_used * c->n;
    }
    cpu_rig_end(rig, out_slot);
    if (cpu_rig_open(rig, path, n_threads) != FG_OK) return 1e9;
    out = cpu_rig_run(rig, 0, c->m);
    for (row = 0; row < c->m; row++) {
        cpu_expert_choice(rig, c, row, experts, weights);
        x = (const float *)(const void *)rig->data[embed->weight] + (size_t)row * (size_t)width + 3;
        more = (const float *)(const void *)rig->data[before->weight] + (size_t)row * (size_t)(columns + 7);
        for (i = 0; i < 7; i++) CHECK(out[row * (columns + 7) + i] == more[i]);
        for (part = 0; part < (sum ? 1 : 2); part++)
            for (i = 0; i < c->n; i++) {
                double total = sum ? (double)more[7 + i] : 0, size = 1;
                for (j = 0; j < c->n_used; j++) {
                    const float *own = x + (sum ? j * c->k : 0);
                    double dot = 0, norm_w = 1e-30, norm_x = 1e-30, limit = cpu_experts_limit(path, FG_TYPE_F32, c);
                    const float *bias = c->bias ? (const float *)(const void *)rig->data[op[part]->bias] + experts[j] * c->n : NULL;
                    cpu_weight_row(rig, op[part]->weight, (int64_t)experts[j] * c->n + i, w);
                    for (l = 0; l < c->k; l++) {
                        dot += (double)w[l] * (double)own[l];
                        norm_w += (double)w[l] * (double)w[l];
                        norm_x += (double)own[l] * (double)own[l];
                    }
                    if (bias) dot += (double)bias[i];
                    if (sum) {
                        total += weights[j] * dot;
                        size += weights[j] * sqrt(norm_w * norm_x);
                        continue;
                    }
                    dot = fabs((double)out[row * (columns + 7) + op[part]->dst_col + j * c->n + i] - dot) / (sqrt(norm_w * norm_x) + 1);
                    if (part) CHECKF(dot < limit, "%s F32 beside %s: error %g", path, fg_type_name(type), dot);
                    else worst = test_worse(worst, dot);
                }
                if (sum) worst = test_worse(worst, fabs((double)out[row * (columns + 7) + 7 + i] - total) / size);
            }
    }
    free(w);
    cpu_rig_free(rig);
    return worst;
}

/* One token, more of them than a product's rows that end together, all with the same experts, of which a token may take all; experts whose rows
   are no whole panels. */
static void test_cpu_experts(void) {
    static const cpu_experts cases[] = {{256, 64, 1, 4, 1, false, true, true},   {256, 96, 37, 8, 3, false, false, false},
                                        {256, 32, 230, 3, 1, true, true, false}, {512, 32, 21, 5, 5, false, true, true},
                                        {256, 40, 6, 4, 2, false, true, true},   {256, 32, 50, 64, 2, false, true, false}};
    const char *paths[CPU_TARGETS];
    int p, i, s, sum, n_paths = cpu_targets(paths);
    for (p = 0; p < n_paths; p++) {
        if (cpu_is_vulkan(paths[p])) continue;
        for (s = 0; s < 6; s++) cpu_check_routes(paths[p], &cases[s]);
        for (i = 0; i < CPU_TYPES; i++)
            for (sum = 0; sum < 2; sum++)
                for (s = cpu_is_standin(paths[p]) ? i % 6 : i % 2; s < 6; s += cpu_is_standin(paths[p]) ? 6 : 2) {
                    double error = cpu_experts_error(paths[p], 1 + s % 3, cpu_types[i], &cases[s], sum);
                    CHECKF(error < 2 * cpu_experts_limit(paths[p], cpu_types[i], &cases[s]), "%s %s, case %d, sum %d: error %g", paths[p],
                           fg_type_name(cpu_types[i]), s, sum, error);
                }
    }
}

/* What an op of experts may not name, and a slot that names no experts. */
static void test_cpu_experts_refused(void) {
    static const cpu_experts c = {64, 32, 4, 4, 2, false, true, false};
    uint64_t state = 47;
    cpu_rig *rig = cpu_rig_new(c.m);
    int routes = cpu_expert_routes(rig, &c, &state), in = cpu_slot(rig, 64, false), out = cpu_slot(rig, 64, false), i;
    fg_op *op = cpu_op(rig, FG_OP_EMBED, -1, in, 64), kept;
    op->weight = cpu_weight(rig, FG_TYPE_F32, 64, c.m, FG_OP_EMBED, &state);
    op = cpu_op(rig, FG_OP_MOE_GEMM, in, out, 32);
    op->weight = cpu_expert_weights(rig, FG_TYPE_Q8_0, &c, &state);
    op->k = 64;
    op->src2 = routes;
    op->src2_col = 1;
    op->n_expert = 4;
    op->n_used = 2;
    cpu_rig_end(rig, out);
    if (cpu_rig_open(rig, NULL, 1) != FG_OK) return;
    CHECK(cpu_rig_run(rig, 0, 4) != NULL);
    kept = *op;
    for (i = 0; i < 11; i++) {
        rig->backend->release(rig->device, rig->plan);
        rig->plan = NULL;
        *op = kept;
        if (i == 0) op->n_used = 0;
        if (i == 1) op->n_used = 5;
        if (i == 2) op->n_expert = 5;
        if (i == 3) op->n_used = 3; /* more than dst has columns for */
        if (i == 4) op->k = 32;
        if (i == 5) op->src2 = -1;
        if (i == 6) op->src2_col = 2;
        if (i == 7) op->weight = 0;
        if (i == 8) op->dst = in;
        rig->slots[out].per_row = i == 9;
        rig->slots[routes].per_row = i == 10;
        CHECKF(rig->backend->prepare(rig->device, &rig->graph, &rig->plan, NULL) == FG_ERROR_INVALID_ARGUMENT, "%d", i);
    }
    rig->slots[routes].per_row = false;
    *op = kept;
    op->src2 = in; /* any numbers */
    op->src2_col = 0;
    ((float *)(void *)rig->data[rig->ops[2].weight])[1] = (float)NAN;
    ((float *)(void *)rig->data[rig->ops[2].weight])[64] = 1e30f;
    CHECK(rig->backend->prepare(rig->device, &rig->graph, &rig->plan, NULL) == FG_OK);
    CHECK(cpu_rig_run(rig, 0, 4) != NULL);
    cpu_rig_free(rig);
}

/* ---- Attention. ---- */

#define CPU_SEQS 6

typedef struct cpu_attn {
    fg_type kv_type;
    int n_head, n_kv_head, head_dim, n_rot, neox, window, block_tokens;
    bool norms;
    float softcap, rope_scale;
    int lengths[CPU_SEQS]; /* 0 ends */
} cpu_attn;

static bool cpu_sinks; /* heads have such */

static int cpu_attn_total(const cpu_attn *c) {
    int i, total = 0;
    for (i = 0; i < CPU_SEQS; i++) total += c->lengths[i];
    return total;
}

/* Token of sequence s at position p: an own row of the table of q, k, v. */
static int cpu_attn_token(const cpu_attn *c, int s, int p) {
    int i, base = 0;
    for (i = 0; i < s; i++) base += c->lengths[i];
    return base + p;
}

/* The graph: embed -> rope_kv -> attention; two layers' room in the cache, of which the second is used. */
static cpu_rig *cpu_attn_rig(const cpu_attn *c, int max_tokens) {
    uint64_t state = 23;
    cpu_rig *rig = cpu_rig_new(max_tokens);
    fg_group *group = &rig->graph.groups[0];
    int q = c->n_head * c->head_dim, kv = c->n_kv_head * c->head_dim, i, n_blocks = 0, longest = 0;
    int x = cpu_slot(rig, q + 2 * kv, false), y = cpu_slot(rig, q, false);
    fg_op *op = cpu_op(rig, FG_OP_EMBED, -1, x, q + 2 * kv);
    float *table;
    op->weight = cpu_weight(rig, FG_TYPE_F32, q + 2 * kv, cpu_attn_total(c), FG_OP_EMBED, &state);
    op = cpu_op(rig, FG_OP_ROPE_KV, x, -1, 0);
    op->src2_col = q;
    op->dst_col = q + kv;
    op->n_rot = c->n_rot;
    op->rope_neox = c->neox;
    op->scale = c->rope_scale;
    op->group_layer = 1;
    if (c->n_rot) {
        op->bias = cpu_weight(rig, FG_TYPE_F32, c->n_rot / 2, 0, FG_OP_ROPE_KV, &state);
        table = (float *)(void *)rig->data[op->bias];
        for (i = 0; i < c->n_rot / 2; i++) table[i] = (float)pow(10000.0, -2.0 * i / c->n_rot);
    }
    if (c->norms) {
        op->weight = cpu_weight(rig, FG_TYPE_F32, c->head_dim, 0, FG_OP_ROPE_KV, &state);
        op->weight2 = cpu_weight(rig, FG_TYPE_F32, c->head_dim, 0, FG_OP_ROPE_KV, &state);
    }
    rig->ops[2] = rig->ops[1];
    rig->graph.n_ops++;
    op = &rig->ops[2];
    op->type = FG_OP_ATTENTION;
    op->dst = y;
    op->src2_col = op->dst_col = 0;
    op->scale = (float)(1.5 / sqrt((double)c->head_dim));
    op->softcap = c->softcap;
    op->weight = op->weight2 = op->bias = -1;
    if (cpu_sinks) {
        op->weight = cpu_weight(rig, FG_TYPE_F32, c->n_head, 0, FG_OP_NORM, &state);
        table = (float *)(void *)rig->data[op->weight];
        for (i = 0; i < c->n_head; i++) table[i] *= 3.0f; /* of some the most of all, of others nothing */
    }
    for (i = 1; i < 3; i++) {
        rig->ops[i].n_head = c->n_head;
        rig->ops[i].n_kv_head = c->n_kv_head;
        rig->ops[i].head_dim = c->head_dim;
    }
    for (i = 0; i < CPU_SEQS; i++) {
        longest = FG__MAX(longest, c->lengths[i]);
        n_blocks += (c->lengths[i] + c->block_tokens - 1) / c->block_tokens;
    }
    group->kind = c->window ? FG_GROUP_WINDOW : FG_GROUP_FULL;
    group->n_layers = 2;
    group->n_kv_head = c->n_kv_head;
    group->head_dim = c->head_dim;
    group->window = c->window;
    group->block_tokens = c->block_tokens;
    group->n_blocks = n_blocks + 3;
    group->kv_type = c->kv_type;
    rig->graph.n_groups = 1;
    rig->graph.max_blocks_per_seq = (longest + c->block_tokens - 1) / c->block_tokens + 1;
    rig->tables[0] = (int32_t *)malloc(sizeof(int32_t) * (size_t)(64 * rig->graph.max_blocks_per_seq));
    cpu_rig_end(rig, y);
    return rig;
}

/* Block `index` of sequence s: all blocks of the pool in a shuffled order that is the same every time. */
static int cpu_attn_block(const cpu_attn *c, const cpu_rig *rig, int s, int index) {
    int i, n = rig->graph.groups[0].n_blocks, number = index, step = 7;
    for (i = 0; i < s; i++) number += (c->lengths[i] + c->block_tokens - 1) / c->block_tokens;
    while (n % step == 0) step += 2;
    return (int)((int64_t)(number + 2) * step % n);
}

/* Adds tokens [from, to) of sequence s to the batch. */
static void cpu_attn_add(const cpu_attn *c, cpu_rig *rig, int s, int from, int to) {
    fg_batch *b = &rig->batch;
    int p, i, row = b->n_seqs, first = FG__MAX(0, c->window ? from - c->window + 1 : 0) / c->block_tokens;
    for (p = from; p < to; p++) {
        rig->tokens[b->n_tokens] = cpu_attn_token(c, s, p);
        rig->positions[b->n_tokens] = p;
        rig->rows[b->n_rows++] = b->n_tokens;
        rig->slots_of[0][b->n_tokens++] =
            cpu_attn_block(c, rig, s, p / c->block_tokens) * c->block_tokens + p % c->block_tokens;
    }
    for (i = 0; i < rig->graph.max_blocks_per_seq; i++) {
        bool live = i >= first && i <= (to - 1) / c->block_tokens;
        rig->tables[0][row * rig->graph.max_blocks_per_seq + i] = live ? cpu_attn_block(c, rig, s, i) : -1;
    }
    rig->kv_len[row] = to;
    rig->cu_q[0] = 0;
    rig->cu_q[++b->n_seqs] = b->n_tokens;
}

static void cpu_batch_start(cpu_rig *rig) {
    fg_batch *b = &rig->batch;
    b->n_tokens = b->n_seqs = b->n_rows = 0;
    b->tokens = rig->tokens;
    b->positions = rig->positions;
    b->cu_q = rig->cu_q;
    b->kv_len = rig->kv_len;
    b->tables[0] = rig->tables[0];
    b->slots[0] = rig->slots_of[0];
    b->rows = rig->rows;
    b->want_logits = true;
}

/* Runs the batch and puts each row where its token belongs in `all` (rows of `width`, by token). */
static void cpu_attn_take(cpu_rig *rig, float *all) {
    int i, width = rig->graph.n_vocab;
    fg_result result = cpu_rig_submit(rig);
    CHECKF(result == FG_OK, "%s", fg_last_error());
    for (i = 0; i < rig->batch.n_rows && result == FG_OK; i++)
        memcpy(all + (size_t)rig->tokens[rig->rows[i]] * (size_t)width, rig->output.logits + (size_t)i * (size_t)width,
               sizeof(float) * (size_t)width);
}

/* Processes every sequence wholly. mode 0: one sequence after the other, in chunks of `chunk`; 1: all sequences beside
   each other, a chunk of each per pass; 2: random chunks of random sequences. */
static void cpu_attn_all(const cpu_attn *c, cpu_rig *rig, int mode, int chunk, float *all) {
    int done[CPU_SEQS] = {0}, s, left = cpu_attn_total(c), first = 0;
    uint64_t state = 29;
    while (left > 0) {
        cpu_batch_start(rig);
        for (s = 0; s < CPU_SEQS; s++) {
            int n = mode == 2 ? 1 + (int)(test_random(&state) % (uint64_t)chunk) : chunk;
            n = FG__MIN(n, c->lengths[s] - done[s]);
            if (mode == 2 && test_random(&state) % 3 == 0) continue;
            n = FG__MIN(n, rig->graph.max_tokens - rig->batch.n_tokens);
            if (n <= 0 || (mode == 0 && s > first)) continue;
            cpu_attn_add(c, rig, s, done[s], done[s] + n);
            done[s] += n;
            left -= n;
        }
        while (first < CPU_SEQS - 1 && done[first] == c->lengths[first]) first++;
        if (rig->batch.n_tokens) cpu_attn_take(rig, all);
    }
}

/* What the cache keeps of one head's values. */
static void cpu_kv_round(fg_type type, double *x, int n) {
    int i, b;
    for (i = 0; i < n && type == FG_TYPE_F16; i++) x[i] = (double)fg__f16_to_f32(fg__f32_to_f16((float)x[i]));
    for (i = 0; i < n && type == FG_TYPE_BF16; i++) x[i] = (double)fg__bf16_to_f32(fg__f32_to_bf16((float)x[i]));
    for (b = 0; b < n && type == FG_TYPE_Q8_0; b += 32) {
        double largest = 0.0, d;
        for (i = b; i < b + 32 && i < n; i++) largest = fmax(largest, fabs(x[i]));
        d = (double)fg__f16_to_f32(fg__f32_to_f16((float)(largest / 127.0)));
        for (i = b; i < b + 32 && i < n; i++) x[i] = d > 0.0 ? fmax(-127.0, fmin(127.0, nearbyint(x[i] / d))) * d : 0.0;
    }
}

/* Norm and rope of one head, as the model's own code defines them. */
static void cpu_rope_reference(const cpu_attn *c, const cpu_rig *rig, int norm_weight, int position, const float *from,
                               double *x) {
    float w[1024], frequency[512];
    double square = 0.0;
    int i, n = c->head_dim, half = c->n_rot / 2;
    for (i = 0; i < n; i++) square += (double)from[i] * (double)from[i] / n;
    for (i = 0; i < n; i++) x[i] = (double)from[i];
    if (norm_weight >= 0) {
        cpu_weight_row(rig, norm_weight, 0, w);
        for (i = 0; i < n; i++) x[i] *= (double)w[i] / sqrt(square + 1e-5);
    }
    if (half) cpu_weight_row(rig, rig->ops[1].bias, 0, frequency);
    for (i = 0; i < half; i++) {
        float theta = (float)position * frequency[i];
        double co = cos((double)theta) * (double)c->rope_scale, si = sin((double)theta) * (double)c->rope_scale, a, b;
        int first = c->neox ? i : 2 * i, second = c->neox ? i + half : 2 * i + 1;
        a = x[first];
        b = x[second];
        x[first] = a * co - b * si;
        x[second] = b * co + a * si;
    }
}

/* Attention of every token of sequence s, in double precision; the largest error of `all` against it, and its root mean
 * square. */
static double cpu_attn_error(const cpu_attn *c, const cpu_rig *rig, int s, const float *all, double *rms) {
    int n = c->lengths[s], hd = c->head_dim, heads = c->n_head / c->n_kv_head, h, p, t, i;
    int q_width = c->n_head * hd, kv_width = c->n_kv_head * hd, width = q_width + 2 * kv_width;
    double *k = (double *)malloc(sizeof(double) * (size_t)(n * hd)),
           *v = (double *)malloc(sizeof(double) * (size_t)(n * hd));
    double *score = (double *)malloc(sizeof(double) * (size_t)n), worst = 0.0, squares = 0.0, q[1024], out[1024];
    const float *table = (const float *)(const void *)rig->data[0];
    for (h = 0; h < c->n_head; h++) {
        for (p = 0; p < n && h % heads == 0; p++) {
            const float *row = table + (size_t)cpu_attn_token(c, s, p) * (size_t)width + q_width + h / heads * hd;
            cpu_rope_reference(c, rig, rig->ops[1].weight2, p, row, k + p * hd);
            for (i = 0; i < hd; i++) v[p * hd + i] = (double)row[kv_width + i];
            cpu_kv_round(c->kv_type, k + p * hd, hd);
            cpu_kv_round(c->kv_type, v + p * hd, hd);
        }
        for (p = 0; p < n; p++) {
            const float *row = table + (size_t)cpu_attn_token(c, s, p) * (size_t)width + h * hd;
            int first = c->window ? FG__MAX(0, p - c->window + 1) : 0;
            double largest = -INFINITY, sum = 0.0;
            cpu_rope_reference(c, rig, rig->ops[1].weight, p, row, q);
            for (t = first; t <= p; t++) {
                score[t] = 0.0;
                for (i = 0; i < hd; i++) score[t] += q[i] * k[t * hd + i] * (double)rig->ops[2].scale;
                if (c->softcap > 0.0f) score[t] = (double)c->softcap * tanh(score[t] / (double)c->softcap);
                largest = fmax(largest, score[t]);
            }
            memset(out, 0, sizeof(out));
            if (rig->ops[2].weight >= 0) sum = exp((double)((const float *)(const void *)rig->data[rig->ops[2].weight])[h] - largest);
            for (t = first; t <= p; t++) {
                double e = exp(score[t] - largest);
                sum += e;
                for (i = 0; i < hd; i++) out[i] += e * v[t * hd + i];
            }
            for (i = 0; i < hd; i++) {
                double is = (double)all[(size_t)cpu_attn_token(c, s, p) * (size_t)q_width + (size_t)(h * hd + i)];
                double error = fabs(is - out[i] / sum);
                squares += error * error;
                worst = test_worse(worst, error);
            }
        }
    }
    free(k);
    free(v);
    free(score);
    *rms = sqrt(squares / ((double)n * q_width));
    return worst;
}

static const cpu_attn cpu_attns[] = {
    /* type, heads, kv, dim, rot, neox, window, block, norms, cap, scale, lengths */
    {FG_TYPE_F32, 4, 4, 64, 64, 1, 0, 32, false, 0.0f, 1.0f, {70, 1, 33, 5, 0, 0}},
    {FG_TYPE_F32, 8, 2, 32, 32, 0, 0, 32, false, 0.0f, 1.0f, {300, 32, 64, 0, 0, 0}},
    {FG_TYPE_F16, 8, 1, 128, 128, 1, 0, 32, true, 0.0f, 1.0f, {90, 40, 0, 0, 0, 0}},
    {FG_TYPE_BF16, 14, 2, 64, 64, 1, 0, 64, false, 0.0f, 1.1f, {300, 17, 100, 0, 0, 0}},
    {FG_TYPE_Q8_0, 4, 2, 64, 64, 1, 0, 32, false, 0.0f, 1.0f, {270, 50, 2, 3, 4, 5}},
    {FG_TYPE_F32, 4, 2, 80, 32, 0, 20, 16, true, 30.0f, 1.0f, {150, 19, 21, 0, 0, 0}},
    {FG_TYPE_F16, 3, 3, 48, 48, 1, 300, 128, false, 0.0f, 1.0f, {330, 10, 0, 0, 0, 0}},
    {FG_TYPE_Q8_0, 6, 2, 96, 64, 0, 64, 8, false, 20.0f, 1.0f, {200, 65, 64, 63, 0, 0}},
    {FG_TYPE_BF16, 2, 1, 20, 0, 0, 0, 4, true, 0.0f, 1.0f, {37, 4, 8, 0, 0, 0}},
    {FG_TYPE_Q8_0, 2, 2, 20, 20, 1, 7, 1, false, 0.0f, 1.0f, {40, 9, 0, 0, 0, 0}},
    {FG_TYPE_F16, 72, 1, 16, 16, 1, 0, 32, false, 0.0f, 1.0f, {45, 3, 0, 0, 0, 0}},
    {FG_TYPE_F16, 4, 1, 256, 256, 1, 24, 16, true, 50.0f, 1.0f, {40, 18, 0, 0, 0, 0}},
    {FG_TYPE_Q8_0, 2, 1, 256, 256, 1, 0, 32, true, 0.0f, 1.0f, {40, 5, 0, 0, 0, 0}},
    {FG_TYPE_F16, 2, 2, 32, 32, 1, 20, 32, false, 0.0f, 1.0f, {310, 30, 0, 0, 0, 0}}, /* rows that see nothing of the first span */
    {FG_TYPE_F16, 4, 1, 96, 96, 1, 20, 32, false, 0.0f, 1.0f, {310, 30, 0, 0, 0, 0}}, /* and by tiles, with an odd number of strips */
    {FG_TYPE_F16, 72, 1, 32, 32, 1, 0, 32, false, 0.0f, 1.0f, {45, 3, 0, 0, 0, 0}}, /* more rows than a block by tiles has */
    {FG_TYPE_Q8_0, 16, 2, 96, 64, 0, 64, 8, false, 20.0f, 1.0f, {200, 65, 0, 0, 0, 0}}, /* last: see test_cpu_amx */
    {FG_TYPE_F16, 8, 1, 24, 24, 1, 0, 32, false, 0.0f, 1.0f, {70, 33, 0, 0, 0, 0}}, /* number CPU_ATTNS, for the CPU's paths: eight rows left, an odd register of values */
};
#define CPU_ATTNS ((int)(sizeof(cpu_attns) / sizeof(cpu_attns[0])) - 1)

static void cpu_check_attention(const char *path, int i) {
    const cpu_attn *c = &cpu_attns[i];
    cpu_rig *rig = cpu_attn_rig(c, 256);
    float *all = (float *)calloc((size_t)(cpu_attn_total(c) * c->n_head * c->head_dim), sizeof(float));
    /* F32 is limited by float sums; the others by cached values that fall on the other side of a rounding border */
    double limit = c->kv_type == FG_TYPE_F32    ? 2e-5
                   : c->kv_type == FG_TYPE_F16  ? 1e-3
                   : c->kv_type == FG_TYPE_BF16 ? 8e-3
                                                : 2e-2, most_rms = 0.02 * limit + 1e-6;
    int s;
    if (strcmp(path, "cuda") == 0 || strncmp(path, "hip", 3) == 0) { /* prompts by products of halves, on Hopper of bfloats */
        if (c->kv_type == FG_TYPE_F16) limit = 3e-3, most_rms = 2e-4;
        if (c->kv_type == FG_TYPE_BF16) limit = 2e-2, most_rms = 2e-3;
    }
    if (cpu_rig_open(rig, path, 2) == FG_OK) {
        cpu_attn_all(c, rig, 1, 50, all);
        for (s = 0; s < CPU_SEQS && c->lengths[s]; s++) {
            double rms, error = cpu_attn_error(c, rig, s, all, &rms);
            CHECKF(error < limit && rms < most_rms, "%s case %d (%s) sequence %d: error %g, rms %g", path, i,
                   fg_type_name(c->kv_type), s, error, rms);
        }
    }
    free(all);
    cpu_rig_free(rig);
}

/* A value past what the cache holds, or none at all, and in `held` what is to be kept of it. */
static float cpu_kv_extreme(fg_type type, int i, float *held) {
    const float values[] = {INFINITY, -INFINITY, 3.4e38f, -3.4e38f, 1e6f, 65519.0f};
    float x = i < 6 ? values[i] : NAN, most = type == FG_TYPE_F16 ? 65504.0f : type == FG_TYPE_BF16 ? fg__bf16_to_f32(0x7F7F) : FLT_MAX;
    *held = x > most ? most : x < -most ? -most : x == x ? x : 0;
    return x;
}

/* A token whose values the cache does not hold, amid others that a tile of attention has with it: those before it have the same bits as
   beside any other token, those after it as if it had been what is kept of it. */
static void cpu_check_kv_bound(const char *path, fg_type type, int heads) {
    enum { TOKEN = 18, TOKENS = 40, HEAD = 32, MOST = 8 };
    cpu_attn c = {FG_TYPE_F32, 1, 1, HEAD, 0, 0, 0, 16, false, 0.0f, 1.0f, {TOKENS, 0, 0, 0, 0, 0}};
    float rows[3][TOKENS * MOST * HEAD];
    int i, run, bad = 0, width = heads * HEAD;
    c.kv_type = type;
    c.n_head = heads;
    for (run = 0; run < 3; run++) { /* as it was made; with what is kept; with what is not */
        cpu_rig *rig = cpu_attn_rig(&c, TOKENS);
        float *k = (float *)(void *)rig->data[0] + TOKEN * (width + 2 * HEAD) + width, *v = k + HEAD, held;
        for (i = 0; i < 7 && run; i++) {
            float x = cpu_kv_extreme(type, i, &held);
            v[i] = run == 1 ? held : x;
            k[i] = i < 6 ? k[i] : run == 1 ? 0.0f : x;
        }
        memset(rows[run], 0, sizeof(rows[run]));
        if (cpu_rig_open(rig, path, 1) == FG_OK) cpu_attn_all(&c, rig, 0, TOKENS, rows[run]);
        cpu_rig_free(rig);
    }
    CHECKF(memcmp(rows[0], rows[2], (size_t)(TOKEN * width) * sizeof(float)) == 0, "%s %s: tokens before one with too large values", path, fg_type_name(type));
    CHECKF(memcmp(rows[1], rows[2], sizeof(rows[1])) == 0, "%s %s: tokens beside one with too large values", path, fg_type_name(type));
    for (i = 0; i < TOKENS * width; i++) bad += !(fabsf(rows[2][i]) <= FLT_MAX);
    CHECKF(bad == 0, "%s %s: %d are no numbers", path, fg_type_name(type), bad);
}

static void test_cpu_kv_bound(void) {
    static const fg_type types[] = {FG_TYPE_F32, FG_TYPE_F16, FG_TYPE_BF16, FG_TYPE_Q8_0};
    const char *paths[CPU_TARGETS];
    int i, p, n_paths = cpu_targets(paths);
    for (i = 0; i < 4; i++)
        for (p = 0; p < n_paths; p++) {
            cpu_check_kv_bound(paths[p], types[i], 1);
            cpu_check_kv_bound(paths[p], types[i], 8); /* by tiles */
        }
}

static void test_cpu_attention(void) {
    const char *paths[CPU_TARGETS];
    int i, p, n_paths = cpu_targets(paths);
    for (i = 0; i < CPU_ATTNS; i++)
        for (p = 0; p < n_paths; p++)
            if (!cpu_is_standin(paths[p]) || i % 4 == p % 4 || cpu_attns[i].head_dim > 128) /* executed slowly, and tested by test_gpu_kernels.c */
                cpu_check_attention(paths[p], i);
    for (p = 0; p < n_paths; p++)
        if (!cpu_is_gpu(paths[p])) cpu_check_attention(paths[p], CPU_ATTNS);
}

/* The same sequences alone, batched, in any chunks, on 1 to 4 threads: the same bits. */
static void test_cpu_attention_invariance(void) {
    static const struct {
        int threads, mode, chunk;
    } runs[] = {{1, 0, 256}, {1, 0, 1},  {3, 1, 7},   {2, 2, 40}, {4, 1, 1},
                {4, 0, 256}, {2, 0, 32}, {3, 2, 100}, {4, 0, 1}};
    const char *paths[FG__CPU_PATHS];
    int i, j, p, n_paths = cpu_paths(paths);
    for (i = 0; i < CPU_ATTNS; i++)
        for (p = 0; p < n_paths; p++) {
            const cpu_attn *c = &cpu_attns[i];
            size_t bytes = sizeof(float) * (size_t)(cpu_attn_total(c) * c->n_head * c->head_dim);
            float *first = (float *)calloc(1, bytes), *other = (float *)calloc(1, bytes);
            cpu_rig *rig = cpu_attn_rig(c, 256);
            for (j = 0; j < (p ? (int)(sizeof(runs) / sizeof(runs[0])) : 4); j++) { /* the scalar path is slow */
                if (cpu_rig_open(rig, paths[p], runs[j].threads) != FG_OK) break;
                memset(other, 0, bytes);
                cpu_attn_all(c, rig, runs[j].mode, runs[j].chunk, j ? other : first);
                CHECKF(j == 0 || memcmp(first, other, bytes) == 0, "%s case %d run %d differs", paths[p], i, j);
                cpu_rig_close(rig);
            }
            free(first);
            free(other);
            cpu_rig_free(rig);
        }
}

/* A long context decoded on many threads is split over positions: the same bits as in one piece; and the block size
   does not matter. */
static void test_cpu_attention_split(void) {
    cpu_attn c = {FG_TYPE_F16, 4, 1, 64, 64, 1, 0, 32, false, 0.0f, 1.0f, {1300, 40, 0, 0, 0, 0}};
    static const struct {
        int threads, block;
    } runs[] = {{1, 32}, {4, 32}, {3, 64}, {2, 16}, {4, 512}};
    size_t bytes = sizeof(float) * (size_t)(cpu_attn_total(&c) * c.n_head * c.head_dim);
    float *first = (float *)calloc(1, bytes), *other = (float *)calloc(1, bytes);
    const char *paths[FG__CPU_PATHS];
    int j, p, t, n_paths = cpu_paths(paths);
    for (p = 0; p < n_paths; p++)
        for (j = 0; j < 5; j++) {
            cpu_rig *rig;
            c.block_tokens = runs[j].block;
            rig = cpu_attn_rig(&c, 700);
            if (cpu_rig_open(rig, paths[p], runs[j].threads) == FG_OK) {
                memset(other, 0, bytes);
                for (t = 0; t < 1290; t += 645) {
                    cpu_batch_start(rig);
                    cpu_attn_add(&c, rig, 0, t, t + 645);
                    cpu_attn_take(rig, other);
                }
                for (t = 1290; t < 1300; t += 2) { /* decodes, then a short chunk beside another sequence */
                    cpu_batch_start(rig);
                    cpu_attn_add(&c, rig, 0, t, t + 2 - t % 4 / 2);
                    if (t % 4 == 0) cpu_attn_add(&c, rig, 1, 0, 20);
                    cpu_attn_take(rig, other);
                    if (t % 4 == 0) continue;
                    cpu_batch_start(rig);
                    cpu_attn_add(&c, rig, 0, t + 1, t + 2);
                    cpu_attn_take(rig, other);
                }
                if (j == 0) memcpy(first, other, bytes);
                CHECKF(memcmp(first, other, bytes) == 0, "%s run %d differs", paths[p], j);
            }
            cpu_rig_free(rig);
        }
    free(first);
    free(other);
}

/* However long a sequence is, its token is split over the threads. */
static void test_cpu_attention_long(void) {
    cpu_attn c = {FG_TYPE_F16, 16, 1, 16, 16, 1, 0, 32, false, 0.0f, 1.0f, {9000, 0, 0, 0, 0, 0}};
    static const int lengths[] = {2000, 4400, 9000}, cu_q[] = {0, 1};
    cpu_rig *rig = cpu_attn_rig(&c, 8);
    int i;
    if (cpu_rig_open(rig, "scalar", 2) == FG_OK && ((fg__cpu_device *)(void *)rig->device)->pool.n_threads == 2) {
        fg__cpu_plan *plan = (fg__cpu_plan *)(void *)rig->plan;
        fg_batch batch;
        memset(&batch, 0, sizeof(batch));
        batch.n_tokens = batch.n_seqs = 1;
        batch.cu_q = cu_q;
        plan->batch = &batch;
        for (i = 0; i < 3; i++) {
            batch.kv_len = &lengths[i];
            fg__attn_plan(plan, 0);
            CHECKF(plan->groups[0].n_merges == 1 && plan->groups[0].n_tasks > 2, "%d tokens: %d tasks", lengths[i], plan->groups[0].n_tasks);
        }
        plan->batch = NULL;
    }
    cpu_rig_free(rig);
}

/* A card, which has another kernel for many queries, of half floats; the software driver has none. */
static bool cpu_is_vulkan_gpu(const char *path) {
    const fg__vk_device *d = cpu_is_vulkan(path) ? (const fg__vk_device *)(const void *)cpu_vulkan_device(cpu_vulkan_number(path)) : NULL;
    return d && d->properties.device_type != FG__VK_CPU;
}

static void cpu_check_copy_blocks(const char *path) {
    static const fg_type types[] = {FG_TYPE_F32, FG_TYPE_F16, FG_TYPE_BF16, FG_TYPE_Q8_0};
    int i;
    for (i = 0; i < 4; i++) {
        cpu_attn c = {FG_TYPE_F32, 2, 1, 32, 32, 1, 0, 16, false, 0.0f, 1.0f, {48, 0, 0, 0, 0, 0}};
        cpu_rig *rig;
        fg_block_copy copies[3];
        float before[48 * 64], after[48 * 64];
        int j;
        c.kv_type = types[i];
        rig = cpu_attn_rig(&c, 64);
        if (cpu_rig_open(rig, path, 1) != FG_OK) return;
        cpu_batch_start(rig);
        cpu_attn_add(&c, rig, 0, 0, 48);
        cpu_attn_take(rig, before);
        /* the last token again, from copies of the blocks elsewhere: block 0 and 1 move to two free ones */
        for (j = 0; j < 3; j++) copies[j].group = 0;
        copies[0].from = cpu_attn_block(&c, rig, 0, 0);
        copies[0].to = cpu_attn_block(&c, rig, 0, 3);
        copies[1].from = cpu_attn_block(&c, rig, 0, 1);
        copies[1].to = cpu_attn_block(&c, rig, 0, 4);
        copies[2] = copies[0];
        copies[2].to = copies[2].from;
        CHECK(rig->backend->copy_blocks(rig->device, rig->plan, copies, 3) == FG_OK);
        cpu_batch_start(rig);
        cpu_attn_add(&c, rig, 0, 47, 48);
        rig->tables[0][0] = copies[0].to;
        rig->tables[0][1] = copies[1].to;
        memcpy(after, before, sizeof(after));
        memset(after + 47 * 64, 0, sizeof(float) * 64);
        cpu_attn_take(rig, after);
        for (j = 0; j < 48 * 64 && path && (strstr(path, "-kv") || cpu_is_vulkan_gpu(path)); j++)
            if (fabsf(before[j] - after[j]) < (strstr(path, "-kv") ? 1e-5f : 4e-3f)) after[j] = before[j]; /* sums in the order of pieces; a card's matrices */
        CHECK(memcmp(before, after, sizeof(before)) == 0);
        copies[0].to = rig->graph.groups[0].n_blocks;
        CHECK(rig->backend->copy_blocks(rig->device, rig->plan, copies, 1) == FG_ERROR_INVALID_ARGUMENT);
        copies[0].to = 0;
        copies[0].group = 1;
        CHECK(rig->backend->copy_blocks(rig->device, rig->plan, copies, 1) == FG_ERROR_INVALID_ARGUMENT);
        rig->tables[0][1] = -1;
        CHECK(cpu_rig_submit(rig) == FG_ERROR_INVALID_ARGUMENT);
        rig->tables[0][1] = copies[1].to;
        rig->slots_of[0][0] = -1;
        CHECK(cpu_rig_submit(rig) == FG_ERROR_INVALID_ARGUMENT);
        cpu_rig_free(rig);
    }
}

static void test_cpu_copy_blocks(void) { cpu_check_copy_blocks(NULL); }

/* ---- A small model: every op together, two layers, one with a window. ---- */

static cpu_rig *cpu_model_rig(const cpu_attn *c, fg_type type) {
    enum { W = 256, FF = 512, V = 300 };
    uint64_t state = 31;
    cpu_rig *rig = cpu_rig_new(256);
    int q = c->n_head * c->head_dim, kv = c->n_kv_head * c->head_dim, layer, i, j, n_blocks = 0, longest = 0;
    int x = cpu_slot(rig, W, false), h = cpu_slot(rig, W, false), qkv = cpu_slot(rig, q + 2 * kv, false);
    int att = cpu_slot(rig, q, false), ff = cpu_slot(rig, 2 * FF, false), mul = cpu_slot(rig, FF, false);
    int last = cpu_slot(rig, W, true), logits = cpu_slot(rig, V, true), frequencies;
    fg_op *op = cpu_op(rig, FG_OP_EMBED, -1, x, W);
    float *table;
    op->weight = cpu_weight(rig, type, W, cpu_attn_total(c), FG_OP_EMBED, &state);
    frequencies = cpu_weight(rig, FG_TYPE_F32, c->n_rot / 2, 0, FG_OP_ROPE_KV, &state);
    table = (float *)(void *)rig->data[frequencies];
    for (i = 0; i < c->n_rot / 2; i++) table[i] = (float)pow(10000.0, -2.0 * i / c->n_rot);
    for (layer = 0; layer < 2; layer++) {
        static const int parts = 3;
        op = cpu_op(rig, FG_OP_NORM, x, h, W);
        op->weight = cpu_weight(rig, FG_TYPE_F32, W, 0, FG_OP_NORM, &state);
        for (i = 0; i < parts; i++) {
            op = cpu_op(rig, FG_OP_GEMM, h, qkv, i ? kv : q);
            op->k = W;
            op->dst_col = i == 0 ? 0 : q + (i - 1) * kv;
            op->weight = cpu_weight(rig, i == 2 ? FG_TYPE_F16 : type, W, op->n, FG_OP_GEMM, &state);
        }
        for (i = 0; i < 2; i++) {
            op = cpu_op(rig, i ? FG_OP_ATTENTION : FG_OP_ROPE_KV, qkv, i ? att : -1, 0);
            op->n_head = c->n_head;
            op->n_kv_head = c->n_kv_head;
            op->head_dim = c->head_dim;
            op->group = layer;
            op->scale = i ? (float)(0.004 / sqrt((double)c->head_dim)) : 1.0f; /* scores of a sensible size */
            if (i) continue;
            op->src2_col = q;
            op->dst_col = q + kv;
            op->n_rot = c->n_rot;
            op->rope_neox = c->neox;
            op->bias = frequencies;
        }
        op = cpu_op(rig, FG_OP_GEMM, att, x, W);
        op->k = q;
        op->src2 = x;
        op->weight = cpu_weight(rig, type, q, W, FG_OP_GEMM, &state);
        op = cpu_op(rig, FG_OP_NORM, x, h, W);
        for (i = 0; i < 2; i++) {
            op = cpu_op(rig, FG_OP_GEMM, h, ff, FF);
            op->k = W;
            op->dst_col = i * FF;
            op->weight = cpu_weight(rig, type, W, FF, FG_OP_GEMM, &state);
        }
        op = cpu_op(rig, FG_OP_ACT_MUL, ff, mul, FF);
        op->src2 = ff;
        op->src2_col = FF;
        op->act = FG_ACT_SILU;
        op = cpu_op(rig, FG_OP_GEMM, mul, x, W);
        op->k = FF;
        op->src2 = x;
        op->weight = cpu_weight(rig, type, FF, W, FG_OP_GEMM, &state);
    }
    cpu_op(rig, FG_OP_GATHER_ROWS, x, last, W);
    cpu_op(rig, FG_OP_NORM, last, last, W);
    op = cpu_op(rig, FG_OP_GEMM, last, logits, V);
    op->k = W;
    op->weight = cpu_weight(rig, type, W, V, FG_OP_GEMM, &state);
    cpu_op(rig, FG_OP_SAMPLE, logits, -1, V);
    rig->graph.n_vocab = V;
    for (i = 0; i < CPU_SEQS; i++) {
        longest = FG__MAX(longest, c->lengths[i]);
        n_blocks += (c->lengths[i] + c->block_tokens - 1) / c->block_tokens;
    }
    rig->graph.n_groups = 2;
    rig->graph.max_blocks_per_seq = (longest + c->block_tokens - 1) / c->block_tokens;
    for (j = 0; j < 2; j++) {
        fg_group *group = &rig->graph.groups[j];
        group->kind = j ? FG_GROUP_WINDOW : FG_GROUP_FULL;
        group->n_layers = 1;
        group->n_kv_head = c->n_kv_head;
        group->head_dim = c->head_dim;
        group->window = j ? 50 : 0;
        group->block_tokens = c->block_tokens;
        group->n_blocks = n_blocks + 3;
        group->kv_type = c->kv_type;
    }
    rig->tables[0] = (int32_t *)malloc(sizeof(int32_t) * (size_t)(64 * rig->graph.max_blocks_per_seq));
    return rig;
}

static void cpu_check_model_invariance(const fg_type *types, int n_types) {
    static const struct {
        int threads, mode, chunk;
    } runs[] = {{1, 0, 1}, {2, 0, 256}, {3, 1, 7}, {4, 1, 32}, {2, 2, 90}};
    cpu_attn c = {FG_TYPE_F16, 8, 2, 32, 32, 1, 0, 32, false, 0.0f, 1.0f, {180, 33, 1, 64, 5, 12}};
    const char *paths[FG__CPU_PATHS];
    size_t bytes = sizeof(float) * (size_t)cpu_attn_total(&c) * 300;
    float *first = (float *)calloc(1, bytes), *other = (float *)calloc(1, bytes), *scalar = (float *)calloc(1, bytes);
    int i, j, p, n_paths = cpu_paths(paths);
    for (i = 0; i < n_types; i++)
        for (p = 0; p < n_paths; p++) {
            cpu_rig *rig = cpu_model_rig(&c, types[i]);
            double square = 0.0, error = 0.0;
            size_t n;
            for (j = 0; j < 5; j++) {
                if (cpu_rig_open(rig, paths[p], runs[j].threads) != FG_OK) break;
                rig->batch.tables[1] = rig->tables[0];
                rig->batch.slots[1] = rig->slots_of[0];
                memset(other, 0, bytes);
                cpu_attn_all(&c, rig, runs[j].mode, runs[j].chunk, j ? other : first);
                CHECKF(j == 0 || memcmp(first, other, bytes) == 0, "%s %s run %d differs", paths[p],
                       fg_type_name(types[i]), j);
                cpu_rig_close(rig);
            }
            if (p == 0) memcpy(scalar, first, bytes);
            for (n = 0; n < bytes / sizeof(float); n++) {
                square += (double)scalar[n] * (double)scalar[n];
                error += ((double)first[n] - (double)scalar[n]) * ((double)first[n] - (double)scalar[n]);
            }
            error = sqrt(error / square);
            CHECKF(error < (types[i] == FG_TYPE_F32 ? 1e-4 : 0.1), "%s %s against scalar: %g", paths[p],
                   fg_type_name(types[i]), error);
            cpu_rig_free(rig);
        }
    free(first);
    free(other);
    free(scalar);
}

static void test_cpu_model_invariance(void) {
    static const fg_type types[] = {FG_TYPE_F32, FG_TYPE_BF16, FG_TYPE_Q8_0, FG_TYPE_Q4_0, FG_TYPE_Q4_K, FG_TYPE_Q6_K};
    cpu_check_model_invariance(types, 6);
}

/* ---- Allocation failure at every allocation in turn. ---- */

typedef struct cpu_faults {
    int left, live;
} cpu_faults;

static void *cpu_faulty_realloc(void *pointer, size_t size, void *user) {
    cpu_faults *faults = (cpu_faults *)user;
    if (size == 0) {
        faults->live -= pointer != NULL;
        free(pointer);
        return NULL;
    }
    if (faults->left-- == 0) return NULL;
    faults->live += pointer == NULL;
    return realloc(pointer, size);
}

static fg_result cpu_open_all(cpu_rig *rig, cpu_faults *faults) {
    fg_device_desc desc;
    fg_result result;
    fg_roofs roofs;
    fg_memory memory;
    int i;
    memset(&desc, 0, sizeof(desc));
    desc.n_threads = 2;
    desc.allocator.realloc = cpu_faulty_realloc;
    desc.allocator.user = faults;
    desc.options = rig->options;
    result = rig->backend->open(&desc, &rig->device);
    for (i = 0; i < rig->graph.n_weights && result == FG_OK; i++)
        result = rig->backend->pack(rig->device, &rig->tensors[i], rig->uses[i], &rig->weights[i], NULL);
    if (result == FG_OK) result = rig->backend->prepare(rig->device, &rig->graph, NULL, &memory);
    if (result == FG_OK) result = rig->backend->prepare(rig->device, &rig->graph, &rig->plan, NULL);
    for (i = 0; i < 3 && result == FG_OK && faults->left < 2; i++) result = rig->backend->profile(rig->device, &roofs);
    return result;
}

/* Opens the rig with each allocation failing in turn, until all succeed; `least` of them at least. */
static void cpu_fail_allocations(cpu_rig *rig, int least) {
    fg_result result = FG_ERROR_OUT_OF_MEMORY;
    int i;
    for (i = 0; i < 500 && result != FG_OK; i++) {
        cpu_faults faults;
        faults.left = i; /* fails the allocation after so many */
        faults.live = 0;
        result = cpu_open_all(rig, &faults);
        CHECKF(result == FG_OK || result == FG_ERROR_OUT_OF_MEMORY, "allocation %d: %s", i, fg_result_name(result));
        cpu_rig_end_device(rig);
        CHECKF(faults.live == 0, "allocation %d: %d leaked", i, faults.live);
    }
    CHECKF(result == FG_OK && i > least, "%s after %d", fg_result_name(result), i);
}

static void test_cpu_out_of_memory(void) {
    cpu_attn c = {FG_TYPE_F16, 8, 2, 32, 32, 1, 0, 32, false, 0.0f, 1.0f, {40, 0, 0, 0, 0, 0}};
    cpu_rig *rig = cpu_model_rig(&c, FG_TYPE_Q8_0);
    cpu_fail_allocations(rig, 20);
    cpu_rig_free(rig);
}

typedef struct pool_count {
    int n_phases, pieces[600];
} pool_count;

static int pool_begin(void *user, int phase) {
    pool_count *count = (pool_count *)user;
    return phase == count->n_phases ? -1 : phase % 3; /* phases of no piece are passed over */
}

static void pool_piece(void *user, int piece, int thread) {
    pool_count *count = (pool_count *)user;
    (void)thread;
    fg__atomic_add(&count->pieces[piece], 1);
}

/* Every piece is run once, and a pool closes whatever the number of phases: the count in the ticket, of those with several pieces, which are
   every third one, and of jobs' ends, wraps at 256. */
static void test_cpu_pool(void) {
    static const int n_phases[] = {0, 1, 2, 3, 759, 762, 765, 768, 771, 1149, 1152, 1530, 1533, 1536};
    fg__env env = fg__env_make(NULL, NULL, NULL);
    pool_count count;
    size_t i;
    int round, threads;
    for (round = 0; round < 40; round++)
        for (i = 0; i < sizeof(n_phases) / sizeof(n_phases[0]); i++) {
            fg__job job = {pool_begin, pool_piece, NULL};
            fg__pool pool;
            int n = n_phases[i], jobs;
            memset(&count, 0, sizeof(count));
            count.n_phases = n;
            job.user = &count;
            threads = 1 + round % 4;
            CHECK(fg__pool_open(&env, &pool, threads));
            for (jobs = 0; jobs < 1 + round % 3; jobs++) fg__pool_run(&pool, &job);
            fg__pool_close(&env, &pool);
            CHECK(count.pieces[0] == jobs * (n - (n + 2) / 3) && count.pieces[1] == jobs * (n / 3));
        }
}

/* What waiting threads fetch: runs of the next products but the first, by where their weights are, when tokens are few. */
static void test_cpu_ahead(void) {
    enum { K = 256, M = 40 };
    static const int widths[] = {32, 512}, tokens[] = {1, FG__AHEAD_TOKENS, FG__AHEAD_TOKENS + 1};
    uint64_t state = 41;
    cpu_rig *rig = cpu_rig_new(M);
    int x = cpu_slot(rig, K, false), y = cpu_slot(rig, 544, false), i;
    fg_op *op = cpu_op(rig, FG_OP_EMBED, -1, x, K);
    op->weight = cpu_weight(rig, FG_TYPE_F32, K, M, FG_OP_EMBED, &state);
    for (i = 0; i < 2; i++) {
        op = cpu_op(rig, FG_OP_GEMM, x, y, widths[i]);
        op->k = K;
        op->dst_col = i * widths[0];
        op->weight = cpu_weight(rig, FG_TYPE_Q8_0, K, widths[i], FG_OP_GEMM, &state);
    }
    cpu_rig_end(rig, y);
    /* a build without threads has nobody who waits */
    if (cpu_rig_open(rig, "scalar", 2) == FG_OK && ((fg__cpu_device *)(void *)rig->device)->pool.n_threads == 2) {
        fg__cpu_plan *plan = (fg__cpu_plan *)(void *)rig->plan;
        const fg__cpu_weight *weight = fg__cpu_weight_of(plan, op->weight);
        fg__pool *pool = &plan->device->pool;
        fg_batch batch;
        memset(&batch, 0, sizeof(batch));
        plan->batch = &batch;
        plan->end_phase = plan->n_phases;
        for (i = 0; i < 3; i++) {
            batch.n_tokens = tokens[i];
            fg__cpu_ahead(plan, plan->phases);
            CHECK(pool->ahead_each == (i < 2 ? 6 * weight->panel_bytes : 0)); /* of 17 panels three eighths */
            CHECK(pool->ahead == (uint64_t)(uintptr_t)weight->data + 5 * weight->panel_bytes);
        }
        batch.n_tokens = 1;
        fg__cpu_ahead(plan, plan->phases + plan->n_phases - 1);
        CHECK(pool->ahead_each == 0 && !fg__pool_fetch(pool, 1, 0));
        fg__atomic_store64(&pool->ahead_each, 3 * FG__AHEAD_STEP); /* the other thread may still look at it */
        CHECK(fg__pool_fetch(pool, 1, 2) && !fg__pool_fetch(pool, 1, 3));
        fg__atomic_store64(&pool->ahead_each, (uint64_t)1 << 40);
        CHECK(!fg__pool_fetch(pool, 0, FG__AHEAD_BYTES / FG__AHEAD_STEP));
        plan->batch = NULL;
    }
    cpu_rig_free(rig);
}

/* What is left of a slab is not lost when a weight comes that it has no room for. */
static void test_cpu_slabs(void) {
    static const size_t bytes[] = {4096, 4096, 2048, 20480, 5120, 1024}; /* the third slab has room for the last two */
    fg__cpu_device device;
    fg__cpu_weight weights[6];
    size_t i, all = 0;
    memset(&device, 0, sizeof(device));
    device.env = fg__env_make(NULL, NULL, NULL);
    for (i = 0; i < 6; i++) {
        CHECK(fg__slab_take(&device, &weights[i], bytes[i]));
        memset(weights[i].data, 1, bytes[i]);
        all += bytes[i];
    }
    CHECK(weights[4].slab == weights[2].slab && weights[5].slab == weights[2].slab);
    CHECKF(device.slab_bytes < all * 5 / 4, "%zu bytes of slabs for %zu", device.slab_bytes, all);
    for (i = 0; i < 6; i++) fg__slab_give(&device, weights[i].slab);
    CHECK(device.slab_bytes == 0 && !device.slab);
}

#if defined(__linux__)
/* What Linux says of CPU `cpu`, below `root`. */
static void cpu_set_siblings(const char *root, int cpu, const char *siblings) {
    char path[300];
    FILE *file;
    snprintf(path, sizeof(path), "mkdir -p %.200s/cpu%d/topology", root, cpu);
    CHECK(system(path) == 0);
    snprintf(path, sizeof(path), "%.200s/cpu%d/topology/thread_siblings_list", root, cpu);
    file = fopen(path, "w");
    CHECK(file != NULL);
    if (!file) return;
    fprintf(file, "%s\n", siblings);
    fclose(file);
}
#endif

/* Cores of CPUs that are siblings of the next or of one far away, of which some are allowed, or of which nothing is said; this machine's beside lscpu's. */
static void test_cpu_cores(void) {
#if defined(__linux__)
    static const char *const siblings[] = {"0,8", "1,9", "2-3", "2-3", "0,8", "1,9"}; /* of CPUs 0, 1, 2, 3, 8, 9 */
    char root[200], status[4096];
    const char *list;
    FILE *lscpu;
    int i, cores = 0;
    snprintf(root, sizeof(root), "%.180s/test_cpu_cores", getenv("BUILD") ? getenv("BUILD") : "build");
    for (i = 0; i < 6; i++) cpu_set_siblings(root, i < 4 ? i : i + 4, siblings[i]);
    CHECK(fg__cores_of("0-3,8-9\n", root) == 3);
    CHECK(fg__cores_of("8-9\n", root) == 2 && fg__cores_of("0,8", root) == 1 && fg__cores_of("3", root) == 1 && fg__cores_of("1,3,8", root) == 3);
    CHECK(fg__cores_of("0-9\n", root) == 7); /* nothing is said of 4 to 7 */
    CHECK(fg__cores_of("0-3", "/none") == 4 && fg__cores_of("", root) == INT_MAX && fg__cores_of("x", root) == INT_MAX);
    CHECK(fg__cores_of("2-", root) == INT_MAX && fg__cores_of("4090-99999999", "/none") == 6);
    list = strstr(fg__read_text("/proc/thread-self/status", status, sizeof(status)), "Cpus_allowed_list:\t0-");
    lscpu = popen("lscpu -p=core,socket 2>/dev/null | grep -v '^#' | sort -u | wc -l", "r");
    i = lscpu && fscanf(lscpu, "%d", &cores) == 1 && cores > 0 && list && fg__cpu_count() == (int)sysconf(_SC_NPROCESSORS_ONLN);
    if (lscpu) pclose(lscpu);
    if (i) CHECKF(fg__core_count() == cores, "%d cores, not %d", fg__core_count(), cores);
#endif
}

/* Affinity masks and containers' quotas, as Linux writes them; and this machine's count beside that of nproc. */
static void test_cpu_count(void) {
#if defined(__linux__)
    FILE *nproc = popen("env -u OMP_NUM_THREADS -u OMP_THREAD_LIMIT nproc", "r");
    int count = 0, read;
    CHECK(fg__cpus_allowed("Name:\tx\nCpus_allowed:\t3\nCpus_allowed_list:\t0-1\n") == 2);
    CHECK(fg__cpus_allowed("Cpus_allowed:\tf0000000,0000a001\nMems_allowed:\tffff\n") == 7);
    CHECK(fg__cpus_allowed("Cpus_allowed:") == INT_MAX && fg__cpus_allowed("") == INT_MAX);
    CHECK(fg__cpus_of_quota("200000 100000", " 100000") == 2 && fg__cpus_of_quota("150000", "100000") == 2);
    CHECK(fg__cpus_of_quota("1000", "100000") == 1 && fg__cpus_of_quota("max 100000", " 100000") == INT_MAX);
    CHECK(fg__cpus_of_quota("-1", "100000") == INT_MAX && fg__cpus_of_quota("", "") == INT_MAX);
    CHECK(fg__cpus_of_quota("1e300", "1") == INT_MAX && fg__cpus_of_quota("5", "0") == INT_MAX);
    read = nproc ? fscanf(nproc, "%d", &count) : 0;
    if (nproc) pclose(nproc);
    if (read == 1) CHECK(fg__cpu_count() == FG__MIN(count, fg__cpus_of_container()));
#endif
}

/* Products on AMX's path, emulated; a machine that has it runs every test on it. */
static void test_cpu_amx(void) {
    static const fg_type types[] = {FG_TYPE_BF16, FG_TYPE_Q4_K};
    long before = cpu_emulated_products();
    int i;
    if (fg__cpu_detect().amx) SKIP("this machine has AMX");
    if (!cpu_amx_begin()) SKIP("no AVX-512 VBMI2, or a compiler without AMX");
    cpu_only = "amx";
    test_cpu_gemm();
    test_cpu_gemm_odd();
    test_cpu_gated();
    cpu_check_model_invariance(types, 2);
    for (i = 2; i < 5; i++) cpu_check_attention("amx", i == 4 ? CPU_ATTNS - 1 : i); /* by tiles, of each type of cache */
    cpu_only = NULL;
    cpu_emulated_end(false);
    CHECK(cpu_emulated_products() > before + 10000);
}

static void run_cpu_tests(void) {
    RUN(test_cpu_count);
    RUN(test_cpu_cores);
    RUN(test_cpu_slabs);
    RUN(test_cpu_pool);
    RUN(test_cpu_ahead);
    RUN(test_cpu_device);
    RUN(test_cpu_refuses);
    RUN(test_cpu_embed);
    RUN(test_cpu_norm);
    RUN(test_cpu_act_mul);
    RUN(test_cpu_sample);
    RUN(test_cpu_exp);
    RUN(test_cpu_gemm);
    RUN(test_cpu_gemm_extras);
    RUN(test_cpu_gemm_odd);
    RUN(test_cpu_gated);
    RUN(test_cpu_experts);
    RUN(test_cpu_experts_refused);
    RUN(test_cpu_attention);
    RUN(test_cpu_kv_bound);
    RUN(test_cpu_attention_invariance);
    RUN(test_cpu_attention_split);
    RUN(test_cpu_attention_long);
    RUN(test_cpu_copy_blocks);
    RUN(test_cpu_model_invariance);
    RUN(test_cpu_amx);
    RUN(test_cpu_out_of_memory);
}
