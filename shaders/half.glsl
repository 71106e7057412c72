/* Weights and src as halves. Of src (prepare.comp) a row is k halves, zeros up to a multiple of 32, then in four more the
   exponent of the power of two that the row is to be multiplied by; rows begin at multiples of 16 bytes. */
layout(set = 0, binding = 7) readonly buffer Halves { f16vec4 halves[]; };

int halves_row(int row) { return row * ((k + 31) / 32 * 8 + 2); }

float halves_scale(int row) { return uintBitsToFloat(uint(127 + int(halves[halves_row(row) + (k + 31) / 32 * 8].x)) << 23); }

/* Columns k0 to k0 + 31 of a row of the weight; rows of float types are padded with zeros to multiples of 8. */
void half_weights(int row, int k0, out f16vec4 w[8]) {
    uint at = uint(min(row, rows - 1) * weight_stride);
    float one[32];
    if (FLOATS) {
        for (int part = 0; part < 4; part++) {
            bool there = k0 + 8 * part < k;
            if (there) unit(at, uint(k0 / 8 + part), one);
            for (int i = 0; i < 2; i++) w[2 * part + i] = there ? f16vec4(one[4 * i], one[4 * i + 1], one[4 * i + 2], one[4 * i + 3]) : f16vec4(0.0);
        }
        return;
    }
    unit(at, uint(k0 / 32), one);
    for (int i = 0; i < 8; i++) w[i] = f16vec4(one[4 * i], one[4 * i + 1], one[4 * i + 2], one[4 * i + 3]);
}

/* acc + w . x; no compiler takes out of the sum a factor that it sees in all of w. */
float add_four(float acc, vec4 w, vec4 x) {
    precise float sum = acc + dot(w, x);
    return sum;
}

/* Halves as floats, rounded for certain: Mesa 26 leaves out a rounding where it sees the number become a float again. That k is never negative
   it does not know. */
vec4 as_floats(f16vec4 w) {
    uvec2 bits = uvec2(packFloat2x16(w.xy), packFloat2x16(w.zw)) ^ (uint(k) >> 31);
    return vec4(unpackFloat2x16(bits.x), unpackFloat2x16(bits.y));
}
