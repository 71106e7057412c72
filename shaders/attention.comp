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
shared float q[WORDS * PER_WORD * ROWS]; /* [dimension][row]; before a cut what shares add up */
shared float part[POSITIONS * PITCH];

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
    for (int word = 0; word < WORDS; word++) {
        uint bits = k_cache[at + word];
        float factor = TYPE == Q8_0 ? scale_of(k_cache[at + WORDS + word / 16], word) : 1.0;
        [[unroll]] for (int i = 0; i < PER_WORD; i++) {
            float k = value_of(bits, i) * factor;
            [[unroll]] for (int r = 0; r < ROWS; r++) s[r] += q[(word * PER_WORD + i) * ROWS + r] * k;
        }
    }
    [[unroll]] for (int r = 0; r < ROWS; r++) part[part_at(me, r)] = s[r];
}

void main() {
    int me = int(gl_LocalInvocationIndex), share = me / SPAN;
    float acc[OWN * PER_WORD * ROWS];
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
            for (int j = share; j < end; j += SHARES) {
                float weights[ROWS];
                at = row_of[j];
                if (at < 0) continue;
                [[unroll]] for (int r = 0; r < ROWS; r++) weights[r] = part[part_at(j, r)];
                [[unroll]] for (int i = 0; i < OWN; i++) {
                    int word = me % SPAN + i * GROUP;
                    uint bits;
                    float factor;
                    if (word >= WORDS) continue;
                    bits = v_cache[at + word];
                    factor = TYPE == Q8_0 ? scale_of(v_cache[at + WORDS + word / 16], word) : 1.0;
                    [[unroll]] for (int e = 0; e < PER_WORD; e++) {
                        float v = value_of(bits, e) * factor;
                        [[unroll]] for (int r = 0; r < ROWS; r++) acc[(i * PER_WORD + e) * ROWS + r] += weights[r] * v;
                    }
                }
            }
            barrier();
        }
        end_cut(cut);
        for (int s = 1; s < SHARES; s++) { /* there are shares where a head is no more than an invocation's words */
            int at = me % SPAN * PER_WORD * ROWS;
            if (share == s && me % SPAN < WORDS)
                [[unroll]] for (int i = 0; i < PER_WORD * ROWS; i++) q[at + i] = acc[i];
            barrier();
            if (share == 0 && me < WORDS)
                [[unroll]] for (int i = 0; i < PER_WORD * ROWS; i++) acc[i] += q[at + i];
            barrier();
        }
        if (share == 0)
            [[unroll]] for (int i = 0; i < OWN * PER_WORD; i++)
                [[unroll]] for (int r = 0; r < ROWS; r++)
                    put(r, (me % SPAN + i / PER_WORD * GROUP) * PER_WORD + i % PER_WORD, acc[i * ROWS + r], cut);
    }
}
