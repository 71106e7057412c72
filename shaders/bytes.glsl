/* Rows as bytes for products (dot.glsl): of a row k / 4 words, then of each eight of them a scale and the sums of their halves. GROUP is the
   workgroup's size, a multiple of eight. */
layout(set = 0, binding = 6) writeonly buffer Bytes { uint bytes[]; };
shared float four_largest[GROUP];
shared int four_sum[GROUP];

int bytes_row(int row, int width) { return row * ((width / 32 * 10 + 3) / 4 * 4); }

/* Four numbers of a row that begins at word `to`, as its word number `word`. All of a workgroup come here, with words in order from a multiple of
   eight on; those beyond the row have nothing. */
void put_bytes(float x[4], int to, int word, int width, int me) {
    int block = me / 8 * 8, sums[2] = int[](0, 0), sum = 0;
    float largest = 0.0, inverse;
    uint bits = 0u;
    for (int i = 0; i < 4; i++) largest = max(largest, abs(x[i]));
    four_largest[me] = largest;
    barrier();
    for (int i = 0; i < 8; i++) largest = max(largest, four_largest[block + i]);
    inverse = largest > 0.0 ? 127.0 / largest : 0.0;
    for (int i = 0; i < 4; i++) {
        int q = int(roundEven(clamp(x[i] * inverse, -127.0, 127.0)));
        bits |= uint(q & 255) << (8 * i);
        sum += q;
    }
    four_sum[me] = sum;
    barrier();
    if (word >= width / 4) return;
    bytes[to + word] = bits;
    if (me != block) return;
    for (int i = 0; i < 8; i++) sums[i / 4] += four_sum[block + i];
    bytes[to + width / 4 + word / 4] = floatBitsToUint(largest / 127.0);
    bytes[to + width / 4 + word / 4 + 1] = uint(sums[0] & 0xFFFF) | uint(sums[1]) << 16;
}
