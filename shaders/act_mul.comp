#version 450
#extension GL_GOOGLE_include_directive : require
/* dst = act(src) * src2, by elements, or what FG_ACT_SWIGLU_OAI says; src of one column (k = 1) is for all. With BYTES by four elements, which become bytes
   for the next product, too. dst may be src2. */
#define GROUP 128
layout(local_size_x = GROUP) in;
#include "common.glsl"
#include "bytes.glsl"
layout(constant_id = 0) const int BYTES = 0;
layout(set = 0, binding = 2) readonly buffer Src { float src[]; };
layout(set = 0, binding = 3) writeonly buffer Dst { float dst[]; };
layout(set = 0, binding = 4) readonly buffer Src2 { float src2[]; };

/* As fg__swiglu_oai of fastgen.h. */
float swiglu_oai(float x, float y) {
    x = min(x, 7.0);
    return x / (1.0 + exp(-1.702 * x)) * (1.0 + clamp(y, -7.0, 7.0));
}

float element(int row, int i) {
    float x = src[row * src_stride + src_col + (k == 1 ? 0 : i)], y = src2[row * src2_stride + src2_col + i];
    x = act == 5 ? swiglu_oai(x, y) : (act == 6 ? 1.0 / (1.0 + exp(-x)) : act_of(act, x)) * y;
    dst[row * dst_stride + dst_col + i] = x;
    return x;
}

void main() {
    int row = int(gl_WorkGroupID.y), at = int(gl_GlobalInvocationID.x);
    float x[4];
    if (row >= row_count()) return;
    if (BYTES == 0) {
        if (at < n) element(row, at);
        return;
    }
    for (int i = 0; i < 4; i++) x[i] = at < n / 4 ? element(row, 4 * at + i) : 0.0;
    put_bytes(x, bytes_row(row, n), at, n, int(gl_LocalInvocationIndex));
}
