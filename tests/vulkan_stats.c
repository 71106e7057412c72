/* What a driver's compiler makes of the Vulkan backend's kernels: registers, scratch memory, code, time. The backend plans products and
   attentions as for a model and names its pipelines; nothing runs, so that a driver without a device does (see check_vulkan_compilers.sh,
   which builds this). Needs the header of Vulkan (Debian: libvulkan-dev) and a driver with VK_KHR_pipeline_executable_properties. */
#define FASTGEN_IMPLEMENTATION
#include "../fastgen.h"
#include "../backends/vulkan/fg_vulkan.h"
#include "standin_vulkan.h"
#include "vulkan_names.h"

#include <strings.h>
#include <time.h>
#include <vulkan/vulkan.h>

static const fg_type weight_types[] = {
#define FG__LISTED(name, id, elements, bytes) FG_TYPE_##name,
    FG_TYPES(FG__LISTED)
#undef FG__LISTED
};
static const fg_type some_weights[] = {FG_TYPE_F16, FG_TYPE_Q4_0, FG_TYPE_Q8_0, FG_TYPE_Q4_K, FG_TYPE_Q6_K};
static const fg_type kv_types[] = {FG_TYPE_F16, FG_TYPE_Q8_0, FG_TYPE_F32, FG_TYPE_BF16};
static const int head_dims[] = {64, 128, 256, 80, 512}, heads_of_a_kv_head[] = {1, 4, 8};

/* ---- The two devices: the stand-in one, on which the backend plans, and the driver's, whose compiler is asked. ---- */

static struct {
    PFN_vkCreateDevice create_device;
    PFN_vkCreateComputePipelines create_pipelines;
    PFN_vkGetPipelineExecutableStatisticsKHR statistics;
} driver;

static int32_t FG__VK_CALL create_device(void *physical, const fg__vk_device_info *info, const void *allocator, void **out) {
    VkPhysicalDevicePipelineExecutablePropertiesFeaturesKHR feature;
    fg__vk_device_info more = *info;
    const char *extensions[16];
    memset(&feature, 0, sizeof(feature));
    feature.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PIPELINE_EXECUTABLE_PROPERTIES_FEATURES_KHR;
    feature.pNext = (void *)(size_t)info->next;
    feature.pipelineExecutableInfo = VK_TRUE;
    more.next = &feature;
    memcpy(extensions, info->extensions, info->n_extensions * sizeof(extensions[0]));
    extensions[more.n_extensions++] = VK_KHR_PIPELINE_EXECUTABLE_PROPERTIES_EXTENSION_NAME;
    more.extensions = extensions;
    return driver.create_device((VkPhysicalDevice)physical, (const VkDeviceCreateInfo *)&more, (const VkAllocationCallbacks *)allocator, (VkDevice *)out);
}

static int32_t FG__VK_CALL create_pipelines(void *device, uint64_t cache, uint32_t n, const fg__vk_pipeline_info *info, const void *allocator, uint64_t *out) {
    fg__vk_pipeline_info more = *info;
    (void)cache;
    more.flags |= VK_PIPELINE_CREATE_CAPTURE_STATISTICS_BIT_KHR;
    return driver.create_pipelines((VkDevice)device, VK_NULL_HANDLE, n, (const VkComputePipelineCreateInfo *)&more, (const VkAllocationCallbacks *)allocator,
                                   (VkPipeline *)out);
}

/* Of the stand-in driver: pipelines are only listed. */
static int32_t FG__VK_CALL list_pipelines(void *device, uint64_t cache, uint32_t n, const fg__vk_pipeline_info *info, const void *allocator, uint64_t *out) {
    (void)device, (void)cache, (void)n, (void)info, (void)allocator, (void)out;
    return 0;
}

/* The driver's device, with all that it has beyond the floor. */
static fg_result open_driver(fg__vk_device *d) {
    fg_result r;
    d->env = fg__env_make(NULL, NULL, NULL);
    d->options.force = ~0u;
    if ((r = fg__vk_loader_open(&d->loader, &d->options)) != FG_OK || (r = fg__vk_choose(d, NULL)) != FG_OK) return r;
    memcpy(&driver.create_device, &d->loader.api.CreateDevice, sizeof(driver.create_device));
    d->loader.api.CreateDevice = create_device;
    d->family = d->copy_family = (uint32_t)fg__vk_queue_family(&d->loader.api, d->physical);
    if ((r = fg__vk_find_rungs(d)) != FG_OK || (r = fg__vk_make_device(d)) != FG_OK || (r = fg__vk_make_layouts(d)) != FG_OK) return r;
    memcpy(&driver.create_pipelines, &d->api.CreateComputePipelines, sizeof(driver.create_pipelines));
    d->api.CreateComputePipelines = create_pipelines;
    driver.statistics = (PFN_vkGetPipelineExecutableStatisticsKHR)d->api.GetDeviceProcAddr(d->handle, "vkGetPipelineExecutableStatisticsKHR");
    return driver.statistics ? FG_OK : fg__fail(FG_ERROR_UNSUPPORTED, "%s tells nothing of its kernels", d->properties.name);
}

/* A stand-in device that is to plan as that of the driver does. */
static fg_result open_planner(fg__vk_device *d, const fg__vk_device *as) {
    fg_device_desc desc;
    fg_device *opened = NULL;
    fg_vulkan_options options;
    fg_result r;
    memset(&desc, 0, sizeof(desc));
    memset(&options, 0, sizeof(options));
    options.get_instance_proc_addr = svk_get;
    options.off = ~0u;
    desc.options = &options;
    if ((r = fg_backend_vulkan()->open(&desc, &opened)) != FG_OK) return r;
    *d = *(fg__vk_device *)opened;
    fg__vk_keep_pipelines(d, 0);
    d->api.CreateComputePipelines = list_pipelines;
    d->proving = true;
    d->subgroup = as->subgroup;
    d->matrix_lanes = as->matrix_lanes;
    d->matrix_subgroups = as->matrix_subgroups;
    d->properties.limits.max_invocations = d->properties.limits.max_group_size[0] = as->properties.limits.max_invocations;
    d->shape = as->shape;
    d->properties.limits.shared_bytes = as->properties.limits.shared_bytes;
    d->properties.vendor = as->properties.vendor;
    return FG_OK;
}

/* ---- Which pipelines the backend has. ---- */

/* Those of a graph with one product. */
static bool plan_product(fg__vk_device *d, fg_type type, int k) {
    fg__vk_trial *t = (fg__vk_trial *)calloc(1, sizeof(fg__vk_trial));
    fg_device *handle = (fg_device *)d;
    t->k = k;
    fg__vk_trial_graph(t, type);
    return fg__vk_pipeline_find(d, FG__VK_SHADER_EMBED, (int)type, 0, 0, 0) >= 0 &&
           fg__vk_pack(handle, &t->tensors[0], FG_OP_EMBED, &t->weights[0], NULL) == FG_OK &&
           fg__vk_pack(handle, &t->tensors[1], FG_OP_GEMM, &t->weights[1], NULL) == FG_OK &&
           fg__vk_prepare(handle, &t->graph, &t->plan, NULL) == FG_OK;
}

/* Those of a graph with one attention. */
static bool plan_heads(fg__vk_device *d, fg_type kv_type, int head_dim, int heads) {
    fg__vk_shape shape = {0, 0, 0, 1, 0, 0.0f};
    fg__vk_heads *t;
    fg_device *handle = (fg_device *)d;
    shape.kv_type = kv_type;
    shape.head_dim = head_dim;
    shape.n_head = heads;
    t = fg__vk_heads_new(d, &shape);
    fg__vk_heads_graph(t);
    t->graph.groups[0].kv_type = kv_type;
    return fg__vk_pack(handle, &t->tensor, FG_OP_EMBED, &t->weights[0], NULL) == FG_OK &&
           fg__vk_prepare(handle, &t->graph, &t->plan, NULL) == FG_OK;
}

/* Those of experts. */
static bool plan_experts(fg__vk_device *d, fg_type type) {
    uint32_t few = fg__vk_rung_of(d, type, false);
    int how = d->options.invariant ? 2 : few == FG_VULKAN_DOT ? 8 : 12;
    bool pairs = !fg__vk_has_gemv(d, few) || fg__vk_pipeline_of(d, fg__vk_gemv_of(few), (int)type, 1, fg__vk_gemv_rows[0], how, FG__VK_PAIRS) >= 0;
    int kind = fg__vk_gemv_of(few) == FG__VK_SHADER_GEMV_HALF ? FG__VK_FOUR : FG__VK_EIGHT;
    bool small = !fg__vk_has_gemv(d, few) ||
                 fg__vk_pipeline_of(d, fg__vk_gemv_of(few), (int)type, fg__vk_gemv_cols[kind], fg__vk_gemv_rows[kind], how, FG__VK_TILES) >= 0;
    return pairs && small && fg__vk_choose_many(d, type, FG__VK_TRIAL_K, FG__VK_TILES) >= 0;
}

/* Those of all graphs with some rungs. */
static bool plan_with(fg__vk_device *d, uint32_t rungs, bool invariant, bool all) {
    const fg_type *types = all ? weight_types : some_weights;
    size_t n = all ? FG__COUNT(weight_types) : FG__COUNT(some_weights), i, j, k;
    int roofs[FG__VK_ROOF_KINDS], few[FG__VK_ROW_KINDS];
    d->rungs = rungs;
    d->options.invariant = d->narrow = invariant;
    for (i = 0; i < n; i++)
        if (!plan_product(d, types[i], FG__VK_TRIAL_K) || (fg__vk_is_float(types[i]) && !plan_product(d, types[i], FG__VK_TRIAL_K + 1))) return false;
    for (i = 0; i < n; i++) /* pairs of tokens and experts, and tiles of those */
        if (!plan_experts(d, types[i])) return false;
    for (i = 0; i < n && !invariant; i++) { /* wide weights: workgroups divide k */
        uint32_t rung = fg__vk_rung_of(d, types[i], false);
        fg__vk_choose_gemv(d, rung == FG_VULKAN_DOT ? FG__VK_SHADER_GEMV_DOT : FG__VK_SHADER_GEMV, types[i], rung == FG_VULKAN_DOT ? 8 : 12, INT_MAX, few);
    }
    for (i = 0; i < (all ? 4u : 2u); i++)
        for (j = 0; j < (all ? 5u : 3u); j++)
            for (k = 0; k < (all ? 3u : 2u); k++)
                if (!plan_heads(d, kv_types[i], head_dims[j], heads_of_a_kv_head[k])) return false;
    return fg__vk_roof_find(d, roofs);
}

/* Rungs that the driver's device has, each alone and all together. */
static bool plan_all(fg__vk_device *d, uint32_t has, bool all) {
    static const uint32_t rungs[] = {0, FG_VULKAN_DOT, FG_VULKAN_HALF, FG_VULKAN_DOT | FG_VULKAN_HALF | FG_VULKAN_MATRIX};
    size_t i;
    fg__vk_pipeline_find(d, FG__VK_SHADER_ACT_MUL, 0, 0, 0, 0);
    for (i = 0; i < 4; i++) fg__vk_pipeline_find(d, FG__VK_SHADER_NORM, i % 2, i / 2 ? fg__vk_row_group(d, 1 << 16) : 128, 0, 0);
    fg__vk_pipeline_find(d, FG__VK_SHADER_SAMPLE, 0, fg__vk_row_group(d, 1 << 16), 0, 0);
    fg__vk_pipeline_find(d, FG__VK_SHADER_SORT, 0, fg__vk_row_group(d, 1 << 16), 0, 0);
    fg__vk_pipeline_find(d, FG__VK_SHADER_ROUTE, 0, 0, 0, 0);
    fg__vk_pipeline_find(d, FG__VK_SHADER_COMBINE, 0, 0, 0, 0);
    fg__vk_pipeline_find(d, FG__VK_SHADER_STATE_CONV, 0, 0, 0, 0);
    for (i = 64; i <= 256; i *= 2) fg__vk_pipeline_find(d, FG__VK_SHADER_STATE_SCAN, (int)i, 0, 0, 0);
    fg__vk_pipeline_find(d, FG__VK_SHADER_STATE_NORM, 0, 0, 0, 0);
    for (i = 0; i < 2 * FG__COUNT(rungs); i++)
        if (!plan_with(d, rungs[i / 2] & has, i % 2 != 0, all)) return false;
    return true;
}

/* ---- What they compile to. ---- */

/* A kernel's name: its shader, the type that it is for, its other constants as far as they are not 0. */
static void name_of(const fg__vk_pipeline *p, char *name, size_t size) {
    bool untyped = p->shader == FG__VK_SHADER_NORM || p->shader == FG__VK_SHADER_SAMPLE || p->shader == FG__VK_SHADER_ROOF_MATRIX || p->shader == FG__VK_SHADER_SORT;
    bool typed = p->shader == FG__VK_SHADER_EMBED || (p->spec[1] != 0 && !untyped); /* products and attentions have more constants */
    bool slices = (p->shader == FG__VK_SHADER_GEMV || p->shader == FG__VK_SHADER_GEMV_DOT || p->shader == FG__VK_SHADER_GEMV_HALF) && (p->spec[3] & 2);
    int i, n = snprintf(name, size, "%s%s", shader_names[p->shader], slices ? "_slices" : ""); /* of the invariant mode, with more sums */
    if (typed) n += snprintf(name + n, size - (size_t)n, "_%s", fg_type_name((fg_type)p->spec[0]));
    for (i = typed; i < 4; i++)
        if (p->spec[i]) n += snprintf(name + n, size - (size_t)n, p->spec[i] < 1 << 16 ? "_%d" : "_%x", (unsigned)p->spec[i]);
    if (p->spec[4]) snprintf(name + n, size - (size_t)n, p->spec[4] == FG__VK_PAIRS ? "_pairs" : "_tiles");
}

static double value_of(const VkPipelineExecutableStatisticKHR *s) {
    if (s->format == VK_PIPELINE_EXECUTABLE_STATISTIC_FORMAT_FLOAT64_KHR) return s->value.f64;
    if (s->format == VK_PIPELINE_EXECUTABLE_STATISTIC_FORMAT_BOOL32_KHR) return s->value.b32;
    return (double)s->value.u64;
}

enum { REGISTERS, SCRATCH, SHARED, WAVES, CODE, FIGURES };

/* What drivers call the figures: Mesa's for AMD, Intel and NVIDIA. */
static const char *const figure_names[FIGURES][4] = {
    {"VGPRs", "Max live registers", "Number of GPRs", NULL},
    {"Scratch size", "Scratch Memory Size", "SLM Size", NULL},
    {"LDS size", "LDS Size", "Workgroup Memory Size", NULL},
    {"Subgroups per SIMD", "Max dispatch width", "Max warps/SM", NULL},
    {"Code size", "Code Size", "Instruction Count", NULL},
};

static void find_figures(fg__vk_device *d, uint64_t pipeline, bool every, double *figures) {
    VkPipelineExecutableInfoKHR info = {VK_STRUCTURE_TYPE_PIPELINE_EXECUTABLE_INFO_KHR, NULL, 0, 0};
    VkPipelineExecutableStatisticKHR list[64];
    uint32_t n = FG__COUNT(list), i, f, j;
    memcpy(&info.pipeline, &pipeline, sizeof(pipeline));
    memset(list, 0, sizeof(list));
    for (i = 0; i < n; i++) list[i].sType = VK_STRUCTURE_TYPE_PIPELINE_EXECUTABLE_STATISTIC_KHR;
    driver.statistics((VkDevice)d->handle, &info, &n, list);
    for (i = 0; i < n; i++) {
        if (every) printf("    %s: %.10g\n", list[i].name, value_of(&list[i]));
        for (f = 0; f < FIGURES; f++)
            for (j = 0; j < 3; j++)
                if (strcasecmp(list[i].name, figure_names[f][j]) == 0) figures[f] = value_of(&list[i]);
    }
}

static double cpu_ms(void) {
    struct timespec now;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now); /* of all threads: some compilers have their own */
    return (double)now.tv_sec * 1e3 + (double)now.tv_nsec / 1e6;
}

/* Compiles one and shows what it is. */
static void show(fg__vk_device *d, fg__vk_pipeline *p, const char *name, bool every) {
    double figures[FIGURES] = {0}, start = cpu_ms();
    int32_t result = fg__vk_compile(d, p);
    double ms = cpu_ms() - start;
    if (result == 0 && p->handle) {
        find_figures(d, p->handle, every, figures);
        printf("%s %.0f %.0f %.0f %.0f %.0f %.0f\n", name, figures[REGISTERS], figures[SCRATCH], figures[SHARED], figures[WAVES], figures[CODE], ms);
    } else printf("%s failed %d\n", name, (int)result);
    fflush(stdout);
}

static bool is_wanted(const char *name, char **words, int n) {
    int i;
    for (i = 0; i < n; i++)
        if (strncmp(name, words[i], strlen(words[i])) == 0) return true;
    return n == 0;
}

static void usage(void) {
    puts("usage: vulkan_stats [all] [every] [FIRST_LETTERS ...]\n\n"
         "Compiles the Vulkan backend's kernels by the first driver that the loader finds and prints for each its name, registers, bytes of\n"
         "scratch memory, bytes of shared memory, waves at once (Intel: lanes), bytes of code, milliseconds of CPU time; 0: it does not say.\n\n"
         "    all             every type of weights and of caches, sizes of heads (default: some)\n"
         "    every           all that the driver tells of a kernel\n"
         "    FIRST_LETTERS   only kernels whose names begin so, such as gemv_Q4_K\n\n"
         "    RADV_FORCE_FAMILY=NAVI21 VK_ICD_FILENAMES=/usr/share/vulkan/icd.d/radeon_icd.x86_64.json build/vulkan_stats gemm");
}

static int fail(const char *what) {
    fprintf(stderr, "vulkan_stats: %s: %s\n", what, fg_last_error());
    return 1;
}

int main(int argc, char **argv) {
    static fg__vk_device d, planner;
    char name[96];
    int first = 1;
    bool all = false, every = false;
    size_t i;
    for (; first < argc; first++) {
        if (strcmp(argv[first], "all") == 0) all = true;
        else if (strcmp(argv[first], "every") == 0) every = true;
        else break;
    }
    if (first < argc && argv[first][0] == '-') return usage(), 0;
    if (open_driver(&d) != FG_OK) return fail("no device");
    if (open_planner(&planner, &d) != FG_OK || !plan_all(&planner, d.rungs, all)) return fail("planning");
    printf("# %s, subgroups of %d%s%s%s\n", d.properties.name, d.subgroup, d.rungs & FG_VULKAN_DOT ? ", dot" : "", d.rungs & FG_VULKAN_HALF ? ", half" : "",
           d.rungs & FG_VULKAN_MATRIX ? ", matrix" : "");
    d.pipelines = planner.pipelines;
    d.n_pipelines = planner.n_pipelines;
    if (fg__vk_make_shaders(&d) != FG_OK) return fail("shaders");
    for (i = 0; i < d.n_pipelines; i++) {
        name_of(&d.pipelines[i], name, sizeof(name));
        if (is_wanted(name, argv + first, argc - first)) show(&d, &d.pipelines[i], name, every);
    }
    fflush(stdout);
    _Exit(0); /* drivers without a device do not all close */
}
