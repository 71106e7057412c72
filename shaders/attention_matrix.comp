#version 450
#pragma use_vulkan_memory_model
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#extension GL_EXT_shader_16bit_storage : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_cooperative_matrix : require
/* As attention.comp, of a cache in F16 or Q8_0, by cooperative matrices of M x N x K of halves with float sums. Keys and values come
   into shared memory 32 dimensions of 64 positions at a time; matrices of sums are dealt out to subgroups. Weights are times
   32768, since a device may take small halves for zero. */
#define GROUP 128
const int ITEMS = 0;
#include "attention.glsl"
#include "attention_half.glsl"
layout(constant_id = 3) const int SHAPE = 16 << 24 | 16 << 16 | 16 << 8 | 4; /* M, N, K, subgroups */
const int M = SHAPE >> 24, N = SHAPE >> 16 & 255, KK = SHAPE >> 8 & 255, SUBGROUPS = SHAPE & 255;
const int CHUNK = 32, DIMS = (HEAD_DIM + CHUNK - 1) / CHUNK * CHUNK;
const int Q_STRIDE = DIMS / 4 + 2, KV_STRIDE = CHUNK / 4 + 2, WEIGHT_STRIDE = POSITIONS + 8; /* shifted from row to row */
const int DOWN = ROWS / M, KEYS = DOWN * (POSITIONS / N), VALUES = DOWN * (CHUNK / N); /* matrices of sums */
const int OWN_KEYS = (KEYS + SUBGROUPS - 1) / SUBGROUPS, OWN_VALUES = (VALUES + SUBGROUPS - 1) / SUBGROUPS;
const int EACH = ROWS * CHUNK / GROUP; /* sums of a chunk of values that an invocation keeps */
const float BIGGER = 32768.0;
shared f16vec4 q_tile[ROWS * Q_STRIDE];
shared f16vec4 kv_tile[POSITIONS * KV_STRIDE];
shared float part[ROWS * POSITIONS]; /* products with keys, then with a chunk of values */
shared float16_t weights[ROWS * WEIGHT_STRIDE];

int part_at(int j, int row) { return row * POSITIONS + j; }
void put_weight(int j, int row, float e) { weights[row * WEIGHT_STRIDE + j] = float16_t(e * BIGGER); }
#include "softmax.glsl"

/* Dimensions d to d + 3 of the keys or values at `at`. */
f16vec4 four_of(bool keys, int at, int d) {
    int word = d / PER_WORD;
    uint bits, pair;
    if (TYPE == Q8_0) {
        float factor;
        if (word >= WORDS) return f16vec4(0.0);
        bits = keys ? k_cache[at + word] : v_cache[at + word];
        pair = keys ? k_cache[at + WORDS + word / 16] : v_cache[at + WORDS + word / 16];
        factor = scale_of(pair, word);
        return f16vec4(two_bytes(bits, 0, factor), two_bytes(bits, 1, factor));
    }
    bits = word >= WORDS ? 0u : keys ? k_cache[at + word] : v_cache[at + word];
    pair = word + 1 >= WORDS ? 0u : keys ? k_cache[at + word + 1] : v_cache[at + word + 1];
    return f16vec4(unpackFloat2x16(bits), unpackFloat2x16(pair));
}

void load_chunk(bool keys, int me, int d0) {
    for (int i = me; i < POSITIONS * (CHUNK / 4); i += GROUP) {
        int j = i / (CHUNK / 4), four = i % (CHUNK / 4);
        kv_tile[j * KV_STRIDE + four] = row_of[j] < 0 ? f16vec4(0.0) : four_of(keys, row_of[j], d0 + 4 * four);
    }
}

void multiply_keys(int me) {
    coopmat<float, gl_ScopeSubgroup, M, N, gl_MatrixUseAccumulator> s[OWN_KEYS];
    [[unroll]] for (int i = 0; i < OWN_KEYS; i++) s[i] = coopmat<float, gl_ScopeSubgroup, M, N, gl_MatrixUseAccumulator>(0.0);
    for (int d0 = 0; d0 < DIMS; d0 += CHUNK) {
        barrier();
        load_chunk(true, me, d0);
        barrier();
        for (int step = 0; step < CHUNK; step += KK)
            [[unroll]] for (int i = 0; i < OWN_KEYS; i++) {
                int which = int(gl_SubgroupID) + i * SUBGROUPS, row = which % DOWN * M, col = which / DOWN * N;
                coopmat<float16_t, gl_ScopeSubgroup, M, KK, gl_MatrixUseA> a;
                coopmat<float16_t, gl_ScopeSubgroup, KK, N, gl_MatrixUseB> b;
                if (which >= KEYS) continue;
                coopMatLoad(a, q_tile, uint(row * Q_STRIDE + (d0 + step) / 4), uint(Q_STRIDE), gl_CooperativeMatrixLayoutRowMajor);
                coopMatLoad(b, kv_tile, uint(col * KV_STRIDE + step / 4), uint(KV_STRIDE), gl_CooperativeMatrixLayoutColumnMajor);
                s[i] = coopMatMulAdd(a, b, s[i]);
            }
    }
    [[unroll]] for (int i = 0; i < OWN_KEYS; i++) {
        int which = int(gl_SubgroupID) + i * SUBGROUPS, row = which % DOWN * M, col = which / DOWN * N;
        if (which < KEYS) coopMatStore(s[i], part, uint(row * POSITIONS + col), uint(POSITIONS), gl_CooperativeMatrixLayoutRowMajor);
    }
}

/* Leaves in part the weights' products with a chunk of values. */
void multiply_values(int me, int d0) {
    barrier();
    load_chunk(false, me, d0);
    barrier();
    [[unroll]] for (int i = 0; i < OWN_VALUES; i++) {
        int which = int(gl_SubgroupID) + i * SUBGROUPS, row = which % DOWN * M, col = which / DOWN * N;
        coopmat<float, gl_ScopeSubgroup, M, N, gl_MatrixUseAccumulator> s;
        if (which >= VALUES) continue;
        s = coopmat<float, gl_ScopeSubgroup, M, N, gl_MatrixUseAccumulator>(0.0);
        for (int step = 0; step < POSITIONS; step += KK) {
            coopmat<float16_t, gl_ScopeSubgroup, M, KK, gl_MatrixUseA> a;
            coopmat<float16_t, gl_ScopeSubgroup, KK, N, gl_MatrixUseB> b;
            coopMatLoad(a, weights, uint(row * WEIGHT_STRIDE + step), uint(WEIGHT_STRIDE), gl_CooperativeMatrixLayoutRowMajor);
            coopMatLoad(b, kv_tile, uint(step * KV_STRIDE + col / 4), uint(KV_STRIDE), gl_CooperativeMatrixLayoutRowMajor);
            s = coopMatMulAdd(a, b, s);
        }
        coopMatStore(s, part, uint(row * CHUNK + col), uint(CHUNK), gl_CooperativeMatrixLayoutRowMajor);
    }
    barrier();
}

float acc[DIMS / CHUNK * EACH];

/* A chunk of values, to what there is. No loop calls this: compilers leave one that has loops in it, and acc would not be registers. */
void add_values(int me, int c) {
    if (c >= DIMS / CHUNK) return;
    multiply_values(me, c * CHUNK);
    [[unroll]] for (int e = 0; e < EACH; e++)
        acc[c * EACH + e] = acc[c * EACH + e] * row_factor[(me + e * GROUP) / CHUNK] + part[me + e * GROUP];
}

#define ADD_FOUR(c) add_values(me, c), add_values(me, c + 1), add_values(me, c + 2), add_values(me, c + 3)

void main() {
    int me = int(gl_LocalInvocationIndex);
    if (!find_tile()) return;
    scale_queries();
    for (int i = me; i < ROWS * (DIMS / 4); i += GROUP) {
        int row = i / (DIMS / 4), d = i % (DIMS / 4) * 4;
        q_tile[row * Q_STRIDE + d / 4] = f16vec4(query_of(row, d), query_of(row, d + 1), query_of(row, d + 2), query_of(row, d + 3));
    }
    start_rows();
    for (int cut = first_cut; cut <= last_cut; cut++) {
        [[unroll]] for (int i = 0; i < DIMS / CHUNK * EACH; i++) acc[i] = 0.0;
        for (int base = start_cut(cut); base <= end_of(cut); base += POSITIONS) {
            if (me < POSITIONS) row_of[me] = find_row(base + me);
            multiply_keys(me);
            softmax(base);
            ADD_FOUR(0);
            ADD_FOUR(4);
            ADD_FOUR(8);
            ADD_FOUR(12);
            barrier();
        }
        end_cut(cut);
        [[unroll]] for (int c = 0; c < DIMS / CHUNK; c++)
            [[unroll]] for (int e = 0; e < EACH; e++)
                put((me + e * GROUP) / CHUNK, c * CHUNK + me % CHUNK, acc[c * EACH + e] / BIGGER, cut);
    }
}
