/* libFuzzer target: reads bytes as JSON; what is accepted must be written and read back the same.

       clang -g -O1 -fsanitize=fuzzer,address,undefined tests/fuzz_json.c -o build/fuzz_json -lm
       build/fuzz_json -max_total_time=60 -max_len=8192 */
#define FASTGEN_IMPLEMENTATION
#include "../fastgen.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void write_json(const fg__env *env, const fg__json *root, fg__text *out) {
    memset(out, 0, sizeof(*out));
    out->env = env;
    fg__json_write(out, root);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    fg__env env = fg__env_make(NULL, NULL, NULL);
    fg__json *root = NULL, *again = NULL;
    fg__text first, second;
    if (fg__json_parse(&env, (const char *)data, size, &root) != FG_OK) return 0;
    write_json(&env, root, &first);
    if (fg__json_parse(&env, first.data, first.length, &again) != FG_OK) __builtin_trap();
    write_json(&env, again, &second);
    if (first.length != second.length || memcmp(first.data, second.data, first.length) != 0) __builtin_trap();
    fg__text_free(&first);
    fg__text_free(&second);
    fg__json_free(root);
    fg__json_free(again);
    return 0;
}
