/* libFuzzer target: opens bytes as a GGUF file and reads everything in it. It needs no corpus: mutations start from the
   sample file.

       clang -g -O1 -fsanitize=fuzzer,address,undefined tests/fuzz_gguf.c -o build/fuzz_gguf -lm
       build/fuzz_gguf -max_total_time=60 -max_len=8192 */
#define FASTGEN_IMPLEMENTATION
#include "../fastgen.h"

#include "gguf_sample.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max_size, unsigned seed);
size_t LLVMFuzzerMutate(uint8_t *data, size_t size, size_t max_size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static volatile uint64_t sink;
    fg__env env = fg__env_make(NULL, NULL, NULL);
    fg__gguf *gguf;
    if (fg__gguf_open(&env, NULL, data, size, false, &gguf) == FG_OK) sink = gguf_walk(gguf);
    fg__gguf_close(gguf);
    (void)sink;
    return 0;
}

/* libFuzzer's own mutation, after input too short to be a file has become the sample. */
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max_size, unsigned seed) {
    unsigned char *file;
    size_t file_size;
    if (size < 24) {
        gguf_sample(2 + seed % 2, &file, &file_size);
        size = FG__MIN(file_size, max_size);
        memcpy(data, file, size);
        free(file);
    }
    return LLVMFuzzerMutate(data, size, max_size);
}
