/* The GPU kernels, executed on the host (host_gpu.h) at warps of 32 and 64 lanes, threads in a random order, against references in
   double precision written here; and proof that the host execution finds what it says it finds. */

#include "host_gpu.h"
#include "../backends/cuda/kernels.cuh"

/* ---- What the host execution must find. Kernels of 64 threads that are wrong in one way each, or right. ---- */

/* Every thread writes a word and reads its neighbour's. */
static void hgt_exchange(const void *args, bool barrier) {
    FG_SHARED(float, x, 64);
    int me = fgk_thread();
    fgk_put(x + me, (float)me);
    if (barrier) fgk_barrier();
    fgk_store((float *)*(const uint64_t *)args + me, fgk_get(x + (me + 1) % 64));
}
static void hgt_right(const void *args) { hgt_exchange(args, true); }
static void hgt_no_barrier(const void *args) { hgt_exchange(args, false); }

/* Reads before a write by another thread, without a barrier between. */
static void hgt_write_after_read(const void *args) {
    FG_SHARED(float, x, 64);
    int me = fgk_thread();
    float mine;
    fgk_put(x + me, 1.0f);
    fgk_barrier();
    mine = fgk_get(x + (me + 32) % 64);
    fgk_put(x + me, 2.0f);
    fgk_store((float *)*(const uint64_t *)args + me, mine);
}

/* The lanes of a group exchange words: with a group's sync that is right, across groups it is not. */
static void hgt_group(const void *args, int apart, bool sync) {
    FG_SHARED(float, x, 64);
    int me = fgk_thread();
    fgk_put(x + me, (float)me);
    if (sync) fgk_group_sync();
    fgk_store((float *)*(const uint64_t *)args + me, fgk_get(x + (me ^ apart)));
}
static void hgt_group_right(const void *args) { hgt_group(args, 5, true); }
static void hgt_group_no_sync(const void *args) { hgt_group(args, 5, false); }
static void hgt_group_across(const void *args) { hgt_group(args, 32, true); }

/* All lanes of a group read a word, which one of them then writes. */
static void hgt_many_readers(const void *args) {
    FG_SHARED(float, x, 1);
    float mine;
    if (fgk_thread() == 0) fgk_put(x, 1.0f);
    fgk_barrier();
    if (fgk_thread() >= 32) return;
    mine = fgk_get(x);
    if (fgk_thread() == 7) fgk_put(x, 2.0f);
    fgk_store((float *)*(const uint64_t *)args + fgk_thread(), mine);
}

static void hgt_two_writers(const void *args) {
    FG_SHARED(float, x, 64);
    fgk_put(x + fgk_thread() % 48, 1.0f);
    fgk_barrier();
    fgk_store((float *)*(const uint64_t *)args + fgk_thread(), fgk_get(x));
}
/* All threads add to two words, in any order; without the barrier one reads a word that others still add to. */
static void hgt_add(const void *args, bool barrier) {
    FG_SHARED(uint32_t, x, 2);
    int me = fgk_thread();
    if (me < 2) fgk_put_u32(x + me, 0);
    fgk_barrier();
    (void)fgk_shared_add(x + me % 2, 1u);
    if (barrier) fgk_barrier();
    fgk_store((float *)*(const uint64_t *)args + me, (float)fgk_get_u32(x + me % 2));
}
static void hgt_add_right(const void *args) { hgt_add(args, true); }
static void hgt_add_no_barrier(const void *args) { hgt_add(args, false); }
static void hgt_add_and_write(const void *args) {
    FG_SHARED(uint32_t, x, 1);
    fgk_put_u32(x, 0);
    (void)fgk_shared_add(x, 1u);
    fgk_barrier();
    fgk_store((float *)*(const uint64_t *)args + fgk_thread(), (float)fgk_get_u32(x));
}
static void hgt_add_unwritten(const void *args) {
    FG_SHARED(uint32_t, x, 1);
    (void)fgk_shared_add(x, 1u);
    fgk_barrier();
    fgk_store((float *)*(const uint64_t *)args + fgk_thread(), (float)fgk_get_u32(x));
}
static void hgt_unwritten(const void *args) {
    FG_SHARED(float, x, 65);
    fgk_put(x + fgk_thread(), 1.0f);
    fgk_barrier();
    fgk_store((float *)*(const uint64_t *)args + fgk_thread(), fgk_get(x + fgk_thread() + 1));
}
static void hgt_shared_bounds(const void *args) {
    FG_SHARED(float, x, 64);
    fgk_put(x + fgk_thread() + 1, 1.0f);
    fgk_barrier();
    fgk_store((float *)*(const uint64_t *)args + fgk_thread(), fgk_get(x + 1));
}
static void hgt_bounds(const void *args) { fgk_store((float *)*(const uint64_t *)args + fgk_thread() + 1, 0.0f); }
static void hgt_alignment(const void *args) {
    (void)fgk_load_u4((const float *)*(const uint64_t *)args + 1);
}
static void hgt_divergent_barrier(const void *args) {
    (void)args;
    if (fgk_thread() != 17) fgk_barrier();
}
static void hgt_other_barrier(const void *args) {
    (void)args;
    if (fgk_thread() < 32) {
        fgk_barrier();
    } else {
        fgk_barrier();
    }
}
static void hgt_divergent_shuffle(const void *args) {
    float x = 1.0f;
    if (fgk_thread() % 32 < 16) x = fgk_shuffle_xor(x, 1);
    fgk_store((float *)*(const uint64_t *)args + fgk_thread(), x);
}
/* One group shuffles and the other does not: right, since a group is what shuffles. */
static void hgt_group_shuffle(const void *args) {
    float x = (float)fgk_thread();
    if (fgk_thread() < 32) x = fgk_shuffle_xor(x, 31);
    fgk_store((float *)*(const uint64_t *)args + fgk_thread(), x);
}

/* Copies 16 bytes by every thread; reads them after the wait and the barrier, or before. */
static void hgt_async(const void *args, bool wait, bool barrier) {
    FG_SHARED(float, x, 256);
    const float *from = (const float *)((const uint64_t *)args)[1];
    int me = fgk_thread();
    fgk_async_copy(x + 4 * me, from + 4 * me);
    if (wait) fgk_async_wait();
    if (barrier) fgk_barrier();
    fgk_store((float *)*(const uint64_t *)args + me, fgk_get(x + 4 * ((me + 1) % 64)));
    if (!wait) fgk_async_wait();
}
static void hgt_async_right(const void *args) { hgt_async(args, true, true); }
static void hgt_async_no_wait(const void *args) { hgt_async(args, false, true); }
static void hgt_async_no_barrier(const void *args) { hgt_async(args, true, false); }

/* A product of fragments by whole warps, or by a part of one. */
static void hgt_product(const void *args, int threads) {
    FG_SHARED(uint16_t, x, 16 * 24);
    const uint64_t *a = (const uint64_t *)args;
    int i;
    fgk_sums sums;
    fgk_frag left, right;
    for (i = fgk_thread(); i < 16 * 12; i += 64) fgk_put_u32((uint32_t *)(void *)x + i, fgk_load_u32((const uint32_t *)a[1] + i));
    fgk_barrier();
    for (i = 0; i < FG_SUMS; i++) sums.x[i] = 0.0f;
    if (fgk_thread() >= threads) return;
    fgk_frag_load(&left, x, 24);
    fgk_frag_load(&right, x, 24);
    fgk_mma(&sums, &left, &right);
    for (i = 0; i < FG_SUMS && fgk_thread() < hg.width; i++) fgk_store((float *)a[0] + fgk_sum_row(i) * 16 + fgk_sum_col(i), sums.x[i]);
}
static void hgt_product_right(const void *args) { hgt_product(args, 64); }
static void hgt_product_part(const void *args) { hgt_product(args, 48); }

/* Products of two warpgroups, which have the same rows of 64 halves at the start of shared memory (left) and behind it (right),
   right or wrong in one way. */
enum { HGW_RIGHT, HGW_NO_FENCE, HGW_NOT_PUBLISHED, HGW_LATE_PUBLISH, HGW_NO_BARRIER, HGW_NO_WAIT, HGW_NO_COMMIT, HGW_EARLY_READ,
       HGW_TOUCHED, HGW_OVERWRITTEN, HGW_NO_BARRIER_AFTER, HGW_NO_ORDER, HGW_SHIFTED, HGW_OUTSIDE, HGW_OTHER_OPERAND, HGW_KINDS };

static int hgw_kind;

static void hgt_warpgroups(const void *args) {
    FG_SHARED_MORE(uint16_t, x);
    uint16_t *y = x + 64 * 64;
    const uint64_t *a = (const uint64_t *)args;
    uint64_t left = fg_gpu_wg_operand(fgk_shared_address(x)), right = fg_gpu_wg_operand(fgk_shared_address(y));
    int kind = hgw_kind, me = fgk_thread(), i, k;
    float sums[64];
    for (i = me; i < 192 * 8; i += 256) fgk_put_u4(x + i / 8 * 64 + ((i % 8) ^ (i / 8 & 7)) * 8, fgk_load_u4((const uint16_t *)a[1] + 8 * i));
    for (i = 0; i < 64; i++) sums[i] = 1.0f;
    if (kind != HGW_NOT_PUBLISHED && kind != HGW_LATE_PUBLISH) fgk_wg_publish();
    if (kind != HGW_NO_BARRIER) fgk_barrier();
    if (kind == HGW_LATE_PUBLISH) fgk_wg_publish();
    if (kind != HGW_NO_FENCE) fgk_wg_fence();
    if (kind == HGW_NO_ORDER) left &= ~((uint64_t)3 << 62);
    if (kind == HGW_SHIFTED) right += 128 >> 4;
    if (kind == HGW_OUTSIDE) right += 1024 >> 4;
    if (kind == HGW_OTHER_OPERAND && me >= 192) left += 1024 >> 4;
    for (k = 0; k < 4; k++) fgk_wg_mma(128, sums, left + 2 * (uint64_t)k, right + 2 * (uint64_t)k);
    if (kind == HGW_TOUCHED) sums[me % 64] = 0.0f;
    if (kind != HGW_NO_COMMIT) fgk_wg_commit();
    if (kind == HGW_EARLY_READ) fgk_store((float *)a[0], sums[0]);
    if (kind == HGW_OVERWRITTEN) fgk_put_u4(y + me % 128 * 64, fgk_load_u4((const uint16_t *)a[1]));
    if (kind != HGW_NO_WAIT) fgk_wg_wait(0);
    if (kind == HGW_NO_BARRIER_AFTER) fgk_put_u4(y + me % 128 * 64, fgk_load_u4((const uint16_t *)a[1]));
    if (me >= 128 && kind != HGW_EARLY_READ)
        for (i = 0; i < 64; i++) fgk_store((float *)a[0] + fgk_wg_row(i) * 128 + fgk_wg_col(i), sums[i]);
}

/* What is wrong with products of warpgroups is found; what is right gives the product. */
static void test_gpu_host_warpgroups(void) {
    static const char *const says[HGW_KINDS] = {"", "without a fence", "did not publish", "did not publish", "" /* either message */, "nobody has waited",
                                                "nobody has waited", "", "were touched", "still reads", "" /* either message */, "not ordered",
                                                "does not begin", "outside of shared memory", "different products"};
    float *out = (float *)hg_alloc(64 * 128 * sizeof(float));
    uint16_t *in = (uint16_t *)hg_alloc(192 * 64 * 2);
    uint64_t args[2], state = 3;
    int round, i, j, k;
    for (i = 0; i < 192 * 64; i++) in[i] = hg_float_to_half((float)(test_random(&state) % 17) - 8.0f);
    args[0] = hg_address(out);
    args[1] = hg_address(in);
    hg.width = 32;
    for (round = 0; round < 4; round++)
        for (hgw_kind = 0; hgw_kind < HGW_KINDS; hgw_kind++) {
            bool passed = hg_launch(hgt_warpgroups, args, 1, 1, 256, 192 * 64 * 2);
            CHECKF(passed == (hgw_kind == HGW_RIGHT || hgw_kind == HGW_EARLY_READ), "kind %d: %s", hgw_kind, hg_error());
            CHECKF(strstr(hg_error(), says[hgw_kind]) != NULL, "kind %d: %s", hgw_kind, hg_error());
            if (hgw_kind == HGW_EARLY_READ) CHECK(isnan(out[0]));
            for (i = 0; i < 64 && hgw_kind == HGW_RIGHT; i++)
                for (j = 0; j < 128; j++) {
                    float sum = 1.0f;
                    for (k = 0; k < 64; k++) sum += hg_half_to_float(in[i * 64 + k]) * hg_half_to_float(in[(64 + j) * 64 + k]);
                    CHECKF(out[i * 128 + j] == sum, "%d %d: %g, not %g", i, j, (double)out[i * 128 + j], (double)sum);
                }
        }
    hg.wrong_products = true;
    hgw_kind = HGW_RIGHT;
    CHECK(hg_launch(hgt_warpgroups, args, 1, 1, 256, 192 * 64 * 2) && out[17 * 128 + 3] != 0.0f);
    for (i = k = 0; i < 64; i++)
        for (j = 0; j < 128; j++) {
            float sum = 1.0f;
            int at;
            for (at = 0; at < 64; at++) sum += hg_half_to_float(in[i * 64 + at]) * hg_half_to_float(in[(64 + j) * 64 + at]);
            k += out[i * 128 + j] != sum;
        }
    CHECKF(k > 4000, "%d sums differ on a device that orders otherwise", k);
    hg.wrong_products = false;
    hg_free(in);
    hg_free(out);
    hg_close();
}

/* 64 rows by 128 rows, of 16 numbers, then the products, in registers, by 64 or 128 columns of 128 rows, or 256 of 64 rows, while the first are made again.
   Each of two warpgroups does all of it. */
enum { HGV_RIGHT, HGV_NO_FENCE, HGV_TOUCHED, HGV_EARLY_READ, HGV_ANEW, HGV_THIRD, HGV_ROWS, HGV_NO_DISTANCE, HGV_SHIFTED, HGV_KINDS };

static int hgv_kind, hgv_type, hgv_columns, hgv_rows;

static void hgt_weighted(const void *args) {
    FG_SHARED_MORE(uint16_t, x);
    uint16_t *y = x + 64 * 64, *v = y + hgv_rows * 64;
    const uint64_t *a = (const uint64_t *)args;
    uint64_t left = fg_gpu_wg_operand(fgk_shared_address(x)), right = fg_gpu_wg_operand(fgk_shared_address(y)), columns;
    int kind = hgv_kind, me = fgk_thread(), i, k;
    uint32_t pairs[32];
    float s[64], o[128], other[64];
    for (i = me; i < (64 + 128 + 256) * 8; i += 256) fgk_put_u4(x + i / 8 * 64 + ((i % 8) ^ (i / 8 & 7)) * 8, fgk_load_u4((const uint16_t *)a[1] + 8 * i));
    for (i = 0; i < 64; i++) other[i] = 2.0f, s[i] = 5.0f;
    for (i = 0; i < 128; i++) o[i] = 2.0f;
    fgk_wg_publish();
    fgk_barrier();
    fgk_wg_fence();
    fgk_wg_scores(hgv_type, hgv_rows, s, left, right, 0);
    fgk_wg_commit();
    fgk_wg_wait(0);
    for (i = 0; i < hgv_rows / 2; i += 2) pairs[i / 2] = fgk_wg_pair(hgv_type, s[i], s[i + 1]);
    if (kind != HGV_NO_FENCE) fgk_wg_fence();
    fgk_wg_scores(hgv_type, hgv_rows, s, left, right, 0);
    if (kind == HGV_ANEW) fgk_wg_scores(hgv_type, hgv_rows, s, left, right, 0);
    fgk_wg_commit();
    for (k = 0; k < hgv_rows / 16; k++) {
        columns = fg_gpu_wg_columns(fgk_shared_address(v + k * 16 * 64), kind == HGV_NO_DISTANCE ? 16 : (uint32_t)hgv_rows * 128);
        if (kind == HGV_ROWS) columns = fg_gpu_wg_operand(fgk_shared_address(v + k * 16));
        if (kind == HGV_SHIFTED) columns += 128 >> 4;
        fgk_wg_weighted(hgv_type, hgv_columns, o, pairs + 4 * k, columns);
    }
    if (kind == HGV_THIRD) fgk_wg_scores(hgv_type, hgv_rows, other, left, right, 1);
    fgk_wg_commit();
    if (kind == HGV_TOUCHED) pairs[me % (hgv_rows / 4)] = 0;
    fgk_wg_wait(1);
    for (i = 0; i < hgv_rows / 2; i++) s[i] += 0.0f * s[i]; /* it has landed */
    if (kind == HGV_EARLY_READ) fgk_store((float *)a[0], o[0]);
    fgk_wg_wait(0);
    if (me >= 128 && kind != HGV_EARLY_READ)
        for (i = 0; i < hgv_columns / 2; i++) fgk_store((float *)a[0] + fgk_wg_row(i) * 256 + fgk_wg_col(i), o[i]);
}

/* Operands in registers, columns, sums that begin at 0, two of them under way. */
static void test_gpu_host_weighted(void) {
    static const char *const says[HGV_KINDS] = {"", "without a fence", "registers was touched", "", "begin anew", "yet other sums", "does not begin", "",
                                                "does not begin"};
    float *out = (float *)hg_alloc(64 * 256 * sizeof(float));
    uint16_t *in = (uint16_t *)hg_alloc(448 * 64 * 2);
    uint64_t args[2], state = 3;
    int round, i, j, k, p, wrong;
    args[0] = hg_address(out);
    args[1] = hg_address(in);
    hg.width = 32;
    for (round = 0; round < 6; round++) {
        hgv_type = round % 2 ? FG_GPU_BF16 : FG_GPU_F16;
        hgv_columns = 64 << round / 2;
        hgv_rows = hgv_columns == 256 ? 64 : 128;
        for (i = 0; i < 448 * 64; i++) { /* their products are exact as either type */
            float x = (float)(test_random(&state) % 7) - 3.0f;
            in[i] = (uint16_t)(round % 2 ? fgk_float_to_bfloat(x) : hg_float_to_half(x));
        }
        for (hgv_kind = 0; hgv_kind < HGV_KINDS; hgv_kind++) {
            bool right = hgv_kind == HGV_RIGHT || hgv_kind == HGV_EARLY_READ || hgv_kind == HGV_NO_DISTANCE;
            bool passed = hg_launch(hgt_weighted, args, 1, 1, 256, 448 * 64 * 2);
            CHECKF(passed == right && strstr(hg_error(), says[hgv_kind]) != NULL, "kind %d: %s", hgv_kind, hg_error());
            if (hgv_kind == HGV_EARLY_READ) CHECK(isnan(out[0]));
            for (wrong = 0, i = 0; i < 64 && (hgv_kind == HGV_RIGHT || hgv_kind == HGV_NO_DISTANCE); i++)
                for (j = 0; j < hgv_columns; j++) {
                    float sum = 2.0f;
                    for (p = 0; p < hgv_rows; p++) {
                        float score = 0.0f;
                        for (k = 0; k < 16; k++) score += hg_wg_number(round % 2, in[i * 64 + k]) * hg_wg_number(round % 2, in[(64 + p) * 64 + k]);
                        sum += score * hg_wg_number(round % 2, in[(64 + hgv_rows + j / 64 * hgv_rows + p) * 64 + j % 64]);
                    }
                    wrong += out[i * 256 + j] != sum;
                }
            CHECKF(wrong == 0 || (hgv_kind == HGV_NO_DISTANCE && hgv_columns > 64), "kind %d, type %d, %d columns: %d sums are wrong", hgv_kind, hgv_type,
                   hgv_columns, wrong);
            CHECK(wrong > 1000 || hgv_kind != HGV_NO_DISTANCE || hgv_columns == 64);
        }
    }
    hg_free(in);
    hg_free(out);
    hg_close();
}

static void test_gpu_host_finds(void) {
    static const struct {
        void (*kernel)(const void *args);
        const char *says; /* NULL: nothing is wrong */
    } cases[] = {{hgt_right, NULL},
                 {hgt_no_barrier, NULL /* either message */},
                 {hgt_write_after_read, "race"},
                 {hgt_group_right, NULL},
                 {hgt_group_no_sync, NULL /* either message */},
                 {hgt_group_across, NULL /* either message */},
                 {hgt_many_readers, "race"},
                 {hgt_two_writers, "race"},
                 {hgt_add_right, NULL},
                 {hgt_add_no_barrier, "that threads add to"},
                 {hgt_add_and_write, "race"},
                 {hgt_add_unwritten, "nobody has written"},
                 {hgt_unwritten, "nobody has written"},
                 {hgt_shared_bounds, "outside of shared memory"},
                 {hgt_bounds, "outside of device memory"},
                 {hgt_alignment, "not aligned"},
                 {hgt_divergent_barrier, "divergence"},
                 {hgt_other_barrier, "divergence"},
                 {hgt_divergent_shuffle, "divergence"},
                 {hgt_group_shuffle, NULL},
                 {hgt_async_right, NULL},
                 {hgt_async_no_wait, "nobody has written"},
                 {hgt_async_no_barrier, NULL /* either message */},
                 {hgt_product_right, NULL},
                 {hgt_product_part, "divergence"}};
    float *out = (float *)hg_alloc(1024), *in = (float *)hg_alloc(1024);
    uint64_t args[2];
    int round, i;
    args[0] = hg_address(out);
    args[1] = hg_address(in);
    for (round = 0; round < 20; round++)
        for (i = 0; i < (int)(sizeof(cases) / sizeof(cases[0])); i++) {
            void (*kernel)(const void *) = cases[i].kernel;
            bool right = kernel == hgt_right || kernel == hgt_group_right || kernel == hgt_group_shuffle || kernel == hgt_async_right ||
                         kernel == hgt_product_right || kernel == hgt_add_right, passed;
            size_t bytes = kernel == hgt_bounds ? 64 * sizeof(float) : 1024;
            float *here = bytes < 1024 ? (float *)hg_alloc(bytes) : out;
            args[0] = hg_address(here);
            hg.width = round % 2 ? 64 : 32;
            passed = hg_launch(kernel, args, 2, 1, 64, 0);
            CHECKF(passed == right, "case %d, warps of %d: %s", i, hg.width, hg_error());
            CHECKF(!cases[i].says || strstr(hg_error(), cases[i].says), "case %d: %s", i, hg_error());
            if (kernel == hgt_add_right) CHECK(here[0] == 32.0f && here[63] == 32.0f);
            if (kernel == hgt_group_shuffle) CHECK(here[0] == 31.0f && here[31] == 0.0f && here[40] == 40.0f);
            if (here != out) hg_free(here);
        }
    hg_free(in);
    hg_free(out);
    hg_close();
}

/* The products of fragments are those of the matrices. */
static void test_gpu_host_fragments(void) {
    float *out = (float *)hg_alloc(1024);
    uint16_t *in = (uint16_t *)hg_alloc(16 * 24 * 2);
    uint64_t args[2], state = 3;
    int i, j, k;
    for (i = 0; i < 16 * 24; i++) in[i] = hg_float_to_half((float)(test_random(&state) % 17) - 8.0f);
    args[0] = hg_address(out);
    args[1] = hg_address(in);
    for (hg.width = 32; hg.width <= 64; hg.width += 32) {
        CHECKF(hg_launch(hgt_product_right, args, 1, 1, 64, 0), "%s", hg_error());
        for (i = 0; i < 16; i++)
            for (j = 0; j < 16; j++) {
                float sum = 0.0f;
                for (k = 0; k < 16; k++) sum += hg_half_to_float(in[i * 24 + k]) * hg_half_to_float(in[j * 24 + k]);
                CHECKF(out[i * 16 + j] == sum, "%d %d: %g, not %g", i, j, (double)out[i * 16 + j], (double)sum);
            }
    }
    for (i = 0; i < 65536; i++) {
        float x = hg_half_to_float((uint16_t)i);
        CHECK(fg__float_bits(x) == fg__float_bits(fg__f16_to_f32((uint16_t)i)));
        if (x == x) CHECK(hg_float_to_half(x) == i);
        x = fg__float_from_bits((uint32_t)test_random(&state));
        if (x == x) CHECK(hg_float_to_half(x) == fg__f32_to_f16(x));
    }
    hg_free(in);
    hg_free(out);
    hg_close();
}

/* ---- Running kernels. ---- */

static void *gk_memory[64];
static int gk_n_memory;

/* Device memory with a copy of `data` (NULL: NaN), until gk_end. */
static uint64_t gk_put(const void *data, size_t bytes) {
    void *p = hg_alloc(bytes);
    if (data) memcpy(p, data, bytes);
    gk_memory[gk_n_memory++] = p;
    return hg_address(p);
}

static uint64_t gk_int(int32_t value) { return gk_put(&value, sizeof(value)); }

static float *gk_floats(uint64_t address) { return (float *)(uintptr_t)address; }

static void gk_end(void) {
    while (gk_n_memory > 0) hg_free(gk_memory[--gk_n_memory]);
}

static const char *gk_name(int kernel) {
    static const char *const names[] = {
#define FG_GPU_NAME(name, kind) #name,
        FG_GPU_KERNELS(FG_GPU_NAME)
#undef FG_GPU_NAME
    };
    return names[kernel];
}

/* Runs kernels instead of the host, for warps of its width, if it has been set (tests/check_amd.py); false: it has no such kernel. */
bool (*gk_elsewhere)(const char *name, const void *args, const fg_gpu_shape *shape, int width);

static void gk_run(int kernel, const void *args) {
    fg_gpu_shape shape = fg_gpu_shape_of(kernel, args);
    bool ran = gk_elsewhere && gk_elsewhere(gk_name(kernel), args, &shape, hg.width);
    if (!ran) ran = hg_launch(fg_gpu_entries[kernel], args, shape.grid_x, shape.grid_y, shape.block, shape.shared_bytes);
    CHECKF(ran, "%s, warps of %d: %s", gk_name(kernel), hg.width, hg_error());
}

/* n normal floats on the device. */
static uint64_t gk_normal(size_t n, uint64_t *state) {
    uint64_t at = gk_put(NULL, n * sizeof(float));
    size_t i;
    for (i = 0; i < n; i++) gk_floats(at)[i] = cpu_normal(state);
    return at;
}

static double gk_error(const float *got, const double *wanted, size_t n) {
    double error = 0, square = 0;
    size_t i;
    for (i = 0; i < n; i++) {
        double d = (double)got[i] - wanted[i];
        error += d == d ? d * d : 1e30;
        square += wanted[i] * wanted[i];
    }
    return sqrt(error / (square > 0 ? square : 1));
}

/* A packed weight and what it stands for. */
typedef struct gk_weight {
    fg_type type;
    int k, n;
    fg_gpu_layout layout;
    uint64_t device;
    float *values; /* [n][k] */
} gk_weight;

static gk_weight gk_weight_new(fg_type type, int k, int n, uint64_t *state) {
    gk_weight w;
    size_t bytes = (size_t)fg_type_bytes(type, k), i;
    uint8_t *raw = (uint8_t *)malloc(bytes * (size_t)n);
    w.type = type;
    w.k = k;
    w.n = n;
    w.layout = fg_gpu_layout_of((int)type, k);
    w.device = gk_put(NULL, (size_t)w.layout.stride * (size_t)n);
    w.values = (float *)malloc((size_t)k * (size_t)n * sizeof(float));
    cpu_random_weights(type, raw, (int64_t)k * n, state);
    fg__dequantize_row(type, raw, w.values, (int64_t)k * n);
    for (i = 0; i < (size_t)n; i++)
        fg_gpu_pack_row((int)type, k, &w.layout, raw + i * bytes, (uint8_t *)(uintptr_t)w.device + i * (size_t)w.layout.stride);
    free(raw);
    return w;
}

/* ---- embed ---- */

static void gk_check_embed(fg_type type, int n, float scale) {
    static const int32_t tokens[5] = {3, 0, 6, 6, 1};
    uint64_t state = (uint64_t)type + 1;
    gk_weight w = gk_weight_new(type, n, 7, &state);
    fg_gpu_embed_args a;
    int t, i, bad = 0;
    memset(&a, 0, sizeof(a));
    a.weight = w.device;
    a.tokens = gk_put(tokens, sizeof(tokens));
    a.dst = gk_put(NULL, 5 * (size_t)(n + 3) * sizeof(float));
    a.count = gk_int(5);
    a.layout = w.layout;
    a.n = n;
    a.dst_stride = n + 3;
    a.max_rows = 8;
    a.scale = scale;
    gk_run(fg_gpu_weight_kernel((int)type, FG_GPU_EMBED), &a);
    for (t = 0; t < 5; t++)
        for (i = 0; i < n; i++) {
            float wanted = w.values[tokens[t] * n + i];
            bad += gk_floats(a.dst)[t * (n + 3) + i] != (scale == 1.0f ? wanted : wanted * scale);
            bad += i == 0 && !isnan(gk_floats(a.dst)[t * (n + 3) + n]); /* what is beyond stays as it was */
        }
    CHECKF(bad == 0, "embed of %s: %d values differ", fg_type_name(type), bad);
    free(w.values);
    gk_end();
}

static void test_gpu_embed(void) {
    int i;
    for (hg.width = 32; hg.width <= 64; hg.width += 32)
        for (i = 0; i < CPU_TYPES; i++) {
            gk_check_embed(cpu_types[i], 512, i % 2 ? 1.0f : 2.5f);
            if (fg_gpu_is_float((int)cpu_types[i])) gk_check_embed(cpu_types[i], 37, 1.0f);
        }
    hg_close();
}

/* ---- Products. ---- */

typedef struct gk_product {
    gk_weight w;
    fg_gpu_gemm_args args;
    fg_gpu_acts_args acts;
    int m;
} gk_product;

/* Bytes of activations of so many rows: of those in the order of fragments whole tiles. */
static size_t gk_acts_bytes(int format, int k, int rows) {
    return (size_t)(format < FG_GPU_ACTS_FRAGMENTS_0 ? rows : (rows + 63) / 64 * 64) * (size_t)fg_gpu_acts_stride(format, k) * 2;
}

static gk_product gk_product_new(fg_type type, int k, int n, int m, bool extras, uint64_t *state) {
    gk_product p;
    float most = 0;
    int i;
    memset(&p, 0, sizeof(p));
    p.m = m;
    p.w = gk_weight_new(type, k, n, state);
    for (i = 0; i < n; i++) {
        const uint8_t *row = (const uint8_t *)(uintptr_t)p.w.device + (size_t)i * (size_t)p.w.layout.stride;
        most = (float)test_worse((double)most, (double)fg_gpu_row_most((int)type, k, &p.w.layout, row, fg__f16_to_f32));
    }
    p.args.exponent = fg_gpu_exponent(most);
    for (i = 0; i < n * k && fg_gpu_has_numbers((int)type); i++) CHECK(fabsf(p.w.values[i]) <= most);
    p.args.weight = p.w.device;
    p.args.layout = p.w.layout;
    p.args.n = n;
    p.args.k = k;
    p.args.src_stride = k + 5;
    p.args.src = gk_normal((size_t)m * (size_t)(k + 5), state);
    p.args.acts_stride = fg_gpu_acts_stride(FG_GPU_ACTS_HALF, k);
    p.args.acts = gk_put(NULL, gk_acts_bytes(FG_GPU_ACTS_FRAGMENTS_0, k, m));
    p.args.scales = gk_put(NULL, (size_t)m * sizeof(float));
    p.args.dst_stride = n + 1;
    p.args.dst = gk_put(NULL, (size_t)m * (size_t)(n + 1) * sizeof(float));
    p.args.src2_stride = n + 2;
    if (extras) {
        p.args.bias = gk_normal((size_t)n, state);
        p.args.src2 = gk_normal((size_t)m * (size_t)(n + 2), state);
        p.args.act = FG_ACT_SILU;
    }
    p.args.count = gk_int(m);
    p.args.max_rows = m;
    p.acts.src = p.args.src;
    p.acts.acts = p.args.acts;
    p.acts.scales = p.args.scales;
    p.acts.count = p.args.count;
    p.acts.k = k;
    p.acts.src_stride = p.args.src_stride;
    p.acts.acts_stride = p.args.acts_stride;
    p.acts.max_rows = m;
    return p;
}

/* Activations as skinny reads them. */
static void gk_make_fragments(gk_product *p) {
    p->acts.format = fg_gpu_acts_fragments((int)p->w.type);
    p->acts.acts_stride = p->args.acts_stride = fg_gpu_acts_stride(p->acts.format, p->args.k);
    gk_run(FG_GPU_KERNEL_acts, &p->acts);
}

static void gk_product_end(gk_product *p) {
    free(p->w.values);
    gk_end();
}

/* The normalised error of the first `rows` rows. */
static double gk_product_error(const gk_product *p, int rows) {
    double *wanted = (double *)malloc((size_t)p->w.n * sizeof(double)), worst = 0;
    int t, j, i;
    for (t = 0; t < rows; t++) {
        double error;
        for (j = 0; j < p->w.n; j++) {
            const float *x = gk_floats(p->args.src) + t * p->args.src_stride, *w = p->w.values + (size_t)j * (size_t)p->w.k;
            double sum = p->args.bias ? (double)gk_floats(p->args.bias)[j] : 0.0;
            for (i = 0; i < p->w.k; i++) sum += (double)x[i] * (double)w[i];
            wanted[j] = cpu_act(p->args.act, sum) + (p->args.src2 ? (double)gk_floats(p->args.src2)[t * p->args.src2_stride + j] : 0.0);
        }
        error = gk_error(gk_floats(p->args.dst) + t * p->args.dst_stride, wanted, (size_t)p->w.n);
        CHECK(isnan(gk_floats(p->args.dst)[t * p->args.dst_stride + p->w.n]));
        worst = test_worse(worst, error);
    }
    free(wanted);
    return worst;
}

static void gk_forget(gk_product *p) {
    memset(gk_floats(p->args.dst), 0xFF, (size_t)p->m * (size_t)p->args.dst_stride * sizeof(float));
}

/* All types with 1 to 8 rows; what is beyond the count stays as it was; rows have the same bits however many there are. */
static void test_gpu_gemv(void) {
    int i, which, r;
    for (hg.width = 32; hg.width <= 64; hg.width += 32)
        for (i = 0; i < CPU_TYPES; i++) {
            uint64_t state = (uint64_t)i + 11;
            gk_product p = gk_product_new(cpu_types[i], 1280, 19, 9, true, &state);
            float first[19];
            for (which = FG_GPU_GEMV1; which <= FG_GPU_GEMV8; which++) {
                int rows = which == FG_GPU_GEMV8 ? 7 : which == FG_GPU_GEMV4 ? 3 : which == FG_GPU_GEMV2 ? 2 : 1;
                double error;
                gk_forget(&p);
                *(int32_t *)(uintptr_t)p.args.count = rows;
                p.args.max_rows = rows + 1;
                gk_run(fg_gpu_weight_kernel((int)cpu_types[i], which), &p.args);
                error = gk_product_error(&p, rows);
                CHECKF(error < 2e-6, "gemv of %s, %d rows: error %g", fg_type_name(cpu_types[i]), rows, error);
                for (r = rows; r < p.m; r++) CHECK(isnan(gk_floats(p.args.dst)[r * p.args.dst_stride]));
                if (rows == 1) memcpy(first, gk_floats(p.args.dst), sizeof(first));
                CHECKF(memcmp(first, gk_floats(p.args.dst), sizeof(first)) == 0, "%s: the first of %d rows differs", fg_type_name(cpu_types[i]),
                       rows);
            }
            gk_product_end(&p);
        }
    hg_close();
}

/* Widths that are no multiples of anything, of the types that may have them. */
static void test_gpu_gemv_odd(void) {
    static const int widths[] = {1, 7, 33, 1025};
    int i, j;
    for (i = 0; i < 3; i++)
        for (j = 0; j < 4; j++) {
            static const fg_type types[] = {FG_TYPE_F32, FG_TYPE_F16, FG_TYPE_BF16};
            uint64_t state = 5;
            gk_product p = gk_product_new(types[i], widths[j], 5, 18, false, &state);
            double error;
            hg.width = 32 << (j & 1);
            gk_run(fg_gpu_weight_kernel((int)types[i], FG_GPU_GEMV4), &p.args); /* many rows go through few columns */
            CHECKF((error = gk_product_error(&p, p.m)) < 2e-6, "%s of %d: error %g", fg_type_name(types[i]), widths[j], error);
            gk_forget(&p);
            gk_run(FG_GPU_KERNEL_acts, &p.acts);
            gk_run(fg_gpu_weight_kernel((int)types[i], FG_GPU_GEMM16), &p.args);
            CHECKF((error = gk_product_error(&p, p.m)) < 1e-3, "%s of %d: error %g", fg_type_name(types[i]), widths[j], error);
            gk_product_end(&p);
        }
    hg_close();
}

/* Few rows straight from memory: every kernel with fewer rows than it is for and with more, rows of odd widths, and a row alone, which has
   the bits that it has beside others. */
static void test_gpu_skinny(void) {
    static const int rows[] = {3, 13, 29, 37};
    int i, j, k, t;
    hg.width = 32;
    for (i = 0; i < CPU_TYPES; i++)
        for (k = 0; k < (fg_gpu_has_blocks_of_256((int)cpu_types[i]) ? 2 : 3); k++) { /* 288: of the second step some lanes have nothing */
            uint64_t state = (uint64_t)i + 41;
            int width = k == 0 ? 1280 : k == 1 ? 256 : fg_gpu_is_float((int)cpu_types[i]) ? 73 : 288;
            gk_product p = gk_product_new(cpu_types[i], width, 83, 70, k == 0, &state);
            float *all = (float *)malloc((size_t)p.m * (size_t)p.args.dst_stride * sizeof(float));
            for (j = 0; j < 4 && cpu_types[i] != FG_TYPE_F32; j++) {
                int kernel = fg_gpu_skinny_kernel((int)cpu_types[i], 8 << j);
                double error;
                p.args.across = 1 << (i + j + k) % 4; /* any is right */
                *(int32_t *)(uintptr_t)p.args.count = k ? p.m : rows[j];
                gk_make_fragments(&p);
                gk_forget(&p);
                gk_run(kernel, &p.args);
                error = gk_product_error(&p, k ? p.m : rows[j]);
                CHECKF(error < 1e-3, "%s, k of %d: error %g", gk_name(kernel), width, error);
                for (t = k ? p.m : rows[j]; t < p.m; t++) CHECK(isnan(gk_floats(p.args.dst)[t * p.args.dst_stride]));
                memcpy(all, gk_floats(p.args.dst), (size_t)p.m * (size_t)p.args.dst_stride * sizeof(float));
                *(int32_t *)(uintptr_t)p.args.count = 1;
                gk_forget(&p);
                gk_run(kernel, &p.args);
                CHECKF(memcmp(all, gk_floats(p.args.dst), (size_t)p.w.n * sizeof(float)) == 0, "%s: a row alone differs", gk_name(kernel));
                CHECK(isnan(gk_floats(p.args.dst)[p.args.dst_stride]));
            }
            free(all);
            gk_product_end(&p);
        }
    hg_close();
}

/* Where there are few rows of the weight warps share k; where there are many, they are side by side. */
static void test_gpu_across(void) {
    int32_t n;
    CHECK(fg_gpu_skinny_across(4096, 4096, 8) == 1 && fg_gpu_skinny_across(6144, 4096, 8) == 2 && fg_gpu_skinny_across(128256, 4096, 32) == 8);
    CHECK(fg_gpu_skinny_across(16, 64, 8) == 1 && fg_gpu_skinny_across(128256, 4096, 64) == 8);
    for (n = 1; n < 1 << 28; n += n / 3 + 1) CHECK(fg_gpu_skinny_across(n, 1 << 14, 16) >= 1);
}

/* A product of three weights at once has the bits of each alone. */
static void test_gpu_joined(void) {
    static const fg_type types[] = {FG_TYPE_BF16, FG_TYPE_Q8_0, FG_TYPE_Q4_K, FG_TYPE_IQ4_NL};
    int i, j, t, which;
    hg.width = 32;
    for (i = 0; i < 4; i++)
        for (which = 0; which < 3; which++) { /* gemv4, skinny8, skinny64 */
            uint64_t state = (uint64_t)i + 61;
            gk_product p[3];
            fg_gpu_gemm_args all;
            int kernel = which ? fg_gpu_skinny_kernel((int)types[i], which == 1 ? 8 : 64) : fg_gpu_weight_kernel((int)types[i], FG_GPU_GEMV4), n = 0;
            for (j = 0; j < 3; j++) {
                p[j] = gk_product_new(types[i], 256, 21 + 12 * j, 5, false, &state);
                p[j].args.src = p[0].args.src, p[j].args.acts = p[0].args.acts, p[j].args.scales = p[0].args.scales;
                if (j != 1) p[j].args.bias = gk_normal((size_t)p[j].args.n, &state);
                p[j].args.exponent -= j;
                if (j == 0) gk_make_fragments(&p[0]);
                p[j].args.acts_stride = p[0].args.acts_stride;
                p[j].args.across = 2;
                gk_run(kernel, &p[j].args);
                n += p[j].args.n;
            }
            all = p[0].args;
            all.n = n;
            all.dst_stride = n + 1;
            all.dst = gk_put(NULL, 5 * (size_t)(n + 1) * sizeof(float));
            for (j = 0, n = p[0].args.n; j < 2; n += p[++j].args.n) {
                all.more[j].weight = p[j + 1].args.weight, all.more[j].bias = p[j + 1].args.bias;
                all.more[j].from = n, all.more[j].exponent = p[j + 1].args.exponent;
            }
            gk_run(kernel, &all);
            for (j = 0, n = 0; j < 3; n += p[j++].args.n)
                for (t = 0; t < 5; t++)
                    CHECKF(memcmp(gk_floats(all.dst) + t * all.dst_stride + n, gk_floats(p[j].args.dst) + t * p[j].args.dst_stride,
                                  (size_t)p[j].args.n * sizeof(float)) == 0, "%s: weight %d of three", gk_name(kernel), j);
            for (j = 0; j < 3; j++) free(p[j].w.values);
            gk_end();
        }
    hg_close();
}

/* By products of warpgroups: the host adds up in the same order, so that the bits are those of gemm16; but where two warpgroups share
   the sums. */
static void gk_check_warpgroups(gk_product *p, const float *by16) {
    int kernel = fg_gpu_weight_kernel((int)p->w.type, FG_GPU_GEMMWG), way, t;
    if (hg.width != 32 || gk_elsewhere) return;
    for (way = FG_GPU_WG_256; way <= FG_GPU_WG_WAYS; way++) {
        gk_forget(p);
        p->args.way = way;
        gk_run(kernel, &p->args);
        for (t = 0; t < p->m && way != FG_GPU_WG_HALVES; t++)
            CHECKF(memcmp(by16 + t * p->args.dst_stride, gk_floats(p->args.dst) + t * p->args.dst_stride, (size_t)p->w.n * sizeof(float)) == 0,
                   "%s: way %d, row %d is not that of gemm16", gk_name(kernel), way, t);
        if (way == FG_GPU_WG_HALVES) {
            double error = gk_product_error(p, p->m);
            CHECKF(error < 1e-3, "%s by halves: error %g", gk_name(kernel), error);
        }
        CHECK(isnan(gk_floats(p->args.dst)[p->w.n]));
    }
    p->args.way = 0;
}

/* By products of bytes: as near as activations of eight bits allow, the same bits 16 or 64 rows at a time and for a row alone. */
static void gk_check_bytes(gk_product *p) {
    size_t bytes = (size_t)p->m * (size_t)p->args.dst_stride * sizeof(float), row = (size_t)p->args.dst_stride;
    float *by16 = (float *)malloc(bytes);
    int kernel = fg_gpu_byte_kernel((int)p->w.type, 16), t;
    fg_gpu_acts_args acts = p->acts;
    double error;
    if (kernel >= 0) {
        acts.format = FG_GPU_ACTS_BYTES;
        gk_run(FG_GPU_KERNEL_acts, &acts);
        gk_forget(p);
        gk_run(kernel, &p->args);
        error = gk_product_error(p, p->m);
        CHECKF(error < 2e-2, "%s: error %g", gk_name(kernel), error);
        memcpy(by16, gk_floats(p->args.dst), bytes);
        gk_forget(p);
        gk_run(fg_gpu_byte_kernel((int)p->w.type, 64), &p->args);
        for (t = 0; t < p->m; t++)
            CHECKF(memcmp(by16 + (size_t)t * row, gk_floats(p->args.dst) + (size_t)t * row, (size_t)p->w.n * sizeof(float)) == 0,
                   "%s: row %d differs with 64 rows at a time", gk_name(kernel), t);
        gk_forget(p);
        *(int32_t *)(uintptr_t)p->args.count = 1;
        gk_run(kernel, &p->args);
        CHECK(memcmp(by16, gk_floats(p->args.dst), (size_t)p->w.n * sizeof(float)) == 0 && isnan(gk_floats(p->args.dst)[row]));
        *(int32_t *)(uintptr_t)p->args.count = p->m;
        gk_run(FG_GPU_KERNEL_acts, &p->acts);
    }
    free(by16);
}

/* All types with many rows. The kernels for 16, 64 and 128 rows at a time have the same bits, and so has a row alone. */
static void test_gpu_gemm(void) {
    int i, t, which;
    for (hg.width = 32; hg.width <= 64; hg.width += 32)
        for (i = 0; i < CPU_TYPES; i++) {
            uint64_t state = (uint64_t)i + 23;
            gk_product p = gk_product_new(cpu_types[i], 256, 70, 37, i % 2 == 0, &state);
            size_t bytes = (size_t)p.m * (size_t)p.args.dst_stride * sizeof(float);
            float *by16 = (float *)malloc(bytes);
            double error;
            gk_run(FG_GPU_KERNEL_acts, &p.acts);
            gk_run(fg_gpu_weight_kernel((int)cpu_types[i], FG_GPU_GEMM16), &p.args);
            error = gk_product_error(&p, p.m);
            CHECKF(error < 1e-3, "gemm16 of %s: error %g", fg_type_name(cpu_types[i]), error);
            memcpy(by16, gk_floats(p.args.dst), bytes);
            for (which = FG_GPU_GEMM64; which <= FG_GPU_GEMM128; which++) {
                gk_forget(&p);
                gk_run(fg_gpu_weight_kernel((int)cpu_types[i], which), &p.args);
                for (t = 0; t < p.m; t++)
                    CHECKF(memcmp(by16 + t * p.args.dst_stride, gk_floats(p.args.dst) + t * p.args.dst_stride, 70 * sizeof(float)) == 0,
                           "%s: row %d is not that of gemm16", gk_name(fg_gpu_weight_kernel((int)cpu_types[i], which)), t);
            }
            gk_check_warpgroups(&p, by16);
            gk_check_bytes(&p);
            memcpy(gk_floats(p.args.src), gk_floats(p.args.src) + 20 * p.args.src_stride, (size_t)p.args.k * sizeof(float));
            if (p.args.src2)
                memcpy(gk_floats(p.args.src2), gk_floats(p.args.src2) + 20 * p.args.src2_stride, (size_t)p.args.n * sizeof(float));
            *(int32_t *)(uintptr_t)p.args.count = 1;
            gk_forget(&p);
            gk_run(FG_GPU_KERNEL_acts, &p.acts);
            gk_run(fg_gpu_weight_kernel((int)cpu_types[i], FG_GPU_GEMM16), &p.args);
            CHECK(memcmp(by16 + 20 * p.args.dst_stride, gk_floats(p.args.dst), 70 * sizeof(float)) == 0);
            CHECK(isnan(gk_floats(p.args.dst)[p.args.dst_stride]));
            free(by16);
            gk_product_end(&p);
        }
    hg_close();
}

/* More tiles than one in every direction. */
static void test_gpu_gemm_tiles(void) {
    int which;
    for (hg.width = 32; hg.width <= 64; hg.width += 32) {
        uint64_t state = 31;
        gk_product p = gk_product_new(FG_TYPE_Q8_0, 160, 150, 140, true, &state);
        gk_run(FG_GPU_KERNEL_acts, &p.acts);
        for (which = FG_GPU_GEMM16; which <= (hg.width == 32 && !gk_elsewhere ? FG_GPU_GEMMWG : FG_GPU_GEMM128); which++) {
            double error;
            gk_forget(&p);
            gk_run(fg_gpu_weight_kernel(FG_GPU_Q8_0, which), &p.args);
            CHECKF((error = gk_product_error(&p, p.m)) < 1e-3, "%s: error %g", gk_name(fg_gpu_weight_kernel(FG_GPU_Q8_0, which)), error);
        }
        gk_product_end(&p);
    }
    hg_close();
}

/* Products of warpgroups of more tiles and steps than one, in all ways, of widths that are no multiples of anything; results that lie so
   that four at a time are stored, and such that are not; a row has the same bits however many there are. */
static void test_gpu_gemm_warpgroups(void) {
    static const struct {
        fg_type type;
        int k, n, m;
        bool extras;
    } cases[] = {{FG_TYPE_Q8_0, 480, 136, 300, true}, {FG_TYPE_BF16, 1025, 71, 70, false}, {FG_TYPE_F32, 33, 10, 5, false},
                 {FG_TYPE_Q2_K, 768, 68, 3, true},    {FG_TYPE_F16, 200, 129, 129, true}};
    int i, way, aligned, t;
    hg.width = 32;
    for (i = 0; i < (int)(sizeof(cases) / sizeof(cases[0])); i++) {
        uint64_t state = 37 + (uint64_t)i;
        gk_product p = gk_product_new(cases[i].type, cases[i].k, cases[i].n, cases[i].m, cases[i].extras, &state);
        int kernel = fg_gpu_weight_kernel((int)cases[i].type, FG_GPU_GEMMWG);
        float *last = (float *)malloc((size_t)p.args.n * sizeof(float));
        gk_run(FG_GPU_KERNEL_acts, &p.acts);
        for (aligned = 0; aligned < 2; aligned++) {
            if (aligned) { /* with a row's worth of room behind */
                p.args.dst_stride = (p.args.n + 7) / 4 * 4;
                p.args.dst = gk_put(NULL, (size_t)p.m * (size_t)p.args.dst_stride * sizeof(float));
                p.args.src2_stride = p.args.n / 4 * 4;
                p.args.act = FG_ACT_NONE;
                if (p.args.n % 4 == 0 && p.args.src2) p.args.src2 = gk_normal((size_t)p.m * (size_t)p.args.src2_stride, &state);
                else p.args.src2_stride = p.args.n + 2;
            }
            for (way = FG_GPU_WG_256; way <= FG_GPU_WG_WAYS; way++) {
                double error;
                *(int32_t *)(uintptr_t)p.args.count = p.m;
                p.args.max_rows = p.m + 1;
                p.args.way = way;
                gk_forget(&p);
                gk_run(kernel, &p.args);
                CHECKF((error = gk_product_error(&p, p.m)) < (cases[i].type == FG_TYPE_BF16 ? 2e-3 : 1e-3),
                       "%s, way %d: error %g", gk_name(kernel), way, error);
                memcpy(last, gk_floats(p.args.dst), (size_t)p.args.n * sizeof(float));
                *(int32_t *)(uintptr_t)p.args.count = 1;
                gk_forget(&p);
                gk_run(kernel, &p.args);
                CHECK(memcmp(last, gk_floats(p.args.dst), (size_t)p.args.n * sizeof(float)) == 0);
                for (t = 1; t < p.m; t++) CHECK(isnan(gk_floats(p.args.dst)[t * p.args.dst_stride]));
            }
        }
        free(last);
        gk_product_end(&p);
    }
    hg_close();
}

/* Ways of sizes that are often met. */
static void test_gpu_wg_ways(void) {
    static const int sizes[][3] = {{4096, 128, FG_GPU_WG_HALVES}, {4096, 512, FG_GPU_WG_128}, {4096, 2048, FG_GPU_WG_256}, {14336, 2048, FG_GPU_WG_256},
                                   {14336, 128, FG_GPU_WG_128}};
    fg_gpu_gemm_args a;
    int i;
    memset(&a, 0, sizeof(a));
    for (i = 0; i < 5; i++) {
        a.n = sizes[i][0];
        a.max_rows = sizes[i][1];
        CHECKF(fg_gpu_wg_way(&a) == sizes[i][2], "%d x %d: way %d", a.n, a.max_rows, fg_gpu_wg_way(&a));
        a.way = FG_GPU_WG_128;
        CHECK(fg_gpu_wg_way(&a) == FG_GPU_WG_128);
        a.way = 0;
    }
}

/* Activations of any size keep their bits. */
static void test_gpu_acts(void) {
    static const float sizes[] = {1e-42f, 1e-36f, 1e-20f, 1.0f, 6e4f, 1e20f, 3e38f};
    int i, j;
    for (i = 0; i < 9; i++) {
        float x[70];
        uint64_t state = 9, acts = gk_put(NULL, 128 * 2), scales = gk_put(NULL, 4);
        fg_gpu_acts_args a;
        memset(&a, 0, sizeof(a));
        for (j = 0; j < 70; j++) x[j] = i < 7 ? sizes[i] * (float)(2.0 * cpu_uniform(&state) - 1.0) : 0.0f;
        if (i == 8) x[3] = INFINITY;
        a.src = gk_put(x, sizeof(x));
        a.acts = acts;
        a.scales = scales;
        a.count = gk_int(1);
        a.k = a.src_stride = 70;
        a.acts_stride = 128;
        a.max_rows = 3;
        hg.width = 32 << (i & 1);
        gk_run(FG_GPU_KERNEL_acts, &a);
        for (j = 0; j < 128; j++) {
            double got = (double)hg_half_to_float(((uint16_t *)(uintptr_t)acts)[j]) * (double)gk_floats(scales)[0];
            if (j >= 70) CHECK(got == 0.0);
            else if (i == 8 && j == 3) CHECK(isinf(got));
            else CHECKF(fabs(got - (double)x[j]) <= (i < 7 ? (double)sizes[i] : 0.0) / 1024 * (i == 0 ? 100 : 1), "%g is %g", (double)x[j], got);
        }
        gk_end();
    }
    hg_close();
}

/* Activations as bytes: their sums, rows of nothing, and what is not finite, which does not become finite. */
static void test_gpu_acts_bytes(void) {
    int i, j, kind;
    for (kind = 0; kind < 3; kind++) {
        float x[70];
        uint64_t state = 9;
        fg_gpu_acts_args a;
        const int8_t *bytes;
        const float *scales;
        memset(&a, 0, sizeof(a));
        for (j = 0; j < 70; j++) x[j] = kind == 1 ? 0.0f : cpu_normal(&state);
        if (kind == 2) x[40] = -INFINITY;
        a.src = gk_put(x, sizeof(x));
        a.acts = gk_put(NULL, 128 * 2);
        a.scales = gk_put(NULL, 4);
        a.count = gk_int(1);
        a.k = a.src_stride = 70;
        a.acts_stride = 128;
        a.max_rows = 3;
        a.format = FG_GPU_ACTS_BYTES;
        hg.width = 32 << (kind & 1);
        gk_run(FG_GPU_KERNEL_acts, &a);
        bytes = (const int8_t *)(uintptr_t)a.acts;
        scales = (const float *)(uintptr_t)(a.acts + 128);
        for (i = 0; i < 4; i++) {
            uint32_t words;
            int sums[2] = {0, 0};
            memcpy(&words, scales + 2 * i + 1, 4);
            for (j = 32 * i; j < 32 * i + 32; j++) {
                double wanted = j < 70 ? (double)x[j] : 0, got = (double)bytes[j] * (double)scales[2 * i];
                sums[j / 16 % 2] += bytes[j];
                if (kind == 2 && i == 1) CHECK(j != 40 || isinf(got));
                else CHECKF(fabs(got - wanted) <= 0.501 * (double)scales[2 * i], "%g is %g", wanted, got);
            }
            CHECK((int16_t)words == sums[0] && (int16_t)(words >> 16) == sums[1]);
        }
        CHECK(gk_floats(a.scales)[0] == 1.0f);
        gk_end();
    }
    hg_close();
}

/* bfloat16 activations; what is left to do after a product by a library. */
static void gk_check_bytes_splits(gk_product *p, const fg_gpu_gemm_args *part, const fg_gpu_gemm_args *rest, int rows) {
    int kernel = fg_gpu_byte_kernel((int)p->w.type, rows);
    double error;
    if (kernel < 0) return;
    p->acts.format = FG_GPU_ACTS_BYTES;
    *(int32_t *)(uintptr_t)p->args.count = p->m;
    gk_run(FG_GPU_KERNEL_acts, &p->acts);
    gk_forget(p);
    gk_run(kernel, part);
    gk_run(FG_GPU_KERNEL_finish, rest);
    error = gk_product_error(p, p->m);
    CHECKF(error < 2e-2, "%s by %d splits: error %g", gk_name(kernel), part->splits, error);
}

/* Products by splits of k, of all types and widths of warps, with bias, activation and what is added: finish does that when all sums are there. */
static void test_gpu_splits(void) {
    static const int splits[] = {2, 3, 8};
    int i, which, t;
    for (hg.width = 32; hg.width <= 64; hg.width += 32)
        for (i = 0; i < CPU_TYPES; i++)
            for (which = FG_GPU_GEMM16; which <= FG_GPU_GEMM128; which++) {
                uint64_t state = (uint64_t)i + 31;
                gk_product p = gk_product_new(cpu_types[i], 768, 70, 37, true, &state);
                fg_gpu_gemm_args part = p.args, rest = p.args;
                double error;
                part.splits = rest.splits = splits[(i + which) % 3];
                part.dst = rest.src = gk_put(NULL, (size_t)part.splits * (size_t)part.max_rows * 70 * sizeof(float));
                part.dst_stride = rest.src_stride = 70;
                part.bias = part.src2 = rest.scales = 0;
                part.act = FG_ACT_NONE;
                gk_run(FG_GPU_KERNEL_acts, &p.acts);
                gk_run(fg_gpu_weight_kernel((int)cpu_types[i], which), &part);
                gk_run(FG_GPU_KERNEL_finish, &rest);
                error = gk_product_error(&p, p.m);
                CHECKF(error < 1e-3, "%s by %d splits: error %g", gk_name(fg_gpu_weight_kernel((int)cpu_types[i], which)), part.splits, error);
                *(int32_t *)(uintptr_t)p.args.count = 5; /* of fewer rows than there is room for */
                gk_forget(&p);
                gk_run(fg_gpu_weight_kernel((int)cpu_types[i], which), &part);
                gk_run(FG_GPU_KERNEL_finish, &rest);
                error = gk_product_error(&p, 5);
                CHECKF(error < 1e-3, "%s by %d splits, 5 rows: error %g", gk_name(fg_gpu_weight_kernel((int)cpu_types[i], which)), part.splits, error);
                for (t = 5; t < p.m; t++) CHECK(isnan(gk_floats(p.args.dst)[t * p.args.dst_stride]));
                if (which < FG_GPU_GEMM128) gk_check_bytes_splits(&p, &part, &rest, which == FG_GPU_GEMM16 ? 16 : 64);
                gk_product_end(&p);
            }
    hg_close();
    CHECK(fg_gpu_gemm_splits(FG_GPU_GEMM64, 4096, 4096, 64) == 4 && fg_gpu_gemm_splits(FG_GPU_GEMM16, 1024, 4096, 9) == 16);
    CHECK(fg_gpu_gemm_splits(FG_GPU_GEMM128, 4096, 4096, 512) == 2 && fg_gpu_gemm_splits(FG_GPU_GEMM64, 14336, 4096, 64) == 1);
    CHECK(fg_gpu_gemm_splits(FG_GPU_GEMM64, 64, 448, 64) == 1 && fg_gpu_gemm_splits(FG_GPU_GEMM64, 64, 512, 64) == 2);
}

static void test_gpu_finish(void) {
    uint64_t state = 5;
    int act, i, t;
    for (act = FG_ACT_NONE; act <= FG_ACT_RELU; act++) {
        fg_gpu_acts_args b;
        fg_gpu_gemm_args a;
        memset(&b, 0, sizeof(b));
        memset(&a, 0, sizeof(a));
        hg.width = 32 << (act & 1);
        b.src = a.src = gk_normal(7 * 150, &state);
        b.acts = gk_put(NULL, 7 * 192 * 2);
        b.count = a.count = gk_int(6);
        b.k = a.n = b.src_stride = a.src_stride = 150;
        b.acts_stride = 192;
        b.max_rows = a.max_rows = 7;
        b.format = FG_GPU_ACTS_BFLOAT;
        gk_run(FG_GPU_KERNEL_acts, &b);
        for (i = 0; i < 6 * 192; i++) {
            uint16_t wanted = i % 192 < 150 ? fg__f32_to_bf16(gk_floats(a.src)[i / 192 * 150 + i % 192]) : 0;
            CHECK(((uint16_t *)(uintptr_t)b.acts)[i] == wanted);
        }
        a.scales = act % 2 ? gk_normal(7, &state) : 0;
        a.bias = act % 3 ? gk_normal(150, &state) : 0;
        a.src2 = act % 2 ? 0 : gk_normal(7 * 160, &state);
        a.src2_stride = 160;
        a.dst = gk_put(NULL, 7 * 170 * sizeof(float));
        a.dst_stride = 170;
        a.act = act;
        gk_run(FG_GPU_KERNEL_finish, &a);
        if (act < 6) { /* four at a time, in place: the same */
            fg_gpu_gemm_args b = a;
            b.dst = b.src = gk_put(NULL, 6 * 152 * sizeof(float));
            b.dst_stride = b.src_stride = 152, b.n = 148;
            for (t = 0; t < 6; t++) memcpy(gk_floats(b.src) + t * 152, gk_floats(a.src) + t * 150, 148 * sizeof(float));
            gk_run(FG_GPU_KERNEL_finish, &b);
            for (t = 0; t < 6; t++) CHECK(memcmp(gk_floats(b.dst) + t * 152, gk_floats(a.dst) + t * 170, 148 * sizeof(float)) == 0);
        }
        for (t = 0; t < 6; t++) {
            double wanted[150];
            for (i = 0; i < 150; i++)
                wanted[i] = cpu_act(act, (double)gk_floats(a.src)[t * 150 + i] * (a.scales ? (double)gk_floats(a.scales)[t] : 1) +
                                             (a.bias ? (double)gk_floats(a.bias)[i] : 0)) + (a.src2 ? (double)gk_floats(a.src2)[t * 160 + i] : 0);
            CHECKF(gk_error(gk_floats(a.dst) + t * 170, wanted, 150) < 1e-6, "activation %d", act);
        }
        CHECK(isnan(gk_floats(a.dst)[6 * 170]));
        gk_end();
    }
    hg_close();
}

/* ---- norm, act_mul, gather, copy ---- */

/* n halves or bfloat16s of activations of two rows at strides that are multiples of 4, or are not. */
static uint64_t gk_acts_of(uint64_t src, int n, int stride, int format, uint64_t *scales) {
    fg_gpu_acts_args a;
    memset(&a, 0, sizeof(a));
    a.src = src;
    a.k = n, a.src_stride = stride, a.max_rows = 2, a.format = format;
    a.acts_stride = fg_gpu_acts_stride(format, n);
    a.acts = gk_put(NULL, gk_acts_bytes(format, n, 2));
    a.scales = *scales = gk_put(NULL, 2 * sizeof(float));
    a.count = gk_int(2);
    gk_run(FG_GPU_KERNEL_acts, &a);
    return a.acts;
}

/* What norm and act_rows make is what `acts` makes of the rows that they write. */
static void gk_check_made(uint64_t acts, uint64_t scales, int format, uint64_t dst, int n, int stride, const char *what) {
    uint64_t its_scales, its = gk_acts_of(dst, n, stride, format, &its_scales);
    CHECKF(memcmp(gk_floats(acts), gk_floats(its), gk_acts_bytes(format, n, 2)) == 0, "%s of %d, format %d: other activations", what, n, format);
    CHECKF(format == FG_GPU_ACTS_BFLOAT || memcmp(gk_floats(scales), gk_floats(its_scales), 2 * sizeof(float)) == 0, "%s of %d: other scales", what, n);
}

/* Rows whose elements may be read four at a time, which may stay in registers, and others: the same bits. */
static void gk_check_row_ways(int n, int flags) {
    uint64_t state = (uint64_t)n, acts[2], scales[2], norms[2], muls[2], rows[2];
    float *src = (float *)malloc(2 * (size_t)n * sizeof(float)), *src2 = (float *)malloc(2 * (size_t)n * sizeof(float));
    uint64_t vector = gk_normal((size_t)n + 1, &state);
    static const int formats[] = {FG_GPU_ACTS_HALF, FG_GPU_ACTS_FRAGMENTS_0, FG_GPU_ACTS_FRAGMENTS_1, FG_GPU_ACTS_FRAGMENTS_2};
    int format = flags & 1 ? FG_GPU_ACTS_BFLOAT : formats[(flags / 2 + n) % 4], way, t, i;
    size_t bytes = (size_t)n * sizeof(float);
    for (i = 0; i < 2 * n; i++) src[i] = cpu_normal(&state), src2[i] = cpu_normal(&state);
    for (way = 0; way < 2; way++) { /* the other begins at one element more */
        int stride = (n + 3) / 4 * 4 + 4 + way, acts_stride = fg_gpu_acts_stride(format, n);
        size_t size = 2 * (size_t)stride * sizeof(float) + 4;
        fg_gpu_norm_args a;
        fg_gpu_act_mul_args m;
        memset(&a, 0, sizeof(a));
        memset(&m, 0, sizeof(m));
        a.src = gk_put(NULL, size) + 4 * (uint64_t)way, a.src2 = gk_put(NULL, size) + 4 * (uint64_t)way;
        m.dst = gk_put(NULL, size) + 4 * (uint64_t)way, norms[way] = a.dst = gk_put(NULL, size) + 4 * (uint64_t)way;
        for (t = 0; t < 2; t++) {
            memcpy(gk_floats(a.src) + t * stride, src + t * n, bytes);
            memcpy(gk_floats(a.src2) + t * stride, src2 + t * n, bytes);
        }
        m.src = a.src, m.src2 = a.src2;
        m.count = a.count = gk_int(2);
        m.n = a.n = n, m.max_rows = a.max_rows = 2;
        m.src_stride = m.src2_stride = m.dst_stride = a.src_stride = a.src2_stride = a.dst_stride = stride;
        m.acts_stride = a.acts_stride = acts_stride, m.format = a.format = format;
        m.act = flags % 5;
        acts[way] = gk_acts_of(a.src, n, stride, format, &scales[way]);
        muls[way] = m.dst;
        gk_run(FG_GPU_KERNEL_act_mul, &m);
        rows[way] = m.dst = gk_put(NULL, size) + 4 * (uint64_t)way;
        m.acts = gk_put(NULL, gk_acts_bytes(format, n, 2)), m.scales = gk_put(NULL, 2 * sizeof(float));
        gk_run(FG_GPU_KERNEL_act_rows, &m);
        gk_check_made(m.acts, m.scales, format, muls[way], n, stride, "act_rows");
        if (!(flags & 2)) a.src2 = 0;
        a.weight = flags & 4 ? vector : 0, a.bias = flags & 8 ? vector : 0;
        a.eps = 1e-5f;
        a.acts = gk_put(NULL, gk_acts_bytes(format, n, 2)), a.scales = gk_put(NULL, 2 * sizeof(float));
        gk_run(FG_GPU_KERNEL_norm, &a);
        gk_check_made(a.acts, a.scales, format, a.dst, n, stride, "norm");
        for (t = 0; t < 2; t++) {
            CHECKF(memcmp(gk_floats(muls[0]) + t * (stride - way), gk_floats(muls[way]) + t * stride, bytes) == 0, "act_mul of %d", n);
            CHECKF(memcmp(gk_floats(muls[0]) + t * (stride - way), gk_floats(rows[way]) + t * stride, bytes) == 0, "act_rows of %d", n);
            CHECKF(memcmp(gk_floats(norms[0]) + t * (stride - way), gk_floats(norms[way]) + t * stride, bytes) == 0, "norm of %d, flags %d", n, flags);
            CHECK(isnan(gk_floats(a.dst)[n]) && isnan(gk_floats(m.dst)[n]));
        }
    }
    CHECKF(memcmp(gk_floats(acts[0]), gk_floats(acts[1]), gk_acts_bytes(format, n, 2)) == 0, "acts of %d", n);
    CHECK(format == FG_GPU_ACTS_BFLOAT || memcmp(gk_floats(scales[0]), gk_floats(scales[1]), 2 * sizeof(float)) == 0);
    free(src);
    free(src2);
    gk_end();
}

static void test_gpu_row_ways(void) {
    static const int widths[] = {1, 3, 64, 100, 2048, 2052, 4100, 8192, 8196, 14336, 14340};
    int i, flags;
    for (i = 0; i < 11; i++)
        for (flags = 0; flags < (widths[i] < 2000 ? 16 : 3); flags++) {
            hg.width = 32 << (flags & 1);
            gk_check_row_ways(widths[i], widths[i] < 2000 ? flags : (flags * 7 + i) % 16);
        }
    hg_close();
}

/* Half (row, k) of activations in the order of fragments: load by load eight tiles of eight rows, of each lane eight. */
static size_t gk_fragment_at(int format, int stride, int row, int k) {
    int units = format - FG_GPU_ACTS_FRAGMENTS_0, width = units == 2 ? 256 : 128, c, load;
    c = units == 0 ? k % 32 / 8 : k % width / (32 * units);
    load = units == 0 ? k % 128 / 32 : k % (32 * units) / 8;
    load += (row / 64 * (stride / width) + k / width) * (width / 32);
    return (size_t)(load * 8 + row % 64 / 8) * 256 + (size_t)(row % 8 * 4 + c) * 8 + (size_t)(k % 8);
}

/* By kernel `which` (acts, norm, act_rows), of 77 rows of which 75 are there: exactly the halves of rows one after the other, elsewhere,
   then zeros, and nothing in the place of other rows. */
static void gk_check_fragments(int which, int n) {
    static const int kernels[] = {FG_GPU_KERNEL_acts, FG_GPU_KERNEL_norm, FG_GPU_KERNEL_act_rows};
    enum { ROWS = 75 };
    uint64_t state = (uint64_t)n + 3, src = gk_normal((size_t)ROWS * (size_t)(n + 3), &state), src2 = gk_normal((size_t)ROWS * (size_t)(n + 3), &state);
    uint64_t dst = gk_put(NULL, (size_t)ROWS * (size_t)(n + 3) * sizeof(float)), count = gk_int(ROWS), acts[4], scales[4];
    int way, t, k, bad;
    for (way = 0; way < 4; way++) {
        int format = way ? FG_GPU_ACTS_FRAGMENTS_0 + way - 1 : FG_GPU_ACTS_HALF, stride = fg_gpu_acts_stride(format, n), halves = fg_gpu_acts_stride(0, n);
        const uint16_t *rows, *got;
        uint8_t *seen;
        fg_gpu_acts_args a;
        fg_gpu_norm_args b;
        fg_gpu_act_mul_args m;
        memset(&a, 0, sizeof(a));
        memset(&b, 0, sizeof(b));
        memset(&m, 0, sizeof(m));
        acts[way] = gk_put(NULL, gk_acts_bytes(format, n, 77));
        scales[way] = gk_put(NULL, 77 * sizeof(float));
        a.src = b.src = m.src = src, b.dst = m.dst = dst, m.src2 = src2;
        a.acts = b.acts = m.acts = acts[way], a.scales = b.scales = m.scales = scales[way];
        a.count = b.count = m.count = count;
        a.k = b.n = m.n = n, a.src_stride = b.src_stride = b.dst_stride = m.src_stride = m.src2_stride = m.dst_stride = n + 3;
        a.acts_stride = b.acts_stride = m.acts_stride = stride, a.format = b.format = m.format = format;
        a.max_rows = b.max_rows = m.max_rows = 77;
        b.eps = 1e-5f, m.act = FG_ACT_SILU;
        gk_run(kernels[which], which == 0 ? (void *)&a : which == 1 ? (void *)&b : (void *)&m);
        if (!way) continue;
        rows = (const uint16_t *)(uintptr_t)acts[0], got = (const uint16_t *)(uintptr_t)acts[way];
        seen = (uint8_t *)calloc(1, gk_acts_bytes(format, n, 77));
        for (t = bad = 0; t < ROWS; t++)
            for (k = 0; k < stride; k++) {
                size_t at = gk_fragment_at(format, stride, t, k);
                bad += seen[at]++ || got[at] != (k < n ? rows[t * halves + k] : 0);
                bad += at != (size_t)(fg_gpu_acts_row(format, stride, t) + fg_gpu_acts_column(format, k));
            }
        for (k = 0; k < (int)(gk_acts_bytes(format, n, 77) / 2); k++) bad += !seen[k] && got[k] != 0xFFFF;
        CHECKF(bad == 0, "%s, format %d, %d wide: %d halves", gk_name(kernels[which]), format, n, bad);
        CHECK(memcmp(gk_floats(scales[0]), gk_floats(scales[way]), 77 * sizeof(float)) == 0);
        free(seen);
    }
    gk_end();
}

static void test_gpu_acts_fragments(void) {
    static const int widths[] = {1, 73, 256, 517, 2308, 8193};
    int which, i;
    for (which = 0; which < 3; which++)
        for (i = 0; i < 6; i++) {
            hg.width = 32 << (i & 1);
            gk_check_fragments(which, widths[i]);
        }
    hg_close();
}

/* Weights as halves, some rows of them. */
static void test_gpu_expand(void) {
    int i, t, j;
    for (i = 0; i < CPU_TYPES; i++) {
        uint64_t state = 3;
        gk_weight w;
        fg_gpu_expand_args a;
        int bad = 0;
        hg.width = 32 << (i & 1);
        if (fg_gpu_is_float((int)cpu_types[i])) {
            CHECK(fg_gpu_expand_kernel((int)cpu_types[i]) < 0);
            continue;
        }
        w = gk_weight_new(cpu_types[i], 1280, 8, &state);
        memset(&a, 0, sizeof(a));
        a.weight = w.device + (uint64_t)w.layout.stride;
        a.dst = gk_put(NULL, 6 * 1344 * 2);
        a.layout = w.layout;
        a.n = 6, a.k = 1280, a.dst_stride = 1344;
        memset((void *)(uintptr_t)a.dst, 0x55, 6 * 1344 * 2);
        gk_run(fg_gpu_expand_kernel((int)cpu_types[i]), &a);
        for (t = 0; t < 6; t++)
            for (j = 0; j < 1344; j++) { /* -0 may be 0: clang makes a * b + 0 of a product that becomes a half, on gfx11 */
                uint32_t wanted = j < 1280 ? hg_float_to_half(w.values[(t + 1) * 1280 + j]) : 0x5555;
                uint32_t got = ((uint16_t *)(uintptr_t)a.dst)[t * 1344 + j];
                bad += got != wanted && (got | wanted) << 17 >> 17 != 0;
            }
        CHECKF(bad == 0, "%s: %d halves differ", fg_type_name(cpu_types[i]), bad);
        free(w.values);
        gk_end();
    }
    hg_close();
}

static void gk_check_norm(int n, bool residual, bool weight, bool bias) {
    uint64_t state = (uint64_t)n;
    fg_gpu_norm_args a;
    double *wanted = (double *)malloc((size_t)n * sizeof(double));
    float *before;
    int t, i;
    memset(&a, 0, sizeof(a));
    a.n = n;
    a.src_stride = n + 1;
    a.src2_stride = n + 2;
    a.dst_stride = n + 3;
    a.src = gk_normal(3 * (size_t)(n + 1), &state);
    a.dst = gk_put(NULL, 3 * (size_t)(n + 3) * sizeof(float));
    if (residual) a.src2 = gk_normal(3 * (size_t)(n + 2), &state);
    if (weight) a.weight = gk_normal((size_t)n, &state);
    if (bias) a.bias = gk_normal((size_t)n, &state);
    a.count = gk_int(2);
    a.max_rows = 3;
    a.eps = 1e-5f;
    before = (float *)malloc(3 * (size_t)(n + 1) * sizeof(float));
    memcpy(before, gk_floats(a.src), 3 * (size_t)(n + 1) * sizeof(float));
    gk_run(FG_GPU_KERNEL_norm, &a);
    for (t = 0; t < 2; t++) {
        double mean = 0, square = 0, error;
        for (i = 0; i < n; i++) {
            wanted[i] = (double)(before[t * a.src_stride + i] + (residual ? gk_floats(a.src2)[t * a.src2_stride + i] : 0.0f));
            CHECK((double)gk_floats(a.src)[t * a.src_stride + i] == wanted[i]);
            mean += bias ? wanted[i] / n : 0.0;
        }
        for (i = 0; i < n; i++) square += (wanted[i] - mean) * (wanted[i] - mean) / n;
        for (i = 0; i < n; i++)
            wanted[i] = (wanted[i] - mean) / sqrt(square + 1e-5) * (weight ? (double)gk_floats(a.weight)[i] : 1.0) +
                        (bias ? (double)gk_floats(a.bias)[i] : 0.0);
        error = gk_error(gk_floats(a.dst) + t * a.dst_stride, wanted, (size_t)n);
        CHECKF(error < 1e-6, "norm of %d (%d %d %d): error %g", n, residual, weight, bias, error);
        CHECK(isnan(gk_floats(a.dst)[t * a.dst_stride + n]));
    }
    CHECK(isnan(gk_floats(a.dst)[2 * a.dst_stride]));
    free(before);
    free(wanted);
    gk_end();
}

static void test_gpu_norm(void) {
    static const int widths[] = {1, 100, 300, 1024};
    int i, flags;
    for (hg.width = 32; hg.width <= 64; hg.width += 32)
        for (i = 0; i < 4; i++)
            for (flags = 0; flags < 8; flags++) gk_check_norm(widths[i], (flags & 1) != 0, (flags & 2) != 0, (flags & 4) != 0);
    hg_close();
}

static void test_gpu_elements(void) {
    static const int32_t rows[3] = {4, 0, 2};
    uint64_t state = 2;
    int i, t, act;
    for (hg.width = 32; hg.width <= 64; hg.width += 32) {
        fg_gpu_act_mul_args a;
        fg_gpu_gather_args g;
        memset(&a, 0, sizeof(a));
        memset(&g, 0, sizeof(g));
        a.n = g.n = 150;
        a.src = g.src = gk_normal(5 * 160, &state);
        a.src2 = gk_normal(5 * 170, &state);
        a.dst = gk_put(NULL, 5 * 180 * sizeof(float));
        a.src_stride = g.src_stride = 160;
        a.src2_stride = 170;
        a.dst_stride = 180;
        a.count = gk_int(4);
        a.max_rows = 5;
        for (act = FG_ACT_NONE; act <= FG_ACT_SIGMOID + 1; act++) { /* and, last, of one number for a row */
            double wanted[150];
            a.act = FG__MIN(act, FG_ACT_SIGMOID);
            a.one = act > FG_ACT_SIGMOID;
            gk_run(FG_GPU_KERNEL_act_mul, &a);
            for (t = 0; t < 4; t++) {
                for (i = 0; i < 150; i++)
                    wanted[i] = cpu_act_mul(a.act, (double)gk_floats(a.src)[t * 160 + (a.one ? 0 : i)], (double)gk_floats(a.src2)[t * 170 + i]);
                CHECKF(gk_error(gk_floats(a.dst) + t * 180, wanted, 150) < 1e-6, "activation %d", act);
                CHECK(isnan(gk_floats(a.dst)[t * 180 + 150]));
            }
            CHECK(isnan(gk_floats(a.dst)[4 * 180]));
        }
        g.rows = gk_put(rows, sizeof(rows));
        g.dst = gk_put(NULL, 4 * 152 * sizeof(float));
        g.dst_stride = 152;
        g.count = gk_int(3);
        g.max_rows = 4;
        gk_run(FG_GPU_KERNEL_gather, &g);
        for (t = 0; t < 3; t++) {
            CHECK(memcmp(gk_floats(g.dst) + t * 152, gk_floats(g.src) + rows[t] * 160, 150 * sizeof(float)) == 0);
            CHECK(isnan(gk_floats(g.dst)[t * 152 + 150]));
        }
        CHECK(isnan(gk_floats(g.dst)[3 * 152]));
        gk_end();
    }
    hg_close();
}

/* Copies that build on each other. */
static void test_gpu_copy(void) {
    static const int32_t pairs[] = {0, 3, 3, 1, 2, 0, 4, 4};
    enum { BYTES = 128 * 16 + 48 };
    uint8_t *blocks = (uint8_t *)malloc(5 * BYTES);
    uint64_t state = 4;
    int i;
    for (hg.width = 32; hg.width <= 64; hg.width += 32) {
        fg_gpu_copy_args a;
        for (i = 0; i < 5 * BYTES; i++) blocks[i] = (uint8_t)test_random(&state);
        a.base = gk_put(blocks, 5 * BYTES);
        a.pairs = gk_put(pairs, sizeof(pairs));
        a.count = gk_int(4);
        a.block_bytes = BYTES;
        gk_run(FG_GPU_KERNEL_copy, &a);
        for (i = 0; i < 4; i++) memmove(blocks + pairs[2 * i + 1] * BYTES, blocks + pairs[2 * i] * BYTES, BYTES);
        CHECK(memcmp(blocks, (void *)(uintptr_t)a.base, 5 * BYTES) == 0);
        gk_end();
    }
    free(blocks);
    hg_close();
}

/* ---- roof ---- */

/* The largest sum of a kernel after all rounds that it may have: floats hold it. */
static void gk_check_roof_range(int kernel) {
    fg_gpu_roof_work w = fg_gpu_roof_work_of(kernel, 32);
    int i, j, k, most = 0, repeats = kernel == FG_GPU_KERNEL_roof_wg ? 8 : 1;
    for (i = 0; i < w.rows; i++)
        for (j = 0; j < w.cols; j++) {
            int sum = 0;
            for (k = 0; k < w.depth; k++) sum += fg_gpu_roof_number(0, i, k) * fg_gpu_roof_number(1, j, k);
            most = abs(sum) * repeats > most ? abs(sum) * repeats : most;
        }
    CHECKF(most > 16 && (double)most * FG_GPU_ROOF_ROUNDS < 1 << 24, "kernel %d: %d a round", kernel, most);
}

/* Sums tell how many rounds there were: of each workgroup, and of one round more not. */
static void test_gpu_roof(void) {
    int kernel, group, i;
    for (kernel = FG_GPU_KERNEL_roof_mma; kernel <= FG_GPU_KERNEL_roof_dot4; kernel++) {
        gk_check_roof_range(kernel);
        for (hg.width = 32; hg.width <= (kernel == FG_GPU_KERNEL_roof_wg ? 32 : 64); hg.width += 32) {
            fg_gpu_roof_work w = fg_gpu_roof_work_of(kernel, hg.width);
            uint32_t once = fg_gpu_roof_sum(&w);
            fg_gpu_roof_args a;
            a.groups = 2;
            CHECK(once != 0);
            for (a.rounds = 0; a.rounds <= 3; a.rounds++) {
                a.out = gk_put(NULL, 2 * FG_GPU_GEMV_THREADS * 4);
                gk_run(kernel, &a);
                for (group = 0; group < 2; group++) {
                    uint32_t sum = 0;
                    for (i = 0; i < FG_GPU_GEMV_THREADS; i++) sum += ((const uint32_t *)(uintptr_t)a.out)[group * FG_GPU_GEMV_THREADS + i];
                    CHECKF(sum == once * (uint32_t)a.rounds, "kernel %d, %d lanes: %u after %d rounds of %u", kernel, hg.width, sum, a.rounds, once);
                }
                gk_end();
            }
        }
    }
    hg_close();
}

/* ---- sample ---- */

static void gk_check_sample(int n, int kind, uint64_t *state) {
    fg_gpu_sample_args a;
    fg_row_result *out;
    double sum = 0, top = -INFINITY;
    int i, best = 0;
    float *x;
    memset(&a, 0, sizeof(a));
    a.n = a.src_stride = n;
    a.src = gk_normal((size_t)n, state);
    x = gk_floats(a.src);
    if (kind == 1) x[n / 2] = x[n - 1] = 9.0f; /* equals: the lower id */
    if (kind == 2) x[0] = NAN, x[n - 1] = NAN;
    if (kind == 3)
        for (i = 0; i < n; i++) x[i] = -INFINITY;
    if (kind == 4) x[n / 3] = INFINITY;
    if (kind == 5)
        for (i = 0; i < n - 1; i++) x[i] = -INFINITY;
    a.pieces = fg_gpu_sample_pieces(n);
    a.parts = gk_put(NULL, (size_t)a.pieces * sizeof(fg_gpu_sample_part));
    a.rows = gk_put(NULL, sizeof(fg_row_result));
    a.count = gk_int(1);
    a.max_rows = 2;
    gk_run(FG_GPU_KERNEL_sample, &a);
    gk_run(FG_GPU_KERNEL_choose, &a);
    out = (fg_row_result *)(uintptr_t)a.rows;
    for (i = 0; i < n; i++)
        if ((double)x[i] > top) {
            top = (double)x[i];
            best = i;
        }
    for (i = 0; i < n; i++)
        if (x[i] == x[i] && !isinf(x[i])) sum += exp((double)x[i] - top);
    CHECKF(out->token == best && (double)out->logit == top, "kind %d of %d: %d at %g, not %d at %g", kind, n, (int)out->token,
           (double)out->logit, best, top);
    if (isinf(top)) CHECK((double)out->log_sum_exp == top);
    else CHECKF(fabs((double)out->log_sum_exp - top - log(sum)) < 1e-5, "kind %d: %g", kind, (double)out->log_sum_exp);
    gk_end();
}

static void test_gpu_sample(void) {
    static const int widths[] = {1, 1000, 4096, 9001};
    uint64_t state = 8;
    int i, kind;
    for (hg.width = 32; hg.width <= 64; hg.width += 32)
        for (i = 0; i < 4; i++)
            for (kind = 0; kind < 6; kind++)
                if (widths[i] > 2 || kind < 1 || kind == 3) gk_check_sample(widths[i], kind, &state);
    hg_close();
}

/* ---- The KV cache, rope and attention: sequences of their own lengths, blocks all over the pool. ---- */

typedef struct gk_attn {
    int type, n_head, n_kv_head, head_dim, block_tokens, window;
    float softcap;
    int n_seqs, queries[4], kv_len[4];
} gk_attn;

typedef struct gk_cache {
    gk_attn c;
    fg_gpu_kv kv;
    int n_tokens, columns, table_stride, first[5]; /* of all positions of all sequences */
    uint64_t data, table, src;                     /* q, k, v of every position: [n_tokens][columns] */
    uint64_t sinks;                                /* of attention; 0: none */
    int32_t tables[4 * 64];
} gk_cache;

static const char *gk_kv_at(const gk_cache *g, uint64_t base, int seq, int position, int head, bool scales) {
    int block = g->tables[seq * g->table_stride + position / g->c.block_tokens], offset = position % g->c.block_tokens;
    const char *at = (const char *)(uintptr_t)base + (int64_t)block * (int64_t)g->kv.block_stride +
                     head * fg_gpu_kv_head_bytes(g->c.type, g->c.head_dim, g->c.block_tokens);
    int row = fg_gpu_kv_row_bytes(g->c.type, g->c.head_dim);
    return scales ? at + g->c.block_tokens * row + offset * 2 * fg_gpu_kv_scales(g->c.type, g->c.head_dim) : at + offset * row;
}

/* What the cache has for dimension d. */
static double gk_kv_value(const gk_cache *g, uint64_t base, int seq, int position, int head, int d) {
    const char *row = gk_kv_at(g, base, seq, position, head, false);
    const uint16_t *scales = (const uint16_t *)(const void *)gk_kv_at(g, base, seq, position, head, true);
    if (g->c.type == FG_GPU_F32) return (double)((const float *)(const void *)row)[d];
    if (g->c.type == FG_GPU_F16) return (double)hg_half_to_float(((const uint16_t *)(const void *)row)[d]);
    if (g->c.type == FG_GPU_BF16) return (double)fg__bf16_to_f32(((const uint16_t *)(const void *)row)[d]);
    return (double)((const int8_t *)row)[d] * (double)hg_half_to_float(scales[d / 32]);
}

static gk_cache *gk_cache_new(const gk_attn *c, uint64_t *state) {
    gk_cache *g = (gk_cache *)calloc(1, sizeof(gk_cache));
    int64_t half = fg_gpu_kv_block_bytes(c->type, c->head_dim, c->n_kv_head, c->block_tokens);
    int n_blocks = 0, s, i, next = 0;
    g->c = *c;
    for (s = 0; s < c->n_seqs; s++) {
        g->first[s + 1] = g->first[s] + c->kv_len[s];
        g->table_stride = FG__MAX(g->table_stride, (c->kv_len[s] + c->block_tokens - 1) / c->block_tokens);
    }
    n_blocks = c->n_seqs * g->table_stride;
    for (s = 0; s < c->n_seqs; s++)
        for (i = 0; i < g->table_stride; i++, next += 7) g->tables[s * g->table_stride + i] = next % n_blocks;
    while (n_blocks % 7 == 0) n_blocks++; /* so that steps of 7 meet every block once */
    for (next = 0, s = 0; s < c->n_seqs; s++)
        for (i = 0; i < g->table_stride; i++, next += 7) g->tables[s * g->table_stride + i] = next % n_blocks;
    g->n_tokens = g->first[c->n_seqs];
    g->columns = (c->n_head + 2 * c->n_kv_head) * c->head_dim;
    g->kv.block_stride = (uint64_t)(2 * half + 16);
    g->data = gk_put(NULL, (size_t)g->kv.block_stride * (size_t)n_blocks);
    g->kv.k = g->data;
    g->kv.v = g->data + (uint64_t)half;
    g->kv.block_tokens = c->block_tokens;
    g->kv.n_head = c->n_head;
    g->kv.n_kv_head = c->n_kv_head;
    g->kv.head_dim = c->head_dim;
    g->table = gk_put(g->tables, (size_t)(c->n_seqs * g->table_stride) * sizeof(int32_t));
    g->src = gk_normal((size_t)g->n_tokens * (size_t)g->columns, state);
    return g;
}

static void gk_cache_free(gk_cache *g) {
    gk_end();
    free(g);
}

/* Writes all positions of all sequences into the cache. */
static void gk_cache_write(gk_cache *g, fg_gpu_rope_kv_args *a) {
    int32_t *slots = (int32_t *)malloc((size_t)g->n_tokens * 2 * sizeof(int32_t)), *positions = slots + g->n_tokens;
    int s, p;
    for (s = 0; s < g->c.n_seqs; s++)
        for (p = 0; p < g->c.kv_len[s]; p++) {
            slots[g->first[s] + p] = g->tables[s * g->table_stride + p / g->c.block_tokens] * g->c.block_tokens + p % g->c.block_tokens;
            positions[g->first[s] + p] = 100 * p;
        }
    a->kv = g->kv;
    a->q = g->src;
    a->k = g->src + 4 * (uint64_t)(g->c.n_head * g->c.head_dim);
    a->v = a->k + 4 * (uint64_t)(g->c.n_kv_head * g->c.head_dim);
    a->slots = gk_put(slots, (size_t)g->n_tokens * sizeof(int32_t));
    a->positions = gk_put(positions, (size_t)g->n_tokens * sizeof(int32_t));
    a->count = gk_int(g->n_tokens);
    a->stride = g->columns;
    a->max_rows = g->n_tokens + 1;
    a->eps = 1e-5f;
    gk_run(fg_gpu_kv_kernel(g->c.type, 0), a);
    free(slots);
}

/* What norm and rotation make of a head. */
static void gk_rope(const fg_gpu_rope_kv_args *a, uint64_t norm, int position, const float *from, int n, double *to) {
    double square = 0;
    int i;
    for (i = 0; i < n; i++) square += (double)from[i] * (double)from[i] / n;
    for (i = 0; i < n; i++) to[i] = (double)from[i] * (norm ? (double)gk_floats(norm)[i] / sqrt(square + 1e-5) : 1.0);
    for (i = 0; i < a->n_rot / 2; i++) {
        int p = a->neox ? i : 2 * i, q = a->neox ? i + a->n_rot / 2 : 2 * i + 1;
        double angle = (double)((float)position * gk_floats(a->freqs)[i]), c = cos(angle) * (double)a->scale, s = sin(angle) * (double)a->scale;
        double u = to[p], v = to[q];
        to[p] = u * c - v * s;
        to[q] = u * s + v * c;
    }
}

static void gk_check_rope(const gk_attn *c, int n_rot, bool norm, int neox) {
    uint64_t state = 77;
    gk_cache *g = gk_cache_new(c, &state);
    fg_gpu_rope_kv_args a;
    size_t bytes = (size_t)g->n_tokens * (size_t)g->columns * sizeof(float);
    float *before = (float *)malloc(bytes);
    double limit = c->type == FG_GPU_F32 ? 1e-6 : c->type == FG_GPU_F16 ? 5e-4 : c->type == FG_GPU_BF16 ? 4e-3 : 1e-2, wanted[512];
    int s, p, h, d;
    memset(&a, 0, sizeof(a));
    a.n_rot = n_rot;
    a.neox = neox;
    a.scale = 1.25f;
    if (norm) a.norm_q = gk_normal((size_t)c->head_dim, &state);
    if (norm) a.norm_k = gk_normal((size_t)c->head_dim, &state);
    a.freqs = gk_put(NULL, 256 * sizeof(float));
    for (d = 0; d < 256; d++) gk_floats(a.freqs)[d] = powf(10000.0f, -2.0f * (float)d / (float)(n_rot ? n_rot : 1));
    memcpy(before, gk_floats(g->src), bytes);
    gk_cache_write(g, &a);
    for (s = 0; s < c->n_seqs; s++)
        for (p = 0; p < c->kv_len[s]; p++)
            for (h = 0; h < c->n_head + 2 * c->n_kv_head; h++) {
                const float *from = before + (size_t)(g->first[s] + p) * (size_t)g->columns + h * c->head_dim;
                const float *to = gk_floats(g->src) + (size_t)(g->first[s] + p) * (size_t)g->columns + h * c->head_dim;
                float got[512];
                double error;
                int kv_head = h < c->n_head + c->n_kv_head ? h - c->n_head : h - c->n_head - c->n_kv_head;
                bool is_q = h < c->n_head, is_v = h >= c->n_head + c->n_kv_head;
                for (d = 0; d < c->head_dim; d++)
                    wanted[d] = (double)from[d], got[d] = is_q ? to[d] : (float)gk_kv_value(g, is_v ? g->kv.v : g->kv.k, s, p, kv_head, d);
                if (!is_v) gk_rope(&a, is_q ? a.norm_q : a.norm_k, 100 * p, from, c->head_dim, wanted);
                error = gk_error(got, wanted, (size_t)c->head_dim);
                CHECKF(error < (is_q ? 1e-6 : limit), "KV type %d, heads of %d, position %d, head %d: error %g", c->type, c->head_dim, p, h, error);
            }
    free(before);
    gk_cache_free(g);
}

static void test_gpu_rope_kv(void) {
    static const int types[] = {FG_GPU_F32, FG_GPU_F16, FG_GPU_BF16, FG_GPU_Q8_0};
    int i;
    for (hg.width = 32; hg.width <= 64; hg.width += 32)
        for (i = 0; i < 4; i++) {
            gk_attn a = {0, 3, 1, 64, 16, 0, 0.0f, 2, {0}, {19, 3}}, b = {0, 4, 2, 80, 4, 0, 0.0f, 1, {0}, {9}};
            a.type = b.type = types[i];
            gk_check_rope(&a, 64, true, 1);
            gk_check_rope(&b, 40, true, 0);
            b.head_dim = 36;
            gk_check_rope(&b, 0, true, 0);
            a.head_dim = 512;
            a.kv_len[0] = 2;
            gk_check_rope(&a, 128, false, 1);
        }
    hg_close();
}

/* Ways to attend, and the kernel of each. */
enum { GK_FEW, GK_FRAGMENTS, GK_WIDE, GK_WARPGROUPS };

static int gk_attention_kernel(const gk_attn *c, int way) {
    return way == GK_FEW ? fg_gpu_kv_kernel(c->type, c->head_dim)
         : way == GK_FRAGMENTS ? fg_gpu_few_kernel(c->type, c->head_dim)
         : way == GK_WIDE ? fg_gpu_wide_kernel(c->type, c->head_dim) : fg_gpu_wide_wg_kernel(c->type, c->head_dim);
}

/* Runs the attention of the last queries[s] positions of every sequence. dst: [tokens][n_head * head_dim] on the device. */
static uint64_t gk_attend(gk_cache *g, const int *queries, int way) {
    const gk_attn *c = &g->c;
    int32_t cu_q[5] = {0}, kv_len[4];
    int s, t, heads = c->n_head / c->n_kv_head, width = c->n_head * c->head_dim, kernel = gk_attention_kernel(c, way);
    fg_gpu_attention_args a;
    fg_gpu_attn_item items[512];
    fg_gpu_attn_merge merges[512];
    fg_gpu_attn_counts n, most;
    memset(&a, 0, sizeof(a));
    for (s = 0; s < c->n_seqs; s++) {
        cu_q[s + 1] = cu_q[s] + queries[s];
        kv_len[s] = c->kv_len[s];
    }
    memset(&n, 0, sizeof(n));
    if (way == GK_FRAGMENTS)
        fg_gpu_attn_add(c->n_seqs, cu_q, kv_len, heads, c->window, FG_GPU_ATTN_ROWS, FG_GPU_FEW_SPLIT, 1, 1 << 30, &n, items, merges);
    else if (way != GK_FEW)
        fg_gpu_attn_add(c->n_seqs, cu_q, kv_len, heads, c->window, fg_gpu_wide_rows(kernel), fg_gpu_wide_split(kernel), 1, 1 << 30, &n, items, merges);
    else n = fg_gpu_attn_plan(c->n_seqs, cu_q, kv_len, heads, c->window, items, merges);
    most = fg_gpu_attn_most(cu_q[c->n_seqs], c->n_seqs, 2200, heads, way == GK_FRAGMENTS ? FG_GPU_FEW_SPLIT : FG_GPU_SPLIT, 1 << 30);
    CHECK(n.items <= most.items && n.merges <= most.merges && n.partials <= most.partials && n.items <= 512);
    a.kv = g->kv;
    a.q = gk_put(NULL, (size_t)cu_q[c->n_seqs] * (size_t)width * sizeof(float));
    for (s = 0; s < c->n_seqs; s++)
        for (t = 0; t < queries[s]; t++)
            memcpy(gk_floats(a.q) + (size_t)(cu_q[s] + t) * (size_t)width,
                   gk_floats(g->src) + (size_t)(g->first[s + 1] - queries[s] + t) * (size_t)g->columns, (size_t)width * sizeof(float));
    a.dst = gk_put(NULL, (size_t)cu_q[c->n_seqs] * (size_t)width * sizeof(float));
    for (s = 0; s < c->n_seqs && c->window > 0; s++) { /* blocks that fell out of the window are gone */
        int32_t *table = (int32_t *)(uintptr_t)g->table + s * g->table_stride;
        for (t = 0; (t + 1) * c->block_tokens <= c->kv_len[s] - queries[s] - c->window + 1; t++) table[t] = -1;
    }
    a.table = g->table;
    a.items = gk_put(items, (size_t)n.items * sizeof(items[0]));
    a.merges = gk_put(merges, (size_t)n.merges * sizeof(merges[0]) + 16);
    a.partials = gk_put(NULL, (size_t)n.partials * (size_t)c->n_kv_head * (size_t)(c->head_dim + 2) * sizeof(float) + 16);
    a.count = gk_int(n.items);
    a.merge_count = gk_int(n.merges);
    a.q_stride = a.dst_stride = width;
    a.table_stride = g->table_stride;
    a.window = c->window;
    a.max_items = n.items + 1;
    a.max_merges = n.merges + 1;
    a.merge_tokens = FG__MAX((way == GK_FEW || way == GK_FRAGMENTS ? FG_GPU_ATTN_ROWS : fg_gpu_wide_rows(kernel)) / heads, 1);
    a.scale = 0.125f;
    a.softcap = c->softcap;
    a.sinks = g->sinks;
    gk_run(kernel, &a);
    gk_run(FG_GPU_KERNEL_combine, &a);
    return a.dst;
}

/* Attention of one query and head. */
static void gk_attn_reference(const gk_cache *g, int seq, int position, int head, double *out) {
    const gk_attn *c = &g->c;
    const float *q = gk_floats(g->src) + (size_t)(g->first[seq] + position) * (size_t)g->columns + head * c->head_dim;
    double *scores = (double *)malloc((size_t)(position + 1) * sizeof(double)), top = -1e300, sum = 0;
    int p, d, kv_head = head / (c->n_head / c->n_kv_head), first = c->window > 0 ? FG__MAX(0, position - c->window + 1) : 0;
    for (p = first; p <= position; p++) {
        double s = 0;
        for (d = 0; d < c->head_dim; d++) s += (double)q[d] * gk_kv_value(g, g->kv.k, seq, p, kv_head, d);
        s *= 0.125;
        if (c->softcap > 0) s = (double)c->softcap * tanh(s / (double)c->softcap);
        scores[p] = s;
        top = s > top ? s : top;
    }
    if (g->sinks) sum = exp((double)gk_floats(g->sinks)[head] - top);
    memset(out, 0, (size_t)c->head_dim * sizeof(double));
    for (p = first; p <= position; p++) sum += scores[p] = exp(scores[p] - top);
    for (p = first; p <= position; p++)
        for (d = 0; d < c->head_dim; d++) out[d] += scores[p] / sum * gk_kv_value(g, g->kv.v, seq, p, kv_head, d);
    free(scores);
}

static void gk_check_attention(const gk_attn *c, int way, bool sinks) {
    uint64_t state = 99, all, one;
    gk_cache *g = gk_cache_new(c, &state);
    fg_gpu_rope_kv_args a;
    double wanted[512], error, worst = 0;
    int s, t, h, at = 0, width = c->n_head * c->head_dim, single[4] = {1, 1, 1, 1};
    memset(&a, 0, sizeof(a));
    gk_cache_write(g, &a);
    if (sinks) g->sinks = gk_normal((size_t)c->n_head, &state);
    for (h = 0; h < c->n_head && sinks; h++) gk_floats(g->sinks)[h] = 2.0f * gk_floats(g->sinks)[h] + 3.0f; /* some hundredths to most of a softmax */
    all = gk_attend(g, c->queries, way);
    one = gk_attend(g, single, way);
    for (s = 0; s < c->n_seqs; s++)
        for (t = 0; t < c->queries[s]; t++, at++) {
            for (h = 0; h < c->n_head; h += c->n_head > 2 ? c->n_head - 1 : 1) {
                gk_attn_reference(g, s, c->kv_len[s] - c->queries[s] + t, h, wanted);
                error = gk_error(gk_floats(all) + (size_t)at * (size_t)width + h * c->head_dim, wanted, (size_t)c->head_dim);
                worst = test_worse(worst, error);
            }
            /* the last query alone has the same bits as among others */
            if (t == c->queries[s] - 1)
                CHECKF(memcmp(gk_floats(all) + (size_t)at * (size_t)width, gk_floats(one) + (size_t)s * (size_t)width,
                              (size_t)width * sizeof(float)) == 0,
                       "KV type %d, heads of %d: the last query of sequence %d differs when alone", c->type, c->head_dim, s);
        }
    /* by warpgroups a cache of bfloats has queries and weights of bfloats, too: of 8 bits */
    CHECKF(worst < (way == GK_FEW ? 3e-6 : way == GK_WARPGROUPS && c->type == FG_GPU_BF16 ? 8e-3 : way == GK_FRAGMENTS ? 1.5e-3 : 1e-3), "KV type %d, %d heads of %d: error %g", c->type, c->n_head, c->head_dim, worst);
    gk_cache_free(g);
}

static void test_gpu_attention(void) {
    static const gk_attn cases[] = {
        {FG_GPU_F32, 4, 2, 64, 16, 0, 0.0f, 3, {1, 5, 20}, {33, 5, 47}},
        {FG_GPU_F16, 8, 2, 64, 32, 0, 0.0f, 3, {1, 1, 9}, {530, 1, 516}},
        {FG_GPU_Q8_0, 4, 1, 128, 32, 0, 0.0f, 2, {1, 6}, {70, 40}},
        {FG_GPU_BF16, 2, 2, 80, 4, 0, 30.0f, 2, {17, 1}, {40, 21}},
        {FG_GPU_F16, 20, 1, 36, 8, 0, 0.0f, 2, {1, 3}, {40, 12}}, /* more heads than a workgroup has rows */
        {FG_GPU_Q8_0, 2, 1, 256, 16, 20, 0.0f, 2, {8, 1}, {50, 19}},
        {FG_GPU_F16, 2, 1, 512, 16, 0, 0.0f, 1, {2}, {35}},
        {FG_GPU_F32, 2, 1, 32, 64, 100, 0.0f, 2, {24, 1}, {520, 610}}, /* windows over the points of splitting */
    };
    size_t i;
    for (hg.width = 32; hg.width <= 64; hg.width += 32) {
        for (i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) gk_check_attention(&cases[i], GK_FEW, false);
        for (i = 1; i < sizeof(cases) / sizeof(cases[0]); i += 3) gk_check_attention(&cases[i], GK_FEW, true);
    }
    hg_close();
}

/* Merges of more pieces than a group of lanes looks at at once, of which some see nothing, against float64; and with a piece before them
   that sees nothing, which must not change a bit. */
static void test_gpu_combine(void) {
    enum { HEADS = 4, KV_HEADS = 2, DIM = 132, TOKENS = 6, MOST = 301 };
    static const int pieces[] = {2, 3, 5, 40, 131, 300};
    uint64_t state = 5;
    size_t i, row = DIM + 2, piece = (size_t)TOKENS * HEADS * KV_HEADS * row, n = (size_t)TOKENS * HEADS * KV_HEADS * DIM;
    fg_gpu_attention_args a;
    memset(&a, 0, sizeof(a));
    a.kv.n_head = HEADS * KV_HEADS, a.kv.n_kv_head = KV_HEADS, a.kv.head_dim = DIM;
    a.dst_stride = HEADS * KV_HEADS * DIM;
    a.partials = gk_normal(piece * MOST, &state);
    a.merge_count = gk_int(1);
    a.max_merges = 2;
    a.merge_tokens = TOKENS;
    for (i = 0; i < piece * MOST; i += row) {
        float *x = gk_floats(a.partials) + i;
        bool nothing = i < piece || i / row % 7 == 3;
        if (nothing) memset(x, 0, row * sizeof(float));
        x[0] = nothing ? -INFINITY : 5.0f * x[0];
        x[1] = nothing ? 0.0f : 1.0f + x[1] * x[1];
    }
    for (hg.width = 32; hg.width <= 64; hg.width += 32)
        for (i = 0; i < sizeof(pieces) / sizeof(pieces[0]); i++) {
            float *first = NULL;
            int first_piece;
            size_t t;
            for (first_piece = 1; first_piece >= 0; first_piece--) {
                fg_gpu_attn_merge merge = {0, TOKENS, 0, 0, 0};
                merge.partial = first_piece * TOKENS * HEADS;
                merge.n_splits = pieces[i] + 1 - first_piece;
                merge.first = 2 + first_piece;
                a.merges = gk_put(&merge, sizeof(merge));
                a.dst = gk_put(NULL, n * sizeof(float));
                gk_run(FG_GPU_KERNEL_combine, &a);
                if (first_piece) first = gk_floats(a.dst);
            }
            CHECKF(memcmp(first, gk_floats(a.dst), n * sizeof(float)) == 0, "%d pieces: a piece that sees nothing changes sums", pieces[i]);
            for (t = 0; t < n; t += DIM) {
                size_t h = t / DIM % (HEADS * KV_HEADS), d;
                const float *from = gk_floats(a.partials) + piece + ((t / DIM / (HEADS * KV_HEADS) * HEADS + h % HEADS) * KV_HEADS + h / HEADS) * row;
                double wanted[DIM] = {0}, most = -1e300, sum = 0;
                int s;
                for (s = 0; s < pieces[i]; s++) most = from[(size_t)s * piece] > most ? (double)from[(size_t)s * piece] : most;
                for (s = 0; s < pieces[i]; s++) {
                    const float *x = from + (size_t)s * piece;
                    double factor = exp((double)x[0] - most);
                    sum += factor * (double)x[1];
                    for (d = 0; d < DIM; d++) wanted[d] += factor * (double)x[2 + d];
                }
                for (d = 0; d < DIM; d++) wanted[d] /= sum;
                CHECKF(gk_error(first + t, wanted, DIM) < 3e-6, "%d pieces: error %g", pieces[i], gk_error(first + t, wanted, DIM));
            }
        }
    gk_end();
    hg_close();
}

/* In matrix fragments that are made in registers. */
static void test_gpu_attention_few(void) {
    static const gk_attn cases[] = {
        {FG_GPU_BF16, 4, 2, 64, 16, 0, 0.0f, 3, {1, 5, 20}, {33, 5, 47}},
        {FG_GPU_F16, 8, 2, 64, 32, 0, 0.0f, 3, {1, 1, 9}, {530, 1, 516}},
        {FG_GPU_F16, 8, 2, 128, 64, 0, 0.0f, 3, {1, 1, 4}, {300, 1, 129}},
        {FG_GPU_Q8_0, 4, 1, 128, 32, 0, 0.0f, 2, {1, 6}, {170, 40}},
        {FG_GPU_BF16, 2, 2, 80, 4, 0, 30.0f, 2, {17, 1}, {40, 141}},
        {FG_GPU_F16, 20, 1, 36, 8, 0, 0.0f, 2, {1, 3}, {40, 12}}, /* more heads than a workgroup has rows */
        {FG_GPU_F16, 3, 1, 36, 1, 0, 0.0f, 2, {1, 7}, {40, 12}},
        {FG_GPU_Q8_0, 2, 1, 36, 2, 20, 0.0f, 2, {17, 1}, {50, 19}},
        {FG_GPU_Q8_0, 2, 1, 64, 64, 0, 0.0f, 2, {3, 1}, {50, 200}},
        {FG_GPU_F16, 2, 1, 32, 64, 100, 0.0f, 2, {24, 1}, {240, 610}}, /* windows over the points of splitting */
        {FG_GPU_F16, 2, 1, 96, 32, 0, 0.0f, 1, {24}, {1030}},
        {FG_GPU_F16, 4, 2, 256, 16, 0, 0.0f, 3, {1, 5, 20}, {33, 5, 147}},
        {FG_GPU_BF16, 4, 1, 256, 32, 40, 50.0f, 1, {9}, {530}},
        {FG_GPU_Q8_0, 18, 1, 256, 8, 0, 0.0f, 2, {1, 3}, {40, 12}},
        {FG_GPU_Q8_0, 2, 2, 144, 16, 24, 0.0f, 2, {40, 1}, {150, 19}},
    };
    size_t i;
    hg.width = 32;
    for (i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) gk_check_attention(&cases[i], GK_FRAGMENTS, false);
    for (i = 1; i < sizeof(cases) / sizeof(cases[0]); i += 3) gk_check_attention(&cases[i], GK_FRAGMENTS, true);
    hg_close();
}

/* In matrix fragments: up to 64 queries, over more than one workgroup. */
static void test_gpu_attention_wide(void) {
    static const gk_attn cases[] = {
        {FG_GPU_BF16, 4, 2, 64, 16, 0, 0.0f, 3, {1, 5, 40}, {33, 5, 47}},
        {FG_GPU_F16, 8, 2, 64, 32, 0, 0.0f, 3, {1, 1, 30}, {530, 1, 516}},
        {FG_GPU_Q8_0, 4, 1, 128, 32, 0, 0.0f, 2, {1, 26}, {70, 40}},
        {FG_GPU_BF16, 2, 2, 80, 4, 0, 30.0f, 2, {37, 1}, {40, 21}},
        {FG_GPU_F16, 66, 1, 36, 8, 0, 0.0f, 2, {1, 3}, {40, 12}}, /* more heads than a workgroup has rows */
        {FG_GPU_Q8_0, 2, 1, 36, 16, 20, 0.0f, 2, {40, 1}, {50, 19}},
        {FG_GPU_F16, 2, 1, 36, 64, 100, 0.0f, 2, {24, 1}, {520, 610}}, /* windows over the points of splitting */
        {FG_GPU_F16, 4, 2, 256, 16, 0, 0.0f, 3, {1, 5, 20}, {33, 5, 47}},
        {FG_GPU_BF16, 4, 1, 256, 32, 40, 50.0f, 1, {9}, {530}},
        {FG_GPU_Q8_0, 34, 1, 256, 8, 0, 0.0f, 2, {1, 3}, {40, 12}},
        {FG_GPU_Q8_0, 2, 2, 144, 16, 24, 0.0f, 2, {40, 1}, {50, 19}},
        {FG_GPU_F16, 2, 1, 132, 64, 100, 0.0f, 2, {24, 1}, {520, 610}},
    };
    size_t i;
    for (hg.width = 32; hg.width <= 64; hg.width += 32) {
        for (i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) gk_check_attention(&cases[i], GK_WIDE, false);
        for (i = 1; i < sizeof(cases) / sizeof(cases[0]); i += 3) gk_check_attention(&cases[i], GK_WIDE, true);
    }
    hg_close();
}

/* A first position that scores 10 more than the others, with values of 0: e^-10 is less than the least normal half. */
static void test_gpu_attention_sink(void) {
    static const gk_attn c = {FG_GPU_F16, 2, 1, 64, 64, 0, 0.0f, 1, {17}, {2000}};
    const int query = c.queries[0] - 1, width = c.n_head * c.head_dim;
    double wanted[64], error;
    for (hg.width = 32; hg.width <= 64; hg.width += 32) {
        uint64_t state = 99, out;
        gk_cache *g = gk_cache_new(&c, &state);
        fg_gpu_rope_kv_args a;
        int p, d;
        for (p = 0; p < g->n_tokens; p++) {
            float *row = gk_floats(g->src) + (size_t)p * (size_t)g->columns;
            memset(row + 1, 0, (size_t)(width + c.head_dim) * sizeof(float) - sizeof(float));
            row[0] = row[c.head_dim] = 8.0f;
            row[width] = p ? 0.0f : 10.0f; /* 8 * 10 / sqrt(64) */
            for (d = 0; d < c.head_dim; d++) row[width + c.head_dim + d] += p ? 2.0f : -row[width + c.head_dim + d];
        }
        memset(&a, 0, sizeof(a));
        gk_cache_write(g, &a);
        out = gk_attend(g, c.queries, GK_WIDE);
        gk_attn_reference(g, 0, c.kv_len[0] - 1, 0, wanted);
        error = gk_error(gk_floats(out) + (size_t)query * (size_t)width, wanted, (size_t)c.head_dim);
        CHECKF(error < 1e-3, "warps of %d: error %g", hg.width, error);
        gk_cache_free(g);
    }
    hg_close();
}

/* By products of warpgroups: up to 128 queries, over more than one workgroup, tile, item. */
static void test_gpu_attention_warpgroups(void) {
    static const gk_attn cases[] = {
        {FG_GPU_BF16, 4, 2, 64, 16, 0, 0.0f, 3, {1, 5, 140}, {33, 5, 147}},
        {FG_GPU_F16, 8, 2, 64, 32, 0, 0.0f, 3, {1, 1, 30}, {2064, 1, 600}},
        {FG_GPU_F16, 4, 1, 128, 64, 0, 0.0f, 2, {1, 36}, {70, 400}},
        {FG_GPU_BF16, 2, 2, 128, 64, 0, 0.0f, 1, {20}, {2084}}, /* over the point of splitting */
        {FG_GPU_BF16, 2, 2, 80, 4, 0, 30.0f, 2, {37, 1}, {140, 21}},
        {FG_GPU_F16, 130, 1, 36, 8, 0, 0.0f, 2, {1, 3}, {40, 12}}, /* more heads than a workgroup has rows */
        {FG_GPU_F16, 2, 1, 96, 16, 20, 0.0f, 2, {140, 1}, {300, 19}},
        {FG_GPU_F16, 2, 1, 36, 64, 100, 0.0f, 2, {24, 1}, {2058, 2124}}, /* windows over the point of splitting */
        {FG_GPU_F16, 2, 1, 64, 64, 300, 20.0f, 1, {70}, {2070}},
        {FG_GPU_Q8_0, 4, 2, 64, 16, 0, 0.0f, 2, {1, 70}, {33, 147}},
        {FG_GPU_Q8_0, 2, 1, 100, 32, 100, 0.0f, 2, {24, 1}, {2058, 19}},
        {FG_GPU_F16, 2, 1, 256, 64, 0, 0.0f, 2, {1, 70}, {70, 140}},
        {FG_GPU_BF16, 4, 1, 256, 32, 40, 50.0f, 1, {9}, {2054}},
        {FG_GPU_Q8_0, 2, 1, 144, 16, 0, 0.0f, 2, {20, 1}, {200, 9}},
    };
    size_t i;
    hg.width = 32;
    for (i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) gk_check_attention(&cases[i], GK_WARPGROUPS, false);
    for (i = 1; i < sizeof(cases) / sizeof(cases[0]); i += 3) gk_check_attention(&cases[i], GK_WARPGROUPS, true);
    hg_close();
}

/* The first item of attention of the last positions of the only sequence, and a kernel's number of steps. */
static void gk_first_item(gk_cache *g, int way, fg_gpu_attention_args *a, int *steps) {
    const gk_attn *c = &g->c;
    int kernel = gk_attention_kernel(c, way), width = c->n_head * c->head_dim;
    int32_t cu_q[2] = {0, 0}, kv_len = c->kv_len[0];
    fg_gpu_attn_item items[4];
    fg_gpu_attn_merge merges[4];
    fg_gpu_attn_counts n = {0, 0, 0};
    fg_gpu_shape shape;
    cu_q[1] = c->queries[0];
    fg_gpu_attn_add(1, cu_q, &kv_len, c->n_head / c->n_kv_head, 0, fg_gpu_wide_rows(kernel), fg_gpu_wide_split(kernel), 1, 1 << 30, &n, items, merges);
    memset(a, 0, sizeof(*a));
    a->kv = g->kv;
    a->q = g->src + (uint64_t)(kv_len - cu_q[1]) * 4 * (uint64_t)g->columns;
    a->dst = gk_put(NULL, (size_t)cu_q[1] * (size_t)width * sizeof(float));
    a->table = g->table;
    a->items = gk_put(items, sizeof(items));
    a->count = gk_int(n.items);
    a->q_stride = g->columns;
    a->dst_stride = width;
    a->table_stride = g->table_stride;
    a->max_items = n.items;
    a->scale = 0.125f;
    shape = fg_gpu_shape_of(kernel, a);
    CHECKF(hg_launch(fg_gpu_entries[kernel], a, 1, 1, shape.block, shape.shared_bytes), "%s", hg_error());
    memcpy(steps, hg.threads[0].steps, sizeof(hg.threads[0].steps));
}

/* Leaves out one step after the other, from the first that matters on, over two schedules each. */
static void gk_leave_out(int kernel, const void *a, int what, int first, int steps) {
    fg_gpu_shape shape = fg_gpu_shape_of(kernel, a);
    int at, round;
    for (at = first; at < steps; at++)
        for (round = 0; round < 2; round++) {
            hg.left_out = what;
            hg.left_at = at;
            CHECKF(!hg_launch(fg_gpu_entries[kernel], a, 1, 1, shape.block, shape.shared_bytes), "kernel %d, step %d, number %d: not found", kernel, what, at);
        }
    hg.left_out = HG_NO_STEP;
}

/* Whatever barrier in fragments is left out, it is found. But the first, before which there was no tile that could be read, and where
   a warp has one strip and no other has it the last but one, after which it changes factors that are its own. */
static void test_gpu_attention_wide_left_out(void) {
    static const gk_attn cases[] = {
        {FG_GPU_F16, 2, 1, 64, 16, 0, 0.0f, 1, {32}, {60}},
        {FG_GPU_F16, 2, 1, 256, 16, 0, 0.0f, 1, {16}, {60}},
    };
    int steps[HG_STEPS], i;
    for (hg.width = 32; hg.width <= 64; hg.width += 32)
        for (i = 0; i < 2; i++) {
            int kernel = gk_attention_kernel(&cases[i], GK_WIDE);
            uint64_t state = 99;
            gk_cache *g = gk_cache_new(&cases[i], &state);
            fg_gpu_rope_kv_args rope;
            fg_gpu_attention_args a;
            memset(&rope, 0, sizeof(rope));
            gk_cache_write(g, &rope);
            gk_first_item(g, GK_WIDE, &a, steps);
            CHECKF(steps[HG_BARRIER] == 2 * 4 + 2, "%d barriers", steps[HG_BARRIER]);
            gk_leave_out(kernel, &a, HG_BARRIER, 1, steps[HG_BARRIER] - 2);
            if ((hg.width == 32) != (cases[i].head_dim == 64)) gk_leave_out(kernel, &a, HG_BARRIER, steps[HG_BARRIER] - 2, steps[HG_BARRIER] - 1);
            gk_leave_out(kernel, &a, HG_BARRIER, steps[HG_BARRIER] - 1, steps[HG_BARRIER]);
            gk_cache_free(g);
        }
    hg_close();
}

/* Whatever step of the kernel of warpgroups is left out (a barrier, a wait, a fence and so on), it is found; so are tiles in another
   order. */
static void gk_check_left_out(const gk_attn *c, const int *least) {
    uint64_t state = 99, right;
    gk_cache *g = gk_cache_new(c, &state);
    fg_gpu_rope_kv_args rope;
    fg_gpu_attention_args a;
    int kernel = gk_attention_kernel(c, GK_WARPGROUPS), steps[HG_STEPS], what, at, differ = 0, n = c->queries[0] * c->n_head * c->head_dim;
    fg_gpu_shape shape;
    memset(&rope, 0, sizeof(rope));
    hg.width = 32;
    gk_cache_write(g, &rope);
    right = gk_attend(g, c->queries, GK_WARPGROUPS);
    gk_first_item(g, GK_WARPGROUPS, &a, steps);
    CHECK(memcmp(gk_floats(a.dst), gk_floats(right), (size_t)n * sizeof(float)) == 0);
    for (what = 1; what < HG_STEPS; what++) {
        CHECKF(steps[what] == least[what], "step %d: %d, not %d", what, steps[what], least[what]);
        if (what == HG_ASYNC_WAIT && c->type == FG_GPU_Q8_0) continue; /* a cache of bytes is not copied so */
        gk_leave_out(kernel, &a, what, 0, steps[what]);
    }
    shape = fg_gpu_shape_of(kernel, &a);
    hg.wrong_products = true;
    CHECKF(hg_launch(fg_gpu_entries[kernel], &a, 1, 1, shape.block, shape.shared_bytes), "%s", hg_error());
    hg.wrong_products = false;
    for (at = 0; at < n; at++) differ += !(fabsf(gk_floats(a.dst)[at] - gk_floats(right)[at]) < 1e-3f);
    CHECKF(differ > n / 4 * 3, "%d numbers differ on a device that orders otherwise", differ);
    gk_cache_free(g);
}

static void test_gpu_attention_left_out(void) {
    static const gk_attn four = {FG_GPU_F16, 2, 1, 64, 64, 0, 0.0f, 1, {40}, {500}}, bytes = {FG_GPU_Q8_0, 2, 1, 256, 64, 0, 0.0f, 1, {8}, {150}};
    static const int of_four[HG_STEPS] = {0, 5, 5, 5, 5, 8, 8}, of_bytes[HG_STEPS] = {0, 4, 4, 4, 4, 6, 6};
    gk_check_left_out(&four, of_four);
    gk_check_left_out(&bytes, of_bytes);
    hg_close();
}

/* ---- Mixtures of experts. ---- */

typedef struct gk_experts {
    int k, n, m, n_expert, n_used;
    bool norm, of_pairs;
} gk_experts;

/* Router's logits, some of them equal, one row without numbers; and who takes whom, against a search in double precision. */
static uint64_t gk_check_route(const gk_experts *c, uint64_t *state) {
    fg_gpu_route_args a;
    uint64_t logits = gk_normal((size_t)c->m * (size_t)(c->n_expert + 3), state);
    int t, i, j, bad = 0;
    double worst = 0;
    for (i = 0; i < c->n_expert; i++) gk_floats(logits)[(c->m - 1) * (c->n_expert + 3) + i] = i % 2 && c->m > 1 ? NAN : gk_floats(logits)[i % 3];
    memset(&a, 0, sizeof(a));
    a.src = logits, a.src_stride = c->n_expert + 3;
    a.dst = gk_put(NULL, (size_t)(c->m * (2 * c->n_used + 1)) * sizeof(float)), a.dst_stride = 2 * c->n_used + 1;
    a.count = gk_int(c->m), a.max_rows = c->m + 2;
    a.n_expert = c->n_expert, a.n_used = c->n_used, a.norm = c->norm, a.scale = 2.5f;
    gk_run(FG_GPU_KERNEL_route, &a);
    for (t = 0; t < c->m; t++) {
        const float *x = gk_floats(logits) + t * a.src_stride, *out = gk_floats(a.dst) + t * a.dst_stride;
        bool numbers = t + 1 < c->m || c->m == 1, taken[FG_GPU_EXPERTS] = {false};
        double all = 0, chosen = 0;
        for (i = 0; i < c->n_expert; i++) all += exp((double)x[i]);
        for (j = 0; j < c->n_used; j++) {
            int best = -1;
            for (i = 0; i < c->n_expert; i++)
                if (!taken[i] && (best < 0 || x[i] > x[best] || (isnan(x[best]) && !isnan(x[i])))) best = i;
            taken[best] = true;
            chosen += exp((double)x[best]);
            bad += out[j] != (float)best;
        }
        for (j = 0; j < c->n_used && numbers; j++)
            worst = test_worse(worst, fabs((double)out[c->n_used + j] / (2.5 * exp((double)x[(int)out[j]]) / (c->norm ? chosen : all)) - 1));
        bad += !isnan(out[2 * c->n_used]);
    }
    CHECKF(bad == 0 && worst < 1e-5, "%d of %d experts: %d differ, weights by %g", c->n_used, c->n_expert, bad, worst);
    return a.dst;
}

/* Every pair once, in tiles of its expert. */
static void gk_check_sort(const gk_experts *c, const fg_gpu_sort_args *a) {
    const fg_gpu_tile *tiles = (const fg_gpu_tile *)(uintptr_t)a->tiles + 1;
    const int32_t *pairs = (const int32_t *)(uintptr_t)a->pairs;
    int n = tiles[-1].expert, seen[4096] = {0}, t, i, bad = 0, total = 0;
    CHECKF(n >= 1 && n <= fg_gpu_experts_tiles(c->m * c->n_used, c->n_expert, a->rows), "%d tiles", n);
    for (t = 0; t < n; t++) {
        bad += tiles[t].first != total || tiles[t].n < 1 || tiles[t].n > a->rows || (t > 0 && tiles[t].expert < tiles[t - 1].expert);
        for (i = tiles[t].first; i < tiles[t].first + tiles[t].n && !bad; i++, total++) {
            bad += pairs[i] < 0 || pairs[i] >= c->m * c->n_used || seen[pairs[i]]++;
            bad += !bad && gk_floats(a->routes)[pairs[i] / c->n_used * a->routes_stride + pairs[i] % c->n_used] != (float)tiles[t].expert;
        }
    }
    CHECKF(bad == 0 && total == c->m * c->n_used, "%d pairs of %d, %d wrong", total, c->m * c->n_used, bad);
}

/* The error of products of all pairs with the first weight or, which lies behind it, the second. */
static double gk_experts_error(const gk_experts *c, const gk_weight *w, const fg_gpu_experts_args *e, bool second) {
    double worst = 0, *wanted = (double *)malloc((size_t)c->n * sizeof(double));
    const float *values = w->values + (second ? (size_t)(c->n * c->n_expert) * (size_t)c->k : 0);
    const float *bias = gk_floats(second ? e->bias2 : e->gemm.bias), *dst = gk_floats(second ? e->dst2 : e->gemm.dst);
    int t, j, r, i;
    for (t = 0; t < c->m; t++)
        for (j = 0; j < c->n_used; j++) {
            int expert = (int)gk_floats(e->routes)[t * e->routes_stride + j];
            const float *x = gk_floats(e->gemm.src) + t * e->gemm.src_stride + (c->of_pairs ? j * c->k : 0);
            for (r = 0; r < c->n; r++) {
                const float *row = values + ((size_t)expert * (size_t)c->n + (size_t)r) * (size_t)c->k;
                wanted[r] = (double)bias[expert * c->n + r];
                for (i = 0; i < c->k; i++) wanted[r] += (double)x[i] * (double)row[i];
            }
            worst = test_worse(worst, gk_error(dst + t * e->gemm.dst_stride + j * c->n, wanted, (size_t)c->n));
        }
    free(wanted);
    return worst;
}

/* A layer's products with experts: of each pair by itself, and in tiles of both sizes, whose bits are the same. Alone, or two at once. */
static void gk_check_experts(fg_type type, const gk_experts *c, bool sorts) {
    uint64_t state = (uint64_t)type + 5;
    gk_weight w = gk_weight_new(type, c->k, 2 * c->n * c->n_expert, &state);
    size_t outs = (size_t)(c->m * c->n_used) * (size_t)c->n + (size_t)c->m, rows = (size_t)(c->m * (c->of_pairs ? c->n_used : 1));
    int32_t n_tiles = fg_gpu_experts_tiles(c->m * c->n_used, c->n_expert, 16), tile;
    float *by16 = (float *)malloc(outs * sizeof(float));
    fg_gpu_experts_args e;
    fg_gpu_sort_args sort;
    fg_gpu_acts_args acts;
    double error, error2 = 0;
    memset(&e, 0, sizeof(e)), memset(&sort, 0, sizeof(sort)), memset(&acts, 0, sizeof(acts));
    sort.routes = e.routes = gk_check_route(c, &state), sort.routes_stride = e.routes_stride = 2 * c->n_used + 1;
    sort.pairs = e.pairs = gk_put(NULL, (size_t)(c->m * c->n_used) * sizeof(int32_t));
    sort.tiles = e.tiles = gk_put(NULL, (size_t)(n_tiles + 1) * sizeof(fg_gpu_tile));
    sort.count = e.gemm.count = acts.count = gk_int(c->m);
    sort.n_expert = e.n_expert = c->n_expert, sort.n_used = e.n_used = c->n_used;
    e.of_pairs = c->of_pairs, e.max_tiles = n_tiles;
    e.gemm.weight = w.device, e.gemm.layout = w.layout, e.gemm.n = c->n, e.gemm.k = c->k, e.gemm.max_rows = c->m + 1;
    acts.src_stride = e.gemm.src_stride = c->k * (c->of_pairs ? c->n_used : 1) + 5;
    acts.src = e.gemm.src = gk_normal((size_t)(c->m * e.gemm.src_stride), &state);
    acts.k = c->k, acts.per = c->of_pairs ? c->n_used : 0, acts.max_rows = (int32_t)rows;
    acts.acts_stride = e.gemm.acts_stride = fg_gpu_acts_stride(FG_GPU_ACTS_HALF, c->k);
    acts.acts = e.gemm.acts = gk_put(NULL, rows * (size_t)acts.acts_stride * 2), acts.scales = e.gemm.scales = gk_put(NULL, rows * sizeof(float));
    e.gemm.bias = gk_normal((size_t)(c->n * c->n_expert), &state);
    e.gemm.dst_stride = c->n_used * c->n + 1, e.gemm.dst = gk_put(NULL, outs * sizeof(float));
    if (!c->of_pairs) {
        e.weight2 = w.device + (uint64_t)(c->n * c->n_expert) * (uint64_t)w.layout.stride;
        e.bias2 = gk_normal((size_t)(c->n * c->n_expert), &state), e.dst2 = gk_put(NULL, outs * sizeof(float));
    }
    gk_run(fg_gpu_experts_kernel((int)type, 1), &e);
    if (e.weight2) error2 = gk_experts_error(c, &w, &e, true);
    CHECKF((error = gk_experts_error(c, &w, &e, false)) < 2e-6 && error2 < 2e-6, "%s, pairs by themselves: error %g, %g", fg_type_name(type), error, error2);
    gk_run(FG_GPU_KERNEL_acts, &acts);
    for (tile = 16; tile <= 64; tile *= 4) {
        sort.rows = tile;
        gk_run(FG_GPU_KERNEL_sort, &sort);
        if (sorts) gk_check_sort(c, &sort);
        memset(gk_floats(e.gemm.dst), 0xFF, outs * sizeof(float));
        if (e.weight2) memset(gk_floats(e.dst2), 0xFF, outs * sizeof(float));
        gk_run(fg_gpu_experts_kernel((int)type, tile), &e);
        if (e.weight2) error2 = gk_experts_error(c, &w, &e, true);
        CHECKF((error = gk_experts_error(c, &w, &e, false)) < 1e-3 && error2 < 1e-3, "%s, tiles of %d: error %g, %g", fg_type_name(type), tile, error, error2);
        if (tile == 16) memcpy(by16, gk_floats(e.gemm.dst), outs * sizeof(float));
        else CHECKF(memcmp(by16, gk_floats(e.gemm.dst), outs * sizeof(float)) == 0, "%s: tiles of 64 have other bits", fg_type_name(type));
    }
    free(by16);
    free(w.values);
    gk_end();
}

static void test_gpu_experts(void) {
    static const gk_experts few = {256, 70, 5, 6, 2, true, false}, many = {64, 19, 70, 3, 2, false, true}, odd = {41, 33, 9, 4, 3, true, true};
    static const gk_experts wide = {32, 5, 37, 600, 5, false, false}, alone = {96, 17, 40, 1, 1, true, false};
    int i;
    for (hg.width = 32; hg.width <= 64; hg.width += 32) {
        for (i = 0; i < CPU_TYPES; i++) gk_check_experts(cpu_types[i], &few, false);
        gk_check_experts(FG_TYPE_Q8_0, &many, true);
        gk_check_experts(FG_TYPE_F32, &odd, true);
        gk_check_experts(FG_TYPE_BF16, &wide, true); /* more experts than threads */
        gk_check_experts(FG_TYPE_MXFP4, &alone, true);
    }
    hg_close();
}

/* Adds what experts made, in the order of a token's pairs. */
static void test_gpu_mix(void) {
    enum { T = 3, N = 531, USED = 4 };
    static float wanted[T][N];
    uint64_t state = 3, src = gk_normal(T * USED * N, &state), weights = gk_normal(T * 9, &state), dst = gk_normal(T * (N + 2), &state);
    fg_gpu_mix_args a;
    int t, i, j;
    for (t = 0; t < T; t++)
        for (i = 0; i < N; i++) {
            wanted[t][i] = gk_floats(dst)[t * (N + 2) + i];
            for (j = 0; j < USED && t < 2; j++) wanted[t][i] += gk_floats(weights)[t * 9 + j] * gk_floats(src)[(t * USED + j) * N + i];
        }
    memset(&a, 0, sizeof(a));
    a.src = src, a.weights = weights, a.weights_stride = 9, a.dst = dst, a.dst_stride = N + 2, a.count = gk_int(2);
    a.n = N, a.n_used = USED, a.max_rows = T;
    hg.width = 32;
    gk_run(FG_GPU_KERNEL_mix, &a);
    for (t = 0; t < T; t++) CHECKF(memcmp(wanted[t], gk_floats(dst) + t * (N + 2), sizeof(wanted[t])) == 0, "row %d", t); /* of the third there is none */
    gk_end();
    hg_close();
}

/* ---- Recurrent layers. ---- */

enum { GK_STATE_HEADS = 4, GK_STATE_KEYS = 2, GK_STATE_T = 40, GK_STATE_BLOCKS = 5 };

/* Two sequences: one from its start, 22 tokens; one at position 13, 18 tokens, from block 4. Blocks are of 8 tokens. The second's first target is where it
   comes from, and its second is not kept. */
static fg_gpu_state_args gk_state_new(int dim, int taps, int tiled, uint64_t *state) {
    static const int32_t table[2 * 4] = {-1, 1, 2, -1, -1, 4, -1, 0};
    static const fg_gpu_state_seq seqs[2] = {{0, 22, 0, -1}, {22, GK_STATE_T, 13, 4}};
    int i, v = GK_STATE_HEADS * dim, qk = 2 * GK_STATE_KEYS * dim;
    fg_gpu_state_args a;
    memset(&a, 0, sizeof(a));
    a.src_stride = qk + 2 * v + 2 * GK_STATE_HEADS + 1, a.dst_stride = v + 3;
    a.src = gk_normal((size_t)(GK_STATE_T * a.src_stride), state);
    a.dst = gk_put(NULL, (size_t)((GK_STATE_T + 1) * a.dst_stride) * sizeof(float));
    a.conv = gk_normal((size_t)((qk + v) * taps), state);
    a.a = gk_normal(GK_STATE_HEADS, state);
    a.norm = gk_normal((size_t)dim, state);
    a.block_stride = (GK_STATE_HEADS * sizeof(float) * (uint64_t)fg_gpu_state_floats(dim, taps) + 15) / 16 * 16;
    a.state = gk_normal((size_t)(GK_STATE_BLOCKS * a.block_stride / sizeof(float)), state);
    a.seqs = gk_put(seqs, sizeof(seqs));
    a.table = gk_put(table, sizeof(table)), a.table_stride = 4;
    a.count = gk_int(GK_STATE_T), a.seq_count = gk_int(2);
    a.n_head = GK_STATE_HEADS, a.n_kv_head = GK_STATE_KEYS, a.head_dim = dim, a.taps = taps, a.tiled = tiled, a.block_tokens = 8;
    a.max_rows = GK_STATE_T + 1, a.max_seqs = 3, a.eps = 1e-5f;
    for (i = 0; i < GK_STATE_HEADS; i++) gk_floats(a.a)[i] = -0.05f - 0.3f * fabsf(gk_floats(a.a)[i]);
    return a;
}

/* A head's reference in double precision: S [k][v], inputs of the tokens so far. */
typedef struct gk_state {
    double S[160][160], out[160], kept[GK_STATE_T + 15][3][160]; /* kept: from 15 before the pass on */
} gk_state;

static void gk_state_token(const fg_gpu_state_args *a, gk_state *s, int row, int t, int head) {
    const float *x = gk_floats(a->src) + row * a->src_stride, *gates = x + 2 * (GK_STATE_KEYS + GK_STATE_HEADS) * a->head_dim;
    int d = a->head_dim, key = a->tiled ? head % GK_STATE_KEYS : head / (GK_STATE_HEADS / GK_STATE_KEYS), part, i, j, tap;
    int columns[3] = {key * d, (GK_STATE_KEYS + key) * d, (2 * GK_STATE_KEYS + head) * d};
    double y[3][160], length[2] = {1e-6, 1e-6}, square = 0, decay = exp((double)gk_floats(a->a)[head] * log1p(exp((double)gates[GK_STATE_HEADS + head])));
    for (part = 0; part < 3; part++)
        for (i = 0; i < d; i++) {
            double sum = 0;
            s->kept[t + 15][part][i] = (double)x[columns[part] + i];
            for (tap = 0; tap < a->taps; tap++)
                sum += (double)gk_floats(a->conv)[(columns[part] + i) * a->taps + tap] * s->kept[t + 16 - a->taps + tap][part][i];
            y[part][i] = sum / (1 + exp(-sum));
            if (part < 2) length[part] += y[part][i] * y[part][i];
        }
    for (j = 0; j < d; j++) {
        double have = 0;
        for (i = 0; i < d; i++) have += (s->S[i][j] *= decay) * y[1][i] / sqrt(length[1]);
        for (s->out[j] = 0, i = 0; i < d; i++) {
            s->S[i][j] += y[1][i] / sqrt(length[1]) * (y[2][j] - have) / (1 + exp(-(double)gates[head]));
            s->out[j] += s->S[i][j] * y[0][i] / sqrt(length[0] * d);
        }
        square += s->out[j] * s->out[j] / d;
    }
    for (j = 0; j < d; j++) {
        double z = (double)gates[(head - GK_STATE_HEADS) * d + j];
        s->out[j] *= (double)gk_floats(a->norm)[j] / sqrt(square + (double)a->eps) * z / (1 + exp(-z));
    }
}

/* What a block is to have of a head, beside what it has. */
static double gk_state_differs(const fg_gpu_state_args *a, const gk_state *s, int block, int t, int head) {
    const float *have = gk_floats(a->state + (uint64_t)block * a->block_stride) + head * fg_gpu_state_floats(a->head_dim, a->taps);
    int d = a->head_dim, i, j, part, tap;
    double worst = 0;
    for (j = 0; j < d; j++)
        for (i = 0; i < d; i++) worst = test_worse(worst, fabs((double)*have++ - s->S[i][j]));
    for (tap = 0; tap < a->taps - 1; tap++)
        for (part = 0; part < 3; part++)
            for (i = 0; i < d; i++) worst = test_worse(worst, fabs((double)*have++ - s->kept[t + 17 - a->taps + tap][part][i]));
    return worst;
}

static void gk_check_state(int dim, int taps, int tiled) {
    uint64_t seed = 89;
    fg_gpu_state_args a = gk_state_new(dim, taps, tiled, &seed);
    const fg_gpu_state_seq *seqs = (const fg_gpu_state_seq *)(uintptr_t)a.seqs;
    size_t bytes = GK_STATE_BLOCKS * (size_t)a.block_stride;
    float *before = (float *)malloc(bytes);
    gk_state *s = (gk_state *)malloc(sizeof(*s));
    double worst = 0, kept = 0;
    int seq, head, t, i, j, n_targets = 0;
    memcpy(before, gk_floats(a.state), bytes);
    gk_run(dim <= 128 ? FG_GPU_KERNEL_state128 : FG_GPU_KERNEL_state256, &a);
    gk_run(FG_GPU_KERNEL_state_out, &a);
    for (seq = 0; seq < 2; seq++)
        for (head = 0; head < GK_STATE_HEADS; head++) {
            const float *from = before + 4 * a.block_stride / sizeof(float) + (size_t)(head * fg_gpu_state_floats(dim, taps));
            memset(s, 0, sizeof(*s));
            for (j = 0; j < dim && seq; j++)
                for (i = 0; i < dim; i++) s->S[i][j] = (double)from[j * dim + i];
            for (i = 0; i < 3 * (taps - 1) * dim && seq; i++) s->kept[16 - taps + i / (3 * dim)][i / dim % 3][i % dim] = (double)from[dim * dim + i];
            for (t = 0; t < seqs[seq].end - seqs[seq].row; t++) {
                int row = seqs[seq].row + t, p = seqs[seq].position + t, last = row + 1 == seqs[seq].end;
                int block = (p + 1) % 8 == 0 || last ? ((const int32_t *)(uintptr_t)a.table)[seq * 4 + p / 8] : -1;
                gk_state_token(&a, s, row, t, head);
                for (j = 0; j < dim; j++) worst = test_worse(worst, fabs((double)gk_floats(a.dst)[row * a.dst_stride + head * dim + j] - s->out[j]));
                if (block >= 0) kept = test_worse(kept, gk_state_differs(&a, s, block, t, head)), n_targets++;
            }
        }
    CHECKF(worst < 2e-4 && kept < 2e-4 && n_targets == 4 * GK_STATE_HEADS,
           "heads of %d, %d taps: errors %g, %g of states, %d", dim, taps, worst, kept, n_targets);
    for (t = 0; t <= GK_STATE_T; t++) CHECK(isnan(gk_floats(a.dst)[t * a.dst_stride + GK_STATE_HEADS * dim]));
    CHECK(isnan(gk_floats(a.dst)[GK_STATE_T * a.dst_stride]));
    CHECK(memcmp(before + 3 * a.block_stride / 4, gk_floats(a.state + 3 * a.block_stride), a.block_stride) == 0);
    free(s), free(before);
    gk_end();
}

static void test_gpu_state(void) {
    for (hg.width = 32; hg.width <= 64; hg.width += 32) {
        gk_check_state(64, 4, 1);
        gk_check_state(33, 1, 0);
        gk_check_state(160, 3, 1);
        gk_check_state(20, 16, 0); /* more taps than tokens of a piece, and than a block has */
    }
    hg_close();
}

/* Whatever barrier is left out, it is found. The last one, after which no token comes, is as well done without. */
static void test_gpu_state_left_out(void) {
    uint64_t seed = 83;
    int kernel, pieces;
    for (hg.width = 32; hg.width <= 64; hg.width += 32)
        for (kernel = FG_GPU_KERNEL_state128; kernel <= FG_GPU_KERNEL_state256; kernel++) {
            fg_gpu_state_args a = gk_state_new(40, 4, 0, &seed);
            fg_gpu_shape shape = fg_gpu_shape_of(kernel, &a);
            pieces = kernel == FG_GPU_KERNEL_state128 ? 2 : 3; /* of 22 tokens, 16 or 8 each */
            CHECKF(hg_launch(fg_gpu_entries[kernel], &a, 1, 1, shape.block, 0), "%s", hg_error());
            CHECKF(hg.threads[0].steps[HG_BARRIER] == 3 * pieces, "%d barriers", hg.threads[0].steps[HG_BARRIER]);
            gk_leave_out(kernel, &a, HG_BARRIER, 0, 3 * pieces - 1);
            gk_end();
        }
    hg_close();
}

static void run_gpu_kernel_tests(void) {
    RUN(test_gpu_host_warpgroups);
    RUN(test_gpu_host_weighted);
    RUN(test_gpu_host_finds);
    RUN(test_gpu_host_fragments);
    RUN(test_gpu_embed);
    RUN(test_gpu_gemv);
    RUN(test_gpu_gemv_odd);
    RUN(test_gpu_skinny);
    RUN(test_gpu_joined);
    RUN(test_gpu_across);
    RUN(test_gpu_gemm);
    RUN(test_gpu_gemm_tiles);
    RUN(test_gpu_gemm_warpgroups);
    RUN(test_gpu_wg_ways);
    RUN(test_gpu_acts);
    RUN(test_gpu_acts_bytes);
    RUN(test_gpu_acts_fragments);
    RUN(test_gpu_splits);
    RUN(test_gpu_finish);
    RUN(test_gpu_norm);
    RUN(test_gpu_row_ways);
    RUN(test_gpu_expand);
    RUN(test_gpu_elements);
    RUN(test_gpu_copy);
    RUN(test_gpu_roof);
    RUN(test_gpu_sample);
    RUN(test_gpu_rope_kv);
    RUN(test_gpu_attention);
    RUN(test_gpu_attention_few);
    RUN(test_gpu_combine);
    RUN(test_gpu_attention_wide);
    RUN(test_gpu_attention_sink);
    RUN(test_gpu_attention_warpgroups);
    RUN(test_gpu_attention_wide_left_out);
    RUN(test_gpu_attention_left_out);
    RUN(test_gpu_experts);
    RUN(test_gpu_mix);
    RUN(test_gpu_state);
    RUN(test_gpu_state_left_out);
}
