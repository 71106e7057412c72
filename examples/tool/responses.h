/* The Responses API, OpenAI's newer one (POST /v1/responses): its requests become those of chat completions, and what is generated becomes
   items of output, whole or as events. Nothing is kept between requests: the whole conversation comes as input. */

/* ---- requests ---------------------------------------------------------------------------------- */

/* {"role": ..., "content": a text or parts}; instructions that come as a developer's are the system's for models. */
static bool response_add_message(api_request *r, const json *j, const json_node *item, unsigned number, api_messages *m) {
    static const char *const roles[4] = {"user", "assistant", "system", "developer"};
    const json_node *role = json_get(j, item, "role"), *content = json_get(j, item, "content");
    int i = 0;
    while (i < 4 && !(role && role->type == JSON_STRING && json_is(j, role, roles[i]))) i++;
    if (i == 4) return api_fail(r, 400, "input", "input: the role of item %u is none of user, assistant, system and developer", number);
    if (!content || (content->type != JSON_STRING && content->type != JSON_ARRAY)) return api_fail(r, 400, "input", "input: item %u has no content", number);
    api_begin_message(m, roles[i == 3 ? 2 : i]);
    api_add_value(j, content, &m->text);
    m->open = true;
    if (i != 1) api_end_message(m);
    return true;
}

/* A call that the model made. */
static bool response_add_made_call(api_request *r, const json *j, const json_node *item, unsigned number, api_messages *m) {
    const json_node *id = json_get(j, item, "call_id"), *name = json_get(j, item, "name"), *arguments = json_get(j, item, "arguments");
    if (!id || !name || !arguments || id->type != JSON_STRING || name->type != JSON_STRING || arguments->type != JSON_STRING)
        return api_fail(r, 400, "input", "input: item %u needs call_id, name and arguments, all texts", number);
    if (!m->open) {
        api_begin_message(m, "assistant");
        str_puts(&m->text, "null");
        m->open = true;
    }
    api_begin_call(j, id, name, m);
    api_add_value(j, arguments, &m->text);
    str_puts(&m->text, "}}");
    return true;
}

/* What came of a call. */
static bool response_add_call_output(api_request *r, const json *j, const json_node *item, unsigned number, api_messages *m) {
    const json_node *id = json_get(j, item, "call_id"), *output = json_get(j, item, "output");
    if (!id || !output || id->type != JSON_STRING || (output->type != JSON_STRING && output->type != JSON_ARRAY))
        return api_fail(r, 400, "input", "input: item %u needs call_id and output", number);
    api_begin_message(m, "tool");
    api_add_value(j, output, &m->text);
    api_add_member(j, "tool_call_id", id, &m->text);
    str_puts(&m->text, "}");
    return true;
}

/* An item of input. What a model thought before is not shown to it again. */
static bool response_add_item(api_request *r, const json *j, const json_node *item, unsigned number, api_messages *m) {
    const json_node *type = json_get(j, item, "type");
    if (!type || json_is(j, type, "message")) return response_add_message(r, j, item, number, m);
    if (json_is(j, type, "function_call")) return response_add_made_call(r, j, item, number, m);
    if (json_is(j, type, "function_call_output")) return response_add_call_output(r, j, item, number, m);
    if (json_is(j, type, "reasoning")) return true;
    return api_fail(r, 400, "input", "input: item %u is of type '%.*s', which this server does not take", number,
                    (int)(type->end - type->begin < 60 ? type->end - type->begin : 60), j->text + type->begin);
}

/* "instructions", and "input": a text, or a list of items. */
static bool response_add_input(api_request *r, const json *j, str *to) {
    const json_node *input = json_get(j, j->nodes, "input"), *instructions = json_get(j, j->nodes, "instructions"), *item = input ? input + 1 : NULL;
    api_messages m = {{NULL, 0, 0}, false, false};
    bool ok = true, list = input && input->type == JSON_ARRAY;
    uint32_t i;
    if (!(list && input->count) && !(input && input->type == JSON_STRING)) return api_fail(r, 400, "input", "input must be a text or an array of items");
    if (instructions && instructions->type != JSON_STRING) return api_fail(r, 400, "instructions", "instructions must be a text");
    str_puts(&m.text, "[");
    if (instructions) api_begin_message(&m, "system"), api_add_value(j, instructions, &m.text), str_puts(&m.text, "}");
    if (!list) api_begin_message(&m, "user"), api_add_value(j, input, &m.text), str_puts(&m.text, "}");
    for (i = 0; list && ok && i < input->count; i++, item = json_next(j, item)) ok = response_add_item(r, j, item, i, &m);
    api_end_message(&m);
    str_puts(to, ",\"messages\":");
    str_add(to, m.text.data, m.text.length);
    str_puts(to, "]");
    str_free(&m.text);
    return ok;
}

/* "tool_choice": a word, or {"type": "function", "name": ...}. */
static bool response_add_choice(api_request *r, const json *j, str *to) {
    const json_node *choice = json_get(j, j->nodes, "tool_choice"), *type = choice ? json_get(j, choice, "type") : NULL;
    const json_node *name = choice ? json_get(j, choice, "name") : NULL;
    if (!choice || choice->type == JSON_STRING) {
        api_add_member(j, "tool_choice", choice, to);
        return true;
    }
    if (!type || !json_is(j, type, "function") || !name)
        return api_fail(r, 400, "tool_choice", "tool_choice must be \"none\", \"auto\", \"required\" or a function");
    api_add_chosen(j, name, to);
    return true;
}

/* "text": {"format": {"type": "json_schema", "schema": ...}}, whose schema chat completions have a level deeper. */
static bool response_add_format(api_request *r, const json *j, str *to) {
    const json_node *text = json_get(j, j->nodes, "text"), *format = text ? json_get(j, text, "format") : NULL, *type;
    if (text && text->type != JSON_OBJECT) return api_fail(r, 400, "text", "text must be an object");
    if (!format) return true;
    type = json_get(j, format, "type");
    if (!type || !(json_is(j, type, "text") || json_is(j, type, "json_object") || json_is(j, type, "json_schema")))
        return api_fail(r, 400, "text.format", "text.format.type must be \"text\", \"json_object\" or \"json_schema\"");
    str_puts(to, ",\"response_format\":");
    if (!json_is(j, type, "json_schema")) {
        api_add_value(j, format, to);
        return true;
    }
    str_puts(to, "{\"type\":\"json_schema\",\"json_schema\":");
    api_add_value(j, format, to);
    str_puts(to, "}");
    return true;
}

/* "include" may ask for log-probabilities; what else it may name no answer here has. */
static void response_add_logprobs(const json *j, str *to) {
    const json_node *include = json_get(j, j->nodes, "include"), *top = json_get(j, j->nodes, "top_logprobs"), *item = include ? include + 1 : NULL;
    double n = 0.0;
    bool asked = top && json_real(j, top, &n) && n > 0.0;
    uint32_t i;
    for (i = 0; include && include->type == JSON_ARRAY && i < include->count; i++, item = json_next(j, item))
        asked = asked || (item->type == JSON_STRING && json_is(j, item, "message.output_text.logprobs"));
    str_puts(to, asked ? ",\"logprobs\":true" : "");
}

/* "reasoning": {"effort": ...}. */
static void response_add_effort(const json *j, str *to) {
    const json_node *reasoning = json_get(j, j->nodes, "reasoning");
    if (reasoning && reasoning->type == JSON_OBJECT) api_add_member(j, "reasoning_effort", json_get(j, reasoning, "effort"), to);
}

/* What is written anew, or has no meaning in this API. */
static const char *const response_own[] = {"input", "instructions", "tools", "tool_choice", "text", "include", "messages", "response_format", "n", "best_of",
                                           "logprobs", "max_tokens", "max_completion_tokens", "stream_options", "continue_final_message",
                                           "add_generation_prompt", "reasoning_effort"};

/* What needs a server that keeps responses, or more than a model. */
static bool response_check_unsupported(api_request *r, const json *j) {
    static const char *const names[] = {"previous_response_id", "conversation", "prompt"};
    const json_node *background = json_get(j, j->nodes, "background");
    int i;
    for (i = 0; i < API_COUNT(names); i++)
        if (json_get(j, j->nodes, names[i]))
            return api_fail(r, 400, names[i], "%s is not supported: this server keeps nothing, send the whole conversation as input", names[i]);
    return !background || !grammar_is_true(j, background) || api_fail(r, 400, "background", "background is not supported");
}

/* The body of the request to chat completions. */
static bool response_to_chat(api_request *r, const json *j, str *to) {
    api_add_others(j, response_own, API_COUNT(response_own), to);
    response_add_logprobs(j, to);
    response_add_effort(j, to);
    if (!response_check_unsupported(r, j) || !response_add_input(r, j, to) || !api_add_tools(r, j, "function", "parameters", to) || !response_add_choice(r, j, to) ||
        !response_add_format(r, j, to))
        return false;
    str_puts(to, "}");
    return true;
}

enum { RESPONSE_MAX_ECHO = 4 << 20 }; /* kept for as long as the request waits and runs */

/* Members of each response that say what was asked for. */
static void response_add_echo(const json *j, str *to) {
    static const char *const names[][2] = {
        {"instructions", "null"}, {"max_output_tokens", "null"}, {"metadata", "{}"}, {"parallel_tool_calls", "true"}, {"temperature", "1.0"},
        {"reasoning", "{\"effort\":null,\"summary\":null}"}, {"text", "{\"format\":{\"type\":\"text\"}}"}, {"tool_choice", "\"auto\""}, {"tools", "[]"}, {"top_logprobs", "0"}, {"top_p", "1.0"}, {"user", "null"},
    };
    size_t i;
    for (i = 0; i < (size_t)API_COUNT(names); i++) {
        const json_node *value = json_get(j, j->nodes, names[i][0]);
        if (value) api_add_member(j, names[i][0], value, to);
        else str_printf(to, ",\"%s\":%s", names[i][0], names[i][1]);
    }
    for (i = 0; i < to->length; i++)
        if (to->data[i] == '\n' || to->data[i] == '\r') to->data[i] = ' '; /* between values, where they would end an event of a stream */
    str_puts(to, ",\"background\":false,\"previous_response_id\":null,\"store\":false,"
                 "\"truncation\":\"disabled\"");
}

/* What a field is called here. */
static void response_rename_field(api_error *error) {
    if (strcmp(error->param, "messages") == 0) snprintf(error->param, sizeof(error->param), "input");
    if (strcmp(error->param, "response_format") == 0) snprintf(error->param, sizeof(error->param), "text.format");
}

/* Reads a body, as api_read. */
static void response_read(api_request *r, const api_server *s, const char *body, size_t length, uint64_t seed) {
    str chat = {NULL, 0, 0}, echo = {NULL, 0, 0};
    json j;
    memset(r, 0, sizeof(*r));
    if (api_parse(r, &j, body, length) && response_to_chat(r, &j, &chat)) {
        response_add_echo(&j, &echo);
        api_read(r, s, API_RESPONSES, chat.data, chat.length, seed);
        r->response_echo = echo;
        if (!r->error.status && echo.length > RESPONSE_MAX_ECHO)
            api_fail(r, 400, NULL, "instructions, tools, text, metadata and user are longer than %d bytes, and come back with the response", RESPONSE_MAX_ECHO);
        response_rename_field(&r->error);
    }
    json_free(&j);
    str_free(&chat);
}

/* ---- answers: what output.h writes in this API's form -------------------------------------------- */

static void response_add_id(const api_answer *a, const api_choice *c, str *to) {
    static const char *const kinds[] = {"", "msg", "fc", "rs"};
    str_printf(to, "\"%s_%s_%d\"", kinds[c->output.open], strchr(a->id, '_') + 1, c->output.n_items);
}

/* Where an event belongs. */
static void response_add_place(const api_answer *a, const api_choice *c, str *to) {
    str_puts(to, "\"item_id\":");
    response_add_id(a, c, to);
    str_printf(to, ",\"output_index\":%d", c->output.n_items);
    if (c->output.open != OUTPUT_CALL) str_puts(to, ",\"content_index\":0");
}

static void response_add_part(const api_choice *c, str *to) {
    str_printf(to, "{\"type\":\"%s\",", c->output.open == OUTPUT_TEXT ? "output_text" : "reasoning_text");
    if (c->output.open == OUTPUT_TEXT) {
        str_puts(to, "\"annotations\":[],\"logprobs\":[");
        str_add(to, c->output.logprobs.length ? c->output.logprobs.data : "", c->output.logprobs.length);
        str_puts(to, "],");
    }
    str_puts(to, "\"text\":");
    str_json(to, c->output.text.data, c->output.text.length);
    str_puts(to, "}");
}

/* The item that is open; a message without its part when it has only begun. */
static void response_add_output(const api_answer *a, const api_choice *c, const char *status, bool begun, str *to) {
    str_puts(to, "{\"id\":");
    response_add_id(a, c, to);
    str_printf(to, ",\"status\":\"%s\",", status);
    if (c->output.open != OUTPUT_CALL) {
        str_puts(to, c->output.open == OUTPUT_TEXT ? "\"type\":\"message\",\"role\":\"assistant\",\"content\":[" : "\"type\":\"reasoning\",\"summary\":[],\"content\":[");
        if (!begun) response_add_part(c, to);
        str_puts(to, "]}");
        return;
    }
    str_puts(to, "\"type\":\"function_call\",\"call_id\":\"");
    add_call_id(a, c, c->output.n_items, to);
    str_puts(to, "\",\"name\":");
    add_tool_name(a, c->output.tool, to);
    str_puts(to, ",\"arguments\":");
    str_json(to, c->output.text.data, c->output.text.length);
    str_puts(to, "}");
}

static void response_add_item_event(const api_answer *a, api_choice *c, const char *type, const char *status, bool begun) {
    str members = {NULL, 0, 0};
    str_printf(&members, "\"output_index\":%d,\"item\":", c->output.n_items);
    response_add_output(a, c, status, begun, &members);
    output_add_event(a, c, type, &members);
    str_free(&members);
}

static void response_add_part_event(const api_answer *a, api_choice *c, const char *type) {
    str members = {NULL, 0, 0};
    if (c->output.open == OUTPUT_CALL) return;
    response_add_place(a, c, &members);
    str_puts(&members, ",\"part\":");
    response_add_part(c, &members);
    output_add_event(a, c, type, &members);
    str_free(&members);
}

static void response_open(const api_answer *a, api_choice *c) {
    response_add_item_event(a, c, "response.output_item.added", "in_progress", true);
    response_add_part_event(a, c, "response.content_part.added");
}

/* An event of what is in the item: response.output_text.delta, say. */
static void response_add_content_event(const api_answer *a, api_choice *c, const char *what, const str *members) {
    static const char *const kinds[] = {"", "output_text", "function_call_arguments", "reasoning_text"};
    char type[64];
    snprintf(type, sizeof(type), "response.%s.%s", kinds[c->output.open], what);
    output_add_event(a, c, type, members);
}

static void response_write(const api_answer *a, api_choice *c, const char *text, size_t length, const str *logprobs) {
    bool spoken = c->output.open == OUTPUT_TEXT;
    str members = {NULL, 0, 0};
    response_add_place(a, c, &members);
    str_puts(&members, ",\"delta\":");
    str_json(&members, text, length);
    if (spoken) str_puts(&members, ",\"logprobs\":[");
    if (spoken && logprobs->length) str_add(&members, logprobs->data, logprobs->length);
    if (spoken) str_puts(&members, "]");
    response_add_content_event(a, c, "delta", &members);
    str_free(&members);
}

/* What the item that is open has come to. */
static void response_add_done(const api_answer *a, api_choice *c) {
    bool call = c->output.open == OUTPUT_CALL;
    str members = {NULL, 0, 0};
    response_add_place(a, c, &members);
    str_puts(&members, call ? ",\"arguments\":" : ",\"text\":");
    str_json(&members, c->output.text.data, c->output.text.length);
    if (call) str_puts(&members, ",\"name\":"), add_tool_name(a, c->output.tool, &members);
    if (c->output.open == OUTPUT_TEXT) {
        str_puts(&members, ",\"logprobs\":[");
        str_add(&members, c->output.logprobs.length ? c->output.logprobs.data : "", c->output.logprobs.length);
        str_puts(&members, "]");
    }
    response_add_content_event(a, c, "done", &members);
    str_free(&members);
}

static void response_close(const api_answer *a, api_choice *c, bool whole) {
    const char *status = whole ? "completed" : "incomplete";
    response_add_done(a, c);
    response_add_part_event(a, c, "response.content_part.done");
    response_add_item_event(a, c, "response.output_item.done", status, false);
    response_add_output(a, c, status, false, &c->output.items);
}

static const char *response_status(const api_answer *a) { return a->choices->finish == FG_FINISH_LENGTH ? "incomplete" : "completed"; }

/* The response as it is now: without usage before its end. */
static void response_add(const api_answer *a, const char *status, const api_error *error, str *to) {
    const api_choice *c = a->choices;
    str_printf(to, "{\"id\":\"%s\",\"object\":\"response\",\"created_at\":%lld,\"status\":\"%s\",\"model\":", a->id, a->created, status);
    str_json(to, a->model_name, strlen(a->model_name));
    str_puts(to, ",\"error\":");
    if (error) str_puts(to, "{\"code\":\"server_error\",\"message\":"), str_json(to, error->message, strlen(error->message)), str_puts(to, "}");
    else str_puts(to, "null");
    str_printf(to, ",\"incomplete_details\":%s", strcmp(status, "incomplete") == 0 ? "{\"reason\":\"max_output_tokens\"}" : "null");
    str_add(to, a->request->response_echo.data, a->request->response_echo.length);
    str_puts(to, ",\"output\":[");
    str_add(to, c->output.items.length ? c->output.items.data : "", c->output.items.length);
    str_puts(to, "],\"usage\":");
    if (c->ended)
        str_printf(to, "{\"input_tokens\":%d,\"input_tokens_details\":{\"cached_tokens\":%d},\"output_tokens\":%d,"
                       "\"output_tokens_details\":{\"reasoning_tokens\":0},\"total_tokens\":%d}}",
                   a->n_prompt, a->n_cached, a->n_generated, a->n_prompt + a->n_generated);
    else str_puts(to, "null}");
}

static void response_add_state(const api_answer *a, const char *type, const char *status, const api_error *error) {
    str members = {NULL, 0, 0};
    str_puts(&members, "\"response\":");
    response_add(a, status, error, &members);
    output_add_event(a, a->choices, type, &members);
    str_free(&members);
}

static void response_begin(const api_answer *a) {
    response_add_state(a, "response.created", "in_progress", NULL);
    response_add_state(a, "response.in_progress", "in_progress", NULL);
}

static void response_end(const api_answer *a, const api_error *error) {
    bool whole = strcmp(response_status(a), "completed") == 0;
    if (error) response_add_state(a, "response.failed", "failed", error);
    else response_add_state(a, whole ? "response.completed" : "response.incomplete", response_status(a), NULL);
}
