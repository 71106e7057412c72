/* fastgen bench sim: the scheduler's policies on FastGen's workloads (DeepSpeed-FastGen, arXiv 2401.08671), in simulated time:
   the null backend with the cost of a 7B model in half precision on a data-centre GPU. A closed loop of clients; a request
   passes when its first token comes within prompt/512 s, and an exponential average (span 16) of every later gap between its
   tokens stays under 1/2, 1/4 or 1/6 s. */

enum { SIM_POLICIES = 4, SIM_LOADS = 8, SIM_WORKLOADS = 4, SIM_RATES = 3, SIM_RUNS = SIM_POLICIES * SIM_LOADS * SIM_WORKLOADS };

/* The device: 13.5 GB of weights and 0.5 MB of KV cache per token, read at 80% of 2 TB/s; 13.4 GFLOP a token at 55% of 312
   TFLOP/s; and 2 ms of work around each pass. */
static const double sim_weights = 13.5e9 / 1.6e12, sim_token = 13.4e9 / 172e12, sim_kv = 0.524e6 / 1.6e12, sim_host = 2e-3;

static const char *const sim_names[SIM_POLICIES] = {"splitfuse", "prefill_first", "orca", "static"};
static const int sim_clients[SIM_LOADS] = {1, 2, 4, 8, 12, 16, 24, 32};
static const struct { int prompt, output; } sim_workloads[SIM_WORKLOADS] = {{1200, 60}, {1200, 128}, {2600, 60}, {2600, 128}};
static const double sim_rates[SIM_RATES] = {2.0, 4.0, 6.0}; /* tokens per second */

typedef struct sim_client {
    bool busy;
    int n_prompt;
    double arrival, last, average; /* average: of gaps; below 0: none yet */
    double worst;                  /* largest average */
    bool in_time;                  /* the first token was */
} sim_client;

/* One policy, workload and number of clients. */
typedef struct sim_result {
    double throughput, latency;    /* requests/s, mean seconds */
    double p95_gap;
    double effective[SIM_RATES];   /* requests that passed, per second */
} sim_result;

typedef struct sim {
    const tool_args *args;
    session s;
    fg_engine_desc desc;
    fg_null_options device;
    double clock;
    uint64_t random;
    sim_client clients[32];
    int n_clients, n_sent, n_wanted, n_ended, n_passed[SIM_RATES], prompt, output;
    double latency_sum;
    sim_result results[SIM_WORKLOADS][SIM_POLICIES][SIM_LOADS];
    int done;
} sim;

static double sim_clock(void *user) { return *(double *)user; }

/* A normal deviate of mean 1 and deviation 0.3, cut to 0.2 to 2 (Box and Muller). */
static double sim_spread(sim *m) {
    double u = ((double)bench_random(&m->random) + 1.0) / 2147483649.0, v = (double)bench_random(&m->random) / 2147483648.0;
    double x = 1.0 + 0.3 * sqrt(-2.0 * log(u)) * cos(6.283185307179586 * v);
    return x < 0.2 ? 0.2 : x > 2.0 ? 2.0 : x;
}

static fg_result sim_send(sim *m, sim_client *c, int n_vocab) {
    static int32_t tokens[8192];
    fg_request_desc desc;
    fg_request request;
    int i;
    memset(&desc, 0, sizeof(desc));
    memset(c, 0, sizeof(*c));
    c->busy = true;
    c->n_prompt = (int)(m->prompt * sim_spread(m));
    c->arrival = m->clock;
    c->average = -1.0;
    for (i = 0; i < c->n_prompt; i++) tokens[i] = (int32_t)(bench_random(&m->random) % (uint64_t)n_vocab);
    desc.tokens = tokens;
    desc.n_tokens = (size_t)c->n_prompt;
    desc.max_tokens = (int)(m->output * sim_spread(m)) + 2;
    desc.ignore_eos = true;
    desc.user = c;
    m->n_sent++;
    return fg_submit(m->s.engine, &desc, &request);
}

static void sim_token_event(sim_client *c, double now) {
    if (c->last == 0.0) {
        c->in_time = now - c->arrival <= c->n_prompt / 512.0;
    } else {
        double gap = now - c->last;
        c->average = c->average < 0.0 ? gap : c->average + (gap - c->average) * 2.0 / 17.0;
        if (c->average > c->worst) c->worst = c->average;
    }
    c->last = now;
}

static void sim_take_events(sim *m) {
    fg_event event;
    int i;
    while (fg_next_event(m->s.engine, &event)) {
        sim_client *c = (sim_client *)event.user;
        if (event.type == FG_EVENT_TOKEN) sim_token_event(c, event.time);
        if (event.type != FG_EVENT_END) continue;
        for (i = 0; i < SIM_RATES; i++) m->n_passed[i] += c->in_time && c->worst <= 1.0 / sim_rates[i];
        m->latency_sum += event.times.finish - event.times.arrival;
        m->n_ended++;
        c->busy = false;
    }
}

static fg_result sim_loop(sim *m) {
    fg_model_info info;
    fg_result result = FG_OK;
    int i;
    fg_model_get_info(m->s.model, &info);
    while (result == FG_OK && m->n_ended < m->n_wanted && !interrupted) {
        for (i = 0; i < m->n_clients && result == FG_OK && m->n_sent < m->n_wanted; i++)
            if (!m->clients[i].busy) result = sim_send(m, &m->clients[i], info.n_vocab);
        if (result == FG_OK) result = fg_step(m->s.engine, 0.0, NULL);
        sim_take_events(m);
    }
    return result;
}

/* One run in an engine of its own. Budgets: what splitfuse fills the device with; for whole prompts a context's length. */
static fg_result sim_run(sim *m, int policy, int clients, sim_result *r) {
    fg_histograms h;
    fg_result result;
    int i;
    m->clock = 0.0;
    m->random = 1 + m->args->seed; /* the same requests for every policy */
    m->desc.policy = (fg_policy)policy;
    m->desc.token_budget = m->args->token_budget ? m->args->token_budget : policy == FG_POLICY_SPLITFUSE ? 512 : 4096;
    memset(m->clients, 0, sizeof(m->clients));
    memset(m->n_passed, 0, sizeof(m->n_passed));
    m->n_clients = clients;
    m->n_wanted = m->args->requests ? m->args->requests : 200;
    m->n_sent = m->n_ended = 0;
    m->latency_sum = 0.0;
    result = fg_engine_create(&m->desc, &m->s.engine);
    if (result == FG_OK) result = sim_loop(m);
    if (result == FG_OK && m->n_ended > 0) {
        fg_get_histograms(m->s.engine, &h);
        r->throughput = m->n_ended / m->clock;
        r->latency = m->latency_sum / m->n_ended;
        r->p95_gap = fg_histogram_quantile(&h.token_gap, 0.95);
        for (i = 0; i < SIM_RATES; i++) r->effective[i] = m->n_passed[i] / m->clock;
    }
    fg_engine_free(m->s.engine);
    m->s.engine = NULL;
    return result;
}

static fg_result sim_all(sim *m) {
    fg_result result = FG_OK;
    char what[64];
    int w, p, c;
    for (w = 0; w < SIM_WORKLOADS; w++)
        for (p = 0; p < SIM_POLICIES; p++)
            for (c = 0; c < SIM_LOADS && result == FG_OK && !interrupted; c++) {
                snprintf(what, sizeof(what), "%s, %d clients", sim_names[p], sim_clients[c]);
                if (!m->args->quiet) show_progress((double)m->done++ / SIM_RUNS, what);
                m->prompt = sim_workloads[w].prompt;
                m->output = sim_workloads[w].output;
                result = sim_run(m, p, sim_clients[c], &m->results[w][p][c]);
            }
    clear_progress();
    return result;
}

/* ---- what came of it ---- */

/* The most requests that pass per second, over all numbers of clients. */
static double sim_best(const sim *m, int workload, int policy, int rate) {
    double best = 0.0;
    int c;
    for (c = 0; c < SIM_LOADS; c++)
        if (m->results[workload][policy][c].effective[rate] > best)
            best = m->results[workload][policy][c].effective[rate];
    return best;
}

static void sim_print_table(const sim *m) {
    int w, p, r;
    printf("requests per second that meet first token <= prompt/512 s and every gap (average, span 16) <= 1/rate, at the\n"
           "best number of clients\n\n");
    printf("prompt  output  tokens/s     splitfuse  prefill_first    orca  static     splitfuse / prefill_first\n");
    for (w = 0; w < SIM_WORKLOADS; w++)
        for (r = 0; r < SIM_RATES; r++) {
            double best = sim_best(m, w, 0, r), other = sim_best(m, w, 1, r);
            printf("%6d  %6d  %8.0f     ", sim_workloads[w].prompt, sim_workloads[w].output, sim_rates[r]);
            for (p = 0; p < SIM_POLICIES; p++)
                printf(p == 1 ? "%15.2f" : p == 0 ? "%9.2f" : "%8.2f", sim_best(m, w, p, r));
            if (other > 0.0) printf("%20.2fx\n", best / other);
            else printf("%21s\n", best > 0.0 ? "only splitfuse" : "-");
        }
}

/* The largest ratios to prefill_first: of requests that pass at the same number of clients, and of the 95th percentile
   gap where splitfuse's throughput is at least as high. */
static void sim_print_ratios(const sim *m) {
    double effective = 0.0, throughput = 0.0, gap = 0.0;
    int w, c, r, ew = 0, er = 0, gw = 0, gc = 0, tw = 0, tc = 0;
    for (w = 0; w < SIM_WORKLOADS; w++)
        for (c = 0; c < SIM_LOADS; c++) {
            const sim_result *x = &m->results[w][0][c], *y = &m->results[w][1][c];
            if (x->p95_gap > 0.0 && y->p95_gap / x->p95_gap > gap) gap = y->p95_gap / x->p95_gap, gw = w, gc = c;
            if (y->throughput > 0.0 && x->throughput / y->throughput > throughput)
                throughput = x->throughput / y->throughput, tw = w, tc = c;
        }
    for (w = 0; w < SIM_WORKLOADS; w++)
        for (r = 0; r < SIM_RATES; r++) {
            double y = sim_best(m, w, 1, r);
            if (y > 0.0 && sim_best(m, w, 0, r) / y > effective) effective = sim_best(m, w, 0, r) / y, ew = w, er = r;
        }
    printf("\nsplitfuse against prefill_first (the policy of vLLM when FastGen was published):\n");
    printf("  effective throughput    up to %.2fx (prompts %d, outputs %d, %.0f tokens/s); published: 2.3x\n", effective,
           sim_workloads[ew].prompt, sim_workloads[ew].output, sim_rates[er]);
    printf("  95%% of token gaps       up to %.2fx shorter (prompts %d, outputs %d, %d clients); published: 3.7x\n", gap,
           sim_workloads[gw].prompt, sim_workloads[gw].output, sim_clients[gc]);
    printf("  throughput, raw         up to %.2fx (prompts %d, outputs %d, %d clients)\n", throughput, sim_workloads[tw].prompt,
           sim_workloads[tw].output, sim_clients[tc]);
    printf("All four run in one engine, on the same simulated kernels: what is seen is scheduling alone. The published figures\n"
           "compare two systems, and so hold their kernels' and host code's differences too.\n");
}

static void sim_print_json(const sim *m) {
    int w, p, c, r;
    printf("[");
    for (w = 0; w < SIM_WORKLOADS; w++)
        for (p = 0; p < SIM_POLICIES; p++)
            for (c = 0; c < SIM_LOADS; c++) {
                const sim_result *x = &m->results[w][p][c];
                printf("%s{\"prompt\": %d, \"output\": %d, \"policy\": \"%s\", \"clients\": %d, \"requests_s\": %.4f, \"latency_s\": %.4f, "
                       "\"p95_gap_s\": %.5f, \"effective_s\": [", w + p + c ? ",\n" : "\n", sim_workloads[w].prompt, sim_workloads[w].output,
                       sim_names[p], sim_clients[c], x->throughput, x->latency, x->p95_gap);
                for (r = 0; r < SIM_RATES; r++) printf("%s%.4f", r ? ", " : "", x->effective[r]);
                printf("]}");
            }
    printf("\n]\n");
}

/* For each workload latency over throughput, and requests that pass (4 tokens/s) over clients. */
static int sim_plot(const sim *m) {
    static double x[SIM_WORKLOADS][SIM_POLICIES][3][SIM_LOADS];
    static char titles[2 * SIM_WORKLOADS][96];
    plot_line lines[2 * SIM_WORKLOADS][SIM_POLICIES];
    plot_chart charts[2 * SIM_WORKLOADS];
    double clients[SIM_LOADS];
    int w, p, c, k;
    memset(charts, 0, sizeof(charts));
    for (c = 0; c < SIM_LOADS; c++) clients[c] = sim_clients[c];
    for (w = 0; w < SIM_WORKLOADS; w++) {
        for (p = 0; p < SIM_POLICIES; p++) {
            for (c = 0; c < SIM_LOADS; c++) {
                x[w][p][0][c] = m->results[w][p][c].throughput;
                x[w][p][1][c] = m->results[w][p][c].latency;
                x[w][p][2][c] = m->results[w][p][c].effective[1];
            }
            for (k = 0; k < 2; k++) {
                lines[2 * w + k][p].name = sim_names[p];
                lines[2 * w + k][p].x = k ? clients : x[w][p][0];
                lines[2 * w + k][p].y = k ? x[w][p][2] : x[w][p][1];
                lines[2 * w + k][p].n = SIM_LOADS;
            }
        }
        for (k = 0; k < 2; k++) {
            plot_chart *chart = &charts[2 * w + k];
            snprintf(titles[2 * w + k], sizeof(titles[0]), k ? "prompts %d, outputs %d: requests that pass at 4 tokens/s" : "prompts %d, outputs %d",
                     sim_workloads[w].prompt, sim_workloads[w].output);
            chart->title = titles[2 * w + k];
            chart->x_label = k ? "clients" : "requests/s";
            chart->y_label = k ? "requests/s that pass" : "mean latency, s";
            chart->lines = lines[2 * w + k];
            chart->n_lines = SIM_POLICIES;
        }
    }
    return plot_write(m->args->plot, charts, 2 * SIM_WORKLOADS) == 0 ? 0 : failure("%s: %s", m->args->plot, strerror(errno));
}

static void sim_device(sim *m) {
    m->device.base = sim_weights;
    m->device.per_token = sim_token;
    m->device.per_kv_token = sim_kv;
    m->device.overhead = sim_host;
    m->device.roofline = true;
    m->device.clock = &m->clock;
    m->desc.backends[0] = fg_backend_null();
    m->desc.backend_options = &m->device;
    m->desc.clock = sim_clock;
    m->desc.clock_user = &m->clock;
    m->desc.max_context = 8192;
    m->desc.max_seqs = 32;
    m->desc.kv_tokens = 110000; /* of 0.5 MB, beside the weights in 80 GB */
    m->desc.no_prefix_cache = true;
}

static int cmd_sim(tool_args *args) {
    static sim m;
    bool given = args->model != NULL;
    int result;
    if (!given) args->model = "examples/demo-model/demo.gguf";
    m.args = args;
    result = describe_engine(args, &m.desc);
    if (result != 0) return result;
    result = load_model(args, false, &m.s.model);
    if (result != 0) return given ? result : failure("bench sim needs a model's shape: give -m FILE");
    sim_device(&m);
    m.desc.model = m.s.model;
    m.desc.progress = NULL;
    catch_interrupts();
    if (sim_all(&m) != FG_OK) result = failure("%s", fg_last_error());
    else if (interrupted) result = failure("interrupted");
    if (result == 0 && args->plot) result = sim_plot(&m);
    if (result == 0 && args->json) sim_print_json(&m);
    if (result == 0 && !args->json) {
        sim_print_table(&m);
        sim_print_ratios(&m);
    }
    return session_close(&m.s, result);
}
