/* fg_gpu_host.h: what the CUDA and the HIP backend of fastgen.h do on the host.       Public domain or MIT, as fastgen.h.

   Included by fg_cuda.h and fg_hip.h. The two drivers have the same functions under other names, so that one table of
   function pointers (fg__gpu_api), filled at run time, serves for both; kernels.h says what kernels there are. */

#ifndef FG_GPU_HOST_H
#define FG_GPU_HOST_H

#ifdef __cplusplus
extern "C" {
#endif

/* fg_engine_desc.backend_options of fg_backend_cuda and fg_backend_hip; all zero is the default. */
typedef struct fg_gpu_options {
    const void *image;    /* compiled kernels in place of those built in: a cubin, fat binary, PTX or code object */
    bool no_graphs;       /* kernels are launched one by one, not as graphs, which take up to 512 MiB, or 1/16 of the device's memory */
    bool force_graphs;    /* graphs also with a driver that is known to run them wrongly (ROCm 7.2) */
    bool no_blas;         /* cuBLASLt or hipBLASLt does not take part in large products, though it is installed */
    bool plain_products;  /* neither by wgmma (Hopper; attention as well) nor of bytes (gfx906, gfx103x), but as on other devices */
    bool no_early;        /* a kernel begins when the one before has ended; else, on Hopper and later, while that one still runs */
    bool invariant;       /* a request's bits do not depend on what runs beside it; slower with few rows */
    size_t spare_bytes;   /* device memory to leave to others; 0: 64 MiB */
    size_t scratch_bytes; /* for partial sums of attention; where a pass has more, its attention runs in turns; 0: 1/256 of the device's memory,
                             64 MiB at least. And for the halves of weights for a library; where a matrix has more, it is multiplied in pieces;
                             0: 128 MiB */
} fg_gpu_options;

#ifdef __cplusplus
}
#endif
#endif /* FG_GPU_HOST_H */

#if defined(FASTGEN_IMPLEMENTATION) && !defined(FG__GPU_IMPLEMENTED)
#define FG__GPU_IMPLEMENTED

#if !FG__WINDOWS
#include <dlfcn.h>
#endif
#include "kernels.h"

/* ================================================================================================
   The driver: its functions, found at run time. tests/test_gpu_abi.cpp compares them with the official headers.
   Device pointers are 64 bits, handles are pointers, results and devices are int, in both.
   ================================================================================================ */

#if FG__WINDOWS
#define FG__GPU_CALL __stdcall
#else
#define FG__GPU_CALL
#endif

typedef void (*fg__gpu_fn)(void);
typedef uint64_t fg__gpu_pointer; /* into device memory */

enum { FG__GPU_OUT_OF_MEMORY = 2, FG__GPU_NO_BINARY = 209 };

enum {
    FG__GPU_SHARED_BYTES,
    FG__GPU_WARP,
    FG__GPU_PROCESSORS,
    FG__GPU_MAJOR,
    FG__GPU_MINOR,
    FG__GPU_SHARED_MOST,
    FG__GPU_INTEGRATED, /* its memory is the host's */
    FG__GPU_ATTRIBUTES
};

/* One driver has contexts, which are pushed and popped, the other a device for each thread. */
typedef struct fg__gpu_api {
    int(FG__GPU_CALL *init)(unsigned flags);
    int(FG__GPU_CALL *driver_version)(int *version);
    int(FG__GPU_CALL *device_count)(int *n);
    int(FG__GPU_CALL *device_get)(int *device, int index);
    int(FG__GPU_CALL *device_name)(char *name, int size, int device);
    int(FG__GPU_CALL *device_attribute)(int *value, int attribute, int device);
    int(FG__GPU_CALL *device_memory)(size_t *bytes, int device);
    int(FG__GPU_CALL *context_retain)(void **context, int device);
    int(FG__GPU_CALL *context_release)(int device);
    int(FG__GPU_CALL *context_push)(void *context);
    int(FG__GPU_CALL *context_pop)(void **context);
    int(FG__GPU_CALL *context_create)(void **context, unsigned flags, int device); /* which is pushed, too */
    int(FG__GPU_CALL *context_destroy)(void *context);
    int(FG__GPU_CALL *get_device)(int *device);
    int(FG__GPU_CALL *set_device)(int device);
    int(FG__GPU_CALL *device_properties)(void *properties, int device);
    int(FG__GPU_CALL *memory_info)(size_t *free_bytes, size_t *total);
    int(FG__GPU_CALL *memory_alloc)(fg__gpu_pointer *at, size_t bytes);
    int(FG__GPU_CALL *memory_free)(fg__gpu_pointer at);
    int(FG__GPU_CALL *host_alloc)(void **at, size_t bytes, unsigned flags);
    int(FG__GPU_CALL *host_free)(void *at);
    int(FG__GPU_CALL *copy_to_device)(fg__gpu_pointer to, const void *from, size_t bytes, void *stream);
    int(FG__GPU_CALL *copy_to_host)(void *to, fg__gpu_pointer from, size_t bytes, void *stream);
    int(FG__GPU_CALL *copy_on_device)(fg__gpu_pointer to, fg__gpu_pointer from, size_t bytes, void *stream);
    int(FG__GPU_CALL *fill)(fg__gpu_pointer to, unsigned char value, size_t bytes, void *stream);
    int(FG__GPU_CALL *stream_create)(void **stream, unsigned flags);
    int(FG__GPU_CALL *stream_destroy)(void *stream);
    int(FG__GPU_CALL *stream_wait)(void *stream);
    int(FG__GPU_CALL *stream_wait_event)(void *stream, void *event, unsigned flags);
    int(FG__GPU_CALL *event_create)(void **event, unsigned flags);
    int(FG__GPU_CALL *event_destroy)(void *event);
    int(FG__GPU_CALL *event_record)(void *event, void *stream);
    int(FG__GPU_CALL *event_wait)(void *event);
    int(FG__GPU_CALL *module_load)(void **module, const void *image);
    int(FG__GPU_CALL *module_unload)(void *module);
    int(FG__GPU_CALL *module_function)(void **function, void *module, const char *name);
    int(FG__GPU_CALL *function_attribute)(void *function, int attribute, int value); /* NULL with HIP */
    int(FG__GPU_CALL *launch)(void *function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y,
                              unsigned block_z, unsigned shared_bytes, void *stream, void **parameters, void **extra);
    int(FG__GPU_CALL *capture_begin)(void *stream, int mode);
    int(FG__GPU_CALL *capture_end)(void *stream, void **graph);
    int(FG__GPU_CALL *graph_instantiate)(void **exec, void *graph, unsigned long long flags);
    int(FG__GPU_CALL *graph_launch)(void *exec, void *stream);
    int(FG__GPU_CALL *graph_exec_destroy)(void *exec);
    int(FG__GPU_CALL *graph_destroy)(void *graph);
} fg__gpu_api;

/* cuLaunchKernelEx, which not every driver has, and its arguments. */
typedef struct fg__gpu_launch_attribute {
    int id; /* 6: this kernel may begin before the last one has ended */
    int unused;
    union {
        int allowed;
        char bytes[64];
    } value;
} fg__gpu_launch_attribute;

typedef struct fg__gpu_launch_config {
    unsigned grid[3], block[3], shared_bytes;
    void *stream;
    fg__gpu_launch_attribute *attributes;
    unsigned n_attributes;
} fg__gpu_launch_config;

typedef int(FG__GPU_CALL *fg__gpu_launch_ex)(const fg__gpu_launch_config *config, void *function, void **parameters, void **extra);

#define FG__GPU_FUNCTIONS ((int)(sizeof(fg__gpu_api) / sizeof(fg__gpu_fn)))

struct fg__gpu_device;
struct fg__gpu_image;

/* One of the two drivers. */
typedef struct fg__gpu_driver {
    const char *name, *label, *variable; /* the variable of the environment with the library's name */
    const char *libraries[4];            /* the first of them that there is */
    const char *const *names;            /* of the functions; NULL: has none */
    const int *attributes;               /* numbers of FG__GPU_ATTRIBUTES; -1: has none */
    int least_version;                   /* of driver_version */
    bool is_hip;
    fg_result (*compile)(struct fg__gpu_device *d, const struct fg__gpu_image *source); /* when no image suits; NULL: cannot */
} fg__gpu_driver;

/* Compiled kernels, packed (see fg__gpu_unpack_image) and cut into strings of a length that every compiler takes. */
typedef struct fg__gpu_image {
    const char *target;        /* "sm_80", "compute_75" (PTX), "gfx1100", "gfx11-generic"; "source" */
    const char *const *pieces; /* FG__GPU_PIECE bytes each, but for the last */
    size_t packed_bytes, bytes;
} fg__gpu_image;

enum { FG__GPU_PIECE = 4000 };

typedef struct fg__gpu_loader {
    const fg__gpu_driver *driver;
    void *library;
    int version; /* of the driver */
    fg__gpu_api api;
    fg__gpu_launch_ex launch_ex; /* NULL: there is none */
} fg__gpu_loader;

static fg__gpu_fn fg__gpu_symbol(void *library, const char *name) {
    fg__gpu_fn function = NULL;
#if FG__WINDOWS
    FARPROC found = GetProcAddress((HMODULE)library, name);
#else
    void *found = dlsym(library, name);
#endif
    memcpy(&function, &found, sizeof(function));
    return function;
}

static void *fg__gpu_library(const char *name) {
#if FG__WINDOWS
    return (void *)LoadLibraryA(name);
#else
    return dlopen(name, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE); /* drivers have threads, and do not like to be unloaded */
#endif
}

static void fg__gpu_library_close(void *library) {
#if FG__WINDOWS
    if (library) FreeLibrary((HMODULE)library);
#else
    if (library) dlclose(library);
#endif
}

static void fg__gpu_loader_close(fg__gpu_loader *loader) {
    fg__gpu_library_close(loader->library);
    memset(loader, 0, sizeof(*loader));
}

static fg_result fg__gpu_loader_fill(fg__gpu_loader *loader) {
    const fg__gpu_driver *driver = loader->driver;
    const char *own = getenv(driver->variable);
    int i;
    if (own && *own) loader->library = fg__gpu_library(own);
    for (i = 0; i < FG__COUNT(driver->libraries) && !(own && *own) && !loader->library; i++)
        if (driver->libraries[i]) loader->library = fg__gpu_library(driver->libraries[i]);
    if (!loader->library)
        return fg__fail(FG_ERROR_NOT_FOUND, "there is no %s driver (%s)", driver->label,
                        own && *own ? own : driver->libraries[0]);
    for (i = 0; i < FG__GPU_FUNCTIONS; i++) {
        fg__gpu_fn function = driver->names[i] ? fg__gpu_symbol(loader->library, driver->names[i]) : NULL;
        if (!function && driver->names[i] && strcmp(driver->names[i], "hipGetDevicePropertiesR0600") == 0)
            function = fg__gpu_symbol(loader->library, "hipGetDeviceProperties"); /* before ROCm 6 */
        if (!function && driver->names[i])
            return fg__fail(FG_ERROR_NOT_FOUND, "the %s driver has no %s: it is too old", driver->label,
                            driver->names[i]);
        memcpy((char *)&loader->api + (size_t)i * sizeof(function), &function, sizeof(function));
    }
    if (!driver->is_hip) {
        fg__gpu_fn function = fg__gpu_symbol(loader->library, "cuLaunchKernelEx");
        memcpy(&loader->launch_ex, &function, sizeof(function));
    }
    return FG_OK;
}

static fg_result fg__gpu_loader_open(fg__gpu_loader *loader, const fg__gpu_driver *driver) {
    int version = 0, code;
    fg_result r;
    memset(loader, 0, sizeof(*loader));
    loader->driver = driver;
    if ((r = fg__gpu_loader_fill(loader)) == FG_OK) {
        code = loader->api.init(0);
        if (code) r = fg__fail(FG_ERROR_NOT_FOUND, "%s does not start: error %d", driver->label, code);
        else if (loader->api.driver_version(&version) || version < driver->least_version)
            r = fg__fail(FG_ERROR_NOT_FOUND, "the %s driver is too old: its version is %d, and %d is needed", driver->label, version,
                         driver->least_version);
    }
    loader->version = version;
    if (r != FG_OK) fg__gpu_loader_close(loader);
    return r;
}

static int fg__gpu_probe(const fg__gpu_driver *driver) {
    fg__gpu_loader loader;
    int n = 0;
    if (fg__gpu_loader_open(&loader, driver) != FG_OK) return 0;
    if (loader.api.device_count(&n)) n = 0;
    fg__gpu_loader_close(&loader);
    return FG__MAX(n, 0);
}

/* ================================================================================================
   Devices
   ================================================================================================ */

enum {
    FG__GPU_STAGING = 4 << 20,
    FG__GPU_STAGES = 2,
    FG__GPU_ALIGN = 256,
    FG__GPU_BLOCKS = 2 /* passes that may be in flight */
};

/* A range of device memory. */
typedef struct fg__gpu_range {
    fg__gpu_pointer at;
    size_t bytes;
} fg__gpu_range;

/* Pinned host memory on its way to or from the device; `event` comes when the last copy of it is done. */
typedef struct fg__gpu_stage {
    char *at;
    void *event;
    bool busy;
} fg__gpu_stage;

/* cuBLASLt or hipBLASLt, see fg_gpu_blas.h. Objects are pointers, results and enumerations int, in both. */
typedef struct fg__gpu_blas_api {
    int(FG__GPU_CALL *create)(void **handle);
    int(FG__GPU_CALL *destroy)(void *handle);
    int(FG__GPU_CALL *desc_create)(void **desc, int compute, int scale);
    int(FG__GPU_CALL *desc_destroy)(void *desc);
    int(FG__GPU_CALL *desc_set)(void *desc, int attribute, const void *value, size_t bytes);
    int(FG__GPU_CALL *layout_create)(void **layout, int type, uint64_t rows, uint64_t columns, int64_t stride);
    int(FG__GPU_CALL *layout_destroy)(void *layout);
    int(FG__GPU_CALL *preference_create)(void **preference);
    int(FG__GPU_CALL *preference_destroy)(void *preference);
    int(FG__GPU_CALL *preference_set)(void *preference, int attribute, const void *value, size_t bytes);
    int(FG__GPU_CALL *heuristic)(void *handle, void *desc, void *a, void *b, void *c, void *d, void *preference, int most, void *results,
                                 int *found);
    int(FG__GPU_CALL *matmul)(void *handle, void *desc, const void *alpha, fg__gpu_pointer a, void *a_layout, fg__gpu_pointer b, void *b_layout,
                              const void *beta, fg__gpu_pointer c, void *c_layout, fg__gpu_pointer d, void *d_layout, const void *algorithm,
                              fg__gpu_pointer workspace, size_t workspace_bytes, void *stream);
} fg__gpu_blas_api;

typedef struct fg__gpu_blas_kind {
    const char *label, *variable;
    const char *libraries[3];
    const char *const *names; /* of the functions */
    int compute, transpose_a, transposed;
} fg__gpu_blas_kind;

/* out[rows, n] = acts[rows, k] . weight[n, k]^T + add[rows, n], as floats; type: FG__GPU_BLAS_F16 or BF16 of both. Strides in elements.
   add may be 0; it may be out. */
typedef struct fg__gpu_blas_product {
    int type;
    int32_t n, k, rows;
    fg__gpu_pointer weight, acts, out, add;
    int32_t weight_stride, acts_stride, out_stride, add_stride;
} fg__gpu_blas_product;

/* What a call of the library needs; the pointers are NULL or must be destroyed. */
typedef struct fg__gpu_blas_call {
    fg__gpu_blas_product product; /* its shape; the pointers do not matter, but for whether something is added */
    void *desc, *weight, *acts, *out, *add;
    uint64_t found[64]; /* the result of the search begins with the algorithm; 96 bytes, or fewer */
} fg__gpu_blas_call;

enum { FG__GPU_BLAS_CALLS = 64 }; /* more than the passes of a model that come again and again have */

typedef struct fg__gpu_blas {
    const fg__gpu_blas_kind *kind;
    fg__gpu_blas_api api;
    void *library, *handle;
    bool found; /* a library, which need not work */
    fg__gpu_range workspace;
    fg__gpu_blas_call calls[FG__GPU_BLAS_CALLS]; /* kept, because the search takes longer than many a product; desc is NULL: none */
    int next_call;                               /* which gives way to a new one: the oldest */
    uint32_t tried, ready; /* types of products, a bit for each (fg_gpu_blas.h) */
} fg__gpu_blas;

typedef struct fg__gpu_device {
    fg__env env;
    fg__gpu_loader loader;
    fg__gpu_api api;
    fg_gpu_options options;
    char name[128], isa[64];
    int index, handle, attributes[FG__GPU_ATTRIBUTES], before; /* before: HIP's device of the calling thread */
    size_t memory;
    void *context;
    bool own_context;   /* it was created, and is not the one that all of the process share */
    bool is_open, lost; /* is_open: memory, streams and so on may exist */
    const struct fg__gpu_image *image; /* of `module`; NULL: options.image, or compiled here */
    void *compute, *copies;   /* streams */
    void *down, *up;          /* streams of what crosses over while passes run: to the host and to the device, each in its order */
    void *passed, *copied;    /* events: the last pass is done; the last copy is */
    bool has_passed, has_copied;
    fg__gpu_stage stages[FG__GPU_STAGES];
    void *module;
    void *functions[FG_GPU_KERNEL_COUNT];
    fg__gpu_blas blas;
    uint32_t special_tried, special_ready; /* see fg_gpu_special.h: types of weights, a bit for each place in FG_GPU_TYPES; above them
                                              kernels of attention, from FG_GPU_KERNEL_widewg64_F16 on */
    struct fg__gpu_weight *weights;
} fg__gpu_device;

/* Errors after which a context is of no more use: of hardware, of kernels, and a context that is gone. */
static bool fg__gpu_is_fatal(int code) {
    return code == 46 || code == 214 || code == 700 || code == 702 || code == 709 || code == 710 || (code >= 714 && code <= 719);
}

static fg_result fg__gpu_check(fg__gpu_device *d, int code, const char *what) {
    const char *label = d->loader.driver->label;
    if (!code) return FG_OK;
    if (code == FG__GPU_OUT_OF_MEMORY)
        return fg__fail(FG_ERROR_OUT_OF_MEMORY, "%s: %s is out of memory", what, d->name);
    if (!fg__gpu_is_fatal(code)) return fg__fail(FG_ERROR_DEVICE, "%s: %s error %d", what, label, code);
    d->lost = true;
    return fg__fail(FG_ERROR_DEVICE, "%s: the device was lost (%s error %d)", what, label, code);
}

/* Every function of the table begins with this and ends with fg__gpu_leave, also where it fails: the thread's own context
   is as before when they return. */
static fg_result fg__gpu_enter(fg__gpu_device *d) {
    if (!d->loader.driver->is_hip)
        return fg__gpu_check(d, d->api.context_push(d->context), "entering the device's context");
    if (d->api.get_device(&d->before)) d->before = 0;
    return fg__gpu_check(d, d->api.set_device(d->handle), "choosing the device");
}

static void fg__gpu_leave(fg__gpu_device *d) {
    void *context;
    if (d->loader.driver->is_hip) (void)d->api.set_device(d->before);
    else (void)d->api.context_pop(&context);
}

/* ---- Memory. ---- */

/* What is free of a device whose memory is the host's leaves out what files are kept in, which the system gives to who asks: its driver
   alone knows whether there is room. */
static fg_result fg__gpu_take(fg__gpu_device *d, size_t bytes, fg__gpu_range *range) {
    size_t room = 0, total = 0, spare = d->options.spare_bytes ? d->options.spare_bytes : (size_t)64 << 20;
    fg_result r;
    range->at = 0;
    range->bytes = fg__round_up(FG__MAX(bytes, 4), FG__GPU_ALIGN);
    if ((r = fg__gpu_check(d, d->api.memory_info(&room, &total), "asking for free memory")) != FG_OK) return r;
    spare = FG__MIN(spare, total / 64);
    if (d->attributes[FG__GPU_INTEGRATED]) room = total;
    if (range->bytes > room || room - range->bytes < spare)
        return fg__fail(FG_ERROR_OUT_OF_MEMORY, "%s has no room for another %.1f MiB", d->name,
                        (double)range->bytes / 1048576.0);
    return fg__gpu_check(d, d->api.memory_alloc(&range->at, range->bytes), "device memory");
}

static void fg__gpu_give(fg__gpu_device *d, fg__gpu_range *range) {
    if (range->at) (void)d->api.memory_free(range->at);
    range->at = 0;
}

static fg_result fg__gpu_take_host(fg__gpu_device *d, size_t bytes, void **at) {
    *at = NULL;
    return fg__gpu_check(d, d->api.host_alloc(at, FG__MAX(bytes, 4), 0), "pinned memory");
}

static void fg__gpu_give_host(fg__gpu_device *d, void *at) {
    if (at) (void)d->api.host_free(at);
}

/* ---- Copies between the host and the device: through two stages in turn, on a stream of their own. ---- */

/* Copies come after the last pass. */
static fg_result fg__gpu_copies_begin(fg__gpu_device *d) {
    if (d->lost) return fg__fail(FG_ERROR_DEVICE, "%s was lost", d->name);
    if (!d->has_passed) return FG_OK;
    return fg__gpu_check(d, d->api.stream_wait_event(d->copies, d->passed, 0), "ordering copies");
}

/* The next pass comes after them. */
static fg_result fg__gpu_copies_end(fg__gpu_device *d) {
    fg_result r = fg__gpu_check(d, d->api.event_record(d->copied, d->copies), "ordering copies");
    if (r == FG_OK) d->has_copied = true;
    return r;
}

static fg_result fg__gpu_stage_wait(fg__gpu_device *d, fg__gpu_stage *stage) {
    if (!stage->busy) return FG_OK;
    stage->busy = false;
    return fg__gpu_check(d, d->api.event_wait(stage->event), "waiting for a copy");
}

static fg_result fg__gpu_stage_mark(fg__gpu_device *d, fg__gpu_stage *stage) {
    fg_result r = fg__gpu_check(d, d->api.event_record(stage->event, d->copies), "marking a copy");
    stage->busy = r == FG_OK;
    return r;
}

static fg_result fg__gpu_copies_wait(fg__gpu_device *d) {
    int i;
    for (i = 0; i < FG__GPU_STAGES; i++) d->stages[i].busy = false;
    return fg__gpu_check(d, d->api.stream_wait(d->copies), "waiting for copies");
}

/* Where bytes lie on the device: `n` blocks of `bytes` each, at base + number * stride; numbers NULL: 0, 1 and so on. */
typedef struct fg__gpu_blocks {
    fg__gpu_pointer base;
    size_t stride, bytes;
    const int32_t *numbers;
    size_t n;
} fg__gpu_blocks;

static fg__gpu_blocks fg__gpu_blocks_one(fg__gpu_pointer at, size_t bytes) {
    fg__gpu_blocks blocks;
    blocks.base = at;
    blocks.stride = blocks.bytes = bytes;
    blocks.numbers = NULL;
    blocks.n = 1;
    return blocks;
}

/* Byte `place` of all the blocks one behind the other, and how many of `most` bytes are in the same block. */
static fg__gpu_pointer fg__gpu_blocks_at(const fg__gpu_blocks *blocks, size_t place, size_t most, size_t *bytes) {
    size_t i = place / blocks->bytes, offset = place % blocks->bytes;
    *bytes = FG__MIN(most, blocks->bytes - offset);
    return blocks->base + (uint64_t)(blocks->numbers ? (size_t)blocks->numbers[i] : i) * blocks->stride + offset;
}

/* Between a stage and the device: `bytes` of the blocks from `place` on. */
static fg_result fg__gpu_stage_move(fg__gpu_device *d, fg__gpu_stage *stage, const fg__gpu_blocks *blocks, size_t place,
                                    size_t bytes, bool out) {
    size_t done, n;
    fg_result r;
    for (done = 0; done < bytes; done += n) {
        fg__gpu_pointer at = fg__gpu_blocks_at(blocks, place + done, bytes - done, &n);
        int code = out ? d->api.copy_to_host(stage->at + done, at, n, d->copies) : d->api.copy_to_device(at, stage->at + done, n, d->copies);
        if ((r = fg__gpu_check(d, code, "copying between host and device")) != FG_OK) return r;
    }
    return fg__gpu_stage_mark(d, stage);
}

/* Returns when the data may change, which is before they have arrived; the next pass waits for that. */
static fg_result fg__gpu_send(fg__gpu_device *d, const fg__gpu_blocks *blocks, const void *data) {
    size_t total = blocks->bytes * blocks->n, place, n;
    fg_result r = fg__gpu_copies_begin(d);
    int turn = 0;
    for (place = 0; place < total && r == FG_OK; place += n, turn++) {
        fg__gpu_stage *stage = &d->stages[turn % FG__GPU_STAGES];
        n = FG__MIN(total - place, (size_t)FG__GPU_STAGING);
        if ((r = fg__gpu_stage_wait(d, stage)) != FG_OK) break;
        memcpy(stage->at, (const char *)data + place, n);
        r = fg__gpu_stage_move(d, stage, blocks, place, n, false);
    }
    if (r == FG_OK) r = fg__gpu_copies_end(d);
    if (r != FG_OK) (void)fg__gpu_copies_wait(d);
    return r;
}

/* One stage is asked for while the other is copied from. */
static fg_result fg__gpu_fetch(fg__gpu_device *d, const fg__gpu_blocks *blocks, void *data) {
    size_t total = blocks->bytes * blocks->n, asked = 0, taken = 0;
    fg_result r = fg__gpu_copies_begin(d);
    int i;
    for (i = 0; i < FG__GPU_STAGES && r == FG_OK; i++) r = fg__gpu_stage_wait(d, &d->stages[i]);
    for (i = 0; r == FG_OK && taken < total; i++) {
        fg__gpu_stage *stage = &d->stages[i % FG__GPU_STAGES];
        size_t n = FG__MIN(total - asked, (size_t)FG__GPU_STAGING);
        if (i >= FG__GPU_STAGES) {
            size_t came = FG__MIN(total - taken, (size_t)FG__GPU_STAGING);
            if ((r = fg__gpu_stage_wait(d, stage)) != FG_OK) break;
            memcpy((char *)data + taken, stage->at, came);
            taken += came;
        }
        if (n) r = fg__gpu_stage_move(d, stage, blocks, asked, n, true);
        asked += n;
    }
    if (r != FG_OK) (void)fg__gpu_copies_wait(d);
    return r;
}

static void *fg__gpu_alloc(fg_device *handle, size_t bytes) {
    fg__gpu_device *d = (fg__gpu_device *)(void *)handle;
    fg__gpu_range *range = (fg__gpu_range *)fg__calloc(&d->env, 1, sizeof(fg__gpu_range));
    fg_result r;
    if (!range) return NULL;
    if ((r = fg__gpu_enter(d)) == FG_OK) {
        r = fg__gpu_take(d, bytes, range);
        fg__gpu_leave(d);
    }
    if (r == FG_OK) return range;
    fg__free(&d->env, range);
    return NULL;
}

/* Waits for what is under way, which may use memory that is freed next. */
static void fg__gpu_settle(fg__gpu_device *d) {
    void *streams[3];
    int i;
    streams[0] = d->up, streams[1] = d->compute, streams[2] = d->down;
    (void)fg__gpu_copies_wait(d);
    for (i = 0; i < 3; i++) (void)fg__gpu_check(d, d->api.stream_wait(streams[i]), "waiting for the device");
}

static void fg__gpu_free(fg_device *handle, void *memory) {
    fg__gpu_device *d = (fg__gpu_device *)(void *)handle;
    if (!memory) return;
    if (fg__gpu_enter(d) == FG_OK) {
        fg__gpu_settle(d);
        fg__gpu_give(d, (fg__gpu_range *)memory);
        fg__gpu_leave(d);
    }
    fg__free(&d->env, memory);
}

static fg_result fg__gpu_write(fg_device *handle, void *memory, size_t offset, const void *data, size_t bytes) {
    fg__gpu_device *d = (fg__gpu_device *)(void *)handle;
    const fg__gpu_range *range = (const fg__gpu_range *)memory;
    fg__gpu_blocks blocks;
    fg_result r;
    if (offset > range->bytes || bytes > range->bytes - offset)
        return fg__fail(FG_ERROR_INVALID_ARGUMENT, "a write past the end of device memory");
    if (bytes == 0) return FG_OK;
    if ((r = fg__gpu_enter(d)) != FG_OK) return r;
    blocks = fg__gpu_blocks_one(range->at + offset, bytes);
    r = fg__gpu_send(d, &blocks, data);
    fg__gpu_leave(d);
    return r;
}

static fg_result fg__gpu_read(fg_device *handle, const void *memory, size_t offset, void *data, size_t bytes) {
    fg__gpu_device *d = (fg__gpu_device *)(void *)handle;
    const fg__gpu_range *range = (const fg__gpu_range *)memory;
    fg__gpu_blocks blocks;
    fg_result r;
    if (offset > range->bytes || bytes > range->bytes - offset)
        return fg__fail(FG_ERROR_INVALID_ARGUMENT, "a read past the end of device memory");
    if (bytes == 0) return FG_OK;
    if ((r = fg__gpu_enter(d)) != FG_OK) return r;
    blocks = fg__gpu_blocks_one(range->at + offset, bytes);
    r = fg__gpu_fetch(d, &blocks, data);
    fg__gpu_leave(d);
    return r;
}

#include "fg_gpu_blas.h"

/* ---- Opening. ---- */

/* The name of an AMD device's instruction set. The structure of properties differs between versions, and the name is its one
   member that begins with gfx. */
static bool fg__gpu_find_isa(const fg__gpu_api *api, int device, char *isa, size_t size) {
    union {
        char bytes[16384];
        uint64_t align;
    } properties;
    size_t i, n;
    memset(&properties, 0, sizeof(properties));
    if (api->device_properties(properties.bytes, device)) return false;
    for (i = 256; i + 64 < sizeof(properties.bytes); i++) /* the device's own name comes first */
        if (memcmp(properties.bytes + i, "gfx", 3) == 0) break;
    if (i + 64 >= sizeof(properties.bytes)) return false;
    for (n = 0; n + 1 < size && n < 32 && properties.bytes[i + n] && properties.bytes[i + n] != ':'; n++)
        isa[n] = properties.bytes[i + n];
    isa[n] = 0;
    return true;
}

/* Fills name, instruction set, memory and attributes of device number `index`. */
static fg_result fg__gpu_describe(fg__gpu_device *d, int index) {
    const fg__gpu_driver *driver = d->loader.driver;
    fg_result r;
    int i;
    d->index = index;
    snprintf(d->name, sizeof(d->name), "%s device %d", driver->label, index);
    if ((r = fg__gpu_check(d, d->api.device_get(&d->handle, index), "a device")) != FG_OK) return r;
    if ((r = fg__gpu_check(d, d->api.device_name(d->name, (int)sizeof(d->name), d->handle), "a device's name")) != FG_OK) return r;
    d->name[sizeof(d->name) - 1] = 0;
    if ((r = fg__gpu_check(d, d->api.device_memory(&d->memory, d->handle), "a device's memory")) != FG_OK) return r;
    for (i = 0; i < FG__GPU_ATTRIBUTES; i++) {
        d->attributes[i] = 0;
        if (driver->attributes[i] < 0) continue;
        r = fg__gpu_check(d, d->api.device_attribute(&d->attributes[i], driver->attributes[i], d->handle), "a device's properties");
        if (r != FG_OK) return r;
    }
    d->attributes[FG__GPU_SHARED_MOST] = FG__MAX(d->attributes[FG__GPU_SHARED_MOST], d->attributes[FG__GPU_SHARED_BYTES]);
    if (!driver->is_hip)
        snprintf(d->isa, sizeof(d->isa), "sm_%d%d", d->attributes[FG__GPU_MAJOR], d->attributes[FG__GPU_MINOR]);
    else if (!fg__gpu_find_isa(&d->api, d->handle, d->isa, sizeof(d->isa)))
        return fg__fail(FG_ERROR_UNSUPPORTED, "%s does not tell its instruction set", d->name);
    return FG_OK;
}

enum { FG__GPU_NUMBERS = 16 }; /* of devices; a larger one that no device has is a part of a name ("4090") */

/* The device of a number, or whose name it is, or that has it in its name. */
static fg_result fg__gpu_choose(fg__gpu_device *d, const char *wanted) {
    const char *label = d->loader.driver->label;
    char *end = NULL;
    long number = wanted && *wanted ? strtol(wanted, &end, 10) : 0;
    bool by_name;
    int n = 0, i, found = -1, best = 0;
    fg_result r, failed = FG_OK;
    snprintf(d->name, sizeof(d->name), "%s", label);
    if ((r = fg__gpu_check(d, d->api.device_count(&n), "counting devices")) != FG_OK) return r;
    if (n < 1) return fg__fail(FG_ERROR_NOT_FOUND, "there is no %s device", label);
    by_name = wanted && *wanted && (*end || (number >= n && number >= FG__GPU_NUMBERS));
    if (!by_name && (number < 0 || number >= n))
        return fg__fail(FG_ERROR_NOT_FOUND, "there is no %s device %ld, only %d", label, number, n);
    if (!by_name) return fg__gpu_describe(d, (int)number);
    for (i = 0; i < n; i++) {
        int match;
        if ((r = fg__gpu_describe(d, i)) != FG_OK) failed = r;
        else if ((match = fg__name_match(d->name, wanted)) > best) best = match, found = i;
    }
    if (found < 0 && failed != FG_OK) return failed;
    if (found < 0) return fg__fail(FG_ERROR_NOT_FOUND, "no %s device has '%s' in its name", label, wanted);
    return fg__gpu_describe(d, found);
}

/* Unpacks an image into `to`, `bytes` long. Packed: tokens of a byte with the number of literals (high four bits; 15: further
   bytes follow and add, until one is below 255) and of bytes to repeat minus 4 (low four bits, likewise); the literals;
   three bytes with how far back to repeat from, the lowest first. The last token has literals only. */
static bool fg__gpu_unpack_image(const fg__gpu_image *image, uint8_t *to) {
    size_t from = 0, at = 0, n, back;
    int part, shift;
#define FG__GPU_NEXT ((uint8_t)image->pieces[from / FG__GPU_PIECE][from % FG__GPU_PIECE])
    while (from < image->packed_bytes) {
        uint8_t token = FG__GPU_NEXT, more;
        back = 0;
        from++;
        for (part = 0; part < 2; part++) {
            n = part ? token & 15 : token >> 4;
            if (part) {
                if (from >= image->packed_bytes) return at == image->bytes;
                if (from + 3 > image->packed_bytes) return false;
                for (shift = 0; shift < 24; shift += 8, from++) back |= (size_t)FG__GPU_NEXT << shift;
            }
            for (more = n == 15 ? 255 : 0; more == 255 && from < image->packed_bytes; n += more) {
                more = FG__GPU_NEXT;
                from++;
            }
            if (part) n += 4;
            if (n > image->bytes - at || (part ? back < 1 || back > at : n > image->packed_bytes - from)) return false;
            for (; n > 0; n--, at++) {
                if (part) to[at] = to[at - back];
                else {
                    to[at] = FG__GPU_NEXT;
                    from++;
                }
            }
        }
    }
#undef FG__GPU_NEXT
    return at == image->bytes;
}

/* How well code for `target` suits the device: 0 not at all; code for the very device is best, PTX comes last. */
static int fg__gpu_suits(const fg__gpu_device *d, const char *target) {
    int major = d->attributes[FG__GPU_MAJOR], minor = d->attributes[FG__GPU_MINOR], code;
    if (strcmp(target, d->isa) == 0) return 1000;
    if (d->loader.driver->is_hip) {
        static const char *const generic[][2] = {{"gfx94", "gfx9-4-generic"}, {"gfx950", "gfx9-4-generic"}, {"gfx101", "gfx10-1-generic"},
                                                 {"gfx103", "gfx10-3-generic"}, {"gfx11", "gfx11-generic"}, {"gfx12", "gfx12-generic"},
                                                 {"gfx900", "gfx9-generic"}, {"gfx902", "gfx9-generic"}, {"gfx904", "gfx9-generic"},
                                                 {"gfx906", "gfx9-generic"}, {"gfx909", "gfx9-generic"}, {"gfx90c", "gfx9-generic"}};
        size_t i;
        for (i = 0; i < FG__COUNT(generic); i++)
            if (strncmp(d->isa, generic[i][0], strlen(generic[i][0])) == 0 && strcmp(target, generic[i][1]) == 0)
                return 500;
        return 0;
    }
    if (strncmp(target, "sm_", 3) == 0) {
        char *end;
        code = (int)strtol(target + 3, &end, 10);
        if (end[0] == 'a') return end[1] == 0 && code == 10 * major + minor ? 1001 : 0; /* for this one architecture */
        return *end == 0 && code / 10 == major && code % 10 <= minor ? 500 + code % 10 : 0;
    }
    if (strncmp(target, "compute_", 8) != 0) return 0;
    code = (int)strtol(target + 8, NULL, 10);
    return code <= 10 * major + minor ? 1 + code : 0;
}

static fg_result fg__gpu_try_image(fg__gpu_device *d, const fg__gpu_image *image) {
    uint8_t *bytes = (uint8_t *)fg__malloc(&d->env, image->bytes + 1, 1);
    fg_result r = FG_OK;
    int code = 0;
    if (!bytes) return FG_ERROR_OUT_OF_MEMORY;
    bytes[image->bytes] = 0; /* PTX is text */
    if (!fg__gpu_unpack_image(image, bytes))
        r = fg__fail(FG_ERROR_DEVICE, "the kernels for %s are damaged", image->target);
    else code = d->api.module_load(&d->module, bytes);
    fg__free(&d->env, bytes);
    if (code) d->module = NULL;
    return r == FG_OK ? fg__gpu_check(d, code, "loading kernels") : r;
}

/* Loads the code that suits the device best; what its driver refuses gives way to the next. */
static fg_result fg__gpu_load_images(fg__gpu_device *d, const fg__gpu_image *images, int n) {
    int best, score, limit = 1 << 30, i;
    fg_result r = FG_OK;
    if (n < 1)
        return fg__fail(FG_ERROR_UNSUPPORTED, "no %s kernels were built in: ./build.sh %s makes them",
                        d->loader.driver->label, d->loader.driver->name);
    for (;;) {
        for (best = -1, score = 0, i = 0; i < n; i++) {
            int suits = fg__gpu_suits(d, images[i].target);
            if (suits <= score || suits >= limit) continue;
            score = suits;
            best = i;
        }
        if (best < 0 && d->loader.driver->compile)
            for (i = 0; i < n; i++)
                if (strcmp(images[i].target, "source") == 0) return d->loader.driver->compile(d, &images[i]);
        if (best < 0)
            return r != FG_OK ? r : fg__fail(FG_ERROR_UNSUPPORTED, "%s (%s) has no kernels among those built in", d->name, d->isa);
        r = fg__gpu_try_image(d, &images[best]);
        if (r == FG_OK) d->image = &images[best];
        if (r == FG_OK || d->lost || r == FG_ERROR_OUT_OF_MEMORY) return r;
        fg__log(&d->env, FG_LOG_WARNING, "%s does not take the kernels for %s", d->name, images[best].target);
        limit = score;
    }
}

static void fg__gpu_close(fg_device *handle) {
    fg__gpu_device *d = (fg__gpu_device *)(void *)handle;
    fg__env env = d->env;
    void *streams[4];
    int i;
    if (d->is_open && fg__gpu_enter(d) == FG_OK) {
        streams[0] = d->copies, streams[1] = d->up, streams[2] = d->compute, streams[3] = d->down;
        for (i = 0; i < 4; i++)
            if (streams[i]) (void)d->api.stream_wait(streams[i]);
        fg__gpu_blas_close(d);
        for (i = 0; i < FG__GPU_STAGES; i++) {
            fg__gpu_give_host(d, d->stages[i].at);
            if (d->stages[i].event) (void)d->api.event_destroy(d->stages[i].event);
        }
        if (d->passed) (void)d->api.event_destroy(d->passed);
        if (d->copied) (void)d->api.event_destroy(d->copied);
        for (i = 0; i < 4; i++)
            if (streams[i]) (void)d->api.stream_destroy(streams[i]);
        if (d->module) (void)d->api.module_unload(d->module);
        fg__gpu_leave(d);
    }
    if (d->context && d->own_context) (void)d->api.context_destroy(d->context);
    else if (d->context) (void)d->api.context_release(d->handle);
    fg__gpu_loader_close(&d->loader);
    fg__free(&env, d);
}

static fg_result fg__gpu_make_streams(fg__gpu_device *d) {
    void **events[2 + FG__GPU_STAGES], **streams[4];
    fg_result r;
    int i;
    streams[0] = &d->compute, streams[1] = &d->copies, streams[2] = &d->down, streams[3] = &d->up;
    for (i = 0; i < 4; i++)
        if ((r = fg__gpu_check(d, d->api.stream_create(streams[i], 1 /* apart from the default one */), "a stream")) != FG_OK) return r;
    events[0] = &d->passed;
    events[1] = &d->copied;
    for (i = 0; i < FG__GPU_STAGES; i++) {
        void *at;
        if ((r = fg__gpu_take_host(d, FG__GPU_STAGING, &at)) != FG_OK) return r;
        d->stages[i].at = (char *)at;
        events[2 + i] = &d->stages[i].event;
    }
    for (i = 0; i < 2 + FG__GPU_STAGES && r == FG_OK; i++)
        r = fg__gpu_check(d, d->api.event_create(events[i], 2 /* without times */), "an event");
    return r;
}

/* Code, streams and stages, in the device's context. */
static fg_result fg__gpu_furnish(fg__gpu_device *d, const fg__gpu_image *images, int n_images) {
    fg_result r;
    d->is_open = true;
    if ((r = fg__gpu_enter(d)) != FG_OK) return r;
    if (d->options.image) r = fg__gpu_check(d, d->api.module_load(&d->module, d->options.image), "loading kernels");
    else r = fg__gpu_load_images(d, images, n_images);
    if (r == FG_OK) r = fg__gpu_make_streams(d);
    fg__gpu_leave(d);
    return r;
}

static fg_result fg__gpu_make(fg__gpu_device *d, const fg__gpu_image *images, int n_images, const char *wanted) {
    fg_result r;
    if ((r = fg__gpu_choose(d, wanted)) != FG_OK) return r;
    if (!d->loader.driver->is_hip) {
        r = fg__gpu_check(d, d->api.context_retain(&d->context, d->handle), "a context");
        if (r != FG_OK) {
            d->context = NULL;
            return r;
        }
    }
    return fg__gpu_furnish(d, images, n_images);
}

/* Reports of graphs of ROCm 7.2 whose kernels now and then read what was there when they were captured, on gfx942, gfx950 and gfx1201:
   ROCm/hip issues 3887 and 3902, ROCm/clr issue 279. The version is major * 10000000 + minor * 100000 + patch. */
static void fg__gpu_distrust_graphs(fg__gpu_device *d) {
    if (!d->loader.driver->is_hip || d->loader.version / 100000 != 702 || d->options.no_graphs || d->options.force_graphs) return;
    fg__log(&d->env, FG_LOG_WARNING, "HIP 7.2 runs graphs wrongly at times (ROCm/hip issue 3887); kernels are launched one by one");
    d->options.no_graphs = true;
}

static fg_result fg__gpu_open(const fg__gpu_driver *driver, const fg__gpu_image *images, int n_images,
                              const fg_device_desc *desc, fg_device **out) {
    fg__env env = fg__env_make(&desc->allocator, desc->log, desc->log_user);
    fg__gpu_device *d = (fg__gpu_device *)fg__calloc(&env, 1, sizeof(fg__gpu_device));
    fg_result r;
    if (!d) return FG_ERROR_OUT_OF_MEMORY;
    d->env = env;
    if (desc->options) d->options = *(const fg_gpu_options *)desc->options;
    if ((r = fg__gpu_loader_open(&d->loader, driver)) == FG_OK) {
        d->api = d->loader.api;
        fg__gpu_distrust_graphs(d);
        r = fg__gpu_make(d, images, n_images, desc->device);
    }
    if (r == FG_OK) *out = (fg_device *)(void *)d;
    else fg__gpu_close((fg_device *)(void *)d);
    return r;
}

#define FG__GPU_KV_TYPES \
    ((uint64_t)1 << FG_TYPE_F32 | (uint64_t)1 << FG_TYPE_F16 | (uint64_t)1 << FG_TYPE_BF16 | (uint64_t)1 << FG_TYPE_Q8_0)

/* What fills so many processors: halves of quantised weights are made, and kernels begun, once a pass. Activations of 2048 tokens are half
   a gigabyte for a model of 8 billion weights: too much of a small memory. */
static int fg__gpu_token_budget(int processors, size_t memory) {
    int by_memory = memory >> 20 < 12 << 10 ? 512 : memory >> 20 < 30 << 10 ? 1024 : 2048;
    return FG__MIN(by_memory, processors <= 40 ? 512 : processors <= 80 ? 1024 : 2048);
}

static void fg__gpu_caps(fg_device *handle, fg_device_caps *caps) {
    const fg__gpu_device *d = (const fg__gpu_device *)(const void *)handle;
    memset(caps, 0, sizeof(*caps));
    snprintf(caps->name, sizeof(caps->name), "%.80s, %s %.24s", d->name, d->loader.driver->label, d->isa);
    caps->n_threads = 1;
    caps->candidates = FG_MAX_CANDIDATES;
    caps->memory_bytes = d->memory;
    caps->block_tokens = 64;
    caps->token_budget = fg__gpu_token_budget(d->attributes[FG__GPU_PROCESSORS], d->memory);
    caps->in_flight = FG__GPU_BLOCKS;
    caps->kv_types = FG__GPU_KV_TYPES;
#define FG__BIT(name, id) caps->weight_types |= (uint64_t)1 << id;
    FG_GPU_TYPES(FG__BIT)
#undef FG__BIT
    caps->ops = 1u << FG_OP_EMBED | 1u << FG_OP_NORM | 1u << FG_OP_GEMM | 1u << FG_OP_ROPE_KV | 1u << FG_OP_ATTENTION |
                1u << FG_OP_ACT_MUL | 1u << FG_OP_MOE_ROUTE | 1u << FG_OP_MOE_GEMM | 1u << FG_OP_STATE_SCAN | 1u << FG_OP_GATHER_ROWS |
                1u << FG_OP_SAMPLE | 1u << FG_OP_COPY_BLOCKS;
    caps->sinks = true;
}

/* ================================================================================================
   Weights: matrices as fg_gpu_pack_row lays them, vectors as floats
   ================================================================================================ */

typedef struct fg__gpu_weight {
    struct fg__gpu_weight *next;
    int n_users;      /* packed for several ops (a tied embedding) it is kept once */
    const void *data;
    fg_type type;
    bool vector;
    int64_t k, n;
    fg_gpu_layout layout;
    size_t row_bytes; /* on the device */
    int32_t exponent; /* see fg_gpu_exponent */
    fg__gpu_range range;
} fg__gpu_weight;

/* Matrices of experts are one with the rows of all; their biases are one vector. */
static fg_result fg__gpu_weight_describe(const fg_tensor *tensor, fg_op_type use, fg__gpu_weight *w) {
    int64_t from_bytes, experts = tensor->n_dims == 3 ? tensor->dims[2] : 1;
    memset(w, 0, sizeof(*w));
    w->k = tensor->dims[0];
    w->n = tensor->n_dims > 1 ? tensor->dims[1] : 1;
    w->type = tensor->type;
    w->data = tensor->data;
    w->vector = use != FG_OP_GEMM && use != FG_OP_MOE_GEMM && use != FG_OP_EMBED;
    if (tensor->n_dims < 1 || tensor->n_dims > (use == FG_OP_MOE_GEMM ? 3 : 2) || w->k < 1 || w->n < 1 || w->k > 1 << 26 || w->n > 1 << 28 ||
        experts < 1 || experts > (1 << 28) / w->n)
        return fg__fail(FG_ERROR_UNSUPPORTED, "tensor '%s' is not a vector or a matrix", tensor->name);
    w->n *= experts;
    from_bytes = fg_type_bytes(tensor->type, w->k);
    if (!from_bytes || fg_gpu_type_index((int)tensor->type) < 0)
        return fg__fail(FG_ERROR_UNSUPPORTED, "tensor '%s' has a type or width we do not know", tensor->name);
    if (tensor->bytes / (size_t)from_bytes < (size_t)w->n)
        return fg__fail(FG_ERROR_INVALID_ARGUMENT, "tensor '%s' is shorter than its dimensions", tensor->name);
    if (w->vector && w->n > (1 << 26) / w->k) return fg__fail(FG_ERROR_UNSUPPORTED, "tensor '%s' is too large for a vector", tensor->name);
    if (w->vector) w->k *= w->n, w->n = 1;
    w->layout = fg_gpu_layout_of((int)w->type, (int32_t)w->k);
    w->row_bytes = w->vector ? (size_t)w->k * sizeof(float) : (size_t)w->layout.stride;
    return FG_OK;
}

/* Rows of the file to rows of the device, on several threads. */
typedef struct fg__gpu_packing {
    const fg__gpu_weight *weight;
    const uint8_t *from;
    uint8_t *to;
    int n, next, n_threads;
    float most[8]; /* of each thread, the size of weights */
} fg__gpu_packing;

static void fg__gpu_pack_some(void *user) {
    fg__gpu_packing *job = (fg__gpu_packing *)user;
    const fg__gpu_weight *w = job->weight;
    size_t from_bytes = (size_t)fg_type_bytes(w->type, w->k);
    float most = 0, its;
    int i;
    while ((i = fg__atomic_add(&job->next, 1)) < job->n) {
        const uint8_t *from = job->from + (size_t)i * from_bytes;
        uint8_t *to = job->to + (size_t)i * w->row_bytes;
        if (w->vector) fg__dequantize_row(w->type, from, (float *)(void *)to, w->k);
        else {
            fg_gpu_pack_row((int)w->type, (int32_t)w->k, &w->layout, from, to);
            its = fg_gpu_row_most((int)w->type, (int32_t)w->k, &w->layout, to, fg__f16_to_f32);
            most = FG__MAX(most, its);
        }
    }
    job->most[fg__atomic_add(&job->n_threads, 1)] = most;
}

/* Returns the size of the largest weight, or more. */
static float fg__gpu_pack_rows(const fg__gpu_weight *w, int64_t first, int n, uint8_t *to) {
    fg__thread threads[7];
    fg__gpu_packing job;
    int more = (size_t)n * w->row_bytes < 1 << 18 ? 0 : FG__MIN(fg__cpu_count() - 1, 7), started = 0, i;
    job.weight = w;
    job.from = (const uint8_t *)w->data + (size_t)first * (size_t)fg_type_bytes(w->type, w->k);
    job.to = to;
    job.n = n;
    job.next = job.n_threads = 0;
    for (i = 0; i < more; i++)
        if (fg__thread_start(&threads[started], fg__gpu_pack_some, &job)) started++;
    fg__gpu_pack_some(&job);
    for (i = 0; i < started; i++) fg__thread_join(&threads[i]);
    for (i = 1; i <= started; i++) job.most[0] = FG__MAX(job.most[0], job.most[i]);
    return job.most[0];
}

/* A row longer than a stage, packed in ordinary memory. */
static fg_result fg__gpu_upload_long(fg__gpu_device *d, fg__gpu_weight *w) {
    uint8_t *row = (uint8_t *)fg__malloc(&d->env, w->row_bytes, 1);
    fg_result r = FG_OK;
    float most = 0, its;
    int64_t i;
    if (!row) return FG_ERROR_OUT_OF_MEMORY;
    for (i = 0; i < w->n && r == FG_OK; i++) {
        fg__gpu_blocks blocks = fg__gpu_blocks_one(w->range.at + (uint64_t)i * w->row_bytes, w->row_bytes);
        its = fg__gpu_pack_rows(w, i, 1, row);
        most = FG__MAX(most, its);
        r = fg__gpu_send(d, &blocks, row);
    }
    w->exponent = fg_gpu_exponent(most);
    fg__free(&d->env, row);
    return r;
}

/* Rows are packed into one stage while the other is copied. */
static fg_result fg__gpu_upload(fg__gpu_device *d, fg__gpu_weight *w) {
    fg__gpu_blocks blocks = fg__gpu_blocks_one(w->range.at, (size_t)w->n * w->row_bytes);
    int64_t at_once = (int64_t)(FG__GPU_STAGING / w->row_bytes), i, n;
    float most = 0, its;
    fg_result r;
    int turn = 0;
    if (at_once < 1) return fg__gpu_upload_long(d, w);
    r = fg__gpu_copies_begin(d);
    for (i = 0; i < w->n && r == FG_OK; i += n, turn++) {
        fg__gpu_stage *stage = &d->stages[turn % FG__GPU_STAGES];
        n = FG__MIN(w->n - i, at_once);
        if ((r = fg__gpu_stage_wait(d, stage)) != FG_OK) break;
        its = fg__gpu_pack_rows(w, i, (int)n, (uint8_t *)stage->at);
        most = FG__MAX(most, its);
        r = fg__gpu_stage_move(d, stage, &blocks, (size_t)i * w->row_bytes, (size_t)n * w->row_bytes, false);
    }
    w->exponent = fg_gpu_exponent(most);
    if (r == FG_OK) r = fg__gpu_copies_end(d);
    if (r != FG_OK) (void)fg__gpu_copies_wait(d);
    return r;
}

static void fg__gpu_unpack(fg_device *handle, fg_weight *weight) {
    fg__gpu_device *d = (fg__gpu_device *)(void *)handle;
    fg__gpu_weight *w = (fg__gpu_weight *)(void *)weight, **at = &d->weights;
    if (!w || --w->n_users > 0) return;
    while (*at && *at != w) at = &(*at)->next;
    if (*at) *at = w->next;
    if (w->range.at && fg__gpu_enter(d) == FG_OK) {
        fg__gpu_settle(d);
        fg__gpu_give(d, &w->range);
        fg__gpu_leave(d);
    }
    fg__free(&d->env, w);
}

static fg_result fg__gpu_weight_fill(fg__gpu_device *d, fg__gpu_weight *w) {
    fg_result r = fg__gpu_enter(d);
    if (r != FG_OK) return r;
    r = fg__gpu_take(d, (size_t)w->n * w->row_bytes, &w->range);
    if (r != FG_OK) w->range.at = 0;
    else r = fg__gpu_upload(d, w);
    fg__gpu_leave(d);
    return r;
}

static fg_result fg__gpu_pack(fg_device *handle, const fg_tensor *tensor, fg_op_type use, fg_weight **out,
                              size_t *bytes) {
    fg__gpu_device *d = (fg__gpu_device *)(void *)handle;
    fg__gpu_weight described, *w;
    fg_result r = fg__gpu_weight_describe(tensor, use, &described);
    if (r != FG_OK) return r;
    if (bytes) *bytes = (size_t)described.n * described.row_bytes;
    if (!out) return FG_OK;
    for (w = d->weights; w; w = w->next)
        if (!w->vector && !described.vector && w->data == described.data && w->type == described.type && w->k == described.k &&
            w->n == described.n) {
            w->n_users++;
            *out = (fg_weight *)(void *)w;
            return FG_OK;
        }
    w = (fg__gpu_weight *)fg__malloc(&d->env, 1, sizeof(*w));
    if (!w) return FG_ERROR_OUT_OF_MEMORY;
    *w = described;
    w->n_users = 1;
    w->next = d->weights;
    d->weights = w;
    if ((r = fg__gpu_weight_fill(d, w)) == FG_OK) *out = (fg_weight *)(void *)w;
    else fg__gpu_unpack(handle, (fg_weight *)(void *)w);
    return r;
}

/* ================================================================================================
   Plans: an op becomes a step, the arguments of its kernels; a pass launches them, as a graph when it came before
   ================================================================================================ */

enum {
    FG__GPU_SETS = 8,    /* kinds of attention: a cache group, a number of heads for each KV head, few queries or many */
    FG__GPU_WIDE_FROM = 16, /* tokens of a sequence in a pass from which on it has the kernels for many queries */
    FG__GPU_TURNS = 256, /* of a pass's attention at most, when the memory for partial sums does not hold all at once */
    FG__GPU_GRAPHS = 256, /* passes of a model shared with the CPU have one for each of its ranges of ops */
    FG__GPU_GRAPHS_BYTES = 512 << 20, /* of device memory, for all graphs of a plan; 1/16 of it where that is less */
    FG__GPU_NODE_BYTES = 64 << 10,    /* what a graph takes for each of its kernels: 10 to 64 KiB, by the driver */
    FG__GPU_PAIRS = 512  /* copies of KV blocks that are launched at once */
};

/* The pieces of a pass's attention for one kind of it, on the host. */
typedef struct fg__gpu_set {
    int group, heads, n_kv_head, head_dim;
    int32_t rows, split, low, high;     /* queries of a workgroup; positions of an item; tokens of a sequence that are this set's */
    int counts_at, items_at, merges_at; /* words of the batch block; counts: items and merges of each turn */
    fg_gpu_attn_counts most;
    int32_t turn_rows;                  /* rows of partials that there is memory for */
    int turns, first_item[FG__GPU_TURNS + 1], first_merge[FG__GPU_TURNS + 1];
} fg__gpu_set;

typedef union fg__gpu_args {
    fg_gpu_embed_args embed;
    fg_gpu_norm_args norm;
    fg_gpu_gemm_args gemm;
    fg_gpu_experts_args experts; /* begins with a gemm */
    fg_gpu_route_args route;
    fg_gpu_state_args state;
    fg_gpu_rope_kv_args rope;
    fg_gpu_attention_args attention;
    fg_gpu_act_mul_args act_mul;
    fg_gpu_gather_args gather;
    fg_gpu_sample_args sample;
    fg_gpu_top_args top;
} fg__gpu_args;

typedef struct fg__gpu_step {
    int type, kernel; /* fg_op_type; the first of the op's, where there are several */
    int set, wide_set, wide_kernel; /* ATTENTION; -1: none for many queries */
    int src, src_col;      /* GEMM, MOE_GEMM */
    fg_type weight_type;   /* GEMM, MOE_GEMM */
    int blas_type;         /* GEMM; FG__GPU_BLAS_F16, FG__GPU_BLAS_BF16; 0: not for a library */
    bool per_row;
    int joined;            /* GEMM: how many follow that may be done at once with it, into the columns behind its own; MOE_GEMM: 1, if the next may */
    fg__gpu_args args;
} fg__gpu_step;

/* What a graph was made for: counts, rounded up to powers of two. */
typedef struct fg__gpu_key {
    int32_t tokens, rows, draws, first, end; /* first, end: ops */
    int32_t seqs;                            /* 0: there are no recurrent layers */
    struct {
        int32_t turns, items, merges;
    } sets[FG__GPU_SETS];
} fg__gpu_key;

typedef struct fg__gpu_graph {
    fg__gpu_key key;
    void *exec;      /* NULL: it came once, or there was no room for it */
    int nodes;       /* kernels */
    uint64_t used;   /* the number of the pass that had it last; 0: empty */
} fg__gpu_graph;

typedef struct fg__gpu_batch {
    int32_t *at; /* pinned */
    void *event; /* the pass that read it is done */
    bool busy, want_logits, has_draws;
} fg__gpu_batch;

/* Rows of a slot that crosses, on the host. */
typedef struct fg__gpu_crossing {
    float *at;   /* pinned, for all rows that a pass can have; NULL: the slot does not cross */
    void *event; /* the last copy is done */
    bool busy;
} fg__gpu_crossing;

typedef struct fg__gpu_plan {
    fg__gpu_device *device;
    const fg_graph *graph;
    fg__gpu_step *steps;
    int n_sets, sample_op;
    fg__gpu_set sets[FG__GPU_SETS];
    size_t *slot_at;     /* bytes from `memory` */
    size_t slots_bytes, batch_words, acts_bytes, partials_bytes, parts_bytes, tops_bytes;
    size_t products_bytes; /* for sums of products that another kernel finishes: by a library, by splits of k, of the experts of a token */
    size_t tiles_bytes, pairs_bytes;        /* see fg_gpu_sort_args; 0: there are no experts */
    size_t expanded_bytes, workspace_bytes; /* for products by a library; 0: there are none */
    int acts_rows;
    int tokens_at, positions_at, rows_at, draws_at, feed_at, head_words, slots_at[FG_MAX_GROUPS], tables_at[FG_MAX_GROUPS];
    int seqs_at[FG_MAX_GROUPS];           /* of FG_GROUP_STATE: fg_gpu_state_seq of each sequence */
    size_t block_bytes[FG_MAX_GROUPS];    /* K and V of all layers, or their states */
    fg__gpu_range memory, batch, acts, scales, products, expert_tiles, expert_pairs, expanded, partials, parts, rows, tops, candidates, pairs, pools[FG_MAX_GROUPS];
    fg__gpu_range logits[FG__GPU_BLOCKS]; /* of the passes in flight that asked for draws: the next one overwrites the slot */
    fg__gpu_batch batches[FG__GPU_BLOCKS];
    int32_t *host_pairs;
    void *paired;        /* event: the pairs may change */
    bool pairs_busy;
    fg_row_result *host_rows[FG__GPU_BLOCKS]; /* of the passes in flight, as batches */
    fg_row_candidates *host_candidates[FG__GPU_BLOCKS];
    float *host_logits[FG__GPU_BLOCKS];
    fg__gpu_crossing *crossings;    /* by slot */
    fg__gpu_key last;               /* of the range that was submitted last */
    unsigned n_submitted, n_waited; /* the difference is in flight */
    uint64_t n_passes;
    int n_launched;                 /* kernels of the pass that was launched last, or captured */
    fg__gpu_graph *graphs;
} fg__gpu_plan;

static const fg__gpu_weight *fg__gpu_weight_of(const fg__gpu_plan *plan, int index) {
    return index < 0 ? NULL : (const fg__gpu_weight *)(const void *)plan->graph->weights[index];
}

static fg__gpu_pointer fg__gpu_vector(const fg__gpu_plan *plan, int index) { return index < 0 ? 0 : fg__gpu_weight_of(plan, index)->range.at; }

/* ---- Layout. ---- */

static fg_result fg__gpu_check_graph(fg__gpu_plan *plan, bool measure) {
    const fg_graph *graph = plan->graph;
    uint64_t words = 0;
    fg_result r;
    int i;
    for (i = 0; i < graph->n_groups; i++) {
        const fg_group *group = &graph->groups[i];
        if ((r = fg__graph_check_group(group, FG__GPU_KV_TYPES, plan->device->loader.driver->label)) != FG_OK) return r;
        if (group->head_dim > FG_GPU_MAX_HEAD_DIM)
            return fg__fail(FG_ERROR_UNSUPPORTED, "GPU backends have no heads of %d", group->head_dim);
        words += (uint64_t)graph->max_seqs * (uint64_t)graph->max_blocks_per_seq;
    }
    if (graph->max_tokens > 65535 || graph->max_rows > 65535 || words > 1 << 28)
        return fg__fail(FG_ERROR_UNSUPPORTED, "passes of %d tokens or tables of so many blocks are too large for a GPU",
                        graph->max_tokens);
    for (i = 0; i < graph->n_ops; i++) {
        const fg_op *op = &graph->ops[i];
        if (!fg__op_is_on_gpus(op))
            return fg__fail(FG_ERROR_UNSUPPORTED, "GPU backends have no op %s", fg__op_name(op->type));
        if (!fg__graph_check_op(graph, op, measure))
            return fg__fail(FG_ERROR_INVALID_ARGUMENT, "op %d (%s) names something that is missing or too small", i,
                            fg__op_name(op->type));
        if (op->type == FG_OP_MOE_GEMM && (int64_t)graph->max_tokens * op->n_used / 16 + FG_GPU_EXPERTS > INT32_MAX / 2 / fg_gpu_ceil(op->n, FG_GPU_GEMM_ROWS))
            return fg__fail(FG_ERROR_UNSUPPORTED, "passes of %d tokens with %d experts each are too large for a GPU", graph->max_tokens, op->n_used);
        if (op->type == FG_OP_STATE_SCAN && ((int64_t)graph->max_tokens + graph->max_seqs) * op->n_head > INT32_MAX)
            return fg__fail(FG_ERROR_UNSUPPORTED, "passes of %d tokens with %d heads each are too large for a GPU", graph->max_tokens, op->n_head);
        if (op->type == FG_OP_SAMPLE) plan->sample_op = i;
    }
    return FG_OK;
}

/* The place in special_tried and special_ready of a kernel of attention. */
static int fg__gpu_attention_bit(int kernel) { return kernel - FG_GPU_KERNEL_widewg64_F16 + 16; }

/* The kernel for many queries of an op; -1: there is none, or a request would feel how its prompt is cut. */
static int fg__gpu_wide_of(const fg__gpu_plan *plan, const fg_op *op) {
    int type = (int)plan->graph->groups[op->group].kv_type, warpgroups = fg_gpu_wide_wg_kernel(type, op->head_dim);
    if (plan->device->options.invariant) return -1;
    if (warpgroups >= 0 && (plan->device->special_ready >> fg__gpu_attention_bit(warpgroups) & 1)) return warpgroups;
    return fg_gpu_wide_kernel(type, op->head_dim);
}

/* The kernel for few queries of an op: of NVIDIA's devices one in matrix fragments, which also serves all queries where a request must not
   feel how its prompt is cut. */
static int fg__gpu_few_of(const fg__gpu_plan *plan, const fg_op *op) {
    int type = (int)plan->graph->groups[op->group].kv_type, few = plan->device->loader.driver->is_hip ? -1 : fg_gpu_few_kernel(type, op->head_dim);
    return few >= 0 ? few : fg_gpu_kv_kernel(type, op->head_dim);
}

/* Positions of its items. Small ones are for few queries: of a prompt there would be too many partial sums. The smallest are for few sequences: on an
   H200 one of 512 tokens has 3.5% more tokens/s with them (8B Q4_K_M). */
static int32_t fg__gpu_few_split(const fg__gpu_plan *plan, const fg_op *op) {
    if (fg__gpu_few_of(plan, op) < FG_GPU_KERNEL_few64_F16 || fg__gpu_wide_of(plan, op) < 0) return FG_GPU_SPLIT;
    return plan->graph->max_seqs <= FG_GPU_ALONE ? FG_GPU_ALONE_SPLIT : FG_GPU_FEW_SPLIT;
}

/* The kind of attention of an op; a new one where it is the first of its kind. -1: there are too many. */
static int fg__gpu_set_of(fg__gpu_plan *plan, const fg_op *op, bool wide) {
    int heads = op->n_head / op->n_kv_head, i;
    fg__gpu_set *set;
    for (i = 0; i < plan->n_sets; i++)
        if (plan->sets[i].group == op->group && plan->sets[i].heads == heads && (plan->sets[i].low > 1) == wide)
            return i;
    if (plan->n_sets == FG__GPU_SETS) return -1;
    set = &plan->sets[plan->n_sets];
    set->group = op->group;
    set->heads = heads;
    set->n_kv_head = op->n_kv_head;
    set->head_dim = op->head_dim;
    set->rows = wide ? FG_GPU_WG_ROWS : FG_GPU_ATTN_ROWS; /* the most; fg__gpu_step_attention knows the kernel */
    set->split = wide ? FG_GPU_SPLIT : fg__gpu_few_split(plan, op);
    set->low = wide ? FG__GPU_WIDE_FROM : 1;
    set->high = wide || fg__gpu_wide_of(plan, op) < 0 ? INT32_MAX : FG__GPU_WIDE_FROM - 1;
    return plan->n_sets++;
}

/* Memory for partial sums: of all a pass can have, but no more than asked for, so long as turns are enough. Passes may have gigabytes of them: 2048
   tokens of 32 heads, all of whose contexts are 131072 long. */
static void fg__gpu_size_set(fg__gpu_plan *plan, fg__gpu_set *set) {
    const fg_graph *graph = plan->graph;
    const fg__gpu_device *d = plan->device;
    int32_t context = (int32_t)FG__MIN((int64_t)graph->max_blocks_per_seq * graph->groups[set->group].block_tokens, 1 << 28), tile;
    size_t row_bytes = (size_t)set->n_kv_head * (size_t)(set->head_dim + 2) * sizeof(float), wanted;
    set->most = fg_gpu_attn_most(graph->max_tokens, graph->max_seqs, context, set->heads, set->split, set->high);
    tile = FG__MAX(set->rows, set->heads) * (context / set->split + 2);
    wanted = (d->options.scratch_bytes ? d->options.scratch_bytes : FG__MAX((size_t)64 << 20, d->memory / 256)) / row_bytes;
    wanted = FG__MAX(wanted, (size_t)(set->most.partials / (FG__GPU_TURNS - 2) + tile));
    set->turn_rows = (int32_t)FG__MIN((size_t)set->most.partials, wanted);
    plan->partials_bytes = FG__MAX(plan->partials_bytes, (size_t)set->turn_rows * row_bytes);
}

/* The type of a product that is a library's, where there is one; 0: it is not. While memory is only measured weights need not be packed. */
static int fg__gpu_blas_type(const fg_graph *graph, const fg_op *op) {
    fg_type type;
    if (op->type != FG_OP_GEMM) return 0;
    type = graph->tensors[op->weight].type;
    if ((graph->slots[op->src].per_row ? graph->max_rows : graph->max_tokens) < fg__gpu_blas_from(type)) return 0;
    return type == FG_TYPE_F16 || fg__gpu_is_expanded(type) ? FG__GPU_BLAS_F16 : type == FG_TYPE_BF16 ? FG__GPU_BLAS_BF16 : 0;
}

/* A library adds what bfloat16 products are added to, too; the rows of halves have scales, which it does not know. */
static bool fg__gpu_blas_adds(int blas_type, bool has_bias, int act) { return blas_type == FG__GPU_BLAS_BF16 && !has_bias && !act; }

/* Splits of k of a product of so many rows by gemm: NVIDIA's devices have others for few rows, and where a row's bits must not depend on the rest
   there are none. */
static int fg__gpu_splits_of(const fg__gpu_device *d, int which, int32_t n, int32_t k, int rows) {
    if (!d->loader.driver->is_hip || d->options.invariant || which < FG_GPU_GEMM16) return 1;
    return fg_gpu_gemm_splits(which, n, k, rows);
}

/* What the sums of a product's splits take at most. Passes are of up to 16 rows, of 64, then of 128 more each: where one has no splits, larger ones
   have none. */
static size_t fg__gpu_splits_bytes(const fg__gpu_device *d, const fg_op *op, int max_rows) {
    size_t most = 0;
    int rows = 16;
    while (true) {
        int some = FG__MIN(rows, max_rows), splits = fg__gpu_splits_of(d, fg_gpu_product_for(some, d->options.invariant), op->n, op->k, some);
        if (splits > 1) most = FG__MAX(most, (size_t)splits * (size_t)some * (size_t)op->n * sizeof(float));
        if (rows >= max_rows || (rows >= 128 && splits == 1)) return most;
        rows = rows < 64 ? 64 : rows < 128 ? 128 : rows + 128;
    }
}

/* Activations of half the size, of `rows` rows. */
static void fg__gpu_lay_acts(fg__gpu_plan *plan, int32_t k, size_t rows) {
    size_t bytes = fg__round_up((size_t)k, FG_GPU_FRAGMENTS_ALIGN) * fg__round_up(rows, FG_GPU_ACTS_ALIGN) * 2;
    plan->acts_bytes = FG__MAX(plan->acts_bytes, bytes);
    plan->acts_rows = FG__MAX(plan->acts_rows, (int)rows);
}

/* What products with experts need beside. */
static void fg__gpu_lay_experts(fg__gpu_plan *plan, const fg_op *op) {
    size_t pairs = (size_t)plan->graph->max_tokens * (size_t)op->n_used;
    size_t tiles = (size_t)fg_gpu_experts_tiles((int32_t)pairs, op->n_expert, 16) + 1;
    fg__gpu_lay_acts(plan, op->k, op->moe_sum ? pairs : (size_t)plan->graph->max_tokens);
    plan->tiles_bytes = FG__MAX(plan->tiles_bytes, tiles * sizeof(fg_gpu_tile));
    plan->pairs_bytes = FG__MAX(plan->pairs_bytes, pairs * sizeof(int32_t));
    if (op->moe_sum) plan->products_bytes = FG__MAX(plan->products_bytes, pairs * (size_t)op->n * sizeof(float));
}

/* Bytes of a group's block, a multiple of 16. */
static size_t fg__gpu_group_bytes(const fg_group *g) {
    if (g->kind == FG_GROUP_STATE) return fg__round_up((size_t)g->n_layers * (size_t)fg__state_floats(g) * sizeof(float), 16);
    return 2 * (size_t)g->n_layers * (size_t)fg_gpu_kv_block_bytes((int)g->kv_type, g->head_dim, g->n_kv_head, g->block_tokens);
}

static fg_result fg__gpu_lay(fg__gpu_plan *plan) {
    const fg_graph *graph = plan->graph;
    size_t rows;
    int i, at = 4;
    for (i = 0; i < graph->n_slots; i++) {
        rows = (size_t)(graph->slots[i].per_row ? graph->max_rows : graph->max_tokens);
        plan->slot_at[i] = plan->slots_bytes;
        plan->slots_bytes += fg__round_up(rows * (size_t)graph->slots[i].width * sizeof(float), FG__GPU_ALIGN);
    }
    for (i = 0; i < graph->n_ops; i++) {
        const fg_op *op = &graph->ops[i];
        if (op->type == FG_OP_ATTENTION &&
            (fg__gpu_set_of(plan, op, false) < 0 || (fg__gpu_wide_of(plan, op) >= 0 && fg__gpu_set_of(plan, op, true) < 0)))
            return fg__fail(FG_ERROR_UNSUPPORTED,
                            "the model has more kinds of attention than GPU backends have room for");
        if (op->type == FG_OP_MOE_GEMM) fg__gpu_lay_experts(plan, op);
        if (op->type != FG_OP_GEMM) continue;
        rows = (size_t)(graph->slots[op->src].per_row ? graph->max_rows : graph->max_tokens);
        fg__gpu_lay_acts(plan, op->k, rows);
        plan->products_bytes = FG__MAX(plan->products_bytes, fg__gpu_splits_bytes(plan->device, op, (int)rows));
        if (fg__gpu_blas_has(plan->device, fg__gpu_blas_type(graph, op))) {
            plan->workspace_bytes = FG__GPU_BLAS_WORKSPACE;
            if (fg__gpu_is_expanded(graph->tensors[op->weight].type))
                plan->expanded_bytes = FG__MAX(plan->expanded_bytes, (size_t)FG__MIN(op->n, fg__gpu_expanded_rows(plan->device, op->k)) *
                                                                         fg__gpu_expanded_stride(op->k) * 2);
            if (op->src2 >= 0 && op->src2 == op->dst && !fg__gpu_blas_adds(fg__gpu_blas_type(graph, op), op->bias >= 0, op->act))
                plan->products_bytes = FG__MAX(plan->products_bytes, rows * (size_t)op->n * sizeof(float));
        }
    }
    for (i = 0; i < plan->n_sets; i++) plan->sets[i].counts_at = at, at += 2 * FG__GPU_TURNS;
    plan->tokens_at = at, at += graph->max_tokens;
    plan->positions_at = at, at += graph->max_tokens;
    plan->rows_at = at, at += graph->max_rows;
    plan->draws_at = at, at += graph->max_rows * 3;
    for (i = 0; i < graph->n_groups; i++) {
        if (graph->groups[i].kind != FG_GROUP_STATE) plan->slots_at[i] = at, at += graph->max_tokens;
        else plan->seqs_at[i] = (at + 3) / 4 * 4, at = plan->seqs_at[i] + graph->max_seqs * (int)(sizeof(fg_gpu_state_seq) / 4);
    }
    plan->head_words = at;
    plan->feed_at = at, at += graph->max_tokens;
    for (i = 0; i < graph->n_groups; i++) plan->tables_at[i] = at, at += graph->max_seqs * graph->max_blocks_per_seq;
    for (i = 0; i < plan->n_sets; i++) {
        fg__gpu_set *set = &plan->sets[i];
        fg__gpu_size_set(plan, set);
        at = (at + 3) / 4 * 4;
        if ((int64_t)set->most.items * 8 > (1 << 29) - at)
            return fg__fail(FG_ERROR_UNSUPPORTED, "passes with so much attention are too large");
        set->items_at = at, at += set->most.items * (int)(sizeof(fg_gpu_attn_item) / 4);
        set->merges_at = at, at += set->most.merges * (int)(sizeof(fg_gpu_attn_merge) / 4);
    }
    plan->batch_words = (size_t)at;
    for (i = 0; i < graph->n_groups; i++) plan->block_bytes[i] = fg__gpu_group_bytes(&graph->groups[i]);
    if (plan->sample_op >= 0) {
        size_t pieces = (size_t)graph->max_rows * (size_t)fg_gpu_sample_pieces(graph->ops[plan->sample_op].n);
        plan->parts_bytes = pieces * sizeof(fg_gpu_sample_part);
        plan->tops_bytes = pieces * FG_GPU_TOP_WORDS * 4;
    }
    return FG_OK;
}

static size_t fg__gpu_logits_bytes(const fg__gpu_plan *plan) {
    return plan->sample_op < 0 ? 0 : (size_t)plan->graph->max_rows * (size_t)plan->graph->ops[plan->sample_op].n * sizeof(float);
}

static void fg__gpu_count(const fg__gpu_plan *plan, fg_memory *memory) {
    const fg_graph *graph = plan->graph;
    int g;
    memset(memory, 0, sizeof(*memory));
    for (g = 0; g < graph->n_groups; g++) memory->kv += plan->block_bytes[g] * (size_t)graph->groups[g].n_blocks;
    memory->activations = plan->slots_bytes + plan->acts_bytes + plan->partials_bytes + plan->parts_bytes + plan->tops_bytes + plan->batch_words * 4 +
                          plan->products_bytes + plan->tiles_bytes + plan->pairs_bytes + plan->expanded_bytes + plan->workspace_bytes + FG__GPU_BLOCKS * fg__gpu_logits_bytes(plan) +
                          (size_t)plan->acts_rows * sizeof(float) + (size_t)graph->max_rows * (sizeof(fg_row_result) + sizeof(fg_row_candidates));
    memory->total = memory->kv + memory->activations;
}

static fg_result fg__gpu_take_crossings(fg__gpu_plan *plan) {
    const fg_graph *graph = plan->graph;
    fg__gpu_device *d = plan->device;
    fg_result r = FG_OK;
    void *at;
    int i;
    for (i = 0; i < graph->n_slots && r == FG_OK; i++) {
        size_t rows = (size_t)(graph->slots[i].per_row ? graph->max_rows : graph->max_tokens);
        if (!graph->slots[i].crosses) continue;
        if ((r = fg__gpu_take_host(d, rows * (size_t)graph->slots[i].width * sizeof(float), &at)) != FG_OK) return r;
        plan->crossings[i].at = (float *)at;
        r = fg__gpu_check(d, d->api.event_create(&plan->crossings[i].event, 2), "an event");
    }
    return r;
}

static fg_result fg__gpu_take_plan(fg__gpu_plan *plan) {
    const fg_graph *graph = plan->graph;
    fg__gpu_device *d = plan->device;
    size_t row_bytes = (size_t)graph->max_rows * sizeof(fg_row_result);
    void *at;
    fg_result r;
    int i;
    if ((r = fg__gpu_take(d, plan->slots_bytes, &plan->memory)) != FG_OK) return r;
    if ((r = fg__gpu_take(d, plan->batch_words * 4, &plan->batch)) != FG_OK) return r;
    if ((r = fg__gpu_take(d, plan->acts_bytes, &plan->acts)) != FG_OK) return r;
    /* skinny reads whole tiles of rows */
    if ((r = fg__gpu_check(d, d->api.fill(plan->acts.at, 0, plan->acts.bytes, d->compute), "clearing activations")) != FG_OK) return r;
    if ((r = fg__gpu_take(d, (size_t)plan->acts_rows * sizeof(float), &plan->scales)) != FG_OK) return r;
    if (plan->products_bytes && (r = fg__gpu_take(d, plan->products_bytes, &plan->products)) != FG_OK) return r;
    if (plan->tiles_bytes && (r = fg__gpu_take(d, plan->tiles_bytes, &plan->expert_tiles)) != FG_OK) return r;
    if (plan->pairs_bytes && (r = fg__gpu_take(d, plan->pairs_bytes, &plan->expert_pairs)) != FG_OK) return r;
    if (plan->expanded_bytes && (r = fg__gpu_take(d, plan->expanded_bytes, &plan->expanded)) != FG_OK) return r;
    if ((r = fg__gpu_take(d, plan->partials_bytes, &plan->partials)) != FG_OK) return r;
    if ((r = fg__gpu_take(d, plan->parts_bytes, &plan->parts)) != FG_OK) return r;
    if ((r = fg__gpu_take(d, row_bytes, &plan->rows)) != FG_OK) return r;
    if ((r = fg__gpu_take(d, plan->tops_bytes, &plan->tops)) != FG_OK) return r;
    if ((r = fg__gpu_take(d, (size_t)graph->max_rows * sizeof(fg_row_candidates), &plan->candidates)) != FG_OK)
        return r;
    if ((r = fg__gpu_take(d, (2 * FG__GPU_PAIRS + 4) * sizeof(int32_t), &plan->pairs)) != FG_OK) return r;
    for (i = 0; i < graph->n_groups; i++)
        if ((r = fg__gpu_take(d, plan->block_bytes[i] * (size_t)graph->groups[i].n_blocks, &plan->pools[i])) != FG_OK)
            return r;
    for (i = 0; i < FG__GPU_BLOCKS; i++) {
        if ((r = fg__gpu_take_host(d, plan->batch_words * 4, &at)) != FG_OK) return r;
        plan->batches[i].at = (int32_t *)at;
        if ((r = fg__gpu_check(d, d->api.event_create(&plan->batches[i].event, 2), "an event")) != FG_OK) return r;
        if ((r = fg__gpu_take_host(d, row_bytes, &at)) != FG_OK) return r;
        plan->host_rows[i] = (fg_row_result *)at;
        if ((r = fg__gpu_take_host(d, fg__gpu_logits_bytes(plan), &at)) != FG_OK) return r;
        plan->host_logits[i] = (float *)at;
        if ((r = fg__gpu_take_host(d, (size_t)graph->max_rows * sizeof(fg_row_candidates), &at)) != FG_OK) return r;
        plan->host_candidates[i] = (fg_row_candidates *)at;
        if (plan->sample_op >= 0 && (r = fg__gpu_take(d, fg__gpu_logits_bytes(plan), &plan->logits[i])) != FG_OK)
            return r;
    }
    if ((r = fg__gpu_take_host(d, (2 * FG__GPU_PAIRS + 4) * sizeof(int32_t), &at)) != FG_OK) return r;
    plan->host_pairs = (int32_t *)at;
    if ((r = fg__gpu_take_crossings(plan)) != FG_OK) return r;
    return fg__gpu_check(d, d->api.event_create(&plan->paired, 2), "an event");
}

/* ---- Steps: the arguments of an op's kernels, all but what a pass's size sets. ---- */

static fg__gpu_pointer fg__gpu_slot(const fg__gpu_plan *plan, int slot, int column) {
    return slot < 0 ? 0 : plan->memory.at + plan->slot_at[slot] + (uint64_t)column * sizeof(float);
}

static int32_t fg__gpu_stride(const fg__gpu_plan *plan, int slot) { return slot < 0 ? 0 : plan->graph->slots[slot].width; }

static fg__gpu_pointer fg__gpu_word(const fg__gpu_plan *plan, int word) { return plan->batch.at + (uint64_t)word * 4; }

static fg_result fg__gpu_step_weight(fg__gpu_plan *plan, fg__gpu_step *step, const fg_op *op) {
    const fg__gpu_weight *w = fg__gpu_weight_of(plan, op->weight);
    fg__gpu_pointer count = fg__gpu_word(plan, step->per_row ? 1 : 0);
    if (w->vector)
        return fg__fail(FG_ERROR_INVALID_ARGUMENT, "op %s has a vector for its matrix", fg__op_name(op->type));
    step->kernel = fg_gpu_weight_kernel((int)w->type, FG_GPU_EMBED);
    if (op->type == FG_OP_EMBED) {
        fg_gpu_embed_args *a = &step->args.embed;
        a->weight = w->range.at;
        a->tokens = fg__gpu_word(plan, plan->tokens_at);
        a->dst = fg__gpu_slot(plan, op->dst, op->dst_col);
        a->count = count;
        a->layout = w->layout;
        a->n = op->n;
        a->dst_stride = fg__gpu_stride(plan, op->dst);
        a->scale = op->scale == 0 ? 1 : op->scale;
    } else {
        fg_gpu_gemm_args *a = &step->args.gemm;
        step->src = op->src;
        step->src_col = op->src_col;
        step->weight_type = w->type;
        step->blas_type = fg__gpu_blas_type(plan->graph, op);
        a->weight = w->range.at;
        a->src = fg__gpu_slot(plan, op->src, op->src_col);
        a->acts = plan->acts.at;
        a->scales = plan->scales.at;
        a->dst = fg__gpu_slot(plan, op->dst, op->dst_col);
        a->src2 = fg__gpu_slot(plan, op->src2, 0);
        a->bias = fg__gpu_vector(plan, op->bias);
        a->count = count;
        a->layout = w->layout;
        a->n = op->n;
        a->k = op->k;
        a->src_stride = fg__gpu_stride(plan, op->src);
        a->acts_stride = (int32_t)fg__round_up((size_t)op->k, FG_GPU_ACTS_ALIGN);
        a->dst_stride = fg__gpu_stride(plan, op->dst);
        a->src2_stride = fg__gpu_stride(plan, op->src2);
        a->act = op->act;
        a->exponent = w->exponent;
    }
    return FG_OK;
}

typedef char fg__gpu_experts_fit[FG__GPU_EXPERTS <= FG_GPU_EXPERTS && FG__GPU_STATE_DIM <= FG_GPU_STATE_DIM ? 1 : -1];

/* Products with experts; those that are to be added up go to `products`. */
static fg_result fg__gpu_step_experts(fg__gpu_plan *plan, fg__gpu_step *step, const fg_op *op) {
    fg_gpu_experts_args *a = &step->args.experts;
    fg_result r = fg__gpu_step_weight(plan, step, op);
    if (r != FG_OK) return r;
    if (op->moe_sum) a->gemm.dst = plan->products.at, a->gemm.dst_stride = op->n_used * op->n;
    a->gemm.src2 = 0;
    a->gemm.act = 0;
    a->routes = fg__gpu_slot(plan, op->src2, op->src2_col);
    a->routes_stride = fg__gpu_stride(plan, op->src2);
    a->pairs = plan->expert_pairs.at;
    a->tiles = plan->expert_tiles.at;
    a->n_expert = op->n_expert;
    a->n_used = op->n_used;
    a->of_pairs = op->moe_sum;
    return FG_OK;
}

static fg_gpu_kv fg__gpu_kv_of(const fg__gpu_plan *plan, const fg_op *op) {
    const fg_group *group = &plan->graph->groups[op->group];
    uint64_t part = plan->block_bytes[op->group] / (2 * (uint64_t)group->n_layers);
    fg_gpu_kv kv;
    kv.k = plan->pools[op->group].at + 2 * (uint64_t)op->group_layer * part;
    kv.v = kv.k + part;
    kv.block_stride = plan->block_bytes[op->group];
    kv.block_tokens = group->block_tokens;
    kv.n_head = op->n_head;
    kv.n_kv_head = op->n_kv_head;
    kv.head_dim = op->head_dim;
    return kv;
}

static void fg__gpu_step_rope(const fg__gpu_plan *plan, fg__gpu_step *step, const fg_op *op) {
    fg_gpu_rope_kv_args *a = &step->args.rope;
    step->kernel = fg_gpu_kv_kernel((int)plan->graph->groups[op->group].kv_type, 0);
    a->kv = fg__gpu_kv_of(plan, op);
    a->q = fg__gpu_slot(plan, op->src, op->src_col);
    a->k = fg__gpu_slot(plan, op->src, op->src2_col);
    a->v = fg__gpu_slot(plan, op->src, op->dst_col);
    a->norm_q = fg__gpu_vector(plan, op->weight);
    a->norm_k = fg__gpu_vector(plan, op->weight2);
    a->freqs = op->n_rot ? fg__gpu_vector(plan, op->bias) : 0;
    a->positions = fg__gpu_word(plan, plan->positions_at);
    a->slots = fg__gpu_word(plan, plan->slots_at[op->group]);
    a->count = fg__gpu_word(plan, 0);
    a->stride = fg__gpu_stride(plan, op->src);
    a->n_rot = op->n_rot;
    a->neox = op->rope_neox;
    a->eps = op->eps;
    a->scale = op->scale;
}

static void fg__gpu_step_attention(fg__gpu_plan *plan, fg__gpu_step *step, const fg_op *op) {
    const fg_group *group = &plan->graph->groups[op->group];
    fg_gpu_attention_args *a = &step->args.attention;
    step->wide_kernel = fg__gpu_wide_of(plan, op);
    step->set = fg__gpu_set_of(plan, op, false);
    step->wide_set = step->wide_kernel < 0 ? -1 : fg__gpu_set_of(plan, op, true);
    if (step->wide_set >= 0) {
        plan->sets[step->wide_set].rows = fg_gpu_wide_rows(step->wide_kernel);
        plan->sets[step->wide_set].split = fg_gpu_wide_split(step->wide_kernel);
    }
    step->kernel = fg__gpu_few_of(plan, op);
    a->kv = fg__gpu_kv_of(plan, op);
    a->q = fg__gpu_slot(plan, op->src, op->src_col);
    a->dst = fg__gpu_slot(plan, op->dst, op->dst_col);
    a->table = fg__gpu_word(plan, plan->tables_at[op->group]);
    a->partials = plan->partials.at;
    a->q_stride = fg__gpu_stride(plan, op->src);
    a->dst_stride = fg__gpu_stride(plan, op->dst);
    a->table_stride = plan->graph->max_blocks_per_seq;
    a->window = group->window;
    a->scale = op->scale;
    a->softcap = op->softcap;
    a->sinks = fg__gpu_vector(plan, op->weight);
}

static void fg__gpu_step_state(const fg__gpu_plan *plan, fg__gpu_step *step, const fg_op *op) {
    const fg_group *group = &plan->graph->groups[op->group];
    fg_gpu_state_args *a = &step->args.state;
    step->kernel = op->head_dim <= 128 ? FG_GPU_KERNEL_state128 : FG_GPU_KERNEL_state256;
    a->src = fg__gpu_slot(plan, op->src, op->src_col), a->src_stride = fg__gpu_stride(plan, op->src);
    a->dst = fg__gpu_slot(plan, op->dst, op->dst_col), a->dst_stride = fg__gpu_stride(plan, op->dst);
    a->conv = fg__gpu_vector(plan, op->weight);
    a->a = fg__gpu_vector(plan, op->weight2);
    a->norm = fg__gpu_vector(plan, op->bias);
    a->state = plan->pools[op->group].at + (uint64_t)op->group_layer * (uint64_t)fg__state_floats(group) * sizeof(float);
    a->block_stride = plan->block_bytes[op->group];
    a->seqs = fg__gpu_word(plan, plan->seqs_at[op->group]);
    a->table = fg__gpu_word(plan, plan->tables_at[op->group]), a->table_stride = plan->graph->max_blocks_per_seq;
    a->count = fg__gpu_word(plan, 0), a->seq_count = fg__gpu_word(plan, 2);
    a->n_head = op->n_head, a->n_kv_head = op->n_kv_head, a->head_dim = op->head_dim;
    a->taps = op->k;
    a->tiled = op->state_tiled;
    a->block_tokens = group->block_tokens;
    a->eps = op->eps;
}

static void fg__gpu_step_rest(const fg__gpu_plan *plan, fg__gpu_step *step, const fg_op *op) {
    fg__gpu_pointer src = fg__gpu_slot(plan, op->src, op->src_col), src2 = fg__gpu_slot(plan, op->src2, op->src2_col);
    fg__gpu_pointer dst = op->type == FG_OP_SAMPLE ? 0 : fg__gpu_slot(plan, op->dst, op->dst_col);
    fg__gpu_pointer count = fg__gpu_word(plan, step->per_row ? 1 : 0);
    int32_t stride = fg__gpu_stride(plan, op->src), stride2 = fg__gpu_stride(plan, op->src2), dst_stride = fg__gpu_stride(plan, op->dst);
    if (op->type == FG_OP_NORM) {
        fg_gpu_norm_args *a = &step->args.norm;
        step->kernel = FG_GPU_KERNEL_norm;
        a->src = src, a->src2 = src2, a->dst = dst, a->count = count;
        a->weight = fg__gpu_vector(plan, op->weight);
        a->bias = fg__gpu_vector(plan, op->bias);
        a->n = op->n, a->src_stride = stride, a->src2_stride = stride2, a->dst_stride = dst_stride;
        a->eps = op->eps;
    } else if (op->type == FG_OP_ACT_MUL) {
        fg_gpu_act_mul_args *a = &step->args.act_mul;
        step->kernel = FG_GPU_KERNEL_act_mul;
        a->src = src, a->src2 = src2, a->dst = dst, a->count = count;
        a->n = op->n, a->src_stride = stride, a->src2_stride = stride2, a->dst_stride = dst_stride;
        a->act = op->act;
        a->one = op->k == 1;
    } else if (op->type == FG_OP_MOE_ROUTE) {
        fg_gpu_route_args *a = &step->args.route;
        step->kernel = FG_GPU_KERNEL_route;
        a->src = src, a->dst = dst, a->count = count;
        a->n_expert = op->n_expert, a->n_used = op->n_used, a->norm = op->moe_norm;
        a->src_stride = stride, a->dst_stride = dst_stride;
        a->scale = op->scale;
    } else if (op->type == FG_OP_GATHER_ROWS) {
        fg_gpu_gather_args *a = &step->args.gather;
        step->kernel = FG_GPU_KERNEL_gather;
        a->src = src, a->dst = dst, a->count = count;
        a->rows = fg__gpu_word(plan, plan->rows_at);
        a->n = op->n, a->src_stride = stride, a->dst_stride = dst_stride;
    } else {
        fg_gpu_sample_args *a = &step->args.sample;
        step->kernel = FG_GPU_KERNEL_sample;
        a->src = src, a->count = count;
        a->parts = plan->parts.at;
        a->rows = plan->rows.at;
        a->n = op->n, a->src_stride = stride;
        a->pieces = fg_gpu_sample_pieces(op->n);
    }
}

/* A vector must have been packed as one. */
static fg_result fg__gpu_check_vectors(const fg__gpu_plan *plan, const fg_op *op) {
    int vectors[3], i;
    vectors[0] = op->type == FG_OP_NORM || op->type == FG_OP_ROPE_KV || op->type == FG_OP_ATTENTION || op->type == FG_OP_STATE_SCAN ? op->weight : -1;
    vectors[1] = op->weight2;
    vectors[2] = op->bias;
    for (i = 0; i < 3; i++)
        if (vectors[i] >= 0 && !fg__gpu_weight_of(plan, vectors[i])->vector)
            return fg__fail(FG_ERROR_INVALID_ARGUMENT, "op %s has a matrix where a vector belongs",
                            fg__op_name(op->type));
    return FG_OK;
}

/* Whether two products with experts may be done at once: gate and up of a layer. */
static bool fg__gpu_experts_join(const fg_graph *graph, const fg_op *op, const fg_op *its) {
    return its->type == FG_OP_MOE_GEMM && !op->moe_sum && !its->moe_sum && its->src == op->src && its->src_col == op->src_col && its->k == op->k &&
           its->n == op->n && its->dst == op->dst && its->src2 == op->src2 && its->src2_col == op->src2_col && its->n_used == op->n_used &&
           its->n_expert == op->n_expert && its->layer == op->layer && graph->tensors[its->weight].type == graph->tensors[op->weight].type;
}

/* How many products behind op i of the graph may be done at once with it. */
static int fg__gpu_joined(const fg_graph *graph, int i) {
    const fg_op *op = &graph->ops[i];
    int n = 0, end = op->dst_col + op->n;
    if (op->type == FG_OP_MOE_GEMM && i + 1 < graph->n_ops) return fg__gpu_experts_join(graph, op, op + 1);
    while (op->type == FG_OP_GEMM && op->src2 < 0 && op->src != op->dst && n < 2 && i + n + 1 < graph->n_ops) {
        const fg_op *its = &graph->ops[i + n + 1];
        if (its->type != FG_OP_GEMM || its->src != op->src || its->src_col != op->src_col || its->k != op->k || its->dst != op->dst ||
            its->dst_col != end || its->act != op->act || its->src2 >= 0 || its->layer != op->layer ||
            graph->tensors[its->weight].type != graph->tensors[op->weight].type)
            break;
        end += its->n;
        n++;
    }
    return n;
}

static fg_result fg__gpu_make_steps(fg__gpu_plan *plan) {
    const fg_graph *graph = plan->graph;
    fg_result r;
    int i;
    for (i = 0; i < graph->n_ops; i++) {
        const fg_op *op = &graph->ops[i];
        fg__gpu_step *step = &plan->steps[i];
        int slot = op->type == FG_OP_GATHER_ROWS || op->type == FG_OP_EMBED ? op->dst : op->src;
        step->type = op->type;
        step->per_row = graph->slots[slot].per_row;
        step->joined = fg__gpu_joined(graph, i);
        if ((r = fg__gpu_check_vectors(plan, op)) != FG_OK) return r;
        if (op->type == FG_OP_EMBED || op->type == FG_OP_GEMM) {
            if ((r = fg__gpu_step_weight(plan, step, op)) != FG_OK) return r;
        } else if (op->type == FG_OP_MOE_GEMM) {
            if ((r = fg__gpu_step_experts(plan, step, op)) != FG_OK) return r;
        } else if (op->type == FG_OP_ROPE_KV) fg__gpu_step_rope(plan, step, op);
        else if (op->type == FG_OP_ATTENTION) fg__gpu_step_attention(plan, step, op);
        else if (op->type == FG_OP_STATE_SCAN) fg__gpu_step_state(plan, step, op);
        else fg__gpu_step_rest(plan, step, op);
    }
    return FG_OK;
}

/* ---- The batch block. ---- */

/* Cuts the pieces of a set into turns: the partial sums of each begin at row 0. */
static void fg__gpu_cut_turns(fg__gpu_set *set, fg_gpu_attn_item *items, fg_gpu_attn_merge *merges,
                              const fg_gpu_attn_counts *n) {
    int32_t item = 0, merge = 0, first_row = 0, rows;
    set->turns = 1;
    set->first_item[0] = set->first_merge[0] = 0;
    for (; merge < n->merges; merge++) {
        rows = merges[merge].n_splits * merges[merge].n_tokens * set->heads;
        while (items[item].partial < 0) item++;
        if (merges[merge].partial + rows - first_row > set->turn_rows) {
            first_row = merges[merge].partial;
            set->first_item[set->turns] = item;
            set->first_merge[set->turns++] = merge;
        }
        merges[merge].partial -= first_row;
        for (rows = item + merges[merge].n_splits; item < rows; item++) items[item].partial -= first_row;
    }
    set->first_item[set->turns] = n->items;
    set->first_merge[set->turns] = n->merges;
}

/* The power of two that holds n; 0 for none. */
static int32_t fg__gpu_bucket(int32_t n) {
    int32_t bucket = 1;
    if (n == 0) return 0;
    while (bucket < n) bucket *= 2;
    return bucket;
}

static void fg__gpu_fill_set(fg__gpu_plan *plan, int index, int32_t *to, const fg_batch *batch, fg__gpu_key *key) {
    fg__gpu_set *set = &plan->sets[index];
    fg_gpu_attn_item *items = (fg_gpu_attn_item *)(void *)(to + set->items_at);
    fg_gpu_attn_merge *merges = (fg_gpu_attn_merge *)(void *)(to + set->merges_at);
    int32_t window = plan->graph->groups[set->group].window, most_items = 0, most_merges = 0, t;
    fg_gpu_attn_counts n = {0, 0, 0};
    fg_gpu_attn_add(batch->n_seqs, batch->cu_q, batch->kv_len, set->heads, window, set->rows, set->split, set->low, set->high, &n, items, merges);
    fg__gpu_cut_turns(set, items, merges, &n);
    for (t = 0; t < set->turns; t++) {
        int32_t *counts = to + set->counts_at + 2 * t;
        counts[0] = set->first_item[t + 1] - set->first_item[t];
        counts[1] = set->first_merge[t + 1] - set->first_merge[t];
        most_items = FG__MAX(most_items, counts[0]);
        most_merges = FG__MAX(most_merges, counts[1]);
    }
    key->sets[index].turns = set->turns;
    key->sets[index].items = fg__gpu_bucket(most_items);
    key->sets[index].merges = fg__gpu_bucket(most_merges);
}

/* What recurrent layers are told of each sequence. */
static void fg__gpu_fill_states(const fg__gpu_plan *plan, int group, int32_t *to, const fg_batch *batch) {
    fg_gpu_state_seq *seqs = (fg_gpu_state_seq *)(void *)(to + plan->seqs_at[group]);
    int s;
    for (s = 0; s < batch->n_seqs; s++) {
        const int32_t *table = batch->tables[group] + (size_t)s * (size_t)plan->graph->max_blocks_per_seq;
        seqs[s].row = batch->cu_q[s];
        seqs[s].end = batch->cu_q[s + 1];
        seqs[s].position = batch->kv_len[s] - (seqs[s].end - seqs[s].row);
        seqs[s].source = seqs[s].position ? table[(seqs[s].position - 1) / plan->graph->groups[group].block_tokens] : -1;
    }
}

static void fg__gpu_fill_batch(fg__gpu_plan *plan, int32_t *to, const fg_batch *batch, fg__gpu_key *key) {
    size_t n = (size_t)batch->n_tokens * sizeof(int32_t);
    int i;
    memset(key, 0, sizeof(*key));
    to[0] = batch->n_tokens;
    to[1] = batch->n_rows;
    to[2] = batch->n_seqs;
    memcpy(to + plan->tokens_at, batch->tokens, n);
    memcpy(to + plan->positions_at, batch->positions, n);
    if (batch->n_rows) memcpy(to + plan->rows_at, batch->rows, (size_t)batch->n_rows * sizeof(int32_t));
    if (batch->draws && batch->n_rows)
        memcpy(to + plan->draws_at, batch->draws, (size_t)batch->n_rows * sizeof(fg_row_draw));
    for (i = 0; i < plan->graph->n_groups; i++) {
        bool state = plan->graph->groups[i].kind == FG_GROUP_STATE;
        if (state) fg__gpu_fill_states(plan, i, to, batch), key->seqs = FG__MIN(fg__gpu_bucket(batch->n_seqs), plan->graph->max_seqs);
        else memcpy(to + plan->slots_at[i], batch->slots[i], n);
        memcpy(to + plan->tables_at[i], batch->tables[i], (size_t)batch->n_seqs * (size_t)plan->graph->max_blocks_per_seq * sizeof(int32_t));
    }
    for (i = 0; i < plan->n_sets; i++) fg__gpu_fill_set(plan, i, to, batch, key);
    key->tokens = FG__MIN(fg__gpu_bucket(batch->n_tokens), plan->graph->max_tokens);
    key->rows = FG__MIN(fg__gpu_bucket(batch->n_rows), plan->graph->max_rows);
    key->seqs = FG__MIN(key->seqs, key->tokens);
    key->draws = batch->draws != NULL;
}

static fg_result fg__gpu_send_words(fg__gpu_plan *plan, const fg__gpu_batch *batch, int first, size_t n) {
    fg__gpu_device *d = plan->device;
    if (n == 0) return FG_OK;
    return fg__gpu_check(d, d->api.copy_to_device(fg__gpu_word(plan, first), batch->at + first, n * 4, d->compute), "sending a batch");
}

/* What a pass needs of its batch block: of each part as much as is filled, of block tables whole rows. */
static fg_result fg__gpu_send_batch(fg__gpu_plan *plan, const fg__gpu_batch *to, const fg_batch *batch) {
    fg_result r = fg__gpu_send_words(plan, to, 0, (size_t)plan->head_words);
    int i;
    for (i = 0; i < plan->graph->n_groups && r == FG_OK; i++)
        r = fg__gpu_send_words(plan, to, plan->tables_at[i], (size_t)batch->n_seqs * (size_t)plan->graph->max_blocks_per_seq);
    for (i = 0; i < plan->n_sets && r == FG_OK; i++) {
        const fg__gpu_set *set = &plan->sets[i];
        r = fg__gpu_send_words(plan, to, set->items_at, (size_t)set->first_item[set->turns] * sizeof(fg_gpu_attn_item) / 4);
        if (r == FG_OK)
            r = fg__gpu_send_words(plan, to, set->merges_at,
                                   (size_t)set->first_merge[set->turns] * sizeof(fg_gpu_attn_merge) / 4);
    }
    return r;
}

/* ---- Launches. ---- */

/* Finding a kernel may wait for the device, which a capture does not allow: all are found first (`find_only`). */
typedef struct fg__gpu_launcher {
    fg__gpu_plan *plan;
    const fg__gpu_key *key;
    bool find_only;
    int acts_slot, acts_col, acts_k, acts_type, acts_per; /* what is in `acts`; slot -1: nothing. per: see fg_gpu_acts_args */
    bool acts_new;                              /* the op that is launched made them of what it wrote */
    const fg_op *sorted;                        /* whose pairs are in the order of their experts; NULL: none */
} fg__gpu_launcher;

static fg_result fg__gpu_function(fg__gpu_device *d, int kernel, void **function) {
    static const char *const names[FG_GPU_KERNEL_COUNT] = {
#define FG__GPU_NAME(name, kind) "fg_gpu_" #name,
        FG_GPU_KERNELS(FG__GPU_NAME)
#undef FG__GPU_NAME
    };
    uint32_t more = d->functions[kernel] ? 0 : fg_gpu_more_bytes(kernel);
    int code = 0;
    if (!d->functions[kernel]) code = d->api.module_function(&d->functions[kernel], d->module, names[kernel]);
    if (!code && more) code = d->api.function_attribute(d->functions[kernel], 8 /* most shared memory of a launch */, (int)more);
    if (code) d->functions[kernel] = NULL;
    *function = d->functions[kernel];
    return fg__gpu_check(d, code, names[kernel]);
}

/* Code for 9.0 and later: its kernels wait for what the one before writes (fgk_depend). PTX for older devices does not, wherever it runs. */
static bool fg__gpu_waits(const fg__gpu_image *image) {
    const char *number = image ? strchr(image->target, '_') : NULL;
    return number && strtol(number + 1, NULL, 10) >= 90;
}

/* Whether kernels begin while the one before still runs. Graphs have such launches since CUDA 12.3. */
static bool fg__gpu_early(const fg__gpu_device *d) {
    return d->loader.launch_ex && d->loader.version >= 12030 && d->attributes[FG__GPU_MAJOR] >= 9 && fg__gpu_waits(d->image) && !d->options.no_early;
}

static int fg__gpu_launch_early(fg__gpu_device *d, void *function, const fg_gpu_shape *shape, void **parameters) {
    fg__gpu_launch_attribute attribute;
    fg__gpu_launch_config config;
    memset(&attribute, 0, sizeof(attribute));
    memset(&config, 0, sizeof(config));
    attribute.id = 6;
    attribute.value.allowed = 1;
    config.grid[0] = shape->grid_x, config.grid[1] = shape->grid_y, config.grid[2] = 1;
    config.block[0] = shape->block, config.block[1] = config.block[2] = 1;
    config.shared_bytes = shape->shared_bytes;
    config.stream = d->compute;
    config.attributes = &attribute;
    config.n_attributes = 1;
    return d->loader.launch_ex(&config, function, parameters, NULL);
}

static fg_result fg__gpu_launch_now(fg__gpu_device *d, int kernel, void *args, bool find_only) {
    fg_gpu_shape shape = fg_gpu_shape_of(kernel, args);
    void *parameters[1], *function;
    fg_result r = fg__gpu_function(d, kernel, &function);
    if (r != FG_OK || find_only) return r;
    parameters[0] = args;
    if (fg__gpu_early(d)) return fg__gpu_check(d, fg__gpu_launch_early(d, function, &shape, parameters), "launching a kernel");
    return fg__gpu_check(d,
                         d->api.launch(function, shape.grid_x, shape.grid_y, 1, shape.block, 1, 1, shape.shared_bytes, d->compute, parameters,
                                       NULL),
                         "launching a kernel");
}

static fg_result fg__gpu_launch(fg__gpu_launcher *l, int kernel, void *args) {
    l->plan->n_launched++;
    return fg__gpu_launch_now(l->plan->device, kernel, args, l->find_only);
}

#include "fg_gpu_special.h"

static int fg__gpu_acts_format(int type) {
    return type >= FG__GPU_FRAGMENTS ? type - FG__GPU_FRAGMENTS
         : type == FG__GPU_BLAS_BF16 ? FG_GPU_ACTS_BFLOAT : type == FG__GPU_BYTES ? FG_GPU_ACTS_BYTES : FG_GPU_ACTS_HALF;
}

/* Activations of half the size, which products of the same rows share; type: FG__GPU_BLAS_F16, or BF16 for a library; FG__GPU_BYTES; FG__GPU_OF_PAIRS;
   FG__GPU_FRAGMENTS and a format. */
static fg_result fg__gpu_launch_acts(fg__gpu_launcher *l, const fg__gpu_step *step, const fg_gpu_gemm_args *a,
                                     int type) {
    fg_gpu_acts_args acts;
    int32_t per = type == FG__GPU_OF_PAIRS ? step->args.experts.n_used : 1;
    fg_result r;
    if (l->acts_slot == step->src && l->acts_col == step->src_col && l->acts_k == a->k && l->acts_type == type && l->acts_per == per)
        return FG_OK;
    memset(&acts, 0, sizeof(acts));
    acts.src = a->src;
    acts.acts = a->acts;
    acts.scales = a->scales;
    acts.count = a->count;
    acts.k = a->k;
    acts.src_stride = a->src_stride;
    acts.acts_stride = fg_gpu_acts_stride(fg__gpu_acts_format(type), a->k);
    acts.max_rows = a->max_rows * per;
    acts.per = per;
    acts.format = fg__gpu_acts_format(type);
    if ((r = fg__gpu_launch(l, FG_GPU_KERNEL_acts, &acts)) != FG_OK) return r;
    l->acts_slot = step->src;
    l->acts_col = step->src_col;
    l->acts_k = a->k;
    l->acts_type = type;
    l->acts_per = per;
    return FG_OK;
}

/* The library's products: of quantised weights as many rows at a time as there is room for as halves, each into its columns. */
static fg_result fg__gpu_launch_products(fg__gpu_launcher *l, const fg__gpu_step *step, const fg_gpu_gemm_args *a,
                                          fg__gpu_blas_product *p, int *code) {
    fg__gpu_plan *plan = l->plan;
    bool expanded = fg__gpu_is_expanded(step->weight_type);
    int32_t piece = expanded ? FG__MIN(a->n, fg__gpu_expanded_rows(plan->device, a->k)) : a->n, first;
    fg__gpu_pointer out = p->out;
    fg_gpu_expand_args e;
    fg_result r = FG_OK;
    memset(&e, 0, sizeof(e));
    e.dst = plan->expanded.at;
    e.layout = a->layout;
    e.k = a->k, e.dst_stride = (int32_t)fg__gpu_expanded_stride(a->k);
    if (expanded) p->weight = e.dst, p->weight_stride = e.dst_stride;
    for (first = 0; first < a->n && r == FG_OK && !*code; first += piece) {
        p->n = e.n = FG__MIN(piece, a->n - first);
        p->out = out + (uint64_t)first * sizeof(float);
        e.weight = a->weight + (uint64_t)first * (uint64_t)a->layout.stride;
        if (expanded) r = fg__gpu_launch(l, fg_gpu_expand_kernel((int)step->weight_type), &e);
        if (r == FG_OK && !l->find_only) *code = fg__gpu_blas_multiply(plan->device, p);
        plan->n_launched += 2; /* the product, and what adds up its parts */
    }
    return r;
}

/* A product by the library, then what is added to it. What the library refuses is done by our kernels, now and from then on: *done
   is false then. */
static fg_result fg__gpu_launch_blas(fg__gpu_launcher *l, const fg__gpu_step *step, const fg_gpu_gemm_args *a,
                                     bool *done) {
    fg__gpu_plan *plan = l->plan;
    fg__gpu_device *d = plan->device;
    bool adds = a->src2 % FG__GPU_BLAS_ALIGN == 0 && fg__gpu_blas_adds(step->blas_type, a->bias != 0, a->act);
    bool in_place = !a->src2 || a->src2 != a->dst || adds;
    fg_gpu_gemm_args rest = *a;
    fg__gpu_blas_product p;
    fg_result r = fg__gpu_launch_acts(l, step, a, step->blas_type);
    int code = 0;
    if (r != FG_OK) return r;
    memset(&p, 0, sizeof(p));
    rest.src = in_place ? a->dst : plan->products.at;
    rest.src_stride = in_place ? a->dst_stride : a->n;
    if (step->blas_type == FG__GPU_BLAS_BF16) rest.scales = 0;
    if (adds) p.add = a->src2, p.add_stride = a->src2_stride, rest.src2 = 0;
    p.type = step->blas_type;
    p.k = a->k, p.rows = a->max_rows;
    p.weight = a->weight, p.acts = a->acts, p.out = rest.src;
    p.weight_stride = a->layout.stride / 2, p.acts_stride = a->acts_stride, p.out_stride = rest.src_stride;
    if ((r = fg__gpu_launch_products(l, step, a, &p, &code)) != FG_OK) return r;
    if (code) {
        fg__log(&d->env, FG_LOG_WARNING, "%s gives error %d; large products of %s weights are done without it", d->blas.kind->label, code,
                fg__gpu_blas_name(p.type));
        d->blas.ready &= ~((uint32_t)1 << p.type);
        *done = false;
        return FG_OK;
    }
    return rest.scales || a->bias || a->act || rest.src2 ? fg__gpu_launch(l, FG_GPU_KERNEL_finish, &rest) : FG_OK;
}

/* Whether a product of so many rows is the library's. */
static bool fg__gpu_by_library(const fg__gpu_launcher *l, const fg__gpu_step *step, int rows) {
    const fg__gpu_plan *plan = l->plan;
    return rows >= fg__gpu_blas_from(step->weight_type) && fg__gpu_blas_has(plan->device, step->blas_type) && plan->workspace_bytes &&
           step->args.gemm.dst % FG__GPU_BLAS_ALIGN == 0;
}

/* The kernel for few rows that does a product; -1: another does. */
static int fg__gpu_skinny_of(const fg__gpu_device *d, const fg__gpu_step *step, int rows) {
    return d->loader.driver->is_hip || d->options.invariant ? -1 : fg_gpu_skinny_kernel((int)step->weight_type, rows);
}

/* The activations that a product of so many rows reads, as fg__gpu_launch_acts has them; 0: floats. */
static int fg__gpu_acts_of(const fg__gpu_launcher *l, const fg__gpu_step *step, int rows) {
    const fg__gpu_device *d = l->plan->device;
    if (fg__gpu_by_library(l, step, rows)) return step->blas_type;
    if (fg__gpu_skinny_of(d, step, rows) >= 0) return FG__GPU_FRAGMENTS + fg_gpu_acts_fragments((int)step->weight_type);
    if (fg_gpu_product_for(rows, d->options.invariant) < FG_GPU_GEMM16) return 0;
    return d->loader.driver->is_hip && fg__gpu_special_for(d, step->weight_type, rows) >= 0 ? FG__GPU_BYTES : FG__GPU_BLAS_F16;
}

/* Rows of the tiles of a pass's products with experts; 1: they read floats, of each pair. */
static int fg__gpu_tile_of(const fg__gpu_launcher *l, const fg_op *op) {
    return fg_gpu_experts_rows(l->key->tokens, op->n_used, op->n_expert, l->plan->device->options.invariant);
}

/* As fg__gpu_acts_of, those of products with experts. */
static int fg__gpu_expert_acts_of(const fg__gpu_launcher *l, const fg_op *op) {
    return fg__gpu_tile_of(l, op) == 1 ? 0 : op->moe_sum ? FG__GPU_OF_PAIRS : FG__GPU_BLAS_F16;
}

/* The activations that the next product will read, where it is of the n columns that this op writes; else 0. `per`: rows of the product in one of
   these. */
static int fg__gpu_acts_wanted(const fg__gpu_launcher *l, const fg_op *op, int32_t n, int32_t *per) {
    const fg__gpu_plan *plan = l->plan;
    bool per_row = plan->steps[op - plan->graph->ops].per_row;
    int i, type;
    for (i = (int)(op - plan->graph->ops) + 1; i < l->key->end; i++) {
        const fg_op *next = &plan->graph->ops[i];
        if (next->type == FG_OP_GEMM || next->type == FG_OP_MOE_GEMM) {
            type = next->type == FG_OP_GEMM ? fg__gpu_acts_of(l, &plan->steps[i], plan->steps[i].per_row ? l->key->rows : l->key->tokens)
                                            : fg__gpu_expert_acts_of(l, next);
            *per = type == FG__GPU_OF_PAIRS ? next->n_used : 1;
            if (next->src == op->dst && next->src_col == op->dst_col && next->k * *per == n && plan->steps[i].per_row == per_row)
                return type == FG__GPU_BYTES || (*per > 1 && op->type != FG_OP_ACT_MUL) ? 0 : type;
            if (type) return 0;
        }
        if ((next->type != FG_OP_SAMPLE && next->dst == op->dst) ||
            ((next->type == FG_OP_NORM || next->type == FG_OP_ROPE_KV) && next->src == op->dst))
            return 0;
    }
    return 0;
}

/* Has a kernel make of the rows that it writes what the next product reads; returns how many of its rows are in one of these. */
static int32_t fg__gpu_make_acts(fg__gpu_launcher *l, const fg__gpu_step *step, int32_t n, uint64_t *acts, uint64_t *scales, int32_t *stride,
                                 int32_t *format) {
    const fg_op *op = &l->plan->graph->ops[step - l->plan->steps];
    int32_t per = 1;
    int type = fg__gpu_acts_wanted(l, op, n, &per);
    if (!type) return 1;
    *acts = l->plan->acts.at;
    *scales = l->plan->scales.at;
    *format = fg__gpu_acts_format(type);
    *stride = fg_gpu_acts_stride(*format, n / per);
    l->acts_slot = op->dst;
    l->acts_col = op->dst_col;
    l->acts_k = n / per;
    l->acts_type = type;
    l->acts_per = per;
    l->acts_new = true;
    return per;
}

/* Whether a product takes along those behind it: where they are of the same range, and it is one with experts, or done by gemv or skinny. */
static bool fg__gpu_joins(const fg__gpu_launcher *l, const fg__gpu_step *step) {
    const fg__gpu_device *d = l->plan->device;
    int rows = step->per_row ? l->key->rows : l->key->tokens;
    if (!step->joined || step - l->plan->steps + step->joined >= l->key->end) return false;
    if (step->type == FG_OP_MOE_GEMM) return true;
    if (d->options.invariant) return false;
    return rows <= 8 || fg__gpu_skinny_of(d, step, rows) >= 0;
}

/* Products of the same rows by weights of one type, the later into the columns behind: of few rows they are one, since a small weight
   alone does not fill the device. */
static void fg__gpu_join(const fg__gpu_step *step, fg_gpu_gemm_args *a) {
    int i;
    for (i = 0; i < step->joined; i++) {
        const fg_gpu_gemm_args *its = &step[i + 1].args.gemm;
        a->more[i].weight = its->weight;
        a->more[i].bias = its->bias;
        a->more[i].exponent = its->exponent;
        a->more[i].from = a->n;
        a->n += its->n;
    }
}

/* A product by splits of k, and what is left to do when all are there. */
static fg_result fg__gpu_launch_splits(fg__gpu_launcher *l, int kernel, const fg_gpu_gemm_args *a, int splits) {
    fg_gpu_gemm_args part = *a, rest = *a;
    fg_result r;
    part.splits = rest.splits = splits;
    part.dst = rest.src = l->plan->products.at;
    part.dst_stride = rest.src_stride = a->n;
    part.bias = part.src2 = rest.scales = 0;
    part.act = 0;
    r = fg__gpu_launch(l, kernel, &part);
    return r == FG_OK ? fg__gpu_launch(l, FG_GPU_KERNEL_finish, &rest) : r;
}

/* A product; of many rows it reads activations of half the size, or a quarter. */
static fg_result fg__gpu_launch_gemm(fg__gpu_launcher *l, const fg__gpu_step *step, fg_gpu_gemm_args *a, int rows) {
    const fg__gpu_device *d = l->plan->device;
    int which = fg_gpu_product_for(rows, d->options.invariant), special = which < FG_GPU_GEMM16 ? -1 : fg__gpu_special_for(d, step->weight_type, rows);
    int skinny = fg__gpu_skinny_of(d, step, rows), kernel, splits;
    int acts = which < FG_GPU_GEMM16 ? 0 : special >= 0 && d->loader.driver->is_hip ? FG__GPU_BYTES : FG__GPU_BLAS_F16;
    bool done = true;
    fg_result r;
    a->max_rows = rows;
    if (fg__gpu_by_library(l, step, rows)) {
        r = fg__gpu_launch_blas(l, step, a, &done);
        if (r != FG_OK || (done && !l->find_only)) return r;
    }
    if (fg__gpu_joins(l, step)) fg__gpu_join(step, a);
    if (skinny >= 0) {
        int format = fg_gpu_acts_fragments((int)step->weight_type);
        special = skinny;
        a->across = fg_gpu_skinny_across(a->n, a->k, fg_gpu_skinny_cols(skinny));
        a->acts_stride = fg_gpu_acts_stride(format, a->k);
        acts = FG__GPU_FRAGMENTS + format;
    }
    if (acts && (r = fg__gpu_launch_acts(l, step, a, acts)) != FG_OK) return r;
    kernel = special >= 0 ? special : step->kernel + which;
    splits = fg__gpu_splits_of(d, special >= 0 ? FG__MIN(which, FG_GPU_GEMM64) : which, a->n, a->k, rows); /* gemmi has no tiles of 128 */
    return splits > 1 ? fg__gpu_launch_splits(l, kernel, a, splits) : fg__gpu_launch(l, kernel, a);
}

/* The pairs of the pass in the order of their experts: once for all products of a layer. */
static fg_result fg__gpu_launch_sort(fg__gpu_launcher *l, const fg_op *op, const fg_gpu_experts_args *a, int tile) {
    const fg_op *before = l->sorted;
    fg_gpu_sort_args sort;
    if (before && before->src2 == op->src2 && before->src2_col == op->src2_col && before->n_used == op->n_used && before->n_expert == op->n_expert)
        return FG_OK;
    memset(&sort, 0, sizeof(sort));
    sort.routes = a->routes, sort.routes_stride = a->routes_stride;
    sort.pairs = a->pairs, sort.tiles = a->tiles, sort.count = a->gemm.count;
    sort.n_expert = a->n_expert, sort.n_used = a->n_used, sort.rows = tile;
    l->sorted = op;
    return fg__gpu_launch(l, FG_GPU_KERNEL_sort, &sort);
}

/* Adds to a token's row what its experts have made of it. */
static fg_result fg__gpu_launch_mix(fg__gpu_launcher *l, const fg_op *op, const fg_gpu_experts_args *a) {
    fg_gpu_mix_args mix;
    memset(&mix, 0, sizeof(mix));
    mix.src = a->gemm.dst, mix.count = a->gemm.count;
    mix.dst = fg__gpu_slot(l->plan, op->dst, op->dst_col), mix.dst_stride = fg__gpu_stride(l->plan, op->dst);
    mix.weights = a->routes + (uint64_t)op->n_used * sizeof(float), mix.weights_stride = a->routes_stride;
    mix.n = op->n, mix.n_used = op->n_used, mix.max_rows = a->gemm.max_rows;
    return fg__gpu_launch(l, FG_GPU_KERNEL_mix, &mix);
}

static fg_result fg__gpu_launch_experts(fg__gpu_launcher *l, const fg__gpu_step *step, fg_gpu_experts_args *a) {
    const fg_op *op = &l->plan->graph->ops[step - l->plan->steps];
    int tile = fg__gpu_tile_of(l, op), acts = fg__gpu_expert_acts_of(l, op);
    fg_result r = FG_OK;
    a->gemm.max_rows = l->key->tokens;
    a->max_tiles = fg_gpu_experts_tiles(l->key->tokens * op->n_used, op->n_expert, tile);
    if (fg__gpu_joins(l, step)) {
        const fg_gpu_gemm_args *its = &step[1].args.gemm;
        a->weight2 = its->weight, a->bias2 = its->bias, a->dst2 = its->dst;
    }
    if (acts) r = fg__gpu_launch_acts(l, step, &a->gemm, acts);
    if (r == FG_OK && tile > 1) r = fg__gpu_launch_sort(l, op, a, tile);
    if (r == FG_OK) r = fg__gpu_launch(l, fg_gpu_experts_kernel((int)step->weight_type, tile), a);
    return r == FG_OK && op->moe_sum ? fg__gpu_launch_mix(l, op, a) : r;
}

/* The attention of one set of sequences. */
static fg_result fg__gpu_launch_set(fg__gpu_launcher *l, int index, int kernel, fg_gpu_attention_args *a) {
    const fg__gpu_plan *plan = l->plan;
    const fg__gpu_set *set = &plan->sets[index];
    int turn;
    fg_result r = FG_OK;
    a->max_items = l->key->sets[index].items;
    a->max_merges = l->key->sets[index].merges;
    a->merge_tokens = FG__MAX(set->rows / set->heads, 1);
    if (!a->max_items) return FG_OK;
    for (turn = 0; turn < l->key->sets[index].turns && r == FG_OK; turn++) {
        a->count = fg__gpu_word(plan, set->counts_at + 2 * turn);
        a->merge_count = fg__gpu_word(plan, set->counts_at + 2 * turn + 1);
        a->items = fg__gpu_word(plan, set->items_at) + (uint64_t)set->first_item[turn] * sizeof(fg_gpu_attn_item);
        a->merges = fg__gpu_word(plan, set->merges_at) + (uint64_t)set->first_merge[turn] * sizeof(fg_gpu_attn_merge);
        r = fg__gpu_launch(l, kernel, a);
        if (r == FG_OK && a->max_merges) r = fg__gpu_launch(l, FG_GPU_KERNEL_combine, a);
    }
    return r;
}

static fg_result fg__gpu_launch_attention(fg__gpu_launcher *l, const fg__gpu_step *step, fg_gpu_attention_args *a) {
    fg_result r = fg__gpu_launch_set(l, step->set, step->kernel, a);
    return r == FG_OK && step->wide_set >= 0 ? fg__gpu_launch_set(l, step->wide_set, step->wide_kernel, a) : r;
}

/* Recurrent layers: their states, then the norm of what they give. */
static fg_result fg__gpu_launch_state(fg__gpu_launcher *l, const fg__gpu_step *step, fg_gpu_state_args *a) {
    fg_result r;
    a->max_rows = l->key->tokens;
    a->max_seqs = l->key->seqs;
    r = fg__gpu_launch(l, step->kernel, a);
    return r == FG_OK ? fg__gpu_launch(l, FG_GPU_KERNEL_state_out, a) : r;
}

/* Argmax and log-sum-exp; candidates and a draw where some row is asked for them. */
static fg_result fg__gpu_launch_sample(fg__gpu_launcher *l, fg_gpu_sample_args *a) {
    const fg__gpu_plan *plan = l->plan;
    fg_gpu_top_args top;
    fg_result r = fg__gpu_launch(l, FG_GPU_KERNEL_sample, a);
    if (r == FG_OK) r = fg__gpu_launch(l, FG_GPU_KERNEL_choose, a);
    if (r != FG_OK || !l->key->draws) return r;
    memset(&top, 0, sizeof(top));
    top.src = a->src;
    top.rows = a->rows;
    top.wants = fg__gpu_word(plan, plan->draws_at);
    top.tops = plan->tops.at;
    top.out = plan->candidates.at;
    top.count = a->count;
    top.n = a->n;
    top.src_stride = a->src_stride;
    top.pieces = a->pieces;
    top.max_rows = a->max_rows;
    r = fg__gpu_launch(l, FG_GPU_KERNEL_top, &top);
    return r == FG_OK ? fg__gpu_launch(l, FG_GPU_KERNEL_pick, &top) : r;
}

static fg_result fg__gpu_launch_step(fg__gpu_launcher *l, const fg__gpu_step *step) {
    fg__gpu_args args = step->args;
    int rows = step->per_row ? l->key->rows : l->key->tokens;
    switch (step->type) {
    case FG_OP_GEMM: return fg__gpu_launch_gemm(l, step, &args.gemm, rows);
    case FG_OP_MOE_GEMM: return fg__gpu_launch_experts(l, step, &args.experts);
    case FG_OP_ATTENTION: return fg__gpu_launch_attention(l, step, &args.attention);
    case FG_OP_STATE_SCAN: return fg__gpu_launch_state(l, step, &args.state);
    case FG_OP_EMBED: args.embed.max_rows = rows; break;
    case FG_OP_NORM:
        args.norm.max_rows = rows;
        (void)fg__gpu_make_acts(l, step, args.norm.n, &args.norm.acts, &args.norm.scales, &args.norm.acts_stride, &args.norm.format);
        break;
    case FG_OP_ROPE_KV: args.rope.max_rows = rows; break;
    case FG_OP_ACT_MUL:
        args.act_mul.max_rows = rows;
        if (args.act_mul.one) break; /* its src is no row of the product's */
        args.act_mul.per = fg__gpu_make_acts(l, step, args.act_mul.n, &args.act_mul.acts, &args.act_mul.scales, &args.act_mul.acts_stride,
                                             &args.act_mul.format);
        args.act_mul.max_rows = rows * args.act_mul.per;
        args.act_mul.n /= args.act_mul.per;
        if (args.act_mul.acts) return fg__gpu_launch(l, FG_GPU_KERNEL_act_rows, &args);
        break;
    case FG_OP_MOE_ROUTE: args.route.max_rows = rows; break;
    case FG_OP_GATHER_ROWS: args.gather.max_rows = rows; break;
    default:
        args.sample.max_rows = rows;
        return fg__gpu_launch_sample(l, &args.sample);
    }
    return fg__gpu_launch(l, step->kernel, &args);
}

/* All kernels of a pass. */
static fg_result fg__gpu_launch_all(fg__gpu_plan *plan, const fg__gpu_key *key, bool find_only) {
    const fg_graph *graph = plan->graph;
    fg__gpu_launcher l;
    fg_result r = FG_OK;
    int i;
    l.plan = plan;
    l.key = key;
    l.find_only = find_only;
    l.acts_slot = -1;
    l.acts_col = l.acts_k = l.acts_type = l.acts_per = 0;
    l.sorted = NULL;
    plan->n_launched = 0;
    for (i = key->first; i < key->end && r == FG_OK; i++) {
        const fg_op *op = &graph->ops[i];
        if (plan->steps[i].per_row && key->rows == 0) continue;
        l.acts_new = false;
        r = fg__gpu_launch_step(&l, &plan->steps[i]);
        if (fg__gpu_joins(&l, &plan->steps[i])) i += plan->steps[i].joined;
        if (l.sorted && op->type != FG_OP_SAMPLE && op->dst == l.sorted->src2) l.sorted = NULL;
        if (l.acts_new) continue;
        /* what was written is no longer what `acts` has */
        if ((op->type != FG_OP_SAMPLE && op->dst == l.acts_slot) || ((op->type == FG_OP_NORM || op->type == FG_OP_ROPE_KV) && op->src == l.acts_slot))
            l.acts_slot = -1;
    }
    return r;
}

/* ---- Graphs. ---- */

static void fg__gpu_graph_drop(fg__gpu_device *d, fg__gpu_graph *graph) {
    if (graph->exec) (void)d->api.graph_exec_destroy(graph->exec);
    graph->exec = NULL;
    graph->used = 0;
}

/* The place of a key: its own, else an empty one, else that of the one not used for longest. */
static fg__gpu_graph *fg__gpu_graph_find(fg__gpu_plan *plan, const fg__gpu_key *key) {
    fg__gpu_graph *oldest = plan->graphs;
    int i;
    for (i = 0; i < FG__GPU_GRAPHS; i++) {
        fg__gpu_graph *graph = &plan->graphs[i];
        if (graph->used && memcmp(&graph->key, key, sizeof(*key)) == 0) return graph;
        if (graph->used < oldest->used) oldest = graph;
    }
    return oldest;
}

/* Kernels of all graphs, and which of these was not used for longest; NULL: there are none. */
static size_t fg__gpu_graph_nodes(const fg__gpu_plan *plan, fg__gpu_graph **oldest) {
    size_t n = 0;
    int i;
    *oldest = NULL;
    for (i = 0; i < FG__GPU_GRAPHS; i++) {
        fg__gpu_graph *graph = &plan->graphs[i];
        if (!graph->exec) continue;
        n += (size_t)graph->nodes;
        if (!*oldest || graph->used < (*oldest)->used) *oldest = graph;
    }
    return n;
}

/* Room for another graph of so many kernels: those not used for longest give way. Those of the last passes do not: where more keys take
   turns than there is room for, making graphs over and over would take longer than they save. */
static bool fg__gpu_graph_room(fg__gpu_plan *plan, int nodes) {
    size_t most = FG__MIN(plan->device->memory / 16, (size_t)FG__GPU_GRAPHS_BYTES) / FG__GPU_NODE_BYTES;
    fg__gpu_graph *oldest;
    while (fg__gpu_graph_nodes(plan, &oldest) + (size_t)nodes > most) {
        if (!oldest || plan->n_passes - oldest->used <= FG__GPU_GRAPHS) return false;
        fg__gpu_settle(plan->device); /* it may still run */
        fg__gpu_graph_drop(plan->device, oldest);
    }
    return true;
}

/* Captures a pass of the key. */
static fg_result fg__gpu_graph_make(fg__gpu_plan *plan, fg__gpu_graph *graph) {
    fg__gpu_device *d = plan->device;
    void *captured = NULL;
    fg_result r = fg__gpu_check(d, d->api.capture_begin(d->compute, 2 /* others may do as they like */), "capturing a pass"), end;
    if (r != FG_OK) return r;
    r = fg__gpu_launch_all(plan, &graph->key, false);
    end = fg__gpu_check(d, d->api.capture_end(d->compute, &captured), "capturing a pass");
    if (r == FG_OK) r = end;
    if (r == FG_OK) r = fg__gpu_check(d, d->api.graph_instantiate(&graph->exec, captured, 0), "making a graph");
    if (r != FG_OK) graph->exec = NULL;
    if (captured) (void)d->api.graph_destroy(captured);
    return r;
}

/* After an error of a graph there are no more: those that there are give back their memory, which may be what was missing. */
static void fg__gpu_graphs_end(fg__gpu_plan *plan) {
    fg__gpu_device *d = plan->device;
    int i;
    fg__log(&d->env, FG_LOG_WARNING, "%s; kernels are launched one by one", fg_last_error());
    d->options.no_graphs = true;
    fg__gpu_settle(d);
    for (i = 0; i < FG__GPU_GRAPHS; i++) fg__gpu_graph_drop(d, &plan->graphs[i]);
}

/* Makes a graph of a pass that came before, where there is none. Without one the pass goes on, but where the device was lost. */
static fg_result fg__gpu_graph_want(fg__gpu_plan *plan, fg__gpu_graph *graph) {
    fg__gpu_device *d = plan->device;
    uint32_t by_library = d->blas.ready;
    fg_result r;
    if (graph->exec || d->options.no_graphs || !fg__gpu_graph_room(plan, graph->nodes)) return FG_OK;
    r = fg__gpu_graph_make(plan, graph);
    if (r != FG_OK && !d->lost && fg__gpu_early(d) && by_library == d->blas.ready) {
        d->options.no_early = true;
        r = fg__gpu_graph_make(plan, graph);
    }
    if (r != FG_OK && !d->lost && by_library == d->blas.ready) fg__gpu_graphs_end(plan); /* else the library broke the capture; the next has none */
    return d->lost ? r : FG_OK;
}

/* Drivers may take a graph's memory only when it is launched first. */
static fg_result fg__gpu_graph_launch(fg__gpu_plan *plan, const fg__gpu_graph *graph, bool *done) {
    fg__gpu_device *d = plan->device;
    fg_result r = fg__gpu_check(d, d->api.graph_launch(graph->exec, d->compute), "launching a graph");
    *done = r == FG_OK;
    if (r != FG_OK && !d->lost) fg__gpu_graphs_end(plan);
    return d->lost ? r : FG_OK;
}

/* Finds a pass's kernels, whose code may not fit what graphs left of the device's memory: then graphs go. */
static fg_result fg__gpu_find_kernels(fg__gpu_plan *plan, const fg__gpu_key *key) {
    fg__gpu_graph *oldest;
    fg_result r = fg__gpu_launch_all(plan, key, true);
    if (r != FG_ERROR_OUT_OF_MEMORY || plan->device->lost || fg__gpu_graph_nodes(plan, &oldest) == 0) return r;
    fg__gpu_graphs_end(plan);
    return fg__gpu_launch_all(plan, key, true);
}

/* A pass that comes for the first time is launched as it is, which also loads its kernels; then a graph is made. One whose
   attention runs in turns never has a graph: where they begin is different each time. */
static fg_result fg__gpu_run(fg__gpu_plan *plan, const fg__gpu_key *key) {
    fg__gpu_device *d = plan->device;
    fg__gpu_graph *graph = fg__gpu_graph_find(plan, key);
    bool again = graph->used && memcmp(&graph->key, key, sizeof(*key)) == 0, done = false;
    fg_result r;
    int i;
    plan->n_passes++;
    for (i = 0; i < plan->n_sets; i++)
        if (key->sets[i].turns > 1) return (r = fg__gpu_find_kernels(plan, key)) == FG_OK ? fg__gpu_launch_all(plan, key, false) : r;
    if (!again) {
        if (graph->exec) fg__gpu_settle(d); /* it may still run */
        fg__gpu_graph_drop(d, graph);
        graph->key = *key;
        r = fg__gpu_find_kernels(plan, key);
    } else r = fg__gpu_graph_want(plan, graph);
    graph->used = r == FG_OK ? plan->n_passes : 0;
    if (r == FG_OK && graph->exec) r = fg__gpu_graph_launch(plan, graph, &done);
    if (r != FG_OK || done) return r;
    r = fg__gpu_launch_all(plan, key, false);
    graph->nodes = plan->n_launched;
    return r;
}

/* ---- Preparing. ---- */

static void fg__gpu_release_device(fg__gpu_plan *plan) {
    fg__gpu_device *d = plan->device;
    int i;
    fg__gpu_settle(d);
    for (i = 0; plan->graphs && i < FG__GPU_GRAPHS; i++) fg__gpu_graph_drop(d, &plan->graphs[i]);
    for (i = 0; plan->crossings && i < plan->graph->n_slots; i++) {
        fg__gpu_give_host(d, plan->crossings[i].at);
        if (plan->crossings[i].event) (void)d->api.event_destroy(plan->crossings[i].event);
    }
    for (i = 0; i < FG__GPU_BLOCKS; i++) {
        fg__gpu_give_host(d, plan->batches[i].at);
        fg__gpu_give_host(d, plan->host_rows[i]);
        fg__gpu_give_host(d, plan->host_logits[i]);
        fg__gpu_give_host(d, plan->host_candidates[i]);
        fg__gpu_give(d, &plan->logits[i]);
        if (plan->batches[i].event) (void)d->api.event_destroy(plan->batches[i].event);
    }
    if (plan->paired) (void)d->api.event_destroy(plan->paired);
    fg__gpu_give_host(d, plan->host_pairs);
    for (i = 0; i < FG_MAX_GROUPS; i++) fg__gpu_give(d, &plan->pools[i]);
    fg__gpu_give(d, &plan->pairs);
    fg__gpu_give(d, &plan->candidates);
    fg__gpu_give(d, &plan->tops);
    fg__gpu_give(d, &plan->rows);
    fg__gpu_give(d, &plan->parts);
    fg__gpu_give(d, &plan->partials);
    fg__gpu_give(d, &plan->expanded);
    fg__gpu_give(d, &plan->expert_pairs);
    fg__gpu_give(d, &plan->expert_tiles);
    fg__gpu_give(d, &plan->products);
    fg__gpu_give(d, &plan->scales);
    fg__gpu_give(d, &plan->acts);
    fg__gpu_give(d, &plan->batch);
    fg__gpu_give(d, &plan->memory);
}

static void fg__gpu_release(fg_device *handle, fg_plan *plan_handle) {
    fg__gpu_device *d = (fg__gpu_device *)(void *)handle;
    fg__gpu_plan *plan = (fg__gpu_plan *)(void *)plan_handle;
    if (fg__gpu_enter(d) == FG_OK) {
        fg__gpu_release_device(plan);
        fg__gpu_leave(d);
    }
    fg__free(&d->env, plan->graphs);
    fg__free(&d->env, plan->crossings);
    fg__free(&d->env, plan->slot_at);
    fg__free(&d->env, plan->steps);
    fg__free(&d->env, plan);
}

/* Opens the library where it would do some product. */
static fg_result fg__gpu_prepare_blas(fg__gpu_plan *plan) {
    const fg_graph *graph = plan->graph;
    fg__gpu_device *d = plan->device;
    fg_result r;
    uint32_t types = 0;
    int i;
    for (i = 0; i < graph->n_ops; i++) types |= (uint32_t)1 << fg__gpu_blas_type(graph, &graph->ops[i]);
    if (types <= 1) return FG_OK; /* 0 is none */
    if ((r = fg__gpu_enter(d)) != FG_OK) return r;
    if (types >> FG__GPU_BLAS_F16 & 1) fg__gpu_blas_open(d, FG__GPU_BLAS_F16);
    if (types >> FG__GPU_BLAS_BF16 & 1) fg__gpu_blas_open(d, FG__GPU_BLAS_BF16);
    fg__gpu_leave(d);
    return FG_OK;
}

static fg_result fg__gpu_plan_fill(fg__gpu_plan *plan, bool measure, fg_memory *memory) {
    const fg_graph *graph = plan->graph;
    fg__gpu_device *d = plan->device;
    fg_memory counted;
    fg_result r;
    plan->slot_at = (size_t *)fg__calloc(&d->env, (size_t)graph->n_slots, sizeof(size_t));
    if (!plan->slot_at) return FG_ERROR_OUT_OF_MEMORY;
    if ((r = fg__gpu_check_graph(plan, measure)) != FG_OK) return r;
    if ((r = fg__gpu_prepare_blas(plan)) != FG_OK || (r = fg__gpu_lay(plan)) != FG_OK) return r;
    fg__gpu_count(plan, &counted);
    if (memory) *memory = counted;
    if (measure) return FG_OK;
    plan->steps = (fg__gpu_step *)fg__calloc(&d->env, (size_t)graph->n_ops, sizeof(fg__gpu_step));
    plan->graphs = (fg__gpu_graph *)fg__calloc(&d->env, FG__GPU_GRAPHS, sizeof(fg__gpu_graph));
    plan->crossings = (fg__gpu_crossing *)fg__calloc(&d->env, (size_t)graph->n_slots, sizeof(fg__gpu_crossing));
    if (!plan->steps || !plan->graphs || !plan->crossings) return FG_ERROR_OUT_OF_MEMORY;
    if ((r = fg__gpu_enter(d)) != FG_OK) return r;
    fg__gpu_special_open(plan);
    r = fg__gpu_take_plan(plan);
    fg__gpu_leave(d);
    return r == FG_OK ? fg__gpu_make_steps(plan) : r;
}

static fg_result fg__gpu_prepare(fg_device *handle, const fg_graph *graph, fg_plan **out, fg_memory *memory) {
    fg__gpu_device *d = (fg__gpu_device *)(void *)handle;
    fg__gpu_plan *plan = (fg__gpu_plan *)fg__calloc(&d->env, 1, sizeof(fg__gpu_plan));
    fg_result r;
    if (!plan) return FG_ERROR_OUT_OF_MEMORY;
    plan->device = d;
    plan->graph = graph;
    plan->sample_op = -1;
    r = fg__gpu_plan_fill(plan, !out, memory);
    if (r == FG_OK && out) *out = (fg_plan *)(void *)plan;
    else fg__gpu_release(handle, (fg_plan *)(void *)plan);
    return r;
}

/* ================================================================================================
   Passes
   ================================================================================================ */

/* Tokens that the pass before makes, from its results, which are still where it left them. */
static fg_result fg__gpu_feed(fg__gpu_plan *plan, fg__gpu_batch *to, const fg_batch *batch) {
    fg__gpu_launcher l;
    fg_gpu_feed_args args;
    fg_result r;
    int i;
    if (!batch->feed || batch->first_op > 0) return FG_OK;
    for (i = 0; i < batch->n_tokens; i++)
        if (batch->feed[i] >= plan->graph->max_rows)
            return fg__fail(FG_ERROR_INVALID_ARGUMENT, "a pass has no row %d", (int)batch->feed[i]);
    memcpy(to->at + plan->feed_at, batch->feed, (size_t)batch->n_tokens * sizeof(int32_t));
    if ((r = fg__gpu_send_words(plan, to, plan->feed_at, (size_t)batch->n_tokens)) != FG_OK) return r;
    memset(&l, 0, sizeof(l));
    l.plan = plan;
    memset(&args, 0, sizeof(args));
    args.tokens = fg__gpu_word(plan, plan->tokens_at);
    args.feed = fg__gpu_word(plan, plan->feed_at);
    args.rows = plan->rows.at;
    args.count = fg__gpu_word(plan, 0);
    args.row_words = (int32_t)(sizeof(fg_row_result) / 4);
    args.max_rows = batch->n_tokens;
    return fg__gpu_launch(&l, FG_GPU_KERNEL_feed, &args);
}

/* The results of a pass to pinned memory. */
static fg_result fg__gpu_ask_results(fg__gpu_plan *plan, const fg_batch *batch) {
    fg__gpu_device *d = plan->device;
    int turn = (int)(plan->n_submitted % FG__GPU_BLOCKS);
    const fg_op *op;
    size_t n = (size_t)batch->n_rows;
    fg_result r;
    if (plan->sample_op < batch->first_op || n == 0 || (batch->n_ops && plan->sample_op >= batch->first_op + batch->n_ops)) return FG_OK;
    op = &plan->graph->ops[plan->sample_op];
    r = fg__gpu_check(d, d->api.copy_to_host(plan->host_rows[turn], plan->rows.at, n * sizeof(fg_row_result), d->compute), "asking for results");
    if (r == FG_OK && batch->draws)
        r = fg__gpu_check(d, d->api.copy_to_host(plan->host_candidates[turn], plan->candidates.at, n * sizeof(fg_row_candidates), d->compute),
                          "asking for candidates");
    if (r == FG_OK && batch->draws)
        r = fg__gpu_check(d, d->api.copy_on_device(plan->logits[turn].at, fg__gpu_slot(plan, op->src, 0), n * (size_t)op->n * sizeof(float), d->compute),
                          "keeping logits");
    if (r != FG_OK || !batch->want_logits) return r;
    return fg__gpu_check(d,
                         d->api.copy_to_host(plan->host_logits[turn], fg__gpu_slot(plan, op->src, 0), n * (size_t)op->n * sizeof(float),
                                             d->compute),
                         "asking for logits");
}

static fg_result fg__gpu_batch_wait(fg__gpu_device *d, fg__gpu_batch *batch) {
    if (!batch->busy) return FG_OK;
    batch->busy = false;
    return fg__gpu_check(d, d->api.event_wait(batch->event), "waiting for the device");
}

/* A range that goes on where the last one ended finds the batch block on the device. */
static fg_result fg__gpu_pass(fg__gpu_plan *plan, fg__gpu_batch *to, const fg_batch *batch) {
    fg__gpu_device *d = plan->device;
    bool goes_on = batch->first_op > 0 && batch->first_op == plan->last.end;
    fg__gpu_key key = plan->last;
    fg_result r;
    plan->last.end = 0; /* unless all of it is submitted */
    if ((r = fg__gpu_batch_wait(d, to)) != FG_OK) return r;
    if (!goes_on) fg__gpu_fill_batch(plan, to->at, batch, &key);
    key.first = batch->first_op;
    key.end = batch->n_ops ? batch->first_op + batch->n_ops : plan->graph->n_ops;
    if (d->has_copied) r = fg__gpu_check(d, d->api.stream_wait_event(d->compute, d->copied, 0), "ordering a pass");
    if (r == FG_OK && !goes_on) r = fg__gpu_send_batch(plan, to, batch);
    if (r == FG_OK) r = fg__gpu_feed(plan, to, batch);
    if (r == FG_OK) r = fg__gpu_run(plan, &key);
    if (r == FG_OK) r = fg__gpu_ask_results(plan, batch);
    if (r == FG_OK) r = fg__gpu_check(d, d->api.event_record(d->passed, d->compute), "ending a pass");
    if (r == FG_OK) r = fg__gpu_check(d, d->api.event_record(to->event, d->compute), "ending a pass");
    if (r == FG_OK) plan->last = key;
    return r;
}

static fg_result fg__gpu_submit(fg_device *handle, fg_plan *plan_handle, const fg_batch *batch) {
    fg__gpu_device *d = (fg__gpu_device *)(void *)handle;
    fg__gpu_plan *plan = (fg__gpu_plan *)(void *)plan_handle;
    fg__gpu_batch *to = &plan->batches[plan->n_submitted % FG__GPU_BLOCKS];
    fg_result r;
    if (!fg__batch_check(plan->graph, batch))
        return fg__fail(FG_ERROR_INVALID_ARGUMENT, "the batch names tokens, rows or KV blocks that do not exist");
    if (plan->n_submitted - plan->n_waited >= FG__GPU_BLOCKS)
        return fg__fail(FG_ERROR_INVALID_ARGUMENT, "too many passes are in flight");
    if (d->lost) return fg__fail(FG_ERROR_DEVICE, "%s was lost", d->name);
    if ((r = fg__gpu_enter(d)) != FG_OK) return r;
    r = fg__gpu_pass(plan, to, batch);
    to->want_logits = batch->want_logits;
    to->has_draws = batch->draws != NULL;
    to->busy = r == FG_OK;
    if (r == FG_OK) {
        plan->n_submitted++;
        d->has_passed = true;
    } else fg__gpu_settle(d); /* what was begun of it */
    fg__gpu_leave(d);
    return r;
}

static fg_result fg__gpu_wait(fg_device *handle, fg_plan *plan_handle, fg_output *output) {
    fg__gpu_device *d = (fg__gpu_device *)(void *)handle;
    fg__gpu_plan *plan = (fg__gpu_plan *)(void *)plan_handle;
    int turn = (int)(plan->n_waited % FG__GPU_BLOCKS);
    fg_result r;
    memset(output, 0, sizeof(*output));
    if (plan->n_waited == plan->n_submitted) return fg__fail(FG_ERROR_INVALID_ARGUMENT, "no pass is in flight");
    plan->n_waited++;
    if ((r = fg__gpu_enter(d)) != FG_OK) return r;
    r = fg__gpu_batch_wait(d, &plan->batches[turn]);
    fg__gpu_leave(d);
    if (r != FG_OK || plan->sample_op < 0) return r;
    output->rows = plan->host_rows[turn];
    if (plan->batches[turn].has_draws) output->candidates = plan->host_candidates[turn];
    if (plan->batches[turn].want_logits) output->logits = plan->host_logits[turn];
    return FG_OK;
}

/* The rows lie where their pass left them, beside those of the one behind it, which is not waited for. */
static fg_result fg__gpu_read_logits(fg_device *handle, fg_plan *plan_handle, int row, float *logits) {
    fg__gpu_device *d = (fg__gpu_device *)(void *)handle;
    fg__gpu_plan *plan = (fg__gpu_plan *)(void *)plan_handle;
    size_t bytes = plan->sample_op < 0 ? 0 : (size_t)plan->graph->ops[plan->sample_op].n * sizeof(float);
    int turn = (int)((plan->n_waited + 1) % FG__GPU_BLOCKS);
    const fg__gpu_batch *batch = &plan->batches[turn];
    char *host = (char *)plan->host_logits[turn] + (size_t)FG__MAX(row, 0) * bytes;
    fg_result r;
    if (!bytes || row < 0 || row >= plan->graph->max_rows || !batch->has_draws)
        return fg__fail(FG_ERROR_INVALID_ARGUMENT, "there is no row %d of logits", row);
    if (d->lost) return fg__fail(FG_ERROR_DEVICE, "%s was lost", d->name);
    if ((r = fg__gpu_enter(d)) != FG_OK) return r;
    if (!batch->want_logits) { /* else they are there already */
        r = fg__gpu_check(d, d->api.copy_to_host(host, plan->logits[turn].at + (size_t)row * bytes, bytes, d->down), "asking for logits");
        if (r == FG_OK) r = fg__gpu_check(d, d->api.stream_wait(d->down), "waiting for logits");
    }
    fg__gpu_leave(d);
    if (r == FG_OK) memcpy(logits, host, bytes);
    return r;
}

/* Begins to copy rows of a slot, behind what runs of the plan; what is computed next comes after those that go to the device. */
static fg_result fg__gpu_cross(fg__gpu_plan *plan, int slot, size_t bytes, bool out) {
    fg__gpu_device *d = plan->device;
    fg__gpu_crossing *c = &plan->crossings[slot];
    fg__gpu_pointer at = plan->memory.at + plan->slot_at[slot];
    const fg__gpu_batch *last = &plan->batches[(plan->n_submitted + FG__GPU_BLOCKS - 1) % FG__GPU_BLOCKS];
    void *stream = out ? d->down : d->up;
    fg_result r = FG_OK;
    if (plan->n_submitted != plan->n_waited) r = fg__gpu_check(d, d->api.stream_wait_event(stream, last->event, 0), "ordering a copy");
    if (r == FG_OK)
        r = fg__gpu_check(d, out ? d->api.copy_to_host(c->at, at, bytes, stream) : d->api.copy_to_device(at, c->at, bytes, stream), "copying a slot");
    if (r == FG_OK) r = fg__gpu_check(d, d->api.event_record(c->event, stream), "ordering a copy");
    if (r == FG_OK && !out) r = fg__gpu_check(d, d->api.stream_wait_event(d->compute, c->event, 0), "ordering a pass");
    c->busy = r == FG_OK;
    if (r != FG_OK) fg__gpu_settle(d); /* what was begun */
    return r;
}

static fg_result fg__gpu_stage_slot(fg_device *handle, fg_plan *plan_handle, int slot, int n_rows, fg_stage stage, float **host) {
    fg__gpu_device *d = (fg__gpu_device *)(void *)handle;
    fg__gpu_plan *plan = (fg__gpu_plan *)(void *)plan_handle;
    fg__gpu_crossing *c = &plan->crossings[slot];
    size_t bytes = (size_t)n_rows * (size_t)plan->graph->slots[slot].width * sizeof(float);
    fg_result r;
    *host = c->at;
    if (!c->at) return fg__fail(FG_ERROR_INVALID_ARGUMENT, "slot %d does not cross", slot);
    if (d->lost) return fg__fail(FG_ERROR_DEVICE, "%s was lost", d->name);
    if ((r = fg__gpu_enter(d)) != FG_OK) return r;
    if (c->busy && stage != FG_STAGE_SEND) { /* the host's memory is for one copy */
        c->busy = false;
        r = fg__gpu_check(d, d->api.event_wait(c->event), "waiting for a copy");
    }
    if (r == FG_OK && (stage == FG_STAGE_ASK || stage == FG_STAGE_SEND)) r = fg__gpu_cross(plan, slot, bytes, stage == FG_STAGE_ASK);
    fg__gpu_leave(d);
    return r;
}

static fg_result fg__gpu_copy_slot(fg_device *handle, fg_plan *plan_handle, int slot, int n_rows, float *host,
                                   bool out) {
    fg__gpu_plan *plan = (fg__gpu_plan *)(void *)plan_handle;
    size_t bytes = (size_t)n_rows * (size_t)plan->graph->slots[slot].width * sizeof(float);
    return out ? fg__gpu_read(handle, &plan->memory, plan->slot_at[slot], host, bytes)
               : fg__gpu_write(handle, &plan->memory, plan->slot_at[slot], host, bytes);
}

/* Copies of one group, no more than FG__GPU_PAIRS, in their order. */
static fg_result fg__gpu_copy_some(fg__gpu_plan *plan, int group, const fg_block_copy *copies, int n) {
    fg__gpu_device *d = plan->device;
    fg__gpu_launcher l;
    fg_gpu_copy_args args;
    fg_result r = FG_OK;
    int i;
    if (plan->pairs_busy) r = fg__gpu_check(d, d->api.event_wait(plan->paired), "waiting for copies");
    plan->pairs_busy = false;
    if (r != FG_OK) return r;
    plan->host_pairs[0] = n;
    for (i = 0; i < n; i++) {
        plan->host_pairs[4 + 2 * i] = copies[i].from;
        plan->host_pairs[5 + 2 * i] = copies[i].to;
    }
    memset(&l, 0, sizeof(l));
    l.plan = plan;
    memset(&args, 0, sizeof(args));
    args.base = plan->pools[group].at;
    args.count = plan->pairs.at;
    args.pairs = plan->pairs.at + 4 * sizeof(int32_t);
    args.block_bytes = plan->block_bytes[group];
    r = fg__gpu_check(d, d->api.copy_to_device(plan->pairs.at, plan->host_pairs, (size_t)(4 + 2 * n) * sizeof(int32_t), d->compute),
                      "sending copies");
    if (r == FG_OK) r = fg__gpu_launch(&l, FG_GPU_KERNEL_copy, &args);
    if (r == FG_OK) r = fg__gpu_check(d, d->api.event_record(plan->paired, d->compute), "ending copies");
    if (r == FG_OK) r = fg__gpu_check(d, d->api.event_record(d->passed, d->compute), "ending copies");
    plan->pairs_busy = r == FG_OK;
    if (r == FG_OK) d->has_passed = true;
    else fg__gpu_settle(d);
    return r;
}

static fg_result fg__gpu_copy_blocks(fg_device *handle, fg_plan *plan_handle, const fg_block_copy *copies, int n) {
    fg__gpu_device *d = (fg__gpu_device *)(void *)handle;
    fg__gpu_plan *plan = (fg__gpu_plan *)(void *)plan_handle;
    fg_result r;
    int i, end;
    for (i = 0; i < n; i++) {
        int n_blocks = copies[i].group >= 0 && copies[i].group < plan->graph->n_groups ? plan->graph->groups[copies[i].group].n_blocks : 0;
        if (copies[i].from < 0 || copies[i].from >= n_blocks || copies[i].to < 0 || copies[i].to >= n_blocks)
            return fg__fail(FG_ERROR_INVALID_ARGUMENT, "a copy names a KV block that does not exist");
    }
    if (n < 1) return FG_OK;
    if (d->lost) return fg__fail(FG_ERROR_DEVICE, "%s was lost", d->name);
    if ((r = fg__gpu_enter(d)) != FG_OK) return r;
    if (d->has_copied) r = fg__gpu_check(d, d->api.stream_wait_event(d->compute, d->copied, 0), "ordering copies");
    for (i = 0; i < n && r == FG_OK; i = end) {
        for (end = i + 1; end < n && end - i < FG__GPU_PAIRS && copies[end].group == copies[i].group; end++) {}
        r = fg__gpu_copy_some(plan, copies[i].group, copies + i, end - i);
    }
    fg__gpu_leave(d);
    return r;
}

/* A block in host memory is as on the device: of each layer K, then V, or its states. */
static fg_result fg__gpu_swap_blocks(fg_device *handle, fg_plan *plan_handle, int group, const int32_t *blocks, int n,
                                     void *host, bool out, size_t *block_bytes) {
    fg__gpu_device *d = (fg__gpu_device *)(void *)handle;
    fg__gpu_plan *plan = (fg__gpu_plan *)(void *)plan_handle;
    const fg_group *g = &plan->graph->groups[group];
    fg__gpu_blocks list;
    fg_result r;
    int i;
    if (block_bytes) *block_bytes = plan->block_bytes[group];
    if (!host || n < 1) return FG_OK;
    for (i = 0; i < n; i++)
        if (blocks[i] < 0 || blocks[i] >= g->n_blocks)
            return fg__fail(FG_ERROR_INVALID_ARGUMENT, "there is no KV block %d", (int)blocks[i]);
    list.base = plan->pools[group].at;
    list.stride = list.bytes = plan->block_bytes[group];
    list.numbers = blocks;
    list.n = (size_t)n;
    if ((r = fg__gpu_enter(d)) != FG_OK) return r;
    r = out ? fg__gpu_fetch(d, &list, host) : fg__gpu_send(d, &list, host);
    fg__gpu_leave(d);
    return r;
}

/* ---- Roofs. ---- */

/* The rate of reading, from copies within the device's memory. */
static fg_result fg__gpu_copy_rate(fg__gpu_device *d, double *rate) {
    size_t bytes = FG__MIN((size_t)256 << 20, d->memory / 16 / FG__GPU_ALIGN * FG__GPU_ALIGN);
    fg__gpu_range from, to;
    fg_result r;
    double start, best = 1e30;
    int i;
    to.at = 0;
    r = fg__gpu_take(d, bytes, &from);
    if (r == FG_OK) r = fg__gpu_take(d, bytes, &to);
    if (r == FG_OK) r = fg__gpu_check(d, d->api.fill(from.at, 0, bytes, d->compute), "measuring");
    for (i = 0; i < 4 && r == FG_OK; i++) {
        r = fg__gpu_check(d, d->api.stream_wait(d->compute), "measuring");
        start = fg__now();
        if (r == FG_OK) r = fg__gpu_check(d, d->api.copy_on_device(to.at, from.at, bytes, d->compute), "measuring");
        if (r == FG_OK) r = fg__gpu_check(d, d->api.stream_wait(d->compute), "measuring");
        best = FG__MIN(best, fg__now() - start);
    }
    if (r == FG_OK && best > 0) *rate = 2.0 * (double)bytes / best;
    fg__gpu_settle(d);
    fg__gpu_give(d, &to);
    fg__gpu_give(d, &from);
    return r;
}

static fg_result fg__gpu_roof_run(fg__gpu_device *d, int kernel, fg_gpu_roof_args *a, double *seconds) {
    double start = fg__now();
    fg_result r = fg__gpu_launch_now(d, kernel, a, false);
    if (r == FG_OK) r = fg__gpu_check(d, d->api.stream_wait(d->compute), "measuring products");
    *seconds = fg__now() - start;
    return r;
}

/* Whether the last workgroup did all of its products. */
static fg_result fg__gpu_roof_holds(fg__gpu_device *d, int kernel, const fg_gpu_roof_args *a, bool *holds) {
    fg_gpu_roof_work work = fg_gpu_roof_work_of(kernel, d->attributes[FG__GPU_WARP]);
    const uint32_t *sums = (const uint32_t *)(const void *)d->stages[1].at;
    size_t bytes = FG_GPU_GEMV_THREADS * sizeof(uint32_t);
    uint32_t sum = 0;
    int i;
    fg_result r = fg__gpu_copies_wait(d);
    if (r == FG_OK)
        r = fg__gpu_check(d, d->api.copy_to_host(d->stages[1].at, a->out + (size_t)(a->groups - 1) * bytes, bytes, d->compute),
                          "measuring products");
    if (r == FG_OK) r = fg__gpu_check(d, d->api.stream_wait(d->compute), "measuring products");
    for (i = 0; i < FG_GPU_GEMV_THREADS && r == FG_OK; i++) sum += sums[i];
    *holds = r == FG_OK && sum == fg_gpu_roof_sum(&work) * (uint32_t)a->rounds;
    return r;
}

/* Finds rounds that take 5 ms, twice, because once may be a matter of chance. The first of all takes longer. */
static fg_result fg__gpu_roof_grow(fg__gpu_device *d, int kernel, fg_gpu_roof_args *a) {
    double seconds = 0;
    fg_result r;
    a->rounds = 1;
    r = fg__gpu_roof_run(d, kernel, a, &seconds);
    for (seconds = 0; r == FG_OK && seconds < 5e-3 && a->rounds < FG_GPU_ROOF_ROUNDS;) {
        a->rounds *= 4;
        r = fg__gpu_roof_run(d, kernel, a, &seconds);
        if (r == FG_OK && seconds >= 5e-3) r = fg__gpu_roof_run(d, kernel, a, &seconds);
    }
    return r;
}

/* Operations a second: rounds that take 5 ms, less the fourth of them, so that launching is in neither; 0: the sums are wrong. */
static fg_result fg__gpu_roof_rate(fg__gpu_device *d, int kernel, fg_gpu_roof_args *a, double *rate) {
    fg_gpu_roof_work work = fg_gpu_roof_work_of(kernel, d->attributes[FG__GPU_WARP]);
    double seconds = 0, best[2] = {1e30, 1e30};
    int rounds, i;
    bool holds = false;
    fg_result r = fg__gpu_roof_grow(d, kernel, a);
    rounds = a->rounds;
    for (i = 0; i < 8 && r == FG_OK; i++) {
        a->rounds = i % 2 ? rounds : rounds / 4;
        r = fg__gpu_roof_run(d, kernel, a, &seconds);
        best[i % 2] = FG__MIN(best[i % 2], seconds);
    }
    if (r == FG_OK) r = fg__gpu_roof_holds(d, kernel, a, &holds);
    if (r == FG_OK && !holds) fg__log(&d->env, FG_LOG_WARNING, "%s: the kernel that measures products gives wrong sums", d->name);
    if (holds && best[1] > best[0]) *rate = (rounds - rounds / 4) * (double)a->groups * fg_gpu_roof_ops(&work) / (best[1] - best[0]);
    return r;
}

/* The larger of the rate and a kernel's, where the device has that kernel. */
static fg_result fg__gpu_roof(fg__gpu_device *d, int kernel, double *rate) {
    fg_gpu_roof_args a;
    fg__gpu_range out;
    double found = 0;
    void *function;
    fg_result r;
    memset(&a, 0, sizeof(a));
    a.groups = (kernel == FG_GPU_KERNEL_roof_wg ? 2 : 8) * FG__MAX(d->attributes[FG__GPU_PROCESSORS], 1); /* at a time one of warpgroups on each, or many */
    if (fg__gpu_function(d, kernel, &function) != FG_OK) return FG_OK;
    if ((r = fg__gpu_take(d, (size_t)a.groups * FG_GPU_GEMV_THREADS * sizeof(uint32_t), &out)) != FG_OK) return r;
    a.out = out.at;
    r = fg__gpu_roof_rate(d, kernel, &a, &found);
    if (r != FG_OK) fg__gpu_settle(d);
    fg__gpu_give(d, &out);
    *rate = FG__MAX(*rate, found);
    return r;
}

/* Products as the device's own are done: of bytes only where those of quantised weights are; by warpgroups only after the proof of one (see
   fg_gpu_special.h), because a fault of theirs would be the end of the context. */
static fg_result fg__gpu_profile(fg_device *handle, fg_roofs *roofs) {
    fg__gpu_device *d = (fg__gpu_device *)(void *)handle;
    bool is_hip = d->loader.driver->is_hip, bytes = is_hip && fg__gpu_special_kernel(d, FG_TYPE_Q8_0, 65535) >= 0;
    fg_result r;
    memset(roofs, 0, sizeof(*roofs));
    if ((r = fg__gpu_enter(d)) != FG_OK) return r;
    r = fg__gpu_copy_rate(d, &roofs->read_bytes_per_s);
    if (r == FG_OK) r = fg__gpu_roof(d, bytes ? FG_GPU_KERNEL_roof_dot2 : FG_GPU_KERNEL_roof_mma, &roofs->float_ops_per_s);
    if (r == FG_OK && bytes) r = fg__gpu_roof(d, FG_GPU_KERNEL_roof_dot4, &roofs->int8_ops_per_s);
    if (r == FG_OK && !is_hip && d->special_ready) r = fg__gpu_roof(d, FG_GPU_KERNEL_roof_wg, &roofs->float_ops_per_s);
    fg__gpu_leave(d);
    return r;
}

#endif /* FASTGEN_IMPLEMENTATION */
