/* device.cuh: the thin layer under kernels.cuh, for nvcc, for clang with AMD's targets (builtins only), and for a host compiler
   with tests/host_gpu.h, which executes workgroups with every thread a fiber and checks what they do.

   Threads work in groups of 32 lanes whatever the width of the hardware's (fgk_lane, fgk_group); only matrix fragments belong to a
   whole hardware warp of FG_WARP lanes. Memory is read and written through the functions here, so that the host can check it:
   fgk_load_*, fgk_store_* in device memory, fgk_get_*, fgk_put_* in shared memory. Contraction of a * b + c is off (see build.sh):
   fgk_fma says where it is wanted, so that a sum has the same bits in every kernel that takes it in the same order. */

#ifndef FG_GPU_DEVICE_CUH
#define FG_GPU_DEVICE_CUH

#include "kernels.h"

typedef struct fgk_u4 {
    uint32_t x, y, z, w;
} fgk_u4;

typedef struct fgk_f4 {
    float x, y, z, w;
} fgk_f4;

#if defined(__CUDACC__)

/* ---- NVIDIA ---- */

#define FG_DEV static __device__ __forceinline__
#define FG_BODY static __device__ __forceinline__
#define FG_SHARED(type, name, count) __shared__ __align__(16) type name[count]
#define FG_KERNEL(name, kind, threads, ...)                                                                                     \
    extern "C" __global__ void __launch_bounds__(threads) fg_gpu_##name(const __grid_constant__ fg_gpu_##kind##_args args) { \
        fgk_depend();                                                                                                           \
        __VA_ARGS__;                                                                                                            \
    }
/* It calls fgk_depend itself, when it needs what the kernel before it has written. */
#define FG_KERNEL_EARLY(name, kind, threads, ...)                                                                               \
    extern "C" __global__ void __launch_bounds__(threads) fg_gpu_##name(const __grid_constant__ fg_gpu_##kind##_args args) { \
        __VA_ARGS__;                                                                                                            \
    }
#define FG_TWO_AT_ONCE(threads) threads, 2 /* registers for two workgroups on a processor */
#define FG_THREE_AT_ONCE(threads) threads, 3
#define FG_UNROLL _Pragma("unroll")
#define FG_ROLLED _Pragma("unroll 1")
#define FG_UNROLL_MMA FG_UNROLL
#define FG_MATRICES 1
#define FG_WARP 32
/* Whether products of few rows have registers to fetch quantised weights a piece ahead: with 128 of them eight rows of Q6_K would keep 280 bytes in memory. */
#define FG_GEMV_AHEAD 0

/* A kernel may be launched while the one before it still runs (programmatic dependent launch, from 9.0 on): after this all is there that
   kernels before it have written, and the next one may be launched. Weights do not change, and may be read earlier. Were the next one let
   in before, its workgroups would lie where there was room by then, and not evenly: measured slower. */
FG_DEV void fgk_depend(void) {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

FG_DEV int fgk_thread(void) { return (int)threadIdx.x; }
FG_DEV int fgk_block_x(void) { return (int)blockIdx.x; }
FG_DEV int fgk_block_y(void) { return (int)blockIdx.y; }
FG_DEV int fgk_grid_x(void) { return (int)gridDim.x; }
#define fgk_barrier() __syncthreads()
#define fgk_in_order() ((void)0)
#define fgk_uniform(x) (x)
#define fgk_group_sync() __syncwarp()
#define fgk_shuffle_xor(value, mask) __shfl_xor_sync(0xFFFFFFFFu, value, mask)
#define fgk_shuffle_xor_u32(value, mask) __shfl_xor_sync(0xFFFFFFFFu, value, mask)

FG_DEV int fgk_log2(int x) { return 31 - __clz(x); }
FG_DEV uint32_t fgk_bits(float x) { return __float_as_uint(x); }
FG_DEV float fgk_from_bits(uint32_t x) { return __uint_as_float(x); }
FG_DEV float fgk_fma(float a, float b, float c) { return __fmaf_rn(a, b, c); }
FG_DEV float fgk_exp(float x) { return expf(x); }
FG_DEV float fgk_log(float x) { return logf(x); }
FG_DEV float fgk_sqrt(float x) { return sqrtf(x); }
FG_DEV float fgk_round(float x) { return rintf(x); }
FG_DEV float fgk_exp_near(float x) { /* within (4 + |x|) units of the last place; 0 below 2^-126 */
    x *= 1.4426950408889634f;
    asm("ex2.approx.ftz.f32 %0, %0;" : "+f"(x));
    return x;
}
FG_DEV float fgk_most(float a, float b) { return fmaxf(a, b); } /* of a number and what is none the number */
FG_DEV float fgk_reciprocal(float x) { /* within a unit of the last place; of what is above 2^126 0 */
    asm("rcp.approx.ftz.f32 %0, %0;" : "+f"(x));
    return x;
}

FG_DEV float fgk_half_to_float(uint32_t h) {
    float x;
    asm("{ .reg .b16 h; cvt.u16.u32 h, %1; cvt.f32.f16 %0, h; }" : "=f"(x) : "r"(h & 0xFFFFu));
    return x;
}
FG_DEV uint32_t fgk_float_to_half(float x) {
    uint32_t h;
    asm("{ .reg .b16 h; cvt.rn.f16.f32 h, %1; cvt.u32.u16 %0, h; }" : "=r"(h) : "f"(x));
    return h;
}

FG_DEV uint32_t fgk_two_halves(float a, float b) { /* a in the low half */
    uint32_t h;
#if __CUDA_ARCH__ >= 800
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(h) : "f"(b), "f"(a));
#else
    h = fgk_float_to_half(a) | fgk_float_to_half(b) << 16;
#endif
    return h;
}

/* (x & mask) | over: one instruction, where the compiler would make two of constants. */
FG_DEV uint32_t fgk_field(uint32_t x, uint32_t mask, uint32_t over) {
    asm("lop3.b32 %0, %0, %1, %2, 0xEA;" : "+r"(x) : "r"(mask), "r"(over));
    return x;
}
/* Bytes 0 and 2 (odd: 1 and 3) of a word, above each the lowest byte of `over`. */
FG_DEV uint32_t fgk_bytes_over(uint32_t word, uint32_t over, int odd) { return __byte_perm(word, over, odd ? 0x4341 : 0x4240); }
/* Two halves each: a - b, a * b, a * b + c, rounded once. */
FG_DEV uint32_t fgk_halves_sub(uint32_t a, uint32_t b) {
    asm("sub.rn.f16x2 %0, %0, %1;" : "+r"(a) : "r"(b));
    return a;
}
FG_DEV uint32_t fgk_halves_mul(uint32_t a, uint32_t b) {
    asm("mul.rn.f16x2 %0, %0, %1;" : "+r"(a) : "r"(b));
    return a;
}
FG_DEV uint32_t fgk_halves_fma(uint32_t a, uint32_t b, uint32_t c) {
    asm("fma.rn.f16x2 %0, %0, %1, %2;" : "+r"(a) : "r"(b), "r"(c));
    return a;
}
FG_DEV void fgk_halves_to_floats(uint32_t pair, float *x) {
    asm("{ .reg .b16 a, b; mov.b32 {a, b}, %2; cvt.f32.f16 %0, a; cvt.f32.f16 %1, b; }" : "=f"(x[0]), "=f"(x[1]) : "r"(pair));
}
/* What the compiler is to have where it stands. */
FG_DEV uint32_t fgk_keep(uint32_t x) {
    asm volatile("" : "+r"(x));
    return x;
}
/* Byte i is that of a (0 to 3) and b (4 to 7) which the lowest bits 4i and on of s number; s has no nibbles above 7 in its low half. */
FG_DEV uint32_t fgk_pick_bytes(uint32_t a, uint32_t b, uint32_t s) {
    asm("prmt.b32 %0, %0, %1, %2;" : "+r"(a) : "r"(b), "r"(s));
    return a;
}

FG_DEV fgk_u4 fgk_load_u4(const void *p) {
    uint4 v = *(const uint4 *)p; /* no __ldg: compilers may move that before fgk_depend */
    fgk_u4 r = {v.x, v.y, v.z, v.w};
    return r;
}
FG_DEV uint32_t fgk_load_u32(const void *p) { return *(const uint32_t *)p; }
FG_DEV uint32_t fgk_load_u16(const void *p) { return *(const uint16_t *)p; }
FG_DEV uint32_t fgk_load_u8(const void *p) { return *(const uint8_t *)p; }
/* What a pass reads once, and no kernel writes: caches need not keep it. */
FG_DEV fgk_u4 fgk_once_u4(const void *p) {
    uint4 v = __ldcs((const uint4 *)p);
    fgk_u4 r = {v.x, v.y, v.z, v.w};
    return r;
}
FG_DEV uint32_t fgk_once_u32(const void *p) { return __ldcs((const uint32_t *)p); }
FG_DEV uint32_t fgk_once_u16(const void *p) { return __ldcs((const uint16_t *)p); }
FG_DEV void fgk_store_u4(void *p, fgk_u4 v) { *(uint4 *)p = make_uint4(v.x, v.y, v.z, v.w); }
FG_DEV fgk_f4 fgk_load_f4(const float *p) { /* also of what this kernel has written */
    float4 v = *(const float4 *)p;
    fgk_f4 r = {v.x, v.y, v.z, v.w};
    return r;
}
FG_DEV void fgk_store_f4(float *p, fgk_f4 v) { *(float4 *)p = make_float4(v.x, v.y, v.z, v.w); }
FG_DEV void fgk_store_u2(void *p, uint32_t x, uint32_t y) { *(uint2 *)p = make_uint2(x, y); }
FG_DEV void fgk_store_u32(void *p, uint32_t v) { *(uint32_t *)p = v; }
FG_DEV void fgk_store_u16(void *p, uint32_t v) { *(uint16_t *)p = (uint16_t)v; }
FG_DEV void fgk_store_u8(void *p, uint32_t v) { *(uint8_t *)p = (uint8_t)v; }

FG_DEV float fgk_get(const float *p) { return *p; }
FG_DEV fgk_f4 fgk_get_f4(const float *p) {
    float4 v = *(const float4 *)p;
    fgk_f4 r = {v.x, v.y, v.z, v.w};
    return r;
}
FG_DEV uint32_t fgk_get_u32(const uint32_t *p) { return *p; }
FG_DEV fgk_u4 fgk_get_u4(const void *p) {
    uint4 v = *(const uint4 *)p;
    fgk_u4 r = {v.x, v.y, v.z, v.w};
    return r;
}
FG_DEV void fgk_put(float *p, float v) { *p = v; }
FG_DEV void fgk_put_u32(uint32_t *p, uint32_t v) { *p = v; }
FG_DEV void fgk_put_u4(void *p, fgk_u4 v) { *(uint4 *)p = make_uint4(v.x, v.y, v.z, v.w); }
FG_DEV uint32_t fgk_shared_add(uint32_t *p, uint32_t v) { return atomicAdd(p, v); } /* what was there before; threads in any order */

/* 16 bytes from device to shared memory; they are there after the wait, for this thread, and after a barrier for all. */
FG_DEV void fgk_async_copy(void *to, const void *from) {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"((uint32_t)__cvta_generic_to_shared(to)), "l"(from) : "memory");
#else
    fgk_put_u4(to, fgk_load_u4(from));
#endif
}
FG_DEV void fgk_async_wait(void) {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.wait_all;" ::: "memory");
#endif
}
/* The same of 4 bytes. */
FG_DEV void fgk_async_copy_word(void *to, const void *from) {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"((uint32_t)__cvta_generic_to_shared(to)), "l"(from) : "memory");
#else
    *(uint32_t *)to = *(const uint32_t *)from;
#endif
}
/* Copies so far are a group; a wait for all groups but the last n. */
FG_DEV void fgk_async_commit(void) {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}
#if __CUDA_ARCH__ >= 800
#define fgk_async_wait_for(n) asm volatile("cp.async.wait_group %0;" ::"n"(n) : "memory")
#else
#define fgk_async_wait_for(n) ((void)0)
#endif

/* Fragments: 16x16 halves whose rows are 16 adjacent halves in shared memory, and 16x16 sums. */
typedef struct fgk_frag {
    uint32_t x[4];
} fgk_frag;
typedef struct fgk_sums {
    float x[8];
} fgk_sums;
#define FG_SUMS 8

FG_DEV void fgk_frag_load(fgk_frag *f, const uint16_t *p, int stride) {
    int lane = fgk_thread() & 31;
    uint32_t at = (uint32_t)__cvta_generic_to_shared(p + (lane & 15) * stride + (lane >> 4) * 8);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(f->x[0]), "=r"(f->x[1]), "=r"(f->x[2]), "=r"(f->x[3])
                 : "r"(at)
                 : "memory");
}
FG_DEV void fgk_mma_one(float *c, uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1) {
#if __CUDA_ARCH__ >= 800
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
#else
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a0), "r"(a1), "r"(b0));
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a2), "r"(a3), "r"(b1));
#endif
}
/* sums[i][j] += row i of a . row j of b */
FG_DEV void fgk_mma(fgk_sums *c, const fgk_frag *a, const fgk_frag *b) {
    fgk_mma_one(c->x, a->x[0], a->x[1], a->x[2], a->x[3], b->x[0], b->x[2]);
    fgk_mma_one(c->x + 4, a->x[0], a->x[1], a->x[2], a->x[3], b->x[1], b->x[3]);
}
/* The first eight rows of b alone: sums 0 to 3. */
FG_DEV void fgk_mma_narrow(fgk_sums *c, const fgk_frag *a, const fgk_frag *b) {
    fgk_mma_one(c->x, a->x[0], a->x[1], a->x[2], a->x[3], b->x[0], b->x[2]);
}
/* Kernels may fill fragments as they lie: lane 4r + c has of rows r and r + 8 the columns 2c, 2c + 1 (x[0], x[1]) and 8 further (x[2],
   x[3]). */
#define FG_STRAIGHT 1
/* Where sum i of this lane stands. */
FG_DEV int fgk_sum_row(int i) { return (fgk_thread() & 31) / 4 + i / 2 % 2 * 8; }
FG_DEV int fgk_sum_col(int i) { return (fgk_thread() & 3) * 2 + i % 2 + i / 4 * 8; }

/* Two words of two halves each: both low ones, both high ones. */
FG_DEV uint32_t fgk_low_halves(uint32_t a, uint32_t b) { return __byte_perm(a, b, 0x5410); }
FG_DEV uint32_t fgk_high_halves(uint32_t a, uint32_t b) { return __byte_perm(a, b, 0x7632); }
/* Two numbers as halves, of those that are finite the nearest. */
FG_DEV uint32_t fgk_finite_halves(float a, float b) {
    return fgk_two_halves(fminf(fmaxf(a, -65504.0f), 65504.0f), fminf(fmaxf(b, -65504.0f), 65504.0f));
}
/* 2^x, within two units of the last place. */
FG_DEV float fgk_exp2(float x) {
    asm("ex2.approx.ftz.f32 %0, %0;" : "+f"(x));
    return x;
}

/* Products of warpgroups (four warps), which Hopper alone has: 64 rows of one operand by 64, 128 or 256 of the other, in shared memory
   as fg_gpu_wg_operand describes. They run on their own: what they read must be there for all (fgk_wg_publish by those who wrote it,
   then a barrier) and stay, and sums must not be touched, from the product to the fgk_wg_wait that is for it. The compiler keeps to that
   order where sums are touched only between a fgk_wg_hold after the wait and one before the fence. */
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define FG_WARPGROUPS 1
#define FG_SHARED_MORE(type, name) extern __shared__ __align__(1024) type name[]
FG_DEV uint32_t fgk_shared_address(const void *p) { return (uint32_t)__cvta_generic_to_shared(p); }
FG_DEV void fgk_wg_publish(void) { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
FG_DEV void fgk_async_copy_or_zero(void *to, const void *from, int some) { /* as fgk_async_copy, which from sm_80 on can do so */
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(fgk_shared_address(to)), "l"(from), "r"(some ? 16 : 0) : "memory");
}
FG_DEV void fgk_wg_fence(void) { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
FG_DEV void fgk_wg_commit(void) { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
#define fgk_wg_wait(n) asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(n) : "memory")
#define fgk_wg_hold(x, n) FG_UNROLL for (int held = 0; held < (n); held++) asm volatile("" : "+f"((x)[held])::"memory")
#define fgk_wg_hold_u32(x, n) FG_UNROLL for (int held = 0; held < (n); held++) asm volatile("" : "+r"((x)[held])::"memory")
#define FGK_8(x, i) "+f"(x[i]), "+f"(x[i + 1]), "+f"(x[i + 2]), "+f"(x[i + 3]), "+f"(x[i + 4]), "+f"(x[i + 5]), "+f"(x[i + 6]), "+f"(x[i + 7])
#define FGK_32(x) FGK_8(x, 0), FGK_8(x, 8), FGK_8(x, 16), FGK_8(x, 24)
#define FGK_64(x) FGK_32(x), FGK_8(x, 32), FGK_8(x, 40), FGK_8(x, 48), FGK_8(x, 56)
#define FGK_128(x) FGK_64(x), FGK_8(x, 64), FGK_8(x, 72), FGK_8(x, 80), FGK_8(x, 88), FGK_8(x, 96), FGK_8(x, 104), FGK_8(x, 112), FGK_8(x, 120)
#define FGK_0_31 \
    "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define FGK_32_63 \
    ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, " \
    "%59, %60, %61, %62, %63"
#define FGK_64_127 \
    ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, %80, %81, %82, %83, %84, %85" \
    ", %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106" \
    ", %107, %108, %109, %110, %111, %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
/* sums[i][j] += row i of a . row j of b, of n (128 or 256) rows of b */
FG_DEV void fgk_wg_mma(int n, float *x, uint64_t a, uint64_t b) {
    if (n == 256)
        asm volatile("wgmma.mma_async.sync.aligned.m64n256k16.f32.f16.f16 " FGK_0_31 FGK_32_63 FGK_64_127 "}, %128, %129, 1, 1, 1, 0, 0;"
                     : FGK_128(x)
                     : "l"(a), "l"(b));
    else
        asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 " FGK_0_31 FGK_32_63 "}, %64, %65, 1, 1, 1, 0, 0;"
                     : FGK_64(x)
                     : "l"(a), "l"(b));
}
/* The same of numbers of a type (F16, BF16), by n (64 or 128) rows; with `more` 0 what the sums were does not count. */
#define FGK_SCORES_64(T)                                                                                                        \
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %34, 0; wgmma.mma_async.sync.aligned.m64n64k16.f32." T "." T " " FGK_0_31 "}, " \
                 "%32, %33, p, 1, 1, 0, 0; }"                                                                                   \
                 : FGK_32(x)                                                                                                    \
                 : "l"(a), "l"(b), "r"(more))
#define FGK_SCORES_128(T)                                                                                                                  \
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %66, 0; wgmma.mma_async.sync.aligned.m64n128k16.f32." T "." T " " FGK_0_31 FGK_32_63 "}, " \
                 "%64, %65, p, 1, 1, 0, 0; }"                                                                                              \
                 : FGK_64(x)                                                                                                               \
                 : "l"(a), "l"(b), "r"(more))
FG_DEV void fgk_wg_scores(int type, int n, float *x, uint64_t a, uint64_t b, int more) {
    if (type == FG_GPU_F16 && n == 64) FGK_SCORES_64("f16");
    else if (type == FG_GPU_F16) FGK_SCORES_128("f16");
    else if (n == 64) FGK_SCORES_64("bf16");
    else FGK_SCORES_128("bf16");
}
/* sums[i][j] += row i of a . column j of b: a, 64 rows of 16 numbers, in registers, as sums of two times eight columns lie, in pairs;
   b, 16 rows of n (64, 128 or 256), as fg_gpu_wg_columns describes. */
#define FGK_WEIGHTED_64(T)                                                                                                   \
    asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32." T "." T " " FGK_0_31 "}, {%32, %33, %34, %35}, %36, 1, 1, 1, 1;" \
                 : FGK_32(x)                                                                                                 \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b))
#define FGK_WEIGHTED_128(T)                                                                                                             \
    asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32." T "." T " " FGK_0_31 FGK_32_63 "}, {%64, %65, %66, %67}, %68, 1, 1, 1, 1;" \
                 : FGK_64(x)                                                                                                            \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b))
#define FGK_WEIGHTED_256(T)                                                                                                 \
    asm volatile("wgmma.mma_async.sync.aligned.m64n256k16.f32." T "." T " " FGK_0_31 FGK_32_63 FGK_64_127 "}, "               \
                 "{%128, %129, %130, %131}, %132, 1, 1, 1, 1;"                                                              \
                 : FGK_128(x)                                                                                               \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b))
FG_DEV void fgk_wg_weighted(int type, int n, float *x, const uint32_t *a, uint64_t b) {
    if (type == FG_GPU_F16 && n == 64) FGK_WEIGHTED_64("f16");
    else if (type == FG_GPU_F16 && n == 128) FGK_WEIGHTED_128("f16");
    else if (type == FG_GPU_F16) FGK_WEIGHTED_256("f16");
    else if (n == 64) FGK_WEIGHTED_64("bf16");
    else if (n == 128) FGK_WEIGHTED_128("bf16");
    else FGK_WEIGHTED_256("bf16");
}
/* Two numbers of a type (F16, BF16) in a word, rounded to the nearest. */
FG_DEV uint32_t fgk_wg_pair(int type, float a, float b) {
    uint32_t pair;
    if (type == FG_GPU_F16) return fgk_two_halves(a, b);
    asm("cvt.rn.bf16x2.f32 %0, %2, %1;" : "=r"(pair) : "f"(a), "f"(b));
    return pair;
}
#undef FGK_WEIGHTED_256
#undef FGK_WEIGHTED_128
#undef FGK_WEIGHTED_64
#undef FGK_SCORES_128
#undef FGK_SCORES_64
#undef FGK_64_127
#undef FGK_32_63
#undef FGK_0_31
#undef FGK_128
#undef FGK_64
#undef FGK_32
#undef FGK_8
FG_DEV int fgk_wg_row(int i) { return (fgk_thread() & 127) / 32 * 16 + (fgk_thread() & 31) / 4 + i / 2 % 2 * 8; }
FG_DEV int fgk_wg_col(int i) { return i / 4 * 8 + (fgk_thread() & 3) * 2 + i % 2; }
#endif

#elif defined(__HIP__)

/* ---- AMD: clang's builtins, no header of ROCm's ---- */

#define FG_DEV static __attribute__((device)) __attribute__((always_inline)) inline
#define FG_BODY static __attribute__((device)) __attribute__((always_inline)) inline
#define FG_SHARED(type, name, count) static __attribute__((shared)) __attribute__((aligned(16))) type name[count]
#define FG_KERNEL(name, kind, threads, ...)                                                                                       \
    extern "C" __attribute__((global)) __attribute__((amdgpu_flat_work_group_size(threads, threads))) FG_REGISTERS               \
        void fg_gpu_##name(const fg_gpu_##kind##_args args) {                                                                     \
        __VA_ARGS__;                                                                                                              \
    }
#define FG_TWO_AT_ONCE(threads) threads
#define FG_THREE_AT_ONCE(threads) threads
#define FG_UNROLL _Pragma("unroll")
#define FG_ROLLED _Pragma("unroll 1")
#if defined(__GFX9__)
#define FG_WARP 64
#define fgk_uniform(x) (x)
#else
#define FG_WARP 32
#define fgk_uniform(x) __builtin_amdgcn_readfirstlane(x) /* tells the compiler that lanes of a wave agree */
#endif
#define FG_GEMV_AHEAD 1
#define FG_AS1 __attribute__((address_space(1)))

typedef uint32_t fgk__v2u __attribute__((ext_vector_type(2)));
typedef uint32_t fgk__v4u __attribute__((ext_vector_type(4)));
typedef float fgk__v4f __attribute__((ext_vector_type(4)));
typedef float fgk__v8f __attribute__((ext_vector_type(8)));
typedef _Float16 fgk__v2h __attribute__((ext_vector_type(2)));
typedef _Float16 fgk__v4h __attribute__((ext_vector_type(4)));
typedef _Float16 fgk__v8h __attribute__((ext_vector_type(8)));
typedef _Float16 fgk__v16h __attribute__((ext_vector_type(16)));

FG_DEV int fgk_thread(void) { return (int)__builtin_amdgcn_workitem_id_x(); }
FG_DEV int fgk_block_x(void) { return (int)__builtin_amdgcn_workgroup_id_x(); }
FG_DEV int fgk_block_y(void) { return (int)__builtin_amdgcn_workgroup_id_y(); }
FG_DEV int fgk_hardware_lane(void) { return (int)__builtin_amdgcn_mbcnt_hi(~0u, __builtin_amdgcn_mbcnt_lo(~0u, 0)); }
FG_DEV void fgk_barrier(void) {
    __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup");
    __builtin_amdgcn_s_barrier();
    __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup");
}
#define fgk_in_order() __asm__ volatile("" ::: "memory") /* loads after it come after it: registers do not suffice for all */
FG_DEV void fgk_group_sync(void) {
    __builtin_amdgcn_fence(__ATOMIC_ACQ_REL, "wavefront");
    __builtin_amdgcn_wave_barrier();
}

FG_DEV int fgk_log2(int x) { return 31 - __builtin_clz((unsigned)x); }
FG_DEV uint32_t fgk_bits(float x) { return __builtin_bit_cast(uint32_t, x); }
FG_DEV float fgk_from_bits(uint32_t x) { return __builtin_bit_cast(float, x); }
FG_DEV uint32_t fgk_shuffle_xor_u32(uint32_t value, int mask) {
    return (uint32_t)__builtin_amdgcn_ds_bpermute((fgk_hardware_lane() ^ mask) * 4, (int)value);
}
FG_DEV float fgk_shuffle_xor(float value, int mask) { return fgk_from_bits(fgk_shuffle_xor_u32(fgk_bits(value), mask)); }
FG_DEV float fgk_fma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
typedef float fgk_f2 __attribute__((ext_vector_type(2)));
FG_DEV fgk_f2 fgk_fma_f2(fgk_f2 a, fgk_f2 b, fgk_f2 c) { /* one instruction on gfx90a and gfx94x */
#if __has_builtin(__builtin_elementwise_fma)
    return __builtin_elementwise_fma(a, b, c);
#else
    fgk_f2 v = {fgk_fma(a.x, b.x, c.x), fgk_fma(a.y, b.y, c.y)};
    return v;
#endif
}
/* The same word, of which the compiler does not know which bits are 0: else it takes bytes for fields of four bits, which are two instructions each
   on their way to floats. */
FG_DEV uint32_t fgk_as_bytes(uint32_t word) {
    __asm__("" : "+v"(word));
    return word;
}
FG_DEV float fgk_exp(float x) { return __builtin_expf(x); }
FG_DEV float fgk_log(float x) { return __builtin_logf(x); }
FG_DEV float fgk_sqrt(float x) { return __builtin_sqrtf(x); }
FG_DEV float fgk_round(float x) { return __builtin_rintf(x); }
#if __has_builtin(__builtin_amdgcn_exp2f)
FG_DEV float fgk_exp_near(float x) { return __builtin_amdgcn_exp2f(x * 1.4426950408889634f); }
#else /* clang before 17, as in ROCm 5: there this is the same instruction */
FG_DEV float fgk_exp_near(float x) { return __builtin_exp2f(x * 1.4426950408889634f); }
#endif
FG_DEV float fgk_most(float a, float b) { return __builtin_fmaxf(a, b); }
FG_DEV float fgk_reciprocal(float x) { return __builtin_amdgcn_rcpf(x); }
FG_DEV float fgk_half_to_float(uint32_t h) { return (float)__builtin_bit_cast(_Float16, (uint16_t)h); }
FG_DEV uint32_t fgk_float_to_half(float x) { return __builtin_bit_cast(uint16_t, (_Float16)x); }
FG_DEV uint32_t fgk_two_halves(float a, float b) {
    fgk__v2h pair = {(_Float16)a, (_Float16)b};
    return __builtin_bit_cast(uint32_t, pair);
}
FG_DEV uint32_t fgk_field(uint32_t x, uint32_t mask, uint32_t over) {
#if defined(__GFX9__) /* one instruction has one constant there */
    __asm__("" : "+v"(over));
#endif
    return (x & mask) | over;
}
FG_DEV uint32_t fgk_bytes_over(uint32_t word, uint32_t over, int odd) {
    return __builtin_amdgcn_perm(over, word, odd ? 0x04030401u : 0x04020400u);
}
FG_DEV uint32_t fgk_halves_sub(uint32_t a, uint32_t b) {
    return __builtin_bit_cast(uint32_t, __builtin_bit_cast(fgk__v2h, a) - __builtin_bit_cast(fgk__v2h, b));
}
FG_DEV uint32_t fgk_halves_mul(uint32_t a, uint32_t b) {
    return __builtin_bit_cast(uint32_t, __builtin_bit_cast(fgk__v2h, a) * __builtin_bit_cast(fgk__v2h, b));
}
FG_DEV void fgk_halves_to_floats(uint32_t pair, float *x) { x[0] = fgk_half_to_float(pair), x[1] = fgk_half_to_float(pair >> 16); }
#if defined(__gfx906__) || defined(__gfx908__) || defined(__gfx90a__) || defined(__gfx942__) || defined(__gfx950__) || defined(__gfx9_4_generic__)
#define FG_MIXES 1
/* What clang makes of the other one below on later devices; on these it takes two floats at a time, and six instructions. */
FG_DEV uint32_t fgk_halves_scale(uint32_t pair, float scale, float min) {
    uint32_t to;
    __asm__("v_fma_mixlo_f16 %0, %1, %2, -%3 op_sel_hi:[1,0,0]" : "=v"(to) : "v"(pair), "v"(scale), "v"(min));
    __asm__("v_fma_mixhi_f16 %0, %1, %2, -%3 op_sel:[1,0,0] op_sel_hi:[1,0,0]" : "+v"(to) : "v"(pair), "v"(scale), "v"(min));
    return to;
}
#endif
FG_DEV uint32_t fgk_pick_bytes(uint32_t a, uint32_t b, uint32_t s) {
    s = (s & 0xFFu) | (s & 0xFF00u) << 8;
    return __builtin_amdgcn_perm(b, a, (s | s << 4) & 0x0F0F0F0Fu);
}
#define FG_LOOKS_UP 1
/* Selectors are bytes, as these codes are then: those of even numbers, and of odd ones. 8 selects bit 15 of the second word, in all bits. */
FG_DEV uint32_t fgk_look_up_bytes(const uint32_t *table, uint32_t codes) {
    uint32_t low = codes & 0x07070707u, high = __builtin_amdgcn_perm(0u, 0xFF00u, codes & 0x08080808u);
    return (__builtin_amdgcn_perm(table[3], table[2], low) & high) | (__builtin_amdgcn_perm(table[1], table[0], low) & ~high);
}
FG_DEV void fgk_look_up(const uint32_t *table, uint32_t word, uint32_t *to) {
    uint32_t even = fgk_look_up_bytes(table, word), odd = fgk_look_up_bytes(table, word >> 4);
    to[0] = __builtin_amdgcn_perm(odd, even, 0x06040200u);
    to[1] = __builtin_amdgcn_perm(odd, even, 0x07050301u);
}

FG_DEV fgk_u4 fgk_load_u4(const void *p) {
    fgk__v4u v = *(const FG_AS1 fgk__v4u *)p;
    fgk_u4 r = {v.x, v.y, v.z, v.w};
    return r;
}
FG_DEV uint32_t fgk_load_u32(const void *p) { return *(const FG_AS1 uint32_t *)p; }
FG_DEV uint32_t fgk_load_u16(const void *p) { return *(const FG_AS1 uint16_t *)p; }
FG_DEV uint32_t fgk_load_u8(const void *p) { return *(const FG_AS1 uint8_t *)p; }
FG_DEV void fgk_store_u4(void *p, fgk_u4 v) {
    fgk__v4u r = {v.x, v.y, v.z, v.w};
    *(FG_AS1 fgk__v4u *)p = r;
}
FG_DEV fgk_f4 fgk_load_f4(const float *p) {
    fgk__v4f v = *(const FG_AS1 fgk__v4f *)p;
    fgk_f4 r = {v.x, v.y, v.z, v.w};
    return r;
}
FG_DEV void fgk_store_f4(float *p, fgk_f4 v) {
    fgk__v4f r = {v.x, v.y, v.z, v.w};
    *(FG_AS1 fgk__v4f *)p = r;
}
FG_DEV void fgk_store_u2(void *p, uint32_t x, uint32_t y) {
    fgk__v2u r = {x, y};
    *(FG_AS1 fgk__v2u *)p = r;
}
FG_DEV void fgk_store_u32(void *p, uint32_t v) { *(FG_AS1 uint32_t *)p = v; }
FG_DEV void fgk_store_u16(void *p, uint32_t v) { *(FG_AS1 uint16_t *)p = (uint16_t)v; }
FG_DEV void fgk_store_u8(void *p, uint32_t v) { *(FG_AS1 uint8_t *)p = (uint8_t)v; }

FG_DEV float fgk_get(const float *p) { return *p; }
FG_DEV fgk_f4 fgk_get_f4(const float *p) {
    fgk__v4f v = *(const fgk__v4f *)p;
    fgk_f4 r = {v.x, v.y, v.z, v.w};
    return r;
}
FG_DEV uint32_t fgk_get_u32(const uint32_t *p) { return *p; }
FG_DEV void fgk_put(float *p, float v) { *p = v; }
FG_DEV void fgk_put_u32(uint32_t *p, uint32_t v) { *p = v; }
FG_DEV uint32_t fgk_shared_add(uint32_t *p, uint32_t v) { return __hip_atomic_fetch_add(p, v, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_WORKGROUP); }
FG_DEV void fgk_put_u4(void *p, fgk_u4 v) {
    fgk__v4u r = {v.x, v.y, v.z, v.w};
    *(fgk__v4u *)p = r;
}
FG_DEV void fgk_async_copy(void *to, const void *from) { fgk_put_u4(to, fgk_load_u4(from)); }
FG_DEV void fgk_async_wait(void) {}
FG_DEV void fgk_async_copy_word(void *to, const void *from) { *(uint32_t *)to = fgk_load_u32(from); }
FG_DEV void fgk_async_commit(void) {}
#define fgk_async_wait_for(n) ((void)0)

/* Fragments, as for NVIDIA. WMMA (gfx11, gfx12) and MFMA (gfx90a, gfx94x) where there are any, else products of pairs. */
#define FG_SUMS (256 / FG_WARP)
typedef struct fgk_sums {
    float x[FG_SUMS];
} fgk_sums;

/* Code for a generic target has only that one's name. */
#if defined(__gfx908__) || defined(__gfx90a__) || defined(__gfx942__) || defined(__gfx950__) || defined(__gfx9_4_generic__)
#define FG_MFMA 1
#else
#define FG_MFMA 0
#endif

/* At most 256 registers where there are as many again for sums: sums are in ordinary ones then, else every step copies them there and back.
   (128 is what 256 of both kinds are called there.) */
#if FG_MFMA && !defined(__gfx908__)
#define FG_REGISTERS __attribute__((amdgpu_num_vgpr(128)))
#else
#define FG_REGISTERS
#endif

/* Steps of products are unrolled where an instruction is one; the others' registers would not suffice. */
#if defined(__GFX11__) || defined(__GFX12__) || FG_MFMA
#define FG_UNROLL_MMA FG_UNROLL
#define FG_MATRICES 1
#else
#define FG_UNROLL_MMA FG_ROLLED
#endif

#if defined(__GFX11__)
typedef struct fgk_frag {
    fgk__v16h x;
} fgk_frag;
FG_DEV void fgk_frag_load(fgk_frag *f, const uint16_t *p, int stride) { /* both halves of the warp have all rows */
    const fgk__v8h *from = (const fgk__v8h *)(p + (fgk_thread() & 15) * stride);
    f->x = __builtin_shufflevector(from[0], from[1], 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
}
FG_DEV void fgk_mma(fgk_sums *c, const fgk_frag *a, const fgk_frag *b) {
    fgk__v8f sums = {c->x[0], c->x[1], c->x[2], c->x[3], c->x[4], c->x[5], c->x[6], c->x[7]};
    sums = __builtin_amdgcn_wmma_f32_16x16x16_f16_w32(a->x, b->x, sums);
    FG_UNROLL for (int i = 0; i < 8; i++) c->x[i] = sums[i];
}
FG_DEV int fgk_sum_row(int i) { return 2 * i + (fgk_thread() & 31) / 16; }
#elif defined(__GFX12__)
typedef struct fgk_frag {
    fgk__v8h x;
} fgk_frag;
FG_DEV void fgk_frag_load(fgk_frag *f, const uint16_t *p, int stride) {
    f->x = *(const fgk__v8h *)(p + (fgk_thread() & 15) * stride + (fgk_thread() & 31) / 16 * 8);
}
FG_DEV void fgk_mma(fgk_sums *c, const fgk_frag *a, const fgk_frag *b) {
    fgk__v8f sums = {c->x[0], c->x[1], c->x[2], c->x[3], c->x[4], c->x[5], c->x[6], c->x[7]};
    sums = __builtin_amdgcn_wmma_f32_16x16x16_f16_w32_gfx12(a->x, b->x, sums);
    FG_UNROLL for (int i = 0; i < 8; i++) c->x[i] = sums[i];
}
FG_DEV int fgk_sum_row(int i) { return i + (fgk_thread() & 31) / 16 * 8; }
#elif FG_MFMA
typedef struct fgk_frag {
    fgk__v4h x;
} fgk_frag;
FG_DEV void fgk_frag_load(fgk_frag *f, const uint16_t *p, int stride) {
    f->x = *(const fgk__v4h *)(p + (fgk_thread() & 15) * stride + (fgk_thread() & 63) / 16 * 4);
}
FG_DEV void fgk_mma(fgk_sums *c, const fgk_frag *a, const fgk_frag *b) {
    fgk__v4f sums = {c->x[0], c->x[1], c->x[2], c->x[3]};
    sums = __builtin_amdgcn_mfma_f32_16x16x16f16(a->x, b->x, sums, 0, 0, 0);
    FG_UNROLL for (int i = 0; i < 4; i++) c->x[i] = sums[i];
}
FG_DEV int fgk_sum_row(int i) { return i + (fgk_thread() & 63) / 16 * 4; }
#else
typedef struct fgk_frag {
    const uint16_t *p;
    int stride;
} fgk_frag;
FG_DEV void fgk_frag_load(fgk_frag *f, const uint16_t *p, int stride) {
    f->p = p;
    f->stride = stride;
}
FG_DEV int fgk_sum_row(int i) { return i + (fgk_thread() & (FG_WARP - 1)) / 16 * FG_SUMS; }
#if defined(__gfx906__) || defined(__gfx1030__) || defined(__gfx1031__) || defined(__gfx1032__) || defined(__gfx1033__) || \
    defined(__gfx1034__) || defined(__gfx1035__) || defined(__gfx1036__) || defined(__gfx10_3_generic__)
FG_DEV float fgk_dot2(fgk__v2h a, fgk__v2h b, float c) { return __builtin_amdgcn_fdot2(a, b, c, false); }
/* c + products of four signed bytes; of two halves. */
#define FG_BYTE_DOTS 1
FG_DEV int fgk_dot4(uint32_t a, uint32_t b, int c) { return __builtin_amdgcn_sdot4((int)a, (int)b, c, false); }
FG_DEV float fgk_dot_halves(uint32_t a, uint32_t b, float c) { return fgk_dot2(__builtin_bit_cast(fgk__v2h, a), __builtin_bit_cast(fgk__v2h, b), c); }
#else
FG_DEV float fgk_dot2(fgk__v2h a, fgk__v2h b, float c) { return fgk_fma((float)a.y, (float)b.y, fgk_fma((float)a.x, (float)b.x, c)); }
#endif
FG_DEV void fgk_mma(fgk_sums *c, const fgk_frag *a, const fgk_frag *b) {
    const fgk__v8h *y = (const fgk__v8h *)(b->p + (fgk_thread() & 15) * b->stride);
    fgk__v8h y0 = y[0], y1 = y[1];
    FG_UNROLL for (int i = 0; i < FG_SUMS; i++) {
        const fgk__v8h *x = (const fgk__v8h *)(a->p + fgk_sum_row(i) * a->stride);
        __asm__ volatile("" ::: "memory"); /* else all rows of all products are loaded first, and spilled */
        fgk__v8h x0 = x[0], x1 = x[1];
        float sum = c->x[i];
        sum = fgk_dot2(x0.s01, y0.s01, sum);
        sum = fgk_dot2(x0.s23, y0.s23, sum);
        sum = fgk_dot2(x0.s45, y0.s45, sum);
        sum = fgk_dot2(x0.s67, y0.s67, sum);
        sum = fgk_dot2(x1.s01, y1.s01, sum);
        sum = fgk_dot2(x1.s23, y1.s23, sum);
        sum = fgk_dot2(x1.s45, y1.s45, sum);
        c->x[i] = fgk_dot2(x1.s67, y1.s67, sum);
    }
}
#endif
FG_DEV int fgk_sum_col(int i) { return (void)i, fgk_thread() & 15; }

#else

/* ---- The host: tests/host_gpu.h is included before. Bodies are functions of their own, so that kernels of all types share them. ---- */

#include <math.h>
#include <string.h>

#define FG_DEV static inline
#define FG_BODY static
#define FG_SHARED(type, name, count) type *name = (type *)hg_shared((count) * sizeof(type))
#define FG_KERNEL(name, kind, threads, ...)                                                   \
    static void fg_gpu_##name(const void *pointer) {                                          \
        const fg_gpu_##kind##_args args = *(const fg_gpu_##kind##_args *)pointer;             \
        __VA_ARGS__;                                                                          \
    }
#define FG_TWO_AT_ONCE(threads) threads
#define FG_THREE_AT_ONCE(threads) threads
#define FG_UNROLL
#define FG_ROLLED
#define FG_UNROLL_MMA
#define FG_MATRICES 1
#define FG_WARP hg.width
#define FG_GEMV_AHEAD (hg.width == 64) /* both ways are tested */

FG_DEV int fgk_thread(void) { return hg.current; }
FG_DEV int fgk_block_x(void) { return hg.block_x; }
FG_DEV int fgk_block_y(void) { return hg.block_y; }
#define fgk_barrier() hg_barrier(__LINE__)
#define fgk_in_order() ((void)0)
#define fgk_uniform(x) (x)
#define fgk_group_sync() hg_group_sync(__LINE__)
#define fgk_shuffle_xor_u32(value, mask) hg_shuffle_xor(value, mask, __LINE__)
#define fgk_shuffle_xor(value, mask) fgk_from_bits(hg_shuffle_xor(fgk_bits(value), mask, __LINE__))

FG_DEV int fgk_log2(int x) {
    int n = 0;
    while (x >>= 1) n++;
    return n;
}
FG_DEV uint32_t fgk_bits(float x) {
    uint32_t bits;
    memcpy(&bits, &x, 4);
    return bits;
}
FG_DEV float fgk_from_bits(uint32_t bits) {
    float x;
    memcpy(&x, &bits, 4);
    return x;
}
FG_DEV float fgk_fma(float a, float b, float c) { return a * b + c; }
FG_DEV float fgk_exp(float x) { return expf(x); }
FG_DEV float fgk_log(float x) { return logf(x); }
FG_DEV float fgk_sqrt(float x) { return sqrtf(x); }
FG_DEV float fgk_round(float x) { return rintf(x); }
FG_DEV float fgk_exp_near(float x) { return exp2f(x * 1.4426950408889634f); }
FG_DEV float fgk_most(float a, float b) { return fmaxf(a, b); }
FG_DEV float fgk_reciprocal(float x) { return 1.0f / x; }
FG_DEV float fgk_half_to_float(uint32_t h) { return hg_half_to_float((uint16_t)h); }
FG_DEV uint32_t fgk_float_to_half(float x) { return hg_float_to_half(x); }
FG_DEV uint32_t fgk_two_halves(float a, float b) { return fgk_float_to_half(a) | fgk_float_to_half(b) << 16; }
FG_DEV uint32_t fgk_field(uint32_t x, uint32_t mask, uint32_t over) { return (x & mask) | over; }
FG_DEV uint32_t fgk_bytes_over(uint32_t word, uint32_t over, int odd) {
    return (word >> 8 * odd & 0x00FF00FFu) | (over & 255u) * 0x01000100u;
}
FG_DEV uint32_t fgk_pick_bytes(uint32_t a, uint32_t b, uint32_t s) {
    uint64_t both = (uint64_t)b << 32 | a;
    uint32_t word = 0;
    int i;
    for (i = 0; i < 4; i++) word |= (uint32_t)(both >> 8 * (s >> 4 * i & 7u) & 255u) << 8 * i;
    return word;
}
FG_DEV void fgk_halves_to_floats(uint32_t pair, float *x) { x[0] = fgk_half_to_float(pair), x[1] = fgk_half_to_float(pair >> 16); }
FG_DEV uint32_t fgk_halves_sub(uint32_t a, uint32_t b) {
    float x[2], y[2];
    fgk_halves_to_floats(a, x), fgk_halves_to_floats(b, y);
    return fgk_two_halves(x[0] - y[0], x[1] - y[1]);
}
FG_DEV uint32_t fgk_halves_mul(uint32_t a, uint32_t b) {
    float x[2], y[2];
    fgk_halves_to_floats(a, x), fgk_halves_to_floats(b, y);
    return fgk_two_halves(x[0] * y[0], x[1] * y[1]);
}
FG_DEV uint32_t fgk_halves_fma(uint32_t a, uint32_t b, uint32_t c) {
    float x[2], y[2], z[2];
    fgk_halves_to_floats(a, x), fgk_halves_to_floats(b, y), fgk_halves_to_floats(c, z);
    return fgk_two_halves(x[0] * y[0] + z[0], x[1] * y[1] + z[1]);
}

FG_DEV fgk_u4 fgk_load_u4(const void *p) {
    fgk_u4 v;
    hg_global(p, 16);
    memcpy(&v, p, 16);
    return v;
}
FG_DEV uint32_t fgk_load_u32(const void *p) { return hg_global(p, 4), *(const uint32_t *)p; }
FG_DEV uint32_t fgk_load_u16(const void *p) { return hg_global(p, 2), *(const uint16_t *)p; }
FG_DEV uint32_t fgk_load_u8(const void *p) { return hg_global(p, 1), *(const uint8_t *)p; }
FG_DEV void fgk_store_u4(void *p, fgk_u4 v) {
    hg_global(p, 16);
    memcpy(p, &v, 16);
}
FG_DEV fgk_f4 fgk_load_f4(const float *p) {
    fgk_f4 v;
    hg_global(p, 16);
    memcpy(&v, p, 16);
    return v;
}
FG_DEV void fgk_store_f4(float *p, fgk_f4 v) {
    hg_global(p, 16);
    memcpy(p, &v, 16);
}
FG_DEV void fgk_store_u2(void *p, uint32_t x, uint32_t y) {
    hg_global(p, 8);
    memcpy(p, &x, 4), memcpy((char *)p + 4, &y, 4);
}
FG_DEV void fgk_store_u32(void *p, uint32_t v) { hg_global(p, 4), memcpy(p, &v, 4); }
FG_DEV void fgk_store_u16(void *p, uint32_t v) { hg_global(p, 2), *(uint16_t *)p = (uint16_t)v; }
FG_DEV void fgk_store_u8(void *p, uint32_t v) { hg_global(p, 1), *(uint8_t *)p = (uint8_t)v; }

FG_DEV float fgk_get(const float *p) { return hg_read(p, 4), *p; }
FG_DEV fgk_f4 fgk_get_f4(const float *p) {
    fgk_f4 v;
    hg_read(p, 16);
    memcpy(&v, p, 16);
    return v;
}
FG_DEV uint32_t fgk_get_u32(const uint32_t *p) { return hg_read(p, 4), *p; }
FG_DEV fgk_u4 fgk_get_u4(const void *p) {
    fgk_u4 v;
    hg_read(p, 16);
    memcpy(&v, p, 16);
    return v;
}
FG_DEV void fgk_put(float *p, float v) { hg_write(p, 4), *p = v; }
FG_DEV void fgk_put_u32(uint32_t *p, uint32_t v) { hg_write(p, 4), *p = v; }
FG_DEV uint32_t fgk_shared_add(uint32_t *p, uint32_t v) { return hg_atomic(p), *p += v, *p - v; }
FG_DEV void fgk_put_u4(void *p, fgk_u4 v) {
    hg_write(p, 16);
    memcpy(p, &v, 16);
}
FG_DEV void fgk_async_copy(void *to, const void *from) { hg_async_copy(to, from, 16); }
FG_DEV void fgk_async_wait(void) { hg_async_wait(); }
FG_DEV void fgk_async_copy_word(void *to, const void *from) { hg_async_copy(to, from, 4); }
FG_DEV void fgk_async_commit(void) { hg_async_commit(); }
#define fgk_async_wait_for(n) hg_async_wait_for(n)

/* Fragments lie as on NVIDIA's warps of 32 lanes, and as MFMA has them on warps of 64. */
#define FG_SUMS (256 / hg.width)
typedef struct fgk_frag {
    uint32_t x[4];
} fgk_frag;
typedef struct fgk_sums {
    float x[8];
} fgk_sums;
FG_DEV int fgk_frag_row(int i, int lane) { return hg.width == 64 ? lane % 16 : lane / 4 + i % 2 * 8; }
FG_DEV int fgk_frag_col(int i, int lane) { return hg.width == 64 ? lane / 16 * 4 + 2 * i : lane % 4 * 2 + i / 2 * 8; }
FG_DEV void fgk_frag_load(fgk_frag *f, const uint16_t *p, int stride) {
    int i, lane = hg.current % hg.width;
    for (i = 0; i < 128 / hg.width; i++)
        f->x[i] = fgk_get_u32((const uint32_t *)(const void *)(p + fgk_frag_row(i, lane) * stride + fgk_frag_col(i, lane)));
}
FG_DEV int fgk_sum_row(int i) {
    int lane = hg.current % hg.width;
    return hg.width == 64 ? lane / 16 * 4 + i : lane / 4 + i / 2 % 2 * 8;
}
FG_DEV int fgk_sum_col(int i) {
    int lane = hg.current % hg.width;
    return hg.width == 64 ? lane % 16 : lane % 4 * 2 + i % 2 + i / 4 * 8;
}
/* As MI200's MFMA sees a half. */
static float fgk_mma_half(uint32_t h) { return hg.width == 64 && (h & 0x7C00u) == 0 ? 0.0f : hg_half_to_float((uint16_t)h); }
/* All lanes of the warp bring what they have of a and b. */
static void fgk_mma_at(fgk_sums *c, const fgk_frag *a, const fgk_frag *b, int line) {
    float *tile = hg_warp_tile(), *x = tile, *y = tile + 256; /* [16][16] each */
    int i, j, lane = hg.current % hg.width;
    for (i = 0; i < 128 / hg.width; i++)
        for (j = 0; j < 2; j++) {
            int at = fgk_frag_row(i, lane) * 16 + fgk_frag_col(i, lane) + j;
            x[at] = fgk_mma_half(a->x[i] >> 16 * j & 0xFFFFu);
            y[at] = fgk_mma_half(b->x[i] >> 16 * j & 0xFFFFu);
        }
    hg_warp_sync(line);
    for (i = 0; i < 256 / hg.width; i++) {
        const float *row = x + fgk_sum_row(i) * 16, *col = y + fgk_sum_col(i) * 16;
        for (j = 0; j < 16; j++) c->x[i] += row[j] * col[j];
    }
    hg_warp_sync(line);
}
#define fgk_mma(c, a, b) fgk_mma_at(c, a, b, __LINE__)
#define fgk_mma_narrow(c, a, b) fgk_mma_at(c, a, b, __LINE__)
#define FG_STRAIGHT 1

/* As on NVIDIA. */
FG_DEV uint32_t fgk_keep(uint32_t x) { return x; }
FG_DEV uint32_t fgk_low_halves(uint32_t a, uint32_t b) { return (a & 0xFFFFu) | b << 16; }
FG_DEV uint32_t fgk_high_halves(uint32_t a, uint32_t b) { return a >> 16 | (b & 0xFFFF0000u); }
FG_DEV uint32_t fgk_finite_halves(float a, float b) {
    a = a > 65504.0f ? 65504.0f : a < -65504.0f ? -65504.0f : a;
    b = b > 65504.0f ? 65504.0f : b < -65504.0f ? -65504.0f : b;
    return fgk_two_halves(a, b);
}
FG_DEV float fgk_exp2(float x) { return exp2f(x); }

#define FG_BYTE_DOTS 1
FG_DEV int fgk_dot4(uint32_t a, uint32_t b, int c) {
    int i;
    for (i = 0; i < 32; i += 8) c += hg.wrong_products ? (int)(a >> i & 255u) * (int)(b >> i & 255u) : (int8_t)(a >> i) * (int8_t)(b >> i);
    return c;
}

FG_DEV float fgk_dot_halves(uint32_t a, uint32_t b, float c) {
    float x[2], y[2];
    fgk_halves_to_floats(a, x), fgk_halves_to_floats(b, y);
    return c + x[0] * y[0] + x[1] * y[1];
}

/* Products of warpgroups. */
#define FG_WARPGROUPS 1
#define FG_SHARED_MORE(type, name) type *name = (type *)hg_shared_more()
FG_DEV uint32_t fgk_shared_address(const void *p) { return (uint32_t)((const char *)p - hg.shared); }
FG_DEV void fgk_wg_publish(void) { hg_publish(); }
FG_DEV void fgk_async_copy_or_zero(void *to, const void *from, int some) {
    fgk_u4 zeros = {0, 0, 0, 0};
    if (some) fgk_async_copy(to, from);
    else fgk_put_u4(to, zeros);
}
FG_DEV void fgk_wg_fence(void) { hg_wg_fence(); }
FG_DEV void fgk_wg_commit(void) { hg_wg_commit(); }
#define fgk_wg_wait(n) hg_wg_wait(n)
#define fgk_wg_hold(x, n) ((void)0)
#define fgk_wg_hold_u32(x, n) ((void)0)
#define fgk_wg_mma(n, x, a, b) hg_wg_mma(x, a, b, n, HG_HALVES, 1, __LINE__)
#define fgk_wg_scores(type, n, x, a, b, more) hg_wg_mma(x, a, b, n, (type) == FG_GPU_F16 ? HG_HALVES : HG_BFLOATS, more, __LINE__)
#define fgk_wg_weighted(type, n, x, a, b) hg_wg_mma_held(x, a, b, n, (type) == FG_GPU_F16 ? HG_HALVES : HG_BFLOATS, __LINE__)
static uint32_t fgk_float_to_bfloat(float x);
FG_DEV uint32_t fgk_wg_pair(int type, float a, float b) {
    if (type == FG_GPU_F16) return fgk_two_halves(a, b);
    return fgk_float_to_bfloat(a) | fgk_float_to_bfloat(b) << 16;
}
FG_DEV int fgk_wg_row(int i) { return hg_wg_row(hg.current, i); }
FG_DEV int fgk_wg_col(int i) { return hg_wg_col(hg.current, i); }

#endif

/* ---- For all ---- */

#if !defined(__CUDACC__)
#define FG_KERNEL_EARLY FG_KERNEL
#define fgk_once_u4 fgk_load_u4
#define fgk_once_u32 fgk_load_u32
#define fgk_once_u16 fgk_load_u16
FG_DEV void fgk_depend(void) {}
#endif
#define FG_ANY_AT_ONCE(threads) threads

#if !defined(__HIP__)
typedef struct fgk_f2 {
    float x, y;
} fgk_f2;
FG_DEV fgk_f2 fgk_fma_f2(fgk_f2 a, fgk_f2 b, fgk_f2 c) {
    fgk_f2 v = {fgk_fma(a.x, b.x, c.x), fgk_fma(a.y, b.y, c.y)};
    return v;
}
FG_DEV uint32_t fgk_as_bytes(uint32_t word) { return word; }
#endif

#if !defined(FG_LOOKS_UP)
/* The bytes that a table of 16 has for the codes of 4 bits in a word: of codes 0, 4, 1, 5, then of 2, 6, 3, 7. */
FG_DEV void fgk_look_up(const uint32_t *table, uint32_t word, uint32_t *to) {
    uint32_t code = word & 0x77777777u, high = word >> 1 & 0x44444444u, x[2];
    int i;
    FG_UNROLL for (i = 0; i < 2; i++)
        x[i] = fgk_pick_bytes(fgk_pick_bytes(table[0], table[1], code >> 16 * i), fgk_pick_bytes(table[2], table[3], code >> 16 * i),
                              0x3210u | high >> 16 * i);
    to[0] = fgk_pick_bytes(x[0], x[1], 0x5140u);
    to[1] = fgk_pick_bytes(x[0], x[1], 0x7362u);
}
#endif

#if !defined(FG_MIXES)
/* scale * x - min of both halves, as floats, rounded once. */
FG_DEV uint32_t fgk_halves_scale(uint32_t pair, float scale, float min) {
    float x[2];
    fgk_halves_to_floats(pair, x);
    return fgk_two_halves(fgk_fma(scale, x[0], -min), fgk_fma(scale, x[1], -min));
}
#endif

FG_DEV int fgk_lane(void) { return fgk_thread() & 31; }
FG_DEV int fgk_group(void) { return fgk_uniform(fgk_thread() >> 5); } /* of 32 lanes */
FG_DEV float fgk_load(const float *p) { return fgk_from_bits(fgk_load_u32(p)); }
FG_DEV void fgk_store(float *p, float v) { fgk_store_u32(p, fgk_bits(v)); }
FG_DEV float fgk_max(float a, float b) { return a > b ? a : b; }
FG_DEV float fgk_abs(float x) { return fgk_from_bits(fgk_bits(x) & 0x7FFFFFFFu); }
FG_DEV float fgk_bfloat_to_float(uint32_t b) { return fgk_from_bits(b << 16); }
FG_DEV uint32_t fgk_float_to_bfloat(float x) {
    uint32_t bits = fgk_bits(x);
    if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return bits >> 16 | 0x40u; /* NaN, made quiet */
    return (bits + 0x7FFFu + (bits >> 16 & 1u)) >> 16;
}

#endif /* FG_GPU_DEVICE_CUH */
