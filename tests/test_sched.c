/* The scheduler over the block manager, driven as the engine drives it, but with kv_world (test_kv.c) for a device: what every
   scheduled token sees is checked, beside all invariants of the blocks. */

typedef struct sched_user {
    fg__seq seq; /* the first member */
    int32_t tokens[KV_MAX_TOKENS + 1];
    uint64_t hashes[KV_MAX_TOKENS + 1];
    int target;  /* it ends with this many tokens; 0: it does not exist */
} sched_user;

typedef struct sched_world {
    kv_world w;
    fg__sched s;
    sched_user users[KV_MAX_SEQS];
    int budget;
    int n_ended, n_added;
    int patience; /* of new ones */
    uint64_t pass_tokens, pass_prompts, pass_decodes; /* of the last pass */
} sched_world;

static void sched_begin(sched_world *t, fg_policy policy, const int32_t *windows, int n_groups, int n_blocks, int budget, int max_seqs) {
    int32_t blocks[FG_MAX_GROUPS], max_tokens = policy == FG_POLICY_SPLITFUSE ? budget : KV_MAX_TOKENS + max_seqs;
    fg_engine_desc desc;
    int g, u;
    memset(t, 0, sizeof(*t));
    memset(&desc, 0, sizeof(desc));
    desc.policy = policy;
    desc.max_seqs = max_seqs;
    t->budget = budget;
    for (g = 0; g < n_groups; g++) { /* as fg__engine_group_blocks */
        int each = windows[g] == KV_STATE ? 9 : (windows[g] + max_tokens + KV_BT - 1) / KV_BT + 2;
        blocks[g] = windows[g] ? FG__MIN(n_blocks, each) : n_blocks;
    }
    kv_world_begin(&t->w, windows, n_groups, blocks, true);
    t->w.coarse = true;
    CHECK(fg__sched_init(&t->s, &t->w.env, &t->w.kv, &desc, max_tokens, FG__MAX(max_seqs, 16)) == FG_OK);
    for (u = 0; u < KV_MAX_SEQS; u++) {
        CHECK(fg__kv_seq_init(&t->w.kv, &t->users[u].seq.kv, KV_MAX_TOKENS) == FG_OK);
        t->w.seqs[t->w.n_seqs++] = &t->users[u].seq.kv;
    }
}

/* Frees all; every block must have come back. */
static void sched_end(sched_world *t) {
    int g, u;
    for (u = 0; u < KV_MAX_SEQS; u++) {
        if (t->users[u].target) fg__sched_remove(&t->s, &t->users[u].seq);
        fg__kv_seq_destroy(&t->w.env, &t->users[u].seq.kv);
    }
    for (g = 0; g < t->w.kv.n_groups; g++) CHECK(fg__kv_available(&t->w.kv.groups[g]) == t->w.kv.groups[g].n_blocks);
    fg__sched_destroy(&t->s);
    fg__kv_destroy(&t->w.kv);
}

static sched_user *sched_free_user(sched_world *t) {
    int u;
    for (u = 0; u < KV_MAX_SEQS; u++)
        if (!t->users[u].target) return &t->users[u];
    return NULL;
}

/* A new sequence whose prompt is in u->tokens. */
static void sched_start(sched_world *t, sched_user *u, int n_prompt, int target, int head_start, bool every_row) {
    fg__kv_seq kv = u->seq.kv;
    memset(&u->seq, 0, sizeof(u->seq));
    u->seq.kv = kv;
    u->seq.tokens = u->tokens;
    u->seq.n_tokens = n_prompt;
    u->seq.no_match = u->seq.every_row = every_row;
    u->seq.patience = t->patience;
    u->target = target;
    kv_hashes(u->tokens, n_prompt, u->hashes);
    CHECK(fg__sched_add(&t->s, &u->seq, head_start) == FG_OK);
    t->n_added++;
}

/* One with a prompt of a single value, for tests that count. */
static sched_user *sched_add(sched_world *t, int n_prompt, int target, int head_start) {
    sched_user *u = sched_free_user(t);
    int i;
    if (!u) return NULL;
    for (i = 0; i < n_prompt; i++) u->tokens[i] = 200 + t->n_added;
    sched_start(t, u, n_prompt, target, head_start, false);
    return u;
}

static void sched_add_random(sched_world *t) {
    sched_user *u = sched_free_user(t);
    int n_prompt = 1 + kv_below(&t->w, kv_below(&t->w, 2) ? 12 : KV_MAX_TOKENS - 1);
    int target = n_prompt + 1 + kv_below(&t->w, kv_below(&t->w, 3) ? 12 : 60);
    if (!u) return;
    t->patience = kv_below(&t->w, 16);
    kv_tokens(&t->w, u->tokens, n_prompt);
    sched_start(t, u, n_prompt, FG__MIN(target, KV_MAX_TOKENS), kv_below(&t->w, 3) * 16, kv_below(&t->w, 12) == 0);
}

static void sched_append(sched_user *u, int32_t token) {
    u->tokens[u->seq.n_tokens++] = token;
    kv_hashes(u->tokens, u->seq.n_tokens, u->hashes);
}

static void sched_finish(sched_world *t, sched_user *u) {
    fg__sched_remove(&t->s, &u->seq);
    u->target = 0;
    t->n_ended++;
}

/* Whoever goes first, running or waiting. */
static sched_user *sched_first(sched_world *t) {
    sched_user *first = NULL;
    int u;
    for (u = 0; u < KV_MAX_SEQS; u++)
        if (t->users[u].target && (!first || fg__seq_before(&t->users[u].seq, &first->seq))) first = &t->users[u];
    return first;
}

/* Order, sizes and what is allowed in one pass. `budget`: what was asked. */
static void sched_check_pass(sched_world *t, int budget, const sched_user *first) {
    const fg__sched *s = &t->s;
    bool whole = s->policy != FG_POLICY_SPLITFUSE;
    int64_t sum = 0, decodes = 0;
    int rows = 0, starts = 0;
    size_t i;
    for (i = 0; i < s->pass.count; i++) {
        const fg__seq *seq = s->pass.items[i], *before = i ? s->pass.items[i - 1] : NULL;
        bool decode = fg__seq_left(seq) == 1 && seq->n_computed > seq->n_cached;
        CHECK(seq->running && seq->n_scheduled >= 1 && seq->n_computed + seq->n_scheduled <= seq->n_tokens);
        if (before) CHECK(before->n_scheduled == 1 || seq->n_scheduled > 1);
        if (before && (before->n_scheduled == 1) == (seq->n_scheduled == 1)) CHECK(fg__seq_before(before, seq));
        if (whole && !seq->every_row) CHECK(seq->n_computed + seq->n_scheduled == seq->n_tokens);
        sum += seq->n_scheduled;
        decodes += decode;
        starts += !decode;
        rows += seq->every_row ? seq->n_scheduled : 1;
    }
    CHECK(rows <= s->max_rows && sum <= s->max_tokens && s->pass.count <= (size_t)s->max_seqs);
    CHECK(s->n_copies <= s->max_seqs * t->w.kv.n_groups);
    if (!whole) CHECK(sum <= budget);
    else CHECK(sum <= budget || starts == 1 || s->policy == FG_POLICY_ORCA);
    if (s->policy == FG_POLICY_STATIC || !first || first->seq.n_scheduled) return;
    /* the first in the order may stand back for one reason only: others' turn, of which the policy says that it comes first */
    if (s->policy == FG_POLICY_PREFILL_FIRST && starts > 0) return;
    CHECK(decodes >= budget || decodes >= s->max_rows);
}

/* Counts the pass, "computes" it, and lets every sequence that came to its end have its next token. */
static void sched_compute(sched_world *t) {
    fg__sched *s = &t->s;
    sched_user *pass[KV_MAX_SEQS];
    int to[KV_MAX_SEQS], i, j, count = (int)s->pass.count;
    t->pass_tokens = t->pass_prompts = t->pass_decodes = 0;
    kv_copy(&t->w, s->copies, s->n_copies);
    for (i = 0; i < count; i++) {
        fg__seq *seq = s->pass.items[i];
        pass[i] = (sched_user *)(void *)seq;
        to[i] = seq->n_computed + seq->n_scheduled;
        t->pass_tokens += (uint64_t)seq->n_scheduled;
        if (to[i] == seq->n_tokens && seq->n_scheduled == 1 && seq->n_computed > seq->n_cached) t->pass_decodes++;
        else t->pass_prompts++;
        kv_write(&t->w, &seq->kv, pass[i]->hashes, seq->n_computed, to[i]);
    }
    for (i = 0; i < count; i++)
        for (j = pass[i]->seq.n_computed; j < to[i]; j++) kv_see(&t->w, &pass[i]->seq.kv, pass[i]->hashes, j, j + 1);
    fg__sched_launched(s);
    for (i = 0; i < count; i++) {
        fg__sched_landed(s, &pass[i]->seq, false);
        fg__sched_settle(s, &pass[i]->seq, to[i]);
    }
    for (i = 0; i < count; i++) {
        sched_user *u = pass[i];
        CHECK(u->seq.n_computed == to[i] && u->seq.n_scheduled == 0);
        if (to[i] < u->seq.n_tokens) continue;
        sched_append(u, (int32_t)(u->hashes[to[i] - 1] % 50));
        if (u->seq.n_tokens == u->target) sched_finish(t, u);
    }
}

/* One pass with all its checks. False: there was none. */
static bool sched_pass(sched_world *t, int budget) {
    sched_user *first = sched_first(t);
    uint32_t preemptions = first ? first->seq.n_preemptions : 0;
    bool any = fg__sched_pass(&t->s, budget);
    CHECK(any == (first != NULL));
    if (first) CHECK(first->seq.n_preemptions == preemptions);
    sched_check_pass(t, budget, first);
    CHECK(kv_check(&t->w));
    sched_compute(t);
    return any;
}

/* Lets another sequence go on where a running one is, with another next token. */
static void sched_fork(sched_world *t) {
    sched_user *from = &t->users[kv_below(&t->w, KV_MAX_SEQS)], *to = sched_free_user(t);
    fg__kv_seq kv;
    int n;
    if (!to || !from->target || !from->seq.running || from->seq.n_computed == 0) return;
    n = from->seq.n_computed;
    kv = to->seq.kv;
    memset(&to->seq, 0, sizeof(to->seq));
    to->seq.kv = kv;
    to->seq.tokens = to->tokens;
    memcpy(to->tokens, from->tokens, (size_t)n * sizeof(int32_t));
    to->seq.n_tokens = n;
    sched_append(to, 60 + kv_below(&t->w, 40));
    if (!fg__sched_fork(&t->s, &from->seq, &to->seq)) {
        CHECK(t->s.running.count == (size_t)t->s.max_seqs);
        return;
    }
    n += 2 + kv_below(&t->w, 40);
    to->target = FG__MIN(n, KV_MAX_TOKENS);
    t->n_added++;
    if (to->seq.n_tokens >= to->target) sched_finish(t, to);
}

static void sched_operation(sched_world *t) {
    sched_user *u = &t->users[kv_below(&t->w, KV_MAX_SEQS)];
    int what = kv_below(&t->w, 1000);
    if (what < 250) sched_add_random(t);
    else if (what < 290) sched_fork(t);
    else if (what < 320 && u->target) sched_finish(t, u); /* cancelled */
    else if (what == 320) fg__kv_forget(&t->w.kv), t->w.forgot = true;
    else sched_pass(t, kv_below(&t->w, 4) ? t->budget : 1 + kv_below(&t->w, t->budget));
    CHECK(kv_check(&t->w));
}

/* Random operations, then everybody finishes within a bounded number of passes. */
static void sched_million(fg_policy policy, const int32_t *windows, int n_groups, int budget, int max_seqs, int n) {
    sched_world *t = (sched_world *)malloc(sizeof(sched_world));
    int i, passes = 0;
    sched_begin(t, policy, windows, n_groups, KV_MAX_TOKENS / KV_BT, budget, max_seqs);
    t->w.random = (uint64_t)policy * 1000 + (uint64_t)budget * 10 + (uint64_t)n_groups;
    for (i = 0; i < n && test_failures == 0; i++) sched_operation(t);
    while (sched_first(t) && passes < 100000 && test_failures == 0) passes += sched_pass(t, budget);
    CHECKF(t->n_ended == t->n_added, "%d of %d ended", t->n_ended, t->n_added);
    CHECK(t->s.prefix_hits > 0);
    if (!windows[0]) CHECK(t->s.n_preemptions > 0); /* windows alone need few blocks */
    sched_end(t);
    free(t);
}

enum { SCHED_WINDOWS = 5 };
static const int32_t sched_windows[SCHED_WINDOWS][3] = {{0, 0, 0}, {11, 0, 0}, {0, 9, 0}, {20, 0, 3}, {0, KV_STATE, 0}};
static const int sched_groups[SCHED_WINDOWS] = {1, 1, 2, 3, 2};

static void sched_policy(fg_policy policy, int n) {
    int i;
    for (i = 0; i < SCHED_WINDOWS; i++) {
        sched_million(policy, sched_windows[i], sched_groups[i], 16, 8, n / 8);
        sched_million(policy, sched_windows[i], sched_groups[i], 50, 20, n / 8);
    }
}

static void test_sched_random_splitfuse(void) { sched_policy(FG_POLICY_SPLITFUSE, 400000); }
static void test_sched_random_prefill_first(void) { sched_policy(FG_POLICY_PREFILL_FIRST, 200000); }
static void test_sched_random_orca(void) { sched_policy(FG_POLICY_ORCA, 200000); }
static void test_sched_random_static(void) { sched_policy(FG_POLICY_STATIC, 200000); }

/* ---- what the policies mean */

static sched_world *sched_new(fg_policy policy, int n_blocks, int budget, int max_seqs) {
    static const int32_t windows[] = {0};
    sched_world *t = (sched_world *)malloc(sizeof(sched_world));
    sched_begin(t, policy, windows, 1, n_blocks, budget, max_seqs);
    return t;
}

static void sched_free(sched_world *t) {
    sched_end(t);
    free(t);
}

/* P tokens that need F = ceil(P / budget) passes are cut into ceil(P / F). */
static void test_sched_even_split(void) {
    static const int pools[][4] = {{100, 64, 50, 50}, {130, 64, 44, 43}, {128, 64, 64, 64}, {129, 64, 43, 43}, {10, 64, 10, 0}};
    int64_t pool;
    int budget, i;
    for (budget = 1; budget < 300; budget += 13)
        for (pool = 0; pool < 2000; pool += 7) {
            int64_t f = pool / budget + (pool % budget != 0), want = f ? pool / f + (pool % f != 0) : 0;
            CHECK(fg__even_split(pool, budget) == want);
        }
    CHECK(fg__even_split((int64_t)1 << 40, 256) == 256);
    for (i = 0; i < 5; i++) { /* as the passes of one prompt, and of three that make it up */
        int parts;
        for (parts = 1; parts <= 3; parts += 2) {
            sched_world *t = sched_new(FG_POLICY_SPLITFUSE, 90, pools[i][1], 8);
            int left = pools[i][0], part;
            for (part = 0; part < parts; part++) {
                int n = part + 1 < parts ? pools[i][0] / 3 : left;
                sched_add(t, n, n + 1, 0);
                left -= n;
            }
            sched_pass(t, t->budget);
            CHECK((int)t->pass_tokens == pools[i][2]);
            if (pools[i][3]) sched_pass(t, t->budget);
            if (pools[i][3]) CHECK((int)t->pass_tokens == pools[i][3]);
            sched_free(t);
        }
    }
}

/* Decodes first, the rest of the budget to prompts, the last cut to meet it exactly. */
static void test_sched_splitfuse(void) {
    sched_world *t = sched_new(FG_POLICY_SPLITFUSE, 90, 32, 16);
    sched_user *prompt;
    int i;
    t->s.even_split = false;
    for (i = 0; i < 4; i++) sched_add(t, 4, 60, 0);
    sched_pass(t, 32);
    CHECK(t->pass_tokens == 16 && t->pass_prompts == 4);
    prompt = sched_add(t, 100, 110, 0);
    sched_pass(t, 32);
    CHECK(t->pass_tokens == 32 && t->pass_decodes == 4 && prompt->seq.n_computed == 28);
    sched_pass(t, 32);
    CHECK(t->pass_tokens == 32 && prompt->seq.n_computed == 56);
    sched_pass(t, 5); /* a smaller budget: decodes still come first */
    CHECK(t->pass_tokens == 5 && t->pass_decodes == 4 && prompt->seq.n_computed == 57);
    sched_pass(t, 3);
    CHECK(t->pass_tokens == 3 && t->pass_decodes == 3 && prompt->seq.n_computed == 57);
    prompt = sched_add(t, 100, 110, 1000); /* decodes come before the first prompt in the order, too */
    sched_pass(t, 10);
    CHECK(t->pass_tokens == 10 && t->pass_decodes == 4 && prompt->seq.n_computed == 6);
    sched_free(t);
}

static void test_sched_prefill_first(void) {
    sched_world *t = sched_new(FG_POLICY_PREFILL_FIRST, 90, 32, 16);
    sched_user *old = sched_add(t, 4, 60, 0);
    int i, tokens;
    sched_pass(t, 32);
    CHECK(t->pass_tokens == 4);
    sched_pass(t, 32);
    CHECK(t->pass_tokens == 1 && t->pass_decodes == 1);
    for (i = 0; i < 4; i++) { /* every pass has a new prompt: decodes stall */
        tokens = old->seq.n_tokens;
        sched_add(t, 20 + 10 * i, 100, 0);
        sched_pass(t, 32);
        CHECK(t->pass_decodes == 0 && (int)t->pass_tokens == 20 + 10 * i && old->seq.n_tokens == tokens);
    }
    sched_pass(t, 32);
    CHECK(t->pass_decodes == 5 && t->pass_prompts == 0);
    sched_free(t);
}

static void test_sched_orca(void) {
    sched_world *t = sched_new(FG_POLICY_ORCA, 90, 32, 16);
    sched_user *a, *b;
    sched_add(t, 4, 60, 0);
    sched_pass(t, 32);
    a = sched_add(t, 100, 110, 0); /* over the budget, but whole, beside the decode */
    b = sched_add(t, 20, 30, 0);
    sched_pass(t, 32);
    CHECK(t->pass_decodes == 1 && t->pass_tokens == 101 && a->seq.n_computed == 100 && b->seq.n_computed == 0);
    sched_pass(t, 32);
    CHECK(t->pass_decodes == 2 && t->pass_tokens == 22 && b->seq.n_computed == 20);
    sched_free(t);
}

static void test_sched_static(void) {
    sched_world *t = sched_new(FG_POLICY_STATIC, 90, 32, 4);
    sched_user *late;
    int i, passes;
    for (i = 0; i < 6; i++) sched_add(t, 10, 15 + i, 0);
    sched_pass(t, 32); /* 4 have a place; 3 prompts of 10 fit the budget */
    CHECK(t->pass_tokens == 30 && t->s.running.count == 4 && t->s.waiting.count == 2);
    late = sched_add(t, 5, 10, 1000);
    for (passes = 0; t->n_ended < 4 && passes < 40; passes++) {
        CHECK(late->seq.n_computed == 0 && t->s.waiting.count == 3);
        sched_pass(t, 32);
    }
    CHECK(passes == 1 + 7); /* the fourth prompt, and the rest of its 8 tokens */
    CHECK(t->s.running.count == 0);
    sched_pass(t, 32);
    CHECK(t->s.running.count == 3 && late->seq.n_computed == 5);
    sched_free(t);
}

/* Three prompts that fill the pool together: the newest gives way, the oldest never does, all end. */
static void test_sched_preemption(void) {
    sched_world *t = sched_new(FG_POLICY_SPLITFUSE, 20, 64, 8);
    sched_user *users[3];
    uint32_t preemptions[3] = {0, 0, 0};
    int i, passes = 0;
    for (i = 0; i < 3; i++) users[i] = sched_add(t, 20, 80, 0);
    while (sched_first(t) && passes++ < 1000) {
        sched_pass(t, 64);
        for (i = 0; i < 3; i++)
            if (users[i]->target) preemptions[i] = users[i]->seq.n_preemptions;
    }
    CHECK(t->n_ended == 3 && preemptions[0] == 0 && preemptions[1] >= 1 && preemptions[2] >= 1);
    sched_free(t);
}

/* Under endless arrivals of higher priority a low one waits until their head start is used up, and no longer. */
static void sched_starve(fg_policy policy) {
    sched_world *t = sched_new(policy, KV_MAX_TOKENS / KV_BT, 16, 8);
    int passes, head_start = 40;
    sched_user *low = sched_add(t, 150, 156, 0), *u;
    uint64_t serial = low->seq.serial;
    for (passes = 0; passes < 2000 && low->target && low->seq.serial == serial; passes++) {
        sched_add(t, 12, 30, head_start);
        if ((u = sched_free_user(t)) != NULL) sched_add(t, 3, 40, head_start);
        sched_pass(t, 16);
    }
    /* those that arrived before: 40 passes of up to two sequences of at most 40 tokens, by the budget or one by one */
    CHECKF(passes > head_start && passes < head_start + 400, "policy %d: %d passes", (int)policy, passes);
    sched_free(t);
}

static void test_sched_starvation(void) {
    sched_starve(FG_POLICY_SPLITFUSE);
    sched_starve(FG_POLICY_PREFILL_FIRST);
    sched_starve(FG_POLICY_ORCA);
    sched_starve(FG_POLICY_STATIC);
}

/* A newcomer of higher priority goes before a long prompt that runs, and takes the place of the last when none is free. */
static void test_sched_priority(void) {
    sched_world *t = sched_new(FG_POLICY_SPLITFUSE, 90, 16, 2);
    sched_user *a = sched_add(t, 100, 110, 0), *b = sched_add(t, 50, 60, 0), *high;
    t->s.even_split = false;
    sched_pass(t, 16);
    CHECK(a->seq.n_computed == 16 && b->seq.n_computed == 0);
    high = sched_add(t, 20, 22, 10);
    sched_pass(t, 16);
    CHECK(high->seq.n_computed == 16 && a->seq.n_computed == 16);
    sched_add(t, 10, 12, 20);
    sched_pass(t, 16);
    CHECK(a->seq.n_preemptions == 1 && high->seq.n_computed == 20);
    CHECK(t->pass_tokens == 14);
    sched_free(t);
}

/* Head starts at the limits of int do not overflow. */
static void test_sched_extremes(void) {
    sched_world *t = sched_new(FG_POLICY_SPLITFUSE, 90, 64, 8);
    sched_user *u[3];
    int i;
    for (i = 0; i < 3; i++) {
        u[i] = sched_add(t, 8, 12, 0);
        fg__sched_remove(&t->s, &u[i]->seq);
        CHECK(fg__sched_add(&t->s, &u[i]->seq, (int64_t)(i == 0 ? INT_MIN : i == 1 ? 0 : INT_MAX) * INT_MAX) == FG_OK);
    }
    CHECK(sched_first(t) == u[2]);
    fg__sched_remove(&t->s, &u[2]->seq);
    u[2]->target = 0;
    t->n_ended++;
    CHECK(sched_first(t) == u[1]);
    while (sched_first(t)) sched_pass(t, 64);
    CHECK(t->n_ended == 3);
    sched_free(t);
}

/* A short prompt behind a long one is through in a few passes; with one arriving all the time the long one gets half. */
static void test_sched_short_behind_long(void) {
    sched_world *t = sched_new(FG_POLICY_SPLITFUSE, 90, 16, 16);
    sched_user *book, *question;
    uint64_t serial;
    int i, passes, most = 0;
    t->s.even_split = false;
    book = sched_add(t, 150, 158, 0);
    sched_pass(t, 16);
    CHECK(book->seq.n_computed == 16);
    question = sched_add(t, 20, 22, 0);
    serial = question->seq.serial;
    for (passes = 0; question->target && question->seq.serial == serial; passes++) sched_pass(t, 16);
    CHECK(passes == 4 && book->seq.n_computed == 16 + 8 + 8 + 12 + 15); /* 8, 8 and 4 of its tokens; then a decode */
    sched_free(t);

    t = sched_new(FG_POLICY_SPLITFUSE, 90, 16, 16);
    t->s.even_split = false;
    book = sched_add(t, 150, 158, 0);
    sched_pass(t, 16);
    for (passes = 0; book->seq.n_tokens == 150 && passes < 100; passes++) {
        while ((question = sched_free_user(t)) != NULL && t->n_added - t->n_ended < 4) sched_add(t, 14, 15, 0);
        i = book->seq.n_computed;
        sched_pass(t, 16);
        CHECK(book->seq.n_computed >= i + 8 || book->seq.n_computed >= 150);
        most = FG__MAX(most, t->n_ended);
    }
    CHECK(passes <= (150 - 16) / 8 + 1 && most >= 4);
    sched_free(t);

    t = sched_new(FG_POLICY_SPLITFUSE, 90, 16, 16); /* of higher priority, the long one shares with nobody */
    book = sched_add(t, 150, 158, 1);
    question = sched_add(t, 20, 22, 0);
    while (book->seq.n_tokens == 150) {
        CHECK(question->seq.n_computed == 0);
        sched_pass(t, 16);
    }
    sched_free(t);
}

/* Those that wait in between keep what they were promised: nobody passes them where memory is short. */
static void test_sched_short_waits_for_blocks(void) {
    sched_world *t = sched_new(FG_POLICY_SPLITFUSE, 50, 16, 16); /* 200 tokens */
    sched_user *first = sched_add(t, 120, 125, 0), *second = sched_add(t, 120, 125, 0), *third = sched_add(t, 8, 10, 0);
    uint64_t serial = first->seq.serial;
    sched_pass(t, 16);
    while (first->target && first->seq.serial == serial) {
        CHECK(second->seq.n_computed == 0 && third->seq.n_computed == 0 && second->seq.n_preemptions == 0);
        sched_pass(t, 16);
    }
    while (sched_first(t)) sched_pass(t, 16);
    CHECK(t->n_ended == 3);
    sched_free(t);
}

static sched_user *sched_add_patient(sched_world *t, int n_prompt, int patience) {
    t->patience = patience;
    return sched_add(t, n_prompt, n_prompt + 2, 0);
}

/* Of those that come together the shortest begins first; a long one begins after as many passes as it is patient, whoever
   comes; and once it has begun it is as old as it is: no short one takes its blocks. */
static void test_sched_patience(void) {
    sched_world *t = sched_new(FG_POLICY_SPLITFUSE, 90, 16, 16);
    sched_user *book = sched_add_patient(t, 60, 6), *page = sched_add_patient(t, 30, 3), *line = sched_add_patient(t, 10, 1);
    int passes;
    CHECK(fg__sched_patience(&t->s, 31) == 0 && fg__sched_patience(&t->s, 640) == 20 && fg__sched_patience(&t->s, 1 << 30) == 128);
    t->s.even_split = false;
    sched_pass(t, 16);
    CHECK(line->seq.n_computed == 10 && page->seq.n_computed == 6 && book->seq.n_computed == 0);
    CHECK(page->seq.patience == 0 && page->seq.rank == 0 && book->seq.rank == 6);
    while (page->seq.n_computed < 30) sched_pass(t, 16);
    for (passes = 2; !book->seq.n_computed && passes < 20; passes++) {
        if (sched_free_user(t)) sched_add_patient(t, 15, 1);
        sched_pass(t, 16);
    }
    CHECK(passes <= 8 && book->seq.rank == 0 && book->seq.patience == 0);
    while (sched_first(t)) sched_pass(t, 16);
    CHECK(book->seq.n_preemptions == 0);
    sched_free(t);

    t = sched_new(FG_POLICY_ORCA, 90, 16, 16);
    CHECK(fg__sched_patience(&t->s, 640) == 0); /* first come, first served */
    sched_free(t);
}

/* Of the load that those who began were to be, who ends early, is set back or taken out takes the rest along: later ones need
   not wait until passes have given it. */
static void test_sched_level(void) {
    sched_world *t = sched_new(FG_POLICY_SPLITFUSE, 90, 16, 16);
    sched_user *u;
    int i;
    t->s.level = 400;
    for (i = 0; i < 20; i++) {
        u = sched_add(t, 4, i % 2 ? 50 : 5, 0);
        u->seq.n_expected = 104; /* 100 x (4 + 50) KV tokens times passes */
        sched_pass(t, 16);
        if (i % 2) fg__sched_preempt(&t->s, &u->seq);
        CHECKF(t->s.owed < 400, "%g is owed", t->s.owed);
        if (i % 4 == 1) sched_pass(t, 16); /* it begins again */
        if (i % 2) sched_finish(t, u);
        CHECKF(t->s.owed < 400, "%g is owed", t->s.owed);
    }
    for (i = 0; i < 3; i++) sched_add(t, 4, 14, 0)->seq.n_expected = 14;
    sched_pass(t, 16);
    CHECKF(t->s.running.count == 3, "%d have begun", (int)t->s.running.count);
    while (sched_first(t)) sched_pass(t, 16);
    CHECK(t->s.owed == 0);
    sched_free(t);
}

/* Samples that will be forked count as well; and the beam that held ones of the same search wait for, with another's prompt beside
   them, is let in whatever the load, or none of them would ever go on. Another of the same rank is not. */
static void test_sched_level_beams(void) {
    sched_world *t = sched_new(FG_POLICY_SPLITFUSE, 90, 16, 16);
    sched_user *held = sched_add(t, 4, 10, 0), *other = sched_add(t, 4, 10, 0), *last;
    held->seq.n_expected = other->seq.n_expected = 10; /* 6 x (4 + 3) KV tokens times passes */
    t->s.level = 100;
    sched_pass(t, 16);
    CHECK(held->seq.running && other->seq.running);
    last = sched_add(t, 4, 10, 0);
    last->seq.n_expected = 10;
    CHECK(fg__sched_keeps_level(&t->s, &last->seq));
    last->seq.n_coming = 8;
    CHECK(!fg__sched_keeps_level(&t->s, &last->seq));
    last->seq.rank = held->seq.rank;
    held->seq.held = true;
    held->seq.beams = held;
    CHECK(!fg__sched_keeps_level(&t->s, &last->seq));
    last->seq.beams = held;
    CHECK(fg__sched_keeps_level(&t->s, &last->seq));
    last->seq.beams = NULL;
    held->seq.held = false;
    last->seq.n_coming = 0;
    while (sched_first(t)) sched_pass(t, 16);
    sched_free(t);
}

static void run_sched_tests(void) {
    RUN(test_sched_even_split);
    RUN(test_sched_splitfuse);
    RUN(test_sched_prefill_first);
    RUN(test_sched_orca);
    RUN(test_sched_static);
    RUN(test_sched_preemption);
    RUN(test_sched_starvation);
    RUN(test_sched_priority);
    RUN(test_sched_extremes);
    RUN(test_sched_short_behind_long);
    RUN(test_sched_short_waits_for_blocks);
    RUN(test_sched_patience);
    RUN(test_sched_level);
    RUN(test_sched_level_beams);
    RUN(test_sched_random_splitfuse);
    RUN(test_sched_random_prefill_first);
    RUN(test_sched_random_orca);
    RUN(test_sched_random_static);
}
