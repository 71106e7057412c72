/* Recurrent layers: STATE_SCAN against the gated delta rule in double precision, on every path, however tokens are cut into passes. */
#include "test.h"

#define STATE_SEQS 4

typedef struct state_case {
    int n_head, n_kv_head, dim, taps, tiled, block_tokens;
    int lengths[STATE_SEQS]; /* 0 ends */
    bool twin;               /* another op beside, whose layer is the first */
} state_case;

static const state_case state_cases[] = {
    /* value heads, key heads, dim, taps, tiled, block, lengths, twin */
    {2, 2, 16, 4, 1, 8, {37, 1, 8, 9}, false},   {4, 2, 32, 4, 1, 16, {50, 3, 0, 0}, false}, {6, 2, 64, 4, 0, 4, {21, 16, 4, 0}, false},
    {3, 1, 128, 4, 1, 32, {70, 33, 0, 0}, false}, {2, 1, 20, 3, 0, 8, {19, 8, 7, 0}, true},  {2, 2, 8, 1, 0, 8, {11, 2, 0, 0}, false},
    {1, 1, 96, 2, 1, 16, {33, 17, 0, 0}, false},  {4, 4, 256, 4, 0, 32, {5, 2, 0, 0}, false}, {3, 3, 33, 7, 1, 8, {21, 5, 0, 0}, false},
};
#define STATE_CASES ((int)(sizeof(state_cases) / sizeof(state_cases[0])))

static int state_width(const state_case *c) { return 2 * (c->n_kv_head + c->n_head) * c->dim + 2 * c->n_head; }

static int state_token(const state_case *c, int s, int p) {
    int i, base = 0;
    for (i = 0; i < s; i++) base += c->lengths[i];
    return base + p;
}

/* embed -> state_scan; two layers' room in a block, of which it has the second; src begins at column 3. */
static cpu_rig *state_rig(const state_case *c, int max_tokens) {
    uint64_t state = 71;
    cpu_rig *rig = cpu_rig_new(max_tokens);
    fg_group *group = &rig->graph.groups[0];
    int width = state_width(c), v = c->n_head * c->dim, i, n_blocks = 0, longest = 0, total = state_token(c, STATE_SEQS, 0);
    int x = cpu_slot(rig, width + 3, false), y = cpu_slot(rig, v + 5, false);
    fg_op *op = cpu_op(rig, FG_OP_EMBED, -1, x, width);
    float *a;
    op->weight = cpu_weight(rig, FG_TYPE_F32, width, total, FG_OP_EMBED, &state);
    op->dst_col = 3;
    op = cpu_op(rig, FG_OP_STATE_SCAN, x, y, v);
    op->src_col = 3;
    op->dst_col = 5;
    op->k = c->taps;
    op->n_head = c->n_head;
    op->n_kv_head = c->n_kv_head;
    op->head_dim = c->dim;
    op->state_tiled = c->tiled;
    op->group_layer = 1;
    op->eps = 1e-5f;
    op->weight = cpu_weight(rig, FG_TYPE_F32, c->taps, 2 * c->n_kv_head * c->dim + v, FG_OP_STATE_SCAN, &state);
    op->weight2 = cpu_weight(rig, FG_TYPE_F32, c->n_head, 0, FG_OP_STATE_SCAN, &state);
    op->bias = cpu_weight(rig, FG_TYPE_F32, c->dim, 0, FG_OP_STATE_SCAN, &state);
    a = (float *)(void *)rig->data[op->weight2];
    for (i = 0; i < c->n_head; i++) a[i] = -0.05f - 0.3f * fabsf(a[i]); /* some forget soon, some late */
    if (c->twin) {
        fg_op *twin = cpu_op(rig, FG_OP_STATE_SCAN, x, cpu_slot(rig, v + 5, false), v);
        *twin = rig->ops[1];
        twin->dst = rig->graph.n_slots - 1;
        twin->group_layer = 0;
        twin->weight = cpu_weight(rig, FG_TYPE_F32, c->taps, 2 * c->n_kv_head * c->dim + v, FG_OP_STATE_SCAN, &state);
    }
    for (i = 0; i < STATE_SEQS; i++) {
        longest = FG__MAX(longest, c->lengths[i]);
        n_blocks += (c->lengths[i] + c->block_tokens - 1) / c->block_tokens;
    }
    group->kind = FG_GROUP_STATE;
    group->n_layers = 2;
    group->n_kv_head = c->n_head;
    group->head_dim = c->dim;
    group->window = 2;
    group->taps = c->taps;
    group->block_tokens = c->block_tokens;
    group->n_blocks = n_blocks + 1;
    group->kv_type = FG_TYPE_F32;
    rig->graph.n_groups = 1;
    rig->graph.max_blocks_per_seq = (longest + c->block_tokens - 1) / c->block_tokens + 1;
    rig->tables[0] = (int32_t *)malloc(sizeof(int32_t) * (size_t)(64 * rig->graph.max_blocks_per_seq));
    cpu_rig_end(rig, y);
    return rig;
}

static int state_block(const state_case *c, const cpu_rig *rig, int s, int index) {
    int i, n = rig->graph.groups[0].n_blocks, number = index, step = 7;
    for (i = 0; i < s; i++) number += (c->lengths[i] + c->block_tokens - 1) / c->block_tokens;
    while (n % step == 0) step += 2;
    return (int)((int64_t)(number + 1) * step % n);
}

/* Adds tokens [from, to) of a sequence; of the blocks that are wholly inside every other one is not kept. */
static void state_add(const state_case *c, cpu_rig *rig, int s, int from, int to) {
    fg_batch *b = &rig->batch;
    int p, i, row = b->n_seqs, bt = c->block_tokens, source = from ? (from - 1) / bt : -1;
    for (p = from; p < to; p++) {
        rig->tokens[b->n_tokens] = state_token(c, s, p);
        rig->positions[b->n_tokens] = p;
        rig->rows[b->n_rows++] = b->n_tokens;
        rig->slots_of[0][b->n_tokens++] = -1;
    }
    for (i = 0; i < rig->graph.max_blocks_per_seq; i++) {
        bool live = i >= FG__MAX(source, 0) && i <= (to - 1) / bt, kept = i == source || i == (to - 1) / bt || i % 2;
        rig->tables[0][row * rig->graph.max_blocks_per_seq + i] = live && kept ? state_block(c, rig, s, i) : -1;
    }
    rig->kv_len[row] = to;
    rig->cu_q[0] = 0;
    rig->cu_q[++b->n_seqs] = b->n_tokens;
}

/* Every sequence wholly: sequences beside each other, `chunk` tokens of each per pass, or, `some`, up to so many of some. */
static bool state_all(const state_case *c, cpu_rig *rig, int chunk, bool some, float *all) {
    int done[STATE_SEQS] = {0}, s, left = state_token(c, STATE_SEQS, 0), i, width = rig->graph.n_vocab;
    uint64_t state = 31;
    while (left > 0) {
        cpu_batch_start(rig);
        for (s = 0; s < STATE_SEQS; s++) {
            int n = some ? 1 + (int)(test_random(&state) % (uint64_t)chunk) : chunk;
            n = FG__MIN(FG__MIN(n, c->lengths[s] - done[s]), rig->graph.max_tokens - rig->batch.n_tokens);
            if (n <= 0 || (some && test_random(&state) % 3 == 0)) continue;
            state_add(c, rig, s, done[s], done[s] + n);
            done[s] += n;
            left -= n;
        }
        if (!rig->batch.n_tokens) continue;
        if (cpu_rig_submit(rig) != FG_OK) return false;
        for (i = 0; i < rig->batch.n_rows; i++)
            memcpy(all + (size_t)rig->tokens[i] * (size_t)width, rig->output.logits + (size_t)i * (size_t)width, sizeof(float) * (size_t)width);
    }
    return true;
}

static double state_silu(double x) { return x / (1 + exp(-x)); }

/* q, k or v of the token at p of a head, from what lies at `column`. */
static void state_convolve(const state_case *c, const cpu_rig *rig, int s, int p, int column, double *out) {
    const float *table = (const float *)(const void *)rig->data[0], *weight = (const float *)(const void *)rig->data[rig->ops[1].weight];
    int i, t, width = state_width(c);
    for (i = 0; i < c->dim; i++) {
        double sum = 0;
        for (t = 0; t < c->taps; t++) {
            int at = p - c->taps + 1 + t;
            if (at >= 0) sum += (double)weight[(column + i) * c->taps + t] * (double)table[(size_t)state_token(c, s, at) * (size_t)width + (size_t)(column + i)];
        }
        out[i] = state_silu(sum);
    }
}

static void state_unit(double *x, int n, double scale) {
    double sum = 1e-6;
    int i;
    for (i = 0; i < n; i++) sum += x[i] * x[i];
    for (i = 0; i < n; i++) x[i] *= scale / sqrt(sum);
}

/* A head of a sequence in double precision; the largest error of `all`, of outputs of size 1 or so. */
static double state_error(const state_case *c, const cpu_rig *rig, int s, int h, const float *all) {
    int d = c->dim, g = c->tiled ? h % c->n_kv_head : h / (c->n_head / c->n_kv_head), p, i, j, width = state_width(c);
    const float *norm = (const float *)(const void *)rig->data[rig->ops[1].bias];
    double *S = (double *)calloc((size_t)(d * d), sizeof(double)), q[256], k[256], v[256], o[256], worst = 0;
    double a = (double)((const float *)(const void *)rig->data[rig->ops[1].weight2])[h];
    for (p = 0; p < c->lengths[s]; p++) {
        const float *x = (const float *)(const void *)rig->data[0] + (size_t)state_token(c, s, p) * (size_t)width;
        const float *z = x + (2 * c->n_kv_head + c->n_head) * d, *gates = z + c->n_head * d;
        double decay = exp(a * log1p(exp((double)gates[c->n_head + h]))), beta = 1 / (1 + exp(-(double)gates[h])), square = 0;
        state_convolve(c, rig, s, p, g * d, q);
        state_convolve(c, rig, s, p, (c->n_kv_head + g) * d, k);
        state_convolve(c, rig, s, p, (2 * c->n_kv_head + h) * d, v);
        state_unit(q, d, 1 / sqrt((double)d));
        state_unit(k, d, 1);
        for (j = 0; j < d; j++) {
            double have = 0;
            for (i = 0; i < d; i++) have += (S[i * d + j] *= decay) * k[i];
            for (o[j] = 0, i = 0; i < d; i++) o[j] += (S[i * d + j] += k[i] * beta * (v[j] - have)) * q[i];
            square += o[j] * o[j] / d;
        }
        for (j = 0; j < d; j++) {
            double want = o[j] / sqrt(square + 1e-5) * (double)norm[j] * state_silu((double)z[h * d + j]);
            worst = test_worse(worst, fabs(want - (double)all[(size_t)state_token(c, s, p) * (size_t)rig->graph.n_vocab + (size_t)(5 + h * d + j)]));
        }
    }
    free(S);
    return worst;
}

/* Against double precision; and, `same`, that the bits do not depend on how tokens are cut into passes. */
static void state_check(const char *path, const state_case *c, bool same) {
    static const struct { int chunk; bool some; } ways[] = {{64, false}, {1, false}, {5, true}, {16, false}};
    size_t size = (size_t)state_token(c, STATE_SEQS, 0) * (size_t)(c->n_head * c->dim + 5), i;
    float *first = (float *)calloc(size, sizeof(float)), *all = (float *)calloc(size, sizeof(float));
    int w, s, h;
    for (w = 0; w < 4; w++) {
        cpu_rig *rig = state_rig(c, 128);
        double worst = 0;
        fg_result r = cpu_rig_open(rig, path, 1 + w % 3);
        CHECKF(r == FG_OK, "%s: %s", path, fg_last_error());
        if (r == FG_OK) {
            CHECKF(state_all(c, rig, ways[w].chunk, ways[w].some, w ? all : first), "%s: %s", path, fg_last_error());
            for (s = 0; s < STATE_SEQS; s++)
                for (h = 0; h < c->n_head; h++) worst = test_worse(worst, state_error(c, rig, s, h, w ? all : first));
            CHECKF(worst < 2e-4, "%s: heads %d of %d, way %d: error %g", path, c->n_head, c->dim, w, worst);
        }
        for (i = 0; i < size && w && same && r == FG_OK; i++) /* the first five columns nobody writes */
            if (i % (size_t)(c->n_head * c->dim + 5) >= 5 && first[i] != all[i]) break;
        if (w && same && r == FG_OK) CHECKF(i == size, "%s: heads %d of %d, way %d: other bits", path, c->n_head, c->dim, w);
        cpu_rig_free(rig);
    }
    free(first);
    free(all);
}

/* A sequence goes on from its state, from a copy, and from what was fetched and sent back to another block, with the same bits. */
static void state_check_moved(const char *path) {
    static const state_case c = {3, 1, 33, 4, 0, 8, {24, 0, 0, 0}, false};
    cpu_rig *rig = state_rig(&c, 32);
    int width = 5 + c.n_head * c.dim, way, i;
    size_t bytes = 0, least = 2 * sizeof(float) * (size_t)fg__state_floats(&rig->graph.groups[0]);
    float *first = (float *)calloc((size_t)(12 * width), sizeof(float));
    int32_t blocks[3];
    fg_block_copy copy;
    char *host;
    rig->graph.groups[0].n_blocks += 3;
    for (i = 0; i < 3; i++) blocks[i] = state_block(&c, rig, 0, i ? i + 2 : 1);
    copy.group = 0, copy.from = blocks[0], copy.to = blocks[1];
    if (cpu_rig_open(rig, path, 2) == FG_OK) {
        CHECK(rig->backend->swap_blocks(rig->device, rig->plan, 0, NULL, 0, NULL, true, &bytes) == FG_OK);
        CHECKF(bytes >= least && bytes < least + 64, "%s: %zu bytes", path, bytes);
        host = (char *)malloc(bytes);
        cpu_batch_start(rig);
        state_add(&c, rig, 0, 0, 12);
        CHECKF(cpu_rig_submit(rig) == FG_OK, "%s", fg_last_error());
        CHECK(rig->backend->copy_blocks(rig->device, rig->plan, &copy, 1) == FG_OK);
        CHECK(rig->backend->swap_blocks(rig->device, rig->plan, 0, blocks, 1, host, true, NULL) == FG_OK);
        CHECK(rig->backend->swap_blocks(rig->device, rig->plan, 0, blocks + 2, 1, host, false, NULL) == FG_OK);
        for (way = 0; way < 3; way++) {
            cpu_batch_start(rig);
            state_add(&c, rig, 0, 12, 24);
            rig->tables[0][1] = blocks[way];
            CHECKF(cpu_rig_submit(rig) == FG_OK, "%s", fg_last_error());
            if (way == 0) memcpy(first, rig->output.logits, (size_t)(12 * width) * sizeof(float));
            for (i = 0; i < 12 * width; i++)
                if (i % width >= 5 && first[i] != rig->output.logits[i]) break;
            CHECKF(i == 12 * width, "%s, way %d: other bits at %d", path, way, i);
        }
        free(host);
    }
    free(first);
    cpu_rig_free(rig);
}

static void test_state_scan(void) {
    const char *paths[CPU_TARGETS];
    int n = cpu_paths(paths), p, i;
    for (p = 0; p < n; p++) {
        for (i = 0; i < STATE_CASES; i++) state_check(paths[p], &state_cases[i], true);
        state_check_moved(paths[p]);
    }
}

/* What an op or a group of states may not name, and tables that lack what a pass needs. */
static void test_state_refused(void) {
    static const state_case c = {2, 1, 16, 4, 1, 8, {20, 0, 0, 0}, false};
    cpu_rig *rig = state_rig(&c, 32);
    fg_op kept = rig->ops[1];
    fg_group group = rig->graph.groups[0];
    int i;
    if (cpu_rig_open(rig, NULL, 1) != FG_OK) return;
    for (i = 0; i < 12; i++) {
        rig->backend->release(rig->device, rig->plan);
        rig->plan = NULL;
        rig->ops[1] = kept;
        rig->graph.groups[0] = group;
        if (i == 0) rig->ops[1].n_head = 3;
        if (i == 1) rig->ops[1].n_kv_head = 0;
        if (i == 2) rig->ops[1].k = 5;
        if (i == 3) rig->ops[1].src_col = 4;
        if (i == 4) rig->ops[1].dst_col = 6;
        if (i == 5) rig->ops[1].weight = rig->ops[1].bias;
        if (i == 6) rig->ops[1].weight2 = -1;
        if (i == 7) rig->ops[1].group_layer = 2;
        if (i == 8) rig->ops[1].group = 1;
        if (i == 9) rig->graph.groups[0].taps = 0;
        if (i == 10) rig->graph.groups[0].window = 0;
        if (i == 11) rig->graph.groups[0].kind = FG_GROUP_FULL, rig->graph.groups[0].taps = 0;
        CHECKF(rig->backend->prepare(rig->device, &rig->graph, &rig->plan, NULL) == FG_ERROR_INVALID_ARGUMENT, "%d", i);
    }
    rig->ops[1] = kept;
    rig->graph.groups[0] = group;
    CHECK(rig->backend->prepare(rig->device, &rig->graph, &rig->plan, NULL) == FG_OK);
    for (i = 0; i < 4; i++) {
        cpu_batch_start(rig);
        state_add(&c, rig, 0, i ? 9 : 0, 20);
        if (i == 1) rig->tables[0][2] = -1;  /* where the state is to go */
        if (i == 2) rig->tables[0][1] = -1;  /* where it comes from */
        if (i == 3) rig->tables[0][1] = 99;
        CHECKF((cpu_rig_submit(rig) == FG_OK) == (i == 0), "%d", i);
    }
    cpu_rig_free(rig);
}

static void run_state_tests(void) {
    RUN(test_state_scan);
    RUN(test_state_refused);
}
