#version 450
#extension GL_GOOGLE_include_directive : require
/* dst = act(src . weight^T + bias) + src2 for few rows of src. A subgroup takes ROWS rows of the weight and COLS rows of src;
   its lanes divide k. Nothing here depends on the size of a subgroup, nor on subgroups being full. */
layout(local_size_x = 64) in;
#include "common.glsl"
#include "quant.glsl"
#include "product.glsl"
layout(constant_id = 1) const int COLS = 1;
layout(constant_id = 2) const int ROWS = 2;
layout(constant_id = 3) const int RAGGED = 0; /* 1: k is not whole units */
layout(set = 0, binding = 2) readonly buffer Src { float src[]; };
void main() {
    int count = row_count(), col0 = int(gl_WorkGroupID.y) * COLS, units = (k + UNIT - 1) / UNIT;
    int lane = int(subgroupExclusiveAdd(1u)), lanes = int(subgroupAdd(1u));
    int first = int(gl_WorkGroupID.x * gl_NumSubgroups + gl_SubgroupID) * ROWS;
    int step = int(gl_NumWorkGroups.x * gl_NumSubgroups) * ROWS;
    if (col0 >= count) return;
    for (int row = first; row < rows; row += step) {
        float acc[ROWS * COLS];
        for (int i = 0; i < ROWS * COLS; i++) acc[i] = 0.0;
        for (int u = lane; u < units; u += lanes) {
            float w[32], x[32], all[ROWS * UNIT];
            if (COLS == 1) { /* x is loaded once for all rows */
                for (int i = 0; i < UNIT; i++) {
                    int at = u * UNIT + i;
                    x[i] = RAGGED == 0 || at < k ? src[col0 * src_stride + src_col + at] : 0.0;
                }
                for (int r = 0; r < ROWS; r++) {
                    float sum = 0.0;
                    unit(uint(min(row + r, rows - 1) * weight_stride), uint(u), w);
                    for (int i = 0; i < UNIT; i++) sum += w[i] * x[i];
                    acc[r] += sum;
                }
                continue;
            }
            for (int r = 0; r < ROWS; r++) { /* weights are expanded once for all columns */
                unit(uint(min(row + r, rows - 1) * weight_stride), uint(u), w);
                for (int i = 0; i < UNIT; i++) all[r * UNIT + i] = w[i];
            }
            for (int c = 0; c < COLS; c++) {
                int from = min(col0 + c, count - 1) * src_stride + src_col + u * UNIT;
                float sums[ROWS];
                for (int r = 0; r < ROWS; r++) sums[r] = 0.0;
                for (int i = 0; i < UNIT; i++) {
                    float one = RAGGED == 0 || u * UNIT + i < k ? src[from + i] : 0.0;
                    for (int r = 0; r < ROWS; r++) sums[r] += all[r * UNIT + i] * one;
                }
                for (int r = 0; r < ROWS; r++) acc[r * COLS + c] += sums[r];
            }
        }
        for (int r = 0; r < ROWS; r++)
            for (int c = 0; c < COLS; c++) {
                float sum = subgroupAdd(acc[r * COLS + c]);
                if (lane == 0 && row + r < rows && col0 + c < count) finish(row + r, col0 + c, sum);
            }
    }
}
