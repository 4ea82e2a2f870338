/* SPDX-License-Identifier: Apache-2.0 */
/* The interface between the engine (and the calibrator's probes) and a device: memory, streams,
 * events, copies, kernels. There are two backends: `cuda`, and `host`, which has a separate block
 * of host memory as device memory, a thread for each stream, and kernels that run on the CPU.
 *
 * A stream runs its operations in order; streams run concurrently. Calls only queue operations. A
 * failure of a running operation is sticky, as in CUDA: from then on nothing queued on that device
 * runs, and every call on it returns the failure.
 *
 * Threads: several threads may call at the same time on different streams. With CUDA all calls
 * except open, close and count make their device the calling thread's current one; on a thread of
 * the caller of the library, put guard and unguard around them.
 *
 * copy, launch, record and wait allocate and pin nothing, except for the first HK_KERNEL_MATMUL of
 * a stream and, on the host backend, a copy of the segments of GATHER and SCATTER. */
#ifndef HK_ENGINE_DEVICE_BACKEND_H
#define HK_ENGINE_DEVICE_BACKEND_H

#include "core/base/error.h"
#include "core/base/units.h"
#include "engine/adamw/adamw.h"
#include "engine/adamw/formats.h"
#include "engine/adamw/squares.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct hk_backend hk_backend; /* an open device */
typedef struct hk_stream hk_stream;
typedef struct hk_event hk_event;

/* Layout of AdamW state in memory: slabs of `numel` parameters each (engine/state/state.h). A slab
 * holds p of its parameters, with a split format the lower halves, then m, then v, with codes the
 * windows of their blocks, at fixed byte offsets; slabs follow each other at a distance of `bytes`.
 */
typedef struct {
  int64_t numel;  /* parameters per slab; a multiple of hk_format_unit */
  hk_bytes bytes; /* from one slab to the next; a multiple of 128 */
  hk_bytes m, v;  /* offsets of m and v, multiples of 16; p is at 0 */
  hk_format format;
  hk_bytes low;     /* split formats: offset of the lower halves, a multiple of 16 */
  hk_bytes windows; /* formats with codes: offset of the windows */
} hk_slab_shape;

/* Addresses of parameter `at` of a slab. */
static inline hk_state_at hk_slab_at(const hk_slab_shape *shape, const void *slab, int64_t at) {
  char *p = (char *)(uintptr_t)slab;
  const hk_state_at first = {p, hk_format_is_split(shape->format) ? p + shape->low : NULL,
                             p + shape->m, p + shape->v,
                             hk_format_is_coded(shape->format) ? p + shape->windows : NULL};
  return hk_state_at_element(shape->format, first, at);
}

typedef enum {
  HK_KERNEL_ADAMW,   /* on slabs in device or registered host memory */
  HK_KERNEL_CAST_UP, /* bf16 or fp16 gradients to fp32, in device memory */
  HK_KERNEL_SQUARES, /* adds squares of gradients in device memory to bins (squares.h) */
  HK_KERNEL_PULL, /* copies n bf16 or fp16 values from `grad` (registered host memory) to `w`, by a
                     few thread blocks: unlike a copy it does not wait behind other copies for the
                     copy engine */
  HK_KERNEL_SIGN, /* writes the int64_t at `from` (device memory) to `to` (device or registered host
                     memory) in one write; n is 1. It marks the end of a stream's kernels; a copy
                     would wait for the copy engine and delay what is queued behind it */
  HK_KERNEL_GATHER,  /* copies or adds segments of gradients from the framework's device memory to
                        the engine's, and sums their squares */
  HK_KERNEL_SCATTER, /* copies or rounds segments of new weights from the engine's memory to the
                        framework's device memory */
  HK_KERNEL_MATMUL, /* w = a b in device memory, for probes: most time of a model's layers goes into
                       it. CUDA: by cuBLAS, which is loaded by the first one of a stream (slow, and
                       takes device memory); HK_INPUT where cuBLAS is missing */
} hk_kernel_kind;

/* A run of n values for GATHER or SCATTER. Segments of one launch must not write to the same
 * memory, nor to memory that another one reads. Arrays must be aligned to their elements; alignment
 * to 16 bytes is fastest.
 *
 * GATHER: both types are the same. Without `add`, to = from, bit by bit; they may be the same
 * address, so that only squares are summed. With `add`, to = to + from: both are widened to fp32,
 * added, rounded to fp32 and then to the type, to nearest even (for these types that equals
 * rounding once); a NaN becomes 0x7fc0, 0x7e00 or 0x7fc00000. With `bins`, the squares of the
 * values that are then in `to` are added to this bin set (squares.h, device memory,
 * hk_squares_bin_words(type) words).
 *
 * SCATTER: if both types are the same, bits are copied. Else from_type is fp32, and values are
 * rounded to nearest even; overflow gives infinity, NaN gives 0x7fc0 or 0x7e00. `bins` is NULL and
 * `add` false. */
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
  /* ADAMW: updates parameters first .. first + n - 1 of the slabs at `from` and writes them to the
   * same places of the slabs at `to` (may be equal to `from`), new bf16 weights to w (device
   * memory; NULL: none). `index`: of the first of them in its tensor (formats with random bits).
   * With codes `first` begins a block, and n ends one, or the tensor. */
  hk_adamw_step step;
  hk_slab_shape shape;
  int64_t first, index;
  const void *from;
  void *to;
  uint16_t *w;
  bool mapped; /* the slabs, or what SCATTER reads, lie in registered host memory; few thread blocks
                  then suffice to saturate the link */
  float *out;  /* CAST_UP */
  /* SQUARES: device memory, HK_SQUARES_BINS bins and a count of values that are not finite; the
   * kernel adds to them. */
  uint64_t *bins;
  /* MATMUL: w (rows x columns) = a (rows x depth) b (depth x columns), all bf16 and row-major, sums
   * in fp32; a and b must not overlap w. Sizes from 1 to INT_MAX. type, n and grad are ignored. */
  int64_t rows, columns, depth;
  const uint16_t *a, *b;
  /* GATHER, SCATTER: array of 1 to HK_SEGMENTS_MOST segments, read during the launch call only; n
   * is the sum of their n; type is ignored. The host backend accepts any host memory as the
   * framework's. */
  const hk_segment *segments;
  int n_segments;
} hk_kernel;

typedef struct {
  char name[96];        /* "NVIDIA H200", "host" */
  char driver[64];      /* "" where there is none */
  hk_bytes memory;      /* total */
  hk_bytes memory_free; /* at the time of the call */
  char pci[32]; /* PCI address, "0000:1b:00.0"; "": none. Used to place threads and memory */
  /* PCIe generation and lanes at the time of the call, such as 5 and 16 (an idle link may run at a
   * lower generation); 0: not known. */
  int link_generation, link_width;
  hk_bytes l2_bytes; /* size of the last-level cache; 0: not known */
} hk_device_info;

typedef struct {
  hk_bytes memory; /* host backend: bytes of device memory; 0: 1 GiB */
  int threads;     /* host backend: number of threads that a kernel runs on; 0: 1 */
} hk_backend_options;

typedef struct {
  const char *name; /* "cuda", "host" */
  /* Number of devices. HK_ENVIRONMENT if it cannot be determined ("no CUDA device"). */
  hk_status (*count)(int *n, hk_error *err);
  hk_status (*open)(int device, const hk_backend_options *options, hk_backend **out, hk_error *err);
  void (*close)(hk_backend *b); /* close its streams and events before */
  /* Makes b's device the calling thread's current one. *previous: the device that was current, or
   * -1 if that was b's already. unguard, on the same thread and also after failures, makes
   * *previous current again, unless the process has never used that device: in CUDA, device 0 is
   * current by default, and setting it would create a context there, which takes half a GB of its
   * memory. */
  hk_status (*guard)(hk_backend *b, int *previous, hk_error *err);
  void (*unguard)(hk_backend *b, int previous);
  hk_status (*info)(hk_backend *b, hk_device_info *info, hk_error *err);

  /* Allocates device memory, aligned to 512 bytes. HK_ENVIRONMENT: too little is free; the message
   * gives both sizes. */
  hk_status (*alloc)(hk_backend *b, hk_bytes bytes, void **out, hk_error *err);
  void (*release)(hk_backend *b, void *memory);
  /* Pins host memory for all devices: each of them accesses it at the same address and copies it at
   * full speed. Only the device that has registered it may unregister it. */
  hk_status (*host_register)(hk_backend *b, void *memory, hk_bytes bytes, hk_error *err);
  void (*host_unregister)(hk_backend *b, void *memory);
  /* Allows copies on b's streams from and to the device memory of `other`, a device of the same
   * backend. *direct: such copies do not pass through host memory. */
  hk_status (*peer)(hk_backend *b, hk_backend *other, bool *direct, hk_error *err);

  hk_status (*stream_open)(hk_backend *b, bool urgent, hk_stream **out, hk_error *err);
  /* Makes a stream for work that is ordered with the caller's own. CUDA: wraps the caller's
   * cudaStream_t on b's device (NULL: the legacy default stream), which must outlive *out. copy,
   * launch, zero, record, wait and stream_sync are allowed on it; by wait the caller's stream waits
   * for the engine.
   * Host: `native` is ignored; what is queued on *out runs at once, on the calling thread. */
  hk_status (*stream_adopt)(hk_backend *b, void *native, hk_stream **out, hk_error *err);
  /* Waits until the stream's operations have ended, and frees it. Of an adopted CUDA stream it
   * frees only the wrapper, without waiting. */
  void (*stream_close)(hk_stream *s);
  /* awaited: threads may wait for the event (event_sync). In CUDA each occurrence of such an event
   * interrupts a CPU, whether a thread waits or not. */
  hk_status (*event_open)(hk_backend *b, bool awaited, hk_event **out, hk_error *err);
  void (*event_close)(hk_event *e);

  /* The following are queued on a stream. copy: source and target each lie in b's device memory, a
   * peer's, or host memory (registered or not); they must not overlap, and the caller must not
   * touch them until the copy has ended. */
  hk_status (*copy)(hk_stream *s, void *to, const void *from, hk_bytes bytes, hk_error *err);
  hk_status (*launch)(hk_stream *s, const hk_kernel *kernel, hk_error *err);
  hk_status (*zero)(hk_stream *s, void *memory, hk_bytes bytes, hk_error *err); /* device memory */
  /* An event may be recorded again; the last record counts. */
  hk_status (*record)(hk_stream *s, hk_event *e, hk_error *err);
  /* Makes the stream wait for the last record of e; HK_INPUT if there is none. */
  hk_status (*wait)(hk_stream *s, hk_event *e, hk_error *err);

  /* The following block the calling thread, or ask without blocking. */
  hk_status (*stream_sync)(hk_stream *s, hk_error *err);
  /* Sleeps until e has happened; returns at once if it was never recorded. HK_INPUT unless e was
   * opened as awaited. */
  hk_status (*event_sync)(hk_event *e, hk_error *err);
  hk_status (*event_done)(hk_event *e, bool *done, hk_error *err);
  /* Measures the offset between the device's clock and CLOCK_MONOTONIC. *uncertainty: error of the
   * offset in either direction, half of the shortest of at most 32 round trips plus the resolution
   * of the device's timer. Other streams may be busy: the round trips use a separate urgent stream.
   * They take longer, and *uncertainty grows, if streams share a hardware queue
   * (CUDA_DEVICE_MAX_CONNECTIONS=1) or another process uses the device; after 2 ms no further
   * round trip begins. Calls of clock_align must not overlap each other. */
  hk_status (*clock_align)(hk_backend *b, hk_ns *uncertainty, hk_error *err);
  /* Time at which an event happened, CLOCK_MONOTONIC ns. The event must have been recorded after
   * the last clock_align. */
  hk_status (*event_time)(hk_event *e, hk_ns *time, hk_error *err);
} hk_backend_ops;

/* First member of each backend's own device struct; */
struct hk_backend {
  const hk_backend_ops *ops;
};
/* likewise of its stream and event structs. */
struct hk_stream {
  hk_backend *backend;
};
struct hk_event {
  hk_backend *backend;
  bool awaited;
};

extern const hk_backend_ops hk_backend_host, hk_backend_cuda;
/* Finds a backend by name, "cuda" or "host"; HK_INPUT for other names. */
hk_status hk_backend_find(const char *name, const hk_backend_ops **ops, hk_error *err);
/* Checks shared by the backends (checks.c); HK_INPUT if e was not opened as awaited, if a MATMUL's
 * sizes are out of range, or if segments of GATHER or SCATTER break the rules above (addresses are
 * not checked).
 */
hk_status hk_event_check_awaited(const hk_event *e, hk_error *err);
hk_status hk_matmul_check_sizes(const hk_kernel *kernel, hk_error *err);
hk_status hk_segments_check(const hk_kernel *kernel, hk_error *err);
/* Whether an array's address is a multiple of its elements' size. */
bool hk_grad_is_aligned(const void *array, hk_grad_type type);

#ifdef __cplusplus
}
#endif
#endif
