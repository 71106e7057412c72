/* A small GGUF file with one of everything, and a walk that reads all of an opened file: for tests and fuzzers. */
#ifndef GGUF_SAMPLE_H
#define GGUF_SAMPLE_H

#include "gguf_writer.h"

static void gguf_add_sample_tensor(gguf_writer *w, const char *name, fg_type type, int n_dims, int64_t a, int64_t b) {
    unsigned char data[1024];
    int64_t dims[2];
    size_t i, bytes = (size_t)fg_type_bytes(type, a * b);
    dims[0] = a;
    dims[1] = b;
    for (i = 0; i < sizeof(data); i++) data[i] = (unsigned char)(i * 7 + 1);
    gguf_add_tensor(w, name, (uint32_t)type, n_dims, dims, data, bytes);
}

static void gguf_sample(uint32_t version, unsigned char **file, size_t *size) {
    static const char *const words[3] = {"one", "", "three \xE2\x82\xAC"};
    static const float floats[3] = {0.5f, -1.0f, 1e30f};
    static const int32_t ints[3] = {1, -2, 2147483647};
    static const uint32_t uints[2] = {7, 4294967295u};
    static const uint8_t bytes[3] = {0, 1, 255};
    gguf_writer w;
    gguf_begin(&w);
    w.version = version;
    gguf_add_string(&w, "general.architecture", "sample");
    gguf_set_alignment(&w, 64);
    gguf_add_u8(&w, "number.u8", 200);
    gguf_add_i8(&w, "number.i8", -100);
    gguf_add_u16(&w, "number.u16", 60000);
    gguf_add_i16(&w, "number.i16", -30000);
    gguf_add_u32(&w, "number.u32", 4000000000u);
    gguf_add_i32(&w, "number.i32", -2000000000);
    gguf_add_u64(&w, "number.u64", 1ull << 63);
    gguf_add_i64(&w, "number.i64", -(1ll << 62));
    gguf_add_f32(&w, "number.f32", 1.5f);
    gguf_add_f64(&w, "number.f64", 0.1);
    gguf_add_bool(&w, "truth", 1);
    gguf_add_string_n(&w, "text", "a\0b", 3);
    gguf_add_strings(&w, "list.words", words, 3);
    gguf_add_f32s(&w, "list.floats", floats, 3);
    gguf_add_i32s(&w, "list.ints", ints, 3);
    gguf_add_u32s(&w, "list.uints", uints, 2);
    gguf_add_u8s(&w, "list.bytes", bytes, 3);
    gguf_add_strings(&w, "list.nothing", words, 0);
    gguf_add_sample_tensor(&w, "matrix", FG_TYPE_F32, 2, 4, 3);
    gguf_add_sample_tensor(&w, "half", FG_TYPE_F16, 1, 5, 1);
    gguf_add_sample_tensor(&w, "number", FG_TYPE_F32, 0, 1, 1);
    gguf_add_sample_tensor(&w, "blocks", FG_TYPE_Q4_0, 2, 64, 2);
    gguf_add_sample_tensor(&w, "superblock", FG_TYPE_Q4_K, 1, 256, 1);
    gguf_finish(&w, file, size);
}

static uint64_t gguf_walk_value(const fg__gguf *gguf, const fg__gguf_value *value) {
    uint64_t sum = 0, i, j;
    int64_t integer;
    double number;
    bool truth;
    fg__gguf_string text;
    for (i = 0; i < value->count; i++) {
        if (fg__gguf_item_i64(value, i, &integer)) sum += (uint64_t)integer;
        if (fg__gguf_item_f64(value, i, &number)) sum += number > 0;
        for (j = 0; value->strings && j < value->strings[i].length; j++) sum += (uint64_t)value->strings[i].data[j];
    }
    if (fg__gguf_get_i64(gguf, value->key.data, &integer)) sum += (uint64_t)integer;
    if (fg__gguf_get_f64(gguf, value->key.data, &number)) sum += number > 0;
    if (fg__gguf_get_bool(gguf, value->key.data, &truth)) sum += truth;
    if (fg__gguf_get_string(gguf, value->key.data, &text)) sum += text.length;
    return sum + (fg__gguf_find(gguf, value->key.data) == value ? 0 : 1);
}

/* Reads the tensor's first and last byte and expands its first block. */
static uint64_t gguf_walk_tensor(const fg__gguf *gguf, const fg_tensor *tensor) {
    const unsigned char *bytes = (const unsigned char *)tensor->data;
    float block[256];
    int64_t n = tensor->dims[0] % 256 == 0 ? 256 : tensor->dims[0] % 32 == 0 ? 32 : 1;
    uint64_t sum = (uint64_t)bytes[0] + bytes[tensor->bytes - 1] + strlen(tensor->name);
    if (fg_dequantize(tensor->type, bytes, block, n) == FG_OK) sum += block[n - 1] > 0;
    return sum + (fg__gguf_find_tensor(gguf, tensor->name) == tensor ? 0 : 1);
}

/* Reads all there is in the file through every function that does. The sum is there so that no read is left out. */
static uint64_t gguf_walk(const fg__gguf *gguf) {
    uint64_t sum = 0;
    int i;
    for (i = 0; i < fg__gguf_value_count(gguf); i++) sum += gguf_walk_value(gguf, fg__gguf_value_at(gguf, i));
    for (i = 0; i < fg__gguf_tensor_count(gguf); i++) sum += gguf_walk_tensor(gguf, fg__gguf_tensor_at(gguf, i));
    return sum;
}

#endif
