/* The end of all products, dst = act(src . weight^T + bias) + src2, with what they write and read; and which rows these are.
   Where a row's bits must not depend on how many rows there are, k is SLICES slices, of which slice s has every SLICES-th block of 32
   columns from block s on. A slice is added from its first column to its last, slices from the first to the last: products of few rows
   have an invocation for each slice, those of many rows add one slice after the other.
   With EXPERTS a row of src is a pair of a token and an expert that it takes, and a weight is that of an expert, one of those that lie below each
   other. A workgroup has a pair to itself (1), or a tile of pairs of one expert as sort.comp leaves them (2). */
#include "experts.glsl"
layout(constant_id = 4) const int EXPERTS = 0;
const int HAS_SUM = 64; /* of `has`: products of a token's experts are to be added up, and each expert has columns of src of its own */
const int SLICES = 16; /* as FG__VK_SLICES */
layout(set = 0, binding = 3) buffer Dst { float dst[]; };
layout(set = 0, binding = 4) readonly buffer Sorted { int sorted[]; };
layout(set = 0, binding = 5) readonly buffer Bias { float bias[]; };
int expert, pairs_at; /* of this workgroup: the expert, of those in this piece of the weight; the first word of its pairs */

/* The rows of src of a workgroup begin with m0, and are `tile` at most, of those before what is returned. */
int find_rows(int tile, out int m0) {
    int place = int(gl_WorkGroupID.y), end = row_count();
    m0 = EXPERTS == 0 ? place * tile : EXPERTS == 1 ? place * n_used + int(gl_WorkGroupID.z) : 0;
    if (EXPERTS == 0) return end;
    if (place >= (EXPERTS == 1 ? end : sorted[0])) return 0;
    expert = (EXPERTS == 1 ? expert_of(m0) : sorted[1 + 3 * place]) - row0;
    pairs_at = EXPERTS == 1 ? 0 : sorted[2 + 3 * place];
    end = EXPERTS == 1 ? m0 + 1 : sorted[3 + 3 * place];
    return expert >= 0 && expert < n_present ? end : 0;
}

int pair_of(int col) { return EXPERTS == 2 ? sorted[pairs_at + col] : col; }

/* Where row `col` of src begins, in floats. */
int src_at(int col) {
    int pair = pair_of(col);
    if (EXPERTS == 0) return col * src_stride + src_col;
    return pair / n_used * src_stride + src_col + ((has & HAS_SUM) != 0 ? pair % n_used * k : 0);
}

/* The number that it has among those that prepare.comp made. */
int src_row(int col) {
    int pair = pair_of(col);
    return EXPERTS == 0 || (has & HAS_SUM) != 0 ? pair : pair / n_used;
}

/* Where row `row` of this piece of the weight begins; those behind the last are the last. */
uint weight_at(int row) { return uint((EXPERTS == 0 ? min(row, rows - 1) : expert * rows + min(row, rows - 1)) * weight_stride); }

/* `row` of this piece of the weight, or of the expert's. */
void finish(int row, int col, float x) {
    int j = EXPERTS == 0 ? row0 + row : row, pair = pair_of(col), at = col * dst_stride + dst_col + j; /* j: of the whole weight */
    if (EXPERTS != 0) at = (has & HAS_SUM) != 0 ? pair * rows + j : pair / n_used * dst_stride + dst_col + pair % n_used * rows + j;
    if ((has & HAS_BIAS) != 0) x += bias[EXPERTS == 0 ? j : (row0 + expert) * rows + j];
    x = act_of(act, x);
    if (EXPERTS == 0 && (has & HAS_SRC2) != 0) x += src2[col * src2_stride + j];
    dst[at] = x;
}
