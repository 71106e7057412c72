/* Weights of all types to floats. A row is words: of quantised types first every block's bytes in the file's order, then,
   where those are no whole words, the blocks' last scales (half floats; bytes of MXFP4) as a plane of their own at tail_at.
   The layouts of the blocks are described in fastgen.h, section >>quant. */

layout(constant_id = 0) const int TYPE = 0; /* fg_type: the id that GGUF files have */
const int F32 = 0, F16 = 1, Q4_0 = 2, Q4_1 = 3, Q5_0 = 6, Q5_1 = 7, Q8_0 = 8, Q2_K = 10, Q3_K = 11, Q4_K = 12, Q5_K = 13,
    Q6_K = 14, IQ4_NL = 20, IQ4_XS = 23, BF16 = 30, MXFP4 = 39;
const bool FLOATS = TYPE == F32 || TYPE == F16 || TYPE == BF16;
const int UNIT = FLOATS ? 8 : 32; /* weights that one call expands */

/* 32 weights of a quantised type are eight words of signed bytes, in order: weight = scale * byte - low, where scale and low
   have a value for each half of them. */
const bool HALVES = TYPE == Q2_K || TYPE == Q3_K || TYPE == Q6_K; /* the halves' values differ */
const bool LOWS = TYPE == Q4_1 || TYPE == Q5_1 || TYPE == Q2_K || TYPE == Q4_K || TYPE == Q5_K; /* low is not 0 */

/* Rows begin at multiples of 16 bytes; in these types so do the blocks' numbers. */
const bool WIDE = FLOATS || TYPE == Q4_0 || TYPE == Q8_0 || TYPE == Q4_K || TYPE == Q5_K || TYPE == Q6_K || TYPE == IQ4_NL || TYPE == MXFP4;

layout(set = 0, binding = 1) readonly buffer Weight { uint weight[]; };
layout(set = 0, binding = 1) readonly buffer WideWeight { uvec4 wide_weight[]; };

const int iq4_values[16] = int[](-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113);
const int mxfp4_values[16] = int[](0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12);

float tail_half(uint row, uint block) {
    uint word = weight[row + uint(tail_at) + block / 2u];
    return half_of((block & 1u) != 0u ? word >> 16 : word & 0xFFFFu);
}

int byte_at(uint word_at, uint byte) { return int(weight[word_at + byte / 4u] >> (byte % 4u * 8u) & 255u); }

/* Four words of one, by one load where they lie so. */
uvec4 four_of(uint at) {
    if (WIDE) return wide_weight[at / 4u];
    return uvec4(weight[at], weight[at + 1u], weight[at + 2u], weight[at + 3u]);
}

float two_floats(uint word, int i) {
    if (TYPE == F16) return i == 0 ? unpackHalf2x16(word).x : unpackHalf2x16(word).y;
    return uintBitsToFloat(i == 0 ? word << 16 : word & 0xFFFF0000u);
}

/* Each byte of a word, at most 127, less `zero`. */
uint less(uint word, uint zero) { return ((word | 0x80808080u) - zero * 0x01010101u) ^ 0x80808080u; }

/* The bytes that four numbers below 16 stand for. */
uint looked_up(uint places) {
    uint word = 0u;
    for (int b = 0; b < 4; b++) {
        uint place = places >> (8 * b) & 15u;
        word |= uint((TYPE == MXFP4 ? mxfp4_values[place] : iq4_values[place]) & 255) << (8 * b);
    }
    return word;
}

/* Q4_0, Q4_1, Q5_0, Q5_1, IQ4_NL, MXFP4: 16 bytes, weight i in the low half of byte i, weight i+16 in the high half. */
void words_of_32(uint row, uint u, out uint q[8], out vec2 scale, out vec2 low) {
    uint words = TYPE == Q4_1 || TYPE == Q5_0 ? 5u : TYPE == Q5_1 ? 6u : 4u, at = row + u * words, high = 0u;
    low = vec2(0.0);
    if (TYPE == Q4_1 || TYPE == Q5_1) {
        scale = vec2(half_of(weight[at] & 0xFFFFu));
        low = vec2(-half_of(weight[at] >> 16));
        at++;
    } else if (TYPE == MXFP4) {
        uint e = weight[row + uint(tail_at) + u / 4u] >> (u % 4u * 8u) & 255u;
        scale = vec2(uintBitsToFloat(e < 2u ? 0x00200000u << e : (e - 1u) << 23));
    } else scale = vec2(tail_half(row, u));
    if (TYPE == Q5_0 || TYPE == Q5_1) high = weight[at++];
    uvec4 four = four_of(at);
    for (int i = 0; i < 8; i++) {
        uint word = four[i % 4] >> (i < 4 ? 0 : 4) & 0x0F0F0F0Fu;
        if (TYPE == Q5_0 || TYPE == Q5_1) { /* bit b of four to bit 4 of byte b */
            uint bits = high >> (4 * i) & 15u;
            word |= (bits | bits << 7 | bits << 14 | bits << 21) << 4 & 0x10101010u;
        }
        if (TYPE == IQ4_NL || TYPE == MXFP4) word = looked_up(word);
        if (TYPE == Q4_0 || TYPE == Q5_0) word = less(word, TYPE == Q4_0 ? 8u : 16u);
        q[i] = word;
    }
}

void words_q8(uint row, uint u, out uint q[8], out vec2 scale, out vec2 low) {
    scale = vec2(tail_half(row, u));
    low = vec2(0.0);
    uvec4 first = four_of(row + u * 8u), second = four_of(row + u * 8u + 4u);
    for (int i = 0; i < 4; i++) {
        q[i] = first[i];
        q[i + 4] = second[i];
    }
}

void words_q2_k(uint row, uint u, out uint q[8], out vec2 scale, out vec2 low) {
    uint at = row + u / 8u * 21u, j = u % 8u;
    uint pair = weight[at + j / 2u] >> (j % 2u * 16u), dm = weight[at + 20u];
    scale = half_of(dm & 0xFFFFu) * vec2(pair & 15u, pair >> 8 & 15u);
    low = half_of(dm >> 16) * vec2(pair >> 4 & 15u, pair >> 12 & 15u);
    for (int i = 0; i < 8; i++) q[i] = weight[at + 4u + j / 4u * 8u + uint(i)] >> (j % 4u * 2u) & 0x03030303u;
}

int scale_q3_k(uint at, uint s) {
    int low = byte_at(at + 24u, s % 8u) >> (s / 8u * 4u) & 15, up = byte_at(at + 24u, 8u + s % 4u) >> (s / 4u * 2u) & 3;
    return (low | up << 4) - 32;
}

void words_q3_k(uint row, uint u, out uint q[8], out vec2 scale, out vec2 low) {
    uint at = row + u / 8u * 27u, j = u % 8u;
    scale = tail_half(row, u / 8u) * vec2(scale_q3_k(at, 2u * j), scale_q3_k(at, 2u * j + 1u));
    low = vec2(0.0);
    for (int i = 0; i < 8; i++) {
        uint word = weight[at + 8u + j / 4u * 8u + uint(i)] >> (j % 4u * 2u) & 0x03030303u;
        q[i] = less(word | (weight[at + uint(i)] >> j & 0x01010101u) << 2, 4u);
    }
}

/* Q4_K and Q5_K: 6-bit scales and minimums of 32 weights each. Of four of them bytes have the scales, the next the minimums; of the other four the
   low bits are in the third, and the high ones where those have none. */
void words_q45_k(uint row, uint u, out uint q[8], out vec2 scale, out vec2 low) {
    uint words = TYPE == Q4_K ? 36u : 44u, at = row + u / 8u * words, j = u % 8u, quants = at + words - 32u + j / 2u * 8u;
    uvec4 head = four_of(at), first = four_of(quants), second = four_of(quants + 4u), bytes = head >> (j % 4u * 8u);
    uint s = j < 4u ? bytes.y & 63u : bytes.w & 15u | (bytes.y >> 6 & 3u) << 4;
    uint m = j < 4u ? bytes.z & 63u : bytes.w >> 4 & 15u | (bytes.z >> 6 & 3u) << 4;
    scale = vec2(half_of(head.x & 0xFFFFu) * float(s));
    low = vec2(half_of(head.x >> 16) * float(m));
    for (int i = 0; i < 4; i++) {
        q[i] = first[i] >> (j % 2u * 4u) & 0x0F0F0F0Fu;
        q[i + 4] = second[i] >> (j % 2u * 4u) & 0x0F0F0F0Fu;
    }
    if (TYPE == Q4_K) return;
    first = four_of(at + 4u) >> j;
    second = four_of(at + 8u) >> j;
    for (int i = 0; i < 4; i++) {
        q[i] |= (first[i] & 0x01010101u) << 4;
        q[i + 4] |= (second[i] & 0x01010101u) << 4;
    }
}

void words_q6_k(uint row, uint u, out uint q[8], out vec2 scale, out vec2 low) {
    uint at = row + u / 8u * 52u, j = u % 8u;
    int pair = int(weight[at + 48u + j / 2u] >> (j % 2u * 16u));
    scale = tail_half(row, u / 8u) * vec2(bitfieldExtract(pair, 0, 8), bitfieldExtract(pair, 8, 8));
    low = vec2(0.0);
    for (uint part = 0u; part < 2u; part++) {
        uvec4 lows = four_of(at + j / 4u * 16u + j % 2u * 8u + part * 4u) >> (j % 4u / 2u * 4u) & 0x0F0F0F0Fu;
        uvec4 highs = four_of(at + 32u + j / 4u * 8u + part * 4u) >> (j % 4u * 2u) & 0x03030303u;
        for (int i = 0; i < 4; i++) q[part * 4u + uint(i)] = less(lows[i] | highs[i] << 4, 32u);
    }
}

void words_iq4_xs(uint row, uint u, out uint q[8], out vec2 scale, out vec2 low) {
    uint at = row + u / 8u * 34u, j = u % 8u, first = weight[at];
    int s = int((weight[at + 1u] >> (j * 4u) & 15u) | (first >> (16u + 2u * j) & 3u) << 4) - 32;
    scale = vec2(half_of(first & 0xFFFFu) * float(s));
    low = vec2(0.0);
    for (int i = 0; i < 8; i++) q[i] = looked_up(weight[at + 2u + 4u * j + uint(i % 4)] >> (i < 4 ? 0 : 4));
}

/* Weights 32*u to 32*u + 31 of the row that starts at word `row`, of a quantised type. */
void unit_words(uint row, uint u, out uint q[8], out vec2 scale, out vec2 low) {
    if (TYPE == Q8_0) words_q8(row, u, q, scale, low);
    else if (TYPE == Q2_K) words_q2_k(row, u, q, scale, low);
    else if (TYPE == Q3_K) words_q3_k(row, u, q, scale, low);
    else if (TYPE == Q4_K || TYPE == Q5_K) words_q45_k(row, u, q, scale, low);
    else if (TYPE == Q6_K) words_q6_k(row, u, q, scale, low);
    else if (TYPE == IQ4_XS) words_iq4_xs(row, u, q, scale, low);
    else words_of_32(row, u, q, scale, low);
}

/* Weight i of 32, which is in this word. */
float number_of(uint word, int i, vec2 scale, vec2 low) {
    int part = HALVES ? i / 16 : 0;
    float x = scale[part] * float(bitfieldExtract(int(word), i % 4 * 8, 8));
    return LOWS ? x - low[part] : x;
}

/* Eight weights of a float type; rows are padded with zeros to whole units. */
void unit_floats(uint row, uint u, out float w[32]) {
    uvec4 first = four_of(row + u * (TYPE == F32 ? 8u : 4u)), second = TYPE == F32 ? four_of(row + u * 8u + 4u) : first;
    for (int i = 0; i < 4; i++) {
        if (TYPE == F32) {
            w[i] = uintBitsToFloat(first[i]);
            w[i + 4] = uintBitsToFloat(second[i]);
        } else {
            w[2 * i] = two_floats(first[i], 0);
            w[2 * i + 1] = two_floats(first[i], 1);
        }
    }
}

/* Weights UNIT*u to UNIT*u + UNIT-1 of the row that starts at word `row`. */
void unit(uint row, uint u, out float w[32]) {
    uint q[8];
    vec2 scale, low;
    if (FLOATS) {
        unit_floats(row, u, w);
        return;
    }
    unit_words(row, u, q, scale, low);
    for (int i = 0; i < 32; i++) w[i] = number_of(q[i / 4], i, scale, low);
}
