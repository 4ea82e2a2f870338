/* SPDX-License-Identifier: GPL-3.0-or-later */
/* What each kind of operation asks of a machine when it runs alone: latency, highest rate, and use
 * of each resource per unit of work. What operations do to each other is in sim/contention.c and
 * sim/copy_turns.c. Together these files are the only ones in which the simulation of operations
 * reads a machine's rates; the event loop (sim/sim.c) reads none. docs/architecture.md derives the
 * bytes a parameter, docs/simulator.md has the table of demands. */
#include <math.h>

#include "core/graph/bytes.h"
#include "core/machine/team.h"
#include "sim/sim.h"
#include "sim/slowest.h"

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

static double dram_capacity(const hk_machine *m, bool mixed) {
  const double with_dma = fmin(m->dram_with_dma.value, hk_machine_limit(m, &m->dram_with_dma));
  return mixed ? with_dma : fmax(m->dram.value, with_dma);
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
      return dram_capacity(m, mixed);
    case HK_RES_DRAM_CPU:
      return m->dram.value;
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
  for (int u = 0; u < d->n_uses; u++) {
    if (d->uses[u].resource != resource) continue;
    d->uses[u].per_unit += per_unit;
    return;
  }
  d->uses[d->n_uses].resource = resource;
  d->uses[d->n_uses].per_unit = per_unit;
  d->n_uses++;
}

static hk_demand at_rate(hk_ns latency, double rate) {
  return (hk_demand){.latency = latency,
                     .beside_compute = 1,
                     .cap = rate,
                     .launched = INFINITY,
                     .beside = 1,
                     .weight = rate,
                     .weight_crowded = rate};
}

/* Host memory traffic: `bytes` per unit of work, weighted as `counted` on the resource that all
 * share. The pages of an unbound rank are in few memory domains, which its team and its copies
 * share. */
static void use_host(hk_demand *d, const hk_graph *graph, double bytes, double counted) {
  use(d, HK_RES_DRAM, counted);
  if (graph->cores_unbound) use(d, HK_RES_PAGES, bytes);
}

/* Copies and mapped access: `in` and `out` bytes over PCIe per unit of work, each of which passes
 * through host memory `passes` times. */
static void use_pcie(hk_demand *d, const hk_graph *graph, const hk_machine *m, double in,
                     double out, double passes) {
  const double costs = (in * m->h2d_cost.value + out * m->d2h_cost.value) /
                       (graph->cores_unbound ? m->dram_unbound.value : 1);
  d->weight = d->weight_crowded = d->cap * m->dma_weight.value;
  if (in > 0) {
    d->traffic |= HK_TRAFFIC_IN;
    use(d, HK_RES_H2D, in);
    use(d, HK_RES_FABRIC_H2D, in);
  }
  if (out > 0) {
    d->traffic |= HK_TRAFFIC_OUT;
    use(d, HK_RES_D2H, out);
    use(d, HK_RES_FABRIC_D2H, out);
  }
  use(d, HK_RES_PCIE, in + out);
  use(d, HK_RES_FABRIC, in + out);
  use_host(d, graph, passes * (in + out), passes * costs);
}

/* Makes every unit the work of 1 / rate units: `rate` of the speed alone and wherever
 * resources are shared, whichever of them limits it. */
static void scale_work(hk_demand *d, double rate) {
  d->cap *= rate;
  d->weight *= rate;
  d->weight_crowded *= rate;
  for (int u = 0; u < d->n_uses; u++) d->uses[u].per_unit /= rate;
}

static hk_demand on_gpu(const hk_machine *m, double cap, double hbm_per_unit) {
  hk_demand d = at_rate((hk_ns)m->gpu_launch.value, cap);
  use(&d, HK_RES_GPU, 1 / cap);
  if (hbm_per_unit > 0) use(&d, HK_RES_HBM, hbm_per_unit);
  return d;
}

/* Matrix products at `rate`, in flops a second. Those of stored attention scores have few
 * operations a byte (head_dim), so the traffic in GPU memory can limit them; the softmax between is
 * limited by it. */
static hk_demand computation(const hk_machine *m, const hk_op *op, double rate) {
  if (op->score_bytes == 0) return on_gpu(m, rate, 0);
  const double flops = (double)op->work, hbm = m->gpu_hbm.value;
  const double score_flops = fmin((double)op->score_flops, flops);
  const double products = fmax(score_flops / rate, (double)op->score_bytes / hbm);
  const double seconds = (flops - score_flops) / rate + products + (double)op->softmax_bytes / hbm;
  return on_gpu(m, flops / seconds, (double)(op->score_bytes + op->softmax_bytes) / flops);
}

/* Computation with a measured time, which includes its launches if they were not measured. */
static hk_demand measured(const hk_op *op) {
  const double cap = (double)op->work / ((double)op->profile.time / 1e9);
  hk_demand d = at_rate(0, cap);
  use(&d, HK_RES_GPU, 1 / cap);
  return d;
}

/* The compute stream also reads and writes these bytes of GPU memory, before or after. Example: 10
 * ms of products and 2 GB copied at 2 TB/s: 12 ms. */
static void add_copies(hk_demand *d, const hk_machine *m, const hk_op *op) {
  const double bytes = 2 * (double)(op->copied + op->cast), work = (double)op->work;
  if (bytes == 0) return;
  const double alone = work / d->cap;
  scale_work(d, alone / (alone + bytes / m->gpu_hbm.value));
  use(d, HK_RES_HBM, bytes / work);
}

/* FSDP2's hooks in a pass of a block, as a share of forward's launches. Example: if half of the
 * host's time in forward is launches, the hooks take as long as these. */
static double hooks(const hk_machine *m) {
  return 1 / m->fsdp_launches.value - 1;
}

/* Launches of `layers`, and what FSDP2's hooks count as. A figure that was fitted is of published
 * runs, and has their framework's hooks in it. */
static double launched_layers(const hk_op *op, const hk_machine *m, double layers) {
  const bool hooked = op->hooked && m->layer_launch.origin != HK_ORIGIN_FITTED;
  return layers + (hooked ? hooks(m) : 0);
}

/* Ranks that wait for each other at the collectives of a block. */
static int sharing(const hk_graph *graph) {
  return graph->world / (graph->tp * (graph->pp > 1 ? graph->pp : 1));
}

/* Forward or backward. The host queues a block's kernels, and hands gradients over, while the GPU
 * computes, so the block takes the longer of both. Example: 3 ms of the GPU, 2.5 ms of launches and
 * 7 gradients of 0.1 ms: 3.2 ms. If FSDP2 shards the block, its hooks come on top, and all ranks
 * wait for the slowest (hk_slowest_rate). */
static hk_demand pass(const hk_graph *graph, const hk_op *op, const hk_machine *m,
                      double efficiency) {
  hk_demand d =
      op->profile.time > 0 ? measured(op) : computation(m, op, m->gpu_flops.value * efficiency);
  add_copies(&d, m, op);
  const double layers = launched_layers(op, m, op->profile.layers);
  if (op->profile.launch <= 0 && layers == 0) return d;
  const double ns = (double)op->profile.launch + layers * m->layer_launch.value +
                    op->profile.handed * m->handover.value + hooks(m) * (double)op->profile.sharded;
  d.computed = d.cap;
  d.launched = (double)op->work / (ns / 1e9);
  d.among = op->profile.sharded > 0 || op->hooked ? sharing(graph) : 1;
  d.beside = d.among > 1 && op->kind == HK_OP_FORWARD ? m->forward_beside.value : 1;
  d.cap = d.weight = d.weight_crowded =
      hk_slowest_rate(d.computed, d.launched, m->launch_spread.value, d.among);
  return d;
}

/* One kernel launch that is limited by GPU memory. */
static hk_demand kernel_on_gpu(const hk_machine *m, double bytes_per_unit) {
  hk_demand d = on_gpu(m, m->gpu_hbm.value / bytes_per_unit, bytes_per_unit);
  d.fetched = true;
  return d;
}

static hk_demand update_on_gpu(const hk_machine *m, double bytes_per_unit) {
  hk_demand d = kernel_on_gpu(m, bytes_per_unit);
  d.slowed = true;
  return d;
}

static hk_demand copy_in(const hk_graph *graph, const hk_machine *m, double rate, double passes) {
  hk_demand d = at_rate((hk_ns)m->h2d_latency.value, rate);
  use_pcie(&d, graph, m, 1, 0, passes);
  d.traffic |= HK_TRAFFIC_COPY_IN;
  d.engine = HK_TRAFFIC_IN;
  return d;
}

/* Weights fetched by a GPU kernel of few blocks: it does not wait for a copy engine and leaves the
 * GPU to other kernels. */
static hk_demand pulled(const hk_graph *graph, const hk_machine *m) {
  const double rate = m->pull.value > 0 ? fmin(m->h2d.value, m->pull.value) : m->h2d.value;
  hk_demand d = at_rate((hk_ns)m->gpu_launch.value, rate);
  use_pcie(&d, graph, m, 1, 0, 1);
  d.traffic |= HK_TRAFFIC_KERNEL_IN;
  d.fetched = true;
  return d;
}

/* Writes of a copy out are posted: they do not wait for memory latency, so copies out can have a
 * larger weight than copies in, on a link alone (pcie.d2h_priority) and in host memory that is
 * saturated (dram.d2h_priority). */
static hk_demand copy_out(const hk_graph *graph, const hk_machine *m, double rate, double passes) {
  hk_demand d = at_rate((hk_ns)m->d2h_latency.value, rate);
  use_pcie(&d, graph, m, 0, 1, passes);
  d.weight *= m->pcie_d2h_priority.value;
  d.weight_crowded *= m->d2h_priority.value;
  d.traffic |= HK_TRAFFIC_COPY_OUT;
  d.engine = HK_TRAFFIC_OUT;
  return d;
}

/* Pageable memory adds the driver's latency. The driver copies in small parts, so other copies get
 * their turns between them. */
static hk_demand pageable(hk_demand d, const hk_quantity *latency) {
  d.latency += (hk_ns)latency->value;
  d.engine = 0;
  return d;
}

/* Rate of a pageable copy of weights. The CPU has just written them, so its caches may hold them.
 */
static double pageable_rate(const hk_graph *graph, const hk_machine *m, double bytes) {
  const bool cached = !graph->weights_cold && m->h2d_cached.value > 0 && bytes <= m->cached.value;
  return cached ? m->h2d_cached.value : m->h2d_pageable.value;
}

static hk_demand mapped(const hk_graph *graph, const hk_machine *m) {
  const double state = hk_state_per_param(graph->optimizer);
  hk_demand d = at_rate((hk_ns)m->gpu_launch.value, m->mapped.value / (2 * state));
  use_pcie(&d, graph, m, state, state, 1);
  d.traffic |= HK_TRAFFIC_KERNEL_IN;
  d.fetched = true;
  return d;
}

/* Share of its rate that a team keeps while the framework computes: that of a team which leaves
 * hk_framework_cores cores free. Example: 15 threads on a rank's 16 cores run as 13 do. A team that
 * is not bound to cores uses those of other ranks, too. */
static double kept_beside_framework(const hk_graph *graph, const hk_machine *m,
                                    const hk_quantity *scale, double threads) {
  const int ranks = graph->cores_unbound ? 1 : graph->ranks * graph->multiplicity;
  const int share = (int)m->cores.value / (ranks > 0 ? ranks : 1);
  const double left = share - hk_framework_cores(share);
  if (left < 1 || threads <= left) return 1;
  const double n0 = hk_cpu_thread_scale(m, scale);
  return expm1(-left / n0) / expm1(-threads / n0);
}

/* Much of the traffic of a team that is not bound to cores is remote, so its bytes count more. */
static hk_demand on_cpu(const hk_graph *graph, const hk_machine *m, const hk_quantity *saturated,
                        const hk_quantity *scale, double threads, double bytes) {
  const double rate = hk_cpu_rate(m, saturated, scale, threads);
  const double counted = graph->cores_unbound ? bytes / m->dram_unbound.value : bytes;
  hk_demand d = at_rate((hk_ns)hk_cpu_start(m, threads), rate);
  d.traffic = HK_TRAFFIC_CPU;
  d.beside_compute = kept_beside_framework(graph, m, scale, threads);
  use(&d, HK_RES_CORES, threads / rate);
  use(&d, HK_RES_DRAM_CPU, counted);
  use_host(&d, graph, bytes, counted);
  return d;
}

/* A ring collective over `size` ranks, `local` of them on one node, in `rounds` passes of size - 1
 * steps. Each step takes the latency of the slowest link. One rank in `local` has its successor on
 * another node and sends over the network. The ring's kernels take a share of the GPU. Not
 * modelled: trees, several rings over several network cards, in-network reduction. */
static hk_demand collective(const hk_graph *graph, const hk_machine *m, int size, int local,
                            int rounds) {
  const bool crosses = graph->nodes > 1 && size > local;
  const double step = crosses ? m->net_latency.value : m->nvlink_latency.value;
  const double rate = crosses ? fmin(m->nvlink.value, m->net.value) : m->nvlink.value;
  hk_demand d = at_rate((hk_ns)(rounds * (size - 1) * step), rate);
  use(&d, HK_RES_NVLINK, 1);
  if (m->collective_share.value > 0)
    use(&d, HK_RES_GPU, m->collective_share.value / m->nvlink.value);
  if (crosses) use(&d, HK_RES_NETWORK, 1.0 / local);
  return d;
}

/* From one pipeline stage to the next. Stages are the outermost groups of ranks (Megatron-LM), so
 * with several nodes a neighbour is on another one. */
static hk_demand stage_send(const hk_graph *graph, const hk_machine *m) {
  const bool crosses = graph->nodes > 1;
  hk_demand d = at_rate((hk_ns)(crosses ? m->net_latency.value : m->nvlink_latency.value),
                        crosses ? fmin(m->nvlink.value, m->net.value) : m->nvlink.value);
  if (crosses)
    use(&d, HK_RES_NETWORK, 1);
  else
    use(&d, HK_RES_NVLINK, 1);
  return d;
}

/* Those that communicate: other jobs of the node do not. */
static int gpus_of_job(const hk_graph *graph) {
  return graph->world / graph->nodes;
}

/* Every rank of an expert-parallel group sends as many bytes to each other one. The group's ranks
 * are neighbours (Megatron-Core), so of its ep - 1 peers a rank has as many on its node as fit
 * there; links within the node and the network carry their parts at the same time. */
static hk_demand all_to_all(const hk_graph *graph, const hk_machine *m) {
  const int local = (int)hk_min(graph->ep, gpus_of_job(graph));
  const double out = (double)(graph->ep - local) / (graph->ep > 1 ? graph->ep - 1 : 1),
               in = 1 - out;
  const double inside = in > 0 ? m->nvlink.value / in : INFINITY;
  const double outside = out > 0 ? m->net.value / out : INFINITY;
  hk_demand d = at_rate((hk_ns)(out > 0 ? m->net_latency.value : m->nvlink_latency.value),
                        fmin(inside, outside));
  if (in > 0) use(&d, HK_RES_NVLINK, in);
  if (m->collective_share.value > 0)
    use(&d, HK_RES_GPU, m->collective_share.value / m->nvlink.value);
  if (out > 0) use(&d, HK_RES_NETWORK, out);
  return d;
}

/* A gather or reduction of what data-parallel ranks have in common, or the ranks with the same
 * experts. `apart`: of neighbours in rank order, one of so many is in the group. */
static hk_demand among_ranks(const hk_graph *graph, const hk_machine *m, int size, int apart) {
  const int gpus = gpus_of_job(graph);
  return collective(graph, m, size, (int)hk_max(1, hk_min(size, gpus / apart)), 1);
}

/* The machine's own rate and thread scale of a format's update. */
typedef struct {
  const hk_quantity *limit, *scale; /* NULL: it has none */
} update_curve;

static update_curve curve_of(const hk_machine *m, hk_optimizer optimizer) {
  if (optimizer == HK_OPTIMIZER_8BIT && m->cpu_adamw_8bit.value > 0)
    return (update_curve){&m->cpu_adamw_8bit, &m->cpu_adamw_8bit_threads};
  if (optimizer == HK_OPTIMIZER_8BIT_SPLIT && m->cpu_adamw_8bit_split.value > 0)
    return (update_curve){&m->cpu_adamw_8bit_split, &m->cpu_adamw_8bit_split_threads};
  return (update_curve){0};
}

const hk_quantity *hk_update_limit(const hk_machine *m, hk_optimizer optimizer) {
  return curve_of(m, optimizer).limit;
}

double hk_update_most(const hk_machine *m, hk_optimizer optimizer, double threads) {
  const update_curve measured = curve_of(m, optimizer);
  if (measured.limit != NULL) return hk_cpu_rate(m, measured.limit, measured.scale, threads);
  const double thread = hk_optimizer_info_of(optimizer)->thread;
  const double alone = hk_cpu_rate(m, &m->cpu_adamw, &m->cpu_adamw_threads, 1);
  return thread > 0 ? thread * threads * alone : INFINITY;
}

double hk_update_rate(const hk_machine *m, hk_optimizer optimizer, double threads) {
  return fmin(
      hk_update_most(m, optimizer, threads),
      hk_cpu_rate(m, &m->cpu_adamw, &m->cpu_adamw_threads, threads) * hk_update_speed(optimizer));
}

/* hocket's fused update; the team may lend a thread to queueing. DeepSpeed's kernels never do. The
 * rate of an optimizer other than AdamW is AdamW's, in proportion to memory traffic. */
static hk_demand adamw_on_cpu(const hk_graph *graph, const hk_machine *m, const hk_op *op) {
  const int team = hk_team_size(graph, op->threads, (int)m->cores.value);
  hk_demand d = on_cpu(graph, m, &m->cpu_adamw, &m->cpu_adamw_threads, team, HK_BYTES_ADAMW);
  if (op->ahead) scale_work(&d, m->cpu_adamw_ahead.value);
  if (graph->optimizer == HK_OPTIMIZER_FP32) return d;
  scale_work(&d, hk_update_speed(graph->optimizer));
  /* Arithmetic limits the team, not the bytes of a parameter: all its cores are in use. */
  const double most = hk_update_most(m, graph->optimizer, team);
  for (int u = 0; most < d.cap && u < d.n_uses; u++)
    if (d.uses[u].resource == HK_RES_CORES) d.uses[u].per_unit *= d.cap / most;
  d.cap = fmin(d.cap, most);
  return d;
}

static hk_demand only_latency(double ns) {
  return (hk_demand){.latency = (hk_ns)ns,
                     .beside_compute = 1,
                     .cap = INFINITY,
                     .launched = INFINITY,
                     .beside = 1,
                     .weight = 1,
                     .weight_crowded = 1};
}

bool hk_demand_is_same(const hk_op *a, const hk_op *b) {
  return a->kind == b->kind && a->work == b->work && a->threads == b->threads &&
         a->profile.time == b->profile.time && a->profile.launch == b->profile.launch &&
         a->profile.handed == b->profile.handed && a->profile.sharded == b->profile.sharded &&
         a->profile.layers == b->profile.layers && a->score_bytes == b->score_bytes &&
         a->copied == b->copied && a->cast == b->cast && a->hooked == b->hooked &&
         a->experts == b->experts && a->ahead == b->ahead;
}

const hk_demand *hk_demand_again(hk_demand_memo *memo, const hk_graph *graph, const hk_op *op,
                                 const hk_machine *machine) {
  const size_t at = (size_t)op->lane % (sizeof memo->slots / sizeof *memo->slots);
  const hk_op *before = memo->slots[at].op;
  memo->slots[at].op = op;
  if (before == NULL || before->rank != op->rank || before->phase != op->phase ||
      before->lane != op->lane || !hk_demand_is_same(before, op))
    memo->slots[at].demand = hk_demand_of(graph, op, machine);
  return &memo->slots[at].demand;
}

/* The norm, and clipping if torch does it. */
static hk_demand barrier(const hk_graph *graph, const hk_machine *m, const hk_op *op) {
  hk_demand d = graph->world > 1 ? collective(graph, m, graph->world, gpus_of_job(graph), 2)
                                 : only_latency(m->gpu_launch.value);
  d.latency += (hk_ns)(2e9 * (double)op->copied / m->gpu_hbm.value);
  return d;
}

hk_demand hk_demand_of(const hk_graph *graph, const hk_op *op, const hk_machine *m) {
  const int dp = sharing(graph);
  switch (op->kind) {
    case HK_OP_LAUNCH:
      return only_latency(m->layer_launch.value * launched_layers(op, m, (double)op->work));
    case HK_OP_MEMORY_REPORT: {
      const double others = graph->ranks * graph->multiplicity - 1;
      return only_latency(m->report.value * (1 + m->report_crowding.value * others));
    }
    case HK_OP_CACHE_RELEASE:
      return only_latency(m->cache_release.value);
    case HK_OP_ALL_GATHER:
    case HK_OP_REDUCE_SCATTER:
      return op->experts ? among_ranks(graph, m, graph->tp * dp / graph->ep, graph->ep)
                         : among_ranks(graph, m, dp, graph->tp);
    case HK_OP_TP_ALL_REDUCE:
      return collective(graph, m, graph->tp, graph->tp, 2);
    case HK_OP_STAGE_SEND:
      return stage_send(graph, m);
    case HK_OP_ALL_TO_ALL:
      return all_to_all(graph, m);
    case HK_OP_FORWARD:
      return pass(graph, op, m, m->gpu_efficiency.value);
    case HK_OP_BACKWARD:
      return pass(graph, op, m, m->gpu_backward_efficiency.value);
    case HK_OP_GRAD_BUCKET:
      return on_gpu(m, m->gpu_hbm.value / HK_BYTES_GRAD_BUCKET, HK_BYTES_GRAD_BUCKET);
    case HK_OP_GRAD_CAST_GPU:
      return kernel_on_gpu(m, HK_BYTES_CAST);
    case HK_OP_WEIGHT_PLACE:
      return kernel_on_gpu(m, 2); /* each byte is read and written */
    case HK_OP_GRAD_SUM_D2H:
    case HK_OP_GRAD_D2H:
    case HK_OP_STATE_D2H:
      return copy_out(graph, m, m->d2h.value, 1);
    case HK_OP_GRAD_D2H_PAGEABLE:
      /* Three passes over host memory: written to the driver's pinned buffer, read, written again.
       */
      return pageable(copy_out(graph, m, fmin(m->d2h.value, m->d2h_pageable.value), 3),
                      &m->d2h_pageable_latency);
    case HK_OP_BARRIER:
      return barrier(graph, m, op);
    case HK_OP_HOST_WAIT:
      return only_latency(0);
    case HK_OP_STEP_OVERHEAD:
      return only_latency(op->hooked ? m->fsdp_step.value : m->step_overhead.value);
    case HK_OP_SUBGROUP_OVERHEAD:
      return only_latency(m->subgroup_overhead.value);
    case HK_OP_UNSCALE_CPU:
      return on_cpu(graph, m, &m->cpu_unscale, &m->cpu_unscale_threads, op->threads,
                    HK_BYTES_UNSCALE);
    case HK_OP_ADAMW_CPU_FP32:
      return on_cpu(graph, m, &m->cpu_adamw_fp32, &m->cpu_adamw_fp32_threads, op->threads,
                    HK_BYTES_ADAMW_FP32);
    case HK_OP_CAST_CPU:
    case HK_OP_GRAD_CAST_CPU:
      return on_cpu(graph, m, &m->cpu_cast, &m->cpu_cast_threads, op->threads, HK_BYTES_CAST);
    case HK_OP_ADAMW_CPU:
      return adamw_on_cpu(graph, m, op);
    case HK_OP_WEIGHT_H2D:
      return graph->weights_pulled ? pulled(graph, m) : copy_in(graph, m, m->h2d.value, 1);
    case HK_OP_GRAD_SUM_H2D:
    case HK_OP_STATE_H2D:
      return copy_in(graph, m, m->h2d.value, 1);
    case HK_OP_WEIGHT_H2D_PAGEABLE:
      /* One pass: the driver's pinned buffer stays in a cache. */
      return pageable(
          copy_in(graph, m, fmin(m->h2d.value, pageable_rate(graph, m, (double)op->work)), 1),
          &m->h2d_pageable_latency);
    case HK_OP_ADAMW_GPU:
      return update_on_gpu(
          m, graph->grads_widened ? HK_BYTES_ADAMW_WIDENED : hk_update_traffic(graph->optimizer));
    case HK_OP_NEWTON_SCHULZ:
      return on_gpu(m, m->gpu_flops.value * m->gpu_efficiency.value, 0);
    case HK_OP_ADAMW_MAPPED:
      return mapped(graph, m);
    case HK_OP_KIND_COUNT:
    default:
      return only_latency(0);
  }
}
