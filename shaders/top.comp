#version 450
#extension GL_GOOGLE_include_directive : require
/* Of a piece of a row: its MOST highest logits in order of ids, the key of the highest left out, the sum of its weights at the
   temperature that is asked for. A workgroup per piece. */
#define GROUP 128
layout(local_size_x = GROUP) in;
#include "common.glsl"
#include "reduce.glsl"
#include "top.glsl"
layout(set = 0, binding = 2) readonly buffer Src { float src[]; };
layout(set = 0, binding = 3) writeonly buffer Dst { uint dst[]; };
layout(set = 0, binding = 4) readonly buffer Rows { uint rows_of[]; }; /* fg_row_result */
shared uint counts[GROUP];

void main() {
    int row = int(gl_WorkGroupID.y), piece = int(gl_WorkGroupID.x), me = int(gl_LocalInvocationIndex), from = row * src_stride + src_col;
    int first = piece * PIECE + me * EACH, end = min(min((piece + 1) * PIECE, n), first + EACH), count = 0, before = 0, all = 0, i;
    int to = (row * k + piece) * WORDS;
    uint floor_key = 0u, bit;
    float temperature, sum = 0.0;
    if (row >= row_count()) return;
    temperature = intBitsToFloat(batch[draws_at() + 3 * row + 1]);
    if (temperature > 0.0) {
        float top = uintBitsToFloat(rows_of[row * 3 + 1]);
        for (i = first; i < end; i++) sum += weight_of(src[from + i], top, temperature);
        sum = group_sum(sum);
    }
    if (me == 0) dst[to + 1] = floatBitsToUint(sum);
    if (batch[draws_at() + 3 * row] == 0) return;
    for (bit = 0x80000000u; bit != 0u; bit >>= 1) { /* the highest key that more than MOST reach */
        float reach = 0.0;
        for (i = first; i < end; i++) reach += key_of(src[from + i]) >= (floor_key | bit) ? 1.0 : 0.0;
        if (group_sum(reach) > float(MOST)) floor_key |= bit;
    }
    floor_key = max(floor_key, LOWEST);
    for (i = first; i < end; i++) count += key_of(src[from + i]) > floor_key ? 1 : 0;
    counts[me] = uint(count);
    barrier();
    for (i = 0; i < GROUP; i++) {
        if (i < me) before += int(counts[i]);
        all += int(counts[i]);
    }
    for (i = first; i < end; i++)
        if (key_of(src[from + i]) > floor_key) {
            dst[to + 4 + 2 * before] = uint(i);
            dst[to + 5 + 2 * before] = floatBitsToUint(src[from + i]);
            before++;
        }
    for (i = all + me; i < MOST; i += GROUP) {
        dst[to + 4 + 2 * i] = 0xFFFFFFFFu;
        dst[to + 5 + 2 * i] = 0xFF800000u;
    }
    if (me == 0) dst[to] = floor_key;
}
