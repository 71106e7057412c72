/* Tiny models with random weights and a vocabulary that can write any text, as GGUF files in memory:

       model_spec spec = model_spec_tiny();      // llama, 2 layers, GQA, F32
       spec.window = 12;
       model_sample_build(&spec, &file, &size);  // free(file)

   The vocabulary is token_sample_spm's: 0 <unk>, 1 <s>, 2 </s>, 3 <tool>, 4..259 the bytes, then letters and words. */
#ifndef MODEL_SAMPLE_H
#define MODEL_SAMPLE_H

#include "token_sample.h"

typedef struct model_spec {
    const char *arch;
    int n_layers, n_embd, n_heads, n_kv_heads, head_dim, n_ff, n_ctx;
    int window, full_every; /* every so manyth layer sees everything; 0: none does */
    int rope_context;       /* of phi3: up to so many tokens the short factors; 0: there are none */
    int n_experts;          /* of which a token takes n_used, each n_ff wide; 0: none */
    int n_used;
    int n_ahead;            /* layers behind the others that guess tokens ahead */
    fg_type type;           /* of matrices, */
    bool mixed;             /* of which attn_output is Q8_0 */
    int tied;
    uint64_t seed;
} model_spec;

static model_spec model_spec_tiny(void) {
    model_spec s;
    memset(&s, 0, sizeof(s));
    s.arch = "llama";
    s.n_layers = 2;
    s.n_embd = 64;
    s.n_heads = 4;
    s.n_kv_heads = 2;
    s.head_dim = 16;
    s.n_ff = 96;
    s.n_ctx = 256;
    s.type = FG_TYPE_F32;
    s.seed = 1;
    return s;
}

static uint16_t model_half(float value) {
    return fg__f32_to_f16(value);
}

/* n random weights: floats of 32 or 16 bits, or the blocks of Q8_0 or Q4_K. */
static void model_fill(fg_type type, unsigned char *to, int64_t n, float scale, float add, uint64_t *state) {
    int64_t bytes = fg_type_bytes(type, n), block = type == FG_TYPE_Q4_K ? 144 : type == FG_TYPE_Q8_0 ? 34 : fg_type_bytes(type, 1), i;
    uint16_t half = model_half(scale / 100);
    for (i = 0; i < bytes; i++) to[i] = (unsigned char)test_random(state);
    for (i = 0; i < bytes; i += block) {
        float x = ((float)(test_random(state) >> 40) * (1.0f / 8388608.0f) - 1.0f) * scale + add;
        uint16_t short_x = type == FG_TYPE_BF16 ? fg__f32_to_bf16(x) : model_half(x);
        if (type == FG_TYPE_F32) memcpy(to + i, &x, 4);
        else if (type == FG_TYPE_F16 || type == FG_TYPE_BF16) memcpy(to + i, &short_x, 2);
        else memcpy(to + i, &half, 2);
        if (type == FG_TYPE_Q4_K) half = model_half(scale / 1000), memcpy(to + i, &half, 2), memcpy(to + i + 2, &half, 2);
    }
}

static void model_weight(gguf_writer *w, const model_spec *s, const char *name, int64_t columns, int64_t rows, fg_type type) {
    int64_t dims[2], n = columns * (rows ? rows : 1);
    uint64_t state = s->seed;
    const char *c;
    unsigned char *data = (unsigned char *)malloc((size_t)n * 4);
    bool norm = strstr(name, "norm") != NULL;
    for (c = name; *c; c++) state = state * 31 + (unsigned char)*c;
    model_fill(type, data, n, norm ? 0.25f : 0.3f, norm ? 1.0f : strcmp(name + strlen(name) - 5, "ssm_a") == 0 ? -0.35f : 0.0f, &state);
    dims[0] = columns;
    dims[1] = rows;
    gguf_add_tensor(w, name, (uint32_t)type, rows ? 2 : 1, dims, data, (size_t)fg_type_bytes(type, n));
    free(data);
}

/* [n_experts][rows][columns] */
static void model_experts(gguf_writer *w, const model_spec *s, int layer, const char *name, int columns, int rows) {
    int64_t dims[3], n = (int64_t)columns * rows * s->n_experts;
    uint64_t state = s->seed + (uint64_t)layer;
    unsigned char *data = (unsigned char *)malloc((size_t)n * 4);
    char full[64];
    const char *c;
    for (c = name; *c; c++) state = state * 31 + (unsigned char)*c;
    model_fill(s->type, data, n, 0.3f, 0.0f, &state);
    dims[0] = columns, dims[1] = rows, dims[2] = s->n_experts;
    snprintf(full, sizeof(full), "blk.%d.%s", layer, name);
    gguf_add_tensor(w, full, (uint32_t)s->type, 3, dims, data, (size_t)fg_type_bytes(s->type, n));
    free(data);
}

static void model_layer_weight(gguf_writer *w, const model_spec *s, int layer, const char *name, int columns, int rows) {
    char full[64];
    snprintf(full, sizeof(full), "blk.%d.%s", layer, name);
    model_weight(w, s, full, columns, rows, rows ? s->type : FG_TYPE_F32);
}

static const char *model_key(const model_spec *s, const char *name) {
    static char key[96];
    snprintf(key, sizeof(key), "%s.%s", s->arch, name);
    return key;
}

static void model_put(gguf_writer *w, const model_spec *s, const char *name, int value) {
    gguf_add_u32(w, model_key(s, name), (uint32_t)value);
}

static bool model_is(const model_spec *s, const char *arch) { return strcmp(s->arch, arch) == 0; }

/* Architectures whose layers are recurrent, but for every other one here: with as many value heads, key heads and dimensions as attention has. */
static bool model_has_states(const model_spec *s) { return model_is(s, "qwen35") || model_is(s, "qwen35moe") || model_is(s, "qwen3next"); }

static void model_state_hparams(gguf_writer *w, const model_spec *s) {
    model_put(w, s, "full_attention_interval", 2);
    model_put(w, s, "ssm.conv_kernel", 4);
    model_put(w, s, "ssm.state_size", s->head_dim);
    model_put(w, s, "ssm.group_count", s->n_kv_heads);
    model_put(w, s, "ssm.time_step_rank", s->n_heads);
    model_put(w, s, "ssm.inner_size", s->n_heads * s->head_dim);
    if (s->n_experts) model_put(w, s, "expert_shared_feed_forward_length", s->n_ff / 2);
}

static void model_hparams(gguf_writer *w, const model_spec *s) {
    gguf_add_string(w, "general.architecture", s->arch);
    model_put(w, s, "block_count", s->n_layers + s->n_ahead);
    if (s->n_ahead) model_put(w, s, "nextn_predict_layers", s->n_ahead);
    model_put(w, s, "context_length", s->n_ctx);
    model_put(w, s, "embedding_length", s->n_embd);
    model_put(w, s, "feed_forward_length", s->n_ff);
    model_put(w, s, "attention.head_count", s->n_heads);
    model_put(w, s, "attention.head_count_kv", s->n_kv_heads);
    model_put(w, s, "attention.key_length", s->head_dim);
    model_put(w, s, "attention.value_length", s->head_dim);
    gguf_add_f32(w, model_key(s, "attention.layer_norm_rms_epsilon"), 1e-5f);
    if (s->window) model_put(w, s, "attention.sliding_window", s->window);
    if (s->full_every) model_put(w, s, "attention.sliding_window_pattern", s->full_every);
    if (s->rope_context) model_put(w, s, "rope.scaling.original_context_length", s->rope_context);
    if (model_has_states(s)) model_state_hparams(w, s);
    if (!s->n_experts) return;
    model_put(w, s, "expert_count", s->n_experts);
    model_put(w, s, "expert_used_count", s->n_used);
    model_put(w, s, "expert_feed_forward_length", s->n_ff);
}

static void model_state_layer(gguf_writer *w, const model_spec *s, int i) {
    int v = s->n_heads * s->head_dim, channels = v + 2 * s->n_kv_heads * s->head_dim;
    char name[64];
    model_layer_weight(w, s, i, "attn_qkv.weight", s->n_embd, channels);
    model_layer_weight(w, s, i, "attn_gate.weight", s->n_embd, v);
    if (model_is(s, "qwen3next")) {
        model_layer_weight(w, s, i, "ssm_ba.weight", s->n_embd, 2 * s->n_heads);
    } else {
        model_layer_weight(w, s, i, "ssm_alpha.weight", s->n_embd, s->n_heads);
        model_layer_weight(w, s, i, "ssm_beta.weight", s->n_embd, s->n_heads);
    }
    model_layer_weight(w, s, i, "ssm_dt.bias", s->n_heads, 0);
    model_layer_weight(w, s, i, "ssm_a", s->n_heads, 0); /* below 0 */
    snprintf(name, sizeof(name), "blk.%d.ssm_conv1d.weight", i);
    model_weight(w, s, name, 4, channels, FG_TYPE_F32);
    model_layer_weight(w, s, i, "ssm_norm.weight", s->head_dim, 0);
    model_layer_weight(w, s, i, "ssm_out.weight", v, s->n_embd);
}

static void model_attention_layer(gguf_writer *w, const model_spec *s, int i) {
    int q = s->n_heads * s->head_dim, kv = s->n_kv_heads * s->head_dim;
    bool fused = model_is(s, "phi3");
    char name[64];
    if (fused) {
        model_layer_weight(w, s, i, "attn_qkv.weight", s->n_embd, q + 2 * kv);
    } else {
        model_layer_weight(w, s, i, "attn_q.weight", s->n_embd, model_has_states(s) ? 2 * q : q);
        model_layer_weight(w, s, i, "attn_k.weight", s->n_embd, kv);
        model_layer_weight(w, s, i, "attn_v.weight", s->n_embd, kv);
    }
    snprintf(name, sizeof(name), "blk.%d.attn_output.weight", i);
    model_weight(w, s, name, q, s->n_embd, s->mixed ? FG_TYPE_Q8_0 : s->type);
    if (model_is(s, "qwen2") || model_is(s, "gpt-oss")) {
        model_layer_weight(w, s, i, "attn_q.bias", q, 0);
        model_layer_weight(w, s, i, "attn_k.bias", kv, 0);
        model_layer_weight(w, s, i, "attn_v.bias", kv, 0);
    }
    if (model_is(s, "qwen3") || model_is(s, "qwen3moe") || model_is(s, "gemma3") || model_has_states(s)) {
        model_layer_weight(w, s, i, "attn_q_norm.weight", s->head_dim, 0);
        model_layer_weight(w, s, i, "attn_k_norm.weight", s->head_dim, 0);
    }
}

static void model_layer(gguf_writer *w, const model_spec *s, int i) {
    bool fused = model_is(s, "phi3");
    char name[64];
    int k;
    model_layer_weight(w, s, i, "attn_norm.weight", s->n_embd, 0);
    if (model_has_states(s) && (i + 1) % 2) model_state_layer(w, s, i);
    else model_attention_layer(w, s, i);
    if (model_is(s, "gemma3")) {
        model_layer_weight(w, s, i, "post_attention_norm.weight", s->n_embd, 0);
        model_layer_weight(w, s, i, "post_ffw_norm.weight", s->n_embd, 0);
    }
    model_layer_weight(w, s, i, model_is(s, "gpt-oss") || model_has_states(s) ? "post_attention_norm.weight" : "ffn_norm.weight", s->n_embd, 0);
    if (model_is(s, "gpt-oss")) {
        model_layer_weight(w, s, i, "attn_sinks.weight", s->n_heads, 0);
        model_layer_weight(w, s, i, "ffn_gate_inp.bias", s->n_experts, 0);
        for (k = 0; k < 3; k++) {
            snprintf(name, sizeof(name), "blk.%d.ffn_%s_exps.bias", i, k == 0 ? "gate" : k == 1 ? "up" : "down");
            model_weight(w, s, name, k < 2 ? s->n_ff : s->n_embd, s->n_experts, FG_TYPE_F32);
        }
    }
    if (s->n_experts) {
        snprintf(name, sizeof(name), "blk.%d.ffn_gate_inp.weight", i);
        model_weight(w, s, name, s->n_embd, s->n_experts, FG_TYPE_F32);
        model_experts(w, s, i, "ffn_gate_exps.weight", s->n_embd, s->n_ff);
        model_experts(w, s, i, "ffn_up_exps.weight", s->n_embd, s->n_ff);
        model_experts(w, s, i, "ffn_down_exps.weight", s->n_ff, s->n_embd);
        if (!model_has_states(s)) return;
        model_layer_weight(w, s, i, "ffn_gate_inp_shexp.weight", s->n_embd, 0);
        model_layer_weight(w, s, i, "ffn_gate_shexp.weight", s->n_embd, s->n_ff / 2);
        model_layer_weight(w, s, i, "ffn_up_shexp.weight", s->n_embd, s->n_ff / 2);
        model_layer_weight(w, s, i, "ffn_down_shexp.weight", s->n_ff / 2, s->n_embd);
        return;
    }
    if (!fused) model_layer_weight(w, s, i, "ffn_gate.weight", s->n_embd, s->n_ff);
    model_layer_weight(w, s, i, "ffn_up.weight", s->n_embd, fused ? 2 * s->n_ff : s->n_ff);
    model_layer_weight(w, s, i, "ffn_down.weight", s->n_ff, s->n_embd);
}

/* Tokens in token_sample_spm's vocabulary. */
static int model_n_vocab(void) {
    static int n;
    unsigned char *file;
    size_t size;
    gguf_writer w;
    fg_model_desc d;
    fg_model *model;
    fg_model_info info;
    if (n) return n;
    token_sample_spm(&w, false);
    gguf_add_string(&w, "general.architecture", "llama");
    gguf_finish(&w, &file, &size);
    memset(&d, 0, sizeof(d));
    d.data = file;
    d.size = size;
    d.vocab_only = true;
    if (fg_model_load(&d, &model) == FG_OK) {
        fg_model_get_info(model, &info);
        n = info.n_vocab;
        fg_model_free(model);
    }
    free(file);
    return n;
}

/* Divisors of rope's frequencies: `first`, and for each pair an eighth more. */
static void model_rope_factors(gguf_writer *w, const model_spec *s, const char *name, float first) {
    float factors[64];
    int64_t dims[1];
    int i;
    dims[0] = s->head_dim / 2;
    for (i = 0; i < dims[0]; i++) factors[i] = first + (float)i / 8;
    gguf_add_tensor(w, name, FG_TYPE_F32, 1, dims, factors, (size_t)dims[0] * sizeof(float));
}

/* All but the metadata of the model itself; w is begun, with its vocabulary in it. */
static void model_weights(gguf_writer *w, const model_spec *s) {
    int i;
    model_weight(w, s, "token_embd.weight", s->n_embd, model_n_vocab(), s->type);
    for (i = 0; i < s->n_layers; i++) model_layer(w, s, i);
    for (; i < s->n_layers + s->n_ahead; i++) model_layer_weight(w, s, i, "nextn.eh_proj.weight", 2 * s->n_embd, s->n_embd);
    model_weight(w, s, "output_norm.weight", s->n_embd, 0, FG_TYPE_F32);
    if (!s->tied) model_weight(w, s, "output.weight", s->n_embd, model_n_vocab(), s->type);
    if (s->rope_context) model_rope_factors(w, s, "rope_factors_short.weight", 1.0f);
    if (s->rope_context) model_rope_factors(w, s, "rope_factors_long.weight", 4.0f);
}

static void model_sample_build(const model_spec *s, unsigned char **file, size_t *size) {
    gguf_writer w;
    model_n_vocab();
    token_sample_spm(&w, false);
    model_hparams(&w, s);
    model_weights(&w, s);
    gguf_finish(&w, file, size);
}

/* A model and the file it lies in. */
typedef struct model_sample {
    unsigned char *file;
    size_t size;
    fg_model *model;
} model_sample;

static void model_sample_open(model_sample *m, const model_spec *s) {
    fg_model_desc d;
    memset(&d, 0, sizeof(d));
    model_sample_build(s, &m->file, &m->size);
    d.data = m->file;
    d.size = m->size;
    m->model = NULL;
    CHECKF(fg_model_load(&d, &m->model) == FG_OK, "%s", fg_last_error());
}

static void model_sample_close(model_sample *m) {
    fg_model_free(m->model);
    free(m->file);
}

/* ---- what a file comes to that may be no sound model */

static bool model_is_refusal(fg_result r) {
    return r == FG_ERROR_BAD_FILE || r == FG_ERROR_UNSUPPORTED || r == FG_ERROR_OUT_OF_MEMORY || r == FG_ERROR_INVALID_ARGUMENT;
}

/* Makes an engine and generates; whatever comes of it, it must be a result. */
static fg_result model_generate(fg_model *model, const fg_backend *backend) {
    fg_engine_desc d;
    fg_request_desc q;
    fg_engine *e = NULL;
    fg_result r;
    memset(&d, 0, sizeof(d));
    memset(&q, 0, sizeof(q));
    d.model = model;
    d.backends[0] = backend;
    d.kv_tokens = 256;
    d.max_seqs = 2;
    d.n_threads = 1;
    r = fg_engine_create(&d, &e);
    if (r == FG_OK) {
        q.prompt = "hello";
        q.max_tokens = 4;
        q.n = 2;
        q.top_logprobs = 3;
        q.logprobs = true;
        q.sampling.temperature = 1;
        q.sampling.top_p = 0.9f;
        r = fg_generate(e, &q, NULL, NULL);
        if (r == FG_ERROR_TOO_LONG) r = FG_OK;
        fg_engine_free(e);
    }
    CHECKF(r == FG_OK || (model_is_refusal(r) && fg_last_error()[0]), "%s: %s", fg_result_name(r), fg_last_error());
    return r;
}

/* Loads a file and goes as far as it can; checks that the outcome is a result with a message. */
static fg_result model_try(const unsigned char *file, size_t size, bool cpu) {
    fg_model_desc d;
    fg_model *model = (fg_model *)(void *)&d;
    fg_result r;
    memset(&d, 0, sizeof(d));
    d.data = file;
    d.size = size;
    r = fg_model_load(&d, &model);
    CHECK((r == FG_OK) == (model != NULL));
    CHECKF(r == FG_OK || (model_is_refusal(r) && strlen(fg_last_error()) > 5), "%s: %s", fg_result_name(r), fg_last_error());
    if (r == FG_OK) r = model_generate(model, fg_backend_null());
    if (r == FG_OK && cpu) r = model_generate(model, fg_backend_cpu());
    fg_model_free(model);
    return r;
}

#endif
