#version 450
#extension GL_GOOGLE_include_directive : require
/* Rows of src, k wide, for products that do not take floats. A workgroup per row. MODE 0: bytes, with a scale for each 32 of
   them; 1: halves, with a power of two for the whole row, by which the largest is at least 8 and below 16. */
#define GROUP 128
layout(local_size_x = GROUP) in;
#include "common.glsl"
#include "reduce.glsl"
layout(constant_id = 0) const int MODE = 0;
layout(set = 0, binding = 2) readonly buffer Src { float src[]; };
layout(set = 0, binding = 3) writeonly buffer Dst { uint dst[]; };

void to_bytes(int from, int to, int me) {
    for (int u = me; u < k / 32; u += GROUP) {
        float largest = 0.0, x[32], inverse;
        for (int i = 0; i < 32; i++) {
            x[i] = src[from + u * 32 + i];
            largest = max(largest, abs(x[i]));
        }
        inverse = largest > 0.0 ? 127.0 / largest : 0.0;
        for (int i = 0; i < 8; i++) {
            uint word = 0u;
            for (int b = 0; b < 4; b++) word |= uint(int(roundEven(clamp(x[4 * i + b] * inverse, -127.0, 127.0))) & 255) << (8 * b);
            dst[to + u * 8 + i] = word;
        }
        dst[to + k / 4 + u] = floatBitsToUint(largest / 127.0);
    }
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
    int row = int(gl_WorkGroupID.y), from = row * src_stride + src_col, me = int(gl_LocalInvocationIndex);
    if (row >= row_count()) return;
    if (MODE == 0) to_bytes(from, row * dst_stride, me);
    else to_halves(from, row * dst_stride, me);
}
