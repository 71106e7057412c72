/* What all shaders share: an op's constants, the batch block, the number of rows that the pass has. */
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_KHR_shader_subgroup_arithmetic : require
#extension GL_EXT_control_flow_attributes : require /* [[unroll]]: loops over arrays that are to be registers */

/* As struct fg__vk_push of backends/vulkan/fg_vulkan.h. Strides of slots in floats, of weights in words. */
layout(push_constant) uniform Push {
    int n, k;
    int src_col, src2_col, dst_col;
    int src_stride, src2_stride, dst_stride;
    int count_at;        /* where the batch block has the number of rows: 0 tokens, 1 rows that need logits */
    int act;
    int has;             /* bits HAS_... */
    int row0, rows;      /* the rows of the weight, or the KV blocks, that are in this piece of it */
    int weight_stride, tail_at;
    int n_head, n_kv_head, head_dim, n_rot, neox;
    int slots_at, table_at, table_stride; /* in the batch block */
    int block_tokens, kv_stride, window;  /* kv_stride: words of one head of one token */
    float eps, scale, softcap;
    int positions_at, seqs_at, rows_at;   /* in the batch block */
};

/* Ops of experts have no heads: the experts of a token, all of them, those that are in this piece of the weight, from number row0 on. */
#define n_used n_head
#define n_expert n_kv_head
#define n_present n_rot

const int HAS_WEIGHT = 1, HAS_WEIGHT2 = 2, HAS_BIAS = 4, HAS_SRC2 = 8, HAS_EARLIER = 16, HAS_LATER = 32; /* pieces */
const int TOKENS_AT = 4; /* token ids follow four counts */

layout(set = 0, binding = 0) readonly buffer Batch { int batch[]; };

int row_count() { return batch[count_at]; }

float act_of(int which, float x) {
    if (which == 1) return x / (1.0 + exp(-x));
    if (which == 2) {
        float y = 0.79788456 * (x + 0.044715 * x * x * x);
        return x - x / (1.0 + exp(2.0 * clamp(y, -40.0, 40.0))); /* x * (1 + tanh y) / 2 */
    }
    if (which == 3) {
        /* erf: Abramowitz and Stegun 7.1.26, absolute error 1.5e-7 */
        float a = abs(x) * 0.70710678, t = 1.0 / (1.0 + 0.3275911 * a);
        float p = t * (0.254829592 + t * (-0.284496736 + t * (1.421413741 + t * (-1.453152027 + t * 1.061405429))));
        float tail = 0.5 * p * exp(-a * a);
        return x > 0.0 ? x - x * tail : x * tail;
    }
    if (which == 4) return max(x, 0.0);
    return x;
}

/* Exact for denormal halves too, whatever the device does with denormal numbers. */
float half_of(uint h) {
    uint m = h & 0x7FFFu;
    float f = m < 0x400u ? float(m) * 5.9604644775390625e-8 : uintBitsToFloat((m << 13) + (112u << 23));
    return (h & 0x8000u) != 0u ? -f : f;
}

/* To the nearest half, ties to even. */
uint to_half(float value) {
    uint bits = floatBitsToUint(value), sign = bits >> 16 & 0x8000u, m = bits & 0x7FFFFFFFu;
    if (m > 0x7F800000u) return sign | 0x7E00u;
    if (m >= 0x477FF000u) return sign | 0x7C00u;
    if (m >= 0x38800000u) return sign | (m - (112u << 23) + 0x0FFFu + (m >> 13 & 1u)) >> 13;
    return sign | uint(roundEven(abs(value) * 16777216.0));
}

/* To the nearest bfloat16, ties to even. */
uint to_bfloat(float value) {
    uint bits = floatBitsToUint(value);
    if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return bits >> 16 | 0x40u;
    return (bits + 0x7FFFu + (bits >> 16 & 1u)) >> 16;
}
