#version 450
#extension GL_GOOGLE_include_directive : require
/* As gemm.comp, of quantised weights and src in bytes: 64 rows of the weight by 32 rows of src, 32 of k at a time (4 KiB of
   shared memory); each invocation has 4 x 4 sums. */
layout(local_size_x = 128) in;
#include "common.glsl"
#include "quant.glsl"
#include "product.glsl"
#include "dot.glsl"
layout(constant_id = 1) const int RUNS = 1; /* 1, or SLICES: a row's bits are those that it has among few */
const int TILE_N = 64, TILE_M = 32, SIDE = 4, ACROSS = TILE_N / SIDE, OWN = SIDE * SIDE;
shared uint w_tile[8 * TILE_N];
shared uint x_tile[8 * TILE_M];
shared vec2 w_scale[TILE_N];
shared vec2 w_low[TILE_N];
shared vec3 x_scale[TILE_M]; /* and the halves' sums times it */

void lay(int i, float sum) { w_tile[i] = floatBitsToUint(sum); }
float laid(int i) { return uintBitsToFloat(w_tile[i]); }
float scaled(float sum, int col) { return sum; }
#include "tile.glsl"

void load_weight(int row, int u, int place) {
    uint q[8];
    vec2 scale, low;
    unit_words(weight_at(row), uint(u), q, scale, low);
    for (int i = 0; i < 8; i++) w_tile[i * TILE_N + place] = q[i];
    w_scale[place] = scale;
    w_low[place] = low;
}

void load_source(int row, int u, int place) {
    uint words[8];
    x_scale[place] = load_block(row, u, words);
    for (int i = 0; i < 8; i++) x_tile[i * TILE_M + place] = words[i];
}

void main() {
    int me = int(gl_LocalInvocationIndex), m0, count = find_rows(TILE_M, m0);
    int n0 = int(gl_WorkGroupID.x) * TILE_N, across = me % ACROSS * SIDE, down = me / ACROSS * SIDE;
    float acc[OWN], total[OWN];
    if (m0 >= count) return;
    int own_src = EXPERTS == 0 ? 0 : src_row(min(m0 + max(0, me - TILE_N), count - 1));
    for (int i = 0; i < OWN; i++) acc[i] = total[i] = 0.0;
    for (int slice = 0; slice < RUNS; slice++) {
        for (int u = slice; u < k / 32; u += RUNS) {
            int dots[2 * OWN];
            if (me < TILE_N) load_weight(n0 + me, u, me);
            else if (me < TILE_N + TILE_M) load_source(EXPERTS == 0 ? min(m0 + me - TILE_N, count - 1) : own_src, u, me - TILE_N);
            barrier();
            for (int i = 0; i < 2 * OWN; i++) dots[i] = 0;
            for (int i = 0; i < 8; i++) {
                uint a[SIDE], b[SIDE];
                int part = HALVES ? i / 4 * OWN : 0;
                for (int j = 0; j < SIDE; j++) a[j] = w_tile[i * TILE_N + across + j];
                for (int j = 0; j < SIDE; j++) b[j] = x_tile[i * TILE_M + down + j];
                for (int j = 0; j < OWN; j++) dots[part + j] += dot4(a[j % SIDE], b[j / SIDE]);
            }
            for (int j = 0; j < OWN; j++)
                acc[j] = add_dots(acc[j], dots[j], dots[OWN + j], w_scale[across + j % SIDE], w_low[across + j % SIDE], x_scale[down + j / SIDE]);
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
