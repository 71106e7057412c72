/* What products by cooperative matrices share: weights and src as halves in shared memory, eight in a uvec4, so that they are stored by sixteen
   bytes and matrices lie at multiples of these. A line is padded by one, which has eight lines begin in different banks. */
layout(set = 0, binding = 7) readonly buffer WideHalves { uvec4 wide_halves[]; }; /* as Halves */

/* Halves 8 * at to 8 * at + 7 of a row of src. */
uvec4 wide_src(int row, int at) { return wide_halves[halves_row(row) / 2 + at]; }

/* Bytes 0 and 2 of a word as halves, divided by 32: behind the exponent of 32 a byte's bits are 32 + byte / 32. Where bytes have signs they are
   128 more here. So it takes no conversion, and two numbers at a time. By 32, as scales are multiplied by it: from 2e-6 to 2047 these are no
   subnormal halves then, nor infinite. */
f16vec2 two_bytes(uint word) { return unpackFloat2x16((word & 0x00FF00FFu) | 0x50005000u) - f16vec2(LOWS ? 32.0hf : 36.0hf); }

/* Weights 4 * i to 4 * i + 3. */
uvec2 four_weights(Unexpanded w, int i) {
    int part = HALVES ? i / 4 : 0;
    if (TYPE == F16) return uvec2(w.words[2 * i], w.words[2 * i + 1]);
    if (FLOATS) return uvec2(packFloat2x16(f16vec2(two_floats(w.words[2 * i], 0), two_floats(w.words[2 * i], 1))),
                             packFloat2x16(f16vec2(two_floats(w.words[2 * i + 1], 0), two_floats(w.words[2 * i + 1], 1))));
    uint word = LOWS ? w.words[i] : w.words[i] ^ 0x80808080u;
    f16vec2 scale = f16vec2(w.scale[part] * 32.0), low = f16vec2(w.low[part]), even = two_bytes(word) * scale, odd = two_bytes(word >> 8) * scale;
    if (LOWS) {
        even -= low;
        odd -= low;
    }
    return uvec2(packFloat2x16(f16vec2(even.x, odd.x)), packFloat2x16(f16vec2(even.y, odd.y)));
}

uvec4 eight_weights(Unexpanded w, int i) { return uvec4(four_weights(w, 2 * i), four_weights(w, 2 * i + 1)); }

/* What a subgroup alone waits for. */
void meet() { controlBarrier(gl_ScopeSubgroup, gl_ScopeSubgroup, gl_StorageSemanticsShared, gl_SemanticsAcquireRelease); }
