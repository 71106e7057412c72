#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#extension GL_EXT_shader_16bit_storage : require
/* As gemm.comp, of halves: src comes as such (prepare.comp), weights are rounded; sums are floats. 6 KiB of shared memory. */
layout(local_size_x = 128) in;
#include "common.glsl"
#include "quant.glsl"
#include "product.glsl"
#include "half.glsl"
const int TILE_N = 64, TILE_M = 32, TILE_K = 32;
shared f16vec4 w_tile[TILE_K * TILE_N / 4];
shared f16vec4 x_tile[TILE_K / 4 * TILE_M];

void main() {
    int me = int(gl_LocalInvocationIndex), count = row_count();
    int n0 = int(gl_WorkGroupID.x) * TILE_N, m0 = int(gl_WorkGroupID.y) * TILE_M, across = me % 16 * 4, down = me / 16 * 4;
    float acc[16];
    if (m0 >= count) return;
    for (int i = 0; i < 16; i++) acc[i] = 0.0;
    for (int k0 = 0; k0 < k; k0 += TILE_K) {
        if (me < TILE_N) {
            f16vec4 w[8];
            half_weights(n0 + me, k0, w);
            for (int i = 0; i < 8; i++) w_tile[i * TILE_N + me] = w[i];
        } else {
            int m = me % 32, part = (me - TILE_N) / 32 * 4, at = halves_row(min(m0 + m, count - 1)) + k0 / 4 + part;
            for (int i = 0; i < 4; i++) x_tile[(part + i) * TILE_M + m] = halves[at + i];
        }
        barrier();
        for (int i = 0; i < TILE_K / 4; i++) {
            vec4 a[4], b[4];
            for (int j = 0; j < 4; j++) {
                a[j] = vec4(w_tile[i * TILE_N + across + j]);
                b[j] = vec4(x_tile[i * TILE_M + down + j]);
            }
            for (int j = 0; j < 16; j++) acc[j] += dot(a[j % 4], b[j / 4]);
        }
        barrier();
    }
    for (int j = 0; j < 16; j++) {
        int row = n0 + across + j % 4, col = m0 + down + j / 4;
        if (row < rows && col < count) finish(row, col, acc[j] * halves_scale(col));
    }
}
