/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Faults in training. Each copy, kernel, record and wait of an iteration fails once, for each
 * overlap, and so does each allocation, registration, copy and opening of a stream or event of
 * engine creation. Each failure returns an error, without a hang. After a failed iteration every
 * subgroup holds the state of the step before or of this one, as the engine says, or its state on
 * the device is lost. No further step is accepted. If all subgroups hold the same step, the state
 * can be saved, and training continues from the file. */
#include <unistd.h>

#include "tests/fixture_faults.h"
#include "tests/fixture_slow.h"
#include "tests/fixture_training.h"

/* The bits that each tensor had before the step. */
typedef struct {
  float *p, *m, *v;
  int64_t step;
} kept;

typedef struct {
  world w;
  kept old[MOST_TENSORS];
  char path[64];
  fault_tally seen;
  hk_overlap overlap;
} scene;

/* The first n_routes subgroups have one route each; the others are on the CPU. */
static size_t n_routes;
/* Iterations before the one in which a call fails. Nothing runs ahead in the first. */
static int warmups = 2;
/* The CPU is slow, so that the GPU takes pieces from it. */
static bool slow = false;
/* Backwards of an iteration. */
static int backwards = 1;

/* Two pieces per subgroup, so that there are few calls to fail. */
static hk_plan small_plan(const world *w, hk_overlap overlap) {
  hk_error err = {0};
  hk_plan plan = {0};
  must(hk_default_plan(w->params, w->n, 1, &plan, &err), &err);
  plan.overlap = overlap;
  plan.piece_numel = 700;
  plan.buffers = 2;
  plan.sum_bytes = backwards > 1 ? 4096 : 0;
  for (size_t s = 0; s < plan.n_subgroups; s++) {
    plan.subgroups[s].route = s < n_routes ? (hk_route)s : HK_ROUTE_CPU;
    plan.subgroups[s].ahead = overlap == HK_OVERLAP_BOTH && s >= n_routes;
    plan.subgroups[s].early = plan.subgroups[s].ahead && s % 2 == 0;
    plan.subgroups[s].held_staged = plan.subgroups[s].ahead && s % 3 == 0;
  }
  return plan;
}

/* Six blocks of two tensors. */
static void small_model(world *w, uint64_t seed) {
  static const int64_t numels[] = {900, 130};
  *w = (world){.r = {seed}, .n = 12, .blocks = 6, .n_groups = 1};
  w->groups[0] = (hk_adamw){.lr = 1e-2, .beta1 = 0.9, .beta2 = 0.99, .eps = 1e-8};
  for (size_t i = 0; i < w->n; i++) {
    make_tensor(w, i, (int)i / 2, numels[i % 2]);
  }
}

static hk_status create(world *w, hk_overlap overlap, const hk_backend_ops *ops, hk_error *err) {
  hk_plan plan = small_plan(w, overlap);
  const hk_engine_options options = {.backend = ops, .no_pin_threads = true};
  const hk_status status =
      hk_engine_create(&plan, w->params, w->n, w->groups, w->n_groups, &options, &w->engine, err);
  hk_plan_free(&plan);
  if (status == HK_OK && slow) slow_down(w->engine);
  return status;
}

static void good_iteration(world *w) {
  plain_iteration(w, backwards, 0);
}

static void keep(scene *s) {
  for (size_t i = 0; i < s->w.n; i++) {
    const tensor *t = &s->w.tensors[i];
    const size_t n = (size_t)t->param.numel;
    s->old[i] = (kept){memcpy(must_have(n, 4), t->p, 4 * n), memcpy(must_have(n, 4), t->m, 4 * n),
                       memcpy(must_have(n, 4), t->v, 4 * n), t->step};
  }
}

static void forget(scene *s) {
  for (size_t i = 0; i < s->w.n; i++) {
    free(s->old[i].p);
    free(s->old[i].m);
    free(s->old[i].v);
  }
  hk_engine_destroy(s->w.engine);
  s->w.engine = NULL;
  unmake(&s->w);
}

/* An iteration with the gradients of foresee, up to the first failure. */
static hk_status try_iteration(world *w, hk_error *err) {
  hk_step_report report;
  bool there = false;
  for (int b = 0; b < w->blocks; b++) {
    HK_TRY(hk_engine_wait_weights(w->engine, b, NULL, -1, &there, err));
  }
  for (int m = 0; m < backwards; m++) {
    for (size_t i = w->n; i-- > 0;) {
      const hk_gradient gradient = {(int64_t)i, w->tensors[i].handed};
      HK_TRY(hk_engine_gradients(w->engine, &gradient, 1, NULL, err));
    }
    HK_TRY(hk_engine_flush(w->engine, err));
  }
  HK_TRY(hk_engine_step(w->engine, NULL, &report, NULL, err));
  HK_TRY(hk_engine_wait_weights(w->engine, -1, NULL, -1, &there, err));
  return hk_engine_drain(w->engine, -1, &there, err);
}

/* Draws gradients, the same in each backward, and takes plain AdamW's step with their sum. */
static void foresee(world *w) {
  for (size_t i = 0; i < w->n; i++) {
    tensor *t = &w->tensors[i];
    for (int64_t k = 0; k < t->param.numel; k++) {
      narrow(t->param.grad_type, (float)(uniform(&w->r) - 0.5) * 0.01f, t->handed, k);
      const float one = widen(t->param.grad_type, t->handed, k);
      narrow(t->param.grad_type, one, t->grad, k);
      for (int m = 1; m < backwards; m++) {
        narrow(t->param.grad_type, widen(t->param.grad_type, t->grad, k) + one, t->grad, k);
      }
    }
    t->given = 1;
  }
  plain_update(w, 1);
}

static void assert_no_more_steps(world *w) {
  hk_error err = {0};
  hk_step_report report;
  hk_squares sum;
  bool there = false;
  const hk_gradient gradient = {0, w->tensors[0].grad};
  assert_int_equal(hk_engine_gradients(w->engine, &gradient, 1, NULL, &err), HK_ENVIRONMENT);
  assert_int_equal(hk_engine_step(w->engine, NULL, &report, NULL, &err), HK_ENVIRONMENT);
  assert_int_equal(hk_engine_wait_weights(w->engine, 0, NULL, -1, &there, &err), HK_ENVIRONMENT);
  assert_int_equal(hk_engine_drain(w->engine, -1, &there, &err), HK_ENVIRONMENT);
  assert_int_equal(hk_engine_sum_of_squares(w->engine, -1, &sum, &err), HK_ENVIRONMENT);
  assert_int_equal(hk_engine_discard(w->engine, -1, &err), HK_ENVIRONMENT);
  assert_int_equal(hk_engine_masters(w->engine, -1, NULL, &err), HK_ENVIRONMENT);
  assert_int_equal(hk_engine_load(w->engine, "not-even-there", NULL, NULL, &err), HK_ENVIRONMENT);
}

/* Tensor i's elements in one subgroup have the values of the step that the engine reports for it.
 */
static void assert_tensor(scene *s, size_t i, const hk_state_subgroup *sub) {
  const tensor *t = &s->w.tensors[i];
  int64_t begin = 0;
  hk_engine_param(s->w.engine, i, &begin);
  const int64_t first = hk_max(begin, sub->offset);
  const int64_t end = hk_min(begin + t->param.numel, sub->offset + sub->numel);
  if (first >= end) return;
  const bool new = sub->step == s->old[0].step + 1;
  const float *wanted[] = {new ? t->p : s->old[i].p, new ? t->m : s->old[i].m,
                           new ? t->v : s->old[i].v};
  float got[1024];
  for (int part = 0; part < 3; part++) {
    hk_error err = {0};
    must(hk_engine_read(s->w.engine, (hk_state_part)part, first, end - first, got, &err), &err);
    assert_memory_equal(got, wanted[part] + (first - begin), 4 * (size_t)(end - first));
  }
}

/* A new engine loads the saved state, takes this step if the state is old, and one more. */
static void resume(scene *s) {
  hk_error err = {0};
  world *w = &s->w;
  hk_engine_destroy(w->engine);
  must(create(w, HK_OVERLAP_FORWARD, &hk_backend_host, &err), &err);
  must(hk_engine_load(w->engine, s->path, NULL, NULL, &err), &err);
  must(hk_engine_weights_from_masters(w->engine, -1, NULL, &err), &err);
  if (hk_engine_step_number(w->engine) == s->old[0].step) {
    for (size_t i = w->n; i-- > 0;) {
      const hk_gradient gradient = {(int64_t)i, w->tensors[i].grad};
      must(hk_engine_gradients(w->engine, &gradient, 1, NULL, &err), &err);
    }
    hk_step_report report;
    must(hk_engine_step(w->engine, NULL, &report, NULL, &err), &err);
  }
  for (size_t i = 0; i < w->n; i++) w->tensors[i].given = 0;
  good_iteration(w);
  assert_state(w);
}

static void assert_sound(scene *s) {
  hk_error err = {0};
  fault_end end = {0};
  hk_engine *e = s->w.engine;
  must(hk_training_quiet(e, &err), &err);
  for (size_t k = 0; k < e->state.n_subgroups; k++) {
    const hk_state_subgroup *sub = &e->state.subgroups[k];
    if (sub->step < 0) {
      end.lost++;
      assert_int_equal(sub->route, HK_ROUTE_RESIDENT);
      continue;
    }
    *(sub->step == s->old[0].step + 1 ? &end.new : &end.old) += 1;
    if (sub->route == HK_ROUTE_RESIDENT && e->backend->ops->stream_sync(e->stream, &err) != HK_OK) {
      end.lost++; /* the device has failed */
      continue;
    }
    for (size_t i = 0; i < s->w.n; i++) assert_tensor(s, i, sub);
  }
  assert_no_more_steps(&s->w);
  const bool whole = tally_failure(&s->seen, &end);
  const hk_status saved = hk_engine_save(e, s->path, NULL, NULL, &err);
  assert_int_equal(saved, whole ? HK_OK : HK_ENVIRONMENT);
  if (whole) {
    resume(s);
    assert_int_equal(unlink(s->path), 0);
  }
}

/* Fails the n-th call of its kind in an iteration; false: there are fewer. */
static bool fail_nth(void *arg, hk_host_fault what, int64_t n) {
  scene *s = arg;
  hk_error err = {0};
  small_model(&s->w, 77);
  must(create(&s->w, s->overlap, &hk_backend_host, &err), &err);
  must(hk_engine_masters(s->w.engine, -1, NULL, &err), &err);
  for (int i = 0; i < warmups; i++) good_iteration(&s->w);
  assert_state(&s->w);
  keep(s);
  foresee(&s->w);
  hk_backend *b = s->w.engine->backend;
  hk_backend_host_fail(b, what, n);
  const hk_status status = try_iteration(&s->w, &err);
  hk_backend_host_fail(b, what, -1);
  if (status == HK_OK) {
    assert_state(&s->w);
  } else {
    assert_int_equal(status, HK_ENVIRONMENT);
    if (strstr(err.message, "an injected fault") == NULL) fail_msg("'%s'", err.message);
    assert_sound(s);
  }
  forget(s);
  return status != HK_OK;
}

static fault_tally seen; /* of all overlaps */

static void fail_everywhere(hk_overlap overlap, size_t routes) {
  static const hk_host_fault faults[] = {HK_HOST_COPY,   HK_HOST_COPYING, HK_HOST_LAUNCH,
                                         HK_HOST_KERNEL, HK_HOST_RECORD,  HK_HOST_WAIT};
  scene s = {.overlap = overlap};
  n_routes = routes;
  snprintf(s.path, sizeof s.path, "training-faults-%d-%d.ck", (int)getpid(), (int)overlap);
  /* The optimized build fails each call; the sanitizers, which are slow, may leave calls out. */
  int64_t apart = (int64_t)case_count((case_counts){.release = 1, .address = 9, .thread = 7},
                                      (case_counts){.release = 1, .address = 1, .thread = 7});
  if (slow && !is_full_run()) apart = hk_max(apart, 5);
  fail_each(faults, sizeof faults / sizeof *faults, apart, fail_nth, &s);
  tally_add(&seen, &s.seen);
}

static void without_overlap(void **unused) {
  (void)unused;
  fail_everywhere(HK_OVERLAP_NONE, 4);
  fail_everywhere(HK_OVERLAP_NONE, 0);
}
static void beside_forward(void **unused) {
  (void)unused;
  fail_everywhere(HK_OVERLAP_FORWARD, 4);
  fail_everywhere(HK_OVERLAP_FORWARD, 0);
}
static void ahead_of_the_norm(void **unused) {
  (void)unused;
  fail_everywhere(HK_OVERLAP_BOTH, 4);
  fail_everywhere(HK_OVERLAP_BOTH, 0);
}

/* A step in which nothing runs ahead: the CPU updates in place, the GPU into spare memory. */
static void after_the_norm(void **unused) {
  (void)unused;
  warmups = 0;
  fail_everywhere(HK_OVERLAP_BOTH, 4);
  fail_everywhere(HK_OVERLAP_BOTH, 0);
  warmups = 2;
}

/* While the GPU brings back pieces that it has taken from the CPU. With overlap forward, and in
 * steps that are held, the CPU updates their subgroups in place. */
static void while_pieces_are_stolen(void **unused) {
  (void)unused;
  slow = true;
  fail_everywhere(HK_OVERLAP_FORWARD, 2);
  fail_everywhere(HK_OVERLAP_BOTH, 2);
  warmups = 0;
  fail_everywhere(HK_OVERLAP_BOTH, 2);
  warmups = 2;
  slow = false;
}

/* Two backwards, with sums that stay on the device and sums that come back. */
static void while_gradients_accumulate(void **unused) {
  (void)unused;
  backwards = 2;
  fail_everywhere(HK_OVERLAP_BOTH, 0);
  backwards = 1;
}

/* Enough faults, and each kind of outcome, must have occurred in the tests above. */
static void all_outcomes_occurred(void **unused) {
  (void)unused;
  assert_true(seen.failures > 60);
  assert_true(seen.mixtures > 0 && seen.whole_old > 0 && seen.whole_new > 0 && seen.lost > 0);
}

/* -- Making an engine -------------------------------------------------------------------------- */

static hk_status make_world(const hk_backend_ops *ops, void *unused, hk_error *err) {
  (void)unused;
  world w;
  small_model(&w, 78);
  const hk_status status = create(&w, HK_OVERLAP_BOTH, ops, err);
  if (status == HK_OK) hk_backend_host_fail(w.engine->backend, armed_fault.what, -1);
  assert_true((status == HK_OK) == (w.engine != NULL));
  if (status != HK_OK) assert_true(strlen(err->message) > 20);
  unmake(&w);
  return status;
}

static void creation_succeeds_or_leaves_nothing(void **unused) {
  (void)unused;
  n_routes = 4;
  static const hk_host_fault faults[] = {HK_HOST_ALLOC, HK_HOST_REGISTER, HK_HOST_LAUNCH,
                                         HK_HOST_OPEN};
  for (size_t f = 0; f < sizeof faults / sizeof *faults; f++) {
    fail_making(faults[f], "", make_world, NULL);
  }
}

int main(void) {
  alarm(590); /* ends the program if it hangs */
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(without_overlap),
      cmocka_unit_test(beside_forward),
      cmocka_unit_test(ahead_of_the_norm),
      cmocka_unit_test(after_the_norm),
      cmocka_unit_test(while_pieces_are_stolen),
      cmocka_unit_test(while_gradients_accumulate),
      cmocka_unit_test(all_outcomes_occurred),
      cmocka_unit_test(creation_succeeds_or_leaves_nothing),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
