#version 450
#extension GL_GOOGLE_include_directive : require
/* dst = act(src . weight^T + bias) + src2 for many rows of src: tiles of 64 rows of the weight by 64 rows of src, 32 of k at
   a time, expanded into shared memory (16 KiB); each invocation has 8 x 8 sums, so that four products come of a number read. */
layout(local_size_x = 64) in;
#include "common.glsl"
#include "quant.glsl"
#include "product.glsl"
layout(constant_id = 1) const int RUNS = 1; /* 1, or SLICES: a row's bits are those that it has among few */
layout(constant_id = 2) const int RAGGED = 0; /* 1: k is not a multiple of 32 */
layout(set = 0, binding = 2) readonly buffer Src { float src[]; };
const int TILE_N = 64, TILE_M = 64, TILE_K = 32, SIDE = 8, ACROSS = TILE_N / SIDE, OWN = SIDE * SIDE;
shared float w_tile[TILE_K * TILE_N];
shared float x_tile[TILE_K * TILE_M];

void lay(int i, float sum) { w_tile[i] = sum; }
float laid(int i) { return w_tile[i]; }
float scaled(float sum, int col) { return sum; }
#include "tile.glsl"

/* One row of the weight, TILE_K of its columns. */
void load_weight(int row, int k0, int place) {
    uint at = weight_at(row);
    float w[32];
    if (FLOATS) {
        [[unroll]] for (int part = 0; part < 4; part++) {
            bool there = RAGGED == 0 || k0 + 8 * part < k;
            if (there) unit(at, uint(k0 / 8 + part), w);
            [[unroll]] for (int i = 0; i < 8; i++) w_tile[(8 * part + i) * TILE_N + place] = there ? w[i] : 0.0;
        }
        return;
    }
    unit(at, uint(k0 / 32), w);
    [[unroll]] for (int i = 0; i < 32; i++) w_tile[i * TILE_N + place] = w[i];
}

void main() {
    int me = int(gl_LocalInvocationIndex), m0, count = find_rows(TILE_M, m0);
    int n0 = int(gl_WorkGroupID.x) * TILE_N, across = me % ACROSS * SIDE, down = me / ACROSS * SIDE;
    float acc[OWN], total[OWN];
    if (m0 >= count) return;
    int own_src = EXPERTS == 0 ? 0 : src_at(min(m0 + me, count - 1));
    [[unroll]] for (int i = 0; i < OWN; i++) acc[i] = total[i] = 0.0;
    for (int slice = 0; slice < RUNS; slice++) {
        for (int k0 = slice * TILE_K; k0 < k; k0 += RUNS * TILE_K) {
            load_weight(n0 + me, k0, me);
            int from = (EXPERTS == 0 ? min(m0 + me, count - 1) * src_stride + src_col : own_src) + k0;
            [[unroll]] for (int i = 0; i < TILE_K; i++) x_tile[i * TILE_M + me] = RAGGED == 0 || k0 + i < k ? src[from + i] : 0.0;
            barrier();
            for (int i = 0; i < TILE_K; i++) {
                float a[SIDE], b[SIDE];
                [[unroll]] for (int j = 0; j < SIDE; j++) a[j] = w_tile[i * TILE_N + across + j];
                [[unroll]] for (int j = 0; j < SIDE; j++) b[j] = x_tile[i * TILE_M + down + j];
                [[unroll]] for (int j = 0; j < OWN; j++) acc[j] += a[j % SIDE] * b[j / SIDE];
            }
            barrier();
        }
        if (RUNS > 1)
            [[unroll]] for (int j = 0; j < OWN; j++) {
                total[j] += acc[j];
                acc[j] = 0.0;
            }
    }
    if (RUNS > 1)
        [[unroll]] for (int j = 0; j < OWN; j++) acc[j] = total[j];
    finish_tile(me, n0, m0, count, acc);
}
