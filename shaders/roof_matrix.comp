#version 450
#pragma use_vulkan_memory_model
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#extension GL_EXT_shader_16bit_storage : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_cooperative_matrix : require
/* Products of cooperative matrices: in each of SUBGROUPS subgroups four sums of M x N, of K numbers each, four times a round. */
layout(local_size_x = 128) in;
#include "common.glsl"
#include "roof.glsl"
layout(constant_id = 1) const int MN = 16 << 8 | 16;       /* N, and 256 times M */
layout(constant_id = 2) const int K_SUBGROUPS = 16 << 8 | 4; /* SUBGROUPS, and 256 times K */
const int M = MN >> 8, N = MN & 255, K = K_SUBGROUPS >> 8, SUBGROUPS = K_SUBGROUPS & 255, LANES = 128 / SUBGROUPS;
shared float16_t left[4 * M * K];
shared float16_t right[N * K];
shared float tile[SUBGROUPS * M * N];

void main() {
    int me = int(gl_LocalInvocationIndex), mine = int(gl_SubgroupID) * M * N;
    coopmat<float16_t, gl_ScopeSubgroup, M, K, gl_MatrixUseA> a[4];
    coopmat<float16_t, gl_ScopeSubgroup, K, N, gl_MatrixUseB> b;
    coopmat<float, gl_ScopeSubgroup, M, N, gl_MatrixUseAccumulator> acc[4];
    uint sum = 0u;
    for (int i = me; i < 4 * M * K; i += 128) left[i] = float16_t(number(0u, uint(i / K), uint(i % K)));
    for (int i = me; i < N * K; i += 128) right[i] = float16_t(number(1u, uint(i / K), uint(i % K)));
    barrier();
    coopMatLoad(b, right, 0, K, gl_CooperativeMatrixLayoutColumnMajor);
    [[unroll]] for (int j = 0; j < 4; j++) {
        coopMatLoad(a[j], left, j * M * K, K, gl_CooperativeMatrixLayoutRowMajor);
        acc[j] = coopmat<float, gl_ScopeSubgroup, M, N, gl_MatrixUseAccumulator>(0.0);
    }
    for (int round = 0; round < k; round++)
        [[unroll]] for (int times = 0; times < 4; times++)
            [[unroll]] for (int j = 0; j < 4; j++) acc[j] = coopMatMulAdd(a[j], b, acc[j]);
    [[unroll]] for (int j = 0; j < 4; j++) {
        barrier();
        coopMatStore(acc[j], tile, mine, N, gl_CooperativeMatrixLayoutRowMajor);
        barrier();
        for (int i = int(gl_SubgroupInvocationID); i < M * N; i += LANES) sum += uint(int(tile[mine + i]));
    }
    put_sum(sum);
}
