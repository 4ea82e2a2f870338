/* SPDX-License-Identifier: Apache-2.0 */
/* What the host backend's files ask of a device: whether it has failed or is to fail, and whether
 * an address lies in its memory, a peer's, or registered host memory. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "engine/device/host_device.h"

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

bool hk_host_fault_due(hk_host_device *device, hk_host_fault what) {
  _Atomic int64_t *left = &device->until_fault[what];
  return atomic_load(left) >= 0 && atomic_fetch_sub(left, 1) == 0;
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

hk_status hk_host_add_registration(const hk_host_device *owner, void *memory, hk_bytes bytes,
                                   hk_error *err) {
  registration *new = malloc(sizeof *new);
  if (new == NULL) return hk_fail_memory(err, sizeof *new, "a registration of host memory");
  const uintptr_t begin = (uintptr_t)memory;
  *new = (registration){.begin = begin, .end = begin + (uintptr_t)bytes, .owner = owner};
  if (add_registration(new)) return HK_OK;
  free(new);
  return hk_fail(err, HK_INPUT, "host memory at %p (%lld bytes) is registered already", memory,
                 (long long)bytes);
}

bool hk_host_drop_registrations(const hk_host_device *owner, const void *memory) {
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

/* -- Open devices ------------------------------------------------------------------------------ */

/* The open devices and their peers. Its lock is taken before a device's own. */
static hk_host_device *open_devices;
static pthread_mutex_t open_devices_lock = PTHREAD_MUTEX_INITIALIZER;

_Static_assert(HK_HOST_DEVICES <= 64, "hk_host_device.peers has a bit for each");

static uint64_t bit_of(const hk_host_device *device) {
  return (uint64_t)1 << device->number;
}

void hk_host_list(hk_host_device *device) {
  pthread_mutex_lock(&open_devices_lock);
  device->next = open_devices;
  open_devices = device;
  pthread_mutex_unlock(&open_devices_lock);
}

void hk_host_unlist(const hk_host_device *device) {
  pthread_mutex_lock(&open_devices_lock);
  hk_host_device **at = &open_devices;
  while (*at != NULL && *at != device) at = &(*at)->next;
  if (*at != NULL) *at = device->next;
  pthread_mutex_unlock(&open_devices_lock);
}

void hk_host_add_peer(hk_host_device *device, const hk_host_device *other) {
  pthread_mutex_lock(&open_devices_lock);
  device->peers |= bit_of(other);
  pthread_mutex_unlock(&open_devices_lock);
}

/* -- Ranges ------------------------------------------------------------------------------------ */

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
