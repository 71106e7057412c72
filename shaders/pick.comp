#version 450
#extension GL_GOOGLE_include_directive : require
/* Of what top.comp found in the pieces of a row: its candidates, and a token drawn by inversion (fg_row_candidates). A workgroup
   per row. */
#define GROUP 128
layout(local_size_x = GROUP) in;
#include "common.glsl"
#include "reduce.glsl"
#include "top.glsl"
layout(set = 0, binding = 2) readonly buffer Src { float src[]; };
layout(set = 0, binding = 3) writeonly buffer Dst { uint dst[]; };
layout(set = 0, binding = 4) readonly buffer Rows { uint rows_of[]; }; /* fg_row_result */
layout(set = 0, binding = 5) readonly buffer Tops { uint tops[]; };
shared uint counts[GROUP];

uint entry_key(int at, int s) { return key_of(uintBitsToFloat(tops[at + s / MOST * WORDS + 5 + s % MOST * 2])); }

void pick_candidates(int at, int to) {
    int me = int(gl_LocalInvocationIndex), total = k * MOST, each = (total + GROUP - 1) / GROUP;
    int first = me * each, end = min(first + each, total), count = 0, before = 0, all = 0, i;
    uint floor_key = 0u, bit;
    for (bit = k > 1 ? 0x80000000u : 0u; bit != 0u; bit >>= 1) {
        float reach = 0.0;
        for (i = first; i < end; i++) reach += entry_key(at, i) >= (floor_key | bit) ? 1.0 : 0.0;
        if (group_sum(reach) > float(MOST)) floor_key |= bit;
    }
    for (i = 0; i < k; i++) floor_key = max(floor_key, tops[at + i * WORDS]); /* what pieces left out */
    for (i = first; i < end; i++) count += entry_key(at, i) > floor_key ? 1 : 0;
    counts[me] = uint(count);
    barrier();
    for (i = 0; i < GROUP; i++) {
        if (i < me) before += int(counts[i]);
        all += int(counts[i]);
    }
    for (i = first; i < end; i++)
        if (entry_key(at, i) > floor_key) {
            dst[to + 4 + 2 * before] = tops[at + i / MOST * WORDS + 4 + i % MOST * 2];
            dst[to + 5 + 2 * before] = tops[at + i / MOST * WORDS + 5 + i % MOST * 2];
            before++;
        }
    if (me > 0) return;
    dst[to] = uint(all);
    dst[to + 1] = floatBitsToUint(value_of(floor_key));
}

/* The token where the running sum of weights passes u of all of it: first its piece, then its invocation's part of that, then
   itself. Rounding may carry u past the end: then it is the last with a weight. */
void pick_drawn(int at, int to, int from, float top, float temperature, float u) {
    int me = int(gl_LocalInvocationIndex), found = 0, piece, drawn = -1, end, i;
    float all = 0.0, left, one = 0.0;
    for (piece = 0; piece < k; piece++) all += uintBitsToFloat(tops[at + piece * WORDS + 1]);
    left = u * all;
    for (piece = 0; piece < k; piece++) {
        one = uintBitsToFloat(tops[at + piece * WORDS + 1]);
        if (one > 0.0) found = piece;
        if (left < one) break;
        left -= one;
    }
    if (piece == k) left = all;
    end = min((found + 1) * PIECE, n);
    one = 0.0;
    for (i = found * PIECE + me * EACH; i < min(end, found * PIECE + (me + 1) * EACH); i++) one += weight_of(src[from + i], top, temperature);
    barrier();
    reduce_parts[me] = one;
    barrier();
    if (me > 0) return;
    for (piece = 0, i = 0; i < GROUP; i++) {
        one = reduce_parts[i];
        if (one > 0.0) piece = i;
        if (left < one) break;
        left -= one;
    }
    if (i == GROUP) left = all;
    found = found * PIECE + piece * EACH;
    for (i = found; i < min(end, found + EACH); i++) {
        one = weight_of(src[from + i], top, temperature);
        if (one > 0.0) drawn = i;
        if (left < one) break;
        left -= one;
    }
    dst[to + 2] = uint(drawn);
    dst[to + 3] = drawn < 0 ? 0u : floatBitsToUint(src[from + drawn]);
}

void main() {
    int row = int(gl_WorkGroupID.y), from = row * src_stride + src_col, want = draws_at() + 3 * row;
    uint key;
    float temperature;
    if (row >= row_count()) return;
    key = key_of(uintBitsToFloat(rows_of[row * 3 + 1]));
    temperature = intBitsToFloat(batch[want + 1]);
    bool draws = temperature > 0.0 && key > LOWEST && key < HIGHEST;
    if (gl_LocalInvocationIndex == 0) {
        if (batch[want] == 0) {
            dst[row * WORDS] = 0u;
            dst[row * WORDS + 1] = 0x7F800000u;
        }
        if (!draws) {
            dst[row * WORDS + 2] = 0xFFFFFFFFu;
            dst[row * WORDS + 3] = 0u;
        }
    }
    if (batch[want] != 0) pick_candidates(row * k * WORDS, row * WORDS);
    if (draws) pick_drawn(row * k * WORDS, row * WORDS, from, value_of(key), temperature, intBitsToFloat(batch[want + 2]));
}
