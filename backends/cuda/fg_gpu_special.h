/* fg_gpu_special.h: products by what few devices have (kernels.cuh): gemmwg, Hopper's products of warpgroups (wgmma), of more than
   64 rows; gemmi, dot products of bytes on AMD's devices without matrix instructions, of more than 8 rows of quantised weights.

   Included by fg_gpu_host.h. Before a plan uses such a kernel, a small product by it is compared with the CPU's; where they differ,
   or the kernel is not there, gemm16 to gemm128 go on doing that work. A fault of the kernel would be the end of its context, so that CUDA
   tries it in one of its own (a trial); HIP has no contexts, and tries it in the device's. In the invariance mode there is no gemmwg, which adds up
   in an order of its own; gemmi then serves all numbers of rows. */

#ifndef FG_GPU_SPECIAL_H
#define FG_GPU_SPECIAL_H

enum { FG__GPU_PROOF_N = 136, FG__GPU_PROOF_ROWS = 130, FG__GPU_PROOF_K = 512 }; /* two tiles each way, more stages than there are */

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
static fg_result fg__gpu_proof_run(fg__gpu_device *d, int kernel, const fg_gpu_layout *layout, fg__gpu_pointer at) {
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
    acts.format = d->loader.driver->is_hip ? FG_GPU_ACTS_BYTES : FG_GPU_ACTS_HALF;
    r = fg__gpu_check(d, d->api.copy_to_device(at, d->stages[0].at, weight + src + sizeof(rows), d->compute), "trying a product");
    if (r == FG_OK) r = fg__gpu_launch_now(d, FG_GPU_KERNEL_acts, &acts, false);
    if (r == FG_OK) r = fg__gpu_launch_now(d, kernel, &a, false);
    if (r == FG_OK)
        r = fg__gpu_check(d, d->api.copy_to_host(d->stages[1].at, a.dst, FG__GPU_PROOF_ROWS * FG__GPU_PROOF_N * sizeof(float), d->compute),
                          "trying a product");
    return r == FG_OK ? fg__gpu_check(d, d->api.stream_wait(d->compute), "trying a product") : r;
}

static fg_result fg__gpu_prove_kernel(fg__gpu_device *d, fg_type type, int kernel, float *values, bool *holds) {
    fg_gpu_layout layout = fg_gpu_layout_of((int)type, FG__GPU_PROOF_K);
    fg__gpu_range room;
    fg_result r;
    room.at = 0;
    if ((r = fg__gpu_take(d, 2 << 20, &room)) == FG_OK && (r = fg__gpu_copies_wait(d)) == FG_OK) {
        fg__gpu_proof_weight(type, &layout, (uint8_t *)d->stages[0].at, values);
        r = fg__gpu_proof_run(d, kernel, &layout, room.at);
        *holds = r == FG_OK && fg__gpu_proof_holds((const float *)(const void *)d->stages[1].at, values);
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

/* Tries the kernels of a type of weights, once. Code without them, for any device, has none to try. */
static void fg__gpu_prove(fg__gpu_device *d, fg__gpu_device **trial, fg_type type) {
    int kernels[2];
    uint32_t bit = (uint32_t)1 << fg_gpu_type_index((int)type);
    void *function;
    bool holds = true;
    fg_result r;
    kernels[0] = fg__gpu_special_kernel(d, type, 65535);
    kernels[1] = fg__gpu_special_kernel(d, type, 9);
    if (kernels[0] < 0 || (d->special_tried & bit)) return;
    d->special_tried |= bit;
    if (fg__gpu_function(d, kernels[0], &function) != FG_OK) return;
    r = fg__gpu_prove_in(d, trial, type, kernels, &holds);
    if (r == FG_OK && holds) d->special_ready |= bit;
    else
        fg__log(&d->env, FG_LOG_WARNING, "products of %s weights by %s %s on %s: they are done without", fg_type_name(type),
                d->loader.driver->is_hip ? "bytes" : "wgmma", r == FG_OK ? "are wrong" : "cannot be tried", d->name);
}

/* Tries what a plan may use. The device was entered. */
static void fg__gpu_special_open(fg__gpu_plan *plan) {
    fg__gpu_device *d = plan->device;
    fg__gpu_device *trial = NULL;
    const fg_graph *graph = plan->graph;
    int i;
    if (d->options.plain_products || fg_gpu_product_for(graph->max_tokens, d->options.invariant) < FG_GPU_GEMM16)
        return;
    if (!d->loader.driver->is_hip && fg_gpu_product_for(graph->max_tokens, 0) != FG_GPU_GEMM128) return;
    for (i = 0; i < graph->n_ops; i++)
        if (graph->ops[i].type == FG_OP_GEMM && !d->lost)
            fg__gpu_prove(d, &trial, fg__gpu_weight_of(plan, graph->ops[i].weight)->type);
    fg__gpu_trial_close(d, trial);
}

#endif /* FG_GPU_SPECIAL_H */
