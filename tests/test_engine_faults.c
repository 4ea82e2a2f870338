/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Failures of the engine: too little memory, refused pinning, inconsistent input, and copies and
 * kernels that fail at each moment of a step. After each failure of a step every subgroup must hold
 * the state of the old step or of the new one, bit for bit, or be lost on the device, and the
 * engine must say which. */
#include <stdio.h>
#include <unistd.h>

#include "engine/train/training_private.h"
#include "tests/fixture_faults.h"

/* Number of plans; every APART-th fault. The sanitizers are slow: they inject every fault only in
 * a full run (scripts/test --full). */
#ifdef __SANITIZE_THREAD__
#define PLANS 1
#define APART (is_full_run() ? 1 : 7)
#else
#define PLANS 3
#define APART (is_full_run() ? 1 : 3)
#endif

static const hk_engine_options unpinned = {.no_pin_threads = true};

/* 18,528 parameters on every route, one to four pieces a subgroup: few enough copies
 * that each can fail once. */
static hk_plan small_plan(random_stream *r) {
  hk_error err = {0};
  hk_plan plan;
  hk_model model = model_of(
      "{\"architectures\": [\"LlamaForCausalLM\"], \"num_hidden_layers\": 1, \"hidden_size\": 32, "
      "\"intermediate_size\": 64, \"num_attention_heads\": 4, \"num_key_value_heads\": 4, "
      "\"vocab_size\": 128, \"max_position_embeddings\": 64}",
      "small");
  must(hk_plan_create(&model, &one_gpu, HK_RUNTIME_HOCKET, HK_SUBGROUP_EXACT,
                      (int64_t)scale(r, 1000, 2600), &plan, &err),
       &err);
  hk_model_free(&model);
  plan.piece_numel = (int64_t)scale(r, 700, 2600);
  plan.buffers = pick(r, 1, 3);
  plan.cpu_threads = 1;
  const int first = pick(r, 0, HK_ROUTE_COUNT - 1);
  for (size_t s = 0; s < plan.n_subgroups; s++) {
    plan.subgroups[s].route = (hk_route)((first + (int)s) % HK_ROUTE_COUNT);
  }
  must(hk_plan_check(&plan, &err), &err);
  return plan;
}

/* -- One plan, its old state, its new state --------------------------------------------------- */

typedef struct {
  hk_plan plan, other; /* the same parameters on other routes */
  plain_adamw old, new;
  char checkpoint[64]; /* of the old state */
  char spare[64];
  random_stream random;
  fault_tally seen;
} scene;

static plain_adamw copy_of(const plain_adamw *a) {
  plain_adamw b = *a;
  const size_t n = (size_t)a->n;
  b.p = memcpy(must_have(n, 4), a->p, 4 * n);
  b.m = memcpy(must_have(n, 4), a->m, 4 * n);
  b.v = memcpy(must_have(n, 4), a->v, 4 * n);
  b.w = memcpy(must_have(n, 2), a->w, 2 * n);
  b.grad = memcpy(must_have(n, 2), a->grad, 2 * n);
  return b;
}

static void open_scene(scene *s, uint64_t number) {
  hk_error err = {0};
  s->random = (random_stream){number};
  s->plan = small_plan(&s->random);
  s->other = small_plan(&s->random);
  s->old = plain_start(&s->random, numel_of(&s->plan), HK_GRAD_BF16);
  plain_gradients(&s->old, &s->random);
  plain_step(&s->old, 1);
  plain_gradients(&s->old, &s->random);
  s->new = copy_of(&s->old);
  plain_step(&s->new, 1);
  snprintf(s->checkpoint, sizeof s->checkpoint, "faults-%d-%d.ck", (int)getpid(), (int)number);
  snprintf(s->spare, sizeof s->spare, "faults-%d-%d-spare.ck", (int)getpid(), (int)number);
  hk_engine *engine = engine_like(&s->plan, &s->old, &unpinned);
  must(hk_engine_save(engine, s->checkpoint, NULL, NULL, &err), &err);
  end_engine(engine);
}

static void close_scene(scene *s) {
  unlink(s->checkpoint);
  hk_plan_free(&s->plan);
  hk_plan_free(&s->other);
  plain_stop(&s->old);
  plain_stop(&s->new);
}

/* An engine at the old state; with `been_ahead` it took the step and then loaded the checkpoint. */
static hk_engine *engine_at_old(scene *s, bool been_ahead) {
  hk_error err = {0};
  hk_engine *engine = engine_like(&s->plan, &s->old, &unpinned);
  if (been_ahead) {
    hk_step_report report;
    give_gradients(engine, &s->old, &s->random);
    must(take_step(engine, &s->old, 1, &report, &err), &err);
    must(hk_engine_load(engine, s->checkpoint, NULL, NULL, &err), &err);
  }
  return engine;
}

/* -- The state after a failure ---------------------------------------------------------------- */

static void assert_range(hk_engine *engine, const plain_adamw *a, int64_t offset, int64_t n) {
  const float *const wanted[] = {a->p, a->m, a->v};
  hk_error err = {0};
  for (int part = HK_STATE_P; part <= HK_STATE_V; part++) {
    float *got = must_have((size_t)n, sizeof *got);
    must(hk_engine_read(engine, (hk_state_part)part, offset, n, got, &err), &err);
    const int64_t i = first_difference(got, wanted[part] + offset, sizeof *got, n);
    free(got);
    if (i == n) continue;
    const int64_t parameter = offset + i, step = a->step;
    fail_msg("%c of parameter %lld (of %lld from %lld on) is not that of step %lld", "pmv"[part],
             (long long)parameter, (long long)n, (long long)offset, (long long)step);
  }
}

/* Lists the subgroups at `step` as the message does ("0-2, 5") and counts them. */
static int list_of(const hk_engine *engine, int64_t step, char *text, size_t size) {
  const size_t n = engine->plan.n_subgroups;
  int count = 0;
  size_t used = 0;
  text[0] = 0;
  for (size_t s = 0; s < n; s++) {
    if (hk_engine_subgroup_step(engine, s) != step) continue;
    const bool follows = s > 0 && hk_engine_subgroup_step(engine, s - 1) == step;
    const bool goes_on = s + 1 < n && hk_engine_subgroup_step(engine, s + 1) == step;
    const char *before = follows ? "-" : count > 0 ? ", " : "";
    if (!(follows && goes_on)) {
      used += (size_t)snprintf(text + used, size - used, "%s%zu", before, s);
    }
    count++;
  }
  return count;
}

static void assert_message(const hk_engine *engine, const char *message, int64_t step) {
  char list[160], wanted[400];
  int count = list_of(engine, step, list, sizeof list);
  snprintf(wanted, sizeof wanted, "%d subgroups hold step %d's state%s%s, ", count, (int)step,
           count > 0 ? ": " : "", list);
  assert_non_null(strstr(message, wanted));
  count = list_of(engine, step - 1, list, sizeof list);
  snprintf(wanted, sizeof wanted, ", %d step %d's%s%s", count, (int)step - 1, count > 0 ? ": " : "",
           list);
  assert_non_null(strstr(message, wanted));
  count = list_of(engine, -1, list, sizeof list);
  snprintf(wanted, sizeof wanted, "; %d lost on the device: %s)", count, list);
  if (count > 0) assert_non_null(strstr(message, wanted));
  if (count == 0) assert_null(strstr(message, "lost"));
}

/* After a failure the engine refuses gradients, steps, writes and loads. */
static void assert_no_more_steps(hk_engine *engine, const plain_adamw *a) {
  hk_error err = {0};
  hk_step_report report;
  assert_int_equal(hand_some(engine, 0, 1, &err), HK_ENVIRONMENT);
  assert_int_equal(take_step(engine, a, 1, &report, &err), HK_ENVIRONMENT);
  assert_int_equal(hk_engine_write(engine, HK_STATE_M, 0, 1, a->m, &err), HK_ENVIRONMENT);
  assert_int_equal(hk_engine_set_step(engine, 0, &err), HK_ENVIRONMENT);
  assert_int_equal(hk_engine_load(engine, "not-even-there", NULL, NULL, &err), HK_ENVIRONMENT);
}

/* A new engine under either plan that loads the checkpoint and, if it is old, takes the step, holds
 * the new state. */
static void resume_from_checkpoint(scene *s, const char *path) {
  hk_error err = {0};
  const bool here = uniform(&s->random) < 0.5;
  hk_engine *engine = new_engine(here ? &s->plan : &s->other, &s->old, &unpinned);
  must(hk_engine_load(engine, path, NULL, NULL, &err), &err);
  if (hk_engine_step_number(engine) == s->old.step) {
    hk_step_report report;
    give_gradients(engine, &s->old, &s->random);
    must(take_step(engine, &s->old, 1, &report, &err), &err);
  }
  assert_int_equal(hk_engine_step_number(engine), s->new.step);
  assert_state_bits(engine, &s->new);
  end_engine(engine);
}

static void assert_sound(scene *s, hk_engine *engine, const char *message) {
  hk_error err = {0};
  fault_end end = {0};
  for (size_t i = 0; i < s->plan.n_subgroups; i++) {
    const hk_state_subgroup *sub = &engine->state.subgroups[i];
    const int64_t step = hk_engine_subgroup_step(engine, i);
    float p = 0;
    if (step == s->old.step) {
      assert_range(engine, &s->old, sub->offset, sub->numel);
      end.old++;
    } else if (step == s->new.step) {
      assert_range(engine, &s->new, sub->offset, sub->numel);
      end.new ++;
    } else {
      assert_int_equal(step, -1);
      assert_int_equal(sub->route, HK_ROUTE_RESIDENT);
      assert_int_equal(hk_engine_read(engine, HK_STATE_P, sub->offset, 1, &p, &err),
                       HK_ENVIRONMENT);
      end.lost++;
    }
  }
  assert_message(engine, message, s->new.step);
  assert_no_more_steps(engine, &s->old);
  const bool whole = tally_failure(&s->seen, &end);
  const hk_status saved = hk_engine_save(engine, s->spare, NULL, NULL, &err);
  assert_int_equal(saved, whole ? HK_OK : HK_ENVIRONMENT);
  assert_int_equal(access(s->spare, F_OK), whole ? 0 : -1);
}

/* -- Every copy and every kernel of a step fails once ----------------------------------------- */

/* Fails the n-th call of its kind in a step; false: the step has fewer. */
static bool fail_step(void *arg, hk_host_fault what, int64_t n) {
  scene *s = arg;
  hk_error err = {0};
  hk_step_report report;
  hk_engine *engine = engine_at_old(s, n % 3 == 1);
  give_gradients(engine, &s->old, &s->random);
  hk_backend_host_fail(engine->backend, what, n);
  const hk_status status = take_step(engine, &s->old, 1, &report, &err);
  hk_backend_host_fail(engine->backend, what, -1);
  if (status == HK_OK) {
    assert_same_bits(engine, &s->new);
  } else {
    assert_int_equal(status, HK_ENVIRONMENT);
    assert_non_null(strstr(err.message, "step 2 failed"));
    assert_non_null(strstr(err.message, "an injected fault"));
    assert_sound(s, engine, err.message);
  }
  end_engine(engine);
  if (status != HK_OK && n % 5 == 0) resume_from_checkpoint(s, s->checkpoint);
  if (access(s->spare, F_OK) == 0) {
    resume_from_checkpoint(s, s->spare);
    unlink(s->spare);
  }
  return status != HK_OK;
}

/* Runs one more plan with every fault and adds the outcomes to the counts. */
static void fail_everywhere(uint64_t number, fault_tally *seen) {
  scene s = {0};
  open_scene(&s, number);
  static const hk_host_fault faults[] = {HK_HOST_COPY, HK_HOST_COPYING, HK_HOST_LAUNCH,
                                         HK_HOST_KERNEL};
  fail_each(faults, sizeof faults / sizeof faults[0], APART, fail_step, &s);
  tally_add(seen, &s.seen);
  close_scene(&s);
}

static void every_fault_is_survived(void **unused) {
  (void)unused;
  fault_tally seen = {0};
  for (uint64_t number = 0; number < PLANS; number++) {
    fail_everywhere(100 + 10 * number, &seen);
  }
  /* Enough faults must have occurred, and each kind of outcome except whole_new. */
  assert_true(APART * seen.failures > 50 * PLANS);
  assert_true(APART * seen.mixtures > 15 * PLANS);
  assert_true(seen.whole_old > 0);
  assert_true(APART * seen.lost > 3 * PLANS);
}

/* -- Gradients -------------------------------------------------------------------------------- */

/* Fails the n-th call of its kind while gradients arrive; false: there are fewer. */
static bool fail_gradients(void *arg, hk_host_fault what, int64_t n) {
  scene *s = arg;
  hk_error err = {0};
  hk_squares sum;
  hk_engine *engine = engine_at_old(s, false);
  copy_on_device(engine, weights_of(engine) + 2 * s->old.n, s->old.grad, 2 * s->old.n);
  hk_backend_host_fail(engine->backend, what, n);
  hk_status status = hand_some(engine, 0, 1, &err);
  if (status == HK_OK) status = hk_engine_flush(engine, &err);
  if (status == HK_OK) status = hk_engine_sum_of_squares(engine, -1, &sum, &err);
  /* These calls return before the gradients' copies to the host end. */
  if (status == HK_OK) status = engine->backend->ops->stream_sync(engine->training->flush, &err);
  hk_backend_host_fail(engine->backend, what, -1);
  hk_step_report report;
  if (status != HK_OK) {
    assert_int_equal(status, HK_ENVIRONMENT);
    assert_no_more_steps(engine, &s->old);
    for (size_t i = 0; i < s->plan.n_subgroups; i++) {
      const hk_state_subgroup *sub = &engine->state.subgroups[i];
      assert_int_equal(sub->step, s->old.step);
      if (sub->route == HK_ROUTE_RESIDENT) continue; /* out of reach when the device is lost */
      assert_range(engine, &s->old, sub->offset, sub->numel);
    }
  } else {
    must(take_step(engine, &s->old, 1, &report, &err), &err);
    assert_same_bits(engine, &s->new);
  }
  end_engine(engine);
  return status != HK_OK;
}

static void gradients_that_fail_to_arrive_end_the_engine(void **unused) {
  (void)unused;
  static const hk_host_fault faults[] = {HK_HOST_COPY, HK_HOST_COPYING, HK_HOST_LAUNCH,
                                         HK_HOST_KERNEL};
  scene s = {0};
  open_scene(&s, 300);
  fail_each(faults, sizeof faults / sizeof faults[0], APART, fail_gradients, &s);
  close_scene(&s);
}

/* -- Creation --------------------------------------------------------------------------------- */

static hk_status make_engine(const hk_backend_ops *ops, void *arg, hk_error *err) {
  const hk_plan *plan = arg;
  const plain_group group = {.numel = numel_of(plan), .hyper = {.lr = 1e-3}};
  const hk_engine_options options = {.no_pin_threads = true, .backend = ops};
  hk_engine *engine = NULL;
  const hk_status status = open_engine(plan, &group, 1, HK_GRAD_BF16, &options, &engine, err);
  assert_true((status == HK_OK) == (engine != NULL));
  hk_engine_destroy(engine);
  return status;
}

/* Every allocation, registration and zeroing of creation fails once: there is an error and no
 * engine.
 */
static void creation_succeeds_or_leaves_nothing(void **unused) {
  (void)unused;
  static const struct {
    hk_host_fault what;
    const char *says;
  } faults[] = {{HK_HOST_ALLOC, "out of device memory"},
                {HK_HOST_REGISTER, "cannot be pinned"},
                {HK_HOST_LAUNCH, "setting memory to zero"}};
  random_stream r = {320};
  hk_plan plan = small_plan(&r);
  for (size_t f = 0; f < sizeof faults / sizeof faults[0]; f++) {
    fail_making(faults[f].what, faults[f].says, make_engine, &plan);
  }
  hk_plan_free(&plan);
}

static void too_little_device_memory_is_refused(void **unused) {
  (void)unused;
  random_stream r = {330};
  hk_error err = {0};
  hk_plan plan = small_plan(&r);
  const plain_group group = {.numel = numel_of(&plan), .hyper = {.lr = 1e-3}};
  hk_engine_options options = unpinned;
  hk_engine_memory memory;
  hk_engine *engine = NULL;
  hk_param params[MOST_CUTS];
  const size_t n = cut_tensors(&group, 1, HK_GRAD_BF16, params);
  must(hk_engine_measure(&plan, params, n, &memory, &err), &err);
  options.backend_options.memory = memory.device;
  must(open_engine(&plan, &group, 1, HK_GRAD_BF16, &options, &engine, &err), &err);
  const hk_engine_memory taken = hk_engine_memory_taken(engine);
  assert_memory_equal(&taken, &memory, sizeof memory);
  hk_engine_destroy(engine);
  engine = NULL;

  options.backend_options.memory = memory.device / 2;
  assert_int_equal(open_engine(&plan, &group, 1, HK_GRAD_BF16, &options, &engine, &err),
                   HK_ENVIRONMENT);
  assert_null(engine);
  char wish[32], had[32];
  assert_non_null(strstr(err.message, hk_format_bytes(memory.device, wish, sizeof wish)));
  assert_non_null(
      strstr(err.message, hk_format_bytes(memory.device / 2 / 512 * 512, had, sizeof had)));
  assert_non_null(strstr(err.message, "--buffers"));
  options.backend_options.memory = memory.device - 512;
  assert_int_equal(open_engine(&plan, &group, 1, HK_GRAD_BF16, &options, &engine, &err),
                   HK_ENVIRONMENT);
  hk_plan_free(&plan);
}

/* 1.6e12 parameters: more than 19 TB, on the host or on the host backend's device. */
static void too_little_host_memory_is_refused(void **unused) {
  (void)unused;
  static const char config[] =
      "{\"architectures\": [\"LlamaForCausalLM\"], \"num_hidden_layers\": 500, "
      "\"hidden_size\": 16384, \"intermediate_size\": 53248, \"num_attention_heads\": 128, "
      "\"num_key_value_heads\": 8, \"vocab_size\": 128256, \"max_position_embeddings\": 4096}";
  hk_error err = {0};
  hk_model model = model_of(config, "large");
  hk_plan plan;
  must(hk_plan_create(&model, &one_gpu, HK_RUNTIME_HOCKET, HK_SUBGROUP_EXACT, (int64_t)1 << 34,
                      &plan, &err),
       &err);
  hk_model_free(&model);
  plan.cpu_threads = 1;
  plan.piece_numel = (int64_t)1 << 34;
  const plain_group group = {.numel = numel_of(&plan), .hyper = {.lr = 1e-3}};
  for (int route = HK_ROUTE_CPU; route < HK_ROUTE_COUNT; route++) {
    for (size_t s = 0; s < plan.n_subgroups; s++) plan.subgroups[s].route = (hk_route)route;
    hk_engine *engine = NULL;
    hk_engine_memory memory;
    hk_param params[MOST_CUTS];
    const size_t n = cut_tensors(&group, 1, HK_GRAD_BF16, params);
    must(hk_engine_measure(&plan, params, n, &memory, &err), &err);
    assert_true(memory.device + memory.host_pinned > 12 * group.numel);
    assert_int_equal(open_engine(&plan, &group, 1, HK_GRAD_BF16, &unpinned, &engine, &err),
                     HK_ENVIRONMENT);
    char wish[32];
    const hk_bytes all = memory.device + memory.host_pinned;
    assert_non_null(strstr(err.message, hk_format_bytes(all, wish, sizeof wish)));
    assert_non_null(strstr(err.message, "MemAvailable"));
  }
  hk_plan_free(&plan);
}

/* Tensors of a model of n parameters, in two groups. */
typedef struct {
  hk_param params[2];
  hk_adamw groups[2];
  size_t n_groups;
} made_of;

static void refuse(const hk_plan *plan, const made_of *of, const char *wanted) {
  hk_error err = {0};
  hk_engine *engine = NULL;
  assert_int_equal(
      hk_engine_create(plan, of->params, 2, of->groups, of->n_groups, &unpinned, &engine, &err),
      HK_INPUT);
  assert_null(engine);
  if (strstr(err.message, wanted) == NULL) fail_msg("'%s' lacks '%s'", err.message, wanted);
}

static void inconsistent_input_is_refused(void **unused) {
  (void)unused;
  random_stream r = {340};
  hk_plan plan = small_plan(&r);
  const int64_t n = numel_of(&plan);
  const hk_adamw hyper = {.lr = 1e-3, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8};
  made_of of = {{{.numel = n - 10}, {.numel = 10, .group = 1}}, {hyper, hyper}, 2};
  of.n_groups = 0;
  refuse(&plan, &of, "1 to 65536 parameter groups");
  of.n_groups = HK_MOST_PARAM_GROUPS + 1;
  refuse(&plan, &of, "1 to 65536 parameter groups");
  of.n_groups = 1;
  refuse(&plan, &of, "tensor 1 is of parameter group 1; there are 1");
  of.n_groups = 2;
  of.params[1].numel = 11;
  refuse(&plan, &of, "they must be of one model and one rank");
  of.params[1].numel = 0;
  refuse(&plan, &of, "tensor 1 has 0 elements");
  of.params[1].numel = INT64_MAX;
  refuse(&plan, &of, "tensor 1 has");
  of.params[1].numel = 10;
  of.params[0].block = 1;
  refuse(&plan, &of, "tensor 1 is of block 0, the one before it of block 1");
  of.params[0].block = 0;
  of.params[1].grad_type = HK_GRAD_TYPES;
  refuse(&plan, &of, "its types must be bf16, fp16 or fp32");
  of.params[1].grad_type = HK_GRAD_BF16;
  const hk_adamw wrong[] = {
      {.lr = -1},      {.lr = (double)NAN}, {.lr = (double)INFINITY},     {.beta1 = 1},
      {.beta2 = -0.1}, {.eps = -1},         {.weight_decay = (double)NAN}};
  for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
    of.groups[1] = wrong[i];
    refuse(&plan, &of, "parameter group 1: lr");
  }
  of.groups[1] = hyper;
  const int32_t first = plan.order[0];
  plan.order[0] = plan.order[1];
  refuse(&plan, &of, "order");
  plan.order[0] = first;
  plan.subgroups[0].numel++;
  refuse(&plan, &of, "subgroups");
  plan.subgroups[0].numel--;
  plan.runtime = HK_RUNTIME_DEEPSPEED;
  refuse(&plan, &of, "'hocket simulate', measure DeepSpeed itself with bench/peers");
  plan.runtime = HK_RUNTIME_HOCKET;

  hk_error err = {0};
  hk_engine *engine = NULL;
  hk_adamw got;
  must(hk_engine_create(&plan, of.params, 2, of.groups, 2, &unpinned, &engine, &err), &err);
  assert_int_equal(hk_engine_set_group(engine, 2, &hyper, &err), HK_INPUT);
  assert_int_equal(hk_engine_set_group(engine, 1, &wrong[0], &err), HK_INPUT);
  assert_int_equal(hk_engine_get_group(engine, 2, &got, &err), HK_INPUT);
  must(hk_engine_get_group(engine, 1, &got, &err), &err);
  assert_true(got.lr == hyper.lr);
  float p = 0;
  assert_int_equal(hk_engine_read(engine, HK_STATE_P, INT64_MAX, INT64_MAX, &p, &err), HK_INPUT);
  assert_int_equal(hk_engine_write(engine, HK_STATE_P, n, 1, &p, &err), HK_INPUT);
  assert_int_equal(hk_engine_set_step(engine, -1, &err), HK_INPUT);
  hk_engine_destroy(engine);
  hk_plan_free(&plan);
}

/* A copy to the device that fails has left a mixture: the engine takes no step, and does not save.
 */
static void a_write_that_fails_loses_the_state(void **unused) {
  (void)unused;
  random_stream r = {611};
  hk_error err = {0};
  const hk_engine_options options = {.no_pin_threads = true};
  hk_plan plan = random_engine_plan(&r);
  plan.subgroups[0].route = HK_ROUTE_RESIDENT;
  plain_adamw a = plain_start(&r, numel_of(&plan), HK_GRAD_BF16);
  hk_engine *engine = engine_like(&plan, &a, &options);
  hk_backend_host_fail(engine->backend, HK_HOST_COPY, 0);
  assert_int_equal(hk_engine_write(engine, HK_STATE_M, 0, 4, a.m, &err), HK_ENVIRONMENT);
  hk_backend_host_fail(engine->backend, HK_HOST_COPY, -1);
  assert_int_equal(hk_engine_subgroup_step(engine, 0), -1);
  assert_int_equal(hk_engine_save(engine, "lost.ck", NULL, NULL, &err), HK_ENVIRONMENT);
  assert_int_equal(hk_engine_read(engine, HK_STATE_M, 0, 4, a.m, &err), HK_ENVIRONMENT);
  assert_non_null(strstr(err.message, "was lost"));
  hk_step_report report;
  assert_int_equal(take_step(engine, &a, 1, &report, &err), HK_ENVIRONMENT);
  end_engine(engine);
  plain_stop(&a);
  hk_plan_free(&plan);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(every_fault_is_survived),
      cmocka_unit_test(gradients_that_fail_to_arrive_end_the_engine),
      cmocka_unit_test(creation_succeeds_or_leaves_nothing),
      cmocka_unit_test(too_little_device_memory_is_refused),
      cmocka_unit_test(too_little_host_memory_is_refused),
      cmocka_unit_test(inconsistent_input_is_refused),
      cmocka_unit_test(a_write_that_fails_loses_the_state),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
