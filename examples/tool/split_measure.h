/* What split_model.h needs to know of a device and the CPU: attention on each and on both at once, and copies between them. */

enum { SPLIT_SEQS = 8, SPLIT_REPEATS = 64, SPLIT_ROUNDS = 5 };

/* One layer's attention of a few long sequences, one query each, as often as asked for. */
typedef struct split_rig {
    const fg_backend *backend;
    fg_device *device;
    fg_plan *plan;
    fg_graph graph;
    fg_op ops[SPLIT_REPEATS];
    fg_slot slots[2];
    fg_batch batch;
    int32_t tokens[SPLIT_SEQS], positions[SPLIT_SEQS], cu_q[SPLIT_SEQS + 1], kv_len[SPLIT_SEQS], last[SPLIT_SEQS], *table;
    double bytes; /* of the cache that is read each time */
} split_rig;

static void split_rig_graph(split_rig *r, const fg_model_info *info, fg_type kv_type, int context, int block_tokens) {
    fg_graph *g = &r->graph;
    int i;
    r->slots[0].name = "qkv";
    r->slots[0].width = (info->n_heads + 2 * info->n_kv_heads) * info->head_dim;
    r->slots[1].name = "attended";
    r->slots[1].width = info->n_heads * info->head_dim;
    for (i = 0; i < SPLIT_REPEATS; i++) {
        fg_op *op = &r->ops[i];
        op->type = FG_OP_ATTENTION;
        op->src2 = op->weight = op->weight2 = op->bias = -1;
        op->dst = 1;
        op->n_head = info->n_heads;
        op->n_kv_head = info->n_kv_heads;
        op->head_dim = info->head_dim;
        op->scale = 0.1f;
    }
    g->ops = r->ops, g->n_ops = SPLIT_REPEATS;
    g->slots = r->slots, g->n_slots = 2;
    g->n_groups = 1;
    g->groups[0].kind = FG_GROUP_FULL;
    g->groups[0].n_layers = 1;
    g->groups[0].n_kv_head = info->n_kv_heads;
    g->groups[0].head_dim = info->head_dim;
    g->groups[0].block_tokens = block_tokens;
    g->groups[0].kv_type = kv_type;
    g->max_blocks_per_seq = (context + block_tokens - 1) / block_tokens;
    g->groups[0].n_blocks = SPLIT_SEQS * g->max_blocks_per_seq;
    g->max_tokens = g->max_seqs = SPLIT_SEQS;
    g->max_rows = 1;
    g->n_vocab = 1;
}

static void split_rig_batch(split_rig *r, int context) {
    int i, blocks = r->graph.max_blocks_per_seq, block_tokens = r->graph.groups[0].block_tokens;
    r->table = (int32_t *)xrealloc(NULL, (size_t)SPLIT_SEQS * (size_t)blocks * sizeof(int32_t));
    for (i = 0; i < SPLIT_SEQS * blocks; i++) r->table[i] = i;
    for (i = 0; i < SPLIT_SEQS; i++) {
        r->tokens[i] = 0;
        r->positions[i] = context - 1;
        r->cu_q[i] = i;
        r->kv_len[i] = context;
        r->last[i] = i * blocks * block_tokens + context - 1;
    }
    r->cu_q[SPLIT_SEQS] = SPLIT_SEQS;
    r->batch.n_tokens = r->batch.n_seqs = SPLIT_SEQS;
    r->batch.tokens = r->tokens, r->batch.positions = r->positions;
    r->batch.cu_q = r->cu_q, r->batch.kv_len = r->kv_len;
    r->batch.tables[0] = r->table, r->batch.slots[0] = r->last;
}

/* Writes every block of the cache: memory that nothing was written to is not read as other memory is. */
static fg_result split_rig_fill(split_rig *r) {
    size_t bytes = 0;
    char *block;
    fg_result result;
    int i;
    if (!r->backend->swap_blocks) return FG_ERROR_UNSUPPORTED;
    result = r->backend->swap_blocks(r->device, r->plan, 0, NULL, 0, NULL, false, &bytes);
    if (result != FG_OK) return result;
    block = (char *)xrealloc(NULL, bytes);
    memset(block, 0x21, bytes); /* small numbers, in every type */
    for (i = 0; i < r->graph.groups[0].n_blocks && result == FG_OK; i++)
        result = r->backend->swap_blocks(r->device, r->plan, 0, &r->table[i], 1, block, false, NULL);
    free(block);
    return result;
}

static void split_rig_close(split_rig *r) {
    if (r->plan) r->backend->release(r->device, r->plan);
    if (r->device) r->backend->close(r->device);
    free(r->table);
}

static bool split_rig_open(split_rig *r, const fg_backend *backend, const fg_device_desc *desc, const fg_model_info *info,
                           fg_type kv_type, int context) {
    fg_device_caps caps;
    memset(r, 0, sizeof(*r));
    r->backend = backend;
    if (backend->open(desc, &r->device) != FG_OK) {
        r->device = NULL;
        return false;
    }
    backend->caps(r->device, &caps);
    split_rig_graph(r, info, kv_type, context, caps.block_tokens > 0 ? caps.block_tokens : 32);
    split_rig_batch(r, context);
    r->bytes = (double)SPLIT_SEQS * context * 2.0 * (double)fg_type_bytes(kv_type, (int64_t)info->n_kv_heads * info->head_dim);
    if (backend->prepare(r->device, &r->graph, &r->plan, NULL) != FG_OK) r->plan = NULL;
    return r->plan && split_rig_fill(r) == FG_OK;
}

static bool split_rig_submit(split_rig *r, int times) {
    r->batch.n_ops = times;
    return r->backend->submit(r->device, r->plan, &r->batch) == FG_OK;
}

static bool split_rig_wait(split_rig *r) {
    fg_output output;
    return r->backend->wait(r->device, r->plan, &output) == FG_OK;
}

/* The shortest of some passes with attention so many times; `beside` (may be NULL) has a pass at the same time. 0: it failed. */
static double split_rig_seconds(split_rig *r, int times, split_rig *beside, int beside_times) {
    double best = 0.0;
    int i;
    for (i = 0; i <= SPLIT_ROUNDS; i++) {
        double start = now_seconds(), seconds;
        if (!split_rig_submit(r, times)) return 0.0;
        if (beside && !(split_rig_submit(beside, beside_times) && split_rig_wait(beside))) return 0.0;
        if (!split_rig_wait(r)) return 0.0;
        seconds = now_seconds() - start;
        if (i == 1 || (i > 1 && seconds < best)) best = seconds; /* the first one warms up */
    }
    return best;
}

/* Attention of the device and the CPU: alone, and beside each other, for about as long. */
static bool split_measure_attention(split_model *m, split_rig *device, split_rig *cpu) {
    double one = split_rig_seconds(device, 1, NULL, 0), other = split_rig_seconds(cpu, 1, NULL, 0), both;
    int times = 1, cpu_times = 1;
    if (!(one > 0.0) || !(other > 0.0)) return false;
    while (times < SPLIT_REPEATS && one * times < other) times++;
    while (cpu_times < SPLIT_REPEATS && other * cpu_times < one) cpu_times++;
    one = split_rig_seconds(device, times, NULL, 0);
    other = split_rig_seconds(cpu, cpu_times, NULL, 0);
    both = split_rig_seconds(device, times, cpu, cpu_times);
    if (!(one > 0.0) || !(other > 0.0) || !(both > 0.0)) return false;
    m->device_kv = device->bytes * times / one;
    m->cpu_kv = cpu->bytes * cpu_times / other;
    m->at_once = (one + other - both) / (one < other ? one : other);
    m->at_once = m->at_once < 0.0 ? 0.0 : m->at_once > 1.0 ? 1.0 : m->at_once;
    return true;
}

/* The shortest time in which `bytes` go to the device (if asked) and `back` bytes come from it. */
static double split_copy_seconds(const fg_backend *backend, fg_device *device, void *memory, void *host, size_t bytes, size_t back) {
    double best = 0.0;
    int i;
    for (i = 0; i < SPLIT_ROUNDS; i++) {
        double start = now_seconds(), seconds;
        if (bytes && backend->write(device, memory, 0, host, bytes) != FG_OK) return 0.0;
        if (backend->read(device, memory, 0, host, back) != FG_OK) return 0.0;
        seconds = now_seconds() - start;
        if (i == 0 || seconds < best) best = seconds;
    }
    return best;
}

static split_link split_link_of(double small, double large, double bytes) {
    split_link link;
    link.seconds = small > 0.0 ? small : 0.0;
    link.bytes_per_s = bytes / (large > small ? large - small : 1e-9);
    return link;
}

/* Latency by a page, the rate by much. A write may return before it has arrived, so that a page is read behind it. */
static bool split_measure_links(split_model *m, const fg_backend *backend, fg_device *device) {
    const size_t page = 4096, bytes = (size_t)16 << 20;
    void *memory = backend->alloc(device, bytes), *host = xrealloc(NULL, bytes);
    double read[2] = {0.0, 0.0}, both[2] = {0.0, 0.0};
    memset(host, 1, bytes);
    if (memory) {
        read[0] = split_copy_seconds(backend, device, memory, host, 0, page);
        read[1] = split_copy_seconds(backend, device, memory, host, 0, bytes);
        both[0] = split_copy_seconds(backend, device, memory, host, page, page);
        both[1] = split_copy_seconds(backend, device, memory, host, bytes, page);
        backend->free(device, memory);
    }
    free(host);
    m->down = split_link_of(read[0], read[1], (double)(bytes - page));
    m->up = split_link_of(both[0] - read[0], both[1] - read[0], (double)(bytes - page));
    return read[0] > 0.0 && read[1] > 0.0 && both[0] > 0.0 && both[1] > 0.0;
}
