/* SPDX-License-Identifier: Apache-2.0 */
/* Output files that are complete or not there: written under another name in the same folder,
 * synced, then renamed. Devices and pipes are written directly. */
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/json.h"

struct hk_outfile {
  FILE *stream; /* over `fd`, through write_all */
  int fd;
  int failure;  /* errno of the first write that failed, which stdio forgets */
  char *path;   /* as the caller wrote it, for messages */
  char *target; /* what the file is renamed to, symbolic links resolved */
  char *temp;   /* NULL: written directly */
};

/* -- Errors -------------------------------------------------------------------------------- */

static bool is_path_trouble(int number) {
  switch (number) {
    case EACCES:
    case EINVAL:
    case EISDIR:
    case ELOOP:
    case ENAMETOOLONG:
    case ENOENT:
    case ENOTDIR:
    case ENXIO:
    case EPERM:
    case EROFS:
      return true;
    default:
      return false;
  }
}

static hk_status fail_errno(hk_error *err, const hk_outfile *out, int number) {
  /* What has gone to a device or a pipe cannot be taken back. */
  return hk_fail(err, is_path_trouble(number) ? HK_INPUT : HK_ENVIRONMENT,
                 "cannot write '%s': %s%s", out->path, strerror(number),
                 out->target ? "; nothing was written there" : "");
}

/* -- Opening ------------------------------------------------------------------------------- */

/* The stream's write function: all bytes or an error that is remembered. */
static ssize_t write_all(void *cookie, const char *bytes, size_t n) {
  hk_outfile *out = cookie;
  size_t done = 0;
  while (done < n && !out->failure) {
    ssize_t wrote = write(out->fd, bytes + done, n - done);
    if (wrote > 0) {
      done += (size_t)wrote;
    } else if (wrote == 0) {
      out->failure = EIO; /* no progress and no reason given: do not loop */
    } else if (errno != EINTR) {
      out->failure = errno;
    }
  }
  if (!out->failure) return (ssize_t)n;
  errno = out->failure;
  return 0; /* how fopencookie wants an error told */
}

/* Creates a file beside `target` and opens it. mkstemp would make it private (0600) and finding
 * the umask to undo that is not thread-safe: O_CREAT leaves the mode to the kernel. */
static int create_temp(hk_outfile *out) {
  static atomic_uint counter;
  const char *slash = strrchr(out->target, '/');
  int folder = slash ? (int)(slash - out->target) + 1 : 0;
  for (int attempt = 0; attempt < 100; attempt++) {
    if (asprintf(&out->temp, "%.*s.hocket-%ld-%u.tmp", folder, out->target, (long)getpid(),
                 atomic_fetch_add(&counter, 1)) < 0) {
      out->temp = NULL;
      return ENOMEM;
    }
    out->fd = open(out->temp, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (out->fd >= 0) return 0;
    int number = errno;
    free(out->temp);
    out->temp = NULL;
    if (number != EEXIST) return number;
  }
  return EEXIST;
}

static hk_status open_new(hk_outfile *out, hk_error *err) {
  const char *path = out->path;
  struct stat status;
  if (lstat(path, &status) == 0) {
    return hk_fail(err, HK_INPUT, "cannot write '%s': it is a symbolic link to nothing", path);
  }
  size_t length = strlen(path);
  if (length == 0) return hk_fail(err, HK_INPUT, "cannot write '': the file name is empty");
  if (path[length - 1] == '/') {
    return hk_fail(err, HK_INPUT, "cannot write '%s': it names a directory, not a file", path);
  }
  out->target = strdup(path);
  if (!out->target) return hk_fail_memory(err, length + 1, path);
  int number = create_temp(out);
  if (number == 0) return HK_OK;
  if (number != ENOENT) return fail_errno(err, out, number);
  const char *slash = strrchr(path, '/');
  return hk_fail(err, HK_INPUT, "cannot write '%s': the directory '%.*s' does not exist", path,
                 slash ? (int)(slash - path) : 1, slash ? path : ".");
}

/* An existing regular file: its name, links resolved so that a symbolic link survives, and its
 * permissions pass to the new one. */
static hk_status open_replacement(hk_outfile *out, mode_t mode, hk_error *err) {
  if (access(out->path, W_OK) != 0) return fail_errno(err, out, errno);
  out->target = realpath(out->path, NULL);
  if (!out->target) return fail_errno(err, out, errno);
  int number = create_temp(out);
  if (number == 0 && fchmod(out->fd, mode & 0777) != 0) number = errno;
  return number == 0 ? HK_OK : fail_errno(err, out, number);
}

static hk_status open_descriptor(hk_outfile *out, hk_error *err) {
  struct stat status;
  if (strcmp(out->path, HK_STDOUT) == 0) {
    out->fd = fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 0);
    return out->fd >= 0 ? HK_OK : fail_errno(err, out, errno);
  }
  if (stat(out->path, &status) != 0) {
    return errno == ENOENT ? open_new(out, err) : fail_errno(err, out, errno);
  }
  if (S_ISDIR(status.st_mode)) {
    return hk_fail(err, HK_INPUT, "cannot write '%s': it is a directory; expected a file name",
                   out->path);
  }
  if (S_ISREG(status.st_mode)) return open_replacement(out, status.st_mode, err);
  out->fd = open(out->path, O_WRONLY | O_CLOEXEC);
  return out->fd >= 0 ? HK_OK : fail_errno(err, out, errno);
}

hk_status hk_outfile_open(const char *path, hk_outfile **out, hk_error *err) {
  *out = NULL;
  hk_outfile *made = calloc(1, sizeof *made);
  if (!made) return hk_fail_memory(err, sizeof *made, "an output file");
  made->fd = -1;
  made->path = strdup(path);
  hk_status result =
      made->path ? open_descriptor(made, err) : hk_fail_memory(err, strlen(path) + 1, path);
  if (result == HK_OK) {
    made->stream = fopencookie(made, "w", (cookie_io_functions_t){.write = write_all});
    if (!made->stream) result = fail_errno(err, made, errno);
  }
  if (result != HK_OK) {
    hk_outfile_abort(made);
    return result;
  }
  *out = made;
  return HK_OK;
}

FILE *hk_outfile_stream(hk_outfile *out) {
  return out->stream;
}

/* -- Closing ------------------------------------------------------------------------------- */

/* Brings everything to the target. Returns 0 or an errno. */
static int finish(hk_outfile *out) {
  /* Flushed once more even after a failure, which write_all then repeats. */
  int number = fclose(out->stream) == 0 ? 0 : errno;
  out->stream = NULL;
  if (out->failure) return out->failure;
  if (number) return number;
  if (out->temp && fsync(out->fd) != 0) return errno;
  int fd = out->fd;
  out->fd = -1;
  if (close(fd) != 0) return errno;
  if (!out->temp) return 0;
  if (rename(out->temp, out->target) != 0) return errno;
  free(out->temp);
  out->temp = NULL;
  return 0;
}

hk_status hk_outfile_close(hk_outfile *out, hk_error *err) {
  int number = finish(out);
  hk_status result = number == 0 ? HK_OK : fail_errno(err, out, number);
  hk_outfile_abort(out);
  return result;
}

void hk_outfile_abort(hk_outfile *out) {
  if (!out) return;
  if (out->stream) {
    /* What stdio still holds must not reach a device: make write_all refuse it. */
    out->failure = ECANCELED;
    fclose(out->stream);
  }
  if (out->fd >= 0) close(out->fd);
  if (out->temp) unlink(out->temp);
  free(out->temp);
  free(out->target);
  free(out->path);
  free(out);
}
