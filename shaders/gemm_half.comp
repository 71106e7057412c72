#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#extension GL_EXT_shader_16bit_storage : require
/* As gemm.comp, of halves: src comes as such (prepare.comp), weights are rounded; sums are floats. 6 KiB of shared memory;
   each invocation has 4 x 4 sums, or fewer as there. */
layout(local_size_x = 128) in;
#include "common.glsl"
#include "quant.glsl"
#include "product.glsl"
#include "half.glsl"
layout(constant_id = 1) const int OWN_N = 4;
layout(constant_id = 2) const int OWN_M = 4;
const int TILE_N = 64, ACROSS = TILE_N / OWN_N, TILE_M = 128 / ACROSS * OWN_M, TILE_K = 32, OWN = OWN_N * OWN_M;
shared f16vec4 w_tile[TILE_K * TILE_N / 4];
shared f16vec4 x_tile[TILE_K / 4 * TILE_M];

void main() {
    int me = int(gl_LocalInvocationIndex), count = row_count();
    int n0 = int(gl_WorkGroupID.x) * TILE_N, m0 = int(gl_WorkGroupID.y) * TILE_M, across = me % ACROSS * OWN_N, down = me / ACROSS * OWN_M;
    float acc[OWN];
    if (m0 >= count) return;
    for (int i = 0; i < OWN; i++) acc[i] = 0.0;
    for (int k0 = 0; k0 < k; k0 += TILE_K) {
        if (me < TILE_N) {
            f16vec4 w[8];
            half_weights(n0 + me, k0, w);
            for (int i = 0; i < 8; i++) w_tile[i * TILE_N + me] = w[i];
        } else if (TILE_M == 32) {
            int m = me % 32, part = (me - TILE_N) / 32 * 4, at = halves_row(min(m0 + m, count - 1)) + k0 / 4 + part;
            for (int i = 0; i < 4; i++) x_tile[(part + i) * TILE_M + m] = halves[at + i];
        } else if (me - TILE_N < TILE_K / 4 * TILE_M) {
            int m = me % TILE_M, part = (me - TILE_N) / TILE_M;
            x_tile[part * TILE_M + m] = halves[halves_row(min(m0 + m, count - 1)) + k0 / 4 + part];
        }
        barrier();
        for (int i = 0; i < TILE_K / 4; i++) {
            vec4 a[OWN_N], b[OWN_M];
            for (int j = 0; j < OWN_N; j++) a[j] = vec4(w_tile[i * TILE_N + across + j]);
            for (int j = 0; j < OWN_M; j++) b[j] = vec4(x_tile[i * TILE_M + down + j]);
            for (int j = 0; j < OWN; j++) acc[j] += dot(a[j % OWN_N], b[j / OWN_N]);
        }
        barrier();
    }
    for (int j = 0; j < OWN; j++) {
        int row = n0 + across + j % OWN_N, col = m0 + down + j / OWN_N;
        if (row < rows && col < count) finish(row, col, acc[j] * halves_scale(col));
    }
}
