/* fastgen info: what a model is, what it needs, and what it would run on. */

/* "3.21 MiB" */
static const char *byte_text(double bytes, char *buffer, size_t size) {
    static const char *const units[5] = {"B", "KiB", "MiB", "GiB", "TiB"};
    int unit = 0;
    while (bytes >= 1024.0 && unit < 4) {
        bytes /= 1024.0;
        unit++;
    }
    snprintf(buffer, size, unit ? "%.2f %s" : "%.0f %s", bytes, units[unit]);
    return buffer;
}

/* The weight type with the most bytes: what people call the quantisation of a model. "unknown" where some are of a type that is not known. */
static const char *main_type(const fg_model *model) {
    static const fg_type types[] = {
#define TYPE_ID(name, id, elements, bytes) FG_TYPE_##name,
        FG_TYPES(TYPE_ID)
#undef TYPE_ID
    };
    size_t sums[sizeof(types) / sizeof(types[0])] = {0};
    int i, k, best = 0, n = (int)(sizeof(types) / sizeof(types[0]));
    fg_tensor tensor;
    for (i = 0; fg_model_tensor(model, i, &tensor) == FG_OK; i++) {
        if (tensor.type == FG_TYPE_NONE) return "unknown";
        for (k = 0; k < n; k++)
            if (types[k] == tensor.type) sums[k] += tensor.bytes;
    }
    for (k = 1; k < n; k++)
        if (sums[k] > sums[best]) best = k;
    return sums[best] ? fg_type_name(types[best]) : "none";
}

static void print_card(const tool_args *args, const fg_model *model, const fg_model_info *info) {
    char size[32];
    printf("model          %s\n", base_name(args->model));
    if (info->name[0]) printf("name           %s\n", info->name);
    printf("architecture   %s\n", info->architecture);
    printf("vocabulary     %d tokens", info->n_vocab);
    if (info->token_bos >= 0) printf(", BOS %d%s", info->token_bos, info->add_bos ? " (added)" : "");
    if (info->token_eos >= 0) printf(", EOS %d%s", info->token_eos, info->add_eos ? " (added)" : "");
    printf("\nchat template  %s\n", info->chat_template ? "yes" : "no");
    if (info->vocab_only) {
        printf("weights        %s\n", fg_model_tensor_count(model) ? "not loaded" : "none: a vocabulary only");
        return;
    }
    printf("parameters     %.3f million, mostly %s, %s\n", (double)info->n_parameters / 1e6, main_type(model),
           byte_text((double)info->weight_bytes, size, sizeof(size)));
    printf("layers         %d of width %d, feed-forward %d\n", info->n_layers, info->n_embd, info->n_ff);
    if (info->n_experts) printf("experts        %d of %d for each token\n", info->n_experts_used, info->n_experts);
    printf("attention      %d heads of %d, %d for keys and values", info->n_heads, info->head_dim, info->n_kv_heads);
    if (info->sliding_window) printf(", window %d", info->sliding_window);
    printf("\ncontext        %d tokens in training\n", info->n_ctx_train);
}

static void print_metadata(const fg_model *model) {
    char value[160];
    const char *key;
    size_t length;
    int i;
    printf("\nmetadata\n");
    for (i = 0;; i++) {
        fg_result result = fg_model_meta(model, i, &key, value, sizeof(value), &length);
        str line = {NULL, 0, 0};
        size_t at = 0;
        if (result != FG_OK && result != FG_ERROR_BUFFER_TOO_SMALL) return;
        add_columns(&line, value, strlen(value), &at, 100);
        printf("  %-42s %s%s\n", key, line.data ? line.data : "", length > at ? " ..." : "");
        str_free(&line);
    }
}

static void print_memory_row(const char *name, const fg_memory *m) {
    char text[4][32];
    printf("               %7s %12s %12s %12s %12s\n", name, byte_text((double)m->weights, text[0], sizeof(text[0])),
           byte_text((double)m->kv, text[1], sizeof(text[1])), byte_text((double)m->activations, text[2], sizeof(text[2])),
           byte_text((double)m->total, text[3], sizeof(text[3])));
}

/* Memory for a few context lengths: a pool that holds one such sequence; then of an engine with these options. 1 after a message where they
   allow none. */
static int print_memory(const fg_engine_desc *desc, int n_ctx_train) {
    int contexts[4], i, n = 0;
    fg_memory m;
    if (desc->max_context) contexts[n++] = desc->max_context;
    else
        for (i = 2048; n < 3 && i <= n_ctx_train; i *= 4) contexts[n++] = i;
    if (n == 0) contexts[n++] = n_ctx_train;
    printf("\nmemory         context      weights     KV cache  activations        total\n");
    for (i = 0; i < n; i++) {
        fg_engine_desc with = *desc;
        char name[16];
        snprintf(name, sizeof(name), "%d", contexts[i]);
        with.max_context = contexts[i];
        if (!with.kv_tokens) with.kv_tokens = contexts[i];
        if (fg_estimate_memory(&with, &m) == FG_OK) print_memory_row(name, &m);
        else printf("               %7s  %s\n", name, fg_last_error());
    }
    if (fg_estimate_memory(desc, &m) != FG_OK) return failure("%s", fg_last_error());
    print_memory_row("engine", &m);
    return 0;
}

static int print_graph(const tool_args *args, fg_engine_desc *desc, session *s) {
    size_t length = 0;
    char *text;
    fg_result result;
    if (create_engine(args, desc, s) != 0) return 1;
    fg_graph_text(s->engine, NULL, 0, &length);
    text = (char *)xrealloc(NULL, length + 1);
    result = fg_graph_text(s->engine, text, length + 1, &length);
    if (result == FG_OK) fwrite(text, 1, length, stdout);
    free(text);
    return result == FG_OK ? 0 : failure("%s", fg_last_error());
}

static void add_json_text(str *to, const char *name, const char *value) {
    str_printf(to, "\"%s\": ", name);
    if (value) str_json(to, value, strlen(value));
    else str_puts(to, "null");
    str_puts(to, ", ");
}

static int print_info_json(const tool_args *args, const fg_model *model, const fg_model_info *info,
                            const fg_engine_desc *desc, const fg_device_caps *caps) {
    str out = {NULL, 0, 0};
    fg_memory m;
    if (!info->vocab_only && fg_estimate_memory(desc, &m) != FG_OK) return failure("%s", fg_last_error());
    str_puts(&out, "{");
    add_json_text(&out, "model", base_name(args->model));
    add_json_text(&out, "name", info->name);
    add_json_text(&out, "architecture", info->architecture);
    add_json_text(&out, "type", main_type(model));
    add_json_text(&out, "chat_template", info->chat_template);
    str_printf(&out, "\"parameters\": %lld, \"weight_bytes\": ", (long long)info->n_parameters);
    if (strcmp(main_type(model), "unknown") == 0) str_puts(&out, "null, ");
    else str_printf(&out, "%lld, ", (long long)info->weight_bytes);
    str_printf(&out, "\"n_vocab\": %d, \"n_layers\": %d, \"n_embd\": %d, \"n_heads\": %d, \"n_kv_heads\": %d, ",
               info->n_vocab, info->n_layers, info->n_embd, info->n_heads, info->n_kv_heads);
    str_printf(&out, "\"head_dim\": %d, \"n_ff\": %d, \"n_ctx_train\": %d, \"sliding_window\": %d, ", info->head_dim,
               info->n_ff, info->n_ctx_train, info->sliding_window);
    str_printf(&out, "\"n_experts\": %d, \"n_experts_used\": %d, ", info->n_experts, info->n_experts_used);
    str_printf(&out, "\"bos\": %d, \"eos\": %d, \"add_bos\": %s, \"add_eos\": %s, ", info->token_bos, info->token_eos,
               info->add_bos ? "true" : "false", info->add_eos ? "true" : "false");
    if (!info->vocab_only)
        str_printf(&out, "\"memory\": {\"weights\": %llu, \"kv\": %llu, \"activations\": %llu, \"total\": %llu}, ",
                   (unsigned long long)m.weights, (unsigned long long)m.kv, (unsigned long long)m.activations,
                   (unsigned long long)m.total);
    add_json_text(&out, "backend", desc->backends[0]->name);
    str_puts(&out, "\"device\": ");
    str_json(&out, caps->name, strlen(caps->name));
    str_puts(&out, "}\n");
    fwrite(out.data, 1, out.length, stdout);
    str_free(&out);
    return 0;
}

static int print_info(tool_args *args, session *s, fg_engine_desc *desc) {
    fg_model_info info;
    fg_device_caps caps;
    int result = 0;
    if (args->json && (args->graph || args->metadata)) return usage_error(args, "--graph and --metadata are text: not with --json");
    fg_model_get_info(s->model, &info);
    desc->model = s->model;
    if (args->graph && info.vocab_only) return failure("%s has no weights, so no graph", base_name(args->model));
    if (args->graph) return print_graph(args, desc, s);
    if (!describe_device(desc, &caps) && !info.vocab_only) return failure("%s", fg_last_error());
    if (args->json) return print_info_json(args, s->model, &info, desc, &caps);
    print_card(args, s->model, &info);
    if (!info.vocab_only) printf("device         %s: %s\n", desc->backends[0]->name, caps.name);
    if (!info.vocab_only) result = print_memory(desc, info.n_ctx_train);
    if (args->metadata) print_metadata(s->model);
    return result;
}

/* A model that cannot run here still has a vocabulary and metadata to show. */
static int load_for_info(const tool_args *args, fg_model **model) {
    str why = {NULL, 0, 0};
    int result = 0;
    if (!args->model) return usage_error(args, "no model: -m FILE is missing");
    if (try_load(args, false, model) == FG_OK) return 0;
    str_puts(&why, fg_last_error());
    if (try_load(args, true, model) != FG_OK) result = failure("%s", why.data);
    else if (fg_model_tensor_count(*model) > 0) fprintf(stderr, "fastgen: this model cannot run: %s\n", why.data);
    str_free(&why);
    return result;
}

static int cmd_info(tool_args *args) {
    fg_engine_desc desc;
    session s;
    int result = describe_engine(args, &desc);
    memset(&s, 0, sizeof(s));
    if (result == 0) result = load_for_info(args, &s.model);
    if (result == 0) result = print_info(args, &s, &desc);
    return session_close(&s, result);
}
