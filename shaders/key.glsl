/* Floats as numbers without a sign, for what is to be in order. */

/* Ordered as floats are; 0 is NaN. By bits, since a device may take NaN for impossible. */
uint key_of(float x) {
    uint bits = floatBitsToUint(x);
    if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return 0u;
    if ((bits & 0x7FFFFFFFu) == 0u) bits = 0u;
    return (bits & 0x80000000u) != 0u ? ~bits : bits | 0x80000000u;
}

float value_of(uint key) { return uintBitsToFloat((key & 0x80000000u) != 0u ? key ^ 0x80000000u : ~key); }
