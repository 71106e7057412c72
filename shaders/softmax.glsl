/* Makes of products, which are in part[part_at(j, row)], exp(score - largest), by put_weight, and adds those up. All products
   must be there; afterwards all weights are, and row_factor. */
void softmax(int base) {
    int me = int(gl_LocalInvocationIndex), row = me / LANES, lane = me % LANES, position = position0 + min(row, n_rows - 1) / tile_heads;
    int first = window > 0 ? position - window + 1 : 0;
    float before = largest, one = -1e38, factor = 1.0;
    barrier();
    if (row < ROWS) {
        for (int j = lane; j < POSITIONS; j += LANES) {
            bool seen = row_of[j] >= 0 && base + j <= position && base + j >= first;
            float score = seen ? score_of(part[part_at(j, row)] * product_factor(row)) : -1e38;
            part[part_at(j, row)] = score;
            one = max(one, score);
        }
        lane_parts[row * LANES + lane] = one;
    }
    barrier();
    if (row < ROWS) {
        one = 0.0;
        [[unroll]] for (int i = 0; i < LANES; i++) largest = max(largest, lane_parts[row * LANES + i]);
        if (largest != before) factor = exp(before - largest);
        for (int j = lane; j < POSITIONS; j += LANES) {
            float score = part[part_at(j, row)], e = score == -1e38 ? 0.0 : exp(score - largest);
            put_weight(j, row, e);
            one += e;
        }
        lane_parts[(ROWS + row) * LANES + lane] = one;
        if (lane == 0) row_factor[row] = factor;
    }
    barrier();
    if (row < ROWS) {
        one = 0.0;
        [[unroll]] for (int i = 0; i < LANES; i++) one += lane_parts[(ROWS + row) * LANES + i];
        sum = sum * factor + one;
    }
}
