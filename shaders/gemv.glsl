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
const int TEAMS = 8, OWN = ROWS * COLS, PITCH = SLICES + 1, PARTS = 32 / PART; /* beyond so many teams subgroups do nothing; as FG__VK_TEAMS */
shared float slices[IN_SLICES ? TEAMS * OWN * PITCH : TOGETHER ? 64 * OWN : 1]; /* TOGETHER: a sum of each subgroup, of at most so many */

/* Adds to acc the products of columns PART * u to PART * u + PART - 1, of rows of the weight from `row` on (those beyond are the last) and
   of rows of src from col0 on. */
void add_part(inout float acc[OWN], int row, int col0, int count, int u);
float scaled(float sum, int col);

void meet() {
    subgroupMemoryBarrierShared();
    subgroupBarrier();
}

/* A team is as many lanes of a subgroup as there are slices, or the whole of a smaller one. */
void by_slices(int lane, int lanes, int count, int col0) {
    int parts = (k + PART - 1) / PART;
    int teams = max(1, lanes / SLICES), team = int(gl_SubgroupID) * teams, all = min(int(gl_NumSubgroups) * teams, TEAMS);
    int own = lane / SLICES, place = own < teams ? lane % SLICES : SLICES + OWN, step = min(lanes, SLICES);
    if (team + teams > TEAMS) return;
    for (int first = (int(gl_WorkGroupID.x) * all + team) * ROWS; first < rows; first += int(gl_NumWorkGroups.x) * all * ROWS) {
        int row = first + own * ROWS, at = (team + own) * OWN * PITCH;
        for (int slice = place; slice < SLICES; slice += step) {
            float acc[OWN];
            for (int i = 0; i < OWN; i++) acc[i] = 0.0;
            for (int block = slice; block * PARTS < parts; block += SLICES)
                for (int i = 0; i < PARTS; i++)
                    if (!RAGGED || block * PARTS + i < parts) add_part(acc, row, col0, count, block * PARTS + i);
            for (int i = 0; i < OWN; i++) slices[at + i * PITCH + slice] = acc[i];
        }
        meet();
        for (int i = place; i < OWN; i += step) {
            float sum = 0.0;
            for (int slice = 0; slice < SLICES; slice++) sum += slices[at + i * PITCH + slice];
            if (row + i / COLS < rows && col0 + i % COLS < count) finish(row + i / COLS, col0 + i % COLS, scaled(sum, col0 + i % COLS));
        }
        meet();
    }
}

void by_subgroup(int lane, int lanes, int count, int col0) {
    int first = int(gl_WorkGroupID.x * gl_NumSubgroups + gl_SubgroupID) * ROWS, step = int(gl_NumWorkGroups.x * gl_NumSubgroups) * ROWS;
    int parts = (k + PART - 1) / PART;
    for (int row = first; row < rows; row += step) {
        float acc[OWN];
        for (int i = 0; i < OWN; i++) acc[i] = 0.0;
        for (int u = lane; u < parts; u += lanes) add_part(acc, row, col0, count, u);
        for (int i = 0; i < OWN; i++) {
            float sum = subgroupAdd(acc[i]);
            if (lane == 0 && row + i / COLS < rows && col0 + i % COLS < count) finish(row + i / COLS, col0 + i % COLS, scaled(sum, col0 + i % COLS));
        }
    }
}

void by_workgroup(int lane, int count, int col0) {
    int me = int(gl_LocalInvocationIndex), subgroups = int(gl_NumSubgroups), parts = (k + PART - 1) / PART;
    for (int row = int(gl_WorkGroupID.x) * ROWS; row < rows; row += int(gl_NumWorkGroups.x) * ROWS) {
        float acc[OWN];
        for (int i = 0; i < OWN; i++) acc[i] = 0.0;
        for (int u = me; u < parts; u += 64) add_part(acc, row, col0, count, u);
        for (int i = 0; i < OWN; i++) {
            float sum = subgroupAdd(acc[i]);
            if (lane == 0) slices[int(gl_SubgroupID) * OWN + i] = sum;
        }
        barrier();
        for (int i = me; i < OWN; i += 64) {
            float sum = 0.0;
            for (int of = 0; of < subgroups; of++) sum += slices[of * OWN + i];
            if (row + i / COLS < rows && col0 + i % COLS < count) finish(row + i / COLS, col0 + i % COLS, scaled(sum, col0 + i % COLS));
        }
        barrier();
    }
}

void main() {
    int lane = int(subgroupExclusiveAdd(1u)), lanes = int(subgroupAdd(1u)), count = row_count(), col0 = int(gl_WorkGroupID.y) * COLS;
    if (col0 >= count) return;
    if (IN_SLICES) by_slices(lane, lanes, count, col0);
    else if (TOGETHER) by_workgroup(lane, count, col0);
    else by_subgroup(lane, lanes, count, col0);
}
