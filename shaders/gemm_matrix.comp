#version 450
#pragma use_vulkan_memory_model
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#extension GL_EXT_shader_16bit_storage : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_cooperative_matrix : require
/* As gemm_half.comp, by cooperative matrices of M x N x K: TILE_N rows of the weight by TILE_M rows of src, TILE_K of k at a time. Of the tile's
   sums each of SUBGROUPS subgroups has a part, of several matrices each way, so that what it loads is used several times. The next step's
   weights and src are on their way while this one's are multiplied: an invocation has 32 weights of one row, or of several, and takes what of src
   is next to it. Tiles of 128 by 128 take 44 KiB of shared memory with 256 invocations in subgroups of 32. */
layout(local_size_x_id = 3) in;
#include "common.glsl"
#include "quant.glsl"
#include "product.glsl"
#include "half.glsl"
#include "matrix.glsl"
layout(constant_id = 1) const int MT = 64 << 16 | 32 << 8 | 16; /* M, 256 times TILE_M, 65536 times TILE_N */
layout(constant_id = 2) const int NK = 4 << 16 | 16 << 8 | 16;  /* K, 256 times N, 65536 times SUBGROUPS */
layout(constant_id = 3) const int THREADS = 128;
const int TILE_N = MT >> 16, TILE_M = MT >> 8 & 255, M = MT & 255, SUBGROUPS = NK >> 16, N = NK >> 8 & 255, K = NK & 255;
const int PARTS = THREADS > TILE_N ? THREADS / TILE_N : 1, TILE_K = 32 * PARTS, LANES = THREADS / SUBGROUPS;
const int STRIDE = TILE_K / 4 + 2;                                                        /* of f16vec4; shifted from row to row */
const int LIKED = SUBGROUPS < 4 ? 1 : SUBGROUPS < 16 ? 2 : 4;
const int DOWN = LIKED * N > TILE_M ? TILE_M / N : LIKED;                                 /* parts of a tile, over rows of src */
const int ACROSS = SUBGROUPS / DOWN * M > TILE_N ? TILE_N / M : SUBGROUPS / DOWN;         /* and of the weight */
const int OWN_N = TILE_N / ACROSS / M, OWN_M = TILE_M / DOWN / N;                         /* matrices of sums of a part */
const int W_EACH = (TILE_N + THREADS - 1) / THREADS, X_EACH = TILE_M * TILE_K / 4 / THREADS; /* rows of weights, f16vec4 of src */
shared f16vec4 w_tile[TILE_N * STRIDE];
shared f16vec4 x_tile[TILE_M * STRIDE];
shared float out_tile[SUBGROUPS * M * N];
coopmat<float, gl_ScopeSubgroup, M, N, gl_MatrixUseAccumulator> acc[OWN_N * OWN_M];
Unexpanded w_next[W_EACH];
f16vec4 x_next[X_EACH];

/* Beyond k src is what comes last before, times weights of 0. */
void load(int me, int n0, int m0, int k0, int count) {
    int at_k = k0 + me / TILE_N % PARTS * 32;
    [[unroll]] for (int i = 0; i < W_EACH; i++) {
        if (me % TILE_N + i * THREADS >= TILE_N) continue;
        if (PARTS == 1 || at_k < k) load_unexpanded(n0 + me % TILE_N + i * THREADS, at_k, w_next[i]);
        else no_weights(w_next[i]);
    }
    [[unroll]] for (int i = 0; i < X_EACH; i++) {
        int at = me + i * THREADS, at_x = k0 / 4 + at % (TILE_K / 4);
        if (PARTS > 1) at_x = min(at_x, (k + 31) / 32 * 8 - 1);
        x_next[i] = halves[halves_row(src_row(min(m0 + at / (TILE_K / 4), count - 1))) + at_x];
    }
}

void store(int me) {
    [[unroll]] for (int i = 0; i < W_EACH; i++)
        if (me % TILE_N + i * THREADS < TILE_N)
            [[unroll]] for (int j = 0; j < 8; j++) w_tile[(me % TILE_N + i * THREADS) * STRIDE + me / TILE_N % PARTS * 8 + j] = four_weights(w_next[i], j);
    [[unroll]] for (int i = 0; i < X_EACH; i++) {
        int at = me + i * THREADS;
        x_tile[at / (TILE_K / 4) * STRIDE + at % (TILE_K / 4)] = x_next[i];
    }
}

void multiply(int row0, int col0) {
    [[unroll]] for (int step = 0; step < TILE_K; step += K) {
        coopmat<float16_t, gl_ScopeSubgroup, K, N, gl_MatrixUseB> b[OWN_M];
        [[unroll]] for (int c = 0; c < OWN_M; c++)
            coopMatLoad(b[c], x_tile, uint((col0 + c * N) * STRIDE + step / 4), uint(STRIDE), gl_CooperativeMatrixLayoutColumnMajor);
        [[unroll]] for (int r = 0; r < OWN_N; r++) {
            coopmat<float16_t, gl_ScopeSubgroup, M, K, gl_MatrixUseA> a;
            coopMatLoad(a, w_tile, uint((row0 + r * M) * STRIDE + step / 4), uint(STRIDE), gl_CooperativeMatrixLayoutRowMajor);
            [[unroll]] for (int c = 0; c < OWN_M; c++) acc[r * OWN_M + c] = coopMatMulAdd(a, b[c], acc[r * OWN_M + c]);
        }
    }
}

void main() {
    int me = int(gl_LocalInvocationIndex), m0, count = find_rows(TILE_M, m0), subgroup = int(gl_SubgroupID), lane = int(subgroupExclusiveAdd(1u));
    int n0 = int(gl_WorkGroupID.x) * TILE_N;
    int row0 = subgroup / DOWN * (OWN_N * M), col0 = subgroup % DOWN * (OWN_M * N), out0 = subgroup * M * N;
    bool has_part = subgroup < ACROSS * DOWN;
    if (m0 >= count) return;
    [[unroll]] for (int i = 0; i < OWN_N * OWN_M; i++) acc[i] = coopmat<float, gl_ScopeSubgroup, M, N, gl_MatrixUseAccumulator>(0.0);
    load(me, n0, m0, 0, count);
    for (int k0 = 0; k0 < k; k0 += TILE_K) {
        store(me);
        barrier();
        if (k0 + TILE_K < k) load(me, n0, m0, k0 + TILE_K, count);
        if (has_part) multiply(row0, col0);
        barrier();
    }
    if (!has_part) return;
    [[unroll]] for (int i = 0; i < OWN_N * OWN_M; i++) {
        coopMatStore(acc[i], out_tile, uint(out0), uint(M), gl_CooperativeMatrixLayoutColumnMajor);
        meet();
        for (int j = lane; j < M * N; j += LANES) {
            int row = n0 + row0 + i / OWN_M * M + j % M, col = m0 + col0 + i % OWN_M * N + j / M;
            if (row < rows && col < count) finish(row, col, out_tile[out0 + j] * halves_scale(src_row(col)));
        }
        meet();
    }
}
