/* SPDX-License-Identifier: GPL-3.0-or-later */
/* What makes up a probe: its name, its loads, the sizes that the stand's memory allows. */
#include "calib/probes/probe_builder.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/grow.h"

#define COUNT(array) (sizeof(array) / sizeof *(array))

#define CPU_CHUNK ((int64_t)64 << 10) /* parameters that an engine thread takes at a time */

hk_probe hk_probe_named(hk_probe_group group, bool quick, const char *format, ...) {
  hk_probe p = {.group = group, .quick = quick};
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(p.name, sizeof p.name, format, arguments);
  va_end(arguments);
  return p;
}

void hk_probe_load(hk_probe *p, hk_load l) {
  p->loads[p->n_loads++] = l;
}

static hk_probe *known(const hk_probe_builder *b, const char *name) {
  for (size_t i = 0; i < b->n; i++) {
    if (strcmp(b->probes[i].name, name) == 0) return &b->probes[i];
  }
  return NULL;
}

void hk_probe_add(hk_probe_builder *b, const hk_probe *p) {
  if (b->failed || (b->scope->quick && !p->quick)) return;
  hk_probe *same = known(b, p->name);
  if (same != NULL) {
    same->quick |= p->quick;
    return;
  }
  b->failed = HK_GROW(b->probes, b->room, b->n, "probes", NULL) != HK_OK;
  if (!b->failed) b->probes[b->n++] = *p;
}

hk_bytes hk_probe_most_copied(const hk_probe_scope *s, int gpus) {
  return hk_min(s->host_bytes / 8 / gpus, s->device_bytes / 8 * 2) / 4096 * 4096;
}

int64_t hk_probe_most_updated(const hk_probe_scope *s) {
  return s->device_bytes / 32 / 1024 * 1024;
}

int64_t hk_probe_most_mapped(const hk_probe_scope *s) {
  return hk_min(hk_probe_most_updated(s), s->host_bytes / 48 / 1024 * 1024);
}

/* Most parameters of a pass of a CPU kernel. The arrays have a quarter of the host memory, 24.02
 * bytes a parameter; 25 leaves room for the gaps between them. */
static int64_t most_passed(const hk_probe_scope *s) {
  return s->host_bytes / 4 / 25 / 4096 * 4096;
}

const char *hk_probe_size_text(hk_bytes bytes, char text[32]) {
  static const char *const units[] = {"B", "KiB", "MiB", "GiB"};
  size_t u = 0;
  while (u + 1 < COUNT(units) && bytes % 1024 == 0) {
    bytes /= 1024;
    u++;
  }
  snprintf(text, 32, "%lld %s", (long long)bytes, units[u]);
  return text;
}

const char *hk_probe_count_text(int64_t n, char text[32]) {
  if (n % HK_PROBE_MILLION == 0) {
    snprintf(text, 32, "%lld M", (long long)(n / HK_PROBE_MILLION));
  } else if (n % HK_MIB == 0) {
    snprintf(text, 32, "%lld Mi", (long long)(n / HK_MIB));
  } else if (n % 1024 == 0) {
    snprintf(text, 32, "%lld Ki", (long long)(n / 1024));
  } else {
    snprintf(text, 32, "%lld", (long long)n);
  }
  return text;
}

const char *hk_probe_threads_text(int threads, char text[32]) {
  snprintf(text, 32, "%d thread%s", threads, threads == 1 ? "" : "s");
  return text;
}

void hk_probe_teams_add(hk_probe_teams *t, int count) {
  if (count > (t->n > 0 ? t->counts[t->n - 1] : 0)) t->counts[t->n++] = count;
}

hk_probe_teams hk_probe_teams_of(int cores, const int *parts, size_t n) {
  hk_probe_teams t = {0};
  for (size_t i = 0; i < n; i++) hk_probe_teams_add(&t, cores * parts[i] / 8);
  if (t.n == 0) hk_probe_teams_add(&t, cores);
  return t;
}

void hk_probe_load_copies(hk_probe *p, hk_probe_copies d, int gpus, hk_bytes chunk) {
  for (int g = 0; g < gpus; g++) {
    if (d & HK_COPIES_IN)
      hk_probe_load(p, (hk_load){.kind = HK_LOAD_H2D, .gpu = g, .chunk = chunk});
    if (d & HK_COPIES_OUT)
      hk_probe_load(p, (hk_load){.kind = HK_LOAD_D2H, .gpu = g, .chunk = chunk});
  }
}

hk_load hk_probe_cpu_load(const hk_probe_builder *b, hk_load_kind kind, int threads) {
  const int64_t most = most_passed(b->scope);
  return (hk_load){.kind = kind,
                   .threads = threads,
                   .chunk = CPU_CHUNK,
                   .piece = most < HK_PROBE_CPU_PIECE ? most : 0};
}

bool hk_probe_product_fits(const hk_probe_builder *b, const hk_load *matmul, hk_bytes room) {
  const hk_bytes in = 2 * matmul->k * (matmul->chunk + matmul->n);
  const hk_bytes out = 2 * matmul->chunk * matmul->n;
  return in <= room && out <= room && in + out <= b->scope->host_bytes / 4;
}
