/* SPDX-License-Identifier: GPL-3.0-or-later */
/* What each kind of operation asks of a machine: the only place where operations meet rates.
 * Bytes of host memory traffic a parameter are DESIGN.md section 4's. */
#include <math.h>

#include "sim/sim.h"

#define RESOURCE_NAME(name, text, unit, scope, meaning) [HK_RES_##name] = text,
static const char *const names[] = {HK_RESOURCES(RESOURCE_NAME)};
#define RESOURCE_UNIT(name, text, unit, scope, meaning) [HK_RES_##name] = unit,
static const char *const units[] = {HK_RESOURCES(RESOURCE_UNIT)};
#define RESOURCE_MEANING(name, text, unit, scope, meaning) [HK_RES_##name] = meaning,
static const char *const meanings[] = {HK_RESOURCES(RESOURCE_MEANING)};
enum { R, N };
#define RESOURCE_SCOPE(name, text, unit, scope, meaning) [HK_RES_##name] = scope,
static const char scopes[] = {HK_RESOURCES(RESOURCE_SCOPE)};

const char *hk_resource_name(hk_resource resource) {
  return names[resource];
}
const char *hk_resource_unit(hk_resource resource) {
  return units[resource];
}
const char *hk_resource_meaning(hk_resource resource) {
  return meanings[resource];
}
bool hk_resource_is_node(hk_resource resource) {
  return scopes[resource] == N;
}

double hk_resource_capacity(const hk_machine *m, hk_resource resource, bool mixed) {
  switch (resource) {
    case HK_RES_GPU:
      return 1;
    case HK_RES_HBM:
      return m->gpu_hbm.value;
    case HK_RES_H2D:
      return m->h2d.value;
    case HK_RES_D2H:
      return m->d2h.value;
    case HK_RES_PCIE:
      return m->duplex.value;
    case HK_RES_NVLINK:
      return m->nvlink.value;
    case HK_RES_PAGES:
      return m->dram_process.value;
    case HK_RES_DRAM:
      return mixed ? fmin(m->dram_with_dma.value, m->dram.value) : m->dram.value;
    case HK_RES_FABRIC_H2D:
      return m->fabric_h2d.value;
    case HK_RES_FABRIC_D2H:
      return m->fabric_d2h.value;
    case HK_RES_FABRIC:
      return m->fabric_duplex.value;
    case HK_RES_CORES:
      return m->cores.value;
    case HK_RES_NETWORK:
      return m->net.value;
    case HK_RES_COUNT:
    default:
      return 0;
  }
}

static void use(hk_demand *d, hk_resource resource, double per_unit) {
  d->uses[d->n_uses].resource = resource;
  d->uses[d->n_uses].per_unit = per_unit;
  d->n_uses++;
}

/* Copies and mapped access: `in` and `out` bytes over PCIe and `dram` bytes of host memory traffic
 * a unit of work. */
static void use_pcie(hk_demand *d, const hk_machine *m, double in, double out, double dram) {
  d->traffic = HK_TRAFFIC_DMA;
  d->weight = d->cap * m->dma_weight.value;
  if (in > 0) {
    use(d, HK_RES_H2D, in);
    use(d, HK_RES_FABRIC_H2D, in);
  }
  if (out > 0) {
    use(d, HK_RES_D2H, out);
    use(d, HK_RES_FABRIC_D2H, out);
  }
  use(d, HK_RES_PCIE, in + out);
  use(d, HK_RES_FABRIC, in + out);
  use(d, HK_RES_DRAM, dram);
}

static hk_demand on_gpu(const hk_machine *m, double cap, double hbm_per_unit) {
  hk_demand d = {.latency = (hk_ns)m->gpu_launch.value, .cap = cap, .weight = cap};
  use(&d, HK_RES_GPU, 1 / cap);
  if (hbm_per_unit > 0) use(&d, HK_RES_HBM, hbm_per_unit);
  return d;
}

static hk_demand copy(const hk_machine *m, double cap, double in, double out, double dram) {
  hk_demand d = {.latency = (hk_ns)m->gpu_launch.value, .cap = cap};
  use_pcie(&d, m, in, out, dram);
  return d;
}

static hk_demand on_cpu(double rate, double threads, double dram) {
  hk_demand d = {.cap = rate, .weight = rate, .traffic = HK_TRAFFIC_CPU};
  use(&d, HK_RES_CORES, threads / rate);
  use(&d, HK_RES_DRAM, dram);
  return d;
}

/* A ring over `size` ranks, `local` of which a node holds. Each of its steps waits for the slowest
 * link. A rank in `local` has its successor on another node and sends over the network. Its kernels
 * take a share of the GPU from computation. What that leaves out: trees, several rings over several
 * network cards, in-network reduction. */
static hk_demand collective(const hk_graph *graph, const hk_machine *m, int size, int local,
                            int rounds) {
  const bool crosses = graph->nodes > 1 && size > local;
  const double step = crosses ? m->net_latency.value : m->nvlink_latency.value;
  const double rate = crosses ? fmin(m->nvlink.value, m->net.value) : m->nvlink.value;
  hk_demand d = {.latency = (hk_ns)(rounds * (size - 1) * step), .cap = rate, .weight = rate};
  use(&d, HK_RES_NVLINK, 1);
  if (m->collective_share.value > 0)
    use(&d, HK_RES_GPU, m->collective_share.value / m->nvlink.value);
  if (crosses) use(&d, HK_RES_NETWORK, 1.0 / local);
  return d;
}

static hk_demand only_latency(double ns) {
  return (hk_demand){.latency = (hk_ns)ns, .cap = INFINITY, .weight = 1};
}

static hk_demand demand_of(const hk_graph *graph, const hk_op *op, const hk_machine *m) {
  const int dp = graph->world / graph->tp, gpus = graph->ranks * graph->multiplicity;
  const double threads = op->threads;
  switch (op->kind) {
    case HK_OP_LAUNCH:
      return only_latency(m->layer_launch.value * (double)op->work);
    case HK_OP_MEMORY_REPORT: {
      const double others = graph->ranks * graph->multiplicity - 1;
      return only_latency(m->report.value * (1 + m->report_crowding.value * others));
    }
    case HK_OP_CACHE_RELEASE:
      return only_latency(m->cache_release.value);
    case HK_OP_ALL_GATHER:
    case HK_OP_REDUCE_SCATTER:
      return collective(graph, m, dp, gpus / graph->tp, 1);
    case HK_OP_TP_ALL_REDUCE:
      return collective(graph, m, graph->tp, graph->tp, 2);
    case HK_OP_FORWARD:
      return on_gpu(m, m->gpu_flops.value * m->gpu_efficiency.value, 0);
    case HK_OP_BACKWARD:
      return on_gpu(m, m->gpu_flops.value * m->gpu_backward_efficiency.value, 0);
    case HK_OP_GRAD_BUCKET:
      /* Copied into the bucket, divided by the ranks and packed for the reduction: three passes. */
      return on_gpu(m, m->gpu_hbm.value / 12, 12);
    case HK_OP_GRAD_CAST_GPU:
      return on_gpu(m, m->gpu_hbm.value / 6, 6);
    case HK_OP_GRAD_SUM_D2H:
    case HK_OP_GRAD_D2H:
      return copy(m, m->d2h.value, 0, 1, 1);
    case HK_OP_GRAD_D2H_PAGEABLE:
      /* To the driver's pinned buffer, read, written where it belongs. */
      return copy(m, fmin(m->d2h.value, m->d2h_pageable.value), 0, 1, 3);
    case HK_OP_BARRIER:
      return graph->world > 1 ? collective(graph, m, graph->world, gpus, 2)
                              : only_latency(m->gpu_launch.value);
    case HK_OP_HOST_WAIT:
      return only_latency(0);
    case HK_OP_STEP_OVERHEAD:
      return only_latency(m->step_overhead.value);
    case HK_OP_SUBGROUP_OVERHEAD:
      return only_latency(m->subgroup_overhead.value);
    case HK_OP_UNSCALE_CPU:
      return on_cpu(hk_cpu_rate(m, m->cpu_unscale.value, threads), threads, 8);
    case HK_OP_ADAMW_CPU_FP32:
      return on_cpu(hk_cpu_rate(m, m->cpu_adamw_fp32.value, threads), threads, 28);
    case HK_OP_CAST_CPU:
    case HK_OP_GRAD_CAST_CPU:
      return on_cpu(hk_cpu_rate(m, m->cpu_cast.value, threads), threads, 6);
    case HK_OP_ADAMW_CPU:
      return on_cpu(hk_cpu_rate(m, m->cpu_adamw.value, threads), threads, 28);
    case HK_OP_GRAD_SUM_H2D:
    case HK_OP_WEIGHT_H2D:
    case HK_OP_STATE_H2D:
      return copy(m, m->h2d.value, 1, 0, 1);
    case HK_OP_WEIGHT_H2D_PAGEABLE:
      /* Read by the driver into its pinned buffer, which stays in a cache. */
      return copy(m, fmin(m->h2d.value, m->h2d_pageable.value), 1, 0, 1);
    case HK_OP_STATE_D2H:
      return copy(m, m->d2h.value, 0, 1, 1);
    case HK_OP_ADAMW_GPU:
      return on_gpu(m, m->gpu_hbm.value / 28, 28);
    case HK_OP_ADAMW_MAPPED:
      return copy(m, m->mapped.value / 24, 12, 12, 24);
    case HK_OP_KIND_COUNT:
    default:
      return only_latency(0);
  }
}

hk_demand hk_demand_of(const hk_graph *graph, const hk_op *op, const hk_machine *m) {
  hk_demand d = demand_of(graph, op, m);
  if (!graph->cores_unbound) return d;
  /* An unbound process's pages crowd where they were first touched, for its team and its copies;
   * and a team that roams over all cores goes far for them, so that its bytes count more. */
  for (int u = 0, n = d.n_uses; u < n; u++) {
    if (d.uses[u].resource != HK_RES_DRAM) continue;
    use(&d, HK_RES_PAGES, d.uses[u].per_unit);
    if (d.traffic == HK_TRAFFIC_CPU) d.uses[u].per_unit /= m->dram_unbound.value;
  }
  return d;
}
