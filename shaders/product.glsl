/* The end of all products, dst = act(src . weight^T + bias) + src2, with what they write and read. */
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
