#version 450
#extension GL_GOOGLE_include_directive : require
/* As gemm.comp, of quantised weights and src in bytes: 64 rows of the weight by 32 rows of src, 32 of k at a time (4 KiB of
   shared memory); each invocation has 4 x 4 sums, or fewer as there. */
layout(local_size_x = 128) in;
#include "common.glsl"
#include "quant.glsl"
#include "product.glsl"
#include "dot.glsl"
layout(constant_id = 1) const int OWN_N = 4;
layout(constant_id = 2) const int OWN_M = 4;
const int TILE_N = 64, ACROSS = TILE_N / OWN_N, TILE_M = 128 / ACROSS * OWN_M, OWN = OWN_N * OWN_M;
shared uint w_tile[8 * TILE_N];
shared uint x_tile[8 * TILE_M];
shared vec2 w_scale[TILE_N];
shared vec2 w_low[TILE_N];
shared vec3 x_scale[TILE_M]; /* and the halves' sums times it */

void load_weight(int row, int u, int place) {
    uint q[8];
    vec2 scale, low;
    unit_words(uint(min(row, rows - 1) * weight_stride), uint(u), q, scale, low);
    for (int i = 0; i < 8; i++) w_tile[i * TILE_N + place] = q[i];
    w_scale[place] = scale;
    w_low[place] = low;
}

void load_source(int row, int u, int place) {
    int at = bytes_row(row), sums[2] = int[](0, 0);
    float scale = uintBitsToFloat(bytes[at + k / 4 + u]);
    for (int i = 0; i < 8; i++) {
        uint word = bytes[at + u * 8 + i];
        x_tile[i * TILE_M + place] = word;
        if (LOWS) sums[i / 4] += dot4(word, 0x01010101u);
    }
    x_scale[place] = scale * vec3(1.0, sums[0], sums[1]);
}

void main() {
    int me = int(gl_LocalInvocationIndex), count = row_count();
    int n0 = int(gl_WorkGroupID.x) * TILE_N, m0 = int(gl_WorkGroupID.y) * TILE_M, across = me % ACROSS * OWN_N, down = me / ACROSS * OWN_M;
    float acc[OWN];
    if (m0 >= count) return;
    for (int i = 0; i < OWN; i++) acc[i] = 0.0;
    for (int u = 0; u < k / 32; u++) {
        int dots[2 * OWN];
        if (me < TILE_N) load_weight(n0 + me, u, me);
        else if (me < TILE_N + TILE_M) load_source(min(m0 + me - TILE_N, count - 1), u, me - TILE_N);
        barrier();
        for (int i = 0; i < 2 * OWN; i++) dots[i] = 0;
        for (int i = 0; i < 8; i++) {
            uint a[OWN_N], b[OWN_M];
            int part = HALVES ? i / 4 * OWN : 0;
            for (int j = 0; j < OWN_N; j++) a[j] = w_tile[i * TILE_N + across + j];
            for (int j = 0; j < OWN_M; j++) b[j] = x_tile[i * TILE_M + down + j];
            for (int j = 0; j < OWN; j++) dots[part + j] += dot4(a[j % OWN_N], b[j / OWN_N]);
        }
        for (int j = 0; j < OWN; j++) {
            vec2 scale = w_scale[across + j % OWN_N];
            vec3 x = x_scale[down + j / OWN_N];
            float one = scale.x * float(dots[j]);
            if (HALVES) one += scale.y * float(dots[OWN + j]);
            acc[j] += one * x.x;
            if (LOWS) acc[j] -= dot(w_low[across + j % OWN_N], x.yz);
        }
        barrier();
    }
    for (int j = 0; j < OWN; j++) {
        int row = n0 + across + j % OWN_N, col = m0 + down + j / OWN_N;
        if (row < rows && col < count) finish(row, col, acc[j]);
    }
}
