/* fg_gpu_blas.h: large products by cuBLASLt or hipBLASLt, where one is installed: of BF16 and F16 weights, and of quantised ones, which a
   kernel (expand) makes halves of before, as many rows at a time as there is room for.

   Included by fg_gpu_host.h. The two libraries have the same functions under other names, found at run time. For each type that a plan
   has a product of known numbers is compared before, in a trial (fg_gpu_special.h); a type that does not agree, as BF16 where a device
   has no such matrix units, or fails later, gives way to our own kernels. */

#ifndef FG_GPU_BLAS_H
#define FG_GPU_BLAS_H

enum {
    FG__GPU_BLAS_FROM = 65,               /* rows of activations from which on products go there */
    FG__GPU_EXPAND_FROM = 256,            /* of quantised weights, which are made halves before: that costs as much as some 100 rows more; rows are
                                             rounded up to a power of two, so that it is 129 of them */
    FG__GPU_EXPAND_BYTES = 128 << 20,     /* of these halves at a time */
    FG__GPU_BLAS_WORKSPACE = 32 << 20,    /* what NVIDIA recommends for Hopper */
    FG__GPU_BLAS_MOST_WORKSPACE = 1,      /* an attribute of the search, in both */
    FG__GPU_BLAS_ALIGN = 256,             /* of matrices, which cuBLASLt's search takes for granted */
    FG__GPU_BLAS_F32 = 0, FG__GPU_BLAS_F16 = 2, FG__GPU_BLAS_BF16 = 14, /* cudaDataType, hipDataType */
    FG__GPU_BYTES = -1, /* activations of our own products of bytes, see fg_gpu_special.h */
    FG__GPU_OF_PAIRS = -2, /* halves, of each pair of a token and an expert a row */
    FG__GPU_FRAGMENTS = 256 /* and on: a format of theirs, FG_GPU_ACTS_FRAGMENTS_0 and on, for skinny */
};

static const char *const fg__gpu_cublaslt_names[] = {
    "cublasLtCreate", "cublasLtDestroy", "cublasLtMatmulDescCreate", "cublasLtMatmulDescDestroy", "cublasLtMatmulDescSetAttribute",
    "cublasLtMatrixLayoutCreate", "cublasLtMatrixLayoutDestroy", "cublasLtMatmulPreferenceCreate", "cublasLtMatmulPreferenceDestroy",
    "cublasLtMatmulPreferenceSetAttribute", "cublasLtMatmulAlgoGetHeuristic", "cublasLtMatmul",
};

static const char *const fg__gpu_hipblaslt_names[] = {
    "hipblasLtCreate", "hipblasLtDestroy", "hipblasLtMatmulDescCreate", "hipblasLtMatmulDescDestroy", "hipblasLtMatmulDescSetAttribute",
    "hipblasLtMatrixLayoutCreate", "hipblasLtMatrixLayoutDestroy", "hipblasLtMatmulPreferenceCreate", "hipblasLtMatmulPreferenceDestroy",
    "hipblasLtMatmulPreferenceSetAttribute", "hipblasLtMatmulAlgoGetHeuristic", "hipblasLtMatmul",
};

/* What of the two differs beside the names. */
static const fg__gpu_blas_kind fg__gpu_cublaslt = {
    "cuBLASLt", "FASTGEN_CUBLASLT_LIBRARY",
#if FG__WINDOWS
    {"cublasLt64_13.dll", "cublasLt64_12.dll", "cublasLt64_11.dll"},
#else
    {"libcublasLt.so.13", "libcublasLt.so.12", "libcublasLt.so.11"},
#endif
    fg__gpu_cublaslt_names, 68 /* CUBLAS_COMPUTE_32F */, 3 /* CUBLASLT_MATMUL_DESC_TRANSA */, 1 /* CUBLAS_OP_T */,
};

static const fg__gpu_blas_kind fg__gpu_hipblaslt = {
    "hipBLASLt", "FASTGEN_HIPBLASLT_LIBRARY",
#if FG__WINDOWS
    {"libhipblaslt.dll", "hipblaslt.dll", NULL},
#else
    {"libhipblaslt.so.1", "libhipblaslt.so.0", "libhipblaslt.so"},
#endif
    fg__gpu_hipblaslt_names, 2 /* HIPBLAS_COMPUTE_32F */, 0 /* HIPBLASLT_MATMUL_DESC_TRANSA */, 112 /* HIPBLAS_OP_T */,
};

/* Whether weights are quantised, of a type that a kernel makes halves of for the library. */
static bool fg__gpu_is_expanded(fg_type type) { return fg_gpu_expand_kernel((int)type) >= 0; }

/* Halves from row to row, and rows that there is room for at a time, such that their columns of the product begin at FG__GPU_BLAS_ALIGN. */
static size_t fg__gpu_expanded_stride(int32_t k) { return fg__round_up((size_t)k, FG_GPU_ACTS_ALIGN); }
static int32_t fg__gpu_expanded_rows(const fg__gpu_device *d, int32_t k) {
    size_t bytes = d->options.scratch_bytes ? FG__MIN(d->options.scratch_bytes, (size_t)1 << 30) : (size_t)FG__GPU_EXPAND_BYTES;
    return (int32_t)FG__MAX(bytes / 2 / fg__gpu_expanded_stride(k) / 64 * 64, (size_t)64);
}

/* The rows of activations from which on products of weights of a type are the library's. */
static int fg__gpu_blas_from(fg_type type) { return fg__gpu_is_expanded(type) ? FG__GPU_EXPAND_FROM : FG__GPU_BLAS_FROM; }

/* Whether the library does products of a type; 0 is none. */
static bool fg__gpu_blas_has(const fg__gpu_device *d, int type) { return type && (d->blas.ready >> type & 1); }

static const char *fg__gpu_blas_name(int type) { return fg_type_name(type == FG__GPU_BLAS_F16 ? FG_TYPE_F16 : FG_TYPE_BF16); }

static void fg__gpu_blas_end(const fg__gpu_blas *blas, fg__gpu_blas_call *call) {
    if (call->add) (void)blas->api.layout_destroy(call->add);
    if (call->out) (void)blas->api.layout_destroy(call->out);
    if (call->acts) (void)blas->api.layout_destroy(call->acts);
    if (call->weight) (void)blas->api.layout_destroy(call->weight);
    if (call->desc) (void)blas->api.desc_destroy(call->desc);
    memset(call, 0, sizeof(*call));
}

/* The libraries count rows and columns as Fortran does: our rows are their columns. */
static int fg__gpu_blas_describe(const fg__gpu_blas *blas, const fg__gpu_blas_product *p, fg__gpu_blas_call *call) {
    const fg__gpu_blas_api *api = &blas->api;
    int32_t transposed = blas->kind->transposed, found = 0;
    uint64_t workspace = FG__GPU_BLAS_WORKSPACE;
    void *preference = NULL;
    int code = api->desc_create(&call->desc, blas->kind->compute, FG__GPU_BLAS_F32);
    if (!code) code = api->desc_set(call->desc, blas->kind->transpose_a, &transposed, sizeof(transposed));
    if (!code) code = api->layout_create(&call->weight, p->type, (uint64_t)p->k, (uint64_t)p->n, p->weight_stride);
    if (!code) code = api->layout_create(&call->acts, p->type, (uint64_t)p->k, (uint64_t)p->rows, p->acts_stride);
    if (!code)
        code = api->layout_create(&call->out, FG__GPU_BLAS_F32, (uint64_t)p->n, (uint64_t)p->rows, p->out_stride);
    if (!code && p->add) code = api->layout_create(&call->add, FG__GPU_BLAS_F32, (uint64_t)p->n, (uint64_t)p->rows, p->add_stride);
    if (!code) code = api->preference_create(&preference);
    if (!code) code = api->preference_set(preference, FG__GPU_BLAS_MOST_WORKSPACE, &workspace, sizeof(workspace));
    if (!code)
        code = api->heuristic(blas->handle, call->desc, call->weight, call->acts, call->add ? call->add : call->out, call->out,
                              preference, 1, call->found, &found);
    if (preference) (void)api->preference_destroy(preference);
    call->product = *p;
    return code ? code : found < 1;
}

static bool fg__gpu_blas_is_same(const fg__gpu_blas_product *a, const fg__gpu_blas_product *b) {
    return a->type == b->type && a->n == b->n && a->k == b->k && a->rows == b->rows && a->weight_stride == b->weight_stride &&
           a->acts_stride == b->acts_stride && a->out_stride == b->out_stride && !a->add == !b->add &&
           (!a->add || a->add_stride == b->add_stride);
}

/* The call for a product, from those that were kept or made now. 0, or the library's error; then *call is not complete. */
static int fg__gpu_blas_call_of(fg__gpu_blas *blas, const fg__gpu_blas_product *p, fg__gpu_blas_call **call) {
    int i;
    for (i = 0; i < FG__GPU_BLAS_CALLS; i++)
        if (blas->calls[i].desc && fg__gpu_blas_is_same(&blas->calls[i].product, p)) {
            *call = &blas->calls[i];
            return 0;
        }
    *call = &blas->calls[blas->next_call];
    blas->next_call = (blas->next_call + 1) % FG__GPU_BLAS_CALLS;
    fg__gpu_blas_end(blas, *call);
    return fg__gpu_blas_describe(blas, p, *call);
}

/* 0, or the library's error. */
static int fg__gpu_blas_multiply(fg__gpu_device *d, const fg__gpu_blas_product *p) {
    static const float one = 1.0f, zero = 0.0f;
    fg__gpu_blas *blas = &d->blas;
    fg__gpu_blas_call *call;
    int code = fg__gpu_blas_call_of(blas, p, &call);
    if (!code)
        code = blas->api.matmul(blas->handle, call->desc, &one, p->weight, call->weight, p->acts, call->acts, p->add ? &one : &zero,
                                p->add ? p->add : p->out, call->add ? call->add : call->out, p->out, call->out, call->found,
                                blas->workspace.at, FG__GPU_BLAS_WORKSPACE, d->compute);
    if (code) fg__gpu_blas_end(blas, call);
    return code;
}

/* ---- Opening. ---- */

static void fg__gpu_blas_close(fg__gpu_device *d) {
    fg__gpu_blas *blas = &d->blas;
    int i;
    for (i = 0; i < FG__GPU_BLAS_CALLS; i++) fg__gpu_blas_end(blas, &blas->calls[i]);
    if (blas->handle) (void)blas->api.destroy(blas->handle);
    fg__gpu_give(d, &blas->workspace);
    fg__gpu_library_close(blas->library);
    blas->handle = blas->library = NULL;
    blas->ready = 0;
}

/* Opens a library that has all functions and makes a handle, which one that is newer than the driver does not. */
static bool fg__gpu_blas_load(fg__gpu_blas *blas, const char *name) {
    int i, n = (int)FG__COUNT(fg__gpu_cublaslt_names);
    blas->library = name ? fg__gpu_library(name) : NULL;
    if (!blas->library) return false;
    blas->found = true;
    for (i = 0; i < n; i++) {
        fg__gpu_fn function = fg__gpu_symbol(blas->library, blas->kind->names[i]);
        if (!function) break;
        memcpy((char *)&blas->api + (size_t)i * sizeof(function), &function, sizeof(function));
    }
    if (i == n && !blas->api.create(&blas->handle)) return true;
    fg__gpu_library_close(blas->library);
    blas->handle = blas->library = NULL;
    return false;
}

/* The newest library that works, or the one of the environment. */
static bool fg__gpu_blas_find(fg__gpu_blas *blas) {
    const char *own = getenv(blas->kind->variable);
    bool good = false;
    int i;
    if (own && *own) return fg__gpu_blas_load(blas, own);
    for (i = 0; i < 3 && !good; i++) good = fg__gpu_blas_load(blas, blas->kind->libraries[i]);
    return good;
}

enum { FG__GPU_TRY_N = 96, FG__GPU_TRY_K = 64, FG__GPU_TRY_ROWS = 80 };

/* Small whole numbers, whose products have no rounding. */
static int fg__gpu_try_number(int seed, int row, int column) { return (row * 7 + column * 5 + seed + row * column % 11) % 7 - 3; }

static uint16_t fg__gpu_try_bits(int type, int value) {
    return type == FG__GPU_BLAS_F16 ? fg__f32_to_f16((float)value) : fg__f32_to_bf16((float)value);
}

/* A product of known numbers is what it must be. All is on the stream of passes, through the first stage. */
static bool fg__gpu_blas_agrees(fg__gpu_device *d, int type, fg__gpu_pointer at) {
    const size_t weights = FG__GPU_TRY_N * FG__GPU_TRY_K, acts = FG__GPU_TRY_ROWS * FG__GPU_TRY_K, out = FG__GPU_TRY_N * FG__GPU_TRY_ROWS;
    uint16_t *halves = (uint16_t *)(void *)d->stages[0].at;
    float *before = (float *)(void *)(halves + weights + acts);
    const float *got = (const float *)(const void *)d->stages[0].at;
    fg__gpu_blas_product p;
    int i, j, k, wanted;
    for (i = 0; i < FG__GPU_TRY_N + FG__GPU_TRY_ROWS; i++)
        for (k = 0; k < FG__GPU_TRY_K; k++)
            halves[i * FG__GPU_TRY_K + k] = fg__gpu_try_bits(type, fg__gpu_try_number(type, i, k));
    for (i = 0; i < FG__GPU_TRY_ROWS; i++)
        for (j = 0; j < FG__GPU_TRY_N; j++) before[i * FG__GPU_TRY_N + j] = (float)fg__gpu_try_number(type + 1, i, j);
    memset(&p, 0, sizeof(p));
    p.type = type;
    p.n = FG__GPU_TRY_N, p.k = FG__GPU_TRY_K, p.rows = FG__GPU_TRY_ROWS;
    p.weight = at, p.acts = at + weights * 2, p.out = at + (weights + acts) * 2;
    p.weight_stride = p.acts_stride = FG__GPU_TRY_K;
    p.out_stride = FG__GPU_TRY_N;
    if (type == FG__GPU_BLAS_BF16) p.add = p.out, p.add_stride = p.out_stride; /* as plans do */
    if (d->api.copy_to_device(at, halves, (weights + acts) * 2 + out * sizeof(float), d->compute) || fg__gpu_blas_multiply(d, &p) ||
        d->api.stream_wait(d->compute) || d->api.copy_to_host(d->stages[0].at, p.out, out * sizeof(float), d->compute) || d->api.stream_wait(d->compute))
        return false;
    for (i = 0; i < FG__GPU_TRY_ROWS; i++)
        for (j = 0; j < FG__GPU_TRY_N; j++) {
            for (wanted = p.add ? fg__gpu_try_number(type + 1, i, j) : 0, k = 0; k < FG__GPU_TRY_K; k++)
                wanted += fg__gpu_try_number(type, FG__GPU_TRY_N + i, k) * fg__gpu_try_number(type, j, k);
            if (got[i * FG__GPU_TRY_N + j] != (float)wanted) return false;
        }
    return true;
}

/* Finds the library and makes what its calls need. The device was entered. */
static bool fg__gpu_blas_begin(fg__gpu_device *d) {
    fg__gpu_blas *blas = &d->blas;
    blas->kind = d->loader.driver->is_hip ? &fg__gpu_hipblaslt : &fg__gpu_cublaslt;
    return fg__gpu_blas_find(blas) && fg__gpu_take(d, FG__GPU_BLAS_WORKSPACE, &blas->workspace) == FG_OK;
}

/* Products of a type agree. */
static bool fg__gpu_blas_holds(fg__gpu_device *d, int type) {
    fg__gpu_range room;
    bool holds;
    room.at = 0;
    holds = fg__gpu_take(d, 1 << 20, &room) == FG_OK && fg__gpu_copies_wait(d) == FG_OK && fg__gpu_blas_agrees(d, type, room.at);
    if (!holds) fg__gpu_settle(d);
    fg__gpu_give(d, &room);
    return holds;
}

#endif /* FG_GPU_BLAS_H */
