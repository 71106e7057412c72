/* Anthropic's Messages API (POST /v1/messages): its requests become those of chat completions, and what is generated becomes blocks of
   content, whole or as events. */

/* ---- requests ---------------------------------------------------------------------------------- */

static bool message_is(const json *j, const json_node *object, const char *type) {
    const json_node *node = json_get(j, object, "type");
    return node && node->type == JSON_STRING && json_is(j, node, type);
}

/* What came of calls, in blocks of a user's message: each a message of its own, before what else the user says. */
static bool message_add_results(api_request *r, const json *j, const json_node *blocks, api_messages *m) {
    const json_node *block = blocks + 1;
    uint32_t i;
    for (i = 0; i < blocks->count; i++, block = json_next(j, block)) {
        const json_node *id = json_get(j, block, "tool_use_id"), *content = json_get(j, block, "content");
        if (!message_is(j, block, "tool_result")) continue;
        if (!id || id->type != JSON_STRING || (content && content->type != JSON_STRING && content->type != JSON_ARRAY))
            return api_fail(r, 400, "messages", "messages: a tool_result needs a tool_use_id, and content that is a text or blocks");
        api_begin_message(m, "tool");
        if (content) api_add_value(j, content, &m->text);
        else str_puts(&m->text, "\"\"");
        api_add_member(j, "tool_call_id", id, &m->text);
        str_puts(&m->text, "}");
    }
    return true;
}

/* The blocks that are no call, no result of one, and nothing that the model only thought; how many. */
static int message_add_blocks(const json *j, const json_node *blocks, str *to) {
    static const char *const others[] = {"tool_use", "tool_result", "thinking", "redacted_thinking"};
    const json_node *block = blocks + 1;
    uint32_t i;
    int n = 0, k;
    str_puts(to, "[");
    for (i = 0; i < blocks->count; i++, block = json_next(j, block)) {
        for (k = 0; k < API_COUNT(others) && !message_is(j, block, others[k]); k++) {}
        if (k < API_COUNT(others)) continue;
        str_puts(to, n++ ? "," : "");
        api_add_value(j, block, to);
    }
    str_puts(to, "]");
    return n;
}

static bool message_add_user(api_request *r, const json *j, const json_node *blocks, api_messages *m) {
    str text = {NULL, 0, 0};
    if (!message_add_results(r, j, blocks, m)) return false;
    if (message_add_blocks(j, blocks, &text)) {
        api_begin_message(m, "user");
        str_add(&m->text, text.data, text.length);
        str_puts(&m->text, "}");
    }
    str_free(&text);
    return true;
}

/* A call that the model made; the arguments of chat completions are JSON in a text. */
static bool message_add_use(api_request *r, const json *j, const json_node *block, api_messages *m) {
    const json_node *id = json_get(j, block, "id"), *name = json_get(j, block, "name"), *input = json_get(j, block, "input");
    if (!id || !name || !input || id->type != JSON_STRING || name->type != JSON_STRING || input->type != JSON_OBJECT)
        return api_fail(r, 400, "messages", "messages: a tool_use needs an id, a name, and an object as input");
    api_begin_call(j, id, name, m);
    str_json(&m->text, j->text + input->begin, input->end - input->begin);
    str_puts(&m->text, "}}");
    return true;
}

static bool message_add_assistant(api_request *r, const json *j, const json_node *blocks, api_messages *m) {
    const json_node *block = blocks + 1;
    str text = {NULL, 0, 0};
    bool ok = true;
    uint32_t i;
    api_begin_message(m, "assistant");
    m->open = true;
    if (message_add_blocks(j, blocks, &text)) str_add(&m->text, text.data, text.length);
    else str_puts(&m->text, "null");
    for (i = 0; i < blocks->count && ok; i++, block = json_next(j, block))
        if (message_is(j, block, "tool_use")) ok = message_add_use(r, j, block, m);
    str_free(&text);
    return ok;
}

/* A message: {"role": ..., "content": a text or blocks}. */
static bool message_add_one(api_request *r, const json *j, const json_node *message, unsigned number, api_messages *m) {
    const json_node *role = json_get(j, message, "role"), *content = json_get(j, message, "content");
    bool user = role && role->type == JSON_STRING && json_is(j, role, "user");
    if (!user && !(role && role->type == JSON_STRING && json_is(j, role, "assistant")))
        return api_fail(r, 400, "messages", "messages: the role of item %u is neither user nor assistant", number);
    if (!content || (content->type != JSON_STRING && content->type != JSON_ARRAY))
        return api_fail(r, 400, "messages", "messages: item %u has no content", number);
    if (content->type == JSON_ARRAY) return user ? message_add_user(r, j, content, m) : message_add_assistant(r, j, content, m);
    api_begin_message(m, user ? "user" : "assistant");
    api_add_value(j, content, &m->text);
    m->open = true;
    return true;
}

/* "system" and "messages"; an assistant's text that comes last is to be continued. */
static bool message_add_all(api_request *r, const json *j, str *to) {
    const json_node *messages = json_get(j, j->nodes, "messages"), *system = json_get(j, j->nodes, "system"), *message = messages ? messages + 1 : NULL;
    api_messages m = {{NULL, 0, 0}, false, false};
    bool ok = true, last = false;
    uint32_t i;
    if (!messages || messages->type != JSON_ARRAY || !messages->count) return api_fail(r, 400, "messages", "messages must be an array of at least one message");
    if (system && system->type != JSON_STRING && system->type != JSON_ARRAY) return api_fail(r, 400, "system", "system must be a text or blocks");
    str_puts(&m.text, "[");
    if (system) api_begin_message(&m, "system"), api_add_value(j, system, &m.text), str_puts(&m.text, "}");
    for (i = 0; ok && i < messages->count; i++, message = json_next(j, message)) {
        ok = message_add_one(r, j, message, i, &m);
        last = ok && m.open && !m.calls && json_is(j, json_get(j, message, "role"), "assistant");
    }
    api_end_message(&m);
    str_puts(to, ",\"messages\":");
    str_add(to, m.text.data, m.text.length);
    str_puts(to, last ? "],\"continue_final_message\":true,\"add_generation_prompt\":false" : "]");
    str_free(&m.text);
    return ok;
}

/* {"type": "auto", "any" or "none"}, or {"type": "tool", "name": ...}; with "disable_parallel_tool_use" one call at most. */
static bool message_add_choice(api_request *r, const json *j, str *to) {
    const json_node *choice = json_get(j, j->nodes, "tool_choice"), *name = choice ? json_get(j, choice, "name") : NULL;
    const json_node *single = choice ? json_get(j, choice, "disable_parallel_tool_use") : NULL;
    bool any = choice && message_is(j, choice, "any"), tool = choice && message_is(j, choice, "tool") && name;
    if (!choice) return true;
    if (!any && !tool && !message_is(j, choice, "auto") && !message_is(j, choice, "none"))
        return api_fail(r, 400, "tool_choice", "tool_choice must be of type auto, any, none, or tool with a name");
    if (single && grammar_is_true(j, single)) str_puts(to, ",\"parallel_tool_calls\":false");
    if (tool) api_add_chosen(j, name, to);
    else str_printf(to, ",\"tool_choice\":\"%s\"", any ? "required" : message_is(j, choice, "auto") ? "auto" : "none");
    return true;
}

/* "output_config": {"format": {"type": "json_schema", "schema": ...}}, which was "output_format" before. */
static bool message_add_format(api_request *r, const json *j, str *to) {
    const json_node *config = json_get(j, j->nodes, "output_config"), *format = config ? json_get(j, config, "format") : NULL;
    if (!format) format = json_get(j, j->nodes, "output_format");
    if (!format) return true;
    if (!message_is(j, format, "json_schema")) return api_fail(r, 400, "output_config.format", "output_config.format.type must be \"json_schema\"");
    str_puts(to, ",\"response_format\":{\"type\":\"json_schema\",\"json_schema\":");
    api_add_value(j, format, to);
    str_puts(to, "}");
    return true;
}

/* What is written anew, or has no meaning in this API. */
static const char *const message_own[] = {"messages", "system", "stop_sequences", "tools", "tool_choice", "output_config", "output_format", "response_format",
                                          "n", "best_of", "logprobs", "top_logprobs", "max_completion_tokens", "stream_options", "stop",
                                          "parallel_tool_calls", "continue_final_message", "add_generation_prompt"};

/* The body of the request to chat completions. */
static bool message_to_chat(api_request *r, const json *j, str *to) {
    api_add_others(j, message_own, API_COUNT(message_own), to);
    api_add_member(j, "stop", json_get(j, j->nodes, "stop_sequences"), to);
    if (!message_add_all(r, j, to) || !api_add_tools(r, j, "custom", "input_schema", to) || !message_add_choice(r, j, to) || !message_add_format(r, j, to)) return false;
    str_puts(to, "}");
    return true;
}

/* Reads a body, as api_read; `count`: only the prompt's tokens are wanted. */
static void message_read(api_request *r, const api_server *s, const char *body, size_t length, uint64_t seed, bool count) {
    str chat = {NULL, 0, 0};
    json j;
    memset(r, 0, sizeof(*r));
    if (api_parse(r, &j, body, length) && message_to_chat(r, &j, &chat)) {
        api_read(r, s, API_MESSAGES, chat.data, chat.length, seed);
        if (count && !r->error.status) str_printf(&r->reply, "{\"input_tokens\":%zu}", r->prompts->n_tokens);
    }
    json_free(&j);
    str_free(&chat);
}

/* ---- answers: what output.h writes in this API's form -------------------------------------------- */

static void message_add_error(str *to, const api_error *e) {
    const char *type = e->status == 429 ? "rate_limit_error" : e->status == 404 ? "not_found_error" : e->status == 503 ? "overloaded_error"
                     : e->status >= 500 ? "api_error" : "invalid_request_error";
    str_printf(to, "{\"type\":\"error\",\"error\":{\"type\":\"%s\",\"message\":", type);
    str_json(to, e->message, strlen(e->message));
    str_puts(to, "}}");
}

/* The block that is open, up to its text or input. */
static void message_add_head(const api_answer *a, const api_choice *c, str *to) {
    if (c->output.open != OUTPUT_CALL) {
        str_puts(to, c->output.open == OUTPUT_TEXT ? "{\"type\":\"text\",\"text\":" : "{\"type\":\"thinking\",\"signature\":\"\",\"thinking\":");
        return;
    }
    str_puts(to, "{\"type\":\"tool_use\",\"id\":\"");
    add_call_id(a, c, c->output.n_items, to);
    str_puts(to, "\",\"name\":");
    add_tool_name(a, c->output.tool, to);
    str_puts(to, ",\"input\":");
}

static void message_open(const api_answer *a, api_choice *c) {
    str members = {NULL, 0, 0};
    str_printf(&members, "\"index\":%d,\"content_block\":", c->output.n_items);
    message_add_head(a, c, &members);
    str_puts(&members, c->output.open == OUTPUT_CALL ? "{}}" : "\"\"}");
    output_add_event(a, c, "content_block_start", &members);
    str_free(&members);
}

static void message_write(const api_answer *a, api_choice *c, const char *text, size_t length) {
    static const char *const kinds[][2] = {{"", ""}, {"text_delta", "text"}, {"input_json_delta", "partial_json"}, {"thinking_delta", "thinking"}};
    const char *const *kind = kinds[c->output.open];
    str members = {NULL, 0, 0};
    str_printf(&members, "\"index\":%d,\"delta\":{\"type\":\"%s\",\"%s\":", c->output.n_items, kind[0], kind[1]);
    str_json(&members, text, length);
    str_puts(&members, "}");
    output_add_event(a, c, "content_block_delta", &members);
    str_free(&members);
}

/* Arguments as JSON; {} where they were cut off, or are no UTF-8. */
static void message_add_input(const str *text, str *to) {
    json j;
    bool good = text->length && is_whole_text(text->data, text->length);
    if (good) {
        good = json_parse(&j, text->data, text->length);
        json_free(&j);
    }
    if (good) str_add(to, text->data, text->length);
    else str_puts(to, "{}");
}

static void message_close(const api_answer *a, api_choice *c) {
    const str *text = &c->output.text;
    str members = {NULL, 0, 0}, *to = &c->output.items;
    str_printf(&members, "\"index\":%d", c->output.n_items);
    output_add_event(a, c, "content_block_stop", &members);
    str_free(&members);
    message_add_head(a, c, to);
    if (c->output.open == OUTPUT_CALL) message_add_input(text, to);
    else str_json(to, text->data, text->length);
    str_puts(to, "}");
}

/* The stop text that ended a message: the first in what was generated; NULL: none did. */
static const char *message_stop_text(const api_answer *a) {
    const api_choice *c = a->choices;
    const char *first = NULL, *found = NULL;
    int i;
    if (c->finish != FG_FINISH_STOP || !c->output.raw.length) return NULL;
    for (i = 0; i < a->request->desc.n_stop; i++) {
        const char *at = strstr(c->output.raw.data, a->request->stop_texts[i]);
        if (at && (!first || at < first)) first = at, found = a->request->stop_texts[i];
    }
    return found;
}

/* "stop_reason": ..., "stop_sequence": ... */
static void message_add_stop(const api_answer *a, str *to) {
    const api_choice *c = a->choices;
    const char *text = message_stop_text(a);
    bool calls = strcmp(choice_finish(a, c), "tool_calls") == 0;
    str_printf(to, "\"stop_reason\":\"%s\",\"stop_sequence\":",
               c->finish == FG_FINISH_LENGTH ? "max_tokens" : calls ? "tool_use" : text ? "stop_sequence" : "end_turn");
    if (text && !calls) str_json(to, text, strlen(text));
    else str_puts(to, "null");
}

/* "usage": ...; input_tokens are those that were not cached. */
static void message_add_usage(const api_answer *a, int n_prompt, str *to) {
    str_printf(to, "\"usage\":{\"input_tokens\":%d,\"cache_creation_input_tokens\":0,\"cache_read_input_tokens\":%d,\"output_tokens\":%d}", n_prompt - a->n_cached,
               a->n_cached, a->n_generated);
}

/* The message as it is when it begins, or whole. */
static void message_add(const api_answer *a, bool whole, str *to) {
    const api_choice *c = a->choices;
    str_printf(to, "{\"id\":\"%s\",\"type\":\"message\",\"role\":\"assistant\",\"model\":", a->id);
    str_json(to, a->model_name, strlen(a->model_name));
    str_puts(to, ",\"content\":[");
    str_add(to, c->output.items.length ? c->output.items.data : "", c->output.items.length);
    str_puts(to, "],");
    if (whole) message_add_stop(a, to);
    else str_puts(to, "\"stop_reason\":null,\"stop_sequence\":null");
    str_puts(to, ",");
    message_add_usage(a, whole ? a->n_prompt : (int)a->request->prompts->n_tokens, to);
    str_puts(to, "}");
}

static void message_begin(const api_answer *a) {
    str members = {NULL, 0, 0};
    str_puts(&members, "\"message\":");
    message_add(a, false, &members);
    output_add_event(a, a->choices, "message_start", &members);
    str_free(&members);
}

static void message_end(const api_answer *a, const api_error *error) {
    str members = {NULL, 0, 0}, *to = &a->choices->output.events;
    if (error) {
        str_puts(to, "event: error\ndata: ");
        message_add_error(to, error);
        str_puts(to, "\n\n");
        return;
    }
    str_puts(&members, "\"delta\":{");
    message_add_stop(a, &members);
    str_puts(&members, "},");
    message_add_usage(a, a->n_prompt, &members);
    output_add_event(a, a->choices, "message_delta", &members);
    str_puts(to, "event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n");
    str_free(&members);
}
