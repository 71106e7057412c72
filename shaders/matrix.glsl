/* What products by cooperative matrices share: weights as halves, on their way to shared memory. */

void no_weights(out Unexpanded w) {
    [[unroll]] for (int i = 0; i < w.words.length(); i++) w.words[i] = 0u;
    w.scale = w.low = vec2(0.0);
}

/* Bytes 0 and 2 of a word as halves, divided by 32: behind the exponent of 32 a byte's bits are 32 + byte / 32. Where bytes have signs they are
   128 more here. So it takes no conversion, and two numbers at a time. By 32, as scales are multiplied by it: from 2e-6 to 2047 these are no
   subnormal halves then, nor infinite. */
f16vec2 two_bytes(uint word) { return unpackFloat2x16((word & 0x00FF00FFu) | 0x50005000u) - f16vec2(LOWS ? 32.0hf : 36.0hf); }

/* Weights 4 * i to 4 * i + 3. */
f16vec4 four_weights(Unexpanded w, int i) {
    int part = HALVES ? i / 4 : 0;
    if (TYPE == F16) return f16vec4(unpackFloat2x16(w.words[2 * i]), unpackFloat2x16(w.words[2 * i + 1]));
    if (FLOATS) return f16vec4(two_floats(w.words[2 * i], 0), two_floats(w.words[2 * i], 1), two_floats(w.words[2 * i + 1], 0), two_floats(w.words[2 * i + 1], 1));
    uint word = LOWS ? w.words[i] : w.words[i] ^ 0x80808080u;
    f16vec2 scale = f16vec2(w.scale[part] * 32.0), low = f16vec2(w.low[part]), even = two_bytes(word) * scale, odd = two_bytes(word >> 8) * scale;
    if (LOWS) {
        even -= low;
        odd -= low;
    }
    return f16vec4(even.x, odd.x, even.y, odd.y);
}

/* What a subgroup alone waits for. */
void meet() { controlBarrier(gl_ScopeSubgroup, gl_ScopeSubgroup, gl_StorageSemanticsShared, gl_SemanticsAcquireRelease); }
