/* A Vulkan driver that is none: the functions that backends/vulkan/fg_vulkan.h calls, over host memory; shaders run by spirv_run.h.
   Its devices have subgroups of 8, 32 and 64 lanes, half floats, integer dot products, cooperative matrices and push descriptors.
   That of 32 lanes has two queues beside the one that computes, of a family that only copies; that of 64 lanes one, of the same family; that
   of 8 lanes none. It is stricter than a driver, so that mistakes show in every run of the tests:

   - Work runs only when somebody waits for it, as late as possible; of other queues only what semaphores ask for.
   - What commands read and wrote is known for each word of device memory: uses that no barrier orders are violations, as are all
     that spirv_run.h finds. Memory that nothing wrote reads as NaN.
   - So are ranges beyond buffers or limits, objects that are used after their end or while work is under way, results that the
     host reads with no barrier for it, and objects that are left when a device is closed.

   svk_take() gives the violations since the last call. To be included after fg_vulkan.h, whose declarations it uses. */
#ifndef STANDIN_VULKAN_H
#define STANDIN_VULKAN_H

#include <ctype.h>
#include "spirv_run.h"

enum { SVK_MEMORY, SVK_BUFFER, SVK_SHADER, SVK_SET_LAYOUT, SVK_LAYOUT, SVK_CACHE, SVK_PIPELINE, SVK_POOL, SVK_SET, SVK_COMMAND_POOL, SVK_COMMANDS,
       SVK_FENCE, SVK_SEMAPHORE, SVK_KINDS };
enum { SVK_DISPATCH, SVK_BARRIER, SVK_COPY };
enum { SVK_RANGE = 1 << 27, SVK_ALIGN = 64, SVK_SHARED = 32768 };
enum { SVK_QUEUES = 3, SVK_POINTS = 256 };

typedef struct svk_physical {
    const char *name;
    int lanes, fewest, m, n, k; /* of a subgroup, and as few as can be asked for; shape of matrices */
    uint32_t queues[2]; /* of the family that computes, of the one that only copies */
} svk_physical;

static const svk_physical svk_physicals[] = {
    {"Stand-in of 32", 32, 8, 16, 16, 16, {1, 2}}, {"Stand-in of 64", 64, 32, 16, 16, 16, {2, 0}}, {"Stand-in of 8", 8, 8, 8, 8, 16, {1, 0}}};

typedef struct svk_command {
    int kind;
    struct svk_object *pipeline, *set, *from, *to;
    fg__vk_buffer_range ranges[SPV_BINDINGS]; /* pushed, where set is none */
    uint8_t push[128];
    uint32_t groups[3], from_stages, to_stages, reads, writes;
    fg__vk_copy copy;
} svk_command;

/* What has come to an end when a semaphore has a value, or a fence is signalled. */
typedef struct svk_point {
    uint64_t value;
    uint32_t ran[SPV_SOURCES], flushed[SPV_SOURCES];
} svk_point;

typedef struct svk_object {
    struct svk_object *next, *pool; /* pool: what it is of */
    int kind;
    bool dead;
    /* memory */
    uint8_t *data;
    spv_word *words;
    uint64_t bytes, offset;
    uint32_t wrote, type;
    struct svk_object *memory; /* of a buffer */
    /* shaders and pipelines */
    uint32_t *code;
    size_t n_words;
    spv_program *program;
    int shader, lanes;
    char name[64];
    /* sets, commands */
    fg__vk_buffer_range ranges[SPV_BINDINGS];
    svk_command *commands;
    size_t n, capacity;
    svk_command state;
    bool recording, recorded, once, signalled, pushes;
    uint32_t flags, left, family; /* family: of queues, of a pool of commands; of a buffer one more, UINT32_MAX: of all */
    svk_point *points, point;     /* of a semaphore, by value; the last */
} svk_object;

typedef struct svk_submission {
    struct svk_submission *next;
    svk_object *commands[8], *fence, *wait, *signal;
    uint32_t n, stages; /* stages that wait */
    uint64_t wait_value, signal_value;
    uint32_t known[SPV_SOURCES]; /* what the host had waited for */
} svk_submission;

typedef struct svk_queue {
    struct svk_device *device;
    uint32_t family;
    svk_submission *first;
    spv_order order;
} svk_queue;

typedef struct svk_device {
    const svk_physical *physical;
    svk_object *objects;
    svk_queue queues[SVK_QUEUES];
    uint32_t now, known[SPV_SOURCES], asked[2]; /* asked: queues of each family */
    bool timeline;
} svk_device;

static struct {
    int lock, violations, devices;
    char text[4000];
    long dispatches;
    uint64_t most_steps;
    void (*patch)(int shader, uint32_t *code, size_t n_words); /* of shaders (FG__VK_SHADER_...) as they come in */
    bool (*drop)(const svk_command *command);                  /* whether a command is left out as it is recorded */
    uint32_t vendor, driver, mixed;                            /* of all devices; mixed: they multiply bytes of which one has a sign */
    uint32_t shared;                                           /* bytes of a workgroup; 0: SVK_SHARED */
    bool full[8];                                              /* heaps with no room */
    long submissions, shapes;                                  /* so far; shapes: times that those of matrices were asked for */
    long waits, skip, ahead; /* waits of submissions for semaphores; one more than that which is left out; fences that came before work behind them */
} svk;

static void svk_lock(void) { while (fg__atomic_add(&svk.lock, 1) != 0) fg__atomic_add(&svk.lock, -1); }
static void svk_unlock(void) { fg__atomic_add(&svk.lock, -1); }

/* Whether a line of the text says the same but for numbers. */
static bool svk_said(const char *what) {
    const char *line;
    for (line = svk.text; *line; line = strchr(line, '\n') + 1) {
        const char *a = line, *b = what;
        while (*a != '\n') {
            while (isdigit((unsigned char)*a)) a++;
            while (isdigit((unsigned char)*b)) b++;
            if (*a != *b || !*b) break;
            a++;
            b++;
        }
        if (*a == '\n' && !*b) return true;
    }
    return false;
}

static void svk_say(void *user, const char *what) {
    size_t used;
    (void)user;
    svk_lock();
    used = strlen(svk.text);
    svk.violations++;
    if (used + strlen(what) + 2 < sizeof(svk.text) && !svk_said(what)) snprintf(svk.text + used, sizeof(svk.text) - used, "%s\n", what);
    svk_unlock();
}

static void svk_violation(const char *format, ...) {
    char text[400];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    svk_say(NULL, text);
}

/* The violations so far, which are forgotten; the text, if any, is copied. */
static int svk_take(char *text, size_t bytes) {
    int n = svk.violations;
    if (text && bytes) snprintf(text, bytes, "%s", svk.text);
    svk.violations = 0;
    svk.text[0] = 0;
    return n;
}

/* ---- Objects. ---- */

static svk_object *svk_new(void *device, int kind) {
    svk_device *d = (svk_device *)device;
    svk_object *o = (svk_object *)calloc(1, sizeof(*o));
    if (!o) abort();
    o->kind = kind;
    svk_lock();
    o->next = d->objects;
    d->objects = o;
    svk_unlock();
    return o;
}

static uint64_t svk_handle(const svk_object *o) { return (uint64_t)(size_t)o; }

static svk_object *svk_object_of(uint64_t handle, int kind, const char *where) {
    svk_object *o = (svk_object *)(size_t)handle;
    if (!o || o->kind != kind || o->dead) {
        svk_violation("%s: an object that is %s", where, !o ? "none" : o->dead ? "gone" : "of another kind");
        return NULL;
    }
    return o;
}

static void svk_empty(svk_object *o) {
    free(o->data);
    free(o->words);
    free(o->code);
    free(o->commands);
    free(o->points);
    o->points = NULL;
    if (o->program) spv_free(o->program);
    o->data = NULL;
    o->words = NULL;
    o->code = NULL;
    o->commands = NULL;
    o->program = NULL;
}

static bool svk_uses(const svk_submission *s, const svk_object *o) {
    uint32_t i;
    size_t j;
    if (s->fence == o || s->wait == o || s->signal == o) return true;
    for (i = 0; i < s->n; i++) {
        if (s->commands[i] == o || s->commands[i]->pool == o) return true;
        for (j = 0; j < s->commands[i]->n; j++) {
            const svk_command *c = &s->commands[i]->commands[j];
            if (c->pipeline == o || c->set == o || c->from == o || c->to == o || (c->set && c->set->pool == o)) return true;
        }
    }
    return false;
}

/* Whether work that has not run yet uses it. */
static bool svk_in_use(const svk_device *d, const svk_object *o) {
    const svk_submission *s;
    int i;
    for (i = 0; i < SVK_QUEUES; i++)
        for (s = d->queues[i].first; s; s = s->next)
            if (svk_uses(s, o)) return true;
    return false;
}

static void svk_destroy(void *device, uint64_t handle, int kind) {
    svk_device *d = (svk_device *)device;
    svk_object *o = handle ? svk_object_of(handle, kind, "destroying") : NULL, *other;
    if (!o) return;
    if (svk_in_use(d, o)) svk_violation("an object of kind %d is destroyed while work uses it", kind);
    svk_lock();
    for (other = d->objects; other; other = other->next)
        if (other->pool == o) {
            other->dead = true;
            svk_empty(other);
        }
    svk_unlock();
    o->dead = true;
    svk_empty(o);
}

#define SVK_DESTROY(name, kind) \
    static void FG__VK_CALL svk_destroy_##name(void *device, uint64_t handle, const void *allocator) { \
        (void)allocator;                                                                               \
        svk_destroy(device, handle, kind);                                                             \
    }
SVK_DESTROY(buffer, SVK_BUFFER)
SVK_DESTROY(memory, SVK_MEMORY)
SVK_DESTROY(shader, SVK_SHADER)
SVK_DESTROY(set_layout, SVK_SET_LAYOUT)
SVK_DESTROY(layout, SVK_LAYOUT)
SVK_DESTROY(cache, SVK_CACHE)
SVK_DESTROY(pipeline, SVK_PIPELINE)
SVK_DESTROY(pool, SVK_POOL)
SVK_DESTROY(command_pool, SVK_COMMAND_POOL)
SVK_DESTROY(fence, SVK_FENCE)
SVK_DESTROY(semaphore, SVK_SEMAPHORE)

/* ---- Instances and physical devices. ---- */

static int32_t FG__VK_CALL svk_create_instance(const fg__vk_instance_info *info, const void *allocator, void **instance) {
    (void)allocator;
    if (info->type != FG__VK_INSTANCE_INFO) svk_violation("an instance of structure %d", (int)info->type);
    if (FG__VK_PORTABILITY && (info->n_extensions != 1 || strcmp(info->extensions[0], "VK_KHR_portability_enumeration") != 0 ||
                               info->flags != FG__VK_ENUMERATE_PORTABILITY))
        svk_violation("an instance that does not ask for devices with a portability subset");
    *instance = &svk;
    return 0;
}

static int32_t FG__VK_CALL svk_instance_extensions(const char *layer, uint32_t *n, fg__vk_extension *list) {
    if (layer || !list || *n < 2) svk_violation("extensions of a layer, or no room for them");
    snprintf(list[0].name, sizeof(list[0].name), "VK_KHR_surface");
    snprintf(list[1].name, sizeof(list[1].name), "VK_KHR_portability_enumeration");
    *n = 2;
    return 0;
}

static void FG__VK_CALL svk_destroy_instance(void *instance, const void *allocator) {
    (void)instance;
    (void)allocator;
}

static int32_t FG__VK_CALL svk_enumerate(void *instance, uint32_t *n, void **devices) {
    uint32_t i;
    (void)instance;
    *n = (uint32_t)FG__COUNT(svk_physicals);
    for (i = 0; devices && i < *n; i++) devices[i] = (void *)(size_t)&svk_physicals[i];
    return 0;
}

static uint32_t svk_shared(void) { return svk.shared ? svk.shared : SVK_SHARED; }

static void FG__VK_CALL svk_properties(void *physical, fg__vk_properties *properties) {
    const svk_physical *p = (const svk_physical *)physical;
    fg__vk_limits *limits = &properties->limits;
    void *next = properties->next;
    properties->api_version = (uint32_t)1 << 22 | 3 << 12;
    properties->device_type = 2;
    properties->vendor = svk.vendor;
    snprintf(properties->name, sizeof(properties->name), "%s", p->name);
    limits->max_storage_range = SVK_RANGE;
    limits->max_push_bytes = 128;
    limits->stage_storage_buffers = SPV_BINDINGS;
    limits->shared_bytes = svk_shared();
    limits->max_groups[0] = limits->max_groups[1] = limits->max_groups[2] = 65535;
    limits->max_invocations = limits->max_group_size[0] = 256;
    limits->storage_alignment = SVK_ALIGN;
    while (next) {
        fg__vk_subgroup_properties *head = (fg__vk_subgroup_properties *)next; /* all begin alike */
        if (head->type == FG__VK_SUBGROUP_PROPERTIES) {
            head->size = (uint32_t)p->lanes;
            head->stages = FG__VK_COMPUTE_STAGE;
            head->operations = 1 | FG__VK_SUBGROUP_ARITHMETIC;
        } else if (head->type == FG__VK_MAINTENANCE_3_PROPERTIES) {
            ((fg__vk_maintenance_3_properties *)next)->max_allocation = (uint64_t)1 << 30;
        } else if (head->type == FG__VK_DOT_PROPERTIES) {
            ((fg__vk_dot_properties *)next)->packed_signed = 1;
            ((fg__vk_dot_properties *)next)->packed_mixed = svk.mixed;
        } else if (head->type == FG__VK_DRIVER_PROPERTIES) {
            ((fg__vk_driver_properties *)next)->driver = (int32_t)svk.driver;
        } else if (head->type == FG__VK_SIZE_PROPERTIES) {
            fg__vk_size_properties *size = (fg__vk_size_properties *)next;
            size->min = (uint32_t)p->fewest;
            size->max = (uint32_t)p->lanes;
            size->most_subgroups = p->lanes == 64 ? UINT32_MAX : SPV_MAX_SUBGROUPS; /* as RADV and others */
            size->stages = p->fewest < p->lanes ? FG__VK_COMPUTE_STAGE : 0; /* one size alone need not be asked for */
        } else svk_violation("properties of structure %d", (int)head->type);
        next = head->next;
    }
}

static void FG__VK_CALL svk_features(void *physical, fg__vk_features *features) {
    void *next = features->next;
    (void)physical;
    while (next) {
        fg__vk_storage_features *head = (fg__vk_storage_features *)next;
        if (head->type == FG__VK_HALF_FEATURES) ((fg__vk_half_features *)next)->half = 1;
        else if (head->type == FG__VK_STORAGE_FEATURES) head->storage = 1;
        else if (head->type == FG__VK_DOT_FEATURES) ((fg__vk_dot_features *)next)->dot = 1;
        else if (head->type == FG__VK_TIMELINE_FEATURES) ((fg__vk_timeline_features *)next)->timeline = 1;
        else if (head->type == FG__VK_MODEL_FEATURES) ((fg__vk_model_features *)next)->model = 1;
        else if (head->type == FG__VK_SIZE_FEATURES) ((fg__vk_size_features *)next)->control = ((fg__vk_size_features *)next)->full = 1;
        else if (head->type == FG__VK_MATRIX_FEATURES) ((fg__vk_matrix_features *)next)->matrix = 1;
        else svk_violation("features of structure %d", (int)head->type);
        next = head->next;
    }
}

static int32_t FG__VK_CALL svk_shapes(void *physical, uint32_t *n, fg__vk_matrix_shape *shapes) {
    const svk_physical *p = (const svk_physical *)physical;
    fg__vk_matrix_shape *s = shapes;
    svk.shapes++;
    if (!shapes || *n < 1) return *n = 1, 0;
    *n = 1;
    s->m = (uint32_t)p->m;
    s->n = (uint32_t)p->n;
    s->k = (uint32_t)p->k;
    s->a = s->b = FG__VK_HALF_TYPE;
    s->c = s->result = FG__VK_FLOAT_TYPE;
    s->scope = FG__VK_SUBGROUP_SCOPE;
    return 0;
}

/* The device's memory has two heaps, the first a small one, and types that are not for buffers before those that are. */
enum { SVK_TYPES = 6, SVK_TYPES_OF_BUFFERS = 0x3A, SVK_HEAPS = 3 };
static const struct {
    uint32_t flags, heap;
} svk_types[SVK_TYPES] = {
    {FG__VK_DEVICE_LOCAL, 1},
    {FG__VK_DEVICE_LOCAL, 0},
    {FG__VK_HOST_VISIBLE | FG__VK_HOST_COHERENT | FG__VK_HOST_CACHED, 2},
    {FG__VK_DEVICE_LOCAL, 1},
    {FG__VK_HOST_VISIBLE | FG__VK_HOST_COHERENT, 2},
    {FG__VK_HOST_VISIBLE | FG__VK_HOST_COHERENT | FG__VK_HOST_CACHED, 2},
};
static const uint64_t svk_heaps[SVK_HEAPS] = {(uint64_t)1 << 28, (uint64_t)1 << 30, (uint64_t)1 << 30};

static void FG__VK_CALL svk_memory_properties(void *physical, fg__vk_memory_properties *memory) {
    fg__vk_budget_properties *budget = (fg__vk_budget_properties *)memory->next;
    int i;
    (void)physical;
    memory->n_types = SVK_TYPES;
    memory->n_heaps = SVK_HEAPS;
    for (i = 0; i < SVK_TYPES; i++) {
        memory->types[i].flags = svk_types[i].flags;
        memory->types[i].heap = svk_types[i].heap;
    }
    for (i = 0; i < SVK_HEAPS; i++) {
        memory->heaps[i].bytes = svk_heaps[i];
        memory->heaps[i].flags = i < 2;
        if (budget && budget->type == FG__VK_BUDGET_PROPERTIES) budget->budget[i] = svk.full[i] ? 0 : svk_heaps[i];
    }
}

static void FG__VK_CALL svk_families(void *physical, uint32_t *n, fg__vk_queue_properties *families) {
    const svk_physical *p = (const svk_physical *)physical;
    *n = p->queues[1] ? 2 : 1;
    families[0].flags = FG__VK_COMPUTE_QUEUE | FG__VK_TRANSFER_QUEUE;
    families[1].flags = FG__VK_TRANSFER_QUEUE;
    families[0].count = p->queues[0];
    families[1].count = p->queues[1];
}

static const char *const svk_extensions[] = {"VK_KHR_push_descriptor", "VK_KHR_shader_integer_dot_product", "VK_KHR_cooperative_matrix",
                                             "VK_EXT_subgroup_size_control", "VK_EXT_memory_budget", "VK_KHR_portability_subset"};

static int32_t FG__VK_CALL svk_list_extensions(void *physical, const char *layer, uint32_t *n, fg__vk_extension *list) {
    uint32_t i;
    (void)physical;
    (void)layer;
    if (!list) *n = (uint32_t)FG__COUNT(svk_extensions);
    for (i = 0; list && i < *n && i < FG__COUNT(svk_extensions); i++) snprintf(list[i].name, sizeof(list[i].name), "%s", svk_extensions[i]);
    return 0;
}

/* ---- Devices. ---- */

static int32_t FG__VK_CALL svk_create_device(void *physical, const fg__vk_device_info *info, const void *allocator, void **device) {
    svk_device *d = (svk_device *)calloc(1, sizeof(*d));
    uint32_t i, j;
    bool portable = false;
    (void)allocator;
    if (!d) abort();
    for (i = 0; i < info->n_extensions; i++) {
        portable |= strcmp(info->extensions[i], "VK_KHR_portability_subset") == 0;
        for (j = 0; j < FG__COUNT(svk_extensions); j++)
            if (strcmp(svk_extensions[j], info->extensions[i]) == 0) break;
        if (j == FG__COUNT(svk_extensions)) svk_violation("the extension %s, which is not offered", info->extensions[i]);
    }
    if (!portable) svk_violation("VK_KHR_portability_subset is offered, and not asked for");
    d->physical = (const svk_physical *)physical;
    d->now = 1;
    for (i = 0; i < SVK_QUEUES; i++) {
        d->queues[i].device = d;
        d->queues[i].order.first = 2 * i;
    }
    for (i = 0; i < info->n_queues; i++) {
        const fg__vk_queue_info *queues = &info->queues[i];
        if (queues->family > 1 || queues->count == 0 || queues->count > d->physical->queues[queues->family]) svk_violation("queues that are not offered");
        else d->asked[queues->family] = queues->count;
    }
    {
        const fg__vk_storage_features *features = (const fg__vk_storage_features *)info->next;
        for (; features; features = (const fg__vk_storage_features *)features->next)
            if (features->type == FG__VK_TIMELINE_FEATURES) d->timeline = ((const fg__vk_timeline_features *)(const void *)features)->timeline != 0;
    }
    svk.devices++;
    *device = d;
    return 0;
}

static void svk_drain(svk_device *d);

static void FG__VK_CALL svk_destroy_device(void *device, const void *allocator) {
    svk_device *d = (svk_device *)device;
    int left = 0;
    (void)allocator;
    if (d->queues[0].first || d->queues[1].first || d->queues[2].first) svk_violation("a device is destroyed that works");
    while (d->objects) {
        svk_object *o = d->objects;
        d->objects = o->next;
        left += !o->dead;
        svk_empty(o);
        free(o);
    }
    if (left) svk_violation("%d objects are left when their device is destroyed", left);
    svk.devices--;
    free(d);
}

static void FG__VK_CALL svk_get_queue(void *device, uint32_t family, uint32_t index, void **queue) {
    svk_device *d = (svk_device *)device;
    svk_queue *q = &d->queues[(family ? d->asked[0] : 0) + index];
    if (family > 1 || index >= d->asked[family]) svk_violation("a queue that the device has not");
    q->family = family;
    *queue = q;
}

static int32_t FG__VK_CALL svk_idle(void *device) {
    svk_drain((svk_device *)device);
    return 0;
}

/* ---- Memory. ---- */

static int32_t FG__VK_CALL svk_create_buffer(void *device, const fg__vk_buffer_info *info, const void *allocator, uint64_t *buffer) {
    svk_object *o = svk_new(device, SVK_BUFFER);
    (void)allocator;
    o->bytes = info->bytes;
    if (info->sharing == FG__VK_SHARED_BY_FAMILIES) o->family = UINT32_MAX;
    if (info->bytes == 0) svk_violation("a buffer of no bytes");
    *buffer = svk_handle(o);
    return 0;
}

static void FG__VK_CALL svk_requirements(void *device, uint64_t buffer, fg__vk_requirements *needs) {
    svk_object *o = svk_object_of(buffer, SVK_BUFFER, "vkGetBufferMemoryRequirements");
    (void)device;
    needs->bytes = o ? (o->bytes + 255) & ~(uint64_t)255 : 0;
    needs->alignment = 256;
    needs->types = SVK_TYPES_OF_BUFFERS;
}

static int32_t FG__VK_CALL svk_allocate(void *device, const fg__vk_allocate_info *info, const void *allocator, uint64_t *memory) {
    svk_object *o = svk_new(device, SVK_MEMORY);
    bool local = info->memory_type < SVK_TYPES && (svk_types[info->memory_type].flags & FG__VK_DEVICE_LOCAL);
    (void)allocator;
    if (info->memory_type >= SVK_TYPES || !(SVK_TYPES_OF_BUFFERS >> info->memory_type & 1)) svk_violation("memory of a type that is not for buffers");
    o->bytes = info->bytes;
    o->type = info->memory_type;
    o->data = (uint8_t *)calloc((size_t)info->bytes / 4 + 1, 4);
    if (local) o->words = (spv_word *)calloc((size_t)info->bytes / 4 + 1, sizeof(spv_word));
    if (!o->data || (local && !o->words)) {
        svk_empty(o);
        o->dead = true;
        return FG__VK_OUT_OF_DEVICE_MEMORY;
    }
    if (!local) memset(o->data, 0xFF, (size_t)info->bytes);
    *memory = svk_handle(o);
    return 0;
}

static int32_t FG__VK_CALL svk_bind_memory(void *device, uint64_t buffer, uint64_t memory, uint64_t offset) {
    svk_object *b = svk_object_of(buffer, SVK_BUFFER, "vkBindBufferMemory"), *m = svk_object_of(memory, SVK_MEMORY, "vkBindBufferMemory");
    (void)device;
    if (!b || !m) return FG__VK_DEVICE_LOST;
    if (b->memory || offset % 256 || offset + b->bytes > m->bytes) svk_violation("a buffer is bound twice or beyond its memory");
    b->memory = m;
    b->offset = offset;
    return 0;
}

static int32_t FG__VK_CALL svk_map(void *device, uint64_t memory, uint64_t offset, uint64_t bytes, uint32_t flags, void **data) {
    svk_object *m = svk_object_of(memory, SVK_MEMORY, "vkMapMemory");
    (void)device;
    (void)bytes;
    (void)flags;
    if (!m || m->words) {
        svk_violation("memory is mapped that the host cannot see");
        return FG__VK_DEVICE_LOST;
    }
    *data = m->data + offset;
    return 0;
}

/* ---- Shaders, layouts, pipelines. ---- */

static int32_t FG__VK_CALL svk_create_shader(void *device, const fg__vk_shader_info *info, const void *allocator, uint64_t *shader) {
    svk_object *o = svk_new(device, SVK_SHADER);
    (void)allocator;
    o->n_words = info->bytes / 4;
    o->code = (uint32_t *)malloc(info->bytes);
    if (!o->code) abort();
    memcpy(o->code, info->code, info->bytes);
    for (o->shader = 0; o->shader < FG__VK_SHADERS; o->shader++)
        if (fg__vk_spirv[o->shader].bytes == info->bytes && memcmp(fg__vk_spirv[o->shader].code, info->code, info->bytes) == 0) break;
    if (svk.patch) svk.patch(o->shader, o->code, o->n_words);
    *shader = svk_handle(o);
    return 0;
}

static int32_t FG__VK_CALL svk_create_set_layout(void *device, const fg__vk_set_layout_info *info, const void *allocator, uint64_t *layout) {
    svk_object *o = svk_new(device, SVK_SET_LAYOUT);
    (void)allocator;
    o->pushes = (info->flags & 1) != 0;
    if (info->n_bindings != SPV_BINDINGS) svk_violation("a set of %u bindings", (unsigned)info->n_bindings);
    *layout = svk_handle(o);
    return 0;
}

static int32_t FG__VK_CALL svk_create_layout(void *device, const fg__vk_pipeline_layout_info *info, const void *allocator, uint64_t *layout) {
    svk_object *set = svk_object_of(info->sets[0], SVK_SET_LAYOUT, "vkCreatePipelineLayout"), *o = svk_new(device, SVK_LAYOUT);
    (void)allocator;
    o->pushes = set && set->pushes;
    *layout = svk_handle(o);
    return 0;
}

static int32_t FG__VK_CALL svk_create_cache(void *device, const fg__vk_cache_info *info, const void *allocator, uint64_t *cache) {
    (void)allocator;
    (void)info;
    *cache = svk_handle(svk_new(device, SVK_CACHE));
    return 0;
}

static int32_t FG__VK_CALL svk_cache_data(void *device, uint64_t cache, size_t *bytes, void *data) {
    (void)device;
    (void)data;
    (void)svk_object_of(cache, SVK_CACHE, "vkGetPipelineCacheData");
    *bytes = 0;
    return 0;
}

static int32_t FG__VK_CALL svk_create_pipelines(void *device, uint64_t cache, uint32_t n, const fg__vk_pipeline_info *info, const void *allocator,
                                                uint64_t *pipelines) {
    const svk_physical *physical = ((svk_device *)device)->physical;
    svk_object *shader = svk_object_of(info->stage.module, SVK_SHADER, "vkCreateComputePipelines"), *o;
    const fg__vk_size_info *size = (const fg__vk_size_info *)info->stage.next;
    uint32_t spec[2 * 16], i;
    size_t at;
    (void)allocator;
    (void)svk_object_of(cache, SVK_CACHE, "vkCreateComputePipelines");
    (void)svk_object_of(info->layout, SVK_LAYOUT, "vkCreateComputePipelines");
    if (!shader || n != 1 || info->stage.spec->n_entries > 16) return FG__VK_OUT_OF_HOST_MEMORY;
    for (i = 0; i < info->stage.spec->n_entries; i++) {
        spec[2 * i] = info->stage.spec->entries[i].id;
        memcpy(&spec[2 * i + 1], (const char *)info->stage.spec->data + info->stage.spec->entries[i].offset, 4);
    }
    if (size && (size->type != FG__VK_SIZE_INFO || physical->fewest == physical->lanes || size->size < (uint32_t)physical->fewest ||
                 size->size > (uint32_t)physical->lanes || (size->size & (size->size - 1)) != 0))
        svk_violation("a subgroup size that is not offered");
    for (at = 5; at < shader->n_words && shader->code[at] >> 16; at += shader->code[at] >> 16)
        if (shader->code[at] == (2u << 16 | 17) && shader->code[at + 1] == 6022 && ((!size && physical->fewest < physical->lanes) || !(info->stage.flags & FG__VK_FULL_SUBGROUPS)))
            svk_violation("matrices in a pipeline whose subgroups need not be full");
    o = svk_new(device, SVK_PIPELINE);
    o->shader = shader->shader;
    o->lanes = size ? (int)size->size : physical->lanes;
    o->program = spv_make(shader->code, shader->n_words, spec, info->stage.spec->n_entries);
    snprintf(o->name, sizeof(o->name), "shader %d (%d, %d, %d, %d)", o->shader, (int)spec[1], (int)spec[3], (int)spec[5], (int)spec[7]);
    if (o->program->error[0]) svk_violation("%s: %s", o->name, o->program->error);
    if (o->program->shared_bytes > svk_shared()) svk_violation("%s: %u bytes of shared memory", o->name, (unsigned)o->program->shared_bytes);
    *pipelines = svk_handle(o);
    return o->program->error[0] ? -13 /* unknown */ : 0;
}

/* ---- Sets. ---- */

static int32_t FG__VK_CALL svk_create_pool(void *device, const fg__vk_pool_info *info, const void *allocator, uint64_t *pool) {
    svk_object *o = svk_new(device, SVK_POOL);
    (void)allocator;
    o->left = info->max_sets;
    *pool = svk_handle(o);
    return 0;
}

static int32_t FG__VK_CALL svk_allocate_sets(void *device, const fg__vk_set_info *info, uint64_t *sets) {
    svk_object *pool = svk_object_of(info->pool, SVK_POOL, "vkAllocateDescriptorSets"), *o;
    if (!pool || pool->left < 1) return FG__VK_OUT_OF_POOL_MEMORY;
    pool->left--;
    o = svk_new(device, SVK_SET);
    o->pool = pool;
    *sets = svk_handle(o);
    return 0;
}

static void svk_set_ranges(fg__vk_buffer_range *ranges, uint32_t n, const fg__vk_write_info *writes) {
    uint32_t i;
    for (i = 0; i < n; i++) {
        const fg__vk_buffer_range *r = writes[i].buffers;
        svk_object *buffer = svk_object_of(r->buffer, SVK_BUFFER, "a descriptor");
        if (writes[i].binding >= SPV_BINDINGS || writes[i].count != 1 || writes[i].descriptor_type != FG__VK_STORAGE_BUFFER) svk_violation("a descriptor of no use");
        else ranges[writes[i].binding] = *r;
        if (buffer && (r->offset % SVK_ALIGN || r->bytes == 0 || r->bytes > SVK_RANGE || r->offset > buffer->bytes || r->bytes > buffer->bytes - r->offset))
            svk_violation("a descriptor of bytes %llu, %llu more, of a buffer of %llu", (unsigned long long)r->offset, (unsigned long long)r->bytes,
                          (unsigned long long)buffer->bytes);
    }
}

static void FG__VK_CALL svk_update_sets(void *device, uint32_t n, const fg__vk_write_info *writes, uint32_t n_copies, const void *copies) {
    svk_object *set = n ? svk_object_of(writes[0].set, SVK_SET, "vkUpdateDescriptorSets") : NULL;
    (void)n_copies;
    (void)copies;
    if (!set) return;
    if (svk_in_use((svk_device *)device, set)) svk_violation("descriptors change while work uses them");
    svk_set_ranges(set->ranges, n, writes);
}

/* ---- Recording. ---- */

static int32_t FG__VK_CALL svk_create_command_pool(void *device, const fg__vk_command_pool_info *info, const void *allocator, uint64_t *pool) {
    svk_object *o = svk_new(device, SVK_COMMAND_POOL);
    (void)allocator;
    o->flags = info->flags;
    o->family = info->family;
    *pool = svk_handle(o);
    return 0;
}

static int32_t FG__VK_CALL svk_allocate_commands(void *device, const fg__vk_command_info *info, void **commands) {
    svk_object *pool = svk_object_of(info->pool, SVK_COMMAND_POOL, "vkAllocateCommandBuffers"), *o;
    if (!pool || info->count != 1) return FG__VK_OUT_OF_HOST_MEMORY;
    o = svk_new(device, SVK_COMMANDS);
    o->pool = pool;
    o->data = (uint8_t *)calloc(1, sizeof(device)); /* its device */
    memcpy(o->data, &device, sizeof(device));
    *commands = o;
    return 0;
}

static void FG__VK_CALL svk_free_commands(void *device, uint64_t pool, uint32_t n, void *const *commands) {
    (void)pool;
    if (n == 1) svk_destroy(device, svk_handle((svk_object *)*commands), SVK_COMMANDS);
}

static int32_t FG__VK_CALL svk_begin(void *commands, const fg__vk_begin_info *info) {
    svk_object *o = svk_object_of(svk_handle((svk_object *)commands), SVK_COMMANDS, "vkBeginCommandBuffer");
    svk_device *d;
    if (!o) return FG__VK_DEVICE_LOST;
    memcpy(&d, o->data, sizeof(void *));
    if (svk_in_use(d, o)) svk_violation("commands are recorded again that have not run");
    if (o->recording || (o->recorded && !(o->pool->flags & 2))) svk_violation("commands are recorded twice");
    memset(&o->state, 0, sizeof(o->state));
    o->recording = true;
    o->recorded = false;
    o->flags = info->flags;
    o->n = 0;
    return 0;
}

static int32_t FG__VK_CALL svk_end(void *commands) {
    svk_object *o = svk_object_of(svk_handle((svk_object *)commands), SVK_COMMANDS, "vkEndCommandBuffer");
    if (!o || !o->recording) svk_violation("an end of what did not begin");
    if (o) {
        o->recording = false;
        o->recorded = true;
    }
    return 0;
}

static svk_command *svk_record(void *commands, int kind) {
    svk_object *o = svk_object_of(svk_handle((svk_object *)commands), SVK_COMMANDS, "a command");
    svk_command *c;
    if (!o || !o->recording) {
        svk_violation("a command outside of a recording");
        return NULL;
    }
    o->commands = (svk_command *)spv_grow(o->commands, &o->capacity, o->n + 1, sizeof(svk_command));
    c = &o->commands[o->n++];
    if (kind == SVK_DISPATCH) *c = o->state;
    else memset(c, 0, sizeof(*c));
    c->kind = kind;
    return c;
}

/* A command that a test wants gone. */
static void svk_recorded(void *commands) {
    svk_object *o = (svk_object *)commands;
    if (svk.drop && svk.drop(&o->commands[o->n - 1])) o->n--;
}

static void FG__VK_CALL svk_bind_pipeline(void *commands, int32_t point, uint64_t pipeline) {
    (void)point;
    ((svk_object *)commands)->state.pipeline = svk_object_of(pipeline, SVK_PIPELINE, "vkCmdBindPipeline");
}

static void FG__VK_CALL svk_bind_sets(void *commands, int32_t point, uint64_t layout, uint32_t first, uint32_t n, const uint64_t *sets, uint32_t n_offsets,
                                      const uint32_t *offsets) {
    (void)point;
    (void)layout;
    (void)n_offsets;
    (void)offsets;
    if (first != 0 || n != 1) svk_violation("%u sets", (unsigned)n);
    ((svk_object *)commands)->state.set = svk_object_of(sets[0], SVK_SET, "vkCmdBindDescriptorSets");
}

static void FG__VK_CALL svk_push_sets(void *commands, int32_t point, uint64_t layout, uint32_t set, uint32_t n, const fg__vk_write_info *writes) {
    svk_object *o = svk_object_of(layout, SVK_LAYOUT, "vkCmdPushDescriptorSetKHR");
    (void)point;
    (void)set;
    if (o && !o->pushes) svk_violation("descriptors are pushed to a layout that has sets");
    ((svk_object *)commands)->state.set = NULL;
    svk_set_ranges(((svk_object *)commands)->state.ranges, n, writes);
}

static void FG__VK_CALL svk_push_constants(void *commands, uint64_t layout, uint32_t stages, uint32_t offset, uint32_t bytes, const void *data) {
    (void)layout;
    (void)stages;
    if (offset + bytes > 128) svk_violation("push constants of %u bytes", (unsigned)(offset + bytes));
    else memcpy(((svk_object *)commands)->state.push + offset, data, bytes);
}

static void FG__VK_CALL svk_cmd_dispatch(void *commands, uint32_t x, uint32_t y, uint32_t z) {
    svk_command *c = svk_record(commands, SVK_DISPATCH);
    if (!c) return;
    c->groups[0] = x;
    c->groups[1] = y;
    c->groups[2] = z;
    if (((svk_object *)commands)->pool->family) svk_violation("a dispatch on a queue that only copies");
    if (x > 65535 || y > 65535 || z > 65535) svk_violation("a dispatch of %u x %u x %u", (unsigned)x, (unsigned)y, (unsigned)z);
    svk_recorded(commands);
}

static uint32_t svk_stages(uint32_t stages) {
    return (stages & FG__VK_AT_COMPUTE ? 1u << SPV_COMPUTE : 0) | (stages & FG__VK_AT_TRANSFER ? 1u << SPV_TRANSFER : 0) | (stages & FG__VK_AT_HOST ? 1u << SPV_HOST : 0);
}

static void FG__VK_CALL svk_cmd_barrier(void *commands, uint32_t from, uint32_t to, uint32_t flags, uint32_t n, const fg__vk_barrier_info *info, uint32_t n_buffers,
                                        const void *buffers, uint32_t n_images, const void *images) {
    svk_command *c = svk_record(commands, SVK_BARRIER);
    (void)flags;
    (void)n_buffers;
    (void)buffers;
    (void)n_images;
    (void)images;
    if (!c) return;
    if (((svk_object *)commands)->pool->family && ((from | to) & FG__VK_AT_COMPUTE)) svk_violation("a barrier of stages that the queue has not");
    c->from_stages = svk_stages(from);
    c->to_stages = svk_stages(to);
    /* which stages' writes are flushed; whose reads (low) and writes see them */
    c->writes = n ? (info->from & FG__VK_SHADER_WRITE ? 1u : 0) | (info->from & FG__VK_TRANSFER_WRITE ? 2u : 0) : 0;
    c->reads = !n ? 0 : (info->to & FG__VK_SHADER_READ ? 1u : 0) | (info->to & FG__VK_TRANSFER_READ ? 2u : 0) | (info->to & FG__VK_HOST_READ ? 4u : 0) |
               (info->to & FG__VK_SHADER_WRITE ? 8u : 0) | (info->to & FG__VK_TRANSFER_WRITE ? 16u : 0);
    svk_recorded(commands);
}

static void FG__VK_CALL svk_cmd_copy(void *commands, uint64_t from, uint64_t to, uint32_t n, const fg__vk_copy *regions) {
    svk_object *a = svk_object_of(from, SVK_BUFFER, "vkCmdCopyBuffer"), *b = svk_object_of(to, SVK_BUFFER, "vkCmdCopyBuffer");
    uint32_t i;
    for (i = 0; i < n && a && b; i++) {
        svk_command *c = svk_record(commands, SVK_COPY);
        if (!c) return;
        c->from = a;
        c->to = b;
        c->copy = regions[i];
        if (regions[i].bytes == 0 || regions[i].from + regions[i].bytes > a->bytes || regions[i].to + regions[i].bytes > b->bytes)
            svk_violation("a copy of %llu bytes that does not fit", (unsigned long long)regions[i].bytes);
        c->groups[0] = i; /* of one command: nothing orders them */
        svk_recorded(commands);
    }
}

/* ---- Running. ---- */

/* See spv_order. A stage's own commands come in no order either. */
static void svk_run_barrier(spv_order *o, const svk_command *c) {
    uint32_t before = o->now, s, d, m;
    for (s = 0; s < 2; s++)
        if ((c->from_stages >> s & 1) && (c->writes >> s & 1)) o->flushed[o->first + s] = before;
    for (s = 0; s < SPV_SOURCES; s++) {
        uint32_t ran = s / 2 == o->first / 2 && (c->from_stages >> s % 2 & 1) ? before : 0;
        for (m = 0; m < 2; m++)
            if ((c->from_stages >> m & 1) && o->ran[s][m] > ran) ran = o->ran[s][m];
        for (d = 0; d < 3; d++) {
            uint32_t seen;
            if (!(c->to_stages >> d & 1)) continue;
            if (ran > o->ran[s][d]) o->ran[s][d] = ran;
            seen = o->flushed[s] < o->ran[s][d] ? o->flushed[s] : o->ran[s][d];
            if (c->reads >> d & 1) o->reads[s][d] = seen;
            if (d < 2 && (c->reads >> (3 + d) & 1)) o->writes[s][d] = seen;
        }
    }
}

/* What a semaphore or the host knows to have ended comes before what `stages` do now. */
static void svk_run_wait(spv_order *o, const uint32_t *ran, const uint32_t *flushed, uint32_t stages) {
    int s, d;
    for (s = 0; s < SPV_SOURCES; s++) {
        uint32_t seen = FG__MIN(ran[s], flushed[s]);
        o->flushed[s] = FG__MAX(o->flushed[s], flushed[s]);
        for (d = 0; d < 2; d++) {
            if (!(stages >> d & 1)) continue;
            o->ran[s][d] = FG__MAX(o->ran[s][d], ran[s]);
            o->reads[s][d] = FG__MAX(o->reads[s][d], seen);
            o->writes[s][d] = FG__MAX(o->writes[s][d], seen);
        }
    }
}

/* All that a queue did so far, and what that came after. */
static void svk_run_signal(const svk_queue *q, svk_point *point) {
    const spv_order *o = &q->order;
    uint32_t s;
    for (s = 0; s < SPV_SOURCES; s++) {
        bool own = s / 2 == o->first / 2;
        point->ran[s] = own ? o->now : FG__MAX(o->ran[s][0], o->ran[s][1]);
        point->flushed[s] = own ? o->now : o->flushed[s];
    }
}

static bool svk_view(const svk_queue *q, svk_object *buffer, uint64_t offset, uint64_t bytes, spv_buffer *view) {
    svk_object *m = buffer->memory;
    if (!buffer->family) buffer->family = q->family + 1;
    if (buffer->family != UINT32_MAX && buffer->family != q->family + 1) svk_violation("a buffer of one family of queues is used by another");
    if (buffer->dead || !m || m->dead || offset + bytes > buffer->bytes) {
        svk_violation("a command uses a buffer that is gone, or beyond it");
        return false;
    }
    offset += buffer->offset;
    view->data = m->data + offset;
    view->bytes = bytes;
    view->words = m->words ? m->words + offset / 4 : NULL;
    view->wrote = &m->wrote;
    return true;
}

static void svk_run_copy(svk_queue *q, const svk_command *c) {
    spv_buffer from, to;
    const char *wrong = NULL, *one;
    uint64_t i;
    if (!svk_view(q, c->from, c->copy.from, c->copy.bytes, &from) || !svk_view(q, c->to, c->copy.to, c->copy.bytes, &to)) return;
    q->order.group_size = 1;
    for (i = 0; i < c->copy.bytes; i += 4) {
        uint64_t n = c->copy.bytes - i < 4 ? c->copy.bytes - i : 4;
        if (from.words && (one = spv_order_read(&q->order, &from.words[i / 4], SPV_TRANSFER, c->groups[0])) != NULL) wrong = one;
        if (from.words && !from.words[i / 4].written) memset(to.data + i, 0xFF, (size_t)n);
        else memcpy(to.data + i, from.data + i, (size_t)n);
        if (to.words && (one = spv_order_write(&q->order, &to.words[i / 4], SPV_TRANSFER, c->groups[0])) != NULL) wrong = one;
    }
    if (wrong) svk_violation("a copy of %llu bytes %s", (unsigned long long)c->copy.bytes, wrong);
    *to.wrote = q->order.now << SPV_SOURCE_BITS | (q->order.first + SPV_TRANSFER);
}

static void svk_run_dispatch(svk_queue *q, const svk_command *c) {
    const fg__vk_buffer_range *ranges = c->set ? c->set->ranges : c->ranges;
    spv_exec e;
    int i;
    memset(&e, 0, sizeof(e));
    if (!c->pipeline || c->pipeline->dead || (c->set && c->set->dead)) {
        svk_violation("a dispatch without pipeline or descriptors");
        return;
    }
    for (i = 0; i < SPV_BINDINGS; i++) {
        svk_object *buffer = svk_object_of(ranges[i].buffer, SVK_BUFFER, "a dispatch");
        if (!buffer || !svk_view(q, buffer, ranges[i].offset, ranges[i].bytes, &e.buffers[i])) return;
    }
    e.program = c->pipeline->program;
    e.lanes = c->pipeline->lanes;
    e.push = c->push;
    e.push_bytes = 128;
    e.order = &q->order;
    e.most_steps = svk.most_steps ? svk.most_steps : (uint64_t)1 << 28;
    e.seed = q->order.now;
    e.report = svk_say;
    e.name = c->pipeline->name;
    svk.dispatches++;
    spv_dispatch(&e, c->groups);
}

static void svk_run(svk_queue *q, const svk_object *commands) {
    size_t i;
    for (i = 0; i < commands->n; i++) {
        const svk_command *c = &commands->commands[i];
        if (c->kind == SVK_BARRIER) {
            svk_run_barrier(&q->order, c);
            continue;
        }
        q->order.now = ++q->device->now;
        if (c->kind == SVK_COPY) svk_run_copy(q, c);
        else svk_run_dispatch(q, c);
    }
}

/* What the host can see must have been made ready for it. */
static void svk_check_host(const svk_device *d) {
    const svk_object *o;
    for (o = d->objects; o; o = o->next)
        if (o->kind == SVK_MEMORY && !o->dead && !o->words &&
            o->wrote >> SPV_SOURCE_BITS > d->queues[(o->wrote & SPV_SOURCE) / 2].order.reads[o->wrote & SPV_SOURCE][SPV_HOST])
            svk_violation("the host reads what commands wrote, and no barrier lies between");
}

static void svk_run_one(svk_queue *q);

/* Runs what makes a semaphore reach a value. */
static void svk_reach(svk_device *d, svk_object *semaphore, uint64_t value) {
    while (semaphore->point.value < value) {
        svk_queue *found = NULL;
        svk_submission *s;
        int i;
        for (i = 0; i < SVK_QUEUES && !found; i++)
            for (s = d->queues[i].first; s && !found; s = s->next)
                if (s->signal == semaphore) found = &d->queues[i];
        if (!found) {
            svk_violation("a wait for a value that nothing will signal");
            return;
        }
        svk_run_one(found);
    }
}

static void svk_run_one(svk_queue *q) {
    svk_submission *s = q->first;
    uint32_t i;
    svk_run_wait(&q->order, s->known, s->known, 3);
    if (s->wait) {
        svk_reach(q->device, s->wait, s->wait_value);
        svk_run_wait(&q->order, s->wait->points[s->wait_value % SVK_POINTS].ran, s->wait->points[s->wait_value % SVK_POINTS].flushed, s->stages);
    }
    q->first = s->next;
    for (i = 0; i < s->n; i++)
        if (!s->commands[i]->dead) svk_run(q, s->commands[i]);
    if (s->signal) {
        svk_object *o = s->signal;
        svk_run_signal(q, &o->point);
        while (o->point.value < s->signal_value) {
            o->point.value++;
            o->points[o->point.value % SVK_POINTS] = o->point;
        }
    }
    if (s->fence) {
        svk_run_signal(q, &s->fence->point);
        s->fence->signalled = true;
    }
    free(s);
}

static void svk_drain(svk_device *d) {
    int i;
    for (i = 0; i < SVK_QUEUES; i++)
        while (d->queues[i].first) svk_run_one(&d->queues[i]);
    for (i = 0; i < SPV_SOURCES; i++) d->known[i] = d->now;
}

/* The waits and signals of a submission. */
static void svk_submit_times(svk_queue *q, svk_submission *s, const fg__vk_submit_info *info) {
    const fg__vk_timeline_info *times = (const fg__vk_timeline_info *)info->next;
    if (!times) {
        if (info->n_waits || info->n_signals) svk_violation("semaphores without values");
        return;
    }
    if (times->type != FG__VK_TIMELINE_INFO || times->n_waits != info->n_waits || times->n_signals != info->n_signals || info->n_waits > 1 || info->n_signals > 1)
        svk_violation("%u waits and %u signals of a submission", (unsigned)info->n_waits, (unsigned)info->n_signals);
    if (info->n_signals) {
        s->signal = svk_object_of(info->signals[0], SVK_SEMAPHORE, "vkQueueSubmit");
        s->signal_value = times->signals[0];
        if (s->signal && s->signal_value <= s->signal->point.value) svk_violation("a semaphore is signalled to a value that it has");
    }
    if (info->n_waits && ++svk.waits != svk.skip) {
        s->wait = svk_object_of(info->waits[0], SVK_SEMAPHORE, "vkQueueSubmit");
        s->wait_value = times->waits[0];
        s->stages = (info->wait_stages[0] & FG__VK_AT_COMPUTE ? 1u << SPV_COMPUTE : 0) | (info->wait_stages[0] & FG__VK_AT_TRANSFER ? 1u << SPV_TRANSFER : 0);
        if (q->family && (info->wait_stages[0] & FG__VK_AT_COMPUTE)) svk_violation("a wait of a stage that the queue has not");
    }
}

static int32_t FG__VK_CALL svk_submit(void *queue, uint32_t n, const fg__vk_submit_info *info, uint64_t fence) {
    svk_queue *q = (svk_queue *)queue;
    svk_device *d = q->device;
    svk_submission *s = (svk_submission *)calloc(1, sizeof(*s)), **at = &q->first;
    uint32_t i;
    if (!s) abort();
    svk.submissions++;
    if (n != 1 || info->n_commands > 8) svk_violation("a submission of %u", (unsigned)n);
    for (i = 0; i < info->n_commands && i < 8; i++) {
        s->commands[s->n] = svk_object_of(svk_handle((svk_object *)info->commands[i]), SVK_COMMANDS, "vkQueueSubmit");
        if (!s->commands[s->n]) continue;
        if (!s->commands[s->n]->recorded) svk_violation("commands are submitted that were not recorded");
        if (s->commands[s->n]->pool->family != q->family) svk_violation("commands are submitted to a queue of another family");
        if (!(s->commands[s->n]->flags & 4) && svk_in_use(d, s->commands[s->n])) svk_violation("commands are submitted that have not run");
        s->n++;
    }
    svk_submit_times(q, s, info);
    memcpy(s->known, d->known, sizeof(s->known));
    s->fence = fence ? svk_object_of(fence, SVK_FENCE, "vkQueueSubmit") : NULL;
    if (s->fence && (s->fence->signalled || svk_in_use(d, s->fence))) svk_violation("a fence is used that was not reset");
    while (*at) at = &(*at)->next;
    *at = s;
    return 0;
}

/* ---- Fences. ---- */

static int32_t FG__VK_CALL svk_create_fence(void *device, const fg__vk_fence_info *info, const void *allocator, uint64_t *fence) {
    svk_object *o = svk_new(device, SVK_FENCE);
    (void)allocator;
    o->signalled = (info->flags & 1) != 0;
    *fence = svk_handle(o);
    return 0;
}

static int32_t FG__VK_CALL svk_reset_fences(void *device, uint32_t n, const uint64_t *fences) {
    svk_object *o = svk_object_of(fences[0], SVK_FENCE, "vkResetFences");
    if (n != 1 || (o && svk_in_use((svk_device *)device, o))) svk_violation("a fence is reset that work will signal");
    if (o) o->signalled = false;
    return 0;
}

/* The queue whose work signals a fence. */
static svk_queue *svk_queue_of(svk_device *d, const svk_object *fence) {
    svk_submission *s;
    int i;
    for (i = 0; i < SVK_QUEUES; i++)
        for (s = d->queues[i].first; s; s = s->next)
            if (s->fence == fence) return &d->queues[i];
    return NULL;
}

static int32_t FG__VK_CALL svk_wait(void *device, uint32_t n, const uint64_t *fences, uint32_t all, uint64_t time) {
    svk_device *d = (svk_device *)device;
    svk_object *o = svk_object_of(fences[0], SVK_FENCE, "vkWaitForFences");
    svk_queue *q;
    int i;
    (void)all;
    (void)time;
    if (n != 1 || !o) return FG__VK_DEVICE_LOST;
    while (!o->signalled && (q = svk_queue_of(d, o)) != NULL) svk_run_one(q);
    if (!o->signalled) {
        svk_violation("a wait for a fence that nothing will signal");
        return FG__VK_DEVICE_LOST;
    }
    svk_check_host(d);
    for (i = 0; i < SPV_SOURCES; i++) d->known[i] = FG__MAX(d->known[i], FG__MIN(o->point.ran[i], o->point.flushed[i]));
    if (d->queues[0].first) svk.ahead++;
    return 0;
}

/* ---- Semaphores. ---- */

static int32_t FG__VK_CALL svk_create_semaphore(void *device, const fg__vk_semaphore_info *info, const void *allocator, uint64_t *semaphore) {
    const fg__vk_timeline_type_info *type = (const fg__vk_timeline_type_info *)info->next;
    svk_object *o = svk_new(device, SVK_SEMAPHORE);
    (void)allocator;
    if (!((svk_device *)device)->timeline || !type || type->type != FG__VK_TIMELINE_TYPE_INFO || type->kind != FG__VK_TIMELINE || type->value)
        svk_violation("a semaphore of a kind that is not offered, or not asked for");
    o->points = (svk_point *)calloc(SVK_POINTS, sizeof(svk_point));
    if (!o->points) abort();
    *semaphore = svk_handle(o);
    return 0;
}

/* ---- The functions by name. ---- */

static fg_vulkan_fn FG__VK_CALL svk_get_device(void *device, const char *name);

static fg_vulkan_fn svk_get(void *instance, const char *name) {
    static const struct {
        const char *name;
        fg_vulkan_fn function;
    } functions[] = {
#define SVK_FN(name, function) {"vk" #name, (fg_vulkan_fn)function}
        SVK_FN(EnumerateInstanceExtensionProperties, svk_instance_extensions), SVK_FN(CreateInstance, svk_create_instance), SVK_FN(DestroyInstance, svk_destroy_instance), SVK_FN(EnumeratePhysicalDevices, svk_enumerate),
        SVK_FN(GetPhysicalDeviceProperties2, svk_properties), SVK_FN(GetPhysicalDeviceFeatures2, svk_features),
        SVK_FN(GetPhysicalDeviceMemoryProperties2, svk_memory_properties), SVK_FN(GetPhysicalDeviceQueueFamilyProperties, svk_families),
        SVK_FN(GetPhysicalDeviceCooperativeMatrixPropertiesKHR, svk_shapes), SVK_FN(EnumerateDeviceExtensionProperties, svk_list_extensions),
        SVK_FN(CreateDevice, svk_create_device), SVK_FN(GetDeviceProcAddr, svk_get_device), SVK_FN(DestroyDevice, svk_destroy_device),
        SVK_FN(GetDeviceQueue, svk_get_queue), SVK_FN(DeviceWaitIdle, svk_idle), SVK_FN(CreateBuffer, svk_create_buffer),
        SVK_FN(DestroyBuffer, svk_destroy_buffer), SVK_FN(GetBufferMemoryRequirements, svk_requirements), SVK_FN(AllocateMemory, svk_allocate),
        SVK_FN(FreeMemory, svk_destroy_memory), SVK_FN(BindBufferMemory, svk_bind_memory), SVK_FN(MapMemory, svk_map),
        SVK_FN(CreateShaderModule, svk_create_shader), SVK_FN(DestroyShaderModule, svk_destroy_shader),
        SVK_FN(CreateDescriptorSetLayout, svk_create_set_layout), SVK_FN(DestroyDescriptorSetLayout, svk_destroy_set_layout),
        SVK_FN(CreatePipelineLayout, svk_create_layout), SVK_FN(DestroyPipelineLayout, svk_destroy_layout),
        SVK_FN(CreatePipelineCache, svk_create_cache), SVK_FN(DestroyPipelineCache, svk_destroy_cache), SVK_FN(GetPipelineCacheData, svk_cache_data),
        SVK_FN(CreateComputePipelines, svk_create_pipelines), SVK_FN(DestroyPipeline, svk_destroy_pipeline),
        SVK_FN(CreateDescriptorPool, svk_create_pool), SVK_FN(DestroyDescriptorPool, svk_destroy_pool), SVK_FN(AllocateDescriptorSets, svk_allocate_sets),
        SVK_FN(UpdateDescriptorSets, svk_update_sets), SVK_FN(CreateCommandPool, svk_create_command_pool),
        SVK_FN(DestroyCommandPool, svk_destroy_command_pool), SVK_FN(AllocateCommandBuffers, svk_allocate_commands),
        SVK_FN(FreeCommandBuffers, svk_free_commands), SVK_FN(BeginCommandBuffer, svk_begin), SVK_FN(EndCommandBuffer, svk_end),
        SVK_FN(CmdBindPipeline, svk_bind_pipeline), SVK_FN(CmdBindDescriptorSets, svk_bind_sets), SVK_FN(CmdPushConstants, svk_push_constants),
        SVK_FN(CmdDispatch, svk_cmd_dispatch), SVK_FN(CmdPipelineBarrier, svk_cmd_barrier), SVK_FN(CmdCopyBuffer, svk_cmd_copy),
        SVK_FN(CreateFence, svk_create_fence), SVK_FN(DestroyFence, svk_destroy_fence), SVK_FN(ResetFences, svk_reset_fences),
        SVK_FN(CreateSemaphore, svk_create_semaphore), SVK_FN(DestroySemaphore, svk_destroy_semaphore), SVK_FN(WaitForFences, svk_wait), SVK_FN(QueueSubmit, svk_submit), SVK_FN(CmdPushDescriptorSetKHR, svk_push_sets),
    };
    size_t i;
    (void)instance;
    for (i = 0; i < FG__COUNT(functions); i++)
        if (strcmp(functions[i].name, name) == 0) return functions[i].function;
    return NULL;
}

static fg_vulkan_fn FG__VK_CALL svk_get_device(void *device, const char *name) { return svk_get(device, name); }

#endif
