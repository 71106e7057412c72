/* The KV block manager against a simple model: which sequence holds which block is counted from the tables, and every slot of
   every block remembers what was written to it, as a hash of the whole sequence up to that token. So a wrong table, a
   wrong prefix, a missing copy or a block that is written while others see it shows up as a wrong hash.

   kv_world is also what test_sched.c runs the scheduler on. */

enum { KV_BT = 4, KV_MAX_BLOCKS = 96, KV_MAX_TOKENS = 160, KV_MAX_SEQS = 24 };

typedef struct kv_world {
    fg__env env;
    fg__kv kv;
    uint64_t random;
    uint64_t content[FG_MAX_GROUPS][KV_MAX_BLOCKS * KV_BT];
    /* what a block was after the operation before, and since when it is cached */
    int state[FG_MAX_GROUPS][KV_MAX_BLOCKS];
    uint64_t since[FG_MAX_GROUPS][KV_MAX_BLOCKS];
    uint64_t n_operations;
    bool forgot; /* the operation was fg__kv_forget */
    bool coarse; /* an operation is many of the block manager's: order and age of cached blocks are not known */
    fg__kv_seq *seqs[KV_MAX_SEQS]; /* all there are */
    int n_seqs;
} kv_world;

enum { KV_FREE, KV_CACHED, KV_USED };

/* Of a group of states a block remembers one hash, where its last token's would be. `windows`: KV_STATE is such a group. */
#define KV_STATE -1
#define KV_STATE_AT (KV_BT - 1)

static void kv_world_begin(kv_world *w, const int32_t *windows, int n_groups, const int32_t *n_blocks, bool cache) {
    fg_group groups[FG_MAX_GROUPS];
    int g;
    memset(w, 0, sizeof(*w));
    memset(groups, 0, sizeof(groups));
    w->env = fg__env_make(NULL, NULL, NULL);
    w->random = 1;
    for (g = 0; g < n_groups; g++) {
        groups[g].kind = windows[g] == KV_STATE ? FG_GROUP_STATE : windows[g] ? FG_GROUP_WINDOW : FG_GROUP_FULL;
        groups[g].window = windows[g];
        groups[g].block_tokens = KV_BT;
        groups[g].n_blocks = n_blocks[g];
    }
    CHECK(fg__kv_init(&w->kv, &w->env, groups, n_groups, cache, 7) == FG_OK);
}

static int kv_below(kv_world *w, int n) { return (int)(test_random(&w->random) % (uint64_t)n); }

/* The hash of a sequence up to and with each token. */
static void kv_hashes(const int32_t *tokens, int n, uint64_t *out) {
    uint64_t h = 0xCBF29CE484222325ull;
    int i;
    for (i = 0; i < n; i++) {
        h = (h ^ (uint64_t)(uint32_t)tokens[i]) * 0x100000001B3ull;
        h ^= h >> 29;
        out[i] = h;
    }
}

/* Tokens of one of a few documents, which leave it somewhere: so that sequences share prefixes of all lengths. */
static void kv_tokens(kv_world *w, int32_t *tokens, int n) {
    int document = kv_below(w, 3), leave = kv_below(w, 2) ? kv_below(w, n + 1) : n, i;
    for (i = 0; i < n; i++) tokens[i] = i < leave ? (document * 7919 + i * 31) % 101 : kv_below(w, 4);
}

/* Does the copies of a pass, in order. */
static void kv_copy(kv_world *w, const fg_block_copy *copies, int n) {
    int i;
    for (i = 0; i < n; i++) {
        CHECK(copies[i].from != copies[i].to);
        memcpy(&w->content[copies[i].group][copies[i].to * KV_BT], &w->content[copies[i].group][copies[i].from * KV_BT],
               KV_BT * sizeof(uint64_t));
    }
}

static bool kv_is_own(const fg__kv_group *group, int32_t block) { return block >= 0 && group->blocks[block].refs == 1 && !group->blocks[block].has_key; }

/* A state goes on from the block of the token before to those that are kept. */
static void kv_write_state(kv_world *w, const fg__kv_seq *seq, int g, const uint64_t *hashes, int from, int to) {
    int i;
    if (from) CHECK(seq->tables[g][(from - 1) / KV_BT] >= 0 && w->content[g][seq->tables[g][(from - 1) / KV_BT] * KV_BT + KV_STATE_AT] == hashes[from - 1]);
    for (i = from; i < to; i++) {
        int32_t block = seq->tables[g][i / KV_BT];
        if (i + 1 < to && ((i + 1) % KV_BT || block < 0)) continue;
        CHECK(kv_is_own(&w->kv.groups[g], block));
        if (block >= 0) w->content[g][block * KV_BT + KV_STATE_AT] = hashes[i];
    }
}

/* "Computes" tokens from .. to-1: writes their slots, which must be this sequence's alone. */
static void kv_write(kv_world *w, const fg__kv_seq *seq, const uint64_t *hashes, int from, int to) {
    int g, i;
    for (g = 0; g < w->kv.n_groups; g++)
        for (i = from; i < to; i++) {
            int32_t block = seq->tables[g][i / KV_BT];
            if (w->kv.groups[g].state) {
                kv_write_state(w, seq, g, hashes, from, to);
                break;
            }
            CHECK(kv_is_own(&w->kv.groups[g], block));
            w->content[g][block * KV_BT + i % KV_BT] = hashes[i];
        }
}

/* Of tokens 0..n-1, everything that a token at `position` sees is what belongs there. */
static void kv_see(const kv_world *w, const fg__kv_seq *seq, const uint64_t *hashes, int position, int n) {
    int g, i;
    for (g = 0; g < w->kv.n_groups; g++) {
        int window = w->kv.groups[g].window;
        if (w->kv.groups[g].state) {
            int32_t block = n ? seq->tables[g][(n - 1) / KV_BT] : -1;
            if (n && n == position) CHECKF(block >= 0 && w->content[g][block * KV_BT + KV_STATE_AT] == hashes[n - 1], "group %d: a wrong state after %d tokens", g, n);
            continue;
        }
        for (i = window && position - window + 1 > 0 ? position - window + 1 : 0; i < n; i++) {
            int32_t block = seq->tables[g][i / KV_BT];
            if (block < 0 || w->content[g][block * KV_BT + i % KV_BT] != hashes[i]) {
                CHECKF(false, "group %d, token %d sees a wrong token %d", g, position, i);
                return;
            }
        }
    }
}

/* References, tables and counts of one group. Fills state[]. */
static bool kv_check_refs(const kv_world *w, int g, int *state) {
    const fg__kv_group *group = &w->kv.groups[g];
    int32_t refs[KV_MAX_BLOCKS] = {0}, i, n_used = 0;
    int s;
    bool ok = true;
    for (s = 0; s < w->n_seqs; s++) {
        const fg__kv_seq *seq = w->seqs[s];
        ok = ok && seq->n_blocks <= seq->capacity && seq->first_live[g] <= seq->n_blocks;
        for (i = 0; ok && i < seq->n_blocks; i++) {
            int32_t block = seq->tables[g][i];
            if (i < seq->first_live[g]) ok = block == -1;
            else if (block == -1 && group->state) continue; /* not kept */
            else if (block < 0 || block >= group->n_blocks) ok = false;
            else refs[block]++;
        }
    }
    for (i = 0; i < group->n_blocks; i++) {
        ok = ok && refs[i] == group->blocks[i].refs;
        state[i] = refs[i] ? KV_USED : group->blocks[i].has_key ? KV_CACHED : KV_FREE;
        n_used += refs[i] > 0;
    }
    return ok && n_used + group->n_free + group->n_cached == group->n_blocks;
}

/* The free list has the free blocks, the LRU list the cached ones, forwards and backwards, the oldest first. */
static bool kv_check_lists(const kv_world *w, int g, const int *state) {
    const fg__kv_group *group = &w->kv.groups[g];
    int32_t i, before = -1, n = 0;
    uint64_t since = 0;
    for (i = group->free_head; i >= 0 && n <= group->n_blocks; i = group->blocks[i].next, n++)
        if (state[i] != KV_FREE) return false;
    if (n != group->n_free) return false;
    for (n = 0, i = group->lru_head; i >= 0 && n <= group->n_blocks; before = i, i = group->blocks[i].next, n++) {
        if (state[i] != KV_CACHED || group->blocks[i].prev != before) return false;
        if (w->since[g][i] < since && !w->coarse) return false;
        since = w->since[g][i];
    }
    return n == group->n_cached && group->lru_tail == before;
}

/* The hash table has the blocks with keys, each under its own, once. */
static bool kv_check_table(const kv_world *w, int g) {
    const fg__kv_group *group = &w->kv.groups[g];
    int32_t i, n = 0, keyed = 0;
    uint32_t b;
    for (b = 0; b <= group->bucket_mask; b++)
        for (i = group->buckets[b]; i >= 0; i = group->blocks[i].chain)
            if (++n > group->n_blocks || !group->blocks[i].has_key || (group->blocks[i].key.a & group->bucket_mask) != b) return false;
    for (i = 0; i < group->n_blocks; i++) {
        if (!group->blocks[i].has_key) continue;
        keyed++;
        if (fg__kv_find(group, group->blocks[i].key) != i) return false;
    }
    return n == keyed;
}

/* Cached blocks are taken only when no free one is left, and the oldest are. `state`: after the operation. */
static bool kv_check_eviction(kv_world *w, int g, const int *state) {
    const fg__kv_group *group = &w->kv.groups[g];
    uint64_t oldest_kept = UINT64_MAX, newest_gone = 0;
    int32_t i;
    bool ok = true;
    for (i = 0; i < group->n_blocks; i++) {
        bool was = w->state[g][i] == KV_CACHED;
        if (was && state[i] == KV_CACHED) oldest_kept = FG__MIN(oldest_kept, w->since[g][i]);
        if (was && state[i] == KV_FREE && group->state) continue; /* a later state took its place */
        if (was && state[i] != KV_CACHED && !group->blocks[i].has_key) newest_gone = FG__MAX(newest_gone, w->since[g][i]);
        if (!was && state[i] == KV_CACHED) w->since[g][i] = w->n_operations;
    }
    if (newest_gone && !w->forgot && !w->coarse) ok = newest_gone <= oldest_kept;
    memcpy(w->state[g], state, (size_t)group->n_blocks * sizeof(int));
    return ok;
}

/* All invariants; to be called after each operation. False, after a failed CHECK, when one is broken. */
static bool kv_check(kv_world *w) {
    int state[KV_MAX_BLOCKS], g;
    bool refs = true, eviction = true, lists = true, table = true;
    w->n_operations++;
    for (g = 0; g < w->kv.n_groups; g++) {
        refs = refs && kv_check_refs(w, g, state);
        eviction = eviction && kv_check_eviction(w, g, state);
        lists = lists && kv_check_lists(w, g, state);
        table = table && kv_check_table(w, g);
    }
    w->forgot = false;
    CHECKF(refs, "after operation %llu", (unsigned long long)w->n_operations);
    CHECKF(lists, "after operation %llu", (unsigned long long)w->n_operations);
    CHECKF(table, "after operation %llu", (unsigned long long)w->n_operations);
    CHECKF(eviction, "after operation %llu", (unsigned long long)w->n_operations);
    return refs && lists && table && eviction;
}

/* True when group g has a findable block that holds the sequence up to the end of block i. */
static bool kv_has(const kv_world *w, int g, const uint64_t *hashes, int i) {
    const fg__kv_group *group = &w->kv.groups[g];
    int32_t b;
    for (b = 0; b < group->n_blocks; b++)
        if (group->blocks[b].has_key && w->content[g][b * KV_BT + KV_BT - 1] == hashes[i * KV_BT + KV_BT - 1]) return true;
    return false;
}

/* The longest cached prefix, the slow way: of blocks 0..n-1 every group has those that token n * KV_BT sees. */
static int kv_best_prefix(const kv_world *w, const uint64_t *hashes, int n_tokens) {
    int n, g, i, best = 0;
    for (n = 1; n * KV_BT < n_tokens; n++) {
        bool all = true;
        for (g = 0; all && g < w->kv.n_groups; g++) {
            int window = w->kv.groups[g].window, first = window && n * KV_BT >= window ? n * KV_BT - window + 1 : 0;
            for (i = first / KV_BT; all && i < n; i++) all = kv_has(w, g, hashes, i);
        }
        if (all) best = n;
    }
    return best * KV_BT;
}

/* ---- the block manager alone: a million random operations */

typedef struct kv_user {
    int32_t tokens[KV_MAX_TOKENS];
    uint64_t hashes[KV_MAX_TOKENS];
    int n_tokens, n_computed; /* n_tokens 0: this one does not exist */
    fg__kv_seq seq;
} kv_user;

static void kv_user_new(kv_world *w, kv_user *u) {
    int expected, cached;
    u->n_tokens = 1 + kv_below(w, KV_MAX_TOKENS);
    kv_tokens(w, u->tokens, u->n_tokens);
    kv_hashes(u->tokens, u->n_tokens, u->hashes);
    u->n_computed = 0;
    if (kv_below(w, 8) == 0) return; /* as one that wants all its logits */
    expected = w->kv.prefix_cache ? kv_best_prefix(w, u->hashes, u->n_tokens) : 0;
    cached = fg__kv_match(&w->kv, &u->seq, u->tokens, u->n_tokens);
    CHECKF(cached == expected, "%d tokens found, %d are cached", cached, expected);
    u->n_computed = cached;
    kv_see(w, &u->seq, u->hashes, cached, cached);
}

static void kv_user_end(kv_world *w, kv_user *u) {
    fg__kv_release(&w->kv, &u->seq);
    u->n_tokens = 0;
}

static void kv_user_fork(kv_world *w, const kv_user *from, kv_user *to) {
    memcpy(to->tokens, from->tokens, sizeof(to->tokens));
    to->n_tokens = from->n_tokens;
    to->n_computed = from->n_computed;
    if (to->n_tokens < KV_MAX_TOKENS) to->tokens[to->n_tokens++] = kv_below(w, 100);
    else if (to->n_computed < to->n_tokens) to->tokens[to->n_computed] = 1000 + kv_below(w, 100);
    kv_hashes(to->tokens, to->n_tokens, to->hashes);
    fg__kv_fork(&w->kv, &from->seq, &to->seq);
}

/* Computes some more tokens if there is room, as the scheduler does: grow, copy, write, commit, trim. */
static void kv_user_run(kv_world *w, kv_user *u) {
    fg_block_copy copies[FG_MAX_GROUPS];
    int left = u->n_tokens - u->n_computed, n_copies = 0, i, g, to, before[FG_MAX_GROUPS];
    if (!left) return;
    to = u->n_computed + 1 + kv_below(w, FG__MIN(left, 24));
    for (g = 0; g < w->kv.n_groups; g++) before[g] = fg__kv_available(&w->kv.groups[g]);
    if (!fg__kv_grow(&w->kv, &u->seq, u->n_computed, to, copies, &n_copies)) {
        bool scarce = false;
        for (g = 0; g < w->kv.n_groups; g++) {
            scarce = scarce || before[g] < (to + KV_BT - 1) / KV_BT - u->seq.n_blocks + 1;
            CHECK(before[g] == fg__kv_available(&w->kv.groups[g]));
        }
        CHECK(scarce && n_copies == 0);
        return;
    }
    CHECK(n_copies <= w->kv.n_groups && kv_check(w));
    kv_copy(w, copies, n_copies);
    kv_write(w, &u->seq, u->hashes, u->n_computed, to);
    for (i = u->n_computed; i < to; i++) kv_see(w, &u->seq, u->hashes, i, i + 1);
    u->n_computed = to;
    fg__kv_commit(&w->kv, &u->seq, u->tokens, to);
    fg__kv_trim(&w->kv, &u->seq, to);
}

static void kv_operation(kv_world *w, kv_user *users) {
    kv_user *u = &users[kv_below(w, KV_MAX_SEQS)], *other = &users[kv_below(w, KV_MAX_SEQS)];
    int what = kv_below(w, 1000);
    if (!u->n_tokens) kv_user_new(w, u);
    else if (what < 120) kv_user_end(w, u);
    else if (what < 200 && other->n_tokens == 0) kv_user_fork(w, u, other);
    else if (what == 200) fg__kv_forget(&w->kv), w->forgot = true;
    else kv_user_run(w, u);
}

static void kv_million(const int32_t *windows, int n_groups, const int32_t *n_blocks, bool cache, int n) {
    kv_world *w = (kv_world *)malloc(sizeof(kv_world));
    kv_user *users = (kv_user *)calloc(KV_MAX_SEQS, sizeof(kv_user));
    int i, g, u;
    kv_world_begin(w, windows, n_groups, n_blocks, cache);
    for (u = 0; u < KV_MAX_SEQS; u++) {
        CHECK(fg__kv_seq_init(&w->kv, &users[u].seq, KV_MAX_TOKENS) == FG_OK);
        w->seqs[w->n_seqs++] = &users[u].seq;
    }
    for (i = 0; i < n; i++) {
        kv_operation(w, users);
        if (!kv_check(w)) break;
        if (i % 64) continue;
        for (u = 0; u < KV_MAX_SEQS; u++)
            if (users[u].n_tokens) kv_see(w, &users[u].seq, users[u].hashes, users[u].n_computed, users[u].n_computed);
    }
    for (u = 0; u < KV_MAX_SEQS; u++) {
        fg__kv_release(&w->kv, &users[u].seq);
        fg__kv_seq_destroy(&w->env, &users[u].seq);
    }
    for (g = 0; g < n_groups; g++) CHECK(fg__kv_available(&w->kv.groups[g]) == n_blocks[g]);
    fg__kv_destroy(&w->kv);
    free(users);
    free(w);
}

static void test_kv_full(void) {
    static const int32_t windows[] = {0}, n_blocks[] = {90};
    kv_million(windows, 1, n_blocks, true, 300000);
}

static void test_kv_window(void) {
    static const int32_t windows[] = {13}, n_blocks[] = {60};
    kv_million(windows, 1, n_blocks, true, 300000);
}

static void test_kv_mixed(void) {
    static const int32_t windows[] = {0, 10, 1}, n_blocks[] = {96, 50, 40};
    kv_million(windows, 2, n_blocks, true, 250000);
    kv_million(windows, 3, n_blocks, true, 50000);
}

static void test_kv_uncached(void) {
    static const int32_t windows[] = {16, 0}, n_blocks[] = {50, 80};
    kv_million(windows, 2, n_blocks, false, 100000);
}

/* With few states, so that they are what is short, and with many; beside a window; without the prefix cache. */
static void test_kv_state(void) {
    static const int32_t windows[] = {0, KV_STATE, 10}, few[] = {96, 30, 50}, many[] = {60, 90, 40};
    kv_million(windows, 2, few, true, 150000);
    kv_million(windows, 2, many, true, 100000);
    kv_million(windows, 3, few, true, 50000);
    kv_million(windows + 1, 1, few + 1, true, 50000);
    kv_million(windows, 2, few, false, 50000);
}

/* Keys depend on the salt, on the parent and on each token. */
static void test_kv_keys(void) {
    int32_t tokens[32];
    fg__key parent = {1, 2}, other = {1, 3}, key;
    int i;
    for (i = 0; i < 32; i++) tokens[i] = i;
    key = fg__key_of(parent, tokens, 32);
    CHECK(fg__key_equal(key, fg__key_of(parent, tokens, 32)));
    CHECK(!fg__key_equal(key, fg__key_of(other, tokens, 32)));
    for (i = 0; i < 32; i++) {
        fg__key changed;
        tokens[i] ^= 1;
        changed = fg__key_of(parent, tokens, 32);
        CHECK(changed.a != key.a && changed.b != key.b);
        tokens[i] ^= 1;
    }
}

/* A sequence never holds more blocks than fg__kv_peak says. */
static void test_kv_peak(void) {
    static const int32_t windows[] = {0, 9, KV_STATE}, n_blocks[] = {64, 64, 64};
    kv_world *w = (kv_world *)malloc(sizeof(kv_world));
    int chunk, g, i, states = 0, longest = 0;
    for (chunk = 1; chunk < 30; chunk++) {
        fg__kv_seq seq;
        int32_t tokens[KV_MAX_TOKENS], most[3] = {0, 0, 0};
        int at = 0, n = 150, n_copies = 0;
        kv_world_begin(w, windows, 3, n_blocks, true);
        kv_tokens(w, tokens, n);
        CHECK(fg__kv_seq_init(&w->kv, &seq, n) == FG_OK);
        while (at < n) {
            int to = FG__MIN(at + chunk, n);
            CHECK(fg__kv_grow(&w->kv, &seq, at, to, NULL, &n_copies));
            for (g = 0; g < 2; g++) most[g] = FG__MAX(most[g], seq.n_blocks - seq.first_live[g]);
            for (states = 0, i = seq.first_live[2]; i < seq.n_blocks; i++) states += seq.tables[2][i] >= 0;
            most[2] = FG__MAX(most[2], states);
            fg__kv_commit(&w->kv, &seq, tokens, to);
            fg__kv_trim(&w->kv, &seq, to);
            at = to;
        }
        for (g = 0; g < 3; g++) CHECK(most[g] <= fg__kv_peak(&w->kv, g, n, chunk));
        CHECK(most[0] == 38 && most[2] >= 2);
        longest = FG__MAX(longest, most[2]);
        fg__kv_release(&w->kv, &seq);
        fg__kv_seq_destroy(&w->env, &seq);
        fg__kv_destroy(&w->kv);
    }
    CHECK(longest == 3); /* where it begins, the last full block, and where it ends; a fourth where it leaves what others have */
    free(w);
}

/* Of a released prefix the end is forgotten first: what is left can still be found. */
static void test_kv_release_order(void) {
    static const int32_t windows[] = {0}, n_blocks[] = {8};
    kv_world *w = (kv_world *)malloc(sizeof(kv_world));
    fg__kv_seq seq, other;
    int32_t tokens[KV_MAX_TOKENS];
    int i, n_copies = 0;
    kv_world_begin(w, windows, 1, n_blocks, true);
    kv_tokens(w, tokens, 20);
    CHECK(fg__kv_seq_init(&w->kv, &seq, 20) == FG_OK && fg__kv_seq_init(&w->kv, &other, 32) == FG_OK);
    CHECK(fg__kv_grow(&w->kv, &seq, 0, 20, NULL, &n_copies));
    fg__kv_commit(&w->kv, &seq, tokens, 20);
    fg__kv_release(&w->kv, &seq);
    for (i = 3; i <= 8; i++) { /* three blocks are free; each more takes one of the five */
        CHECK(fg__kv_grow(&w->kv, &other, 0, i * KV_BT, NULL, &n_copies));
        CHECK(fg__kv_lookup(&w->kv, &seq, tokens, 20) == FG__MIN(8 - i, 4));
    }
    CHECK(!fg__kv_grow(&w->kv, &other, 0, 32 + 1, NULL, &n_copies));
    fg__kv_release(&w->kv, &other);
    fg__kv_seq_destroy(&w->env, &seq);
    fg__kv_seq_destroy(&w->env, &other);
    fg__kv_destroy(&w->kv);
    free(w);
}

static void run_kv_tests(void) {
    RUN(test_kv_keys);
    RUN(test_kv_peak);
    RUN(test_kv_release_order);
    RUN(test_kv_full);
    RUN(test_kv_window);
    RUN(test_kv_mixed);
    RUN(test_kv_uncached);
    RUN(test_kv_state);
}
