#version 450
#extension GL_GOOGLE_include_directive : require
/* q and k of src: norm of each head, rotation; q in place, k and v into their slots of the KV cache. A workgroup per token and
   head: first those of q, then those of k, then those of v. Of a KV pool in pieces each pass writes the tokens of one, the
   first one q. */
#define GROUP 64
layout(local_size_x = GROUP) in;
#include "common.glsl"
#include "reduce.glsl"
#include "kv.glsl"
layout(set = 0, binding = 1) readonly buffer NormQ { float norm_q[]; };
layout(set = 0, binding = 2) buffer Src { float src[]; };
layout(set = 0, binding = 4) readonly buffer NormK { float norm_k[]; };
layout(set = 0, binding = 5) readonly buffer Table { float table[]; };
layout(set = 0, binding = 6) writeonly buffer K { uint k_cache[]; };
layout(set = 0, binding = 7) writeonly buffer V { uint v_cache[]; };
shared float x[HEAD_DIM];
shared uint scales[(HEAD_DIM + 31) / 32];

/* Cosine and sine of any angle that positions reach. A device's own may be off by 2^-11, and by more out of [-pi, pi]. */
vec2 cos_sin(float angle) {
    float turns = roundEven(angle * 0.63661977), r, r2, c, s;
    int quarter = int(turns) & 3;
    r = fma(turns, -1.5703125, angle); /* pi/2 in three parts (Cody and Waite), of so few bits that a device whose fma rounds twice errs no more */
    r = fma(turns, -4.837512969970703e-4, r);
    r = fma(turns, -7.549789948768648e-8, r);
    r2 = r * r;
    s = r + r * r2 * (-0.16666667 + r2 * (0.0083333310 + r2 * (-0.00019840874 + r2 * 2.7525562e-6)));
    c = 1.0 + r2 * (-0.5 + r2 * (0.041666646 + r2 * (-0.0013887316 + r2 * 2.4433157e-5)));
    if (quarter == 0) return vec2(c, s);
    if (quarter == 1) return vec2(-s, c);
    return quarter == 2 ? vec2(-c, -s) : vec2(s, -c);
}

void rotate(int position, int me) {
    int pairs = n_rot / 2;
    for (int i = me; i < pairs; i += GROUP) {
        vec2 turn = cos_sin(float(position) * table[i]) * scale;
        int a = neox != 0 ? i : 2 * i, b = neox != 0 ? i + pairs : 2 * i + 1;
        float xa = x[a], xb = x[b];
        x[a] = xa * turn.x - xb * turn.y;
        x[b] = xa * turn.y + xb * turn.x;
    }
    barrier();
}

void normalise(int me, bool of_k) {
    float sum = 0.0, factor;
    for (int i = me; i < HEAD_DIM; i += GROUP) sum += x[i] * x[i];
    factor = 1.0 / sqrt(group_sum(sum) / float(HEAD_DIM) + eps);
    for (int i = me; i < HEAD_DIM; i += GROUP) x[i] *= factor * (of_k ? norm_k[i] : norm_q[i]);
    barrier();
}

/* What the cache gets, as fg__kv_bound: always numbers. By their bits, as compilers need not heed what is none. */
void bound(int me) {
    uint most = TYPE == F16 ? 0x477FE000u : TYPE == BF16 ? 0x7F7F0000u : 0x7F7FFFFFu;
    for (int i = me; i < HEAD_DIM; i += GROUP) {
        uint bits = floatBitsToUint(x[i]), m = bits & 0x7FFFFFFFu;
        x[i] = m > 0x7F800000u ? 0.0 : uintBitsToFloat(bits & 0x80000000u | min(m, most));
    }
    barrier();
}

uint packed_word(int word) {
    uint bits = 0u;
    int d = word * PER_WORD;
    if (TYPE == F32) return floatBitsToUint(x[d]);
    for (int i = 0; i < PER_WORD; i++) {
        float value = d + i < HEAD_DIM ? x[d + i] : 0.0;
        if (TYPE == Q8_0) {
            float s = half_of(scales[(d + i) / 32]);
            int q = s > 0.0 ? int(roundEven(clamp(value / s, -127.0, 127.0))) : 0;
            bits |= uint(q & 255) << (8 * i);
        } else bits |= (TYPE == F16 ? to_half(value) : to_bfloat(value)) << (16 * i);
    }
    return bits;
}

void find_scales(int me) {
    for (int b = me; b < (HEAD_DIM + 31) / 32; b += GROUP) {
        float largest = 0.0;
        for (int i = 32 * b; i < min(32 * b + 32, HEAD_DIM); i++) largest = max(largest, abs(x[i]));
        scales[b] = to_half(min(largest / 127.0, 65504.0));
    }
    barrier();
}

void main() {
    int t = int(gl_WorkGroupID.y), head = int(gl_WorkGroupID.x), me = int(gl_LocalInvocationIndex), from, slot, row;
    bool is_q = head < n_head, is_k = !is_q && head < n_head + n_kv_head;
    if (t >= row_count()) return;
    slot = batch[slots_at + t];
    if (is_q ? (has & HAS_EARLIER) != 0 : slot / block_tokens < row0 || slot / block_tokens >= row0 + rows) return;
    if (!is_q) head -= is_k ? n_head : n_head + n_kv_head;
    /* q, k and v may be matrices of their own, all seen from the start of src */
    from = is_q ? t * src_stride + src_col : is_k ? t * src2_stride + src2_col : t * dst_stride + dst_col;
    from += head * HEAD_DIM;
    for (int i = me; i < HEAD_DIM; i += GROUP) x[i] = src[from + i];
    barrier();
    if ((is_q && (has & HAS_WEIGHT) != 0) || (is_k && (has & HAS_WEIGHT2) != 0)) normalise(me, is_k);
    if (is_q || is_k) rotate(batch[positions_at + t], me);
    if (is_q) {
        for (int i = me; i < HEAD_DIM; i += GROUP) src[from + i] = x[i];
        return;
    }
    bound(me);
    row = kv_row(slot / block_tokens - row0, slot % block_tokens, head);
    if (TYPE == Q8_0) {
        find_scales(me);
        for (int i = me; i < ((HEAD_DIM + 31) / 32 + 1) / 2; i += GROUP) {
            uint pair = scales[2 * i];
            if (2 * i + 1 < (HEAD_DIM + 31) / 32) pair |= scales[2 * i + 1] << 16;
            if (is_k) k_cache[row + WORDS + i] = pair;
            else v_cache[row + WORDS + i] = pair;
        }
    }
    for (int word = me; word < WORDS; word += GROUP) {
        if (is_k) k_cache[row + word] = packed_word(word);
        else v_cache[row + word] = packed_word(word);
    }
}
