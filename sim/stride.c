/* SPDX-License-Identifier: GPL-3.0-or-later */
/* The stride at which CPU and GPU finish together, in closed form. docs/stride.md derives it. */
#include <math.h>

#include "core/graph/bytes.h"
#include "sim/contention.h"
#include "sim/policy.h"
#include "sim/share.h"
#include "sim/sim.h"

/* One rank's share of the machine if all ranks of the node do the same. Rates in bytes a second
 * unless noted. */
typedef struct {
  const hk_machine *machine;
  double ranks;
  double in, out, both;     /* link and fabric: to the GPU, from the GPU, sum */
  double in_cost, out_cost; /* host memory that a copied byte takes, in bytes of a kernel */
  double cpu_wish;          /* CPU kernels not limited by memory, parameters a second */
  double cpu;               /* CPU kernels limited by host memory alone, parameters a second */
  double
      kernel_bytes; /* host memory traffic per parameter of a CPU update, without its weight copy */
  double state;     /* bytes of state per parameter, copied in each direction */
  double streams;   /* concurrent state copies in one direction */
  bool one_way;     /* state is copied in one direction at a time (prototype) */
} hk_side;

static hk_side side_of(const hk_plan *plan, const hk_machine *m) {
  const double ranks = hk_job_ranks(&plan->job), n = plan->cpu_threads;
  hk_side s = {.machine = m,
               .ranks = ranks,
               .in = fmin(m->h2d.value, m->fabric_h2d.value / ranks),
               .out = fmin(m->d2h.value, m->fabric_d2h.value / ranks),
               .both = fmin(m->duplex.value, m->fabric_duplex.value / ranks),
               .in_cost = m->h2d_cost.value,
               .out_cost = m->d2h_cost.value,
               .cpu_wish = hk_update_rate(m, plan->optimizer, n),
               .kernel_bytes = hk_update_traffic(plan->optimizer),
               .state = hk_state_per_param(plan->optimizer),
               .streams = 1};
  if (plan->runtime == HK_RUNTIME_DEEPSPEED) {
    /* Unscale, update and cast use the same cores one after the other; three streams copy. */
    s.cpu_wish = 1 / (1 / hk_cpu_rate(m, &m->cpu_unscale, &m->cpu_unscale_threads, n) +
                      1 / hk_cpu_rate(m, &m->cpu_adamw_fp32, &m->cpu_adamw_fp32_threads, n) +
                      1 / hk_cpu_rate(m, &m->cpu_cast, &m->cpu_cast_threads, n));
    s.kernel_bytes = HK_BYTES_UNSCALE + HK_BYTES_ADAMW_FP32 + HK_BYTES_CAST;
    s.streams = 3;
    s.one_way = true;
  }
  const double to_cpu = hk_resource_capacity(m, HK_RES_DRAM_CPU, false) / ranks;
  s.cpu = fmin(s.cpu_wish, to_cpu / s.kernel_bytes);
  return s;
}

/* -- rates of concurrent copies and updates ------------------------------------------------------
 */

typedef struct {
  double cpu, in, out; /* parameters, bytes, bytes a second */
} hk_flow;

/* Rates while all of `traffic` runs at once. Each CPU update also copies `up` bytes of weights to
 * the GPU, which have precedence over state on the link. The link's rest for state depends on the
 * CPU's rate and vice versa, so the two are iterated, beginning with the highest CPU rate;
 * docs/stride.md says why that converges. */
static hk_flow flow_of(const hk_side *s, unsigned traffic, double up) {
  enum { IN, OUT, BOTH, MEMORY, RESOURCES };
  const hk_machine *m = s->machine;
  const double weight = m->dma_weight.value * s->streams;
  const bool crowded = hk_is_mixed(traffic) || s->ranks > 1;
  const double priority = crowded ? m->d2h_priority.value : m->pcie_d2h_priority.value;
  const double gpus_in = (traffic & HK_TRAFFIC_IN) != 0 ? s->ranks : 0;
  const double gpus_out = s->ranks * hk_copies_out(m, traffic);
  const double wish = hk_cpu_kept(m, gpus_in, gpus_out) * s->cpu_wish;
  const double kernels = (traffic & HK_TRAFFIC_CPU) != 0 ? wish * s->kernel_bytes * s->ranks : 0;
  const double link = fmin(s->in, hk_h2d_kept(m, kernels) * m->h2d.value);
  const double kept = fmin(s->cpu, wish);
  /* Weights may take at most 99 % of the link, so that state copies have a capacity above 0. */
  const double most = fmin(kept, 0.99 * fmin(link, s->both) / fmax(up, 1e-9));
  const hk_share_use of_cpu[] = {{MEMORY, s->kernel_bytes + up * s->in_cost}};
  const hk_share_use of_in[] = {{IN, 1}, {BOTH, 1}, {MEMORY, s->in_cost}};
  const hk_share_use of_out[] = {{OUT, 1}, {BOTH, 1}, {MEMORY, s->out_cost}};
  hk_activity cpu = {most, s->cpu_wish, of_cpu, 1, 0};
  hk_activity in = {m->h2d.value, m->h2d.value * weight, of_in, 3, 0};
  hk_activity out = {m->d2h.value, m->d2h.value * weight * priority, of_out, 3, 0};
  hk_activity *active[3];
  int n = 0;
  if ((traffic & HK_TRAFFIC_CPU) != 0) active[n++] = &cpu, cpu.rate = most;
  if ((traffic & HK_TRAFFIC_IN) != 0) active[n++] = &in;
  if ((traffic & HK_TRAFFIC_OUT) != 0) active[n++] = &out;
  double capacity[RESOURCES] = {[OUT] = s->out}, used[RESOURCES], growth[2 * RESOURCES];
  capacity[MEMORY] = hk_resource_capacity(m, HK_RES_DRAM, hk_is_mixed(traffic)) / s->ranks;
  for (int pass = 0; pass < 50; pass++) {
    int32_t open[3];
    capacity[IN] = link - up * cpu.rate;
    capacity[BOTH] = s->both - up * cpu.rate;
    hk_share(active, n, capacity, RESOURCES, used, growth, open);
  }
  return (hk_flow){cpu.rate, in.rate, out.rate};
}

typedef struct {
  double cpu, gpu; /* parameters a second */
} hk_rates;

/* Average rates of two situations that alternate, so that as much state goes in as comes out. */
static hk_rates in_turn(const hk_side *s, const hk_flow *a, const hk_flow *b) {
  /* Fraction of time of situation a. */
  const double gain = a->out - a->in, loss = b->in - b->out;
  const double share = loss / (gain + loss);
  return (hk_rates){share * a->cpu + (1 - share) * b->cpu,
                    (share * a->in + (1 - share) * b->in) / s->state};
}

/* Steady rates of round trips, beside CPU updates or without (`cpu`: HK_TRAFFIC_CPU or 0). hocket
 * copies both ways at once; for part of the time only the slower direction copies. The prototype
 * alternates. */
static hk_rates round_trips(const hk_side *s, unsigned cpu) {
  const hk_flow in = flow_of(s, cpu | HK_TRAFFIC_IN, HK_BYTES_BF16);
  const hk_flow out = flow_of(s, cpu | HK_TRAFFIC_OUT, HK_BYTES_BF16);
  if (s->one_way) return in_turn(s, &in, &out);
  const hk_flow both = flow_of(s, cpu | HK_TRAFFIC_IN | HK_TRAFFIC_OUT, HK_BYTES_BF16);
  return in_turn(s, &both, both.in < both.out ? &in : &out);
}

/* CPU updates without round trips: while a piece's weights are copied, the copy shares host memory
 * with the kernel. */
static double cpu_alone(const hk_side *s) {
  const hk_flow up = flow_of(s, HK_TRAFFIC_CPU | HK_TRAFFIC_IN, 0);
  const double copying = HK_BYTES_BF16 / up.in; /* seconds a parameter */
  return 1 / fmax(copying, copying + (1 - copying * up.cpu) / s->cpu);
}

/* -- the stride -------------------------------------------------------------------------------- */

double hk_stride_balance(const hk_plan *plan, const hk_machine *machine, double *cpu_rate,
                         double *gpu_rate) {
  const hk_side s = side_of(plan, machine);
  const hk_rates rates = round_trips(&s, HK_TRAFFIC_CPU);
  if (cpu_rate != NULL) *cpu_rate = rates.cpu;
  if (gpu_rate != NULL) *gpu_rate = rates.gpu;
  return 1 + rates.cpu / rates.gpu;
}

/* Seconds per parameter at stride k: both sides until one has finished, then the other alone. */
static double time_at(const hk_side *s, const hk_rates *r, double k) {
  const double both = fmin((k - 1) / r->cpu, 1 / r->gpu);
  const double cpu_left = fmax(0, k - 1 - r->cpu * both), gpu_left = fmax(0, 1 - r->gpu * both);
  return (both + cpu_left / cpu_alone(s) + gpu_left / round_trips(s, 0).gpu) / k;
}

#define MOST_STRIDE (1 << 20)

int hk_stride_auto(const hk_plan *plan, const hk_machine *machine) {
  const hk_side s = side_of(plan, machine);
  hk_rates rates;
  const double balance = hk_stride_balance(plan, machine, &rates.cpu, &rates.gpu);
  const bool deepspeed = plan->runtime == HK_RUNTIME_DEEPSPEED;
  const int least = deepspeed ? 2 : 1;
  const int low = (int)fmin(fmax(floor(balance), least), MOST_STRIDE - 1);
  /* The time is linear in 1 / k on each side of the balance, so the best k is a neighbour of the
   * balance or an end of the range. The upper end, a stride beyond the last subgroup, means no
   * round trip; it is not offered to the prototype, which would then run other code. */
  const int never = (int)fmin((double)plan->n_subgroups + 1, MOST_STRIDE);
  const int candidates[] = {low, low + 1, least, deepspeed ? low : never};
  int best = low;
  for (size_t i = 1; i < sizeof candidates / sizeof candidates[0]; i++) {
    if (time_at(&s, &rates, candidates[i]) < time_at(&s, &rates, best)) best = candidates[i];
  }
  return best;
}
