#version 450
#extension GL_GOOGLE_include_directive : require
/* dst = act(src . weight^T + bias) + src2 for many rows of src: tiles of 64 rows of the weight by 32 rows of src, 32 of k at
   a time, expanded into shared memory (12 KiB); each invocation has 4 x 4 sums. */
layout(local_size_x = 128) in;
#include "common.glsl"
#include "quant.glsl"
#include "product.glsl"
layout(constant_id = 3) const int RAGGED = 0; /* 1: k is not a multiple of 32 */
layout(set = 0, binding = 2) readonly buffer Src { float src[]; };
const int TILE_N = 64, TILE_M = 32, TILE_K = 32;
shared float w_tile[TILE_K * TILE_N];
shared float x_tile[TILE_K * TILE_M];

/* One row of the weight, TILE_K of its columns. */
void load_weight(int row, int k0, int place) {
    uint at = uint(min(row, rows - 1) * weight_stride);
    float w[32];
    if (FLOATS) {
        for (int part = 0; part < 4; part++) {
            bool there = RAGGED == 0 || k0 + 8 * part < k;
            if (there) unit(at, uint(k0 / 8 + part), w);
            for (int i = 0; i < 8; i++) w_tile[(8 * part + i) * TILE_N + place] = there ? w[i] : 0.0;
        }
        return;
    }
    unit(at, uint(k0 / 32), w);
    for (int i = 0; i < 32; i++) w_tile[i * TILE_N + place] = w[i];
}

void main() {
    int me = int(gl_LocalInvocationIndex), count = row_count();
    int n0 = int(gl_WorkGroupID.x) * TILE_N, m0 = int(gl_WorkGroupID.y) * TILE_M, across = me % 16 * 4, down = me / 16 * 4;
    float acc[16];
    if (m0 >= count) return;
    for (int i = 0; i < 16; i++) acc[i] = 0.0;
    for (int k0 = 0; k0 < k; k0 += TILE_K) {
        if (me < TILE_N) load_weight(n0 + me, k0, me);
        else {
            int m = me % 32, part = (me - TILE_N) / 32 * 16, from = min(m0 + m, count - 1) * src_stride + src_col + k0 + part;
            for (int i = 0; i < 16; i++)
                x_tile[(part + i) * TILE_M + m] = RAGGED == 0 || k0 + part + i < k ? src[from + i] : 0.0;
        }
        barrier();
        for (int i = 0; i < TILE_K; i++) {
            float a[4], b[4];
            for (int j = 0; j < 4; j++) {
                a[j] = w_tile[i * TILE_N + across + j];
                b[j] = x_tile[i * TILE_M + down + j];
            }
            for (int j = 0; j < 16; j++) acc[j] += a[j % 4] * b[j / 4];
        }
        barrier();
    }
    for (int j = 0; j < 16; j++) {
        int row = n0 + across + j % 4, col = m0 + down + j / 4;
        if (row < rows && col < count) finish(row, col, acc[j]);
    }
}
