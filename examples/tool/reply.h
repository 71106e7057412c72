/* The OpenAI API as JSON: events of the engine to answers, whole or in pieces. */

/* Log-probabilities as the members of JSON arrays. */
typedef struct api_logprobs {
    str lists[4];  /* chat: [0] has the objects of tokens; completions: tokens, token_logprobs, top_logprobs, text_offset */
    size_t offset; /* characters before the next token, for text_offset */
} api_logprobs;

typedef enum output_kind { OUTPUT_NONE, OUTPUT_TEXT, OUTPUT_CALL, OUTPUT_THOUGHT } output_kind;

/* What the Responses and Messages APIs make of a choice: items, and blocks of content. */
typedef struct api_output {
    output_kind open;   /* the item that is being written */
    int tool;           /* of OUTPUT_CALL */
    str text, logprobs; /* of that item: its text or arguments, members of a list */
    str items;          /* that are whole: members of a list */
    str raw;            /* all that was generated, where stop texts are to be found in it */
    str events;         /* that were not sent yet */
    int n_items, n_events;
} api_output;

/* What is being written, where a model writes messages of channels. */
typedef enum api_channel { CHANNEL_TEXT, CHANNEL_THOUGHT, CHANNEL_CALL, CHANNEL_HEADER } api_channel;

/* One of the texts a request gets, behind the echo. Index: prompt number * n + sample. */
typedef struct api_choice {
    str text; /* all of it, or when streaming what was not sent yet; of CALL_ONE the arguments */
    str held; /* what may be a call, or the beginning of one */
    str thought; /* as `text`, of what the model thought */
    str pending; /* what may be thought, or the end of it */
    api_thinking thinking;
    api_channel channel;
    str header; /* of the message: whom it is for, in which channel; of a call the function's name */
    str calls; /* members of tool_calls, as many as of the text */
    int n_calls;
    call_scan arguments; /* of CALL_ONE */
    bool spoken, role_sent; /* spoken: more than white space, since the last call */
    bool thought_begun;
    api_output output;
    api_logprobs logprobs;
    fg_finish finish;
    bool begun, ended; /* begun: some of it was sent, with echo the prompt */
    double last_token; /* when it came */
} api_choice;

/* What all choices of a prompt begin with when it is echoed. */
typedef struct api_echo {
    str text; /* as it is within a JSON string */
    api_logprobs logprobs;
    size_t passed; /* bytes of the prompt's text before the next token */
} api_echo;

typedef struct api_answer {
    const api_request *request;
    const fg_model *model;
    const char *model_name;
    char id[40];
    long long created;
    api_choice *choices;
    api_echo *echoes; /* of each prompt; NULL: none is echoed */
    int n_choices;
    int n_prompt, n_cached, n_generated; /* tokens, of all choices that ended */
} api_answer;

/* Whether it is answered by output.h. */
static bool has_output(const api_request *r) { return r->kind == API_RESPONSES || r->kind == API_MESSAGES; }

static const char *reply_object(const api_answer *a, bool chunk) {
    if (a->request->kind == API_COMPLETION) return "text_completion";
    return chunk ? "chat.completion.chunk" : "chat.completion";
}

static void logprobs_free(api_logprobs *l) {
    int i;
    for (i = 0; i < 4; i++) str_free(&l->lists[i]);
}

static void output_free(api_output *o) {
    str_free(&o->text);
    str_free(&o->logprobs);
    str_free(&o->items);
    str_free(&o->raw);
    str_free(&o->events);
}

static void answer_free(api_answer *a) {
    int i;
    for (i = 0; i < a->n_choices; i++) {
        str_free(&a->choices[i].text);
        str_free(&a->choices[i].held);
        str_free(&a->choices[i].thought);
        str_free(&a->choices[i].pending);
        str_free(&a->choices[i].header);
        str_free(&a->choices[i].calls);
        output_free(&a->choices[i].output);
        logprobs_free(&a->choices[i].logprobs);
    }
    for (i = 0; a->echoes && i < a->request->n_prompts; i++) {
        str_free(&a->echoes[i].text);
        logprobs_free(&a->echoes[i].logprobs);
    }
    free(a->choices);
    free(a->echoes);
}

/* What a choice has yet to begin with; NULL: nothing. */
static const api_echo *echo_of(const api_answer *a, const api_choice *c) {
    return a->echoes && !c->begun ? &a->echoes[(c - a->choices) / a->request->n] : NULL;
}

/* ---- log-probabilities ------------------------------------------------------------------------- */

static void add_logprob(str *to, double value) { str_printf(to, "%.6g", value > -9999.0 ? value : -9999.0); }

static bool is_whole_text(const char *text, size_t length) {
    size_t i = 0;
    uint32_t code;
    while (i < length) {
        int n = utf8_length(text + i, length - i, &code);
        if (n == 0) return false;
        i += (size_t)n;
    }
    return true;
}

/* A token as the completions API names it: its text, or "bytes:\xe2\x80" for part of a character. */
static void add_token_key(const fg_model *model, int32_t token, str *to) {
    size_t length = 0, i;
    const char *text = fg_token_text(model, token, &length);
    if (is_whole_text(text, length)) {
        str_json(to, text, length);
        return;
    }
    str_puts(to, "\"bytes:");
    for (i = 0; i < length; i++) str_printf(to, "\\\\x%02x", (unsigned char)text[i]);
    str_puts(to, "\"");
}

static void add_comma(str *to) {
    if (to->length) str_puts(to, ",");
}

/* The members of top_logprobs of a completion's token: the best ones and, where it is not among them, the token itself. */
static void add_top_keys(const api_answer *a, const fg_event *event, str *to) {
    bool there = false;
    int i;
    str_puts(to, "{");
    for (i = 0; i < event->n_top; i++) {
        there = there || event->top[i].token == event->token;
        if (i) str_puts(to, ",");
        add_token_key(a->model, event->top[i].token, to);
        str_puts(to, ":");
        add_logprob(to, event->top[i].logprob);
    }
    if (!there) {
        if (event->n_top) str_puts(to, ",");
        add_token_key(a->model, event->token, to);
        str_puts(to, ":");
        add_logprob(to, event->logprob);
    }
    str_puts(to, "}");
}

static size_t count_characters(const char *text, size_t length) {
    size_t n = 0, i;
    for (i = 0; i < length; i++) n += (text[i] & 0xC0) != 0x80;
    return n;
}

/* Whether a token stands for nothing in a text, as special ones do, which fg_token_text gives by their names. */
static bool is_left_out(const fg_model *model, int32_t token) {
    size_t with = 0, without = 0;
    fg_detokenize(model, &token, 1, 0, NULL, 0, &with);
    fg_detokenize(model, &token, 1, FG_NO_SPECIAL, NULL, 0, &without);
    return with > 0 && without == 0;
}

/* Bytes of the rest of a prompt's text that its next token stands for: none for a BOS that was added, and without the space that
   SentencePiece puts before a text. Where the text was changed before it became tokens, as many characters as the token has. */
static size_t echo_bytes(const fg_model *model, int32_t token, const char *rest, size_t left) {
    size_t length = 0, n = 0, characters;
    const char *text = fg_token_text(model, token, &length);
    if (length == 0) return 0;
    if (length <= left && memcmp(rest, text, length) == 0) return length;
    if (text[0] == ' ' && length - 1 <= left && memcmp(rest, text + 1, length - 1) == 0) return length - 1;
    if (is_left_out(model, token)) return 0;
    characters = count_characters(text, length);
    while (n < left && ((rest[n] & 0xC0) == 0x80 || characters-- > 0)) n++;
    return n;
}

/* A completion's token; `first` of the prompt has no log-probability. */
static void add_completion_token(const api_answer *a, api_logprobs *to, const fg_event *event, bool first) {
    int i;
    for (i = 0; i < 4; i++) add_comma(&to->lists[i]);
    add_token_key(a->model, event->token, &to->lists[0]);
    if (first) str_puts(&to->lists[1], "null");
    else add_logprob(&to->lists[1], event->logprob);
    if (first) str_puts(&to->lists[2], "null");
    else add_top_keys(a, event, &to->lists[2]);
    str_printf(&to->lists[3], "%zu", to->offset);
}

/* A token of an echoed prompt. */
static void add_prompt_token(const api_answer *a, int prompt, const fg_event *event, bool first) {
    const str *text = &a->request->prompts[prompt].text;
    api_echo *echo = &a->echoes[prompt];
    size_t n, left = text->length - echo->passed;
    add_completion_token(a, &echo->logprobs, event, first);
    if (left == 0) return;
    n = echo_bytes(a->model, event->token, text->data + echo->passed, left);
    echo->logprobs.offset += count_characters(text->data + echo->passed, n);
    echo->passed += n;
}

/* {"token":...,"logprob":...,"bytes":[...]} without its closing brace. */
static void add_chat_token(const api_answer *a, int32_t token, double logprob, str *to) {
    size_t length = 0, i;
    const char *text = fg_token_text(a->model, token, &length);
    str_puts(to, "{\"token\":");
    api_add_token_text(a->model, token, to);
    str_puts(to, ",\"logprob\":");
    add_logprob(to, logprob);
    str_puts(to, ",\"bytes\":[");
    for (i = 0; i < length; i++) str_printf(to, i ? ",%u" : "%u", (unsigned)(unsigned char)text[i]);
    str_puts(to, "]");
}

/* A token that was generated. */
static void add_token(const api_answer *a, api_logprobs *logprobs, const fg_event *event) {
    str *to = &logprobs->lists[0];
    size_t length = 0;
    const char *text = fg_token_text(a->model, event->token, &length);
    int i;
    if (a->request->kind == API_COMPLETION) {
        add_completion_token(a, logprobs, event, false);
        if (!is_left_out(a->model, event->token)) logprobs->offset += count_characters(text, length);
        return;
    }
    add_comma(to);
    add_chat_token(a, event->token, event->logprob, to);
    str_puts(to, ",\"top_logprobs\":[");
    for (i = 0; i < event->n_top; i++) {
        if (i) str_puts(to, ",");
        add_chat_token(a, event->top[i].token, event->top[i].logprob, to);
        str_puts(to, "}");
    }
    str_puts(to, "]}");
}

/* The members of a list of a choice, behind those of the echo. */
static void add_members(const api_answer *a, const api_choice *c, int list, str *to) {
    const api_echo *echo = echo_of(a, c);
    const str *own = &c->logprobs.lists[list], *first = echo ? &echo->logprobs.lists[list] : NULL;
    if (first && first->length) str_add(to, first->data, first->length);
    if (first && first->length && own->length) str_puts(to, ",");
    if (own->length) str_add(to, own->data, own->length);
}

/* ,"logprobs":... of a choice */
static void add_logprobs(const api_answer *a, const api_choice *c, str *to) {
    static const char *const names[4] = {"tokens", "token_logprobs", "top_logprobs", "text_offset"};
    bool chat = a->request->kind == API_CHAT;
    int i;
    if (!a->request->logprobs) {
        str_puts(to, ",\"logprobs\":null");
        return;
    }
    str_puts(to, ",\"logprobs\":{");
    for (i = 0; i < (chat ? 1 : 4); i++) {
        str_printf(to, "%s\"%s\":[", i ? "," : "", chat ? "content" : names[i]);
        add_members(a, c, i, to);
        str_puts(to, "]");
    }
    str_puts(to, chat ? ",\"refusal\":null}" : "}");
}

/* ---- taking events ----------------------------------------------------------------------------- */

/* Begins the choices of a prompt with it. */
static void answer_echo(api_answer *a, int prompt) {
    const api_prompt *p = &a->request->prompts[prompt];
    size_t characters = count_characters(p->text.data, p->text.length);
    fg_event first;
    int i;
    memset(&first, 0, sizeof(first));
    first.token = p->n_tokens ? p->tokens[0] : 0;
    str_escape(&a->echoes[prompt].text, p->text.data, p->text.length);
    if (a->request->logprobs && p->n_tokens) add_prompt_token(a, prompt, &first, true);
    for (i = 0; i < a->request->n; i++) a->choices[prompt * a->request->n + i].logprobs.offset = characters;
}

/* The choices of an accepted request. */
static void answer_begin(api_answer *a, const api_request *r) {
    int i;
    a->request = r;
    a->n_choices = r->n_prompts * r->n;
    a->choices = (api_choice *)xrealloc(NULL, (size_t)a->n_choices * sizeof(api_choice));
    memset(a->choices, 0, (size_t)a->n_choices * sizeof(api_choice));
    for (i = 0; i < a->n_choices; i++) a->choices[i].thinking = r->channels ? THINKING_NONE : r->thinking;
    if (!r->echo) return;
    a->echoes = (api_echo *)xrealloc(NULL, (size_t)r->n_prompts * sizeof(api_echo));
    memset(a->echoes, 0, (size_t)r->n_prompts * sizeof(api_echo));
    for (i = 0; i < r->n_prompts; i++) answer_echo(a, i);
}

/* ---- calls of tools ---------------------------------------------------------------------------- */

/* Nine letters and digits, as Mistral's templates want them, which differ between calls. */
static void add_call_id(const api_answer *a, const api_choice *c, int number, str *to) {
    uint64_t hash = UINT64_C(14695981039346656037) + (uint64_t)(c - a->choices) * 1000003 + (uint64_t)number;
    const char *id = a->id;
    int i;
    for (; *id; id++) hash = (hash ^ (unsigned char)*id) * UINT64_C(1099511628211);
    for (i = 0; i < 9; i++, hash /= 36) str_printf(to, "%c", "0123456789abcdefghijklmnopqrstuvwxyz"[hash % 36]);
}

static void add_tool_name(const api_answer *a, int tool, str *to) {
    str_json(to, a->request->tools.names[tool].data, a->request->tools.names[tool].length);
}

/* A member of tool_calls up to the text of its arguments; `first`: with what is said of it once. */
static void add_call_head(const api_answer *a, const api_choice *c, int number, int tool, bool first, str *to) {
    str_puts(to, "{");
    if (a->request->stream) str_printf(to, "\"index\":%d,", number);
    if (first) {
        str_puts(to, "\"id\":\"");
        add_call_id(a, c, number, to);
        str_puts(to, "\",\"type\":\"function\",\"function\":{\"name\":");
        add_tool_name(a, tool, to);
        str_puts(to, ",");
    } else {
        str_puts(to, "\"function\":{");
    }
    str_puts(to, "\"arguments\":");
}

static void output_add_call(const api_answer *a, api_choice *c, int tool, const str *arguments); /* output.h */

static void answer_add_call(const api_answer *a, api_choice *c, int tool, const str *arguments) {
    add_comma(&c->calls);
    add_call_head(a, c, c->n_calls, tool, true, &c->calls);
    str_json(&c->calls, arguments->data, arguments->length);
    str_puts(&c->calls, "}}");
}

/* The calls that a text is; false: it is none. */
static bool answer_add_calls(const api_answer *a, api_choice *c, const char *text, size_t length) {
    call_list list;
    bool any;
    int i;
    call_parse(text, length, &a->request->tools, &list);
    for (i = 0; i < list.n; i++) {
        if (has_output(a->request)) output_add_call(a, c, list.tools[i], &list.arguments[i]);
        else answer_add_call(a, c, list.tools[i], &list.arguments[i]);
        c->n_calls++;
    }
    any = list.n > 0;
    if (any) c->spoken = false;
    call_list_free(&list);
    return any;
}

/* The first n held bytes are content, or are left out. */
static void answer_release(api_choice *c, size_t n, bool content) {
    if (content) str_add(&c->text, c->held.data, n);
    c->spoken = c->spoken || content;
    c->held.length -= n;
    memmove(c->held.data, c->held.data + n, c->held.length);
}

/* What is held begins with <tool_call>; false: its end is yet to come. */
static bool answer_read_block(const api_answer *a, api_choice *c) {
    size_t begin = sizeof(call_open) - 1, length = c->held.length;
    size_t from = begin + call_object_behind(c->held.data + begin, length - begin, c->ended);
    size_t end = from + call_find(c->held.data + from, length - from, call_close, true);
    bool whole = end < length;
    if (!whole && !c->ended) return false;
    answer_release(c, whole ? end + sizeof(call_close) - 1 : end, !answer_add_calls(a, c, c->held.data + begin, end - begin));
    return true;
}

/* Reads on in what is held: white space around calls is left out, and a text that begins as JSON is looked at when it ends. false: more is
   needed. */
static bool answer_read_on(const api_answer *a, api_choice *c) {
    size_t length = c->held.length, i = 0, at;
    while (i < length && strchr(" \t\r\n", c->held.data[i])) i++;
    if (i == length) {
        if (c->ended || c->spoken) answer_release(c, length, c->spoken || !c->n_calls);
        return false;
    }
    if (!c->spoken && !c->n_calls && (c->held.data[i] == '{' || c->held.data[i] == '[')) {
        if (c->ended) answer_release(c, length, !answer_add_calls(a, c, c->held.data + i, length - i));
        return false;
    }
    at = call_find(c->held.data, length, call_open, c->ended);
    if (at > i) answer_release(c, at, true);
    else if (length - at >= sizeof(call_open) - 1) answer_release(c, at, c->spoken);
    return c->held.length >= sizeof(call_open) - 1 && answer_read_block(a, c);
}

/* The calls that are whole, of a list; what is not when it ends is none. */
static void answer_read_list(const api_answer *a, api_choice *c) {
    size_t end;
    while ((end = call_object_end(c->held.data, c->held.length)) > 0) {
        size_t begin = call_find(c->held.data, end, "{", true);
        answer_add_calls(a, c, c->held.data + begin, end - begin);
        answer_release(c, end, false);
    }
    if (c->ended) c->held.length = 0;
}

/* ---- thoughts ---------------------------------------------------------------------------------- */

static const char think_open[] = "<think>", think_close[] = "</think>";

static size_t count_space(const str *text) {
    size_t n = 0;
    while (n < text->length && strchr(" \t\r\n", text->data[n])) n++;
    return n;
}

/* Before thoughts: whether they begin. false: more is needed. */
static bool thought_begin(api_choice *c) {
    size_t space = count_space(&c->pending), left = c->pending.length - space, n = sizeof(think_open) - 1;
    bool begins = left && memcmp(c->pending.data + space, think_open, left < n ? left : n) == 0;
    if (!c->ended && (left == 0 || (begins && left < n))) return false;
    c->thinking = begins && left >= n ? THINKING_INSIDE : THINKING_NONE;
    if (c->thinking) str_drop(&c->pending, space + n);
    return true;
}

/* Takes thoughts, without the white space around them. false: more is needed. */
static bool thought_take(api_choice *c) {
    size_t at = call_find(c->pending.data, c->pending.length, think_close, c->ended), n = at, space;
    bool closed = c->pending.length - at >= sizeof(think_close) - 1;
    if (!c->thought_begun) {
        space = count_space(&c->pending);
        space = space < at ? space : at;
        str_drop(&c->pending, space);
        n = at -= space;
    }
    while (n && strchr(" \t\r\n", c->pending.data[n - 1])) n--;
    if (n) str_add(&c->thought, c->pending.data, n);
    c->thought_begun = c->thought_begun || n;
    str_drop(&c->pending, closed ? at + sizeof(think_close) - 1 : n);
    if (closed) c->thinking = THINKING_BEHIND;
    return closed;
}

/* Takes what is pending as thoughts, up to where they end. */
static void answer_think(api_choice *c) {
    if (!c->pending.length) return;
    if (c->thinking == THINKING_BEFORE && !thought_begin(c)) return;
    if (c->thinking == THINKING_INSIDE && !thought_take(c)) return;
    if (c->thinking != THINKING_BEHIND) return;
    str_drop(&c->pending, count_space(&c->pending));
    if (c->pending.length) c->thinking = THINKING_NONE;
}

/* New text behind thoughts: calls and content, where the request has tools. */
static void answer_read_text(const api_answer *a, api_choice *c, const char *text, size_t length) {
    call_form form = a->request->tools.form;
    size_t i;
    str_add(form == CALL_IN_TEXT || form == CALL_LIST ? &c->held : &c->text, text, length);
    for (i = 0; i < length && form == CALL_ONE; i++) call_scan_byte(&c->arguments, text[i]);
    if (form == CALL_LIST) answer_read_list(a, c);
    while (form == CALL_IN_TEXT && c->held.length && answer_read_on(a, c)) {}
}

static void output_add_raw(const api_answer *a, api_choice *c, int32_t token) {
    size_t length = 0;
    const char *text = fg_token_text(a->model, token, &length);
    if (length && !is_left_out(a->model, token)) str_add(&c->output.raw, text, length);
}

/* New text. */
static void answer_read(const api_answer *a, api_choice *c, const char *text, size_t length) {
    if (c->thinking == THINKING_NONE) {
        answer_read_text(a, c, text, length);
        return;
    }
    str_add(&c->pending, text, length);
    answer_think(c);
    if (c->thinking == THINKING_NONE) answer_read_text(a, c, c->pending.data, c->pending.length);
    if (c->thinking == THINKING_NONE) c->pending.length = 0;
}

/* ---- channels ---------------------------------------------------------------------------------- */

/* The header of one of gpt-oss's messages, see is_mark, has ended: what follows. The channel "analysis" has thoughts, what is "to=functions.NAME" is a
   call, its body the arguments; all else is the answer. */
static void channel_open(const api_answer *a, api_choice *c) {
    static const char to[] = "to=functions.";
    size_t n = c->header.length, at = n ? call_find(c->header.data, n, to, true) : 0, end;
    c->channel = n && call_find(c->header.data, n, "analysis", true) < n ? CHANNEL_THOUGHT : CHANNEL_TEXT;
    if (c->channel == CHANNEL_THOUGHT && a->request->thinking == THINKING_NONE) c->channel = CHANNEL_TEXT; /* as asked */
    c->thinking = c->channel == CHANNEL_THOUGHT ? THINKING_INSIDE : THINKING_NONE;
    if (at == n || a->request->tools.form != CALL_IN_TEXT) return;
    for (end = at += sizeof(to) - 1; end < n && !strchr(" \t\r\n<", c->header.data[end]); end++) {}
    c->header.length = end;
    str_drop(&c->header, at);
    c->channel = CHANNEL_CALL;
}

/* A body has ended. What is no call of a function that there is, is text. */
static void channel_close(const api_answer *a, api_choice *c) {
    str call = {NULL, 0, 0};
    if (c->channel == CHANNEL_CALL) {
        str_puts(&call, "{\"name\":");
        str_json(&call, c->header.data, c->header.length);
        str_puts(&call, ",\"arguments\":");
        str_add(&call, c->pending.data, c->pending.length);
        str_puts(&call, "}");
        if (!c->pending.length || !answer_add_calls(a, c, call.data, call.length)) answer_read_text(a, c, c->pending.data, c->pending.length);
        c->pending.length = 0;
    }
    str_free(&call);
    c->header.length = 0;
    c->channel = CHANNEL_HEADER;
    c->thinking = THINKING_NONE;
}

static void answer_read_channels(const api_answer *a, api_choice *c, const fg_event *event) {
    const fg_model *model = a->model;
    str *to = c->channel == CHANNEL_HEADER ? &c->header : c->channel == CHANNEL_CALL ? &c->pending : c->channel == CHANNEL_THOUGHT ? &c->thought : NULL;
    if (to) str_add(to, event->text, event->text_length);
    else answer_read_text(a, c, event->text, event->text_length);
    if (is_mark(model, event, "<|channel|>") && c->channel != CHANNEL_HEADER) channel_close(a, c);
    if (is_mark(model, event, "<|message|>") && c->channel == CHANNEL_HEADER) channel_open(a, c);
    if (is_mark(model, event, "<|end|>") || is_mark(model, event, "<|call|>") || is_mark(model, event, "<|return|>")) channel_close(a, c);
    if (is_mark(model, event, "<|start|>")) c->header.length = 0;
    if (c->ended && c->channel == CHANNEL_CALL && c->finish == FG_FINISH_STOP) channel_close(a, c);
    if (c->ended) answer_read_text(a, c, "", 0); /* what may have been a call */
}

/* Takes in an event of prompt number `prompt`. */
static void answer_take(api_answer *a, int prompt, const fg_event *event) {
    api_choice *c = &a->choices[prompt * a->request->n + event->sample];
    if (event->type == FG_EVENT_PROMPT) add_prompt_token(a, prompt, event, false);
    c->ended = c->ended || event->type == FG_EVENT_SAMPLE_END;
    if (event->type == FG_EVENT_SAMPLE_END) c->finish = event->finish;
    if (event->type == FG_EVENT_TOKEN || event->type == FG_EVENT_SAMPLE_END) {
        if (a->request->channels) answer_read_channels(a, c, event);
        else answer_read(a, c, event->text, event->text_length);
    }
    if (event->type == FG_EVENT_TOKEN && a->request->logprobs &&
        (a->request->desc.ignore_eos || !fg_token_is_end(a->model, event->token)))
        add_token(a, &c->logprobs, event);
    if (event->type == FG_EVENT_TOKEN && a->request->kind == API_MESSAGES && a->request->desc.n_stop) output_add_raw(a, c, event->token);
    if (event->type == FG_EVENT_SAMPLE_END) a->n_generated += event->n_generated;
    if (event->type == FG_EVENT_END) {
        a->n_prompt += event->n_prompt;
        a->n_cached += event->n_cached;
    }
}

/* ---- answers ----------------------------------------------------------------------------------- */

/* An event of a stream that names its events, with its members. */
static void output_add_event(const api_answer *a, api_choice *c, const char *type, const str *members) {
    str *to = &c->output.events;
    if (!a->request->stream) return;
    str_printf(to, "event: %s\ndata: {\"type\":\"%s\",", type, type);
    if (a->request->kind == API_RESPONSES) str_printf(to, "\"sequence_number\":%d,", c->output.n_events++);
    str_add(to, members->data, members->length);
    str_puts(to, "}\n\n");
}


static void add_head(const api_answer *a, bool chunk, str *to) {
    str_printf(to, "{\"id\":\"%s\",\"object\":\"%s\",\"created\":%lld,\"model\":", a->id, reply_object(a, chunk), a->created);
    str_json(to, a->model_name, strlen(a->model_name));
    str_puts(to, ",\"system_fingerprint\":\"fastgen-" FG_VERSION "\",\"choices\":[");
}

static void add_usage(const api_answer *a, str *to) {
    str_printf(to, "{\"prompt_tokens\":%d,\"completion_tokens\":%d,\"total_tokens\":%d,\"prompt_tokens_details\":{\"cached_tokens\":%d}}",
               a->n_prompt, a->n_generated, a->n_prompt + a->n_generated, a->n_cached);
}

static void add_text_json(const api_answer *a, const api_choice *c, str *to) {
    const api_echo *echo = echo_of(a, c);
    str_puts(to, "\"");
    if (echo && echo->text.length) str_add(to, echo->text.data, echo->text.length);
    str_escape(to, c->text.data, c->text.length);
    str_puts(to, "\"");
}

/* "tool_calls" where the model made some and came to its end. */
static const char *choice_finish(const api_answer *a, const api_choice *c) {
    bool calls = a->request->tools.form == CALL_ONE ? c->arguments.closed : c->n_calls > 0;
    return calls && c->finish == FG_FINISH_STOP ? "tool_calls" : finish_name(c->finish);
}

/* The one call that was chosen, with the arguments that are there. */
static void add_chosen(const api_answer *a, const api_choice *c, bool first, str *to) {
    add_call_head(a, c, 0, a->request->tools.chosen, first, to);
    add_text_json(a, c, to);
    str_puts(to, "}}");
}

static void add_thought(const api_choice *c, str *to) {
    str_puts(to, ",\"reasoning_content\":");
    str_json(to, c->thought.data, c->thought.length);
}

static void add_reply_message(const api_answer *a, const api_choice *c, str *to) {
    bool one = a->request->tools.form == CALL_ONE && c->text.length;
    str_puts(to, "\"message\":{\"role\":\"assistant\",\"content\":");
    if (one || (c->n_calls && !c->text.length)) str_puts(to, "null");
    else add_text_json(a, c, to);
    str_puts(to, ",\"refusal\":null");
    if (c->thought.length) add_thought(c, to);
    if (one || c->n_calls) {
        str_puts(to, ",\"tool_calls\":[");
        if (one) add_chosen(a, c, true, to);
        else str_add(to, c->calls.data, c->calls.length);
        str_puts(to, "]");
    }
    str_puts(to, "}");
}

/* The whole answer. */
static void add_answer(const api_answer *a, str *to) {
    int i;
    add_head(a, false, to);
    for (i = 0; i < a->n_choices; i++) {
        const api_choice *c = &a->choices[i];
        bool chat = a->request->kind == API_CHAT;
        str_printf(to, "%s{\"index\":%d,%s", i ? "," : "", i, chat ? "" : "\"text\":");
        if (chat) add_reply_message(a, c, to);
        else add_text_json(a, c, to);
        add_logprobs(a, c, to);
        str_printf(to, ",\"finish_reason\":\"%s\"}", choice_finish(a, c));
    }
    str_puts(to, "],\"usage\":");
    add_usage(a, to);
    str_puts(to, "}");
}

static void add_stream_event(const str *data, str *to) {
    str_puts(to, "data: ");
    str_add(to, data->data, data->length);
    str_puts(to, "\n\n");
}

typedef enum piece_kind { PIECE_ROLE, PIECE_THOUGHT, PIECE_TEXT, PIECE_CALLS, PIECE_END } piece_kind;

/* "tool_calls":[...] with what is new of them. */
static void add_new_calls(const api_answer *a, const api_choice *c, str *to) {
    str_puts(to, "\"tool_calls\":[");
    if (a->request->tools.form == CALL_ONE) add_chosen(a, c, c->n_calls == 0, to);
    else str_add(to, c->calls.data, c->calls.length);
    str_puts(to, "]");
}

static void add_delta(const api_answer *a, const api_choice *c, piece_kind kind, str *to) {
    if (a->request->kind == API_COMPLETION) {
        str_puts(to, "\"text\":");
        add_text_json(a, c, to);
        return;
    }
    str_puts(to, "\"delta\":{");
    if (kind == PIECE_ROLE) str_printf(to, "\"role\":\"assistant\",\"content\":%s", a->request->tools.form == CALL_NONE ? "\"\"" : "null");
    if (kind == PIECE_THOUGHT) str_puts(to, "\"content\":null"), add_thought(c, to);
    if (kind == PIECE_TEXT) str_puts(to, "\"content\":");
    if (kind == PIECE_TEXT) add_text_json(a, c, to);
    if (kind == PIECE_CALLS) add_new_calls(a, c, to);
    str_puts(to, "}");
}

static void add_piece(const api_answer *a, int index, piece_kind kind, str *to) {
    const api_choice *c = &a->choices[index];
    str data = {NULL, 0, 0};
    add_head(a, true, &data);
    str_printf(&data, "{\"index\":%d,", index);
    add_delta(a, c, kind, &data);
    if (kind == PIECE_TEXT || (kind == PIECE_CALLS && a->request->tools.form == CALL_ONE) || a->request->kind == API_COMPLETION) add_logprobs(a, c, &data);
    else str_puts(&data, ",\"logprobs\":null");
    if (kind == PIECE_END) str_printf(&data, ",\"finish_reason\":\"%s\"}]", choice_finish(a, c));
    else str_puts(&data, ",\"finish_reason\":null}]");
    str_puts(&data, a->request->include_usage ? ",\"usage\":null}" : "}");
    add_stream_event(&data, to);
    str_free(&data);
}

/* Clients want to hear of all choices in order before the text of one. */
static void add_roles(api_answer *a, str *to) {
    int i;
    for (i = 0; i < a->n_choices && !a->choices[i].role_sent; i++) {
        add_piece(a, i, PIECE_ROLE, to);
        a->choices[i].role_sent = true;
    }
}

/* Adds what a stream has to say about a choice now: its new text, its end. A choice that fell to an error ends the stream
   in another way. */
static void add_pieces(api_answer *a, int index, str *to) {
    api_choice *c = &a->choices[index];
    const api_echo *echo = echo_of(a, c);
    bool chat = a->request->kind == API_CHAT, one = a->request->tools.form == CALL_ONE;
    bool more = c->text.length || c->logprobs.lists[0].length || (echo && (echo->text.length || echo->logprobs.lists[0].length));
    int k;
    if (chat && (more || c->calls.length || c->thought.length || c->ended)) add_roles(a, to);
    if (c->thought.length) add_piece(a, index, PIECE_THOUGHT, to);
    if (more && (chat || !c->ended)) add_piece(a, index, one ? PIECE_CALLS : PIECE_TEXT, to);
    if (c->calls.length) add_piece(a, index, PIECE_CALLS, to);
    if (c->ended && c->finish != FG_FINISH_ERROR) add_piece(a, index, PIECE_END, to); /* a completion's has the last text */
    c->begun = c->begun || more || c->calls.length || c->ended;
    c->n_calls += one && more && !c->n_calls;
    c->text.length = c->calls.length = c->thought.length = 0;
    for (k = 0; k < 4; k++) c->logprobs.lists[k].length = 0;
}

/* The end of a stream: usage if wanted, an error if there was one, [DONE]. */
static void add_stream_end(const api_answer *a, const api_error *error, str *to) {
    str data = {NULL, 0, 0};
    if (error) {
        api_add_error(&data, error);
    } else if (a->request->include_usage) {
        add_head(a, true, &data);
        str_puts(&data, "],\"usage\":");
        add_usage(a, &data);
        str_puts(&data, "}");
    }
    if (data.length) add_stream_event(&data, to);
    str_puts(to, "data: [DONE]\n\n");
    str_free(&data);
}
