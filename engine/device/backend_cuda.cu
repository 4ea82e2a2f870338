/* SPDX-License-Identifier: Apache-2.0 */
/* The CUDA backend: devices, memory, streams, events and their clock. Order within streams and
 * sticky failures come from CUDA. This file adds error messages that name the call, and waits
 * during which the thread sleeps. */
#include <ctype.h>
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "engine/device/kernels_cuda.h"
#include "engine/device/matmul_cuda.h"
#include "engine/device/pci_link.h"

typedef struct {
  hk_backend common;
  int device;
  int least, greatest; /* priorities of streams */
  hk_cuda_grids grids;
  cudaStream_t clock;      /* used by clock_align only */
  cudaEvent_t base, tried; /* event whose time is known, and one for further round trips */
  hk_ns base_time;         /* CLOCK_MONOTONIC */
  bool aligned;
  pthread_mutex_t lock; /* protects base, base_time and aligned */
} cuda_backend;

typedef struct {
  hk_stream common;
  cudaStream_t handle;
  bool adopted;           /* adopted: the stream belongs to the caller */
  hk_cuda_matmul *matmul; /* NULL before the stream's first */
} cuda_stream;

typedef struct {
  hk_event common;
  cudaEvent_t handle;
} cuda_event;

/* ---- Errors and the current device ---------------------------------------------------------- */

/* HK_OK, or HK_ENVIRONMENT with "CALL(DETAIL): CUDA's words". */
static hk_status check(cudaError_t code, hk_error *err, const char *call, const char *detail) {
  if (code == cudaSuccess) return HK_OK;
  cudaGetLastError(); /* clears an error that is not sticky, so that it does not appear in a later
                         call */
  return hk_fail(err, HK_ENVIRONMENT, "%s(%s): %s (%s)", call, detail, cudaGetErrorString(code),
                 cudaGetErrorName(code));
}

#define CHECK(call, err, ...) HK_TRY(check(call(__VA_ARGS__), err, #call, ""))

/* The same for calls on memory; the detail is its size. */
static hk_status check_bytes(cudaError_t code, hk_error *err, const char *call, hk_bytes bytes) {
  if (code == cudaSuccess) return HK_OK;
  char detail[48];
  snprintf(detail, sizeof detail, "%lld bytes", (long long)bytes);
  return check(code, err, call, detail);
}

/* Makes the device current for the calling thread: lanes are served by threads, and CUDA keeps the
 * current device per thread. */
static hk_status enter(const hk_backend *common, hk_error *err) {
  const int device = ((const cuda_backend *)common)->device;
  int current = -1;
  CHECK(cudaGetDevice, err, &current);
  if (current == device) return HK_OK;
  CHECK(cudaSetDevice, err, device);
  return HK_OK;
}

/* Calls cuDevicePrimaryCtxGetState of the driver that the runtime has loaded; 0: success. */
static int (*context_state)(int device, unsigned *flags, int *active);
static pthread_once_t context_state_once = PTHREAD_ONCE_INIT;

static void find_context_state(void) {
  void *driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL);
  if (driver == NULL) return;
  context_state = (int (*)(int, unsigned *, int *))dlsym(driver, "cuDevicePrimaryCtxGetState");
}

static bool has_context(int device) {
  pthread_once(&context_state_once, find_context_state);
  unsigned flags = 0;
  int active = 0;
  return context_state == NULL || context_state(device, &flags, &active) != 0 || active != 0;
}

/* -1: not known. */
static int current_device(void) {
  int current = -1;
  if (cudaGetDevice(&current) == cudaSuccess) return current;
  cudaGetLastError();
  return -1;
}

static void restore_device(int previous) {
  if (previous < 0 || previous == current_device() || !has_context(previous)) return;
  if (cudaSetDevice(previous) != cudaSuccess) cudaGetLastError();
}

static hk_status guard_device(hk_backend *common, int *previous, hk_error *err) {
  *previous = -1;
  int current = -1;
  CHECK(cudaGetDevice, err, &current);
  const int device = ((const cuda_backend *)common)->device;
  if (current == device) return HK_OK;
  CHECK(cudaSetDevice, err, device);
  *previous = current;
  return HK_OK;
}

static void unguard_device(hk_backend *common, int previous) {
  (void)common;
  restore_device(previous);
}

/* ---- Devices -------------------------------------------------------------------------------- */

static hk_status count_devices(int *n, hk_error *err) {
  const cudaError_t code = cudaGetDeviceCount(n);
  if (code == cudaSuccess && *n > 0) return HK_OK;
  *n = 0;
  int driver =
      0; /* stays 0 if no driver is installed, which CUDA reports as an insufficient driver */
  cudaDriverGetVersion(&driver);
  cudaGetLastError();
  return hk_fail(err, HK_ENVIRONMENT, "no CUDA device: %s%s",
                 cudaGetErrorString(code == cudaSuccess ? cudaErrorNoDevice : code),
                 driver == 0 ? " (no NVIDIA driver is installed)" : "");
}

static void close_backend(hk_backend *common) {
  cuda_backend *b = (cuda_backend *)common;
  const int previous = current_device();
  if (enter(common, NULL) == HK_OK) {
    if (b->base != NULL) cudaEventDestroy(b->base);
    if (b->tried != NULL) cudaEventDestroy(b->tried);
    if (b->clock != NULL) cudaStreamDestroy(b->clock);
  }
  restore_device(previous);
  pthread_mutex_destroy(&b->lock);
  free(b);
}

/* Opens what is kept until the backend is closed. */
static hk_status prepare(cuda_backend *b, hk_error *err) {
  HK_TRY(enter(&b->common, err));
  CHECK(cudaSetDeviceFlags, err, cudaDeviceScheduleBlockingSync | cudaDeviceMapHost);
  CHECK(cudaDeviceGetStreamPriorityRange, err, &b->least, &b->greatest);
  CHECK(cudaStreamCreateWithPriority, err, &b->clock, cudaStreamNonBlocking, b->greatest);
  CHECK(cudaEventCreate, err, &b->base);
  CHECK(cudaEventCreate, err, &b->tried);
  CHECK(hk_cuda_kernels_load, err, b->device, &b->grids);
  return HK_OK;
}

static hk_status open_backend(int device, const hk_backend_options *options, hk_backend **out,
                              hk_error *err) {
  (void)options; /* all options are for the host backend */
  *out = NULL;
  int n = 0;
  HK_TRY(count_devices(&n, err));
  if (device < 0 || device >= n) {
    return hk_fail(err, HK_INPUT, "no CUDA device %d: there are %d, counted from 0", device, n);
  }
  cuda_backend *b = (cuda_backend *)calloc(1, sizeof *b);
  if (b == NULL) return hk_fail_memory(err, sizeof *b, "a CUDA device");
  b->common.ops = &hk_backend_cuda;
  b->device = device;
  pthread_mutex_init(&b->lock, NULL);
  const int previous = current_device();
  const hk_status status = prepare(b, err);
  restore_device(previous);
  if (status != HK_OK) {
    close_backend(&b->common);
    return status == HK_INPUT ? status : hk_fail_prefix(err, "CUDA device %d", device);
  }
  *out = &b->common;
  return HK_OK;
}

/* Version of the kernel module, where it can be read, and CUDA version of the driver. */
static void describe_driver(char *text, size_t size, int version) {
  char module[32] = "";
  FILE *file = fopen("/sys/module/nvidia/version", "r");
  if (file != NULL) {
    if (fscanf(file, "%31s", module) != 1) module[0] = '\0';
    fclose(file);
  }
  snprintf(text, size, "%s%sCUDA %d.%d", module, module[0] ? ", " : "", version / 1000,
           version % 1000 / 10);
}

static hk_status get_info(hk_backend *common, hk_device_info *info, hk_error *err) {
  const int device = ((cuda_backend *)common)->device;
  memset(info, 0, sizeof *info);
  HK_TRY(enter(common, err));
  cudaDeviceProp properties;
  CHECK(cudaGetDeviceProperties, err, &properties, device);
  snprintf(info->name, sizeof info->name, "%.95s", properties.name);
  int version = 0;
  CHECK(cudaDriverGetVersion, err, &version);
  describe_driver(info->driver, sizeof info->driver, version);
  size_t available = 0, total = 0;
  CHECK(cudaMemGetInfo, err, &available, &total);
  info->memory = (hk_bytes)total;
  info->memory_free = (hk_bytes)available;
  CHECK(cudaDeviceGetPCIBusId, err, info->pci, (int)sizeof info->pci, device);
  for (char *c = info->pci; *c != '\0'; c++) *c = (char)tolower((unsigned char)*c);
  hk_pci_link_read("", info->pci, &info->link_generation, &info->link_width);
  info->l2_bytes = properties.l2CacheSize;
  return HK_OK;
}

/* ---- Memory --------------------------------------------------------------------------------- */

enum { ALIGNMENT = 512 };

static hk_status alloc_device(hk_backend *common, hk_bytes bytes, void **out, hk_error *err) {
  *out = NULL;
  HK_TRY(enter(common, err));
  const cudaError_t code = cudaMalloc(out, (size_t)bytes);
  if (code == cudaErrorMemoryAllocation) {
    cudaGetLastError();
    size_t available = 0, total = 0;
    CHECK(cudaMemGetInfo, err, &available, &total);
    char wish[32], have[32];
    return hk_fail(err, HK_ENVIRONMENT,
                   "out of device memory: %s (%lld bytes) wanted, %s (%lld bytes) free",
                   hk_format_bytes(bytes, wish, sizeof wish), (long long)bytes,
                   hk_format_bytes((hk_bytes)available, have, sizeof have), (long long)available);
  }
  HK_TRY(check_bytes(code, err, "cudaMalloc", bytes));
  if ((uintptr_t)*out % ALIGNMENT == 0) return HK_OK;
  const void *odd = *out;
  cudaFree(*out);
  *out = NULL;
  return hk_fail(err, HK_ENVIRONMENT,
                 "cudaMalloc(%lld bytes) gave %p, which is not a multiple of %d", (long long)bytes,
                 odd, (int)ALIGNMENT);
}

static void release_device(hk_backend *common, void *memory) {
  if (memory != NULL && enter(common, NULL) == HK_OK) cudaFree(memory);
}

static hk_status register_host(hk_backend *common, void *memory, hk_bytes bytes, hk_error *err) {
  HK_TRY(enter(common, err));
  const unsigned flags = cudaHostRegisterPortable | cudaHostRegisterMapped;
  HK_TRY(
      check_bytes(cudaHostRegister(memory, (size_t)bytes, flags), err, "cudaHostRegister", bytes));
  void *seen = NULL;
  hk_status status = check_bytes(cudaHostGetDevicePointer(&seen, memory, 0), err,
                                 "cudaHostGetDevicePointer", bytes);
  if (status == HK_OK && seen != memory) {
    status = hk_fail(err, HK_ENVIRONMENT,
                     "the device sees host memory at another address (%p, not %p): hocket needs "
                     "unified addresses",
                     seen, memory);
  }
  if (status != HK_OK) cudaHostUnregister(memory);
  return status;
}

static void unregister_host(hk_backend *common, void *memory) {
  if (memory != NULL && enter(common, NULL) == HK_OK) cudaHostUnregister(memory);
}

/* Without direct access CUDA copies through host memory; that needs no preparation. */
static hk_status make_peer(hk_backend *common, hk_backend *other, bool *direct, hk_error *err) {
  *direct = false;
  if (other->ops != common->ops) {
    return hk_fail(err, HK_INPUT, "a device of the backend '%s' cannot be the peer of one of '%s'",
                   other->ops->name, common->ops->name);
  }
  const int own = ((const cuda_backend *)common)->device;
  const int theirs = ((const cuda_backend *)other)->device;
  HK_TRY(enter(common, err));
  int can = own == theirs;
  if (!can) CHECK(cudaDeviceCanAccessPeer, err, &can, own, theirs);
  *direct = can != 0;
  if (!can || own == theirs) return HK_OK;
  const cudaError_t code = cudaDeviceEnablePeerAccess(theirs, 0);
  *direct = code == cudaSuccess || code == cudaErrorPeerAccessAlreadyEnabled;
  if (*direct || code == cudaErrorTooManyPeers) {
    cudaGetLastError(); /* clears the two errors above */
    return HK_OK;
  }
  return check(code, err, "cudaDeviceEnablePeerAccess", "");
}

/* ---- Streams and events --------------------------------------------------------------------- */

static cudaStream_t stream_of(hk_stream *s) {
  return ((cuda_stream *)s)->handle;
}

static cudaEvent_t event_of(hk_event *e) {
  return ((cuda_event *)e)->handle;
}

static hk_status open_stream(hk_backend *common, bool urgent, hk_stream **out, hk_error *err) {
  *out = NULL;
  const cuda_backend *b = (const cuda_backend *)common;
  HK_TRY(enter(common, err));
  cuda_stream *s = (cuda_stream *)calloc(1, sizeof *s);
  if (s == NULL) return hk_fail_memory(err, sizeof *s, "a stream");
  s->common.backend = common;
  const hk_status status = check(cudaStreamCreateWithPriority(&s->handle, cudaStreamNonBlocking,
                                                              urgent ? b->greatest : b->least),
                                 err, "cudaStreamCreateWithPriority", urgent ? "urgent" : "");
  if (status != HK_OK) {
    free(s);
    return status;
  }
  *out = &s->common;
  return HK_OK;
}

static hk_status adopt_stream(hk_backend *common, void *native, hk_stream **out, hk_error *err) {
  *out = NULL;
  cuda_stream *s = (cuda_stream *)calloc(1, sizeof *s);
  if (s == NULL) return hk_fail_memory(err, sizeof *s, "a stream");
  s->common.backend = common;
  s->handle = native != NULL ? (cudaStream_t)native : cudaStreamLegacy;
  s->adopted = true;
  *out = &s->common;
  return HK_OK;
}

static void close_stream(hk_stream *common) {
  cuda_stream *s = (cuda_stream *)common;
  if (s == NULL) return;
  if ((!s->adopted || s->matmul != NULL) && enter(common->backend, NULL) == HK_OK) {
    if (!s->adopted) cudaStreamSynchronize(s->handle);
    hk_cuda_matmul_close(s->matmul);
    if (!s->adopted) cudaStreamDestroy(s->handle);
  }
  free(s);
}

static hk_status open_event(hk_backend *common, bool awaited, hk_event **out, hk_error *err) {
  *out = NULL;
  HK_TRY(enter(common, err));
  cuda_event *e = (cuda_event *)calloc(1, sizeof *e);
  if (e == NULL) return hk_fail_memory(err, sizeof *e, "an event");
  e->common.backend = common;
  e->common.awaited = awaited;
  /* Blocking: threads that wait sleep, whatever the device's flags are. Events record times by
   * default. */
  const unsigned flags = awaited ? cudaEventBlockingSync : cudaEventDefault;
  const hk_status status = check(cudaEventCreateWithFlags(&e->handle, flags), err,
                                 "cudaEventCreateWithFlags", awaited ? "awaited" : "");
  if (status != HK_OK) {
    free(e);
    return status;
  }
  *out = &e->common;
  return HK_OK;
}

static void close_event(hk_event *e) {
  if (e == NULL) return;
  if (enter(e->backend, NULL) == HK_OK) cudaEventDestroy(event_of(e));
  free(e);
}

/* ---- Queued on a stream --------------------------------------------------------------------- */

static hk_status queue_copy(hk_stream *s, void *to, const void *from, hk_bytes bytes,
                            hk_error *err) {
  if (bytes == 0) return HK_OK;
  HK_TRY(enter(s->backend, err));
  return check_bytes(cudaMemcpyAsync(to, from, (size_t)bytes, cudaMemcpyDefault, stream_of(s)), err,
                     "cudaMemcpyAsync", bytes);
}

static hk_status queue_matmul(cuda_stream *s, const hk_kernel *kernel, hk_error *err) {
  if (s->matmul == NULL) HK_TRY(hk_cuda_matmul_open(s->handle, &s->matmul, err));
  return hk_cuda_matmul_queue(s->matmul, kernel, err);
}

static hk_status queue_kernel(hk_stream *s, const hk_kernel *kernel, hk_error *err) {
  static const char *const names[HK_KERNEL_KINDS] = {"AdamW", "cast",   "squares", "pull",
                                                     "sign",  "gather", "scatter"};
  const cuda_backend *b = (const cuda_backend *)s->backend;
  HK_TRY(enter(s->backend, err));
  if (kernel->kind == HK_KERNEL_MATMUL) return queue_matmul((cuda_stream *)s, kernel, err);
  cudaError_t code = cudaSuccess;
  HK_TRY(hk_cuda_kernels_launch(stream_of(s), &b->grids, kernel, &code, err));
  if (code == cudaSuccess) return HK_OK;
  char detail[64];
  snprintf(detail, sizeof detail, "%s, %lld elements", names[kernel->kind], (long long)kernel->n);
  return check(code, err, "cudaLaunchKernel", detail);
}

static hk_status queue_zero(hk_stream *s, void *memory, hk_bytes bytes, hk_error *err) {
  if (bytes == 0) return HK_OK;
  HK_TRY(enter(s->backend, err));
  return check_bytes(cudaMemsetAsync(memory, 0, (size_t)bytes, stream_of(s)), err,
                     "cudaMemsetAsync", bytes);
}

static hk_status queue_record(hk_stream *s, hk_event *e, hk_error *err) {
  HK_TRY(enter(s->backend, err));
  CHECK(cudaEventRecord, err, event_of(e), stream_of(s));
  return HK_OK;
}

static hk_status queue_wait(hk_stream *s, hk_event *e, hk_error *err) {
  HK_TRY(enter(s->backend, err));
  CHECK(cudaStreamWaitEvent, err, stream_of(s), event_of(e), 0);
  return HK_OK;
}

/* ---- For the calling thread ----------------------------------------------------------------- */

static hk_status sync_stream(hk_stream *s, hk_error *err) {
  HK_TRY(enter(s->backend, err));
  CHECK(cudaStreamSynchronize, err, stream_of(s));
  return HK_OK;
}

static hk_status sync_event(hk_event *e, hk_error *err) {
  HK_TRY(hk_event_check_awaited(e, err));
  HK_TRY(enter(e->backend, err));
  CHECK(cudaEventSynchronize, err, event_of(e));
  return HK_OK;
}

static hk_status is_event_done(hk_event *e, bool *done, hk_error *err) {
  *done = false;
  HK_TRY(enter(e->backend, err));
  const cudaError_t code = cudaEventQuery(event_of(e));
  if (code == cudaErrorNotReady) {
    cudaGetLastError();
    return HK_OK;
  }
  HK_TRY(check(code, err, "cudaEventQuery", ""));
  *done = true;
  return HK_OK;
}

/* ---- The clock ------------------------------------------------------------------------------ */

enum {
  CLOCK_TRIES = 32,
  TIMER_RESOLUTION = 500, /* ns, of cudaEventElapsedTime */
  CLOCK_PATIENCE =
      100000,           /* ns after which a round trip, which is too long, is polled less often */
  CLOCK_TIME = 2000000, /* ns for all round trips */
};

/* Lets b->tried happen, and returns two times between which it did. Polls, because a sleeping
 * thread would notice it late. */
static hk_status try_clock(cuda_backend *b, hk_ns *before, hk_ns *after, hk_error *err) {
  const struct timespec pause = {0, CLOCK_PATIENCE / 4};
  *before = hk_now();
  CHECK(cudaEventRecord, err, b->tried, b->clock);
  cudaError_t code = cudaSuccess;
  do {
    if (*after - *before > CLOCK_PATIENCE) nanosleep(&pause, NULL);
    code = cudaEventQuery(b->tried);
    *after = hk_now();
  } while (code == cudaErrorNotReady);
  cudaGetLastError(); /* clears cudaErrorNotReady */
  return check(code, err, "cudaEventQuery", "aligning the clock");
}

static hk_status align_clock(hk_backend *common, hk_ns *uncertainty, hk_error *err) {
  cuda_backend *b = (cuda_backend *)common;
  HK_TRY(enter(common, err));
  const hk_ns begin = hk_now();
  hk_ns narrowest = INT64_MAX;
  for (int i = 0; i < CLOCK_TRIES && (i == 0 || hk_now() - begin < CLOCK_TIME); i++) {
    hk_ns before = 0, after = 0;
    HK_TRY(try_clock(b, &before, &after, err));
    if (after - before >= narrowest) continue;
    narrowest = after - before;
    pthread_mutex_lock(&b->lock);
    b->base_time = before + narrowest / 2;
    const cudaEvent_t kept = b->tried;
    b->tried = b->base;
    b->base = kept;
    b->aligned = true;
    pthread_mutex_unlock(&b->lock);
  }
  *uncertainty = (narrowest + 1) / 2 + TIMER_RESOLUTION;
  return HK_OK;
}

/* CUDA returns the time since the base as ms in a float. Its resolution is 0.06 us one second after
 * the base, but 4 us after a minute. Therefore the clock is aligned for every timed run. */
static hk_status get_event_time(hk_event *e, hk_ns *time, hk_error *err) {
  cuda_backend *b = (cuda_backend *)e->backend;
  HK_TRY(enter(e->backend, err));
  float ms = 0;
  pthread_mutex_lock(&b->lock);
  const bool aligned = b->aligned;
  const cudaError_t code = aligned ? cudaEventElapsedTime(&ms, b->base, event_of(e)) : cudaSuccess;
  *time = b->base_time + (hk_ns)((double)ms * 1e6);
  pthread_mutex_unlock(&b->lock);
  if (!aligned)
    return hk_fail(err, HK_INPUT,
                   "an event has no time before the device's clock is aligned with the host's");
  return check(code, err, "cudaEventElapsedTime", "");
}

const hk_backend_ops hk_backend_cuda = {
    .name = "cuda",
    .count = count_devices,
    .open = open_backend,
    .close = close_backend,
    .guard = guard_device,
    .unguard = unguard_device,
    .info = get_info,
    .alloc = alloc_device,
    .release = release_device,
    .host_register = register_host,
    .host_unregister = unregister_host,
    .peer = make_peer,
    .stream_open = open_stream,
    .stream_adopt = adopt_stream,
    .stream_close = close_stream,
    .event_open = open_event,
    .event_close = close_event,
    .copy = queue_copy,
    .launch = queue_kernel,
    .zero = queue_zero,
    .record = queue_record,
    .wait = queue_wait,
    .stream_sync = sync_stream,
    .event_sync = sync_event,
    .event_done = is_event_done,
    .clock_align = align_clock,
    .event_time = get_event_time,
};
