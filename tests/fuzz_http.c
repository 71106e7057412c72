/* libFuzzer target: what a stranger can send to fastgen serve. The first byte chooses: the head and the chunks of HTTP, cut
   into pieces by the second byte, which must come out the same as in one piece; the JSON of a request, with the
   tokenizer and chat template of the demo model; or what a model writes, with calls, thoughts and channels in it.

       clang -g -O1 -fsanitize=fuzzer,address,undefined tests/fuzz_http.c -o build/fuzz_http -lm
       build/fuzz_http -max_total_time=60 -max_len=8192      (in the repository's root) */
#define FASTGEN_IMPLEMENTATION
#include "../fastgen.h"
#include "../backends/cuda/fg_cuda.h"
#include "../backends/hip/fg_hip.h"
#include "../backends/vulkan/fg_vulkan.h"

#if defined(__GNUC__)
#pragma GCC diagnostic ignored "-Wunused-function" /* of the tool's parts only some are used here */
#endif
#include "../examples/tool/platform.h"
#include "../examples/tool/text.h"
#include "../examples/tool/terminal.h"
#include "../examples/tool/options.h"
#include "../examples/tool/session.h"
#include "../examples/tool/json.h"
#include "../examples/tool/http.h"
#include "../examples/tool/pattern.h"
#include "../examples/tool/grammar.h"
#include "../examples/tool/calls.h"
#include "../examples/tool/api.h"
#include "../examples/tool/reply.h"
#include "../examples/tool/responses.h"
#include "../examples/tool/messages.h"
#include "../examples/tool/output.h"
#include "gguf_writer.h"

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static fg_model *model, *marked; /* marked: a vocabulary with the marks of channels */

/* What messages of channels are made of; those up to MARKS are special tokens. */
enum { MARKS = 8, PARTS = 20 };
static const char *const channel_parts[PARTS] = {"<unk>", "<s>", "</s>", "<|channel|>", "<|message|>", "<|end|>", "<|start|>", "<|call|>", "<|return|>", "analysis",
                                                 "final", "commentary", " to=functions.", "f", " ", "{", "}", "a", "\"", "<tool_call>"};

static void load_marked(void) {
    fg_model_desc desc;
    unsigned char *file;
    int32_t types[PARTS];
    gguf_writer w;
    int i;
    for (i = 0; i < PARTS; i++) types[i] = i == 0 ? 2 : i <= MARKS ? 3 : 1;
    memset(&desc, 0, sizeof(desc));
    gguf_begin(&w);
    gguf_add_string(&w, "general.architecture", "llama");
    gguf_add_string(&w, "tokenizer.ggml.model", "llama");
    gguf_add_strings(&w, "tokenizer.ggml.tokens", channel_parts, PARTS);
    gguf_add_i32s(&w, "tokenizer.ggml.token_type", types, PARTS);
    gguf_finish(&w, &file, &desc.size);
    desc.data = file; /* for good */
    desc.vocab_only = true;
    if (fg_model_load(&desc, &marked) != FG_OK) __builtin_trap();
}

int LLVMFuzzerInitialize(int *argc, char ***argv) {
    fg_model_desc desc;
    (void)argc;
    (void)argv;
    load_marked();
    memset(&desc, 0, sizeof(desc));
    desc.path = "examples/demo-model/demo.gguf";
    desc.vocab_only = true;
    if (fg_model_load(&desc, &model) != FG_OK) __builtin_trap();
    return 0;
}

/* A body in chunks, in pieces of `step` bytes; returns the status, or -1 while it is not complete. */
static int take_chunks(const char *data, size_t size, size_t step, str *body, size_t *end) {
    http_chunks c;
    memset(&c, 0, sizeof(c));
    *end = 0;
    while (*end < size && c.state != CHUNK_DONE) {
        size_t n = size - *end < step ? size - *end : step, used;
        int status = http_take_chunks(&c, data + *end, n, &used, body, 1 << 20);
        if (used > n || body->length > 1 << 20) __builtin_trap();
        if (status) return status;
        *end += used;
    }
    return c.state == CHUNK_DONE ? 0 : -1;
}

static void fuzz_chunks(const char *data, size_t size, size_t step) {
    str whole = {NULL, 0, 0}, pieces = {NULL, 0, 0};
    size_t end, end_pieces;
    int status = take_chunks(data, size, size + 1, &whole, &end), other = take_chunks(data, size, step, &pieces, &end_pieces);
    if (status != other) __builtin_trap();
    if (status == 0 && (end != end_pieces || whole.length != pieces.length)) __builtin_trap();
    if (status == 0 && whole.length && memcmp(whole.data, pieces.data, whole.length) != 0) __builtin_trap();
    str_free(&whole);
    str_free(&pieces);
}

static void fuzz_head(const char *data, size_t size, size_t step) {
    http_head head;
    size_t scanned = 0, from = 0, end = 0, once = 0, whole = http_find_end(data, size, &once);
    int status;
    while (end == 0 && from < size) {
        from = size - from < step ? size : from + step;
        end = http_find_end(data, from, &scanned);
    }
    if (end != whole) __builtin_trap();
    if (end == 0) return;
    status = http_parse_head(data, end, &head);
    if (strlen(head.method) >= sizeof(head.method) || strlen(head.path) >= sizeof(head.path)) __builtin_trap();
    if (status == 0 && head.chunked && head.has_length) __builtin_trap();
    http_bearer_is(head.authorization, "key");
    http_key_is(head.api_key, "key");
}

/* What is accepted is answered with JSON that our own reader takes. */
static void check_answer(const api_request *r) {
    api_answer a;
    fg_event event;
    str text = {NULL, 0, 0};
    json j;
    memset(&a, 0, sizeof(a));
    memset(&event, 0, sizeof(event));
    a.model = model;
    a.model_name = "demo";
    answer_begin(&a, r);
    event.type = FG_EVENT_TOKEN;
    event.text = "x\"\n";
    event.text_length = 3;
    event.token = 20;
    answer_take(&a, 0, &event);
    event.type = FG_EVENT_SAMPLE_END;
    event.finish = FG_FINISH_LENGTH;
    answer_take(&a, 0, &event);
    add_answer(&a, &text);
    if (!json_parse(&j, text.data, text.length)) __builtin_trap();
    json_free(&j);
    str_free(&text);
    answer_free(&a);
}

static bool same_text(const str *a, const str *b) { return a->length == b->length && (a->length == 0 || memcmp(a->data, b->data, a->length) == 0); }

/* Calls and thoughts are found in a text wherever it is cut: the first of two choices gets it in pieces of `step` bytes. */
static void check_pieces(const api_request *r, const char *data, size_t size, size_t step) {
    api_answer a;
    api_choice *c, *whole;
    size_t i;
    memset(&a, 0, sizeof(a));
    a.model_name = "demo";
    answer_begin(&a, r);
    c = a.choices;
    whole = c + (a.n_choices > 1);
    for (i = 0; i < size; i += step) answer_read(&a, c, data + i, size - i < step ? size - i : step);
    c->ended = true;
    answer_read(&a, c, "", 0);
    whole->ended = true;
    if (whole != c) answer_read(&a, whole, data, size);
    if (whole->n_calls != c->n_calls || !same_text(&whole->text, &c->text) || !same_text(&whole->thought, &c->thought) ||
        whole->calls.length != c->calls.length || c->held.length)
        __builtin_trap();
    answer_free(&a);
}

/* A text of markers and what stands between them, one for each byte. */
static void fuzz_markers(const char *data, size_t size, size_t step) {
    static const char *const parts[16] = {"<think>", "</think>", "<thi", "</thin", " ", "\n", "a", "<tool_call>", "</tool_call>",
                                          "{\"name\":\"f\",\"arguments\":{}}", "<", "b c", "{", "[TOOL_CALLS]", "[", "]"};
    str text = {NULL, 0, 0}, name = {NULL, 0, 0};
    api_request r;
    size_t i;
    memset(&r, 0, sizeof(r));
    r.kind = API_CHAT;
    r.n = 2;
    r.n_prompts = r.tools.n = 1;
    r.tools.names = &name;
    r.tools.form = size % 3 ? CALL_IN_TEXT : CALL_NONE;
    r.thinking = size % 5 ? THINKING_BEFORE : THINKING_INSIDE;
    str_puts(&name, "f");
    str_puts(&text, "");
    for (i = 0; i < size && i < 64; i++) str_puts(&text, parts[(unsigned char)data[i] % 16]);
    check_pieces(&r, text.data, text.length, step);
    str_free(&text);
    str_free(&name);
}

/* A token for each byte. */
static void take_marked(api_answer *a, const char *data, size_t size, str *stream) {
    fg_event event;
    size_t i;
    memset(&event, 0, sizeof(event));
    for (i = 0; i < size && i < 64; i++) {
        event.type = FG_EVENT_TOKEN;
        event.token = 1 + (unsigned char)data[i] % (PARTS - 1);
        event.text = event.token > MARKS ? channel_parts[event.token] : "";
        event.text_length = strlen(event.text);
        answer_take(a, 0, &event);
        if (stream) add_pieces(a, 0, stream);
    }
    event.type = FG_EVENT_SAMPLE_END;
    event.finish = size % 4 ? FG_FINISH_STOP : FG_FINISH_LENGTH;
    event.text_length = 0;
    answer_take(a, 0, &event);
}

/* Messages of channels in any order: the whole answer is JSON, and so is each piece of a stream. */
static void fuzz_channels(const char *data, size_t size) {
    str text = {NULL, 0, 0}, name = {NULL, 0, 0};
    api_request r;
    api_answer a;
    char *line, *end;
    json j;
    memset(&r, 0, sizeof(r));
    r.kind = API_CHAT;
    r.n = r.n_prompts = r.tools.n = 1;
    r.channels = true;
    r.tools.names = &name;
    r.tools.form = size % 3 ? CALL_IN_TEXT : CALL_NONE;
    r.thinking = size % 5 ? THINKING_BEFORE : THINKING_NONE;
    str_puts(&name, "f");
    for (r.stream = false;; r.stream = true) {
        memset(&a, 0, sizeof(a));
        a.model = marked;
        a.model_name = "demo";
        answer_begin(&a, &r);
        take_marked(&a, data, size, r.stream ? &text : NULL);
        if (a.choices->held.length || a.choices->pending.length > 64 * 16) __builtin_trap();
        if (r.stream) break;
        add_answer(&a, &text);
        if (!json_parse(&j, text.data, text.length)) __builtin_trap();
        json_free(&j);
        answer_free(&a);
        text.length = 0;
    }
    add_pieces(&a, 0, &text);
    for (line = text.data; *line; line = end + 2) {
        end = strstr(line, "\n\n");
        if (!end || memcmp(line, "data: ", 6) != 0 || !json_parse(&j, line + 6, (size_t)(end - line) - 6)) __builtin_trap();
        json_free(&j);
    }
    answer_free(&a);
    str_free(&text);
    str_free(&name);
}

/* An answer of the Responses or Messages API with a text, taken `step` bytes at a time. */
static void make_output(const api_request *r, const char *data, size_t size, size_t step, str *to) {
    api_answer a;
    size_t i;
    memset(&a, 0, sizeof(a));
    memcpy(a.id, "id_1", 4);
    a.model_name = "demo";
    answer_begin(&a, r);
    if (r->stream) output_begin(&a, to);
    for (i = 0; i < size; i += step) {
        answer_read(&a, a.choices, data + i, size - i < step ? size - i : step);
        if (r->stream) output_add_news(&a, to);
    }
    a.choices->ended = true;
    answer_read(&a, a.choices, "", 0);
    if (r->stream) output_add_news(&a, to), output_end(&a, NULL, to);
    else output_add_whole(&a, to);
    answer_free(&a);
}

/* Such an answer, here of the request's own text, is JSON or events of JSON; whole it is the same however its text came. */
static void check_output(const api_request *r, const char *data, size_t size) {
    str text = {NULL, 0, 0}, other = {NULL, 0, 0};
    const char *line, *end;
    json j;
    if (size > 2000) return;
    make_output(r, data, size, r->stream ? 3 : 1, &text);
    for (line = text.data; r->stream && *line; line = end + 2) {
        const char *from = strstr(line, "\ndata: ");
        end = strstr(line, "\n\n");
        if (!from || !end || memchr(from + 1, '\n', (size_t)(end - from) - 1) || !json_parse(&j, from + 7, (size_t)(end - from) - 7)) __builtin_trap();
        json_free(&j);
    }
    if (!r->stream) {
        if (!json_parse(&j, text.data, text.length)) __builtin_trap();
        json_free(&j);
        make_output(r, data, size, size ? size : 1, &other);
        if (other.length != text.length || memcmp(other.data, text.data, text.length) != 0) __builtin_trap();
    }
    str_free(&text);
    str_free(&other);
}

/* Random tokens of those that response_format allows: what ends is JSON. */
static void check_grammar(const api_request *r, const char *data, size_t size) {
    static float logits[1536];
    int32_t tokens[1 + 64];
    const grammar *g = r->grammar;
    size_t seed = size, i;
    str text = {NULL, 0, 0};
    json j;
    int n;
    for (i = 0; i < size; i++) seed = seed * 31 + (unsigned char)data[i];
    for (n = 1; n < 65; n++) {
        int32_t token;
        memset(logits, 0, sizeof(logits));
        grammar_mask(r->grammar, 0, n, tokens, logits, 1536);
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        token = (int32_t)(seed >> 33) % 1536;
        for (i = 0; i < 1536 && logits[token] < 0; i++) token = (token + 1) % 1536;
        if (logits[token] < 0) __builtin_trap();
        if (g->vocab->kinds[token] == GRAMMAR_END) break;
        tokens[n] = token;
        str_add(&text, g->vocab->texts[token], g->vocab->lengths[token]);
    }
    if (n < 65 && g->first.mode == GRAMMAR_VALUE && !g->samples[0].lost && grammar_complete(g, &g->samples[0].state)) {
        if (!json_parse(&j, text.data, text.length)) __builtin_trap();
        json_free(&j);
    }
    str_free(&text);
}

static void fuzz_json(const char *data, size_t size, api_kind kind) {
    static grammar_vocab vocab;
    api_server server;
    api_request r;
    json j;
    str text = {NULL, 0, 0};
    memset(&server, 0, sizeof(server));
    server.model = model;
    server.model_name = "demo";
    server.max_context = 1024;
    server.n_vocab = 1536;
    server.vocab = &vocab;
    if (kind == API_RESPONSES) response_read(&r, &server, data, size, 1);
    else if (kind == API_MESSAGES || kind == API_COUNT) message_read(&r, &server, data, size, 1, kind == API_COUNT);
    else api_read(&r, &server, kind, data, size, 1);
    if (r.error.status) api_add_error(&text, &r.error);
    else if (kind >= API_TOKENIZE) str_add(&text, r.reply.data, r.reply.length);
    else if (has_output(&r)) check_output(&r, data, size);
    else if (r.n_prompts * r.n < 100 && r.prompts[0].n_tokens && r.prompts[0].tokens[0] < 1536) check_answer(&r);
    if (r.error.status == 0 && r.grammar) check_grammar(&r, data, size);
    if (r.error.status == 0 && (r.tools.form != CALL_NONE || r.thinking) && !has_output(&r) && size <= 2000) check_pieces(&r, data, size, 1);
    if (text.length && !json_parse(&j, text.data, text.length)) __builtin_trap();
    if (text.length) json_free(&j);
    str_free(&text);
    api_request_free(&r);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    char *text;
    size_t step;
    if (size < 2) return 0;
    step = 1 + data[1] % 64;
    text = (char *)xrealloc(NULL, size - 2); /* so that reading past the end is seen */
    memcpy(text, data + 2, size - 2);
    if (data[0] % 10 == 0) fuzz_head(text, size - 2, step);
    else if (data[0] % 10 == 1) fuzz_chunks(text, size - 2, step);
    else if (data[0] % 10 == 9 && data[1] % 2) fuzz_channels(text, size - 2);
    else if (data[0] % 10 == 9) fuzz_markers(text, size - 2, 1 + step % 7);
    else fuzz_json(text, size - 2, (api_kind)(data[0] % 10 - 2));
    free(text);
    return 0;
}
