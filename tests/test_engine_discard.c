/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Discarding one tensor's gradient: the step continues as if the gradient had never been given,
 * and the call queues nothing on the device. */
#include "engine/device/backend_host.h"
#include "engine/train/training_private.h"
#include "tests/fixture_training.h"

static void discard(world *w, size_t i) {
  hk_error err = {0};
  must(hk_engine_discard(w->engine, (int64_t)i, &err), &err);
  w->tensors[i].given = 0;
}

static void discard_some(world *w) {
  for (int k = pick(&w->r, 0, 3); k > 0; k--) {
    const size_t i = next(&w->r) % w->n;
    discard(w, i);
    if (pick(&w->r, 0, 1) == 0) hand_over(w, i, true);
  }
}

static void discarded_gradients_do_not_count(void **unused) {
  (void)unused;
  const uint64_t cases = case_count((case_counts){.release = 20, .address = 12, .thread = 6},
                                    (case_counts){.release = 60, .address = 60, .thread = 60});
  for (uint64_t number = 0; number < cases; number++) {
    hk_error err = {0};
    world w = {.r = {number + 5100}};
    make_model(&w);
    make_engine(&w, &hk_backend_host);
    for (int i = 0; i < 6; i++) {
      hk_squares sum;
      forward(&w);
      for (size_t k = w.n; k-- > 0;) {
        hand_over(&w, k, true);
        if (pick(&w.r, 0, 3) == 0) discard_some(&w);
      }
      must(hk_engine_sum_of_squares(w.engine, -1, &sum, &err), &err);
      assert_true(hk_squares_value(&sum) == plain_squares(&w));
      step(&w, true);
    }
    assert_state(&w);
    unmake(&w);
  }
}

/* Discarding one tensor queues no copy, no kernel and no wait: each of these would fail. */
static void discarding_one_uses_no_device_operation(void **unused) {
  (void)unused;
  static const hk_host_fault faults[] = {HK_HOST_COPY,   HK_HOST_COPYING, HK_HOST_LAUNCH,
                                         HK_HOST_KERNEL, HK_HOST_RECORD,  HK_HOST_WAIT};
  for (size_t f = 0; f < sizeof faults / sizeof *faults; f++) {
    hk_error err = {0};
    world w = {.r = {5200 + f}};
    make_model(&w);
    make_engine(&w, &hk_backend_host);
    for (size_t k = w.n; k-- > 0;) hand_over(&w, k, true);
    /* The call that hands gradients over returns before their copies to the host end. */
    must(w.engine->backend->ops->stream_sync(w.engine->training->flush, &err), &err);
    hk_backend_host_fail(w.engine->backend, faults[f], 0);
    discard(&w, w.n / 2);
    hk_backend_host_fail(w.engine->backend, faults[f], -1);
    step(&w, true);
    assert_state(&w);
    unmake(&w);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(discarded_gradients_do_not_count),
      cmocka_unit_test(discarding_one_uses_no_device_operation),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
