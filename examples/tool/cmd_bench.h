/* fastgen bench: prompt and decode rates through the scheduler, as a server would see them, and the memory bandwidth
   that decoding reaches beside what the machine can read. */

enum { BENCH_MAX_BATCHES = 32 };

typedef struct bench_run {
    double pp_tok_s, tok_s, read_gb_s;
    double idle_us, idle_share; /* of the device between passes that decode: mean gap, share of the time */
    double roof_gb_s, roof_gop_s; /* measured between its passes: reading memory; int8 or float products, as the weights need */
    double read_share, computed_share; /* of the roofs */
    double roof_is_int8; /* 1: of roof_gop_s */
} bench_run;

/* A pass of SplitFuse beside its parts, in seconds: a token of every sequence, a piece of a prompt, and both together. */
typedef struct bench_mixed {
    int piece; /* tokens; 0: it was not measured */
    double decode_s, piece_s, both_s;
} bench_mixed;

typedef struct bench {
    const tool_args *args;
    session s;
    int batches[BENCH_MAX_BATCHES], n_batches;
    int n_prompt, n_decode;
    bench_run results[BENCH_MAX_BATCHES]; /* medians */
    bench_mixed mixed[BENCH_MAX_BATCHES];
    double weight_bytes;          /* read by a decode pass, */
    double expert_bytes;          /* of which those of experts, if all were read */
    int n_experts, n_used;        /* of a layer, of a token; 0: there are none */
    double ops_per_token;         /* two for each weight that a token meets, but for those of the output matrix */
    bool dots_are_int8;
    bool beside_roofs;            /* the runs of the smallest batch */
    uint64_t random;
    int done, total;     /* runs, for the progress bar */
    split_model split;   /* of the device and the CPU together */
} bench;

static uint64_t bench_random(uint64_t *state) {
    *state = *state * 6364136223846793005ull + 1442695040888963407ull;
    return *state >> 33;
}

static int parse_batches(bench *b) {
    const char *text = b->args->batches;
    while (*text) {
        char *end;
        long value = strtol(text, &end, 10);
        if (end == text || (*end && *end != ',') || value < 1 || value > 65536)
            return usage_error(b->args, "-b: '%s' is not a list of batch sizes", b->args->batches);
        if (b->n_batches == BENCH_MAX_BATCHES) return usage_error(b->args, "-b: too many batch sizes");
        b->batches[b->n_batches++] = (int)value;
        text = *end ? end + 1 : end;
    }
    return b->n_batches ? 0 : usage_error(b->args, "-b: no batch sizes");
}

/* All weights but the table of embeddings, of which a pass reads single rows, unless it is the output matrix too. */
static double bytes_per_pass(const fg_model *model) {
    double bytes = 0.0, embeddings = 0.0;
    bool own_output = false;
    fg_tensor tensor;
    int i;
    for (i = 0; fg_model_tensor(model, i, &tensor) == FG_OK; i++) {
        bytes += (double)tensor.bytes;
        if (strcmp(tensor.name, "token_embd.weight") == 0) embeddings = (double)tensor.bytes;
        if (strcmp(tensor.name, "output.weight") == 0) own_output = true;
    }
    return own_output ? bytes - embeddings : bytes;
}

/* The same as the engine keeps them, where it packs all: BF16 may take less than in the file, and floats that BF16 can hold. */
static double packed_bytes_per_pass(const bench *b) {
    fg_memory memory;
    fg_engine_get_memory(b->s.engine, &memory);
    return (double)memory.weights > 0.3 * b->weight_bytes ? fmin((double)memory.weights, b->weight_bytes) : b->weight_bytes;
}

/* Of each layer's experts a pass reads those that its tokens take: of one token all that it takes, of more as many as if they chose at random. */
static double pass_bytes(const bench *b, int batch) {
    if (!b->n_experts) return b->weight_bytes;
    return b->weight_bytes - b->expert_bytes * pow(1.0 - (double)b->n_used / b->n_experts, batch);
}

/* Products of a prompt's token: its weights but the tables of embeddings and outputs. Attention comes on top. */
static void count_products(bench *b) {
    fg_model_info info;
    fg_tensor tensor;
    int i;
    fg_model_get_info(b->s.model, &info);
    b->n_experts = info.n_experts;
    b->n_used = info.n_experts_used;
    b->dots_are_int8 = true;
    for (i = 0; fg_model_tensor(b->s.model, i, &tensor) == FG_OK; i++) {
        if (strncmp(tensor.name, "blk.", 4) != 0 || tensor.n_dims < 2) continue;
        if (strstr(tensor.name, ".ffn_gate_inp.") || strstr(tensor.name, ".bias")) continue; /* floats, and few */
        b->ops_per_token += 2.0 * (double)tensor.dims[0] * (double)tensor.dims[1] * (tensor.n_dims > 2 ? b->n_used : 1);
        if (tensor.n_dims > 2) b->expert_bytes += (double)tensor.bytes;
        if (tensor.type == FG_TYPE_F32 || tensor.type == FG_TYPE_F16 || tensor.type == FG_TYPE_BF16)
            b->dots_are_int8 = false;
    }
}

/* Tokens that early sequences write while the prompts of later ones are still being read. */
static int bench_slack(const bench *b, int batch, int budget) {
    double passes = (double)batch * b->n_prompt / (budget > batch ? budget - batch : 1);
    return 16 + batch + (int)(passes * 1.25);
}

/* A prompt of random tokens: no two sequences share a prefix, and none ends by itself. */
static fg_result bench_submit(bench *b, int n_vocab, fg_request *request) {
    int32_t *tokens = (int32_t *)xrealloc(NULL, (size_t)b->n_prompt * sizeof(int32_t));
    fg_request_desc desc;
    fg_result result;
    int i;
    for (i = 0; i < b->n_prompt; i++) tokens[i] = (int32_t)(bench_random(&b->random) % (uint64_t)n_vocab);
    memset(&desc, 0, sizeof(desc));
    desc.tokens = tokens;
    desc.n_tokens = (size_t)b->n_prompt;
    desc.ignore_eos = true;
    desc.sampling.temperature = (float)b->args->bench_temperature;
    desc.sampling.seed = b->random;
    result = fg_submit(b->s.engine, &desc, request);
    free(tokens);
    return result;
}

static fg_result bench_submit_all(bench *b, int batch, fg_request *requests) {
    fg_model_info info;
    fg_result result = FG_OK;
    int i;
    fg_model_get_info(b->s.model, &info);
    for (i = 0; i < batch && result == FG_OK; i++) result = bench_submit(b, info.n_vocab, &requests[i]);
    return result;
}

static void bench_take_events(bench *b) {
    fg_event event;
    while (fg_next_event(b->s.engine, &event)) {}
}

/* Cancels what still runs and steps until the engine is idle. */
static fg_result bench_drain(bench *b, const fg_request *requests, int batch) {
    bool busy = true;
    fg_result result = FG_OK;
    int i;
    for (i = 0; i < batch; i++) fg_cancel(b->s.engine, requests[i]);
    while (busy && result == FG_OK) {
        result = fg_step(b->s.engine, 0.0, &busy);
        bench_take_events(b);
    }
    return result;
}

/* Seconds of decoding from one measurement of the roofs to the next. What a measurement leaves, cold caches and a slower clock, costs passes of a
   small model a tenth for some milliseconds. */
#define ROOF_SECONDS 0.25

/* What passes of a run carried, and their seconds. */
typedef struct bench_sums {
    double prompt_tokens, prompt_seconds, decoded, decode_seconds, bytes, idle;
    double s_per_byte;           /* of reading memory, added up */
    int passes, gaps;            /* gaps between passes, but for those in which the roofs were measured */
    int roofs, reads;            /* times that the roofs were asked for; that reading was known */
} bench_sums;

/* What the machine gives right now, which changes by the second where others share it; nothing where the backend cannot say. */
static void bench_roofs(const bench *b, bench_sums *m, bench_run *run) {
    fg_roofs roofs;
    double products;
    m->roofs++;
    if (fg_measure_roofs(b->s.engine, &roofs) != FG_OK) return;
    run->roof_is_int8 = b->dots_are_int8 && roofs.int8_ops_per_s > 0.0;
    products = (run->roof_is_int8 > 0.0 ? roofs.int8_ops_per_s : roofs.float_ops_per_s) / 1e9;
    if (products > run->roof_gop_s) run->roof_gop_s = products;
    if (roofs.read_bytes_per_s > 0.0) m->s_per_byte += 1.0 / roofs.read_bytes_per_s, m->reads++;
}

static void bench_rates(const bench *b, const bench_sums *m, bench_run *run) {
    run->pp_tok_s = m->prompt_seconds > 0.0 ? m->prompt_tokens / m->prompt_seconds : 0.0;
    run->tok_s = m->decode_seconds > 0.0 ? m->decoded / m->decode_seconds : 0.0;
    run->idle_us = m->gaps ? 1e6 * m->idle / m->gaps : 0.0;
    run->idle_share = m->decode_seconds > 0.0 ? run->idle_us * 1e-6 * m->passes / m->decode_seconds : 0.0;
    run->read_gb_s = m->decode_seconds > 0.0 ? m->bytes / m->decode_seconds / 1e9 : 0.0;
    run->roof_gb_s = m->reads ? m->reads / m->s_per_byte / 1e9 : 0.0;
    run->read_share = run->roof_gb_s > 0.0 ? run->read_gb_s / run->roof_gb_s : 0.0;
    run->computed_share = run->roof_gop_s > 0.0 ? run->pp_tok_s * b->ops_per_token / 1e9 / run->roof_gop_s : 0.0;
}

/* Steps until `n_decode` passes carried nothing but one token of every sequence (or, with two in flight, of half of them): these
   are the decode rate. */
static fg_result bench_measure(bench *b, int batch, int n_decode, bench_run *run) {
    bench_sums m;
    fg_stats stats, before;
    fg_engine_desc desc;
    bool busy = true, alone; /* nothing is under way between two steps */
    fg_result result = FG_OK;
    memset(&m, 0, sizeof(m));
    fg_get_stats(b->s.engine, &before);
    fg_engine_get_desc(b->s.engine, &desc);
    alone = desc.async == FG_ASYNC_OFF;
    while (result == FG_OK && busy && m.passes < n_decode && !interrupted) {
        bool roofs = b->beside_roofs && (!m.roofs || (alone && m.decode_seconds >= m.roofs * ROOF_SECONDS));
        double start, seconds;
        if (roofs) bench_roofs(b, &m, run);
        start = now_seconds();
        result = fg_step(b->s.engine, 0.0, &busy);
        seconds = now_seconds() - start;
        bench_take_events(b);
        fg_get_stats(b->s.engine, &stats);
        if (stats.pass_prompt_tokens > 0) {
            m.prompt_tokens += stats.pass_prompt_tokens;
            m.prompt_seconds += seconds;
        } else if (stats.pass_decode_tokens >= (desc.async == FG_ASYNC_2 ? batch / 2 : batch)) {
            m.bytes += pass_bytes(b, batch) + (double)(stats.kv_bytes_read - before.kv_bytes_read);
            m.decode_seconds += seconds;
            if (!roofs) m.idle += stats.idle_seconds - before.idle_seconds, m.gaps++;
            m.decoded += stats.pass_decode_tokens;
            m.passes++;
        }
        before = stats;
    }
    bench_rates(b, &m, run);
    return result;
}

static fg_result bench_once(bench *b, int batch, int n_decode, bench_run *run) {
    fg_request *requests = (fg_request *)xrealloc(NULL, (size_t)batch * sizeof(fg_request));
    fg_result result, drained;
    memset(requests, 0, (size_t)batch * sizeof(fg_request));
    fg_reset_stats(b->s.engine);
    result = bench_submit_all(b, batch, requests);
    if (result == FG_OK) result = bench_measure(b, batch, n_decode, run);
    drained = result == FG_OK ? bench_drain(b, requests, batch) : FG_OK;
    free(requests);
    return result == FG_OK ? drained : result;
}

static int compare_doubles(const void *x, const void *y) {
    double a = *(const double *)x, b = *(const double *)y;
    return (a > b) - (a < b);
}

static double median(double *values, int n) {
    qsort(values, (size_t)n, sizeof(double), compare_doubles);
    return n % 2 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2.0;
}

static void bench_progress(bench *b, int batch) {
    char what[64];
    snprintf(what, sizeof(what), batch ? "batch of %d" : "warming up", batch);
    if (!b->args->quiet) show_progress((double)b->done++ / b->total, what);
}

/* The prompt rate and the bandwidth are those of the smallest batch. */
static const bench_run *smallest_batch(const bench *b) {
    int i, best = 0;
    for (i = 1; i < b->n_batches; i++)
        if (b->batches[i] < b->batches[best]) best = i;
    return &b->results[best];
}

/* Medians of the repetitions. A bench_run is a row of doubles. */
static void bench_medians(const bench_run *runs, int n, bench_run *out) {
    enum { FIELDS = sizeof(bench_run) / sizeof(double) };
    double *values = (double *)xrealloc(NULL, (size_t)n * sizeof(double));
    int i, field;
    for (field = 0; field < FIELDS; field++) {
        for (i = 0; i < n; i++) values[i] = ((const double *)(const void *)&runs[i])[field];
        ((double *)(void *)out)[field] = median(values, n);
    }
    free(values);
}

static fg_result bench_batch(bench *b, int index) {
    int i, n = b->args->repetitions;
    bench_run *runs = (bench_run *)xrealloc(NULL, (size_t)n * sizeof(bench_run));
    fg_result result = FG_OK;
    memset(runs, 0, (size_t)n * sizeof(bench_run));
    b->beside_roofs = &b->results[index] == smallest_batch(b);
    for (i = 0; i < n && result == FG_OK; i++) {
        bench_progress(b, b->batches[index]);
        result = bench_once(b, b->batches[index], b->n_decode, &runs[i]);
    }
    b->beside_roofs = false;
    if (result == FG_OK) bench_medians(runs, n, &b->results[index]);
    free(runs);
    return result;
}

static fg_result bench_all(bench *b) {
    bench_run ignored;
    fg_result result;
    int i;
    b->total = 1 + b->n_batches * b->args->repetitions;
    bench_progress(b, 0);
    result = bench_once(b, 1, 4, &ignored);
    for (i = 0; i < b->n_batches && result == FG_OK; i++) result = bench_batch(b, i);
    clear_progress();
    return result;
}

/* ---- --mixed: a pass of decodes and a piece of a prompt beside the two alone */

enum { MIXED_TIMES = 5 };

/* One pass; its seconds, and what it carried. */
static fg_result mixed_step(bench *b, fg_stats *stats, double *seconds) {
    double start = now_seconds();
    bool busy;
    fg_result result = fg_step(b->s.engine, 0.0, &busy);
    *seconds = now_seconds() - start;
    bench_take_events(b);
    fg_get_stats(b->s.engine, stats);
    return result;
}

/* Steps until a pass carries a token of each of `batch` sequences and nothing else: its seconds; 0 where none did. */
static fg_result mixed_decode(bench *b, int batch, double *seconds) {
    fg_stats stats;
    fg_result result = FG_OK;
    int i;
    for (i = 0; i < 10000 && result == FG_OK; i++) {
        result = mixed_step(b, &stats, seconds);
        if (stats.pass_prompt_tokens == 0 && stats.pass_decode_tokens == batch) return result;
    }
    *seconds = 0.0;
    return result;
}

/* A prompt of `piece` tokens as a whole, with `batch` decodes beside it or alone (0): the seconds of its pass; 0 where the pass was
   another one than that. */
static fg_result mixed_piece(bench *b, int batch, int piece, double *seconds) {
    int prompt = b->n_prompt;
    fg_request request;
    fg_stats stats;
    fg_result result;
    memset(&request, 0, sizeof(request));
    memset(&stats, 0, sizeof(stats));
    b->n_prompt = piece;
    result = bench_submit_all(b, 1, &request);
    b->n_prompt = prompt;
    if (result == FG_OK) result = mixed_step(b, &stats, seconds);
    if (stats.pass_prompt_tokens != piece || stats.pass_decode_tokens != batch) *seconds = 0.0;
    fg_cancel(b->s.engine, request);
    return result;
}

/* `batch` sequences decode; every other pass has a piece of a prompt beside them. */
static fg_result mixed_both(bench *b, int batch, bench_mixed *m) {
    fg_request *requests = (fg_request *)xrealloc(NULL, (size_t)batch * sizeof(fg_request));
    double decode[MIXED_TIMES], both[MIXED_TIMES], ignored;
    fg_result result;
    int i;
    memset(requests, 0, (size_t)batch * sizeof(fg_request));
    result = bench_submit_all(b, batch, requests);
    if (result == FG_OK) result = mixed_decode(b, batch, &ignored);
    for (i = 0; i < MIXED_TIMES && result == FG_OK; i++) {
        result = mixed_decode(b, batch, &decode[i]);
        if (result == FG_OK) result = mixed_piece(b, batch, m->piece, &both[i]);
        if (result == FG_OK) result = mixed_decode(b, batch, &ignored); /* the piece's own sequence is gone */
    }
    if (result == FG_OK) {
        m->decode_s = median(decode, MIXED_TIMES);
        m->both_s = median(both, MIXED_TIMES);
        result = bench_drain(b, requests, batch);
    }
    free(requests);
    return result;
}

static fg_result mixed_batch(bench *b, int batch, int budget, bench_mixed *m) {
    double alone[MIXED_TIMES];
    fg_result result;
    bool busy = true;
    int i;
    m->piece = budget - batch < b->n_prompt ? budget - batch : b->n_prompt;
    if (m->piece < 1) m->piece = 0;
    if (!m->piece) return FG_OK;
    result = mixed_both(b, batch, m);
    for (i = 0; i < MIXED_TIMES && result == FG_OK; i++) {
        result = mixed_piece(b, 0, m->piece, &alone[i]);
        for (busy = true; busy && result == FG_OK;) result = fg_step(b->s.engine, 0.0, &busy);
        bench_take_events(b);
    }
    if (result == FG_OK) m->piece_s = median(alone, MIXED_TIMES);
    if (!(m->decode_s > 0.0) || !(m->both_s > 0.0) || !(m->piece_s > 0.0)) m->piece = 0; /* the scheduler made other passes */
    return result;
}

static fg_result bench_mixed_all(bench *b) {
    fg_engine_desc desc;
    fg_result result = FG_OK;
    int i;
    fg_engine_get_desc(b->s.engine, &desc);
    for (i = 0; i < b->n_batches && result == FG_OK; i++) {
        if (!b->args->quiet) show_progress((double)i / b->n_batches, "mixed passes");
        result = mixed_batch(b, b->batches[i], desc.token_budget, &b->mixed[i]);
    }
    clear_progress();
    return result;
}

static void print_mixed(const bench *b) {
    int i;
    printf("\nbatch     decode pass     piece of a prompt     both in a pass     of the sum\n");
    for (i = 0; i < b->n_batches; i++) {
        const bench_mixed *m = &b->mixed[i];
        if (!m->piece) printf("%5d     the scheduler makes no such passes\n", b->batches[i]);
        else
            printf("%5d %12.2f ms %9d: %7.2f ms %15.2f ms %13.0f%%\n", b->batches[i], 1e3 * m->decode_s, m->piece, 1e3 * m->piece_s,
                   1e3 * m->both_s, 100.0 * m->both_s / (m->decode_s + m->piece_s));
    }
}

static void mixed_json(const bench *b, str *out) {
    int i, n = 0;
    str_puts(out, ", \"mixed\": [");
    for (i = 0; i < b->n_batches; i++) {
        const bench_mixed *m = &b->mixed[i];
        if (!m->piece) continue;
        str_printf(out, "%s{\"batch\": %d, \"piece\": %d, \"decode_ms\": %.3f, \"piece_ms\": %.3f, \"both_ms\": %.3f}", n++ ? ", " : "",
                   b->batches[i], m->piece, 1e3 * m->decode_s, 1e3 * m->piece_s, 1e3 * m->both_s);
    }
    str_puts(out, "]");
}

/* ---- --plot: tokens/s over tokens per pass, over batch and over context */

enum { PLOT_POINTS = 16, PLOT_CONTEXT_BATCH = 4 };

typedef struct bench_curve {
    double x[PLOT_POINTS], y[PLOT_POINTS];
    int n;
} bench_curve;

static int plot_longest_context(const bench *b) {
    fg_model_info info;
    fg_model_get_info(b->s.model, &info);
    return info.n_ctx_train > 0 && info.n_ctx_train < 4096 ? info.n_ctx_train : 4096;
}

/* The rate of one pass that carries a prompt of n tokens. */
static fg_result plot_pass(bench *b, int n, double *tok_s) {
    double values[5];
    int i, prompt = b->n_prompt;
    fg_result result = FG_OK;
    b->n_prompt = n;
    for (i = 0; i < 5 && result == FG_OK; i++) {
        fg_request request;
        bool busy;
        double start;
        result = bench_submit_all(b, 1, &request);
        start = now_seconds();
        if (result == FG_OK) result = fg_step(b->s.engine, 0.0, &busy);
        values[i] = n / (now_seconds() - start);
        if (result == FG_OK) result = bench_drain(b, &request, 1);
    }
    b->n_prompt = prompt;
    if (result == FG_OK) *tok_s = median(values, 5);
    return result;
}

static fg_result plot_passes(bench *b, int budget, int context, bench_curve *curve) {
    fg_result result = FG_OK;
    int n;
    for (n = 1; n <= budget && n < context && curve->n < PLOT_POINTS && result == FG_OK; n *= 2) {
        if (!b->args->quiet) show_progress((double)n / budget, "tokens per pass");
        result = plot_pass(b, n, &curve->y[curve->n]);
        curve->x[curve->n++] = n;
    }
    return result;
}

static fg_result plot_contexts(bench *b, int batch, bench_curve *curve) {
    int n, longest = plot_longest_context(b), prompt = b->n_prompt, n_decode = b->n_decode < 16 ? b->n_decode : 16;
    fg_result result = FG_OK;
    for (n = 64; n <= longest && result == FG_OK; n *= 2) {
        bench_run run;
        if (!b->args->quiet) show_progress((double)n / longest, "decoding over context");
        b->n_prompt = n < longest ? n : n - n_decode;
        result = bench_once(b, batch, n_decode, &run);
        curve->x[curve->n] = b->n_prompt;
        curve->y[curve->n++] = run.tok_s;
    }
    b->n_prompt = prompt;
    return result;
}

static fg_result plot_measure(bench *b, bench_curve *curves) {
    fg_engine_desc desc;
    fg_result result;
    int i;
    fg_engine_get_desc(b->s.engine, &desc);
    result = plot_passes(b, desc.token_budget, desc.max_context, &curves[0]);
    for (i = 0; i < b->n_batches && i < PLOT_POINTS; i++, curves[1].n++) {
        curves[1].x[i] = b->batches[i];
        curves[1].y[i] = b->results[i].tok_s;
    }
    if (result == FG_OK) result = plot_contexts(b, 1, &curves[2]);
    if (result == FG_OK) result = plot_contexts(b, PLOT_CONTEXT_BATCH, &curves[3]);
    clear_progress();
    return result;
}

static int bench_plot(bench *b) {
    static const char *const names[4] = {"prompt", "decode", "batch 1", "batch 4"};
    static const char *const labels[3] = {"tokens in the pass", "sequences in the batch", "tokens of context"};
    static const char *const titles[3] = {"Tokens per second by size of the pass", "Decoding by batch", "Decoding by context"};
    bench_curve *curves = (bench_curve *)xrealloc(NULL, 4 * sizeof(bench_curve));
    plot_line lines[4];
    plot_chart charts[3];
    int i, result = 0;
    memset(curves, 0, 4 * sizeof(bench_curve));
    if (plot_measure(b, curves) != FG_OK) result = failure("%s", fg_last_error());
    for (i = 0; i < 4; i++)
        lines[i].name = names[i], lines[i].x = curves[i].x, lines[i].y = curves[i].y, lines[i].n = curves[i].n;
    for (i = 0; i < 3; i++) {
        charts[i].title = titles[i], charts[i].x_label = labels[i], charts[i].y_label = "tokens/s";
        charts[i].lines = &lines[i], charts[i].n_lines = i == 2 ? 2 : 1, charts[i].log_x = true;
    }
    if (result == 0 && plot_write(b->args->plot, charts, 3) != 0)
        result = failure("%s: %s", b->args->plot, strerror(errno));
    free(curves);
    return result;
}

static void split_json(const split_model *m, str *out);

static void print_bench_json(const bench *b, const fg_engine_desc *desc, const fg_device_caps *caps) {
    const bench_run *first = smallest_batch(b);
    const char *name = base_name(b->args->model);
    str out = {NULL, 0, 0};
    int i;
    str_puts(&out, "{\"model\": ");
    str_json(&out, name, strlen(name));
    str_puts(&out, ", \"backend\": ");
    str_json(&out, desc->backends[0]->name, strlen(desc->backends[0]->name));
    str_puts(&out, ", \"device\": ");
    str_json(&out, caps->name, strlen(caps->name));
    str_printf(&out, ", \"threads\": %d, \"prompt\": %d, \"pp_tok_s\": %.2f, \"decode\": [", desc->n_threads,
               b->n_prompt, first->pp_tok_s);
    for (i = 0; i < b->n_batches; i++)
        str_printf(&out, "%s{\"batch\": %d, \"tok_s\": %.2f, \"idle_us\": %.1f, \"idle_share\": %.5f}", i ? ", " : "", b->batches[i],
                   b->results[i].tok_s, b->results[i].idle_us, b->results[i].idle_share);
    str_puts(&out, "]");
    if (b->args->mixed) mixed_json(b, &out);
    if (b->split.n_points) split_json(&b->split, &out);
    str_printf(&out, ", \"read_gb_s\": %.3f, \"roof_gb_s\": %.3f, \"read_share\": %.4f, \"compute_gop_s\": %.1f, \"roof_gop_s\": %.1f}\n",
               first->read_gb_s, first->roof_gb_s, first->read_share, first->pp_tok_s * b->ops_per_token / 1e9, first->roof_gop_s);
    fwrite(out.data, 1, out.length, stdout);
    str_free(&out);
}

static void print_bench_table(const bench *b, const fg_device_caps *caps) {
    const bench_run *first = smallest_batch(b);
    char size[32];
    int i;
    printf("model     %s, %s, %s\n", base_name(b->args->model), main_type(b->s.model),
           byte_text(b->weight_bytes, size, sizeof(size)));
    if (b->n_experts) printf("experts   %d of %d a token: a pass of one reads %s\n", b->n_used, b->n_experts, byte_text(pass_bytes(b, 1), size, sizeof(size)));
    printf("device    %s: %s\n", fg_engine_get_backend(b->s.engine), caps->name);
    printf("prompt    %d tokens: %.1f tokens/s\n\n", b->n_prompt, first->pp_tok_s);
    printf("batch     decode tokens/s     each sequence     idle between passes\n");
    for (i = 0; i < b->n_batches; i++)
        printf("%5d %19.1f %17.1f %13.0f us, %.2f%%\n", b->batches[i], b->results[i].tok_s, b->results[i].tok_s / b->batches[i],
               b->results[i].idle_us, 100.0 * b->results[i].idle_share);
    printf("\ncomputes  %.0f Gop/s of products with weights in prompts", first->pp_tok_s * b->ops_per_token / 1e9);
    if (first->roof_gop_s > 0.0)
        printf("; %s products give %.0f (%.0f%%)", first->roof_is_int8 > 0.0 ? "int8" : "float", first->roof_gop_s,
               100.0 * first->computed_share);
    printf("\nreads     %.2f GB/s of weights and KV cache", first->read_gb_s);
    if (first->roof_gb_s > 0.0)
        printf("; the memory gives %.2f GB/s (%.0f%%)", first->roof_gb_s, 100.0 * first->read_share);
    printf("\n");
}

/* The products of passes, from the rates of decoding without what attention took of them, and of prompts. */
static void split_points(split_model *m, const bench *b, const fg_engine_desc *desc) {
    int i, longest = desc->token_budget < b->n_prompt ? desc->token_budget : b->n_prompt;
    for (i = 0; i < b->n_batches; i++) {
        double n = b->batches[i], pass = b->results[i].tok_s > 0.0 ? n / b->results[i].tok_s : 0.0;
        double attention = n * (b->n_prompt + 0.5 * b->n_decode) * m->kv_bytes / m->device_kv;
        split_point(m, n, attention < 0.9 * pass ? pass - attention : 0.1 * pass);
    }
    if (smallest_batch(b)->pp_tok_s > 0.0 && longest > 0) split_point(m, longest, longest / smallest_batch(b)->pp_tok_s);
}

/* Where a device that is not the CPU computes all of the model. */
static void bench_split_model(bench *b, const fg_engine_desc *desc) {
    const fg_backend *backend = desc->backends[0];
    split_model *m = &b->split;
    split_rig device, cpu;
    fg_model_info info;
    fg_device_desc d;
    fg_device_caps caps;
    double layer;
    int context = 512;
    if (backend == fg_backend_cpu() || backend == fg_backend_null() || desc->kv_device || desc->experts_device || desc->gpu_layers) return;
    fg_model_get_info(b->s.model, &info);
    layer = 2.0 * (double)fg_type_bytes(desc->kv_type, (int64_t)info.n_kv_heads * info.head_dim);
    while (context < 8192 && SPLIT_SEQS * context * layer < 16e6) context *= 2;
    m->n_layers = info.n_layers;
    m->kv_bytes = info.n_layers * layer;
    m->down_bytes = 4.0 * (info.n_heads + 2.0 * info.n_kv_heads) * info.head_dim;
    m->up_bytes = 4.0 * info.n_heads * info.head_dim;
    memset(&d, 0, sizeof(d));
    d.n_threads = b->args->threads; /* those of the engine are the device's */
    memset(&device, 0, sizeof(device));
    if (split_rig_open(&cpu, fg_backend_cpu(), &d, &info, desc->kv_type, context)) {
        fg_backend_cpu()->caps(cpu.device, &caps);
        m->cpu_room = 0.5 * (double)caps.memory_bytes;
        d.device = b->args->device;
        if (split_rig_open(&device, backend, &d, &info, desc->kv_type, context) && split_measure_links(m, backend, device.device) &&
            split_measure_attention(m, &device, &cpu)) {
            backend->caps(device.device, &caps);
            m->room = 0.9 * (double)caps.memory_bytes - b->weight_bytes;
            split_points(m, b, desc);
        }
        split_rig_close(&device);
    }
    split_rig_close(&cpu);
}

static const double split_contexts[] = {512, 2048, 8192, 32768};

static void split_json(const split_model *m, str *out) {
    int i;
    str_printf(out, ", \"kv_device\": {\"device_gb_s\": %.2f, \"cpu_gb_s\": %.2f, \"at_once\": %.3f, \"down_gb_s\": %.2f, \"down_us\": %.1f, "
                    "\"up_gb_s\": %.2f, \"up_us\": %.1f, \"products\": [", m->device_kv / 1e9, m->cpu_kv / 1e9, m->at_once, m->down.bytes_per_s / 1e9,
               1e6 * m->down.seconds, m->up.bytes_per_s / 1e9, 1e6 * m->up.seconds);
    for (i = 0; i < m->n_points; i++) str_printf(out, "%s[%.0f, %.4f]", i ? ", " : "", m->tokens[i], 1e3 * m->pass_s[i]);
    str_puts(out, "], \"contexts\": [");
    for (i = 0; i < 4; i++) {
        double own, both, alone = split_alone(m, split_contexts[i], &own), together = split_together(m, split_contexts[i], &both);
        str_printf(out, "%s{\"context\": %.0f, \"device_seqs\": %.0f, \"device_tok_s\": %.2f, \"cpu_seqs\": %.0f, \"cpu_tok_s\": %.2f, \"pays\": %s}",
                   i ? ", " : "", split_contexts[i], own, alone, both, together, split_pays(m, split_contexts[i]) ? "true" : "false");
    }
    str_puts(out, "]}");
}

static void print_split_model(const split_model *m) {
    int i;
    printf("\nWhere the KV cache belongs, by what was measured: attention reads %.1f GB/s on the device and %.1f on the CPU, %.0f%% of it at once;\n"
           "copies to the host take %.0f us and %.1f GB/s, to the device %.0f us and %.1f GB/s\n",
           m->device_kv / 1e9, m->cpu_kv / 1e9, 100.0 * m->at_once, 1e6 * m->down.seconds, m->down.bytes_per_s / 1e9, 1e6 * m->up.seconds,
           m->up.bytes_per_s / 1e9);
    printf("context     all on the device: sequences, tokens/s     --kv-device cpu: sequences, tokens/s\n");
    for (i = 0; i < 4; i++) {
        double own, both, alone = split_alone(m, split_contexts[i], &own), together = split_together(m, split_contexts[i], &both);
        printf("%7.0f %26.0f %19.1f %26.0f %12.1f   %s\n", split_contexts[i], own, alone, both, together,
               split_pays(m, split_contexts[i]) ? "pays" : "does not pay");
    }
    if (m->at_once < 0.5) printf("The device and the CPU take turns: this is no second processor\n");
}

/* A pool that holds the largest batch to its end, and no prefix cache. */
static int bench_open(bench *b) {
    fg_engine_desc desc;
    int i, longest, pass, largest = 1, result = describe_engine(b->args, &desc);
    double packed;
    for (i = 0; i < b->n_batches; i++) largest = b->batches[i] > largest ? b->batches[i] : largest;
    if (result == 0) result = load_model(b->args, false, &b->s.model);
    if (result != 0) return result;
    if (!desc.token_budget && largest > 128) desc.token_budget = 2 * largest;
    desc.max_seqs = largest;
    desc.max_context = b->n_prompt + b->n_decode + bench_slack(b, largest, desc.token_budget ? desc.token_budget : 256);
    if (b->args->plot) {
        longest = plot_longest_context(b) + b->n_decode + 128;
        pass = desc.token_budget ? desc.token_budget : 512; /* which is the backends' own at most */
        if (pass > 1 << (PLOT_POINTS - 1)) pass = 1 << (PLOT_POINTS - 1);
        if (longest <= pass) longest = pass + 1;
        if (desc.max_context < longest) desc.max_context = longest;
        if (largest < PLOT_CONTEXT_BATCH) desc.max_seqs = largest = PLOT_CONTEXT_BATCH;
    }
    if (b->args->mixed) {
        largest = ++desc.max_seqs;
        desc.max_context += 16 * MIXED_TIMES;
    }
    if ((double)largest * (desc.max_context + 256) > 2e9) return usage_error(b->args, "-b %d is too large", largest);
    desc.kv_tokens = largest * (desc.max_context + 256); /* the last block of each may be nearly empty */
    desc.no_prefix_cache = true;
    b->weight_bytes = bytes_per_pass(b->s.model);
    count_products(b);
    result = create_engine(b->args, &desc, &b->s);
    packed = result == 0 ? packed_bytes_per_pass(b) : b->weight_bytes;
    b->expert_bytes *= packed / b->weight_bytes;
    b->weight_bytes = packed;
    return result;
}

static int cmd_bench(tool_args *args) {
    fg_engine_desc desc;
    fg_device_caps caps;
    bench b;
    int result;
    memset(&b, 0, sizeof(b));
    b.args = args;
    b.n_prompt = args->bench_prompt ? args->bench_prompt : 512;
    b.n_decode = args->n_predict < 0 ? 64 : args->n_predict;
    b.random = args->seed;
    result = parse_batches(&b);
    if (result == 0) result = bench_open(&b);
    catch_interrupts();
    if (result == 0 && bench_all(&b) != FG_OK) result = failure("%s", fg_last_error());
    if (result == 0 && args->mixed && !interrupted && bench_mixed_all(&b) != FG_OK)
        result = failure("%s", fg_last_error());
    if (result == 0 && interrupted) result = failure("interrupted");
    if (result == 0) {
        fg_engine_get_desc(b.s.engine, &desc);
        put_used_backend_first(b.s.engine, &desc);
        fg_engine_get_device(b.s.engine, &caps);
        bench_split_model(&b, &desc);
        if (args->json) print_bench_json(&b, &desc, &caps);
        else print_bench_table(&b, &caps);
        if (!args->json && args->mixed) print_mixed(&b);
        if (!args->json && b.split.n_points) print_split_model(&b.split);
        if (args->plot) result = bench_plot(&b);
    }
    return session_close(&b.s, result);
}
