/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the host backend's files: a device, its memory, its kernels. */
#ifndef HK_ENGINE_DEVICE_HOST_DEVICE_H
#define HK_ENGINE_DEVICE_HOST_DEVICE_H

#include <pthread.h>
#include <stdatomic.h>

#include "engine/device/backend_host.h"
#include "engine/device/team.h"

/* Device memory: one mapping, divided into blocks that are in use or free. */
typedef struct hk_host_block hk_host_block;
typedef struct {
  char *base;
  hk_bytes bytes, free;
  hk_host_block *blocks; /* in the order of their addresses; they cover the mapping */
} hk_host_heap;

hk_status hk_host_heap_open(hk_bytes bytes, hk_host_heap *heap, hk_error *err);
void hk_host_heap_close(hk_host_heap *heap);
hk_status hk_host_heap_take(hk_host_heap *heap, hk_bytes bytes, void **out, hk_error *err);
bool hk_host_heap_give(hk_host_heap *heap, void *memory); /* false: no used block begins there */
/* Whether the address lies in the heap, used or not. */
bool hk_host_heap_owns(const hk_host_heap *heap, const void *memory);
/* Whether the range lies in one used block. */
bool hk_host_heap_covers(const hk_host_heap *heap, const void *memory, hk_bytes bytes);

/* Number of devices; more than any node that tests imitate. An unused device costs nothing. */
#define HK_HOST_DEVICES 64

typedef struct hk_host_device hk_host_device;
struct hk_host_device {
  hk_backend base;
  int number;
  hk_host_device *next; /* list of open devices */
  uint64_t peers;       /* bit mask of device numbers: copies may use their memory */
  pthread_mutex_t lock; /* protects heap and failure */
  hk_host_heap heap;
  atomic_bool failed;
  hk_error failure;
  hk_team *team;              /* NULL: kernels run on the thread of their stream */
  pthread_mutex_t turns;      /* held while a kernel uses the team */
  _Atomic int64_t callers_ns; /* hk_backend_host_callers_kernels */
  _Atomic int64_t
      until_fault[HK_HOST_FAULTS]; /* number of calls that still succeed; negative: all */
};

/* -- host_checks.c ----------------------------------------------------------------------------- */

/* Returns HK_OK, or the device's failure once it has failed. */
hk_status hk_host_check(hk_host_device *device, hk_error *err);
/* Makes the device fail for good; the first reason is kept. */
void hk_host_break(hk_host_device *device, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/* Counts a call of this kind; true: it must fail. */
bool hk_host_fault_due(hk_host_device *device, hk_host_fault what);
/* Registers host memory (hk_backend_ops.host_register); HK_INPUT: some of it is registered already.
 */
hk_status hk_host_add_registration(const hk_host_device *owner, void *memory, hk_bytes bytes,
                                   hk_error *err);
/* Removes the registration at `memory`, or for NULL all of `owner`; true: there was one. */
bool hk_host_drop_registrations(const hk_host_device *owner, const void *memory);
/* The list of open devices. */
void hk_host_list(hk_host_device *device);
void hk_host_unlist(const hk_host_device *device);
/* Copies on the device's streams may use the memory of `other`. */
void hk_host_add_peer(hk_host_device *device, const hk_host_device *other);
/* Checks that a kernel may use a range: it lies in one block of device memory or, if `mapped`, in
 * registered host memory. */
hk_status hk_host_check_range(hk_host_device *device, const char *what, const void *memory,
                              hk_bytes bytes, bool mapped, hk_error *err);
/* Checks that a copy may use a range: it lies in host memory, or in one block of the device's or a
 * peer's memory. */
hk_status hk_host_check_end(hk_host_device *device, const char *what, const void *memory,
                            hk_bytes bytes, hk_error *err);

/* -- Kernels and streams ----------------------------------------------------------------------- */

const char *hk_host_kernel_name(hk_kernel_kind kind);
hk_status hk_host_kernel_check(hk_host_device *device, const hk_kernel *kernel, hk_error *err);
void hk_host_kernel_run(hk_host_device *device, const hk_kernel *kernel);
/* MATMUL: its check, its number of tiles, and one tile, which is a chunk for the team. */
hk_status hk_host_matmul_check(hk_host_device *device, const hk_kernel *kernel, hk_error *err);
int64_t hk_host_matmul_tiles(const hk_kernel *kernel);
void hk_host_matmul_tile(const hk_kernel *kernel, const hk_cpu_kernels *cpu, int64_t tile);
/* GATHER and SCATTER: their check, and the work on n values from `first` on, counted through all
 * segments; `lock` protects the bins. */
hk_status hk_host_segments_check(hk_host_device *device, const hk_kernel *kernel, hk_error *err);
void hk_host_segments_run(const hk_kernel *kernel, const hk_cpu_kernels *cpu, int64_t first,
                          int64_t n, pthread_mutex_t *lock);

/* Functions of hk_backend_host that host_stream.c defines. */
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
