#version 450
#pragma use_vulkan_memory_model
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#extension GL_EXT_shader_16bit_storage : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_cooperative_matrix : require
/* As gemm_half.comp, by cooperative matrices of M x N x K: TILE_N rows of the weight by TILE_M rows of src. Of the tile's sums each of SUBGROUPS
   subgroups has a part, of several matrices each way, so that what it loads is used several times. Shared memory has a step of k twice: while one is
   multiplied the next is put into the other, so that matrix units work while weights are expanded; what is to follow is on its way, of weights two
   steps, as they come from memory. An invocation has a row of the weight; where there are more of them the others have src. Tiles of
   128 by 128 take 40 KiB of shared memory. */
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
const int TILE_K = 32, LINE = TILE_K / 8, STRIDE = LINE + 1, TILE = (TILE_N + TILE_M) * STRIDE, LANES = THREADS / SUBGROUPS;
const bool SPLIT = THREADS > TILE_N;
const int X_LOADERS = SPLIT ? THREADS - TILE_N : THREADS, X_EACH = TILE_M * LINE / X_LOADERS; /* uvec4 of src that an invocation loads */
const int LIKED = SUBGROUPS < 4 ? 1 : SUBGROUPS < 16 ? 2 : 4;
const int DOWN = LIKED * N > TILE_M ? TILE_M / N : LIKED;                                 /* parts of a tile, over rows of src */
const int ACROSS = SUBGROUPS / DOWN * M > TILE_N ? TILE_N / M : SUBGROUPS / DOWN;         /* and of the weight */
const int OWN_N = TILE_N / ACROSS / M, OWN_M = TILE_M / DOWN / N;                         /* matrices of sums of a part */
shared uvec4 tiles[2 * TILE]; /* rows of the weight, then of src; in the end sums */
coopmat<float, gl_ScopeSubgroup, M, N, gl_MatrixUseAccumulator> acc[OWN_N * OWN_M];
Unexpanded w_next, w_after;
uvec4 x_next[X_EACH];

void load_weights(int me, int n0, int k0) {
    if (SPLIT && me >= TILE_N) return;
    [[unroll]] for (int i = 0; i < w_next.words.length(); i++) w_next.words[i] = w_after.words[i];
    w_next.scale = w_after.scale;
    w_next.low = w_after.low;
    if (k0 < k) load_unexpanded(n0 + me, k0, w_after);
}

void load_src(int me, int m0, int k0, int count) {
    if (SPLIT && me < TILE_N || k0 >= k) return;
    [[unroll]] for (int i = 0; i < X_EACH; i++) {
        int at = (SPLIT ? me - TILE_N : me) + i * X_LOADERS;
        x_next[i] = wide_src(min(m0 + at / LINE, count - 1), k0 / 8 + at % LINE);
    }
}

void store(int me, int tile) {
    if (!SPLIT || me < TILE_N) {
        [[unroll]] for (int j = 0; j < LINE; j++) tiles[tile + me * STRIDE + j] = eight_weights(w_next, j);
    }
    if (!SPLIT || me >= TILE_N) {
        [[unroll]] for (int i = 0; i < X_EACH; i++) {
            int at = (SPLIT ? me - TILE_N : me) + i * X_LOADERS;
            tiles[tile + (TILE_N + at / LINE) * STRIDE + at % LINE] = x_next[i];
        }
    }
}

void multiply(int tile, int row0, int col0) {
    [[unroll]] for (int step = 0; step < TILE_K; step += K) {
        coopmat<float16_t, gl_ScopeSubgroup, K, N, gl_MatrixUseB> b[OWN_M];
        [[unroll]] for (int c = 0; c < OWN_M; c++)
            coopMatLoad(b[c], tiles, uint(tile + (TILE_N + col0 + c * N) * STRIDE + step / 8), uint(STRIDE), gl_CooperativeMatrixLayoutColumnMajor);
        [[unroll]] for (int r = 0; r < OWN_N; r++) {
            coopmat<float16_t, gl_ScopeSubgroup, M, K, gl_MatrixUseA> a;
            coopMatLoad(a, tiles, uint(tile + (row0 + r * M) * STRIDE + step / 8), uint(STRIDE), gl_CooperativeMatrixLayoutRowMajor);
            [[unroll]] for (int c = 0; c < OWN_M; c++) acc[r * OWN_M + c] = coopMatMulAdd(a, b[c], acc[r * OWN_M + c]);
        }
    }
}

void main() {
    int me = int(gl_LocalInvocationIndex), count = row_count(), subgroup = int(gl_SubgroupID), lane = int(subgroupExclusiveAdd(1u)), tile = 0;
    int n0 = int(gl_WorkGroupID.x) * TILE_N, m0 = int(gl_WorkGroupID.y) * TILE_M;
    int row0 = subgroup / DOWN * (OWN_N * M), col0 = subgroup % DOWN * (OWN_M * N), out0 = subgroup * (M * N / 4);
    bool has_part = subgroup < ACROSS * DOWN;
    if (m0 >= count) return;
    [[unroll]] for (int i = 0; i < OWN_N * OWN_M; i++) acc[i] = coopmat<float, gl_ScopeSubgroup, M, N, gl_MatrixUseAccumulator>(0.0);
    load_weights(me, n0, 0);
    load_weights(me, n0, TILE_K);
    load_src(me, m0, 0, count);
    store(me, 0);
    load_weights(me, n0, 2 * TILE_K);
    load_src(me, m0, TILE_K, count);
    barrier();
    for (int k0 = 0; k0 < k; k0 += TILE_K) {
        if (k0 + TILE_K < k) store(me, TILE - tile);
        load_weights(me, n0, k0 + 3 * TILE_K);
        load_src(me, m0, k0 + 2 * TILE_K, count);
        if (has_part) multiply(tile, row0, col0);
        tile = TILE - tile;
        barrier();
    }
    if (!has_part) return;
    [[unroll]] for (int i = 0; i < OWN_N * OWN_M; i++) {
        coopMatStore(acc[i], tiles, uint(out0), uint(M / 4), gl_CooperativeMatrixLayoutColumnMajor);
        meet();
        for (int j = lane; j < M * N; j += LANES) {
            int row = n0 + row0 + i / OWN_M * M + j % M, col = m0 + col0 + i % OWN_M * N + j / M;
            if (row < rows && col < count) finish(row, col, uintBitsToFloat(tiles[out0 + j / 4][j % 4]) * halves_scale(col));
        }
        meet();
    }
}
