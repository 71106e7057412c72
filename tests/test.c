/* The test runner: the library and all tests in one translation unit, so that tests may call private functions.

       build/test              runs every test
       build/test WORD ...     runs the tests whose name contains one of the words
       build/test 1/2          runs every second test, build/test 2/2 the others
       build/test -WORD ...    runs the others

   It runs from the repository root. The last line is "N passed, N failed", with ", N skipped" where some were. */
#define FASTGEN_IMPLEMENTATION
#define FG__VK_PORTABILITY 1 /* as on Apple's systems */
#include "../fastgen.h"
#include "../backends/cuda/fg_cuda.h"
#include "../backends/hip/fg_hip.h"
#include "../backends/vulkan/fg_vulkan.h"

#include "test.h"
#include "standin_vulkan.h"

#include "test_gguf.c"
#include "test_quant.c"
#include "test_json.c"
#include "test_token.c"
#include "test_chat.c"
#include "test_sample.c"
#include "test_kv.c"
#include "test_sched.c"
#include "test_cpu.c"
#include "test_state.c"
#include "test_gemm.c"
#include "test_model.c"
#include "test_engine.c"
#include "test_trace.c"
#include "test_budget.c"
#include "test_spec.c"
#include "test_async.c"
#include "test_beam.c"
#include "test_swap.c"
#include "test_soak.c"
#include "test_logits.c"
#include "test_vulkan.c"
#include "test_gpu_host.c"
#include "test_gpu_kernels.c"
#include "test_draw.c"
#include "test_spirv.c"
#include "test_split.c"

static void run_all(void) {
    run_gguf_tests();
    run_quant_tests();
    run_json_tests();
    run_token_tests();
    run_chat_tests();
    run_sample_tests();
    run_kv_tests();
    run_sched_tests();
    run_cpu_tests();
    run_state_tests();
    run_gemm_tests();
    run_model_tests();
    run_engine_tests();
    run_trace_tests();
    run_budget_tests();
    run_spec_tests();
    run_async_tests();
    run_beam_tests();
    run_swap_tests();
    run_soak_tests();
    run_logits_tests();
    run_vulkan_tests();
    run_gpu_host_tests();
    run_gpu_kernel_tests();
    run_draw_tests();
    run_spirv_tests();
    run_split_tests();
}

/* test [PART/PARTS] [-WORD ...] [WORD ...]: the tests whose names contain a word, without those that contain one after a dash; of these
   one in PARTS. */
int main(int argc, char **argv) {
    int i = 1;
    if (argc > 1 && sscanf(argv[1], "%d/%d", &test_part, &test_parts) == 2) i = 2, test_part--;
    if (test_part < 0 || test_part >= test_parts) return fprintf(stderr, "%s is no part\n", argv[1]), 2;
    test_except = argv + i;
    for (; i < argc && argv[i][0] == '-'; i++) test_n_except++;
    if (i == argc) run_all();
    for (; i < argc; i++) {
        test_filter = argv[i];
        run_all();
    }
    cpu_vulkan_close();
    printf("%d passed, %d failed", tests_passed, tests_failed);
    if (tests_skipped) printf(", %d skipped", tests_skipped);
    printf("\n");
    if (tests_passed + tests_failed + tests_skipped == 0) fprintf(stderr, "no test has such a name\n");
    return tests_failed > 0 || tests_passed + tests_skipped == 0;
}
