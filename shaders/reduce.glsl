/* Sums and maxima over a workgroup of GROUP invocations, in an order that is always the same, through shared memory. */
shared float reduce_parts[GROUP];

float group_sum(float x) {
    uint i = gl_LocalInvocationIndex, apart;
    barrier();
    reduce_parts[i] = x;
    barrier();
    for (apart = GROUP / 2; apart > 0; apart /= 2) {
        if (i < apart) reduce_parts[i] += reduce_parts[i + apart];
        barrier();
    }
    return reduce_parts[0];
}

float group_max(float x) {
    uint i = gl_LocalInvocationIndex, apart;
    barrier();
    reduce_parts[i] = x;
    barrier();
    for (apart = GROUP / 2; apart > 0; apart /= 2) {
        if (i < apart) reduce_parts[i] = max(reduce_parts[i], reduce_parts[i + apart]);
        barrier();
    }
    return reduce_parts[0];
}
