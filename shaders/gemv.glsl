/* What products of few rows of src share: dst = act(src . weight^T + bias) + src2. A subgroup takes ROWS rows of the weight and COLS rows
   of src; its lanes divide k. Or a workgroup does, whose invocations divide it, where that leaves each of them something. Or a team, whose lanes
   divide the slices (product.glsl), and which adds their sums in order. Nothing here depends on the size of a subgroup, nor on subgroups
   being full. */
layout(local_size_x = 64) in;
layout(constant_id = 1) const int COLS = 1;
layout(constant_id = 2) const int ROWS = 2;
layout(constant_id = 3) const int HOW = 0; /* bits: 1: k is not a multiple of 32; 2: a row's bits are those that it has among many; 4: rows of
                                              src begin at multiples of 16 bytes, and k is one of 32; 8: workgroups divide k */
const bool RAGGED = (HOW & 1) != 0, IN_SLICES = (HOW & 2) != 0, WIDE_SRC = (HOW & 4) != 0, TOGETHER = (HOW & 8) != 0;
const int TEAMS = 8; /* as FG__VK_TEAMS; beyond so many subgroups do nothing */
const int OWN = ROWS * COLS, PITCH = SLICES + 1, AT_ONCE = IN_SLICES ? 32 / PART : 1; /* parts of a slice's block */
shared float slices[IN_SLICES ? TEAMS * OWN * PITCH : TOGETHER ? 64 * OWN : 1]; /* TOGETHER: a sum of each subgroup, of at most so many */

float acc[OWN];

/* Adds to acc the products of columns PART * u to PART * u + PART - 1, of rows of the weight from `row` on (those beyond are the last) and
   of rows of src from col0 on. Drivers copy a function to wherever it is called, with what is for other types, which they leave out later only:
   this is called in one place, as is unit() here. */
void add_part(int row, int col0, int count, int u);
float scaled(float sum, int col);

/* acc[i], which is sum. */
void finish_own(int i, int row, int col0, int count, float sum) {
    int col = col0 + i % COLS;
    if (row + i / COLS < rows && col < count) finish(row + i / COLS, col, scaled(sum, col));
}

void meet() {
    subgroupMemoryBarrierShared();
    subgroupBarrier();
}

/* Sums of slices in order; `at` is where the team's begin. */
void end_slices(int at, int place, int step, int row, int col0, int count) {
    meet();
    for (int i = place; i < OWN; i += step) {
        float sum = 0.0;
        for (int slice = 0; slice < SLICES; slice++) sum += slices[at + i * PITCH + slice];
        finish_own(i, row, col0, count, sum);
    }
    meet();
}

void end_workgroup(int lane, int row, int col0, int count) {
    int me = int(gl_LocalInvocationIndex), subgroups = int(gl_NumSubgroups);
    for (int i = 0; i < OWN; i++) {
        float sum = subgroupAdd(acc[i]);
        if (lane == 0) slices[int(gl_SubgroupID) * OWN + i] = sum;
    }
    barrier();
    for (int i = me; i < OWN; i += 64) {
        float sum = 0.0;
        for (int of = 0; of < subgroups; of++) sum += slices[of * OWN + i];
        finish_own(i, row, col0, count, sum);
    }
    barrier();
}

/* Each lane ends a sum of its own. */
void end_subgroup(int lane, int lanes, int row, int col0, int count) {
    for (int i = 0; i < OWN; i++) acc[i] = subgroupAdd(acc[i]);
    for (int first = 0; first < OWN; first += lanes) {
        float sum = 0.0;
        for (int i = 0; i < OWN; i++)
            if (i == first + lane) sum = acc[i];
        if (first + lane < OWN) finish_own(first + lane, row, col0, count, sum);
    }
}

/* A team is as many lanes of a subgroup as there are slices, or the whole of a smaller one; a lane takes slice `place` and each step-th after it. */
void main() {
    int lane = int(subgroupExclusiveAdd(1u)), lanes = int(subgroupAdd(1u)), col0, count = find_rows(COLS, col0);
    int me = int(gl_LocalInvocationIndex), subgroup = int(gl_SubgroupID), subgroups = int(gl_NumSubgroups), parts = (k + PART - 1) / PART;
    int teams = max(1, lanes / SLICES), team = subgroup * teams, own = lane / SLICES, at = (team + own) * OWN * PITCH;
    int place = IN_SLICES ? own < teams ? lane % SLICES : SLICES + OWN : 0, step = IN_SLICES ? min(lanes, SLICES) : 1;
    int across = IN_SLICES ? min(subgroups * teams, TEAMS) : TOGETHER ? 1 : subgroups, begin = IN_SLICES ? team : TOGETHER ? 0 : subgroup;
    int start = TOGETHER ? me : lane, stride = IN_SLICES ? SLICES : TOGETHER ? 64 : lanes; /* of the parts that are this invocation's */
    if (col0 >= count || IN_SLICES && team + teams > TEAMS) return;
    for (int first = (int(gl_WorkGroupID.x) * across + begin) * ROWS; first < rows; first += int(gl_NumWorkGroups.x) * across * ROWS) {
        int row = IN_SLICES ? first + own * ROWS : first;
        for (int slice = place; slice < (IN_SLICES ? SLICES : 1); slice += step) {
            for (int i = 0; i < OWN; i++) acc[i] = 0.0;
            for (int block = IN_SLICES ? slice : start; block * AT_ONCE < parts; block += stride)
                for (int i = 0; i < AT_ONCE; i++)
                    if (!IN_SLICES || !RAGGED || block * AT_ONCE + i < parts) add_part(row, col0, count, block * AT_ONCE + i);
            if (IN_SLICES)
                for (int i = 0; i < OWN; i++) slices[at + i * PITCH + slice] = acc[i];
        }
        if (IN_SLICES) end_slices(at, place, step, row, col0, count);
        else if (TOGETHER) end_workgroup(lane, row, col0, count);
        else end_subgroup(lane, lanes, row, col0, count);
    }
}
