/* libFuzzer target: runs bytes as a chat template over a fixed conversation. The limit of steps is lowered, so that an input takes
   milliseconds.

       clang -g -O1 -fsanitize=fuzzer,address,undefined tests/fuzz_chat.c -o build/fuzz_chat -lm
       build/fuzz_chat -max_total_time=60 -max_len=4096 */
#define FASTGEN_IMPLEMENTATION
#define FG__J_MAX_STEPS 100000
#include "../fastgen.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const char messages[] = "[{\"role\": \"user\", \"content\": \"Hi <b>\"}, {\"role\": \"assistant\", \"content\": \"\\u00e9\"}]";
    static const fg__chat_text texts[2] = {{"bos_token", "<s>", 3}, {"eos_token", "</s>", 4}};
    fg__env env = fg__env_make(NULL, NULL, NULL);
    fg__text out;
    memset(&out, 0, sizeof(out));
    out.env = &env;
    fg__chat_format(&env, (const char *)data, size, messages, "{\"tools\": [{\"name\": \"f\"}]}", texts, 2, &out);
    fg__text_free(&out);
    return 0;
}
