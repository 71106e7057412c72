#version 450
#extension GL_GOOGLE_include_directive : require
/* What STATE_SCAN can do for all tokens beside each other: the convolution of q, k and v, their lengths, q . k, decay and beta. A workgroup per token and
   head, first key heads, then value heads. Of a pool in pieces each pass makes the value heads in one, and the key heads whose first value head is. */
#define GROUP 64
layout(local_size_x = GROUP) in;
#include "common.glsl"
#include "state.glsl"
layout(set = 0, binding = 1) readonly buffer Weight { float weight[]; };
layout(set = 0, binding = 3) buffer Mixed { float mixed[]; };
layout(set = 0, binding = 4) readonly buffer Rate { float rate[]; };
layout(set = 0, binding = 5) readonly buffer Beta { float beta[]; };
layout(set = 0, binding = 7) readonly buffer Alpha { float alpha[]; };
shared vec3 parts[GROUP];

vec3 group_sum(vec3 x, int me) {
    parts[me] = x;
    barrier();
    for (int apart = GROUP / 2; apart > 0; apart /= 2) {
        if (me < apart) parts[me] += parts[me + apart];
        barrier();
    }
    return parts[0];
}

/* log(1 + exp(x)): by a series, as a device's own logarithm may be off by 2^-21 near 1, always to the same side. */
float softplus(float x) {
    float e = exp(-abs(x)), y = e / (2.0 + e), y2 = y * y;
    float sum = 1.0 + y2 * (1.0 / 3.0 + y2 * (0.2 + y2 * (1.0 / 7.0 + y2 * (1.0 / 9.0 + y2 * (1.0 / 11.0 + y2 / 13.0)))));
    return max(x, 0.0) + 2.0 * y * sum;
}

/* Convolution and SiLU of a column of the token at `position`. */
float convolve(int first, int start, int position, int column, int from, int i) {
    float sum = 0.0;
    for (int tap = 0; tap < k; tap++) sum += weight[column * k + tap] * input_at(first, start, position - k + 1 + tap, column, from, i);
    return act_of(1, sum);
}

/* q and k of a key head, which lie beside each other; `from`: the state of its first value head. */
void make_keys(int g, int first, int start, int position, int from, int to, int me) {
    int at_q = to + g * head_dim, at_k = to + (n_kv_head + g) * head_dim;
    vec3 sums = vec3(0.0);
    vec2 factors;
    for (int i = me; i < head_dim; i += GROUP) {
        float q = convolve(first, start, position, g * head_dim + i, from, i);
        float key = convolve(first, start, position, (n_kv_head + g) * head_dim + i, from, head_dim + i);
        mixed[at_q + i] = q;
        mixed[at_k + i] = key;
        sums += vec3(q * q, key * key, q * key);
    }
    sums = group_sum(sums, me);
    factors = vec2(1.0 / sqrt(sums.x + 1e-6) / sqrt(float(head_dim)), 1.0 / sqrt(sums.y + 1e-6));
    for (int i = me; i < head_dim; i += GROUP) { /* each its own */
        mixed[at_q + i] *= factors.x;
        mixed[at_k + i] *= factors.y;
    }
    if (me == 0) mixed[to + mixed_dots() + g] = sums.z * factors.x * factors.y;
}

void make_values(int h, int t, int first, int start, int position, int from, int to, int me) {
    int column = (2 * n_kv_head + h) * head_dim, gates = to + mixed_gates() + 2 * h;
    for (int i = me; i < head_dim; i += GROUP)
        mixed[to + mixed_v() + h * head_dim + i] = convolve(first, start, position, column + i, from, 2 * head_dim + i);
    if (me > 0) return;
    mixed[gates] = exp(rate[h] * softplus(alpha[t * dst_stride + dst_col + h]));
    mixed[gates + 1] = 1.0 / (1.0 + exp(-beta[t * src2_stride + src2_col + h]));
}

void main() {
    int t = int(gl_WorkGroupID.y), g = int(gl_WorkGroupID.x), me = int(gl_LocalInvocationIndex), seq, first, start, position, from;
    int h = g >= n_kv_head ? g - n_kv_head : neox != 0 ? g : g * (n_head / n_kv_head), to = t * mixed_stride();
    if (t >= row_count() || h < row0 || h >= row0 + rows) return;
    seq = batch[seqs_at + t];
    first = batch[slots_at + seq];
    position = batch[positions_at + t];
    start = position - (t - first);
    from = start > 0 ? state_at(seq, start - 1, h) : -1;
    if (g < n_kv_head) make_keys(g, first, start, position, from, to, me);
    else make_values(h, t, first, start, position, from, to, me);
}
