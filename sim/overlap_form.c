/* SPDX-License-Identifier: GPL-3.0-or-later */
/* The closed form of overlap.h. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/graph/bytes.h"
#include "sim/overlap.h"

/* One block of one rank. Times in seconds, each operation alone. */
typedef struct {
  hk_block_times alone;
  double cpu;             /* parameters updated by the CPU */
  double work, not_ahead; /* the same as parameters updated in place, and those of them that wait
                             for the norm */
  double arrival;
} hk_form_block;

typedef struct {
  hk_form_block *blocks;
  int n;
  double rate, up, down; /* parameters a second; seconds a parameter */
} hk_form;

/* The team's rate without other traffic: its own, or what host memory allows. */
static double cpu_rate(const hk_plan *plan, const hk_machine *m) {
  const double alone = hk_update_rate(m, plan->optimizer, plan->cpu_threads);
  const double ranks = hk_job_ranks(&plan->job);
  return fmin(alone, m->dram.value / hk_update_traffic(plan->optimizer) / ranks);
}

hk_status hk_overlap_times(const hk_plan *plan, const hk_machine *machine, hk_block_times **times,
                           hk_error *err) {
  hk_graph g;
  const size_t n = (size_t)plan->model.layers + 2;
  HK_TRY(hk_graph_build(plan, (hk_expand){HK_EXPAND_TRAINING, .folded = true}, &g, err));
  *times = calloc(n, sizeof **times);
  for (size_t i = 0; i < g.n_ops && *times != NULL; i++) {
    const hk_op *op = &g.ops[i];
    if (op->kind != HK_OP_FORWARD && op->kind != HK_OP_BACKWARD) continue;
    hk_ns latency, work;
    hk_time_alone(&g, op, machine, &latency, &work);
    hk_block_times *t = &(*times)[op->block - HK_BLOCK_EMBED];
    *(op->kind == HK_OP_FORWARD ? &t->forward : &t->backward) += (double)(latency + work) / 1e9;
  }
  hk_graph_free(&g);
  return *times != NULL ? HK_OK : hk_fail_memory(err, n * sizeof **times, "a search");
}

static hk_status add_parameters(hk_form *form, const hk_plan *plan, const hk_machine *machine,
                                hk_error *err) {
  int32_t *first = calloc(2 * plan->n_subgroups, sizeof *first);
  if (first == NULL) return hk_fail_memory(err, 2 * plan->n_subgroups * sizeof *first, "a search");
  hk_plan_subgroup_blocks(plan, first, first + plan->n_subgroups);
  for (size_t s = 0; s < plan->n_subgroups; s++) {
    if (plan->subgroups[s].route != HK_ROUTE_CPU) continue;
    hk_form_block *b = &form->blocks[first[s]];
    const double n = (double)plan->subgroups[s].numel;
    b->cpu += n;
    b->work += plan->subgroups[s].ahead ? n / machine->cpu_adamw_ahead.value : n;
    if (!plan->subgroups[s].ahead) b->not_ahead += n;
  }
  free(first);
  return HK_OK;
}

/* Sets when each block's gradients are in host memory, counted from the begin of backward. Backward
 * goes from the last block to the first, and copies run one after the other. */
static void find_arrivals(hk_form *form) {
  double computed = 0, arrived = 0;
  for (int i = form->n - 1; i >= 0; i--) {
    hk_form_block *b = &form->blocks[i];
    computed += b->alone.backward;
    arrived = fmax(arrived, computed) + b->cpu * form->down;
    b->arrival = arrived;
  }
}

static double longest(const hk_form *form) {
  double forward = 0, backward = 0, parameters = 0, work = 0;
  for (int i = 0; i < form->n; i++) {
    forward += form->blocks[i].alone.forward;
    backward += form->blocks[i].alone.backward;
    parameters += form->blocks[i].cpu;
    work += form->blocks[i].work;
  }
  const double norm = form->blocks[0].arrival;
  double period = fmax(forward + backward, work / form->rate);
  double done = 0, waiting = 0, from = forward;
  if (parameters > 0)
    period = fmax(period, norm + parameters * form->up + form->blocks[form->n - 1].alone.forward);
  for (int i = 0; i < form->n; i++) {
    const hk_form_block *b = &form->blocks[i];
    const double behind = b->cpu * form->up + from; /* upload and forward */
    done += b->work;
    waiting += b->not_ahead;
    if (b->cpu > 0) period = fmax(period, b->arrival + done / form->rate + behind);
    if (b->not_ahead > 0) period = fmax(period, norm + waiting / form->rate + behind);
    from -= b->alone.forward;
  }
  return period;
}

hk_status hk_overlap_closed_form(const hk_plan *plan, const hk_machine *machine,
                                 const hk_block_times *times, hk_ns *period, hk_error *err) {
  hk_form form = {.n = (int)plan->model.layers + 2,
                  .rate = cpu_rate(plan, machine),
                  .up = HK_BYTES_BF16 / machine->h2d.value,
                  .down = HK_BYTES_BF16 / machine->d2h.value};
  form.blocks = calloc((size_t)form.n, sizeof *form.blocks);
  if (form.blocks == NULL)
    return hk_fail_memory(err, (size_t)form.n * sizeof *form.blocks, "a search");
  const hk_status status = add_parameters(&form, plan, machine, err);
  if (status == HK_OK) {
    for (int i = 0; i < form.n; i++) form.blocks[i].alone = times[i];
    find_arrivals(&form);
    *period = (hk_ns)(fmin(longest(&form), 1e9) * 1e9);
  }
  free(form.blocks);
  return status;
}
