/* SPDX-License-Identifier: Apache-2.0 */
/* The host backend's devices: opening, memory, registration. Streams and events are in
 * host_stream.c, kernels in host_kernel.c. What would be a fault on a GPU (an address outside
 * device memory, a second release) fails here too, with a message that gives the address. */
#include "engine/device/backend_host.h"

#include <stdlib.h>
#include <string.h>

#include "engine/device/host_device.h"

/* -- Failures ---------------------------------------------------------------------------------- */

void hk_backend_host_fail(hk_backend *b, hk_host_fault what, int64_t after) {
  atomic_store(&((hk_host_device *)b)->until_fault[what], after);
}

/* See HOCKET_HOST_FAULT in backend_host.h. */
static hk_status ask_for_fault(hk_host_device *device, hk_error *err) {
  static const char *const names[HK_HOST_FAULTS] = {
      "alloc", "register", "copy", "copying", "launch", "kernel", "open", "record", "wait"};
  const char *wish = getenv("HOCKET_HOST_FAULT");
  if (wish == NULL || wish[0] == '\0') return HK_OK;
  for (int i = 0; i < HK_HOST_FAULTS; i++) {
    const size_t n = strlen(names[i]);
    if (strncmp(wish, names[i], n) != 0 || wish[n] != ':') continue;
    char *end = NULL;
    const long long after = strtoll(wish + n + 1, &end, 10);
    if (end == wish + n + 1 || *end != '\0' || after < 0) break;
    atomic_store(&device->until_fault[i], after);
    return HK_OK;
  }
  return hk_fail(err, HK_INPUT, "HOCKET_HOST_FAULT='%s': it is KIND:AFTER, such as copying:20",
                 wish);
}

/* -- Registered host memory -------------------------------------------------------------------- */

static hk_status host_register(hk_backend *b, void *memory, hk_bytes bytes, hk_error *err) {
  hk_host_device *device = (hk_host_device *)b;
  HK_TRY(hk_host_check(device, err));
  if (memory == NULL || bytes <= 0) {
    return hk_fail(err, HK_INPUT, "%lld bytes of host memory at %p cannot be registered",
                   (long long)bytes, memory);
  }
  if (hk_host_fault_due(device, HK_HOST_REGISTER)) {
    return hk_fail(err, HK_ENVIRONMENT, "host memory is not registered: an injected fault");
  }
  return hk_host_add_registration(device, memory, bytes, err);
}

static void host_unregister(hk_backend *b, void *memory) {
  hk_host_device *device = (hk_host_device *)b;
  if (memory != NULL && !hk_host_drop_registrations(device, memory)) {
    hk_host_break(device, "host memory at %p was unregistered but is not registered", memory);
  }
}

/* -- Device memory ----------------------------------------------------------------------------- */

static hk_status alloc(hk_backend *b, hk_bytes bytes, void **out, hk_error *err) {
  hk_host_device *device = (hk_host_device *)b;
  *out = NULL;
  HK_TRY(hk_host_check(device, err));
  if (bytes < 0) {
    return hk_fail(err, HK_INPUT, "%lld bytes of device memory were asked for", (long long)bytes);
  }
  if (bytes == 0) return HK_OK;
  if (hk_host_fault_due(device, HK_HOST_ALLOC)) {
    return hk_fail(err, HK_ENVIRONMENT,
                   "out of device memory: %lld bytes asked for; an injected fault",
                   (long long)bytes);
  }
  pthread_mutex_lock(&device->lock);
  const hk_status status = hk_host_heap_take(&device->heap, bytes, out, err);
  pthread_mutex_unlock(&device->lock);
  return status;
}

static void release(hk_backend *b, void *memory) {
  hk_host_device *device = (hk_host_device *)b;
  if (memory == NULL) return;
  pthread_mutex_lock(&device->lock);
  const bool known = hk_host_heap_give(&device->heap, memory);
  pthread_mutex_unlock(&device->lock);
  if (!known) hk_host_break(device, "release of %p, which is not device memory in use", memory);
}

/* -- Peers ------------------------------------------------------------------------------------- */

static hk_status peer(hk_backend *b, hk_backend *other, bool *direct, hk_error *err) {
  hk_host_device *device = (hk_host_device *)b;
  *direct = false;
  HK_TRY(hk_host_check(device, err));
  if (other->ops != b->ops) {
    return hk_fail(err, HK_INPUT, "a device of the backend '%s' cannot be the peer of one of '%s'",
                   other->ops->name, b->ops->name);
  }
  hk_host_add_peer(device, (hk_host_device *)other);
  *direct = true;
  return HK_OK;
}

/* -- Devices ----------------------------------------------------------------------------------- */

static hk_status count(int *n, hk_error *err) {
  (void)err;
  *n = HK_HOST_DEVICES;
  return HK_OK;
}

static void close_device(hk_backend *b) {
  hk_host_device *device = (hk_host_device *)b;
  if (device == NULL) return;
  hk_host_unlist(device);
  hk_host_drop_registrations(device, NULL);
  hk_team_close(device->team);
  hk_host_heap_close(&device->heap);
  pthread_mutex_destroy(&device->turns);
  pthread_mutex_destroy(&device->lock);
  free(device);
}

static hk_status open_parts(hk_host_device *device, const hk_backend_options *options,
                            hk_error *err) {
  const hk_bytes memory = options && options->memory != 0 ? options->memory : HK_GIB;
  const int threads = options && options->threads != 0 ? options->threads : 1;
  HK_TRY(hk_host_heap_open(memory, &device->heap, err));
  if (threads == 1) return HK_OK;
  return hk_team_open(&(hk_team_options){.threads = threads}, &device->team, err);
}

static hk_status open_device(int number, const hk_backend_options *options, hk_backend **out,
                             hk_error *err) {
  *out = NULL;
  if (number < 0 || number >= HK_HOST_DEVICES) {
    return hk_fail(err, HK_INPUT, "there is no host device %d; they are numbered 0 to %d", number,
                   HK_HOST_DEVICES - 1);
  }
  hk_host_device *device = calloc(1, sizeof *device);
  if (device == NULL) return hk_fail_memory(err, sizeof *device, "a host device");
  device->base.ops = &hk_backend_host;
  device->number = number;
  pthread_mutex_init(&device->lock, NULL);
  pthread_mutex_init(&device->turns, NULL);
  for (int i = 0; i < HK_HOST_FAULTS; i++) atomic_init(&device->until_fault[i], -1);
  hk_status status = ask_for_fault(device, err);
  if (status == HK_OK) status = open_parts(device, options, err);
  if (status == HK_OK) {
    hk_host_list(device);
    *out = &device->base;
  } else {
    close_device(&device->base);
  }
  return status;
}

/* Host threads have no current device. */
static hk_status guard(hk_backend *b, int *previous, hk_error *err) {
  (void)b, (void)err;
  *previous = -1;
  return HK_OK;
}

static void unguard(hk_backend *b, int previous) {
  (void)b, (void)previous;
}

static hk_status info(hk_backend *b, hk_device_info *out, hk_error *err) {
  hk_host_device *device = (hk_host_device *)b;
  HK_TRY(hk_host_check(device, err));
  *out = (hk_device_info){.name = "host", .memory = device->heap.bytes};
  pthread_mutex_lock(&device->lock);
  out->memory_free = device->heap.free;
  pthread_mutex_unlock(&device->lock);
  return HK_OK;
}

/* The device's clock is CLOCK_MONOTONIC itself. */
static hk_status clock_align(hk_backend *b, hk_ns *uncertainty, hk_error *err) {
  if (uncertainty != NULL) *uncertainty = 0;
  return hk_host_check((hk_host_device *)b, err);
}

const hk_backend_ops hk_backend_host = {
    .name = "host",
    .count = count,
    .open = open_device,
    .close = close_device,
    .guard = guard,
    .unguard = unguard,
    .info = info,
    .alloc = alloc,
    .release = release,
    .host_register = host_register,
    .host_unregister = host_unregister,
    .peer = peer,
    .stream_open = hk_host_stream_open,
    .stream_adopt = hk_host_stream_adopt,
    .stream_close = hk_host_stream_close,
    .event_open = hk_host_event_open,
    .event_close = hk_host_event_close,
    .copy = hk_host_copy,
    .launch = hk_host_launch,
    .zero = hk_host_zero,
    .record = hk_host_record,
    .wait = hk_host_wait,
    .stream_sync = hk_host_stream_sync,
    .event_sync = hk_host_event_sync,
    .event_done = hk_host_event_done,
    .clock_align = clock_align,
    .event_time = hk_host_event_time,
};
