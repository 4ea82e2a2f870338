/* SPDX-License-Identifier: GPL-3.0-or-later */
/* The stride at which CPU and GPU finish together, in closed form: docs/stride.md derives it. */
#include <math.h>

#include "sim/policy.h"

#define STATE_BYTES  12 /* a parameter and direction of a round trip */
#define WEIGHT_BYTES 2  /* a parameter that the CPU has updated */

/* One rank's share of the machine, while all ranks of the node do the same. */
typedef struct {
  double in, out, both; /* PCIe and fabric: towards the GPU, back, sum */
  double in_part;       /* of the sum, for the way towards the GPU, where the sum is short */
  double dram, dram_mixed;
  double cpu;       /* kernels' own rate, parameters a second */
  double cpu_bytes; /* of host memory traffic a CPU update, weights' way up included */
  double wish;      /* what the state copies ask of host memory, times their weight */
  bool one_way;     /* the prototype's streams carry one direction at a time */
} hk_side;

static hk_side side_of(const hk_plan *plan, const hk_machine *m) {
  const double ranks = plan->job.gpus, n = plan->cpu_threads;
  const bool deepspeed = plan->runtime == HK_RUNTIME_DEEPSPEED;
  hk_side s = {.in = fmin(m->h2d.value, m->fabric_h2d.value / ranks),
               .out = fmin(m->d2h.value, m->fabric_d2h.value / ranks),
               .both = fmin(m->duplex.value, m->fabric_duplex.value / ranks),
               .in_part = m->h2d.value / (m->h2d.value + m->d2h.value),
               .dram = m->dram.value / ranks,
               .dram_mixed = fmin(m->dram.value, m->dram_with_dma.value) / ranks,
               .one_way = deepspeed};
  s.cpu = hk_cpu_rate(m, m->cpu_adamw.value, n);
  s.cpu_bytes = 28 + WEIGHT_BYTES;
  s.wish = 2 * fmin(m->h2d.value, m->d2h.value) * m->dma_weight.value;
  if (deepspeed) {
    /* Unscale, update and the helper's cast take the same cores in turn; three streams copy. */
    s.cpu = 1 / (1 / hk_cpu_rate(m, m->cpu_unscale.value, n) +
                 1 / hk_cpu_rate(m, m->cpu_adamw_fp32.value, n) +
                 1 / hk_cpu_rate(m, m->cpu_cast.value, n));
    s.cpu_bytes = 8 + 28 + 6 + WEIGHT_BYTES;
    s.wish *= 1.5;
  }
  return s;
}

/* Round trips a second over links of which the weights of `cpu` updates take a part, and of which
 * both directions together get no more than `most`. */
static double over_links(const hk_side *s, double cpu, double most) {
  const double up = WEIGHT_BYTES * cpu;
  const double both = fmin(s->both, most) - up;
  const double in = fmin(s->in - up, both), out = fmin(s->out, both);
  if (s->one_way) return 1 / (STATE_BYTES / in + STATE_BYTES / out);
  /* What is short is shared in proportion to the directions' own rates, as max-min does; once the
   * one that got more is done with a parameter, the other goes on alone. */
  const double in_share = fmin(in, fmax(both - out, both * s->in_part));
  const double out_share = fmin(out, both - in_share);
  const bool in_first = in_share > out_share;
  const double fast = in_first ? in_share : out_share, slow = in_first ? out_share : in_share;
  return 1 / (STATE_BYTES / fast * (1 + (fast - slow) / (in_first ? out : in)));
}

static double gpu_alone(const hk_side *s) {
  return over_links(s, 0, s->dram);
}

/* While a piece's weights go up, the CPU shares host memory with that copy. */
static double cpu_alone(const hk_side *s) {
  const double kernel_bytes = s->cpu_bytes - WEIGHT_BYTES;
  const double fair = s->dram_mixed * s->wish / (s->wish + 2 * s->cpu * kernel_bytes);
  const double up = fmin(fair, fmin(s->in, s->both));
  const double free = fmin(s->cpu, s->dram / kernel_bytes);
  const double beside = fmin(free, fmax(0, s->dram_mixed - up) / kernel_bytes);
  const double copying = WEIGHT_BYTES / up; /* seconds a parameter */
  return 1 / fmax(copying, copying + (1 - copying * beside) / free);
}

typedef struct {
  double cpu, gpu; /* parameters a second while both run */
} hk_rates;

/* Weighted max-min in host memory: with both sides open the CPU runs at one level of its wish and
 * the copies at that level of theirs; where the links hold the copies back, the CPU has the rest.
 * Fewer updates leave more of the link, so that the two are solved in turn: each pass shrinks the
 * error at least sevenfold. */
static hk_rates together(const hk_side *s) {
  /* Weights may take all of the link but a hundredth: the state copies must have some. */
  const double most = fmin(s->cpu, 0.99 * fmin(s->in, s->both) / WEIGHT_BYTES);
  const double fair = s->cpu * s->dram_mixed / (s->cpu * s->cpu_bytes + s->wish);
  double cpu = most;
  for (int pass = 0; pass < 20; pass++) {
    const double left = s->dram_mixed - 2 * STATE_BYTES * over_links(s, cpu, INFINITY);
    cpu = fmin(most, fmax(fair, left / s->cpu_bytes));
  }
  const double memory = (s->dram_mixed - s->cpu_bytes * cpu) / (2 * STATE_BYTES);
  return (hk_rates){cpu, fmin(over_links(s, cpu, INFINITY), memory)};
}

double hk_stride_balance(const hk_plan *plan, const hk_machine *machine, double *cpu_rate,
                         double *gpu_rate) {
  const hk_side s = side_of(plan, machine);
  const hk_rates rates = together(&s);
  if (cpu_rate != NULL) *cpu_rate = rates.cpu;
  if (gpu_rate != NULL) *gpu_rate = rates.gpu;
  return 1 + rates.cpu / rates.gpu;
}

/* Seconds a parameter at stride k: both sides until one is done, then the other alone. */
static double time_at(const hk_side *s, const hk_rates *r, double k) {
  const double both = fmin((k - 1) / r->cpu, 1 / r->gpu);
  const double cpu_left = fmax(0, k - 1 - r->cpu * both), gpu_left = fmax(0, 1 - r->gpu * both);
  return (both + cpu_left / cpu_alone(s) + gpu_left / gpu_alone(s)) / k;
}

#define MOST_STRIDE (1 << 20)

int hk_stride_auto(const hk_plan *plan, const hk_machine *machine) {
  const hk_side s = side_of(plan, machine);
  const hk_rates rates = together(&s);
  const bool deepspeed = plan->runtime == HK_RUNTIME_DEEPSPEED;
  const int least = deepspeed ? 2 : 1;
  const int low = (int)fmin(fmax(floor(1 + rates.cpu / rates.gpu), least), MOST_STRIDE - 1);
  /* The time falls and rises linearly in 1 / k on the two sides of the balance, so that nothing but
   * its neighbours and the ends can be best. No round trip at all is a stride beyond the last
   * subgroup; the prototype, whose other code path that would be, is not sent there. */
  const int never = (int)fmin((double)plan->n_subgroups + 1, MOST_STRIDE);
  const int candidates[] = {low, low + 1, least, deepspeed ? low : never};
  int best = low;
  for (size_t i = 1; i < sizeof candidates / sizeof candidates[0]; i++) {
    if (time_at(&s, &rates, candidates[i]) < time_at(&s, &rates, best)) best = candidates[i];
  }
  return best;
}
