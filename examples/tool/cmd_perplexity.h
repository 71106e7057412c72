/* fastgen perplexity: how surprised the model is by a text, over windows of the context length. With --kl also how far
   the logits are from those of the same weights in 32-bit arithmetic: the Kullback-Leibler divergence, in nats a token. */

enum { PERPLEXITY_WINDOWS = 4 }; /* in flight: passes are full and memory stays small */

typedef struct divergence {
    fg_engine *reference; /* the scalar path: weights as floats, nothing rounded to 8 or 16 bits */
    float *rows;          /* [context + 1, n_vocab] what it says about the window at hand */
    int n_vocab, n_rows;
    double sum, largest;
    int n, n_same_best;
} divergence;

typedef struct perplexity {
    const tool_args *args;
    session s;
    const int32_t *ids;
    int n_ids, window;    /* window: tokens of the text in each, without the BOS */
    int32_t bos;          /* -1: none */
    int next, in_flight, n_done;
    int n_scored;
    double nll;           /* sum over the tokens scored */
    bool failed;
    divergence kl;
} perplexity;

static int best_of(const float *logits, int n) {
    int best = 0, i;
    for (i = 1; i < n; i++)
        if (logits[i] > logits[best]) best = i;
    return best;
}

static double log_sum_of(const float *logits, int n) {
    double largest = logits[best_of(logits, n)], sum = 0.0;
    int i;
    for (i = 0; i < n; i++) sum += exp(logits[i] - largest);
    return largest + log(sum);
}

/* fg_logits_fn of the reference: row `position` of the window. */
static void keep_row(void *user, int sample, int position, const int32_t *tokens, float *logits, int n_vocab) {
    divergence *kl = (divergence *)user;
    (void)sample;
    (void)tokens;
    if (position >= kl->n_rows || n_vocab != kl->n_vocab) return;
    memcpy(kl->rows + (size_t)position * (size_t)n_vocab, logits, (size_t)n_vocab * sizeof(float));
}

/* fg_logits_fn of the run that is judged: adds sum over the vocabulary of p (log p - log q), p the reference's. */
static void compare_row(void *user, int sample, int position, const int32_t *tokens, float *logits, int n_vocab) {
    divergence *kl = (divergence *)user;
    const float *right = kl->rows + (size_t)position * (size_t)n_vocab;
    double log_p, log_q, sum = 0.0;
    int i;
    (void)sample;
    (void)tokens;
    if (position >= kl->n_rows || n_vocab != kl->n_vocab) return;
    log_p = log_sum_of(right, n_vocab);
    log_q = log_sum_of(logits, n_vocab);
    for (i = 0; i < n_vocab; i++) {
        double p = right[i] - log_p, q = logits[i] - log_q;
        sum += exp(p) * (p - q);
    }
    kl->sum += sum;
    kl->largest = sum > kl->largest ? sum : kl->largest;
    kl->n++;
    kl->n_same_best += best_of(right, n_vocab) == best_of(logits, n_vocab);
}

/* The reference's logits of a window. */
static fg_result keep_window(perplexity *p, fg_request_desc desc) {
    desc.on_logits = keep_row;
    desc.on_logits_user = &p->kl;
    return fg_generate(p->kl.reference, &desc, NULL, NULL);
}

/* Submits the next window. Without a BOS its first token is not predicted by anything, and so not counted. */
static fg_result submit_window(perplexity *p) {
    int n = p->n_ids - p->next < p->window ? p->n_ids - p->next : p->window, has_bos = p->bos >= 0;
    int32_t *tokens = (int32_t *)xrealloc(NULL, (size_t)(n + 1) * sizeof(int32_t));
    fg_request_desc desc;
    fg_request request;
    fg_result result = FG_OK;
    memset(&desc, 0, sizeof(desc));
    tokens[0] = p->bos;
    memcpy(tokens + has_bos, p->ids + p->next, (size_t)n * sizeof(int32_t));
    desc.tokens = tokens;
    desc.n_tokens = (size_t)(n + has_bos);
    desc.max_tokens = -1;
    desc.prompt_logprobs = true;
    if (p->kl.rows) {
        result = keep_window(p, desc);
        desc.on_logits = compare_row;
        desc.on_logits_user = &p->kl;
    }
    if (result == FG_OK) result = fg_submit(p->s.engine, &desc, &request);
    free(tokens);
    p->next += n;
    p->in_flight++;
    return result;
}

static void take_score(perplexity *p, const fg_event *event) {
    if (event->type == FG_EVENT_PROMPT && event->position > 0) {
        p->nll -= event->logprob;
        p->n_scored++;
    }
    if (event->type == FG_EVENT_SAMPLE_END && event->finish == FG_FINISH_ERROR) p->failed = true;
    if (event->type == FG_EVENT_END) p->in_flight--;
}

static fg_result run_windows(perplexity *p) {
    int most = p->kl.rows ? 1 : PERPLEXITY_WINDOWS;
    fg_result result = FG_OK;
    while (result == FG_OK && !p->failed && (p->next < p->n_ids || p->in_flight > 0)) {
        fg_event event;
        while (result == FG_OK && p->in_flight < most && p->next < p->n_ids) result = submit_window(p);
        if (result == FG_OK) result = fg_step(p->s.engine, 0.0, NULL);
        while (fg_next_event(p->s.engine, &event)) take_score(p, &event);
        if (!p->args->quiet) {
            char what[64];
            snprintf(what, sizeof(what), "ppl %.4f", p->n_scored ? exp(p->nll / p->n_scored) : 0.0);
            show_progress((double)p->n_scored / p->n_ids, what);
        }
    }
    clear_progress();
    return result;
}

static int score_text(perplexity *p) {
    double nll;
    fg_result status = run_windows(p);
    if (status != FG_OK) return failure("%s", fg_last_error());
    if (p->failed || p->n_scored == 0) return failure("no token could be scored");
    nll = p->nll / p->n_scored;
    printf(p->args->json ? "{\"tokens\": %d, \"nll\": %.6f, \"ppl\": %.6f" : "tokens %d nll %.6f ppl %.6f", p->n_scored,
           nll, exp(nll));
    if (p->kl.n > 0)
        printf(p->args->json ? ", \"kl\": %.9f, \"kl_max\": %.9f, \"same_best\": %.6f" : " kl %.9f max %.9f same_best %.6f",
               p->kl.sum / p->kl.n, p->kl.largest, (double)p->kl.n_same_best / p->kl.n);
    printf(p->args->json ? "}\n" : "\n");
    return 0;
}

/* A second engine over the same model. */
static int open_reference(perplexity *p) {
    fg_engine_desc desc;
    fg_model_info info;
    int result = describe_engine(p->args, &desc);
    if (result != 0) return result;
    fg_model_get_info(p->s.model, &info);
    desc.backends[0] = fg_backend_cpu();
    desc.device = NULL;
    desc.cpu_path = "scalar";
    desc.kv_type = FG_TYPE_F32;
    desc.max_context = p->window + (p->bos >= 0);
    desc.max_seqs = 1;
    desc.no_prefix_cache = true;
    desc.model = p->s.model;
    if (fg_engine_create(&desc, &p->kl.reference) != FG_OK) return failure("%s", fg_last_error());
    clear_progress();
    p->kl.n_vocab = info.n_vocab;
    p->kl.n_rows = desc.max_context + 1;
    p->kl.rows = (float *)xrealloc(NULL, (size_t)p->kl.n_rows * (size_t)info.n_vocab * sizeof(float));
    return 0;
}

/* The context: -c, or the training length up to 2048; 512 with --kl, which keeps the logits of a window. */
static int open_for_windows(tool_args *args, perplexity *p) {
    fg_engine_desc desc;
    fg_model_info info;
    int result = describe_engine(args, &desc);
    if (result == 0) result = load_model(args, false, &p->s.model);
    if (result != 0) return result;
    fg_model_get_info(p->s.model, &info);
    desc.max_context = args->kl ? 512 : 2048;
    if (info.n_ctx_train < desc.max_context) desc.max_context = info.n_ctx_train;
    if (args->context) desc.max_context = args->context;
    if (desc.max_context < 2) return usage_error(args, "-c: a context of at least 2 tokens is needed");
    desc.max_seqs = PERPLEXITY_WINDOWS;
    desc.no_prefix_cache = true;
    p->bos = info.add_bos && !args->no_bos ? info.token_bos : -1;
    p->window = desc.max_context - (p->bos >= 0);
    return create_engine(p->args, &desc, &p->s);
}

static int cmd_perplexity(tool_args *args) {
    perplexity p;
    str text = {NULL, 0, 0};
    int32_t *ids = NULL;
    int result;
    memset(&p, 0, sizeof(p));
    p.args = args;
    if (!args->file) return usage_error(args, "no text: -f FILE is missing");
    if (!read_file(args->file, &text)) return failure("cannot read '%s'", args->file);
    result = open_for_windows(args, &p);
    if (result == 0 && args->kl) result = open_reference(&p);
    if (result == 0) {
        p.n_ids = tokenize_text(p.s.model, text.data, text.length, FG_NO_BOS | FG_NO_SPECIAL, &ids);
        p.ids = ids;
        result = p.n_ids < 0 ? 1 : p.n_ids == 0 ? failure("the text is empty") : score_text(&p);
    }
    free(ids);
    free(p.kl.rows);
    str_free(&text);
    fg_engine_free(p.kl.reference);
    return session_close(&p.s, result);
}
