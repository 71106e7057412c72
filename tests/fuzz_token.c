/* libFuzzer target: tokenises the input with small vocabularies of both kinds, or takes it for a vocabulary of its own.

       clang -g -O1 -fsanitize=fuzzer,address,undefined tests/fuzz_token.c -o build/fuzz_token -lm
       build/fuzz_token -max_total_time=60 -max_len=4096

   The first byte says what to do, the second gives the flags. Checked are the round trip, that streams give whole
   characters and the same for any cut, and that all ids are tokens. */
#define FASTGEN_IMPLEMENTATION
#include "../fastgen.h"

#include "token_sample.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static fg__env fuzz_env;

static void fuzz_require(bool condition) {
    if (!condition) abort();
}

/* The vocabulary that `w` writes; its file is left allocated, as the vocabulary points into it. */
static fg__vocab *fuzz_load(gguf_writer *w, fg__gguf **gguf, unsigned char **file) {
    fg__vocab *vocab = NULL;
    size_t size;
    gguf_finish(w, file, &size);
    if (fg__gguf_open(&fuzz_env, NULL, *file, size, false, gguf) == FG_OK) fg__vocab_load(&fuzz_env, *gguf, &vocab);
    return vocab;
}

/* One of the built-in vocabularies, loaded once. */
static const fg__vocab *fuzz_vocab(unsigned which) {
    static fg__vocab *vocabs[FG__COUNT(fg__pretokenizers) + 3];
    static fg__gguf *ggufs[FG__COUNT(fg__pretokenizers) + 3];
    static unsigned char *files[FG__COUNT(fg__pretokenizers) + 3];
    unsigned kinds = (unsigned)FG__COUNT(fg__pretokenizers);
    gguf_writer w;
    which %= kinds + 3;
    if (!vocabs[which]) {
        if (which < kinds) token_sample_bpe(&w, fg__pretokenizers[which].name);
        else token_sample_spm(&w, which == kinds + 1);
        if (which == kinds + 2) gguf_add_bool(&w, "tokenizer.ggml.remove_extra_whitespaces", 1);
        vocabs[which] = fuzz_load(&w, &ggufs[which], &files[which]);
        fuzz_require(vocabs[which] != NULL);
    }
    return vocabs[which];
}

/* Tokens back to text, `step` bytes at a time. */
static fg__text fuzz_decode(const fg__vocab *v, const int32_t *ids, size_t count, size_t step) {
    fg__utf8 stream;
    fg__text out;
    size_t i, j, length;
    memset(&stream, 0, sizeof(stream));
    memset(&out, 0, sizeof(out));
    out.env = &fuzz_env;
    stream.strip_space = v->add_space;
    for (i = 0; i < count; i++) {
        const char *piece = fg__vocab_piece(v, ids[i], true, &length);
        fuzz_require(ids[i] >= 0 && ids[i] < v->n_tokens);
        for (j = 0; j < length; j += step) fg__utf8_push(&stream, piece + j, FG__MIN(step, length - j), &out);
    }
    fg__utf8_flush(&stream, &out);
    return out;
}

static bool fuzz_is_utf8(const char *text, size_t length) {
    size_t at = 0;
    while (at < length) {
        int n = fg__utf8_measure(text + at, length - at);
        if (n <= 0) return false;
        at += (size_t)n;
    }
    return true;
}

static void fuzz_text(const fg__vocab *v, const char *text, size_t size, unsigned flags, bool exact) {
    int32_t *ids;
    size_t count;
    fg__text whole, bytes;
    fuzz_require(fg__vocab_encode(v, text, size, flags, &ids, &count) == FG_OK);
    whole = fuzz_decode(v, ids, count, SIZE_MAX / 2);
    bytes = fuzz_decode(v, ids, count, 1);
    fuzz_require(whole.length == bytes.length && (!whole.length || !memcmp(whole.data, bytes.data, whole.length)));
    fuzz_require(!whole.length || fuzz_is_utf8(whole.data, whole.length));
    if (exact) fuzz_require(whole.length == size && (!size || !memcmp(whole.data, text, size)));
    fg__text_free(&whole);
    fg__text_free(&bytes);
    fg__free(&fuzz_env, ids);
}

/* Makes a vocabulary of the input: tokens end with a zero byte, and so do merges. */
static void fuzz_file(const uint8_t *data, size_t size, unsigned kind) {
    gguf_writer w;
    gguf_bytes tokens, merges;
    fg__gguf *gguf = NULL;
    fg__vocab *vocab;
    unsigned char *file;
    size_t i, start = 0, n = 0;
    memset(&tokens, 0, sizeof(tokens));
    memset(&merges, 0, sizeof(merges));
    gguf_begin(&w);
    gguf_add_string(&w, "tokenizer.ggml.model", kind & 1 ? "llama" : "gpt2");
    gguf_add_string(&w, "general.name", kind & 2 ? "phi3" : "");
    for (i = 0; i < size; i++) {
        if (data[i]) continue;
        gguf_put_text(n % 2 ? &merges : &tokens, (const char *)data + start, i - start);
        start = i + 1;
        n++;
    }
    gguf_add_array(&w, "tokenizer.ggml.tokens", GGUF_STRING, (n + 1) / 2);
    gguf_put(&w.values, tokens.data, tokens.size);
    gguf_add_array(&w, "tokenizer.ggml.merges", GGUF_STRING, n / 2);
    gguf_put(&w.values, merges.data, merges.size);
    if (kind & 4) {
        gguf_add_array(&w, "tokenizer.ggml.token_type", GGUF_I8, (n + 1) / 2);
        for (i = 0; i < (n + 1) / 2; i++) gguf_put_int(&w.values, i % 7, 1);
    }
    if (kind & 8) {
        gguf_add_array(&w, "tokenizer.ggml.scores", GGUF_I8, (n + 1) / 2);
        gguf_put(&w.values, data, (n + 1) / 2);
    }
    vocab = fuzz_load(&w, &gguf, &file);
    if (vocab) fuzz_text(vocab, (const char *)data, size, 0, false);
    fg__vocab_free(vocab);
    fg__gguf_close(gguf);
    free(tokens.data);
    free(merges.data);
    free(file);
}

/* Whether SentencePiece keeps the text: it does not tell U+2581 from a space and adds one behind special tokens. */
static bool fuzz_is_plain(const char *text, size_t size) {
    size_t i;
    for (i = 0; i < size; i++)
        if (text[i] == '<' || (size - i >= 3 && memcmp(text + i, FG__SPACE_MARK, 3) == 0)) return false;
    return true;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    const fg__vocab *v;
    const char *text;
    bool exact;
    fuzz_env = fg__env_make(NULL, NULL, NULL);
    if (size < 2) return 0;
    if (data[0] >= 192) {
        fuzz_file(data + 2, size - 2, data[1]);
        return 0;
    }
    v = fuzz_vocab(data[0]);
    text = (const char *)data + 2;
    exact = fuzz_is_utf8(text, size - 2) && (!v->add_bos || (data[1] & FG_NO_BOS));
    if (v->spm) exact = exact && fuzz_is_plain(text, size - 2) && !v->squeeze_spaces && v->byte_ids[0] >= 0;
    else exact = exact && !(v->pre->flags & FG__PRE_NFC);
    fuzz_text(v, text, size - 2, data[1] & (FG_NO_BOS | FG_NO_SPECIAL), exact);
    return 0;
}
