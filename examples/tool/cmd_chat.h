/* fastgen chat: a conversation, written with the model's own chat template. */

typedef struct turn {
    bool user;
    str text;
} turn;

typedef struct chat {
    const tool_args *args;
    session s;
    fg_request_desc desc; /* what all requests share */
    turn *turns;
    int n_turns, first;   /* turns before `first` were dropped, as the context is full */
    bool channels, header, thought; /* of an answer in messages, see is_mark: it is one; what comes is a header; a thought */
    str head;
} chat;

static void chat_add(chat *c, bool user, const char *text, size_t length) {
    c->turns = (turn *)xrealloc(c->turns, (size_t)(c->n_turns + 1) * sizeof(turn));
    memset(&c->turns[c->n_turns], 0, sizeof(turn));
    c->turns[c->n_turns].user = user;
    str_add(&c->turns[c->n_turns++].text, text, length);
}

static void chat_reset(chat *c) {
    while (c->n_turns > 0) str_free(&c->turns[--c->n_turns].text);
    c->first = 0;
}

/* The conversation as text for the model. */
static fg_result chat_prompt(const chat *c, str *prompt) {
    str json = {NULL, 0, 0};
    fg_result result;
    int i;
    if (c->args->system) add_message(&json, "system", c->args->system, strlen(c->args->system));
    for (i = c->first; i < c->n_turns; i++)
        add_message(&json, c->turns[i].user ? "user" : "assistant", c->turns[i].text.data, c->turns[i].text.length);
    result = format_chat(c->s.model, &json, prompt);
    str_free(&json);
    return result;
}

/* Whether a prompt leaves an answer room: all it may take, or a quarter of the context. */
static bool chat_has_room(const chat *c, const str *prompt) {
    fg_engine_desc desc;
    size_t count = 0, least;
    fg_engine_get_desc(c->s.engine, &desc);
    least = (size_t)desc.max_context / 4;
    if (c->desc.max_tokens > 0 && (size_t)c->desc.max_tokens < least) least = (size_t)c->desc.max_tokens;
    fg_tokenize(c->s.model, prompt->data, prompt->length, FG_RENDERED, NULL, 0, &count);
    return count + least <= (size_t)desc.max_context;
}

/* Submits the conversation; when it is too long for the context, without its oldest turns. */
static fg_result chat_submit(chat *c, fg_request *request) {
    for (;;) {
        str prompt = {NULL, 0, 0};
        bool last = c->first + 2 >= c->n_turns;
        fg_result result = chat_prompt(c, &prompt);
        if (result == FG_OK && !last && !chat_has_room(c, &prompt)) {
            result = FG_ERROR_TOO_LONG;
        } else if (result == FG_OK) {
            c->desc.prompt = prompt.data;
            c->desc.prompt_length = prompt.length;
            result = fg_submit(c->s.engine, &c->desc, request);
        }
        str_free(&prompt);
        if (result != FG_ERROR_TOO_LONG || last) return result;
        c->first += 2;
        if (!c->args->quiet) fprintf(stderr, "(the context is full: the oldest question and answer are forgotten)\n");
    }
}

/* What a model thinks in a channel of its own is shown, faint in a terminal, and no part of the answer; headers of messages are neither. */
static void chat_write(chat *c, str *answer, const fg_event *event) {
    const fg_model *model = c->s.model;
    if (c->header) str_add(&c->head, event->text, event->text_length);
    else fwrite(event->text, 1, event->text_length, stdout);
    if (!c->header && !c->thought) str_add(answer, event->text, event->text_length);
    if (is_mark(model, event, "<|channel|>")) {
        c->channels = c->header = true;
        c->head.length = 0;
    } else if (c->header && is_mark(model, event, "<|message|>")) {
        c->header = false;
        c->thought = c->head.length && strstr(c->head.data, "analysis");
        if (c->thought && terminal_styles(stdout)) fputs("\x1b[2m", stdout);
    } else if (c->channels && is_mark(model, event, "<|end|>")) {
        fputs(c->thought && terminal_styles(stdout) ? "\x1b[0m\n\n" : "\n\n", stdout);
        c->header = true;
        c->thought = false;
    }
    fflush(stdout);
}

/* Takes the events of a step; true when the answer has ended. */
static bool chat_events(chat *c, str *answer, fg_event *end) {
    fg_event event;
    while (fg_next_event(c->s.engine, &event)) {
        if (event.type == FG_EVENT_TOKEN || event.type == FG_EVENT_SAMPLE_END) chat_write(c, answer, &event);
        if (event.type == FG_EVENT_SAMPLE_END) *end = event;
        if (event.type == FG_EVENT_END) return true;
    }
    return false;
}

static fg_result chat_answer(chat *c, str *answer, fg_event *end) {
    fg_request request;
    fg_result result = chat_submit(c, &request);
    bool ended = false, busy = true, cancelled = false;
    c->channels = c->header = c->thought = false;
    while (result == FG_OK && !ended && busy) {
        if (interrupted && !cancelled) {
            cancelled = true;
            fg_cancel(c->s.engine, request);
        }
        result = fg_step(c->s.engine, 0.0, &busy);
        if (result == FG_OK) ended = chat_events(c, answer, end);
    }
    if (c->thought && terminal_styles(stdout)) fputs("\x1b[0m", stdout); /* it was cut off */
    return result;
}

static void print_chat_numbers(const chat *c, const fg_event *end) {
    double seconds = end->times.finish - end->times.first_token;
    bool faint = terminal_styles(stderr);
    if (c->args->quiet) return;
    if (end->finish == FG_FINISH_LENGTH)
        fprintf(stderr, "(the answer is cut: %s)\n",
                c->desc.max_tokens > 0 && end->n_generated >= c->desc.max_tokens ? "-n is reached" : "the context is full");
    if (!is_terminal(stderr)) return;
    fprintf(stderr, "%s(%d tokens", faint ? "\x1b[2m" : "", end->n_generated);
    if (end->n_generated > 1 && seconds > 0.0) fprintf(stderr, ", %.1f tokens/s", (end->n_generated - 1) / seconds);
    if (end->n_generated > 0) fprintf(stderr, ", first after %.0f ms", (end->times.first_token - end->times.arrival) * 1e3);
    fprintf(stderr, ", %d of %d prompt tokens cached)%s\n", end->n_cached, end->n_prompt, faint ? "\x1b[0m" : "");
}

static int chat_turn(chat *c, const str *line) {
    str answer = {NULL, 0, 0};
    fg_event end;
    fg_result result;
    bool failed;
    memset(&end, 0, sizeof(end));
    str_puts(&answer, "");
    chat_add(c, true, line->data, line->length);
    catch_interrupts();
    result = chat_answer(c, &answer, &end);
    signal(SIGINT, SIG_DFL);
    signal(SIGTERM, SIG_DFL);
    failed = result != FG_OK || end.finish == FG_FINISH_ERROR;
    if (!failed || answer.length) fputs("\n", stdout);
    fflush(stdout);
    if (failed) {
        str_free(&c->turns[--c->n_turns].text); /* the question that could not be answered */
        failure("%s", result != FG_OK ? fg_last_error() : fg_result_text(end.result));
    } else {
        print_chat_numbers(c, &end);
        chat_add(c, false, answer.data, answer.length);
    }
    str_free(&answer);
    return failed;
}

static void print_chat_help(void) {
    fprintf(stderr, "Type a message and press Enter. Ctrl-C ends an answer.\n"
                    "  /reset   forget the conversation\n"
                    "  /help    this text\n"
                    "  /quit    leave (also the end of the input)\n");
}

/* What keys like the arrows send is no text; nor is space at the end of a line. */
static void chat_clean(str *line) {
    size_t from, to = 0;
    for (from = 0; from < line->length; from++) {
        if (line->data[from] == '\x1b' && line->data[from + 1] == '[') {
            for (from += 2; from < line->length && (line->data[from] < '@' || line->data[from] > '~'); from++) {}
            continue;
        }
        line->data[to++] = line->data[from];
    }
    while (to && (line->data[to - 1] == ' ' || line->data[to - 1] == '\t')) to--;
    line->length = to;
    line->data[to] = 0;
}

/* True: the line was a command, or meant as one: a word behind a slash. */
static bool chat_command(chat *c, const str *line, bool *quit) {
    size_t i;
    if (strcmp(line->data, "/quit") == 0 || strcmp(line->data, "/exit") == 0) *quit = true;
    else if (strcmp(line->data, "/reset") == 0) chat_reset(c);
    else if (strcmp(line->data, "/help") == 0) print_chat_help();
    else if (line->data[0] != '/') return false;
    else {
        for (i = 1; line->data[i] >= 'a' && line->data[i] <= 'z'; i++) {}
        if (line->data[i] || i == 1) return false;
        fprintf(stderr, "there is no command '%s'; /help lists them\n", line->data);
    }
    return true;
}

/* A line that is typed: the first Ctrl-C asks for another. False: the end. */
static bool chat_typed(str *line) {
    int times;
    for (times = 0; times < 2; times++) {
        bool read;
        fprintf(stderr, "\n> ");
        catch_typed_interrupts();
        read = read_line(stdin, line);
        if (!interrupted && !read) return false;
        chat_clean(line);
        if (!interrupted) return true;
        clearerr(stdin); /* an interrupted read is an error of it */
        if (times == 0) fprintf(stderr, "\n(/quit, or Ctrl-C again, leaves)");
    }
    return false;
}

/* In a terminal errors are shown and the conversation goes on; from a pipe the first error ends it. */
static int chat_loop(chat *c) {
    bool quit = false, terminal = is_terminal(stdin);
    str line = {NULL, 0, 0};
    int result = 0;
    if (terminal && !c->args->quiet) fprintf(stderr, "%s  (/help for help)\n", base_name(c->args->model));
    while (!quit && (result == 0 || terminal) && !ferror(stdout)) {
        if (!(terminal ? chat_typed(&line) : read_line(stdin, &line))) break;
        if (line.length == 0 || chat_command(c, &line, &quit)) continue;
        result = chat_turn(c, &line);
        if (interrupted == SIGTERM) break;
    }
    str_free(&line);
    if (interrupted == SIGTERM) return 128 + SIGTERM;
    if (ferror(stdin)) return failure("cannot read the standard input");
    return terminal ? 0 : result;
}

static int cmd_chat(tool_args *args) {
    fg_model_info info;
    chat c;
    int result;
    memset(&c, 0, sizeof(c));
    result = session_open(args, &c.s);
    if (result != 0) return result;
    c.args = args;
    fg_model_get_info(c.s.model, &info);
    result = describe_request(args, 512, &c.desc);
    c.desc.tokenize_flags = FG_RENDERED;
    if (result == 0 && !info.chat_template)
        result = failure("%s has no chat template; fastgen generate continues plain text", base_name(args->model));
    if (result == 0) result = chat_loop(&c);
    chat_reset(&c);
    str_free(&c.head);
    free(c.turns);
    free((void *)c.desc.sampling.logit_bias);
    return session_close(&c.s, result);
}
