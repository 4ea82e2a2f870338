/* SPDX-License-Identifier: GPL-3.0-or-later */
/* The calibration stand on the host backend: each probe gives a rate, wrong data is detected
 * whichever lane wrote it, and failures are reported. */
#include <math.h>
#include <sched.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "calib/stand/private.h"
#include "tests/fixture_stand.h"

#define WISH 2000000 /* ns */

static hk_stand_options small(void) {
  return small_on(&hk_backend_host);
}

/* -- Every probe ------------------------------------------------------------------------------- */

static void run_all(hk_stand *stand, bool quick) {
  hk_error err = {0};
  hk_probe_scope scope;
  hk_stand_scope(stand, &scope);
  scope.quick = quick;
  hk_probe *probes = NULL;
  size_t n = 0;
  must(hk_probes_list(&scope, &probes, &n, &err), &err);
  for (size_t i = 0; i < n; i++) {
    double values[HK_PROBE_LOADS];
    must(hk_stand_run(stand, &probes[i], WISH, true, values, &err), &err);
    for (int l = 0; l < probes[i].n_loads; l++) {
      if (!isfinite(values[l]) || values[l] <= 0) fail_msg("%s: %g", probes[i].name, values[l]);
    }
  }
  free(probes);
}

static void test_quick_list(void **state) {
  (void)state;
  const hk_stand_options options = small();
  hk_stand *stand = open_stand(&options);
  run_all(stand, true);
  run_all(stand, true); /* with what it has learnt */
  hk_stand_close(stand);
}

/* A request to stop ends the opening before memory is registered, and while it is filled. */
static volatile sig_atomic_t stop;
static int registered;

static hk_backend_ops stopping;

static hk_status register_and_stop(hk_backend *backend, void *memory, hk_bytes bytes,
                                   hk_error *err) {
  stop = 1;
  registered++;
  return hk_backend_host.host_register(backend, memory, bytes, err);
}

static hk_status open_stopping(int device, const hk_backend_options *options, hk_backend **out,
                               hk_error *err) {
  HK_TRY(hk_backend_host.open(device, options, out, err));
  (*out)->ops = &stopping;
  return HK_OK;
}

static void test_stop_ends_the_opening(void **state) {
  (void)state;
  stopping = hk_backend_host;
  stopping.host_register = register_and_stop;
  stopping.open = open_stopping;
  hk_stand_options options = small_on(&stopping);
  options.stop = &stop;
  for (int first = 1; first >= 0; first--) {
    hk_stand *stand = NULL;
    hk_error err = {0};
    stop = first;
    assert_int_equal(hk_stand_open(&options, &stand, &err), HK_NO);
    assert_null(stand);
    assert_non_null(strstr(err.message, "interrupted while memory was filled"));
    assert_int_equal(registered, !first);
  }
}

/* If filling memory would take longer than fill_s, probes use less memory, and a note says so. */
static void test_slow_fill_reduces_memory(void **state) {
  (void)state;
  hk_stand_options options = small();
  hk_probe_scope scope;
  options.host_bytes = 0; /* gigabytes: 32 GiB or a quarter of the available memory */
  options.fill_s = 1e-6;
  hk_stand *stand = open_stand(&options);
  hk_stand_scope(stand, &scope);
  assert_int_equal(scope.host_bytes, 256 * HK_MIB);
  assert_non_null(strstr(hk_stand_note(stand), "probes use 256 MiB of host memory instead of "));
  hk_stand_close(stand);
  options.host_bytes = 320 * HK_MIB; /* a given size is used */
  stand = open_stand(&options);
  hk_stand_scope(stand, &scope);
  assert_int_equal(scope.host_bytes, 320 * HK_MIB);
  hk_stand_close(stand);
}

static void test_full_list(void **state) {
  (void)state;
  hk_stand_options options = small();
  options.gpus = 2;
  options.host_bytes = options.host.memory = 64 * HK_MIB;
  options.device_bytes = 32 * HK_MIB;
  hk_stand *stand = open_stand(&options);
  hk_probe_scope scope;
  hk_stand_scope(stand, &scope);
  assert_true(scope.gpus == 2 && scope.cores == 2 && scope.peers);
  assert_true(scope.host_bytes == 64 * HK_MIB && scope.device_bytes == 32 * HK_MIB);
  run_all(stand, false);
  hk_stand_close(stand);
}

/* -- Single probes ----------------------------------------------------------------------------- */

static hk_status run_one(hk_stand *stand, hk_load load, bool verify, double *value, hk_error *err) {
  double unused;
  *err = (hk_error){0};
  const hk_probe p = probe_of(hk_load_name(load.kind), load, NULL);
  return hk_stand_run(stand, &p, WISH, verify, value != NULL ? value : &unused, err);
}

/* HK_PROBE_WHOLE moves amounts in the ratio of the shares and ends with the last copy, so rates
 * have that ratio, too. */
static void test_whole(void **state) {
  (void)state;
  const hk_stand_options options = small();
  hk_stand *stand = open_stand(&options);
  const hk_load out = {.kind = HK_LOAD_D2H, .chunk = HK_MIB, .share = 1};
  hk_probe p = probe_of("1:4", (hk_load){.kind = HK_LOAD_H2D, .chunk = HK_MIB, .share = 4}, &out);
  p.mode = HK_PROBE_WHOLE;
  hk_error err = {0};
  for (int i = 0; i < 3; i++) {
    double values[2];
    must(hk_stand_run(stand, &p, WISH, true, values, &err), &err);
    assert_true(fabs(values[0] / values[1] - 4) < 1e-9);
  }
  hk_stand_close(stand);
}

/* A matrix product and copies in both directions use separate memory: all data are verified. */
static void test_product_beside_copies(void **state) {
  (void)state;
  const hk_stand_options options = small();
  hk_stand *stand = open_stand(&options);
  hk_probe p = {.name = "layer", .n_loads = 4};
  p.loads[0] = (hk_load){.kind = HK_LOAD_H2D, .chunk = 64 * HK_KIB};
  p.loads[1] = (hk_load){.kind = HK_LOAD_D2H, .chunk = 64 * HK_KIB};
  p.loads[2] = (hk_load){.kind = HK_LOAD_MATMUL, .chunk = 128, .n = 128, .k = 128};
  p.loads[3] = (hk_load){.kind = HK_LOAD_ADAMW_CPU, .threads = 1, .chunk = 65536};
  hk_error err = {0};
  double values[4];
  for (int i = 0; i < 10; i++) {
    must(hk_stand_run(stand, &p, WISH, true, values, &err), &err);
    for (int l = 0; l < 4; l++) assert_true(values[l] > 0);
  }
  p.loads[0].kind = HK_LOAD_PULL; /* uses the memory of the product */
  assert_int_equal(hk_stand_run(stand, &p, WISH, true, values, &err), HK_INPUT);
  hk_stand_close(stand);
}

/* The GPU memory that can be allocated includes the memory that the stand holds. */
static void test_memory(void **state) {
  (void)state;
  const hk_stand_options options = small();
  hk_stand *stand = open_stand(&options);
  hk_error err = {0};
  double value = 0;
  for (int i = 0; i < 2; i++) {
    must(run_one(stand, (hk_load){.kind = HK_LOAD_MEMORY, .chunk = 1}, true, &value, &err), &err);
    assert_true(value <= 32.0 * HK_MIB && value >= 31.9 * HK_MIB);
  }
  hk_stand_close(stand);
}

static void test_refused(void **state) {
  (void)state;
  const hk_stand_options options = small();
  hk_stand *stand = open_stand(&options);
  static const hk_load wrong[] = {
      {.kind = HK_LOAD_H2D, .chunk = 64 * HK_MIB},
      {.kind = HK_LOAD_H2D, .gpu = 1, .chunk = HK_MIB},
      {.kind = HK_LOAD_H2D},
      {.kind = HK_LOAD_PEER, .chunk = HK_MIB},
      {.kind = HK_LOAD_ADAMW_CPU, .threads = 3, .chunk = 1000},
      {.kind = HK_LOAD_ADAMW_CPU, .threads = 1, .chunk = 1000, .piece = 1 << 20},
      {.kind = HK_LOAD_PULL, .chunk = 1001},
      {.kind = HK_LOAD_TURNS, .chunk = 2 * HK_MIB},
      {.kind = HK_LOAD_HOP, .chunk = 8 * HK_MIB},
      {.kind = HK_LOAD_ADAMW_GPU, .chunk = 1 << 30},
      {.kind = HK_LOAD_MATMUL, .chunk = 64, .n = 64},
      {.kind = HK_LOAD_MATMUL, .chunk = 1 << 20, .n = 1 << 20, .k = 1 << 20},
  };
  hk_error err;
  for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
    assert_int_equal(run_one(stand, wrong[i], true, NULL, &err), HK_INPUT);
  }
  double values[2];
  const hk_load cpu = {.kind = HK_LOAD_CAST, .threads = 1, .chunk = 4096};
  const hk_probe two = probe_of("two teams", cpu, &cpu);
  assert_int_equal(hk_stand_run(stand, &two, WISH, true, values, &err), HK_INPUT);
  const hk_probe shared =
      probe_of("hop", (hk_load){.kind = HK_LOAD_HOP, .chunk = 64 * HK_KIB}, &cpu);
  assert_int_equal(hk_stand_run(stand, &shared, WISH, true, values, &err), HK_INPUT);
  hk_stand_close(stand);
}

/* -- A device with some calls replaced --------------------------------------------------------- */

/* The host backend with the calls that a test replaced before it opened a stand. */
static hk_backend_ops altered;

static hk_status altered_open(int device, const hk_backend_options *options, hk_backend **out,
                              hk_error *err) {
  HK_TRY(hk_backend_host.open(device, options, out, err));
  (*out)->ops = &altered;
  return HK_OK;
}

static hk_stand *open_altered(int gpus) {
  altered.open = altered_open;
  hk_stand_options options = small_on(&altered);
  options.gpus = gpus;
  return open_stand(&options);
}

/* -- A slow device ----------------------------------------------------------------------------- */

static hk_ns launching; /* time that the host needs for a launch */

static hk_status slow_launch(hk_stream *s, const hk_kernel *kernel, hk_error *err) {
  for (const hk_ns begin = hk_now(); hk_now() - begin < launching;) continue;
  return hk_backend_host.launch(s, kernel, err);
}

/* The device has 20 ms of work left when the host begins to wait. */
static hk_status slow_sync(hk_event *e, hk_error *err) {
  nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
  return hk_backend_host.event_sync(e, err);
}

/* LAUNCH_LOOP gives the rate at which the host launches: at most 1 / 50 us or 1 / 100 us here. If
 * the waits counted, 32 launches would always take 20 ms and more; a busy machine takes that long
 * now and then. */
static void test_launches_of_the_host(void **state) {
  (void)state;
  altered = hk_backend_host;
  altered.launch = slow_launch;
  hk_stand *stand = open_altered(1);
  altered.event_sync = slow_sync;
  hk_error err;
  for (launching = 50000; launching <= 100000; launching *= 2) {
    double rate = 0;
    for (int tries = 0; tries < 50 && rate <= 32 / 20e-3; tries++) {
      must(run_one(stand, (hk_load){.kind = HK_LOAD_LAUNCH_LOOP, .chunk = 32}, true, &rate, &err),
           &err);
      assert_true(rate <= 1e9 / (double)launching);
    }
    assert_true(rate > 32 / 20e-3);
  }
  altered.event_sync = hk_backend_host.event_sync;
  hk_stand_close(stand);
}

/* -- A device that errs ------------------------------------------------------------------------ */

/* The errors that the backend makes from now on. */
static struct {
  bool short_copies, lost_copies, wrong_step, short_kernels, wrong_factor, lost_weights;
} ill;
static hk_status erring_copy(hk_stream *s, void *to, const void *from, hk_bytes bytes,
                             hk_error *err) {
  static char elsewhere[HK_MIB];
  if (ill.lost_copies && bytes == HK_MIB) to = elsewhere;
  return hk_backend_host.copy(s, to, from, ill.short_copies ? bytes - 8 : bytes, err);
}

static hk_status erring_launch(hk_stream *s, const hk_kernel *kernel, hk_error *err) {
  static uint16_t elsewhere[100000];
  hk_kernel k = *kernel;
  if (ill.lost_weights) k.w = elsewhere;
  if (ill.wrong_step) k.step.beta2 = nextafterf(k.step.beta2, 0);
  if (ill.short_kernels) k.n--;
  if (ill.wrong_factor) k.a++;
  return hk_backend_host.launch(s, &k, err);
}

static hk_stand *open_erring(void) {
  altered = hk_backend_host;
  altered.copy = erring_copy;
  altered.launch = erring_launch;
  memset(&ill, 0, sizeof ill);
  return open_altered(2);
}

/* With the fault, a run without verification succeeds and one with verification fails. Before and
 * after it, verification succeeds. */
static void check_noticed(hk_stand *stand, hk_load load, bool *illness, const char *words) {
  hk_error err;
  must(run_one(stand, load, true, NULL, &err), &err);
  *illness = true;
  must(run_one(stand, load, false, NULL, &err), &err);
  assert_int_equal(run_one(stand, load, true, NULL, &err), HK_NO);
  if (strstr(err.message, words) == NULL) fail_msg("%s", err.message);
  *illness = false;
  must(run_one(stand, load, true, NULL, &err), &err);
}

static void test_wrong_copies(void **state) {
  (void)state;
  static const hk_load_kind kinds[] = {HK_LOAD_H2D,          HK_LOAD_D2H,
                                       HK_LOAD_H2D_PAGEABLE, HK_LOAD_D2H_PAGEABLE,
                                       HK_LOAD_H2D_CACHED,   HK_LOAD_PEER};
  hk_stand *stand = open_erring();
  for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
    const hk_load load = {.kind = kinds[i], .chunk = HK_MIB};
    check_noticed(stand, load, &ill.short_copies, "of a copy of 1048576 bytes arrived as 0x");
    check_noticed(stand, load, &ill.lost_copies, "of a copy of 1048576 bytes arrived as 0x");
  }
  hk_stand_close(stand);
}

static void test_wrong_kernels(void **state) {
  (void)state;
  hk_stand *stand = open_erring();
  const hk_load updates[] = {{.kind = HK_LOAD_ADAMW_GPU, .chunk = 100000},
                             {.kind = HK_LOAD_UPDATE, .chunk = 100000},
                             {.kind = HK_LOAD_MAPPED, .gpu = 1, .chunk = 100000}};
  for (int i = 0; i < 3; i++) {
    check_noticed(stand, updates[i], &ill.wrong_step, "AdamW of parameter ");
    check_noticed(stand, updates[i], &ill.short_kernels, "AdamW of parameter 99999 gave p ");
    /* The new weights are written elsewhere. The old ones, which are compared instead, differ
     * little from the new ones, because one step changes few of their bits. */
    check_noticed(stand, updates[i], &ill.lost_weights, "AdamW of parameter ");
  }
  const hk_load pull = {.kind = HK_LOAD_PULL, .chunk = HK_MIB};
  check_noticed(stand, pull, &ill.short_kernels, "of a copy of 1048576 bytes arrived as 0x");
  const hk_load matmul = {.kind = HK_LOAD_MATMUL, .chunk = 32, .n = 48, .k = 64};
  check_noticed(stand, matmul, &ill.wrong_factor, "of a matrix product is ");
  hk_stand_close(stand);
}

/* -- CPU kernels that err ---------------------------------------------------------------------- */

static hk_cpu_kernels right_kernels;

/* A stand, and the kernels that it runs, which the test may replace and then restores. */
static hk_stand *open_with_best(hk_cpu_kernels **best) {
  *best = (hk_cpu_kernels *)(uintptr_t)hk_cpu_kernels_best();
  if (strcmp((*best)->name, "scalar") == 0) skip(); /* it is the reference */
  const hk_stand_options options = small();
  right_kernels = **best;
  return open_stand(&options);
}

/* AdamW into spare memory, wrong in one way at a time. */
static bool lost_variance, short_pass, in_place;

static void erring_adamw_to(const hk_adamw_step *step, hk_grad_type type, int64_t n, const float *p,
                            const float *m, const float *v, float *p_to, float *m_to, float *v_to,
                            const void *grad, uint16_t *w) {
  static _Thread_local float elsewhere[65536];
  if (n < 1 || n > 65536) abort(); /* on a thread of the team, where no assertion works */
  if (lost_variance) v_to = elsewhere;
  right_kernels.adamw_to(step, type, short_pass ? n - 1 : n, p, m, v, p_to, m_to, v_to, grad, w);
  if (in_place) memcpy((float *)(uintptr_t)p, p_to, 4 * (size_t)n);
}

static void test_wrong_spares(void **state) {
  (void)state;
  hk_cpu_kernels *best;
  hk_stand *stand = open_with_best(&best);
  best->adamw_to = erring_adamw_to;
  const hk_load load = {.kind = HK_LOAD_ADAMW_AHEAD, .threads = 2, .chunk = 65536};
  check_noticed(stand, load, &lost_variance, "and the scalar kernel differ in the sample");
  check_noticed(stand, load, &short_pass, "and the scalar kernel differ in the sample");
  check_noticed(stand, load, &in_place, "and the scalar kernel differ in the sample");
  *best = right_kernels;
  hk_stand_close(stand);
}

/* The same in 8 bits: one code that is not stored, or a block's windows. */
static bool lost_code, lost_windows;

static void erring_update(hk_format format, const hk_adamw_step *step, hk_grad_type type, int64_t n,
                          hk_state_at from, hk_state_at to, const void *grad, uint16_t *w,
                          int64_t index) {
  const char code = from.v[n - 1], window = from.windows[0];
  right_kernels.update(format, step, type, n, from, to, grad, w, index);
  if (lost_code) to.v[n - 1] = (char)(to.v[n - 1] == code ? code + 1 : code);
  if (lost_windows) to.windows[0] = (char)(to.windows[0] == window ? window + 1 : window);
}

static void test_wrong_codes(void **state) {
  (void)state;
  hk_cpu_kernels *best;
  hk_stand *stand = open_with_best(&best);
  best->update = erring_update;
  for (hk_load_kind kind = HK_LOAD_ADAMW_8BIT; kind <= HK_LOAD_ADAMW_8BIT_SPLIT; kind++) {
    const hk_load load = {.kind = kind, .threads = 2, .chunk = 65536};
    check_noticed(stand, load, &lost_code, "and the scalar kernel differ in the sample");
    check_noticed(stand, load, &lost_windows, "and the scalar kernel differ in the sample");
  }
  *best = right_kernels;
  hk_stand_close(stand);
}

/* -- A device that fails ----------------------------------------------------------------------- */

static void test_refused_copy(void **state) {
  (void)state;
  const hk_stand_options options = small();
  hk_stand *stand = open_stand(&options);
  hk_error err;
  const hk_load load = {.kind = HK_LOAD_H2D, .chunk = HK_MIB};
  hk_backend_host_fail(hk_stand_backend(stand, 0), HK_HOST_COPY, 0);
  assert_int_equal(run_one(stand, load, false, NULL, &err), HK_ENVIRONMENT);
  assert_non_null(strstr(err.message, "probe h2d: h2d on GPU 0: a copy of 1048576 bytes"));
  must(run_one(stand, load, true, NULL, &err), &err); /* the device still works */
  hk_stand_close(stand);
}

static void test_lost_device(void **state) {
  (void)state;
  const hk_stand_options options = small();
  hk_error err;
  for (int kernel = 0; kernel < 2; kernel++) {
    hk_stand *stand = open_stand(&options);
    hk_backend_host_fail(hk_stand_backend(stand, 0), kernel ? HK_HOST_KERNEL : HK_HOST_COPYING, 0);
    const hk_load cpu = {.kind = HK_LOAD_ADAMW_CPU, .threads = 2, .chunk = 65536};
    const hk_load gpu = {.kind = kernel ? HK_LOAD_MAPPED : HK_LOAD_D2H, .chunk = 100000};
    const hk_probe p = probe_of("lost", gpu, &cpu);
    double values[2];
    for (int i = 0; i < 2; i++) {
      assert_int_equal(hk_stand_run(stand, &p, WISH, false, values, &err), HK_ENVIRONMENT);
      assert_non_null(strstr(err.message, "host device 0 failed"));
    }
    hk_stand_close(stand);
  }
}

/* If a call fails while a stand is opened, there is an error and no leak (under AddressSanitizer).
 */
static hk_host_fault fault;
static int64_t after;

static hk_status failing_open(int device, const hk_backend_options *options, hk_backend **out,
                              hk_error *err) {
  HK_TRY(hk_backend_host.open(device, options, out, err));
  hk_backend_host_fail(*out, fault, after);
  return HK_OK;
}

static void test_failing_open(void **state) {
  (void)state;
  static const struct {
    hk_host_fault what;
    int64_t after;
  } faults[] = {
      {HK_HOST_ALLOC, 0}, {HK_HOST_REGISTER, 0}, {HK_HOST_COPY, 0},
      {HK_HOST_COPY, 2},  {HK_HOST_COPYING, 1},
  };
  hk_backend_ops ops = hk_backend_host;
  ops.open = failing_open;
  hk_stand_options options = small();
  options.ops = &ops;
  for (size_t i = 0; i < sizeof faults / sizeof *faults; i++) {
    hk_stand *stand = NULL;
    hk_error err = {0};
    fault = faults[i].what;
    after = faults[i].after;
    assert_int_equal(hk_stand_open(&options, &stand, &err), HK_ENVIRONMENT);
    assert_null(stand);
    assert_non_null(strstr(err.message, "an injected fault"));
  }
}

static void test_open_options(void **state) {
  (void)state;
  hk_stand *stand = NULL;
  hk_error err = {0};
  hk_stand_options options = small();
  options.gpus = 9;
  assert_int_equal(hk_stand_open(&options, &stand, &err), HK_INPUT);
  options = small();
  options.host_bytes = HK_MIB;
  assert_int_equal(hk_stand_open(&options, &stand, &err), HK_INPUT);
  assert_non_null(
      strstr(err.message, "1.00 MiB of host memory for probes is too little: they need"));
  options = small();
  options.host_bytes = (hk_bytes)1 << 50;
  assert_int_equal(hk_stand_open(&options, &stand, &err), HK_ENVIRONMENT);
  options = small();
  options.gpus = options.cores = 0; /* what there is: of host devices, one */
  stand = open_stand(&options);
  hk_probe_scope scope;
  hk_stand_scope(stand, &scope);
  assert_int_equal(scope.gpus, 1);
  assert_in_range(scope.cores, 1, sysconf(_SC_NPROCESSORS_CONF));
  hk_stand_close(stand);
}

/* -- Threads beside a team --------------------------------------------------------------------- */

static void *note_cpus(void *arg) {
  /* No assertion: cmocka's work on the thread that runs the tests only. */
  if (sched_getaffinity(0, sizeof(cpu_set_t), arg) != 0) CPU_ZERO((cpu_set_t *)arg);
  return NULL;
}

/* Other threads are pinned to one CPU outside of the team, if there is one. */
static void test_threads_keep_off_the_team(void **state) {
  (void)state;
  const hk_stand_options options = small();
  hk_stand *stand = open_stand(&options);
  assert_true(stand->n_cpus > 0);
  for (int threads = 0; threads <= stand->n_cpus; threads++) {
    cpu_set_t cpus;
    pthread_t thread;
    assert_int_equal(hk_stand_thread(stand, threads, 5, note_cpus, &cpus, &thread), 0);
    pthread_join(thread, NULL);
    const bool pinned = threads > 0 && threads < stand->n_cpus;
    assert_int_equal(CPU_COUNT(&cpus), pinned ? 1 : stand->n_cpus);
    for (int i = 0; i < threads && pinned; i++)
      assert_false(CPU_ISSET((size_t)stand->cpus[i], &cpus));
  }
  hk_stand_close(stand);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_threads_keep_off_the_team),
      cmocka_unit_test(test_quick_list),
      cmocka_unit_test(test_stop_ends_the_opening),
      cmocka_unit_test(test_slow_fill_reduces_memory),
      cmocka_unit_test(test_full_list),
      cmocka_unit_test(test_whole),
      cmocka_unit_test(test_product_beside_copies),
      cmocka_unit_test(test_memory),
      cmocka_unit_test(test_launches_of_the_host),
      cmocka_unit_test(test_refused),
      cmocka_unit_test(test_wrong_copies),
      cmocka_unit_test(test_wrong_kernels),
      cmocka_unit_test(test_wrong_spares),
      cmocka_unit_test(test_wrong_codes),
      cmocka_unit_test(test_refused_copy),
      cmocka_unit_test(test_lost_device),
      cmocka_unit_test(test_failing_open),
      cmocka_unit_test(test_open_options),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
