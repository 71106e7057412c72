/* What a server counts, in Prometheus' text format under vLLM's names, types and buckets, so that gateways, routers and
   dashboards made for vLLM read it as it is. */

enum { METRIC_MAX_BUCKETS = 32 };

typedef enum metric_id {
    METRIC_FIRST_TOKEN,
    METRIC_TOKEN_GAP,
    METRIC_TOKEN_GAP_OLD_NAME, /* counts as METRIC_TOKEN_GAP does */
    METRIC_REQUEST_GAP,
    METRIC_LATENCY,
    METRIC_QUEUE,
    METRIC_INFERENCE,
    METRIC_PREFILL,
    METRIC_DECODE,
    METRIC_PASS_TOKENS,
    METRIC_PROMPT_TOKENS,
    METRIC_OUTPUT_TOKENS,
    METRIC_MAX_TOKENS,
    METRIC_N,
    METRIC_COUNT
} metric_id;

typedef struct histogram {
    double bounds[METRIC_MAX_BUCKETS];
    uint64_t counts[METRIC_MAX_BUCKETS + 1]; /* the last: above all bounds */
    uint64_t count;
    double sum;
    int n;
} histogram;

typedef enum bucket_kind { BUCKETS_FIRST, BUCKETS_GAP, BUCKETS_LATENCY, BUCKETS_PASS, BUCKETS_N, BUCKETS_CONTEXT } bucket_kind;

static const struct {
    const char *name, *help;
    bucket_kind buckets;
} metric_names[METRIC_COUNT] = {
    {"time_to_first_token_seconds", "Time from a request's arrival to its first token.", BUCKETS_FIRST},
    {"inter_token_latency_seconds", "Time between a token and the one before.", BUCKETS_GAP},
    {"time_per_output_token_seconds", "The same, under its older name.", BUCKETS_GAP},
    {"request_time_per_output_token_seconds", "Mean time between the tokens of a request.", BUCKETS_GAP},
    {"e2e_request_latency_seconds", "Time from a request's arrival to its end.", BUCKETS_LATENCY},
    {"request_queue_time_seconds", "Time until a request was first scheduled.", BUCKETS_LATENCY},
    {"request_inference_time_seconds", "Time from first scheduled to the last token.", BUCKETS_LATENCY},
    {"request_prefill_time_seconds", "Time from first scheduled to the first token.", BUCKETS_LATENCY},
    {"request_decode_time_seconds", "Time from the first token to the last.", BUCKETS_LATENCY},
    {"iteration_tokens_total", "Tokens of a pass, of prompts and decodes.", BUCKETS_PASS},
    {"request_prompt_tokens", "Prompt tokens of a request.", BUCKETS_CONTEXT},
    {"request_generation_tokens", "Generated tokens of a request.", BUCKETS_CONTEXT},
    {"request_params_max_tokens", "max_tokens of a request.", BUCKETS_CONTEXT},
    {"request_params_n", "n of a request.", BUCKETS_N},
};

static const double buckets_first[] = {0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5,  0.75,
                                       1,     2.5,   5,    7.5,  10,   20,   40,   80,  160,  640, 2560};
static const double buckets_gap[] = {0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80};
static const double buckets_latency[] = {0.3, 0.5, 0.8, 1,  1.5, 2,   2.5, 5,   10,  15,  20,
                                         30,  40,  50,  60, 120, 240, 480, 960, 1920, 7680};
static const double buckets_pass[] = {1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384};
static const double buckets_n[] = {1, 2, 5, 10, 20};

typedef enum finish_count { FINISH_STOP, FINISH_LENGTH, FINISH_ABORT, FINISH_ERROR, FINISH_COUNT } finish_count;

typedef struct metrics {
    histogram histograms[METRIC_COUNT];
    uint64_t finished[FINISH_COUNT];
} metrics;

static void histogram_init(histogram *h, bucket_kind kind, int max_context) {
    static const struct {
        const double *bounds;
        int n;
    } lists[] = {{buckets_first, 22}, {buckets_gap, 19}, {buckets_latency, 21}, {buckets_pass, 13}, {buckets_n, 5}};
    static const double steps[3] = {1, 2, 5};
    double power = 1;
    int i;
    memset(h, 0, sizeof(*h));
    if (kind != BUCKETS_CONTEXT) {
        h->n = lists[kind].n;
        memcpy(h->bounds, lists[kind].bounds, (size_t)h->n * sizeof(double));
        return;
    }
    for (i = 0; h->n < METRIC_MAX_BUCKETS && steps[i] * power <= max_context; power *= i == 2 ? 10 : 1, i = (i + 1) % 3)
        h->bounds[h->n++] = steps[i] * power;
}

static void metrics_init(metrics *m, int max_context) {
    int i;
    memset(m, 0, sizeof(*m));
    for (i = 0; i < METRIC_COUNT; i++) histogram_init(&m->histograms[i], metric_names[i].buckets, max_context);
}

static void histogram_add(histogram *h, double value) {
    int i = 0;
    while (i < h->n && value > h->bounds[i]) i++;
    h->counts[i]++;
    h->count++;
    h->sum += value;
}

static void metrics_add(metrics *m, metric_id id, double value) {
    histogram_add(&m->histograms[id], value);
    if (id == METRIC_TOKEN_GAP) histogram_add(&m->histograms[METRIC_TOKEN_GAP_OLD_NAME], value);
}

/* `labels` is the text between the braces. */
static void add_metric(str *to, const char *name, const char *type, const char *help, const char *labels,
                       double value) {
    str_printf(to, "# HELP vllm:%s %s\n# TYPE vllm:%s %s\nvllm:%s{%s} %.17g\n", name, help, name, type, name, labels, value);
}

/* Python's way of writing a bound: 1.0, 0.001. */
static void add_bound(str *to, double bound) {
    str_printf(to, bound == floor(bound) ? "%.1f" : "%.10g", bound);
}

static void add_histogram(str *to, const char *name, const char *help, const char *labels, const histogram *h) {
    uint64_t sum = 0;
    int i;
    str_printf(to, "# HELP vllm:%s %s\n# TYPE vllm:%s histogram\n", name, help, name);
    for (i = 0; i <= h->n; i++) {
        sum += h->counts[i];
        str_printf(to, "vllm:%s_bucket{%s,le=\"", name, labels);
        if (i < h->n) add_bound(to, h->bounds[i]);
        else str_puts(to, "+Inf");
        str_printf(to, "\"} %llu\n", (unsigned long long)sum);
    }
    str_printf(to, "vllm:%s_count{%s} %llu\n", name, labels, (unsigned long long)h->count);
    str_printf(to, "vllm:%s_sum{%s} %.17g\n", name, labels, h->sum);
}

static void add_gauges(str *to, const char *labels, const fg_stats *s) {
    double used = s->blocks_total ? (double)s->blocks_used / s->blocks_total : 0.0;
    add_metric(to, "num_requests_running", "gauge", "Sequences that take part in passes.", labels, s->n_running);
    add_metric(to, "num_requests_waiting", "gauge", "Requests that wait for their first pass or to go on.", labels, s->n_waiting);
    add_metric(to, "kv_cache_usage_perc", "gauge", "Share of the KV blocks in use, 0 to 1.", labels, used);
    add_metric(to, "gpu_cache_usage_perc", "gauge", "The same, under its older name.", labels, used);
}

static void add_counters(str *to, const char *labels, const fg_stats *s) {
    double queries = (double)s->prefix_queries, hits = (double)s->prefix_hits;
    add_metric(to, "prefix_cache_queries_total", "counter", "Prompt tokens looked up in the prefix cache.", labels, queries);
    add_metric(to, "prefix_cache_hits_total", "counter", "Prompt tokens found there.", labels, hits);
    add_metric(to, "gpu_prefix_cache_queries_total", "counter", "The same, under its older name.", labels, queries);
    add_metric(to, "gpu_prefix_cache_hits_total", "counter", "The same, under its older name.", labels, hits);
    add_metric(to, "num_preemptions_total", "counter", "Sequences set back for want of KV blocks.", labels, (double)s->n_preemptions);
    add_metric(to, "prompt_tokens_total", "counter", "Prompt tokens computed.", labels, (double)s->prompt_tokens);
    add_metric(to, "generation_tokens_total", "counter", "Tokens generated.", labels, (double)s->generated_tokens);
}

static void add_finished(str *to, const char *labels, const metrics *m) {
    static const char *const reasons[FINISH_COUNT] = {"stop", "length", "abort", "error"};
    int i;
    str_puts(to, "# HELP vllm:request_success_total Finished sequences.\n# TYPE vllm:request_success_total counter\n");
    for (i = 0; i < FINISH_COUNT; i++)
        str_printf(to, "vllm:request_success_total{%s,finished_reason=\"%s\"} %llu\n", labels, reasons[i],
                   (unsigned long long)m->finished[i]);
}

/* The whole page. */
static void add_metrics(str *to, const char *labels, const metrics *m, const fg_stats *s,
                        const fg_engine_desc *engine) {
    int i;
    add_gauges(to, labels, s);
    add_counters(to, labels, s);
    add_finished(to, labels, m);
    for (i = 0; i < METRIC_COUNT; i++)
        add_histogram(to, metric_names[i].name, metric_names[i].help, labels, &m->histograms[i]);
    str_puts(to, "# HELP vllm:cache_config_info The KV cache.\n# TYPE vllm:cache_config_info gauge\n");
    str_printf(to, "vllm:cache_config_info{%s,block_size=\"%d\",num_gpu_blocks=\"%d\",enable_prefix_caching=\"%s\"} 1\n", labels,
               engine->block_tokens, s->blocks_total, engine->no_prefix_cache ? "False" : "True");
}
