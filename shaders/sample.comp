#version 450
#extension GL_GOOGLE_include_directive : require
/* Argmax (the lowest id of equals, NaN left out), its value and log-sum-exp of each row. A workgroup per row. */
layout(local_size_x_id = 1) in;
layout(constant_id = 1) const int GROUP = 128; /* a power of two */
#include "common.glsl"
#include "reduce.glsl"
layout(set = 0, binding = 2) readonly buffer Src { float src[]; };
layout(set = 0, binding = 3) writeonly buffer Dst { uint dst[]; }; /* fg_row_result */
shared uint best_keys[GROUP];
shared int best_ids[GROUP];

#include "key.glsl"

void main() {
    const uint lowest = 0x007FFFFFu, highest = 0xFF800000u; /* of -infinity and infinity */
    int row = int(gl_WorkGroupID.y), me = int(gl_LocalInvocationIndex), from = row * src_stride + src_col, id = 0, i;
    uint best = lowest;
    float top, sum = 0.0;
    if (row >= row_count()) return;
    for (i = me; i < n; i += GROUP) {
        uint key = key_of(src[from + i]);
        if (key > best) {
            best = key;
            id = i;
        }
    }
    best_keys[me] = best;
    best_ids[me] = id;
    barrier();
    for (int apart = GROUP / 2; apart > 0; apart /= 2) {
        if (me < apart) {
            uint other = best_keys[me + apart];
            if (other > best_keys[me] || (other == best_keys[me] && best_ids[me + apart] < best_ids[me])) {
                best_keys[me] = other;
                best_ids[me] = best_ids[me + apart];
            }
        }
        barrier();
    }
    best = best_keys[0];
    top = value_of(best);
    if (best > lowest && best < highest)
        for (i = me; i < n; i += GROUP) {
            float x = src[from + i];
            if (key_of(x) > lowest) sum += exp(x - top);
        }
    sum = group_sum(sum);
    if (me > 0) return;
    dst[row * 3] = uint(best > lowest ? best_ids[0] : 0);
    dst[row * 3 + 1] = best == lowest ? 0xFF800000u : floatBitsToUint(top);
    dst[row * 3 + 2] = best == lowest ? 0xFF800000u : best == highest ? 0x7F800000u : floatBitsToUint(top + log(sum));
}
