/* fastgen: the command-line tool. The build is one line:

       mkdir -p build && cc -O2 -o build/fastgen examples/fastgen.c -lm -lpthread

   and on Linux before glibc 2.34 also -ldl. The library's public API is all it uses. Each command is in examples/tool/cmd_NAME.h. */

#define FASTGEN_IMPLEMENTATION
#include "../fastgen.h"
#include "../backends/cuda/fg_cuda.h"
#include "../backends/hip/fg_hip.h"
#include "../backends/vulkan/fg_vulkan.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tool/platform.h"
#include "tool/text.h"
#include "tool/terminal.h"
#include "tool/options.h"
#include "tool/session.h"
#include "tool/plot.h"
#include "tool/cmd_generate.h"
#include "tool/cmd_chat.h"
#include "tool/cmd_tokenize.h"
#include "tool/cmd_perplexity.h"
#include "tool/cmd_info.h"
#include "tool/split_model.h"
#include "tool/split_measure.h"
#include "tool/cmd_bench.h"
#include "tool/cmd_demo.h"
#include "tool/cmd_sim.h"
#include "tool/cmd_sweep.h"
#include "tool/json.h"
#include "tool/http.h"
#include "tool/pattern.h"
#include "tool/grammar.h"
#include "tool/calls.h"
#include "tool/api.h"
#include "tool/reply.h"
#include "tool/responses.h"
#include "tool/messages.h"
#include "tool/output.h"
#include "tool/metrics.h"
#include "tool/page.h"
#include "tool/server.h"
#include "tool/cmd_serve.h"
#include "tool/cmd_bench_serve.h"

typedef struct command {
    const char *name;
    unsigned bit;
    int (*run)(tool_args *args);
    const char *summary, *usage, *examples;
} command;

static const command commands[] = {
    {"generate", CMD_GENERATE, cmd_generate, "continue one or more prompts", "-m FILE -p TEXT [-p TEXT ...] [options]",
     "  fastgen generate -m model.gguf -p \"Once upon a time\" -n 64 --temp 0\n"
     "  fastgen generate -m model.gguf -p \"Dear Anna,\" -p \"Dear Tom,\" --seed 7     two prompts, one batch\n"
     "  fastgen generate -m model.gguf -p \"A haiku:\" --samples 4 --json\n"
     "  fastgen generate -m model.gguf -f story.txt --stop \"The end\" --logprobs 3\n"},
    {"chat", CMD_CHAT, cmd_chat, "talk with a model that has a chat template", "-m FILE [options]",
     "  fastgen chat -m model.gguf\n"
     "  fastgen chat -m model.gguf --system \"Answer in one sentence.\" --temp 0.2\n"
     "  echo \"What is a fox?\" | fastgen chat -m model.gguf -n 100\n"},
    {"serve", CMD_SERVE, cmd_serve, "the OpenAI and Anthropic APIs over HTTP, for many clients at once", "-m FILE [options]",
     "  fastgen serve -m model.gguf\n"
     "  fastgen serve -m model.gguf --host 0.0.0.0 --port 8000 --api-key SECRET\n"
     "  fastgen serve -m model.gguf --alias my-model --max-seqs 32 --kv-tokens 65536 --kv-type q8_0\n"
     "  curl http://127.0.0.1:8080/v1/completions -d '{\"prompt\": \"Once\", \"max_tokens\": 32}'\n"
     "A browser that opens its address finds a chat, and live pictures of what the engine does. Programs find\n"
     "/v1/chat/completions, /v1/responses, /v1/completions, /v1/messages, /v1/messages/count_tokens, /v1/models,\n"
     "/tokenize, /detokenize, /health and, for Prometheus, /metrics under vLLM's names. FASTGEN_API_KEY in the\n"
     "environment does what --api-key does. SIGTERM and Ctrl-C let it finish what it is answering; asked twice it stops\n"
     "at once.\n"},
    {"tokenize", CMD_TOKENIZE, cmd_tokenize, "text on stdin to token ids, or back", "-m FILE [options] < text",
     "  echo -n \"Hello world\" | fastgen tokenize -m model.gguf\n"
     "  echo -n \"<s> is text here\" | fastgen tokenize -m vocabulary.gguf --no-bos --no-special\n"
     "  echo \"15043 3186\" | fastgen tokenize -m model.gguf --decode\n"},
    {"perplexity", CMD_PERPLEXITY, cmd_perplexity, "how well a model predicts a text", "-m FILE -f TEXT [options]",
     "  fastgen perplexity -m model.gguf -f text.txt\n"
     "  fastgen perplexity -m model.gguf -f text.txt -c 512 --kv-type q8_0\n"
     "  fastgen perplexity -m model.gguf -f text.txt --kl\n"
     "It prints \"tokens N nll X ppl Y\": tokens scored, negative log-likelihood of each in natural log, and exp(X).\n"
     "The text is cut into windows of the context length (-c; by default that of the training, at most 2048, with --kl at most\n"
     "512), each of which begins with the BOS token where the model has one. --kl adds \"kl X max Y same_best Z\": the mean and the\n"
     "largest divergence from the logits of 32-bit arithmetic, in nats, and how often both rank the same token first.\n"},
    {"info", CMD_INFO, cmd_info, "what a model is and what it needs", "-m FILE [options]",
     "  fastgen info -m model.gguf\n"
     "  fastgen info -m model.gguf --metadata\n"
     "  fastgen info -m model.gguf --graph            the operations a backend is given\n"
     "  fastgen info -m model.gguf -c 32768 --kv-type f16\n"},
    {"bench", CMD_BENCH, cmd_bench, "prompt and decode rates, and memory bandwidth", "-m FILE [options]",
     "  fastgen bench -m model.gguf\n"
     "  fastgen bench -m model.gguf -p 512 -n 64 -b 1,4,16 --json\n"
     "  fastgen bench -m model.gguf -b 1 -r 5 --threads 2 --cpu-path avx2\n"
     "  fastgen bench -m model.gguf --backend cuda --device 1\n"
     "  fastgen bench -m model.gguf --backend vulkan --gpu-layers 20\n"
     "  fastgen bench -m model.gguf --backend cuda --kv-device cpu -b 64\n"
     "  fastgen bench -m model.gguf -b 1,2,4,8,16,32 --plot rates.svg\n"
     "Each sequence reads -p random tokens and then decodes. Decode rates count all sequences of a batch, in passes\n"
     "that carry one token of each. The prompt rate and the bytes read per second are those of the smallest batch.\n"},
    {"bench sim", CMD_SIM, cmd_sim, "the scheduler's policies compared, in simulated time", "[-m FILE] [options]",
     "  fastgen bench sim                             a table\n"
     "  fastgen bench sim --plot policies.svg --requests 1000\n"
     "  fastgen bench sim --token-budget 2048 --json\n"
     "A 7B model on a data-centre GPU under the closed-loop workloads of the FastGen paper; it computes no model. Of the file\n"
     "of -m it takes the shape alone; without it that is examples/demo-model/demo.gguf, from the repository's root.\n"},
    {"bench sweep", CMD_SWEEP, cmd_sweep, "throughput over pass sizes and cache hits, latency over load", "-m FILE [options]",
     "  fastgen bench sweep -m model.gguf\n"
     "  fastgen bench sweep -m model.gguf --plot sweep.svg --json\n"
     "Time and throughput of passes over their tokens, and of requests over their hits in the prefix cache, with what keeping\n"
     "that costs, are the model's. Inference time and latency over queries per second, without and with --async, are of a 7B\n"
     "model on a simulated data-centre GPU.\n"},
    {"bench serve", CMD_BENCH_SERVE, cmd_bench_serve, "OpenAI-compatible servers under load", "--url URL [--url URL ...] [options]",
     "  fastgen bench serve --url http://127.0.0.1:8080\n"
     "  fastgen bench serve --url fastgen=http://127.0.0.1:8080 --url other=http://127.0.0.1:8081 --plot load.svg\n"
     "  fastgen bench serve --url http://127.0.0.1:8080 --clients 1,16 -p 600 -n 60 --rates 10 --json > monday.json\n"
     "  fastgen bench serve --results monday.json --results tuesday.json --plot load.svg\n"
     "Each client sends its next request when the last is answered; lengths are normal with a deviation of 30%. A request\n"
     "passes when its first token comes within prompt tokens / --prompt-rate and the moving average (span 16) of its later\n"
     "gaps stays under 1 / rate: requests a second that pass are the effective throughput. A server may remember prompts:\n"
     "give another --seed to measure it again.\n"},
    {"demo", CMD_DEMO, cmd_demo, "eight texts at once, with a view of the scheduler", "[-m FILE] [options]",
     "  fastgen demo                                   # examples/demo-model/demo.gguf, from the repository's folder\n"
     "  fastgen demo -m model.gguf\n"
     "  fastgen demo -m model.gguf --policy prefill_first --token-budget 16\n"
     "With NO_COLOR in the environment it has no colours.\n"},
};

#define N_COMMANDS ((int)(sizeof(commands) / sizeof(commands[0])))

static void print_help(FILE *to) {
    int i;
    fprintf(to, "fastgen %s: serves large language models, on a CPU or a GPU, from one file\n\n", fg_version());
    fprintf(to, "usage: fastgen COMMAND -m FILE [options]\n\ncommands:\n");
    for (i = 0; i < N_COMMANDS; i++) fprintf(to, "  %-12s %s\n", commands[i].name, commands[i].summary);
    fprintf(to, "\nexamples:\n"
                "  fastgen generate -m model.gguf -p \"Once upon a time\" -n 64\n"
                "  fastgen chat -m model.gguf\n"
                "  fastgen serve -m model.gguf --port 8080\n"
                "  fastgen bench -m model.gguf -b 1,4,16 --json\n"
                "\nfastgen COMMAND --help lists the options of a command.\n");
}

static int print_command_help(const command *c) {
    printf("fastgen %s: %s\n\nusage: fastgen %s %s\n\n", c->name, c->summary, c->name, c->usage);
    print_options(c->bit);
    printf("\nexamples:\n%s", c->examples);
    return 0;
}

/* The command that the first words name, of one or two words; *used of them. */
static const command *find_command(int n, char **words, int *used) {
    char two[32];
    int i;
    for (*used = n > 1 ? 2 : 1; *used > 0 && n > 0; --*used) {
        snprintf(two, sizeof(two), "%.15s%s%.15s", words[0], *used == 2 ? " " : "", *used == 2 ? words[1] : "");
        for (i = 0; i < N_COMMANDS; i++)
            if (strcmp(two, commands[i].name) == 0) return &commands[i];
    }
    return NULL;
}

static int run_command(const command *c, int argc, char **argv) {
    static tool_args args;
    int i, result;
    args_default(&args);
    args.command = c->name;
    for (i = 0; i < argc; i++) /* first of all, so that help comes whatever else is wrong */
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) return print_command_help(c);
    result = parse_options(&args, c->bit, argc, argv);
    if (result == 0) result = check_outputs(&args);
    if (result == 0) result = c->run(&args);
    free((void *)args.prompts.items);
    free((void *)args.files.items);
    free((void *)args.stops.items);
    free((void *)args.biases.items);
    free((void *)args.urls.items);
    return result;
}

static int run(int argc, char **argv) {
    const command *c;
    int first, used;
    bool help;
    help = argc > 1 && (strcmp(argv[1], "help") == 0 || strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0);
    if (argc > 1 && strcmp(argv[1], "--version") == 0) {
        printf("fastgen %s\n", fg_version());
        return 0;
    }
    first = help && argc > 2 ? 2 : 1;
    c = find_command(argc - first, argv + first, &used);
    if (c && help) return print_command_help(c);
    if (c) return run_command(c, argc - first - used, argv + first + used);
    help = help && (argc == 2 || argv[2][0] == '-'); /* not of a command that there is not */
    print_help(help ? stdout : stderr);
    if (!help && argc > 1) fprintf(stderr, "\nfastgen: no command '%s'\n", argv[first]);
    return help ? 0 : 2;
}

int main(int argc, char **argv) {
    int result;
    platform_start(&argc, &argv);
    terminal_utf8 = terminal_is_utf8();
    result = run(argc, argv);
    if (fflush(stdout) == 0 && !ferror(stdout)) return result;
    failure("the standard output could not be written");
    return result ? result : 1;
}
