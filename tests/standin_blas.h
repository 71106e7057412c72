/* The functions of cuBLASLt and hipBLASLt that backends/cuda/fg_gpu_blas.h calls, for the stand-in driver: a product is a command of
   its stream. Strict: layouts that do not fit, places that are not on the device, a workspace too small are violations. Included by
   standin_gpu.c. */

enum { SI_BLAS_HANDLE = 1, SI_BLAS_DESC, SI_BLAS_LAYOUT, SI_BLAS_PREFERENCE };
enum { SI_BLAS_ALGORITHM = 0x5A5A };

typedef struct si_blas_object {
    struct si_blas_object *next;
    int kind, type, compute, transposed;
    uint64_t rows, columns, most;
    int64_t stride;
} si_blas_object;

typedef struct si_product {
    si_blas_object a, b, c, d;
    const uint16_t *x, *y;
    const float *add; /* NULL: nothing */
    float *to;
} si_product;

/* Every call begins with this: those that were told to fail have their own numbers. */
static int si_blas_begin(void) {
    if (si.blas_calls++ == si.blas.fail_at) return 14;
    return si_begin() ? 14 : 0; /* "internal error", in both */
}

static int si_blas_new(void **out, const si_blas_object *as) {
    si_blas_object *o;
    int code = si_blas_begin();
    *out = NULL;
    if (code) return code;
    o = (si_blas_object *)malloc(sizeof(*o));
    if (!o) return 3;
    *o = *as;
    o->next = si.blas_list;
    si.blas_list = o;
    si.blas_objects++;
    *out = o;
    return 0;
}

static si_blas_object *si_blas_get(void *object, int kind) {
    si_blas_object *o;
    for (o = (si_blas_object *)si.blas_list; o; o = o->next)
        if (o == object && o->kind == kind) return o;
    si_violation("a BLAS object of kind %d that does not exist", kind);
    return NULL;
}

static int si_blas_free(void *object, int kind) {
    si_blas_object *o = si_blas_get(object, kind), *at = (si_blas_object *)si.blas_list;
    if (!o) return 7;
    if (at == o) si.blas_list = o->next;
    else {
        while (at->next != o) at = at->next;
        at->next = o->next;
    }
    free(o);
    si.blas_objects--;
    return 0;
}

static float si_blas_value(const uint16_t *from, int type) {
    return type == 2 ? hg_half_to_float(*from) : fgk_bfloat_to_float(*from);
}

/* Column c of d: rows of a and b run along k. */
static int si_blas_run(const void *args) {
    const si_product *p = (const si_product *)args;
    uint64_t r, c, k;
    si.products++;
    if (si.blas.wrong == 2) return SI_ILLEGAL_INSTRUCTION;
    for (c = 0; c < p->d.columns; c++)
        for (r = 0; r < p->d.rows; r++) {
            const uint16_t *x = p->x + r * (uint64_t)p->a.stride, *y = p->y + c * (uint64_t)p->b.stride;
            double sum = 0;
            for (k = 0; k < p->a.rows; k++) sum += (double)si_blas_value(x + k, p->a.type) * (double)si_blas_value(y + k, p->b.type);
            p->to[c * (uint64_t)p->d.stride + r] = (float)sum + (si.blas.wrong ? 1.0f : 0.0f) + (p->add ? p->add[c * (uint64_t)p->c.stride + r] : 0.0f);
        }
    return 0;
}

static bool si_blas_on_device(const void *at, const si_blas_object *l, size_t size) {
    const si_memory *m = si_find(at, ((l->columns - 1) * (uint64_t)l->stride + l->rows) * size);
    return m && !m->pinned && (size_t)at % 16 == 0 && l->stride >= (int64_t)l->rows && (l->stride * (int64_t)size) % 16 == 0;
}

static int si_blas_multiply(int compute, int transposed, void *handle, void *desc, const float *alpha, const void *a, void *la, const void *b,
                            void *lb, const float *beta, const void *c, void *lc, void *d, void *ld, const int *algorithm, void *workspace,
                            size_t bytes, si_stream *stream) {
    const si_blas_object *o = si_blas_get(desc, SI_BLAS_DESC), *x = si_blas_get(la, SI_BLAS_LAYOUT), *y = si_blas_get(lb, SI_BLAS_LAYOUT);
    const si_blas_object *z = si_blas_get(ld, SI_BLAS_LAYOUT), *w = si_blas_get(lc, SI_BLAS_LAYOUT);
    si_command command;
    si_product *p;
    int code = si_blas_begin();
    if (code) return code;
    if (!si_blas_get(handle, SI_BLAS_HANDLE) || !o || !x || !y || !z || !w || !si_known_stream(stream)) return 7;
    if (o->compute != compute || o->type != 0 || o->transposed != transposed || *alpha != 1.0f || (*beta != 0.0f && *beta != 1.0f) ||
        (*beta == 0.0f && (c != d || lc != ld)) || w->type != 0 || w->rows != z->rows || w->columns != z->columns || (c == d && w->stride != z->stride) ||
        x->type != y->type || (x->type != 2 && x->type != 14) || z->type != 0 || x->rows != y->rows || z->rows != x->columns ||
        z->columns != y->columns || *algorithm != SI_BLAS_ALGORITHM || !si_find(workspace, bytes) || si_find(workspace, 1)->pinned ||
        !si_blas_on_device(a, x, 2) || !si_blas_on_device(b, y, 2) || !si_blas_on_device(d, z, 4) || !si_blas_on_device(c, w, 4)) {
        si_violation("a product of %llu x %llu by %llu x %llu that is not what the library takes", (unsigned long long)x->columns,
                     (unsigned long long)x->rows, (unsigned long long)y->rows, (unsigned long long)y->columns);
        return 7;
    }
    if (stream->capture && si.blas.no_capture) {
        stream->capture_broken = true;
        return 14;
    }
    memset(&command, 0, sizeof(command));
    command.kind = SI_MATMUL;
    command.bytes = sizeof(*p);
    command.args = (unsigned char *)malloc(sizeof(*p));
    p = (si_product *)(void *)command.args;
    if (!p) return 3;
    p->a = *x, p->b = *y, p->c = *w, p->d = *z;
    p->add = *beta == 0.0f ? NULL : (const float *)c;
    p->x = (const uint16_t *)a, p->y = (const uint16_t *)b;
    p->to = (float *)d;
    code = si_enqueue(stream, &command);
    if (code) si_command_free(&command);
    return code ? 3 : 0;
}

static int si_blas_create(void **handle) {
    si_blas_object o;
    memset(&o, 0, sizeof(o));
    o.kind = SI_BLAS_HANDLE;
    if (si_depth < 1 && si_hip_device != 0) si_violation("a BLAS handle without a context");
    return si_blas_new(handle, &o);
}

static int si_blas_desc(void **desc, int compute, int scale) {
    si_blas_object o;
    memset(&o, 0, sizeof(o));
    o.kind = SI_BLAS_DESC;
    o.compute = compute;
    o.type = scale;
    return si_blas_new(desc, &o);
}

static int si_blas_desc_set(void *desc, int attribute, int wanted, const void *value, size_t bytes) {
    si_blas_object *o = si_blas_get(desc, SI_BLAS_DESC);
    int code = si_blas_begin();
    if (code) return code;
    if (!o || attribute != wanted || bytes != 4) return 7;
    memcpy(&o->transposed, value, 4);
    return 0;
}

static int si_blas_layout(void **layout, int type, uint64_t rows, uint64_t columns, int64_t stride) {
    si_blas_object o;
    memset(&o, 0, sizeof(o));
    o.kind = SI_BLAS_LAYOUT;
    o.type = type;
    o.rows = rows;
    o.columns = columns;
    o.stride = stride;
    return si_blas_new(layout, &o);
}

static int si_blas_preference(void **preference) {
    si_blas_object o;
    memset(&o, 0, sizeof(o));
    o.kind = SI_BLAS_PREFERENCE;
    return si_blas_new(preference, &o);
}

static int si_blas_preference_set(void *preference, int attribute, const void *value, size_t bytes) {
    si_blas_object *o = si_blas_get(preference, SI_BLAS_PREFERENCE);
    int code = si_blas_begin();
    if (code) return code;
    if (!o || attribute != 1 || bytes != 8) return 7;
    memcpy(&o->most, value, 8);
    return 0;
}

static int si_blas_heuristic(void *a, void *preference, int wanted, void *results, int *found) {
    const int algorithm = SI_BLAS_ALGORITHM;
    const si_blas_object *o = si_blas_get(a, SI_BLAS_LAYOUT);
    int code = si_blas_begin();
    *found = 0;
    if (code) return code;
    if (!o || (si.blas.without && o->type == si.blas.without)) return o ? 15 : 7; /* "not supported" */
    if (!si_blas_get(preference, SI_BLAS_PREFERENCE) || wanted != 1) return 7;
    memset(results, 0, 96);
    memcpy(results, &algorithm, sizeof(algorithm));
    *found = 1;
    return 0;
}

/* A handle's end needs rest, as freeing memory does. */
static int si_blas_destroy(void *handle) {
    si_must_rest("a BLAS handle is destroyed");
    return si_blas_free(handle, SI_BLAS_HANDLE);
}

int cublasLtCreate(void **handle) { return si_blas_create(handle); }
int cublasLtDestroy(void *handle) { return si_blas_destroy(handle); }
int cublasLtMatmulDescCreate(void **desc, int compute, int scale) { return si_blas_desc(desc, compute, scale); }
int cublasLtMatmulDescDestroy(void *desc) { return si_blas_free(desc, SI_BLAS_DESC); }
int cublasLtMatmulDescSetAttribute(void *desc, int attribute, const void *value, size_t bytes) {
    return si_blas_desc_set(desc, attribute, 3, value, bytes);
}
int cublasLtMatrixLayoutCreate(void **layout, int type, uint64_t rows, uint64_t columns, int64_t stride) {
    return si_blas_layout(layout, type, rows, columns, stride);
}
int cublasLtMatrixLayoutDestroy(void *layout) { return si_blas_free(layout, SI_BLAS_LAYOUT); }
int cublasLtMatmulPreferenceCreate(void **preference) { return si_blas_preference(preference); }
int cublasLtMatmulPreferenceDestroy(void *preference) { return si_blas_free(preference, SI_BLAS_PREFERENCE); }
int cublasLtMatmulPreferenceSetAttribute(void *preference, int attribute, const void *value, size_t bytes) {
    return si_blas_preference_set(preference, attribute, value, bytes);
}
int cublasLtMatmulAlgoGetHeuristic(void *handle, void *desc, void *a, void *b, void *c, void *d, void *preference, int wanted, void *results,
                                   int *found) {
    (void)handle, (void)desc, (void)b, (void)c, (void)d;
    return si_blas_heuristic(a, preference, wanted, results, found);
}
int cublasLtMatmul(void *handle, void *desc, const void *alpha, const void *a, void *la, const void *b, void *lb, const void *beta, const void *c,
                   void *lc, void *d, void *ld, const void *algorithm, void *workspace, size_t bytes, void *stream) {
    return si_blas_multiply(68, 1, handle, desc, (const float *)alpha, a, la, b, lb, (const float *)beta, c, lc, d, ld, (const int *)algorithm,
                            workspace, bytes, (si_stream *)stream);
}

int hipblasLtCreate(void **handle) { return si_blas_create(handle); }
int hipblasLtDestroy(void *handle) { return si_blas_destroy(handle); }
int hipblasLtMatmulDescCreate(void **desc, int compute, int scale) { return si_blas_desc(desc, compute, scale); }
int hipblasLtMatmulDescDestroy(void *desc) { return si_blas_free(desc, SI_BLAS_DESC); }
int hipblasLtMatmulDescSetAttribute(void *desc, int attribute, const void *value, size_t bytes) {
    return si_blas_desc_set(desc, attribute, 0, value, bytes);
}
int hipblasLtMatrixLayoutCreate(void **layout, int type, uint64_t rows, uint64_t columns, int64_t stride) {
    return si_blas_layout(layout, type, rows, columns, stride);
}
int hipblasLtMatrixLayoutDestroy(void *layout) { return si_blas_free(layout, SI_BLAS_LAYOUT); }
int hipblasLtMatmulPreferenceCreate(void **preference) { return si_blas_preference(preference); }
int hipblasLtMatmulPreferenceDestroy(void *preference) { return si_blas_free(preference, SI_BLAS_PREFERENCE); }
int hipblasLtMatmulPreferenceSetAttribute(void *preference, int attribute, const void *value, size_t bytes) {
    return si_blas_preference_set(preference, attribute, value, bytes);
}
int hipblasLtMatmulAlgoGetHeuristic(void *handle, void *desc, void *a, void *b, void *c, void *d, void *preference, int wanted, void *results,
                                    int *found) {
    (void)handle, (void)desc, (void)b, (void)c, (void)d;
    return si_blas_heuristic(a, preference, wanted, results, found);
}
int hipblasLtMatmul(void *handle, void *desc, const void *alpha, const void *a, void *la, const void *b, void *lb, const void *beta, const void *c,
                    void *lc, void *d, void *ld, const void *algorithm, void *workspace, size_t bytes, void *stream) {
    return si_blas_multiply(2, 112, handle, desc, (const float *)alpha, a, la, b, lb, (const float *)beta, c, lc, d, ld, (const int *)algorithm,
                            workspace, bytes, (si_stream *)stream);
}
