/* Models on two devices (gpu_layers, kv_device, experts_device). A second CPU stands for the other device: there a model split anywhere has the
   very bits that it has whole. */

static fg_backend split_other; /* the CPU by another name */
static void split_set(int gpu_layers, const char *kv_device, bool other) {
    split_other = *fg_backend_cpu();
    split_other.name = "other";
    engine_gpu_layers = gpu_layers;
    engine_kv_device = kv_device;
    engine_experts_device = NULL;
    engine_other = other ? &split_other : NULL;
}

static void split_end(void) { split_set(0, NULL, false); }

static bool split_engine_is(fg_model *model, const char *path, const char *name) {
    static const bits_config one = {"alone", 1, 0, 1, 0, 0, false, false, FG_POLICY_SPLITFUSE};
    fg_engine *e = bits_engine(model, path, &one);
    bool is = e && strcmp(fg_engine_get_backend(e), name) == 0;
    CHECKF(is, "%s, not %s", e ? fg_engine_get_backend(e) : "nothing", name);
    fg_engine_free(e);
    return is;
}

/* Jobs whole and alone on the CPU, then under configurations with the model split at `layers`. */
static void split_bits(const model_spec *spec, const char *path, int layers, const char *kv, size_t step, int n) {
    static const bits_config one = {"alone", 1, 0, 1, 0, 0, false, false, FG_POLICY_SPLITFUSE};
    model_sample m;
    job *jobs = (job *)calloc(BITS_JOBS, sizeof(job));
    size_t c;
    int i;
    model_sample_open(&m, spec);
    bits_jobs(jobs, 99);
    for (i = 0; m.model && i < n; i++) {
        fg_engine *e = bits_engine(m.model, path, &one);
        if (e) bits_batch(e, &one, &jobs[i], 1);
        job_check_ends(&jobs[i]);
        fg_engine_free(e);
    }
    split_set(layers, kv, true);
    if (m.model && split_engine_is(m.model, path, "other+cpu"))
        for (c = 0; c < sizeof(bits_configs) / sizeof(bits_configs[0]); c += step)
            bits_run(m.model, path, &bits_configs[c], jobs, bits_configs[c].preempt ? FG__MIN(n, 6) : n);
    split_end();
    for (i = 0; i < BITS_JOBS; i++) free(jobs[i].rows.rows);
    free(jobs);
    model_sample_close(&m);
}

static void test_split_layers(void) {
    const char *paths[CPU_TARGETS], *best = paths[cpu_paths(paths) - 1];
    model_spec spec = model_spec_tiny();
    int layers;
    spec.n_layers = 4;
    for (layers = 1; layers < 4; layers++) split_bits(&spec, "scalar", layers, NULL, layers == 2 ? 1 : 5, layers == 2 ? BITS_JOBS : 10);
    spec.type = FG_TYPE_Q8_0;
    split_bits(&spec, best, 3, NULL, 4, 16);
    spec.tied = 1; /* the embedding on both devices */
    spec.window = 12;
    spec.full_every = 2;
    for (layers = 1; layers < 4; layers++) split_bits(&spec, best, layers, NULL, 6, 10); /* a device may have one kind of layers only */
    spec.arch = "gemma3"; /* what a layer gives is added by the next one's device */
    for (layers = 1; layers < 4; layers++) split_bits(&spec, best, layers, NULL, 6, 10);
    spec.arch = "qwen3moe";
    spec.n_experts = 6;
    spec.n_used = 2;
    split_bits(&spec, best, 2, NULL, 6, 10);
    spec.arch = "qwen3next"; /* states on both, or on one */
    spec.n_layers = 4;
    spec.n_ff = 128;
    spec.window = spec.full_every = 0;
    for (layers = 1; layers < 4; layers++) split_bits(&spec, best, layers, NULL, 6, 10);
}

static void test_split_kv(void) {
    const char *paths[CPU_TARGETS], *best = paths[cpu_paths(paths) - 1];
    model_spec spec = model_spec_tiny();
    spec.n_layers = 3;
    split_bits(&spec, "scalar", 0, "cpu", 1, BITS_JOBS);
    split_bits(&spec, best, 2, "cpu", 4, 10);
    spec.window = 12;
    spec.full_every = 2;
    split_bits(&spec, best, 0, "cpu", 4, 10);
    spec.arch = "gemma3";
    split_bits(&spec, best, 0, "cpu", 4, 10);
    spec.arch = "qwen35";
    spec.window = spec.full_every = 0;
    split_bits(&spec, best, 0, "cpu", 4, 10);
}

/* Blocks of both devices go to host memory and come back; beams, draft models and passes in flight. */
static void test_split_engine(void) {
    int i;
    for (i = 0; i < 2; i++) {
        split_set(i ? 0 : 1, i ? "cpu" : NULL, true);
        test_swap_cpu();
        swap_continue(fg_backend_cpu(), "llama", 13, 2, 20);
        test_async_threads_cpu();
        test_spec_draft_same();
        split_end();
    }
}

static void test_split_memory(void) {
    model_spec spec = model_spec_tiny();
    model_sample m;
    fg_memory whole, split, own;
    fg_engine_desc d;
    fg_engine *e = NULL;
    int i;
    model_sample_open(&m, &spec);
    d = engine_desc(m.model, NULL);
    CHECK(fg_estimate_memory(&d, &whole) == FG_OK);
    for (i = 0; i < 2; i++) {
        split_set(1, i ? "cpu" : NULL, true);
        d = engine_desc(m.model, NULL);
        CHECK(fg_estimate_memory(&d, &split) == FG_OK);
        CHECKF(split.kv == whole.kv, "%zu bytes of KV, not %zu", split.kv, whole.kv);
        CHECK(split.weights >= whole.weights && split.weights < whole.weights + whole.weights / 2);
        if (i) CHECK(split.activations >= whole.activations + 64 * sizeof(float) * (size_t)model_n_vocab()); /* both halves' logits */
        e = engine_new(&d);
        fg_engine_get_memory(e, &own);
        CHECK(memcmp(&own, &split, sizeof(own)) == 0);
        fg_engine_free(e);
    }
    d.gpu_layers = -1;
    CHECK(fg_engine_create(&d, &e) == FG_ERROR_INVALID_ARGUMENT && strstr(fg_last_error(), "gpu_layers"));
    d.gpu_layers = 0;
    d.kv_device = "gpu";
    CHECK(fg_engine_create(&d, &e) == FG_ERROR_INVALID_ARGUMENT && strstr(fg_last_error(), "kv_device"));
    d.kv_device = NULL;
    d.experts_device = "gpu";
    CHECK(fg_engine_create(&d, &e) == FG_ERROR_INVALID_ARGUMENT && strstr(fg_last_error(), "experts_device"));
    d.experts_device = "cpu";
    d.kv_device = "cpu";
    d.backends[0] = fg_backend_null();
    CHECK(fg_engine_create(&d, &e) == FG_ERROR_UNSUPPORTED && strstr(fg_last_error(), "cannot share"));
    split_end();
    d = engine_desc(m.model, NULL); /* without another device it changes nothing */
    d.gpu_layers = 1;
    d.kv_device = "cpu";
    e = engine_new(&d);
    CHECK(strcmp(fg_engine_get_backend(e), "cpu") == 0);
    fg_engine_free(e);
    split_set(0, NULL, true); /* nor has a model without experts any that could be elsewhere */
    d = engine_desc(m.model, NULL);
    d.experts_device = "cpu";
    e = engine_new(&d);
    CHECK(strcmp(fg_engine_get_backend(e), "other") == 0);
    fg_engine_free(e);
    split_end();
    model_sample_close(&m);
}

/* Every allocation fails in turn: a result each time, and nothing is left. */
static void test_split_out_of_memory(void) {
    model_spec spec = model_spec_tiny();
    model_sample m;
    int kv, i;
    model_sample_open(&m, &spec);
    for (kv = 0; kv < 2 && m.model; kv++) {
        split_set(kv ? 0 : 1, kv ? "cpu" : NULL, true);
        for (i = 1; i < 2000; i++) {
            fg_allocator allocator = test_allocator(i);
            fg_engine_desc d = engine_desc(m.model, NULL);
            fg_engine *e = NULL;
            fg_result r;
            d.allocator = &allocator;
            d.max_context = d.kv_tokens = 64;
            d.token_budget = 16;
            r = fg_engine_create(&d, &e);
            fg_engine_free(e);
            CHECKF(test_alloc_live() == 0, "allocation %d: %d are left", i, test_alloc_live());
            if (!test_alloc_failed()) break;
            CHECKF(r == FG_ERROR_OUT_OF_MEMORY || (i < 8 && r == FG_OK), /* the other device did not open, and the CPU did it all */
                   "allocation %d: %s", i, fg_result_name(r));
        }
        CHECKF(i > 40 && i < 2000, "%d allocations", i);
        split_end();
    }
    model_sample_close(&m);
}

/* How far the logits of a job's prompt are from those of another run. */
static double split_error(const job *a, const job *b) {
    double error = 0, square = 0;
    size_t i, n = (size_t)FG__MIN((int)b->desc.n_tokens + 1, BITS_POSITIONS) * (size_t)b->rows.n_vocab;
    for (i = 0; i < n; i++) {
        error += ((double)a->rows.rows[i] - (double)b->rows.rows[i]) * ((double)a->rows.rows[i] - (double)b->rows.rows[i]);
        square += (double)b->rows.rows[i] * (double)b->rows.rows[i];
    }
    return square > 0 ? sqrt(error / square) : 1;
}

/* Vulkan's without experts, recurrent layers and sinks. */
static void split_caps(fg_device *device, fg_device_caps *caps) {
    fg_backend_vulkan()->caps(device, caps);
    caps->ops &= ~(1u << FG_OP_MOE_ROUTE | 1u << FG_OP_MOE_GEMM | 1u << FG_OP_STATE_SCAN);
    caps->sinks = false;
}

static bool split_lacks; /* those are on the CPU, wherever the layers are */

/* A GPU beside the CPU: nearly the logits of the CPU alone. `spec`: of what model, of three layers. */
static void split_gpu(const char *path, const char *name, int layers, const char *kv, const char *experts, model_spec spec, int n, double most) {
    static const bits_config one = {"alone", 1, 0, 1, 0, 0, false, false, FG_POLICY_SPLITFUSE};
    static const bits_config three = {"batch of 3", 3, 9, 1, 0, 0, false, false, FG_POLICY_SPLITFUSE};
    model_sample m;
    job *alone = (job *)calloc(BITS_JOBS, sizeof(job)), *jobs = (job *)calloc(BITS_JOBS, sizeof(job));
    fg_engine *e;
    int i;
    spec.n_layers = 3;
    model_sample_open(&m, &spec);
    bits_jobs(alone, 99);
    for (i = 0; i < BITS_JOBS; i++) {
        jobs[i] = alone[i];
        job_keep(&jobs[i]);
    }
    e = bits_engine(m.model, "scalar", &one);
    for (i = 0; i < n; i++) bits_batch(e, &one, &alone[i], 1);
    fg_engine_free(e);
    split_set(layers, kv, split_lacks);
    engine_experts_device = experts;
    if (split_lacks) {
        split_other = *fg_backend_vulkan();
        split_other.caps = split_caps;
    }
    if (split_engine_is(m.model, path, name)) {
        e = bits_engine(m.model, path, &three);
        for (i = 0; i < n; i += 3) bits_batch(e, &three, &jobs[i], 3);
        fg_engine_free(e);
        for (i = 0; i < n; i++) {
            job_check_ends(&jobs[i]);
            CHECKF(split_error(&jobs[i], &alone[i]) < most, "%s, %d layers, request %d: error %g", path, layers, i, split_error(&jobs[i], &alone[i]));
        }
    }
    split_end();
    for (i = 0; i < BITS_JOBS; i++) free(alone[i].rows.rows), free(jobs[i].rows.rows);
    free(alone);
    free(jobs);
    model_sample_close(&m);
}

static void test_split_gpu(void) {
    model_spec spec = model_spec_tiny(), experts = spec, states = spec;
    int n = 0;
    experts.arch = "qwen3moe";
    experts.n_experts = 4;
    experts.n_used = 2;
    if (cpu_vulkan_device(0)) {
        split_gpu("vulkan", "vulkan+cpu", 2, NULL, NULL, spec, 9, 2e-5);
        split_gpu("vulkan", "vulkan+cpu", 0, "cpu", NULL, spec, 9, 2e-5);
        split_gpu("vulkan", "vulkan", 0, NULL, NULL, experts, 9, 2e-5);
        split_gpu("vulkan", "vulkan+cpu", 2, NULL, NULL, experts, 6, 2e-5);
        split_gpu("vulkan", "vulkan+cpu", 0, "cpu", NULL, experts, 6, 2e-5);
        split_gpu("vulkan", "vulkan+cpu", 0, NULL, "cpu", experts, 6, 2e-5);
        split_lacks = true;
        split_gpu("vulkan", "vulkan+cpu", 0, NULL, NULL, experts, 9, 2e-5);
        split_gpu("vulkan", "vulkan+cpu", 2, NULL, NULL, experts, 6, 2e-5);
        states.arch = "qwen35";
        split_gpu("vulkan", "vulkan+cpu", 0, NULL, NULL, states, 9, 2e-5);
        experts.arch = "gpt-oss";
        experts.window = 12;
        split_gpu("vulkan", "vulkan+cpu", 0, NULL, NULL, experts, 6, 2e-5);
        split_lacks = false;
        split_gpu("vulkan", "vulkan+cpu", 2, NULL, NULL, states, 6, 2e-5);
        split_gpu("vulkan", "vulkan", 0, NULL, NULL, experts, 6, 2e-5);
        split_gpu("vulkan", "vulkan+cpu", 0, "cpu", NULL, experts, 6, 2e-5);
        n++;
    }
    if (gpu_standin_open() && gpu_standin_image) {
        experts.n_used = 4; /* all: no rounding tips who takes whom */
        split_gpu("cuda", "cuda+cpu", 1, NULL, NULL, experts, 6, 5e-3);
        split_gpu("hip64", "hip+cpu", 0, "cpu", NULL, experts, 3, 5e-3);
        split_gpu("hip64", "hip+cpu", 0, NULL, "cpu", experts, 3, 5e-3);
        split_gpu("hip64", "hip+cpu", 2, "cpu", "cpu", experts, 3, 5e-3);
        split_gpu("cuda", "cuda+cpu", 1, NULL, NULL, spec, 6, 5e-3);
        split_gpu("cuda", "cuda+cpu", 0, "cpu", NULL, spec, 6, 5e-3);
        split_gpu("hip64", "hip+cpu", 2, "cpu", NULL, spec, 3, 5e-3);
        gpu_standin_check();
        n++;
    }
    if (!n) SKIP("there is no GPU driver, and no stand-in");
}

/* Of the layers' products only attn_output's reads bytes, which are made anew of what the CPU writes for each layer. */
static void test_split_vulkan_types(void) {
    model_spec spec = model_spec_tiny();
    char text[4000];
    SPIRV_ALL;
    (void)svk_take(NULL, 0);
    spec.mixed = true;
    split_gpu("vulkan32-dot", "vulkan+cpu", 0, "cpu", NULL, spec, 2, 3e-2);
    CHECKF(svk_take(text, sizeof(text)) == 0, "%s", text);
}

/* ---- When it pays ---- */

#include "../examples/tool/split_model.h"

/* Of given numbers, worked out by hand: 10 layers, 100 kB of cache for each token, 1 GB of room. */
static split_model split_given(void) {
    split_model m;
    memset(&m, 0, sizeof(m));
    m.n_layers = 10;
    split_point(&m, 512, 0.080); /* in any order */
    split_point(&m, 1, 0.010);
    split_point(&m, 64, 0.009); /* more tokens take no less: 10 ms */
    m.device_kv = 1e12;
    m.cpu_kv = 1e11;
    m.down.seconds = m.up.seconds = 10e-6;
    m.down.bytes_per_s = m.up.bytes_per_s = 1e10;
    m.down_bytes = 1e4;
    m.up_bytes = 5e3;
    m.kv_bytes = 1e5;
    m.room = 1e9;
    m.at_once = 1;
    return m;
}

static bool split_near(double a, double b) { return fabs(a - b) <= 1e-6 * fabs(b); }

static void test_split_model(void) {
    split_model m = split_given();
    double n, rate;
    CHECK(split_near(split_products(&m, 1), 0.010) && split_near(split_products(&m, 0.5), 0.010) && split_near(split_products(&m, 64), 0.010));
    CHECK(split_near(split_products(&m, 288), 0.045) && split_near(split_products(&m, 512), 0.080) && split_near(split_products(&m, 960), 0.150));
    split_point(&m, 512, 0.070); /* measured twice: the longer one counts */
    CHECK(split_near(split_products(&m, 288), 0.045) && split_near(split_products(&m, 960), 0.150));
    split_point(&m, 512, 0.080);
    CHECK(split_near(split_products(&m, 512), 0.080) && split_near(split_products(&m, 960), 0.150));
    /* 10,000 tokens: one sequence fits, 10 + 1 ms */
    rate = split_alone(&m, 10000, &n);
    CHECKF(n == 1 && split_near(rate, 1 / 0.011), "%g sequences, %g tokens/s", n, rate);
    /* one on each side: 10 ms of products, 10 of attention, 0.11 and 0.105 of copies, one behind the other; then the CPU is the slower */
    CHECKF(split_near(split_pass(&m, 10000, 2), 0.020215), "%g s", split_pass(&m, 10000, 2));
    CHECKF(split_near(split_pass(&m, 10000, 1), 0.020215) && split_near(split_pass(&m, 10000, 4), 0.040), "%g s", split_pass(&m, 10000, 4));
    rate = split_together(&m, 10000, &n);
    CHECKF(n == 2 && split_near(rate, 2 / 0.020215) && split_pays(&m, 10000), "%g sequences, %g tokens/s", n, rate);
    /* 100 tokens: a hundred fit; the device is the slower with the cache on the CPU */
    rate = split_alone(&m, 100, &n);
    CHECKF(n == 100 && split_near(rate, 100 / 0.016625), "%g sequences, %g tokens/s", n, rate);
    CHECK(split_near(split_pass(&m, 100, 128), 0.020) && split_near(split_pass(&m, 100, 256), 0.040));
    rate = split_together(&m, 100, &n);
    CHECKF(n == 128 && split_near(rate, 6400), "%g sequences, %g tokens/s", n, rate);
    CHECK(split_pays(&m, 100));
    m.device_kv = 1e13; /* 100 sequences in 15.7 ms: 6364 tokens/s, too near */
    CHECK(!split_pays(&m, 100));
    /* copies are what lasts longest */
    m.down.bytes_per_s = 1e7;
    CHECKF(split_near(split_pass(&m, 1000, 128), 2 * 10 * (10e-6 + 64e-3)), "%g s", split_pass(&m, 1000, 128));
    /* room for one on the host, and none on the device */
    m = split_given();
    m.cpu_room = 1.5e9;
    m.room = -1;
    CHECK(split_alone(&m, 10000, &n) == 0 && n == 0);
    rate = split_together(&m, 10000, &n);
    CHECKF(n == 1 && split_near(rate, 1 / 0.020215) && split_pays(&m, 10000), "%g sequences, %g tokens/s", n, rate);
    m.cpu_room = 0.5e9;
    CHECK(split_together(&m, 10000, &n) == 0 && n == 0 && !split_pays(&m, 10000));
    /* a device in software takes turns with the CPU: all adds up, and the answer is no however slow its attention is */
    m = split_given();
    m.at_once = 0;
    m.device_kv = 1e10;
    CHECK(split_near(split_pass(&m, 10000, 2), 0.040) && split_near(split_pass(&m, 10000, 4), 0.060));
    CHECK(split_together(&m, 10000, &n) > 1.05 * split_alone(&m, 10000, &rate) && !split_pays(&m, 10000));
}

/* ---- Both halves at once ---- */

enum { SPLIT_FOUR = 4, SPLIT_TOKENS = 7, SPLIT_TIMED = 5 }; /* requests, tokens of each, the pass that is timed */

/* What four requests got, and when each kernel, copy and piece of the CPU's would have run in one of their passes. */
typedef struct split_four {
    int32_t tokens[SPLIT_FOUR][SPLIT_TOKENS];
    float logprobs[SPLIT_FOUR][SPLIT_TOKENS];
    long first_wait, waits;       /* of streams: in the first pass, in all */
    double host_gap, kernel_gap;  /* between the first and the last piece of either */
    double host_s, kernel_s, copy_s, pass_s;
} split_four;

static double split_cpu_s; /* of a range on the CPU, by the stand-in's clock */

static fg_result split_timed_submit(fg_device *device, fg_plan *plan, const fg_batch *batch) {
    gpu_standin.host_works(split_cpu_s);
    return fg_backend_cpu()->submit(device, plan, batch);
}

/* Four requests with prompts of their own; `user` tells them apart. */
static void split_submit_four(fg_engine *e) {
    int i, k;
    for (i = 0; i < SPLIT_FOUR; i++) {
        int32_t prompt[9];
        fg_request_desc r;
        fg_request handle;
        memset(&r, 0, sizeof(r));
        for (k = 0; k < 9; k++) prompt[k] = 5 + (i * 37 + k * 13) % 200;
        r.tokens = prompt;
        r.n_tokens = 9;
        r.max_tokens = SPLIT_TOKENS;
        r.ignore_eos = r.logprobs = true;
        r.user = (void *)(size_t)i;
        CHECK(fg_submit(e, &r, &handle) == FG_OK);
    }
}

/* What else is on the stream of kernels (the batch block) counts as theirs. */
static void split_read_clock(split_four *out) {
    const standin_span *spans;
    standin_clock clock;
    const void *stream = NULL;
    double ends[2] = {-1, -1};
    size_t n = gpu_standin.get_spans(&spans, &clock), i;
    for (i = 0; i < n && !stream; i++)
        if (spans[i].what == 'K') stream = spans[i].stream;
    for (i = 0; i < n; i++) {
        int who = spans[i].what == 'H' ? 0 : spans[i].stream == stream ? 1 : 2;
        *(who == 0 ? &out->host_s : who == 1 ? &out->kernel_s : &out->copy_s) += spans[i].end - spans[i].start;
        if (who == 2) continue;
        if (ends[who] >= 0) *(who ? &out->kernel_gap : &out->host_gap) += spans[i].start - ends[who];
        ends[who] = spans[i].end;
    }
    out->pass_s = clock.now;
}

static split_four split_run_four(fg_model *model, const fg_backend *backend, const char *path, long skip, int late, double kernel_s, double cpu_s,
                                 double byte_s) {
    static const standin_clock stopped;
    fg_backend cpu = *fg_backend_cpu();
    fg_engine_desc d = engine_desc(model, backend);
    standin_clock clock = stopped;
    standin_order order;
    standin_stats stats;
    split_four out;
    fg_engine *e;
    bool busy = true;
    int i, step = 0, n[SPLIT_FOUR] = {0};
    memset(&out, 0, sizeof(out));
    cpu.submit = split_timed_submit;
    split_cpu_s = cpu_s;
    clock.runs = 1;
    clock.kernel_s = kernel_s;
    clock.byte_s = byte_s;
    order.skip = -1;
    order.late = late;
    d.backend_options = cpu_gpu_options(path);
    d.kv_device = "cpu";
    d.max_context = 64;
    d.cpu_path = "scalar";
    e = engine_new(&d);
    if (!e) return out;
    ((fg__split *)(void *)e->device)->backends[1] = &cpu;
    split_submit_four(e);
    gpu_standin.set_order(&order);
    while (busy) {
        fg_event event;
        if (step == SPLIT_TIMED) gpu_standin.set_clock(&clock);
        CHECK(fg_step(e, 0, &busy) == FG_OK);
        gpu_standin.get_stats(&stats);
        if (step == SPLIT_TIMED) split_read_clock(&out), gpu_standin.set_clock(&stopped);
        if (step++ == 0) out.first_wait = stats.waits, order.skip = skip, gpu_standin.set_order(&order); /* it counts from 0 again */
        while (fg_next_event(e, &event)) {
            i = (int)(size_t)event.user;
            if (event.type != FG_EVENT_TOKEN) continue;
            out.tokens[i][n[i]] = event.token;
            out.logprobs[i][n[i]++] = event.logprob;
        }
    }
    for (i = 0; i < SPLIT_FOUR; i++) CHECKF(n[i] == SPLIT_TOKENS, "request %d: %d tokens", i, n[i]);
    out.waits = stats.waits;
    fg_engine_free(e);
    order.skip = -1;
    order.late = 0;
    gpu_standin.set_order(&order);
    return out;
}

static bool split_fours_are(const split_four *a, const split_four *b) {
    return memcmp(a->tokens, b->tokens, sizeof(a->tokens)) == 0 && memcmp(a->logprobs, b->logprobs, sizeof(a->logprobs)) == 0;
}

/* In whatever order streams run, and with copies behind everything or beside it: the same bits. A wait of a stream that is forgotten
   shows, whichever it is. */
static void test_split_gpu_order(void) {
    model_spec spec = model_spec_tiny();
    model_sample m;
    fg_backend behind = *fg_backend_cuda(); /* a backend with copies that come behind all else */
    split_four first, other;
    long k;
    int i;
    if (!gpu_standin_open() || !gpu_standin_image) SKIP(GPU_NONE);
    behind.stage_slot = NULL;
    spec.n_layers = 2;
    model_sample_open(&m, &spec);
    first = split_run_four(m.model, fg_backend_cuda(), "cuda", -1, 1, 0, 0, 0);
    for (i = 0; i < 6; i++) {
        const fg_backend *backend = i == 5 ? fg_backend_hip() : i == 4 ? &behind : fg_backend_cuda();
        other = split_run_four(m.model, backend, i == 5 ? "hip" : "cuda", -1, i == 4, 0, 0, 0);
        CHECKF(split_fours_are(&first, &other), "order %d: other results", i);
    }
    /* of each pass, half and layer: the copy to the host waits for the pass, the next pass for the copy to the device */
    CHECKF(first.waits == (SPLIT_TOKENS - 1) * 2 * 2 * 2, "%ld waits", first.waits);
    for (k = 0; k < first.waits; k += k < 8 ? 1 : 5) {
        other = split_run_four(m.model, fg_backend_cuda(), "cuda", k, 1, 0, 0, 0);
        CHECKF(!split_fours_are(&first, &other), "without wait %ld of %ld the results are the same", k, first.waits);
    }
    model_sample_close(&m);
    gpu_standin_check();
}

/* By the clock of the stand-in: where the CPU is the slower, it never waits from its first piece of a pass to its last; where the
   device is, the device never does; all copies are beside them. A backend whose copies come behind everything has both wait. */
static void test_split_gpu_overlap(void) {
    model_spec spec = model_spec_tiny();
    model_sample m;
    fg_backend behind = *fg_backend_cuda();
    int i;
    if (!gpu_standin_open() || !gpu_standin_image) SKIP(GPU_NONE);
    behind.stage_slot = NULL;
    spec.n_layers = 4;
    model_sample_open(&m, &spec);
    for (i = 0; i < 4 && m.model; i++) {
        bool cpu_bound = i % 2 == 0, beside = i < 2;
        split_four f = split_run_four(m.model, beside ? fg_backend_cuda() : &behind, "cuda", -1, 0, cpu_bound ? 1 : 8, cpu_bound ? 40 : 1,
                                      cpu_bound ? 0.002 : 0.0005);
        double gap = cpu_bound ? f.host_gap : f.kernel_gap, busy = cpu_bound ? f.host_s : f.kernel_s, rest = cpu_bound ? f.kernel_s : f.host_s;
        CHECKF(fabs(f.host_s - split_cpu_s * 2 * spec.n_layers) < 1e-9 && f.kernel_s > 0 && f.copy_s > 4, "%g s on the CPU, %g in kernels, %g in copies",
               f.host_s, f.kernel_s, f.copy_s);
        if (beside) CHECKF(gap < 1e-9 && f.pass_s < busy + 0.6 * (rest + f.copy_s), "%s: it waits %g s of %g; %g + %g beside it", cpu_bound ? "CPU" : "device",
                           gap, f.pass_s, rest, f.copy_s);
        else CHECKF(gap > 1, "%s: it waits %g s of %g", cpu_bound ? "CPU" : "device", gap, f.pass_s);
    }
    model_sample_close(&m);
    gpu_standin_check();
}

/* The KV tokens of all running requests after each pass; the requests come all at once. */
static int split_loads(int level, int *loads, int most, int32_t *tokens) {
    enum { N = 60, LENGTH = 100 };
    model_spec spec = model_spec_tiny();
    model_sample m;
    fg_engine_desc d;
    fg_engine *e;
    bool busy = true;
    int i, n = 0, next[N] = {0};
    model_sample_open(&m, &spec);
    d = engine_desc(m.model, fg_backend_null());
    d.kv_tokens = 4096;
    d.block_tokens = 8;
    d.max_seqs = 30;
    d.token_budget = 256;
    d.max_context = 128;
    d.kv_level = level;
    e = engine_new(&d);
    for (i = 0; i < N; i++) {
        fg_request_desc r;
        fg_request handle;
        int32_t prompt[10];
        int k;
        memset(&r, 0, sizeof(r));
        for (k = 0; k < 10; k++) prompt[k] = 5 + (i * 7 + k * 13) % 200;
        r.tokens = prompt;
        r.n_tokens = 10;
        r.max_tokens = LENGTH;
        r.ignore_eos = true;
        r.user = (void *)(size_t)i;
        CHECK(fg_submit(e, &r, &handle) == FG_OK);
    }
    while (busy) {
        fg_event event;
        int sum = 0;
        CHECK(fg_step(e, 0, &busy) == FG_OK);
        while (fg_next_event(e, &event)) {
            i = (int)(size_t)event.user;
            if (event.type == FG_EVENT_TOKEN) tokens[i * LENGTH + next[i]++] = event.token;
        }
        for (i = 0; i < (int)e->sched.running.count; i++) sum += e->sched.running.items[i]->n_tokens;
        if (n < most) loads[n++] = sum;
    }
    for (i = 0; i < N; i++) CHECKF(next[i] == LENGTH, "request %d: %d tokens", i, next[i]);
    fg_engine_free(e);
    model_sample_close(&m);
    return n;
}

/* With a level: never over it, near it, and steady; the same tokens. Without: from next to nothing to everything, twice. */
static void test_split_level(void) {
    static int loads[2][2000];
    static int32_t tokens[2][60 * 100];
    int n[2], i, k;
    for (k = 0; k < 2; k++) {
        double sum = 0, square = 0, mean, spread;
        int most = 0, count = 0;
        n[k] = split_loads(k ? 1700 : 0, loads[k], 2000, tokens[k]);
        for (i = 0; i < n[k]; i++) most = FG__MAX(most, loads[k][i]);
        for (i = n[k] / 4; i < n[k] * 3 / 4; i++, count++) sum += loads[k][i], square += (double)loads[k][i] * loads[k][i];
        mean = sum / count;
        spread = sqrt(square / count - mean * mean) / mean;
        if (k == 0) CHECKF(most > 3200 && spread > 0.3, "%d tokens at most, spread %g", most, spread);
        else CHECKF(most <= 1700 && mean > 1300 && spread < 0.1, "%d tokens at most, mean %g, spread %g", most, mean, spread);
    }
    CHECK(memcmp(tokens[0], tokens[1], sizeof(tokens[0])) == 0);
    CHECKF(n[1] < n[0] * 5 / 3, "%d passes, %d without a level", n[1], n[0]);
}

/* The GPU fails at every so manyth call: a result, or the CPU instead, and nothing is left. */
static void test_split_gpu_faults(void) {
    model_spec spec = model_spec_tiny();
    model_sample m;
    standin_stats stats;
    int kv, i;
    bool failed = true;
    if (!gpu_standin_open() || !gpu_standin_image) SKIP(GPU_NONE);
    model_sample_open(&m, &spec);
    for (kv = 0; kv < 2 && m.model; kv++) {
        split_set(1, kv ? "cpu" : NULL, false);
        for (failed = true, i = kv; failed && i < 3000; i += i < 300 ? 11 : 23) {
            fg_finish finish;
            bool created;
            fg_result r;
            const void *options = cpu_gpu_options("cuda");
            gpu_standin.fail(i, -1, i % 2 ? 2 : 719);
            r = gpu_try(m.model, fg_backend_cuda(), options, &created, &finish);
            gpu_standin.get_stats(&stats);
            failed = stats.failed != 0;
            CHECKF(failed || (r == FG_OK && finish == FG_FINISH_LENGTH), "call %d: %s", i, fg_last_error());
            CHECKF(r == FG_OK || r == (i % 2 ? FG_ERROR_OUT_OF_MEMORY : FG_ERROR_DEVICE), "call %d: %s", i, fg_result_name(r));
            gpu_standin.fail(-1, -1, 0);
            gpu_standin.get_stats(&stats);
            CHECKF(stats.live == 0 && stats.depth == 0, "call %d: %d objects are left", i, stats.live);
        }
        CHECKF(i > 100 && !failed, "%d calls", i);
        split_end();
    }
    model_sample_close(&m);
    gpu_standin_check();
}

/* What four requests got of an engine whose attention is on the CPU; violations of the driver are left for svk_take(). */
static split_four split_vulkan_four(fg_model *model, const fg_backend *backend, const char *path) {
    split_four out;
    fg_engine_desc d = engine_desc(model, backend);
    fg_engine *e;
    bool busy = true;
    int i, n[SPLIT_FOUR] = {0};
    memset(&out, 0, sizeof(out));
    d.backend_options = cpu_gpu_options(path);
    d.device = cpu_gpu_device(path);
    d.kv_device = "cpu";
    d.max_context = 64;
    d.cpu_path = "scalar";
    e = engine_new(&d);
    if (!e) return out;
    split_submit_four(e);
    while (busy && fg_step(e, 0, &busy) == FG_OK) {
        fg_event event;
        while (fg_next_event(e, &event)) {
            i = (int)(size_t)event.user;
            if (event.type != FG_EVENT_TOKEN) continue;
            out.tokens[i][n[i]] = event.token;
            out.logprobs[i][n[i]++] = event.logprob;
        }
    }
    for (i = 0; i < SPLIT_FOUR; i++) CHECKF(n[i] == SPLIT_TOKENS, "%s, request %d: %d tokens", path, i, n[i]);
    fg_engine_free(e);
    return out;
}

/* Over the stand-in driver, whose queues run as late as they may: copies on two queues of a family of their own, on one of the family of passes, on
   the queue of passes. The bits are those of copies behind everything; a wait that a submission leaves out shows, whichever it is; the host
   waits for a copy and not for the passes behind it. */
static void test_split_vulkan(void) {
    static const char *const paths[] = {"vulkan32", "vulkan64", "vulkan8"};
    fg_backend behind = *fg_backend_vulkan();
    model_spec spec = model_spec_tiny();
    model_sample m;
    char text[4000];
    long k, waits;
    int p;
    SPIRV_ALL;
    behind.stage_slot = NULL;
    spec.n_layers = 2;
    model_sample_open(&m, &spec);
    (void)svk_take(NULL, 0);
    for (p = 0; p < 3 && m.model; p++) {
        split_four first, other;
        svk.ahead = svk.waits = svk.skip = 0;
        first = split_vulkan_four(m.model, fg_backend_vulkan(), paths[p]);
        waits = svk.waits;
        CHECKF(svk_take(text, sizeof(text)) == 0, "%s: %s", paths[p], text);
        /* a pass of one half, or its copy to the host, has ended for the host while that of the other is yet to run */
        CHECKF(svk.ahead >= (SPLIT_TOKENS - 1) * 2, "%s: %ld fences before work behind them", paths[p], svk.ahead);
        /* of each pass, half and layer: the copy to the host waits for the pass, the next pass for the copy to the device where that has a queue */
        CHECKF(waits == (p == 0 ? 2 : p == 1 ? 1 : 0) * SPLIT_TOKENS * 2 * 2, "%s: %ld waits", paths[p], waits);
        other = split_vulkan_four(m.model, &behind, paths[p]);
        CHECKF(split_fours_are(&first, &other), "%s: other results with copies behind everything", paths[p]);
        CHECKF(svk_take(text, sizeof(text)) == 0, "%s: %s", paths[p], text);
        for (k = 1; k <= waits; k += k < 4 ? 1 : 11) {
            svk.waits = 0;
            svk.skip = k;
            other = split_vulkan_four(m.model, fg_backend_vulkan(), paths[p]);
            svk.skip = 0;
            CHECKF(svk_take(text, sizeof(text)) > 0, "%s: without wait %ld of %ld nothing shows", paths[p], k, waits);
        }
    }
    model_sample_close(&m);
}

static void run_split_tests(void) {
    RUN(test_split_level);
    RUN(test_split_model);
    RUN(test_split_layers);
    RUN(test_split_kv);
    RUN(test_split_engine);
    RUN(test_split_memory);
    RUN(test_split_out_of_memory);
    RUN(test_split_gpu);
    RUN(test_split_gpu_order);
    RUN(test_split_gpu_overlap);
    RUN(test_split_gpu_faults);
    RUN(test_split_vulkan);
    RUN(test_split_vulkan_types);
}
