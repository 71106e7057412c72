/* One table of options for all commands: parsing, checking and --help come from it. */

enum {
    CMD_GENERATE = 1,
    CMD_CHAT = 2,
    CMD_TOKENIZE = 4,
    CMD_PERPLEXITY = 8,
    CMD_INFO = 16,
    CMD_BENCH = 32,
    CMD_DEMO = 64,
    CMD_SERVE = 128,
    CMD_SIM = 256,
    CMD_SWEEP = 512,
    CMD_BENCH_SERVE = 1024,
    CMD_TEXT = CMD_GENERATE | CMD_CHAT,
    CMD_ENGINE = CMD_TEXT | CMD_PERPLEXITY | CMD_INFO | CMD_BENCH | CMD_DEMO | CMD_SERVE | CMD_SWEEP,
    CMD_MODEL = CMD_ENGINE | CMD_TOKENIZE | CMD_SIM,
    CMD_ALL = CMD_MODEL | CMD_BENCH_SERVE
};

typedef struct text_list {
    const char **items;
    int count;
} text_list;

typedef struct tool_args {
    const char *command;
    bool help, json, verbose, quiet;
    /* the model and the engine */
    const char *model, *draft_model, *backend, *device, *cpu_path, *policy, *kv_type, *kv_device, *experts_device, *trace, *preemption, *async;
    int threads, gpu_layers, kv_level, context, token_budget, max_seqs, block_tokens, kv_tokens;
    bool no_kernel_cache, no_prefix_cache, no_even_split, saturate;
    double target_tbt;
    /* what to write */
    text_list prompts, files, stops, biases;
    const char *file, *system;
    int n_predict, min_tokens, samples, logprobs, draft, beams, best_of;
    bool ignore_eos;
    uint64_t seed;
    bool seed_given;
    double bench_temperature;
    double temperature, top_p, min_p, typical_p, repetition_penalty, presence_penalty, frequency_penalty;
    int top_k, penalty_window;
    /* single commands */
    bool kl, no_bos, no_special, decode, graph, metadata, mixed;
    int bench_prompt, repetitions;
    const char *batches, *plot;
    const char *host, *alias, *api_key;
    int port, max_queue, max_connections, max_body, timeout, drain;
    text_list urls, results;
    const char *clients, *rates;
    int requests, vocab;
    double prompt_rate;
} tool_args;

typedef enum option_kind { OPT_FLAG, OPT_INT, OPT_REAL, OPT_SEED, OPT_TEXT, OPT_LIST } option_kind;

typedef struct option {
    const char *name, *other;  /* "-n", "--max-tokens"; other may be NULL. No name: a heading of the help */
    const char *value;         /* its name in the help; NULL for flags */
    option_kind kind;
    size_t offset;             /* of the field in tool_args */
    double least, most;        /* of numbers */
    unsigned commands;
    const char *help;
} option;

#define FIELD(name) offsetof(tool_args, name)
#define INT_MOST 2147483647.0

static const option options[] = {
    {"-m", "--model", "FILE", OPT_TEXT, FIELD(model), 0, 0, CMD_MODEL, "the model, a GGUF file"},
    {"-p", "--prompt", "TEXT", OPT_LIST, FIELD(prompts), 0, 0, CMD_GENERATE, "a prompt; give several for one batch"},
    {"-f", "--file", "FILE", OPT_LIST, FIELD(files), 0, 0, CMD_GENERATE, "a prompt from a file; - is stdin; several follow those of -p"},
    {"-f", "--file", "FILE", OPT_TEXT, FIELD(file), 0, 0, CMD_PERPLEXITY, "the text; - is stdin"},
    {"--kl", NULL, NULL, OPT_FLAG, FIELD(kl), 0, 0, CMD_PERPLEXITY,
     "also the KL divergence from the same weights in 32-bit arithmetic (slow)"},
    {"-p", "--prompt", "N", OPT_INT, FIELD(bench_prompt), 1, 1e6, CMD_BENCH, "prompt tokens of each sequence (512)"},
    {"-n", "--max-tokens", "N", OPT_INT, FIELD(n_predict), 0, INT_MOST, CMD_GENERATE,
     "tokens to write (128); 0: as many as fit"},
    {"-n", "--max-tokens", "N", OPT_INT, FIELD(n_predict), 0, INT_MOST, CMD_CHAT,
     "longest answer in tokens (512); 0: as many as fit"},
    {"-n", "--max-tokens", "N", OPT_INT, FIELD(n_predict), 1, 1e6, CMD_BENCH, "tokens to decode (64)"},
    {"-n", "--max-tokens", "N", OPT_INT, FIELD(n_predict), 1, 1e6, CMD_DEMO, "tokens of each text (96)"},
    {"-b", "--batch", "LIST", OPT_TEXT, FIELD(batches), 0, 0, CMD_BENCH, "batch sizes, such as 1,4,16 (1,4,16)"},
    {"-r", "--repetitions", "N", OPT_INT, FIELD(repetitions), 1, 1000, CMD_BENCH, "measure N times, show medians (1)"},
    {"--temp", "--temperature", "X", OPT_REAL, FIELD(bench_temperature), 0, 1000, CMD_BENCH,
     "draw tokens at this temperature, from the whole vocabulary (0: greedy)"},
    {"--mixed", NULL, NULL, OPT_FLAG, FIELD(mixed), 0, 0, CMD_BENCH,
     "also passes of decodes and a piece of a prompt, beside the two alone"},
    {"--plot", NULL, "FILE", OPT_TEXT, FIELD(plot), 0, 0, CMD_SWEEP, "draw the curves, as SVG"},
    {"-r", "--requests", "N", OPT_INT, FIELD(requests), 1, 1e6, CMD_SIM, "requests of each of the 128 runs (200)"},
    {"--plot", NULL, "FILE", OPT_TEXT, FIELD(plot), 0, 0, CMD_SIM, "draw latency over throughput, and what passes, as SVG"},
    {"--plot", NULL, "FILE", OPT_TEXT, FIELD(plot), 0, 0, CMD_BENCH,
     "an SVG of tokens/s over tokens per pass, batch and context"},
    {"--samples", NULL, "N", OPT_INT, FIELD(samples), 1, 1024, CMD_GENERATE, "texts for each prompt (1)"},
    {"--system", NULL, "TEXT", OPT_TEXT, FIELD(system), 0, 0, CMD_CHAT, "the system message"},
    {"--decode", NULL, NULL, OPT_FLAG, FIELD(decode), 0, 0, CMD_TOKENIZE, "ids to text instead"},
    {"--no-bos", NULL, NULL, OPT_FLAG, FIELD(no_bos), 0, 0, CMD_GENERATE | CMD_TOKENIZE | CMD_PERPLEXITY,
     "without the beginning-of-sequence token"},
    {"--no-special", NULL, NULL, OPT_FLAG, FIELD(no_special), 0, 0, CMD_GENERATE | CMD_TOKENIZE,
     "special tokens in the text are text; left out by --decode"},
    {"--graph", NULL, NULL, OPT_FLAG, FIELD(graph), 0, 0, CMD_INFO, "print the list of operations"},
    {"--metadata", NULL, NULL, OPT_FLAG, FIELD(metadata), 0, 0, CMD_INFO, "print the file's metadata, long values cut"},
    {"--host", NULL, "ADDRESS", OPT_TEXT, FIELD(host), 0, 0, CMD_SERVE,
     "where to listen (127.0.0.1: this machine alone); 0.0.0.0 or ::: everywhere"},
    {"--port", NULL, "N", OPT_INT, FIELD(port), 0, 65535, CMD_SERVE, "TCP port (8080); 0: any free one"},
    {"--alias", NULL, "NAME", OPT_TEXT, FIELD(alias), 0, 0, CMD_SERVE, "the model's name for clients (that of its file)"},
    {"--api-key", NULL, "KEY", OPT_TEXT, FIELD(api_key), 0, 0, CMD_SERVE,
     "refuse requests without this key; the page, /health, /metrics and /stats stay open. Pages of other sites may call a server without one"},
    {"--url", NULL, "URL", OPT_LIST, FIELD(urls), 0, 0, CMD_BENCH_SERVE, "a server, [NAME=]http://ADDRESS:PORT; repeatable"},
    {"--results", NULL, "FILE", OPT_LIST, FIELD(results), 0, 0, CMD_BENCH_SERVE,
     "what an earlier run printed with --json, to show beside or alone; repeatable"},
    {"--clients", NULL, "LIST", OPT_TEXT, FIELD(clients), 0, 0, CMD_BENCH_SERVE, "clients at once (1,2,4,8,16,32)"},
    {"-p", "--prompt", "N", OPT_INT, FIELD(bench_prompt), 1, 1e6, CMD_BENCH_SERVE, "mean tokens of a prompt (600)"},
    {"-n", "--max-tokens", "N", OPT_INT, FIELD(n_predict), 1, 1e6, CMD_BENCH_SERVE, "mean tokens of an answer (60)"},
    {"-r", "--requests", "N", OPT_INT, FIELD(requests), 1, 1e6, CMD_BENCH_SERVE, "requests of each client (4)"},
    {"--rounds", NULL, "N", OPT_INT, FIELD(repetitions), 1, 15, CMD_BENCH_SERVE, "measure N times, show medians (1)"},
    {"--prompt-rate", NULL, "X", OPT_REAL, FIELD(prompt_rate), 1e-3, 1e9, CMD_BENCH_SERVE,
     "to pass, the first token comes within prompt tokens / X seconds (512)"},
    {"--rates", NULL, "LIST", OPT_TEXT, FIELD(rates), 0, 0, CMD_BENCH_SERVE,
     "and the others at this many a second, by a moving average (2,4,6,10)"},
    {"--vocab", NULL, "N", OPT_INT, FIELD(vocab), 3, 1e6, CMD_BENCH_SERVE, "prompts are random token ids from N/3 to N (1000)"},
    {"--words", NULL, "FILE", OPT_TEXT, FIELD(file), 0, 0, CMD_BENCH_SERVE, "or words of this file, for servers that take text alone"},
    {"--api-key", NULL, "KEY", OPT_TEXT, FIELD(api_key), 0, 0, CMD_BENCH_SERVE, "of the servers"},
    {"--plot", NULL, "FILE", OPT_TEXT, FIELD(plot), 0, 0, CMD_BENCH_SERVE, "write the curves as SVG"},
    {"--max-queue", NULL, "N", OPT_INT, FIELD(max_queue), 1, 1e6, CMD_SERVE,
     "answers that may wait (256; a request for n counts n); more are told to try again"},
    {"--max-connections", NULL, "N", OPT_INT, FIELD(max_connections), 1, 65536, CMD_SERVE, "open connections (1024)"},
    {"--max-body", NULL, "MIB", OPT_INT, FIELD(max_body), 1, 1024, CMD_SERVE,
     "largest body of a request in MiB (8); all that wait may have 8 times that together, and answers as much"},
    {"--timeout", NULL, "SECONDS", OPT_INT, FIELD(timeout), 1, 86400, CMD_SERVE,
     "how long a client may take to send a request, or to read (60)"},
    {"--drain", NULL, "SECONDS", OPT_INT, FIELD(drain), 0, 86400, CMD_SERVE,
     "how long answers may take after SIGTERM (30)"},

    {NULL, NULL, NULL, OPT_FLAG, 0, 0, 0, CMD_TEXT, "sampling"},
    {"--temp", "--temperature", "X", OPT_REAL, FIELD(temperature), 0, 1000, CMD_TEXT, "temperature (0.8); 0: greedy"},
    {"--top-k", NULL, "N", OPT_INT, FIELD(top_k), 0, INT_MOST, CMD_TEXT, "the N best tokens (40); 0: off"},
    {"--top-p", NULL, "X", OPT_REAL, FIELD(top_p), 0, 1, CMD_TEXT,
     "the best tokens of this probability (0.95); 0: the best alone; 1: off"},
    {"--min-p", NULL, "X", OPT_REAL, FIELD(min_p), 0, 1, CMD_TEXT,
     "at least this share of the best token's (0.05); 0: off"},
    {"--typical-p", NULL, "X", OPT_REAL, FIELD(typical_p), 0, 1, CMD_TEXT, "locally typical sampling; 1: off"},
    {"--repetition-penalty", NULL, "X", OPT_REAL, FIELD(repetition_penalty), 0, 100, CMD_TEXT,
     "divides logits of tokens seen; 1: off"},
    {"--presence-penalty", NULL, "X", OPT_REAL, FIELD(presence_penalty), -100, 100, CMD_TEXT,
     "subtracted from logits of tokens written before"},
    {"--frequency-penalty", NULL, "X", OPT_REAL, FIELD(frequency_penalty), -100, 100, CMD_TEXT,
     "the same, once for each time"},
    {"--penalty-window", NULL, "N", OPT_INT, FIELD(penalty_window), 0, INT_MOST, CMD_TEXT,
     "last tokens the penalties see; 0: all"},
    {"--logit-bias", NULL, "ID=X", OPT_LIST, FIELD(biases), 0, 0, CMD_TEXT, "adds X to a token's logit; -inf bans it"},
    {"--seed", NULL, "N", OPT_SEED, FIELD(seed), 0, 0,
     CMD_TEXT | CMD_BENCH | CMD_DEMO | CMD_SIM | CMD_SWEEP | CMD_BENCH_SERVE,
     "of the random numbers; the same seed gives the same text (on GPUs if the same runs beside it)"},
    {"--stop", NULL, "TEXT", OPT_LIST, FIELD(stops), 0, 0, CMD_TEXT, "end at this text, which is left out; repeatable"},
    {"--beams", NULL, "N", OPT_INT, FIELD(beams), 1, 10, CMD_GENERATE, "beam search of this width, in place of sampling"},
    {"--best-of", NULL, "N", OPT_INT, FIELD(best_of), 1, 1024, CMD_GENERATE, "draw N texts, show the --samples most likely ones"},
    {"--ignore-eos", NULL, NULL, OPT_FLAG, FIELD(ignore_eos), 0, 0, CMD_GENERATE, "go on past end tokens"},
    {"--min-tokens", NULL, "N", OPT_INT, FIELD(min_tokens), 0, INT_MOST, CMD_TEXT, "no end before so many tokens"},
    {"--logprobs", NULL, "N", OPT_INT, FIELD(logprobs), 0, FG_MAX_TOP_LOGPROBS, CMD_GENERATE,
     "log-probabilities and N alternatives of each token"},

    {NULL, NULL, NULL, OPT_FLAG, 0, 0, 0, CMD_ENGINE, "engine"},
    {"-c", "--context", "N", OPT_INT, FIELD(context), 1, INT_MOST, CMD_TEXT | CMD_PERPLEXITY | CMD_INFO | CMD_SERVE,
     "longest sequence in tokens (the model's, within the KV pool)"},
    {"--backend", NULL, "NAME", OPT_TEXT, FIELD(backend), 0, 0, CMD_ENGINE, "cpu, cuda, hip, vulkan, or null (computes nothing)"},
    {"--device", NULL, "NAME", OPT_TEXT, FIELD(device), 0, 0, CMD_ENGINE, "the backend's device, by name or number (its first; if there is no such device, the CPU)"},
    {"--cpu-path", NULL, "NAME", OPT_TEXT, FIELD(cpu_path), 0, 0, CMD_ENGINE, "amx, avx512, avx2, neon or scalar"},
    {"--no-kernel-cache", NULL, NULL, OPT_FLAG, FIELD(no_kernel_cache), 0, 0, CMD_ENGINE,
     "keep no compiled Vulkan kernels in the user's cache folder"},
    {"--gpu-layers", NULL, "N", OPT_INT, FIELD(gpu_layers), 1, 4096, CMD_ENGINE,
     "the last N layers and the output on the backend's device, the others on the CPU (all)"},
    {"--kv-device", NULL, "NAME", OPT_TEXT, FIELD(kv_device), 0, 0, CMD_ENGINE,
     "cpu: attention and the KV cache on the CPU, products on the backend's device"},
    {"--experts-device", NULL, "NAME", OPT_TEXT, FIELD(experts_device), 0, 0, CMD_ENGINE,
     "cpu: a mixture's experts on the CPU, all else on the backend's device"},
    {"--threads", "-t", "N", OPT_INT, FIELD(threads), 1, 1024, CMD_ENGINE, "CPU threads (all cores it may use)"},
    {"--token-budget", NULL, "N", OPT_INT, FIELD(token_budget), 1, 1e6, CMD_ENGINE | CMD_SIM, "tokens per pass"},
    {"--preemption", NULL, "NAME", OPT_TEXT, FIELD(preemption), 0, 0, CMD_ENGINE,
     "when the KV pool is short: auto, recompute or swap"},
    {"--draft", NULL, "N", OPT_INT, FIELD(draft), 0, 16, CMD_TEXT | CMD_SERVE,
     "guess N tokens ahead from what was said before (0), or with --draft-model (4); the text stays the same"},
    {"--draft-model", NULL, "FILE", OPT_TEXT, FIELD(draft_model), 0, 0, CMD_TEXT | CMD_SERVE,
     "a small model of the same vocabulary, that guesses"},
    {"--async", NULL, "MODE", OPT_TEXT, FIELD(async), 0, 0, CMD_ENGINE,
     "what runs beside the device: off (nothing), overlap (scheduling, delivery), 2 (and two passes in flight)"},
    {"--saturate", NULL, NULL, OPT_FLAG, FIELD(saturate), 0, 0, CMD_ENGINE,
     "measure first how few tokens fill the device; take no more"},
    {"--target-tbt", NULL, "MS", OPT_REAL, FIELD(target_tbt), 0, 1e6, (CMD_ENGINE & ~CMD_SERVE) | CMD_SIM,
     "milliseconds between tokens that prompts must not exceed"},
    {"--target-tbt", NULL, "MS", OPT_REAL, FIELD(target_tbt), 0, 1e6, CMD_SERVE,
     "milliseconds between tokens that prompts must not exceed (100); 0: none"},
    {"--policy", NULL, "NAME", OPT_TEXT, FIELD(policy), 0, 0, CMD_ENGINE,
     "splitfuse, prefill_first, orca or static"},
    {"--no-even-split", NULL, NULL, OPT_FLAG, FIELD(no_even_split), 0, 0, CMD_ENGINE | CMD_SIM, "fill passes greedily"},
    {"--max-seqs", NULL, "N", OPT_INT, FIELD(max_seqs), 1, 65536, CMD_GENERATE | CMD_INFO | CMD_DEMO | CMD_SERVE,
     "sequences that run at once"},
    {"--kv-type", NULL, "TYPE", OPT_TEXT, FIELD(kv_type), 0, 0, CMD_ENGINE, "of the KV cache: f16, f32, bf16 or q8_0 (f16)"},
    {"--kv-tokens", NULL, "N", OPT_INT, FIELD(kv_tokens), 1, INT_MOST, CMD_TEXT | CMD_INFO | CMD_DEMO | CMD_SERVE,
     "size of the KV pool in tokens (the context or 16384, whichever is more, but no more than 4 GiB)"},
    {"--kv-level", NULL, "N", OPT_INT, FIELD(kv_level), 1, INT_MOST, CMD_TEXT | CMD_SERVE,
     "requests begin so that all together have no more than N tokens in the KV cache at any time"},
    {"--block-tokens", NULL, "N", OPT_INT, FIELD(block_tokens), 1, 4096, CMD_ENGINE,
     "tokens per KV block, a power of two up to 4096"},
    {"--no-prefix-cache", NULL, NULL, OPT_FLAG, FIELD(no_prefix_cache), 0, 0, CMD_TEXT | CMD_DEMO | CMD_SERVE,
     "compute shared prompt prefixes again"},
    {NULL, NULL, NULL, OPT_FLAG, 0, 0, 0, CMD_ALL, "output"},
    {"--trace", NULL, "FILE", OPT_TEXT, FIELD(trace), 0, 0, CMD_ENGINE & ~CMD_INFO,
     "write passes and requests for ui.perfetto.dev or chrome://tracing"},
    {"--json", NULL, NULL, OPT_FLAG, FIELD(json), 0, 0, CMD_ALL & ~(CMD_CHAT | CMD_DEMO | CMD_SERVE), "print JSON"},
    {"--quiet", "-q", NULL, OPT_FLAG, FIELD(quiet), 0, 0,
     CMD_TEXT | CMD_PERPLEXITY | CMD_BENCH | CMD_SERVE | CMD_SIM | CMD_SWEEP | CMD_BENCH_SERVE,
     "nothing but results and errors"},
    {"--verbose", "-v", NULL, OPT_FLAG, FIELD(verbose), 0, 0, CMD_MODEL, "what the library logs"},
    {"--help", "-h", NULL, OPT_FLAG, FIELD(help), 0, 0, CMD_ALL, "this text"},
};

#define N_OPTIONS ((int)(sizeof(options) / sizeof(options[0])))

static void args_default(tool_args *args) {
    memset(args, 0, sizeof(*args));
    args->backend = "cpu";
    args->n_predict = -1; /* each command has its own */
    args->logprobs = args->draft = -1;
    args->samples = 1;
    args->temperature = 0.8;
    args->top_k = 40;
    args->top_p = 0.95;
    args->min_p = 0.05;
    args->bench_prompt = 0; /* each command has its own */
    args->repetitions = 1;
    args->target_tbt = -1; /* each command has its own */
    args->batches = "1,4,16";
    args->host = "127.0.0.1";
    args->port = 8080;
    args->max_connections = 1024;
    args->max_body = 8;
    args->timeout = 60;
    args->drain = 30;
    args->clients = "1,2,4,8,16,32";
    args->rates = "2,4,6,10";
    args->requests = 0; /* each command has its own */
    args->vocab = 1000;
    args->prompt_rate = 512;
}

/* Wrong use: a message on stderr; the tool then ends with 2. */
static int usage_error(const tool_args *args, const char *format, ...) {
    va_list list;
    fprintf(stderr, "fastgen %s: ", args->command);
    va_start(list, format);
    vfprintf(stderr, format, list);
    va_end(list);
    fprintf(stderr, "\nSee fastgen %s --help.\n", args->command);
    return 2;
}

/* Something failed: a message on stderr; the tool then ends with 1. */
static int failure(const char *format, ...) {
    va_list list;
    clear_progress();
    fprintf(stderr, "fastgen: ");
    va_start(list, format);
    vfprintf(stderr, format, list);
    va_end(list);
    fprintf(stderr, "\n");
    return 1;
}

static const option *find_option(const char *name, size_t length, unsigned command) {
    int i;
    for (i = 0; i < N_OPTIONS; i++) {
        const option *o = &options[i];
        if (!o->name || !(o->commands & command)) continue;
        if (strlen(o->name) == length && strncmp(o->name, name, length) == 0) return o;
        if (o->other && strlen(o->other) == length && strncmp(o->other, name, length) == 0) return o;
    }
    return NULL;
}

static void list_add(text_list *list, const char *item) {
    list->items = (const char **)xrealloc((void *)list->items, (size_t)(list->count + 1) * sizeof(char *));
    list->items[list->count++] = item;
}

/* A whole number of any sign that fits 64 bits, decimal or from 0x on hexadecimal. */
static bool parse_seed(const char *text, uint64_t *seed) {
    const char *digits = text + (*text == '-' || *text == '+');
    int base = digits[0] == '0' && (digits[1] | 32) == 'x' ? 16 : 10;
    char *end;
    errno = 0;
    *seed = *text == '-' ? (uint64_t)strtoll(text, &end, base) : (uint64_t)strtoull(text, &end, base);
    return end != text && *end == 0 && errno == 0;
}

static int set_number(const tool_args *args, const option *o, const char *text, void *field) {
    char *end;
    double value = strtod(text, &end);
    bool whole = o->kind == OPT_INT;
    if (end == text || *end || (whole && value != floor(value)))
        return usage_error(args, "%s: '%s' is not a %snumber", o->name, text, whole ? "whole " : "");
    if (!(value >= o->least && value <= o->most))
        return usage_error(args, "%s: %s is outside %.10g to %.10g", o->name, text, o->least, o->most);
    if (whole) *(int *)field = (int)value;
    else *(double *)field = value;
    return 0;
}

static int set_option(tool_args *args, const option *o, const char *text) {
    void *field = (char *)args + o->offset;
    switch (o->kind) {
    case OPT_FLAG: *(bool *)field = true; return 0;
    case OPT_TEXT: *(const char **)field = text; return 0;
    case OPT_LIST: list_add((text_list *)field, text); return 0;
    case OPT_SEED:
        args->seed_given = parse_seed(text, (uint64_t *)field);
        return args->seed_given ? 0 : usage_error(args, "%s: '%s' is not a whole number", o->name, text);
    default: return set_number(args, o, text, field);
    }
}

/* Reads "--name value", "--name=value" and "-n value". 0, or 2 after a message. */
static int parse_options(tool_args *args, unsigned command, int argc, char **argv) {
    int i, result = 0;
    for (i = 0; i < argc && result == 0; i++) {
        const char *equals = strncmp(argv[i], "--", 2) == 0 ? strchr(argv[i], '=') : NULL;
        size_t length = equals ? (size_t)(equals - argv[i]) : strlen(argv[i]);
        const option *o = find_option(argv[i], length, command);
        if (!o && argv[i][0] == '-') return usage_error(args, "unknown option '%s'", argv[i]);
        if (!o) return usage_error(args, "'%s' is not an option", argv[i]);
        if (equals && !o->value) return usage_error(args, "%s takes no value", o->name);
        if (o->value && !equals && i + 1 >= argc) return usage_error(args, "%s needs a value (%s)", argv[i], o->value);
        result = set_option(args, o, !o->value ? NULL : equals ? equals + 1 : argv[++i]);
    }
    return result;
}

static void print_option(const option *o) {
    char left[80];
    if (!o->name) {
        printf("\n%s:\n", o->help);
        return;
    }
    snprintf(left, sizeof(left), "%s%s%s%s%s", o->name, o->other ? ", " : "", o->other ? o->other : "",
             o->value ? " " : "", o->value ? o->value : "");
    printf("  %-26s %s\n", left, o->help);
}

static void print_options(unsigned command) {
    int i;
    printf("options:\n");
    for (i = 0; i < N_OPTIONS; i++)
        if (options[i].commands & command) print_option(&options[i]);
}
