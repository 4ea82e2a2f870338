/* SPDX-License-Identifier: Apache-2.0 */
/* The host backend's devices: opening, memory, registration, failures. Streams and events are in
 * host_stream.c, kernels in host_kernel.c. What would be a fault on a GPU (an address outside
 * device memory, a second release) fails here too, with a message that gives the address. */
#include "engine/device/backend_host.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/device/host_device.h"

/* Number of devices; more than any node that tests imitate. An unused device costs nothing. */
#define DEVICES 64

/* -- Failures ---------------------------------------------------------------------------------- */

hk_status hk_host_check(hk_host_device *device, hk_error *err) {
  if (!atomic_load_explicit(&device->failed, memory_order_acquire)) return HK_OK;
  return hk_fail(err, device->failure.status, "%s", device->failure.message);
}

void hk_host_break(hk_host_device *device, const char *format, ...) {
  char reason[512];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(reason, sizeof reason, format, arguments);
  va_end(arguments);
  pthread_mutex_lock(&device->lock);
  if (!atomic_load_explicit(&device->failed, memory_order_relaxed)) {
    hk_fail(&device->failure, HK_ENVIRONMENT, "host device %d failed: %s", device->number, reason);
    atomic_store_explicit(&device->failed, true, memory_order_release);
  }
  pthread_mutex_unlock(&device->lock);
}

void hk_backend_host_fail(hk_backend *b, hk_host_fault what, int64_t after) {
  atomic_store(&((hk_host_device *)b)->until_fault[what], after);
}

bool hk_host_fault_due(hk_host_device *device, hk_host_fault what) {
  _Atomic int64_t *left = &device->until_fault[what];
  return atomic_load(left) >= 0 && atomic_fetch_sub(left, 1) == 0;
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

/* Registered host memory of the whole process, because every device can access it. */
typedef struct registration {
  uintptr_t begin, end;
  const hk_host_device *owner;
  struct registration *next;
} registration;
static registration *registrations;
static pid_t registered_by; /* id of the process that made the list */
static pthread_mutex_t registrations_lock = PTHREAD_MUTEX_INITIALIZER;

static bool is_registered(const void *memory, hk_bytes bytes) {
  const uintptr_t begin = (uintptr_t)memory, end = begin + (uintptr_t)bytes;
  pthread_mutex_lock(&registrations_lock);
  const registration *r = registrations;
  while (r != NULL && (begin < r->begin || end > r->end)) r = r->next;
  pthread_mutex_unlock(&registrations_lock);
  return r != NULL;
}

/* False: some of it is registered already. */
static bool add_registration(registration *new) {
  pthread_mutex_lock(&registrations_lock);
  if (registered_by != getpid())
    registrations = NULL; /* after a fork, the parent's registrations do not hold in the child */
  registered_by = getpid();
  const registration *r = registrations;
  while (r != NULL && (new->end <= r->begin || r->end <= new->begin)) r = r->next;
  if (r == NULL) {
    new->next = registrations;
    registrations = new;
  }
  pthread_mutex_unlock(&registrations_lock);
  return r == NULL;
}

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
  registration *new = malloc(sizeof *new);
  if (new == NULL) return hk_fail_memory(err, sizeof *new, "a registration of host memory");
  const uintptr_t begin = (uintptr_t)memory;
  *new = (registration){.begin = begin, .end = begin + (uintptr_t)bytes, .owner = device};
  if (add_registration(new)) return HK_OK;
  free(new);
  return hk_fail(err, HK_INPUT, "host memory at %p (%lld bytes) is registered already", memory,
                 (long long)bytes);
}

/* Removes the registration at `memory`, or for NULL all of `owner`; true: there was one. */
static bool drop_registrations(const hk_host_device *owner, const void *memory) {
  bool any = false;
  pthread_mutex_lock(&registrations_lock);
  for (registration **at = &registrations; *at != NULL;) {
    registration *r = *at;
    if (memory != NULL ? r->begin == (uintptr_t)memory : r->owner == owner) {
      *at = r->next;
      free(r);
      any = true;
    } else {
      at = &r->next;
    }
  }
  pthread_mutex_unlock(&registrations_lock);
  return any;
}

static void host_unregister(hk_backend *b, void *memory) {
  hk_host_device *device = (hk_host_device *)b;
  if (memory != NULL && !drop_registrations(device, memory)) {
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

hk_status hk_host_check_range(hk_host_device *device, const char *what, const void *memory,
                              hk_bytes bytes, bool mapped, hk_error *err) {
  pthread_mutex_lock(&device->lock);
  const bool covered = hk_host_heap_covers(&device->heap, memory, bytes);
  pthread_mutex_unlock(&device->lock);
  if (covered || (mapped && is_registered(memory, bytes))) return HK_OK;
  return hk_fail(err, HK_INPUT, "%s at %p: its %lld bytes %s", what, memory, (long long)bytes,
                 mapped ? "are neither one piece of device memory in use nor registered host memory"
                        : "are not one piece of device memory in use");
}

/* -- Peers ------------------------------------------------------------------------------------- */

/* The open devices and their peers. Its lock is taken before a device's own. */
static hk_host_device *open_devices;
static pthread_mutex_t open_devices_lock = PTHREAD_MUTEX_INITIALIZER;

_Static_assert(DEVICES <= 64, "hk_host_device.peers has a bit for each");

static uint64_t bit_of(const hk_host_device *device) {
  return (uint64_t)1 << device->number;
}

static void list_device(hk_host_device *device) {
  pthread_mutex_lock(&open_devices_lock);
  device->next = open_devices;
  open_devices = device;
  pthread_mutex_unlock(&open_devices_lock);
}

static void unlist_device(const hk_host_device *device) {
  pthread_mutex_lock(&open_devices_lock);
  hk_host_device **at = &open_devices;
  while (*at != NULL && *at != device) at = &(*at)->next;
  if (*at != NULL) *at = device->next;
  pthread_mutex_unlock(&open_devices_lock);
}

static hk_status peer(hk_backend *b, hk_backend *other, bool *direct, hk_error *err) {
  hk_host_device *device = (hk_host_device *)b;
  *direct = false;
  HK_TRY(hk_host_check(device, err));
  if (other->ops != b->ops) {
    return hk_fail(err, HK_INPUT, "a device of the backend '%s' cannot be the peer of one of '%s'",
                   other->ops->name, b->ops->name);
  }
  pthread_mutex_lock(&open_devices_lock);
  device->peers |= bit_of((hk_host_device *)other);
  pthread_mutex_unlock(&open_devices_lock);
  *direct = true;
  return HK_OK;
}

hk_status hk_host_check_end(hk_host_device *device, const char *what, const void *memory,
                            hk_bytes bytes, hk_error *err) {
  if (memory == NULL) return hk_fail(err, HK_INPUT, "%s is NULL", what);
  hk_status status = HK_OK;
  pthread_mutex_lock(&open_devices_lock);
  hk_host_device *owner = open_devices;
  while (owner != NULL && !hk_host_heap_owns(&owner->heap, memory)) owner = owner->next;
  if (owner != NULL && owner != device && (device->peers & bit_of(owner)) == 0) {
    status = hk_fail(err, HK_INPUT,
                     "%s at %p is in the memory of host device %d, which was not made a peer of "
                     "device %d",
                     what, memory, owner->number, device->number);
  } else if (owner != NULL) {
    status = hk_host_check_range(owner, what, memory, bytes, false, err);
  }
  pthread_mutex_unlock(&open_devices_lock);
  return status;
}

/* -- Devices ----------------------------------------------------------------------------------- */

static hk_status count(int *n, hk_error *err) {
  (void)err;
  *n = DEVICES;
  return HK_OK;
}

static void close_device(hk_backend *b) {
  hk_host_device *device = (hk_host_device *)b;
  if (device == NULL) return;
  unlist_device(device);
  drop_registrations(device, NULL);
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
  if (number < 0 || number >= DEVICES) {
    return hk_fail(err, HK_INPUT, "there is no host device %d; they are numbered 0 to %d", number,
                   DEVICES - 1);
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
    list_device(device);
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
