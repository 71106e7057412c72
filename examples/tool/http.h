/* HTTP/1.1 (RFC 9112) as a server reads it: request heads and chunked bodies from bytes that may come in any pieces and
   from anybody. What could be read in two ways is refused. No sockets in here. */

enum { HTTP_MAX_HEAD = 16384, HTTP_MAX_HEADERS = 100, HTTP_MAX_CHUNK_LINE = 256 };

typedef struct http_head {
    char method[16], path[256];   /* the path without its query */
    char authorization[1024];     /* value of that header, "" when there is none, "?" when it is longer */
    char api_key[1024];           /* of x-api-key, as Anthropic's clients have it, likewise */
    int minor;                    /* HTTP/1.minor */
    bool keep_alive, chunked, has_length, expects_continue;
    uint64_t content_length;
} http_head;

static bool http_is_token(int c) {
    return (c >= '0' && c <= '9') || ((c | 32) >= 'a' && (c | 32) <= 'z') || (c > 0 && strchr("!#$%&'*+-.^_`|~", c) != NULL);
}

static bool http_same(const char *a, size_t length, const char *lower) {
    size_t i;
    for (i = 0; i < length && lower[i]; i++)
        if ((a[i] >= 'A' && a[i] <= 'Z' ? a[i] | 32 : a[i]) != lower[i]) return false;
    return i == length && !lower[i];
}

/* True when the comma-separated list has this element. */
static bool http_list_has(const char *value, size_t length, const char *lower) {
    size_t begin = 0, i;
    for (i = 0; i <= length; i++) {
        size_t end = i;
        if (i < length && value[i] != ',') continue;
        while (begin < end && (value[begin] == ' ' || value[begin] == '\t')) begin++;
        while (begin < end && (value[end - 1] == ' ' || value[end - 1] == '\t')) end--;
        if (http_same(value + begin, end - begin, lower)) return true;
        begin = i + 1;
    }
    return false;
}

static int http_hex(int c) {
    return c >= '0' && c <= '9' ? c - '0' : (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 'a' + 10 : -1;
}

/* Decodes the %XX of a URI in place (RFC 3986, 2.1). What is none stays as it is, and so does %00. */
static void http_decode(char *text) {
    char *to = text;
    while (*text) {
        bool escape = *text == '%' && http_hex(text[1]) >= 0 && http_hex(text[2]) >= 0;
        int code = escape ? http_hex(text[1]) << 4 | http_hex(text[2]) : 0;
        *to++ = code ? (char)code : *text;
        text += code ? 3 : 1;
    }
    *to = 0;
}

/* Length of the head with its empty line; 0: it has not all come. *scanned keeps the time linear over many calls. */
static size_t http_find_end(const char *data, size_t length, size_t *scanned) {
    size_t i = *scanned > 3 ? *scanned - 3 : 0;
    for (; i + 4 <= length; i++)
        if (memcmp(data + i, "\r\n\r\n", 4) == 0) return i + 4;
    *scanned = length;
    return 0;
}

/* Where the path of a target begins: behind "http://authority" where that is given, as to a proxy (RFC 9112, 3.2.2). */
static size_t http_find_path(const char *line, size_t target, size_t end) {
    size_t host = target + 7, at = host;
    if (end < host || !http_same(line + target, 7, "http://")) return target;
    while (at < end && !strchr("/?#", line[at])) at++;
    return at > host ? at : target;
}

/* "POST /path?query HTTP/1.1"; 0 or a status. */
static int http_parse_line(const char *line, size_t length, http_head *head) {
    size_t method = 0, target, end, path;
    bool absolute;
    while (method < length && http_is_token(line[method])) method++;
    if (method == 0 || method >= length || line[method] != ' ') return 400;
    if (method >= sizeof(head->method)) return 501;
    memcpy(head->method, line, method);
    target = end = method + 1;
    while (end < length && line[end] > ' ' && line[end] < 127) end++;
    if (end == target || length - end != 9 || memcmp(line + end, " HTTP/", 6) != 0 || line[end + 7] != '.') return 400;
    if (line[end + 6] != '1' || line[end + 8] < '0' || line[end + 8] > '9') return 505;
    head->minor = line[end + 8] - '0';
    target = http_find_path(line, target, end);
    absolute = target > method + 1;
    if (line[target] != '/' && !absolute)
        return strcmp(head->method, "OPTIONS") == 0 && end - target == 1 && line[target] == '*' ? 0 : 400;
    head->path[0] = '/'; /* also where an authority is all there is */
    for (path = 0; target + path < end && line[target + path] != '?' && line[target + path] != '#'; path++) {}
    if (path >= sizeof(head->path)) return 414;
    memcpy(head->path, line + target, path);
    return 0;
}

static int http_parse_length(const char *value, size_t length, http_head *head) {
    uint64_t sum = 0;
    size_t i;
    if (length == 0 || length > 18) return length ? 413 : 400;
    for (i = 0; i < length; i++) {
        if (value[i] < '0' || value[i] > '9') return 400;
        sum = sum * 10 + (uint64_t)(value[i] - '0');
    }
    if (head->has_length && head->content_length != sum) return 400;
    head->has_length = true;
    head->content_length = sum;
    return 0;
}

/* A header that may come once; 0 or a status. */
static int http_keep_secret(char *to, size_t size, const char *value, size_t length) {
    if (to[0]) return 400;
    if (length < size) memcpy(to, value, length);
    else to[0] = '?'; /* not the key, where one is needed */
    return 0;
}

/* One header that matters here; 0 or a status. */
static int http_parse_header(const char *name, size_t name_length, const char *value, size_t length, http_head *head) {
    if (http_same(name, name_length, "content-length")) return http_parse_length(value, length, head);
    if (http_same(name, name_length, "transfer-encoding")) {
        if (head->chunked || head->minor == 0) return 400;
        head->chunked = http_same(value, length, "chunked");
        return head->chunked ? 0 : 501;
    }
    if (http_same(name, name_length, "connection")) {
        if (http_list_has(value, length, "close")) head->keep_alive = false;
        else if (http_list_has(value, length, "keep-alive")) head->keep_alive = true;
    } else if (http_same(name, name_length, "expect")) {
        if (!http_same(value, length, "100-continue")) return 417;
        head->expects_continue = head->minor > 0;
    } else if (http_same(name, name_length, "authorization")) {
        return http_keep_secret(head->authorization, sizeof(head->authorization), value, length);
    } else if (http_same(name, name_length, "x-api-key")) {
        return http_keep_secret(head->api_key, sizeof(head->api_key), value, length);
    }
    return 0;
}

/* "Name: value" without its line end; 0 or a status. */
static int http_parse_header_line(const char *line, size_t length, http_head *head) {
    size_t name = 0, begin, i;
    while (name < length && http_is_token(line[name])) name++;
    if (name == 0 || name >= length || line[name] != ':') return 400; /* also folded lines, and spaces before the colon */
    for (i = name + 1; i < length; i++)
        if (((unsigned char)line[i] < ' ' && line[i] != '\t') || line[i] == 127) return 400;
    for (begin = name + 1; begin < length && (line[begin] == ' ' || line[begin] == '\t'); begin++) {}
    while (length > begin && (line[length - 1] == ' ' || line[length - 1] == '\t')) length--;
    return http_parse_header(line, name, line + begin, length - begin, head);
}

/* Reads a head that http_find_end found; 0, or the status that refuses it. */
static int http_parse_head(const char *data, size_t length, http_head *head) {
    size_t begin = 0, lines = 0;
    int status = 0;
    memset(head, 0, sizeof(*head));
    while (status == 0 && begin + 2 < length) {
        const char *end = data + begin;
        while (memcmp(end, "\r\n", 2) != 0) end++;
        if (lines == 0) {
            status = http_parse_line(data + begin, (size_t)(end - data) - begin, head);
            head->keep_alive = head->minor > 0;
        } else {
            status = http_parse_header_line(data + begin, (size_t)(end - data) - begin, head);
        }
        if (++lines > HTTP_MAX_HEADERS + 1) status = 431;
        begin = (size_t)(end - data) + 2;
    }
    return status ? status : head->chunked && head->has_length ? 400 : 0; /* both: one of them is a lie */
}

/* A body in chunks: hexadecimal size, line end, bytes, line end; a size of 0 ends it, then trailers up to an empty line. */
typedef enum http_chunk_state { CHUNK_SIZE, CHUNK_DATA, CHUNK_DATA_END, CHUNK_TRAILER, CHUNK_DONE } http_chunk_state;

typedef struct http_chunks {
    http_chunk_state state;
    uint64_t left;
    size_t line, trailers; /* bytes of the line so far, and of all trailers */
    char text[HTTP_MAX_CHUNK_LINE];
} http_chunks;

/* A size line without its line end; extensions behind a semicolon are skipped. */
static int http_chunk_size(http_chunks *c) {
    size_t i = 0;
    c->left = 0;
    for (; i < c->line && http_hex(c->text[i]) >= 0; i++) {
        if (i == 15) return 413;
        c->left = c->left << 4 | (uint64_t)http_hex(c->text[i]);
    }
    while (i > 0 && i < c->line && (c->text[i] == ' ' || c->text[i] == '\t')) i++;
    if (i == 0 || (i < c->line && c->text[i] != ';')) return 400;
    c->state = c->left ? CHUNK_DATA : CHUNK_TRAILER;
    return 0;
}

/* A whole line has come. */
static int http_chunk_line(http_chunks *c) {
    int status = 0;
    if (c->state == CHUNK_SIZE) status = http_chunk_size(c);
    else if (c->state == CHUNK_DATA_END) {
        if (c->line) status = 400;
        c->state = CHUNK_SIZE;
    } else if (c->line == 0) c->state = CHUNK_DONE;
    c->line = 0;
    return status;
}

/* A byte of a line. Line ends are CR LF. */
static int http_chunk_byte(http_chunks *c, char byte) {
    if (c->state == CHUNK_TRAILER && ++c->trailers > HTTP_MAX_HEAD) return 431;
    if (byte == '\n') {
        if (c->line == 0 || c->text[c->line - 1] != '\r') return 400;
        c->line--;
        return http_chunk_line(c);
    }
    if (c->line && c->text[c->line - 1] == '\r') return 400;
    if (c->line == sizeof(c->text)) return 400;
    c->text[c->line++] = byte;
    return 0;
}

/* Takes bytes of a body into `body`, which may grow to `limit`; *used of them belong to it. 0, or the status that refuses it;
   it is complete when c->state is CHUNK_DONE. */
static int http_take_chunks(http_chunks *c, const char *data, size_t length, size_t *used, str *body, size_t limit) {
    int status = 0;
    *used = 0;
    while (status == 0 && *used < length && c->state != CHUNK_DONE) {
        if (c->state == CHUNK_DATA) {
            size_t n = length - *used;
            if (n > c->left) n = (size_t)c->left;
            if (c->left > limit - body->length) return 413;
            str_add(body, data + *used, n);
            *used += n;
            c->left -= n;
            if (c->left == 0) c->state = CHUNK_DATA_END;
        } else {
            status = http_chunk_byte(c, data[(*used)++]);
        }
    }
    return status;
}

static const char *http_status_text(int status) {
    static const struct {
        int status;
        const char *text;
    } names[] = {{200, "OK"}, {204, "No Content"}, {400, "Bad Request"}, {401, "Unauthorized"}, {404, "Not Found"},
                 {405, "Method Not Allowed"}, {408, "Request Timeout"}, {413, "Content Too Large"}, {414, "URI Too Long"},
                 {417, "Expectation Failed"}, {429, "Too Many Requests"}, {431, "Request Header Fields Too Large"},
                 {500, "Internal Server Error"}, {501, "Not Implemented"}, {503, "Service Unavailable"},
                 {505, "HTTP Version Not Supported"}};
    size_t i;
    for (i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        if (names[i].status == status) return names[i].text;
    return "Error";
}

/* True when they are the same. The time does not tell how much of it was right. */
static bool http_key_is(const char *text, const char *key) {
    size_t length = strlen(text), n = strlen(key), i;
    unsigned difference = length != n;
    for (i = 0; i < length; i++) difference |= (unsigned char)text[i] ^ (unsigned char)(n ? key[i % n] : 1);
    return difference == 0;
}

/* True when the header is "Bearer KEY". */
static bool http_bearer_is(const char *authorization, const char *key) {
    static const char scheme[] = "bearer ";
    size_t length = strlen(authorization), n = sizeof(scheme) - 1;
    return length >= n && http_same(authorization, n, scheme) && http_key_is(authorization + n, key);
}
