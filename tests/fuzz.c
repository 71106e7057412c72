/* The libFuzzer targets fuzz_*.c in one program, so that ./build.sh fuzz compiles the header once: build/fuzz_chat and the others are
   links to it, and the name by which it was started says which of them it is. Each file is a target by itself, too, as it says. */

#define LLVMFuzzerTestOneInput fuzz_chat_input
#include "fuzz_chat.c" /* the first, as it lowers a limit of the header */
#undef LLVMFuzzerTestOneInput

#define LLVMFuzzerTestOneInput fuzz_gguf_input
#define LLVMFuzzerCustomMutator fuzz_gguf_mutator
#include "fuzz_gguf.c"
#undef LLVMFuzzerTestOneInput
#undef LLVMFuzzerCustomMutator

#define LLVMFuzzerTestOneInput fuzz_json_input
#include "fuzz_json.c"
#undef LLVMFuzzerTestOneInput

#define LLVMFuzzerTestOneInput fuzz_model_input
#include "fuzz_model.c"
#undef LLVMFuzzerTestOneInput

#define LLVMFuzzerTestOneInput fuzz_token_input
#include "fuzz_token.c"
#undef LLVMFuzzerTestOneInput

#define LLVMFuzzerTestOneInput fuzz_http_input
#define LLVMFuzzerInitialize fuzz_http_start
#include "fuzz_http.c"
#undef LLVMFuzzerTestOneInput
#undef LLVMFuzzerInitialize

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max_size, unsigned seed);

static const struct fuzz_target {
    const char *name;
    int (*input)(const uint8_t *data, size_t size);
    int (*start)(int *argc, char ***argv);
    size_t (*mutator)(uint8_t *data, size_t size, size_t max_size, unsigned seed);
} fuzz_targets[] = {
    {"fuzz_chat", fuzz_chat_input, NULL, NULL},   {"fuzz_gguf", fuzz_gguf_input, NULL, fuzz_gguf_mutator},
    {"fuzz_json", fuzz_json_input, NULL, NULL},   {"fuzz_token", fuzz_token_input, NULL, NULL},
    {"fuzz_model", fuzz_model_input, NULL, NULL}, {"fuzz_http", fuzz_http_input, fuzz_http_start, NULL},
};
static const struct fuzz_target *fuzz_target;

/* Inputs get longer by and by, as they do in a program without a mutator of its own; an option of the user comes behind. */
static void fuzz_grow_slowly(int *argc, char ***argv) {
    static char option[] = "-len_control=100";
    char **args = (char **)malloc(((size_t)*argc + 2) * sizeof(char *)); /* kept to the end */
    if (!args) abort();
    args[0] = (*argv)[0];
    args[1] = option;
    memcpy(args + 2, *argv + 1, (size_t)*argc * sizeof(char *)); /* with the NULL */
    *argv = args;
    ++*argc;
}

int LLVMFuzzerInitialize(int *argc, char ***argv) {
    const char *name = strrchr((*argv)[0], '/') ? strrchr((*argv)[0], '/') + 1 : (*argv)[0];
    size_t i;
    for (i = 0; i < FG__COUNT(fuzz_targets); i++)
        if (strcmp(name, fuzz_targets[i].name) == 0) fuzz_target = &fuzz_targets[i];
    if (!fuzz_target) {
        fprintf(stderr, "%s is the name of no target\n", name);
        exit(2);
    }
    if (!fuzz_target->mutator) fuzz_grow_slowly(argc, argv);
    return fuzz_target->start ? fuzz_target->start(argc, argv) : 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) { return fuzz_target->input(data, size); }

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max_size, unsigned seed) {
    return fuzz_target->mutator ? fuzz_target->mutator(data, size, max_size, seed) : LLVMFuzzerMutate(data, size, max_size);
}
