/* Tests of >>json: what is JSON and what is not, values, depth, memory that runs out. */
#include "test_alloc.h"

static fg_result json_try(const fg__env *env, const char *text, size_t length, fg__json **root) {
    *root = NULL;
    return fg__json_parse(env, text, length, root);
}

static void test_json_accepts(void) {
    static const char *const good[] = {"null", "true", " [ ] ", "{}", "-0", "1e5", "[1,2.5,-3e-2]", "\"\\u00e9\\n\"", "{\"a\":{\"b\":[{}]}}"};
    static const char *const bad[] = {"", "[", "]", "{", "nul", "01", "1.", ".5", "1e", "+1", "[1,]", "{\"a\"}", "{\"a\":1,}", "\"\\x\"",
                                      "\"", "'a'", "[1] 2", "\"\n\"", "\"\\u12\"", "{1:2}", "NaN", "\xff"};
    fg__env env = fg__env_make(NULL, NULL, NULL);
    fg__json *root;
    int i;
    for (i = 0; i < FG__COUNT(good); i++) {
        CHECKF(json_try(&env, good[i], strlen(good[i]), &root) == FG_OK, "%s: %s", good[i], fg_last_error());
        fg__json_free(root);
    }
    for (i = 0; i < FG__COUNT(bad); i++) {
        CHECKF(json_try(&env, bad[i], strlen(bad[i]), &root) != FG_OK, "%s", bad[i]);
        fg__json_free(root);
    }
}

static void test_json_values(void) {
    static const char text[] = "{\"i\": -9007199254740993, \"f\": 0.1, \"s\": \"\\ud83d\\ude00\\u0000x\\ud800\", \"l\": [1, [2]], \"i\": 7}";
    fg__env env = fg__env_make(NULL, NULL, NULL);
    fg__json *root;
    const fg__json *s;
    CHECK(json_try(&env, text, strlen(text), &root) == FG_OK);
    CHECK(fg__json_number(fg__json_get(root, "i"), 0) == 7); /* of equal keys the last */
    CHECK(fg__json_number(fg__json_get(root, "f"), 0) == 0.1);
    CHECK(fg__json_get(root, "missing") == NULL);
    CHECK(fg__json_get(root, "l")->count == 2);
    s = fg__json_get(root, "s");
    CHECK(s->count == 4 + 1 + 1 + 3 && memcmp(s->value.string, "\xF0\x9F\x98\x80\0x\xEF\xBF\xBD", 9) == 0);
    fg__json_free(root);
}

static void test_json_depth(void) {
    fg__env env = fg__env_make(NULL, NULL, NULL);
    size_t n = 1000000;
    char *text = (char *)malloc(n);
    fg__json *root;
    memset(text, '[', n);
    CHECK(json_try(&env, text, n, &root) != FG_OK);
    fg__json_free(root);
    memset(text + 100, ']', 100);
    CHECK(json_try(&env, text, 200, &root) == FG_OK);
    fg__json_free(root);
    free(text);
}

/* What is written reads back as the same. */
static void test_json_round_trip(void) {
    static const char text[] = "{\"a\\\"\\\\\\u0001\":[1,2.5,1e+300,-7,true,null,\"\xC3\xA9\"],\"b\":{}}";
    fg__env env = fg__env_make(NULL, NULL, NULL);
    fg__json *root, *again;
    fg__text first, second;
    memset(&first, 0, sizeof(first));
    first.env = &env;
    second = first;
    CHECK(json_try(&env, text, strlen(text), &root) == FG_OK);
    fg__json_write(&first, root);
    CHECK(json_try(&env, first.data, first.length, &again) == FG_OK);
    fg__json_write(&second, again);
    CHECKF(strcmp(first.data, second.data) == 0, "%s, %s", first.data, second.data);
    CHECK(fg__json_number(fg__json_item(fg__json_get(again, "a\"\\\001"), 2), 0) == 1e300);
    fg__json_free(root);
    fg__json_free(again);
    fg__text_free(&first);
    fg__text_free(&second);
}

static void test_json_out_of_memory(void) {
    static const char text[] = "[{\"a\": [1, 2, {\"b\": \"text with \\n escapes\"}]}, [[[]]], 3.25]";
    int i;
    for (i = 1;; i++) {
        fg_allocator allocator = test_allocator(i);
        fg__env env = fg__env_make(&allocator, NULL, NULL);
        fg__json *root;
        fg_result r = json_try(&env, text, strlen(text), &root);
        CHECK(r == (test_alloc_failed() ? FG_ERROR_OUT_OF_MEMORY : FG_OK));
        fg__json_free(root);
        CHECK(test_alloc_live() == 0);
        if (!test_alloc_failed()) break;
    }
    CHECK(i > 1);
}

static void run_json_tests(void) {
    RUN(test_json_accepts);
    RUN(test_json_values);
    RUN(test_json_depth);
    RUN(test_json_round_trip);
    RUN(test_json_out_of_memory);
}
