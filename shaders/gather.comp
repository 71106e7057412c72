#version 450
#extension GL_GOOGLE_include_directive : require
/* dst[R, n] = src[rows[r], n] */
layout(local_size_x = 128) in;
#include "common.glsl"
layout(set = 0, binding = 2) readonly buffer Src { float src[]; };
layout(set = 0, binding = 3) writeonly buffer Dst { float dst[]; };

void main() {
    int row = int(gl_WorkGroupID.y), i = int(gl_GlobalInvocationID.x);
    if (row >= row_count() || i >= n) return;
    dst[row * dst_stride + dst_col + i] = src[batch[rows_at + row] * src_stride + src_col + i];
}
