/* Sums of products of bytes, and src as bytes (prepare.comp): of a row first k / 4 words, then of each 32 of them a scale and the sums of
   its halves, two words; at multiples of 16 bytes. */
#include "dot4.glsl"

layout(set = 0, binding = 6) readonly buffer Bytes { uvec4 bytes[]; };
layout(set = 0, binding = 6) readonly buffer BlockScales { uvec2 block_scales[]; };

int bytes_row(int row) { return row * ((k / 32 * 10 + 3) / 4); } /* of four words */

/* Block u of a row of src: its words, its scale, and where weights are to have something taken off the sums of its halves times that. */
vec3 load_block(int row, int u, out uint words[8]) {
    int at = bytes_row(row);
    uvec4 first = bytes[at + u * 2], second = bytes[at + u * 2 + 1];
    uvec2 own = block_scales[at * 2 + k / 8 + u];
    for (int i = 0; i < 4; i++) {
        words[i] = first[i];
        words[i + 4] = second[i];
    }
    precise vec3 x = uintBitsToFloat(own.x) * vec3(1.0, bitfieldExtract(int(own.y), 0, 16), bitfieldExtract(int(own.y), 16, 16));
    return x;
}

/* acc and a block's product. Where halves have one scale the first sum is that of both. */
float add_dots(float acc, int first, int second, vec2 scale, vec2 low, vec3 x) {
    precise float sum = scale.x * float(first); /* no compiler takes a factor out where it sees that halves share it */
    if (HALVES) sum += scale.y * float(second);
    sum = acc + sum * x.x;
    if (LOWS) sum -= low.x * x.y + low.y * x.z;
    return sum;
}
