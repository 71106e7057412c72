/* fastgen generate: all prompts as one batch, each continued on stdout in the order given. */

typedef struct reply {
    const char *prompt;
    str text;      /* the continuation */
    str details;   /* per token: JSON objects, or lines for people (--logprobs) */
    size_t printed;
    bool ended;
    fg_finish finish;
    int n_prompt, n_cached, n_generated, n_drafted, n_accepted;
    fg_times times;
} reply;

typedef struct generation {
    const tool_args *args;
    session s;
    reply *replies; /* [n]: samples of a prompt are neighbours */
    fg_request *requests; /* [n / samples] */
    int n, next;    /* next: the one that is being printed */
    int n_ended;
    double start, end;
} generation;

static void add_token_name(generation *g, int32_t token, str *to, bool json) {
    size_t length = 0;
    const char *text = fg_token_text(g->s.model, token, &length);
    if (!text) text = "?", length = 1;
    if (json) str_json(to, text, length);
    else {
        str_puts(to, "'");
        str_escape(to, text, length); /* on one line */
        str_puts(to, "'");
    }
}

static void add_json_details(generation *g, const fg_event *event, str *to) {
    int i;
    str_printf(to, "%s{\"token\": %d, \"text\": ", to->length ? ", " : "", (int)event->token);
    add_token_name(g, event->token, to, true);
    str_puts(to, ", \"logprob\": ");
    str_number(to, event->logprob, 6);
    str_puts(to, ", \"top\": [");
    for (i = 0; i < event->n_top; i++) {
        str_printf(to, "%s{\"token\": %d, \"text\": ", i ? ", " : "", (int)event->top[i].token);
        add_token_name(g, event->top[i].token, to, true);
        str_puts(to, ", \"logprob\": ");
        str_number(to, event->top[i].logprob, 6);
        str_puts(to, "}");
    }
    str_puts(to, "]}");
}

static void add_plain_details(generation *g, const fg_event *event, str *to) {
    int i;
    str_printf(to, "%9.4f ", event->logprob);
    add_token_name(g, event->token, to, false);
    for (i = 0; i < event->n_top; i++) {
        str_puts(to, i ? ", " : "   of ");
        add_token_name(g, event->top[i].token, to, false);
        str_printf(to, " %.4f", event->top[i].logprob);
    }
    str_puts(to, "\n");
}

static void take_event(generation *g, const fg_event *event) {
    reply *r = (reply *)event->user + event->sample;
    if (event->type == FG_EVENT_TOKEN || event->type == FG_EVENT_SAMPLE_END)
        str_add(&r->text, event->text, event->text_length);
    if (event->type == FG_EVENT_TOKEN && g->args->logprobs >= 0) {
        if (g->args->json) add_json_details(g, event, &r->details);
        else add_plain_details(g, event, &r->details);
    }
    if (event->type != FG_EVENT_SAMPLE_END) return;
    r->ended = true;
    r->finish = event->finish;
    r->n_prompt = event->n_prompt;
    r->n_cached = event->n_cached;
    r->n_generated = event->n_generated;
    r->n_drafted = event->n_drafted;
    r->n_accepted = event->n_accepted;
    r->times = event->times;
    g->n_ended++;
    if (event->finish == FG_FINISH_ERROR) failure("%s", fg_result_text(event->result));
}

/* The first text that has not ended streams; the others wait for their turn, so that blocks stay whole and in order. */
static void print_replies(generation *g) {
    bool spaced = is_terminal(stdout);
    while (g->next < g->n) {
        reply *r = &g->replies[g->next];
        if (r->printed == 0) fputs(r->prompt, stdout);
        if (r->text.length + 1 > r->printed) {
            size_t done = r->printed ? r->printed - 1 : 0; /* `printed` counts the prompt as one */
            fwrite(r->text.data + done, 1, r->text.length - done, stdout);
            r->printed = r->text.length + 1;
        }
        if (!r->ended) break;
        fputs("\n", stdout);
        if (spaced && g->next + 1 < g->n) fputs("\n", stdout);
        g->next++;
    }
    fflush(stdout);
}

static fg_result run_generation(generation *g) {
    fg_result result = FG_OK;
    g->start = now_seconds();
    while (g->n_ended < g->n && result == FG_OK && !interrupted) {
        fg_event event;
        bool busy = false;
        result = fg_step(g->s.engine, 0.0, &busy);
        while (fg_next_event(g->s.engine, &event)) take_event(g, &event);
        if (!g->args->json) print_replies(g);
        if (!busy) break;
    }
    g->end = now_seconds();
    return result;
}

/* After Ctrl-C: what has been written is kept. 130, as shells call it. */
static int end_early(generation *g) {
    fg_event event;
    bool busy = true;
    int i;
    for (i = 0; i < g->n / g->args->samples; i++) fg_cancel(g->s.engine, g->requests[i]);
    while (g->n_ended < g->n && busy && fg_step(g->s.engine, 0.0, &busy) == FG_OK)
        while (fg_next_event(g->s.engine, &event)) take_event(g, &event);
    if (!g->args->json && g->next < g->n && g->replies[g->next].printed) fputs("\n", stdout);
    failure("interrupted");
    return 128 + interrupted;
}

/* Submits prompt number i for all its samples. */
static int submit_prompt(generation *g, const fg_request_desc *common, int i, const char *prompt) {
    fg_request_desc desc = *common;
    int k, samples = g->args->samples;
    for (k = 0; k < samples; k++) g->replies[i * samples + k].prompt = prompt;
    desc.prompt = prompt;
    desc.n = samples;
    desc.logprobs = g->args->logprobs >= 0;
    desc.top_logprobs = g->args->logprobs > 0 ? g->args->logprobs : 0;
    desc.user = &g->replies[i * samples];
    if (fg_submit(g->s.engine, &desc, &g->requests[i]) == FG_OK) return 0;
    return failure("prompt %d: %s", i + 1, fg_last_error());
}

static void add_reply_json(const reply *r, int sample, bool logprobs, str *to) {
    str_puts(to, "{\"prompt\": ");
    str_json(to, r->prompt, strlen(r->prompt));
    str_printf(to, ", \"sample\": %d, \"text\": ", sample);
    str_json(to, r->text.data ? r->text.data : "", r->text.length);
    str_printf(to, ", \"finish\": \"%s\", \"prompt_tokens\": %d, \"cached_tokens\": %d, \"generated_tokens\": %d",
               finish_name(r->finish), r->n_prompt, r->n_cached, r->n_generated);
    if (r->n_drafted) str_printf(to, ", \"drafted_tokens\": %d, \"accepted_tokens\": %d", r->n_drafted, r->n_accepted);
    str_puts(to, ", \"first_token_s\": ");
    str_number(to, r->n_generated > 0 ? r->times.first_token - r->times.arrival : NAN, 6);
    str_puts(to, ", \"total_s\": ");
    str_number(to, r->times.finish - r->times.arrival, 6);
    if (logprobs) str_printf(to, ", \"tokens\": [%s]", r->details.data ? r->details.data : "");
    str_puts(to, "}");
}

static void print_generation_json(generation *g, uint64_t seed) {
    str out = {NULL, 0, 0};
    int i;
    str_puts(&out, "{\"model\": ");
    str_json(&out, base_name(g->args->model), strlen(base_name(g->args->model)));
    str_printf(&out, ", \"seed\": %llu, \"results\": [", (unsigned long long)seed);
    for (i = 0; i < g->n; i++) {
        if (i) str_puts(&out, ", ");
        add_reply_json(&g->replies[i], i % g->args->samples, g->args->logprobs >= 0, &out);
    }
    str_puts(&out, "]}\n");
    fwrite(out.data, 1, out.length, stdout);
    str_free(&out);
}

/* On stderr: log-probabilities where asked for, and one line of numbers. */
static void print_generation_notes(generation *g, uint64_t seed) {
    double seconds = g->end - g->start, first = 0.0;
    int i, tokens = 0, drafted = 0, accepted = 0;
    for (i = 0; i < g->n; i++) {
        const reply *r = &g->replies[i];
        if (r->details.length && !g->args->json) fprintf(stderr, "%s%s", i ? "\n" : "", r->details.data);
        tokens += r->n_generated;
        drafted += r->n_drafted;
        accepted += r->n_accepted;
        if (r->times.first_token - r->times.arrival > first) first = r->times.first_token - r->times.arrival;
    }
    if (g->args->quiet) return;
    fprintf(stderr, "%d text%s, %d tokens in %.2f s (%.1f tokens/s), first token after %.0f ms at most", g->n,
            g->n == 1 ? "" : "s", tokens, seconds, seconds > 0.0 ? tokens / seconds : 0.0, first * 1e3);
    if (drafted) fprintf(stderr, ", %d of %d guesses right", accepted, drafted);
    if (g->args->temperature > 0.0) fprintf(stderr, ", seed %llu", (unsigned long long)seed);
    fprintf(stderr, "\n");
}

static int generate_all(generation *g, const text_list *prompts) {
    fg_request_desc desc;
    fg_result status = FG_OK;
    int i, result = describe_request(g->args, 128, &desc);
    for (i = 0; i < prompts->count && result == 0; i++) result = submit_prompt(g, &desc, i, prompts->items[i]);
    if (result == 0) {
        status = run_generation(g);
        if (status != FG_OK) result = failure("%s", fg_last_error());
        else if (interrupted) result = end_early(g);
        else if (g->n_ended < g->n) result = failure("the engine stopped before the end");
        if ((result == 0 || interrupted) && g->args->json) print_generation_json(g, desc.sampling.seed);
        if (result == 0) print_generation_notes(g, desc.sampling.seed);
    }
    for (i = 0; i < g->n && result == 0; i++) result = g->replies[i].finish == FG_FINISH_ERROR;
    free((void *)desc.sampling.logit_bias);
    return result;
}

/* Adds the prompt of a -f, without the line end that editors leave. */
static int add_file_prompt(tool_args *args, const char *path, str *file) {
    if (!read_file(path, file)) return failure("cannot read '%s'", path);
    if (strlen(file->data) != file->length) return failure("'%s' is not a text: it has a NUL byte", path);
    if (file->length && file->data[file->length - 1] == '\n') {
        file->data[--file->length] = 0;
        if (file->length && file->data[file->length - 1] == '\r') file->data[--file->length] = 0;
    }
    list_add(&args->prompts, file->data);
    return 0;
}

/* The prompts there are. */
static int generate_prompts(tool_args *args) {
    generation g;
    int i, result;
    memset(&g, 0, sizeof(g));
    if (args->prompts.count == 0) return usage_error(args, "no prompt: give -p TEXT or -f FILE");
    result = session_open(args, &g.s);
    if (result != 0) return result;
    g.args = args;
    g.requests = (fg_request *)xrealloc(NULL, (size_t)args->prompts.count * sizeof(fg_request));
    memset(g.requests, 0, (size_t)args->prompts.count * sizeof(fg_request));
    g.n = args->prompts.count * args->samples;
    g.replies = (reply *)xrealloc(NULL, (size_t)g.n * sizeof(reply));
    memset(g.replies, 0, (size_t)g.n * sizeof(reply));
    for (i = 0; i < g.n; i++) str_puts(&g.replies[i].text, "");
    catch_interrupts();
    result = generate_all(&g, &args->prompts);
    for (i = 0; i < g.n; i++) {
        str_free(&g.replies[i].text);
        str_free(&g.replies[i].details);
    }
    free(g.replies);
    free(g.requests);
    return session_close(&g.s, result);
}

static int cmd_generate(tool_args *args) {
    size_t bytes = (size_t)(args->files.count + 1) * sizeof(str);
    str *files = (str *)xrealloc(NULL, bytes);
    int i, result = 0;
    memset(files, 0, bytes);
    for (i = 0; i < args->files.count && result == 0; i++) result = add_file_prompt(args, args->files.items[i], &files[i]);
    if (result == 0) result = generate_prompts(args);
    for (i = 0; i < args->files.count; i++) str_free(&files[i]);
    free(files);
    return result;
}
