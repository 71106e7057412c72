/* fg_cuda.h: the CUDA backend of fastgen.h, for NVIDIA's GPUs.                       Public domain or MIT, as fastgen.h.

   Include it after fastgen.h, in the file with FASTGEN_IMPLEMENTATION and wherever fg_backend_cuda is named:

       #define FASTGEN_IMPLEMENTATION
       #include "fastgen.h"
       #include "backends/cuda/fg_cuda.h"
       ...
       desc.backends[0] = fg_backend_cuda();            // falls through to the next backend where there is no driver

   The driver (libcuda.so.1, nvcuda.dll; 11.4 or later) is found at run time; no CUDA toolkit is needed to build. A device
   must have compute capability 7.5 or later; for 7.5 there is code but no PTX, and the driver must be 12.0 or later, or 13.0 where nvcc 13
   compiled the kernels. fg_engine_desc.device takes a device's number or a part of its name; without it the first device is taken. The
   environment variable FASTGEN_CUDA_LIBRARY names another library to take for the driver. On Linux before glibc 2.34 the app is also linked
   with -ldl.

   Where cuBLASLt (libcublasLt.so.11 to .13) is installed, products of BF16 and F16 weights with more than 64 rows are its, and of
   quantised weights, which are made halves for it, with more than 128 rows, unless fg_gpu_options says otherwise; FASTGEN_CUBLASLT_LIBRARY names
   another library, "none" for none. On Hopper the others are done by its own instruction (wgmma), and so is attention of 16 tokens of a
   sequence and more over F16, BF16 and Q8_0 caches with heads of up to 256; each where a try at start-up agrees with the
   CPU's results; else as on other devices, and the log says so. What is tried, the library too, runs in a context of its own, so that a
   fault there costs nothing but this way of computing. A BF16 cache then has queries and weights of positions rounded to BF16, too.

   From Hopper on, with a driver of 12.3 or later, a kernel begins while the one before still runs, and waits for what that one writes
   (fg_gpu_options.no_early: it does not). Products of up to 128 rows, and attention of few queries over F16, BF16 and Q8_0 caches, multiply
   half floats with float sums; a pass of one row with a float weight, and F32 caches, have floats alone.

   Of mixtures of experts, pairs of a token and an expert that it takes are multiplied one by one, in floats, while they are no more than
   there are experts, and tokens no more than 8; else sorted by expert into tiles of 16 or 64, which are products of half floats (not by
   cuBLASLt, nor wgmma). A layer may have 1024 experts.

   Recurrent layers are done token by token, in floats, 32 columns of a head's state in the registers of each workgroup; heads of up to 256.

   The kernels are in backends/cuda/; fg_cuda_kernels.h holds them compiled (./build.sh cuda writes it). Without that file
   the backend has no kernels of its own, and opens only with those of fg_gpu_options.image.

   What the host does, the same for CUDA and HIP, is in fg_gpu_host.h. */

#ifndef FG_CUDA_H
#define FG_CUDA_H

#include "fg_gpu_host.h"

#ifdef __cplusplus
extern "C" {
#endif

const fg_backend *fg_backend_cuda(void);

#ifdef __cplusplus
}
#endif
#endif /* FG_CUDA_H */

#if defined(FASTGEN_IMPLEMENTATION) && !defined(FG__CUDA_IMPLEMENTED)
#define FG__CUDA_IMPLEMENTED

#if defined(__has_include)
#if __has_include("fg_cuda_kernels.h")
#include "fg_cuda_kernels.h"
#define FG__CUDA_HAS_KERNELS
#endif
#endif
#ifndef FG__CUDA_HAS_KERNELS
static const fg__gpu_image *const fg__cuda_images = NULL;
enum { FG__CUDA_IMAGES = 0 };
#endif

/* In the order of fg__gpu_api; NULL: CUDA has none. */
static const char *const fg__cuda_names[FG__GPU_FUNCTIONS] = {
    "cuInit", "cuDriverGetVersion", "cuDeviceGetCount", "cuDeviceGet", "cuDeviceGetName", "cuDeviceGetAttribute", "cuDeviceTotalMem_v2",
    "cuDevicePrimaryCtxRetain", "cuDevicePrimaryCtxRelease_v2", "cuCtxPushCurrent_v2", "cuCtxPopCurrent_v2", "cuCtxCreate_v2",
    "cuCtxDestroy_v2", NULL, NULL, NULL,
    "cuMemGetInfo_v2", "cuMemAlloc_v2", "cuMemFree_v2", "cuMemHostAlloc", "cuMemFreeHost", "cuMemcpyHtoDAsync_v2", "cuMemcpyDtoHAsync_v2",
    "cuMemcpyDtoDAsync_v2", "cuMemsetD8Async", "cuStreamCreate", "cuStreamDestroy_v2", "cuStreamSynchronize", "cuStreamWaitEvent",
    "cuEventCreate", "cuEventDestroy_v2", "cuEventRecord", "cuEventSynchronize", "cuModuleLoadData", "cuModuleUnload",
    "cuModuleGetFunction", "cuFuncSetAttribute", "cuLaunchKernel", "cuStreamBeginCapture_v2", "cuStreamEndCapture",
    "cuGraphInstantiateWithFlags", "cuGraphLaunch", "cuGraphExecDestroy", "cuGraphDestroy",
};

/* Of CUdevice_attribute: shared memory of a block, warp size, multiprocessors, compute capability, shared memory of a block that
   asks for it, integrated. */
static const int fg__cuda_attributes[FG__GPU_ATTRIBUTES] = {8, 10, 16, 75, 76, 97, 18};

static const fg__gpu_driver fg__cuda_driver = {
    "cuda", "CUDA", "FASTGEN_CUDA_LIBRARY",
#if FG__WINDOWS
    {"nvcuda.dll", NULL},
#else
    {"libcuda.so.1", "libcuda.so"},
#endif
    fg__cuda_names, fg__cuda_attributes, 11040, false, NULL,
};

static int fg__cuda_probe(void) { return fg__gpu_probe(&fg__cuda_driver); }

static fg_result fg__cuda_open(const fg_device_desc *desc, fg_device **device) {
    return fg__gpu_open(&fg__cuda_driver, fg__cuda_images, FG__CUDA_IMAGES, desc, device);
}

const fg_backend *fg_backend_cuda(void) {
    static const fg_backend backend = {
        FG_BACKEND_ABI, sizeof(fg_backend), "cuda",
        fg__cuda_probe, fg__cuda_open, fg__gpu_close, fg__gpu_caps,
        fg__gpu_alloc, fg__gpu_free, fg__gpu_write, fg__gpu_read,
        fg__gpu_pack, fg__gpu_unpack, fg__gpu_prepare, fg__gpu_release,
        fg__gpu_submit, fg__gpu_wait, fg__gpu_copy_blocks, fg__gpu_profile,
        fg__gpu_swap_blocks, fg__gpu_read_logits, fg__gpu_copy_slot, NULL, fg__gpu_stage_slot,
    };
    return &backend;
}

#endif /* FASTGEN_IMPLEMENTATION */
