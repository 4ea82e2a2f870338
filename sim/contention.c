/* SPDX-License-Identifier: GPL-3.0-or-later */
/* The rules of contention.h, and their application to the operations that are in progress. */
#include "sim/contention.h"

#include <math.h>
#include <string.h>

#include "sim/slowest.h"
#include "sim/state.h"

/* -- rules -------------------------------------------------------------------------------- */

double hk_cpu_kept(const hk_machine *m, double gpus_in, double gpus_out) {
  return pow(m->cpu_beside_h2d.value, gpus_in) * pow(m->cpu_beside_d2h.value, gpus_out);
}

double hk_copies_out(const hk_machine *m, unsigned traffic) {
  if ((traffic & HK_TRAFFIC_OUT) == 0) return 0;
  return hk_both_read(traffic) ? m->d2h_beside_reads.value : 1;
}

double hk_h2d_kept(const hk_machine *m, double kernels) {
  const double least = m->h2d_loaded.value / m->h2d.value, from = m->h2d_load_from.value;
  const double load = fmin(kernels / m->dram.value, 1);
  if (least <= 0 || least >= 1 || load <= from) return 1;
  return 1 - (1 - least) * (load - from) / (1 - from);
}

hk_ns hk_launch_delay(const hk_machine *m, unsigned traffic) {
  if (hk_both_read(traffic)) return (hk_ns)m->launch_beside_reads.value;
  if ((traffic & HK_TRAFFIC_COPY_IN) != 0) return (hk_ns)m->launch_beside_copies.value;
  if ((traffic & HK_TRAFFIC_KERNEL_IN) != 0) return (hk_ns)m->launch_beside_pulls.value;
  return 0;
}

/* Share of its rate that an update on the GPU keeps beside copies of the same GPU. */
static double gpu_update_kept(const hk_machine *m, unsigned traffic) {
  const double in = (traffic & HK_TRAFFIC_COPY_IN) != 0 ? m->gpu_beside_h2d.value : 1;
  return (traffic & HK_TRAFFIC_COPY_OUT) != 0 ? in * m->gpu_beside_d2h.value : in;
}

/* A team that leaves the framework too few cores slows launches further. */
double hk_pass_kept(const hk_graph *graph, const hk_op *op, const hk_machine *m, double launches) {
  const hk_demand d = hk_demand_of(graph, op, m);
  const double kept = m->compute_beside_update.value;
  if (!isfinite(d.cap)) return 1;
  if (!isfinite(d.launched)) return kept;
  const double launched = fmin(launches, d.beside) * d.launched;
  return fmin(1,
              hk_slowest_rate(kept * d.computed, launched, hk_spread_beside(m), d.among) / d.cap);
}

/* -- application -------------------------------------------------------------------------- */

/* What the node's fluid operations load together. */
typedef struct {
  double gpus_in, gpus_out; /* GPUs that copy in, each counts once, and sum of hk_copies_out */
  double kernels;           /* sum of hk_active_op.host_wish, bytes/s */
} node_load;

/* Collects the fluid operations in s->activities (*n of them) and sums up what they load: on each
 * GPU in s->traffic, s->readers, s->computing and s->slowing, on the node in the
 * result. */
static node_load collect(hk_sim_state *s, int *n) {
  node_load load = {0};
  *n = 0;
  memset(s->traffic, 0, (size_t)s->graph->ranks * sizeof *s->traffic);
  memset(s->readers, 0, (size_t)s->graph->ranks * sizeof *s->readers);
  memset(s->computing, 0, (size_t)s->graph->ranks * sizeof *s->computing);
  memset(s->slowing, 0, (size_t)s->graph->ranks * sizeof *s->slowing);
  for (int i = 0; i < s->n_running; i++) {
    hk_active_op *active = &s->active[s->running[i]];
    if (!active->fluid) continue;
    s->activities[(*n)++] = &active->activity;
    const int32_t rank = s->graph->ops[active->op].rank;
    if (active->computes) s->computing[rank] = true;
    if (active->updates || active->sums) s->slowing[rank] = true;
    if (active->traffic == 0) continue;
    unsigned *of_rank = &s->traffic[rank];
    s->readers[rank] += (active->traffic & HK_TRAFFIC_KERNEL_IN) != 0;
    const unsigned first = active->traffic & ~*of_rank; /* bits that no earlier operation has set */
    *of_rank |= active->traffic;
    if ((first & HK_TRAFFIC_IN) != 0) load.gpus_in += s->graph->multiplicity;
    load.kernels += active->host_wish;
  }
  for (int rank = 0; rank < s->graph->ranks; rank++)
    load.gpus_out += s->graph->multiplicity * hk_copies_out(s->machine, s->traffic[rank]);
  return load;
}

/* A GPU that copies in while `readers` of its kernels read host memory. Copies out keep a share of
 * their cap. The link divides its capacity between the copy engine and all kernels together, so the
 * weight of the copy in grows with the number of kernels. */
static void adapt_to_reads(hk_active_op *active, const hk_machine *m, int readers) {
  if ((active->traffic & HK_TRAFFIC_COPY_OUT) != 0)
    active->activity.cap *= m->d2h_beside_reads.value;
  if ((active->traffic & HK_TRAFFIC_COPY_IN) != 0) {
    active->activity.weight *= m->h2d_beside_reads.value * readers;
  }
}

/* Collects what the host threads of each rank do, in s->host. */
static void collect_host(hk_sim_state *s) {
  for (int r = 0; r < s->graph->ranks; r++) s->host[r] = (hk_host_use){.launching = -1};
  for (int i = 0; i < s->n_running; i++) {
    const hk_active_op *active = &s->active[s->running[i]];
    if (!active->fluid) continue;
    hk_host_use *host = &s->host[s->graph->ops[active->op].rank];
    if (active->updates && (active->traffic & HK_TRAFFIC_CPU) != 0) {
      host->team = true;
      host->full = host->full || active->beside_compute < 1;
    }
    if (active->computes && isfinite(active->launched))
      host->launching = fmin(1, active->computed / active->launched);
  }
}

static double pass_beside(const hk_sim_state *s, const hk_active_op *active,
                          const hk_host_use *host, double kept) {
  const hk_machine *m = s->machine;
  double launched = active->launched;
  double scatter = m->launch_spread.value;
  if (host->team) {
    launched *= fmin(hk_launches_kept(m, s->graph->launch_beside_update), active->launches_kept);
    scatter = hk_spread_beside(m);
  }
  if (host->full) launched *= m->beside_full_team.value;
  return hk_slowest_rate(kept * active->computed, launched, scatter, active->among);
}

/* Forward or backward beside the update of its rank, or beside copies in of sums (`slowed`). The
 * cap is kept, because the slowest rank takes longer to compute than all other rates. */
static double pass_cap(const hk_sim_state *s, hk_active_op *active, const hk_host_use *host,
                       bool slowed) {
  const double kept = slowed ? s->machine->compute_beside_update.value : 1;
  if (!isfinite(active->launched)) return kept * active->cap;
  hk_active_op *same = active->number > 0 ? &s->numbered[active->number - 1] : active;
  double *cap = &same->beside[slowed + 2 * host->team + 4 * host->full];
  if (*cap == 0) *cap = pass_beside(s, active, host, kept);
  return *cap;
}

/* Share of its cap that an operation keeps while its rank computes. If the team leaves the
 * framework too few cores, one member shares a core with the host thread while the host thread
 * launches kernels: the team then keeps framework.beside_full_team of its rate. */
static double kept_beside_pass(const hk_active_op *active, const hk_machine *m,
                               const hk_host_use *host) {
  if (active->beside_compute >= 1 || host->launching < 0) return active->beside_compute;
  return 1 - host->launching * (1 - m->beside_full_team.value);
}

int hk_contend(hk_sim_state *s) {
  const hk_machine *m = s->machine;
  int n;
  const node_load load = collect(s, &n);
  collect_host(s);
  const double kept = load.kernels > 0 ? hk_cpu_kept(m, load.gpus_in, load.gpus_out) : 1;
  const double kept_in = hk_h2d_kept(m, kept * load.kernels);
  const bool mixed = load.kernels > 0 && load.gpus_in + load.gpus_out > 0;
  const bool crowded = mixed || fmax(load.gpus_in, load.gpus_out) > 1;
  for (int i = 0; i < s->n_running; i++) {
    hk_active_op *active = &s->active[s->running[i]];
    active->activity.weight = crowded ? active->weight_crowded : active->weight;
    active->activity.cap = active->cap;
    if ((active->traffic & HK_TRAFFIC_CPU) != 0) active->activity.cap *= kept;
    if ((active->traffic & HK_TRAFFIC_IN) != 0) active->activity.cap *= kept_in;
    const int32_t rank = s->graph->ops[active->op].rank;
    if (active->slowed) active->activity.cap *= gpu_update_kept(m, s->traffic[rank]);
    if (active->computes)
      active->activity.cap = pass_cap(s, active, &s->host[rank], s->slowing[rank]);
    if (s->computing[rank]) active->activity.cap *= kept_beside_pass(active, m, &s->host[rank]);
    if (hk_both_read(s->traffic[rank])) adapt_to_reads(active, m, s->readers[rank]);
  }
  s->capacity[HK_RES_DRAM] = hk_resource_capacity(m, HK_RES_DRAM, mixed);
  for (int rank = 0; rank < s->graph->ranks; rank++) {
    const bool shared = load.kernels > 0 && hk_both_read(s->traffic[rank]);
    s->capacity[hk_slot(rank, HK_RES_H2D)] =
        kept_in * m->h2d.value * (shared ? m->shared_reads.value : 1);
  }
  return n;
}

/* Link traffic that delays the start of `kernel`: that of its GPU's other operations and, beside a
 * copy in, the kernel's own reads of host memory. Operations that end at this instant are ignored.
 * A copy that waits for its engine counts, because another copy is using the engine. */
static unsigned traffic_beside(const hk_sim_state *s, const hk_active_op *kernel) {
  const hk_op *ops = s->graph->ops;
  unsigned traffic = 0;
  for (int i = 0; i < s->n_running; i++) {
    const hk_active_op *active = &s->active[s->running[i]];
    const bool ends = active->due <= s->now && (active->fluid || ops[active->op].work <= 0);
    if (active == kernel || active->standing_by || ends) continue;
    if (ops[active->op].rank == ops[kernel->op].rank) traffic |= active->traffic;
  }
  return (traffic & HK_TRAFFIC_COPY_IN) != 0 ? traffic | kernel->traffic : traffic;
}

hk_ns hk_start_delay(const hk_sim_state *s, const hk_active_op *kernel) {
  return hk_launch_delay(s->machine, traffic_beside(s, kernel));
}
