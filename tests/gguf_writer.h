/* Makes GGUF files in memory, for tests.

       gguf_writer w;
       unsigned char *file;
       size_t size;
       int64_t dims[2] = {64, 8};                                  // dims[0] is the contiguous one
       gguf_begin(&w);                                             // version 3, alignment 32
       gguf_add_string(&w, "general.architecture", "llama");
       gguf_add_u32(&w, "llama.block_count", 2);
       gguf_add_strings(&w, "tokenizer.ggml.tokens", words, n);    // words: const char *const[n]
       gguf_add_f32s(&w, "tokenizer.ggml.scores", scores, n);
       gguf_add_tensor(&w, "token_embd.weight", 0, 2, dims, data, 64 * 8 * sizeof(float));
       gguf_finish(&w, &file, &size);                              // now the writer is empty again
       ... free(file);

   Right after gguf_begin, w.version = 2 or gguf_set_alignment(&w, 64) change the defaults. Tensor types are GGML type
   ids (FG_TYPE_... or 0 for F32). Nothing is checked, so that tests can make bad files too. Running out of memory ends
   the program. Texts are zero-terminated; gguf_add_string_n takes any bytes. */
#ifndef GGUF_WRITER_H
#define GGUF_WRITER_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    GGUF_U8, GGUF_I8, GGUF_U16, GGUF_I16, GGUF_U32, GGUF_I32, GGUF_F32, GGUF_BOOL, GGUF_STRING, GGUF_ARRAY, GGUF_U64,
    GGUF_I64, GGUF_F64
};

typedef struct gguf_bytes {
    unsigned char *data;
    size_t size, capacity;
} gguf_bytes;

typedef struct gguf_writer {
    uint32_t version, alignment;
    uint64_t n_values, n_tensors;
    gguf_bytes values, infos, data; /* the file's parts after its header */
} gguf_writer;

static void gguf_put(gguf_bytes *to, const void *data, size_t size) {
    if (to->size + size > to->capacity) {
        to->capacity = (to->size + size) * 2;
        to->data = (unsigned char *)realloc(to->data, to->capacity);
        if (!to->data) {
            fprintf(stderr, "gguf_writer: out of memory\n");
            exit(2);
        }
    }
    if (size) memcpy(to->data + to->size, data, size);
    to->size += size;
}

/* The low `bytes` bytes of `value`, little-endian. */
static void gguf_put_int(gguf_bytes *to, uint64_t value, int bytes) {
    unsigned char b[8];
    int i;
    for (i = 0; i < bytes; i++) b[i] = (unsigned char)(value >> (8 * i));
    gguf_put(to, b, (size_t)bytes);
}

static void gguf_put_f32(gguf_bytes *to, float value) {
    uint32_t bits;
    memcpy(&bits, &value, 4);
    gguf_put_int(to, bits, 4);
}

static void gguf_put_text(gguf_bytes *to, const char *text, size_t length) {
    gguf_put_int(to, length, 8);
    gguf_put(to, text, length);
}

static void gguf_pad(gguf_bytes *to, size_t alignment) {
    while (alignment && to->size % alignment) gguf_put(to, "", 1);
}

static void gguf_begin(gguf_writer *w) {
    memset(w, 0, sizeof(*w));
    w->version = 3;
    w->alignment = 32;
}

/* Starts a value by hand: its key and type. The caller then puts the value itself into w->values. */
static void gguf_add_key(gguf_writer *w, const char *key, uint32_t type) {
    gguf_put_text(&w->values, key, strlen(key));
    gguf_put_int(&w->values, type, 4);
    w->n_values++;
}

/* Starts an array: the caller then puts `count` items into w->values. */
static void gguf_add_array(gguf_writer *w, const char *key, uint32_t item_type, uint64_t count) {
    gguf_add_key(w, key, GGUF_ARRAY);
    gguf_put_int(&w->values, item_type, 4);
    gguf_put_int(&w->values, count, 8);
}

static void gguf_add_int(gguf_writer *w, const char *key, uint32_t type, uint64_t value, int bytes) {
    gguf_add_key(w, key, type);
    gguf_put_int(&w->values, value, bytes);
}

static void gguf_add_u8(gguf_writer *w, const char *key, uint8_t v) { gguf_add_int(w, key, GGUF_U8, v, 1); }
static void gguf_add_i8(gguf_writer *w, const char *key, int8_t v) { gguf_add_int(w, key, GGUF_I8, (uint64_t)v, 1); }
static void gguf_add_u16(gguf_writer *w, const char *key, uint16_t v) { gguf_add_int(w, key, GGUF_U16, v, 2); }
static void gguf_add_i16(gguf_writer *w, const char *key, int16_t v) { gguf_add_int(w, key, GGUF_I16, (uint64_t)v, 2); }
static void gguf_add_u32(gguf_writer *w, const char *key, uint32_t v) { gguf_add_int(w, key, GGUF_U32, v, 4); }
static void gguf_add_i32(gguf_writer *w, const char *key, int32_t v) { gguf_add_int(w, key, GGUF_I32, (uint64_t)v, 4); }
static void gguf_add_u64(gguf_writer *w, const char *key, uint64_t v) { gguf_add_int(w, key, GGUF_U64, v, 8); }
static void gguf_add_i64(gguf_writer *w, const char *key, int64_t v) { gguf_add_int(w, key, GGUF_I64, (uint64_t)v, 8); }
static void gguf_add_bool(gguf_writer *w, const char *key, int v) { gguf_add_int(w, key, GGUF_BOOL, v ? 1 : 0, 1); }

static void gguf_add_f32(gguf_writer *w, const char *key, float v) {
    gguf_add_key(w, key, GGUF_F32);
    gguf_put_f32(&w->values, v);
}

static void gguf_add_f64(gguf_writer *w, const char *key, double v) {
    uint64_t bits;
    memcpy(&bits, &v, 8);
    gguf_add_int(w, key, GGUF_F64, bits, 8);
}

static void gguf_add_string_n(gguf_writer *w, const char *key, const char *text, size_t length) {
    gguf_add_key(w, key, GGUF_STRING);
    gguf_put_text(&w->values, text, length);
}

static void gguf_add_string(gguf_writer *w, const char *key, const char *text) {
    gguf_add_string_n(w, key, text, strlen(text));
}

static void gguf_add_strings(gguf_writer *w, const char *key, const char *const *texts, size_t count) {
    size_t i;
    gguf_add_array(w, key, GGUF_STRING, count);
    for (i = 0; i < count; i++) gguf_put_text(&w->values, texts[i], strlen(texts[i]));
}

static void gguf_add_f32s(gguf_writer *w, const char *key, const float *items, size_t count) {
    size_t i;
    gguf_add_array(w, key, GGUF_F32, count);
    for (i = 0; i < count; i++) gguf_put_f32(&w->values, items[i]);
}

static void gguf_add_i32s(gguf_writer *w, const char *key, const int32_t *items, size_t count) {
    size_t i;
    gguf_add_array(w, key, GGUF_I32, count);
    for (i = 0; i < count; i++) gguf_put_int(&w->values, (uint64_t)items[i], 4);
}

static void gguf_add_u32s(gguf_writer *w, const char *key, const uint32_t *items, size_t count) {
    size_t i;
    gguf_add_array(w, key, GGUF_U32, count);
    for (i = 0; i < count; i++) gguf_put_int(&w->values, items[i], 4);
}

static void gguf_add_u8s(gguf_writer *w, const char *key, const uint8_t *items, size_t count) {
    gguf_add_array(w, key, GGUF_U8, count);
    gguf_put(&w->values, items, count);
}

static void gguf_set_alignment(gguf_writer *w, uint32_t alignment) {
    w->alignment = alignment;
    gguf_add_u32(w, "general.alignment", alignment);
}

/* Only the entry in the list of tensors, with any offset; gguf_add_tensor is the usual call. */
static void gguf_add_tensor_info(gguf_writer *w, const char *name, uint32_t type, int n_dims, const int64_t *dims,
                                 uint64_t offset) {
    int i;
    gguf_put_text(&w->infos, name, strlen(name));
    gguf_put_int(&w->infos, (uint64_t)n_dims, 4);
    for (i = 0; i < n_dims; i++) gguf_put_int(&w->infos, (uint64_t)dims[i], 8);
    gguf_put_int(&w->infos, type, 4);
    gguf_put_int(&w->infos, offset, 8);
    w->n_tensors++;
}

/* `data`: the tensor as it lies in the file, `bytes` long. */
static void gguf_add_tensor(gguf_writer *w, const char *name, uint32_t type, int n_dims, const int64_t *dims,
                            const void *data, size_t bytes) {
    gguf_pad(&w->data, w->alignment);
    gguf_add_tensor_info(w, name, type, n_dims, dims, w->data.size);
    gguf_put(&w->data, data, bytes);
}

/* Joins the parts into one file, which the caller frees with free(), and empties the writer. */
static void gguf_finish(gguf_writer *w, unsigned char **file, size_t *size) {
    gguf_bytes all;
    memset(&all, 0, sizeof(all));
    gguf_put(&all, "GGUF", 4);
    gguf_put_int(&all, w->version, 4);
    gguf_put_int(&all, w->n_tensors, 8);
    gguf_put_int(&all, w->n_values, 8);
    gguf_put(&all, w->values.data, w->values.size);
    gguf_put(&all, w->infos.data, w->infos.size);
    if (w->n_tensors) gguf_pad(&all, w->alignment);
    gguf_put(&all, w->data.data, w->data.size);
    free(w->values.data);
    free(w->infos.data);
    free(w->data.data);
    gguf_begin(w);
    *file = all.data;
    *size = all.size;
}

/* Writes `size` bytes to a file; 0 when that fails. */
static inline int gguf_save(const char *path, const unsigned char *file, size_t size) {
    FILE *out = fopen(path, "wb");
    int ok = out && fwrite(file, 1, size, out) == size;
    if (out && fclose(out) != 0) ok = 0;
    return ok;
}

#endif
