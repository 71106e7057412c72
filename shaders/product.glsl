/* The end of all products, dst = act(src . weight^T + bias) + src2, with what they write and read.
   Where a row's bits must not depend on how many rows there are, k is SLICES slices, of which slice s has every SLICES-th block of 32
   columns from block s on. A slice is added from its first column to its last, slices from the first to the last: products of few rows
   have an invocation for each slice, those of many rows add one slice after the other. */
const int SLICES = 16; /* as FG__VK_SLICES */
layout(set = 0, binding = 3) buffer Dst { float dst[]; };
layout(set = 0, binding = 4) readonly buffer Src2 { float src2[]; };
layout(set = 0, binding = 5) readonly buffer Bias { float bias[]; };

/* `row` of this piece of the weight. */
void finish(int row, int col, float x) {
    int j = row0 + row; /* of the whole weight */
    if ((has & HAS_BIAS) != 0) x += bias[j];
    x = act_of(act, x);
    if ((has & HAS_SRC2) != 0) x += src2[col * src2_stride + j];
    dst[col * dst_stride + dst_col + j] = x;
}
