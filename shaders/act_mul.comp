#version 450
#extension GL_GOOGLE_include_directive : require
/* dst = act(src) * src2, by elements. */
layout(local_size_x = 128) in;
#include "common.glsl"
layout(set = 0, binding = 2) readonly buffer Src { float src[]; };
layout(set = 0, binding = 3) writeonly buffer Dst { float dst[]; };
layout(set = 0, binding = 4) readonly buffer Src2 { float src2[]; };

void main() {
    int row = int(gl_WorkGroupID.y), i = int(gl_GlobalInvocationID.x);
    if (row >= row_count() || i >= n) return;
    dst[row * dst_stride + dst_col + i] =
        act_of(act, src[row * src_stride + src_col + i]) * src2[row * src2_stride + src2_col + i];
}
