/* Growing strings, reading whole files and lines, JSON output. Memory that runs out ends the tool. */

static void *xrealloc(void *pointer, size_t size) {
    void *result = realloc(pointer, size ? size : 1);
    if (!result) {
        fprintf(stderr, "fastgen: out of memory\n");
        exit(1);
    }
    return result;
}

typedef struct str {
    char *data; /* zero-terminated once anything was added */
    size_t length, capacity;
} str;

/* Makes room for `more` bytes and a closing zero. */
static void str_reserve(str *s, size_t more) {
    if (s->capacity > s->length && more < s->capacity - s->length) return;
    while (s->capacity <= s->length || s->capacity - s->length <= more) s->capacity = s->capacity ? s->capacity * 2 : 64;
    s->data = (char *)xrealloc(s->data, s->capacity);
}

static void str_add(str *s, const char *data, size_t length) {
    str_reserve(s, length);
    if (length) memcpy(s->data + s->length, data, length);
    s->length += length;
    s->data[s->length] = 0;
}

static void str_puts(str *s, const char *text) { str_add(s, text, strlen(text)); }

/* Takes away the first n bytes. */
static void str_drop(str *s, size_t n) {
    s->length -= n;
    if (n) memmove(s->data, s->data + n, s->length + 1);
}

static void str_free(str *s) {
    free(s->data);
    memset(s, 0, sizeof(*s));
}

static void str_printf(str *s, const char *format, ...) {
    va_list args;
    int length;
    va_start(args, format);
    length = vsnprintf(NULL, 0, format, args);
    va_end(args);
    if (length <= 0) return;
    str_reserve(s, (size_t)length);
    va_start(args, format);
    vsnprintf(s->data + s->length, (size_t)length + 1, format, args);
    va_end(args);
    s->length += (size_t)length;
}

/* Length of the UTF-8 character at `text` (`left` bytes of it there) and its code point; 0: not UTF-8. */
static int utf8_length(const char *text, size_t left, uint32_t *code) {
    const unsigned char *p = (const unsigned char *)text;
    static const uint32_t least[5] = {0, 0, 0x80, 0x800, 0x10000};
    int i, n = p[0] < 0x80 ? 1 : p[0] >= 0xF0 ? 4 : p[0] >= 0xE0 ? 3 : p[0] >= 0xC2 ? 2 : 0;
    if (n == 0 || (size_t)n > left || p[0] > 0xF4) return 0;
    *code = n == 1 ? p[0] : p[0] & (0x7Fu >> n);
    for (i = 1; i < n; i++) {
        if ((p[i] & 0xC0) != 0x80) return 0;
        *code = *code << 6 | (p[i] & 0x3Fu);
    }
    return *code >= least[n] && *code <= 0x10FFFF && (*code < 0xD800 || *code > 0xDFFF) ? n : 0;
}

/* The inside of a JSON string; bytes that are no UTF-8 become U+FFFD. */
static void str_escape(str *s, const char *text, size_t length) {
    size_t i = 0;
    while (i < length) {
        uint32_t code = 0;
        int n = utf8_length(text + i, length - i, &code);
        if (n == 0) str_puts(s, "\\ufffd");
        else if (code == '"' || code == '\\') str_printf(s, "\\%c", (int)code);
        else if (code == '\n') str_puts(s, "\\n");
        else if (code < 0x20 || code == 0x7F) str_printf(s, "\\u%04x", (unsigned)code);
        else str_add(s, text + i, (size_t)n);
        i += n ? (size_t)n : 1;
    }
}

/* A JSON string, with quotes. */
static void str_json(str *s, const char *text, size_t length) {
    str_puts(s, "\"");
    str_escape(s, text, length);
    str_puts(s, "\"");
}

/* A number JSON can hold: null for infinities and NaN. */
static void str_number(str *s, double value, int digits) {
    if (value - value == 0.0) str_printf(s, "%.*f", digits, value);
    else str_puts(s, "null");
}

/* Appends everything up to the end of the file; "-" is stdin. */
static bool read_file(const char *path, str *to) {
    FILE *file = strcmp(path, "-") == 0 ? stdin : open_for_reading(path);
    size_t n;
    bool ok;
    if (!file) return false;
    do {
        str_reserve(to, 65536);
        n = read_bytes(file, to->data + to->length, 65536);
        to->length += n;
        to->data[to->length] = 0;
    } while (n == 65536); /* a terminal could be read on */
    ok = !ferror(file);
    if (file != stdin) fclose(file);
    return ok;
}

/* One line without its end; false at the end of the input. */
static bool read_line(FILE *file, str *line) {
    int c = read_byte(file);
    line->length = 0;
    str_puts(line, "");
    if (c == EOF) return false;
    for (; c != EOF && c != '\n'; c = read_byte(file)) {
        char byte = (char)c;
        str_add(line, &byte, 1);
    }
    while (line->length && line->data[line->length - 1] == '\r') line->data[--line->length] = 0;
    return true;
}
