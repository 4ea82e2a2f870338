/* SPDX-License-Identifier: Apache-2.0 */
/* The small interface between the engine (and the calibrator's probes) and a device: memory,
 * streams, events, copies, kernels. Two backends: `cuda`, and `host`, whose device memory is memory
 * of its own, whose streams are threads and whose copies and kernels really run.
 *
 * Streams run what they are given in order, beside each other and beside the caller; a call only
 * queues. A failure while something runs is sticky, as in CUDA: from then on nothing queued on that
 * device runs, and every call on it returns the failure. Calls are safe from several threads on
 * different streams. With CUDA all of them but open, close and count make their device the calling
 * thread's current one: on a thread of the caller's, guard and unguard go around them. Nothing here
 * allocates or pins inside copy, launch, record or wait, but for the first HK_KERNEL_MATMUL of a
 * stream. */
#ifndef HK_ENGINE_BACKEND_H
#define HK_ENGINE_BACKEND_H

#include "core/error.h"
#include "core/units.h"
#include "engine/adamw.h"
#include "engine/squares.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct hk_backend hk_backend; /* an open device */
typedef struct hk_stream hk_stream;
typedef struct hk_event hk_event;

/* State of a run of parameters as kernels see it: slabs of `numel` parameters, each with its p, m
 * and v at fixed byte offsets, one slab after the other at `bytes` distance (engine/state.h). */
typedef struct {
  int64_t numel;  /* parameters a slab */
  hk_bytes bytes; /* from one slab to the next; a multiple of 128 */
  hk_bytes m, v;  /* offsets of m and v, multiples of 16; p is at 0 */
} hk_slab_shape;

typedef enum {
  HK_KERNEL_ADAMW,   /* on slabs in device or registered host memory */
  HK_KERNEL_CAST_UP, /* bf16 or fp16 gradients to fp32, in device memory */
  HK_KERNEL_SQUARES, /* hk_squares bins of gradients in device memory */
  HK_KERNEL_PULL, /* n bf16 or fp16 values from `grad`, registered host memory, to `w`: a copy by a
                     few blocks, which does not wait for the copy engine as a copy behind long
                     ones does */
  HK_KERNEL_SIGN, /* the int64_t at `from`, device memory, to `to`, device or registered host
                     memory, in one write; n is 1. For the end of a stream's kernels: a copy would
                     wait for the copy engine, and hold up what is queued behind it */
  HK_KERNEL_GATHER,  /* gradients in: segments of the framework's device memory to the engine's,
                        copied or added, and their squares */
  HK_KERNEL_SCATTER, /* new weights out: segments of the engine's memory to the framework's device
                        memory, copied or rounded */
  HK_KERNEL_MATMUL,  /* w = a b, in device memory: what a model's layers spend their time on, to be
                        measured. CUDA: by cuBLAS, if that is there when it runs (HK_INPUT says so
                        otherwise, and the device stays well); the first one of a stream readies
                        cuBLAS for it, which takes long and some device memory */
} hk_kernel_kind;

/* A run of values for GATHER or SCATTER. No two segments of a launch write to the same memory, and
 * none overlaps what another reads; each array begins at a whole element, and is as fast as can be
 * where it begins at a multiple of 16 bytes.
 *
 * GATHER: both types are the same. to = from, the very bits; or with `add` to = to + from: both in
 * fp32, added and rounded to fp32, then to the type, to nearest even (for these types as if rounded
 * once); NaN is 0x7fc0, 0x7e00 or 0x7fc00000. With `bins` the squares of what is then in `to` are
 * added to that set of squares.h (device memory, hk_squares_bin_words(type) words).
 *
 * SCATTER: both types are the same, the bits are copied; or from_type is fp32, rounded to nearest
 * even, bf16 and fp16 overflow to infinity, NaN is 0x7fc0 or 0x7e00. `bins` and `add` are zeros. */
typedef struct {
  const void *from;
  void *to;
  int64_t n;
  hk_grad_type from_type, to_type;
  uint64_t *bins; /* NULL: no squares */
  bool add;
} hk_segment;

#define HK_SEGMENTS_MOST 64

typedef struct {
  hk_kernel_kind kind;
  hk_grad_type type;
  int64_t n;
  const void *grad; /* first of n gradients; device memory */
  /* ADAMW: parameters first .. first + n - 1 of the slabs at `from`, written to the same places of
   * the slabs at `to` (may be equal); weights to w (device memory, may be NULL). */
  hk_adamw_step step;
  hk_slab_shape shape;
  int64_t first;
  const void *from;
  void *to;
  uint16_t *w;
  bool mapped; /* the slabs, or what SCATTER reads, are in registered host memory: few blocks fill
                  the link */
  float *out;  /* CAST_UP */
  /* SQUARES: HK_SQUARES_BINS bins, then the count of values that are not finite, in device memory;
   * added to. */
  uint64_t *bins;
  /* MATMUL: w (rows x columns) = a (rows x depth) b (depth x columns); all bf16, row after row,
   * none overlapping w; products are added up in fp32. Each from 1 to INT_MAX; type, n and grad say
   * nothing. */
  int64_t rows, columns, depth;
  const uint16_t *a, *b;
  /* GATHER, SCATTER: 1 .. HK_SEGMENTS_MOST segments, read during the launch call only; n is the sum
   * of theirs; type says nothing. The host backend takes any memory of the caller's as the
   * framework's. */
  const hk_segment *segments;
  int n_segments;
} hk_kernel;

typedef struct {
  char name[96];        /* "NVIDIA H200", "host" */
  char driver[64];      /* "" where there is none */
  hk_bytes memory;      /* in all */
  hk_bytes memory_free; /* now */
  char pci[32];         /* "0000:1b:00.0", "" where there is none: for placing near it */
  /* PCIe as it is now (an idle link may have slowed down): 5 and 16; 0 where it is not known. */
  int link_generation, link_width;
  hk_bytes l2_bytes; /* the device's last cache; 0: not known */
} hk_device_info;

typedef struct {
  hk_bytes memory; /* host backend: size of its device memory; 0: 1 GiB */
  int threads;     /* host backend: threads a kernel runs on; 0: 1 */
} hk_backend_options;

typedef struct {
  const char *name; /* "cuda", "host" */
  /* How many devices there are. HK_ENVIRONMENT when that cannot be said ("no CUDA device"). */
  hk_status (*count)(int *n, hk_error *err);
  hk_status (*open)(int device, const hk_backend_options *options, hk_backend **out, hk_error *err);
  void (*close)(hk_backend *b); /* all its streams and events must be gone */
  /* Makes b's device the calling thread's current one, and says in *previous which was: -1 where
   * that was b's already, which costs next to nothing. unguard, on the same thread and whatever
   * failed between them, makes that one current again, or leaves b's where the process has never
   * used the other (in CUDA device 0 is current before a thread has said anything, and to make it
   * so would create a context there, half a GB of its memory). */
  hk_status (*guard)(hk_backend *b, int *previous, hk_error *err);
  void (*unguard)(hk_backend *b, int previous);
  hk_status (*info)(hk_backend *b, hk_device_info *info, hk_error *err);

  /* Device memory, 512-byte aligned. Too little: HK_ENVIRONMENT with wish and what is free. */
  hk_status (*alloc)(hk_backend *b, hk_bytes bytes, void **out, hk_error *err);
  void (*release)(hk_backend *b, void *memory);
  /* Pins host memory for all devices at once: every one, whichever registered it, reaches it at the
   * same address and copies it at full speed. To be undone by the device that did it. */
  hk_status (*host_register)(hk_backend *b, void *memory, hk_bytes bytes, hk_error *err);
  void (*host_unregister)(hk_backend *b, void *memory);
  /* From then on copies on b's streams may have either end in the device memory of `other`, which
   * is open on the same backend. `direct`: they go from device to device, not by way of the host.
   */
  hk_status (*peer)(hk_backend *b, hk_backend *other, bool *direct, hk_error *err);

  hk_status (*stream_open)(hk_backend *b, bool urgent, hk_stream **out, hk_error *err);
  /* For work in order with the caller's own: CUDA wraps its cudaStream_t on b's device, NULL being
   * the legacy default stream, which must outlive *out. copy, launch, zero, record, wait and
   * stream_sync are allowed on it, and wait is how the caller's stream waits for the engine's.
   * Host: `native` is ignored; what is queued on *out runs at once, on the calling thread. */
  hk_status (*stream_adopt)(hk_backend *b, void *native, hk_stream **out, hk_error *err);
  /* Waits for it; but of an adopted one of CUDA's only the wrapper goes, at once. */
  void (*stream_close)(hk_stream *s);
  /* awaited: threads may wait for it, which with CUDA interrupts a CPU each time that it happens,
   * whether one waits or not. */
  hk_status (*event_open)(hk_backend *b, bool awaited, hk_event **out, hk_error *err);
  void (*event_close)(hk_event *e);

  /* Queued on a stream. copy: between any two of device memory, its peers' and host memory
   * (registered or not); source and target do not overlap and stay untouched until it is done. */
  hk_status (*copy)(hk_stream *s, void *to, const void *from, hk_bytes bytes, hk_error *err);
  hk_status (*launch)(hk_stream *s, const hk_kernel *kernel, hk_error *err);
  hk_status (*zero)(hk_stream *s, void *memory, hk_bytes bytes, hk_error *err); /* the device's */
  hk_status (*record)(hk_stream *s, hk_event *e, hk_error *err); /* again: the last one counts */
  hk_status (*wait)(hk_stream *s, hk_event *e, hk_error *err);   /* e has been recorded before */

  /* For the calling thread. */
  hk_status (*stream_sync)(hk_stream *s, hk_error *err);
  /* Sleeps until it has happened. HK_INPUT unless e was opened as awaited. */
  hk_status (*event_sync)(hk_event *e, hk_error *err);
  hk_status (*event_done)(hk_event *e, bool *done, hk_error *err);
  /* Fixes the device's clock to CLOCK_MONOTONIC, to `uncertainty` either way: half of the shortest
   * of 32 round trips, and the steps of the device's timer. Other streams may be busy: the trips
   * are on an urgent one of its own, where they wait for no kernel or copy, unless streams share a
   * hardware queue (CUDA_DEVICE_MAX_CONNECTIONS=1) or the device is another process's for a while;
   * then they take longer, *uncertainty says so, and after 2 ms the trips made are enough. One call
   * at a time, beside any others. */
  hk_status (*clock_align)(hk_backend *b, hk_ns *uncertainty, hk_error *err);
  /* When an event happened, CLOCK_MONOTONIC ns; it was recorded after the last clock_align. */
  hk_status (*event_time)(hk_event *e, hk_ns *time, hk_error *err);
} hk_backend_ops;

/* Every backend's own struct begins with this. */
struct hk_backend {
  const hk_backend_ops *ops;
};
/* So do streams and events, so that a wrapper can find its way. */
struct hk_stream {
  hk_backend *backend;
};
struct hk_event {
  hk_backend *backend;
  bool awaited;
};

extern const hk_backend_ops hk_backend_host, hk_backend_cuda;
/* "cuda" or "host"; HK_INPUT names what there is. */
hk_status hk_backend_find(const char *name, const hk_backend_ops **ops, hk_error *err);
/* For backends: HK_INPUT unless e was opened as awaited, a MATMUL's sizes are in range, or GATHER's
 * or SCATTER's segments are what the above says, wherever their memory is. */
hk_status hk_event_check_awaited(const hk_event *e, hk_error *err);
hk_status hk_matmul_check_sizes(const hk_kernel *kernel, hk_error *err);
hk_status hk_segments_check(const hk_kernel *kernel, hk_error *err);

#ifdef __cplusplus
}
#endif
#endif
