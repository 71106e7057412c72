/* Answers of the Responses and Messages APIs: one choice, whose text and calls become items, one after another. responses.h and messages.h
   write them, and the events of streams, in the API's form. */

static void output_open(const api_answer *a, api_choice *c, output_kind kind, int tool) {
    c->output.open = kind;
    c->output.tool = tool;
    c->output.text.length = c->output.logprobs.length = 0;
    if (a->request->kind == API_MESSAGES) message_open(a, c);
    else response_open(a, c);
}

/* More of the item that is open; `logprobs` are members of a list. */
static void output_write(const api_answer *a, api_choice *c, const char *text, size_t length, const str *logprobs) {
    if (a->request->kind == API_MESSAGES) message_write(a, c, text, length);
    else response_write(a, c, text, length, logprobs);
    str_add(&c->output.text, text, length);
    if (c->output.open != OUTPUT_TEXT || !logprobs->length) return;
    add_comma(&c->output.logprobs);
    str_add(&c->output.logprobs, logprobs->data, logprobs->length);
}

static void output_close(const api_answer *a, api_choice *c, bool whole) {
    if (c->output.open == OUTPUT_NONE) return;
    add_comma(&c->output.items);
    if (a->request->kind == API_MESSAGES) message_close(a, c);
    else response_close(a, c, whole);
    c->output.open = OUTPUT_NONE;
    c->output.n_items++;
}

static void output_open_next(const api_answer *a, api_choice *c) {
    bool one = a->request->tools.form == CALL_ONE;
    if (c->output.open == OUTPUT_NONE) output_open(a, c, one ? OUTPUT_CALL : OUTPUT_TEXT, one ? a->request->tools.chosen : 0);
}

static void output_take_thought(const api_answer *a, api_choice *c) {
    if (!c->thought.length) return;
    if (c->output.open == OUTPUT_NONE) output_open(a, c, OUTPUT_THOUGHT, 0);
    output_write(a, c, c->thought.data, c->thought.length, NULL);
    c->thought.length = c->logprobs.lists[0].length = 0;
}

/* Takes the text that has come. Log-probabilities of what is no text yet wait for it. Clients parse each beginning of a call's arguments, and
   white space alone is no JSON. */
static void output_take_text(const api_answer *a, api_choice *c) {
    output_take_thought(a, c);
    if (c->output.open == OUTPUT_THOUGHT && c->thinking == THINKING_NONE) output_close(a, c, true);
    if (a->request->tools.form == CALL_ONE && c->output.open == OUTPUT_NONE) str_drop(&c->text, count_space(&c->text));
    if (!c->text.length) return;
    output_open_next(a, c);
    output_write(a, c, c->text.data, c->text.length, &c->logprobs.lists[0]);
    c->text.length = c->logprobs.lists[0].length = 0;
}

static void output_add_call(const api_answer *a, api_choice *c, int tool, const str *arguments) {
    output_take_text(a, c);
    output_close(a, c, true);
    output_open(a, c, OUTPUT_CALL, tool);
    output_write(a, c, arguments->data, arguments->length, NULL);
    output_close(a, c, true);
    c->logprobs.lists[0].length = 0; /* a call has none */
}

/* Takes what has come; in the end a response has an item, if an empty one. */
static void output_take(const api_answer *a, api_choice *c) {
    output_take_text(a, c);
    if (!c->ended) return;
    if (!c->output.n_items && a->request->kind == API_RESPONSES) output_open_next(a, c);
    output_close(a, c, a->request->tools.form == CALL_ONE ? c->arguments.closed : c->finish == FG_FINISH_STOP);
}

static void output_send(api_choice *c, str *to) {
    if (c->output.events.length) str_add(to, c->output.events.data, c->output.events.length);
    c->output.events.length = 0;
}

/* A stream's first events. */
static void output_begin(const api_answer *a, str *to) {
    if (a->request->kind == API_MESSAGES) message_begin(a);
    else response_begin(a);
    output_send(a->choices, to);
}

/* What a stream has to say now. */
static void output_add_news(const api_answer *a, str *to) {
    api_choice *c = a->choices;
    if (!c->ended || c->finish != FG_FINISH_ERROR) output_take(a, c);
    output_send(c, to);
}

/* A stream's last events. */
static void output_end(const api_answer *a, const api_error *error, str *to) {
    if (a->request->kind == API_MESSAGES) message_end(a, error);
    else response_end(a, error);
    output_send(a->choices, to);
}

/* The whole answer. */
static void output_add_whole(const api_answer *a, str *to) {
    output_take(a, a->choices);
    if (a->request->kind == API_MESSAGES) message_add(a, true, to);
    else response_add(a, response_status(a), NULL, to);
}
