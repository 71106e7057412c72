#version 450
#extension GL_GOOGLE_include_directive : require
/* dst += the products of a token with its experts, each times its weight, one after the other. An invocation per column. */
layout(local_size_x = 64) in;
#include "common.glsl"
#include "experts.glsl"
layout(set = 0, binding = 2) readonly buffer Products { float products[]; }; /* [pair][n] */
layout(set = 0, binding = 3) buffer Dst { float dst[]; };

void main() {
    int token = int(gl_WorkGroupID.y), i = int(gl_GlobalInvocationID.x), at = token * dst_stride + dst_col + i;
    int weights = token * src2_stride + src2_col + n_used;
    float x;
    if (token >= row_count() || i >= n) return;
    x = dst[at];
    for (int j = 0; j < n_used; j++) x += src2[weights + j] * products[(token * n_used + j) * n + i];
    dst[at] = x;
}
