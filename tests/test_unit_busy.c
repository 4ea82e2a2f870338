/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Detection of other processes on the machine: sums of /proc/stat, this process's own work, and a
 * child process that uses a CPU. */
#include "calib/stand/busy.h"

#include <math.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
/* cmocka wants the above first */
#include <cmocka.h>

static const char text[] =
    "cpu  1000 0 0 0 0 0 0 0 0 0\n"
    "cpu0 100 10 20 5000 700 3 4 5 60 0\n"
    "cpu1 200 0 0 5000 0 0 0 0 0 0\n"
    "cpu12 900 0 0 0 0 0 0 50 0 0\n"
    "intr 1 2 3 4 5 6 7 8 9\n";

static cpu_set_t set_of(size_t a, size_t b) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(a, &set);
  CPU_SET(b, &set);
  return set;
}

static void test_counts_busy_time_of_our_cpus(void **state) {
  (void)state;
  const cpu_set_t first = set_of(0, 1), other = set_of(12, 0), none = set_of(40, 41);
  /* cpu0 100 + 10 + 20 + 3 + 4 + 5, cpu1 200 ticks of 10 ms: without idle, iowait and guest. */
  assert_true(fabs(hk_busy_seconds(text, &first, 100) - 3.42) < 1e-9);
  assert_true(fabs(hk_busy_seconds(text, &other, 100) - 10.92) < 1e-9);
  assert_true(isnan(hk_busy_seconds(text, &none, 100)));
  assert_true(isnan(hk_busy_seconds("", &first, 100)));
}

static void test_a_tenth_matters(void **state) {
  (void)state;
  assert_true(hk_busy_matters(1.7, 16));
  assert_false(hk_busy_matters(1.5, 16));
  assert_false(hk_busy_matters(NAN, 16));
}

/* This process computes for 0.5 s on one CPU. That CPU is then busy all the time, so others have at
 * most what this process did not get of it. */
static void test_own_work_does_not_count(void **state) {
  (void)state;
  cpu_set_t all, one;
  int cpus = 0;
  hk_busy busy;
  assert_int_equal(sched_getaffinity(0, sizeof all, &all), 0);
  CPU_ZERO(&one);
  for (size_t cpu = 0; cpu < CPU_SETSIZE && CPU_COUNT(&one) == 0; cpu++)
    if (CPU_ISSET(cpu, &all)) CPU_SET(cpu, &one);
  assert_int_equal(sched_setaffinity(0, sizeof one, &one), 0);
  hk_busy_begin(&busy);
  const clock_t own_begun = clock();
  const hk_ns begun = hk_now();
  while (hk_now() - begun < HK_NS_PER_S / 2) continue;
  const double others = hk_busy_others(&busy, &cpus);
  const double own = (double)(clock() - own_begun) / CLOCKS_PER_SEC / hk_s(hk_now() - begun);
  assert_int_equal(sched_setaffinity(0, sizeof all, &all), 0);
  if (isnan(others)) skip();
  assert_int_equal(cpus, 1);
  assert_true(others >= 0 && others <= 1 - own + 0.15);
}

static void test_other_processes_count(void **state) {
  (void)state;
  int cpus = 0;
  hk_busy beside;
  const pid_t child = fork();
  assert_true(child >= 0);
  if (child == 0)
    for (;;) continue;
  hk_busy_begin(&beside);
  usleep(500000);
  const double after = hk_busy_others(&beside, &cpus);
  kill(child, SIGKILL);
  waitpid(child, NULL, 0);
  if (isnan(after)) skip();
  assert_true(cpus >= 1);
  /* Also true on a machine whose CPUs are all busy: then others use even more. */
  assert_true(after > 0.3);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_counts_busy_time_of_our_cpus),
      cmocka_unit_test(test_a_tenth_matters),
      cmocka_unit_test(test_own_work_does_not_count),
      cmocka_unit_test(test_other_processes_count),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
