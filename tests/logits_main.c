/* Writes the logits of token ids as raw floats: build/logits MODEL.gguf IDS.i32 OUT.f32 [name=value ...]
   Names: cpu_path, token_budget, block_tokens, n_threads, kv_type (a name such as F16). */
#define FASTGEN_IMPLEMENTATION
#include "../fastgen.h"

#include "logits.h"

static int fail(const char *what) {
    fprintf(stderr, "logits: %s: %s\n", what, fg_last_error());
    return 1;
}

static fg_type type_named(const char *name) {
#define FG__NAMED(type, id, elements, bytes) if (strcmp(name, #type) == 0) return FG_TYPE_##type;
    FG_TYPES(FG__NAMED)
#undef FG__NAMED
    return FG_TYPE_NONE;
}

static int set_option(fg_engine_desc *desc, const char *option) {
    const char *value = strchr(option, '=');
    size_t length;
    if (!value++) return 0;
    length = (size_t)(value - option);
    if (strncmp(option, "cpu_path=", length) == 0) desc->cpu_path = value;
    else if (strncmp(option, "token_budget=", length) == 0) desc->token_budget = atoi(value);
    else if (strncmp(option, "block_tokens=", length) == 0) desc->block_tokens = atoi(value);
    else if (strncmp(option, "n_threads=", length) == 0) desc->n_threads = atoi(value);
    else if (strncmp(option, "kv_type=", length) == 0) desc->kv_type = type_named(value);
    else return 0;
    return 1;
}

int main(int argc, char **argv) {
    fg_engine_desc desc;
    fg_engine *engine = NULL;
    fg_model_info info;
    fg__file ids;
    FILE *out;
    float *rows;
    size_t count;
    int i, n;
    memset(&desc, 0, sizeof(desc));
    if (argc < 4) {
        fprintf(stderr, "usage: logits MODEL.gguf IDS.i32 OUT.f32 [name=value ...]\n");
        return 2;
    }
    desc.model_path = argv[1];
    for (i = 4; i < argc; i++) {
        if (!set_option(&desc, argv[i])) {
            fprintf(stderr, "logits: bad option '%s'\n", argv[i]);
            return 2;
        }
    }
    if (fg_engine_create(&desc, &engine) != FG_OK) return fail(argv[1]);
    if (fg__file_open(&ids, argv[2]) != FG_OK) return fail(argv[2]);
    fg_model_get_info(fg_engine_get_model(engine), &info);
    n = (int)(ids.size / sizeof(int32_t));
    count = (size_t)n * (size_t)info.n_vocab;
    rows = (float *)malloc(count * sizeof(float));
    if (!rows || logits_collect(engine, (const int32_t *)(const void *)ids.data, n, rows, info.n_vocab) != FG_OK)
        return fail("generate");
    out = fopen(argv[3], "wb");
    if (!out || fwrite(rows, sizeof(float), count, out) != count || fclose(out) != 0) return fail(argv[3]);
    free(rows);
    fg__file_close(&ids);
    fg_engine_free(engine);
    return 0;
}
