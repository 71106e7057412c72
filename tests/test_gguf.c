/* Tests of >>gguf: good files read back, bad files give an error and nothing else. */
#include "gguf_sample.h"
#include "test_alloc.h"

/* Opens a copy that ends where its memory does, so that sanitizers see every read past it, and reads all of it. */
static fg_result test_gguf_try(const unsigned char *file, size_t size) {
    static volatile uint64_t sink;
    fg__env env = fg__env_make(NULL, NULL, NULL);
    unsigned char *copy = (unsigned char *)malloc(size ? size : 1);
    fg__gguf *gguf;
    fg_result result;
    if (size) memcpy(copy, file, size);
    fg__error_text[0] = 0;
    result = fg__gguf_open(&env, NULL, copy, size, false, &gguf);
    if (result == FG_OK) sink = gguf_walk(gguf);
    CHECK((gguf != NULL) == (result == FG_OK));
    CHECK(result == FG_OK || fg_last_error()[0]);
    fg__gguf_close(gguf);
    free(copy);
    (void)sink;
    return result;
}

/* Finishes the file and checks that it gives this result and a message with these words. */
static void test_gguf_expect(gguf_writer *w, fg_result expected, const char *words) {
    unsigned char *file;
    size_t size;
    fg_result result;
    gguf_finish(w, &file, &size);
    result = test_gguf_try(file, size);
    CHECKF(result == expected && strstr(fg_last_error(), words), "'%s': %s, '%s'", words, fg_result_name(result),
           fg_last_error());
    free(file);
}

static bool test_gguf_same(fg__gguf_string string, const char *text, size_t length) {
    return string.length == length && memcmp(string.data, text, length) == 0;
}

static void test_gguf_check_scalars(const fg__gguf *gguf) {
    static const char *const keys[] = {"u8", "i8", "u16", "i16", "u32", "i32", "i64"};
    static const int64_t values[] = {200, -100, 60000, -30000, 4000000000ll, -2000000000, -(1ll << 62)};
    char key[32];
    int64_t integer = 0;
    double number = 0;
    bool truth = false;
    fg__gguf_string text;
    int i;
    for (i = 0; i < FG__COUNT(keys); i++) {
        snprintf(key, sizeof(key), "number.%s", keys[i]);
        CHECKF(fg__gguf_get_i64(gguf, key, &integer) && integer == values[i], "%s", key);
        CHECKF(fg__gguf_get_f64(gguf, key, &number) && number == (double)values[i], "%s", key);
        CHECK(!fg__gguf_get_bool(gguf, key, &truth) && !fg__gguf_get_string(gguf, key, &text));
    }
    CHECK(!fg__gguf_get_i64(gguf, "number.u64", &integer)); /* 2^63 does not fit */
    CHECK(fg__gguf_get_f64(gguf, "number.f32", &number) && number == 1.5);
    CHECK(fg__gguf_get_f64(gguf, "number.f64", &number) && number == 0.1);
    CHECK(!fg__gguf_get_i64(gguf, "number.f32", &integer) && !fg__gguf_get_i64(gguf, "number.f64", &integer));
    CHECK(fg__gguf_get_bool(gguf, "truth", &truth) && truth);
    CHECK(fg__gguf_get_i64(gguf, "truth", &integer) && integer == 1);
    CHECK(!fg__gguf_get_f64(gguf, "truth", &number));
    CHECK(fg__gguf_get_string(gguf, "text", &text) && test_gguf_same(text, "a\0b", 3));
    CHECK(!fg__gguf_get_i64(gguf, "text", &integer) && !fg__gguf_get_f64(gguf, "text", &number));
    CHECK(!fg__gguf_get_i64(gguf, "absent", &integer) && !fg__gguf_find(gguf, "number") && !fg__gguf_find(gguf, ""));
}

static void test_gguf_check_arrays(const fg__gguf *gguf) {
    const fg__gguf_value *words = fg__gguf_find(gguf, "list.words"), *floats = fg__gguf_find(gguf, "list.floats");
    const fg__gguf_value *ints = fg__gguf_find(gguf, "list.ints"), *uints = fg__gguf_find(gguf, "list.uints");
    const fg__gguf_value *bytes = fg__gguf_find(gguf, "list.bytes"), *nothing = fg__gguf_find(gguf, "list.nothing");
    int64_t integer = 0;
    double number = 0;
    CHECK(words && floats && ints && uints && bytes && nothing);
    if (!words || !floats || !ints || !uints || !bytes || !nothing) return;
    CHECK(words->type == FG__GGUF_ARRAY && words->item_type == FG__GGUF_STRING && words->count == 3);
    CHECK(test_gguf_same(words->strings[0], "one", 3) && test_gguf_same(words->strings[1], "", 0));
    CHECK(test_gguf_same(words->strings[2], "three \xE2\x82\xAC", 9));
    CHECK(floats->item_type == FG__GGUF_F32 && fg__gguf_item_f64(floats, 1, &number) && number == -1.0);
    CHECK(fg__gguf_item_f64(floats, 2, &number) && number == (double)1e30f && !fg__gguf_item_f64(floats, 3, &number));
    CHECK(ints->count == 3 && fg__gguf_item_i64(ints, 1, &integer) && integer == -2);
    CHECK(fg__gguf_item_i64(ints, 2, &integer) && integer == INT32_MAX && !fg__gguf_item_i64(ints, 3, &integer));
    CHECK(fg__gguf_item_i64(uints, 1, &integer) && integer == UINT32_MAX);
    CHECK(bytes->item_type == FG__GGUF_U8 && fg__gguf_item_i64(bytes, 2, &integer) && integer == 255);
    CHECK(nothing->count == 0 && nothing->item_type == FG__GGUF_STRING);
    CHECK(!fg__gguf_get_i64(gguf, "list.ints", &integer) && !fg__gguf_get_f64(gguf, "list.floats", &number));
}

static void test_gguf_check_tensors(const fg__gguf *gguf, const unsigned char *file, size_t size) {
    const fg_tensor *matrix = fg__gguf_find_tensor(gguf, "matrix"), *blocks = fg__gguf_find_tensor(gguf, "blocks");
    const fg_tensor *number = fg__gguf_find_tensor(gguf, "number");
    int i;
    CHECK(fg__gguf_tensor_count(gguf) == 5 && matrix && blocks && number && !fg__gguf_find_tensor(gguf, "matri"));
    if (!matrix || !blocks || !number) return;
    CHECK(matrix->type == FG_TYPE_F32 && matrix->n_dims == 2 && matrix->dims[0] == 4 && matrix->dims[1] == 3);
    CHECK(matrix->dims[2] == 1 && matrix->dims[3] == 1 && matrix->bytes == 48 && strcmp(matrix->name, "matrix") == 0);
    CHECK(blocks->type == FG_TYPE_Q4_0 && blocks->dims[0] == 64 && blocks->dims[1] == 2 && blocks->bytes == 72);
    CHECK(number->n_dims == 1 && number->dims[0] == 1 && number->bytes == 4);
    for (i = 0; i < 5; i++) {
        const fg_tensor *tensor = fg__gguf_tensor_at(gguf, i);
        const unsigned char *data = (const unsigned char *)tensor->data;
        CHECK((data - file) % 64 == 0 && data + tensor->bytes <= file + size);
        CHECK(data[0] == 1 && data[1] == 8 && data[tensor->bytes - 1] == (unsigned char)((tensor->bytes - 1) * 7 + 1));
    }
}

static void test_gguf_round_trip(void) {
    fg__env env = fg__env_make(NULL, NULL, NULL);
    uint32_t version;
    for (version = 2; version <= 3; version++) {
        unsigned char *file;
        size_t size;
        fg__gguf *gguf;
        gguf_sample(version, &file, &size);
        CHECK(fg__gguf_open(&env, NULL, file, size, false, &gguf) == FG_OK);
        if (!gguf) return;
        CHECK(fg__gguf_value_count(gguf) == 20);
        CHECK(strcmp(fg__gguf_value_at(gguf, 0)->key.data, "general.architecture") == 0);
        test_gguf_check_scalars(gguf);
        test_gguf_check_arrays(gguf);
        test_gguf_check_tensors(gguf, file, size);
        fg__gguf_close(gguf);
        free(file);
    }
}

static void test_gguf_truncated(void) {
    unsigned char *file;
    size_t size, i;
    gguf_sample(3, &file, &size);
    CHECK(test_gguf_try(file, size) == FG_OK);
    for (i = 0; i < size; i++) {
        fg_result result = test_gguf_try(file, i);
        CHECKF(result == FG_ERROR_BAD_FILE, "%zu of %zu bytes: %s", i, size, fg_result_name(result));
    }
    free(file);
}

/* Every byte becomes others in turn: one that looks small, large, negative, and a flip of each bit. */
static void test_gguf_mutated(void) {
    static const unsigned char values[] = {0, 1, 2, 8, 9, 13, 64, 127, 128, 255};
    unsigned char *file;
    size_t size, i;
    int j, n_bad = 0;
    gguf_sample(3, &file, &size);
    for (i = 0; i < size; i++) {
        unsigned char before = file[i];
        for (j = 0; j < FG__COUNT(values) + 8; j++) {
            fg_result result;
            file[i] = j < FG__COUNT(values) ? values[j] : (unsigned char)(before ^ 1 << (j - FG__COUNT(values)));
            result = test_gguf_try(file, size);
            CHECK(result == FG_OK || result == FG_ERROR_BAD_FILE || result == FG_ERROR_UNSUPPORTED);
            n_bad += result != FG_OK;
        }
        file[i] = before;
    }
    CHECK(n_bad > 5000); /* most mutations of names and numbers are harmless, those of counts and lengths are not */
    free(file);
}

static void test_gguf_bad_headers(void) {
    unsigned char *file;
    size_t size;
    gguf_writer w;
    fg__gguf *gguf;
    fg__env env = fg__env_make(NULL, NULL, NULL);
    gguf_begin(&w);
    test_gguf_expect(&w, FG_OK, "");
    w.version = 0;
    test_gguf_expect(&w, FG_ERROR_BAD_FILE, "version 0");
    w.version = 1;
    test_gguf_expect(&w, FG_ERROR_UNSUPPORTED, "GGUF version 1");
    w.version = 4;
    test_gguf_expect(&w, FG_ERROR_UNSUPPORTED, "GGUF version 4");
    w.version = 0x03000000;
    test_gguf_expect(&w, FG_ERROR_UNSUPPORTED, "big-endian");
    w.n_tensors = 1ull << 60;
    test_gguf_expect(&w, FG_ERROR_BAD_FILE, "claims 1152921504606846976 tensors");
    w.n_values = 1ull << 60;
    test_gguf_expect(&w, FG_ERROR_BAD_FILE, "claims 1152921504606846976 values");
    w.n_values = UINT64_MAX;
    test_gguf_expect(&w, FG_ERROR_BAD_FILE, "values");
    for (w.n_values = FG__GGUF_MOST + 1; w.values.size < 14u << 20;) gguf_put_int(&w.values, 0, 8); /* there is room for so many */
    test_gguf_expect(&w, FG_ERROR_BAD_FILE, "claims 1048577 values");
    gguf_finish(&w, &file, &size);
    file[3] = 'f';
    CHECK(test_gguf_try(file, size) == FG_ERROR_BAD_FILE && strstr(fg_last_error(), "not a GGUF file"));
    free(file);
    CHECK(fg__gguf_open(&env, NULL, NULL, 0, false, &gguf) == FG_ERROR_INVALID_ARGUMENT && !gguf);
    CHECK(fg__gguf_open(&env, "no/such/file.gguf", NULL, 0, false, &gguf) == FG_ERROR_IO && !gguf);
    CHECK(fg__gguf_open(&env, ".", NULL, 0, false, &gguf) == FG_ERROR_IO && !gguf);
    fg__gguf_close(NULL);
}

static void test_gguf_bad_values(void) {
    gguf_writer w;
    gguf_begin(&w);
    gguf_add_u8(&w, "key", 1);
    gguf_add_u8(&w, "other", 1);
    gguf_add_u8(&w, "key", 2);
    test_gguf_expect(&w, FG_ERROR_BAD_FILE, "key 'key' is there twice");
    gguf_add_u8(&w, "bell\a", 1);
    test_gguf_expect(&w, FG_ERROR_BAD_FILE, "control character");
    gguf_add_key(&w, "odd", 13);
    gguf_put_int(&w.values, 0, 8);
    test_gguf_expect(&w, FG_ERROR_BAD_FILE, "key 'odd' has the unknown type 13");
    gguf_add_array(&w, "odd", 0x80000001u, 1);
    gguf_put_int(&w.values, 0, 8);
    test_gguf_expect(&w, FG_ERROR_BAD_FILE, "key 'odd' has the unknown type 2147483649");
    gguf_add_array(&w, "nested", GGUF_ARRAY, 1);
    gguf_put_int(&w.values, 0, 8);
    gguf_put_int(&w.values, 0, 8);
    test_gguf_expect(&w, FG_ERROR_UNSUPPORTED, "key 'nested' is an array of arrays");
    gguf_add_array(&w, "many", GGUF_U8, UINT64_MAX);
    test_gguf_expect(&w, FG_ERROR_BAD_FILE, "key 'many' claims 18446744073709551615 items");
    gguf_add_array(&w, "many", GGUF_F64, 1ull << 61);
    test_gguf_expect(&w, FG_ERROR_BAD_FILE, "key 'many' claims 2305843009213693952 items");
    gguf_add_array(&w, "many", GGUF_STRING, 1ull << 60);
    test_gguf_expect(&w, FG_ERROR_BAD_FILE, "key 'many' claims");
    gguf_add_key(&w, "long", GGUF_STRING);
    gguf_put_int(&w.values, UINT64_MAX, 8);
    test_gguf_expect(&w, FG_ERROR_BAD_FILE, "claims 18446744073709551615 bytes");
    w.n_values = 1; /* and its key is as long */
    gguf_put_int(&w.values, UINT64_MAX - 7, 8);
    gguf_put_int(&w.values, 0, 8);
    test_gguf_expect(&w, FG_ERROR_BAD_FILE, "claims 18446744073709551608 bytes");
    gguf_add_u32(&w, "general.alignment", 0);
    test_gguf_expect(&w, FG_ERROR_BAD_FILE, "general.alignment");
    gguf_add_u32(&w, "general.alignment", 48);
    test_gguf_expect(&w, FG_ERROR_BAD_FILE, "general.alignment");
    gguf_add_i64(&w, "general.alignment", INT64_MIN);
    test_gguf_expect(&w, FG_ERROR_BAD_FILE, "general.alignment");
    gguf_add_string(&w, "general.alignment", "32");
    test_gguf_expect(&w, FG_ERROR_BAD_FILE, "general.alignment");
}

static void test_gguf_bad_tensor(uint32_t type, int n_dims, int64_t a, int64_t b, int64_t c, uint64_t offset,
                                 fg_result expected, const char *words) {
    static const unsigned char zeros[1024] = {0};
    gguf_writer w;
    int64_t dims[5];
    dims[0] = a;
    dims[1] = b;
    dims[2] = c;
    dims[3] = dims[4] = 1;
    gguf_begin(&w);
    gguf_add_tensor_info(&w, "tensor", type, n_dims, dims, offset);
    gguf_put(&w.data, zeros, sizeof(zeros));
    test_gguf_expect(&w, expected, words);
}

/* Two tensors with the same data would make a small file a large model. */
static void test_gguf_shared_data(void) {
    static const unsigned char zeros[1024] = {0};
    int64_t dims[4] = {128, 1, 1, 1};
    gguf_writer w;
    gguf_begin(&w);
    gguf_add_tensor_info(&w, "first", 0, 1, dims, 0);
    gguf_add_tensor_info(&w, "second", 0, 1, dims, 512);
    gguf_put(&w.data, zeros, sizeof(zeros));
    test_gguf_expect(&w, FG_OK, "");
    gguf_add_tensor_info(&w, "first", 0, 1, dims, 0);
    gguf_add_tensor_info(&w, "second", 0, 1, dims, 512);
    gguf_add_tensor_info(&w, "third", 0, 1, dims, 0);
    gguf_put(&w.data, zeros, sizeof(zeros));
    test_gguf_expect(&w, FG_ERROR_BAD_FILE, "share their data");
}

/* Of weights of a type that is not known a vocabulary needs nothing. */
static void test_gguf_any_type(void) {
    static const unsigned char zeros[1024] = {0};
    int64_t dims[4] = {256, 2, 1, 1};
    fg__env env = fg__env_make(NULL, NULL, NULL);
    unsigned char *file;
    size_t size;
    gguf_writer w;
    fg__gguf *gguf;
    gguf_begin(&w);
    gguf_add_tensor_info(&w, "tensor", 16, 2, dims, 0); /* IQ2_XXS */
    gguf_put(&w.data, zeros, sizeof(zeros));
    gguf_finish(&w, &file, &size);
    CHECK(fg__gguf_open(&env, NULL, file, size, false, &gguf) == FG_ERROR_UNSUPPORTED && strstr(fg_last_error(), "IQ2_XXS"));
    CHECK(fg__gguf_open(&env, NULL, file, size, true, &gguf) == FG_OK);
    if (gguf) CHECK(fg__gguf_tensor_at(gguf, 0)->type == FG_TYPE_NONE && fg__gguf_tensor_at(gguf, 0)->dims[1] == 2);
    fg__gguf_close(gguf);
    free(file);
    dims[0] = 1 << 20; /* more than the file can have of any type */
    gguf_begin(&w);
    gguf_add_tensor_info(&w, "tensor", 16, 2, dims, 0);
    gguf_put(&w.data, zeros, sizeof(zeros));
    gguf_finish(&w, &file, &size);
    CHECK(fg__gguf_open(&env, NULL, file, size, true, &gguf) == FG_ERROR_BAD_FILE);
    fg__gguf_close(gguf);
    free(file);
}

static void test_gguf_bad_tensors(void) {
    const int64_t most = INT64_MAX, two32 = 1ll << 32;
    gguf_writer w;
    int64_t dim = 1;
    test_gguf_bad_tensor(0, 2, 16, 16, 1, 0, FG_OK, "");
    test_gguf_bad_tensor(0, 2, 16, 8, 1, 512, FG_OK, "");
    test_gguf_bad_tensor(0, 2, 16, 8, 1, 544, FG_ERROR_BAD_FILE, "data of tensor 'tensor' lies past the end");
    test_gguf_bad_tensor(0, 1, 1, 1, 1, 1024, FG_ERROR_BAD_FILE, "past the end");
    test_gguf_bad_tensor(0, 1, 1, 1, 1, UINT64_MAX - 31, FG_ERROR_BAD_FILE, "past the end");
    test_gguf_bad_tensor(0, 1, 1, 1, 1, 16, FG_ERROR_BAD_FILE, "not a multiple of 32");
    test_gguf_bad_tensor(0, 1, 400, 1, 1, 0, FG_ERROR_BAD_FILE, "needs 1600 bytes");
    test_gguf_bad_tensor(0, 5, 1, 1, 1, 0, FG_ERROR_BAD_FILE, "5 dimensions");
    test_gguf_bad_tensor(0, 2, 0, 4, 1, 0, FG_ERROR_BAD_FILE, "dimension of 0");
    test_gguf_bad_tensor(0, 2, 4, 0, 1, 0, FG_ERROR_BAD_FILE, "dimension of 0");
    test_gguf_bad_tensor(0, 1, -1, 1, 1, 0, FG_ERROR_BAD_FILE, "absurd");
    test_gguf_bad_tensor(0, 1, most, 1, 1, 0, FG_ERROR_BAD_FILE, "absurd");
    test_gguf_bad_tensor(0, 2, two32, two32, 1, 0, FG_ERROR_BAD_FILE, "absurd");
    test_gguf_bad_tensor(0, 3, two32, 1ll << 31, 4, 0, FG_ERROR_BAD_FILE, "absurd");
    test_gguf_bad_tensor(0, 3, two32, 1ll << 27, 1, 0, FG_ERROR_BAD_FILE, "needs 2305843009213693952 bytes");
    test_gguf_bad_tensor(2, 2, 48, 2, 1, 0, FG_ERROR_BAD_FILE, "rows of 48 elements split a block of Q4_0");
    test_gguf_bad_tensor(12, 2, 128, 2, 1, 0, FG_ERROR_BAD_FILE, "rows of 128 elements split a block of Q4_K");
    test_gguf_bad_tensor(16, 1, 256, 1, 1, 0, FG_ERROR_UNSUPPORTED, "type IQ2_XXS");
    test_gguf_bad_tensor(26, 1, 4, 1, 1, 0, FG_ERROR_UNSUPPORTED, "type I32");
    test_gguf_bad_tensor(41, 1, 128, 1, 1, 0, FG_ERROR_UNSUPPORTED, "type Q1_0");
    test_gguf_bad_tensor(42, 1, 4, 1, 1, 0, FG_ERROR_BAD_FILE, "unknown type 42");
    test_gguf_bad_tensor(UINT32_MAX, 1, 4, 1, 1, 0, FG_ERROR_BAD_FILE, "unknown type 4294967295");
    gguf_begin(&w);
    gguf_add_tensor(&w, "same", 0, 1, &dim, "1234", 4);
    gguf_add_tensor(&w, "same", 0, 1, &dim, "1234", 4);
    test_gguf_expect(&w, FG_ERROR_BAD_FILE, "tensor 'same' is there twice");
    gguf_add_tensor(&w, "new\nline", 0, 1, &dim, "1234", 4);
    test_gguf_expect(&w, FG_ERROR_BAD_FILE, "control character");
    w.alignment = 1; /* only in the writer: nothing pads what the file says is padded */
    gguf_add_tensor(&w, "early", 0, 1, &dim, "1234", 4);
    test_gguf_expect(&w, FG_ERROR_BAD_FILE, "past the end");
}

/* A vocabulary of the usual size: one allocation for all its strings, not one each. */
static void test_gguf_many_strings(void) {
    enum { N = 150000 };
    fg_allocator allocator = test_allocator(0);
    fg__env env = fg__env_make(&allocator, NULL, NULL);
    unsigned char *file;
    size_t size;
    gguf_writer w;
    fg__gguf *gguf;
    char text[16];
    int i, n_wrong = 0;
    gguf_begin(&w);
    gguf_add_array(&w, "tokens", GGUF_STRING, N);
    for (i = 0; i < N; i++) gguf_put_text(&w.values, text, (size_t)snprintf(text, sizeof(text), "t%d", i));
    gguf_finish(&w, &file, &size);
    CHECK(fg__gguf_open(&env, NULL, file, size, false, &gguf) == FG_OK);
    if (gguf) {
        const fg__gguf_value *tokens = fg__gguf_find(gguf, "tokens");
        CHECK(tokens && tokens->count == N && fg__gguf_tensor_count(gguf) == 0);
        for (i = 0; tokens && i < N; i++)
            n_wrong += !test_gguf_same(tokens->strings[i], text, (size_t)snprintf(text, sizeof(text), "t%d", i));
    }
    CHECK(n_wrong == 0 && test_alloc_count() < 10);
    fg__gguf_close(gguf);
    CHECK(test_alloc_live() == 0);
    free(file);
}

/* Keys and tensors in any order are found, others are not. */
static void test_gguf_many_names(void) {
    enum { N = 3000 };
    fg__env env = fg__env_make(NULL, NULL, NULL);
    unsigned char *file;
    size_t size;
    gguf_writer w;
    fg__gguf *gguf;
    char name[32];
    uint64_t random = 1;
    int64_t integer, dim = 1;
    int i;
    gguf_begin(&w);
    for (i = 0; i < N; i++) {
        snprintf(name, sizeof(name), "%llu.%d", (unsigned long long)(test_random(&random) % 100), i);
        gguf_add_i32(&w, name, i);
        gguf_add_tensor(&w, name, FG_TYPE_F32, 1, &dim, &i, 4);
    }
    gguf_finish(&w, &file, &size);
    CHECK(fg__gguf_open(&env, NULL, file, size, false, &gguf) == FG_OK);
    random = 1;
    for (i = 0; gguf && i < N; i++) {
        const fg_tensor *tensor;
        snprintf(name, sizeof(name), "%llu.%d", (unsigned long long)(test_random(&random) % 100), i);
        CHECK(fg__gguf_get_i64(gguf, name, &integer) && integer == i);
        tensor = fg__gguf_find_tensor(gguf, name);
        CHECK(tensor == fg__gguf_tensor_at(gguf, i) && memcmp(tensor->data, &i, 4) == 0);
        name[strlen(name) - 1] = 'x';
        CHECK(!fg__gguf_find(gguf, name) && !fg__gguf_find_tensor(gguf, name));
    }
    fg__gguf_close(gguf);
    free(file);
}

/* Files for the tests of split models go to the folder for temporary files, under names of this run. */
static void test_gguf_path(char *path, size_t capacity, int part, int count) {
    static unsigned run;
    const char *folder = getenv("TMPDIR");
    if (!folder) folder = getenv("TEMP");
    if (!folder) folder = "/tmp";
    if (!run) run = (unsigned)fmod(fg__now() * 1e6, 1e6);
    snprintf(path, capacity, "%s/fastgen-test-%06u-%05d-of-%05d.gguf", folder, run, part, count);
}

/* Writes part `part` (1, 2, ...) of a model; it has two tensors, which hold the bytes 10*part and 10*part+1. */
static void test_gguf_write_part(int part, int count, int says_part, int says_count, int says_tensors) {
    unsigned char *file, bytes[2][4];
    size_t size;
    gguf_writer w;
    char path[512], name[32];
    int64_t dim = 1;
    int i;
    gguf_begin(&w);
    if (part == 1) gguf_add_string(&w, "general.architecture", "split");
    if (part == 2) gguf_set_alignment(&w, 64);
    gguf_add_u16(&w, "split.no", (uint16_t)(says_part - 1));
    gguf_add_u16(&w, "split.count", (uint16_t)says_count);
    gguf_add_i32(&w, "split.tensors.count", says_tensors);
    for (i = 0; i < 2; i++) {
        memset(bytes[i], 10 * part + i, 4);
        snprintf(name, sizeof(name), "part%d.tensor%d", part == 4 ? 1 : part, i); /* part 4 repeats the names of 1 */
        gguf_add_tensor(&w, name, FG_TYPE_F32, 1, &dim, bytes[i], 4);
    }
    gguf_finish(&w, &file, &size);
    test_gguf_path(path, sizeof(path), part, count);
    CHECKF(gguf_save(path, file, size), "cannot write %s", path);
    free(file);
}

static void test_gguf_remove_parts(int count) {
    char path[512];
    int i;
    for (i = 1; i <= count; i++) {
        test_gguf_path(path, sizeof(path), i, count);
        remove(path);
    }
}

/* Opens part `part` of `count` and checks the result and message. */
static void test_gguf_expect_parts(int part, int count, fg_result expected, const char *words) {
    fg_allocator allocator = test_allocator(0);
    fg__env env = fg__env_make(&allocator, NULL, NULL);
    fg__gguf *gguf;
    fg_result result;
    char path[512];
    test_gguf_path(path, sizeof(path), part, count);
    result = fg__gguf_open(&env, path, NULL, 0, false, &gguf);
    CHECKF(result == expected && (!result || strstr(fg_last_error(), words)), "'%s': %s, '%s'", words,
           fg_result_name(result), fg_last_error());
    if (gguf) gguf_walk(gguf);
    fg__gguf_close(gguf);
    CHECK(test_alloc_live() == 0);
}

static void test_gguf_split(void) {
    fg__env env = fg__env_make(NULL, NULL, NULL);
    fg__gguf *gguf;
    char path[512];
    int i;
    for (i = 1; i <= 3; i++) test_gguf_write_part(i, 3, i, 3, 6);
    test_gguf_path(path, sizeof(path), 1, 3);
    CHECK(fg__gguf_open(&env, path, NULL, 0, false, &gguf) == FG_OK);
    CHECK(gguf && fg__gguf_tensor_count(gguf) == 6 && fg__gguf_value_count(gguf) == 4);
    for (i = 0; gguf && i < fg__gguf_tensor_count(gguf); i++) {
        const fg_tensor *tensor = fg__gguf_tensor_at(gguf, i);
        CHECK(*(const unsigned char *)tensor->data == 10 * (i / 2 + 1) + i % 2);
        CHECK(fg__gguf_find_tensor(gguf, tensor->name) == tensor);
    }
    fg__gguf_close(gguf);
    test_gguf_expect_parts(2, 3, FG_ERROR_INVALID_ARGUMENT, "part 2 of 3; open the one named ...-00001-of-00003.gguf");
    test_gguf_write_part(1, 3, 1, 3, 7);
    test_gguf_expect_parts(1, 3, FG_ERROR_BAD_FILE, "the 3 parts have 6 tensors together, not 7");
    test_gguf_write_part(1, 3, 1, 4, 6);
    test_gguf_expect_parts(1, 3, FG_ERROR_BAD_FILE, "its name must end with '-00001-of-00004.gguf'");
    test_gguf_write_part(1, 3, 1, 3, 6);
    test_gguf_write_part(3, 3, 2, 3, 6);
    test_gguf_expect_parts(1, 3, FG_ERROR_BAD_FILE, "say it is part 2 of 3");
    test_gguf_write_part(3, 3, 3, 2, 6);
    test_gguf_expect_parts(1, 3, FG_ERROR_BAD_FILE, "say it is part 3 of 2");
    test_gguf_path(path, sizeof(path), 3, 3);
    CHECK(gguf_save(path, (const unsigned char *)"GGUF", 4));
    test_gguf_expect_parts(1, 3, FG_ERROR_BAD_FILE, "00003-of-00003.gguf: the file ends inside its header");
    remove(path);
    test_gguf_expect_parts(1, 3, FG_ERROR_IO, "00003-of-00003.gguf");
    test_gguf_remove_parts(3);
    for (i = 1; i <= 4; i++) test_gguf_write_part(i, 4, i, 4, 8);
    test_gguf_expect_parts(1, 4, FG_ERROR_BAD_FILE, "tensor 'part1.tensor0' is there twice");
    test_gguf_remove_parts(4);
}

static void test_gguf_split_in_memory(void) {
    gguf_writer w;
    gguf_begin(&w);
    gguf_add_u16(&w, "split.count", 1);
    gguf_add_u16(&w, "split.no", 0);
    test_gguf_expect(&w, FG_OK, "");
    gguf_add_u16(&w, "split.count", 3);
    gguf_add_u16(&w, "split.no", 0);
    test_gguf_expect(&w, FG_ERROR_UNSUPPORTED, "one of 3 parts");
    gguf_add_u32(&w, "split.count", 70000);
    test_gguf_expect(&w, FG_ERROR_BAD_FILE, "split.count");
    gguf_add_f32(&w, "split.count", 2);
    test_gguf_expect(&w, FG_ERROR_BAD_FILE, "split.count");
    gguf_add_i32(&w, "split.count", -2);
    test_gguf_expect(&w, FG_ERROR_BAD_FILE, "split.count");
    gguf_add_u16(&w, "split.count", 2);
    gguf_add_i8(&w, "split.no", -1);
    test_gguf_expect(&w, FG_ERROR_BAD_FILE, "split.no");
}

/* Fails each allocation of opening a file in turn. Returns the number of allocations. */
static int test_gguf_starve(const char *path, const void *data, size_t size) {
    int i;
    for (i = 1;; i++) {
        fg_allocator allocator = test_allocator(i);
        fg__env env = fg__env_make(&allocator, NULL, NULL);
        fg__gguf *gguf;
        fg_result result = fg__gguf_open(&env, path, data, size, false, &gguf);
        fg__gguf_close(gguf);
        CHECK(test_alloc_live() == 0);
        if (!test_alloc_failed()) {
            CHECK(result == FG_OK);
            return i - 1;
        }
        CHECKF(result == FG_ERROR_OUT_OF_MEMORY && strstr(fg_last_error(), "out of memory"), "allocation %d: %s, '%s'",
               i, fg_result_name(result), fg_last_error());
    }
}

static void test_gguf_out_of_memory(void) {
    unsigned char *file;
    size_t size;
    char path[512];
    int i;
    gguf_sample(3, &file, &size);
    CHECK(test_gguf_starve(NULL, file, size) > 30);
    free(file);
    for (i = 1; i <= 3; i++) test_gguf_write_part(i, 3, i, 3, 6);
    test_gguf_path(path, sizeof(path), 1, 3);
    CHECK(test_gguf_starve(path, NULL, 0) > 30);
    test_gguf_remove_parts(3);
}

/* Real files, of other programs. */
static void test_gguf_real_files(void) {
    fg__env env = fg__env_make(NULL, NULL, NULL);
    fg__gguf *gguf;
    const fg__gguf_value *tokens;
    const fg_tensor *embedding;
    if (fg__gguf_open(&env, "../shared/tokenizers/ggml-vocab-llama-spm.gguf", NULL, 0, false, &gguf) == FG_ERROR_IO)
        SKIP("../shared is not there");
    tokens = gguf ? fg__gguf_find(gguf, "tokenizer.ggml.tokens") : NULL;
    CHECK(tokens && tokens->count == 32000 && test_gguf_same(tokens->strings[1], "<s>", 3));
    CHECK(gguf && fg__gguf_tensor_count(gguf) == 0);
    fg__gguf_close(gguf);
    CHECK(fg__gguf_open(&env, "../shared/models/stories260K.gguf", NULL, 0, false, &gguf) == FG_OK);
    embedding = gguf ? fg__gguf_find_tensor(gguf, "token_embd.weight") : NULL;
    CHECK(embedding && embedding->type == FG_TYPE_F32 && embedding->dims[0] == 64 && embedding->dims[1] == 512);
    fg__gguf_close(gguf);
}

static void run_gguf_tests(void) {
    RUN(test_gguf_round_trip);
    RUN(test_gguf_truncated);
    RUN(test_gguf_mutated);
    RUN(test_gguf_bad_headers);
    RUN(test_gguf_bad_values);
    RUN(test_gguf_bad_tensors);
    RUN(test_gguf_shared_data);
    RUN(test_gguf_any_type);
    RUN(test_gguf_many_strings);
    RUN(test_gguf_many_names);
    RUN(test_gguf_split);
    RUN(test_gguf_split_in_memory);
    RUN(test_gguf_out_of_memory);
    RUN(test_gguf_real_files);
}
