/* The OpenAI API as JSON: request bodies to fg_request_desc. Fields beyond OpenAI's are named and mean the same as with vLLM,
   but for the order of top_p and min_p: here they cut the distribution at temperature 1, and what is left is drawn from at the
   request's (see fg_sampling), as with llama.cpp; vLLM applies the temperature first. json_schema, grammar, reasoning_format
   and the schema of response_format's json_object are llama.cpp's. Missing and null fields take their defaults, unknown ones are
   ignored. No sockets and no engine in here. */

typedef enum api_kind { API_COMPLETION, API_CHAT, API_RESPONSES, API_MESSAGES, API_TOKENIZE, API_DETOKENIZE, API_COUNT } api_kind;

enum { API_MAX_PROMPTS = 1024, API_MAX_N = 128, API_MAX_STOPS = 64, API_MAX_BIASES = 4096, API_MAX_CHOICES = 4096, API_MAX_ECHO = 128 << 20 /* bytes */ };

/* What a model writes between <think> and </think> before its answer, and where a choice is. */
typedef enum api_thinking {
    THINKING_NONE,   /* is not looked for, or over */
    THINKING_BEFORE, /* may begin */
    THINKING_INSIDE,
    THINKING_BEHIND  /* of white space behind it nothing is kept */
} api_thinking;

typedef struct api_error {
    int status; /* HTTP; 0: none */
    const char *code;
    char param[64], message[480];
} api_error;

typedef struct api_prompt {
    int32_t *tokens;
    size_t n_tokens;
    str text; /* with echo */
} api_prompt;

/* What a request asks for. */
typedef struct api_request {
    api_kind kind;
    fg_request_desc desc; /* without prompt; its lists are stop_texts, biases and stop_tokens */
    api_prompt *prompts;
    int n_prompts;
    char **stop_texts;
    fg_logit_bias *biases;
    int32_t *stop_tokens;
    bool stream, include_usage, echo;
    bool add_special_tokens, add_generation_prompt, continue_final_message, return_token_strs;
    bool logprobs;
    int max_tokens, n, best_of, top_logprobs, priority;
    grammar *grammar; /* of response_format and its like; NULL: none */
    call_tools tools;
    api_thinking thinking; /* what the choices begin with */
    bool channels;         /* they are messages of channels, see answer_read_channels */
    str reply; /* of API_TOKENIZE, API_DETOKENIZE and API_COUNT: the JSON to send */
    str response_echo; /* of API_RESPONSES, see response_add_echo */
    api_error error;
} api_request;

/* What requests are read against. */
typedef struct api_server {
    const fg_model *model;
    const char *model_name;
    int max_context;
    int n_vocab;
    size_t longest_token; /* see api_longest_token; 0: not known */
    grammar_vocab *vocab; /* made when it is first needed */
    thread_lock *vocab_lock; /* meanwhile; NULL: none is needed */
} api_server;

static void api_request_free(api_request *r) {
    int i;
    for (i = 0; i < r->n_prompts; i++) {
        free(r->prompts[i].tokens);
        str_free(&r->prompts[i].text);
    }
    for (i = 0; i < r->desc.n_stop; i++) free(r->stop_texts[i]);
    free(r->prompts);
    free(r->stop_texts);
    free(r->biases);
    free(r->stop_tokens);
    grammar_free(r->grammar);
    call_tools_free(&r->tools);
    str_free(&r->reply);
    str_free(&r->response_echo);
}

/* Notes what is wrong with the request; always false. */
static bool api_fail(api_request *r, int status, const char *param, const char *format, ...) {
    va_list args;
    r->error.status = status;
    snprintf(r->error.param, sizeof(r->error.param), "%s", param ? param : "");
    va_start(args, format);
    vsnprintf(r->error.message, sizeof(r->error.message), format, args);
    va_end(args);
    return false;
}

static void api_add_error(str *to, const api_error *e) {
    const char *type = e->status == 429 ? "rate_limit_error" : e->status >= 500 ? "server_error" : "invalid_request_error";
    str_puts(to, "{\"error\":{\"message\":");
    str_json(to, e->message, strlen(e->message));
    str_printf(to, ",\"type\":\"%s\",\"param\":", type);
    if (e->param[0]) str_json(to, e->param, strlen(e->param));
    else str_puts(to, "null");
    if (e->code) str_printf(to, ",\"code\":\"%s\"}}", e->code);
    else str_puts(to, ",\"code\":null}}");
}

/* The status that a result of the library becomes. */
static bool api_fail_result(api_request *r, fg_result result, const char *param) {
    int status = result == FG_ERROR_QUEUE_FULL ? 429 : result == FG_ERROR_OUT_OF_MEMORY ? 503
               : result == FG_ERROR_INVALID_ARGUMENT || result == FG_ERROR_TOO_LONG || result == FG_ERROR_TEMPLATE ||
                 result == FG_ERROR_NOT_FOUND ? 400 : 500;
    if (result == FG_ERROR_TOO_LONG) r->error.code = "context_length_exceeded";
    return api_fail(r, status, param, "%s", fg_last_error());
}

/* ---- fields that are one number or one flag ---------------------------------------------------- */

typedef enum api_type { API_INT, API_FLOAT, API_BOOL } api_type;

typedef struct api_field {
    const char *name;
    api_type type;
    size_t offset; /* in api_request */
    double least, most;
} api_field;

#define API_AT(name) offsetof(api_request, name)

static const api_field api_fields[] = {
    {"stream", API_BOOL, API_AT(stream), 0, 0},
    {"n", API_INT, API_AT(n), 1, API_MAX_N},
    {"min_tokens", API_INT, API_AT(desc.min_tokens), 0, INT_MOST},
    {"max_tokens", API_INT, API_AT(max_tokens), 0, INT_MOST},
    {"temperature", API_FLOAT, API_AT(desc.sampling.temperature), 0, 100},
    {"top_p", API_FLOAT, API_AT(desc.sampling.top_p), 0, 1},
    {"top_k", API_INT, API_AT(desc.sampling.top_k), -1, INT_MOST},
    {"min_p", API_FLOAT, API_AT(desc.sampling.min_p), 0, 1},
    {"typical_p", API_FLOAT, API_AT(desc.sampling.typical_p), 0, 1},
    {"repetition_penalty", API_FLOAT, API_AT(desc.sampling.repetition_penalty), 0.01, 100},
    {"presence_penalty", API_FLOAT, API_AT(desc.sampling.presence_penalty), -2, 2},
    {"frequency_penalty", API_FLOAT, API_AT(desc.sampling.frequency_penalty), -2, 2},
    {"ignore_eos", API_BOOL, API_AT(desc.ignore_eos), 0, 0},
    {"priority", API_INT, API_AT(priority), -1e9, 1e9},
};

static const api_field api_completion_fields[] = {
    {"echo", API_BOOL, API_AT(echo), 0, 0},
    {"best_of", API_INT, API_AT(best_of), 1, API_MAX_N},
    {"logprobs", API_INT, API_AT(top_logprobs), 0, FG_MAX_TOP_LOGPROBS},
    {"add_special_tokens", API_BOOL, API_AT(add_special_tokens), 0, 0},
};

static const api_field api_chat_fields[] = {
    {"max_completion_tokens", API_INT, API_AT(max_tokens), 0, INT_MOST},
    {"logprobs", API_BOOL, API_AT(logprobs), 0, 0},
    {"top_logprobs", API_INT, API_AT(top_logprobs), 0, FG_MAX_TOP_LOGPROBS},
    {"add_special_tokens", API_BOOL, API_AT(add_special_tokens), 0, 0},
    {"add_generation_prompt", API_BOOL, API_AT(add_generation_prompt), 0, 0},
    {"continue_final_message", API_BOOL, API_AT(continue_final_message), 0, 0},
};

static const api_field api_response_fields[] = {
    {"max_output_tokens", API_INT, API_AT(max_tokens), 1, INT_MOST},
    {"logprobs", API_BOOL, API_AT(logprobs), 0, 0},
    {"top_logprobs", API_INT, API_AT(top_logprobs), 0, FG_MAX_TOP_LOGPROBS},
};

static const api_field api_tokenize_fields[] = {
    {"add_special_tokens", API_BOOL, API_AT(add_special_tokens), 0, 0},
    {"add_generation_prompt", API_BOOL, API_AT(add_generation_prompt), 0, 0},
    {"continue_final_message", API_BOOL, API_AT(continue_final_message), 0, 0},
    {"return_token_strs", API_BOOL, API_AT(return_token_strs), 0, 0},
};

#define API_COUNT(array) ((int)(sizeof(array) / sizeof((array)[0])))

static bool api_read_field(api_request *r, const json *j, const json_node *value, const api_field *f) {
    void *to = (char *)r + f->offset;
    double number;
    if (f->type == API_BOOL) {
        if (value->type != JSON_BOOL) return api_fail(r, 400, f->name, "%s must be true or false", f->name);
        *(bool *)to = j->text[value->begin] == 't';
        return true;
    }
    if (!json_real(j, value, &number)) return api_fail(r, 400, f->name, "%s must be a number", f->name);
    if (f->type == API_INT && number != floor(number))
        return api_fail(r, 400, f->name, "%s must be a whole number", f->name);
    if (number < f->least || number > f->most)
        return api_fail(r, 400, f->name, "%s is %.10g, but must be in %.10g to %.10g", f->name, number, f->least, f->most);
    if (f->type == API_INT) *(int *)to = (int)number;
    else *(float *)to = (float)number;
    return true;
}

static bool api_read_fields(api_request *r, const json *j, const api_field *fields, int n) {
    int i;
    for (i = 0; i < n; i++) {
        const json_node *value = json_get(j, j->nodes, fields[i].name);
        if (value && !api_read_field(r, j, value, &fields[i])) return false;
    }
    return true;
}

/* ---- lists ------------------------------------------------------------------------------------- */

static bool api_read_stop(api_request *r, const json *j, const json_node *stop) {
    uint32_t i, n = stop->type == JSON_ARRAY ? stop->count : 1;
    const json_node *item = stop->type == JSON_ARRAY ? stop + 1 : stop;
    if (n > API_MAX_STOPS)
        return api_fail(r, 400, "stop", "stop has %u texts, the most is %d", (unsigned)n, API_MAX_STOPS);
    r->stop_texts = (char **)xrealloc(NULL, (n + 1) * sizeof(char *));
    for (i = 0; i < n; i++, item = json_next(j, item)) {
        str text = {NULL, 0, 0};
        if (item->type != JSON_STRING) return api_fail(r, 400, "stop", "stop must be a string or an array of strings");
        json_add_text(j, item, &text);
        r->stop_texts[r->desc.n_stop++] = text.data;
        if (text.length == 0 || text.length > 4096 || strlen(text.data) != text.length)
            return api_fail(r, 400, "stop", "a stop text is empty, longer than 4096 bytes or has a NUL");
    }
    r->desc.stop = (const char *const *)r->stop_texts;
    return true;
}

/* An array of token ids into new memory; -1 after an error. */
static long api_read_tokens(api_request *r, const json *j, const json_node *array, const char *name, int32_t **tokens) {
    const json_node *item = array + 1;
    uint32_t i;
    *tokens = NULL;
    if (array->type != JSON_ARRAY) return api_fail(r, 400, name, "%s must be an array of token ids", name), -1;
    *tokens = (int32_t *)xrealloc(NULL, ((size_t)array->count + 1) * sizeof(int32_t));
    for (i = 0; i < array->count; i++, item = json_next(j, item)) {
        int64_t id;
        if (!json_integer(j, item, &id) || id < 0 || id > 0x7FFFFFFF)
            return api_fail(r, 400, name, "%s: item %u is not a token id", name, (unsigned)i), -1;
        (*tokens)[i] = (int32_t)id;
    }
    return (long)array->count;
}

typedef struct api_bias {
    fg_logit_bias bias;
    int order;
} api_bias;

/* Orders biases by token, equal ones as they came: the number of each is in `order`. */
static int api_bias_order(const void *a, const void *b) {
    const api_bias *x = (const api_bias *)a, *y = (const api_bias *)b;
    return x->bias.token != y->bias.token ? (x->bias.token > y->bias.token) - (x->bias.token < y->bias.token) : x->order - y->order;
}

/* Of equal tokens the last counts. Returns how many are left. */
static int api_last_biases(fg_logit_bias *biases, int n) {
    api_bias *all = (api_bias *)xrealloc(NULL, ((size_t)n + 1) * sizeof(api_bias));
    int i, kept = 0;
    for (i = 0; i < n; i++) all[i].bias = biases[i], all[i].order = i;
    qsort(all, (size_t)n, sizeof(api_bias), api_bias_order);
    for (i = 0; i < n; i++)
        if (i + 1 == n || all[i].bias.token != all[i + 1].bias.token) biases[kept++] = all[i].bias;
    free(all);
    return kept;
}

/* {"token id": bias}; OpenAI's range is -100 to 100, whose ends in effect ban and force a token. */
static bool api_read_bias(api_request *r, const api_server *s, const json *j, const json_node *map) {
    const json_node *key = map + 1;
    uint32_t i;
    if (map->type != JSON_OBJECT || map->count > API_MAX_BIASES)
        return api_fail(r, 400, "logit_bias", "logit_bias must be an object of at most %d token ids", API_MAX_BIASES);
    r->biases = (fg_logit_bias *)xrealloc(NULL, (map->count + 1) * sizeof(fg_logit_bias));
    for (i = 0; i < map->count; i++) {
        const json_node *value = json_next(j, key);
        char digits[12];
        size_t length = key->end - key->begin;
        double bias;
        if (length == 0 || length > 9 || strspn(j->text + key->begin, "0123456789") != length || !json_real(j, value, &bias) ||
            bias < -100 || bias > 100)
            return api_fail(r, 400, "logit_bias", "logit_bias: member %u is not a token id with a number in -100 to 100", (unsigned)i);
        memcpy(digits, j->text + key->begin, length);
        digits[length] = 0;
        r->biases[i].token = (int32_t)atol(digits);
        r->biases[i].bias = (float)bias;
        if (r->biases[i].token >= s->n_vocab)
            return api_fail(r, 400, "logit_bias", "logit_bias: token %s is outside the vocabulary of %d", digits, s->n_vocab);
        key = json_next(j, value);
    }
    r->desc.sampling.logit_bias = r->biases;
    r->desc.sampling.n_logit_bias = api_last_biases(r->biases, (int)map->count);
    return true;
}

static bool api_read_lists(api_request *r, const api_server *s, const json *j) {
    const json_node *stop = json_get(j, j->nodes, "stop"), *bias = json_get(j, j->nodes, "logit_bias");
    const json_node *ids = json_get(j, j->nodes, "stop_token_ids");
    long n, i;
    if (stop && !api_read_stop(r, j, stop)) return false;
    if (bias && !api_read_bias(r, s, j, bias)) return false;
    if (!ids) return true;
    n = api_read_tokens(r, j, ids, "stop_token_ids", &r->stop_tokens);
    if (n < 0 || n > 1024) return n < 0 ? false : api_fail(r, 400, "stop_token_ids", "more than 1024 stop_token_ids");
    for (i = 0; i < n; i++)
        if (r->stop_tokens[i] >= s->n_vocab)
            return api_fail(r, 400, "stop_token_ids", "stop_token_ids: item %ld is outside the vocabulary of %d", i, s->n_vocab);
    r->desc.stop_tokens = r->stop_tokens;
    r->desc.n_stop_tokens = (int)n;
    return true;
}

/* ---- prompts ----------------------------------------------------------------------------------- */

/* What Python takes for white space. */
static bool api_is_space(uint32_t c) {
    return (c >= 9 && c <= 13) || (c >= 28 && c <= 32) || c == 0x85 || c == 0xA0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200A) ||
           c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

/* The bytes of a text that a number of tokens must stand for. Not those of white space, of which vocabularies may take any number for
   one token or for none, nor those of SentencePiece's mark for it; ones that are no UTF-8 are. */
static size_t api_solid_bytes(const char *text, size_t length) {
    size_t solid = 0, i;
    int n;
    for (i = 0; i < length; i += (size_t)n) {
        uint32_t code = 0;
        n = utf8_length(text + i, length - i, &code);
        if (n == 0 || (!api_is_space(code) && code != 0x2581)) solid += n ? (size_t)n : 1;
        n = n ? n : 1;
    }
    return solid;
}

/* The most such bytes of a token; 0: the vocabulary lacks bytes, which may then become nothing, or a run of them one token. */
static size_t api_longest_token(const fg_model *model, int n_vocab) {
    bool there[256];
    size_t longest = 1, length, n;
    int i, n_bytes = 0;
    memset(there, 0, sizeof(there));
    for (i = 0; i < n_vocab; i++) {
        const char *text = fg_token_text(model, i, &length);
        n = api_solid_bytes(text, length);
        if (n > longest) longest = n;
        if (length == 1) there[(unsigned char)text[0]] = true;
    }
    for (i = 0; i < 256; i++) n_bytes += there[i];
    return n_bytes == 256 ? longest : 0;
}

/* What the prompt is called in a request. */
static const char *api_prompt_field(const api_request *r) { return r->kind == API_RESPONSES ? "input" : r->kind == API_CHAT || r->kind == API_MESSAGES ? "messages" : "prompt"; }

/* Refuses a text that is too long however it becomes tokens, as that takes a while. A vocabulary may normalise it first: NFC leaves
   more than a quarter of the bytes. */
static bool api_check_length(api_request *r, const api_server *s, const str *text) {
    size_t least = s->longest_token ? api_solid_bytes(text->data, text->length) / (4 * s->longest_token) : 0;
    if (r->kind == API_TOKENIZE || least <= (size_t)s->max_context) return true;
    r->error.code = "context_length_exceeded";
    return api_fail(r, 400, api_prompt_field(r), "a prompt of %zu bytes, at least %zu tokens, leaves no room in a context of %d", text->length, least,
                    s->max_context);
}

/* There is room for a token a byte, which texts hardly ever go beyond. */
static bool api_tokenize(api_request *r, const api_server *s, const str *text, unsigned flags, api_prompt *to) {
    size_t capacity = text->length + 16, count = 0;
    fg_result result;
    if (!api_check_length(r, s, text)) return false;
    to->tokens = (int32_t *)xrealloc(NULL, capacity * sizeof(int32_t));
    result = fg_tokenize(s->model, text->data, text->length, flags, to->tokens, capacity, &count);
    if (result == FG_ERROR_BUFFER_TOO_SMALL) {
        to->tokens = (int32_t *)xrealloc(to->tokens, count * sizeof(int32_t));
        result = fg_tokenize(s->model, text->data, text->length, flags, to->tokens, count, &count);
    }
    to->n_tokens = count;
    if (count < capacity) to->tokens = (int32_t *)xrealloc(to->tokens, count * sizeof(int32_t));
    return result == FG_OK ? true : api_fail_result(r, result, api_prompt_field(r));
}

/* One prompt: a text or an array of ids. */
static bool api_read_prompt(api_request *r, const api_server *s, const json *j, const json_node *node) {
    api_prompt *p = &r->prompts[r->n_prompts++];
    str text = {NULL, 0, 0};
    long n;
    bool ok;
    memset(p, 0, sizeof(*p));
    if (node->type == JSON_STRING) {
        str_puts(&text, "");
        json_add_text(j, node, &text);
        ok = api_tokenize(r, s, &text, r->add_special_tokens ? 0 : FG_NO_BOS, p);
    } else {
        n = api_read_tokens(r, j, node, "prompt", &p->tokens);
        ok = n >= 0;
        p->n_tokens = ok ? (size_t)n : 0;
        if (ok && r->echo && add_detokenized(s->model, p->tokens, p->n_tokens, 0, &text) != FG_OK)
            ok = api_fail(r, 400, "prompt", "%s", fg_last_error());
    }
    if (ok && r->echo) p->text = text;
    else str_free(&text);
    return ok;
}

/* "text", ["text", ...], [1, 2, ...] or [[1, 2, ...], ...] */
static bool api_read_prompts(api_request *r, const api_server *s, const json *j) {
    const json_node *prompt = json_get(j, j->nodes, "prompt"), *item;
    bool many = prompt && prompt->type == JSON_ARRAY && prompt->count > 0 && prompt[1].type != JSON_NUMBER;
    uint32_t i, n = many ? prompt->count : 1;
    if (!prompt) return api_fail(r, 400, "prompt", "prompt is missing");
    if (n > API_MAX_PROMPTS || n * (uint32_t)r->n > API_MAX_CHOICES)
        return api_fail(r, 400, "prompt", "%u prompts, %d choices each: too many for one request", (unsigned)n, r->n);
    r->prompts = (api_prompt *)xrealloc(NULL, n * sizeof(api_prompt));
    item = many ? prompt + 1 : prompt;
    for (i = 0; i < n; i++, item = json_next(j, item))
        if (!api_read_prompt(r, s, j, item)) return false;
    return true;
}

/* ---- conversations ----------------------------------------------------------------------------- */

static void api_add_raw(const json *j, uint32_t begin, uint32_t end, str *to) { str_add(to, j->text + begin, end - begin); }

/* Content in parts as one text: its texts, one a line. Templates of most models know nothing else. */
static bool api_join_parts(api_request *r, const json *j, const json_node *parts, str *to) {
    const json_node *part = parts + 1;
    bool ok = true;
    uint32_t i;
    str_puts(to, "");
    for (i = 0; i < parts->count && ok; i++, part = json_next(j, part)) {
        const json_node *type = json_get(j, part, "type"), *content = json_get(j, part, "text");
        ok = type && content && content->type == JSON_STRING && (json_is(j, type, "text") || json_is(j, type, "input_text") || json_is(j, type, "output_text"));
        if (i) str_puts(to, "\n");
        if (ok) json_add_text(j, content, to);
    }
    return ok ? true : api_fail(r, 400, "messages", "content parts must be of type text: this server has no others");
}

/* A call's arguments are JSON in a string; an object is written as one, as templates make JSON of it. Text before *done is written. */
static void api_add_arguments(const json *j, const json_node *arguments, uint32_t *done, str *to) {
    str text = {NULL, 0, 0};
    json inner;
    json_add_text(j, arguments, &text);
    if (json_parse(&inner, text.data, text.length) && inner.nodes->type == JSON_OBJECT) {
        api_add_raw(j, *done, arguments->begin - 1, to);
        str_add(to, text.data, text.length);
        *done = arguments->end + 1;
    }
    json_free(&inner);
    str_free(&text);
}

static void api_add_calls(const json *j, const json_node *calls, uint32_t *done, str *to) {
    const json_node *call = calls + 1;
    uint32_t i;
    for (i = 0; i < calls->count; i++, call = json_next(j, call)) {
        const json_node *function = json_get(j, call, "function");
        const json_node *arguments = function ? json_get(j, function, "arguments") : NULL;
        if (arguments && arguments->type == JSON_STRING) api_add_arguments(j, arguments, done, to);
    }
}

/* How messages are written: arguments of calls as texts, as they came, or as what the texts say; an assistant's content filled in. */
typedef struct api_form {
    bool as_came, filled;
} api_form;

/* The text of a message with a tag behind it. */
static bool api_add_content(api_request *r, const json *j, const json_node *content, const char *tag, uint32_t *done, str *to) {
    str text = {NULL, 0, 0};
    bool parts = content->type == JSON_ARRAY, ok = !parts || api_join_parts(r, j, content, &text);
    api_add_raw(j, *done, parts ? content->begin : content->end, to);
    *done = content->end;
    str_puts(parts ? &text : to, parts || content->type == JSON_STRING ? tag : "");
    if (parts) str_json(to, text.data, text.length);
    str_free(&text);
    return ok;
}

/* Writes "" for the content, null or missing (NULL), of a message that is an assistant's. */
static void api_fill_content(const json *j, const json_node *message, const json_node *content, uint32_t *done, str *to) {
    const json_node *role = json_get(j, message, "role");
    if (!json_is(j, role, "assistant")) return;
    api_add_raw(j, *done, content ? content->begin : message->end - 1, to);
    str_puts(to, content ? "\"\"" : ",\"content\":\"\"");
    *done = content ? content->end : message->end - 1;
}

static bool api_add_message(api_request *r, const json *j, const json_node *message, api_form form, const char *tag, uint32_t *done,
                            str *to) {
    const json_node *key = message + 1, *value, *content = NULL;
    uint32_t i;
    for (i = 0; i < message->count; i++, key = json_next(j, value)) {
        value = json_next(j, key);
        if (json_is(j, key, "tool_calls") && value->type == JSON_ARRAY && !form.as_came) api_add_calls(j, value, done, to);
        if (!json_is(j, key, "content")) continue;
        content = value;
        if (form.filled && value->type == JSON_NULL) api_fill_content(j, message, value, done, to);
        else if (!api_add_content(r, j, value, tag, done, to)) return false;
    }
    if (form.filled && !content) api_fill_content(j, message, NULL, done, to);
    return true;
}

/* Stands behind the text of the last message where that is to be continued, so that its end is found in what the template writes;
   the space is missing there when the template trims messages. All as transformers does it. */
static const char api_tag[] = "CONTINUE_FINAL_MESSAGE_TAG ";

/* The messages as they came, but for content in parts, that tag and what the form says. */
static bool api_add_messages(api_request *r, const json *j, const json_node *messages, api_form form, str *to) {
    const json_node *message = messages + 1;
    uint32_t i, done = messages->begin;
    for (i = 0; i < messages->count; i++, message = json_next(j, message)) {
        const json_node *role = json_get(j, message, "role");
        if (!role || role->type != JSON_STRING)
            return api_fail(r, 400, "messages", "message %u has no role", (unsigned)i);
        if (!api_add_message(r, j, message, form, r->continue_final_message && i + 1 == messages->count ? api_tag : "", &done, to))
            return false;
    }
    api_add_raw(j, done, messages->end, to);
    return true;
}

/* The names of the tools, which are functions. */
static bool api_read_tool_names(api_request *r, const json *j, const json_node *tools) {
    const json_node *tool = tools + 1;
    uint32_t i;
    if (tools->type != JSON_ARRAY || tools->count > CALL_MAX_TOOLS)
        return api_fail(r, 400, "tools", "tools must be an array of at most %d", CALL_MAX_TOOLS);
    r->tools.names = (str *)xrealloc(NULL, (size_t)tools->count * sizeof(str));
    r->tools.parameters = (call_parameters *)xrealloc(NULL, (size_t)tools->count * sizeof(call_parameters));
    for (i = 0; i < tools->count; i++, tool = json_next(j, tool)) {
        const json_node *function = tool->type == JSON_OBJECT ? json_get(j, tool, "function") : NULL;
        const json_node *name = function && function->type == JSON_OBJECT ? json_get(j, function, "name") : NULL;
        const json_node *parameters = name ? json_get(j, function, "parameters") : NULL;
        if (!name || name->type != JSON_STRING || name->begin == name->end)
            return api_fail(r, 400, "tools", "tools: item %u is not a function with a name", (unsigned)i);
        if (parameters && parameters->type != JSON_OBJECT) return api_fail(r, 400, "tools", "tools: the parameters of item %u are not an object", (unsigned)i);
        if (call_tool_of(&r->tools, j, name) >= 0) return api_fail(r, 400, "tools", "tools: item %u has the name of another", (unsigned)i);
        memset(&r->tools.names[i], 0, sizeof(str));
        json_add_text(j, name, &r->tools.names[i]);
        call_read_parameters(j, parameters, &r->tools.parameters[i]);
        r->tools.n++;
    }
    return true;
}

/* "tools" and "tool_choice": "none", "auto", "required" or {"type": "function", "function": {"name": ...}}. */
static bool api_read_tools(api_request *r, const json *j) {
    const json_node *tools = json_get(j, j->nodes, "tools"), *choice = json_get(j, j->nodes, "tool_choice");
    const json_node *function = choice && choice->type == JSON_OBJECT ? json_get(j, choice, "function") : NULL;
    bool word = choice && choice->type == JSON_STRING, required = word && json_is(j, choice, "required");
    if (choice && !required && !(word && (json_is(j, choice, "none") || json_is(j, choice, "auto"))) && !(function && function->type == JSON_OBJECT))
        return api_fail(r, 400, "tool_choice", "tool_choice must be \"none\", \"auto\", \"required\" or a function");
    if (tools && tools->type == JSON_ARRAY && tools->count == 0) tools = NULL;
    if (tools && !api_read_tool_names(r, j, tools)) return false;
    if (!tools && (required || function)) return api_fail(r, 400, "tool_choice", "tool_choice needs tools");
    if (tools && !(word && json_is(j, choice, "none"))) r->tools.form = required ? CALL_LIST : function ? CALL_ONE : CALL_IN_TEXT;
    if (!function) return true;
    r->tools.chosen = call_tool_of(&r->tools, j, json_get(j, function, "name"));
    return r->tools.chosen >= 0 || api_fail(r, 400, "tool_choice", "tool_choice names a function that is not in tools");
}

/* The variables of the template: tools, reasoning_effort, and what chat_template_kwargs says. */
static bool api_add_variables(api_request *r, const json *j, str *to) {
    const json_node *tools = json_get(j, j->nodes, "tools"), *more = json_get(j, j->nodes, "chat_template_kwargs");
    const json_node *effort = json_get(j, j->nodes, "reasoning_effort");
    if (effort && effort->type != JSON_STRING)
        return api_fail(r, 400, "reasoning_effort", "reasoning_effort must be a string");
    if (more && more->type != JSON_OBJECT)
        return api_fail(r, 400, "chat_template_kwargs", "chat_template_kwargs must be an object");
    str_printf(to, "{\"add_generation_prompt\":%s", r->add_generation_prompt ? "true" : "false");
    if (r->tools.form != CALL_NONE) {
        str_puts(to, ",\"tools\":");
        api_add_raw(j, tools->begin, tools->end, to);
    }
    if (effort && !(more && json_get(j, more, "reasoning_effort"))) {
        str_puts(to, ",\"reasoning_effort\":");
        api_add_raw(j, effort->begin - 1, effort->end + 1, to);
    }
    if (more && more->count) {
        str_puts(to, ",");
        api_add_raw(j, more->begin + 1, more->end - 1, to);
    }
    str_puts(to, "}");
    return true;
}

static fg_result api_render(const api_server *s, const str *messages, const str *variables, str *to) {
    size_t length = 0;
    fg_result result;
    str_reserve(to, messages->length * 2 + 1024);
    result = fg_chat_format(s->model, messages->data, variables->data, to->data, to->capacity - 1, &length);
    if (result == FG_ERROR_BUFFER_TOO_SMALL) {
        str_reserve(to, length);
        result = fg_chat_format(s->model, messages->data, variables->data, to->data, to->capacity - 1, &length);
    }
    if (result != FG_OK) return result;
    to->length = length;
    to->data[length] = 0;
    return FG_OK;
}

/* The conversation as the model's template writes it. One that fails may be one that adds arguments to a text, or an assistant's content
   that is null beside calls: once more with the former as they came, then with "" for the latter. */
static bool api_add_conversation(api_request *r, const api_server *s, const json *j, const json_node *messages, str *to) {
    str texts[2] = {{NULL, 0, 0}, {NULL, 0, 0}}, variables = {NULL, 0, 0};
    fg_result result = FG_ERROR_TEMPLATE;
    bool ok = api_add_variables(r, j, &variables);
    int i;
    for (i = 0; i < 4 && ok && result == FG_ERROR_TEMPLATE; i++) {
        str *text = &texts[i % 2], *before = &texts[1 - i % 2];
        api_form form;
        form.as_came = i % 2 > 0;
        form.filled = i / 2 > 0;
        text->length = 0;
        ok = api_add_messages(r, j, messages, form, text);
        if (i > 0 && text->length == before->length && memcmp(text->data, before->data, text->length) == 0) continue;
        if (ok) result = api_render(s, text, &variables, to);
    }
    str_free(&texts[0]);
    str_free(&texts[1]);
    str_free(&variables);
    return ok && result != FG_OK ? api_fail_result(r, result, "messages") : ok;
}

/* Where a text begins and ends without the white space around it; at 0 and 0 if there is nothing else. */
static void api_strip(const char *text, size_t length, size_t *begin, size_t *end) {
    size_t i = 0, next;
    for (*begin = *end = 0; i < length; i = next) {
        uint32_t code = 0;
        int n = utf8_length(text + i, length - i, &code);
        next = i + (n ? (size_t)n : 1);
        if (n && api_is_space(code)) continue;
        if (*end == 0) *begin = i;
        *end = next;
    }
}

/* Cuts a rendered conversation at the tag, which must stand behind the text. */
static bool api_cut_behind(const str *text, str *rendered) {
    size_t tag = sizeof(api_tag) - 2, at = rendered->length, begin, end, trimmed, ignored;
    while (at > 0 && (rendered->length - at < tag || memcmp(rendered->data + at, api_tag, tag) != 0)) at--;
    if (rendered->length - at < tag || memcmp(rendered->data + at, api_tag, tag) != 0) return false;
    api_strip(text->data, text->length, &begin, &end);
    api_strip(rendered->data, at, &ignored, &trimmed);
    if (trimmed < end - begin || memcmp(rendered->data + trimmed - (end - begin), text->data + begin, end - begin) != 0) return false;
    rendered->length = rendered->data[at + tag] == ' ' ? at : trimmed;
    return true;
}

/* Cuts off what the template writes behind the text of the last message, so that the model goes on with it. */
static bool api_continue(api_request *r, const json *j, const json_node *messages, str *rendered) {
    const json_node *last = messages + 1, *content;
    str text = {NULL, 0, 0};
    uint32_t i;
    bool ok;
    for (i = 1; i < messages->count; i++) last = json_next(j, last);
    content = json_get(j, last, "content");
    if (!content || (content->type != JSON_STRING && content->type != JSON_ARRAY))
        return api_fail(r, 400, "continue_final_message", "the last message has no text to continue");
    if (content->type == JSON_STRING) json_add_text(j, content, &text);
    else api_join_parts(r, j, content, &text);
    ok = api_cut_behind(&text, rendered);
    str_free(&text);
    return ok ? true : api_fail(r, 400, "continue_final_message", "the model's template changes the last message: it cannot be continued");
}

/* Whether a text ends with another. */
static bool api_ends_with(const str *text, size_t length, const char *end) {
    size_t n = strlen(end);
    return length >= n && memcmp(text->data + length - n, end, n) == 0;
}

/* "reasoning_format", as llama.cpp has it: of "none" thoughts stay in the text. They may have begun with what the template wrote, which may be a
   message of gpt-oss. */
static bool api_read_thinking(api_request *r, const json *j, const str *rendered) {
    const json_node *format = json_get(j, j->nodes, "reasoning_format");
    size_t n = rendered->length;
    bool none = format && json_is(j, format, "none");
    if (format && !none && !(format->type == JSON_STRING && (json_is(j, format, "auto") || json_is(j, format, "deepseek"))))
        return api_fail(r, 400, "reasoning_format", "reasoning_format must be \"auto\", \"deepseek\" or \"none\"");
    while (n && strchr(" \t\r\n", rendered->data[n - 1])) n--;
    r->channels = api_ends_with(rendered, n, "<|start|>assistant");
    if (!none) r->thinking = api_ends_with(rendered, n, "<think>") ? THINKING_INSIDE : THINKING_BEFORE;
    return true;
}

/* The conversation as the one prompt. */
static bool api_read_messages(api_request *r, const api_server *s, const json *j) {
    const json_node *messages = json_get(j, j->nodes, "messages");
    str rendered = {NULL, 0, 0};
    bool ok;
    if (!messages || messages->type != JSON_ARRAY || messages->count == 0)
        return api_fail(r, 400, "messages", "messages must be an array of at least one message");
    if (r->continue_final_message && r->add_generation_prompt)
        return api_fail(r, 400, "continue_final_message", "continue_final_message needs add_generation_prompt to be false");
    r->prompts = (api_prompt *)xrealloc(NULL, sizeof(api_prompt));
    memset(r->prompts, 0, sizeof(api_prompt));
    r->n_prompts = 1;
    if (!api_read_tools(r, j)) return false;
    ok = api_add_conversation(r, s, j, messages, &rendered) && (!r->continue_final_message || api_continue(r, j, messages, &rendered)) &&
         api_read_thinking(r, j, &rendered) &&
         api_tokenize(r, s, &rendered, r->add_special_tokens ? FG_RENDERED : FG_NO_BOS, r->prompts);
    str_free(&rendered);
    return ok;
}

/* ---- requests of other APIs, which become those of chat completions ----------------------------- */

/* A value as it came. */
static void api_add_value(const json *j, const json_node *value, str *to) {
    uint32_t quote = value->type == JSON_STRING;
    api_add_raw(j, value->begin - quote, value->end + quote, to);
}

static void api_add_member(const json *j, const char *name, const json_node *value, str *to) {
    if (!value) return;
    str_printf(to, ",\"%s\":", name);
    api_add_value(j, value, to);
}

/* The beginning of an object, with all members but those named. */
static void api_add_others(const json *j, const char *const *but, int n, str *to) {
    const json_node *key = j->nodes + 1, *value;
    uint32_t i;
    int k;
    str_puts(to, "{\"\":null"); /* before the commas of all that follows */
    for (i = 0; i < j->nodes->count; i++, key = json_next(j, value)) {
        value = json_next(j, key);
        for (k = 0; k < n && !json_is(j, key, but[k]); k++) {}
        if (k < n) continue;
        str_puts(to, ",");
        api_add_value(j, key, to);
        str_puts(to, ":");
        api_add_value(j, value, to);
    }
}

/* "tools", whose members chat completions have a level deeper. Of their type there is one, `type`; what parameters are called differs. */
static bool api_add_tools(api_request *r, const json *j, const char *type, const char *parameters, str *to) {
    const json_node *tools = json_get(j, j->nodes, "tools"), *tool = tools ? tools + 1 : NULL;
    uint32_t i;
    if (!tools) return true;
    if (tools->type != JSON_ARRAY) return api_fail(r, 400, "tools", "tools must be an array");
    str_puts(to, ",\"tools\":[");
    for (i = 0; i < tools->count; i++, tool = json_next(j, tool)) {
        const json_node *name = json_get(j, tool, "name"), *its = json_get(j, tool, "type");
        if (!name || (its && !(its->type == JSON_STRING && json_is(j, its, type))))
            return api_fail(r, 400, "tools", "tools: item %u has no name, or is of a type that this server has not", (unsigned)i);
        str_printf(to, "%s{\"type\":\"function\",\"function\":{\"name\":", i ? "," : "");
        api_add_value(j, name, to);
        api_add_member(j, "description", json_get(j, tool, "description"), to);
        api_add_member(j, "parameters", json_get(j, tool, parameters), to);
        str_puts(to, "}}");
    }
    str_puts(to, "]");
    return true;
}

/* The tool that must be called. */
static void api_add_chosen(const json *j, const json_node *name, str *to) {
    str_puts(to, ",\"tool_choice\":{\"type\":\"function\",\"function\":{\"name\":");
    api_add_value(j, name, to);
    str_puts(to, "}}");
}

/* The conversation as it becomes messages. Calls that follow an assistant's text, or each other, belong to one message. */
typedef struct api_messages {
    str text;
    bool open, calls; /* open: the last message is an assistant's and has no end yet; calls: nor have its calls */
} api_messages;

static void api_end_message(api_messages *m) {
    if (m->open) str_puts(&m->text, m->calls ? "]}" : "}");
    m->open = m->calls = false;
}

static void api_begin_message(api_messages *m, const char *role) {
    api_end_message(m);
    str_printf(&m->text, "%s{\"role\":\"%s\",\"content\":", m->text.length > 1 ? "," : "", role);
}

/* A call that the model made, up to the text of its arguments; behind that come two closing brackets. */
static void api_begin_call(const json *j, const json_node *id, const json_node *name, api_messages *m) {
    str_puts(&m->text, m->calls ? ",{\"type\":\"function\"" : ",\"tool_calls\":[{\"type\":\"function\"");
    m->calls = true;
    api_add_member(j, "id", id, &m->text);
    str_puts(&m->text, ",\"function\":{\"name\":");
    api_add_value(j, name, &m->text);
    str_puts(&m->text, ",\"arguments\":");
}

/* ---- the whole request ------------------------------------------------------------------------- */

static bool api_check_model(api_request *r, const api_server *s, const json *j) {
    const json_node *model = json_get(j, j->nodes, "model");
    if (!model || (model->type == JSON_STRING && json_is(j, model, s->model_name))) return true;
    if (model->type != JSON_STRING) return api_fail(r, 400, "model", "model must be a string");
    r->error.code = "model_not_found";
    return api_fail(r, 404, "model", "the model '%.*s' does not exist here; this server has '%s'",
                    (int)(model->end - model->begin < 100 ? model->end - model->begin : 100), j->text + model->begin, s->model_name);
}

/* Whether a field of another server that limits what is written is there; "" and [] limit nothing. */
static bool api_limits(const json *j, const json_node *object, const char *name) {
    const json_node *value = json_get(j, object, name);
    return value && !(value->type == JSON_ARRAY && value->count == 0) && !(value->type == JSON_STRING && value->begin == value->end);
}

/* What can be asked of OpenAI and not here is refused, not passed over, and so is what else limits an answer. */
static bool api_check_unsupported(api_request *r, const json *j) {
    static const char *const old[2] = {"functions", "function_call"};
    static const char *const limits[] = {"guided_grammar", "grammar", "allowed_token_ids", "bad_words"};
    const json_node *suffix = json_get(j, j->nodes, "suffix");
    int i;
    if (suffix && suffix->end > suffix->begin) return api_fail(r, 400, "suffix", "suffix is not supported");
    for (i = 0; i < 2; i++)
        if (api_limits(j, j->nodes, old[i]) && !json_is(j, json_get(j, j->nodes, old[i]), "none")) return api_fail(r, 400, old[i], "%s is not supported: tools took its place", old[i]);
    for (i = 0; i < API_COUNT(limits); i++)
        if (api_limits(j, j->nodes, limits[i])) return api_fail(r, 400, limits[i], "%s is not supported", limits[i]);
    if (r->best_of > r->n) return api_fail(r, 400, "best_of", "best_of above n is not supported");
    return true;
}

/* A schema, which may be in a string; NULL: any object. */
static grammar *api_read_schema(const json *j, const json_node *schema) {
    str text = {NULL, 0, 0};
    grammar *made = NULL;
    json inner;
    if (!schema || schema->type != JSON_STRING) return grammar_make(j, schema);
    str_puts(&text, "");
    json_add_text(j, schema, &text);
    if (json_parse(&inner, text.data, text.length)) made = grammar_make(&inner, inner.nodes);
    json_free(&inner);
    str_free(&text);
    return made;
}

typedef enum api_grammar_form { API_SCHEMA, API_REGEX, API_CHOICE, API_ARGUMENTS, API_CALLS } api_grammar_form;

static grammar *api_make_grammar(const json *j, api_grammar_form form, const json_node *value) {
    const json_node *parallel = json_get(j, j->nodes, "parallel_tool_calls");
    switch (form) {
    case API_REGEX: return grammar_make_regex(j, value);
    case API_CHOICE: return grammar_make_choice(j, value);
    case API_ARGUMENTS: return grammar_make_arguments(j, value);
    case API_CALLS: return grammar_make_calls(j, value, !parallel || grammar_is_true(j, parallel));
    default: return api_read_schema(j, value);
    }
}

/* The answer must be JSON of a schema, what a regular expression matches, or one of several texts. */
static bool api_use_grammar(api_request *r, const api_server *s, const json *j, api_grammar_form form, const json_node *value, const char *name) {
    if (r->n_prompts != 1 || r->echo) return api_fail(r, 400, name, "%s is for one prompt without echo", name);
    if (r->grammar) return api_fail(r, 400, name, "%s: the request has another schema beside it", name);
    r->grammar = api_make_grammar(j, form, value);
    if (!r->grammar) return api_fail(r, 400, name, "%s: the schema is not JSON", name);
    if (r->grammar->error[0]) return api_fail(r, 400, name, "%s: %s", name, r->grammar->error);
    if (s->vocab_lock) lock_take(s->vocab_lock);
    grammar_vocab_make(s->vocab, s->model, s->n_vocab);
    if (s->vocab_lock) lock_give(s->vocab_lock);
    r->grammar->vocab = s->vocab;
    r->grammar->samples = (grammar_sample *)xrealloc(NULL, (size_t)r->n * sizeof(grammar_sample));
    memset(r->grammar->samples, 0, (size_t)r->n * sizeof(grammar_sample));
    r->desc.on_logits = grammar_mask;
    r->desc.on_logits_user = r->grammar;
    return true;
}

/* {"type": "text"}, {"type": "json_object"}, which may have a "schema", or {"type": "json_schema", "json_schema": {"schema": ...}}.
   An empty schema of a json_object is none: any object. */
static bool api_read_format(api_request *r, const api_server *s, const json *j) {
    const json_node *format = json_get(j, j->nodes, "response_format"), *type = format ? json_get(j, format, "type") : NULL;
    const json_node *outer = format ? json_get(j, format, "json_schema") : NULL, *schema = outer ? json_get(j, outer, "schema") : NULL;
    bool any;
    if (!format || (type && type->type == JSON_STRING && json_is(j, type, "text"))) return true;
    any = type && type->type == JSON_STRING && json_is(j, type, "json_object");
    if (!any && !(type && type->type == JSON_STRING && json_is(j, type, "json_schema")))
        return api_fail(r, 400, "response_format", "response_format.type must be \"text\", \"json_object\" or \"json_schema\"");
    if (!any && !schema) return api_fail(r, 400, "response_format", "response_format.json_schema.schema is missing");
    if (any) schema = json_get(j, format, "schema");
    if (any && schema && schema->type == JSON_OBJECT && schema->count == 0) schema = NULL;
    return api_use_grammar(r, s, j, API_SCHEMA, schema, "response_format");
}

/* A grammar from each of these fields that is there. */
static bool api_read_forms(api_request *r, const api_server *s, const json *j, const json_node *from, const char *const names[4], const char *shown) {
    static const api_grammar_form forms[4] = {API_SCHEMA, API_REGEX, API_CHOICE, API_SCHEMA};
    int i;
    for (i = 0; i < 4 && names[i]; i++)
        if (api_limits(j, from, names[i]) && !api_use_grammar(r, s, j, forms[i], json_get(j, from, names[i]), shown ? shown : names[i])) return false;
    return true;
}

/* vLLM's "structured_outputs": {"json": schema}, {"regex": text}, {"choice": [text, ...]} or {"json_object": true}. */
static bool api_read_structured(api_request *r, const api_server *s, const json *j) {
    static const char *const limits[] = {"grammar", "structural_tag"}, *const names[4] = {"json", "regex", "choice", NULL};
    const json_node *outer = json_get(j, j->nodes, "structured_outputs");
    int i;
    if (!outer) return true;
    if (outer->type != JSON_OBJECT) return api_fail(r, 400, "structured_outputs", "structured_outputs must be an object");
    for (i = 0; i < API_COUNT(limits); i++)
        if (api_limits(j, outer, limits[i])) return api_fail(r, 400, "structured_outputs", "structured_outputs.%s is not supported", limits[i]);
    if (!api_read_forms(r, s, j, outer, names, "structured_outputs")) return false;
    if (!grammar_is_true(j, json_get(j, outer, "json_object")) || r->grammar) return true;
    return api_use_grammar(r, s, j, API_SCHEMA, NULL, "structured_outputs");
}

/* Calls that are asked for: the text is a list of them, or the arguments of the one that was chosen. */
static bool api_read_calls(api_request *r, const api_server *s, const json *j) {
    const json_node *tools = json_get(j, j->nodes, "tools"), *tool = tools ? tools + 1 : NULL, *parameters;
    int i;
    if (r->tools.form == CALL_LIST) return api_use_grammar(r, s, j, API_CALLS, tools, "tool_choice");
    if (r->tools.form != CALL_ONE) return true;
    for (i = 0; i < r->tools.chosen; i++) tool = json_next(j, tool);
    parameters = json_get(j, json_get(j, tool, "function"), "parameters");
    return api_use_grammar(r, s, j, API_ARGUMENTS, parameters, "tool_choice");
}

/* What the answer must be, as OpenAI, vLLM and llama.cpp have it. */
static bool api_read_grammar(api_request *r, const api_server *s, const json *j) {
    static const char *const names[4] = {"guided_json", "guided_regex", "guided_choice", "json_schema"};
    bool calls = r->tools.form == CALL_ONE || r->tools.form == CALL_LIST; /* response_format is for content, of which there is none */
    if (!api_read_calls(r, s, j) || !api_read_forms(r, s, j, j->nodes, names, NULL) || !api_read_structured(r, s, j)) return false;
    if (!calls && !api_read_format(r, s, j)) return false;
    if (!calls && r->grammar && r->grammar->first.mode == GRAMMAR_VALUE) r->tools.form = CALL_NONE; /* all of the text is that */
    if (r->grammar) r->channels = false;
    if (r->grammar && r->thinking) r->thinking = THINKING_BEFORE; /* whatever the template has begun, the text is that from its beginning */
    return true;
}

static bool api_read_seed(api_request *r, const json *j, uint64_t seed) {
    const json_node *node = json_get(j, j->nodes, "seed");
    int64_t value = 0;
    if (node && !json_integer(j, node, &value))
        return api_fail(r, 400, "seed", "seed must be a whole number of 64 bits");
    r->desc.sampling.seed = node ? (uint64_t)value : seed;
    return true;
}

static bool api_read_stream(api_request *r, const json *j) {
    const json_node *options = json_get(j, j->nodes, "stream_options");
    const json_node *usage = options ? json_get(j, options, "include_usage") : NULL;
    if (options && !r->stream) return api_fail(r, 400, "stream_options", "stream_options needs stream to be true");
    if (options && options->type != JSON_OBJECT)
        return api_fail(r, 400, "stream_options", "stream_options must be an object");
    if (usage && usage->type != JSON_BOOL)
        return api_fail(r, 400, "stream_options", "include_usage must be true or false");
    r->include_usage = usage && j->text[usage->begin] == 't';
    return true;
}

/* From what was asked to what the engine takes. */
static bool api_finish_desc(api_request *r) {
    fg_request_desc *d = &r->desc;
    d->n = r->n;
    d->priority = -r->priority; /* lower goes first, as with vLLM */
    if (d->sampling.top_k < 0) d->sampling.top_k = 0;
    if (d->sampling.top_p == 0.0f) d->sampling.top_p = 1e-6f; /* the best token alone; 0 is off for the engine */
    d->max_tokens = r->max_tokens < 0 ? 0 : r->max_tokens == 0 ? -1 : r->max_tokens;
    if (r->kind == API_COMPLETION) r->logprobs = r->top_logprobs >= 0;
    else if (r->top_logprobs > 0 && !r->logprobs)
        return api_fail(r, 400, "top_logprobs", "top_logprobs needs logprobs to be true");
    if (r->top_logprobs < 0) r->top_logprobs = 0;
    d->logprobs = r->logprobs;
    d->top_logprobs = r->top_logprobs;
    d->prompt_logprobs = r->echo && r->logprobs;
    if (d->max_tokens < 0 && !r->echo)
        return api_fail(r, 400, "max_tokens", "max_tokens is 0: nothing to do without echo");
    return true;
}

/* A prompt comes back in each of n answers, with what is said of each of its tokens: a small request may ask for gigabytes. */
static bool api_check_echo(api_request *r) {
    double bytes = 0.0;
    int i;
    for (i = 0; r->echo && i < r->n_prompts; i++)
        bytes += (double)r->n * ((double)r->prompts[i].text.length + (r->logprobs ? (double)r->prompts[i].n_tokens * (40.0 + 20.0 * r->top_logprobs) : 0.0));
    return bytes <= API_MAX_ECHO || api_fail(r, 400, "echo", "echo: the prompts would come back as some %.0f MiB, the most is %d", bytes / 1048576.0,
                                             API_MAX_ECHO >> 20);
}

static bool api_read_generation(api_request *r, const api_server *s, const json *j, uint64_t seed) {
    bool chat = r->kind != API_COMPLETION;
    r->max_tokens = chat ? -1 : 16;
    r->desc.sampling.temperature = 1.0f;
    r->desc.sampling.top_p = 1.0f;
    r->top_logprobs = -1;
    return api_check_model(r, s, j) && api_read_fields(r, j, api_fields, API_COUNT(api_fields)) &&
           (r->kind == API_RESPONSES ? api_read_fields(r, j, api_response_fields, API_COUNT(api_response_fields))
            : chat                   ? api_read_fields(r, j, api_chat_fields, API_COUNT(api_chat_fields))
                                     : api_read_fields(r, j, api_completion_fields, API_COUNT(api_completion_fields))) &&
           api_check_unsupported(r, j) && api_read_seed(r, j, seed) && api_read_stream(r, j) && api_finish_desc(r) &&
           api_read_lists(r, s, j) && (chat ? api_read_messages(r, s, j) : api_read_prompts(r, s, j)) && api_check_echo(r) &&
           api_read_grammar(r, s, j);
}

/* The characters of a token; bytes that are no UTF-8 of their own as U+FFFD. */
static void api_add_token_text(const fg_model *model, int32_t token, str *to) {
    size_t length = 0;
    const char *text = fg_token_text(model, token, &length);
    str_json(to, text ? text : "", text ? length : 0);
}

static bool api_read_tokenize(api_request *r, const api_server *s, const json *j) {
    const api_prompt *p;
    size_t i;
    if (!api_check_model(r, s, j) || !api_read_fields(r, j, api_tokenize_fields, API_COUNT(api_tokenize_fields)))
        return false;
    if (json_get(j, j->nodes, "messages") ? !api_read_messages(r, s, j) : !api_read_prompts(r, s, j)) return false;
    if (r->n_prompts != 1) return api_fail(r, 400, "prompt", "prompt must be one text");
    p = r->prompts;
    str_printf(&r->reply, "{\"count\":%zu,\"max_model_len\":%d,\"tokens\":[", p->n_tokens, s->max_context);
    for (i = 0; i < p->n_tokens; i++) str_printf(&r->reply, i ? ",%d" : "%d", (int)p->tokens[i]);
    str_puts(&r->reply, "],\"token_strs\":");
    str_puts(&r->reply, r->return_token_strs ? "[" : "null}");
    for (i = 0; i < p->n_tokens && r->return_token_strs; i++) {
        if (i) str_puts(&r->reply, ",");
        api_add_token_text(s->model, p->tokens[i], &r->reply);
    }
    if (r->return_token_strs) str_puts(&r->reply, "]}");
    return true;
}

static bool api_read_detokenize(api_request *r, const api_server *s, const json *j) {
    const json_node *tokens = json_get(j, j->nodes, "tokens");
    str text = {NULL, 0, 0};
    int32_t *ids = NULL;
    long n;
    if (!api_check_model(r, s, j)) return false;
    if (!tokens) return api_fail(r, 400, "tokens", "tokens is missing");
    n = api_read_tokens(r, j, tokens, "tokens", &ids);
    if (n >= 0 && add_detokenized(s->model, ids, (size_t)n, 0, &text) != FG_OK)
        api_fail(r, 400, "tokens", "%s", fg_last_error());
    if (r->error.status == 0) {
        str_puts(&r->reply, "{\"prompt\":");
        str_json(&r->reply, text.data ? text.data : "", text.length);
        str_puts(&r->reply, "}");
    }
    free(ids);
    str_free(&text);
    return r->error.status == 0;
}

/* A body as JSON, which must be an object; json_free in any case. */
static bool api_parse(api_request *r, json *j, const char *body, size_t length) {
    if (length >= 3 && memcmp(body, "\xef\xbb\xbf", 3) == 0) body += 3, length -= 3; /* a byte order mark, as some clients send */
    if (!json_parse(j, body, length)) return api_fail(r, 400, NULL, "the body is not JSON: byte %zu: %s", j->at, j->error);
    return j->nodes->type == JSON_OBJECT || api_fail(r, 400, NULL, "the body must be a JSON object");
}

/* Reads a body, of API_RESPONSES and API_MESSAGES as response_read and message_read have made it. What is wrong is in r->error; api_request_free in any case. `seed` is for
   requests without one. */
static void api_read(api_request *r, const api_server *s, api_kind kind, const char *body, size_t length,
                     uint64_t seed) {
    json j;
    memset(r, 0, sizeof(*r));
    r->kind = kind;
    r->n = 1;
    r->add_special_tokens = r->add_generation_prompt = true;
    if (api_parse(r, &j, body, length)) {
        if (kind == API_TOKENIZE) api_read_tokenize(r, s, &j);
        else if (kind == API_DETOKENIZE) api_read_detokenize(r, s, &j);
        else api_read_generation(r, s, &j, seed);
    }
    json_free(&j);
}
