/* Reading JSON (RFC 8259) that strangers sent: one pass checks the text and notes where each value begins and ends, in one
   array; nothing is copied until it is asked for. No recursion; time and memory are linear in the length of the text. */

typedef enum json_type { JSON_NULL, JSON_BOOL, JSON_NUMBER, JSON_STRING, JSON_ARRAY, JSON_OBJECT } json_type;

enum { JSON_MAX_DEPTH = 100 };

/* A value. Behind an array come its items, behind an object key, value, key, value ... */
typedef struct json_node {
    uint32_t type;       /* json_type */
    uint32_t begin, end; /* its text, of strings without the quotes */
    uint32_t count;      /* items, members */
    uint32_t after;      /* index of the node behind it and all it holds */
} json_node;

typedef struct json {
    const char *text; /* the caller's, to be kept */
    size_t length, at;
    json_node *nodes; /* the first is the root */
    size_t n, capacity;
    uint32_t open[JSON_MAX_DEPTH]; /* arrays and objects that are still being read */
    int depth;
    const char *error; /* what is wrong at byte `at`; NULL: nothing */
} json;

static bool json_fail(json *j, const char *what) {
    j->error = what;
    return false;
}

static int json_peek(json *j) { return j->at < j->length ? (unsigned char)j->text[j->at] : -1; }

static int json_skip_space(json *j) {
    int c = json_peek(j);
    for (; c == ' ' || c == '\t' || c == '\n' || c == '\r'; c = json_peek(j)) j->at++;
    return c;
}

/* A node that begins here; `after` and `end` are set when it ends. */
static json_node *json_push(json *j, json_type type) {
    json_node *node;
    if (j->n == j->capacity) {
        j->capacity = j->capacity ? 2 * j->capacity : 64;
        j->nodes = (json_node *)xrealloc(j->nodes, j->capacity * sizeof(json_node));
    }
    node = &j->nodes[j->n++];
    memset(node, 0, sizeof(*node));
    node->type = (uint32_t)type;
    node->begin = (uint32_t)j->at;
    return node;
}

static bool json_is_hex(int c) { return (c >= '0' && c <= '9') || ((c | 32) >= 'a' && (c | 32) <= 'f'); }

/* Behind a backslash: the rest of the escape. */
static bool json_read_escape(json *j) {
    int c = json_peek(j), i;
    if (c < 0 || !strchr("\"\\/bfnrtu", c) || c == 0) return json_fail(j, "no such escape");
    j->at++;
    for (i = 0; c == 'u' && i < 4; i++, j->at++)
        if (!json_is_hex(json_peek(j))) return json_fail(j, "\\u needs four hexadecimal digits");
    return true;
}

static bool json_read_string(json *j) {
    json_node *node;
    j->at++;
    node = json_push(j, JSON_STRING);
    for (;;) {
        int c = json_peek(j);
        if (c < 0) return json_fail(j, "the string has no end");
        if (c < 0x20) return json_fail(j, "a control character in a string");
        if (c == '"') break;
        j->at++;
        if (c == '\\' && !json_read_escape(j)) return false;
    }
    node->end = (uint32_t)j->at++;
    node->after = (uint32_t)j->n;
    return true;
}

static size_t json_digits(json *j) {
    size_t begin = j->at;
    while (json_peek(j) >= '0' && json_peek(j) <= '9') j->at++;
    return j->at - begin;
}

static bool json_read_number(json *j) {
    json_node *node = json_push(j, JSON_NUMBER);
    int first, c;
    if (json_peek(j) == '-') j->at++;
    first = json_peek(j);
    c = (int)(json_digits(j) > 1);
    if (first < '0' || first > '9' || (first == '0' && c)) return json_fail(j, "a bad number");
    if (json_peek(j) == '.') {
        j->at++;
        if (!json_digits(j)) return json_fail(j, "a bad number");
    }
    c = json_peek(j);
    if (c == 'e' || c == 'E') {
        j->at++;
        c = json_peek(j);
        if (c == '-' || c == '+') j->at++;
        if (!json_digits(j)) return json_fail(j, "a bad number");
    }
    node->end = (uint32_t)j->at;
    node->after = (uint32_t)j->n;
    return true;
}

static bool json_read_word(json *j, const char *word, json_type type) {
    size_t length = strlen(word);
    json_node *node;
    if (j->length - j->at < length || memcmp(j->text + j->at, word, length) != 0)
        return json_fail(j, "expected a value");
    node = json_push(j, type);
    j->at += length;
    node->end = (uint32_t)j->at;
    node->after = (uint32_t)j->n;
    return true;
}

/* The key of a member and its colon. */
static bool json_read_key(json *j) {
    if (json_skip_space(j) != '"') return json_fail(j, "expected a key in quotes");
    if (!json_read_string(j)) return false;
    if (json_skip_space(j) != ':') return json_fail(j, "expected ':'");
    j->at++;
    return true;
}

static void json_close(json *j) {
    json_node *node = &j->nodes[j->open[--j->depth]];
    node->end = (uint32_t)++j->at;
    node->after = (uint32_t)j->n;
}

/* A value, or its opening bracket and in an object the first key. *whole: it has ended. */
static bool json_begin(json *j, bool *whole) {
    int c = json_skip_space(j);
    *whole = true;
    if (c == '"') return json_read_string(j);
    if (c == '-' || (c >= '0' && c <= '9')) return json_read_number(j);
    if (c == 't') return json_read_word(j, "true", JSON_BOOL);
    if (c == 'f') return json_read_word(j, "false", JSON_BOOL);
    if (c != '{' && c != '[') return json_read_word(j, "null", JSON_NULL);
    if (j->depth == JSON_MAX_DEPTH) return json_fail(j, "nested too deeply");
    j->open[j->depth++] = (uint32_t)j->n;
    json_push(j, c == '{' ? JSON_OBJECT : JSON_ARRAY);
    j->at++;
    if (json_skip_space(j) == (c == '{' ? '}' : ']')) return json_close(j), true;
    *whole = false;
    return c == '{' ? json_read_key(j) : true;
}

/* After a value: closes what ends here, or goes on to the next item. *done: the root has ended. */
static bool json_end(json *j, bool *done) {
    for (;;) {
        json_node *parent = j->depth ? &j->nodes[j->open[j->depth - 1]] : NULL;
        bool object = parent && parent->type == JSON_OBJECT;
        int c = json_skip_space(j);
        *done = !parent;
        if (!parent) return c < 0 ? true : json_fail(j, "more text behind the value");
        parent->count++;
        if (c == ',') {
            j->at++;
            return object ? json_read_key(j) : true;
        }
        if (c != (object ? '}' : ']')) return json_fail(j, object ? "expected ',' or '}'" : "expected ',' or ']'");
        json_close(j);
    }
}

/* Reads `text`, which must live as long as the result. False: j->error at byte j->at. json_free in either case. */
static bool json_parse(json *j, const char *text, size_t length) {
    bool done = false, whole;
    memset(j, 0, sizeof(*j));
    j->text = text;
    j->length = length;
    if (length > 0x7FFFFFFF) return json_fail(j, "too long");
    while (!done) {
        if (!json_begin(j, &whole)) return false;
        if (whole && !json_end(j, &done)) return false;
    }
    return true;
}

static void json_free(json *j) {
    free(j->nodes);
    j->nodes = NULL;
}

/* The item behind `item`, in an array the next one, in an object from key to value to key. */
static const json_node *json_next(const json *j, const json_node *item) { return &j->nodes[item->after]; }

static uint32_t json_hex4(const char *p) {
    uint32_t value = 0;
    int i;
    for (i = 0; i < 4; i++) value = value << 4 | (uint32_t)(p[i] <= '9' ? p[i] - '0' : (p[i] | 32) - 'a' + 10);
    return value;
}

static void str_utf8(str *to, uint32_t code) {
    char bytes[4];
    size_t n = code < 0x80 ? 1 : code < 0x800 ? 2 : code < 0x10000 ? 3 : 4, i;
    for (i = n - 1; i > 0; i--, code >>= 6) bytes[i] = (char)(0x80 | (code & 0x3F));
    bytes[0] = (char)(n == 1 ? code : (0xF0u << (4 - n) & 0xFF) | code);
    str_add(to, bytes, n);
}

/* Appends \uXXXX at `p` (behind the u), with its second half if that follows; one alone becomes U+FFFD. Returns the bytes read. */
static size_t json_add_unicode(str *to, const char *p, const char *end) {
    uint32_t code = json_hex4(p), low = 0;
    bool pair = code >= 0xD800 && code < 0xDC00 && end - p >= 10 && p[4] == '\\' && p[5] == 'u';
    if (pair) low = json_hex4(p + 6);
    pair = pair && low >= 0xDC00 && low < 0xE000;
    if (pair) code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
    str_utf8(to, code >= 0xD800 && code < 0xE000 ? 0xFFFD : code);
    return pair ? 10 : 4;
}

/* Appends what an escape at `p` (behind the backslash) stands for. Returns the bytes read. */
static size_t json_add_escape(str *to, const char *p, const char *end) {
    static const char names[] = "\"\\/bfnrt", values[] = "\"\\/\b\f\n\r\t";
    if (*p == 'u') return 1 + json_add_unicode(to, p + 1, end);
    str_add(to, &values[strchr(names, *p) - names], 1);
    return 1;
}

/* Appends the characters of a string. */
static void json_add_text(const json *j, const json_node *node, str *to) {
    const char *p = j->text + node->begin, *end = j->text + node->end;
    str_reserve(to, (size_t)(end - p));
    while (p < end) {
        const char *escape = (const char *)memchr(p, '\\', (size_t)(end - p));
        str_add(to, p, (size_t)((escape ? escape : end) - p));
        if (!escape) return;
        p = escape + 1 + json_add_escape(to, escape + 1, end);
    }
}

/* Whether a string has these characters, however they are escaped. Nothing is allocated: every key is asked, for every field. */
static bool json_is(const json *j, const json_node *node, const char *text) {
    const char *p = j->text + node->begin, *end = j->text + node->end;
    size_t left = strlen(text);
    while (p < end) {
        char bytes[8];
        str one = {bytes, 0, sizeof(bytes)}; /* never full, so never moved */
        size_t most = (size_t)(end - p) > left ? left + 1 : (size_t)(end - p); /* of a longer key no more is looked at */
        const char *escape = (const char *)memchr(p, '\\', most), *piece = p;
        size_t n = escape ? (size_t)(escape - p) : most;
        p += n ? n : 1 + json_add_escape(&one, p + 1, end);
        if (piece == escape) piece = bytes, n = one.length;
        if (n > left || memcmp(text, piece, n) != 0) return false;
        text += n;
        left -= n;
    }
    return left == 0;
}

/* The value of a member; NULL when there is none or it is null. Of equal keys the last counts. */
static const json_node *json_get(const json *j, const json_node *object, const char *key) {
    const json_node *item, *found = NULL;
    uint32_t i;
    if (object->type != JSON_OBJECT) return NULL;
    for (i = 0, item = object + 1; i < object->count; i++, item = json_next(j, json_next(j, item)))
        if (json_is(j, item, key)) found = json_next(j, item);
    return found && found->type != JSON_NULL ? found : NULL;
}

/* The value of a number; false for anything else. */
static bool json_real(const json *j, const json_node *node, double *value) {
    char digits[64];
    size_t length = node->end - node->begin;
    if (node->type != JSON_NUMBER || length >= sizeof(digits)) return false;
    memcpy(digits, j->text + node->begin, length);
    digits[length] = 0;
    *value = strtod(digits, NULL);
    return *value - *value == 0.0;
}

/* A whole number that fits 64 bits, without point or exponent; false for anything else. */
static bool json_integer(const json *j, const json_node *node, int64_t *value) {
    char digits[32];
    size_t length = node->end - node->begin;
    char *end;
    if (node->type != JSON_NUMBER || length >= sizeof(digits)) return false;
    memcpy(digits, j->text + node->begin, length);
    digits[length] = 0;
    errno = 0;
    *value = strtoll(digits, &end, 10);
    return *end == 0 && errno == 0;
}
