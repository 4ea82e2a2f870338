/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Sequential bandwidth of the drives behind a folder: a file is written and read in turn, with
 * direct I/O, by four threads in blocks of 8 MiB, so that the page cache has no part in it. A write
 * ends with fdatasync. The first write, which also allocates the file, does not count. The file has
 * no name from the start: whatever ends the program, its space is free again. */
#ifndef HK_CALIB_STAND_DRIVE_H
#define HK_CALIB_STAND_DRIVE_H

#include <signal.h>

#include "core/base/error.h"
#include "core/base/units.h"

#define HK_DRIVE_ROUNDS 8 /* at most; two at least */

typedef struct {
  const char *folder;
  hk_bytes bytes;  /* of the file, at least 32 MiB; less if a quarter of the budget is too short */
  double budget_s; /* that may be exceeded by the second round */
  const volatile sig_atomic_t *stop; /* once it is not 0, measuring ends; NULL: never */
} hk_drive_options;

typedef struct {
  hk_bytes bytes; /* of each write and read */
  size_t rounds;
  double write[HK_DRIVE_ROUNDS], read[HK_DRIVE_ROUNDS]; /* B/s */
} hk_drive_rates;

/* Whether hk_drive_measure can begin. HK_INPUT: no folder, no permission, memory instead of drives
 * (tmpfs), or no direct I/O there. HK_ENVIRONMENT: too little space. */
hk_status hk_drive_check(const hk_drive_options *options, hk_error *err);
/* HK_NO: stopped. HK_ENVIRONMENT: the drive failed, or is full. */
hk_status hk_drive_measure(const hk_drive_options *options, hk_drive_rates *rates, hk_error *err);

#endif
