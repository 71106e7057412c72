#version 450
#extension GL_GOOGLE_include_directive : require
/* Float products, as those of gemm.comp and gemm_half.comp are: 16 sums, eight times a round. Each is multiplied by `scale`, which is 1 and which no
   compiler knows: a product of numbers that do not change it would take out of the loop, and leave additions. */
layout(local_size_x = 128) in;
#include "common.glsl"
#include "roof.glsl"

void main() {
    float acc[16], more[16], one = scale;
    uint sum = 0u;
    [[unroll]] for (int i = 0; i < 16; i++) {
        acc[i] = 0.0;
        more[i] = float(number(1u, gl_LocalInvocationIndex % 32u, uint(i)));
    }
    for (int round = 0; round < k; round++)
        [[unroll]] for (int times = 0; times < 8; times++)
            [[unroll]] for (int i = 0; i < 16; i++) acc[i] = fma(acc[i], one, more[i]);
    [[unroll]] for (int i = 0; i < 16; i++) sum += uint(int(acc[i]));
    put_sum(sum);
}
