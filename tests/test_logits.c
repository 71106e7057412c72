/* Logits of tiny models of every architecture and rope variant, against what transformers computes in float32.

   tests/check_logits.py wrote the table of cases and the logits (tests/golden). The weights are not stored: both sides make
   them with the same generator. */
#include "gguf_writer.h"
#include "logits.h"

typedef struct logits_case {
    const char *name, *arch;
    int n_tokens, n_vocab, n_embd, n_layers, n_heads, n_kv_heads, head_dim, n_ff, n_ctx;
    float eps, theta;
    int window, full_layers, tied, bias;
    const char *rope;
    int rope_ctx;
    float rope_factor, rope_attn, rope_low, rope_high;
    int rot;
    float local_theta;
    int n_experts, n_used, shared;
    int state_heads, state_keys, state_dim, period; /* 0: no recurrent layers */
} logits_case;

static const logits_case logits_cases[] = {
#include "golden/cases.h"
};

static uint64_t logits_hash(uint64_t seed, const char *text) {
    for (; *text; text++) seed = (seed ^ (unsigned char)*text) * 0x100000001B3ull;
    return seed;
}

/* The random stream of one tensor of one case. */
static uint64_t logits_seed(const logits_case *c, const char *name) {
    return logits_hash(logits_hash(logits_hash(0xCBF29CE484222325ull, c->name), "/"), name);
}

static int logits_ends_with(const char *text, const char *end) {
    size_t n = strlen(text), m = strlen(end);
    return n >= m && strcmp(text + n - m, end) == 0;
}

/* Uniform numbers; every scale is a power of two, so that all compilers make the same bits. `matrices`, 0: one. */
static void logits_tensor(gguf_writer *w, const logits_case *c, const char *name, int columns, int rows, int matrices) {
    uint64_t state = logits_seed(c, name);
    int64_t dims[3];
    int i, n = columns * (rows ? rows : 1) * (matrices ? matrices : 1);
    int norm = logits_ends_with(name, "norm.weight");
    int half = logits_ends_with(name, ".bias") || strcmp(name, "token_embd.weight") == 0;
    float *data = (float *)malloc((size_t)n * sizeof(float));
    for (i = 0; i < n; i++) {
        float unit = (float)(test_random(&state) >> 40) * (1.0f / 8388608.0f) - 1.0f;
        data[i] = norm ? 1.0f + unit * 0.25f : unit * (half ? 0.5f : 0.25f);
        if (logits_ends_with(name, "ssm_a")) data[i] -= 0.3125f;
    }
    dims[0] = columns;
    dims[1] = rows;
    dims[2] = matrices;
    gguf_add_tensor(w, name, FG_TYPE_F32, matrices ? 3 : rows ? 2 : 1, dims, data, (size_t)n * sizeof(float));
    free(data);
}

static void logits_weight(gguf_writer *w, const logits_case *c, const char *name, int columns, int rows) {
    logits_tensor(w, c, name, columns, rows, 0);
}

/* A tensor of a layer, and its bias when the case has one. */
static void logits_layer_weight(gguf_writer *w, const logits_case *c, int layer, const char *name, int columns, int rows,
                                int bias) {
    char full[64];
    snprintf(full, sizeof(full), "blk.%d.%s.weight", layer, name);
    logits_weight(w, c, full, columns, rows);
    snprintf(full, sizeof(full), "blk.%d.%s.bias", layer, name);
    if (bias) logits_weight(w, c, full, rows, 0);
}

static void logits_layer_experts(gguf_writer *w, const logits_case *c, int layer) {
    static const char *const names[3] = {"gate", "up", "down"};
    char full[64];
    int i, oss = strcmp(c->arch, "gpt-oss") == 0;
    logits_layer_weight(w, c, layer, "ffn_gate_inp", c->n_embd, c->n_experts, oss);
    for (i = 0; i < 3; i++) {
        snprintf(full, sizeof(full), "blk.%d.ffn_%s_exps.weight", layer, names[i]);
        logits_tensor(w, c, full, i < 2 ? c->n_embd : c->n_ff, i < 2 ? c->n_ff : c->n_embd, c->n_experts);
        snprintf(full, sizeof(full), "blk.%d.ffn_%s_exps.bias", layer, names[i]);
        if (oss) logits_weight(w, c, full, i < 2 ? c->n_ff : c->n_embd, c->n_experts);
    }
    if (oss) logits_layer_weight(w, c, layer, "attn_sinks", c->n_heads, 0, 0);
    if (!c->shared) return;
    logits_layer_weight(w, c, layer, "ffn_gate_inp_shexp", c->n_embd, 0, 0);
    logits_layer_weight(w, c, layer, "ffn_gate_shexp", c->n_embd, c->shared, 0);
    logits_layer_weight(w, c, layer, "ffn_up_shexp", c->n_embd, c->shared, 0);
    logits_layer_weight(w, c, layer, "ffn_down_shexp", c->shared, c->n_embd, 0);
}

/* A recurrent layer in place of attention. */
static void logits_layer_state(gguf_writer *w, const logits_case *c, int layer) {
    int v = c->state_heads * c->state_dim, channels = v + 2 * c->state_keys * c->state_dim;
    char full[64];
    logits_layer_weight(w, c, layer, "attn_qkv", c->n_embd, channels, 0);
    logits_layer_weight(w, c, layer, "attn_gate", c->n_embd, v, 0);
    if (strcmp(c->arch, "qwen3next") == 0) {
        logits_layer_weight(w, c, layer, "ssm_ba", c->n_embd, 2 * c->state_heads, 0);
    } else {
        logits_layer_weight(w, c, layer, "ssm_alpha", c->n_embd, c->state_heads, 0);
        logits_layer_weight(w, c, layer, "ssm_beta", c->n_embd, c->state_heads, 0);
    }
    snprintf(full, sizeof(full), "blk.%d.ssm_dt.bias", layer);
    logits_weight(w, c, full, c->state_heads, 0);
    snprintf(full, sizeof(full), "blk.%d.ssm_a", layer);
    logits_weight(w, c, full, c->state_heads, 0);
    logits_layer_weight(w, c, layer, "ssm_conv1d", 4, channels, 0);
    logits_layer_weight(w, c, layer, "ssm_norm", c->state_dim, 0, 0);
    logits_layer_weight(w, c, layer, "ssm_out", v, c->n_embd, 0);
}

static void logits_layer_attention(gguf_writer *w, const logits_case *c, int i) {
    int q = c->n_heads * c->head_dim, kv = c->n_kv_heads * c->head_dim, oss = strcmp(c->arch, "gpt-oss") == 0;
    int qkv_bias = c->bias || oss || strcmp(c->arch, "qwen2") == 0;
    if (strcmp(c->arch, "phi3") == 0) {
        logits_layer_weight(w, c, i, "attn_qkv", c->n_embd, q + 2 * kv, 0);
    } else {
        logits_layer_weight(w, c, i, "attn_q", c->n_embd, c->state_heads ? 2 * q : q, qkv_bias); /* with gates */
        logits_layer_weight(w, c, i, "attn_k", c->n_embd, kv, qkv_bias);
        logits_layer_weight(w, c, i, "attn_v", c->n_embd, kv, qkv_bias);
    }
    logits_layer_weight(w, c, i, "attn_output", q, c->n_embd, c->bias || oss);
    if (strcmp(c->arch, "gemma3") != 0 && strncmp(c->arch, "qwen3", 5) != 0) return;
    logits_layer_weight(w, c, i, "attn_q_norm", c->head_dim, 0, 0);
    logits_layer_weight(w, c, i, "attn_k_norm", c->head_dim, 0, 0);
}

static void logits_layer(gguf_writer *w, const logits_case *c, int i) {
    int oss = strcmp(c->arch, "gpt-oss") == 0, fused = strcmp(c->arch, "phi3") == 0, gemma3 = strcmp(c->arch, "gemma3") == 0;
    logits_layer_weight(w, c, i, "attn_norm", c->n_embd, 0, 0);
    if (c->state_heads && (i + 1) % (c->period ? c->period : 4)) logits_layer_state(w, c, i);
    else logits_layer_attention(w, c, i);
    if (gemma3) {
        logits_layer_weight(w, c, i, "post_attention_norm", c->n_embd, 0, 0);
        logits_layer_weight(w, c, i, "post_ffw_norm", c->n_embd, 0, 0);
    }
    logits_layer_weight(w, c, i, oss || c->state_heads ? "post_attention_norm" : "ffn_norm", c->n_embd, 0, 0);
    if (c->n_experts) {
        logits_layer_experts(w, c, i);
        return;
    }
    if (!fused) logits_layer_weight(w, c, i, "ffn_gate", c->n_embd, c->n_ff, c->bias);
    logits_layer_weight(w, c, i, "ffn_up", c->n_embd, fused ? 2 * c->n_ff : c->n_ff, c->bias);
    logits_layer_weight(w, c, i, "ffn_down", c->n_ff, c->n_embd, c->bias);
}

/* Llama 3.1's scaling: a tensor of divisors of the frequencies. */
static void logits_llama3_factors(gguf_writer *w, const logits_case *c) {
    const double tau = 6.283185307179586;
    float factors[64];
    int64_t dims[1];
    int i;
    for (i = 0; i < c->head_dim / 2; i++) {
        double length = tau * pow((double)c->theta, 2.0 * i / c->head_dim);
        double smooth = (c->rope_ctx / length - c->rope_low) / (c->rope_high - c->rope_low);
        if (length < c->rope_ctx / (double)c->rope_high) factors[i] = 1.0f;
        else if (length > c->rope_ctx / (double)c->rope_low) factors[i] = c->rope_factor;
        else factors[i] = (float)(1.0 / ((1.0 - smooth) / c->rope_factor + smooth));
    }
    dims[0] = c->head_dim / 2;
    gguf_add_tensor(w, "rope_freqs.weight", FG_TYPE_F32, 1, dims, factors, (size_t)dims[0] * sizeof(float));
}

/* LongRoPE: for each pair a divisor of its frequency, in short sequences and in long ones. */
static void logits_long_factors(gguf_writer *w, const logits_case *c) {
    float factors[2][64];
    int64_t dims[1];
    int i;
    dims[0] = (c->rot ? c->rot : c->head_dim) / 2;
    for (i = 0; i < dims[0]; i++) factors[0][i] = 1.0f + (float)i / 8.0f, factors[1][i] = 2.0f + (float)i;
    gguf_add_tensor(w, "rope_factors_short.weight", FG_TYPE_F32, 1, dims, factors[0], (size_t)dims[0] * sizeof(float));
    gguf_add_tensor(w, "rope_factors_long.weight", FG_TYPE_F32, 1, dims, factors[1], (size_t)dims[0] * sizeof(float));
}

static const char *logits_key(const logits_case *c, const char *key) {
    static char full[96];
    snprintf(full, sizeof(full), "%s.%s", c->arch, key);
    return full;
}

static void logits_rope(gguf_writer *w, const logits_case *c) {
    gguf_add_f32(w, logits_key(c, "rope.freq_base"), c->theta);
    gguf_add_u32(w, logits_key(c, "rope.dimension_count"), (uint32_t)(c->rot ? c->rot : c->head_dim));
    if (c->local_theta > 0) gguf_add_f32(w, logits_key(c, "rope.freq_base_swa"), c->local_theta);
    if (strcmp(c->rope, "llama3") == 0) logits_llama3_factors(w, c);
    if (strcmp(c->rope, "longrope") == 0) logits_long_factors(w, c);
    if (!*c->rope || strcmp(c->rope, "llama3") == 0) return;
    if (c->rope_factor > 0) gguf_add_string(w, logits_key(c, "rope.scaling.type"), c->rope);
    if (c->rope_factor > 0) gguf_add_f32(w, logits_key(c, "rope.scaling.factor"), c->rope_factor);
    if (c->rope_ctx) gguf_add_u32(w, logits_key(c, "rope.scaling.original_context_length"), (uint32_t)c->rope_ctx);
    if (c->rope_attn != 0) gguf_add_f32(w, logits_key(c, "rope.scaling.attn_factor"), c->rope_attn);
    if (c->rope_low != 0) gguf_add_f32(w, logits_key(c, "rope.scaling.yarn_beta_slow"), c->rope_low);
    if (c->rope_high != 0) gguf_add_f32(w, logits_key(c, "rope.scaling.yarn_beta_fast"), c->rope_high);
}

static void logits_window(gguf_writer *w, const logits_case *c) {
    int i;
    if (c->window) gguf_add_u32(w, logits_key(c, "attention.sliding_window"), (uint32_t)c->window);
    if (!c->full_layers) return;
    gguf_add_array(w, logits_key(c, "attention.sliding_window_pattern"), GGUF_BOOL, (uint64_t)c->n_layers);
    for (i = 0; i < c->n_layers; i++) gguf_put_int(&w->values, i >= c->full_layers, 1);
}

static void logits_state(gguf_writer *w, const logits_case *c) {
    gguf_add_u32(w, logits_key(c, "ssm.conv_kernel"), 4);
    gguf_add_u32(w, logits_key(c, "ssm.state_size"), (uint32_t)c->state_dim);
    gguf_add_u32(w, logits_key(c, "ssm.group_count"), (uint32_t)c->state_keys);
    gguf_add_u32(w, logits_key(c, "ssm.time_step_rank"), (uint32_t)c->state_heads);
    gguf_add_u32(w, logits_key(c, "ssm.inner_size"), (uint32_t)(c->state_heads * c->state_dim));
    if (c->period) gguf_add_u32(w, logits_key(c, "full_attention_interval"), (uint32_t)c->period);
}

static void logits_vocabulary(gguf_writer *w, const logits_case *c) {
    char names[64][8];
    const char *words[64];
    float scores[64];
    int32_t types[64];
    int i;
    for (i = 0; i < c->n_vocab; i++) {
        snprintf(names[i], sizeof(names[i]), "t%d", i % 64);
        words[i] = i == 0 ? "<unk>" : i == 1 ? "<s>" : i == 2 ? "</s>" : names[i];
        scores[i] = (float)-i;
        types[i] = i == 0 ? 2 : i < 3 ? 3 : 1;
    }
    gguf_add_string(w, "tokenizer.ggml.model", "llama");
    gguf_add_strings(w, "tokenizer.ggml.tokens", words, (size_t)c->n_vocab);
    gguf_add_f32s(w, "tokenizer.ggml.scores", scores, (size_t)c->n_vocab);
    gguf_add_i32s(w, "tokenizer.ggml.token_type", types, (size_t)c->n_vocab);
    gguf_add_u32(w, "tokenizer.ggml.bos_token_id", 1);
    gguf_add_u32(w, "tokenizer.ggml.eos_token_id", 2);
    gguf_add_u32(w, "tokenizer.ggml.unknown_token_id", 0);
}

static void logits_build(const logits_case *c, unsigned char **file, size_t *size) {
    gguf_writer w;
    int i;
    gguf_begin(&w);
    gguf_add_string(&w, "general.architecture", c->arch);
    gguf_add_string(&w, "general.name", c->name);
    gguf_add_u32(&w, logits_key(c, "block_count"), (uint32_t)c->n_layers);
    gguf_add_u32(&w, logits_key(c, "context_length"), (uint32_t)c->n_ctx);
    gguf_add_u32(&w, logits_key(c, "embedding_length"), (uint32_t)c->n_embd);
    gguf_add_u32(&w, logits_key(c, "feed_forward_length"), (uint32_t)c->n_ff);
    gguf_add_u32(&w, logits_key(c, "attention.head_count"), (uint32_t)c->n_heads);
    gguf_add_u32(&w, logits_key(c, "attention.head_count_kv"), (uint32_t)c->n_kv_heads);
    gguf_add_f32(&w, logits_key(c, "attention.layer_norm_rms_epsilon"), c->eps);
    if (c->head_dim * c->n_heads != c->n_embd) {
        gguf_add_u32(&w, logits_key(c, "attention.key_length"), (uint32_t)c->head_dim);
        gguf_add_u32(&w, logits_key(c, "attention.value_length"), (uint32_t)c->head_dim);
    }
    if (c->n_experts) {
        gguf_add_u32(&w, logits_key(c, "expert_count"), (uint32_t)c->n_experts);
        gguf_add_u32(&w, logits_key(c, "expert_used_count"), (uint32_t)c->n_used);
        gguf_add_u32(&w, logits_key(c, "expert_feed_forward_length"), (uint32_t)c->n_ff);
    }
    if (c->shared) gguf_add_u32(&w, logits_key(c, "expert_shared_feed_forward_length"), (uint32_t)c->shared);
    if (c->state_heads) logits_state(&w, c);
    logits_window(&w, c);
    logits_rope(&w, c);
    logits_vocabulary(&w, c);
    logits_weight(&w, c, "token_embd.weight", c->n_embd, c->n_vocab);
    for (i = 0; i < c->n_layers; i++) logits_layer(&w, c, i);
    logits_weight(&w, c, "output_norm.weight", c->n_embd, 0);
    if (!c->tied) logits_weight(&w, c, "output.weight", c->n_embd, c->n_vocab);
    gguf_finish(&w, file, size);
}

/* The expected logits, [n_tokens][n_vocab] little-endian floats; NULL when the file is missing or of another size. */
static float *logits_golden(const logits_case *c) {
    size_t i, count = (size_t)c->n_tokens * (size_t)c->n_vocab;
    unsigned char *bytes = (unsigned char *)malloc(count * 4 + 1);
    float *rows = (float *)malloc(count * sizeof(float));
    char path[128];
    FILE *file;
    size_t got = 0;
    snprintf(path, sizeof(path), "tests/golden/%s.f32", c->name);
    file = fopen(path, "rb");
    if (file) {
        got = fread(bytes, 1, count * 4 + 1, file);
        fclose(file);
    }
    for (i = 0; i < count && got == count * 4; i++) {
        uint32_t bits = bytes[4 * i] | (uint32_t)bytes[4 * i + 1] << 8 | (uint32_t)bytes[4 * i + 2] << 16 |
                        (uint32_t)bytes[4 * i + 3] << 24;
        memcpy(&rows[i], &bits, 4);
    }
    free(bytes);
    if (got == count * 4) return rows;
    free(rows);
    return NULL;
}

static const char *const logits_paths[] = {NULL, "scalar", "avx2", "avx512", "amx", "neon", "vulkan", "cuda", "hip64"};

/* Chooses the CPU's path, or a GPU; false: this machine has no such device. */
static bool logits_choose(fg_engine_desc *desc, const char *path) {
    if (!cpu_is_gpu(path)) {
        desc->cpu_path = path;
        return true;
    }
    desc->backends[0] = cpu_backend_of(path);
    desc->backend_options = cpu_gpu_options(path);
    desc->device = cpu_gpu_device(path);
    return cpu_has_gpu(path);
}

/* One engine over `model`; what this machine's CPU does not offer is passed over. */
static void logits_compare(const logits_case *c, fg_model *model, const char *cpu_path, int budget, const float *expected) {
    fg_engine_desc desc;
    fg_engine *engine = NULL;
    fg_result result;
    int32_t ids[64];
    uint64_t state = logits_seed(c, "ids");
    int i, count = c->n_tokens * c->n_vocab;
    float *rows = (float *)malloc((size_t)count * sizeof(float));
    double worst = 0;
    for (i = 0; i < c->n_tokens; i++) ids[i] = (int32_t)(test_random(&state) % (uint64_t)c->n_vocab);
    memset(&desc, 0, sizeof(desc));
    desc.model = model;
    if (!logits_choose(&desc, cpu_path)) {
        free(rows);
        return;
    }
    desc.n_threads = 2;
    desc.token_budget = budget;
    desc.block_tokens = budget ? 8 : 0;
    result = fg_engine_create(&desc, &engine);
    if (result == FG_OK) {
        CHECK(strncmp(fg_engine_get_backend(engine), cpu_backend_of(cpu_path)->name, strlen(cpu_backend_of(cpu_path)->name)) == 0);
        CHECK(!cpu_is_vulkan(cpu_path) || strcmp(fg_engine_get_backend(engine), "vulkan") == 0); /* which has all ops */
        result = logits_collect(engine, ids, c->n_tokens, rows, c->n_vocab);
        CHECKF(result == FG_OK, "%s: %s", c->name, fg_last_error());
        for (i = 0; i < count && result == FG_OK; i++) {
            worst = test_worse(worst, fabs((double)rows[i] - (double)expected[i]));
        }
        /* products of many rows round both sides to half floats on CUDA and HIP */
        CHECKF(worst < (cpu_is_gpu(cpu_path) && !cpu_is_vulkan(cpu_path) ? 2e-2 : 1e-4), "%s, path %s, budget %d: error %g", c->name,
               cpu_path ? cpu_path : "default", budget, worst);
    } else {
        CHECKF(result == FG_ERROR_UNSUPPORTED && cpu_path && strcmp(cpu_path, "scalar") != 0, "%s, path %s: %s", c->name,
               cpu_path ? cpu_path : "default", fg_last_error());
    }
    fg_engine_free(engine);
    free(rows);
}

static void logits_test_case(const logits_case *c) {
    fg_model_desc desc;
    fg_model *model = NULL;
    unsigned char *file;
    size_t size, p;
    float *expected = logits_golden(c);
    memset(&desc, 0, sizeof(desc));
    logits_build(c, &file, &size);
    desc.data = file;
    desc.size = size;
    CHECKF(expected != NULL, "tests/golden/%s.f32", c->name);
    CHECKF(fg_model_load(&desc, &model) == FG_OK, "%s: %s", c->name, fg_last_error());
    for (p = 0; expected && model && p < sizeof(logits_paths) / sizeof(logits_paths[0]); p++) {
        logits_compare(c, model, logits_paths[p], 0, expected);
        if (p + 1 < sizeof(logits_paths) / sizeof(logits_paths[0])) logits_compare(c, model, logits_paths[p], 7, expected);
    }
    fg_model_free(model);
    free(expected);
    free(file);
}

static void logits_test_arch(const char *prefix) {
    size_t i, n = 0;
    for (i = 0; i < sizeof(logits_cases) / sizeof(logits_cases[0]); i++) {
        if (strncmp(logits_cases[i].name, prefix, strlen(prefix)) != 0) continue;
        logits_test_case(&logits_cases[i]);
        n++;
    }
    CHECK(n > 0);
}

static size_t logits_find(const char *name) {
    size_t i = 0;
    while (strcmp(logits_cases[i].name, name) != 0) i++;
    return i;
}

static void test_logits_llama(void) { logits_test_arch("llama"); }
static void test_logits_mistral(void) { logits_test_arch("mistral"); }
static void test_logits_qwen2(void) { logits_test_arch("qwen2"); }
static void test_logits_qwen3(void) {
    logits_test_arch("qwen3_");
    logits_test_arch("qwen3moe");
    logits_test_case(&logits_cases[logits_find("qwen3")]);
}
static void test_logits_gemma(void) { logits_test_arch("gemma"); }
static void test_logits_phi3(void) { logits_test_arch("phi3"); }
static void test_logits_smollm3(void) { logits_test_arch("smollm3"); }
static void test_logits_mixtral(void) { logits_test_arch("mixtral"); }
static void test_logits_gpt_oss(void) { logits_test_arch("gpt-oss"); }
static void test_logits_qwen35(void) { logits_test_arch("qwen35"); }
static void test_logits_qwen3next(void) { logits_test_arch("qwen3next"); }

/* ---- a trained model */

#define STORIES "../shared/models/stories260K.gguf"

/* Continues "Once upon a time" greedily and compares ids and text with llama.cpp's. */
static void stories_continue(fg_model *model, const char *cpu_path) {
    static const int32_t ids[] = {1,   403, 407, 261, 378, 432, 383, 286, 261, 376, 298, 315, 421,
                                  395, 317, 426, 338, 401, 396, 267, 337, 410, 408, 419, 292};
    static const char *const text = ", there was a little girl named Lily. She loved to play outside in the park.";
    const int n_ids = (int)(sizeof(ids) / sizeof(ids[0]));
    fg_engine_desc desc;
    fg_request_desc request;
    fg_request handle;
    fg_engine *engine = NULL;
    fg_event event;
    char out[512] = "";
    int32_t prompt[64];
    size_t count = 0;
    int position, n = 0;
    bool busy = true;
    memset(&desc, 0, sizeof(desc));
    memset(&request, 0, sizeof(request));
    desc.model = model;
    if (!logits_choose(&desc, cpu_path)) return;
    if (fg_engine_create(&desc, &engine) != FG_OK) {
        CHECKF(cpu_path && strcmp(cpu_path, "scalar") != 0, "path %s: %s", cpu_path ? cpu_path : "default", fg_last_error());
        return;
    }
    request.prompt = "Once upon a time";
    request.max_tokens = 40;
    CHECK(fg_tokenize(model, request.prompt, strlen(request.prompt), 0, prompt, 64, &count) == FG_OK && count < 8);
    for (position = 0; position < (int)count && position < n_ids; position++) CHECK(prompt[position] == ids[position]);
    CHECK(fg_submit(engine, &request, &handle) == FG_OK);
    while (busy) {
        fg_result result = fg_step(engine, 0, &busy);
        CHECKF(result == FG_OK, "%s", fg_last_error());
        if (result != FG_OK) break;
        while (fg_next_event(engine, &event)) {
            if (event.text_length && strlen(out) + event.text_length < sizeof(out)) strcat(out, event.text);
            if (event.type != FG_EVENT_TOKEN) continue;
            if (event.position < n_ids) CHECK(event.token == ids[event.position]);
            n++;
        }
    }
    CHECK(n == 40);
    CHECKF(strncmp(out, text, strlen(text)) == 0, "path %s: \"%s\"", cpu_path ? cpu_path : "default", out);
    fg_engine_free(engine);
}

static void test_logits_stories(void) {
    fg_model_desc desc;
    fg_model *model = NULL;
    size_t p;
    FILE *file = fopen(STORIES, "rb");
    if (!file) SKIP(STORIES " is not here");
    fclose(file);
    memset(&desc, 0, sizeof(desc));
    desc.path = STORIES;
    CHECKF(fg_model_load(&desc, &model) == FG_OK, "%s", fg_last_error());
    for (p = 0; model && p < sizeof(logits_paths) / sizeof(logits_paths[0]); p++) stories_continue(model, logits_paths[p]);
    fg_model_free(model);
}

static void run_logits_tests(void) {
    RUN(test_logits_llama);
    RUN(test_logits_mistral);
    RUN(test_logits_qwen2);
    RUN(test_logits_qwen3);
    RUN(test_logits_gemma);
    RUN(test_logits_phi3);
    RUN(test_logits_smollm3);
    RUN(test_logits_mixtral);
    RUN(test_logits_gpt_oss);
    RUN(test_logits_qwen35);
    RUN(test_logits_qwen3next);
    RUN(test_logits_stories);
}
