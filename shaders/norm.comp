#version 450
#extension GL_GOOGLE_include_directive : require
/* dst = src / rms(src) * weight; with a bias a layer norm; with src2 added to src, in place, before. A workgroup per row.
   With BYTES the row becomes bytes for the next product, too. An invocation reads all that it has of HELD * GROUP numbers before it writes, and keeps
   it to the end where a row is no longer. With few invocations a row takes long: on an H200 another microsecond for each four numbers of one. */
layout(local_size_x_id = 1) in;
layout(constant_id = 1) const int GROUP = 128; /* a power of two */
#include "common.glsl"
#include "reduce.glsl"
#include "bytes.glsl"
layout(constant_id = 0) const int BYTES = 0;
const int OWN = BYTES == 0 ? 1 : 4, HELD = 8; /* numbers that an invocation has together, and all that it keeps */
layout(set = 0, binding = 1) readonly buffer Weight { float weight[]; };
layout(set = 0, binding = 2) buffer Src { float src[]; };
layout(set = 0, binding = 3) buffer Dst { float dst[]; };
layout(set = 0, binding = 4) readonly buffer Src2 { float src2[]; };
layout(set = 0, binding = 5) readonly buffer Bias { float bias[]; };
float held[HELD];

/* The place in the row of an invocation's number i of those from `from` on. */
int place(int me, int from, int i) { return from + i / OWN * (GROUP * OWN) + me * OWN + i % OWN; }

void read_src(int at, int me, int from) {
    [[unroll]] for (int i = 0; i < HELD; i++) held[i] = place(me, from, i) < n ? src[at + place(me, from, i)] : 0.0;
}

void add_src2(int at, int at2, int me, int from) {
    float more[HELD];
    [[unroll]] for (int i = 0; i < HELD; i++) more[i] = place(me, from, i) < n ? src2[at2 + place(me, from, i)] : 0.0;
    [[unroll]] for (int i = 0; i < HELD; i++) held[i] += more[i];
    [[unroll]] for (int i = 0; i < HELD; i++)
        if (place(me, from, i) < n) src[at + place(me, from, i)] = held[i];
}

/* Of those numbers the sum of their distances from the mean, or of the squares of these. */
float sum_of(float mean, bool squares, int me, int from) {
    float sum = 0.0;
    [[unroll]] for (int i = 0; i < HELD; i++) {
        float x = held[i] - mean;
        if (place(me, from, i) < n) sum += squares ? x * x : x;
    }
    return sum;
}

float sum_of_all(int at, float mean, bool squares, int me) {
    float sum = sum_of(mean, squares, me, 0);
    for (int from = HELD * GROUP; from < n; from += HELD * GROUP) {
        read_src(at, me, from);
        sum += sum_of(mean, squares, me, from);
    }
    if (n > HELD * GROUP) read_src(at, me, 0);
    return group_sum(sum);
}

void normalize(int me, int from, float mean, float factor) {
    float factors[HELD], offsets[HELD];
    [[unroll]] for (int i = 0; i < HELD; i++) {
        int at = place(me, from, i);
        factors[i] = (has & HAS_WEIGHT) != 0 && at < n ? weight[at] : 1.0;
        offsets[i] = (has & HAS_BIAS) != 0 && at < n ? bias[at] : 0.0;
    }
    [[unroll]] for (int i = 0; i < HELD; i++) {
        held[i] = (held[i] - mean) * factor;
        if ((has & HAS_WEIGHT) != 0) held[i] *= factors[i];
        if ((has & HAS_BIAS) != 0) held[i] += offsets[i];
    }
}

void write_row(int row, int me, int from) {
    int to = row * dst_stride + dst_col;
    [[unroll]] for (int i = 0; i < HELD; i++)
        if (place(me, from, i) < n) dst[to + place(me, from, i)] = held[i];
    if (BYTES == 0) return;
    [[unroll]] for (int i = 0; i < HELD / 4; i++) {
        int word = place(me, from, 4 * i) / 4;
        float x[4];
        if (word - me >= n / 4) continue; /* as for all of the workgroup */
        [[unroll]] for (int j = 0; j < 4; j++) x[j] = held[4 * i + j];
        put_bytes(x, bytes_row(row, n), word, n, me);
    }
}

void main() {
    int row = int(gl_WorkGroupID.y), me = int(gl_LocalInvocationIndex), at = row * src_stride + src_col, from;
    float mean = 0.0, factor;
    if (row >= row_count()) return;
    for (from = (n - 1) / (HELD * GROUP) * (HELD * GROUP); from >= 0; from -= HELD * GROUP) { /* the first are kept */
        read_src(at, me, from);
        if ((has & HAS_SRC2) != 0) add_src2(at, row * src2_stride + src2_col, me, from);
    }
    if ((has & HAS_BIAS) != 0) mean = sum_of_all(at, 0.0, false, me) / float(n);
    factor = 1.0 / sqrt(sum_of_all(at, mean, true, me) / float(n) + eps);
    for (from = 0; from < n; from += HELD * GROUP) {
        if (from > 0) read_src(at, me, from);
        normalize(me, from, mean, factor);
        write_row(row, me, from);
    }
}
