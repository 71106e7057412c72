/* Written by check_quant.py from the results of the gguf package: FNV-1a hashes of the bits (little-endian, every NaN
   7FC00000 or 7FFF) that random input gives. The input comes from test_random, started with `seed`. */
typedef struct quant_golden {
    const char *name;
    int type, seed; /* type -1: floats to F16; -2: floats to BF16 */
    uint64_t hash;
} quant_golden;

#define QUANT_GOLDEN_ELEMENTS 16384
static const quant_golden quant_goldens[] = {
    {"F32", 0, 0, 0xED6E88FD0C764A98ull},
    {"F16", 1, 1, 0xE7A03FA377219FFCull},
    {"Q4_0", 2, 2, 0x3489D69405B6CA37ull},
    {"Q4_1", 3, 3, 0x84E187B78611EC13ull},
    {"Q5_0", 6, 6, 0xAB3C93CC3198B630ull},
    {"Q5_1", 7, 7, 0x4D49CB685789B24Cull},
    {"Q8_0", 8, 8, 0xEBD8D6AEE62C8DB1ull},
    {"Q2_K", 10, 10, 0x2A70A9A61041C77Dull},
    {"Q3_K", 11, 11, 0x0EE5D1634DF28F2Cull},
    {"Q4_K", 12, 12, 0x426562CBDE57DEB9ull},
    {"Q5_K", 13, 13, 0xF232529D18B1E115ull},
    {"Q6_K", 14, 14, 0x77AB8A6741D7CD54ull},
    {"IQ4_NL", 20, 20, 0x47980C185FB0FA65ull},
    {"IQ4_XS", 23, 23, 0xFDF2EBED70983CEAull},
    {"BF16", 30, 30, 0x9E45CC648FCE3E3Bull},
    {"MXFP4", 39, 39, 0xD86B51B792A196EFull},
    {"to F16", -1, 100, 0x745C8D8F71B950F3ull},
    {"to BF16", -2, 100, 0x04BE07B5B97C6D09ull}
};
