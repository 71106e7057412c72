/* Compute shaders on the host: takes a SPIR-V module with the constants of a pipeline and executes its workgroups, with subgroups
   of any size up to 64. For tests: it is strict where a card is undefined, and says what it found.

   - Invocations of a subgroup go in lockstep, those that branched away wait, and come together again at the first instruction in
     the module's order that any of them goes on at (blocks stand in an order that makes this where branches merge).
   - Subgroups run one after another between barriers, beginning with a different one each time.
   - Violations: accesses beyond the range of a buffer or an array; a barrier that not every invocation of the workgroup reaches; an
     operation of subgroups or of matrices that lanes miss which have not ended; two invocations that touch a word of shared memory
     with no barrier between, or a word of a buffer in one dispatch with none that names buffers, of which one writes; words of
     buffers that earlier commands use with no barrier between; divisions by zero; shifts by 32 and more.
   - Memory that nothing wrote reads as 0xFFFFFFFF, NaN.

   A module is flattened first: functions inlined, branches on constants decided, vectors taken apart, pointers resolved; an
   instruction then is one loop over lanes. Halves are floats that are rounded to halves. Specification: SPIR-V 1.6, with
   SPV_KHR_integer_dot_product and SPV_KHR_cooperative_matrix; what shaders/ does not use is mostly left out. */
#ifndef SPIRV_RUN_H
#define SPIRV_RUN_H

#include <math.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#if defined(__GNUC__) && !defined(__clang__) && !defined(__TINYC__)
#pragma GCC push_options
#pragma GCC optimize("O3")
#define SPV_FREE _Pragma("GCC ivdep")
#else
#define SPV_FREE
#endif

enum { SPV_LANES = 64, SPV_BINDINGS = 8, SPV_MAX_SUBGROUPS = 32 };

/* A number for each lane; of a matrix 64 elements. */
typedef union spv_reg {
    uint32_t u[SPV_LANES];
    int32_t i[SPV_LANES];
    float f[SPV_LANES];
} spv_reg;

enum { SPV_NO = -1 };

/* What is done beside SPIR-V's own opcodes; GLSL.std.450's are 1000 and more. */
enum {
    SPV_EXT = 1000,
    SPV_MOVE = 2000, SPV_ROUND, SPV_UNPACK_LOW, SPV_UNPACK_HIGH, SPV_PACK, SPV_DOT_BYTES,
    SPV_ADDRESS, SPV_LOAD_VAR, SPV_STORE_VAR, SPV_LOAD_SHARED, SPV_STORE_SHARED, SPV_ADD_SHARED, SPV_LOAD_BUFFER, SPV_STORE_BUFFER, SPV_LOAD_PUSH,
    SPV_MATRIX_FILL, SPV_MATRIX_GET, SPV_MATRIX_PUT, SPV_MATRIX_LOAD, SPV_MATRIX_STORE, SPV_MATRIX_MULTIPLY,
    SPV_JUMP, SPV_BRANCH, SPV_END, SPV_BARRIER, SPV_GROUP, SPV_NOTHING
};

typedef struct spv_ins {
    uint16_t op;
    bool masked; /* dst keeps the numbers of lanes that are not there */
    uint8_t kind;
    int32_t dst, a, b, c; /* registers */
    uint32_t imm, imm2, imm3;
} spv_ins;

typedef struct spv_type {
    int op, width;
    uint32_t of, count, stride; /* element; how many; bytes from one to the next, where laid out */
    const uint32_t *members, *offsets;
    int comps;                  /* registers */
    uint32_t bytes, rows, cols; /* in shared memory; of a matrix */
} spv_type;

enum { SPV_FUNCTION = 7, SPV_PRIVATE = 6, SPV_INPUT = 1, SPV_WORKGROUP = 4, SPV_STORAGE = 12, SPV_PUSH = 9, SPV_UNIFORM = 2 };

typedef struct spv_value {
    uint32_t type;
    int32_t *regs;
    int n;
    bool constant, pointer;
    uint32_t number;       /* of a constant */
    int storage;           /* of a pointer: where to; type is what it points to */
    int32_t dynamic;       /* register of what is added to offset, or SPV_NO */
    uint32_t base, offset; /* first register, shared word, or binding */
} spv_value;

typedef struct spv_block {
    struct spv_block *next;
} spv_block;

typedef struct spv_alias {
    uint32_t id;
    int part;
} spv_alias;

typedef struct spv_patch {
    uint32_t ins, which, label;
} spv_patch;

typedef struct spv_program {
    spv_ins *code;
    size_t n_code, code_capacity;
    int n_regs, n_consts;
    struct {
        int32_t reg;
        uint32_t number;
    } *consts;
    int32_t builtins[8][3]; /* registers of WorkgroupId, ...; SPV_NO */
    uint32_t local[3], shared_words, shared_bytes;
    char error[200];
    /* while it is made */
    const uint32_t *words;
    size_t n_words;
    uint32_t bound;
    spv_value *values;
    spv_type *types;
    uint32_t *position, *decoration[8], *cross, *label_at;
    uint32_t ext, entry;
    const uint32_t *spec;
    uint32_t n_spec;
    uint8_t *persist;
    uint32_t *def_block;
    size_t n_virtual, virtual_capacity;
    uint32_t block;
    spv_alias *aliases;
    size_t n_aliases, aliases_capacity;
    size_t consts_capacity;
    spv_block *arena;
    int depth;
} spv_program;

enum { SPV_SPEC_ID, SPV_STRIDE, SPV_BINDING, SPV_BUILTIN };
enum { SPV_WORKGROUP_ID, SPV_GLOBAL_ID, SPV_LOCAL_ID, SPV_LOCAL_INDEX, SPV_SUBGROUP_ID, SPV_NUM_SUBGROUPS, SPV_NUM_GROUPS, SPV_SUBGROUP_SIZE };

static void *spv_get(spv_program *p, size_t bytes) {
    spv_block *b = (spv_block *)calloc(1, sizeof(spv_block) + 16 + bytes);
    if (!b) abort();
    b->next = p->arena;
    p->arena = b;
    return (char *)b + 16;
}

static void *spv_grow(void *array, size_t *capacity, size_t n, size_t bytes) {
    if (n <= *capacity) return array;
    *capacity = n * 2 + 64;
    array = realloc(array, *capacity * bytes);
    if (!array) abort();
    return array;
}

static void spv_fail(spv_program *p, const char *format, ...) {
    va_list args;
    if (p->error[0]) return;
    va_start(args, format);
    vsnprintf(p->error, sizeof(p->error), format, args);
    va_end(args);
}

/* ---- Numbers. ---- */

static float spv_float(uint32_t bits) {
    float x;
    memcpy(&x, &bits, 4);
    return x;
}

static uint32_t spv_bits(float x) {
    uint32_t bits;
    memcpy(&bits, &x, 4);
    return bits;
}

/* The half next to a float, as a float. */
static float spv_round(float x) {
    uint32_t bits = spv_bits(x), sign = bits & 0x80000000u, size = bits & 0x7FFFFFFFu;
    uint32_t normal = (size + 0xFFF + (size >> 13 & 1)) & ~(uint32_t)0x1FFF, small = spv_bits((spv_float(size) + 0.5f) - 0.5f);
    uint32_t got = size < 0x38800000u ? small : normal;
    got = normal > 0x477FE000u ? 0x7F800000u : got;
    got = size > 0x7F800000u ? 0x7FC00000u : got;
    return spv_float(got | sign);
}

static uint32_t spv_half_bits(float rounded) {
    uint32_t bits = spv_bits(rounded), sign = bits >> 16 & 0x8000, size = bits & 0x7FFFFFFF;
    if (size >= 0x7F800000) return sign | (size > 0x7F800000 ? 0x7E00 : 0x7C00);
    if (size < 0x38800000) return sign | (uint32_t)(spv_float(size) * 16777216.0f);
    return sign | ((size - 0x38000000) >> 13);
}

static float spv_half(uint32_t half) {
    uint32_t sign = (half & 0x8000) << 16, size = half & 0x7FFF;
    if (size >= 0x7C00) return spv_float(sign | 0x7F800000u | (size & 0x3FF) << 13);
    if (size < 0x400) return spv_float(sign | spv_bits((float)size / 16777216.0f));
    return spv_float(sign | ((size << 13) + 0x38000000u));
}

static int32_t spv_to_int(float x) { return x >= 2147483648.0f ? INT32_MAX : x >= -2147483648.0f ? (int32_t)x : INT32_MIN; }
static uint32_t spv_to_uint(float x) { return x >= 4294967296.0f ? UINT32_MAX : x > 0.0f ? (uint32_t)x : 0; }

static int32_t spv_dot_bytes(uint32_t a, uint32_t b) {
    int32_t sum = 0;
    int i;
    for (i = 0; i < 32; i += 8) sum += (int8_t)(a >> i & 255) * (int8_t)(b >> i & 255);
    return sum;
}

#define SPV_EACH for (i = 0; i < n; i++)
#define SPV_DO(code, member, expression) \
    case code:                           \
        SPV_FREE SPV_EACH d->member[i] = expression; \
        break;

/* What lanes do each for itself; false: not known. */
static bool spv_alu(int op, spv_reg *d, const spv_reg *a, const spv_reg *b, const spv_reg *c, int n) {
    int i;
    switch (op) {
        SPV_DO(SPV_MOVE, u, a->u[i])
        SPV_DO(SPV_ROUND, f, spv_round(a->f[i]))
        SPV_DO(SPV_UNPACK_LOW, f, spv_half(a->u[i] & 0xFFFF))
        SPV_DO(SPV_UNPACK_HIGH, f, spv_half(a->u[i] >> 16))
        SPV_DO(SPV_PACK, u, spv_half_bits(spv_round(a->f[i])) | spv_half_bits(spv_round(b->f[i])) << 16)
        SPV_DO(SPV_DOT_BYTES, i, spv_dot_bytes(a->u[i], b->u[i]))
        SPV_DO(109, u, spv_to_uint(a->f[i]))
        SPV_DO(110, i, spv_to_int(a->f[i]))
        SPV_DO(111, f, (float)a->i[i])
        SPV_DO(112, f, (float)a->u[i])
        SPV_DO(126, u, 0u - a->u[i])
        SPV_DO(127, u, a->u[i] ^ 0x80000000u)
        SPV_DO(128, u, a->u[i] + b->u[i])
        SPV_DO(129, f, a->f[i] + b->f[i])
        SPV_DO(130, u, a->u[i] - b->u[i])
        SPV_DO(131, f, a->f[i] - b->f[i])
        SPV_DO(132, u, a->u[i] * b->u[i])
        SPV_DO(133, f, a->f[i] * b->f[i])
        SPV_DO(134, u, b->u[i] ? a->u[i] / b->u[i] : 0)
        SPV_DO(135, i, b->i[i] == 0 ? 0 : b->i[i] == -1 ? (int32_t)(0u - a->u[i]) : a->i[i] / b->i[i])
        SPV_DO(136, f, a->f[i] / b->f[i])
        SPV_DO(137, u, b->u[i] ? a->u[i] % b->u[i] : 0)
        SPV_DO(138, i, b->i[i] == 0 || b->i[i] == -1 ? 0 : a->i[i] % b->i[i])
        SPV_DO(139, i, b->i[i] == 0 || b->i[i] == -1 ? 0
                       : a->i[i] % b->i[i] && (a->i[i] ^ b->i[i]) < 0 ? a->i[i] % b->i[i] + b->i[i] : a->i[i] % b->i[i])
        SPV_DO(156, u, a->f[i] != a->f[i])
        SPV_DO(157, u, (a->u[i] & 0x7FFFFFFFu) == 0x7F800000u)
        SPV_DO(164, u, a->u[i] == b->u[i])
        SPV_DO(165, u, a->u[i] != b->u[i])
        SPV_DO(166, u, a->u[i] | b->u[i])
        SPV_DO(167, u, a->u[i] & b->u[i])
        SPV_DO(168, u, a->u[i] ^ 1u)
        SPV_DO(169, u, a->u[i] ? b->u[i] : c->u[i])
        SPV_DO(170, u, a->u[i] == b->u[i])
        SPV_DO(171, u, a->u[i] != b->u[i])
        SPV_DO(172, u, a->u[i] > b->u[i])
        SPV_DO(173, u, a->i[i] > b->i[i])
        SPV_DO(174, u, a->u[i] >= b->u[i])
        SPV_DO(175, u, a->i[i] >= b->i[i])
        SPV_DO(176, u, a->u[i] < b->u[i])
        SPV_DO(177, u, a->i[i] < b->i[i])
        SPV_DO(178, u, a->u[i] <= b->u[i])
        SPV_DO(179, u, a->i[i] <= b->i[i])
        SPV_DO(180, u, a->f[i] == b->f[i])
        SPV_DO(182, u, a->f[i] < b->f[i] || a->f[i] > b->f[i])
        SPV_DO(183, u, !(a->f[i] == b->f[i]))
        SPV_DO(184, u, a->f[i] < b->f[i])
        SPV_DO(185, u, !(a->f[i] >= b->f[i]))
        SPV_DO(186, u, a->f[i] > b->f[i])
        SPV_DO(187, u, !(a->f[i] <= b->f[i]))
        SPV_DO(188, u, a->f[i] <= b->f[i])
        SPV_DO(189, u, !(a->f[i] > b->f[i]))
        SPV_DO(190, u, a->f[i] >= b->f[i])
        SPV_DO(191, u, !(a->f[i] < b->f[i]))
        SPV_DO(194, u, a->u[i] >> (b->u[i] & 31))
        SPV_DO(195, i, a->i[i] >> (b->u[i] & 31))
        SPV_DO(196, u, a->u[i] << (b->u[i] & 31))
        SPV_DO(197, u, a->u[i] | b->u[i])
        SPV_DO(198, u, a->u[i] ^ b->u[i])
        SPV_DO(199, u, a->u[i] & b->u[i])
        SPV_DO(200, u, ~a->u[i])
        SPV_DO(202, i, c->u[i] ? (int32_t)(a->u[i] << ((32 - c->u[i] - b->u[i]) & 31)) >> ((32 - c->u[i]) & 31) : 0)
        SPV_DO(203, u, c->u[i] ? a->u[i] << ((32 - c->u[i] - b->u[i]) & 31) >> ((32 - c->u[i]) & 31) : 0)
        SPV_DO(SPV_EXT + 2, f, rintf(a->f[i]))
        SPV_DO(SPV_EXT + 3, f, truncf(a->f[i]))
        SPV_DO(SPV_EXT + 4, u, a->u[i] & 0x7FFFFFFFu)
        SPV_DO(SPV_EXT + 5, u, a->i[i] < 0 ? 0u - a->u[i] : a->u[i])
        SPV_DO(SPV_EXT + 8, f, floorf(a->f[i]))
        SPV_DO(SPV_EXT + 9, f, ceilf(a->f[i]))
        SPV_DO(SPV_EXT + 13, f, sinf(a->f[i]))
        SPV_DO(SPV_EXT + 14, f, cosf(a->f[i]))
        SPV_DO(SPV_EXT + 26, f, powf(a->f[i], b->f[i]))
        SPV_DO(SPV_EXT + 27, f, expf(a->f[i]))
        SPV_DO(SPV_EXT + 28, f, logf(a->f[i]))
        SPV_DO(SPV_EXT + 29, f, exp2f(a->f[i]))
        SPV_DO(SPV_EXT + 30, f, log2f(a->f[i]))
        SPV_DO(SPV_EXT + 31, f, sqrtf(a->f[i]))
        SPV_DO(SPV_EXT + 32, f, 1.0f / sqrtf(a->f[i]))
        SPV_DO(SPV_EXT + 37, f, b->f[i] < a->f[i] ? b->f[i] : a->f[i])
        SPV_DO(SPV_EXT + 38, u, b->u[i] < a->u[i] ? b->u[i] : a->u[i])
        SPV_DO(SPV_EXT + 39, i, b->i[i] < a->i[i] ? b->i[i] : a->i[i])
        SPV_DO(SPV_EXT + 40, f, a->f[i] < b->f[i] ? b->f[i] : a->f[i])
        SPV_DO(SPV_EXT + 41, u, a->u[i] < b->u[i] ? b->u[i] : a->u[i])
        SPV_DO(SPV_EXT + 42, i, a->i[i] < b->i[i] ? b->i[i] : a->i[i])
        SPV_DO(SPV_EXT + 43, f, a->f[i] < b->f[i] ? b->f[i] : a->f[i] > c->f[i] ? c->f[i] : a->f[i])
        SPV_DO(SPV_EXT + 44, u, a->u[i] < b->u[i] ? b->u[i] : a->u[i] > c->u[i] ? c->u[i] : a->u[i])
        SPV_DO(SPV_EXT + 45, i, a->i[i] < b->i[i] ? b->i[i] : a->i[i] > c->i[i] ? c->i[i] : a->i[i])
        SPV_DO(SPV_EXT + 50, f, fmaf(a->f[i], b->f[i], c->f[i]))
    default: return false;
    }
    return true;
}

/* ---- Flattening: registers and instructions. ---- */

static int32_t spv_new_reg(spv_program *p, bool persist) {
    size_t capacity = p->virtual_capacity;
    p->persist = (uint8_t *)spv_grow(p->persist, &capacity, p->n_virtual + 1, 1);
    p->def_block = (uint32_t *)spv_grow(p->def_block, &p->virtual_capacity, p->n_virtual + 1, sizeof(uint32_t));
    p->persist[p->n_virtual] = persist;
    p->def_block[p->n_virtual] = 0;
    return (int32_t)p->n_virtual++;
}

/* Registers that follow each other and stay. */
static uint32_t spv_new_regs(spv_program *p, int n) {
    uint32_t first = (uint32_t)p->n_virtual;
    while (n-- > 0) spv_new_reg(p, true);
    return first;
}

static int32_t spv_const(spv_program *p, uint32_t number) {
    int i;
    for (i = 0; i < p->n_consts; i++)
        if (p->consts[i].number == number) return p->consts[i].reg;
    p->consts = spv_grow(p->consts, &p->consts_capacity, (size_t)p->n_consts + 1, sizeof(*p->consts));
    p->consts[p->n_consts].number = number;
    p->consts[p->n_consts].reg = spv_new_reg(p, true);
    return p->consts[p->n_consts++].reg;
}

static spv_ins *spv_emit(spv_program *p, int op, int32_t dst, int32_t a, int32_t b, int32_t c) {
    spv_ins *x;
    p->code = (spv_ins *)spv_grow(p->code, &p->code_capacity, p->n_code + 1, sizeof(spv_ins));
    x = &p->code[p->n_code++];
    memset(x, 0, sizeof(*x));
    x->op = (uint16_t)op;
    x->dst = dst;
    x->a = a;
    x->b = b;
    x->c = c;
    x->imm3 = p->block;
    if (dst >= 0) p->def_block[dst] = p->block;
    return x;
}

static void spv_start_block(spv_program *p) {
    p->block++;
    p->n_aliases = 0;
}

static spv_value *spv_new_value(spv_program *p, uint32_t id, uint32_t type, int n) {
    spv_value *v = &p->values[id];
    memset(v, 0, sizeof(*v));
    v->type = type;
    v->n = n;
    v->regs = (int32_t *)spv_get(p, sizeof(int32_t) * (size_t)(n ? n : 1));
    v->dynamic = SPV_NO;
    return v;
}

/* Registers of variables that are about to be written: what was read of them before gets registers of its own. */
static void spv_keep(spv_program *p, uint32_t first, uint32_t n) {
    size_t i, kept = 0;
    for (i = 0; i < p->n_aliases; i++) {
        spv_alias alias = p->aliases[i];
        int32_t *reg = &p->values[alias.id].regs[alias.part];
        if ((uint32_t)*reg >= first && (uint32_t)*reg - first < n) {
            int32_t own = spv_new_reg(p, false);
            spv_emit(p, SPV_MOVE, own, *reg, 0, 0);
            *reg = own;
        } else p->aliases[kept++] = alias;
    }
    p->n_aliases = kept;
}

static bool spv_is_half(const spv_program *p, uint32_t type) {
    const spv_type *t = &p->types[type];
    if (t->op == 23) t = &p->types[t->of];
    return t->op == 22 && t->width == 16;
}

/* ---- Types, constants, variables of the module. ---- */

static void spv_set_type(spv_program *p, const uint32_t *w, uint32_t n) {
    spv_type *t = &p->types[w[1]];
    uint32_t i;
    t->op = (int)(w[0] & 0xFFFF);
    switch (t->op) {
    case 20: t->comps = 1, t->width = 32, t->bytes = 4; break;
    case 21: case 22:
        t->comps = 1, t->width = (int)w[2], t->bytes = w[2] / 8;
        if (w[2] != 32 && !(w[2] == 16 && t->op == 22)) spv_fail(p, "a type of %u bits", (unsigned)w[2]);
        break;
    case 23: case 28:
        t->of = w[2];
        t->count = t->op == 23 ? w[3] : p->values[w[3]].number;
        t->comps = (int)t->count * p->types[w[2]].comps;
        t->bytes = t->count * p->types[w[2]].bytes;
        t->stride = p->decoration[SPV_STRIDE][w[1]];
        break;
    case 29:
        t->of = w[2];
        t->stride = p->decoration[SPV_STRIDE][w[1]];
        break;
    case 30:
        t->count = n - 2;
        t->members = w + 2;
        for (i = 0; i < t->count; i++) t->comps += p->types[w[2 + i]].comps, t->bytes += p->types[w[2 + i]].bytes;
        break;
    case 32: t->of = w[3], t->count = w[2]; break;
    case 4456:
        t->of = w[2];
        t->rows = p->values[w[4]].number;
        t->cols = p->values[w[5]].number;
        t->comps = (int)((t->rows * t->cols + SPV_LANES - 1) / SPV_LANES);
        if (p->values[w[3]].number != 3) spv_fail(p, "a matrix that is not a subgroup's");
        break;
    default: break;
    }
}

static void spv_set_const(spv_program *p, uint32_t id, uint32_t type, uint32_t number) {
    spv_value *v = spv_new_value(p, id, type, 1);
    v->constant = true;
    v->number = number;
    v->regs[0] = spv_const(p, number);
}

static void spv_spec_op(spv_program *p, const uint32_t *w, uint32_t n) {
    spv_reg in[3], out;
    uint32_t i;
    memset(in, 0, sizeof(in));
    memset(&out, 0, sizeof(out));
    for (i = 4; i < n && i < 7; i++) in[i - 4].u[0] = p->values[w[i]].number;
    if (!spv_alu((int)w[3], &out, &in[0], &in[1], &in[2], 1)) spv_fail(p, "operation %u on constants", (unsigned)w[3]);
    spv_set_const(p, w[2], w[1], out.u[0]);
}

static void spv_composite(spv_program *p, uint32_t id, uint32_t type, const uint32_t *parts, uint32_t n) {
    spv_value *v = spv_new_value(p, id, type, p->types[type].comps);
    uint32_t i;
    int j, at = 0;
    for (i = 0; i < n; i++)
        for (j = 0; j < p->values[parts[i]].n && at < v->n; j++) v->regs[at++] = p->values[parts[i]].regs[j];
    if (at != v->n) spv_fail(p, "a composite of %d parts of %d", at, v->n);
}

/* All elements of a matrix. */
static void spv_matrix_fill(spv_program *p, uint32_t id, uint32_t type, int32_t reg) {
    spv_value *v = spv_new_value(p, id, type, p->types[type].comps);
    uint32_t first = spv_new_regs(p, v->n);
    int i;
    for (i = 0; i < v->n; i++) v->regs[i] = (int32_t)first + i;
    spv_emit(p, SPV_MATRIX_FILL, SPV_NO, reg, 0, 0)->imm = first;
    p->code[p->n_code - 1].imm2 = (uint32_t)v->n;
}

static void spv_builtin(spv_program *p, uint32_t id, const spv_value *v) {
    static const uint8_t which[][2] = {{26, SPV_WORKGROUP_ID}, {28, SPV_GLOBAL_ID}, {27, SPV_LOCAL_ID}, {29, SPV_LOCAL_INDEX},
                                       {40, SPV_SUBGROUP_ID}, {38, SPV_NUM_SUBGROUPS}, {24, SPV_NUM_GROUPS}, {36, SPV_SUBGROUP_SIZE}};
    int i, j;
    for (i = 0; i < 8; i++)
        if (p->decoration[SPV_BUILTIN][id] == which[i][0] + 1u) {
            for (j = 0; j < p->types[v->type].comps && j < 3; j++) p->builtins[which[i][1]][j] = (int32_t)v->base + j;
            return;
        }
    spv_fail(p, "built-in %u", (unsigned)p->decoration[SPV_BUILTIN][id] - 1);
}

static void spv_variable(spv_program *p, const uint32_t *w, uint32_t n) {
    uint32_t type = p->types[w[1]].of;
    spv_value *v = spv_new_value(p, w[2], type, 0);
    int i;
    v->pointer = true;
    v->storage = (int)w[3];
    switch (w[3]) {
    case SPV_FUNCTION: case SPV_PRIVATE: case SPV_INPUT:
        v->base = spv_new_regs(p, p->types[type].comps);
        if (w[3] == SPV_INPUT) spv_builtin(p, w[2], v);
        for (i = 0; n > 4 && i < p->types[type].comps; i++) spv_emit(p, SPV_MOVE, (int32_t)v->base + i, p->values[w[4]].regs[i], 0, 0);
        n = 4;
        break;
    case SPV_WORKGROUP:
        v->base = p->shared_words;
        p->shared_words += (uint32_t)p->types[type].comps;
        p->shared_bytes += p->types[type].bytes;
        break;
    case SPV_STORAGE:
        v->base = p->decoration[SPV_BINDING][w[2]] - 1;
        if (v->base >= SPV_BINDINGS) spv_fail(p, "binding %u", (unsigned)v->base);
        break;
    case SPV_PUSH: break;
    default: spv_fail(p, "storage class %u", (unsigned)w[3]);
    }
    if (n > 4) spv_fail(p, "a variable of class %u that begins with a value", (unsigned)w[3]);
}

/* ---- Pointers. ---- */

static bool spv_laid_out(int storage) { return storage == SPV_STORAGE || storage == SPV_PUSH; }

static void spv_chain(spv_program *p, const uint32_t *w, uint32_t n) {
    spv_value from = p->values[w[3]], *to;
    uint32_t type = from.type, i, j;
    for (i = 4; i < n; i++) {
        const spv_type *t = &p->types[type];
        const spv_value *index = &p->values[w[i]];
        bool laid_out = spv_laid_out(from.storage);
        uint32_t stride;
        if (t->op == 30) {
            if (!index->constant || index->number >= t->count) spv_fail(p, "a member that is none");
            if (p->error[0]) return;
            if (laid_out) from.offset += t->offsets ? t->offsets[index->number] : 0;
            else for (j = 0; j < index->number; j++) from.offset += (uint32_t)p->types[t->members[j]].comps;
            type = t->members[index->number];
            continue;
        }
        if (t->op != 23 && t->op != 28 && t->op != 29) spv_fail(p, "an index into what has no parts");
        stride = !laid_out ? (uint32_t)p->types[t->of].comps : t->op == 23 ? p->types[t->of].bytes : t->stride;
        if (laid_out && !stride) spv_fail(p, "an array with no stride");
        if (index->constant && (t->op == 29 || index->number < t->count)) from.offset += index->number * stride;
        else {
            int32_t reg = spv_new_reg(p, false);
            spv_ins *x = spv_emit(p, SPV_ADDRESS, reg, index->regs[0], from.dynamic < 0 ? spv_const(p, 0) : from.dynamic, 0);
            x->imm = stride;
            x->imm2 = t->op == 29 ? 0 : t->count;
            from.dynamic = reg;
        }
        type = t->of;
    }
    to = spv_new_value(p, w[2], type, 0);
    to->pointer = true;
    to->storage = from.storage;
    to->dynamic = from.dynamic;
    to->base = from.base;
    to->offset = from.offset;
}

typedef struct spv_leaf {
    uint32_t offset;
    int half;
} spv_leaf;

/* The numbers of a type that is laid out. */
static int spv_leaves(const spv_program *p, uint32_t type, uint32_t offset, spv_leaf *leaves, int n) {
    const spv_type *t = &p->types[type];
    uint32_t i;
    if (t->op == 21 || t->op == 22 || t->op == 20) {
        leaves[n].offset = offset;
        leaves[n].half = t->width == 16;
        return n + 1;
    }
    for (i = 0; i < t->count && (t->op == 23 || t->op == 28); i++)
        n = spv_leaves(p, t->of, offset + i * (t->op == 23 ? p->types[t->of].bytes : t->stride), leaves, n);
    for (i = 0; i < t->count && t->op == 30; i++) n = spv_leaves(p, t->members[i], offset + (t->offsets ? t->offsets[i] : 0), leaves, n);
    return n;
}

static void spv_load_var(spv_program *p, uint32_t id, spv_value *v, const spv_value *from) {
    uint32_t first = from->base + from->offset;
    bool matrix = p->types[v->type].op == 4456;
    int i;
    if (matrix) {
        uint32_t own = spv_new_regs(p, v->n);
        spv_ins *x = spv_emit(p, SPV_MATRIX_GET, SPV_NO, from->dynamic < 0 ? spv_const(p, 0) : from->dynamic, 0, 0);
        x->imm = own;
        x->imm2 = first;
        x->kind = (uint8_t)v->n;
        for (i = 0; i < v->n; i++) v->regs[i] = (int32_t)own + i;
        return;
    }
    for (i = 0; i < v->n; i++) {
        if (from->dynamic >= 0) {
            v->regs[i] = spv_new_reg(p, false);
            spv_emit(p, SPV_LOAD_VAR, v->regs[i], from->dynamic, 0, 0)->imm = first + (uint32_t)i;
        } else if (from->storage == SPV_INPUT) v->regs[i] = (int32_t)first + i;
        else if (p->cross[id]) {
            v->regs[i] = spv_new_reg(p, false);
            spv_emit(p, SPV_MOVE, v->regs[i], (int32_t)first + i, 0, 0);
        } else {
            v->regs[i] = (int32_t)first + i;
            p->aliases = (spv_alias *)spv_grow(p->aliases, &p->aliases_capacity, p->n_aliases + 1, sizeof(spv_alias));
            p->aliases[p->n_aliases].id = id;
            p->aliases[p->n_aliases++].part = i;
        }
    }
}

static void spv_load(spv_program *p, const uint32_t *w) {
    spv_value from = p->values[w[3]], *v = spv_new_value(p, w[2], w[1], p->types[w[1]].comps);
    int32_t dynamic = from.dynamic < 0 ? spv_const(p, 0) : from.dynamic;
    spv_leaf *leaves;
    int i;
    if (!from.pointer || (from.storage == SPV_PUSH && from.dynamic >= 0)) spv_fail(p, "a load from no pointer, or of push constants by an index");
    if (p->error[0]) return;
    if (from.storage == SPV_FUNCTION || from.storage == SPV_PRIVATE || from.storage == SPV_INPUT) {
        spv_load_var(p, w[2], v, &from);
        return;
    }
    leaves = (spv_leaf *)calloc((size_t)v->n + 1, sizeof(spv_leaf));
    if (spv_laid_out(from.storage)) spv_leaves(p, w[1], from.offset, leaves, 0);
    for (i = 0; i < v->n; i++) {
        spv_ins *x;
        v->regs[i] = spv_new_reg(p, false);
        x = spv_emit(p, from.storage == SPV_WORKGROUP ? SPV_LOAD_SHARED : from.storage == SPV_PUSH ? SPV_LOAD_PUSH : SPV_LOAD_BUFFER, v->regs[i], dynamic, 0, 0);
        x->imm = from.storage == SPV_WORKGROUP ? from.base + from.offset + (uint32_t)i : leaves[i].offset;
        x->imm2 = from.base;
        x->kind = (uint8_t)leaves[i].half;
    }
    free(leaves);
}

static void spv_store_var(spv_program *p, const spv_value *to, const spv_value *v) {
    uint32_t first = to->base + to->offset;
    int i;
    if (p->types[to->type].op == 4456) {
        spv_ins *x = spv_emit(p, SPV_MATRIX_PUT, SPV_NO, to->dynamic < 0 ? spv_const(p, 0) : to->dynamic, 0, 0);
        x->imm = first;
        x->imm2 = (uint32_t)v->regs[0];
        x->kind = (uint8_t)v->n;
        return;
    }
    if (to->dynamic >= 0) spv_keep(p, to->base, 1u << 20); /* any of the variable */
    for (i = 0; i < v->n; i++) {
        if (to->dynamic >= 0) spv_emit(p, SPV_STORE_VAR, SPV_NO, to->dynamic, v->regs[i], 0)->imm = first + (uint32_t)i;
        else {
            spv_keep(p, first + (uint32_t)i, 1);
            spv_emit(p, SPV_MOVE, (int32_t)first + i, v->regs[i], 0, 0);
        }
    }
}

static void spv_store(spv_program *p, const uint32_t *w) {
    spv_value to = p->values[w[1]], v = p->values[w[2]];
    int32_t dynamic = to.dynamic < 0 ? spv_const(p, 0) : to.dynamic;
    spv_leaf *leaves;
    int i;
    if (!to.pointer || v.pointer || v.n != p->types[to.type].comps) spv_fail(p, "a store of %d parts", v.n);
    if (p->error[0]) return;
    if (to.storage == SPV_FUNCTION || to.storage == SPV_PRIVATE) {
        spv_store_var(p, &to, &v);
        return;
    }
    if (to.storage != SPV_WORKGROUP && to.storage != SPV_STORAGE) spv_fail(p, "a store to class %d", to.storage);
    leaves = (spv_leaf *)calloc((size_t)v.n + 1, sizeof(spv_leaf));
    if (spv_laid_out(to.storage)) spv_leaves(p, to.type, to.offset, leaves, 0);
    for (i = 0; i < v.n; i++) {
        spv_ins *x = spv_emit(p, to.storage == SPV_WORKGROUP ? SPV_STORE_SHARED : SPV_STORE_BUFFER, SPV_NO, dynamic, v.regs[i], 0);
        x->imm = to.storage == SPV_WORKGROUP ? to.base + to.offset + (uint32_t)i : leaves[i].offset;
        x->imm2 = to.base;
        x->kind = (uint8_t)leaves[i].half;
    }
    free(leaves);
}

/* OpAtomicIAdd, of shared memory. */
static void spv_add_shared(spv_program *p, const uint32_t *w) {
    spv_value to = p->values[w[3]], *v = spv_new_value(p, w[2], w[1], 1);
    spv_ins *x;
    if (to.storage != SPV_WORKGROUP) spv_fail(p, "an atomic addition to class %d", to.storage);
    if (p->error[0]) return;
    v->regs[0] = spv_new_reg(p, false);
    x = spv_emit(p, SPV_ADD_SHARED, v->regs[0], to.dynamic < 0 ? spv_const(p, 0) : to.dynamic, p->values[w[6]].regs[0], 0);
    x->imm = to.base + to.offset;
}

/* ---- Instructions. ---- */

static int32_t spv_part(const spv_value *v, int i) { return v->regs[v->n == 1 ? 0 : i]; }

/* Operation on each part of up to three operands. */
static void spv_parts(spv_program *p, int op, uint32_t id, uint32_t type, const uint32_t *operands, uint32_t n) {
    spv_value in[3], *v;
    bool round = spv_is_half(p, type) && (op == 129 || op == 131 || op == 133 || op == 136 || op >= SPV_EXT);
    int i, j;
    memset(in, 0, sizeof(in));
    for (i = 0; i < (int)n && i < 3; i++) {
        in[i] = p->values[operands[i]];
        if (!in[i].regs || in[i].pointer) spv_fail(p, "operation %d on what is no number", op);
    }
    if (p->types[type].op == 4456) spv_fail(p, "operation %d on matrices", op);
    if (p->error[0]) return;
    v = spv_new_value(p, id, type, p->types[type].comps);
    for (i = 0; i < v->n; i++) {
        int32_t regs[3] = {0, 0, 0};
        for (j = 0; j < 3 && in[j].regs; j++) regs[j] = spv_part(&in[j], i);
        v->regs[i] = spv_new_reg(p, false);
        spv_emit(p, op, v->regs[i], regs[0], regs[1], regs[2]);
        if (!round) continue;
        j = spv_new_reg(p, false);
        spv_emit(p, SPV_ROUND, j, v->regs[i], 0, 0);
        v->regs[i] = j;
    }
}

/* The same registers under another name, from part `first` on. */
static void spv_rename(spv_program *p, uint32_t id, uint32_t type, uint32_t from_id, int first, int n) {
    spv_value from = p->values[from_id], *v = spv_new_value(p, id, type, n);
    size_t j, n_aliases = p->n_aliases;
    int i;
    if (!from.regs || first + n > from.n) {
        spv_fail(p, "a part that is none");
        return;
    }
    for (i = 0; i < n; i++) v->regs[i] = from.regs[first + i];
    for (j = 0; j < n_aliases; j++)
        if (p->aliases[j].id == from_id && p->aliases[j].part >= first && p->aliases[j].part < first + n) {
            if (p->cross[id]) {
                i = p->aliases[j].part - first;
                v->regs[i] = spv_new_reg(p, false);
                spv_emit(p, SPV_MOVE, v->regs[i], from.regs[first + i], 0, 0);
                continue;
            }
            p->aliases = (spv_alias *)spv_grow(p->aliases, &p->aliases_capacity, p->n_aliases + 1, sizeof(spv_alias));
            p->aliases[p->n_aliases].id = id;
            p->aliases[p->n_aliases++].part = p->aliases[j].part - first;
        }
}

/* Numbers that composites and shuffles take along must not change under them. */
static void spv_own(spv_program *p, uint32_t id) {
    size_t i, kept = 0;
    for (i = 0; i < p->n_aliases; i++) {
        spv_alias alias = p->aliases[i];
        int32_t *reg = &p->values[alias.id].regs[alias.part], own;
        if (alias.id != id) {
            p->aliases[kept++] = alias;
            continue;
        }
        own = spv_new_reg(p, false);
        spv_emit(p, SPV_MOVE, own, *reg, 0, 0);
        *reg = own;
    }
    p->n_aliases = kept;
}

static void spv_bitcast(spv_program *p, const uint32_t *w) {
    bool from_half = spv_is_half(p, p->values[w[3]].type), to_half = spv_is_half(p, w[1]);
    spv_value from = p->values[w[3]], *v;
    int i;
    if (from_half == to_half) {
        spv_rename(p, w[2], w[1], w[3], 0, from.n);
        return;
    }
    v = spv_new_value(p, w[2], w[1], p->types[w[1]].comps);
    if (to_half ? v->n != 2 * from.n : from.n != 2 * v->n) spv_fail(p, "a cast of %d parts to %d", from.n, v->n);
    if (p->error[0]) return;
    for (i = 0; i < v->n; i++) {
        v->regs[i] = spv_new_reg(p, false);
        if (to_half) spv_emit(p, i & 1 ? SPV_UNPACK_HIGH : SPV_UNPACK_LOW, v->regs[i], from.regs[i / 2], 0, 0);
        else spv_emit(p, SPV_PACK, v->regs[i], from.regs[2 * i], from.regs[2 * i + 1], 0);
    }
}

static void spv_ext(spv_program *p, const uint32_t *w, uint32_t n) {
    spv_value from, *v;
    uint32_t i;
    if (w[3] != p->ext) spv_fail(p, "an unknown set of instructions");
    if (p->error[0]) return;
    if (w[4] == 58 || w[4] == 62) { /* PackHalf2x16, UnpackHalf2x16 */
        from = p->values[w[5]];
        v = spv_new_value(p, w[2], w[1], w[4] == 58 ? 1 : 2);
        for (i = 0; i < (uint32_t)v->n; i++) {
            v->regs[i] = spv_new_reg(p, false);
            if (w[4] == 58) spv_emit(p, SPV_PACK, v->regs[i], from.regs[0], from.regs[1], 0);
            else spv_emit(p, i ? SPV_UNPACK_HIGH : SPV_UNPACK_LOW, v->regs[i], from.regs[0], 0, 0);
        }
        return;
    }
    spv_parts(p, SPV_EXT + (int)w[4], w[2], w[1], w + 5, n - 5);
}

static void spv_dot(spv_program *p, const uint32_t *w) {
    spv_value a = p->values[w[3]], b = p->values[w[4]], *v = spv_new_value(p, w[2], w[1], 1);
    int32_t sum = SPV_NO, one, next;
    int i;
    for (i = 0; i < a.n; i++) {
        one = spv_new_reg(p, false);
        spv_emit(p, 133, one, a.regs[i], b.regs[i], 0);
        if (sum >= 0) {
            next = spv_new_reg(p, false);
            spv_emit(p, 129, next, sum, one, 0);
            sum = next;
        } else sum = one;
    }
    if (spv_is_half(p, w[1])) spv_fail(p, "a dot product of halves");
    v->regs[0] = sum;
}

static void spv_matrix_memory(spv_program *p, const uint32_t *w, bool load) {
    const spv_value *pointer = &p->values[load ? w[3] : w[1]], *layout = &p->values[load ? w[4] : w[3]], *stride = &p->values[load ? w[5] : w[4]];
    const spv_type *t = &p->types[load ? w[1] : p->values[w[2]].type];
    spv_value from = *pointer, step = *stride;
    spv_ins *x;
    uint32_t first, comps = (uint32_t)p->types[from.type].comps;
    int i, n = t->comps, width = p->types[comps > 1 ? p->types[from.type].of : from.type].width;
    bool buffer = load && from.storage != SPV_WORKGROUP && spv_laid_out(from.storage) && from.offset == 0 && p->types[t->of].width == 16;
    if (!(from.storage == SPV_WORKGROUP || buffer) || !layout->constant) spv_fail(p, "a matrix that is neither in shared memory nor halves of a buffer");
    if (width != p->types[t->of].width && !(load && width == 32)) spv_fail(p, "a matrix that is stored as other numbers");
    if (p->error[0]) return;
    if (load) {
        spv_value *v = spv_new_value(p, w[2], w[1], n);
        first = spv_new_regs(p, n);
        for (i = 0; i < n; i++) v->regs[i] = (int32_t)first + i;
    } else first = (uint32_t)p->values[w[2]].regs[0];
    x = spv_emit(p, load ? SPV_MATRIX_LOAD : SPV_MATRIX_STORE, SPV_NO, from.dynamic < 0 ? spv_const(p, 0) : from.dynamic, step.regs[0], 0);
    x->imm = first;
    x->imm2 = buffer ? from.base : from.base + from.offset;
    x->c = (int32_t)(t->rows << 20 | t->cols << 8 | comps << 1 | (layout->number & 1));
    x->kind = (uint8_t)(width / p->types[t->of].width | (buffer ? 4 : 0)); /* 2: halves in words */
}

static void spv_matrix_multiply(spv_program *p, const uint32_t *w) {
    spv_value in[3], *v;
    const spv_type *a = &p->types[p->values[w[3]].type], *t = &p->types[w[1]];
    uint32_t first;
    spv_ins *x;
    int i;
    for (i = 0; i < 3; i++) in[i] = p->values[w[3 + i]];
    v = spv_new_value(p, w[2], w[1], t->comps);
    first = spv_new_regs(p, v->n);
    for (i = 0; i < v->n; i++) v->regs[i] = (int32_t)first + i;
    x = spv_emit(p, SPV_MATRIX_MULTIPLY, SPV_NO, in[0].regs[0], in[1].regs[0], in[2].regs[0]);
    x->imm = first;
    x->imm2 = t->rows << 20 | t->cols << 10 | a->cols;
    if (p->types[t->of].width != 32) spv_fail(p, "sums of halves");
}

static void spv_function(spv_program *p, uint32_t id, const spv_value *args, uint32_t n_args, spv_value *result);

static void spv_call(spv_program *p, const uint32_t *w, uint32_t n) {
    spv_value args[32], result, *v;
    uint32_t i, first;
    int comps = p->types[w[1]].comps, j;
    for (i = 4; i < n && i < 36; i++) args[i - 4] = p->values[w[i]];
    spv_keep(p, 0, UINT32_MAX);
    memset(&result, 0, sizeof(result));
    first = spv_new_regs(p, comps);
    result.n = comps;
    result.base = first;
    spv_function(p, w[3], args, n - 4, &result);
    v = spv_new_value(p, w[2], w[1], comps);
    for (j = 0; j < comps; j++) v->regs[j] = (int32_t)first + j;
}

/* An instruction that is no branch. */
static void spv_instruction(spv_program *p, const uint32_t *w, uint32_t n) {
    uint32_t op = w[0] & 0xFFFF, i;
    spv_value from, *v;
    switch (op) {
    case 0: case 8: case 317: case 246: case 247: case 225: return; /* OpMemoryBarrier: all is in order here */
    case 12: spv_ext(p, w, n); return;
    case 57: spv_call(p, w, n); return;
    case 59:
        spv_variable(p, w, n);
        return;
    case 61: spv_load(p, w); return;
    case 62: spv_store(p, w); return;
    case 65: case 66: spv_chain(p, w, n); return;
    case 79:
        from = p->values[w[3]];
        for (i = 3; i < 5; i++) spv_own(p, w[i]);
        v = spv_new_value(p, w[2], w[1], p->types[w[1]].comps);
        for (i = 5; i < n; i++) v->regs[i - 5] = (int)w[i] < from.n ? p->values[w[3]].regs[w[i]] : p->values[w[4]].regs[(int)w[i] - from.n];
        return;
    case 80:
        for (i = 3; i < n; i++) spv_own(p, w[i]);
        if (p->types[w[1]].op == 4456) spv_matrix_fill(p, w[2], w[1], p->values[w[3]].regs[0]);
        else spv_composite(p, w[2], w[1], w + 3, n - 3);
        return;
    case 81: {
        uint32_t type = p->values[w[3]].type, part;
        int first = 0;
        for (i = 4; i < n; i++) {
            const spv_type *t = &p->types[type];
            for (part = 0; part < w[i]; part++) first += p->types[t->op == 30 ? t->members[part] : t->of].comps;
            type = t->op == 30 ? t->members[w[i]] : t->of;
        }
        spv_rename(p, w[2], w[1], w[3], first, p->types[w[1]].comps);
        return;
    }
    case 83: spv_rename(p, w[2], w[1], w[3], 0, p->values[w[3]].n); return;
    case 115: /* OpFConvert */
        if (spv_is_half(p, w[1])) spv_parts(p, SPV_ROUND, w[2], w[1], w + 3, 1);
        else spv_rename(p, w[2], w[1], w[3], 0, p->values[w[3]].n);
        return;
    case 110: case 111: case 112: case 109:
        spv_parts(p, (int)op, w[2], w[1], w + 3, 1);
        if (op > 110 && spv_is_half(p, w[1])) {
            v = &p->values[w[2]];
            for (i = 0; (int)i < v->n; i++) {
                int32_t own = spv_new_reg(p, false);
                spv_emit(p, SPV_ROUND, own, v->regs[i], 0, 0);
                v->regs[i] = own;
            }
        }
        return;
    case 124: spv_bitcast(p, w); return;
    case 234: spv_add_shared(p, w); return;
    case 142: spv_parts(p, 133, w[2], w[1], w + 3, 2); return;
    case 148: spv_dot(p, w); return;
    case 224:
        if (p->values[w[1]].number == 2) spv_emit(p, SPV_BARRIER, SPV_NO, 0, 0, 0)->imm = p->values[w[3]].number;
        else {
            spv_ins *x = spv_emit(p, SPV_GROUP, SPV_NO, 0, 0, 0);
            x->imm = 224;
            x->imm2 = p->values[w[3]].number;
        }
        return;
    case 349: case 350: case 353: case 354: case 355: case 356: case 357: case 358: {
        spv_ins *x;
        v = spv_new_value(p, w[2], w[1], 1);
        v->regs[0] = spv_new_reg(p, false);
        x = spv_emit(p, SPV_GROUP, v->regs[0], p->values[w[5]].regs[0], 0, 0);
        x->imm = op;
        x->imm2 = w[4];
        if (w[4] > 2 || spv_is_half(p, w[1])) spv_fail(p, "group operation %u", (unsigned)w[4]);
        return;
    }
    case 4450:
        if (p->types[p->values[w[3]].type].op != 21) spv_fail(p, "a dot product of vectors");
        spv_parts(p, SPV_DOT_BYTES, w[2], w[1], w + 3, 2);
        return;
    case 4457: spv_matrix_memory(p, w, true); return;
    case 4458: spv_matrix_memory(p, w, false); return;
    case 4459: spv_matrix_multiply(p, w); return;
    default: break;
    }
    {
        spv_reg none;
        memset(&none, 0, sizeof(none));
        if (n < 4 || !spv_alu((int)op, &none, &none, &none, &none, 1)) spv_fail(p, "the opcode %u is not known", (unsigned)op);
        else spv_parts(p, (int)op, w[2], w[1], w + 3, n - 3);
    }
}

/* ---- Control flow. ---- */

/* Targets of a block's end that constants leave. */
static int spv_targets(const spv_program *p, const uint32_t *w, uint32_t targets[2]) {
    uint32_t op = w[0] & 0xFFFF;
    if (op == 249) {
        targets[0] = w[1];
        return 1;
    }
    if (op != 250) return 0;
    if (p->values[w[1]].constant) {
        targets[0] = p->values[w[1]].number ? w[2] : w[3];
        return 1;
    }
    targets[0] = w[2];
    targets[1] = w[3];
    return 2;
}

static bool spv_is_end(uint32_t op) { return op >= 249 && op <= 255; }

/* Marks the blocks of a function that can be reached. */
static void spv_reach(spv_program *p, uint32_t label, uint8_t *reached) {
    uint32_t *stack = (uint32_t *)malloc(sizeof(uint32_t) * (p->bound + 1)), n = 0;
    stack[n++] = label;
    reached[label] = 1;
    while (n > 0) {
        const uint32_t *w = p->words + p->position[stack[--n]];
        uint32_t targets[2];
        int k, i;
        while (!spv_is_end(w[0] & 0xFFFF)) w += w[0] >> 16;
        k = spv_targets(p, w, targets);
        for (i = 0; i < k; i++)
            if (!reached[targets[i]]) {
                reached[targets[i]] = 1;
                stack[n++] = targets[i];
            }
    }
    free(stack);
}

/* What the phis of a block get from this one. */
static void spv_phis(spv_program *p, uint32_t from, uint32_t to) {
    const uint32_t *w = p->words + p->position[to];
    for (w += w[0] >> 16; (w[0] & 0xFFFF) == 245; w += w[0] >> 16) {
        uint32_t i, n = w[0] >> 16;
        int j;
        if (!p->values[w[2]].regs || p->values[w[2]].type == 0) {
            spv_value *v = spv_new_value(p, w[2], w[1], p->types[w[1]].comps);
            uint32_t first = spv_new_regs(p, v->n);
            for (j = 0; j < v->n; j++) v->regs[j] = (int32_t)first + j;
        }
        for (i = 3; i + 1 < n; i += 2)
            if (w[i + 1] == from)
                for (j = 0; j < p->values[w[2]].n; j++) spv_emit(p, SPV_MOVE, p->values[w[2]].regs[j], p->values[w[i]].regs[j], 0, 0);
    }
}

typedef struct spv_patches {
    spv_patch *list;
    size_t n, capacity;
} spv_patches;

static void spv_go(spv_patches *patches, uint32_t ins, uint32_t which, uint32_t label) {
    patches->list = (spv_patch *)spv_grow(patches->list, &patches->capacity, patches->n + 1, sizeof(spv_patch));
    patches->list[patches->n].ins = ins;
    patches->list[patches->n].which = which;
    patches->list[patches->n++].label = label;
}

/* The end of a block. Label 0: behind the function. */
static void spv_end(spv_program *p, const uint32_t *w, uint32_t block, spv_patches *patches, const spv_value *result) {
    uint32_t op = w[0] & 0xFFFF, targets[2] = {0, 0};
    int n = spv_targets(p, w, targets), i;
    for (i = 0; i < n; i++) spv_phis(p, block, targets[i]);
    if (n == 2) {
        spv_go(patches, (uint32_t)p->n_code, 0, targets[0]);
        spv_go(patches, (uint32_t)p->n_code, 1, targets[1]);
        spv_emit(p, SPV_BRANCH, SPV_NO, p->values[w[1]].regs[0], 0, 0);
    } else if (n == 1 || (result && (op == 253 || op == 254))) {
        if (op == 254)
            for (i = 0; i < result->n; i++) spv_emit(p, SPV_MOVE, (int32_t)result->base + i, p->values[w[1]].regs[i], 0, 0);
        spv_go(patches, (uint32_t)p->n_code, 0, n ? targets[0] : 0);
        spv_emit(p, SPV_JUMP, SPV_NO, 0, 0, 0);
    } else if (op == 253 || op == 255) spv_emit(p, SPV_END, SPV_NO, 0, 0, 0);
    else spv_fail(p, "the branch %u is not known", (unsigned)op);
}

/* Emits a function in its place. */
static void spv_function(spv_program *p, uint32_t id, const spv_value *args, uint32_t n_args, spv_value *result) {
    const uint32_t *w = p->words + p->position[id], *end = p->words + p->n_words;
    uint8_t *reached = (uint8_t *)calloc(p->bound, 1);
    spv_patches patches = {NULL, 0, 0};
    uint32_t block = 0, arg = 0;
    bool live = false;
    size_t i;
    if (p->depth++ > 30) spv_fail(p, "functions call themselves");
    for (w += w[0] >> 16; w < end && (w[0] & 0xFFFF) != 56 && !p->error[0]; w += w[0] >> 16) {
        uint32_t op = w[0] & 0xFFFF;
        if (op == 55) {
            if (arg < n_args) p->values[w[2]] = args[arg++];
        } else if (op == 248) {
            if (!block) spv_reach(p, w[1], reached);
            block = w[1];
            live = reached[block];
            spv_start_block(p);
            p->label_at[block] = (uint32_t)p->n_code;
        } else if (!live) {
            continue;
        } else if (op == 245) { /* written where the block comes from */
            if (!p->values[w[2]].regs) spv_fail(p, "a phi of a loop");
        } else if (spv_is_end(op)) {
            spv_end(p, w, block, &patches, result);
            live = false;
        } else spv_instruction(p, w, w[0] >> 16);
    }
    spv_start_block(p);
    for (i = 0; i < patches.n; i++) {
        uint32_t at = patches.list[i].label ? p->label_at[patches.list[i].label] : (uint32_t)p->n_code;
        if (patches.list[i].which) p->code[patches.list[i].ins].imm2 = at;
        else p->code[patches.list[i].ins].imm = at;
    }
    p->depth--;
    free(patches.list);
    free(reached);
}

/* ---- The module. ---- */

/* First of all: decorations, where functions and blocks begin, what is used outside its block. */
static void spv_scan(spv_program *p) {
    uint32_t block = 0, *home = (uint32_t *)calloc(p->bound + 1, sizeof(uint32_t));
    size_t at, i;
    for (at = 5; at < p->n_words && p->words[at] >> 16; at += p->words[at] >> 16) {
        const uint32_t *w = p->words + at;
        uint32_t op = w[0] & 0xFFFF, n = w[0] >> 16;
        if (at + n > p->n_words) break;
        if (op == 11) p->ext = w[1];
        if (op == 15) p->entry = w[2];
        if (op == 16 && w[2] == 17) memcpy(p->local, w + 3, 12);
        if (op == 54) p->position[w[2]] = (uint32_t)at;
        if (op == 248) {
            p->position[w[1]] = (uint32_t)at;
            block = w[1];
        }
        if (op == 71) {
            static const uint8_t kinds[][2] = {{1, SPV_SPEC_ID}, {6, SPV_STRIDE}, {33, SPV_BINDING}, {11, SPV_BUILTIN}};
            for (i = 0; i < 4; i++)
                if (w[2] == kinds[i][0]) p->decoration[kinds[i][1]][w[1]] = w[3] + (w[2] != 6);
        }
        if (op == 72 && w[3] == 35) {
            uint32_t *offsets = (uint32_t *)(size_t)p->types[w[1]].offsets;
            if (!offsets) p->types[w[1]].offsets = offsets = (uint32_t *)spv_get(p, 128 * 4);
            if (w[2] < 128) offsets[w[2]] = w[4];
        }
        if (!block) continue;
        for (i = 1; i < n; i++)
            if (w[i] < p->bound) {
                if (i == 2 && n > 2 && op != 62 && !home[w[i]]) home[w[i]] = block;
                else if (home[w[i]] && home[w[i]] != block) p->cross[w[i]] = 1;
            }
    }
    free(home);
}

static uint32_t spv_spec_of(const spv_program *p, const uint32_t *w, uint32_t usual) {
    uint32_t id = p->decoration[SPV_SPEC_ID][w[2]], i;
    for (i = 0; id && i < p->n_spec; i++)
        if (p->spec[2 * i] == id - 1) return p->spec[2 * i + 1];
    return usual;
}

/* The size of a workgroup, where constants of the pipeline say it. */
static void spv_set_local(spv_program *p, const uint32_t *w) {
    int i, j;
    for (i = 0; i < 3; i++)
        for (j = 0; j < p->n_consts; j++)
            if (p->consts[j].reg == p->values[w[3 + i]].regs[0]) p->local[i] = p->consts[j].number;
}

static void spv_declare(spv_program *p) {
    size_t at;
    for (at = 5; at < p->n_words && p->words[at] >> 16; at += p->words[at] >> 16) {
        const uint32_t *w = p->words + at;
        uint32_t op = w[0] & 0xFFFF, n = w[0] >> 16;
        if (op == 54) return;
        if ((op >= 19 && op <= 33) || op == 4456) spv_set_type(p, w, n);
        else if (op == 41 || op == 42) spv_set_const(p, w[2], w[1], op == 41);
        else if (op == 48 || op == 49) spv_set_const(p, w[2], w[1], spv_spec_of(p, w, op == 48) != 0);
        else if (op == 43) spv_set_const(p, w[2], w[1], spv_is_half(p, w[1]) ? spv_bits(spv_half(w[3])) : w[3]); /* halves are floats here */
        else if (op == 50) spv_set_const(p, w[2], w[1], spv_spec_of(p, w, w[3]));
        else if (op == 52) spv_spec_op(p, w, n);
        else if ((op == 44 || op == 51) && p->types[w[1]].op == 4456) spv_matrix_fill(p, w[2], w[1], p->values[w[3]].regs[0]);
        else if (op == 44 || op == 51) {
            spv_composite(p, w[2], w[1], w + 3, n - 3);
            if (p->decoration[SPV_BUILTIN][w[2]] == 25 + 1) spv_set_local(p, w);
        }
        else if (op == 46) {
            spv_value *v = spv_new_value(p, w[2], w[1], p->types[w[1]].comps);
            int i;
            for (i = 0; i < v->n; i++) v->regs[i] = spv_const(p, 0);
        } else if (op == 59) {
            spv_variable(p, w, n);
        }
    }
}

/* ---- What is emitted becomes small: nothing unused, registers shared. ---- */

static bool spv_has_effect(int op) {
    return !(op < SPV_ADDRESS || op == SPV_LOAD_VAR || op == SPV_LOAD_PUSH);
}

static void spv_regs_of(const spv_ins *x, int32_t regs[3]) {
    bool shape = x->op == SPV_MATRIX_LOAD || x->op == SPV_MATRIX_STORE;
    regs[0] = x->a;
    regs[1] = x->b;
    regs[2] = shape || x->op == SPV_MATRIX_MULTIPLY ? 0 : x->c;
    if (x->op == SPV_MATRIX_MULTIPLY || x->op == SPV_JUMP || x->op == SPV_END || x->op == SPV_BARRIER) regs[0] = regs[1] = 0;
}

static void spv_drop_unused(spv_program *p, uint32_t *uses) {
    int32_t regs[3];
    size_t i;
    int j;
    for (i = 0; i < p->n_code; i++) {
        spv_regs_of(&p->code[i], regs);
        for (j = 0; j < 3; j++) {
            uses[regs[j]]++;
            if (!p->persist[regs[j]] && p->def_block[regs[j]] != p->code[i].imm3) p->persist[regs[j]] = 2;
        }
    }
    for (i = p->n_code; i-- > 0;) {
        spv_ins *x = &p->code[i];
        if (x->dst < 0 || p->persist[x->dst] == 1 || uses[x->dst] || spv_has_effect(x->op)) continue;
        spv_regs_of(x, regs);
        for (j = 0; j < 3; j++) uses[regs[j]]--;
        x->op = SPV_NOTHING;
        x->dst = SPV_NO;
        x->a = x->b = x->c = 0;
    }
}

/* Numbers that live within a block share registers; the others have theirs. */
static void spv_share(spv_program *p) {
    int32_t *to = (int32_t *)malloc(sizeof(int32_t) * p->n_virtual), *spare = (int32_t *)malloc(sizeof(int32_t) * p->n_virtual), regs[3];
    uint32_t *last = (uint32_t *)calloc(p->n_virtual, sizeof(uint32_t));
    size_t i, n_spare = 0;
    int j;
    p->n_regs = 0;
    for (i = 0; i < p->n_virtual; i++) to[i] = p->persist[i] ? p->n_regs++ : SPV_NO;
    for (i = 0; i < p->n_code; i++) {
        spv_regs_of(&p->code[i], regs);
        for (j = 0; j < 3; j++) last[regs[j]] = (uint32_t)i;
    }
    for (i = 0; i < p->n_code; i++) {
        spv_ins *x = &p->code[i];
        bool matrix = x->op == SPV_MATRIX_LOAD || x->op == SPV_MATRIX_STORE;
        int32_t dst = x->dst;
        spv_regs_of(x, regs);
        if (dst >= 0 && to[dst] < 0) to[dst] = n_spare ? spare[--n_spare] : p->n_regs++;
        if (dst >= 0) {
            x->masked = p->persist[dst] != 0;
            x->dst = to[dst];
        }
        x->a = to[x->a];
        x->b = to[x->b];
        if (!matrix) x->c = to[x->c];
        if (x->op >= SPV_MATRIX_FILL && x->op <= SPV_MATRIX_MULTIPLY) x->imm = (uint32_t)to[x->imm];
        if (x->op == SPV_MATRIX_GET || x->op == SPV_MATRIX_PUT) x->imm2 = (uint32_t)to[x->imm2];
        if (x->op == SPV_LOAD_VAR || x->op == SPV_STORE_VAR) x->imm = (uint32_t)to[x->imm];
        for (j = 0; j < 3; j++)
            if (!p->persist[regs[j]] && last[regs[j]] == i) {
                last[regs[j]] = UINT32_MAX;
                spare[n_spare++] = to[regs[j]];
            }
        if (dst >= 0 && !p->persist[dst] && last[dst] <= i) spare[n_spare++] = to[dst];
    }
    for (j = 0; j < p->n_consts; j++) p->consts[j].reg = to[p->consts[j].reg];
    for (i = 0; i < 24; i++)
        if (p->builtins[i / 3][i % 3] >= 0) p->builtins[i / 3][i % 3] = to[p->builtins[i / 3][i % 3]];
    free(to);
    free(spare);
    free(last);
}

static void spv_pack_code(spv_program *p) {
    uint32_t *to = (uint32_t *)malloc(sizeof(uint32_t) * (p->n_code + 1)), n = 0;
    size_t i;
    for (i = 0; i < p->n_code; i++) {
        to[i] = n;
        if (p->code[i].op == SPV_NOTHING) continue;
        p->code[n++] = p->code[i];
    }
    to[p->n_code] = n;
    p->n_code = n;
    for (i = 0; i < n; i++) {
        if (p->code[i].op == SPV_JUMP || p->code[i].op == SPV_BRANCH) p->code[i].imm = to[p->code[i].imm];
        if (p->code[i].op == SPV_BRANCH) p->code[i].imm2 = to[p->code[i].imm2];
    }
    free(to);
}

static void spv_free(spv_program *p) {
    free(p->code);
    free(p->consts);
    free(p);
}

/* Flattens a module whose constants are `spec`: ids and numbers in turn. `error` says what it cannot do. */
static spv_program *spv_make(const uint32_t *words, size_t n_words, const uint32_t *spec, uint32_t n_spec) {
    spv_program *p = (spv_program *)calloc(1, sizeof(*p));
    uint32_t *uses;
    int i;
    if (!p) abort();
    for (i = 0; i < 24; i++) p->builtins[i / 3][i % 3] = SPV_NO;
    p->words = words;
    p->n_words = n_words;
    p->spec = spec;
    p->n_spec = n_spec;
    if (n_words < 6 || words[0] != 0x07230203u || words[3] > 1u << 20) {
        spv_fail(p, "this is no SPIR-V");
        return p;
    }
    p->bound = words[3];
    p->values = (spv_value *)spv_get(p, sizeof(spv_value) * p->bound);
    p->types = (spv_type *)spv_get(p, sizeof(spv_type) * p->bound);
    p->position = (uint32_t *)spv_get(p, sizeof(uint32_t) * p->bound);
    p->label_at = (uint32_t *)spv_get(p, sizeof(uint32_t) * p->bound);
    p->cross = (uint32_t *)spv_get(p, sizeof(uint32_t) * p->bound);
    for (i = 0; i < 8; i++) p->decoration[i] = (uint32_t *)spv_get(p, sizeof(uint32_t) * p->bound);
    spv_const(p, 0); /* register 0, which operands that are none name */
    spv_scan(p);
    spv_declare(p);
    if (!p->error[0]) spv_function(p, p->entry, NULL, 0, NULL);
    spv_emit(p, SPV_END, SPV_NO, 0, 0, 0);
    if (!p->error[0]) {
        uses = (uint32_t *)calloc(p->n_virtual, sizeof(uint32_t));
        spv_drop_unused(p, uses);
        free(uses);
        spv_share(p);
        spv_pack_code(p);
    }
    while (p->arena) {
        spv_block *next = p->arena->next;
        free(p->arena);
        p->arena = next;
    }
    free(p->persist);
    free(p->def_block);
    free(p->aliases);
    return p;
}

/* ---- Memory and what may touch it when. ---- */

enum { SPV_COMPUTE, SPV_TRANSFER, SPV_HOST };

/* What commands did to a word: number << 3 | source of the last that wrote it and of the last that read it, and which invocation:
   its number in the dispatch, 7 bits of how many barriers that order buffers its workgroup had met, and a bit that says that
   others of the workgroup did the same before the next (SPV_SEVERAL: others of other workgroups). */
typedef struct spv_word {
    uint32_t written, writer, read, reader;
} spv_word;

enum { SPV_NUMBER = 0xFFFFFF, SPV_EPOCHS = 127 };
#define SPV_SEVERAL UINT32_MAX
#define SPV_GROUP_MATES 0x80000000u

/* A source of work: a stage of a queue, of which there may be three. */
enum { SPV_SOURCES = 6, SPV_SOURCE_BITS = 3, SPV_SOURCE = 7 };

/* Of a queue: commands until which barriers, and waits for others, made all that one source did come before (ran), and all that it wrote be
   seen (reads) or overwritten by (writes), what a stage of this one does now. */
typedef struct spv_order {
    uint32_t group_size, now, first; /* first: source of the queue's first stage */
    uint32_t flushed[SPV_SOURCES], ran[SPV_SOURCES][3], reads[SPV_SOURCES][3], writes[SPV_SOURCES][3];
} spv_order;

typedef struct spv_buffer {
    uint8_t *data;
    uint64_t bytes;
    spv_word *words; /* of the data; NULL: the host writes it too, and nothing is known */
    uint32_t *wrote; /* the last command that wrote */
} spv_buffer;

typedef struct spv_exec {
    const spv_program *program;
    int lanes, group_size, n_subgroups;
    uint32_t groups[3], group[3], invocation0; /* of the workgroup */
    spv_buffer buffers[SPV_BINDINGS];
    const uint8_t *push;
    uint32_t push_bytes;
    spv_order *order;
    uint32_t *shared;
    spv_word *shared_words;
    uint32_t epoch, epoch0; /* barriers so far; at the workgroup's start */
    uint32_t met;           /* of them barriers that order buffers, of the workgroup, 7 bits */
    bool broken;            /* it cannot go on */
    unsigned seed;
    uint64_t steps, most_steps;
    void (*report)(void *user, const char *what);
    void *user;
    const char *name;
} spv_exec;

static void spv_report(spv_exec *e, const char *format, ...) {
    char text[400];
    size_t n;
    va_list args;
    n = (size_t)snprintf(text, sizeof(text), "%s (workgroup %u, %u): ", e->name, (unsigned)e->group[0], (unsigned)e->group[1]);
    va_start(args, format);
    vsnprintf(text + n, sizeof(text) - n, format, args);
    va_end(args);
    e->report(e->user, text);
}

/* Whether nothing orders two invocations of a dispatch. */
static bool spv_apart(const spv_order *order, uint32_t before, uint32_t me) {
    uint32_t a = before & SPV_NUMBER, b = me & SPV_NUMBER;
    if (before == SPV_SEVERAL) return true;
    if (a == b && !(before & SPV_GROUP_MATES)) return false;
    return a / order->group_size != b / order->group_size || (before >> 24 & SPV_EPOCHS) == (me >> 24 & SPV_EPOCHS);
}

/* Marks a read by command `now` of a stage; what is wrong with it, or NULL. */
static const char *spv_order_read(const spv_order *order, spv_word *word, int stage, uint32_t me) {
    uint32_t t = word->written >> SPV_SOURCE_BITS;
    const char *wrong = NULL;
    if (word->written && t == order->now) {
        if (spv_apart(order, word->writer, me)) wrong = "reads what another invocation of the same dispatch writes";
    } else if (t > order->reads[word->written & SPV_SOURCE][stage]) wrong = "reads what an earlier command wrote, and no barrier lies between";
    if (word->read >> SPV_SOURCE_BITS == order->now && spv_apart(order, word->reader, me)) {
        bool mates = word->reader != SPV_SEVERAL && (word->reader & SPV_NUMBER) / order->group_size == (me & SPV_NUMBER) / order->group_size;
        word->reader = mates ? word->reader | SPV_GROUP_MATES : SPV_SEVERAL;
    } else {
        word->read = order->now << SPV_SOURCE_BITS | (order->first + (uint32_t)stage);
        word->reader = me;
    }
    return wrong;
}

static const char *spv_order_write(const spv_order *order, spv_word *word, int stage, uint32_t me) {
    uint32_t t = word->written >> SPV_SOURCE_BITS, r = word->read >> SPV_SOURCE_BITS;
    const char *wrong = NULL;
    if (word->written && t == order->now) {
        if (spv_apart(order, word->writer, me)) wrong = "writes what another invocation of the same dispatch writes";
    } else if (t > order->writes[word->written & SPV_SOURCE][stage]) wrong = "overwrites what an earlier command wrote, and no barrier lies between";
    if (word->read && r == order->now) {
        if (spv_apart(order, word->reader, me)) wrong = "writes what another invocation of the same dispatch reads";
    } else if (r > order->ran[word->read & SPV_SOURCE][stage]) wrong = "overwrites what an earlier command read, and no barrier lies between";
    word->written = order->now << SPV_SOURCE_BITS | (order->first + (uint32_t)stage);
    word->writer = me;
    return wrong;
}

/* ---- Execution. ---- */

typedef struct spv_sub {
    spv_reg *regs;
    uint32_t at[SPV_LANES], mask[SPV_LANES], index[SPV_LANES]; /* where lanes that wait go on; who runs; gl_LocalInvocationIndex */
    uint32_t pc, parked;                                       /* the least that one waits at */
    bool full, ended, waits;                                   /* waits: at the barrier before pc */
    int number;
} spv_sub;

enum { SPV_GONE = 0x7FFFFFFF };

/* Lets the lanes run that are first in the order of the code. */
static void spv_resume(spv_sub *s, int n) {
    uint32_t least = SPV_GONE, next = SPV_GONE;
    bool full = true;
    int i;
    for (i = 0; i < n; i++) least = s->at[i] < least ? s->at[i] : least;
    for (i = 0; i < n; i++) {
        s->mask[i] = s->at[i] == least ? UINT32_MAX : 0;
        full = full && s->mask[i];
        if (!s->mask[i] && s->at[i] < next) next = s->at[i];
    }
    s->pc = least;
    s->parked = next;
    s->full = full;
    s->ended = least == SPV_GONE;
}

static void spv_jump(spv_sub *s, int n, uint32_t to) {
    int i;
    if (to < s->parked) {
        s->pc = to;
        return;
    }
    for (i = 0; i < n; i++)
        if (s->mask[i]) s->at[i] = to;
    spv_resume(s, n);
}

static void spv_branch(spv_sub *s, int n, const spv_ins *x) {
    const spv_reg *a = &s->regs[x->a];
    uint32_t yes = 0, no = 0;
    int i;
    SPV_FREE SPV_EACH {
        uint32_t taken = (uint32_t)-(a->u[i] != 0);
        yes |= s->mask[i] & taken;
        no |= s->mask[i] & ~taken;
    }
    if (!yes || !no) {
        spv_jump(s, n, yes ? x->imm : x->imm2);
        return;
    }
    for (i = 0; i < n; i++)
        if (s->mask[i]) s->at[i] = a->u[i] ? x->imm : x->imm2;
    spv_resume(s, n);
}

/* Lanes that have not ended and are elsewhere. */
static bool spv_missing(const spv_sub *s) { return s->parked != SPV_GONE; }

/* Who used a word of shared memory: an invocation; SPV_MATRIX and a subgroup as a whole; SPV_ONE and a subgroup of which several did; SPV_MET
   and a subgroup, which has met since; SPV_ADDED: any, by atomic additions. */
enum { SPV_MATRIX = 4096, SPV_ONE = 8192, SPV_MET = 16384, SPV_ADDED = 32768 };

static uint32_t spv_subgroup_of(const spv_exec *e, uint32_t user) {
    return user == SPV_SEVERAL || user == SPV_ADDED ? SPV_SEVERAL : user < SPV_MATRIX ? user / (uint32_t)e->lanes : user % SPV_MATRIX;
}

/* A barrier of a subgroup: what its lanes did with shared memory comes before what they do now, as far as they alone go. */
static void spv_meet(spv_exec *e, int subgroup) {
    uint32_t i, is = (uint32_t)subgroup;
    for (i = 0; i < e->program->shared_words; i++) {
        spv_word *word = &e->shared_words[i];
        if (word->written == e->epoch && spv_subgroup_of(e, word->writer) == is) word->writer = SPV_MET + is;
        if (word->read == e->epoch && spv_subgroup_of(e, word->reader) == is) word->reader = SPV_MET + is;
    }
}

static void spv_group(spv_exec *e, spv_sub *s, const spv_ins *x, spv_reg *d) {
    const spv_reg *a = &s->regs[x->a];
    uint32_t sum = 0, one = 0;
    bool first = true;
    spv_reg in, out, two;
    int i;
    if (spv_missing(s)) spv_report(e, "an operation of subgroup %d that some of its lanes miss", s->number);
    if (x->imm == 224) {
        if (x->imm2 & 0x100) spv_meet(e, s->number);
        return;
    }
    memset(&in, 0, sizeof(in));
    memset(&two, 0, sizeof(two));
    if (x->imm == 355) sum = spv_bits(INFINITY);
    if (x->imm == 358) sum = spv_bits(-INFINITY);
    if (x->imm == 353) sum = INT32_MAX;
    if (x->imm == 354) sum = UINT32_MAX;
    if (x->imm == 356) sum = 0x80000000u;
    for (i = 0; i < e->lanes; i++) {
        static const uint16_t ops[] = {128, 129, 132, 133, SPV_EXT + 39, SPV_EXT + 38, SPV_EXT + 37, SPV_EXT + 42, SPV_EXT + 41, SPV_EXT + 40};
        if (!s->mask[i]) continue;
        one = a->u[i];
        if (x->imm2 == 2) d->u[i] = sum;
        in.u[0] = sum;
        two.u[0] = one;
        if (first) out.u[0] = one;
        else spv_alu(ops[x->imm - 349], &out, &in, &two, &two, 1);
        first = false;
        sum = out.u[0];
        if (x->imm2 == 1) d->u[i] = sum;
    }
    for (i = 0; i < e->lanes && x->imm2 == 0; i++) d->u[i] = sum;
}

static void spv_lost(spv_exec *e, const spv_sub *s, int lane, const char *what, uint64_t at, uint64_t limit) {
    spv_report(e, "invocation %u %s %llu of %llu", (unsigned)s->index[lane], what, (unsigned long long)at, (unsigned long long)limit);
}

static void spv_load_buffer(spv_exec *e, spv_sub *s, const spv_ins *x, spv_reg *d) {
    const spv_reg *a = &s->regs[x->a];
    spv_buffer *b = &e->buffers[x->imm2];
    uint32_t size = x->kind ? 2 : 4;
    int i;
    for (i = 0; i < e->lanes; i++) {
        uint64_t at = (uint64_t)x->imm + a->u[i];
        uint32_t number = 0xFFFFFFFFu;
        if (!s->mask[i]) continue;
        if (at + size > b->bytes) spv_lost(e, s, i, "reads a buffer at byte", at, b->bytes);
        else if (b->words) {
            spv_word *word = &b->words[at / 4];
            const char *wrong = spv_order_read(e->order, word, SPV_COMPUTE, (e->invocation0 + s->index[i]) | e->met << 24);
            if (wrong) spv_report(e, "invocation %u %s: binding %u, byte %llu", (unsigned)s->index[i], wrong, (unsigned)x->imm2, (unsigned long long)at);
            if (word->written) memcpy(&number, b->data + at, size);
        } else memcpy(&number, b->data + at, size);
        if (!x->kind) d->u[i] = number;
        else d->f[i] = spv_half(number & 0xFFFF);
    }
}

static void spv_store_buffer(spv_exec *e, spv_sub *s, const spv_ins *x) {
    const spv_reg *a = &s->regs[x->a], *v = &s->regs[x->b];
    spv_buffer *b = &e->buffers[x->imm2];
    uint32_t size = x->kind ? 2 : 4;
    int i;
    for (i = 0; i < e->lanes; i++) {
        uint64_t at = (uint64_t)x->imm + a->u[i];
        uint32_t number = v->u[i];
        if (!s->mask[i]) continue;
        if (at + size > b->bytes) {
            spv_lost(e, s, i, "writes a buffer at byte", at, b->bytes);
            continue;
        }
        if (b->words) {
            const char *wrong = spv_order_write(e->order, &b->words[at / 4], SPV_COMPUTE, (e->invocation0 + s->index[i]) | e->met << 24);
            if (wrong) spv_report(e, "invocation %u %s: binding %u, byte %llu", (unsigned)s->index[i], wrong, (unsigned)x->imm2, (unsigned long long)at);
        }
        if (x->kind) number = spv_half_bits(v->f[i]);
        memcpy(b->data + at, &number, size);
        *b->wrote = e->order->now << SPV_SOURCE_BITS | (e->order->first + SPV_COMPUTE);
    }
}

/* A word of shared memory; `me` is an invocation, or beyond those a subgroup as a whole. */
static uint32_t spv_shared(spv_exec *e, uint32_t me, uint64_t at, bool write, uint32_t number) {
    spv_word *word;
    uint32_t met;
    if (at >= e->program->shared_words) {
        spv_report(e, "invocation %u uses shared word %llu of %u", (unsigned)me, (unsigned long long)at, (unsigned)e->program->shared_words);
        return 0xFFFFFFFFu;
    }
    word = &e->shared_words[at];
    met = SPV_MET + spv_subgroup_of(e, me);
    if (word->written == e->epoch && word->writer != me && word->writer != met)
        spv_report(e, "invocations %u and %u %s shared word %llu with no barrier between", (unsigned)word->writer, (unsigned)me,
                   write ? "write" : "write and read", (unsigned long long)at);
    if (write) {
        if (word->read == e->epoch && word->reader != me && word->reader != met)
            spv_report(e, "invocations %d and %u read and write shared word %llu with no barrier between", (int)word->reader, (unsigned)me,
                       (unsigned long long)at);
        word->written = e->epoch;
        word->writer = me;
        e->shared[at] = number;
        return number;
    }
    if (word->read == e->epoch && word->reader != me && word->reader != met)
        word->reader = spv_subgroup_of(e, word->reader) == met % SPV_MATRIX ? SPV_ONE + met % SPV_MATRIX : SPV_SEVERAL;
    else {
        word->read = e->epoch;
        word->reader = me;
    }
    return word->written >= e->epoch0 ? e->shared[at] : 0xFFFFFFFFu;
}

/* What was there. Additions need no barrier between each other, but from and to what is no addition. */
static uint32_t spv_added(spv_exec *e, uint32_t me, uint64_t at, uint32_t number) {
    bool added = at < e->program->shared_words && e->shared_words[at].written == e->epoch && e->shared_words[at].writer == SPV_ADDED;
    uint32_t before = added ? e->shared[at] : spv_shared(e, me, at, false, 0);
    if (at >= e->program->shared_words) return before;
    if (!added) spv_shared(e, me, at, true, 0);
    e->shared_words[at].writer = SPV_ADDED;
    e->shared[at] = before + number;
    return before;
}

/* A half of a matrix in a buffer. Invocation 0 of the subgroup stands for all. */
static float spv_matrix_half(spv_exec *e, const spv_sub *s, uint32_t binding, uint64_t at) {
    const spv_buffer *b = &e->buffers[binding];
    uint32_t number = 0xFFFFFFFFu;
    if (at + 2 > b->bytes) spv_lost(e, s, 0, "reads a matrix in a buffer at byte", at, b->bytes);
    else if (!b->words || b->words[at / 4].written) memcpy(&number, b->data + at, 2);
    if (at + 2 <= b->bytes && b->words) {
        const char *wrong = spv_order_read(e->order, &b->words[at / 4], SPV_COMPUTE, (e->invocation0 + s->index[0]) | e->met << 24);
        if (wrong) spv_report(e, "subgroup %d %s: a matrix of binding %u, byte %llu", s->number, wrong, (unsigned)binding, (unsigned long long)at);
    }
    return spv_half(number & 0xFFFF);
}

static void spv_matrix_buffer_run(spv_exec *e, spv_sub *s, const spv_ins *x, uint32_t rows, uint32_t cols, uint32_t stride) {
    uint64_t base = s->regs[x->a].u[0];
    uint32_t r, c;
    if (base % 16 || stride % 8) spv_report(e, "a matrix at byte %llu, with %u halves from line to line, which are no multiples of 16 bytes", (unsigned long long)base, (unsigned)stride);
    for (r = 0; r < rows; r++)
        for (c = 0; c < cols; c++) {
            uint32_t j = r * cols + c;
            s->regs[x->imm + j / SPV_LANES].f[j % SPV_LANES] = spv_matrix_half(e, s, x->imm2, base + 2 * (uint64_t)(x->c & 1 ? c * stride + r : r * stride + c));
        }
}

static void spv_matrix_memory_run(spv_exec *e, spv_sub *s, const spv_ins *x, bool load) {
    uint32_t rows = (uint32_t)x->c >> 20, cols = (uint32_t)x->c >> 8 & 0xFFF, comps = (uint32_t)x->c >> 1 & 127, in_one = x->kind & 3, r, c;
    uint64_t base = (uint64_t)x->imm2 + s->regs[x->a].u[0], stride = (uint64_t)s->regs[x->b].u[0] * comps * in_one;
    int i;
    for (i = 1; i < e->lanes; i++)
        if (s->regs[x->a].u[i] != s->regs[x->a].u[0] || s->regs[x->b].u[i] != s->regs[x->b].u[0]) {
            spv_report(e, "lanes of subgroup %d have different places of a matrix", s->number);
            return;
        }
    if (x->kind & 4) {
        spv_matrix_buffer_run(e, s, x, rows, cols, (uint32_t)stride);
        return;
    }
    for (r = 0; r < rows; r++)
        for (c = 0; c < cols; c++) {
            uint32_t j = r * cols + c;
            uint64_t in = x->c & 1 ? c * stride + r : r * stride + c, at = base + in / in_one;
            uint32_t *one = &s->regs[x->imm + j / SPV_LANES].u[j % SPV_LANES];
            if (load) *one = spv_shared(e, SPV_MATRIX + (uint32_t)s->number, at, false, 0);
            if (load && in_one == 2) s->regs[x->imm + j / SPV_LANES].f[j % SPV_LANES] = spv_half(*one >> 16 * (in % 2) & 0xFFFF);
            else if (!load) spv_shared(e, SPV_MATRIX + (uint32_t)s->number, at, true, *one);
        }
}

static void spv_multiply(spv_sub *s, const spv_ins *x) {
    uint32_t m = x->imm2 >> 20, n = x->imm2 >> 10 & 1023, k = x->imm2 & 1023, i, j, l;
    const spv_reg *a = &s->regs[x->a], *b = &s->regs[x->b], *c = &s->regs[x->c];
    spv_reg *d = &s->regs[x->imm];
#define SPV_AT(reg, e) ((reg)[(e) / SPV_LANES].f[(e) % SPV_LANES])
    for (i = 0; i < m; i++)
        for (j = 0; j < n; j++) {
            float sum = SPV_AT(c, i * n + j);
            for (l = 0; l < k; l++) sum += SPV_AT(a, i * k + l) * SPV_AT(b, l * n + j);
            SPV_AT(d, i * n + j) = sum;
        }
#undef SPV_AT
}

static void spv_matrix_run(spv_exec *e, spv_sub *s, const spv_ins *x) {
    uint32_t from = s->regs[x->a].u[0], i;
    if (!s->full) {
        spv_report(e, "an operation on matrices that lanes of subgroup %d miss", s->number);
        e->broken = true;
        return;
    }
    switch (x->op) {
    case SPV_MATRIX_FILL:
        for (i = 0; i < x->imm2 * SPV_LANES; i++) s->regs[x->imm + i / SPV_LANES].u[i % SPV_LANES] = from;
        break;
    case SPV_MATRIX_GET: memcpy(&s->regs[x->imm], &s->regs[x->imm2 + from], sizeof(spv_reg) * x->kind); break;
    case SPV_MATRIX_PUT: memcpy(&s->regs[x->imm + from], &s->regs[x->imm2], sizeof(spv_reg) * x->kind); break;
    case SPV_MATRIX_MULTIPLY: spv_multiply(s, x); break;
    default: spv_matrix_memory_run(e, s, x, x->op == SPV_MATRIX_LOAD);
    }
}

static void spv_check_alu(spv_exec *e, const spv_sub *s, const spv_ins *x) {
    const spv_reg *b = &s->regs[x->b];
    uint32_t zero = 0, wide = 0;
    int i;
    for (i = 0; i < e->lanes; i++) {
        zero |= s->mask[i] & (uint32_t)-(b->u[i] == 0);
        wide |= s->mask[i] & (uint32_t)-(b->u[i] > 31);
    }
    if (x->op < 140 && zero) spv_report(e, "a division by zero");
    if (x->op > 140 && wide) spv_report(e, "a shift by 32 or more");
}

/* Whether all lanes have the same number. */
static bool spv_same(const spv_reg *a, int n) {
    uint32_t first = a->u[0], other = 0;
    int i;
    SPV_FREE SPV_EACH other |= a->u[i] ^ first;
    return other == 0;
}

/* One subgroup, up to a barrier or its end. */
static void spv_run(spv_exec *e, spv_sub *s) {
    const spv_ins *code = e->program->code;
    spv_reg *regs = s->regs, beside;
    uint32_t bad;
    int n = e->lanes, i;
    while (!s->ended && !e->broken) {
        const spv_ins *x = &code[s->pc++];
        const spv_reg *a = &regs[x->a];
        spv_reg *d = x->masked && !s->full ? &beside : &regs[x->dst < 0 ? 0 : x->dst];
        if (e->steps++ > e->most_steps) {
            spv_report(e, "it does not end");
            e->broken = true;
        }
        switch (x->op) {
        case SPV_JUMP: spv_jump(s, n, x->imm); continue;
        case SPV_BRANCH: spv_branch(s, n, x); continue;
        case SPV_END:
            for (i = 0; i < n; i++)
                if (s->mask[i]) s->at[i] = SPV_GONE;
            spv_resume(s, n);
            continue;
        case SPV_BARRIER:
            if (!s->full) {
                spv_report(e, "a barrier that lanes of subgroup %d do not reach", s->number);
                e->broken = true;
            }
            s->waits = true;
            return;
        case SPV_GROUP: spv_group(e, s, x, d); break;
        case SPV_ADDRESS:
            SPV_FREE SPV_EACH d->u[i] = regs[x->b].u[i] + a->u[i] * x->imm;
            if (!x->imm2) break;
            bad = 0;
            SPV_FREE SPV_EACH bad |= s->mask[i] & (uint32_t)-(a->u[i] >= x->imm2);
            for (i = 0; bad && i < n; i++)
                if (s->mask[i] && a->u[i] >= x->imm2) {
                    spv_lost(e, s, i, "uses an array at", a->u[i], x->imm2);
                    d->u[i] = 0;
                }
            break;
        case SPV_LOAD_VAR:
            if (spv_same(a, n)) memcpy(d, &regs[x->imm + a->u[0]], sizeof(uint32_t) * (size_t)n);
            else SPV_EACH d->u[i] = s->mask[i] ? regs[x->imm + a->u[i]].u[i] : 0;
            break;
        case SPV_STORE_VAR:
            if (s->full && spv_same(a, n)) memcpy(&regs[x->imm + a->u[0]], &regs[x->b], sizeof(uint32_t) * (size_t)n);
            else SPV_EACH if (s->mask[i]) regs[x->imm + a->u[i]].u[i] = regs[x->b].u[i];
            break;
        case SPV_LOAD_SHARED:
            SPV_EACH if (s->mask[i]) d->u[i] = spv_shared(e, s->index[i], (uint64_t)x->imm + a->u[i], false, 0);
            break;
        case SPV_STORE_SHARED:
            SPV_EACH if (s->mask[i]) spv_shared(e, s->index[i], (uint64_t)x->imm + a->u[i], true, regs[x->b].u[i]);
            break;
        case SPV_ADD_SHARED:
            SPV_EACH if (s->mask[i]) d->u[i] = spv_added(e, s->index[i], (uint64_t)x->imm + a->u[i], regs[x->b].u[i]);
            break;
        case SPV_LOAD_BUFFER: spv_load_buffer(e, s, x, d); break;
        case SPV_STORE_BUFFER: spv_store_buffer(e, s, x); break;
        case SPV_LOAD_PUSH:
            bad = 0;
            if (x->imm + 4 <= e->push_bytes) memcpy(&bad, e->push + x->imm, 4);
            SPV_EACH d->u[i] = bad;
            if (x->imm + 4 > e->push_bytes) spv_report(e, "push constants end before byte %u", (unsigned)x->imm);
            break;
        case SPV_MATRIX_FILL: case SPV_MATRIX_GET: case SPV_MATRIX_PUT: case SPV_MATRIX_LOAD: case SPV_MATRIX_STORE: case SPV_MATRIX_MULTIPLY:
            spv_matrix_run(e, s, x);
            break;
        default:
            if ((x->op >= 134 && x->op <= 139 && x->op != 136) || (x->op >= 194 && x->op <= 196)) spv_check_alu(e, s, x);
            spv_alu(x->op, d, a, &regs[x->b], &regs[x->c], n);
        }
        if (x->masked && !s->full) {
            spv_reg *to = &regs[x->dst];
            SPV_FREE SPV_EACH to->u[i] = s->mask[i] ? d->u[i] : to->u[i];
        }
    }
}

static void spv_start(spv_exec *e, spv_sub *s, int number) {
    const spv_program *p = e->program;
    int i, j;
    memset(s->at, 0, sizeof(s->at));
    s->number = number;
    s->waits = false;
    spv_resume(s, e->lanes);
    for (i = 0; i < e->lanes; i++) {
        uint32_t index = (uint32_t)(number * e->lanes + i), of[8][3] = {{0}};
        s->index[i] = index;
        of[SPV_LOCAL_ID][0] = index % p->local[0];
        of[SPV_LOCAL_ID][1] = index / p->local[0] % p->local[1];
        of[SPV_LOCAL_ID][2] = index / p->local[0] / p->local[1];
        of[SPV_LOCAL_INDEX][0] = index;
        of[SPV_SUBGROUP_ID][0] = (uint32_t)number;
        of[SPV_NUM_SUBGROUPS][0] = (uint32_t)e->n_subgroups;
        of[SPV_SUBGROUP_SIZE][0] = (uint32_t)e->lanes;
        for (j = 0; j < 3; j++) {
            of[SPV_WORKGROUP_ID][j] = e->group[j];
            of[SPV_NUM_GROUPS][j] = e->groups[j];
            of[SPV_GLOBAL_ID][j] = e->group[j] * p->local[j] + of[SPV_LOCAL_ID][j];
        }
        for (j = 0; j < 24; j++)
            if (p->builtins[j / 3][j % 3] >= 0) s->regs[p->builtins[j / 3][j % 3]].u[i] = of[j / 3][j % 3];
    }
}

/* All have come to the same barrier, or all have ended. */
static bool spv_together(spv_exec *e, const spv_sub *subs) {
    int i, ended = 0;
    for (i = 0; i < e->n_subgroups; i++) ended += subs[i].ended;
    if (ended == e->n_subgroups) return false;
    if (ended) spv_report(e, "a barrier that subgroups do not reach, as they have ended");
    for (i = 1; i < e->n_subgroups && !ended; i++)
        if (subs[i].pc != subs[0].pc) break;
    if (!ended && i < e->n_subgroups) spv_report(e, "subgroups are at different barriers");
    if (ended || i < e->n_subgroups) e->broken = true;
    return !e->broken;
}

static void spv_run_group(spv_exec *e, spv_sub *subs) {
    int i;
    e->epoch0 = ++e->epoch;
    e->met = 0;
    for (i = 0; i < e->n_subgroups; i++) spv_start(e, &subs[i], i);
    do {
        e->seed = e->seed * 1103515245u + 12345u;
        for (i = 0; i < e->n_subgroups && !e->broken; i++) {
            spv_sub *s = &subs[((unsigned)i + (e->seed >> 16)) % (unsigned)e->n_subgroups];
            s->waits = false;
            spv_run(e, s);
        }
        if (e->broken) return;
        /* a barrier orders what its semantics name */
        if (!subs[0].ended && e->program->code[subs[0].pc - 1].imm & 0x100) e->epoch++;
        if (!subs[0].ended && e->program->code[subs[0].pc - 1].imm & 0x40) e->met = (e->met + 1) & SPV_EPOCHS;
    } while (spv_together(e, subs));
}

/* A dispatch. What of `e` is not about the dispatch is filled here. */
static void spv_dispatch(spv_exec *e, const uint32_t groups[3]) {
    const spv_program *p = e->program;
    spv_sub *subs;
    uint64_t n = (uint64_t)groups[0] * groups[1] * groups[2], g;
    int i, j, k;
    e->group_size = (int)(p->local[0] * p->local[1] * p->local[2]);
    e->n_subgroups = (e->group_size + e->lanes - 1) / e->lanes;
    if (e->group_size % e->lanes || e->n_subgroups > SPV_MAX_SUBGROUPS) {
        spv_report(e, "workgroups of %d are no whole subgroups of %d", e->group_size, e->lanes);
        return;
    }
    subs = (spv_sub *)calloc((size_t)e->n_subgroups, sizeof(spv_sub));
    e->shared = (uint32_t *)calloc((size_t)p->shared_words + 1, sizeof(uint32_t));
    e->shared_words = (spv_word *)calloc((size_t)p->shared_words + 1, sizeof(spv_word));
    memcpy(e->groups, groups, sizeof(e->groups));
    for (i = 0; i < e->n_subgroups; i++) {
        subs[i].regs = (spv_reg *)malloc(sizeof(spv_reg) * (size_t)p->n_regs);
        memset(subs[i].regs, 0xFF, sizeof(spv_reg) * (size_t)p->n_regs);
        for (j = 0; j < p->n_consts; j++)
            for (k = 0; k < SPV_LANES; k++) subs[i].regs[p->consts[j].reg].u[k] = p->consts[j].number;
    }
    e->broken = false;
    e->order->group_size = (uint32_t)e->group_size;
    for (g = 0; g < n && !e->broken; g++) {
        e->group[0] = (uint32_t)(g % groups[0]);
        e->group[1] = (uint32_t)(g / groups[0] % groups[1]);
        e->group[2] = (uint32_t)(g / groups[0] / groups[1]);
        e->invocation0 = (uint32_t)g * (uint32_t)e->group_size;
        e->steps = 0;
        spv_run_group(e, subs);
    }
    for (i = 0; i < e->n_subgroups; i++) free(subs[i].regs);
    free(subs);
    free(e->shared);
    free(e->shared_words);
}

#if defined(__GNUC__) && !defined(__clang__) && !defined(__TINYC__)
#pragma GCC pop_options
#endif

#endif
