/* kernels.cuh: every GPU kernel of fastgen.h, for CUDA, HIP and the host execution of tests/; see kernels.h for what each computes
   and device.cuh for what they stand on.

   Every sum is taken in an order that depends on the sizes of the model alone (gemmwg's also on the most rows of a plan): a row's bits
   are the same in every pass that uses the same kind of kernel for it. Functions take types and sizes that are constants where they are
   called; they are inlined into the entry points at the end, so that a kernel holds only what its type needs. */

#ifndef FG_GPU_KERNELS_CUH
#define FG_GPU_KERNELS_CUH

#include "device.cuh"

#define FG_NEG_INF fgk_from_bits(0xFF800000u)

/* ---- Sums over groups and workgroups. ---- */

FG_DEV float fgk_group_sum(float x) {
    int mask;
    FG_UNROLL for (mask = 16; mask > 0; mask /= 2) x += fgk_shuffle_xor(x, mask);
    return x;
}

FG_DEV float fgk_group_max(float x) {
    int mask;
    FG_UNROLL for (mask = 16; mask > 0; mask /= 2) x = fgk_max(x, fgk_shuffle_xor(x, mask));
    return x;
}

/* Over the 8 groups of a workgroup of FG_GPU_GEMV_THREADS; `parts` has room for 8. */
FG_DEV float fgk_block_sum(float x, float *parts) {
    float sum = 0.0f;
    int i;
    x = fgk_group_sum(x);
    fgk_barrier();
    if (fgk_lane() == 0) fgk_put(parts + fgk_group(), x);
    fgk_barrier();
    FG_UNROLL for (i = 0; i < FG_GPU_GEMV_THREADS / 32; i++) sum += fgk_get(parts + i);
    return sum;
}

FG_DEV float fgk_block_max(float x, float *parts) {
    float most;
    int i;
    x = fgk_group_max(x);
    fgk_barrier();
    if (fgk_lane() == 0) fgk_put(parts + fgk_group(), x);
    fgk_barrier();
    most = fgk_get(parts);
    FG_UNROLL for (i = 1; i < FG_GPU_GEMV_THREADS / 32; i++) most = fgk_max(most, fgk_get(parts + i));
    return most;
}

FG_DEV int fgk_count(uint64_t address) { return (int)fgk_load_u32((const void *)address); }

/* By what the hardware has for powers and quotients: those that are right to the last bits would be most of the instructions. */
FG_DEV float fgk_act_of(int which, float x) {
    if (which == 1) return x * fgk_reciprocal(1.0f + fgk_exp_near(-x)); /* SiLU */
    if (which == 2) {                               /* GELU, tanh form: x * (1 + tanh y) / 2 */
        float y = 0.79788456f * (x + 0.044715f * x * x * x);
        y = y > 40.0f ? 40.0f : y < -40.0f ? -40.0f : y;
        return x - x * fgk_reciprocal(1.0f + fgk_exp_near(2.0f * y));
    }
    if (which == 3) { /* GELU; erf by Abramowitz and Stegun 7.1.26, absolute error 1.5e-7 */
        float a = fgk_abs(x) * 0.70710678f, t = fgk_reciprocal(1.0f + 0.3275911f * a);
        float p = t * (0.254829592f + t * (-0.284496736f + t * (1.421413741f + t * (-1.453152027f + t * 1.061405429f))));
        float tail = 0.5f * p * fgk_exp(-a * a);
        return x > 0.0f ? x - x * tail : x * tail;
    }
    if (which == 4) return x < 0.0f ? 0.0f : x; /* ReLU */
    if (which == 6) return fgk_reciprocal(1.0f + fgk_exp_near(-x)); /* sigmoid */
    return x;
}

/* With `which` a constant there is code for one activation. */
FG_DEV fgk_f4 fgk_act_four(int which, fgk_f4 v) {
    fgk_f4 r = {fgk_act_of(which, v.x), fgk_act_of(which, v.y), fgk_act_of(which, v.z), fgk_act_of(which, v.w)};
    return r;
}

/* ---- Weights: 32 of a row at a time; the layout is described in kernels.h. ---- */

typedef struct fgk_unit {
    uint32_t lo[32], hi[2], s, d; /* words of the planes, as many as the type has; the scales' bits */
    float scale[2], min[2];       /* of both halves: of fgk_unit_scales */
} fgk_unit;

/* The 16 values of a 4-bit code: entry `code` of 16 signed bytes. */
FG_DEV float fgk_code_value(int type, uint32_t code) {
    /* IQ4_NL, IQ4_XS: -127 -104 -83 -65 -49 -35 -22 -10 1 13 25 38 53 69 89 113; MXFP4 (twice E2M1): 0 1 2 3 4 6 8 12, negated */
    uint32_t a = type == FG_GPU_MXFP4 ? 0x03020100u : 0xBFAD9881u, b = type == FG_GPU_MXFP4 ? 0x0C080604u : 0xF6EADDCFu;
    uint32_t c = type == FG_GPU_MXFP4 ? 0xFDFEFF00u : 0x26190D01u, d = type == FG_GPU_MXFP4 ? 0xF4F8FAFCu : 0x71594535u;
    uint32_t low = code & 4u ? b : a, high = code & 4u ? d : c;
    return (float)(int8_t)((code & 8u ? high : low) >> (code & 3u) * 8u);
}

FG_DEV float fgk_mxfp4_half_scale(uint32_t e) { return fgk_from_bits(e < 2u ? 0x00200000u << e : (e - 1u) << 23); }

/* From the words of its planes: those of the unit in the low bits of `bits`, d and dmin of its 256 in `both`. */
FG_DEV void fgk_unit_scale_words(int type, uint32_t bits, uint32_t both, fgk_unit *unit) {
    unit->min[0] = unit->min[1] = 0.0f;
    if (type == FG_GPU_MXFP4) unit->scale[0] = unit->scale[1] = fgk_mxfp4_half_scale(bits & 255u);
    else if (!fg_gpu_has_blocks_of_256(type)) {
        unit->scale[0] = unit->scale[1] = fgk_half_to_float(bits);
        if (type == FG_GPU_Q4_1 || type == FG_GPU_Q5_1) unit->min[0] = unit->min[1] = -fgk_half_to_float(bits >> 16);
    } else {
        float d = fgk_half_to_float(both), dmin = fgk_half_to_float(both >> 16);
        if (type == FG_GPU_Q2_K) {
            unit->scale[0] = d * (float)(bits & 15u);
            unit->scale[1] = d * (float)(bits >> 8 & 15u);
            unit->min[0] = dmin * (float)(bits >> 4 & 15u);
            unit->min[1] = dmin * (float)(bits >> 12 & 15u);
        } else if (type == FG_GPU_Q4_K || type == FG_GPU_Q5_K) {
            unit->scale[0] = unit->scale[1] = d * (float)(bits & 255u);
            unit->min[0] = unit->min[1] = dmin * (float)(bits >> 8 & 255u);
        } else {
            unit->scale[0] = d * (float)(int8_t)(bits & 255u);
            unit->scale[1] = type == FG_GPU_IQ4_XS ? unit->scale[0] : d * (float)(int8_t)(bits >> 8 & 255u);
        }
    }
}

/* From the bits that fgk_unit_fetch brought. */
FG_DEV void fgk_unit_scales(int type, fgk_unit *unit) {
    unit->min[0] = unit->min[1] = 0.0f;
    if (!fg_gpu_is_float(type)) fgk_unit_scale_words(type, unit->s, unit->d, unit);
}

FG_DEV void fgk_unit_scale_bits(int type, const char *row, const fg_gpu_layout *layout, int u, fgk_unit *unit) {
    const char *s = row + layout->s_at + u * fg_gpu_scale_bytes(type);
    unit->s = fg_gpu_scale_bytes(type) == 1 ? fgk_load_u8(s) : fg_gpu_scale_bytes(type) == 4 ? fgk_load_u32(s) : fgk_load_u16(s);
    if (fg_gpu_has_blocks_of_256(type)) unit->d = fgk_load_u32(row + layout->d_at + u / 8 * 4);
}

/* Unit u of a row of `units` units; zeros beyond. Of float types, four runs of 8 weights: those from `first` on, then `step` on
   each time, with `first` and `step` in weights. */
FG_DEV void fgk_unit_fetch(int type, const char *row, const fg_gpu_layout *layout, int units, int u, int first, int step, fgk_unit *unit) {
    int words = fg_gpu_is_float(type) ? fg_gpu_lo_bits(type) / 4 : fg_gpu_lo_bits(type), i, j;
    if (fg_gpu_is_float(type)) {
        FG_UNROLL for (i = 0; i < 4; i++) {
            const char *from = row + (int64_t)(first + i * step) * (words / 2);
            FG_UNROLL for (j = 0; j < words; j += 4) {
                fgk_u4 v = {0, 0, 0, 0};
                if (first + i * step < 32 * units) v = fgk_load_u4(from + 4 * j);
                unit->lo[i * words + j] = v.x;
                unit->lo[i * words + j + 1] = v.y;
                unit->lo[i * words + j + 2] = v.z;
                unit->lo[i * words + j + 3] = v.w;
            }
        }
        return;
    }
    if (u >= units) {
        FG_UNROLL for (i = 0; i < words; i++) unit->lo[i] = 0;
        unit->hi[0] = unit->hi[1] = unit->s = unit->d = 0;
        return;
    }
    if (words == 2) {
        unit->lo[0] = fgk_load_u32(row + 8 * u);
        unit->lo[1] = fgk_load_u32(row + 8 * u + 4);
    } else {
        FG_UNROLL for (i = 0; i < words; i += 4) {
            fgk_u4 v = fgk_load_u4(row + 4 * (u * words + i));
            unit->lo[i] = v.x;
            unit->lo[i + 1] = v.y;
            unit->lo[i + 2] = v.z;
            unit->lo[i + 3] = v.w;
        }
    }
    FG_UNROLL for (i = 0; i < fg_gpu_hi_bits(type); i++) unit->hi[i] = fgk_load_u32(row + layout->hi_at + 4 * (u * fg_gpu_hi_bits(type) + i));
    fgk_unit_scale_bits(type, row, layout, u, unit);
}

FG_DEV void fgk_unit_load(int type, const char *row, const fg_gpu_layout *layout, int units, int u, int first, int step, fgk_unit *unit) {
    fgk_unit_fetch(type, row, layout, units, u, first, step, unit);
    fgk_unit_scales(type, unit);
}

/* What a code of 0 is, negated. */
FG_DEV int fgk_code_zero(int type) {
    return type == FG_GPU_Q4_0 ? 8 : type == FG_GPU_Q5_0 ? 16 : type == FG_GPU_Q8_0 ? 128 : type == FG_GPU_Q3_K ? 4 : type == FG_GPU_Q6_K ? 32 : 0;
}

/* Codes 2p and 2p + 1 of a unit, 16 bits each. */
FG_DEV uint32_t fgk_unit_pair(int type, const fgk_unit *unit, int p) {
    int lo = fg_gpu_lo_bits(type), hi = fg_gpu_hi_bits(type), per_word = 16 / lo;
    uint32_t pair = unit->lo[p / per_word] >> lo * (p % per_word) & ((1u << lo) - 1u) * 0x00010001u;
    if (hi) pair |= (unit->hi[p * hi / 16] >> hi * (p % (16 / hi)) & ((1u << hi) - 1u) * 0x00010001u) << lo;
    return pair;
}

/* The same with `over` over each, and `left` bits further up. */
FG_DEV uint32_t fgk_pair_over(int type, const fgk_unit *unit, int p, int left, uint32_t over) {
    int lo = fg_gpu_lo_bits(type), hi = fg_gpu_hi_bits(type), at = hi ? hi * (p % (16 / hi)) - lo - left : 0;
    uint32_t ones = 0x00010001u, pair, high;
    if (lo == 8) return fgk_bytes_over(unit->lo[p / 2], over >> 24, p % 2);
    pair = fgk_field(unit->lo[p * lo / 16] >> (lo * (p % (16 / lo)) - left), (((1u << lo) - 1u) << left) * ones, over);
    if (!hi) return pair;
    high = at < 0 ? unit->hi[p * hi / 16] << -at : unit->hi[p * hi / 16] >> at;
    return fgk_field(high, (((1u << hi) - 1u) << (lo + left)) * ones, pair);
}

/* What a code of 0 is of values of bytes: of types that have a table of values, what these are more, so that none is negative; negated. */
FG_DEV int fgk_byte_zero(int type) {
    return type == FG_GPU_MXFP4 ? 16 : type == FG_GPU_IQ4_NL || type == FG_GPU_IQ4_XS ? 128 : fgk_code_zero(type);
}

/* A word of 4-bit codes as values of bytes, fgk_byte_zero more, those of pairs 0 and 1, then of 2 and 3. */
FG_DEV void fgk_code_values(int type, uint32_t word, uint32_t *to) {
    /* as fgk_code_value has them: of codes 0 to 3, 4 to 7, 8 to 11, 12 to 15 */
    bool fp4 = type == FG_GPU_MXFP4;
    const uint32_t table[4] = {fp4 ? 0x13121110u : 0x3F2D1801u, fp4 ? 0x1C181614u : 0x766A5D4Fu, fp4 ? 0x0D0E0F10u : 0xA6998D81u,
                               fp4 ? 0x04080A0Cu : 0xF1D9C5B5u};
    fgk_look_up(table, word, to);
}

FG_DEV float fgk_byte(uint32_t word, int i) { return (float)(word >> 8 * i & 255u); }

/* Codes of pair p of a unit as bytes 0 and 2, and those of the pair 8 / bits further on as bytes 1 and 3: what lies so in a word. */
FG_DEV uint32_t fgk_unit_quad(int type, const fgk_unit *unit, int p) {
    int lo = fg_gpu_lo_bits(type), hi = fg_gpu_hi_bits(type), each = 16 / lo, at, next;
    uint32_t ones = ((1u << hi) - 1u) * 0x00010001u << lo, word = unit->lo[p / each];
    if (lo == 8) return word;
    word = word >> lo * (p % each) & ((1u << lo) - 1u) * 0x01010101u;
    if (!hi) return fgk_as_bytes(word);
    at = lo - hi * (p % (16 / hi));
    next = lo + 8 - hi * ((p + 8 / lo) % (16 / hi));
    word |= (at < 0 ? unit->hi[p * hi / 16] >> -at : unit->hi[p * hi / 16] << at) & ones;
    return fgk_as_bytes(word | ((next < 0 ? unit->hi[p * hi / 16] >> -next : unit->hi[p * hi / 16] << next) & ones << 8));
}

/* Codes 8i to 8i + 7 of a unit of a quantised type, as they are, or what a table has for them; fgk_byte_zero says what 0 is. */
FG_DEV void fgk_unit_codes(int type, const fgk_unit *unit, int i, float *w) {
    int lo = fg_gpu_lo_bits(type), s, b;
    uint32_t quad[2];
    if (type == FG_GPU_IQ4_NL || type == FG_GPU_IQ4_XS || type == FG_GPU_MXFP4) {
        fgk_code_values(type, unit->lo[i], quad);
        FG_UNROLL for (b = 0; b < 8; b++) w[b] = fgk_byte(quad[b / 4], b % 4);
    } else if (lo == 2) {
        FG_UNROLL for (s = 0; s < 4; s++) {
            quad[0] = fgk_unit_quad(type, unit, i / 2 * 8 + s);
            w[2 * s] = fgk_byte(quad[0], i % 2);
            w[2 * s + 1] = fgk_byte(quad[0], 2 + i % 2);
        }
    } else FG_UNROLL for (s = 0; s < 2; s++) {
        int first = lo == 8 ? 4 * s : 2 * s, second = lo == 8 ? 4 * s + 2 : 2 * s + 4;
        quad[0] = fgk_unit_quad(type, unit, 4 * i + (lo == 8 ? 2 * s : s));
        w[first] = fgk_byte(quad[0], 0), w[first + 1] = fgk_byte(quad[0], 2);
        w[second] = fgk_byte(quad[0], 1), w[second + 1] = fgk_byte(quad[0], 3);
    }
}

/* Weights 4g to 4g+3 of a unit; of float types 4 (g % 2) and on of its run g / 2. */
FG_DEV void fgk_unit_four(int type, const fgk_unit *unit, int g, float *w) {
    int p, j;
    if (fg_gpu_is_float(type)) {
        FG_UNROLL for (j = 0; j < 4; j++) {
            int at = 4 * g + j;
            uint32_t word = unit->lo[type == FG_GPU_F32 ? at : at / 2];
            w[j] = type == FG_GPU_F32 ? fgk_from_bits(word)
                 : type == FG_GPU_F16 ? fgk_half_to_float(j % 2 ? word >> 16 : word) : fgk_from_bits(j % 2 ? word & 0xFFFF0000u : word << 16);
        }
        return;
    }
    FG_UNROLL for (p = 2 * g; p < 2 * g + 2; p++) { /* a pair */
        uint32_t pair = fgk_unit_pair(type, unit, p);
        FG_UNROLL for (j = 0; j < 2; j++) {
            uint32_t code = j ? pair >> 16 : pair & 0xFFFFu;
            float value = type == FG_GPU_IQ4_NL || type == FG_GPU_IQ4_XS || type == FG_GPU_MXFP4 ? fgk_code_value(type, code)
                                                                                               : (float)((int)code - fgk_code_zero(type));
            w[(p - 2 * g) * 2 + j] = fgk_fma(unit->scale[g / 4], value, -unit->min[g / 4]);
        }
    }
}

/* ---- embed: a thread per unit. ---- */

FG_BODY void fgk_embed(const fg_gpu_embed_args *a, int type) {
    int t = fgk_block_y(), u = fgk_block_x() * FG_GPU_THREADS + fgk_thread(), units = (a->n + 31) / 32, g, j;
    const char *row;
    float *out;
    fgk_unit unit;
    if (t >= fgk_count(a->count) || u >= units) return;
    row = (const char *)a->weight + (int64_t)(int32_t)fgk_load_u32((const int32_t *)a->tokens + t) * a->layout.stride;
    out = (float *)a->dst + (int64_t)t * a->dst_stride + 32 * u;
    fgk_unit_load(type, row, &a->layout, units, u, 32 * u, 8, &unit);
    FG_UNROLL for (g = 0; g < 8; g++) {
        float w[4];
        fgk_unit_four(type, &unit, g, w);
        FG_UNROLL for (j = 0; j < 4; j++)
            if (32 * u + 4 * g + j < a->n) fgk_store(out + 4 * g + j, a->scale == 1.0f ? w[j] : w[j] * a->scale);
    }
}

/* ---- norm, activations: a workgroup of FG_GPU_ROW_THREADS has a row, a thread four adjacent elements of each FG_ROW_STEP. Rows that
   begin at multiples of 16 bytes, and are not too long, stay in registers from the only time they are read; others are read again. Both
   ways give the same bits: a thread has the same elements, and sums are taken in the same order. The count of rows is looked at when
   what is read is under way, not before: there is memory for max_rows. ---- */

enum { FG_ROW_STEP = 4 * FG_GPU_ROW_THREADS, FG_NORM_HELD = 4, FG_ROW_HELD = 7 }; /* HELD: steps in registers, of norm and others */

/* Whether four floats at a time may be read and written: all addresses, or'd, and all strides and widths. */
FG_DEV int fgk_is_wide(uint64_t addresses, int32_t strides) { return ((addresses | (uint64_t)(uint32_t)strides * 4) & 15) == 0; }

/* Four elements, of which `n` are there; the others are 0. */
FG_DEV fgk_f4 fgk_row_get(const float *from, int n, int wide) {
    fgk_f4 v = {0.0f, 0.0f, 0.0f, 0.0f};
    if (wide) return n > 0 ? fgk_load_f4(from) : v;
    if (n > 0) v.x = fgk_load(from);
    if (n > 1) v.y = fgk_load(from + 1);
    if (n > 2) v.z = fgk_load(from + 2);
    if (n > 3) v.w = fgk_load(from + 3);
    return v;
}

FG_DEV void fgk_row_put(float *to, fgk_f4 v, int n, int wide) {
    if (wide) {
        if (n > 0) fgk_store_f4(to, v);
        return;
    }
    if (n > 0) fgk_store(to, v.x);
    if (n > 1) fgk_store(to + 1, v.y);
    if (n > 2) fgk_store(to + 2, v.z);
    if (n > 3) fgk_store(to + 3, v.w);
}

FG_DEV fgk_f4 fgk_add_f4(fgk_f4 a, fgk_f4 b) {
    fgk_f4 v = {a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w};
    return v;
}

FG_DEV float fgk_sum_f4(fgk_f4 v) { return v.x + v.y + (v.z + v.w); }

FG_DEV float fgk_most_f4(fgk_f4 v, float most) {
    return fgk_most(fgk_abs(v.w), fgk_most(fgk_abs(v.z), fgk_most(fgk_abs(v.y), fgk_most(fgk_abs(v.x), most))));
}

/* Over a row's workgroup, for all of it; of a maximum none is negative. `parts` has room for its 16 groups, and is used but once. */
FG_DEV float fgk_row_sum(float x, float *parts) {
    fgk_f4 a, b;
    x = fgk_group_sum(x);
    if (fgk_lane() == 0) fgk_put(parts + fgk_group(), x);
    fgk_barrier();
    a = fgk_add_f4(fgk_get_f4(parts), fgk_get_f4(parts + 4));
    b = fgk_add_f4(fgk_get_f4(parts + 8), fgk_get_f4(parts + 12));
    return fgk_sum_f4(fgk_add_f4(a, b));
}

FG_DEV float fgk_row_max(float x, float *parts) {
    x = fgk_group_max(x);
    if (fgk_lane() == 0) fgk_put(parts + fgk_group(), x);
    fgk_barrier();
    x = fgk_most_f4(fgk_get_f4(parts), 0.0f);
    x = fgk_most_f4(fgk_get_f4(parts + 4), x);
    x = fgk_most_f4(fgk_get_f4(parts + 8), x);
    return fgk_most_f4(fgk_get_f4(parts + 12), x);
}

/* What halves of a row are multiplied by: the largest of it, `most`, gets into [2^13, 2^14), so that sums of products stay far from
   overflow and small numbers keep their bits. Its reciprocal is the row's scale. */
FG_DEV float fgk_acts_factor(float most, float *scale) {
    int e = 140 - (int)(fgk_bits(most) >> 23);
    if (most == 0.0f || e < -114) e = 0; /* infinity: as it is */
    if (e > 126) e = 126;
    if (fgk_thread() == 0) fgk_store(scale, fgk_from_bits((uint32_t)(127 - e) << 23));
    return fgk_from_bits((uint32_t)(127 + e) << 23);
}

FG_DEV void fgk_acts_put(int format, uint16_t *to, fgk_f4 v, float factor) {
    if (format == FG_GPU_ACTS_BFLOAT)
        fgk_store_u2(to, fgk_float_to_bfloat(v.x) | fgk_float_to_bfloat(v.y) << 16, fgk_float_to_bfloat(v.z) | fgk_float_to_bfloat(v.w) << 16);
    else fgk_store_u2(to, fgk_two_halves(v.x * factor, v.y * factor), fgk_two_halves(v.z * factor, v.w * factor));
}

/* How far in a row of acts a thread's elements of the next FG_ROW_STEP are, which is whole groups of every format. */
FG_DEV int fgk_acts_step(int format) { return fg_gpu_acts_column(format, FG_ROW_STEP); }

/* Acts of a row whose elements in `v` are this thread's, 0 beyond the row. */
FG_DEV void fgk_acts_held(int format, const fgk_f4 *v, int held, uint16_t *to, int acts_stride, float *scale, float *parts) {
    float most = 0.0f, factor = 1.0f;
    int step = fgk_acts_step(format), j;
    to += fg_gpu_acts_column(format, 4 * fgk_thread());
    if (format != FG_GPU_ACTS_BFLOAT) {
        FG_UNROLL for (j = 0; j < held; j++) most = fgk_most_f4(v[j], most);
        factor = fgk_acts_factor(fgk_row_max(most, parts), scale);
    }
    FG_UNROLL for (j = 0; j < held; j++) {
        if (4 * fgk_thread() + j * FG_ROW_STEP < acts_stride) fgk_acts_put(format, to + j * step, v[j], factor);
    }
}

/* The same of a row in memory, of whose elements `most` is the largest of this thread's. */
FG_DEV void fgk_acts_read(int format, const float *from, int n, int wide, float most, uint16_t *to, int acts_stride, float *scale,
                          float *parts) {
    float factor = 1.0f;
    int step = fgk_acts_step(format), i;
    to += fg_gpu_acts_column(format, 4 * fgk_thread());
    if (format != FG_GPU_ACTS_BFLOAT) factor = fgk_acts_factor(fgk_row_max(most, parts), scale);
    FG_ROLLED for (i = 4 * fgk_thread(); i < acts_stride; i += FG_ROW_STEP, to += step)
        fgk_acts_put(format, to, fgk_row_get(from + i, n - i, wide), factor);
}

FG_DEV fgk_f4 fgk_normed(fgk_f4 v, float mean, float factor) {
    fgk_f4 r = {(v.x - mean) * factor, (v.y - mean) * factor, (v.z - mean) * factor, (v.w - mean) * factor};
    return r;
}

FG_DEV fgk_f4 fgk_mul_f4(fgk_f4 a, fgk_f4 b) {
    fgk_f4 v = {a.x * b.x, a.y * b.y, a.z * b.z, a.w * b.w};
    return v;
}

/* sum + (v - mean)^2, of the first n of the four */
FG_DEV fgk_f4 fgk_squares(fgk_f4 v, float mean, int n, fgk_f4 sum) {
    fgk_f4 x = {v.x - mean, v.y - mean, v.z - mean, v.w - mean};
    if (n > 0) sum.x = fgk_fma(x.x, x.x, sum.x);
    if (n > 1) sum.y = fgk_fma(x.y, x.y, sum.y);
    if (n > 2) sum.z = fgk_fma(x.z, x.z, sum.z);
    if (n > 3) sum.w = fgk_fma(x.w, x.w, sum.w);
    return sum;
}

FG_DEV void fgk_norm_held(const fg_gpu_norm_args *a, float *src, const float *src2, float *dst, float *parts) {
    const float *weight = (const float *)a->weight, *bias = (const float *)a->bias;
    fgk_f4 v[FG_NORM_HELD], w[FG_NORM_HELD], s[FG_NORM_HELD], sum = {0.0f, 0.0f, 0.0f, 0.0f};
    float mean = 0.0f, factor;
    int row = fgk_block_y(), first = 4 * fgk_thread(), count = fgk_count(a->count), j;
    FG_UNROLL for (j = 0; j < FG_NORM_HELD; j++) {
        int i = first + j * FG_ROW_STEP;
        v[j] = fgk_row_get(src + i, a->n - i, 1);
        s[j] = fgk_row_get(src2 + i, a->src2 ? a->n - i : 0, 1);
        w[j] = fgk_row_get(weight + i, a->weight ? a->n - i : 0, 1);
    }
    if (row >= count) return;
    if (a->src2)
        FG_UNROLL for (j = 0; j < FG_NORM_HELD; j++) {
            v[j] = fgk_add_f4(v[j], s[j]);
            fgk_row_put(src + first + j * FG_ROW_STEP, v[j], a->n - first - j * FG_ROW_STEP, 1);
        }
    if (a->bias) {
        FG_UNROLL for (j = 0; j < FG_NORM_HELD; j++) sum = fgk_add_f4(sum, v[j]);
        mean = fgk_row_sum(fgk_sum_f4(sum), parts) / (float)a->n;
        sum.x = sum.y = sum.z = sum.w = 0.0f;
    }
    FG_UNROLL for (j = 0; j < FG_NORM_HELD; j++)
        if (first + j * FG_ROW_STEP < a->n) sum = fgk_squares(v[j], mean, 4, sum);
    factor = 1.0f / fgk_sqrt(fgk_row_sum(fgk_sum_f4(sum), parts + 16) / (float)a->n + a->eps);
    FG_UNROLL for (j = 0; j < FG_NORM_HELD; j++) {
        int i = first + j * FG_ROW_STEP;
        if (i >= a->n) continue; /* 0 stays */
        v[j] = fgk_normed(v[j], mean, factor);
        if (a->weight) v[j] = fgk_mul_f4(v[j], w[j]);
        if (a->bias) v[j] = fgk_add_f4(v[j], fgk_load_f4(bias + i));
        fgk_store_f4(dst + i, v[j]);
    }
    if (a->acts)
        fgk_acts_held(a->format, v, FG_NORM_HELD, (uint16_t *)a->acts + fg_gpu_acts_row(a->format, a->acts_stride, row), a->acts_stride,
                      (float *)a->scales + row, parts + 32);
}

FG_DEV void fgk_norm_read(const fg_gpu_norm_args *a, float *src, const float *src2, float *dst, int wide, float *parts) {
    fgk_f4 sum = {0.0f, 0.0f, 0.0f, 0.0f};
    float mean = 0.0f, most = 0.0f, factor;
    int row = fgk_block_y(), first = 4 * fgk_thread(), i;
    if (row >= fgk_count(a->count)) return;
    if (a->src2)
        FG_ROLLED for (i = first; i < a->n; i += FG_ROW_STEP)
            fgk_row_put(src + i, fgk_add_f4(fgk_row_get(src + i, a->n - i, wide), fgk_row_get(src2 + i, a->n - i, wide)), a->n - i, wide);
    if (a->bias) {
        FG_ROLLED for (i = first; i < a->n; i += FG_ROW_STEP) sum = fgk_add_f4(sum, fgk_row_get(src + i, a->n - i, wide));
        mean = fgk_row_sum(fgk_sum_f4(sum), parts) / (float)a->n;
        sum.x = sum.y = sum.z = sum.w = 0.0f;
    }
    FG_ROLLED for (i = first; i < a->n; i += FG_ROW_STEP) sum = fgk_squares(fgk_row_get(src + i, a->n - i, wide), mean, a->n - i, sum);
    factor = 1.0f / fgk_sqrt(fgk_row_sum(fgk_sum_f4(sum), parts + 16) / (float)a->n + a->eps);
    FG_ROLLED for (i = first; i < a->n; i += FG_ROW_STEP) {
        fgk_f4 v = fgk_normed(fgk_row_get(src + i, a->n - i, wide), mean, factor);
        if (a->weight) v = fgk_mul_f4(v, fgk_row_get((const float *)a->weight + i, a->n - i, wide));
        if (a->bias) v = fgk_add_f4(v, fgk_row_get((const float *)a->bias + i, a->n - i, wide));
        fgk_row_put(dst + i, v, a->n - i, wide);
        if (i + 1 >= a->n) v.y = 0.0f; /* the mean was taken from what is not there */
        if (i + 2 >= a->n) v.z = 0.0f;
        if (i + 3 >= a->n) v.w = 0.0f;
        most = fgk_most_f4(v, most);
    }
    if (a->acts)
        fgk_acts_read(a->format, dst, a->n, wide, most, (uint16_t *)a->acts + fg_gpu_acts_row(a->format, a->acts_stride, row), a->acts_stride,
                      (float *)a->scales + row, parts + 32);
}

FG_BODY void fgk_norm(const fg_gpu_norm_args *a) {
    FG_SHARED(float, parts, 48);
    int row = fgk_block_y(), strides = a->n | a->src_stride | a->dst_stride | (a->src2 ? a->src2_stride : 0);
    int wide = fgk_is_wide(a->src | a->src2 | a->dst | a->weight | a->bias, strides);
    float *src = (float *)a->src + (int64_t)row * a->src_stride, *dst = (float *)a->dst + (int64_t)row * a->dst_stride;
    const float *src2 = (const float *)a->src2 + (int64_t)row * a->src2_stride;
    if (wide && a->n <= FG_NORM_HELD * FG_ROW_STEP) fgk_norm_held(a, src, src2, dst, parts);
    else fgk_norm_read(a, src, src2, dst, wide, parts);
}

/* A row as signed bytes: a group of lanes has 32 of them at a time. */
FG_DEV void fgk_acts_bytes(const fg_gpu_acts_args *a, const float *src, char *out) {
    int u, mask;
    FG_ROLLED for (u = fgk_group(); u < a->acts_stride / 32; u += FG_GPU_ROW_THREADS / 32) {
        int i = 32 * u + fgk_lane(), q;
        float x = i < a->k ? fgk_load(src + i) : 0.0f, scale = fgk_group_max(fgk_abs(x)) / 127.0f, sum, other;
        x = scale > 0.0f ? fgk_round(x / scale) : 0.0f;
        x = x < -127.0f ? -127.0f : x <= 127.0f ? x : 127.0f; /* the last also for what is no number */
        q = (int)x;
        fgk_store_u8(out + i, (uint32_t)q & 255u);
        sum = x;
        FG_UNROLL for (mask = 8; mask > 0; mask /= 2) sum += fgk_shuffle_xor(sum, mask);
        other = fgk_shuffle_xor(sum, 16);
        if (fgk_lane() > 0) continue;
        fgk_store((float *)(out + a->acts_stride) + 2 * u, scale);
        fgk_store_u32((uint32_t *)(out + a->acts_stride) + 2 * u + 1, ((uint32_t)(int)sum & 0xFFFFu) | (uint32_t)(int)other << 16);
    }
}

/* Where row `row` of n elements begins, when rows of `stride` have `per` of them side by side (0: 1). */
FG_DEV int64_t fgk_row_at(int row, int stride, int per, int n) {
    return per > 1 ? (int64_t)(row / per) * stride + row % per * (int64_t)n : (int64_t)row * stride;
}
FG_DEV int fgk_rows(uint64_t count, int per) { return fgk_count(count) * (per > 1 ? per : 1); }

FG_BODY void fgk_acts(const fg_gpu_acts_args *a) {
    FG_SHARED(float, parts, 16);
    int row = fgk_block_x(), wide = fgk_is_wide(a->src, a->k | a->src_stride), first = 4 * fgk_thread(), count = fgk_rows(a->count, a->per), i, j;
    const float *src = (const float *)a->src + fgk_row_at(row, a->src_stride, a->per, a->k);
    uint16_t *out = (uint16_t *)a->acts + fg_gpu_acts_row(a->format, a->acts_stride, row);
    float *scale = (float *)a->scales + row, most = 0.0f;
    if (a->format == FG_GPU_ACTS_BYTES) {
        if (row >= count) return;
        fgk_acts_bytes(a, src, (char *)out);
        if (fgk_thread() == 0) fgk_store(scale, 1.0f);
    } else if (wide && a->k <= FG_ROW_HELD * FG_ROW_STEP) {
        fgk_f4 v[FG_ROW_HELD];
        FG_UNROLL for (j = 0; j < FG_ROW_HELD; j++) v[j] = fgk_row_get(src + first + j * FG_ROW_STEP, a->k - first - j * FG_ROW_STEP, 1);
        if (row >= count) return;
        fgk_acts_held(a->format, v, FG_ROW_HELD, out, a->acts_stride, scale, parts);
    } else {
        if (row >= count) return;
        if (a->format != FG_GPU_ACTS_BFLOAT)
            FG_ROLLED for (i = first; i < a->k; i += FG_ROW_STEP) most = fgk_most_f4(fgk_row_get(src + i, a->k - i, wide), most);
        fgk_acts_read(a->format, src, a->k, wide, most, out, a->acts_stride, scale, parts);
    }
}

/* ---- Products. ---- */

/* Row j, or the last, of the weights of a product, and their exponent. */
FG_DEV const char *fgk_row(const fg_gpu_gemm_args *a, int j, int *exponent) {
    uint64_t weight = a->weight;
    int at = j < a->n ? j : a->n - 1, from = 0, i;
    *exponent = a->exponent;
    FG_UNROLL for (i = 0; i < 2; i++)
        if (a->more[i].from > 0 && at >= a->more[i].from) {
            weight = a->more[i].weight;
            *exponent = a->more[i].exponent;
            from = a->more[i].from;
        }
    return (const char *)weight + (int64_t)(at - from) * a->layout.stride;
}

/* Element (row of src, row of the weight) of the result. */
FG_DEV void fgk_finish(const fg_gpu_gemm_args *a, int row, int j, float x) {
    uint64_t bias = a->bias;
    int at = j, i;
    FG_UNROLL for (i = 0; i < 2; i++)
        if (a->more[i].from > 0 && j >= a->more[i].from) {
            bias = a->more[i].bias;
            at = j - a->more[i].from;
        }
    if (bias) x += fgk_load((const float *)bias + at);
    x = fgk_act_of(a->act, x);
    if (a->src2) x += fgk_load((const float *)a->src2 + (int64_t)row * a->src2_stride + j);
    fgk_store((float *)a->dst + (int64_t)row * a->dst_stride + j, x);
}

/* Products of a workgroup, [cols][FG_FINISH_ROW] floats in shared memory, to dst: adjacent threads have adjacent elements. Not
   unrolled, so that there is code for the activations once. */
enum { FG_FINISH_ROWS = 64, FG_FINISH_ROW = FG_FINISH_ROWS + 4 };

FG_DEV void fgk_finish_tile(const fg_gpu_gemm_args *a, const float *tile, int n0, int col0, int cols, int count, int split, int threads) {
    int i;
    FG_ROLLED for (i = fgk_thread(); i < FG_FINISH_ROWS * cols; i += threads) {
        int j = n0 + i % FG_FINISH_ROWS, t = col0 + i / FG_FINISH_ROWS;
        if (j < a->n && t < count)
            fgk_finish(a, split * a->max_rows + t, j,
                       fgk_get(tile + i / FG_FINISH_ROWS * FG_FINISH_ROW + i % FG_FINISH_ROWS) * fgk_load((const float *)a->scales + t));
    }
}

/* For few rows: a group takes two rows of the weight and `cols` rows of src, its lanes divide k: 1024 of it at a time, of which src goes
   through shared memory (4 words after each 32, against conflicts; in the first two are the sums of each 16). */
enum { FG_GEMV_K = 1024, FG_GEMV_PAD = 1152 };

/* Four numbers of each row of src by each thread. */
FG_DEV void fgk_gemv_src(const fg_gpu_gemm_args *a, float *x, int col0, int count, int k0, int cols) {
    int at = 4 * fgk_thread(), wide = fgk_is_wide(a->src, a->src_stride | a->k), c;
    FG_UNROLL for (c = 0; c < cols; c++) {
        const float *src = (const float *)a->src + (int64_t)(col0 + c < count ? col0 + c : count - 1) * a->src_stride;
        fgk_f4 v = fgk_row_get(src + k0 + at, a->k - k0 - at, wide);
        fgk_u4 bits = {fgk_bits(v.x), fgk_bits(v.y), fgk_bits(v.z), fgk_bits(v.w)};
        float *to = x + c * FG_GEMV_PAD + at / 32 * 36, sum = fgk_sum_f4(v);
        sum += fgk_shuffle_xor(sum, 1);
        sum += fgk_shuffle_xor(sum, 2);
        fgk_put_u4(to + at % 32, bits);
        if (at % 16 == 0) fgk_put(to + 32 + at % 32 / 16, sum);
    }
}

/* A unit of quantised weights of each of two rows by a unit of src: sums of codes by numbers first; scale and minimum count once, or twice. */
FG_DEV void fgk_gemv_unit(int type, const fgk_unit *unit, const float *x, int cols, fgk_f2 acc[2][8]) {
    bool halves = type == FG_GPU_Q2_K || type == FG_GPU_Q3_K || type == FG_GPU_Q6_K; /* with scales of their own */
    fgk_f2 part[2][8]; /* of even and of odd numbers */
    int i, r, c, j;
    FG_UNROLL for (i = 0; i < 4; i++) {
        float w[2][8];
        bool first = i == 0 || (halves && i == 2), last = i == 3 || (halves && i == 1);
        fgk_in_order();
        FG_UNROLL for (r = 0; r < 2; r++) fgk_unit_codes(type, &unit[r], i, w[r]);
        FG_UNROLL for (c = 0; c < cols; c++) {
            const float *from = x + c * FG_GEMV_PAD;
            fgk_f4 u = fgk_get_f4(from + 8 * i), v = fgk_get_f4(from + 8 * i + 4);
            fgk_f2 all[4] = {{u.x, u.y}, {u.z, u.w}, {v.x, v.y}, {v.z, v.w}}, none = {0.0f, 0.0f};
            float sum = last ? fgk_get(from + 32 + (halves ? i / 2 : 0)) : 0.0f;
            if (last && !halves) sum += fgk_get(from + 33);
            FG_UNROLL for (r = 0; r < 2; r++) {
                FG_UNROLL for (j = 0; j < 4; j++) {
                    fgk_f2 codes = {w[r][2 * j], w[r][2 * j + 1]};
                    part[r][c] = fgk_fma_f2(codes, all[j], first && j == 0 ? none : part[r][c]);
                }
                if (!last) continue;
                acc[r][c].x = fgk_fma(unit[r].scale[i / 2], part[r][c].x + part[r][c].y, acc[r][c].x);
                acc[r][c].y = fgk_fma(-fgk_fma(unit[r].scale[i / 2], (float)fgk_byte_zero(type), unit[r].min[i / 2]), sum, acc[r][c].y);
            }
        }
    }
}

/* Rows of the weight of workgroup `block` of these, rows of src from col0 on, of `count` that there are. */
FG_BODY void fgk_gemv_from(const fg_gpu_gemm_args *a, float *x, int type, int cols, int block, int col0, int count) {
    int lane = fgk_lane(), units = (a->k + 31) / 32, k0, g, r, c;
    int row0 = block * FG_GPU_GEMV_ROWS + fgk_group() * 2;
    const char *rows[2];
    fgk_f2 acc[2][8]; /* two sums, to be added up */
    fgk_unit next[2]; /* `ahead`: are fetched while a piece is computed */
    bool ahead = FG_GEMV_AHEAD && !fg_gpu_is_float(type);
    float mine = 0.0f;
    if (col0 >= count) return;
    FG_UNROLL for (r = 0; r < 2; r++) {
        int exponent;
        rows[r] = fgk_row(a, row0 + r, &exponent);
        FG_UNROLL for (c = 0; c < cols; c++) acc[r][c].x = acc[r][c].y = 0.0f;
    }
    if (ahead) FG_UNROLL for (r = 0; r < 2; r++) fgk_unit_fetch(type, rows[r], &a->layout, units, lane, 0, 0, &next[r]);
    FG_ROLLED for (k0 = 0; k0 < a->k; k0 += FG_GEMV_K) {
        fgk_unit unit[2];
        FG_UNROLL for (r = 0; r < 2; r++) {
            if (ahead) unit[r] = next[r];
            else fgk_unit_fetch(type, rows[r], &a->layout, units, k0 / 32 + lane, k0 + 8 * lane, 256, &unit[r]);
            fgk_unit_scales(type, &unit[r]);
        }
        fgk_barrier(); /* after the reads of the piece before */
        fgk_gemv_src(a, x, col0, count, k0, cols);
        fgk_barrier();
        if (ahead) FG_UNROLL for (r = 0; r < 2; r++) fgk_unit_fetch(type, rows[r], &a->layout, units, (k0 + FG_GEMV_K) / 32 + lane, 0, 0, &next[r]);
        if (!fg_gpu_is_float(type)) {
            if (k0 + 32 * lane < a->k) fgk_gemv_unit(type, unit, x + 36 * lane, cols, acc);
            continue;
        }
        FG_UNROLL for (g = 0; g < 8; g++) {
            int at = 8 * lane + g / 2 * 256 + g % 2 * 4;
            float w[2][4];
            FG_UNROLL for (r = 0; r < 2; r++) fgk_unit_four(type, &unit[r], g, w[r]);
            FG_UNROLL for (c = 0; c < cols; c++) {
                fgk_f4 v = fgk_get_f4(x + c * FG_GEMV_PAD + at + at / 32 * 4);
                fgk_f2 x0 = {v.x, v.y}, x1 = {v.z, v.w};
                FG_UNROLL for (r = 0; r < 2; r++) {
                    fgk_f2 w0 = {w[r][0], w[r][1]}, w1 = {w[r][2], w[r][3]};
                    acc[r][c] = fgk_fma_f2(w1, x1, fgk_fma_f2(w0, x0, acc[r][c]));
                }
            }
        }
    }
    FG_UNROLL for (r = 0; r < 2; r++)
        FG_UNROLL for (c = 0; c < cols; c++) {
            float sum = fgk_group_sum(acc[r][c].x + acc[r][c].y);
            if (lane == r * cols + c) mine = sum;
        }
    r = lane / cols;
    c = lane % cols;
    if (r < 2 && row0 + r < a->n && col0 + c < count) fgk_finish(a, col0 + c, row0 + r, mine);
}

FG_BODY void fgk_gemv(const fg_gpu_gemm_args *a, float *x, int type, int cols) {
    fgk_gemv_from(a, x, type, cols, fgk_block_x(), fgk_block_y() * cols, fgk_count(a->count));
}

#if defined(FG_STRAIGHT)
/* For few rows, 2 to 64 (of quantised weights 1 to 128): weights go from memory into matrix fragments, expanded in registers, and so do
   half-float activations, which all workgroups read and caches hold; no tile in shared memory, no barrier before the end. A warp has
   `strips` times 16 rows of the weight, a->across warps are side by side, and 8 / across share k: of it each takes 128 in turn, or 256,
   of which lane c of four has a unit, or two, whole (of float types: 8 of each unit), so that it reads 32 bytes and needs few scales.
   Which k a place of a fragment stands for does not matter where both operands agree.

   Bounds: bytes of the weight; from some 32 rows on what activations take of the first cache: 256 * cols bytes of each warp for its
   16 * strips by 128 of the weight. */
enum { FG_SKINNY_PAD = 4 };

/* Units that a lane has of a step of k, 32 bytes of most types: what lies together is read at about the same time. */
FG_DEV int fgk_skinny_each(int type) { return fg_gpu_lo_bits(type) < 8 ? 2 : 1; }

/* Whether registers suffice for what takes the fewest instructions: one address for the activations of all tiles, codes that stay where there are no
   more. With 64 rows and two units a step compilers keep part of that in memory: on an H200 Q6_K took 1.2 times as long, Q4_K up to 1.1 times. */
FG_DEV bool fgk_skinny_lean(int type, int strips) { return strips == 1 || fgk_skinny_each(type) == 1; }

/* Activations of a step, of which quarter q of the lane's unit i is 2048 * (4 * i + q) halves further on, in the order of fragments; beyond
   the last step those of the first, where weights are 0. `row`: the lane's, of the first. */
FG_DEV const uint16_t *fgk_skinny_acts(const uint16_t *row, int type, int stride, int step) {
    int each = fgk_skinny_each(type);
    return row + (128 * each * step < stride ? 8192 * each * step : 0);
}

/* Eight of them in each tile. */
FG_DEV void fgk_skinny_read(const uint16_t *from, int at, int tiles, fgk_u4 *x) {
    int t;
    FG_UNROLL for (t = 0; t < tiles; t++) x[t] = fgk_load_u4(from + at + 256 * t);
}

/* The same, of a step, without an address for it. */
FG_DEV void fgk_skinny_read_tiles(const uint16_t *const *acts, int type, int stride, int step, int quarter, int tiles, fgk_u4 *x) {
    int units = fgk_skinny_each(type) * (128 * fgk_skinny_each(type) * step < stride ? step : 0), t;
    FG_UNROLL for (t = 0; t < tiles; t++) x[t] = fgk_load_u4(acts[t] + 2048 * (4 * units + quarter));
}

/* A lane's units of a step of one row: ring[0], of two also ring[4]. Scales of both are one word in each. Beyond the last unit scales are 0, and
   of a type of numbers what was read before stays: to set that to 0, too, would be one instruction in thirty of a product of one row. */
FG_DEV void fgk_skinny_fetch(int type, const char *row, const fg_gpu_layout *layout, int units, int step, bool lean, fgk_unit *ring) {
    int lo = fg_gpu_lo_bits(type), hi = fg_gpu_hi_bits(type), bytes = fg_gpu_scale_bytes(type);
    int c = fgk_lane() & 3, u = 8 * step + 2 * c, i, j;
    if (fgk_skinny_each(type) == 1) {
        u = 4 * step + c;
        FG_UNROLL for (i = 0; i < lo / 4; i++) { /* of float types 16 bytes of each unit of the step */
            int at = fg_gpu_is_float(type) ? 4 * step + i : u;
            fgk_u4 v = {0, 0, 0, 0};
            if (at < units) v = fgk_once_u4(row + (fg_gpu_is_float(type) ? 64 * at + 16 * c : 32 * u + 16 * i));
            else if (fg_gpu_has_numbers(type)) continue;
            ring->lo[4 * i] = v.x, ring->lo[4 * i + 1] = v.y, ring->lo[4 * i + 2] = v.z, ring->lo[4 * i + 3] = v.w;
        }
        ring->s = bytes && u < units ? fgk_once_u16(row + layout->s_at + 2 * u) : 0;
        return;
    }
    FG_UNROLL for (i = 0; i < 2; i++) {
        FG_UNROLL for (j = 0; j < lo && (!lean || !fg_gpu_has_numbers(type)); j++) ring[4 * i].lo[j] = 0;
        if (!lean) ring[4 * i].hi[0] = ring[4 * i].hi[1] = 0;
        ring[4 * i].s = ring[4 * i].d = 0;
    }
    if (u >= units) return;
    FG_UNROLL for (i = 0; i < lo / 2; i++) { /* past the last unit there are other planes, of no weight: scales there are 0 */
        fgk_u4 v = fgk_once_u4(row + 4 * lo * u + 16 * i);
        if (lo == 4) {
            ring[4 * i].lo[0] = v.x, ring[4 * i].lo[1] = v.y, ring[4 * i].lo[2] = v.z, ring[4 * i].lo[3] = v.w;
        } else {
            ring[0].lo[0] = v.x, ring[0].lo[1] = v.y, ring[4].lo[0] = v.z, ring[4].lo[1] = v.w;
        }
    }
    FG_UNROLL for (i = 0; i < 2; i++) {
        FG_UNROLL for (j = 0; j < hi; j++) ring[4 * i].hi[j] = fgk_once_u32(row + layout->hi_at + 4 * ((u + i) * hi + j));
        ring[4 * i].s = bytes == 4 ? fgk_once_u32(row + layout->s_at + 4 * (u + i)) : i ? ring[0].s
                      : bytes == 2 ? fgk_once_u32(row + layout->s_at + 2 * u) : fgk_once_u16(row + layout->s_at + u);
        if (fg_gpu_has_blocks_of_256(type)) ring[4 * i].d = i ? ring[0].d : fgk_once_u32(row + layout->d_at + 4 * step);
    }
}

/* What stays where there is no first step. */
FG_DEV void fgk_skinny_clear(int type, fgk_unit *ring) {
    int i, j;
    FG_UNROLL for (i = 0; i < fgk_skinny_each(type); i++) {
        FG_UNROLL for (j = 0; j < fg_gpu_lo_bits(type) && fg_gpu_has_numbers(type); j++) ring[4 * i].lo[j] = 0;
        ring[4 * i].hi[0] = ring[4 * i].hi[1] = 0;
    }
}

/* Scales and minima of a unit as halves, both halves of a word the same. */
typedef struct fgk_skinny_scale {
    uint32_t scale[2], min[2], part[2]; /* of its halves; minima negated; a sixteenth of the scales */
} fgk_skinny_scale;

/* Of Q4_K and Q5_K, a word of both: products of halves are rounded as those of floats are when they become halves, and the factors of 256 weights are
   halves for all their units. With 1024 over them codes are halves, 1024 more than they. */
FG_DEV uint32_t fgk_skinny_two(uint32_t bits, uint32_t both, float factor) {
    uint32_t of = fgk_two_halves(fgk_half_to_float(both) * factor, -fgk_half_to_float(both >> 16) * factor);
    return fgk_halves_mul(fgk_halves_sub(fgk_pick_bytes(bits, 0x64u, 0x4140u), 0x64006400u), of);
}

/* Of the lane's unit i of a step. */
FG_DEV void fgk_skinny_scales(int type, fgk_unit *unit, int i, float factor, bool lean, fgk_skinny_scale *s) {
    int bytes = fg_gpu_scale_bytes(type), h;
    uint32_t bits = bytes < 4 && fgk_skinny_each(type) == 2 ? unit->s >> 8 * bytes * i : unit->s;
    bool two = lean && (type == FG_GPU_Q4_K || type == FG_GPU_Q5_K);
    if (fg_gpu_is_float(type)) return;
    if (!two) fgk_unit_scale_words(type, bits, unit->d, unit);
    if (!fg_gpu_has_numbers(type)) return;
    FG_UNROLL for (h = 0; h < 2; h++) {
        uint32_t both = two ? fgk_skinny_two(bits, unit->d, factor) : fgk_two_halves(unit->scale[h] * factor, -unit->min[h] * factor);
        s->scale[h] = fgk_low_halves(both, both);
        s->min[h] = fgk_high_halves(both, both);
        s->part[h] = fgk_halves_mul(s->scale[h], 0x2C002C00u);
    }
}

/* Weights 2p and 2p + 1 of a unit as halves. Codes with 0x6400 over them are halves, 1024 more than they; every second pair of four bits
   is left where it is, and so sixteen times as much. */
FG_DEV uint32_t fgk_skinny_pair(int type, const fgk_unit *unit, const fgk_skinny_scale *s, int p) {
    int h = p / 8, odd = fg_gpu_lo_bits(type) == 4 ? p % 2 : 0, left = 4 * odd;
    uint32_t over = 0x64006400u, zero = over + ((uint32_t)fgk_code_zero(type) << left) * 0x00010001u;
    uint32_t pair = fgk_halves_sub(fgk_pair_over(type, unit, p, left, over), zero);
    return fgk_halves_fma(pair, odd ? s->part[h] : s->scale[h], s->min[h]);
}

/* Four weights each of rows r and r + 8 as the left operand of a step. */
FG_DEV void fgk_skinny_left(int type, const fgk_unit *units, const fgk_skinny_scale *scales, int g, fgk_frag *f) {
    int r, p;
    FG_UNROLL for (r = 0; r < 2; r++) {
        if (fg_gpu_has_numbers(type)) {
            FG_UNROLL for (p = 0; p < 2; p++) f->x[2 * p + r] = fgk_skinny_pair(type, &units[r], &scales[r], 2 * g + p);
        } else {
            float w[4];
            fgk_unit_four(type, &units[r], g, w);
            f->x[r] = fgk_two_halves(w[0], w[1]);
            f->x[2 + r] = fgk_two_halves(w[2], w[3]);
        }
    }
}

/* 0, which the compiler does not know, once the last word of a unit is there. Compilers count all loads of a loop together, so
   that whoever waits for some waits for those behind them, too: on an H200 products of one row stood a fourth of their time for weights that were
   asked for too early. So a step's weights are asked for where those of the step before have come, and are waited for with nothing else. */
FG_DEV int fgk_skinny_behind(const fg_gpu_gemm_args *a, int type, const fgk_unit *unit) {
    return (int)fgk_keep(unit->lo[fg_gpu_lo_bits(type) - 1] & (uint32_t)(a->max_rows >> 31));
}

FG_BODY void fgk_skinny(const fg_gpu_gemm_args *a, float *tile, int type, int cols, int strips) {
    int count, across = a->across, all = 16 * strips * across, n0 = fgk_block_x() * all, col0 = fgk_block_y() * cols, me = fgk_thread();
    int lane = fgk_lane(), warp = me / 32, share = warp / across, shares = FG_GPU_GEMV_THREADS / 32 / across;
    int units = (a->k + 31) / 32, each = fgk_skinny_each(type), steps = (units + 4 * each - 1) / (4 * each);
    int mine = warp % across * 16 * strips; /* rows before this warp's */
    int bytes = fg_gpu_lo_bits(type) >= 8, depth = (bytes ? 2 : cols < 32 ? 4 : 2) / (bytes ? strips : 1);
    bool turns = cols == 8 && each == 2 && fg_gpu_hi_bits(type) < 2; /* see fgk_skinny_behind: where registers suffice for a step's activations ahead */
    int tiles = cols / 8, buffers = tiles == 1 && depth > 1 ? 8 : 2, ahead = turns ? 8 : buffers / 2, row = 16 * strips + FG_SKINNY_PAD, part = cols < 32 ? cols : 32;
    int g, d, i, j, t, w, h;
    bool lean = fgk_skinny_lean(type, strips);
    const char *rows[4];
    const uint16_t *acts, *from; /* of the lane's row; of the step whose activations are loaded */
    const uint16_t *tile_acts[8]; /* not lean: of each tile */
    fgk_unit ring[4][4];
    float factors[4];
    fgk_skinny_scale scales[4];
    fgk_u4 x[8][8]; /* [buffers][tiles] */
    fgk_sums sums[2][8];
    FG_UNROLL for (j = 0; j < 2 * strips; j++) {
        int exponent;
        rows[j] = fgk_row(a, n0 + mine + lane / 4 + 8 * j, &exponent);
        factors[j] = fgk_from_bits((uint32_t)(127 + exponent) << 23);
    }
    FG_UNROLL for (d = 0; d < depth; d += each)
        FG_UNROLL for (j = 0; j < 2 * strips; j++) {
            fgk_skinny_clear(type, &ring[d][j]);
            fgk_skinny_fetch(type, rows[j], &a->layout, units, share + d / each * shares, lean, &ring[d][j]);
        }
    fgk_depend();
    i = a->max_rows - 1 - col0; /* of a row beyond the last that one; what becomes of it stays in columns that nobody reads, as of rows beyond the count */
    acts = (const uint16_t *)a->acts + fg_gpu_acts_row(fg_gpu_acts_fragments(type), a->acts_stride, col0 + (tiles == 1 && lane / 4 > i ? i : lane / 4)) +
           8 * (lane & 3);
    from = fgk_skinny_acts(acts, type, a->acts_stride, share);
    FG_UNROLL for (t = 0; t < tiles && !lean; t++) tile_acts[t] = acts + 256 * t;
    FG_UNROLL for (j = 0; j < strips; j++)
        FG_UNROLL for (t = 0; t < (tiles + 1) / 2; t++)
            FG_UNROLL for (i = 0; i < FG_SUMS; i++) sums[j][t].x[i] = 0.0f;
    FG_UNROLL for (i = 0; i < ahead; i++) fgk_skinny_read(from, 2048 * i, tiles, x[i]);
    count = fgk_count(a->count); /* looked at when what the product begins with is under way */
    if (col0 >= count) return;
    FG_ROLLED for (g = share; g < steps; g += depth / each * shares) {
        FG_UNROLL for (i = 0; i < 4 * depth; i++) {
            fgk_unit *its = ring[i / 4];
            int then = i + ahead, at = then / 4 % each; /* whose activations are loaded now */
            if (i % 4 == 0)
                FG_UNROLL for (j = 0; j < 2 * strips; j++) fgk_skinny_scales(type, &its[j], i / 4 % each, factors[j], lean, &scales[j]);
            if (then % (4 * each) == 0) from = fgk_skinny_acts(acts, type, a->acts_stride, g + then / (4 * each) * shares);
            if (turns && i % 8 == 0) {
                int behind = fgk_skinny_behind(a, type, &ring[i / 8 * 2 + 1][1]), step = g + (i < 8 ? 1 : 2) * shares + behind;
                FG_UNROLL for (j = 0; j < 2 && (i >= 8 || g > share); j++)
                    fgk_skinny_fetch(type, rows[j], &a->layout, units, step, lean, &ring[i < 8 ? 2 : 0][j]);
            }
            if (!turns && lean) fgk_skinny_read(from, 2048 * (4 * at + then % 4), tiles, x[then % buffers]);
            if (!turns && !lean)
                fgk_skinny_read_tiles(tile_acts, type, a->acts_stride, g + then / (4 * each) * shares, 4 * at + then % 4, tiles, x[then % buffers]);
            FG_UNROLL for (w = 0; w < 2; w++)
                FG_UNROLL for (j = 0; j < strips; j++) {
                    fgk_frag left, right;
                    fgk_skinny_left(type, its + 2 * j, scales + 2 * j, 2 * (i % 4) + w, &left);
                    FG_UNROLL for (t = 0; t < tiles; t += 2) {
                        const fgk_u4 *one = &x[i % buffers][t], *two = &x[i % buffers][t + 1 < tiles ? t + 1 : t];
                        right.x[0] = w ? one->z : one->x, right.x[2] = w ? one->w : one->y;
                        right.x[1] = w ? two->z : two->x, right.x[3] = w ? two->w : two->y;
                        if (tiles == 1) fgk_mma_narrow(&sums[j][0], &left, &right);
                        else fgk_mma(&sums[j][t / 2], &left, &right);
                    }
                }
            if (turns) fgk_skinny_read(from, 2048 * (then % 8), tiles, x[then % 8]);
            if (!turns && i % (4 * each) == 4 * each - 1) {
                int done = i / 4 + 1 - each;
                FG_UNROLL for (j = 0; j < 2 * strips; j++)
                    fgk_skinny_fetch(type, rows[j], &a->layout, units, g + (done + depth) / each * shares, lean, &ring[done][j]);
            }
        }
    }
    FG_UNROLL for (h = 0; h < cols; h += part) {
        if (h) fgk_barrier();
        FG_UNROLL for (j = 0; j < strips; j++)
            FG_UNROLL for (t = h / 16; t < (h + part + 15) / 16; t++)
                FG_UNROLL for (i = 0; i < (tiles == 1 ? FG_SUMS / 2 : FG_SUMS); i++)
                    fgk_put(tile + (warp * part + 16 * t - h + fgk_sum_col(i)) * row + 16 * j + fgk_sum_row(i), sums[j][t].x[i]);
        fgk_barrier();
        FG_ROLLED for (i = me; i < all * part; i += FG_GPU_GEMV_THREADS) {
            float sum = 0.0f, scale;
            j = i & (all - 1), t = i >> fgk_log2(all);
            if (n0 + j >= a->n || col0 + h + t >= count) continue;
            for (w = 0; w < shares; w++) sum += fgk_get(tile + ((w * across + j / (16 * strips)) * part + t) * row + j % (16 * strips));
            (void)fgk_row(a, n0 + j, &w);
            scale = fgk_load((const float *)a->scales + col0 + h + t) * fgk_from_bits((uint32_t)(127 - w) << 23);
            fgk_finish(a, col0 + h + t, n0 + j, sum * scale);
        }
    }
}
#endif

/* NVIDIA's devices, which have skinny for few rows, have none: fg__gpu_splits_of. */
FG_DEV int fgk_splits(const fg_gpu_gemm_args *a) {
#if defined(__CUDACC__)
    (void)a;
    return 1;
#else
    return fg_gpu_splits(a);
#endif
}

/* What is left to do after a product by a library, or by splits of k: a thread has four elements of several rows, so that enough loads are under way. */
FG_BODY void fgk_finish_product(const fg_gpu_gemm_args *a) {
    int row = FG_GPU_FINISH_ROWS * fgk_block_y(), j = 4 * (fgk_block_x() * FG_GPU_THREADS + fgk_thread()), n = a->n - j, wide, r, split;
    int count = fgk_count(a->count);
    fgk_f4 x[FG_GPU_FINISH_ROWS], y[FG_GPU_FINISH_ROWS], bias;
    float scale[FG_GPU_FINISH_ROWS];
    if (row >= count || n <= 0) return;
    wide = fgk_is_wide(a->src | a->dst | a->src2 | a->bias, a->n | a->src_stride | a->dst_stride | (a->src2 ? a->src2_stride : 0));
    bias = fgk_row_get((const float *)a->bias + j, a->bias ? n : 0, wide);
    FG_UNROLL for (r = 0; r < FG_GPU_FINISH_ROWS; r++) {
        int some = row + r < count ? n : 0;
        scale[r] = a->scales && some ? fgk_load((const float *)a->scales + row + r) : 1.0f;
        x[r] = fgk_row_get((const float *)a->src + (int64_t)(row + r) * a->src_stride + j, some, wide);
    }
    FG_ROLLED for (split = 1; split < fgk_splits(a); split++) {
        const float *sums = (const float *)a->src + (int64_t)(split * a->max_rows + row) * a->src_stride + j;
        FG_UNROLL for (r = 0; r < FG_GPU_FINISH_ROWS; r++, sums += a->src_stride) x[r] = fgk_add_f4(x[r], fgk_row_get(sums, row + r < count ? n : 0, wide));
    }
    FG_UNROLL for (r = 0; r < FG_GPU_FINISH_ROWS; r++)
        y[r] = fgk_row_get((const float *)a->src2 + (int64_t)(row + r) * a->src2_stride + j, a->src2 && row + r < count ? n : 0, wide);
    FG_UNROLL for (r = 0; r < FG_GPU_FINISH_ROWS; r++) {
        x[r].x *= scale[r], x[r].y *= scale[r], x[r].z *= scale[r], x[r].w *= scale[r];
        if (a->bias) x[r] = fgk_add_f4(x[r], bias);
        if (a->act) x[r] = fgk_act_four(a->act, x[r]);
        if (a->src2) x[r] = fgk_add_f4(x[r], y[r]);
        fgk_row_put((float *)a->dst + (int64_t)(row + r) * a->dst_stride + j, x[r], row + r < count ? n : 0, wide);
    }
}

/* Weights 8g to 8g + 7 of a unit as halves: floats, rounded once. Codes with 0x6400 over them are halves, 1024 more than the code, which is
   faster than conversions of whole numbers; where the scale is a half, and nothing is added, all of it is done in pairs of them. */
FG_DEV fgk_u4 fgk_unit_halves(int type, const fgk_unit *unit, int g) {
    bool table = type == FG_GPU_IQ4_NL || type == FG_GPU_IQ4_XS || type == FG_GPU_MXFP4;
    bool whole = type == FG_GPU_Q4_0 || type == FG_GPU_Q5_0 || type == FG_GPU_Q8_0 || type == FG_GPU_IQ4_NL; /* their scales are halves */
    uint32_t over = 0x64006400u, zero = over + (uint32_t)fgk_byte_zero(type) * 0x10001u, pairs[4], bytes[2];
    uint32_t scale = whole ? fgk_two_halves(unit->scale[0], unit->scale[0]) : 0;
    fgk_u4 v;
    int p;
    if (table) fgk_code_values(type, unit->lo[g], bytes);
    FG_UNROLL for (p = 0; p < 4; p++) {
        float x[4];
        if (type == FG_GPU_F16) {
            pairs[p] = unit->lo[4 * g + p];
            continue;
        }
        if (type == FG_GPU_F32 || type == FG_GPU_BF16) {
            fgk_unit_four(type, unit, 2 * g + p / 2, x);
            pairs[p] = fgk_two_halves(x[p % 2 * 2], x[p % 2 * 2 + 1]);
            continue;
        }
        pairs[p] = table ? fgk_pick_bytes(bytes[p / 2], over >> 24, p % 2 ? 0x4342u : 0x4140u) : fgk_pair_over(type, unit, 4 * g + p, 0, over);
        pairs[p] = fgk_halves_sub(pairs[p], zero);
        pairs[p] = whole ? fgk_halves_mul(pairs[p], scale) : fgk_halves_scale(pairs[p], unit->scale[g / 2], unit->min[g / 2]);
    }
    v.x = pairs[0], v.y = pairs[1], v.z = pairs[2], v.w = pairs[3];
    return v;
}

/* Rows of a quantised weight as halves, for a library: a thread has the same eight weights, a quarter of a unit, of several rows, so that
   many loads are under way and addresses cost little. The words of its planes are shifted so that its pairs are the first of a unit. */
FG_BODY void fgk_expand(const fg_gpu_expand_args *a, int type) {
    int row = FG_GPU_EXPAND_ROWS * fgk_block_x(), e = fgk_block_y() * FG_GPU_THREADS + fgk_thread(), u = e / 4, q = e % 4, r, j;
    int lo = fg_gpu_lo_bits(type), hi = fg_gpu_hi_bits(type);
    bool halves = type == FG_GPU_Q2_K || type == FG_GPU_Q3_K || type == FG_GPU_Q6_K; /* of a unit, with scales of their own */
    fgk_unit units[FG_GPU_EXPAND_ROWS];
    if (8 * e >= a->k) return;
    FG_UNROLL for (r = 0; r < FG_GPU_EXPAND_ROWS; r++) {
        const char *from = (const char *)a->weight + (int64_t)(row + r < a->n ? row + r : a->n - 1) * a->layout.stride;
        fgk_unit *unit = &units[r];
        fgk_unit_scale_bits(type, from, &a->layout, u, unit);
        if (lo == 2) unit->lo[0] = fgk_load_u32(from + 8 * u + 4 * (q / 2)) >> 8 * (q % 2);
        else FG_UNROLL for (j = 0; j < lo / 4; j++) unit->lo[j] = fgk_load_u32(from + 4 * (e * (lo / 4) + j));
        if (hi == 1) unit->hi[0] = fgk_load_u32(from + a->layout.hi_at + 4 * u) >> 4 * q;
        if (hi == 2) unit->hi[0] = fgk_load_u32(from + a->layout.hi_at + 8 * u + 4 * (q / 2)) >> 8 * (q % 2);
    }
    FG_UNROLL for (r = 0; r < FG_GPU_EXPAND_ROWS; r++) {
        if (halves) units[r].s >>= q / 2 * 8;
        fgk_unit_scales(type, &units[r]);
        if (row + r < a->n)
            fgk_store_u4((uint16_t *)a->dst + (int64_t)(row + r) * a->dst_stride + 8 * e, fgk_unit_halves(type, &units[r], 0));
    }
}

/* For many rows: 64 rows of the weight by `cols` (16 or 64) rows of half-float activations, 64 of k at a time. The weight is
   expanded in registers on its way to shared memory while the tiles before are multiplied; activations are copied
   asynchronously. Rows of tiles have 8 halves of padding, against conflicts. */
enum { FG_GEMM_K = 64, FG_GEMM_PAD = 72, FG_GEMM_W = FG_GPU_GEMM_ROWS * FG_GEMM_PAD };

/* A unit as halves: its four pieces of 16 bytes are `first` and each `step` on of a row in shared memory, where piece c is at c ^ turn. */
FG_DEV void fgk_gemm_store(int type, const fgk_unit *unit, uint16_t *row, int first, int step, int turn) {
    int g;
    FG_UNROLL for (g = 0; g < 4; g++) fgk_put_u4(row + ((first + g * step) ^ turn) * 8, fgk_unit_halves(type, unit, g));
}

/* The pairs of a tile of an expert, in shared memory; the last again where it is not full. */
typedef struct fgk_pairs {
    const uint32_t *tokens, *places;
    int n_used, of_pairs;
} fgk_pairs;

/* The row of acts of pair i of a tile. */
FG_DEV int fgk_pair_row(const fgk_pairs *pairs, int i) {
    int token = (int)fgk_get_u32(pairs->tokens + i);
    return pairs->of_pairs ? token * pairs->n_used + (int)fgk_get_u32(pairs->places + i) : token;
}

/* `pairs`: 0, or the rows are theirs. */
FG_DEV void fgk_gemm_acts(const fg_gpu_gemm_args *a, const fgk_pairs *pairs, uint16_t *tile, int col0, int count, int k0, int cols) {
    int i;
    FG_UNROLL for (i = fgk_thread(); i < cols * 8; i += FG_GPU_THREADS) {
        int col = pairs ? fgk_pair_row(pairs, i / 8) : col0 + i / 8 < count ? col0 + i / 8 : count - 1;
        fgk_async_copy(tile + i / 8 * FG_GEMM_PAD + i % 8 * 8, (const uint16_t *)a->acts + (int64_t)col * a->acts_stride + k0 + i % 8 * 8);
    }
}

/* The part of k of a split. */
FG_DEV int fgk_split_start(const fg_gpu_gemm_args *a, int split) { return split * ((a->k + FG_GEMM_K - 1) / FG_GEMM_K) / fgk_splits(a) * FG_GEMM_K; }
FG_DEV int fgk_split_end(const fg_gpu_gemm_args *a, int split) { return split + 1 < fgk_splits(a) ? fgk_split_start(a, split + 1) : a->k; }

/* As fgk_finish_tile, to where each pair's products go. */
FG_DEV void fgk_finish_pairs(const fg_gpu_gemm_args *a, const fgk_pairs *pairs, const float *tile, int n0, int cols, int count) {
    int i;
    FG_ROLLED for (i = fgk_thread(); i < FG_FINISH_ROWS * cols; i += FG_GPU_THREADS) {
        int j = n0 + i % FG_FINISH_ROWS, t = i / FG_FINISH_ROWS;
        float x;
        if (j >= a->n || t >= count) continue;
        x = fgk_get(tile + t * FG_FINISH_ROW + i % FG_FINISH_ROWS) * fgk_load((const float *)a->scales + fgk_pair_row(pairs, t));
        if (a->bias) x += fgk_load((const float *)a->bias + j);
        fgk_store((float *)a->dst + (int64_t)(int)fgk_get_u32(pairs->tokens + t) * a->dst_stride + (int64_t)(int)fgk_get_u32(pairs->places + t) * a->n + j, x);
    }
}

/* The tile of rows of the weight from n0 on by rows of src from col0 on, of `count` that there are, or by as many pairs. */
FG_BODY void fgk_gemm_tile(const fg_gpu_gemm_args *a, const fgk_pairs *pairs, uint16_t *w_tiles, uint16_t *x_tiles, int type, int cols, int n0, int col0,
                          int count, int split) {
    int me = fgk_thread(), start = fgk_split_start(a, split), end = fgk_split_end(a, split);
    int warp = me / FG_WARP, units = (a->k + 31) / 32, k0, s, c, i, kk, buffer = 0, row = n0 + me / 2;
    const char *from = (const char *)a->weight + (int64_t)(row < a->n ? row : a->n - 1) * a->layout.stride;
    float *out = (float *)(void *)w_tiles; /* at the end */
    fgk_unit unit;
    fgk_sums sums[2][4]; /* a warp has every fourth (of 64 lanes: second) strip of 16 rows of the weight */
    if (col0 >= count) return;
    FG_UNROLL for (s = 0; s < FG_WARP / 32; s++)
        FG_UNROLL for (c = 0; c < cols / 16; c++)
            FG_UNROLL for (i = 0; i < FG_SUMS; i++) sums[s][c].x[i] = 0.0f;
    fgk_unit_load(type, from, &a->layout, units, start / 32 + me % 2, start + 32 * (me % 2), 8, &unit);
    fgk_gemm_acts(a, pairs, x_tiles, col0, count, start, cols);
    fgk_gemm_store(type, &unit, w_tiles + me / 2 * FG_GEMM_PAD, me % 2 * 4, 1, 0);
    fgk_async_wait();
    fgk_barrier();
    FG_ROLLED for (k0 = start; k0 < end; k0 += FG_GEMM_K, buffer ^= 1) {
        const uint16_t *w = w_tiles + buffer * FG_GEMM_W, *x = x_tiles + buffer * cols * FG_GEMM_PAD;
        int next = k0 + FG_GEMM_K;
        if (next < end) {
            fgk_unit_load(type, from, &a->layout, units, next / 32 + me % 2, next + 32 * (me % 2), 8, &unit);
            fgk_gemm_acts(a, pairs, x_tiles + (buffer ^ 1) * cols * FG_GEMM_PAD, col0, count, next, cols);
        }
        FG_UNROLL_MMA for (kk = 0; kk < FG_GEMM_K; kk += 16) {
            fgk_frag rows[2], col;
            FG_UNROLL for (s = 0; s < FG_WARP / 32; s++)
                fgk_frag_load(&rows[s], w + (warp + s * (FG_GPU_THREADS / FG_WARP)) * 16 * FG_GEMM_PAD + kk, FG_GEMM_PAD);
            FG_UNROLL for (c = 0; c < cols / 16; c++) {
                fgk_frag_load(&col, x + c * 16 * FG_GEMM_PAD + kk, FG_GEMM_PAD);
                FG_UNROLL for (s = 0; s < FG_WARP / 32; s++) fgk_mma(&sums[s][c], &rows[s], &col);
            }
        }
        if (next < end) fgk_gemm_store(type, &unit, w_tiles + (buffer ^ 1) * FG_GEMM_W + me / 2 * FG_GEMM_PAD, me % 2 * 4, 1, 0);
        fgk_async_wait();
        fgk_barrier();
    }
    FG_UNROLL for (s = 0; s < FG_WARP / 32; s++)
        FG_UNROLL for (c = 0; c < cols / 16; c++)
            FG_UNROLL for (i = 0; i < FG_SUMS; i++)
                fgk_put(out + (c * 16 + fgk_sum_col(i)) * FG_FINISH_ROW + (warp + s * (FG_GPU_THREADS / FG_WARP)) * 16 + fgk_sum_row(i), sums[s][c].x[i]);
    fgk_barrier();
    if (pairs) fgk_finish_pairs(a, pairs, out, n0, cols, count);
    else fgk_finish_tile(a, out, n0, col0, cols, count, split, FG_GPU_THREADS);
}

FG_BODY void fgk_gemm(const fg_gpu_gemm_args *a, uint16_t *w_tiles, uint16_t *x_tiles, int type, int cols) {
    fgk_gemm_tile(a, 0, w_tiles, x_tiles, type, cols, fgk_block_x() * FG_GPU_GEMM_ROWS, fgk_block_y() / fgk_splits(a) * cols, fgk_count(a->count),
                  fgk_block_y() % fgk_splits(a));
}

/* For very many rows: 128 rows of the weight by 128 of activations, 64 of k at a time; a warp has 64 rows of the weight and 32 (of
   64 lanes: 64) of activations, which is what the reads of fragments from shared memory ask for. What comes next is loaded into
   registers while the tiles are multiplied. Sums are taken in the order of fgk_gemm. */
FG_BODY void fgk_gemm_big(const fg_gpu_gemm_args *a, uint16_t *w, int type) {
    int count = fgk_count(a->count), n0 = fgk_block_x() * FG_GPU_BIG_ROWS, col0 = fgk_block_y() / fgk_splits(a) * FG_GPU_BIG_ROWS, me = fgk_thread();
    int split = fgk_block_y() % fgk_splits(a), start = fgk_split_start(a, split), end = fgk_split_end(a, split);
    int warp = me / FG_WARP, units = (a->k + 31) / 32, strip = warp % 2 * 64, cols = FG_WARP, first = warp / 2 * cols, k0, s, c, i, kk;
    int row = n0 + me / 2 < a->n ? n0 + me / 2 : a->n - 1, col = col0 + me / 2 < count ? col0 + me / 2 : count - 1;
    const char *from = (const char *)a->weight + (int64_t)row * a->layout.stride;
    const uint16_t *acts = (const uint16_t *)a->acts + (int64_t)col * a->acts_stride + me % 2 * 32;
    uint16_t *x = w + FG_GPU_BIG_ROWS * FG_GEMM_PAD, *to_w = w + me / 2 * FG_GEMM_PAD, *to_x = x + me / 2 * FG_GEMM_PAD + me % 2 * 32;
    float *out = (float *)(void *)w; /* at the end */
    fgk_unit unit;
    fgk_u4 next[4];
    fgk_sums sums[4][4];
    if (col0 >= count) return;
    FG_UNROLL for (s = 0; s < 4; s++)
        FG_UNROLL for (c = 0; c < cols / 16; c++)
            FG_UNROLL for (i = 0; i < FG_SUMS; i++) sums[s][c].x[i] = 0.0f;
    fgk_unit_load(type, from, &a->layout, units, start / 32 + me % 2, start + 32 * (me % 2), 8, &unit);
    FG_UNROLL for (i = 0; i < 4; i++) next[i] = fgk_load_u4(acts + start + 8 * i);
    FG_ROLLED for (k0 = start; k0 < end; k0 += FG_GEMM_K) {
        fgk_barrier();
        fgk_gemm_store(type, &unit, to_w, me % 2 * 4, 1, 0);
        FG_UNROLL for (i = 0; i < 4; i++) fgk_put_u4(to_x + 8 * i, next[i]);
        fgk_barrier();
        if (k0 + FG_GEMM_K < end) {
            int k1 = k0 + FG_GEMM_K;
            fgk_unit_load(type, from, &a->layout, units, k1 / 32 + me % 2, k1 + 32 * (me % 2), 8, &unit);
            FG_UNROLL for (i = 0; i < 4; i++) next[i] = fgk_load_u4(acts + k1 + 8 * i);
        }
        FG_UNROLL_MMA for (kk = 0; kk < FG_GEMM_K; kk += 16) {
            fgk_frag rows[4], one;
            FG_UNROLL for (s = 0; s < 4; s++) fgk_frag_load(&rows[s], w + (strip + s * 16) * FG_GEMM_PAD + kk, FG_GEMM_PAD);
            FG_UNROLL for (c = 0; c < cols / 16; c++) {
                fgk_frag_load(&one, x + (first + c * 16) * FG_GEMM_PAD + kk, FG_GEMM_PAD);
                FG_UNROLL for (s = 0; s < 4; s++) fgk_mma(&sums[s][c], &rows[s], &one);
            }
        }
    }
    FG_ROLLED for (k0 = 0; k0 < FG_GPU_BIG_ROWS; k0 += FG_FINISH_ROWS) { /* half of the rows of the weight at a time */
        fgk_barrier();
        if (strip == k0)
            FG_UNROLL for (s = 0; s < 4; s++)
                FG_UNROLL for (c = 0; c < cols / 16; c++)
                    FG_UNROLL for (i = 0; i < FG_SUMS; i++)
                        fgk_put(out + (first + c * 16 + fgk_sum_col(i)) * FG_FINISH_ROW + s * 16 + fgk_sum_row(i), sums[s][c].x[i]);
        fgk_barrier();
        fgk_finish_tile(a, out, n0 + k0, col0, FG_GPU_BIG_ROWS, count, split, FG_GPU_GEMV_THREADS);
    }
}

#if defined(FG_BYTE_DOTS)
/* For many rows, where there are no matrix instructions: 64 rows of the weight by `cols` (16 or 64) rows of activations as bytes, 64
   of k at a time, both in shared memory as bytes. A thread has every eighth row of the weight and every sixteenth of activations;
   products of 16 (or, where they have one scale, 32) are whole numbers, and added up as floats. */
enum { FG_BYTES_ROW = 20 }; /* words of a row: 16 and padding against conflicts */

/* Shared memory, in words: the tiles and their scales, or at the end the result. */
#define FG_BYTES_WORDS(cols) \
    ((FG_FINISH_ROWS + (cols)) * (FG_BYTES_ROW + 8) > (cols)*FG_FINISH_ROW ? (FG_FINISH_ROWS + (cols)) * (FG_BYTES_ROW + 8) : (cols)*FG_FINISH_ROW)

/* Weights 4g to 4g + 3 of a unit as signed bytes. */
FG_DEV uint32_t fgk_unit_bytes(int type, const fgk_unit *unit, int g) {
    uint32_t word = 0;
    int p, j;
    FG_UNROLL for (p = 0; p < 2; p++) {
        uint32_t pair = fgk_unit_pair(type, unit, 2 * g + p);
        FG_UNROLL for (j = 0; j < 2; j++) {
            uint32_t code = j ? pair >> 16 : pair & 0xFFFFu;
            int value = type == FG_GPU_IQ4_NL || type == FG_GPU_IQ4_XS || type == FG_GPU_MXFP4 ? (int)fgk_code_value(type, code)
                                                                                             : (int)code - fgk_code_zero(type);
            word |= ((uint32_t)value & 255u) << (2 * p + j) * 8;
        }
    }
    return word;
}

/* A unit to shared memory: its bytes, then scales and minima of both halves. */
FG_DEV void fgk_bytes_put(int type, const fgk_unit *unit, uint32_t *to, uint32_t *scales) {
    fgk_u4 v;
    int g;
    FG_UNROLL for (g = 0; g < 8; g += 4) {
        v.x = fgk_unit_bytes(type, unit, g);
        v.y = fgk_unit_bytes(type, unit, g + 1);
        v.z = fgk_unit_bytes(type, unit, g + 2);
        v.w = fgk_unit_bytes(type, unit, g + 3);
        fgk_put_u4(to + g, v);
    }
    v.x = fgk_bits(unit->scale[0]);
    v.y = fgk_bits(unit->scale[1]);
    v.z = fgk_bits(unit->min[0]);
    v.w = fgk_bits(unit->min[1]);
    fgk_put_u4(scales, v);
}

/* A unit of activations on its way: bytes, what they are multiplied by, sums. */
typedef struct fgk_bytes {
    fgk_u4 x[2];
    float scale;
    uint32_t sums;
} fgk_bytes;

FG_DEV void fgk_bytes_load(const fg_gpu_gemm_args *a, const char *row, int u, fgk_bytes *b) {
    b->x[0] = fgk_load_u4(row + 32 * u);
    b->x[1] = fgk_load_u4(row + 32 * u + 16);
    b->scale = fgk_load((const float *)(row + a->acts_stride) + 2 * u);
    b->sums = fgk_load_u32((const uint32_t *)(row + a->acts_stride) + 2 * u + 1);
}

FG_DEV int fgk_dot16(fgk_u4 a, fgk_u4 b, int c) {
    return fgk_dot4(a.w, b.w, fgk_dot4(a.z, b.z, fgk_dot4(a.y, b.y, fgk_dot4(a.x, b.x, c))));
}

FG_DEV fgk_u4 fgk_bytes_get(const uint32_t *p) {
    fgk_f4 v = fgk_get_f4((const float *)(const void *)p);
    fgk_u4 r;
    r.x = fgk_bits(v.x), r.y = fgk_bits(v.y), r.z = fgk_bits(v.z), r.w = fgk_bits(v.w);
    return r;
}

FG_BODY void fgk_gemm_bytes(const fg_gpu_gemm_args *a, uint32_t *w, int type, int cols) {
    int count = fgk_count(a->count), n0 = fgk_block_x() * FG_GPU_GEMM_ROWS, col0 = fgk_block_y() / fgk_splits(a) * cols, me = fgk_thread();
    int split = fgk_block_y() % fgk_splits(a), start = fgk_split_start(a, split), end = fgk_split_end(a, split);
    int units = (a->k + 31) / 32, halves = type == FG_GPU_Q2_K || type == FG_GPU_Q3_K || type == FG_GPU_Q6_K;
    int minima = type == FG_GPU_Q4_1 || type == FG_GPU_Q5_1 || type == FG_GPU_Q2_K || type == FG_GPU_Q4_K || type == FG_GPU_Q5_K;
    int row = n0 + me / 2 < a->n ? n0 + me / 2 : a->n - 1, col = col0 + me / 2 < count ? col0 + me / 2 : count - 1, k0, u, i, j;
    const char *from = (const char *)a->weight + (int64_t)row * a->layout.stride, *acts = (const char *)a->acts + (int64_t)col * a->acts_stride * 2;
    uint32_t *x = w + FG_GPU_GEMM_ROWS * FG_BYTES_ROW, *w_scales = x + cols * FG_BYTES_ROW, *x_scales = w_scales + FG_GPU_GEMM_ROWS * 8;
    float *out = (float *)(void *)w; /* at the end */
    fgk_unit unit;
    fgk_bytes b;
    float sums[8][4];
    if (col0 >= count) return;
    FG_UNROLL for (i = 0; i < 8; i++)
        FG_UNROLL for (j = 0; j < cols / 16; j++) sums[i][j] = 0.0f;
    fgk_unit_load(type, from, &a->layout, units, start / 32 + me % 2, 0, 0, &unit);
    fgk_bytes_load(a, acts, start / 32 + me % 2, &b);
    FG_ROLLED for (k0 = start; k0 < end; k0 += FG_GEMM_K) {
        fgk_barrier();
        fgk_bytes_put(type, &unit, w + me / 2 * FG_BYTES_ROW + me % 2 * 8, w_scales + me * 4);
        if (me < 2 * cols) {
            fgk_u4 v;
            fgk_put_u4(x + me / 2 * FG_BYTES_ROW + me % 2 * 8, b.x[0]);
            fgk_put_u4(x + me / 2 * FG_BYTES_ROW + me % 2 * 8 + 4, b.x[1]);
            v.x = fgk_bits(b.scale);
            v.y = fgk_bits(b.scale * (float)((int32_t)(b.sums << 16) >> 16));
            v.z = fgk_bits(b.scale * (float)((int32_t)b.sums >> 16));
            v.w = 0;
            fgk_put_u4(x_scales + me * 4, v);
        }
        fgk_barrier();
        if (k0 + FG_GEMM_K < end) {
            fgk_unit_load(type, from, &a->layout, units, k0 / 32 + 2 + me % 2, 0, 0, &unit);
            fgk_bytes_load(a, acts, k0 / 32 + 2 + me % 2, &b);
        }
        FG_ROLLED for (u = 0; u < 2; u++) {
            fgk_f4 factor[4];
            fgk_u4 right[2][4];
            FG_UNROLL for (j = 0; j < cols / 16; j++) {
                const uint32_t *its = x + (me / 8 + 16 * j) * FG_BYTES_ROW + u * 8;
                right[0][j] = fgk_bytes_get(its);
                right[1][j] = fgk_bytes_get(its + 4);
                factor[j] = fgk_get_f4((const float *)(const void *)(x_scales + ((me / 8 + 16 * j) * 2 + u) * 4));
            }
            FG_UNROLL for (i = 0; i < 8; i++) {
                const uint32_t *its = w + (me % 8 + 8 * i) * FG_BYTES_ROW + u * 8;
                fgk_u4 left[2];
                fgk_f4 scales;
                fgk_in_order();
                left[0] = fgk_bytes_get(its);
                left[1] = fgk_bytes_get(its + 4);
                scales = fgk_get_f4((const float *)(const void *)(w_scales + ((me % 8 + 8 * i) * 2 + u) * 4));
                FG_UNROLL for (j = 0; j < cols / 16; j++) {
                    int one = fgk_dot16(left[0], right[0][j], 0), both = fgk_dot16(left[1], right[1][j], halves ? 0 : one);
                    if (halves) sums[i][j] = fgk_fma((float)one * scales.x, factor[j].x, sums[i][j]);
                    sums[i][j] = fgk_fma((float)both * scales.y, factor[j].x, sums[i][j]);
                    if (minima && halves) sums[i][j] = fgk_fma(-scales.z, factor[j].y, sums[i][j]);
                    if (minima) sums[i][j] = fgk_fma(-scales.w, halves ? factor[j].z : factor[j].y + factor[j].z, sums[i][j]);
                }
            }
        }
    }
    fgk_barrier();
    FG_UNROLL for (i = 0; i < 8; i++)
        FG_UNROLL for (j = 0; j < cols / 16; j++) fgk_put(out + (me / 8 + 16 * j) * FG_FINISH_ROW + me % 8 + 8 * i, sums[i][j]);
    fgk_barrier();
    fgk_finish_tile(a, out, n0, col0, cols, count, split, FG_GPU_THREADS);
}
#endif

#if defined(FG_WARPGROUPS)
/* Shared memory of gemmwg: three tiles of the weight as halves, then stages of activations, then of units of the weight as they lie in
   device memory: of these a thread has its own, in planes of 16 bytes of each thread and, the last, of four words; but floats of 16 bits
   are rows. In halves. */
enum { FG_WG_W = FG_GPU_BIG_ROWS * FG_GPU_WG_K, FG_WG_W_STAGES = 3, FG_WG_PLANE = FG_GPU_GEMV_THREADS * 8 };

/* Planes of a unit: of its lo bits, and one of the rest. */
FG_DEV int fgk_wg_planes(int type) { return (fg_gpu_lo_bits(type) + 3) / 4 + !fg_gpu_is_float(type); }

/* Steps that copies are ahead. */
FG_DEV int fgk_wg_ahead(int type, bool small) { return type == FG_GPU_F32 ? (small ? 2 : 1) : small ? 4 : 2; }

/* Where this thread copies activations from, in each of 32 rows one piece; and those of a step: 64 of k of each row; `twice`: of 128, of
   which the second half is a tile of its own. What is beyond the end may be any numbers, because weights are 0 there. */
FG_DEV void fgk_wg_acts_from(const fg_gpu_gemm_args *a, const char **from, int col0, int count, int cols) {
    int me = fgk_thread(), i;
    FG_UNROLL for (i = 0; i < cols / 32; i++) {
        int col = col0 + me / 8 + 32 * i < count ? col0 + me / 8 + 32 * i : count - 1;
        from[i] = (const char *)a->acts + ((int64_t)col * a->acts_stride + me % 8 * 8) * 2;
    }
}
FG_DEV void fgk_wg_acts(const fg_gpu_gemm_args *a, const char *const *from, uint16_t *stage, int k, int cols, bool twice) {
    int mine = fgk_thread() / 8, i;
    uint16_t *to = stage + mine * FG_GPU_WG_K + (fgk_thread() % 8 ^ (mine & 7)) * 8;
    FG_UNROLL for (i = 0; i < cols / 32; i++) fgk_async_copy(to + i * 32 * FG_GPU_WG_K, from[i] + 2 * k);
    if (!twice) return;
    k = k + FG_GPU_WG_K < a->acts_stride ? k + FG_GPU_WG_K : k;
    FG_UNROLL for (i = 0; i < cols / 32; i++) fgk_async_copy(to + (cols + i * 32) * FG_GPU_WG_K, from[i] + 2 * k);
}

/* Floats of 16 bits: a row by eight threads, so that they ask for whole lines, ordered as an operand is; its readers are others. */
FG_DEV void fgk_wg_copy_rows(const fg_gpu_gemm_args *a, int n0, int k0, int units, bool halves, uint16_t *raw) {
    int me = fgk_thread(), c = me % 8, half = halves ? me / 128 : 0, mine = halves ? me % 128 / 8 : me / 8, i;
    int k = k0 + half * FG_GPU_WG_K + c * 8;
    if (k >= 32 * units) return;
    FG_UNROLL for (i = 0; i < 4; i++) {
        int row = mine + (halves ? 16 : 32) * i, line = n0 + row < a->n ? n0 + row : a->n - 1;
        fgk_async_copy(raw + half * (FG_WG_W / 2) + row * FG_GPU_WG_K + (c ^ (mine & 7)) * 8,
                       (const char *)a->weight + (int64_t)line * a->layout.stride + 2 * k);
    }
}

/* Unit u, or of floats of 32 bits four runs of 8 weights, each second from k on. */
FG_DEV void fgk_wg_copy(int type, const char *row, const fg_gpu_layout *layout, int units, int u, int k, uint16_t *raw) {
    int me = fgk_thread(), lo = fg_gpu_lo_bits(type), i, j;
    if (fg_gpu_is_float(type)) {
        FG_UNROLL for (i = 0; i < 4; i++)
            if (k + 16 * i < 32 * units)
                FG_UNROLL for (j = 0; j < lo / 16; j++)
                    fgk_async_copy(raw + (i * lo / 16 + j) * FG_WG_PLANE + me * 8, row + (int64_t)(k + 16 * i) * (lo / 8) + 16 * j);
    } else if (u < units) {
        uint16_t *rest = raw + (fgk_wg_planes(type) - 1) * FG_WG_PLANE + me * 2;
        FG_UNROLL for (i = 0; i < lo / 4; i++) fgk_async_copy(raw + i * FG_WG_PLANE + me * 8, row + (u * lo + 4 * i) * 4);
        if (lo < 4)
            FG_UNROLL for (i = 0; i < lo; i++) fgk_async_copy_word(raw + me * 2 + i * (FG_WG_PLANE / 4), row + (u * lo + i) * 4);
        FG_UNROLL for (i = 0; i < fg_gpu_hi_bits(type); i++)
            fgk_async_copy_word(rest + i * (FG_WG_PLANE / 4), row + layout->hi_at + (u * fg_gpu_hi_bits(type) + i) * 4);
        fgk_async_copy_word(rest + 2 * (FG_WG_PLANE / 4), row + layout->s_at + u * fg_gpu_scale_bytes(type) / 4 * 4);
        if (fg_gpu_has_blocks_of_256(type)) fgk_async_copy_word(rest + 3 * (FG_WG_PLANE / 4), row + layout->d_at + u / 8 * 4);
    }
}

FG_DEV uint32_t fgk_wg_word(const uint16_t *p) { return fgk_get_u32((const uint32_t *)(const void *)p); }

/* What came; zeros beyond the end. at, turn: of this thread's row, where a row is of several. */
FG_DEV void fgk_wg_unit(int type, int units, int u, int k, const uint16_t *raw, int at, int turn, fgk_unit *unit) {
    int me = fgk_thread(), words = fg_gpu_is_float(type) ? fg_gpu_lo_bits(type) : (fg_gpu_lo_bits(type) + 3) / 4 * 4, i;
    FG_UNROLL for (i = 0; i < words; i += 4) {
        int place = fg_gpu_lo_bits(type) == 16 ? at + ((me % 2 + i / 2) ^ turn) * 8 : i / 4 * FG_WG_PLANE + me * 8;
        fgk_f4 v = {0.0f, 0.0f, 0.0f, 0.0f};
        if (fg_gpu_lo_bits(type) < 4) {
            if (u >= units) continue;
            unit->lo[0] = fgk_wg_word(raw + me * 2);
            unit->lo[1] = fgk_wg_word(raw + me * 2 + FG_WG_PLANE / 4);
            continue;
        }
        if (fg_gpu_is_float(type) ? k + i / (fg_gpu_lo_bits(type) / 4) * 16 < 32 * units : u < units)
            v = fgk_get_f4((const float *)(const void *)(raw + place));
        unit->lo[i] = fgk_bits(v.x);
        unit->lo[i + 1] = fgk_bits(v.y);
        unit->lo[i + 2] = fgk_bits(v.z);
        unit->lo[i + 3] = fgk_bits(v.w);
    }
    if (fg_gpu_is_float(type)) return;
    if (u < units) {
        const uint16_t *rest = raw + (fgk_wg_planes(type) - 1) * FG_WG_PLANE + me * 2;
        uint32_t bits = fgk_wg_word(rest + 2 * (FG_WG_PLANE / 4)) >> (u * fg_gpu_scale_bytes(type)) % 4 * 8;
        FG_UNROLL for (i = 0; i < fg_gpu_hi_bits(type); i++) unit->hi[i] = fgk_wg_word(rest + i * (FG_WG_PLANE / 4));
        fgk_unit_scale_words(type, bits, fg_gpu_has_blocks_of_256(type) ? fgk_wg_word(rest + 3 * (FG_WG_PLANE / 4)) : 0, unit);
    } else {
        if (fg_gpu_lo_bits(type) < 4) unit->lo[0] = unit->lo[1] = 0;
        unit->hi[0] = unit->hi[1] = 0;
        unit->scale[0] = unit->scale[1] = unit->min[0] = unit->min[1] = 0.0f;
    }
}

/* Products of the workgroup, two parts [cols][FG_FINISH_ROW] in shared memory, of 64 rows of the weight each, or (`halves`) to be added
   up. Four at a time where they lie so, and without an activation: of a tile all loads of what is added come before the first of them
   is waited for. */
FG_DEV void fgk_wg_finish(const fg_gpu_gemm_args *a, float *tile, int n0, int col0, int cols, int count, bool halves) {
    int total = (halves ? 16 : 32) * cols, part = cols * FG_FINISH_ROW, me = fgk_thread(), at, i;
    if (a->act || ((a->dst | a->src2 | a->bias) & 15) || ((a->n | a->dst_stride | a->src2_stride) & 3)) {
        if (halves) {
            FG_ROLLED for (i = me; i < part; i += FG_GPU_GEMV_THREADS)
                if (i % FG_FINISH_ROW < FG_FINISH_ROWS) fgk_put(tile + i, fgk_get(tile + i) + fgk_get(tile + part + i));
            fgk_barrier();
        }
        FG_ROLLED for (i = 0; i < (halves ? 1 : 2); i++)
            fgk_finish_tile(a, tile + i * part, n0 + i * FG_FINISH_ROWS, col0, cols, count, 0, FG_GPU_GEMV_THREADS);
        return;
    }
    FG_ROLLED for (at = me; at < total; at += 4 * FG_GPU_GEMV_THREADS) {
        fgk_u4 more[4], bias = {0, 0, 0, 0};
        float scale[4];
        int j[4], t[4];
        FG_UNROLL for (i = 0; i < 4; i++) {
            int place = at + i * FG_GPU_GEMV_THREADS;
            t[i] = col0 + place / 16 % cols;
            j[i] = n0 + place / 16 / cols * FG_FINISH_ROWS + place % 16 * 4;
            if (j[i] >= a->n || t[i] >= count) j[i] = -1;
            more[i].x = more[i].y = more[i].z = more[i].w = 0;
            scale[i] = 0.0f;
            if (j[i] < 0) continue;
            scale[i] = fgk_load((const float *)a->scales + t[i]);
            if (a->src2) more[i] = fgk_load_u4((const float *)a->src2 + (int64_t)t[i] * a->src2_stride + j[i]);
        }
        FG_UNROLL for (i = 0; i < 4; i++) {
            int place = at + i * FG_GPU_GEMV_THREADS;
            const float *from = tile + place / 16 / cols * part + place / 16 % cols * FG_FINISH_ROW + place % 16 * 4;
            fgk_f4 x, y = {0.0f, 0.0f, 0.0f, 0.0f};
            fgk_u4 v;
            if (j[i] < 0) continue;
            x = fgk_get_f4(from);
            if (halves) {
                y = fgk_get_f4(from + part);
                x.x += y.x, x.y += y.y, x.z += y.z, x.w += y.w;
            }
            x.x *= scale[i], x.y *= scale[i], x.z *= scale[i], x.w *= scale[i];
            if (a->bias) {
                bias = fgk_load_u4((const float *)a->bias + j[i]);
                x.x += fgk_from_bits(bias.x), x.y += fgk_from_bits(bias.y), x.z += fgk_from_bits(bias.z), x.w += fgk_from_bits(bias.w);
            }
            if (a->src2) {
                x.x += fgk_from_bits(more[i].x), x.y += fgk_from_bits(more[i].y);
                x.z += fgk_from_bits(more[i].z), x.w += fgk_from_bits(more[i].w);
            }
            v.x = fgk_bits(x.x), v.y = fgk_bits(x.y), v.z = fgk_bits(x.z), v.w = fgk_bits(x.w);
            fgk_store_u4((float *)a->dst + (int64_t)t[i] * a->dst_stride + j[i], v);
        }
    }
}

/* As fgk_gemm_big, by products of warpgroups, of which each has 64 rows of the weight and all of the tile's activations; or (`halves`)
   the same rows, and every second 64 of k. All from device memory is copied asynchronously, `ahead` steps before its turn: latency is
   that many steps then. A step multiplies what the one before made halves of, while the next ones are made; so there are three tiles of
   the weight, and two stages of activations more than are on their way: the products of the step before may still read theirs until
   its end, when each warpgroup waits for its own. */
FG_BODY void fgk_gemm_warpgroups(const fg_gpu_gemm_args *a, uint16_t *shared, int type, int cols) {
    bool halves = cols == 128 && fg_gpu_wg_way(a) == FG_GPU_WG_HALVES, small = cols == 128 && !halves;
    int count = fgk_count(a->count), me = fgk_thread(), group = me / 128, units = (a->k + 31) / 32, i, kk;
    int lines = fg_gpu_ceil(a->n, halves ? 64 : 128), tiles = fg_gpu_ceil(a->max_rows, cols), id = fgk_block_y() * tiles + fgk_block_x();
    int set = id / (FG_GPU_WG_COLUMNS * lines), width = tiles - set * FG_GPU_WG_COLUMNS, col0, n0;
    int step = halves ? 2 * FG_GPU_WG_K : FG_GPU_WG_K, steps = fg_gpu_ceil(a->k, step);
    int ahead = fgk_wg_ahead(type, small), stages = ahead + 2;
    int stage = small ? FG_WG_W : 2 * FG_WG_W, turn = fgk_wg_planes(type) * FG_WG_PLANE;
    int w_to = 1, w_from = 0, x_to = ahead, x_from = 0, raw_to = 0, raw_from = 1, u, k, row, first, jump;
    uint16_t *x = shared + FG_WG_W_STAGES * FG_WG_W, *raw = x + stages * stage, *to;
    const char *from;
    const char *acts[8];
    float sums[128], *out = (float *)(void *)shared; /* out: at the end */
    fgk_unit unit;
    /* Tiles of the same rows of the weight come one after the other, FG_GPU_WG_COLUMNS of them at most. */
    width = width < FG_GPU_WG_COLUMNS ? width : FG_GPU_WG_COLUMNS;
    id -= set * FG_GPU_WG_COLUMNS * lines;
    col0 = (set * FG_GPU_WG_COLUMNS + id % width) * cols;
    n0 = id / width * (halves ? 64 : 128);
    if (col0 >= count) return;
    row = halves ? me % 128 / 2 : me / 2;
    u = me % 2 + (halves ? group * 2 : 0);
    k = (halves ? group * FG_GPU_WG_K : 0) + (fg_gpu_is_float(type) ? me % 2 * 8 : me % 2 * 32);
    first = fg_gpu_is_float(type) ? me % 2 : me % 2 * 4;
    jump = fg_gpu_is_float(type) ? 2 : 1;
    from = (const char *)a->weight + (int64_t)(n0 + row < a->n ? n0 + row : a->n - 1) * a->layout.stride;
    to = shared + (halves ? group * (FG_WG_W / 2) : 0) + row * FG_GPU_WG_K;
    fgk_wg_acts_from(a, acts, col0, count, cols);
    FG_UNROLL for (i = 0; i < cols / 2; i++) sums[i] = 0.0f;
    if (fg_gpu_lo_bits(type) == 16) fgk_wg_copy_rows(a, n0, 0, units, halves, raw);
    else fgk_wg_copy(type, from, &a->layout, units, u, k, raw);
    FG_ROLLED for (i = 0; i < ahead; i++) {
        if (i < steps) fgk_wg_acts(a, acts, x + i * stage, i * step, cols, halves);
        if (i + 1 < steps && fg_gpu_lo_bits(type) == 16) fgk_wg_copy_rows(a, n0, (i + 1) * step, units, halves, raw + (i + 1) * turn);
        else if (i + 1 < steps)
            fgk_wg_copy(type, from, &a->layout, units, u + (i + 1) * (step / 32), k + (i + 1) * step, raw + (i + 1) * turn);
        fgk_async_commit();
    }
    if (ahead == 4) fgk_async_wait_for(3);
    else if (ahead == 2) fgk_async_wait_for(1);
    else fgk_async_wait_for(0);
    if (fg_gpu_lo_bits(type) == 16) fgk_barrier();
    fgk_wg_unit(type, units, u, k, raw, to - shared, row & 7, &unit);
    fgk_gemm_store(type, &unit, to, first, jump, row & 7);
    fgk_wg_hold(sums, cols / 2); /* not before each fence: there products of the step before still add to them */
    FG_ROLLED for (i = 0; i < steps; i++) {
        uint64_t left = fg_gpu_wg_operand(fgk_shared_address(shared + w_from * FG_WG_W + group * (FG_WG_W / 2)));
        uint64_t right = fg_gpu_wg_operand(fgk_shared_address(x + x_from * stage + (halves ? group * FG_WG_W : 0)));
        if (ahead == 4) fgk_async_wait_for(3);
        else if (ahead == 2) fgk_async_wait_for(1);
        else fgk_async_wait_for(0);
        fgk_wg_publish();
        fgk_barrier();
        fgk_wg_fence();
        FG_UNROLL for (kk = 0; kk < FG_GPU_WG_K; kk += 16) fgk_wg_mma(cols, sums, left + (uint64_t)kk / 8, right + (uint64_t)kk / 8);
        fgk_wg_commit();
        if (i + ahead < steps) fgk_wg_acts(a, acts, x + x_to * stage, (i + ahead) * step, cols, halves);
        if (i + ahead + 1 < steps && fg_gpu_lo_bits(type) == 16)
            fgk_wg_copy_rows(a, n0, (i + ahead + 1) * step, units, halves, raw + raw_to * turn);
        else if (i + ahead + 1 < steps)
            fgk_wg_copy(type, from, &a->layout, units, u + (i + ahead + 1) * (step / 32), k + (i + ahead + 1) * step, raw + raw_to * turn);
        fgk_async_commit();
        if (i + 1 < steps) {
            fgk_wg_unit(type, units, u + (i + 1) * (step / 32), k + (i + 1) * step, raw + raw_from * turn, to - shared, row & 7, &unit);
            fgk_gemm_store(type, &unit, to + w_to * FG_WG_W, first, jump, row & 7);
        }
        fgk_wg_wait(1);
        w_from = w_to;
        w_to = w_to + 1 < FG_WG_W_STAGES ? w_to + 1 : 0;
        x_to = x_to + 1 < stages ? x_to + 1 : 0;
        x_from = x_from + 1 < stages ? x_from + 1 : 0;
        raw_to = raw_to < ahead ? raw_to + 1 : 0;
        raw_from = raw_from < ahead ? raw_from + 1 : 0;
    }
    fgk_wg_wait(0);
    fgk_wg_hold(sums, cols / 2);
    fgk_barrier();
    FG_UNROLL for (i = 0; i < cols / 2; i++) fgk_put(out + (group * cols + fgk_wg_col(i)) * FG_FINISH_ROW + fgk_wg_row(i), sums[i]);
    fgk_barrier();
    fgk_wg_finish(a, out, n0, col0, cols, count, halves);
}
#endif

/* ---- The KV cache. ---- */

/* Where the row of one head of one token is, and (Q8_0) its scales. */
FG_DEV char *fgk_kv_row(const fg_gpu_kv *kv, uint64_t base, int type, int block, int offset, int head) {
    return (char *)base + (int64_t)block * (int64_t)kv->block_stride +
           (int64_t)head * fg_gpu_kv_head_bytes(type, kv->head_dim, kv->block_tokens) + (int64_t)offset * fg_gpu_kv_row_bytes(type, kv->head_dim);
}
FG_DEV char *fgk_kv_scales(const fg_gpu_kv *kv, uint64_t base, int type, int block, int offset, int head) {
    return (char *)base + (int64_t)block * (int64_t)kv->block_stride +
           (int64_t)head * fg_gpu_kv_head_bytes(type, kv->head_dim, kv->block_tokens) +
           (int64_t)kv->block_tokens * fg_gpu_kv_row_bytes(type, kv->head_dim) + (int64_t)offset * 2 * fg_gpu_kv_scales(type, kv->head_dim);
}

/* ---- rope_kv: a group per token and head: first those of q, then those of k, then those of v. ---- */

/* Cosine and sine of any angle that positions reach: pi/2 in three parts (Cody and Waite), then short polynomials. */
FG_DEV void fgk_cos_sin(float angle, float *cosine, float *sine) {
    float turns = fgk_round(angle * 0.63661977f), r, r2, c, s;
    int quarter = (int)turns & 3;
    r = fgk_fma(turns, -1.5703125f, angle);
    r = fgk_fma(turns, -4.8351288e-4f, r);
    r = fgk_fma(turns, -3.1385789e-7f, r);
    r = fgk_fma(turns, -6.0770949e-11f, r);
    r2 = r * r;
    s = r + r * r2 * (-0.16666667f + r2 * (0.0083333310f + r2 * (-0.00019840874f + r2 * 2.7525562e-6f)));
    c = 1.0f + r2 * (-0.5f + r2 * (0.041666646f + r2 * (-0.0013887316f + r2 * 2.4433157e-5f)));
    *cosine = quarter == 0 ? c : quarter == 1 ? -s : quarter == 2 ? -c : s;
    *sine = quarter == 0 ? s : quarter == 1 ? c : quarter == 2 ? -s : -c;
}

FG_DEV void fgk_rope_norm(float *x, int n, const float *weight, float eps) {
    float sum = 0.0f, factor;
    int i;
    for (i = fgk_lane(); i < n; i += 32) sum = fgk_fma(fgk_get(x + i), fgk_get(x + i), sum);
    factor = 1.0f / fgk_sqrt(fgk_group_sum(sum) / (float)n + eps);
    for (i = fgk_lane(); i < n; i += 32) fgk_put(x + i, fgk_get(x + i) * factor * fgk_load(weight + i));
    fgk_group_sync();
}

FG_DEV void fgk_rope_turn(float *x, const fg_gpu_rope_kv_args *a, int position) {
    int pairs = a->n_rot / 2, i;
    for (i = fgk_lane(); i < pairs; i += 32) {
        int p = a->neox ? i : 2 * i, q = a->neox ? i + pairs : 2 * i + 1;
        float u = fgk_get(x + p), v = fgk_get(x + q), c, s;
        fgk_cos_sin((float)position * fgk_load((const float *)a->freqs + i), &c, &s);
        c *= a->scale;
        s *= a->scale;
        fgk_put(x + p, u * c - v * s);
        fgk_put(x + q, u * s + v * c);
    }
    fgk_group_sync();
}

/* What the cache gets of a value, as fg__kv_bound: always a number. */
FG_DEV float fgk_kv_bound(float x, int type) {
    float most = type == FG_GPU_F16 ? 65504.0f : type == FG_GPU_BF16 ? 3.38953139e38f : 3.40282347e38f;
    return x > most ? most : x < -most ? -most : x == x ? x : 0.0f;
}

FG_DEV void fgk_kv_store(const float *x, const fg_gpu_kv *kv, uint64_t base, int type, int slot, int head) {
    int block = slot / kv->block_tokens, offset = slot % kv->block_tokens, n = kv->head_dim, i, j;
    char *row = fgk_kv_row(kv, base, type, block, offset, head);
    if (type == FG_GPU_Q8_0) {
        uint16_t *scales = (uint16_t *)fgk_kv_scales(kv, base, type, block, offset, head);
        for (i = 0; i < n; i += 32) { /* a scale for 32 values, one of each lane */
            float value = i + fgk_lane() < n ? fgk_kv_bound(fgk_get(x + i + fgk_lane()), type) : 0.0f, most = fgk_group_max(fgk_abs(value)) / 127.0f, s;
            uint32_t half = fgk_float_to_half(most < 65504.0f ? most : 65504.0f);
            int q;
            s = fgk_half_to_float(half);
            value = s > 0.0f ? value / s : 0.0f;
            q = (int)fgk_round(value > 127.0f ? 127.0f : value < -127.0f ? -127.0f : value);
            if (i + fgk_lane() < n) fgk_store_u8(row + i + fgk_lane(), (uint32_t)q & 255u);
            if (fgk_lane() == 0) fgk_store_u16(scales + i / 32, half);
        }
        return;
    }
    for (i = fgk_lane(); i < n; i += 32) {
        float value = fgk_kv_bound(fgk_get(x + i), type);
        if (type == FG_GPU_F32) fgk_store((float *)row + i, value);
        else fgk_store_u16((uint16_t *)row + i, type == FG_GPU_F16 ? fgk_float_to_half(value) : fgk_float_to_bfloat(value));
    }
    j = fg_gpu_kv_row_bytes(type, n) / (type == FG_GPU_F32 ? 4 : 2);
    for (i = n + fgk_lane(); i < j; i += 32) { /* zeros up to the end of the row, which is read in 16 bytes */
        if (type == FG_GPU_F32) fgk_store((float *)row + i, 0.0f);
        else fgk_store_u16((uint16_t *)row + i, 0);
    }
}

FG_BODY void fgk_rope_kv(const fg_gpu_rope_kv_args *a, float *room, int type) {
    int t = fgk_block_y(), head = fgk_block_x() * (FG_GPU_THREADS / 32) + fgk_group(), n = a->kv.head_dim, i;
    int is_q = head < a->kv.n_head, is_k = !is_q && head < a->kv.n_head + a->kv.n_kv_head;
    float *x = room + fgk_group() * FG_GPU_MAX_HEAD_DIM, *from;
    uint64_t norm;
    if (t >= fgk_count(a->count) || head >= a->kv.n_head + 2 * a->kv.n_kv_head) return;
    if (!is_q) head -= is_k ? a->kv.n_head : a->kv.n_head + a->kv.n_kv_head;
    from = (float *)(is_q ? a->q : is_k ? a->k : a->v) + (int64_t)t * a->stride + head * n;
    norm = is_q ? a->norm_q : is_k ? a->norm_k : 0;
    for (i = fgk_lane(); i < n; i += 32) fgk_put(x + i, fgk_load(from + i));
    fgk_group_sync();
    if (norm) fgk_rope_norm(x, n, (const float *)norm, a->eps);
    if ((is_q || is_k) && a->n_rot > 0) fgk_rope_turn(x, a, (int)fgk_load_u32((const int32_t *)a->positions + t));
    if (is_q)
        for (i = fgk_lane(); i < n; i += 32) fgk_store(from + i, fgk_get(x + i));
    else fgk_kv_store(x, &a->kv, is_k ? a->kv.k : a->kv.v, type, (int)fgk_load_u32((const int32_t *)a->slots + t), head);
}

/* What the sink of a head adds to the sum of a softmax whose largest logit is `most`. */
FG_DEV float fgk_sink(const fg_gpu_attention_args *a, int head, float most) {
    return a->sinks ? fgk_exp(fgk_load((const float *)a->sinks + head) - most) : 0.0f;
}

/* ---- Attention. A workgroup has one item and one group of query heads: up to 16 queries, of which each group of lanes has every
   fourth. Positions come 32 at a time: a lane has the score of one, and later head_dim / 32 of the dimensions of the values.
   K and V go through shared memory in pieces of `piece` dimensions. ---- */

enum { FG_ATTN_TILE = 32 };

/* Dimensions [d0, d0 + piece) of the 32 positions from `base` on, as floats; zeros beyond `end` and head_dim. A thread reads 16
   bytes at a time. */
FG_DEV void fgk_attn_tile(const fg_gpu_attention_args *a, const fg_gpu_attn_item *item, uint64_t cache, int head, int base, int d0,
                         float *tile, int type, int piece) {
    int per_load = type == FG_GPU_F32 ? 4 : type == FG_GPU_Q8_0 ? 16 : 8, across = piece / per_load, i, j;
    FG_UNROLL for (i = fgk_thread(); i < FG_ATTN_TILE * across; i += FG_GPU_THREADS) {
        int p = base + i / across, d = d0 + i % across * per_load;
        float *to = tile + i / across * (piece + 4) + i % across * per_load;
        fgk_u4 v = {0, 0, 0, 0};
        uint32_t words[4], scale = 0;
        if (p < item->end && d < a->kv.head_dim) {
            int block = (int)fgk_load_u32((const int32_t *)a->table + (int64_t)item->seq * a->table_stride + (p >> fgk_log2(a->kv.block_tokens)));
            int offset = p & (a->kv.block_tokens - 1);
            if (block >= 0) /* else it fell out of the window */
                v = fgk_load_u4(fgk_kv_row(&a->kv, cache, type, block, offset, head) + d * (type == FG_GPU_F32 ? 4 : type == FG_GPU_Q8_0 ? 1 : 2));
            if (type == FG_GPU_Q8_0 && block >= 0) scale = fgk_load_u16((const uint16_t *)fgk_kv_scales(&a->kv, cache, type, block, offset, head) + d / 32);
        }
        words[0] = v.x, words[1] = v.y, words[2] = v.z, words[3] = v.w;
        FG_UNROLL for (j = 0; j < per_load; j++) {
            uint32_t word = words[j * 4 / per_load];
            float x;
            if (type == FG_GPU_F32) x = fgk_from_bits(word);
            else if (type == FG_GPU_F16) x = fgk_half_to_float(j % 2 ? word >> 16 : word);
            else if (type == FG_GPU_BF16) x = fgk_from_bits(j % 2 ? word & 0xFFFF0000u : word << 16);
            else x = (float)(int8_t)(word >> j % 4 * 8) * fgk_half_to_float(scale);
            if (type == FG_GPU_Q8_0 && d + j >= a->kv.head_dim) x = 0.0f; /* bytes beyond a head are not written */
            fgk_put(to + j, x);
        }
    }
}

/* The piece of attention that this workgroup works on. */
FG_DEV fg_gpu_attn_item fgk_attn_item(const fg_gpu_attention_args *a) {
    const fg_gpu_attn_item *from = (const fg_gpu_attn_item *)a->items + fgk_block_x();
    fg_gpu_attn_item item;
    item.seq = (int32_t)fgk_load_u32(&from->seq);
    item.token = (int32_t)fgk_load_u32(&from->token);
    item.n_tokens = (int32_t)fgk_load_u32(&from->n_tokens);
    item.position = (int32_t)fgk_load_u32(&from->position);
    item.start = (int32_t)fgk_load_u32(&from->start);
    item.end = (int32_t)fgk_load_u32(&from->end);
    item.partial = (int32_t)fgk_load_u32(&from->partial);
    return item;
}

/* The r-th query of the group, of m: each fourth; where there is none the last one, which is then worked on for nothing, but without branches
   that only some lanes of a wave take. No group has one where 4 * r >= m. */
FG_DEV int fgk_attn_row(int r, int m) { return fgk_group() + 4 * r < m ? fgk_group() + 4 * r : m - 1; }

/* The scores of this lane's position for the group's queries, added up over one piece of the dimensions. */
FG_DEV void fgk_attn_scores(const float *tile, const float *q, int d0, int piece, int dim, int m, float *scores) {
    int d, e, r;
    FG_UNROLL for (r = 0; r < 4; r++) {
        const float *keys = tile + fgk_lane() * (piece + 4), *query = q + fgk_attn_row(r, m) * dim + d0;
        fgk_f2 sum = {scores[r], 0.0f};
        if (4 * r >= m) break;
        FG_ROLLED for (d = 0; d < piece; d += 16) /* more at once, and compilers keep keys of all dimensions in registers */
            FG_UNROLL for (e = d; e < d + 16; e += 4) {
                fgk_f4 k = fgk_get_f4(keys + e), x = fgk_get_f4(query + e);
                fgk_f2 k0 = {k.x, k.y}, k1 = {k.z, k.w}, x0 = {x.x, x.y}, x1 = {x.z, x.w};
                sum = fgk_fma_f2(k1, x1, fgk_fma_f2(k0, x0, sum));
            }
        scores[r] = sum.x + sum.y;
    }
}

/* The values of a tile, weighted: of dimensions of this lane, each 32nd of a piece, two of them together. */
FG_DEV void fgk_attn_values(const float *tile, const float *weights, int piece, fgk_f2 *acc) {
    int i, j, p;
    FG_ROLLED for (i = 0; i < FG_ATTN_TILE; i += 4) {
        fgk_f4 four = fgk_get_f4(weights + i);
        float w[4] = {four.x, four.y, four.z, four.w};
        FG_UNROLL for (p = 0; p < 4; p++)
            FG_UNROLL for (j = 0; j < piece / 64; j++) {
                const float *from = tile + (i + p) * (piece + 4) + 64 * j + fgk_lane();
                fgk_f2 v = {fgk_get(from), fgk_get(from + 32)}, both = {w[p], w[p]};
                acc[j] = fgk_fma_f2(both, v, acc[j]);
            }
    }
}

FG_BODY void fgk_attention(const fg_gpu_attention_args *a, float *q, float *tile, float *parts, int type, int dim, int piece) {
    int all_heads = a->kv.n_head / a->kv.n_kv_head, groups = fg_gpu_head_groups(a->kv.n_head, a->kv.n_kv_head);
    int kv_head = fgk_block_y() / groups, head0 = fgk_block_y() % groups * FG_GPU_ATTN_ROWS, n = a->kv.head_dim;
    int heads = all_heads - head0 < FG_GPU_ATTN_ROWS ? all_heads - head0 : FG_GPU_ATTN_ROWS, m, low, base, r, d, i, j;
    fg_gpu_attn_item item;
    float most[4], sum[4];
    fgk_f2 acc[4][8];
    if (fgk_block_x() >= fgk_count(a->count)) return;
    item = fgk_attn_item(a);
    m = item.n_tokens * heads;
    for (i = fgk_thread(); i < m * dim; i += FG_GPU_THREADS) {
        int row = i / dim, column = (kv_head * all_heads + head0 + row % heads) * n + i % dim;
        fgk_put(q + i, i % dim < n ? fgk_load((const float *)a->q + (int64_t)(item.token + row / heads) * a->q_stride + column) * a->scale : 0.0f);
    }
    FG_UNROLL for (r = 0; r < 4; r++) {
        most[r] = FG_NEG_INF;
        sum[r] = 0.0f;
        FG_UNROLL for (j = 0; j < dim / 64; j++) acc[r][j].x = acc[r][j].y = 0.0f;
    }
    low = a->window > 0 && item.position >= a->window ? item.position - a->window + 1 : 0;
    low = low > item.start ? low / FG_ATTN_TILE * FG_ATTN_TILE : item.start;
    FG_ROLLED for (base = low; base < item.end; base += FG_ATTN_TILE) {
        float scores[4], before[4];
        FG_UNROLL for (r = 0; r < 4; r++) scores[r] = 0.0f;
        FG_ROLLED for (d = 0; d < dim; d += piece) {
            fgk_barrier();
            fgk_attn_tile(a, &item, a->kv.k, kv_head, base, d, tile, type, piece);
            fgk_barrier();
            fgk_attn_scores(tile, q, d, piece, dim, m, scores);
        }
        FG_UNROLL for (r = 0; r < 4; r++) {
            int row = fgk_attn_row(r, m), position = item.position + row / heads, p = base + fgk_lane();
            float s = scores[r], highest, e;
            if (4 * r >= m) break;
            if (a->softcap > 0.0f) {
                float y = s / a->softcap;
                y = y > 40.0f ? 40.0f : y < -40.0f ? -40.0f : y;
                s = a->softcap * (1.0f - 2.0f / (1.0f + fgk_exp(2.0f * y))); /* tanh */
            }
            if (p > position || p >= item.end || (a->window > 0 && p <= position - a->window)) s = FG_NEG_INF;
            highest = fgk_max(most[r], fgk_group_max(s));
            before[r] = most[r] == FG_NEG_INF ? 0.0f : fgk_exp(most[r] - highest);
            e = s == FG_NEG_INF ? 0.0f : fgk_exp(s - highest);
            sum[r] = sum[r] * before[r] + fgk_group_sum(e);
            most[r] = highest;
            if (fgk_group() + 4 * r < m) fgk_put(parts + row * FG_ATTN_TILE + fgk_lane(), e);
        }
        FG_UNROLL for (d = 0; d < dim; d += piece) {
            fgk_barrier();
            fgk_attn_tile(a, &item, a->kv.v, kv_head, base, d, tile, type, piece);
            fgk_barrier();
            FG_UNROLL for (r = 0; r < 4; r++) {
                if (4 * r >= m) break;
                FG_UNROLL for (j = 0; j < piece / 64; j++) acc[r][d / 64 + j].x *= before[r], acc[r][d / 64 + j].y *= before[r];
                fgk_attn_values(tile, parts + fgk_attn_row(r, m) * FG_ATTN_TILE, piece, acc[r] + d / 64);
            }
        }
    }
    FG_UNROLL for (r = 0; r < 4; r++) {
        int row = fgk_group() + 4 * r;
        float *out, factor = 1.0f;
        if (row >= m) continue;
        if (item.partial < 0) {
            out = (float *)a->dst + (int64_t)(item.token + row / heads) * a->dst_stride + (kv_head * all_heads + head0 + row % heads) * n;
            factor = 1.0f / (sum[r] + fgk_sink(a, kv_head * all_heads + head0 + row % heads, most[r]));
        } else {
            int at = item.partial + row / heads * all_heads + head0 + row % heads;
            out = (float *)a->partials + ((int64_t)at * a->kv.n_kv_head + kv_head) * (n + 2) + 2;
            if (fgk_lane() == 0) {
                fgk_store(out - 2, most[r]);
                fgk_store(out - 1, sum[r]);
            }
        }
        FG_UNROLL for (j = 0; j < dim / 32; j++)
            if (32 * j + fgk_lane() < n) fgk_store(out + 32 * j + fgk_lane(), (j % 2 ? acc[r][j / 2].y : acc[r][j / 2].x) * factor);
    }
}

/* Eight values of a row of the cache, from dimension d on, as half floats (large ones are cut to the largest); zeros beyond. */
FG_DEV fgk_u4 fgk_kv_halves(const fg_gpu_attention_args *a, const fg_gpu_attn_item *item, uint64_t cache, int head, int p, int d, int type) {
    fgk_u4 v = {0, 0, 0, 0};
    int n = a->kv.head_dim, block, offset, j;
    const char *row;
    float x[8];
    if (p >= item->end || d >= n) return v;
    block = (int)fgk_load_u32((const int32_t *)a->table + (int64_t)item->seq * a->table_stride + (p >> fgk_log2(a->kv.block_tokens)));
    if (block < 0) return v; /* it fell out of the window */
    offset = p & (a->kv.block_tokens - 1);
    row = fgk_kv_row(&a->kv, cache, type, block, offset, head);
    if (type == FG_GPU_F16) return fgk_load_u4(row + 2 * d);
    if (type == FG_GPU_BF16) {
        v = fgk_load_u4(row + 2 * d);
        FG_UNROLL for (j = 0; j < 8; j++) {
            uint32_t word = j < 2 ? v.x : j < 4 ? v.y : j < 6 ? v.z : v.w;
            x[j] = fgk_from_bits(j % 2 ? word & 0xFFFF0000u : word << 16);
        }
    } else {
        float scale = fgk_half_to_float(fgk_load_u16((const uint16_t *)fgk_kv_scales(&a->kv, cache, type, block, offset, head) + d / 32));
        uint32_t low = fgk_load_u32(row + d), high = fgk_load_u32(row + d + 4);
        FG_UNROLL for (j = 0; j < 8; j++) x[j] = d + j < n ? (float)(int8_t)((j < 4 ? low : high) >> j % 4 * 8) * scale : 0.0f;
    }
    FG_UNROLL for (j = 0; j < 8; j++) x[j] = x[j] > 65504.0f ? 65504.0f : x[j] < -65504.0f ? -65504.0f : x[j];
    v.x = fgk_two_halves(x[0], x[1]);
    v.y = fgk_two_halves(x[2], x[3]);
    v.z = fgk_two_halves(x[4], x[5]);
    v.w = fgk_two_halves(x[6], x[7]);
    return v;
}

#if defined(FG_STRAIGHT)

/* Attention of few queries, as decoding has it, in matrix fragments that are made in registers: an item's 16 rows by 16 positions at a
   time, of which every warp has its own, each fourth tile of the context. The order of what is added up within a product is free so long
   as both operands have the same. So a lane reads 16 bytes of the row of one position of K, and these are its part of the right operand
   of several products, whose left ones, the queries, lie in shared memory in that order. Weights of positions become a left operand where
   they are; and of V a lane reads 16 bytes of each of its four positions, of which it pairs numbers of the same dimension. All of a tile
   is asked for while the one before is worked on (not of heads over 128: the registers do not suffice). At the end the warps' sums meet
   in shared memory, in their order.

   What it costs: a tile of heads of 128 is 8 KiB of halves, which one of 132 processors gets of 4 TB/s in some 450 cycles; 32 products
   and about 300 other instructions, of four warps at once. 12 warps with 8 KiB each on the way are more than the 25 KiB that a latency of
   800 ns wants. */
enum { FG_FEW_TILE = 16, FG_FEW_PIECE = 128 }; /* positions; dimensions of the sums that meet at once */

/* Numbers of a row that a lane reads at once. */
FG_DEV int fgk_few_each(int type, int dim, int is_v) { return type == FG_GPU_Q8_0 && !(is_v && dim == 64) ? 16 : 8; }

/* What a lane has read of K (of positions r and r + 8 of the tile, where r is lane / 4) and V (2c, 2c + 1, 2c + 8, 2c + 9; c: lane % 4). */
typedef struct fgk_few_k {
    fgk_u4 x[2][8];
    uint32_t scale[2][8];
} fgk_few_k;
typedef struct fgk_few_v {
    fgk_u4 x[4][4];
    uint32_t scale[4][4];
} fgk_few_v;

/* Where the item's positions are: its row of the block table, and its head in the first block of K. */
typedef struct fgk_few_place {
    const int32_t *table;
    uint64_t k;
    int end, shift, row_bytes;
} fgk_few_place;

FG_DEV int fgk_few_block(const fgk_few_place *at, int p) { return p < at->end ? (int)fgk_load_u32(at->table + (p >> at->shift)) : -1; }

/* The block of a tile that has one; -1 beyond the end. */
FG_DEV int fgk_few_ahead(const fgk_few_place *at, int base) { return at->shift >= 4 ? fgk_few_block(at, base) : -1; }

/* `count` times `each` numbers of position p, from dimension d on, `apart` dimensions apart; zeros beyond. `block`: where a tile has one.
   beyond: from K on to K or V. */
FG_DEV void fgk_few_read(const fg_gpu_attention_args *a, const fgk_few_place *at, uint64_t beyond, int p, int block, int d, int apart, int count,
                         int each, int type, fgk_u4 *to, uint32_t *scales) {
    int offset = p & (a->kv.block_tokens - 1), n, i;
    uint64_t first, row, its = 0;
    if (at->shift < 4) block = fgk_few_block(at, p);
    n = block >= 0 && p < at->end ? a->kv.head_dim - d : 0; /* blocks that fell out of the window are zeros */
    first = at->k + beyond + (uint64_t)(uint32_t)block * a->kv.block_stride; /* else nothing is read there */
    row = first + (uint32_t)(offset * at->row_bytes + d * (type == FG_GPU_Q8_0 ? 1 : 2));
    if (type == FG_GPU_Q8_0)
        its = first + (uint32_t)(a->kv.block_tokens * at->row_bytes + offset * 2 * fg_gpu_kv_scales(type, a->kv.head_dim));
    FG_UNROLL for (i = 0; i < count; i++) {
        fgk_u4 v = {0, 0, 0, 0};
        scales[i] = 0;
        if (i * apart < n) {
            if (type == FG_GPU_Q8_0 && each == 8) {
                v.x = fgk_load_u32((const char *)row + i * apart);
                v.y = fgk_load_u32((const char *)row + i * apart + 4);
            } else v = fgk_load_u4((const char *)row + i * apart * (type == FG_GPU_Q8_0 ? 1 : 2));
            if (type == FG_GPU_Q8_0) scales[i] = fgk_load_u16((const uint16_t *)its + (d + i * apart) / 32);
        }
        to[i] = v;
    }
}

FG_DEV void fgk_few_read_k(const fg_gpu_attention_args *a, const fgk_few_place *at, int base, int block, fgk_few_k *k, int type, int dim) {
    int each = fgk_few_each(type, dim, 0), r = fgk_lane() / 4, c = fgk_lane() % 4, i;
    FG_UNROLL for (i = 0; i < 2; i++)
        fgk_few_read(a, at, 0, base + r + 8 * i, block, c * each, 4 * each, dim / (4 * each), each, type, k->x[i], k->scale[i]);
}

FG_DEV void fgk_few_read_v(const fg_gpu_attention_args *a, const fgk_few_place *at, int base, int block, fgk_few_v *v, int type, int dim) {
    int each = fgk_few_each(type, dim, 1), r = fgk_lane() / 4, c = fgk_lane() % 4, i;
    FG_UNROLL for (i = 0; i < 4; i++)
        fgk_few_read(a, at, a->kv.v - a->kv.k, base + 2 * c + i % 2 + i / 2 * 8, block, r * each, 8 * each, dim / (8 * each), each, type,
                     v->x[i], v->scale[i]);
}

/* Four signed bytes times a scale, a half of at most 511.5, as halves. u + 128 in the low bits of 1024 is that much more, and differences
   and products of halves are rounded once: these are exact. */
FG_DEV void fgk_bytes_to_halves(uint32_t bytes, uint32_t scale, uint32_t *to) {
    uint32_t u = bytes ^ 0x80808080u;
    int i;
    FG_UNROLL for (i = 0; i < 2; i++)
        to[i] = fgk_halves_mul(fgk_halves_sub(fgk_pick_bytes(u, 0x64u, i ? 0x4342u : 0x4140u), 0x64806480u), scale * 0x10001u);
}

/* What was read at once, as halves in each / 2 words. */
FG_DEV void fgk_few_halves(fgk_u4 v, uint32_t scale, int type, int each, uint32_t *to) {
    uint32_t words[4];
    int i;
    words[0] = v.x, words[1] = v.y, words[2] = v.z, words[3] = v.w;
    if (type == FG_GPU_Q8_0) {
        scale = scale > 0x5FFEu ? 0x5FFEu : scale; /* 511.5: products of larger ones might be infinite */
        FG_UNROLL for (i = 0; i < each / 4; i++) fgk_bytes_to_halves(words[i], scale, to + 2 * i);
    } else {
        FG_UNROLL for (i = 0; i < 4; i++)
            to[i] = type == FG_GPU_F16 ? words[i] : fgk_finite_halves(fgk_from_bits(words[i] << 16), fgk_from_bits(words[i] & 0xFFFF0000u));
    }
}

/* row / heads, of up to 16 each. */
FG_DEV int fgk_few_token(int row, int heads) { return row * (65536 / heads + 1) >> 16; }

/* The queries times `scale`, in the order in which K is read: of each step of 16 dimensions four words of every lane. */
FG_DEV void fgk_few_queries(const fg_gpu_attention_args *a, const fg_gpu_attn_item *item, int column, int m, int heads, float scale,
                            uint32_t *q, int type, int dim) {
    int each = fgk_few_each(type, dim, 0), n = a->kv.head_dim, j;
    FG_UNROLL for (j = 0; j < FG_GPU_ATTN_ROWS * dim / 2 / FG_GPU_THREADS; j++) { /* a known number: all are asked for at once */
        int i = j * FG_GPU_THREADS + fgk_thread(), row = i / (dim / 2), d = i % (dim / 2) * 2, token = fgk_few_token(row, heads);
        int step = d / (4 * each) * (each / 4) + d % each / 4, lane = row % 8 * 4 + d % (4 * each) / each;
        const float *src = (const float *)a->q + (int64_t)(item->token + token) * a->q_stride + column + (row - token * heads) * n + d;
        float x = row < m && d < n ? fgk_load(src) * scale : 0.0f, y = row < m && d + 1 < n ? fgk_load(src + 1) * scale : 0.0f;
        fgk_put_u32(q + (step * 32 + lane) * 4 + row / 8 + d % 4 / 2 * 2, fgk_two_halves(x, y));
    }
}

/* Scores of 16 rows with the tile. */
FG_DEV void fgk_few_scores(fgk_sums *s, const uint32_t *q, const fgk_few_k *k, int type, int dim) {
    int each = fgk_few_each(type, dim, 0), i, j;
    fgk_sums odd; /* two sums, so that a product does not wait for the one before */
    FG_UNROLL for (i = 0; i < 8; i++) s->x[i] = odd.x[i] = 0.0f;
    FG_UNROLL for (j = 0; j < dim / (4 * each); j++) {
        uint32_t low[8], high[8];
        fgk_few_halves(k->x[0][j], k->scale[0][j], type, each, low);
        fgk_few_halves(k->x[1][j], k->scale[1][j], type, each, high);
        FG_UNROLL for (i = 0; i < each / 4; i++) {
            fgk_u4 left = fgk_get_u4(q + ((j * (each / 4) + i) * 32 + fgk_lane()) * 4);
            fgk_frag x, y;
            x.x[0] = left.x, x.x[1] = left.y, x.x[2] = left.z, x.x[3] = left.w;
            y.x[0] = low[2 * i], y.x[1] = high[2 * i], y.x[2] = low[2 * i + 1], y.x[3] = high[2 * i + 1];
            fgk_mma(i % 2 ? &odd : s, &x, &y);
        }
    }
    FG_UNROLL for (i = 0; i < 8; i++) s->x[i] += odd.x[i];
}

/* What a lane knows of its rows r and r + 8: positions (-1: it sees nothing), highest scores, times log2(e), and its own part of the sums
   of their weights. */
typedef struct fgk_few_rows {
    int position[2];
    float most[2], sum[2], factor[2];
} fgk_few_rows;

/* Scores to weights, as a left operand. */
FG_DEV void fgk_few_softmax(const fg_gpu_attention_args *a, const fg_gpu_attn_item *item, int base, fgk_few_rows *rows, fgk_sums *s,
                            fgk_frag *weights) {
    int all = base + FG_FEW_TILE - 1 <= item->position && (a->window <= 0 || base > item->position + item->n_tokens - 1 - a->window), i, r;
    if (a->softcap > 0.0f)
        FG_UNROLL for (i = 0; i < 8; i++) {
            float y = s->x[i] / a->softcap;
            y = y > 40.0f ? 40.0f : y < -40.0f ? -40.0f : y;
            s->x[i] = a->softcap * 1.44269504f * (1.0f - 2.0f / (1.0f + fgk_exp2(2.88539008f * y))); /* tanh */
        }
    if (!all)
        FG_UNROLL for (i = 0; i < 8; i++) {
            int p = base + fgk_sum_col(i), position = rows->position[i / 2 % 2];
            if (p > position || p >= item->end || (a->window > 0 && p <= position - a->window)) s->x[i] = FG_NEG_INF;
        }
    FG_UNROLL for (r = 0; r < 2; r++) {
        const float *x = s->x + 2 * r;
        float highest = fgk_max(fgk_max(x[0], x[1]), fgk_max(x[4], x[5])), from;
        highest = fgk_max(highest, fgk_shuffle_xor(highest, 1));
        highest = fgk_max(highest, fgk_shuffle_xor(highest, 2));
        highest = fgk_max(rows->most[r], highest);
        from = highest == FG_NEG_INF ? 0.0f : highest;
        rows->factor[r] = fgk_exp2(rows->most[r] - from);
        rows->most[r] = highest;
        FG_UNROLL for (i = 0; i < 8; i++)
            if (i / 2 % 2 == r) s->x[i] = fgk_exp2(s->x[i] - from);
        rows->sum[r] = rows->sum[r] * rows->factor[r] + ((x[0] + x[1]) + (x[4] + x[5]));
    }
    FG_UNROLL for (i = 0; i < 4; i++) weights->x[i] = fgk_two_halves(s->x[2 * i], s->x[2 * i + 1]);
}

/* acc: dim / 16 sums, of the dimensions that fgk_few_dimension tells. */
FG_DEV void fgk_few_values(fgk_sums *acc, const fgk_frag *weights, const fgk_few_v *v, int type, int dim) {
    int each = fgk_few_each(type, dim, 1), i, j;
    FG_UNROLL for (j = 0; j < dim / (8 * each); j++) {
        uint32_t x[4][8];
        FG_UNROLL for (i = 0; i < 4; i++) fgk_few_halves(v->x[i][j], v->scale[i][j], type, each, x[i]);
        FG_UNROLL for (i = 0; i < each / 2; i++) {
            fgk_frag y;
            y.x[0] = fgk_low_halves(x[0][i], x[1][i]), y.x[1] = fgk_high_halves(x[0][i], x[1][i]);
            y.x[2] = fgk_low_halves(x[2][i], x[3][i]), y.x[3] = fgk_high_halves(x[2][i], x[3][i]);
            fgk_mma(&acc[j * (each / 2) + i], weights, &y);
        }
    }
}

/* Dimensions [d, d + piece) of a row from what the warps have of it. */
FG_DEV void fgk_few_finish(const fg_gpu_attention_args *a, const fg_gpu_attn_item *item, int kv_head, int head0, int heads, int row, int d,
                          const float *parts, const float *stats, int piece) {
    int all_heads = a->kv.n_head / a->kv.n_kv_head, n = a->kv.head_dim, token = fgk_few_token(row, heads), head, w, k;
    float most = FG_NEG_INF, sum = 0.0f, factors[FG_GPU_THREADS / 32], *out;
    head = head0 + row - token * heads;
    FG_UNROLL for (w = 0; w < FG_GPU_THREADS / 32; w++) most = fgk_max(most, fgk_get(stats + (w * FG_GPU_ATTN_ROWS + row) * 2));
    FG_UNROLL for (w = 0; w < FG_GPU_THREADS / 32; w++) {
        float its = fgk_get(stats + (w * FG_GPU_ATTN_ROWS + row) * 2);
        factors[w] = its == FG_NEG_INF ? 0.0f : fgk_exp2(its - most);
        sum = fgk_fma(factors[w], fgk_get(stats + (w * FG_GPU_ATTN_ROWS + row) * 2 + 1), sum);
    }
    if (item->partial < 0) out = (float *)a->dst + (int64_t)(item->token + token) * a->dst_stride + (kv_head * all_heads + head) * n;
    else {
        out = (float *)a->partials + ((int64_t)(item->partial + token * all_heads + head) * a->kv.n_kv_head + kv_head) * (n + 2) + 2;
        if (d + fgk_lane() == 0) {
            fgk_store(out - 2, most * 0.69314718f);
            fgk_store(out - 1, sum);
        }
    }
    sum = item->partial < 0 ? 1.0f / (sum + fgk_sink(a, kv_head * all_heads + head, most * 0.69314718f)) : 1.0f;
    FG_UNROLL for (k = 0; k < piece / 32; k++) {
        int j = 32 * k + fgk_lane();
        float value = 0.0f;
        FG_UNROLL for (w = 0; w < FG_GPU_THREADS / 32; w++)
            value = fgk_fma(factors[w], fgk_get(parts + (w * FG_GPU_ATTN_ROWS + row) * (piece + 4) + j), value);
        if (d + j < n) fgk_store(out + d + j, value * sum);
    }
}

/* dim: 64, 128 or 256. q: dim * 8 words; parts: [warps][rows][at most FG_FEW_PIECE + 4]; stats: [warps][rows][2] */
FG_BODY void fgk_few(const fg_gpu_attention_args *a, uint32_t *q, float *parts, float *stats, int type, int dim) {
    int all_heads = a->kv.n_head / a->kv.n_kv_head, groups = fg_gpu_head_groups(a->kv.n_head, a->kv.n_kv_head);
    int kv_head = fgk_block_y() / groups, head0 = fgk_block_y() % groups * FG_GPU_ATTN_ROWS, n = a->kv.head_dim;
    int heads = all_heads - head0 < FG_GPU_ATTN_ROWS ? all_heads - head0 : FG_GPU_ATTN_ROWS;
    int warps = FG_GPU_THREADS / 32, warp = fgk_group(), each = fgk_few_each(type, dim, 1), piece = dim < FG_FEW_PIECE ? dim : FG_FEW_PIECE, m, base, ahead, d, i, r;
    fg_gpu_attn_item item;
    fgk_few_place at;
    fgk_few_rows rows;
    fgk_sums acc[16]; /* dim / 16 */
    fgk_few_k k;
    fgk_few_v v;
    if (fgk_block_x() >= fgk_count(a->count)) return;
    item = fgk_attn_item(a);
    m = item.n_tokens * heads;
    at.table = (const int32_t *)a->table + (int64_t)item.seq * a->table_stride;
    at.k = a->kv.k + (uint64_t)kv_head * (uint64_t)fg_gpu_kv_head_bytes(type, n, a->kv.block_tokens);
    at.end = item.end;
    at.shift = fgk_log2(a->kv.block_tokens);
    at.row_bytes = fg_gpu_kv_row_bytes(type, n);
    /* the first tile that is seen, then the first of these that is this warp's */
    base = a->window > 0 && item.position >= a->window ? item.position - a->window + 1 : 0;
    base = (base > item.start ? base : item.start) / FG_FEW_TILE;
    base = (base + ((warp - base) & (warps - 1))) * FG_FEW_TILE;
    ahead = fgk_few_ahead(&at, base);
    if (dim <= 128) {
        fgk_few_read_k(a, &at, base, ahead, &k, type, dim);
        fgk_few_read_v(a, &at, base, ahead, &v, type, dim);
        ahead = fgk_few_ahead(&at, base + warps * FG_FEW_TILE);
    }
    fgk_few_queries(a, &item, (kv_head * all_heads + head0) * n, m, heads, a->scale * (a->softcap > 0.0f ? 1.0f : 1.44269504f), q, type, dim);
    FG_UNROLL for (r = 0; r < 2; r++) {
        int row = fgk_lane() / 4 + 8 * r;
        rows.position[r] = row < m ? item.position + fgk_few_token(row, heads) : -1;
        rows.most[r] = FG_NEG_INF;
        rows.sum[r] = 0.0f;
    }
    FG_UNROLL for (d = 0; d < dim / 16; d++)
        FG_UNROLL for (i = 0; i < 8; i++) acc[d].x[i] = 0.0f;
    fgk_barrier();
    FG_ROLLED for (; base < item.end; base += warps * FG_FEW_TILE) {
        fgk_sums s;
        fgk_frag weights;
        int next = base + warps * FG_FEW_TILE, block = ahead; /* of what is read in this turn */
        if (dim > 128) {
            fgk_few_read_k(a, &at, base, ahead, &k, type, dim);
            ahead = fgk_few_ahead(&at, next);
        } else ahead = fgk_few_ahead(&at, next + warps * FG_FEW_TILE);
        fgk_few_scores(&s, q, &k, type, dim);
        if (dim > 128) fgk_few_read_v(a, &at, base, block, &v, type, dim);
        else fgk_few_read_k(a, &at, next, block, &k, type, dim);
        fgk_few_softmax(a, &item, base, &rows, &s, &weights);
        FG_UNROLL for (d = 0; d < dim / 16; d++)
            FG_UNROLL for (i = 0; i < 8; i++) acc[d].x[i] *= rows.factor[i / 2 % 2];
        fgk_few_values(acc, &weights, &v, type, dim);
        if (dim <= 128) fgk_few_read_v(a, &at, next, block, &v, type, dim);
    }
    item = fgk_attn_item(a); /* again: the loop has no registers for it */
    FG_UNROLL for (r = 0; r < 2; r++) {
        int row = fgk_lane() / 4 + 8 * r;
        rows.sum[r] += fgk_shuffle_xor(rows.sum[r], 1);
        rows.sum[r] += fgk_shuffle_xor(rows.sum[r], 2);
        if (fgk_lane() % 4 == 0) {
            fgk_put(stats + (warp * FG_GPU_ATTN_ROWS + row) * 2, rows.most[r]);
            fgk_put(stats + (warp * FG_GPU_ATTN_ROWS + row) * 2 + 1, rows.sum[r]);
        }
    }
    FG_UNROLL for (d = 0; d < dim; d += piece) {
        if (d > 0) fgk_barrier();
        /* sums i and i + 4 of two fragments are of four adjacent dimensions: from each * (2c + i % 2) on */
        FG_UNROLL for (i = 0; i < 4; i++) {
            int row = fgk_lane() / 4 + 8 * (i / 2), j;
            float *to = parts + (warp * FG_GPU_ATTN_ROWS + row) * (piece + 4) + each * (fgk_lane() % 4 * 2 + i % 2);
            if (row < m)
                FG_UNROLL for (j = 0; j < piece / 16; j += 2) {
                    const fgk_sums *x = &acc[d / 16 + j];
                    fgk_u4 u = {fgk_bits(x[0].x[i]), fgk_bits(x[0].x[i + 4]), fgk_bits(x[1].x[i]), fgk_bits(x[1].x[i + 4])};
                    fgk_put_u4(to + j / (each / 2) * 8 * each + j % (each / 2) * 2, u);
                }
        }
        fgk_barrier();
        FG_ROLLED for (i = warp; i < m; i += warps) fgk_few_finish(a, &item, kv_head, head0, heads, i, d, parts, stats, piece);
    }
}
#endif

/* Attention of many queries of a sequence in matrix fragments of half floats. A workgroup has up to `rows` queries, 64, or 32 of heads
   over 128, so that the sums take as many registers and shared memory stays under 48 KiB: strips of 16. A warp has a strip or two, or
   shares one: then each of these has a part of the positions, and of the dimensions of the values. Positions come 32 at a time. Scores
   and weights of positions go through shared memory, where two threads or four have a query's softmax. Rows of halves have 8 of
   padding, against conflicts. */
enum { FG_WIDE_T = FG_ATTN_TILE + 8, FG_WIDE_S = FG_ATTN_TILE + 1 };
/* Weights of positions, at most 1, are multiplied with this as halves: MI200's products take halves below 2^-14 for 0 (V's, too). */
#define FG_WIDE_SCALE 16384.0f

FG_BODY void fgk_wide(const fg_gpu_attention_args *a, uint16_t *q, uint16_t *tile, float *scores, uint16_t *parts, float *factors, int type,
                     int dim, int rows) {
    int all_heads = a->kv.n_head / a->kv.n_kv_head, groups = (all_heads + rows - 1) / rows;
    int kv_head = fgk_block_y() / groups, head0 = fgk_block_y() % groups * rows, n = a->kv.head_dim, me = fgk_thread();
    int heads = all_heads - head0 < rows ? all_heads - head0 : rows, m, low, base, i, j, s, c, kk;
    int warps = FG_GPU_THREADS / FG_WARP, strips = rows / 16, shares = warps > strips ? warps / strips : 1, own = warps > strips ? 1 : strips / warps;
    int strip0 = me / FG_WARP % strips * 16, share = me / FG_WARP / strips, across = dim / 16 / shares, q_row = dim + 8;
    int threads = FG_GPU_THREADS / rows, mine = FG_ATTN_TILE / threads, my_row = me / threads, my_first = me % threads * mine, position;
    fg_gpu_attn_item item;
    fgk_sums acc[16]; /* [own][across] */
    float most = FG_NEG_INF, sum = 0.0f;
    if (fgk_block_x() >= fgk_count(a->count)) return;
    item = fgk_attn_item(a);
    m = item.n_tokens * heads;
    position = my_row < m ? item.position + my_row / heads : -1; /* rows that there are not see nothing */
    for (i = me; i < rows * dim / 2; i += FG_GPU_THREADS) {
        int row = i / (dim / 2), d = i % (dim / 2) * 2, column = (kv_head * all_heads + head0 + row % heads) * n + d;
        const float *src = (const float *)a->q + (int64_t)(item.token + row / heads) * a->q_stride + column;
        float x = row < m && d < n ? fgk_load(src) * a->scale : 0.0f, y = row < m && d + 1 < n ? fgk_load(src + 1) * a->scale : 0.0f;
        fgk_put_u32((uint32_t *)(q + row * q_row + d), fgk_two_halves(x, y));
    }
    FG_UNROLL for (c = 0; c < own * across; c++)
        FG_UNROLL for (i = 0; i < FG_SUMS; i++) acc[c].x[i] = 0.0f;
    low = a->window > 0 && item.position >= a->window ? item.position - a->window + 1 : 0;
    low = low > item.start ? low / FG_ATTN_TILE * FG_ATTN_TILE : item.start;
    FG_ROLLED for (base = low; base < item.end; base += FG_ATTN_TILE) {
        float x[16], highest = FG_NEG_INF, before, part = 0.0f;
        fgk_barrier();
        FG_UNROLL for (i = me; i < FG_ATTN_TILE * dim / 8; i += FG_GPU_THREADS) { /* K: [position][dimension] */
            int p = i / (dim / 8), d = i % (dim / 8) * 8;
            fgk_put_u4(tile + p * q_row + d, fgk_kv_halves(a, &item, a->kv.k, kv_head, base + p, d, type));
        }
        fgk_barrier();
        FG_UNROLL for (s = 0; s < own; s++) {
            int strip = strip0 + s * warps * 16;
            fgk_sums sums[2];
            FG_UNROLL for (c = 0; c < 2 / shares; c++) {
                FG_UNROLL for (i = 0; i < FG_SUMS; i++) sums[c].x[i] = 0.0f;
            }
            FG_UNROLL_MMA for (kk = 0; kk < dim; kk += 16) {
                fgk_frag left, right;
                fgk_frag_load(&left, q + strip * q_row + kk, q_row);
                FG_UNROLL for (c = 0; c < 2 / shares; c++) {
                    fgk_frag_load(&right, tile + (share + c) * 16 * q_row + kk, q_row);
                    fgk_mma(&sums[c], &left, &right);
                }
            }
            FG_UNROLL for (c = 0; c < 2 / shares; c++) {
                FG_UNROLL for (i = 0; i < FG_SUMS; i++)
                    fgk_put(scores + (strip + fgk_sum_row(i)) * FG_WIDE_S + (share + c) * 16 + fgk_sum_col(i), sums[c].x[i]);
            }
        }
        fgk_barrier();
        FG_UNROLL for (j = 0; j < mine; j++) {
            int p = base + my_first + j;
            x[j] = fgk_get(scores + my_row * FG_WIDE_S + my_first + j);
            if (a->softcap > 0.0f) {
                float y = x[j] / a->softcap;
                y = y > 40.0f ? 40.0f : y < -40.0f ? -40.0f : y;
                x[j] = a->softcap * (1.0f - 2.0f / (1.0f + fgk_exp(2.0f * y))); /* tanh */
            }
            if (p > position || p >= item.end || (a->window > 0 && p <= position - a->window)) x[j] = FG_NEG_INF;
            highest = fgk_max(highest, x[j]);
        }
        FG_UNROLL for (j = 1; j < threads; j *= 2) highest = fgk_max(highest, fgk_shuffle_xor(highest, j));
        highest = fgk_max(most, highest);
        before = most == FG_NEG_INF ? 0.0f : fgk_exp(most - highest);
        FG_UNROLL for (j = 0; j < mine; j++) {
            x[j] = x[j] == FG_NEG_INF ? 0.0f : fgk_exp(x[j] - highest);
            part += x[j];
        }
        FG_UNROLL for (j = 1; j < threads; j *= 2) part += fgk_shuffle_xor(part, j);
        sum = sum * before + part;
        most = highest;
        FG_UNROLL for (j = 0; j < mine; j += 2)
            fgk_put_u32((uint32_t *)(parts + my_row * FG_WIDE_T + my_first + j), fgk_two_halves(x[j] * FG_WIDE_SCALE, x[j + 1] * FG_WIDE_SCALE));
        if (my_first == 0) fgk_put(factors + my_row, before);
        FG_UNROLL for (i = me; i < FG_ATTN_TILE / 2 * dim / 8; i += FG_GPU_THREADS) { /* V: [dimension][position], two positions a word */
            int pair = i % (FG_ATTN_TILE / 2), d = i / (FG_ATTN_TILE / 2) * 8;
            fgk_u4 u = fgk_kv_halves(a, &item, a->kv.v, kv_head, base + 2 * pair, d, type);
            fgk_u4 v = fgk_kv_halves(a, &item, a->kv.v, kv_head, base + 2 * pair + 1, d, type);
            FG_UNROLL for (j = 0; j < 8; j++) {
                uint32_t one = (j < 2 ? u.x : j < 4 ? u.y : j < 6 ? u.z : u.w) >> j % 2 * 16 & 0xFFFFu;
                uint32_t two = (j < 2 ? v.x : j < 4 ? v.y : j < 6 ? v.z : v.w) >> j % 2 * 16 & 0xFFFFu;
                fgk_put_u32((uint32_t *)(tile + (d + j) * FG_WIDE_T + 2 * pair), one | two << 16);
            }
        }
        fgk_barrier();
        FG_UNROLL for (s = 0; s < own; s++) {
            int strip = strip0 + s * warps * 16;
            fgk_frag left[2], right;
            fgk_frag_load(&left[0], parts + strip * FG_WIDE_T, FG_WIDE_T);
            fgk_frag_load(&left[1], parts + strip * FG_WIDE_T + 16, FG_WIDE_T);
            FG_UNROLL for (c = 0; c < across; c++) {
                fgk_sums *sums = &acc[s * across + c];
                FG_UNROLL for (i = 0; i < FG_SUMS; i++) sums->x[i] *= fgk_get(factors + strip + fgk_sum_row(i));
                FG_UNROLL for (kk = 0; kk < 2; kk++) {
                    fgk_frag_load(&right, tile + (share * across + c) * 16 * FG_WIDE_T + kk * 16, FG_WIDE_T);
                    fgk_mma(sums, &left[kk], &right);
                }
            }
        }
    }
    fgk_barrier();
    if (my_first == 0) {
        int at = item.partial + my_row / heads * all_heads + head0 + my_row % heads;
        float *out = (float *)a->partials + ((int64_t)at * a->kv.n_kv_head + kv_head) * (n + 2);
        if (item.partial < 0) sum += fgk_sink(a, kv_head * all_heads + head0 + my_row % heads, most);
        fgk_put(factors + my_row, (item.partial < 0 ? 1.0f / sum : 1.0f) / FG_WIDE_SCALE);
        if (item.partial >= 0 && my_row < m) {
            fgk_store(out, most);
            fgk_store(out + 1, sum);
        }
    }
    fgk_barrier();
    FG_UNROLL for (s = 0; s < own; s++)
        FG_UNROLL for (i = 0; i < FG_SUMS; i++) {
            int row = strip0 + s * warps * 16 + fgk_sum_row(i), head = head0 + row % heads;
            int at = item.partial + row / heads * all_heads + head;
            float *out = item.partial < 0 ? (float *)a->dst + (int64_t)(item.token + row / heads) * a->dst_stride + (kv_head * all_heads + head) * n
                                          : (float *)a->partials + ((int64_t)at * a->kv.n_kv_head + kv_head) * (n + 2) + 2;
            if (row >= m) continue;
            FG_UNROLL for (c = 0; c < across; c++) {
                int d = (share * across + c) * 16 + fgk_sum_col(i);
                if (d < n) fgk_store(out + d, acc[s * across + c].x[i] * fgk_get(factors + row));
            }
        }
}

#if defined(FG_WARPGROUPS)

/* Attention of many queries by products of warpgroups (Hopper). A workgroup of two has 128 queries, a warpgroup 64 of them; positions
   come 128 at a time, 64 with heads over 128. Scores stay in registers, where a thread has its part of two queries', their weights become
   the left operand of the second product there, and K and V lie in shared memory as halves. While the values of one tile are added up,
   the scores of the next are made, and its softmax; K of the one after that and V of this next one are on their way.

   What it costs by arithmetic (an H200 reaches a third of that, see tests/results/), heads of 128, at the 990 TFLOP/s of half floats and
   1.75 GHz that an H100 is sold with, thus 4096 operations in a cycle of each of 132 processors: a tile is 2 * 2 * 128 * 128 * 128 = 8.4 million
   operations, 2048 cycles of products; 16384 powers of two at 16 a cycle, 1024, and about 9 instructions more for each of them, 1150 at
   four warps a cycle, which products of the other warpgroup or of the same one hide. It reads 64 KiB, 128 operations a byte: 4.2 TB/s of
   the L2 cache at 60% of the roof. A piece of 2048 positions (16 tiles, 32800 cycles) begins with 64 KiB of queries and the first K
   (about 1500 cycles) and ends with 64 KiB of sums. mma.sync, as in fgk_wide, reaches 60 to 65% of the same roof by itself, and has its
   scores go through shared memory between barriers. Heads of 256: as many operations in a tile of 64, half as many powers of two, the same
   bytes. A cache of bytes goes through registers on its way, some 10 instructions for 8 of its numbers. */

/* K or V of n positions from `base` on: 64 dimensions of all, then the next 64. Zeros beyond `end` and head_dim. A thread has the same
   16 bytes of some positions: it asks for all their blocks before it waits for the first. */
FG_DEV void fgk_wg_tile(const fg_gpu_attention_args *a, const fg_gpu_attn_item *item, uint64_t cache, int head, int base, uint16_t *tile, int type,
                       int dim, int n) {
    int across = dim / 8, apart = FG_GPU_GEMV_THREADS / across, row = fgk_thread() / across, c = fgk_thread() % across, blocks[8], i;
    int shift = fgk_log2(a->kv.block_tokens), p = base + row, end = 8 * c < a->kv.head_dim ? item->end : 0;
    uint16_t *to = tile + c / 8 * (n * 64) + row * 64 + (c % 8 ^ (row & 7)) * 8; /* `apart` is a multiple of 8 */
    const int32_t *table = (const int32_t *)a->table + (int64_t)item->seq * a->table_stride;
    const char *from = fgk_kv_row(&a->kv, cache, type, 0, 0, head) + 16 * c;
    if (type == FG_GPU_Q8_0) {
        FG_UNROLL for (i = 0; i < n / apart; i++)
            fgk_put_u4(to + i * apart * 64, fgk_kv_halves(a, item, cache, head, p + i * apart, 8 * c, type));
        return;
    }
    FG_UNROLL for (i = 0; i < n / apart; i++) blocks[i] = p + i * apart < end ? (int)fgk_load_u32(table + ((p + i * apart) >> shift)) : -1;
    FG_UNROLL for (i = 0; i < n / apart; i++)
        fgk_async_copy_or_zero(to + i * apart * 64,
                               from + (int64_t)(blocks[i] < 0 ? 0 : blocks[i]) * (int64_t)a->kv.block_stride +
                                   ((p + i * apart) & (a->kv.block_tokens - 1)) * fg_gpu_kv_row_bytes(type, a->kv.head_dim),
                               blocks[i] >= 0);
}

/* The queries, times `scale`, as K lies; eight loads at a time. */
FG_DEV void fgk_wg_queries(const fg_gpu_attention_args *a, const fg_gpu_attn_item *item, int kv_head, int all_heads, int head0, int heads, float scale,
                          uint16_t *q, int type, int dim) {
    int m = item->n_tokens * heads, n = a->kv.head_dim, apart = FG_GPU_GEMV_THREADS / (dim / 2), i, j;
    int row = fgk_thread() / (dim / 2), d = fgk_thread() % (dim / 2) * 2, token = row / heads, head = row % heads, tokens = apart / heads;
    const float *src = (const float *)a->q + (int64_t)item->token * a->q_stride + (kv_head * all_heads + head0) * n + d;
    FG_ROLLED for (i = 0; i < FG_GPU_WG_ROWS; i += 8 * apart) {
        float x[8], y[8];
        FG_UNROLL for (j = 0; j < 8; j++) {
            const float *at = src + (int64_t)token * a->q_stride + head * n;
            bool some = i + j * apart + row < m;
            x[j] = some && d < n ? fgk_load(at) : 0.0f;
            y[j] = some && d + 1 < n ? fgk_load(at + 1) : 0.0f;
            token += tokens, head += apart - tokens * heads;
            if (head >= heads) head -= heads, token++;
        }
        FG_UNROLL for (j = 0; j < 8; j++) {
            int at = i + j * apart + row;
            uint16_t *to = q + d / 64 * (FG_GPU_WG_ROWS * 64) + at * 64 + (d % 64 / 8 ^ (at & 7)) * 8 + d % 8;
            fgk_put_u32((uint32_t *)(void *)to, fgk_wg_pair(type, x[j] * scale, y[j] * scale));
        }
    }
}

/* What a thread knows of its two queries: positions (-1: it sees nothing), highest scores and sums so far, and the factor of what was
   added up before the last tile. Scores are times log2(e). */
typedef struct fgk_wg_rows {
    int position[2];
    float most[2], sum[2], factor[2];
} fgk_wg_rows;

/* Scores of the n positions from `base` on to weights. */
FG_DEV void fgk_wg_softmax(const fg_gpu_attention_args *a, const fg_gpu_attn_item *item, int base, fgk_wg_rows *rows, float *x, int n) {
    int all = base + n - 1 <= item->position &&
              (a->window <= 0 || base > item->position + item->n_tokens - 1 - a->window), i, r;
    if (a->softcap > 0.0f)
        FG_UNROLL for (i = 0; i < n / 2; i++) {
            float y = x[i] / a->softcap;
            y = y > 40.0f ? 40.0f : y < -40.0f ? -40.0f : y;
            x[i] = a->softcap * 1.44269504f * (1.0f - 2.0f / (1.0f + fgk_exp2(2.88539008f * y))); /* tanh */
        }
    if (!all)
        FG_UNROLL for (i = 0; i < n / 2; i++) {
            int p = base + fgk_wg_col(i), position = rows->position[i / 2 % 2];
            if (p > position || p >= item->end || (a->window > 0 && p <= position - a->window)) x[i] = FG_NEG_INF;
        }
    FG_UNROLL for (r = 0; r < 2; r++) {
        float highest = rows->most[r], from, part = 0.0f;
        FG_UNROLL for (i = 0; i < n / 2; i++)
            if (i / 2 % 2 == r) highest = fgk_most(highest, x[i]); /* what is none makes the sum none */
        highest = fgk_most(highest, fgk_shuffle_xor(highest, 1));
        highest = fgk_most(highest, fgk_shuffle_xor(highest, 2));
        from = highest == FG_NEG_INF ? 0.0f : highest;
        FG_UNROLL for (i = 0; i < n / 2; i++)
            if (i / 2 % 2 == r) {
                x[i] = fgk_exp2(x[i] - from);
                part += x[i];
            }
        part += fgk_shuffle_xor(part, 1);
        part += fgk_shuffle_xor(part, 2);
        rows->factor[r] = fgk_exp2(rows->most[r] - from);
        rows->sum[r] = rows->sum[r] * rows->factor[r] + part;
        rows->most[r] = highest;
    }
}

/* Begins the products of 64 queries with a tile of K. */
FG_DEV void fgk_wg_begin_scores(float *x, const uint16_t *q, const uint16_t *k, int type, int dim, int n) {
    int kk;
    FG_UNROLL for (kk = 0; kk < dim; kk += 16)
        fgk_wg_scores(type, n, x, fg_gpu_wg_operand(fgk_shared_address(q + kk / 64 * (FG_GPU_WG_ROWS * 64) + kk % 64)),
                      fg_gpu_wg_operand(fgk_shared_address(k + kk / 64 * (n * 64) + kk % 64)), kk > 0);
    fgk_wg_commit();
}

/* And of their weights with a tile of V. */
FG_DEV void fgk_wg_begin_values(float *x, const uint32_t *weights, const uint16_t *v, int type, int dim, int n) {
    int kk;
    FG_UNROLL for (kk = 0; kk < n; kk += 16)
        fgk_wg_weighted(type, dim, x, weights + kk / 4, fg_gpu_wg_columns(fgk_shared_address(v + kk * 64), (uint32_t)n * 128));
    fgk_wg_commit();
}

/* dim: 64, 128 or 256, of which `room` has fg_gpu_wg_row_bytes each. A cache of bytes becomes halves on its way to shared memory. */
FG_BODY void fgk_wide_warpgroups(const fg_gpu_attention_args *a, uint16_t *room, int type, int dim) {
    int all_heads = a->kv.n_head / a->kv.n_kv_head, groups = (all_heads + FG_GPU_WG_ROWS - 1) / FG_GPU_WG_ROWS, n = a->kv.head_dim;
    int kv_head = fgk_block_y() / groups, head0 = fgk_block_y() % groups * FG_GPU_WG_ROWS, half = fgk_thread() / 128, positions = fg_gpu_wg_positions(dim);
    int heads = all_heads - head0 < FG_GPU_WG_ROWS ? all_heads - head0 : FG_GPU_WG_ROWS, m, low, tiles, i, j, r;
    int tile = positions * dim, kind = type == FG_GPU_BF16 ? FG_GPU_BF16 : FG_GPU_F16; /* halves of a tile; what is multiplied */
    uint16_t *q = room, *mine = q + half * 64 * 64, *k = room + FG_GPU_WG_ROWS * dim, *v = k + 2 * tile;
    fg_gpu_attn_item item;
    fgk_wg_rows rows;
    float s[64], o[128]; /* positions / 2, dim / 2 */
    uint32_t weights[32];
    if (fgk_block_x() >= fgk_count(a->count)) return;
    item = fgk_attn_item(a);
    m = item.n_tokens * heads;
    low = a->window > 0 && item.position >= a->window ? item.position - a->window + 1 : 0;
    low = low > item.start ? low / positions * positions : item.start;
    tiles = (item.end - low + positions - 1) / positions;
    fgk_wg_tile(a, &item, a->kv.k, kv_head, low, k, type, dim, positions);
    fgk_wg_queries(a, &item, kv_head, all_heads, head0, heads, a->softcap > 0.0f ? a->scale : a->scale * 1.44269504f, q, kind, dim);
    FG_UNROLL for (r = 0; r < 2; r++) {
        int row = half * 64 + fgk_wg_row(2 * r);
        rows.position[r] = row < m ? item.position + row / heads : -1;
        rows.most[r] = FG_NEG_INF;
        rows.sum[r] = 0.0f;
    }
    FG_UNROLL for (i = 0; i < positions / 2; i++) s[i] = 0.0f;
    FG_UNROLL for (i = 0; i < dim / 2; i++) o[i] = 0.0f;
    fgk_async_wait();
    fgk_wg_publish();
    fgk_barrier();
    fgk_wg_hold(s, positions / 2);
    fgk_wg_fence();
    fgk_wg_begin_scores(s, mine, k, kind, dim, positions);
    if (tiles > 1) fgk_wg_tile(a, &item, a->kv.k, kv_head, low + positions, k + tile, type, dim, positions);
    fgk_wg_tile(a, &item, a->kv.v, kv_head, low, v, type, dim, positions);
    fgk_wg_wait(0);
    fgk_wg_hold(s, positions / 2);
    fgk_wg_softmax(a, &item, low, &rows, s, positions);
    FG_UNROLL for (i = 0; i < positions / 2; i += 2) weights[i / 2] = fgk_wg_pair(kind, s[i], s[i + 1]);
    FG_ROLLED for (j = 1; j < tiles; j++) {
        int base = low + j * positions, odd = j & 1;
        fgk_async_wait();
        fgk_wg_publish();
        fgk_barrier(); /* all products of the tile before have been waited for */
        fgk_wg_hold(s, positions / 2);
        fgk_wg_hold(o, dim / 2);
        fgk_wg_hold_u32(weights, positions / 4);
        fgk_wg_fence();
        fgk_wg_begin_scores(s, mine, k + odd * tile, kind, dim, positions);
        fgk_wg_begin_values(o, weights, v + (odd ^ 1) * tile, kind, dim, positions);
        if (j + 1 < tiles) fgk_wg_tile(a, &item, a->kv.k, kv_head, base + positions, k + (odd ^ 1) * tile, type, dim, positions);
        fgk_wg_tile(a, &item, a->kv.v, kv_head, base, v + odd * tile, type, dim, positions);
        fgk_wg_wait(1);
        fgk_wg_hold(s, positions / 2);
        fgk_wg_softmax(a, &item, base, &rows, s, positions);
        /* Never so: ptxas moves the wait before the softmax, which products are to hide, but not before what may write what they read. */
        if (rows.sum[0] + rows.sum[1] < 0.0f) fgk_put_u32((uint32_t *)(void *)room, 0);
        fgk_wg_wait(0);
        fgk_wg_hold(o, dim / 2);
        fgk_wg_hold_u32(weights, positions / 4);
        FG_UNROLL for (i = 0; i < dim / 2; i++) o[i] *= rows.factor[i / 2 % 2];
        FG_UNROLL for (i = 0; i < positions / 2; i += 2) weights[i / 2] = fgk_wg_pair(kind, s[i], s[i + 1]);
    }
    fgk_async_wait();
    fgk_wg_publish();
    fgk_barrier();
    fgk_wg_hold(o, dim / 2);
    fgk_wg_hold_u32(weights, positions / 4);
    fgk_wg_fence();
    fgk_wg_begin_values(o, weights, v + ((tiles - 1) & 1) * tile, kind, dim, positions);
    fgk_wg_wait(0);
    fgk_wg_hold(o, dim / 2);
    FG_UNROLL for (r = 0; r < 2; r++) {
        int row = half * 64 + fgk_wg_row(2 * r), head = head0 + row % heads, at = item.partial + row / heads * all_heads + head;
        float *out = item.partial < 0 ? (float *)a->dst + (int64_t)(item.token + row / heads) * a->dst_stride + (kv_head * all_heads + head) * n
                                      : (float *)a->partials + ((int64_t)at * a->kv.n_kv_head + kv_head) * (n + 2) + 2;
        float factor = item.partial < 0 ? 1.0f / (rows.sum[r] + fgk_sink(a, kv_head * all_heads + head, rows.most[r] * 0.69314718f)) : 1.0f;
        if (row >= m) continue;
        if (item.partial >= 0 && fgk_wg_col(0) == 0) {
            fgk_store(out - 2, rows.most[r] * 0.69314718f);
            fgk_store(out - 1, rows.sum[r]);
        }
        FG_UNROLL for (i = 0; i < dim / 2; i++)
            if (i / 2 % 2 == r && fgk_wg_col(i) < n) fgk_store(out + fgk_wg_col(i), o[i] * factor);
    }
}
#endif

/* The pieces of queries, one query after the other, of up to FG_GPU_MERGE_TOKENS tokens and one head. Group g of lanes adds up every
   fourth piece of the context, from the g-th on, in their order; then the groups' sums meet. The first pieces of a group are read at once
   with what says how much they weigh, so that one trip to memory serves for few. parts: [groups][FG_GPU_MAX_HEAD_DIM]; stats: [groups][2];
   weights: [groups][64] */
enum { FG_COMBINE_AHEAD = 4 };

FG_DEV void fgk_combine_read(const float *from, int64_t apart, int pieces, int d, int n, float (*x)[4]) {
    int i, j;
    FG_UNROLL for (i = 0; i < FG_COMBINE_AHEAD; i++)
        FG_UNROLL for (j = 0; j < 4; j++) x[i][j] = i < pieces && d + 32 * j < n ? fgk_load(from + i * apart + d + 32 * j) : 0.0f;
}

FG_BODY void fgk_combine(const fg_gpu_attention_args *a, float *parts, float *stats, float *weights) {
    int all_heads = a->kv.n_head / a->kv.n_kv_head, head = fgk_block_y() % a->kv.n_head, n = a->kv.head_dim, groups = FG_GPU_THREADS / 32;
    int token0 = fgk_block_y() / a->kv.n_head * FG_GPU_MERGE_TOKENS, group = fgk_group(), lane = fgk_lane(), n_tokens, mine, skip;
    int t, d, i, j;
    const fg_gpu_attn_merge *from = (const fg_gpu_attn_merge *)a->merges + fgk_block_x();
    int64_t row_floats = (int64_t)a->kv.n_kv_head * (n + 2), apart;
    const float *first;
    float *out;
    if (fgk_block_x() >= fgk_count(a->merge_count)) return;
    n_tokens = (int)fgk_load_u32(&from->n_tokens);
    out = (float *)a->dst + (int64_t)((int)fgk_load_u32(&from->token) + token0) * a->dst_stride + head * n;
    apart = (int64_t)n_tokens * all_heads * row_floats;
    skip = (group - (int)fgk_load_u32(&from->first)) & (groups - 1);
    mine = ((int)fgk_load_u32(&from->n_splits) - skip + groups - 1) / groups;
    i = (int)fgk_load_u32(&from->partial) + token0 * all_heads + head % all_heads;
    first = (const float *)a->partials + ((int64_t)i * a->kv.n_kv_head + head / all_heads) * (n + 2) + skip * apart;
    apart *= groups;
    FG_ROLLED for (t = token0; t < n_tokens && t < token0 + FG_GPU_MERGE_TOKENS; t++, first += all_heads * row_floats, out += a->dst_stride) {
        float most, sum = 0.0f, acc[4], total = 0.0f, factor[4], x[FG_COMBINE_AHEAD][4];
        float its = lane < mine ? fgk_load(first + lane * apart) : FG_NEG_INF;
        float its_sum = lane < mine ? fgk_load(first + lane * apart + 1) : 0.0f;
        fgk_combine_read(first + 2, apart, mine, lane, n, x);
        most = its;
        FG_ROLLED for (i = lane + 32; i < mine; i += 32) most = fgk_max(most, fgk_load(first + i * apart));
        most = fgk_group_max(most);
        FG_ROLLED for (d = 0; d < n; d += 128) {
            int base;
            FG_UNROLL for (j = 0; j < 4; j++) acc[j] = 0.0f;
            FG_ROLLED for (base = 0; base < mine; base += 32) {
                int end = mine - base < 32 ? mine - base : 32;
                if (mine > 32 && (base > 0 || d > 0)) {
                    its = base + lane < mine ? fgk_load(first + (base + lane) * apart) : FG_NEG_INF;
                    its_sum = base + lane < mine ? fgk_load(first + (base + lane) * apart + 1) : 0.0f;
                }
                fgk_put(weights + group * 64 + lane, its == FG_NEG_INF ? 0.0f : fgk_exp(its - most)); /* 0: it sees nothing there */
                fgk_put(weights + group * 64 + 32 + lane, its_sum);
                fgk_group_sync();
                FG_ROLLED for (i = 0; i < end; i += FG_COMBINE_AHEAD) {
                    int s;
                    if (base + i + d > 0) fgk_combine_read(first + 2 + (base + i) * apart, apart, end - i, d + lane, n, x);
                    FG_UNROLL for (s = 0; s < FG_COMBINE_AHEAD; s++) {
                        float weight = i + s < end ? fgk_get(weights + group * 64 + i + s) : 0.0f;
                        if (d == 0 && i + s < end) sum = fgk_fma(weight, fgk_get(weights + group * 64 + 32 + i + s), sum);
                        FG_UNROLL for (j = 0; j < 4; j++) acc[j] = fgk_fma(weight, x[s][j], acc[j]);
                    }
                }
                fgk_group_sync();
            }
            FG_UNROLL for (j = 0; j < 4; j++)
                if (d + lane + 32 * j < n) fgk_put(parts + group * FG_GPU_MAX_HEAD_DIM + d + lane + 32 * j, acc[j]);
        }
        if (lane == 0) {
            fgk_put(stats + 2 * group, most);
            fgk_put(stats + 2 * group + 1, sum);
        }
        fgk_barrier();
        most = FG_NEG_INF;
        FG_UNROLL for (j = 0; j < groups; j++) most = fgk_max(most, fgk_get(stats + 2 * j));
        FG_UNROLL for (j = 0; j < groups; j++) {
            float highest = fgk_get(stats + 2 * j);
            factor[j] = highest == FG_NEG_INF ? 0.0f : fgk_exp(highest - most);
            total = fgk_fma(factor[j], fgk_get(stats + 2 * j + 1), total);
        }
        total = 1.0f / (total + fgk_sink(a, head, most));
        FG_ROLLED for (i = fgk_thread(); i < n; i += FG_GPU_THREADS) {
            float value = 0.0f;
            FG_UNROLL for (j = 0; j < groups; j++) value = fgk_fma(factor[j], fgk_get(parts + j * FG_GPU_MAX_HEAD_DIM + i), value);
            fgk_store(out + i, value * total);
        }
        fgk_barrier();
    }
}

/* ---- By elements. ---- */

FG_DEV int fgk_act_mul_wide(const fg_gpu_act_mul_args *a) {
    return fgk_is_wide((a->one ? 0 : a->src) | a->src2 | a->dst, a->n | (a->one ? 0 : a->src_stride) | a->src2_stride | a->dst_stride);
}

/* min(x, 7) * sigmoid(1.702 * min(x, 7)) * (1 + y between -7 and 7) */
FG_DEV float fgk_swiglu_oai(float x, float y) {
    x = x > 7.0f ? 7.0f : x;
    y = y > 7.0f ? 7.0f : y < -7.0f ? -7.0f : y;
    return x * fgk_reciprocal(1.0f + fgk_exp_near(-1.702f * x)) * (1.0f + y);
}

/* act(x) * y */
FG_DEV fgk_f4 fgk_gated(int which, fgk_f4 x, fgk_f4 y) {
    fgk_f4 r = {fgk_swiglu_oai(x.x, y.x), fgk_swiglu_oai(x.y, y.y), fgk_swiglu_oai(x.z, y.z), fgk_swiglu_oai(x.w, y.w)};
    return which == 5 ? r : fgk_mul_f4(fgk_act_four(which, x), y);
}

/* A thread has four elements. */
FG_BODY void fgk_act_mul(const fg_gpu_act_mul_args *a) {
    int row = fgk_block_y(), i = 4 * (fgk_block_x() * FG_GPU_THREADS + fgk_thread()), n = a->n - i, wide = fgk_act_mul_wide(a);
    int count = fgk_count(a->count);
    fgk_f4 x, y;
    if (n <= 0) return;
    if (a->one) x.x = x.y = x.z = x.w = fgk_load((const float *)a->src + (int64_t)row * a->src_stride);
    else x = fgk_row_get((const float *)a->src + (int64_t)row * a->src_stride + i, n, wide);
    y = fgk_row_get((const float *)a->src2 + (int64_t)row * a->src2_stride + i, n, wide);
    if (row >= count) return;
    x = a->act == 1 ? fgk_gated(1, x, y) : a->act == 2 ? fgk_gated(2, x, y) : a->act == 5 ? fgk_gated(5, x, y) : fgk_gated(a->act, x, y);
    fgk_row_put((float *)a->dst + (int64_t)row * a->dst_stride + i, x, n, wide);
}

FG_DEV void fgk_act_rows_held(const fg_gpu_act_mul_args *a, const float *src, const float *src2, float *dst, int act, float *parts) {
    fgk_f4 v[FG_ROW_HELD], y[2]; /* of src2, no more than registers suffice for */
    int row = fgk_block_x(), first = 4 * fgk_thread(), count = fgk_rows(a->count, a->per), j;
    FG_UNROLL for (j = 0; j < FG_ROW_HELD; j++) v[j] = fgk_row_get(src + first + j * FG_ROW_STEP, a->n - first - j * FG_ROW_STEP, 1);
    FG_UNROLL for (j = 0; j < 2; j++) y[j] = fgk_row_get(src2 + first + j * FG_ROW_STEP, a->n - first - j * FG_ROW_STEP, 1);
    if (row >= count) return;
    FG_UNROLL for (j = 0; j < FG_ROW_HELD; j++) {
        int next = first + (j + 2) * FG_ROW_STEP;
        if (first + j * FG_ROW_STEP < a->n) v[j] = fgk_gated(act, v[j], y[j % 2]); /* else 0 stays */
        if (j + 2 < FG_ROW_HELD) y[j % 2] = fgk_row_get(src2 + next, a->n - next, 1);
    }
    FG_UNROLL for (j = 0; j < FG_ROW_HELD; j++) fgk_row_put(dst + first + j * FG_ROW_STEP, v[j], a->n - first - j * FG_ROW_STEP, 1);
    fgk_acts_held(a->format, v, FG_ROW_HELD, (uint16_t *)a->acts + fg_gpu_acts_row(a->format, a->acts_stride, row), a->acts_stride,
                  (float *)a->scales + row, parts);
}

/* act_mul of whole rows, of which acts are made. The usual activations have code of their own. */
FG_BODY void fgk_act_rows(const fg_gpu_act_mul_args *a) {
    FG_SHARED(float, parts, 16);
    int row = fgk_block_x(), wide = fgk_act_mul_wide(a), i;
    const float *src = (const float *)a->src + fgk_row_at(row, a->src_stride, a->per, a->n);
    const float *src2 = (const float *)a->src2 + fgk_row_at(row, a->src2_stride, a->per, a->n);
    float *dst = (float *)a->dst + fgk_row_at(row, a->dst_stride, a->per, a->n), most = 0.0f;
    if (wide && a->n <= FG_ROW_HELD * FG_ROW_STEP && a->act == 1) fgk_act_rows_held(a, src, src2, dst, 1, parts);
    else if (wide && a->n <= FG_ROW_HELD * FG_ROW_STEP && a->act == 2) fgk_act_rows_held(a, src, src2, dst, 2, parts);
    else if (row < fgk_rows(a->count, a->per)) {
        FG_ROLLED for (i = 4 * fgk_thread(); i < a->n; i += FG_ROW_STEP) {
            fgk_f4 v = fgk_row_get(src + i, a->n - i, wide), y = fgk_row_get(src2 + i, a->n - i, wide);
            v = fgk_gated(a->act, v, y);
            fgk_row_put(dst + i, v, a->n - i, wide);
            most = fgk_most_f4(v, most); /* 0 beyond the row: it is multiplied by 0 there */
        }
        fgk_acts_read(a->format, dst, a->n, wide, most, (uint16_t *)a->acts + fg_gpu_acts_row(a->format, a->acts_stride, row), a->acts_stride,
                      (float *)a->scales + row, parts);
    }
}

FG_BODY void fgk_gather(const fg_gpu_gather_args *a) {
    int row = fgk_block_y(), i = fgk_block_x() * FG_GPU_THREADS + fgk_thread();
    if (row >= fgk_count(a->count) || i >= a->n) return;
    fgk_store((float *)a->dst + (int64_t)row * a->dst_stride + i,
             fgk_load((const float *)a->src + (int64_t)(int32_t)fgk_load_u32((const int32_t *)a->rows + row) * a->src_stride + i));
}

FG_BODY void fgk_feed(const fg_gpu_feed_args *a) {
    int t = fgk_block_x() * FG_GPU_THREADS + fgk_thread(), row;
    if (t >= fgk_count(a->count)) return;
    row = (int)fgk_load_u32((const int32_t *)a->feed + t);
    if (row >= 0) fgk_store_u32((int32_t *)a->tokens + t, fgk_load_u32((const int32_t *)a->rows + (int64_t)row * a->row_words));
}

/* A thread copies its 16 bytes of every pair of blocks in their order, so that copies may build on each other. */
FG_BODY void fgk_copy(const fg_gpu_copy_args *a) {
    uint64_t at = ((uint64_t)fgk_block_x() * FG_GPU_THREADS + (uint64_t)fgk_thread()) * 16;
    const int32_t *pairs = (const int32_t *)a->pairs;
    int n = fgk_count(a->count), i;
    if (at >= a->block_bytes) return;
    for (i = 0; i < n; i++) {
        uint64_t from = (uint64_t)fgk_load_u32(pairs + 2 * i) * a->block_bytes, to = (uint64_t)fgk_load_u32(pairs + 2 * i + 1) * a->block_bytes;
        fgk_u4 v; /* by words: what fgk_load_u4 reads must not change while a kernel runs */
        v.x = fgk_load_u32((const char *)a->base + from + at);
        v.y = fgk_load_u32((const char *)a->base + from + at + 4);
        v.z = fgk_load_u32((const char *)a->base + from + at + 8);
        v.w = fgk_load_u32((const char *)a->base + from + at + 12);
        fgk_store_u4((char *)a->base + to + at, v);
    }
}

/* ---- Sampling: argmax (the lowest id of equals, NaN left out), its logit and log-sum-exp. ---- */

/* Ordered as floats are; 0 is NaN. */
FG_DEV uint32_t fgk_key_of(float x) {
    uint32_t bits = fgk_bits(x);
    if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return 0u;
    if ((bits & 0x7FFFFFFFu) == 0u) bits = 0u;
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}
FG_DEV float fgk_of_key(uint32_t key) { return fgk_from_bits(key & 0x80000000u ? key ^ 0x80000000u : ~key); }

enum { FG_KEY_LOWEST = 0x007FFFFF }; /* of -infinity */
#define FG_KEY_HIGHEST 0xFF800000u   /* of infinity */

/* The better of two, as a key and an id. */
FG_DEV void fgk_best(uint32_t *key, int *id, uint32_t other, int other_id) {
    if (other > *key || (other == *key && other_id < *id)) {
        *key = other;
        *id = other_id;
    }
}

FG_BODY void fgk_sample(const fg_gpu_sample_args *a) {
    FG_SHARED(float, parts, 8);
    FG_SHARED(uint32_t, keys, 8);
    FG_SHARED(uint32_t, ids, 8);
    int row = fgk_block_y(), first = fgk_block_x() * FG_GPU_SAMPLE_PIECE, i, mask, id = 0x7FFFFFFF;
    int end = first + FG_GPU_SAMPLE_PIECE < a->n ? first + FG_GPU_SAMPLE_PIECE : a->n;
    const float *x = (const float *)a->src + (int64_t)row * a->src_stride;
    uint32_t key = FG_KEY_LOWEST;
    float sum = 0.0f;
    if (row >= fgk_count(a->count)) return;
    for (i = first + fgk_thread(); i < end; i += FG_GPU_GEMV_THREADS) {
        uint32_t one = fgk_key_of(fgk_load(x + i));
        if (one > key) {
            key = one;
            id = i;
        }
    }
    FG_UNROLL for (mask = 16; mask > 0; mask /= 2) {
        uint32_t other = fgk_shuffle_xor_u32(key, mask);
        int other_id = (int)fgk_shuffle_xor_u32((uint32_t)id, mask);
        fgk_best(&key, &id, other, other_id);
    }
    if (fgk_lane() == 0) {
        fgk_put_u32(keys + fgk_group(), key);
        fgk_put_u32(ids + fgk_group(), (uint32_t)id);
    }
    fgk_barrier();
    FG_UNROLL for (i = 0; i < FG_GPU_GEMV_THREADS / 32; i++) fgk_best(&key, &id, fgk_get_u32(keys + i), (int)fgk_get_u32(ids + i));
    if (key > FG_KEY_LOWEST && key < FG_KEY_HIGHEST)
        for (i = first + fgk_thread(); i < end; i += FG_GPU_GEMV_THREADS) {
            float one = fgk_load(x + i);
            if (fgk_key_of(one) > FG_KEY_LOWEST) sum += fgk_exp(one - fgk_of_key(key));
        }
    sum = fgk_block_sum(sum, parts);
    if (fgk_thread() == 0) {
        fg_gpu_sample_part *part = (fg_gpu_sample_part *)a->parts + (int64_t)row * a->pieces + fgk_block_x();
        fgk_store_u32(&part->key, key);
        fgk_store_u32(&part->token, (uint32_t)id);
        fgk_store(&part->sum, sum);
    }
}

/* The parts of a row, in their order. */
FG_BODY void fgk_choose(const fg_gpu_sample_args *a) {
    int row = fgk_block_y(), best = 0, i;
    const fg_gpu_sample_part *part = (const fg_gpu_sample_part *)a->parts + (int64_t)row * a->pieces;
    uint32_t key = FG_KEY_LOWEST;
    float sum = 0.0f, top;
    uint32_t *out = (uint32_t *)a->rows + 3 * (int64_t)row;
    if (row >= fgk_count(a->count) || fgk_thread() > 0) return;
    for (i = 0; i < a->pieces; i++)
        if (fgk_load_u32(&part[i].key) > key) {
            key = fgk_load_u32(&part[i].key);
            best = (int)fgk_load_u32(&part[i].token);
        }
    top = fgk_of_key(key);
    if (key > FG_KEY_LOWEST && key < FG_KEY_HIGHEST)
        for (i = 0; i < a->pieces; i++) {
            uint32_t its = fgk_load_u32(&part[i].key);
            if (its > FG_KEY_LOWEST) sum += fgk_load(&part[i].sum) * fgk_exp(fgk_of_key(its) - top);
        }
    fgk_store_u32(out, (uint32_t)best);
    fgk_store_u32(out + 1, fgk_bits(top));
    fgk_store_u32(out + 2, key > FG_KEY_LOWEST && key < FG_KEY_HIGHEST ? fgk_bits(top + fgk_log(sum)) : fgk_bits(top));
}

/* ---- Candidates: the highest logits of a row in order of ids, and a token drawn by inversion. ---- */

/* Logits that one thread of a piece looks at: those of the first thread come first. */
enum { FG_TOP_EACH = FG_GPU_SAMPLE_PIECE / FG_GPU_GEMV_THREADS };

/* How many of a workgroup's threads before this one say how much, together; `counts` has room for all. */
FG_DEV int fgk_before(int mine, uint32_t *counts) {
    int before = 0, i;
    fgk_barrier();
    fgk_put_u32(counts + fgk_thread(), (uint32_t)mine);
    fgk_barrier();
    if (mine)
        for (i = 0; i < fgk_thread(); i++) before += (int)fgk_get_u32(counts + i);
    return before;
}

FG_DEV float fgk_weight(float x, float top, float temperature) {
    return fgk_key_of(x) > FG_KEY_LOWEST ? fgk_exp((x - top) / temperature) : 0.0f;
}

/* The sum of the weights of this thread's logits. */
FG_DEV float fgk_weights_of(const float *x, int first, int end, float top, float temperature) {
    float sum = 0.0f;
    int i;
    for (i = first; i < first + FG_TOP_EACH && i < end; i++) sum += fgk_weight(fgk_load(x + i), top, temperature);
    return sum;
}

FG_BODY void fgk_top(const fg_gpu_top_args *a) {
    FG_SHARED(float, parts, 8);
    FG_SHARED(uint32_t, counts, FG_GPU_GEMV_THREADS);
    int row = fgk_block_y(), piece = fgk_block_x(), first = piece * FG_GPU_SAMPLE_PIECE + fgk_thread() * FG_TOP_EACH, i, n = 0;
    int end = (piece + 1) * FG_GPU_SAMPLE_PIECE < a->n ? (piece + 1) * FG_GPU_SAMPLE_PIECE : a->n;
    const float *x = (const float *)a->src + (int64_t)row * a->src_stride, *want = (const float *)a->wants + 3 * (int64_t)row;
    uint32_t *out = (uint32_t *)a->tops + ((int64_t)row * a->pieces + piece) * FG_GPU_TOP_WORDS, keys[FG_TOP_EACH], floor_key = 0, bit;
    float temperature, sum = 0.0f;
    if (row >= fgk_count(a->count)) return;
    temperature = fgk_load(want + 1);
    if (temperature > 0.0f) {
        sum = fgk_weights_of(x, first, end, fgk_load((const float *)a->rows + 3 * (int64_t)row + 1), temperature);
        sum = fgk_block_sum(sum, parts);
    }
    if (fgk_thread() == 0) fgk_store_u32(out + 1, fgk_bits(sum));
    if (!fgk_load_u32(want)) return;
    FG_UNROLL for (i = 0; i < FG_TOP_EACH; i++) keys[i] = first + i < end ? fgk_key_of(fgk_load(x + first + i)) : 0u;
    for (bit = 0x80000000u; bit; bit >>= 1) { /* the highest key that more than FG_GPU_CANDIDATES reach */
        float reach = 0.0f;
        FG_UNROLL for (i = 0; i < FG_TOP_EACH; i++) reach += keys[i] >= (floor_key | bit) ? 1.0f : 0.0f;
        if (fgk_block_sum(reach, parts) > (float)FG_GPU_CANDIDATES) floor_key |= bit;
    }
    if (floor_key < FG_KEY_LOWEST) floor_key = FG_KEY_LOWEST;
    FG_UNROLL for (i = 0; i < FG_TOP_EACH; i++) n += keys[i] > floor_key;
    n = fgk_before(n, counts);
    FG_UNROLL for (i = 0; i < FG_TOP_EACH; i++)
        if (keys[i] > floor_key) {
            fgk_store_u32(out + 4 + 2 * n, (uint32_t)(first + i));
            fgk_store_u32(out + 5 + 2 * n, fgk_bits(fgk_of_key(keys[i])));
            n++;
        }
    for (n = 0, i = 0; i < FG_GPU_GEMV_THREADS; i++) n += (int)fgk_get_u32(counts + i);
    for (i = n + fgk_thread(); i < FG_GPU_CANDIDATES; i += FG_GPU_GEMV_THREADS) {
        fgk_store_u32(out + 4 + 2 * i, 0xFFFFFFFFu);
        fgk_store_u32(out + 5 + 2 * i, 0xFF800000u);
    }
    if (fgk_thread() == 0) fgk_store_u32(out, floor_key);
}

/* The key of entry s of all pieces of a row. */
FG_DEV uint32_t fgk_entry_key(const uint32_t *tops, int s) {
    return fgk_key_of(fgk_from_bits(fgk_load_u32(tops + (int64_t)(s / FG_GPU_CANDIDATES) * FG_GPU_TOP_WORDS + 5 + s % FG_GPU_CANDIDATES * 2)));
}

/* Of the pieces' candidates those of the row. */
FG_DEV void fgk_pick_candidates(const fg_gpu_top_args *a, const uint32_t *tops, uint32_t *out, float *parts, uint32_t *counts) {
    int total = a->pieces * FG_GPU_CANDIDATES, each = (total + FG_GPU_GEMV_THREADS - 1) / FG_GPU_GEMV_THREADS;
    int first = fgk_thread() * each, end = first + each < total ? first + each : total, i, n = 0;
    uint32_t floor_key = 0, bit;
    for (bit = a->pieces > 1 ? 0x80000000u : 0u; bit; bit >>= 1) {
        float reach = 0.0f;
        for (i = first; i < end; i++) reach += fgk_entry_key(tops, i) >= (floor_key | bit) ? 1.0f : 0.0f;
        if (fgk_block_sum(reach, parts) > (float)FG_GPU_CANDIDATES) floor_key |= bit;
    }
    for (i = 0; i < a->pieces; i++) { /* what pieces left out */
        uint32_t its = fgk_load_u32(tops + (int64_t)i * FG_GPU_TOP_WORDS);
        floor_key = its > floor_key ? its : floor_key;
    }
    for (i = first; i < end; i++) n += fgk_entry_key(tops, i) > floor_key;
    n = fgk_before(n, counts);
    for (i = first; i < end; i++)
        if (fgk_entry_key(tops, i) > floor_key) {
            const uint32_t *from = tops + (int64_t)(i / FG_GPU_CANDIDATES) * FG_GPU_TOP_WORDS + 4 + i % FG_GPU_CANDIDATES * 2;
            fgk_store_u32(out + 4 + 2 * n, fgk_load_u32(from));
            fgk_store_u32(out + 5 + 2 * n, fgk_load_u32(from + 1));
            n++;
        }
    if (fgk_thread() > 0) return;
    for (n = 0, i = 0; i < FG_GPU_GEMV_THREADS; i++) n += (int)fgk_get_u32(counts + i);
    fgk_store_u32(out, (uint32_t)n);
    fgk_store_u32(out + 1, fgk_bits(fgk_of_key(floor_key)));
}

/* The token where the running sum of weights passes u of all of it: first its piece, then its thread's part of that, then itself.
   Rounding may carry u past the end: then it is the last with a weight. */
FG_DEV void fgk_pick_drawn(const fg_gpu_top_args *a, const float *x, const uint32_t *tops, float top, float temperature, float u, uint32_t *out,
                           float *sums) {
    float all = 0.0f, left, one;
    int piece, found = 0, i, drawn = -1, end;
    for (piece = 0; piece < a->pieces; piece++) all += fgk_load((const float *)tops + (int64_t)piece * FG_GPU_TOP_WORDS + 1);
    left = u * all;
    for (piece = 0; piece < a->pieces; piece++) {
        one = fgk_load((const float *)tops + (int64_t)piece * FG_GPU_TOP_WORDS + 1);
        if (one > 0.0f) found = piece;
        if (left < one) break;
        left -= one;
    }
    if (piece == a->pieces) left = all;
    end = (found + 1) * FG_GPU_SAMPLE_PIECE < a->n ? (found + 1) * FG_GPU_SAMPLE_PIECE : a->n;
    fgk_put(sums + fgk_thread(), fgk_weights_of(x, found * FG_GPU_SAMPLE_PIECE + fgk_thread() * FG_TOP_EACH, end, top, temperature));
    fgk_barrier();
    if (fgk_thread() > 0) return;
    for (piece = 0, i = 0; i < FG_GPU_GEMV_THREADS; i++) {
        one = fgk_get(sums + i);
        if (one > 0.0f) piece = i;
        if (left < one) break;
        left -= one;
    }
    if (i == FG_GPU_GEMV_THREADS) left = all;
    found = found * FG_GPU_SAMPLE_PIECE + piece * FG_TOP_EACH;
    for (i = found; i < found + FG_TOP_EACH && i < end; i++) {
        one = fgk_weight(fgk_load(x + i), top, temperature);
        if (one > 0.0f) drawn = i;
        if (left < one) break;
        left -= one;
    }
    fgk_store_u32(out + 2, (uint32_t)drawn);
    fgk_store_u32(out + 3, drawn < 0 ? 0u : fgk_bits(fgk_load(x + drawn)));
}

FG_BODY void fgk_pick(const fg_gpu_top_args *a) {
    FG_SHARED(float, parts, 8);
    FG_SHARED(uint32_t, counts, FG_GPU_GEMV_THREADS);
    FG_SHARED(float, sums, FG_GPU_GEMV_THREADS);
    int row = fgk_block_y();
    const float *x = (const float *)a->src + (int64_t)row * a->src_stride, *want = (const float *)a->wants + 3 * (int64_t)row;
    const uint32_t *tops = (const uint32_t *)a->tops + (int64_t)row * a->pieces * FG_GPU_TOP_WORDS;
    uint32_t *out = (uint32_t *)a->out + (int64_t)row * FG_GPU_TOP_WORDS, key;
    float top;
    if (row >= fgk_count(a->count)) return;
    top = fgk_load((const float *)a->rows + 3 * (int64_t)row + 1);
    key = fgk_key_of(top);
    if (fgk_thread() == 0) {
        fgk_store_u32(out, 0u);
        fgk_store_u32(out + 1, 0x7F800000u);
        fgk_store_u32(out + 2, 0xFFFFFFFFu);
        fgk_store_u32(out + 3, 0u);
    }
    fgk_barrier();
    if (fgk_load_u32(want)) fgk_pick_candidates(a, tops, out, parts, counts);
    if (fgk_load(want + 1) > 0.0f && key > FG_KEY_LOWEST && key < FG_KEY_HIGHEST)
        fgk_pick_drawn(a, x, tops, top, fgk_load(want + 1), fgk_load(want + 2), out, sums);
}

/* ---- Mixtures of experts. ---- */

/* The best of those that come behind (last, last_id), in the order of fgk_best: in every lane. */
FG_DEV void fgk_next_best(const float *x, int n, uint32_t last, int last_id, uint32_t *key, int *id) {
    int i, mask;
    *key = 0, *id = 0x7FFFFFFF;
    FG_ROLLED for (i = fgk_lane(); i < n; i += 32) {
        uint32_t one = fgk_key_of(fgk_load(x + i));
        if (one < last || (one == last && i > last_id)) fgk_best(key, id, one, i);
    }
    FG_UNROLL for (mask = 16; mask > 0; mask /= 2) {
        uint32_t other = fgk_shuffle_xor_u32(*key, mask);
        int other_id = (int)fgk_shuffle_xor_u32((uint32_t)*id, mask);
        fgk_best(key, id, other, other_id);
    }
}

/* A group has a token. */
FG_BODY void fgk_route(const fg_gpu_route_args *a) {
    int row = fgk_block_x() * (FG_GPU_THREADS / 32) + fgk_group(), there = row < fgk_count(a->count), id = -1, i, j;
    const float *x = (const float *)a->src + (int64_t)(there ? row : 0) * a->src_stride;
    float *dst = (float *)a->dst + (int64_t)row * a->dst_stride, sum = 0.0f, chosen = 0.0f, most = 0.0f, e;
    uint32_t key = 0xFFFFFFFFu;
    FG_ROLLED for (j = 0; j < a->n_used; j++) {
        fgk_next_best(x, a->n_expert, key, id, &key, &id);
        if (j == 0) {
            most = fgk_load(x + id);
            FG_ROLLED for (i = fgk_lane(); i < a->n_expert; i += 32) sum += fgk_exp(fgk_load(x + i) - most);
            sum = fgk_group_sum(sum);
        }
        e = fgk_exp(fgk_load(x + id) - most);
        chosen += e;
        if (!there || fgk_lane() > 0) continue;
        fgk_store(dst + j, (float)id);
        fgk_store(dst + a->n_used + j, e);
    }
    if (!there || fgk_lane() > 0) return;
    FG_ROLLED for (j = 0; j < a->n_used; j++) fgk_store(dst + a->n_used + j, fgk_load(dst + a->n_used + j) / (a->norm ? chosen : sum) * a->scale);
}

/* The expert of a pair, whatever the slot holds. */
FG_DEV int fgk_expert(uint64_t routes, int stride, int token, int place, int n_expert) {
    float e = fgk_load((const float *)routes + (int64_t)token * stride + place);
    return e >= 0.0f && e < (float)n_expert ? (int)e : 0;
}

/* Puts pairs into the order of their experts, in which those of one expert have none; a thread has every 512th expert. counts: [FG_GPU_EXPERTS] */
FG_BODY void fgk_sort(const fg_gpu_sort_args *a, uint32_t *counts) {
    int me = fgk_thread(), pairs = fgk_count(a->count) * a->n_used, first[FG_GPU_EXPERTS / FG_GPU_ROW_THREADS], tile[FG_GPU_EXPERTS / FG_GPU_ROW_THREADS];
    int own[FG_GPU_EXPERTS / FG_GPU_ROW_THREADS], tiles = 0, e, i, j;
    fg_gpu_tile *out = (fg_gpu_tile *)a->tiles;
    FG_ROLLED for (e = me; e < a->n_expert; e += FG_GPU_ROW_THREADS) fgk_put_u32(counts + e, 0);
    fgk_barrier();
    FG_ROLLED for (i = me; i < pairs; i += FG_GPU_ROW_THREADS)
        (void)fgk_shared_add(counts + fgk_expert(a->routes, a->routes_stride, i / a->n_used, i % a->n_used, a->n_expert), 1u);
    fgk_barrier();
    FG_UNROLL for (j = 0; j < FG_GPU_EXPERTS / FG_GPU_ROW_THREADS; j++) first[j] = tile[j] = own[j] = 0;
    FG_ROLLED for (e = 0; e < a->n_expert; e++) {
        int n = (int)fgk_get_u32(counts + e), its = (n + a->rows - 1) / a->rows;
        FG_UNROLL for (j = 0; j < FG_GPU_EXPERTS / FG_GPU_ROW_THREADS; j++) {
            if (e < me + j * FG_GPU_ROW_THREADS) first[j] += n, tile[j] += its;
            if (e == me + j * FG_GPU_ROW_THREADS) own[j] = n;
        }
        tiles += its;
    }
    if (me == 0) fgk_store_u32(&out->expert, (uint32_t)tiles);
    fgk_barrier();
    FG_UNROLL for (j = 0; j < FG_GPU_EXPERTS / FG_GPU_ROW_THREADS; j++) {
        e = me + j * FG_GPU_ROW_THREADS;
        if (e < a->n_expert) fgk_put_u32(counts + e, (uint32_t)first[j]);
        FG_ROLLED for (i = 0; i < own[j]; i += a->rows) {
            fg_gpu_tile *to = out + 1 + tile[j]++;
            fgk_store_u32(&to->expert, (uint32_t)e);
            fgk_store_u32(&to->first, (uint32_t)(first[j] + i));
            fgk_store_u32(&to->n, (uint32_t)(own[j] - i < a->rows ? own[j] - i : a->rows));
        }
    }
    fgk_barrier();
    FG_ROLLED for (i = me; i < pairs; i += FG_GPU_ROW_THREADS) {
        uint32_t at = fgk_shared_add(counts + fgk_expert(a->routes, a->routes_stride, i / a->n_used, i % a->n_used, a->n_expert), 1u);
        fgk_store_u32((uint32_t *)a->pairs + at, (uint32_t)i);
    }
}

/* The product of expert `expert` alone, by the first weight or the second. */
FG_DEV fg_gpu_gemm_args fgk_gemm_of(const fg_gpu_experts_args *e, bool second, int expert) {
    fg_gpu_gemm_args a = e->gemm;
    if (second) a.weight = e->weight2, a.bias = e->bias2, a.dst = e->dst2;
    a.weight += (uint64_t)expert * (uint64_t)a.n * (uint64_t)a.layout.stride;
    if (a.bias) a.bias += (uint64_t)expert * (uint64_t)a.n * sizeof(float);
    return a;
}

/* Workgroups of the second weight follow those of the first. */
FG_BODY void fgk_experts_gemv(const fg_gpu_experts_args *e, float *x, int type) {
    int pair = fgk_block_y(), token = pair / e->n_used, place = pair % e->n_used, blocks = (e->gemm.n + FG_GPU_GEMV_ROWS - 1) / FG_GPU_GEMV_ROWS;
    bool second = fgk_block_x() >= blocks;
    fg_gpu_gemm_args a;
    if (token >= fgk_count(e->gemm.count)) return;
    a = fgk_gemm_of(e, second, fgk_expert(e->routes, e->routes_stride, token, place, e->n_expert));
    a.src += (uint64_t)((int64_t)token * a.src_stride + (e->of_pairs ? (int64_t)place * a.k : 0)) * sizeof(float);
    a.dst += (uint64_t)((int64_t)token * a.dst_stride + (int64_t)place * a.n) * sizeof(float);
    fgk_gemv_from(&a, x, type, 1, fgk_block_x() - (second ? blocks : 0), 0, 1);
}

/* Workgroups with the same pairs follow each other, then those of the same expert. tokens, places: [cols] */
FG_BODY void fgk_experts_gemm(const fg_gpu_experts_args *e, uint16_t *w, uint16_t *x, uint32_t *tokens, uint32_t *places, int type, int cols) {
    int blocks = (e->gemm.n + FG_GPU_GEMM_ROWS - 1) / FG_GPU_GEMM_ROWS, across = e->weight2 ? 2 * blocks : blocks, at = fgk_block_x() / across;
    int block = fgk_block_x() % across, me = fgk_thread(), n;
    const fg_gpu_tile *tile = (const fg_gpu_tile *)e->tiles + 1 + at;
    fgk_pairs pairs = {tokens, places, e->n_used, e->of_pairs};
    fg_gpu_gemm_args a;
    if (at >= fgk_count(e->tiles)) return;
    n = (int)fgk_load_u32(&tile->n);
    if (me < cols) {
        int pair = (int)fgk_load_u32((const uint32_t *)e->pairs + (int)fgk_load_u32(&tile->first) + (me < n ? me : n - 1));
        fgk_put_u32(tokens + me, (uint32_t)(pair / e->n_used));
        fgk_put_u32(places + me, (uint32_t)(pair % e->n_used));
    }
    fgk_barrier();
    a = fgk_gemm_of(e, block >= blocks, (int)fgk_load_u32(&tile->expert));
    fgk_gemm_tile(&a, &pairs, w, x, type, cols, (block < blocks ? block : block - blocks) * FG_GPU_GEMM_ROWS, 0, n, 0);
}

/* A thread has four elements. */
FG_BODY void fgk_mix(const fg_gpu_mix_args *a) {
    int row = fgk_block_y(), i = 4 * (fgk_block_x() * FG_GPU_THREADS + fgk_thread()), n = a->n - i, wide, j;
    const float *src = (const float *)a->src + (int64_t)row * a->n_used * a->n + i, *weights = (const float *)a->weights + (int64_t)row * a->weights_stride;
    float *dst = (float *)a->dst + (int64_t)row * a->dst_stride + i;
    fgk_f4 sum;
    if (n <= 0 || row >= fgk_count(a->count)) return;
    wide = fgk_is_wide(a->src | a->dst, a->n | a->dst_stride);
    sum = fgk_row_get(dst, n, wide);
    FG_ROLLED for (j = 0; j < a->n_used; j++, src += a->n) {
        fgk_f4 x = fgk_row_get(src, n, wide);
        float weight = fgk_load(weights + j);
        x.x *= weight, x.y *= weight, x.z *= weight, x.w *= weight;
        sum = fgk_add_f4(sum, x);
    }
    fgk_row_put(dst, sum, n, wide);
}

/* ---- Recurrent layers: the gated delta rule. ---- */

enum { FG_STATE_LANES = 8, FG_STATE_TAPS = 4 }; /* lanes that share a column of S; taps of which inputs stay in registers */

/* What a head of a sequence works on. */
typedef struct fgk_state {
    fg_gpu_state_seq seq;
    const float *kept; /* the inputs of before the pass; 0: zeros */
    int head, key_head;
} fgk_state;

/* What block `block` has of a head. */
FG_DEV float *fgk_state_at(const fg_gpu_state_args *a, int block, int head) {
    return (float *)(a->state + (uint64_t)block * a->block_stride) + (int64_t)head * fg_gpu_state_floats(a->head_dim, a->taps);
}

FG_DEV fgk_state fgk_state_of(const fg_gpu_state_args *a, int seq, int head) {
    fgk_u4 words = fgk_load_u4((const fg_gpu_state_seq *)a->seqs + seq);
    fgk_state s = {{(int)words.x, (int)words.y, (int)words.z, (int)words.w}, 0, head, 0};
    s.key_head = a->tiled ? head % a->n_kv_head : head / (a->n_head / a->n_kv_head);
    if (s.seq.source >= 0) s.kept = fgk_state_at(a, s.seq.source, head) + a->head_dim * a->head_dim;
    return s;
}

/* The block that the state goes to after the token at row `row`; -1: none. */
FG_DEV int fgk_state_target(const fg_gpu_state_args *a, const fgk_state *s, int seq, int row) {
    int position = s->seq.position + row - s->seq.row;
    if ((position & (a->block_tokens - 1)) != a->block_tokens - 1 && row + 1 != s->seq.end) return -1;
    return (int)fgk_load_u32((const int32_t *)a->table + (int64_t)seq * a->table_stride + (position >> fgk_log2(a->block_tokens)));
}

/* The column of src where q, k or v (part 0, 1, 2) of the head begins. */
FG_DEV int fgk_state_column(const fg_gpu_state_args *a, const fgk_state *s, int part) {
    return (part == 0 ? s->key_head : part == 1 ? a->n_kv_head + s->key_head : 2 * a->n_kv_head + s->head) * a->head_dim;
}

/* Element i of a part of the input at row `row`, which may be before those of the pass. */
FG_DEV float fgk_state_input(const fg_gpu_state_args *a, const fgk_state *s, int part, int i, int row) {
    int before = row - s->seq.row;
    if (before >= 0) return fgk_load((const float *)a->src + (int64_t)row * a->src_stride + fgk_state_column(a, s, part) + i);
    if (before < 1 - a->taps || !s->kept) return 0.0f;
    return fgk_load(s->kept + ((a->taps - 1 + before) * 3 + part) * a->head_dim + i);
}

/* Element i of a part of n tokens from `row` on, each `apart` after the one before: SiLU of the convolution, in one order of sums whatever n is. Four
   tokens' inputs are asked for at once. */
FG_DEV void fgk_state_convolve(const fg_gpu_state_args *a, const fgk_state *s, int part, int i, int row, int n, float *to, int apart) {
    const float *weight = (const float *)a->conv + (int64_t)(fgk_state_column(a, s, part) + i) * a->taps;
    float w[FG_STATE_TAPS], x[FG_STATE_TAPS + 3], sum;
    int more = FG_STATE_TAPS - a->taps, j, t, tap;
    if (more < 0) {
        FG_ROLLED for (j = 0; j < n; j++) {
            sum = 0.0f;
            FG_ROLLED for (tap = 0; tap < a->taps; tap++)
                sum = fgk_fma(fgk_load(weight + tap), fgk_state_input(a, s, part, i, row + j + tap + 1 - a->taps), sum);
            fgk_put(to + j * apart, fgk_act_of(1, sum));
        }
        return;
    }
    FG_UNROLL for (tap = 0; tap < FG_STATE_TAPS; tap++) w[tap] = tap < more ? 0.0f : fgk_load(weight + tap - more);
    FG_UNROLL for (tap = 0; tap < FG_STATE_TAPS - 1; tap++) x[tap] = fgk_state_input(a, s, part, i, row + tap + 1 - FG_STATE_TAPS);
    FG_ROLLED for (j = 0; j < n; j += 4) {
        FG_UNROLL for (t = 0; t < 4; t++) x[FG_STATE_TAPS - 1 + t] = j + t < n ? fgk_state_input(a, s, part, i, row + j + t) : 0.0f;
        FG_UNROLL for (t = 0; t < 4; t++) {
            sum = 0.0f;
            FG_UNROLL for (tap = 0; tap < FG_STATE_TAPS; tap++) sum = fgk_fma(w[tap], x[t + tap], sum);
            if (j + t < n) fgk_put(to + (j + t) * apart, fgk_act_of(1, sum));
        }
        FG_UNROLL for (tap = 0; tap < FG_STATE_TAPS - 1; tap++) x[tap] = x[tap + 4];
    }
}

/* log(1 + e^x) */
FG_DEV float fgk_softplus(float x) {
    float e;
    if (x > 20.0f) return x;
    e = fgk_exp(x);
    return e < 0.0625f ? e * (1.0f - e * (0.5f - e * (0.33333333f - e * (0.25f - e * 0.2f)))) : fgk_log(1.0f + e);
}

/* What q is multiplied by, and k, how much of S stays, and how much of v enters: of the token at `row`, by one group. */
FG_DEV void fgk_state_factors(const fg_gpu_state_args *a, const fgk_state *s, int row, const float *q, const float *k, int dim, float *to) {
    const float *gates = (const float *)a->src + (int64_t)row * a->src_stride + 2 * (a->n_kv_head + a->n_head) * a->head_dim + s->head;
    float qq = 0.0f, kk = 0.0f;
    int i;
    FG_UNROLL for (i = 0; i < dim; i += 32) {
        float x = fgk_get(q + i + fgk_lane()), y = fgk_get(k + i + fgk_lane());
        qq = fgk_fma(x, x, qq), kk = fgk_fma(y, y, kk);
    }
    qq = fgk_group_sum(qq), kk = fgk_group_sum(kk);
    if (fgk_lane() > 0) return;
    fgk_put(to, 1.0f / (fgk_sqrt(qq + 1e-6f) * fgk_sqrt((float)a->head_dim)));
    fgk_put(to + 1, 1.0f / fgk_sqrt(kk + 1e-6f));
    fgk_put(to + 2, fgk_exp(fgk_load((const float *)a->a + s->head) * fgk_softplus(fgk_load(gates + a->n_head))));
    fgk_put(to + 3, 1.0f / (1.0f + fgk_exp(-fgk_load(gates))));
}

/* Over the lanes of a column. */
FG_DEV float fgk_column_sum(fgk_f4 v) {
    float x = fgk_sum_f4(v);
    int mask;
    FG_UNROLL for (mask = FG_STATE_LANES / 2; mask > 0; mask /= 2) x += fgk_shuffle_xor(x, mask);
    return x;
}

FG_DEV fgk_f4 fgk_fma_f4(fgk_f4 a, fgk_f4 b, fgk_f4 c) {
    fgk_f4 v = {fgk_fma(a.x, b.x, c.x), fgk_fma(a.y, b.y, c.y), fgk_fma(a.z, b.z, c.z), fgk_fma(a.w, b.w, c.w)};
    return v;
}

/* One token: S = S decay + k (beta (v - k S decay)); returns q S. q, k: from the first row of this lane on; `held` times four rows, 32 apart. */
FG_DEV float fgk_state_step(fgk_f4 *S, const float *q, const float *k, float v, fgk_f4 factors, int held) {
    fgk_f4 sum = {0.0f, 0.0f, 0.0f, 0.0f}, out = sum, decay = {factors.z, factors.z, factors.z, factors.z}, by;
    int i;
    FG_UNROLL for (i = 0; i < held; i++) sum = fgk_fma_f4(S[i], fgk_get_f4(k + 32 * i), sum);
    by.x = by.y = by.z = by.w = factors.y * (factors.w * (v - factors.y * (factors.z * fgk_column_sum(sum))));
    FG_UNROLL for (i = 0; i < held; i++) {
        S[i] = fgk_fma_f4(fgk_get_f4(k + 32 * i), by, fgk_mul_f4(S[i], decay));
        out = fgk_fma_f4(S[i], fgk_get_f4(q + 32 * i), out);
    }
    return factors.x * fgk_column_sum(out);
}

/* A workgroup has FG_GPU_STATE_COLUMNS columns of S of a head and a sequence, in registers: eight lanes share a column. Pieces of `piece` tokens: their
   q, k and v by all threads, then token by token, where groups need not wait for each other. x: of each token q, k [dim], v, and four factors.
   Longer than others: its parts share S. */
FG_BODY void fgk_state_scan(const fg_gpu_state_args *a, float *x, int dim, int piece) {
    int chunks = (a->head_dim + FG_GPU_STATE_COLUMNS - 1) / FG_GPU_STATE_COLUMNS, seq = fgk_block_y(), column, row, at = 2 * dim, c, i, j;
    int column0 = fgk_block_x() % chunks * FG_GPU_STATE_COLUMNS, lane_row = fgk_lane() % FG_STATE_LANES * 4, n, apart = 2 * dim + FG_GPU_STATE_COLUMNS + 4;
    int wide = a->head_dim % 4 == 0, there;
    fgk_f4 S[FG_GPU_STATE_DIM / 32];
    fgk_state s;
    if (seq >= fgk_count(a->seq_count)) return;
    s = fgk_state_of(a, seq, fgk_block_x() / chunks);
    column = fgk_thread() / FG_STATE_LANES;
    there = column0 + column < a->head_dim;
    FG_UNROLL for (i = 0; i < dim / 32; i++)
        S[i] = fgk_row_get(fgk_state_at(a, s.seq.source < 0 ? 0 : s.seq.source, s.head) + (column0 + column) * a->head_dim + lane_row + 32 * i,
                           there && s.kept ? a->head_dim - lane_row - 32 * i : 0, wide);
    FG_ROLLED for (row = s.seq.row; row < s.seq.end; row += n) {
        n = s.seq.end - row < piece ? s.seq.end - row : piece;
        FG_ROLLED for (c = fgk_thread(); c < 2 * dim + FG_GPU_STATE_COLUMNS; c += FG_GPU_GEMV_THREADS) {
            int part = c / dim, element = c % dim + (part == 2 ? column0 : 0);
            if (element < a->head_dim) fgk_state_convolve(a, &s, part, element, row, n, x + c, apart);
            else
                FG_ROLLED for (j = 0; j < n; j++) fgk_put(x + j * apart + c, 0.0f);
        }
        fgk_barrier();
        FG_ROLLED for (j = fgk_group(); j < n; j += FG_GPU_GEMV_THREADS / 32)
            fgk_state_factors(a, &s, row + j, x + j * apart, x + j * apart + dim, dim, x + j * apart + at + FG_GPU_STATE_COLUMNS);
        fgk_barrier();
        FG_ROLLED for (j = 0; j < n; j++) {
            const float *its = x + j * apart;
            int block = fgk_state_target(a, &s, seq, row + j);
            fgk_f4 factors = fgk_get_f4(its + at + FG_GPU_STATE_COLUMNS);
            float o = fgk_state_step(S, its + lane_row, its + dim + lane_row, fgk_get(its + at + column), factors, dim / 32);
            if (there && lane_row == 0)
                fgk_store((float *)a->dst + (int64_t)(row + j) * a->dst_stride + s.head * a->head_dim + column0 + column, o);
            if (block < 0 || !there) continue;
            FG_UNROLL for (i = 0; i < dim / 32; i++)
                fgk_row_put(fgk_state_at(a, block, s.head) + (column0 + column) * a->head_dim + lane_row + 32 * i, S[i], a->head_dim - lane_row - 32 * i, wide);
        }
        fgk_barrier();
    }
}

/* A token's head: o / rms(o) * norm * silu(z). By one group. */
FG_DEV void fgk_state_norm(const fg_gpu_state_args *a, int row, int head) {
    const float *z = (const float *)a->src + (int64_t)row * a->src_stride + (2 * a->n_kv_head + a->n_head + head) * a->head_dim;
    float *o = (float *)a->dst + (int64_t)row * a->dst_stride + head * a->head_dim, sum = 0.0f, factor;
    int i;
    FG_ROLLED for (i = fgk_lane(); i < a->head_dim; i += 32) sum = fgk_fma(fgk_load(o + i), fgk_load(o + i), sum);
    factor = 1.0f / fgk_sqrt(fgk_group_sum(sum) / (float)a->head_dim + a->eps);
    FG_ROLLED for (i = fgk_lane(); i < a->head_dim; i += 32)
        fgk_store(o + i, fgk_load(o + i) * factor * fgk_load((const float *)a->norm + i) * fgk_act_of(1, fgk_load(z + i)));
}

/* The last inputs of a head to where its state goes. The first such block may be the one they come from: it is written last, and its oldest first. */
FG_DEV void fgk_state_keep(const fg_gpu_state_args *a, int seq, int head) {
    fgk_state s = fgk_state_of(a, seq, head);
    int row, e, tap;
    FG_ROLLED for (row = s.seq.end - 1; row >= s.seq.row; row--) {
        int block = fgk_state_target(a, &s, seq, row);
        float *to;
        if (block < 0) continue;
        to = fgk_state_at(a, block, head) + a->head_dim * a->head_dim;
        FG_ROLLED for (e = fgk_lane(); e < 3 * a->head_dim; e += 32)
            FG_ROLLED for (tap = 0; tap < a->taps - 1; tap++)
                fgk_store(to + tap * 3 * a->head_dim + e, fgk_state_input(a, &s, e / a->head_dim, e % a->head_dim, row + tap + 2 - a->taps));
    }
}

/* A group has a head of a token, or, behind all tokens, of a sequence. */
FG_BODY void fgk_state_out(const fg_gpu_state_args *a) {
    int i = fgk_block_x() * (FG_GPU_THREADS / 32) + fgk_group(), row = i / a->n_head, head = i % a->n_head;
    if (row < a->max_rows) {
        if (row < fgk_count(a->count)) fgk_state_norm(a, row, head);
    } else if (row - a->max_rows < fgk_count(a->seq_count)) fgk_state_keep(a, row - a->max_rows, head);
}

/* ---- roof: what products the device can do, see fg_gpu_roof_args. ---- */

FG_DEV void fgk_roof_out(const fg_gpu_roof_args *a, uint32_t total) {
    fgk_store_u32((uint32_t *)a->out + fgk_block_x() * FG_GPU_GEMV_THREADS + fgk_thread(), total);
}

/* Numbers k and k + 1 of a row, as halves. */
FG_DEV uint32_t fgk_roof_pair(int right, int row, int k) {
    return fgk_two_halves((float)fg_gpu_roof_number(right, row, k), (float)fg_gpu_roof_number(right, row, k + 1));
}

#if defined(FG_MATRICES)
enum { FG_ROOF_ROW = 24 }; /* halves of a row: 16 and padding against conflicts */

/* 16 rows by four times 16. x: rows of the left operand, then of the right one. */
FG_BODY void fgk_roof_mma(const fg_gpu_roof_args *a, uint16_t *x) {
    fgk_frag left, right[4];
    fgk_sums sums[4];
    uint32_t total = 0;
    int round, i, j;
    FG_ROLLED for (i = fgk_thread(); i < 80 * 8; i += FG_GPU_GEMV_THREADS) {
        int row = i / 8, k = i % 8 * 2;
        fgk_put_u32((uint32_t *)(void *)(x + row * FG_ROOF_ROW + k), fgk_roof_pair(row >= 16, row >= 16 ? row - 16 : row, k));
    }
    fgk_barrier();
    fgk_frag_load(&left, x, FG_ROOF_ROW);
    FG_UNROLL for (j = 0; j < 4; j++) {
        fgk_frag_load(&right[j], x + (16 + 16 * j) * FG_ROOF_ROW, FG_ROOF_ROW);
        FG_UNROLL for (i = 0; i < FG_SUMS; i++) sums[j].x[i] = 0.0f;
    }
    FG_ROLLED for (round = 0; round < a->rounds; round++)
        FG_UNROLL for (j = 0; j < 4; j++) fgk_mma(&sums[j], &left, &right[j]);
    FG_UNROLL for (j = 0; j < 4; j++)
        FG_UNROLL for (i = 0; i < FG_SUMS; i++) total += (uint32_t)(int32_t)sums[j].x[i];
    fgk_roof_out(a, total);
}
#endif

#if defined(FG_BYTE_DOTS)
/* Eight numbers of the left operand by one of the right in each thread, which are two words each: of four bytes, or two halves. They are constants, of
   which fgk_as_bytes hides from the compiler what they are. */
FG_DEV uint32_t fgk_roof_word(int right, int row, int word, int bytes) {
    uint32_t x = 0;
    int i;
    if (!bytes) return fgk_as_bytes(fgk_roof_pair(right, row, 2 * word));
    FG_UNROLL for (i = 0; i < 4; i++) x |= ((uint32_t)fg_gpu_roof_number(right, row, 4 * word + i) & 255u) << 8 * i;
    return fgk_as_bytes(x);
}

FG_BODY void fgk_roof_dots(const fg_gpu_roof_args *a, int bytes) {
    uint32_t left[8][2], right[2], total = 0;
    float sums[8];
    int counts[8], round, i, w;
    FG_UNROLL for (w = 0; w < 2; w++) {
        right[w] = fgk_roof_word(1, fgk_thread() % 32, w, bytes);
        FG_UNROLL for (i = 0; i < 8; i++) left[i][w] = fgk_roof_word(0, i, w, bytes);
    }
    FG_UNROLL for (i = 0; i < 8; i++) counts[i] = 0, sums[i] = 0.0f;
    FG_ROLLED for (round = 0; round < a->rounds; round++)
        FG_UNROLL for (w = 0; w < 2; w++)
            FG_UNROLL for (i = 0; i < 8; i++) {
                if (bytes) counts[i] = fgk_dot4(left[i][w], right[w], counts[i]);
                else sums[i] = fgk_dot_halves(left[i][w], right[w], sums[i]);
            }
    FG_UNROLL for (i = 0; i < 8; i++) total += (uint32_t)(bytes ? counts[i] : (int32_t)sums[i]);
    fgk_roof_out(a, total);
}
#endif

#if defined(FG_WARPGROUPS)
/* 64 rows by 256, of 64 numbers, eight times before the wait, by both warpgroups: 8192 cycles on a Hopper, beside which the wait and the barrier,
   which keeps the warps of a group at the same products, are a hundredth. x: operands as fg_gpu_wg_operand describes. */
FG_BODY void fgk_roof_warpgroups(const fg_gpu_roof_args *a, uint16_t *x) {
    uint32_t at = fgk_shared_address(x), total = 0;
    float sums[128];
    int round, i;
    FG_ROLLED for (i = fgk_thread(); i < 320 * 32; i += FG_GPU_GEMV_THREADS) {
        int row = i / 32, k = i % 32 * 2;
        fgk_put_u32((uint32_t *)(void *)(x + row * 64 + ((k / 8) ^ (row & 7)) * 8 + k % 8), fgk_roof_pair(row >= 64, row >= 64 ? row - 64 : row, k));
    }
    fgk_wg_publish();
    fgk_barrier();
    FG_UNROLL for (i = 0; i < 128; i++) sums[i] = 0.0f;
    FG_ROLLED for (round = 0; round < a->rounds; round++) {
        fgk_wg_hold(sums, 128);
        fgk_wg_fence();
        FG_UNROLL for (i = 0; i < 32; i++)
            fgk_wg_mma(256, sums, fg_gpu_wg_operand(at + i % 4 * 32), fg_gpu_wg_operand(at + 64 * 128 + i % 4 * 32));
        fgk_wg_commit();
        fgk_wg_wait(0);
        fgk_wg_hold(sums, 128);
        fgk_barrier();
    }
    FG_UNROLL for (i = 0; i < 128; i++) total += (uint32_t)(int32_t)sums[i];
    fgk_roof_out(a, total);
}
#endif

/* ---- The entry points. ---- */

#define FG_GEMV_KERNEL(T, cols, bounds)                                       \
    FG_KERNEL(gemv##cols##_##T, gemm, bounds(FG_GPU_GEMV_THREADS), FG_SHARED(float, x, cols *FG_GEMV_PAD); fgk_gemv(&args, x, FG_GPU_##T, cols))
#define FG_GEMM_KERNEL(T, cols)                                                                            \
    FG_KERNEL(gemm##cols##_##T, gemm, FG_GPU_THREADS, FG_SHARED(uint16_t, w, 2 * FG_GEMM_W);                \
              FG_SHARED(uint16_t, x, 2 * cols * FG_GEMM_PAD); fgk_gemm(&args, w, x, FG_GPU_##T, cols))
#define FG_ATTENTION_KERNEL(T, dim, piece)                                                                                      \
    FG_KERNEL(attention##dim##_##T, attention, FG_GPU_THREADS, FG_SHARED(float, q, FG_GPU_ATTN_ROWS *dim);                       \
              FG_SHARED(float, tile, FG_ATTN_TILE *(piece + 4)); FG_SHARED(float, parts, FG_GPU_ATTN_ROWS *FG_ATTN_TILE);        \
              fgk_attention(&args, q, tile, parts, FG_GPU_##T, dim, piece))

#define FG_WIDE_KERNEL(T, dim, rows)                                                                                                    \
    FG_KERNEL(wide##dim##_##T, attention, FG_GPU_THREADS, FG_SHARED(uint16_t, q, rows *(dim + 8));                                      \
              FG_SHARED(uint16_t, tile, dim *FG_WIDE_T); FG_SHARED(float, scores, rows *FG_WIDE_S);                                     \
              FG_SHARED(uint16_t, parts, rows *FG_WIDE_T); FG_SHARED(float, factors, rows);                                             \
              fgk_wide(&args, q, tile, scores, parts, factors, FG_GPU_##T, dim, rows))

/* Of NVIDIA alone: gemv and gemm do their work on others. */
#if defined(FG_STRAIGHT)
#define FG_SKINNY_KERNEL(T, cols, strips, bounds)                                                                        \
    FG_KERNEL_EARLY(skinny##cols##_##T, gemm, bounds(FG_GPU_GEMV_THREADS),                                               \
                    FG_SHARED(float, tile, 8 * (cols < 32 ? cols : 32) * (16 * strips + FG_SKINNY_PAD));                 \
                    fgk_skinny(&args, tile, FG_GPU_##T, cols, strips))
#define FG_SKINNY_KERNELS(T)                   \
    FG_SKINNY_KERNEL(T, 8, 1, FG_TWO_AT_ONCE)  \
    FG_SKINNY_KERNEL(T, 16, 1, FG_TWO_AT_ONCE) \
    FG_SKINNY_KERNEL(T, 32, 1, FG_TWO_AT_ONCE) \
    FG_SKINNY_KERNEL(T, 64, 2, FG_ANY_AT_ONCE)
#else
#define FG_SKINNY_KERNELS(T)
#endif

#if defined(FG_STRAIGHT)
#define FG_FEW_KERNEL(T, dim, bounds)                                                                                    \
    FG_KERNEL(few##dim##_##T, attention, bounds(FG_GPU_THREADS), FG_SHARED(uint32_t, q, dim * 8);                        \
              FG_SHARED(float, parts, FG_GPU_THREADS / 32 * FG_GPU_ATTN_ROWS *((dim < FG_FEW_PIECE ? dim : FG_FEW_PIECE) + 4)); \
              FG_SHARED(float, stats, FG_GPU_THREADS / 32 * FG_GPU_ATTN_ROWS * 2); fgk_few(&args, q, parts, stats, FG_GPU_##T, dim))
#else
#define FG_FEW_KERNEL(T, dim, bounds)
#endif

/* Of Hopper alone: other targets have no kernels of these names; other gemm kernels and wide do their work. */
#if defined(FG_WARPGROUPS)
#define FG_WIDE_WG_KERNEL(T, dim)                                                                              \
    FG_KERNEL(widewg##dim##_##T, attention, FG_GPU_GEMV_THREADS, FG_SHARED_MORE(uint16_t, fgk_more);           \
              fgk_wide_warpgroups(&args, fgk_more, FG_GPU_##T, dim))
#define FG_WARPGROUP_KERNEL(T)                                                                                               \
    FG_KERNEL(gemmwg_##T, gemm, FG_GPU_GEMV_THREADS, FG_SHARED_MORE(uint16_t, fgk_more);                                      \
              if (fg_gpu_wg_way(&args) == FG_GPU_WG_256) fgk_gemm_warpgroups(&args, fgk_more, FG_GPU_##T, 256);                \
              else fgk_gemm_warpgroups(&args, fgk_more, FG_GPU_##T, 128))
#else
#define FG_WIDE_WG_KERNEL(T, dim)
#define FG_WARPGROUP_KERNEL(T)
#endif

#if defined(FG_BYTE_DOTS)
#define FG_BYTE_KERNEL(T, cols)                                                                                     \
    FG_KERNEL(gemmi##cols##_##T, gemm, FG_GPU_THREADS, FG_SHARED(uint32_t, w, FG_BYTES_WORDS(cols));                 \
              fgk_gemm_bytes(&args, w, FG_GPU_##T, cols))
#define FG_BYTE_KERNELS(T) FG_BYTE_KERNEL(T, 16) FG_BYTE_KERNEL(T, 64)
#else
#define FG_BYTE_KERNELS(T)
#endif

#define FG_EXPERTS_KERNEL(T, cols)                                                                         \
    FG_KERNEL(experts##cols##_##T, experts, FG_GPU_THREADS, FG_SHARED(uint16_t, w, 2 * FG_GEMM_W);          \
              FG_SHARED(uint16_t, x, 2 * cols * FG_GEMM_PAD); FG_SHARED(uint32_t, tokens, cols);            \
              FG_SHARED(uint32_t, places, cols); fgk_experts_gemm(&args, w, x, tokens, places, FG_GPU_##T, cols))
#define FG_EXPERTS_KERNELS(T)                                                                               \
    FG_KERNEL(experts1_##T, experts, FG_ANY_AT_ONCE(FG_GPU_GEMV_THREADS), FG_SHARED(float, x, FG_GEMV_PAD); \
              fgk_experts_gemv(&args, x, FG_GPU_##T))                                                       \
    FG_EXPERTS_KERNEL(T, 16)                                                                                \
    FG_EXPERTS_KERNEL(T, 64)

#define FG_KERNELS_OF_WEIGHT(T)                                                   \
    FG_KERNEL(embed_##T, embed, FG_GPU_THREADS, fgk_embed(&args, FG_GPU_##T))      \
    FG_GEMV_KERNEL(T, 1, FG_ANY_AT_ONCE)                                                          \
    FG_GEMV_KERNEL(T, 2, FG_ANY_AT_ONCE)                                                          \
    FG_GEMV_KERNEL(T, 4, FG_TWO_AT_ONCE)                                                          \
    FG_GEMV_KERNEL(T, 8, FG_TWO_AT_ONCE)                                                          \
    FG_GEMM_KERNEL(T, 16)                                                         \
    FG_GEMM_KERNEL(T, 64)                                                         \
    FG_KERNEL(gemm128_##T, gemm, FG_GPU_GEMV_THREADS, FG_SHARED(uint16_t, w, 2 * FG_GPU_BIG_ROWS *FG_GEMM_PAD); \
              fgk_gemm_big(&args, w, FG_GPU_##T))                                                                        \
    FG_WARPGROUP_KERNEL(T)                                                                                              \
    FG_EXPERTS_KERNELS(T)

#define FG_KERNELS_OF_KV(T)                                                                             \
    FG_KERNEL(rope_kv_##T, rope_kv, FG_GPU_THREADS, FG_SHARED(float, x, 4 * FG_GPU_MAX_HEAD_DIM);       \
              fgk_rope_kv(&args, x, FG_GPU_##T))                                                         \
    FG_ATTENTION_KERNEL(T, 64, 64)                                                                      \
    FG_ATTENTION_KERNEL(T, 128, 128)                                                                    \
    FG_ATTENTION_KERNEL(T, 256, 128)                                                                    \
    FG_ATTENTION_KERNEL(T, 512, 64)
#define FG_WIDE_KERNELS_OF_KV(T)             \
    FG_WIDE_KERNEL(T, 64, FG_GPU_WIDE_ROWS)  \
    FG_WIDE_KERNEL(T, 128, FG_GPU_WIDE_ROWS) \
    FG_WIDE_KERNEL(T, 256, FG_GPU_WIDE256_ROWS)
#define FG_FEW_KERNELS_OF_KV(T, bounds) \
    FG_FEW_KERNEL(T, 64, FG_THREE_AT_ONCE) FG_FEW_KERNEL(T, 128, bounds) FG_FEW_KERNEL(T, 256, FG_ANY_AT_ONCE)
#define FG_WIDE_WG_KERNELS_OF_KV(T) FG_WIDE_WG_KERNEL(T, 64) FG_WIDE_WG_KERNEL(T, 128) FG_WIDE_WG_KERNEL(T, 256)

#define FG_EXPAND_KERNEL(T) FG_KERNEL(expand_##T, expand, FG_GPU_THREADS, fgk_expand(&args, FG_GPU_##T))

/* FG_ONLY_SOME: four types of weights and one of KV, for a quick look at a target. FG_ONLY_ONE: one of each, for a look at what is around. */
FG_KERNELS_OF_WEIGHT(BF16)
FG_SKINNY_KERNELS(BF16)
FG_KERNELS_OF_KV(F16)
FG_WIDE_KERNELS_OF_KV(F16)
FG_WIDE_WG_KERNELS_OF_KV(F16)
FG_FEW_KERNELS_OF_KV(F16, FG_THREE_AT_ONCE)
#ifndef FG_ONLY_ONE
FG_KERNELS_OF_WEIGHT(Q8_0)
FG_KERNELS_OF_WEIGHT(Q4_K)
FG_KERNELS_OF_WEIGHT(Q6_K)
FG_BYTE_KERNELS(Q8_0)
FG_BYTE_KERNELS(Q4_K)
FG_BYTE_KERNELS(Q6_K)
FG_SKINNY_KERNELS(Q8_0)
FG_SKINNY_KERNELS(Q4_K)
FG_SKINNY_KERNELS(Q6_K)
FG_EXPAND_KERNEL(Q8_0)
FG_EXPAND_KERNEL(Q4_K)
FG_EXPAND_KERNEL(Q6_K)
#endif
#if !defined(FG_ONLY_SOME) && !defined(FG_ONLY_ONE)
FG_KERNELS_OF_WEIGHT(F32)
FG_KERNELS_OF_WEIGHT(F16)
FG_KERNELS_OF_WEIGHT(Q4_0)
FG_KERNELS_OF_WEIGHT(Q4_1)
FG_KERNELS_OF_WEIGHT(Q5_0)
FG_KERNELS_OF_WEIGHT(Q5_1)
FG_KERNELS_OF_WEIGHT(Q2_K)
FG_KERNELS_OF_WEIGHT(Q3_K)
FG_KERNELS_OF_WEIGHT(Q5_K)
FG_KERNELS_OF_WEIGHT(IQ4_NL)
FG_KERNELS_OF_WEIGHT(IQ4_XS)
FG_KERNELS_OF_WEIGHT(MXFP4)
FG_BYTE_KERNELS(Q4_0)
FG_BYTE_KERNELS(Q4_1)
FG_BYTE_KERNELS(Q5_0)
FG_BYTE_KERNELS(Q5_1)
FG_BYTE_KERNELS(Q2_K)
FG_BYTE_KERNELS(Q3_K)
FG_BYTE_KERNELS(Q5_K)
FG_BYTE_KERNELS(IQ4_NL)
FG_BYTE_KERNELS(IQ4_XS)
FG_BYTE_KERNELS(MXFP4)
FG_SKINNY_KERNELS(F16)
FG_SKINNY_KERNELS(Q4_0)
FG_SKINNY_KERNELS(Q4_1)
FG_SKINNY_KERNELS(Q5_0)
FG_SKINNY_KERNELS(Q5_1)
FG_SKINNY_KERNELS(Q2_K)
FG_SKINNY_KERNELS(Q3_K)
FG_SKINNY_KERNELS(Q5_K)
FG_SKINNY_KERNELS(IQ4_NL)
FG_SKINNY_KERNELS(IQ4_XS)
FG_SKINNY_KERNELS(MXFP4)
FG_EXPAND_KERNEL(Q4_0)
FG_EXPAND_KERNEL(Q4_1)
FG_EXPAND_KERNEL(Q5_0)
FG_EXPAND_KERNEL(Q5_1)
FG_EXPAND_KERNEL(Q2_K)
FG_EXPAND_KERNEL(Q3_K)
FG_EXPAND_KERNEL(Q5_K)
FG_EXPAND_KERNEL(IQ4_NL)
FG_EXPAND_KERNEL(IQ4_XS)
FG_EXPAND_KERNEL(MXFP4)
FG_KERNELS_OF_KV(F32)
FG_KERNELS_OF_KV(BF16)
FG_WIDE_KERNELS_OF_KV(BF16)
FG_WIDE_WG_KERNELS_OF_KV(BF16)
FG_FEW_KERNELS_OF_KV(BF16, FG_TWO_AT_ONCE)
FG_KERNELS_OF_KV(Q8_0)
FG_WIDE_KERNELS_OF_KV(Q8_0)
FG_WIDE_WG_KERNELS_OF_KV(Q8_0)
FG_FEW_KERNELS_OF_KV(Q8_0, FG_THREE_AT_ONCE)
#endif
FG_KERNEL(combine, attention, FG_GPU_THREADS, FG_SHARED(float, parts, FG_GPU_THREADS / 32 * FG_GPU_MAX_HEAD_DIM);
          FG_SHARED(float, stats, FG_GPU_THREADS / 32 * 2); FG_SHARED(float, weights, FG_GPU_THREADS / 32 * 64);
          fgk_combine(&args, parts, stats, weights))
FG_KERNEL(norm, norm, FG_TWO_AT_ONCE(FG_GPU_ROW_THREADS), fgk_norm(&args))
FG_KERNEL(acts, acts, FG_TWO_AT_ONCE(FG_GPU_ROW_THREADS), fgk_acts(&args))
FG_KERNEL(finish, gemm, FG_GPU_THREADS, fgk_finish_product(&args))
FG_KERNEL(act_mul, act_mul, FG_GPU_THREADS, fgk_act_mul(&args))
FG_KERNEL(act_rows, act_mul, FG_TWO_AT_ONCE(FG_GPU_ROW_THREADS), fgk_act_rows(&args))
FG_KERNEL(gather, gather, FG_GPU_THREADS, fgk_gather(&args))
FG_KERNEL(feed, feed, FG_GPU_THREADS, fgk_feed(&args))
FG_KERNEL(sample, sample, FG_GPU_GEMV_THREADS, fgk_sample(&args))
FG_KERNEL(choose, sample, FG_GPU_GEMV_THREADS, fgk_choose(&args))
FG_KERNEL(top, top, FG_GPU_GEMV_THREADS, fgk_top(&args))
FG_KERNEL(pick, top, FG_GPU_GEMV_THREADS, fgk_pick(&args))
FG_KERNEL(copy, copy, FG_GPU_THREADS, fgk_copy(&args))
FG_KERNEL(route, route, FG_GPU_THREADS, fgk_route(&args))
FG_KERNEL(sort, sort, FG_GPU_ROW_THREADS, FG_SHARED(uint32_t, counts, FG_GPU_EXPERTS); fgk_sort(&args, counts))
FG_KERNEL(mix, mix, FG_GPU_THREADS, fgk_mix(&args))
#define FG_STATE_KERNEL(dim, piece)                                                                                                \
    FG_KERNEL(state##dim, state, FG_GPU_GEMV_THREADS, FG_SHARED(float, x, (piece) * (2 * dim + FG_GPU_STATE_COLUMNS + 4)); \
              fgk_state_scan(&args, x, dim, piece))
FG_STATE_KERNEL(128, 16)
FG_STATE_KERNEL(256, 8)
FG_KERNEL(state_out, state, FG_GPU_THREADS, fgk_state_out(&args))
#if defined(FG_MATRICES)
FG_KERNEL(roof_mma, roof, FG_GPU_GEMV_THREADS, FG_SHARED(uint16_t, x, 80 * FG_ROOF_ROW); fgk_roof_mma(&args, x))
#endif
#if defined(FG_WARPGROUPS)
FG_KERNEL(roof_wg, roof, FG_GPU_GEMV_THREADS, FG_SHARED_MORE(uint16_t, fgk_more); fgk_roof_warpgroups(&args, fgk_more))
#endif
#if defined(FG_BYTE_DOTS)
FG_KERNEL(roof_dot2, roof, FG_GPU_GEMV_THREADS, fgk_roof_dots(&args, 0))
FG_KERNEL(roof_dot4, roof, FG_GPU_GEMV_THREADS, fgk_roof_dots(&args, 1))
#endif

#if !defined(__CUDACC__) && !defined(__HIP__)
/* What the host execution calls, by fg_gpu_kernel. */
static void (*const fg_gpu_entries[])(const void *args) = {
#define FG_GPU_ENTRY(name, kind) fg_gpu_##name,
    FG_GPU_KERNELS(FG_GPU_ENTRY)
#undef FG_GPU_ENTRY
};
#endif

#endif /* FG_GPU_KERNELS_CUH */
