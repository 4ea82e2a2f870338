/* SPDX-License-Identifier: GPL-3.0-or-later */
/* The PCI link of a device as its files in /sys describe it, with files that the test writes. */
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/device/pci_link.h"
#include "tests/fixture.h"

#define DEVICE "0000:1b:00.0"

static char root[256];

/* Writes a file of the device; `text` NULL: removes it. */
static void write_file(const char *name, const char *text) {
  char path[512];
  snprintf(path, sizeof path, "%s/sys/bus/pci/devices/" DEVICE "/%s", root, name);
  unlink(path);
  if (text == NULL) return;
  FILE *file = fopen(path, "w");
  assert_non_null(file);
  assert_true(fputs(text, file) >= 0);
  assert_int_equal(fclose(file), 0);
}

static int make_root(void **state) {
  (void)state;
  static const char *const folders[] = {"sys", "bus", "pci", "devices", DEVICE};
  const char *temporary = getenv("TMPDIR");
  snprintf(root, sizeof root, "%s/hocket-test-XXXXXX", temporary ? temporary : "/tmp");
  assert_non_null(mkdtemp(root));
  char path[512];
  int length = snprintf(path, sizeof path, "%s", root);
  for (size_t i = 0; i < sizeof folders / sizeof *folders; i++) {
    length += snprintf(path + length, sizeof path - (size_t)length, "/%s", folders[i]);
    assert_int_equal(mkdir(path, 0700), 0);
  }
  return 0;
}

static int remove_root(void **state) {
  (void)state;
  write_file("current_link_speed", NULL);
  write_file("current_link_width", NULL);
  char path[512];
  snprintf(path, sizeof path, "%s/sys/bus/pci/devices/" DEVICE, root);
  while (strlen(path) >= strlen(root)) {
    assert_int_equal(rmdir(path), 0);
    *strrchr(path, '/') = '\0';
  }
  return 0;
}

static void check(const char *speed, const char *lanes, int generation, int width) {
  int got_generation = -1, got_width = -1;
  write_file("current_link_speed", speed);
  write_file("current_link_width", lanes);
  hk_pci_link_read(root, DEVICE, &got_generation, &got_width);
  assert_int_equal(got_generation, generation);
  assert_int_equal(got_width, width);
}

static void test_links(void **state) {
  (void)state;
  check("2.5 GT/s PCIe\n", "1\n", 1, 1);
  check("5.0 GT/s PCIe\n", "4\n", 2, 4);
  check("8 GT/s\n", "8\n", 3, 8); /* the format of kernels before 5.7 */
  check("16.0 GT/s PCIe\n", "16\n", 4, 16);
  check("32.0 GT/s PCIe\n", "16\n", 5, 16);
  check("64.0 GT/s PCIe\n", "32\n", 6, 32);
}

static void test_unknown(void **state) {
  (void)state;
  check("Unknown\n", "63\n", 0, 0);
  check("Unknown speed\n", "255\n", 0, 0);
  check("", "", 0, 0);
  check("128.5 GT/s PCIe\n", "0\n", 0, 0);
  check("-8 GT/s\n", "-16\n", 0, 0);
  check("32.0 GT/s PCIe\n", NULL, 5, 0);
  check(NULL, "16\n", 0, 16);
  int generation = -1, width = -1;
  hk_pci_link_read(root, "", &generation, &width);
  assert_int_equal(generation, 0);
  assert_int_equal(width, 0);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_links),
      cmocka_unit_test(test_unknown),
  };
  return cmocka_run_group_tests(tests, make_root, remove_root);
}
