/* The functions of drivers and libraries as backends/cuda/fg_gpu_host.h declares them against the official headers: as many parameters, each of the
   same size and kind, under the name that is looked up. It compiles or it does not; names are compared when it runs.

       c++ -std=c++17 -DWITH_CUDA -I /usr/local/cuda/include tests/test_gpu_abi.cpp && ./a.out
       c++ -std=c++17 -DWITH_HIP tests/test_gpu_abi.cpp && ./a.out        (Debian: libamdhip64-dev)
       c++ -std=c++17 -DWITH_CUBLASLT -I /usr/local/cuda/include tests/test_gpu_abi.cpp && ./a.out     (PyPI: nvidia-cublas)
       c++ -std=c++17 -DWITH_HIPBLASLT -I /opt/rocm/include tests/test_gpu_abi.cpp && ./a.out

   tests/check_gpu_targets.sh runs it where the headers are. With the one-file source of the kernels as an argument it also compiles that
   by HIPRTC, where FASTGEN_HIPRTC_LIBRARY or libhiprtc.so is one. */
#define FASTGEN_IMPLEMENTATION
#include "../fastgen.h"
#include "../backends/cuda/fg_cuda.h"
#include "../backends/hip/fg_hip.h"

#include <stddef.h>
#include <type_traits>

static int failed;

/* Handles and device memory are pointers to one driver and integers to the other; both are passed alike on 64 bits. */
template <class A, class B> constexpr bool same_parameter = sizeof(A) == sizeof(B) && !std::is_floating_point_v<B> && !std::is_class_v<B>;

template <class F, class G> struct same_function : std::false_type {};
template <class R, class... A, class S, class... B> struct same_function<R (*)(A...), S (*)(B...)> {
    template <class... P> struct list {};
    static constexpr bool fits(list<>, list<>) { return true; }
    template <class X, class... Xs, class Y, class... Ys> static constexpr bool fits(list<X, Xs...>, list<Y, Ys...>) {
        if constexpr (sizeof...(Xs) != sizeof...(Ys)) return false;
        else return same_parameter<X, Y> && fits(list<Xs...>(), list<Ys...>());
    }
    static constexpr bool value = sizeof(R) == sizeof(S) && sizeof...(A) == sizeof...(B) && fits(list<A...>(), list<B...>());
};

template <class Ours, class Theirs> static void check(size_t offset, const char *const *names, const char *name) {
    static_assert(same_function<Ours, Theirs>::value, "a function of the driver is declared otherwise");
    const char *found = names[offset / sizeof(fg__gpu_fn)];
    if (found && strcmp(found, name) == 0) return;
    printf("%s is looked up as %s\n", name, found ? found : "nothing");
    failed++;
}

#if defined(WITH_CUDA)
#include <cuda.h>
static_assert(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK == 8 && CU_DEVICE_ATTRIBUTE_WARP_SIZE == 10 &&
                  CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT == 16 && CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR == 75 &&
                  CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR == 76 && CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN == 97 &&
                  CU_DEVICE_ATTRIBUTE_INTEGRATED == 18,
              "attributes");
static_assert((int)CUDA_ERROR_OUT_OF_MEMORY == FG__GPU_OUT_OF_MEMORY && (int)CUDA_ERROR_NO_BINARY_FOR_GPU == FG__GPU_NO_BINARY, "errors");
static_assert(sizeof(fg__gpu_launch_config) == sizeof(CUlaunchConfig) && sizeof(fg__gpu_launch_attribute) == sizeof(CUlaunchAttribute) &&
                  offsetof(fg__gpu_launch_config, stream) == offsetof(CUlaunchConfig, hStream) &&
                  offsetof(fg__gpu_launch_config, attributes) == offsetof(CUlaunchConfig, attrs) &&
                  offsetof(fg__gpu_launch_attribute, value) == offsetof(CUlaunchAttribute, value) &&
                  CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION == 6,
              "launches");
static_assert(same_function<fg__gpu_launch_ex, decltype(&cuLaunchKernelEx)>::value, "cuLaunchKernelEx");
static void check_all() {
    const char *const *NAMES = fg__cuda_names;
    check<decltype(fg__gpu_api::init), decltype(&cuInit)>(offsetof(fg__gpu_api, init), NAMES, "cuInit");
    check<decltype(fg__gpu_api::driver_version), decltype(&cuDriverGetVersion)>(offsetof(fg__gpu_api, driver_version), NAMES, "cuDriverGetVersion");
    check<decltype(fg__gpu_api::device_count), decltype(&cuDeviceGetCount)>(offsetof(fg__gpu_api, device_count), NAMES, "cuDeviceGetCount");
    check<decltype(fg__gpu_api::device_get), decltype(&cuDeviceGet)>(offsetof(fg__gpu_api, device_get), NAMES, "cuDeviceGet");
    check<decltype(fg__gpu_api::device_name), decltype(&cuDeviceGetName)>(offsetof(fg__gpu_api, device_name), NAMES, "cuDeviceGetName");
    check<decltype(fg__gpu_api::device_attribute), decltype(&cuDeviceGetAttribute)>(offsetof(fg__gpu_api, device_attribute), NAMES, "cuDeviceGetAttribute");
    check<decltype(fg__gpu_api::device_memory), decltype(&cuDeviceTotalMem_v2)>(offsetof(fg__gpu_api, device_memory), NAMES, "cuDeviceTotalMem_v2");
    check<decltype(fg__gpu_api::context_retain), decltype(&cuDevicePrimaryCtxRetain)>(offsetof(fg__gpu_api, context_retain), NAMES, "cuDevicePrimaryCtxRetain");
    check<decltype(fg__gpu_api::context_release), decltype(&cuDevicePrimaryCtxRelease_v2)>(offsetof(fg__gpu_api, context_release), NAMES, "cuDevicePrimaryCtxRelease_v2");
    check<decltype(fg__gpu_api::context_push), decltype(&cuCtxPushCurrent_v2)>(offsetof(fg__gpu_api, context_push), NAMES, "cuCtxPushCurrent_v2");
    check<decltype(fg__gpu_api::context_pop), decltype(&cuCtxPopCurrent_v2)>(offsetof(fg__gpu_api, context_pop), NAMES, "cuCtxPopCurrent_v2");
    /* headers of CUDA 13 declare only a later cuCtxCreate; drivers have this one still */
    check<decltype(fg__gpu_api::context_create), CUresult (*)(CUcontext *, unsigned, CUdevice)>(offsetof(fg__gpu_api, context_create), NAMES, "cuCtxCreate_v2");
    check<decltype(fg__gpu_api::context_destroy), decltype(&cuCtxDestroy)>(offsetof(fg__gpu_api, context_destroy), NAMES, "cuCtxDestroy_v2");
    check<decltype(fg__gpu_api::memory_info), decltype(&cuMemGetInfo_v2)>(offsetof(fg__gpu_api, memory_info), NAMES, "cuMemGetInfo_v2");
    check<decltype(fg__gpu_api::memory_alloc), decltype(&cuMemAlloc_v2)>(offsetof(fg__gpu_api, memory_alloc), NAMES, "cuMemAlloc_v2");
    check<decltype(fg__gpu_api::memory_free), decltype(&cuMemFree_v2)>(offsetof(fg__gpu_api, memory_free), NAMES, "cuMemFree_v2");
    check<decltype(fg__gpu_api::host_alloc), decltype(&cuMemHostAlloc)>(offsetof(fg__gpu_api, host_alloc), NAMES, "cuMemHostAlloc");
    check<decltype(fg__gpu_api::host_free), decltype(&cuMemFreeHost)>(offsetof(fg__gpu_api, host_free), NAMES, "cuMemFreeHost");
    check<decltype(fg__gpu_api::copy_to_device), decltype(&cuMemcpyHtoDAsync_v2)>(offsetof(fg__gpu_api, copy_to_device), NAMES, "cuMemcpyHtoDAsync_v2");
    check<decltype(fg__gpu_api::copy_to_host), decltype(&cuMemcpyDtoHAsync_v2)>(offsetof(fg__gpu_api, copy_to_host), NAMES, "cuMemcpyDtoHAsync_v2");
    check<decltype(fg__gpu_api::copy_on_device), decltype(&cuMemcpyDtoDAsync_v2)>(offsetof(fg__gpu_api, copy_on_device), NAMES, "cuMemcpyDtoDAsync_v2");
    check<decltype(fg__gpu_api::fill), decltype(&cuMemsetD8Async)>(offsetof(fg__gpu_api, fill), NAMES, "cuMemsetD8Async");
    check<decltype(fg__gpu_api::stream_create), decltype(&cuStreamCreate)>(offsetof(fg__gpu_api, stream_create), NAMES, "cuStreamCreate");
    check<decltype(fg__gpu_api::stream_destroy), decltype(&cuStreamDestroy_v2)>(offsetof(fg__gpu_api, stream_destroy), NAMES, "cuStreamDestroy_v2");
    check<decltype(fg__gpu_api::stream_wait), decltype(&cuStreamSynchronize)>(offsetof(fg__gpu_api, stream_wait), NAMES, "cuStreamSynchronize");
    check<decltype(fg__gpu_api::stream_wait_event), decltype(&cuStreamWaitEvent)>(offsetof(fg__gpu_api, stream_wait_event), NAMES, "cuStreamWaitEvent");
    check<decltype(fg__gpu_api::event_create), decltype(&cuEventCreate)>(offsetof(fg__gpu_api, event_create), NAMES, "cuEventCreate");
    check<decltype(fg__gpu_api::event_destroy), decltype(&cuEventDestroy_v2)>(offsetof(fg__gpu_api, event_destroy), NAMES, "cuEventDestroy_v2");
    check<decltype(fg__gpu_api::event_record), decltype(&cuEventRecord)>(offsetof(fg__gpu_api, event_record), NAMES, "cuEventRecord");
    check<decltype(fg__gpu_api::event_wait), decltype(&cuEventSynchronize)>(offsetof(fg__gpu_api, event_wait), NAMES, "cuEventSynchronize");
    check<decltype(fg__gpu_api::module_load), decltype(&cuModuleLoadData)>(offsetof(fg__gpu_api, module_load), NAMES, "cuModuleLoadData");
    check<decltype(fg__gpu_api::module_unload), decltype(&cuModuleUnload)>(offsetof(fg__gpu_api, module_unload), NAMES, "cuModuleUnload");
    check<decltype(fg__gpu_api::module_function), decltype(&cuModuleGetFunction)>(offsetof(fg__gpu_api, module_function), NAMES, "cuModuleGetFunction");
    check<decltype(fg__gpu_api::function_attribute), decltype(&cuFuncSetAttribute)>(offsetof(fg__gpu_api, function_attribute), NAMES, "cuFuncSetAttribute");
    check<decltype(fg__gpu_api::launch), decltype(&cuLaunchKernel)>(offsetof(fg__gpu_api, launch), NAMES, "cuLaunchKernel");
    check<decltype(fg__gpu_api::capture_begin), decltype(&cuStreamBeginCapture_v2)>(offsetof(fg__gpu_api, capture_begin), NAMES, "cuStreamBeginCapture_v2");
    check<decltype(fg__gpu_api::capture_end), decltype(&cuStreamEndCapture)>(offsetof(fg__gpu_api, capture_end), NAMES, "cuStreamEndCapture");
    check<decltype(fg__gpu_api::graph_instantiate), decltype(&cuGraphInstantiateWithFlags)>(offsetof(fg__gpu_api, graph_instantiate), NAMES, "cuGraphInstantiateWithFlags");
    check<decltype(fg__gpu_api::graph_launch), decltype(&cuGraphLaunch)>(offsetof(fg__gpu_api, graph_launch), NAMES, "cuGraphLaunch");
    check<decltype(fg__gpu_api::graph_exec_destroy), decltype(&cuGraphExecDestroy)>(offsetof(fg__gpu_api, graph_exec_destroy), NAMES, "cuGraphExecDestroy");
    check<decltype(fg__gpu_api::graph_destroy), decltype(&cuGraphDestroy)>(offsetof(fg__gpu_api, graph_destroy), NAMES, "cuGraphDestroy");
}
#elif defined(WITH_HIP)
#ifndef __HIP_PLATFORM_AMD__
#define __HIP_PLATFORM_AMD__
#endif
#define __HIP_DISABLE_CPP_FUNCTIONS__
/* Headers before 6.0 have it under its old name, with the old struct. */
#define hipGetDeviceProperties hipGetDevicePropertiesR0600
#include <hip/hip_runtime_api.h>
#include <hip/hiprtc.h>
static void check_compiler() {
    const char *const *NAMES = fg__hip_rtc_names;
    const size_t from = offsetof(fg__hip_rtc, create);
    check<decltype(fg__hip_rtc::create), decltype(&hiprtcCreateProgram)>(offsetof(fg__hip_rtc, create) - from, NAMES, "hiprtcCreateProgram");
    check<decltype(fg__hip_rtc::compile), decltype(&hiprtcCompileProgram)>(offsetof(fg__hip_rtc, compile) - from, NAMES, "hiprtcCompileProgram");
    check<decltype(fg__hip_rtc::log_bytes), decltype(&hiprtcGetProgramLogSize)>(offsetof(fg__hip_rtc, log_bytes) - from, NAMES, "hiprtcGetProgramLogSize");
    check<decltype(fg__hip_rtc::log), decltype(&hiprtcGetProgramLog)>(offsetof(fg__hip_rtc, log) - from, NAMES, "hiprtcGetProgramLog");
    check<decltype(fg__hip_rtc::code_bytes), decltype(&hiprtcGetCodeSize)>(offsetof(fg__hip_rtc, code_bytes) - from, NAMES, "hiprtcGetCodeSize");
    check<decltype(fg__hip_rtc::code), decltype(&hiprtcGetCode)>(offsetof(fg__hip_rtc, code) - from, NAMES, "hiprtcGetCode");
    check<decltype(fg__hip_rtc::destroy), decltype(&hiprtcDestroyProgram)>(offsetof(fg__hip_rtc, destroy) - from, NAMES, "hiprtcDestroyProgram");
}
static_assert((int)hipErrorOutOfMemory == FG__GPU_OUT_OF_MEMORY && (int)hipErrorNoBinaryForGpu == FG__GPU_NO_BINARY, "errors");
static void check_all() {
    const char *const *NAMES = fg__hip_names;
    check_compiler();
    check<decltype(fg__gpu_api::init), decltype(&hipInit)>(offsetof(fg__gpu_api, init), NAMES, "hipInit");
    check<decltype(fg__gpu_api::driver_version), decltype(&hipDriverGetVersion)>(offsetof(fg__gpu_api, driver_version), NAMES, "hipDriverGetVersion");
    check<decltype(fg__gpu_api::device_count), decltype(&hipGetDeviceCount)>(offsetof(fg__gpu_api, device_count), NAMES, "hipGetDeviceCount");
    check<decltype(fg__gpu_api::device_get), decltype(&hipDeviceGet)>(offsetof(fg__gpu_api, device_get), NAMES, "hipDeviceGet");
    check<decltype(fg__gpu_api::device_name), decltype(&hipDeviceGetName)>(offsetof(fg__gpu_api, device_name), NAMES, "hipDeviceGetName");
    check<decltype(fg__gpu_api::device_attribute), decltype(&hipDeviceGetAttribute)>(offsetof(fg__gpu_api, device_attribute), NAMES, "hipDeviceGetAttribute");
    check<decltype(fg__gpu_api::device_memory), decltype(&hipDeviceTotalMem)>(offsetof(fg__gpu_api, device_memory), NAMES, "hipDeviceTotalMem");
    check<decltype(fg__gpu_api::get_device), decltype(&hipGetDevice)>(offsetof(fg__gpu_api, get_device), NAMES, "hipGetDevice");
    check<decltype(fg__gpu_api::set_device), decltype(&hipSetDevice)>(offsetof(fg__gpu_api, set_device), NAMES, "hipSetDevice");
    check<decltype(fg__gpu_api::device_properties), decltype(&hipGetDevicePropertiesR0600)>(offsetof(fg__gpu_api, device_properties), NAMES, "hipGetDevicePropertiesR0600");
    check<decltype(fg__gpu_api::memory_info), decltype(&hipMemGetInfo)>(offsetof(fg__gpu_api, memory_info), NAMES, "hipMemGetInfo");
    check<decltype(fg__gpu_api::memory_alloc), decltype(&hipMalloc)>(offsetof(fg__gpu_api, memory_alloc), NAMES, "hipMalloc");
    check<decltype(fg__gpu_api::memory_free), decltype(&hipFree)>(offsetof(fg__gpu_api, memory_free), NAMES, "hipFree");
    check<decltype(fg__gpu_api::host_alloc), decltype(&hipHostMalloc)>(offsetof(fg__gpu_api, host_alloc), NAMES, "hipHostMalloc");
    check<decltype(fg__gpu_api::host_free), decltype(&hipHostFree)>(offsetof(fg__gpu_api, host_free), NAMES, "hipHostFree");
    check<decltype(fg__gpu_api::copy_to_device), decltype(&hipMemcpyHtoDAsync)>(offsetof(fg__gpu_api, copy_to_device), NAMES, "hipMemcpyHtoDAsync");
    check<decltype(fg__gpu_api::copy_to_host), decltype(&hipMemcpyDtoHAsync)>(offsetof(fg__gpu_api, copy_to_host), NAMES, "hipMemcpyDtoHAsync");
    check<decltype(fg__gpu_api::copy_on_device), decltype(&hipMemcpyDtoDAsync)>(offsetof(fg__gpu_api, copy_on_device), NAMES, "hipMemcpyDtoDAsync");
    check<decltype(fg__gpu_api::fill), decltype(&hipMemsetD8Async)>(offsetof(fg__gpu_api, fill), NAMES, "hipMemsetD8Async");
    check<decltype(fg__gpu_api::stream_create), decltype(&hipStreamCreateWithFlags)>(offsetof(fg__gpu_api, stream_create), NAMES, "hipStreamCreateWithFlags");
    check<decltype(fg__gpu_api::stream_destroy), decltype(&hipStreamDestroy)>(offsetof(fg__gpu_api, stream_destroy), NAMES, "hipStreamDestroy");
    check<decltype(fg__gpu_api::stream_wait), decltype(&hipStreamSynchronize)>(offsetof(fg__gpu_api, stream_wait), NAMES, "hipStreamSynchronize");
    check<decltype(fg__gpu_api::stream_wait_event), decltype(&hipStreamWaitEvent)>(offsetof(fg__gpu_api, stream_wait_event), NAMES, "hipStreamWaitEvent");
    check<decltype(fg__gpu_api::event_create), decltype(&hipEventCreateWithFlags)>(offsetof(fg__gpu_api, event_create), NAMES, "hipEventCreateWithFlags");
    check<decltype(fg__gpu_api::event_destroy), decltype(&hipEventDestroy)>(offsetof(fg__gpu_api, event_destroy), NAMES, "hipEventDestroy");
    check<decltype(fg__gpu_api::event_record), decltype(&hipEventRecord)>(offsetof(fg__gpu_api, event_record), NAMES, "hipEventRecord");
    check<decltype(fg__gpu_api::event_wait), decltype(&hipEventSynchronize)>(offsetof(fg__gpu_api, event_wait), NAMES, "hipEventSynchronize");
    check<decltype(fg__gpu_api::module_load), decltype(&hipModuleLoadData)>(offsetof(fg__gpu_api, module_load), NAMES, "hipModuleLoadData");
    check<decltype(fg__gpu_api::module_unload), decltype(&hipModuleUnload)>(offsetof(fg__gpu_api, module_unload), NAMES, "hipModuleUnload");
    check<decltype(fg__gpu_api::module_function), decltype(&hipModuleGetFunction)>(offsetof(fg__gpu_api, module_function), NAMES, "hipModuleGetFunction");
    check<decltype(fg__gpu_api::launch), decltype(&hipModuleLaunchKernel)>(offsetof(fg__gpu_api, launch), NAMES, "hipModuleLaunchKernel");
    check<decltype(fg__gpu_api::capture_begin), decltype(&hipStreamBeginCapture)>(offsetof(fg__gpu_api, capture_begin), NAMES, "hipStreamBeginCapture");
    check<decltype(fg__gpu_api::capture_end), decltype(&hipStreamEndCapture)>(offsetof(fg__gpu_api, capture_end), NAMES, "hipStreamEndCapture");
    check<decltype(fg__gpu_api::graph_instantiate), decltype(&hipGraphInstantiateWithFlags)>(offsetof(fg__gpu_api, graph_instantiate), NAMES, "hipGraphInstantiateWithFlags");
    check<decltype(fg__gpu_api::graph_launch), decltype(&hipGraphLaunch)>(offsetof(fg__gpu_api, graph_launch), NAMES, "hipGraphLaunch");
    check<decltype(fg__gpu_api::graph_exec_destroy), decltype(&hipGraphExecDestroy)>(offsetof(fg__gpu_api, graph_exec_destroy), NAMES, "hipGraphExecDestroy");
    check<decltype(fg__gpu_api::graph_destroy), decltype(&hipGraphDestroy)>(offsetof(fg__gpu_api, graph_destroy), NAMES, "hipGraphDestroy");
}
#elif defined(WITH_CUBLASLT)
#include <cublasLt.h>
static_assert(CUBLAS_COMPUTE_32F == 68 && CUBLASLT_MATMUL_DESC_TRANSA == 3 && CUBLAS_OP_T == 1 && CUBLAS_STATUS_SUCCESS == 0, "see fg__gpu_cublaslt");
static_assert((int)CUDA_R_32F == FG__GPU_BLAS_F32 && (int)CUDA_R_16F == FG__GPU_BLAS_F16 && (int)CUDA_R_16BF == FG__GPU_BLAS_BF16, "types");
static_assert((int)CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES == FG__GPU_BLAS_MOST_WORKSPACE && sizeof(cublasOperation_t) == sizeof(int32_t), "attributes");
static_assert(sizeof(cublasLtMatmulHeuristicResult_t) <= sizeof(fg__gpu_blas_call::found) && offsetof(cublasLtMatmulHeuristicResult_t, algo) == 0, "results");
static void check_all() {
    const char *const *NAMES = fg__gpu_cublaslt_names;
    check<decltype(fg__gpu_blas_api::create), decltype(&cublasLtCreate)>(offsetof(fg__gpu_blas_api, create), NAMES, "cublasLtCreate");
    check<decltype(fg__gpu_blas_api::destroy), decltype(&cublasLtDestroy)>(offsetof(fg__gpu_blas_api, destroy), NAMES, "cublasLtDestroy");
    check<decltype(fg__gpu_blas_api::desc_create), decltype(&cublasLtMatmulDescCreate)>(offsetof(fg__gpu_blas_api, desc_create), NAMES, "cublasLtMatmulDescCreate");
    check<decltype(fg__gpu_blas_api::desc_destroy), decltype(&cublasLtMatmulDescDestroy)>(offsetof(fg__gpu_blas_api, desc_destroy), NAMES, "cublasLtMatmulDescDestroy");
    check<decltype(fg__gpu_blas_api::desc_set), decltype(&cublasLtMatmulDescSetAttribute)>(offsetof(fg__gpu_blas_api, desc_set), NAMES, "cublasLtMatmulDescSetAttribute");
    check<decltype(fg__gpu_blas_api::layout_create), decltype(&cublasLtMatrixLayoutCreate)>(offsetof(fg__gpu_blas_api, layout_create), NAMES, "cublasLtMatrixLayoutCreate");
    check<decltype(fg__gpu_blas_api::layout_destroy), decltype(&cublasLtMatrixLayoutDestroy)>(offsetof(fg__gpu_blas_api, layout_destroy), NAMES, "cublasLtMatrixLayoutDestroy");
    check<decltype(fg__gpu_blas_api::preference_create), decltype(&cublasLtMatmulPreferenceCreate)>(offsetof(fg__gpu_blas_api, preference_create), NAMES, "cublasLtMatmulPreferenceCreate");
    check<decltype(fg__gpu_blas_api::preference_destroy), decltype(&cublasLtMatmulPreferenceDestroy)>(offsetof(fg__gpu_blas_api, preference_destroy), NAMES, "cublasLtMatmulPreferenceDestroy");
    check<decltype(fg__gpu_blas_api::preference_set), decltype(&cublasLtMatmulPreferenceSetAttribute)>(offsetof(fg__gpu_blas_api, preference_set), NAMES, "cublasLtMatmulPreferenceSetAttribute");
    check<decltype(fg__gpu_blas_api::heuristic), decltype(&cublasLtMatmulAlgoGetHeuristic)>(offsetof(fg__gpu_blas_api, heuristic), NAMES, "cublasLtMatmulAlgoGetHeuristic");
    check<decltype(fg__gpu_blas_api::matmul), decltype(&cublasLtMatmul)>(offsetof(fg__gpu_blas_api, matmul), NAMES, "cublasLtMatmul");
}
#elif defined(WITH_HIPBLASLT)
#ifndef __HIP_PLATFORM_AMD__
#define __HIP_PLATFORM_AMD__
#endif
#include <hipblaslt/hipblaslt.h>
static_assert(HIPBLAS_COMPUTE_32F == 2 && HIPBLASLT_MATMUL_DESC_TRANSA == 0 && HIPBLAS_OP_T == 112 && HIPBLAS_STATUS_SUCCESS == 0, "see fg__gpu_hipblaslt");
static_assert((int)HIP_R_32F == FG__GPU_BLAS_F32 && (int)HIP_R_16F == FG__GPU_BLAS_F16 && (int)HIP_R_16BF == FG__GPU_BLAS_BF16, "types");
static_assert((int)HIPBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES == FG__GPU_BLAS_MOST_WORKSPACE && sizeof(hipblasOperation_t) == sizeof(int32_t), "attributes");
static_assert(sizeof(hipblasLtMatmulHeuristicResult_t) <= sizeof(fg__gpu_blas_call::found) && offsetof(hipblasLtMatmulHeuristicResult_t, algo) == 0, "results");
static void check_all() {
    const char *const *NAMES = fg__gpu_hipblaslt_names;
    check<decltype(fg__gpu_blas_api::create), decltype(&hipblasLtCreate)>(offsetof(fg__gpu_blas_api, create), NAMES, "hipblasLtCreate");
    check<decltype(fg__gpu_blas_api::destroy), decltype(&hipblasLtDestroy)>(offsetof(fg__gpu_blas_api, destroy), NAMES, "hipblasLtDestroy");
    check<decltype(fg__gpu_blas_api::desc_create), decltype(&hipblasLtMatmulDescCreate)>(offsetof(fg__gpu_blas_api, desc_create), NAMES, "hipblasLtMatmulDescCreate");
    check<decltype(fg__gpu_blas_api::desc_destroy), decltype(&hipblasLtMatmulDescDestroy)>(offsetof(fg__gpu_blas_api, desc_destroy), NAMES, "hipblasLtMatmulDescDestroy");
    check<decltype(fg__gpu_blas_api::desc_set), decltype(&hipblasLtMatmulDescSetAttribute)>(offsetof(fg__gpu_blas_api, desc_set), NAMES, "hipblasLtMatmulDescSetAttribute");
    check<decltype(fg__gpu_blas_api::layout_create), decltype(&hipblasLtMatrixLayoutCreate)>(offsetof(fg__gpu_blas_api, layout_create), NAMES, "hipblasLtMatrixLayoutCreate");
    check<decltype(fg__gpu_blas_api::layout_destroy), decltype(&hipblasLtMatrixLayoutDestroy)>(offsetof(fg__gpu_blas_api, layout_destroy), NAMES, "hipblasLtMatrixLayoutDestroy");
    check<decltype(fg__gpu_blas_api::preference_create), decltype(&hipblasLtMatmulPreferenceCreate)>(offsetof(fg__gpu_blas_api, preference_create), NAMES, "hipblasLtMatmulPreferenceCreate");
    check<decltype(fg__gpu_blas_api::preference_destroy), decltype(&hipblasLtMatmulPreferenceDestroy)>(offsetof(fg__gpu_blas_api, preference_destroy), NAMES, "hipblasLtMatmulPreferenceDestroy");
    check<decltype(fg__gpu_blas_api::preference_set), decltype(&hipblasLtMatmulPreferenceSetAttribute)>(offsetof(fg__gpu_blas_api, preference_set), NAMES, "hipblasLtMatmulPreferenceSetAttribute");
    check<decltype(fg__gpu_blas_api::heuristic), decltype(&hipblasLtMatmulAlgoGetHeuristic)>(offsetof(fg__gpu_blas_api, heuristic), NAMES, "hipblasLtMatmulAlgoGetHeuristic");
    check<decltype(fg__gpu_blas_api::matmul), decltype(&hipblasLtMatmul)>(offsetof(fg__gpu_blas_api, matmul), NAMES, "hipblasLtMatmul");
}
#endif

/* The kernels' source, one file, by a real HIPRTC, which needs no card; four types of weights, one of KV. */
static void compile_by_hiprtc(const char *path) {
#if defined(WITH_HIP)
    const char *options[] = {"-O3", "-std=c++17", "-ffp-contract=off", "--offload-arch=gfx1030", "-DFG_ONLY_SOME"};
    static fg__gpu_device d;
    fg__hip_rtc rtc;
    fg__file file;
    void *program = NULL;
    size_t bytes = 0;
    memset(&file, 0, sizeof(file));
    if (fg__hip_rtc_find(&d, &rtc) != FG_OK) {
        printf("HIPRTC: skipped, it is not installed\n");
        return;
    }
    if (fg__file_open(&file, path) != FG_OK || rtc.create(&program, (const char *)file.data, "fastgen.hip", 0, NULL, NULL) ||
        rtc.compile(program, 5, options) || rtc.code_bytes(program, &bytes) || bytes < 10000)
        failed++;
    printf("HIPRTC: code of %lu bytes\n", (unsigned long)bytes);
    if (program) (void)rtc.destroy(&program);
    fg__file_close(&file);
#else
    (void)path;
#endif
}

int main(int argc, char **argv) {
    check_all();
    if (argc > 1) compile_by_hiprtc(argv[1]);
    printf(failed ? "0 passed, %d failed\n" : "1 passed, %d failed\n", failed);
    return failed != 0;
}
