/* SPDX-License-Identifier: Apache-2.0 */
/* Output files that are complete or not there. Devices and pipes are written directly.
 *
 * A regular file is written without a name (O_TMPFILE), synced, and linked to its target. Whatever
 * kills the process, the kernel frees the unnamed file. A target that exists is replaced in two
 * steps: link to a temporary name beside the target, rename over it.
 *
 * Where the file system has no O_TMPFILE, the file has a temporary name from the start.
 * hk_outfile_remove_unfinished removes it when a signal ends the process. What kill -9 leaves is
 * removed by the next write into that folder: a file that is being written is locked (flock), a
 * stale one is not.
 *
 * Temporary names: ".hocket-PID-N.tmp". */
#include "core/base/outfile.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#define TEMP_BEGIN ".hocket-"
#define TEMP_END   ".tmp"

struct hk_outfile {
  FILE *stream; /* over `fd`, through write_all */
  int fd;
  int failure;  /* errno of the first write that failed: stdio does not keep it */
  char *path;   /* as the caller wrote it, for messages */
  char *target; /* the file's final name, symbolic links resolved; NULL: written directly */
  char *temp;   /* the file's name until then; NULL: it has none */
  int listed;   /* entry of `temp` in `unfinished`; -1: none */
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
  /* Bytes that a device or a pipe got cannot be taken back. */
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

/* -- Temporary names ----------------------------------------------------------------------- */

/* Files that a signal handler would have to remove: in static memory, because a handler may not
 * wait for a lock. `state`: 0 unused, 1 being written, 2 valid. */
static struct {
  atomic_int state;
  char path[PATH_MAX];
} unfinished[8];

void hk_outfile_remove_unfinished(void) {
  for (size_t i = 0; i < sizeof unfinished / sizeof *unfinished; i++)
    if (atomic_load(&unfinished[i].state) == 2) unlink(unfinished[i].path);
}

static void (*_Atomic prepare_handlers)(void);

void hk_outfile_on_unfinished(void (*prepare)(void)) {
  atomic_store(&prepare_handlers, prepare);
}

static void list_unfinished(hk_outfile *out) {
  void (*prepare)(void) = atomic_load(&prepare_handlers);
  if (prepare) prepare();
  char *absolute = realpath(out->temp, NULL); /* the working folder may change */
  for (int i = 0; absolute && i < (int)(sizeof unfinished / sizeof *unfinished); i++) {
    int unused = 0;
    if (!atomic_compare_exchange_strong(&unfinished[i].state, &unused, 1)) continue;
    strncpy(unfinished[i].path, absolute, PATH_MAX - 1);
    atomic_store(&unfinished[i].state, 2);
    out->listed = i;
    break;
  }
  free(absolute);
}

static void forget_temp(hk_outfile *out) {
  if (out->listed >= 0) atomic_store(&unfinished[out->listed].state, 0);
  out->listed = -1;
  free(out->temp);
  out->temp = NULL;
}

/* Length of the part of `target` that names its folder, the last slash included; 0: none. */
static int folder_length(const char *target) {
  const char *slash = strrchr(target, '/');
  return slash ? (int)(slash - target) + 1 : 0;
}

/* The folder of `target`, for the caller to free; NULL: no memory. */
static char *folder_of(const char *target) {
  const int length = folder_length(target);
  return length > 0 ? strndup(target, (size_t)length) : strdup(".");
}

/* Calls `make` with one temporary name after the other until one was free. Returns 0 or an errno;
 * out->temp is the name. */
static int try_temp_names(hk_outfile *out, bool (*make)(hk_outfile *out, mode_t mode),
                          mode_t mode) {
  static atomic_uint counter;
  for (int attempt = 0; attempt < 100; attempt++) {
    if (asprintf(&out->temp, "%.*s" TEMP_BEGIN "%ld-%u" TEMP_END, folder_length(out->target),
                 out->target, (long)getpid(), atomic_fetch_add(&counter, 1)) < 0) {
      out->temp = NULL;
      return ENOMEM;
    }
    if (make(out, mode)) return 0;
    int number = errno;
    forget_temp(out);
    if (number != EEXIST) return number;
  }
  return EEXIST;
}

/* Locked for as long as it is open. False, errno EEXIST: another process took it for stale. */
static bool create_named(hk_outfile *out, mode_t mode) {
  struct stat status;
  out->fd = open(out->temp, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode);
  if (out->fd < 0) return false;
  flock(out->fd, LOCK_EX); /* a file system without locks: nobody takes it for stale, either */
  if (fstat(out->fd, &status) != 0 || status.st_nlink > 0) return true;
  close(out->fd);
  out->fd = -1;
  errno = EEXIST;
  return false;
}

/* "/proc/self/fd/N": the name by which linkat finds a file that has none. */
static const char *descriptor_path(int fd, char buffer[32]) {
  snprintf(buffer, 32, "/proc/self/fd/%d", fd);
  return buffer;
}

/* False: this file system, or a system without /proc, needs a name from the start. */
static bool create_unnamed(hk_outfile *out, const char *folder, mode_t mode) {
  char path[32];
  out->fd = open(folder, O_WRONLY | O_TMPFILE | O_CLOEXEC, mode);
  if (out->fd < 0) return false;
  if (access(descriptor_path(out->fd, path), F_OK) == 0) {
    flock(out->fd, LOCK_EX);
    return true;
  }
  close(out->fd);
  out->fd = -1;
  return false;
}

static bool is_temp_name(const char *name) {
  const size_t length = strlen(name), begin = sizeof TEMP_BEGIN - 1, end = sizeof TEMP_END - 1;
  return length > begin + end && strncmp(name, TEMP_BEGIN, begin) == 0 &&
         strcmp(name + length - end, TEMP_END) == 0;
}

/* Removes the temporary files in `folder` that no process is writing. */
static void remove_stale(const char *folder) {
  DIR *directory = opendir(folder);
  if (!directory) return;
  for (const struct dirent *entry; (entry = readdir(directory));) {
    struct stat status;
    if (!is_temp_name(entry->d_name)) continue;
    const int fd =
        openat(dirfd(directory), entry->d_name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0) continue;
    if (fstat(fd, &status) == 0 && S_ISREG(status.st_mode) && flock(fd, LOCK_EX | LOCK_NB) == 0)
      unlinkat(dirfd(directory), entry->d_name, 0);
    close(fd);
  }
  closedir(directory);
}

/* A new file in the target's folder, open for writing. `mode` less the umask: mkstemp would not
 * look at the umask, and reading the umask is not thread-safe. Returns 0 or an errno. */
static int create_temp(hk_outfile *out, mode_t mode) {
  char *folder = folder_of(out->target);
  if (!folder) return ENOMEM;
  remove_stale(folder);
  const bool unnamed = create_unnamed(out, folder, mode);
  free(folder);
  if (unnamed) return 0;
  const int number = try_temp_names(out, create_named, mode);
  if (number == 0) list_unfinished(out);
  return number;
}

/* -- Targets ------------------------------------------------------------------------------- */

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
  int number = create_temp(out, 0666);
  if (number == 0) return HK_OK;
  if (number != ENOENT) return fail_errno(err, out, number);
  const char *slash = strrchr(path, '/');
  return hk_fail(err, HK_INPUT, "cannot write '%s': the directory '%.*s' does not exist", path,
                 slash ? (int)(slash - path) : 1, slash ? path : ".");
}

/* An existing regular file. The new one gets its name, symbolic links resolved so that a link stays
 * a link, and its permissions. */
static hk_status open_replacement(hk_outfile *out, mode_t mode, hk_error *err) {
  if (access(out->path, W_OK) != 0) return fail_errno(err, out, errno);
  out->target = realpath(out->path, NULL);
  if (!out->target) return fail_errno(err, out, errno);
  int number = create_temp(out, mode & 0777); /* never open to more users than the target */
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
  made->fd = made->listed = -1;
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

static bool link_temp(hk_outfile *out, mode_t mode) {
  char path[32];
  (void)mode;
  return linkat(AT_FDCWD, descriptor_path(out->fd, path), AT_FDCWD, out->temp, AT_SYMLINK_FOLLOW) ==
         0;
}

/* Gives the file its target's name. Returns 0 or an errno. */
static int name_file(hk_outfile *out) {
  char path[32];
  if (!out->temp) {
    if (linkat(AT_FDCWD, descriptor_path(out->fd, path), AT_FDCWD, out->target,
               AT_SYMLINK_FOLLOW) == 0)
      return 0;
    if (errno != EEXIST) return errno;
    const int number = try_temp_names(out, link_temp, 0);
    if (number != 0) return number;
    list_unfinished(out);
  }
  if (rename(out->temp, out->target) != 0) return errno;
  forget_temp(out);
  return 0;
}

/* Writes the folder's entry to the disk: a power cut after this leaves the new file. A folder that
 * cannot be read or a file system that does not sync folders is no failure. */
static int sync_folder(const char *target) {
  char *folder = folder_of(target);
  if (!folder) return ENOMEM;
  const int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  free(folder);
  if (fd < 0) return 0;
  const int number = fsync(fd) != 0 && errno == EIO ? EIO : 0;
  close(fd);
  return number;
}

/* Writes what is left, and names the file. Returns 0 or an errno. */
static int finish(hk_outfile *out) {
  /* Flushed once more even after a failure, which write_all then repeats. */
  int number = fclose(out->stream) == 0 ? 0 : errno;
  out->stream = NULL;
  if (out->failure) return out->failure;
  if (number) return number;
  if (out->target && fsync(out->fd) != 0) return errno;
  if (out->target) number = name_file(out);
  if (number) return number;
  const int fd = out->fd;
  out->fd = -1;
  return close(fd) == 0 || out->target ? 0 : errno; /* a synced file has nothing left to lose */
}

hk_status hk_outfile_close(hk_outfile *out, hk_error *err) {
  int number = finish(out);
  hk_status result = number == 0 ? HK_OK : fail_errno(err, out, number);
  if (number == 0 && out->target && (number = sync_folder(out->target)) != 0)
    result = hk_fail(err, HK_ENVIRONMENT,
                     "'%s' is written, but a power cut may undo it: its folder cannot be synced: "
                     "%s",
                     out->path, strerror(number));
  hk_outfile_abort(out);
  return result;
}

void hk_outfile_abort(hk_outfile *out) {
  if (!out) return;
  if (out->stream) {
    /* stdio's buffer must not reach a device: write_all refuses it from now on. */
    out->failure = ECANCELED;
    fclose(out->stream);
  }
  if (out->fd >= 0) close(out->fd);
  if (out->temp) unlink(out->temp);
  forget_temp(out);
  free(out->target);
  free(out->path);
  free(out);
}
