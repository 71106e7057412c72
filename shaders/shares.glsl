/* The end of a cut in the kernels whose invocations have sums of their own, acc: of an invocation's words, and of its share of the positions.
   Turn by turn, as many as an invocation has dimensions, all lay one of each row into part, from where the shares are added up and put: one
   put() to compile, not one for each sum. */
void put_shares(int me, int cut) {
    [[dont_unroll]] for (int turn = 0; turn < OWN * PER_WORD; turn++) {
        [[unroll]] for (int e = 0; e < OWN * PER_WORD; e++)
            if (e == turn)
                [[unroll]] for (int r = 0; r < ROWS; r++) part[r * GROUP + me] = own_sum(e, r);
        barrier();
        for (int i = me; i < n_rows * SPAN; i += GROUP) {
            int row = i / SPAN, word = i % SPAN, d = (word + turn / PER_WORD * GROUP) * PER_WORD + turn % PER_WORD;
            float value = part[row * GROUP + word];
            for (int s = 1; s < SHARES; s++) value += part[row * GROUP + s * SPAN + word];
            put(row, d, value, cut);
        }
        barrier();
    }
}
