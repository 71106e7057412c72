/* Writes compiled kernels as a C file for fg_cuda.h or fg_hip.h: packed, and cut into strings. See build.sh.

       embed PREFIX TARGET=FILE ... >header.h

   The packing (fg__gpu_unpack_image undoes it) replaces what came before by how far back it is: of a file of kernels that are
   much alike, about a fifth remains. Every image is unpacked again and compared. */
#define FASTGEN_IMPLEMENTATION
#include "../../fastgen.h"
#include "fg_cuda.h"

enum { HASHES = 1 << 18, TRIES = 32, LEAST = 6, FARTHEST = (1 << 24) - 1 };

typedef struct packer {
    const uint8_t *from;
    size_t bytes;
    uint8_t *to;
    size_t n;
    int32_t *heads, *before; /* places with the same hash, the last one first; -1: none */
} packer;

static void put(packer *p, size_t byte) { p->to[p->n++] = (uint8_t)byte; }

/* What of a count does not fit the token's four bits. */
static void put_more(packer *p, size_t n) {
    if (n < 15) return;
    for (n -= 15; n >= 255; n -= 255) put(p, 255);
    put(p, n);
}

/* Literals [first, at), then `length` bytes from `back` before; length 0: the end. */
static void put_token(packer *p, size_t first, size_t at, size_t length, size_t back) {
    size_t literals = at - first, repeat = length ? length - 4 : 0;
    put(p, FG__MIN(literals, 15) << 4 | FG__MIN(repeat, 15));
    put_more(p, literals);
    memcpy(p->to + p->n, p->from + first, literals);
    p->n += literals;
    if (!length) return;
    put(p, back & 255);
    put(p, back >> 8 & 255);
    put(p, back >> 16);
    put_more(p, repeat);
}

static uint32_t hash(const uint8_t *at) { return (fg__load_u32(at) * 2654435761u) >> 14; }

static size_t find(const packer *p, size_t at, size_t *back) {
    size_t best = 0, n;
    int32_t place = p->heads[hash(p->from + at)];
    int tries;
    for (tries = 0; place >= 0 && tries < TRIES && at - (size_t)place <= FARTHEST; tries++, place = p->before[place]) {
        for (n = 0; at + n < p->bytes && p->from[(size_t)place + n] == p->from[at + n]; n++) {}
        if (n <= best) continue;
        best = n;
        *back = at - (size_t)place;
    }
    return best < LEAST ? 0 : best;
}

static void note(packer *p, size_t at) {
    uint32_t h = hash(p->from + at);
    p->before[at] = p->heads[h];
    p->heads[h] = (int32_t)at;
}

static void pack(packer *p) {
    size_t at = 0, first = 0, length, back = 0;
    while (at + 4 <= p->bytes) {
        length = find(p, at, &back);
        if (!length) {
            note(p, at++);
            continue;
        }
        put_token(p, first, at, length, back);
        for (first = at + length; at < first; at++)
            if (at + 4 <= p->bytes) note(p, at);
    }
    put_token(p, first, p->bytes, 0, 0);
}

static void print_pieces(const char *prefix, int index, const uint8_t *bytes, size_t n) {
    size_t i;
    printf("static const char *const fg__%s_image_%d[] = {\n", prefix, index);
    for (i = 0; i < n; i++) {
        if (i % FG__GPU_PIECE == 0) printf(i ? "\",\n\"" : "\"");
        /* question marks would make trigraphs */
        if (bytes[i] >= 32 && bytes[i] < 127 && !strchr("\"\\?", bytes[i])) putchar(bytes[i]);
        else printf("\\%03o", bytes[i]);
    }
    printf("\"};\n");
}

static bool check(const char *prefix, const packer *p) {
    size_t n = (p->n + FG__GPU_PIECE - 1) / FG__GPU_PIECE, i;
    const char **pieces = (const char **)malloc(n * sizeof(char *));
    uint8_t *back = (uint8_t *)malloc(p->bytes);
    fg__gpu_image image;
    bool good;
    for (i = 0; i < n; i++) pieces[i] = (const char *)p->to + i * FG__GPU_PIECE;
    image.target = prefix;
    image.pieces = pieces;
    image.packed_bytes = p->n;
    image.bytes = p->bytes;
    good = fg__gpu_unpack_image(&image, back) && memcmp(back, p->from, p->bytes) == 0;
    free(pieces);
    free(back);
    return good;
}

/* Packs and prints one file; its sizes into *packed and *bytes. */
static bool embed(const char *prefix, int index, const char *path, size_t *packed, size_t *bytes) {
    fg__file file;
    packer p;
    bool good;
    memset(&file, 0, sizeof(file));
    memset(&p, 0, sizeof(p));
    if (fg__file_open(&file, path) != FG_OK || file.size < 4 || file.size > 1 << 30) return false;
    p.from = (const uint8_t *)file.data;
    p.bytes = (size_t)file.size;
    p.to = (uint8_t *)malloc(p.bytes + p.bytes / 128 + 64);
    p.heads = (int32_t *)malloc(HASHES * sizeof(int32_t));
    p.before = (int32_t *)malloc(p.bytes * sizeof(int32_t));
    memset(p.heads, 0xFF, HASHES * sizeof(int32_t));
    pack(&p);
    good = check(prefix, &p);
    print_pieces(prefix, index, p.to, p.n);
    *packed = p.n;
    *bytes = p.bytes;
    free(p.to);
    free(p.heads);
    free(p.before);
    fg__file_close(&file);
    return good;
}

int main(int argc, char **argv) {
    size_t packed[64], bytes[64], all = 0;
    int i;
    if (argc < 3 || argc > 64) return 2;
    printf("/* Kernels of backends/cuda, compiled for the targets listed below; written by ./build.sh %s. */\n", argv[1]);
    for (i = 2; i < argc; i++) {
        const char *path = strchr(argv[i], '=');
        if (!path || !embed(argv[1], i - 2, path + 1, &packed[i], &bytes[i])) {
            fprintf(stderr, "embed: %s cannot be embedded\n", argv[i]);
            return 1;
        }
        all += packed[i];
        fprintf(stderr, "%-20.*s %8.1f KiB, packed %7.1f KiB\n", (int)(path - argv[i]), argv[i], (double)bytes[i] / 1024.0, (double)packed[i] / 1024.0);
    }
    printf("enum { FG__%s_IMAGES = %d };\n", strcmp(argv[1], "hip") == 0 ? "HIP" : "CUDA", argc - 2);
    printf("static const fg__gpu_image fg__%s_images[] = {\n", argv[1]);
    for (i = 2; i < argc; i++)
        printf("    {\"%.*s\", fg__%s_image_%d, %lu, %lu},\n", (int)(strchr(argv[i], '=') - argv[i]), argv[i], argv[1], i - 2,
               (unsigned long)packed[i], (unsigned long)bytes[i]);
    printf("};\n");
    fprintf(stderr, "in all, packed: %.1f KiB\n", (double)all / 1024.0);
    return 0;
}
