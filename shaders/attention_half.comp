#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#extension GL_EXT_shader_16bit_storage : require
/* As attention.comp, of a cache in F16 or Q8_0, in halves: products are added up as halves by eights, those in floats. Weights come
   times 64, since a device may take small halves for zero; where values are so large that a sum of eight is past the largest
   half, it is made again in floats. */
#define GROUP 64
layout(constant_id = 3) const int ITEMS = 0;
#include "attention.glsl"
#include "attention_half.glsl"
const int PITCH = ROWS < 4 ? ROWS : ROWS + 4;
const int SHARES = WORDS > 32 ? 1 : WORDS > 16 ? 2 : WORDS > 8 ? 4 : 8, SPAN = GROUP / SHARES; /* invocations of a word; words */
const int OWN = (WORDS + GROUP - 1) / GROUP, PAIRS = PER_WORD / 2;
const int DIMS = (HEAD_DIM + 7) / 8 * 8;
const float BIGGER = 64.0;
/* Of words of keys, and eights of positions, that are asked for together: of one query there are few workgroups, and each waits for its own. */
const int FOURS = ITEMS == 0 || WORDS < 16 ? 1 : WORDS < 32 ? 4 : 8, EIGHTS = ITEMS == 0 || SHARES > 4 ? 1 : SHARES > 2 ? 2 : 4;
shared f16vec2 q[DIMS / 2 * ROWS]; /* [pair of dimensions][row] */
shared float part[POSITIONS * PITCH]; /* at a cut what shares have */
shared float16_t weights[POSITIONS * PITCH];

int part_at(int j, int row) { return j * PITCH + row; }
void put_weight(int j, int row, float e) { weights[part_at(j, row)] = float16_t(e * BIGGER); }
#include "softmax.glsl"

void load_queries(int me) {
    scale_queries();
    for (int i = me; i < DIMS / 2 * ROWS; i += GROUP) {
        int row = i / (DIMS / 2), pair = i % (DIMS / 2);
        q[pair * ROWS + row] = f16vec2(query_of(row, 2 * pair), query_of(row, 2 * pair + 1));
    }
}

void multiply_keys(int me, int at) {
    float s[ROWS];
    [[unroll]] for (int r = 0; r < ROWS; r++) s[r] = 0.0;
    [[dont_unroll]] for (int word = 0; word < WORDS; word += 4 * FOURS) {
        uvec4 words[FOURS];
        [[unroll]] for (int f = 0; f < FOURS; f++) words[f] = four_words(at, WORDS % (4 * FOURS) != 0 ? min(word + 4 * f, (WORDS - 1) / 4 * 4) : word + 4 * f);
        [[unroll]] for (int eights = 0; eights < FOURS * PAIRS; eights++) {
            int d = word * PER_WORD + 8 * eights;
            f16vec2 k[4];
            float factor = 1.0;
            if (WORDS % (4 * FOURS) != 0 && d >= HEAD_DIM) continue;
            [[unroll]] for (int i = 0; i < 4; i++) {
                uint bits = words[eights / PAIRS][(8 * eights + 2 * i) / PER_WORD % 4];
                k[i] = TYPE == Q8_0 ? two_bytes(bits, i % 2, 1.0) : unpackFloat2x16(bits);
            }
            if (TYPE == Q8_0) factor = scale_of(k_cache[at + WORDS + d / 64], d / 4);
            [[unroll]] for (int r = 0; r < ROWS; r++) {
                f16vec2 eight = q[d / 2 * ROWS + r] * k[0];
                [[unroll]] for (int i = 1; i < 4; i++) eight += q[(d / 2 + i) * ROWS + r] * k[i];
                s[r] += (float(eight.x) + float(eight.y)) * factor;
            }
        }
    }
    [[unroll]] for (int r = 0; r < ROWS; r++) part[part_at(me, r)] = s[r];
}

/* Values `2 * pair` and `2 * pair + 1` of a word of position j. */
f16vec2 values_of(uint bits, int j, int word, int pair) {
    if (TYPE != Q8_0) return unpackFloat2x16(bits);
    return two_bytes(bits, pair, scale_of(value_word(j, WORDS + word / 16), word));
}

bool is_half(f16vec2 sums) { return abs(float(sums.x)) <= 65504.0 && abs(float(sums.y)) <= 65504.0; }

vec2 acc[OWN * PAIRS * ROWS];
float own_sum(int e, int r) { return acc[e / 2 * ROWS + r][e % 2] / BIGGER; }
#include "shares.glsl"

/* What eight positions add to this invocation's pair i; where a sum of theirs is past the largest half, it is made in floats. With ITEMS bits are
   their words: of one query all are asked for before the first is used. Tiles of many rows have other things to do, and no registers for it. */
void add_eight(int i, int word, int j0, uint bits[8]) {
    f16vec2 eight[ROWS];
    bool past = false;
    [[unroll]] for (int r = 0; r < ROWS; r++) eight[r] = f16vec2(0.0);
    if (ITEMS > 0)
        [[unroll]] for (int j = 0; j < 8; j++) {
            f16vec2 v = values_of(bits[j], j0 + j, word, i % PAIRS);
            [[unroll]] for (int r = 0; r < ROWS; r++) eight[r] += weights[part_at(j0 + j, r)] * v;
        }
    else
        for (int j = j0; j < j0 + 8; j++) {
            f16vec2 v = values_of(value_word(j, word), j, word, i % PAIRS);
            [[unroll]] for (int r = 0; r < ROWS; r++) eight[r] += weights[part_at(j, r)] * v;
        }
    [[unroll]] for (int r = 0; r < ROWS; r++) {
        if (is_half(eight[r])) acc[i * ROWS + r] += vec2(eight[r]);
        else past = true;
    }
    if (!past) return;
    [[dont_unroll]] for (int j = j0; j < j0 + 8; j++) {
        vec2 v = vec2(values_of(value_word(j, word), j, word, i % PAIRS));
        [[unroll]] for (int r = 0; r < ROWS; r++)
            if (!is_half(eight[r])) acc[i * ROWS + r] += float(weights[part_at(j, r)]) * v;
    }
}

/* What eights of positions add to this invocation's pair i; those of an invocation are SHARES eights apart. A function rather than a loop's
   body, since compilers do not unroll loops with loops in them: acc would not be registers. */
void add_values(int me, int i, int j0) {
    int word = me % SPAN + i / PAIRS * GROUP;
    uint bits[EIGHTS][8];
    if (i >= OWN * PAIRS || word >= WORDS) return;
    [[unroll]] for (int e = 0; ITEMS > 0 && e < EIGHTS; e++)
        [[unroll]] for (int j = 0; j < 8; j++) bits[e][j] = value_word(j0 + 8 * SHARES * e + j, word);
    [[unroll]] for (int e = 0; e < EIGHTS; e++) add_eight(i, word, j0 + 8 * SHARES * e, bits[e]);
}

void main() {
    int me = int(gl_LocalInvocationIndex), share = me / SPAN;
    if (!find_tile()) return;
    load_queries(me);
    start_rows();
    for (int cut = first_cut; cut <= last_cut; cut++) {
        [[unroll]] for (int i = 0; i < OWN * PAIRS * ROWS; i++) acc[i] = vec2(0.0);
        barrier();
        for (int base = start_cut(cut); base <= end_of(cut); base += POSITIONS) {
            int at = find_row(base + me);
            row_of[me] = at;
            if (at >= 0) multiply_keys(me, at);
            softmax(base);
            [[unroll]] for (int i = 0; i < OWN * PAIRS; i++)
                [[unroll]] for (int r = 0; r < ROWS; r++) acc[i * ROWS + r] *= row_factor[r];
            for (int j0 = share * 8; j0 < POSITIONS && base + j0 <= last_position; j0 += SHARES * 8 * EIGHTS) {
                add_values(me, 0, j0);
                add_values(me, 1, j0);
                add_values(me, 2, j0);
                add_values(me, 3, j0);
            }
            barrier();
        }
        end_cut(cut);
        put_shares(me, cut);
    }
}
