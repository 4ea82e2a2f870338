/* SPDX-License-Identifier: Apache-2.0 */
/* The CPU team: threads pinned to cores of their own (hwloc) that share out the chunks of one piece
 * of work at a time. The caller is its first member, pinned with hk_team_join. Between pieces the
 * others spin for a moment and then sleep, so that pieces of some milliseconds follow each other
 * without a wake-up each. Clean under ThreadSanitizer, which libgomp is not. */
#ifndef HK_ENGINE_TEAM_H
#define HK_ENGINE_TEAM_H

#include <stdbool.h>
#include <stdint.h>

#include "core/error.h"

typedef struct hk_team hk_team;

typedef struct {
  int threads;     /* >= 1; more than there are cores is allowed, and then not pinned */
  bool pin;        /* one physical core each, near `pci` where that is given */
  const char *pci; /* "0000:1b:00.0", NULL or "": no preference */
  int first_core;  /* skip so many cores of the order: teams of several ranks side by side */
} hk_team_options;

hk_status hk_team_open(const hk_team_options *options, hk_team **team, hk_error *err);
void hk_team_close(hk_team *team);
int hk_team_threads(const hk_team *team);
/* Why the team is not pinned as asked, or "" when it is. */
const char *hk_team_note(const hk_team *team);
/* Pins the calling thread as member 0, until the same thread closes the team. */
void hk_team_join(hk_team *team);

/* Calls work(arg, chunk, thread) once for every chunk in [0, chunks), chunks in increasing order of
 * start over all threads; returns when all are done. Only one call at a time, and none from `work`.
 */
typedef void (*hk_team_work)(void *arg, int64_t chunk, int thread);
void hk_team_run(hk_team *team, int64_t chunks, hk_team_work work, void *arg);

/* From now on every hk_team_run calls begun(arg), once, on the calling thread, when the others have
 * been set to work and before it takes a chunk itself: the place for what need not delay them.
 * NULL: nothing is called. Not while the team runs. */
void hk_team_when_begun(hk_team *team, void (*begun)(void *arg), void *arg);

/* NUMA node near a PCI device, -1 if there is but one or it is not known. */
int hk_numa_near(const char *pci);

#endif
