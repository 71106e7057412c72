#version 450
#extension GL_GOOGLE_include_directive : require
/* Tokens that the pass before made, in the places that the batch block has for them: of token t those of row batch[src_col + t]; -1:
   it is known. */
layout(local_size_x = 64) in;
#include "common.glsl"
layout(set = 0, binding = 3) buffer Dst { int dst[]; };            /* the batch block, too */
layout(set = 0, binding = 4) readonly buffer Rows { int rows_of[]; }; /* fg_row_result */

void main() {
    int t = int(gl_GlobalInvocationID.x), row;
    if (t >= row_count()) return;
    row = batch[src_col + t];
    if (row >= 0) dst[dst_col + t] = rows_of[row * 3];
}
