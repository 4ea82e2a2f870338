/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Steps of several backwards. Sums that do not stay in device memory go to the host and come back.
 * State and weights have the bits of plain AdamW whatever the number of backwards, however it
 * changes, and whichever tensors some of them leave out. When the number is known, sums are fetched
 * before they are needed, and nothing is given up. */
#include "engine/train/training_private.h"
#include "tests/fixture_training.h"

enum { LAYERS = 20, LAYER = 640 };

/* ThreadSanitizer looks for races, which do not depend on every number: by default some are left
 * out. */
static int apart(void) {
  return (int)case_count((case_counts){.release = 1, .address = 1, .thread = 3},
                         (case_counts){.release = 1, .address = 1, .thread = 1});
}

/* Layers of one tensor each, which are one image each. `kept`: slots for sums that stay. The first
 * `early` layers have early weights. */
static void open_early(world *w, hk_overlap overlap, int kept, size_t early, hk_grad_type type) {
  hk_error err = {0};
  hk_plan plan = {0};
  w->n = LAYERS;
  w->blocks = LAYERS;
  w->n_groups = 1;
  w->groups[0] = (hk_adamw){.lr = 1e-2, .beta1 = 0.9, .beta2 = 0.99, .eps = 1e-8};
  for (size_t i = 0; i < w->n; i++) {
    make_tensor(w, i, (int)i, LAYER);
    w->tensors[i].param.grad_type = w->params[i].grad_type = type;
  }
  must(hk_default_plan(w->params, w->n, 1, &plan, &err), &err);
  plan.overlap = overlap;
  plan.sum_bytes = kept * ((hk_bytes)(2 * LAYER + 511) / 512 * 512);
  for (size_t s = 0; s < plan.n_subgroups; s++) {
    plan.subgroups[s].ahead = overlap == HK_OVERLAP_BOTH;
    plan.subgroups[s].early = s < early;
  }
  const hk_engine_options options = {.no_pin_threads = true};
  must(hk_engine_create(&plan, w->params, w->n, w->groups, 1, &options, &w->engine, &err), &err);
  hk_plan_free(&plan);
  must(hk_engine_masters(w->engine, -1, NULL, &err), &err);
}

static void open_layers(world *w, hk_overlap overlap, int kept) {
  open_early(w, overlap, kept, 0, HK_GRAD_BF16);
  assert_int_equal(w->engine->training->n_passing, LAYERS);
}

/* Hands over gradients of n tensors from `first` on. */
typedef void hand_fn(world *w, size_t first, size_t n);

static void one_by_one(world *w, size_t first, size_t n) {
  for (size_t i = 0; i < n; i++) hand_over(w, first + i, true);
}

static void by_one_call(world *w, size_t first, size_t n) {
  hand_over_together(w, first, n, true);
}

/* As the Python package does if a block's gradients are large: the last three when they have come,
 * and the others when all have. */
static void by_two_calls(world *w, size_t first, size_t n) {
  by_one_call(w, first + n - 3, 3);
  by_one_call(w, first, n - 3);
}

/* One iteration of `backwards`; the norm is not limited. Gradients come from the last layer to the
 * first; a layer has `together` tensors. Returns the elements that ran ahead. */
static int64_t accumulate_so(world *w, int backwards, size_t together, hand_fn *hand) {
  hk_error err = {0};
  hk_step_report report;
  forward(w);
  for (int m = 0; m < backwards; m++) {
    for (size_t i = w->n; i > 0; i -= together) hand(w, i - together, together);
    must(hk_engine_flush(w->engine, &err), &err);
  }
  const double squares = plain_squares(w);
  must(hk_engine_step(w->engine, NULL, &report, NULL, &err), &err);
  assert_true(report.grad_norm == sqrt(squares));
  plain_update(w, hk_grad_scale(squares, 0, 1));
  for (size_t i = 0; i < w->n; i++) w->tensors[i].given = 0;
  return report.ahead;
}

static int64_t accumulate(world *w, int backwards) {
  return accumulate_so(w, backwards, 1, one_by_one);
}

/* Once the number of backwards is known, each sum that does not stay is fetched once a backward
 * but the first, none of them late. */
static void known_sums_are_fetched_in_time(void **unused) {
  (void)unused;
  static const int kept[] = {0, 1, 5, 11, LAYERS};
  for (size_t k = 0; k < sizeof kept / sizeof *kept; k++) {
    for (int overlap = HK_OVERLAP_NONE; overlap <= HK_OVERLAP_BOTH; overlap++) {
      for (int backwards = 1; backwards <= 4; backwards += apart()) {
        world w = {.r = {k + 11}};
        open_layers(&w, (hk_overlap)overlap, kept[k]);
        const struct hk_training *t = w.engine->training;
        for (int i = 0; i < 2; i++) accumulate(&w, backwards);
        const int64_t fetched = t->n_fetched, late = t->n_late;
        accumulate(&w, backwards);
        const int pass = kept[k] < LAYERS - 8 ? LAYERS - kept[k] : 0; /* there are 8 slots more */
        assert_int_equal(t->n_fetched - fetched, (backwards - 1) * pass);
        assert_int_equal(t->n_late, late);
        assert_state(&w);
        unmake(&w);
      }
    }
  }
}

enum { BLOCKS = 3, TENSORS = 7 };

/* Layers as transformers have them (q, k, v, o, gate, up, down), in pieces of so many elements. */
static void open_transformer(world *w, int64_t piece) {
  static const int64_t numel[TENSORS] = {128, 64, 64, 128, 384, 384, 384};
  hk_error err = {0};
  hk_plan plan = {0};
  w->n = (size_t)BLOCKS * TENSORS;
  w->blocks = BLOCKS;
  w->n_groups = 1;
  w->groups[0] = (hk_adamw){.lr = 1e-2, .beta1 = 0.9, .beta2 = 0.99, .eps = 1e-8};
  for (size_t i = 0; i < w->n; i++) make_tensor(w, i, (int)(i / TENSORS), numel[i % TENSORS]);
  must(hk_default_plan(w->params, w->n, 1, &plan, &err), &err);
  plan.overlap = HK_OVERLAP_FORWARD;
  plan.piece_numel = piece;
  const hk_engine_options options = {.no_pin_threads = true};
  must(hk_engine_create(&plan, w->params, w->n, w->groups, 1, &options, &w->engine, &err), &err);
  hk_plan_free(&plan);
  must(hk_engine_masters(w->engine, -1, NULL, &err), &err);
}

/* A layer has more images than there are slots, and most have parts of two tensors or more.
 * Backward comes to the tensors in the reverse order, one by one or several by a call: each sum is
 * fetched once a backward, in time. If they come one by one in the layer's own order, backward
 * comes back to images that it has left, and some are fetched twice. */
static void images_that_tensors_share_are_fetched_once(void **unused) {
  (void)unused;
  static const struct {
    int64_t piece;
    size_t together;
    hand_fn *hand;
    double most; /* times that a sum is fetched in a backward */
  } cases[] = {{170, 1, one_by_one, 1},         {80, 1, one_by_one, 1},
               {170, TENSORS, by_one_call, 1},  {80, TENSORS, by_one_call, 1},
               {170, TENSORS, by_two_calls, 1}, {80, TENSORS, by_two_calls, 1},
               {80, TENSORS, one_by_one, 1.5}};
  for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
    world w = {.r = {c + 91}};
    open_transformer(&w, cases[c].piece);
    const struct hk_training *t = w.engine->training;
    assert_true(t->n_passing >= 10 * BLOCKS && t->n_slots == 8);
    for (int i = 0; i < 2; i++) accumulate_so(&w, 4, cases[c].together, cases[c].hand);
    const int64_t fetched = t->n_fetched, late = t->n_late;
    accumulate_so(&w, 4, cases[c].together, cases[c].hand);
    const double needed = 3.0 * t->n_passing, was = (double)(t->n_fetched - fetched);
    if (was < needed || was > cases[c].most * needed) fail_msg("%g fetched for %g", was, needed);
    if (cases[c].most <= 1) assert_int_equal(t->n_late, late);
    assert_state(&w);
    unmake(&w);
  }
}

/* What hand-overs of this thread queue on the caller's stream; the engine's threads use others. */
static _Thread_local struct {
  const hk_stream *stream; /* NULL: nothing is counted */
  int64_t launches, waits, records;
} queued;

static hk_status count_launch(hk_stream *s, const hk_kernel *kernel, hk_error *err) {
  queued.launches += s == queued.stream;
  return hk_backend_host.launch(s, kernel, err);
}

static hk_status count_wait(hk_stream *s, hk_event *event, hk_error *err) {
  queued.waits += s == queued.stream;
  return hk_backend_host.wait(s, event, err);
}

static hk_status count_record(hk_stream *s, hk_event *event, hk_error *err) {
  queued.records += s == queued.stream;
  return hk_backend_host.record(s, event, err);
}

static void by_one_counted_call(world *w, size_t first, size_t n) {
  queued.stream = w->engine->training->streams[0].stream;
  by_one_call(w, first, n);
  queued.stream = NULL;
}

/* Each call brings the gradients of a layer, which has twenty images. A launch gathers four of
 * them, waits once for the copies to their slots, and is followed by one event for the copies from
 * them: all three take time of the device. */
static void launches_gather_four_images(void **unused) {
  (void)unused;
  hk_error err = {0};
  bool there;
  world w = {.r = {95}};
  open_transformer(&w, 80);
  for (int i = 0; i < 2; i++) accumulate_so(&w, 4, TENSORS, by_one_call);
  hk_backend_ops counting = hk_backend_host;
  counting.launch = count_launch;
  counting.wait = count_wait;
  counting.record = count_record;
  must(hk_engine_drain(w.engine, -1, &there, &err), &err); /* its threads read `ops` */
  w.engine->backend->ops = &counting;
  memset(&queued, 0, sizeof queued);
  accumulate_so(&w, 4, TENSORS, by_one_counted_call);
  must(hk_engine_drain(w.engine, -1, &there, &err), &err);
  w.engine->backend->ops = &hk_backend_host;
  const int64_t launches = w.engine->training->n_passing; /* by four backwards, four a launch */
  assert_int_equal(queued.launches, launches);
  assert_int_equal(queued.waits, launches);
  assert_int_equal(queued.records, launches);
  assert_state(&w);
  unmake(&w);
}

static void two_of_each(world *w, size_t first, size_t n) {
  hk_error err = {0};
  hk_gradient list[2 * TENSORS];
  char *copies = malloc(n * 4 * 384);
  assert_non_null(copies);
  for (size_t i = 0; i < n; i++) {
    char *copy = copies + i * 4 * 384;
    list[2 * i] = make_gradient(w, first + i, true);
    memcpy(copy, list[2 * i].data, 4 * (size_t)w->params[first + i].numel);
    list[2 * i].data = copy;
    list[2 * i + 1] = make_gradient(w, first + i, true);
  }
  must(hk_engine_gradients(w->engine, list, 2 * n, NULL, &err), &err);
  free(copies);
}

/* The second gradient of a tensor comes when the visit of its images by the first is over, but has
 * not been launched. */
static void a_call_may_bring_a_tensor_twice(void **unused) {
  (void)unused;
  static const int64_t pieces[] = {80, 170, 384};
  for (size_t p = 0; p < sizeof pieces / sizeof *pieces; p++) {
    for (int backwards = 1; backwards <= 3; backwards++) {
      world w = {.r = {p + 97}};
      open_transformer(&w, pieces[p]);
      for (int i = 0; i < 3; i++) {
        accumulate_so(&w, backwards, i == 1 ? TENSORS : 1, two_of_each);
        assert_state(&w);
      }
      unmake(&w);
    }
  }
}

/* On a busy machine the team may start too late to be ahead of the norm: trains on until it is. */
static void must_run_ahead(world *w, int64_t ahead, int backwards) {
  for (int i = 0; i < 50 && ahead == 0; i++) ahead = accumulate(w, backwards);
  assert_true(ahead > 0);
}

/* Updates run ahead beside the last backward, as they do with one; nothing is begun again. */
static void updates_run_ahead_in_the_last_backward(void **unused) {
  (void)unused;
  for (int number = 0; number < 5; number++) {
    int64_t ahead = 0;
    world w = {.r = {(uint64_t)number + 21}};
    open_layers(&w, HK_OVERLAP_BOTH, number);
    for (int i = 0; i < 2; i++) accumulate(&w, 3);
    for (int i = 0; i < 3; i++) {
      ahead += accumulate(&w, 3);
      assert_false(w.engine->training->hold);
    }
    must_run_ahead(&w, ahead, 3);
    assert_state(&w);
    unmake(&w);
  }
}

/* Sums of layers with early weights stay where these will wait. Updates run ahead nevertheless, and
 * the weights are right. If all have them, there are no slots; if some have, their images alone are
 * in no slot. */
static void sums_stay_where_early_weights_will_be(void **unused) {
  (void)unused;
  static const size_t early[] = {1, 9, LAYERS};
  for (size_t k = 0; k < sizeof early / sizeof *early; k++) {
    const int passing = (int)(LAYERS - early[k]);
    int64_t ahead = 0;
    world w = {.r = {k + 81}};
    open_early(&w, HK_OVERLAP_BOTH, 0, early[k], HK_GRAD_BF16);
    const struct hk_training *t = w.engine->training;
    assert_int_equal(t->n_homes, early[k]);
    assert_int_equal(t->n_passing, passing);
    assert_int_equal(t->n_slots, passing > 8 ? 8 : passing);
    static const int counts[] = {3, 3, 3, 1, 1, 4, 2, 2};
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
      const int64_t fetched = t->n_fetched;
      ahead += accumulate(&w, counts[i]);
      const bool known = i > 0 && counts[i] == counts[i - 1];
      if (known) {
        assert_int_equal(t->n_fetched - fetched, passing > 8 ? (counts[i] - 1) * passing : 0);
      }
    }
    must_run_ahead(&w, ahead, 2);
    assert_state(&w);
    unmake(&w);
  }
}

/* fp32 gradients need twice the memory of early weights. */
static void wide_gradients_pass(void **unused) {
  (void)unused;
  world w = {.r = {91}};
  open_early(&w, HK_OVERLAP_BOTH, 0, LAYERS, HK_GRAD_FP32);
  assert_int_equal(w.engine->training->n_homes, 0);
  assert_int_equal(w.engine->training->n_passing, LAYERS);
  for (int i = 0; i < 3; i++) accumulate(&w, 3);
  assert_state(&w);
  unmake(&w);
}

/* How many gradients of a tensor the engine expects. */
static int expected(const world *w) {
  return w->engine->training->rounds;
}

static void counts_change(void **unused) {
  (void)unused;
  static const int counts[] = {4, 3, 1, 5, 1, 1, 2, 16, 4, 4};
  for (int overlap = HK_OVERLAP_NONE; overlap <= HK_OVERLAP_BOTH; overlap++) {
    for (int kept = 0; kept < 12; kept += 5 * apart()) {
      world w = {.r = {(uint64_t)kept + 31}};
      open_layers(&w, (hk_overlap)overlap, kept);
      for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        accumulate(&w, counts[i]);
        assert_int_equal(expected(&w), counts[i]);
      }
      assert_state(&w);
      unmake(&w);
    }
  }
}

/* A step that is skipped, and gradients that are discarded, teach nothing. */
static void only_completed_steps_teach(void **unused) {
  (void)unused;
  hk_error err = {0};
  world w = {.r = {41}};
  open_layers(&w, HK_OVERLAP_BOTH, 3);
  accumulate(&w, 4);
  for (size_t i = w.n; i-- > 0;) hand_over(&w, i, true);
  must(hk_engine_discard(w.engine, -1, &err), &err);
  for (size_t i = 0; i < w.n; i++) w.tensors[i].given = 0;
  assert_int_equal(expected(&w), 4);
  for (size_t i = w.n; i-- > 0;) hand_over(&w, i, i > 0); /* not finite */
  step(&w, false);
  assert_int_equal(expected(&w), 4);
  for (int m = 0; m < 4; m++) {
    for (size_t i = w.n; i-- > 0;) hand_over(&w, i, true);
    if (m == 2) { /* one tensor begins anew: it will have had two */
      must(hk_engine_discard(w.engine, 7, &err), &err);
      w.tensors[7].given = 0;
    }
  }
  step(&w, true);
  assert_int_equal(w.engine->training->expected[7], 4);
  for (int i = 0; i < 2; i++) accumulate(&w, 4);
  assert_state(&w);
  unmake(&w);
}

/* A promised number is known in the first step, and stays through a shorter one. */
static void a_promised_number_is_expected(void **unused) {
  (void)unused;
  hk_error err = {0};
  world w = {.r = {51}};
  open_layers(&w, HK_OVERLAP_BOTH, 0);
  must(hk_engine_expect(w.engine, 4, &err), &err);
  accumulate(&w, 4);
  assert_int_equal(w.engine->training->n_late, 0);
  accumulate(&w, 2);
  assert_int_equal(expected(&w), 4);
  assert_int_equal(hk_engine_expect(w.engine, -1, &err), HK_INPUT);
  must(hk_engine_expect(w.engine, 0, &err), &err);
  accumulate(&w, 3);
  assert_int_equal(expected(&w), 3);
  assert_state(&w);
  unmake(&w);
}

/* In each backward some tensors get no gradient, and some are handed over out of order; some are
 * discarded. */
static void disorder_is_exact(void **unused) {
  (void)unused;
  const uint64_t cases = case_count((case_counts){.release = 10, .address = 4, .thread = 1},
                                    (case_counts){.release = 200, .address = 60, .thread = 15});
  for (uint64_t number = 0; number < cases; number++) {
    hk_error err = {0};
    world w = {.r = {number * 7919 + 61}};
    make_model(&w);
    make_engine(&w, NULL);
    for (int i = 0; i < 8; i++) {
      forward(&w);
      if (pick(&w.r, 0, 3) == 0) must(hk_engine_expect(w.engine, pick(&w.r, 0, 4), &err), &err);
      for (int m = pick(&w.r, 1, 5); m > 0; m--) {
        backward(&w, pick(&w.r, 0, 1), true);
        if (pick(&w.r, 0, 3) > 0) must(hk_engine_flush(w.engine, &err), &err);
        if (pick(&w.r, 0, 3) > 0) continue;
        const size_t gone = next(&w.r) % w.n;
        must(hk_engine_discard(w.engine, (int64_t)gone, &err), &err);
        w.tensors[gone].given = 0;
      }
      if (pick(&w.r, 0, 5) == 0) {
        must(hk_engine_discard(w.engine, -1, &err), &err);
        for (size_t k = 0; k < w.n; k++) w.tensors[k].given = 0;
      } else {
        step(&w, true);
      }
    }
    assert_state(&w);
    unmake(&w);
  }
}

/* Sums that a fetch has brought back, that stay, and that are on the host can be read. */
static void sums_can_be_read(void **unused) {
  (void)unused;
  hk_error err = {0};
  world w = {.r = {71}};
  open_layers(&w, HK_OVERLAP_BOTH, 4);
  must(hk_engine_expect(w.engine, 3, &err), &err);
  for (int m = 0; m < 3; m++) {
    for (size_t i = w.n; i-- > 0;) {
      hand_over(&w, i, true);
      if (i % 5 > 0) continue;
      for (size_t k = 0; k < w.n; k++) {
        uint16_t got[LAYER];
        if (w.tensors[k].given == 0) continue;
        must(hk_engine_read_gradient(w.engine, k, got, &err), &err);
        assert_memory_equal(got, w.tensors[k].grad, sizeof got);
      }
    }
  }
  step(&w, true);
  assert_state(&w);
  unmake(&w);
}

/* Whether squares of any tensor have been summed on the device. */
static bool has_squares(const world *w) {
  const struct hk_training *t = w->engine->training;
  const char *bins = (const char *)w->engine->device_bins; /* the host backend's */
  for (hk_bytes i = 0; i < t->bins_at[w->engine->state.n_segments]; i++) {
    if (bins[i] != 0) return true;
  }
  return false;
}

/* A step of four backwards, all expected. Returns after how many there are squares. `asked`: after
 * so many they are asked for, of one tensor or of all. */
static int squares_come(world *w, int asked) {
  hk_error err = {0};
  int first = 0;
  forward(w);
  for (int m = 1; m <= 4; m++) {
    for (size_t i = w->n; i-- > 0;) hand_over(w, i, true);
    if (pick(&w->r, 0, 1)) must(hk_engine_flush(w->engine, &err), &err);
    if (first == 0 && has_squares(w)) first = m;
    if (m != asked) continue;
    hk_squares sum, one = {0};
    must(hk_engine_sum_of_squares(w->engine, 7, &sum, &err), &err);
    hk_squares_add(&one, w->params[7].grad_type, LAYER, w->tensors[7].grad);
    assert_memory_equal(&sum, &one, sizeof sum);
    must(hk_engine_sum_of_squares(w->engine, -1, &sum, &err), &err);
    assert_true(hk_squares_value(&sum) == plain_squares(w));
  }
  step(w, true);
  return first;
}

/* Squares are summed with the last gradient of each tensor only. When they have been asked for
 * before it, they are summed with each for some steps. */
static void squares_come_with_the_last_backward(void **unused) {
  (void)unused;
  for (int overlap = HK_OVERLAP_NONE; overlap <= HK_OVERLAP_BOTH; overlap++) {
    const int asked = 1 + overlap - HK_OVERLAP_NONE;
    hk_error err = {0};
    world w = {.r = {(uint64_t)asked + 101}};
    open_layers(&w, (hk_overlap)overlap, 3);
    must(hk_engine_expect(w.engine, 4, &err), &err);
    for (int i = 0; i < 2; i++) assert_int_equal(squares_come(&w, 0), 4);
    assert_int_equal(squares_come(&w, asked), asked + 1);
    int steps = 0;
    while (squares_come(&w, 0) == 1) steps++;
    assert_int_equal(steps, 15);
    assert_state(&w);
    unmake(&w);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(known_sums_are_fetched_in_time),
      cmocka_unit_test(images_that_tensors_share_are_fetched_once),
      cmocka_unit_test(launches_gather_four_images),
      cmocka_unit_test(a_call_may_bring_a_tensor_twice),
      cmocka_unit_test(updates_run_ahead_in_the_last_backward),
      cmocka_unit_test(sums_stay_where_early_weights_will_be),
      cmocka_unit_test(wide_gradients_pass),
      cmocka_unit_test(counts_change),
      cmocka_unit_test(only_completed_steps_teach),
      cmocka_unit_test(a_promised_number_is_expected),
      cmocka_unit_test(disorder_is_exact),
      cmocka_unit_test(sums_can_be_read),
      cmocka_unit_test(squares_come_with_the_last_backward),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
