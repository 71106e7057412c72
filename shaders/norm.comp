#version 450
#extension GL_GOOGLE_include_directive : require
/* dst = src / rms(src) * weight; with a bias a layer norm; with src2 added to src, in place, before. A workgroup per row.
   With BYTES the row becomes bytes for the next product, too. */
#define GROUP 128
layout(local_size_x = GROUP) in;
#include "common.glsl"
#include "reduce.glsl"
#include "bytes.glsl"
layout(constant_id = 0) const int BYTES = 0;
const int OWN = BYTES == 0 ? 1 : 4; /* numbers that an invocation has together, from the first to the last step */
layout(set = 0, binding = 1) readonly buffer Weight { float weight[]; };
layout(set = 0, binding = 2) buffer Src { float src[]; };
layout(set = 0, binding = 3) buffer Dst { float dst[]; };
layout(set = 0, binding = 4) readonly buffer Src2 { float src2[]; };
layout(set = 0, binding = 5) readonly buffer Bias { float bias[]; };

float element(int row, int i, float mean, float factor) {
    float x = (src[row * src_stride + src_col + i] - mean) * factor;
    if ((has & HAS_WEIGHT) != 0) x *= weight[i];
    if ((has & HAS_BIAS) != 0) x += bias[i];
    dst[row * dst_stride + dst_col + i] = x;
    return x;
}

void main() {
    int row = int(gl_WorkGroupID.y), me = int(gl_LocalInvocationIndex), from = row * src_stride + src_col, i, j;
    float sum = 0.0, mean = 0.0, factor;
    if (row >= row_count()) return;
    if ((has & HAS_SRC2) != 0)
        for (i = me * OWN; i < n; i += GROUP * OWN)
            for (j = 0; j < OWN; j++) src[from + i + j] += src2[row * src2_stride + src2_col + i + j];
    if ((has & HAS_BIAS) != 0) {
        for (i = me * OWN; i < n; i += GROUP * OWN)
            for (j = 0; j < OWN; j++) sum += src[from + i + j];
        mean = group_sum(sum) / float(n);
        sum = 0.0;
    }
    for (i = me * OWN; i < n; i += GROUP * OWN)
        for (j = 0; j < OWN; j++) {
            float x = src[from + i + j] - mean;
            sum += x * x;
        }
    factor = 1.0 / sqrt(group_sum(sum) / float(n) + eps);
    if (BYTES == 0) {
        for (i = me; i < n; i += GROUP) element(row, i, mean, factor);
        return;
    }
    for (int word = me; word < (n / 4 + GROUP - 1) / GROUP * GROUP; word += GROUP) {
        float x[4];
        for (j = 0; j < 4; j++) x[j] = word < n / 4 ? element(row, 4 * word + j, mean, factor) : 0.0;
        put_bytes(x, bytes_row(row, n), word, n, me);
    }
}
