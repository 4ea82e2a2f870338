/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Policies: routes, refused settings, and the stride from the closed form of docs/stride.md against
 * numbers by hand and against the best simulated stride of 1 to 12. */
#include <stdio.h>
#include <stdlib.h>

#include "sim/policy.h"
#include "sim/sim.h"
#include "tests/fixture.h"
#include "tests/random.h"

#define NONE HK_POLICY_OPTIONS_NONE

/* -- Routes ------------------------------------------------------------------------------------ */

/* A plan of ten subgroups. */
static hk_plan ten(hk_runtime runtime) {
  hk_error err = {0};
  hk_model model = tiny_model(1);
  const hk_job job = {.gpus = 1, .nodes = 1, .tp = 1, .micro_batch = 1, .grad_accum = 1, .seq = 8};
  const int64_t size = (model.parameters + 9) / 10;
  hk_plan plan = {0};
  must(hk_plan_create(&model, &job, runtime, HK_SUBGROUP_EXACT, size, &plan, &err), &err);
  assert_int_equal(plan.n_subgroups, 10);
  return plan;
}

/* One letter a subgroup: Cpu, Staged, Mapped, Resident. */
static const char *letters(const hk_plan *plan, char text[16]) {
  for (size_t i = 0; i < plan->n_subgroups; i++) text[i] = "CSMR"[plan->subgroups[i].route];
  text[plan->n_subgroups] = '\0';
  return text;
}

static void expect(const char *name, hk_policy_options options, hk_runtime runtime,
                   const char *routes, int stride, double ratio) {
  hk_error err = {0};
  const hk_policy *policy = NULL;
  const hk_machine m = ideal_machine();
  hk_plan plan = ten(runtime);
  char text[16];
  must(hk_policy_find(name, &policy, &err), &err);
  must(hk_policy_apply(policy, &options, &m, &plan, &err), &err);
  assert_string_equal(letters(&plan, text), routes);
  assert_string_equal(plan.policy, name);
  assert_int_equal(plan.stride, stride);
  assert_true(plan.ratio == ratio);
  for (int i = 0; i < 10; i++) assert_int_equal(plan.order[i], i);
  hk_plan_free(&plan);
}

static void routes_of_each_policy(void **state) {
  (void)state;
  for (hk_runtime r = HK_RUNTIME_HOCKET; r <= HK_RUNTIME_DEEPSPEED; r++) {
    expect("gpu-only", NONE, r, "RRRRRRRRRR", 0, 0);
    expect("zero-offload", NONE, r, "CCCCCCCCCC", 0, 1);
    expect("interleave", (hk_policy_options){.stride = 3, .ratio = -1}, r, "CCSCCSCCSC", 3, 1);
    expect("interleave", (hk_policy_options){.stride = 3, .ratio = 0.8}, r, "CCSCCSCCRR", 3, 0.8);
    expect("interleave", (hk_policy_options){.stride = 2, .ratio = 0.5}, r, "CSCSCRRRRR", 2, 0.5);
    expect("interleave", (hk_policy_options){.stride = 10, .ratio = 1}, r, "CCCCCCCCCS", 10, 1);
    expect("interleave", (hk_policy_options){.stride = 11, .ratio = 1}, r, "CCCCCCCCCC", 11, 1);
  }
  expect("interleave", (hk_policy_options){.stride = 1, .ratio = 0.9}, HK_RUNTIME_HOCKET,
         "SSSSSSSSSR", 1, 0.9);
  expect("streamed", NONE, HK_RUNTIME_HOCKET, "SSSSSSSSSS", 0, 1);
  expect("mapped", NONE, HK_RUNTIME_HOCKET, "MMMMMMMMMM", 0, 1);
}

/* floor(ratio x subgroups) subgroups are on the host. 0.7 x 10 counts as 7, although the product of
 * the doubles may be slightly less. */
static void ratios_round_down(void **state) {
  (void)state;
  static const struct {
    double ratio;
    const char *routes;
  } cases[] = {{0, "RRRRRRRRRR"},    {0.05, "RRRRRRRRRR"}, {0.1, "CRRRRRRRRR"},
               {0.29, "CCRRRRRRRR"}, {0.3, "CCCRRRRRRR"},  {0.6, "CCCCCCRRRR"},
               {0.7, "CCCCCCCRRR"},  {0.99, "CCCCCCCCCR"}, {1, "CCCCCCCCCC"}};
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    expect("twinflow", (hk_policy_options){.ratio = cases[i].ratio}, HK_RUNTIME_HOCKET,
           cases[i].routes, 0, cases[i].ratio);
  }
  expect("twinflow", NONE, HK_RUNTIME_HOCKET, "CCCCCCCCRR", 0, 0.8);
}

/* DeepSpeed keeps the first int((1 - ratio) x subgroups) subgroups on the GPU. Ratio 0.8: 1 - 0.8
 * is slightly less than 0.2 as a double, so one of ten. Ratio 0.65: 3.5, so three. Before 0.18 it
 * kept the last ones and rounded in favour of the GPU. */
static void deepspeed_before_and_since_0_18(void **state) {
  (void)state;
  static const struct {
    double ratio;
    const char *since, *before;
  } cases[] = {{0, "RRRRRRRRRR", "RRRRRRRRRR"},    {0.05, "RRRRRRRRRC", "RRRRRRRRRR"},
               {0.35, "RRRRRRCCCC", "CCCRRRRRRR"}, {0.5, "RRRRRCCCCC", "CCCCCRRRRR"},
               {0.65, "RRRCCCCCCC", "CCCCCCRRRR"}, {0.8, "RCCCCCCCCC", "CCCCCCCCRR"},
               {1, "CCCCCCCCCC", "CCCCCCCCCC"}};
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    const double ratio = cases[i].ratio;
    const hk_policy_options old = {.ratio = ratio, .before_0_18 = true};
    expect("twinflow", (hk_policy_options){.ratio = ratio}, HK_RUNTIME_DEEPSPEED, cases[i].since, 0,
           ratio);
    expect("twinflow", old, HK_RUNTIME_DEEPSPEED, cases[i].before, 0, ratio);
  }
}

static void buffers_are_passed_on(void **state) {
  (void)state;
  hk_error err = {0};
  const hk_machine m = ideal_machine();
  for (int given = 0; given <= 7; given += 7) {
    hk_plan plan = ten(HK_RUNTIME_HOCKET);
    const int before = plan.buffers;
    const hk_policy_options options = {.ratio = -1, .buffers = given};
    must(hk_policy_apply(&hk_policy_streamed, &options, &m, &plan, &err), &err);
    assert_int_equal(plan.buffers, given > 0 ? given : before);
    hk_plan_free(&plan);
  }
}

/* -- Refusals ---------------------------------------------------------------------------------- */

static void refuse(const hk_policy *policy, hk_policy_options options, hk_runtime runtime,
                   const char *message) {
  hk_error err = {0};
  const hk_machine m = ideal_machine();
  hk_plan plan = ten(runtime);
  assert_int_equal(hk_policy_apply(policy, &options, &m, &plan, &err), HK_INPUT);
  assert_string_equal(err.message, message);
  hk_plan_free(&plan);
}

static void options_that_a_policy_does_not_take(void **state) {
  (void)state;
  size_t n = 0;
  char message[128];
  const hk_policy *const *all = hk_policy_list(&n);
  for (size_t i = 0; i < n; i++) {
    const hk_policy *p = all[i];
    if (!(p->takes & HK_TAKES_STRIDE)) {
      snprintf(message, sizeof message, "policy '%s' takes no --stride", p->name);
      refuse(p, (hk_policy_options){.stride = 2, .ratio = -1}, HK_RUNTIME_HOCKET, message);
      refuse(p, (hk_policy_options){.stride_auto = true, .ratio = -1}, HK_RUNTIME_HOCKET, message);
    }
    if (!(p->takes & HK_TAKES_RATIO)) {
      snprintf(message, sizeof message, "policy '%s' takes no --ratio", p->name);
      refuse(p, (hk_policy_options){.ratio = 0.5}, HK_RUNTIME_HOCKET, message);
      refuse(p, (hk_policy_options){.ratio = 0}, HK_RUNTIME_HOCKET, message);
    }
    if (!(p->takes & HK_TAKES_BUFFERS)) {
      snprintf(message, sizeof message, "policy '%s' takes no --buffers", p->name);
      refuse(p, (hk_policy_options){.ratio = -1, .buffers = 2}, HK_RUNTIME_HOCKET, message);
    }
  }
  /* The settings that each policy takes: the loop above has refused all others. */
  assert_int_equal(n, 6);
  assert_int_equal(hk_policy_gpu_only.takes | hk_policy_zero_offload.takes | hk_policy_mapped.takes,
                   0);
  assert_int_equal(hk_policy_twinflow.takes, HK_TAKES_RATIO);
  assert_int_equal(hk_policy_streamed.takes, HK_TAKES_BUFFERS);
  assert_int_equal(hk_policy_interleave.takes, HK_TAKES_STRIDE | HK_TAKES_RATIO | HK_TAKES_BUFFERS);
}

static void values_out_of_range(void **state) {
  (void)state;
  const char *ratio = "--ratio: expected a number from 0 to 1, got 1.5";
  refuse(&hk_policy_twinflow, (hk_policy_options){.ratio = 1.5}, HK_RUNTIME_HOCKET, ratio);
  refuse(&hk_policy_interleave, (hk_policy_options){.ratio = 1.5}, HK_RUNTIME_DEEPSPEED, ratio);
  refuse(&hk_policy_interleave, (hk_policy_options){.ratio = -1, .stride = (1 << 20) + 1},
         HK_RUNTIME_HOCKET, "stride: expected a whole number from 0 to 1048576, got 1048577");
  refuse(&hk_policy_streamed, (hk_policy_options){.ratio = -1, .buffers = 1025}, HK_RUNTIME_HOCKET,
         "buffers: expected a whole number from 1 to 1024, got 1025");
}

static void what_deepspeed_cannot_do(void **state) {
  (void)state;
  refuse(&hk_policy_streamed, NONE, HK_RUNTIME_DEEPSPEED,
         "DeepSpeed has no policy 'streamed'; use --runtime hocket");
  refuse(&hk_policy_mapped, NONE, HK_RUNTIME_DEEPSPEED,
         "DeepSpeed has no policy 'mapped'; use --runtime hocket");
  refuse(&hk_policy_interleave, (hk_policy_options){.stride = 1, .ratio = -1}, HK_RUNTIME_DEEPSPEED,
         "the published prototype divides by stride - 1: --stride 1 needs --runtime hocket");
  refuse(&hk_policy_interleave, (hk_policy_options){.stride = 2, .ratio = -1, .buffers = 2},
         HK_RUNTIME_DEEPSPEED,
         "the published prototype has one buffer set; --buffers needs --runtime hocket");
}

static void names(void **state) {
  (void)state;
  hk_error err = {0};
  size_t n = 0;
  const hk_policy *found = NULL;
  const hk_policy *const *all = hk_policy_list(&n);
  for (size_t i = 0; i < n; i++) {
    must(hk_policy_find(all[i]->name, &found, &err), &err);
    assert_ptr_equal(found, all[i]);
  }
  assert_int_equal(hk_policy_find("interleaf", &found, &err), HK_INPUT);
  assert_string_equal(err.message, "unknown policy 'interleaf'; did you mean 'interleave'?");
  assert_int_equal(hk_policy_find("xyzzy", &found, &err), HK_INPUT);
  assert_non_null(strstr(err.message, "unknown policy 'xyzzy'; known are "));
  for (size_t i = 0; i < n; i++) assert_non_null(strstr(err.message, all[i]->name));
}

/* -- The stride by hand ------------------------------------------------------------------------ */

/* PCIe 30 GB/s each way, unlimited sum. CPU 3 G parameters/s, whose weights take 6 GB/s of H2D.
 * balance() checks the rates of CPU and GPU in parameters/s; the exact stride is 1 + CPU / GPU. */
static hk_machine round_machine(void) {
  hk_machine m = ideal_machine();
  m.h2d.value = m.d2h.value = 30e9;
  m.cpu_adamw.value = 3e9;
  return m;
}

static hk_plan stride_plan(int gpus, hk_runtime runtime) {
  return (hk_plan){.job = {.gpus = gpus}, .runtime = runtime, .cpu_threads = 1, .n_subgroups = 240};
}

static void near(double value, double expected) {
  if (!(fabs(value - expected) <= 1e-9 * expected)) {
    fail_msg("%.12g, by hand %.12g", value, expected);
  }
}

static void balance(const hk_machine *m, int gpus, hk_runtime runtime, double cpu, double gpu,
                    int stride) {
  const hk_plan plan = stride_plan(gpus, runtime);
  double c = 0, g = 0;
  near(hk_stride_balance(&plan, m, &c, &g), 1 + cpu / gpu);
  near(c, cpu);
  near(g, gpu);
  near(hk_stride_balance(&plan, m, NULL, NULL), 1 + cpu / gpu);
  assert_int_equal(hk_stride_auto(&plan, m), stride);
}

static void unlimited_host_memory(void **state) {
  (void)state;
  hk_machine m = round_machine();
  /* 30 - 6 GB/s for 12 bytes a parameter: 2 G/s, exact stride 2.5. Time a subgroup of 1 G
   * parameters: at stride 2 the CPU's subgroup takes 1/3 s, in which the GPU does 2/3 of its own.
   * The other third takes 0.133 s at 2.5 G/s (whole link): 0.467 / 2 = 0.233 s. At stride 3 the
   * GPU's subgroup takes 1/2 s, in which the CPU does 1.5 of its two. The rest takes 1/6 s:
   * 0.667 / 3 = 0.222 s. So 3 is better. */
  balance(&m, 1, HK_RUNTIME_HOCKET, 3e9, 2e9, 3);
  /* 42 - 6 GB/s for both directions, 18 each: 1.5 G/s, exact stride 3. */
  m.duplex.value = 42e9;
  balance(&m, 1, HK_RUNTIME_HOCKET, 3e9, 1.5e9, 3);
  /* Two ranks share a fabric of 84 GB/s for both directions: 42 each, as before. */
  m.duplex.value = 1e15;
  m.fabric_duplex.value = 84e9;
  balance(&m, 2, HK_RUNTIME_HOCKET, 3e9, 1.5e9, 3);
  /* Two ranks share a fabric of 48 GB/s towards the GPUs: 24 - 6 each. */
  m.fabric_duplex.value = 1e15;
  m.fabric_h2d.value = 48e9;
  balance(&m, 2, HK_RUNTIME_HOCKET, 3e9, 1.5e9, 3);
}

/* H2D 20, D2H 40, both 24 GB/s, of which weights take 6: 18 are left. Copies in and out share them
 * as 20 to 40: 6 and 12 GB/s. 1 G parameters: 12 GB out take 1 s, in which 6 GB come in; the other
 * 6 GB come at 20 - 6 = 14 GB/s. 1 / (1 + 3/7) = 0.7 G/s. */
static void lopsided_links(void **state) {
  (void)state;
  hk_machine m = round_machine();
  m.h2d.value = 20e9;
  m.d2h.value = 40e9;
  m.duplex.value = 24e9;
  balance(&m, 1, HK_RUNTIME_HOCKET, 3e9, 0.7e9, 6);
}

static void limited_host_memory(void **state) {
  (void)state;
  hk_machine m = round_machine();
  m.dram.value = m.dram_with_dma.value = 75e9;
  /* Demands in GB/s: CPU 3 x (28 + 2) = 90, copies 30 + 30 = 60, together 150. There are 75, so
   * each gets half of its demand: 45 / 30 and 30 / 24 G/s. */
  balance(&m, 1, HK_RUNTIME_HOCKET, 1.5e9, 1.25e9, 2);
  /* Copies weigh three times as much: the CPU gets the share 75 / (90 + 180) of its demand, copies
   * three times that share of theirs. */
  m.dma_weight.value = 3;
  balance(&m, 1, HK_RUNTIME_HOCKET, 3e9 * 75 / 270, 50e9 / 24, 2);
  /* Copies get all that the link gives beside weights of c G/s: 2 (30 - 2 c). The CPU gets the
   * rest: 30 c = 75 - 2 (30 - 2 c), c = 15/26. */
  m.dma_weight.value = 100;
  balance(&m, 1, HK_RUNTIME_HOCKET, 15e9 / 26, (30e9 - 30e9 / 26) / 12, 2);
  /* Two ranks have half of it each. */
  m.dram.value = m.dram_with_dma.value = 150e9;
  balance(&m, 2, HK_RUNTIME_HOCKET, 15e9 / 26, (30e9 - 30e9 / 26) / 12, 2);
}

/* A byte in costs 2, so a CPU update takes 28 + 2 x 2 of host memory and a round trip 12 x 2 + 12.
 * Demands: 3 x 32 = 96, and 30 x 2 + 30 = 90 with weight 1.2: 108. There are 102 of the 204, so the
 * CPU gets 96 / 2 = 48 and copies 108 / 2 = 54: 48 / 32 and 54 / 36 G/s. */
static void copies_at_their_costs(void **state) {
  (void)state;
  hk_machine m = round_machine();
  m.dram.value = m.dram_with_dma.value = 102e9;
  m.h2d_cost.value = 2;
  m.dma_weight.value = 1.2;
  balance(&m, 1, HK_RUNTIME_HOCKET, 1.5e9, 1.5e9, 2);
  /* Kernels are limited by dram.bytes_per_s alone: 42 / 28 G/s. The link has 30 - 3 left: 27 / 12.
   */
  m.dram.value = 42e9;
  m.dram_with_dma.value = 1e15;
  balance(&m, 1, HK_RUNTIME_HOCKET, 1.5e9, 2.25e9, 2);
}

/* Priority 2: copies in and out share 42 - 6 = 36 GB/s as 1 to 2: 12 and 24. 1 G parameters: 12 GB
 * out take 0.5 s, in which 6 GB come in; the other 6 GB come at 30 - 6 = 24. 1 / 0.75 G/s. */
static void copies_out_come_first(void **state) {
  (void)state;
  hk_machine m = round_machine();
  m.duplex.value = 42e9;
  m.d2h_priority.value = 2;
  balance(&m, 1, HK_RUNTIME_HOCKET, 3e9, 1e9 / 0.75, 3);
}

/* Beside both directions the CPU keeps 4/5 x 1/2: 1.2 G/s, so 30 - 2.4 = 27.6 GB/s come in
 * while 52.8 go out. Beside copies in alone it keeps 4/5: 2.4 G/s, and 25.2 come in. Both states
 * last equally long, since 2 x 26.4 = 52.8 in and out: on average the CPU has 1.8 G/s, the GPU 26.4
 * / 12 = 2.2. */
static void kernels_beside_copies(void **state) {
  (void)state;
  hk_machine m = round_machine();
  m.d2h.value = 52.8e9;
  m.cpu_beside_h2d.value = 0.8;
  m.cpu_beside_d2h.value = 0.5;
  balance(&m, 1, HK_RUNTIME_HOCKET, 1.8e9, 2.2e9, 2);
  /* The shares that the copies of two GPUs leave are multiplied. */
  m.cpu_beside_h2d.value = sqrt(0.8);
  m.cpu_beside_d2h.value = sqrt(0.5);
  balance(&m, 2, HK_RUNTIME_HOCKET, 1.8e9, 2.2e9, 2);
}

/* The kernel's demand is 3 x 28 = 84 of 168 GB/s: load 1/2. The limit of copies in falls from 30 at
 * load 1/4 to 12 at load 1, so it is 24. Weights take 6 of it: 18 / 12 G/s. */
static void copies_in_under_load(void **state) {
  (void)state;
  hk_machine m = round_machine();
  m.dram.value = m.dram_with_dma.value = 168e9;
  m.h2d_loaded.value = 12e9;
  m.h2d_load_from.value = 0.25;
  balance(&m, 1, HK_RUNTIME_HOCKET, 3e9, 1.5e9, 3);
}

/* CPU: 1 / (1/6 + 1/3 + 1/6) = 1.5 G/s, whose weights take 3 of 33 GB/s. The prototype copies in
 * and then out: 12/30 + 12/20 = 1 s a G parameters. */
static void the_prototype(void **state) {
  (void)state;
  hk_machine m = round_machine();
  m.cpu_unscale.value = m.cpu_cast.value = 6e9;
  m.cpu_adamw_fp32.value = 3e9;
  m.h2d.value = 33e9;
  m.d2h.value = 20e9;
  balance(&m, 1, HK_RUNTIME_DEEPSPEED, 1.5e9, 1e9, 3);
  /* With a CPU of 1000 parameters/s hocket sends all to the GPU. The prototype cannot: its stride
   * is at least 2. */
  m.cpu_adamw.value = m.cpu_adamw_fp32.value = 1e3;
  hk_plan plan = stride_plan(1, HK_RUNTIME_HOCKET);
  assert_int_equal(hk_stride_auto(&plan, &m), 1);
  plan.runtime = HK_RUNTIME_DEEPSPEED;
  assert_int_equal(hk_stride_auto(&plan, &m), 2);
}

/* Host memory has 100 GB/s for kernels alone: 100 / 28 = 3.57 G parameters/s. Beside copies it has
 * 60: at most 60 / 24 = 2.5. So no subgroup is staged: the stride exceeds the 240 subgroups. */
static void no_round_trip_at_all(void **state) {
  (void)state;
  hk_machine m = round_machine();
  m.cpu_adamw.value = 4e9;
  m.dram.value = 100e9;
  m.dram_with_dma.value = 60e9;
  const hk_plan plan = stride_plan(1, HK_RUNTIME_HOCKET);
  assert_int_equal(hk_stride_auto(&plan, &m), 241);
}

/* `--stride auto` and no --stride both give hk_stride_auto's stride, 3 here. */
static void auto_is_applied(void **state) {
  (void)state;
  hk_error err = {0};
  const hk_machine m = round_machine();
  for (int given = 0; given < 2; given++) {
    hk_plan plan = ten(HK_RUNTIME_HOCKET);
    char text[16];
    const hk_policy_options options = {.stride_auto = given == 1, .ratio = -1};
    must(hk_policy_apply(&hk_policy_interleave, &options, &m, &plan, &err), &err);
    assert_int_equal(plan.stride, 3);
    assert_string_equal(letters(&plan, text), "CCSCCSCCSC");
    hk_plan_free(&plan);
  }
}

/* -- The stride against the simulator ---------------------------------------------------------- */

#define SUBGROUPS 240
#define NUMEL     20000000

static hk_ns update_at(hk_plan *plan, const hk_machine *m, int stride) {
  hk_error err = {0};
  hk_graph graph = {0};
  hk_result result = {0};
  plan->stride = stride;
  for (size_t i = 0; i < plan->n_subgroups; i++) {
    plan->subgroups[i].route = (i + 1) % (size_t)stride == 0 ? HK_ROUTE_STAGED : HK_ROUTE_CPU;
  }
  must(hk_graph_build(plan, (hk_expand){HK_EXPAND_UPDATE, .folded = true}, &graph, &err), &err);
  must(hk_simulate(&graph, m, NULL, &result, &err), &err);
  const hk_ns time = result.timeline.makespan;
  hk_result_free(&result);
  hk_graph_free(&graph);
  return time;
}

/* On all but `most_over` of 80 random machines (--full: 200; under sanitizers: 8) the update with
 * the closed form's stride is within 3 % of the best of strides 1 to 12, and everywhere within a
 * factor of `worst`. docs/stride.md lists what the closed form neglects. */
static void compare_with_the_best(bool priced, bool delayed, int most_over, double worst) {
  hk_plan_subgroup subgroups[SUBGROUPS];
  int32_t order[SUBGROUPS];
  for (int i = 0; i < SUBGROUPS; i++) {
    subgroups[i] = (hk_plan_subgroup){.numel = NUMEL};
    order[i] = i;
  }
  hk_model model = tiny_model(1);
  int over = 0;
  int chosen[4] = {0}; /* machines with stride 1, 2 to 12, more, none staged */
  for (uint64_t seed = 0; seed < case_count((case_counts){80, 8, 8}, (case_counts){200, 8, 8});
       seed++) {
    random_stream r = {seed};
    hk_machine m = random_node(&r);
    if (priced) price_copies(&r, &m);
    if (delayed) delay_memory(&r, &m);
    hk_plan plan = {.model = model,
                    .job = {.gpus = (int)m.gpus.value,
                            .nodes = 1,
                            .tp = 1,
                            .micro_batch = 1,
                            .grad_accum = 1,
                            .seq = 8},
                    .buffers = 4,
                    .piece_numel = NUMEL,
                    .cpu_threads = 1,
                    .subgroups = subgroups,
                    .n_subgroups = SUBGROUPS,
                    .order = order};
    const int stride = hk_stride_auto(&plan, &m);
    chosen[stride == 1 ? 0 : stride <= 12 ? 1 : stride <= SUBGROUPS ? 2 : 3]++;
    hk_ns best = INT64_MAX;
    int best_stride = 0;
    for (int k = 1; k <= 12; k++) {
      const hk_ns time = update_at(&plan, &m, k);
      if (time < best) best = time, best_stride = k;
    }
    const hk_ns time = update_at(&plan, &m, stride);
    over += (double)time > 1.03 * (double)best;
    if ((double)time > worst * (double)best) {
      fail_msg("seed %d: stride %d takes %.1f ms, %d takes %.1f ms", (int)seed, stride,
               (double)time / 1e6, best_stride, (double)best / 1e6);
    }
  }
  assert_in_range(over, 0, most_over);
  /* Every kind of stride was tested. */
  for (int i = 0; i < 4; i++) assert_true(chosen[i] > 0 || is_sanitized());
  hk_model_free(&model);
}

/* Of 3000 machines, six were more than 3 % off, the worst 4.5 %. */
static void auto_is_within_3_percent_of_the_best(void **state) {
  (void)state;
  compare_with_the_best(false, false, 2, 1.05);
}

/* Of 3000 machines each: with costs five were more than 3 % off, the worst 5.1 %; with delays
 * eight, 4.2 %; with both none, 3.0 %. */
static void auto_is_near_the_best_with_costs_and_delays(void **state) {
  (void)state;
  compare_with_the_best(true, false, 2, 1.06);
  compare_with_the_best(false, true, 2, 1.05);
  compare_with_the_best(true, true, 2, 1.05);
}

/* With a rising CPU rate the exact stride never falls. Nor does the whole stride while the exact
 * one rises and host memory can feed the CPU alone. Other rates are not checked: a CPU limited by
 * host memory takes a larger share of it for the same work, and of strides that are nearly equally
 * fast either may be chosen. */
static void a_faster_cpu_never_lowers_the_stride(void **state) {
  (void)state;
  uint64_t rises = 0;
  const uint64_t machines = case_count((case_counts){200, 20, 20}, (case_counts){500, 20, 20});
  for (uint64_t seed = 0; seed < machines; seed++) {
    random_stream r = {seed};
    hk_machine m = random_node(&r);
    const hk_plan plan = stride_plan((int)m.gpus.value, HK_RUNTIME_HOCKET);
    const double fed = m.dram.value / m.gpus.value / 28; /* parameters/s that host memory allows */
    double exact_before = 0;
    int before = 0;
    for (int step = 0; step < 50; step++) {
      const double rate = 1e7 * pow(1.2, step);
      m.cpu_adamw.value = rate;
      const double exact = hk_stride_balance(&plan, &m, NULL, NULL);
      const int stride = hk_stride_auto(&plan, &m);
      const bool risen = rate <= fed && exact > exact_before * (1 + 1e-9);
      if (exact < exact_before * (1 - 1e-9) || (risen && stride < before)) {
        fail_msg("seed %d: at %g parameters/s stride %d (%g) after %d (%g)", (int)seed, rate,
                 stride, exact, before, exact_before);
      }
      rises += stride > before && before > 0;
      before = stride;
      exact_before = exact;
    }
  }
  assert_true(rises > 5 * machines);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(routes_of_each_policy),
      cmocka_unit_test(ratios_round_down),
      cmocka_unit_test(deepspeed_before_and_since_0_18),
      cmocka_unit_test(buffers_are_passed_on),
      cmocka_unit_test(options_that_a_policy_does_not_take),
      cmocka_unit_test(values_out_of_range),
      cmocka_unit_test(what_deepspeed_cannot_do),
      cmocka_unit_test(names),
      cmocka_unit_test(unlimited_host_memory),
      cmocka_unit_test(lopsided_links),
      cmocka_unit_test(limited_host_memory),
      cmocka_unit_test(copies_at_their_costs),
      cmocka_unit_test(copies_out_come_first),
      cmocka_unit_test(kernels_beside_copies),
      cmocka_unit_test(copies_in_under_load),
      cmocka_unit_test(the_prototype),
      cmocka_unit_test(no_round_trip_at_all),
      cmocka_unit_test(auto_is_applied),
      cmocka_unit_test(auto_is_within_3_percent_of_the_best),
      cmocka_unit_test(auto_is_near_the_best_with_costs_and_delays),
      cmocka_unit_test(a_faster_cpu_never_lowers_the_stride),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
