/* SPDX-License-Identifier: Apache-2.0 */
/* The arena. Too large an arena is refused before memory is touched, because touching it could end
 * the process (out-of-memory killer). */
#include "engine/device/arena.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include "engine/device/available_memory.h"
#include "engine/device/topology.h"

#define HUGE_PAGE (2 * HK_MIB)
#define THP_FILE  "/sys/kernel/mm/transparent_hugepage/enabled"

/* "this; that". Cut when full. */
__attribute__((format(printf, 2, 3))) static void add_note(hk_arena *arena, const char *format,
                                                           ...) {
  const size_t length = strlen(arena->note);
  const char *between = length > 0 ? "; " : "";
  char text[sizeof arena->note];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  snprintf(arena->note + length, sizeof arena->note - length, "%s%s", between, text);
}

/* -- Is there enough? -------------------------------------------------------------------------- */

hk_status hk_arena_check_room(hk_bytes bytes, const char *what, hk_error *err) {
  const char *trust = getenv("HOCKET_TRUST_MEMORY");
  if (trust != NULL && strcmp(trust, "1") == 0) return HK_OK;
  const hk_available_memory memory = hk_available_memory_read("");
  const hk_bytes room = hk_available_memory_bytes(&memory);
  if (bytes <= room) return HK_OK;
  char wish[16], had[16], available[16], total[16], left[48] = "no control group limits it";
  hk_format_bytes(bytes, wish, sizeof wish);
  hk_format_bytes(room, had, sizeof had);
  hk_format_bytes(memory.available, available, sizeof available);
  hk_format_bytes(memory.total, total, sizeof total);
  if (memory.limit >= 0) {
    char limit[16], rest[16];
    snprintf(left, sizeof left, "the control group leaves %s of %s",
             hk_format_bytes(memory.left, rest, sizeof rest),
             hk_format_bytes(memory.limit, limit, sizeof limit));
  }
  return hk_fail(err, HK_ENVIRONMENT,
                 "%s needs %s, but only %s can be had (MemAvailable is %s of %s; %s); keep "
                 "more state on the GPU, end other programs, or, on a virtual machine whose memory "
                 "grows as it is used, set HOCKET_TRUST_MEMORY=1",
                 what, wish, had, available, total, left);
}

/* -- Mapping ----------------------------------------------------------------------------------- */

/* Maps memory that begins at a multiple of a huge page: maps one huge page more and unmaps both
 * ends. */
static hk_status map(hk_arena *arena, hk_error *err) {
  const size_t bytes = (size_t)arena->bytes, room = bytes + HUGE_PAGE;
  char *all =
      mmap(NULL, room, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (all == MAP_FAILED) {
    char wish[16];
    return hk_fail(err, HK_ENVIRONMENT,
                   "%s of host memory cannot be mapped: %s (is there a limit on the address "
                   "space, ulimit -v?)",
                   hk_format_bytes(arena->bytes, wish, sizeof wish), strerror(errno));
  }
  const size_t before = (HUGE_PAGE - ((uintptr_t)all & (HUGE_PAGE - 1))) & (HUGE_PAGE - 1);
  if (before > 0) munmap(all, before);
  munmap(all + before + bytes, (size_t)HUGE_PAGE - before);
  arena->base = all + before;
  return HK_OK;
}

/* Requests huge pages; true: the system accepts the request. */
static bool ask_for_huge_pages(hk_arena *arena) {
  char modes[64] = "";
  FILE *file = fopen(THP_FILE, "r");
  if (file != NULL) {
    if (fgets(modes, sizeof modes, file) == NULL) *modes = '\0';
    fclose(file);
  }
  if (strstr(modes, "[never]") != NULL) {
    add_note(arena, "no huge pages: " THP_FILE " says never");
  } else if (madvise(arena->base, (size_t)arena->bytes, MADV_HUGEPAGE) != 0) {
    add_note(arena, "no huge pages: %s", strerror(errno));
  } else {
    return *modes != '\0';
  }
  return false;
}

/* A line of smaps that begins a mapping: "from-to ...", hexadecimal. */
static bool read_range(const char *line, uintptr_t *from, uintptr_t *to) {
  char *end = NULL;
  *from = strtoul(line, &end, 16);
  if (end == line || *end != '-') return false;
  const char *second = end + 1;
  *to = strtoul(second, &end, 16);
  return end != second && *end == ' ';
}

/* Bytes of the arena that are on huge pages, from /proc/self/smaps. The kernel may have split the
 * mapping or merged it with neighbours, so all mappings that overlap the arena count. */
static hk_bytes on_huge_pages(const hk_arena *arena) {
  static const char key[] = "AnonHugePages:";
  FILE *file = fopen("/proc/self/smaps", "r");
  if (file == NULL) return 0;
  const uintptr_t first = (uintptr_t)arena->base, end = first + (uintptr_t)arena->bytes;
  char line[512];
  bool inside = false;
  hk_bytes sum = 0;
  while (fgets(line, sizeof line, file) != NULL) {
    uintptr_t from = 0, to = 0;
    if (read_range(line, &from, &to)) {
      inside = from < end && to > first;
    } else if (inside && strncmp(line, key, strlen(key)) == 0) {
      sum += strtoll(line + strlen(key), NULL, 10) * HK_KIB;
    }
  }
  fclose(file);
  return sum;
}

/* Notes how much is on huge pages: the system may accept the request and yet have too few of them.
 * Not for a small arena: to tell, the system walks all pages of the process, which takes longer
 * than such an arena gains. */
static void check_huge_pages(hk_arena *arena) {
  if (arena->bytes < 64 * HK_MIB) return;
  const hk_bytes got = on_huge_pages(arena);
  if (got >= arena->bytes / 10 * 9) return;
  char part[16], all[16];
  add_note(arena, "huge pages for only %s of %s", hk_format_bytes(got, part, sizeof part),
           hk_format_bytes(arena->bytes, all, sizeof all));
}

/* -- First touch ------------------------------------------------------------------------------- */

/* The system places pages in the order in which they are first touched, and a virtual machine's
 * memory is not uniform: one GiB was read at 58 GB/s and the next at 109. So pages are touched in
 * an order that spreads each part of the arena over all of that memory. */
typedef struct {
  char *base;
  hk_bytes bytes, page;
  int64_t chunks, stride; /* so that they have no common factor */
  const volatile sig_atomic_t *stop;
} touching;

static bool have_common_factor(int64_t a, int64_t b) {
  while (b != 0) {
    const int64_t rest = a % b;
    a = b;
    b = rest;
  }
  return a > 1;
}

/* Multiples of the golden ratio are spread evenly, however many there are. */
static int64_t stride_of(int64_t chunks) {
  int64_t stride = (int64_t)(0.6180339887498949 * (double)chunks) | 1;
  while (have_common_factor(stride, chunks)) stride += 2;
  return stride;
}

static void touch_chunk(void *arg, int64_t turn, int thread) {
  (void)thread;
  const touching *t = arg;
  if (t->stop != NULL && *t->stop) return;
  const hk_bytes begin = turn * t->stride % t->chunks * HUGE_PAGE, end = begin + HUGE_PAGE;
  for (hk_bytes at = begin; at < end; at += t->page) *(volatile char *)(t->base + at) = 0;
}

static void touch(hk_arena *arena, hk_team *team, const volatile sig_atomic_t *stop) {
  touching t = {
      .base = arena->base, .bytes = arena->bytes, .page = sysconf(_SC_PAGESIZE), .stop = stop};
  t.chunks = t.bytes / HUGE_PAGE;
  t.stride = stride_of(t.chunks);
  if (team != NULL) {
    hk_team_run(team, t.chunks, touch_chunk, &t);
  } else {
    for (int64_t turn = 0; turn < t.chunks; turn++) touch_chunk(&t, turn, 0);
  }
}

hk_status hk_arena_open(hk_bytes bytes, hk_team *team, const char *pci, hk_arena *arena,
                        hk_error *err) {
  return hk_arena_open_until(NULL, bytes, team, pci, arena, err);
}

hk_status hk_arena_open_until(const volatile sig_atomic_t *stop, hk_bytes bytes, hk_team *team,
                              const char *pci, hk_arena *arena, hk_error *err) {
  *arena = (hk_arena){0};
  if (bytes < 0 || bytes > INT64_MAX - 2 * HUGE_PAGE) {
    return hk_fail(err, HK_INPUT, "a host arena of %lld bytes was asked for", (long long)bytes);
  }
  if (bytes == 0) return HK_OK;
  HK_TRY(hk_arena_check_room(bytes, "the host arena", err));
  arena->bytes = (bytes + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE;
  const hk_status status = map(arena, err);
  if (status != HK_OK) {
    *arena = (hk_arena){0};
    return status;
  }
  const bool huge = ask_for_huge_pages(arena);
  const int node = hk_numa_near(pci);
  if (node >= 0 && !hk_numa_bind(arena->base, arena->bytes, node)) {
    add_note(arena, "not bound to NUMA node %d, which is near the GPU: %s", node, strerror(errno));
  }
  /* Without this, after a fork (as for a data loader) each write of the parent to a page copies it
   * first. */
  if (madvise(arena->base, (size_t)arena->bytes, MADV_DONTFORK) != 0) {
    add_note(arena, "forked processes slow the update down: %s", strerror(errno));
  }
  touch(arena, team, stop);
  if (huge) check_huge_pages(arena);
  return HK_OK;
}

/* -- Use --------------------------------------------------------------------------------------- */

hk_status hk_arena_register(hk_arena *arena, hk_backend *backend, hk_error *err) {
  if (arena->bytes == 0) return HK_OK;
  hk_error why = {0};
  if (backend->ops->host_register(backend, arena->base, arena->bytes, &why) == HK_OK) {
    arena->registered = backend;
    return HK_OK;
  }
  char bytes[16], limit[80] = "";
  struct rlimit locked;
  if (getrlimit(RLIMIT_MEMLOCK, &locked) == 0 && locked.rlim_cur < (rlim_t)arena->bytes) {
    char most[16];
    snprintf(limit, sizeof limit, "this process may lock %s: ",
             hk_format_bytes((hk_bytes)locked.rlim_cur, most, sizeof most));
  }
  return hk_fail(err, HK_ENVIRONMENT,
                 "%s of host memory cannot be pinned for the device: %.500s; %sraise a limit on "
                 "locked memory (ulimit -l unlimited, docker run --ulimit memlock=-1) or keep less "
                 "state on the host",
                 hk_format_bytes(arena->bytes, bytes, sizeof bytes), why.message, limit);
}

static void clear_chunk(void *arg, int64_t chunk, int thread) {
  (void)thread;
  const hk_arena *arena = arg;
  memset((char *)arena->base + chunk * HUGE_PAGE, 0, (size_t)HUGE_PAGE);
}

hk_status hk_arena_borrow(const hk_arena *from, hk_bytes bytes, hk_team *team, hk_arena *arena,
                          hk_error *err) {
  *arena = (hk_arena){0};
  if (bytes == 0) return HK_OK;
  if (bytes > from->bytes || from->registered == NULL) {
    return hk_fail(err, HK_INPUT, "%lld bytes are wanted of a host arena that has %lld%s",
                   (long long)bytes, (long long)from->bytes,
                   from->registered == NULL ? " and is not registered" : "");
  }
  *arena = (hk_arena){.base = from->base, .borrowed = true};
  arena->bytes = (bytes + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE;
  memcpy(arena->note, from->note, sizeof arena->note);
  hk_team_run(team, arena->bytes / HUGE_PAGE, clear_chunk, arena);
  return HK_OK;
}

void *hk_arena_take(hk_arena *arena, hk_bytes bytes, hk_bytes alignment) {
  if (bytes < 0 || alignment < 1 || alignment > HUGE_PAGE || (alignment & (alignment - 1)) != 0) {
    return NULL;
  }
  const hk_bytes at = (arena->used + alignment - 1) & ~(alignment - 1);
  if (arena->base == NULL || at > arena->bytes || bytes > arena->bytes - at) return NULL;
  arena->used = at + bytes;
  return (char *)arena->base + at;
}

void hk_arena_close(hk_arena *arena) {
  if (arena->registered != NULL) {
    arena->registered->ops->host_unregister(arena->registered, arena->base);
  }
  if (arena->base != NULL && !arena->borrowed) munmap(arena->base, (size_t)arena->bytes);
  *arena = (hk_arena){0};
}
