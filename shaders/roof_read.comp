#version 450
/* Reading memory, which fg_measure_roofs times: a workgroup reads 32 KiB, each invocation 16 bytes beside its neighbours' sixteen times. With FILLS
   it writes them before, or there might be nothing behind the addresses. */
layout(local_size_x = 128) in;
layout(constant_id = 0) const int FILLS = 0;
layout(set = 0, binding = 1) buffer Memory { uvec4 memory[]; };

void main() {
    uint first = gl_WorkGroupID.x * 2048u + gl_LocalInvocationIndex;
    uvec4 all = uvec4(0u);
    for (uint i = 0u; i < 16u; i++) {
        uint at = first + i * 128u;
        if (FILLS != 0) memory[at] = at * uvec4(0x9E3779B1u, 0x85EBCA77u, 0xC2B2AE3Du, 0x27D4EB2Fu);
        else all ^= memory[at];
    }
    if (all == uvec4(0xFFFFFFFFu)) memory[first] = all; /* never, which no compiler knows: without it nothing need be read */
}
