/* SPDX-License-Identifier: Apache-2.0 */
/* The CPU team: threads, each pinned to a core of its own, that share the chunks of one piece of
 * work at a time. The thread that calls hk_team_run is member 0. After a piece the other members
 * spin for 50 us before they sleep, so that pieces that follow each other closely need no wake-ups.
 * Unlike libgomp, it can be checked by ThreadSanitizer. */
#ifndef HK_ENGINE_DEVICE_TEAM_H
#define HK_ENGINE_DEVICE_TEAM_H

#include <stdbool.h>
#include <stdint.h>

#include "core/base/error.h"

typedef struct hk_team hk_team;

typedef struct {
  int threads;     /* >= 1; if there are fewer cores, threads are not pinned */
  bool pin;        /* pin each thread to a physical core, near `pci` if that is given */
  const char *pci; /* address of a PCI device, "0000:1b:00.0"; NULL or "": no preference */
  int first_core;  /* number of cores to skip, so that teams of several ranks use different cores */
} hk_team_options;

hk_status hk_team_open(const hk_team_options *options, hk_team **team, hk_error *err);
void hk_team_close(hk_team *team);
int hk_team_threads(const hk_team *team);
/* Why the team is not pinned as requested; "": it is. */
const char *hk_team_note(const hk_team *team);
/* Pins the calling thread as member 0. hk_team_close, called by the same thread, unpins it. */
void hk_team_join(hk_team *team);

/* Calls work(arg, chunk, thread) once for each chunk 0 .. chunks - 1; threads take chunks in
 * increasing order. Returns when all calls have returned. Calls for one team must not overlap or
 * nest. */
typedef void (*hk_team_work)(void *arg, int64_t chunk, int thread);
void hk_team_run(hk_team *team, int64_t chunks, hk_team_work work, void *arg);

/* Makes each later hk_team_run call begun(arg) once, on the calling thread, when the other members
 * have been woken and before it takes a chunk itself. Use it for work that should not delay the
 * other members. NULL: none. Do not call this while the team runs. */
void hk_team_when_begun(hk_team *team, void (*begun)(void *arg), void *arg);

/* NUMA node near a PCI device; -1: there is only one node, or it is not known. */
int hk_numa_near(const char *pci);

#endif
