/* Model files that lie, through loading, making an engine and a short generation: absurd numbers, wrong types, missing and
   misshapen tensors, weights that are no numbers, mutated and truncated files. And the graphs of sound ones as text. */
#include "model_sample.h"
#include "test_alloc.h"

/* ---- one value or tensor of a sound file is replaced */

typedef enum model_how {
    MODEL_MISSING, MODEL_STRING, MODEL_NAN, MODEL_EMPTY, MODEL_UNEQUAL, MODEL_INT, MODEL_FLOAT /* values */,
    MODEL_TYPE, MODEL_SHAPE, MODEL_DIMS, MODEL_FILL                                            /* tensors */
} model_how;

typedef struct model_lie {
    const char *name; /* of a value without "llama.", or of a tensor */
    model_how how;
    double number;
} model_lie;

static void model_lie_value(gguf_writer *w, const model_lie *lie) {
    char key[96];
    snprintf(key, sizeof(key), "llama.%s", lie->name);
    if (lie->how == MODEL_STRING) gguf_add_string(w, key, "many");
    if (lie->how == MODEL_NAN) gguf_add_f32(w, key, NAN);
    if (lie->how == MODEL_INT) gguf_add_i64(w, key, (int64_t)lie->number);
    if (lie->how == MODEL_FLOAT) gguf_add_f64(w, key, lie->number);
    if (lie->how == MODEL_EMPTY) gguf_add_array(w, key, GGUF_U32, 0);
    if (lie->how != MODEL_UNEQUAL) return;
    gguf_add_array(w, key, GGUF_U32, 2);
    gguf_put_int(&w->values, 4, 4);
    gguf_put_int(&w->values, 2, 4);
}

static void model_lie_number(gguf_writer *w, const char *name, double value, const model_lie *lie) {
    char key[96];
    snprintf(key, sizeof(key), "llama.%s", name);
    if (strcmp(lie->name, name) == 0) model_lie_value(w, lie);
    else if (value != (double)(int)value) gguf_add_f32(w, key, (float)value);
    else if (value >= 0) gguf_add_u32(w, key, (uint32_t)value);
}

/* -1: only there as a lie. */
static void model_lie_numbers(gguf_writer *w, const model_lie *lie) {
    static const struct { const char *name; double value; } numbers[] = {
        {"block_count", 2}, {"context_length", 256}, {"embedding_length", 64}, {"feed_forward_length", 96},
        {"attention.head_count", 4}, {"attention.head_count_kv", 2}, {"attention.key_length", 16},
        {"attention.value_length", 16}, {"attention.layer_norm_rms_epsilon", 1e-5}, {"rope.dimension_count", 16},
        {"rope.freq_base", 10000.5}, {"attention.sliding_window", -1}, {"attention.sliding_window_pattern", -1},
        {"rope.scaling.factor", -1}, {"rope.scale_linear", -1}, {"rope.scaling.original_context_length", -1},
        {"rope.scaling.yarn_beta_fast", -1}, {"rope.scaling.yarn_beta_slow", -1}, {"rope.scaling.attn_factor", -1},
        {"expert_count", -1}};
    size_t i;
    for (i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++) model_lie_number(w, numbers[i].name, numbers[i].value, lie);
}

static void model_lie_tensor(gguf_writer *w, const model_lie *lie, const char *name, int64_t columns, int64_t rows) {
    bool lies = strcmp(lie->name, name) == 0;
    fg_type type = lies && lie->how == MODEL_TYPE ? (fg_type)(int)lie->number : FG_TYPE_F32;
    int64_t dims[5] = {1, 1, 1, 1, 1}, n, i;
    unsigned char *data;
    float fill = (float)lie->number;
    int n_dims = rows ? 2 : 1;
    dims[0] = columns;
    if (rows) dims[1] = rows;
    if (lies && lie->how == MODEL_MISSING) return;
    if (lies && lie->how == MODEL_SHAPE) dims[rows && lie->number < 0] += (int64_t)lie->number; /* one column or row off */
    if (lies && lie->how == MODEL_DIMS) n_dims = (int)lie->number;
    for (n = 1, i = 0; i < n_dims; i++) n *= dims[i];
    data = (unsigned char *)calloc((size_t)n + 64, 4);
    for (i = 0; i < n; i++) {
        float x = lies && lie->how == MODEL_FILL ? fill : (float)(i % 17 - 8) * 0.03f;
        if (type == FG_TYPE_F32) memcpy(data + 4 * i, &x, 4);
    }
    gguf_add_tensor(w, name, (uint32_t)type, n_dims, dims, data, (size_t)FG__MAX(fg_type_bytes(type, n), 1));
    free(data);
}

static void model_lie_layer(gguf_writer *w, const model_lie *lie, int layer) {
    static const struct { const char *name; int columns, rows; } tensors[] = {
        {"attn_norm.weight", 64, 0}, {"attn_q.weight", 64, 64}, {"attn_k.weight", 64, 32}, {"attn_v.weight", 64, 32},
        {"attn_output.weight", 64, 64}, {"ffn_norm.weight", 64, 0}, {"ffn_gate.weight", 64, 96}, {"ffn_up.weight", 64, 96},
        {"ffn_down.weight", 96, 64}};
    char name[64];
    size_t i;
    for (i = 0; i < sizeof(tensors) / sizeof(tensors[0]); i++) {
        snprintf(name, sizeof(name), "blk.%d.%s", layer, tensors[i].name);
        model_lie_tensor(w, lie, name, tensors[i].columns, tensors[i].rows);
    }
}

static void model_lie_build(const model_lie *lie, const char *rope_scaling, unsigned char **file, size_t *size) {
    gguf_writer w;
    int n_vocab = model_n_vocab();
    token_sample_spm(&w, false);
    gguf_add_string(&w, "general.architecture", "llama");
    if (rope_scaling) gguf_add_string(&w, "llama.rope.scaling.type", rope_scaling);
    model_lie_numbers(&w, lie);
    model_lie_tensor(&w, lie, "token_embd.weight", 64, n_vocab);
    model_lie_layer(&w, lie, 0);
    model_lie_layer(&w, lie, 1);
    model_lie_tensor(&w, lie, "output_norm.weight", 64, 0);
    model_lie_tensor(&w, lie, "output.weight", 64, n_vocab);
    if (strcmp(lie->name, "rope_freqs.weight") == 0) model_lie_tensor(&w, lie, lie->name, 8, 0);
    if (strcmp(lie->name, "output.bias") == 0) model_lie_tensor(&w, lie, lie->name, n_vocab, 0);
    gguf_finish(&w, file, size);
}

/* ---- what a file comes to */

static fg_result model_try_lie(const model_lie *lie, const char *rope_scaling) {
    unsigned char *file;
    size_t size;
    fg_result r;
    model_lie_build(lie, rope_scaling, &file, &size);
    r = model_try(file, size, true);
    free(file);
    return r;
}

static void test_model_truth(void) {
    static const model_lie none = {"", MODEL_MISSING, 0};
    static const char *const scalings[] = {NULL, "none", "linear", "yarn"};
    int i;
    for (i = 0; i < 4; i++) CHECKF(model_try_lie(&none, scalings[i]) == FG_OK, "%s", fg_last_error());
    CHECK(model_try_lie(&none, "imaginary") == FG_ERROR_UNSUPPORTED);
}

/* What makes a model another one than its architecture's name says is named. */
static void test_model_other_kinds(void) {
    model_lie lie;
    lie.name = "output.bias";
    lie.how = MODEL_FILL;
    lie.number = 0;
    CHECK(model_try_lie(&lie, NULL) == FG_ERROR_UNSUPPORTED && strstr(fg_last_error(), "'output.bias'"));
    lie.name = "expert_count";
    lie.how = MODEL_INT;
    lie.number = 8;
    CHECK(model_try_lie(&lie, NULL) == FG_ERROR_BAD_FILE && strstr(fg_last_error(), "expert_used_count"));
    lie.number = 0;
    CHECK(model_try_lie(&lie, NULL) == FG_OK);
}

/* Whatever the scaling is, cos and sin are multiplied by what the file says. */
static void test_model_rope_magnitude(void) {
    static const char *const scalings[] = {NULL, "none", "linear", "yarn"};
    int i;
    for (i = 0; i < 4; i++) {
        model_lie lie;
        fg_model_desc d;
        fg_model *model = NULL;
        unsigned char *file;
        lie.name = "rope.scaling.attn_factor";
        lie.how = MODEL_FLOAT;
        lie.number = 1.5;
        memset(&d, 0, sizeof(d));
        model_lie_build(&lie, scalings[i], &file, &d.size);
        d.data = file;
        CHECKF(fg_model_load(&d, &model) == FG_OK && model->hp.rope_magnitude == 1.5, "%s", fg_last_error());
        fg_model_free(model);
        free(file);
    }
}

/* A model with two chat templates: the one for tools where there are some. */
static void test_model_templates(void) {
    static const char *const options[] = {NULL, "{}", "{\"tools\": null}", "{\"tools\": []}", "{\"tools\": [1]}", "[]", "{"};
    static const char *const texts[4][5] = {
        {"", "", "", "", ""}, {"one", "one", "one", "one", "one"}, {"two", "two", "two", "two", "two"}, {"one", "one", "one", "two", "two"}};
    int which, i;
    for (which = 0; which < 4; which++) {
        fg_allocator allocator = test_allocator(0);
        fg_model_desc d;
        fg_model_info info;
        fg_model *model = NULL;
        gguf_writer w;
        unsigned char *file;
        char text[16] = "";
        size_t length = 0;
        memset(&d, 0, sizeof(d));
        token_sample_bpe(&w, "gpt-2");
        gguf_add_string(&w, "general.architecture", "llama");
        if (which & 1) gguf_add_string(&w, "tokenizer.chat_template", "one");
        if (which & 2) gguf_add_string(&w, "tokenizer.chat_template.tool_use", "two");
        gguf_finish(&w, &file, &d.size);
        d.data = file;
        d.allocator = &allocator;
        d.vocab_only = true;
        CHECKF(fg_model_load(&d, &model) == FG_OK, "%s", fg_last_error());
        if (!model) continue;
        fg_model_get_info(model, &info);
        CHECK(!info.chat_template == !which && (!which || strcmp(info.chat_template, which & 1 ? "one" : "two") == 0));
        for (i = 0; i < 7; i++) {
            fg_result r = fg_chat_format(model, "[]", options[i], text, sizeof(text), &length);
            CHECKF(r == (!which ? FG_ERROR_NOT_FOUND : i < 5 ? FG_OK : FG_ERROR_INVALID_ARGUMENT), "%s: %s", options[i], fg_result_name(r));
            if (which && i < 5) CHECKF(strcmp(text, texts[which][i]) == 0, "%d, %s: %s", which, options[i], text);
        }
        fg_model_free(model);
        CHECKF(test_alloc_live() == 0, "%d are left", test_alloc_live());
        free(file);
    }
}

/* Every number in turn, at every odd value. These must be refused; of others both outcomes are fine. */
static void test_model_numbers(void) {
    static const char *const names[] = {
        "block_count", "context_length", "embedding_length", "feed_forward_length", "attention.head_count",
        "attention.head_count_kv", "attention.key_length", "attention.value_length", "rope.dimension_count",
        "attention.sliding_window"};
    static const double numbers[] = {-1, -1e18, 0, 1, 2, 3, 5, 17, 4095, 65537, 2147483647.0, 4294967295.0, 9e18};
    static const char *const sizes[] = {"block_count", "embedding_length", "feed_forward_length", "attention.head_count"};
    size_t n, i;
    for (n = 0; n < sizeof(names) / sizeof(names[0]); n++) {
        model_lie lie;
        lie.name = names[n];
        for (i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++) {
            bool size = false;
            size_t k;
            for (k = 0; k < 4; k++) size = size || strcmp(names[n], sizes[k]) == 0;
            lie.how = MODEL_INT;
            lie.number = numbers[i];
            if (model_try_lie(&lie, NULL) == FG_OK)
                CHECKF(!size || numbers[i] == 1 || numbers[i] == 2, "%s is %g and nobody minds", names[n], numbers[i]);
        }
        for (i = MODEL_MISSING; i <= MODEL_UNEQUAL; i++) {
            fg_result r;
            lie.how = (model_how)i;
            r = model_try_lie(&lie, NULL);
            if (i != MODEL_MISSING) CHECKF(r != FG_OK, "%s: lie %d", names[n], (int)i);
            else CHECK(r == FG_OK || n < 6);
        }
    }
}

static void test_model_reals(void) {
    static const char *const names[] = {
        "attention.layer_norm_rms_epsilon", "rope.freq_base", "rope.scaling.factor", "rope.scale_linear",
        "rope.scaling.original_context_length", "rope.scaling.yarn_beta_fast", "rope.scaling.yarn_beta_slow",
        "rope.scaling.attn_factor", "attention.sliding_window_pattern"};
    const double numbers[] = {-1, 0, 1, 1e-300, 1e300, 1e9, INFINITY, -INFINITY, NAN};
    size_t n, i, s;
    for (n = 0; n < sizeof(names) / sizeof(names[0]); n++)
        for (s = 0; s < 2; s++)
            for (i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++) {
                model_lie lie;
                fg_result r;
                lie.name = names[n];
                lie.how = MODEL_FLOAT;
                lie.number = numbers[i];
                r = model_try_lie(&lie, s ? "yarn" : "linear");
                if (n < 2 && i != 2 && i != 3 && !(n == 1 && i == 5))
                    CHECKF(r == FG_ERROR_BAD_FILE, "%s is %g: %s", names[n], numbers[i], fg_result_name(r));
            }
}

static void test_model_tensors(void) {
    static const char *const names[] = {
        "token_embd.weight", "output_norm.weight", "output.weight", "blk.0.attn_norm.weight", "blk.1.attn_q.weight",
        "blk.0.attn_k.weight", "blk.1.attn_v.weight", "blk.0.attn_output.weight", "blk.1.ffn_norm.weight",
        "blk.0.ffn_gate.weight", "blk.1.ffn_up.weight", "blk.0.ffn_down.weight"};
    const float fills[] = {NAN, INFINITY, -INFINITY, 3e38f, 1e-45f};
    size_t n, i;
    for (n = 0; n < sizeof(names) / sizeof(names[0]); n++) {
        bool vector = strstr(names[n], "norm") != NULL;
        model_lie lie;
        lie.name = names[n];
        lie.how = MODEL_MISSING;
        CHECKF((model_try_lie(&lie, NULL) == FG_OK) == (n == 2), "without %s", names[n]);
        lie.how = MODEL_SHAPE;
        for (lie.number = -1; lie.number <= 1; lie.number += 2)
            CHECKF(model_try_lie(&lie, NULL) == FG_ERROR_BAD_FILE, "%s is %g off", names[n], lie.number);
        lie.how = MODEL_DIMS;
        for (lie.number = 0; lie.number <= 5; lie.number++) {
            fg_result r = model_try_lie(&lie, NULL);
            if (lie.number == (vector ? 1 : 2)) CHECK(r == FG_OK);
            if (lie.number == 0 || lie.number == 5 || (lie.number == 1 && !vector))
                CHECKF(r == FG_ERROR_BAD_FILE || r == FG_ERROR_UNSUPPORTED, "%s with %g dimensions", names[n], lie.number);
        }
        lie.how = MODEL_TYPE;
        for (lie.number = 0; lie.number < 41; lie.number++) {
            fg_result r = model_try_lie(&lie, NULL);
            if (vector && lie.number == 8) CHECK(r == FG_ERROR_BAD_FILE);
            if (!vector && lie.number == 8) CHECK(r == FG_OK);
        }
        lie.how = MODEL_FILL;
        for (i = 0; i < 5; i++) {
            lie.number = (double)fills[i];
            CHECKF(model_try_lie(&lie, NULL) == FG_OK, "%s full of %g: %s", names[n], lie.number, fg_last_error());
        }
    }
}

static void test_model_rope_factors(void) {
    const double fills[] = {1, 8, 1e-45, 3e38, 0, -1, NAN, INFINITY};
    model_lie lie;
    int i;
    lie.name = "rope_freqs.weight";
    lie.how = MODEL_FILL;
    for (i = 0; i < 8; i++) {
        fg_result r;
        lie.number = fills[i];
        r = model_try_lie(&lie, NULL);
        CHECKF((r == FG_OK) == (i < 2 || i == 3 || i == 7), "factors of %g: %s", fills[i], fg_result_name(r));
    }
    lie.how = MODEL_SHAPE;
    lie.number = 1;
    CHECK(model_try_lie(&lie, NULL) == FG_ERROR_BAD_FILE);
    lie.how = MODEL_TYPE;
    CHECK(model_try_lie(&lie, NULL) == FG_ERROR_BAD_FILE);
}

/* ---- random damage */

static void test_model_mutated(void) {
    model_spec spec = model_spec_tiny();
    unsigned char *file, *copy;
    size_t size, head, at;
    uint64_t random = 6;
    int i, k, good = 0, bad = 0;
    spec.n_layers = 1;
    spec.window = 9;
    model_sample_build(&spec, &file, &size);
    copy = (unsigned char *)malloc(size);
    for (head = 0, at = 0; at + 9 < size; at++) /* where the model's own values begin: the vocabulary lies before */
        if (!head && memcmp(file + at, "block_count", 11) == 0) head = at - 16;
    CHECK(head > 1000 && size > head + 3000);
    for (i = 0; i < 4000; i++) {
        memcpy(copy, file, size);
        for (k = 1 + (int)(test_random(&random) % 3); k > 0; k--) {
            at = test_random(&random) % 8 ? head + test_random(&random) % 1800 : test_random(&random) % (head + 1800);
            copy[at] = test_random(&random) % 2 ? (unsigned char)test_random(&random) : copy[at] ^ (unsigned char)(1u << test_random(&random) % 8);
        }
        if (model_try(copy, size, i % 4 == 0) == FG_OK) good++;
        else bad++;
    }
    CHECK(good > 50 && bad > 1000);
    for (at = 0; at < size; at += at < head ? 97 : at < head + 1800 ? 3 : 4001) { /* truncated, in memory of just that size */
        unsigned char *part = (unsigned char *)malloc(at ? at : 1);
        memcpy(part, file, at);
        CHECK(model_try(part, at, true) != FG_OK);
        free(part);
    }
    free(copy);
    free(file);
}

/* ---- the graph as text */

static char *model_read_text(const char *path) {
    FILE *in = fopen(path, "rb");
    char *text = (char *)calloc(1, 65536);
    if (in) {
        if (fread(text, 1, 65535, in) == 0) text[0] = 0;
        fclose(in);
    }
    return text;
}

/* Compares the graph with tests/golden/graph_NAME.txt. One that differs is written to build/, to be looked at. */
static void graph_compare(const char *name, const model_spec *spec) {
    model_sample m;
    fg_engine_desc d;
    fg_engine *e = NULL;
    char path[96], *text = (char *)calloc(1, 65536), *golden;
    size_t length = 0;
    model_sample_open(&m, spec);
    memset(&d, 0, sizeof(d));
    d.model = m.model;
    d.backends[0] = fg_backend_null();
    d.kv_tokens = 1024;
    CHECK(fg_engine_create(&d, &e) == FG_OK);
    if (e) CHECK(fg_graph_text(e, NULL, 0, &length) == FG_ERROR_BUFFER_TOO_SMALL && length > 500 && length < 65536);
    if (e) CHECK(fg_graph_text(e, text, 65536, &length) == FG_OK && strlen(text) == length);
    snprintf(path, sizeof(path), "tests/golden/graph_%s.txt", name);
    golden = model_read_text(path);
    if (strcmp(text, golden) != 0) {
        CHECKF(false, "%s is not what the graph is: see build/graph_%s.txt", path, name);
        snprintf(path, sizeof(path), "build/graph_%s.txt", name);
        gguf_save(path, (const unsigned char *)text, length);
    }
    fg_engine_free(e);
    model_sample_close(&m);
    free(text);
    free(golden);
}

static void test_model_graph(void) {
    model_spec spec = model_spec_tiny();
    graph_compare("llama", &spec);
    spec.window = 12;
    spec.full_every = 2;
    spec.n_layers = 3;
    spec.tied = 1;
    spec.type = FG_TYPE_Q8_0;
    graph_compare("llama_window", &spec);
    spec = model_spec_tiny();
    spec.arch = "qwen2";
    graph_compare("qwen2", &spec);
    spec.arch = "qwen3";
    spec.head_dim = 32;
    graph_compare("qwen3", &spec);
    spec.arch = "gemma3";
    spec.n_layers = 6;
    spec.window = 12;
    spec.tied = 1;
    graph_compare("gemma3", &spec);
    spec = model_spec_tiny();
    spec.arch = "phi3";
    graph_compare("phi3", &spec);
    spec.arch = "smollm3";
    spec.n_layers = 4;
    graph_compare("smollm3", &spec);
    spec = model_spec_tiny();
    spec.arch = "qwen3moe";
    spec.n_experts = 8;
    spec.n_used = 2;
    graph_compare("qwen3moe", &spec);
    spec.arch = "gpt-oss";
    spec.window = 12;
    graph_compare("gpt-oss", &spec);
    spec.arch = "qwen35moe";
    spec.window = 0;
    graph_compare("qwen35moe", &spec);
}

/* ---- other architectures than llama */

/* Renames what is called `name` in a sound file; what the file then comes to. */
static fg_result model_try_without(const model_spec *spec, const char *name) {
    unsigned char *file;
    size_t size, at, n = strlen(name), found = 0;
    fg_result r;
    model_sample_build(spec, &file, &size);
    for (at = 0; at + n <= size; at++)
        if (memcmp(file + at, name, n) == 0) file[at + n - 1] = '_', found++;
    r = model_try(file, size, true);
    CHECKF(found == 1 || found == (size_t)spec->n_layers, "%s is there %d times", name, (int)found);
    free(file);
    return r;
}

static void test_model_architectures(void) {
    static const struct { const char *arch, *tensors[4]; } rows[] = {
        {"qwen2", {"attn_q.bias", "attn_v.bias", NULL, NULL}},
        {"qwen3", {"attn_q_norm.weight", "attn_k_norm.weight", NULL, NULL}},
        {"gemma", {"attn_k.weight", "ffn_gate.weight", NULL, NULL}},
        {"gemma3", {"post_attention_norm.weight", "post_ffw_norm.weight", "attn_q_norm.weight", "attn_q.weight"}},
        {"phi3", {"attn_qkv.weight", "ffn_up.weight", "rope_factors_long.weight", "rope_factors_short.weight"}},
        {"smollm3", {"attn_q.weight", "ffn_down.weight", NULL, NULL}},
        {"qwen3moe", {"ffn_gate_inp.weight", "ffn_gate_exps.weight", "ffn_up_exps.weight", "ffn_down_exps.weight"}},
        {"gpt-oss", {"attn_sinks.weight", "ffn_up_exps.bias", "ffn_gate_inp.bias", "post_attention_norm.weight"}},
        {"qwen35", {"attn_gate.weight", "ssm_alpha.weight", "ssm_conv1d.weight", "ssm.time_step_rank"}},
        {"qwen35", {"ssm_beta.weight", "ssm_dt.bias", "ssm_norm.weight", "ssm.conv_kernel"}},
        {"qwen35moe", {"ffn_gate_inp_shexp.weight", "ffn_down_shexp.weight", "expert_shared_feed_forward_length", "ssm.group_count"}},
        {"qwen3next", {"ssm_ba.weight", "ssm_out.weight", "ffn_gate_exps.weight", "ssm.inner_size"}},
        {"llama", {"ffn_gate_inp.weight", "ffn_down_exps.weight", "expert_used_count", NULL}}};
    model_spec spec = model_spec_tiny();
    unsigned char *file;
    size_t size, i, k;
    spec.n_layers = 1;
    spec.window = 12;
    for (i = 0; i < FG__COUNT(rows); i++) {
        spec.arch = rows[i].arch;
        spec.rope_context = strcmp(spec.arch, "phi3") == 0 ? 64 : 0;
        spec.n_experts = strcmp(spec.arch, "qwen3moe") == 0 || strcmp(spec.arch, "gpt-oss") == 0 || strcmp(spec.arch, "llama") == 0 ||
                         strcmp(spec.arch, "qwen35moe") == 0 || strcmp(spec.arch, "qwen3next") == 0 ? 4 : 0;
        spec.n_layers = model_has_states(&spec) ? 2 : 1;
        spec.n_used = 2;
        model_sample_build(&spec, &file, &size);
        CHECKF(model_try(file, size, true) == FG_OK, "%s: %s", spec.arch, fg_last_error());
        free(file);
        for (k = 0; k < 4 && rows[i].tensors[k]; k++) {
            fg_result r = model_try_without(&spec, rows[i].tensors[k]);
            bool other = strcmp(rows[i].tensors[k], "rope_factors_short.weight") == 0; /* without it the other one is unknown */
            CHECKF(r == (other ? FG_ERROR_UNSUPPORTED : FG_ERROR_BAD_FILE), "%s without %s: %s", spec.arch, rows[i].tensors[k], fg_result_name(r));
        }
    }
}

/* An architecture that is known without a mixture of experts; more experts of a token than anybody has. */
static void test_model_experts_unknown(void) {
    model_spec spec = model_spec_tiny();
    unsigned char *file;
    size_t size;
    spec.arch = "qwen2";
    spec.n_experts = 8;
    spec.n_used = 2;
    model_sample_build(&spec, &file, &size);
    CHECK(model_try(file, size, true) == FG_ERROR_UNSUPPORTED && strstr(fg_last_error(), "8 experts"));
    free(file);
    spec.arch = "qwen3moe";
    spec.n_experts = spec.n_used = FG__MAX_USED + 1;
    model_sample_build(&spec, &file, &size);
    CHECK(model_try(file, size, true) == FG_ERROR_BAD_FILE && strstr(fg_last_error(), "expert_used_count"));
    free(file);
}

/* Layers that guess tokens ahead are left alone, where the file says that they are such. */
static void test_model_ahead(void) {
    model_spec spec = model_spec_tiny();
    unsigned char *file;
    size_t size;
    model_sample m;
    spec.arch = "qwen35";
    spec.n_ahead = 1;
    model_sample_open(&m, &spec);
    CHECK(m.model && m.model->hp.n_layers == 2);
    model_sample_close(&m);
    CHECK(model_try_without(&spec, "nextn_predict_layers") == FG_ERROR_BAD_FILE); /* a third layer that lacks all */
    spec.n_ahead = 2;
    model_sample_build(&spec, &file, &size);
    CHECKF(model_try(file, size, true) == FG_OK, "%s", fg_last_error());
    free(file);
}

/* Which frequencies phi3's graph has: the short ones in an engine whose sequences are no longer than the original context. */
static void test_model_long_rope(void) {
    static const int contexts[] = {32, 64, 65, 0};
    model_spec spec = model_spec_tiny();
    model_sample m;
    int i;
    spec.arch = "phi3";
    spec.rope_context = 64;
    model_sample_open(&m, &spec);
    for (i = 0; i < 4 && m.model; i++) {
        const float *expected = i < 2 ? m.model->short_frequencies : m.model->rope_frequencies;
        fg_engine_desc d;
        fg_engine *e = NULL;
        memset(&d, 0, sizeof(d));
        d.model = m.model;
        d.max_context = contexts[i];
        CHECK(fg_engine_create(&d, &e) == FG_OK);
        if (e) CHECKF(e->builder.tensors[e->builder.rope].data == expected, "a context of %d", contexts[i]);
        fg_engine_free(e);
    }
    if (m.model) CHECK(m.model->short_frequencies[3] > 3 * m.model->rope_frequencies[3]);
    model_sample_close(&m);
}

static void run_model_tests(void) {
    RUN(test_model_truth);
    RUN(test_model_other_kinds);
    RUN(test_model_rope_magnitude);
    RUN(test_model_templates);
    RUN(test_model_numbers);
    RUN(test_model_reals);
    RUN(test_model_tensors);
    RUN(test_model_rope_factors);
    RUN(test_model_mutated);
    RUN(test_model_graph);
    RUN(test_model_architectures);
    RUN(test_model_experts_unknown);
    RUN(test_model_ahead);
    RUN(test_model_long_rope);
}
