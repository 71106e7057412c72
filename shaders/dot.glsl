/* Sums of products of bytes, and src as bytes (prepare.comp): of a row first k / 4 words, then k / 32 scales. */
#extension GL_EXT_spirv_intrinsics : require
spirv_instruction(extensions = ["SPV_KHR_integer_dot_product"], capabilities = [6019, 6018], id = 4450)
int signed_dot(uint a, uint b, spirv_literal int format); /* OpSDotKHR; format 0: four bytes */
int dot4(uint a, uint b) { return signed_dot(a, b, 0); }

layout(set = 0, binding = 6) readonly buffer Bytes { uint bytes[]; };

int bytes_row(int row) { return row * (k / 32 * 9); }

/* Block u of a row of src: its words, its scale, and where weights are to have something taken off the sums of its halves times that. */
vec3 load_block(int row, int u, out uint words[8]) {
    int at = bytes_row(row), sums[2] = int[](0, 0);
    for (int i = 0; i < 8; i++) {
        words[i] = bytes[at + u * 8 + i];
        if (LOWS) sums[i / 4] += dot4(words[i], 0x01010101u);
    }
    precise vec3 x = uintBitsToFloat(bytes[at + k / 4 + u]) * vec3(1.0, sums[0], sums[1]);
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
