#version 450
#extension GL_GOOGLE_include_directive : require
/* Products of few rows, in floats. */
#include "common.glsl"
#include "quant.glsl"
#include "product.glsl"
const int PART = UNIT;
#include "gemv.glsl"
layout(set = 0, binding = 2) readonly buffer Src { float src[]; };

float scaled(float sum, int col) { return sum; }

void add_part(inout float acc[OWN], int row, int col0, int count, int u) {
    float w[32], x[32], all[ROWS * UNIT];
    if (COLS == 1) { /* x is loaded once for all rows */
        for (int i = 0; i < UNIT; i++) {
            int at = u * UNIT + i;
            x[i] = !RAGGED || at < k ? src[col0 * src_stride + src_col + at] : 0.0;
        }
        for (int r = 0; r < ROWS; r++) {
            unit(uint(min(row + r, rows - 1) * weight_stride), uint(u), w);
            float sum = acc[r];
            for (int i = 0; i < UNIT; i++) sum += w[i] * x[i];
            acc[r] = sum;
        }
        return;
    }
    for (int r = 0; r < ROWS; r++) { /* weights are expanded once for all columns */
        unit(uint(min(row + r, rows - 1) * weight_stride), uint(u), w);
        for (int i = 0; i < UNIT; i++) all[r * UNIT + i] = w[i];
    }
    for (int c = 0; c < COLS; c++) {
        int from = min(col0 + c, count - 1) * src_stride + src_col + u * UNIT;
        float sums[ROWS];
        for (int r = 0; r < ROWS; r++) sums[r] = acc[r * COLS + c];
        for (int i = 0; i < UNIT; i++) {
            float one = !RAGGED || u * UNIT + i < k ? src[from + i] : 0.0;
            for (int r = 0; r < ROWS; r++) sums[r] += all[r * UNIT + i] * one;
        }
        for (int r = 0; r < ROWS; r++) acc[r * COLS + c] = sums[r];
    }
}
