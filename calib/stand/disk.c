/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Disk probes: a file without a name, read and written with O_DIRECT if the file system supports
 * it. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "calib/stand/private.h"

#define BLOCK (4 * HK_KIB) /* alignment of transfers with O_DIRECT */

static hk_status fail(const hk_stand *stand, const char *what, hk_error *err) {
  return hk_fail(err, HK_ENVIRONMENT, "the probe's file in %s: %s: %s", stand->disk, what,
                 strerror(errno));
}

/* ---- The file -------------------------------------------------------------------------------- */

/* Creates the file and removes its name at once, so that nothing is left behind after a crash. */
static hk_status make_file(hk_stand *stand, hk_error *err) {
  char path[4096];
  const int length = snprintf(path, sizeof path, "%s/hocket-probe-XXXXXX", stand->disk);
  if (length < 0 || (size_t)length >= sizeof path) {
    return hk_fail(err, HK_INPUT, "the path of the folder for disk probes is too long: %.200s...",
                   stand->disk);
  }
  const int file = mkostemp(path, O_CLOEXEC);
  if (file < 0) return fail(stand, "cannot be made", err);
  if (unlink(path) != 0) {
    close(file);
    return fail(stand, "cannot be unlinked", err);
  }
  const int flags = fcntl(file, F_GETFL);
  if (flags < 0 || fcntl(file, F_SETFL, flags | O_DIRECT) != 0) {
    hk_stand_add_note(stand, "disk probes use the page cache: no O_DIRECT there");
  }
  stand->file = file;
  return HK_OK;
}

typedef ssize_t (*transfer)(const hk_stand *stand, char *memory, size_t bytes, off_t at);

static ssize_t read_some(const hk_stand *stand, char *memory, size_t bytes, off_t at) {
  return pread(stand->file, memory, bytes, at);
}

static ssize_t write_some(const hk_stand *stand, char *memory, size_t bytes, off_t at) {
  return pwrite(stand->file, memory, bytes, at);
}

static hk_status move(const hk_stand *stand, transfer some, char *memory, hk_bytes bytes,
                      hk_bytes at, hk_error *err) {
  for (hk_bytes done = 0; done < bytes;) {
    const ssize_t n = some(stand, memory + done, (size_t)(bytes - done), (off_t)(at + done));
    if (n < 0 && errno == EINTR) continue;
    if (n == 0) errno = EIO;
    if (n <= 0) return fail(stand, some == read_some ? "cannot be read" : "cannot be written", err);
    done += n;
  }
  return HK_OK;
}

static hk_status sync_file(const hk_stand *stand, hk_error *err) {
  return fdatasync(stand->file) == 0 ? HK_OK : fail(stand, "cannot be synced", err);
}

/* Writes the whole file before anything is measured, so that reads find data and writes need no new
 * blocks. */
static hk_status open_file(hk_stand *stand, hk_error *err) {
  if (stand->file >= 0) return HK_OK;
  HK_TRY(make_file(stand, err));
  const hk_bytes bytes = stand->quarter / BLOCK * BLOCK;
  hk_status status = move(stand, write_some, stand->in, bytes, 0, err);
  if (status == HK_OK) status = sync_file(stand, err);
  if (status == HK_OK) {
    stand->file_bytes = bytes;
    return HK_OK;
  }
  close(stand->file);
  stand->file = -1;
  return status;
}

/* ---- Loads ----------------------------------------------------------------------------------- */

static hk_status check(const hk_stand_job *job, hk_error *err) {
  const hk_bytes chunk = job->load->chunk;
  if (job->stand->disk == NULL) {
    return hk_fail(err, HK_INPUT, "no folder was given for disk probes");
  }
  HK_TRY(open_file(job->stand, err));
  if (chunk % BLOCK == 0 && chunk <= job->stand->file_bytes) return HK_OK;
  return hk_fail(err, HK_INPUT,
                 "disk operations of %lld bytes: they must be a multiple of %lld, up to %lld",
                 (long long)chunk, (long long)BLOCK, (long long)job->stand->file_bytes);
}

static hk_bytes place(const hk_stand_job *job, int64_t i) {
  const hk_bytes chunk = job->load->chunk;
  return i % (job->stand->file_bytes / chunk) * chunk;
}

/* Operation i: reads from the file into stand->out, or writes stand->in to it, at the same offset.
 */
static hk_status run_operation(const hk_stand_job *job, int64_t i, hk_error *err) {
  const hk_stand *stand = job->stand;
  const hk_bytes at = place(job, i), chunk = job->load->chunk;
  return job->load->kind == HK_LOAD_DISK_READ
             ? move(stand, read_some, stand->out + at, chunk, at, err)
             : move(stand, write_some, stand->in + at, chunk, at, err);
}

hk_status hk_stand_disk_run(hk_stand_job *job, hk_error *err) {
  HK_TRY(check(job, err));
  const hk_ns begin = hk_now();
  for (int64_t i = 0; i < job->ops; i++) HK_TRY(run_operation(job, job->first + i, err));
  if (job->load->kind == HK_LOAD_DISK_WRITE) HK_TRY(sync_file(job->stand, err));
  const hk_ns busy = hk_now() - begin;
  job->value = (double)job->load->chunk * (double)job->ops * 1e9 / (double)(busy > 0 ? busy : 1);
  return HK_OK;
}

/* Writes a new pattern in one more operation and reads it back, outside the measured time. */
hk_status hk_stand_disk_verify(const hk_stand_job *job, hk_error *err) {
  const hk_stand *stand = job->stand;
  const int64_t i = job->first + job->ops;
  const hk_bytes at = place(job, i), chunk = job->load->chunk;
  for (hk_bytes b = 0; b < chunk; b += 8) {
    const uint64_t word = hk_stand_pattern(job->seed, b / 8);
    memcpy(stand->in + at + b, &word, sizeof word);
  }
  HK_TRY(move(stand, write_some, stand->in + at, chunk, at, err));
  HK_TRY(sync_file(stand, err));
  HK_TRY(move(stand, read_some, stand->out + at, chunk, at, err));
  if (memcmp(stand->out + at, stand->in + at, (size_t)chunk) == 0) return HK_OK;
  return hk_fail(err, HK_NO, "%lld bytes at %lld of the probe's file in %s came back wrong",
                 (long long)chunk, (long long)at, stand->disk);
}
