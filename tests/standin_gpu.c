/* A GPU driver that is none: a shared library with the functions of libcuda and of libamdhip64 that backends/cuda and
   backends/hip call, over host memory. It is stricter than a driver, so that mistakes show in every run of the tests:

   - Work is truly asynchronous. A stream's commands run only when somebody waits for them, as late as possible and in a
     random interleaving with other streams. What a copy will write on the host is filled with 0xFF until then.
   - Device memory can be touched only by commands; the host's own reads and writes fault. It starts as 0xFF and lies
     between guards, whose bytes are checked.
   - Asynchronous copies need pinned memory. Freeing with work under way, using what was destroyed, calls without a
     context, launches during a capture that do not belong there: violations, which the tests read.
   - Any call can be told to fail, by its number; a fatal error stays in its context, as on a real device, and in no other.
   - What belongs to a context (memory, streams, events, functions) is used while that one is current, or it is a violation.
   - A clock of its own says when each command would have run if kernels and copies took a given time: it is read by tests of what
     runs at once (standin_set_clock).

   Kernels run by tests/host_gpu.h. The functions standin_* are for the tests. */
#define _GNU_SOURCE
#include <math.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "host_gpu.h"
#include "../backends/cuda/kernels.cuh"
#include "standin_gpu.h"

enum { SI_INVALID = 1, SI_OUT_OF_MEMORY = 2, SI_NOT_INITIALIZED = 3, SI_INVALID_DEVICE = 101, SI_INVALID_CONTEXT = 201,
       SI_NO_BINARY = 209, SI_INVALID_HANDLE = 400, SI_NOT_FOUND = 500, SI_NOT_READY = 600, SI_ILLEGAL_ADDRESS = 700, SI_ILLEGAL_INSTRUCTION = 715,
       SI_CAPTURE_UNSUPPORTED = 900 };
enum { SI_PAGE = 4096, SI_ALIGN = 256, SI_GUARD = 0xEE, SI_POISON = 0xFF, SI_MAX_ARGS = 1024 };

typedef struct si_kernel {
    const char *name;
    size_t args_bytes;
    void (*entry)(const void *args);
} si_kernel;

static const si_kernel si_kernels[] = {
#define SI_KERNEL(name, kind) {"fg_gpu_" #name, sizeof(fg_gpu_##kind##_args), fg_gpu_##name},
    FG_GPU_KERNELS(SI_KERNEL)
#undef SI_KERNEL
};

/* A kernel in a context. */
typedef struct si_function {
    const si_kernel *kernel;
    struct si_context *in;
    int more; /* shared memory beyond what all have, as cuFuncSetAttribute allowed it */
} si_function;

typedef struct si_context {
    struct si_context *next;
    int lost, modules;
    si_function functions[FG_GPU_KERNEL_COUNT];
} si_context;

typedef struct si_memory {
    struct si_memory *next;
    si_context *in;
    char *map, *at;
    size_t map_bytes, bytes;
    bool pinned;
} si_memory;

typedef struct si_event {
    struct si_event *next;
    si_context *in;
    struct si_stream *stream; /* of the last record */
    uint64_t recorded, done;
    double time; /* of the last record, by the clock */
} si_event;

enum { SI_COPY, SI_FILL, SI_LAUNCH, SI_RECORD, SI_WAIT, SI_GRAPH, SI_MATMUL };
enum { SI_ON_DEVICE, SI_TO_DEVICE, SI_FROM_DEVICE };

typedef struct si_command {
    int kind, value;
    void *to;
    const void *from;
    size_t bytes;
    si_event *event;
    uint64_t ticket;
    struct si_stream *recorded; /* WAIT: the stream of that record, as the event may have another since */
    struct si_graph *graph;
    const si_kernel *kernel;
    unsigned grid[3], block[3], shared;
    unsigned char *args;
} si_command;

typedef struct si_graph {
    struct si_graph *next;
    si_context *in;
    si_command *commands;
    size_t n, capacity, bytes;
    bool is_exec;
} si_graph;

typedef struct si_stream {
    struct si_stream *next;
    si_context *in;
    double ready; /* when all its commands are done, by the clock */
    si_command *commands;
    size_t first, n, capacity;
    si_graph *capture;
    bool capture_broken;
} si_stream;

static struct {
    bool started;
    si_memory *memory;
    si_event *events;
    si_graph *graphs;
    si_stream *streams;
    size_t bytes_used, graph_bytes, most_graph_bytes;
    si_context *contexts;        /* those that were created */
    int retained, may_open;      /* the primary one, so often; commands may run now */
    bool open;                   /* device memory may be touched */
    long calls, launches, graph_launches, special, attentions, finishes, fail_at, fail_launch;
    int fail_code, violations;
    uint64_t random;
    standin_order order;
    long waits;
    standin_clock clock;
    standin_span *spans;
    size_t n_spans, max_spans;
    void *blas_list; /* see standin_blas.h */
    int blas_objects;
    long blas_calls, products;
    standin_blas blas;
    long rtc_calls, rtc_fail; /* see standin_rtc.h */
    int rtc_programs;
    char text[4096];
    standin_device device;
} si = {.fail_at = -1, .fail_launch = -1, .random = 1, .order = {-1, 0}, .blas = {-1, 0, 0, 0}, .rtc_fail = -1,
        .device = {"Stand-in GPU", "gfx1100", 8, 0, 13000, 32, 16, 49152, 99 * 1024, (size_t)1 << 30, 0, 0, 0, 0, 0, 0, 0}};

enum { SI_DEEPEST = 8 };
static si_context si_primary;
static __thread si_context *si_stack[SI_DEEPEST]; /* contexts pushed by this thread */
static __thread int si_depth, si_hip_device = 7;

static si_context *si_current(void) { return si_depth > 0 && si_hip_device != 0 ? si_stack[si_depth - 1] : &si_primary; }

/* ---- For the tests. ---- */

static void si_violation(const char *format, ...) {
    size_t used = strlen(si.text);
    va_list args;
    si.violations++;
    if (used + 200 > sizeof(si.text)) return;
    va_start(args, format);
    vsnprintf(si.text + used, sizeof(si.text) - used - 2, format, args);
    va_end(args);
    strcat(si.text, "\n");
}

int standin_violations(const char **text) {
    if (text) *text = si.text;
    return si.violations;
}

/* Objects of a context. */
static int si_live_in(const si_context *in) {
    int n = in->modules;
    const si_memory *m;
    const si_event *e;
    const si_graph *g;
    const si_stream *s;
    for (m = si.memory; m; m = m->next) n += m->in == in;
    for (e = si.events; e; e = e->next) n += e->in == in;
    for (g = si.graphs; g; g = g->next) n += g->in == in;
    for (s = si.streams; s; s = s->next) n += s->in == in;
    return n;
}

static int si_live(void) {
    int n = si_live_in(&si_primary) + si.retained + si.blas_objects + si.rtc_programs;
    const si_context *c;
    for (c = si.contexts; c; c = c->next) n += 1 + si_live_in(c);
    return n;
}

void standin_get_stats(standin_stats *stats) {
    memset(stats, 0, sizeof(*stats));
    stats->calls = si.calls;
    stats->launches = si.launches;
    stats->special = si.special;
    stats->attentions = si.attentions;
    stats->finishes = si.finishes;
    stats->live = si_live();
    stats->depth = si_depth;
    stats->products = si.products;
    stats->blas_calls = si.blas_calls;
    stats->bytes_used = si.bytes_used;
    stats->graph_bytes = si.most_graph_bytes;
    stats->graphs = si.graph_launches;
    stats->failed = si.fail_at >= 0 && si.calls > si.fail_at;
    stats->waits = si.waits;
}

/* Numbers of calls and launches begin at 0 again. */
void standin_fail(long call, long launch, int code) {
    si.calls = si.launches = si.graph_launches = si.special = si.attentions = si.finishes = 0;
    si.most_graph_bytes = si.graph_bytes;
    si.fail_at = call;
    si.fail_launch = launch;
    si.fail_code = code;
    si_primary.lost = 0;
}

void standin_set_order(const standin_order *order) {
    si.order = *order;
    si.waits = 0;
}

/* The clock begins at 0 again, and what was written down is forgotten. */
void standin_set_clock(const standin_clock *clock) {
    si_stream *s;
    si_event *e;
    for (s = si.streams; s; s = s->next) s->ready = 0;
    for (e = si.events; e; e = e->next) e->time = 0;
    si.clock = *clock;
    si.clock.now = 0;
    si.n_spans = 0;
}

static void si_span(int what, const void *stream, double start, double end) {
    if (si.n_spans == si.max_spans) {
        size_t more = si.max_spans ? 2 * si.max_spans : 1024;
        standin_span *grown = (standin_span *)realloc(si.spans, more * sizeof(*grown));
        if (!grown) return;
        si.spans = grown;
        si.max_spans = more;
    }
    si.spans[si.n_spans].what = what;
    si.spans[si.n_spans].stream = stream;
    si.spans[si.n_spans].start = start;
    si.spans[si.n_spans++].end = end;
}

/* The host is busy for so long. */
void standin_host_works(double seconds) {
    if (!si.clock.runs) return;
    si_span('H', NULL, si.clock.now, si.clock.now + seconds);
    si.clock.now += seconds;
}

size_t standin_get_spans(const standin_span **spans, standin_clock *clock) {
    *spans = si.spans;
    *clock = si.clock;
    return si.n_spans;
}

/* A command of a stream takes so long, behind those before it. */
static void si_spend(si_stream *s, int what, double seconds) {
    double start = s->ready > si.clock.now ? s->ready : si.clock.now;
    if (!si.clock.runs || s->capture) return;
    si_span(what, s, start, start + seconds);
    s->ready = start + seconds;
}

static void si_clock_until(double time) {
    if (si.clock.runs && time > si.clock.now) si.clock.now = time;
}

void standin_set_device(const standin_device *device) { si.device = *device; }
void standin_get_device(standin_device *device) { *device = si.device; }

/* As standin_fail does for the driver. */
void standin_set_blas(const standin_blas *blas) {
    si.blas = *blas;
    si.blas_calls = si.products = 0;
}

/* ---- Calls. ---- */

static uint64_t si_random(void) {
    si.random ^= si.random << 13;
    si.random ^= si.random >> 7;
    return si.random ^= si.random << 17;
}

static bool si_is_fatal(int code) { return code == 700 || code == SI_ILLEGAL_INSTRUCTION || code == 719 || code == 214 || code == 46; }

/* What a call that needs no context begins with: the error to return at once, or 0. */
static int si_begin(void) {
    if (si.calls++ == si.fail_at) {
        if (si_is_fatal(si.fail_code)) si_current()->lost = si.fail_code;
        return si.fail_code;
    }
    return si_current()->lost;
}

static int si_enter(const char *name) {
    int code = si_begin();
    if (code) return code;
    if (!si.started) return SI_NOT_INITIALIZED;
    if (si_depth > 0) return 0;
    si_violation("%s without a context", name);
    return SI_INVALID_CONTEXT;
}

/* ---- Memory. ---- */

static size_t si_round_up(size_t n, size_t unit) { return (n + unit - 1) / unit * unit; }

static si_memory *si_find(const void *at, size_t bytes) {
    si_memory *m;
    for (m = si.memory; m; m = m->next)
        if ((const char *)at >= m->at && (const char *)at < m->at + m->bytes && (m->pinned || m->in == si_current()))
            return bytes <= (size_t)(m->at + m->bytes - (const char *)at) ? m : NULL;
    return NULL;
}

/* Device memory is what kernels may touch. */
static bool si_tell_machine(si_memory *m) {
    if (hg.n_memories == hg.max_memories) {
        int n = hg.max_memories ? 2 * hg.max_memories : 64;
        hg_memory *more = (hg_memory *)realloc(hg.memories, (size_t)n * sizeof(hg_memory));
        if (!more) return false;
        hg.memories = more;
        hg.max_memories = n;
    }
    hg.memories[hg.n_memories].data = m->at;
    hg.memories[hg.n_memories++].bytes = m->bytes;
    return true;
}

static void si_untell_machine(const si_memory *m) {
    int i;
    for (i = 0; i < hg.n_memories; i++)
        if (hg.memories[i].data == m->at) hg.memories[i--] = hg.memories[--hg.n_memories];
    hg.last_start = NULL;
    hg.last_bytes = 0;
}

/* While nothing runs, device memory is out of reach. The first command that works on memory opens it. */
static void si_protect(bool open) {
    si_memory *m;
    if (si.open == open) return;
    si.open = open;
    for (m = si.memory; m; m = m->next)
        if (!m->pinned) mprotect(m->map, m->map_bytes - SI_PAGE, open ? PROT_READ | PROT_WRITE : PROT_NONE);
}

/* Commands may run from here on, or no more. */
static void si_reach(bool may) {
    si.may_open += may ? 1 : -1;
    if (si.may_open == 0) si_protect(false);
}

static int si_alloc(void **out, size_t bytes, bool pinned) {
    size_t room = si_round_up(bytes, SI_ALIGN), map_bytes = si_round_up(room, SI_PAGE) + SI_PAGE;
    si_memory *m;
    *out = NULL;
    if (bytes == 0 || bytes > (size_t)1 << 40) return bytes ? SI_OUT_OF_MEMORY : SI_INVALID;
    if (!pinned && (room > si.device.memory || si.bytes_used > si.device.memory - room)) return SI_OUT_OF_MEMORY;
    m = (si_memory *)calloc(1, sizeof(*m));
    if (!m) return SI_OUT_OF_MEMORY;
    m->map = (char *)mmap(NULL, map_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (m->map == MAP_FAILED) {
        free(m);
        return SI_OUT_OF_MEMORY;
    }
    m->in = si_current();
    m->map_bytes = map_bytes;
    m->bytes = bytes;
    m->pinned = pinned;
    m->at = m->map + map_bytes - SI_PAGE - room;
    memset(m->map, SI_GUARD, (size_t)(m->at - m->map));
    memset(m->at, si.device.idle ? 0 : SI_POISON, bytes);
    memset(m->at + bytes, SI_GUARD, room - bytes);
    mprotect(m->map + map_bytes - SI_PAGE, SI_PAGE, PROT_NONE);
    if (!pinned && !si_tell_machine(m)) {
        munmap(m->map, map_bytes);
        free(m);
        return SI_OUT_OF_MEMORY;
    }
    if (!pinned && !si.open) mprotect(m->map, map_bytes - SI_PAGE, PROT_NONE);
    if (!pinned) si.bytes_used += room;
    m->next = si.memory;
    si.memory = m;
    *out = m->at;
    return 0;
}

static bool si_pending(void) {
    const si_stream *s;
    for (s = si.streams; s; s = s->next)
        if (s->in == si_current() && s->first < s->n) return true;
    return false;
}

static void si_drop_all(const si_context *in);

/* Freeing what work under way may use. After an injected error, which may be that of the wait before, drivers wait by themselves. */
static void si_must_rest(const char *what) {
    if (!si_pending()) return;
    if (si.fail_at >= 0 && si.calls > si.fail_at) si_drop_all(si_current());
    else si_violation("%s while work is under way", what);
}

/* Bytes beside an allocation, from one to before another, which nobody may have written. */
static bool si_guards(const si_memory *m, const char *from, const char *to) {
    while (from < to && (unsigned char)*from == SI_GUARD) from++;
    if (from < to) si_violation("a write %td bytes from the start of an allocation of %zu", from - m->at, m->bytes);
    return from == to;
}

static int si_free(void *at, bool pinned) {
    si_memory **place = &si.memory, *m;
    while (*place && (*place)->at != (char *)at) place = &(*place)->next;
    m = *place;
    if (!m || m->pinned != pinned) {
        si_violation("freeing what was not allocated");
        return SI_INVALID;
    }
    si_must_rest("bytes are freed");
    *place = m->next;
    if (!pinned) si_untell_machine(m);
    mprotect(m->map, m->map_bytes - SI_PAGE, PROT_READ);
    if (si_guards(m, m->map, m->at)) si_guards(m, m->at + m->bytes, m->map + m->map_bytes - SI_PAGE);
    if (!pinned) si.bytes_used -= si_round_up(m->bytes, SI_ALIGN);
    munmap(m->map, m->map_bytes);
    free(m);
    return 0;
}

/* ---- Streams: commands are kept until somebody waits. ---- */

static void si_command_free(si_command *c) {
    free(c->args);
    c->args = NULL;
}

static bool si_push(si_command **list, size_t *n, size_t *capacity, const si_command *c) {
    if (*n == *capacity) {
        size_t more = *capacity ? 2 * *capacity : 64;
        si_command *grown = (si_command *)realloc(*list, more * sizeof(*grown));
        if (!grown) return false;
        *list = grown;
        *capacity = more;
    }
    (*list)[(*n)++] = *c;
    return true;
}

static bool si_known_stream(const si_stream *stream) {
    const si_stream *s;
    for (s = si.streams; s; s = s->next)
        if (s == stream && s->in == si_current()) return true;
    si_violation("a stream that does not exist, or not in this context");
    return false;
}

static bool si_known_event(const si_event *event) {
    const si_event *e;
    for (e = si.events; e; e = e->next)
        if (e == event && e->in == si_current()) return true;
    si_violation("an event that does not exist, or not in this context");
    return false;
}

static bool si_known_graph(const si_graph *graph, bool is_exec) {
    const si_graph *g;
    for (g = si.graphs; g; g = g->next)
        if (g == graph && g->is_exec == is_exec && g->in == si_current()) return true;
    si_violation("a graph that does not exist, or not in this context");
    return false;
}

/* Appends a command to a stream, or to the graph that it is captured into. */
static int si_enqueue(si_stream *s, const si_command *c) {
    bool good;
    if (s->capture) good = si_push(&s->capture->commands, &s->capture->n, &s->capture->capacity, c);
    else {
        if (s->first == s->n) s->first = s->n = 0;
        good = si_push(&s->commands, &s->n, &s->capacity, c);
    }
    return good ? 0 : SI_OUT_OF_MEMORY;
}

static int si_blas_run(const void *args);

/* Runs kernels instead of the host, if it has been set (tests/check_amd.py); false: it has no such kernel. */
bool (*standin_elsewhere)(const char *name, const void *args, const fg_gpu_shape *shape, int width);

/* A kernel of products of warpgroups, or of bytes. */
static bool si_is_special(const char *kernel) {
    static const char *const names[] = {"gemmwg", "gemmi", "widewg", "roof_wg", "roof_dot4"};
    size_t i;
    for (i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        if (strstr(kernel, names[i])) return true;
    return false;
}

static int si_execute(const si_command *c) {
    fg_gpu_shape shape = {c->grid[0], c->grid[1], c->block[0], c->shared};
    size_t i;
    int code;
    switch (c->kind) {
    case SI_COPY: memmove(c->to, c->from, c->bytes); return 0;
    case SI_FILL: memset(c->to, c->value, c->bytes); return 0;
    case SI_LAUNCH:
        if (si.launches++ == si.fail_launch) return si.fail_code;
        if (si.device.idle) return 0;
        hg.width = si.device.warp;
        hg.seed = si_random();
        hg.wrong_products = si.device.wrong_products;
        if (strstr(c->kernel->name, "finish")) si.finishes++;
        if (si_is_special(c->kernel->name)) {
            if (strstr(c->kernel->name, "widewg")) si.attentions++;
            else si.special++;
            if (si.device.wrong_products == 2) return SI_ILLEGAL_INSTRUCTION;
        }
        if (standin_elsewhere && standin_elsewhere(c->kernel->name + strlen("fg_gpu_"), c->args, &shape, si.device.warp)) return 0;
        if (hg_launch(c->kernel->entry, c->args, c->grid[0], c->grid[1], c->block[0], c->shared)) return 0;
        si_violation("kernel %s: %s", c->kernel->name, hg_error());
        return SI_ILLEGAL_ADDRESS;
    case SI_MATMUL: return si_blas_run(c->args);
    case SI_RECORD: c->event->done = c->ticket; return 0;
    case SI_GRAPH:
        for (i = 0; i < c->graph->n; i++)
            if ((code = si_execute(&c->graph->commands[i])) != 0) return code;
        return 0;
    default: return 0;
    }
}

/* Whether the next command of a stream may run. */
static bool si_may_run(const si_stream *s) {
    const si_command *c = &s->commands[s->first];
    return c->kind != SI_WAIT || c->event->done >= c->ticket;
}

static void si_drop_all(const si_context *in) {
    si_stream *s;
    for (s = si.streams; s; s = s->next)
        while (s->in == in && s->first < s->n) si_command_free(&s->commands[s->first++]);
}

static void si_run_one(si_stream *s) {
    si_command c = s->commands[s->first++];
    int code;
    if (si.may_open && c.kind != SI_RECORD && c.kind != SI_WAIT) si_protect(true);
    code = si_execute(&c);
    si_command_free(&c);
    if (!code) return;
    s->in->lost = si_is_fatal(code) ? code : SI_ILLEGAL_ADDRESS;
    si_drop_all(s->in);
}

/* Runs a stream until its first `n` commands are done, what they wait for before. */
static bool si_run(si_stream *s, size_t n, int depth) {
    while (s->first < s->n && s->first < n && !s->in->lost) {
        si_stream *other = si.streams;
        if (!si_may_run(s)) {
            si_stream *of = s->commands[s->first].recorded;
            size_t before = of ? of->first : 0, own = s->first;
            if (depth > 8 || !of || of == s) return false;
            si_run(of, before + 1, depth + 1);
            if (!s->in->lost && of->first == before && s->first == own) return false;
            continue;
        }
        for (; other && si_random() % 4; other = other->next) {}
        if (other && !si.order.late && other != s && other->first < other->n && si_may_run(other) && si_random() % 2) si_run_one(other);
        else si_run_one(s);
    }
    return true;
}

/* Copies to the host that nothing is before: they come too soon where something should be. */
static void si_run_ahead(void) {
    si_stream *s;
    if (!si.order.late) return;
    si_reach(true);
    for (s = si.streams; s; s = s->next)
        while (s->first < s->n && si_may_run(s)) {
            const si_command *c = &s->commands[s->first];
            if (c->kind != SI_WAIT && c->kind != SI_RECORD && (c->kind != SI_COPY || c->value != SI_FROM_DEVICE)) break;
            si_run_one(s);
        }
    si_reach(false);
}

static int si_stream_sync(si_stream *s) {
    if (!si_known_stream(s)) return SI_INVALID_HANDLE;
    if (s->capture) {
        s->capture_broken = true;
        return SI_CAPTURE_UNSUPPORTED;
    }
    si_reach(true);
    if (!si_run(s, s->n, 0)) si_violation("a stream waits for ever");
    si_reach(false);
    si_run_ahead();
    si_clock_until(s->ready);
    return s->in->lost;
}

static int si_event_sync(si_event *e) {
    bool good = true;
    if (!si_known_event(e)) return SI_INVALID_HANDLE;
    si_reach(true);
    while (good && !e->in->lost && e->done < e->recorded) good = si_run(e->stream, e->stream->first + 1, 0);
    si_reach(false);
    if (!good) si_violation("an event waits for ever");
    si_run_ahead();
    si_clock_until(e->time);
    return e->in->lost;
}

static int si_copy(void *to, const void *from, size_t bytes, int how, si_stream *s) {
    const si_memory *a = si_find(to, bytes), *b = si_find(from, bytes);
    si_command c;
    int code;
    if (!si_known_stream(s)) return SI_INVALID_HANDLE;
    if (!a || !b || a->pinned != (how == SI_FROM_DEVICE) || b->pinned != (how == SI_TO_DEVICE)) {
        si_violation("a copy of %zu bytes between places that are not %s", bytes,
                     how == SI_ON_DEVICE ? "on the device" : how == SI_TO_DEVICE ? "pinned and on the device" : "on the device and pinned");
        return SI_INVALID;
    }
    memset(&c, 0, sizeof(c));
    c.kind = SI_COPY;
    c.value = how;
    c.to = to;
    c.from = from;
    c.bytes = bytes;
    if (how == SI_FROM_DEVICE && !s->capture) memset(to, SI_POISON, bytes);
    if (how != SI_ON_DEVICE) si_spend(s, how == SI_FROM_DEVICE ? 'D' : 'U', (double)bytes * si.clock.byte_s);
    code = si_enqueue(s, &c);
    si_run_ahead();
    return code;
}

static int si_fill(void *to, int value, size_t bytes, si_stream *s) {
    const si_memory *a = si_find(to, bytes);
    si_command c;
    if (!si_known_stream(s)) return SI_INVALID_HANDLE;
    if (!a || a->pinned) {
        si_violation("a fill of %zu bytes that are not on the device", bytes);
        return SI_INVALID;
    }
    memset(&c, 0, sizeof(c));
    c.kind = SI_FILL;
    c.to = to;
    c.value = value;
    c.bytes = bytes;
    return si_enqueue(s, &c);
}

static int si_launch(const si_function *function, const unsigned *grid, const unsigned *block, unsigned shared, si_stream *s, void **params) {
    si_command c;
    uint64_t threads = (uint64_t)block[0] * block[1] * block[2];
    const si_kernel *kernel = function->kernel;
    int i;
    if (!si_known_stream(s)) return SI_INVALID_HANDLE;
    if (function->in != si_current()) si_violation("kernel %s is of another context", kernel->name);
    memset(&c, 0, sizeof(c));
    for (i = 0; i < 3; i++) {
        c.grid[i] = grid[i];
        c.block[i] = block[i];
    }
    if (!params || block[1] != 1 || block[2] != 1 || threads < 1 || threads > 1024 || !grid[0] || !grid[1] || !grid[2] || grid[1] > 65535 || grid[2] != 1 ||
        (int)shared > (function->more ? function->more : si.device.shared)) {
        si_violation("kernel %s: a launch of %ux%ux%u blocks of %u threads, %u bytes shared", kernel->name, grid[0], grid[1], grid[2],
                     (unsigned)threads, shared);
        return SI_INVALID;
    }
    c.kind = SI_LAUNCH;
    c.kernel = kernel;
    c.shared = shared;
    c.args = (unsigned char *)malloc(kernel->args_bytes ? kernel->args_bytes : 1);
    if (!c.args) return SI_OUT_OF_MEMORY;
    memcpy(c.args, params[0], kernel->args_bytes);
    si_spend(s, 'K', si.clock.kernel_s);
    i = si_enqueue(s, &c);
    if (i) si_command_free(&c);
    return i;
}

static int si_stream_new(si_stream **out) {
    si_stream *s = (si_stream *)calloc(1, sizeof(*s));
    if (!s) return SI_OUT_OF_MEMORY;
    s->in = si_current();
    s->next = si.streams;
    *out = si.streams = s;
    return 0;
}

static int si_stream_free(si_stream *s) {
    si_stream **place = &si.streams;
    si_event *e;
    if (!si_known_stream(s)) return SI_INVALID_HANDLE;
    if (s->first < s->n) si_must_rest("a stream is destroyed");
    while (s->first < s->n) si_command_free(&s->commands[s->first++]);
    while (*place != s) place = &(*place)->next;
    *place = s->next;
    for (e = si.events; e; e = e->next)
        if (e->stream == s) e->stream = NULL;
    free(s->commands);
    free(s);
    return 0;
}

static int si_event_new(si_event **out) {
    si_event *e = (si_event *)calloc(1, sizeof(*e));
    if (!e) return SI_OUT_OF_MEMORY;
    e->in = si_current();
    e->next = si.events;
    *out = si.events = e;
    return 0;
}

static int si_event_free(si_event *e) {
    si_event **place = &si.events;
    if (!si_known_event(e)) return SI_INVALID_HANDLE;
    if (e->done < e->recorded && !e->in->lost && si_pending()) si_violation("an event is destroyed before it came");
    while (*place != e) place = &(*place)->next;
    *place = e->next;
    free(e);
    return 0;
}

static int si_event_record(si_event *e, si_stream *s) {
    si_command c;
    if (!si_known_event(e) || !si_known_stream(s)) return SI_INVALID_HANDLE;
    memset(&c, 0, sizeof(c));
    c.kind = SI_RECORD;
    c.event = e;
    c.ticket = ++e->recorded;
    e->stream = s;
    e->time = s->ready > si.clock.now ? s->ready : si.clock.now;
    return si_enqueue(s, &c);
}

static int si_event_wait(si_stream *s, si_event *e) {
    si_command c;
    if (!si_known_event(e) || !si_known_stream(s)) return SI_INVALID_HANDLE;
    if (e->done < e->recorded && si.waits++ == si.order.skip) return 0;
    if (s->ready < e->time) s->ready = e->time;
    memset(&c, 0, sizeof(c));
    c.kind = SI_WAIT;
    c.event = e;
    c.ticket = e->recorded;
    c.recorded = e->stream;
    return si_enqueue(s, &c);
}

/* ---- Graphs. ---- */

static int si_graph_new(si_graph **out, bool is_exec) {
    si_graph *g = (si_graph *)calloc(1, sizeof(*g));
    if (!g) return SI_OUT_OF_MEMORY;
    g->in = si_current();
    g->is_exec = is_exec;
    g->next = si.graphs;
    *out = si.graphs = g;
    return 0;
}

/* Its device memory is taken, or given back. */
static void si_graph_weighs(const si_graph *g, int sign) {
    si.bytes_used += (size_t)sign * g->bytes;
    si.graph_bytes += (size_t)sign * g->bytes;
    if (si.most_graph_bytes < si.graph_bytes) si.most_graph_bytes = si.graph_bytes;
}

static int si_graph_free(si_graph *g, bool is_exec) {
    si_graph **place = &si.graphs;
    size_t i;
    if (!si_known_graph(g, is_exec)) return SI_INVALID_HANDLE;
    if (is_exec) si_must_rest("a graph is destroyed");
    si_graph_weighs(g, -1);
    while (*place != g) place = &(*place)->next;
    *place = g->next;
    for (i = 0; i < g->n; i++) si_command_free(&g->commands[i]);
    free(g->commands);
    free(g);
    return 0;
}

static int si_capture_begin(si_stream *s) {
    if (!si_known_stream(s)) return SI_INVALID_HANDLE;
    if (s->capture) return SI_CAPTURE_UNSUPPORTED;
    s->capture_broken = false;
    return si_graph_new(&s->capture, false);
}

static int si_capture_end(si_stream *s, si_graph **out) {
    *out = NULL;
    if (!si_known_stream(s)) return SI_INVALID_HANDLE;
    if (!s->capture) return SI_CAPTURE_UNSUPPORTED;
    *out = s->capture;
    s->capture = NULL;
    if (!s->capture_broken) return 0;
    si_graph_free(*out, false);
    *out = NULL;
    return SI_CAPTURE_UNSUPPORTED;
}

static int si_graph_instantiate(si_graph **out, const si_graph *g) {
    size_t i, bytes = 0;
    int code;
    *out = NULL;
    if (!si_known_graph(g, false)) return SI_INVALID_HANDLE;
    for (i = 0; i < g->n; i++) bytes += g->commands[i].kind == SI_LAUNCH ? si.device.node_bytes : 0;
    if (bytes > si.device.memory - si.bytes_used) return SI_OUT_OF_MEMORY;
    if ((code = si_graph_new(out, true)) != 0) return code;
    (*out)->bytes = bytes;
    si_graph_weighs(*out, 1);
    for (i = 0; i < g->n; i++) {
        si_command c = g->commands[i];
        if (c.args) {
            size_t bytes = c.kernel ? c.kernel->args_bytes : c.bytes;
            c.args = (unsigned char *)malloc(bytes + 1);
            if (!c.args) return SI_OUT_OF_MEMORY;
            memcpy(c.args, g->commands[i].args, bytes);
        }
        if (!si_push(&(*out)->commands, &(*out)->n, &(*out)->capacity, &c)) return SI_OUT_OF_MEMORY;
    }
    return 0;
}

static int si_graph_launch(si_graph *g, si_stream *s) {
    si_command c;
    size_t i;
    if (!si_known_graph(g, true) || !si_known_stream(s)) return SI_INVALID_HANDLE;
    if (si.device.graph_error) return si.device.graph_error;
    si.graph_launches++;
    for (i = 0; i < g->n; i++) {
        const si_memory *to = g->commands[i].kind == SI_COPY ? si_find(g->commands[i].to, g->commands[i].bytes) : NULL;
        if (to && to->pinned) memset(g->commands[i].to, SI_POISON, g->commands[i].bytes);
        if (g->commands[i].kind == SI_LAUNCH) si_spend(s, 'K', si.clock.kernel_s);
    }
    memset(&c, 0, sizeof(c));
    c.kind = SI_GRAPH;
    c.graph = g;
    return si_enqueue(s, &c);
}

/* ---- Modules: the code inside is not looked at. ---- */

static int si_module_load(void **out, const void *image) {
    const char *bytes = (const char *)image;
    *out = NULL;
    if (!image) return SI_INVALID;
    if (si.device.reject_binaries && memcmp(bytes, "\177ELF", 4) == 0) return SI_NO_BINARY;
    si_current()->modules++;
    *out = si_current();
    return 0;
}

static int si_module_free(void *module) {
    si_context *in = si_current();
    if (module != in || in->modules < 1) {
        si_violation("a module that was not loaded in this context");
        return SI_INVALID_HANDLE;
    }
    si_must_rest("a module is unloaded");
    memset(in->functions, 0, sizeof(in->functions));
    in->modules--;
    return 0;
}

static int si_function_of(void **out, void *module, const char *name) {
    si_context *in = si_current();
    size_t i;
    *out = NULL;
    if (module != in) return SI_INVALID_HANDLE;
    for (i = 0; i < sizeof(si_kernels) / sizeof(si_kernels[0]); i++)
        if (strcmp(si_kernels[i].name, name) == 0) {
            in->functions[i].kernel = &si_kernels[i];
            in->functions[i].in = in;
            *out = &in->functions[i];
        }
    return *out ? 0 : SI_NOT_FOUND;
}

static int si_device_name(char *to, int size) {
    snprintf(to, (size_t)size, "%s", si.device.name);
    return 0;
}

static int si_mem_info(size_t *free_bytes, size_t *total) {
    *total = si.device.memory;
    *free_bytes = si.device.memory - si.bytes_used;
    *free_bytes -= si.device.cached < *free_bytes ? si.device.cached : *free_bytes;
    return 0;
}

static int si_is_ready(si_event *e) {
    if (!si_known_event(e)) return SI_INVALID_HANDLE;
    return e->done >= e->recorded ? 0 : SI_NOT_READY;
}

/* ================================================================================================
   The functions of libcuda.so.1
   ================================================================================================ */

#define BEGIN                      \
    do {                           \
        int begin_ = si_begin();   \
        if (begin_) return begin_; \
    } while (0)
#define ENTER                              \
    do {                                   \
        int enter_ = si_enter(__func__);   \
        if (enter_) return enter_;         \
    } while (0)

int cuInit(unsigned flags) {
    BEGIN;
    si.started = true;
    return flags ? SI_INVALID : 0;
}
int cuDriverGetVersion(int *version) {
    BEGIN;
    *version = si.device.driver;
    return 0;
}
int cuDeviceGetCount(int *n) {
    BEGIN;
    *n = 1;
    return 0;
}
int cuDeviceGet(int *device, int index) {
    BEGIN;
    *device = index;
    return index == 0 ? 0 : SI_INVALID_DEVICE;
}
int cuDeviceGetName(char *to, int size, int device) {
    (void)device;
    BEGIN;
    return si_device_name(to, size);
}
int cuDeviceGetAttribute(int *value, int attribute, int device) {
    (void)device;
    BEGIN;
    switch (attribute) {
    case 8: *value = si.device.shared; return 0;
    case 10: *value = si.device.warp; return 0;
    case 16: *value = si.device.processors; return 0;
    case 18: *value = si.device.integrated; return 0;
    case 75: *value = si.device.major; return 0;
    case 76: *value = si.device.minor; return 0;
    case 97: *value = si.device.shared_most; return 0;
    default: si_violation("attribute %d", attribute); return SI_INVALID;
    }
}
int cuDeviceTotalMem_v2(size_t *bytes, int device) {
    (void)device;
    BEGIN;
    *bytes = si.device.memory;
    return 0;
}
int cuDevicePrimaryCtxRetain(void **context, int device) {
    (void)device;
    BEGIN;
    si.retained++;
    *context = &si_primary;
    return 0;
}
/* What is still in a context goes with it; without an error before, nothing should be. */
static void si_context_empty(si_context *in) {
    si_memory *m, *next_memory;
    si_event *e, *next_event;
    si_graph *g, *next_graph;
    si_stream *s, *next_stream;
    int n = si_live_in(in);
    if (n && !in->lost && !(si.fail_at >= 0 && si.calls > si.fail_at)) si_violation("%d objects are left in a context", n);
    si_stack[si_depth++] = in;
    si_drop_all(in);
    for (g = si.graphs; g; g = next_graph) {
        next_graph = g->next;
        if (g->in == in) si_graph_free(g, g->is_exec);
    }
    for (e = si.events; e; e = next_event) {
        next_event = e->next;
        if (e->in == in) e->done = e->recorded, si_event_free(e);
    }
    for (s = si.streams; s; s = next_stream) {
        next_stream = s->next;
        if (s->in == in) si_stream_free(s);
    }
    for (m = si.memory; m; m = next_memory) {
        next_memory = m->next;
        if (m->in == in) si_free(m->at, m->pinned);
    }
    in->modules = 0;
    si_depth--;
}
int cuDevicePrimaryCtxRelease_v2(int device) {
    (void)device;
    if (--si.retained < 0) si_violation("the context is released too often");
    if (si.retained == 0) si_context_empty(&si_primary);
    return si_begin();
}
int cuCtxCreate_v2(void **context, unsigned flags, int device) {
    si_context *c;
    BEGIN;
    if (flags || device != 0) return SI_INVALID;
    c = (si_context *)calloc(1, sizeof(*c));
    if (!c) return SI_OUT_OF_MEMORY;
    c->next = si.contexts;
    si.contexts = c;
    if (si_depth == SI_DEEPEST - 1) si_violation("contexts are pushed too deep");
    else si_stack[si_depth++] = c; /* a new one is current */
    *context = c;
    return 0;
}
static bool si_known_context(const void *context) {
    const si_context *c;
    for (c = si.contexts; c; c = c->next)
        if (c == context) return true;
    return context == &si_primary && si.retained > 0;
}
int cuCtxDestroy_v2(void *context) {
    si_context **place = &si.contexts, *c;
    int i;
    while (*place && *place != context) place = &(*place)->next;
    c = *place;
    if (!c) {
        si_violation("a context is destroyed that was not created");
        return SI_INVALID_CONTEXT;
    }
    for (i = 0; i < si_depth; i++)
        if (si_stack[i] == c) si_violation("a context is destroyed that is pushed");
    si_context_empty(c);
    *place = c->next;
    free(c);
    return si_begin();
}
int cuCtxPushCurrent_v2(void *context) {
    BEGIN;
    if (!si_known_context(context) || si_depth == SI_DEEPEST - 1) return SI_INVALID_CONTEXT;
    si_stack[si_depth++] = (si_context *)context;
    return 0;
}
int cuCtxPopCurrent_v2(void **context) {
    *context = si_current();
    if (si_depth < 1) si_violation("a context is popped that was not pushed");
    else si_depth--;
    return si_begin();
}
int cuMemGetInfo_v2(size_t *free_bytes, size_t *total) {
    ENTER;
    return si_mem_info(free_bytes, total);
}
int cuMemAlloc_v2(void **out, size_t bytes) {
    ENTER;
    return si_alloc(out, bytes, false);
}
int cuMemFree_v2(void *at) {
    int code = si_free(at, false), begin = si_enter(__func__);
    return begin ? begin : code;
}
int cuMemHostAlloc(void **out, size_t bytes, unsigned flags) {
    (void)flags;
    ENTER;
    return si_alloc(out, bytes, true);
}
int cuMemFreeHost(void *at) {
    int code = si_free(at, true), begin = si_enter(__func__);
    return begin ? begin : code;
}
int cuMemcpyHtoDAsync_v2(void *to, const void *from, size_t bytes, void *stream) {
    ENTER;
    return si_copy(to, from, bytes, SI_TO_DEVICE, (si_stream *)stream);
}
int cuMemcpyDtoHAsync_v2(void *to, void *from, size_t bytes, void *stream) {
    ENTER;
    return si_copy(to, from, bytes, SI_FROM_DEVICE, (si_stream *)stream);
}
int cuMemcpyDtoDAsync_v2(void *to, void *from, size_t bytes, void *stream) {
    ENTER;
    return si_copy(to, from, bytes, SI_ON_DEVICE, (si_stream *)stream);
}
int cuMemsetD8Async(void *to, unsigned char value, size_t bytes, void *stream) {
    ENTER;
    return si_fill(to, value, bytes, (si_stream *)stream);
}
int cuStreamCreate(void **stream, unsigned flags) {
    (void)flags;
    ENTER;
    return si_stream_new((si_stream **)(void *)stream);
}
int cuStreamDestroy_v2(void *stream) {
    int code = si_stream_free((si_stream *)stream), begin = si_enter(__func__);
    return begin ? begin : code;
}
int cuStreamSynchronize(void *stream) {
    ENTER;
    return si_stream_sync((si_stream *)stream);
}
int cuStreamWaitEvent(void *stream, void *event, unsigned flags) {
    (void)flags;
    ENTER;
    return si_event_wait((si_stream *)stream, (si_event *)event);
}
int cuEventCreate(void **event, unsigned flags) {
    (void)flags;
    ENTER;
    return si_event_new((si_event **)(void *)event);
}
int cuEventDestroy_v2(void *event) {
    int code = si_event_free((si_event *)event), begin = si_enter(__func__);
    return begin ? begin : code;
}
int cuEventRecord(void *event, void *stream) {
    ENTER;
    return si_event_record((si_event *)event, (si_stream *)stream);
}
int cuEventSynchronize(void *event) {
    ENTER;
    return si_event_sync((si_event *)event);
}
int cuEventQuery(void *event) {
    ENTER;
    return si_is_ready((si_event *)event);
}
int cuModuleLoadData(void **module, const void *image) {
    ENTER;
    return si_module_load(module, image);
}
int cuModuleUnload(void *module) {
    int code = si_module_free(module), begin = si_enter(__func__);
    return begin ? begin : code;
}
int cuModuleGetFunction(void **function, void *module, const char *name) {
    ENTER;
    return si_function_of(function, module, name);
}
int cuFuncSetAttribute(void *function, int attribute, int value) {
    si_function *f = (si_function *)function;
    ENTER;
    if (attribute != 8 || value > si.device.shared_most || f->in != si_current()) return SI_INVALID;
    f->more = value;
    return 0;
}
int cuLaunchKernel(void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared,
                   void *stream, void **params, void **extra) {
    unsigned grid[3], block[3];
    ENTER;
    grid[0] = gx, grid[1] = gy, grid[2] = gz;
    block[0] = bx, block[1] = by, block[2] = bz;
    if (extra) return SI_INVALID;
    return si_launch((const si_function *)function, grid, block, shared, (si_stream *)stream, params);
}
/* As fg__gpu_launch_config: the stream, then attributes, of which only 6 is known (the launch may begin early; here it does not). */
typedef struct si_launch_config {
    unsigned grid[3], block[3], shared_bytes;
    void *stream;
    const struct {
        int id, unused;
        union {
            int allowed;
            char bytes[64];
        } value;
    } *attributes;
    unsigned n_attributes;
} si_launch_config;

int cuLaunchKernelEx(const void *given, void *function, void **params, void **extra) {
    const si_launch_config *config = (const si_launch_config *)given;
    ENTER;
    if (extra || config->n_attributes != 1 || config->attributes[0].id != 6 || config->attributes[0].value.allowed != 1) return SI_INVALID;
    return si_launch((const si_function *)function, config->grid, config->block, config->shared_bytes, (si_stream *)config->stream, params);
}
int cuStreamBeginCapture_v2(void *stream, int mode) {
    (void)mode;
    ENTER;
    return si_capture_begin((si_stream *)stream);
}
int cuStreamEndCapture(void *stream, void **graph) {
    int code = si_capture_end((si_stream *)stream, (si_graph **)(void *)graph), begin = si_enter(__func__);
    if (begin && *graph) {
        si_graph_free((si_graph *)*graph, false);
        *graph = NULL;
    }
    return begin ? begin : code;
}
int cuGraphInstantiateWithFlags(void **exec, void *graph, unsigned long long flags) {
    ENTER;
    return flags ? SI_INVALID : si_graph_instantiate((si_graph **)(void *)exec, (const si_graph *)graph);
}
int cuGraphLaunch(void *exec, void *stream) {
    ENTER;
    return si_graph_launch((si_graph *)exec, (si_stream *)stream);
}
int cuGraphExecDestroy(void *exec) {
    int code = si_graph_free((si_graph *)exec, true), begin = si_enter(__func__);
    return begin ? begin : code;
}
int cuGraphDestroy(void *graph) {
    int code = si_graph_free((si_graph *)graph, false), begin = si_enter(__func__);
    return begin ? begin : code;
}
int cuGetErrorName(int code, const char **name) {
    *name = code == SI_OUT_OF_MEMORY ? "CUDA_ERROR_OUT_OF_MEMORY" : code == SI_ILLEGAL_ADDRESS ? "CUDA_ERROR_ILLEGAL_ADDRESS" : "an error";
    return 0;
}

/* ================================================================================================
   The functions of libamdhip64.so; a device in place of a context
   ================================================================================================ */

int hipInit(unsigned flags) { return cuInit(flags); }
int hipDriverGetVersion(int *version) {
    BEGIN;
    *version = si.device.driver >= 11040 && si.device.driver < 50000000 ? 60140093 : si.device.driver;
    return 0;
}
int hipGetDeviceCount(int *n) { return cuDeviceGetCount(n); }
int hipDeviceGet(int *device, int index) { return cuDeviceGet(device, index); }
int hipDeviceGetName(char *to, int size, int device) { return cuDeviceGetName(to, size, device); }
int hipDeviceGetAttribute(int *value, int attribute, int device) {
    (void)device;
    BEGIN;
    switch (attribute) {
    case 16: *value = si.device.integrated; return 0;
    case 63: *value = si.device.processors; return 0;
    case 74: *value = si.device.shared; return 0;
    case 87: *value = si.device.warp; return 0;
    default: si_violation("attribute %d", attribute); return SI_INVALID;
    }
}
int hipDeviceTotalMem(size_t *bytes, int device) { return cuDeviceTotalMem_v2(bytes, device); }
int hipGetDevicePropertiesR0600(void *properties, int device) {
    (void)device;
    BEGIN;
    memset(properties, 0, 1472);
    snprintf((char *)properties, 256, "%s", si.device.name);
    snprintf((char *)properties + 1160, 256, "%s:sramecc+:xnack-", si.device.isa);
    return 0;
}
/* The thread's device is 7 until a backend chooses 0: it must be as before when a call returns. These two never fail, for without
   them nothing can be freed. */
int hipGetDevice(int *device) {
    *device = si_hip_device;
    return 0;
}
int hipSetDevice(int device) {
    si_hip_device = device;
    si_depth = device == 0 ? 1 : 0;
    return 0;
}
int hipMemGetInfo(size_t *free_bytes, size_t *total) { return cuMemGetInfo_v2(free_bytes, total); }
int hipMalloc(void **out, size_t bytes) { return cuMemAlloc_v2(out, bytes); }
int hipFree(void *at) { return cuMemFree_v2(at); }
int hipHostMalloc(void **out, size_t bytes, unsigned flags) { return cuMemHostAlloc(out, bytes, flags); }
int hipHostFree(void *at) { return cuMemFreeHost(at); }
int hipMemcpyHtoDAsync(void *to, void *from, size_t bytes, void *stream) { return cuMemcpyHtoDAsync_v2(to, from, bytes, stream); }
int hipMemcpyDtoHAsync(void *to, void *from, size_t bytes, void *stream) { return cuMemcpyDtoHAsync_v2(to, from, bytes, stream); }
int hipMemcpyDtoDAsync(void *to, void *from, size_t bytes, void *stream) { return cuMemcpyDtoDAsync_v2(to, from, bytes, stream); }
int hipMemsetD8Async(void *to, unsigned char value, size_t bytes, void *stream) { return cuMemsetD8Async(to, value, bytes, stream); }
int hipStreamCreateWithFlags(void **stream, unsigned flags) { return cuStreamCreate(stream, flags); }
int hipStreamDestroy(void *stream) { return cuStreamDestroy_v2(stream); }
int hipStreamSynchronize(void *stream) { return cuStreamSynchronize(stream); }
int hipStreamWaitEvent(void *stream, void *event, unsigned flags) { return cuStreamWaitEvent(stream, event, flags); }
int hipEventCreateWithFlags(void **event, unsigned flags) { return cuEventCreate(event, flags); }
int hipEventDestroy(void *event) { return cuEventDestroy_v2(event); }
int hipEventRecord(void *event, void *stream) { return cuEventRecord(event, stream); }
int hipEventSynchronize(void *event) { return cuEventSynchronize(event); }
int hipEventQuery(void *event) { return cuEventQuery(event); }
int hipModuleLoadData(void **module, const void *image) { return cuModuleLoadData(module, image); }
int hipModuleUnload(void *module) { return cuModuleUnload(module); }
int hipModuleGetFunction(void **function, void *module, const char *name) { return cuModuleGetFunction(function, module, name); }
int hipModuleLaunchKernel(void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared,
                          void *stream, void **params, void **extra) {
    return cuLaunchKernel(function, gx, gy, gz, bx, by, bz, shared, stream, params, extra);
}
int hipStreamBeginCapture(void *stream, int mode) { return cuStreamBeginCapture_v2(stream, mode); }
int hipStreamEndCapture(void *stream, void **graph) { return cuStreamEndCapture(stream, graph); }
int hipGraphInstantiateWithFlags(void **exec, void *graph, unsigned long long flags) { return cuGraphInstantiateWithFlags(exec, graph, flags); }
int hipGraphLaunch(void *exec, void *stream) { return cuGraphLaunch(exec, stream); }
int hipGraphExecDestroy(void *exec) { return cuGraphExecDestroy(exec); }
int hipGraphDestroy(void *graph) { return cuGraphDestroy(graph); }

/* ================================================================================================
   The functions of libcublasLt.so, libhipblaslt.so and libhiprtc.so
   ================================================================================================ */

#include "standin_blas.h"
#include "standin_rtc.h"
