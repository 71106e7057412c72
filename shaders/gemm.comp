#version 450
#extension GL_GOOGLE_include_directive : require
/* dst = act(src . weight^T + bias) + src2 for many rows of src: tiles of 64 rows of the weight by 64 rows of src, 32 of k at
   a time, expanded into shared memory (16 KiB); each invocation has 8 x 8 sums, so that four products come of a number read. Of few
   rows, where their bits must be those of many, an invocation has a row of the weight and all of src. */
layout(local_size_x = 64) in;
#include "common.glsl"
#include "quant.glsl"
#include "product.glsl"
layout(constant_id = 1) const int OWN_N = 8;
layout(constant_id = 2) const int OWN_M = 8;
layout(constant_id = 3) const int RAGGED = 0; /* 1: k is not a multiple of 32 */
layout(set = 0, binding = 2) readonly buffer Src { float src[]; };
const int TILE_N = 64, ACROSS = TILE_N / OWN_N, TILE_M = 64 / ACROSS * OWN_M, TILE_K = 32, OWN = OWN_N * OWN_M;
shared float w_tile[TILE_K * TILE_N];
shared float x_tile[TILE_K * TILE_M];

/* One row of the weight, TILE_K of its columns. */
void load_weight(int row, int k0, int place) {
    uint at = uint(min(row, rows - 1) * weight_stride);
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
    int me = int(gl_LocalInvocationIndex), count = row_count();
    int n0 = int(gl_WorkGroupID.x) * TILE_N, m0 = int(gl_WorkGroupID.y) * TILE_M, across = me % ACROSS * OWN_N, down = me / ACROSS * OWN_M;
    float acc[OWN];
    if (m0 >= count) return;
    [[unroll]] for (int i = 0; i < OWN; i++) acc[i] = 0.0;
    for (int k0 = 0; k0 < k; k0 += TILE_K) {
        load_weight(n0 + me, k0, me);
        if (TILE_M == 64) {
            int from = min(m0 + me, count - 1) * src_stride + src_col + k0;
            [[unroll]] for (int i = 0; i < TILE_K; i++) x_tile[i * TILE_M + me] = RAGGED == 0 || k0 + i < k ? src[from + i] : 0.0;
        } else
            for (int i = me; i < TILE_K * TILE_M; i += 64) {
                int col = i % TILE_K, from = min(m0 + i / TILE_K, count - 1) * src_stride + src_col + k0;
                x_tile[col * TILE_M + i / TILE_K] = RAGGED == 0 || k0 + col < k ? src[from + col] : 0.0;
            }
        barrier();
        for (int i = 0; i < TILE_K; i++) {
            float a[OWN_N], b[OWN_M];
            [[unroll]] for (int j = 0; j < OWN_N; j++) a[j] = w_tile[i * TILE_N + across + j];
            [[unroll]] for (int j = 0; j < OWN_M; j++) b[j] = x_tile[i * TILE_M + down + j];
            [[unroll]] for (int j = 0; j < OWN; j++) acc[j] += a[j % OWN_N] * b[j / OWN_N];
        }
        barrier();
    }
    [[unroll]] for (int j = 0; j < OWN; j++) {
        int row = n0 + across + j % OWN_N, col = m0 + down + j / OWN_N;
        if (row < rows && col < count) finish(row, col, acc[j]);
    }
}
