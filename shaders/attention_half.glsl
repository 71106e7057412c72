/* Queries as halves, with a power of two for each row by which its largest is at least 1/16 and below 1/8: no sum of eight products
   with halves is past the largest half. */
shared float query_factor[ROWS]; /* the inverse of the power */

float product_factor(int row) { return query_factor[row]; }

/* The sizes of the rows' largest values, and from those query_factor. */
void scale_queries() {
    int me = int(gl_LocalInvocationIndex), row = me / LANES, lane = me % LANES;
    float most = 0.0;
    if (row < n_rows)
        for (int d = lane; d < HEAD_DIM; d += LANES) most = max(most, abs(src[src_of(row) + d]));
    if (row < ROWS) lane_parts[me] = most;
    barrier();
    if (row < ROWS && lane == 0) {
        for (int i = 1; i < LANES; i++) most = max(most, lane_parts[me + i]);
        query_factor[row] = uintBitsToFloat(uint(clamp(int(floatBitsToUint(most) >> 23) + 4, 1, 253)) << 23);
    }
    barrier();
}

float query_of(int row, int d) { return row < n_rows && d < HEAD_DIM ? src[src_of(row) + d] / query_factor[row] : 0.0; }

/* Bytes of Q8_0 times their scale, within what halves hold. */
f16vec2 two_bytes(uint word, int i, float factor) {
    vec2 both = vec2(bitfieldExtract(int(word), 16 * i, 8), bitfieldExtract(int(word), 16 * i + 8, 8)) * factor;
    return f16vec2(clamp(both, vec2(-65504.0), vec2(65504.0)));
}
