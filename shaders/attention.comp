#version 450
#extension GL_GOOGLE_include_directive : require
/* Attention of one token and head over the KV blocks of its sequence, with an online softmax: 64 positions at a time, an
   invocation per position for the scores, per dimension for the values. Of a KV pool in pieces each pass takes the blocks of
   one, and dst and state hold the sums from one to the next. */
#define GROUP 64
layout(local_size_x = GROUP) in;
#include "common.glsl"
#include "reduce.glsl"
#include "kv.glsl"
layout(set = 0, binding = 2) readonly buffer Src { float src[]; };
layout(set = 0, binding = 3) buffer Dst { float dst[]; };
layout(set = 0, binding = 4) buffer State { vec2 state[]; }; /* of a token and head: the largest score, the sum */
layout(set = 0, binding = 6) readonly buffer K { uint k_cache[]; };
layout(set = 0, binding = 7) readonly buffer V { uint v_cache[]; };
const int DIMS = (HEAD_DIM + GROUP - 1) / GROUP; /* of one invocation */
const int PADDED = (HEAD_DIM + 3) / 4 * 4;
shared float q[PADDED];
shared float part[GROUP]; /* exp(score - largest) */
shared int row_of[GROUP]; /* -1: in another piece */

float value_of(uint word, int i) {
    if (TYPE == F32) return uintBitsToFloat(word);
    if (TYPE == F16) return i == 0 ? unpackHalf2x16(word).x : unpackHalf2x16(word).y;
    if (TYPE == Q8_0) return float(bitfieldExtract(int(word), 8 * i, 8));
    return uintBitsToFloat(i == 0 ? word << 16 : word & 0xFFFF0000u);
}

float score_of(int row) {
    float sum = 0.0;
    if (TYPE == Q8_0) {
        for (int b = 0; b < HEAD_DIM; b += 32) {
            uint pair = k_cache[row + WORDS + b / 64];
            float one = 0.0;
            for (int d = b; d < min(b + 32, HEAD_DIM); d += 4) {
                uint word = k_cache[row + d / 4];
                for (int i = 0; i < 4; i++) one += q[d + i] * value_of(word, i);
            }
            sum += one * half_of(b / 32 % 2 == 0 ? pair & 0xFFFFu : pair >> 16);
        }
    } else {
        for (int word = 0; word < WORDS; word++) {
            uint bits = k_cache[row + word];
            for (int i = 0; i < PER_WORD; i++) sum += q[word * PER_WORD + i] * value_of(bits, i);
        }
    }
    sum *= scale;
    if (softcap > 0.0) sum = softcap * (1.0 - 2.0 / (1.0 + exp(2.0 * clamp(sum / softcap, -40.0, 40.0)))); /* tanh */
    return sum;
}

float v_at(int row, int d) {
    float value = value_of(v_cache[row + d / PER_WORD], d % PER_WORD);
    if (TYPE == Q8_0) {
        uint pair = v_cache[row + WORDS + d / 64];
        value *= half_of(d / 32 % 2 == 0 ? pair & 0xFFFFu : pair >> 16);
    }
    return value;
}

void main() {
    int t = int(gl_WorkGroupID.y), head = int(gl_WorkGroupID.x), me = int(gl_LocalInvocationIndex);
    int position, blocks, first, kv_head = head / (n_head / n_kv_head);
    float largest = -1e38, sum = 0.0, acc[DIMS];
    if (t >= row_count()) return;
    position = batch[positions_at + t];
    blocks = table_at + batch[seqs_at + t] * table_stride;
    first = window > 0 ? max(0, position - window + 1) : 0;
    for (int i = me; i < PADDED; i += GROUP) q[i] = i < HEAD_DIM ? src[t * src_stride + src_col + head * HEAD_DIM + i] : 0.0;
    for (int i = 0; i < DIMS; i++) acc[i] = 0.0;
    if ((has & HAS_EARLIER) != 0) {
        vec2 before = state[t * n_head + head];
        largest = before.x;
        sum = before.y;
        for (int i = 0; i < DIMS; i++)
            if (me + i * GROUP < HEAD_DIM) acc[i] = dst[t * dst_stride + dst_col + head * HEAD_DIM + me + i * GROUP];
    }
    barrier();
    for (int base = first; base <= position; base += GROUP) {
        int p = base + me, n_here = min(GROUP, position - base + 1), row = -1;
        float score = -1e38, before = largest, correct, e;
        if (p <= position) {
            int block = batch[blocks + p / block_tokens] - row0;
            if (block >= 0 && block < rows) {
                row = kv_row(block, p % block_tokens, kv_head);
                score = score_of(row);
            }
        }
        row_of[me] = row;
        largest = max(largest, group_max(score));
        correct = exp(before - largest);
        e = row >= 0 ? exp(score - largest) : 0.0;
        part[me] = e;
        sum = sum * correct + group_sum(e);
        for (int i = 0; i < DIMS; i++) {
            int d = me + i * GROUP;
            float one = 0.0;
            if (d >= HEAD_DIM) continue;
            for (int j = 0; j < n_here; j++)
                if (row_of[j] >= 0) one += part[j] * v_at(row_of[j], d);
            acc[i] = acc[i] * correct + one;
        }
        barrier();
    }
    for (int i = 0; i < DIMS; i++) {
        int d = me + i * GROUP;
        if (d < HEAD_DIM) dst[t * dst_stride + dst_col + head * HEAD_DIM + d] = (has & HAS_LATER) != 0 ? acc[i] : acc[i] / sum;
    }
    if ((has & HAS_LATER) != 0 && me == 0) state[t * n_head + head] = vec2(largest, sum);
}
