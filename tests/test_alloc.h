/* An allocator that counts, and fails once on demand:

       int i;
       for (i = 1;; i++) {
           fg_allocator allocator = test_allocator(i);         // allocation number i fails, all others succeed
           ... do something with &allocator, free everything ...
           CHECK(test_alloc_live() == 0);                      // no leak
           if (!test_alloc_failed()) break;                    // number i did not come: all had their turn
       }

   Allocation 0 never comes: test_allocator(0) only counts. Growing memory counts as an allocation. Threads may share
   it, but there is one set of counters, reset by test_allocator. Each block knows its allocator's `user`: what one with another
   `user` grows or frees is foreign. */
#ifndef TEST_ALLOC_H
#define TEST_ALLOC_H

static int test_alloc_fail_at, test_alloc_n, test_alloc_n_live, test_alloc_n_foreign;

/* In front of each block, as large as keeps it aligned. */
typedef union test_alloc_head {
    void *user;
    char size[64];
} test_alloc_head;

static void *test_alloc_realloc(void *pointer, size_t size, void *user) {
    test_alloc_head *head = pointer ? (test_alloc_head *)pointer - 1 : NULL, *result;
    if (head && head->user != user) fg__atomic_add(&test_alloc_n_foreign, 1);
    if (!size) {
        fg__atomic_add(&test_alloc_n_live, -1);
        free(head);
        return NULL;
    }
    if (fg__atomic_add(&test_alloc_n, 1) + 1 == test_alloc_fail_at) return NULL;
    result = (test_alloc_head *)realloc(head, sizeof(*head) + size);
    if (!result) return NULL;
    if (!pointer) fg__atomic_add(&test_alloc_n_live, 1);
    result->user = user;
    return result + 1;
}

static fg_allocator test_allocator(int fail_at) {
    fg_allocator allocator;
    allocator.realloc = test_alloc_realloc;
    allocator.user = NULL;
    test_alloc_fail_at = fail_at;
    fg__atomic_store(&test_alloc_n, 0);
    fg__atomic_store(&test_alloc_n_live, 0);
    fg__atomic_store(&test_alloc_n_foreign, 0);
    return allocator;
}

/* Allocations since test_allocator, those not freed yet, and how many were grown or freed by another allocator. */
static int test_alloc_count(void) { return fg__atomic_load(&test_alloc_n); }
static int test_alloc_live(void) { return fg__atomic_load(&test_alloc_n_live); }
static int test_alloc_foreign(void) { return fg__atomic_load(&test_alloc_n_foreign); }
static bool test_alloc_failed(void) { return test_alloc_fail_at > 0 && test_alloc_count() >= test_alloc_fail_at; }

#endif
