#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#extension GL_EXT_shader_16bit_storage : require
/* As gemm.comp, of halves: src comes as such (prepare.comp), weights are rounded; sums are floats. 6 KiB of shared memory;
   each invocation has 4 x 4 sums. */
layout(local_size_x = 128) in;
#include "common.glsl"
#include "quant.glsl"
#include "product.glsl"
#include "half.glsl"
layout(constant_id = 1) const int RUNS = 1; /* 1, or SLICES: a row's bits are those that it has among few */
const int TILE_N = 64, TILE_M = 32, TILE_K = 32, SIDE = 4, ACROSS = TILE_N / SIDE, OWN = SIDE * SIDE;
shared uvec2 w_tile[TILE_K * TILE_N / 4]; /* four halves each */
shared f16vec4 x_tile[TILE_K / 4 * TILE_M];

void lay(int i, float sum) { w_tile[i].x = floatBitsToUint(sum); }
float laid(int i) { return uintBitsToFloat(w_tile[i].x); }
float scaled(float sum, int col) { return sum * halves_scale(src_row(col)); }
#include "tile.glsl"

vec4 four_halves(uvec2 bits) { return vec4(unpackFloat2x16(bits.x), unpackFloat2x16(bits.y)); }

void main() {
    int me = int(gl_LocalInvocationIndex), m0, count = find_rows(TILE_M, m0);
    int n0 = int(gl_WorkGroupID.x) * TILE_N, across = me % ACROSS * SIDE, down = me / ACROSS * SIDE;
    float acc[OWN], total[OWN];
    if (m0 >= count) return;
    int own_src = EXPERTS == 0 ? 0 : halves_row(src_row(min(m0 + me % 32, count - 1)));
    for (int i = 0; i < OWN; i++) acc[i] = total[i] = 0.0;
    for (int slice = 0; slice < RUNS; slice++) {
        for (int k0 = slice * TILE_K; k0 < k; k0 += RUNS * TILE_K) {
            if (me < TILE_N) {
                f16vec4 w[8];
                half_weights(n0 + me, k0, w);
                for (int i = 0; i < 8; i++) w_tile[i * TILE_N + me] = uvec2(packFloat2x16(w[i].xy), packFloat2x16(w[i].zw));
            } else {
                int m = me % 32, part = (me - TILE_N) / 32 * 4, at = (EXPERTS == 0 ? halves_row(min(m0 + m, count - 1)) : own_src) + k0 / 4 + part;
                for (int i = 0; i < 4; i++) x_tile[(part + i) * TILE_M + m] = halves[at + i];
            }
            barrier();
            for (int i = 0; i < TILE_K / 4; i++) {
                vec4 a[SIDE], b[SIDE];
                for (int j = 0; j < SIDE; j++) a[j] = four_halves(w_tile[i * TILE_N + across + j]);
                for (int j = 0; j < SIDE; j++) b[j] = vec4(x_tile[i * TILE_M + down + j]);
                for (int j = 0; j < OWN; j++) acc[j] = add_four(acc[j], a[j % SIDE], b[j / SIDE]);
            }
            barrier();
        }
        if (RUNS > 1)
            for (int j = 0; j < OWN; j++) {
                total[j] += acc[j];
                acc[j] = 0.0;
            }
    }
    if (RUNS > 1)
        for (int j = 0; j < OWN; j++) acc[j] = total[j];
    finish_tile(me, n0, m0, count, acc);
}
