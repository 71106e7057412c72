#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#extension GL_EXT_shader_16bit_storage : require
/* Products of few rows with the bits of gemm_half.comp. */
#include "common.glsl"
#include "quant.glsl"
#include "product.glsl"
#include "half.glsl"
const int PART = 32;
#include "gemv.glsl"

float scaled(float sum, int col) { return sum * halves_scale(src_row(col)); }

void add_part(int row, int col0, int count, int u) {
    for (int r = 0; r < ROWS; r++) {
        f16vec4 w[8];
        half_weights(row + r, u * 32, w);
        for (int c = 0; c < COLS; c++) {
            int at = halves_row(src_row(min(col0 + c, count - 1))) + u * 8;
            for (int i = 0; i < 8; i++) acc[r * COLS + c] = add_four(acc[r * COLS + c], as_floats(w[i]), vec4(halves[at + i]));
        }
    }
}
