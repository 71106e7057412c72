/* fg_gpu_special.h: what few devices have (kernels.cuh): gemmwg, products of more rows than skinny takes, and widewg, attention of many
   queries, by Hopper's warpgroups (wgmma); gemmi, products of more than 8 rows of quantised weights by dot products of bytes, on AMD's
   devices without matrix instructions.

   Included by fg_gpu_host.h. Before a plan uses such a kernel, a small product by it, or attention, is compared with the CPU's; where
   they differ, or the kernel is not there, the other gemm kernels, and wide, go on doing that work. A fault of the kernel would be the
   end of its context, so that CUDA tries it in one of its own (a trial), and cuBLASLt, too. HIP has no contexts, and tries them in the
   device's: nothing says whether others use the device (hipDevicePrimaryCtxGetState tells which device is the thread's), so that it must
   not be reset, and a fault of a kernel is the end of the process in most versions of ROCm anyway. In the invariance mode there are no
   gemmwg and widewg, which add up in an order of their own; gemmi then serves all numbers of rows. */

#ifndef FG_GPU_SPECIAL_H
#define FG_GPU_SPECIAL_H

enum { FG__GPU_PROOF_N = 136, FG__GPU_PROOF_ROWS = 130, FG__GPU_PROOF_K = 768 }; /* two tiles each way, more steps than stages */

/* A row of weights as it would be in a file: any bytes, but such that no scale is large. */
static void fg__gpu_proof_row(fg_type type, int row, uint8_t *raw, size_t bytes) {
    uint32_t x = 12345u + (uint32_t)row * 2654435761u;
    size_t i;
    for (i = 0; i < bytes; i++) {
        x = x * 1664525u + 1013904223u;
        raw[i] = (uint8_t)(x >> 24 & 0x3F); /* two of them as a half float: below 2 */
        if (type == FG_TYPE_MXFP4 && i % 17 == 0) raw[i] = (uint8_t)(120 + raw[i] % 8);
    }
}

/* Packs the weight, and leaves its values as the kernel has them, halves, in `values`. */
static void fg__gpu_proof_weight(fg_type type, const fg_gpu_layout *layout, uint8_t *packed, float *values) {
    uint8_t raw[FG__GPU_PROOF_K * 4];
    int row, i;
    for (row = 0; row < FG__GPU_PROOF_N; row++) {
        float *to = values + row * FG__GPU_PROOF_K;
        fg__gpu_proof_row(type, row, raw, (size_t)fg_type_bytes(type, FG__GPU_PROOF_K));
        fg_gpu_pack_row((int)type, FG__GPU_PROOF_K, layout, raw, packed + (size_t)row * (size_t)layout->stride);
        fg__dequantize_row(type, raw, to, FG__GPU_PROOF_K);
        for (i = 0; i < FG__GPU_PROOF_K; i++) to[i] = fg__f16_to_f32(fg__f32_to_f16(to[i]));
    }
}

/* Whole numbers, which are the same as halves, and as bytes where the largest of 32 is 127. */
static float fg__gpu_proof_src(int row, int i) { return i % 32 == row % 32 ? 127.0f : (float)fg__gpu_try_number(row % 5, row, i); }

static bool fg__gpu_proof_holds(const float *out, const float *values) {
    int row, j, i;
    for (row = 0; row < FG__GPU_PROOF_ROWS; row++) {
        double error = 0, square = 0;
        float src[FG__GPU_PROOF_K];
        for (i = 0; i < FG__GPU_PROOF_K; i++) src[i] = fg__gpu_proof_src(row, i);
        for (j = 0; j < FG__GPU_PROOF_N; j++) {
            double wanted = 0, got = (double)out[row * FG__GPU_PROOF_N + j];
            for (i = 0; i < FG__GPU_PROOF_K; i++) wanted += (double)(src[i] * values[j * FG__GPU_PROOF_K + i]);
            error += (got - wanted) * (got - wanted);
            square += wanted * wanted;
        }
        if (!(error <= 1e-6 * square)) return false;
    }
    return true;
}

/* The product on the device: what it reads goes there through the first stage, and what it gives comes back through the second. Both
   kernels find their arguments at `at`, in the order of the stage, then halves, scales and results. */
static fg_result fg__gpu_proof_run(fg__gpu_device *d, int kernel, int way, const fg_gpu_layout *layout, fg__gpu_pointer at) {
    size_t weight = fg__round_up((size_t)layout->stride * FG__GPU_PROOF_N, 256), src = FG__GPU_PROOF_ROWS * FG__GPU_PROOF_K * sizeof(float);
    float *floats = (float *)(void *)(d->stages[0].at + weight);
    int32_t rows = FG__GPU_PROOF_ROWS, i;
    fg_gpu_acts_args acts;
    fg_gpu_gemm_args a;
    fg_result r;
    memset(&acts, 0, sizeof(acts));
    memset(&a, 0, sizeof(a));
    for (i = 0; i < rows * FG__GPU_PROOF_K; i++)
        floats[i] = fg__gpu_proof_src(i / FG__GPU_PROOF_K, i % FG__GPU_PROOF_K);
    memcpy(d->stages[0].at + weight + src, &rows, sizeof(rows));
    a.weight = at;
    a.layout = *layout;
    acts.src = at + weight;
    a.count = acts.count = acts.src + src;
    a.acts = acts.acts = a.count + 256;
    a.scales = acts.scales = a.acts + src;
    a.dst = a.scales + 4096;
    a.n = a.dst_stride = FG__GPU_PROOF_N;
    a.k = acts.k = acts.src_stride = a.acts_stride = acts.acts_stride = FG__GPU_PROOF_K;
    a.max_rows = acts.max_rows = rows;
    a.way = way;
    acts.format = d->loader.driver->is_hip ? FG_GPU_ACTS_BYTES : FG_GPU_ACTS_HALF;
    r = fg__gpu_check(d, d->api.copy_to_device(at, d->stages[0].at, weight + src + sizeof(rows), d->compute), "trying a product");
    if (r == FG_OK) r = fg__gpu_launch_now(d, FG_GPU_KERNEL_acts, &acts, false);
    if (r == FG_OK) r = fg__gpu_launch_now(d, kernel, &a, false);
    if (r == FG_OK)
        r = fg__gpu_check(d, d->api.copy_to_host(d->stages[1].at, a.dst, FG__GPU_PROOF_ROWS * FG__GPU_PROOF_N * sizeof(float), d->compute),
                          "trying a product");
    return r == FG_OK ? fg__gpu_check(d, d->api.stream_wait(d->compute), "trying a product") : r;
}

/* ---- A small attention: two items of two heads over three tiles of positions. ---- */

enum { FG__GPU_SEEN_TOKENS = 70, FG__GPU_SEEN_HEADS = 2, FG__GPU_SEEN = 300, FG__GPU_SEEN_BLOCK = 64, FG__GPU_SEEN_BLOCKS = 5 };

static float fg__gpu_seen_number(int which, int row, int i) { return 0.5f * (float)fg__gpu_try_number(which + row % 5, row, i); }

/* Of K, and of V, in bytes. */
static size_t fg__gpu_seen_bytes(fg_type type, int dim) {
    return FG__GPU_SEEN_BLOCKS * (size_t)fg_gpu_kv_block_bytes((int)type, dim, 1, FG__GPU_SEEN_BLOCK);
}

/* Numbers of position p, halves of whole ones, into their row of the cache; of a cache of bytes with its scales. */
static void fg__gpu_seen_put(fg_type type, int dim, int which, int p, char *cache) {
    int block = p / FG__GPU_SEEN_BLOCK * 2 % FG__GPU_SEEN_BLOCKS, at = p % FG__GPU_SEEN_BLOCK, i;
    char *its = cache + (size_t)block * (size_t)fg_gpu_kv_block_bytes((int)type, dim, 1, FG__GPU_SEEN_BLOCK);
    char *row = its + at * fg_gpu_kv_row_bytes((int)type, dim);
    uint16_t *scales = (uint16_t *)(void *)(its + FG__GPU_SEEN_BLOCK * fg_gpu_kv_row_bytes((int)type, dim)) + at * fg_gpu_kv_scales((int)type, dim);
    for (i = 0; i < dim; i++) {
        float x = fg__gpu_seen_number(which, p, i);
        if (type == FG_TYPE_Q8_0) {
            ((int8_t *)row)[i] = (int8_t)(2.0f * x);
            scales[i / 32] = fg__f32_to_f16(0.5f);
        } else ((uint16_t *)(void *)row)[i] = type == FG_TYPE_F16 ? fg__f32_to_f16(x) : fg__f32_to_bf16(x);
    }
}

/* The cache, of which all that is not written is NaN, or has scales that are, and the queries. */
static void fg__gpu_seen_fill(fg_type type, int dim, char *k, char *v, float *q) {
    int p, i;
    memset(k, 0xFF, fg__gpu_seen_bytes(type, dim));
    memset(v, 0xFF, fg__gpu_seen_bytes(type, dim));
    for (p = 0; p < FG__GPU_SEEN; p++) {
        fg__gpu_seen_put(type, dim, 1, p, k);
        fg__gpu_seen_put(type, dim, 4, p, v);
    }
    for (p = 0; p < FG__GPU_SEEN_TOKENS * FG__GPU_SEEN_HEADS; p++)
        for (i = 0; i < dim; i++) q[p * dim + i] = fg__gpu_seen_number(7, p, i);
}

/* What a query (token and head) must see, into `to`. */
static void fg__gpu_seen_by(int query, int dim, double *to) {
    int end = FG__GPU_SEEN - FG__GPU_SEEN_TOKENS + query / FG__GPU_SEEN_HEADS + 1, p, i;
    double sum = 0;
    for (i = 0; i < dim; i++) to[i] = 0;
    for (p = 0; p < end; p++) {
        double score = 0;
        for (i = 0; i < dim; i++) score += (double)fg__gpu_seen_number(7, query, i) * (double)fg__gpu_seen_number(1, p, i);
        score = exp(score / 16.0);
        sum += score;
        for (i = 0; i < dim; i++) to[i] += score * (double)fg__gpu_seen_number(4, p, i);
    }
    for (i = 0; i < dim; i++) to[i] /= sum;
}

/* Every third query; what is not compared must be a number. */
static bool fg__gpu_seen_holds(fg_type type, int dim, const float *out) {
    double error = 0, square = 0, wanted[256];
    int query, i;
    for (query = 0; query < FG__GPU_SEEN_TOKENS * FG__GPU_SEEN_HEADS; query++) {
        if (query % 3 == 0) fg__gpu_seen_by(query, dim, wanted);
        for (i = 0; i < dim; i++) {
            double got = (double)out[query * dim + i];
            if (query % 3) wanted[i] = got;
            if (!(got - got == 0)) return false;
            error += (got - wanted[i]) * (got - wanted[i]);
            square += query % 3 ? 0 : wanted[i] * wanted[i];
        }
    }
    return error <= (type == FG_TYPE_BF16 ? 1e-4 : 1e-5) * square;
}

/* Through the stages as above; at `at` K, V and queries, then in words items, the table and the count, then results. */
static fg_result fg__gpu_seen_run(fg__gpu_device *d, fg_type type, int kernel, int dim, fg__gpu_pointer at) {
    size_t cache = fg__gpu_seen_bytes(type, dim);
    size_t rows = (size_t)FG__GPU_SEEN_TOKENS * FG__GPU_SEEN_HEADS * (size_t)dim * sizeof(float);
    char *from = d->stages[0].at;
    fg_gpu_attn_item *items = (fg_gpu_attn_item *)(void *)(from + 2 * cache + rows);
    int32_t *words = (int32_t *)(void *)(items + 4), cu_q[2], kv_len = FG__GPU_SEEN, i;
    fg_gpu_attn_merge merges[4];
    fg_gpu_attn_counts n = {0, 0, 0};
    fg_gpu_attention_args a;
    fg_result r;
    fg__gpu_seen_fill(type, dim, from, from + cache, (float *)(void *)(from + 2 * cache));
    cu_q[0] = 0;
    cu_q[1] = FG__GPU_SEEN_TOKENS;
    fg_gpu_attn_add(1, cu_q, &kv_len, FG__GPU_SEEN_HEADS, 0, fg_gpu_wide_rows(kernel), fg_gpu_wide_split(kernel), 1, INT32_MAX, &n, items, merges);
    for (i = 0; i < FG__GPU_SEEN_BLOCKS; i++) words[i] = i * 2 % FG__GPU_SEEN_BLOCKS;
    words[FG__GPU_SEEN_BLOCKS] = n.items;
    memset(&a, 0, sizeof(a));
    a.kv.k = at;
    a.kv.v = at + cache;
    a.kv.block_stride = cache / FG__GPU_SEEN_BLOCKS;
    a.kv.block_tokens = FG__GPU_SEEN_BLOCK;
    a.kv.n_head = FG__GPU_SEEN_HEADS;
    a.kv.n_kv_head = 1;
    a.kv.head_dim = dim;
    a.q = at + 2 * cache;
    a.items = a.q + rows;
    a.table = a.items + 4 * sizeof(fg_gpu_attn_item);
    a.count = a.table + FG__GPU_SEEN_BLOCKS * sizeof(int32_t);
    a.dst = a.table + 256;
    a.q_stride = a.dst_stride = FG__GPU_SEEN_HEADS * dim;
    a.table_stride = FG__GPU_SEEN_BLOCKS;
    a.max_items = n.items;
    a.scale = 1.0f / 16.0f;
    r = fg__gpu_check(d, d->api.copy_to_device(at, from, (size_t)(a.dst - at), d->compute), "trying attention");
    if (r == FG_OK) r = fg__gpu_launch_now(d, kernel, &a, false);
    if (r == FG_OK) r = fg__gpu_check(d, d->api.copy_to_host(d->stages[1].at, a.dst, rows, d->compute), "trying attention");
    return r == FG_OK ? fg__gpu_check(d, d->api.stream_wait(d->compute), "trying attention") : r;
}

/* The size of heads that a kernel of attention is for; 0: it multiplies. */
static int fg__gpu_proof_dim(int kernel) { return kernel < FG_GPU_KERNEL_widewg64_F16 ? 0 : fg_gpu_wg_dim(kernel); }

/* ---- Proofs. ---- */

static fg_result fg__gpu_prove_kernel(fg__gpu_device *d, fg_type type, int kernel, float *values, bool *holds) {
    const float *out = (const float *)(const void *)d->stages[1].at;
    int dim = fg__gpu_proof_dim(kernel);
    fg_gpu_layout layout = fg_gpu_layout_of((int)type, FG__GPU_PROOF_K);
    int way = dim || d->loader.driver->is_hip ? 0 : 1, last = way ? FG_GPU_WG_WAYS : 0; /* a product in all its ways */
    fg__gpu_range room;
    fg_result r;
    room.at = 0;
    if ((r = fg__gpu_take(d, 2 << 20, &room)) == FG_OK && (r = fg__gpu_copies_wait(d)) == FG_OK) {
        if (!dim) fg__gpu_proof_weight(type, &layout, (uint8_t *)d->stages[0].at, values);
        for (; r == FG_OK && *holds && way <= last; way++) {
            r = dim ? fg__gpu_seen_run(d, type, kernel, dim, room.at) : fg__gpu_proof_run(d, kernel, way, &layout, room.at);
            *holds = r == FG_OK && (dim ? fg__gpu_seen_holds(type, dim, out) : fg__gpu_proof_holds(out, values));
        }
    }
    if (r != FG_OK) fg__gpu_settle(d);
    fg__gpu_give(d, &room);
    return r;
}

/* The kernel that this device would have for a type and a number of rows; -1: none. */
static int fg__gpu_special_kernel(const fg__gpu_device *d, fg_type type, int rows) {
    if (d->loader.driver->is_hip) {
        if (strcmp(d->isa, "gfx906") != 0 && strncmp(d->isa, "gfx103", 6) != 0) return -1;
        return fg_gpu_byte_kernel((int)type, rows);
    }
    if (d->attributes[FG__GPU_MAJOR] != 9 || d->attributes[FG__GPU_SHARED_MOST] < FG_GPU_WG_BYTES || d->options.invariant) return -1;
    return fg_gpu_product_for(rows, 0) == FG_GPU_GEMM128 ? fg_gpu_weight_kernel((int)type, FG_GPU_GEMMWG) : -1;
}

/* And that it has, because the proof held. */
static int fg__gpu_special_for(const fg__gpu_device *d, fg_type type, int rows) {
    return d->special_ready >> fg_gpu_type_index((int)type) & 1 ? fg__gpu_special_kernel(d, type, rows) : -1;
}

/* The device again in another context, where it has such; NULL where that cannot be had. */
static fg__gpu_device *fg__gpu_trial_open(fg__gpu_device *d) {
    fg__gpu_device *trial;
    fg_result r;
    if (d->loader.driver->is_hip) return d;
    trial = (fg__gpu_device *)fg__calloc(&d->env, 1, sizeof(fg__gpu_device));
    if (!trial) return NULL;
    trial->env = d->env;
    trial->loader = d->loader;
    trial->loader.library = NULL; /* which stays open */
    trial->api = d->api;
    trial->options = d->options;
    memcpy(trial->name, d->name, sizeof(d->name));
    memcpy(trial->isa, d->isa, sizeof(d->isa));
    memcpy(trial->attributes, d->attributes, sizeof(d->attributes));
    trial->index = d->index;
    trial->handle = d->handle;
    r = fg__gpu_check(trial, d->api.context_create(&trial->context, 0, d->handle), "a context");
    if (r == FG_OK) {
        trial->own_context = true;
        fg__gpu_leave(trial); /* it was entered */
        r = fg__gpu_furnish(trial, d->image, d->image != NULL);
    } else trial->context = NULL;
    if (r == FG_OK) return trial;
    fg__gpu_close((fg_device *)(void *)trial);
    return NULL;
}

static void fg__gpu_trial_close(fg__gpu_device *d, fg__gpu_device *trial) {
    if (trial && trial != d) fg__gpu_close((fg_device *)(void *)trial);
}

/* Tries the kernels of a type in a trial, which is there from the first of them on, and is given up where it was lost. */
static fg_result fg__gpu_prove_in(fg__gpu_device *d, fg__gpu_device **trial, fg_type type, const int *kernels, bool *holds) {
    float *values = (float *)fg__malloc(&d->env, FG__GPU_PROOF_N * FG__GPU_PROOF_K, sizeof(float));
    fg__gpu_device *t = *trial ? *trial : fg__gpu_trial_open(d);
    fg_result r = values && t ? FG_OK : FG_ERROR_OUT_OF_MEMORY;
    int i;
    *trial = t;
    if (r == FG_OK && t != d) r = fg__gpu_enter(t);
    if (r == FG_OK) {
        for (i = 0; i < 2 && r == FG_OK && *holds; i++)
            if (kernels[i] >= 0) r = fg__gpu_prove_kernel(t, type, kernels[i], values, holds);
        if (t != d) fg__gpu_leave(t);
    }
    fg__free(&d->env, values);
    if (t && t != d && (t->lost || r != FG_OK)) {
        fg__gpu_trial_close(d, t);
        *trial = NULL;
    }
    return r;
}

/* Tries kernels of a bit of special_tried, once, and sets that of special_ready where they agree; else gives what is to be said of them,
   `wrong` where they differ. Code without them, for any device, has none to try. */
static const char *fg__gpu_prove_once(fg__gpu_device *d, fg__gpu_device **trial, fg_type type, const int *kernels, uint32_t bit,
                                      const char *wrong) {
    void *function;
    bool holds = true;
    fg_result r;
    if (d->special_tried & bit) return NULL;
    d->special_tried |= bit;
    if (fg__gpu_function(d, kernels[0], &function) != FG_OK) return NULL;
    r = fg__gpu_prove_in(d, trial, type, kernels, &holds);
    if (r == FG_OK && holds) d->special_ready |= bit;
    return r != FG_OK ? "cannot be tried" : holds ? NULL : wrong;
}

/* The products of a type of weights. */
static void fg__gpu_prove(fg__gpu_device *d, fg__gpu_device **trial, fg_type type) {
    const char *why;
    int kernels[2];
    kernels[0] = fg__gpu_special_kernel(d, type, 65535);
    kernels[1] = fg__gpu_special_kernel(d, type, 9);
    if (kernels[0] < 0) return;
    why = fg__gpu_prove_once(d, trial, type, kernels, (uint32_t)1 << fg_gpu_type_index((int)type), "are wrong");
    if (why)
        fg__log(&d->env, FG_LOG_WARNING, "products of %s weights by %s %s on %s: they are done without", fg_type_name(type),
                d->loader.driver->is_hip ? "bytes" : "wgmma", why, d->name);
}

/* The attention of many queries over a cache of a type, with heads of head_dim. */
static void fg__gpu_prove_attention(fg__gpu_device *d, fg__gpu_device **trial, fg_type type, int head_dim) {
    const char *why;
    int kernels[2];
    kernels[0] = fg_gpu_wide_wg_kernel((int)type, head_dim);
    kernels[1] = -1;
    if (kernels[0] < 0 || d->loader.driver->is_hip || d->options.invariant || d->attributes[FG__GPU_MAJOR] != 9 ||
        d->attributes[FG__GPU_SHARED_MOST] < (int)fg_gpu_more_bytes(kernels[0]))
        return;
    why = fg__gpu_prove_once(d, trial, type, kernels, (uint32_t)1 << fg__gpu_attention_bit(kernels[0]), "is wrong");
    if (why)
        fg__log(&d->env, FG_LOG_WARNING, "attention over a %s cache by wgmma %s on %s: it is done without", fg_type_name(type), why,
                d->name);
}

/* Tries what a plan may use. The device was entered. */
static void fg__gpu_special_open(fg__gpu_plan *plan) {
    fg__gpu_device *d = plan->device;
    fg__gpu_device *trial = NULL;
    const fg_graph *graph = plan->graph;
    int large = d->loader.driver->is_hip ? FG_GPU_GEMM16 : FG_GPU_GEMM128, i;
    bool multiplies = fg_gpu_product_for(graph->max_tokens, d->loader.driver->is_hip && d->options.invariant) >= large;
    if (d->options.plain_products) return;
    for (i = 0; i < graph->n_ops && !d->lost; i++) {
        const fg_op *op = &graph->ops[i];
        if (op->type == FG_OP_GEMM && multiplies) fg__gpu_prove(d, &trial, fg__gpu_weight_of(plan, op->weight)->type);
        if (op->type == FG_OP_ATTENTION && graph->max_tokens >= FG__GPU_WIDE_FROM)
            fg__gpu_prove_attention(d, &trial, graph->groups[op->group].kv_type, op->head_dim);
    }
    fg__gpu_trial_close(d, trial);
}

/* Whether the library's products of a type are right in a trial. */
static bool fg__gpu_blas_proven(fg__gpu_device *d, int type) {
    fg__gpu_device *t = fg__gpu_trial_open(d);
    bool holds;
    if (!t || t == d || fg__gpu_enter(t) != FG_OK) holds = t == d && fg__gpu_blas_holds(d, type);
    else {
        holds = fg__gpu_blas_begin(t) && fg__gpu_blas_holds(t, type);
        fg__gpu_leave(t);
    }
    fg__gpu_trial_close(d, t);
    return holds;
}

/* Opens the library for a type on first use; without it, or where it does not agree, our own kernels do all of that type. The device
   was entered. */
static void fg__gpu_blas_open(fg__gpu_device *d, int type) {
    fg__gpu_blas *blas = &d->blas;
    uint32_t bit = (uint32_t)1 << type;
    if (blas->tried & bit || d->options.no_blas || d->options.invariant) return;
    blas->tried |= bit;
    if ((blas->handle || fg__gpu_blas_begin(d)) && fg__gpu_blas_proven(d, type)) blas->ready |= bit;
    if (blas->ready & bit) fg__log(&d->env, FG_LOG_INFO, "large products of %s weights by %s", fg__gpu_blas_name(type), blas->kind->label);
    else if (blas->found)
        fg__log(&d->env, FG_LOG_WARNING, "%s is there but does not work; large products of %s weights are done without it", blas->kind->label,
                fg__gpu_blas_name(type));
    if (blas->ready) return;
    fg__gpu_settle(d);
    fg__gpu_blas_close(d);
}

#endif /* FG_GPU_SPECIAL_H */
