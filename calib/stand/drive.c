/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Writes and reads a nameless file with direct I/O. */
#include "calib/stand/drive.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <omp.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statfs.h>
#include <unistd.h>

#include "core/base/splitmix.h"

#define THREADS 4
#define BLOCK   ((size_t)8 << 20)
#define ALIGN   4096
#define LEAST   (4 * (int64_t)BLOCK) /* bytes that are worth measuring */

typedef struct {
  const hk_drive_options *options;
  int fd;
  char *buffers; /* THREADS blocks */
  int64_t blocks;
} drive;

/* -- Opening ----------------------------------------------------------------------------------- */

static hk_status check_space(const hk_drive_options *o, hk_error *err) {
  struct statfs fs;
  char needed[16], there[16];
  if (statfs(o->folder, &fs) != 0)
    return hk_fail(err, HK_INPUT, "--nvme '%s': %s", o->folder, strerror(errno));
  if (fs.f_type == TMPFS_MAGIC || fs.f_type == RAMFS_MAGIC)
    return hk_fail(err, HK_INPUT,
                   "--nvme '%s': its files are in memory (tmpfs); name a folder on the drives",
                   o->folder);
  const double free_bytes = (double)fs.f_bavail * (double)fs.f_bsize;
  if (free_bytes >= (double)o->bytes) return HK_OK;
  return hk_fail(err, HK_ENVIRONMENT, "--nvme '%s': measuring needs %s of free space, and %s are",
                 o->folder, hk_format_bytes(o->bytes, needed, sizeof needed),
                 hk_format_bytes((hk_bytes)free_bytes, there, sizeof there));
}

/* A file without a name. */
static hk_status open_file(const hk_drive_options *o, int *fd, hk_error *err) {
  char path[4096];
  HK_TRY(check_space(o, err));
  const int length = snprintf(path, sizeof path, "%s/.hocket-nvme-XXXXXX", o->folder);
  if (length >= (int)sizeof path)
    return hk_fail(err, HK_INPUT, "--nvme: the path of the folder is too long");
  *fd = mkostemp(path, O_DIRECT | O_CLOEXEC);
  if (*fd >= 0) {
    unlink(path);
    return HK_OK;
  }
  if (errno == EINVAL) { /* open makes the file before it refuses O_DIRECT */
    unlink(path);
    return hk_fail(err, HK_INPUT, "--nvme '%s': its file system has no direct I/O", o->folder);
  }
  return hk_fail(err, errno == ENOSPC || errno == EIO ? HK_ENVIRONMENT : HK_INPUT,
                 "--nvme '%s': cannot make a file: %s", o->folder, strerror(errno));
}

hk_status hk_drive_check(const hk_drive_options *options, hk_error *err) {
  int fd = -1;
  HK_TRY(open_file(options, &fd, err));
  close(fd);
  return HK_OK;
}

/* Not zeros: drives may store those without writing. */
static hk_status fill(drive *d, hk_error *err) {
  uint64_t state = 1;
  void *memory = NULL;
  if (posix_memalign(&memory, ALIGN, THREADS * BLOCK) != 0)
    return hk_fail_memory(err, THREADS * BLOCK, "blocks to write");
  d->buffers = memory;
  for (size_t i = 0; i < THREADS * BLOCK; i += sizeof state) {
    const uint64_t word = hk_splitmix_next(&state);
    memcpy(d->buffers + i, &word, sizeof word);
  }
  return HK_OK;
}

/* -- Passes ------------------------------------------------------------------------------------ */

static bool stopped(const drive *d) {
  return d->options->stop && *d->options->stop != 0;
}

static hk_status failed(const drive *d, const char *what, int error, hk_error *err) {
  return hk_fail(err, HK_ENVIRONMENT, "--nvme '%s': cannot %s the file: %s", d->options->folder,
                 what, strerror(error));
}

/* Writes or reads all blocks; none begins after `end`. *done: blocks; *rate: B/s. */
static hk_status pass(const drive *d, bool writes, hk_ns end, int64_t *done, double *rate,
                      hk_error *err) {
  const char *what = writes ? "write" : "read";
  atomic_int error = 0;
  _Atomic int64_t moved = 0;
  const hk_ns began = hk_now();
#pragma omp parallel for schedule(dynamic, 1) num_threads(THREADS)
  for (int64_t b = 0; b < d->blocks; b++) {
    if (error != 0 || stopped(d) || hk_now() > end) continue;
    char *buffer = d->buffers + (size_t)omp_get_thread_num() * BLOCK;
    const off_t at = (off_t)b * (off_t)BLOCK;
    const ssize_t n = writes ? pwrite(d->fd, buffer, BLOCK, at) : pread(d->fd, buffer, BLOCK, at);
    if (n == (ssize_t)BLOCK)
      moved++;
    else
      error = n < 0 ? errno : ENOSPC;
  }
  if (error == 0 && writes && fdatasync(d->fd) != 0) error = errno;
  if (error != 0) return failed(d, what, error, err);
  if (stopped(d)) return hk_fail(err, HK_NO, "interrupted");
  *done = moved;
  *rate = (double)moved * (double)BLOCK * HK_NS_PER_S / (double)hk_max(1, hk_now() - began);
  return HK_OK;
}

/* Whatever of the file fits into a quarter of the budget is used. The last blocks before the end
 * may have a gap. */
static hk_status first_write(drive *d, hk_ns began, hk_error *err) {
  const hk_ns quarter = (hk_ns)(d->options->budget_s / 4 * HK_NS_PER_S);
  int64_t done;
  double rate;
  HK_TRY(pass(d, true, began + quarter, &done, &rate, err));
  if (done < d->blocks) d->blocks = done - THREADS;
  if (d->blocks * (int64_t)BLOCK >= LEAST) return HK_OK;
  return hk_fail(err, HK_ENVIRONMENT,
                 "--nvme '%s': %lld MiB were written in %.0f s; that is too slow to measure",
                 d->options->folder, (long long)(done * (int64_t)(BLOCK >> 20)),
                 hk_s(hk_now() - began));
}

static hk_status measure(drive *d, hk_drive_rates *rates, hk_error *err) {
  const hk_ns began = hk_now(), end = began + (hk_ns)(d->options->budget_s * HK_NS_PER_S);
  int64_t done;
  HK_TRY(fill(d, err));
  HK_TRY(first_write(d, began, err));
  rates->bytes = d->blocks * (hk_bytes)BLOCK;
  for (size_t i = 0; i < HK_DRIVE_ROUNDS && (i < 2 || hk_now() < end); i++) {
    HK_TRY(pass(d, false, INT64_MAX, &done, &rates->read[i], err));
    HK_TRY(pass(d, true, INT64_MAX, &done, &rates->write[i], err));
    rates->rounds = i + 1;
  }
  return HK_OK;
}

hk_status hk_drive_measure(const hk_drive_options *options, hk_drive_rates *rates, hk_error *err) {
  drive d = {.options = options, .fd = -1, .blocks = options->bytes / (int64_t)BLOCK};
  *rates = (hk_drive_rates){0};
  HK_TRY(open_file(options, &d.fd, err));
  const hk_status status = measure(&d, rates, err);
  free(d.buffers);
  close(d.fd);
  return status;
}
