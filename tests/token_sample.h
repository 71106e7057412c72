/* Small vocabularies of both kinds, in memory: for tests and fuzzers. */
#ifndef TOKEN_SAMPLE_H
#define TOKEN_SAMPLE_H

#include "gguf_writer.h"

#define TOKEN_LIST_MAX 640

/* The tokens of a vocabulary that is being made. */
typedef struct token_list {
    char texts[TOKEN_LIST_MAX][64];
    const char *pointers[TOKEN_LIST_MAX];
    int32_t types[TOKEN_LIST_MAX];
    float scores[TOKEN_LIST_MAX];
    size_t n;
} token_list;

static int token_list_add(token_list *list, const char *text, int type, float score) {
    snprintf(list->texts[list->n], sizeof(list->texts[0]), "%s", text);
    list->pointers[list->n] = list->texts[list->n];
    list->types[list->n] = type;
    list->scores[list->n] = score;
    return (int)list->n++;
}

/* The 256 tokens of single bytes: <0xXX>, or byte-level BPE's characters. */
static void token_list_add_bytes(token_list *list, bool spm) {
    char text[16];
    unsigned byte;
    for (byte = 0; byte < 256; byte++) {
        if (spm) snprintf(text, sizeof(text), "<0x%02X>", byte);
        else text[fg__utf8_encode(fg__byte_to_char(byte), text)] = 0;
        token_list_add(list, text, spm ? FG__TOKEN_BYTE : FG__TOKEN_NORMAL, 0);
    }
}

/* Starts a file with these tokens. */
static void token_list_begin(const token_list *list, gguf_writer *w, const char *model) {
    gguf_begin(w);
    gguf_add_string(w, "tokenizer.ggml.model", model);
    gguf_add_strings(w, "tokenizer.ggml.tokens", list->pointers, list->n);
    gguf_add_i32s(w, "tokenizer.ggml.token_type", list->types, list->n);
    if (strcmp(model, "llama") == 0) gguf_add_f32s(w, "tokenizer.ggml.scores", list->scores, list->n);
}

/* Byte-level BPE: 0 <|bos|>, 1 <|im_end|>, 2 "<tool>" (user defined), 3.. the bytes, 259.. joined ones. A space is
   \304\240. */
static void token_sample_bpe(gguf_writer *w, const char *pre) {
    static const char *const merges[] = {"h e", "l l", "he ll", "hell o", "\304\240 w", "o r", "\304\240w or", "l d",
                                         "1 2", "12 3", "\303\203 \302\251", "a a", "aa aa", "' s", "in g"};
    token_list *list = (token_list *)calloc(1, sizeof(*list));
    char text[32];
    size_t i;
    token_list_add(list, "<|bos|>", FG__TOKEN_CONTROL, 0);
    token_list_add(list, "<|im_end|>", FG__TOKEN_CONTROL, 0);
    token_list_add(list, "<tool>", FG__TOKEN_USER_DEFINED, 0);
    token_list_add_bytes(list, false);
    for (i = 0; i < sizeof(merges) / sizeof(merges[0]); i++) {
        const char *space = strchr(merges[i], ' ');
        if (strcmp(merges[i], "in g") == 0) continue; /* a merge of a token that is not there */
        snprintf(text, sizeof(text), "%.*s%s", (int)(space - merges[i]), merges[i], space + 1);
        token_list_add(list, text, FG__TOKEN_NORMAL, 0);
    }
    token_list_begin(list, w, "gpt2");
    gguf_add_string(w, "tokenizer.ggml.pre", pre);
    gguf_add_strings(w, "tokenizer.ggml.merges", merges, sizeof(merges) / sizeof(merges[0]));
    gguf_add_u32(w, "tokenizer.ggml.bos_token_id", 0);
    gguf_add_u32(w, "tokenizer.ggml.eos_token_id", 1);
    free(list);
}

/* SentencePiece: 0 <unk>, 1 <s>, 2 </s>, 3 "<tool>" (user defined), the bytes unless `no_bytes`, letters and joined
   ones. U+2581 is \342\226\201. */
static void token_sample_spm(gguf_writer *w, bool no_bytes) {
    static const char *const joined[] = {
        "\342\226\201he", "ll", "llo", "lo", "\342\226\201hello", "\342\226\201\342\226\201", "\342\226\201w",
        "or", "ld", "ab", "bc", "aa", "aaaa", "\303\251t"};
    token_list *list = (token_list *)calloc(1, sizeof(*list));
    char letter[2] = {0, 0};
    size_t i;
    token_list_add(list, "<unk>", FG__TOKEN_UNKNOWN, 0);
    token_list_add(list, "<s>", FG__TOKEN_CONTROL, 0);
    token_list_add(list, "</s>", FG__TOKEN_CONTROL, 0);
    token_list_add(list, "<tool>", FG__TOKEN_USER_DEFINED, 0);
    if (!no_bytes) token_list_add_bytes(list, true);
    for (i = 0; i < sizeof(joined) / sizeof(joined[0]); i++)
        token_list_add(list, joined[i], FG__TOKEN_NORMAL, -(float)(i + 1));
    token_list_add(list, "bcd", FG__TOKEN_UNUSED, -0.5f);
    token_list_add(list, "\342\226\201h", FG__TOKEN_NORMAL, -0.25f);
    token_list_add(list, "\342\226\201", FG__TOKEN_NORMAL, -100);
    for (letter[0] = 'a'; letter[0] <= 'z'; letter[0]++) token_list_add(list, letter, FG__TOKEN_NORMAL, -200);
    token_list_begin(list, w, "llama");
    free(list);
}

#endif
