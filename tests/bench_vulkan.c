/* bench_vulkan.c: times the kernels of a model's passes on a Vulkan device, one after another, by the device's own clock.

       cc -O2 -o build/bench_vulkan tests/bench_vulkan.c -lpthread -lm -ldl      (Debian: libvulkan-dev)
       build/bench_vulkan model.gguf                        a prompt of 512 tokens, then 32 passes of one
       build/bench_vulkan model.gguf -p 512 -n 16 -b 8      of eight sequences
       build/bench_vulkan model.gguf --device nvidia -r 128 a device by name or index; at most 128 rows, not 24, of each table
       build/bench_vulkan model.gguf --together             times at barriers alone: launches that no barrier parts are the first one's

   A table for each size of pass that came at least twice: kernels by what they take together, with their constants, a launch's workgroups,
   how often they run in a pass, the median over passes of one's microseconds, the sum. A kernel's time goes from the end of the one before
   to its own, so that what a barrier costs is in it, and one that runs beside another has what it adds. But a driver may let launches wait for
   the time to be written: whether they run beside each other shows the sum with --together beside the one without. Nothing is checked here. */

#define FASTGEN_IMPLEMENTATION
#include "../fastgen.h"
#include "../backends/vulkan/fg_vulkan.h"
#include "vulkan_names.h"

#include <stdio.h>
#include <vulkan/vulkan.h>

enum { MOST_LAUNCHES = 4096, MOST_RECORDINGS = 64, MOST_PASSES = 256 };

/* A command buffer of a pass: what it launches, and how long each took in the passes that were. */
typedef struct launch {
    fg__vk_pipeline pipeline;
    uint32_t across, down;
    float *times; /* [MOST_PASSES] */
} launch;

typedef struct recording {
    void *commands;
    VkQueryPool queries;
    launch *launches;
    int n_launches, n_timed, n_passes; /* timed: their ends are */
    bool used; /* since they were read last */
} recording;

static struct {
    fg__vk_device *device;
    fg__vk_api api; /* the driver's own */
    PFN_vkCreateQueryPool create_queries;
    PFN_vkCmdResetQueryPool reset_queries;
    PFN_vkCmdWriteTimestamp write_time;
    PFN_vkGetQueryPoolResults get_results;
    double period; /* nanoseconds of a tick */
    bool together;
    uint64_t pipeline;
    recording recordings[MOST_RECORDINGS];
    int n_recordings;
} bench;

static void must(bool good, const char *what) {
    if (good) return;
    fprintf(stderr, "bench_vulkan: %s: %s\n", what, fg_last_error());
    exit(1);
}

static recording *recording_of(void *commands) {
    int i;
    for (i = bench.n_recordings - 1; i >= 0; i--)
        if (bench.recordings[i].commands == commands) return &bench.recordings[i];
    return NULL;
}

/* ---- Between the backend and the driver. ---- */

/* Passes are recorded once and begun with flag 4; copies, with others, are not timed. */
static int32_t FG__VK_CALL begin(void *commands, const fg__vk_begin_info *info) {
    VkQueryPoolCreateInfo pool;
    recording *r;
    int32_t result = bench.api.BeginCommandBuffer(commands, info);
    if (result || info->flags != VK_COMMAND_BUFFER_USAGE_SIMULTANEOUS_USE_BIT || bench.n_recordings == MOST_RECORDINGS) return result;
    r = &bench.recordings[bench.n_recordings++];
    memset(r, 0, sizeof(*r));
    r->commands = commands;
    r->launches = (launch *)calloc(MOST_LAUNCHES, sizeof(launch));
    memset(&pool, 0, sizeof(pool));
    pool.sType = VK_STRUCTURE_TYPE_QUERY_POOL_CREATE_INFO;
    pool.queryType = VK_QUERY_TYPE_TIMESTAMP;
    pool.queryCount = MOST_LAUNCHES + 1;
    must(r->launches && !bench.create_queries((VkDevice)bench.device->handle, &pool, NULL, &r->queries), "queries");
    bench.reset_queries((VkCommandBuffer)commands, r->queries, 0, MOST_LAUNCHES + 1);
    return result;
}

/* The ends of launches that have none yet. */
static void write_times(recording *r) {
    while (r->n_timed < r->n_launches)
        bench.write_time((VkCommandBuffer)r->commands, VK_PIPELINE_STAGE_BOTTOM_OF_PIPE_BIT, r->queries, (uint32_t)++r->n_timed);
}

static int32_t FG__VK_CALL end(void *commands) {
    recording *r = recording_of(commands);
    if (r) write_times(r);
    return bench.api.EndCommandBuffer(commands);
}

static void FG__VK_CALL barrier(void *commands, uint32_t from, uint32_t to, uint32_t flags, uint32_t n, const fg__vk_barrier_info *all, uint32_t n_buffers,
                                const void *buffers, uint32_t n_images, const void *images) {
    recording *r = recording_of(commands);
    if (r) write_times(r);
    bench.api.CmdPipelineBarrier(commands, from, to, flags, n, all, n_buffers, buffers, n_images, images);
    if (r && r->n_launches == 0) bench.write_time((VkCommandBuffer)commands, VK_PIPELINE_STAGE_BOTTOM_OF_PIPE_BIT, r->queries, 0);
}

static void FG__VK_CALL bind(void *commands, int32_t point, uint64_t pipeline) {
    bench.pipeline = pipeline;
    bench.api.CmdBindPipeline(commands, point, pipeline);
}

static void FG__VK_CALL dispatch(void *commands, uint32_t across, uint32_t down, uint32_t deep) {
    recording *r = recording_of(commands);
    launch *l;
    size_t i;
    bench.api.CmdDispatch(commands, across, down, deep);
    if (!r || r->n_launches == MOST_LAUNCHES) return;
    l = &r->launches[r->n_launches++];
    l->across = across;
    l->down = down;
    l->times = (float *)calloc(MOST_PASSES, sizeof(float));
    must(l->times != NULL, "memory");
    for (i = 0; i < bench.device->n_pipelines; i++)
        if (bench.device->pipelines[i].handle == bench.pipeline) l->pipeline = bench.device->pipelines[i];
    if (!bench.together) write_times(r);
}

static int32_t FG__VK_CALL submit(void *queue, uint32_t n, const fg__vk_submit_info *infos, uint64_t fence) {
    uint32_t i, j;
    for (i = 0; i < n; i++)
        for (j = 0; j < infos[i].n_commands; j++) {
            recording *r = recording_of(infos[i].commands[j]);
            if (r) r->used = true;
        }
    return bench.api.QueueSubmit(queue, n, infos, fence);
}

#define FIND(type, name) (type) d->api.GetDeviceProcAddr(d->handle, name)

static fg_result open_timed(const fg_device_desc *desc, fg_device **out) {
    VkPhysicalDeviceProperties properties;
    PFN_vkGetPhysicalDeviceProperties describe;
    fg__vk_device *d;
    fg_result r = fg_backend_vulkan()->open(desc, out);
    if (r != FG_OK) return r;
    bench.device = d = (fg__vk_device *)*out;
    bench.api = d->api;
    bench.create_queries = FIND(PFN_vkCreateQueryPool, "vkCreateQueryPool");
    bench.reset_queries = FIND(PFN_vkCmdResetQueryPool, "vkCmdResetQueryPool");
    bench.write_time = FIND(PFN_vkCmdWriteTimestamp, "vkCmdWriteTimestamp");
    bench.get_results = FIND(PFN_vkGetQueryPoolResults, "vkGetQueryPoolResults");
    describe = (PFN_vkGetPhysicalDeviceProperties)fg__vk_find(&d->loader, "vkGetPhysicalDeviceProperties");
    describe((VkPhysicalDevice)d->physical, &properties);
    bench.period = (double)properties.limits.timestampPeriod;
    d->api.BeginCommandBuffer = begin;
    d->api.EndCommandBuffer = end;
    d->api.CmdPipelineBarrier = barrier;
    d->api.CmdBindPipeline = bind;
    d->api.CmdDispatch = dispatch;
    d->api.QueueSubmit = submit;
    return r;
}

/* The times of the pass that has just ended. */
static void read_pass(void) {
    static uint64_t ticks[MOST_LAUNCHES + 1];
    int i, j;
    for (i = 0; i < bench.n_recordings; i++) {
        recording *r = &bench.recordings[i];
        if (!r->used || !r->n_launches || r->n_passes == MOST_PASSES) continue;
        r->used = false;
        must(!bench.get_results((VkDevice)bench.device->handle, r->queries, 0, (uint32_t)r->n_launches + 1, sizeof(ticks), ticks, sizeof(ticks[0]),
                                VK_QUERY_RESULT_64_BIT | VK_QUERY_RESULT_WAIT_BIT),
             "times");
        for (j = 0; j < r->n_launches; j++) r->launches[j].times[r->n_passes] = (float)((double)(ticks[j + 1] - ticks[j]) * bench.period / 1e3);
        r->n_passes++;
    }
}

/* ---- Tables. ---- */

static int by_value(const void *a, const void *b) {
    float x = *(const float *)a, y = *(const float *)b;
    return x < y ? -1 : x > y;
}

static float median(float *values, int n) {
    qsort(values, (size_t)n, sizeof(float), by_value);
    return values[n / 2];
}

typedef struct line {
    const launch *of;
    int count;
    float sum;
} line;

static int by_sum(const void *a, const void *b) { return -by_value(&((const line *)a)->sum, &((const line *)b)->sum); }

static bool same(const launch *a, const launch *b) { return a->pipeline.handle == b->pipeline.handle && a->across == b->across && a->down == b->down; }

static void print_recording(recording *r, int most) {
    static line lines[MOST_LAUNCHES];
    int n = 0, i, j;
    float all = 0;
    for (i = 0; i < r->n_launches; i++) {
        float one = median(r->launches[i].times, r->n_passes);
        for (j = 0; j < n && !same(lines[j].of, &r->launches[i]); j++) {}
        if (j == n) memset(&lines[n++], 0, sizeof(line));
        lines[j].of = &r->launches[i];
        lines[j].count++;
        lines[j].sum += one;
        all += one;
    }
    qsort(lines, (size_t)n, sizeof(line), by_sum);
    printf("\n%d launches, %.1f us, median of %d passes\n%-18s %-24s %11s %6s %9s %9s %5s\n", r->n_launches, (double)all, r->n_passes, "kernel", "constants",
           "workgroups", "times", "us each", "us", "");
    for (i = 0; i < n && i < most; i++) {
        const fg__vk_pipeline *p = &lines[i].of->pipeline;
        char spec[64], groups[32];
        snprintf(spec, sizeof(spec), "%d %d %d %d", p->spec[0], p->spec[1], p->spec[2], p->spec[3]);
        snprintf(groups, sizeof(groups), "%ux%u", lines[i].of->across, lines[i].of->down);
        printf("%-18s %-24s %11s %6d %9.2f %9.1f %4.0f%%\n", shader_names[p->shader], spec, groups, lines[i].count, (double)lines[i].sum / lines[i].count,
               (double)lines[i].sum, 100.0 * (double)lines[i].sum / (double)all);
    }
}

int main(int argc, char **argv) {
    static int32_t tokens[65536];
    static fg_vulkan_options options;
    fg_engine_desc desc;
    fg_engine *engine = NULL;
    fg_backend timed = *fg_backend_vulkan();
    fg_request_desc request;
    fg_model_info info;
    uint32_t state = 1;
    int prompt = 512, n = 32, batch = 1, most = 24, i, s;
    bool busy = true;
    memset(&desc, 0, sizeof(desc));
    memset(&request, 0, sizeof(request));
    for (i = 2; i < argc; i += 2) {
        if (strcmp(argv[i], "--together") != 0 && i + 1 == argc) break;
        if (strcmp(argv[i], "-p") == 0) prompt = FG__MIN(atoi(argv[i + 1]), (int)FG__COUNT(tokens));
        else if (strcmp(argv[i], "-n") == 0) n = atoi(argv[i + 1]);
        else if (strcmp(argv[i], "-b") == 0) batch = atoi(argv[i + 1]);
        else if (strcmp(argv[i], "-r") == 0) most = atoi(argv[i + 1]);
        else if (strcmp(argv[i], "--device") == 0) desc.device = argv[i + 1];
        else if (strcmp(argv[i], "--together") == 0) bench.together = true, i--;
        else break;
    }
    if (argc < 2 || argv[1][0] == '-' || i < argc) {
        fprintf(stderr, "usage: bench_vulkan MODEL.gguf [-p TOKENS] [-n PASSES] [-b SEQUENCES] [-r LINES] [--device NAME] [--together]\n");
        return 2;
    }
    timed.open = open_timed;
    options.submit_work = 1e30; /* a pass is one command buffer, and so one table */
    desc.model_path = argv[1];
    desc.backends[0] = &timed;
    desc.backend_options = &options;
    desc.kv_type = FG_TYPE_F16;
    desc.max_seqs = batch;
    desc.max_context = prompt + n + 1;
    desc.kv_tokens = batch * (prompt + n + 64);
    desc.no_prefix_cache = true;
    desc.async = FG_ASYNC_OFF;
    must(fg_engine_create(&desc, &engine) == FG_OK, argv[1]);
    must(bench.device != NULL, "no Vulkan device");
    bench.n_recordings = 0; /* those of trials */
    printf("%s, %s\n", argv[1], bench.device->properties.name);
    fg_model_get_info(fg_engine_get_model(engine), &info);
    request.tokens = tokens;
    request.n_tokens = (size_t)prompt;
    request.max_tokens = n;
    request.ignore_eos = true;
    for (s = 0; s < batch; s++) {
        fg_request id;
        for (i = 0; i < prompt; i++) tokens[i] = (int32_t)((state = state * 1664525u + 1013904223u) >> 8) % info.n_vocab;
        must(fg_submit(engine, &request, &id) == FG_OK, "submit");
    }
    while (busy) {
        must(fg_step(engine, 0, &busy) == FG_OK, "step");
        read_pass();
    }
    if (bench.n_recordings == MOST_RECORDINGS) fprintf(stderr, "bench_vulkan: passes of more than %d kinds are not timed\n", MOST_RECORDINGS);
    for (i = 0; i < bench.n_recordings; i++)
        if (bench.recordings[i].n_passes > 1) print_recording(&bench.recordings[i], most);
    fg_engine_free(engine);
    return 0;
}
