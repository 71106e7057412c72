#version 450
#pragma use_vulkan_memory_model
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#extension GL_EXT_shader_16bit_storage : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_cooperative_matrix : require
/* As gemm_matrix.comp, of some rows of src, where reading the weight is what takes the time: TALL rows of the weight by 32 rows of src. Each of
   SUBGROUPS subgroups takes every SUBGROUPS-th step of k for itself, weights through its own shared memory, and waits for no other; in the end
   their sums are added. Where SHARES src goes through shared memory too, else it is loaded as it lies. */
layout(local_size_x = 128) in;
#include "common.glsl"
#include "quant.glsl"
#include "product.glsl"
#include "half.glsl"
#include "matrix.glsl"
layout(constant_id = 1) const int MT = 16 << 8 | 16; /* TALL, and 256 times M */
layout(constant_id = 2) const int NK = 16 << 8 | 16; /* K, and 256 times N */
layout(constant_id = 3) const int HOW = 4;             /* SUBGROUPS, and 256 where SHARES */
const int M = MT >> 8, TALL = MT & 255, N = NK >> 8, K = NK & 255, WIDE_TILE = 32;
const int SUBGROUPS = HOW & 255, LANES = 128 / SUBGROUPS, PARTS = LANES > TALL ? LANES / TALL : 1, STEP = 32 * PARTS; /* of k: an invocation expands 32 weights */
const int LINE = STEP / 8, STRIDE = LINE + 1, DOWN = TALL / M, ACROSS = WIDE_TILE / N, OWN = DOWN * ACROSS; /* of uvec4; matrices of sums */
const bool SHARES = HOW >= 256;
const int SUMS = TALL * WIDE_TILE, USED = (TALL + (SHARES ? WIDE_TILE : 0)) * STRIDE, TILE = USED > SUMS / 4 ? USED : SUMS / 4;
const int X_EACH = SHARES ? WIDE_TILE * LINE / LANES : 1;
layout(set = 0, binding = 7) readonly buffer WideHalves { uvec4 wide_halves[]; }; /* as Halves */
/* Halves are eight to a uvec4, so that they are stored by sixteen bytes and matrices lie at multiples of these. A line is padded by one, which has
   eight lines begin in different banks. */
shared uvec4 tiles[SUBGROUPS * TILE]; /* a subgroup's: rows of the weight, then of src; in the end sums */
coopmat<float, gl_ScopeSubgroup, M, N, gl_MatrixUseAccumulator> acc[OWN];

/* Halves 8 * at to 8 * at + 7 of a row of src. */
uvec4 wide_src(int row, int at) { return wide_halves[halves_row(row) / 2 + at]; }

uvec2 packed(f16vec4 w) { return uvec2(packFloat2x16(w.xy), packFloat2x16(w.zw)); }

uvec4 eight_weights(Unexpanded w, int i) { return uvec4(packed(four_weights(w, 2 * i)), packed(four_weights(w, 2 * i + 1))); }

/* A step of k. Beyond k src is what comes last before, times weights of 0. */
void load(int n0, int m0, int k0, int count, int tile, int lane) {
    uvec4 x[X_EACH];
    if (SHARES) [[unroll]] for (int i = 0; i < X_EACH; i++) {
        int at = lane + i * LANES;
        x[i] = wide_src(min(m0 + at / LINE, count - 1), min(k0 / 8 + at % LINE, (k + 31) / 32 * 4 - 1));
    }
    for (int i = lane; i < TALL * PARTS; i += LANES) {
        int row = i % TALL, at_k = k0 + i / TALL * 32;
        Unexpanded w;
        if (PARTS == 1 || at_k < k) load_unexpanded(n0 + row, at_k, w);
        else no_weights(w);
        [[unroll]] for (int j = 0; j < 4; j++) tiles[tile + row * STRIDE + i / TALL * 4 + j] = eight_weights(w, j);
    }
    if (SHARES) [[unroll]] for (int i = 0; i < X_EACH; i++) {
        int at = lane + i * LANES;
        tiles[tile + (TALL + at / LINE) * STRIDE + at % LINE] = x[i];
    }
}

/* Of src as it lies those that there are: zeros up to a multiple of 32. */
void multiply(int m0, int k0, int tile) {
    [[unroll]] for (int step = 0; step < STEP && (SHARES || k0 + step < (k + 31) / 32 * 32); step += K) {
        coopmat<float16_t, gl_ScopeSubgroup, K, N, gl_MatrixUseB> b[ACROSS];
        [[unroll]] for (int c = 0; c < ACROSS; c++) {
            uint at = uint(halves_row(m0 + c * N) / 2 + (k0 + step) / 8);
            if (SHARES) coopMatLoad(b[c], tiles, uint(tile + (TALL + c * N) * STRIDE + step / 8), uint(STRIDE), gl_CooperativeMatrixLayoutColumnMajor);
            else coopMatLoad(b[c], wide_halves, at, uint(halves_row(1) / 2), gl_CooperativeMatrixLayoutColumnMajor);
        }
        [[unroll]] for (int d = 0; d < DOWN; d++) {
            coopmat<float16_t, gl_ScopeSubgroup, M, K, gl_MatrixUseA> a;
            coopMatLoad(a, tiles, uint(tile + d * M * STRIDE + step / 8), uint(STRIDE), gl_CooperativeMatrixLayoutRowMajor);
            [[unroll]] for (int c = 0; c < ACROSS; c++) acc[d * ACROSS + c] = coopMatMulAdd(a, b[c], acc[d * ACROSS + c]);
        }
    }
}

void main() {
    int me = int(gl_LocalInvocationIndex), subgroup = int(gl_SubgroupID), m0, count = find_rows(WIDE_TILE, m0), tile = subgroup * TILE;
    int n0 = int(gl_WorkGroupID.x) * TALL, lane = int(subgroupExclusiveAdd(1u));
    if (m0 >= count) return;
    [[unroll]] for (int i = 0; i < OWN; i++) acc[i] = coopmat<float, gl_ScopeSubgroup, M, N, gl_MatrixUseAccumulator>(0.0);
    for (int k0 = subgroup * STEP; k0 < k; k0 += SUBGROUPS * STEP) {
        load(n0, m0, k0, count, tile, lane);
        meet();
        multiply(m0, k0, tile);
        meet();
    }
    [[unroll]] for (int i = 0; i < OWN; i++)
        coopMatStore(acc[i], tiles, uint(tile + (i % ACROSS * N * TALL + i / ACROSS * M) / 4), uint(TALL / 4), gl_CooperativeMatrixLayoutColumnMajor);
    barrier();
    for (int i = me; i < SUMS; i += 128) {
        int row = n0 + i % TALL, col = m0 + i / TALL;
        float sum = 0.0;
        for (int of = 0; of < SUBGROUPS; of++) sum += uintBitsToFloat(tiles[of * TILE + i / 4][i % 4]);
        if (row < rows && col < count) finish(row, col, sum * halves_scale(col));
    }
}
