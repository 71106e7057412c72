/* Calls of tools in what a model writes: JSON with a tool's name and its arguments. Models have them between <tool_call> and </tool_call>
   (Hermes, Qwen), or as all of their text: objects, or a list of them, as Llama 3 and Mistral do. Any other text is content. */

enum { CALL_MAX_TOOLS = 1024 };

typedef enum call_form {
    CALL_NONE,
    CALL_IN_TEXT, /* where the model wrote some */
    CALL_ONE,     /* all text is the arguments of one tool */
    CALL_LIST     /* all text is a list of calls */
} call_form;

/* The tools of a request. */
typedef struct call_tools {
    call_form form;
    str *names;
    int n, chosen; /* chosen: of CALL_ONE */
} call_tools;

typedef struct call_list {
    int n, *tools;  /* numbers */
    str *arguments; /* JSON */
} call_list;

static void call_tools_free(call_tools *t) {
    int i;
    for (i = 0; i < t->n; i++) str_free(&t->names[i]);
    free(t->names);
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
    l->tools = (int *)xrealloc(l->tools, (size_t)(l->n + 1) * sizeof(int));
    l->arguments = (str *)xrealloc(l->arguments, (size_t)(l->n + 1) * sizeof(str));
    l->tools[l->n] = tool;
    l->arguments[l->n++] = arguments;
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

/* The calls that a text is: JSON, maybe behind Mistral's [TOOL_CALLS], or objects with white space or a semicolon between them. None: it is
   something else. */
static void call_parse(const char *text, size_t length, const call_tools *t, call_list *l) {
    static const char mistral[] = "[TOOL_CALLS]";
    size_t at = length >= sizeof(mistral) - 1 && memcmp(text, mistral, sizeof(mistral) - 1) == 0 ? sizeof(mistral) - 1 : 0, end = 1;
    bool good;
    memset(l, 0, sizeof(*l));
    good = call_add_json(l, t, text + at, length - at);
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
