/* SPDX-License-Identifier: Apache-2.0 */
/* Reads a PCI device's files in /sys. A missing file counts as "not known". */
#include "engine/device/pci_link.h"

#include <limits.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

/* The integer at the beginning of a device's file; 0: none. */
static long read_number(const char *root, const char *pci, const char *file) {
  char path[PATH_MAX];
  const int length = snprintf(path, sizeof path, "%s/sys/bus/pci/devices/%s/%s", root, pci, file);
  FILE *open = length < (int)sizeof path ? fopen(path, "r") : NULL;
  if (open == NULL) return 0;
  char line[64] = "";
  const long number = fgets(line, sizeof line, open) != NULL ? strtol(line, NULL, 10) : 0;
  fclose(open);
  return number;
}

void hk_pci_link_read(const char *root, const char *pci, int *generation, int *width) {
  static const int gigatransfers[] = {2, 5, 8, 16, 32, 64}; /* a lane and second; the first 2.5 */
  const long speed = read_number(root, pci, "current_link_speed"); /* "32.0 GT/s PCIe" */
  *generation = 0;
  for (size_t i = 0; i < sizeof gigatransfers / sizeof *gigatransfers; i++) {
    if (speed == gigatransfers[i]) *generation = (int)i + 1;
  }
  const long lanes = read_number(root, pci, "current_link_width");
  *width = lanes >= 1 && lanes <= 32 ? (int)lanes : 0; /* the kernel says 63 or 255 for unknown */
}
