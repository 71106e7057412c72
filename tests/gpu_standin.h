/* The stand-in driver of standin_gpu.c, where build.sh has built it: FASTGEN_CUDA_LIBRARY and FASTGEN_HIP_LIBRARY name it. With
   another library there (a real driver's) the tests run on that, but for those of errors and of the driver's own strictness. */
#ifndef GPU_STANDIN_H
#define GPU_STANDIN_H

#include "standin_gpu.h"

static struct {
    void *library;
    bool tried;
    int (*violations)(const char **text);
    void (*get_stats)(standin_stats *stats);
    void (*fail)(long call, long launch, int code);
    void (*set_blas)(const standin_blas *blas);
    void (*fail_rtc)(long call);
    void (*set_device)(const standin_device *device);
    void (*get_device)(standin_device *device);
    void (*set_order)(const standin_order *order);
    void (*set_clock)(const standin_clock *clock);
    void (*host_works)(double seconds);
    size_t (*get_spans)(const standin_span **spans, standin_clock *clock);
    standin_device device; /* as it is at first */
} gpu_standin;

static const char *gpu_standin_image; /* what it takes for kernels; NULL with a real driver */

#if FG__WINDOWS
static bool gpu_standin_open(void) { return false; }
#else
static bool gpu_standin_symbol(const char *name, void *to) {
    fg__gpu_fn function = fg__gpu_symbol(gpu_standin.library, name);
    memcpy(to, &function, sizeof(function));
    return function != NULL;
}

/* Whether there is a driver to test with: false where build.sh did not set one, as under the thread sanitizer. A card's driver is that
   of one vendor, and the other library "none". */
static bool gpu_standin_open(void) {
    const char *path = getenv("FASTGEN_CUDA_LIBRARY");
    if (path && strcmp(path, "none") == 0) path = getenv("FASTGEN_HIP_LIBRARY");
    if (gpu_standin.tried || !path || strcmp(path, "none") == 0) return gpu_standin.library != NULL;
    gpu_standin.tried = true;
    gpu_standin.library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    CHECKF(gpu_standin.library != NULL, "%s does not open", path);
    if (!gpu_standin.library || !gpu_standin_symbol("standin_violations", &gpu_standin.violations)) return gpu_standin.library != NULL;
    gpu_standin_image = "stand-in";
    CHECK(gpu_standin_symbol("standin_get_stats", &gpu_standin.get_stats) && gpu_standin_symbol("standin_fail", &gpu_standin.fail) &&
          gpu_standin_symbol("standin_set_blas", &gpu_standin.set_blas) && gpu_standin_symbol("standin_fail_rtc", &gpu_standin.fail_rtc) &&
          gpu_standin_symbol("standin_set_device", &gpu_standin.set_device) && gpu_standin_symbol("standin_get_device", &gpu_standin.get_device));
    CHECK(gpu_standin_symbol("standin_set_order", &gpu_standin.set_order) && gpu_standin_symbol("standin_set_clock", &gpu_standin.set_clock) &&
          gpu_standin_symbol("standin_host_works", &gpu_standin.host_works) && gpu_standin_symbol("standin_get_spans", &gpu_standin.get_spans));
    gpu_standin.get_device(&gpu_standin.device);
    return true;
}
#endif

/* Makes the device one of warps of so many lanes. */
static void gpu_standin_width(int width) {
    standin_device device;
    if (!gpu_standin_image) return;
    gpu_standin.get_device(&device);
    device.warp = width;
    snprintf(device.isa, sizeof(device.isa), "%s", width == 64 ? "gfx90a" : "gfx1100");
    gpu_standin.set_device(&device);
}

/* After each test: nothing was done that a driver must not be told to do, and nothing is left. */
static void gpu_standin_check(void) {
    static int known;
    const char *text;
    standin_stats stats;
    int n;
    if (!gpu_standin_image) return;
    n = gpu_standin.violations(&text);
    CHECKF(n == known, "%s", text);
    known = n;
    gpu_standin.get_stats(&stats);
    CHECKF(stats.live == 0 && stats.depth == 0, "%d objects and %d contexts are left", stats.live, stats.depth);
    gpu_standin.fail(-1, -1, 0);
    gpu_standin.set_device(&gpu_standin.device);
}

#endif
