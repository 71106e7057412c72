#version 450
#extension GL_GOOGLE_include_directive : require
/* Folds the parts of queries that were cut into items; see attention.glsl. An invocation per value of a query's heads. slots_at: the
   numbers of items and merges; rows_at: of each merge the token, the first of its items and how many there are. */
layout(local_size_x = 64) in;
#include "common.glsl"
#include "fold.glsl"
layout(set = 0, binding = 2) readonly buffer Parts { float parts[]; }; /* [item][head][dimension] */
layout(set = 0, binding = 3) writeonly buffer Dst { float dst[]; };
layout(set = 0, binding = 4) readonly buffer State { vec2 state[]; }; /* [item][head] */

void main() {
    int i = int(gl_GlobalInvocationID.x), place = int(gl_WorkGroupID.y), width = n_head * head_dim, at = rows_at + 3 * place, item, end;
    vec2 all = vec2(-1e38, 0.0);
    float value = 0.0;
    if (place >= batch[slots_at + 1] || i >= width) return;
    item = batch[at + 1];
    end = item + batch[at + 2];
    for (; item < end; item += 4) { /* four are on their way at once */
        vec2 states[4];
        float values[4];
        [[unroll]] for (int u = 0; u < 4; u++) {
            int one = min(item + u, end - 1);
            states[u] = state[one * n_head + i / head_dim];
            values[u] = parts[one * width + i];
        }
        [[unroll]] for (int u = 0; u < 4; u++)
            if (item + u < end) {
                vec2 factors = fold(all, states[u]);
                value = folded(value, values[u], factors);
            }
    }
    dst[batch[at] * dst_stride + dst_col + i] = value / with_sink(all, i / head_dim);
}
