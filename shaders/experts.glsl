/* Who takes whom: of each token the ids of its experts, as floats, then their weights (route.comp). A pair of a token and an expert of it has the
   number token * n_used + j. */
layout(set = 0, binding = 4) readonly buffer Src2 { float src2[]; };

/* Whatever is there names an expert. */
int expert_of(int pair) {
    float id = src2[pair / n_used * src2_stride + src2_col + pair % n_used];
    return id >= 0.0 && id < float(n_expert) ? clamp(int(id), 0, n_expert - 1) : 0;
}
