#version 450
#extension GL_GOOGLE_include_directive : require
/* Attention in floats: an invocation per position for the products of queries and keys, per word of values for theirs with the
   weights. Where a head has few words, several share a word and have positions of their own. */
#define GROUP 64
layout(constant_id = 3) const int ITEMS = 0;
#include "attention.glsl"
const int PITCH = ROWS < 4 ? ROWS : ROWS + 4;
const int SHARES = WORDS > 32 ? 1 : WORDS > 16 ? 2 : WORDS > 8 ? 4 : 8, SPAN = GROUP / SHARES; /* invocations of a word; words */
const int OWN = (WORDS + GROUP - 1) / GROUP;
const int STEP = OWN * PER_WORD * ROWS > 32 ? 1 : 4; /* words or positions of a loop's round: a driver may end loops after so many */
const int ROUND = STEP * OWN;
shared float q[WORDS * PER_WORD * ROWS]; /* [dimension][row] */
shared float part[POSITIONS * PITCH]; /* at a cut what shares have */

int part_at(int j, int row) { return j * PITCH + row; }
float product_factor(int row) { return 1.0; }
void put_weight(int j, int row, float e) { part[part_at(j, row)] = e; }
#include "softmax.glsl"

void load_queries(int me) {
    for (int i = me; i < WORDS * PER_WORD * ROWS; i += GROUP) {
        int row = i / (WORDS * PER_WORD), d = i % (WORDS * PER_WORD);
        q[d * ROWS + row] = row < n_rows && d < HEAD_DIM ? src[src_of(row) + d] : 0.0;
    }
}

void multiply_keys(int me, int at) {
    float s[ROWS];
    [[unroll]] for (int r = 0; r < ROWS; r++) s[r] = 0.0;
    for (int word0 = 0; word0 < WORDS; word0 += STEP) {
        uvec4 words = STEP == 4 ? four_words(at, word0) : uvec4(k_cache[at + word0]);
        [[unroll]] for (int u = 0; u < STEP; u++) {
            int word = word0 + u;
            if (WORDS % STEP == 0 || word < WORDS) {
                uint bits = words[u];
                float factor = TYPE == Q8_0 ? scale_of(k_cache[at + WORDS + word / 16], word) : 1.0;
                [[unroll]] for (int i = 0; i < PER_WORD; i++) {
                    float k = value_of(bits, i) * factor;
                    [[unroll]] for (int r = 0; r < ROWS; r++) s[r] += q[(word * PER_WORD + i) * ROWS + r] * k;
                }
            }
        }
    }
    [[unroll]] for (int r = 0; r < ROWS; r++) part[part_at(me, r)] = s[r];
}

float acc[OWN * PER_WORD * ROWS];
float own_sum(int e, int r) { return acc[e * ROWS + r]; }
#include "shares.glsl"

/* What position j, number u of a round, adds to this invocation's words. */
void add_values(int me, int j, int u, uint bits[ROUND]) {
    float weights[ROWS];
    [[unroll]] for (int r = 0; r < ROWS; r++) weights[r] = part[part_at(j, r)];
    [[unroll]] for (int i = 0; i < OWN; i++) {
        int word = min(me % SPAN + i * GROUP, WORDS - 1);
        float factor = TYPE == Q8_0 ? scale_of(value_word(j, WORDS + word / 16), word) : 1.0;
        [[unroll]] for (int e = 0; e < PER_WORD; e++) {
            float v = value_of(bits[u * OWN + i], e) * factor;
            [[unroll]] for (int r = 0; r < ROWS; r++) acc[(i * PER_WORD + e) * ROWS + r] += weights[r] * v;
        }
    }
}

void main() {
    int me = int(gl_LocalInvocationIndex), share = me / SPAN;
    if (!find_tile()) return;
    start_rows();
    for (int cut = first_cut; cut <= last_cut; cut++) {
        load_queries(me);
        [[unroll]] for (int i = 0; i < OWN * PER_WORD * ROWS; i++) acc[i] = 0.0;
        barrier();
        for (int base = start_cut(cut); base <= end_of(cut); base += POSITIONS) {
            int at = find_row(base + me), end = min(POSITIONS, last_position - base + 1);
            row_of[me] = at;
            if (at >= 0) multiply_keys(me, at);
            softmax(base);
            [[unroll]] for (int i = 0; i < OWN * PER_WORD; i++)
                [[unroll]] for (int r = 0; r < ROWS; r++) acc[i * ROWS + r] *= row_factor[r];
            for (int j0 = share; j0 < end; j0 += STEP * SHARES) {
                uint bits[ROUND];
                [[unroll]] for (int i = 0; i < ROUND; i++) bits[i] = value_word(j0 + i / OWN * SHARES, min(me % SPAN + i % OWN * GROUP, WORDS - 1));
                [[unroll]] for (int u = 0; u < STEP; u++) add_values(me, j0 + u * SHARES, u, bits);
            }
            barrier();
        }
        end_cut(cut);
        put_shares(me, cut);
    }
}
