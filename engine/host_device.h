/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of the host backend share: a device, its memory, its kernels. */
#ifndef HK_ENGINE_HOST_DEVICE_H
#define HK_ENGINE_HOST_DEVICE_H

#include <pthread.h>
#include <stdatomic.h>

#include "engine/backend_host.h"
#include "engine/team.h"

/* Device memory: one mapping, divided into blocks that are in use or free. */
typedef struct hk_host_block hk_host_block;
typedef struct {
  char *base;
  hk_bytes bytes, free;
  hk_host_block *blocks; /* in the order of their addresses, covering all */
} hk_host_heap;

hk_status hk_host_heap_open(hk_bytes bytes, hk_host_heap *heap, hk_error *err);
void hk_host_heap_close(hk_host_heap *heap);
hk_status hk_host_heap_take(hk_host_heap *heap, hk_bytes bytes, void **out, hk_error *err);
bool hk_host_heap_give(hk_host_heap *heap, void *memory); /* false: no block in use begins there */
/* The address is in the heap, in use or not. */
bool hk_host_heap_owns(const hk_host_heap *heap, const void *memory);
/* All of the range lies in one block that is in use. */
bool hk_host_heap_covers(const hk_host_heap *heap, const void *memory, hk_bytes bytes);

typedef struct hk_host_device hk_host_device;
struct hk_host_device {
  hk_backend base;
  int number;
  hk_host_device *next; /* of the open ones */
  uint64_t peers;       /* bits by number: whose memory copies may touch */
  pthread_mutex_t lock; /* of heap and failure */
  hk_host_heap heap;
  atomic_bool failed;
  hk_error failure;
  hk_team *team;                               /* NULL: kernels run on their stream's thread */
  pthread_mutex_t turns;                       /* of kernels on the team */
  _Atomic int64_t until_fault[HK_HOST_FAULTS]; /* calls that go well before; negative: for ever */
};

/* HK_OK until the device has failed, from then on its failure. */
hk_status hk_host_check(hk_host_device *device, hk_error *err);
/* The device has failed for good; the first reason counts. */
void hk_host_break(hk_host_device *device, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/* Counts one of its kind; true when this one must fail. */
bool hk_host_fault_due(hk_host_device *device, hk_host_fault what);
/* That a kernel may touch a range: in device memory or, where `mapped`, in registered memory. */
hk_status hk_host_check_range(hk_host_device *device, const char *what, const void *memory,
                              hk_bytes bytes, bool mapped, hk_error *err);
/* That a copy may: host memory is not known to the device, but what lies in device memory, its own
 * or a peer's, must be one block's. */
hk_status hk_host_check_end(hk_host_device *device, const char *what, const void *memory,
                            hk_bytes bytes, hk_error *err);

const char *hk_host_kernel_name(hk_kernel_kind kind);
hk_status hk_host_kernel_check(hk_host_device *device, const hk_kernel *kernel, hk_error *err);
void hk_host_kernel_run(hk_host_device *device, const hk_kernel *kernel);
/* The part of these that MATMUL is: in tiles, as chunks of a team. */
hk_status hk_host_matmul_check(hk_host_device *device, const hk_kernel *kernel, hk_error *err);
int64_t hk_host_matmul_tiles(const hk_kernel *kernel);
void hk_host_matmul_tile(const hk_kernel *kernel, const hk_cpu_kernels *cpu, int64_t tile);
/* And GATHER and SCATTER: `n` values from `first` on, counted through all segments; `lock` is of
 * their bins. */
hk_status hk_host_segments_check(hk_host_device *device, const hk_kernel *kernel, hk_error *err);
void hk_host_segments_run(const hk_kernel *kernel, const hk_cpu_kernels *cpu, int64_t first,
                          int64_t n, pthread_mutex_t *lock);

/* The part of hk_backend_host that host_stream.c has. */
hk_status hk_host_stream_open(hk_backend *b, bool urgent, hk_stream **out, hk_error *err);
hk_status hk_host_stream_adopt(hk_backend *b, void *native, hk_stream **out, hk_error *err);
void hk_host_stream_close(hk_stream *s);
hk_status hk_host_event_open(hk_backend *b, bool awaited, hk_event **out, hk_error *err);
void hk_host_event_close(hk_event *e);
hk_status hk_host_copy(hk_stream *s, void *to, const void *from, hk_bytes bytes, hk_error *err);
hk_status hk_host_launch(hk_stream *s, const hk_kernel *kernel, hk_error *err);
hk_status hk_host_zero(hk_stream *s, void *memory, hk_bytes bytes, hk_error *err);
hk_status hk_host_record(hk_stream *s, hk_event *e, hk_error *err);
hk_status hk_host_wait(hk_stream *s, hk_event *e, hk_error *err);
hk_status hk_host_stream_sync(hk_stream *s, hk_error *err);
hk_status hk_host_event_sync(hk_event *e, hk_error *err);
hk_status hk_host_event_done(hk_event *e, bool *done, hk_error *err);
hk_status hk_host_event_time(hk_event *e, hk_ns *time, hk_error *err);

#endif
