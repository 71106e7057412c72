/* Weights of all types to floats. A row is words: of quantised types first every block's bytes in the file's order, then,
   where those are no whole words, the blocks' last scales (half floats; bytes of MXFP4) as a plane of their own at tail_at.
   The layouts of the blocks are described in fastgen.h, section >>quant. */

layout(constant_id = 0) const int TYPE = 0; /* fg_type: the id that GGUF files have */
const int F32 = 0, F16 = 1, Q4_0 = 2, Q4_1 = 3, Q5_0 = 6, Q5_1 = 7, Q8_0 = 8, Q2_K = 10, Q3_K = 11, Q4_K = 12, Q5_K = 13,
    Q6_K = 14, IQ4_NL = 20, IQ4_XS = 23, BF16 = 30, MXFP4 = 39;
const bool FLOATS = TYPE == F32 || TYPE == F16 || TYPE == BF16;
const int UNIT = FLOATS ? 8 : 32; /* weights that one call expands */

layout(set = 0, binding = 1) readonly buffer Weight { uint weight[]; };

const int iq4_values[16] = int[](-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113);
const int mxfp4_values[16] = int[](0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12);

float tail_half(uint row, uint block) {
    uint word = weight[row + uint(tail_at) + block / 2u];
    return half_of((block & 1u) != 0u ? word >> 16 : word & 0xFFFFu);
}

int byte_at(uint word_at, uint byte) { return int(weight[word_at + byte / 4u] >> (byte % 4u * 8u) & 255u); }

float two_floats(uint word, int i) {
    if (TYPE == F16) return i == 0 ? unpackHalf2x16(word).x : unpackHalf2x16(word).y;
    return uintBitsToFloat(i == 0 ? word << 16 : word & 0xFFFF0000u);
}

/* Q4_0, Q4_1, Q5_0, Q5_1, IQ4_NL, MXFP4: 16 bytes, weight i in the low half of byte i, weight i+16 in the high half. */
void unit_of_32(uint row, uint u, out float w[32]) {
    uint words = TYPE == Q4_1 || TYPE == Q5_0 ? 5u : TYPE == Q5_1 ? 6u : 4u, at = row + u * words, high = 0u;
    float d, m = 0.0;
    if (TYPE == Q4_1 || TYPE == Q5_1) {
        d = half_of(weight[at] & 0xFFFFu);
        m = half_of(weight[at] >> 16);
        at++;
    } else if (TYPE == MXFP4) {
        uint e = weight[row + uint(tail_at) + u / 4u] >> (u % 4u * 8u) & 255u;
        d = uintBitsToFloat(e < 2u ? 0x00200000u << e : (e - 1u) << 23);
    } else d = tail_half(row, u);
    if (TYPE == Q5_0 || TYPE == Q5_1) high = weight[at++];
    for (int i = 0; i < 4; i++) {
        uint word = weight[at + uint(i)];
        for (int j = 0; j < 4; j++) {
            uint low = word >> (8 * j) & 15u, up = word >> (8 * j + 4) & 15u;
            int a = 4 * i + j;
            if (TYPE == Q5_0 || TYPE == Q5_1) {
                low |= (high >> a & 1u) << 4;
                up |= (high >> (a + 16) & 1u) << 4;
            }
            if (TYPE == IQ4_NL) {
                w[a] = d * float(iq4_values[low]);
                w[a + 16] = d * float(iq4_values[up]);
            } else if (TYPE == MXFP4) {
                w[a] = d * float(mxfp4_values[low]);
                w[a + 16] = d * float(mxfp4_values[up]);
            } else {
                int zero = TYPE == Q4_0 ? 8 : TYPE == Q5_0 ? 16 : 0;
                w[a] = d * float(int(low) - zero) + m;
                w[a + 16] = d * float(int(up) - zero) + m;
            }
        }
    }
}

void unit_q8(uint row, uint u, out float w[32]) {
    float d = tail_half(row, u);
    for (int i = 0; i < 8; i++) {
        int word = int(weight[row + u * 8u + uint(i)]);
        for (int j = 0; j < 4; j++) w[4 * i + j] = d * float(bitfieldExtract(word, 8 * j, 8));
    }
}

void unit_q2_k(uint row, uint u, out float w[32]) {
    uint at = row + u / 8u * 21u, j = u % 8u;
    float d = half_of(weight[at + 20u] & 0xFFFFu), dmin = half_of(weight[at + 20u] >> 16);
    for (int half_unit = 0; half_unit < 2; half_unit++) {
        int s = byte_at(at, 2u * j + uint(half_unit));
        float scale = d * float(s & 15), low = dmin * float(s >> 4);
        for (int i = 0; i < 4; i++) {
            uint word = weight[at + 4u + j / 4u * 8u + uint(4 * half_unit + i)] >> (j % 4u * 2u);
            for (int b = 0; b < 4; b++) w[16 * half_unit + 4 * i + b] = scale * float(word >> (8 * b) & 3u) - low;
        }
    }
}

void unit_q3_k(uint row, uint u, out float w[32]) {
    uint at = row + u / 8u * 27u, j = u % 8u;
    float d = tail_half(row, u / 8u);
    for (int half_unit = 0; half_unit < 2; half_unit++) {
        uint s = 2u * j + uint(half_unit);
        int low = byte_at(at + 24u, s % 8u) >> (s / 8u * 4u) & 15, up = byte_at(at + 24u, 8u + s % 4u) >> (s / 4u * 2u) & 3;
        float scale = d * float((low | up << 4) - 32);
        for (int i = 0; i < 4; i++) {
            uint word = weight[at + 8u + j / 4u * 8u + uint(4 * half_unit + i)] >> (j % 4u * 2u);
            uint third = weight[at + uint(4 * half_unit + i)] >> j;
            for (int b = 0; b < 4; b++)
                w[16 * half_unit + 4 * i + b] = scale * float(int(word >> (8 * b) & 3u) + int(third >> (8 * b) & 1u) * 4 - 4);
        }
    }
}

/* Q4_K and Q5_K: 6-bit scales and minimums of 32 weights each. */
void unit_q45_k(uint row, uint u, out float w[32]) {
    uint words = TYPE == Q4_K ? 36u : 44u, at = row + u / 8u * words, j = u % 8u, quants = at + words - 32u, dm = weight[at];
    int s, m;
    if (j < 4u) {
        s = byte_at(at + 1u, j) & 63;
        m = byte_at(at + 1u, j + 4u) & 63;
    } else {
        s = (byte_at(at + 1u, j + 4u) & 15) | (byte_at(at + 1u, j - 4u) >> 6) << 4;
        m = byte_at(at + 1u, j + 4u) >> 4 | (byte_at(at + 1u, j) >> 6) << 4;
    }
    float scale = half_of(dm & 0xFFFFu) * float(s), low = half_of(dm >> 16) * float(m);
    for (int i = 0; i < 8; i++) {
        uint word = weight[quants + j / 2u * 8u + uint(i)] >> (j % 2u * 4u) & 0x0F0F0F0Fu;
        if (TYPE == Q5_K) word |= (weight[at + 4u + uint(i)] >> j & 0x01010101u) << 4;
        for (int b = 0; b < 4; b++) w[4 * i + b] = scale * float(word >> (8 * b) & 31u) - low;
    }
}

void unit_q6_k(uint row, uint u, out float w[32]) {
    uint at = row + u / 8u * 52u, j = u % 8u;
    float d = tail_half(row, u / 8u);
    for (int half_unit = 0; half_unit < 2; half_unit++) {
        float scale = d * float((byte_at(at + 48u, 2u * j + uint(half_unit)) ^ 128) - 128);
        for (int i = 0; i < 4; i++) {
            uint place = uint(4 * half_unit + i);
            uint low = weight[at + j / 4u * 16u + j % 2u * 8u + place] >> (j % 4u / 2u * 4u) & 0x0F0F0F0Fu;
            uint word = low | (weight[at + 32u + j / 4u * 8u + place] >> (j % 4u * 2u) & 0x03030303u) << 4;
            for (int b = 0; b < 4; b++) w[16 * half_unit + 4 * i + b] = scale * float(int(word >> (8 * b) & 63u) - 32);
        }
    }
}

void unit_iq4_xs(uint row, uint u, out float w[32]) {
    uint at = row + u / 8u * 34u, j = u % 8u, first = weight[at];
    int s = int((weight[at + 1u] >> (j * 4u) & 15u) | (first >> (16u + 2u * j) & 3u) << 4) - 32;
    float scale = half_of(first & 0xFFFFu) * float(s);
    for (int i = 0; i < 4; i++) {
        uint word = weight[at + 2u + 4u * j + uint(i)];
        for (int b = 0; b < 4; b++) {
            w[4 * i + b] = scale * float(iq4_values[word >> (8 * b) & 15u]);
            w[4 * i + b + 16] = scale * float(iq4_values[word >> (8 * b + 4) & 15u]);
        }
    }
}

/* Eight weights of a float type; rows are padded with zeros to whole units. */
void unit_floats(uint row, uint u, out float w[32]) {
    for (int i = 0; i < 4; i++) {
        if (TYPE == F32) {
            w[2 * i] = uintBitsToFloat(weight[row + u * 8u + uint(2 * i)]);
            w[2 * i + 1] = uintBitsToFloat(weight[row + u * 8u + uint(2 * i + 1)]);
        } else {
            uint word = weight[row + u * 4u + uint(i)];
            w[2 * i] = two_floats(word, 0);
            w[2 * i + 1] = two_floats(word, 1);
        }
    }
}

/* Weights UNIT*u to UNIT*u + UNIT-1 of the row that starts at word `row`. */
void unit(uint row, uint u, out float w[32]) {
    if (FLOATS) unit_floats(row, u, w);
    else if (TYPE == Q8_0) unit_q8(row, u, w);
    else if (TYPE == Q2_K) unit_q2_k(row, u, w);
    else if (TYPE == Q3_K) unit_q3_k(row, u, w);
    else if (TYPE == Q4_K || TYPE == Q5_K) unit_q45_k(row, u, w);
    else if (TYPE == Q6_K) unit_q6_k(row, u, w);
    else if (TYPE == IQ4_XS) unit_iq4_xs(row, u, w);
    else unit_of_32(row, u, w);
}
