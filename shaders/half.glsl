/* Weights and src as halves. Of src (prepare.comp) a row is k halves, zeros up to a multiple of 32, then in four more the
   exponent of the power of two that the row is to be multiplied by; rows begin at multiples of 16 bytes. */
layout(set = 0, binding = 7) readonly buffer Halves { f16vec4 halves[]; };

int halves_row(int row) { return row * ((k + 31) / 32 * 8 + 2); }

float halves_scale(int row) { return uintBitsToFloat(uint(127 + int(halves[halves_row(row) + (k + 31) / 32 * 8].x)) << 23); }

/* Columns k0 to k0 + 31 of a row of the weight, as they are read, so that other things can be done before the numbers are needed: words of halves
   or bfloat16 (F32 comes here never), zeros beyond k; of quantised types as unit_words() has them. */
struct Unexpanded {
    uint words[FLOATS ? 16 : 8];
    vec2 scale, low;
};

/* Rows of float types are padded with zeros to multiples of 8. */
void load_unexpanded(int row, int k0, out Unexpanded w) {
    uint at = weight_at(row);
    if (FLOATS) {
        [[unroll]] for (int part = 0; part < 4; part++) {
            bool there = k0 + 8 * part < k;
            uvec4 four = there ? four_of(at + uint((k0 / 8 + part) * 4)) : uvec4(0u);
            [[unroll]] for (int i = 0; i < 4; i++) w.words[part * 4 + i] = four[i];
        }
        w.scale = w.low = vec2(0.0);
        return;
    }
    uint q[8];
    unit_words(at, uint(k0 / 32), q, w.scale, w.low);
    [[unroll]] for (int i = 0; i < 8; i++) w.words[i] = q[i];
}

float expanded(Unexpanded w, int i) {
    if (FLOATS) return two_floats(w.words[i / 2], i % 2);
    return number_of(w.words[i / 4], i, w.scale, w.low);
}

void half_weights(int row, int k0, out f16vec4 to[8]) {
    Unexpanded w;
    load_unexpanded(row, k0, w);
    [[unroll]] for (int i = 0; i < 8; i++) to[i] = f16vec4(expanded(w, 4 * i), expanded(w, 4 * i + 1), expanded(w, 4 * i + 2), expanded(w, 4 * i + 3));
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
