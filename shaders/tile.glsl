/* The end of products of many rows: dst from each invocation's SIDE x SIDE sums, column by column of them through the weight's tile, by lay() and
   laid(), so that there is one finish() to compile, not one for each sum, and that rows of the weight lie side by side. */
void finish_tile(int me, int n0, int m0, int count, float sums[OWN]) {
    [[dont_unroll]] for (int c = 0; c < SIDE; c++) {
        [[unroll]] for (int j = 0; j < OWN; j++)
            if (j / SIDE == c) lay(me / ACROSS * TILE_N + me % ACROSS * SIDE + j % SIDE, sums[j]);
        barrier();
        for (int i = me; i < TILE_N * TILE_M / SIDE; i += int(gl_WorkGroupSize.x)) {
            int row = n0 + i % TILE_N, col = m0 + i / TILE_N * SIDE + c;
            if (row < rows && col < count) finish(row, col, scaled(laid(i), col));
        }
        barrier();
    }
}
