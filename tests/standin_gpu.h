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
    int major, minor, driver;    /* compute capability; the driver's version, as cuDriverGetVersion has it, or (from 5.0 on) hipDriverGetVersion */
    int warp, processors, shared, shared_most; /* shared memory of a block: without and with asking for more */
    size_t memory, cached;       /* bytes; so many are not free, but given to who asks */
    int integrated;              /* 1: its memory is the host's */
    int reject_binaries;         /* 1: no module but text (PTX) loads */
    int wrong_products;          /* 1: those of warpgroups (9.0; attention, too) take the pieces of their operands' rows as they stand, those of bytes
                                    (gfx906, gfx103x) have no signs; 2: they are illegal instructions, after which their context is lost */
    int idle;                    /* 1: kernels are not run, and memory starts as zeros: for many runs that only fail */
    size_t node_bytes;           /* device memory that a graph takes for each of its kernels */
    int graph_error;             /* not 0: graphs are made, but this comes of launching one */
} standin_device;

typedef struct standin_stats {
    long calls, launches;        /* since standin_fail */
    int live;                    /* allocations, streams, events, graphs, modules, contexts */
    int depth;                   /* contexts that this thread has pushed */
    size_t bytes_used, graph_bytes; /* of graphs: the most since standin_fail */
    long graphs;                 /* that were launched, since standin_fail */
    bool failed;                 /* the call that was to fail has come */
    long special;                /* kernels with products of warpgroups or of bytes that were run (roofs, too), since standin_fail */
    long attentions;             /* and of attention by warpgroups */
    long finishes;               /* and those that finish products */
    long products, blas_calls;   /* of cuBLASLt or hipBLASLt, since standin_set_blas */
    long waits;                  /* of streams, for what had not come yet, since standin_set_order */
} standin_stats;

/* In which order streams run. */
typedef struct standin_order {
    long skip; /* the stream's wait of this number (stats.waits) is not heeded, as if it had been forgotten; -1: none */
    int late;  /* 1: a stream runs only when something waits for it, not at random; a copy to the host that nothing is before, at once */
} standin_order;

/* Each kernel takes kernel_s seconds, a byte between host and device byte_s. */
typedef struct standin_clock {
    int runs;
    double kernel_s, byte_s;
    double now; /* of the host */
} standin_clock;

/* 'K': a kernel; 'D', 'U': a copy to the host, to the device; 'H': the host (standin_host_works). */
typedef struct standin_span {
    int what;
    const void *stream; /* NULL: the host */
    double start, end;
} standin_span;

typedef struct standin_blas {
    long fail_at;   /* the call of this number fails; -1: none */
    int wrong;      /* 1: results are wrong; 2: products are illegal instructions, after which their context is lost */
    int no_capture; /* 1: products during a capture fail, and break it */
    int without;    /* the type (2: F16, 14: BF16) whose products there is no algorithm for */
} standin_blas;

int standin_violations(const char **text);
void standin_get_stats(standin_stats *stats);
void standin_fail(long call, long launch, int code); /* call or launch of this number gives `code`; -1: none */
void standin_set_blas(const standin_blas *blas);
void standin_fail_rtc(long call); /* call of HIPRTC of this number fails; -1: none */
void standin_set_device(const standin_device *device);
void standin_get_device(standin_device *device);
void standin_set_order(const standin_order *order);
void standin_set_clock(const standin_clock *clock);
void standin_host_works(double seconds);
size_t standin_get_spans(const standin_span **spans, standin_clock *clock); /* since standin_set_clock */

#ifdef __cplusplus
}
#endif
#endif
