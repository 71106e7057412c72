/* What roof_fma, roof_dot and roof_matrix share, whose products fg_measure_roofs times: `k` rounds of them, of numbers that stay where they are. The
   sums of all invocations of a workgroup, modulo 2^32, tell how many there were (fg__vk_roof_sum). */
layout(set = 0, binding = 1) writeonly buffer Sums { uint sums[]; };

/* Number k of a row of the left operand or the right one: a whole one from -3 to 3. Signs change from one to the next, because a device spends less
   power on equal ones, and can be faster then. As fg__vk_roof_number. */
int number(uint right, uint row, uint k) {
    uint x = (row * 64u + k + 1u) * (right != 0u ? 0x9E3779B1u : 0x85EBCA77u);
    x = (x ^ x >> 15) * 0x2C1B3C6Du;
    return int((x ^ x >> 12) % 7u) - 3;
}

void put_sum(uint sum) { sums[gl_WorkGroupID.x * 128u + gl_LocalInvocationIndex] = sum; }
