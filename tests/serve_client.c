/* A client for fastgen serve, and tests of it; tests/test_serve.sh starts the servers. Also tests of the HTTP and JSON
   readers and of grammars alone. It needs nothing but sockets.

       serve_client units | protocol PORT TEXT | limits PORT [PROCESS] | key PORT | drain PORT | calls PORT | spaces PORT
       serve_client template MODEL COPY: the demo model with the template of the tests of calls */
#if !defined(_WIN32)
#define _GNU_SOURCE
#endif
#include <ctype.h>
#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#if defined(_WIN32)
#include <winsock2.h>
#include <windows.h>
#endif
#if defined(__GNUC__)
#pragma GCC diagnostic ignored "-Wunused-function" /* of the tool's parts only some are used here */
#endif
#include "test.h"
#include "../fastgen.h" /* what it declares: there is no engine in here */
#include "../examples/tool/platform.h"
#include "../examples/tool/text.h"
#include "../examples/tool/json.h"
#include "../examples/tool/http.h"

/* What grammars take of a model, which there is none of here: token 0 ends, the others are one byte each. */
bool fg_token_is_end(const fg_model *model, int32_t token) {
    (void)model;
    return token == 0;
}

const char *fg_token_text(const fg_model *model, int32_t token, size_t *length) {
    static char bytes[256];
    (void)model;
    bytes[token] = (char)token;
    *length = 1;
    return bytes + token;
}

fg_result fg_detokenize(const fg_model *model, const int32_t *ids, size_t count, unsigned flags, char *text, size_t capacity, size_t *length) {
    (void)model, (void)ids, (void)flags, (void)text, (void)capacity;
    *length = count;
    return FG_OK;
}

#include "../examples/tool/pattern.h"
#include "../examples/tool/grammar.h"

static int server_port;
static bool head_only;            /* the request was HEAD: its answer has no body */
static const char *expected_text; /* what the tool writes behind "Once upon a time" in 24 greedy tokens */
static const char *server_process; /* its number */

/* ---- requests ---------------------------------------------------------------------------------- */

typedef struct answer {
    int status;
    str head, body;
    bool closed; /* the server closed the connection behind it */
} answer;

static void answer_clear(answer *a) {
    str_free(&a->head);
    str_free(&a->body);
    memset(a, 0, sizeof(*a));
}

static socket_id client_connect(void) {
    socket_address address;
    socket_id s;
    parse_address("127.0.0.1", server_port, &address);
    s = socket(AF_INET, SOCK_STREAM, 0);
    if (s != NO_SOCKET && connect(s, &address.u.any, (socklen_t)address.length) != 0) {
        socket_close(s);
        return NO_SOCKET;
    }
    return s;
}

static bool client_send(socket_id s, const char *data, size_t length) {
    while (length) {
        int n = socket_send(s, data, length);
        if (n < 0) return false;
        data += n;
        length -= (size_t)n;
    }
    return true;
}

/* Adds what comes within 20 s; false when nothing does, or the connection has ended. */
static bool client_more(socket_id s, str *to) {
    socket_poll p;
    int n;
    memset(&p, 0, sizeof(p));
    p.fd = s;
    p.events = POLLIN;
    if (wait_sockets(&p, 1, 20000) <= 0) return false;
    str_reserve(to, 65536);
    n = socket_receive(s, to->data + to->length, 65536);
    if (n > 0) to->length += (size_t)n;
    to->data[to->length] = 0;
    return n > 0;
}

/* True as soon as an answer has come on one of n connections, within so many milliseconds. */
static bool any_answers(const socket_id *sockets, int n, int milliseconds) {
    socket_poll polls[16];
    int i;
    memset(polls, 0, sizeof(polls));
    for (i = 0; i < n && i < 16; i++) {
        polls[i].fd = sockets[i];
        polls[i].events = POLLIN;
    }
    return wait_sockets(polls, i, milliseconds) > 0;
}

static const char *header_of(const answer *a, const char *name) {
    const char *at = strstr(a->head.data ? a->head.data : "", name);
    return at ? at + strlen(name) : NULL;
}

/* Reads an answer; `in` keeps what came behind it. False: the connection ended before the answer did. */
static bool client_read(socket_id s, str *in, answer *a) {
    size_t scanned = 0, end = 0, length = 0, used;
    http_chunks chunks;
    memset(&chunks, 0, sizeof(chunks));
    while (in->length == 0 || (end = http_find_end(in->data, in->length, &scanned)) == 0)
        if (!client_more(s, in)) return false;
    str_add(&a->head, in->data, end);
    memmove(in->data, in->data + end, in->length - end);
    in->length -= end;
    a->status = atoi(a->head.data + 9);
    if (head_only) return true;
    if (header_of(a, "Content-Length: ")) length = (size_t)atol(header_of(a, "Content-Length: "));
    for (;;) {
        bool chunked = header_of(a, "Transfer-Encoding: chunked") != NULL;
        if (chunked && http_take_chunks(&chunks, in->data, in->length, &used, &a->body, 1 << 30) != 0) return false;
        if (!chunked) {
            used = length - a->body.length < in->length ? length - a->body.length : in->length;
            str_add(&a->body, in->data, used);
        }
        if (used) memmove(in->data, in->data + used, in->length - used);
        in->length -= used;
        if (chunked ? chunks.state == CHUNK_DONE : a->body.length == length) return true;
        if (!client_more(s, in)) return false;
    }
}

/* Sends raw bytes on a new connection and reads one answer; then, whether the server closes within a moment. */
static answer exchange(const char *data, size_t length) {
    answer a;
    str in = {NULL, 0, 0};
    socket_poll p;
    socket_id s = client_connect();
    memset(&a, 0, sizeof(a));
    memset(&p, 0, sizeof(p));
    if (s == NO_SOCKET) return a;
    client_send(s, data, length);
    if (!client_read(s, &in, &a)) a.status = 0;
    p.fd = s;
    p.events = POLLIN;
    a.closed = header_of(&a, "Connection: close") != NULL && wait_sockets(&p, 1, 5000) > 0 && !client_more(s, &in);
    socket_close(s);
    str_free(&in);
    return a;
}

static answer request(const char *method, const char *path, const char *headers, const char *body) {
    str text = {NULL, 0, 0};
    answer a;
    str_printf(&text, "%s %s HTTP/1.1\r\nHost: test\r\n%s", method, path, headers);
    if (body) str_printf(&text, "Content-Length: %zu\r\n", strlen(body));
    str_printf(&text, "\r\n%s", body ? body : "");
    a = exchange(text.data, text.length);
    str_free(&text);
    return a;
}

static answer post(const char *path, const char *body) { return request("POST", path, "", body); }

static bool has(const answer *a, const char *text) { return a->body.data && strstr(a->body.data, text) != NULL; }

/* One request, its status and a part of its body. */
static void expect(const char *path, const char *body, int status, const char *part) {
    answer a = body ? post(path, body) : request("GET", path, "", NULL);
    CHECKF(a.status == status && (!part || has(&a, part)), "%s %.200s: %d %.400s", path, body ? body : "", a.status,
           a.body.data ? a.body.data : "");
    answer_clear(&a);
}

/* The value of a metric without its labels; -1: not there. */
static double metric(const char *name) {
    answer a = request("GET", "/metrics", "", NULL);
    char line[128];
    const char *at;
    double value = -1;
    snprintf(line, sizeof(line), "\nvllm:%s{", name);
    at = a.body.data ? strstr(a.body.data, line) : NULL;
    if (at) at = strchr(at, '}');
    if (at) value = atof(at + 1);
    answer_clear(&a);
    return value;
}

static bool becomes(const char *name, double value) {
    int i;
    for (i = 0; i < 400; i++) {
        if (metric(name) == value) return true;
        sleep_seconds(0.025);
    }
    return false;
}

/* ---- readers alone ----------------------------------------------------------------------------- */

static int head_status(const char *text, http_head *head) {
    size_t scanned = 0, end = http_find_end(text, strlen(text), &scanned);
    return end ? http_parse_head(text, end, head) : -1;
}

static void test_http_heads(void) {
    static const struct {
        const char *text;
        int status;
    } cases[] = {
        {"GET / HTTP/1.1\r\n\r\n", 0},
        {"GET /a?b=c HTTP/1.0\r\nA: b\r\n\r\n", 0},
        {"OPTIONS * HTTP/1.1\r\n\r\n", 0},
        {"POST / HTTP/1.1\r\nContent-Length: 5\r\nContent-Length: 5\r\n\r\n", 0},
        {"POST / HTTP/1.1\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n", 400},
        {"POST / HTTP/1.1\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n", 400},
        {"POST / HTTP/1.1\r\nTransfer-Encoding: gzip\r\n\r\n", 501},
        {"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n", 400},
        {"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n", 400},
        {"POST / HTTP/1.1\r\nContent-Length: +5\r\n\r\n", 400},
        {"POST / HTTP/1.1\r\nContent-Length: 5,5\r\n\r\n", 400},
        {"POST / HTTP/1.1\r\nContent-Length: 99999999999999999999\r\n\r\n", 413},
        {"POST / HTTP/1.1\r\nContent-Length : 5\r\n\r\n", 400},
        {"POST / HTTP/1.1\r\nA: b\r\n folded\r\n\r\n", 400},
        {"POST / HTTP/1.1\r\nA: b\x01\r\n\r\n", 400},
        {"POST / HTTP/1.1\r\nA: b\nB: c\r\n\r\n", 400},
        {"GET / HTTP/2.0\r\n\r\n", 505},
        {"GET  / HTTP/1.1\r\n\r\n", 400},
        {"GET / HTTP/1.1 \r\n\r\n", 400},
        {"GET http://host/ HTTP/1.1\r\n\r\n", 0},
        {"GET HTTP://host:80 HTTP/1.1\r\n\r\n", 0},
        {"GET http:///a HTTP/1.1\r\n\r\n", 400},
        {"GET http:/a HTTP/1.1\r\n\r\n", 400},
        {"GET ftp://host/a HTTP/1.1\r\n\r\n", 400},
        {"GET host HTTP/1.1\r\n\r\n", 400},
        {"\x16\x03\x01 / HTTP/1.1\r\n\r\n", 400},
        {"GET / HTTP/1.1\r\nExpect: magic\r\n\r\n", 417},
        {"GET / HTTP/1.1\r\n", -1},
    };
    http_head head;
    size_t i;
    for (i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        CHECKF(head_status(cases[i].text, &head) == cases[i].status, "%s", cases[i].text);
    CHECK(head_status("POST /v1/x?y HTTP/1.1\r\nconnection: foo, Close\r\nAUTHORIZATION:\tBearer k \r\n\r\n", &head) == 0);
    CHECK(strcmp(head.path, "/v1/x") == 0 && !head.keep_alive && strcmp(head.authorization, "Bearer k") == 0);
    CHECK(http_bearer_is(head.authorization, "k") && !http_bearer_is("Bearer kk", "k") && !http_bearer_is("Bearer ", "k"));
    CHECK(!http_bearer_is("k", "k") && !http_bearer_is("", "k") && http_bearer_is("bearer k", "k") && !http_bearer_is("Bearer x", ""));
}

/* An Authorization header that is longer than any key: well-formed, and wrong. */
static void test_http_authorization(void) {
    char text[2200], key[2000];
    http_head head;
    int length;
    for (length = 1000; length < 1030; length++) {
        memset(key, 'k', sizeof(key));
        key[length] = 0;
        snprintf(text, sizeof(text), "GET / HTTP/1.1\r\nAuthorization: Bearer %s\r\n\r\n", key);
        CHECK(head_status(text, &head) == 0 && http_bearer_is(head.authorization, key) == (length < 1017));
        key[1016] = 0;
        CHECK(http_bearer_is(head.authorization, key) == (length <= 1016));
        if (length > 1016) key[1016] = 'k';
        snprintf(text, sizeof(text), "GET / HTTP/1.1\r\nX-API-Key: %s\r\nAuthorization: Bearer other\r\n\r\n", key);
        CHECK(head_status(text, &head) == 0 && http_key_is(head.api_key, key) == (length < 1024) && !http_bearer_is(head.authorization, key));
        CHECK(http_bearer_is(head.authorization, "other") && !http_key_is(head.api_key, "k") && !http_key_is(head.api_key, ""));
    }
    CHECK(head_status("GET / HTTP/1.1\r\n\r\n", &head) == 0 && !http_key_is(head.api_key, "k") && !http_bearer_is(head.authorization, ""));
    CHECK(head_status("GET / HTTP/1.1\r\nX-Api-Key: a\r\nX-Api-Key: a\r\n\r\n", &head) == 400);
    snprintf(text, sizeof(text), "GET / HTTP/1.1\r\nAuthorization: %01100d\r\nAuthorization: x\r\n\r\n", 1);
    CHECK(head_status(text, &head) == 400);
}

/* The path of a target, in the form of one's own server and that of a proxy. */
static void test_http_targets(void) {
    static const char *const cases[][2] = {{"/v1/x?y", "/v1/x"}, {"http://host/v1/x?y", "/v1/x"}, {"http://[::1]:8080/a/b", "/a/b"},
                                           {"http://host", "/"}, {"http://host?y", "/"}, {"/http://host/a", "/http://host/a"}};
    char text[100], encoded[] = "a%2Fb%c3%A9%%2%00%zz%25", plain[] = "";
    http_head head;
    size_t i;
    for (i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        snprintf(text, sizeof(text), "GET %s HTTP/1.1\r\n\r\n", cases[i][0]);
        CHECKF(head_status(text, &head) == 0 && strcmp(head.path, cases[i][1]) == 0, "%s: %s", cases[i][0], head.path);
    }
    http_decode(encoded);
    CHECKF(strcmp(encoded, "a/b\xC3\xA9%%2%00%zz%") == 0, "%s", encoded);
    http_decode(plain);
    CHECK(plain[0] == 0);
}

/* A chunked body, cut at every place. */
static void test_http_chunks(void) {
    static const char text[] = "5\r\nhello\r\n1;ext=1\r\n,\r\nA \r\n 123456789\r\n0\r\nTrailer: x\r\n\r\nrest";
    static const char *const bad[] = {"5\nhello", "x\r\n", "5\r\nhelloo\r\n", "\r\n", "-1\r\n", "1000000000000000000\r\n", "5 x\r\n"};
    size_t cut, i, used, more;
    for (cut = 0; cut <= strlen(text); cut++) {
        http_chunks c;
        str body = {NULL, 0, 0};
        memset(&c, 0, sizeof(c));
        CHECK(http_take_chunks(&c, text, cut, &used, &body, 100) == 0);
        if (used == cut) CHECK(http_take_chunks(&c, text + cut, strlen(text) - cut, &more, &body, 100) == 0);
        CHECK(c.state == CHUNK_DONE && body.length == 16 && memcmp(body.data, "hello, 123456789", 16) == 0);
        str_free(&body);
    }
    for (i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        http_chunks c;
        str body = {NULL, 0, 0};
        memset(&c, 0, sizeof(c));
        CHECKF(http_take_chunks(&c, bad[i], strlen(bad[i]), &used, &body, 100) != 0, "%s", bad[i]);
        str_free(&body);
    }
}

static void test_json_reader(void) {
    static const char *const bad[] = {"", "[", "]", "{", "nul", "01", "1.", "-", "1e", "+1", "[1,]", "{\"a\"}", "{\"a\":1,}", "\"\\x\"",
                                      "\"", "'a'", "[1] 2", "\"\n\"", "\"\\u12\"", "{1:2}", "NaN"};
    static const char text[] = " {\"a\": [1, {\"b\": null}, -2.5e1], \"s\": \"\\ud83d\\ude00\\n\\ud800x\", \"n\": null, \"i\": 1, \"i\": 9007199254740993} ";
    json j;
    str s = {NULL, 0, 0};
    int64_t integer = 0;
    double real = 0;
    size_t i;
    for (i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        CHECKF(!json_parse(&j, bad[i], strlen(bad[i])), "%s", bad[i]);
        json_free(&j);
    }
    CHECK(json_parse(&j, text, strlen(text)));
    CHECK(json_get(&j, j.nodes, "a")->count == 3 && json_get(&j, j.nodes, "n") == NULL && json_get(&j, j.nodes, "x") == NULL);
    CHECK(json_integer(&j, json_get(&j, j.nodes, "i"), &integer) && integer == 9007199254740993); /* of equal keys the last */
    CHECK(json_real(&j, json_next(&j, json_next(&j, json_get(&j, j.nodes, "a") + 1)), &real) && real == -25);
    json_add_text(&j, json_get(&j, j.nodes, "s"), &s);
    CHECK(s.length == 9 && memcmp(s.data, "\xF0\x9F\x98\x80\n\xEF\xBF\xBDx", 9) == 0);
    json_free(&j);
    str_free(&s);
}

/* Keys and words are the same however they are escaped. */
static void test_json_escapes(void) {
    static const char text[] = "{\"m\\u006fdel\": \"org\\/m\\u00f3d\\u0065l\", \"x\": \"\\ud83d\\ude00\\n\", \"y\": \"a\\u0000b\", \"\": \"\"}";
    json j;
    CHECK(json_parse(&j, text, strlen(text)));
    CHECK(json_get(&j, j.nodes, "model") && json_is(&j, json_get(&j, j.nodes, "model"), "org/m\xC3\xB3" "del"));
    CHECK(!json_is(&j, json_get(&j, j.nodes, "model"), "org/m\xC3\xB3" "de") && !json_is(&j, json_get(&j, j.nodes, "model"), "org/m\xC3\xB3" "dell"));
    CHECK(json_is(&j, json_get(&j, j.nodes, "x"), "\xF0\x9F\x98\x80\n") && !json_is(&j, json_get(&j, j.nodes, "x"), "\xF0\x9F\x98\x80"));
    CHECK(!json_is(&j, json_get(&j, j.nodes, "y"), "a") && !json_is(&j, json_get(&j, j.nodes, "y"), "ab"));
    CHECK(json_get(&j, j.nodes, "") && json_is(&j, json_get(&j, j.nodes, ""), "") && !json_get(&j, j.nodes, "m"));
    json_free(&j);
}

static void test_json_depth(void) {
    size_t n = 1000000;
    char *text = (char *)xrealloc(NULL, n);
    json j;
    memset(text, '[', n);
    CHECK(!json_parse(&j, text, n));
    json_free(&j);
    memset(text + JSON_MAX_DEPTH, ']', JSON_MAX_DEPTH);
    CHECK(json_parse(&j, text, 2 * JSON_MAX_DEPTH));
    json_free(&j);
    free(text);
}

/* ---- grammars ---------------------------------------------------------------------------------- */

static grammar *grammar_of(const char *schema) {
    json j;
    grammar *g;
    CHECKF(json_parse(&j, schema, strlen(schema)), "%s", schema);
    g = grammar_make(&j, j.nodes);
    json_free(&j);
    return g;
}

/* How many bytes of an answer may be written; -1: all, and it may end there; -2: all, but it may not. */
static int grammar_takes(const grammar *g, const char *answer) {
    grammar_state s;
    int n = 0;
    grammar_begin(g, &s);
    while (answer[n] && grammar_byte(g, &s, (unsigned char)answer[n])) n++;
    return answer[n] ? n : grammar_complete(g, &s) ? -1 : -2;
}

/* An object whose property t is one of `values`; required: its name, or nothing. */
#define OBJECT(values, required) \
    "{\"type\":\"object\",\"properties\":{\"n\":{\"type\":\"integer\"},\"t\":{\"enum\":[" values "]}},\"required\":[" required "]}"

/* What cannot be kept, whichever way round it is written. */
static void test_grammar_refused(void) {
    static const char *const cases[][2] = {
        {"{\"anyOf\":[{\"type\":\"object\",\"properties\":{\"a\":{\"anyOf\":[{\"$ref\":\"#\"},{\"type\":\"null\"}]}}},{\"type\":\"string\"}]}", "contains itself"},
        {"{\"anyOf\":[{\"type\":\"string\"},{\"type\":\"object\",\"properties\":{\"a\":{\"anyOf\":[{\"$ref\":\"#\"},{\"type\":\"null\"}]}}}]}", "contains itself"},
        {"{\"properties\":{\"a\":{\"$ref\":\"#\"}},\"required\":[\"a\"]}", "nested without end"},
        {"{\"type\":\"array\",\"items\":{\"$ref\":\"#\"},\"minItems\":1}", "nested without end"},
        {"{\"oneOf\":[{\"const\":\"a\"},{\"enum\":[\"b\",\"a\"]}]}", "two alternatives"},
        {"{\"oneOf\":[{\"const\":1},{\"const\":1.0}]}", "two alternatives"},
        {"{\"oneOf\":[{\"enum\":[10,\"x\"]},{\"const\":2},{\"anyOf\":[{\"const\":\"y\"},{\"const\":1e1}]}]}", "two alternatives"},
        {"{\"oneOf\":[{\"const\":{\"a\":1}},{\"const\":{ \"a\":1}}]}", "objects or arrays"},
        {"{\"oneOf\":[{\"enum\":[[1],2]},{\"const\":[1.0]}]}", "objects or arrays"},
        {"{\"oneOf\":[{\"type\":\"string\"},{\"type\":\"string\"}]}", "oneOf: alternatives of the same type"},
        {"{\"oneOf\":\"x\"}", "oneOf must be an array"},
        {"{\"oneOf\":[{\"type\":\"boolean\"},{\"properties\":{\"a\":{}}}]}", "needs a type"},
        {"{\"oneOf\":[{\"type\":[\"object\",\"null\"],\"anyOf\":[{\"properties\":{\"a\":{}}}]},{\"type\":\"null\"}]}", "needs a type"},
        {"{\"oneOf\":[{\"type\":[\"object\",\"number\"],\"anyOf\":[{\"properties\":{}},{\"const\":1}]},{\"const\":2}]}", "needs a type"},
        {"{\"oneOf\":[{\"$ref\":\"#/$defs/A\"},{\"type\":\"null\"}],\"$defs\":{\"A\":{\"items\":{\"type\":\"null\"}}}}", "needs a type"},
        {"{\"oneOf\":[{\"type\":\"integer\"},{\"type\":\"number\"}]}", "oneOf: alternatives of the same type"},
        {"{\"oneOf\":[{\"type\":\"string\"},{\"const\":\"a\"}]}", "oneOf: alternatives of the same type"},
        {"{\"oneOf\":[{\"const\":{}},{\"type\":\"object\"}]}", "oneOf: alternatives of the same type"},
        {"{\"oneOf\":[" OBJECT("\"a\"", "\"t\"") "," OBJECT("\"b\",\"a\"", "\"t\"") "]}", "oneOf: alternatives of the same type"},
        {"{\"oneOf\":[{\"type\":\"object\",\"properties\":{\"t\":{\"type\":\"string\"}},\"required\":[\"t\"]}," OBJECT("\"a\"", "\"t\"") "]}",
         "oneOf: alternatives of the same type"},
        {"{\"minLength\":2,\"maxLength\":1}", "minLength is above maxLength"},
        {"{\"type\":\"string\",\"minLength\":-1}", "minLength must be a whole number"},
        {"{\"type\":\"integer\",\"minimum\":0.1,\"maximum\":0.9}", "no number"},
        {"{\"type\":\"number\",\"exclusiveMinimum\":1,\"maximum\":1}", "no number"},
        {"{\"type\":\"number\",\"minimum\":1,\"maximum\":1,\"exclusiveMaximum\":true}", "no number"},
        {"{\"type\":\"number\",\"minimum\":1e18}", "no number"},
        {"{\"type\":\"number\",\"maximum\":-1e400}", "no number"},
        {"{\"type\":\"number\",\"minimum\":\"1\"}", "minimum must be a number"},
        {"{\"type\":\"array\",\"prefixItems\":{}}", "prefixItems must be an array"},
        {"{\"type\":\"array\",\"prefixItems\":[{}],\"items\":false,\"minItems\":2}", "minItems is above"},
        {"{\"type\":\"array\",\"prefixItems\":[{},{\"$ref\":\"#\"}],\"minItems\":2}", "nested without end"},
        {"{\"anyOf\":[{\"$ref\":\"#/$defs/A\"},{\"$ref\":\"#/$defs/B\"}],\"$defs\":{\"A\":{\"properties\":{\"a\":{\"$ref\":\"#\"}},\"required\":[\"a\"]},"
         "\"B\":{\"type\":\"array\",\"items\":{\"$ref\":\"#\"},\"minItems\":1}}}", "nested without end"},
        {"{\"pattern\":7}", "must be a string"},
        {"{\"pattern\":\"a(?=b)\"}", "pattern 'a(?=b)': looking ahead"},
        {"{\"pattern\":\"(?<!b)a\"}", "looking ahead or behind"},
        {"{\"pattern\":\"(a)\\\\1\"}", "an escape that is not supported"},
        {"{\"pattern\":\"\\\\bword\"}", "an escape that is not supported"},
        {"{\"pattern\":\"\\\\p{L}\"}", "an escape that is not supported"},
        {"{\"pattern\":\"a\\\\\"}", "an escape that is not supported"},
        {"{\"pattern\":\"(^a|b)\"}", "only supported at its ends"},
        {"{\"pattern\":\"a$b\"}", "only supported at its ends"},
        {"{\"pattern\":\"(a\"}", "a ( without"},
        {"{\"pattern\":\"a)\"}", "a ) without"},
        {"{\"pattern\":\"[a\"}", "a [ without"},
        {"{\"pattern\":\"[b-a]\"}", "a range"},
        {"{\"pattern\":\"a{3,2}\"}", "from more to less"},
        {"{\"pattern\":\"+a\"}", "nothing to repeat"},
        {"{\"pattern\":\"\\\\u12\"}", "hexadecimal"},
        {"{\"pattern\":\"[^\\\\s\\\\S]\"}", "no text matches"},
        {"{\"pattern\":\"\\\\x01\"}", "no text matches"},
        {"{\"pattern\":\"ab\",\"maxLength\":1}", "no text matches"},
        {"{\"pattern\":\"^a{3}$\",\"minLength\":4}", "no text matches"},
        {"{\"pattern\":\"(a|b)*a(a|b){15}\"}", "too many states"},
        {"{\"pattern\":\"((a{99}){99}){99}\"}", "too long"},
        {"{\"pattern\":\"a{99999}\"}", "too many repetitions"},
        {"{\"pattern\":\".*\",\"maxLength\":100000}", "too many states"},
    };
    size_t i;
    for (i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        grammar *g = grammar_of(cases[i][0]);
        CHECKF(strstr(g->error, cases[i][1]), "%s: \"%s\"", cases[i][0], g->error);
        grammar_free(g);
    }
}

/* Which answers a schema has. */
static void test_grammar_answers(void) {
    static const struct {
        const char *schema, *answer;
        int takes;
    } cases[] = {
        {"{\"enum\":[\"ab\",\"abc\",\"abd\",\"b\",1,12,null]}", "\"ab\"", -1},
        {"{\"enum\":[\"ab\",\"abc\",\"abd\",\"b\",1,12,null]}", "\"abd\"", -1},
        {"{\"enum\":[\"ab\",\"abc\",\"abd\",\"b\",1,12,null]}", "\"bd\"", 2},
        {"{\"enum\":[\"ab\",\"abc\",\"abd\",\"b\",1,12,null]}", "12", -1},
        {"{\"enum\":[\"ab\",\"abc\",\"abd\",\"b\",1,12,null]}", "1", -1},
        {"{\"enum\":[\"ab\",\"abc\",\"abd\",\"b\",1,12,null]}", "11", 1},
        {"{\"type\":\"array\",\"items\":{\"enum\":[12,1,123]}}", "[1,123, 12]", -1},
        {"{\"properties\":{\"b\":{},\"a\\\"b\":{},\"ab\":{},\"a\":{}}}", "{\"b\":1,\"a\\\"b\":2,\"ab\":3,\"a\":4}", -1},
        {"{\"properties\":{\"b\":{},\"a\\\"b\":{},\"ab\":{},\"a\":{}}}", "{\"a\":4}", -1},
        {"{\"properties\":{\"b\":{},\"a\\\"b\":{},\"ab\":{},\"a\":{}}}", "{\"ab\":3,\"b\":4}", 9},
        {"{\"properties\":{\"b\":{},\"a\":{},\"ab\":{}},\"required\":[\"a\"]}", "{\"ab\":3}", 3},
        {"{\"properties\":{\"b\":{},\"a\":{},\"ab\":{}},\"required\":[\"a\"]}", "{\"a\":4,\"ab\":3}", -1},
        {"{\"properties\":{\"b\":{},\"a\":{},\"ab\":{}},\"required\":[\"a\"]}", "{\"b\":4}", 6},
        {"{\"type\":\"array\",\"items\":{\"$ref\":\"#\"}}", "[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]", -1},
        {"{\"type\":\"array\",\"items\":{\"$ref\":\"#\"}}", "[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[", 32},
        {"{\"anyOf\":[{\"type\":\"string\"},{\"type\":\"object\",\"properties\":{\"a\":{\"$ref\":\"#\"}}}]}", "{\"a\":{\"a\":\"\"}}", -1},
        {"{\"properties\":{\"a\":{\"anyOf\":[{\"$ref\":\"#\"},{\"type\":\"null\"}]}}}", "{\"a\":{\"a\":null}}", -1},
        {"{\"anyOf\":[{\"const\":1},{\"const\":1.0}]}", "1.0", -1},
        {"{\"oneOf\":[{\"const\":1},{\"const\":\"1\"},{\"const\":-1},{\"const\":1.5}]}", "-1", -1},
        {"{\"oneOf\":[{\"enum\":[1,1.0,1]},{\"type\":\"null\"}]}", "1.0", -1},
        {"{\"oneOf\":[{\"enum\":[[1],[2],{}]},{\"type\":\"null\"}]}", "[2]", -1},
        {"{\"oneOf\":[{\"const\":[1]},{\"const\":{}}]}", "{}", -1},
        {"{\"oneOf\":[{\"properties\":{\"a\":{}}}]}", "{\"a\":1}", -1},
        {"{\"oneOf\":[{\"type\":\"object\",\"anyOf\":[{\"properties\":{\"a\":{}}}]},{\"type\":\"null\"}]}", "{\"a\":1}", -1},
        {"{\"oneOf\":[{\"type\":\"object\",\"properties\":{\"a\":{}}},{\"type\":\"null\"}]}", "null", -1},
        /* alternatives that begin alike */
        {"{\"oneOf\":[" OBJECT("\"a\"", "\"t\"") "," OBJECT("\"b\",\"ab\"", "\"t\"") "]}", "{\"n\":1,\"t\":\"ab\"}", -1},
        {"{\"oneOf\":[" OBJECT("\"a\"", "\"t\"") "," OBJECT("\"b\",\"ab\"", "\"t\"") "]}", "{\"n\":1,\"t\":\"a\"}", -1},
        {"{\"oneOf\":[" OBJECT("\"a\"", "\"t\"") "," OBJECT("\"b\",\"ab\"", "\"t\"") "]}", "{\"n\":1,\"t\":\"ac\"}", 13},
        {"{\"oneOf\":[" OBJECT("\"a\"", "\"t\"") ",{\"type\":\"null\"}," OBJECT("\"b\"", "\"t\"") ",{\"const\":7}]}", "7", -1},
        {"{}", "\n[\n\t 1,\n        2 ,{ }\n]", -1}, /* white space */
        {"{}", "[[[[\n                       1,\n                        ", 54},
        {"{}", "\n ", 1},
        {"{}", "\n\n", 1},
        {"{}", "  ", 1},
        {"{}", "[1,\n         2", 12},
        {"{}", "[\t", 1},
        {"{\"oneOf\":[" OBJECT("\"a\"", "\"t\"") "," OBJECT("\"b\"", "") "]}", "{\"t\":\"b\"}", -1},
        {"{\"oneOf\":[" OBJECT("\"a\"", "") "," OBJECT("\"b\"", "") "]}", "{\"n\":1}", 6}, /* which of them would it be? */
        {"{\"oneOf\":[" OBJECT("\"a\"", "\"t\"") ",{\"type\":\"null\"}," OBJECT("\"b\"", "\"t\"") ",{\"const\":7}]}", " null ", 5},
        {"{\"anyOf\":[{\"properties\":{\"a\":{},\"b\":{\"type\":\"null\"}}},{\"properties\":{\"a\":{\"type\":\"integer\"},\"c\":{}},\"required\":[\"c\"]}]}",
         "{\"a\":1,\"c\":2}", -1},
        {"{\"anyOf\":[{\"properties\":{\"a\":{},\"b\":{\"type\":\"null\"}}},{\"properties\":{\"a\":{\"type\":\"integer\"},\"c\":{}},\"required\":[\"c\"]}]}",
         "{\"a\":1.5,\"c\":2}", 10},
        {"{\"anyOf\":[{\"properties\":{\"a\":{},\"b\":{\"type\":\"null\"}}},{\"properties\":{\"a\":{\"type\":\"integer\"},\"c\":{}},\"required\":[\"c\"]}]}",
         "{\"a\":1.5}", -1},
        {"{\"items\":{\"anyOf\":[{\"type\":\"integer\"},{\"type\":\"number\"},{\"enum\":[\"a\",\"b\"]},{\"type\":\"string\",\"minLength\":3}]}}", "[1,1.5,\"a\",\"abc\"]", -1},
        {"{\"items\":{\"anyOf\":[{\"type\":\"integer\"},{\"type\":\"number\"},{\"enum\":[\"a\",\"b\"]},{\"type\":\"string\",\"minLength\":3}]}}", "[\"c\"", 3},
        {"{\"anyOf\":[{\"type\":\"integer\"},{\"type\":\"number\"}]}", "12", -1},
        {"{\"type\":\"integer\",\"anyOf\":[{\"type\":\"integer\",\"maximum\":-5},{\"type\":\"integer\",\"minimum\":5}]}", "-5", -1},
        {"{\"type\":\"integer\",\"anyOf\":[{\"type\":\"integer\",\"maximum\":-5},{\"type\":\"integer\",\"minimum\":5}]}", "4", -2},
        {"{\"anyOf\":[{\"type\":\"array\",\"items\":{\"type\":\"null\"}},{\"anyOf\":[{\"type\":\"array\",\"items\":{\"type\":\"integer\"}},{\"type\":\"string\"}]}]}", "[1,null]", 3},
        {"{\"anyOf\":[{\"type\":\"array\",\"items\":{\"type\":\"null\"}},{\"anyOf\":[{\"type\":\"array\",\"items\":{\"type\":\"integer\"}},{\"type\":\"string\"}]}]}", "[ ]", -1},
        {"{\"properties\":{\"a\":{\"anyOf\":[{\"$ref\":\"#\"}," OBJECT("\"a\"", "") ",{\"type\":\"null\"}]}}}", "{\"a\":{\"a\":{\"n\":1}}}", -1},
        /* characters of strings: U+1F600 is one, however it is written, and halves of it are none */
        {"{\"type\":\"string\",\"minLength\":2,\"maxLength\":3}", "\"a\"", 2},
        {"{\"type\":\"string\",\"minLength\":2,\"maxLength\":3}", "\"a\\n\xf0\x9f\x98\x80\"", -1},
        {"{\"type\":\"string\",\"minLength\":2,\"maxLength\":3}", "\"abcd\"", 4},
        {"{\"type\":\"string\",\"minLength\":2,\"maxLength\":3}", "\"\\u00e9\\ud7ff\"", -1},
        {"{\"type\":\"string\",\"minLength\":2,\"maxLength\":3}", "\"\\ud83d\"", 4},
        {"{\"type\":\"string\"}", "\"\\uD83d\"", 4},
        {"{}", "{\"\\udc00", 5},
        {"{}", "{\"\\uD7FF\":0}", -1},
        {"{\"maxLength\":1}", "{\"abc\":\"ab\"}", -1}, /* of the value itself alone */
        {"{\"additionalProperties\":{\"maxLength\":1}}", "{\"abc\":\"ab\"}", 9},
        {"{\"maxLength\":0}", "\"\"", -1},
        /* patterns, of whole texts */
        {"{\"pattern\":\"^[A-Z]{2,3}-\\\\d+$\"}", "\"AB-7\"", -1},
        {"{\"pattern\":\"^[A-Z]{2,3}-\\\\d+$\"}", "\"AB-\"", 4},
        {"{\"pattern\":\"^[A-Z]{2,3}-\\\\d+$\"}", "\"ABCD", 4},
        {"{\"pattern\":\"^[A-Z]{2,3}-\\\\d+$\"}", "7", -1},
        {"{\"pattern\":\"a|b\"}", "\"b\"", -1},
        {"{\"pattern\":\"a|b\"}", "\"cb\"", 1},
        {"{\"pattern\":\"\"}", "\"\"", -1},
        {"{\"pattern\":\"^a$|^bc?$|\"}", "\"bc\"", -1},
        {"{\"pattern\":\"(?:ab|(?<x>c))*?\"}", "\"cabc\"", -1},
        {"{\"pattern\":\"^(ab){2}$\"}", "\"abab\"", -1},
        {"{\"pattern\":\"^(ab){2}$\"}", "\"aba\"", 4},
        {"{\"pattern\":\"a{0}b{0,}c{,2}\"}", "\"bbc{,2}\"", -1},
        {"{\"pattern\":\"^a{x}b{$\"}", "\"a{x}b{\"", -1},
        {"{\"pattern\":\"^a{x}b{$\"}", "\"{", 1},
        {"{\"pattern\":\"^[^\\\"]+$\"}", "\"a\\\"", 3},
        {"{\"pattern\":\"^[^a]+$\"}", "\"\\\"\\\\\\n\"", -1},
        {"{\"pattern\":\"^[^a]+$\"}", "\"\\u0062", 2},
        {"{\"pattern\":\"^.+$\"}", "\"\\n", 2},
        {"{\"pattern\":\"^.+$\"}", "\"\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80\"", -1},
        {"{\"pattern\":\"^.+$\"}", "\"\xed\xa0\x80", 2},
        {"{\"pattern\":\"^.+$\"}", "\"\xe2\x80\xa8", 3}, /* U+2028 ends a line */
        {"{\"pattern\":\"^[\\\\u00e0-\\\\u0200\\\\ud83d\\\\ude00]$\"}", "\"\xf0\x9f\x98\x80\"", -1},
        {"{\"pattern\":\"^[\\\\u00e0-\\\\u0200\\\\u{1f600}]$\"}", "\"\xc8\x80\"", -1},
        {"{\"pattern\":\"^[\\\\u00e0-\\\\u0200]$\"}", "\"\xc8\x81", 2},
        {"{\"pattern\":\"^\\\\w\\\\W\\\\D\\\\S[-a\\\\]b-]\\\\.\\\\/$\"}", "\"_ x\xc3\xa9].\\/", 8},
        {"{\"pattern\":\"^\\\\w\\\\W\\\\D\\\\S[-a\\\\]b-]\\\\.\\\\/$\"}", "\"_ x\xc3\xa9]./\"", -1},
        {"{\"pattern\":\"^[\\\\w-.]+@[a-\\\\d]\\\\_[--.]$\"}", "\"a-.b@-_.\"", -1},
        {"{\"pattern\":\"^[\\\\w-.]+@[a-\\\\d]\\\\_[--.]$\"}", "\"a@b", 3},
        {"{\"pattern\":\"^\\u00e9+$\",\"minLength\":2,\"maxLength\":3}", "\"\xc3\xa9\"", 3},
        {"{\"pattern\":\"^\\u00e9+$\",\"minLength\":2,\"maxLength\":3}", "\"\xc3\xa9\xc3\xa9\xc3\xa9\"", -1},
        {"{\"pattern\":\"^\\u00e9+$\",\"minLength\":2,\"maxLength\":3}", "\"\xc3\xa9\xc3\xa9\xc3\xa9\xc3", 7},
        {"{\"pattern\":\"^(aa)+$\",\"minLength\":3,\"maxLength\":5}", "\"aaaa\"", -1},
        {"{\"pattern\":\"^(aa)+$\",\"minLength\":3,\"maxLength\":5}", "\"aaaaa", 5},
        {"{\"pattern\":\"^a*$\",\"minLength\":3}", "\"aaaaaaaaa\"", -1},
        {"{\"anyOf\":[{\"type\":\"string\",\"pattern\":\"a+\"},{\"type\":\"string\",\"pattern\":\"b\"},{\"const\":\"c\"}]}", "\"b\"", -1},
        {"{\"items\":{\"pattern\":\"^x$\",\"type\":\"string\"}}", "[\"x\", \"x\"]", -1},
        {"{\"format\":\"date\",\"type\":\"string\"}", "\"2026-11-31", 10},
        {"{\"format\":\"date-time\",\"type\":\"string\"}", "\"2026-11-30T23:59:00.5+01:00\"", -1},
        {"{\"format\":\"uuid\",\"type\":[\"string\",\"null\"]}", "\"123e4567-e89b-12d3-a456-426614174000\"", -1},
        {"{\"format\":\"ipv4\",\"type\":\"string\"}", "\"192.168.0.256", 13},
        {"{\"format\":\"email\",\"type\":\"string\",\"maxLength\":9}", "\"a.b@c.de\"", -1},
        {"{\"format\":\"date\",\"pattern\":\"x\",\"type\":\"string\"}", "\"x\"", -1},
        /* numbers */
        {"{\"type\":\"integer\",\"minimum\":7,\"maximum\":112}", "7", -1},
        {"{\"type\":\"integer\",\"minimum\":7,\"maximum\":112}", "6", -2},
        {"{\"type\":\"integer\",\"minimum\":7,\"maximum\":112}", "60", -1},
        {"{\"type\":\"integer\",\"minimum\":7,\"maximum\":112}", "112", -1},
        {"{\"type\":\"integer\",\"minimum\":7,\"maximum\":112}", "113", 2},
        {"{\"type\":\"integer\",\"minimum\":7,\"maximum\":112}", "-7", 0},
        {"{\"type\":\"integer\",\"minimum\":700,\"maximum\":712}", "71", -2},
        {"{\"type\":\"integer\",\"minimum\":700,\"maximum\":712}", "72", 1},
        {"{\"type\":\"integer\",\"exclusiveMinimum\":-3,\"exclusiveMaximum\":3}", "-2", -1},
        {"{\"type\":\"integer\",\"exclusiveMinimum\":-3,\"exclusiveMaximum\":3}", "-3", 1},
        {"{\"type\":\"integer\",\"exclusiveMinimum\":-3,\"exclusiveMaximum\":3}", "3", 0},
        {"{\"type\":\"integer\",\"exclusiveMinimum\":-3,\"exclusiveMaximum\":3}", "0", -1},
        {"{\"type\":\"integer\",\"minimum\":0.5,\"maximum\":25e-1}", "1", -1},
        {"{\"type\":\"integer\",\"minimum\":0.5,\"maximum\":25e-1}", "3", 0},
        {"{\"type\":\"integer\",\"minimum\":0}", "999999999999999999", -1},
        {"{\"type\":\"integer\",\"minimum\":0}", "1000000000000000000", 18},
        {"{\"type\":\"integer\",\"minimum\":0,\"exclusiveMinimum\":true}", "0", 0},
        {"{\"type\":\"integer\",\"minimum\":0,\"exclusiveMinimum\":false}", "0", -1},
        {"{\"type\":\"number\",\"minimum\":0,\"maximum\":1}", "0.25", -1},
        {"{\"type\":\"number\",\"minimum\":0,\"maximum\":1}", "1.000000", -1},
        {"{\"type\":\"number\",\"minimum\":0,\"maximum\":1}", "1.01", 3},
        {"{\"type\":\"number\",\"minimum\":0,\"maximum\":1}", "0.1234567", 8},
        {"{\"type\":\"number\",\"minimum\":0,\"maximum\":1}", "1e0", 1},
        {"{\"type\":\"number\",\"exclusiveMinimum\":0,\"exclusiveMaximum\":1}", "0", -2},
        {"{\"type\":\"number\",\"exclusiveMinimum\":0,\"exclusiveMaximum\":1}", "0.000000", 7},
        {"{\"type\":\"number\",\"exclusiveMinimum\":0,\"exclusiveMaximum\":1}", "1", 0},
        {"{\"type\":\"number\",\"minimum\":1e-8,\"maximum\":2e-8}", "0.00000001", -1},
        {"{\"type\":\"number\",\"minimum\":-2.5e3,\"maximum\":-99.95}", "-99.94", 5},
        {"{\"type\":\"number\",\"minimum\":-2.5e3,\"maximum\":-99.95}", "-2500.0", -1},
        {"{\"type\":\"number\",\"minimum\":1e14}", "100000000000000.5", -1},
        {"{\"type\":\"number\",\"minimum\":1e15}", "1000000000000000.5", 16},
        {"{\"minimum\":5}", "\"a\"", -1},
        {"{\"minimum\":5}", "4", -2},
        /* tuples */
        {"{\"type\":\"array\",\"prefixItems\":[{\"type\":\"integer\"},{\"type\":\"string\"}],\"minItems\":2,\"maxItems\":2}", "[1,\"a\"]", -1},
        {"{\"type\":\"array\",\"prefixItems\":[{\"type\":\"integer\"},{\"type\":\"string\"}],\"minItems\":2,\"maxItems\":2}", "[1]", 2},
        {"{\"type\":\"array\",\"prefixItems\":[{\"type\":\"integer\"},{\"type\":\"string\"}],\"minItems\":2,\"maxItems\":2}", "[1,\"a\",", 6},
        {"{\"prefixItems\":[{\"type\":\"integer\"}],\"items\":{\"type\":\"null\"},\"type\":\"array\"}", "[1,null, null]", -1},
        {"{\"items\":[{\"type\":\"integer\"},{\"type\":\"null\"}],\"additionalItems\":false,\"type\":\"array\"}", "[1,null]", -1}, /* draft 7 */
        {"{\"items\":[{\"type\":\"integer\"},{\"type\":\"null\"}],\"additionalItems\":false,\"type\":\"array\"}", "[1,null,", 7},
        {"{\"type\":\"integer\",\"nullable\":true,\"minimum\":2}", "null", -1},
        {"{\"prefixItems\":[{\"type\":\"integer\"}],\"items\":false,\"type\":\"array\"}", "[1,", 2},
        {"{\"prefixItems\":[{\"anyOf\":[" OBJECT("\"a\"", "") "," OBJECT("\"b\"", "") "]}],\"type\":\"array\"}", "[{\"t\":\"b\"},0]", -1},
    };
    size_t i;
    for (i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        grammar *g = grammar_of(cases[i].schema);
        CHECKF(!g->error[0] && grammar_takes(g, cases[i].answer) == cases[i].takes, "%s: %s: %s %d", cases[i].schema, cases[i].answer, g->error,
               g->error[0] ? 0 : grammar_takes(g, cases[i].answer));
        grammar_free(g);
    }
}

/* Writes at random, of `liked` what may come, where any may: there is always a way on, and what ends is JSON. */
static void grammar_write(const grammar *g, const char *liked, uint64_t *random) {
    grammar_state s;
    str text = {NULL, 0, 0};
    json j;
    grammar_begin(g, &s);
    while (text.length < 2000 && !(grammar_complete(g, &s) && test_random(random) % 50 == 0)) {
        int tries, c = (int)(test_random(random) % 256);
        grammar_state next = s;
        for (tries = 0; tries < 276; tries++, next = s) {
            c = tries < 20 ? liked[test_random(random) % strlen(liked)] : (c + 1) % 256;
            if (grammar_byte(g, &next, (unsigned char)c)) break;
        }
        if (tries == 276) break;
        s = next;
        str_printf(&text, "%c", c);
    }
    CHECKF(text.length == 2000 || grammar_complete(g, &s), "no way on: %.200s", text.data + (text.length < 200 ? 0 : text.length - 200));
    CHECKF(json_parse(&j, text.data, text.length) == grammar_complete(g, &s), "%s", text.data);
    json_free(&j);
    str_free(&text);
}

static void test_grammar_ways_on(void) {
    static const char *const schemas[] = {"{\"type\":\"number\"}", "{\"type\":\"integer\"}", "{}",
        "{\"$defs\":{\"N\":{\"properties\":{\"c\":{\"items\":{\"$ref\":\"#/$defs/N\"}}},\"required\":[\"c\"]}},\"items\":{\"$ref\":\"#/$defs/N\"}}",
        "{\"properties\":{\"a\":{\"items\":{\"items\":{\"type\":\"object\"},\"minItems\":1},\"minItems\":1},\"b\":{\"$ref\":\"#\"}}}", /* optional, and high */
        "{\"properties\":{\"b\":{\"$ref\":\"#\"},\"a\":{\"items\":{\"items\":{\"type\":\"object\"},\"minItems\":1},\"minItems\":1}}}",
        "{\"properties\":{\"b\":{\"$ref\":\"#\"},\"a\":{\"properties\":{\"c\":{\"$ref\":\"#/properties/a\"}},\"required\":[\"c\"]}}}", /* a: endless */
        "{\"additionalProperties\":{\"additionalProperties\":{\"$ref\":\"#\"}},\"type\":\"object\"}",
        "{\"properties\":{\"v\":{\"type\":\"integer\"},\"n\":{\"anyOf\":[{\"$ref\":\"#\"},{\"type\":\"array\",\"items\":{}}]}},\"required\":[\"n\"]}",
        ("{\"items\":{\"anyOf\":[{\"properties\":{\"a\":{\"$ref\":\"#\"},\"b\":{\"const\":7}},\"required\":[\"b\"]},{\"properties\":{\"a\":{},\"c\":{\"$ref\":\"#\"}}},"
        "{\"items\":{\"type\":\"integer\"},\"minItems\":2},{\"items\":{\"$ref\":\"#/items\"}}]},\"type\":\"array\"}"),
        "{\"type\":\"array\",\"prefixItems\":[{\"type\":\"integer\"},{\"$ref\":\"#\"},{\"type\":\"array\",\"items\":{\"type\":\"object\"},\"minItems\":1}],\"items\":{\"minLength\":2,\"maxLength\":4}}",
        "{\"items\":{\"anyOf\":[{\"type\":\"number\",\"minimum\":-0.07,\"maximum\":777.7},{\"type\":\"integer\",\"exclusiveMinimum\":-7800,\"maximum\":-707}]},\"minItems\":3}",
        "{\"type\":\"number\",\"exclusiveMinimum\":0.000007,\"exclusiveMaximum\":0.0000077}", "{\"type\":\"number\",\"minimum\":77777777777777}",
        "{\"type\":\"integer\",\"minimum\":-1e18,\"maximum\":-777}", "{\"type\":\"string\",\"pattern\":\"^(a|[^a]{2}|7\\\\d[\\\\x00-\\\\x22])+$\",\"minLength\":5,\"maxLength\":7}"};
    static const char *const liked[] = {"7", "7.", "-7.0", "\"[7a\\,", "7e-", "{[", "{\"[:,", "{\"[:,abcn", "{\"[:,abcnnnn}}", "{\"[:,abcnv7]}"};
    uint64_t random = 1;
    size_t i, k;
    int n;
    for (i = 0; i < sizeof(schemas) / sizeof(schemas[0]); i++) {
        grammar *g = grammar_of(schemas[i]);
        CHECKF(!g->error[0], "%s: %s", schemas[i], g->error);
        for (k = 0; k < sizeof(liked) / sizeof(liked[0]); k++)
            for (n = 0; n < 20 && !g->error[0]; n++) grammar_write(g, liked[k], &random);
        grammar_free(g);
    }
}

/* As many values as there may be, each an alternative of its own, with others in between. */
static void test_grammar_many(void) {
    str schema = {NULL, 0, 0};
    grammar *g;
    int i;
    str_puts(&schema, "{\"oneOf\":[{\"type\":\"null\"}");
    for (i = 999; i >= 0; i--) str_printf(&schema, i % 2 ? ",{\"const\":%d}" : ",{\"anyOf\":[{\"const\":%d}]}", i);
    str_puts(&schema, "]}");
    g = grammar_of(schema.data);
    CHECKF(!g->error[0], "%s", g->error);
    for (i = 0; i < 1000 && !g->error[0]; i += 37) {
        char answer[8];
        snprintf(answer, sizeof(answer), "%d", i);
        CHECKF(grammar_takes(g, answer) == -1, "%d", i);
    }
    CHECK(g->error[0] || (grammar_takes(g, "1001") == 3 && grammar_takes(g, "null") == -1));
    grammar_free(g);
    str_free(&schema);
}

/* Long keys and values beside many short ones, which are compared with them: without reading all of the long ones each time. */
static void test_grammar_long(void) {
    str schema = {NULL, 0, 0};
    grammar *g;
    int i;
    str_puts(&schema, "{\"enum\":[1");
    for (i = 1; i < 1000; i++) str_puts(&schema, ",\"x\"");
    str_puts(&schema, "],\"const\":\"");
    for (i = 0; i < 1 << 20; i++) str_puts(&schema, "y");
    str_puts(&schema, "\"}");
    g = grammar_of(schema.data);
    CHECKF(strstr(g->error, "no value satisfies"), "%s", g->error);
    grammar_free(g);
    schema.length = 0;
    str_puts(&schema, "{\"anyOf\":[{\"$ref\":\"#/$defs/x\"}");
    for (i = 1; i < 900; i++) str_puts(&schema, ",{\"$ref\":\"#/$defs/x\"}");
    str_puts(&schema, "],\"$defs\":{\"");
    for (i = 0; i < 1 << 20; i++) str_puts(&schema, "y");
    str_puts(&schema, "\":{},\"\\u0078\":{\"enum\":[1,2],\"const\":2}}}");
    g = grammar_of(schema.data);
    CHECKF(!g->error[0], "%s", g->error);
    CHECK(g->error[0] || (grammar_takes(g, "2") == -1 && grammar_takes(g, "1") != -1));
    grammar_free(g);
    str_free(&schema);
}

/* Follows what all texts of a schema begin with, and at every other byte of a value or key tries what may come, as for a mask. */
static void grammar_try(const grammar *g, const char *prefix) {
    grammar_state s;
    size_t i;
    int c;
    grammar_begin(g, &s);
    for (i = 0; prefix[i]; i++) {
        for (c = 0; c < 256 && i > 1 && i % 2 == 1; c++) {
            grammar_state next = s;
            CHECK(grammar_byte(g, &next, (unsigned char)c) == (c == prefix[i]));
        }
        CHECK(grammar_byte(g, &s, (unsigned char)prefix[i]));
    }
}

/* The seconds that it takes with n values or keys that differ behind the prefix alone. */
static double grammar_seconds(const char *prefix, int n) {
    bool keys = prefix[0] == '{';
    str schema = {NULL, 0, 0};
    clock_t start;
    grammar *g;
    int i;
    str_puts(&schema, keys ? "{\"properties\":{" : "{\"enum\":[");
    for (i = 0; i < n; i++) str_printf(&schema, "%s%s%03d%s", i ? "," : "", prefix + keys, i, keys ? "\":{}" : "\"");
    str_puts(&schema, keys ? "}}" : "]}");
    g = grammar_of(schema.data);
    CHECKF(!g->error[0], "%s", g->error);
    start = clock();
    grammar_try(g, prefix);
    grammar_free(g);
    str_free(&schema);
    return (double)(clock() - start) / CLOCKS_PER_SEC;
}

/* Long values and keys that differ at their ends: no byte takes the time to compare them all, which would be minutes. */
static void test_grammar_time(void) {
    char prefix[8002];
    int i;
    memset(prefix, 'a', 8001);
    prefix[0] = '{', prefix[1] = '"', prefix[8001] = 0;
    for (i = 0; i < 2; i++) {
        double seconds = grammar_seconds(prefix + i, i ? 1000 : 256);
        CHECKF(seconds < 15, "%s: %.0f s", i ? "values" : "keys", seconds);
    }
}

/* ---- masks ------------------------------------------------------------------------------------- */

/* A vocabulary of random texts of 1 to 6 bytes, most of them of those that JSON is made of, and behind a space. Token 0 ends. */
static void mask_vocab_make(grammar_vocab *v, int n, uint64_t *random) {
    static const char bytes[] = "  \"\"\\{}[]:,,0123456789.-eEtrufalsn\n\tabcu\xC3\xA9\xE2\x82\xAC\x01\x7F\xFF";
    int i, k;
    v->n = n;
    v->texts = (const char **)xrealloc(NULL, (size_t)n * sizeof(char *));
    v->lengths = (unsigned char *)xrealloc(NULL, (size_t)n);
    v->kinds = (unsigned char *)xrealloc(NULL, (size_t)n);
    for (i = 0; i < n; i++) {
        int length = 1 + (int)(test_random(random) % 6);
        char *text = (char *)xrealloc(NULL, (size_t)length);
        for (k = 0; k < length; k++) text[k] = bytes[test_random(random) % (sizeof(bytes) - 1)];
        if (i % 8 >= 3) text[0] = ' ';
        v->texts[i] = text;
        v->lengths[i] = (unsigned char)length;
        v->kinds[i] = (unsigned char)(i % 50 == 7 ? GRAMMAR_NEVER : grammar_kind(NULL, i, text, (size_t)length));
    }
}

static void mask_vocab_free(grammar_vocab *v) {
    int i;
    for (i = 0; i < v->n; i++) free((void *)v->texts[i]);
    grammar_vocab_free(v);
}

/* The mask that following every token's bytes one by one makes. */
static void mask_by_bytes(const grammar *g, const grammar_sample *x, float *logits) {
    const grammar_vocab *v = g->vocab;
    bool ends = x->lost || grammar_complete(g, &x->state), any = ends;
    int i;
    for (i = 1; i < v->n; i++) {
        grammar_state s = x->state;
        bool ok = !x->lost && v->kinds[i] != GRAMMAR_NEVER && grammar_bytes(g, &s, v->texts[i], v->lengths[i]);
        logits[i] = ok ? (float)i : -INFINITY;
        any = any || ok;
    }
    logits[0] = any && !ends ? -INFINITY : 0;
}

/* Writes an answer of random tokens, of those that may come, and now and then one that may not. */
static void mask_try(grammar *g, int n, uint64_t *random) {
    int32_t tokens[65];
    float *logits = (float *)xrealloc(NULL, 2 * (size_t)n * sizeof(float)), *expected = logits + n;
    int at, i;
    memset(&g->samples[0], 0, sizeof(g->samples[0]));
    for (at = 1; at < 65; at++) {
        for (i = 0; i < n; i++) logits[i] = (float)i;
        grammar_mask(g, 0, at, tokens, logits, n);
        mask_by_bytes(g, &g->samples[0], expected);
        for (i = 0; i < n && logits[i] == expected[i]; i++) {}
        CHECKF(i == n, "token %d of %d, %.*s: %g", at, i, (int)g->vocab->lengths[i % n], g->vocab->texts[i % n], (double)logits[i % n]);
        if (i < n || g->samples[0].lost) break;
        tokens[at] = 1 + (int32_t)(test_random(random) % (uint64_t)(n - 1));
        if (test_random(random) % 100 == 0) continue;
        for (i = 1; i < n && logits[tokens[at]] < 0; i++) tokens[at] = tokens[at] % (n - 1) + 1;
        if (i == n) break;
    }
    free(logits);
}

/* No token is banned that may come, and none that may not is left. */
static void test_grammar_masks(void) {
    static const char *const schemas[] = {"{}", "{\"type\":\"object\"}", "{\"type\":\"array\",\"items\":{\"type\":\"string\"}}",
        "{\"items\":{\"type\":[\"number\",\"boolean\"]},\"type\":\"array\",\"minItems\":3}", "{\"type\":\"array\",\"items\":{\"$ref\":\"#\"}}",
        "{\"properties\":{\"a\":{},\"ab\":{\"type\":\"integer\"},\"b\":{\"$ref\":\"#\"}},\"required\":[\"ab\"]}",
        "{\"enum\":[\"a\",\"ab\",\" a\",12,1,null,true,{\"a\":[0,1]}]}"};
    uint64_t random = 1;
    grammar_vocab v;
    size_t i;
    int n;
    memset(&v, 0, sizeof(v));
    mask_vocab_make(&v, 1000, &random);
    for (i = 0; i < sizeof(schemas) / sizeof(schemas[0]); i++) {
        grammar *g = grammar_of(schemas[i]);
        CHECKF(!g->error[0], "%s: %s", schemas[i], g->error);
        g->vocab = &v;
        g->samples = (grammar_sample *)xrealloc(NULL, sizeof(grammar_sample));
        for (n = 0; n < 10 && !g->error[0]; n++) mask_try(g, v.n, &random);
        grammar_free(g);
    }
    mask_vocab_free(&v);
}

/* ---- the protocol ------------------------------------------------------------------------------ */

static void test_serve_pages(void) {
    answer a;
    head_only = true;
    a = request("HEAD", "/health", "", NULL);
    head_only = false;
    CHECK(a.status == 200 && a.body.length == 0 && header_of(&a, "Content-Length: 15"));
    answer_clear(&a);
    expect("/health", NULL, 200, "\"ok\"");
    expect("/v1/models", NULL, 200, "\"id\":\"demo\"");
    expect("/v1/models/demo", NULL, 200, "\"object\":\"model\"");
    expect("/v1/models/other", NULL, 404, "model_not_found");
    expect("/", NULL, 200, "<title>fastgen</title>");
    expect("/stats", NULL, 200, "\"running\":");
    expect("/nothing", NULL, 404, "\"error\"");
    expect("/metrics", NULL, 200, "# TYPE vllm:time_to_first_token_seconds histogram");
    a = request("GET", "/v1/completions", "", NULL);
    CHECK(a.status == 405 && header_of(&a, "Allow: POST"));
    answer_clear(&a);
    a = request("OPTIONS", "/v1/completions", "Origin: http://x\r\nAccess-Control-Request-Method: POST\r\n", NULL);
    CHECK(a.status == 204 && header_of(&a, "Access-Control-Allow-Origin: *") && header_of(&a, "Access-Control-Allow-Headers: "));
    answer_clear(&a);
}

static void test_serve_completion(void) {
    str wanted = {NULL, 0, 0};
    str_puts(&wanted, "\"text\":");
    str_json(&wanted, expected_text, strlen(expected_text));
    expect("/v1/completions", "{\"prompt\":\"Once upon a time\",\"max_tokens\":24,\"temperature\":0}", 200, wanted.data);
    expect("/v1/completions", "{\"prompt\":[\"Once upon a time\"],\"max_tokens\":24,\"temperature\":0,\"model\":null,\"stop\":null,"
           "\"n\":null,\"logprobs\":null,\"stream\":null,\"unknown\":[1]}", 200, wanted.data);
    expect("/v1/completions", "{\"prompt\":[\"x\",\"Once upon a time\"],\"n\":2,\"max_tokens\":24,\"temperature\":0}", 200, wanted.data);
    str_free(&wanted);
}

/* The contents of a stream's pieces, one behind the other. */
static void stream_text(const answer *a, const char *key, str *to) {
    const char *line = a->body.data ? a->body.data : "";
    while ((line = strstr(line, "data: {")) != NULL) {
        const char *end = strstr(line, "\n\n"), *at;
        json j;
        CHECK(json_parse(&j, line + 6, (size_t)(end - line) - 6));
        at = strstr(line, key);
        if (at && at < end) {
            const json_node *choices = json_get(&j, j.nodes, "choices"), *choice = choices + 1;
            const json_node *delta = json_get(&j, choice, "delta"), *text = json_get(&j, delta ? delta : choice, delta ? "content" : "text");
            if (text) json_add_text(&j, text, to);
        }
        json_free(&j);
        line = end;
    }
}

static void test_serve_stream(void) {
    static const char body[] = "{\"prompt\":\"Once upon a time\",\"max_tokens\":24,\"temperature\":0,\"stream\":true,"
                               "\"stream_options\":{\"include_usage\":true}}";
    answer a = post("/v1/completions", body);
    str text = {NULL, 0, 0};
    stream_text(&a, "\"text\"", &text);
    CHECKF(a.status == 200 && text.data && strcmp(text.data, expected_text) == 0, "%s", text.data ? text.data : "");
    CHECK(has(&a, "\"usage\":{\"prompt_tokens\":5,\"completion_tokens\":24") && has(&a, "data: [DONE]\n\n"));
    CHECK(header_of(&a, "Content-Type: text/event-stream"));
    answer_clear(&a);
    str_free(&text);
}

static void test_serve_chat(void) {
    static const char ask[] = "{\"messages\":[{\"role\":\"user\",\"content\":\"Hello\"}],\"max_tokens\":12,\"temperature\":0%s}";
    char whole[256], piecewise[256];
    str text = {NULL, 0, 0}, wanted = {NULL, 0, 0};
    answer a;
    snprintf(whole, sizeof(whole), ask, "");
    snprintf(piecewise, sizeof(piecewise), ask, ",\"stream\":true");
    a = post("/v1/chat/completions", piecewise);
    CHECK(has(&a, "\"delta\":{\"role\":\"assistant\",\"content\":\"\"}"));
    stream_text(&a, "\"content\"", &text);
    CHECK(text.length > 0);
    str_puts(&wanted, "\"message\":{\"role\":\"assistant\",\"content\":");
    str_json(&wanted, text.data ? text.data : "", text.length);
    expect("/v1/chat/completions", whole, 200, wanted.data);
    answer_clear(&a);
    str_free(&text);
    str_free(&wanted);
}

/* What clients send that is not quite the letter of the API. */
static void test_serve_odd_requests(void) {
    static const char call[] = "{\"id\":\"c\",\"type\":\"function\",\"function\":{\"name\":\"f\",\"arguments\":\"{}\"}}";
    static const char *const contents[3] = {"\"content\":null,", "", "\"content\":\"\","};
    char body[600];
    answer a;
    int i;
    for (i = 0; i < 3; i++) { /* a round of tools as OpenAI has it; this template adds contents up */
        snprintf(body, sizeof(body),
                 "{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"},{\"role\":\"assistant\",%s\"tool_calls\":[%s]},"
                 "{\"role\":\"tool\",\"tool_call_id\":\"c\",\"content\":\"5\"}],\"max_tokens\":1}", contents[i], call);
        expect("/v1/chat/completions", body, 200, "\"prompt_tokens\":22");
    }
    expect("/v1/chat/completions", "{\"messages\":[{\"role\":\"user\",\"content\":null}],\"max_tokens\":1}", 400, "template");
    expect("/v1/completions", "\xef\xbb\xbf{\"prompt\":\"Once\",\"max_tokens\":1}", 200, "\"text\"");
    expect("/v1/completions", "{\"prompt\":\"Once\",\"max_tokens\":2,\"logit_bias\":{\"300\":-100,\"0300\":100}}", 200, "\"text\":\"onon\"");
    expect("/v1/chat/completions", "{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}],\"tools\":[5]}", 400, "\"param\":\"tools\"");
    a = exchange("GET /health HTTP/1.1\r\n\r\n", 26);
    CHECK(header_of(&a, "Date: ") && strstr(header_of(&a, "Date: "), " GMT\r\n"));
    answer_clear(&a);
}

/* A long body, which takes seconds to read, holds up nobody. */
static void test_serve_long_body(void) {
    str body = {NULL, 0, 0}, text = {NULL, 0, 0}, in = {NULL, 0, 0};
    socket_id s = client_connect();
    answer a;
    memset(&a, 0, sizeof(a));
    str_puts(&body, "{\"prompt\":\"");
    while (body.length < 6000000) str_puts(&body, "<|im_");
    str_puts(&body, "\"}");
    str_printf(&text, "POST /tokenize HTTP/1.1\r\nContent-Length: %zu\r\n\r\n", body.length);
    str_add(&text, body.data, body.length);
    CHECK(client_send(s, text.data, text.length));
    CHECK(!any_answers(&s, 1, 200)); /* by then the server has all of it */
    expect("/tokenize", "{\"prompt\":\"Once\"}", 200, "tokens");
    CHECK(!any_answers(&s, 1, 0)); /* though it came first */
    CHECK(client_read(s, &in, &a) && a.status == 200);
    answer_clear(&a);
    str_free(&in);
    str_free(&text);
    str_free(&body);
    socket_close(s);
}

/* The ids of a text, "17,4", without BOS, as the server gives them. */
static void token_ids(const char *text, char *ids, size_t size) {
    char body[200];
    const char *from;
    answer a;
    snprintf(body, sizeof(body), "{\"prompt\":\"%s\",\"add_special_tokens\":false}", text);
    a = post("/tokenize", body);
    from = a.body.data ? strstr(a.body.data, "\"tokens\":[") : NULL;
    from = from ? from + 10 : "";
    snprintf(ids, size, "%.*s", (int)strcspn(from, "]"), from);
    answer_clear(&a);
}

static void test_serve_tokens(void) {
    char ids[100], body[200];
    token_ids("Hello you", ids, sizeof(ids));
    CHECK(strchr(ids, ','));
    snprintf(body, sizeof(body), "{\"tokens\":[%s]}", ids);
    expect("/detokenize", body, 200, "{\"prompt\":\"Hello you\"}");
    expect("/tokenize", "{\"prompt\":\"Once upon a time\"}", 200, "\"count\":5,\"max_model_len\":1024,\"tokens\":[0,");
    expect("/tokenize", "{\"prompt\":\"Once upon a time\",\"add_special_tokens\":false,\"return_token_strs\":true}", 200, "[\"Once\",\" upon\"");
    expect("/tokenize", "{\"messages\":[{\"role\":\"user\",\"content\":\"Hello\"}],\"add_special_tokens\":false}", 200, "\"count\":9");
    /* this model's template leaves BOS to programs */
    expect("/tokenize", "{\"messages\":[{\"role\":\"user\",\"content\":\"Hello\"}]}", 200, "\"count\":10,\"max_model_len\":1024,\"tokens\":[0,");
    expect("/v1/chat/completions", "{\"messages\":[{\"role\":\"user\",\"content\":\"Hello\"}],\"max_tokens\":1}", 200, "\"prompt_tokens\":10");
    expect("/v1/chat/completions", "{\"messages\":[{\"role\":\"user\",\"content\":\"Hello\"}],\"max_tokens\":1,\"add_special_tokens\":false}", 200,
           "\"prompt_tokens\":9");
    expect("/detokenize", "{\"tokens\":[99999]}", 400, "vocabulary");
    expect("/detokenize", "{\"tokens\":[\"x\"]}", 400, "tokens");
}

/* A last message that is to be continued: nothing of the template stands behind it. */
static void test_serve_continued(void) {
    static const char start[] = "<|im_start|>user\\nHi<|im_end|>\\n<|im_start|>assistant\\n";
    static const char *const contents[][2] = {{"\"He\"", "He"}, {"\"He \"", "He "}, {"\"\"", ""}, {"\" \\u00e9\\n\"", " \\u00e9\\n"},
        {"[{\"type\":\"text\",\"text\":\"He\"},{\"type\":\"text\",\"text\":\"Hi\"}]", "He\\nHi"}};
    size_t i;
    for (i = 0; i < sizeof(contents) / sizeof(contents[0]); i++) {
        char text[100], ids[200], body[400], wanted[220];
        int n = 2; /* with the BOS, which this template leaves out */
        const char *comma = ids;
        snprintf(text, sizeof(text), "%s%s", start, contents[i][1]);
        token_ids(text, ids, sizeof(ids));
        while ((comma = strchr(comma, ',')) != NULL) comma++, n++;
        snprintf(body, sizeof(body), "{\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"},{\"role\":\"assistant\",\"content\":%s}],"
                 "\"max_tokens\":1,\"add_generation_prompt\":false,\"continue_final_message\":true}", contents[i][0]);
        snprintf(wanted, sizeof(wanted), "\"tokens\":[0,%s]", ids);
        expect("/tokenize", body, 200, wanted);
        snprintf(wanted, sizeof(wanted), "\"prompt_tokens\":%d,", n);
        expect("/v1/chat/completions", body, 200, wanted);
    }
}

static void test_serve_errors(void) {
    static const struct {
        const char *path, *body;
        int status;
        const char *part;
    } cases[] = {
        {"/v1/completions", "{", 400, "not JSON"},
        {"/v1/completions", "[]", 400, "object"},
        {"/v1/completions", "{}", 400, "\"param\":\"prompt\""},
        {"/v1/completions", "{\"prompt\":7}", 400, "\"param\":\"prompt\""},
        {"/v1/completions", "{\"prompt\":[1.5]}", 400, "\"param\":\"prompt\""},
        {"/v1/completions", "{\"prompt\":[123456]}", 400, "vocabulary"},
        {"/v1/completions", "{\"prompt\":\"x\",\"model\":\"gpt-4\"}", 404, "model_not_found"},
        {"/v1/completions", "{\"prompt\":\"x\",\"n\":0}", 400, "\"param\":\"n\""},
        {"/v1/completions", "{\"prompt\":\"x\",\"temperature\":\"hot\"}", 400, "\"param\":\"temperature\""},
        {"/v1/completions", "{\"prompt\":\"x\",\"max_tokens\":1.5}", 400, "whole number"},
        {"/v1/completions", "{\"prompt\":\"x\",\"stop\":[1]}", 400, "\"param\":\"stop\""},
        {"/v1/completions", "{\"prompt\":\"x\",\"logit_bias\":{\"a\":1}}", 400, "\"param\":\"logit_bias\""},
        {"/v1/completions", "{\"prompt\":\"x\",\"logit_bias\":{\"99999\":1}}", 400, "\"param\":\"logit_bias\""},
        {"/v1/completions", "{\"prompt\":\"x\",\"stop_token_ids\":[1,99999]}", 400, "\"param\":\"stop_token_ids\""},
        {"/v1/completions", "{\"prompt\":\"x\",\"logprobs\":99}", 400, "\"param\":\"logprobs\""},
        {"/v1/completions", "{\"prompt\":\"x\",\"seed\":1e3}", 400, "\"param\":\"seed\""},
        {"/v1/chat/completions", "{\"messages\":[]}", 400, "\"param\":\"messages\""},
        {"/v1/chat/completions", "{\"messages\":[{\"content\":\"x\"}]}", 400, "role"},
        {"/v1/chat/completions", "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"image_url\"}]}]}", 400, "text"},
        {"/v1/chat/completions", "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"response_format\":{\"type\":\"xml\"}}", 400, "response_format"},
        {"/v1/chat/completions", "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"tool_choice\":\"required\"}", 400, "tool_choice"},
        {"/v1/chat/completions", "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"functions\":[{\"name\":\"f\"}]}", 400, "\"param\":\"functions\""},
        {"/v1/chat/completions", "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"function_call\":\"auto\"}", 400, "\"param\":\"function_call\""},
        {"/v1/chat/completions", "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"functions\":null,\"max_tokens\":1}", 200, "choices"},
        {"/v1/chat/completions", "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"functions\":[],\"function_call\":\"none\",\"max_tokens\":1}", 200, "choices"},
        {"/v1/chat/completions", "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"continue_final_message\":true}", 400, "add_generation_prompt"},
        {"/tokenize", "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"continue_final_message\":true}", 400, "\"param\":\"continue_final_message\""},
    };
    size_t i;
    for (i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) expect(cases[i].path, cases[i].body, cases[i].status, cases[i].part);
}

/* The model's name as clients may write it. */
static void test_serve_names(void) {
    expect("/v1/models/demo", NULL, 200, "\"id\":\"demo\"");
    expect("/v1/models/%64em%6F", NULL, 200, "\"id\":\"demo\"");
    expect("/v1/models/demo%2F", NULL, 404, "model_not_found");
    expect("/tokenize", "{\"prompt\":\"x\",\"mod\\u0065l\":\"d\\u0065mo\"}", 200, "tokens");
    expect("/tokenize", "{\"prompt\":\"x\",\"model\":\"d\\u0065m\"}", 404, "model_not_found");
}

/* Schemas, one token of an answer each: what can be kept is, however it is written, and the rest refused by name. */
static void test_serve_schemas(void) {
    static const struct {
        const char *schema;
        int status;
        const char *part;
    } cases[] = {
        {"{\"$defs\":{\"A/B\":{\"type\":\"null\"}},\"$ref\":\"#\\/$defs\\/A~1B\"}", 200, "choices"},
        {"{\"$defs\":{\"A~1\":{\"type\":\"null\"}},\"\\u0024ref\":\"#/%24defs/A~01\",\"description\":\"x\",\"default\":null}", 200, "choices"},
        {"{\"$defs\":{\"A%\":{\"type\":\"null\"}},\"$ref\":\"#/$defs/A%25\"}", 200, "choices"},
        {"{\"$defs\":{\"A\":{\"type\":\"null\"}},\"$ref\":\"#/$defs/A\\u0000\"}", 400, "nowhere"},
        {"{\"$defs\":{\"A\":{\"type\":\"null\"}},\"$ref\":\"/$defs/A\"}", 400, "#"},
        {"{\"$defs\":{\"A\":{\"type\":\"array\"}},\"$ref\":\"#/$defs/A\",\"minItems\":3}", 400, "'minItems' is not supported beside $ref"},
        {"{\"type\":\"array\",\"minItems\":2,\"anyOf\":[{\"type\":\"array\"}]}", 400, "'minItems' is not supported beside anyOf"},
        {"{\"type\":\"object\",\"properties\":{\"a\":{}},\"allOf\":[{\"type\":\"object\"}]}", 400, "'properties' is not supported beside allOf"},
        {"{\"anyOf\":[{\"type\":\"string\"}],\"oneOf\":[{\"type\":\"null\"}]}", 400, "'oneOf' is not supported beside anyOf"},
        {"{\"type\":\"array\",\"enum\":[[1],[2]],\"minItems\":2}", 400, "'minItems' is not supported beside enum"},
        /* annotations, and limits that limit nothing */
        {"{\"type\":\"null\",\"example\":1,\"x-order\":2,\"enumNames\":[\"a\"],\"contentEncoding\":\"base64\"}", 200, "choices"},
        {"{\"type\":\"null\",\"minLength\":0,\"uniqueItems\":false,\"minProperties\":0,\"patternProperties\":{},\"pattern\":null,\"nullable\":false}",
         200, "choices"},
        {"{\"type\":\"string\",\"minLength\":1}", 200, "choices"},
        {"{\"type\":\"object\",\"minProperties\":1}", 400, "'minProperties' is not supported"},
        {"{\"type\":\"string\",\"pattern\":\"a+\"}", 200, "choices"},
        {"{\"type\":\"string\",\"pattern\":\"a(?!b)\"}", 400, "pattern 'a(?!b)': looking ahead"},
        {"{\"type\":\"string\",\"pattern\":null,\"format\":\"int32\"}", 200, "choices"},
        {"{\"type\":\"array\",\"prefixItems\":[{\"type\":\"integer\"}],\"items\":false}", 200, "choices"},
        {"{\"anyOf\":[{\"type\":\"integer\"},{\"type\":\"number\"}]}", 200, "choices"},
        {"{\"oneOf\":[{\"type\":\"integer\"},{\"type\":\"number\"}]}", 400, "oneOf: alternatives of the same type"},
        {"{\"type\":\"array\",\"uniqueItems\":true}", 400, "'uniqueItems' is not supported"},
        {"{\"type\":\"string\",\"nullable\":true}", 200, "choices"},
        {"{\"anyOf\":[{\"type\":\"string\"}],\"nullable\":true}", 400, "'nullable' is not supported beside anyOf"},
        {"{\"type\":\"object\",\"propertyNames\":{\"type\":\"string\"}}", 200, "choices"},
        {"{\"type\":\"object\",\"propertyNames\":{\"pattern\":\"a\"}}", 400, "'propertyNames' is not supported"},
        {"{\"type\":\"array\",\"items\":{\"format\":\"email\",\"maxLength\":320,\"type\":\"string\"}}", 200, "choices"},
        {"{\"type\":\"number\",\"minimum\":0}", 200, "choices"},
        {"{\"type\":\"number\",\"multipleOf\":2}", 400, "'multipleOf' is not supported"},
        {"{\"type\":\"string\",\"not\":{}}", 400, "'not' is not supported"},
        {"{\"type\":\"array\",\"unevaluatedItems\":false}", 400, "'unevaluatedItems' is not supported"},
        {"{\"type\":\"string\",\"enum\":[1,2]}", 400, "no value"},
        {"{\"type\":\"string\",\"const\":\"a\",\"enum\":[\"b\"]}", 400, "no value"},
        {"{\"type\":\"object\",\"properties\":{\"a\":{}},\"required\":[\"a\",\"b\"]}", 400, "required names 'b'"},
        {"{\"type\":\"object\",\"required\":[\"b\"],\"additionalProperties\":false}", 400, "required names 'b'"},
        {"{\"type\":\"object\",\"properties\":{\"1\":{}},\"required\":[[1]]}", 400, "required names"},
        {"{\"oneOf\":[{\"enum\":[\"a\",\"b\"]},{\"const\":\"b\"}]}", 400, "two alternatives"},
        {"{\"type\":\"string\",\"anyOf\":[{\"type\":\"string\"},{\"type\":\"null\"}]}", 400, "a type beside"},
        {"{\"type\":\"integer\",\"anyOf\":[{\"type\":\"number\"}]}", 400, "a type beside"},
        {"{\"type\":[\"integer\",\"null\"],\"anyOf\":[{\"type\":\"integer\"},{\"type\":\"null\"}]}", 200, "choices"},
        {"{\"title\":\"T\",\"default\":1,\"type\":\"object\",\"allOf\":[{\"$ref\":\"#/definitions/D\"}],\"definitions\":{\"D\":{\"type\":\"object\"}}}", 200, "choices"},
        {"{\"oneOf\":[{\"const\":\"a\",\"enum\":[\"a\"],\"type\":\"string\"},{\"const\":\"b\",\"type\":\"string\"}]}", 200, "choices"},
        {"{\"properties\":{\"a\":{\"$ref\":\"#\"}},\"required\":[\"a\"]}", 400, "nested without end"},
        {"{\"properties\":{\"a\":{\"$ref\":\"#\"}}}", 200, "choices"},
        {"{\"anyOf\":[{\"type\":\"string\"},{\"type\":\"object\",\"properties\":{\"a\":{\"$ref\":\"#\"}}}]}", 200, "choices"},
        {"{\"type\":\"object\",\"properties\":{\"a\\/b\":{}},\"required\":[\"a/\\u0062\"]}", 200, "choices"},
    };
    size_t i;
    for (i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char body[1000];
        snprintf(body, sizeof(body), "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"max_tokens\":1,\"response_format\":"
                 "{\"type\":\"json_schema\",\"json_schema\":{\"schema\":%s}}}", cases[i].schema);
        expect("/v1/chat/completions", body, cases[i].status, cases[i].part);
    }
}

/* What limits an answer with other servers: schemas are kept, what is not is refused by name. The model begins with blank lines. */
static void test_serve_limits(void) {
    static const struct {
        const char *field;
        int status;
        const char *part;
    } cases[] = {
        {"\"response_format\":{\"type\":\"json_object\",\"schema\":{\"const\":7}}", 200, "7\",\"refusal\""},
        {"\"response_format\":{\"type\":\"json_object\",\"schema\":null}", 200, "\\n{"},
        {"\"response_format\":{\"type\":\"json_object\",\"schema\":{}}", 200, "\\n{"},
        {"\"guided_json\":{\"const\":7}", 200, "7\",\"refusal\""},
        {"\"guided_json\":\"{\\\"const\\\":7}\"", 200, "7\",\"refusal\""},
        {"\"guided_json\":\"{\"", 400, "not JSON"},
        {"\"guided_json\":{\"pattern\":\"7\",\"type\":\"string\"}", 200, "\\n\\\"7"},
        {"\"guided_json\":{\"uniqueItems\":true}", 400, "\"param\":\"guided_json\""},
        {"\"guided_json\":{\"const\":7},\"response_format\":{\"type\":\"text\"}", 200, "7\",\"refusal\""},
        {"\"guided_json\":{\"const\":7},\"response_format\":{\"type\":\"json_object\"}", 400, "another schema"},
        {"\"json_schema\":{\"const\":7}", 200, "7\",\"refusal\""},
        {"\"structured_outputs\":{\"json\":{\"const\":7},\"regex\":null}", 200, "7\",\"refusal\""},
        {"\"structured_outputs\":{\"json\":\"{\\\"const\\\":7}\"}", 200, "7\",\"refusal\""},
        {"\"structured_outputs\":{\"json_object\":true}", 200, "\\n{"},
        {"\"structured_outputs\":{\"choice\":[\"78\",\"7\"]},\"max_tokens\":2", 200, "\"content\":\"7"},
        {"\"structured_outputs\":{\"choice\":[\"7\",7]}", 400, "structured_outputs: it must be an array"},
        {"\"structured_outputs\":{\"choice\":[\"\"]}", 400, "structured_outputs: it must be an array"},
        {"\"structured_outputs\":{\"regex\":\"7\"}", 200, "7\",\"refusal\""},
        {"\"structured_outputs\":{\"regex\":\"(7\"}", 400, "structured_outputs: a ( without"},
        {"\"structured_outputs\":{\"regex\":7}", 400, "structured_outputs: it must be a string"},
        {"\"structured_outputs\":{\"regex\":\"7\",\"choice\":[\"7\"]}", 400, "another schema"},
        {"\"structured_outputs\":{\"grammar\":\"a\"}", 400, "structured_outputs.grammar is not supported"},
        {"\"structured_outputs\":7", 400, "must be an object"},
        {"\"structured_outputs\":null,\"guided_json\":null,\"grammar\":\"\",\"bad_words\":[]", 200, "choices"},
        {"\"structured_outputs\":{\"json\":\"\"},\"guided_json\":\"\",\"json_schema\":\"\"", 200, "choices"},
        {"\"guided_choice\":[\"7\"]", 200, "7\",\"refusal\""},
        {"\"guided_choice\":\"7\"", 400, "\"param\":\"guided_choice\""},
        {"\"guided_regex\":\"7\"", 200, "7\",\"refusal\""},
        {"\"guided_regex\":\"*\"", 400, "\"param\":\"guided_regex\""},
        {"\"guided_grammar\":\"root ::= a\"", 400, "\"param\":\"guided_grammar\""},
        {"\"grammar\":\"root ::= a\"", 400, "\"param\":\"grammar\""},
        {"\"allowed_token_ids\":[5]", 400, "\"param\":\"allowed_token_ids\""},
        {"\"bad_words\":[\"a\"]", 400, "\"param\":\"bad_words\""},
    };
    size_t i;
    for (i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char body[400];
        snprintf(body, sizeof(body), "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"max_tokens\":26,\"temperature\":0,%s}", cases[i].field);
        expect("/v1/chat/completions", body, cases[i].status, cases[i].part);
    }
}

/* A header for another server, however long, does not matter where no key is needed. */
static void test_serve_authorization(void) {
    char header[2048];
    answer a;
    snprintf(header, sizeof(header), "Authorization: Bearer %02000d\r\n", 1);
    a = request("GET", "/v1/models", header, NULL);
    CHECKF(a.status == 200, "%d", a.status);
    answer_clear(&a);
}

static void test_serve_too_long(void) {
    str body = {NULL, 0, 0};
    int i;
    str_puts(&body, "{\"prompt\":[1");
    for (i = 0; i < 1024; i++) str_puts(&body, ",1");
    str_puts(&body, "]}");
    expect("/v1/completions", body.data, 400, "context_length_exceeded");
    str_free(&body);
}

/* A text of which the length tells that it cannot fit is refused for that, and one with as few tokens as can be is not. */
static void test_serve_too_long_text(void) {
    str body = {NULL, 0, 0};
    int i, kind;
    for (kind = 0; kind < 4; kind++) {
        body.length = 0;
        str_puts(&body, kind == 3 ? "{\"messages\":[{\"role\":\"user\",\"content\":\"" : "{\"max_tokens\":1,\"prompt\":\"");
        for (i = 0; i < (kind == 0 ? 1000 : 30000); i++) str_puts(&body, kind == 0 ? "<|im_start|>" : "a little dog ");
        str_puts(&body, kind == 3 ? "\"}]}" : "\"}");
        if (kind == 0) expect("/v1/completions", body.data, 200, "\"prompt_tokens\":1001");
        if (kind == 1) expect("/tokenize", body.data, 200, "\"count\":");
        if (kind == 2) expect("/v1/completions", body.data, 400, "a prompt of 390000 bytes, at least ");
        if (kind == 3) expect("/v1/chat/completions", body.data, 400, "\"param\":\"messages\",\"code\":\"context_length_exceeded\"");
    }
    str_free(&body);
}

/* Two requests in one packet, and one in many; a body in chunks; HTTP/1.0. */
static void test_serve_connections(void) {
    static const char two[] = "GET /health HTTP/1.1\r\n\r\nPOST /tokenize HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n"
                              "5\r\n{\"pro\r\ne\r\nmpt\":\"Hello\"  \r\n1\r\n}\r\n0\r\n\r\nGET /v1/models HTTP/1.1\r\n\r\n";
    char ids[100], tokens[200];
    const char *parts[3];
    answer a;
    int turn, i;
    token_ids("Hello", ids, sizeof(ids));
    snprintf(tokens, sizeof(tokens), "\"tokens\":[0,%s]", ids);
    parts[0] = "\"ok\"", parts[1] = tokens, parts[2] = "\"demo\"";
    for (turn = 0; turn < 2; turn++) {
        str in = {NULL, 0, 0};
        socket_id s = client_connect();
        for (i = 0; turn == 1 && two[i]; i++) client_send(s, two + i, 1);
        if (turn == 0) client_send(s, two, strlen(two));
        for (i = 0; i < 3; i++) {
            memset(&a, 0, sizeof(a));
            CHECKF(client_read(s, &in, &a) && a.status == 200 && has(&a, parts[i]), "turn %d, answer %d: %d", turn, i, a.status);
            answer_clear(&a);
        }
        socket_close(s);
        str_free(&in);
    }
    a = request("GET", "/health", "Connection: close\r\n", NULL);
    CHECK(a.status == 200 && a.closed);
    answer_clear(&a);
    a = exchange("GET /health HTTP/1.0\r\n\r\n", 24);
    CHECK(a.status == 200 && a.closed);
    answer_clear(&a);
    a = exchange("GET /health HTTP/1.1\r\nBad Header: x\r\n\r\n", 39);
    CHECK(a.status == 400 && a.closed);
    answer_clear(&a);
}

/* A body where none belongs is not waited for. */
static void test_serve_unasked_body(void) {
    static const struct {
        const char *line;
        int status;
    } cases[] = {{"GET /health", 200}, {"GET /v1/models", 200}, {"OPTIONS /v1/completions", 204}, {"POST /health", 405}, {"POST /nothing", 404}};
    char text[200];
    size_t i;
    for (i = 0; i < 2 * sizeof(cases) / sizeof(cases[0]); i++) {
        int length = snprintf(text, sizeof(text), "%s HTTP/1.1\r\n%s\r\n\r\n", cases[i / 2].line,
                              i % 2 ? "Transfer-Encoding: chunked" : "Content-Length: 100");
        answer a = exchange(text, (size_t)length);
        CHECKF(a.status == cases[i / 2].status && a.closed, "%s: %d", text, a.status);
        answer_clear(&a);
    }
}

/* The positions of tokens in the text that is returned: special tokens are in it where they were asked for by name or id. */
static void test_serve_offsets(void) {
    char ids[100], body[400];
    expect("/v1/completions", "{\"prompt\":\"Once upon a time\",\"max_tokens\":2,\"temperature\":0,\"echo\":true,\"logprobs\":1}", 200,
           "\"text_offset\":[0,0,4,9,11,16,");
    expect("/v1/completions", "{\"prompt\":\"Once<|im_start|> upon\",\"max_tokens\":0,\"echo\":true,\"logprobs\":0}", 200,
           "\"text_offset\":[0,0,4,16]");
    expect("/v1/completions", "{\"prompt\":\"caf\\u00e9 Once\",\"max_tokens\":1,\"echo\":true,\"logprobs\":0}", 200, ",9]}");
    expect("/v1/completions", "{\"prompt\":[\"x\",\"\\\"Once\"],\"n\":2,\"max_tokens\":0,\"echo\":true,\"logprobs\":0}", 200,
           "\"index\":3,\"text\":\"\\\"Once\",\"logprobs\":{\"tokens\":[");
    token_ids("<|im_start|>Once", ids, sizeof(ids));
    snprintf(body, sizeof(body), "{\"prompt\":[%s],\"max_tokens\":0,\"echo\":true,\"logprobs\":0}", ids);
    expect("/v1/completions", body, 200, "\"text_offset\":[0,12]");
    token_ids("<|im_start|>", ids, sizeof(ids));
    snprintf(body, sizeof(body), "{\"prompt\":\"Once\",\"max_tokens\":3,\"logit_bias\":{\"%s\":100},\"ignore_eos\":true,\"logprobs\":0%s}", ids, "");
    expect("/v1/completions", body, 200, "\"text_offset\":[0,0,0]");
    snprintf(body, sizeof(body), "{\"prompt\":\"Once\",\"max_tokens\":2,\"logit_bias\":{\"%s\":100},\"ignore_eos\":true,\"logprobs\":0%s}", ids,
             ",\"echo\":true,\"stream\":true");
    expect("/v1/completions", body, 200, "\"text_offset\":[4]");
}

/* An echo with more log-probabilities than a client may leave unread, to one that reads. */
static void test_serve_long_echo(void) {
    str body = {NULL, 0, 0};
    answer a;
    int i;
    str_puts(&body, "{\"max_tokens\":1,\"echo\":true,\"logprobs\":20,\"n\":32,\"stream\":true,\"prompt\":[1");
    for (i = 1; i < 1000; i++) str_printf(&body, ",%d", i);
    str_puts(&body, "]}");
    a = post("/v1/completions", body.data);
    CHECKF(a.status == 200 && a.body.length > 5 << 20 && has(&a, "\"index\":31,") && has(&a, "data: [DONE]\n\n"), "%d, %zu bytes",
           a.status, a.body.length);
    answer_clear(&a);
    body.length = 0; /* and one that would be too long */
    str_puts(&body, "{\"max_tokens\":0,\"echo\":true,\"logprobs\":20,\"n\":128,\"prompt\":[");
    for (i = 0; i < 3000; i++) str_puts(&body, i % 1000 == 999 ? ",1]" : i % 1000 ? ",1" : i ? ",[1" : "[1");
    str_puts(&body, "]}");
    expect("/v1/completions", body.data, 400, "\"param\":\"echo\"");
    str_free(&body);
}

/* Sends a request for the log-probabilities of a long prompt, many times over, on a connection of its own. */
static socket_id ask_much(void) {
    str body = {NULL, 0, 0}, text = {NULL, 0, 0};
    socket_id s = client_connect();
    int i;
    str_puts(&body, "{\"max_tokens\":0,\"echo\":true,\"logprobs\":20,\"n\":128,\"prompt\":[1");
    for (i = 1; i < 1000; i++) str_printf(&body, ",%d", i);
    str_puts(&body, "]}");
    str_printf(&text, "POST /v1/completions HTTP/1.1\r\nContent-Length: %zu\r\n\r\n%s", body.length, body.data);
    client_send(s, text.data, text.length);
    str_free(&body);
    str_free(&text);
    return s;
}

/* Others are answered while such a request is. */
static void test_serve_beside_echo(void) {
    socket_id s = ask_much();
    str in = {NULL, 0, 0};
    double start = now_seconds(), last = start, now, longest = 0;
    socket_poll p;
    answer a;
    memset(&p, 0, sizeof(p));
    memset(&a, 0, sizeof(a));
    p.fd = s;
    p.events = POLLIN;
    while (wait_sockets(&p, 1, 0) == 0 && now_seconds() - start < 60) {
        expect("/health", NULL, 200, "ok");
        now = now_seconds();
        longest = now - last > longest ? now - last : longest;
        last = now;
    }
    CHECKF(longest < 0.5 || longest < (last - start) / 3, "/health took %.2f s of %.2f s", longest, last - start);
    CHECK(client_read(s, &in, &a) && a.status == 200 && has(&a, "\"index\":127,"));
    socket_close(s);
    answer_clear(&a);
    str_free(&in);
}

/* A stream to HTTP/1.0, which has no chunks, ends with the connection, whatever the client asked for. */
static void test_serve_old_stream(void) {
    static const char body[] = "{\"prompt\":\"Once\",\"max_tokens\":4,\"stream\":true}";
    str text = {NULL, 0, 0}, in = {NULL, 0, 0};
    socket_id s = client_connect();
    double start = now_seconds();
    str_printf(&text, "POST /v1/completions HTTP/1.0\r\nConnection: keep-alive\r\nContent-Length: %zu\r\n\r\n%s", strlen(body), body);
    client_send(s, text.data, text.length);
    while (client_more(s, &in)) {}
    CHECKF(now_seconds() - start < 15, "it did not end: %s", in.data);
    CHECK(in.length && strstr(in.data, "\r\nConnection: close\r\n") && strstr(in.data, "data: [DONE]\n\n"));
    socket_close(s);
    str_free(&text);
    str_free(&in);
}

/* A client that goes away: its request ends, and its blocks are free. */
static void test_serve_disconnect(void) {
    static const char body[] = "{\"prompt\":\"Once upon a time\",\"max_tokens\":1000,\"ignore_eos\":true,\"n\":8,\"stream\":true}";
    str text = {NULL, 0, 0}, in = {NULL, 0, 0};
    socket_id s = client_connect();
    str_printf(&text, "POST /v1/completions HTTP/1.1\r\nContent-Length: %zu\r\n\r\n%s", strlen(body), body);
    client_send(s, text.data, text.length);
    CHECK(client_more(s, &in) && client_more(s, &in)); /* under way */
    socket_close(s);
    CHECK(becomes("num_requests_running", 0));
    CHECK(metric("kv_cache_usage_perc") == 0);
    CHECK(metric("generation_tokens_total") < 8000);
    str_free(&text);
    str_free(&in);
}

/* ---- limits: a server with a queue of 2, 20 connections, 1 MiB bodies, 2 s ---------------------- */

static void test_limits_sizes(void) {
    str text = {NULL, 0, 0};
    answer a = exchange("POST /v1/completions HTTP/1.1\r\nContent-Length: 2000000\r\n\r\n", 59);
    CHECK(a.status == 413 && a.closed);
    answer_clear(&a);
    a = exchange("POST /v1/completions HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n200000\r\n", 70);
    CHECK(a.status == 413 && a.closed);
    answer_clear(&a);
    str_puts(&text, "GET / HTTP/1.1\r\n");
    while (text.length < 20000) str_puts(&text, "X-Header: some words that fill it up\r\n");
    a = exchange(text.data, text.length);
    CHECK(a.status == 431 && a.closed);
    answer_clear(&a);
    str_free(&text);
}

/* Half a request: the server waits two seconds and no longer. */
static void test_limits_slow(void) {
    answer a = exchange("POST /v1/completions HTTP/1.1\r\nContent-Length: 20\r\n\r\n{", 55);
    CHECK(a.status == 408 && a.closed);
    answer_clear(&a);
    a = exchange("POST /v1/comp", 13);
    CHECK(a.status == 408 && a.closed);
    answer_clear(&a);
}

/* More idle connections than there are places, and then one that asks. */
static void test_limits_connections(void) {
    socket_id idle[60];
    int i;
    for (i = 0; i < 60; i++) {
        idle[i] = client_connect();
        if (idle[i] != NO_SOCKET && i % 2) client_send(idle[i], "GET /he", 7);
    }
    expect("/health", NULL, 200, "ok");
    expect("/v1/completions", "{\"prompt\":\"x\",\"max_tokens\":2}", 200, "\"text\"");
    for (i = 0; i < 60; i++)
        if (idle[i] != NO_SOCKET) socket_close(idle[i]);
}

/* More prompts in one request than may ever wait (2): to come again would not help. */
static void test_limits_prompts(void) {
    expect("/v1/completions", "{\"prompt\":[\"x\",\"y\"],\"max_tokens\":2}", 200, "\"index\":1");
    expect("/v1/completions", "{\"prompt\":[\"x\",\"y\",\"z\"],\"max_tokens\":2}", 400, "--max-queue");
}

/* More bytes of bodies than the server keeps (8 MiB): some are told to come again. Bodies that are only announced keep nobody out. */
static void test_limits_bodies(void) {
    enum { CLIENTS = 12, BYTES = 1000000 };
    static const char *const heads[2] = {"Content-Length: 1000000\r\n\r\n", "Transfer-Encoding: chunked\r\n\r\nF4240\r\n"};
    static const char *const ends[2] = {"{", "{\r\n0\r\n\r\n"};
    socket_id sockets[CLIENTS];
    char *data = (char *)xrealloc(NULL, BYTES);
    int i, taken = 0, refused = 0;
    memset(data, '{', BYTES);
    for (i = 0; i < CLIENTS; i++) {
        sockets[i] = client_connect();
        client_send(sockets[i], "POST /tokenize HTTP/1.1\r\n", 25);
        client_send(sockets[i], heads[i % 2], strlen(heads[i % 2]));
    }
    expect("/tokenize", "{\"prompt\":\"x\"}", 200, "tokens");
    for (i = 0; i < CLIENTS; i++) client_send(sockets[i], data, BYTES - 1);
    CHECK(any_answers(sockets, CLIENTS, 20000)); /* before any body is whole: the system keeps what a server has not read yet */
    for (i = 0; i < CLIENTS; i++) client_send(sockets[i], ends[i % 2], strlen(ends[i % 2]));
    for (i = 0; i < CLIENTS; i++) {
        str in = {NULL, 0, 0};
        answer a;
        memset(&a, 0, sizeof(a));
        CHECK(client_read(sockets[i], &in, &a));
        taken += a.status == 400 && has(&a, "not JSON");
        refused += a.status == 503 && header_of(&a, "Retry-After: ") != NULL;
        answer_clear(&a);
        str_free(&in);
        socket_close(sockets[i]);
    }
    CHECKF(taken + refused == CLIENTS && taken >= 1 && refused >= 1, "%d taken, %d refused", taken, refused);
    free(data);
}

/* MiB of memory of the server; -1: this system does not say. */
static double server_memory(void) {
    char path[64], line[128];
    double value = -1;
    FILE *f;
    snprintf(path, sizeof(path), "/proc/%.20s/status", server_process);
    f = fopen(path, "r");
    while (f && fgets(line, sizeof(line), f))
        if (strncmp(line, "VmRSS:", 6) == 0) value = atof(line + 6) / 1024;
    if (f) fclose(f);
    return value;
}

/* Clients that ask for much and read nothing: the server keeps 8 MiB for all. Who begins to read gets all of it. */
static void test_limits_unread(void) {
    enum { CLIENTS = 16, PAGES = 2500 };
    socket_id sockets[CLIENTS];
    str text = {NULL, 0, 0}, in = {NULL, 0, 0};
    double before = server_memory(), most = before;
    int i, good = 0;
    for (i = 0; i < PAGES; i++) str_puts(&text, "GET / HTTP/1.1\r\n\r\n");
    for (i = 0; i < CLIENTS; i++) {
        sockets[i] = client_connect();
        client_send(sockets[i], text.data, text.length);
    }
    for (i = 0; i < 20; i++) {
        sleep_seconds(0.05);
        most = server_memory() > most ? server_memory() : most;
    }
    CHECKF(most < before + 32, "%.1f MiB, then %.1f MiB", before, most);
    expect("/health", NULL, 200, "ok");
    for (i = 0; i < PAGES; i++) {
        answer a;
        memset(&a, 0, sizeof(a));
        good += client_read(sockets[0], &in, &a) && a.status == 200;
        answer_clear(&a);
    }
    CHECKF(good == PAGES, "%d pages", good);
    for (i = 0; i < CLIENTS; i++) socket_close(sockets[i]);
    str_free(&text);
    str_free(&in);
}

/* More requests than may wait (2): the rest are told to come again, and those that were taken are answered. */
static void test_limits_queue(void) {
    static const char body[] = "{\"prompt\":\"Once upon a time\",\"max_tokens\":400,\"ignore_eos\":true}";
    socket_id sockets[12];
    int i, good = 0, refused = 0;
    char text[256];
    snprintf(text, sizeof(text), "POST /v1/completions HTTP/1.1\r\nContent-Length: %d\r\n\r\n%s", (int)strlen(body), body);
    for (i = 0; i < 12; i++) {
        sockets[i] = client_connect();
        client_send(sockets[i], text, strlen(text));
    }
    for (i = 0; i < 12; i++) {
        str in = {NULL, 0, 0};
        answer a;
        memset(&a, 0, sizeof(a));
        CHECK(client_read(sockets[i], &in, &a));
        good += a.status == 200 && has(&a, "\"completion_tokens\":400");
        refused += a.status == 429 && has(&a, "\"error\"") && header_of(&a, "Retry-After: ") != NULL;
        answer_clear(&a);
        str_free(&in);
        socket_close(sockets[i]);
    }
    CHECKF(good + refused == 12 && good >= 2 && refused >= 1, "%d answered, %d refused", good, refused);
}

/* ---- a key ------------------------------------------------------------------------------------- */

static void test_key(void) {
    static const char unasked[] = "POST /metrics HTTP/1.1\r\nContent-Length: 100\r\n\r\n"; /* no key, no body */
    static char large[2048];
    static const char *const headers[5] = {"", "Authorization: Bearer wrong\r\n", "Authorization: Basic secret\r\n", large, "Authorization: Bearer secret\r\n"};
    answer a;
    int i;
    snprintf(large, sizeof(large), "Authorization: Bearer %02000d\r\n", 1);
    for (i = 0; i < 5; i++) {
        a = request("POST", "/v1/completions", headers[i], "{\"prompt\":\"x\",\"max_tokens\":2}");
        CHECKF(a.status == (i == 4 ? 200 : 401), "%s: %d", headers[i], a.status);
        if (i < 4) CHECK(has(&a, "invalid_api_key") && header_of(&a, "WWW-Authenticate: Bearer"));
        answer_clear(&a);
        a = request("GET", "/v1/models", headers[i], NULL);
        CHECK(a.status == (i == 4 ? 200 : 401));
        answer_clear(&a);
    }
    a = exchange(unasked, strlen(unasked));
    CHECK(a.status == 405 && a.closed);
    answer_clear(&a);
    expect("/health", NULL, 200, "ok");
    expect("/metrics", NULL, 200, "vllm:");
}

/* ---- the end: a stream is under way, "begun" is printed, the server is asked to stop -------------- */

static void test_drain(void) {
    static const char body[] = "{\"prompt\":\"Once upon a time\",\"max_tokens\":1000,\"ignore_eos\":true,\"n\":16,\"stream\":true}";
    str text = {NULL, 0, 0}, in = {NULL, 0, 0}, rest = {NULL, 0, 0};
    answer a;
    socket_id s = client_connect(), half = client_connect(), late;
    memset(&a, 0, sizeof(a));
    str_printf(&text, "POST /v1/completions HTTP/1.1\r\nContent-Length: %zu\r\n\r\n%s", strlen(body), body);
    client_send(half, text.data, text.length - 10);
    client_send(s, text.data, text.length);
    CHECK(client_more(s, &in) && client_more(s, &in));
    printf("begun\n");
    fflush(stdout);
    sleep_seconds(0.3);
    late = client_connect();
    CHECK(late == NO_SOCKET);
    client_send(half, text.data + text.length - 10, 10); /* of which only a part had come */
    CHECK(client_read(half, &rest, &a) && a.status == 503);
    socket_close(half);
    answer_clear(&a);
    CHECK(client_read(s, &in, &a) && has(&a, "\"finish_reason\":\"length\"") && has(&a, "data: [DONE]"));
    socket_close(s);
    str_free(&rest);
    answer_clear(&a);
    str_free(&text);
    str_free(&in);
}

/* ---- calls in a conversation, with a template that makes JSON of their arguments, or of some text of them ---- */

static const char calls_template[] = "{% for m in messages %}{% for c in m.tool_calls %}{{ '=' + c.function.arguments if m.role == 'plain' else "
                                     "c.function.arguments | tojson }}{% endfor %}{{ m.content | trim }}|{% endfor %}";

/* Copies the demo model with that template in the place of its own. */
static bool write_template(const char *from, const char *to) {
    static const char own[] = "{% for message in messages %}";
    str file = {NULL, 0, 0};
    size_t at = 0, length;
    FILE *f;
    bool ok = read_file(from, &file);
    while (ok && at + sizeof(own) < file.length && memcmp(file.data + at, own, sizeof(own) - 1) != 0) at++;
    length = at > 8 ? (unsigned char)file.data[at - 8] : 0; /* below 256 */
    ok = ok && length >= sizeof(calls_template) + 3 && at + length < file.length;
    if (ok) { /* what is left is a comment */
        memset(file.data + at, ' ', length);
        memcpy(file.data + at, calls_template, sizeof(calls_template) - 1);
        memcpy(file.data + at + sizeof(calls_template) - 1, "{#", 2);
        memcpy(file.data + at + length - 2, "#}", 2);
    }
    f = ok ? open_for_writing(to) : NULL;
    ok = f && fwrite(file.data, 1, file.length, f) == file.length;
    if (f && fclose(f) != 0) ok = false;
    str_free(&file);
    return ok;
}

#define CALL(arguments) "{\"id\":\"1\",\"type\":\"function\",\"function\":{\"name\":\"f\",\"arguments\":" arguments "}}"

static void test_calls(void) {
    static const struct {
        const char *message, *text;
    } cases[] = {
        {"\"role\":\"assistant\",\"content\":\"a\",\"tool_calls\":[" CALL("\"{\\\"city\\\":\\\"Oslo\\\"}\"") "]", "{\\\"city\\\": \\\"Oslo\\\"}a|"},
        {"\"role\":\"assistant\",\"content\":\"a\",\"tool_calls\":[" CALL("{\"city\":\"Oslo\"}") "]", "{\\\"city\\\": \\\"Oslo\\\"}a|"},
        {"\"tool_calls\":[" CALL("\" {} \"") "," CALL("{\"n\":2}") "],\"content\":[{\"type\":\"text\",\"text\":\"b\"}],\"role\":\"assistant\"", "{}{\\\"n\\\": 2}b|"},
        {"\"content\":[{\"type\":\"text\",\"text\":\"b\"}],\"tool_calls\":[" CALL("\"{\\\"n\\\":1}\"") "],\"role\":\"assistant\"", "{\\\"n\\\": 1}b|"},
        {"\"role\":\"assistant\",\"content\":\"a\",\"tool_calls\":[" CALL("\"[1]\"") "," CALL("\"{1\"") "," CALL("\"\"") "]", "\\\"[1]\\\"\\\"{1\\\"\\\"\\\"a|"},
        {"\"role\":\"plain\",\"content\":\"a\",\"tool_calls\":[" CALL("\"{\\\"n\\\":1}\"") "]", "={\\\"n\\\":1}a|"},
    };
    size_t i;
    for (i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char body[1000], ids[300], wanted[320];
        token_ids(cases[i].text, ids, sizeof(ids));
        snprintf(body, sizeof(body), "{\"messages\":[{%s}]}", cases[i].message);
        snprintf(wanted, sizeof(wanted), "\"tokens\":[0,%s]", ids);
        expect("/tokenize", body, 200, wanted);
    }
}

/* What is continued in a template that trims messages, or is not there. */
static void test_calls_continued(void) {
    static const struct {
        const char *message, *text;
    } cases[] = {{"\"role\":\"a\",\"content\":\" b \\u00a0\"", "x|b"}, {"\"content\":[{\"type\":\"text\",\"text\":\"b\\n\"}],\"role\":\"a\"", "x|b"},
                 {"\"role\":\"a\",\"content\":\" \"", "x|"}, {"\"role\":\"a\",\"content\":null", NULL}, {"\"role\":\"a\"", NULL}};
    size_t i;
    for (i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char body[300], ids[300], wanted[320];
        if (cases[i].text) token_ids(cases[i].text, ids, sizeof(ids));
        snprintf(body, sizeof(body), "{\"messages\":[{\"role\":\"a\",\"content\":\"x\"},{%s}],\"add_generation_prompt\":false,"
                 "\"continue_final_message\":true}", cases[i].message);
        snprintf(wanted, sizeof(wanted), "\"tokens\":[0,%s]", cases[i].text ? ids : "");
        expect("/tokenize", body, cases[i].text ? 200 : 400, cases[i].text ? wanted : "no text");
    }
}

/* ---- a SentencePiece vocabulary ----------------------------------------------------------------- */

/* The space that it puts before a text is not in the text. */
static void test_spaces(void) {
    expect("/v1/completions", "{\"prompt\":\"Once upon a time\",\"max_tokens\":1,\"echo\":true,\"logprobs\":0}", 200, "\"text_offset\":[0,0,4,9,11,16]");
    expect("/v1/completions", "{\"prompt\":[1,403,407],\"max_tokens\":0,\"echo\":true,\"logprobs\":0}", 200, "\"text_offset\":[0,3,8]");
    expect("/v1/completions", "{\"prompt\":[403,407],\"max_tokens\":0,\"echo\":true,\"logprobs\":0}", 200, "\"text_offset\":[0,4]");
}

static void run_unit_tests(void) {
    RUN(test_http_heads);
    RUN(test_http_authorization);
    RUN(test_http_targets);
    RUN(test_http_chunks);
    RUN(test_json_reader);
    RUN(test_json_escapes);
    RUN(test_json_depth);
    RUN(test_grammar_answers);
    RUN(test_grammar_refused);
    RUN(test_grammar_ways_on);
    RUN(test_grammar_many);
    RUN(test_grammar_long);
    RUN(test_grammar_time);
    RUN(test_grammar_masks);
}

static void run_protocol_tests(void) {
    RUN(test_serve_pages);
    RUN(test_serve_completion);
    RUN(test_serve_stream);
    RUN(test_serve_chat);
    RUN(test_serve_tokens);
    RUN(test_serve_continued);
    RUN(test_serve_errors);
    RUN(test_serve_names);
    RUN(test_serve_odd_requests);
    RUN(test_serve_long_body);
    RUN(test_serve_schemas);
    RUN(test_serve_limits);
    RUN(test_serve_too_long);
    RUN(test_serve_too_long_text);
    RUN(test_serve_authorization);
    RUN(test_serve_unasked_body);
    RUN(test_serve_offsets);
    RUN(test_serve_long_echo);
    RUN(test_serve_beside_echo);
    RUN(test_serve_connections);
    RUN(test_serve_old_stream);
    RUN(test_serve_disconnect);
}

static void run_limit_tests(void) {
    RUN(test_limits_sizes);
    RUN(test_limits_slow);
    RUN(test_limits_connections);
    RUN(test_limits_prompts);
    RUN(test_limits_bodies);
    RUN(test_limits_unread);
    RUN(test_limits_queue);
}

int main(int argc, char **argv) {
    const char *what = argc > 1 ? argv[1] : "units";
    server_port = argc > 2 ? atoi(argv[2]) : 0;
    expected_text = server_process = argc > 3 ? argv[3] : "";
    sockets_start();
    if (strcmp(what, "template") == 0) return argc > 3 && write_template(argv[2], argv[3]) ? 0 : 1;
    if (strcmp(what, "units") == 0) run_unit_tests();
    if (strcmp(what, "protocol") == 0) run_protocol_tests();
    if (strcmp(what, "limits") == 0) run_limit_tests();
    if (strcmp(what, "key") == 0) RUN(test_key);
    if (strcmp(what, "calls") == 0) {
        RUN(test_calls);
        RUN(test_calls_continued);
    }
    if (strcmp(what, "spaces") == 0) RUN(test_spaces);
    if (strcmp(what, "drain") == 0) RUN(test_drain);
    printf("%d passed, %d failed\n", tests_passed, tests_failed);
    return tests_failed ? 1 : 0;
}
