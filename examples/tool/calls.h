/* Calls of tools in what a model writes: JSON with a tool's name and its arguments. Models have them between <tool_call> and </tool_call>
   (Hermes, Qwen), or as all of their text: one object, or a list of them, as Llama 3 and Mistral do. Any other text is content. */

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

/* Adds {"name": ..., "arguments" or "parameters": {...}}; false: it is no call. */
static bool call_add(call_list *l, const call_tools *t, const json *j, const json_node *node) {
    const json_node *arguments = NULL;
    int tool = -1;
    if (node->type == JSON_OBJECT) {
        tool = call_tool_of(t, j, json_get(j, node, "name"));
        arguments = json_get(j, node, "arguments");
        if (!arguments) arguments = json_get(j, node, "parameters");
    }
    if (tool < 0 || !arguments || arguments->type != JSON_OBJECT) return false;
    l->tools = (int *)xrealloc(l->tools, (size_t)(l->n + 1) * sizeof(int));
    l->arguments = (str *)xrealloc(l->arguments, (size_t)(l->n + 1) * sizeof(str));
    memset(&l->arguments[l->n], 0, sizeof(str));
    l->tools[l->n] = tool;
    str_add(&l->arguments[l->n++], j->text + arguments->begin, arguments->end - arguments->begin);
    return true;
}

/* The calls that a text is, one or a list of them, maybe behind Mistral's [TOOL_CALLS]; none: it is something else. */
static void call_parse(const char *text, size_t length, const call_tools *t, call_list *l) {
    static const char mistral[] = "[TOOL_CALLS]";
    size_t skip = length >= sizeof(mistral) - 1 && memcmp(text, mistral, sizeof(mistral) - 1) == 0 ? sizeof(mistral) - 1 : 0;
    bool good;
    json j;
    memset(l, 0, sizeof(*l));
    good = json_parse(&j, text + skip, length - skip);
    if (good && j.nodes->type == JSON_ARRAY) {
        const json_node *item = j.nodes + 1;
        uint32_t i;
        for (i = 0; i < j.nodes->count && good; i++, item = json_next(&j, item)) good = call_add(l, t, &j, item);
    } else if (good) {
        good = call_add(l, t, &j, j.nodes);
    }
    json_free(&j);
    if (good) return;
    call_list_free(l);
    memset(l, 0, sizeof(*l));
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
