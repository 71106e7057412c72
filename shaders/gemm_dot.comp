#version 450
#extension GL_GOOGLE_include_directive : require
/* As gemm.comp, of quantised weights and src in bytes: 64 rows of the weight by 32 rows of src, 32 of k at a time (4 KiB of
   shared memory); each invocation has 4 x 4 sums. */
layout(local_size_x = 128) in;
#include "common.glsl"
#include "quant.glsl"
#include "product.glsl"
#include "dot.glsl"
const int TILE_N = 64, TILE_M = 32;
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
    int n0 = int(gl_WorkGroupID.x) * TILE_N, m0 = int(gl_WorkGroupID.y) * TILE_M, across = me % 16 * 4, down = me / 16 * 4;
    float acc[16];
    if (m0 >= count) return;
    for (int i = 0; i < 16; i++) acc[i] = 0.0;
    for (int u = 0; u < k / 32; u++) {
        int dots[32];
        if (me < TILE_N) load_weight(n0 + me, u, me);
        else if (me < TILE_N + TILE_M) load_source(min(m0 + me - TILE_N, count - 1), u, me - TILE_N);
        barrier();
        for (int i = 0; i < 32; i++) dots[i] = 0;
        for (int i = 0; i < 8; i++) {
            uint a[4], b[4];
            int part = HALVES ? i / 4 * 16 : 0;
            for (int j = 0; j < 4; j++) {
                a[j] = w_tile[i * TILE_N + across + j];
                b[j] = x_tile[i * TILE_M + down + j];
            }
            for (int j = 0; j < 16; j++) dots[part + j] += dot4(a[j % 4], b[j / 4]);
        }
        for (int j = 0; j < 16; j++) {
            vec2 scale = w_scale[across + j % 4];
            vec3 x = x_scale[down + j / 4];
            float one = scale.x * float(dots[j]);
            if (HALVES) one += scale.y * float(dots[16 + j]);
            acc[j] += one * x.x;
            if (LOWS) acc[j] -= dot(w_low[across + j % 4], x.yz);
        }
        barrier();
    }
    for (int j = 0; j < 16; j++) {
        int row = n0 + across + j % 4, col = m0 + down + j / 4;
        if (row < rows && col < count) finish(row, col, acc[j]);
    }
}
