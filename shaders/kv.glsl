/* The KV cache of a layer: K and V in buffers of their own, [block][kv head][token of the block][kv_stride words]. A head's
   words are its values (floats; pairs of halves or bfloat16; four bytes), and of Q8_0 then a half float for each 32 of them. */
layout(constant_id = 0) const int TYPE = 0;
layout(constant_id = 1) const int HEAD_DIM = 64;
const int F32 = 0, F16 = 1, Q8_0 = 8, BF16 = 30;
const int PER_WORD = TYPE == F32 ? 1 : TYPE == Q8_0 ? 4 : 2;
const int WORDS = (HEAD_DIM + PER_WORD - 1) / PER_WORD; /* of values */

/* Where the words of one head of the token in slot `block * block_tokens + offset` are. */
int kv_row(int block, int offset, int head) {
    return ((block * n_kv_head + head) * block_tokens + offset) * kv_stride;
}
