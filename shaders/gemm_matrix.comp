#version 450
#pragma use_vulkan_memory_model
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#extension GL_EXT_shader_16bit_storage : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_cooperative_matrix : require
/* As gemm_half.comp, by cooperative matrices of M x N x K: 64 rows of the weight by 32 rows of src, 32 of k at a time, through
   16 KiB of shared memory; the matrices of sums are dealt out to SUBGROUPS subgroups. */
layout(local_size_x = 128) in;
#include "common.glsl"
#include "quant.glsl"
#include "product.glsl"
#include "half.glsl"
layout(constant_id = 1) const int M = 16;
layout(constant_id = 2) const int NK = 16 << 8 | 16; /* K, and 256 times N */
layout(constant_id = 3) const int SUBGROUPS = 4;
const int N = NK >> 8, K = NK & 255;
const int TILE_N = 64, TILE_M = 32, TILE_K = 32, STRIDE = TILE_K / 4 + 2; /* of f16vec4; shifted from row to row */
const int ACROSS = TILE_N / M, ALL = ACROSS * (TILE_M / N), OWN = (ALL + SUBGROUPS - 1) / SUBGROUPS;
shared f16vec4 w_tile[TILE_N * STRIDE];
shared f16vec4 x_tile[TILE_M * STRIDE];
shared float out_tile[TILE_M * TILE_N];

void main() {
    int me = int(gl_LocalInvocationIndex), count = row_count();
    int n0 = int(gl_WorkGroupID.x) * TILE_N, m0 = int(gl_WorkGroupID.y) * TILE_M;
    coopmat<float, gl_ScopeSubgroup, M, N, gl_MatrixUseAccumulator> acc[OWN];
    if (m0 >= count) return;
    for (int i = 0; i < OWN; i++) acc[i] = coopmat<float, gl_ScopeSubgroup, M, N, gl_MatrixUseAccumulator>(0.0);
    for (int k0 = 0; k0 < k; k0 += TILE_K) {
        if (me < TILE_N) {
            f16vec4 w[8];
            half_weights(n0 + me, k0, w);
            for (int i = 0; i < 8; i++) w_tile[me * STRIDE + i] = w[i];
        } else {
            int m = me % 32, part = (me - TILE_N) / 32 * 4, at = halves_row(min(m0 + m, count - 1)) + k0 / 4 + part;
            for (int i = 0; i < 4; i++) x_tile[m * STRIDE + part + i] = halves[at + i];
        }
        barrier();
        for (int step = 0; step < TILE_K; step += K)
            for (int i = 0; i < OWN; i++) {
                int which = int(gl_SubgroupID) + i * SUBGROUPS, row = which % ACROSS * M, col = which / ACROSS * N;
                coopmat<float16_t, gl_ScopeSubgroup, M, K, gl_MatrixUseA> a;
                coopmat<float16_t, gl_ScopeSubgroup, K, N, gl_MatrixUseB> b;
                if (which >= ALL) continue;
                coopMatLoad(a, w_tile, uint(row * STRIDE + step / 4), uint(STRIDE), gl_CooperativeMatrixLayoutRowMajor);
                coopMatLoad(b, x_tile, uint(col * STRIDE + step / 4), uint(STRIDE), gl_CooperativeMatrixLayoutColumnMajor);
                acc[i] = coopMatMulAdd(a, b, acc[i]);
            }
        barrier();
    }
    for (int i = 0; i < OWN; i++) {
        int which = int(gl_SubgroupID) + i * SUBGROUPS, row = which % ACROSS * M, col = which / ACROSS * N;
        if (which < ALL) coopMatStore(acc[i], out_tile, uint(col * TILE_N + row), uint(TILE_N), gl_CooperativeMatrixLayoutColumnMajor);
    }
    barrier();
    for (int i = me; i < TILE_M * TILE_N; i += 128) {
        int row = n0 + i % TILE_N, col = m0 + i / TILE_N;
        if (row < rows && col < count) finish(row, col, out_tile[i] * halves_scale(col));
    }
}
