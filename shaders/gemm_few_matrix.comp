#version 450
#pragma use_vulkan_memory_model
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#extension GL_EXT_shader_16bit_storage : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_cooperative_matrix : require
/* As gemm_matrix.comp, of some rows of src, where reading the weight is what takes the time: TALL rows of the weight by 32 rows of src. Each of
   SUBGROUPS subgroups takes every SUBGROUPS-th step of k for itself, weights through its own shared memory, src as it lies, and waits
   for no other; in the end their sums are added. */
layout(local_size_x = 128) in;
#include "common.glsl"
#include "quant.glsl"
#include "product.glsl"
#include "half.glsl"
layout(constant_id = 1) const int MT = 16 << 8 | 16; /* TALL, and 256 times M */
layout(constant_id = 2) const int NK = 16 << 8 | 16; /* K, and 256 times N */
layout(constant_id = 3) const int SUBGROUPS = 4;
const int M = MT >> 8, TALL = MT & 255, N = NK >> 8, K = NK & 255, WIDE_TILE = 32;
const int LANES = 128 / SUBGROUPS, PARTS = LANES > TALL ? LANES / TALL : 1, STEP = 32 * PARTS; /* of k: an invocation expands 32 weights */
const int STRIDE = STEP / 4 + 2, DOWN = TALL / M, ACROSS = WIDE_TILE / N, OWN = DOWN * ACROSS; /* of f16vec4; matrices of sums */
const int SUMS = TALL * WIDE_TILE;
shared f16vec4 w_tile[SUBGROUPS * TALL * STRIDE];
shared float sums[SUBGROUPS * SUMS];
coopmat<float, gl_ScopeSubgroup, M, N, gl_MatrixUseAccumulator> acc[OWN];

void meet() { controlBarrier(gl_ScopeSubgroup, gl_ScopeSubgroup, gl_StorageSemanticsShared, gl_SemanticsAcquireRelease); }

void load_weights(int n0, int k0, int tile, int lane) {
    for (int i = lane; i < TALL * PARTS; i += LANES) {
        int row = i % TALL, part = i / TALL;
        f16vec4 w[8];
        for (int j = 0; j < 8; j++) w[j] = f16vec4(0.0);
        if (PARTS == 1 || k0 + 32 * part < k) half_weights(n0 + row, k0 + 32 * part, w);
        for (int j = 0; j < 8; j++) w_tile[tile + row * STRIDE + part * 8 + j] = w[j];
    }
}

/* A step of k, of those that src has: zeros up to a multiple of 32. */
void multiply(int m0, int k0, int tile) {
    for (int step = 0; step < STEP && k0 + step < (k + 31) / 32 * 32; step += K) {
        coopmat<float16_t, gl_ScopeSubgroup, K, N, gl_MatrixUseB> b[ACROSS];
        [[unroll]] for (int c = 0; c < ACROSS; c++)
            coopMatLoad(b[c], halves, uint(halves_row(m0 + c * N) + (k0 + step) / 4), uint(halves_row(1)), gl_CooperativeMatrixLayoutColumnMajor);
        [[unroll]] for (int d = 0; d < DOWN; d++) {
            coopmat<float16_t, gl_ScopeSubgroup, M, K, gl_MatrixUseA> a;
            coopMatLoad(a, w_tile, uint(tile + d * M * STRIDE + step / 4), uint(STRIDE), gl_CooperativeMatrixLayoutRowMajor);
            [[unroll]] for (int c = 0; c < ACROSS; c++) acc[d * ACROSS + c] = coopMatMulAdd(a, b[c], acc[d * ACROSS + c]);
        }
    }
}

void main() {
    int me = int(gl_LocalInvocationIndex), subgroup = int(gl_SubgroupID), count = row_count(), tile = subgroup * TALL * STRIDE;
    int n0 = int(gl_WorkGroupID.x) * TALL, m0 = int(gl_WorkGroupID.y) * WIDE_TILE, lane = int(subgroupExclusiveAdd(1u));
    if (m0 >= count) return;
    [[unroll]] for (int i = 0; i < OWN; i++) acc[i] = coopmat<float, gl_ScopeSubgroup, M, N, gl_MatrixUseAccumulator>(0.0);
    for (int k0 = subgroup * STEP; k0 < k; k0 += SUBGROUPS * STEP) {
        load_weights(n0, k0, tile, lane);
        meet();
        multiply(m0, k0, tile);
        meet();
    }
    [[unroll]] for (int i = 0; i < OWN; i++)
        coopMatStore(acc[i], sums, uint(subgroup * SUMS + i % ACROSS * N * TALL + i / ACROSS * M), uint(TALL), gl_CooperativeMatrixLayoutColumnMajor);
    barrier();
    for (int i = me; i < SUMS; i += 128) {
        int row = n0 + i % TALL, col = m0 + i / TALL;
        float sum = 0.0;
        for (int of = 0; of < SUBGROUPS; of++) sum += sums[of * SUMS + i];
        if (row < rows && col < count) finish(row, col, sum * halves_scale(col));
    }
}
