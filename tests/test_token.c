/* Tests of >>token. Two larger ones need programs of others: tests/check_tokenizers.py compares with Hugging Face
   tokenizers and sentencepiece, tests/make_unicode.py --check the tables of characters. */
#include "test_alloc.h"
#include "token_sample.h"

/* An opened vocabulary and what it lives in. */
typedef struct test_vocab {
    fg__env env;
    unsigned char *file;
    fg__gguf *gguf;
    fg__vocab *vocab; /* NULL when it did not load */
    fg_result result;
} test_vocab;

static void test_vocab_load(test_vocab *t, const fg_allocator *allocator, const char *path, size_t size) {
    t->env = fg__env_make(allocator, NULL, NULL);
    t->vocab = NULL;
    fg__error_text[0] = 0;
    t->result = fg__gguf_open(&t->env, path, t->file, size, false, &t->gguf);
    if (t->result == FG_OK) t->result = fg__vocab_load(&t->env, t->gguf, &t->vocab);
}

/* Finishes the file that `w` writes and loads its vocabulary. */
static test_vocab test_vocab_of(gguf_writer *w) {
    test_vocab t;
    size_t size;
    gguf_finish(w, &t.file, &size);
    test_vocab_load(&t, NULL, NULL, size);
    return t;
}

static void test_vocab_close(test_vocab *t) {
    fg__vocab_free(t->vocab);
    fg__gguf_close(t->gguf);
    free(t->file);
}

/* The tokens of a text, their texts in the file each followed by '|'. Good until the next call. */
static const char *test_token_line(const fg__vocab *v, const char *text, size_t length, unsigned flags) {
    static char line[4096];
    size_t i, count, used = 0;
    int32_t *ids;
    if (fg__vocab_encode(v, text, length, flags, &ids, &count) != FG_OK) return fg_last_error();
    for (i = 0; i < count; i++) {
        const fg__gguf_string *token = &v->texts[ids[i]];
        used += (size_t)snprintf(line + used, sizeof(line) - used, "%.*s|", (int)token->length, token->data);
    }
    line[used] = 0;
    fg__free(&v->env, ids);
    return line;
}

static void test_token_expect(const fg__vocab *v, const char *text, unsigned flags, const char *expected) {
    const char *line = test_token_line(v, text, strlen(text), flags);
    CHECKF(strcmp(line, expected) == 0, "'%s' gives %s, not %s", text, line, expected);
}

/* Tokens back to text: through the stream, one byte at a time if `bytewise`. The caller frees out->data. */
static void test_token_decode(const fg__vocab *v, const int32_t *ids, size_t count, bool bytewise, fg__text *out) {
    fg__utf8 stream;
    size_t i, j, length;
    memset(&stream, 0, sizeof(stream));
    memset(out, 0, sizeof(*out));
    out->env = &v->env;
    stream.strip_space = v->add_space;
    for (i = 0; i < count; i++) {
        const char *piece = fg__vocab_piece(v, ids[i], true, &length);
        if (!bytewise) fg__utf8_push(&stream, piece, length, out);
        for (j = 0; j < length && bytewise; j++) fg__utf8_push(&stream, piece + j, 1, out);
    }
    fg__utf8_flush(&stream, out);
}

static void test_token_round_trip(const fg__vocab *v, const char *text, size_t length) {
    int32_t *ids;
    size_t count;
    int bytewise;
    CHECK(fg__vocab_encode(v, text, length, FG_NO_BOS, &ids, &count) == FG_OK);
    for (bytewise = 0; bytewise < 2; bytewise++) {
        fg__text out;
        test_token_decode(v, ids, count, bytewise, &out);
        CHECKF(out.length == length && (!length || memcmp(out.data, text, length) == 0), "'%s' comes back as '%s'",
               text, out.data ? out.data : "");
        fg__text_free(&out);
    }
    fg__free(&v->env, ids);
}

/* ---- characters ---- */

static void test_token_classes(void) {
    static const struct { uint32_t code; unsigned classes; } expected[] = {
        {'a', FG__CHAR_LETTER | FG__CHAR_CASED | FG__CHAR_LOWER}, {'A', FG__CHAR_LETTER | FG__CHAR_CASED | FG__CHAR_UPPER}, {'7', FG__CHAR_NUMBER | FG__CHAR_DIGIT},
        {'!', FG__CHAR_PUNCT | FG__CHAR_OLD_PUNCT}, {'$', FG__CHAR_OLD_PUNCT}, {0, 0}, {0x1F, 0},
        {'\n', FG__CHAR_SPACE}, {0x85, FG__CHAR_SPACE}, {0xA0, FG__CHAR_SPACE}, {0x200B, 0}, {0x3000, FG__CHAR_SPACE},
        {0xB2, FG__CHAR_NUMBER | FG__CHAR_DIGIT}, {0xAA, FG__CHAR_LETTER | FG__CHAR_UPPER | FG__CHAR_LOWER}, {0x2163, FG__CHAR_NUMBER | FG__CHAR_DIGIT},
        {0x300, FG__CHAR_UPPER | FG__CHAR_LOWER}, {0x4E00, FG__CHAR_LETTER | FG__CHAR_UPPER | FG__CHAR_LOWER}, {0x1F600, 0}, {0x1D7CE, FG__CHAR_NUMBER | FG__CHAR_DIGIT},
        {0x10FFFF, 0}, {0x323AF, FG__CHAR_LETTER | FG__CHAR_UPPER | FG__CHAR_LOWER}, {0xFFFD, 0}};
    int i;
    for (i = 0; i < FG__COUNT(expected); i++)
        CHECKF(fg__char_classes(expected[i].code) == expected[i].classes, "U+%04X: %u", (unsigned)expected[i].code,
               fg__char_classes(expected[i].code));
}

/* NFC of at most 8 characters; a 0 ends them. */
static void test_nfc(const uint32_t *from, const uint32_t *expected) {
    uint32_t codes[40], spare[40];
    size_t n = 0, i, count = 0;
    for (i = 0; from[i]; i++) n += (size_t)fg__nfc_expand(from[i], codes + n);
    fg__nfc_order(codes, n, spare);
    n = fg__nfc_compose(codes, n);
    while (expected[count]) count++;
    CHECKF(n == count && memcmp(codes, expected, n * sizeof(*codes)) == 0, "U+%04X U+%04X ...", (unsigned)from[0],
           (unsigned)from[1]);
}

static void test_token_nfc(void) {
    static const uint32_t cases[][2][8] = {
        {{'e', 0x301}, {0xE9}},                              /* composes */
        {{0xE9}, {0xE9}},
        {{0x212B}, {0xC5}},                                  /* Angstrom sign: one for one, then stays composed */
        {{'a', 0x323, 0x302}, {0x1EAD}},                     /* two marks, in order */
        {{'a', 0x302, 0x323}, {0x1EAD}},                     /* and to be put in order */
        {{'a', 0x315, 0x300, 0x5AE, 'b'}, {0xE0, 0x5AE, 0x315, 'b'}},
        {{0x1100, 0x1161, 0x11A8}, {0xAC01}},                /* Hangul */
        {{0xAC00, 0x11A8}, {0xAC01}},
        {{0xAC01, 0x11A8}, {0xAC01, 0x11A8}},
        {{0x958}, {0x915, 0x93C}},                           /* excluded from composition */
        {{0x2F800}, {0x4E3D}},
        {{0x344}, {0x308, 0x301}},
        {{0x9C7, 0x9BE}, {0x9CB}},                           /* a second part that is no mark */
        {{0x9C7, 0x300, 0x9BE}, {0x9C7, 0x300, 0x9BE}},      /* with one in between */
        {{0x301, 'e'}, {0x301, 'e'}},
        {{0x1D160}, {0x1D158, 0x1D165, 0x1D16E}},
        {{0x390}, {0x390}}};
    int i;
    for (i = 0; i < FG__COUNT(cases); i++) test_nfc(cases[i][0], cases[i][1]);
}

/* ---- streams ---- */

static void test_token_stream(void) {
    static const char *const cases[][2] = {
        {"", ""}, {"abc", "abc"}, {"\303\251", "\303\251"}, {"\360\237\230\200!", "\360\237\230\200!"},
        {"\342\202x", "\357\277\275x"},                                          /* cut short */
        {"\360\237\230", "\357\277\275"}, {"a\360", "a\357\277\275"},            /* at the end */
        {"\300\257", "\357\277\275\357\277\275"},                                /* longer than needed */
        {"\340\200\200", "\357\277\275\357\277\275\357\277\275"},
        {"\355\240\200", "\357\277\275\357\277\275\357\277\275"},                /* a surrogate */
        {"\364\220\200\200", "\357\277\275\357\277\275\357\277\275\357\277\275"}, /* past U+10FFFF */
        {"\341\200\342\360\221\222\361\277A", "\357\277\275\357\277\275\357\277\275\357\277\275A"},
        {"\200\377z", "\357\277\275\357\277\275z"}};
    fg__env env = fg__env_make(NULL, NULL, NULL);
    size_t i, j, step, length;
    for (i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        for (step = 1, length = strlen(cases[i][0]); step <= length + 1; step++) {
            fg__utf8 stream;
            fg__text out;
            memset(&stream, 0, sizeof(stream));
            memset(&out, 0, sizeof(out));
            out.env = &env;
            for (j = 0; j < length; j += step) {
                size_t settled;
                fg__utf8_push(&stream, cases[i][0] + j, FG__MIN(step, length - j), &out);
                for (settled = 0; settled < out.length;) { /* never half a character */
                    int n = fg__utf8_measure(out.data + settled, out.length - settled);
                    CHECK(n > 0);
                    settled += n > 0 ? (size_t)n : out.length;
                }
            }
            fg__utf8_flush(&stream, &out);
            CHECKF(strcmp(out.data ? out.data : "", cases[i][1]) == 0, "case %d, %d at a time", (int)i, (int)step);
            fg__text_free(&out);
        }
}

static void test_token_strip_space(void) {
    static const char *const pieces[][4] = {{" a", " b", "", "a b"}, {"", " ", "  b", "  b"}, {"a", " b", "", "a b"}};
    fg__env env = fg__env_make(NULL, NULL, NULL);
    int i, j;
    for (i = 0; i < FG__COUNT(pieces); i++) {
        fg__utf8 stream;
        fg__text out;
        memset(&stream, 0, sizeof(stream));
        memset(&out, 0, sizeof(out));
        out.env = &env;
        stream.strip_space = true;
        for (j = 0; j < 3; j++) fg__utf8_push(&stream, pieces[i][j], strlen(pieces[i][j]), &out);
        CHECK(out.data && strcmp(out.data, pieces[i][3]) == 0);
        fg__text_free(&out);
    }
}

/* ---- pre-tokenizers ---- */

/* Checks how `pre` cuts the words, separated by '|', once they are written one after the other. The vocabulary is
   nothing but these words, so what is cut otherwise is missing. */
static void test_words(const char *pre, const char *words) {
    token_list *list = (token_list *)calloc(1, sizeof(*list));
    char text[512], expected[1024];
    size_t n = 0, used = 0;
    fg__pretokenizer whole;
    test_vocab t;
    gguf_writer w;
    while (*words) {
        char word[64];
        size_t length = 0;
        for (; *words && *words != '|'; words++) {
            length += fg__utf8_encode(fg__byte_to_char((unsigned char)*words), word + length);
            text[n++] = *words;
        }
        words += *words == '|';
        word[length] = 0;
        token_list_add(list, word, FG__TOKEN_NORMAL, 0);
        used += (size_t)snprintf(expected + used, sizeof(expected) - used, "%s|", word);
    }
    token_list_begin(list, &w, "gpt2");
    gguf_add_string(&w, "tokenizer.ggml.pre", pre);
    gguf_add_strings(&w, "tokenizer.ggml.merges", NULL, 0);
    t = test_vocab_of(&w);
    CHECKF(t.vocab != NULL, "%s", fg_last_error());
    if (t.vocab) {
        const char *line;
        whole = *t.vocab->pre;
        whole.flags |= FG__PRE_IGNORE_MERGES;
        t.vocab->pre = &whole;
        line = test_token_line(t.vocab, text, n, FG_NO_BOS);
        CHECKF(strcmp(line, expected) == 0, "%s: %s, not %s", pre, line, expected);
    }
    test_vocab_close(&t);
    free(list);
}

static void test_token_words(void) {
    test_words("gpt-2", "We|'ve| been|  | a|'ll|'s|'|S| 12345| $|x|!?|\n\n|\n|a|  ");
    test_words("gpt-2", "\303\251t\303\251| \342\202\254|2\302\262|\302\240|\302\240|x|\t|y");
    test_words("llama-bpe", "We|'VE|'\305\277|(been|  |\ta|'l|123|45| $$\n\n| \n\n|  |\xC2\xA0x|1|  ");
    test_words("llama3", "\r\n  \n| x|'l|',.\r\n|1|\303\251t\303\251");
    test_words("qwen2", "a|1|2|3| b|?!\r\n|c");
    test_words("qwen35", "x\314\201b|1|2| b|?!\r\n|c|!\314\201| -|\314\201");
    test_words("tekken", "We|'VE| HELLOWorld|Foo| \302\252|B|!|1|2| ?!/\r\n|c|\n|\t|\t|-\314\201|Z");
    test_words("gpt-4o", "We'VE| HELLOWorld's| i|OS|123|4|/");
    test_words("starcoder", "a| |1|2| x|'s|  | y");
    test_words("command-r", "a| |1|2| x");
    test_words("falcon", "a|,$+|b|123|456|7| |12| |(|x|)|\xD0|\xBC|x|\xC2|\xB2");
    test_words("default", "a|,$+|b|123|456|7|`| |123|4| |(|x|)");
    test_words("deepseek-coder", "a| b| !?|\n|1|2|\xE4\xB8\x80\xE9\xBE\xA5| \xD0\xBC|$  ");
    test_words("deepseek-llm", "a| b| !?|\n|1|2|\xE4\xB8\x80\xE9\xBE\xA5| \xD0\xBC|x|  | y|   ");
}

/* ---- byte-level BPE ---- */

static void test_token_bpe(void) {
    gguf_writer w;
    test_vocab t;
    size_t length;
    token_sample_bpe(&w, "gpt-2");
    t = test_vocab_of(&w);
    CHECKF(t.vocab != NULL, "%s", fg_last_error());
    if (!t.vocab) return;
    test_token_expect(t.vocab, "hello world", 0, "hello|\304\240wor|ld|");
    test_token_expect(t.vocab, "hellhe lloo", 0, "hell|he|\304\240|ll|o|o|");
    test_token_expect(t.vocab, "aaaaaaa", 0, "aaaa|aa|a|");
    test_token_expect(t.vocab, "12123", 0, "12|123|");
    test_token_expect(t.vocab, "\303\251\303", 0, "\303\203\302\251|\303\257|\302\277|\302\275|"); /* e acute, U+FFFD */
    test_token_expect(t.vocab, "ing", 0, "i|n|g|");
    test_token_expect(t.vocab, "", 0, "");
    test_token_expect(t.vocab, "x<|im_end|>", 0, "x|<|im_end|>|");
    test_token_expect(t.vocab, "<|im_end|>", FG_NO_SPECIAL, "<|||i|m|_|e|n|d|||>|");
    test_token_expect(t.vocab, "he<tool>he", FG_NO_SPECIAL, "he|<tool>|he|");
    test_token_round_trip(t.vocab, "hello \t\r\n\360\237\230\200\0world<tool>", 24);
    CHECK(strcmp(test_token_line(t.vocab, "a\0b", 3, 0), "a|\304\200|b|") == 0);
    CHECK(!t.vocab->add_bos && t.vocab->bos == 0 && t.vocab->eos == 1 && t.vocab->eot == 1 && t.vocab->unk == -1);
    CHECK(fg__vocab_is_end(t.vocab, 1) && !fg__vocab_is_end(t.vocab, 0) && !fg__vocab_is_end(t.vocab, -1));
    CHECK(!fg__vocab_is_end(t.vocab, t.vocab->n_tokens));
    CHECK(fg__vocab_piece(t.vocab, 1, false, &length)[0] == 0 && length == 0);
    CHECK(memcmp(fg__vocab_piece(t.vocab, 1, true, &length), "<|im_end|>", 10) == 0 && length == 10);
    CHECK(fg__vocab_piece(t.vocab, t.vocab->n_tokens, true, &length)[0] == 0 && length == 0);
    CHECK(fg__vocab_piece(t.vocab, INT32_MIN, true, &length)[0] == 0 && length == 0);
    test_vocab_close(&t);
}

/* A word that is a token is taken whole only by Llama 3's tokenizer, which also adds BOS by itself. */
static void test_token_bpe_ignore_merges(void) {
    static const char *const pres[2] = {"llama-bpe", "dbrx"};
    static const char *const lines[2] = {"b|abc|", "a|bc|"};
    int i;
    for (i = 0; i < 2; i++) {
        static const char *const merges[2] = {"b c", "abc abc"};
        token_list *list = (token_list *)calloc(1, sizeof(*list));
        gguf_writer w;
        test_vocab t;
        token_list_add(list, "a", FG__TOKEN_NORMAL, 0);
        token_list_add(list, "b", FG__TOKEN_CONTROL, 0);
        token_list_add(list, "b", FG__TOKEN_NORMAL, 0);
        token_list_add(list, "c", FG__TOKEN_NORMAL, 0);
        token_list_add(list, "bc", FG__TOKEN_NORMAL, 0);
        token_list_add(list, "abc", FG__TOKEN_NORMAL, 0);
        token_list_begin(list, &w, "gpt2");
        gguf_add_string(&w, "tokenizer.ggml.pre", pres[i]);
        gguf_add_strings(&w, "tokenizer.ggml.merges", merges, 2);
        gguf_add_i64(&w, "tokenizer.ggml.bos_token_id", 1);
        gguf_add_u8(&w, "tokenizer.ggml.eos_token_id", 3);
        t = test_vocab_of(&w);
        CHECKF(t.vocab != NULL, "%s", fg_last_error());
        if (t.vocab) {
            test_token_expect(t.vocab, "abc", FG_NO_SPECIAL, lines[i]);
            test_token_expect(t.vocab, "abc", FG_NO_SPECIAL | FG_NO_BOS, lines[i] + (i ? 0 : 2));
            test_token_expect(t.vocab, "a?c", FG_NO_BOS, "a|c|"); /* bytes without a token are left out */
            test_token_expect(t.vocab, "abc", FG_NO_BOS, "a|b|c|"); /* the control token is found in the text */
        }
        test_vocab_close(&t);
        free(list);
    }
}

/* ---- SentencePiece ---- */

#define SP "\342\226\201" /* U+2581 */

static test_vocab test_spm(bool no_bytes, const char *setting, bool value) {
    gguf_writer w;
    test_vocab t;
    token_sample_spm(&w, no_bytes);
    if (setting) gguf_add_bool(&w, setting, value);
    t = test_vocab_of(&w);
    CHECKF(t.vocab != NULL, "%s", fg_last_error());
    return t;
}

static void test_token_spm(void) {
    test_vocab t = test_spm(false, NULL, false);
    if (!t.vocab) return;
    test_token_expect(t.vocab, "hello", 0, "<s>|" SP "hello|"); /* by way of _h, _he, ll, llo */
    test_token_expect(t.vocab, "hello  world", FG_NO_BOS, SP "hello|" SP SP "|w|or|ld|");
    test_token_expect(t.vocab, "aaaaaaa", FG_NO_BOS, SP "|aaaa|aa|a|");
    test_token_expect(t.vocab, "xabcd", FG_NO_BOS, SP "|x|ab|c|d|");
    test_token_expect(t.vocab, "xbcd", FG_NO_BOS, SP "|x|bc|d|");           /* bcd is unused: undone */
    test_token_expect(t.vocab, "\303\251t", FG_NO_BOS, SP "|\303\251t|");   /* joined of a character without a token */
    test_token_expect(t.vocab, "\303\251", FG_NO_BOS, SP "|<0xC3>|<0xA9>|");
    test_token_expect(t.vocab, "\303", FG_NO_BOS, SP "|<0xC3>|");           /* no UTF-8: bytes as they are */
    test_token_expect(t.vocab, "<0x41>", FG_NO_BOS, SP "|<0x3C>|<0x30>|x|<0x34>|<0x31>|<0x3E>|");
    test_token_expect(t.vocab, "", 0, "<s>|");
    test_token_expect(t.vocab, "", FG_NO_BOS, "");
    test_token_expect(t.vocab, " ", FG_NO_BOS, SP SP "|");
    test_token_expect(t.vocab, "a</s>b", FG_NO_BOS, SP "|a|</s>|" SP "|b|");
    test_token_expect(t.vocab, "</s>", FG_NO_BOS | FG_NO_SPECIAL, SP "|<0x3C>|<0x2F>|s|<0x3E>|");
    test_token_expect(t.vocab, "a<tool> b", FG_NO_BOS | FG_NO_SPECIAL, SP "|a|<tool>|" SP SP "|b|");
    CHECK(t.vocab->bos == 1 && t.vocab->eos == 2 && t.vocab->unk == 0 && t.vocab->pad == -1 && t.vocab->add_space);
    CHECK(t.vocab->add_bos && !t.vocab->add_eos && fg__vocab_is_end(t.vocab, 2));
    test_token_expect(t.vocab, "a", FG_RENDERED, "<s>|" SP "|a|"); /* a BOS once, whoever writes it */
    test_token_expect(t.vocab, "<s>a<s>", FG_RENDERED, "<s>|" SP "|a|<s>|");
    test_token_expect(t.vocab, "<s>", FG_RENDERED, "<s>|");
    test_token_expect(t.vocab, "<s>a", 0, "<s>|<s>|" SP "|a|");
    test_token_expect(t.vocab, "<s>a", FG_RENDERED | FG_NO_BOS, "<s>|" SP "|a|");
    test_token_expect(t.vocab, "", FG_RENDERED, "<s>|");
    test_token_round_trip(t.vocab, "  hello \303\251\n\360\237\230\200 x ", 17);
    test_vocab_close(&t);
}

static void test_token_spm_settings(void) {
    test_vocab t = test_spm(false, "tokenizer.ggml.add_space_prefix", false);
    if (t.vocab) test_token_expect(t.vocab, "hello", 0, "<s>|h|e|llo|");
    test_vocab_close(&t);
    t = test_spm(false, "tokenizer.ggml.remove_extra_whitespaces", true);
    if (t.vocab) test_token_expect(t.vocab, "  hello   world  ", FG_NO_BOS, SP "hello|" SP "w|or|ld|");
    if (t.vocab) test_token_expect(t.vocab, "   ", FG_NO_BOS, "");
    test_vocab_close(&t);
    t = test_spm(true, NULL, false);
    if (t.vocab) test_token_expect(t.vocab, "a???\303\251b?", FG_NO_BOS, SP "|a|<unk>|b|<unk>|");
    test_vocab_close(&t);
    t = test_spm(false, "tokenizer.ggml.add_eos_token", true);
    if (t.vocab) test_token_expect(t.vocab, "a", FG_RENDERED, "<s>|" SP "|a|");
    if (t.vocab) test_token_expect(t.vocab, "a", 0, "<s>|" SP "|a|</s>|");
    if (t.vocab) test_token_expect(t.vocab, "a", FG_NO_BOS, SP "|a|");
    test_vocab_close(&t);
    t = test_spm(false, "tokenizer.ggml.add_bos_token", false);
    if (t.vocab) test_token_expect(t.vocab, "a", 0, SP "|a|");
    test_vocab_close(&t);
}

/* The longest special token wins, then the first in the text; Phi-3's take the white space behind them. */
static void test_token_special(void) {
    static const char *const names[] = {"<|a|>", "<|a|><|b|>", "<|b|>", "b|><|c", "<|c|>", "<s>", "[PAD7]",
                                        "[PAD1]"};
    int phi;
    for (phi = 0; phi < 2; phi++) {
        token_list *list = (token_list *)calloc(1, sizeof(*list));
        gguf_writer w;
        test_vocab t;
        size_t i;
        token_list_add(list, "<unk>", FG__TOKEN_UNKNOWN, 0);
        for (i = 0; i < sizeof(names) / sizeof(names[0]); i++) token_list_add(list, names[i], FG__TOKEN_CONTROL, 0);
        token_list_add_bytes(list, true);
        token_list_begin(list, &w, "llama");
        gguf_add_string(&w, "general.name", phi ? "My Phi-3 model" : "Phi 3");
        gguf_add_bool(&w, "tokenizer.ggml.add_space_prefix", false);
        t = test_vocab_of(&w);
        CHECKF(t.vocab != NULL, "%s", fg_last_error());
        if (t.vocab) {
            test_token_expect(t.vocab, "<|a|><|b|><|c|>", FG_NO_BOS, "<|a|><|b|>|<|c|>|");
            test_token_expect(t.vocab, "<|b|><|c|>", FG_NO_BOS, "<|b|>|<|c|>|");
            test_token_expect(t.vocab, "|b|><|c|>", FG_NO_BOS, "<0x7C>|b|><|c|<0x7C>|<0x3E>|");
            test_token_expect(t.vocab, "<|a|><|b|", FG_NO_BOS, "<|a|>|<0x3C>|<0x7C>|<0x62>|<0x7C>|");
            test_token_expect(t.vocab, "[PAD1][PAD7]", FG_NO_BOS, /* token 7 fills a hole: its name means nothing */
                              "[PAD1]|<0x5B>|<0x50>|<0x41>|<0x44>|<0x37>|<0x5D>|");
            test_token_expect(t.vocab, "<|a|>\n\302\240<unk>\n<s>\n", FG_NO_BOS,
                              phi ? "<|a|>|<unk>|<0x0A>|<s>|<0x0A>|"
                                  : "<|a|>|<0x0A>|<0xC2>|<0xA0>|<unk>|<0x0A>|<s>|<0x0A>|");
        }
        test_vocab_close(&t);
        free(list);
    }
}

/* Among special tokens that begin alike, in no order and some of them twice: the longest that fits, by the table itself. */
static void test_token_specials(void) {
    static const char letters[] = "ab\xff";
    token_list *list = (token_list *)calloc(1, sizeof(*list));
    gguf_writer w;
    test_vocab t;
    char text[8];
    int i, j, n;
    token_list_add(list, "<unk>", FG__TOKEN_UNKNOWN, 0);
    token_list_add_bytes(list, true);
    for (i = 0; i < 60; i++) { /* '#' and up to four letters, by the digits of a number */
        n = (i * 37 + 11) % 60;
        text[0] = '#';
        for (j = 1; n > 0 && j < 5; j++, n /= 4) text[j] = letters[n % 4 % 3];
        text[j] = 0;
        token_list_add(list, text, i % 2 ? FG__TOKEN_CONTROL : FG__TOKEN_USER_DEFINED, 0);
    }
    token_list_begin(list, &w, "llama");
    t = test_vocab_of(&w);
    CHECKF(t.vocab != NULL, "%s", fg_last_error());
    for (i = 0; t.vocab && i < 2 * 243; i++) {
        fg__encoder e;
        int32_t id, found = -1, got;
        size_t length = 0, most = 0;
        memset(&e, 0, sizeof(e));
        e.v = t.vocab;
        e.no_special = i % 2 == 1;
        text[0] = '#';
        for (j = 1, n = i / 2; j < 6; j++, n /= 3) text[j] = letters[n % 3];
        for (id = 0; id < t.vocab->n_tokens; id++) {
            const fg__gguf_string *s = &t.vocab->texts[id];
            bool special = fg__token_is_special(t.vocab, id);
            int32_t first = 0;
            while (t.vocab->texts[first].length != s->length || memcmp(t.vocab->texts[first].data, s->data, s->length) != 0) first++;
            if (first < id) continue; /* the first of a text counts */
            if ((!special && fg__token_type(t.vocab, id) != FG__TOKEN_USER_DEFINED) || (special && e.no_special)) continue;
            if (s->length > most && s->length <= 6 && memcmp(s->data, text, s->length) == 0) found = id, most = s->length;
        }
        got = fg__special_find(&e, text, 6, &length);
        CHECKF(got == found && (got < 0 || length == most), "case %d: token %d of %zu bytes, not %d of %zu", i, (int)got, length, (int)found, most);
    }
    test_vocab_close(&t);
    free(list);
}

/* ---- bad files ---- */

/* Loads a vocabulary that must give this result, with these words in the message. */
static void test_token_bad(gguf_writer *w, fg_result expected, const char *words) {
    test_vocab t = test_vocab_of(w);
    CHECKF(t.result == expected && strstr(fg_last_error(), words), "'%s': %s, '%s'", words, fg_result_name(t.result),
           fg_last_error());
    test_vocab_close(&t);
}

static void test_token_bad_files(void) {
    static const char *const words[3] = {"a", "b", "ab"};
    static const int32_t types[3] = {1, 1, 9};
    const float scores[3] = {0, 1, (float)NAN};
    gguf_writer w;
    gguf_begin(&w);
    test_token_bad(&w, FG_ERROR_BAD_FILE, "tokenizer.ggml.model");
    gguf_add_string(&w, "tokenizer.ggml.model", "bert");
    test_token_bad(&w, FG_ERROR_UNSUPPORTED, "'bert'");
    gguf_add_string(&w, "tokenizer.ggml.model", "gpt2");
    gguf_add_string(&w, "tokenizer.ggml.pre", "martian");
    test_token_bad(&w, FG_ERROR_UNSUPPORTED, "'martian'");
    gguf_add_string(&w, "tokenizer.ggml.model", "llama");
    test_token_bad(&w, FG_ERROR_BAD_FILE, "tokenizer.ggml.tokens");
    gguf_add_string(&w, "tokenizer.ggml.model", "llama");
    gguf_add_f32s(&w, "tokenizer.ggml.tokens", scores, 3);
    test_token_bad(&w, FG_ERROR_BAD_FILE, "tokenizer.ggml.tokens");
    gguf_add_string(&w, "tokenizer.ggml.model", "llama");
    gguf_add_strings(&w, "tokenizer.ggml.tokens", words, 0);
    test_token_bad(&w, FG_ERROR_BAD_FILE, "0 tokens");
    gguf_add_string(&w, "tokenizer.ggml.model", "llama");
    gguf_add_strings(&w, "tokenizer.ggml.tokens", words, 3);
    gguf_add_i32s(&w, "tokenizer.ggml.token_type", types, 2);
    test_token_bad(&w, FG_ERROR_BAD_FILE, "2 items for 3 tokens");
    gguf_add_string(&w, "tokenizer.ggml.model", "llama");
    gguf_add_strings(&w, "tokenizer.ggml.tokens", words, 3);
    gguf_add_u32(&w, "tokenizer.ggml.token_type", 1);
    test_token_bad(&w, FG_ERROR_BAD_FILE, "not an array");
    gguf_add_string(&w, "tokenizer.ggml.model", "llama");
    gguf_add_strings(&w, "tokenizer.ggml.tokens", words, 3);
    gguf_add_i32s(&w, "tokenizer.ggml.token_type", types, 3);
    test_token_bad(&w, FG_ERROR_BAD_FILE, "token_type of token 2");
    gguf_add_string(&w, "tokenizer.ggml.model", "llama");
    gguf_add_strings(&w, "tokenizer.ggml.tokens", words, 3);
    gguf_add_strings(&w, "tokenizer.ggml.token_type", words, 3);
    test_token_bad(&w, FG_ERROR_BAD_FILE, "token_type of token 0");
    gguf_add_string(&w, "tokenizer.ggml.model", "llama");
    gguf_add_strings(&w, "tokenizer.ggml.tokens", words, 3);
    gguf_add_f32s(&w, "tokenizer.ggml.scores", scores, 3);
    test_token_bad(&w, FG_ERROR_BAD_FILE, "scores of token 2");
    gguf_add_string(&w, "tokenizer.ggml.model", "gpt2");
    gguf_add_strings(&w, "tokenizer.ggml.tokens", words, 3);
    test_token_bad(&w, FG_ERROR_BAD_FILE, "tokenizer.ggml.merges");
}

/* Files that are odd but can be used. */
static void test_token_odd_files(void) {
    static const char *const words[] = {"a", "b", "ab", "ab", "", "\377\376", "bc", "<s>", "c"};
    static const char *const merges[] = {"b zz", "a b", "b c", "a b", "bc bc", "ab", ""};
    gguf_writer w;
    test_vocab t;
    gguf_begin(&w);
    gguf_add_string(&w, "tokenizer.ggml.model", "gpt2");
    gguf_add_strings(&w, "tokenizer.ggml.tokens", words, 9);
    gguf_add_strings(&w, "tokenizer.ggml.merges", merges, 7);
    gguf_add_u32(&w, "tokenizer.ggml.bos_token_id", 7);
    gguf_add_u32(&w, "tokenizer.ggml.eos_token_id", 4294967295u);
    gguf_add_i32(&w, "tokenizer.ggml.padding_token_id", -7);
    gguf_add_string(&w, "tokenizer.ggml.add_bos_token", "yes");
    t = test_vocab_of(&w);
    CHECKF(t.vocab != NULL, "%s", fg_last_error());
    if (t.vocab) {
        test_token_expect(t.vocab, "abc\377", 0, "a|bc|"); /* of equal merges the last counts, as for Hugging Face */
        test_token_expect(t.vocab, "a<s>", 0, "a|<s>|");   /* without types BOS is known by its id */
        CHECK(t.vocab->bos == 7 && t.vocab->eos == -1 && t.vocab->pad == -1 && !t.vocab->add_bos);
    }
    test_vocab_close(&t);
    gguf_add_string(&w, "tokenizer.ggml.model", "llama");
    gguf_add_strings(&w, "tokenizer.ggml.tokens", words, 1);
    t = test_vocab_of(&w);
    CHECKF(t.vocab != NULL, "%s", fg_last_error());
    if (t.vocab) {
        CHECK(t.vocab->bos == -1 && t.vocab->eos == -1 && !t.vocab->add_bos);
        test_token_expect(t.vocab, "", 0, "");
    }
    test_vocab_close(&t);
    gguf_add_string(&w, "tokenizer.ggml.model", "llama");
    gguf_add_strings(&w, "tokenizer.ggml.tokens", words, 9);
    gguf_add_u32(&w, "tokenizer.ggml.bos_token_id", 9);
    gguf_add_u32(&w, "tokenizer.ggml.eos_token_id", 4294967295u);
    t = test_vocab_of(&w);
    CHECKF(t.vocab != NULL, "%s", fg_last_error());
    if (t.vocab) CHECK(t.vocab->bos == 1 && t.vocab->eos == 2 && t.vocab->add_bos && fg__vocab_is_end(t.vocab, 2));
    test_vocab_close(&t);
}

/* Ends by what the file says and by the names that families of models give them, whatever their type; bytes by their names. */
static void test_token_names(void) {
    static const char *const names[] = {"<unk>", "<s>", "</s>", "<|eot_id|>", "<|file_sep|>", "<fim_pad>", "<|repo_name|>",
                                        "file_sep", "<|fim_middle|>", "end", "[PAD10]", "<0x0A>"};
    static const int32_t types[] = {2, 3, 3, 3, 3, 1, 4, 1, 3, 1, 1, 1};
    static const bool ends[] = {false, false, true, true, true, true, true, false, false, true, false, false};
    gguf_writer w;
    test_vocab t;
    size_t length;
    int i;
    gguf_begin(&w);
    gguf_add_string(&w, "tokenizer.ggml.model", "llama");
    gguf_add_strings(&w, "tokenizer.ggml.tokens", names, 12);
    gguf_add_i32s(&w, "tokenizer.ggml.token_type", types, 12);
    gguf_add_u32(&w, "tokenizer.ggml.fim_sep_token_id", 9);
    t = test_vocab_of(&w);
    CHECKF(t.vocab != NULL, "%s", fg_last_error());
    if (t.vocab) {
        for (i = 0; i < 12; i++) CHECKF(fg__vocab_is_end(t.vocab, i) == ends[i], "%s", names[i]);
        CHECK(t.vocab->eot == 3 && t.vocab->byte_ids['\n'] == 11);
        CHECK(fg__vocab_piece(t.vocab, 10, true, &length) && length == 0); /* fills a hole: it stands for nothing */
    }
    test_vocab_close(&t);
}

/* <|end|> ends a message, not the turn, where there are channels, whatever the file calls it. */
static void test_token_channels(void) {
    static const char *const names[] = {"<unk>", "<s>", "</s>", "<|start|>", "<|end|>", "<|message|>", "<|call|>", "<|return|>", "<|channel|>"};
    static const bool with[] = {false, false, true, false, false, false, true, true, false}, without[] = {false, false, true, false, true, false, false, false};
    gguf_writer w;
    test_vocab t;
    int n, i;
    for (n = 9; n >= 8; n--) {
        gguf_begin(&w);
        gguf_add_string(&w, "tokenizer.ggml.model", "llama");
        gguf_add_strings(&w, "tokenizer.ggml.tokens", names, (size_t)n);
        gguf_add_u32(&w, "tokenizer.ggml.eot_token_id", 4);
        t = test_vocab_of(&w);
        CHECKF(t.vocab != NULL, "%s", fg_last_error());
        for (i = 0; t.vocab && i < n; i++) CHECKF(fg__vocab_is_end(t.vocab, i) == (n == 9 ? with : without)[i], "%s of %d", names[i], n);
        test_vocab_close(&t);
    }
}

/* Names a token by 40,000 bytes and others by its beginnings: joining them must not take quadratic time or memory. */
static void test_token_huge_tokens(void) {
    enum { LONGEST = 40000 };
    char *name = (char *)malloc(LONGEST + 1), *names[17];
    float scores[17];
    gguf_writer w;
    test_vocab t;
    int32_t *ids;
    size_t count = 0;
    int i, n = 0;
    memset(name, 'a', LONGEST);
    name[LONGEST] = 0;
    for (i = 0; (1 << i) < LONGEST; i++) names[n++] = name + LONGEST - (1 << i);
    names[n++] = name;
    for (i = 0; i < n; i++) scores[i] = (float)i;
    gguf_begin(&w);
    gguf_add_string(&w, "tokenizer.ggml.model", "llama");
    gguf_add_strings(&w, "tokenizer.ggml.tokens", (const char *const *)names, (size_t)n);
    gguf_add_f32s(&w, "tokenizer.ggml.scores", scores, (size_t)n);
    gguf_add_bool(&w, "tokenizer.ggml.add_space_prefix", 0);
    gguf_add_bool(&w, "tokenizer.ggml.add_bos_token", 0);
    gguf_add_i32(&w, "tokenizer.ggml.bos_token_id", -1);
    gguf_add_i32(&w, "tokenizer.ggml.eos_token_id", -1);
    gguf_add_i32(&w, "tokenizer.ggml.unknown_token_id", -1);
    t = test_vocab_of(&w);
    CHECKF(t.vocab != NULL, "%s", fg_last_error());
    if (t.vocab) {
        CHECK(fg__vocab_encode(t.vocab, name, LONGEST, 0, &ids, &count) == FG_OK);
        CHECKF(count == 5 && ids[0] == 15 && ids[4] == 6, "%d tokens", (int)count); /* 40000 = 1001110001000000b */
        fg__free(&t.vocab->env, ids);
    }
    test_vocab_close(&t);
    free(name);
}

/* Every allocation of loading and tokenising fails in turn. */
static void test_token_no_memory(void) {
    static const char text[] = "hello <tool> w\303\251orld e\314\201 123 </s><|im_end|> \343\201\251\343\201\206";
    int kind, i;
    for (kind = 0; kind < 2; kind++) {
        gguf_writer w;
        unsigned char *file;
        size_t size, count;
        if (kind) token_sample_spm(&w, false);
        else token_sample_bpe(&w, "qwen2");
        gguf_finish(&w, &file, &size);
        for (i = 1; i < 1000; i++) {
            fg_allocator allocator = test_allocator(i);
            test_vocab t;
            int32_t *ids = NULL;
            t.file = file;
            test_vocab_load(&t, &allocator, NULL, size);
            if (t.vocab) t.result = fg__vocab_encode(t.vocab, text, sizeof(text) - 1, 0, &ids, &count);
            CHECK(t.result == (test_alloc_failed() ? FG_ERROR_OUT_OF_MEMORY : FG_OK));
            CHECK(t.result == FG_OK ? ids != NULL : ids == NULL && fg_last_error()[0]);
            fg__free(&t.env, ids);
            fg__vocab_free(t.vocab);
            fg__gguf_close(t.gguf);
            CHECK(test_alloc_live() == 0);
            if (!test_alloc_failed()) break;
        }
        CHECKF(i > 15 && i < 1000, "%d allocations", i);
        free(file);
    }
}

/* ---- long texts ---- */

static void test_token_long(void) {
    static const char *const pres[] = {"gpt-2", "llama-bpe", "qwen2", "starcoder", "falcon", "default", "deepseek-llm",
                                       "deepseek-coder", "tekken", "gpt-4o", "qwen35", NULL};
    static const char *const units[] = {"a", " ", "1", "\n", "a ", " \n", "\314\201\314\243", "'s", ".", "\377",
                                        "<|im_end|>", "\343\201\251"};
    enum { LENGTH = 1 << 20 };
    char *text = (char *)malloc(LENGTH + 1);
    int i, j, k;
    text[LENGTH] = 0;
    for (i = 0; i < FG__COUNT(pres); i++) {
        gguf_writer w;
        test_vocab t;
        if (pres[i]) token_sample_bpe(&w, pres[i]);
        else token_sample_spm(&w, false);
        t = test_vocab_of(&w);
        CHECKF(t.vocab != NULL, "%s", fg_last_error());
        for (j = 0; j < FG__COUNT(units) && t.vocab; j++) {
            int length = i % 4 ? LENGTH / 16 : LENGTH, unit = (int)strlen(units[j]);
            int32_t *ids;
            size_t count = 0;
            for (k = 0; k < length; k++) text[k] = units[j][k % unit];
            if (j == 1) text[length - 1] = 'x'; /* white space that does not end the text */
            CHECK(fg__vocab_encode(t.vocab, text, (size_t)length, FG_NO_BOS, &ids, &count) == FG_OK);
            CHECK(count > 1);
            if (i == 0 && j == 0) CHECKF(count == LENGTH / 4, "%d tokens", (int)count);
            fg__free(&t.env, ids);
        }
        test_vocab_close(&t);
    }
    free(text);
}

static size_t test_token_largest; /* allocation of test_token_room */

static void *test_token_realloc(void *pointer, size_t size, void *user) {
    test_token_largest = FG__MAX(test_token_largest, size);
    return test_alloc_realloc(pointer, size, user);
}

/* SentencePiece takes memory by characters: a space alone becomes three bytes. */
static void test_token_room(void) {
    static const char *const units[] = {" ", "\343\201\251", "\360\237\230\200"};
    enum { CHARS = 20000 };
    char *text = (char *)malloc(4 * CHARS);
    fg_allocator allocator = test_allocator(0);
    gguf_writer w;
    test_vocab t;
    size_t size, count;
    int i, k;
    token_sample_spm(&w, false);
    gguf_finish(&w, &t.file, &size);
    allocator.realloc = test_token_realloc;
    test_vocab_load(&t, &allocator, NULL, size);
    for (i = 0; i < FG__COUNT(units) && t.vocab; i++) {
        int32_t *ids = NULL;
        size_t unit = strlen(units[i]);
        for (k = 0; k < CHARS; k++) memcpy(text + (size_t)k * unit, units[i], unit);
        test_token_largest = 0;
        CHECK(fg__vocab_encode(t.vocab, text, CHARS * unit, FG_NO_BOS, &ids, &count) == FG_OK);
        /* two symbols a character; an array has up to twice the room it was asked for */
        CHECKF(test_token_largest <= 4 * CHARS * sizeof(fg__bpe_symbol), "%zu bytes", test_token_largest);
        fg__free(&t.env, ids);
    }
    test_vocab_close(&t);
    CHECK(test_alloc_live() == 0);
    free(text);
}

static void test_token_too_long(void) {
    gguf_writer w;
    test_vocab t;
    int32_t *ids;
    size_t count;
    token_sample_spm(&w, false);
    t = test_vocab_of(&w);
    CHECK(t.vocab && fg__vocab_encode(t.vocab, "", FG__MAX_TEXT + 1, 0, &ids, &count) == FG_ERROR_TOO_LONG);
    test_vocab_close(&t);
}

/* ---- threads ---- */

typedef struct test_token_job {
    const fg__vocab *vocab;
    int wrong;
} test_token_job;

static void test_token_work(void *user) {
    test_token_job *job = (test_token_job *)user;
    int32_t *ids;
    size_t count;
    int i;
    for (i = 0; i < 200; i++) {
        if (fg__vocab_encode(job->vocab, "hello world", 11, 0, &ids, &count) != FG_OK) job->wrong++;
        else if (count != 3) job->wrong++;
        fg__free(&job->vocab->env, ids);
    }
}

static void test_token_threads(void) {
    fg__thread threads[4];
    test_token_job jobs[4];
    bool started[4];
    gguf_writer w;
    test_vocab t;
    int i;
    token_sample_bpe(&w, "gpt-2");
    t = test_vocab_of(&w);
    for (i = 0; i < 4; i++) {
        jobs[i].vocab = t.vocab;
        jobs[i].wrong = 0;
        started[i] = fg__thread_start(&threads[i], test_token_work, &jobs[i]);
    }
    for (i = 0; i < 4; i++) {
        if (started[i]) fg__thread_join(&threads[i]);
        CHECK(jobs[i].wrong == 0);
    }
    test_vocab_close(&t);
}

/* ---- real vocabularies ---- */

static char *test_token_read(const char *name, const char *suffix, size_t *length) {
    char path[256];
    FILE *file;
    char *text = (char *)malloc(1 << 16);
    snprintf(path, sizeof(path), "../shared/tokenizers/ggml-vocab-%s.gguf%s", name, suffix);
    file = fopen(path, "rb");
    *length = file ? fread(text, 1, (1 << 16) - 1, file) : 0;
    text[*length] = 0;
    if (file) fclose(file);
    return text;
}

/* Compares ids with a line "1 2 3\n" and returns what follows the line. */
static const char *test_token_compare(const char *line, const int32_t *ids, size_t count, const char *text) {
    size_t i;
    bool same = true;
    char *end;
    for (i = 0; *line && *line != '\n'; i++, line = end + strspn(end, " ")) {
        long expected = strtol(line, &end, 10);
        same = same && i < count && ids[i] == expected;
    }
    CHECKF(same && i == count, "'%s': %d ids, not %d", text, (int)count, (int)i);
    return line + (*line == '\n');
}

/* Each input of NAME.gguf.inp gives the ids on its line of NAME.gguf.out, and they give the input. */
static void test_token_file(const char *name) {
    static const char separator[] = "\n__ggml_vocab_test__\n";
    size_t length;
    char path[256], *inputs = test_token_read(name, ".inp", &length), *outputs = test_token_read(name, ".out", &length);
    char *text = inputs, *next;
    const char *line = outputs;
    test_vocab t;
    int n = 0;
    snprintf(path, sizeof(path), "../shared/tokenizers/ggml-vocab-%s.gguf", name);
    t.file = NULL;
    test_vocab_load(&t, NULL, path, 0);
    CHECKF(t.vocab != NULL, "%s", fg_last_error());
    for (; text && t.vocab; text = next, n++) {
        unsigned flags;
        next = strstr(text, separator);
        if (next) {
            *next = 0;
            next += sizeof(separator) - 1;
        } else if (!*text || strcmp(text, "\n") == 0) break; /* the end of the file */
        for (flags = 0; flags <= FG_NO_SPECIAL; flags += FG_NO_SPECIAL) {
            int32_t *ids;
            size_t count;
            const char *after;
            CHECK(fg__vocab_encode(t.vocab, text, strlen(text), flags | FG_NO_BOS, &ids, &count) == FG_OK);
            after = test_token_compare(line, ids, count, text);
            if (flags) line = after;
            fg__free(&t.env, ids);
        }
        test_token_round_trip(t.vocab, text, strlen(text));
    }
    CHECKF(n > 40 && !*line, "%d inputs", n);
    test_vocab_close(&t);
    free(inputs);
    free(outputs);
}

static bool test_token_have(const char *name) {
    size_t length;
    free(test_token_read(name, ".out", &length));
    return length > 0;
}

static void test_token_llama_spm(void) {
    if (!test_token_have("llama-spm")) SKIP("no ../shared/tokenizers");
    test_token_file("llama-spm");
}

static void test_token_phi_3(void) {
    if (!test_token_have("phi-3")) SKIP("no ../shared/tokenizers");
    test_token_file("phi-3");
}

static void test_token_gpt_2(void) {
    if (!test_token_have("gpt-2")) SKIP("no ../shared/tokenizers");
    test_token_file("gpt-2");
}

static void test_token_deepseek_coder(void) {
    if (!test_token_have("deepseek-coder")) SKIP("no ../shared/tokenizers");
    test_token_file("deepseek-coder");
}

static void run_token_tests(void) {
    RUN(test_token_classes);
    RUN(test_token_nfc);
    RUN(test_token_stream);
    RUN(test_token_strip_space);
    RUN(test_token_words);
    RUN(test_token_bpe);
    RUN(test_token_bpe_ignore_merges);
    RUN(test_token_spm);
    RUN(test_token_spm_settings);
    RUN(test_token_special);
    RUN(test_token_specials);
    RUN(test_token_bad_files);
    RUN(test_token_odd_files);
    RUN(test_token_names);
    RUN(test_token_channels);
    RUN(test_token_huge_tokens);
    RUN(test_token_no_memory);
    RUN(test_token_long);
    RUN(test_token_room);
    RUN(test_token_too_long);
    RUN(test_token_threads);
    RUN(test_token_llama_spm);
    RUN(test_token_phi_3);
    RUN(test_token_gpt_2);
    RUN(test_token_deepseek_coder);
}
