#version 450
#extension GL_GOOGLE_include_directive : require
/* Products of bytes, as those of gemm_dot.comp are: 16 sums, eight times a round, of a word that is another one each time: a product that does not
   change a compiler would take out of the loop. */
layout(local_size_x = 128) in;
#include "common.glsl"
#include "dot4.glsl"
#include "roof.glsl"

void main() {
    int acc[16];
    uint right[16], left = 0u, sum = 0u;
    [[unroll]] for (int i = 0; i < 16; i++) {
        acc[i] = 0;
        right[i] = 0u;
        [[unroll]] for (int j = 0; j < 4; j++) right[i] |= uint(number(1u, gl_LocalInvocationIndex % 32u, uint(4 * i + j)) & 255) << 8 * j;
    }
    for (int round = 0; round < k; round++)
        [[unroll]] for (int times = 0; times < 8; times++) {
            left += 0x9E3779B1u;
            [[unroll]] for (int i = 0; i < 16; i++) acc[i] += dot4(left, right[i]);
        }
    [[unroll]] for (int i = 0; i < 16; i++) sum += uint(acc[i]);
    put_sum(sum);
}
