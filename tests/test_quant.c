/* Tests of >>quant. Expected hashes come from the gguf package (check_quant.py, which also tests many more blocks). */
#include "quant_golden.h"

static uint64_t test_quant_hash(uint64_t hash, uint64_t value, int bytes) {
    int i;
    for (i = 0; i < bytes; i++) hash = (hash ^ (value >> (8 * i) & 255)) * 0x100000001B3ull;
    return hash;
}

/* `bytes` random bytes; one more is at the front, so that those wanted start at an odd address. */
static uint8_t *test_quant_input(int seed, size_t bytes) {
    uint64_t state = (uint64_t)seed, value = 0;
    uint8_t *data = (uint8_t *)malloc(bytes + 1);
    size_t i;
    for (i = 0; i < bytes; i++) {
        if (i % 8 == 0) value = test_random(&state);
        data[1 + i] = (uint8_t)(value >> (i % 8 * 8));
    }
    return data;
}

static uint64_t test_quant_hash_type(fg_type type, const uint8_t *data) {
    uint64_t hash = 0xCBF29CE484222325ull;
    float *out = (float *)malloc(QUANT_GOLDEN_ELEMENTS * sizeof(float));
    int i;
    CHECK(fg_dequantize(type, data, out, QUANT_GOLDEN_ELEMENTS) == FG_OK);
    for (i = 0; i < QUANT_GOLDEN_ELEMENTS; i++)
        hash = test_quant_hash(hash, out[i] != out[i] ? 0x7FC00000 : fg__float_bits(out[i]), 4);
    free(out);
    return hash;
}

static uint64_t test_quant_hash_floats(bool bf16, const uint8_t *data) {
    uint64_t hash = 0xCBF29CE484222325ull;
    int i;
    for (i = 0; i < QUANT_GOLDEN_ELEMENTS; i++) {
        float value = fg__float_from_bits(fg__load_u32(data + 4 * i));
        uint16_t bits = bf16 ? fg__f32_to_bf16(value) : fg__f32_to_f16(value);
        if ((bits & 0x7FFF) > (bf16 ? 0x7F80 : 0x7C00)) bits = 0x7FFF;
        hash = test_quant_hash(hash, bits, 2);
    }
    return hash;
}

static void test_quant_golden(void) {
    int i, n_types = 0;
    for (i = 0; i < FG__COUNT(quant_goldens); i++) {
        const quant_golden *golden = &quant_goldens[i];
        fg_type type = golden->type < 0 ? FG_TYPE_F32 : (fg_type)golden->type;
        uint8_t *data = test_quant_input(golden->seed, (size_t)fg_type_bytes(type, QUANT_GOLDEN_ELEMENTS));
        uint64_t hash = golden->type < 0 ? test_quant_hash_floats(golden->type == -2, data + 1)
                                         : test_quant_hash_type(type, data + 1);
        CHECKF(hash == golden->hash, "%s: %016llx", golden->name, (unsigned long long)hash);
        CHECK(golden->type < 0 || strcmp(fg_type_name(type), golden->name) == 0);
        n_types += golden->type >= 0;
        free(data);
    }
#define TEST_COUNT(name, id, elements, bytes) +1
    CHECK(n_types == 0 FG_TYPES(TEST_COUNT)); /* every type has its row */
#undef TEST_COUNT
}

static void test_quant_half_values(void) {
    static const struct { uint16_t half; float value; } known[] = {
        {0x0000, 0.0f}, {0x0001, 5.9604644775390625e-8f}, {0x03FF, 6.0975551605224609375e-5f},
        {0x0400, 6.103515625e-5f}, {0x3C00, 1.0f}, {0x3C01, 1.0009765625f}, {0xC000, -2.0f}, {0x7BFF, 65504.0f},
        {0x3555, 0.333251953125f}};
    int i;
    for (i = 0; i < FG__COUNT(known); i++) CHECK(fg__f16_to_f32(known[i].half) == known[i].value);
    CHECK(fg__float_bits(fg__f16_to_f32(0x8000)) == 0x80000000u);
    CHECK(fg__f16_to_f32(0x7C00) == INFINITY && fg__f16_to_f32(0xFC00) == -INFINITY);
    CHECK(fg__f16_to_f32(0x7C01) != fg__f16_to_f32(0x7C01) && fg__f16_to_f32(0xFFFF) != fg__f16_to_f32(0xFFFF));
    CHECK(fg__bf16_to_f32(0x3F80) == 1.0f && fg__bf16_to_f32(0xC0A0) == -5.0f && fg__f32_to_bf16(1.0f) == 0x3F80);
}

/* Every half goes to float and back; a value between two of them goes to the nearer, one in the middle to the even. */
static void test_quant_half_rounding(void) {
    int sign, i, n_wrong = 0;
    for (sign = 0; sign <= 0x8000; sign += 0x8000) {
        for (i = 0; i < 0x7C00; i++) {
            float low = fg__f16_to_f32((uint16_t)(sign | i)), high = fg__f16_to_f32((uint16_t)(sign | (i + 1))), middle;
            if (i == 0x7BFF) high = sign ? -65536.0f : 65536.0f; /* from half way to it, numbers become infinite */
            middle = (low + high) / 2;
            n_wrong += fg__f32_to_f16(low) != (sign | i);
            n_wrong += fg__f32_to_f16(middle) != (sign | (i + (i & 1)));
            n_wrong += fg__f32_to_f16(fg__float_from_bits(fg__float_bits(middle) - 1)) != (sign | i);
            n_wrong += fg__f32_to_f16(fg__float_from_bits(fg__float_bits(middle) + 1)) != (sign | (i + 1));
        }
    }
    CHECKF(n_wrong == 0, "%d", n_wrong);
    CHECK(fg__f32_to_f16(INFINITY) == 0x7C00 && fg__f32_to_f16(-FLT_MAX) == 0xFC00 && fg__f32_to_f16(FLT_MIN) == 0);
    CHECK((fg__f32_to_f16(fg__float_from_bits(0x7F800001)) & 0x7FFF) > 0x7C00);
    CHECK((fg__f32_to_f16(fg__float_from_bits(0xFFFFFFFF)) & 0x7FFF) > 0x7C00);
}

static void test_quant_bfloat_rounding(void) {
    uint32_t i;
    int n_wrong = 0;
    for (i = 0; i < 0x10000; i++) {
        if ((i & 0x7FFF) >= 0x7F80) continue;
        n_wrong += fg__f32_to_bf16(fg__float_from_bits(i << 16)) != i;
        n_wrong += fg__f32_to_bf16(fg__float_from_bits(i << 16 | 0x7FFF)) != i;
        n_wrong += fg__f32_to_bf16(fg__float_from_bits(i << 16 | 0x8000)) != i + (i & 1);
        n_wrong += fg__f32_to_bf16(fg__float_from_bits(i << 16 | 0x8001)) != i + 1;
    }
    CHECKF(n_wrong == 0, "%d", n_wrong);
    CHECK(fg__f32_to_bf16(INFINITY) == 0x7F80 && fg__f32_to_bf16(-INFINITY) == 0xFF80);
    /* NaN whose upper half looks infinite, and one that rounding would make zero */
    CHECK((fg__f32_to_bf16(fg__float_from_bits(0x7F800001)) & 0x7FFF) > 0x7F80);
    CHECK((fg__f32_to_bf16(fg__float_from_bits(0xFFFFFFFF)) & 0x7FFF) > 0x7F80);
}

/* Scale byte e stands for 2^(e-127); quant 2 is 1.0, quant 15 is -6.0. */
static void test_quant_mxfp4_scales(void) {
    uint8_t block[17];
    float out[32];
    int e;
    memset(block, 0xF2, sizeof(block));
    for (e = 0; e <= 255; e++) {
        block[0] = (uint8_t)e;
        CHECK(fg_dequantize(FG_TYPE_MXFP4, block, out, 32) == FG_OK);
        CHECKF(out[0] == (float)ldexp(1.0, e - 127) && out[16] == (float)ldexp(-6.0, e - 127), "%d", e);
    }
}

static void test_quant_sizes(void) {
    uint8_t blocks[144] = {0};
    float out[256];
    CHECK(fg_type_bytes(FG_TYPE_F32, 3) == 12 && fg_type_bytes(FG_TYPE_Q8_0, 64) == 68);
    CHECK(fg_type_bytes(FG_TYPE_Q4_K, 512) == 288 && fg_type_bytes(FG_TYPE_Q6_K, 0) == 0);
    CHECK(fg_type_bytes(FG_TYPE_Q4_0, 33) == 0 && fg_type_bytes(FG_TYPE_Q4_0, -32) == 0);
    CHECK(fg_type_bytes(FG_TYPE_F32, INT64_MAX) == 0 && fg_type_bytes(FG_TYPE_F32, INT64_MAX / 4) == INT64_MAX / 4 * 4);
    CHECK(fg_type_bytes(FG_TYPE_NONE, 256) == 0 && fg_type_bytes((fg_type)16, 256) == 0);
    CHECK(strcmp(fg_type_name(FG_TYPE_IQ4_XS), "IQ4_XS") == 0 && strcmp(fg_type_name(FG_TYPE_NONE), "unknown") == 0);
    CHECK(fg_dequantize(FG_TYPE_Q4_K, blocks, out, 256) == FG_OK && out[255] == 0.0f);
    CHECK(fg_dequantize(FG_TYPE_Q4_K, NULL, NULL, 0) == FG_OK);
    CHECK(fg_dequantize(FG_TYPE_Q4_K, blocks, out, 128) == FG_ERROR_INVALID_ARGUMENT);
    CHECK(fg_dequantize(FG_TYPE_Q4_K, blocks, out, -256) == FG_ERROR_INVALID_ARGUMENT);
    CHECK(fg_dequantize(FG_TYPE_NONE, blocks, out, 0) == FG_ERROR_INVALID_ARGUMENT);
    CHECK(fg_dequantize(FG_TYPE_Q4_K, NULL, out, 256) == FG_ERROR_INVALID_ARGUMENT);
    CHECK(fg_dequantize(FG_TYPE_Q4_K, blocks, NULL, 256) == FG_ERROR_INVALID_ARGUMENT);
}

static void run_quant_tests(void) {
    RUN(test_quant_golden);
    RUN(test_quant_half_values);
    RUN(test_quant_half_rounding);
    RUN(test_quant_bfloat_rounding);
    RUN(test_quant_mxfp4_scales);
    RUN(test_quant_sizes);
}
