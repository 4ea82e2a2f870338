/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Lower bounds: against numbers by hand for each constraint that can bind, and against a grid
 * search over shares that uses no linear program. test_unit_bound_policies.c compares with the
 * simulator. */
#include <dlfcn.h>
#include <glpk.h>
#include <stdio.h>
#include <stdlib.h>

#include "sim/certificate.h"
#include "sim/rank.h"
#include "tests/random.h"

/* -- By hand ----------------------------------------------------------------------------------- */

/* 1e9 parameters a rank: 1 ns a parameter is 1 s an update. */
#define PARAMETERS 1000000000LL

static hk_bound physical(const hk_machine *m, int gpus) {
  hk_error err = {0};
  hk_plan_subgroup subgroups[1] = {{.numel = PARAMETERS, .route = HK_ROUTE_CPU}};
  const hk_plan plan = {.job = {.gpus = gpus, .nodes = 1, .tp = 1, .micro_batch = 1},
                        .subgroups = subgroups,
                        .n_subgroups = 1};
  hk_bound bound;
  must(hk_bound_physical(&plan, m, &bound, &err), &err);
  return bound;
}

/* GPU memory for the weights but no state; CPU and mapped access so slow that all subgroups are
 * staged. */
static hk_machine only_staged(void) {
  hk_machine m = ideal_machine();
  m.gpu_memory.value = 2.0 * PARAMETERS;
  m.cpu_adamw.value = m.cpu_adamw_fp32.value = 1;
  m.mapped.value = 1;
  return m;
}

static void expect(const hk_machine *m, int gpus, double seconds, const char *binding) {
  const hk_bound b = physical(m, gpus);
  assert_true(b.feasible);
  assert_string_equal(b.binding, binding);
  /* The bound may be 1e-5 below: rounding, and the small share of the slow routes. */
  if (!((double)b.update_ns <= seconds * 1e9 && (double)b.update_ns >= seconds * 1e9 * 0.99999)) {
    fail_msg("%.9f s, by hand %.9f", (double)b.update_ns / 1e9, seconds);
  }
  double prices = b.cpu_price + b.mapped_price;
  for (int r = 0; r < HK_RES_COUNT; r++) {
    assert_true(b.price[r] >= 0);
    prices += b.price[r];
  }
  assert_true(fabs(prices - 1) < 1e-9);
}

static void each_resource_binds(void **state) {
  (void)state;
  static const struct {
    size_t quantity;
    double rate;
    int gpus;
    double seconds;
    const char *binding;
  } cases[] = {
#define AT(field) offsetof(hk_machine, field)
      /* 12 bytes each way, 24 both, 24 of host memory. */
      {AT(h2d), 12e9, 1, 1, "h2d"},
      {AT(d2h), 6e9, 1, 2, "d2h"},
      {AT(duplex), 12e9, 1, 2, "pcie"},
      {AT(dram), 48e9, 1, 0.5, "dram"},
      /* Resources of the node: all ranks share them. */
      {AT(dram), 48e9, 4, 2, "dram"},
      {AT(fabric_h2d), 24e9, 2, 1, "fabric_h2d"},
      {AT(fabric_d2h), 24e9, 8, 4, "fabric_d2h"},
      {AT(fabric_duplex), 24e9, 2, 2, "fabric"},
      /* Each rank has its own link, so four ranks take as long as one. */
      {AT(duplex), 12e9, 4, 2, "pcie"},
  };
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    hk_machine m = only_staged();
    ((hk_quantity *)((char *)&m + cases[i].quantity))->value = cases[i].rate;
    expect(&m, cases[i].gpus, cases[i].seconds, cases[i].binding);
  }
}

/* A schedule need not run copies beside kernels, so the bound uses the larger of
 * dram.bytes_per_s and dram.with_dma_bytes_per_s. */
static void mixed_traffic_is_no_part(void **state) {
  (void)state;
  hk_machine m = only_staged();
  m.dram.value = 48e9;
  m.dram_with_dma.value = 24e9;
  expect(&m, 1, 0.5, "dram");
}

/* A staged parameter costs 12 x 3 bytes of host memory traffic in (h2d_cost 3) and 12 x 1 out. The
 * limit is the larger of the two memory bandwidths. CPU kernels are limited by dram.bytes_per_s
 * alone ("dram_cpu"): 28 bytes. */
static void copies_at_their_costs(void **state) {
  (void)state;
  hk_machine m = only_staged();
  m.dram.value = m.dram_with_dma.value = 48e9;
  m.h2d_cost.value = 3;
  expect(&m, 1, 1, "dram");
  m.dram_with_dma.value = 96e9;
  expect(&m, 1, 0.5, "dram");
  m.dram_with_dma.value = 24e9;
  expect(&m, 1, 1, "dram");
  m.d2h.value = 1;
  m.cpu_adamw.value = 1e12;
  m.dram.value = 14e9;
  m.dram_with_dma.value = 1e15;
  expect(&m, 1, 2, "dram_cpu");
  expect(&m, 2, 4, "dram_cpu");
  /* A CPU parameter's whole traffic is 28 + 2 x 3 (its weight on its way up) at 16 B/ns. */
  m.dram_with_dma.value = 16e9;
  expect(&m, 1, 2.125, "dram");
}

/* All updates run on the GPU: 28 bytes of GPU memory traffic a parameter. The GPU lane's time gives
 * the same bound, so either name is right. */
static void gpu_memory_bandwidth(void **state) {
  (void)state;
  hk_machine m = ideal_machine();
  m.gpu_hbm.value = 14e9;
  m.cpu_adamw.value = m.cpu_adamw_fp32.value = m.mapped.value = 1;
  const hk_bound b = physical(&m, 1);
  assert_true(strcmp(b.binding, "hbm") == 0 || strcmp(b.binding, "gpu") == 0);
  assert_true(b.update_ns <= 2000000000 && b.update_ns >= 1999990000);
  assert_true(b.share[HK_ROUTE_RESIDENT] + b.share[HK_ROUTE_STAGED] > 0.99999);
}

static void cpu(void **state) {
  (void)state;
  hk_machine m = only_staged();
  /* A share c on the CPU takes c ns a parameter. The link of 4 B/ns carries 2 c + 12 (1 - c) bytes.
   * Both end together: c = 0.5 c + 3 (1 - c), c = 6/7. The dual prices p of the CPU and q of the
   * link sum to 1 and make both routes cost the same: p + 0.5 q = 3 q. */
  m.cpu_adamw.value = 1e9;
  m.h2d.value = 4e9;
  expect(&m, 1, 6.0 / 7, "cpu kernel");
  const hk_bound b = physical(&m, 1);
  assert_true(fabs(b.share[HK_ROUTE_CPU] - 6.0 / 7) < 1e-6);
  assert_true(fabs(b.cpu_price - 2.5 / 3.5) < 1e-6);
  assert_true(fabs(b.price[HK_RES_H2D] - 1 / 3.5) < 1e-6);
  /* The better of the two kernels counts. */
  m.cpu_adamw.value = 5e8;
  m.cpu_adamw_fp32.value = 1e9;
  expect(&m, 1, 6.0 / 7, "cpu kernel");
  /* A team of n threads does 8 (1 - exp(-n / 8)) G/s, at most 1 G/s a thread. Four teams share 16
   * cores: at most 16 G/s however the threads are divided. One team of 16 threads does
   * 8 (1 - exp(-2)). d2h = 1 B/s rules out staging. */
  m.cpu_adamw.value = 8e9;
  m.cpu_adamw_threads.value = 8;
  m.cores.value = 16;
  m.h2d.value = 1e15;
  m.d2h.value = 1;
  expect(&m, 4, 4 / 16.0, "cores");
  expect(&m, 1, 1 / (8 * (1 - exp(-2))), "cpu kernel");
  /* The fp32 kernel has half the peak rate but, with a thread scale of 2, does 2 G/s a thread: with
   * two threads a team it is the better one. */
  m.cpu_adamw_fp32.value = 4e9;
  m.cpu_adamw_fp32_threads.value = 2;
  expect(&m, 8, 8 / 32.0, "cores");
  m.cpu_adamw_fp32.value = 1e9;
  m.cpu_adamw_fp32_threads.value = 0;
  /* Host memory traffic: 28 bytes of the kernel and 2 of the weight on its way up. */
  m.dram.value = 15e9;
  expect(&m, 1, 2, "dram");
}

static void mapped(void **state) {
  (void)state;
  hk_machine m = only_staged();
  m.gpu_hbm.value = 1;
  m.mapped.value = 48e9;
  expect(&m, 1, 0.5, "mapped kernel");
  m.duplex.value = 24e9;
  expect(&m, 1, 1, "pcie");
}

static void what_fits_on_the_gpu_stays(void **state) {
  (void)state;
  hk_machine m = only_staged();
  m.h2d.value = 12e9;
  m.gpu_memory.value = (2 + 6) * 1e9;
  expect(&m, 1, 0.5, "h2d");
  const hk_bound b = physical(&m, 1);
  assert_true(fabs(b.share[HK_ROUTE_RESIDENT] - 0.5) < 1e-6);
  /* Reserved GPU memory is not available: 3 GB of state fit, a quarter. */
  m.gpu_reserved.value = 3e9;
  expect(&m, 1, 0.75, "h2d");
}

/* The host has room for half the state, so half must be updated on the GPU, at 1 ns a parameter. */
static void what_does_not_fit_on_the_host_must_stay(void **state) {
  (void)state;
  hk_machine m = ideal_machine();
  m.gpu_hbm.value = 28e9;
  m.host_memory.value = 7e9;
  m.host_reserved.value = 1e9;
  m.cpu_adamw.value = m.cpu_adamw_fp32.value = 1;
  const hk_bound b = physical(&m, 1);
  assert_true(b.feasible);
  assert_true(b.update_ns <= 500000000 && b.update_ns >= 499990000);
  /* Two ranks share the host: a quarter of each rank's state fits, three quarters do not. */
  assert_true(physical(&m, 2).update_ns <= 750000000 && physical(&m, 2).update_ns >= 749990000);
}

static void memory_that_does_not_suffice(void **state) {
  (void)state;
  hk_machine m = ideal_machine();
  m.host_memory.value = 6e9;          /* half of the state */
  m.gpu_memory.value = (2 + 3) * 1e9; /* weights and a quarter */
  assert_false(physical(&m, 1).feasible);
  assert_int_equal(physical(&m, 1).update_ns, 0);
  m.gpu_memory.value = (2 + 6.1) * 1e9; /* and a little over a half */
  assert_true(physical(&m, 1).feasible);
  assert_false(physical(&m, 2).feasible); /* two ranks share the host's 6 GB */
  m.host_memory.value = 12e9;
  assert_true(physical(&m, 2).feasible);
}

/* Every update waits for the gradient norm: one kernel launch. */
static void the_barrier_comes_first(void **state) {
  (void)state;
  hk_machine m = only_staged();
  m.h2d.value = 12e9;
  const hk_ns without = physical(&m, 1).update_ns;
  m.gpu_launch.value = 7000;
  assert_int_equal(physical(&m, 1).update_ns, without + 7000);
}

/* -- Against a grid ---------------------------------------------------------------------------- */

#define STEPS 40
enum { C = HK_ROUTE_CPU, S = HK_ROUTE_STAGED, M = HK_ROUTE_MAPPED, R = HK_ROUTE_RESIDENT };

/* Seconds a parameter for shares f, by docs/architecture.md's table of bytes. */
static double seconds_of(const hk_machine *m, const double f[HK_ROUTE_COUNT]) {
  const double n = m->gpus.value;
  const double in = 2 * f[C] + 12 * f[S] + 12 * f[M], out = 12 * f[S] + 12 * f[M];
  const double cpu = fmax(m->cpu_adamw.value, m->cpu_adamw_fp32.value);
  const double team = cpu * (1 - exp(-m->cores.value / m->cpu_adamw_threads.value));
  const double memory = 28 * f[C] + in * m->h2d_cost.value + out * m->d2h_cost.value;
  const double times[] = {
      in / m->h2d.value,
      out / m->d2h.value,
      (in + out) / m->duplex.value,
      n * in / m->fabric_h2d.value,
      n * out / m->fabric_d2h.value,
      n * (in + out) / m->fabric_duplex.value,
      n * memory / fmax(m->dram.value, m->dram_with_dma.value),
      n * 28 * f[C] / m->dram.value,
      28 * (f[S] + f[R]) / m->gpu_hbm.value,
      f[C] / team,
      n * f[C] * m->cpu_adamw_threads.value / cpu / m->cores.value,
      24 * f[M] / m->mapped.value,
  };
  double longest = 0;
  for (size_t i = 0; i < sizeof times / sizeof times[0]; i++) longest = fmax(longest, times[i]);
  return longest;
}

static double best_on_grid(const hk_machine *m, int least_resident, int most_resident) {
  double best = INFINITY;
  for (int r = least_resident; r <= most_resident; r++) {
    for (int c = 0; c + r <= STEPS; c++) {
      for (int s = 0; s + c + r <= STEPS; s++) {
        const double f[HK_ROUTE_COUNT] = {[C] = (double)c / STEPS,
                                          [S] = (double)s / STEPS,
                                          [M] = (double)(STEPS - s - c - r) / STEPS,
                                          [R] = (double)r / STEPS};
        best = fmin(best, seconds_of(m, f));
      }
    }
  }
  return best;
}

/* Upper limit of (best grid point - bound): a grid point exists that differs from the optimum by at
 * most one step in each share that is not zero in the optimum. */
static double a_step(const hk_machine *m, const hk_bound *b) {
  double sum = 0;
  for (int j = 0; j < HK_ROUTE_COUNT; j++) {
    double f[HK_ROUTE_COUNT] = {0};
    f[j] = b->share[j] > 1e-7 ? 1.0 / STEPS : 0;
    sum += seconds_of(m, f);
  }
  return sum;
}

static void no_point_of_a_grid_is_better(void **state) {
  (void)state;
  int near = 0;
  for (uint64_t seed = 0; seed < 300; seed++) {
    random_stream r = {seed};
    hk_machine m = random_node(&r);
    m.cpu_adamw_fp32.value = m.cpu_adamw.value * scale(&r, 0.5, 2);
    m.cpu_adamw_threads.value = scale(&r, 1, 40);
    m.cores.value = pick(&r, 4, 128);
    if (seed % 2 == 0) price_copies(&r, &m);
    /* Memory limits at grid points, so that the grid's optimum can be at the limit. */
    const int least = pick(&r, 0, STEPS / 4), most = pick(&r, least, STEPS);
    m.host_memory.value = m.gpus.value * 12 * PARAMETERS * (1 - (double)least / STEPS);
    m.gpu_memory.value = 2 * PARAMETERS + 12 * PARAMETERS * ((double)most / STEPS);
    if (least == most) m.gpu_memory.value *= 1 + 1e-9;
    const hk_bound b = physical(&m, (int)m.gpus.value);
    assert_true(b.feasible);
    /* Less the latency of the barrier: a kernel launch of 5000 ns for one rank. Several ranks have
     * a collective, whose latency is 0 here. */
    const double bound = (double)(b.update_ns - (m.gpus.value > 1 ? 0 : 5000)) / PARAMETERS / 1e9;
    const double grid = best_on_grid(&m, least, most);
    if (bound > grid * (1 + 1e-9) || grid > bound * (1 + 1e-6) + a_step(&m, &b)) {
      fail_msg("seed %d: bound %.6g s a parameter, grid %.6g, step %.3g", (int)seed, bound, grid,
               a_step(&m, &b));
    }
    near += grid < bound * 1.03;
  }
  assert_true(near > 150); /* the bound is tight, not just low */
}

/* -- Parts of an iteration, by hand -------------------------------------------------------------
 */

typedef struct {
  double before, last, rest; /* s of forward before its last block; of forward and backward of the
                                last block; of the rest of backward */
  double embed;              /* of these, of the embedding */
} passes;

static passes passes_of(const hk_graph *g, const hk_machine *m) {
  passes p = {0};
  const size_t each = g->n_ops / (size_t)g->iterations;
  for (size_t i = 0; i < each; i++) {
    const hk_op *op = &g->ops[i];
    if (op->kind != HK_OP_FORWARD && op->kind != HK_OP_BACKWARD) continue;
    double *part = op->block == g->layers      ? &p.last
                   : op->kind == HK_OP_FORWARD ? &p.before
                                               : &p.rest;
    *part += (double)op->work / m->gpu_flops.value;
    if (op->block == HK_BLOCK_EMBED) p.embed += (double)op->work / m->gpu_flops.value;
  }
  return p;
}

/* A certificate where only the CPU can update, in `cpu_s` seconds, beside some 1.2 s of forward and
 * backward. */
static double certified_s(hk_overlap overlap, double cpu_s, hk_machine *m, passes *p) {
  hk_error err = {0};
  hk_model model = tiny_model(3);
  const hk_job job = {
      .gpus = 1, .nodes = 1, .tp = 1, .micro_batch = 1, .grad_accum = 1, .seq = 512};
  const hk_candidate candidate = {&hk_policy_zero_offload, HK_POLICY_OPTIONS_NONE,
                                  HK_RUNTIME_HOCKET};
  const hk_plan_settings settings = {.cpu_threads = 1, .overlap = overlap, .piece_numel = 1000};
  hk_plan plan;
  hk_forecast f;
  hk_certificate certificate;
  m->gpu_hbm.value = m->mapped.value = 50; /* 1e5 s: a share of 1e-4 at most */
  m->h2d.value = m->d2h.value = m->duplex.value = m->dram.value = m->dram_with_dma.value = 1e11;
  m->fabric_h2d.value = m->fabric_d2h.value = m->fabric_duplex.value = 1e11;
  m->gpu_flops.value = 6e8;
  m->cpu_adamw.value = m->cpu_adamw_fp32.value = (double)model.parameters / cpu_s;
  must(hk_candidate_plan(&candidate, &model, m, &job, &settings, &plan, &err), &err);
  must(hk_forecast_make(&plan, m, NULL, &f, &err), &err);
  must(hk_certify(&f, m, &certificate, &err), &err);
  assert_true(certificate.made);
  *p = passes_of(&f.graph, m);
  assert_true(p->before > 0.1 && p->last > 0.05 && p->rest > 0.2);
  hk_forecast_free(&f);
  hk_model_free(&model);
  return (double)certificate.bound_ns / 1e9;
}

static void is_about(double s, double expected) {
  if (!(s <= expected * (1 + 1e-9) && s >= expected * (1 - 2e-4)))
    fail_msg("%.9f s, by hand %.9f", s, expected);
}

/* Nothing is updated from the last block's forward to the barrier. */
static void no_updates_beside_backward(void **state) {
  (void)state;
  hk_machine m = ideal_machine();
  passes p;
  double s = certified_s(HK_OVERLAP_FORWARD, 3, &m, &p);
  is_about(s, 3 + p.last + p.rest);
  s = certified_s(HK_OVERLAP_FORWARD, 0.05, &m, &p); /* less than forward */
  is_about(s, p.before + p.last + p.rest);
  /* Forward has half of its rate beside the 0.05 s. */
  m.compute_beside_update.value = 0.5;
  s = certified_s(HK_OVERLAP_FORWARD, 0.05, &m, &p);
  is_about(s, p.before + 0.025 + p.last + p.rest);
}

/* Ahead of the norm the CPU updates from the first gradients on, here at half of its rate. */
static void updates_ahead_of_the_norm(void **state) {
  (void)state;
  hk_machine m = ideal_machine();
  passes p;
  m.cpu_adamw_ahead.value = 0.5;
  double s = certified_s(HK_OVERLAP_BOTH, 3, &m, &p);
  is_about(s, p.last + p.rest + 3 - p.rest / 2);
  m.cpu_adamw_ahead.value = 1;
  s = certified_s(HK_OVERLAP_BOTH, 3, &m, &p);
  is_about(s, p.last + 3);
  /* The rest of backward takes twice as long beside updates, which go on through all of it. */
  m.compute_beside_update.value = 0.5;
  s = certified_s(HK_OVERLAP_BOTH, 2 * p.before + 2 * p.rest, &m, &p);
  is_about(s, 2 * p.before + p.last + 2 * p.rest);
}

/* Launches of a layer take 1 s, more than its computation, and have half of their rate beside the
 * CPU's 2 s: it is updated beside forward, of which 1 of 3 s is done meanwhile. Backward launches 3
 * layers, too. */
static void launches_beside_updates(void **state) {
  (void)state;
  hk_machine m = ideal_machine();
  passes p;
  m.layer_launch.value = 1e9;
  m.launch_beside_update.value = 0.5;
  const double s = certified_s(HK_OVERLAP_FORWARD, 2, &m, &p);
  const double embed = p.embed; /* whose forward and backward launch nothing */
  is_about(s, 1 + 3 + 3 + p.last + embed);
}

/* -- GLPK fails ------------------------------------------------------------------------------- */

static bool glpk_fails;

/* GLPK's solvers, in place of the library's own. */
static int solver(const char *name, glp_prob *p, const glp_smcp *parameters) {
  int (*real)(glp_prob *, const glp_smcp *);
  *(void **)&real = dlsym(RTLD_NEXT, name);
  return glpk_fails ? GLP_EFAIL : real(p, parameters);
}

int glp_simplex(glp_prob *p, const glp_smcp *parameters) {
  return solver("glp_simplex", p, parameters);
}

int glp_exact(glp_prob *p, const glp_smcp *parameters) {
  return solver("glp_exact", p, parameters);
}

/* A programme that GLPK cannot solve leaves the certificate out; the forecast stays. */
static void an_unsolved_programme(void **state) {
  (void)state;
  hk_error err = {0};
  hk_machine m = ideal_machine();
  hk_model model = tiny_model(2);
  const hk_job job = {.gpus = 1, .nodes = 1, .tp = 1, .micro_batch = 1, .grad_accum = 1, .seq = 8};
  const hk_candidate candidate = {&hk_policy_streamed, HK_POLICY_OPTIONS_NONE, HK_RUNTIME_HOCKET};
  const hk_plan_settings settings = {.cpu_threads = 1};
  hk_certificate certificate;
  hk_plan plan;
  hk_forecast f;
  must(hk_candidate_plan(&candidate, &model, &m, &job, &settings, &plan, &err), &err);
  must(hk_forecast_make(&plan, &m, NULL, &f, &err), &err);
  must(hk_certify(&f, &m, &certificate, &err), &err);
  assert_true(f.feasible && certificate.made && !certificate.unsolved);
  glpk_fails = true;
  must(hk_certify(&f, &m, &certificate, &err), &err);
  glpk_fails = false;
  assert_true(certificate.unsolved && !certificate.made);
  hk_forecast_free(&f);
  hk_model_free(&model);
}

static size_t used(void) {
  size_t total = 0;
  glp_mem_usage(NULL, NULL, &total, NULL);
  return total;
}

/* GLPK aborts the process when an allocation fails, unless its error hook returns control. */
static void glpk_without_memory(void **state) {
  (void)state;
  hk_error err = {0};
  hk_bound bound;
  hk_plan_subgroup subgroups[1] = {{.numel = PARAMETERS, .route = HK_ROUTE_CPU}};
  const hk_plan plan = {.job = {.gpus = 1, .nodes = 1, .tp = 1, .micro_batch = 1},
                        .subgroups = subgroups,
                        .n_subgroups = 1};
  const hk_machine m = ideal_machine();
  glp_mem_limit(1);                    /* MiB, of this thread's environment */
  assert_non_null(glp_alloc(1000, 1)); /* creates the environment */
  while (used() < (1 << 20) - 2000) glp_alloc(1000, 1);
  assert_int_equal(hk_bound_physical(&plan, &m, &bound, &err), HK_ENVIRONMENT);
  assert_non_null(strstr(err.message, "out of memory"));
  must(hk_bound_physical(&plan, &m, &bound, &err), &err); /* in a new environment */
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(each_resource_binds),
      cmocka_unit_test(mixed_traffic_is_no_part),
      cmocka_unit_test(copies_at_their_costs),
      cmocka_unit_test(gpu_memory_bandwidth),
      cmocka_unit_test(cpu),
      cmocka_unit_test(mapped),
      cmocka_unit_test(what_fits_on_the_gpu_stays),
      cmocka_unit_test(what_does_not_fit_on_the_host_must_stay),
      cmocka_unit_test(memory_that_does_not_suffice),
      cmocka_unit_test(the_barrier_comes_first),
      cmocka_unit_test(no_point_of_a_grid_is_better),
      cmocka_unit_test(no_updates_beside_backward),
      cmocka_unit_test(updates_ahead_of_the_norm),
      cmocka_unit_test(launches_beside_updates),
      cmocka_unit_test(an_unsolved_programme),
      cmocka_unit_test(glpk_without_memory),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
