#version 450
#extension GL_GOOGLE_include_directive : require
/* The experts of a token: the n_used largest logits, of equals the lowest ids, and their shares of all (softmax). With `neox` divided by their sum.
   A subgroup per token. */
layout(local_size_x = 64) in;
#include "common.glsl"
#include "key.glsl"
layout(set = 0, binding = 2) readonly buffer Src { float src[]; };
layout(set = 0, binding = 3) buffer Dst { float dst[]; };

/* The next in order behind expert `id` with this key, and its key in `key`. There is one: NaN has a key, too, which is the last. */
int find_next(int from, int lane, int lanes, inout uint key, int id) {
    uint best = 0u, all;
    int best_id = 0;
    for (int i = lane; i < n_expert; i += lanes) {
        uint own = max(key_of(src[from + i]), 1u);
        if ((own < key || own == key && i > id) && own > best) {
            best = own;
            best_id = i;
        }
    }
    all = subgroupMax(best);
    key = all;
    return subgroupMin(best == all ? best_id : n_expert - 1);
}

/* Their weights, of which one lane makes all: they are few. */
void weigh(int from, int to, float top, float sum) {
    float chosen = 0.0;
    for (int j = 0; j < n_used; j++) {
        float weight = exp(src[from + int(dst[to + j])] - top) / sum;
        dst[to + n_used + j] = weight;
        chosen += weight;
    }
    for (int j = 0; j < n_used; j++) dst[to + n_used + j] *= neox != 0 ? scale / chosen : scale;
}

void main() {
    int lane = int(subgroupExclusiveAdd(1u)), lanes = int(subgroupAdd(1u)), row = int(gl_WorkGroupID.y * gl_NumSubgroups + gl_SubgroupID);
    int from = row * src_stride + src_col, to = row * dst_stride + dst_col, first = 0, id = n_expert;
    uint key = 0xFFFFFFFFu;
    float sum = 0.0, top;
    if (row >= row_count()) return;
    for (int j = 0; j < n_used; j++) {
        id = find_next(from, lane, lanes, key, id);
        if (j == 0) first = id;
        if (lane == 0) dst[to + j] = float(id);
    }
    top = src[from + first];
    for (int i = lane; i < n_expert; i += lanes) sum += exp(src[from + i] - top);
    sum = subgroupAdd(sum);
    if (lane == 0) weigh(from, to, top, sum);
}
