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
    bool no_graphs;       /* kernels are launched one by one, not as graphs */
    size_t spare_bytes;   /* device memory to leave to others; 0: 64 MiB */
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
   The driver: its functions, found at run time. tests/test_gpu_abi.c compares them with the official headers.
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

#define FG__GPU_FUNCTIONS ((int)(sizeof(fg__gpu_api) / sizeof(fg__gpu_fn)))

/* One of the two drivers. */
typedef struct fg__gpu_driver {
    const char *name, *label, *variable; /* the variable of the environment with the library's name */
    const char *libraries[2];
    const char *const *names;            /* of the functions; NULL: has none */
    const int *attributes;               /* numbers of FG__GPU_ATTRIBUTES; -1: has none */
    int least_version;                   /* of driver_version */
    bool is_hip;
} fg__gpu_driver;

/* Compiled kernels, packed (see fg__gpu_unpack_image) and cut into strings of a length that every compiler takes. */
typedef struct fg__gpu_image {
    const char *target;        /* "sm_80", "compute_75" (PTX), "gfx1100", "gfx11-generic" */
    const char *const *pieces; /* FG__GPU_PIECE bytes each, but for the last */
    size_t packed_bytes, bytes;
} fg__gpu_image;

enum { FG__GPU_PIECE = 4000 };

typedef struct fg__gpu_loader {
    const fg__gpu_driver *driver;
    void *library;
    fg__gpu_api api;
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
    return dlopen(name, RTLD_NOW | RTLD_LOCAL);
#endif
}

static void fg__gpu_loader_close(fg__gpu_loader *loader) {
#if FG__WINDOWS
    if (loader->library) FreeLibrary((HMODULE)loader->library);
#else
    if (loader->library) dlclose(loader->library);
#endif
    memset(loader, 0, sizeof(*loader));
}

static fg_result fg__gpu_loader_fill(fg__gpu_loader *loader) {
    const fg__gpu_driver *driver = loader->driver;
    const char *own = getenv(driver->variable);
    int i;
    if (own && *own) loader->library = fg__gpu_library(own);
    for (i = 0; i < 2 && !(own && *own) && !loader->library; i++)
        if (driver->libraries[i]) loader->library = fg__gpu_library(driver->libraries[i]);
    if (!loader->library)
        return fg__fail(FG_ERROR_NOT_FOUND, "there is no %s driver (%s)", driver->label, own && *own ? own : driver->libraries[0]);
    for (i = 0; i < FG__GPU_FUNCTIONS; i++) {
        fg__gpu_fn function = driver->names[i] ? fg__gpu_symbol(loader->library, driver->names[i]) : NULL;
        if (!function && driver->names[i] && strcmp(driver->names[i], "hipGetDevicePropertiesR0600") == 0)
            function = fg__gpu_symbol(loader->library, "hipGetDeviceProperties"); /* before ROCm 6 */
        if (!function && driver->names[i])
            return fg__fail(FG_ERROR_NOT_FOUND, "the %s driver has no %s: it is too old", driver->label, driver->names[i]);
        memcpy((char *)&loader->api + (size_t)i * sizeof(function), &function, sizeof(function));
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

enum { FG__GPU_STAGING = 4 << 20, FG__GPU_STAGES = 2, FG__GPU_ALIGN = 256 };

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

typedef struct fg__gpu_device {
    fg__env env;
    fg__gpu_loader loader;
    fg__gpu_api api;
    fg_gpu_options options;
    fg_progress_fn progress;
    void *progress_user;
    char name[128], isa[64];
    int index, handle, attributes[FG__GPU_ATTRIBUTES], before; /* before: HIP's device of the calling thread */
    size_t memory;
    void *context;
    bool lost;
    void *compute, *copies;   /* streams */
    void *passed, *copied;    /* events: the last pass is done; the last copy is */
    bool has_passed, has_copied;
    fg__gpu_stage stages[FG__GPU_STAGES];
    void *module;
    void *functions[FG_GPU_KERNELS];
    struct fg__gpu_weight *weights;
} fg__gpu_device;

/* Errors after which a context is of no more use: of hardware, of kernels, and a context that is gone. */
static bool fg__gpu_is_fatal(int code) { return code == 46 || code == 214 || (code >= 700 && code < 800 && code != 720 && code != 721); }

static fg_result fg__gpu_check(fg__gpu_device *d, int code, const char *what) {
    const char *label = d->loader.driver->label;
    if (!code) return FG_OK;
    if (code == FG__GPU_OUT_OF_MEMORY) return fg__fail(FG_ERROR_OUT_OF_MEMORY, "%s: %s is out of memory", what, d->name);
    if (!fg__gpu_is_fatal(code)) return fg__fail(FG_ERROR_DEVICE, "%s: %s error %d", what, label, code);
    d->lost = true;
    return fg__fail(FG_ERROR_DEVICE, "%s: the device was lost (%s error %d)", what, label, code);
}

/* Every function of the table begins with this and ends with fg__gpu_leave, also where it fails: the thread's own context
   is as before when they return. */
static fg_result fg__gpu_enter(fg__gpu_device *d) {
    if (!d->loader.driver->is_hip) return fg__gpu_check(d, d->api.context_push(d->context), "entering the device's context");
    if (d->api.get_device(&d->before)) d->before = 0;
    return fg__gpu_check(d, d->api.set_device(d->handle), "choosing the device");
}

static void fg__gpu_leave(fg__gpu_device *d) {
    void *context;
    if (d->loader.driver->is_hip) (void)d->api.set_device(d->before);
    else (void)d->api.context_pop(&context);
}

/* ---- Memory. ---- */

static fg_result fg__gpu_take(fg__gpu_device *d, size_t bytes, fg__gpu_range *range) {
    size_t room = 0, total = 0, spare = d->options.spare_bytes ? d->options.spare_bytes : (size_t)64 << 20;
    fg_result r;
    range->at = 0;
    range->bytes = fg__round_up(FG__MAX(bytes, 4), FG__GPU_ALIGN);
    if ((r = fg__gpu_check(d, d->api.memory_info(&room, &total), "asking for free memory")) != FG_OK) return r;
    spare = FG__MIN(spare, total / 64);
    if (range->bytes > room || room - range->bytes < spare)
        return fg__fail(FG_ERROR_OUT_OF_MEMORY, "%s has no room for another %.1f MiB", d->name, (double)range->bytes / 1048576.0);
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

/* What lies in a stage to the device; the stage is busy until then. */
static fg_result fg__gpu_stage_send(fg__gpu_device *d, fg__gpu_stage *stage, fg__gpu_pointer to, size_t bytes) {
    fg_result r = fg__gpu_check(d, d->api.copy_to_device(to, stage->at, bytes, d->copies), "copying to the device");
    return r == FG_OK ? fg__gpu_stage_mark(d, stage) : r;
}

static fg_result fg__gpu_copies_wait(fg__gpu_device *d) {
    int i;
    for (i = 0; i < FG__GPU_STAGES; i++) d->stages[i].busy = false;
    return fg__gpu_check(d, d->api.stream_wait(d->copies), "waiting for copies");
}

static fg_result fg__gpu_send(fg__gpu_device *d, fg__gpu_pointer to, const void *data, size_t bytes) {
    const char *from = (const char *)data;
    fg_result r = fg__gpu_copies_begin(d);
    int turn = 0;
    for (; bytes > 0 && r == FG_OK; turn++) {
        fg__gpu_stage *stage = &d->stages[turn % FG__GPU_STAGES];
        size_t n = FG__MIN(bytes, (size_t)FG__GPU_STAGING);
        if ((r = fg__gpu_stage_wait(d, stage)) != FG_OK) break;
        memcpy(stage->at, from, n);
        r = fg__gpu_stage_send(d, stage, to, n);
        from += n;
        to += n;
        bytes -= n;
    }
    return r == FG_OK ? fg__gpu_copies_wait(d) : r;
}

static fg_result fg__gpu_fetch(fg__gpu_device *d, fg__gpu_pointer from, void *data, size_t bytes) {
    char *to = (char *)data;
    size_t pending[FG__GPU_STAGES] = {0};
    fg_result r = fg__gpu_copies_begin(d);
    int turn, left = 0;
    for (turn = 0; r == FG_OK && (bytes > 0 || left > 0); turn++) {
        fg__gpu_stage *stage = &d->stages[turn % FG__GPU_STAGES];
        size_t *n = &pending[turn % FG__GPU_STAGES];
        if ((r = fg__gpu_stage_wait(d, stage)) != FG_OK) break;
        if (*n) { /* what came while the other stage was asked for */
            memcpy(to, stage->at, *n);
            to += *n;
            left--;
        }
        *n = FG__MIN(bytes, (size_t)FG__GPU_STAGING);
        if (!*n) continue;
        r = fg__gpu_check(d, d->api.copy_to_host(stage->at, from, *n, d->copies), "copying from the device");
        if (r == FG_OK) r = fg__gpu_stage_mark(d, stage);
        from += *n;
        bytes -= *n;
        left++;
    }
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
    (void)fg__gpu_copies_wait(d);
    (void)fg__gpu_check(d, d->api.stream_wait(d->compute), "waiting for the device");
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
    fg_result r;
    if (offset > range->bytes || bytes > range->bytes - offset)
        return fg__fail(FG_ERROR_INVALID_ARGUMENT, "a write past the end of device memory");
    if ((r = fg__gpu_enter(d)) != FG_OK) return r;
    r = fg__gpu_send(d, range->at + offset, data, bytes);
    if (r == FG_OK) r = fg__gpu_copies_end(d);
    fg__gpu_leave(d);
    return r;
}

static fg_result fg__gpu_read(fg_device *handle, const void *memory, size_t offset, void *data, size_t bytes) {
    fg__gpu_device *d = (fg__gpu_device *)(void *)handle;
    const fg__gpu_range *range = (const fg__gpu_range *)memory;
    fg_result r;
    if (offset > range->bytes || bytes > range->bytes - offset)
        return fg__fail(FG_ERROR_INVALID_ARGUMENT, "a read past the end of device memory");
    if ((r = fg__gpu_enter(d)) != FG_OK) return r;
    r = fg__gpu_fetch(d, range->at + offset, data, bytes);
    fg__gpu_leave(d);
    return r;
}

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
    for (n = 0; n + 1 < size && n < 32 && properties.bytes[i + n] && properties.bytes[i + n] != ':'; n++) isa[n] = properties.bytes[i + n];
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
    if (!driver->is_hip) snprintf(d->isa, sizeof(d->isa), "sm_%d%d", d->attributes[FG__GPU_MAJOR], d->attributes[FG__GPU_MINOR]);
    else if (!fg__gpu_find_isa(&d->api, d->handle, d->isa, sizeof(d->isa)))
        return fg__fail(FG_ERROR_UNSUPPORTED, "%s does not tell its instruction set", d->name);
    return FG_OK;
}

/* The device of a number or a part of a name. */
static fg_result fg__gpu_choose(fg__gpu_device *d, const char *wanted) {
    const char *label = d->loader.driver->label;
    char *end = NULL;
    long number = wanted && *wanted ? strtol(wanted, &end, 10) : 0;
    bool by_number = wanted && *wanted && !*end;
    int n = 0, i;
    fg_result r;
    snprintf(d->name, sizeof(d->name), "%s", label);
    if ((r = fg__gpu_check(d, d->api.device_count(&n), "counting devices")) != FG_OK) return r;
    if (n < 1) return fg__fail(FG_ERROR_NOT_FOUND, "there is no %s device", label);
    if (by_number && (number < 0 || number >= n)) return fg__fail(FG_ERROR_NOT_FOUND, "there is no %s device %ld, only %d", label, number, n);
    for (i = by_number ? (int)number : 0; i < n; i++) {
        if ((r = fg__gpu_describe(d, i)) != FG_OK) return r;
        if (by_number || !wanted || !*wanted || strstr(d->name, wanted) || strstr(wanted, d->name) == wanted) return FG_OK;
    }
    return fg__fail(FG_ERROR_NOT_FOUND, "no %s device has '%s' in its name", label, wanted);
}

/* Unpacks an image into `to`, `bytes` long. Packed: tokens of a byte with the number of literals (high four bits; 15: further
   bytes follow and add, until one is below 255) and of bytes to repeat minus 4 (low four bits, likewise); the literals; two
   bytes with how far back to repeat from, low byte first. The last token has literals only. */
static bool fg__gpu_unpack_image(const fg__gpu_image *image, uint8_t *to) {
    size_t from = 0, at = 0, n, back;
    int part;
#define FG__GPU_NEXT ((uint8_t)image->pieces[from / FG__GPU_PIECE][from % FG__GPU_PIECE])
    while (from < image->packed_bytes) {
        uint8_t token = FG__GPU_NEXT, more;
        back = 0;
        from++;
        for (part = 0; part < 2; part++) {
            n = part ? token & 15 : token >> 4;
            if (part) {
                if (from >= image->packed_bytes) return at == image->bytes;
                if (from + 2 > image->packed_bytes) return false;
                back = FG__GPU_NEXT;
                from++;
                back |= (size_t)FG__GPU_NEXT << 8;
                from++;
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
        static const char *const generic[][2] = {{"gfx94", "gfx9-4-generic"}, {"gfx950", "gfx9-4-generic"}, {"gfx10 1", "gfx10-1-generic"},
                                                 {"gfx103", "gfx10-3-generic"}, {"gfx11", "gfx11-generic"}, {"gfx12", "gfx12-generic"},
                                                 {"gfx900", "gfx9-generic"}, {"gfx902", "gfx9-generic"}, {"gfx904", "gfx9-generic"},
                                                 {"gfx906", "gfx9-generic"}, {"gfx909", "gfx9-generic"}, {"gfx90c", "gfx9-generic"}};
        size_t i;
        for (i = 0; i < FG__COUNT(generic); i++)
            if (strncmp(d->isa, generic[i][0], strlen(generic[i][0])) == 0 && strcmp(target, generic[i][1]) == 0) return 500;
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
    if (!fg__gpu_unpack_image(image, bytes)) r = fg__fail(FG_ERROR_DEVICE, "the kernels for %s are damaged", image->target);
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
        return fg__fail(FG_ERROR_UNSUPPORTED, "no %s kernels were built in: ./build.sh %s makes them", d->loader.driver->label,
                        d->loader.driver->name);
    for (;;) {
        for (best = -1, score = 0, i = 0; i < n; i++) {
            int suits = fg__gpu_suits(d, images[i].target);
            if (suits <= score || suits >= limit) continue;
            score = suits;
            best = i;
        }
        if (best < 0)
            return r != FG_OK ? r : fg__fail(FG_ERROR_UNSUPPORTED, "%s (%s) has no kernels among those built in", d->name, d->isa);
        r = fg__gpu_try_image(d, &images[best]);
        if (r == FG_OK || d->lost || r == FG_ERROR_OUT_OF_MEMORY) return r;
        fg__log(&d->env, FG_LOG_WARNING, "%s does not take the kernels for %s", d->name, images[best].target);
        limit = score;
    }
}
