/* SPDX-License-Identifier: GPL-3.0-or-later */
/* The plan for a caller that gives none: the number of threads, the subgroups, which of them run
 * ahead, and which stay on the GPU for a given size of GPU memory. */
#include "core/machine/team.h"
#include "engine/default_plan.h"

#include <sched.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/device/cpu_quota.h"
#include "tests/fixture_engine.h"

/* -- Threads ----------------------------------------------------------------------------------- */

/* Writes `text` to a file below `root` and creates its folders; NULL: removes the file. */
static void put_file(const char *root, const char *name, const char *text) {
  char path[512], command[700];
  snprintf(path, sizeof path, "%s%s", root, name);
  snprintf(command, sizeof command, "mkdir -p \"$(dirname '%s')\"", path);
  assert_int_equal(system(command), 0);
  if (text == NULL) {
    unlink(path);
    return;
  }
  FILE *file = fopen(path, "w");
  assert_non_null(file);
  assert_true(fputs(text, file) >= 0 && fclose(file) == 0);
}

static void quotas(void **unused) {
  (void)unused;
  static const struct {
    const char *cgroup, *at_root, *above, *own;
    int cpus;
  } cases[] = {
      {NULL, NULL, NULL, NULL, 0},                  /* no control groups */
      {"0::/\n", NULL, NULL, NULL, 0},              /* the machine's root has no file */
      {"0::/\n", "400000 100000\n", NULL, NULL, 4}, /* a container's root */
      {"0::/a/b\n", "max 100000\n", "max 100000\n", "max 100000\n", 0},
      {"0::/a/b\n", NULL, "max 100000\n", "250000 100000\n", 3}, /* rounded up */
      {"0::/a/b\n", NULL, "200000 100000\n", "800000 100000\n",
       2}, /* the parent's quota is smaller */
      {"0::/a/b\n", "50000 100000\n", "200000 100000\n", NULL, 1}, /* half a CPU */
      {"1:cpu:/x\n0::/a/b\n", NULL, NULL, "600000 100000\n", 6},   /* versions 1 and 2 */
      {"0::/gone\n", "700000 100000\n", NULL, NULL, 7},            /* no folder of that group */
      {"0::/a/b\n", NULL, NULL, "900000 300000\n", 3},             /* another period */
      {"0::/a/b\n", NULL, NULL, "100000 0\n", 0},                  /* invalid: no quota */
      {"0::/a/b\n", NULL, NULL, "", 0},
      {"0::/a/b\n", NULL, NULL, "-1 100000\n", 0},
      {"0::/a/b\n", NULL, NULL, "99999999999999999 1\n", 0},
      {"nonsense", NULL, NULL, "100000 100000\n", 0},
  };
  char root[] = "/tmp/hocket-quota-XXXXXX", command[64];
  assert_non_null(mkdtemp(root));
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    put_file(root, "/proc/self/cgroup", cases[i].cgroup);
    put_file(root, "/sys/fs/cgroup/cpu.max", cases[i].at_root);
    put_file(root, "/sys/fs/cgroup/a/cpu.max", cases[i].above);
    put_file(root, "/sys/fs/cgroup/a/b/cpu.max", cases[i].own);
    if (hk_cpu_quota(root) != cases[i].cpus) {
      fail_msg("case %zu: %d CPUs, expected %d", i, hk_cpu_quota(root), cases[i].cpus);
    }
  }
  snprintf(command, sizeof command, "rm -r %s", root);
  assert_int_equal(system(command), 0);
}

/* Version 1 of control groups: quota and period are two files, in a folder that is named after the
 * controllers. */
static void quotas_of_version_1(void **unused) {
  (void)unused;
  static const struct {
    const char *cgroup, *mount;
    const char *above_quota, *above_period, *own_quota, *own_period;
    int cpus;
  } cases[] = {
      {"4:cpu,cpuacct:/a/b\n", "cpu", "-1\n", "100000\n", "400000\n", "100000\n", 4},
      {"4:cpuacct,cpu:/a/b\n", "cpuacct,cpu", "-1\n", "100000\n", "250000\n", "100000\n", 3},
      {"4:cpu:/a/b\n", "cpu", "200000\n", "100000\n", "400000\n", "100000\n", 2},
      {"4:cpu:/a/b\n", "cpu", "800000\n", "100000\n", "-1\n", "100000\n", 8},
      {"4:cpu:/a/b\n", "cpu", "-1\n", "100000\n", "-1\n", "100000\n", 0},
      {"4:cpu:/a/b\n", "cpu", NULL, NULL, "10000\n", "50000\n", 1},
      {"4:cpu:/a/b\n", "cpu", NULL, NULL, "400000\n", NULL, 0}, /* invalid: no quota */
      {"4:cpu:/a/b\n", "cpu", NULL, NULL, "400000\n", "0\n", 0},
      {"4:cpu:/docker/0123\n", "cpu", NULL, NULL, "400000\n", "100000\n", 0}, /* not mounted */
      {"4:cpuset:/a/b\n3:cpuacct:/a/b\n", "cpu", NULL, NULL, "400000\n", "100000\n", 0},
      {"5:memory:/a\n4:cpu:/a\n0::/\n", "cpu", "600000\n", "100000\n", "1\n", "1\n", 6},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    char root[] = "/tmp/hocket-quota-XXXXXX", command[64], name[128];
    assert_non_null(mkdtemp(root));
    put_file(root, "/proc/self/cgroup", cases[i].cgroup);
    const char *texts[] = {cases[i].above_quota, cases[i].above_period, cases[i].own_quota,
                           cases[i].own_period};
    for (int k = 0; k < 4; k++) {
      snprintf(name, sizeof name, "/sys/fs/cgroup/%s/a%s/cpu.cfs_%s_us", cases[i].mount,
               k < 2 ? "" : "/b", k % 2 == 0 ? "quota" : "period");
      put_file(root, name, texts[k]);
    }
    if (hk_cpu_quota(root) != cases[i].cpus) {
      fail_msg("case %zu: %d CPUs, expected %d", i, hk_cpu_quota(root), cases[i].cpus);
    }
    snprintf(command, sizeof command, "rm -r %s", root);
    assert_int_equal(system(command), 0);
  }
}

/* In a container /proc/self/cgroup has the host's path, and the mount's root is the container's
 * group. */
static void quota_of_a_container_of_version_1(void **unused) {
  (void)unused;
  char root[] = "/tmp/hocket-quota-XXXXXX", command[64];
  assert_non_null(mkdtemp(root));
  put_file(root, "/proc/self/cgroup", "4:cpu,cpuacct:/docker/0123\n");
  put_file(root, "/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "350000\n");
  put_file(root, "/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000\n");
  assert_int_equal(hk_cpu_quota(root), 4);
  snprintf(command, sizeof command, "rm -r %s", root);
  assert_int_equal(system(command), 0);
}

static void threads_by_affinity(void **unused) {
  (void)unused;
  cpu_set_t all, one;
  assert_int_equal(sched_getaffinity(0, sizeof all, &all), 0);
  const int quota = hk_cpu_quota(""), cpus = CPU_COUNT(&all);
  const int least = quota > 0 && quota < cpus ? quota : cpus;
  assert_int_equal(hk_default_threads(HK_OVERLAP_NONE), least > 1 ? least - 1 : 1);
  for (int overlap = 0; overlap < HK_OVERLAP_COUNT; overlap++)
    assert_int_equal(hk_default_threads((hk_overlap)overlap),
                     hk_training_threads((hk_overlap)overlap, least));
  size_t first = 0;
  while (!CPU_ISSET(first, &all)) first++;
  CPU_ZERO(&one);
  CPU_SET(first, &one);
  assert_int_equal(sched_setaffinity(0, sizeof one, &one), 0);
  assert_int_equal(hk_default_threads(HK_OVERLAP_NONE), 1);
  assert_int_equal(sched_setaffinity(0, sizeof all, &all), 0);
}

/* -- Subgroups --------------------------------------------------------------------------------- */

enum { MOST = 40 };

static size_t random_params(random_stream *r, hk_param *params) {
  const size_t n = (size_t)pick(r, 1, MOST);
  int32_t block = pick(r, 0, 3);
  for (size_t p = 0; p < n; p++) {
    params[p] = (hk_param){.numel = (int64_t)scale(r, 1, 4e8),
                           .block = block,
                           .weight_type = (hk_grad_type)pick(r, 0, 2),
                           .grad_type = (hk_grad_type)pick(r, 0, 2)};
    block += pick(r, 0, 2) == 0 ? pick(r, 1, 3) : 0;
  }
  return n;
}

/* The block that flat parameter `at` is in. */
static int32_t block_at(const hk_param *params, int64_t at) {
  size_t p = 0;
  while (at >= params[p].numel) at -= params[p++].numel;
  return params[p].block;
}

static void subgroups_end_with_their_block(void **unused) {
  (void)unused;
  for (uint64_t number = 0; number < 100; number++) {
    random_stream r = {number + 900};
    hk_param params[MOST] = {0};
    hk_error err = {0};
    hk_plan plan = {0};
    int64_t numel = 0, begin = 0;
    const size_t n = random_params(&r, params);
    for (size_t p = 0; p < n; p++) numel += params[p].numel;
    must(hk_default_plan(params, n, (int)number % 5, &plan, &err), &err);
    must(hk_plan_check(&plan, &err), &err);
    assert_int_equal(plan.cpu_threads,
                     number % 5 > 0 ? (int)number % 5 : hk_default_threads(HK_OVERLAP_NONE));
    assert_int_equal(plan.overlap, HK_OVERLAP_NONE);
    for (size_t s = 0; s < plan.n_subgroups; s++) {
      const hk_plan_subgroup *sub = &plan.subgroups[s];
      assert_true(sub->route == HK_ROUTE_CPU && !sub->ahead);
      assert_true(sub->numel >= 1 && sub->numel <= 1 << 30);
      assert_int_equal(block_at(params, begin), block_at(params, begin + sub->numel - 1));
      begin += sub->numel;
    }
    assert_int_equal(begin, numel);
    assert_true(plan.piece_numel >= 1 && plan.piece_numel <= 24000000);
    hk_plan_free(&plan);
  }
}

/* 9,999 small blocks and one of 1,000,016 parameters give 100 to 257 subgroups, each of which ends
 * with a block. */
static void small_blocks_are_merged(void **unused) {
  (void)unused;
  enum { N = 20000 };
  hk_error err = {0};
  hk_plan plan = {0};
  hk_param *params = calloc(N, sizeof *params);
  assert_non_null(params);
  int64_t numel = 0, begin = 0;
  for (int p = 0; p < N; p++) {
    params[p] = (hk_param){.numel = p == 9000 ? 1000000 : p % 2 == 0 ? 256 : 16, .block = p / 2};
    numel += params[p].numel;
  }
  must(hk_default_plan(params, N, 1, &plan, &err), &err);
  must(hk_plan_check(&plan, &err), &err);
  assert_in_range(plan.n_subgroups, 100, 257);
  for (size_t s = 0; s < plan.n_subgroups; s++) {
    const int64_t end = begin + plan.subgroups[s].numel;
    assert_true(end - begin < 1000000 + 2 * numel / 256);
    if (end < numel) assert_int_not_equal(block_at(params, end - 1), block_at(params, end));
    begin = end;
  }
  assert_int_equal(begin, numel);
  hk_plan_free(&plan);
  free(params);
}

/* Bytes of host memory that an engine of this plan takes. */
static hk_bytes host_bytes(const hk_plan *plan, const hk_param *params, size_t n) {
  hk_error err = {0};
  hk_engine_memory memory;
  must(hk_engine_measure(plan, params, n, &memory, &err), &err);
  return memory.host_pinned;
}

/* The number of subgroups that run ahead grows with host memory, and the chosen plan fits it. Host
 * memory grows by half of a subgroup's spare at a time. */
static void check_ahead(hk_grad_type type) {
  hk_error err = {0};
  hk_param params[20];
  hk_plan plan = {0};
  for (int p = 0; p < 20; p++) {
    params[p] = (hk_param){
        .numel = 30000000 + 100000 * p, .block = p, .weight_type = type, .grad_type = type};
  }
  must(hk_default_plan(params, 20, 4, &plan, &err), &err);
  plan.overlap = HK_OVERLAP_BOTH;
  const hk_bytes least = host_bytes(&plan, params, 20);
  size_t before = 0;
  for (int step = -2; step <= 40; step++) {
    const hk_bytes room = least + step * (12 * params[10].numel) / 2;
    size_t ahead = 0;
    must(hk_choose_routes(&plan, params, 20, room, 0, &err), &err);
    for (size_t s = 0; s < plan.n_subgroups; s++) ahead += plan.subgroups[s].ahead;
    assert_true(ahead >= before && (step > 1 || ahead == 0));
    if (ahead > 0) assert_true(host_bytes(&plan, params, 20) <= room);
    before = ahead;
  }
  assert_true(before >= plan.n_subgroups - 2);
  must(hk_choose_routes(&plan, params, 20, 100 * least, 0, &err), &err);
  /* The norm is known when the first block's gradients are. */
  for (size_t s = 0; s < plan.n_subgroups; s++) assert_true(plan.subgroups[s].ahead == (s > 0));
  assert_int_equal(hk_choose_routes(&plan, params, 19, least, 0, &err), HK_INPUT);
  hk_plan_free(&plan);
}

static void memory_decides_what_runs_ahead(void **unused) {
  (void)unused;
  for (hk_grad_type type = 0; type < HK_GRAD_TYPES; type++) check_ahead(type);
}

/* hk_engine_measure predicts an engine's memory exactly, for mixed types of weights and
 * gradients. */
static void predicted_memory_is_what_an_engine_takes(void **unused) {
  (void)unused;
  hk_error err = {0};
  for (uint64_t number = 0; number < 20; number++) {
    random_stream r = {number + 700};
    hk_param params[30];
    hk_plan plan = {0};
    hk_engine_memory memory;
    hk_engine *engine = NULL;
    for (int p = 0; p < 30; p++) {
      params[p] = (hk_param){.numel = pick(&r, 1, 3000),
                             .block = p / 4,
                             .weight_type = (hk_grad_type)pick(&r, 0, 2),
                             .grad_type = (hk_grad_type)pick(&r, 0, 2)};
    }
    must(hk_default_plan(params, 30, 1, &plan, &err), &err);
    plan.overlap = HK_OVERLAP_BOTH;
    plan.piece_numel = pick(&r, 100, 9000);
    must(hk_choose_routes(&plan, params, 30, 200 * HK_MIB, pick(&r, 0, 1) * 13 * HK_MIB, &err),
         &err);
    must(hk_engine_measure(&plan, params, 30, &memory, &err), &err);
    const hk_adamw group = {.lr = 1e-3};
    const hk_engine_options options = {.no_pin_threads = true};
    must(hk_engine_create(&plan, params, 30, &group, 1, &options, &engine, &err), &err);
    const hk_engine_memory taken = hk_engine_memory_taken(engine);
    assert_memory_equal(&taken, &memory, sizeof memory);
    hk_engine_destroy(engine);
    hk_plan_free(&plan);
  }
}

/* GPU memory goes to early weights first, of the deepest subgroups. The rest keeps the shallowest
 * subgroups on the GPU. */
static void check_gpu_memory(hk_grad_type type) {
  hk_error err = {0};
  const hk_bytes resident = 12 + (hk_bytes)hk_grad_size(type);
  hk_param params[8];
  hk_bytes last = 0;
  for (int p = 0; p < 8; p++) {
    params[p] = (hk_param){.numel = 5000000, .block = p, .grad_type = type};
  }
  for (hk_bytes room = 0; room < 1000000000; room += 7000000) {
    hk_plan plan = {0};
    hk_bytes taken = 0;
    must(hk_default_plan(params, 8, 4, &plan, &err), &err);
    plan.overlap = HK_OVERLAP_BOTH;
    must(hk_choose_routes(&plan, params, 8, (hk_bytes)1 << 40, room, &err), &err);
    must(hk_plan_check(&plan, &err), &err);
    for (size_t s = 0; s < plan.n_subgroups; s++) {
      const hk_plan_subgroup *sub = &plan.subgroups[s];
      const bool on_gpu = sub->route == HK_ROUTE_RESIDENT;
      assert_false(on_gpu && (sub->ahead || sub->early));
      assert_false(sub->early && !sub->ahead);
      if (s > 0) {
        assert_false(on_gpu && plan.subgroups[s - 1].route != HK_ROUTE_RESIDENT);
        assert_false(plan.subgroups[s - 1].early && !sub->early);
      }
      taken += sub->early ? 2 * sub->numel : on_gpu ? resident * sub->numel : 0;
    }
    assert_true(taken <= room && taken >= last);
    last = taken;
    hk_plan_free(&plan);
  }
  assert_true(last == resident * 8 * (hk_bytes)5000000);
}

static void gpu_memory_is_not_exceeded(void **unused) {
  (void)unused;
  for (hk_grad_type type = 0; type < HK_GRAD_TYPES; type++) check_gpu_memory(type);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(quotas),
      cmocka_unit_test(quotas_of_version_1),
      cmocka_unit_test(quota_of_a_container_of_version_1),
      cmocka_unit_test(threads_by_affinity),
      cmocka_unit_test(subgroups_end_with_their_block),
      cmocka_unit_test(small_blocks_are_merged),
      cmocka_unit_test(memory_decides_what_runs_ahead),
      cmocka_unit_test(predicted_memory_is_what_an_engine_takes),
      cmocka_unit_test(gpu_memory_is_not_exceeded),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
