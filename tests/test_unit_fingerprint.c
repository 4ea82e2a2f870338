/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Fingerprints: read from made-up /proc and /sys files, written to JSON and read back, compared. */
#include "calib/stand/fingerprint.c"

#include <setjmp.h>
#include <stdarg.h>
/* cmocka wants the above first */
#include <cmocka.h>
#include <ftw.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/device/backend_host.h"
#include "tests/fixture.h"

/* ---- A machine made of files ----------------------------------------------------------------- */

static char root[] = "/tmp/hocket-fingerprint-XXXXXX";

static int make_root(void **state) {
  (void)state;
  strcpy(root + strlen(root) - 6, "XXXXXX");
  return mkdtemp(root) == NULL;
}

static int remove_one(const char *path, const struct stat *info, int type, struct FTW *at) {
  (void)info, (void)type, (void)at;
  return remove(path);
}

static int remove_root(void **state) {
  (void)state;
  return nftw(root, remove_one, 8, FTW_DEPTH | FTW_PHYS);
}

static void write_file(const char *name, const char *text) {
  char path[PATH_MAX];
  snprintf(path, sizeof path, "%s%s", root, name);
  for (char *slash = path + strlen(root) + 1; (slash = strchr(slash, '/')) != NULL;
       *slash++ = '/') {
    *slash = '\0';
    mkdir(path, 0700);
  }
  FILE *file = fopen(path, "w");
  assert_non_null(file);
  assert_true(fputs(text, file) >= 0);
  assert_int_equal(fclose(file), 0);
}

static void files_are_read(void **state) {
  (void)state;
  write_file("/proc/cpuinfo",
             "processor\t: 0\nvendor_id\t: GenuineIntel\nmodel\t\t: 207\n"
             "model name\t: INTEL(R) XEON(R) PLATINUM 8592+\nflags\t\t: fpu vme\n");
  write_file("/sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n");
  write_file("/sys/devices/system/node/online", "0-1,3\n");
  write_file("/proc/meminfo", "MemTotal:       131072 kB\nMemAvailable:    65536 kB\n");
  hk_fingerprint f = nothing_known();
  read_cpu(root, &f);
  read_huge_pages(root, &f);
  read_numa(root, &f);
  read_memory(root, &f);
  assert_string_equal(f.cpu, "INTEL(R) XEON(R) PLATINUM 8592+");
  assert_string_equal(f.huge_pages, "madvise");
  assert_int_equal(f.numa, 3);
  assert_int_equal(f.memory, 128 * HK_MIB);
}

/* The control group's limit counts, even if it is above MemTotal (128 MiB). Without one ("max")
 * MemTotal counts. */
static void a_control_group_limits_memory(void **state) {
  (void)state;
  write_file("/proc/meminfo", "MemTotal:       131072 kB\nMemAvailable:    65536 kB\n");
  write_file("/proc/self/cgroup", "0::/\n");
  write_file("/sys/fs/cgroup/memory.current", "1048576\n");
  static const struct {
    const char *limit;
    hk_bytes memory;
  } rows[] = {{"67108864\n", 64 * HK_MIB}, {"max\n", 128 * HK_MIB}, {"268435456\n", 256 * HK_MIB}};
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    write_file("/sys/fs/cgroup/memory.max", rows[i].limit);
    hk_fingerprint f = nothing_known();
    read_memory(root, &f);
    assert_int_equal(f.memory, rows[i].memory);
  }
}

static void missing_files_are_unknown(void **state) {
  (void)state;
  hk_fingerprint f = nothing_known();
  read_cpu(root, &f);
  read_huge_pages(root, &f);
  read_numa(root, &f);
  read_memory(root, &f);
  const hk_fingerprint nothing = nothing_known();
  char text[100];
  assert_string_equal(f.cpu, "unknown");
  assert_string_equal(f.huge_pages, "unknown");
  assert_int_equal(f.numa, -1);
  assert_int_equal(f.memory, -1);
  assert_int_equal(hk_fingerprint_compare(&f, &nothing, text, sizeof text), 0);
}

static void damaged_files_are_unknown(void **state) {
  (void)state;
  static const char *const lists[] = {"", "x", "0-", "3-1", "0,", "0;1", "-"};
  for (size_t i = 0; i < sizeof lists / sizeof *lists; i++)
    assert_int_equal(count_in_list(lists[i]), -1);
  write_file("/sys/kernel/mm/transparent_hugepage/enabled", "always [madvise never\n");
  write_file("/proc/cpuinfo", "model name");
  hk_fingerprint f = nothing_known();
  read_huge_pages(root, &f);
  read_cpu(root, &f);
  assert_string_equal(f.huge_pages, "unknown");
  assert_string_equal(f.cpu, "unknown");
}

/* Four CPUs, two per core. Without the files that say which CPUs share a core, each CPU counts as a
 * core. */
static void hyperthreads_are_not_cores(void **state) {
  (void)state;
  static const int cpus[] = {0, 1, 2, 3};
  static const char *const siblings[] = {"0,2\n", "1,3\n", "0,2\n", "1,3\n"};
  assert_int_equal(count_cores(root, cpus, 4), 4);
  for (int i = 0; i < 4; i++) {
    char name[100];
    snprintf(name, sizeof name, "/sys/devices/system/cpu/cpu%d/topology/thread_siblings_list", i);
    write_file(name, siblings[i]);
  }
  assert_int_equal(count_cores(root, cpus, 4), 2);
  assert_int_equal(count_cores(root, cpus, 1), 1);
}

/* ---- This machine ---------------------------------------------------------------------------- */

static void this_machine(void **state) {
  (void)state;
  hk_error err = {0};
  hk_backend *device = NULL;
  const hk_backend_options options = {.memory = HK_MIB, .threads = 1};
  must(hk_backend_host.open(0, &options, &device, &err), &err);
  hk_fingerprint f, again;
  must(hk_fingerprint_take(device, 2, "1.2.3", &f, &err), &err);
  must(hk_fingerprint_take(device, 2, "1.2.3", &again, &err), &err);
  device->ops->close(device);
  assert_string_equal(f.backend, "host");
  assert_string_equal(f.version, "1.2.3");
  assert_string_equal(f.isa, hk_cpu_kernels_best()->name);
  assert_string_not_equal(f.kernel, "unknown");
  assert_int_equal(f.gpus, 2);
  assert_in_range(f.cores, 1, sysconf(_SC_NPROCESSORS_CONF));
  assert_true(f.memory > 0);
  char text[600];
  assert_int_equal(hk_fingerprint_compare(&f, &again, text, sizeof text), 0);
  assert_string_equal(text, "");
}

static void links_are_named(void **state) {
  (void)state;
  hk_fingerprint f = nothing_known();
  read_device(&(hk_device_info){.name = "GPU", .link_generation = 5, .link_width = 16}, &f);
  assert_string_equal(f.pcie, "5.0 x16");
  f = nothing_known();
  read_device(&(hk_device_info){.name = "GPU"}, &f);
  assert_string_equal(f.pcie, "unknown");
  assert_string_equal(f.driver, "unknown");
  assert_string_equal(f.gpu, "GPU");
}

/* ---- JSON ------------------------------------------------------------------------------------ */

static hk_fingerprint example(void) {
  return (hk_fingerprint){.backend = "cuda",
                          .cpu = "Xeon A",
                          .isa = "avx512",
                          .gpu = "NVIDIA H200",
                          .driver = "580.95.05",
                          .pcie = "5.0 x16",
                          .kernel = "6.8.0",
                          .huge_pages = "madvise",
                          .version = "0.1.0",
                          .gpus = 4,
                          .cores = 64,
                          .numa = 2,
                          .memory = 512 * HK_GIB};
}

static hk_status read_back(const char *text, hk_fingerprint *f, hk_error *err) {
  cJSON *object = NULL;
  must(hk_json_parse(text, strlen(text), "text", &object, err), err);
  const hk_status status = hk_fingerprint_from_json(object, f, err);
  cJSON_Delete(object);
  return status;
}

static void json_both_ways(void **state) {
  (void)state;
  const hk_fingerprint f = example();
  hk_fingerprint back;
  hk_error err = {0};
  cJSON *object = hk_fingerprint_to_json(&f);
  assert_non_null(object);
  must(hk_fingerprint_from_json(object, &back, &err), &err);
  cJSON_Delete(object);
#define SAME_TEXT(field, key, meaning) assert_string_equal(f.field, back.field);
  HK_FINGERPRINT_TEXTS(SAME_TEXT)
#define SAME_NUMBER(field, key, meaning) assert_int_equal(f.field, back.field);
  HK_FINGERPRINT_NUMBERS(SAME_NUMBER)
}

static void json_without_members_is_unknown(void **state) {
  (void)state;
  hk_fingerprint f;
  hk_error err = {0};
  must(read_back("{\"cpu\": \"Xeon A\", \"colour\": \"red\"}", &f, &err), &err);
  assert_string_equal(f.cpu, "Xeon A");
  assert_string_equal(f.gpu, "unknown");
  assert_int_equal(f.memory, -1);
}

static void wrong_json_is_refused(void **state) {
  (void)state;
  static const struct {
    const char *text, *said;
  } rows[] = {
      {"{\"cpu\": 7}", "'cpu'"},
      {"{\"cores\": \"many\"}", "'cores'"},
      {"{\"cores\": 1.5}", "'cores'"},
      {"{\"memory_bytes\": -2}", "'memory_bytes'"},
  };
  hk_fingerprint f;
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    hk_error err = {0};
    assert_int_equal(read_back(rows[i].text, &f, &err), HK_INPUT);
    assert_non_null(strstr(err.message, rows[i].said));
  }
  char text[200] = "";
  snprintf(text, sizeof text, "{\"gpu\": \"%0128d\"}", 7);
  hk_error err = {0};
  assert_int_equal(read_back(text, &f, &err), HK_INPUT);
  assert_non_null(strstr(err.message, "0 to 127 characters, got 128"));
}

/* ---- Comparing ------------------------------------------------------------------------------- */

static void differences_are_named(void **state) {
  (void)state;
  const hk_fingerprint of = example();
  hk_fingerprint here = example();
  char text[600];
  SET_TEXT(here.cpu, "Xeon B");
  SET_TEXT(here.driver, "590.1");
  SET_TEXT(here.huge_pages, "unknown");
  here.cores = 32;
  here.numa = -1;
  assert_int_equal(hk_fingerprint_compare(&of, &here, text, sizeof text), 3);
  assert_string_equal(
      text, "cpu: Xeon A, here Xeon B; driver: 580.95.05, here 590.1; cores: 64, here 32");
}

static void memory_may_differ_a_little(void **state) {
  (void)state;
  const hk_fingerprint of = example();
  hk_fingerprint here = example();
  char text[600];
  here.memory = of.memory / 100 * 99;
  assert_int_equal(hk_fingerprint_compare(&of, &here, text, sizeof text), 0);
  assert_int_equal(hk_fingerprint_compare(&here, &of, text, sizeof text), 0);
  here.memory = of.memory / 2;
  assert_int_equal(hk_fingerprint_compare(&of, &here, text, sizeof text), 1);
  assert_string_equal(text, "memory_bytes: 512 GiB, here 256 GiB");
}

static void long_texts_are_cut(void **state) {
  (void)state;
  const hk_fingerprint of = example();
  hk_fingerprint here = example();
  SET_TEXT(here.cpu, "Xeon B");
  SET_TEXT(here.gpu, "NVIDIA B200");
  SET_TEXT(here.driver, "590.1");
  for (size_t size = 0; size < 40; size++) {
    char text[64];
    memset(text, '#', sizeof text);
    assert_int_equal(hk_fingerprint_compare(&of, &here, text, size), 3);
    assert_int_equal(text[size], '#');
    if (size > 0) assert_in_range(strlen(text), 0, size - 1);
  }
}

#define on_files(test) cmocka_unit_test_setup_teardown(test, make_root, remove_root)

int main(void) {
  const struct CMUnitTest tests[] = {
      on_files(files_are_read),
      on_files(a_control_group_limits_memory),
      on_files(missing_files_are_unknown),
      on_files(damaged_files_are_unknown),
      on_files(hyperthreads_are_not_cores),
      cmocka_unit_test(this_machine),
      cmocka_unit_test(links_are_named),
      cmocka_unit_test(json_both_ways),
      cmocka_unit_test(json_without_members_is_unknown),
      cmocka_unit_test(wrong_json_is_refused),
      cmocka_unit_test(differences_are_named),
      cmocka_unit_test(memory_may_differ_a_little),
      cmocka_unit_test(long_texts_are_cut),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
