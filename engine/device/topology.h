/* SPDX-License-Identifier: Apache-2.0 */
/* Placement of threads and memory: the CPUs that the process may use (container, taskset), in the
 * order in which hwloc's topology says that threads should use them, and threads pinned to them. */
#ifndef HK_ENGINE_DEVICE_TOPOLOGY_H
#define HK_ENGINE_DEVICE_TOPOLOGY_H

#include <pthread.h>
#include <sched.h>
#include <stdbool.h>

#include "core/base/error.h"
#include "core/base/units.h"

struct hwloc_topology;

/* *cpus: CPU numbers of the operating system, in the order in which threads should use them: first
 * one of each physical core, NUMA node `near` (-1: no preference) before the others, then the
 * cores' further hyperthreads in the same order. `allowed`: the CPUs to choose from; NULL: all. The
 * caller frees *cpus. */
hk_status hk_cpu_order_in(struct hwloc_topology *topology, const cpu_set_t *allowed, int near,
                          int **cpus, int *n, hk_error *err);
/* The same for this machine, near a PCI device (see hk_team_options), with the CPUs that the
 * calling thread was allowed to use before any hk_cpu_pin. */
hk_status hk_cpu_order(const char *pci, int **cpus, int *n, hk_error *err);

/* Pins the calling thread to a CPU and remembers its former affinity. False: refused. */
bool hk_cpu_pin(int cpu);
/* Restores the calling thread's former affinity, if hk_cpu_pin has pinned it. */
void hk_cpu_unpin(void);

/* Starts a thread pinned to `cpu`. -1: it gets the affinity that the calling thread had before
 * hk_cpu_pin, so that it does not inherit the pinning of the thread that starts it. Returns what
 * pthread_create returns. */
int hk_thread_start(pthread_t *thread, int cpu, void *(*run)(void *), void *arg);
/* The same, but unpinned (-1) if `cpu` is refused. */
int hk_thread_start_or_anywhere(pthread_t *thread, int cpu, void *(*run)(void *), void *arg);

/* Requests a short time slice (0.1 ms) for the calling thread, which sleeps most of the time. Where
 * each CPU has a busy team thread, it is then scheduled at once instead of after the busy thread's
 * slice of some 3 ms. Works on Linux 6.12 and later; has no effect elsewhere. */
void hk_thread_prompt(void);

/* Requests that the pages of a range are taken from NUMA node `node` as long as it has free ones.
 * False: refused. */
bool hk_numa_bind(void *memory, hk_bytes bytes, int node);

#endif
