/* From arguments to a loaded model, an engine and requests. */

typedef struct session {
    fg_model *model;
    fg_engine *engine;
    FILE *trace;
} session;

static void print_log(fg_log_level level, const char *line, void *user) {
    static const char *const names[4] = {"debug", "info", "warning", "error"};
    const tool_args *args = (const tool_args *)user;
    if (level < FG_LOG_WARNING && !args->verbose) return;
    if (args->quiet && level < FG_LOG_ERROR) return;
    clear_progress();
    fprintf(stderr, "%s: %s\n", names[level], line);
}

static bool print_load_progress(float fraction, const char *what, void *user) {
    const tool_args *args = (const tool_args *)user;
    if (!args->quiet) show_progress(fraction, what);
    return true;
}

/* Files to be written: what would destroy a model, or fail only after long work, is refused. 0, or an exit code after a message. */
static int check_outputs(const tool_args *args) {
    const char *outputs[2], *models[2];
    int i, k;
    outputs[0] = args->trace, outputs[1] = args->plot;
    models[0] = args->model, models[1] = args->draft_model;
    for (i = 0; i < 2; i++) {
        for (k = 0; outputs[i] && k < 2; k++)
            if (models[k] && same_file(outputs[i], models[k]))
                return usage_error(args, "--%s: '%s' is the model", i ? "plot" : "trace", outputs[i]);
        if (outputs[i] && !can_write(outputs[i])) return failure("cannot write '%s': %s", outputs[i], strerror(errno));
    }
    return 0;
}

static fg_result try_load(const tool_args *args, bool vocab_only, fg_model **model) {
    fg_model_desc desc;
    fg_result result;
    memset(&desc, 0, sizeof(desc));
    desc.path = args->model;
    desc.vocab_only = vocab_only;
    desc.log = print_log;
    desc.log_user = (void *)args;
    desc.progress = print_load_progress;
    desc.progress_user = (void *)args;
    result = fg_model_load(&desc, model);
    clear_progress();
    return result;
}

/* Loads the model of -m. 0, or an exit code after a message. */
static int load_model(const tool_args *args, bool vocab_only, fg_model **model) {
    if (!args->model) return usage_error(args, "no model: -m FILE is missing");
    return try_load(args, vocab_only, model) == FG_OK ? 0 : failure("%s", fg_last_error());
}

static int find_policy(const tool_args *args, fg_policy *policy) {
    static const char *const names[4] = {"splitfuse", "prefill_first", "orca", "static"};
    int i;
    for (i = 0; args->policy && i < 4; i++)
        if (strcmp(args->policy, names[i]) == 0) {
            *policy = (fg_policy)i;
            return 0;
        }
    return args->policy ? usage_error(args, "no policy '%s'", args->policy) : 0;
}

static int find_preemption(const tool_args *args, fg_preemption *preemption) {
    static const char *const names[3] = {"auto", "recompute", "swap"};
    int i;
    for (i = 0; args->preemption && i < 3; i++)
        if (strcmp(args->preemption, names[i]) == 0) {
            *preemption = (fg_preemption)i;
            return 0;
        }
    return args->preemption ? usage_error(args, "no preemption '%s'", args->preemption) : 0;
}

static int find_async(const tool_args *args, fg_async *async) {
    static const char *const names[3] = {"off", "overlap", "2"};
    int i;
    for (i = 0; args->async && i < 3; i++)
        if (strcmp(args->async, names[i]) == 0) {
            *async = (fg_async)i;
            return 0;
        }
    return args->async ? usage_error(args, "--async is off, overlap or 2, not '%s'", args->async) : 0;
}

/* f16 unless asked for another: half of f32's memory to hold and to read, errors far below those of quantised weights, and
   what the matrix instructions of GPUs take. */
static int find_kv_type(const tool_args *args, fg_type *type) {
    static const char *const names[4] = {"f16", "f32", "bf16", "q8_0"};
    static const fg_type types[4] = {FG_TYPE_F16, FG_TYPE_F32, FG_TYPE_BF16, FG_TYPE_Q8_0};
    int i;
    for (i = 0; i < 4; i++)
        if (!args->kv_type || strcmp(args->kv_type, names[i]) == 0) {
            *type = types[i];
            return 0;
        }
    return usage_error(args, "no KV type '%s'", args->kv_type);
}

/* Options of the Vulkan backend: compiled kernels are kept in the user's cache folder, in a file for each --device. */
static const void *vulkan_options(const tool_args *args) {
    static fg_vulkan_options options;
    static char path[1024];
    char name[80], *at;
    snprintf(name, sizeof(name), "vulkan%s%.40s.bin", args->device ? "-" : "", args->device ? args->device : "");
    for (at = name; *at; at++)
        if (!strchr("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-.", *at)) *at = '_';
    if (!args->no_kernel_cache && user_cache_file(path, sizeof(path), name)) options.cache_path = path;
    return &options;
}

static int find_backend(const tool_args *args, const fg_backend **backend) {
    *backend = strcmp(args->backend, "cpu") == 0 ? fg_backend_cpu()
             : strcmp(args->backend, "cuda") == 0 ? fg_backend_cuda()
             : strcmp(args->backend, "hip") == 0 ? fg_backend_hip()
             : strcmp(args->backend, "vulkan") == 0 ? fg_backend_vulkan()
             : strcmp(args->backend, "null") == 0 ? fg_backend_null() : NULL;
    if (!*backend) return usage_error(args, "no backend '%s'", args->backend);
    if ((*backend)->probe() < 1) {
        fprintf(stderr, "fastgen: there is no %s driver or device here; the CPU does the work\n", args->backend);
        *backend = fg_backend_cpu();
    }
    return 0;
}

/* 0, or 2 after a message. */
static int describe_engine(const tool_args *args, fg_engine_desc *desc) {
    int result;
    memset(desc, 0, sizeof(*desc));
    if (strcmp(args->backend, "cpu") == 0 && args->gpu_layers && !args->quiet) /* of --device the engine warns */
        fprintf(stderr, "fastgen: --gpu-layers is for a GPU: name one with --backend\n");
    result = find_backend(args, &desc->backends[0]);
    if (result == 0) result = find_policy(args, &desc->policy);
    if (result == 0) result = find_preemption(args, &desc->preemption);
    if (result == 0) result = find_async(args, &desc->async);
    if (result == 0) result = find_kv_type(args, &desc->kv_type);
    desc->draft_path = args->draft_model;
    desc->device = args->device;
    desc->cpu_path = args->cpu_path;
    desc->n_threads = args->threads;
    desc->gpu_layers = args->gpu_layers;
    if (desc->backends[0] == fg_backend_vulkan()) desc->backend_options = vulkan_options(args);
    desc->kv_device = args->kv_device;
    desc->experts_device = args->experts_device;
    desc->kv_level = args->kv_level;
    desc->max_context = args->context;
    desc->max_seqs = args->max_seqs;
    desc->max_queue = args->max_queue;
    desc->token_budget = args->token_budget;
    desc->saturate_budget = args->saturate;
    desc->target_tbt_ms = args->target_tbt < 0 ? 0.0f : (float)args->target_tbt;
    desc->kv_tokens = args->kv_tokens;
    desc->block_tokens = args->block_tokens;
    desc->no_even_split = args->no_even_split;
    desc->no_prefix_cache = args->no_prefix_cache;
    desc->log = print_log;
    desc->log_user = (void *)args;
    desc->progress = print_load_progress;
    desc->progress_user = (void *)args;
    return result;
}

static void write_trace(const void *data, size_t size, void *user) { fwrite(data, 1, size, (FILE *)user); }

/* What was chosen, for -v. */
static void print_engine(fg_engine *engine) {
    fg_engine_desc desc;
    fg_device_caps caps;
    fg_memory memory;
    fg_engine_get_desc(engine, &desc);
    fg_engine_get_device(engine, &caps);
    fg_engine_get_memory(engine, &memory);
    fprintf(stderr, "info: %s: %s; context %d, a KV pool of %d tokens in blocks of %d, %.0f MiB; up to %d tokens a pass, %d sequences\n",
            fg_engine_get_backend(engine), caps.name, desc.max_context, desc.kv_tokens, desc.block_tokens, (double)memory.kv / 1048576,
            desc.token_budget, desc.max_seqs);
}

/* Creates the engine, which writes a trace where one is asked for. 0, or 1 after a message. */
static int create_engine(const tool_args *args, fg_engine_desc *desc, session *s) {
    desc->model = s->model;
    if (args->trace) {
        s->trace = open_for_writing(args->trace);
        if (!s->trace) return failure("cannot write '%s': %s", args->trace, strerror(errno));
        desc->trace = write_trace;
        desc->trace_user = s->trace;
    }
    if (fg_engine_create(desc, &s->engine) != FG_OK) return failure("%s", fg_last_error());
    clear_progress();
    if (args->verbose) print_engine(s->engine);
    return 0;
}

/* Returns `result`, or 1 after a message where that is 0 and the trace could not be written. */
static int session_close(session *s, int result) {
    fg_engine_free(s->engine); /* ends the trace */
    if (s->trace && (fflush(s->trace) != 0 || ferror(s->trace))) {
        failure("the trace is not complete: %s", strerror(errno));
        if (result == 0) result = 1;
    }
    if (s->trace) fclose(s->trace);
    fg_model_free(s->model);
    memset(s, 0, sizeof(*s));
    return result;
}

/* Model and engine as the arguments say. 0, or an exit code after a message. */
static int session_open(const tool_args *args, session *s) {
    fg_engine_desc desc;
    int result = describe_engine(args, &desc);
    memset(s, 0, sizeof(*s));
    if (result == 0) result = load_model(args, false, &s->model);
    if (result == 0) result = create_engine(args, &desc, s);
    return result == 0 ? 0 : session_close(s, result);
}

/* How many tokens to guess ahead. */
static int draft_tokens(const tool_args *args) { return args->draft >= 0 ? args->draft : args->draft_model ? 4 : 0; }

/* "15=-2.5" and "15=-inf". `biases` must live as long as the request is being submitted. */
static int parse_biases(const tool_args *args, fg_logit_bias *biases) {
    int i;
    for (i = 0; i < args->biases.count; i++) {
        const char *text = args->biases.items[i];
        char *equals, *end;
        long token = strtol(text, &equals, 10);
        const char *number = *equals == '=' ? equals + 1 : equals;
        double bias = strtod(number, &end);
        if (equals == text || number == equals || end == number || *end || token < 0 || token > 0x7FFFFFFF)
            return usage_error(args, "--logit-bias: '%s' is not ID=NUMBER", text);
        biases[i].token = (int32_t)token;
        biases[i].bias = (float)bias;
    }
    return 0;
}

/* Sampling, stops and limits of the arguments; the caller frees sampling.logit_bias. 0, or 2 after a message. */
static int describe_request(const tool_args *args, int default_tokens, fg_request_desc *desc) {
    fg_sampling *p = &desc->sampling;
    fg_logit_bias *biases = (fg_logit_bias *)xrealloc(NULL, (size_t)(args->biases.count + 1) * sizeof(fg_logit_bias));
    memset(desc, 0, sizeof(*desc));
    p->temperature = (float)args->temperature;
    p->top_k = args->top_k;
    p->top_p = (float)args->top_p;
    if (p->top_p == 0.0f) p->top_p = 1e-6f; /* the best token alone; 0 is off for the engine */
    p->min_p = (float)args->min_p;
    p->typical_p = (float)args->typical_p;
    p->repetition_penalty = (float)args->repetition_penalty;
    p->presence_penalty = (float)args->presence_penalty;
    p->frequency_penalty = (float)args->frequency_penalty;
    p->penalty_window = args->penalty_window;
    p->seed = args->seed_given ? args->seed : (uint64_t)(now_seconds() * 1e9);
    p->logit_bias = biases;
    p->n_logit_bias = args->biases.count;
    desc->max_tokens = args->n_predict < 0 ? default_tokens : args->n_predict;
    desc->min_tokens = args->min_tokens;
    desc->n_draft = args->beams ? args->draft > 0 ? args->draft : 0 : draft_tokens(args);
    desc->n_beams = args->beams;
    desc->best_of = args->best_of;
    desc->stop = args->stops.items;
    desc->n_stop = args->stops.count;
    desc->ignore_eos = args->ignore_eos;
    desc->tokenize_flags = (args->no_bos ? FG_NO_BOS : 0u) | (args->no_special ? FG_NO_SPECIAL : 0u);
    return parse_biases(args, biases);
}

/* Ids of a text, in new memory; -1 after a message. */
static int tokenize_text(const fg_model *model, const char *text, size_t length, unsigned flags, int32_t **ids) {
    size_t count = 0, capacity = length + 16;
    fg_result result;
    *ids = (int32_t *)xrealloc(NULL, capacity * sizeof(int32_t));
    result = fg_tokenize(model, text, length, flags, *ids, capacity, &count);
    if (result == FG_ERROR_BUFFER_TOO_SMALL) {
        *ids = (int32_t *)xrealloc(*ids, count * sizeof(int32_t));
        result = fg_tokenize(model, text, length, flags, *ids, count, &count);
    }
    if (result == FG_OK && count <= 0x7FFFFFFF) return (int)count;
    failure("%s", result == FG_OK ? "the text is too long" : fg_last_error());
    return -1;
}

/* Appends the text of ids. */
static fg_result add_detokenized(const fg_model *model, const int32_t *ids, size_t count, unsigned flags, str *to) {
    size_t length = 0;
    fg_result result = fg_detokenize(model, ids, count, flags, NULL, 0, &length);
    if (result != FG_OK && result != FG_ERROR_BUFFER_TOO_SMALL) return result;
    str_reserve(to, length);
    result = fg_detokenize(model, ids, count, flags, to->data + to->length, length, &length);
    if (result != FG_OK) return result;
    to->length += length;
    to->data[to->length] = 0;
    return FG_OK;
}

/* Adds a message to a conversation in the form of the OpenAI API. */
static void add_message(str *json, const char *role, const char *text, size_t length) {
    if (json->length) json->length--; /* the closing bracket */
    str_printf(json, "%s{\"role\": \"%s\", \"content\": ", json->length ? ", " : "[", role);
    str_json(json, text, length);
    str_puts(json, "}]");
}

/* Renders such a conversation with the model's chat template, up to where the answer begins. */
static fg_result format_chat(const fg_model *model, const str *json, str *to) {
    static const char variables[] = "{\"add_generation_prompt\": true}";
    size_t length = 0;
    fg_result result = fg_chat_format(model, json->data, variables, NULL, 0, &length);
    if (result != FG_OK && result != FG_ERROR_BUFFER_TOO_SMALL) return result;
    str_reserve(to, length);
    result = fg_chat_format(model, json->data, variables, to->data, length, &length);
    if (result == FG_OK) to->length = length;
    to->data[to->length] = 0;
    return result;
}

/* What an engine runs on: its backend's device, opened only to be asked for its name. False: there is none, which the name says. */
static bool describe_device(const fg_engine_desc *engine, fg_device_caps *caps) {
    const fg_backend *backend = engine->backends[0];
    fg_device_desc desc;
    fg_device *device = NULL;
    memset(caps, 0, sizeof(*caps));
    memset(&desc, 0, sizeof(desc));
    desc.device = engine->device;
    desc.cpu_path = engine->cpu_path;
    desc.n_threads = engine->n_threads;
    if (backend->open(&desc, &device) != FG_OK) {
        snprintf(caps->name, sizeof(caps->name), "none: %.100s", fg_last_error());
        return false;
    }
    backend->caps(device, caps);
    backend->close(device);
    return true;
}

/* What an engine fell through to comes first, for those who say what was measured. */
static void put_used_backend_first(const fg_engine *engine, fg_engine_desc *desc) {
    const char *used = fg_engine_get_backend(engine);
    int i;
    for (i = 0; i < FG_MAX_BACKENDS && desc->backends[i]; i++)
        if (strcmp(desc->backends[i]->name, used) == 0) desc->backends[0] = desc->backends[i];
    if (strcmp(used, "cpu") == 0) desc->backends[0] = fg_backend_cpu();
}

static const char *finish_name(fg_finish finish) {
    static const char *const names[5] = {"none", "stop", "length", "cancelled", "error"};
    return names[finish];
}

/* The last part of a path. */
static const char *base_name(const char *path) {
    const char *p, *base = path;
    for (p = path; *p; p++)
        if (*p == '/' || *p == '\\') base = p + 1;
    return base;
}

/* Whether a token is the mark of one of gpt-oss's messages, which are <|channel|> and a header, <|message|> and a body, <|end|>, or <|return|>, or
   <|call|> behind that of a call. Special tokens have no text of their own among what is generated. */
static bool is_mark(const fg_model *model, const fg_event *event, const char *mark) {
    size_t length = 0;
    const char *text = event->type == FG_EVENT_TOKEN ? fg_token_text(model, event->token, &length) : "";
    return length == strlen(mark) && memcmp(text, mark, length) == 0;
}
