#version 450
#extension GL_GOOGLE_include_directive : require
/* dst = src / rms(src) * weight; with a bias a layer norm; with src2 added to src, in place, before. A workgroup per row. */
#define GROUP 128
layout(local_size_x = GROUP) in;
#include "common.glsl"
#include "reduce.glsl"
layout(set = 0, binding = 1) readonly buffer Weight { float weight[]; };
layout(set = 0, binding = 2) buffer Src { float src[]; };
layout(set = 0, binding = 3) buffer Dst { float dst[]; };
layout(set = 0, binding = 4) readonly buffer Src2 { float src2[]; };
layout(set = 0, binding = 5) readonly buffer Bias { float bias[]; };

void main() {
    int row = int(gl_WorkGroupID.y), first = int(gl_LocalInvocationIndex), from = row * src_stride + src_col, i;
    float sum = 0.0, mean = 0.0, factor;
    if (row >= row_count()) return;
    if ((has & HAS_SRC2) != 0)
        for (i = first; i < n; i += GROUP) src[from + i] += src2[row * src2_stride + src2_col + i];
    if ((has & HAS_BIAS) != 0) {
        for (i = first; i < n; i += GROUP) sum += src[from + i];
        mean = group_sum(sum) / float(n);
        sum = 0.0;
    }
    for (i = first; i < n; i += GROUP) {
        float x = src[from + i] - mean;
        sum += x * x;
    }
    factor = 1.0 / sqrt(group_sum(sum) / float(n) + eps);
    for (i = first; i < n; i += GROUP) {
        float x = (src[from + i] - mean) * factor;
        if ((has & HAS_WEIGHT) != 0) x *= weight[i];
        if ((has & HAS_BIAS) != 0) x += bias[i];
        dst[row * dst_stride + dst_col + i] = x;
    }
}
