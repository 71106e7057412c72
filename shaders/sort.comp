#version 450
#extension GL_GOOGLE_include_directive : require
/* Sorts the pairs of tokens and experts by these, into tiles of at most k pairs of one expert. What it leaves: the number of tiles; of each tile
   the expert, the word where its pairs begin, how many they are; from word n on pairs. One workgroup. */
layout(local_size_x_id = 1) in;
layout(constant_id = 1) const int GROUP = 128;
#include "common.glsl"
#include "experts.glsl"
const int MOST = 1024; /* as FG__GPU_EXPERTS */
layout(set = 0, binding = 3) writeonly buffer Sorted { int sorted[]; };
shared int places[MOST];   /* of an expert: its pairs; then the word where the next of them goes */
shared ivec2 totals[GROUP]; /* of an invocation's experts: pairs, tiles */

/* The tiles of this invocation's experts, behind those of others. */
void make_tiles(int first, int end, ivec2 before) {
    for (int e = first; e < end; e++) {
        int count = places[e];
        places[e] = n + before.x;
        for (int i = 0; i < count; i += k, before.y++) {
            sorted[1 + 3 * before.y] = e;
            sorted[2 + 3 * before.y] = n + before.x + i;
            sorted[3 + 3 * before.y] = min(k, count - i);
        }
        before.x += count;
    }
}

void main() {
    int me = int(gl_LocalInvocationIndex), pairs = row_count() * n_used, each = (n_expert + GROUP - 1) / GROUP;
    int first = min(me * each, n_expert), end = min(first + each, n_expert);
    ivec2 own = ivec2(0), before = ivec2(0);
    for (int e = first; e < end; e++) places[e] = 0;
    barrier();
    for (int pair = me; pair < pairs; pair += GROUP) atomicAdd(places[expert_of(pair)], 1);
    barrier();
    for (int e = first; e < end; e++) own += ivec2(places[e], (places[e] + k - 1) / k);
    totals[me] = own;
    barrier();
    for (int i = 0; i < min(me, n_expert); i++) before += totals[i];
    if (me == GROUP - 1) sorted[0] = before.y + own.y;
    make_tiles(first, end, before);
    barrier();
    for (int pair = me; pair < pairs; pair += GROUP) sorted[atomicAdd(places[expert_of(pair)], 1)] = pair;
}
