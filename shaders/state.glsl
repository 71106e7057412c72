/* What the kernels of STATE_SCAN share. The state of a value head: S [dim of k][dim of v], then of the last k - 1 tokens the inputs of the convolution,
   [q, k, v][head_dim] each, the oldest first. `row0` and `rows` are the heads in this piece of the layer's pool, [block][head], kv_stride the floats of
   a state, k the taps, `neox` says that value head h has key head h % n_kv_head. Where sequences begin among the tokens is at `slots_at`. */
layout(set = 0, binding = 6) buffer Pool { float pool[]; };
layout(set = 0, binding = 2) readonly buffer Src { float src[]; };

/* A row of what state_conv.comp leaves: q, k of each key head, v of each value head; of key heads q . k; of value heads decay and beta. */
int mixed_v() { return 2 * n_kv_head * head_dim; }
int mixed_dots() { return mixed_v() + n_head * head_dim; }
int mixed_gates() { return mixed_dots() + n_kv_head; }
int mixed_stride() { return mixed_gates() + 2 * n_head; }

int key_head(int head) { return neox != 0 ? head % n_kv_head : head / (n_head / n_kv_head); }

/* Where the state of a head after the token at `position` of a sequence belongs; -1: nowhere. */
int state_at(int seq, int position, int head) {
    int block = batch[table_at + seq * table_stride + position / block_tokens];
    return block < 0 ? -1 : (block * rows + head - row0) * kv_stride;
}

/* What the convolution has at `position` of a sequence whose tokens of the pass are rows from `first` on, at positions from `start` on: column `column` of
   src, which is number i of a head's inputs; before the pass it is in the state at `from`, before the sequence 0. */
float input_at(int first, int start, int position, int column, int from, int i) {
    if (position >= start) return src[(first + position - start) * src_stride + src_col + column];
    if (position < 0) return 0.0;
    return pool[from + head_dim * head_dim + (k - 1 - (start - position)) * 3 * head_dim + i];
}
