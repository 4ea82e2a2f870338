/* SPDX-License-Identifier: GPL-3.0-or-later */
/* The stride at which CPU and GPU finish together, in closed form: docs/stride.md derives it. */
#include <math.h>

#include "sim/policy.h"
#include "sim/sim.h"

/* Round trips of one rank, parameters a second, nothing else going on. hocket's engine copies both
 * ways at once; the prototype's streams do one after the other. */
static double gpu_alone(const hk_plan *plan, const hk_machine *m) {
  const double ranks = plan->job.gpus;
  const double fabric =
      fmax(24 / m->fabric_duplex.value, fmax(12 / m->fabric_h2d.value, 12 / m->fabric_d2h.value)) *
      ranks;
  const double link = plan->runtime == HK_RUNTIME_DEEPSPEED
                          ? 12 / m->h2d.value + 12 / m->d2h.value
                          : fmax(24 / m->duplex.value, 12 / fmin(m->h2d.value, m->d2h.value));
  return 1 / fmax(link, fabric);
}

/* CPU updates of one rank, parameters a second, host memory not in the way. */
static double cpu_alone(const hk_plan *plan, const hk_machine *m) {
  const double n = plan->cpu_threads;
  if (plan->runtime == HK_RUNTIME_HOCKET) return hk_cpu_rate(m, m->cpu_adamw.value, n);
  return 1 / (1 / hk_cpu_rate(m, m->cpu_unscale.value, n) +
              1 / hk_cpu_rate(m, m->cpu_adamw_fp32.value, n));
}

/* Host memory traffic of a CPU update, weights' way up included. */
static double cpu_bytes(const hk_plan *plan) {
  return plan->runtime == HK_RUNTIME_HOCKET ? 28 + 2 : 28 + 8 + 6 + 2;
}

double hk_stride_balance(const hk_plan *plan, const hk_machine *machine, double *cpu_rate,
                         double *gpu_rate) {
  const double ranks = plan->job.gpus, weight = machine->dma_weight.value;
  double cpu = cpu_alone(plan, machine), gpu = gpu_alone(plan, machine);
  const double c = cpu * cpu_bytes(plan), g = gpu * 24;
  const double room = machine->dram_with_dma.value / ranks;
  if (c + g > room) {
    /* Weighted max-min: the CPU runs at the fraction `level` of its wish, copies at weight x level
     * of theirs, at most all of it. */
    double level = room / (c + weight * g);
    if (weight * level > 1) level = fmax(0, room - g) / c;
    cpu *= fmin(1, level);
    gpu *= fmin(1, weight * level);
  }
  if (cpu_rate != NULL) *cpu_rate = cpu;
  if (gpu_rate != NULL) *gpu_rate = gpu;
  return 1 + cpu / gpu;
}

int hk_stride_auto(const hk_plan *plan, const hk_machine *machine) {
  double cpu = 0, gpu = 0;
  const double k = hk_stride_balance(plan, machine, &cpu, &gpu);
  const int least = plan->runtime == HK_RUNTIME_DEEPSPEED ? 2 : 1;
  const int low = (int)fmin(fmax(floor(k), least), 1 << 16);
  /* Time of k subgroups, a parameter, at either neighbour: whichever side is longer. A stride of 1
   * leaves the CPU idle and the copies alone with host memory. */
  const double at_low =
      (low == 1 ? 1 / gpu_alone(plan, machine) : fmax((low - 1) / cpu, 1 / gpu)) / low;
  const double at_high = fmax(low / cpu, 1 / gpu) / (low + 1);
  return at_high < at_low ? low + 1 : low;
}
