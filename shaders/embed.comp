#version 450
#extension GL_GOOGLE_include_directive : require
/* dst[T, n] = weight[tokens[t]] * scale. An invocation expands one unit of one token. */
layout(local_size_x = 64) in;
#include "common.glsl"
#include "quant.glsl"
layout(set = 0, binding = 3) writeonly buffer Dst { float dst[]; };

void main() {
    int t = int(gl_WorkGroupID.y), u = int(gl_GlobalInvocationID.x), token;
    float w[32];
    if (t >= row_count() || u * UNIT >= n) return;
    token = batch[TOKENS_AT + t] - row0;
    if (token < 0 || token >= rows) return; /* in another piece of the table */
    unit(uint(token * weight_stride), uint(u), w);
    for (int i = 0; i < UNIT; i++)
        if (u * UNIT + i < n) dst[t * dst_stride + dst_col + u * UNIT + i] = w[i] * scale;
}
