/* SPDX-License-Identifier: GPL-3.0-or-later */
/* For LD_PRELOAD: counts a program's calls of each kind from main on, makes the n-th call of one
 * kind fail, and reports blocks of memory that were not freed. In the environment:
 *
 *   FAULT_KIND    memory, write, short (write), sync, rename, open, map, thread
 *   FAULT_AT      which call fails, from 1; 0: none
 *   FAULT_STAYS   if set, all later ones fail, too
 *   FAULT_KILLS   if set, that call ends the program instead (SIGKILL)
 *   FAULT_REPORT  file for the report: a line "calls KIND N" for each kind, "failed N", and a line
 *                 "left N at OFFSET" for each place of the program, or of cJSON, whose blocks were
 *                 not freed at exit; after a crash, or SIGABRT sent to a program that hangs,
 *                 instead "crashed in LIBRARY", the innermost one except the C library
 *
 * Calls inside the C library are not counted, except those of its allocator. To count writes to
 * standard output, it is replaced by a stream that writes through this library. */
#include <dlfcn.h>
#include <errno.h>
#include <execinfo.h>
#include <fcntl.h>
#include <link.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum kind { MEMORY, WRITE, SHORT, SYNC, RENAME, OPEN, MAP, THREAD, KINDS };
static const char *const names[KINDS] = {"memory", "write", "short", "sync",
                                         "rename", "open",  "map",   "thread"};
static const int errors[KINDS] = {ENOMEM, ENOSPC, 0, EIO, EIO, EMFILE, ENOMEM, EAGAIN};

static bool armed, stays, kills;
static enum kind chosen = KINDS;
static unsigned long at;
static atomic_ulong calls[KINDS], failed;

/* Counts the call. True if it must fail; sets errno. */
static bool fails(enum kind kind) {
  if (!armed) return false;
  const unsigned long n = atomic_fetch_add(&calls[kind], 1) + 1;
  if (kind != chosen || at == 0 || n < at || (n > at && !stays)) return false;
  if (kills) kill(getpid(), SIGKILL);
  atomic_fetch_add(&failed, 1);
  errno = errors[kind];
  return true;
}

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

/* -- Blocks ------------------------------------------------------------------------------------ */

extern void *__libc_malloc(size_t), *__libc_calloc(size_t, size_t), *__libc_realloc(void *, size_t),
    *__libc_memalign(size_t, size_t);
extern void __libc_free(void *);

/* The caller that allocated each block: a hash table with open addressing; GONE marks freed blocks.
 */
enum { SLOTS = 1 << 20 };
#define GONE ((void *)1)
static struct {
  void *block;
  uintptr_t from;
} blocks[SLOTS];
static size_t used;
static atomic_flag lock = ATOMIC_FLAG_INIT;
static struct { uintptr_t begin, end, base; } places[2]; /* the program, cJSON */

static size_t slot_of(const void *block) {
  return (size_t)(((uintptr_t)block >> 4) * 0x9e3779b97f4a7c15u >> 44);
}

static const uintptr_t *base_of(uintptr_t from) {
  for (int i = 0; i < 2; i++)
    if (from >= places[i].begin && from < places[i].end) return &places[i].base;
  return NULL;
}

static void *note(void *block, const void *caller) {
  const uintptr_t from = (uintptr_t)caller;
  if (!block || !armed || !base_of(from)) return block;
  while (atomic_flag_test_and_set(&lock)) continue;
  size_t i = slot_of(block);
  while (blocks[i].block && blocks[i].block != GONE) i = (i + 1) % SLOTS;
  if (used < SLOTS / 2 || blocks[i].block == GONE) {
    used += blocks[i].block == NULL;
    blocks[i].block = block;
    blocks[i].from = from;
  }
  atomic_flag_clear(&lock);
  return block;
}

static void forget(const void *block) {
  if (!block || !armed) return;
  while (atomic_flag_test_and_set(&lock)) continue;
  for (size_t i = slot_of(block); blocks[i].block; i = (i + 1) % SLOTS) {
    if (blocks[i].block != block) continue;
    blocks[i].block = GONE;
    break;
  }
  atomic_flag_clear(&lock);
}

void *malloc(size_t size) {
  return fails(MEMORY) ? NULL : note(__libc_malloc(size), __builtin_return_address(0));
}

void *calloc(size_t n, size_t size) {
  return fails(MEMORY) ? NULL : note(__libc_calloc(n, size), __builtin_return_address(0));
}

void *realloc(void *block, size_t size) {
  if (fails(MEMORY)) return NULL;
  void *moved = __libc_realloc(block, size);
  if (moved || size == 0) {
    forget(block);
    note(moved, __builtin_return_address(0));
  }
  return moved;
}

void *aligned_alloc(size_t alignment, size_t size) {
  return fails(MEMORY) ? NULL : note(__libc_memalign(alignment, size), __builtin_return_address(0));
}

int posix_memalign(void **out, size_t alignment, size_t size) {
  if (fails(MEMORY)) return ENOMEM;
  *out = note(__libc_memalign(alignment, size), __builtin_return_address(0));
  return *out ? 0 : ENOMEM;
}

char *strdup(const char *text) {
  const size_t size = strlen(text) + 1;
  char *copy = fails(MEMORY) ? NULL : note(__libc_malloc(size), __builtin_return_address(0));
  return copy ? memcpy(copy, text, size) : NULL;
}

void free(void *block) {
  forget(block);
  __libc_free(block);
}

/* -- System calls ------------------------------------------------------------------------------ */

/* Writes of more than one byte count as "short", too. */
static bool is_short(size_t n) {
  return n > 1 && fails(SHORT);
}

ssize_t write(int fd, const void *bytes, size_t n) {
  if (fd == STDERR_FILENO) return REAL(write)(fd, bytes, n); /* error messages must be printed */
  if (fails(WRITE)) return -1;
  return REAL(write)(fd, bytes, is_short(n) ? n / 2 : n);
}

ssize_t pwrite64(int fd, const void *bytes, size_t n, off64_t offset) {
  if (fails(WRITE)) return -1;
  return REAL(pwrite64)(fd, bytes, is_short(n) ? n / 2 : n, offset);
}

ssize_t pwrite(int fd, const void *bytes, size_t n, off_t offset) {
  return pwrite64(fd, bytes, n, offset);
}

int fsync(int fd) {
  return fails(SYNC) ? -1 : REAL(fsync)(fd);
}

int fdatasync(int fd) {
  return fails(SYNC) ? -1 : REAL(fdatasync)(fd);
}

int rename(const char *from, const char *to) {
  return fails(RENAME) ? -1 : REAL(rename)(from, to);
}

int linkat(int from_fd, const char *from, int to_fd, const char *to, int flags) {
  return fails(RENAME) ? -1 : REAL(linkat)(from_fd, from, to_fd, to, flags);
}

static mode_t mode_of(int flags, va_list values) {
  return flags & O_CREAT || (flags & O_TMPFILE) == O_TMPFILE ? va_arg(values, mode_t) : 0;
}

int open64(const char *path, int flags, ...) {
  va_list values;
  va_start(values, flags);
  const mode_t mode = mode_of(flags, values);
  va_end(values);
  return fails(OPEN) ? -1 : REAL(open64)(path, flags, mode);
}

int open(const char *path, int flags, ...) {
  va_list values;
  va_start(values, flags);
  const mode_t mode = mode_of(flags, values);
  va_end(values);
  return fails(OPEN) ? -1 : REAL(open)(path, flags, mode);
}

int __open_2(const char *path, int flags) {
  return fails(OPEN) ? -1 : REAL(open)(path, flags);
}

int __open64_2(const char *path, int flags) {
  return fails(OPEN) ? -1 : REAL(open64)(path, flags);
}

FILE *fopen(const char *path, const char *mode) {
  return fails(OPEN) ? NULL : REAL(fopen)(path, mode);
}

FILE *fopen64(const char *path, const char *mode) {
  return fails(OPEN) ? NULL : REAL(fopen64)(path, mode);
}

void *mmap(void *address, size_t n, int protection, int flags, int fd, off_t offset) {
  return fails(MAP) ? MAP_FAILED : REAL(mmap)(address, n, protection, flags, fd, offset);
}

void *mmap64(void *address, size_t n, int protection, int flags, int fd, off64_t offset) {
  return fails(MAP) ? MAP_FAILED : REAL(mmap64)(address, n, protection, flags, fd, offset);
}

int pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*run)(void *),
                   void *context) {
  return fails(THREAD) ? EAGAIN : REAL(pthread_create)(thread, attributes, run, context);
}

/* -- Beginning and end ------------------------------------------------------------------------- */

/* The program and its libraries as they are before main; the program comes first. */
static struct {
  const char *name; /* the program's is empty */
  uintptr_t begin, end;
} objects[64];
static int n_objects;

static int find_object(struct dl_phdr_info *info, size_t size, void *unused) {
  (void)size;
  (void)unused;
  const int n = n_objects;
  if (n == sizeof objects / sizeof *objects) return 1;
  objects[n].name = info->dlpi_name;
  objects[n].begin = UINTPTR_MAX;
  for (int i = 0; i < info->dlpi_phnum; i++) {
    const ElfW(Phdr) *segment = &info->dlpi_phdr[i];
    const uintptr_t begin = info->dlpi_addr + segment->p_vaddr, end = begin + segment->p_memsz;
    if (segment->p_type != PT_LOAD) continue;
    if (begin < objects[n].begin) objects[n].begin = begin;
    if (end > objects[n].end) objects[n].end = end;
  }
  n_objects++;
  const int place = n == 0 ? 0 : strstr(info->dlpi_name, "libcjson") ? 1 : -1;
  if (place < 0) return 0;
  places[place].base = info->dlpi_addr;
  places[place].begin = objects[n].begin;
  places[place].end = objects[n].end;
  return 0;
}

static ssize_t write_out(void *unused, const char *bytes, size_t n) {
  (void)unused;
  size_t done = 0;
  while (done < n) {
    const ssize_t wrote = write(STDOUT_FILENO, bytes + done, n - done);
    if (wrote < 0) return 0; /* an error, for fopencookie */
    done += (size_t)wrote;
  }
  return (ssize_t)n;
}

static void read_wishes(void) {
  const char *kind = getenv("FAULT_KIND"), *number = getenv("FAULT_AT");
  for (int k = 0; k < KINDS; k++)
    if (kind && strcmp(kind, names[k]) == 0) chosen = (enum kind)k;
  at = number ? strtoul(number, NULL, 10) : 0;
  stays = getenv("FAULT_STAYS") != NULL;
  kills = getenv("FAULT_KILLS") != NULL;
}

/* For the handler of a crash: getenv, dlsym and dladdr may take locks, so their answers are kept.
 */
static const char *report_path;
static int (*real_open)(const char *, int, ...);
static ssize_t (*real_write)(int, const void *, size_t);

/* The name of the object at an address; NULL: loaded after the start of main. */
static const char *object_of(const void *address) {
  const uintptr_t place = (uintptr_t)address;
  for (int i = 0; i < n_objects; i++)
    if (place >= objects[i].begin && place < objects[i].end) return objects[i].name;
  return NULL;
}

static void put(int fd, const char *text) {
  for (size_t left = strlen(text); left > 0;) {
    const ssize_t wrote = real_write(fd, text, left);
    if (wrote <= 0) return;
    text += wrote;
    left -= (size_t)wrote;
  }
}

static void note_crash(int number) {
  void *frames[64];
  const char *where = "the program";
  armed = false;
  const int n = backtrace(frames, 64); /* NOLINT(bugprone-signal-handler): loaded before main */
  for (int i = 1; i < n; i++) {
    const char *name = object_of(frames[i]);
    if (name == NULL || strstr(name, "faults") || strstr(name, "libc.so")) continue;
    if (strstr(name, "/lib")) where = strrchr(name, '/') + 1;
    break;
  }
  const int flags = O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC;
  const int fd = report_path ? real_open(report_path, flags, 0600) : -1;
  if (fd >= 0) {
    put(fd, "crashed in ");
    put(fd, where);
    put(fd, "\n");
  }
  signal(number, SIG_DFL);
  raise(number);
}

static void watch_for_crashes(void) {
  void *frame[1];
  backtrace(frame, 1); /* the first call loads libgcc; later ones allocate nothing */
  report_path = getenv("FAULT_REPORT");
  real_open = REAL(open);
  real_write = REAL(write);
  signal(SIGSEGV, note_crash);
  signal(SIGABRT, note_crash);
}

static int (*program)(int, char **, char **);

static int armed_main(int argc, char **argv, char **environment) {
  read_wishes();
  dl_iterate_phdr(find_object, NULL);
  FILE *out = fopencookie(NULL, "w", (cookie_io_functions_t){.write = write_out});
  if (out) stdout = out;
  watch_for_crashes();
  unsetenv("LD_PRELOAD"); /* child processes run without */
  armed = true;
  return program(argc, argv, environment);
}

int __libc_start_main(int (*main)(int, char **, char **), int argc, char **argv, void (*init)(void),
                      void (*fini)(void), void (*rtld_fini)(void), void *end) {
  program = main;
  return REAL(__libc_start_main)(armed_main, argc, argv, init, fini, rtld_fini, end);
}

/* Prints a line for each place with the number of its blocks and removes them from the table. */
static void report_left(int fd) {
  for (size_t i = 0; i < SLOTS; i++) {
    if (!blocks[i].block || blocks[i].block == GONE) continue;
    const uintptr_t from = blocks[i].from;
    size_t n = 0;
    for (size_t j = i; j < SLOTS; j++) {
      if (blocks[j].from != from || !blocks[j].block || blocks[j].block == GONE) continue;
      blocks[j].block = GONE;
      n++;
    }
    const char *what = base_of(from) == &places[0].base ? "program" : "cjson";
    dprintf(fd, "left %zu at %s+0x%lx\n", n, what, (unsigned long)(from - *base_of(from)));
  }
}

__attribute__((destructor)) static void report(void) {
  armed = false;
  const int fd =
      report_path ? open(report_path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600) : -1;
  if (fd < 0) return;
  for (int k = 0; k < KINDS; k++) dprintf(fd, "calls %s %lu\n", names[k], atomic_load(&calls[k]));
  dprintf(fd, "failed %lu\n", atomic_load(&failed));
  report_left(fd);
  close(fd);
}
