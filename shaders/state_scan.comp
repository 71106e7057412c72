#version 450
#extension GL_GOOGLE_include_directive : require
/* The gated delta rule, token by token: S = S decay, S += k (beta (v - k S)), dst = q S. A workgroup per sequence, value head and COLUMNS columns of S, which
   are independent of each other; PARTS invocations divide the rows of a column, which they keep in registers. As q S of the new S is q S decay +
   (q . k) beta (v - k S decay), a token has one sum over rows, and one barrier: what invocations still read of the token before is never what
   others already write. After what has a block's last token, or the pass's, S and the inputs of the convolution go to the pool. */
#define GROUP 128
layout(local_size_x = GROUP) in;
#include "common.glsl"
#include "state.glsl"
layout(constant_id = 0) const int DIM = 128;
const int COLUMNS = 32, PARTS = GROUP / COLUMNS; /* as FG__VK_STATE_COLUMNS */
const int HELD = (DIM + PARTS - 1) / PARTS, PITCH = HELD * PARTS;
layout(set = 0, binding = 3) writeonly buffer Dst { float dst[]; };
layout(set = 0, binding = 4) readonly buffer Mixed { float mixed[]; };
shared vec2 keys[3 * PITCH]; /* k and q of three tokens */
shared vec2 sums[2 * GROUP]; /* parts of k S and q S of two */
float s[HELD];

/* What comes next, on its way from memory: k and q of a token, then v, decay, beta and q . k of one. */
vec2 coming[(PITCH + GROUP - 1) / GROUP];
vec4 own;

void fetch_keys(int t, int g, int me) {
    int at = t * mixed_stride() + g * DIM;
    [[unroll]] for (int i = 0; i < (PITCH + GROUP - 1) / GROUP; i++)
        coming[i] = i * GROUP + me < DIM ? vec2(mixed[at + n_kv_head * DIM + i * GROUP + me], mixed[at + i * GROUP + me]) : vec2(0.0);
}

void put_keys(int place, int me) {
    [[unroll]] for (int i = 0; i < (PITCH + GROUP - 1) / GROUP; i++)
        if (i * GROUP + me < PITCH) keys[place * PITCH + i * GROUP + me] = coming[i];
}

vec4 fetch_own(int t, int h, int g, int j) {
    int at = t * mixed_stride(), gates = at + mixed_gates() + 2 * h;
    return vec4(j < DIM ? mixed[at + mixed_v() + h * DIM + j] : 0.0, mixed[gates], mixed[gates + 1], mixed[at + mixed_dots() + g]);
}

/* q S of token number n of the pass, and S after it. */
float scan(int n, int me) {
    int base = n % 3 * PITCH + me / COLUMNS, now = n % 2 * GROUP;
    vec2 sum = vec2(0.0);
    float step;
    [[unroll]] for (int r = 0; r < HELD; r++) sum += keys[base + r * PARTS] * s[r];
    sums[now + me] = sum;
    barrier();
    sum = vec2(0.0);
    [[unroll]] for (int p = 0; p < PARTS; p++) sum += sums[now + p * COLUMNS + me % COLUMNS];
    sum *= own.y;
    step = own.z * (own.x - sum.x);
    [[unroll]] for (int r = 0; r < HELD; r++) s[r] = s[r] * own.y + keys[base + r * PARTS].x * step;
    return sum.y + own.w * step;
}

/* S goes to the pool, or comes from there; `at` -1: nowhere, or it is 0. */
void keep(int at, int j, int part) {
    if (at < 0 || j >= DIM) return;
    [[unroll]] for (int r = 0; r < HELD; r++)
        if (r * PARTS + part < DIM) pool[at + (r * PARTS + part) * DIM + j] = s[r];
}

void take(int at, int j, int part) {
    [[unroll]] for (int r = 0; r < HELD; r++)
        s[r] = at >= 0 && j < DIM && r * PARTS + part < DIM ? pool[at + (r * PARTS + part) * DIM + j] : 0.0;
}

/* The inputs go where blocks end and where the pass does, the last ones first: the first of these blocks may be that which has the older inputs. A
   workgroup has some columns of the head's, and each of them from the oldest token on, which moves from behind. */
void keep_inputs(int seq, int first, int start, int end, int from, int h, int g, int me) {
    int split = int(gl_WorkGroupID.x) % int((DIM + COLUMNS - 1) / COLUMNS), splits = (DIM + COLUMNS - 1) / COLUMNS;
    for (int position = end - 1; position >= start; position = position / block_tokens * block_tokens - 1) {
        int to = state_at(seq, position, h);
        if (to < 0) continue;
        for (int i = split * GROUP + me; i < 3 * DIM; i += splits * GROUP) {
            int column = i < DIM ? g * DIM + i : i < 2 * DIM ? (n_kv_head - 1 + g) * DIM + i : (2 * n_kv_head - 2 + h) * DIM + i;
            for (int m = 0; m < k - 1; m++)
                pool[to + DIM * DIM + m * 3 * DIM + i] = input_at(first, start, position - (k - 2) + m, column, from, i);
        }
    }
}

void main() {
    int seq = int(gl_WorkGroupID.y), splits = (DIM + COLUMNS - 1) / COLUMNS, me = int(gl_LocalInvocationIndex), part = me / COLUMNS;
    int h = row0 + int(gl_WorkGroupID.x) / splits, j = int(gl_WorkGroupID.x) % splits * COLUMNS + me % COLUMNS, g = key_head(h);
    int first, count, start, from;
    if (seq >= row_count()) return;
    first = batch[slots_at + seq];
    count = batch[slots_at + seq + 1] - first;
    start = batch[positions_at + first];
    from = start > 0 ? state_at(seq, start - 1, h) : -1;
    fetch_keys(first, g, me);
    own = fetch_own(first, h, g, j);
    take(from, j, part);
    put_keys(0, me);
    fetch_keys(first + min(1, count - 1), g, me);
    barrier();
    for (int n = 0; n < count; n++) {
        vec4 next = fetch_own(first + min(n + 1, count - 1), h, g, j);
        float x;
        put_keys((n + 1) % 3, me);
        fetch_keys(first + min(n + 2, count - 1), g, me);
        x = scan(n, me);
        if (j < DIM && part == 0) dst[(first + n) * dst_stride + dst_col + h * DIM + j] = x;
        if ((start + n + 1) % block_tokens == 0 || n + 1 == count) keep(state_at(seq, start + n, h), j, part);
        own = next;
    }
    keep_inputs(seq, first, start, start + count, from, h, g, me);
}
