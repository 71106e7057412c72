/* fastgen perplexity: how surprised the model is by a text, over windows of the context length. */

enum { PERPLEXITY_WINDOWS = 4 }; /* in flight: passes are full and memory stays small */

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
} perplexity;

/* Submits the next window. Without a BOS its first token is not predicted by anything, and so not counted. */
static fg_result submit_window(perplexity *p) {
    int n = p->n_ids - p->next < p->window ? p->n_ids - p->next : p->window, has_bos = p->bos >= 0;
    int32_t *tokens = (int32_t *)xrealloc(NULL, (size_t)(n + 1) * sizeof(int32_t));
    fg_request_desc desc;
    fg_request request;
    fg_result result;
    memset(&desc, 0, sizeof(desc));
    tokens[0] = p->bos;
    memcpy(tokens + has_bos, p->ids + p->next, (size_t)n * sizeof(int32_t));
    desc.tokens = tokens;
    desc.n_tokens = (size_t)(n + has_bos);
    desc.max_tokens = -1;
    desc.prompt_logprobs = true;
    result = fg_submit(p->s.engine, &desc, &request);
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
    fg_result result = FG_OK;
    while (result == FG_OK && !p->failed && (p->next < p->n_ids || p->in_flight > 0)) {
        fg_event event;
        while (result == FG_OK && p->in_flight < PERPLEXITY_WINDOWS && p->next < p->n_ids) result = submit_window(p);
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
    printf(p->args->json ? "{\"tokens\": %d, \"nll\": %.6f, \"ppl\": %.6f}\n" : "tokens %d nll %.6f ppl %.6f\n",
           p->n_scored, nll, exp(nll));
    return 0;
}

/* The context: -c, or the training length up to 2048. */
static int open_for_windows(tool_args *args, perplexity *p) {
    fg_engine_desc desc;
    fg_model_info info;
    int result = describe_engine(args, &desc);
    if (result == 0) result = load_model(args, false, &p->s.model);
    if (result != 0) return result;
    fg_model_get_info(p->s.model, &info);
    desc.max_context = args->context ? args->context : info.n_ctx_train < 2048 ? info.n_ctx_train : 2048;
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
    if (result == 0) {
        p.n_ids = tokenize_text(p.s.model, text.data, text.length, FG_NO_BOS | FG_NO_SPECIAL, &ids);
        p.ids = ids;
        result = p.n_ids < 0 ? 1 : p.n_ids == 0 ? failure("the text is empty") : score_text(&p);
    }
    free(ids);
    str_free(&text);
    session_close(&p.s);
    return result;
}
