#version 450
#extension GL_GOOGLE_include_directive : require
/* Products of few rows, in floats. */
#include "common.glsl"
#include "quant.glsl"
#include "product.glsl"
const int PART = UNIT;
#include "gemv.glsl"
layout(set = 0, binding = 2) readonly buffer Src { float src[]; };
layout(set = 0, binding = 2) readonly buffer WideSrc { vec4 wide_src[]; };

float scaled(float sum, int col) { return sum; }

/* Part u of a row of src. */
void load_part(int col, int u, out float x[32]) {
    int at = src_at(col) + u * UNIT;
    for (int i = 0; i < UNIT / 4; i++) {
        vec4 four = vec4(0.0);
        if (WIDE_SRC) four = wide_src[uint(at) / 4u + uint(i)];
        else
            for (int j = 0; j < 4; j++)
                if (!RAGGED || u * UNIT + 4 * i + j < k) four[j] = src[at + 4 * i + j];
        for (int j = 0; j < 4; j++) x[4 * i + j] = four[j];
    }
}

void add_part(int row, int col0, int count, int u) {
    float w[32], x[32], all[ROWS * UNIT];
    if (COLS == 1) load_part(col0, u, x); /* once for all rows */
    for (int r = 0; r < ROWS; r++) {
        unit(weight_at(row + r), uint(u), w);
        if (COLS == 1) {
            float sum = acc[r];
            for (int i = 0; i < UNIT; i++) sum += w[i] * x[i];
            acc[r] = sum;
        } else /* weights are expanded once for all columns */
            for (int i = 0; i < UNIT; i++) all[r * UNIT + i] = w[i];
    }
    for (int c = 0; COLS > 1 && c < COLS; c++) {
        float sums[ROWS];
        load_part(min(col0 + c, count - 1), u, x);
        for (int r = 0; r < ROWS; r++) sums[r] = acc[r * COLS + c];
        for (int i = 0; i < UNIT; i++)
            for (int r = 0; r < ROWS; r++) sums[r] += all[r * UNIT + i] * x[i];
        for (int r = 0; r < ROWS; r++) acc[r * COLS + c] = sums[r];
    }
}
