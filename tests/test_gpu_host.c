/* What the CUDA and HIP backends do on the host, over the stand-in driver of standin_gpu.c, which executes the kernels: memory,
   copies, graphs, errors at every call, engines whose results are the CPU's. The op differentials are those of test_cpu.c. */

static const char *const gpu_paths[] = {"cuda", "hip", "hip64"};
enum { GPU_PATHS = 3 };

#define GPU_NONE "no stand-in driver was built"

static fg_device *gpu_open(const char *path, const fg_gpu_options *more) {
    fg_device_desc desc;
    fg_device *device = NULL;
    fg_gpu_options options = *(const fg_gpu_options *)cpu_gpu_options(path);
    memset(&desc, 0, sizeof(desc));
    if (more) {
        options = *more;
        options.image = gpu_standin_image;
    }
    desc.options = &options;
    CHECKF(cpu_backend_of(path)->open(&desc, &device) == FG_OK, "%s: %s", path, fg_last_error());
    return device;
}

/* As the device is set. */
static fg_device *gpu_open_as(const char *path, const fg_gpu_options *more) {
    fg_device_desc desc;
    fg_device *device = NULL;
    fg_gpu_options options = *more;
    memset(&desc, 0, sizeof(desc));
    options.image = gpu_standin_image;
    desc.options = &options;
    CHECKF(cpu_backend_of(path)->open(&desc, &device) == FG_OK, "%s: %s", path, fg_last_error());
    return device;
}

static void gpu_set_variable(const char *name, const char *value) {
#if FG__WINDOWS
    (void)_putenv_s(name, value);
#else
    (void)setenv(name, value, 1);
#endif
}

static char *gpu_string(const char *text) {
    char *copy = (char *)malloc(strlen(text) + 1);
    return strcpy(copy, text);
}

/* More bytes than both stages hold, at an odd place. */
static void gpu_check_transfer(const fg_backend *b, fg_device *device) {
    size_t n = (9 << 20) + 12345, i;
    uint8_t *bytes = (uint8_t *)malloc(n), *back = (uint8_t *)calloc(n, 1);
    void *memory = b->alloc(device, n + 100);
    uint64_t state = 3;
    for (i = 0; i < n; i++) bytes[i] = (uint8_t)(i % 8 ? bytes[i - 1] * 5u + 1u : (unsigned)test_random(&state));
    CHECK(memory && b->write(device, memory, 7, bytes, n) == FG_OK && b->read(device, memory, 7, back, n) == FG_OK);
    CHECK(memcmp(bytes, back, n) == 0);
    CHECK(b->write(device, memory, n, bytes, n) == FG_ERROR_INVALID_ARGUMENT);
    CHECK(b->read(device, memory, 0, back, SIZE_MAX) == FG_ERROR_INVALID_ARGUMENT);
    CHECK(b->write(device, memory, 0, bytes, 0) == FG_OK);
    b->free(device, memory);
    free(bytes);
    free(back);
}

static void test_gpu_host_device(void) {
    int p;
    if (!gpu_standin_open()) SKIP(GPU_NONE);
    for (p = 0; p < GPU_PATHS; p++) {
        const fg_backend *b = cpu_backend_of(gpu_paths[p]);
        fg_device *device = cpu_has_gpu(gpu_paths[p]) ? gpu_open(gpu_paths[p], NULL) : NULL, *other = NULL;
        fg_device_desc desc;
        fg_device_caps caps;
        fg_roofs roofs;
        CHECK(b->abi == FG_BACKEND_ABI && b->size == sizeof(fg_backend) && (b->probe() >= 1 || !gpu_standin_image));
        if (!device) continue;
        b->caps(device, &caps);
        CHECKF(strstr(caps.name, p ? "HIP gfx" : "CUDA sm_") && caps.memory_bytes > 1 << 20, "%s", caps.name);
        CHECK(caps.weight_types >> FG_TYPE_MXFP4 & 1 && caps.kv_types >> FG_TYPE_Q8_0 & 1 && caps.ops >> FG_OP_MOE_GEMM & 1 &&
              caps.ops >> FG_OP_STATE_SCAN & 1 && caps.sinks);
        gpu_check_transfer(b, device);
        CHECK(b->profile(device, &roofs) == FG_OK && roofs.read_bytes_per_s > 1e6);
        memset(&desc, 0, sizeof(desc));
        desc.options = cpu_gpu_options(gpu_paths[p]);
        desc.device = "no such device";
        CHECK(b->open(&desc, &other) == FG_ERROR_NOT_FOUND && strstr(fg_last_error(), "no such device"));
        desc.device = "99";
        CHECK(b->open(&desc, &other) == FG_ERROR_NOT_FOUND && strstr(fg_last_error(), "99"));
        desc.device = caps.name;
        CHECK(b->open(&desc, &other) == FG_OK);
        b->close(other);
        b->close(device);
    }
    gpu_standin_check();
}

/* Drivers that are missing, none, or too old; devices that there is no code for; memory that others have. */
static void test_gpu_host_drivers(void) {
    static const char *const variables[] = {"FASTGEN_CUDA_LIBRARY", "FASTGEN_HIP_LIBRARY"};
    fg_device_desc desc;
    fg_device *device = NULL;
    standin_device standin;
    int i;
    if (!gpu_standin_open() || !gpu_standin_image) SKIP(GPU_NONE);
    memset(&desc, 0, sizeof(desc));
    for (i = 0; i < 2; i++) {
        const fg_backend *b = i ? fg_backend_hip() : fg_backend_cuda();
        const char *label = i ? "HIP" : "CUDA";
        char *library = gpu_string(getenv(variables[i]));
        desc.options = cpu_gpu_options(gpu_paths[i]);
        gpu_set_variable(variables[i], "/nonexistent/lib.so");
        CHECK(b->probe() == 0);
        CHECK(b->open(&desc, &device) == FG_ERROR_NOT_FOUND && strstr(fg_last_error(), "/nonexistent/lib.so"));
        gpu_set_variable(variables[i], "libm.so.6");
        CHECK(b->probe() == 0);
        CHECK(b->open(&desc, &device) == FG_ERROR_NOT_FOUND && strstr(fg_last_error(), i ? "hipInit" : "cuInit"));
        gpu_set_variable(variables[i], library);
        CHECK(b->probe() == 1);
        gpu_standin.get_device(&standin);
        standin.driver = 11020;
        gpu_standin.set_device(&standin);
        CHECK(b->probe() == 0);
        CHECK(b->open(&desc, &device) == FG_ERROR_NOT_FOUND && strstr(fg_last_error(), "11020") && strstr(fg_last_error(), label));
        gpu_standin.set_device(&gpu_standin.device);
        free(library);
    }
    for (i = 0; i < 2; i++) { /* room for less, and for more than is left to others */
        const fg_backend *b = i ? fg_backend_hip() : fg_backend_cuda();
        void *memory;
        gpu_standin.get_device(&standin);
        standin.memory = (size_t)64 << 20;
        gpu_standin.set_device(&standin);
        device = gpu_open(gpu_paths[i], NULL);
        if (!device) continue;
        memory = b->alloc(device, (size_t)56 << 20);
        CHECK(memory != NULL);
        CHECK(b->alloc(device, (size_t)12 << 20) == NULL && strstr(fg_last_error(), "no room"));
        CHECK(b->alloc(device, (size_t)1 << 62) == NULL);
        CHECK(b->alloc(device, SIZE_MAX) == NULL);
        b->free(device, memory);
        b->close(device);
        gpu_standin.set_device(&gpu_standin.device);
    }
    gpu_standin_check();
}

/* Memory that keeps files is not free, but there is room in it where the device has no memory of its own. */
static void test_gpu_host_integrated(void) {
    standin_device standin;
    int i;
    if (!gpu_standin_open() || !gpu_standin_image) SKIP(GPU_NONE);
    for (i = 0; i < 4; i++) {
        const fg_backend *b = i / 2 ? fg_backend_hip() : fg_backend_cuda();
        fg_device *device;
        void *memory;
        standin = gpu_standin.device;
        standin.memory = (size_t)64 << 20;
        standin.cached = (size_t)48 << 20;
        standin.integrated = i % 2;
        gpu_standin.set_device(&standin);
        device = gpu_open(gpu_paths[i / 2], NULL);
        if (!device) continue;
        memory = b->alloc(device, (size_t)32 << 20);
        CHECKF((memory != NULL) == (i % 2 == 1), "%s, integrated %d: %s", gpu_paths[i / 2], i % 2, fg_last_error());
        CHECK(b->alloc(device, (size_t)63 << 20) == NULL && b->alloc(device, (size_t)1 << 62) == NULL);
        b->free(device, memory);
        b->close(device);
    }
    gpu_standin_check();
}

static fg__gpu_device gpu_described(const fg__gpu_driver *driver, const char *isa, int major, int minor) {
    fg__gpu_device d;
    memset(&d, 0, sizeof(d));
    d.loader.driver = driver;
    snprintf(d.isa, sizeof(d.isa), "%s", isa);
    d.attributes[FG__GPU_MAJOR] = major;
    d.attributes[FG__GPU_MINOR] = minor;
    return d;
}

/* The target of a list that a device gets; "" for none. */
static const char *gpu_chosen(const fg__gpu_driver *driver, const char *isa, int major, int minor, const char *const *targets, int n) {
    fg__gpu_device d = gpu_described(driver, isa, major, minor);
    const char *best = "";
    int i, score = 0;
    for (i = 0; i < n; i++)
        if (fg__gpu_suits(&d, targets[i]) > score) {
            score = fg__gpu_suits(&d, targets[i]);
            best = targets[i];
        }
    return best;
}

static void test_gpu_host_images(void) {
    static const char *const nvidia[] = {"compute_75", "compute_80", "sm_75", "sm_80", "sm_86", "sm_90a", "sm_100", "sm_120"};
    static const char *const amd[] = {"gfx906", "gfx9-generic", "gfx90a", "gfx9-4-generic", "gfx942", "gfx10-1-generic", "gfx10-3-generic",
                                      "gfx1100", "gfx11-generic", "gfx12-generic"};
    static const struct {
        const char *isa;
        int major, minor;
        const char *expected;
    } cases[] = {{"sm_75", 7, 5, "sm_75"},   {"sm_80", 8, 0, "sm_80"},    {"sm_89", 8, 9, "sm_86"},      {"sm_90", 9, 0, "sm_90a"},
                 {"sm_100", 10, 0, "sm_100"}, {"sm_110", 11, 0, "compute_80"}, {"sm_121", 12, 1, "sm_120"}, {"sm_70", 7, 0, ""},
                 {"gfx906", 0, 0, "gfx906"}, {"gfx900", 0, 0, "gfx9-generic"}, {"gfx90a", 0, 0, "gfx90a"}, {"gfx942", 0, 0, "gfx942"},
                 {"gfx950", 0, 0, "gfx9-4-generic"}, {"gfx1010", 0, 0, "gfx10-1-generic"}, {"gfx1013", 0, 0, "gfx10-1-generic"}, {"gfx1030", 0, 0, "gfx10-3-generic"}, {"gfx1100", 0, 0, "gfx1100"}, {"gfx1151", 0, 0, "gfx11-generic"},
                 {"gfx1201", 0, 0, "gfx12-generic"}, {"gfx803", 0, 0, ""}, {"gfx908", 0, 0, ""}};
    size_t i;
    for (i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        bool hip = cases[i].isa[0] == 'g';
        const char *got = gpu_chosen(hip ? &fg__hip_driver : &fg__cuda_driver, cases[i].isa, cases[i].major, cases[i].minor, hip ? amd : nvidia,
                                     (int)(hip ? FG__COUNT(amd) : FG__COUNT(nvidia)));
        CHECKF(strcmp(got, cases[i].expected) == 0, "%s gets '%s'", cases[i].isa, got);
    }
}

/* An image that packs a short text as it is. */
static fg__gpu_image gpu_text_image(const char *target, const char *text, char *packed, const char **piece) {
    size_t n = strlen(text);
    fg__gpu_image image;
    packed[0] = (char)0xF0; /* 15 literals and more */
    packed[1] = (char)(n - 15);
    memcpy(packed + 2, text, n);
    *piece = packed;
    image.target = target;
    image.pieces = piece;
    image.packed_bytes = n + 2;
    image.bytes = n;
    return image;
}

static fg_result gpu_open_images(const fg__gpu_image *images, int n) {
    fg_device_desc desc;
    fg_device *device = NULL;
    fg_result r;
    memset(&desc, 0, sizeof(desc));
    r = fg__gpu_open(&fg__hip_driver, images, n, &desc, &device);
    if (r == FG_OK) fg__gpu_close(device);
    return r;
}

/* Devices that no code object suits: HIPRTC compiles the source, where it is there and likes it; every call of it fails in turn. */
static void test_gpu_host_compile(void) {
    static const char good[] = "kernels of the test", bad[] = "#error kernels of the test";
    char packed[3][64];
    const char *pieces[3];
    fg__gpu_image images[3];
    standin_device device;
    int i, failed = 0;
    if (!gpu_standin_open() || !gpu_standin_image) SKIP(GPU_NONE);
    gpu_standin.get_device(&device);
    strcpy(device.isa, "gfx1013");
    gpu_standin.set_device(&device);
    images[0] = gpu_text_image("gfx1100", "code for another device", packed[0], &pieces[0]);
    images[1] = gpu_text_image("source", good, packed[1], &pieces[1]);
    images[2] = gpu_text_image("source", bad, packed[2], &pieces[2]);
    CHECK(gpu_open_images(images, 1) == FG_ERROR_UNSUPPORTED && strstr(fg_last_error(), "gfx1013"));
    CHECK(gpu_open_images(images, 2) == FG_ERROR_UNSUPPORTED && strstr(fg_last_error(), "HIPRTC"));
    gpu_set_variable("FASTGEN_HIPRTC_LIBRARY", getenv("FASTGEN_HIP_LIBRARY"));
    CHECKF(gpu_open_images(images, 2) == FG_OK, "%s", fg_last_error());
    CHECK(gpu_open_images(images + 2, 1) == FG_ERROR_UNSUPPORTED && strstr(fg_last_error(), "kernels of the test are wrong"));
    for (i = 0; i < 20; i++) {
        standin_stats stats;
        gpu_standin.fail_rtc(i);
        failed += gpu_open_images(images, 2) == FG_ERROR_UNSUPPORTED && strstr(fg_last_error(), "error 11") != NULL;
        gpu_standin.get_stats(&stats);
        CHECKF(stats.live == 0, "call %d: %d objects are left", i, stats.live);
    }
    CHECKF(failed == 4, "%d calls failed", failed); /* to create, to compile, the size, the code */
    gpu_standin.fail_rtc(-1);
    device.reject_binaries = 1;
    gpu_standin.set_device(&device);
    CHECK(gpu_open_images(images, 2) == FG_ERROR_DEVICE);
    images[1].bytes++;
    CHECK(gpu_open_images(images, 2) == FG_ERROR_DEVICE && strstr(fg_last_error(), "damaged"));
    gpu_set_variable("FASTGEN_HIPRTC_LIBRARY", "none");
    gpu_standin_check();
}

/* Packed images: written by hand, cut off and damaged at every byte. */
static void test_gpu_host_unpack(void) {
    static const char packed[] = "\x43" "abcd" "\x04\x00\x00" "\xF0\x01" "0123456789ABCDEF";
    static const char *const pieces[] = {packed};
    uint8_t to[64];
    fg__gpu_image image;
    size_t i;
    int byte;
    memset(&image, 0, sizeof(image));
    image.target = "test";
    image.pieces = pieces;
    image.packed_bytes = sizeof(packed) - 1;
    image.bytes = 4 + 7 + 16;
    CHECK(fg__gpu_unpack_image(&image, to) && memcmp(to, "abcdabcdabc0123456789ABCDEF", 27) == 0);
    for (i = 0; i < sizeof(packed) - 1; i++) {
        image.packed_bytes = i;
        CHECK(!fg__gpu_unpack_image(&image, to));
    }
    image.packed_bytes = sizeof(packed) - 1;
    for (i = 0; i < sizeof(packed) - 1; i++)
        for (byte = 0; byte < 256; byte++) {
            char damaged[sizeof(packed)];
            const char *piece = damaged;
            uint8_t *exact = (uint8_t *)malloc(image.bytes);
            memcpy(damaged, packed, sizeof(packed));
            damaged[i] = (char)byte;
            image.pieces = &piece;
            (void)fg__gpu_unpack_image(&image, exact); /* the sanitizers say whether it stays inside */
            free(exact);
        }
}

/* ---- Models. ---- */

static void test_gpu_host_model(void) {
    cpu_attn small = {FG_TYPE_F16, 8, 2, 32, 32, 1, 0, 32, false, 0.0f, 1.0f, {40, 33, 1, 20, 5, 12}};
    int p;
    if (!gpu_standin_open()) SKIP(GPU_NONE);
    for (p = 0; p < GPU_PATHS; p++)
        if (cpu_has_gpu(gpu_paths[p])) gpu_check_model(gpu_paths[p], &small, 0, p == 0 ? 4 : 8, 5e-3);
    gpu_standin_check();
}

static void test_gpu_host_copy_blocks(void) {
    if (!gpu_standin_open()) SKIP(GPU_NONE);
    if (cpu_has_gpu("cuda-invariant")) cpu_check_copy_blocks("cuda-invariant"); /* it compares one query with many, which have kernels of their own elsewhere */
    if (cpu_has_gpu("hip64-invariant")) cpu_check_copy_blocks("hip64-invariant");
    gpu_standin_check();
}

static void test_gpu_host_swap(void) {
    if (!gpu_standin_open()) SKIP(GPU_NONE);
    if (cpu_has_gpu("cuda")) gpu_check_swap("cuda");
    if (cpu_has_gpu("hip64")) gpu_check_swap("hip64");
    gpu_standin_check();
}

/* The invariant of design section 6, as a mode: the same bits alone and in any batch, chunk, with prefixes from the cache, set
   back and resumed. */
static void test_gpu_host_engine(void) {
    model_spec experts = bits_experts(), states = bits_states();
    if (!gpu_standin_open()) SKIP(GPU_NONE);
    if (cpu_has_gpu("cuda-invariant")) bits_gpu("cuda-invariant", "cuda-invariant", 2, 8);
    if (cpu_has_gpu("hip64-invariant")) bits_gpu("hip64-invariant", "hip64-invariant", 9, 6);
    if (cpu_has_gpu("cuda-invariant")) bits_gpu_of(&experts, "cuda-invariant", "cuda-invariant", 5, 6);
    if (cpu_has_gpu("hip64-invariant")) bits_gpu_of(&states, "hip64-invariant", "hip64-invariant", 5, 6);
    gpu_standin_check();
}

typedef struct gpu_said {
    char text[1000];
} gpu_said;

static gpu_said *gpu_ear; /* of engines that gpu_greedy makes */
static fg_type gpu_kv_type;

static void gpu_listen(fg_log_level level, const char *message, void *user) {
    gpu_said *said = (gpu_said *)user;
    size_t n = strlen(said->text);
    if (level >= FG_LOG_WARNING) snprintf(said->text + n, sizeof(said->text) - n, "%s\n", message);
}

/* Greedy tokens of a request with a prompt of n_prompt tokens, with the given options. */
static int gpu_greedy(fg_model *model, const char *path, const fg_gpu_options *options, int n_prompt, int budget, int32_t *tokens,
                      float *logprobs, int most) {
    fg_engine_desc d = engine_desc(model, cpu_backend_of(path));
    fg_engine *e;
    fg_event event;
    fg_request_desc request;
    fg_request handle;
    int32_t prompt[240];
    bool busy = true;
    int i, n = 0;
    for (i = 0; i < n_prompt; i++) prompt[i] = 5 + i * 13 % 200;
    if (!gpu_ear) cpu_gpu_options(path); /* which sets the device's width and name */
    d.backend_options = options;
    d.token_budget = budget;
    d.max_context = 256;
    d.block_tokens = 16;
    d.kv_type = gpu_kv_type;
    d.log = gpu_ear ? gpu_listen : d.log;
    d.log_user = gpu_ear ? gpu_ear : d.log_user;
    e = engine_new(&d);
    memset(&request, 0, sizeof(request));
    request.tokens = prompt;
    request.n_tokens = n_prompt;
    request.max_tokens = most;
    request.ignore_eos = request.logprobs = true;
    CHECK(fg_submit(e, &request, &handle) == FG_OK);
    while (busy) {
        CHECK(fg_step(e, 0, &busy) == FG_OK);
        while (fg_next_event(e, &event))
            if (event.type == FG_EVENT_TOKEN && n < most) {
                logprobs[n] = event.logprob;
                tokens[n++] = event.token;
            }
    }
    fg_engine_free(e);
    return n;
}

/* With graphs and without, and with little memory for attention's partial sums: the same bits. */
static void test_gpu_host_graphs(void) {
    model_spec spec = model_spec_tiny();
    model_sample m;
    fg_gpu_options options;
    int32_t tokens[2][24];
    float logprobs[2][24];
    long calls[2];
    standin_stats stats;
    int i;
    if (!gpu_standin_open() || !gpu_standin_image) SKIP(GPU_NONE);
    model_sample_open(&m, &spec);
    for (i = 0; m.model && i < 2; i++) {
        memset(&options, 0, sizeof(options));
        options.image = gpu_standin_image;
        options.no_graphs = i == 1;
        gpu_standin.fail(-1, -1, 0);
        CHECK(gpu_greedy(m.model, "cuda", &options, 50, 20, tokens[i], logprobs[i], 24) == 24);
        gpu_standin.get_stats(&stats);
        calls[i] = stats.calls;
    }
    CHECK(memcmp(tokens[0], tokens[1], sizeof(tokens[0])) == 0 && memcmp(logprobs[0], logprobs[1], sizeof(logprobs[0])) == 0);
    CHECKF(calls[0] * 5 < calls[1] * 4, "%ld calls with graphs, %ld without", calls[0], calls[1]);
    model_sample_close(&m);
    gpu_standin_check();
}

static int gpu_times(const char *text, const char *part) {
    int n = 0;
    while ((text = strstr(text, part)) != NULL) text++, n++;
    return n;
}

/* Where there is no memory for a graph, be it found when it is made or when it is launched, or another error, kernels are launched one
   by one: the same bits. */
static void test_gpu_host_graph_errors(void) {
    static const struct {
        size_t node_bytes;
        int error;
    } cases[] = {{0, 0}, {(size_t)1 << 30, 0}, {0, 2}, {0, 1}};
    model_spec spec = model_spec_tiny();
    model_sample m;
    standin_device device;
    fg_gpu_options options;
    gpu_said said;
    int32_t tokens[4][12];
    float logprobs[4][12];
    int i;
    if (!gpu_standin_open() || !gpu_standin_image) SKIP(GPU_NONE);
    memset(&options, 0, sizeof(options));
    options.image = gpu_standin_image;
    model_sample_open(&m, &spec);
    for (i = 0; m.model && i < 4; i++) {
        device = gpu_standin.device;
        device.node_bytes = cases[i].node_bytes;
        device.graph_error = cases[i].error;
        gpu_standin.set_device(&device);
        memset(&said, 0, sizeof(said));
        gpu_ear = &said;
        CHECKF(gpu_greedy(m.model, "cuda", &options, 50, 20, tokens[i], logprobs[i], 12) == 12, "case %d", i);
        gpu_ear = NULL;
        CHECKF(memcmp(tokens[0], tokens[i], sizeof(tokens[0])) == 0 && memcmp(logprobs[0], logprobs[i], sizeof(logprobs[0])) == 0, "case %d", i);
        CHECKF(gpu_times(said.text, "kernels are launched one by one") == (i > 0), "case %d: the log says: %s", i, said.text);
    }
    model_sample_close(&m);
    gpu_standin_check();
}

/* The versions of HIP whose graphs are wrong have none, unless they are asked for. */
static void test_gpu_host_graph_versions(void) {
    static const struct {
        int version;
        bool forced, has;
    } cases[] = {{70199999, false, true}, {70200000, false, false}, {70299999, false, false}, {70253211, true, true}, {70300000, false, true}, {71300000, false, true}};
    model_spec spec = model_spec_tiny();
    model_sample m;
    fg_gpu_options options;
    gpu_said said;
    standin_device device;
    standin_stats stats;
    int32_t tokens[12];
    float logprobs[12];
    size_t i;
    if (!gpu_standin_open() || !gpu_standin_image) SKIP(GPU_NONE);
    memset(&options, 0, sizeof(options));
    options.image = gpu_standin_image;
    device = gpu_standin.device;
    device.idle = 1;
    model_sample_open(&m, &spec);
    for (i = 0; m.model && i < FG__COUNT(cases); i++) {
        device.driver = cases[i].version;
        gpu_standin.set_device(&device);
        gpu_standin.fail(-1, -1, 0);
        options.force_graphs = cases[i].forced;
        memset(&said, 0, sizeof(said));
        gpu_ear = &said;
        CHECK(gpu_greedy(m.model, "hip", &options, 50, 20, tokens, logprobs, 12) == 12);
        gpu_ear = NULL;
        gpu_standin.get_stats(&stats);
        CHECKF((stats.graphs > 0) == cases[i].has, "HIP %d: %ld graphs", cases[i].version, stats.graphs);
        CHECKF(gpu_times(said.text, "issue 3887") == !cases[i].has, "HIP %d: the log says: %s", cases[i].version, said.text);
    }
    model_sample_close(&m);
    gpu_standin_check();
}

/* A pass of the first n tokens, some times; whether it has a graph then. */
static bool gpu_has_graph(const cpu_attn *c, cpu_rig *rig, int n, int times) {
    const fg__gpu_plan *plan = (const fg__gpu_plan *)(void *)rig->plan;
    int i;
    for (i = 0; i < times; i++) {
        cpu_batch_start(rig);
        cpu_attn_add(c, rig, 0, 0, n);
        CHECKF(cpu_rig_submit(rig) == FG_OK, "%s", fg_last_error());
    }
    for (i = 0; i < FG__GPU_GRAPHS; i++)
        if (plan->graphs[i].exec && plan->graphs[i].key.tokens == n) return true;
    return false;
}

/* Graphs take no more than their part of the device's memory: later ones have room when those before were not used for long. */
static void test_gpu_host_graph_room(void) {
    cpu_attn c = {FG_TYPE_F16, 2, 1, 16, 16, 1, 0, 32, false, 0.0f, 1.0f, {64, 0, 0, 0, 0, 0}};
    cpu_rig *rig;
    standin_device device;
    standin_stats stats;
    if (!gpu_standin_open() || !gpu_standin_image) SKIP(GPU_NONE);
    rig = cpu_attn_rig(&c, 64);
    device = gpu_standin.device;
    device.idle = 1;
    device.node_bytes = 64 << 10;
    device.memory = (size_t)16 << 20; /* of which graphs have 16 kernels: two of six each */
    gpu_standin.set_device(&device);
    gpu_standin.fail(-1, -1, 0);
    if (cpu_rig_open(rig, "cuda", 1) == FG_OK) {
        CHECK(gpu_has_graph(&c, rig, 1, 3) && gpu_has_graph(&c, rig, 2, 3));
        CHECK(!gpu_has_graph(&c, rig, 4, 3) && !gpu_has_graph(&c, rig, 8, 3) && gpu_has_graph(&c, rig, 2, 1));
        CHECK(gpu_has_graph(&c, rig, 4, FG__GPU_GRAPHS) && gpu_has_graph(&c, rig, 2, 0) && !gpu_has_graph(&c, rig, 1, 0));
        CHECK(gpu_has_graph(&c, rig, 2, 1) && !gpu_has_graph(&c, rig, 1, 3) && gpu_has_graph(&c, rig, 4, 1));
    }
    gpu_standin.get_stats(&stats);
    CHECKF(stats.graph_bytes == 12 * device.node_bytes, "graphs took %zu bytes", stats.graph_bytes);
    cpu_rig_free(rig);
    gpu_standin_check();
}

/* ---- Passes in flight. ---- */

static const fg_backend *gpu_async_backend;
static int gpu_n_fed, gpu_n_swaps, gpu_n_read;

static fg_result gpu_async_submit(fg_device *device, fg_plan *plan, const fg_batch *batch) {
    int i;
    for (i = 0; batch->feed && i < batch->n_tokens; i++) gpu_n_fed += batch->feed[i] >= 0;
    return gpu_async_backend->submit(device, plan, batch);
}

static fg_result gpu_async_swap(fg_device *device, fg_plan *plan, int group, const int32_t *blocks, int n, void *host, bool out, size_t *bytes) {
    gpu_n_swaps += host != NULL;
    return gpu_async_backend->swap_blocks(device, plan, group, blocks, n, host, out, bytes);
}

static fg_result gpu_async_read(fg_device *device, fg_plan *plan, int row, float *logits) {
    gpu_n_read++;
    return gpu_async_backend->read_logits(device, plan, row, logits);
}

/* Random requests that come and go, a few of them cancelled, with the next pass made and sent while one is computed: tokens as alone.
   A pool for two of them sets others back, to host memory. */
static void gpu_check_async(const char *path, const model_spec *spec, uint64_t random) {
    enum { N = 6 };
    model_sample m;
    fg_backend backend;
    fg_engine_desc d;
    job *jobs = (job *)malloc(N * sizeof(job));
    int i, t, async;
    gpu_n_swaps = gpu_n_read = 0;
    engine_options = cpu_gpu_options(path);
    engine_token_budget = cpu_is_vulkan(path) ? 8 : 0; /* there the bits are the same in passes of few tokens */
    gpu_async_backend = cpu_backend_of(path);
    backend = *gpu_async_backend;
    backend.submit = gpu_async_submit;
    backend.swap_blocks = gpu_async_swap;
    backend.read_logits = gpu_async_read;
    model_sample_open(&m, spec);
    for (i = 0; m.model && i < N; i++) {
        async_job(&jobs[i], &random);
        for (t = 0; t < 9 + i; t++) jobs[i].prompt[t] = 5 + (i * 17 + t * 7) % 200;
        jobs[i].desc.n_tokens = (size_t)t;
        jobs[i].desc.max_tokens = 30 - i; /* two of the pool's six blocks each in the beginning, five in the end */
        jobs[i].desc.ignore_eos = true;
        jobs[i].desc.n = 0;
        jobs[i].desc.sampling.temperature = 0; /* tokens are fed where all of a pass are the highest */
        if (i % 3 != 2) continue;
        jobs[i].desc.sampling.temperature = 5.0f; /* candidates do not suffice: whole rows are read, while the next pass runs */
        jobs[i].desc.sampling.top_p = 0.95f;
        jobs[i].desc.sampling.top_k = 0;
    }
    jobs_alone_on(m.model, gpu_async_backend, jobs, N);
    for (async = FG_ASYNC_OVERLAP; m.model && async <= FG_ASYNC_2; async++) {
        gpu_n_fed = 0;
        d = engine_desc(m.model, &backend);
        d.async = (fg_async)async;
        d.kv_tokens = 48;
        d.block_tokens = 8;
        d.max_context = 48;
        d.token_budget = cpu_is_vulkan(path) ? 8 : 24;
        d.max_seqs = 4;
        d.preemption = FG_PREEMPT_SWAP;
        jobs_storm(&d, jobs, N, &random);
        CHECKF((gpu_n_fed > 0) == (async == FG_ASYNC_OVERLAP), "%s, async %d: %d tokens fed", path, async, gpu_n_fed);
    }
    CHECKF(gpu_n_swaps > 1 && gpu_n_read > 1, "%s: %d swaps, %d rows read", path, gpu_n_swaps, gpu_n_read);
    engine_options = NULL;
    engine_token_budget = 0;
    model_sample_close(&m);
    free(jobs);
}

/* Passes are waited for in their order, two at most. */
static void gpu_check_order(const char *path) {
    cpu_attn c = {FG_TYPE_F16, 4, 2, 32, 32, 1, 0, 16, false, 0.0f, 1.0f, {40, 0, 0, 0, 0, 0}};
    cpu_rig *rig = cpu_attn_rig(&c, 64);
    size_t row = sizeof(float) * (size_t)(c.n_head * c.head_dim);
    float *alone = (float *)calloc(40, row);
    fg_output outputs[2];
    int i;
    if (cpu_rig_open(rig, path, 1) == FG_OK) {
        cpu_attn_all(&c, rig, 0, 20, alone);
        for (i = 0; i < 3; i++) {
            cpu_batch_start(rig);
            cpu_attn_add(&c, rig, 0, 20 * (i % 2), 20 * (i % 2) + 20);
            CHECK(rig->backend->submit(rig->device, rig->plan, &rig->batch) == (i < 2 ? FG_OK : FG_ERROR_INVALID_ARGUMENT));
        }
        for (i = 0; i < 2; i++) CHECK(rig->backend->wait(rig->device, rig->plan, &outputs[i]) == FG_OK);
        for (i = 0; i < 2; i++) CHECK(memcmp(outputs[i].logits, alone + (size_t)(20 * i) * row / sizeof(float), 20 * row) == 0);
        CHECK(rig->backend->wait(rig->device, rig->plan, &outputs[0]) == FG_ERROR_INVALID_ARGUMENT);
    }
    free(alone);
    cpu_rig_free(rig);
}

static void test_vulkan_async(void) {
    model_spec spec = model_spec_tiny();
    if (!cpu_vulkan_device(0)) SKIP("there is no Vulkan device");
    gpu_check_order("vulkan");
    gpu_check_async("vulkan", &spec, 3);
    spec.arch = "qwen3";
    spec.type = FG_TYPE_Q8_0;
    spec.window = 13;
    spec.full_every = 2;
    gpu_check_async("vulkan", &spec, 4);
}

static void test_gpu_host_async(void) {
    model_spec spec = model_spec_tiny();
    if (!gpu_standin_open()) SKIP(GPU_NONE);
    if (cpu_has_gpu("cuda-invariant")) gpu_check_async("cuda-invariant", &spec, 3);
    spec.arch = "qwen3";
    spec.type = FG_TYPE_Q8_0;
    spec.window = 13;
    spec.full_every = 2;
    if (cpu_has_gpu("hip64-invariant")) gpu_check_async("hip64-invariant", &spec, 4);
    gpu_standin_check();
}

/* The passes with the most partial sums: as many sequences as there may be, all of whose contexts are that long. */
static void gpu_check_turns(fg__gpu_set *set, const fg_graph *graph, int32_t context) {
    int32_t seqs = FG__MIN(graph->max_seqs, graph->max_tokens / set->low), each = graph->max_tokens / seqs;
    int32_t *cu_q = (int32_t *)calloc((size_t)seqs + 1, sizeof(int32_t)), *kv_len = (int32_t *)calloc((size_t)seqs, sizeof(int32_t));
    fg_gpu_attn_item *items = (fg_gpu_attn_item *)calloc((size_t)set->most.items, sizeof(*items));
    fg_gpu_attn_merge *merges = (fg_gpu_attn_merge *)calloc((size_t)set->most.merges, sizeof(*merges));
    fg_gpu_attn_counts n = {0, 0, 0};
    int32_t s;
    for (s = 0; s < seqs; s++) cu_q[s + 1] = cu_q[s] + each, kv_len[s] = context;
    fg_gpu_attn_add(seqs, cu_q, kv_len, set->heads, 0, set->rows, set->split, set->low, set->high, &n, items, merges);
    CHECKF(n.items <= set->most.items && n.merges <= set->most.merges && n.partials <= set->most.partials, "%d items of %d", n.items, set->most.items);
    fg__gpu_cut_turns(set, items, merges, &n);
    CHECKF(set->turns > 1 && set->turns <= FG__GPU_TURNS, "%d turns", set->turns);
    free(cu_q);
    free(kv_len);
    free(items);
    free(merges);
}

/* Attention over several splits of a long context in one turn, and, with little memory for partial sums, in several: the same. */
static void test_gpu_host_turns(void) {
    cpu_attn c = {FG_TYPE_F16, 2, 1, 16, 16, 1, 0, 32, false, 0.0f, 1.0f, {1600, 0, 0, 0, 0, 0}};
    size_t n = (size_t)cpu_attn_total(&c) * 32;
    float *out[2];
    int i, turns = 0;
    if (!gpu_standin_open() || !gpu_standin_image) SKIP(GPU_NONE);
    for (i = 0; i < 2; i++) {
        cpu_rig *rig = cpu_attn_rig(&c, 256);
        gpu_scratch_bytes = i == 1 ? 1 : 0;
        out[i] = (float *)calloc(n, sizeof(float));
        if (cpu_rig_open(rig, "cuda", 2) == FG_OK) {
            int at;
            for (at = 0; at < 1600; at += 200) {
                cpu_batch_start(rig);
                cpu_attn_add(&c, rig, 0, at, at + 200);
                cpu_attn_take(rig, out[i]);
                if (i == 1) turns = FG__MAX(turns, ((fg__gpu_plan *)(void *)rig->plan)->sets[1].turns);
                CHECK(((fg__gpu_plan *)(void *)rig->plan)->sets[0].split == FG_GPU_FEW_SPLIT); /* of NVIDIA's kernels for few queries */
            }
        }
        cpu_rig_free(rig);
    }
    gpu_scratch_bytes = 0;
    CHECKF(turns > 1, "%d turns", turns);
    CHECK(memcmp(out[0], out[1], n * sizeof(float)) == 0);
    for (i = 0; i < 2; i++) free(out[i]);
    gpu_standin_check();
}

/* A device's whole name before one that begins with it. */
static void test_gpu_host_names(void) {
    CHECK(fg__name_match("NVIDIA GeForce RTX 3060", "NVIDIA GeForce RTX 3060") == 3 && fg__name_match("NVIDIA GeForce RTX 3060 Ti", "NVIDIA GeForce RTX 3060") == 1);
    CHECK(fg__name_match("NVIDIA GeForce RTX 3060", "RTX 3060") == 2 && fg__name_match("NVIDIA GeForce RTX 3060 Ti", "RTX 3060") == 1);
    CHECK(fg__name_match("NVIDIA GeForce RTX 3060", "NVIDIA GeForce RTX 3060 Ti, sm_86") == 0);
    CHECK(fg__name_match("NVIDIA GeForce RTX 3060 Ti", "NVIDIA GeForce RTX 3060 Ti, sm_86") == 3);
    CHECK(fg__name_match("NVIDIA GeForce RTX 4090 D", "4090") == 1 && fg__name_match("NVIDIA GeForce RTX 4090", "4080") == 0);
}

/* Long contexts of many tokens have gigabytes of partial sums, and yet the memory for them is what options say, in as many turns as it takes. */
static void test_gpu_host_scratch(void) {
    static const int32_t heads[] = {1, 4, 8}, splits[] = {FG_GPU_FEW_SPLIT, FG_GPU_SPLIT};
    static fg__gpu_device device;
    fg__gpu_plan *plan = (fg__gpu_plan *)calloc(1, sizeof(*plan));
    fg_graph *graph = (fg_graph *)calloc(1, sizeof(*graph));
    int h, s, big;
    graph->max_tokens = 2048;
    graph->max_seqs = 256;
    graph->n_groups = 1;
    graph->groups[0].block_tokens = 64;
    graph->max_blocks_per_seq = 131072 / 64;
    plan->graph = graph;
    plan->device = &device;
    for (h = 0; h < 3; h++)
        for (s = 0; s < 2; s++)
            for (big = 0; big < (SIZE_MAX > UINT32_MAX ? 2 : 1); big++) {
                fg__gpu_set set;
                size_t row_bytes = 8 * (128 + 2) * sizeof(float), most = big ? (size_t)141 << 22 : (size_t)64 << 20;
                memset(&set, 0, sizeof(set));
                device.memory = big ? (size_t)((uint64_t)141 << 30) : (size_t)1 << 30;
                plan->partials_bytes = 0;
                set.heads = heads[h];
                set.n_kv_head = 8;
                set.head_dim = 128;
                set.rows = s ? FG_GPU_WG_ROWS : FG_GPU_ATTN_ROWS;
                set.split = splits[s];
                set.low = s ? FG__GPU_WIDE_FROM : 1;
                set.high = s ? INT32_MAX : FG__GPU_WIDE_FROM - 1;
                fg__gpu_size_set(plan, &set);
                most += (size_t)FG__MAX(set.rows, set.heads) * (131072 / (size_t)set.split + 2) * row_bytes; /* a piece more */
                if (!big) most += (size_t)set.most.partials / (FG__GPU_TURNS - 2) * row_bytes;
                CHECKF(plan->partials_bytes <= most && plan->partials_bytes < (size_t)700 << 20, "%d heads, items of %d: %zu MiB of %zu, all are %zu", set.heads,
                       set.split, plan->partials_bytes >> 20, most >> 20, (size_t)set.most.partials * row_bytes >> 20);
                gpu_check_turns(&set, graph, 131072);
            }
    free(graph);
    free(plan);
}

/* Where there are few sequences a context is cut into shorter items: the same, but for roundings. */
static void test_gpu_host_alone(void) {
    cpu_attn c = {FG_TYPE_F16, 2, 1, 64, 64, 1, 0, 32, false, 0.0f, 1.0f, {400, 0, 0, 0, 0, 0}};
    size_t n = (size_t)cpu_attn_total(&c) * 128, k;
    float *out[2];
    double worst = 0.0;
    int i;
    if (!gpu_standin_open() || !gpu_standin_image) SKIP(GPU_NONE);
    for (i = 0; i < 2; i++) {
        cpu_rig *rig = cpu_attn_rig(&c, 256);
        out[i] = (float *)calloc(n, sizeof(float));
        rig->graph.max_seqs = i ? FG_GPU_ALONE : FG_GPU_ALONE + 1;
        if (cpu_rig_open(rig, "cuda", 2) == FG_OK) {
            int at, more;
            for (at = 0; at < 400; at += more) {
                more = at < 200 ? 200 : at < 392 ? 192 : 1;
                cpu_batch_start(rig);
                cpu_attn_add(&c, rig, 0, at, at + more);
                cpu_attn_take(rig, out[i]);
            }
            CHECK(((fg__gpu_plan *)(void *)rig->plan)->sets[0].split == (i ? FG_GPU_ALONE_SPLIT : FG_GPU_FEW_SPLIT));
        }
        cpu_rig_free(rig);
    }
    for (k = 0; k < n; k++) worst = test_worse(worst, fabs((double)out[0][k] - (double)out[1][k]));
    CHECKF(worst > 0.0 && worst < 1e-3, "%g", worst);
    for (i = 0; i < 2; i++) free(out[i]);
    gpu_standin_check();
}

/* ---- Products by a library. ---- */

/* Whether the stand-in driver is also cuBLASLt and hipBLASLt. */
static void gpu_use_blas(bool use) {
    gpu_set_variable("FASTGEN_CUBLASLT_LIBRARY", use ? getenv("FASTGEN_CUDA_LIBRARY") : "none");
    gpu_set_variable("FASTGEN_HIPBLASLT_LIBRARY", use ? getenv("FASTGEN_HIP_LIBRARY") : "none");
}

typedef struct gpu_answer {
    int32_t tokens[4];
    float logprobs[4];
    long products, calls; /* of the library */
} gpu_answer;

/* A prompt in three passes of 80 tokens: kernel by kernel, captured, and as a graph. */
static gpu_answer gpu_blas_answer(fg_model *model, const char *path, const standin_blas *blas) {
    fg_gpu_options options;
    gpu_answer a;
    standin_stats stats;
    memset(&options, 0, sizeof(options));
    memset(&a, 0, sizeof(a));
    options.image = gpu_standin_image;
    gpu_use_blas(blas != NULL);
    if (blas) gpu_standin.set_blas(blas);
    CHECK(gpu_greedy(model, path, &options, 240, 80, a.tokens, a.logprobs, 4) == 4);
    gpu_standin.get_stats(&stats);
    a.products = stats.products;
    a.calls = stats.blas_calls;
    gpu_use_blas(false);
    return a;
}

static bool gpu_answers_are(const gpu_answer *a, const gpu_answer *b, float most) {
    int i;
    for (i = 0; i < 4; i++)
        if (a->tokens[i] != b->tokens[i] || !(fabsf(a->logprobs[i] - b->logprobs[i]) <= most)) return false;
    return true;
}

static void gpu_check_blas(const char *path, fg_type type) {
    static const standin_blas good = {-1, 0, 0, 0}, wrong = {-1, 1, 0, 0}, no_capture = {-1, 0, 1, 0}, fault = {-1, 2, 0, 0};
    model_spec spec = model_spec_tiny();
    model_sample m;
    gpu_answer own, with;
    spec.type = type;
    model_sample_open(&m, &spec);
    if (!m.model) return;
    own = gpu_blas_answer(m.model, path, NULL);
    with = gpu_blas_answer(m.model, path, &good);
    /* one of the check, then those of three passes, but for K and V, whose columns do not begin at 256 bytes; passes of one token have none */
    CHECKF(with.products == 1 + 3 * 2 * 5, "%s: %ld products", path, with.products);
    /* numbers of caches of fewer bits fall on the other side of a rounding border */
    CHECKF(gpu_answers_are(&own, &with, type == FG_TYPE_F16 ? 2e-3f : 2e-2f), "%s, type %d: another answer by the library", path, (int)type);
    with = gpu_blas_answer(m.model, path, &wrong);
    CHECKF(with.products == 1 && gpu_answers_are(&own, &with, 0), "%s: a library that is wrong was used", path);
    if (strcmp(path, "cuda") == 0) { /* it is tried in a context of its own */
        with = gpu_blas_answer(m.model, path, &fault);
        CHECKF(with.products == 1 && gpu_answers_are(&own, &with, 0), "a fault of the library cost more than the library");
    }
    with = gpu_blas_answer(m.model, path, &no_capture);
    CHECKF(with.products == 1 + 2 * 5 && gpu_answers_are(&own, &with, 2e-2f), "%s: without capture", path);
    model_sample_close(&m);
}

static void test_gpu_host_blas(void) {
    if (!gpu_standin_open() || !gpu_standin_image) SKIP(GPU_NONE);
    gpu_check_blas("cuda", FG_TYPE_BF16);
    gpu_check_blas("hip", FG_TYPE_F16);
    gpu_check_blas("hip64", FG_TYPE_BF16);
    gpu_standin_check();
}

/* What a product of 80 rows takes, before its weight is packed. */
static size_t gpu_blas_memory(fg_type type) {
    uint64_t state = 41;
    cpu_rig *rig = cpu_rig_new(80);
    int x = cpu_slot(rig, 64, false), y = cpu_slot(rig, 64, false);
    fg_device *device = gpu_open("cuda", NULL);
    fg_memory memory;
    cpu_op(rig, FG_OP_EMBED, -1, x, 64)->weight = cpu_weight(rig, FG_TYPE_F32, 64, 80, FG_OP_EMBED, &state);
    cpu_op(rig, FG_OP_GEMM, x, y, 64)->k = 64;
    rig->ops[1].weight = cpu_weight(rig, type, 64, 64, FG_OP_GEMM, &state);
    cpu_rig_end(rig, y);
    rig->graph.weights = NULL;
    memset(&memory, 0, sizeof(memory));
    if (device) {
        CHECKF(fg_backend_cuda()->prepare(device, &rig->graph, NULL, &memory) == FG_OK, "%s", fg_last_error());
        fg_backend_cuda()->close(device);
    }
    cpu_rig_free(rig);
    return memory.activations;
}

/* The library is left alone, and no memory set aside for it, where it has no product to do. */
static void test_gpu_host_blas_unused(void) {
    static const standin_blas good = {-1, 0, 0, 0};
    model_spec spec = model_spec_tiny();
    model_sample m;
    gpu_answer own, with;
    size_t bytes[2];
    if (!gpu_standin_open() || !gpu_standin_image) SKIP(GPU_NONE);
    spec.type = FG_TYPE_Q8_0;
    model_sample_open(&m, &spec);
    if (!m.model) return;
    own = gpu_blas_answer(m.model, "cuda", NULL);
    with = gpu_blas_answer(m.model, "cuda", &good);
    CHECKF(with.calls == 0 && gpu_answers_are(&own, &with, 0), "%ld calls of the library", with.calls);
    model_sample_close(&m);
    gpu_use_blas(true);
    bytes[0] = gpu_blas_memory(FG_TYPE_Q8_0);
    bytes[1] = gpu_blas_memory(FG_TYPE_F16);
    gpu_use_blas(false);
    CHECKF(bytes[1] == bytes[0] + FG__GPU_BLAS_WORKSPACE, "%zu bytes, and %zu with a library", bytes[0], bytes[1]);
    gpu_standin_check();
}

/* A product of an F16 matrix and one of a BF16 matrix, on a device whose library may lack a type; how many were the library's. */
static long gpu_blas_types(const char *path, int without, float *to) {
    standin_blas blas = {-1, 0, 0, 0};
    uint64_t state = 43;
    cpu_rig *rig = cpu_rig_new(80);
    int x = cpu_slot(rig, 64, false), y = cpu_slot(rig, 64, false), z = cpu_slot(rig, 64, false);
    standin_stats stats;
    cpu_op(rig, FG_OP_EMBED, -1, x, 64)->weight = cpu_weight(rig, FG_TYPE_F32, 64, 80, FG_OP_EMBED, &state);
    cpu_op(rig, FG_OP_GEMM, x, y, 64)->k = 64;
    cpu_op(rig, FG_OP_GEMM, y, z, 64)->k = 64;
    rig->ops[1].weight = cpu_weight(rig, FG_TYPE_F16, 64, 64, FG_OP_GEMM, &state);
    rig->ops[2].weight = cpu_weight(rig, FG_TYPE_BF16, 64, 64, FG_OP_GEMM, &state);
    cpu_rig_end(rig, z);
    blas.without = without;
    gpu_use_blas(true);
    gpu_standin.set_blas(&blas);
    if (cpu_rig_open(rig, path, 1) == FG_OK) memcpy(to, cpu_rig_run(rig, 0, 80), 80 * 64 * sizeof(float));
    gpu_standin.get_stats(&stats);
    gpu_use_blas(false);
    cpu_rig_free(rig);
    return stats.products;
}

/* A library that lacks one type does the products of the other. */
static void test_gpu_host_blas_types(void) {
    static const int types[] = {0, FG__GPU_BLAS_F16, FG__GPU_BLAS_BF16};
    float *out[3];
    double error, square;
    long products;
    int p, t, i;
    if (!gpu_standin_open() || !gpu_standin_image) SKIP(GPU_NONE);
    for (t = 0; t < 3; t++) out[t] = (float *)calloc(80 * 64, sizeof(float));
    for (p = 0; p < 2; p++)
        for (t = 0; t < 3; t++) {
            products = gpu_blas_types(gpu_paths[p], types[t], out[t]);
            for (error = square = 0, i = 0; i < 80 * 64; i++) {
                error += (double)(out[t][i] - out[0][i]) * (double)(out[t][i] - out[0][i]);
                square += (double)out[0][i] * (double)out[0][i];
            }
            /* a proof and a product of each type that there is */
            CHECKF(products == (t ? 2 : 4), "%s, without type %d: %ld products", gpu_paths[p], types[t], products);
            CHECKF(square > 0 && error <= 1e-4 * square, "%s, without type %d: an error of %g", gpu_paths[p], types[t], sqrt(error / square));
        }
    for (t = 0; t < 3; t++) free(out[t]);
    gpu_standin_check();
}

/* A product of a quantised matrix by the library, which takes it as halves, in pieces where there is no room for all: what our kernels
   make of it, but for the order of sums. With src2 in place, or without. */
static void gpu_check_expand(const char *path, fg_type type, bool in_place, size_t scratch, long pieces) {
    enum { ROWS = 260, N = 192, K = 96 };
    static const standin_blas good = {-1, 0, 0, 0};
    float *out[2];
    double error = 0, square = 0;
    long products[2];
    size_t bytes[2];
    int with, i;
    gpu_scratch_bytes = scratch;
    for (with = 0; with < 2; with++) {
        uint64_t state = 47;
        cpu_rig *rig = cpu_rig_new(ROWS);
        int x = cpu_slot(rig, N, false), y = cpu_slot(rig, N, false);
        standin_stats stats;
        fg_op *op;
        out[with] = (float *)calloc(ROWS * N, sizeof(float));
        cpu_op(rig, FG_OP_EMBED, -1, x, N)->weight = cpu_weight(rig, FG_TYPE_F32, N, ROWS, FG_OP_EMBED, &state);
        cpu_op(rig, FG_OP_EMBED, -1, y, N)->weight = rig->ops[0].weight;
        op = cpu_op(rig, FG_OP_GEMM, x, y, N);
        op->k = K;
        op->src2 = in_place ? y : -1;
        op->weight = cpu_weight(rig, type, K, N, FG_OP_GEMM, &state);
        cpu_rig_end(rig, y);
        gpu_use_blas(with != 0);
        gpu_standin.set_blas(&good);
        if (cpu_rig_open(rig, path, 1) == FG_OK) {
            fg_memory memory;
            for (i = 0; i < 3; i++) memcpy(out[with], cpu_rig_run(rig, 0, ROWS), ROWS * N * sizeof(float)); /* as it is, captured, as a graph */
            CHECK(rig->backend->prepare(rig->device, &rig->graph, NULL, &memory) == FG_OK);
            bytes[with] = memory.activations;
        } else bytes[with] = 0;
        gpu_standin.get_stats(&stats);
        products[with] = stats.products;
        gpu_use_blas(false);
        cpu_rig_free(rig);
    }
    gpu_scratch_bytes = 0;
    for (i = 0; i < ROWS * N; i++) {
        error += (double)(out[1][i] - out[0][i]) * (double)(out[1][i] - out[0][i]);
        square += (double)out[0][i] * (double)out[0][i];
    }
    CHECKF(products[0] == 0 && products[1] == 1 + 3 * pieces, "%s: %ld products", path, products[1]);
    CHECKF(square > 0 && error <= 1e-8 * square, "%s, %s: an error of %g", path, fg_type_name(type), sqrt(error / square));
    /* the rows of one piece, as halves, and the products before they are added */
    CHECKF(bytes[1] == bytes[0] + FG__GPU_BLAS_WORKSPACE + (size_t)(pieces > 1 ? 64 : N) * 128 * 2 + (in_place ? ROWS * N * sizeof(float) : 0), "%zu bytes and %zu",
           bytes[0], bytes[1]);
    for (i = 0; i < 2; i++) free(out[i]);
}

static void test_gpu_host_blas_expand(void) {
    if (!gpu_standin_open() || !gpu_standin_image) SKIP(GPU_NONE);
    gpu_check_expand("cuda", FG_TYPE_Q8_0, false, 0, 1);
    gpu_check_expand("cuda", FG_TYPE_Q8_0, true, 1, 3);
    gpu_check_expand("hip64", FG_TYPE_Q4_0, true, 64 * 128 * 2 + 5, 3);
    gpu_standin_check();
}

/* Rows of a norm and of act_mul whose product is next have their activations made with them: fewer kernels, the same bits as where ranges
   of ops end between. */
static int gpu_made_acts(const char *path, fg_type type, int rows, bool blas) {
    enum { N = 64, F = 128 };
    static const int ends[] = {1, 2, 4, 5, 9};
    static const standin_blas good = {-1, 0, 0, 0};
    uint64_t state = 53;
    cpu_rig *rig = cpu_rig_new(rows);
    int x = cpu_slot(rig, N, false), y = cpu_slot(rig, N, false), z = cpu_slot(rig, 2 * F, false), v = cpu_slot(rig, F, false), i, launched = 0;
    float *whole = (float *)calloc((size_t)rows * N, sizeof(float));
    fg_op *op;
    cpu_op(rig, FG_OP_EMBED, -1, x, N)->weight = cpu_weight(rig, FG_TYPE_F32, N, rows, FG_OP_EMBED, &state);
    cpu_op(rig, FG_OP_NORM, x, y, N)->weight = cpu_weight(rig, FG_TYPE_F32, N, 0, FG_OP_NORM, &state);
    for (i = 0; i < 2; i++) {
        op = cpu_op(rig, FG_OP_GEMM, y, z, F);
        op->k = N, op->dst_col = i * F;
        op->weight = cpu_weight(rig, type, N, F, FG_OP_GEMM, &state);
    }
    op = cpu_op(rig, FG_OP_ACT_MUL, z, v, F);
    op->src2 = z, op->src2_col = F, op->act = FG_ACT_SILU;
    op = cpu_op(rig, FG_OP_GEMM, v, x, N);
    op->k = F, op->src2 = x;
    op->weight = cpu_weight(rig, type, F, N, FG_OP_GEMM, &state);
    cpu_rig_end(rig, x);
    gpu_use_blas(blas);
    gpu_standin.set_blas(&good);
    if (cpu_rig_open(rig, path, 1) == FG_OK) {
        memcpy(whole, cpu_rig_run(rig, 0, rows), (size_t)rows * N * sizeof(float));
        launched = ((fg__gpu_plan *)(void *)rig->plan)->n_launched;
        for (i = 0; i < 5; i++) {
            rig->batch.first_op = i ? ends[i - 1] : 0;
            rig->batch.n_ops = FG__MIN(ends[i], rig->graph.n_ops) - rig->batch.first_op;
            CHECKF(cpu_rig_submit(rig) == FG_OK, "%s", fg_last_error());
        }
        CHECKF(memcmp(whole, rig->output.logits, (size_t)rows * N * sizeof(float)) == 0, "%s, type %d, %d rows: other bits", path, (int)type, rows);
    }
    gpu_use_blas(false);
    free(whole);
    cpu_rig_free(rig);
    return launched;
}

static void test_gpu_host_made_acts(void) {
    int n;
    if (!gpu_standin_open() || !gpu_standin_image) SKIP(GPU_NONE);
    /* embed, norm, two products (of few rows one), act_mul, product, gather, sample, choose */
    CHECKF((n = gpu_made_acts("cuda", FG_TYPE_Q8_0, 20, false)) == 8, "%d kernels", n);
    CHECKF((n = gpu_made_acts("cuda-invariant", FG_TYPE_F16, 3, false)) == 9, "%d kernels", n);
    CHECKF((n = gpu_made_acts("hip64", FG_TYPE_BF16, 100, false)) == 9, "%d kernels", n);
    /* products by the library count as two; it adds to bfloat16 products itself, and those of halves are finished by a kernel */
    CHECKF((n = gpu_made_acts("cuda", FG_TYPE_BF16, 100, true)) == 12, "%d kernels", n);
    CHECKF((n = gpu_made_acts("hip", FG_TYPE_F16, 100, true)) == 15, "%d kernels", n);
    gpu_standin_check();
}

/* A layer of experts: pairs are put in order once for its three products, which have the activations that the ops before made; the same bits as where
   ranges of ops end between. Returns how many kernels there were. */
static int gpu_made_experts(const char *path, int rows) {
    enum { N = 64, F = 96, EXPERTS = 6, USED = 2 };
    static const int ends[] = {2, 4, 5, 6, 7, 99};
    static const cpu_experts gate = {N, F, 0, EXPERTS, USED, false, false, false}, down = {F, N, 0, EXPERTS, USED, false, false, false};
    uint64_t state = 59;
    cpu_rig *rig = cpu_rig_new(rows);
    int x = cpu_slot(rig, N, false), y = cpu_slot(rig, N, false), router = cpu_slot(rig, EXPERTS, false), routes = cpu_slot(rig, 2 * USED, false);
    int z = cpu_slot(rig, 2 * USED * F, false), v = cpu_slot(rig, USED * F, false), i, launched = 0;
    float *whole = (float *)calloc((size_t)rows * N, sizeof(float));
    fg_op *op;
    cpu_op(rig, FG_OP_EMBED, -1, x, N)->weight = cpu_weight(rig, FG_TYPE_F32, N, rows, FG_OP_EMBED, &state);
    cpu_op(rig, FG_OP_NORM, x, y, N)->weight = cpu_weight(rig, FG_TYPE_F32, N, 0, FG_OP_NORM, &state);
    op = cpu_op(rig, FG_OP_GEMM, y, router, EXPERTS);
    op->k = N, op->weight = cpu_weight(rig, FG_TYPE_F32, N, EXPERTS, FG_OP_GEMM, &state);
    op = cpu_op(rig, FG_OP_MOE_ROUTE, router, routes, 0);
    op->n_expert = EXPERTS, op->n_used = USED, op->scale = 1.0f;
    for (i = 0; i < 3; i++) {
        if (i == 2) {
            op = cpu_op(rig, FG_OP_ACT_MUL, z, v, USED * F);
            op->src2 = z, op->src2_col = USED * F, op->act = FG_ACT_SWIGLU_OAI;
        }
        op = cpu_op(rig, FG_OP_MOE_GEMM, i < 2 ? y : v, i < 2 ? z : x, i < 2 ? F : N);
        op->k = i < 2 ? N : F, op->src2 = routes, op->n_expert = EXPERTS, op->n_used = USED, op->moe_sum = i == 2;
        op->dst_col = i == 1 ? USED * F : 0;
        op->weight = cpu_expert_weights(rig, FG_TYPE_Q8_0, i < 2 ? &gate : &down, &state);
    }
    cpu_rig_end(rig, x);
    if (cpu_rig_open(rig, path, 1) == FG_OK) {
        memcpy(whole, cpu_rig_run(rig, 0, rows), (size_t)rows * N * sizeof(float));
        launched = ((fg__gpu_plan *)(void *)rig->plan)->n_launched;
        for (i = 0; i < 6; i++) {
            rig->batch.first_op = i ? ends[i - 1] : 0;
            rig->batch.n_ops = FG__MIN(ends[i], rig->graph.n_ops) - rig->batch.first_op;
            CHECKF(cpu_rig_submit(rig) == FG_OK, "%s", fg_last_error());
        }
        CHECKF(memcmp(whole, rig->output.logits, (size_t)rows * N * sizeof(float)) == 0, "%s, %d rows: other bits", path, rows);
    }
    free(whole);
    cpu_rig_free(rig);
    return launched;
}

static void test_gpu_host_made_experts(void) {
    int n;
    if (!gpu_standin_open() || !gpu_standin_image) SKIP(GPU_NONE);
    /* embed, norm, router, route, two products as one, act_mul, product, mix, gather, sample, choose; sort where pairs are in tiles */
    CHECKF((n = gpu_made_experts("cuda", 3)) == 11, "%d kernels", n);
    CHECKF((n = gpu_made_experts("cuda", 20)) == 12, "%d kernels", n);
    CHECKF((n = gpu_made_experts("cuda-invariant", 3)) == 12, "%d kernels", n);
    CHECKF((n = gpu_made_experts("hip64", 90)) == 12, "%d kernels", n);
    gpu_standin_check();
}

/* Gates: a sigmoid's in place, whose products are next, and one number of each token for a row, of which no activations are made beside. As the CPU has it,
   and with the same bits where ranges of ops end between. Returns how many kernels there were. */
static int gpu_gates(const char *path, int rows) {
    enum { N = 64 };
    uint64_t state = 67;
    cpu_rig *rig = cpu_rig_new(rows);
    int x = cpu_slot(rig, 2 * N + 3, false), y = cpu_slot(rig, N, false), z = cpu_slot(rig, N, false), v = cpu_slot(rig, N, false), i, way, launched = 0;
    float *outs[2];
    double worst = 0, most = 0;
    fg_op *op;
    cpu_op(rig, FG_OP_EMBED, -1, x, 2 * N + 3)->weight = cpu_weight(rig, FG_TYPE_F32, 2 * N + 3, rows, FG_OP_EMBED, &state);
    for (i = 0; i < 2; i++) {
        op = cpu_op(rig, FG_OP_ACT_MUL, x, y, N);
        op->src2 = i ? y : x, op->src2_col = i ? 0 : N, op->act = i ? FG_ACT_SIGMOID : FG_ACT_SILU;
    }
    for (i = 0; i < 2; i++) {
        op = cpu_op(rig, FG_OP_GEMM, i ? z : y, i ? v : z, N);
        op->k = N, op->src2 = i ? y : -1;
        op->weight = cpu_weight(rig, FG_TYPE_F16, N, N, FG_OP_GEMM, &state);
        if (i) break;
        op = cpu_op(rig, FG_OP_ACT_MUL, x, z, N);
        op->src_col = 2 * N + 1, op->src2 = z, op->act = FG_ACT_SIGMOID, op->k = 1;
    }
    cpu_rig_end(rig, v);
    for (way = 0; way < 2; way++) {
        outs[way] = (float *)calloc((size_t)rows * N, sizeof(float));
        if (cpu_rig_open(rig, way ? path : NULL, 1) != FG_OK) continue;
        memcpy(outs[way], cpu_rig_run(rig, 0, rows), (size_t)rows * N * sizeof(float));
        if (way) launched = ((fg__gpu_plan *)(void *)rig->plan)->n_launched;
        for (i = 0; i < rig->graph.n_ops && way; i++) {
            rig->batch.first_op = i, rig->batch.n_ops = 1;
            CHECKF(cpu_rig_submit(rig) == FG_OK, "%s", fg_last_error());
        }
        CHECKF(memcmp(outs[way], rig->output.logits, (size_t)rows * N * sizeof(float)) == 0, "%s, %d rows: other bits", path, rows);
        cpu_rig_close(rig);
        rig->batch.n_ops = rig->batch.first_op = 0;
    }
    for (i = 0; i < rows * N; i++) most = test_worse(most, fabs((double)outs[0][i])), worst = test_worse(worst, fabs((double)outs[0][i] - (double)outs[1][i]));
    CHECKF(most > 0 && worst < 2e-3 * most, "%s, %d rows: they differ by %g", path, rows, worst);
    free(outs[0]), free(outs[1]);
    cpu_rig_free(rig);
    return launched;
}

static void test_gpu_host_gates(void) {
    int n;
    if (!gpu_standin_open() || !gpu_standin_image) SKIP(GPU_NONE);
    /* embed, act_mul, the gate (which makes activations where it may), product, one gate, activations, product, gather, sample, choose */
    CHECKF((n = gpu_gates("cuda", 3)) == 10, "%d kernels", n);
    CHECKF((n = gpu_gates("cuda", 20)) == 10, "%d kernels", n);
    CHECKF((n = gpu_gates("hip64", 3)) == 9, "%d kernels", n);
    CHECKF((n = gpu_gates("hip", 20)) == 10, "%d kernels", n);
    gpu_standin_check();
}

/* Recurrent layers, as the CPU has them. */
static void test_gpu_host_state(void) {
    static const char *const paths[] = {"cuda", "hip64", "cuda-invariant", "hip"};
    int p, i;
    if (!gpu_standin_open()) SKIP(GPU_NONE);
    for (p = 0; p < 4; p++) {
        if (!cpu_has_gpu(paths[p])) continue;
        for (i = 0; i < STATE_CASES; i += 1 + p / 2 * 2) state_check(paths[p], &state_cases[i], true);
        state_check_moved(paths[p]);
    }
    gpu_standin_check();
}

/* What the library made for products is kept, of so many shapes, the newest. */
static int gpu_blas_made, gpu_blas_searches;
static int FG__GPU_CALL gpu_blas_desc(void **desc, int compute, int scale) {
    return (void)compute, (void)scale, gpu_blas_made++, *desc = &gpu_blas_made, 0;
}
static int FG__GPU_CALL gpu_blas_set(void *desc, int attribute, const void *value, size_t bytes) {
    return (void)desc, (void)attribute, (void)value, (void)bytes, 0;
}
static int FG__GPU_CALL gpu_blas_layout(void **layout, int type, uint64_t rows, uint64_t columns, int64_t stride) {
    return (void)type, (void)rows, (void)columns, (void)stride, gpu_blas_made++, *layout = &gpu_blas_made, 0;
}
static int FG__GPU_CALL gpu_blas_preference(void **preference) { return gpu_blas_made++, *preference = &gpu_blas_made, 0; }
static int FG__GPU_CALL gpu_blas_drop(void *object) { return (void)object, gpu_blas_made--, 0; }
static int FG__GPU_CALL gpu_blas_search(void *handle, void *desc, void *a, void *b, void *c, void *d, void *preference, int most,
                                        void *results, int *found) {
    (void)handle, (void)desc, (void)a, (void)b, (void)c, (void)d, (void)preference, (void)most, (void)results;
    gpu_blas_searches++;
    return *found = 1, 0;
}

static void test_gpu_host_blas_calls(void) {
    fg__gpu_blas *blas = (fg__gpu_blas *)calloc(1, sizeof(fg__gpu_blas));
    fg__gpu_blas_call *call = NULL;
    fg__gpu_blas_product p;
    int i, turn;
    if (!blas) return;
    memset(&p, 0, sizeof(p));
    blas->kind = &fg__gpu_cublaslt;
    blas->api.desc_create = gpu_blas_desc, blas->api.desc_set = gpu_blas_set, blas->api.desc_destroy = gpu_blas_drop;
    blas->api.layout_create = gpu_blas_layout, blas->api.layout_destroy = gpu_blas_drop;
    blas->api.preference_create = gpu_blas_preference, blas->api.preference_set = gpu_blas_set;
    blas->api.preference_destroy = gpu_blas_drop;
    blas->api.heuristic = gpu_blas_search;
    gpu_blas_made = gpu_blas_searches = 0;
    for (turn = 0; turn < 3; turn++)
        for (i = 0; i < FG__GPU_BLAS_CALLS; i++) {
            p.n = 64 + i, p.add = i % 2 ? 4096 : 0, p.weight += 512; /* where things are does not matter */
            CHECK(fg__gpu_blas_call_of(blas, &p, &call) == 0 && call->product.n == p.n && !call->add == !p.add);
        }
    CHECK(gpu_blas_searches == FG__GPU_BLAS_CALLS && gpu_blas_made == FG__GPU_BLAS_CALLS / 2 * 9);
    p.add = 0;
    CHECK(fg__gpu_blas_call_of(blas, &p, &call) == 0 && !call->add); /* instead of the oldest, without what is added */
    p.n = 64;
    CHECK(fg__gpu_blas_call_of(blas, &p, &call) == 0 && gpu_blas_searches == FG__GPU_BLAS_CALLS + 2);
    for (i = 0; i < FG__GPU_BLAS_CALLS; i++) fg__gpu_blas_end(blas, &blas->calls[i]);
    CHECKF(gpu_blas_made == 0, "%d objects are left", gpu_blas_made);
    free(blas);
    CHECK(fg__gpu_token_budget(16, (size_t)8 << 30) == 512 && fg__gpu_token_budget(128, (size_t)24 << 30) == 1024);
    CHECK(fg__gpu_token_budget(68, (size_t)48 << 30) == 1024 && fg__gpu_token_budget(132, (size_t)80 << 30) == 2048);
}

/* Every call of the library fails in turn: the answer comes all the same. */
static void test_gpu_host_blas_faults(void) {
    standin_blas blas = {0, 0, 0, 0};
    model_spec spec = model_spec_tiny();
    model_sample m;
    standin_device device;
    standin_stats stats;
    gpu_answer a;
    bool came;
    if (!gpu_standin_open() || !gpu_standin_image) SKIP(GPU_NONE);
    spec.n_layers = 1;
    spec.type = FG_TYPE_F16;
    gpu_standin.get_device(&device);
    device.idle = 1;
    gpu_standin.set_device(&device);
    model_sample_open(&m, &spec);
    for (came = true; came && blas.fail_at < 1000; blas.fail_at += blas.fail_at < 30 ? 1 : 7) {
        a = gpu_blas_answer(m.model, blas.fail_at % 2 ? "hip" : "cuda", &blas);
        gpu_standin.get_stats(&stats);
        CHECKF(stats.live == 0, "call %ld: %d objects are left", blas.fail_at, stats.live);
        came = a.calls > blas.fail_at;
    }
    CHECKF(!came && blas.fail_at > 60, "%ld calls", blas.fail_at);
    model_sample_close(&m);
    gpu_standin_check();
}

/* ---- Hopper's products of warpgroups. ---- */

/* A prompt in three passes of 80 tokens on a device of compute capability `major`.0, or an AMD device; `products`: special ones. */
static long gpu_attentions; /* by warpgroups, of the last answer */
static long gpu_finishes;   /* kernels that finish products, of the last answer */
static int gpu_shared_most = 99 * 1024;

static int gpu_special_budget = 80; /* tokens of a pass */

static gpu_answer gpu_special_answer(fg_model *model, const char *isa, int major, int wrong, const fg_gpu_options *more, gpu_said *said, long *products) {
    standin_device device = gpu_standin.device;
    fg_gpu_options options = *more;
    standin_stats stats;
    gpu_answer a;
    memset(&a, 0, sizeof(a));
    memset(said, 0, sizeof(*said));
    device.major = major;
    device.wrong_products = wrong;
    device.shared_most = gpu_shared_most;
    snprintf(device.isa, sizeof(device.isa), "%s", isa);
    device.warp = strcmp(isa, "gfx906") == 0 ? 64 : 32;
    gpu_standin.set_device(&device);
    gpu_standin.fail(-1, -1, 0);
    options.image = gpu_standin_image;
    gpu_ear = said;
    CHECK(gpu_greedy(model, major ? "cuda" : "hip", &options, 240, gpu_special_budget, a.tokens, a.logprobs, 4) == 4);
    gpu_ear = NULL;
    gpu_standin.get_stats(&stats);
    *products = stats.special;
    gpu_attentions = stats.attentions;
    gpu_finishes = stats.finishes;
    gpu_standin.set_device(&gpu_standin.device);
    return a;
}

static void gpu_check_hopper(fg_type type, int n_types) {
    model_spec spec = model_spec_tiny();
    model_sample m;
    gpu_answer own, with;
    gpu_said said;
    fg_gpu_options options;
    bool quantised = !fg_gpu_is_float((int)type);
    long products;
    memset(&options, 0, sizeof(options));
    spec.type = type;
    model_sample_open(&m, &spec);
    if (!m.model) return;
    gpu_special_budget = quantised ? 240 : 80; /* up to 128 rows of quantised weights are not for warpgroups */
    own = gpu_special_answer(m.model, "gfx1100", 8, false, &options, &said, &products);
    CHECK(products == 0);
    with = gpu_special_answer(m.model, "gfx1100", 9, false, &options, &said, &products);
    /* a proof of each way of each type, then products of three passes, or one; bits differ where two
       warpgroups share sums, and by the attention */
    CHECKF(products == FG_GPU_WG_WAYS * n_types + (quantised ? 1 : 3) * 2 * 7 && !said.text[0], "%s: %ld products; the log says: %s", fg_type_name(type), products, said.text);
    CHECKF(gpu_answers_are(&own, &with, 2e-3f), "%s: another answer by warpgroups", fg_type_name(type));
    with = gpu_special_answer(m.model, "gfx1100", 9, true, &options, &said, &products);
    CHECKF(products == n_types && gpu_answers_are(&own, &with, 0), "%s: %ld products that are wrong were used", fg_type_name(type), products);
    CHECKF(strstr(said.text, "wgmma are wrong on Stand-in GPU") && strstr(said.text, fg_type_name(type)), "the log says: %s", said.text);
    /* an illegal instruction: the context of the proof is lost, and no other */
    with = gpu_special_answer(m.model, "gfx1100", 9, 2, &options, &said, &products);
    CHECKF(products == n_types && gpu_answers_are(&own, &with, 0), "%s: %ld products, after a fault another answer", fg_type_name(type), products);
    CHECKF(strstr(said.text, "wgmma cannot be tried on Stand-in GPU") && strstr(said.text, fg_type_name(type)), "the log says: %s", said.text);
    options.plain_products = true;
    with = gpu_special_answer(m.model, "gfx1100", 9, false, &options, &said, &products);
    CHECK(products == 0 && gpu_answers_are(&own, &with, 0));
    options.plain_products = false;
    options.invariant = true;
    (void)gpu_special_answer(m.model, "gfx1100", 9, false, &options, &said, &products);
    CHECKF(products == 0, "%ld products by warpgroups where bits must not depend on the batch", products);
    gpu_special_budget = 80;
    model_sample_close(&m);
}

/* Kernels may begin early where the device can, the driver knows how, and their code waits; by that call of the driver they do the same. */
static void test_gpu_host_early(void) {
    static const fg__gpu_image waits = {"sm_90a", NULL, 0, 0}, newer = {"compute_100", NULL, 0, 0}, older = {"compute_80", NULL, 0, 0};
    fg__gpu_device *d;
    fg_gpu_act_mul_args a;
    float x[100], y[100];
    int32_t count = 1, i;
    void *memory;
    if (!gpu_standin_open() || !gpu_standin_image) SKIP(GPU_NONE);
    d = (fg__gpu_device *)(void *)gpu_open("cuda", NULL);
    CHECK(d->loader.launch_ex != NULL && !fg__gpu_early(d));
    d->attributes[FG__GPU_MAJOR] = 9;
    d->loader.version = 12030;
    CHECK(!fg__gpu_early(d)); /* code of the options */
    d->image = &older;
    CHECK(!fg__gpu_early(d));
    d->image = &newer;
    CHECK(fg__gpu_early(d));
    d->image = &waits;
    CHECK(fg__gpu_early(d));
    d->loader.version = 12020;
    CHECK(!fg__gpu_early(d));
    d->loader.version = 13000;
    d->options.no_early = true;
    CHECK(!fg__gpu_early(d));
    d->options.no_early = false;
    for (i = 0; i < 100; i++) x[i] = (float)i;
    memory = fg_backend_cuda()->alloc((fg_device *)(void *)d, 1024);
    CHECK(memory && fg_backend_cuda()->write((fg_device *)(void *)d, memory, 0, x, sizeof(x)) == FG_OK);
    CHECK(fg_backend_cuda()->write((fg_device *)(void *)d, memory, 1000, &count, 4) == FG_OK);
    memset(&a, 0, sizeof(a));
    a.src = a.src2 = ((fg__gpu_range *)memory)->at;
    a.dst = a.src + 512;
    a.count = a.src + 1000;
    a.n = a.src_stride = a.src2_stride = a.dst_stride = 100;
    a.max_rows = 1;
    CHECK(fg__gpu_enter(d) == FG_OK && fg__gpu_copies_wait(d) == FG_OK && fg__gpu_early(d));
    CHECK(fg__gpu_launch_now(d, FG_GPU_KERNEL_act_mul, &a, false) == FG_OK && d->api.stream_wait(d->compute) == 0);
    fg__gpu_leave(d);
    CHECK(fg_backend_cuda()->read((fg_device *)(void *)d, memory, 512, y, sizeof(y)) == FG_OK);
    for (i = 0; i < 100; i++) CHECK(y[i] == x[i] * x[i]);
    fg_backend_cuda()->free((fg_device *)(void *)d, memory);
    d->image = NULL;
    fg_backend_cuda()->close((fg_device *)(void *)d);
    gpu_standin_check();
}

static void test_gpu_host_hopper(void) {
    if (!gpu_standin_open() || !gpu_standin_image) SKIP(GPU_NONE);
    gpu_shared_most = 227 * 1024;
    gpu_check_hopper(FG_TYPE_F16, 1);
    gpu_check_hopper(FG_TYPE_Q8_0, 1);
    gpu_check_hopper(FG_TYPE_F32, 1);
    gpu_shared_most = 99 * 1024;
    gpu_standin_check();
}

/* Attention of prompts by warpgroups: nearly the other answer, and that where it is wrong, a fault, too much for the device's shared
   memory or not wanted, of which the first `cases` are tried. */
static void gpu_check_attention(fg_type type, int head_dim, int cases) {
    static const struct {
        int wrong, shared_kib;
        bool plain, invariant;
        long tries;
        const char *says;
    } without[] = {{1, 227, false, false, 1, "wgmma is wrong"},
                   {2, 227, false, false, 1, "wgmma cannot be tried"},
                   {0, 227, true, false, 0, ""},
                   {0, 79, false, false, 0, ""}};
    model_spec spec = model_spec_tiny();
    model_sample m;
    gpu_answer own, with;
    gpu_said said;
    fg_gpu_options options;
    long products;
    int i;
    memset(&options, 0, sizeof(options));
    spec.head_dim = head_dim;
    model_sample_open(&m, &spec);
    if (!m.model) return;
    gpu_kv_type = type;
    own = gpu_special_answer(m.model, "gfx1100", 8, 0, &options, &said, &products);
    CHECK(gpu_attentions == 0);
    gpu_shared_most = 227 * 1024;
    with = gpu_special_answer(m.model, "gfx1100", 9, 0, &options, &said, &products);
    /* a proof, then two layers in three passes of 80 tokens; those of one token have another kernel */
    CHECKF(gpu_attentions == 1 + 3 * 2 && !said.text[0], "%s: %ld attentions; the log says: %s", fg_type_name(type), gpu_attentions, said.text);
    /* numbers of caches of fewer bits fall on the other side of a rounding border */
    CHECKF(gpu_answers_are(&own, &with, type == FG_TYPE_F16 ? 2e-3f : 2e-2f) && !gpu_answers_are(&own, &with, 0), "%s: the answer by warpgroups",
           fg_type_name(type));
    for (i = 0; i < cases; i++) {
        options.plain_products = without[i].plain;
        gpu_shared_most = without[i].shared_kib * 1024;
        with = gpu_special_answer(m.model, "gfx1100", 9, without[i].wrong, &options, &said, &products);
        CHECKF(gpu_attentions == without[i].tries && gpu_answers_are(&own, &with, without[i].plain || without[i].wrong ? 0 : 2e-3f), "%s, case %d: %ld attentions, or another answer",
               fg_type_name(type), i, gpu_attentions);
        CHECKF(strstr(said.text, without[i].says) != NULL, "case %d: the log says: %s", i, said.text);
    }
    gpu_shared_most = 227 * 1024;
    options.plain_products = false;
    options.invariant = true;
    (void)gpu_special_answer(m.model, "gfx1100", 9, 0, &options, &said, &products);
    CHECKF(gpu_attentions == 0, "%ld attentions by warpgroups where bits must not depend on the batch", gpu_attentions);
    gpu_kv_type = (fg_type)0;
    gpu_shared_most = 99 * 1024;
    model_sample_close(&m);
}

static void test_gpu_host_hopper_attention(void) {
    if (!gpu_standin_open() || !gpu_standin_image) SKIP(GPU_NONE);
    gpu_check_attention(FG_TYPE_F16, 16, 4);
    gpu_check_attention(FG_TYPE_BF16, 80, 4);
    gpu_check_attention(FG_TYPE_Q8_0, 160, 1);
    gpu_standin_check();
}

/* The proof of every type holds, and does not where the device is wrong. */
static void gpu_check_special(const char *path, const char *isa, uint32_t all) {
    fg_gpu_options options;
    fg_device *handle;
    standin_device device;
    int i, wrong;
    memset(&options, 0, sizeof(options));
    for (wrong = 0; wrong < (strcmp(path, "cuda") == 0 ? 3 : 2); wrong++) { /* HIP has no other context to lose */
        fg__gpu_device *trial = NULL;
        device = gpu_standin.device;
        device.major = 9;
        device.wrong_products = wrong;
        device.shared_most = 227 * 1024;
        snprintf(device.isa, sizeof(device.isa), "%s", isa);
        cpu_gpu_options(path);
        device.warp = strcmp(isa, "gfx906") == 0 ? 64 : 32;
        gpu_standin.set_device(&device);
        handle = gpu_open_as(path, &options);
        if (handle) {
            fg__gpu_device *d = (fg__gpu_device *)(void *)handle;
            if (fg__gpu_enter(d) == FG_OK) {
                for (i = 0; i < CPU_TYPES; i++) fg__gpu_prove(d, &trial, cpu_types[i]);
                fg__gpu_trial_close(d, trial);
                fg__gpu_leave(d);
            }
            CHECK(!d->lost);
            if (wrong == 2) gpu_check_transfer(fg_backend_cuda(), handle);
            CHECKF(d->special_tried == all && d->special_ready == (wrong ? 0 : all), "%s: of %x proofs %x hold", path, (unsigned)d->special_tried,
                   (unsigned)d->special_ready);
            fg_backend_cuda()->close(handle);
        }
        gpu_standin.set_device(&gpu_standin.device);
    }
}

static void test_gpu_host_special_types(void) {
    uint32_t all = (1u << CPU_TYPES) - 1, floats = 0;
    if (!gpu_standin_open() || !gpu_standin_image) SKIP(GPU_NONE);
    floats |= 1u << fg_gpu_type_index(FG_GPU_F32) | 1u << fg_gpu_type_index(FG_GPU_F16) | 1u << fg_gpu_type_index(FG_GPU_BF16);
    gpu_check_special("cuda", "", all);
    gpu_check_special("hip", "gfx1030", all & ~floats);
    gpu_check_special("hip", "gfx906", all & ~floats);
    gpu_standin_check();
}

/* ---- Roofs. ---- */

/* What fg_measure_roofs says of a device of ours, `proven` or not; the stand-in runs its kernels. */
static fg_result gpu_roofs_of(const char *path, standin_device device, bool proven, long fail_at, standin_stats *stats, fg_roofs *roofs) {
    fg_gpu_options options;
    fg_device *handle;
    fg_result r = FG_ERROR_DEVICE;
    memset(&options, 0, sizeof(options));
    memset(stats, 0, sizeof(*stats));
    cpu_gpu_options(path);
    gpu_standin.set_device(&device);
    handle = gpu_open_as(path, &options);
    if (handle) {
        if (proven) ((fg__gpu_device *)(void *)handle)->special_ready = 1;
        gpu_standin.fail(fail_at, -1, 2);
        r = cpu_backend_of(path)->profile(handle, roofs);
        gpu_standin.get_stats(stats);
        gpu_standin.fail(-1, -1, 0);
        cpu_backend_of(path)->close(handle);
    }
    gpu_standin.set_device(&gpu_standin.device);
    return r;
}

/* Every call fails in turn. */
static void gpu_check_roof_faults(const char *path, standin_device device, bool proven) {
    standin_stats stats;
    fg_roofs roofs;
    bool came = true;
    int i, failed = 0;
    device.idle = 1;
    for (i = 0; came && i < 300; i++) {
        fg_result r = gpu_roofs_of(path, device, proven, i, &stats, &roofs);
        came = stats.failed;
        failed += r != FG_OK;
        CHECKF(r == FG_OK || (came && r == FG_ERROR_OUT_OF_MEMORY), "%s, call %d: %s", path, i, fg_result_name(r));
        gpu_standin.get_stats(&stats);
        CHECKF(stats.live == 0 && stats.depth == 0, "%s, call %d: %d objects are left", path, i, stats.live);
    }
    CHECKF(i < 300 && failed > i - 20, "of %d calls %d failed", i, failed); /* giving back is not checked, and a kernel that is not found not measured */
}

/* Each kernel is run where it should be, and a device that does not do its products has an unknown rate. */
static void gpu_check_roofs(const char *path, const char *isa, int major, bool proven) {
    bool bytes = strcmp(isa, "gfx906") == 0 || strcmp(isa, "gfx1030") == 0;
    standin_device device = gpu_standin.device;
    standin_stats stats;
    fg_roofs roofs;
    int tries = 0;
    device.major = major;
    device.shared_most = 227 * 1024;
    device.memory = (size_t)64 << 20;
    device.processors = 1;
    device.warp = strncmp(isa, "gfx9", 4) == 0 ? 64 : 32;
    snprintf(device.isa, sizeof(device.isa), "%s", isa);
    do CHECK(gpu_roofs_of(path, device, proven, -1, &stats, &roofs) == FG_OK && roofs.read_bytes_per_s > 1e6);
    while ((roofs.float_ops_per_s == 0.0 || (bytes && roofs.int8_ops_per_s == 0.0)) && ++tries < 10); /* on a busy machine a shorter run may take longer than a long one: the rate is unknown */
    CHECKF(roofs.float_ops_per_s > 1e6 && (roofs.int8_ops_per_s > 1e6) == bytes, "%s %s: %g and %g", path, isa, roofs.float_ops_per_s,
           roofs.int8_ops_per_s);
    CHECKF((stats.special > 0) == (proven || bytes), "%s %s: %ld kernels of few devices", path, isa, stats.special);
    device.wrong_products = 1;
    CHECK(gpu_roofs_of(path, device, proven, -1, &stats, &roofs) == FG_OK && roofs.read_bytes_per_s > 1e6 && roofs.int8_ops_per_s == 0.0);
    device.idle = 1;
    CHECKF(gpu_roofs_of(path, device, proven, -1, &stats, &roofs) == FG_OK && roofs.float_ops_per_s == 0.0, "%s %s: products that were not done", path, isa);
    if (proven || device.warp == 64) gpu_check_roof_faults(path, device, proven);
}

static void test_gpu_host_roofs(void) {
    if (!gpu_standin_open() || !gpu_standin_image) SKIP(GPU_NONE);
    gpu_check_roofs("cuda", "", 8, false);
    gpu_check_roofs("cuda", "", 9, true);
    gpu_check_roofs("hip", "gfx1100", 8, false);
    gpu_check_roofs("hip", "gfx906", 8, false);
    gpu_check_roofs("hip", "gfx1030", 8, false);
    gpu_standin_check();
}

/* Every call of a proof fails in turn, or is the end of the context that it is in: the device opens, and is as good as before. */
static void test_gpu_host_special_faults(void) {
    static const int codes[] = {2, 715};
    standin_device device;
    standin_stats stats;
    fg_gpu_options options;
    int c, i, most = 0;
    if (!gpu_standin_open() || !gpu_standin_image) SKIP(GPU_NONE);
    memset(&options, 0, sizeof(options));
    device = gpu_standin.device;
    device.major = 9;
    device.shared_most = 227 * 1024;
    device.idle = 1;
    for (c = 0; c < 4; c++) { /* products, then attention */
        bool came = true;
        for (i = 0; came && i < 300; i++) {
            fg__gpu_device *trial = NULL, *d;
            fg_device *handle;
            gpu_standin.fail(-1, -1, 0);
            gpu_standin.set_device(&device);
            handle = gpu_open_as("cuda", &options);
            if (!handle) break;
            d = (fg__gpu_device *)(void *)handle;
            CHECK(fg__gpu_enter(d) == FG_OK);
            gpu_standin.fail(i, -1, codes[c % 2]);
            if (c < 2) fg__gpu_prove(d, &trial, FG_TYPE_Q8_0);
            else fg__gpu_prove_attention(d, &trial, FG_TYPE_F16, 128);
            fg__gpu_trial_close(d, trial);
            gpu_standin.get_stats(&stats);
            came = stats.failed;
            CHECKF(stats.depth == 1, "call %d, error %d: %d contexts are pushed", i, codes[c % 2], stats.depth);
            gpu_standin.fail(-1, -1, 0);
            fg__gpu_leave(d);
            CHECKF(!came || d->special_ready == 0, "call %d, error %d: what was not proven is used", i, codes[c % 2]);
            CHECKF(!d->lost || i < 3, "call %d, error %d: the device was lost", i, codes[c % 2]);
            if (!d->lost && i % 8 == 0) gpu_check_transfer(fg_backend_cuda(), handle);
            fg_backend_cuda()->close(handle);
            gpu_standin.get_stats(&stats);
            CHECKF(stats.live == 0 && stats.depth == 0, "call %d, error %d: %d objects are left", i, codes[c % 2], stats.live);
        }
        most = FG__MAX(most, i);
        CHECKF(!came, "error %d: call %d", codes[c % 2], i);
    }
    CHECKF(most > 40, "%d calls", most);
    gpu_standin_check();
}

/* Products of bytes, of a model on a device of this kind: nearly the other answer, and that where they are wrong. */
static void gpu_check_bytes(const char *isa) {
    model_spec spec = model_spec_tiny();
    model_sample m;
    gpu_answer own, with;
    gpu_said said;
    fg_gpu_options options;
    long products;
    memset(&options, 0, sizeof(options));
    spec.type = FG_TYPE_Q8_0;
    model_sample_open(&m, &spec);
    if (!m.model) return;
    own = gpu_special_answer(m.model, isa, 0, false, &options, &said, &products);
    CHECKF(products == 2 + 3 * 2 * 7 && !said.text[0], "%s: %ld products; %s", isa, products, said.text); /* the rows to sample from are few, and have gemv */
    options.plain_products = true;
    with = gpu_special_answer(m.model, isa, 0, false, &options, &said, &products);
    CHECKF(products == 0 && gpu_answers_are(&own, &with, 1e-1f), "%s: another answer by bytes: %d %g, not %d %g", isa, own.tokens[3], (double)own.logprobs[3],
           with.tokens[3], (double)with.logprobs[3]);
    options.plain_products = false;
    own = gpu_special_answer(m.model, isa, 0, true, &options, &said, &products);
    CHECKF(products == 1 && gpu_answers_are(&own, &with, 0) && strstr(said.text, "by bytes are wrong"), "%s: %ld products; %s", isa, products, said.text);
    model_sample_close(&m);
}

/* Where tiles are few AMD's devices divide k: a product of the ffn's 1024 is two launches then, and the answer is that of whole sums. */
static void test_gpu_host_splits(void) {
    model_spec spec = model_spec_tiny();
    fg_gpu_options options;
    gpu_answer own, whole;
    gpu_said said;
    model_sample m;
    long products;
    if (!gpu_standin_open() || !gpu_standin_image) SKIP(GPU_NONE);
    memset(&options, 0, sizeof(options));
    spec.type = FG_TYPE_Q8_0;
    spec.n_layers = 1;
    spec.n_ff = 1024;
    model_sample_open(&m, &spec);
    if (!m.model) return;
    own = gpu_special_answer(m.model, "gfx1100", 0, false, &options, &said, &products);
    CHECKF(gpu_finishes == 3 && !said.text[0], "%ld finish launches; %s", gpu_finishes, said.text); /* of three passes with more than eight rows */
    options.invariant = true;
    whole = gpu_special_answer(m.model, "gfx1100", 0, false, &options, &said, &products);
    CHECKF(gpu_finishes == 0 && gpu_answers_are(&own, &whole, 2e-3f), "another answer by splits: %d %g, not %d %g", own.tokens[3], (double)own.logprobs[3],
           whole.tokens[3], (double)whole.logprobs[3]);
    model_sample_close(&m);
    gpu_standin_check();
}

static void test_gpu_host_bytes(void) {
    if (!gpu_standin_open() || !gpu_standin_image) SKIP(GPU_NONE);
    gpu_check_bytes("gfx906");
    gpu_check_bytes("gfx1030");
    gpu_standin_check();
}

/* ---- Errors. ---- */

/* Whether a call of this number fails, and what came of it. With `code` 2 memory runs out, with others the device is lost. */
static void gpu_check_fault(fg_model *model, const char *path, long call, long launch, int code, bool *came) {
    fg_gpu_options options;
    standin_stats stats;
    bool created;
    fg_finish finish;
    fg_result r;
    memset(&options, 0, sizeof(options));
    options.image = gpu_standin_image;
    cpu_gpu_options(path);
    gpu_standin.fail(call, launch, code);
    r = gpu_try(model, cpu_backend_of(path), &options, &created, &finish);
    gpu_standin.get_stats(&stats);
    *came = launch >= 0 ? stats.launches > launch : stats.failed;
    if (!*came) {
        CHECKF(r == FG_OK && created && finish == FG_FINISH_LENGTH, "%s: without an error: %s", path, fg_last_error());
    } else if (r == FG_OK) { /* the CPU did the work, or the call's result did not matter */
        CHECKF(finish == FG_FINISH_LENGTH, "%s, call %ld, error %d: finish %d", path, call, code, (int)finish);
    } else {
        CHECKF(r == (code == 2 ? FG_ERROR_OUT_OF_MEMORY : FG_ERROR_DEVICE), "%s, call %ld, launch %ld, error %d: %s", path, call, launch, code,
               fg_result_name(r));
        CHECKF(!created || finish == FG_FINISH_ERROR, "%s, call %ld, error %d: finish %d", path, call, code, (int)finish);
    }
    gpu_standin.fail(-1, -1, 0);
    gpu_standin.get_stats(&stats);
    CHECKF(stats.live == 0 && stats.depth == 0, "%s, call %ld, error %d: %d objects are left", path, call, code, stats.live);
}

/* Every call fails in turn, then every kernel: a result each time, or the CPU instead; never a crash, a hang, a leak. */
static void test_gpu_host_faults(void) {
    static const int codes[] = {2, 719};
    model_spec spec = model_spec_tiny();
    model_sample m;
    standin_device device;
    int p, c, i, failures;
    if (!gpu_standin_open() || !gpu_standin_image) SKIP(GPU_NONE);
    spec.n_layers = 1;
    gpu_standin.get_device(&device);
    device.idle = 1;
    gpu_standin.set_device(&device);
    model_sample_open(&m, &spec);
    for (p = 0; m.model && p < 2; p++)
        for (c = 0; c < 2; c++) {
            bool came = true; /* every call on CUDA runs out of memory, others take turns */
            for (i = 0, failures = test_failures; came && i < 3000 && test_failures == failures; i += p || c ? 5 : 1)
                gpu_check_fault(m.model, gpu_paths[p], i, -1, codes[c], &came);
            CHECKF(!came || test_failures > failures, "%s: call %d", gpu_paths[p], i);
            CHECKF(i > 200, "%s: %d calls", gpu_paths[p], i);
        }
    for (i = 0, failures = test_failures; m.model && i < 30 && test_failures == failures; i += 4) {
        bool came;
        gpu_check_fault(m.model, "cuda", -1, i, 700, &came);
        CHECK(came);
    }
    model_sample_close(&m);
    gpu_standin_check();
}

/* Every allocation of ours fails in turn. */
static void test_gpu_host_out_of_memory(void) {
    cpu_attn c = {FG_TYPE_F16, 8, 2, 32, 32, 1, 0, 32, false, 0.0f, 1.0f, {40, 0, 0, 0, 0, 0}};
    cpu_rig *rig;
    if (!cpu_has_gpu("cuda")) SKIP(GPU_NONE);
    rig = cpu_model_rig(&c, FG_TYPE_Q8_0);
    rig->backend = fg_backend_cuda();
    rig->options = cpu_gpu_options("cuda");
    cpu_fail_allocations(rig, 10);
    cpu_rig_free(rig);
    gpu_standin_check();
}

static void run_gpu_host_tests(void) {
    RUN(test_gpu_host_device);
    RUN(test_gpu_host_drivers);
    RUN(test_gpu_host_integrated);
    RUN(test_gpu_host_images);
    RUN(test_gpu_host_compile);
    RUN(test_gpu_host_unpack);
    RUN(test_gpu_host_model);
    RUN(test_gpu_host_copy_blocks);
    RUN(test_gpu_host_swap);
    RUN(test_gpu_host_engine);
    RUN(test_gpu_host_graphs);
    RUN(test_gpu_host_graph_errors);
    RUN(test_gpu_host_graph_versions);
    RUN(test_gpu_host_graph_room);
    RUN(test_gpu_host_scratch);
    RUN(test_gpu_host_names);
    RUN(test_gpu_host_turns);
    RUN(test_gpu_host_alone);
    RUN(test_gpu_host_async);
    RUN(test_vulkan_async);
    RUN(test_gpu_host_blas);
    RUN(test_gpu_host_blas_faults);
    RUN(test_gpu_host_blas_calls);
    RUN(test_gpu_host_blas_unused);
    RUN(test_gpu_host_blas_types);
    RUN(test_gpu_host_blas_expand);
    RUN(test_gpu_host_made_acts);
    RUN(test_gpu_host_made_experts);
    RUN(test_gpu_host_gates);
    RUN(test_gpu_host_state);
    RUN(test_gpu_host_early);
    RUN(test_gpu_host_hopper);
    RUN(test_gpu_host_hopper_attention);
    RUN(test_gpu_host_special_types);
    RUN(test_gpu_host_special_faults);
    RUN(test_gpu_host_roofs);
    RUN(test_gpu_host_splits);
    RUN(test_gpu_host_bytes);
    RUN(test_gpu_host_faults);
    RUN(test_gpu_host_out_of_memory);
}
