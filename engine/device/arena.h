/* SPDX-License-Identifier: Apache-2.0 */
/* The host arena: one mapping that holds all of an engine's pinned host memory. It uses huge pages
 * and the NUMA node near the GPU where it can, its pages are first touched by the team's threads,
 * and it is registered with the device once. */
#ifndef HK_ENGINE_DEVICE_ARENA_H
#define HK_ENGINE_DEVICE_ARENA_H

#include <signal.h>

#include "engine/device/backend.h"
#include "engine/device/team.h"

typedef struct {
  void *base;
  hk_bytes bytes, used;
  hk_backend *registered; /* device that it is registered with; NULL: none, or it is borrowed */
  bool borrowed;          /* the memory belongs to another arena */
  char note[256];         /* what could not be had (huge pages, NUMA); "": nothing */
} hk_arena;

/* Checks, without touching memory, that `bytes` of host memory are available. HK_ENVIRONMENT if
 * not; the message says that `what` needs them, and how much there is. */
hk_status hk_arena_check_room(hk_bytes bytes, const char *what, hk_error *err);

/* Maps and touches `bytes` (0: an arena without memory). HK_ENVIRONMENT before anything is touched
 * if less is available (MemAvailable and the control group's limit); the message gives both sizes
 * and says what would help. The environment variable HOCKET_TRUST_MEMORY=1 skips that check, for
 * machines that report less than they have. `team` touches pages in parallel; NULL: the calling
 * thread does. `pci`: see hk_team_options. */
hk_status hk_arena_open(hk_bytes bytes, hk_team *team, const char *pci, hk_arena *arena,
                        hk_error *err);
/* The same, but once *stop is not 0 it leaves the rest untouched. `stop` may be NULL. */
hk_status hk_arena_open_until(const volatile sig_atomic_t *stop, hk_bytes bytes, hk_team *team,
                              const char *pci, hk_arena *arena, hk_error *err);
/* Registers the arena with a device. HK_ENVIRONMENT: refused; the message names the limits on
 * locked memory that may be raised. */
hk_status hk_arena_register(hk_arena *arena, hk_backend *backend, hk_error *err);
/* Makes *arena use the first `bytes` of `from`, which `team` sets to 0. `from` must stay open and
 * registered until *arena is closed, and may have one borrower at a time. HK_INPUT: `from` is
 * smaller or not registered. */
hk_status hk_arena_borrow(const hk_arena *from, hk_bytes bytes, hk_team *team, hk_arena *arena,
                          hk_error *err);
/* Returns the next `bytes` of the arena, aligned to `alignment` (a power of two up to 2 MiB); NULL
 * if they do not fit: the caller has opened too small an arena. */
void *hk_arena_take(hk_arena *arena, hk_bytes bytes, hk_bytes alignment);
void hk_arena_close(hk_arena *arena);

/* Bytes that a new arena could have now: hk_available_memory_bytes of this machine. */
hk_bytes hk_host_available(void);

#endif
