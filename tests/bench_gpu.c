/* bench_gpu.c: times the GPU kernels one by one on a card, each beside the roof that bounds it.

       cc -O2 -o build/bench_gpu tests/bench_gpu.c -lpthread -lm -ldl
       build/bench_gpu                            all kernels, with the code that ./build.sh cuda built in
       build/bench_gpu --image other.cubin gemv   with other code; only kernels with a word in their name
       build/bench_gpu --early 0                  kernels begin only when the one before has ended, as those of --image always do
       build/bench_gpu --copy 3.0e12 --flops 8e14 the roofs, where they were measured otherwise
       build/bench_gpu --way 2 gemmwg             gemmwg in one of its ways (kernels.h), whatever the shape

   A line is a kernel, a shape, microseconds of a launch within a graph of many, and what that comes to: bytes of weights or of KV cache
   a second beside copies within the device's memory, operations a second beside those of products that read no memory. Weights take turns, so that no cache
   holds them; contents are random, and nothing is checked here: tests/test_gpu_host.c does that. */

#define FASTGEN_IMPLEMENTATION
#include "../fastgen.h"
#include "../backends/cuda/fg_cuda.h"

#include <stdio.h>

static fg__gpu_device *d;
static double copy_rate, flop_rate;
static const char *const *words;
static int n_words, only_way;

static void must(fg_result r) {
    if (r == FG_OK) return;
    fprintf(stderr, "bench_gpu: %s\n", fg_last_error());
    exit(1);
}

static void must_driver(int code) {
    if (!code) return;
    fprintf(stderr, "bench_gpu: driver error %d\n", code);
    exit(1);
}

static fg__gpu_pointer take(size_t bytes) {
    fg__gpu_range range;
    must(fg__gpu_take(d, bytes, &range));
    return range.at;
}

static void give(fg__gpu_pointer at) { must_driver(d->api.memory_free(at)); }

static void put(fg__gpu_pointer to, const void *from, size_t bytes) {
    fg__gpu_blocks blocks = fg__gpu_blocks_one(to, bytes);
    must(fg__gpu_send(d, &blocks, from));
    must(fg__gpu_copies_wait(d));
}

static uint32_t state = 1;
static uint32_t random_word(void) {
    state ^= state << 13;
    state ^= state >> 17;
    return state ^= state << 5;
}

static bool wanted(const char *name) {
    int i;
    for (i = 0; i < n_words; i++)
        if (strstr(name, words[i])) return true;
    return n_words == 0;
}

/* Launch i of what is timed: a kernel, or with `kernel` -1 a product of a library. */
static void launch(int kernel, const void *args, size_t bytes, int turns, int i) {
    char *at = (char *)(uintptr_t)args + bytes * (size_t)(i % turns);
    if (kernel < 0) must_driver(fg__gpu_blas_multiply(d, (const fg__gpu_blas_product *)(const void *)at));
    else must(fg__gpu_launch_now(d, kernel, at, false));
}

/* Seconds of a launch: `n` of them in a graph, with the arguments in turn; the median of nine. */
static double seconds(int kernel, const void *args, size_t bytes, int turns, int n) {
    void *graph, *exec;
    double taken[9], start;
    int i, j;
    launch(kernel, args, bytes, turns, 0);
    must_driver(d->api.stream_wait(d->compute));
    must_driver(d->api.capture_begin(d->compute, 2));
    for (i = 0; i < n; i++) launch(kernel, args, bytes, turns, i);
    must_driver(d->api.capture_end(d->compute, &graph));
    must_driver(d->api.graph_instantiate(&exec, graph, 0));
    for (i = -2; i < 9; i++) {
        start = fg__now();
        must_driver(d->api.graph_launch(exec, d->compute));
        must_driver(d->api.stream_wait(d->compute));
        if (i >= 0) taken[i] = fg__now() - start;
    }
    d->api.graph_exec_destroy(exec);
    d->api.graph_destroy(graph);
    for (i = 0; i < 9; i++)
        for (j = i + 1; j < 9; j++)
            if (taken[j] < taken[i]) start = taken[i], taken[i] = taken[j], taken[j] = start;
    return taken[4] / n;
}

static void line(const char *name, const char *shape, double s, double bytes, double flops) {
    printf("%-18s %-26s %9.2f us", name, shape, s * 1e6);
    if (bytes > 0) printf("  %7.0f GB/s %4.0f%%", bytes / s / 1e9, 100 * bytes / s / copy_rate);
    if (flops > 0) printf("  %7.1f TFLOP/s %4.0f%%", flops / s / 1e12, 100 * flops / s / flop_rate);
    printf("\n");
    fflush(stdout);
}

static const char *kernel_name(int kernel) {
    static const char *const names[FG_GPU_KERNEL_COUNT] = {
#define NAME(name, kind) #name,
        FG_GPU_KERNELS(NAME)
#undef NAME
    };
    return names[kernel];
}

/* ---- Products. ---- */

enum { MOST_ROWS = 2048, TURNS = 32 };

/* A weight of which there are several copies, and what its products read and write. */
typedef struct bench_weight {
    int type, n, k, turns;
    size_t bytes;
    fg_gpu_gemm_args args[TURNS];
} bench_weight;

static void weight_open(bench_weight *w, int type, int n, int k) {
    fg_gpu_layout layout = fg_gpu_layout_of(type, k);
    fg__gpu_pointer src = take((size_t)MOST_ROWS * (size_t)k * 4), acts = take((size_t)MOST_ROWS * (size_t)(k + FG_GPU_FRAGMENTS_ALIGN) * 2);
    fg__gpu_pointer scales = take(MOST_ROWS * 4), dst = take((size_t)MOST_ROWS * (size_t)n * 4), count = take(4), weights;
    uint32_t *host;
    size_t i;
    int t;
    w->type = type, w->n = n, w->k = k;
    w->bytes = (size_t)layout.stride * (size_t)n;
    w->turns = (int)FG__MIN(FG__MAX((300u << 20) / w->bytes + 1, 2), TURNS);
    weights = take(w->bytes * (size_t)w->turns);
    host = (uint32_t *)malloc(FG__MAX(w->bytes, (size_t)MOST_ROWS * (size_t)k * 4));
    for (i = 0; i < (size_t)MOST_ROWS * (size_t)k; i++) ((float *)(void *)host)[i] = (float)(random_word() >> 8) / 8388608.0f - 1.0f;
    put(src, host, (size_t)MOST_ROWS * (size_t)k * 4);
    for (i = 0; i < w->bytes / 4; i++) host[i] = random_word() & 0xBFFFBFFFu; /* no half of it is large */
    put(weights, host, w->bytes);
    for (t = 0; t < w->turns; t++) {
        fg_gpu_gemm_args *a = &w->args[t];
        memset(a, 0, sizeof(*a));
        a->weight = weights + w->bytes * (size_t)t;
        if (t > 0) must_driver(d->api.copy_on_device(a->weight, weights, w->bytes, d->compute));
        a->src = src, a->acts = acts, a->scales = scales, a->dst = dst, a->count = count;
        a->layout = layout;
        a->n = a->dst_stride = n;
        a->k = a->src_stride = k;
        a->acts_stride = fg_gpu_acts_stride(FG_GPU_ACTS_HALF, k);
        a->exponent = -4;
    }
    must_driver(d->api.stream_wait(d->compute));
    free(host);
}

static void weight_close(bench_weight *w) {
    const fg_gpu_gemm_args *a = &w->args[0];
    give(a->weight), give(a->src), give(a->acts), give(a->scales), give(a->dst), give(a->count);
}

static void acts_of(const fg_gpu_gemm_args *a, int format, int rows, bool shown) {
    fg_gpu_acts_args x;
    char shape[64];
    memset(&x, 0, sizeof(x));
    x.src = a->src, x.acts = a->acts, x.scales = a->scales, x.count = a->count;
    x.k = x.src_stride = a->k;
    x.acts_stride = fg_gpu_acts_stride(format, a->k);
    x.format = format;
    x.max_rows = rows;
    must(fg__gpu_launch_now(d, FG_GPU_KERNEL_acts, &x, false));
    snprintf(shape, sizeof(shape), "%d rows of %d", rows, a->k);
    if (shown) line("acts", shape, seconds(FG_GPU_KERNEL_acts, &x, sizeof(x), 1, 40), 6.0 * rows * a->k, 0);
}

static void product(bench_weight *w, int kernel, int rows) {
    int t, launches, format = kernel >= FG_GPU_KERNEL_skinny8_F16 ? fg_gpu_acts_fragments(w->type) : FG_GPU_ACTS_HALF;
    double s, flops = 2.0 * w->n * w->k * rows;
    char shape[64];
    if (!wanted(kernel_name(kernel))) return;
    put(w->args[0].count, &rows, 4);
    for (t = 0; t < w->turns; t++) {
        w->args[t].max_rows = rows, w->args[t].way = only_way, w->args[t].acts_stride = fg_gpu_acts_stride(format, w->k);
        if (kernel >= FG_GPU_KERNEL_skinny8_F16) w->args[t].across = fg_gpu_skinny_across(w->n, w->k, fg_gpu_skinny_cols(kernel));
    }
    if (kernel % FG_GPU_PER_WEIGHT >= FG_GPU_GEMM16 || kernel >= FG_GPU_KERNEL_rope_kv_F16) acts_of(&w->args[0], format, rows, w->type == FG_TYPE_BF16 && w->n == w->k);
    launches = (int)FG__MIN(FG__MAX(1e-3 / ((double)w->bytes / 2e12 + flops / 3e14), w->turns), 150);
    s = seconds(kernel, w->args, sizeof(w->args[0]), w->turns, launches);
    if (kernel < FG_GPU_KERNEL_rope_kv_F16 && kernel % FG_GPU_PER_WEIGHT == FG_GPU_GEMMWG) snprintf(shape, sizeof(shape), "%dx%d, %d rows, way %d", w->n, w->k, rows, fg_gpu_wg_way(&w->args[0]));
    else snprintf(shape, sizeof(shape), "%dx%d, %d rows", w->n, w->k, rows);
    line(kernel_name(kernel), shape, s, rows <= 128 ? (double)w->bytes : 0, rows >= 16 ? flops : 0);
}

/* What a product by the library consists of: halves of the weight, the product, what is done to it. */
static void library(bench_weight *w) {
    static const int rows[] = {128, 256, 512, 2048};
    bool expanded = fg__gpu_is_expanded((fg_type)w->type);
    int type = w->type == FG_TYPE_BF16 ? FG__GPU_BLAS_BF16 : FG__GPU_BLAS_F16, i, n = FG__MIN(w->n, fg__gpu_expanded_rows(d, w->k));
    fg__gpu_pointer halves = take((size_t)n * fg__gpu_expanded_stride(w->k) * 2);
    fg_gpu_gemm_args finish = w->args[0];
    fg_gpu_expand_args e;
    fg__gpu_blas_product p;
    char shape[64];
    fg__gpu_blas_open(d, type);
    memset(&e, 0, sizeof(e));
    memset(&p, 0, sizeof(p));
    e.weight = w->args[0].weight, e.dst = halves, e.layout = w->args[0].layout;
    e.n = n, e.k = w->k, e.dst_stride = (int32_t)fg__gpu_expanded_stride(w->k);
    snprintf(shape, sizeof(shape), "%dx%d", n, w->k);
    if (expanded)
        line(kernel_name(fg_gpu_expand_kernel(w->type)), shape, seconds(fg_gpu_expand_kernel(w->type), &e, sizeof(e), 1, 20),
             (double)n * (e.layout.stride + 2.0 * w->k), 0);
    p.type = type, p.n = n, p.k = w->k;
    p.weight = expanded ? halves : w->args[0].weight, p.acts = w->args[0].acts, p.out = w->args[0].dst;
    p.weight_stride = expanded ? e.dst_stride : w->args[0].layout.stride / 2, p.acts_stride = fg_gpu_acts_stride(FG_GPU_ACTS_HALF, w->k), p.out_stride = w->n;
    for (i = 0; i < FG__COUNT(rows) && fg__gpu_blas_has(d, type); i++) {
        put(finish.count, &rows[i], 4);
        acts_of(&w->args[0], FG_GPU_ACTS_HALF, rows[i], false);
        p.rows = finish.max_rows = rows[i], p.add = 0;
        snprintf(shape, sizeof(shape), "%dx%d, %d rows", n, w->k, rows[i]);
        line(type == FG__GPU_BLAS_BF16 ? "library_BF16" : "library_F16", shape, seconds(-1, &p, sizeof(p), 1, 20), 0, 2.0 * n * w->k * rows[i]);
        p.add = p.out, p.add_stride = p.out_stride;
        if (type == FG__GPU_BLAS_BF16) line("library_BF16 +", shape, seconds(-1, &p, sizeof(p), 1, 20), 0, 2.0 * n * w->k * rows[i]);
        finish.src = finish.dst, finish.src_stride = finish.dst_stride;
        if (expanded) line("finish", shape, seconds(FG_GPU_KERNEL_finish, &finish, sizeof(finish), 1, 20), 8.0 * w->n * rows[i], 0);
    }
    give(halves);
}

/* The kernel of so many rows that is not skinny. */
static int other_product(int type, int rows) {
    int which = fg_gpu_product_for(rows, 0);
    return fg_gpu_weight_kernel(type, which == FG_GPU_GEMM128 && d->attributes[FG__GPU_MAJOR] == 9 ? FG_GPU_GEMMWG : which);
}

static void products(int type) {
    static const int shapes[][2] = {{4096, 4096}, {6144, 4096}, {28672, 4096}, {4096, 14336}, {128256, 4096},
                                    {2048, 2048}, {2560, 2048}, {11264, 2048}, {2048, 5632}};
    static const int rows[] = {1, 2, 4, 8, 16, 32, 64, 128, 512, 2048};
    static bench_weight w;
    bool any = wanted("library");
    int i, j;
    for (j = 0; j < FG__COUNT(rows); j++) {
        int skinny = fg_gpu_skinny_kernel(type, rows[j]);
        any = any || (skinny >= 0 && wanted(kernel_name(skinny))) || wanted(kernel_name(other_product(type, rows[j])));
    }
    for (i = 0; i < FG__COUNT(shapes) && any; i++) {
        weight_open(&w, type, shapes[i][0], shapes[i][1]);
        for (j = 0; j < FG__COUNT(rows); j++) {
            if (i >= 4 && rows[j] != 1 && rows[j] != 8 && rows[j] != 32 && rows[j] != 512) continue;
            if (i == 4 && rows[j] > 128) continue;
            if (fg_gpu_skinny_kernel(type, rows[j]) >= 0) product(&w, fg_gpu_skinny_kernel(type, rows[j]), rows[j]);
            if (fg_gpu_skinny_kernel(type, rows[j]) < 0 || n_words) product(&w, other_product(type, rows[j]), rows[j]);
        }
        if (i < 4 && wanted("library")) library(&w);
        weight_close(&w);
    }
}

/* ---- Attention. ---- */

static void attention(int kv_type, int n_head, int n_kv_head, int dim, int seqs, int context, int queries) {
    int heads = n_head / n_kv_head, blocks_each = (context + 63) / 64, tokens = seqs * queries, kernel, i;
    bool wide = queries >= FG__GPU_WIDE_FROM;
    fg_gpu_attention_args a;
    fg_gpu_attn_counts n = {0, 0, 0};
    int32_t *cu_q = (int32_t *)malloc(sizeof(int32_t) * (size_t)(seqs + 1)), *kv_len = (int32_t *)malloc(sizeof(int32_t) * (size_t)seqs), counts[2];
    int32_t *table = (int32_t *)malloc(sizeof(int32_t) * (size_t)(seqs * blocks_each));
    size_t block = (size_t)fg_gpu_kv_block_bytes(kv_type, dim, n_kv_head, 64), bytes = block * 2 * (size_t)(seqs * blocks_each), w;
    fg_gpu_attn_item *items;
    fg_gpu_attn_merge *merges;
    uint32_t *noise = (uint32_t *)malloc(bytes);
    char shape[64], name[64];
    double s, flops = 0;
    memset(&a, 0, sizeof(a));
    kernel = fg_gpu_few_kernel(kv_type, dim);
    if (kernel < 0) kernel = fg_gpu_kv_kernel(kv_type, dim);
    if (wide) kernel = d->attributes[FG__GPU_MAJOR] == 9 ? fg_gpu_wide_wg_kernel(kv_type, dim) : fg_gpu_wide_kernel(kv_type, dim);
    for (i = 0; i <= seqs; i++) cu_q[i] = i * queries;
    for (i = 0; i < seqs; i++) kv_len[i] = context, flops += 4.0 * n_head * dim * queries * (context - queries / 2.0);
    for (i = 0; i < seqs * blocks_each; i++) table[i] = (i * 7919) % (seqs * blocks_each);
    for (w = 0; w < bytes / 4; w++) noise[w] = random_word() & 0xBFFFBFFF;
    for (i = 0; i < 2; i++) {
        int rows = wide ? fg_gpu_wide_rows(kernel) : FG_GPU_ATTN_ROWS;
        int split = wide ? fg_gpu_wide_split(kernel) : kernel >= FG_GPU_KERNEL_few64_F16 ? FG_GPU_FEW_SPLIT : FG_GPU_SPLIT;
        a.merge_tokens = FG__MAX(rows / heads, 1);
        if (i == 0) items = NULL, merges = NULL;
        else items = (fg_gpu_attn_item *)malloc(sizeof(*items) * (size_t)n.items), merges = (fg_gpu_attn_merge *)malloc(sizeof(*merges) * (size_t)(n.merges + 1));
        n.items = n.merges = n.partials = 0;
        fg_gpu_attn_add(seqs, cu_q, kv_len, heads, 0, rows, split, 1, INT32_MAX, &n, items, merges);
        if (i == 0) must_driver(n.items <= 0);
    }
    a.kv.k = take(bytes);
    a.kv.v = a.kv.k + block;
    a.kv.block_stride = 2 * block;
    a.kv.block_tokens = 64;
    a.kv.n_head = n_head, a.kv.n_kv_head = n_kv_head, a.kv.head_dim = dim;
    a.q_stride = a.dst_stride = n_head * dim;
    a.q = take((size_t)tokens * (size_t)a.q_stride * 4), a.dst = take((size_t)tokens * (size_t)a.q_stride * 4);
    a.table = take(sizeof(int32_t) * (size_t)(seqs * blocks_each)), a.items = take(sizeof(*items) * (size_t)n.items);
    a.merges = take(sizeof(*merges) * (size_t)(n.merges + 1)), a.count = take(8), a.merge_count = a.count + 4;
    a.partials = take((size_t)(n.partials + 1) * (size_t)n_kv_head * (size_t)(dim + 2) * 4);
    a.table_stride = blocks_each;
    a.max_items = n.items, a.max_merges = n.merges;
    a.scale = 0.1f;
    counts[0] = n.items, counts[1] = n.merges;
    put(a.kv.k, noise, bytes);
    put(a.q, noise, FG__MIN(bytes, (size_t)tokens * (size_t)a.q_stride * 4));
    put(a.table, table, sizeof(int32_t) * (size_t)(seqs * blocks_each));
    put(a.items, items, sizeof(*items) * (size_t)n.items);
    put(a.merges, merges, sizeof(*merges) * (size_t)(n.merges + 1));
    put(a.count, counts, 8);
    snprintf(shape, sizeof(shape), "%d of %d, %d seqs", queries, context, seqs);
    snprintf(name, sizeof(name), "%s/%d", kernel_name(kernel), heads);
    s = seconds(kernel, &a, sizeof(a), 1, 20);
    line(name, shape, s, wide ? 0 : (double)bytes, wide ? flops : 0);
    if (n.merges) line("combine", shape, seconds(FG_GPU_KERNEL_combine, &a, sizeof(a), 1, 20), (double)n.partials * n_kv_head * (dim + 2) * 4, 0);
    give(a.kv.k), give(a.q), give(a.dst), give(a.table), give(a.items), give(a.merges), give(a.count), give(a.partials);
    free(cu_q), free(kv_len), free(table), free(noise), free(items), free(merges);
}

/* ---- The small ones: what a launch costs. ---- */

static void small(int rows) {
    fg_gpu_norm_args norm;
    fg_gpu_act_mul_args act;
    fg__gpu_pointer room = take((size_t)rows * 32768 * 4), count = take(4), weight = take(65536), acts = take((size_t)rows * (14336 * 2 + 4));
    char shape[32];
    put(count, &rows, 4);
    memset(&norm, 0, sizeof(norm));
    norm.src = room, norm.dst = room + (uint64_t)rows * 16384, norm.weight = weight, norm.count = count;
    norm.n = norm.src_stride = norm.dst_stride = 4096;
    norm.max_rows = rows;
    norm.eps = 1e-5f;
    snprintf(shape, sizeof(shape), "%d rows of 4096", rows);
    line("norm", shape, seconds(FG_GPU_KERNEL_norm, &norm, sizeof(norm), 1, 200), 8.0 * rows * 4096, 0);
    norm.src2 = room + (uint64_t)rows * 32768;
    norm.src2_stride = 4096;
    line("norm +", shape, seconds(FG_GPU_KERNEL_norm, &norm, sizeof(norm), 1, 200), 16.0 * rows * 4096, 0);
    norm.src2 = 0;
    norm.acts = acts, norm.scales = acts + (uint64_t)rows * 14336 * 2, norm.acts_stride = 4096;
    line("norm, acts", shape, seconds(FG_GPU_KERNEL_norm, &norm, sizeof(norm), 1, 200), 10.0 * rows * 4096, 0);
    memset(&act, 0, sizeof(act));
    act.src = room, act.src2 = room + 14336 * 4, act.dst = room, act.count = count;
    act.n = 14336;
    act.src_stride = act.src2_stride = act.dst_stride = 28672;
    act.act = 1;
    act.max_rows = rows;
    snprintf(shape, sizeof(shape), "%d rows of 14336", rows);
    line("act_mul", shape, seconds(FG_GPU_KERNEL_act_mul, &act, sizeof(act), 1, 200), 12.0 * rows * 14336, 0);
    act.acts = acts, act.scales = norm.scales, act.acts_stride = 14336;
    line("act_rows", shape, seconds(FG_GPU_KERNEL_act_rows, &act, sizeof(act), 1, 200), 14.0 * rows * 14336, 0);
    give(room), give(count), give(weight), give(acts);
}

static void *read_all(const char *path) {
    FILE *file = fopen(path, "rb");
    char *bytes = (char *)calloc(1, 64 << 20);
    if (!file || !bytes || fread(bytes, 1, (64 << 20) - 1, file) == 0) fprintf(stderr, "bench_gpu: cannot read %s\n", path), exit(1);
    fclose(file);
    return bytes;
}

int main(int argc, char **argv) {
    static const int types[] = {FG_TYPE_BF16, FG_TYPE_Q8_0, FG_TYPE_Q4_K, FG_TYPE_Q6_K};
    fg_gpu_options options;
    fg_device_desc desc;
    fg_device *device;
    fg_roofs roofs;
    int i, rows;
    memset(&options, 0, sizeof(options));
    memset(&desc, 0, sizeof(desc));
    desc.options = &options;
    for (i = 1; i + 1 < argc && argv[i][0] == '-'; i += 2) {
        if (strcmp(argv[i], "--early") == 0) options.no_early = atoi(argv[i + 1]) == 0;
        else
        if (strcmp(argv[i], "--image") == 0) options.image = read_all(argv[i + 1]);
        else if (strcmp(argv[i], "--copy") == 0) copy_rate = atof(argv[i + 1]);
        else if (strcmp(argv[i], "--flops") == 0) flop_rate = atof(argv[i + 1]);
        else if (strcmp(argv[i], "--way") == 0) only_way = atoi(argv[i + 1]);
        else fprintf(stderr, "bench_gpu: no option %s\n", argv[i]), exit(2);
    }
    words = (const char *const *)argv + i, n_words = argc - i;
    must(fg_backend_cuda()->open(&desc, &device));
    d = (fg__gpu_device *)(void *)device;
    d->special_ready = d->attributes[FG__GPU_MAJOR] == 9; /* gemmwg is run here without its proof */
    must(fg_backend_cuda()->profile(device, &roofs));
    if (copy_rate == 0) copy_rate = roofs.read_bytes_per_s;
    if (flop_rate == 0) flop_rate = roofs.float_ops_per_s;
    must(fg__gpu_enter(d));
    printf("%s, %s: %.0f GB/s of copies, %.1f TFLOP/s\n", d->name, d->isa, roofs.read_bytes_per_s / 1e9, roofs.float_ops_per_s / 1e12);
    for (rows = 1; rows <= 512 && (wanted("norm") || wanted("act_mul") || wanted("act_rows")); rows *= 8) small(rows);
    for (i = 0; i < FG__COUNT(types); i++) products((int)types[i]);
    for (i = 1; i <= 128 && wanted("attention"); i *= i == 1 ? 8 : 4) {
        attention(FG_TYPE_F16, 32, 8, 128, i, 512, 1);
        attention(FG_TYPE_F16, 32, 8, 128, i, 4096, 1);
        attention(FG_TYPE_F16, 32, 4, 64, i, 512, 1);
    }
    for (i = 512; i <= 8192 && wanted("wide"); i *= 4) {
        attention(FG_TYPE_F16, 32, 8, 128, 1, i, 512);
        attention(FG_TYPE_F16, 32, 4, 64, 1, i, 512);
    }
    if (wanted("wide")) attention(FG_TYPE_F16, 32, 8, 128, 16, 512, 512), attention(FG_TYPE_F16, 32, 8, 128, 1, 2048, 2048);
    fg__gpu_leave(d);
    fg_backend_cuda()->close(device);
    return 0;
}
