/* SPDX-License-Identifier: Apache-2.0 */
/* The machine's topology, read by hwloc once a process, and placement of threads. */
#include "engine/device/topology.h"

#include <errno.h>
#include <hwloc.h>
#include <sched.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "engine/device/team.h"

/* -- The machine ------------------------------------------------------------------------------- */

/* Topologies without and with PCI devices. Finding PCI devices is slow, so the second is read only
 * when a caller names one. NULL: not read yet, or reading has failed. They are never freed. */
static hwloc_topology_t plain, with_devices;
static pthread_once_t plain_once = PTHREAD_ONCE_INIT, devices_once = PTHREAD_ONCE_INIT;

static hwloc_topology_t load(bool devices) {
  hwloc_topology_t topology;
  /* Without /sys (in a bare chroot) hwloc would write to stderr, which a library must not. */
  setenv("HWLOC_HIDE_ERRORS", "2", 0);
  if (hwloc_topology_init(&topology) != 0) return NULL;
  if ((!devices ||
       hwloc_topology_set_io_types_filter(topology, HWLOC_TYPE_FILTER_KEEP_IMPORTANT) == 0) &&
      hwloc_topology_load(topology) == 0) {
    return topology;
  }
  hwloc_topology_destroy(topology);
  return NULL;
}

static void load_plain(void) {
  plain = load(false);
}

static void load_devices(void) {
  with_devices = load(true);
}

int hk_numa_near(const char *pci) {
  if (pci == NULL || *pci == '\0') return -1;
  pthread_once(&plain_once, load_plain);
  if (plain == NULL || hwloc_get_nbobjs_by_type(plain, HWLOC_OBJ_NUMANODE) < 2) return -1;
  pthread_once(&devices_once, load_devices);
  if (with_devices == NULL) return -1;
  hwloc_obj_t device = hwloc_get_pcidev_by_busidstring(with_devices, pci);
  if (device == NULL) return -1;
  hwloc_obj_t place = hwloc_get_non_io_ancestor_obj(with_devices, device);
  /* Attached to the whole machine: its NUMA node is not known. */
  return place == hwloc_get_root_obj(with_devices) ? -1 : hwloc_bitmap_first(place->nodeset);
}

/* -- The order of CPUs ------------------------------------------------------------------------- */

typedef struct {
  hwloc_topology_t topology;
  const cpu_set_t *allowed; /* NULL: all */
  hwloc_obj_t near;         /* NULL: no preference */
  int *cpus, n;             /* so far */
} ordering;

static bool may_use(const ordering *o, hwloc_obj_t pu) {
  return o->allowed == NULL || CPU_ISSET(pu->os_index, o->allowed);
}

/* Number of allowed hyperthreads of its core that come before this one. */
static int rank_in_core(const ordering *o, hwloc_obj_t pu) {
  if (hwloc_get_ancestor_obj_by_type(o->topology, HWLOC_OBJ_CORE, pu) == NULL) return 0;
  int rank = 0;
  while ((pu = pu->prev_sibling) != NULL) rank += may_use(o, pu);
  return rank;
}

/* Appends the CPUs of one rank, near ones or the others. */
static void append(ordering *o, int rank, bool near) {
  hwloc_obj_t pu = NULL;
  while ((pu = hwloc_get_next_obj_by_type(o->topology, HWLOC_OBJ_PU, pu)) != NULL) {
    const bool is_near = o->near != NULL && hwloc_bitmap_isset(o->near->cpuset, pu->os_index);
    if (is_near == near && may_use(o, pu) && rank_in_core(o, pu) == rank) {
      o->cpus[o->n++] = (int)pu->os_index;
    }
  }
}

hk_status hk_cpu_order_in(struct hwloc_topology *topology, const cpu_set_t *allowed, int near,
                          int **cpus, int *n, hk_error *err) {
  const int most = hwloc_get_nbobjs_by_type(topology, HWLOC_OBJ_PU);
  if (most < 1) return hk_fail(err, HK_ENVIRONMENT, "hwloc finds no CPU on this machine");
  ordering o = {.topology = topology, .allowed = allowed};
  o.cpus = calloc((size_t)most, sizeof *o.cpus);
  if (o.cpus == NULL) {
    return hk_fail_memory(err, (size_t)most * sizeof *o.cpus, "the order of the CPUs");
  }
  if (near >= 0) o.near = hwloc_get_numanode_obj_by_os_index(topology, (unsigned)near);
  for (int rank = 0, before = -1; o.n > before; rank++) {
    before = o.n;
    append(&o, rank, true);
    append(&o, rank, false);
  }
  *cpus = o.cpus;
  *n = o.n;
  return HK_OK;
}

/* While the calling thread is pinned: its affinity before. */
static _Thread_local bool pinned;
static _Thread_local cpu_set_t before;

hk_status hk_cpu_order(const char *pci, int **cpus, int *n, hk_error *err) {
  pthread_once(&plain_once, load_plain);
  if (plain == NULL) {
    return hk_fail(err, HK_ENVIRONMENT, "hwloc cannot read this machine's topology");
  }
  cpu_set_t allowed = before;
  const bool known = pinned || sched_getaffinity(0, sizeof allowed, &allowed) == 0;
  return hk_cpu_order_in(plain, known ? &allowed : NULL, hk_numa_near(pci), cpus, n, err);
}

/* -- Threads ----------------------------------------------------------------------------------- */

static bool only(int cpu, cpu_set_t *set) {
  CPU_ZERO(set);
  if (cpu < 0 || cpu >= CPU_SETSIZE) return false;
  CPU_SET((size_t)cpu, set);
  return true;
}

bool hk_cpu_pin(int cpu) {
  cpu_set_t now, set;
  if (!only(cpu, &set) || sched_getaffinity(0, sizeof now, &now) != 0 ||
      sched_setaffinity(0, sizeof set, &set) != 0) {
    return false;
  }
  if (!pinned) before = now;
  pinned = true;
  return true;
}

void hk_cpu_unpin(void) {
  if (pinned) sched_setaffinity(0, sizeof before, &before);
  pinned = false;
}

int hk_thread_start(pthread_t *thread, int cpu, void *(*run)(void *), void *arg) {
  if (cpu < 0 && !pinned) return pthread_create(thread, NULL, run, arg);
  cpu_set_t set = before;
  if (cpu >= 0 && !only(cpu, &set)) return EINVAL;
  pthread_attr_t attributes;
  int failure = pthread_attr_init(&attributes);
  if (failure != 0) return failure;
  failure = pthread_attr_setaffinity_np(&attributes, sizeof set, &set);
  if (failure == 0) failure = pthread_create(thread, &attributes, run, arg);
  pthread_attr_destroy(&attributes);
  return failure;
}

int hk_thread_start_or_anywhere(pthread_t *thread, int cpu, void *(*run)(void *), void *arg) {
  const int failure = hk_thread_start(thread, cpu, run, arg);
  return failure == 0 || cpu < 0 ? failure : hk_thread_start(thread, -1, run, arg);
}

/* The kernel's struct sched_attr, which not all C libraries declare. */
struct scheduling {
  uint32_t size, policy;
  uint64_t flags;
  int32_t nice;
  uint32_t priority;
  uint64_t runtime, deadline, period; /* ns; of an ordinary thread, runtime is its slice */
};

void hk_thread_prompt(void) {
  struct scheduling wish = {.size = sizeof wish,
                            .flags = 0x8, /* whatever policy it has */
                            .nice = getpriority(PRIO_PROCESS, 0),
                            .runtime = 100000}; /* the least that is granted */
  (void)syscall(SYS_sched_setattr, 0, &wish, 0);
}

/* -- Memory ------------------------------------------------------------------------------------ */

bool hk_numa_bind(void *memory, hk_bytes bytes, int node) {
  pthread_once(&plain_once, load_plain);
  hwloc_bitmap_t nodes = hwloc_bitmap_alloc();
  if (plain == NULL || nodes == NULL) {
    hwloc_bitmap_free(nodes);
    return false;
  }
  /* A preference, not strict: if the node is full, pages come from another one instead of ending
   * the process. */
  const bool bound = node >= 0 && hwloc_bitmap_only(nodes, (unsigned)node) == 0 &&
                     hwloc_set_area_membind(plain, memory, (size_t)bytes, nodes, HWLOC_MEMBIND_BIND,
                                            HWLOC_MEMBIND_BYNODESET) == 0;
  hwloc_bitmap_free(nodes);
  return bound;
}
