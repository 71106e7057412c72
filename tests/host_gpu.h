/* host_gpu.h: executes GPU kernels (backends/cuda/kernels.cuh) on the host, to find what is wrong with them. Workgroups run one
   after another, the threads of one as fibers in a random order, with warps of 32 or 64 lanes. A launch fails, with a message, on
     - an access to device memory outside of every allocation, or one that is not aligned;
     - an access to shared memory outside of what the kernel declared, or a read of what no thread wrote;
     - two accesses of different threads to a word of shared memory, at least one a write, without a barrier (or, among the lanes
       of a group of 32, a group's sync or shuffle) between them: a race, in whatever order the fibers happened to run;
     - a read of what an asynchronous copy has not brought yet: copies land at the wait, not before;
     - a barrier, sync, shuffle or matrix product that not all threads concerned reach, or at different lines;
     - a product of a warpgroup without its fence, whose operands were not published by those who wrote them and brought over a
       barrier, are written before it has landed, or lie where its descriptor cannot mean; one that nobody waits for. They read
       their operands and land their sums at the wait, not before: until then sums, and operands in registers, are NaN, and must
       not be touched.

   hg.left_out and hg.left_at name a step of a kernel (the number of its kind) that its threads leave out, to see whether that is found.

   Memory that kernels may use comes from hg_alloc, filled with NaN. hg_launch runs a kernel; hg_error says what was wrong. */
#ifndef HOST_GPU_H
#define HOST_GPU_H

#include <stdarg.h>

enum { HG_THREADS = 512, HG_SHARED_DECLARED = 49152, HG_SHARED = 6 * 49152, HG_STACK = 65536, HG_ASYNC = 128 };
enum { HG_WG = 128, HG_WG_OPS = 32, HG_WG_SUMS = 2 }; /* threads of a warpgroup; its products, and sums, that may be under way */
enum { HG_HALVES, HG_BFLOATS };          /* what they multiply */
enum { HG_NOBODY = -1, HG_SEVERAL = -2 }; /* instead of a thread */
enum { HG_NO_STEP, HG_BARRIER, HG_ASYNC_WAIT, HG_PUBLISH, HG_FENCE, HG_COMMIT, HG_WAIT, HG_STEPS }; /* what can be left out */
enum { HG_READY, HG_AT_BARRIER, HG_AT_GROUP, HG_AT_WARP, HG_DONE };

/* What happened to a word of shared memory. Times count barriers of the workgroup, and syncs of each group within. */
typedef struct hg_word {
    int16_t writer, reader;           /* threads; HG_SEVERAL: lanes of a group since its last sync */
    uint32_t write_barrier, read_barrier, write_sync, read_sync;
    uint32_t read_groups;             /* groups that read it since barrier read_barrier, a bit each */
    uint32_t write_published, reading; /* the writer's publishings before; products under way that read it */
    bool atomic;                      /* what wrote it last was an atomic addition: others may do so, too, before a barrier */
} hg_word;

/* A copy that has not landed. */
typedef struct hg_copy {
    char *to;
    const char *from;
    int bytes, group;
} hg_copy;

/* A thread's products of warpgroups; numbers count them from the start of the kernel. */
typedef struct hg_wg_state {
    uint32_t issued, landed, committed, waited;
    bool fenced;
    uint32_t ends[HG_WG_OPS];         /* `issued` at each commit */
    struct {
        float *at, kept[128];         /* where they land (NULL: none); what they are so far */
        int n;
        uint32_t under_way;
    } sums[HG_WG_SUMS];
    struct {
        int sums;
        uint32_t *held, kept[4];      /* an operand in registers; NULL: none */
    } ops[HG_WG_OPS];
} hg_wg_state;

/* Small, as the scheduler goes over all threads again and again: what is long is behind the pointers. */
typedef struct hg_thread {
    void *sp;
    int state, line, mask;
    uint32_t value, received;
    int steps[HG_STEPS], n_async, async_group; /* async_group: of copies from now on */
    uint32_t published, published_before; /* publishings, in all and before the last barrier */
    size_t shared_used;
    hg_copy *async; /* HG_ASYNC */
    hg_wg_state *wg;
    char *stack;
} hg_thread;

/* A product of a warpgroup: 64 rows at `a`, or in registers, by n rows at `b`, of 16 numbers; or by n columns, of 16 rows. */
typedef struct hg_product {
    uint32_t number, landed; /* 0: none, else its number + 1; threads it has landed for */
    uint64_t a, b;
    int line, n, kind;
    bool held, read;         /* held: `a` is in registers, and `b` of columns */
    float x[64][16], y[256][16];
} hg_product;

typedef struct hg_memory {
    char *data;
    size_t bytes;
} hg_memory;

/* The machine. There is one. */
static struct {
    int width;                    /* lanes of a warp */
    uint64_t seed;                /* of the order in which fibers run */
    int current, block_x, block_y;
    int n_threads;
    hg_thread threads[HG_THREADS];
    hg_copy copies[HG_THREADS][HG_ASYNC];
    hg_wg_state wg[HG_THREADS];
    void *scheduler;              /* its stack pointer while a fiber runs */
    void (*kernel)(const void *args);
    const void *args;
    uint32_t barriers, syncs[HG_THREADS / 32];
    char *shared;
    size_t shared_bytes;          /* declared by the running kernel */
    hg_word words[HG_SHARED / 4];
    float tiles[HG_THREADS / 32][512];
    hg_product products[HG_THREADS / HG_WG][HG_WG_OPS];
    size_t more_bytes;            /* of shared memory beyond what is declared, as the launch asks for */
    int left_out, left_at;        /* HG_BARRIER to HG_WAIT; HG_NO_STEP: none */
    bool wrong_products;          /* a device that reads the pieces of operands' rows as they stand, and bytes without their signs */
    hg_memory *memories;
    int n_memories, max_memories;
    const char *last_start;       /* of the allocation that was used last */
    size_t last_bytes;
    bool failed;
    char message[256];
    uint64_t switches;
} hg;

static const char *hg_error(void) { return hg.message; }

/* Whether the step that comes now is the one to leave out. */
static bool hg_leaves_out(int what) {
    int at = hg.threads[hg.current].steps[what]++;
    return what == hg.left_out && at == hg.left_at;
}

/* ---- Fibers: a stack each, and a switch that keeps what the calling convention says a call keeps. x86's ends with a jump: a return would
   be predicted from the calls before it, which were another fiber's, and tests took 1.2 times as long. ---- */

static void hg_fiber_main(void);
static void hg_fail(const char *format, ...);

#if defined(__x86_64__) && defined(__GNUC__) && !defined(_WIN32) && !defined(__TINYC__)
void hg_switch(void **save, void *to);
__asm__(".text\n.p2align 4\n"
#ifdef __APPLE__
        "_hg_switch:\n"
#else
        ".type hg_switch, @function\nhg_switch:\n"
#endif
        "pushq %rbp\npushq %rbx\npushq %r12\npushq %r13\npushq %r14\npushq %r15\n"
        "movq %rsp, (%rdi)\nmovq %rsi, %rsp\n"
        "popq %r15\npopq %r14\npopq %r13\npopq %r12\npopq %rbx\npopq %rbp\npopq %rcx\njmp *%rcx\n");
static void hg_fiber_start(hg_thread *thread) {
    void (*start)(void) = hg_fiber_main;
    void **sp = (void **)(void *)(thread->stack + HG_STACK - 64);
    memset(sp - 6, 0, 8 * sizeof(void *));
    memcpy(sp, &start, sizeof(start)); /* where the switch returns to; stacks are 16n + 8 at a function's start */
    thread->sp = sp - 6;
}
#elif defined(__aarch64__) && defined(__GNUC__) && !defined(_WIN32)
void hg_switch(void **save, void *to);
__asm__(".text\n.p2align 4\n"
#ifdef __APPLE__
        "_hg_switch:\n"
#else
        ".type hg_switch, %function\nhg_switch:\n"
#endif
        "sub sp, sp, #160\n"
        "stp x19, x20, [sp]\nstp x21, x22, [sp, #16]\nstp x23, x24, [sp, #32]\nstp x25, x26, [sp, #48]\n"
        "stp x27, x28, [sp, #64]\nstp x29, x30, [sp, #80]\n"
        "stp d8, d9, [sp, #96]\nstp d10, d11, [sp, #112]\nstp d12, d13, [sp, #128]\nstp d14, d15, [sp, #144]\n"
        "mov x9, sp\nstr x9, [x0]\nmov sp, x1\n"
        "ldp x19, x20, [sp]\nldp x21, x22, [sp, #16]\nldp x23, x24, [sp, #32]\nldp x25, x26, [sp, #48]\n"
        "ldp x27, x28, [sp, #64]\nldp x29, x30, [sp, #80]\n"
        "ldp d8, d9, [sp, #96]\nldp d10, d11, [sp, #112]\nldp d12, d13, [sp, #128]\nldp d14, d15, [sp, #144]\n"
        "add sp, sp, #160\nret\n");
static void hg_fiber_start(hg_thread *thread) {
    void (*start)(void) = hg_fiber_main;
    char *sp = thread->stack + HG_STACK - 64 - 160;
    memset(sp, 0, 160);
    memcpy(sp + 88, &start, sizeof(start)); /* x30 */
    thread->sp = sp;
}
#elif defined(_WIN32)
static void *hg_fiber; /* that runs: GetCurrentFiber of some headers does not compile without a warning */
static void hg_switch(void **save, void *to) {
    *save = hg_fiber;
    hg_fiber = to;
    SwitchToFiber(to);
}
static void WINAPI hg_fiber_run(void *unused) {
    (void)unused;
    hg_fiber_main();
}
static void hg_fiber_start(hg_thread *thread) {
    if (!IsThreadAFiber()) hg_fiber = ConvertThreadToFiber(NULL);
    if (thread->sp) DeleteFiber(thread->sp);
    thread->sp = CreateFiber(HG_STACK, hg_fiber_run, NULL);
}
#else
#include <ucontext.h>
static ucontext_t hg_contexts[HG_THREADS + 1];
static void hg_switch(void **save, void *to) {
    if (!*save) *save = &hg_contexts[HG_THREADS];
    swapcontext((ucontext_t *)*save, (ucontext_t *)to);
}
static void hg_fiber_start(hg_thread *thread) {
    ucontext_t *context = &hg_contexts[thread - hg.threads];
    getcontext(context);
    context->uc_stack.ss_sp = thread->stack;
    context->uc_stack.ss_size = HG_STACK;
    context->uc_link = NULL;
    makecontext(context, hg_fiber_main, 0);
    thread->sp = context;
}
#endif

/* Back to the scheduler, which may never come back here. */
static void hg_leave(void) {
    hg.switches++;
    hg_switch(&hg.threads[hg.current].sp, hg.scheduler);
}

static void hg_fiber_main(void) {
    hg.kernel(hg.args);
    if (hg.threads[hg.current].wg->landed != hg.threads[hg.current].wg->issued) hg_fail("a warpgroup's product that nobody has waited for");
    hg.threads[hg.current].state = HG_DONE;
    for (;;) hg_leave();
}

/* The first thing that goes wrong is kept, and ends the launch. */
static void hg_fail(const char *format, ...) {
    va_list list;
    if (!hg.failed) {
        int n = snprintf(hg.message, sizeof(hg.message), "workgroup %d,%d, thread %d: ", hg.block_x, hg.block_y, hg.current);
        va_start(list, format);
        vsnprintf(hg.message + n, sizeof(hg.message) - (size_t)n, format, list);
        va_end(list);
        hg.failed = true;
    }
    for (;;) hg_leave();
}

/* ---- Device memory. ---- */

static bool hg_find(const char *p, size_t bytes) {
    int i;
    for (i = 0; i < hg.n_memories; i++) {
        hg_memory *m = &hg.memories[i];
        if (p >= m->data && (size_t)(p - m->data) < m->bytes && bytes <= m->bytes - (size_t)(p - m->data)) {
            hg.last_start = m->data;
            hg.last_bytes = m->bytes;
            return true;
        }
    }
    return false;
}

/* Checks an access of `bytes` bytes, a power of two. */
static void hg_global(const void *pointer, size_t bytes) {
    const char *p = (const char *)pointer;
    size_t offset = (size_t)(p - hg.last_start);
    if ((uintptr_t)p % bytes) hg_fail("%d bytes of device memory that are not aligned", (int)bytes);
    if (p >= hg.last_start && offset < hg.last_bytes && bytes <= hg.last_bytes - offset) return;
    if (!hg_find(p, bytes)) hg_fail("%d bytes outside of device memory", (int)bytes);
}

/* Memory for kernels, full of NaN, at an address that is a multiple of 256; NULL: there is no more. */
static void *hg_alloc(size_t bytes) {
    hg_memory *m;
    char *whole;
    if (hg.n_memories == hg.max_memories) {
        int n = hg.max_memories ? 2 * hg.max_memories : 64;
        hg_memory *more = (hg_memory *)realloc(hg.memories, (size_t)n * sizeof(hg_memory));
        if (!more) return NULL;
        hg.memories = more;
        hg.max_memories = n;
    }
    whole = (char *)malloc(bytes + 256 + sizeof(void *));
    if (!whole) return NULL;
    m = &hg.memories[hg.n_memories++];
    m->data = (char *)(((uintptr_t)whole + sizeof(void *) + 255) / 256 * 256);
    m->bytes = bytes;
    memcpy(m->data - sizeof(void *), &whole, sizeof(void *));
    memset(m->data, 0xFF, bytes);
    return m->data;
}

static void hg_free(void *memory) {
    int i;
    char *whole;
    for (i = 0; i < hg.n_memories; i++)
        if (hg.memories[i].data == (char *)memory) {
            hg.memories[i] = hg.memories[--hg.n_memories];
            memcpy(&whole, (char *)memory - sizeof(void *), sizeof(void *));
            free(whole);
            break;
        }
    hg.last_start = NULL;
    hg.last_bytes = 0;
}

static uint64_t hg_address(const void *memory) { return (uint64_t)(uintptr_t)memory; }

/* ---- Shared memory. ---- */

/* Every thread declares the same arrays in the same order. */
static void *hg_shared(size_t bytes) {
    hg_thread *thread = &hg.threads[hg.current];
    char *p = hg.shared + thread->shared_used;
    thread->shared_used += (bytes + 15) / 16 * 16;
    if (thread->shared_used > HG_SHARED_DECLARED) hg_fail("%d bytes of shared memory", (int)thread->shared_used);
    if (thread->shared_used > hg.shared_bytes) hg.shared_bytes = thread->shared_used;
    return p;
}

/* What the launch asks for beyond that, from a multiple of 1024 bytes on; nothing is declared after it. */
static void *hg_shared_more(void) {
    hg_thread *thread = &hg.threads[hg.current];
    char *p = hg.shared + (thread->shared_used + 1023) / 1024 * 1024;
    thread->shared_used = (size_t)(p - hg.shared) + hg.more_bytes;
    if (thread->shared_used > hg.shared_bytes) hg.shared_bytes = thread->shared_used;
    return p;
}

static hg_word *hg_shared_words(const void *pointer, size_t bytes) {
    const char *p = (const char *)pointer;
    if (p < hg.shared || (size_t)(p - hg.shared) > hg.threads[hg.current].shared_used ||
        bytes > hg.threads[hg.current].shared_used - (size_t)(p - hg.shared))
        hg_fail("%d bytes outside of shared memory", (int)bytes);
    if ((uintptr_t)p % bytes) hg_fail("%d bytes of shared memory that are not aligned", (int)bytes);
    return &hg.words[(p - hg.shared) / 4];
}

/* Whether what `thread` did at these times is not known to come before what the current thread does now. */
static bool hg_unordered(int thread, uint32_t barrier, uint32_t sync) {
    if (thread < 0 || thread == hg.current || barrier != hg.barriers) return false;
    return thread / 32 != hg.current / 32 || sync == hg.syncs[thread / 32];
}

static void hg_read(const void *p, size_t bytes) {
    hg_word *w = hg_shared_words(p, bytes), *end = w + bytes / 4;
    int group = hg.current / 32;
    for (; w < end; w++) {
        if (w->writer < 0) hg_fail("a read of shared memory (word %d) that nobody has written", (int)(w - hg.words));
        if (w->atomic && w->write_barrier == hg.barriers) hg_fail("a race: a read of shared memory (word %d) that threads add to", (int)(w - hg.words));
        if (hg_unordered(w->writer, w->write_barrier, w->write_sync))
            hg_fail("a race: thread %d wrote shared memory (word %d) that this one reads", (int)w->writer, (int)(w - hg.words));
        if (w->read_barrier != hg.barriers || w->reader == HG_NOBODY) w->read_groups = 0;
        if (w->read_groups != 1u << group || w->read_sync != hg.syncs[group] || w->reader == hg.current) w->reader = (int16_t)hg.current;
        else w->reader = HG_SEVERAL;
        w->read_groups |= 1u << group;
        w->read_barrier = hg.barriers;
        w->read_sync = hg.syncs[group];
    }
}

static void hg_write(const void *p, size_t bytes) {
    hg_word *w = hg_shared_words(p, bytes), *end = w + bytes / 4;
    int group = hg.current / 32;
    for (; w < end; w++) {
        if (w->reading) hg_fail("a write of shared memory (word %d) that a warpgroup's product still reads", (int)(w - hg.words));
        if (w->atomic && w->write_barrier == hg.barriers) hg_fail("a race: a write of shared memory (word %d) that threads add to", (int)(w - hg.words));
        w->atomic = false;
        if (hg_unordered(w->writer, w->write_barrier, w->write_sync))
            hg_fail("a race: thread %d wrote shared memory (word %d) that this one writes", (int)w->writer, (int)(w - hg.words));
        if (w->reader != HG_NOBODY && w->read_barrier == hg.barriers &&
            ((w->read_groups & ~(1u << group)) || (w->reader != hg.current && w->read_sync == hg.syncs[group])))
            hg_fail("a race: another thread (%d) read shared memory (word %d) that this one writes", (int)w->reader, (int)(w - hg.words));
        w->writer = (int16_t)hg.current;
        w->write_barrier = hg.barriers;
        w->write_sync = hg.syncs[group];
        w->write_published = hg.threads[hg.current].published;
        w->reader = HG_NOBODY;
    }
}

/* An atomic addition: between two barriers there are only these, in any order. */
static void hg_atomic(const void *p) {
    hg_word *w = hg_shared_words(p, 4);
    if (w->writer < 0) hg_fail("an addition to shared memory (word %d) that nobody has written", (int)(w - hg.words));
    if (w->atomic && w->write_barrier == hg.barriers) return;
    hg_write(p, 4);
    w->atomic = true;
}

/* ---- Asynchronous copies. Until the wait the old content is gone and the new one not there. ---- */

static void hg_async_copy(void *to, const void *from, int bytes) {
    hg_thread *thread = &hg.threads[hg.current];
    hg_word *w = hg_shared_words(to, (size_t)bytes);
    int i;
    hg_global(from, (size_t)bytes);
    if (thread->n_async == HG_ASYNC) hg_fail("too many asynchronous copies without a wait");
    hg_write(to, (size_t)bytes);
    memset(to, 0xFF, (size_t)bytes);
    for (i = 0; i < bytes / 4; i++) w[i].writer = HG_NOBODY;
    thread->async[thread->n_async].to = (char *)to;
    thread->async[thread->n_async].from = (const char *)from;
    thread->async[thread->n_async].bytes = bytes;
    thread->async[thread->n_async++].group = thread->async_group;
}

static void hg_async_commit(void) { hg.threads[hg.current].async_group++; }

/* Those of groups before `group` land. */
static void hg_async_land(int group) {
    hg_thread *thread = &hg.threads[hg.current];
    int i, n = 0;
    if (hg_leaves_out(HG_ASYNC_WAIT)) return;
    for (i = 0; i < thread->n_async; i++)
        if (thread->async[i].group < group) {
            hg_write(thread->async[i].to, (size_t)thread->async[i].bytes);
            memcpy(thread->async[i].to, thread->async[i].from, (size_t)thread->async[i].bytes);
        } else thread->async[n++] = thread->async[i];
    thread->n_async = n;
}

static void hg_async_wait(void) { hg_async_land(hg.threads[hg.current].async_group + 1); }
static void hg_async_wait_for(int n) { hg_async_land(hg.threads[hg.current].async_group - n); }

/* ---- Half floats, as the hardware converts them. ---- */

static float hg_half_to_float(uint16_t h) {
    uint32_t m = h & 0x7FFFu, bits;
    float x;
    if (m < 0x400u) {
        x = (float)m * 5.9604644775390625e-8f;
        return h & 0x8000u ? -x : x;
    }
    bits = (uint32_t)(h & 0x8000u) << 16 | ((m << 13) + (m >= 0x7C00u ? 224u << 23 : 112u << 23));
    memcpy(&x, &bits, 4);
    return x;
}

/* To the nearest, ties to even. */
static uint16_t hg_float_to_half(float value) {
    uint32_t bits, sign, m;
    memcpy(&bits, &value, 4);
    sign = bits >> 16 & 0x8000u;
    m = bits & 0x7FFFFFFFu;
    if (m > 0x7F800000u) return (uint16_t)(sign | 0x7E00u);
    if (m >= 0x477FF000u) return (uint16_t)(sign | 0x7C00u);
    if (m >= 0x38800000u) return (uint16_t)(sign | (m - (112u << 23) + 0x0FFFu + (m >> 13 & 1u)) >> 13);
    return (uint16_t)(sign | (uint32_t)rint(fabs((double)value) * 16777216.0));
}

/* ---- Products of warpgroups. ---- */

static int hg_wg_row(int thread, int i) { return thread % HG_WG / 32 * 16 + thread % 32 / 4 + i / 2 % 2 * 8; }
static int hg_wg_col(int thread, int i) { return i / 4 * 8 + thread % 4 * 2 + i % 2; }

/* What this thread wrote is for products to read, after the next barrier. */
static void hg_publish(void) { hg.threads[hg.current].published += !hg_leaves_out(HG_PUBLISH); }

/* An operand: `rows` rows of `pieces` times 8 numbers. Where piece c of row r is. */
typedef struct hg_operand {
    uint64_t descriptor;
    int rows, pieces;
    bool columns; /* they are what is multiplied */
} hg_operand;

static char *hg_wg_piece(const hg_operand *o, int r, int c) {
    uint32_t start = (uint32_t)(o->descriptor & 0x3FFF) << 4, group = (uint32_t)(o->descriptor >> 32 & 0x3FFF) << 4;
    uint32_t apart = (uint32_t)(o->descriptor >> 16 & 0x3FFF) << 4;
    uint32_t at = start + (uint32_t)(r / 8) * group + (uint32_t)(r % 8) * 128 + (uint32_t)(c % 8) * 16 + (uint32_t)(c / 8) * apart;
    if (o->descriptor >> 62 != 1 || (o->descriptor >> 49 & 7)) hg_fail("an operand whose rows are not ordered in pieces of 128 bytes");
    if (start % 1024 >= (o->columns ? 1 : 128)) hg_fail("an operand that does not begin at a multiple of 1024 bytes, but at %d", (int)start);
    if (!hg.wrong_products) at ^= at >> 3 & 0x70;
    return hg.shared + at;
}

static hg_operand hg_wg_rows(uint64_t descriptor, int rows) {
    hg_operand o = {descriptor, rows, 2, false};
    return o;
}

static hg_operand hg_wg_right(const hg_product *p) {
    hg_operand o = {p->b, 16, p->n / 8, true};
    return p->held ? o : hg_wg_rows(p->b, p->n);
}

/* A product begins to read an operand. */
static void hg_wg_begin(hg_operand o) {
    int r, i;
    for (r = 0; r < o.rows; r++)
        for (i = 0; i < 4 * o.pieces; i++) {
            hg_word *w = hg_shared_words(hg_wg_piece(&o, r, i / 4), 16) + i % 4;
            int at = (int)(w - hg.words);
            if (w->writer < 0) hg_fail("a warpgroup's product of shared memory (word %d) that nobody has written", at);
            if (w->write_barrier == hg.barriers) hg_fail("a race: thread %d wrote shared memory (word %d) of a warpgroup's product", (int)w->writer, at);
            if (hg.threads[w->writer].published_before <= w->write_published)
                hg_fail("thread %d did not publish shared memory (word %d) of a warpgroup's product", (int)w->writer, at);
            w->reading++;
        }
}

/* And has read it. */
static void hg_wg_end(hg_operand o) {
    int r, i;
    for (r = 0; r < o.rows; r++)
        for (i = 0; i < 4 * o.pieces; i++) {
            hg_word *w = hg_shared_words(hg_wg_piece(&o, r, i / 4), 16) + i % 4;
            if (w->read_barrier != hg.barriers || w->reader == HG_NOBODY) w->read_groups = 0;
            w->read_groups |= 15u << hg.current / HG_WG * 4;
            w->reader = HG_SEVERAL;
            w->read_barrier = hg.barriers;
            w->reading--;
        }
}

static float hg_wg_number(int kind, uint32_t bits) {
    float x;
    if (kind == HG_HALVES) return hg_half_to_float((uint16_t)bits);
    bits <<= 16;
    memcpy(&x, &bits, 4);
    return x;
}

/* Into rows of what is multiplied. */
static void hg_wg_read(hg_operand o, int kind, float (*to)[16]) {
    int r, k;
    for (r = 0; r < o.rows; r++)
        for (k = 0; k < 8 * o.pieces; k++) {
            float x = hg_wg_number(kind, ((const uint16_t *)(const void *)hg_wg_piece(&o, r, k / 8))[k % 8]);
            if (o.columns) to[k][r] = x;
            else to[r][k] = x;
        }
}

static void hg_wg_fence(void) {
    if (!hg_leaves_out(HG_FENCE)) hg.threads[hg.current].wg->fenced = true;
}

/* Registers of products under way are NaN of these bits, which any arithmetic changes. */
static void hg_wg_hide(void *registers, int n) {
    const uint32_t hidden = 0xFFBFFFFFu;
    int i;
    for (i = 0; i < n; i++) memcpy((char *)registers + 4 * i, &hidden, 4);
}

static bool hg_wg_hidden(const void *registers, int n) {
    uint32_t word;
    int i;
    for (i = 0; i < n; i++) {
        memcpy(&word, (const char *)registers + 4 * i, 4);
        if (word != 0xFFBFFFFFu) return false;
    }
    return true;
}

/* The place of n sums that are under way, from now on; with `more` 0 they begin at 0. */
static int hg_wg_sums_of(hg_thread *t, float *sums, int n, int more) {
    int i, place = -1;
    for (i = HG_WG_SUMS - 1; i >= 0; i--) {
        if (t->wg->sums[i].at == sums) {
            if (t->wg->sums[i].n != n || !more) hg_fail("sums of a warpgroup begin anew while products of them are under way");
            t->wg->sums[i].under_way++;
            return i;
        }
        if (!t->wg->sums[i].at) place = i;
    }
    if (place < 0) hg_fail("products of a warpgroup with yet other sums while some are under way");
    t->wg->sums[place].at = sums;
    t->wg->sums[place].n = n;
    t->wg->sums[place].under_way = 1;
    memset(t->wg->sums[place].kept, 0, sizeof(t->wg->sums[place].kept));
    if (more) memcpy(t->wg->sums[place].kept, sums, (size_t)n * sizeof(float));
    hg_wg_hide(sums, n);
    return place;
}

/* Every thread of the group brings the same product. */
static hg_product *hg_wg_issue(uint64_t a, uint64_t b, int n, int kind, bool held, int line) {
    hg_thread *t = &hg.threads[hg.current];
    hg_product *p = &hg.products[hg.current / HG_WG][t->wg->issued % HG_WG_OPS];
    if (!t->wg->fenced) hg_fail("a warpgroup's product without a fence before it");
    if (hg.width != 32) hg_fail("a warpgroup's product of warps of %d", hg.width);
    if (p->number == 0) {
        p->number = t->wg->issued + 1;
        p->a = a;
        p->b = b;
        p->line = line;
        p->n = n;
        p->kind = kind;
        p->landed = 0;
        p->held = held;
        p->read = false;
        if (!held) hg_wg_begin(hg_wg_rows(a, 64));
        hg_wg_begin(hg_wg_right(p));
    } else if (p->number != t->wg->issued + 1) hg_fail("too many products of a warpgroup without a wait");
    else if (p->a != a || p->b != b || p->line != line) hg_fail("divergence: threads of a warpgroup bring different products");
    t->wg->ops[t->wg->issued++ % HG_WG_OPS].held = NULL;
    return p;
}

/* 64 rows by n rows; with `more` 0 sums begin at 0. */
static void hg_wg_mma(float *sums, uint64_t a, uint64_t b, int n, int kind, int more, int line) {
    hg_thread *t = &hg.threads[hg.current];
    (void)hg_wg_issue(a, b, n, kind, false, line);
    t->wg->ops[(t->wg->issued - 1) % HG_WG_OPS].sums = hg_wg_sums_of(t, sums, n / 2, more);
}

static void hg_warp_sync(int line);

/* 64 rows in registers, of which a thread has those of its sums, in pairs, by n columns. */
static void hg_wg_mma_held(float *sums, const uint32_t *a, uint64_t b, int n, int kind, int line) {
    hg_thread *t = &hg.threads[hg.current];
    hg_product *p = hg_wg_issue(0, b, n, kind, true, line);
    uint32_t op = (t->wg->issued - 1) % HG_WG_OPS;
    int i;
    if (hg_wg_hidden(a, 4)) hg_fail("an operand in registers that a warpgroup's product under way has");
    for (i = 0; i < 8; i++)
        p->x[hg_wg_row(hg.current, i)][hg_wg_col(hg.current, i)] = hg_wg_number(kind, a[i / 2] >> 16 * (i % 2) & 0xFFFFu);
    memcpy(t->wg->ops[op].kept, a, 4 * sizeof(uint32_t));
    t->wg->ops[op].held = (uint32_t *)(uintptr_t)a;
    hg_wg_hide(t->wg->ops[op].held, 4);
    t->wg->ops[op].sums = hg_wg_sums_of(t, sums, n / 2, 1);
    hg_warp_sync(line);
}

static void hg_wg_commit(void) {
    hg_thread *t = &hg.threads[hg.current];
    if (hg_leaves_out(HG_COMMIT)) return;
    if (t->wg->committed - t->wg->waited == HG_WG_OPS) hg_fail("too many groups of products without a wait");
    t->wg->ends[t->wg->committed++ % HG_WG_OPS] = t->wg->issued;
}

static void hg_wg_land(hg_thread *t) {
    uint32_t op = t->wg->landed % HG_WG_OPS;
    hg_product *p = &hg.products[hg.current / HG_WG][op];
    int place = t->wg->ops[op].sums, i, k;
    float *kept = t->wg->sums[place].kept;
    uint32_t *held = t->wg->ops[op].held;
    if (!hg_wg_hidden(t->wg->sums[place].at, t->wg->sums[place].n)) hg_fail("sums were touched while a warpgroup's product was under way");
    if (held && !hg_wg_hidden(held, 4)) hg_fail("an operand in registers was touched while a warpgroup's product was under way");
    if (!p->read) {
        if (!p->held) hg_wg_read(hg_wg_rows(p->a, 64), p->kind, p->x);
        hg_wg_read(hg_wg_right(p), p->kind, p->y);
        p->read = true;
    }
    for (i = 0; i < p->n / 2; i++) {
        const float *x = p->x[hg_wg_row(hg.current, i)], *y = p->y[hg_wg_col(hg.current, i)];
        for (k = 0; k < 16; k++) kept[i] += x[k] * y[k];
    }
    if (held) memcpy(held, t->wg->ops[op].kept, 4 * sizeof(uint32_t));
    t->wg->sums[place].under_way--;
    t->wg->landed++;
    if (++p->landed < HG_WG) return;
    if (!p->held) hg_wg_end(hg_wg_rows(p->a, 64));
    hg_wg_end(hg_wg_right(p));
    p->number = 0;
}

/* All groups of products but the last n have landed. */
static void hg_wg_wait(uint32_t n) {
    hg_thread *t = &hg.threads[hg.current];
    int i;
    if (hg_leaves_out(HG_WAIT)) return;
    while (t->wg->committed - t->wg->waited > n) {
        uint32_t end = t->wg->ends[t->wg->waited++ % HG_WG_OPS];
        while (t->wg->landed != end) hg_wg_land(t);
    }
    for (i = 0; i < HG_WG_SUMS; i++) {
        if (!t->wg->sums[i].at || t->wg->sums[i].under_way) continue;
        memcpy(t->wg->sums[i].at, t->wg->sums[i].kept, (size_t)t->wg->sums[i].n * sizeof(float));
        t->wg->sums[i].at = NULL;
        t->wg->fenced = false; /* sums may be used now */
    }
}

/* ---- Where threads wait for each other. ---- */

static void hg_wait_at(int state, int line) {
    hg.threads[hg.current].state = state;
    hg.threads[hg.current].line = line;
    hg_leave();
}

static void hg_barrier(int line) {
    if (!hg_leaves_out(HG_BARRIER)) hg_wait_at(HG_AT_BARRIER, line);
}
static void hg_warp_sync(int line) { hg_wait_at(HG_AT_WARP, line); }

static void hg_group_sync(int line) {
    hg.threads[hg.current].mask = -1;
    hg_wait_at(HG_AT_GROUP, line);
}

static uint32_t hg_shuffle_xor(uint32_t value, int mask, int line) {
    if (mask < 1 || mask > 31) hg_fail("a shuffle by %d", mask);
    hg.threads[hg.current].value = value;
    hg.threads[hg.current].mask = mask;
    hg_wait_at(HG_AT_GROUP, line);
    return hg.threads[hg.current].received;
}

/* Room for the operands of the warp's matrix product. */
static float *hg_warp_tile(void) { return hg.tiles[hg.current / hg.width]; }

/* Lets threads [first, first + n) go on when all of them wait in `state` at one place. */
static bool hg_release(int first, int n, int state) {
    int i, group;
    for (i = first; i < first + n; i++) {
        const hg_thread *thread = &hg.threads[i];
        if (thread->state != state || thread->line != hg.threads[first].line) return false;
        if (state == HG_AT_GROUP && thread->mask != hg.threads[first].mask) return false;
    }
    for (i = first; i < first + n; i++) {
        if (state == HG_AT_GROUP && hg.threads[i].mask > 0) hg.threads[i].received = hg.threads[i ^ hg.threads[i].mask].value;
        if (state == HG_AT_BARRIER) hg.threads[i].published_before = hg.threads[i].published;
        hg.threads[i].state = HG_READY;
    }
    if (state == HG_AT_BARRIER) hg.barriers++;
    else
        for (group = first / 32; group < (first + n) / 32; group++) hg.syncs[group]++;
    return true;
}

static bool hg_release_all(void) {
    bool any = false;
    int i;
    for (i = 0; i < hg.n_threads; i += 32) any |= hg_release(i, 32, HG_AT_GROUP);
    for (i = 0; i < hg.n_threads; i += hg.width) any |= hg_release(i, hg.width, HG_AT_WARP);
    return any || hg_release(0, hg.n_threads, HG_AT_BARRIER);
}

static uint32_t hg_random(void) {
    hg.seed = hg.seed * 6364136223846793005ull + 1442695040888963407ull;
    return (uint32_t)(hg.seed >> 33);
}

/* Runs every thread that can, in a random order: from a random one on, by random odd steps over a power of two. */
static bool hg_run_ready(void) {
    uint32_t size = 1, at = hg_random(), step = hg_random() | 1, i;
    bool any = false;
    while (size < (uint32_t)hg.n_threads) size *= 2;
    for (i = 0; i < size && !hg.failed; i++, at += step) {
        int t = (int)(at & (size - 1));
        if (t >= hg.n_threads || hg.threads[t].state != HG_READY) continue;
        hg.current = t;
        hg_switch(&hg.scheduler, hg.threads[t].sp);
        any = true;
    }
    return any;
}

/* Why nothing goes on. */
static void hg_explain(void) {
    static const char *const states[] = {"runs", "is at a barrier", "is at a group's sync or shuffle", "is at a matrix product", "has ended"};
    int i;
    for (i = 1; i < hg.n_threads; i++)
        if (hg.threads[i].state != hg.threads[0].state || hg.threads[i].line != hg.threads[0].line) break;
    i = i < hg.n_threads ? i : hg.n_threads - 1;
    snprintf(hg.message, sizeof(hg.message), "workgroup %d,%d: divergence: thread 0 %s (line %d), thread %d %s (line %d)", hg.block_x,
             hg.block_y, states[hg.threads[0].state], hg.threads[0].line, i, states[hg.threads[i].state], hg.threads[i].line);
    hg.failed = true;
}

static bool hg_all_done(void) {
    int i;
    for (i = 0; i < hg.n_threads; i++)
        if (hg.threads[i].state != HG_DONE) return false;
    return true;
}

static void hg_run_block(void) {
    size_t i;
    int t;
    for (i = 0; i < hg.shared_bytes / 4; i++) {
        hg.words[i].writer = hg.words[i].reader = HG_NOBODY;
        hg.words[i].reading = 0;
        hg.words[i].atomic = false;
    }
    for (i = 0; i < HG_THREADS / HG_WG * HG_WG_OPS; i++) hg.products[i / HG_WG_OPS][i % HG_WG_OPS].number = 0;
    memset(hg.shared, 0xFF, hg.shared_bytes);
    hg.shared_bytes = 0;
    for (t = 0; t < hg.n_threads; t++) {
        hg_thread *thread = &hg.threads[t];
        thread->state = HG_READY;
        thread->line = thread->n_async = thread->async_group = 0;
        thread->shared_used = 0;
        thread->published = thread->published_before = 0;
        thread->async = hg.copies[t];
        thread->wg = &hg.wg[t];
        if (thread->wg->issued || thread->wg->committed || thread->wg->fenced) memset(thread->wg, 0, sizeof(*thread->wg));
        memset(thread->steps, 0, sizeof(thread->steps));
        hg_fiber_start(thread);
    }
    for (;;) {
        hg_run_ready();
        if (hg.failed || hg_all_done()) return;
        if (!hg_release_all()) {
            hg_explain();
            return;
        }
    }
}

/* Frees what the machine has, but for the memory of hg_alloc. */
static void hg_close(void) {
    int i;
    for (i = 0; i < HG_THREADS; i++) {
        free(hg.threads[i].stack);
        hg.threads[i].stack = NULL;
    }
    free(hg.shared);
    hg.shared = NULL;
    if (hg.n_memories) return;
    free(hg.memories);
    hg.memories = NULL;
    hg.max_memories = 0;
}

static bool hg_open(void) {
    int i;
    if (hg.width != 64) hg.width = 32;
    hg.failed = false;
    hg.message[0] = 0;
    for (i = 0; i < HG_THREADS; i++)
        if (!hg.threads[i].stack && !(hg.threads[i].stack = (char *)malloc(HG_STACK))) return false;
    if (hg.shared) return true;
    hg.shared = (char *)malloc(HG_SHARED);
    hg.shared_bytes = HG_SHARED;
    return hg.shared != NULL;
}

/* Runs a kernel's workgroups in a random order, with `more_bytes` of shared memory; false: something was wrong, see hg_error. */
static bool hg_launch(void (*kernel)(const void *args), const void *args, uint32_t grid_x, uint32_t grid_y, uint32_t block,
                      uint32_t more_bytes) {
    uint32_t n = grid_x * grid_y, i, at, step = 1;
    if (!hg_open() || block < 1 || block > HG_THREADS || block % (uint32_t)hg.width || n < 1 || more_bytes > HG_SHARED - HG_SHARED_DECLARED - 1024) {
        snprintf(hg.message, sizeof(hg.message), "a launch of %u x %u workgroups of %u threads", grid_x, grid_y, block);
        return false;
    }
    hg.kernel = kernel;
    hg.args = args;
    hg.n_threads = (int)block;
    hg.more_bytes = more_bytes;
    at = hg_random() % n;
    if (n > 2 && hg_random() % 2) step = n - 1;
    for (i = 0; i < n && !hg.failed; i++, at = (at + step) % n) {
        hg.block_x = (int)(at % grid_x);
        hg.block_y = (int)(at / grid_x);
        hg_run_block();
    }
    if (hg.failed) hg_close(); /* fibers that stopped halfway leave their stacks as they are */
    return !hg.failed;
}

#endif
