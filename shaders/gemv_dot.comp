#version 450
#extension GL_GOOGLE_include_directive : require
/* As gemv.comp, of quantised weights and src in bytes: sums of products within a unit are integers. */
layout(local_size_x = 64) in;
#include "common.glsl"
#include "quant.glsl"
#include "product.glsl"
#include "dot.glsl"
layout(constant_id = 1) const int COLS = 1;
layout(constant_id = 2) const int ROWS = 2;

void main() {
    int count = row_count(), col0 = int(gl_WorkGroupID.y) * COLS, units = k / 32;
    int lane = int(subgroupExclusiveAdd(1u)), lanes = int(subgroupAdd(1u));
    int first = int(gl_WorkGroupID.x * gl_NumSubgroups + gl_SubgroupID) * ROWS;
    int step = int(gl_NumWorkGroups.x * gl_NumSubgroups) * ROWS;
    if (col0 >= count) return;
    for (int row = first; row < rows; row += step) {
        float acc[ROWS * COLS];
        for (int i = 0; i < ROWS * COLS; i++) acc[i] = 0.0;
        for (int u = lane; u < units; u += lanes) {
            uint w[ROWS * 8];
            vec2 scale[ROWS], low[ROWS];
            for (int r = 0; r < ROWS; r++) {
                uint one[8];
                vec2 s, l;
                unit_words(uint(min(row + r, rows - 1) * weight_stride), uint(u), one, s, l);
                for (int i = 0; i < 8; i++) w[r * 8 + i] = one[i];
                scale[r] = s;
                low[r] = l;
            }
            for (int c = 0; c < COLS; c++) {
                int at = bytes_row(min(col0 + c, count - 1)), sums[2] = int[](0, 0);
                uint x[8];
                float x_scale = uintBitsToFloat(bytes[at + k / 4 + u]);
                for (int i = 0; i < 8; i++) {
                    x[i] = bytes[at + u * 8 + i];
                    if (LOWS) sums[i / 4] += dot4(x[i], 0x01010101u);
                }
                for (int r = 0; r < ROWS; r++) {
                    int dots[2] = int[](0, 0);
                    float one;
                    for (int i = 0; i < 8; i++) dots[i / 4] += dot4(w[r * 8 + i], x[i]);
                    if (HALVES) one = dot(scale[r], vec2(dots[0], dots[1]));
                    else one = scale[r].x * float(dots[0] + dots[1]);
                    if (LOWS) one -= dot(low[r], vec2(sums[0], sums[1]));
                    acc[r * COLS + c] += one * x_scale;
                }
            }
        }
        for (int r = 0; r < ROWS; r++)
            for (int c = 0; c < COLS; c++) {
                float sum = subgroupAdd(acc[r * COLS + c]);
                if (lane == 0 && row + r < rows && col0 + c < count) finish(row + r, col0 + c, sum);
            }
    }
}
