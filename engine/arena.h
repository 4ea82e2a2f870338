/* SPDX-License-Identifier: Apache-2.0 */
/* The host arena: one mapping for all of an engine's host memory, on huge pages, bound near the
 * GPU, touched first by the threads that will use it, registered with the device once. */
#ifndef HK_ENGINE_ARENA_H
#define HK_ENGINE_ARENA_H

#include "engine/backend.h"
#include "engine/team.h"

typedef struct {
  void *base;
  hk_bytes bytes, used;
  hk_backend *registered; /* NULL: not registered, or not by this one */
  bool borrowed;          /* the memory is another arena's */
  char note[256];         /* what was asked and not had (huge pages, NUMA), "" for nothing */
} hk_arena;

/* Whether so much host memory can be had, before any is touched; HK_ENVIRONMENT says how much can.
 * `what` needs it. */
hk_status hk_arena_check_room(hk_bytes bytes, const char *what, hk_error *err);

/* Maps and touches `bytes`. Before that, HK_ENVIRONMENT if the system has not that much available
 * (MemAvailable and the cgroup's limit), with both figures and what would help; the environment
 * variable HOCKET_TRUST_MEMORY=1 skips that, for machines that have more than they say. 0 bytes: an
 * arena without memory. `team` touches in parallel (NULL: the caller does). `pci`: see
 * hk_team_options. */
hk_status hk_arena_open(hk_bytes bytes, hk_team *team, const char *pci, hk_arena *arena,
                        hk_error *err);
/* Registers all of it. Refused: HK_ENVIRONMENT, the message says what to do (ulimit -l, ...). */
hk_status hk_arena_register(hk_arena *arena, hk_backend *backend, hk_error *err);
/* The first `bytes` of another arena, made zeros again by `team`; that one stays open and
 * registered until this one is closed, and has one borrower at a time. HK_INPUT: it has fewer, or
 * is not registered. */
hk_status hk_arena_borrow(const hk_arena *from, hk_bytes bytes, hk_team *team, hk_arena *arena,
                          hk_error *err);
/* The next `bytes`, aligned to `alignment` (a power of two up to 2 MiB); NULL when full, which is a
 * mistake of the caller's sum. */
void *hk_arena_take(hk_arena *arena, hk_bytes bytes, hk_bytes alignment);
void hk_arena_close(hk_arena *arena);

/* Memory that a new arena could have now. */
hk_bytes hk_host_available(void);

#endif
