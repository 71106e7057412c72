/* libFuzzer target: opens a model that someone has changed, and generates with it. The input is a list of changes to a small sound file,
   each of four bytes: where, two bytes, in what follows the vocabulary (the model's numbers, its tensors' names, types, shapes and places,
   the first weights), how, and with what. The first byte chooses the model.

       clang -g -O1 -fsanitize=fuzzer,address,undefined tests/fuzz_model.c -o build/fuzz_model -lm
       build/fuzz_model -max_total_time=60

   Whatever comes of it is a result with a message. */
#define FASTGEN_IMPLEMENTATION
#include "../fastgen.h"

#if defined(__GNUC__)
#pragma GCC diagnostic ignored "-Wunused-function" /* of the tests' parts only some are used here */
#endif
#include "test.h"

#include "model_sample.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define FUZZ_MODELS 10
#define FUZZ_CHANGES 16 /* more leave nothing of the file */

/* Sound files, made once. */
typedef struct fuzz_sound_file {
    unsigned char *data;
    size_t size, head; /* where the model's own values begin */
} fuzz_sound_file;

static const fuzz_sound_file *fuzz_model_file(unsigned which) {
    static const struct {
        const char *arch;
        fg_type type;
        int window, rope_context, n_experts;
    } kinds[FUZZ_MODELS] = {{"llama", FG_TYPE_F32, 0, 0, 0},  {"llama", FG_TYPE_Q8_0, 9, 0, 0},  {"qwen2", FG_TYPE_F16, 0, 0, 0},
                            {"qwen3", FG_TYPE_BF16, 0, 0, 0}, {"gemma3", FG_TYPE_Q8_0, 9, 0, 0}, {"phi3", FG_TYPE_F32, 0, 64, 0},
                            {"qwen3moe", FG_TYPE_Q8_0, 0, 0, 4}, {"gpt-oss", FG_TYPE_F32, 9, 0, 4},
                            {"qwen35", FG_TYPE_F16, 0, 0, 0}, {"qwen3next", FG_TYPE_F32, 0, 0, 4}};
    static fuzz_sound_file files[FUZZ_MODELS];
    fuzz_sound_file *file = &files[which %= FUZZ_MODELS];
    model_spec spec = model_spec_tiny();
    if (file->data) return file;
    spec.n_layers = spec.n_kv_heads = 1; /* small, so that it is soon opened */
    spec.n_heads = 2;
    spec.n_embd = spec.n_ff = 32;
    spec.arch = kinds[which].arch;
    spec.type = kinds[which].type;
    spec.window = kinds[which].window;
    spec.rope_context = kinds[which].rope_context;
    spec.n_experts = kinds[which].n_experts;
    spec.n_used = 2;
    if (model_has_states(&spec)) spec.n_layers = 2;
    model_sample_build(&spec, &file->data, &file->size);
    while (memcmp(file->data + file->head, "general.architecture", 20) != 0) file->head++;
    return file;
}

/* A byte is set, a bit of it turned, added to, or the four bytes from it on are a number like those that sizes are compared with. */
static void fuzz_change(unsigned char *at, unsigned how, unsigned what) {
    static const uint32_t numbers[] = {0, 1, 0x7fffffff, 0x80000000, 0xffffffff, 0x7f800000, 0xffc00000, 65536};
    switch (how % 4) {
    case 0: *at = (unsigned char)what; break;
    case 1: *at = (unsigned char)(*at ^ 1u << what % 8); break;
    case 2: *at = (unsigned char)(*at + what); break;
    default: memcpy(at, &numbers[what % FG__COUNT(numbers)], 4); break;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    const fuzz_sound_file *file = fuzz_model_file(size ? data[0] : 0);
    unsigned char *copy = (unsigned char *)malloc(file->size);
    size_t i;
    if (!copy) return 0;
    memcpy(copy, file->data, file->size);
    for (i = 1; i + 4 <= FG__MIN(size, 1 + 4 * FUZZ_CHANGES); i += 4)
        fuzz_change(copy + file->head + (data[i] | (size_t)(data[i + 1] % 16) << 8), data[i + 2], data[i + 3]);
    model_try(copy, file->size, true);
    fflush(stdout);
    if (test_failures) abort();
    free(copy);
    return 0;
}
