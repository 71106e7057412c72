#version 450
#extension GL_GOOGLE_include_directive : require
/* The end of STATE_SCAN: dst = dst / rms(dst) * norm * silu(src2), a workgroup per token and head. */
#define GROUP 64
layout(local_size_x = GROUP) in;
#include "common.glsl"
#include "reduce.glsl"
layout(set = 0, binding = 3) buffer Dst { float dst[]; };
layout(set = 0, binding = 4) readonly buffer Src2 { float src2[]; };
layout(set = 0, binding = 5) readonly buffer Bias { float bias[]; };

void main() {
    int t = int(gl_WorkGroupID.y), head = int(gl_WorkGroupID.x), me = int(gl_LocalInvocationIndex);
    int to = t * dst_stride + dst_col + head * head_dim, from = t * src2_stride + src2_col + head * head_dim;
    float sum = 0.0, factor;
    if (t >= row_count()) return;
    for (int i = me; i < head_dim; i += GROUP) sum += dst[to + i] * dst[to + i];
    factor = 1.0 / sqrt(group_sum(sum) / float(head_dim) + eps);
    for (int i = me; i < head_dim; i += GROUP) dst[to + i] *= factor * bias[i] * act_of(1, src2[from + i]);
}
