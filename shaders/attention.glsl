/* What the kernels of attention share. A workgroup takes a tile: up to ROWS rows of queries, which are tokens of one sequence
   and heads that read the same KV head, so that K and V are read once for all of them. It goes over the positions 64 at a time, from
   multiples of 64 on, with an online softmax; a position that a row does not see adds nothing to it, so that its result does not
   depend on the others of the tile, nor on ROWS. At multiples of SPLIT positions the softmax begins anew, and what there is until then is
   folded into dst. With ITEMS a workgroup takes some positions of one query, an item that the batch block lists, and leaves its part for
   attention_merge.comp, which folds parts in the same order: where items are what lies between two such cuts, a row has the same bits
   either way.
   Of a KV pool in pieces each pass takes the blocks of one, and dst and state hold the sums from one to the next. */
#extension GL_KHR_memory_scope_semantics : require
layout(local_size_x = GROUP) in;
#include "common.glsl"
#include "kv.glsl"
#include "fold.glsl"
layout(constant_id = 2) const int ROWS = 1; /* a power of two, at most 32 */
layout(set = 0, binding = 2) readonly buffer Src { float src[]; };
layout(set = 0, binding = 3) buffer Dst { float dst[]; };
layout(set = 0, binding = 4) buffer State { vec2 state[]; }; /* of a token (or item) and head: the largest score, the sum */
layout(set = 0, binding = 6) readonly buffer K { uint k_cache[]; };
layout(set = 0, binding = 6) readonly buffer WideK { uvec4 wide_k_cache[]; };
layout(set = 0, binding = 7) readonly buffer V { uint v_cache[]; };
const bool WIDE = (TYPE == Q8_0 ? 1 : WORDS % 4) == 0; /* rows of words begin at multiples of 16 bytes; of && glslang 13 makes no constant */
const int POSITIONS = 64, SPLIT = 512; /* as FG__VK_SPLIT */
const int LANES = 4; /* invocations of a row in softmax(): always as many, for the order of sums */
shared int row_of[POSITIONS];   /* words of the positions' K and V; -1: in another piece, or none */
shared float lane_parts[2 * ROWS * LANES];
shared float row_factor[ROWS];  /* of what was summed before; in the end the sums */
shared vec2 row_share[ROWS];    /* of what was there before a cut, and of what came since; see fold() */

int token0, position0, last_position, kv_head, head0, tile_heads, n_rows, blocks; /* the tile */
int first_cut, last_cut; /* it sees positions from SPLIT * first_cut on, and up to before SPLIT * (last_cut + 1) */
int item_first, item_end; /* those of an item, which is one cut; a multiple of POSITIONS */
float largest, sum;      /* of this invocation's row, since the last cut */
vec2 total;              /* the same until then */

int first_base() { return window > 0 ? max(0, position0 - window + 1) / POSITIONS * POSITIONS : 0; }

/* Tiles begin with a sequence, and where its position is a multiple of the tokens of a tile; other workgroups have none, nor have
   those of sequences that are items. slots_at: the numbers of items and merges, then which sequences are items; rows_at: those. */
bool find_tile() {
    int sharing = n_head / n_kv_head, across = (sharing + ROWS - 1) / ROWS, at_once = max(1, ROWS / sharing), n = 1, seq;
    int part = int(gl_WorkGroupID.x) % across * ROWS, count = ITEMS > 0 ? batch[slots_at] : row_count(), place = int(gl_WorkGroupID.y);
    if (place >= count) return false;
    token0 = ITEMS > 0 ? batch[rows_at + 3 * place] : place;
    seq = batch[seqs_at + token0];
    position0 = batch[positions_at + token0];
    if (ITEMS == 0) {
        if (batch[slots_at] > 0 && batch[slots_at + 2 + seq] != 0) return false;
        if (position0 % at_once != 0 && token0 > 0 && batch[seqs_at + token0 - 1] == seq) return false;
        while (token0 + n < count && (position0 + n) % at_once != 0 && batch[seqs_at + token0 + n] == seq) n++;
    }
    kv_head = int(gl_WorkGroupID.x) / across;
    head0 = kv_head * sharing + part;
    tile_heads = min(ROWS, sharing - part);
    n_rows = n * tile_heads;
    last_position = position0 + n - 1;
    blocks = table_at + seq * table_stride;
    item_first = ITEMS > 0 ? batch[rows_at + 3 * place + 1] : 0;
    item_end = ITEMS > 0 ? batch[rows_at + 3 * place + 2] : 0;
    first_cut = ITEMS > 0 ? 0 : first_base() / SPLIT;
    last_cut = ITEMS > 0 ? 0 : last_position / SPLIT;
    return true;
}

int src_of(int row) { return (token0 + row / tile_heads) * src_stride + src_col + (head0 + row % tile_heads) * HEAD_DIM; }
int dst_of(int row) {
    if (ITEMS > 0) return (int(gl_WorkGroupID.y) * n_head + head0 + row) * HEAD_DIM;
    return (token0 + row / tile_heads) * dst_stride + dst_col + (head0 + row % tile_heads) * HEAD_DIM;
}
int state_of(int row) {
    return (ITEMS > 0 ? int(gl_WorkGroupID.y) : token0 + row / tile_heads) * n_head + head0 + row % tile_heads;
}

/* The words of position p. */
int find_row(int p) {
    int block;
    if (p > last_position) return -1;
    block = batch[blocks + p / block_tokens] - row0;
    return block >= 0 && block < rows ? kv_row(block, p % block_tokens, kv_head) : -1;
}

float value_of(uint word, int i) {
    if (TYPE == F32) return uintBitsToFloat(word);
    if (TYPE == F16) return i == 0 ? unpackHalf2x16(word).x : unpackHalf2x16(word).y;
    if (TYPE == Q8_0) return float(bitfieldExtract(int(word), 8 * i, 8));
    return uintBitsToFloat(i == 0 ? word << 16 : word & 0xFFFF0000u);
}

/* Four words of keys from a multiple of four on, of those that there are. */
uvec4 four_words(int at, int word) {
    uvec4 four = uvec4(0u);
    if (WIDE) four = wide_k_cache[uint(at + word) / 4u];
    else
        [[unroll]] for (int i = 0; i < 4; i++)
            if (word + i < WORDS) four[i] = k_cache[at + word + i];
    return four;
}

/* A word of values of position j of the step, without a branch, so that many are on their way at once: zero where there is none. What lies
   at the start of the cache instead may be no number. */
uint value_word(int j, int word) {
    uint bits = v_cache[max(row_of[j], 0) + word];
    return row_of[j] < 0 ? 0u : bits;
}

/* The scale of the values of a word of Q8_0, from the word that has it. */
float scale_of(uint pair, int word) { return half_of(word / 8 % 2 == 0 ? pair & 0xFFFFu : pair >> 16); }

float score_of(float product) {
    float score = product * scale;
    if (softcap > 0.0) score = softcap * (1.0 - 2.0 / (1.0 + exp(2.0 * clamp(score / softcap, -40.0, 40.0)))); /* tanh */
    return score;
}

/* What came of the pieces before. */
void start_rows() {
    int row = int(gl_LocalInvocationIndex) / LANES;
    total = vec2(-1e38, 0.0);
    if ((has & HAS_EARLIER) != 0 && row < n_rows) total = state[state_of(row)];
}

/* Begins with the positions after a cut; the first of them that the tile sees, at a multiple of POSITIONS. */
int start_cut(int cut) {
    largest = -1e38;
    sum = 0.0;
    return max(first_base(), ITEMS > 0 ? item_first : cut * SPLIT);
}

/* The last position before the next cut. */
int end_of(int cut) { return min(last_position, (ITEMS > 0 ? item_end : cut * SPLIT + SPLIT) - 1); }

/* Ends there: leaves in row_share how results are to be folded, in row_factor what they are then to be divided by.
   The barrier orders the state too: others of the row have read it. */
void end_cut(int cut) {
    int me = int(gl_LocalInvocationIndex), row = me / LANES;
    bool later = ITEMS > 0 || (has & HAS_LATER) != 0;
    controlBarrier(gl_ScopeWorkgroup, gl_ScopeWorkgroup, gl_StorageSemanticsBuffer | gl_StorageSemanticsShared, gl_SemanticsAcquireRelease);
    if (row < ROWS && me % LANES == 0) {
        row_share[row] = fold(total, vec2(largest, sum));
        row_factor[row] = later || cut < last_cut ? 1.0 : with_sink(total, head0 + row % tile_heads);
        if (later && cut == last_cut && row < n_rows) state[state_of(row)] = total;
    }
    barrier();
}

/* A row's value of dimension d since the last cut, to those until then. */
void put(int row, int d, float value, int cut) {
    int at = dst_of(row) + d;
    if (row >= n_rows || d >= HEAD_DIM) return;
    if (cut > first_cut || (has & HAS_EARLIER) != 0) value = folded(dst[at], value, row_share[row]);
    dst[at] = value / row_factor[row];
}
