/* fg_hip.h: the HIP backend of fastgen.h, for AMD's GPUs.                             Public domain or MIT, as fastgen.h.

   Include it after fastgen.h, in the file with FASTGEN_IMPLEMENTATION and wherever fg_backend_hip is named:

       #define FASTGEN_IMPLEMENTATION
       #include "fastgen.h"
       #include "backends/hip/fg_hip.h"
       ...
       desc.backends[0] = fg_backend_hip();            // falls through to the next backend where there is no driver

   The driver (libamdhip64.so of ROCm 5.3 or later, amdhip64.dll) is found at run time; no ROCm is needed to build. The code of a
   device is picked by the name of its instruction set; where none suits, HIPRTC (libhiprtc.so, if installed) compiles the kernels
   when the device is opened. fg_engine_desc.device takes a device's number or a part of its name;
   without it the first device is taken. The environment variable FASTGEN_HIP_LIBRARY names another library to take for the
   driver. On Linux before glibc 2.34 the app is also linked with -ldl.

   With ROCm 7.2, which runs graphs wrongly at times (ROCm/hip issue 3887), kernels are launched one by one, unless
   fg_gpu_options.force_graphs says otherwise.

   On gfx906 and gfx103x, which have no matrix instructions, products of quantised weights with more than 8 rows are of bytes, where
   one at start-up agrees with the CPU's: activations then have 8 bits and a scale for 32 of them.

   Products of more than 8 rows whose tiles are fewer than a large device has processors are divided along k among workgroups, and
   their sums added up by a second kernel (fg_gpu_gemm_splits); not with fg_gpu_options.invariant. Products with the experts of a mixture are as
   fg_cuda.h says, undivided, on gfx906 and gfx103x, too, of half floats.

   Where hipBLASLt is installed, products of BF16 and F16 weights with more than 64 rows are its, and of quantised weights, which
   are made halves for it, with more than 128 rows, unless fg_gpu_options says otherwise; FASTGEN_HIPBLASLT_LIBRARY names
   another library, "none" for none. FASTGEN_HIPRTC_LIBRARY does that for HIPRTC.

   The kernels are those in backends/cuda/; fg_hip_kernels.h holds them compiled (./build.sh hip writes it). Without that file
   the backend has no kernels of its own, and opens only with those of fg_gpu_options.image.

   What the host does, the same for CUDA and HIP, is in fg_gpu_host.h. */

#ifndef FG_HIP_H
#define FG_HIP_H

#include "../cuda/fg_gpu_host.h"

#ifdef __cplusplus
extern "C" {
#endif

const fg_backend *fg_backend_hip(void);

#ifdef __cplusplus
}
#endif
#endif /* FG_HIP_H */

#if defined(FASTGEN_IMPLEMENTATION) && !defined(FG__HIP_IMPLEMENTED)
#define FG__HIP_IMPLEMENTED

#if defined(__has_include)
#if __has_include("fg_hip_kernels.h")
#include "fg_hip_kernels.h"
#define FG__HIP_HAS_KERNELS
#endif
#endif
#ifndef FG__HIP_HAS_KERNELS
static const fg__gpu_image *const fg__hip_images = NULL;
enum { FG__HIP_IMAGES = 0 };
#endif

#include "fg_hip_rtc.h"

/* In the order of fg__gpu_api; NULL: HIP has none. */
static const char *const fg__hip_names[FG__GPU_FUNCTIONS] = {
    "hipInit", "hipDriverGetVersion", "hipGetDeviceCount", "hipDeviceGet", "hipDeviceGetName", "hipDeviceGetAttribute", "hipDeviceTotalMem",
    NULL, NULL, NULL, NULL, NULL, NULL, "hipGetDevice", "hipSetDevice", "hipGetDevicePropertiesR0600",
    "hipMemGetInfo", "hipMalloc", "hipFree", "hipHostMalloc", "hipHostFree", "hipMemcpyHtoDAsync", "hipMemcpyDtoHAsync",
    "hipMemcpyDtoDAsync", "hipMemsetD8Async", "hipStreamCreateWithFlags", "hipStreamDestroy", "hipStreamSynchronize", "hipStreamWaitEvent",
    "hipEventCreateWithFlags", "hipEventDestroy", "hipEventRecord", "hipEventSynchronize", "hipModuleLoadData", "hipModuleUnload",
    "hipModuleGetFunction", NULL, "hipModuleLaunchKernel", "hipStreamBeginCapture", "hipStreamEndCapture",
    "hipGraphInstantiateWithFlags", "hipGraphLaunch", "hipGraphExecDestroy", "hipGraphDestroy",
};

/* Of hipDeviceAttribute_t: shared memory of a block, warp size, multiprocessors, integrated; the rest HIP tells by the name of the ISA. */
static const int fg__hip_attributes[FG__GPU_ATTRIBUTES] = {74, 87, 63, -1, -1, -1, 16};

static const fg__gpu_driver fg__hip_driver = {
    "hip", "HIP", "FASTGEN_HIP_LIBRARY",
#if FG__WINDOWS
    {"amdhip64_7.dll", "amdhip64_6.dll", "amdhip64.dll"},
#else
    {"libamdhip64.so", "libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so.5"},
#endif
    fg__hip_names, fg__hip_attributes, 50300000, true, fg__hip_compile,
};

static int fg__hip_probe(void) { return fg__gpu_probe(&fg__hip_driver); }

static fg_result fg__hip_open(const fg_device_desc *desc, fg_device **device) {
    return fg__gpu_open(&fg__hip_driver, fg__hip_images, FG__HIP_IMAGES, desc, device);
}

const fg_backend *fg_backend_hip(void) {
    static const fg_backend backend = {
        FG_BACKEND_ABI, sizeof(fg_backend), "hip",
        fg__hip_probe, fg__hip_open, fg__gpu_close, fg__gpu_caps,
        fg__gpu_alloc, fg__gpu_free, fg__gpu_write, fg__gpu_read,
        fg__gpu_pack, fg__gpu_unpack, fg__gpu_prepare, fg__gpu_release,
        fg__gpu_submit, fg__gpu_wait, fg__gpu_copy_blocks, fg__gpu_profile,
        fg__gpu_swap_blocks, fg__gpu_read_logits, fg__gpu_copy_slot, NULL, fg__gpu_stage_slot,
    };
    return &backend;
}

#endif /* FASTGEN_IMPLEMENTATION */
