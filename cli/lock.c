/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Locks by abstract socket names. The kernel knows the process that listens (SO_PEERCRED). */
#include "cli/lock.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>
#include <xxhash.h>

/* -- Names ------------------------------------------------------------------------------------- */

/* "hocket KIND DEV-INODE-HASH" of the folder and the name in it: the same for every path of the
 * file, whether or not the file exists. False: the folder cannot be found. */
static bool name_lock(const char *kind, const char *path, char *name, size_t size) {
  struct stat folder;
  char *real = realpath(path, NULL), *copy = real ? real : strdup(path);
  char *slash = copy ? strrchr(copy, '/') : NULL;
  const char *last = slash ? slash + 1 : copy;
  bool found = false;
  if (copy) {
    if (slash) *slash = '\0';
    found = stat(slash == copy ? "/" : slash ? copy : ".", &folder) == 0;
    if (found)
      snprintf(name, size, "hocket %s %llx-%llx-%" PRIx64, kind, (unsigned long long)folder.st_dev,
               (unsigned long long)folder.st_ino, XXH3_64bits(last, strlen(last)));
  }
  free(copy);
  return found;
}

/* -- Sockets ----------------------------------------------------------------------------------- */

static socklen_t address_of(const char *name, struct sockaddr_un *address) {
  *address = (struct sockaddr_un){.sun_family = AF_UNIX};
  const size_t most = sizeof address->sun_path - 1, length = strlen(name);
  memcpy(address->sun_path + 1, name, length < most ? length : most);
  return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (length < most ? length : most));
}

/* False: another process holds it. The descriptor stays open until the process ends. */
static bool take(const char *name) {
  struct sockaddr_un address;
  const socklen_t length = address_of(name, &address);
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return true;
  if (bind(fd, (struct sockaddr *)&address, length) == 0) {
    listen(fd, SOMAXCONN);
    return true;
  }
  const bool held = errno == EADDRINUSE;
  close(fd);
  return !held;
}

/* The process that holds it; 0: not known, or it has just ended. */
static pid_t find_holder(const char *name) {
  struct sockaddr_un address;
  const socklen_t length = address_of(name, &address);
  struct ucred holder = {0};
  socklen_t size = sizeof holder;
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) return 0;
  if (connect(fd, (struct sockaddr *)&address, length) != 0 ||
      getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &holder, &size) != 0)
    holder.pid = 0;
  close(fd);
  return holder.pid;
}

/* -- The holder in words ----------------------------------------------------------------------- */

static size_t read_proc(pid_t pid, const char *what, char *text, size_t size) {
  char path[64];
  snprintf(path, sizeof path, "/proc/%ld/%s", (long)pid, what);
  FILE *file = fopen(path, "re");
  const size_t n = file ? fread(text, 1, size - 1, file) : 0;
  if (file) fclose(file);
  text[n] = '\0';
  return n;
}

/* When the process was started; 0: not known. */
static time_t find_start(pid_t pid) {
  char status[1024], uptime[64];
  if (read_proc(pid, "stat", status, sizeof status) == 0) return 0;
  FILE *file = fopen("/proc/uptime", "re");
  const bool known = file && fgets(uptime, sizeof uptime, file);
  if (file) fclose(file);
  const char *field = strrchr(status, ')'); /* ends field 2, the only one that may have blanks */
  for (int i = 2; field && i < 22; i++) field = strchr(field + 1, ' ');
  if (!known || !field) return 0;
  const double ticks = strtod(field, NULL) / (double)sysconf(_SC_CLK_TCK);
  return time(NULL) - (time_t)(strtod(uptime, NULL) - ticks);
}

/* "process 4711 (hocket run plan.json), since 2026-11-22 23:14:05". */
static const char *tell_holder(const char *name, char *text, size_t size) {
  char command[160], since[48] = "";
  const pid_t pid = find_holder(name);
  if (pid == 0) {
    snprintf(text, size, "another process");
    return text;
  }
  const size_t n = read_proc(pid, "cmdline", command, sizeof command);
  for (size_t i = 0; i + 1 < n; i++)
    if (command[i] == '\0') command[i] = ' ';
  const time_t start = find_start(pid);
  struct tm local;
  if (start != 0 && localtime_r(&start, &local))
    strftime(since, sizeof since, ", since %Y-%m-%d %H:%M:%S", &local);
  snprintf(text, size, "process %ld%s%s%s%s", (long)pid, n > 0 ? " (" : "", command,
           n > 0 ? ")" : "", since);
  return text;
}

/* -- The locks --------------------------------------------------------------------------------- */

/* `noun`: what the file is; `elsewhere`: how to name another one. */
static hk_status lock_file(const char *noun, const char *path, const char *elsewhere,
                           hk_error *err) {
  char name[96], holder[320];
  if (!name_lock(noun, path, name, sizeof name) || take(name)) return HK_OK;
  return hk_fail(err, HK_ENVIRONMENT,
                 "the %s '%s' is in use by %s; wait until that process ends, or name another "
                 "file%s",
                 noun, path, tell_holder(name, holder, sizeof holder), elsewhere);
}

hk_status hk_lock_checkpoint(const char *path, hk_error *err) {
  return lock_file("checkpoint", path, "", err);
}

hk_status hk_lock_sweep(const char *path, hk_error *err) {
  return lock_file("sweep", path, " with -o", err);
}

hk_status hk_lock_calibration(const char *path, const char *command, bool quiet, hk_error *err) {
  static const char everywhere[] = "hocket calibrations of this host";
  char name[96], holder[320];
  if (name_lock("calibration", path, name, sizeof name) && !take(name))
    return hk_fail(err, HK_ENVIRONMENT,
                   "the store '%s' is in use by another calibration, %s; wait until that process "
                   "ends",
                   path, tell_holder(name, holder, sizeof holder));
  if (!take(everywhere) && !quiet)
    fprintf(stderr,
            "hocket %s: note: another calibration is running on this machine, %s; both measure "
            "each other's load\n",
            command, tell_holder(everywhere, holder, sizeof holder));
  return HK_OK;
}
