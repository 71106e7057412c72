#version 450
#extension GL_GOOGLE_include_directive : require
/* Rows of src, k wide, for products that do not take floats. MODE 0: bytes, with a scale for each 32 of them and the sums of its halves; a
   workgroup per 128 words. 1: halves, with a power of two for the whole row, by which the largest is at least 8 and below 16; a workgroup
   per row. A row may be one of several that lie beside each other, each k wide: those of a token's experts. */
#define GROUP 128
layout(local_size_x = GROUP) in;
#include "common.glsl"
#include "reduce.glsl"
#include "bytes.glsl"
layout(constant_id = 0) const int MODE = 0;
layout(set = 0, binding = 2) readonly buffer Src { float src[]; };
layout(set = 0, binding = 3) writeonly buffer Dst { uint dst[]; };

void to_bytes(int from, int to, int word, int me) {
    float x[4];
    for (int i = 0; i < 4; i++) x[i] = word < k / 4 ? src[from + word * 4 + i] : 0.0;
    put_bytes(x, to, word, k, me);
}

void to_halves(int from, int to, int me) {
    int words = (k + 31) / 32 * 16, e;
    float largest = 0.0, factor;
    for (int i = me; i < k; i += GROUP) largest = max(largest, abs(src[from + i]));
    largest = group_max(largest);
    e = clamp(int(floatBitsToUint(largest) >> 23) - 130, -126, 126);
    factor = uintBitsToFloat(uint(127 - e) << 23);
    for (int i = me; i < words; i += GROUP) {
        float a = 2 * i < k ? src[from + 2 * i] : 0.0, b = 2 * i + 1 < k ? src[from + 2 * i + 1] : 0.0;
        dst[to + i] = packHalf2x16(vec2(a, b) * factor);
    }
    if (me == 0) dst[to + words] = packHalf2x16(vec2(e, 0.0));
}

void main() {
    int token = int(gl_WorkGroupID.y), each = int(gl_WorkGroupID.z), row = token * int(gl_NumWorkGroups.z) + each, me = int(gl_LocalInvocationIndex);
    int from = token * src_stride + src_col + each * k;
    if (token >= row_count()) return;
    if (MODE == 0) to_bytes(from, bytes_row(row, k), int(gl_GlobalInvocationID.x), me);
    else to_halves(from, row * dst_stride, me);
}
