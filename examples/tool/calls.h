/* Calls of tools in what a model writes: JSON with a tool's name and its arguments. Models have them between <tool_call> and </tool_call>
   (Hermes, Qwen), or as all of their text: objects, or a list of them, as Llama 3 and Mistral do. Qwen 3.5 and Qwen3-Coder have between these
   markers elements, in which texts stand as they are: <function=NAME><parameter=NAME> value </parameter></function>. Any other text is content. */

enum { CALL_MAX_TOOLS = 1024, CALL_MAX_PARAMETERS = 256 };

typedef enum call_form {
    CALL_NONE,
    CALL_IN_TEXT, /* where the model wrote some */
    CALL_ONE,     /* all text is the arguments of one tool */
    CALL_LIST     /* all text is a list of calls */
} call_form;

/* A parameter that a tool's schema names, and which types of JSON it may have: bits of json_type; 0: any. */
typedef struct call_parameter {
    str name;
    unsigned types;
} call_parameter;

typedef struct call_parameters {
    call_parameter *items;
    int n;
} call_parameters;

/* The tools of a request. */
typedef struct call_tools {
    call_form form;
    str *names;
    call_parameters *parameters;
    int n, chosen; /* chosen: of CALL_ONE */
} call_tools;

typedef struct call_list {
    int n, *tools;  /* numbers */
    str *arguments; /* JSON */
} call_list;

static void call_tools_free(call_tools *t) {
    int i, k;
    for (i = 0; i < t->n; i++) {
        str_free(&t->names[i]);
        for (k = 0; k < t->parameters[i].n; k++) str_free(&t->parameters[i].items[k].name);
        free(t->parameters[i].items);
    }
    free(t->names);
    free(t->parameters);
}

static void call_list_free(call_list *l) {
    int i;
    for (i = 0; i < l->n; i++) str_free(&l->arguments[i]);
    free(l->arguments);
    free(l->tools);
}

/* A tool by its name; -1: there is none. */
static int call_find_tool(const call_tools *t, const char *name, size_t length) {
    int i;
    for (i = 0; i < t->n; i++)
        if (t->names[i].length == length && memcmp(t->names[i].data, name, length) == 0) return i;
    return -1;
}

/* The tool whose name is a value of JSON; -1: none. */
static int call_tool_of(const call_tools *t, const json *j, const json_node *name) {
    str text = {NULL, 0, 0};
    int tool;
    if (!name || name->type != JSON_STRING) return -1;
    str_puts(&text, "");
    json_add_text(j, name, &text);
    tool = call_find_tool(t, text.data, text.length);
    str_free(&text);
    return tool;
}

/* An object of JSON that is read byte by byte: how many brackets are open, and whether a text is. */
typedef struct call_scan {
    int depth;
    bool quoted, escaped, closed; /* closed: it has come to its end */
} call_scan;

static void call_scan_byte(call_scan *s, char c) {
    if (s->escaped) s->escaped = false;
    else if (s->quoted) s->escaped = c == '\\', s->quoted = c != '"';
    else if (c == '"') s->quoted = s->depth > 0;
    else if (c == '{' || (c == '[' && s->depth)) s->depth++;
    else if ((c == '}' || c == ']') && s->depth && --s->depth == 0) s->closed = true;
}

/* Where the first object in a text ends; 0: it does not. */
static size_t call_object_end(const char *text, size_t length) {
    call_scan s;
    size_t i = 0;
    memset(&s, 0, sizeof(s));
    while (i < length && !s.closed) call_scan_byte(&s, text[i++]);
    return s.closed ? i : 0;
}

/* The text of a call's arguments: an object, which may be in a text, or {} where there are none. false: something else. */
static bool call_arguments(const json *j, const json_node *call, str *to) {
    const json_node *arguments = json_get(j, call, "arguments");
    json inner;
    bool good;
    if (!arguments) arguments = json_get(j, call, "parameters");
    if (!arguments && call->count <= 2) str_puts(to, "{}"); /* with null, or an id or type beside the name */
    else if (!arguments) return false;
    else if (arguments->type == JSON_OBJECT) str_add(to, j->text + arguments->begin, arguments->end - arguments->begin);
    else if (arguments->type == JSON_STRING) json_add_text(j, arguments, to);
    good = to->length && json_parse(&inner, to->data, to->length) && inner.nodes->type == JSON_OBJECT;
    if (to->length) json_free(&inner);
    return good;
}

static void call_push(call_list *l, int tool, str arguments) {
    l->tools = (int *)xrealloc(l->tools, (size_t)(l->n + 1) * sizeof(int));
    l->arguments = (str *)xrealloc(l->arguments, (size_t)(l->n + 1) * sizeof(str));
    l->tools[l->n] = tool;
    l->arguments[l->n++] = arguments;
}

/* Adds {"name": ..., "arguments" or "parameters": {...}}, or that as the "function" of an object; false: it is no call. */
static bool call_add(call_list *l, const call_tools *t, const json *j, const json_node *node) {
    const json_node *call = node->type == JSON_OBJECT ? json_get(j, node, "function") : NULL;
    str arguments = {NULL, 0, 0};
    int tool;
    if (!call || call->type != JSON_OBJECT) call = node;
    tool = call->type == JSON_OBJECT ? call_tool_of(t, j, json_get(j, call, "name")) : -1;
    if (tool < 0 || !call_arguments(j, call, &arguments)) {
        str_free(&arguments);
        return false;
    }
    call_push(l, tool, arguments);
    return true;
}

/* Adds the calls of JSON, one or a list of them; false: it is something else. */
static bool call_add_json(call_list *l, const call_tools *t, const char *text, size_t length) {
    json j;
    bool good = json_parse(&j, text, length), list = good && j.nodes->type == JSON_ARRAY;
    const json_node *item = good ? j.nodes + list : NULL;
    uint32_t i, n = list ? j.nodes->count : 1;
    for (i = 0; i < n && good; i++, item = json_next(&j, item)) good = call_add(l, t, &j, item);
    json_free(&j);
    return good;
}

/* ---- elements ---------------------------------------------------------------------------------- */

/* Which types of JSON a schema allows, bits of json_type; 0: it does not say. */
static unsigned call_types(const json *j, const json_node *schema) {
    static const struct { const char *name; json_type type; } names[] = {
        {"string", JSON_STRING}, {"number", JSON_NUMBER}, {"integer", JSON_NUMBER}, {"object", JSON_OBJECT}, {"array", JSON_ARRAY},
        {"boolean", JSON_BOOL}, {"null", JSON_NULL}};
    const json_node *type = schema->type == JSON_OBJECT ? json_get(j, schema, "type") : NULL, *item = type;
    const json_node *any = schema->type == JSON_OBJECT ? json_get(j, schema, "anyOf") : NULL;
    uint32_t i, n = type && type->type == JSON_ARRAY ? type->count : type != NULL;
    unsigned types = 0, k;
    if (type && type->type == JSON_ARRAY) item++;
    for (i = 0; i < n; i++, item = json_next(j, item))
        for (k = 0; k < sizeof(names) / sizeof(names[0]); k++)
            if (item->type == JSON_STRING && json_is(j, item, names[k].name)) types |= 1u << names[k].type;
    if (!any || any->type != JSON_ARRAY) return types;
    for (i = 0, item = any + 1; i < any->count; i++, item = json_next(j, item))
        if (item->type == JSON_OBJECT && !json_get(j, item, "anyOf")) types |= call_types(j, item);
    return types;
}

/* The parameters of a tool: the properties of its schema, the first CALL_MAX_PARAMETERS of them. */
static void call_read_parameters(const json *j, const json_node *schema, call_parameters *to) {
    const json_node *properties = schema ? json_get(j, schema, "properties") : NULL, *item;
    uint32_t i, n = properties && properties->type == JSON_OBJECT ? properties->count : 0;
    memset(to, 0, sizeof(*to));
    if (n > CALL_MAX_PARAMETERS) n = CALL_MAX_PARAMETERS;
    to->items = (call_parameter *)xrealloc(NULL, (n ? n : 1) * sizeof(call_parameter));
    for (i = 0, item = properties + 1; i < n; i++, item = json_next(j, item)) {
        call_parameter *p = &to->items[to->n++];
        memset(p, 0, sizeof(*p));
        json_add_text(j, item, &p->name);
        item = json_next(j, item);
        p->types = call_types(j, item);
    }
}

static unsigned call_parameter_types(const call_parameters *p, const char *name, size_t length) {
    int i;
    for (i = 0; i < p->n; i++)
        if (p->items[i].name.length == length && memcmp(p->items[i].name.data, name, length) == 0) return p->items[i].types;
    return 0;
}

/* A parameter's text as JSON: as it is where the tool does not take a text and it is JSON, with words as Python has them, too, or where the tool
   does not say and it is an object or an array; else a text. */
static void call_add_value(unsigned types, const char *text, size_t length, str *to) {
    static const char *const words[][2] = {{"True", "true"}, {"False", "false"}, {"None", "null"}};
    json j;
    size_t i;
    bool good;
    for (i = 0; i < 3; i++)
        if (length == strlen(words[i][0]) && memcmp(text, words[i][0], length) == 0 && types && !(types >> JSON_STRING & 1)) text = words[i][1], length = strlen(text);
    good = json_parse(&j, text, length) && (types ? !(types >> JSON_STRING & 1) || (types >> JSON_NULL & 1 && j.nodes->type == JSON_NULL) : j.nodes->type >= JSON_ARRAY);
    json_free(&j);
    if (good) str_add(to, text, length);
    else str_json(to, text, length);
}

/* Where `marker` begins from `at` on, at most at `length`; SIZE_MAX: nowhere. */
static size_t call_next(const char *text, size_t length, size_t at, const char *marker) {
    size_t n = strlen(marker);
    for (; at + n <= length; at++)
        if (text[at] == marker[0] && memcmp(text + at, marker, n) == 0) return at;
    return SIZE_MAX;
}

static size_t call_skip_space(const char *text, size_t length, size_t at) {
    while (at < length && strchr(" \t\r\n", text[at])) at++;
    return at;
}

/* Reads <word=NAME> at *at; false: there is none. */
static bool call_element(const char *text, size_t length, const char *word, size_t *at, const char **name, size_t *n) {
    size_t begin = *at + strlen(word), end;
    if (begin > length || memcmp(text + *at, word, strlen(word)) != 0) return false;
    end = call_next(text, length, begin, ">");
    if (end == SIZE_MAX) return false;
    *at = end + 1;
    while (begin < end && text[begin] == ' ') begin++;
    while (end > begin && text[end - 1] == ' ') end--;
    *name = text + begin;
    *n = end - begin;
    return true;
}

/* The parameters of a function, up to its end, as an object; false: they are not whole. */
static bool call_add_parameters(const call_parameters *p, const char *text, size_t length, size_t *at, str *to) {
    static const char close[] = "</parameter>";
    const char *name;
    size_t n, end, begin;
    str_puts(to, "{");
    while (*at = call_skip_space(text, length, *at), call_element(text, length, "<parameter=", at, &name, &n)) {
        if ((end = call_next(text, length, *at, close)) == SIZE_MAX) return false;
        begin = *at < end && text[*at] == '\n' ? *at + 1 : *at;
        *at = end + sizeof(close) - 1;
        if (end > begin && text[end - 1] == '\n') end--;
        if (to->length > 1) str_puts(to, ",");
        str_json(to, name, n);
        str_puts(to, ":");
        call_add_value(call_parameter_types(p, name, n), text + begin, end - begin, to);
    }
    str_puts(to, "}");
    return true;
}

/* Adds the calls that a text of elements is; false: it is something else. */
static bool call_add_elements(call_list *l, const call_tools *t, const char *text, size_t length) {
    static const char close[] = "</function>";
    size_t at = call_skip_space(text, length, 0), n;
    const char *name;
    while (call_element(text, length, "<function=", &at, &name, &n)) {
        str arguments = {NULL, 0, 0};
        int tool = call_find_tool(t, name, n);
        if (tool < 0 || !call_add_parameters(&t->parameters[tool], text, length, &at, &arguments) || call_next(text, length, at, close) != at) {
            str_free(&arguments);
            return false;
        }
        call_push(l, tool, arguments);
        at = call_skip_space(text, length, at + sizeof(close) - 1);
    }
    return at == length && l->n > 0;
}

/* The calls that a text is: JSON, maybe behind Mistral's [TOOL_CALLS], or objects with white space or a semicolon between them, or elements.
   None: it is something else. */
static void call_parse(const char *text, size_t length, const call_tools *t, call_list *l) {
    static const char mistral[] = "[TOOL_CALLS]";
    size_t at = length >= sizeof(mistral) - 1 && memcmp(text, mistral, sizeof(mistral) - 1) == 0 ? sizeof(mistral) - 1 : 0, end = 1;
    bool good;
    memset(l, 0, sizeof(*l));
    good = call_add_json(l, t, text + at, length - at) || call_add_elements(l, t, text, length);
    while (!good && end) {
        while (at < length && strchr(" \t\r\n;", text[at])) at++;
        good = at == length && l->n > 0;
        end = at < length && text[at] == '{' ? call_object_end(text + at, length - at) : 0;
        if (end && !call_add_json(l, t, text + at, end)) break;
        at += end;
    }
    if (good) return;
    call_list_free(l);
    memset(l, 0, sizeof(*l));
}

/* From where on a block's end is looked for: behind its object, which may have such a marker in a text; `length`: the object is not whole. */
static size_t call_object_behind(const char *text, size_t length, bool ended) {
    size_t i = 0, end;
    while (i < length && strchr(" \t\r\n", text[i])) i++;
    if (i == length || text[i] != '{') return 0;
    end = call_object_end(text + i, length - i);
    return end ? i + end : ended ? 0 : length;
}

static const char call_open[] = "<tool_call>", call_close[] = "</tool_call>";

/* Where a marker begins in a text, or where its end may be the beginning of one; the text's length: nowhere. */
static size_t call_find(const char *text, size_t length, const char *marker, bool whole) {
    size_t n = strlen(marker), i = 0;
    while (i < length) {
        const char *at = (const char *)memchr(text + i, marker[0], length - i);
        size_t left;
        if (!at) break;
        i = (size_t)(at - text);
        left = length - i < n ? length - i : n;
        if (memcmp(at, marker, left) == 0 && (left == n || !whole)) return i;
        i++;
    }
    return length;
}
