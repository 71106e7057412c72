/* Terminal output: progress bars on stderr, and text measured by columns. Nothing is drawn without a terminal. */

static bool terminal_utf8; /* set by main */

static void draw_bar(FILE *file, double fraction, int width) {
    int i, full = (int)(fraction * width + 0.5);
    for (i = 0; i < width; i++) {
        if (terminal_utf8) fputs(i < full ? "\xe2\x96\x88" : "\xe2\x96\x91", file); /* full block, light shade */
        else fputc(i < full ? '#' : '.', file);
    }
}

/* Whether a terminal does what escape sequences say. */
static bool terminal_obeys(FILE *file) {
    const char *term = getenv("TERM");
    return is_terminal(file) && !(term && strcmp(term, "dumb") == 0);
}

/* Whether colours and faint text are wanted there (no-color.org). */
static bool terminal_styles(FILE *file) {
    const char *no = getenv("NO_COLOR");
    return terminal_obeys(file) && !(no && *no);
}

static void clear_progress(void) {
    if (terminal_obeys(stderr)) fputs("\r\x1b[K", stderr);
}

/* One line that is drawn over itself, as wide as fits. */
static void show_progress(double fraction, const char *what) {
    static double last;
    double time = now_seconds();
    int columns = 80, rows, width;
    if (!terminal_obeys(stderr) || (fraction < 1.0 && time - last < 0.05)) return;
    last = time;
    terminal_size(&columns, &rows);
    width = columns < 40 ? columns / 4 : columns < 60 ? 10 : 30;
    fputs("\r\x1b[K", stderr);
    draw_bar(stderr, fraction, width);
    columns -= width + 8;
    fprintf(stderr, " %3d%%  %.*s", (int)(fraction * 100.0), columns < 0 ? 0 : columns > 40 ? 40 : columns, what);
    fflush(stderr);
}

/* Columns a character takes: 2 for the East Asian wide ranges and emoji, 0 for combining marks. */
static int char_columns(uint32_t c) {
    if (c < 0x300) return 1;
    if (c < 0x370 || c == 0x200B || c == 0x200D || (c >= 0xFE00 && c <= 0xFE0F)) return 0;
    if ((c >= 0x1100 && c <= 0x115F) || (c >= 0x2E80 && c <= 0xA4CF) || (c >= 0xAC00 && c <= 0xD7A3)) return 2;
    if ((c >= 0xF900 && c <= 0xFAFF) || (c >= 0xFE30 && c <= 0xFE6F) || (c >= 0xFF00 && c <= 0xFF60)) return 2;
    return (c >= 0x1F300 && c <= 0x1FAFF) || (c >= 0x20000 && c <= 0x3FFFD) ? 2 : 1;
}

/* The character at text[*i], as it may be shown on one line: control characters and broken bytes become a space. */
static int next_char(const char *text, size_t length, size_t *i, str *to) {
    uint32_t code = ' ';
    int n = utf8_length(text + *i, length - *i, &code);
    bool plain = n > 0 && code >= 0x20 && code != 0x7F && (code < 0x80 || code > 0x9F);
    if (to) str_add(to, plain ? text + *i : " ", plain ? (size_t)n : 1);
    *i += n ? (size_t)n : 1;
    return plain ? char_columns(code) : 1;
}


/* Appends what fits `columns` from text[*i] on, and moves *i behind it. */
static void add_columns(str *to, const char *text, size_t length, size_t *i, int columns) {
    while (*i < length) {
        size_t next = *i;
        int width = next_char(text, length, &next, NULL);
        if (width > columns) return;
        columns -= next_char(text, length, i, to);
    }
}
