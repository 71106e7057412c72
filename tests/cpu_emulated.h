/* cpu_emulated.h: AMX and AVX-VNNI on x86 CPUs that have neither, so that their kernels run in every test run. There these instructions are illegal:
   Linux sends SIGILL, and the handler here decodes one (Intel's Software Developer's Manual, volume 2), does it, and goes on behind it. That takes
   some ten microseconds, most of them the signal's. What the manual forbids of tiles (none configured, shapes that do not fit) ends the process with a
   message. */
#ifndef CPU_EMULATED_H
#define CPU_EMULATED_H

#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

static long amx_products, vnni_products; /* of all threads, so far */
static struct sigaction emulated_before;

/* ---- Decoding. ---- */

/* The general register that an instruction names. */
static uint64_t emulated_register(const ucontext_t *context, int number) {
    static const int places[16] = {REG_RAX, REG_RCX, REG_RDX, REG_RBX, REG_RSP, REG_RBP, REG_RSI, REG_RDI,
                                   REG_R8,  REG_R9,  REG_R10, REG_R11, REG_R12, REG_R13, REG_R14, REG_R15};
    return (uint64_t)context->uc_mcontext.gregs[places[number]];
}

/* An instruction with a VEX prefix of three bytes, map 0F38, W0; of memory an address, and what a row is behind the one before. */
typedef struct emulated_code {
    int prefix, is_wide;        /* 0: none, 1: 66, 2: F3, 3: F2; of 256 bits */
    int opcode, reg, rm, third; /* third: vvvv */
    int is_memory, length;
    uint64_t address, stride;
} emulated_code;

static void emulated_memory(const ucontext_t *context, const uint8_t *at, int mod, int rm, int x, int b, emulated_code *c) {
    int32_t wide;
    int has_sib = rm == 4, base = rm;
    if (has_sib) {
        int sib = at[c->length++], index = (sib >> 3 & 7) | x << 3;
        base = sib & 7;
        c->stride = index == 4 ? 0 : emulated_register(context, index) << (sib >> 6);
    }
    if (mod == 0 && base == 5) { /* 32 bits alone, or behind the instruction */
        memcpy(&wide, at + c->length, 4);
        c->length += 4;
        c->address = (uint64_t)(int64_t)wide + (has_sib ? 0 : (uint64_t)(uintptr_t)at + (uint64_t)c->length);
        return;
    }
    c->address = emulated_register(context, base | b << 3);
    if (mod == 1) c->address += (uint64_t)(int64_t)(int8_t)at[c->length++];
    if (mod == 2) {
        memcpy(&wide, at + c->length, 4);
        c->length += 4;
        c->address += (uint64_t)(int64_t)wide;
    }
}

/* False: it is no such instruction. */
static int emulated_decode(const ucontext_t *context, emulated_code *c) {
    const uint8_t *at = (const uint8_t *)(uintptr_t)context->uc_mcontext.gregs[REG_RIP];
    int modrm;
    memset(c, 0, sizeof(*c));
    if (at[0] != 0xC4 || (at[1] & 31) != 2 || (at[2] & 0x80) != 0) return 0;
    c->prefix = at[2] & 3;
    c->is_wide = at[2] >> 2 & 1;
    c->third = ~at[2] >> 3 & 15;
    c->opcode = at[3];
    modrm = at[4];
    c->reg = (modrm >> 3 & 7) | (at[1] & 0x80 ? 0 : 8);
    c->rm = modrm & 7;
    c->length = 5;
    c->is_memory = modrm >> 6 != 3;
    if (c->is_memory) emulated_memory(context, at, modrm >> 6, c->rm, !(at[1] & 0x40), !(at[1] & 0x20), c);
    else c->rm |= at[1] & 0x20 ? 0 : 8;
    return 1;
}

/* ---- AMX. ---- */

enum { AMX_TILES = 8, AMX_ROWS = 16, AMX_ROW_BYTES = 64 };

typedef union amx_tile {
    uint8_t bytes[AMX_ROWS][AMX_ROW_BYTES];
    int32_t whole[AMX_ROWS][AMX_ROW_BYTES / 4];
    uint32_t pairs[AMX_ROWS][AMX_ROW_BYTES / 4]; /* of BF16 */
    float sums[AMX_ROWS][AMX_ROW_BYTES / 4];
} amx_tile;

/* A thread's. */
static __thread struct {
    int configured;
    int rows[AMX_TILES], bytes[AMX_TILES]; /* of a row */
    amx_tile tiles[AMX_TILES];
} amx;

static void amx_fail(const char *what) {
    fprintf(stderr, "cpu_emulated.h: %s\n", what);
    abort();
}

static void amx_configure(const uint8_t *from) {
    int i;
    if (from[0] != 1 || from[1] != 0) amx_fail("a configuration of another palette, or one that resumes");
    for (i = 0; i < AMX_TILES; i++) {
        uint16_t bytes;
        memcpy(&bytes, from + 16 + 2 * i, 2);
        amx.bytes[i] = bytes;
        amx.rows[i] = from[48 + i];
        if (bytes > AMX_ROW_BYTES || amx.rows[i] > AMX_ROWS || (bytes == 0) != (amx.rows[i] == 0)) amx_fail("a tile of a shape that there is none of");
    }
    for (i = 2; i < 64; i++)
        if ((i < 16 || i >= 32) && (i < 48 || i >= 56) && from[i]) amx_fail("reserved bytes of a configuration");
    memset(amx.tiles, 0, sizeof(amx.tiles));
    amx.configured = 1;
}

static void amx_need(int tile) {
    if (!amx.configured) amx_fail("a tile without a configuration");
    if (tile >= AMX_TILES || !amx.rows[tile]) amx_fail("a tile that the configuration has not");
}

static void amx_load(int tile, uint64_t address, uint64_t stride) {
    int row;
    amx_need(tile);
    memset(&amx.tiles[tile], 0, sizeof(amx.tiles[tile]));
    for (row = 0; row < amx.rows[tile]; row++, address += stride)
        memcpy(amx.tiles[tile].bytes[row], (const void *)(uintptr_t)address, (size_t)amx.bytes[tile]);
}

static void amx_store(int tile, uint64_t address, uint64_t stride) {
    int row;
    amx_need(tile);
    for (row = 0; row < amx.rows[tile]; row++, address += stride)
        memcpy((void *)(uintptr_t)address, amx.tiles[tile].bytes[row], (size_t)amx.bytes[tile]);
}

/* to[rows, columns] += a[rows, 4 k] . b[k, 4 columns]: shapes as TDPBF16PS and TDPBSSD want them. */
static void amx_check(int to, int a, int b) {
    amx_need(to), amx_need(a), amx_need(b);
    if (to == a || to == b || a == b) amx_fail("a product of a tile with itself");
    if (amx.bytes[to] % 4 || amx.bytes[a] % 4 || amx.bytes[b] % 4 || amx.rows[to] != amx.rows[a] || amx.bytes[to] != amx.bytes[b] ||
        amx.bytes[a] / 4 != amx.rows[b])
        amx_fail("a product of tiles whose shapes do not fit");
}

static float amx_half(uint32_t pair, int odd) {
    uint32_t bits = odd ? pair & 0xFFFF0000u : pair << 16;
    float x;
    memcpy(&x, &bits, 4);
    return x;
}

/* Sums of the even and of the odd k, each rounded once a product, then both added up, then to what was there; denormals are 0. */
__attribute__((target("avx2,fma"))) static void amx_bfloats(int to, int a, int b) {
    int row, k, i, columns = amx.bytes[to] / 4, depth = amx.rows[b];
    for (row = 0; row < amx.rows[to]; row++) {
        float even[16] = {0}, odd[16] = {0};
        for (k = 0; k < depth; k++) {
            float x = amx_half(amx.tiles[a].pairs[row][k], 0), y = amx_half(amx.tiles[a].pairs[row][k], 1);
            for (i = 0; i < columns; i++) {
                even[i] = __builtin_fmaf(x, amx_half(amx.tiles[b].pairs[k][i], 0), even[i]);
                odd[i] = __builtin_fmaf(y, amx_half(amx.tiles[b].pairs[k][i], 1), odd[i]);
            }
        }
        for (i = 0; i < columns; i++) amx.tiles[to].sums[row][i] += even[i] + odd[i];
    }
}

/* Signed bytes. */
static void amx_signed_bytes(int to, int a, int b) {
    int row, k, i, j, columns = amx.bytes[to] / 4, depth = amx.rows[b];
    for (row = 0; row < amx.rows[to]; row++)
        for (k = 0; k < depth; k++) {
            const int8_t *x = (const int8_t *)&amx.tiles[a].bytes[row][4 * k];
            for (i = 0; i < columns; i++) {
                const int8_t *y = (const int8_t *)&amx.tiles[b].bytes[k][4 * i];
                for (j = 0; j < 4; j++) amx.tiles[to].whole[row][i] += x[j] * y[j];
            }
        }
}

static void amx_multiply(const emulated_code *c) {
    unsigned control = __builtin_ia32_stmxcsr();
    amx_check(c->reg, c->rm, c->third);
    __sync_fetch_and_add(&amx_products, 1);
    __builtin_ia32_ldmxcsr(control | 0x8040); /* denormals, as operands and as results */
    if (c->opcode == 0x5C) amx_bfloats(c->reg, c->rm, c->third);
    else amx_signed_bytes(c->reg, c->rm, c->third);
    __builtin_ia32_ldmxcsr(control);
}

/* False: it is none that the kernels have. */
static int amx_execute(const emulated_code *c) {
    if (c->is_wide) return 0;
    if (c->opcode == 0x49 && c->prefix == 0 && c->is_memory) amx_configure((const uint8_t *)(uintptr_t)c->address);
    else if (c->opcode == 0x49 && c->prefix == 0 && c->reg == 0 && c->rm == 0) amx.configured = 0; /* TILERELEASE */
    else if (c->opcode == 0x4B && c->prefix == 3 && c->is_memory) amx_load(c->reg, c->address, c->stride);
    else if (c->opcode == 0x4B && c->prefix == 2 && c->is_memory) amx_store(c->reg, c->address, c->stride);
    else if (c->opcode == 0x5C && c->prefix == 2 && !c->is_memory) amx_multiply(c); /* TDPBF16PS */
    else if (c->opcode == 0x5E && c->prefix == 3 && !c->is_memory) amx_multiply(c); /* TDPBSSD */
    else return 0;
    return 1;
}

/* ---- AVX-VNNI: VPDPBUSD and VPDPWSSD of 256 bits, registers alone. ---- */

/* Where the signal's frame has a register: its lower half in FXSAVE's part, its upper one in XSAVE's at byte 576, which is all zeros where bit 2 of
   XSTATE_BV (byte 512) says that it was not saved. */
static uint8_t *vnni_half(const ucontext_t *context, int number, int upper) {
    uint8_t *state = (uint8_t *)context->uc_mcontext.fpregs;
    uint64_t saved;
    memcpy(&saved, state + 512, 8);
    if (upper && !(saved & 4)) {
        memset(state + 576, 0, 256);
        saved |= 4;
        memcpy(state + 512, &saved, 8);
    }
    return state + (upper ? 576 : 160) + 16 * number;
}

/* Four products of an unsigned and a signed byte, or two of signed words, added to each sum. */
static void vnni_add(int words, const uint8_t *a, const uint8_t *b, uint8_t *sums) {
    int i, j;
    for (i = 0; i < 4; i++) {
        int32_t sum;
        int16_t x, y;
        memcpy(&sum, sums + 4 * i, 4);
        for (j = 0; !words && j < 4; j++) sum = (int32_t)((uint32_t)sum + (uint32_t)(a[4 * i + j] * (int8_t)b[4 * i + j]));
        for (j = 0; words && j < 2; j++) {
            memcpy(&x, a + 4 * i + 2 * j, 2);
            memcpy(&y, b + 4 * i + 2 * j, 2);
            sum = (int32_t)((uint32_t)sum + (uint32_t)(x * y));
        }
        memcpy(sums + 4 * i, &sum, 4);
    }
}

static int vnni_execute(const ucontext_t *context, const emulated_code *c) {
    int upper;
    if (!c->is_wide || c->is_memory || c->prefix != 1 || (c->opcode != 0x50 && c->opcode != 0x52)) return 0;
    for (upper = 0; upper < 2; upper++)
        vnni_add(c->opcode == 0x52, vnni_half(context, c->third, upper), vnni_half(context, c->rm, upper), vnni_half(context, c->reg, upper));
    __sync_fetch_and_add(&vnni_products, 1);
    return 1;
}

/* ---- The signal. ---- */

/* Instructions that follow are done, too: signals are what takes time. */
static void emulated_handle(int signal, siginfo_t *info, void *pointer) {
    ucontext_t *context = (ucontext_t *)pointer;
    emulated_code c;
    int n = 0;
    for (; emulated_decode(context, &c) && (amx_execute(&c) || vnni_execute(context, &c)); n++) context->uc_mcontext.gregs[REG_RIP] += c.length;
    if (n) return;
    if (emulated_before.sa_flags & SA_SIGINFO) emulated_before.sa_sigaction(signal, info, pointer);
    else if (emulated_before.sa_handler != SIG_DFL && emulated_before.sa_handler != SIG_IGN) emulated_before.sa_handler(signal);
    else sigaction(SIGILL, &emulated_before, NULL); /* it comes again */
}

static void emulated_begin(void) {
    struct sigaction action;
    memset(&action, 0, sizeof(action));
    action.sa_sigaction = emulated_handle;
    action.sa_flags = SA_SIGINFO | SA_NODEFER;
    sigaction(SIGILL, &action, &emulated_before);
}

static void emulated_end(void) { sigaction(SIGILL, &emulated_before, NULL); }

#endif /* CPU_EMULATED_H */
