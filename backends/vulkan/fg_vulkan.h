/* fg_vulkan.h: the Vulkan backend of fastgen.h, for any vendor's GPU.                Public domain or MIT, as fastgen.h.

   Include it after fastgen.h, in the file with FASTGEN_IMPLEMENTATION and wherever fg_backend_vulkan is named:

       #define FASTGEN_IMPLEMENTATION
       #include "fastgen.h"
       #include "backends/vulkan/fg_vulkan.h"
       ...
       desc.backends[0] = fg_backend_vulkan();          // falls through to the CPU where there is no driver

   The driver's loader (libvulkan.so.1, vulkan-1.dll) is found at run time; no Vulkan SDK is needed to build. A device must
   have Vulkan 1.2, subgroup arithmetic in compute shaders and 8 storage buffers per shader. fg_engine_desc.device takes a
   device's number or a part of its name; without it the first discrete GPU is taken, else the first integrated one, else
   the first device of any kind. On Linux before glibc 2.34 the app is also linked with -ldl.

   Weights stay in the blocks of the file; kernels expand them in registers or shared memory and add in floats. The shaders
   are in shaders/; fg_vulkan_spirv.h holds them compiled (./build.sh vulkan writes it).

   What a device has beyond that floor makes products faster: integer dot products (quantised weights; activations are rounded
   to bytes with a scale for each 32, as on the CPU), half floats and cooperative matrices of them (passes of many rows;
   activations and weights are rounded to halves, sums are floats; and attention over a cache in F16 or Q8_0), push descriptors.
   Each is used where the device says that it is no emulation (cooperative matrices on Intel's GPUs: from Xe2 on) and where products and
   attentions at start-up agree with the CPU's (weights that are floats and blocks; a cache in F16 and Q8_0, whole and in pieces; contexts
   past a cut), once in a process; else the next lower way does the work, and the log says so. A device that does the floor wrong does
   not open. Attention of the opened model's own heads, window, soft cap and type of cache is tried in the same way when its graph is
   prepared, for some 30 ms on lavapipe, and products with experts, where it has some.

   Results differ in their last bits with the number of rows of a pass, since products of few rows and of many run different
   kernels, and with what runs beside, by which attention's parts are as long as they are. fg_vulkan_options.invariant gives a request the
   same bits alone and in any batch, whole or in chunks, with a cold or a warm prefix cache, set back or not: products of few rows and of
   many then add in one order, which either can keep (shaders/product.glsl), and attention does without cooperative matrices. Where products use cooperative matrices
   a row alone pays for a tile of 32: with `off` FG_VULKAN_MATRIX few rows are quicker and many slower. It holds while a layer's keys (and
   its values) are within what the device sees of a buffer at once (maxStorageBufferRange); beyond it the log says that it does not.

   Of mixtures of experts each pair of a token and an expert that it takes has workgroups of its own while passes are short, at most 8 tokens, or 64
   where experts are many beside those that a token takes. The pairs of longer passes are sorted by expert into tiles, for the same kernels that
   other products have: those for few rows while an expert has 16 pairs or fewer on average. A layer may have 1024 experts.

   Recurrent layers (FG_OP_STATE_SCAN) take the convolution and the norm of all tokens of a pass beside each other, and between these the delta rule,
   token by token, in workgroups that keep 32 columns of a head's state in registers. A pass gives the bits that shorter ones give.

   What crosses between the device and a CPU that has the attention (fg_engine_desc.kv_device) is copied beside passes, on queues of their own
   where the device has some: of a family that only copies, or more of the one that computes. On a device of one queue copies come
   between passes; either way the host waits for a copy, and not for passes behind it.

   Attention of up to 8 queries of a sequence is cut into parts of 64 to 512 positions, the longer the more of them there are, so that one
   context keeps a whole card busy. With `invariant` parts are always 512 long, and longer chunks of prompts add in the same order: which is done
   where does not show in results then. */

#ifndef FG_VULKAN_H
#define FG_VULKAN_H

#ifdef __cplusplus
extern "C" {
#endif

const fg_backend *fg_backend_vulkan(void);

typedef void (*fg_vulkan_fn)(void);

/* What a device may have beyond the floor. */
enum {
    FG_VULKAN_DOT = 1,    /* VK_KHR_shader_integer_dot_product */
    FG_VULKAN_HALF = 2,   /* 16-bit storage and arithmetic */
    FG_VULKAN_MATRIX = 4, /* VK_KHR_cooperative_matrix, of halves with float sums, and VK_EXT_subgroup_size_control */
    FG_VULKAN_PUSH = 8    /* VK_KHR_push_descriptor */
};

/* fg_engine_desc.backend_options for this backend; all zero is the default. */
typedef struct fg_vulkan_options {
    const char *cache_path;  /* file in which compiled kernels are kept for the next start; NULL: none */
    size_t max_buffer_bytes; /* no kernel sees more of a buffer at once; 0: the device's limit */
    /* vkGetInstanceProcAddr of another loader; NULL: that of the system */
    fg_vulkan_fn (*get_instance_proc_addr)(void *instance, const char *name);
    bool invariant;          /* a request's bits do not depend on what runs beside it; somewhat slower with few rows */
    uint32_t off;            /* FG_VULKAN_...: not used */
    uint32_t force;          /* FG_VULKAN_...: used where the device has them, though it emulates them; their test decides still */
    double submit_work;      /* a pass of more multiplications and additions is submitted in pieces, as systems take what lasts some seconds
                                for a hang and reset the device; 0: 5e10, half a second of the smallest GPUs */
} fg_vulkan_options;

#ifdef __cplusplus
}
#endif
#endif /* FG_VULKAN_H */

#if defined(FASTGEN_IMPLEMENTATION) && !defined(FG__VULKAN_IMPLEMENTED)
#define FG__VULKAN_IMPLEMENTED

#if !FG__WINDOWS
#include <dlfcn.h>
#endif
#include "fg_vulkan_matrix.h"
#include "fg_vulkan_spirv.h"

/* ================================================================================================
   The part of Vulkan's C interface that is used here (Vulkan 1.2 specification). tests/test_vulkan_abi.c compares it
   with the official header. Handles of Vulkan's "dispatchable" kind are pointers, all others 64 bits.
   ================================================================================================ */

#if FG__WINDOWS
#define FG__VK_CALL __stdcall
#else
#define FG__VK_CALL
#endif

enum {
    FG__VK_OUT_OF_HOST_MEMORY = -1,
    FG__VK_OUT_OF_DEVICE_MEMORY = -2,
    FG__VK_DEVICE_LOST = -4,
    FG__VK_OUT_OF_POOL_MEMORY = -1000069000
};

/* VkStructureType */
enum {
    FG__VK_APPLICATION_INFO = 0,
    FG__VK_INSTANCE_INFO = 1,
    FG__VK_QUEUE_INFO = 2,
    FG__VK_DEVICE_INFO = 3,
    FG__VK_SUBMIT_INFO = 4,
    FG__VK_ALLOCATE_INFO = 5,
    FG__VK_FENCE_INFO = 8,
    FG__VK_SEMAPHORE_INFO = 9,
    FG__VK_BUFFER_INFO = 12,
    FG__VK_SHADER_INFO = 16,
    FG__VK_CACHE_INFO = 17,
    FG__VK_STAGE_INFO = 18,
    FG__VK_PIPELINE_INFO = 29,
    FG__VK_PIPELINE_LAYOUT_INFO = 30,
    FG__VK_SET_LAYOUT_INFO = 32,
    FG__VK_POOL_INFO = 33,
    FG__VK_SET_INFO = 34,
    FG__VK_WRITE_INFO = 35,
    FG__VK_COMMAND_POOL_INFO = 39,
    FG__VK_COMMAND_INFO = 40,
    FG__VK_BEGIN_INFO = 42,
    FG__VK_BARRIER_INFO = 46,
    FG__VK_PROPERTIES_2 = 1000059001,
    FG__VK_MEMORY_PROPERTIES_2 = 1000059006,
    FG__VK_SUBGROUP_PROPERTIES = 1000094000,
    FG__VK_MAINTENANCE_3_PROPERTIES = 1000168000,
    FG__VK_BUDGET_PROPERTIES = 1000237000,
    FG__VK_FEATURES_2 = 1000059000,
    FG__VK_HALF_FEATURES = 1000082000,
    FG__VK_STORAGE_FEATURES = 1000083000,
    FG__VK_DOT_FEATURES = 1000280000,
    FG__VK_DOT_PROPERTIES = 1000280001,
    FG__VK_DRIVER_PROPERTIES = 1000196000,
    FG__VK_TIMELINE_FEATURES = 1000207000,
    FG__VK_TIMELINE_TYPE_INFO = 1000207002,
    FG__VK_TIMELINE_INFO = 1000207003,
    FG__VK_MODEL_FEATURES = 1000211000,
    FG__VK_SIZE_PROPERTIES = 1000225000,
    FG__VK_SIZE_INFO = 1000225001,
    FG__VK_SIZE_FEATURES = 1000225002,
    FG__VK_MATRIX_FEATURES = 1000506000,
    FG__VK_MATRIX_SHAPE = 1000506001
};

enum { FG__VK_CPU = 4 }; /* a type of device */
enum { FG__VK_INTEL = 0x8086, FG__VK_NVIDIA = 0x10DE }; /* vendors' numbers in PCI */
enum { FG__VK_AMD_PROPRIETARY = 1, FG__VK_AMD_OPEN = 2 }; /* drivers: AMD's own two; Mesa's is another */
enum { FG__VK_STORAGE_BUFFER = 7, FG__VK_COMPUTE_STAGE = 0x20, FG__VK_SUBGROUP_ARITHMETIC = 4 };
enum { FG__VK_COMPUTE_QUEUE = 2, FG__VK_TRANSFER_QUEUE = 4, FG__VK_SPARSE_QUEUE = 8, FG__VK_PROTECTED_QUEUE = 16 };
enum { FG__VK_SHARED_BY_FAMILIES = 1, FG__VK_TIMELINE = 1, FG__VK_ENUMERATE_PORTABILITY = 1 };
enum { FG__VK_BUFFER_USAGE = 0x1 | 0x2 | 0x20 }; /* copies from and to, storage */
enum { FG__VK_AT_COMPUTE = 0x800, FG__VK_AT_TRANSFER = 0x1000, FG__VK_AT_HOST = 0x4000 };
enum {
    FG__VK_SHADER_READ = 0x20,
    FG__VK_SHADER_WRITE = 0x40,
    FG__VK_TRANSFER_READ = 0x800,
    FG__VK_TRANSFER_WRITE = 0x1000,
    FG__VK_HOST_READ = 0x2000
};
enum { FG__VK_DEVICE_LOCAL = 1, FG__VK_HOST_VISIBLE = 2, FG__VK_HOST_COHERENT = 4, FG__VK_HOST_CACHED = 8 };

typedef struct fg__vk_application_info {
    int32_t type;
    const void *next;
    const char *application;
    uint32_t application_version;
    const char *engine;
    uint32_t engine_version, api_version;
} fg__vk_application_info;

typedef struct fg__vk_instance_info {
    int32_t type;
    const void *next;
    uint32_t flags;
    const fg__vk_application_info *application;
    uint32_t n_layers;
    const char *const *layers;
    uint32_t n_extensions;
    const char *const *extensions;
} fg__vk_instance_info;

typedef struct fg__vk_limits {
    uint32_t image_limits[7], max_storage_range, max_push_bytes, max_allocations, max_samplers;
    uint64_t granularity, sparse_bytes;
    uint32_t max_sets, stage_samplers, stage_uniform_buffers, stage_storage_buffers, other_limits[34], shared_bytes;
    uint32_t max_groups[3], max_invocations, max_group_size[3], more_limits[13];
    size_t map_alignment;
    uint64_t texel_alignment, uniform_alignment, storage_alignment;
    uint64_t rest[21];
} fg__vk_limits;

typedef struct fg__vk_properties {
    int32_t type;
    void *next;
    uint32_t api_version, driver_version, vendor, device;
    int32_t device_type; /* 1 integrated, 2 discrete, 3 virtual, 4 CPU */
    char name[256];
    uint8_t cache_uuid[16];
    fg__vk_limits limits;
    uint32_t sparse[5];
} fg__vk_properties;

typedef struct fg__vk_subgroup_properties {
    int32_t type;
    void *next;
    uint32_t size, stages, operations, quad;
} fg__vk_subgroup_properties;

typedef struct fg__vk_maintenance_3_properties {
    int32_t type;
    void *next;
    uint32_t max_descriptors;
    uint64_t max_allocation;
} fg__vk_maintenance_3_properties;

typedef struct fg__vk_features {
    int32_t type;
    void *next;
    uint32_t flags[55];
} fg__vk_features;

typedef struct fg__vk_half_features {
    int32_t type;
    void *next;
    uint32_t half, int8;
} fg__vk_half_features;

typedef struct fg__vk_storage_features {
    int32_t type;
    void *next;
    uint32_t storage, uniform, push, in_out;
} fg__vk_storage_features;

typedef struct fg__vk_dot_features {
    int32_t type;
    void *next;
    uint32_t dot;
} fg__vk_dot_features;

typedef struct fg__vk_dot_properties {
    int32_t type;
    void *next;
    uint32_t before[4], packed_signed, packed_mixed, after[24];
} fg__vk_dot_properties;

typedef struct fg__vk_driver_properties {
    int32_t type;
    void *next;
    int32_t driver;
    char name[256], info[256];
    uint8_t conformance[4];
} fg__vk_driver_properties;

typedef struct fg__vk_timeline_features {
    int32_t type;
    void *next;
    uint32_t timeline;
} fg__vk_timeline_features;

typedef struct fg__vk_model_features {
    int32_t type;
    void *next;
    uint32_t model, device_scope, chains;
} fg__vk_model_features;

typedef struct fg__vk_size_features {
    int32_t type;
    void *next;
    uint32_t control, full;
} fg__vk_size_features;

typedef struct fg__vk_size_properties {
    int32_t type;
    void *next;
    uint32_t min, max, most_subgroups, stages;
} fg__vk_size_properties;

typedef struct fg__vk_size_info {
    int32_t type;
    void *next;
    uint32_t size;
} fg__vk_size_info;

typedef struct fg__vk_matrix_features {
    int32_t type;
    void *next;
    uint32_t matrix, robust;
} fg__vk_matrix_features;

typedef struct fg__vk_matrix_shape {
    int32_t type;
    void *next;
    uint32_t m, n, k;
    int32_t a, b, c, result;
    uint32_t saturating;
    int32_t scope;
} fg__vk_matrix_shape;

enum { FG__VK_HALF_TYPE = 0, FG__VK_FLOAT_TYPE = 1, FG__VK_SUBGROUP_SCOPE = 3, FG__VK_FULL_SUBGROUPS = 2 };

typedef struct fg__vk_memory_properties {
    int32_t type;
    void *next;
    uint32_t n_types;
    struct {
        uint32_t flags, heap;
    } types[32];
    uint32_t n_heaps;
    struct {
        uint64_t bytes;
        uint32_t flags;
    } heaps[16];
} fg__vk_memory_properties;

typedef struct fg__vk_budget_properties {
    int32_t type;
    void *next;
    uint64_t budget[16], usage[16];
} fg__vk_budget_properties;

typedef struct fg__vk_queue_properties {
    uint32_t flags, count, timestamp_bits, granularity[3];
} fg__vk_queue_properties;

typedef struct fg__vk_extension {
    char name[256];
    uint32_t version;
} fg__vk_extension;

typedef struct fg__vk_queue_info {
    int32_t type;
    const void *next;
    uint32_t flags, family, count;
    const float *priorities;
} fg__vk_queue_info;

typedef struct fg__vk_device_info {
    int32_t type;
    const void *next;
    uint32_t flags, n_queues;
    const fg__vk_queue_info *queues;
    uint32_t n_layers;
    const char *const *layers;
    uint32_t n_extensions;
    const char *const *extensions;
    const void *features;
} fg__vk_device_info;

typedef struct fg__vk_buffer_info {
    int32_t type;
    const void *next;
    uint32_t flags;
    uint64_t bytes;
    uint32_t usage;
    int32_t sharing;
    uint32_t n_families;
    const uint32_t *families;
} fg__vk_buffer_info;

typedef struct fg__vk_requirements {
    uint64_t bytes, alignment;
    uint32_t types;
} fg__vk_requirements;

typedef struct fg__vk_allocate_info {
    int32_t type;
    const void *next;
    uint64_t bytes;
    uint32_t memory_type;
} fg__vk_allocate_info;

typedef struct fg__vk_shader_info {
    int32_t type;
    const void *next;
    uint32_t flags;
    size_t bytes;
    const uint32_t *code;
} fg__vk_shader_info;

typedef struct fg__vk_set_binding {
    uint32_t binding;
    int32_t type;
    uint32_t count, stages;
    const void *samplers;
} fg__vk_set_binding;

typedef struct fg__vk_set_layout_info {
    int32_t type;
    const void *next;
    uint32_t flags, n_bindings;
    const fg__vk_set_binding *bindings;
} fg__vk_set_layout_info;

typedef struct fg__vk_push_range {
    uint32_t stages, offset, bytes;
} fg__vk_push_range;

typedef struct fg__vk_pipeline_layout_info {
    int32_t type;
    const void *next;
    uint32_t flags, n_sets;
    const uint64_t *sets;
    uint32_t n_ranges;
    const fg__vk_push_range *ranges;
} fg__vk_pipeline_layout_info;

typedef struct fg__vk_cache_info {
    int32_t type;
    const void *next;
    uint32_t flags;
    size_t bytes;
    const void *data;
} fg__vk_cache_info;

typedef struct fg__vk_spec_entry {
    uint32_t id, offset;
    size_t bytes;
} fg__vk_spec_entry;

typedef struct fg__vk_spec_info {
    uint32_t n_entries;
    const fg__vk_spec_entry *entries;
    size_t bytes;
    const void *data;
} fg__vk_spec_info;

typedef struct fg__vk_stage_info {
    int32_t type;
    const void *next;
    uint32_t flags, stage;
    uint64_t module;
    const char *entry;
    const fg__vk_spec_info *spec;
} fg__vk_stage_info;

typedef struct fg__vk_pipeline_info {
    int32_t type;
    const void *next;
    uint32_t flags;
    fg__vk_stage_info stage;
    uint64_t layout, base;
    int32_t base_index;
} fg__vk_pipeline_info;

typedef struct fg__vk_pool_size {
    int32_t type;
    uint32_t count;
} fg__vk_pool_size;

typedef struct fg__vk_pool_info {
    int32_t type;
    const void *next;
    uint32_t flags, max_sets, n_sizes;
    const fg__vk_pool_size *sizes;
} fg__vk_pool_info;

typedef struct fg__vk_set_info {
    int32_t type;
    const void *next;
    uint64_t pool;
    uint32_t count;
    const uint64_t *layouts;
} fg__vk_set_info;

typedef struct fg__vk_buffer_range {
    uint64_t buffer, offset, bytes;
} fg__vk_buffer_range;

typedef struct fg__vk_write_info {
    int32_t type;
    const void *next;
    uint64_t set;
    uint32_t binding, element, count;
    int32_t descriptor_type;
    const void *images;
    const fg__vk_buffer_range *buffers;
    const void *views;
} fg__vk_write_info;

typedef struct fg__vk_command_pool_info {
    int32_t type;
    const void *next;
    uint32_t flags, family;
} fg__vk_command_pool_info;

typedef struct fg__vk_command_info {
    int32_t type;
    const void *next;
    uint64_t pool;
    int32_t level;
    uint32_t count;
} fg__vk_command_info;

typedef struct fg__vk_begin_info {
    int32_t type;
    const void *next;
    uint32_t flags;
    const void *inheritance;
} fg__vk_begin_info;

typedef struct fg__vk_barrier_info {
    int32_t type;
    const void *next;
    uint32_t from, to;
} fg__vk_barrier_info;

typedef struct fg__vk_copy {
    uint64_t from, to, bytes;
} fg__vk_copy;

typedef struct fg__vk_submit_info {
    int32_t type;
    const void *next;
    uint32_t n_waits;
    const uint64_t *waits;
    const uint32_t *wait_stages;
    uint32_t n_commands;
    void *const *commands;
    uint32_t n_signals;
    const uint64_t *signals;
} fg__vk_submit_info;

typedef struct fg__vk_fence_info {
    int32_t type;
    const void *next;
    uint32_t flags;
} fg__vk_fence_info;

typedef struct fg__vk_semaphore_info {
    int32_t type;
    const void *next;
    uint32_t flags;
} fg__vk_semaphore_info;

typedef struct fg__vk_timeline_type_info {
    int32_t type;
    const void *next;
    int32_t kind;
    uint64_t value;
} fg__vk_timeline_type_info;

/* Of a submission: what its semaphores are to reach, and are then. */
typedef struct fg__vk_timeline_info {
    int32_t type;
    const void *next;
    uint32_t n_waits;
    const uint64_t *waits;
    uint32_t n_signals;
    const uint64_t *signals;
} fg__vk_timeline_info;

/* The functions, in the order of fg__vk_names: of an instance first, then of a device. */
typedef struct fg__vk_api {
    void(FG__VK_CALL *DestroyInstance)(void *, const void *);
    int32_t(FG__VK_CALL *EnumeratePhysicalDevices)(void *, uint32_t *, void **);
    void(FG__VK_CALL *GetPhysicalDeviceProperties2)(void *, fg__vk_properties *);
    void(FG__VK_CALL *GetPhysicalDeviceFeatures2)(void *, fg__vk_features *);
    void(FG__VK_CALL *GetPhysicalDeviceMemoryProperties2)(void *, fg__vk_memory_properties *);
    void(FG__VK_CALL *GetPhysicalDeviceQueueFamilyProperties)(void *, uint32_t *, fg__vk_queue_properties *);
    int32_t(FG__VK_CALL *EnumerateDeviceExtensionProperties)(void *, const char *, uint32_t *, fg__vk_extension *);
    int32_t(FG__VK_CALL *CreateDevice)(void *, const fg__vk_device_info *, const void *, void **);
    fg_vulkan_fn(FG__VK_CALL *GetDeviceProcAddr)(void *, const char *);
    void(FG__VK_CALL *DestroyDevice)(void *, const void *);
    void(FG__VK_CALL *GetDeviceQueue)(void *, uint32_t, uint32_t, void **);
    int32_t(FG__VK_CALL *DeviceWaitIdle)(void *);
    int32_t(FG__VK_CALL *CreateBuffer)(void *, const fg__vk_buffer_info *, const void *, uint64_t *);
    void(FG__VK_CALL *DestroyBuffer)(void *, uint64_t, const void *);
    void(FG__VK_CALL *GetBufferMemoryRequirements)(void *, uint64_t, fg__vk_requirements *);
    int32_t(FG__VK_CALL *AllocateMemory)(void *, const fg__vk_allocate_info *, const void *, uint64_t *);
    void(FG__VK_CALL *FreeMemory)(void *, uint64_t, const void *);
    int32_t(FG__VK_CALL *BindBufferMemory)(void *, uint64_t, uint64_t, uint64_t);
    int32_t(FG__VK_CALL *MapMemory)(void *, uint64_t, uint64_t, uint64_t, uint32_t, void **);
    int32_t(FG__VK_CALL *CreateShaderModule)(void *, const fg__vk_shader_info *, const void *, uint64_t *);
    void(FG__VK_CALL *DestroyShaderModule)(void *, uint64_t, const void *);
    int32_t(FG__VK_CALL *CreateDescriptorSetLayout)(void *, const fg__vk_set_layout_info *, const void *, uint64_t *);
    void(FG__VK_CALL *DestroyDescriptorSetLayout)(void *, uint64_t, const void *);
    int32_t(FG__VK_CALL *CreatePipelineLayout)(void *, const fg__vk_pipeline_layout_info *, const void *, uint64_t *);
    void(FG__VK_CALL *DestroyPipelineLayout)(void *, uint64_t, const void *);
    int32_t(FG__VK_CALL *CreatePipelineCache)(void *, const fg__vk_cache_info *, const void *, uint64_t *);
    void(FG__VK_CALL *DestroyPipelineCache)(void *, uint64_t, const void *);
    int32_t(FG__VK_CALL *GetPipelineCacheData)(void *, uint64_t, size_t *, void *);
    int32_t(FG__VK_CALL *CreateComputePipelines)(void *, uint64_t, uint32_t, const fg__vk_pipeline_info *, const void *, uint64_t *);
    void(FG__VK_CALL *DestroyPipeline)(void *, uint64_t, const void *);
    int32_t(FG__VK_CALL *CreateDescriptorPool)(void *, const fg__vk_pool_info *, const void *, uint64_t *);
    void(FG__VK_CALL *DestroyDescriptorPool)(void *, uint64_t, const void *);
    int32_t(FG__VK_CALL *AllocateDescriptorSets)(void *, const fg__vk_set_info *, uint64_t *);
    void(FG__VK_CALL *UpdateDescriptorSets)(void *, uint32_t, const fg__vk_write_info *, uint32_t, const void *);
    int32_t(FG__VK_CALL *CreateCommandPool)(void *, const fg__vk_command_pool_info *, const void *, uint64_t *);
    void(FG__VK_CALL *DestroyCommandPool)(void *, uint64_t, const void *);
    int32_t(FG__VK_CALL *AllocateCommandBuffers)(void *, const fg__vk_command_info *, void **);
    void(FG__VK_CALL *FreeCommandBuffers)(void *, uint64_t, uint32_t, void *const *);
    int32_t(FG__VK_CALL *BeginCommandBuffer)(void *, const fg__vk_begin_info *);
    int32_t(FG__VK_CALL *EndCommandBuffer)(void *);
    void(FG__VK_CALL *CmdBindPipeline)(void *, int32_t, uint64_t);
    void(FG__VK_CALL *CmdBindDescriptorSets)(void *, int32_t, uint64_t, uint32_t, uint32_t, const uint64_t *, uint32_t, const uint32_t *);
    void(FG__VK_CALL *CmdPushConstants)(void *, uint64_t, uint32_t, uint32_t, uint32_t, const void *);
    void(FG__VK_CALL *CmdDispatch)(void *, uint32_t, uint32_t, uint32_t);
    void(FG__VK_CALL *CmdPipelineBarrier)(void *, uint32_t, uint32_t, uint32_t, uint32_t, const fg__vk_barrier_info *, uint32_t,
                                          const void *, uint32_t, const void *);
    void(FG__VK_CALL *CmdCopyBuffer)(void *, uint64_t, uint64_t, uint32_t, const fg__vk_copy *);
    int32_t(FG__VK_CALL *CreateFence)(void *, const fg__vk_fence_info *, const void *, uint64_t *);
    void(FG__VK_CALL *DestroyFence)(void *, uint64_t, const void *);
    int32_t(FG__VK_CALL *ResetFences)(void *, uint32_t, const uint64_t *);
    int32_t(FG__VK_CALL *WaitForFences)(void *, uint32_t, const uint64_t *, uint32_t, uint64_t);
    int32_t(FG__VK_CALL *QueueSubmit)(void *, uint32_t, const fg__vk_submit_info *, uint64_t);
    int32_t(FG__VK_CALL *CreateSemaphore)(void *, const fg__vk_semaphore_info *, const void *, uint64_t *);
    void(FG__VK_CALL *DestroySemaphore)(void *, uint64_t, const void *);
    void(FG__VK_CALL *CmdPushDescriptorSetKHR)(void *, int32_t, uint64_t, uint32_t, uint32_t, const fg__vk_write_info *);
} fg__vk_api;

static const char *const fg__vk_names[] = {
    "vkDestroyInstance", "vkEnumeratePhysicalDevices", "vkGetPhysicalDeviceProperties2", "vkGetPhysicalDeviceFeatures2",
    "vkGetPhysicalDeviceMemoryProperties2",
    "vkGetPhysicalDeviceQueueFamilyProperties", "vkEnumerateDeviceExtensionProperties", "vkCreateDevice", "vkGetDeviceProcAddr",
    "vkDestroyDevice", "vkGetDeviceQueue", "vkDeviceWaitIdle", "vkCreateBuffer", "vkDestroyBuffer", "vkGetBufferMemoryRequirements",
    "vkAllocateMemory", "vkFreeMemory", "vkBindBufferMemory", "vkMapMemory", "vkCreateShaderModule", "vkDestroyShaderModule",
    "vkCreateDescriptorSetLayout", "vkDestroyDescriptorSetLayout", "vkCreatePipelineLayout", "vkDestroyPipelineLayout",
    "vkCreatePipelineCache", "vkDestroyPipelineCache", "vkGetPipelineCacheData", "vkCreateComputePipelines", "vkDestroyPipeline",
    "vkCreateDescriptorPool", "vkDestroyDescriptorPool", "vkAllocateDescriptorSets", "vkUpdateDescriptorSets", "vkCreateCommandPool",
    "vkDestroyCommandPool", "vkAllocateCommandBuffers", "vkFreeCommandBuffers", "vkBeginCommandBuffer", "vkEndCommandBuffer", "vkCmdBindPipeline",
    "vkCmdBindDescriptorSets", "vkCmdPushConstants", "vkCmdDispatch", "vkCmdPipelineBarrier", "vkCmdCopyBuffer", "vkCreateFence",
    "vkDestroyFence", "vkResetFences", "vkWaitForFences", "vkQueueSubmit", "vkCreateSemaphore", "vkDestroySemaphore",
    "vkCmdPushDescriptorSetKHR",
};
enum { FG__VK_INSTANCE_FUNCTIONS = 9, FG__VK_EXTENSION_FUNCTIONS = 1 /* the last, which a device may not have */ };

/* ================================================================================================
   The loader, instances, devices
   ================================================================================================ */

typedef fg_vulkan_fn(FG__VK_CALL *fg__vk_get_fn)(void *instance, const char *name);

/* What finds functions, and the instance. */
typedef struct fg__vk_loader {
    void *library;
    fg__vk_get_fn get;
    fg_vulkan_fn (*own_get)(void *instance, const char *name);
    void *instance;
    fg__vk_api api;
} fg__vk_loader;

/* A piece of device memory with a buffer over all of it, from which ranges are taken in turn. */
typedef struct fg__vk_chunk {
    struct fg__vk_chunk *next;
    uint64_t memory, buffer;
    size_t bytes, used;
    int kind, n_ranges;
    char *mapped;
} fg__vk_chunk;

enum { FG__VK_TURNS = 2 }; /* passes that may be in flight */
enum { FG__VK_MAX_PIECES = 256 }; /* of a pass */
enum { FG__VK_ON_DEVICE, FG__VK_TO_DEVICE, FG__VK_FROM_DEVICE, FG__VK_KINDS };
enum { FG__VK_PASSES, FG__VK_DOWN, FG__VK_UP, FG__VK_QUEUES }; /* queues: of passes, of what goes to the host and comes from there beside them */

typedef struct fg__vk_range {
    fg__vk_chunk *chunk;
    size_t offset, bytes;
} fg__vk_range;

enum { FG__VK_STAGING = 4 << 20, FG__VK_CHUNK = 64 << 20, FG__VK_ALIGN = 256, FG__VK_BINDINGS = 8 };

/* Commands that are recorded when they are needed, and the fence that tells the end of what was submitted with them. */
typedef struct fg__vk_work {
    void *commands;
    uint64_t fence, pool;
    int queue; /* FG__VK_PASSES, ... */
    bool busy; /* its end was not waited for */
} fg__vk_work;

/* How far a queue is: a semaphore that each submission to it makes one more. There are such where queues wait for each other. */
typedef struct fg__vk_line {
    uint64_t semaphore, value; /* value: when all that was submitted has ended */
} fg__vk_line;

typedef struct fg__vk_pipeline {
    int shader, spec[5];
    uint64_t handle;
} fg__vk_pipeline;

/* Attention, as far as its kernels may depend on a model. */
typedef struct fg__vk_shape {
    int32_t kv_type, head_dim, n_head, n_kv_head, window;
    float softcap;
} fg__vk_shape;

/* One that was tried, and which of FG_VULKAN_HALF and _MATRIX it may use. */
typedef struct fg__vk_tried {
    fg__vk_shape shape;
    uint32_t rungs;
} fg__vk_tried;

typedef struct fg__vk_device {
    fg__env env;
    fg__vk_loader loader;
    fg__vk_api api;
    fg_vulkan_options options;
    char *cache_path; /* options.cache_path, our own copy */
    fg_progress_fn progress;
    void *progress_user;
    void *physical, *handle, *queues[FG__VK_QUEUES]; /* the same one for copies where there are no others */
    uint32_t family, copy_family;
    int n_copy_queues;
    fg__vk_line lines[FG__VK_QUEUES];
    uint64_t came; /* of the line of FG__VK_UP: what the next pass is to wait for; 0: nothing */
    bool has_budget, lost, proving; /* proving: what is prepared is a trial */
    fg__vk_properties properties;
    fg__vk_memory_properties memory;
    uint64_t max_allocation;
    size_t max_range;
    int subgroup, memory_types[FG__VK_KINDS];
    bool narrow;    /* with options.invariant: products of few rows have kernels of their own, whose bits are those of many */
    uint32_t rungs; /* FG_VULKAN_...: in use */
    fg__vk_matrix_shape shape;
    int matrix_lanes, matrix_subgroups; /* of a subgroup, in kernels with matrices; the most of a workgroup */
    bool asks_lanes;  /* such kernels must ask for so many */
    fg__vk_chunk *chunks;
    uint64_t set_layout, pipeline_layout, cache, command_pool, copy_pool; /* copy_pool: of copy_family */
    fg__vk_work copies;
    fg__vk_range staging;
    uint64_t shaders[FG__VK_SHADERS];
    fg__vk_pipeline *pipelines;
    size_t n_pipelines, pipelines_capacity;
    fg__vk_tried *tried;
    size_t n_tried, tried_capacity;
    bool experts_plain; /* products with experts are done in floats: some rung of theirs proved bad */
    struct fg__vk_weight *weights;
} fg__vk_device;

static fg_result fg__vk_check(fg__vk_device *device, int32_t result, const char *what) {
    if (result >= 0) return FG_OK;
    if (result == FG__VK_OUT_OF_HOST_MEMORY || result == FG__VK_OUT_OF_DEVICE_MEMORY || result == FG__VK_OUT_OF_POOL_MEMORY)
        return fg__fail(FG_ERROR_OUT_OF_MEMORY, "%s: the device is out of memory", what);
    if (result != FG__VK_DEVICE_LOST) return fg__fail(FG_ERROR_DEVICE, "%s: Vulkan error %d", what, (int)result);
    if (device) device->lost = true;
    return fg__fail(FG_ERROR_DEVICE, "%s: the device was lost", what);
}

static fg_vulkan_fn fg__vk_find(const fg__vk_loader *loader, const char *name) {
    return loader->own_get ? loader->own_get(loader->instance, name) : loader->get(loader->instance, name);
}

static fg_result fg__vk_library(fg__vk_loader *loader) {
#if FG__WINDOWS
    FARPROC found;
    loader->library = (void *)LoadLibraryA("vulkan-1.dll");
    if (!loader->library) return fg__fail(FG_ERROR_NOT_FOUND, "there is no Vulkan driver (vulkan-1.dll)");
    found = GetProcAddress((HMODULE)loader->library, "vkGetInstanceProcAddr");
    memcpy(&loader->get, &found, sizeof(loader->get));
#else
#if defined(__APPLE__)
    static const char *const names[] = {"libvulkan.1.dylib", "libMoltenVK.dylib"};
#else
    static const char *const names[] = {"libvulkan.so.1", "libvulkan.so"};
#endif
    void *found;
    loader->library = dlopen(names[0], RTLD_NOW | RTLD_LOCAL);
    if (!loader->library) loader->library = dlopen(names[1], RTLD_NOW | RTLD_LOCAL);
    if (!loader->library) return fg__fail(FG_ERROR_NOT_FOUND, "there is no Vulkan driver (%s)", names[0]);
    found = dlsym(loader->library, "vkGetInstanceProcAddr");
    memcpy(&loader->get, &found, sizeof(loader->get));
#endif
    return loader->get ? FG_OK : fg__fail(FG_ERROR_NOT_FOUND, "the Vulkan loader is not one");
}

static void fg__vk_loader_close(fg__vk_loader *loader) {
    if (loader->instance && loader->api.DestroyInstance) loader->api.DestroyInstance(loader->instance, NULL);
#if FG__WINDOWS
    if (loader->library) FreeLibrary((HMODULE)loader->library);
#else
    if (loader->library) dlclose(loader->library);
#endif
    memset(loader, 0, sizeof(*loader));
}

static void fg__vk_set_function(fg__vk_api *api, int index, fg_vulkan_fn function) {
    memcpy((char *)api + (size_t)index * sizeof(function), &function, sizeof(function));
}

/* Whether to ask loaders for devices that are Vulkan but for some details (VK_KHR_portability_subset), none of which we use: on Apple's
   systems all are such, by MoltenVK, and the loader hides them from who does not ask. */
#ifndef FG__VK_PORTABILITY
#if defined(__APPLE__)
#define FG__VK_PORTABILITY 1
#else
#define FG__VK_PORTABILITY 0
#endif
#endif

#if FG__VK_PORTABILITY
/* Whether the loader has an extension of instances, among the first 64. */
static bool fg__vk_instance_has(const fg__vk_loader *loader, const char *name) {
    int32_t(FG__VK_CALL * list)(const char *, uint32_t *, fg__vk_extension *);
    fg_vulkan_fn function = fg__vk_find(loader, "vkEnumerateInstanceExtensionProperties");
    fg__vk_extension all[64];
    uint32_t n = 64, i;
    if (!function) return false;
    memcpy(&list, &function, sizeof(list));
    if (list(NULL, &n, all) < 0) return false;
    for (i = 0; i < n; i++)
        if (strcmp(all[i].name, name) == 0) return true;
    return false;
}

static void fg__vk_ask_portable(const fg__vk_loader *loader, fg__vk_instance_info *info) {
    static const char *const extensions[] = {"VK_KHR_portability_enumeration"};
    if (!fg__vk_instance_has(loader, extensions[0])) return;
    info->flags = FG__VK_ENUMERATE_PORTABILITY;
    info->extensions = extensions;
    info->n_extensions = 1;
}
#endif

static fg_result fg__vk_make_instance(fg__vk_loader *loader) {
    int32_t(FG__VK_CALL * create)(const fg__vk_instance_info *, const void *, void **);
    fg_vulkan_fn function;
    fg__vk_application_info application;
    fg__vk_instance_info info;
    int32_t result;
    int i;
    memset(&application, 0, sizeof(application));
    application.engine = application.application = "fastgen";
    application.api_version = (uint32_t)1 << 22 | 2 << 12; /* 1.2 */
    memset(&info, 0, sizeof(info));
    info.type = FG__VK_INSTANCE_INFO;
    info.application = &application;
#if FG__VK_PORTABILITY
    fg__vk_ask_portable(loader, &info);
#endif
    function = fg__vk_find(loader, "vkCreateInstance");
    if (!function) return fg__fail(FG_ERROR_NOT_FOUND, "the Vulkan loader has no vkCreateInstance");
    memcpy(&create, &function, sizeof(create));
    result = create(&info, NULL, &loader->instance);
    if (result == FG__VK_OUT_OF_HOST_MEMORY) return fg__vk_check(NULL, result, "vkCreateInstance");
    if (result < 0) return fg__fail(FG_ERROR_NOT_FOUND, "Vulkan does not start: error %d", (int)result);
    for (i = 0; i < FG__VK_INSTANCE_FUNCTIONS; i++) {
        function = fg__vk_find(loader, fg__vk_names[i]);
        if (!function) return fg__fail(FG_ERROR_NOT_FOUND, "the Vulkan loader has no %s", fg__vk_names[i]);
        fg__vk_set_function(&loader->api, i, function);
    }
    return FG_OK;
}

static fg_result fg__vk_loader_open(fg__vk_loader *loader, const fg_vulkan_options *options) {
    fg_result r = FG_OK;
    memset(loader, 0, sizeof(*loader));
    if (options) loader->own_get = options->get_instance_proc_addr;
    if (!loader->own_get) r = fg__vk_library(loader);
    if (r == FG_OK) r = fg__vk_make_instance(loader);
    if (r != FG_OK) fg__vk_loader_close(loader);
    return r;
}

enum { FG__VK_MAX_DEVICES = 16 };

/* The family of queues that can compute; -1: none. */
static int fg__vk_queue_family(const fg__vk_api *api, void *physical) {
    fg__vk_queue_properties families[16];
    uint32_t n = 16, i;
    api->GetPhysicalDeviceQueueFamilyProperties(physical, &n, families);
    for (i = 0; i < n; i++)
        if ((families[i].flags & FG__VK_COMPUTE_QUEUE) && families[i].count > 0) return (int)i;
    return -1;
}

/* What a device is; false: it lacks something that we need. */
static bool fg__vk_describe(const fg__vk_api *api, void *physical, fg__vk_properties *properties, int *subgroup,
                            uint64_t *max_allocation) {
    fg__vk_subgroup_properties groups;
    fg__vk_maintenance_3_properties more;
    memset(&groups, 0, sizeof(groups));
    memset(&more, 0, sizeof(more));
    memset(properties, 0, sizeof(*properties));
    properties->type = FG__VK_PROPERTIES_2;
    properties->next = &groups;
    groups.type = FG__VK_SUBGROUP_PROPERTIES;
    groups.next = &more;
    more.type = FG__VK_MAINTENANCE_3_PROPERTIES;
    api->GetPhysicalDeviceProperties2(physical, properties);
    properties->next = NULL;
    if (properties->api_version < ((uint32_t)1 << 22 | 2 << 12)) return false;
    *subgroup = (int)groups.size;
    *max_allocation = more.max_allocation ? more.max_allocation : (uint64_t)1 << 30;
    return (groups.stages & FG__VK_COMPUTE_STAGE) && (groups.operations & FG__VK_SUBGROUP_ARITHMETIC) && groups.size > 0 &&
           properties->limits.stage_storage_buffers >= FG__VK_BINDINGS && properties->limits.max_invocations >= 128 &&
           fg__vk_queue_family(api, physical) >= 0;
}

/* The usable devices, the fastest kind first, in the order of the loader among those of a kind. */
static int fg__vk_devices(const fg__vk_loader *loader, void **devices) {
    static const int kinds[] = {2, 1, 3, 0, 4};
    fg__vk_properties properties;
    void *all[FG__VK_MAX_DEVICES];
    uint64_t max_allocation;
    uint32_t n = FG__VK_MAX_DEVICES, i, k;
    int count = 0, subgroup;
    if (loader->api.EnumeratePhysicalDevices(loader->instance, &n, all) < 0) return 0;
    for (k = 0; k < FG__COUNT(kinds); k++)
        for (i = 0; i < n; i++)
            if (fg__vk_describe(&loader->api, all[i], &properties, &subgroup, &max_allocation) && properties.device_type == kinds[k])
                devices[count++] = all[i];
    return count;
}

static int fg__vk_probe(void) {
    fg__vk_loader loader;
    void *devices[FG__VK_MAX_DEVICES];
    int n;
    if (fg__vk_loader_open(&loader, NULL) != FG_OK) return 0;
    n = fg__vk_devices(&loader, devices);
    fg__vk_loader_close(&loader);
    return n;
}

/* The device whose name it is, or that has it in its name; NULL: there is none. */
static void *fg__vk_find_named(fg__vk_device *d, void *const *devices, int n, const char *wanted) {
    void *found = NULL;
    int i, match, best = 0;
    for (i = 0; i < n; i++) {
        fg__vk_describe(&d->loader.api, devices[i], &d->properties, &d->subgroup, &d->max_allocation);
        if ((match = fg__name_match(d->properties.name, wanted)) > best) best = match, found = devices[i];
    }
    return found;
}

/* The device of a number or a part of a name; numbers that no list reaches are of names ("4090"). */
static fg_result fg__vk_choose(fg__vk_device *d, const char *wanted) {
    void *devices[FG__VK_MAX_DEVICES];
    char *end = NULL;
    long number = wanted && *wanted ? strtol(wanted, &end, 10) : 0;
    int n = fg__vk_devices(&d->loader, devices);
    if (n == 0) return fg__fail(FG_ERROR_NOT_FOUND, "no device has Vulkan 1.2 with subgroup arithmetic");
    if (!wanted || !*wanted) d->physical = devices[0];
    else if (*end || number >= FG__VK_MAX_DEVICES) d->physical = fg__vk_find_named(d, devices, n, wanted);
    else if (number >= 0 && number < n) d->physical = devices[number];
    else return fg__fail(FG_ERROR_NOT_FOUND, "there is no Vulkan device %ld, only %d", number, n);
    if (!d->physical) return fg__fail(FG_ERROR_NOT_FOUND, "no Vulkan device has '%s' in its name", wanted);
    fg__vk_describe(&d->loader.api, d->physical, &d->properties, &d->subgroup, &d->max_allocation);
    if (d->properties.device_type == FG__VK_CPU)
        fg__log(&d->env, FG_LOG_WARNING, "%s is a software device: the CPU backend is faster", d->properties.name);
    return FG_OK;
}

/* Whether the device has an extension. */
static fg_result fg__vk_has_extension(fg__vk_device *d, const char *name, bool *found) {
    fg__vk_extension *list;
    uint32_t n = 0, i;
    *found = false;
    if (d->loader.api.EnumerateDeviceExtensionProperties(d->physical, NULL, &n, NULL) < 0 || n == 0) return FG_OK;
    list = (fg__vk_extension *)fg__calloc(&d->env, n, sizeof(fg__vk_extension));
    if (!list) return FG_ERROR_OUT_OF_MEMORY;
    if (d->loader.api.EnumerateDeviceExtensionProperties(d->physical, NULL, &n, list) >= 0)
        for (i = 0; i < n && !*found; i++) *found = strcmp(list[i].name, name) == 0;
    fg__free(&d->env, list);
    return FG_OK;
}

/* ---- Rungs: what a device may have beyond the floor. ---- */

static const struct {
    uint32_t bit;
    const char *name, *extensions[2];
} fg__vk_rungs[] = {
    {FG_VULKAN_PUSH, "push descriptors", {"VK_KHR_push_descriptor", NULL}},
    {FG_VULKAN_DOT, "integer dot products", {"VK_KHR_shader_integer_dot_product", NULL}},
    {FG_VULKAN_HALF, "half floats", {NULL, NULL}},
    {FG_VULKAN_MATRIX, "cooperative matrices", {"VK_KHR_cooperative_matrix", "VK_EXT_subgroup_size_control"}},
};

/* The structures by which a device is asked for its features, and told which are wanted. */
typedef struct fg__vk_extras {
    fg__vk_half_features half;
    fg__vk_storage_features storage;
    fg__vk_timeline_features timeline;
    fg__vk_dot_features dot;
    fg__vk_model_features model;
    fg__vk_size_features size;
    fg__vk_matrix_features matrix;
} fg__vk_extras;

static void *fg__vk_link_extras(fg__vk_extras *extras, uint32_t rungs) {
    memset(extras, 0, sizeof(*extras));
    extras->half.type = FG__VK_HALF_FEATURES;
    extras->half.next = &extras->storage;
    extras->storage.type = FG__VK_STORAGE_FEATURES;
    extras->storage.next = &extras->timeline;
    extras->timeline.type = FG__VK_TIMELINE_FEATURES;
    extras->timeline.next = &extras->model;
    extras->model.type = FG__VK_MODEL_FEATURES;
    extras->dot.type = FG__VK_DOT_FEATURES;
    extras->size.type = FG__VK_SIZE_FEATURES;
    extras->size.next = &extras->matrix;
    extras->matrix.type = FG__VK_MATRIX_FEATURES;
    if (rungs & FG_VULKAN_DOT) extras->model.next = &extras->dot;
    if (rungs & FG_VULKAN_MATRIX) *(rungs & FG_VULKAN_DOT ? &extras->dot.next : &extras->model.next) = &extras->size;
    return &extras->half;
}

/* Asks the device for properties of a further kind. */
static void fg__vk_ask(const fg__vk_device *d, void *kind) {
    fg__vk_properties properties;
    memset(&properties, 0, sizeof(properties));
    properties.type = FG__VK_PROPERTIES_2;
    properties.next = kind;
    d->loader.api.GetPhysicalDeviceProperties2(d->physical, &properties);
}

/* Which products of bytes the device has itself. */
static void fg__vk_ask_dot(const fg__vk_device *d, fg__vk_dot_properties *dot) {
    memset(dot, 0, sizeof(*dot));
    dot->type = FG__VK_DOT_PROPERTIES;
    fg__vk_ask(d, dot);
}

/* Whether the device multiplies bytes itself. */
static bool fg__vk_fast_dot(const fg__vk_device *d) {
    fg__vk_dot_properties dot;
    fg__vk_ask_dot(d, &dot);
    return dot.packed_signed != 0;
}

/* Finds matrices of halves with float sums that divide the kernel's tiles (64 x 32 x 32): the largest of at most 4096 products. */
static bool fg__vk_find_shape(fg__vk_device *d) {
    int32_t(FG__VK_CALL * get)(void *, uint32_t *, fg__vk_matrix_shape *);
    fg_vulkan_fn function = fg__vk_find(&d->loader, "vkGetPhysicalDeviceCooperativeMatrixPropertiesKHR");
    fg__vk_matrix_shape shapes[64];
    uint32_t n = 64, i, best = 0;
    if (!function) return false;
    memcpy(&get, &function, sizeof(get));
    memset(shapes, 0, sizeof(shapes));
    for (i = 0; i < n; i++) shapes[i].type = FG__VK_MATRIX_SHAPE;
    if (get(d->physical, &n, shapes) < 0) return false;
    for (i = 0; i < n && i < 64; i++) {
        const fg__vk_matrix_shape *s = &shapes[i];
        if (s->a != FG__VK_HALF_TYPE || s->b != FG__VK_HALF_TYPE || s->c != FG__VK_FLOAT_TYPE || s->result != FG__VK_FLOAT_TYPE ||
            s->scope != FG__VK_SUBGROUP_SCOPE || s->m < 4 || s->n < 4 || s->k < 4 || 64 % s->m || 32 % s->n || 32 % s->k)
            continue;
        if (s->m * s->n * s->k <= best || s->m * s->n * s->k > 4096) continue;
        best = s->m * s->n * s->k;
        d->shape = *s;
    }
    return best > 0;
}

/* Finds how many lanes the subgroups of kernels with matrices have, which must be full: the fewest that the device lets them have, which
   are as many as its matrix units take at once. Intel's usual 32 lanes are four times that (from Xe2 on twice), and run out of registers. */
static bool fg__vk_find_lanes(fg__vk_device *d) {
    fg__vk_size_properties size;
    uint32_t lanes;
    memset(&size, 0, sizeof(size));
    size.type = FG__VK_SIZE_PROPERTIES;
    fg__vk_ask(d, &size);
    d->asks_lanes = size.min != size.max; /* where there is one size alone drivers need not let it be asked for */
    if (d->asks_lanes && !(size.stages & FG__VK_COMPUTE_STAGE)) return false;
    for (lanes = FG__MAX(size.min, 8); lanes <= size.max && lanes <= 128 && 128 % lanes == 0; lanes *= 2)
        if (128 / lanes <= size.most_subgroups) {
            d->matrix_lanes = (int)lanes;
            d->matrix_subgroups = (int)FG__MIN(size.most_subgroups, 1024u); /* RADV has no limit: all bits */
            return true;
        }
    return false;
}

/* Of a workgroup that has one dimension. */
static int fg__vk_most_invocations(const fg__vk_device *d) {
    return (int)FG__MIN(FG__MIN(d->properties.limits.max_invocations, d->properties.limits.max_group_size[0]), 1024);
}

/* The tiles of gemm_matrix.comp, TILE_N << 16 | TILE_M << 8, and its invocations, as the device's limits allow; 0: none goes. Small where rows alone
   pay for a tile, too. */
static int fg__vk_matrix_tile(const fg__vk_device *d, int *threads) {
    static const int tiles[] = {128 << 16 | 128 << 8, 128 << 16 | 64 << 8, 64 << 16 | 32 << 8, 64 << 16 | 32 << 8}, invocations[] = {256, 128, 128, 64};
    int lanes = d->matrix_lanes, i;
    for (i = d->options.invariant ? 2 : 0; i < 4; i++) {
        int tall = tiles[i] >> 16, step = 32 * FG__MAX(1, invocations[i] / tall);
        uint32_t sums = (uint32_t)(invocations[i] / lanes) * d->shape.m * d->shape.n * 4;
        uint32_t bytes = (uint32_t)((tall + (tiles[i] >> 8 & 255)) * (step + 8) * 2) + sums;
        if (invocations[i] > fg__vk_most_invocations(d) || invocations[i] < lanes || invocations[i] / lanes > d->matrix_subgroups) continue;
        if (bytes > d->properties.limits.shared_bytes) continue;
        if (threads) *threads = invocations[i];
        return tiles[i];
    }
    return 0;
}

/* Queues for copies beside passes: of a family that does nothing but copy, else more of the family of passes. */
static void fg__vk_find_queues(fg__vk_device *d) {
    fg__vk_queue_properties families[16];
    uint32_t n = 16, i;
    d->loader.api.GetPhysicalDeviceQueueFamilyProperties(d->physical, &n, families);
    for (i = 0; i < n; i++) {
        if (families[i].count < 1 || !(families[i].flags & FG__VK_TRANSFER_QUEUE)) continue;
        if (families[i].flags & ~(uint32_t)(FG__VK_TRANSFER_QUEUE | FG__VK_SPARSE_QUEUE | FG__VK_PROTECTED_QUEUE)) continue;
        d->copy_family = i;
        d->n_copy_queues = (int)FG__MIN(families[i].count, 2u);
        return;
    }
    d->n_copy_queues = (int)FG__MIN(families[d->family].count - 1, 2u);
}

/* Of Intel's GPUs those of Xe2 and later, whose smallest subgroups have 16 lanes, gain by matrices. On Arc A770 others lost by them
   (llama.cpp's pull requests 14001 and 24404), and for GPUs without matrix units Mesa makes them of ordinary products. AMD's own drivers
   make them so for theirs: the first with such units, RDNA3, are the first that multiply bytes of which one alone has a sign. */
static bool fg__vk_fast_matrix(const fg__vk_device *d) {
    fg__vk_driver_properties own;
    fg__vk_dot_properties dot;
    if (d->properties.vendor == FG__VK_INTEL) return d->matrix_lanes >= 16;
    memset(&own, 0, sizeof(own));
    own.type = FG__VK_DRIVER_PROPERTIES;
    fg__vk_ask(d, &own);
    if (own.driver != FG__VK_AMD_PROPRIETARY && own.driver != FG__VK_AMD_OPEN) return true;
    fg__vk_ask_dot(d, &dot);
    return dot.packed_mixed != 0;
}

/* Which rungs to try: those that the device has, and not as an emulation unless forced. */
static fg_result fg__vk_find_rungs(fg__vk_device *d) {
    fg__vk_features features;
    fg__vk_extras extras;
    uint32_t has = 0, fast;
    size_t i, j;
    for (i = 0; i < FG__COUNT(fg__vk_rungs); i++) {
        bool found = true;
        for (j = 0; j < 2 && found && fg__vk_rungs[i].extensions[j]; j++) {
            fg_result r = fg__vk_has_extension(d, fg__vk_rungs[i].extensions[j], &found);
            if (r != FG_OK) return r;
        }
        if (found) has |= fg__vk_rungs[i].bit;
    }
    has &= ~d->options.off; /* not even asked about: a driver may crash over it (AMDVLK's issue 422) */
    memset(&features, 0, sizeof(features));
    features.type = FG__VK_FEATURES_2;
    features.next = fg__vk_link_extras(&extras, has);
    d->loader.api.GetPhysicalDeviceFeatures2(d->physical, &features);
    if (!extras.half.half || !extras.storage.storage) has &= ~(uint32_t)(FG_VULKAN_HALF | FG_VULKAN_MATRIX);
    if (!extras.matrix.matrix || !extras.model.model || !extras.size.control || !extras.size.full)
        has &= ~(uint32_t)FG_VULKAN_MATRIX;
    if ((has & FG_VULKAN_MATRIX) && (!fg__vk_find_shape(d) || !fg__vk_find_lanes(d) || !fg__vk_matrix_tile(d, NULL)))
        has &= ~(uint32_t)FG_VULKAN_MATRIX;
    if (!extras.dot.dot) has &= ~(uint32_t)FG_VULKAN_DOT;
    fast = d->properties.device_type == FG__VK_CPU ? 0 : has;
    if ((has & FG_VULKAN_DOT) && !fg__vk_fast_dot(d)) fast &= ~(uint32_t)FG_VULKAN_DOT;
    if ((has & FG_VULKAN_MATRIX) && !fg__vk_fast_matrix(d)) fast &= ~(uint32_t)FG_VULKAN_MATRIX;
    d->rungs = (fast | d->options.force) & has;
    if (extras.timeline.timeline) fg__vk_find_queues(d);
    return FG_OK;
}

/* With one queue for copies those to the host have it, which wait for passes. */
static void fg__vk_get_queues(fg__vk_device *d) {
    int i, first = d->copy_family == d->family ? 1 : 0;
    d->api.GetDeviceQueue(d->handle, d->family, 0, &d->queues[FG__VK_PASSES]);
    for (i = 0; i < 2; i++) {
        d->queues[FG__VK_DOWN + i] = d->queues[FG__VK_PASSES];
        if (i < d->n_copy_queues) d->api.GetDeviceQueue(d->handle, d->copy_family, (uint32_t)(first + i), &d->queues[FG__VK_DOWN + i]);
    }
}

static fg_result fg__vk_make_device(fg__vk_device *d) {
    static const float priorities[FG__VK_QUEUES] = {1.0f, 1.0f, 1.0f};
    const char *extensions[2 + 2 * FG__COUNT(fg__vk_rungs)];
    fg__vk_extras extras;
    fg__vk_queue_info queues[2];
    fg__vk_device_info info;
    fg_result r;
    bool portable;
    int i, j, n = (int)FG__COUNT(fg__vk_names);
    if ((r = fg__vk_has_extension(d, "VK_EXT_memory_budget", &d->has_budget)) != FG_OK) return r;
    if ((r = fg__vk_has_extension(d, "VK_KHR_portability_subset", &portable)) != FG_OK) return r;
    memset(queues, 0, sizeof(queues));
    queues[0].type = queues[1].type = FG__VK_QUEUE_INFO;
    queues[0].family = d->family;
    queues[1].family = d->copy_family;
    queues[0].count = d->copy_family == d->family ? 1 + (uint32_t)d->n_copy_queues : 1;
    queues[1].count = (uint32_t)d->n_copy_queues;
    queues[0].priorities = queues[1].priorities = priorities;
    memset(&info, 0, sizeof(info));
    info.type = FG__VK_DEVICE_INFO;
    info.n_queues = d->copy_family == d->family ? 1 : 2;
    info.queues = queues;
    info.extensions = extensions;
    if (d->has_budget) extensions[info.n_extensions++] = "VK_EXT_memory_budget";
    if (portable) extensions[info.n_extensions++] = "VK_KHR_portability_subset"; /* which then must be asked for */
    for (i = 0; i < (int)FG__COUNT(fg__vk_rungs); i++)
        for (j = 0; j < 2 && (d->rungs & fg__vk_rungs[i].bit) && fg__vk_rungs[i].extensions[j]; j++)
            extensions[info.n_extensions++] = fg__vk_rungs[i].extensions[j];
    info.next = fg__vk_link_extras(&extras, d->rungs);
    extras.half.half = extras.storage.storage = (d->rungs & (FG_VULKAN_HALF | FG_VULKAN_MATRIX)) != 0;
    extras.model.model = extras.size.control = extras.size.full = extras.matrix.matrix = (d->rungs & FG_VULKAN_MATRIX) != 0;
    extras.dot.dot = (d->rungs & FG_VULKAN_DOT) != 0;
    extras.timeline.timeline = d->n_copy_queues > 0;
    d->api = d->loader.api;
    if ((r = fg__vk_check(d, d->api.CreateDevice(d->physical, &info, NULL, &d->handle), "vkCreateDevice")) != FG_OK)
        return r;
    for (i = FG__VK_INSTANCE_FUNCTIONS; i < n; i++) {
        fg_vulkan_fn function = d->api.GetDeviceProcAddr(d->handle, fg__vk_names[i]);
        if (!function && i < n - FG__VK_EXTENSION_FUNCTIONS)
            return fg__fail(FG_ERROR_DEVICE, "the Vulkan driver has no %s", fg__vk_names[i]);
        fg__vk_set_function(&d->api, i, function);
    }
    if (!d->api.CmdPushDescriptorSetKHR) d->rungs &= ~(uint32_t)FG_VULKAN_PUSH;
    fg__vk_get_queues(d);
    return FG_OK;
}

/* ================================================================================================
   Memory
   ================================================================================================ */

static fg_result fg__vk_buffer(fg__vk_device *d, uint64_t bytes, uint64_t *buffer) {
    uint32_t families[2];
    fg__vk_buffer_info info;
    memset(&info, 0, sizeof(info));
    info.type = FG__VK_BUFFER_INFO;
    info.bytes = bytes;
    info.usage = FG__VK_BUFFER_USAGE;
    families[0] = d->family;
    families[1] = d->copy_family;
    if (d->copy_family != d->family) {
        info.sharing = FG__VK_SHARED_BY_FAMILIES;
        info.n_families = 2;
        info.families = families;
    }
    return fg__vk_check(d, d->api.CreateBuffer(d->handle, &info, NULL, buffer), "a buffer");
}

static uint64_t fg__vk_heap_bytes(const fg__vk_device *d, int type) { return d->memory.heaps[d->memory.types[type].heap & 15].bytes; }

/* Of the memory types among `allowed` that have all of the needed flags those with the most of the wanted ones; of these the first with the
   largest heap: some systems cut a GPU's memory into several. */
static int fg__vk_memory_type(const fg__vk_device *d, uint32_t allowed, uint32_t needed, uint32_t wanted) {
    int best = -1, best_score = -1, i;
    for (i = 0; i < (int)d->memory.n_types && i < 32; i++) {
        uint32_t flags = d->memory.types[i].flags, extra = flags & wanted;
        int score = 0;
        if (!(allowed >> i & 1) || (flags & needed) != needed || (flags & ~15u)) continue; /* protected, lazily allocated and the like: not for us */
        for (; extra; extra &= extra - 1) score++;
        if (score < best_score || (score == best_score && fg__vk_heap_bytes(d, i) <= fg__vk_heap_bytes(d, best))) continue;
        best = i;
        best_score = score;
    }
    return best;
}

/* Which types buffers may have is the same for all of ours, and need not be the first: Mesa's of Intel's Xe2 is for compressed images. */
static fg_result fg__vk_find_memory(fg__vk_device *d) {
    uint32_t host = FG__VK_HOST_VISIBLE | FG__VK_HOST_COHERENT;
    fg__vk_requirements needs;
    uint64_t buffer;
    fg_result r;
    if ((r = fg__vk_buffer(d, FG__VK_ALIGN, &buffer)) != FG_OK) return r;
    d->api.GetBufferMemoryRequirements(d->handle, buffer, &needs);
    d->api.DestroyBuffer(d->handle, buffer, NULL);
    d->memory.type = FG__VK_MEMORY_PROPERTIES_2;
    d->memory.next = NULL;
    d->loader.api.GetPhysicalDeviceMemoryProperties2(d->physical, &d->memory);
    d->memory_types[FG__VK_ON_DEVICE] = fg__vk_memory_type(d, needs.types, FG__VK_DEVICE_LOCAL, 0);
    d->memory_types[FG__VK_TO_DEVICE] = fg__vk_memory_type(d, needs.types, host, FG__VK_DEVICE_LOCAL);
    d->memory_types[FG__VK_FROM_DEVICE] = fg__vk_memory_type(d, needs.types, host, FG__VK_HOST_CACHED);
    if (d->memory_types[FG__VK_ON_DEVICE] < 0 || d->memory_types[FG__VK_TO_DEVICE] < 0)
        return fg__fail(FG_ERROR_UNSUPPORTED, "%s has no memory that both sides can see", d->properties.name);
    return FG_OK;
}

/* Bytes that we may still take of the heap of a type of memory; UINT64_MAX: unknown. */
static uint64_t fg__vk_room(fg__vk_device *d, int type) {
    fg__vk_budget_properties budget;
    fg__vk_memory_properties memory;
    uint32_t heap = d->memory.types[type].heap & 15;
    if (!d->has_budget) return UINT64_MAX;
    memset(&budget, 0, sizeof(budget));
    memset(&memory, 0, sizeof(memory));
    memory.type = FG__VK_MEMORY_PROPERTIES_2;
    memory.next = &budget;
    budget.type = FG__VK_BUDGET_PROPERTIES;
    d->loader.api.GetPhysicalDeviceMemoryProperties2(d->physical, &memory);
    return budget.budget[heap] > budget.usage[heap] ? budget.budget[heap] - budget.usage[heap] : 0;
}

static void fg__vk_chunk_free(fg__vk_device *d, fg__vk_chunk *chunk) {
    fg__vk_chunk **at = &d->chunks;
    while (*at && *at != chunk) at = &(*at)->next;
    if (*at) *at = chunk->next;
    if (chunk->buffer) d->api.DestroyBuffer(d->handle, chunk->buffer, NULL);
    if (chunk->memory) d->api.FreeMemory(d->handle, chunk->memory, NULL);
    fg__free(&d->env, chunk);
}

static fg_result fg__vk_allocate(fg__vk_device *d, int type, uint64_t bytes, uint64_t *memory) {
    fg__vk_allocate_info allocate;
    if (bytes > fg__vk_room(d, type))
        return fg__fail(FG_ERROR_OUT_OF_MEMORY, "%s has no room for another %.1f MiB", d->properties.name, (double)bytes / 1048576.0);
    memset(&allocate, 0, sizeof(allocate));
    allocate.type = FG__VK_ALLOCATE_INFO;
    allocate.bytes = bytes;
    allocate.memory_type = (uint32_t)type;
    return fg__vk_check(d, d->api.AllocateMemory(d->handle, &allocate, NULL, memory), "device memory");
}

/* A GPU of a processor has the same memory behind all heaps, of which the one that is called its own may be small: when that
   is full the next one serves. So does the host's memory for what it writes, where the part of a card's that it sees is full. */
static fg_result fg__vk_chunk_memory(fg__vk_device *d, fg__vk_chunk *chunk, const fg__vk_requirements *needs) {
    bool others = chunk->kind == FG__VK_TO_DEVICE || (chunk->kind == FG__VK_ON_DEVICE && d->properties.device_type == 1);
    uint32_t must = chunk->kind == FG__VK_TO_DEVICE ? FG__VK_HOST_VISIBLE | FG__VK_HOST_COHERENT : 0;
    int type = d->memory_types[chunk->kind], i;
    uint32_t allowed = needs->types;
    fg_result r;
    for (;;) {
        uint32_t heap = d->memory.types[type].heap;
        r = fg__vk_allocate(d, type, needs->bytes, &chunk->memory);
        if (r != FG_ERROR_OUT_OF_MEMORY || !others) return r;
        for (i = 0; i < (int)d->memory.n_types && i < 32; i++)
            if (d->memory.types[i].heap == heap) allowed &= ~(1u << i);
        type = fg__vk_memory_type(d, allowed, must, FG__VK_DEVICE_LOCAL);
        if (type < 0) return r;
    }
}

static fg_result fg__vk_chunk_fill(fg__vk_device *d, fg__vk_chunk *chunk) {
    fg__vk_requirements needs;
    void *mapped = NULL;
    fg_result r;
    if ((r = fg__vk_buffer(d, chunk->bytes, &chunk->buffer)) != FG_OK) return r;
    d->api.GetBufferMemoryRequirements(d->handle, chunk->buffer, &needs);
    if ((r = fg__vk_chunk_memory(d, chunk, &needs)) != FG_OK) return r;
    r = fg__vk_check(d, d->api.BindBufferMemory(d->handle, chunk->buffer, chunk->memory, 0), "a buffer's memory");
    if (r != FG_OK || chunk->kind == FG__VK_ON_DEVICE) return r;
    r = fg__vk_check(d, d->api.MapMemory(d->handle, chunk->memory, 0, UINT64_MAX, 0, &mapped), "mapping memory");
    chunk->mapped = (char *)mapped;
    return r;
}

static fg_result fg__vk_chunk_new(fg__vk_device *d, int kind, size_t bytes, fg__vk_chunk **out) {
    fg__vk_chunk *chunk;
    fg_result r;
    if (bytes > d->max_allocation)
        return fg__fail(FG_ERROR_UNSUPPORTED, "%s allocates no more than %llu MiB at once, %zu are needed",
                        d->properties.name, (unsigned long long)(d->max_allocation >> 20), bytes >> 20);
    chunk = (fg__vk_chunk *)fg__calloc(&d->env, 1, sizeof(fg__vk_chunk));
    if (!chunk) return FG_ERROR_OUT_OF_MEMORY;
    chunk->kind = kind;
    chunk->bytes = bytes;
    chunk->next = d->chunks;
    d->chunks = chunk;
    if ((r = fg__vk_chunk_fill(d, chunk)) == FG_OK) *out = chunk;
    else fg__vk_chunk_free(d, chunk);
    return r;
}

/* Takes `bytes` of memory of a kind: of a chunk that is shared when they are few, else of one of their own. */
static fg_result fg__vk_take(fg__vk_device *d, int kind, size_t bytes, fg__vk_range *range) {
    fg__vk_chunk *chunk;
    fg_result r;
    size_t needed = fg__round_up(FG__MAX(bytes, 4), FG__VK_ALIGN);
    range->chunk = NULL;
    for (chunk = d->chunks; chunk; chunk = chunk->next)
        if (chunk->kind == kind && chunk->bytes - chunk->used >= needed) break;
    if (!chunk) {
        size_t size = kind == FG__VK_ON_DEVICE && needed < FG__VK_CHUNK / 4 ? (size_t)FG__VK_CHUNK : needed;
        if ((r = fg__vk_chunk_new(d, kind, size, &chunk)) != FG_OK) return r;
    }
    range->chunk = chunk;
    range->offset = chunk->used;
    range->bytes = needed;
    chunk->used += needed;
    chunk->n_ranges++;
    return FG_OK;
}

static void fg__vk_give(fg__vk_device *d, fg__vk_range *range) {
    fg__vk_chunk *chunk = range->chunk;
    range->chunk = NULL;
    if (!chunk) return;
    if (range->offset + range->bytes == chunk->used) chunk->used = range->offset; /* the last one taken */
    if (--chunk->n_ranges == 0) fg__vk_chunk_free(d, chunk);
}

static fg_result fg__vk_begin(fg__vk_device *d, void *commands, uint32_t flags) {
    fg__vk_begin_info info;
    memset(&info, 0, sizeof(info));
    info.type = FG__VK_BEGIN_INFO;
    info.flags = flags;
    return fg__vk_check(d, d->api.BeginCommandBuffer(commands, &info), "recording commands");
}

static void fg__vk_barrier(fg__vk_device *d, void *commands, uint32_t from_stage, uint32_t from, uint32_t to_stage,
                           uint32_t to) {
    fg__vk_barrier_info info;
    memset(&info, 0, sizeof(info));
    info.type = FG__VK_BARRIER_INFO;
    info.from = from;
    info.to = to;
    d->api.CmdPipelineBarrier(commands, from_stage, to_stage, 0, 1, &info, 0, NULL, 0, NULL);
}

/* ---- Work: passes and copies. On the queue of passes each begins with a barrier, behind what was submitted before. ---- */

static fg_result fg__vk_work_make(fg__vk_device *d, fg__vk_work *work, int queue) {
    fg__vk_command_info info;
    fg__vk_fence_info fence;
    fg_result r;
    memset(&info, 0, sizeof(info));
    info.type = FG__VK_COMMAND_INFO;
    work->queue = queue;
    work->pool = d->queues[queue] == d->queues[FG__VK_PASSES] ? d->command_pool : d->copy_pool;
    info.pool = work->pool;
    info.count = 1;
    r = fg__vk_check(d, d->api.AllocateCommandBuffers(d->handle, &info, &work->commands), "a command buffer");
    if (r != FG_OK) return r;
    memset(&fence, 0, sizeof(fence));
    fence.type = FG__VK_FENCE_INFO;
    return fg__vk_check(d, d->api.CreateFence(d->handle, &fence, NULL, &work->fence), "a fence");
}

/* Of work that has ended, or was never begun. */
static void fg__vk_work_drop(fg__vk_device *d, fg__vk_work *work) {
    if (work->fence) d->api.DestroyFence(d->handle, work->fence, NULL);
    if (work->commands) d->api.FreeCommandBuffers(d->handle, work->pool, 1, &work->commands);
    memset(work, 0, sizeof(*work));
}

static fg_result fg__vk_work_wait(fg__vk_device *d, fg__vk_work *work) {
    fg_result r;
    if (!work->busy) return FG_OK;
    r = fg__vk_check(d, d->api.WaitForFences(d->handle, 1, &work->fence, 1, UINT64_MAX), "waiting for the device");
    if (r != FG_OK && !d->lost) (void)d->api.DeviceWaitIdle(d->handle); /* a driver without memory to wait with goes on with the work */
    work->busy = r != FG_OK && !d->lost;
    if (r != FG_OK) return r;
    return fg__vk_check(d, d->api.ResetFences(d->handle, 1, &work->fence), "resetting a fence");
}

/* Records anew. */
static fg_result fg__vk_work_begin(fg__vk_device *d, fg__vk_work *work) {
    fg_result r = fg__vk_work_wait(d, work);
    return r == FG_OK ? fg__vk_begin(d, work->commands, 1 /* once */) : r;
}

/* Submits command buffers in their order, behind a value of the line of another queue (0: none). When they are the last of `work`, its fence
   tells their end. */
static fg_result fg__vk_work_start(fg__vk_device *d, fg__vk_work *work, void *const *commands, uint32_t n, int other, uint64_t after, bool last) {
    uint32_t stages = work->pool == d->copy_pool ? FG__VK_AT_TRANSFER : FG__VK_AT_COMPUTE | FG__VK_AT_TRANSFER;
    fg__vk_line *line = &d->lines[work->queue];
    uint64_t next = line->value + 1;
    fg__vk_timeline_info times;
    fg__vk_submit_info info;
    fg_result r;
    memset(&info, 0, sizeof(info));
    memset(&times, 0, sizeof(times));
    info.type = FG__VK_SUBMIT_INFO;
    info.n_commands = n;
    info.commands = commands;
    if (line->semaphore) {
        times.type = FG__VK_TIMELINE_INFO;
        info.next = &times;
        info.n_signals = times.n_signals = last ? 1 : 0;
        info.signals = &line->semaphore;
        times.signals = &next;
        info.n_waits = times.n_waits = after && d->queues[other] != d->queues[work->queue] ? 1 : 0;
        info.waits = &d->lines[other].semaphore;
        info.wait_stages = &stages;
        times.waits = &after;
    }
    if (d->lost) return fg__vk_check(d, FG__VK_DEVICE_LOST, d->properties.name);
    r = fg__vk_check(d, d->api.QueueSubmit(d->queues[work->queue], 1, &info, last ? work->fence : 0), "starting work on the device");
    work->busy = last && r == FG_OK;
    if (work->busy) line->value = next;
    return r;
}

/* Ends recording and submits. */
static fg_result fg__vk_work_end(fg__vk_device *d, fg__vk_work *work) {
    fg_result r = fg__vk_check(d, d->api.EndCommandBuffer(work->commands), "recording commands");
    return r == FG_OK ? fg__vk_work_start(d, work, &work->commands, 1, FG__VK_PASSES, 0, true) : r;
}

/* Copies behind all that was submitted, which are recorded in between. */
static fg_result fg__vk_copies_begin(fg__vk_device *d) {
    fg_result r = fg__vk_work_begin(d, &d->copies);
    if (r == FG_OK)
        fg__vk_barrier(d, d->copies.commands, FG__VK_AT_COMPUTE | FG__VK_AT_TRANSFER, FG__VK_SHADER_WRITE | FG__VK_TRANSFER_WRITE,
                       FG__VK_AT_TRANSFER, FG__VK_TRANSFER_READ | FG__VK_TRANSFER_WRITE);
    return r;
}

/* Does them, and waits until they are done. */
static fg_result fg__vk_copies_end(fg__vk_device *d) {
    fg_result r;
    fg__vk_barrier(d, d->copies.commands, FG__VK_AT_TRANSFER, FG__VK_TRANSFER_WRITE, FG__VK_AT_COMPUTE | FG__VK_AT_TRANSFER | FG__VK_AT_HOST,
                   FG__VK_SHADER_READ | FG__VK_TRANSFER_READ | FG__VK_HOST_READ);
    if ((r = fg__vk_work_end(d, &d->copies)) != FG_OK) return r;
    return fg__vk_work_wait(d, &d->copies);
}

static fg_result fg__vk_copy_now(fg__vk_device *d, uint64_t from, uint64_t to, const fg__vk_copy *copy) {
    fg_result r = fg__vk_copies_begin(d);
    if (r != FG_OK) return r;
    d->api.CmdCopyBuffer(d->copies.commands, from, to, 1, copy);
    return fg__vk_copies_end(d);
}

/* ---- Copies, through the staging buffer; they wait until they are done. ---- */

/* What lies in the staging buffer, `bytes` (a multiple of 4) of it, to `offset` of a range. */
static fg_result fg__vk_stage(fg__vk_device *d, const fg__vk_range *range, size_t offset, size_t bytes) {
    fg__vk_copy copy;
    copy.from = d->staging.offset;
    copy.to = range->offset + offset;
    copy.bytes = bytes;
    return fg__vk_copy_now(d, d->staging.chunk->buffer, range->chunk->buffer, &copy);
}

static void *fg__vk_alloc(fg_device *handle, size_t bytes) {
    fg__vk_device *d = (fg__vk_device *)handle;
    fg__vk_range *range = (fg__vk_range *)fg__calloc(&d->env, 1, sizeof(fg__vk_range));
    if (range && fg__vk_take(d, FG__VK_ON_DEVICE, bytes, range) == FG_OK) return range;
    fg__free(&d->env, range);
    return NULL;
}

static void fg__vk_free(fg_device *handle, void *memory) {
    fg__vk_device *d = (fg__vk_device *)handle;
    if (!memory) return;
    fg__vk_give(d, (fg__vk_range *)memory);
    fg__free(&d->env, memory);
}

static fg_result fg__vk_write(fg_device *handle, void *memory, size_t offset, const void *data, size_t bytes) {
    fg__vk_device *d = (fg__vk_device *)handle;
    const fg__vk_range *range = (const fg__vk_range *)memory;
    fg_result r = FG_OK;
    if (offset > range->bytes || bytes > range->bytes - offset)
        return fg__fail(FG_ERROR_INVALID_ARGUMENT, "a write past the end of device memory");
    while (bytes > 0 && r == FG_OK) {
        size_t n = FG__MIN(bytes, (size_t)FG__VK_STAGING);
        memcpy(d->staging.chunk->mapped + d->staging.offset, data, n);
        r = fg__vk_stage(d, range, offset, n);
        data = (const char *)data + n;
        offset += n;
        bytes -= n;
    }
    return r;
}

static fg_result fg__vk_read(fg_device *handle, const void *memory, size_t offset, void *data, size_t bytes) {
    fg__vk_device *d = (fg__vk_device *)handle;
    const fg__vk_range *range = (const fg__vk_range *)memory;
    if (offset > range->bytes || bytes > range->bytes - offset)
        return fg__fail(FG_ERROR_INVALID_ARGUMENT, "a read past the end of device memory");
    while (bytes > 0) {
        size_t n = FG__MIN(bytes, (size_t)FG__VK_STAGING);
        fg__vk_copy copy;
        fg_result r;
        copy.from = range->offset + offset;
        copy.to = d->staging.offset;
        copy.bytes = n;
        if ((r = fg__vk_copy_now(d, range->chunk->buffer, d->staging.chunk->buffer, &copy)) != FG_OK) return r;
        memcpy(data, d->staging.chunk->mapped + d->staging.offset, n);
        data = (char *)data + n;
        offset += n;
        bytes -= n;
    }
    return FG_OK;
}

/* ================================================================================================
   What a device holds, and closing
   ================================================================================================ */

static fg_result fg__vk_make_layouts(fg__vk_device *d) {
    fg__vk_set_binding bindings[FG__VK_BINDINGS];
    fg__vk_set_layout_info set;
    fg__vk_pipeline_layout_info info;
    fg__vk_push_range push;
    fg_result r;
    int i;
    memset(bindings, 0, sizeof(bindings));
    for (i = 0; i < FG__VK_BINDINGS; i++) {
        bindings[i].binding = (uint32_t)i;
        bindings[i].type = FG__VK_STORAGE_BUFFER;
        bindings[i].count = 1;
        bindings[i].stages = FG__VK_COMPUTE_STAGE;
    }
    memset(&set, 0, sizeof(set));
    set.type = FG__VK_SET_LAYOUT_INFO;
    set.flags = d->rungs & FG_VULKAN_PUSH ? 1 : 0;
    set.n_bindings = FG__VK_BINDINGS;
    set.bindings = bindings;
    r = fg__vk_check(d, d->api.CreateDescriptorSetLayout(d->handle, &set, NULL, &d->set_layout), "a descriptor layout");
    if (r != FG_OK) return r;
    push.stages = FG__VK_COMPUTE_STAGE;
    push.offset = 0;
    push.bytes = 128;
    memset(&info, 0, sizeof(info));
    info.type = FG__VK_PIPELINE_LAYOUT_INFO;
    info.n_sets = 1;
    info.sets = &d->set_layout;
    info.n_ranges = 1;
    info.ranges = &push;
    return fg__vk_check(d, d->api.CreatePipelineLayout(d->handle, &info, NULL, &d->pipeline_layout), "a pipeline layout");
}

static void fg__vk_drop_layouts(fg__vk_device *d) {
    if (d->pipeline_layout) d->api.DestroyPipelineLayout(d->handle, d->pipeline_layout, NULL);
    if (d->set_layout) d->api.DestroyDescriptorSetLayout(d->handle, d->set_layout, NULL);
    d->pipeline_layout = d->set_layout = 0;
}

/* Destroys all but the first n. */
static void fg__vk_keep_pipelines(fg__vk_device *d, size_t n) {
    for (; d->n_pipelines > n; d->n_pipelines--)
        if (d->pipelines[d->n_pipelines - 1].handle) d->api.DestroyPipeline(d->handle, d->pipelines[d->n_pipelines - 1].handle, NULL);
}

/* Whether data are a cache of this device and driver: length of the header 32, version 1, vendor, device, driver's id. */
static bool fg__vk_is_cache(const fg__vk_device *d, const uint8_t *data, uint64_t bytes) {
    return bytes >= 32 && fg__load_u32(data) == 32 && fg__load_u32(data + 4) == 1 && fg__load_u32(data + 8) == d->properties.vendor &&
           fg__load_u32(data + 12) == d->properties.device && memcmp(data + 16, d->properties.cache_uuid, 16) == 0;
}

/* The cache of compiled kernels, filled from the file where there is one. What drivers check of their data differs, so they get
   only what was written whole: behind it are 8 bytes that its others hash to. */
static fg_result fg__vk_make_cache(fg__vk_device *d) {
    fg__vk_cache_info info;
    fg__file file;
    bool open;
    int32_t result;
    memset(&info, 0, sizeof(info));
    memset(&file, 0, sizeof(file));
    info.type = FG__VK_CACHE_INFO;
    open = d->options.cache_path && fg__file_open(&file, d->options.cache_path) == FG_OK;
    if (open && file.size > 8) {
        const uint8_t *data = (const uint8_t *)file.data;
        size_t bytes = (size_t)file.size - 8;
        const uint64_t hash = fg__hash_bytes(0, data, bytes);
        if (fg__vk_is_cache(d, data, bytes) && memcmp(&hash, data + bytes, 8) == 0) {
            info.bytes = bytes;
            info.data = data;
        }
    }
    result = d->api.CreatePipelineCache(d->handle, &info, NULL, &d->cache);
    if (open) fg__file_close(&file);
    if (result >= 0 || !info.bytes) return fg__vk_check(d, result, "a pipeline cache");
    info.bytes = 0;
    info.data = NULL;
    return fg__vk_check(d, d->api.CreatePipelineCache(d->handle, &info, NULL, &d->cache), "a pipeline cache");
}

/* Writes a file beside its place under a name of this device's own, then moves it there. */
static bool fg__vk_write_file(fg__vk_device *d, const char *path, const void *data, size_t bytes) {
    fg__text beside;
    FILE *file = NULL;
    bool good = false;
    memset(&beside, 0, sizeof(beside));
    beside.env = &d->env;
    fg__text_printf(&beside, "%s.%08x", path, (unsigned)((size_t)d ^ (size_t)(fg__now() * 1e6)));
    if (!beside.failed) {
#if FG__WINDOWS
        wchar_t from[1024], to[1024];
        if (!MultiByteToWideChar(CP_UTF8, 0, beside.data, -1, from, 1024) || !MultiByteToWideChar(CP_UTF8, 0, path, -1, to, 1024)) from[0] = 0;
        file = from[0] ? _wfopen(from, L"wb") : NULL;
        good = file && fwrite(data, 1, bytes, file) == bytes;
        if (file && fclose(file) != 0) good = false;
        good = good && MoveFileExW(from, to, MOVEFILE_REPLACE_EXISTING);
        if (file && !good) DeleteFileW(from);
#else
        file = fopen(beside.data, "wb");
        good = file && fwrite(data, 1, bytes, file) == bytes;
        if (file && fclose(file) != 0) good = false;
        good = good && rename(beside.data, path) == 0;
        if (file && !good) remove(beside.data);
#endif
    }
    fg__text_free(&beside);
    return good;
}

/* Keeps the cache; failing is no error, only a slower start next time. */
static void fg__vk_save_cache(fg__vk_device *d) {
    size_t bytes = 0;
    uint8_t *data;
    if (!d->options.cache_path || d->lost) return;
    if (d->api.GetPipelineCacheData(d->handle, d->cache, &bytes, NULL) < 0 || bytes == 0) return;
    data = (uint8_t *)fg__malloc(&d->env, bytes + 8, 1);
    if (data && d->api.GetPipelineCacheData(d->handle, d->cache, &bytes, data) == 0) {
        const uint64_t hash = fg__hash_bytes(0, data, bytes);
        memcpy(data + bytes, &hash, 8);
        if (!fg__vk_write_file(d, d->options.cache_path, data, bytes + 8))
            fg__log(&d->env, FG_LOG_WARNING, "compiled kernels could not be kept in %s", d->options.cache_path);
    }
    fg__free(&d->env, data);
}

static fg_result fg__vk_make_commands(fg__vk_device *d) {
    fg__vk_command_pool_info pool;
    fg_result r;
    memset(&pool, 0, sizeof(pool));
    pool.type = FG__VK_COMMAND_POOL_INFO;
    pool.flags = 2; /* buffers may be recorded again one by one */
    pool.family = d->family;
    r = fg__vk_check(d, d->api.CreateCommandPool(d->handle, &pool, NULL, &d->command_pool), "a command pool");
    if (r != FG_OK) return r;
    pool.family = d->copy_family;
    if (d->n_copy_queues > 0) r = fg__vk_check(d, d->api.CreateCommandPool(d->handle, &pool, NULL, &d->copy_pool), "a command pool");
    return r == FG_OK ? fg__vk_work_make(d, &d->copies, FG__VK_PASSES) : r;
}

/* The lines of queues, when the first copies beside passes come. */
static fg_result fg__vk_make_lines(fg__vk_device *d) {
    fg__vk_timeline_type_info type;
    fg__vk_semaphore_info info;
    fg_result r = FG_OK;
    int i;
    memset(&type, 0, sizeof(type));
    memset(&info, 0, sizeof(info));
    type.type = FG__VK_TIMELINE_TYPE_INFO;
    type.kind = FG__VK_TIMELINE;
    info.type = FG__VK_SEMAPHORE_INFO;
    info.next = &type;
    for (i = 0; i < FG__VK_QUEUES && d->n_copy_queues > 0 && r == FG_OK; i++)
        if (!d->lines[i].semaphore) r = fg__vk_check(d, d->api.CreateSemaphore(d->handle, &info, NULL, &d->lines[i].semaphore), "a semaphore");
    return r;
}

static void fg__vk_close(fg_device *handle) {
    fg__vk_device *d = (fg__vk_device *)handle;
    fg__env env = d->env;
    size_t i;
    if (d->handle) {
        fg__vk_api *api = &d->api;
        if (api->DeviceWaitIdle) (void)api->DeviceWaitIdle(d->handle);
        if (d->cache) fg__vk_save_cache(d);
        fg__vk_give(d, &d->staging);
        while (d->chunks) fg__vk_chunk_free(d, d->chunks);
        fg__vk_keep_pipelines(d, 0);
        for (i = 0; i < FG__VK_SHADERS; i++)
            if (d->shaders[i]) api->DestroyShaderModule(d->handle, d->shaders[i], NULL);
        fg__vk_work_drop(d, &d->copies);
        for (i = 0; i < FG__VK_QUEUES; i++)
            if (d->lines[i].semaphore) api->DestroySemaphore(d->handle, d->lines[i].semaphore, NULL);
        if (d->copy_pool) api->DestroyCommandPool(d->handle, d->copy_pool, NULL);
        if (d->command_pool) api->DestroyCommandPool(d->handle, d->command_pool, NULL);
        if (d->cache) api->DestroyPipelineCache(d->handle, d->cache, NULL);
        fg__vk_drop_layouts(d);
        if (api->DestroyDevice) api->DestroyDevice(d->handle, NULL);
    }
    fg__free(&env, d->pipelines);
    fg__free(&env, d->tried);
    fg__free(&env, d->cache_path);
    fg__vk_loader_close(&d->loader);
    fg__free(&env, d);
}

#define FG__VK_KV_TYPES \
    ((uint64_t)1 << FG_TYPE_F32 | (uint64_t)1 << FG_TYPE_F16 | (uint64_t)1 << FG_TYPE_BF16 | (uint64_t)1 << FG_TYPE_Q8_0)

static void fg__vk_caps(fg_device *handle, fg_device_caps *caps) {
    const fg__vk_device *d = (const fg__vk_device *)handle;
    uint32_t version = d->properties.api_version;
    memset(caps, 0, sizeof(*caps));
    caps->candidates = FG_MAX_CANDIDATES;
    caps->in_flight = FG__VK_TURNS;
    snprintf(caps->name, sizeof(caps->name), "%.80s, Vulkan %u.%u, subgroups of %d", d->properties.name, (unsigned)(version >> 22 & 127),
             (unsigned)(version >> 12 & 1023), d->subgroup);
    caps->n_threads = 1;
    caps->memory_bytes = (size_t)fg__vk_heap_bytes(d, d->memory_types[FG__VK_ON_DEVICE]);
    caps->block_tokens = 32;
    caps->token_budget = d->rungs & FG_VULKAN_MATRIX ? 512 : 256;
    caps->kv_types = FG__VK_KV_TYPES;
#define FG__BIT(name, id, elements, bytes) caps->weight_types |= (uint64_t)1 << id;
    FG_TYPES(FG__BIT)
#undef FG__BIT
    caps->ops = 1u << FG_OP_EMBED | 1u << FG_OP_NORM | 1u << FG_OP_GEMM | 1u << FG_OP_ROPE_KV | 1u << FG_OP_ATTENTION |
                1u << FG_OP_ACT_MUL | 1u << FG_OP_MOE_ROUTE | 1u << FG_OP_MOE_GEMM | 1u << FG_OP_STATE_SCAN | 1u << FG_OP_GATHER_ROWS |
                1u << FG_OP_SAMPLE | 1u << FG_OP_COPY_BLOCKS;
    caps->sinks = true;
}

/* ================================================================================================
   Weights. Matrices keep the file's blocks: of a row first what makes whole words of each block, then the blocks' odd
   bytes (fg__vk_split) together. Rows go to pieces that a kernel can see at once; experts lie below each other, and go there as a whole. Vectors
   become floats.
   ================================================================================================ */

typedef struct fg__vk_piece {
    fg__vk_range range;
    int row0, rows;
} fg__vk_piece;

typedef struct fg__vk_weight {
    struct fg__vk_weight *next;
    int n_users;           /* packed for several ops (a tied embedding) it is kept once */
    const void *data;
    fg_type type;
    bool vector;
    int64_t k, n;
    int stride, tail_at;   /* words */
    int n_pieces, rows_per_piece;
    fg__vk_piece *pieces;
} fg__vk_weight;

/* Where a block's odd bytes lie, and how many there are. */
static void fg__vk_split(fg_type type, int block_bytes, int *odd_at, int *n_odd) {
    *n_odd = block_bytes % 4;
    *odd_at = type == FG_TYPE_Q3_K || type == FG_TYPE_Q6_K ? block_bytes - *n_odd : 0;
}

static bool fg__vk_is_float(fg_type type) { return type == FG_TYPE_F32 || type == FG_TYPE_F16 || type == FG_TYPE_BF16; }

/* Elements and bytes of a block. */
static void fg__vk_block(fg_type type, int64_t *elements, int64_t *bytes) {
    *elements = 1;
    while (!(*bytes = fg_type_bytes(type, *elements))) *elements *= 2;
}

/* Rows of experts lie below each other, those of a vector (experts' biases) behind each other. */
static fg_result fg__vk_weight_size(const fg_tensor *tensor, bool experts, fg__vk_weight *w) {
    int64_t k = tensor->dims[0], n = tensor->n_dims > 1 ? tensor->dims[1] : 1, depth = experts ? tensor->dims[2] : 1, most = 1 << 28;
    if (tensor->n_dims < 1 || tensor->n_dims > (experts ? 3 : 2) || k < 1 || n < 1 || depth < 1 || k > most || n > most || depth > most / n)
        return fg__fail(FG_ERROR_UNSUPPORTED, "tensor '%s' is not a vector or a matrix", tensor->name);
    if (w->vector && n > most / k) return fg__fail(FG_ERROR_UNSUPPORTED, "tensor '%s' is too long for a vector", tensor->name);
    w->k = w->vector ? k * n : k;
    w->n = w->vector ? 1 : n * depth;
    return FG_OK;
}

static fg_result fg__vk_weight_describe(const fg__vk_device *d, const fg_tensor *tensor, fg_op_type use,
                                        fg__vk_weight *w) {
    int64_t elements, bytes, words, tail = 0, row_bytes, together = 1; /* rows of an expert */
    bool experts = use == FG_OP_MOE_GEMM && tensor->n_dims == 3;
    int odd_at, n_odd;
    fg_result r;
    memset(w, 0, sizeof(*w));
    w->type = tensor->type;
    w->data = tensor->data;
    w->vector = use != FG_OP_GEMM && use != FG_OP_MOE_GEMM && use != FG_OP_EMBED;
    if ((r = fg__vk_weight_size(tensor, experts, w)) != FG_OK) return r;
    if (experts) together = tensor->dims[1];
    row_bytes = fg_type_bytes(tensor->type, w->k);
    if (!row_bytes)
        return fg__fail(FG_ERROR_UNSUPPORTED, "tensor '%s' has a type or width we do not know", tensor->name);
    if (tensor->bytes / (size_t)row_bytes < (size_t)w->n)
        return fg__fail(FG_ERROR_INVALID_ARGUMENT, "tensor '%s' is shorter than its dimensions", tensor->name);
    if (w->vector) words = w->k;
    else if (fg__vk_is_float(w->type)) {
        words = (w->k + 7) / 8 * (w->type == FG_TYPE_F32 ? 8 : 4); /* whole units */
    } else {
        fg__vk_block(w->type, &elements, &bytes);
        fg__vk_split(w->type, (int)bytes, &odd_at, &n_odd);
        words = w->k / elements * (bytes / 4);
        tail = (w->k / elements * n_odd + 3) / 4;
    }
    w->tail_at = (int)words;
    w->stride = (int)(w->vector ? words : (words + tail + 3) / 4 * 4); /* rows at multiples of 16 bytes; see shaders/quant.glsl */
    w->rows_per_piece = (int)(FG__MIN(w->n, (int64_t)(d->max_range / 4) / w->stride) / together * together);
    if (w->rows_per_piece < 1)
        return fg__fail(FG_ERROR_UNSUPPORTED, "%s of '%s' is more than the device sees at once", experts ? "an expert" : "a row", tensor->name);
    w->n_pieces = (int)((w->n + w->rows_per_piece - 1) / w->rows_per_piece);
    return FG_OK;
}

/* One row of the file to one row of the device. */
static void fg__vk_pack_row(const fg__vk_weight *w, const uint8_t *from, uint8_t *to) {
    int64_t elements, bytes, i;
    uint8_t *tail = to + (size_t)w->tail_at * 4;
    int odd_at, n_odd, whole;
    memset(to, 0, (size_t)w->stride * 4);
    if (w->vector) {
        fg__dequantize_row(w->type, from, (float *)(void *)to, w->k);
        return;
    }
    if (fg__vk_is_float(w->type)) {
        memcpy(to, from, (size_t)fg_type_bytes(w->type, w->k));
        return;
    }
    fg__vk_block(w->type, &elements, &bytes);
    fg__vk_split(w->type, (int)bytes, &odd_at, &n_odd);
    whole = (int)bytes - n_odd;
    for (i = 0; i < w->k / elements; i++, from += bytes, to += whole, tail += n_odd) {
        memcpy(to, from + (odd_at ? 0 : n_odd), (size_t)whole);
        memcpy(tail, from + odd_at, (size_t)n_odd);
    }
}

static fg_result fg__vk_upload(fg__vk_device *d, const fg__vk_weight *w, const fg__vk_piece *piece) {
    size_t row_bytes = (size_t)w->stride * 4, from_bytes = (size_t)fg_type_bytes(w->type, w->k), at_once = FG__VK_STAGING / row_bytes;
    fg_result r = FG_OK;
    uint8_t *staging = (uint8_t *)d->staging.chunk->mapped + d->staging.offset, *row;
    int i, j, n;
    if (at_once < 1) { /* a row longer than the staging buffer */
        if (!(row = (uint8_t *)fg__malloc(&d->env, row_bytes, 1))) return FG_ERROR_OUT_OF_MEMORY;
        for (i = 0; i < piece->rows && r == FG_OK; i++) {
            fg__vk_pack_row(w, (const uint8_t *)w->data + (size_t)(piece->row0 + i) * from_bytes, row);
            r = fg__vk_write((fg_device *)d, (void *)(size_t)&piece->range, (size_t)i * row_bytes, row, row_bytes);
        }
        fg__free(&d->env, row);
        return r;
    }
    for (i = 0; i < piece->rows && r == FG_OK; i += n) {
        n = (int)FG__MIN((size_t)(piece->rows - i), at_once);
        for (j = 0; j < n; j++)
            fg__vk_pack_row(w, (const uint8_t *)w->data + (size_t)(piece->row0 + i + j) * from_bytes, staging + (size_t)j * row_bytes);
        r = fg__vk_stage(d, &piece->range, (size_t)i * row_bytes, (size_t)n * row_bytes);
    }
    return r;
}

static void fg__vk_unpack(fg_device *handle, fg_weight *weight) {
    fg__vk_device *d = (fg__vk_device *)handle;
    fg__vk_weight *w = (fg__vk_weight *)weight, **at = &d->weights;
    int i;
    if (!w || --w->n_users > 0) return;
    while (*at && *at != w) at = &(*at)->next;
    if (*at) *at = w->next;
    for (i = 0; w->pieces && i < w->n_pieces; i++) fg__vk_give(d, &w->pieces[i].range);
    fg__free(&d->env, w->pieces);
    fg__free(&d->env, w);
}

static fg_result fg__vk_weight_fill(fg__vk_device *d, fg__vk_weight *w) {
    fg_result r = FG_OK;
    int i;
    w->pieces = (fg__vk_piece *)fg__calloc(&d->env, (size_t)w->n_pieces, sizeof(fg__vk_piece));
    if (!w->pieces) return FG_ERROR_OUT_OF_MEMORY;
    for (i = 0; i < w->n_pieces && r == FG_OK; i++) {
        fg__vk_piece *piece = &w->pieces[i];
        piece->row0 = i * w->rows_per_piece;
        piece->rows = (int)FG__MIN(w->n - piece->row0, w->rows_per_piece);
        r = fg__vk_take(d, FG__VK_ON_DEVICE, (size_t)piece->rows * (size_t)w->stride * 4, &piece->range);
        if (r == FG_OK) r = fg__vk_upload(d, w, piece);
    }
    return r;
}

static fg_result fg__vk_pack(fg_device *handle, const fg_tensor *tensor, fg_op_type use, fg_weight **out,
                             size_t *bytes) {
    fg__vk_device *d = (fg__vk_device *)handle;
    fg__vk_weight described, *w;
    fg_result r = fg__vk_weight_describe(d, tensor, use, &described);
    if (r != FG_OK) return r;
    if (bytes) *bytes = (size_t)described.n * (size_t)described.stride * 4;
    if (!out) return FG_OK;
    for (w = d->weights; w; w = w->next)
        if (!w->vector && !described.vector && w->data == described.data && w->type == described.type && w->k == described.k &&
            w->n == described.n && w->rows_per_piece == described.rows_per_piece) {
            w->n_users++;
            *out = (fg_weight *)w;
            return FG_OK;
        }
    w = (fg__vk_weight *)fg__malloc(&d->env, 1, sizeof(*w));
    if (!w) return FG_ERROR_OUT_OF_MEMORY;
    *w = described;
    w->n_users = 1;
    w->next = d->weights;
    d->weights = w;
    if ((r = fg__vk_weight_fill(d, w)) == FG_OK) *out = (fg_weight *)w;
    else fg__vk_unpack(handle, (fg_weight *)w);
    return r;
}

/* ================================================================================================
   Plans: an op becomes one or more steps, each a kernel with its buffers and constants
   ================================================================================================ */

/* As Push in shaders/common.glsl. Ops of experts have other numbers in n_head, n_kv_head and n_rot: the experts of a token, all of them, those of
   the piece of the weight that a kernel sees, from number row0 on. Those of STATE_SCAN: see shaders/state.glsl. */
typedef struct fg__vk_push {
    int32_t n, k, src_col, src2_col, dst_col, src_stride, src2_stride, dst_stride, count_at, act, has, row0, rows, weight_stride, tail_at,
        n_head, n_kv_head, head_dim, n_rot, neox, slots_at, table_at, table_stride, block_tokens, kv_stride, window;
    float eps, scale, softcap;
    int32_t positions_at, seqs_at, rows_at;
} fg__vk_push;

enum { FG__VK_HAS_WEIGHT = 1, FG__VK_HAS_WEIGHT2 = 2, FG__VK_HAS_BIAS = 4, FG__VK_HAS_SRC2 = 8, FG__VK_HAS_EARLIER = 16, FG__VK_HAS_LATER = 32, FG__VK_HAS_SUM = 64 };
enum { FG__VK_BYTES, FG__VK_HALVES, FG__VK_MODES }; /* what shaders/prepare.comp makes of rows */
enum { FG__VK_SPLIT = 512, FG__VK_SPLIT_QUERIES = 8, FG__VK_SPLIT_BYTES = 64 << 20 }; /* see fg__vk_cuts */
enum { FG__VK_ITEM = 64, FG__VK_ITEMS_OF = 32, FG__VK_ITEM_GROUPS = 1024 };           /* there, too */
enum { FG__VK_PARTS = 4, FG__VK_FEW_ROWS = 8, FG__VK_SOME_ROWS = 64 };

/* Kernels by the rows of a pass: for one, up to four, to FG__VK_FEW_ROWS, to FG__VK_SOME_ROWS, and more. */
enum { FG__VK_ONE, FG__VK_FOUR, FG__VK_EIGHT, FG__VK_SOME, FG__VK_MANY, FG__VK_ROW_KINDS };

static int fg__vk_kind(int rows) {
    return rows == 1 ? FG__VK_ONE : rows <= 4 ? FG__VK_FOUR : rows <= FG__VK_FEW_ROWS ? FG__VK_EIGHT : rows <= FG__VK_SOME_ROWS ? FG__VK_SOME : FG__VK_MANY;
}

/* Rows of src and, at most, of the weight that a subgroup, a team or a workgroup of gemv*.comp takes; of a weight with few rows there are to be so
   many workgroups, where these divide k, before one takes several. */
static const int fg__vk_gemv_cols[] = {1, 4, 8}, fg__vk_gemv_rows[] = {4, 2, 2};
enum { FG__VK_GEMV_GROUPS = 256 };
enum { FG__VK_MOST_DIM = 512, FG__VK_MOST_WINDOW = 4096 }; /* of a head; of a trial */
enum { FG__VK_NO_EXPERTS, FG__VK_PAIRS, FG__VK_TILES }; /* EXPERTS of shaders/product.glsl: workgroups have a pair each, or a tile of pairs */
enum { FG__VK_LEAST_TILE = 4, FG__VK_LEAST_LARGE = 32 }; /* pairs of the smallest tile; of that of a kernel for many rows */
enum { FG__VK_SHARED_BY = 16 };                         /* pairs of an expert, on average, up to which tiles are those of kernels for few rows */
enum { FG__VK_STATE_COLUMNS = 32 }; /* COLUMNS of shaders/state_scan.comp */
enum { FG__VK_SLICES = 16, FG__VK_TEAMS = 8 }; /* SLICES of shaders/product.glsl, TEAMS of gemv.glsl */

/* Columns [first, end) of a slot that are always written together: a matrix of their own, so that ops that write different
   columns of a slot need not wait for each other. Parts of a slot that crosses are all of one matrix, as the host has it. */
typedef struct fg__vk_part {
    int first, end;
    size_t offset;      /* of the matrix, in the slots' memory */
    int origin, stride; /* its first column; columns */
} fg__vk_part;

typedef struct fg__vk_slot {
    fg__vk_part parts[FG__VK_PARTS];
    int n_parts;
} fg__vk_slot;

/* Rows of a slot as bytes or halves, for products; see shaders/dot.glsl and half.glsl. They stay until something writes the slot. */
typedef struct fg__vk_prepared {
    size_t offset, bytes; /* in the slots' memory */
    int slot, col, k;     /* what is there; slot -1: nothing */
    int each, least, most; /* rows of k columns that a row has; rows of the passes that make them */
    bool per_row;
} fg__vk_prepared;

/* Pairs of tokens and experts in tiles (shaders/sort.comp), and their products before they are added up. */
typedef struct fg__vk_sorted {
    size_t offset, bytes, products_at, products_bytes; /* in the slots' memory */
    struct {
        int slot, col, tile, least; /* whose pairs are there; slot -1: none; pairs of a tile; tokens of the passes that sort them */
    } in[2];                        /* small tiles, large ones: of other passes */
} fg__vk_sorted;

/* Attention of a group. Where a sequence has few queries in a pass (at most FG__VK_SPLIT_QUERIES), each becomes items: some of its positions,
   a workgroup for each KV head, whose parts are folded afterwards. Items are FG__VK_ITEM positions long, or more where these give a device
   FG__VK_ITEM_GROUPS workgroups, or a query FG__VK_ITEMS_OF to fold, but not more than FG__VK_SPLIT. With fg_vulkan_options.invariant they
   always are that long: workgroups that have all positions of a query fold at its multiples, in the same order, so that which
   sequences are cut into items does not show in results. */
typedef struct fg__vk_cuts {
    int at;            /* in the batch block: the numbers of items and of merges, then of each sequence whether it is items */
    int items_at;      /* there: of an item its token, its first position and that after its last */
    int merges_at;     /* there: of a query's merge its token, its first item, the number of those */
    int most;          /* items that there is room for */
    int groups;        /* workgroups of an item */
    int length, least, n_items; /* of the pass that is submitted: positions of an item; a query of fewer items stays whole; all items */
} fg__vk_cuts;

enum { FG__VK_WHOLE, FG__VK_ITEMS, FG__VK_MERGES }; /* steps of ATTENTION */

/* What a step touches. Resources: four parts of each slot, then K and V of each layer of each group, then the results, then
   rows as bytes and as halves, then what attention keeps between pieces of a KV pool, two of sampling, parts of attention, pairs in tiles,
   products of pairs, what STATE_SCAN makes of all tokens beside each other. */
typedef struct fg__vk_use {
    int resource;
    bool writes;
} fg__vk_use;

enum { FG__VK_MAX_USES = 8 };

typedef struct fg__vk_step {
    int op, kind;       /* fg_op_type; FG_OP_COUNT: rows are made bytes or halves */
    int part;           /* ATTENTION: FG__VK_WHOLE, _ITEMS, _MERGES */
    int pipelines[FG__VK_ROW_KINDS];
    int least, most;    /* rows for which it is needed */
    uint64_t set;
    fg__vk_buffer_range buffers[FG__VK_BINDINGS]; /* where descriptors are pushed */
    fg__vk_push push;
    fg__vk_use uses[FG__VK_MAX_USES];
    int n_uses, groups; /* workgroups across */
    int each;           /* rows of k columns that a row of src has, experts of a token: workgroups deep */
    int tile[FG__VK_ROW_KINDS]; /* ATTENTION: rows of a tile */
    bool per_row, draws; /* draws: only in passes with fg_batch.draws */
    bool alone;          /* one workgroup has all rows */
    bool by_seq;         /* workgroups have sequences */
} fg__vk_step;

/* Blocks of a layer that kernels see at once; of FG_GROUP_STATE the states of some heads in all blocks, in k alone. */
typedef struct fg__vk_layer {
    fg__vk_range k, v;
} fg__vk_layer;

enum { FG__VK_BUCKETS = 18 }; /* powers of two up to 65536, and none */
enum { FG__VK_RANGES = 2048 }; /* whose commands are kept, about */

/* The commands of a range of ops, in passes of so many items of attention (as a bucket), with queries that stay whole or without. */
typedef struct fg__vk_commands {
    int first, end, items;
    bool whole;
    void **of; /* [FG__VK_BUCKETS][FG__VK_BUCKETS][2] by tokens, rows, with draws (1) or not */
} fg__vk_commands;

/* Rows of a slot that crosses, on the host, and the copies there (0) and from there (1). */
typedef struct fg__vk_crossing {
    fg__vk_range host; /* chunk NULL: the slot does not cross */
    fg__vk_work copies[2];
} fg__vk_crossing;

/* What a pass in flight has for itself: its batch on the way to the device, and its results on the way back. */
typedef struct fg__vk_turn {
    fg__vk_work before, after; /* commands; the fence is that of `after` */
    fg__vk_range batch, rows, candidates, logits;
    fg__vk_range kept;         /* logits on the device, of a pass with draws: the next pass overwrites the slot */
    bool want_logits, has_draws;
} fg__vk_turn;

typedef struct fg__vk_plan {
    fg__vk_device *device;
    const fg_graph *graph;
    fg__vk_slot *slots;
    fg__vk_step *steps;
    int n_steps, max_steps, n_layers, sample_op;
    int layer_of[FG_MAX_GROUPS]; /* first of a group */
    int n_pieces[FG_MAX_GROUPS], piece_blocks[FG_MAX_GROUPS], piece_of[FG_MAX_GROUPS]; /* of each layer; blocks, or heads of a state; first in layers */
    int n_kv;                    /* pieces of all layers */
    fg__vk_layer *layers;
    fg__vk_range memory, batch, rows, tops, candidates;
    fg__vk_turn turns[FG__VK_TURNS];
    unsigned n_submitted, n_waited; /* the difference is in flight */
    fg__vk_crossing *crossings;     /* by slot */
    uint64_t passed;                /* of the line of FG__VK_PASSES, when the pass that was submitted last has ended */
    fg__vk_step feed;               /* tokens that the pass before made, in their places */
    fg__vk_prepared prepared[FG__VK_MODES];
    fg__vk_sorted sorted;
    fg__vk_cuts cuts[FG_MAX_GROUPS];
    bool whole;                     /* of the pass that is submitted: queries of some group stay whole */
    size_t slots_bytes, batch_words, state_at, state_bytes; /* state: of attention, in the slots' memory */
    size_t parts_at, parts_bytes, part_states_at, part_states_bytes; /* of items, there too */
    size_t mixed_at, mixed_bytes;                                    /* of STATE_SCAN, there too: shaders/state.glsl */
    int starts_at; /* of sequences among the tokens, and the end of the last one */
    int tokens_at, feed_at, rope_positions_at, positions_at, seqs_at, rows_at, draws_at, slots_at[FG_MAX_GROUPS], tables_at[FG_MAX_GROUPS];
    uint64_t pool, command_pool;
    fg__vk_commands *commands; /* of each range that came */
    size_t n_commands, commands_capacity;
    float *part; /* of a slot, on its way; of part_bytes */
    size_t part_bytes;
} fg__vk_plan;

static const fg__vk_weight *fg__vk_weight_of(const fg__vk_plan *plan, int index) {
    return index < 0 ? NULL : (const fg__vk_weight *)(const void *)plan->graph->weights[index];
}

/* ---- Parts of slots. ---- */

/* The part that holds columns [first, first + n); -1: no single one does. */
static int fg__vk_part_of(const fg__vk_slot *slot, int first, int n) {
    int i;
    for (i = 0; i < slot->n_parts; i++)
        if (slot->parts[i].first <= first && first + n <= slot->parts[i].end) return i;
    return -1;
}

/* Columns of src that an op by elements reads. */
static int fg__vk_act_columns(const fg_op *op) { return op->type == FG_OP_ACT_MUL && op->k == 1 ? 1 : op->n; }

/* Columns of a STATE_SCAN's src, from its first on: z, and beta, behind which alpha is. */
static int fg__vk_state_z(const fg_op *op) { return (op->n_head + 2 * op->n_kv_head) * op->head_dim; }
static int fg__vk_state_beta(const fg_op *op) { return fg__vk_state_z(op) + op->n_head * op->head_dim; }

/* Calls `visit` for the columns that an op names. */
static void fg__vk_visit(const fg_op *op, void (*visit)(void *user, int slot, int first, int n, bool gemm),
                         void *user) {
    int q = op->n_head * op->head_dim, kv = op->n_kv_head * op->head_dim;
    if (op->type == FG_OP_ROPE_KV) {
        visit(user, op->src, op->src_col, q, false);
        visit(user, op->src, op->src2_col, kv, false);
        visit(user, op->src, op->dst_col, kv, false);
        return;
    }
    if (op->type == FG_OP_MOE_ROUTE || op->type == FG_OP_MOE_GEMM) {
        bool gemm = op->type == FG_OP_MOE_GEMM;
        visit(user, op->src, op->src_col, !gemm ? op->n_expert : op->moe_sum ? op->k * op->n_used : op->k, false);
        if (gemm) visit(user, op->src2, op->src2_col, 2 * op->n_used, false);
        visit(user, op->dst, op->dst_col, !gemm ? 2 * op->n_used : op->moe_sum ? op->n : op->n * op->n_used, gemm);
        return;
    }
    if (op->type == FG_OP_STATE_SCAN) {
        int beta = op->src_col + fg__vk_state_beta(op);
        visit(user, op->src, op->src_col, fg__vk_state_z(op), false);
        visit(user, op->src, op->src_col + fg__vk_state_z(op), q, false);
        visit(user, op->src, beta, op->n_head, false);
        visit(user, op->src, beta + op->n_head, op->n_head, false);
        visit(user, op->dst, op->dst_col, q, false);
        return;
    }
    if (op->src >= 0)
        visit(user, op->src, op->src_col, op->type == FG_OP_GEMM ? op->k : op->type == FG_OP_ATTENTION ? q : fg__vk_act_columns(op),
              false);
    if (op->src2 >= 0) visit(user, op->src2, op->type == FG_OP_GEMM ? 0 : op->src2_col, op->n, false);
    if (op->dst >= 0 && op->type != FG_OP_SAMPLE)
        visit(user, op->dst, op->dst_col, op->type == FG_OP_ATTENTION ? q : op->n, op->type == FG_OP_GEMM);
}

/* Every product's columns that do not meet another's become a part. */
static void fg__vk_add_part(void *user, int slot, int first, int n, bool gemm) {
    fg__vk_slot *s = &((fg__vk_plan *)user)->slots[slot];
    int i;
    if (!gemm || s->n_parts < 0 || fg__vk_part_of(s, first, n) >= 0) return;
    for (i = 0; i < s->n_parts; i++)
        if (first < s->parts[i].end && s->parts[i].first < first + n) break;
    if (i < s->n_parts || s->n_parts == FG__VK_PARTS) {
        s->n_parts = -1; /* one part after all */
        return;
    }
    s->parts[s->n_parts].first = first;
    s->parts[s->n_parts++].end = first + n;
}

static void fg__vk_check_part(void *user, int slot, int first, int n, bool gemm) {
    fg__vk_slot *s = &((fg__vk_plan *)user)->slots[slot];
    (void)gemm;
    if (s->n_parts >= 0 && fg__vk_part_of(s, first, n) < 0) s->n_parts = -1;
}

/* Words of a row as bytes or halves. */
static size_t fg__vk_prepared_words(int mode, int k) {
    return mode == FG__VK_BYTES ? fg__round_up((size_t)k / 32 * 10, 4) : ((size_t)k + 31) / 32 * 16 + 4;
}

/* The rung that multiplies by weights of a type where rows are many or few: FG_VULKAN_DOT, _HALF, _MATRIX, or 0. */
static uint32_t fg__vk_rung_of(const fg__vk_device *d, fg_type type, bool many) {
    many = many || d->options.invariant;
    if (many && (d->rungs & FG_VULKAN_MATRIX) && type != FG_TYPE_F32) return FG_VULKAN_MATRIX;
    if ((d->rungs & FG_VULKAN_DOT) && !fg__vk_is_float(type)) return FG_VULKAN_DOT;
    if (many && (d->rungs & FG_VULKAN_HALF) && type != FG_TYPE_F32) return FG_VULKAN_HALF;
    return 0;
}

/* The same of products with experts. */
static uint32_t fg__vk_expert_rung(const fg__vk_device *d, fg_type type, bool many) { return d->experts_plain ? 0 : fg__vk_rung_of(d, type, many); }

/* Whether products with weights of a type read rows as bytes, or as halves. */
static bool fg__vk_reads(const fg__vk_device *d, fg_type type, int mode) {
    uint32_t few = fg__vk_rung_of(d, type, false), many = fg__vk_rung_of(d, type, true);
    return mode == FG__VK_BYTES ? few == FG_VULKAN_DOT || many == FG_VULKAN_DOT : many == FG_VULKAN_HALF || many == FG_VULKAN_MATRIX;
}

/* Room for rows as bytes and as halves, as much as the largest product needs. */
static size_t fg__vk_lay_prepared(fg__vk_plan *plan, size_t used) {
    const fg_graph *graph = plan->graph;
    int mode, i;
    for (mode = 0; mode < FG__VK_MODES; mode++) {
        fg__vk_prepared *p = &plan->prepared[mode];
        p->slot = -1;
        p->offset = used;
        for (i = 0; i < graph->n_ops; i++) {
            const fg_op *op = &graph->ops[i];
            size_t rows, bytes;
            if (op->type != FG_OP_GEMM && op->type != FG_OP_MOE_GEMM) continue;
            if (!fg__vk_reads(plan->device, graph->tensors[op->weight].type, mode)) continue;
            rows = (size_t)(graph->slots[op->src].per_row ? graph->max_rows : graph->max_tokens) * (size_t)(op->moe_sum ? op->n_used : 1);
            if (mode == FG__VK_HALVES) rows = fg__round_up(rows, 32); /* whole tiles are read, whatever lies there */
            bytes = rows * fg__vk_prepared_words(mode, op->k) * 4;
            p->bytes = FG__MAX(p->bytes, bytes);
        }
        used += fg__round_up(p->bytes, FG__VK_ALIGN);
    }
    return used;
}

/* The most tiles that the pairs of so many tokens can be. */
static int64_t fg__vk_most_tiles(const fg_op *op, int tokens, int tile) {
    int64_t pairs = (int64_t)tokens * op->n_used;
    return FG__MIN(pairs, op->n_expert) + pairs / tile;
}

/* Words before the pairs of the tiles of a whole pass. */
static int64_t fg__vk_pairs_at(const fg__vk_plan *plan, const fg_op *op, int tile) {
    return 1 + 3 * fg__vk_most_tiles(op, plan->graph->max_tokens, tile);
}

/* Room for pairs in tiles, and for products of pairs. */
static size_t fg__vk_lay_experts(fg__vk_plan *plan, size_t used) {
    const fg_graph *graph = plan->graph;
    fg__vk_sorted *s = &plan->sorted;
    int i;
    s->in[0].slot = s->in[1].slot = -1;
    for (i = 0; i < graph->n_ops; i++) {
        const fg_op *op = &graph->ops[i];
        size_t pairs = (size_t)graph->max_tokens * (size_t)op->n_used, words;
        if (op->type != FG_OP_MOE_GEMM) continue;
        words = (size_t)fg__vk_pairs_at(plan, op, FG__VK_LEAST_TILE) + pairs;
        s->bytes = FG__MAX(s->bytes, words * sizeof(int32_t));
        if (op->moe_sum) s->products_bytes = FG__MAX(s->products_bytes, pairs * (size_t)op->n * sizeof(float));
    }
    s->offset = used;
    s->products_at = used + fg__round_up(s->bytes, FG__VK_ALIGN);
    return s->products_at + fg__round_up(s->products_bytes, FG__VK_ALIGN);
}

/* Positions of the shortest items. */
static int fg__vk_shortest_item(const fg__vk_device *d) {
    if (d->options.invariant) return FG__VK_SPLIT;
    return FG__VK_ITEM;
}

/* The pieces of `length` that one query of a group sees at most. */
static int64_t fg__vk_most_pieces(const fg_graph *graph, const fg_group *group, int length) {
    int64_t pieces = ((int64_t)graph->max_blocks_per_seq * group->block_tokens + length - 1) / length;
    return group->window > 0 ? FG__MIN(pieces, group->window / length + 2) : pieces;
}

/* Room for the parts of attention's items: as many long ones as all sequences have, within FG__VK_SPLIT_BYTES or what one sequence needs, and short ones
   enough for FG__VK_ITEM_GROUPS workgroups. */
static size_t fg__vk_lay_items(fg__vk_plan *plan, size_t used) {
    const fg_graph *graph = plan->graph;
    int64_t seqs = FG__MIN(graph->max_seqs, graph->max_tokens);
    int i;
    for (i = 0; i < graph->n_ops; i++) {
        const fg_op *op = &graph->ops[i];
        const fg_group *group = &graph->groups[FG__MAX(op->group, 0)];
        int64_t row = (int64_t)op->n_head * op->head_dim * 4, states = (int64_t)op->n_head * 8, pieces, most, few;
        fg__vk_cuts *cuts = &plan->cuts[FG__MAX(op->group, 0)];
        if (op->type != FG_OP_ATTENTION) continue;
        if (fg__vk_most_pieces(graph, group, fg__vk_shortest_item(plan->device)) < 2) continue;
        cuts->groups = FG__MAX(cuts->groups, op->n_kv_head);
        pieces = fg__vk_most_pieces(graph, group, FG__VK_SPLIT);
        most = FG__MIN(seqs * pieces, FG__MAX(pieces, FG__VK_SPLIT_BYTES / (row + states)));
        few = FG__MIN(seqs * fg__vk_most_pieces(graph, group, fg__vk_shortest_item(plan->device)), FG__VK_ITEM_GROUPS / cuts->groups);
        most = FG__MAX(most, few);
        most = FG__MIN(FG__MIN(most, 65535), (int64_t)(plan->device->max_range / (size_t)row));
        cuts->most = FG__MAX(cuts->most, (int)most);
        plan->parts_bytes = FG__MAX(plan->parts_bytes, (size_t)(most * row));
        plan->part_states_bytes = FG__MAX(plan->part_states_bytes, (size_t)(most * states));
    }
    plan->parts_at = used;
    plan->part_states_at = used + fg__round_up(plan->parts_bytes, FG__VK_ALIGN);
    return plan->part_states_at + fg__round_up(plan->part_states_bytes, FG__VK_ALIGN);
}

/* Floats of a row of what state_conv.comp leaves. */
static size_t fg__vk_mixed_stride(const fg_op *op) {
    return (size_t)(2 * op->n_kv_head + op->n_head) * (size_t)op->head_dim + (size_t)op->n_kv_head + 2 * (size_t)op->n_head;
}

static size_t fg__vk_lay_mixed(fg__vk_plan *plan, size_t used) {
    const fg_graph *graph = plan->graph;
    int i;
    for (i = 0; i < graph->n_ops; i++)
        if (graph->ops[i].type == FG_OP_STATE_SCAN)
            plan->mixed_bytes = FG__MAX(plan->mixed_bytes, (size_t)graph->max_tokens * fg__vk_mixed_stride(&graph->ops[i]) * sizeof(float));
    plan->mixed_at = used;
    return used + fg__round_up(plan->mixed_bytes, FG__VK_ALIGN);
}

/* Cuts slots into parts and lays those out. */
static void fg__vk_lay_slots(fg__vk_plan *plan) {
    const fg_graph *graph = plan->graph;
    size_t used = 0;
    int i, j;
    for (i = 0; i < graph->n_ops; i++) fg__vk_visit(&graph->ops[i], fg__vk_add_part, plan);
    for (i = 0; i < graph->n_ops; i++) fg__vk_visit(&graph->ops[i], fg__vk_check_part, plan);
    for (i = 0; i < graph->n_slots; i++) {
        fg__vk_slot *slot = &plan->slots[i];
        size_t rows = (size_t)(graph->slots[i].per_row ? graph->max_rows : graph->max_tokens);
        if (slot->n_parts <= 0) {
            slot->n_parts = 1;
            slot->parts[0].first = 0;
            slot->parts[0].end = graph->slots[i].width;
        }
        for (j = 0; j < slot->n_parts; j++) {
            fg__vk_part *part = &slot->parts[j];
            bool whole = graph->slots[i].crosses;
            part->offset = used;
            part->origin = whole ? 0 : part->first;
            part->stride = whole ? graph->slots[i].width : part->end - part->first;
            if (!whole || j + 1 == slot->n_parts) used += fg__round_up(rows * (size_t)part->stride * sizeof(float), FG__VK_ALIGN);
        }
    }
    used = fg__vk_lay_prepared(plan, used);
    plan->state_at = used;
    for (i = 0; i < graph->n_ops; i++) {
        size_t bytes = (size_t)graph->max_tokens * (size_t)graph->ops[i].n_head * 2 * sizeof(float);
        if (graph->ops[i].type == FG_OP_ATTENTION && plan->n_pieces[graph->ops[i].group] > 1)
            plan->state_bytes = FG__MAX(plan->state_bytes, bytes);
    }
    used = fg__vk_lay_experts(plan, used + fg__round_up(plan->state_bytes, FG__VK_ALIGN));
    plan->slots_bytes = fg__vk_lay_items(plan, fg__vk_lay_mixed(plan, used));
}

/* ---- The batch block. ---- */

static void fg__vk_lay_batch(fg__vk_plan *plan) {
    const fg_graph *graph = plan->graph;
    int at = 4, g;
    plan->tokens_at = at, at += graph->max_tokens;
    plan->feed_at = at, at += graph->max_tokens;
    plan->rope_positions_at = at, at += graph->max_tokens;
    plan->positions_at = at, at += graph->max_tokens;
    plan->seqs_at = at, at += graph->max_tokens;
    plan->rows_at = at, at += graph->max_rows;
    plan->draws_at = at, at += graph->max_rows * 3;
    plan->starts_at = at, at += graph->max_seqs + 1;
    for (g = 0; g < graph->n_groups; g++) {
        plan->slots_at[g] = at, at += graph->max_tokens;
        plan->tables_at[g] = at, at += graph->max_seqs * graph->max_blocks_per_seq;
        plan->cuts[g].at = at, at += 2 + (plan->cuts[g].most ? graph->max_seqs : 0);
        plan->cuts[g].items_at = at, at += 3 * plan->cuts[g].most;
        plan->cuts[g].merges_at = at, at += 3 * plan->cuts[g].most;
    }
    plan->batch_words = (size_t)at;
}

/* Parts of the batch block on their way to the device. */
typedef struct fg__vk_parcel {
    const fg__vk_plan *plan;
    const fg__vk_range *from; /* of the host */
    int n;
    fg__vk_copy copies[9 + 5 * FG_MAX_GROUPS];
} fg__vk_parcel;

/* Room for n words of the block from word `at` on. */
static int32_t *fg__vk_parcel_room(fg__vk_parcel *p, int at, size_t n) {
    fg__vk_copy *copy = &p->copies[p->n];
    copy->from = p->from->offset + (size_t)at * 4;
    copy->to = p->plan->batch.offset + (size_t)at * 4;
    copy->bytes = n * 4;
    if (n) p->n++;
    return (int32_t *)(void *)(p->from->chunk->mapped + copy->from);
}

static void fg__vk_parcel_add(fg__vk_parcel *p, int at, const void *words, size_t n) {
    int32_t *to = fg__vk_parcel_room(p, at, n);
    if (n) memcpy(to, words, n * 4);
}

/* The piece of a context in which the first position is that query number i of a sequence sees, and how many pieces it sees. */
static int fg__vk_pieces_of(const fg__vk_plan *plan, const fg_batch *batch, int g, int s, int i, int *first) {
    int position = batch->kv_len[s] - (batch->cu_q[s + 1] - batch->cu_q[s]) + i, window = plan->graph->groups[g].window, length = plan->cuts[g].length;
    *first = window > 0 && position >= window ? (position - window + 1) / length : 0;
    return position / length - *first + 1;
}

/* The items of a sequence; 0: its queries stay whole. */
static int fg__vk_items_of(const fg__vk_plan *plan, const fg_batch *batch, int g, int s) {
    int n = batch->cu_q[s + 1] - batch->cu_q[s], longest = 0, items = 0, first, i;
    if (n > FG__VK_SPLIT_QUERIES || batch->kv_len[s] <= plan->cuts[g].length) return 0;
    for (i = 0; i < n; i++) {
        int pieces = fg__vk_pieces_of(plan, batch, g, s, i, &first);
        longest = FG__MAX(longest, pieces);
        items += pieces;
    }
    return longest < plan->cuts[g].least ? 0 : items;
}

/* The items of a pass, and the most of a query; whether queries stay whole. */
static int64_t fg__vk_count_items(const fg__vk_plan *plan, const fg_batch *batch, int g, int *most, bool *whole) {
    int64_t n = 0;
    int s, first;
    *whole = false;
    for (*most = 0, s = 0; s < batch->n_seqs; s++) {
        int items = fg__vk_items_of(plan, batch, g, s);
        n += items;
        if (items == 0) *whole = true;
        if (items > 0) *most = FG__MAX(*most, fg__vk_pieces_of(plan, batch, g, s, batch->cu_q[s + 1] - batch->cu_q[s] - 1, &first));
    }
    return n;
}

/* Chooses the length of a pass's items, and the sequences that become such: where there is no room for all, those with the longest contexts. Returns
   the largest group's number of items. */
static int fg__vk_choose_items(fg__vk_plan *plan, const fg_batch *batch) {
    int g, one, largest = 0;
    plan->whole = false;
    for (g = 0; g < plan->graph->n_groups; g++) {
        fg__vk_cuts *cuts = &plan->cuts[g];
        bool whole = true;
        int64_t n = 0;
        cuts->n_items = 0;
        if (plan->graph->groups[g].kind == FG_GROUP_STATE) continue;
        if (cuts->most == 0) {
            plan->whole = true;
            continue;
        }
        cuts->least = 2;
        for (cuts->length = fg__vk_shortest_item(plan->device);; cuts->length *= 2) {
            n = fg__vk_count_items(plan, batch, g, &one, &whole);
            if (cuts->length == FG__VK_SPLIT || (one <= FG__VK_ITEMS_OF && n <= cuts->most && n * cuts->groups <= FG__VK_ITEM_GROUPS)) break;
        }
        for (; n > cuts->most; cuts->least += cuts->least / 2) n = fg__vk_count_items(plan, batch, g, &one, &whole);
        cuts->n_items = (int)n;
        plan->whole = plan->whole || whole;
        largest = FG__MAX(largest, cuts->n_items);
    }
    return largest;
}

static void fg__vk_fill_items(fg__vk_parcel *p, const fg_batch *batch, int g) {
    const fg__vk_plan *plan = p->plan;
    const fg__vk_cuts *cuts = &plan->cuts[g];
    int32_t *counts = fg__vk_parcel_room(p, cuts->at, 2 + (size_t)(cuts->n_items ? batch->n_seqs : 0)), *items, *merges;
    int s, t, i, first, n_items = 0, n_merges = 0;
    counts[0] = counts[1] = 0;
    if (!cuts->n_items) return;
    items = fg__vk_parcel_room(p, cuts->items_at, 3 * (size_t)cuts->n_items);
    merges = (int32_t *)(void *)(p->from->chunk->mapped + p->from->offset + (size_t)cuts->merges_at * 4);
    for (s = 0; s < batch->n_seqs; s++) {
        counts[2 + s] = fg__vk_items_of(plan, batch, g, s) > 0;
        for (t = batch->cu_q[s]; t < batch->cu_q[s + 1] && counts[2 + s]; t++, n_merges++) {
            int pieces = fg__vk_pieces_of(plan, batch, g, s, t - batch->cu_q[s], &first);
            merges[3 * n_merges] = t;
            merges[3 * n_merges + 1] = n_items;
            merges[3 * n_merges + 2] = pieces;
            for (i = 0; i < pieces; i++, n_items++) {
                items[3 * n_items] = t;
                items[3 * n_items + 1] = (first + i) * cuts->length;
                items[3 * n_items + 2] = (first + i + 1) * cuts->length;
            }
        }
    }
    counts[0] = n_items;
    counts[1] = n_merges;
    fg__vk_parcel_room(p, cuts->merges_at, 3 * (size_t)n_merges);
}

static void fg__vk_fill_batch(fg__vk_parcel *p, const fg_batch *batch) {
    const fg__vk_plan *plan = p->plan;
    size_t n = (size_t)batch->n_tokens, rows = (size_t)batch->n_rows;
    int32_t counts[4] = {0}, *positions, *seqs;
    int g, s, t;
    counts[0] = batch->n_tokens;
    counts[1] = batch->n_rows;
    counts[2] = batch->n_seqs;
    fg__vk_parcel_add(p, 0, counts, 4);
    fg__vk_parcel_add(p, plan->tokens_at, batch->tokens, n);
    fg__vk_parcel_add(p, plan->feed_at, batch->feed, batch->feed ? n : 0);
    fg__vk_parcel_add(p, plan->rope_positions_at, batch->positions, n);
    positions = fg__vk_parcel_room(p, plan->positions_at, n);
    seqs = fg__vk_parcel_room(p, plan->seqs_at, n);
    for (s = 0; s < batch->n_seqs; s++)
        for (t = batch->cu_q[s]; t < batch->cu_q[s + 1]; t++) {
            positions[t] = batch->kv_len[s] - (batch->cu_q[s + 1] - t);
            seqs[t] = s;
        }
    fg__vk_parcel_add(p, plan->rows_at, batch->rows, rows);
    fg__vk_parcel_add(p, plan->draws_at, batch->draws, batch->draws ? rows * (sizeof(fg_row_draw) / 4) : 0);
    fg__vk_parcel_add(p, plan->starts_at, batch->cu_q, plan->mixed_bytes ? (size_t)batch->n_seqs + 1 : 0);
    for (g = 0; g < plan->graph->n_groups; g++) {
        fg__vk_parcel_add(p, plan->slots_at[g], batch->slots[g], plan->graph->groups[g].kind == FG_GROUP_STATE ? 0 : n);
        fg__vk_parcel_add(p, plan->tables_at[g], batch->tables[g], (size_t)batch->n_seqs * (size_t)plan->graph->max_blocks_per_seq);
        fg__vk_fill_items(p, batch, g);
    }
}

/* ---- The KV pool: K and V of each layer apart, in pieces of as many blocks as kernels see at once. Of recurrent states the heads are in pieces, as a
   state may move from any block to any other. ---- */

/* Words of one head of one token; see shaders/kv.glsl. */
static int fg__vk_kv_stride(fg_type type, int head_dim) {
    if (type == FG_TYPE_F32) return head_dim;
    if (type != FG_TYPE_Q8_0) return (head_dim + 1) / 2;
    return (head_dim + 3) / 4 + ((head_dim + 31) / 32 + 1) / 2;
}

/* Workgroups of a head's state. */
static int fg__vk_state_splits(const fg_op *op) { return (op->head_dim + FG__VK_STATE_COLUMNS - 1) / FG__VK_STATE_COLUMNS; }

/* Floats of a head's state. */
static size_t fg__vk_state_floats(const fg_group *group) { return (size_t)(fg__state_floats(group) / group->n_kv_head); }

/* Of K, or of V, of a layer. */
static size_t fg__vk_block_bytes(const fg_group *group) {
    return (size_t)fg__vk_kv_stride(group->kv_type, group->head_dim) * 4 * (size_t)group->n_kv_head * (size_t)group->block_tokens;
}

/* Bytes of a group's block. */
static size_t fg__vk_whole_block_bytes(const fg_group *group) {
    if (group->kind == FG_GROUP_STATE) return (size_t)group->n_layers * (size_t)fg__state_floats(group) * sizeof(float);
    return 2 * fg__vk_block_bytes(group) * (size_t)group->n_layers;
}

/* What of a layer kernels see at once: so many blocks, or heads of states in all blocks, of which a block's are also staged at once. */
static fg_result fg__vk_cut_group(fg__vk_plan *plan, int g) {
    const fg_group *group = &plan->graph->groups[g];
    bool state = group->kind == FG_GROUP_STATE;
    size_t one = state ? fg__vk_state_floats(group) * sizeof(float) : fg__vk_block_bytes(group), n = (size_t)(state ? group->n_kv_head : group->n_blocks);
    size_t most = plan->device->max_range / one;
    if (state) most = FG__MIN(most / (size_t)group->n_blocks, FG__MAX(FG__VK_STAGING / one, 1));
    plan->piece_blocks[g] = (int)FG__MIN(n, most);
    if (plan->piece_blocks[g] < 1 && state)
        return fg__fail(FG_ERROR_UNSUPPORTED, "%d states of a head of %d are more than the device sees at once; use a smaller max_seqs",
                        group->n_blocks, group->head_dim);
    if (plan->piece_blocks[g] < 1)
        return fg__fail(FG_ERROR_UNSUPPORTED, "a KV block of %d tokens is more than the device sees at once", group->block_tokens);
    plan->n_pieces[g] = (int)((n + (size_t)plan->piece_blocks[g] - 1) / (size_t)plan->piece_blocks[g]);
    return FG_OK;
}

/* Bytes of a block's states of the heads in a piece. */
static size_t fg__vk_states_bytes(const fg__vk_plan *plan, int g, int piece) {
    const fg_group *group = &plan->graph->groups[g];
    return (size_t)FG__MIN(plan->piece_blocks[g], group->n_kv_head - piece * plan->piece_blocks[g]) * fg__vk_state_floats(group) * sizeof(float);
}

/* Bytes of a piece: of K, or of V; of states. */
static size_t fg__vk_piece_bytes(const fg__vk_plan *plan, int g, int piece) {
    const fg_group *group = &plan->graph->groups[g];
    if (group->kind == FG_GROUP_STATE) return fg__vk_states_bytes(plan, g, piece) * (size_t)group->n_blocks;
    return fg__vk_block_bytes(group) * (size_t)FG__MIN(plan->piece_blocks[g], group->n_blocks - piece * plan->piece_blocks[g]);
}

static fg_result fg__vk_check_graph(fg__vk_plan *plan, bool measure) {
    const fg_graph *graph = plan->graph;
    uint64_t words = 0;
    fg_result r;
    int i, last_row = -1;
    for (i = 0; i < graph->n_groups; i++) {
        const fg_group *group = &graph->groups[i];
        if ((r = fg__graph_check_group(group, FG__VK_KV_TYPES, "Vulkan")) != FG_OK) return r;
        if (group->head_dim > FG__VK_MOST_DIM)
            return fg__fail(FG_ERROR_UNSUPPORTED, "the Vulkan backend has no heads of %d", group->head_dim);
        if ((r = fg__vk_cut_group(plan, i)) != FG_OK) return r;
        words += (uint64_t)graph->max_seqs * (uint64_t)graph->max_blocks_per_seq;
    }
    if (graph->max_tokens > 65535 || graph->max_rows > 65535 || words > 1 << 28)
        return fg__fail(FG_ERROR_UNSUPPORTED,
                        "passes of %d tokens or tables of so many blocks are too large for Vulkan", graph->max_tokens);
    for (i = 0; i < graph->n_ops; i++) {
        const fg_op *op = &graph->ops[i];
        if (!fg__op_is_on_gpus(op))
            return fg__fail(FG_ERROR_UNSUPPORTED, "the Vulkan backend has no op %s", fg__op_name(op->type));
        if (!fg__graph_check_op(graph, op, measure))
            return fg__fail(FG_ERROR_INVALID_ARGUMENT, "op %d (%s) names something that is missing or too small", i,
                            fg__op_name(op->type));
        if (op->type == FG_OP_MOE_GEMM && fg__vk_most_tiles(op, graph->max_tokens, FG__VK_LEAST_LARGE) > 65535)
            return fg__fail(FG_ERROR_UNSUPPORTED, "passes of %d tokens are too long for %d experts of each on Vulkan", graph->max_tokens, op->n_used);
        if (op->type == FG_OP_STATE_SCAN && (int64_t)op->n_head * (1 + fg__vk_state_splits(op)) > 65535)
            return fg__fail(FG_ERROR_UNSUPPORTED, "%d value heads are too many for Vulkan", op->n_head);
        if (op->type == FG_OP_SAMPLE) last_row = i;
    }
    plan->sample_op = last_row;
    return FG_OK;
}

/* ---- Pipelines. ---- */

/* The number of a pipeline in the device's list; -1: out of memory. */
static int fg__vk_pipeline_of(fg__vk_device *d, int shader, int a, int b, int c, int e, int experts) {
    void *array = d->pipelines;
    fg__vk_pipeline *p;
    size_t i;
    for (i = 0; i < d->n_pipelines; i++) {
        p = &d->pipelines[i];
        if (p->shader == shader && p->spec[0] == a && p->spec[1] == b && p->spec[2] == c && p->spec[3] == e && p->spec[4] == experts)
            return (int)i;
    }
    if (!fg__reserve(&d->env, &array, &d->pipelines_capacity, d->n_pipelines + 1, sizeof(fg__vk_pipeline))) return -1;
    d->pipelines = (fg__vk_pipeline *)array;
    p = &d->pipelines[d->n_pipelines];
    memset(p, 0, sizeof(*p));
    p->shader = shader;
    p->spec[0] = a;
    p->spec[1] = b;
    p->spec[2] = c;
    p->spec[3] = e;
    p->spec[4] = experts;
    return (int)d->n_pipelines++;
}

static int fg__vk_pipeline_find(fg__vk_device *d, int shader, int a, int b, int c, int e) {
    return fg__vk_pipeline_of(d, shader, a, b, c, e, FG__VK_NO_EXPERTS);
}

static int32_t fg__vk_compile(const fg__vk_device *d, fg__vk_pipeline *p) {
    fg__vk_spec_entry entries[FG__COUNT(p->spec)];
    fg__vk_spec_info spec;
    fg__vk_pipeline_info info;
    fg__vk_size_info size;
    int i;
    for (i = 0; i < (int)FG__COUNT(entries); i++) {
        entries[i].id = (uint32_t)i;
        entries[i].offset = (uint32_t)(4 * i);
        entries[i].bytes = 4;
    }
    memset(&spec, 0, sizeof(spec));
    spec.n_entries = FG__COUNT(entries);
    spec.entries = entries;
    spec.bytes = sizeof(p->spec);
    spec.data = p->spec;
    memset(&info, 0, sizeof(info));
    info.type = FG__VK_PIPELINE_INFO;
    info.stage.type = FG__VK_STAGE_INFO;
    info.stage.stage = FG__VK_COMPUTE_STAGE;
    info.stage.module = d->shaders[p->shader];
    info.stage.entry = "main";
    info.stage.spec = &spec;
    memset(&size, 0, sizeof(size));
    size.type = FG__VK_SIZE_INFO;
    size.size = (uint32_t)d->matrix_lanes;
    if (p->shader == FG__VK_SHADER_GEMM_MATRIX || p->shader == FG__VK_SHADER_GEMM_FEW_MATRIX || p->shader == FG__VK_SHADER_ATTENTION_MATRIX ||
        p->shader == FG__VK_SHADER_ROOF_MATRIX) {
        info.stage.next = d->asks_lanes ? &size : NULL;
        info.stage.flags = FG__VK_FULL_SUBGROUPS;
    }
    info.layout = d->pipeline_layout;
    info.base_index = -1;
    return d->api.CreateComputePipelines(d->handle, d->cache, 1, &info, NULL, &p->handle);
}

/* Threads that compile pipelines claim them one by one. */
typedef struct fg__vk_compiling {
    fg__vk_device *device;
    int next, done, result;
} fg__vk_compiling;

static bool fg__vk_compile_one(fg__vk_compiling *job) {
    int i = fg__atomic_add(&job->next, 1);
    int32_t result;
    if (i >= (int)job->device->n_pipelines || fg__atomic_load(&job->result) < 0) return false;
    if (!job->device->pipelines[i].handle) {
        result = fg__vk_compile(job->device, &job->device->pipelines[i]);
        if (result < 0) fg__atomic_store(&job->result, (int)result);
    }
    fg__atomic_add(&job->done, 1);
    return true;
}

static void fg__vk_compile_some(void *user) {
    while (fg__vk_compile_one((fg__vk_compiling *)user)) {}
}

static fg_result fg__vk_make_shaders(fg__vk_device *d) {
    size_t i;
    for (i = 0; i < d->n_pipelines; i++) {
        fg__vk_shader_info info;
        int shader = d->pipelines[i].shader;
        fg_result r;
        if (d->shaders[shader]) continue;
        memset(&info, 0, sizeof(info));
        info.type = FG__VK_SHADER_INFO;
        info.bytes = fg__vk_spirv[shader].bytes;
        info.code = fg__vk_spirv[shader].code;
        r = fg__vk_check(d, d->api.CreateShaderModule(d->handle, &info, NULL, &d->shaders[shader]), "a shader");
        if (r != FG_OK) return r;
    }
    return FG_OK;
}

/* Forgets the pipelines from the first that did not compile on: they are of the plan that then fails, and the next one does not need them. */
static void fg__vk_drop_failed(fg__vk_device *d) {
    size_t n = 0;
    while (n < d->n_pipelines && d->pipelines[n].handle) n++;
    fg__vk_keep_pipelines(d, n);
}

/* On all cores; progress is told by this thread. */
static fg_result fg__vk_compile_new(fg__vk_device *d) {
    fg__thread threads[15];
    fg__vk_compiling job;
    int n = FG__MIN(fg__cpu_count() - 1, 15), i, started = 0;
    bool stop = false;
    memset(&job, 0, sizeof(job));
    job.device = d;
    for (i = 0; i < n && i + 1 < (int)d->n_pipelines; i++)
        if (fg__thread_start(&threads[started], fg__vk_compile_some, &job)) started++;
    do {
        float done = (float)fg__atomic_load(&job.done) / (float)(d->n_pipelines + 1);
        stop = d->progress && !d->progress(done, "compiling kernels", d->progress_user);
    } while (!stop && fg__vk_compile_one(&job));
    if (stop) fg__atomic_store(&job.next, (int)d->n_pipelines);
    for (i = 0; i < started; i++) fg__thread_join(&threads[i]);
    if (stop) return fg__fail(FG_ERROR_CANCELLED, "loading was stopped");
    return fg__vk_check(d, job.result, "compiling kernels");
}

/* Compiles what the plan needs and the device has not yet. */
static fg_result fg__vk_compile_all(fg__vk_device *d) {
    fg_result r = fg__vk_make_shaders(d);
    if (r == FG_OK) r = fg__vk_compile_new(d);
    if (r != FG_OK) fg__vk_drop_failed(d);
    return r;
}

/* ---- Steps. ---- */

/* What a step's buffers are; an empty one is replaced by the batch block, which every kernel has. */
typedef struct fg__vk_bindings {
    fg__vk_buffer_range at[FG__VK_BINDINGS];
} fg__vk_bindings;

static fg__vk_buffer_range fg__vk_whole(const fg__vk_range *range) {
    fg__vk_buffer_range r;
    r.buffer = range->chunk->buffer;
    r.offset = range->offset;
    r.bytes = range->bytes;
    return r;
}

static void fg__vk_uses(fg__vk_step *step, int resource, bool writes) {
    step->uses[step->n_uses].resource = resource;
    step->uses[step->n_uses++].writes = writes;
}

/* Binds columns of a slot; sets the first column within its part, and the floats from row to row. */
static void fg__vk_bind_slot(const fg__vk_plan *plan, fg__vk_step *step, fg__vk_buffer_range *to, int slot, int first,
                             int n, bool writes, int32_t *column, int32_t *stride) {
    const fg__vk_slot *s = &plan->slots[slot];
    int index = fg__vk_part_of(s, first, n);
    const fg__vk_part *part = &s->parts[index];
    size_t rows = (size_t)(plan->graph->slots[slot].per_row ? plan->graph->max_rows : plan->graph->max_tokens);
    to->buffer = plan->memory.chunk->buffer;
    to->offset = plan->memory.offset + part->offset;
    to->bytes = rows * (size_t)part->stride * sizeof(float);
    *column = first - part->origin;
    *stride = part->stride;
    fg__vk_uses(step, slot * FG__VK_PARTS + index, writes);
}

static void fg__vk_bind_vector(const fg__vk_plan *plan, fg__vk_step *step, fg__vk_buffer_range *to, int weight,
                               int has) {
    if (weight < 0) return;
    *to = fg__vk_whole(&fg__vk_weight_of(plan, weight)->pieces[0].range);
    step->push.has |= has;
}

static fg__vk_buffer_range fg__vk_prepared_range(const fg__vk_plan *plan, fg__vk_step *step, int mode, bool writes) {
    fg__vk_buffer_range range;
    range.buffer = plan->prepared[mode].bytes ? plan->memory.chunk->buffer : 0;
    range.offset = plan->memory.offset + plan->prepared[mode].offset;
    range.bytes = plan->prepared[mode].bytes;
    if (range.buffer) fg__vk_uses(step, plan->graph->n_slots * FG__VK_PARTS + plan->n_layers + 1 + mode, writes);
    return range;
}

/* A new step of an op, with everything that ops have in common. */
static fg__vk_step *fg__vk_add_step(fg__vk_plan *plan, int index, bool per_row) {
    const fg_op *op = &plan->graph->ops[index];
    fg__vk_step *step = &plan->steps[plan->n_steps++];
    memset(step, 0, sizeof(*step));
    step->op = index;
    step->kind = op->type;
    step->most = INT_MAX;
    step->per_row = per_row;
    step->push.n = op->n;
    step->push.k = op->k;
    step->push.act = op->act;
    step->push.count_at = per_row ? 1 : 0;
    step->push.eps = op->eps;
    step->push.scale = op->scale;
    step->push.softcap = op->softcap;
    step->push.rows_at = plan->rows_at;
    step->push.seqs_at = plan->seqs_at;
    return step;
}

/* Fills what describes a step's buffers to the driver. */
static void fg__vk_writes(const fg__vk_step *step, fg__vk_write_info *writes) {
    int i;
    memset(writes, 0, FG__VK_BINDINGS * sizeof(*writes));
    for (i = 0; i < FG__VK_BINDINGS; i++) {
        writes[i].type = FG__VK_WRITE_INFO;
        writes[i].set = step->set;
        writes[i].binding = (uint32_t)i;
        writes[i].count = 1;
        writes[i].descriptor_type = FG__VK_STORAGE_BUFFER;
        writes[i].buffers = &step->buffers[i];
    }
}

/* Room for the descriptors of so many steps; none where they are pushed. */
static fg_result fg__vk_make_pool(fg__vk_device *d, uint32_t n_steps, uint64_t *pool) {
    fg__vk_pool_size size;
    fg__vk_pool_info info;
    if (d->rungs & FG_VULKAN_PUSH) return FG_OK;
    size.type = FG__VK_STORAGE_BUFFER;
    size.count = n_steps * FG__VK_BINDINGS;
    memset(&info, 0, sizeof(info));
    info.type = FG__VK_POOL_INFO;
    info.max_sets = n_steps;
    info.n_sizes = 1;
    info.sizes = &size;
    return fg__vk_check(d, d->api.CreateDescriptorPool(d->handle, &info, NULL, pool), "descriptors");
}

/* A step's descriptors, out of a pool; none where they are pushed. */
static fg_result fg__vk_make_set(fg__vk_device *d, uint64_t pool, fg__vk_step *step) {
    fg__vk_set_info info;
    fg__vk_write_info writes[FG__VK_BINDINGS];
    fg_result r;
    if (d->rungs & FG_VULKAN_PUSH) return FG_OK;
    memset(&info, 0, sizeof(info));
    info.type = FG__VK_SET_INFO;
    info.pool = pool;
    info.count = 1;
    info.layouts = &d->set_layout;
    if ((r = fg__vk_check(d, d->api.AllocateDescriptorSets(d->handle, &info, &step->set), "a descriptor set")) != FG_OK)
        return r;
    fg__vk_writes(step, writes);
    d->api.UpdateDescriptorSets(d->handle, FG__VK_BINDINGS, writes, 0, NULL);
    return FG_OK;
}

static fg_result fg__vk_end_step(fg__vk_plan *plan, fg__vk_step *step, const fg__vk_bindings *bindings) {
    fg__vk_device *d = plan->device;
    int i;
    for (i = 0; i < FG__VK_ROW_KINDS; i++)
        if (step->pipelines[i] < 0) return FG_ERROR_OUT_OF_MEMORY;
    for (i = 0; i < FG__VK_BINDINGS; i++) {
        step->buffers[i] = i && bindings->at[i].buffer ? bindings->at[i] : fg__vk_whole(&plan->batch);
        if (step->buffers[i].bytes > d->properties.limits.max_storage_range)
            return fg__fail(FG_ERROR_UNSUPPORTED,
                            "the buffers of a pass are more than the device sees at once; use a smaller token_budget or max_seqs");
    }
    return fg__vk_make_set(d, plan->pool, step);
}

static void fg__vk_one_pipeline(fg__vk_step *step, int pipeline) {
    int i;
    for (i = 0; i < FG__VK_ROW_KINDS; i++) step->pipelines[i] = pipeline;
}

static fg_result fg__vk_plan_embed(fg__vk_plan *plan, int index) {
    const fg_op *op = &plan->graph->ops[index];
    const fg__vk_weight *w = fg__vk_weight_of(plan, op->weight);
    int i, unit = fg__vk_is_float(w->type) ? 8 : 32;
    if (w->vector) return fg__fail(FG_ERROR_INVALID_ARGUMENT, "op %d (EMBED) has a vector for its table", index);
    for (i = 0; i < w->n_pieces; i++) {
        fg__vk_step *step = fg__vk_add_step(plan, index, plan->graph->slots[op->dst].per_row);
        fg__vk_bindings b;
        fg_result r;
        memset(&b, 0, sizeof(b));
        step->push.row0 = w->pieces[i].row0;
        step->push.rows = w->pieces[i].rows;
        step->push.weight_stride = w->stride;
        step->push.tail_at = w->tail_at;
        if (op->scale == 0) step->push.scale = 1;
        step->groups = (op->n + 64 * unit - 1) / (64 * unit);
        b.at[1] = fg__vk_whole(&w->pieces[i].range);
        fg__vk_bind_slot(plan, step, &b.at[3], op->dst, op->dst_col, op->n, true, &step->push.dst_col, &step->push.dst_stride);
        fg__vk_one_pipeline(step, fg__vk_pipeline_find(plan->device, FG__VK_SHADER_EMBED, (int)w->type, 0, 0, 0));
        if ((r = fg__vk_end_step(plan, step, &b)) != FG_OK) return r;
    }
    return FG_OK;
}

/* Bytes or halves of these columns of a slot are there from now on, in passes of `least` to `most` rows. */
static void fg__vk_has_rows(fg__vk_plan *plan, int mode, int slot, int col, int k, int each, int least, int most) {
    fg__vk_prepared *p = &plan->prepared[mode];
    p->slot = slot;
    p->col = col;
    p->k = k;
    p->each = each;
    p->least = least;
    p->most = most;
    p->per_row = plan->graph->slots[slot].per_row;
}

/* Whether they are. Of a slot that crosses the other device may have written what is there. */
static bool fg__vk_are_rows(const fg__vk_plan *plan, int mode, const fg_op *op, int each, int least, int most) {
    const fg__vk_prepared *p = &plan->prepared[mode];
    if (plan->graph->slots[op->src].crosses || p->slot != op->src || p->col != op->src_col || p->k != op->k || p->each != each) return false;
    return p->per_row == plan->graph->slots[op->src].per_row && p->least <= least && most <= p->most;
}

/* A step that makes bytes or halves of a product's rows, unless they are there. */
static fg_result fg__vk_plan_rows(fg__vk_plan *plan, int index, int mode, int least, int most) {
    const fg_op *op = &plan->graph->ops[index];
    int each = op->moe_sum ? op->n_used : 1;
    fg__vk_step *step;
    fg__vk_bindings b;
    if (fg__vk_are_rows(plan, mode, op, each, least, most)) return FG_OK;
    fg__vk_has_rows(plan, mode, op->src, op->src_col, op->k, each, least, most);
    step = fg__vk_add_step(plan, index, plan->graph->slots[op->src].per_row);
    memset(&b, 0, sizeof(b));
    step->kind = FG_OP_COUNT;
    step->least = least;
    step->most = most;
    step->groups = mode == FG__VK_BYTES ? (op->k / 4 + 127) / 128 : 1;
    step->each = each;
    step->push.dst_stride = (int32_t)fg__vk_prepared_words(mode, op->k);
    fg__vk_bind_slot(plan, step, &b.at[2], op->src, op->src_col, op->k * each, false, &step->push.src_col, &step->push.src_stride);
    b.at[3] = b.at[6] = fg__vk_prepared_range(plan, step, mode, true); /* one is not used, but a kernel's writes are seen by what binds the same */
    fg__vk_one_pipeline(step, fg__vk_pipeline_find(plan->device, FG__VK_SHADER_PREPARE, mode, 0, 0, 0));
    return fg__vk_end_step(plan, step, &b);
}

/* Rows that something is about to write are bytes or halves no longer. */
static void fg__vk_forget_rows(fg__vk_plan *plan, const fg_op *op) {
    int mode, i;
    for (mode = 0; mode < FG__VK_MODES; mode++) {
        fg__vk_prepared *p = &plan->prepared[mode];
        if (p->slot == op->dst || (p->slot == op->src && (op->type == FG_OP_NORM || op->type == FG_OP_ROPE_KV)))
            p->slot = -1;
    }
    for (i = 0; i < 2; i++)
        if (plan->sorted.in[i].slot == op->dst) plan->sorted.in[i].slot = -1;
}

/* Whether rows that a product reads begin at multiples of 16 bytes. */
static bool fg__vk_wide_src(const fg__vk_plan *plan, const fg_op *op) {
    const fg__vk_slot *slot = &plan->slots[op->src];
    const fg__vk_part *part = &slot->parts[fg__vk_part_of(slot, op->src_col, op->k * (op->moe_sum ? op->n_used : 1))];
    return (op->src_col - part->origin) % 4 == 0 && part->stride % 4 == 0;
}

/* Whether gemm_few_matrix.comp has src in shared memory. NVIDIA's matrices from a buffer seem to come by loads of two bytes; those of AMD and Intel
   come by sixteen, and shared memory would be one more way to go. */
static bool fg__vk_shares_src(const fg__vk_device *d) { return d->properties.vendor == FG__VK_NVIDIA; }

/* Bytes of shared memory of gemm_few_matrix.comp: of each subgroup lines of a step, later sums. */
static size_t fg__vk_few_matrix_bytes(const fg__vk_device *d, int tall) {
    int subgroups = 128 / d->matrix_lanes, parts = FG__MAX(1, d->matrix_lanes / tall), lines = tall + (fg__vk_shares_src(d) ? 32 : 0);
    return (size_t)subgroups * FG__MAX((size_t)lines * (size_t)(32 * parts + 8) * 2, (size_t)tall * 32 * 4);
}

/* The kernel of some rows by matrices, where its memory leaves room for more than one workgroup and its subgroups are at most eight; else -1. With
   tiles of 16 rows of a weight, for many workgroups: on an H200 1.14 times the tokens/s of batch 32 that tiles of 32 gave for weights of more than
   4096 rows. */
static int fg__vk_some_matrix(fg__vk_device *d, fg_type type) {
    const fg__vk_matrix_shape *m = &d->shape;
    int tall = FG__MAX(16, (int)m->m);
    if (d->matrix_lanes < 16 || tall > 32 || fg__vk_few_matrix_bytes(d, tall) > FG__MIN(d->properties.limits.shared_bytes, 32768)) return -1;
    return fg__vk_pipeline_find(d, FG__VK_SHADER_GEMM_FEW_MATRIX, (int)type, (int)m->m << 8 | tall, (int)(m->n << 8 | m->k),
                               128 / d->matrix_lanes | (fg__vk_shares_src(d) ? 256 : 0));
}

static int fg__vk_many_matrix(fg__vk_device *d, fg_type type, int experts) {
    int threads = 0, tile = fg__vk_matrix_tile(d, &threads);
    int nk = threads / d->matrix_lanes << 16 | (int)d->shape.n << 8 | (int)d->shape.k;
    return fg__vk_pipeline_of(d, FG__VK_SHADER_GEMM_MATRIX, (int)type, tile | (int)d->shape.m, nk, threads, experts);
}

/* The kernel of many rows of k columns. */
static int fg__vk_choose_many(fg__vk_device *d, fg_type type, int k, int experts) {
    uint32_t many = experts ? fg__vk_expert_rung(d, type, true) : fg__vk_rung_of(d, type, true);
    int ragged = fg__vk_is_float(type) && k % 32, runs = d->options.invariant ? FG__VK_SLICES : 1;
    int gemm = many == FG_VULKAN_DOT ? FG__VK_SHADER_GEMM_DOT : many == FG_VULKAN_HALF ? FG__VK_SHADER_GEMM_HALF : FG__VK_SHADER_GEMM;
    if (many == FG_VULKAN_MATRIX) return fg__vk_many_matrix(d, type, experts);
    return fg__vk_pipeline_of(d, gemm, (int)type, runs, gemm == FG__VK_SHADER_GEMM && ragged, 0, experts);
}

/* Whether workgroups of products of few rows divide k: where all of 64 invocations have a part of it. Not on a CPU, for which barriers are slow. */
static bool fg__vk_divides_k(const fg__vk_device *d, fg_type type, int k) {
    return d->properties.device_type != FG__VK_CPU && k >= 64 * (fg__vk_is_float(type) ? 8 : 32);
}

/* The kernels of few rows, of a weight of n; `how`: see shaders/gemv.glsl. */
static void fg__vk_choose_gemv(fg__vk_device *d, int shader, fg_type type, int how, int n, int *pipelines) {
    int i;
    for (i = FG__VK_ONE; i <= FG__VK_EIGHT; i++) {
        int kind = shader == FG__VK_SHADER_GEMV_HALF ? FG__MIN(i, FG__VK_FOUR) : i; /* whose sums of eight rows are more than registers */
        int each = fg__vk_gemv_rows[kind];
        while ((how & 8) && each > 1 && n / each < FG__VK_GEMV_GROUPS) each /= 2;
        pipelines[i] = fg__vk_pipeline_find(d, shader, (int)type, fg__vk_gemv_cols[kind], each, how);
    }
}

static int fg__vk_gemv_of(uint32_t few) {
    return few == FG_VULKAN_DOT ? FG__VK_SHADER_GEMV_DOT : few == FG_VULKAN_HALF ? FG__VK_SHADER_GEMV_HALF : FG__VK_SHADER_GEMV;
}

/* Whether products of few rows have kernels of their own: with `invariant` where those have the bits of many rows. */
static bool fg__vk_has_gemv(const fg__vk_device *d, uint32_t few) { return !d->options.invariant || (d->narrow && few != FG_VULKAN_MATRIX); }

/* How those divide k; see shaders/gemv.glsl. */
static int fg__vk_how(const fg__vk_plan *plan, const fg_op *op, fg_type type, int gemv) {
    const fg__vk_device *d = plan->device;
    int how = d->options.invariant ? 2 : 0;
    if (gemv == FG__VK_SHADER_GEMV) how |= fg__vk_is_float(type) && op->k % 32 ? 1 : fg__vk_wide_src(plan, op) ? 4 : 0;
    return !d->options.invariant && fg__vk_divides_k(d, type, op->k) ? how | 8 : how;
}

/* The kernels of a product, by the rungs of its weight's type, and what they read beside floats. */
static fg_result fg__vk_choose_gemm(fg__vk_plan *plan, int index, fg__vk_step *step) {
    const fg_op *op = &plan->graph->ops[index];
    fg__vk_device *d = plan->device;
    fg_type type = fg__vk_weight_of(plan, op->weight)->type;
    uint32_t few = fg__vk_rung_of(d, type, false), many = fg__vk_rung_of(d, type, true);
    int gemv = fg__vk_gemv_of(few), i;
    fg_result r = FG_OK;
    fg__vk_one_pipeline(step, fg__vk_choose_many(d, type, op->k, FG__VK_NO_EXPERTS));
    if (many == FG_VULKAN_MATRIX && !d->options.invariant && (i = fg__vk_some_matrix(d, type)) >= 0) step->pipelines[FG__VK_SOME] = i;
    if (fg__vk_has_gemv(d, few)) fg__vk_choose_gemv(d, gemv, type, fg__vk_how(plan, op, type, gemv), d->proving ? INT_MAX : op->n, step->pipelines);
    if (few == FG_VULKAN_DOT) r = fg__vk_plan_rows(plan, index, FG__VK_BYTES, 0, many == few ? INT_MAX : FG__VK_FEW_ROWS);
    if (r == FG_OK && fg__vk_reads(d, type, FG__VK_HALVES))
        r = fg__vk_plan_rows(plan, index, FG__VK_HALVES, d->options.invariant ? 0 : FG__VK_FEW_ROWS + 1, INT_MAX);
    return r;
}

static fg_result fg__vk_plan_gemm(fg__vk_plan *plan, int index) {
    const fg_op *op = &plan->graph->ops[index];
    const fg__vk_weight *w = fg__vk_weight_of(plan, op->weight);
    fg__vk_step kernels;
    fg_result prepared;
    int i;
    if (w->vector) return fg__fail(FG_ERROR_INVALID_ARGUMENT, "op %d (GEMM) has a vector for its weight", index);
    if ((prepared = fg__vk_choose_gemm(plan, index, &kernels)) != FG_OK) return prepared;
    for (i = 0; i < w->n_pieces && w->pieces[i].row0 < op->n; i++) {
        fg__vk_step *step = fg__vk_add_step(plan, index, plan->graph->slots[op->src].per_row);
        fg__vk_bindings b;
        fg_result r;
        memset(&b, 0, sizeof(b));
        step->push.row0 = w->pieces[i].row0;
        step->push.rows = FG__MIN(w->pieces[i].rows, op->n - w->pieces[i].row0);
        step->push.weight_stride = w->stride;
        step->push.tail_at = w->tail_at;
        b.at[1] = fg__vk_whole(&w->pieces[i].range);
        fg__vk_bind_slot(plan, step, &b.at[2], op->src, op->src_col, op->k, false, &step->push.src_col, &step->push.src_stride);
        fg__vk_bind_slot(plan, step, &b.at[3], op->dst, op->dst_col, op->n, true, &step->push.dst_col, &step->push.dst_stride);
        fg__vk_bind_vector(plan, step, &b.at[5], op->bias, FG__VK_HAS_BIAS);
        if (op->src2 >= 0) {
            fg__vk_bind_slot(plan, step, &b.at[4], op->src2, 0, op->n, false, &step->push.src2_col, &step->push.src2_stride);
            step->push.has |= FG__VK_HAS_SRC2;
        }
        b.at[6] = fg__vk_prepared_range(plan, step, FG__VK_BYTES, false);
        b.at[7] = fg__vk_prepared_range(plan, step, FG__VK_HALVES, false);
        memcpy(step->pipelines, kernels.pipelines, sizeof(step->pipelines));
        if ((r = fg__vk_end_step(plan, step, &b)) != FG_OK) return r;
    }
    return FG_OK;
}

/* ---- Mixtures of experts. ---- */

/* Invocations of a workgroup that has a row of n numbers to itself: one for each four. On a CPU few, as barriers are slow there. */
static int fg__vk_row_group(const fg__vk_device *d, int n) {
    int group = 128;
    while (d->properties.device_type != FG__VK_CPU && 4 * group < n && 2 * group <= fg__vk_most_invocations(d)) group *= 2;
    return group;
}

/* Tokens of the longest passes in which each pair of a token and an expert has its workgroups: while few pairs share an expert; 0: there are none. */
static int fg__vk_most_pairs(const fg__vk_device *d, const fg_op *op, uint32_t few) {
    if (!fg__vk_has_gemv(d, few)) return 0;
    return FG__VK_SOME_ROWS * op->n_used <= 4 * op->n_expert ? FG__VK_SOME_ROWS : FG__VK_FEW_ROWS;
}

/* The kernel of one pair. */
static int fg__vk_choose_pairs(const fg__vk_plan *plan, const fg_op *op, fg_type type, int gemv) {
    int how = fg__vk_how(plan, op, type, gemv), each = fg__vk_gemv_rows[FG__VK_ONE];
    while ((how & 8) && each > 1 && op->n / each * op->n_used < FG__VK_GEMV_GROUPS) each /= 2;
    return fg__vk_pipeline_of(plan->device, gemv, (int)type, fg__vk_gemv_cols[FG__VK_ONE], each, how, FG__VK_PAIRS);
}

/* The same of passes whose pairs are in small tiles: while an expert has few of them. */
static int fg__vk_most_small(const fg__vk_device *d, const fg_op *op, uint32_t few) {
    int pairs = fg__vk_most_pairs(d, op, few);
    return fg__vk_has_gemv(d, few) ? FG__MAX(pairs, FG__VK_SHARED_BY * op->n_expert / op->n_used) : pairs;
}

/* The kernel of small tiles, of as many rows as it has registers for. */
static int fg__vk_choose_small(const fg__vk_plan *plan, const fg_op *op, fg_type type, int gemv) {
    int kind = gemv == FG__VK_SHADER_GEMV_HALF ? FG__VK_FOUR : FG__VK_EIGHT;
    return fg__vk_pipeline_of(plan->device, gemv, (int)type, fg__vk_gemv_cols[kind], fg__vk_gemv_rows[kind], fg__vk_how(plan, op, type, gemv), FG__VK_TILES);
}

/* Rows of src that a workgroup of a product takes. */
static int fg__vk_tile_of(const fg__vk_pipeline *p) {
    if (p->shader == FG__VK_SHADER_GEMV || p->shader == FG__VK_SHADER_GEMV_DOT || p->shader == FG__VK_SHADER_GEMV_HALF) return p->spec[1];
    if (p->shader == FG__VK_SHADER_GEMM_MATRIX) return p->spec[1] >> 8 & 255;
    return p->shader == FG__VK_SHADER_GEMM ? 64 : 32;
}

static fg__vk_buffer_range fg__vk_experts_range(const fg__vk_plan *plan, fg__vk_step *step, bool products, bool writes) {
    const fg__vk_sorted *s = &plan->sorted;
    fg__vk_buffer_range range;
    range.buffer = plan->memory.chunk->buffer;
    range.offset = plan->memory.offset + (products ? s->products_at : s->offset);
    range.bytes = products ? s->products_bytes : s->bytes;
    fg__vk_uses(step, plan->graph->n_slots * FG__VK_PARTS + plan->n_layers + 5 + FG__VK_MODES + products, writes);
    return range;
}

/* A step of an op of experts, for passes of `least` to `most` tokens. */
static fg__vk_step *fg__vk_add_experts(fg__vk_plan *plan, int index, int least, int most) {
    const fg_op *op = &plan->graph->ops[index];
    fg__vk_step *step = fg__vk_add_step(plan, index, false);
    step->least = least;
    step->most = most;
    step->push.act = FG_ACT_NONE;
    step->push.n_head = op->n_used;
    step->push.n_kv_head = op->n_expert;
    step->push.has = op->type == FG_OP_MOE_GEMM && op->moe_sum ? FG__VK_HAS_SUM : 0;
    return step;
}

static void fg__vk_bind_routes(const fg__vk_plan *plan, fg__vk_step *step, fg__vk_bindings *b) {
    const fg_op *op = &plan->graph->ops[step->op];
    fg__vk_bind_slot(plan, step, &b->at[4], op->src2, op->src2_col, 2 * op->n_used, false, &step->push.src2_col, &step->push.src2_stride);
}

static fg_result fg__vk_plan_route(fg__vk_plan *plan, int index) {
    const fg_op *op = &plan->graph->ops[index];
    fg__vk_step *step = fg__vk_add_experts(plan, index, 0, INT_MAX);
    fg__vk_bindings b;
    memset(&b, 0, sizeof(b));
    step->groups = 1;
    step->push.neox = op->moe_norm;
    fg__vk_bind_slot(plan, step, &b.at[2], op->src, op->src_col, op->n_expert, false, &step->push.src_col, &step->push.src_stride);
    fg__vk_bind_slot(plan, step, &b.at[3], op->dst, op->dst_col, 2 * op->n_used, true, &step->push.dst_col, &step->push.dst_stride);
    fg__vk_one_pipeline(step, fg__vk_pipeline_find(plan->device, FG__VK_SHADER_ROUTE, 0, 0, 0, 0));
    return fg__vk_end_step(plan, step, &b);
}

/* A step that sorts pairs into tiles, unless they are. */
static fg_result fg__vk_plan_sort(fg__vk_plan *plan, int index, bool large, int tile, int least, int most) {
    const fg_op *op = &plan->graph->ops[index];
    int group = fg__vk_row_group(plan->device, plan->graph->max_tokens * op->n_used);
    fg__vk_step *step;
    fg__vk_bindings b;
    if (!plan->graph->slots[op->src2].crosses && plan->sorted.in[large].slot == op->src2 && plan->sorted.in[large].col == op->src2_col &&
        plan->sorted.in[large].tile == tile && plan->sorted.in[large].least == least)
        return FG_OK;
    plan->sorted.in[large].slot = op->src2;
    plan->sorted.in[large].col = op->src2_col;
    plan->sorted.in[large].tile = tile;
    plan->sorted.in[large].least = least;
    step = fg__vk_add_experts(plan, index, least, most);
    memset(&b, 0, sizeof(b));
    step->kind = FG_OP_COUNT;
    step->alone = true;
    step->groups = 1;
    step->push.n = (int32_t)fg__vk_pairs_at(plan, op, tile);
    step->push.k = tile;
    fg__vk_bind_routes(plan, step, &b);
    b.at[3] = fg__vk_experts_range(plan, step, false, true);
    fg__vk_one_pipeline(step, fg__vk_pipeline_find(plan->device, FG__VK_SHADER_SORT, 0, group, 0, 0));
    return fg__vk_end_step(plan, step, &b);
}

/* A product of pairs with each piece of the weight. */
static fg_result fg__vk_plan_products(fg__vk_plan *plan, int index, int pipeline, int least, int most) {
    const fg_op *op = &plan->graph->ops[index];
    const fg__vk_weight *w = fg__vk_weight_of(plan, op->weight);
    bool pairs = pipeline >= 0 && plan->device->pipelines[pipeline].spec[4] == FG__VK_PAIRS;
    fg_result r = FG_OK;
    int i;
    for (i = 0; i < w->n_pieces && w->pieces[i].row0 < op->n * op->n_expert && r == FG_OK; i++) {
        fg__vk_step *step = fg__vk_add_experts(plan, index, least, most);
        fg__vk_push *p = &step->push;
        fg__vk_bindings b;
        memset(&b, 0, sizeof(b));
        step->each = pairs ? op->n_used : 1;
        p->row0 = w->pieces[i].row0 / op->n;
        p->n_rot = w->pieces[i].rows / op->n;
        p->rows = op->n;
        p->weight_stride = w->stride;
        p->tail_at = w->tail_at;
        b.at[1] = fg__vk_whole(&w->pieces[i].range);
        fg__vk_bind_slot(plan, step, &b.at[2], op->src, op->src_col, op->k * (op->moe_sum ? op->n_used : 1), false, &p->src_col, &p->src_stride);
        if (op->moe_sum) b.at[3] = fg__vk_experts_range(plan, step, true, true);
        else fg__vk_bind_slot(plan, step, &b.at[3], op->dst, op->dst_col, op->n * op->n_used, true, &p->dst_col, &p->dst_stride);
        if (pairs) fg__vk_bind_routes(plan, step, &b);
        else b.at[4] = fg__vk_experts_range(plan, step, false, false);
        fg__vk_bind_vector(plan, step, &b.at[5], op->bias, FG__VK_HAS_BIAS);
        b.at[6] = fg__vk_prepared_range(plan, step, FG__VK_BYTES, false);
        b.at[7] = fg__vk_prepared_range(plan, step, FG__VK_HALVES, false);
        fg__vk_one_pipeline(step, pipeline);
        r = fg__vk_end_step(plan, step, &b);
    }
    return r;
}

/* Adds the products of a token up. */
static fg_result fg__vk_plan_combine(fg__vk_plan *plan, int index) {
    const fg_op *op = &plan->graph->ops[index];
    fg__vk_step *step = fg__vk_add_experts(plan, index, 0, INT_MAX);
    fg__vk_bindings b;
    memset(&b, 0, sizeof(b));
    step->kind = FG_OP_COUNT;
    step->groups = (op->n + 63) / 64;
    b.at[2] = fg__vk_experts_range(plan, step, true, false);
    fg__vk_bind_slot(plan, step, &b.at[3], op->dst, op->dst_col, op->n, true, &step->push.dst_col, &step->push.dst_stride);
    fg__vk_bind_routes(plan, step, &b);
    fg__vk_one_pipeline(step, fg__vk_pipeline_find(plan->device, FG__VK_SHADER_COMBINE, 0, 0, 0, 0));
    return fg__vk_end_step(plan, step, &b);
}

/* Rows as bytes and as halves, where the kernels of passes of up to `most` tokens, or of more, read those. */
static fg_result fg__vk_plan_experts_rows(fg__vk_plan *plan, int index, fg_type type, int most) {
    uint32_t few = fg__vk_expert_rung(plan->device, type, false), many = fg__vk_expert_rung(plan->device, type, true);
    fg_result r = FG_OK;
    if (few == FG_VULKAN_DOT) r = fg__vk_plan_rows(plan, index, FG__VK_BYTES, 0, many == few ? INT_MAX : most);
    if (r != FG_OK || (many != FG_VULKAN_HALF && many != FG_VULKAN_MATRIX)) return r;
    return fg__vk_plan_rows(plan, index, FG__VK_HALVES, many == few ? 0 : most + 1, INT_MAX);
}

/* Products of pairs in tiles, for passes of `least` to `most` tokens. */
static fg_result fg__vk_plan_tiles(fg__vk_plan *plan, int index, bool large, int pipeline, int least, int most) {
    fg_result r;
    if (pipeline < 0) return FG_ERROR_OUT_OF_MEMORY;
    r = fg__vk_plan_sort(plan, index, large, fg__vk_tile_of(&plan->device->pipelines[pipeline]), least, most);
    return r == FG_OK ? fg__vk_plan_products(plan, index, pipeline, least, most) : r;
}

static fg_result fg__vk_plan_experts(fg__vk_plan *plan, int index) {
    const fg_op *op = &plan->graph->ops[index];
    const fg__vk_weight *w = fg__vk_weight_of(plan, op->weight);
    uint32_t few = fg__vk_expert_rung(plan->device, w->type, false);
    int pairs = fg__vk_most_pairs(plan->device, op, few), small = fg__vk_most_small(plan->device, op, few), longest = plan->graph->max_tokens;
    fg_result r = FG_OK;
    if (w->vector) return fg__fail(FG_ERROR_INVALID_ARGUMENT, "op %d (MOE_GEMM) has a vector for its weight", index);
    if ((r = fg__vk_plan_experts_rows(plan, index, w->type, small)) != FG_OK) return r;
    if (pairs > 0) r = fg__vk_plan_products(plan, index, fg__vk_choose_pairs(plan, op, w->type, fg__vk_gemv_of(few)), 0, pairs);
    if (r == FG_OK && small > pairs && longest > pairs)
        r = fg__vk_plan_tiles(plan, index, false, fg__vk_choose_small(plan, op, w->type, fg__vk_gemv_of(few)), pairs + 1, small);
    if (r == FG_OK && longest > small)
        r = fg__vk_plan_tiles(plan, index, true, fg__vk_choose_many(plan->device, w->type, op->k, FG__VK_TILES), small + 1, INT_MAX);
    return r == FG_OK && op->moe_sum ? fg__vk_plan_combine(plan, index) : r;
}

/* Bytes of shared memory of an attention kernel; see shaders/attention*.comp. */
static size_t fg__vk_attention_bytes(int shader, int head_dim, int rows) {
    size_t r = (size_t)rows, n = (size_t)head_dim, all = 4 * (64 + 12 * r); /* what attention.glsl has */
    if (shader == FG__VK_SHADER_ATTENTION_MATRIX)
        return all + 2 * r * (fg__round_up(n, 32) + 8) + 2 * 64 * 40 + 4 * 64 * r + 2 * 72 * r;
    if (shader == FG__VK_SHADER_ATTENTION_HALF) return all + 2 * fg__round_up(n, 8) * r + 6 * 64 * (r + 4);
    return all + 4 * fg__round_up(n, 4) * r + 4 * 64 * (r + 4);
}

static bool fg__vk_tile_fits(const fg__vk_device *d, int shader, int head_dim, int rows) {
    return fg__vk_attention_bytes(shader, head_dim, rows) <= d->properties.limits.shared_bytes;
}

/* Whether an invocation of attention_half.comp keeps its sums, two for each pair of values and row, in registers. Of Intel's GPUs a thread has 128
   registers of 8 floats: by Mesa's compiler eight pairs are all that fit, and with more a row takes 1.7 to 4.5 times as long (its estimate of cycles). */
static bool fg__vk_sums_fit(const fg__vk_device *d, int shader, fg_type type, int head_dim, int rows) {
    int per_word = type == FG_TYPE_Q8_0 ? 4 : 2, words = (head_dim + per_word - 1) / per_word;
    if (shader != FG__VK_SHADER_ATTENTION_HALF || d->properties.vendor != FG__VK_INTEL) return true;
    return rows * (per_word / 2) * ((words + 63) / 64) <= 8;
}

/* The shape of an attention. Two KV heads stand for more, a window for longer ones. */
static fg__vk_shape fg__vk_shape_of(const fg_graph *graph, const fg_op *op) {
    const fg_group *group = &graph->groups[op->group];
    fg__vk_shape shape;
    shape.kv_type = (int32_t)group->kv_type;
    shape.head_dim = op->head_dim;
    shape.n_kv_head = FG__MIN(op->n_kv_head, 2);
    shape.n_head = op->n_head / op->n_kv_head * shape.n_kv_head;
    shape.window = FG__MAX(0, FG__MIN(group->window, FG__VK_MOST_WINDOW));
    shape.softcap = op->softcap;
    return shape;
}

/* NULL: it was not tried. */
static const fg__vk_tried *fg__vk_find_tried(const fg__vk_device *d, const fg__vk_shape *shape) {
    size_t i;
    for (i = 0; i < d->n_tried; i++)
        if (memcmp(&d->tried[i].shape, shape, sizeof(*shape)) == 0) return &d->tried[i];
    return NULL;
}

/* The rungs that attention may use: those of the trial while one runs, else those that proved good with its shape. */
static uint32_t fg__vk_heads_rungs(const fg__vk_plan *plan, const fg_op *op) {
    fg__vk_shape shape = fg__vk_shape_of(plan->graph, op);
    const fg__vk_tried *tried = plan->device->proving ? NULL : fg__vk_find_tried(plan->device, &shape);
    return tried ? tried->rungs : plan->device->rungs;
}

/* The kernels of an attention. Halves hold what a cache of F16 or Q8_0 does, not the range of the others. Of a pass of few tokens a
   tile has as many rows as heads share a KV head, at most 16. */
static void fg__vk_choose_attention(const fg__vk_plan *plan, fg__vk_step *step) {
    const fg_op *op = &plan->graph->ops[step->op];
    const fg__vk_device *d = plan->device;
    const fg__vk_matrix_shape *m = &d->shape;
    fg_type type = plan->graph->groups[op->group].kv_type;
    bool halves = type == FG_TYPE_F16 || type == FG_TYPE_Q8_0;
    uint32_t rungs = fg__vk_heads_rungs(plan, op);
    int i;
    for (i = 0; i < FG__VK_ROW_KINDS; i++) {
        bool items = step->part == FG__VK_ITEMS, many = i > FG__VK_EIGHT && !items, matrix = many && !d->options.invariant;
        int shader = halves && (rungs & FG_VULKAN_HALF) ? FG__VK_SHADER_ATTENTION_HALF : FG__VK_SHADER_ATTENTION, shape = items;
        int rows = 1, most = many ? 16 : FG__MIN(op->n_head / op->n_kv_head, 16), tall = 32;
        while (rows < most) rows *= 2;
        while (rows > 1 && !(fg__vk_tile_fits(d, shader, op->head_dim, rows) && fg__vk_sums_fit(d, shader, type, op->head_dim, rows)))
            rows /= 2;
        if (tall > (int)m->m && !fg__vk_tile_fits(d, FG__VK_SHADER_ATTENTION_MATRIX, op->head_dim, tall)) tall /= 2;
        if (matrix && halves && (rungs & FG_VULKAN_MATRIX) && tall >= (int)m->m &&
            fg__vk_tile_fits(d, FG__VK_SHADER_ATTENTION_MATRIX, op->head_dim, tall)) {
            shader = FG__VK_SHADER_ATTENTION_MATRIX;
            rows = tall;
            shape = (int)(m->m << 24 | m->n << 16 | m->k << 8) | 128 / d->matrix_lanes;
        }
        step->tile[i] = rows;
        step->pipelines[i] = fg__vk_pipeline_find(plan->device, shader, (int)type, op->head_dim, rows, shape);
    }
}

/* Blocks of a layer from `piece * piece_blocks` on. */
static fg__vk_layer *fg__vk_layer_piece(const fg__vk_plan *plan, int group, int layer, int piece) {
    return &plan->layers[plan->piece_of[group] + layer * plan->n_pieces[group] + piece];
}

/* Binds what items leave for their merges. */
static void fg__vk_bind_parts(const fg__vk_plan *plan, fg__vk_step *step, fg__vk_buffer_range *parts, fg__vk_buffer_range *states) {
    parts->buffer = states->buffer = plan->memory.chunk->buffer;
    parts->offset = plan->memory.offset + plan->parts_at;
    parts->bytes = plan->parts_bytes;
    states->offset = plan->memory.offset + plan->part_states_at;
    states->bytes = plan->part_states_bytes;
    fg__vk_uses(step, plan->graph->n_slots * FG__VK_PARTS + plan->n_layers + 4 + FG__VK_MODES, step->part == FG__VK_ITEMS);
}

/* ROPE_KV and ATTENTION over one piece of the layer's blocks. */
static void fg__vk_plan_heads(fg__vk_plan *plan, fg__vk_step *step, fg__vk_bindings *b, int piece) {
    const fg_op *op = &plan->graph->ops[step->op];
    const fg_group *group = &plan->graph->groups[op->group];
    const fg__vk_layer *layer = fg__vk_layer_piece(plan, op->group, op->group_layer, piece);
    int q = op->n_head * op->head_dim, kv = op->n_kv_head * op->head_dim;
    bool rope = op->type == FG_OP_ROPE_KV;
    fg__vk_push *p = &step->push;
    p->n_head = op->n_head;
    p->n_kv_head = op->n_kv_head;
    p->head_dim = op->head_dim;
    p->n_rot = op->n_rot;
    p->neox = op->rope_neox;
    p->slots_at = plan->slots_at[op->group];
    p->table_at = plan->tables_at[op->group];
    p->table_stride = plan->graph->max_blocks_per_seq;
    p->block_tokens = group->block_tokens;
    p->kv_stride = fg__vk_kv_stride(group->kv_type, group->head_dim);
    p->window = group->window;
    p->row0 = piece * plan->piece_blocks[op->group];
    p->rows = FG__MIN(plan->piece_blocks[op->group], group->n_blocks - p->row0);
    if (piece > 0) p->has |= FG__VK_HAS_EARLIER;
    if (piece + 1 < plan->n_pieces[op->group]) p->has |= FG__VK_HAS_LATER;
    p->positions_at = rope ? plan->rope_positions_at : plan->positions_at;
    b->at[6] = fg__vk_whole(&layer->k);
    b->at[7] = fg__vk_whole(&layer->v);
    fg__vk_uses(step, plan->graph->n_slots * FG__VK_PARTS + plan->layer_of[op->group] + op->group_layer, rope);
    fg__vk_bind_slot(plan, step, &b->at[2], op->src, op->src_col, q, rope, &p->src_col, &p->src_stride);
    if (!rope) {
        fg__vk_choose_attention(plan, step);
        p->slots_at = plan->cuts[op->group].at;
        p->rows_at = plan->cuts[op->group].items_at;
        fg__vk_bind_vector(plan, step, &b->at[1], op->weight, FG__VK_HAS_WEIGHT);
        if (step->part == FG__VK_ITEMS) {
            fg__vk_bind_parts(plan, step, &b->at[3], &b->at[4]);
            return;
        }
        fg__vk_bind_slot(plan, step, &b->at[3], op->dst, op->dst_col, q, true, &p->dst_col, &p->dst_stride);
        b->at[4] = b->at[3]; /* not used, but a kernel's writes are seen by what binds the same */
        if (plan->n_pieces[op->group] == 1) return;
        b->at[4].buffer = plan->memory.chunk->buffer;
        b->at[4].offset = plan->memory.offset + plan->state_at;
        b->at[4].bytes = plan->state_bytes;
        fg__vk_uses(step, plan->graph->n_slots * FG__VK_PARTS + plan->n_layers + 1 + FG__VK_MODES, true);
        return;
    }
    step->groups = op->n_head + 2 * op->n_kv_head;
    fg__vk_one_pipeline(step, fg__vk_pipeline_find(plan->device, FG__VK_SHADER_ROPE_KV, (int)group->kv_type, op->head_dim, 0, 0));
    fg__vk_bind_vector(plan, step, &b->at[1], op->weight, FG__VK_HAS_WEIGHT);
    fg__vk_bind_vector(plan, step, &b->at[4], op->weight2, FG__VK_HAS_WEIGHT2);
    fg__vk_bind_vector(plan, step, &b->at[5], op->n_rot ? op->bias : -1, 0);
    fg__vk_bind_slot(plan, step, &b->at[3], op->src, op->src2_col, kv, false, &p->src2_col, &p->src2_stride);
    fg__vk_bind_slot(plan, step, &b->at[0], op->src, op->dst_col, kv, false, &p->dst_col, &p->dst_stride);
    /* k and v may be parts of their own: the shader sees the whole slot, from the first of its parts on */
    {
        const fg__vk_slot *slot = &plan->slots[op->src];
        const fg__vk_part *last = &slot->parts[slot->n_parts - 1];
        size_t base = plan->memory.offset + slot->parts[0].offset;
        p->src_col += (int32_t)((b->at[2].offset - base) / sizeof(float));
        p->src2_col += (int32_t)((b->at[3].offset - base) / sizeof(float));
        p->dst_col += (int32_t)((b->at[0].offset - base) / sizeof(float));
        b->at[2].offset = base;
        b->at[2].bytes = last->offset - slot->parts[0].offset +
                         (size_t)plan->graph->max_tokens * (size_t)last->stride * sizeof(float);
        memset(&b->at[3], 0, sizeof(b->at[3]));
    }
}

static fg_result fg__vk_plan_merges(fg__vk_plan *plan, int index) {
    const fg_op *op = &plan->graph->ops[index];
    fg__vk_step *step = fg__vk_add_step(plan, index, false);
    fg__vk_push *p = &step->push;
    int width = op->n_head * op->head_dim;
    fg__vk_bindings b;
    memset(&b, 0, sizeof(b));
    step->part = FG__VK_MERGES;
    step->groups = (width + 63) / 64;
    p->n_head = op->n_head;
    p->head_dim = op->head_dim;
    p->slots_at = plan->cuts[op->group].at;
    p->rows_at = plan->cuts[op->group].merges_at;
    fg__vk_bind_vector(plan, step, &b.at[1], op->weight, FG__VK_HAS_WEIGHT);
    fg__vk_bind_parts(plan, step, &b.at[2], &b.at[4]);
    fg__vk_bind_slot(plan, step, &b.at[3], op->dst, op->dst_col, width, true, &p->dst_col, &p->dst_stride);
    fg__vk_one_pipeline(step, fg__vk_pipeline_find(plan->device, FG__VK_SHADER_ATTENTION_MERGE, 0, 0, 0, 0));
    return fg__vk_end_step(plan, step, &b);
}

/* ROPE_KV, or ATTENTION of whole queries or of items, over each piece of the KV pool. */
static fg_result fg__vk_plan_pieces(fg__vk_plan *plan, int index, int part) {
    const fg_op *op = &plan->graph->ops[index];
    fg_result r = FG_OK;
    int i;
    for (i = 0; i < plan->n_pieces[op->group] && r == FG_OK; i++) {
        fg__vk_step *step = fg__vk_add_step(plan, index, plan->graph->slots[op->src].per_row);
        fg__vk_bindings b;
        memset(&b, 0, sizeof(b));
        step->part = part;
        fg__vk_plan_heads(plan, step, &b, i);
        r = fg__vk_end_step(plan, step, &b);
    }
    return r;
}

/* ---- Recurrent layers. ---- */

/* A step of STATE_SCAN, for the value heads in a piece of the pool. */
static fg__vk_step *fg__vk_add_state(fg__vk_plan *plan, int index, fg__vk_bindings *b, int piece) {
    const fg_op *op = &plan->graph->ops[index];
    const fg_group *group = &plan->graph->groups[op->group];
    fg__vk_step *step = fg__vk_add_step(plan, index, false);
    fg__vk_push *p = &step->push;
    memset(b, 0, sizeof(*b));
    p->n_head = op->n_head;
    p->n_kv_head = op->n_kv_head;
    p->head_dim = op->head_dim;
    p->neox = op->state_tiled;
    p->slots_at = plan->starts_at;
    p->positions_at = plan->positions_at;
    p->table_at = plan->tables_at[op->group];
    p->table_stride = plan->graph->max_blocks_per_seq;
    p->block_tokens = group->block_tokens;
    p->kv_stride = (int32_t)fg__vk_state_floats(group);
    p->row0 = piece * plan->piece_blocks[op->group];
    p->rows = FG__MIN(plan->piece_blocks[op->group], op->n_head - p->row0);
    return step;
}

/* Binds the states of a piece, and what the convolution leaves. */
static void fg__vk_bind_state(const fg__vk_plan *plan, fg__vk_step *step, fg__vk_bindings *b, fg__vk_buffer_range *mixed, int piece, bool scan) {
    const fg_op *op = &plan->graph->ops[step->op];
    int resources = plan->graph->n_slots * FG__VK_PARTS;
    mixed->buffer = plan->memory.chunk->buffer;
    mixed->offset = plan->memory.offset + plan->mixed_at;
    mixed->bytes = plan->mixed_bytes;
    fg__vk_uses(step, resources + plan->n_layers + 7 + FG__VK_MODES, !scan);
    b->at[6] = fg__vk_whole(&fg__vk_layer_piece(plan, op->group, op->group_layer, piece)->k);
    fg__vk_uses(step, resources + plan->layer_of[op->group] + op->group_layer, scan);
}

/* What is done for all tokens beside each other. */
static fg_result fg__vk_plan_conv(fg__vk_plan *plan, int index, int piece) {
    const fg_op *op = &plan->graph->ops[index];
    int beta = op->src_col + fg__vk_state_beta(op);
    fg__vk_bindings b;
    fg__vk_step *step = fg__vk_add_state(plan, index, &b, piece);
    fg__vk_push *p = &step->push;
    step->groups = op->n_kv_head + op->n_head;
    fg__vk_bind_state(plan, step, &b, &b.at[3], piece, false);
    fg__vk_bind_vector(plan, step, &b.at[1], op->weight, 0);
    fg__vk_bind_vector(plan, step, &b.at[4], op->weight2, 0);
    fg__vk_bind_slot(plan, step, &b.at[2], op->src, op->src_col, fg__vk_state_z(op), false, &p->src_col, &p->src_stride);
    fg__vk_bind_slot(plan, step, &b.at[5], op->src, beta, op->n_head, false, &p->src2_col, &p->src2_stride);
    fg__vk_bind_slot(plan, step, &b.at[7], op->src, beta + op->n_head, op->n_head, false, &p->dst_col, &p->dst_stride);
    fg__vk_one_pipeline(step, fg__vk_pipeline_find(plan->device, FG__VK_SHADER_STATE_CONV, 0, 0, 0, 0));
    return fg__vk_end_step(plan, step, &b);
}

/* The delta rule, token by token. */
static fg_result fg__vk_plan_scan(fg__vk_plan *plan, int index, int piece) {
    const fg_op *op = &plan->graph->ops[index];
    fg__vk_bindings b;
    fg__vk_step *step = fg__vk_add_state(plan, index, &b, piece);
    fg__vk_push *p = &step->push;
    step->by_seq = true;
    step->groups = p->rows * fg__vk_state_splits(op);
    p->count_at = 2;
    fg__vk_bind_state(plan, step, &b, &b.at[4], piece, true);
    fg__vk_bind_slot(plan, step, &b.at[2], op->src, op->src_col, fg__vk_state_z(op), false, &p->src_col, &p->src_stride);
    fg__vk_bind_slot(plan, step, &b.at[3], op->dst, op->dst_col, op->n, true, &p->dst_col, &p->dst_stride);
    fg__vk_one_pipeline(step, fg__vk_pipeline_find(plan->device, FG__VK_SHADER_STATE_SCAN, op->head_dim, 0, 0, 0));
    return fg__vk_end_step(plan, step, &b);
}

static fg_result fg__vk_plan_state_norm(fg__vk_plan *plan, int index) {
    const fg_op *op = &plan->graph->ops[index];
    fg__vk_bindings b;
    fg__vk_step *step = fg__vk_add_state(plan, index, &b, 0);
    fg__vk_push *p = &step->push;
    step->groups = op->n_head;
    fg__vk_bind_vector(plan, step, &b.at[5], op->bias, FG__VK_HAS_BIAS);
    fg__vk_bind_slot(plan, step, &b.at[4], op->src, op->src_col + fg__vk_state_z(op), op->n, false, &p->src2_col, &p->src2_stride);
    fg__vk_bind_slot(plan, step, &b.at[3], op->dst, op->dst_col, op->n, true, &p->dst_col, &p->dst_stride);
    fg__vk_one_pipeline(step, fg__vk_pipeline_find(plan->device, FG__VK_SHADER_STATE_NORM, 0, 0, 0, 0));
    return fg__vk_end_step(plan, step, &b);
}

/* STATE_SCAN: the heads of each piece of the pool, then what is done for all heads. */
static fg_result fg__vk_plan_state(fg__vk_plan *plan, int index) {
    fg_result r = FG_OK;
    int i;
    for (i = 0; i < plan->n_pieces[plan->graph->ops[index].group] && r == FG_OK; i++) {
        r = fg__vk_plan_conv(plan, index, i);
        if (r == FG_OK) r = fg__vk_plan_scan(plan, index, i);
    }
    return r == FG_OK ? fg__vk_plan_state_norm(plan, index) : r;
}

/* ---- Ops by elements, norms, what comes of logits. ---- */

/* Whether a NORM or ACT_MUL makes bytes of its rows: where a product is the next to read them, and by dot products of bytes. */
static bool fg__vk_makes_bytes(const fg__vk_plan *plan, int index) {
    const fg_op *op = &plan->graph->ops[index], *next;
    int i;
    if ((op->type != FG_OP_NORM && op->type != FG_OP_ACT_MUL) || op->n % 32) return false;
    for (i = index + 1; i < plan->graph->n_ops; i++) {
        next = &plan->graph->ops[i];
        if (next->src != op->dst && next->src2 != op->dst && next->dst != op->dst) continue;
        return next->type == FG_OP_GEMM && next->src == op->dst && next->src_col == op->dst_col && next->k == op->n &&
               fg__vk_rung_of(plan->device, fg__vk_weight_of(plan, next->weight)->type, false) == FG_VULKAN_DOT;
    }
    return false;
}

/* Its kernels: those that make bytes for as many rows as products read them of. */
static void fg__vk_choose_rest(fg__vk_plan *plan, fg__vk_step *step, fg__vk_bindings *b, int shader) {
    const fg_op *op = &plan->graph->ops[step->op];
    int group = shader == FG__VK_SHADER_NORM || shader == FG__VK_SHADER_SAMPLE ? fg__vk_row_group(plan->device, op->n) : 0;
    int last = plan->device->rungs & FG_VULKAN_MATRIX ? FG__VK_EIGHT : FG__VK_MANY, i;
    fg__vk_one_pipeline(step, fg__vk_pipeline_find(plan->device, shader, 0, group, 0, 0));
    if (shader == FG__VK_SHADER_NORM || shader == FG__VK_SHADER_ACT_MUL) b->at[6] = b->at[3]; /* not the batch, as if that were written */
    if (!fg__vk_makes_bytes(plan, step->op)) return;
    b->at[6] = fg__vk_prepared_range(plan, step, FG__VK_BYTES, true);
    for (i = FG__VK_ONE; i <= last; i++) step->pipelines[i] = fg__vk_pipeline_find(plan->device, shader, 1, group, 0, 0);
    fg__vk_has_rows(plan, FG__VK_BYTES, op->dst, op->dst_col, op->n, 1, 0, last == FG__VK_EIGHT ? FG__VK_FEW_ROWS : INT_MAX);
}

static fg_result fg__vk_plan_rest(fg__vk_plan *plan, int index) {
    const fg_op *op = &plan->graph->ops[index];
    bool per_row = plan->graph->slots[op->type == FG_OP_GATHER_ROWS ? op->dst : op->src].per_row;
    fg__vk_step *step = fg__vk_add_step(plan, index, per_row);
    fg__vk_push *p = &step->push;
    fg__vk_bindings b;
    int shader = -1;
    memset(&b, 0, sizeof(b));
    step->groups = (op->n + 127) / 128;
    fg__vk_bind_slot(plan, step, &b.at[2], op->src, op->src_col, fg__vk_act_columns(op), op->type == FG_OP_NORM && op->src2 >= 0, &p->src_col, &p->src_stride);
    if (op->src2 >= 0) {
        fg__vk_bind_slot(plan, step, &b.at[4], op->src2, op->src2_col, op->n, false, &p->src2_col, &p->src2_stride);
        p->has |= FG__VK_HAS_SRC2;
    }
    if (op->type != FG_OP_SAMPLE)
        fg__vk_bind_slot(plan, step, &b.at[3], op->dst, op->dst_col, op->n, true, &p->dst_col, &p->dst_stride);
    if (op->type == FG_OP_ACT_MUL) shader = FG__VK_SHADER_ACT_MUL;
    if (op->type == FG_OP_GATHER_ROWS) shader = FG__VK_SHADER_GATHER;
    if (op->type == FG_OP_NORM) {
        shader = FG__VK_SHADER_NORM;
        step->groups = 1;
        fg__vk_bind_vector(plan, step, &b.at[1], op->weight, FG__VK_HAS_WEIGHT);
        fg__vk_bind_vector(plan, step, &b.at[5], op->bias, FG__VK_HAS_BIAS);
    }
    if (op->type == FG_OP_SAMPLE) {
        shader = FG__VK_SHADER_SAMPLE;
        step->groups = 1;
        b.at[3] = fg__vk_whole(&plan->rows);
        fg__vk_uses(step, plan->graph->n_slots * FG__VK_PARTS + plan->n_layers, true);
    }
    fg__vk_choose_rest(plan, step, &b, shader);
    return fg__vk_end_step(plan, step, &b);
}

enum { FG__VK_TOP_PIECE = 4096 }; /* PIECE of shaders/top.glsl */

static size_t fg__vk_tops_bytes(const fg__vk_plan *plan) {
    size_t pieces = (size_t)(plan->graph->ops[plan->sample_op].n + FG__VK_TOP_PIECE - 1) / FG__VK_TOP_PIECE;
    return (size_t)plan->graph->max_rows * pieces * sizeof(fg_row_candidates);
}

/* Candidates and a draw, after SAMPLE: of pieces of rows (first), then of rows. */
static fg_result fg__vk_plan_draws(fg__vk_plan *plan, int index, bool first) {
    const fg_op *op = &plan->graph->ops[index];
    fg__vk_step *step = fg__vk_add_step(plan, index, plan->graph->slots[op->src].per_row);
    int results = plan->graph->n_slots * FG__VK_PARTS + plan->n_layers;
    fg__vk_bindings b;
    memset(&b, 0, sizeof(b));
    step->draws = true;
    step->push.k = (op->n + FG__VK_TOP_PIECE - 1) / FG__VK_TOP_PIECE;
    step->push.rows_at = plan->draws_at;
    step->groups = first ? step->push.k : 1;
    fg__vk_bind_slot(plan, step, &b.at[2], op->src, op->src_col, op->n, false, &step->push.src_col, &step->push.src_stride);
    b.at[3] = fg__vk_whole(first ? &plan->tops : &plan->candidates);
    b.at[4] = fg__vk_whole(&plan->rows);
    if (!first) b.at[5] = fg__vk_whole(&plan->tops);
    fg__vk_uses(step, results, false);
    fg__vk_uses(step, results + 2 + FG__VK_MODES, first);
    if (!first) fg__vk_uses(step, results + 3 + FG__VK_MODES, true);
    fg__vk_one_pipeline(step, fg__vk_pipeline_find(plan->device, first ? FG__VK_SHADER_TOP : FG__VK_SHADER_PICK, 0, 0, 0, 0));
    return fg__vk_end_step(plan, step, &b);
}

/* A step that runs before a pass, of which it is no part. */
static fg_result fg__vk_plan_feed(fg__vk_plan *plan) {
    fg__vk_step *step = &plan->feed;
    fg__vk_bindings b;
    memset(&b, 0, sizeof(b));
    memset(step, 0, sizeof(*step));
    step->kind = FG_OP_COUNT;
    step->groups = (plan->graph->max_tokens + 63) / 64;
    step->push.src_col = plan->feed_at;
    step->push.dst_col = plan->tokens_at;
    b.at[3] = fg__vk_whole(&plan->batch);
    b.at[4] = fg__vk_whole(&plan->rows);
    fg__vk_one_pipeline(step, fg__vk_pipeline_find(plan->device, FG__VK_SHADER_FEED, 0, 0, 0, 0));
    return fg__vk_end_step(plan, step, &b);
}

/* A vector must have been packed as one. */
static fg_result fg__vk_check_vectors(const fg__vk_plan *plan, const fg_op *op) {
    int vectors[3], i;
    vectors[0] = op->type == FG_OP_NORM || op->type == FG_OP_ROPE_KV || op->type == FG_OP_ATTENTION || op->type == FG_OP_STATE_SCAN ? op->weight : -1;
    vectors[1] = op->weight2;
    vectors[2] = op->bias;
    for (i = 0; i < 3; i++)
        if (vectors[i] >= 0 && !fg__vk_weight_of(plan, vectors[i])->vector)
            return fg__fail(FG_ERROR_INVALID_ARGUMENT, "op %s has a matrix where a vector belongs",
                            fg__op_name(op->type));
    return FG_OK;
}

static fg_result fg__vk_plan_steps(fg__vk_plan *plan) {
    const fg_graph *graph = plan->graph;
    fg_result r = FG_OK;
    int i;
    for (i = 0; i < graph->n_ops && r == FG_OK; i++) {
        if ((r = fg__vk_check_vectors(plan, &graph->ops[i])) != FG_OK) return r;
        fg__vk_forget_rows(plan, &graph->ops[i]);
        if (graph->ops[i].type == FG_OP_EMBED) r = fg__vk_plan_embed(plan, i);
        else if (graph->ops[i].type == FG_OP_GEMM) r = fg__vk_plan_gemm(plan, i);
        else if (graph->ops[i].type == FG_OP_MOE_ROUTE) r = fg__vk_plan_route(plan, i);
        else if (graph->ops[i].type == FG_OP_MOE_GEMM) r = fg__vk_plan_experts(plan, i);
        else if (graph->ops[i].type == FG_OP_ROPE_KV || graph->ops[i].type == FG_OP_ATTENTION)
            r = fg__vk_plan_pieces(plan, i, FG__VK_WHOLE);
        else if (graph->ops[i].type == FG_OP_STATE_SCAN) r = fg__vk_plan_state(plan, i);
        else r = fg__vk_plan_rest(plan, i);
        if (r == FG_OK && graph->ops[i].type == FG_OP_ATTENTION && plan->cuts[graph->ops[i].group].most > 0) {
            r = fg__vk_plan_pieces(plan, i, FG__VK_ITEMS);
            if (r == FG_OK) r = fg__vk_plan_merges(plan, i);
        }
        if (r == FG_OK && graph->ops[i].type == FG_OP_SAMPLE) r = fg__vk_plan_draws(plan, i, true);
        if (r == FG_OK && graph->ops[i].type == FG_OP_SAMPLE) r = fg__vk_plan_draws(plan, i, false);
    }
    return r == FG_OK ? fg__vk_plan_feed(plan) : r;
}

/* ---- Recording. ---- */

/* What was used since the last barrier, by resource: 1 read, 2 written. */
static bool fg__vk_must_wait(const fg__vk_step *step, const uint8_t *used) {
    int i;
    for (i = 0; i < step->n_uses; i++)
        if (used[step->uses[i].resource] & (step->uses[i].writes ? 3 : 2)) return true;
    return false;
}

/* Of products of few rows: the teams (of shaders/gemv.glsl) or subgroups of a workgroup, or the whole of it. */
static int fg__vk_teams(const fg__vk_device *d, int how) {
    if (!d->options.invariant) return how & 8 ? 1 : FG__MAX(1, 64 / d->subgroup);
    return FG__MIN(64 / FG__MIN(d->subgroup, FG__VK_SLICES), FG__VK_TEAMS);
}

/* A pipeline and a step's descriptors, for what is dispatched next. */
static void fg__vk_record_bind(fg__vk_device *d, void *commands, const fg__vk_step *step, int pipeline) {
    d->api.CmdBindPipeline(commands, 1 /* compute */, d->pipelines[pipeline].handle);
    if (d->rungs & FG_VULKAN_PUSH) {
        fg__vk_write_info writes[FG__VK_BINDINGS];
        fg__vk_writes(step, writes);
        d->api.CmdPushDescriptorSetKHR(commands, 1, d->pipeline_layout, 0, FG__VK_BINDINGS, writes);
    } else d->api.CmdBindDescriptorSets(commands, 1, d->pipeline_layout, 0, 1, &step->set, 0, NULL);
}

/* Workgroups of a product over so many rows of a weight. */
static int fg__vk_across(const fg__vk_device *d, const fg__vk_pipeline *p, int rows) {
    bool few = p->shader == FG__VK_SHADER_GEMV || p->shader == FG__VK_SHADER_GEMV_DOT || p->shader == FG__VK_SHADER_GEMV_HALF;
    int wide = 64, across;
    if (few) wide = fg__vk_teams(d, p->spec[3]) * p->spec[2];
    if (p->shader == FG__VK_SHADER_GEMM_MATRIX) wide = p->spec[1] >> 16;
    if (p->shader == FG__VK_SHADER_GEMM_FEW_MATRIX) wide = p->spec[1] & 255;
    across = (rows + wide - 1) / wide;
    return few ? (int)FG__MIN((uint32_t)across, d->properties.limits.max_groups[0]) : across; /* their workgroups go on with further rows */
}

static void fg__vk_record_step(fg__vk_plan *plan, void *commands, const fg__vk_step *step, int rows) {
    fg__vk_device *d = plan->device;
    int which = fg__vk_kind(rows), across = step->groups, down = step->alone ? 1 : rows;
    if (step->kind == FG_OP_GEMM || step->kind == FG_OP_MOE_GEMM) {
        const fg__vk_pipeline *p = &d->pipelines[step->pipelines[which]];
        int tile = fg__vk_tile_of(p);
        across = fg__vk_across(d, p, step->push.rows);
        down = p->spec[4] == FG__VK_TILES ? (int)fg__vk_most_tiles(&plan->graph->ops[step->op], rows, tile) : (rows + tile - 1) / tile;
    }
    if (step->kind == FG_OP_ATTENTION && step->part != FG__VK_MERGES) across = step->push.n_kv_head * ((step->push.n_head / step->push.n_kv_head + step->tile[which] - 1) / step->tile[which]);
    fg__vk_record_bind(d, commands, step, step->pipelines[which]);
    d->api.CmdPushConstants(commands, d->pipeline_layout, FG__VK_COMPUTE_STAGE, 0, (uint32_t)sizeof(step->push), &step->push);
    d->api.CmdDispatch(commands, (uint32_t)across, (uint32_t)down, (uint32_t)FG__MAX(step->each, 1));
}

/* Workgroups down of a step; 0: it does nothing in such passes. */
static int fg__vk_down(const fg__vk_plan *plan, const fg__vk_step *step, int tokens, int rows, int items) {
    if (step->by_seq) return FG__MIN(tokens, plan->graph->max_seqs);
    if (step->kind != FG_OP_ATTENTION || step->part == FG__VK_WHOLE) return step->per_row ? rows : tokens;
    items = FG__MIN(items, plan->cuts[plan->graph->ops[step->op].group].most);
    return step->part == FG__VK_ITEMS ? items : FG__MIN(items, tokens);
}

/* The commands of a pass of up to `tokens` tokens, `rows` rows that need logits, and `items` of attention. Kernels leave what is beyond the pass's
   own counts. A barrier stands only where a step needs what was written since the last one, or writes what was read. */
static fg_result fg__vk_record(fg__vk_plan *plan, void *commands, const fg__vk_commands *range, int tokens, int rows, bool draws) {
    fg__vk_device *d = plan->device;
    size_t n_resources = (size_t)plan->graph->n_slots * FG__VK_PARTS + (size_t)plan->n_layers + 8 + FG__VK_MODES;
    uint8_t *used = (uint8_t *)fg__calloc(&d->env, n_resources, 1);
    uint32_t writes = FG__VK_SHADER_WRITE | FG__VK_TRANSFER_WRITE, ends = FG__VK_AT_COMPUTE | FG__VK_AT_TRANSFER;
    fg_result r;
    int items = range->items ? 1 << (range->items - 1) : 0, i, j;
    if (!used) return FG_ERROR_OUT_OF_MEMORY;
    if ((r = fg__vk_begin(d, commands, 4 /* may be in flight twice */)) == FG_OK) {
        /* after the pass before, and copies between blocks */
        fg__vk_barrier(d, commands, ends, writes, FG__VK_AT_COMPUTE, FG__VK_SHADER_READ | FG__VK_SHADER_WRITE);
        for (i = 0; i < plan->n_steps; i++) {
            const fg__vk_step *step = &plan->steps[i];
            int n = fg__vk_down(plan, step, tokens, rows, items);
            if (step->kind == FG_OP_ATTENTION && step->part == FG__VK_WHOLE && !range->whole) continue;
            if (step->op < range->first || step->op >= range->end || n == 0 || n < step->least || n > step->most || (step->draws && !draws)) continue;
            if (fg__vk_must_wait(step, used)) {
                fg__vk_barrier(d, commands, FG__VK_AT_COMPUTE, FG__VK_SHADER_WRITE, FG__VK_AT_COMPUTE, FG__VK_SHADER_READ | FG__VK_SHADER_WRITE);
                memset(used, 0, n_resources);
            }
            for (j = 0; j < step->n_uses; j++) used[step->uses[j].resource] |= step->uses[j].writes ? 2 : 1;
            fg__vk_record_step(plan, commands, step, n);
        }
        r = fg__vk_check(d, d->api.EndCommandBuffer(commands), "recording commands");
    }
    fg__free(&d->env, used);
    return r;
}

/* The bucket of a count: 0 for none, else 1 + the power of two that holds it. */
static int fg__vk_bucket(int n) {
    int bucket = 0;
    if (n == 0) return 0;
    while (1 << bucket < n) bucket++;
    return bucket + 1;
}

/* Where the commands of a range of ops are kept; NULL: out of memory. */
static fg__vk_commands *fg__vk_range_of(fg__vk_plan *plan, int first, int end, int items) {
    void *array = plan->commands;
    fg__vk_commands *range;
    size_t i;
    for (i = 0; i < plan->n_commands; i++)
        if (plan->commands[i].first == first && plan->commands[i].end == end && plan->commands[i].items == items && plan->commands[i].whole == plan->whole)
            return &plan->commands[i];
    if (!fg__reserve(&plan->device->env, &array, &plan->commands_capacity, plan->n_commands + 1, sizeof(fg__vk_commands))) return NULL;
    plan->commands = (fg__vk_commands *)array;
    range = &plan->commands[plan->n_commands];
    range->first = first;
    range->end = end;
    range->items = items;
    range->whole = plan->whole;
    range->of = (void **)fg__calloc(&plan->device->env, FG__VK_BUCKETS * FG__VK_BUCKETS * 2, sizeof(void *));
    if (!range->of) return NULL;
    plan->n_commands++;
    return range;
}

/* Those of a range of ops of a pass with so many items. */
static fg_result fg__vk_commands_of(fg__vk_plan *plan, const fg_batch *batch, int items, int first, int end, void **out) {
    fg__vk_device *d = plan->device;
    int t = fg__vk_bucket(batch->n_tokens), n = fg__vk_bucket(batch->n_rows);
    fg__vk_commands *range = fg__vk_range_of(plan, first, end, fg__vk_bucket(items));
    fg__vk_command_info info;
    fg_result r;
    void *commands = NULL, **place;
    if (!range) return FG_ERROR_OUT_OF_MEMORY;
    place = &range->of[(t * FG__VK_BUCKETS + n) * 2 + (batch->draws ? 1 : 0)];
    *out = *place;
    if (*out) return FG_OK;
    memset(&info, 0, sizeof(info));
    info.type = FG__VK_COMMAND_INFO;
    info.pool = plan->command_pool;
    info.count = 1;
    if ((r = fg__vk_check(d, d->api.AllocateCommandBuffers(d->handle, &info, &commands), "a command buffer")) != FG_OK)
        return r;
    t = FG__MIN(1 << (t - 1), plan->graph->max_tokens);
    r = fg__vk_record(plan, commands, range, t, n ? FG__MIN(1 << (n - 1), plan->graph->max_rows) : 0, batch->draws != NULL);
    if (r == FG_OK) *out = *place = commands;
    return r;
}

static fg_result fg__vk_make_command_pool(fg__vk_plan *plan) {
    fg__vk_command_pool_info info;
    memset(&info, 0, sizeof(info));
    info.type = FG__VK_COMMAND_POOL_INFO;
    info.family = plan->device->family;
    return fg__vk_check(plan->device, plan->device->api.CreateCommandPool(plan->device->handle, &info, NULL, &plan->command_pool), "a command pool");
}

/* Of a plan that does not run. */
static void fg__vk_drop_commands(fg__vk_plan *plan) {
    fg__vk_device *d = plan->device;
    if (plan->command_pool) d->api.DestroyCommandPool(d->handle, plan->command_pool, NULL);
    plan->command_pool = 0;
    while (plan->n_commands) fg__free(&d->env, plan->commands[--plan->n_commands].of);
}

/* Ranges are as many as work may be cut into pieces, and each has commands for each bucket: what was recorded goes when there is much of it, or
   no memory for more. */
static fg_result fg__vk_forget_commands(fg__vk_plan *plan) {
    fg_result r = fg__vk_check(plan->device, plan->device->api.DeviceWaitIdle(plan->device->handle), "waiting for the device");
    if (r != FG_OK) return r;
    fg__vk_drop_commands(plan);
    return fg__vk_make_command_pool(plan);
}

/* ---- Preparing. ---- */

static void fg__vk_release(fg_device *handle, fg_plan *plan_handle) {
    fg__vk_device *d = (fg__vk_device *)handle;
    fg__vk_plan *plan = (fg__vk_plan *)plan_handle;
    int i;
    (void)d->api.DeviceWaitIdle(d->handle);
    for (i = FG__VK_TURNS - 1; i >= 0; i--) {
        fg__vk_turn *turn = &plan->turns[i];
        fg__vk_work_drop(d, &turn->before);
        fg__vk_work_drop(d, &turn->after);
        fg__vk_give(d, &turn->kept);
        fg__vk_give(d, &turn->logits);
        fg__vk_give(d, &turn->candidates);
        fg__vk_give(d, &turn->rows);
        fg__vk_give(d, &turn->batch);
    }
    if (plan->pool) d->api.DestroyDescriptorPool(d->handle, plan->pool, NULL);
    fg__vk_drop_commands(plan);
    for (i = 0; plan->layers && i < plan->n_kv; i++) {
        fg__vk_give(d, &plan->layers[i].v);
        fg__vk_give(d, &plan->layers[i].k);
    }
    for (i = 0; plan->crossings && i < plan->graph->n_slots; i++) {
        fg__vk_work_drop(d, &plan->crossings[i].copies[0]);
        fg__vk_work_drop(d, &plan->crossings[i].copies[1]);
        fg__vk_give(d, &plan->crossings[i].host);
    }
    fg__free(&d->env, plan->crossings);
    fg__vk_give(d, &plan->memory);
    fg__vk_give(d, &plan->batch);
    fg__vk_give(d, &plan->rows);
    fg__vk_give(d, &plan->tops);
    fg__vk_give(d, &plan->candidates);
    fg__free(&d->env, plan->commands);
    fg__free(&d->env, plan->part);
    fg__free(&d->env, plan->layers);
    fg__free(&d->env, plan->slots);
    fg__free(&d->env, plan->steps);
    fg__free(&d->env, plan);
}

static fg_result fg__vk_make_pools(fg__vk_plan *plan) {
    fg_result r = fg__vk_make_pool(plan->device, (uint32_t)plan->max_steps + 1, &plan->pool);
    return r == FG_OK ? fg__vk_make_command_pool(plan) : r;
}

static size_t fg__vk_logits_bytes(const fg__vk_plan *plan) {
    return plan->sample_op < 0 ? 0 : (size_t)plan->graph->max_rows * (size_t)plan->graph->ops[plan->sample_op].n * sizeof(float);
}

static fg_result fg__vk_take_turn(fg__vk_plan *plan, fg__vk_turn *turn) {
    fg__vk_device *d = plan->device;
    size_t rows = (size_t)plan->graph->max_rows;
    fg_result r;
    if ((r = fg__vk_work_make(d, &turn->before, FG__VK_PASSES)) != FG_OK) return r;
    if ((r = fg__vk_work_make(d, &turn->after, FG__VK_PASSES)) != FG_OK) return r;
    if ((r = fg__vk_take(d, FG__VK_TO_DEVICE, plan->batch_words * 4, &turn->batch)) != FG_OK) return r;
    if ((r = fg__vk_take(d, FG__VK_FROM_DEVICE, rows * sizeof(fg_row_result), &turn->rows)) != FG_OK) return r;
    if (plan->sample_op < 0) return FG_OK;
    if ((r = fg__vk_take(d, FG__VK_FROM_DEVICE, rows * sizeof(fg_row_candidates), &turn->candidates)) != FG_OK)
        return r;
    if ((r = fg__vk_take(d, FG__VK_FROM_DEVICE, fg__vk_logits_bytes(plan), &turn->logits)) != FG_OK) return r;
    return fg__vk_take(d, FG__VK_ON_DEVICE, fg__vk_logits_bytes(plan), &turn->kept);
}

/* The host's side of slots that cross. */
static fg_result fg__vk_take_crossings(fg__vk_plan *plan) {
    const fg_graph *graph = plan->graph;
    fg__vk_device *d = plan->device;
    fg_result r = FG_OK;
    int i;
    for (i = 0; i < graph->n_slots && r == FG_OK; i++) {
        fg__vk_crossing *c = &plan->crossings[i];
        size_t rows = (size_t)(graph->slots[i].per_row ? graph->max_rows : graph->max_tokens);
        if (!graph->slots[i].crosses) continue;
        if ((r = fg__vk_make_lines(d)) != FG_OK) return r;
        if ((r = fg__vk_work_make(d, &c->copies[0], FG__VK_DOWN)) != FG_OK) return r;
        if ((r = fg__vk_work_make(d, &c->copies[1], FG__VK_UP)) != FG_OK) return r;
        r = fg__vk_take(d, FG__VK_FROM_DEVICE, rows * (size_t)graph->slots[i].width * sizeof(float), &c->host);
    }
    return r;
}

static fg_result fg__vk_take_memory(fg__vk_plan *plan) {
    const fg_graph *graph = plan->graph;
    fg__vk_device *d = plan->device;
    fg_result r;
    int g, i;
    if ((r = fg__vk_take(d, FG__VK_ON_DEVICE, plan->slots_bytes, &plan->memory)) != FG_OK) return r;
    if ((r = fg__vk_take(d, FG__VK_ON_DEVICE, plan->batch_words * 4, &plan->batch)) != FG_OK) return r;
    if ((r = fg__vk_take(d, FG__VK_ON_DEVICE, (size_t)graph->max_rows * sizeof(fg_row_result), &plan->rows)) != FG_OK)
        return r;
    if (plan->sample_op >= 0) {
        if ((r = fg__vk_take(d, FG__VK_ON_DEVICE, fg__vk_tops_bytes(plan), &plan->tops)) != FG_OK) return r;
        if ((r = fg__vk_take(d, FG__VK_ON_DEVICE, (size_t)graph->max_rows * sizeof(fg_row_candidates), &plan->candidates)) != FG_OK) return r;
    }
    for (i = 0; i < FG__VK_TURNS; i++)
        if ((r = fg__vk_take_turn(plan, &plan->turns[i])) != FG_OK) return r;
    if ((r = fg__vk_take_crossings(plan)) != FG_OK) return r;
    for (g = 0; g < graph->n_groups; g++)
        for (i = 0; i < graph->groups[g].n_layers * plan->n_pieces[g]; i++) {
            fg__vk_layer *layer = &plan->layers[plan->piece_of[g] + i];
            size_t bytes = fg__vk_piece_bytes(plan, g, i % plan->n_pieces[g]);
            if ((r = fg__vk_take(d, FG__VK_ON_DEVICE, bytes, &layer->k)) != FG_OK) return r;
            if (graph->groups[g].kind == FG_GROUP_STATE) continue;
            if ((r = fg__vk_take(d, FG__VK_ON_DEVICE, bytes, &layer->v)) != FG_OK) return r;
        }
    return FG_OK;
}

static void fg__vk_count(fg__vk_plan *plan, bool measure, fg_memory *memory) {
    const fg_graph *graph = plan->graph;
    int g, i;
    memset(memory, 0, sizeof(*memory));
    for (g = 0; g < graph->n_groups; g++) {
        plan->layer_of[g] = plan->n_layers;
        plan->n_layers += graph->groups[g].n_layers;
        plan->piece_of[g] = plan->n_kv;
        plan->n_kv += graph->groups[g].n_layers * plan->n_pieces[g];
        memory->kv += fg__vk_whole_block_bytes(&graph->groups[g]) * (size_t)graph->groups[g].n_blocks;
    }
    for (i = 0; i < graph->n_ops; i++) {
        bool experts = graph->ops[i].type == FG_OP_MOE_GEMM, pieces = graph->ops[i].type == FG_OP_GEMM || graph->ops[i].type == FG_OP_EMBED || experts;
        if (graph->ops[i].type == FG_OP_SAMPLE) plan->max_steps += 2;
        plan->max_steps += (pieces && !measure ? fg__vk_weight_of(plan, graph->ops[i].weight)->n_pieces : 1) * (experts ? 3 : 1);
        if (graph->ops[i].type == FG_OP_GEMM || experts) plan->max_steps += FG__VK_MODES;
        if (experts) plan->max_steps += 3; /* sort into small tiles and into large ones, combine */
        if (graph->ops[i].type == FG_OP_ROPE_KV || graph->ops[i].type == FG_OP_ATTENTION || graph->ops[i].type == FG_OP_STATE_SCAN)
            plan->max_steps += 2 * plan->n_pieces[graph->ops[i].group]; /* whole queries, and items; convolution, and scan */
    }
    memory->activations = plan->slots_bytes + (1 + FG__VK_TURNS) * (plan->batch_words * 4 + (size_t)graph->max_rows * sizeof(fg_row_result)) +
                          2 * FG__VK_TURNS * fg__vk_logits_bytes(plan);
    if (plan->sample_op >= 0)
        memory->activations += (1 + FG__VK_TURNS) * (size_t)graph->max_rows * sizeof(fg_row_candidates) + fg__vk_tops_bytes(plan);
    memory->total = memory->kv + memory->activations;
}

static fg_result fg__vk_prove_graph(const fg__vk_plan *plan);

static fg_result fg__vk_plan_fill(fg__vk_plan *plan, bool measure, fg_memory *memory) {
    const fg_graph *graph = plan->graph;
    fg__vk_device *d = plan->device;
    fg_memory counted;
    fg_result r;
    int g;
    plan->slots = (fg__vk_slot *)fg__calloc(&d->env, (size_t)graph->n_slots, sizeof(fg__vk_slot));
    if (!plan->slots) return FG_ERROR_OUT_OF_MEMORY;
    if ((r = fg__vk_check_graph(plan, measure)) != FG_OK) return r;
    fg__vk_lay_slots(plan);
    fg__vk_lay_batch(plan);
    fg__vk_count(plan, measure, &counted);
    if (memory) *memory = counted;
    if (measure) return FG_OK;
    if ((r = fg__vk_prove_graph(plan)) != FG_OK) return r; /* while there is room for it */
    for (g = 0; g < graph->n_groups; g++)
        if (d->options.invariant && plan->n_pieces[g] > 1 && graph->groups[g].kind != FG_GROUP_STATE && !d->proving)
            fg__log(&d->env, FG_LOG_WARNING, "%s sees a layer's KV cache in %d pieces: bits depend on which blocks a request has; use fewer kv_tokens",
                    d->properties.name, plan->n_pieces[g]);
    plan->layers = (fg__vk_layer *)fg__calloc(&d->env, (size_t)plan->n_kv, sizeof(fg__vk_layer));
    plan->steps = (fg__vk_step *)fg__calloc(&d->env, (size_t)plan->max_steps, sizeof(fg__vk_step));
    plan->crossings = (fg__vk_crossing *)fg__calloc(&d->env, (size_t)graph->n_slots, sizeof(fg__vk_crossing));
    if (!plan->layers || !plan->steps || !plan->crossings) return FG_ERROR_OUT_OF_MEMORY;
    if ((r = fg__vk_make_pools(plan)) != FG_OK) return r;
    if ((r = fg__vk_take_memory(plan)) != FG_OK) return r;
    if ((r = fg__vk_plan_steps(plan)) != FG_OK) return r;
    return fg__vk_compile_all(d);
}

static fg_result fg__vk_prepare(fg_device *handle, const fg_graph *graph, fg_plan **out, fg_memory *memory) {
    fg__vk_device *d = (fg__vk_device *)handle;
    fg__vk_plan *plan = (fg__vk_plan *)fg__calloc(&d->env, 1, sizeof(fg__vk_plan));
    fg_result r;
    if (!plan) return FG_ERROR_OUT_OF_MEMORY;
    plan->device = d;
    plan->graph = graph;
    plan->sample_op = -1;
    r = fg__vk_plan_fill(plan, !out, memory);
    if (r == FG_OK && out) *out = (fg_plan *)plan;
    else fg__vk_release(handle, (fg_plan *)plan);
    return r;
}

/* ================================================================================================
   Passes
   ================================================================================================ */

/* One past the last op of a pass. */
static int fg__vk_end_of(const fg__vk_plan *plan, const fg_batch *batch) {
    return batch->n_ops ? batch->first_op + batch->n_ops : plan->graph->n_ops;
}

/* Brings the batch to the device, behind the pass before; and tokens that that one makes, from its results, which are still where it
   left them. */
static fg_result fg__vk_record_before(fg__vk_plan *plan, fg__vk_turn *turn, const fg_batch *batch) {
    fg__vk_device *d = plan->device;
    void *commands = turn->before.commands;
    fg__vk_parcel parcel;
    fg_result r;
    int i;
    for (i = 0; batch->feed && i < batch->n_tokens; i++)
        if (batch->feed[i] >= plan->graph->max_rows)
            return fg__fail(FG_ERROR_INVALID_ARGUMENT, "a pass has no row %d", (int)batch->feed[i]);
    if ((r = fg__vk_work_begin(d, &turn->before)) != FG_OK) return r;
    parcel.plan = plan;
    parcel.from = &turn->batch;
    parcel.n = 0;
    fg__vk_fill_batch(&parcel, batch);
    fg__vk_barrier(d, commands, FG__VK_AT_COMPUTE | FG__VK_AT_TRANSFER, FG__VK_SHADER_WRITE | FG__VK_TRANSFER_WRITE, FG__VK_AT_TRANSFER,
                   FG__VK_TRANSFER_READ | FG__VK_TRANSFER_WRITE);
    d->api.CmdCopyBuffer(commands, turn->batch.chunk->buffer, plan->batch.chunk->buffer, (uint32_t)parcel.n, parcel.copies);
    if (batch->feed && batch->first_op == 0) {
        fg__vk_barrier(d, commands, FG__VK_AT_COMPUTE | FG__VK_AT_TRANSFER, FG__VK_SHADER_WRITE | FG__VK_TRANSFER_WRITE, FG__VK_AT_COMPUTE,
                       FG__VK_SHADER_READ | FG__VK_SHADER_WRITE);
        fg__vk_record_step(plan, commands, &plan->feed, 1);
    }
    return fg__vk_check(d, d->api.EndCommandBuffer(commands), "recording commands");
}

static void fg__vk_record_copy(fg__vk_device *d, void *commands, const fg__vk_range *from, size_t offset,
                               const fg__vk_range *to, size_t bytes) {
    fg__vk_copy copy;
    copy.from = from->offset + offset;
    copy.to = to->offset;
    copy.bytes = bytes;
    d->api.CmdCopyBuffer(commands, from->chunk->buffer, to->chunk->buffer, 1, &copy);
}

/* Brings the results back. */
static fg_result fg__vk_record_after(fg__vk_plan *plan, fg__vk_turn *turn, const fg_batch *batch) {
    fg__vk_device *d = plan->device;
    void *commands = turn->after.commands;
    int end = fg__vk_end_of(plan, batch);
    size_t rows = (size_t)batch->n_rows;
    fg_result r;
    if ((r = fg__vk_work_begin(d, &turn->after)) != FG_OK) return r;
    fg__vk_barrier(d, commands, FG__VK_AT_COMPUTE | FG__VK_AT_TRANSFER, FG__VK_SHADER_WRITE | FG__VK_TRANSFER_WRITE, FG__VK_AT_TRANSFER,
                   FG__VK_TRANSFER_READ | FG__VK_TRANSFER_WRITE);
    if (plan->sample_op >= batch->first_op && plan->sample_op < end && rows > 0) {
        const fg_op *op = &plan->graph->ops[plan->sample_op];
        size_t at = plan->slots[op->src].parts[0].offset, bytes = rows * (size_t)op->n * sizeof(float);
        fg__vk_record_copy(d, commands, &plan->rows, 0, &turn->rows, rows * sizeof(fg_row_result));
        if (batch->draws)
            fg__vk_record_copy(d, commands, &plan->candidates, 0, &turn->candidates, rows * sizeof(fg_row_candidates));
        if (batch->draws) fg__vk_record_copy(d, commands, &plan->memory, at, &turn->kept, bytes);
        if (batch->want_logits) fg__vk_record_copy(d, commands, &plan->memory, at, &turn->logits, bytes);
    }
    fg__vk_barrier(d, commands, FG__VK_AT_TRANSFER, FG__VK_TRANSFER_WRITE, FG__VK_AT_HOST, FG__VK_HOST_READ);
    return fg__vk_check(d, d->api.EndCommandBuffer(commands), "recording commands");
}

/* Multiplications and additions of a pass, by products and attention. */
static double fg__vk_work_of(const fg__vk_plan *plan, const fg_batch *batch) {
    double work = 0, pairs = 0; /* of queries and keys */
    int i, end = fg__vk_end_of(plan, batch);
    for (i = 0; i < batch->n_seqs; i++) pairs += (double)(batch->cu_q[i + 1] - batch->cu_q[i]) * batch->kv_len[i];
    for (i = batch->first_op; i < end; i++) {
        const fg_op *op = &plan->graph->ops[i];
        if (op->type == FG_OP_GEMM) work += 2.0 * op->n * op->k * (plan->graph->slots[op->dst].per_row ? batch->n_rows : batch->n_tokens);
        if (op->type == FG_OP_MOE_GEMM) work += 2.0 * op->n * op->k * op->n_used * batch->n_tokens;
        if (op->type == FG_OP_ATTENTION) work += 4.0 * op->n_head * op->head_dim * pairs;
        if (op->type == FG_OP_STATE_SCAN) work += 8.0 * op->n * op->head_dim * batch->n_tokens;
    }
    return work;
}

/* The commands of a pass of so many items, in n pieces of about as many ops each. */
static fg_result fg__vk_pass_commands(fg__vk_plan *plan, const fg_batch *batch, int items, int n, void **commands) {
    int first = batch->first_op, n_ops = fg__vk_end_of(plan, batch) - first, i;
    fg_result r = FG_OK;
    for (i = 0; i < n && r == FG_OK; i++)
        r = fg__vk_commands_of(plan, batch, items, first + n_ops * i / n, first + n_ops * (i + 1) / n, &commands[i]);
    return r;
}

/* Starts a pass of so many items between what comes before and after it, in pieces (submit_work). */
static fg_result fg__vk_start_pass(fg__vk_plan *plan, fg__vk_turn *turn, const fg_batch *batch, int items) {
    fg__vk_device *d = plan->device;
    int n_ops = fg__vk_end_of(plan, batch) - batch->first_op, n = 1, i;
    double work = fg__vk_work_of(plan, batch), most = d->options.submit_work > 0 ? d->options.submit_work : 5e10;
    void *commands[FG__VK_MAX_PIECES + 2];
    fg_result r = FG_OK;
    while (2 * n <= FG__MIN(n_ops, FG__VK_MAX_PIECES) && work > n * most) n *= 2;
    commands[0] = turn->before.commands;
    commands[n + 1] = turn->after.commands;
    if (plan->n_commands >= FG__VK_RANGES || !plan->command_pool) r = fg__vk_forget_commands(plan);
    if (r == FG_OK) r = fg__vk_pass_commands(plan, batch, items, n, &commands[1]);
    if (r == FG_ERROR_OUT_OF_MEMORY && (r = fg__vk_forget_commands(plan)) == FG_OK) r = fg__vk_pass_commands(plan, batch, items, n, &commands[1]);
    for (i = 0; i < n && r == FG_OK; i++) {
        int from = i == 0 ? 0 : i + 1, to = i == n - 1 ? n + 2 : i + 2;
        r = fg__vk_work_start(d, &turn->after, &commands[from], (uint32_t)(to - from), FG__VK_UP, i == 0 ? d->came : 0, i == n - 1);
        if (r != FG_OK && i > 0) (void)d->api.DeviceWaitIdle(d->handle); /* the pieces before have no fence */
    }
    return r;
}

static fg_result fg__vk_submit(fg_device *handle, fg_plan *plan_handle, const fg_batch *batch) {
    fg__vk_device *d = (fg__vk_device *)handle;
    fg__vk_plan *plan = (fg__vk_plan *)plan_handle;
    fg__vk_turn *turn = &plan->turns[plan->n_submitted % FG__VK_TURNS];
    int items;
    fg_result r;
    if (!fg__batch_check(plan->graph, batch))
        return fg__fail(FG_ERROR_INVALID_ARGUMENT, "the batch names tokens, rows or KV blocks that do not exist");
    if (plan->n_submitted - plan->n_waited >= FG__VK_TURNS)
        return fg__fail(FG_ERROR_INVALID_ARGUMENT, "too many passes are in flight");
    items = fg__vk_choose_items(plan, batch); /* which the batch tells of, too */
    if ((r = fg__vk_record_before(plan, turn, batch)) != FG_OK) return r;
    if ((r = fg__vk_record_after(plan, turn, batch)) != FG_OK) return r;
    turn->want_logits = batch->want_logits;
    turn->has_draws = batch->draws != NULL;
    if ((r = fg__vk_start_pass(plan, turn, batch, items)) != FG_OK) return r;
    d->came = 0;
    plan->passed = d->lines[FG__VK_PASSES].value;
    plan->n_submitted++;
    return FG_OK;
}

static fg_result fg__vk_wait(fg_device *handle, fg_plan *plan_handle, fg_output *output) {
    fg__vk_device *d = (fg__vk_device *)handle;
    fg__vk_plan *plan = (fg__vk_plan *)plan_handle;
    fg__vk_turn *turn = &plan->turns[plan->n_waited % FG__VK_TURNS];
    fg_result r;
    memset(output, 0, sizeof(*output));
    if (plan->n_waited == plan->n_submitted) return fg__fail(FG_ERROR_INVALID_ARGUMENT, "no pass is in flight");
    plan->n_waited++;
    r = fg__vk_work_wait(d, &turn->after);
    if (r != FG_OK || plan->sample_op < 0) return r;
    output->rows = (const fg_row_result *)(const void *)(turn->rows.chunk->mapped + turn->rows.offset);
    if (turn->want_logits) output->logits = (float *)(void *)(turn->logits.chunk->mapped + turn->logits.offset);
    if (turn->has_draws) output->candidates = (const fg_row_candidates *)(const void *)(turn->candidates.chunk->mapped + turn->candidates.offset);
    return FG_OK;
}

/* A block's parts: of each layer K and V, or the states of the heads in each piece. */
static int fg__vk_block_parts(const fg__vk_plan *plan, int group) {
    const fg_group *g = &plan->graph->groups[group];
    return g->n_layers * (g->kind == FG_GROUP_STATE ? plan->n_pieces[group] : 2);
}

/* Where one of them is, and how long. */
static const fg__vk_range *fg__vk_block_at(const fg__vk_plan *plan, int group, int part, int block, size_t *offset, uint64_t *bytes) {
    const fg_group *g = &plan->graph->groups[group];
    const fg__vk_layer *piece;
    if (g->kind == FG_GROUP_STATE) {
        *bytes = fg__vk_states_bytes(plan, group, part % plan->n_pieces[group]);
        *offset = (size_t)block * (size_t)*bytes;
        return &plan->layers[plan->piece_of[group] + part].k;
    }
    piece = fg__vk_layer_piece(plan, group, part / 2, block / plan->piece_blocks[group]);
    *bytes = fg__vk_block_bytes(g);
    *offset = (size_t)(block % plan->piece_blocks[group]) * (size_t)*bytes;
    return part % 2 ? &piece->v : &piece->k;
}

static fg_result fg__vk_read_logits(fg_device *handle, fg_plan *plan_handle, int row, float *logits) {
    fg__vk_plan *plan = (fg__vk_plan *)plan_handle;
    const fg__vk_turn *turn = &plan->turns[(plan->n_waited + 1) % FG__VK_TURNS]; /* that of the last one waited for */
    size_t bytes = plan->sample_op < 0 ? 0 : (size_t)plan->graph->ops[plan->sample_op].n * sizeof(float);
    if (!bytes || !turn->has_draws || row < 0 || row >= plan->graph->max_rows)
        return fg__fail(FG_ERROR_INVALID_ARGUMENT, "there is no row %d of logits", row);
    return fg__vk_read(handle, &turn->kept, (size_t)row * bytes, logits, bytes);
}

/* Begins to copy rows of a slot that crosses, behind the passes of the plan; the next pass comes behind those that go to the device. On the
   queue of passes barriers do what lines of queues do elsewhere. */
static fg_result fg__vk_cross(fg__vk_plan *plan, int slot, int n_rows, bool out) {
    fg__vk_device *d = plan->device;
    fg__vk_crossing *c = &plan->crossings[slot];
    fg__vk_work *work = &c->copies[out ? 0 : 1];
    fg__vk_range own = plan->memory;
    size_t bytes = (size_t)n_rows * (size_t)plan->graph->slots[slot].width * sizeof(float);
    fg_result r = fg__vk_work_begin(d, work);
    if (r != FG_OK) return r;
    own.offset += plan->slots[slot].parts[0].offset;
    if (d->queues[work->queue] == d->queues[FG__VK_PASSES])
        fg__vk_barrier(d, work->commands, FG__VK_AT_COMPUTE | FG__VK_AT_TRANSFER, FG__VK_SHADER_WRITE | FG__VK_TRANSFER_WRITE, FG__VK_AT_TRANSFER,
                       FG__VK_TRANSFER_READ | FG__VK_TRANSFER_WRITE);
    fg__vk_record_copy(d, work->commands, out ? &own : &c->host, 0, out ? &c->host : &own, bytes);
    if (out) fg__vk_barrier(d, work->commands, FG__VK_AT_TRANSFER, FG__VK_TRANSFER_WRITE, FG__VK_AT_HOST, FG__VK_HOST_READ);
    if ((r = fg__vk_check(d, d->api.EndCommandBuffer(work->commands), "recording commands")) != FG_OK) return r;
    r = fg__vk_work_start(d, work, &work->commands, 1, FG__VK_PASSES, out || plan->n_submitted != plan->n_waited ? plan->passed : 0, true);
    if (r == FG_OK && !out) d->came = d->lines[FG__VK_UP].value;
    return r;
}

static fg_result fg__vk_stage_slot(fg_device *handle, fg_plan *plan_handle, int slot, int n_rows, fg_stage stage, float **host) {
    fg__vk_device *d = (fg__vk_device *)handle;
    fg__vk_plan *plan = (fg__vk_plan *)plan_handle;
    fg__vk_crossing *c = &plan->crossings[slot];
    bool out = stage == FG_STAGE_ASK || stage == FG_STAGE_TAKE;
    if (!c->host.chunk) return fg__fail(FG_ERROR_INVALID_ARGUMENT, "slot %d does not cross", slot);
    *host = (float *)(void *)(c->host.chunk->mapped + c->host.offset);
    if (stage == FG_STAGE_ASK || stage == FG_STAGE_SEND) return fg__vk_cross(plan, slot, n_rows, out);
    return fg__vk_work_wait(d, &c->copies[out ? 0 : 1]);
}

/* Each part of a slot lies apart, but for those of a slot that crosses. */
static fg_result fg__vk_copy_slot(fg_device *handle, fg_plan *plan_handle, int slot, int n_rows, float *host,
                                  bool out) {
    fg__vk_device *d = (fg__vk_device *)handle;
    fg__vk_plan *plan = (fg__vk_plan *)plan_handle;
    const fg__vk_slot *s = &plan->slots[slot];
    size_t width = (size_t)plan->graph->slots[slot].width;
    fg_result r = FG_OK;
    int i, row;
    for (i = 0; i < s->n_parts && r == FG_OK; i++) {
        size_t n = (size_t)s->parts[i].stride, bytes = (size_t)n_rows * n * sizeof(float);
        if (i > 0 && s->parts[i].offset == s->parts[0].offset) break;
        if (bytes > plan->part_bytes) {
            fg__free(&d->env, plan->part);
            plan->part_bytes = 0;
            plan->part = (float *)fg__malloc(&d->env, bytes, 1);
            if (!plan->part) return FG_ERROR_OUT_OF_MEMORY;
            plan->part_bytes = bytes;
        }
        if (out) r = fg__vk_read(handle, &plan->memory, s->parts[i].offset, plan->part, bytes);
        for (row = 0; row < n_rows && r == FG_OK; row++) {
            float *own = plan->part + (size_t)row * n, *other = host + (size_t)row * width + s->parts[i].origin;
            memcpy(out ? other : own, out ? own : other, n * sizeof(float));
        }
        if (!out) r = fg__vk_write(handle, &plan->memory, s->parts[i].offset, plan->part, bytes);
    }
    return r;
}

static void fg__vk_record_block(fg__vk_plan *plan, const fg_block_copy *copy) {
    fg__vk_device *d = plan->device;
    int i;
    for (i = 0; i < fg__vk_block_parts(plan, copy->group); i++) {
        size_t from_at, to_at;
        fg__vk_copy region;
        const fg__vk_range *from = fg__vk_block_at(plan, copy->group, i, copy->from, &from_at, &region.bytes);
        const fg__vk_range *to = fg__vk_block_at(plan, copy->group, i, copy->to, &to_at, &region.bytes);
        region.from = from->offset + from_at;
        region.to = to->offset + to_at;
        d->api.CmdCopyBuffer(d->copies.commands, from->chunk->buffer, to->chunk->buffer, 1, &region);
    }
}

static fg_result fg__vk_copy_blocks(fg_device *handle, fg_plan *plan_handle, const fg_block_copy *copies, int n) {
    fg__vk_device *d = (fg__vk_device *)handle;
    fg__vk_plan *plan = (fg__vk_plan *)plan_handle;
    uint32_t all = FG__VK_AT_COMPUTE | FG__VK_AT_TRANSFER, writes = FG__VK_SHADER_WRITE | FG__VK_TRANSFER_WRITE;
    fg_result r;
    int i;
    for (i = 0; i < n; i++) {
        int n_blocks = copies[i].group >= 0 && copies[i].group < plan->graph->n_groups ? plan->graph->groups[copies[i].group].n_blocks : 0;
        if (copies[i].from < 0 || copies[i].from >= n_blocks || copies[i].to < 0 || copies[i].to >= n_blocks)
            return fg__fail(FG_ERROR_INVALID_ARGUMENT, "a copy names a KV block that does not exist");
    }
    if (n < 1) return FG_OK;
    if ((r = fg__vk_work_begin(d, &d->copies)) != FG_OK) return r;
    for (i = 0; i < n; i++) {
        if (copies[i].from == copies[i].to) continue;
        fg__vk_barrier(d, d->copies.commands, all, writes, FG__VK_AT_TRANSFER, FG__VK_TRANSFER_READ | FG__VK_TRANSFER_WRITE);
        fg__vk_record_block(plan, &copies[i]);
    }
    return fg__vk_work_end(d, &d->copies);
}

/* Copies n parts of KV blocks, from part number `first` on, to the staging buffer (out) or from there, in one submission. */
static fg_result fg__vk_swap_parts(fg__vk_plan *plan, int group, const int32_t *blocks, int64_t first, int n, bool out) {
    fg__vk_device *d = plan->device;
    int64_t each = fg__vk_block_parts(plan, group), part;
    size_t staged = d->staging.offset;
    fg__vk_copy copy;
    fg_result r = fg__vk_copies_begin(d);
    if (r != FG_OK) return r;
    for (part = first; part < first + n; part++, staged += (size_t)copy.bytes) {
        size_t offset;
        const fg__vk_range *range = fg__vk_block_at(plan, group, (int)(part % each), blocks[part / each], &offset, &copy.bytes);
        uint64_t block = range->chunk->buffer, staging = d->staging.chunk->buffer;
        copy.from = out ? range->offset + offset : staged;
        copy.to = out ? staged : range->offset + offset;
        d->api.CmdCopyBuffer(d->copies.commands, out ? block : staging, out ? staging : block, 1, &copy);
    }
    return fg__vk_copies_end(d);
}

/* Bytes of n parts of blocks, from part number `first` on. */
static size_t fg__vk_parts_bytes(const fg__vk_plan *plan, int group, int64_t first, int64_t n) {
    int64_t each = fg__vk_block_parts(plan, group), part;
    uint64_t bytes;
    size_t offset, sum = 0;
    for (part = first; part < first + n; part++, sum += (size_t)bytes) (void)fg__vk_block_at(plan, group, (int)(part % each), 0, &offset, &bytes);
    return sum;
}

/* A block in host memory: of each layer K, then V, or states. They go through the staging buffer, as many parts at a time as it holds. */
static fg_result fg__vk_swap_blocks(fg_device *handle, fg_plan *plan_handle, int group, const int32_t *blocks, int n,
                                    void *host, bool out, size_t *block_bytes) {
    fg__vk_device *d = (fg__vk_device *)handle;
    fg__vk_plan *plan = (fg__vk_plan *)plan_handle;
    const fg_group *g = &plan->graph->groups[group];
    size_t bytes = fg__vk_parts_bytes(plan, group, 0, 1); /* of the largest */
    int64_t part, parts = (int64_t)fg__vk_block_parts(plan, group) * n, most = (int64_t)(FG__VK_STAGING / bytes);
    char *at = (char *)host, *staged = d->staging.chunk->mapped + d->staging.offset;
    fg_result r = FG_OK;
    int i, count;
    if (most < 1) return fg__fail(FG_ERROR_UNSUPPORTED, "a layer of a KV block has %zu bytes, %d are staged at once", bytes, (int)FG__VK_STAGING);
    if (block_bytes) *block_bytes = fg__vk_whole_block_bytes(g);
    if (!host) return FG_OK;
    for (i = 0; i < n; i++)
        if (blocks[i] < 0 || blocks[i] >= g->n_blocks)
            return fg__fail(FG_ERROR_INVALID_ARGUMENT, "there is no KV block %d", (int)blocks[i]);
    for (part = 0; part < parts && r == FG_OK; part += count, at += bytes) {
        count = (int)FG__MIN(most, parts - part);
        bytes = fg__vk_parts_bytes(plan, group, part, count);
        if (!out) memcpy(staged, at, bytes);
        r = fg__vk_swap_parts(plan, group, blocks, part, count, out);
        if (out && r == FG_OK) memcpy(at, staged, bytes);
    }
    return r;
}

/* ---- Roofs. ---- */

enum { FG__VK_ROOF_GROUP = 32768, FG__VK_ROOF_ROUNDS = 16384 }; /* bytes that a workgroup of shaders/roof_read.comp reads; rounds that others have at most */
enum { FG__VK_ROOF_FILLS, FG__VK_ROOF_READS, FG__VK_ROOF_FLOATS, FG__VK_ROOF_BYTES, FG__VK_ROOF_KINDS };

/* What is measured: pipelines by kind (-1: unknown), a buffer, which is all of what they bind. */
typedef struct fg__vk_roof {
    int pipelines[FG__VK_ROOF_KINDS];
    fg__vk_range memory;
    fg__vk_step step;
    uint64_t pool;
} fg__vk_roof;

/* Has so many workgroups of a kind run: the seconds from their submission to their end. */
static fg_result fg__vk_roof_run(fg__vk_device *d, const fg__vk_roof *roof, int kind, uint32_t groups, double *seconds) {
    double start = fg__now();
    fg_result r = fg__vk_work_begin(d, &d->copies);
    if (r != FG_OK) return r;
    fg__vk_barrier(d, d->copies.commands, FG__VK_AT_COMPUTE | FG__VK_AT_TRANSFER, FG__VK_SHADER_WRITE | FG__VK_TRANSFER_WRITE, FG__VK_AT_COMPUTE,
                   FG__VK_SHADER_READ | FG__VK_SHADER_WRITE);
    fg__vk_record_bind(d, d->copies.commands, &roof->step, roof->pipelines[kind]);
    d->api.CmdPushConstants(d->copies.commands, d->pipeline_layout, FG__VK_COMPUTE_STAGE, 0, (uint32_t)sizeof(roof->step.push), &roof->step.push);
    d->api.CmdDispatch(d->copies.commands, groups, 1, 1);
    r = fg__vk_work_end(d, &d->copies);
    if (r == FG_OK) r = fg__vk_work_wait(d, &d->copies);
    *seconds = fg__now() - start;
    return r;
}

/* The rate of reading: what is between a fourth and all has no submission in it. All are read in order, so that a cache of less than the fourth has
   nothing of what is read next. */
static fg_result fg__vk_read_rate(fg__vk_device *d, const fg__vk_roof *roof, double *rate) {
    double best[2] = {1e30, 1e30}, seconds;
    uint32_t groups = (uint32_t)(roof->memory.bytes / FG__VK_ROOF_GROUP);
    fg_result r = fg__vk_roof_run(d, roof, FG__VK_ROOF_FILLS, groups, &seconds);
    int i;
    for (i = 0; i < 8 && r == FG_OK; i++) {
        r = fg__vk_roof_run(d, roof, FG__VK_ROOF_READS, i % 2 ? groups : groups / 4, &seconds);
        best[i % 2] = FG__MIN(best[i % 2], seconds);
    }
    if (r == FG_OK && best[1] > best[0]) *rate = 0.75 * (double)roof->memory.bytes / (best[1] - best[0]);
    return r;
}

/* As `number` of shaders/roof.glsl. */
static int32_t fg__vk_roof_number(uint32_t right, int row, int k) {
    uint32_t x = (uint32_t)(row * 64 + k + 1) * (right ? 0x9E3779B1u : 0x85EBCA77u);
    x = (x ^ x >> 15) * 0x2C1B3C6Du;
    return (int32_t)((x ^ x >> 12) % 7u) - 3;
}

/* Multiplications and additions of a workgroup in a round. */
static double fg__vk_roof_ops(const fg__vk_device *d, int shader) {
    const fg__vk_matrix_shape *m = &d->shape;
    if (shader == FG__VK_SHADER_ROOF_MATRIX) return 2.0 * 16 * (128 / d->matrix_lanes) * m->m * m->n * m->k;
    return 2.0 * 128 * 128 * (shader == FG__VK_SHADER_ROOF_DOT ? 4 : 1);
}

/* Sums of byte j of the words that shaders/roof_dot.comp multiplies, all of them. */
static void fg__vk_roof_bytes(int rounds, int32_t *sums) {
    uint32_t left = 0;
    int i, j;
    for (j = 0; j < 4; j++) sums[j] = 0;
    for (i = 0; i < 8 * rounds; i++) {
        left += 0x9E3779B1u;
        for (j = 0; j < 4; j++) sums[j] += (int8_t)(left >> 8 * j & 255u);
    }
}

/* What the sums of a workgroup add up to, modulo 2^32. */
static uint32_t fg__vk_roof_sum(const fg__vk_device *d, int shader, int rounds) {
    const fg__vk_matrix_shape *m = &d->shape;
    int32_t bytes[4], i, j;
    uint32_t sum = 0, left, right;
    if (shader == FG__VK_SHADER_ROOF_MATRIX) {
        for (j = 0; j < (int)m->k; j++) {
            for (left = 0, i = 0; i < 4 * (int)m->m; i++) left += (uint32_t)fg__vk_roof_number(0, i, j);
            for (right = 0, i = 0; i < (int)m->n; i++) right += (uint32_t)fg__vk_roof_number(1, i, j);
            sum += left * right;
        }
        return sum * 4u * (uint32_t)(128 / d->matrix_lanes) * (uint32_t)rounds;
    }
    fg__vk_roof_bytes(rounds, bytes);
    for (i = 0; i < 32; i++)
        for (j = 0; j < (shader == FG__VK_SHADER_ROOF_DOT ? 64 : 16); j++)
            sum += (uint32_t)fg__vk_roof_number(1, i, j) * (shader == FG__VK_SHADER_ROOF_DOT ? (uint32_t)bytes[j % 4] : 8u * (uint32_t)rounds);
    return sum * 4u;
}

/* Whether the last of the workgroups did all of its products. */
static fg_result fg__vk_roof_holds(fg__vk_device *d, const fg__vk_roof *roof, int kind, uint32_t groups, bool *holds) {
    uint32_t sums[128], sum = 0;
    int i;
    fg_result r = fg__vk_read((fg_device *)d, &roof->memory, (size_t)(groups - 1) * sizeof(sums), sums, sizeof(sums));
    for (i = 0; i < 128 && r == FG_OK; i++) sum += sums[i];
    *holds = r == FG_OK && sum == fg__vk_roof_sum(d, d->pipelines[roof->pipelines[kind]].shader, roof->step.push.k);
    return r;
}

/* Finds rounds that take 5 ms, twice, because once may be a matter of chance. The first of all takes longer. */
static fg_result fg__vk_roof_grow(fg__vk_device *d, fg__vk_roof *roof, int kind, uint32_t groups) {
    int32_t *k = &roof->step.push.k;
    double seconds = 0;
    fg_result r;
    *k = 1;
    r = fg__vk_roof_run(d, roof, kind, groups, &seconds);
    for (seconds = 0; r == FG_OK && seconds < 5e-3 && *k < FG__VK_ROOF_ROUNDS;) {
        *k *= 4;
        r = fg__vk_roof_run(d, roof, kind, groups, &seconds);
        if (r == FG_OK && seconds >= 5e-3) r = fg__vk_roof_run(d, roof, kind, groups, &seconds);
    }
    return r;
}

/* Operations a second: rounds that take 5 ms, less the fourth of them; 0: there is no such kernel, or its sums are wrong. Workgroups are so many that
   the last of them leave no large device half empty. */
static fg_result fg__vk_product_rate(fg__vk_device *d, fg__vk_roof *roof, int kind, double *rate) {
    uint32_t groups = d->properties.device_type == FG__VK_CPU ? 256 : 8192;
    int32_t rounds, i, *k = &roof->step.push.k;
    double best[2] = {1e30, 1e30}, seconds = 0, ops;
    bool holds = false;
    fg_result r;
    if (roof->pipelines[kind] < 0) return FG_OK;
    ops = groups * fg__vk_roof_ops(d, d->pipelines[roof->pipelines[kind]].shader);
    if ((r = fg__vk_roof_grow(d, roof, kind, groups)) != FG_OK) return r;
    rounds = *k;
    for (i = 0; i < 8 && r == FG_OK; i++) {
        *k = i % 2 ? rounds : rounds / 4;
        r = fg__vk_roof_run(d, roof, kind, groups, &seconds);
        best[i % 2] = FG__MIN(best[i % 2], seconds);
    }
    if (r == FG_OK) r = fg__vk_roof_holds(d, roof, kind, groups, &holds);
    if (r == FG_OK && !holds) fg__log(&d->env, FG_LOG_WARNING, "%s: the kernel that measures products gives wrong sums", d->properties.name);
    if (holds && best[1] > best[0]) *rate = (rounds - rounds / 4) * ops / (best[1] - best[0]);
    return r;
}

/* The kernels: products of floats as large ones of BF16 weights are done, of bytes where those of quantised weights are. */
static bool fg__vk_roof_find(fg__vk_device *d, int *pipelines) {
    const fg__vk_matrix_shape *m = &d->shape;
    bool matrices = fg__vk_rung_of(d, FG_TYPE_BF16, true) == FG_VULKAN_MATRIX, bytes = fg__vk_rung_of(d, FG_TYPE_Q8_0, true) == FG_VULKAN_DOT;
    int subgroups = matrices ? 128 / d->matrix_lanes : 0;
    pipelines[FG__VK_ROOF_FILLS] = fg__vk_pipeline_find(d, FG__VK_SHADER_ROOF_READ, 1, 0, 0, 0);
    pipelines[FG__VK_ROOF_READS] = fg__vk_pipeline_find(d, FG__VK_SHADER_ROOF_READ, 0, 0, 0, 0);
    pipelines[FG__VK_ROOF_FLOATS] =
        matrices ? fg__vk_pipeline_find(d, FG__VK_SHADER_ROOF_MATRIX, 0, (int)(m->m << 8 | m->n), (int)m->k << 8 | subgroups, 0)
                 : fg__vk_pipeline_find(d, FG__VK_SHADER_ROOF_FMA, 0, 0, 0, 0);
    pipelines[FG__VK_ROOF_BYTES] = bytes ? fg__vk_pipeline_find(d, FG__VK_SHADER_ROOF_DOT, 0, 0, 0, 0) : -1;
    return pipelines[FG__VK_ROOF_FILLS] >= 0 && pipelines[FG__VK_ROOF_READS] >= 0 && pipelines[FG__VK_ROOF_FLOATS] >= 0 &&
           (!bytes || pipelines[FG__VK_ROOF_BYTES] >= 0);
}

static fg_result fg__vk_roof_compile(fg__vk_device *d, fg__vk_roof *roof) {
    fg_progress_fn progress = d->progress;
    fg_result r = fg__vk_roof_find(d, roof->pipelines) ? FG_OK : FG_ERROR_OUT_OF_MEMORY;
    d->progress = NULL; /* which is told of loading alone */
    if (r == FG_OK) r = fg__vk_compile_all(d);
    d->progress = progress;
    return r;
}

static fg_result fg__vk_roof_measure(fg__vk_device *d, fg__vk_roof *roof, fg_roofs *roofs) {
    int i;
    fg_result r = fg__vk_roof_compile(d, roof);
    for (i = 0; i < FG__VK_BINDINGS; i++) roof->step.buffers[i] = fg__vk_whole(&roof->memory);
    roof->step.push.scale = 1.0f;
    if (r == FG_OK) r = fg__vk_make_pool(d, 1, &roof->pool);
    if (r == FG_OK) r = fg__vk_make_set(d, roof->pool, &roof->step);
    if (r == FG_OK) r = fg__vk_read_rate(d, roof, &roofs->read_bytes_per_s);
    if (r == FG_OK) r = fg__vk_product_rate(d, roof, FG__VK_ROOF_FLOATS, &roofs->float_ops_per_s);
    return r == FG_OK ? fg__vk_product_rate(d, roof, FG__VK_ROOF_BYTES, &roofs->int8_ops_per_s) : r;
}

static fg_result fg__vk_profile(fg_device *handle, fg_roofs *roofs) {
    fg__vk_device *d = (fg__vk_device *)handle;
    size_t bytes = (size_t)(d->properties.device_type == FG__VK_CPU ? 64 : 512) << 20, most = d->properties.limits.max_storage_range;
    fg__vk_roof roof;
    fg_result r;
    while (bytes > (size_t)16 << 20 && (bytes > most || bytes > fg__vk_heap_bytes(d, d->memory_types[FG__VK_ON_DEVICE]) / 16)) bytes /= 2;
    memset(roofs, 0, sizeof(*roofs));
    memset(&roof, 0, sizeof(roof));
    if ((r = fg__vk_take(d, FG__VK_ON_DEVICE, bytes, &roof.memory)) != FG_OK) return r;
    r = fg__vk_roof_measure(d, &roof, roofs);
    if (roof.pool) d->api.DestroyDescriptorPool(d->handle, roof.pool, NULL);
    fg__vk_give(d, &roof.memory);
    return r;
}

/* ================================================================================================
   Opening: small products and attentions prove the floor, and each rung
   ================================================================================================ */

/* FG__VK_TRIAL_LONG: slices have two blocks, for the order of sums. */
enum { FG__VK_TRIAL_K = 256, FG__VK_TRIAL_LONG = FG__VK_SLICES * 32 + 256, FG__VK_TRIAL_N = 70, FG__VK_TRIAL_ROWS = FG__VK_SOME_ROWS + 1, FG__VK_TRIAL_KEPT = 3 };

/* dst[rows, N] = src[rows, k] . weight^T as a graph, and what it is on this thread. */
typedef struct fg__vk_trial {
    fg_op ops[6];
    fg_slot slots[5];
    fg_tensor tensors[3];
    fg_weight *weights[3];
    fg_graph graph;
    fg_plan *plan;
    int32_t numbers[FG__VK_TRIAL_ROWS], ends[2]; /* tokens, positions and rows are ..., 1, 0 */
    int k; /* FG__VK_TRIAL_K or _LONG */
    float src[FG__VK_TRIAL_ROWS * FG__VK_TRIAL_LONG], row[FG__VK_TRIAL_LONG];
    float kept[FG__VK_TRIAL_KEPT * FG__VK_TRIAL_N]; /* the first rows of the pass before */
    int n_kept;
    bool differs; /* from those in another pass */
    bool experts; /* see fg__vk_trial_experts */
    float router[FG__VK_TRIAL_ROWS * 2];
    uint8_t weight[FG__VK_TRIAL_N * FG__VK_TRIAL_LONG * 4];
} fg__vk_trial;

/* Random numbers: floats of [-1, 1), halves whose sizes are within [1/4, 1/2), blocks of Q8_0 and Q2_K with scales of 2^-7 or so. */
static void fg__vk_trial_fill(fg__vk_trial *t, fg_type type) {
    uint64_t state = 1;
    uint32_t i, n = (uint32_t)(FG__VK_TRIAL_ROWS * t->k), bytes = (uint32_t)t->tensors[1].bytes;
    for (i = 0; i < n + bytes; i++) {
        uint32_t bits;
        state = state * 6364136223846793005u + 1442695040888963407u;
        bits = (uint32_t)(state >> 33);
        if (i < n) t->src[i] = (float)((int)(bits & 0xFFFF) - 0x8000) / 32768.0f;
        else t->weight[i - n] = (uint8_t)bits;
    }
    for (i = 0; type == FG_TYPE_F16 && i < bytes; i += 2)
        t->weight[i + 1] = (uint8_t)((t->weight[i + 1] & 0x83) | 0x34);
    for (i = 0; type == FG_TYPE_Q8_0 && i < bytes; i += 34) t->weight[i + 1] = 0x20;
    for (i = 0; type == FG_TYPE_Q2_K && i < bytes; i += 84) t->weight[i + 81] = t->weight[i + 83] = 0x20;
    for (i = 0; type == FG_TYPE_F32 && i < bytes; i += 4) memcpy(t->weight + i, &t->src[i / 4 % n], 4);
}

static void fg__vk_trial_tensor(fg_tensor *tensor, fg_type type, int64_t k, int64_t n, const void *data) {
    tensor->name = "trial";
    tensor->type = type;
    tensor->n_dims = 2;
    tensor->dims[0] = k;
    tensor->dims[1] = n;
    tensor->dims[2] = tensor->dims[3] = 1;
    tensor->data = data;
    tensor->bytes = (size_t)(fg_type_bytes(type, k) * n);
}

static void fg__vk_trial_graph(fg__vk_trial *t, fg_type type) {
    static const int types[4] = {FG_OP_EMBED, FG_OP_GEMM, FG_OP_GATHER_ROWS, FG_OP_SAMPLE};
    fg_graph *g = &t->graph;
    int i;
    for (i = 0; i < 4; i++) {
        fg_op *op = &t->ops[i];
        op->type = types[i];
        op->layer = op->src2 = op->weight2 = op->bias = op->group = -1;
        op->weight = i < 2 ? i : -1;
        op->src = i - 1;
        op->dst = i < 3 ? i : -1;
        op->n = i ? FG__VK_TRIAL_N : t->k;
        op->k = t->k;
        if (i == 3) continue;
        t->slots[i].name = "trial";
        t->slots[i].width = op->n;
        t->slots[i].per_row = i == 2;
    }
    fg__vk_trial_tensor(&t->tensors[0], FG_TYPE_F32, t->k, FG__VK_TRIAL_ROWS, t->src);
    fg__vk_trial_tensor(&t->tensors[1], type, t->k, FG__VK_TRIAL_N, t->weight);
    fg__vk_trial_fill(t, type);
    g->ops = t->ops;
    g->n_ops = 4;
    g->slots = t->slots;
    g->n_slots = 3;
    g->tensors = t->tensors;
    g->weights = t->weights;
    g->n_weights = 2;
    g->max_tokens = g->max_rows = FG__VK_TRIAL_ROWS;
    g->max_seqs = g->max_blocks_per_seq = 1;
    g->n_vocab = FG__VK_TRIAL_N;
}

/* Makes of the weight two experts, of which each row takes both; first the one whose number is the row's last bit. */
static void fg__vk_trial_experts(fg__vk_trial *t) {
    fg_op *embed = &t->ops[1], *route = &t->ops[2], *product = &t->ops[3];
    int i;
    memmove(&t->ops[4], route, 2 * sizeof(fg_op));
    *product = *embed;
    *embed = *route = t->ops[0];
    embed->weight = 2, embed->dst = 3, embed->n = 2;
    route->type = FG_OP_MOE_ROUTE, route->weight = -1, route->src = 3, route->dst = 4;
    product->type = FG_OP_MOE_GEMM, product->src2 = 4, product->n = FG__VK_TRIAL_N / 2;
    route->n_expert = route->n_used = product->n_expert = product->n_used = 2;
    t->slots[3] = t->slots[4] = t->slots[0];
    t->slots[3].width = 2, t->slots[4].width = 4;
    t->tensors[1].n_dims = 3, t->tensors[1].dims[1] = FG__VK_TRIAL_N / 2, t->tensors[1].dims[2] = 2;
    fg__vk_trial_tensor(&t->tensors[2], FG_TYPE_F32, 2, FG__VK_TRIAL_ROWS, t->router);
    for (i = 0; i < FG__VK_TRIAL_ROWS; i++) t->router[2 * i + i % 2] = 1;
    t->graph.n_ops = 6, t->graph.n_slots = 5, t->graph.n_weights = 3;
    t->experts = true;
}

/* The column of a row of results that is the product with row j of the weight. */
static int fg__vk_trial_column(const fg__vk_trial *t, int row, int j) {
    const int half = FG__VK_TRIAL_N / 2;
    return t->experts ? (row + j / half) % 2 * half + j % half : j;
}

/* The largest difference of logits [m][N] relative to the norms of the two vectors. */
static void fg__vk_trial_compare(fg__vk_trial *t, int m, const float *logits, double *error) {
    const fg_tensor *tensor = &t->tensors[1];
    int i, j, row;
    for (j = 0; j < FG__VK_TRIAL_N; j++) {
        fg__dequantize_row(tensor->type, t->weight + (int64_t)j * fg_type_bytes(tensor->type, t->k), t->row, t->k);
        for (row = 0; row < m; row++) {
            double sum = 0, xx = 0, ww = 0, off;
            for (i = 0; i < t->k; i++) {
                double x = (double)t->src[row * t->k + i], w = (double)t->row[i];
                sum += x * w;
                xx += x * x;
                ww += w * w;
            }
            off = fabs((double)logits[row * FG__VK_TRIAL_N + fg__vk_trial_column(t, row, j)] - sum) / sqrt(xx * ww);
            if (!(off <= *error)) *error = off; /* NaN too */
        }
    }
}

/* Runs a pass of m rows. */
static fg_result fg__vk_trial_run(fg__vk_device *d, fg__vk_trial *t, int m, double *error) {
    fg_batch batch;
    fg_output output;
    fg_result r;
    int i;
    memset(&batch, 0, sizeof(batch));
    for (i = 0; i < m; i++) t->numbers[i] = m - 1 - i; /* a row has another place in every pass */
    t->ends[1] = batch.n_tokens = batch.n_rows = m;
    batch.n_seqs = 1;
    batch.tokens = batch.positions = batch.rows = t->numbers;
    batch.cu_q = t->ends;
    batch.kv_len = t->ends + 1;
    batch.want_logits = true;
    if ((r = fg__vk_submit((fg_device *)d, t->plan, &batch)) != FG_OK) return r;
    if ((r = fg__vk_wait((fg_device *)d, t->plan, &output)) != FG_OK) return r;
    if (memcmp(t->kept, output.logits, sizeof(float) * (size_t)t->n_kept * FG__VK_TRIAL_N) != 0) t->differs = true;
    t->n_kept = FG__MIN(m, FG__VK_TRIAL_KEPT);
    memcpy(t->kept, output.logits, sizeof(float) * (size_t)t->n_kept * FG__VK_TRIAL_N);
    fg__vk_trial_compare(t, m, output.logits, error);
    return FG_OK;
}

/* The largest error of products of one row, of few and of many, maybe with experts, and whether a row's bits differ between them. */
static fg_result fg__vk_try(fg__vk_device *d, fg_type type, int k, bool experts, double *error, bool *differs) {
    static const int rows[2][5] = {{1, 3, 7, 33, FG__VK_TRIAL_ROWS}, {1, 7, 11, 33, FG__VK_TRIAL_ROWS}}; /* every kind's; but for matrices some are many */
    fg__vk_trial *t = (fg__vk_trial *)fg__calloc(&d->env, 1, sizeof(fg__vk_trial));
    fg_device *handle = (fg_device *)d;
    fg_result r;
    int n = d->rungs & FG_VULKAN_MATRIX ? 5 : 4, i;
    if (!t) return FG_ERROR_OUT_OF_MEMORY;
    t->k = k;
    fg__vk_trial_graph(t, type);
    if (experts) fg__vk_trial_experts(t);
    r = fg__vk_pack(handle, &t->tensors[0], FG_OP_EMBED, &t->weights[0], NULL);
    if (r == FG_OK) r = fg__vk_pack(handle, &t->tensors[1], experts ? FG_OP_MOE_GEMM : FG_OP_GEMM, &t->weights[1], NULL);
    if (r == FG_OK && experts) r = fg__vk_pack(handle, &t->tensors[2], FG_OP_EMBED, &t->weights[2], NULL);
    if (r == FG_OK) r = fg__vk_prepare(handle, &t->graph, &t->plan, NULL);
    for (i = 0; i < n && r == FG_OK; i++) r = fg__vk_trial_run(d, t, rows[experts][i], error);
    *differs = *differs || t->differs;
    if (t->plan) fg__vk_release(handle, t->plan);
    for (i = 0; i < 3; i++)
        if (t->weights[i]) fg__vk_unpack(handle, t->weights[i]);
    fg__free(&d->env, t);
    return r;
}

enum { FG__VK_TRIAL_BLOCK = 32, FG__VK_TRIAL_BLOCKS = 3, FG__VK_TRIAL_MANY = 20, FG__VK_TRIAL_OTHERS = FG__VK_TRIAL_BLOCKS * FG__VK_TRIAL_BLOCK };
enum { FG__VK_TRIAL_TOKENS = FG__VK_MOST_WINDOW + 11, FG__VK_TRIAL_DIM = 80 };

/* Attention as a graph, of rows of queries, keys and values, over a context that goes past a cut and a window. Its tokens, and the
   blocks of the cache with their keys and values, come round again. */
typedef struct fg__vk_heads {
    fg__vk_shape shape;
    fg_op ops[5];
    fg_slot slots[3];
    fg_tensor tensor;
    fg_weight *weights[1];
    fg_graph graph;
    fg_plan *plan;
    int32_t tokens[FG__VK_TRIAL_TOKENS], numbers[FG__VK_TRIAL_TOKENS], ends[2]; /* tokens are also their places in the cache */
    int32_t table[(int)FG__VK_TRIAL_TOKENS / FG__VK_TRIAL_BLOCK + 1];
    int q, kv, width, n_tokens; /* columns of queries, of keys, of all; positions */
    float *rows, *kept;         /* [OTHERS][width]; [q], of the pass before */
    bool differs;               /* a row from the same in another pass */
} fg__vk_heads;

static fg__vk_heads *fg__vk_heads_new(fg__vk_device *d, const fg__vk_shape *shape) {
    int q = shape->n_head * shape->head_dim, kv = shape->n_kv_head * shape->head_dim, width = q + 2 * kv;
    size_t floats = (size_t)FG__VK_TRIAL_OTHERS * (size_t)width + (size_t)q;
    fg__vk_heads *t = (fg__vk_heads *)fg__calloc(&d->env, 1, sizeof(fg__vk_heads) + floats * sizeof(float));
    if (!t) return NULL;
    t->shape = *shape;
    t->q = q;
    t->kv = kv;
    t->width = width;
    t->n_tokens = FG__MAX(FG__VK_SPLIT, shape->window) + 11;
    t->rows = (float *)(void *)(t + 1);
    t->kept = t->rows + FG__VK_TRIAL_OTHERS * width;
    return t;
}

/* Values that F16 and Q8_0 hold: multiples of 1/128, of which each block of 32 has the largest. */
static void fg__vk_heads_fill(fg__vk_heads *t) {
    uint64_t state = 1;
    int i;
    for (i = 0; i < FG__VK_TRIAL_OTHERS * t->width; i++) {
        int value;
        state = state * 6364136223846793005u + 1442695040888963407u;
        value = (int)(state >> 56) - 128;
        if (i % t->shape.head_dim % 32 == 0) value = value < 0 ? -127 : 127;
        t->rows[i] = (float)FG__MAX(value, -127) / 128.0f;
    }
    for (i = 0; i < FG__VK_TRIAL_TOKENS; i++) {
        t->tokens[i] = i % FG__VK_TRIAL_OTHERS;
        t->numbers[i] = i;
    }
    for (i = 0; i < (int)FG__COUNT(t->table); i++) t->table[i] = i % FG__VK_TRIAL_BLOCKS;
}

/* Scores have the same spread with heads of every size. */
static void fg__vk_heads_graph(fg__vk_heads *t) {
    static const int types[5] = {FG_OP_EMBED, FG_OP_ROPE_KV, FG_OP_ATTENTION, FG_OP_GATHER_ROWS, FG_OP_SAMPLE};
    static const int src[5] = {-1, 0, 0, 1, 2}, dst[5] = {0, -1, 1, 2, -1};
    fg_graph *g = &t->graph;
    fg_group *group = &g->groups[0];
    int i;
    for (i = 0; i < 5; i++) {
        fg_op *op = &t->ops[i];
        op->type = types[i];
        op->layer = op->src2 = op->weight = op->weight2 = op->bias = -1;
        op->src = src[i];
        op->dst = dst[i];
        op->n = i ? t->q : t->width;
        op->n_head = t->shape.n_head;
        op->n_kv_head = t->shape.n_kv_head;
        op->head_dim = t->shape.head_dim;
        op->scale = (float)sqrt((double)FG__VK_TRIAL_DIM / t->shape.head_dim);
    }
    t->ops[0].weight = 0;
    t->ops[0].scale = 1;
    t->ops[1].src2_col = t->q;
    t->ops[1].dst_col = t->q + t->kv;
    t->ops[2].softcap = t->shape.softcap;
    for (i = 0; i < 3; i++) {
        t->slots[i].name = "trial";
        t->slots[i].width = i ? t->q : t->width;
        t->slots[i].per_row = i == 2;
    }
    fg__vk_trial_tensor(&t->tensor, FG_TYPE_F32, t->width, FG__VK_TRIAL_OTHERS, t->rows);
    group->n_layers = 1;
    group->n_kv_head = t->shape.n_kv_head;
    group->head_dim = t->shape.head_dim;
    group->window = t->shape.window;
    group->block_tokens = FG__VK_TRIAL_BLOCK;
    group->n_blocks = FG__VK_TRIAL_BLOCKS;
    g->n_groups = 1;
    g->ops = t->ops;
    g->n_ops = 5;
    g->slots = t->slots;
    g->n_slots = 3;
    g->tensors = &t->tensor;
    g->weights = t->weights;
    g->n_weights = 1;
    g->max_tokens = FG__VK_TRIAL_OTHERS;
    g->max_rows = FG__VK_TRIAL_MANY;
    g->max_seqs = 1;
    g->max_blocks_per_seq = t->n_tokens / FG__VK_TRIAL_BLOCK + 1;
    g->n_vocab = t->q;
}

/* How often row p comes among positions [0, end). */
static int fg__vk_heads_times(int p, int end) { return end > p ? (end - p - 1) / FG__VK_TRIAL_OTHERS + 1 : 0; }

/* The largest error of one head of the token at a position. */
static double fg__vk_heads_error(const fg__vk_heads *t, int position, int head, const float *is) {
    int dim = t->shape.head_dim, first = t->shape.window > 0 ? FG__MAX(0, position - t->shape.window + 1) : 0, p, i;
    const float *q = &t->rows[t->tokens[position] * t->width + head * dim];
    int k_at = t->q + head / (t->shape.n_head / t->shape.n_kv_head) * dim;
    double out[FG__VK_MOST_DIM] = {0}, sum = 0, worst = 0, cap = (double)t->shape.softcap;
    for (p = 0; p < FG__VK_TRIAL_OTHERS; p++) {
        const float *k = &t->rows[p * t->width + k_at], *v = k + t->kv;
        int times = fg__vk_heads_times(p, position + 1) - fg__vk_heads_times(p, first);
        double score = 0, e;
        if (times == 0) continue;
        for (i = 0; i < dim; i++) score += (double)q[i] * (double)k[i];
        score *= (double)t->ops[2].scale;
        if (cap > 0) score = cap * tanh(score / cap);
        e = exp(score) * times;
        sum += e;
        for (i = 0; i < dim; i++) out[i] += e * (double)v[i];
    }
    for (i = 0; i < dim; i++) {
        double off = fabs((double)is[i] - out[i] / sum);
        if (!(off <= worst)) worst = off; /* NaN too */
    }
    return worst;
}

/* Tokens [first, end) in one pass; with error NULL their keys and values alone. The last one's row must be that of the pass before where
   `again`. */
static fg_result fg__vk_heads_run(fg__vk_device *d, fg__vk_heads *t, int first, int end, bool again, double *error) {
    fg_batch batch;
    fg_output output;
    fg_result r;
    int i, head;
    memset(&batch, 0, sizeof(batch));
    t->ends[1] = batch.n_tokens = end - first;
    batch.n_rows = error ? end - first : 0;
    batch.n_ops = error ? 0 : 2;
    batch.n_seqs = 1;
    batch.tokens = batch.slots[0] = t->tokens + first;
    batch.positions = t->numbers + first;
    batch.rows = t->numbers;
    batch.tables[0] = t->table;
    batch.cu_q = t->ends;
    batch.kv_len = &end;
    batch.want_logits = error != NULL;
    if ((r = fg__vk_submit((fg_device *)d, t->plan, &batch)) != FG_OK) return r;
    if ((r = fg__vk_wait((fg_device *)d, t->plan, &output)) != FG_OK || !error) return r;
    for (i = first; i < end; i++)
        for (head = 0; head < t->shape.n_head; head++) {
            double off = fg__vk_heads_error(t, i, head, output.logits + (i - first) * t->q + head * t->shape.head_dim);
            if (!(off <= *error)) *error = off;
        }
    output.logits += (end - first - 1) * t->q;
    if (again && memcmp(t->kept, output.logits, sizeof(float) * (size_t)t->q) != 0) t->differs = true;
    memcpy(t->kept, output.logits, sizeof(float) * (size_t)t->q);
    return FG_OK;
}

/* Over a cache of a type of which kernels see so many blocks at once: many tokens and one, then past a cut many and one, which is items. */
static fg_result fg__vk_heads_all(fg__vk_device *d, fg__vk_heads *t, fg_type type, int blocks, double *error) {
    size_t range = d->max_range;
    int n = t->n_tokens;
    bool again = blocks == FG__VK_TRIAL_BLOCKS;
    fg_result r;
    t->graph.groups[0].kv_type = type;
    if (blocks < FG__VK_TRIAL_BLOCKS) d->max_range = fg__vk_block_bytes(&t->graph.groups[0]) * (size_t)blocks;
    r = fg__vk_prepare((fg_device *)d, &t->graph, &t->plan, NULL);
    d->max_range = range;
    if (r == FG_OK) r = fg__vk_heads_run(d, t, 0, FG__VK_TRIAL_OTHERS, false, NULL);
    if (r == FG_OK) r = fg__vk_heads_run(d, t, 0, FG__VK_TRIAL_MANY, false, error);
    if (r == FG_OK) r = fg__vk_heads_run(d, t, FG__VK_TRIAL_MANY - 1, FG__VK_TRIAL_MANY, again, error);
    if (r == FG_OK) r = fg__vk_heads_run(d, t, n - FG__VK_SPLIT_QUERIES - 1, n, false, error);
    if (r == FG_OK) r = fg__vk_heads_run(d, t, n - 1, n, again, error);
    if (t->plan) fg__vk_release((fg_device *)d, t->plan);
    t->plan = NULL;
    return r;
}

/* The largest error of attention, and whether a row's bits differ between passes. Of a shape over its cache; of none (at the start) over one
   in F16, whole and in pieces; of two types one in Q8_0 too. */
static fg_result fg__vk_try_heads(fg__vk_device *d, const fg__vk_shape *shape, int n_types, double *error, bool *differs) {
    static const fg__vk_shape usual = {FG_TYPE_F16, FG__VK_TRIAL_DIM, 2, 1, 0, 0.0f};
    fg__vk_heads *t = fg__vk_heads_new(d, shape ? shape : &usual);
    fg_device *handle = (fg_device *)d;
    fg_result r;
    int i;
    if (!t) return FG_ERROR_OUT_OF_MEMORY;
    fg__vk_heads_graph(t);
    fg__vk_heads_fill(t);
    r = fg__vk_pack(handle, &t->tensor, FG_OP_EMBED, &t->weights[0], NULL);
    if (shape && r == FG_OK) r = fg__vk_heads_all(d, t, (fg_type)shape->kv_type, FG__VK_TRIAL_BLOCKS, error);
    for (i = 0; !shape && i < 1 + n_types && r == FG_OK; i++)
        r = fg__vk_heads_all(d, t, i < 2 ? FG_TYPE_F16 : FG_TYPE_Q8_0, i == 1 ? 2 : FG__VK_TRIAL_BLOCKS, error);
    *differs = *differs || t->differs;
    if (t->weights[0]) fg__vk_unpack(handle, t->weights[0]);
    fg__free(&d->env, t);
    return r;
}

/* Kernels that proved good in this process, by a number of theirs that is not 0; behind them zeros. Atomic: of two threads that add at
   the same time one may lose its entry, and tries again. */
static int fg__vk_proved[256];

/* The number of a rung's kernels of a device, of all trials at the start or of a shape of attention (FNV-1a). */
static uint32_t fg__vk_proof(const fg__vk_device *d, uint32_t bit, const fg__vk_shape *shape) {
    const fg__vk_properties *p = &d->properties;
    uint32_t words[8], hash = 2166136261u;
    size_t i;
    words[0] = p->vendor;
    words[1] = p->device;
    words[2] = p->driver_version;
    words[3] = (uint32_t)d->subgroup;
    words[4] = bit << 2 | (d->options.invariant ? 2 : 0) | (d->narrow ? 1 : 0);
    words[5] = d->rungs & FG_VULKAN_PUSH;
    words[6] = (uint32_t)d->matrix_lanes << 24 | d->shape.m << 16 | d->shape.n << 8 | d->shape.k;
    words[7] = p->limits.shared_bytes;
    for (i = 0; i < sizeof(words); i++) hash = (hash ^ ((const uint8_t *)words)[i]) * 16777619u;
    for (i = 0; i < sizeof(d->options.get_instance_proc_addr); i++)
        hash = (hash ^ ((const uint8_t *)&d->options.get_instance_proc_addr)[i]) * 16777619u;
    for (i = 0; i < sizeof(p->cache_uuid); i++) hash = (hash ^ p->cache_uuid[i]) * 16777619u;
    for (i = 0; shape && i < sizeof(*shape); i++) hash = (hash ^ ((const uint8_t *)shape)[i]) * 16777619u;
    for (i = 0; p->name[i] && i < sizeof(p->name); i++) hash = (hash ^ (uint8_t)p->name[i]) * 16777619u;
    return hash | 1;
}

/* Where a number is, or else belongs; where all places are taken, it takes that of its remainder. */
static int *fg__vk_proved_at(uint32_t proof) {
    size_t i;
    for (i = 0; i < FG__COUNT(fg__vk_proved); i++) {
        uint32_t other = (uint32_t)fg__atomic_load(&fg__vk_proved[i]);
        if (other == proof || other == 0) return &fg__vk_proved[i];
    }
    return &fg__vk_proved[proof % FG__COUNT(fg__vk_proved)];
}

static bool fg__vk_is_proved(uint32_t proof) { return (uint32_t)fg__atomic_load(fg__vk_proved_at(proof)) == proof; }

/* What a trial gave: whether the kernels are good, and else why not. An error is one that is not theirs. */
static fg_result fg__vk_judge(const fg__vk_device *d, fg_result r, uint32_t proof, bool good, const char *what, double error, char *why, size_t size) {
    if (r == FG_OK && good) fg__atomic_store(fg__vk_proved_at(proof), (int)proof);
    if (r == FG_OK) snprintf(why, size, "%s is off by %g", what, error);
    else if (r != FG_ERROR_OUT_OF_MEMORY && r != FG_ERROR_CANCELLED && !d->lost) snprintf(why, size, "%.190s", fg_last_error());
    else return r;
    return FG_OK;
}

/* Whether the kernels of a rung, or of the floor (bit 0), compile, run and agree with the CPU; `why` says what does not. An error is one
   that is not theirs. Rungs multiply by floats and by blocks, bytes by blocks with one scale and with two and two lows for each 32. */
static fg_result fg__vk_prove_one(fg__vk_device *d, uint32_t bit, bool *good, char *why, size_t size) {
    uint32_t proof = fg__vk_proof(d, bit, NULL);
    bool differs = false, floor = bit == 0 || bit == FG_VULKAN_PUSH;
    double error = 0, most = floor ? 1e-5 : bit == FG_VULKAN_DOT ? 5e-3 : 1e-3;
    const char *what = "a product";
    fg_result r;
    *good = fg__vk_is_proved(proof);
    if (*good) return FG_OK;
    r = fg__vk_try(d, bit == FG_VULKAN_DOT ? FG_TYPE_Q2_K : FG_TYPE_F16, FG__VK_TRIAL_K, false, &error, &differs);
    if (r == FG_OK && !floor) r = fg__vk_try(d, FG_TYPE_Q8_0, FG__VK_TRIAL_K, false, &error, &differs);
    if (r == FG_OK && error <= most && bit != FG_VULKAN_DOT) {
        what = "attention";
        error = 0;
        most = floor ? 1e-4 : 5e-3;
        r = fg__vk_try_heads(d, NULL, floor ? 1 : 2, &error, &differs);
    }
    *good = r == FG_OK && error <= most;
    return fg__vk_judge(d, r, proof, *good, what, error, why, size);
}

static void fg__vk_not_used(fg__vk_device *d, const char *name, const char *why) {
    fg__log(&d->env, FG_LOG_WARNING, "%s: %s are not used: %s", d->properties.name, name, why);
}

/* Push descriptors are a matter of the layouts, which are made again without. */
static fg_result fg__vk_without_push(fg__vk_device *d) {
    fg__vk_keep_pipelines(d, 0);
    fg__vk_drop_layouts(d);
    d->rungs = 0;
    return fg__vk_make_layouts(d);
}

/* The floor, with push descriptors or, where it is wrong with those, without; likewise with options.invariant its kernels for few rows. */
static fg_result fg__vk_prove_floor(fg__vk_device *d, uint32_t push) {
    bool narrow = d->narrow, good = false;
    char why[200];
    fg_result r;
    for (;;) {
        d->rungs = push;
        if ((r = fg__vk_prove_one(d, push, &good, why, sizeof(why))) != FG_OK || good) return r;
        if (d->narrow) {
            d->narrow = false;
            continue;
        }
        if (!push) return fg__fail(FG_ERROR_UNSUPPORTED, "%s computes wrong: %s", d->properties.name, why);
        fg__vk_not_used(d, fg__vk_rungs[0].name, why);
        push = 0;
        d->narrow = narrow;
        if ((r = fg__vk_without_push(d)) != FG_OK) return r;
    }
}

/* Keeps of the device's rungs those that prove good, each tried without the others. */
static fg_result fg__vk_prove(fg__vk_device *d) {
    uint32_t wanted = d->rungs, push, good;
    fg__text names;
    fg_result r;
    int i;
    if ((r = fg__vk_prove_floor(d, wanted & FG_VULKAN_PUSH)) != FG_OK) return r;
    push = good = d->rungs;
    memset(&names, 0, sizeof(names));
    names.env = &d->env;
    for (i = 0; i < (int)FG__COUNT(fg__vk_rungs) && r == FG_OK; i++) {
        uint32_t bit = fg__vk_rungs[i].bit;
        bool fine = (push & bit) != 0;
        char why[200];
        if (!(wanted & bit)) continue;
        d->rungs = push | bit;
        if (bit != FG_VULKAN_PUSH && (r = fg__vk_prove_one(d, bit, &fine, why, sizeof(why))) == FG_OK && !fine)
            fg__vk_not_used(d, fg__vk_rungs[i].name, why);
        if (r != FG_OK || !fine) continue;
        good |= bit;
        fg__text_printf(&names, "%s%s", names.data ? ", " : "", fg__vk_rungs[i].name);
    }
    d->rungs = good;
    if (r == FG_OK && names.data && !names.failed)
        fg__log(&d->env, FG_LOG_INFO, "%s: uses %s", d->properties.name, names.data);
    fg__text_free(&names);
    return r;
}

/* Whether products' rows, and attention's, have the same bits in every pass. */
static fg_result fg__vk_find_differences(fg__vk_device *d, bool *products, bool *heads) {
    static const fg_type types[] = {FG_TYPE_F32, FG_TYPE_F16, FG_TYPE_Q8_0};
    double error = 0;
    fg_result r = FG_OK;
    size_t i;
    *products = *heads = false;
    for (i = 0; i < FG__COUNT(types) && r == FG_OK; i++) r = fg__vk_try(d, types[i], FG__VK_TRIAL_LONG, false, &error, products);
    return r == FG_OK ? fg__vk_try_heads(d, NULL, d->rungs & FG_VULKAN_HALF ? 2 : 1, &error, heads) : r;
}

/* With options.invariant: gives up kernels, and in the end rungs, whose rows have other bits among others. */
static fg_result fg__vk_prove_invariant(fg__vk_device *d) {
    static const char why[] = "a row's bits depend on the others";
    for (;;) {
        bool products, heads;
        fg_result r = fg__vk_find_differences(d, &products, &heads);
        if (r != FG_OK || (!products && !heads)) return r;
        if (products && d->narrow) d->narrow = false;
        else if (products && (d->rungs & FG_VULKAN_MATRIX)) {
            fg__vk_not_used(d, "cooperative matrices", why);
            d->rungs &= ~(uint32_t)FG_VULKAN_MATRIX;
            d->narrow = true;
        } else if (heads && (d->rungs & FG_VULKAN_HALF)) {
            fg__vk_not_used(d, "half floats", why);
            d->rungs &= ~(uint32_t)FG_VULKAN_HALF;
        } else {
            return fg__fail(FG_ERROR_UNSUPPORTED, "%s: the bits of %s depend on the other rows, which `invariant` rules out", d->properties.name,
                            products ? "a product" : "attention");
        }
    }
}

/* As much of a buffer as kernels see, which see whole units of FG__VK_ALIGN: what is larger is cut into pieces. Some drivers allocate less at
   once than that (AMD's 2 GiB). */
static size_t fg__vk_most_range(const fg__vk_device *d) {
    uint64_t most = FG__MIN((uint64_t)d->properties.limits.max_storage_range, d->max_allocation);
    return (size_t)(most / FG__VK_ALIGN * FG__VK_ALIGN);
}

/* All trials, with kernels that see as much of a buffer as the device lets them. */
static fg_result fg__vk_prove_all(fg__vk_device *d) {
    size_t range = d->max_range;
    fg_result r;
    d->max_range = fg__vk_most_range(d);
    d->proving = true;
    r = fg__vk_prove(d);
    if (r == FG_OK && d->options.invariant) r = fg__vk_prove_invariant(d);
    d->proving = false;
    d->max_range = range;
    return r;
}

/* ---- Preparing: products with experts, and attention as the graph has it. ---- */

/* Whether products with experts are good, by weights that are floats, or blocks. */
static fg_result fg__vk_try_experts(fg__vk_device *d, bool blocks, bool *good, char *why, size_t size) {
    uint32_t rungs = d->experts_plain ? 0 : d->rungs & ~(uint32_t)FG_VULKAN_PUSH, proof;
    fg__vk_shape shape; /* of attention there is none that has no heads */
    size_t range = d->max_range;
    bool differs = false;
    double error = 0;
    fg_result r;
    memset(&shape, 0, sizeof(shape));
    shape.kv_type = 1 + blocks;
    proof = fg__vk_proof(d, rungs, &shape);
    *good = fg__vk_is_proved(proof);
    if (*good) return FG_OK;
    d->max_range = fg__vk_most_range(d);
    d->proving = true;
    r = fg__vk_try(d, blocks ? FG_TYPE_Q8_0 : FG_TYPE_F16, FG__VK_TRIAL_LONG, true, &error, &differs);
    if (r == FG_OK && blocks) r = fg__vk_try(d, FG_TYPE_Q2_K, FG__VK_TRIAL_LONG, true, &error, &differs);
    d->proving = false;
    d->max_range = range;
    *good = r == FG_OK && error <= (rungs ? 5e-3 : 1e-5) && !(d->options.invariant && differs);
    r = fg__vk_judge(d, r, proof, *good, "one", error, why, size);
    if (d->options.invariant && differs) snprintf(why, size, "a row's bits depend on the others");
    return r;
}

/* Products with experts as the device does others, or else in floats. */
static fg_result fg__vk_prove_experts(fg__vk_device *d, fg_type type) {
    bool good = false, plain;
    char why[200];
    fg_result r;
    do {
        plain = d->experts_plain;
        if ((r = fg__vk_try_experts(d, !fg__vk_is_float(type), &good, why, sizeof(why))) != FG_OK || good) return r;
        if (!plain) fg__log(&d->env, FG_LOG_WARNING, "%s: products with experts are done in floats: else %s", d->properties.name, why);
        d->experts_plain = true;
    } while (!plain);
    return fg__fail(FG_ERROR_UNSUPPORTED, "%s computes wrong: products with experts: %s", d->properties.name, why);
}

/* Whether attention of a shape is good with some of the device's rungs. */
static fg_result fg__vk_prove_shape(fg__vk_device *d, const fg__vk_shape *shape, uint32_t rungs, bool *good, char *why, size_t size) {
    uint32_t proof = fg__vk_proof(d, rungs, shape), all = d->rungs;
    size_t range = d->max_range;
    bool differs = false;
    double error = 0;
    fg_result r;
    *good = fg__vk_is_proved(proof);
    if (*good) return FG_OK;
    d->rungs = (all & FG_VULKAN_PUSH) | rungs;
    d->max_range = fg__vk_most_range(d);
    d->proving = true;
    r = fg__vk_try_heads(d, shape, 1, &error, &differs);
    d->proving = false;
    d->max_range = range;
    d->rungs = all;
    *good = r == FG_OK && error <= (rungs ? 5e-3 : 1e-4) && !(d->options.invariant && differs);
    r = fg__vk_judge(d, r, proof, *good, "it", error, why, size);
    if (d->options.invariant && differs) snprintf(why, size, "a row's bits depend on the others");
    return r;
}

/* The first that is good of: all of `rungs`, without matrices, without halves, the floor. */
static fg_result fg__vk_choose_shape(fg__vk_device *d, const fg__vk_shape *shape, uint32_t rungs, uint32_t *chosen) {
    static const uint32_t without[] = {0, FG_VULKAN_MATRIX, FG_VULKAN_HALF, FG_VULKAN_HALF | FG_VULKAN_MATRIX};
    char what[160], why[200];
    size_t i;
    snprintf(what, sizeof(what), "attention of heads of %d, %d to a KV head, a window of %d, a soft cap of %g, %s cache", (int)shape->head_dim,
             (int)(shape->n_head / shape->n_kv_head), (int)shape->window, (double)shape->softcap, fg_type_name((fg_type)shape->kv_type));
    for (i = 0; i < FG__COUNT(without); i++) {
        bool good = false;
        fg_result r;
        if (without[i] & ~rungs) continue;
        *chosen = rungs & ~without[i];
        if (i && *chosen == 0) fg__log(&d->env, FG_LOG_WARNING, "%s: %s is done in floats: else %s", d->properties.name, what, why);
        else if (i) fg__log(&d->env, FG_LOG_WARNING, "%s: %s does without %s: %s", d->properties.name, what,
                            without[i] == FG_VULKAN_MATRIX ? "cooperative matrices" : "half floats", why);
        if ((r = fg__vk_prove_shape(d, shape, *chosen, &good, why, sizeof(why))) != FG_OK || good) return r;
    }
    return fg__fail(FG_ERROR_UNSUPPORTED, "%s computes wrong: %s: %s", d->properties.name, what, why);
}

/* Tries what a graph has of products with experts, and of attention, that the device has not tried. */
static fg_result fg__vk_prove_graph(const fg__vk_plan *plan) {
    fg__vk_device *d = plan->device;
    uint32_t usable = d->rungs & (FG_VULKAN_HALF | (d->options.invariant ? 0u : (uint32_t)FG_VULKAN_MATRIX)), rungs;
    int i;
    for (i = 0; i < plan->graph->n_ops && !d->proving; i++) {
        const fg_op *op = &plan->graph->ops[i];
        void *array = d->tried;
        fg__vk_shape shape;
        fg_result r;
        if (op->type == FG_OP_MOE_GEMM && (r = fg__vk_prove_experts(d, plan->graph->tensors[op->weight].type)) != FG_OK) return r;
        if (op->type != FG_OP_ATTENTION) continue;
        shape = fg__vk_shape_of(plan->graph, op);
        if (fg__vk_find_tried(d, &shape)) continue;
        if (!fg__reserve(&d->env, &array, &d->tried_capacity, d->n_tried + 1, sizeof(fg__vk_tried))) return FG_ERROR_OUT_OF_MEMORY;
        d->tried = (fg__vk_tried *)array;
        rungs = shape.kv_type == FG_TYPE_F16 || shape.kv_type == FG_TYPE_Q8_0 ? usable : 0;
        if ((r = fg__vk_choose_shape(d, &shape, rungs, &rungs)) != FG_OK) return r;
        d->tried[d->n_tried].shape = shape;
        d->tried[d->n_tried++].rungs = rungs;
    }
    return FG_OK;
}

/* ---- The device. ---- */

static fg_result fg__vk_make(fg__vk_device *d, const char *wanted) {
    fg_result r;
    if ((r = fg__vk_loader_open(&d->loader, &d->options)) != FG_OK) return r;
    if ((r = fg__vk_choose(d, wanted)) != FG_OK) return r;
    d->family = d->copy_family = (uint32_t)fg__vk_queue_family(&d->loader.api, d->physical);
    d->max_range = fg__vk_most_range(d);
    if (d->options.max_buffer_bytes)
        d->max_range = FG__MIN(d->max_range, FG__MAX(d->options.max_buffer_bytes, 1024) & ~(size_t)3);
    if ((r = fg__vk_find_rungs(d)) != FG_OK) return r;
    if ((r = fg__vk_make_device(d)) != FG_OK) return r;
    if ((r = fg__vk_find_memory(d)) != FG_OK) return r;
    if ((r = fg__vk_make_layouts(d)) != FG_OK) return r;
    if ((r = fg__vk_make_cache(d)) != FG_OK) return r;
    if ((r = fg__vk_make_commands(d)) != FG_OK) return r;
    if ((r = fg__vk_take(d, FG__VK_FROM_DEVICE, FG__VK_STAGING, &d->staging)) != FG_OK) return r;
    d->narrow = d->options.invariant;
    return fg__vk_prove_all(d);
}

/* The caller's options may go when the device is open; the cache is written when it closes. */
static fg_result fg__vk_own_options(fg__vk_device *d, const fg_vulkan_options *options) {
    d->options = *options;
    if (!options->cache_path) return FG_OK;
    d->options.cache_path = d->cache_path = fg__strndup(&d->env, options->cache_path, strlen(options->cache_path));
    return d->cache_path ? FG_OK : FG_ERROR_OUT_OF_MEMORY;
}

static fg_result fg__vk_open(const fg_device_desc *desc, fg_device **out) {
    fg__env env = fg__env_make(&desc->allocator, desc->log, desc->log_user);
    fg__vk_device *d = (fg__vk_device *)fg__calloc(&env, 1, sizeof(fg__vk_device));
    fg_result r;
    if (!d) return FG_ERROR_OUT_OF_MEMORY;
    d->env = env;
    d->progress = desc->progress;
    d->progress_user = desc->progress_user;
    r = desc->options ? fg__vk_own_options(d, (const fg_vulkan_options *)desc->options) : FG_OK;
    if (r == FG_OK) r = fg__vk_make(d, desc->device);
    if (r == FG_OK) *out = (fg_device *)d;
    else fg__vk_close((fg_device *)d);
    return r;
}

const fg_backend *fg_backend_vulkan(void) {
    static const fg_backend backend = {
        FG_BACKEND_ABI, sizeof(fg_backend), "vulkan",
        fg__vk_probe, fg__vk_open, fg__vk_close, fg__vk_caps,
        fg__vk_alloc, fg__vk_free, fg__vk_write, fg__vk_read,
        fg__vk_pack, fg__vk_unpack, fg__vk_prepare, fg__vk_release,
        fg__vk_submit, fg__vk_wait, fg__vk_copy_blocks, fg__vk_profile,
        fg__vk_swap_blocks, fg__vk_read_logits, fg__vk_copy_slot, NULL, fg__vk_stage_slot,
    };
    return &backend;
}

#endif /* FASTGEN_IMPLEMENTATION */
