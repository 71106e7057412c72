/* The test harness: CHECK counts and reports failures, RUN runs one test and prints its line. */
#ifndef TEST_H
#define TEST_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static int test_failures;            /* of the test that runs now */
static int tests_passed, tests_failed, tests_skipped;
static const char *test_skip_reason; /* set by SKIP */
static const char *test_filter;      /* run only tests whose name contains it */
static char **test_except;           /* and not those whose name contains one of these */
static int test_n_except;
static int test_part, test_parts = 1; /* run only one in so many */

#define CHECK(condition)                                                                     \
    do {                                                                                     \
        if (!(condition)) {                                                                  \
            if (test_failures++ < 20) printf("    %s:%d: %s\n", __FILE__, __LINE__, #condition); \
        }                                                                                    \
    } while (0)

/* As CHECK, with a printf-style explanation. */
#define CHECKF(condition, ...)                                                               \
    do {                                                                                     \
        if (!(condition) && test_failures++ < 20) {                                          \
            printf("    %s:%d: %s: ", __FILE__, __LINE__, #condition);                       \
            printf(__VA_ARGS__);                                                             \
            printf("\n");                                                                    \
        }                                                                                    \
    } while (0)

/* The larger of two errors; not a number, once one of them is not, so that no limit holds. */
static inline double test_worse(double worst, double error) { return error <= worst || worst != worst ? worst : error; }

/* Leaves the test, which counts as skipped unless something failed before. */
#define SKIP(reason)                   \
    do {                               \
        test_skip_reason = (reason);   \
        return;                        \
    } while (0)

#define RUN(test) test_run(#test, test)

#define TEST_SLOW 3 /* seconds from which a test's line says how long it took */

static void test_run(const char *name, void (*test)(void)) {
    static int n;
    time_t start = time(NULL);
    int i;
    if (test_filter && !strstr(name, test_filter)) return;
    for (i = 0; i < test_n_except; i++)
        if (strstr(name, test_except[i] + 1)) return;
    if (n++ % test_parts != test_part) return;
    test_failures = 0;
    test_skip_reason = NULL;
    printf("%s\n", name);
    fflush(stdout);
    test();
    if (test_failures) {
        tests_failed++;
        printf("    FAILED (%d checks)\n", test_failures);
    } else if (test_skip_reason) {
        tests_skipped++;
        printf("    skipped: %s\n", test_skip_reason);
    } else {
        tests_passed++;
    }
    if (time(NULL) - start >= TEST_SLOW) printf("    %d s\n", (int)(time(NULL) - start));
}

/* A small repeatable random generator (splitmix64). */
static uint64_t test_random(uint64_t *state) {
    uint64_t z = (*state += 0x9E3779B97F4A7C15ull);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    return z ^ (z >> 31);
}

#endif
