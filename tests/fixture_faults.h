/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Loops over injected faults of the host backend, and counts of what the failures left behind. */
#ifndef HK_TESTS_FIXTURE_FAULTS_H
#define HK_TESTS_FIXTURE_FAULTS_H

#include "engine/device/backend_host.h"
#include "tests/fixture_engine.h"

/* -- What failures left behind ----------------------------------------------------------------- */

/* Number of failed steps, by the state of the engine after them. */
typedef struct {
  int failures;
  int mixtures;  /* some subgroups hold the old step's state, some the new one's */
  int whole_old; /* all hold the old step's state */
  int whole_new; /* all hold the new step's state */
  int lost;      /* some subgroup's state is lost */
} fault_tally;

/* How many subgroups hold which state after one failure. */
typedef struct {
  int old, new, lost;
} fault_end;

/* Counts one failure; returns whether the engine holds one whole state, which can be saved. */
static inline bool tally_failure(fault_tally *t, const fault_end *end) {
  const bool whole = end->lost == 0 && (end->old == 0 || end->new == 0);
  t->failures++;
  t->mixtures += end->old > 0 && end->new > 0;
  t->whole_old += whole && end->new == 0;
  t->whole_new += whole && end->old == 0;
  t->lost += end->lost > 0;
  return whole;
}

static inline void tally_add(fault_tally *to, const fault_tally *from) {
  to->failures += from->failures;
  to->mixtures += from->mixtures;
  to->whole_old += from->whole_old;
  to->whole_new += from->whole_new;
  to->lost += from->lost;
}

/* -- Every call fails once --------------------------------------------------------------------- */

/* Runs the scene while call n (from 0) of kind `what` fails. Returns false if there are fewer such
 * calls, so that none failed. */
typedef bool (*fault_attempt)(void *scene, hk_host_fault what, int64_t n);

/* Fails call 0, apart, 2 apart, ... of each kind, until there are no more. Each kind must occur. */
static inline void fail_each(const hk_host_fault *faults, size_t n_faults, int64_t apart,
                             fault_attempt attempt, void *scene) {
  for (size_t f = 0; f < n_faults; f++) {
    int64_t n = 0;
    while (attempt(scene, faults[f], n)) n += apart;
    assert_true(n > 0);
  }
}

/* -- Devices that fail from the start ---------------------------------------------------------- */

/* The fault that devices opened by armed_backend() have. */
static struct {
  hk_host_fault what;
  int64_t n;
} armed_fault;

static inline hk_status open_armed(int device, const hk_backend_options *options, hk_backend **out,
                                   hk_error *err) {
  HK_TRY(hk_backend_host.open(device, options, out, err));
  hk_backend_host_fail(*out, armed_fault.what, armed_fault.n);
  return HK_OK;
}

/* The host backend, whose devices are opened with armed_fault. */
static inline hk_backend_ops armed_backend(void) {
  hk_backend_ops ops = hk_backend_host;
  ops.open = open_armed;
  return ops;
}

/* Makes something with device `ops`; returns its status. */
typedef hk_status (*fault_maker)(const hk_backend_ops *ops, void *arg, hk_error *err);

/* Fails each call of kind `what` while something is made. Each failure must be HK_ENVIRONMENT with
 * a message that contains `says`. Returns when making it succeeds. */
static inline void fail_making(hk_host_fault what, const char *says, fault_maker make, void *arg) {
  const hk_backend_ops ops = armed_backend();
  armed_fault.what = what;
  for (armed_fault.n = 0;; armed_fault.n++) {
    hk_error err = {0};
    const hk_status status = make(&ops, arg, &err);
    if (status == HK_OK) break;
    assert_int_equal(status, HK_ENVIRONMENT);
    if (strstr(err.message, says) == NULL) fail_msg("'%s' lacks '%s'", err.message, says);
  }
  assert_true(armed_fault.n > 0);
}

#endif
