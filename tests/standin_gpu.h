/* What tests say to the stand-in driver of tests/standin_gpu.c, beside calling it as a driver. */
#ifndef STANDIN_GPU_H
#define STANDIN_GPU_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct standin_device {
    char name[64], isa[32];      /* "Stand-in GPU"; the name of an AMD instruction set */
    int major, minor, driver;    /* compute capability; the driver's version, as cuDriverGetVersion has it */
    int warp, processors, shared, shared_most; /* shared memory of a block: without and with asking for more */
    size_t memory;
    int reject_binaries;         /* 1: no module but text (PTX) loads */
    int wrong_products;          /* 1: those of warpgroups (9.0) take the pieces of their operands' rows as they stand, those of bytes
                                    (gfx906, gfx103x) have no signs */
    int idle;                    /* 1: kernels are not run, and memory starts as zeros: for many runs that only fail */
} standin_device;

typedef struct standin_stats {
    long calls, launches;        /* since standin_fail */
    int live;                    /* allocations, streams, events, graphs, modules, contexts */
    int depth;                   /* contexts that this thread has pushed */
    size_t bytes_used;
    bool failed;                 /* the call that was to fail has come */
    long special;                /* kernels with products of warpgroups or of bytes that were run, since standin_fail */
    long products, blas_calls;   /* of cuBLASLt or hipBLASLt, since standin_set_blas */
} standin_stats;

typedef struct standin_blas {
    long fail_at;   /* the call of this number fails; -1: none */
    int wrong;      /* 1: results are wrong */
    int no_capture; /* 1: products during a capture fail, and break it */
} standin_blas;

int standin_violations(const char **text);
void standin_get_stats(standin_stats *stats);
void standin_fail(long call, long launch, int code); /* call or launch of this number gives `code`; -1: none */
void standin_set_blas(const standin_blas *blas);
void standin_fail_rtc(long call); /* call of HIPRTC of this number fails; -1: none */
void standin_set_device(const standin_device *device);
void standin_get_device(standin_device *device);

#ifdef __cplusplus
}
#endif
#endif
