/* SPDX-License-Identifier: Apache-2.0 */
#include "core/base/infile.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#define FIFO_WAIT_MS 5000
#define FIFO_LOOK_MS 50

hk_status hk_infile_fail(const char *what, hk_error *err) {
  const int number = errno;
  const bool environment =
      number == EIO || number == ENOMEM || number == EMFILE || number == ENFILE;
  return hk_fail(err, environment ? HK_ENVIRONMENT : HK_INPUT, "%s: %s", what, strerror(number));
}

hk_status hk_infile_check(int fd, hk_error *err) {
  struct stat status;
  if (fstat(fd, &status) != 0 || !S_ISCHR(status.st_mode) || isatty(fd)) return HK_OK;
  if (status.st_rdev == makedev(1, 3)) return HK_OK; /* /dev/null, which is empty */
  return hk_fail(err, HK_INPUT, "is a device, which has no end; expected a file or a pipe");
}

/* Whether data has come or a process has the FIFO open for writing. tee copies without taking: it
 * returns 0 for an empty FIFO that nobody writes to. */
static bool has_writer(int fd, int scratch) {
  const ssize_t copied = tee(fd, scratch, 1, SPLICE_F_NONBLOCK);
  return copied != 0;
}

/* The FIFO was opened without waiting. A writer that is there may take its time. */
static hk_status wait_for_writer(int fd, hk_error *err) {
  int scratch[2];
  struct pollfd fifo = {.fd = fd, .events = POLLIN};
  if (pipe2(scratch, O_CLOEXEC) != 0) return hk_infile_fail("cannot be opened", err);
  int waited = 0;
  /* POLLHUP: a writer has come and gone. */
  while (!has_writer(fd, scratch[1]) && !(fifo.revents & POLLHUP) && waited < FIFO_WAIT_MS) {
    poll(&fifo, 1, FIFO_LOOK_MS);
    waited += FIFO_LOOK_MS;
  }
  close(scratch[0]);
  close(scratch[1]);
  if (waited >= FIFO_WAIT_MS)
    return hk_fail(err, HK_INPUT, "is a FIFO that no process has opened for writing for %d s",
                   FIFO_WAIT_MS / 1000);
  fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) & ~O_NONBLOCK);
  return HK_OK;
}

static hk_status check(int fd, const char *what, hk_error *err) {
  struct stat status;
  if (fstat(fd, &status) != 0) return HK_OK;
  if (S_ISDIR(status.st_mode)) return hk_fail(err, HK_INPUT, "is a directory; expected %s", what);
  return S_ISFIFO(status.st_mode) ? wait_for_writer(fd, err) : hk_infile_check(fd, err);
}

hk_status hk_infile_open(const char *path, const char *what, int *fd, hk_error *err) {
  *fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  if (*fd < 0) return hk_infile_fail("cannot be opened", err);
  const hk_status status = check(*fd, what, err);
  if (status != HK_OK) {
    close(*fd);
    *fd = -1;
  }
  return status;
}

hk_status hk_infile_stream(const char *path, const char *what, FILE **file, hk_error *err) {
  int fd = -1;
  *file = NULL;
  HK_TRY(hk_infile_open(path, what, &fd, err));
  *file = fdopen(fd, "rb");
  if (*file) return HK_OK;
  hk_infile_fail("cannot be opened", err);
  close(fd);
  return err ? err->status : HK_ENVIRONMENT;
}

/* Reads until the end of the file: the size of a pipe is not known. */
static hk_status read_all(int fd, size_t most, char **text, size_t *length, hk_error *err) {
  for (size_t room = 0;;) {
    if (*length == room) {
      if (room > most)
        return hk_fail(err, HK_INPUT, "larger than %zu MiB, the most that is read", most >> 20);
      /* One byte beyond the limit distinguishes a file of exactly that size from a larger one. */
      room = room ? 2 * room : (size_t)1 << 16;
      if (room > most) room = most + 1;
      char *grown = realloc(*text, room + 1);
      if (!grown) return hk_fail_memory(err, room + 1, "the text of a file");
      *text = grown;
    }
    const ssize_t got = read(fd, *text + *length, room - *length);
    if (got < 0 && errno != EINTR) return hk_infile_fail("cannot be read", err);
    if (got > 0) *length += (size_t)got;
    if (got != 0) continue;
    (*text)[*length] = '\0';
    return HK_OK;
  }
}

hk_status hk_infile_read(const char *path, const char *what, size_t most, char **text,
                         size_t *length, hk_error *err) {
  int fd = -1;
  *text = NULL;
  *length = 0;
  HK_TRY(hk_infile_open(path, what, &fd, err));
  const hk_status status = read_all(fd, most, text, length, err);
  close(fd);
  if (status == HK_OK) return HK_OK;
  free(*text);
  *text = NULL;
  return status;
}
