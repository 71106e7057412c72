/* Adds to the largest score and the sum of some positions (x and y; y 0: none) those of others. Returns what the results of either are
   then to be multiplied by. Every kernel that folds has the same bits. */
vec2 fold(inout vec2 all, vec2 one) {
    precise vec2 factors;
    precise float sum;
    float most = max(all.x, one.x);
    if (one.y == 0.0) return vec2(1.0, 0.0);
    if (all.y == 0.0) {
        all = one;
        return vec2(0.0, 1.0);
    }
    factors = exp(vec2(all.x - most, one.x - most));
    sum = all.y * factors.x + one.y * factors.y;
    all = vec2(most, sum);
    return factors;
}

/* A head's sink is one more logit of its softmax, which has no value. All positions have been folded. */
layout(set = 0, binding = 1) readonly buffer Sinks { float sinks[]; };
float with_sink(vec2 all, int head) {
    if ((has & HAS_WEIGHT) == 0) return all.y;
    return all.y + exp(min(sinks[head] - all.x, 80.0)); /* a larger one leaves nothing of the others either */
}

float folded(float all, float one, vec2 factors) {
    precise float both;
    if (factors.y == 0.0) return all;
    if (factors.x == 0.0) return one;
    both = all * factors.x + one * factors.y;
    return both;
}
