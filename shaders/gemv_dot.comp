#version 450
#extension GL_GOOGLE_include_directive : require
/* Products of few rows, of quantised weights and src in bytes: sums of products within a block are integers. */
#include "common.glsl"
#include "quant.glsl"
#include "product.glsl"
#include "dot.glsl"
const int PART = 32;
#include "gemv.glsl"

float scaled(float sum, int col) { return sum; }

void add_part(int row, int col0, int count, int u) {
    uint w[ROWS * 8];
    vec2 scale[ROWS], low[ROWS];
    for (int r = 0; r < ROWS; r++) {
        uint one[8];
        vec2 s, l;
        unit_words(weight_at(row + r), uint(u), one, s, l);
        for (int i = 0; i < 8; i++) w[r * 8 + i] = one[i];
        scale[r] = s;
        low[r] = l;
    }
    for (int c = 0; c < COLS; c++) {
        uint x[8];
        vec3 x_scale = load_block(src_row(min(col0 + c, count - 1)), u, x);
        for (int r = 0; r < ROWS; r++) {
            int dots[2] = int[](0, 0);
            for (int i = 0; i < 8; i++) dots[HALVES ? i / 4 : 0] += dot4(w[r * 8 + i], x[i]);
            acc[r * COLS + c] = add_dots(acc[r * COLS + c], dots[0], dots[1], scale[r], low[r], x_scale);
        }
    }
}
