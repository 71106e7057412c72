/* The whole of embedding fastgen:   cc -O2 -o hello hello.c -lm -lpthread && ./hello model.gguf "Once upon a time" */
#define FASTGEN_IMPLEMENTATION
#include "../fastgen.h"

static void print(const char *text, size_t length, void *user) {
    fwrite(text, 1, length, (FILE *)user);
    fflush((FILE *)user);
}

int main(int argc, char **argv) {
    fg_engine_desc desc = {0};
    fg_request_desc request = {0};
    fg_engine *engine = NULL;

    desc.model_path = argc > 1 ? argv[1] : "examples/demo-model/demo.gguf";
    request.prompt = argc > 2 ? argv[2] : "Once upon a time";
    request.max_tokens = 100;
    printf("%s", request.prompt);
    if (fg_engine_create(&desc, &engine) != FG_OK || fg_generate(engine, &request, print, stdout) != FG_OK) {
        fprintf(stderr, "%s\n", fg_last_error());
        return 1;
    }
    fg_engine_free(engine);
    puts("");
    return 0;
}
