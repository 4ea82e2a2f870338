/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Replays a probe: builds a task graph from its loads, simulates it and computes the rates. */
#include "calib/probes/replay.h"

#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "sim/sim.h"

#define LASTING_S 0.05 /* length of a replay by the guessed rates */
#define LEAST_OPS 12   /* of every load, so that its first and last have little weight */
#define MOST_OPS  2000 /* of any load; this limit wins over LEAST_OPS */

/* -- Lanes ------------------------------------------------------------------------------------- */

/* Lane of a load. Loads on different streams of the stand must not wait for each other here either;
 * hk_replay_can refuses probes in which loads would share a lane. */
static hk_lane_kind lane_of(hk_load_kind kind) {
  switch (kind) {
    case HK_LOAD_H2D:
      return HK_LANE_H2D;
    case HK_LOAD_D2H:
      return HK_LANE_D2H;
    case HK_LOAD_H2D_PAGEABLE:
    case HK_LOAD_H2D_CACHED:
    case HK_LOAD_PULL:
      return HK_LANE_UP;
    case HK_LOAD_D2H_PAGEABLE:
      return HK_LANE_FLUSH;
    case HK_LOAD_MAPPED:
      return HK_LANE_UPDATE;
    default:
      return hk_load_is(kind, HK_TRAIT_CPU) ? HK_LANE_CPU : HK_LANE_GPU;
  }
}

bool hk_replay_can(const hk_probe *probe) {
  for (int i = 0; i < probe->n_loads; i++) {
    const hk_load *load = &probe->loads[i];
    if (hk_load_op(load->kind) == HK_OP_KIND_COUNT) return false;
    for (int j = 0; j < i; j++) {
      const hk_load *other = &probe->loads[j];
      if (other->gpu == load->gpu && lane_of(other->kind) == lane_of(load->kind)) return false;
    }
  }
  return probe->n_loads > 0;
}

static hk_optimizer state_of(hk_load_kind kind) {
  return kind == HK_LOAD_ADAMW_8BIT         ? HK_OPTIMIZER_8BIT
         : kind == HK_LOAD_ADAMW_8BIT_SPLIT ? HK_OPTIMIZER_8BIT_SPLIT
                                            : HK_OPTIMIZER_FP32;
}

/* -- The graph --------------------------------------------------------------------------------- */

static hk_status add_load(const hk_load *load, double work, hk_graph *graph, hk_error *err) {
  const int32_t lane = hk_graph_lane(graph, lane_of(load->kind), load->gpu, err);
  if (lane < 0) return err->status;
  const int64_t piece = hk_load_operation(load);
  for (int64_t left = llround(work); left > 0; left -= piece) {
    const hk_op op = {.kind = hk_load_op(load->kind),
                      .phase = HK_PHASE_UPDATE,
                      .lane = lane,
                      .rank = load->gpu,
                      .micro = -1,
                      .block = HK_BLOCK_NONE,
                      .subgroup = -1,
                      .piece = -1,
                      .work = left < piece ? left : piece,
                      .threads = load->threads,
                      .ahead = load->kind == HK_LOAD_ADAMW_AHEAD};
    if (hk_graph_add(graph, &op, NULL, 0, err) < 0) return err->status;
  }
  return HK_OK;
}

hk_status hk_replay_graph(const hk_probe *probe, const double *work, hk_graph *graph,
                          hk_error *err) {
  *graph = (hk_graph){
      .multiplicity = 1, .nodes = 1, .tp = 1, .optimizer = state_of(probe->loads[0].kind)};
  if (!hk_replay_can(probe))
    return hk_fail(err, HK_INPUT, "probe '%s': the simulator has no operation for one of its loads",
                   probe->name);
  for (int i = 0; i < probe->n_loads; i++) {
    if (graph->ranks <= probe->loads[i].gpu) graph->ranks = probe->loads[i].gpu + 1;
    graph->weights_pulled |= probe->loads[i].kind == HK_LOAD_PULL;
    graph->weights_cold |= probe->loads[i].kind == HK_LOAD_H2D_PAGEABLE;
  }
  graph->world = graph->ranks;
  hk_status status = HK_OK;
  for (int i = 0; status == HK_OK && i < probe->n_loads; i++)
    status = add_load(&probe->loads[i], work[i], graph, err);
  if (status != HK_OK) hk_graph_free(graph);
  return status;
}

/* -- Amounts of work --------------------------------------------------------------------------- */

static double lasting(const hk_probe *probe, const double *guess) {
  double seconds = LASTING_S, most = INFINITY;
  for (int i = 0; i < probe->n_loads; i++) {
    const double one = (double)hk_load_operation(&probe->loads[i]) / guess[i];
    seconds = fmax(seconds, LEAST_OPS * one);
    most = fmin(most, MOST_OPS * one);
  }
  return fmin(seconds, most);
}

/* Amounts of work: whole operations for WINDOW probes, exact shares of the total for WHOLE ones. */
static void choose_work(const hk_probe *probe, const double *guess, double *work) {
  const double seconds = lasting(probe, guess);
  double total = 0, shares = 0;
  for (int i = 0; i < probe->n_loads; i++) {
    total += guess[i] * seconds;
    shares += probe->loads[i].share;
  }
  for (int i = 0; i < probe->n_loads; i++) {
    const double piece = (double)hk_load_operation(&probe->loads[i]);
    work[i] = probe->mode == HK_PROBE_WHOLE ? fmax(1, total * probe->loads[i].share / shares)
                                            : piece * ceil(guess[i] * seconds / piece);
  }
}

/* -- Simulation -------------------------------------------------------------------------------- */

/* The graph has the operations load by load, each load's in the order of its lane. */
static hk_status read_rates(const hk_probe *probe, const hk_graph *graph, const hk_timeline *t,
                            double *rates, hk_error *err) {
  hk_stretch *all = malloc(graph->n_ops * sizeof *all);
  if (!all) return hk_fail_memory(err, graph->n_ops * sizeof *all, "the replay of a probe");
  const hk_stretch *stretches[HK_PROBE_LOADS] = {NULL};
  size_t counts[HK_PROBE_LOADS] = {0};
  int load = -1;
  for (size_t i = 0; i < graph->n_ops; i++) {
    if (i == 0 || graph->ops[i].lane != graph->ops[i - 1].lane) stretches[++load] = &all[i];
    all[i] = (hk_stretch){t->spans[i].start, t->spans[i].end, (double)graph->ops[i].work, 0};
    counts[load]++;
  }
  const hk_status status =
      hk_probe_rates(probe->mode, stretches, counts, probe->n_loads, rates, err);
  free(all);
  return status;
}

static hk_status check_guess(const hk_probe *probe, const double *guess, hk_error *err) {
  for (int i = 0; i < probe->n_loads; i++)
    if (!isfinite(guess[i]) || guess[i] <= 0)
      return hk_fail(err, HK_INPUT,
                     "probe '%s', load %d: the guessed rate is %g; it must be positive and "
                     "finite",
                     probe->name, i + 1, guess[i]);
  return HK_OK;
}

hk_status hk_replay(const hk_probe *probe, const hk_machine *machine, const double *guess,
                    double *rates, hk_error *err) {
  double work[HK_PROBE_LOADS];
  hk_graph graph;
  hk_result result = {0};
  HK_TRY(check_guess(probe, guess, err));
  choose_work(probe, guess, work);
  HK_TRY(hk_replay_graph(probe, work, &graph, err));
  hk_status status = hk_simulate(&graph, machine, NULL, &result, err);
  if (status == HK_OK) status = read_rates(probe, &graph, &result.timeline, rates, err);
  hk_result_free(&result);
  hk_graph_free(&graph);
  return status == HK_OK ? HK_OK : hk_fail_prefix(err, "replay of '%s'", probe->name);
}

/* -- Inputs of the rates ----------------------------------------------------------------------- */

#define MOVES (HK_TRAFFIC_IN | HK_TRAFFIC_OUT)

/* A replay uses a quantity if the traffic of its loads has all bits of `all` and at least one bit
 * of `any` (0: no condition), and, if `crowded`, there are also CPU kernels beside copies, or
 * several GPUs. The rules are those of sim/contention.c and sim/demand.c. A quantity without a rule
 * counts as used. */
typedef struct {
  size_t offset;
  unsigned all, any;
  bool crowded;
} use_rule;

#define WHERE(field) .offset = offsetof(hk_machine, field)
static const use_rule rules[] = {
    {WHERE(d2h_cost), .any = HK_TRAFFIC_OUT},
    {WHERE(dma_weight), .any = MOVES},
    {WHERE(d2h_priority), .any = HK_TRAFFIC_COPY_OUT, .crowded = true},
    {WHERE(pcie_d2h_priority), .any = HK_TRAFFIC_COPY_OUT},
    {WHERE(h2d_loaded), .all = HK_TRAFFIC_CPU | HK_TRAFFIC_IN},
    {WHERE(h2d_load_from), .all = HK_TRAFFIC_CPU | HK_TRAFFIC_IN},
    {WHERE(cpu_beside_h2d), .all = HK_TRAFFIC_CPU | HK_TRAFFIC_IN},
    {WHERE(cpu_beside_d2h), .all = HK_TRAFFIC_CPU | HK_TRAFFIC_OUT},
    {WHERE(shared_reads), .all = HK_TRAFFIC_CPU | HK_TRAFFIC_COPY_IN | HK_TRAFFIC_KERNEL_IN},
    {WHERE(duplex), .any = MOVES},
    {WHERE(fabric_h2d), .any = HK_TRAFFIC_IN},
    {WHERE(fabric_d2h), .any = HK_TRAFFIC_OUT},
    {WHERE(fabric_duplex), .any = MOVES},
};

/* The traffic of all loads together, as HK_TRAFFIC_* bits. */
static unsigned traffic_of(const hk_probe *probe, const hk_machine *machine) {
  hk_graph graph = {.ranks = 1, .multiplicity = 1, .world = 1, .nodes = 1, .tp = 1};
  unsigned traffic = 0;
  for (int i = 0; i < probe->n_loads; i++)
    graph.weights_pulled |= probe->loads[i].kind == HK_LOAD_PULL;
  for (int i = 0; i < probe->n_loads; i++) {
    const hk_load *load = &probe->loads[i];
    const hk_op op = {
        .kind = hk_load_op(load->kind), .threads = load->threads, .work = load->chunk};
    traffic |= hk_demand_of(&graph, &op, machine).traffic;
  }
  return traffic;
}

static bool is_used(const hk_machine *machine, const hk_quantity *quantity, unsigned traffic,
                    bool crowded) {
  const size_t offset = (size_t)((const char *)quantity - (const char *)machine);
  for (size_t i = 0; i < sizeof rules / sizeof *rules; i++) {
    const use_rule *rule = &rules[i];
    if (rule->offset != offset) continue;
    return (traffic & rule->all) == rule->all && (rule->any == 0 || (traffic & rule->any) != 0) &&
           (crowded || !rule->crowded);
  }
  return true;
}

/* dram_with_dma has an effect only through the capacity of host memory, which other quantities
 * bound. The first two inputs are that capacity without and with DMA. */
void hk_replay_inputs(const hk_probe *probe, const hk_machine *machine,
                      const hk_quantity *const *varied, size_t n, double inputs[HK_REPLAY_INPUTS]) {
  const unsigned traffic = traffic_of(probe, machine);
  const bool mixed = hk_is_mixed(traffic);
  bool gpus = false;
  for (int i = 0; i < probe->n_loads; i++) gpus |= probe->loads[i].gpu != probe->loads[0].gpu;
  memset(inputs, 0, HK_REPLAY_INPUTS * sizeof *inputs);
  inputs[0] = hk_resource_capacity(machine, HK_RES_DRAM, false);
  inputs[1] = mixed ? hk_resource_capacity(machine, HK_RES_DRAM, true) : 0;
  for (size_t i = 0; i < n; i++)
    if (varied[i] != &machine->dram_with_dma && is_used(machine, varied[i], traffic, gpus || mixed))
      inputs[2 + i] = varied[i]->value;
}
