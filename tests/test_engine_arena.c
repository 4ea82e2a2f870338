/* SPDX-License-Identifier: GPL-3.0-or-later */
/* The host arena: alignment, first touch, registration; requests larger than the available memory
 * are refused. The available memory is read from the system's files. */
#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "engine/device/arena.h"
#include "engine/device/available_memory.h"
#include "engine/device/backend_host.h"
#include "tests/fixture.h"

#define HUGE_PAGE (2 * HK_MIB)

static hk_arena open_arena(hk_bytes bytes, hk_team *team) {
  hk_error err = {0};
  hk_arena arena;
  must(hk_arena_open(bytes, team, NULL, &arena, &err), &err);
  return arena;
}

/* -- Memory ------------------------------------------------------------------------------------ */

static void check_memory(const hk_arena *arena, hk_bytes asked) {
  assert_int_equal((uintptr_t)arena->base % HUGE_PAGE, 0);
  assert_int_equal(arena->bytes % HUGE_PAGE, 0);
  assert_true(arena->bytes >= asked && arena->bytes < asked + HUGE_PAGE);
  const long page = sysconf(_SC_PAGESIZE);
  const size_t pages = (size_t)(arena->bytes / page);
  unsigned char *resident = malloc(pages);
  assert_non_null(resident);
  assert_int_equal(mincore(arena->base, (size_t)arena->bytes, resident), 0);
  for (size_t i = 0; i < pages; i++) assert_int_equal(resident[i] & 1, 1);
  free(resident);
  for (hk_bytes at = 0; at < arena->bytes; at += 509) {
    assert_int_equal(((char *)arena->base)[at], 0);
  }
  memset(arena->base, 1, (size_t)arena->bytes);
}

/* A forked child has no arena, so that the parent's writes copy no page. */
static void test_a_forked_child_does_not_inherit_it(void **state) {
  (void)state;
  hk_arena arena = open_arena(3 * HUGE_PAGE, NULL);
  memset(arena.base, 7, (size_t)arena.bytes);
  const pid_t child = fork();
  assert_true(child >= 0);
  if (child == 0) {
    for (hk_bytes at = 0; at < arena.bytes; at += HUGE_PAGE) {
      if (msync((char *)arena.base + at, 1, MS_ASYNC) == 0 || errno != ENOMEM) _exit(1);
    }
    _exit(0);
  }
  int status = -1;
  assert_int_equal(waitpid(child, &status, 0), child);
  assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  hk_arena_close(&arena);
}

static void test_aligned_and_touched(void **state) {
  (void)state;
  static const hk_bytes sizes[] = {1, HUGE_PAGE, HUGE_PAGE + 1, 33 * HK_MIB + 7};
  hk_error err = {0};
  hk_team *team = NULL;
  must(hk_team_open(&(hk_team_options){.threads = 3}, &team, &err), &err);
  for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
    for (int with_team = 0; with_team < 2; with_team++) {
      hk_arena arena = open_arena(sizes[i], with_team ? team : NULL);
      check_memory(&arena, sizes[i]);
      hk_arena_close(&arena);
      assert_null(arena.base);
    }
  }
  hk_team_close(team);
}

static void test_empty(void **state) {
  (void)state;
  hk_arena arena = open_arena(0, NULL);
  assert_int_equal(arena.bytes, 0);
  assert_null(hk_arena_take(&arena, 1, 1));
  hk_arena_close(&arena);
}

static void test_take(void **state) {
  (void)state;
  hk_arena arena = open_arena(2 * HUGE_PAGE, NULL);
  char *base = arena.base;
  assert_ptr_equal(hk_arena_take(&arena, 3, 1), base);
  assert_ptr_equal(hk_arena_take(&arena, 100, 64), base + 64);
  assert_ptr_equal(hk_arena_take(&arena, 0, 64), base + 192);
  assert_ptr_equal(hk_arena_take(&arena, 1, HUGE_PAGE), base + HUGE_PAGE);
  assert_null(hk_arena_take(&arena, HUGE_PAGE, 1));
  assert_null(hk_arena_take(&arena, 1, HUGE_PAGE));
  assert_null(hk_arena_take(&arena, -1, 1));
  assert_null(hk_arena_take(&arena, 1, 3));
  assert_null(hk_arena_take(&arena, 1, 0));
  assert_null(hk_arena_take(&arena, 1, 2 * HUGE_PAGE));
  assert_ptr_equal(hk_arena_take(&arena, HUGE_PAGE - 1, 1), base + HUGE_PAGE + 1);
  assert_int_equal(arena.used, arena.bytes);
  hk_arena_close(&arena);
}

static void test_borrowing(void **state) {
  (void)state;
  hk_error err = {0};
  hk_team *team = NULL;
  hk_backend *device = NULL;
  const hk_backend_options little = {.memory = HK_MIB};
  hk_arena own = open_arena(4 * HUGE_PAGE, NULL), other;
  must(hk_team_open(&(hk_team_options){.threads = 2}, &team, &err), &err);
  memset(own.base, 7, (size_t)own.bytes);
  assert_int_equal(hk_arena_borrow(&own, 1, team, &other, &err), HK_INPUT);
  assert_non_null(strstr(err.message, "not registered"));
  must(hk_backend_host.open(0, &little, &device, &err), &err);
  must(hk_arena_register(&own, device, &err), &err);
  assert_int_equal(hk_arena_borrow(&own, own.bytes + 1, team, &other, &err), HK_INPUT);
  must(hk_arena_borrow(&(hk_arena){0}, 0, team, &other, &err), &err);
  assert_null(other.base);
  hk_arena_close(&other);
  for (int turn = 0; turn < 2; turn++) {
    must(hk_arena_borrow(&own, 2 * HUGE_PAGE + 1, team, &other, &err), &err);
    assert_ptr_equal(other.base, own.base);
    check_memory(&other, 2 * HUGE_PAGE + 1); /* fills it with ones */
    assert_non_null(hk_arena_take(&other, HUGE_PAGE, 64));
    hk_arena_close(&other);
    assert_int_equal(((char *)own.base)[0], 1);
    assert_int_equal(((char *)own.base)[own.bytes - 1], 7);
    assert_int_equal(own.used, 0);
  }
  hk_arena_close(&own);
  hk_backend_host.close(device);
  hk_team_close(team);
}

/* -- Requests that are too large --------------------------------------------------------------- */

static void test_more_than_there_is(void **state) {
  (void)state;
  hk_arena arena;
  hk_error err = {0};
  const hk_bytes room = hk_host_available();
  assert_true(room > 0);
  if (room > INT64_MAX / 4) skip(); /* the system states no limit */
  unsetenv("HOCKET_TRUST_MEMORY");
  assert_int_equal(hk_arena_open(2 * room, NULL, NULL, &arena, &err), HK_ENVIRONMENT);
  assert_non_null(strstr(err.message, "MemAvailable"));
  assert_non_null(strstr(err.message, "HOCKET_TRUST_MEMORY=1"));
  assert_null(arena.base);
  hk_arena_close(&arena);
  assert_int_equal(hk_arena_open(-1, NULL, NULL, &arena, &err), HK_INPUT);
  assert_int_equal(hk_arena_open(INT64_MAX, NULL, NULL, &arena, &err), HK_INPUT);
  /* HOCKET_TRUST_MEMORY skips the check, but 2^60 bytes of addresses do not exist. */
  setenv("HOCKET_TRUST_MEMORY", "1", 1);
  assert_int_equal(hk_arena_open((hk_bytes)1 << 60, NULL, NULL, &arena, &err), HK_ENVIRONMENT);
  unsetenv("HOCKET_TRUST_MEMORY");
  assert_non_null(strstr(err.message, "cannot be mapped"));
}

/* Bytes of address space in use; -1: unknown. */
static long long address_space(void) {
  long long pages = -1;
  FILE *file = fopen("/proc/self/statm", "r");
  if (file == NULL) return -1;
  if (fscanf(file, "%lld", &pages) != 1) pages = -1;
  fclose(file);
  return pages < 0 ? -1 : pages * sysconf(_SC_PAGESIZE);
}

/* Opens an arena of 256 MiB with 64 MiB of addresses left. Returns 0 if it is refused as expected.
 */
static int under_a_limit(void) {
  const long long used = address_space();
  const struct rlimit limit = {(rlim_t)used + 64 * HK_MIB, (rlim_t)used + 64 * HK_MIB};
  if (used < 0 || setrlimit(RLIMIT_AS, &limit) != 0) return 1;
  hk_arena arena;
  hk_error err = {0};
  if (hk_arena_open(256 * HK_MIB, NULL, NULL, &arena, &err) != HK_ENVIRONMENT) return 2;
  return strstr(err.message, "ulimit -v") != NULL ? 0 : 3;
}

static void test_limit_on_addresses(void **state) {
  (void)state;
  if (hk_host_available() < 300 * HK_MIB) skip();
  const pid_t child = fork();
  assert_true(child >= 0);
  if (child == 0) _exit(under_a_limit());
  int status = 0;
  assert_int_equal(waitpid(child, &status, 0), child);
  assert_true(WIFEXITED(status));
  assert_int_equal(WEXITSTATUS(status), 0);
}

/* -- Registration ------------------------------------------------------------------------------ */

static void test_registration(void **state) {
  (void)state;
  hk_error err = {0};
  hk_backend *device = NULL;
  must(hk_backend_host.open(0, NULL, &device, &err), &err);
  hk_arena arena = open_arena(4 * HK_MIB, NULL);
  must(hk_arena_register(&arena, device, &err), &err);
  assert_ptr_equal(arena.registered, device);
  /* The whole arena is registered: a second registration of its last byte is refused. */
  char *last = (char *)arena.base + arena.bytes - 1;
  assert_int_equal(device->ops->host_register(device, last, 1, &err), HK_INPUT);
  void *base = arena.base;
  hk_arena_close(&arena);
  must(device->ops->host_register(device, base, 1, &err), &err);
  device->ops->host_unregister(device, base);

  arena = open_arena(4 * HK_MIB, NULL);
  hk_backend_host_fail(device, HK_HOST_REGISTER, 0);
  assert_int_equal(hk_arena_register(&arena, device, &err), HK_ENVIRONMENT);
  assert_non_null(strstr(err.message, "4.00 MiB of host memory cannot be pinned"));
  assert_non_null(strstr(err.message, "an injected fault"));
  assert_non_null(strstr(err.message, "ulimit -l unlimited"));
  assert_null(arena.registered);
  hk_arena_close(&arena);

  arena = open_arena(0, NULL);
  must(hk_arena_register(&arena, device, &err), &err);
  hk_arena_close(&arena);
  device->ops->close(device);
}

/* -- The system's figures ---------------------------------------------------------------------- */

typedef struct {
  char root[64];
} fake_system;

static void write_file(const fake_system *fake, const char *path, const char *text) {
  char full[512];
  snprintf(full, sizeof full, "%s/%s", fake->root, path);
  for (char *slash = strchr(full + strlen(fake->root) + 1, '/'); slash != NULL;
       slash = strchr(slash + 1, '/')) {
    *slash = '\0';
    mkdir(full, 0700);
    *slash = '/';
  }
  FILE *file = fopen(full, "w");
  assert_non_null(file);
  assert_true(fputs(text, file) >= 0);
  assert_int_equal(fclose(file), 0);
}

/* 64 GiB, 48 of which are available; `groups` is /proc/self/cgroup. */
static fake_system new_system(const char *groups) {
  fake_system fake;
  const char *folder = getenv("TMPDIR");
  snprintf(fake.root, sizeof fake.root, "%s/hocket-test-XXXXXX", folder ? folder : "/tmp");
  assert_non_null(mkdtemp(fake.root));
  write_file(&fake, "proc/meminfo",
             "MemTotal:       67108864 kB\nMemFree:        1048576 kB\n"
             "MemAvailable:   50331648 kB\n");
  write_file(&fake, "proc/self/cgroup", groups);
  return fake;
}

static void check_room(fake_system *fake, double room_gib) {
  const hk_available_memory memory = hk_available_memory_read(fake->root);
  assert_int_equal(memory.total, 64 * HK_GIB);
  assert_int_equal(memory.available, 48 * HK_GIB);
  assert_int_equal(hk_available_memory_bytes(&memory), (hk_bytes)(room_gib * HK_GIB));
  char command[128];
  snprintf(command, sizeof command, "rm -r '%s'", fake->root);
  assert_int_equal(system(command), 0); /* NOLINT(cert-env33-c): a folder of this test's own */
}

static void test_no_limit(void **state) {
  (void)state;
  fake_system fake = new_system("0::/\n");
  check_room(&fake, 48);
  fake = new_system("0::/user.slice\n4:memory:/user\n");
  write_file(&fake, "sys/fs/cgroup/user.slice/memory.max", "max\n");
  write_file(&fake, "sys/fs/cgroup/user.slice/memory.current", "1000\n");
  write_file(&fake, "sys/fs/cgroup/memory/user/memory.limit_in_bytes", "9223372036854771712\n");
  write_file(&fake, "sys/fs/cgroup/memory/user/memory.usage_in_bytes", "1000\n");
  check_room(&fake, 48);
}

static void test_limits_of_version_2(void **state) {
  (void)state;
  /* 16 GiB less 6 in use, of which 2 + 1 are reclaimable caches: 13. */
  fake_system fake = new_system("0::/job/step\n");
  write_file(&fake, "sys/fs/cgroup/job/memory.max", "17179869184\n");
  write_file(&fake, "sys/fs/cgroup/job/memory.current", "6442450944\n");
  write_file(&fake, "sys/fs/cgroup/job/memory.stat",
             "anon 3221225472\ninactive_file 2147483648\nactive_file 1073741824\n");
  write_file(&fake, "sys/fs/cgroup/job/step/memory.max", "34359738368\n");
  write_file(&fake, "sys/fs/cgroup/job/step/memory.current", "6442450944\n");
  check_room(&fake, 13);
  /* Usage above the limit: nothing is available. */
  fake = new_system("0::/job\n");
  write_file(&fake, "sys/fs/cgroup/job/memory.max", "1073741824\n");
  write_file(&fake, "sys/fs/cgroup/job/memory.current", "1073741825\n");
  check_room(&fake, 0);
}

/* In a container /proc/self/cgroup may have the host's path, which does not exist there; the
 * container's own group is at the mount point. */
static void test_limits_of_version_1_in_a_container(void **state) {
  (void)state;
  fake_system fake = new_system("9:cpu,memory:/docker/0123\n1:name=systemd:/docker/0123\n0::/\n");
  write_file(&fake, "sys/fs/cgroup/memory/memory.limit_in_bytes", "8589934592\n");
  write_file(&fake, "sys/fs/cgroup/memory/memory.usage_in_bytes", "2147483648\n");
  check_room(&fake, 6);
}

/* A limit above MemTotal: memory grows as it is used (some virtual machines), so the limit counts.
 */
static void test_limit_above_total_memory(void **state) {
  (void)state;
  fake_system fake = new_system("0::/\n");
  write_file(&fake, "sys/fs/cgroup/memory.max", "137438953472\n");
  write_file(&fake, "sys/fs/cgroup/memory.current", "8589934592\n");
  check_room(&fake, 120);
}

static void test_nothing_known(void **state) {
  (void)state;
  const hk_available_memory memory = hk_available_memory_read("/no such folder");
  assert_int_equal(memory.total, -1);
  assert_int_equal(hk_available_memory_bytes(&memory), INT64_MAX);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_limit_on_addresses), /* before the parent has threads */
      cmocka_unit_test(test_aligned_and_touched),
      cmocka_unit_test(test_a_forked_child_does_not_inherit_it),
      cmocka_unit_test(test_empty),
      cmocka_unit_test(test_take),
      cmocka_unit_test(test_borrowing),
      cmocka_unit_test(test_more_than_there_is),
      cmocka_unit_test(test_registration),
      cmocka_unit_test(test_no_limit),
      cmocka_unit_test(test_limits_of_version_2),
      cmocka_unit_test(test_limits_of_version_1_in_a_container),
      cmocka_unit_test(test_limit_above_total_memory),
      cmocka_unit_test(test_nothing_known),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
