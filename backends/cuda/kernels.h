/* kernels.h: what the GPU kernels and the host code that launches them agree on.             Public domain or MIT, as fastgen.h.

   One set of kernels (kernels.cuh, on the thin layer device.cuh) serves CUDA, HIP and the host execution of tests/. A kernel
   takes one argument struct by value, fg_gpu_<kind>_args. Addresses in it are 64 bits wide and those of the device; columns of
   slots are added to them, strides are in elements of what they step over unless they say bytes. Weights, acts, K, V and
   blocks to copy lie at multiples of 16 bytes, all else at multiples of its elements. `count` is the address of an int32 with
   the number of rows of this pass: launches are shaped for max_rows, and what is beyond the count returns, so that a captured
   graph serves every pass of its bucket. An address of 0 is "none" where that is allowed.

   fg_gpu_shape_of says how a kernel is launched, fg_gpu_pack_row how a weight lies in device memory, fg_gpu_attn_plan what the
   attention of a pass consists of. C99 and C++; nothing else is included, so that device compilers take it too. */

#ifndef FG_GPU_KERNELS_H
#define FG_GPU_KERNELS_H

#if defined(__HIP__) && !defined(__CUDACC__)
/* HIPRTC has some of these names, with other types behind them, in some versions. */
#define uint8_t fgk_uint8
#define uint16_t fgk_uint16
#define int8_t fgk_int8
#define int32_t fgk_int32
#define uint32_t fgk_uint32
#define int64_t fgk_int64
#define uint64_t fgk_uint64
typedef unsigned char uint8_t;
typedef unsigned short uint16_t;
typedef signed char int8_t;
typedef int int32_t;
typedef unsigned int uint32_t;
typedef long long int64_t;
typedef unsigned long long uint64_t;
#else
#include <stdint.h>
#endif

#if defined(__CUDACC__)
#define FG_GPU_FN static __host__ __device__ inline
#elif defined(__HIP__)
#define FG_GPU_FN static __attribute__((host)) __attribute__((device)) inline
#elif defined(__GNUC__)
#define FG_GPU_FN static __attribute__((unused)) inline
#else
#define FG_GPU_FN static inline
#endif

/* Types of weights and of KV caches, by the ids that GGUF files and fg_type have. */
#define FG_GPU_TYPES(X) \
    X(F32, 0)           \
    X(F16, 1)           \
    X(Q4_0, 2)          \
    X(Q4_1, 3)          \
    X(Q5_0, 6)          \
    X(Q5_1, 7)          \
    X(Q8_0, 8)          \
    X(Q2_K, 10)         \
    X(Q3_K, 11)         \
    X(Q4_K, 12)         \
    X(Q5_K, 13)         \
    X(Q6_K, 14)         \
    X(IQ4_NL, 20)       \
    X(IQ4_XS, 23)       \
    X(BF16, 30)         \
    X(MXFP4, 39)

enum {
#define FG_GPU_ENUM(name, id) FG_GPU_##name = id,
    FG_GPU_TYPES(FG_GPU_ENUM)
#undef FG_GPU_ENUM
    FG_GPU_TYPE_END
};

enum {
    FG_GPU_ATTN_ROWS = 16,      /* queries that one workgroup of attention has: heads of a KV head, of one or several tokens */
    FG_GPU_WIDE_ROWS = 64,      /* and of wide, which multiplies in matrix fragments of half floats */
    FG_GPU_WIDE256_ROWS = 32,   /* of wide256 */
    FG_GPU_WG_ROWS = 128,       /* and of widewg, which multiplies by warpgroups */
    FG_GPU_SPLIT = 512,         /* positions of one item of attention: contexts are cut at multiples of it */
    FG_GPU_FEW_SPLIT = 256,     /* of few: few enough that some sequences have work for all processors, and partial sums are small beside it */
    FG_GPU_ALONE_SPLIT = 128,   /* of few where there are at most FG_GPU_ALONE sequences */
    FG_GPU_ALONE = 8,
    FG_GPU_WG_SPLIT = 2048,     /* of widewg */
    FG_GPU_SAMPLE_PIECE = 4096, /* logits that one workgroup of sample looks at */
    FG_GPU_CANDIDATES = 128,    /* FG_MAX_CANDIDATES */
    FG_GPU_TOP_WORDS = 4 + 2 * FG_GPU_CANDIDATES,
    FG_GPU_MAX_HEAD_DIM = 512,
    FG_GPU_EXPERTS = 1024,      /* of a layer at most */
    FG_GPU_STATE_DIM = 256,     /* of recurrent layers' heads at most */
    FG_GPU_STATE_COLUMNS = 32,  /* of S that a workgroup has */
    FG_GPU_ACTS_ALIGN = 64,     /* rows of half-float activations are padded with zeros to multiples of it */
    FG_GPU_FRAGMENTS_ALIGN = 256 /* in the order of fragments to multiples of it */
};

/* ---- Argument structs. ---- */

/* How the rows of a packed weight lie, in bytes; see fg_gpu_layout_of. */
typedef struct fg_gpu_layout {
    int32_t stride;            /* from row to row, a multiple of 16 */
    int32_t hi_at, s_at, d_at; /* planes of a row: high bits, scales of units, scales of 256 */
} fg_gpu_layout;

/* dst[T, n] = weight[tokens[t]] * scale */
typedef struct fg_gpu_embed_args {
    uint64_t weight, tokens, dst, count;
    fg_gpu_layout layout;
    int32_t n, dst_stride, max_rows;
    float scale; /* 1: none */
} fg_gpu_embed_args;

/* src += src2 where there is one; dst = src / rms(src) * weight; with a bias a layer norm. weight, bias, src2 may be 0. With acts,
   which may be 0, what the kernel `acts` would make of dst as well (not FG_GPU_ACTS_BYTES). */
typedef struct fg_gpu_norm_args {
    uint64_t src, src2, dst, weight, bias, acts, scales, count;
    int32_t n, src_stride, src2_stride, dst_stride, acts_stride, format, max_rows;
    float eps;
} fg_gpu_norm_args;

/* Half-float activations for gemm and skinny: acts[T, k] = src * 2^e, scales[T] = 2^-e; e is a row's own, such that nothing
   overflows. As FG_GPU_ACTS_BFLOAT bfloat16, as they are. As FG_GPU_ACTS_BYTES (of gemmi kernels) a row has acts_stride signed
   bytes, then of each 32 of them a float, by which they are multiplied, and the sums of both halves, 16 bits each; scales[T] = 1.
   As FG_GPU_ACTS_FRAGMENTS_<units> the same halves in the order in which skinny reads them, see fg_gpu_acts_row. Products of one src
   share them. */
enum { FG_GPU_ACTS_HALF, FG_GPU_ACTS_BFLOAT, FG_GPU_ACTS_BYTES, FG_GPU_ACTS_FRAGMENTS_0, FG_GPU_ACTS_FRAGMENTS_1, FG_GPU_ACTS_FRAGMENTS_2 };

typedef struct fg_gpu_acts_args {
    uint64_t src, acts, scales, count;
    int32_t k, src_stride, acts_stride, max_rows; /* acts_stride: fg_gpu_acts_stride */
    int32_t format;
    int32_t per; /* over 1: a row of src is so many of k side by side, each a row of acts; max_rows counts these */
} fg_gpu_acts_args;

/* A further weight of a product, of the same type and k, whose rows follow from row `from` on (0: there is none). */
typedef struct fg_gpu_more {
    uint64_t weight, bias;
    int32_t from, exponent;
} fg_gpu_more;

/* dst[T, n] = act(src . weight^T + bias) + src2, of float activations (gemv) or those of `acts` (all other products). bias, src2 may be
   0; src2 may be dst. `finish`: dst = act(src * scales + bias) + src2 with a product in src; scales may be 0, dst may be src. */
typedef struct fg_gpu_gemm_args {
    uint64_t weight, src, acts, scales, dst, src2, bias, count;
    fg_gpu_layout layout;
    int32_t n, k, src_stride, acts_stride, dst_stride, src2_stride, act, max_rows; /* act: fg_act */
    int32_t exponent;    /* of skinny: the weight's scales are halves once multiplied by 2 to it; see fg_gpu_exponent */
    fg_gpu_more more[2]; /* of gemv and skinny; n counts the rows of all */
    int32_t across;      /* of skinny: warps side by side, fg_gpu_skinny_across */
    int32_t way;         /* of gemmwg, FG_GPU_WG_256 and so on; 0: the one of fg_gpu_wg_way */
    int32_t splits;      /* of gemm16, gemm64, gemm128, gemmi: workgroups that share k, see fg_gpu_gemm_splits; of finish: sums of them in src; 0: 1 */
} fg_gpu_gemm_args;

/* dst[T, 0..n_used) = the experts of src[T, n_expert] with the largest logits, the lower of equal ones first; dst[T, n_used..) = their weights:
   softmax(src), with `norm` divided by their sum, times scale. */
typedef struct fg_gpu_route_args {
    uint64_t src, dst, count;
    int32_t n_expert, n_used, norm, src_stride, dst_stride, max_rows;
    float scale;
} fg_gpu_route_args;

/* A pair is a token and one of its experts: token * n_used + its place among them. A tile is up to `rows` pairs of one expert: pairs[first] and on. */
typedef struct fg_gpu_tile {
    int32_t expert, first, n, unused;
} fg_gpu_tile;

/* Puts the pairs of a pass into the order of their experts: pairs[T * n_used], and cuts them into tiles, whose number is in the first word of tiles[0].
   routes: what `route` wrote. */
typedef struct fg_gpu_sort_args {
    uint64_t routes, pairs, tiles, count;
    int32_t n_expert, n_used, routes_stride, rows;
} fg_gpu_sort_args;

/* Products with experts: `gemm` with weight[n_expert][n, k], bias[n_expert][n] and dst[T, n_used * n], without act and src2; src is [T, k], with `of_pairs`
   [T, n_used * k]. experts1 has workgroups for each pair, the others (which read acts, of tokens or of pairs) for each tile. weight2, which may be
   0, is of the same type and sizes: its products, with bias2, go to dst2. */
typedef struct fg_gpu_experts_args {
    fg_gpu_gemm_args gemm;
    uint64_t routes, pairs, tiles, weight2, bias2, dst2;
    int32_t n_expert, n_used, routes_stride, of_pairs, max_tiles;
} fg_gpu_experts_args;

/* dst[T, n] += the sum over the pairs of a token, in their order, of weight * src[T * n_used, n] */
typedef struct fg_gpu_mix_args {
    uint64_t src, weights, dst, count; /* weights: [T, weights_stride] */
    int32_t n, n_used, weights_stride, dst_stride, max_rows;
} fg_gpu_mix_args;

/* A sequence of a pass, for recurrent layers: rows [row, end), at `position` and on; source: the block of its state before, -1: zeros. */
typedef struct fg_gpu_state_seq {
    int32_t row, end, position, source;
} fg_gpu_state_seq;

/* The recurrent layer FG_OP_STATE_SCAN. A head of a block is at state + block * block_stride + head * fg_gpu_state_floats: S, column by column, that is
   [D of v][D of k], then the inputs of the last taps - 1 tokens, [taps - 1][q, k, v][D]. state128 and state256 (of D up to that) make dst = o and write
   S to the blocks where it goes. state_out, behind them, makes dst of o, and writes the inputs: all workgroups of a head need those of before. */
typedef struct fg_gpu_state_args {
    uint64_t src, dst, conv, a, norm, state, block_stride, seqs, table, count, seq_count; /* table: [n_seqs, table_stride] */
    int32_t n_head, n_kv_head, head_dim, taps, tiled, block_tokens, table_stride, src_stride, dst_stride, max_rows, max_seqs;
    float eps;
} fg_gpu_state_args;

/* The KV cache of a layer. Block b of K is at k + b * block_stride bytes; within it the heads one behind the other, of each
   the rows of its tokens, then (Q8_0) their scales; see fg_gpu_kv_*. */
typedef struct fg_gpu_kv {
    uint64_t k, v, block_stride;
    int32_t block_tokens; /* a power of two */
    int32_t n_head, n_kv_head, head_dim;
} fg_gpu_kv;

/* Norm of the heads of q and k, rotation in place; k and v into their slots. norm_q, norm_k, freqs may be 0. */
typedef struct fg_gpu_rope_kv_args {
    fg_gpu_kv kv;
    uint64_t q, k, v, norm_q, norm_k, freqs, positions, slots, count; /* q, k, v: [T, stride] */
    int32_t stride, n_rot, neox, max_rows;
    float eps, scale;
} fg_gpu_rope_kv_args;

/* A piece of attention: queries of n_tokens adjacent tokens over positions [start, end), which no multiple of FG_GPU_SPLIT (of
   few FG_GPU_FEW_SPLIT, FG_GPU_ALONE_SPLIT or that, of widewg FG_GPU_WG_SPLIT) cuts. */
typedef struct fg_gpu_attn_item {
    int32_t seq, token, n_tokens, position; /* position: of the first token */
    int32_t start, end;
    int32_t partial; /* first row of `partials`; -1: the only piece, straight to dst */
    int32_t unused;
} fg_gpu_attn_item;

/* Pieces that belong together: piece s has the rows partial + s * n_tokens * heads and on. `first`: the number of piece 0 in its
   context; sums are taken in an order that it gives, whatever other tokens of the piece see. */
typedef struct fg_gpu_attn_merge {
    int32_t token, n_tokens, partial, n_splits, first;
} fg_gpu_attn_merge;

/* For `attention`, `few`, `wide` and `widewg` items and max_items, count theirs; for `combine` merges and max_merges, count of merges,
   and the most tokens that one of them has. partials: [row][n_kv_head][head_dim + 2] floats. */
typedef struct fg_gpu_attention_args {
    fg_gpu_kv kv;
    uint64_t q, dst, table, items, merges, partials, count, merge_count; /* table: [n_seqs, table_stride] */
    uint64_t sinks; /* [n_head]: a logit more of each softmax, of no value; may be 0 */
    int32_t q_stride, dst_stride, table_stride, window, max_items, max_merges;
    float scale, softcap;
    int32_t merge_tokens;
} fg_gpu_attention_args;

/* dst[T, n] = act(src) * src2, which may be dst; act_rows also makes acts of dst, as norm does. act: fg_act; 5: SWIGLU_OAI, of both. `one`, of act_mul
   alone: a row of src is one number, for all of dst's. */
typedef struct fg_gpu_act_mul_args {
    uint64_t src, src2, dst, acts, scales, count;
    int32_t n, src_stride, src2_stride, dst_stride, acts_stride, format, act, one, max_rows;
    int32_t per; /* of act_rows, as of acts: a row is so many of n side by side */
} fg_gpu_act_mul_args;

/* Rows of a quantised weight as halves: dst[n, k] = weight. */
typedef struct fg_gpu_expand_args {
    uint64_t weight, dst;
    fg_gpu_layout layout;
    int32_t n, k, dst_stride; /* k: a multiple of 32; dst_stride: of 8 */
} fg_gpu_expand_args;

/* dst[R, n] = src[rows[r], n] */
typedef struct fg_gpu_gather_args {
    uint64_t src, dst, rows, count;
    int32_t n, src_stride, dst_stride, max_rows;
} fg_gpu_gather_args;

/* tokens[t] = first word of rows[feed[t]], where feed[t] is not negative: what the pass before has drawn */
typedef struct fg_gpu_feed_args {
    uint64_t tokens, feed, rows, count;
    int32_t row_words, max_rows;
} fg_gpu_feed_args;

/* What `sample` found in a piece of a row: the highest logit (as a key that orders as it does), its lowest id, and the sum of
   exp(logit - highest). */
typedef struct fg_gpu_sample_part {
    uint32_t key;
    int32_t token;
    float sum;
    uint32_t unused;
} fg_gpu_sample_part;

/* `sample` fills parts[R][pieces], then `choose` makes of them fg_row_result rows[R]: token, logit, log-sum-exp. */
typedef struct fg_gpu_sample_args {
    uint64_t src, parts, rows, count;
    int32_t n, src_stride, pieces, max_rows; /* pieces: fg_gpu_sample_pieces(n) */
} fg_gpu_sample_args;

/* `top` finds in each piece of a row its FG_GPU_CANDIDATES highest logits and the sum of its weights at a temperature, into
   tops[R][pieces][FG_GPU_TOP_WORDS]; `pick` makes of them fg_row_candidates out[R]. `wants`: fg_row_draw [R]. `rows`: what `choose`
   made. A piece's words: the key of the highest logit left out, the sum, 2 unused, then ids and logits, (-1, -infinity) to the end. */
typedef struct fg_gpu_top_args {
    uint64_t src, rows, wants, tops, out, count;
    int32_t n, src_stride, pieces, max_rows;
} fg_gpu_top_args;

/* What fg_measure_roofs times: products whose operands stay where they are, in registers or, of warpgroups, in shared memory. out[thread]: what its
   sums add up to, modulo 2^32; see fg_gpu_roof_sum. */
typedef struct fg_gpu_roof_args {
    uint64_t out;
    int32_t groups, rounds; /* workgroups; turns of each of their loops, at most FG_GPU_ROOF_ROUNDS */
} fg_gpu_roof_args;

/* Copies whole blocks, one after the other: pairs[2i] to pairs[2i + 1], for i under *count. */
typedef struct fg_gpu_copy_args {
    uint64_t base, pairs, count, block_bytes; /* block_bytes: a multiple of 16 */
} fg_gpu_copy_args;

/* ---- The kernels. Entry points are called fg_gpu_<name>. ---- */

/* X(name, kind of arguments) of every weight type, KV type, and of none. */
#define FG_GPU_WEIGHT_KERNELS(X, T) \
    X(embed_##T, embed)             \
    X(gemv1_##T, gemm)              \
    X(gemv2_##T, gemm)              \
    X(gemv4_##T, gemm)              \
    X(gemv8_##T, gemm)              \
    X(gemm16_##T, gemm)             \
    X(gemm64_##T, gemm)             \
    X(gemm128_##T, gemm)            \
    X(gemmwg_##T, gemm)

/* Of NVIDIA's, tiles of 8, 16, 32 and 64 rows; of all types but F32, whose numbers are more than halves. */
#define FG_GPU_SKINNY_KERNELS(X, T) \
    X(skinny8_##T, gemm)            \
    X(skinny16_##T, gemm)           \
    X(skinny32_##T, gemm)           \
    X(skinny64_##T, gemm)

/* Products with experts: few pairs, tiles of up to 16 and of up to 64. */
#define FG_GPU_EXPERTS_KERNELS(X, T) \
    X(experts1_##T, experts)         \
    X(experts16_##T, experts)        \
    X(experts64_##T, experts)

/* Of quantised types, for devices with dot products of bytes and no matrix instructions. */
#define FG_GPU_BYTE_KERNELS(X, T) \
    X(gemmi16_##T, gemm)          \
    X(gemmi64_##T, gemm)

#define FG_GPU_EXPAND_KERNELS(X) \
    X(expand_Q4_0, expand)       \
    X(expand_Q4_1, expand)       \
    X(expand_Q5_0, expand)       \
    X(expand_Q5_1, expand)       \
    X(expand_Q8_0, expand)       \
    X(expand_Q2_K, expand)       \
    X(expand_Q3_K, expand)       \
    X(expand_Q4_K, expand)       \
    X(expand_Q5_K, expand)       \
    X(expand_Q6_K, expand)       \
    X(expand_IQ4_NL, expand)     \
    X(expand_IQ4_XS, expand)     \
    X(expand_MXFP4, expand)

#define FG_GPU_KV_KERNELS(X, T)      \
    X(rope_kv_##T, rope_kv)          \
    X(attention64_##T, attention)    \
    X(attention128_##T, attention)   \
    X(attention256_##T, attention)   \
    X(attention512_##T, attention)

#define FG_GPU_WIDE_KERNELS(X, T) \
    X(wide64_##T, attention)         \
    X(wide128_##T, attention)        \
    X(wide256_##T, attention)

/* Of NVIDIA's: `attention` of caches of halves and bytes in matrix fragments. */
#define FG_GPU_FEW_KERNELS(X, T) \
    X(few64_##T, attention)          \
    X(few128_##T, attention)         \
    X(few256_##T, attention)

/* Of Hopper's, as gemmwg. */
#define FG_GPU_WIDE_WG_KERNELS(X, T) \
    X(widewg64_##T, attention)       \
    X(widewg128_##T, attention)      \
    X(widewg256_##T, attention)

#define FG_GPU_KERNELS(X)           \
    FG_GPU_WEIGHT_KERNELS(X, F32)   \
    FG_GPU_WEIGHT_KERNELS(X, F16)   \
    FG_GPU_WEIGHT_KERNELS(X, Q4_0)  \
    FG_GPU_WEIGHT_KERNELS(X, Q4_1)  \
    FG_GPU_WEIGHT_KERNELS(X, Q5_0)  \
    FG_GPU_WEIGHT_KERNELS(X, Q5_1)  \
    FG_GPU_WEIGHT_KERNELS(X, Q8_0)  \
    FG_GPU_WEIGHT_KERNELS(X, Q2_K)  \
    FG_GPU_WEIGHT_KERNELS(X, Q3_K)  \
    FG_GPU_WEIGHT_KERNELS(X, Q4_K)  \
    FG_GPU_WEIGHT_KERNELS(X, Q5_K)  \
    FG_GPU_WEIGHT_KERNELS(X, Q6_K)  \
    FG_GPU_WEIGHT_KERNELS(X, IQ4_NL) \
    FG_GPU_WEIGHT_KERNELS(X, IQ4_XS) \
    FG_GPU_WEIGHT_KERNELS(X, BF16)  \
    FG_GPU_WEIGHT_KERNELS(X, MXFP4) \
    FG_GPU_KV_KERNELS(X, F16)       \
    FG_GPU_WIDE_KERNELS(X, F16)     \
    FG_GPU_KV_KERNELS(X, BF16)      \
    FG_GPU_WIDE_KERNELS(X, BF16)    \
    FG_GPU_KV_KERNELS(X, Q8_0)      \
    FG_GPU_WIDE_KERNELS(X, Q8_0)    \
    FG_GPU_KV_KERNELS(X, F32)       \
    X(combine, attention)           \
    X(norm, norm)                   \
    X(acts, acts)                   \
    X(finish, gemm)                 \
    X(act_mul, act_mul)             \
    X(act_rows, act_mul)            \
    X(gather, gather)               \
    X(feed, feed)                   \
    X(sample, sample)               \
    X(choose, sample)               \
    X(top, top)                     \
    X(pick, top)                    \
    X(copy, copy)                   \
    X(roof_mma, roof)               \
    X(roof_wg, roof)                \
    X(roof_dot2, roof)              \
    X(roof_dot4, roof)              \
    X(route, route)                 \
    X(sort, sort)                   \
    X(mix, mix)                     \
    X(state128, state)              \
    X(state256, state)              \
    X(state_out, state)             \
    FG_GPU_EXPERTS_KERNELS(X, F32)  \
    FG_GPU_EXPERTS_KERNELS(X, F16)  \
    FG_GPU_EXPERTS_KERNELS(X, Q4_0) \
    FG_GPU_EXPERTS_KERNELS(X, Q4_1) \
    FG_GPU_EXPERTS_KERNELS(X, Q5_0) \
    FG_GPU_EXPERTS_KERNELS(X, Q5_1) \
    FG_GPU_EXPERTS_KERNELS(X, Q8_0) \
    FG_GPU_EXPERTS_KERNELS(X, Q2_K) \
    FG_GPU_EXPERTS_KERNELS(X, Q3_K) \
    FG_GPU_EXPERTS_KERNELS(X, Q4_K) \
    FG_GPU_EXPERTS_KERNELS(X, Q5_K) \
    FG_GPU_EXPERTS_KERNELS(X, Q6_K) \
    FG_GPU_EXPERTS_KERNELS(X, IQ4_NL) \
    FG_GPU_EXPERTS_KERNELS(X, IQ4_XS) \
    FG_GPU_EXPERTS_KERNELS(X, BF16) \
    FG_GPU_EXPERTS_KERNELS(X, MXFP4) \
    FG_GPU_FEW_KERNELS(X, F16)      \
    FG_GPU_FEW_KERNELS(X, BF16)     \
    FG_GPU_FEW_KERNELS(X, Q8_0)     \
    FG_GPU_EXPAND_KERNELS(X)        \
    FG_GPU_BYTE_KERNELS(X, Q4_0)    \
    FG_GPU_BYTE_KERNELS(X, Q4_1)    \
    FG_GPU_BYTE_KERNELS(X, Q5_0)    \
    FG_GPU_BYTE_KERNELS(X, Q5_1)    \
    FG_GPU_BYTE_KERNELS(X, Q8_0)    \
    FG_GPU_BYTE_KERNELS(X, Q2_K)    \
    FG_GPU_BYTE_KERNELS(X, Q3_K)    \
    FG_GPU_BYTE_KERNELS(X, Q4_K)    \
    FG_GPU_BYTE_KERNELS(X, Q5_K)    \
    FG_GPU_BYTE_KERNELS(X, Q6_K)    \
    FG_GPU_BYTE_KERNELS(X, IQ4_NL)  \
    FG_GPU_BYTE_KERNELS(X, IQ4_XS)  \
    FG_GPU_BYTE_KERNELS(X, MXFP4)   \
    FG_GPU_WIDE_WG_KERNELS(X, F16)  \
    FG_GPU_WIDE_WG_KERNELS(X, BF16) \
    FG_GPU_WIDE_WG_KERNELS(X, Q8_0) \
    FG_GPU_SKINNY_KERNELS(X, F16) \
    FG_GPU_SKINNY_KERNELS(X, Q4_0) \
    FG_GPU_SKINNY_KERNELS(X, Q4_1) \
    FG_GPU_SKINNY_KERNELS(X, Q5_0) \
    FG_GPU_SKINNY_KERNELS(X, Q5_1) \
    FG_GPU_SKINNY_KERNELS(X, Q8_0) \
    FG_GPU_SKINNY_KERNELS(X, Q2_K) \
    FG_GPU_SKINNY_KERNELS(X, Q3_K) \
    FG_GPU_SKINNY_KERNELS(X, Q4_K) \
    FG_GPU_SKINNY_KERNELS(X, Q5_K) \
    FG_GPU_SKINNY_KERNELS(X, Q6_K) \
    FG_GPU_SKINNY_KERNELS(X, IQ4_NL) \
    FG_GPU_SKINNY_KERNELS(X, IQ4_XS) \
    FG_GPU_SKINNY_KERNELS(X, BF16) \
    FG_GPU_SKINNY_KERNELS(X, MXFP4)

typedef enum fg_gpu_kernel {
#define FG_GPU_ENUM(name, kind) FG_GPU_KERNEL_##name,
    FG_GPU_KERNELS(FG_GPU_ENUM)
#undef FG_GPU_ENUM
    FG_GPU_KERNEL_COUNT
} fg_gpu_kernel;

/* Kernels of a weight, in the order of FG_GPU_WEIGHT_KERNELS. */
enum { FG_GPU_EMBED, FG_GPU_GEMV1, FG_GPU_GEMV2, FG_GPU_GEMV4, FG_GPU_GEMV8, FG_GPU_GEMM16, FG_GPU_GEMM64, FG_GPU_GEMM128,
       FG_GPU_GEMMWG, FG_GPU_PER_WEIGHT };
enum { FG_GPU_WIDE64 = 5, FG_GPU_WIDE128, FG_GPU_WIDE256, FG_GPU_PER_KV };

/* The place of a type in FG_GPU_TYPES; -1: none of them. */
FG_GPU_FN int fg_gpu_type_index(int type) {
    int i = 0;
#define FG_GPU_FIND(name, id) \
    if (type == id) return i; \
    i++;
    FG_GPU_TYPES(FG_GPU_FIND)
#undef FG_GPU_FIND
    return -1;
}

FG_GPU_FN int fg_gpu_is_float(int type) { return type == FG_GPU_F32 || type == FG_GPU_F16 || type == FG_GPU_BF16; }

/* The kernel `which` (FG_GPU_EMBED and so on) of a weight of a type. */
FG_GPU_FN int fg_gpu_weight_kernel(int type, int which) { return fg_gpu_type_index(type) * FG_GPU_PER_WEIGHT + which; }

/* experts1 (rows 1), experts16 or experts64 of a type. */
FG_GPU_FN int fg_gpu_experts_kernel(int type, int rows) {
    return FG_GPU_KERNEL_experts1_F32 + 3 * fg_gpu_type_index(type) + (rows > 1) + (rows > 16);
}

/* Rows of the tiles that serve a pass of up to `rows` tokens; 1: each pair by itself. An expert that pairs share is read again for each of them then,
   from the cache: few do where there are more experts than pairs. With `invariant` a row's bits must not depend on how many there are. */
FG_GPU_FN int fg_gpu_experts_rows(int rows, int n_used, int n_expert, int invariant) {
    if (!invariant && (rows == 1 || (rows <= 8 && rows * n_used <= n_expert))) return 1;
    return (int64_t)rows * n_used <= (int64_t)24 * n_expert ? 16 : 64;
}

/* The most tiles of a pass: one that is not full of each expert that there are pairs for. */
FG_GPU_FN int32_t fg_gpu_experts_tiles(int32_t pairs, int32_t n_expert, int32_t rows) { return (pairs < n_expert ? pairs : n_expert) + pairs / rows; }

/* Floats of a head's state. */
FG_GPU_FN int32_t fg_gpu_state_floats(int32_t head_dim, int32_t taps) { return (head_dim + 3 * (taps - 1)) * head_dim; }

/* gemmi of a type for up to 16 rows or 64 at a time; -1: of a float type. */
FG_GPU_FN int fg_gpu_byte_kernel(int type, int rows) {
    int index = fg_gpu_type_index(type);
    if (type == FG_GPU_F32 || type == FG_GPU_F16 || type == FG_GPU_BF16 || index < 0) return -1;
    index -= type == FG_GPU_MXFP4 ? 3 : 2; /* the float types before */
    return FG_GPU_KERNEL_gemmi16_Q4_0 + 2 * index + (rows > 16);
}

/* Weights are whole numbers times scales, less minima, of up to 8 bits. */
FG_GPU_FN int fg_gpu_has_numbers(int type) {
    return !fg_gpu_is_float(type) && type != FG_GPU_IQ4_NL && type != FG_GPU_IQ4_XS && type != FG_GPU_MXFP4;
}

/* skinny of a type for up to `rows` rows; -1: gemv or gemm does that. One row of a float type is all bytes, and gemv1 reads src itself; of
   quantised weights 65 to 128 rows are two times 64: on an H200 twice what 64 take is 0.5 to 1.4 times what gemmwg takes for 128. */
FG_GPU_FN int fg_gpu_skinny_kernel(int type, int rows) {
    int index = fg_gpu_type_index(type) - 1;
    if (index < 0 || rows > (fg_gpu_is_float(type) ? 64 : 128) || (rows <= 1 && fg_gpu_is_float(type))) return -1;
    return FG_GPU_KERNEL_skinny8_F16 + 4 * index + (rows > 8) + (rows > 16) + (rows > 32);
}

/* Of kernel `kernel`, a skinny: rows of activations, and strips of 16 rows of the weight of each of its eight warps. */
FG_GPU_FN int fg_gpu_skinny_cols(int kernel) { return 8 << (kernel - FG_GPU_KERNEL_skinny8_F16) % 4; }
FG_GPU_FN int fg_gpu_skinny_strips(int cols) { return cols == 64 ? 2 : 1; }

/* How many warps of a workgroup of it are side by side, for a weight of n by k; the others share k. Whatever they do, to begin and to end
   takes a warp as long as some 6 steps of 128 of k, and 264 workgroups (of 64 rows 132) run at once on the largest devices. Where there
   are fewer it is the same, so that bits do not depend on the device. */
FG_GPU_FN int fg_gpu_skinny_across(int32_t n, int32_t k, int cols) {
    int32_t strips = (n + 15) / 16 / fg_gpu_skinny_strips(cols), steps = (k + 127) / 128, best = 0, across, found = 1;
    for (across = 1; across <= 8; across *= 2) {
        int32_t blocks = (strips + across - 1) / across, at_once = cols == 64 ? 132 : 264;
        int32_t cost = (blocks + at_once - 1) / at_once * (6 + (steps * across + 7) / 8);
        if (across > 1 && cost >= best) continue;
        best = cost;
        found = across;
    }
    return found;
}

/* Into how many parts of k product `which` of n by k is divided, where its tiles alone are too few for a large device. Split s leaves its sums in rows
   max_rows * s and on of dst, and finish adds them up. A part is at least four steps of 64. */
FG_GPU_FN int fg_gpu_gemm_splits(int which, int32_t n, int32_t k, int32_t rows) {
    int32_t tall = which == FG_GPU_GEMM128 ? 128 : 64, wide = which == FG_GPU_GEMM16 ? 16 : tall, splits = 1;
    int64_t groups = (int64_t)((n + tall - 1) / tall) * ((rows + wide - 1) / wide);
    while (groups * splits * 2 <= 384 && k / 64 >= 8 * splits) splits *= 2;
    return splits;
}

/* Those of a launch; 1: the product is whole. */
FG_GPU_FN int fg_gpu_splits(const fg_gpu_gemm_args *a) { return a->splits > 1 ? a->splits : 1; }

/* expand of a type; -1: there is none, of a float type. */
FG_GPU_FN int fg_gpu_expand_kernel(int type) {
    int gemmi = fg_gpu_byte_kernel(type, 64);
    return gemmi < 0 ? -1 : FG_GPU_KERNEL_expand_Q4_0 + (gemmi - FG_GPU_KERNEL_gemmi16_Q4_0) / 2;
}

/* Which product serves a pass of up to `rows` rows where skinny does not. gemv reads src, gemm reads acts. With `invariant` a row's bits
   do not depend on how many there are: one kind of product serves all. In place of gemm128 there may be gemmwg, by products of warpgroups
   (Hopper), which add up in an order of their own. */
FG_GPU_FN int fg_gpu_product_for(int rows, int invariant) {
    if (rows <= 8 && !invariant)
        return rows <= 1 ? FG_GPU_GEMV1 : rows <= 2 ? FG_GPU_GEMV2 : rows <= 4 ? FG_GPU_GEMV4 : FG_GPU_GEMV8;
    return rows <= 16 ? FG_GPU_GEMM16 : rows <= 64 ? FG_GPU_GEMM64 : FG_GPU_GEMM128;
}

/* rope_kv (head_dim 0) or attention of a KV type; -1: there is none. */
FG_GPU_FN int fg_gpu_kv_kernel(int kv_type, int head_dim) {
    int index = kv_type == FG_GPU_F16 ? 0 : kv_type == FG_GPU_BF16 ? 1 : kv_type == FG_GPU_Q8_0 ? 2 : kv_type == FG_GPU_F32 ? 3 : -1;
    int which = head_dim == 0 ? 0 : head_dim <= 64 ? 1 : head_dim <= 128 ? 2 : head_dim <= 256 ? 3 : 4;
    if (index < 0 || head_dim > FG_GPU_MAX_HEAD_DIM) return -1;
    return FG_GPU_KERNEL_rope_kv_F16 + index * FG_GPU_PER_KV + which;
}

/* few of a KV type, which does the work of attention on NVIDIA's devices, in halves; -1: there is none. */
FG_GPU_FN int fg_gpu_few_kernel(int kv_type, int head_dim) {
    int index = kv_type == FG_GPU_F16 ? 0 : kv_type == FG_GPU_BF16 ? 1 : kv_type == FG_GPU_Q8_0 ? 2 : -1;
    if (index < 0 || head_dim > 256) return -1; /* a cache of floats is for exact sums */
    return FG_GPU_KERNEL_few64_F16 + 3 * index + (head_dim > 64) + (head_dim > 128);
}

/* wide attention of a KV type, for many queries of a sequence; -1: there is none, `attention` serves all. A pass that uses both
   lists the sequences with few queries by fg_gpu_attn_add first, then those with many; `combine` takes the merges of all. Bits
   of the two differ: where they must not depend on the batch, use one of them alone. */
FG_GPU_FN int fg_gpu_wide_kernel(int kv_type, int head_dim) {
    int base = fg_gpu_kv_kernel(kv_type, 0);
    if (base < 0 || head_dim > 256 || kv_type == FG_GPU_F32) return -1; /* a cache of floats is for exact sums, halves have 11 bits */
    return base + (head_dim <= 64 ? FG_GPU_WIDE64 : head_dim <= 128 ? FG_GPU_WIDE128 : FG_GPU_WIDE256);
}

/* widewg of a KV type, which does the work of wide on Hopper, in an order of its own; -1: there is none. */
FG_GPU_FN int fg_gpu_wide_wg_kernel(int kv_type, int head_dim) {
    int index = kv_type == FG_GPU_F16 ? 0 : kv_type == FG_GPU_BF16 ? 1 : kv_type == FG_GPU_Q8_0 ? 2 : -1;
    if (index < 0 || head_dim > 256) return -1;
    return FG_GPU_KERNEL_widewg64_F16 + 3 * index + (head_dim > 64) + (head_dim > 128);
}

/* Queries that a workgroup of a kernel for many has, and the positions at whose multiples its items are cut. */
FG_GPU_FN int32_t fg_gpu_wide_rows(int kernel) {
    if (kernel >= FG_GPU_KERNEL_widewg64_F16) return FG_GPU_WG_ROWS;
    return (kernel - FG_GPU_KERNEL_rope_kv_F16) % FG_GPU_PER_KV == FG_GPU_WIDE256 ? FG_GPU_WIDE256_ROWS : FG_GPU_WIDE_ROWS;
}
FG_GPU_FN int32_t fg_gpu_wide_split(int kernel) { return kernel >= FG_GPU_KERNEL_widewg64_F16 ? FG_GPU_WG_SPLIT : FG_GPU_SPLIT; }

/* ---- Launches. ---- */

typedef struct fg_gpu_shape {
    uint32_t grid_x, grid_y, block; /* workgroups; threads of one. The third dimension is 1 */
    uint32_t shared_bytes;          /* beyond what kernels declare: of gemmwg, widewg and roof_wg */
} fg_gpu_shape;

enum {
    FG_GPU_THREADS = 128,      /* of a workgroup, of all kernels but these: */
    FG_GPU_GEMV_THREADS = 256, /* gemv, experts1, skinny, gemm128, gemmwg, widewg, sample, choose, top, pick, state128, state256, roof */
    FG_GPU_MERGE_TOKENS = 4,   /* tokens of a workgroup of combine, which has one head, one after the other */
    FG_GPU_ROW_THREADS = 512,  /* norm, acts, act_rows, sort */
    FG_GPU_GEMV_ROWS = 16,     /* rows of the weight of a workgroup of gemv */
    FG_GPU_GEMM_ROWS = 64,     /* of gemm16, gemm64, experts16, experts64 and gemmi */
    FG_GPU_BIG_ROWS = 128,     /* of gemm128, and rows of src */
    FG_GPU_EXPAND_ROWS = 4,    /* of the weight, of a thread of expand */
    FG_GPU_FINISH_ROWS = 4,    /* of src, of a thread of finish */
    FG_GPU_WG_K = 64,          /* of k that a warpgroup of gemmwg multiplies in one step */
    FG_GPU_WG_BYTES = 224 << 10, /* of its shared memory, which no other workgroup has then */
    FG_GPU_WG_PROCESSORS = 132, /* of a Hopper */
    FG_GPU_WG_COLUMNS = 8,     /* tiles of rows of src that read a row of the weight at about the same time */
    FG_GPU_ROOF_ROUNDS = 16384, /* of a kernel that fg_measure_roofs times */
    FG_GPU_ROOF_WG_BYTES = 320 * 128 /* shared memory of roof_wg: 64 and 256 rows of 64 halves */
};

/* Ways of gemmwg: tiles of 128 rows of the weight by 256 or 128 of src; of 64 by 128 whose k the two warpgroups share. */
enum { FG_GPU_WG_256 = 1, FG_GPU_WG_128, FG_GPU_WG_HALVES, FG_GPU_WG_WAYS = FG_GPU_WG_HALVES };

/* Of widewg for heads of `dim`: positions in one stage, and bytes of its shared memory for each dimension, of the queries and of K and V
   of two stages. */
FG_GPU_FN int fg_gpu_wg_positions(int dim) { return dim <= 128 ? 128 : 64; }
FG_GPU_FN int fg_gpu_wg_row_bytes(int dim) { return 2 * (FG_GPU_WG_ROWS + 4 * fg_gpu_wg_positions(dim)); }

/* The size of heads that kernel `kernel`, a widewg, is for. */
FG_GPU_FN int fg_gpu_wg_dim(int kernel) { return 64 << (kernel - FG_GPU_KERNEL_widewg64_F16) % 3; }

FG_GPU_FN int32_t fg_gpu_ceil(int32_t a, int32_t b) { return a / b + (a % b != 0); }

FG_GPU_FN int fg_gpu_wg_lines(int way) { return way == FG_GPU_WG_HALVES ? 64 : 128; } /* rows of the weight of a tile, */
FG_GPU_FN int fg_gpu_wg_cols(int way) { return way == FG_GPU_WG_256 ? 256 : 128; }     /* and of src */

/* The way that should take the shortest time: turns of all processors, by what one costs. It depends on the sizes of the weight and the
   most rows of a pass alone. */
FG_GPU_FN int fg_gpu_wg_way(const fg_gpu_gemm_args *a) {
    int32_t least = 0x7FFFFFFF;
    int way, best = a->way;
    if (best) return best;
    for (way = FG_GPU_WG_256; way <= FG_GPU_WG_WAYS; way++) {
        int32_t tiles = fg_gpu_ceil(a->n, fg_gpu_wg_lines(way)) * fg_gpu_ceil(a->max_rows, fg_gpu_wg_cols(way));
        int32_t cost = fg_gpu_ceil(tiles, FG_GPU_WG_PROCESSORS) * (way == FG_GPU_WG_256 ? 32 : way == FG_GPU_WG_128 ? 18 : 11);
        if (cost < least) least = cost, best = way;
    }
    return best;
}

FG_GPU_FN int32_t fg_gpu_sample_pieces(int32_t n) { return fg_gpu_ceil(n, FG_GPU_SAMPLE_PIECE); }

/* Groups of at most FG_GPU_ATTN_ROWS query heads that share a KV head. */
FG_GPU_FN int32_t fg_gpu_head_groups(int32_t n_head, int32_t n_kv_head) { return fg_gpu_ceil(n_head / n_kv_head, FG_GPU_ATTN_ROWS); }

FG_GPU_FN fg_gpu_shape fg_gpu_shape_make(int32_t x, int32_t y, int32_t block) {
    fg_gpu_shape shape;
    shape.grid_x = (uint32_t)x;
    shape.grid_y = (uint32_t)y;
    shape.block = (uint32_t)block;
    shape.shared_bytes = 0;
    return shape;
}

/* Shared memory of a kernel beyond what it declares. */
FG_GPU_FN uint32_t fg_gpu_more_bytes(int kernel) {
    if (kernel >= FG_GPU_KERNEL_skinny8_F16) return 0u;
    if (kernel >= FG_GPU_KERNEL_widewg64_F16) return (uint32_t)(fg_gpu_wg_row_bytes(fg_gpu_wg_dim(kernel)) * fg_gpu_wg_dim(kernel));
    if (kernel == FG_GPU_KERNEL_roof_wg) return (uint32_t)FG_GPU_ROOF_WG_BYTES;
    return kernel < FG_GPU_KERNEL_rope_kv_F16 && kernel % FG_GPU_PER_WEIGHT == FG_GPU_GEMMWG ? (uint32_t)FG_GPU_WG_BYTES : 0u;
}

/* How kernel `kernel` is launched with these arguments. No dimension of the grid may be 0: launch nothing then. */
FG_GPU_FN fg_gpu_shape fg_gpu_shape_of(int kernel, const void *args) {
    if (kernel >= FG_GPU_KERNEL_skinny8_F16) {
        const fg_gpu_gemm_args *a = (const fg_gpu_gemm_args *)args;
        int cols = fg_gpu_skinny_cols(kernel), rows = 16 * fg_gpu_skinny_strips(cols) * a->across;
        return fg_gpu_shape_make(fg_gpu_ceil(a->n, rows), fg_gpu_ceil(a->max_rows, cols), FG_GPU_GEMV_THREADS);
    }
    if (kernel >= FG_GPU_KERNEL_widewg64_F16) {
        const fg_gpu_attention_args *a = (const fg_gpu_attention_args *)args;
        fg_gpu_shape shape = fg_gpu_shape_make(a->max_items, a->kv.n_kv_head * fg_gpu_ceil(a->kv.n_head / a->kv.n_kv_head, FG_GPU_WG_ROWS),
                                               FG_GPU_GEMV_THREADS);
        shape.shared_bytes = fg_gpu_more_bytes(kernel);
        return shape;
    }
    if (kernel >= FG_GPU_KERNEL_gemmi16_Q4_0) {
        const fg_gpu_gemm_args *a = (const fg_gpu_gemm_args *)args;
        int cols = (kernel - FG_GPU_KERNEL_gemmi16_Q4_0) % 2 ? 64 : 16;
        return fg_gpu_shape_make(fg_gpu_ceil(a->n, FG_GPU_GEMM_ROWS), fg_gpu_ceil(a->max_rows, cols) * fg_gpu_splits(a), FG_GPU_THREADS);
    }
    if (kernel >= FG_GPU_KERNEL_expand_Q4_0) {
        const fg_gpu_expand_args *a = (const fg_gpu_expand_args *)args;
        return fg_gpu_shape_make(fg_gpu_ceil(a->n, FG_GPU_EXPAND_ROWS), fg_gpu_ceil(a->k, 8 * FG_GPU_THREADS), FG_GPU_THREADS);
    }
    if (kernel < FG_GPU_KERNEL_rope_kv_F16) {
        const fg_gpu_gemm_args *a = (const fg_gpu_gemm_args *)args;
        int which = kernel % FG_GPU_PER_WEIGHT;
        if (which == FG_GPU_EMBED) {
            const fg_gpu_embed_args *e = (const fg_gpu_embed_args *)args;
            return fg_gpu_shape_make(fg_gpu_ceil(e->n, 32 * FG_GPU_THREADS), e->max_rows, FG_GPU_THREADS);
        }
        if (which <= FG_GPU_GEMV8)
            return fg_gpu_shape_make(fg_gpu_ceil(a->n, FG_GPU_GEMV_ROWS), fg_gpu_ceil(a->max_rows, 1 << (which - FG_GPU_GEMV1)),
                                     FG_GPU_GEMV_THREADS);
        if (which == FG_GPU_GEMMWG) {
            int way = fg_gpu_wg_way(a);
            fg_gpu_shape shape = fg_gpu_shape_make(fg_gpu_ceil(a->max_rows, fg_gpu_wg_cols(way)),
                                                   fg_gpu_ceil(a->n, fg_gpu_wg_lines(way)), FG_GPU_GEMV_THREADS);
            shape.shared_bytes = fg_gpu_more_bytes(kernel);
            return shape;
        }
        if (which == FG_GPU_GEMM128)
            return fg_gpu_shape_make(fg_gpu_ceil(a->n, FG_GPU_BIG_ROWS), fg_gpu_ceil(a->max_rows, FG_GPU_BIG_ROWS) * fg_gpu_splits(a),
                                     FG_GPU_GEMV_THREADS);
        return fg_gpu_shape_make(fg_gpu_ceil(a->n, FG_GPU_GEMM_ROWS), fg_gpu_ceil(a->max_rows, which == FG_GPU_GEMM16 ? 16 : 64) * fg_gpu_splits(a),
                                 FG_GPU_THREADS);
    }
    if (kernel < FG_GPU_KERNEL_combine && (kernel - FG_GPU_KERNEL_rope_kv_F16) % FG_GPU_PER_KV == 0) {
        const fg_gpu_rope_kv_args *a = (const fg_gpu_rope_kv_args *)args;
        return fg_gpu_shape_make(fg_gpu_ceil(a->kv.n_head + 2 * a->kv.n_kv_head, FG_GPU_THREADS / 32), a->max_rows, FG_GPU_THREADS);
    }
    if (kernel <= FG_GPU_KERNEL_combine) {
        const fg_gpu_attention_args *a = (const fg_gpu_attention_args *)args;
        int heads = a->kv.n_kv_head * fg_gpu_head_groups(a->kv.n_head, a->kv.n_kv_head);
        if (kernel < FG_GPU_KERNEL_combine && (kernel - FG_GPU_KERNEL_rope_kv_F16) % FG_GPU_PER_KV >= FG_GPU_WIDE64)
            heads = a->kv.n_kv_head * fg_gpu_ceil(a->kv.n_head / a->kv.n_kv_head, fg_gpu_wide_rows(kernel));
        if (kernel == FG_GPU_KERNEL_combine)
            return fg_gpu_shape_make(a->max_merges, a->kv.n_head * fg_gpu_ceil(a->merge_tokens, FG_GPU_MERGE_TOKENS), FG_GPU_THREADS);
        return fg_gpu_shape_make(a->max_items, heads, FG_GPU_THREADS);
    }
    if (kernel >= FG_GPU_KERNEL_few64_F16 && kernel <= FG_GPU_KERNEL_few256_Q8_0) {
        const fg_gpu_attention_args *a = (const fg_gpu_attention_args *)args;
        return fg_gpu_shape_make(a->max_items, a->kv.n_kv_head * fg_gpu_head_groups(a->kv.n_head, a->kv.n_kv_head), FG_GPU_THREADS);
    }
    if (kernel >= FG_GPU_KERNEL_experts1_F32 && kernel <= FG_GPU_KERNEL_experts64_MXFP4) {
        const fg_gpu_experts_args *e = (const fg_gpu_experts_args *)args;
        int both = e->weight2 ? 2 : 1;
        if ((kernel - FG_GPU_KERNEL_experts1_F32) % 3 == 0)
            return fg_gpu_shape_make(both * fg_gpu_ceil(e->gemm.n, FG_GPU_GEMV_ROWS), e->gemm.max_rows * e->n_used, FG_GPU_GEMV_THREADS);
        return fg_gpu_shape_make(both * fg_gpu_ceil(e->gemm.n, FG_GPU_GEMM_ROWS) * e->max_tiles, 1, FG_GPU_THREADS);
    }
    if (kernel == FG_GPU_KERNEL_route)
        return fg_gpu_shape_make(fg_gpu_ceil(((const fg_gpu_route_args *)args)->max_rows, FG_GPU_THREADS / 32), 1, FG_GPU_THREADS);
    if (kernel == FG_GPU_KERNEL_sort) return fg_gpu_shape_make(1, 1, FG_GPU_ROW_THREADS);
    if (kernel == FG_GPU_KERNEL_mix) {
        const fg_gpu_mix_args *a = (const fg_gpu_mix_args *)args;
        return fg_gpu_shape_make(fg_gpu_ceil(a->n, 4 * FG_GPU_THREADS), a->max_rows, FG_GPU_THREADS);
    }
    if (kernel >= FG_GPU_KERNEL_state128 && kernel <= FG_GPU_KERNEL_state_out) {
        const fg_gpu_state_args *a = (const fg_gpu_state_args *)args;
        if (kernel == FG_GPU_KERNEL_state_out)
            return fg_gpu_shape_make(fg_gpu_ceil((a->max_rows + a->max_seqs) * a->n_head, FG_GPU_THREADS / 32), 1, FG_GPU_THREADS);
        return fg_gpu_shape_make(a->n_head * fg_gpu_ceil(a->head_dim, FG_GPU_STATE_COLUMNS), a->max_seqs, FG_GPU_GEMV_THREADS);
    }
    if (kernel >= FG_GPU_KERNEL_roof_mma && kernel <= FG_GPU_KERNEL_roof_dot4) {
        fg_gpu_shape shape = fg_gpu_shape_make(((const fg_gpu_roof_args *)args)->groups, 1, FG_GPU_GEMV_THREADS);
        shape.shared_bytes = fg_gpu_more_bytes(kernel);
        return shape;
    }
    if (kernel == FG_GPU_KERNEL_norm)
        return fg_gpu_shape_make(1, ((const fg_gpu_norm_args *)args)->max_rows, FG_GPU_ROW_THREADS);
    if (kernel == FG_GPU_KERNEL_acts)
        return fg_gpu_shape_make(((const fg_gpu_acts_args *)args)->max_rows, 1, FG_GPU_ROW_THREADS);
    if (kernel == FG_GPU_KERNEL_finish) {
        const fg_gpu_gemm_args *a = (const fg_gpu_gemm_args *)args;
        return fg_gpu_shape_make(fg_gpu_ceil(a->n, 4 * FG_GPU_THREADS), fg_gpu_ceil(a->max_rows, FG_GPU_FINISH_ROWS), FG_GPU_THREADS);
    }
    if (kernel == FG_GPU_KERNEL_act_rows)
        return fg_gpu_shape_make(((const fg_gpu_act_mul_args *)args)->max_rows, 1, FG_GPU_ROW_THREADS);
    if (kernel == FG_GPU_KERNEL_act_mul) {
        const fg_gpu_act_mul_args *a = (const fg_gpu_act_mul_args *)args;
        return fg_gpu_shape_make(fg_gpu_ceil(a->n, 4 * FG_GPU_THREADS), a->max_rows, FG_GPU_THREADS);
    }
    if (kernel == FG_GPU_KERNEL_gather) {
        const fg_gpu_gather_args *a = (const fg_gpu_gather_args *)args;
        return fg_gpu_shape_make(fg_gpu_ceil(a->n, FG_GPU_THREADS), a->max_rows, FG_GPU_THREADS);
    }
    if (kernel == FG_GPU_KERNEL_feed)
        return fg_gpu_shape_make(fg_gpu_ceil(((const fg_gpu_feed_args *)args)->max_rows, FG_GPU_THREADS), 1, FG_GPU_THREADS);
    if (kernel == FG_GPU_KERNEL_copy)
        return fg_gpu_shape_make((int32_t)((((const fg_gpu_copy_args *)args)->block_bytes / 16 + FG_GPU_THREADS - 1) / FG_GPU_THREADS), 1,
                                 FG_GPU_THREADS);
    if (kernel == FG_GPU_KERNEL_top || kernel == FG_GPU_KERNEL_pick) {
        const fg_gpu_top_args *a = (const fg_gpu_top_args *)args;
        return fg_gpu_shape_make(kernel == FG_GPU_KERNEL_top ? a->pieces : 1, a->max_rows, FG_GPU_GEMV_THREADS);
    }
    {
        const fg_gpu_sample_args *a = (const fg_gpu_sample_args *)args;
        return fg_gpu_shape_make(kernel == FG_GPU_KERNEL_sample ? a->pieces : 1, a->max_rows, FG_GPU_GEMV_THREADS);
    }
}

/* ---- Operands of products of warpgroups: rows of 64 halves, 128 bytes each, one behind the other from a multiple of 1024 bytes
   on. Within a row its eight pieces of 16 bytes stand in another order, piece c of row r at place c ^ (r % 8). ---- */

/* The descriptor of an operand whose first row begins at address `at` of shared memory; 32 bytes on are its next 16 columns. Start
   and distances without their low four bits: bits 0 to 13 the start, 16 to 29 unused with these operands, 32 to 45 the distance of
   groups of 8 rows; 62 and 63: rows of 128 bytes whose pieces are ordered as above. */
FG_GPU_FN uint64_t fg_gpu_wg_operand(uint32_t at) {
    return (uint64_t)(at >> 4 & 0x3FFFu) | (uint64_t)1 << 16 | (uint64_t)(8 * 128 >> 4) << 32 | (uint64_t)1 << 62;
}

/* The descriptor of an operand whose columns are multiplied: its first row begins at `at`, rows of 64 columns each, and `apart` bytes
   on are the next 64 columns of them; 16 rows on are the next 16. Bits 16 to 29: that distance. */
FG_GPU_FN uint64_t fg_gpu_wg_columns(uint32_t at, uint32_t apart) {
    return (uint64_t)(at >> 4 & 0x3FFFu) | (uint64_t)(apart >> 4 & 0x3FFFu) << 16 | (uint64_t)(8 * 128 >> 4) << 32 | (uint64_t)1 << 62;
}

/* ---- Products whose rate fg_measure_roofs takes. ---- */

/* Number k of a row of the left operand or the right one: a whole one from -3 to 3. Their signs change from one to the next, because a device spends
   less power on equal ones, and can be faster then. */
FG_GPU_FN int32_t fg_gpu_roof_number(int right, int row, int k) {
    uint32_t x = (uint32_t)(row * 64 + k + 1) * (right ? 0x9E3779B1u : 0x85EBCA77u);
    x = (x ^ x >> 15) * 0x2C1B3C6Du;
    return (int32_t)((x ^ x >> 12) % 7u) - 3;
}

/* What a workgroup does in a round: rows of the left operand by rows of the right, `depth` numbers of each, so many times. warp: the lanes of a
   hardware warp. Sums stay below 2^24 for FG_GPU_ROOF_ROUNDS, so that floats have all of them. */
typedef struct fg_gpu_roof_work {
    int32_t rows, cols, depth, times;
} fg_gpu_roof_work;

FG_GPU_FN fg_gpu_roof_work fg_gpu_roof_work_of(int kernel, int warp) {
    fg_gpu_roof_work mma = {16, 64, 16, 0}, wg = {64, 256, 64, 16}, dot2 = {8, 32, 4, FG_GPU_GEMV_THREADS / 32}, dot4 = dot2;
    mma.times = FG_GPU_GEMV_THREADS / warp;
    dot4.depth = 8;
    return kernel == FG_GPU_KERNEL_roof_mma ? mma : kernel == FG_GPU_KERNEL_roof_wg ? wg : kernel == FG_GPU_KERNEL_roof_dot2 ? dot2 : dot4;
}

/* Multiplications and additions. */
FG_GPU_FN double fg_gpu_roof_ops(const fg_gpu_roof_work *w) { return 2.0 * w->rows * w->cols * w->depth * w->times; }

/* What the sums of all threads of a workgroup add up to after a round. */
FG_GPU_FN uint32_t fg_gpu_roof_sum(const fg_gpu_roof_work *w) {
    int32_t sum = 0, k, i;
    for (k = 0; k < w->depth; k++) {
        int32_t left = 0, right = 0;
        for (i = 0; i < w->rows; i++) left += fg_gpu_roof_number(0, i, k);
        for (i = 0; i < w->cols; i++) right += fg_gpu_roof_number(1, i, k);
        sum += left * right;
    }
    return (uint32_t)(sum * w->times);
}

/* ---- The KV cache. ---- */

FG_GPU_FN int32_t fg_gpu_kv_scales(int type, int32_t head_dim) { return type == FG_GPU_Q8_0 ? (head_dim + 31) / 32 : 0; }

/* Bytes of the values of one head of one token, a multiple of 16. Q8_0: bytes; its scales are half floats, one for 32. */
FG_GPU_FN int32_t fg_gpu_kv_row_bytes(int type, int32_t head_dim) {
    int32_t bytes = head_dim * (type == FG_GPU_F32 ? 4 : type == FG_GPU_Q8_0 ? 1 : 2);
    return (bytes + 15) / 16 * 16;
}

/* Bytes of one head in a block: the rows of its tokens, then their scales [block_tokens][fg_gpu_kv_scales]. */
FG_GPU_FN int64_t fg_gpu_kv_head_bytes(int type, int32_t head_dim, int32_t block_tokens) {
    int64_t bytes = (int64_t)block_tokens * (fg_gpu_kv_row_bytes(type, head_dim) + 2 * fg_gpu_kv_scales(type, head_dim));
    return (bytes + 15) / 16 * 16;
}

/* Bytes of K, or of V, of one layer in a block. A block may hold all layers, one behind the other: block_stride says. */
FG_GPU_FN int64_t fg_gpu_kv_block_bytes(int type, int32_t head_dim, int32_t n_kv_head, int32_t block_tokens) {
    return fg_gpu_kv_head_bytes(type, head_dim, block_tokens) * n_kv_head;
}

/* ---- Attention of a pass. ---- */

typedef struct fg_gpu_attn_counts {
    int32_t items, merges, partials; /* partials: rows */
} fg_gpu_attn_counts;

FG_GPU_FN int32_t fg_gpu_attn_tokens(int32_t heads) { return heads >= FG_GPU_ATTN_ROWS ? 1 : FG_GPU_ATTN_ROWS / heads; }

/* The most that a pass of `tokens` tokens in `seqs` sequences of up to `context` positions can need, where those with up to `high`
   tokens count. heads: of a KV head. */
FG_GPU_FN fg_gpu_attn_counts fg_gpu_attn_most(int32_t tokens, int32_t seqs, int32_t context, int32_t heads, int32_t split, int32_t high) {
    fg_gpu_attn_counts most;
    int32_t splits = context / split + 2, tile = fg_gpu_attn_tokens(heads), tiles;
    if (high < tokens && (int64_t)seqs * high < tokens) tokens = seqs * high;
    tiles = fg_gpu_ceil(tokens, tile) + seqs;
    most.merges = tiles < tokens ? tiles : tokens;
    most.items = most.merges * splits;
    most.partials = tokens * heads * splits;
    return most;
}

/* Lists the pieces of attention of the sequences that have from `low` to `high` queries in this pass, for a kernel that has `rows`
   queries in a workgroup and contexts cut at multiples of `split`, behind what *n counts already. cu_q, kv_len as in fg_batch; window
   0: none. With items NULL it only counts. Pieces depend on a token's position alone, so a query's sums are the same in every batch. */
FG_GPU_FN void fg_gpu_attn_add(int32_t n_seqs, const int32_t *cu_q, const int32_t *kv_len, int32_t heads,
                               int32_t window, int32_t rows, int32_t split,
                               int32_t low, int32_t high, fg_gpu_attn_counts *n, fg_gpu_attn_item *items, fg_gpu_attn_merge *merges) {
    int32_t s, t, tile = heads >= rows ? 1 : rows / heads;
    for (s = 0; s < n_seqs; s++) {
        if (cu_q[s + 1] - cu_q[s] < low || cu_q[s + 1] - cu_q[s] > high) continue;
        for (t = cu_q[s]; t < cu_q[s + 1]; t += tile) {
            int32_t m = cu_q[s + 1] - t < tile ? cu_q[s + 1] - t : tile, position = kv_len[s] - (cu_q[s + 1] - t);
            int32_t seen = window > 0 && position >= window ? position - window + 1 : 0, end = position + m, from;
            int32_t first = seen / split, splits = (end - 1) / split - first + 1;
            if (items && splits > 1) {
                merges[n->merges].token = t;
                merges[n->merges].n_tokens = m;
                merges[n->merges].partial = n->partials;
                merges[n->merges].n_splits = splits;
                merges[n->merges].first = first;
            }
            n->merges += splits > 1;
            for (from = first; from < first + splits; from++, n->items++) {
                if (items) {
                    fg_gpu_attn_item *item = &items[n->items];
                    item->seq = s;
                    item->token = t;
                    item->n_tokens = m;
                    item->position = position;
                    item->start = from * split;
                    item->end = from + 1 < first + splits ? (from + 1) * split : end;
                    item->partial = splits > 1 ? n->partials : -1;
                    item->unused = 0;
                }
                if (splits > 1) n->partials += m * heads;
            }
        }
    }
}

/* All sequences, for `attention`. */
FG_GPU_FN fg_gpu_attn_counts fg_gpu_attn_plan(int32_t n_seqs, const int32_t *cu_q, const int32_t *kv_len, int32_t heads,
                                              int32_t window, fg_gpu_attn_item *items, fg_gpu_attn_merge *merges) {
    fg_gpu_attn_counts n = {0, 0, 0};
    fg_gpu_attn_add(n_seqs, cu_q, kv_len, heads, window, FG_GPU_ATTN_ROWS, FG_GPU_SPLIT, 1, 0x7FFFFFFF, &n, items, merges);
    return n;
}

/* ---- Weights. ----

   A row is whole units of 32 weights (floats are padded with zeros); a weight has lo bits and, of some types, hi bits more.
   A row has up to four planes, each a multiple of 16 bytes:
     lo   units of 4 * lo bytes (F32 128, F16 and BF16 64)
     hi   units of 4 * hi bytes
     s    the scales of each unit: half d (Q4_0, Q5_0, Q8_0, IQ4_NL); half d, half m (Q4_1, Q5_1); byte e (MXFP4); of the types
          with blocks of 256 two bytes: scale and minimum (Q4_K, Q5_K), one for each half of the unit (Q2_K: minimum in the high
          half of the byte; Q3_K, Q6_K: int8), int8 and nothing (IQ4_XS)
     d    half d, half dmin (or 0) of 8 units
   Bits lie in pairs: of a field of b bits a word holds 32/b weights, weight 2j in the bits from b*j on, weight 2j+1 16 bits higher,
   so that one shift and mask gives two neighbours in the halves of a word. Q8_0 has q + 128 there. */

FG_GPU_FN int fg_gpu_lo_bits(int type) {
    return type == FG_GPU_F32 ? 32 : type == FG_GPU_F16 || type == FG_GPU_BF16 ? 16 : type == FG_GPU_Q8_0 ? 8
         : type == FG_GPU_Q2_K || type == FG_GPU_Q3_K ? 2 : 4;
}

FG_GPU_FN int fg_gpu_hi_bits(int type) {
    return type == FG_GPU_Q6_K ? 2 : type == FG_GPU_Q5_0 || type == FG_GPU_Q5_1 || type == FG_GPU_Q5_K || type == FG_GPU_Q3_K ? 1 : 0;
}

FG_GPU_FN int fg_gpu_has_blocks_of_256(int type) { return (type >= FG_GPU_Q2_K && type <= FG_GPU_Q6_K) || type == FG_GPU_IQ4_XS; }

FG_GPU_FN int fg_gpu_scale_bytes(int type) {
    return fg_gpu_is_float(type) ? 0 : type == FG_GPU_MXFP4 ? 1 : type == FG_GPU_Q4_1 || type == FG_GPU_Q5_1 ? 4 : 2;
}

/* Activations in the order in which skinny reads them: what its warp loads at once, eight halves of each of eight rows from each of four
   places of k, is 512 bytes one after the other; then come the same places of k of the next eight rows, up to 64, then what it loads next,
   so that distances are known when it is compiled. Lane 4r + c has row r; of a quantised weight it has `units` adjacent units of four
   times as many (128 or 256 of k), whose quarters are loads; of a float type, 0 units, 8 weights of each of four units. There is memory
   for multiples of 64 rows. */
FG_GPU_FN int fg_gpu_acts_fragments(int type) {
    return fg_gpu_is_float(type) ? FG_GPU_ACTS_FRAGMENTS_0 : fg_gpu_lo_bits(type) == 8 ? FG_GPU_ACTS_FRAGMENTS_1 : FG_GPU_ACTS_FRAGMENTS_2;
}

/* Element (row, k) of activations is the half at the sum of both; acts_stride is of the format; k is under 2^25. */
FG_GPU_FN int64_t fg_gpu_acts_row(int format, int32_t acts_stride, int32_t row) {
    uint32_t r = (uint32_t)row;
    if (format < FG_GPU_ACTS_FRAGMENTS_0) return (int64_t)r * acts_stride;
    return (int64_t)(r / 64 * 64) * acts_stride + r % 64 / 8 * 256 + r % 8 * 32;
}

FG_GPU_FN int32_t fg_gpu_acts_column(int format, int32_t k) {
    uint32_t i = (uint32_t)k;
    return (int32_t)(format < FG_GPU_ACTS_FRAGMENTS_0    ? i
                     : format == FG_GPU_ACTS_FRAGMENTS_0 ? i / 32 * 2048 + i % 32
                     : format == FG_GPU_ACTS_FRAGMENTS_1 ? (i / 128 * 4 + i % 32 / 8) * 2048 + i % 128 / 32 * 8 + i % 8
                                                         : (i / 256 * 8 + i % 64 / 8) * 2048 + i % 256 / 64 * 8 + i % 8);
}

FG_GPU_FN int32_t fg_gpu_acts_stride(int format, int32_t k) {
    int32_t align = format < FG_GPU_ACTS_FRAGMENTS_0 ? FG_GPU_ACTS_ALIGN : FG_GPU_FRAGMENTS_ALIGN;
    return fg_gpu_ceil(k, align) * align;
}

/* k: of the weight; up to 2^26. */
FG_GPU_FN fg_gpu_layout fg_gpu_layout_of(int type, int32_t k) {
    fg_gpu_layout layout;
    int32_t units = fg_gpu_ceil(k, 32);
    layout.hi_at = (units * 4 * fg_gpu_lo_bits(type) + 15) / 16 * 16;
    layout.s_at = layout.hi_at + (units * 4 * fg_gpu_hi_bits(type) + 15) / 16 * 16;
    layout.d_at = layout.s_at + (units * fg_gpu_scale_bytes(type) + 15) / 16 * 16;
    layout.stride = layout.d_at + (fg_gpu_has_blocks_of_256(type) ? (units / 8 * 4 + 15) / 16 * 16 : 0);
    return layout;
}

#if !defined(__CUDA_ARCH__) && !(defined(__HIP__) && defined(__HIP_DEVICE_COMPILE__))

/* 16 bytes with weight i in the low half of byte i, weight i + 16 in the high half. */
static inline void fg_gpu_nibbles(const uint8_t *from, uint8_t *codes) {
    int i;
    for (i = 0; i < 16; i++) {
        codes[i] = from[i] & 15;
        codes[i + 16] = from[i] >> 4;
    }
}

/* 32 bytes with a weight in the bits of `mask` of each, above `shift`. */
static inline void fg_gpu_fields(const uint8_t *from, int shift, int mask, uint8_t *codes) {
    int i;
    for (i = 0; i < 32; i++) codes[i] = (uint8_t)(from[i] >> shift & mask);
}

/* As above, for the bits from `place` on that codes lack. */
static inline void fg_gpu_more_fields(const uint8_t *from, int shift, int mask, int place, uint8_t *codes) {
    int i;
    for (i = 0; i < 32; i++) codes[i] |= (uint8_t)((from[i] >> shift & mask) << place);
}

/* Weights 32u to 32u+31 of a row of a quantised type, as GGML stores it, as numbers of lo + hi bits. */
static inline void fg_gpu_codes(int type, const uint8_t *from, int32_t u, uint8_t *codes) {
    const uint8_t *b;
    int j = u % 8, i;
    switch (type) {
    case FG_GPU_Q8_0:
        for (i = 0; i < 32; i++) codes[i] = from[u * 34 + 2 + i] ^ 128;
        break;
    case FG_GPU_Q4_0:
    case FG_GPU_IQ4_NL: fg_gpu_nibbles(from + u * 18 + 2, codes); break;
    case FG_GPU_MXFP4: fg_gpu_nibbles(from + u * 17 + 1, codes); break;
    case FG_GPU_Q4_1: fg_gpu_nibbles(from + u * 20 + 4, codes); break;
    case FG_GPU_Q5_0:
    case FG_GPU_Q5_1:
        b = from + (type == FG_GPU_Q5_0 ? u * 22 + 2 : u * 24 + 4); /* the fifth bits */
        fg_gpu_nibbles(b + 4, codes);
        for (i = 0; i < 32; i++) codes[i] |= (uint8_t)((b[i / 8] >> (i % 8) & 1) << 4);
        break;
    case FG_GPU_Q2_K: fg_gpu_fields(from + u / 8 * 84 + 16 + j / 4 * 32, j % 4 * 2, 3, codes); break;
    case FG_GPU_Q3_K:
        b = from + u / 8 * 110;
        fg_gpu_fields(b + 32 + j / 4 * 32, j % 4 * 2, 3, codes);
        fg_gpu_more_fields(b, j, 1, 2, codes);
        break;
    case FG_GPU_Q4_K: fg_gpu_fields(from + u / 8 * 144 + 16 + j / 2 * 32, j % 2 * 4, 15, codes); break;
    case FG_GPU_Q5_K:
        b = from + u / 8 * 176;
        fg_gpu_fields(b + 48 + j / 2 * 32, j % 2 * 4, 15, codes);
        fg_gpu_more_fields(b + 16, j, 1, 4, codes);
        break;
    case FG_GPU_Q6_K:
        b = from + u / 8 * 210;
        fg_gpu_fields(b + j / 4 * 64 + j % 2 * 32, j % 4 / 2 * 4, 15, codes);
        fg_gpu_more_fields(b + 128 + j / 4 * 32, j % 4 * 2, 3, 4, codes);
        break;
    default: fg_gpu_nibbles(from + u / 8 * 136 + 8 + 16 * j, codes); break; /* IQ4_XS */
    }
}

/* The scales of unit u into s (fg_gpu_scale_bytes of them), those of its 256 into d (4 bytes). */
static inline void fg_gpu_scales(int type, const uint8_t *from, int32_t u, uint8_t *s, uint8_t *d) {
    const uint8_t *b;
    int j = u % 8, i;
    d[0] = d[1] = d[2] = d[3] = 0;
    switch (type) {
    case FG_GPU_Q4_0:
    case FG_GPU_IQ4_NL:
        s[0] = from[u * 18], s[1] = from[u * 18 + 1];
        break;
    case FG_GPU_Q5_0: s[0] = from[u * 22], s[1] = from[u * 22 + 1]; break;
    case FG_GPU_Q8_0: s[0] = from[u * 34], s[1] = from[u * 34 + 1]; break;
    case FG_GPU_MXFP4: s[0] = from[u * 17]; break;
    case FG_GPU_Q4_1:
    case FG_GPU_Q5_1:
        for (i = 0; i < 4; i++) s[i] = from[u * (type == FG_GPU_Q4_1 ? 20 : 24) + i];
        break;
    case FG_GPU_Q2_K:
        b = from + u / 8 * 84;
        s[0] = b[2 * j], s[1] = b[2 * j + 1];
        for (i = 0; i < 4; i++) d[i] = b[80 + i];
        break;
    case FG_GPU_Q3_K:
        b = from + u / 8 * 110;
        for (i = 0; i < 2; i++) {
            int at = 2 * j + i, low = b[96 + at % 8] >> (at / 8 * 4) & 15, high = b[104 + at % 4] >> (at / 4 * 2) & 3;
            s[i] = (uint8_t)((low | high << 4) - 32);
        }
        d[0] = b[108], d[1] = b[109];
        break;
    case FG_GPU_Q4_K:
    case FG_GPU_Q5_K:
        b = from + u / 8 * (type == FG_GPU_Q4_K ? 144 : 176);
        s[0] = (uint8_t)(j < 4 ? b[4 + j] & 63 : (b[8 + j] & 15) | b[j] >> 6 << 4);
        s[1] = (uint8_t)(j < 4 ? b[8 + j] & 63 : b[8 + j] >> 4 | b[4 + j] >> 6 << 4);
        for (i = 0; i < 4; i++) d[i] = b[i];
        break;
    case FG_GPU_Q6_K:
        b = from + u / 8 * 210;
        s[0] = b[192 + 2 * j], s[1] = b[193 + 2 * j];
        d[0] = b[208], d[1] = b[209];
        break;
    default: /* IQ4_XS */
        b = from + u / 8 * 136;
        s[0] = (uint8_t)(((b[4 + j / 2] >> (j % 2 * 4) & 15) | ((b[2] | b[3] << 8) >> (2 * j) & 3) << 4) - 32);
        s[1] = 0;
        d[0] = b[0], d[1] = b[1];
    }
}

/* One field of 32 weights into pairs: `bits` bits of each code from bit `shift` on. */
static inline void fg_gpu_pack_words(const uint8_t *codes, int shift, int bits, uint8_t *to) {
    int per_word = 32 / bits, w, j;
    for (w = 0; w < bits; w++) {
        uint32_t word = 0, mask = (1u << bits) - 1;
        const uint8_t *c = codes + w * per_word;
        for (j = 0; j < per_word; j += 2)
            word |= ((uint32_t)c[j] >> shift & mask) << (bits * j / 2) | ((uint32_t)c[j + 1] >> shift & mask) << (bits * j / 2 + 16);
        to[4 * w] = (uint8_t)word;
        to[4 * w + 1] = (uint8_t)(word >> 8);
        to[4 * w + 2] = (uint8_t)(word >> 16);
        to[4 * w + 3] = (uint8_t)(word >> 24);
    }
}

/* So that compilers see the sizes. */
static inline void fg_gpu_pack_pairs(const uint8_t *codes, int shift, int bits, uint8_t *to) {
    if (bits == 8) fg_gpu_pack_words(codes, 0, 8, to);
    else if (bits == 4) fg_gpu_pack_words(codes, 0, 4, to);
    else if (bits == 2) fg_gpu_pack_words(codes, shift, 2, to);
    else fg_gpu_pack_words(codes, shift, 1, to);
}

/* A row of k weights as GGML stores it, into the layout of the device (layout->stride bytes, little-endian). */
static inline void fg_gpu_pack_row(int type, int32_t k, const fg_gpu_layout *layout, const uint8_t *from, uint8_t *to) {
    int32_t units = fg_gpu_ceil(k, 32), u, lo = fg_gpu_lo_bits(type), hi = fg_gpu_hi_bits(type), scale_bytes = fg_gpu_scale_bytes(type);
    int64_t i, n = (int64_t)k * lo / 8;
    for (i = fg_gpu_is_float(type) ? n : 0; i < layout->stride; i++) to[i] = 0;
    if (fg_gpu_is_float(type)) {
        for (i = 0; i < n; i++) to[i] = from[i];
        return;
    }
    for (u = 0; u < units; u++) {
        uint8_t codes[32], d[4], *out = to + layout->d_at + u / 8 * 4;
        fg_gpu_codes(type, from, u, codes);
        fg_gpu_pack_pairs(codes, 0, lo, to + u * 4 * lo);
        if (hi) fg_gpu_pack_pairs(codes, lo, hi, to + layout->hi_at + u * 4 * hi);
        fg_gpu_scales(type, from, u, to + layout->s_at + u * scale_bytes, d);
        for (i = 0; i < 4 && fg_gpu_has_blocks_of_256(type); i++) out[i] = d[i];
    }
}

/* No less than the size of any weight of a packed row; 0 where weights are no numbers times scales. */
static inline float fg_gpu_row_most(int type, int32_t k, const fg_gpu_layout *layout, const uint8_t *row, float (*half)(uint16_t)) {
    int32_t units = fg_gpu_ceil(k, 32), u, bytes = fg_gpu_scale_bytes(type), blocks = fg_gpu_has_blocks_of_256(type);
    float most = 0.0f, codes;
    if (!fg_gpu_has_numbers(type)) return 0.0f;
    codes = (float)(1 << (fg_gpu_lo_bits(type) + fg_gpu_hi_bits(type)));
    for (u = 0; u < units; u += blocks ? 8 : 1) {
        const uint8_t *s = row + (blocks ? layout->d_at + u / 8 * 4 : layout->s_at + u * bytes);
        float one = half((uint16_t)(s[0] | s[1] << 8)), less = blocks || bytes == 4 ? half((uint16_t)(s[2] | s[3] << 8)) : 0.0f, its;
        if (blocks) one *= type == FG_GPU_Q2_K ? 16.0f : type == FG_GPU_Q6_K ? 128.0f : 64.0f, less *= 64.0f;
        its = codes * (one < 0 ? -one : one) + (less < 0 ? -less : less);
        most = its > most ? its : most;
    }
    return most;
}

/* What a weight's scales are multiplied by 2 to, so that none leaves what a half float holds: weights of up to `most` then reach 2^13 or
   2^14. */
static inline int32_t fg_gpu_exponent(float most) {
    int32_t e = 13;
    if (!(most > 0.0f && most < 1e30f)) return 0;
    for (; most >= 2.0f && e > -40; most *= 0.5f) e--;
    for (; most < 1.0f && e < 40; most *= 2.0f) e++;
    return e;
}

#endif
#endif /* FG_GPU_KERNELS_H */
