/* SPDX-License-Identifier: Apache-2.0 */
/* Where threads and memory go: the processor's shape as hwloc reports it, cut down to what a thread
 * may use (container, taskset), and threads on CPUs of their own. */
#ifndef HK_ENGINE_TOPOLOGY_H
#define HK_ENGINE_TOPOLOGY_H

#include <pthread.h>
#include <sched.h>
#include <stdbool.h>

#include "core/error.h"
#include "core/units.h"

struct hwloc_topology;

/* CPUs (numbers as the system counts them) in the order in which threads should take them: one a
 * physical core, those of NUMA node `near` before others, then the cores' further hyperthreads
 * likewise. `near` -1: no preference. `allowed` NULL: all. The caller frees *cpus. */
hk_status hk_cpu_order_in(struct hwloc_topology *topology, const cpu_set_t *allowed, int near,
                          int **cpus, int *n, hk_error *err);
/* The same of this machine, near a PCI device (see hk_team_options), of the CPUs that the calling
 * thread may use, or might before hk_cpu_pin. */
hk_status hk_cpu_order(const char *pci, int **cpus, int *n, hk_error *err);

/* Pins the calling thread and remembers where it was allowed to run before. */
bool hk_cpu_pin(int cpu);
/* Lets it run there again, if it was pinned. */
void hk_cpu_unpin(void);

/* pthread_create (and its result), on `cpu`; or, with -1, wherever the calling thread may run or
 * might before hk_cpu_pin: no thread should share a core because a pinned one happened to start it.
 */
int hk_thread_start(pthread_t *thread, int cpu, void *(*run)(void *), void *arg);
/* The same, and there if that CPU is refused. */
int hk_thread_start_or_anywhere(pthread_t *thread, int cpu, void *(*run)(void *), void *arg);

/* Asks that the calling thread, which sleeps most of the time and does little when woken, need not
 * wait until a busy one on its CPU has used up its slice, some ms, where all CPUs have a member of
 * a team. Linux from 6.12 on grants it to anybody; elsewhere nothing changes. */
void hk_thread_prompt(void);

/* Asks for the pages of a range to come from NUMA node `node` while that has any. */
bool hk_numa_bind(void *memory, hk_bytes bytes, int node);

#endif
