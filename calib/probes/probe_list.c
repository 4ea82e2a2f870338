/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Lists the probes of a machine. The stand's memory limits sizes: of a series of sizes those that
 * are too large are left out; a single size is reduced. So every quantity of a profile has probes
 * on the smallest machine, too. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "calib/probes/probe.h"

#define MILLION        ((int64_t)1000000)
#define CPU_CHUNK      ((int64_t)64 << 10) /* parameters that an engine thread takes at a time */
#define CONTENDED_COPY (16 * HK_MIB)       /* about one staged piece's p, m or v */
#define HOPPING_COPY   (2 * HK_MIB)        /* long enough to queue the operation after it */
#define SMALL_DEVICE   (2 * HK_GIB)        /* with less, products are small, for the host backend */
#define MOST_GPUS      ((HK_PROBE_LOADS - 1) / 2)

#define COUNT(array) (sizeof(array) / sizeof *(array))

typedef struct {
  const hk_probe_scope *scope;
  hk_probe *probes;
  size_t n, room;
  bool failed; /* out of memory */
} builder;

/* ---- Building -------------------------------------------------------------------------------- */

__attribute__((format(printf, 3, 4))) static hk_probe named(hk_probe_group group, bool quick,
                                                            const char *format, ...) {
  hk_probe p = {.group = group, .quick = quick};
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(p.name, sizeof p.name, format, arguments);
  va_end(arguments);
  return p;
}

static void load(hk_probe *p, hk_load l) {
  p->loads[p->n_loads++] = l;
}

static hk_probe *known(const builder *b, const char *name) {
  for (size_t i = 0; i < b->n; i++) {
    if (strcmp(b->probes[i].name, name) == 0) return &b->probes[i];
  }
  return NULL;
}

/* Adds a probe. Two sizes that were reduced can give the same probe, which is added once. */
static void add(builder *b, const hk_probe *p) {
  if (b->failed || (b->scope->quick && !p->quick)) return;
  hk_probe *same = known(b, p->name);
  if (same != NULL) {
    same->quick |= p->quick;
    return;
  }
  if (b->n == b->room) {
    const size_t room = b->room > 0 ? 2 * b->room : 64;
    hk_probe *grown = realloc(b->probes, room * sizeof *grown);
    if (grown == NULL) {
      b->failed = true;
      return;
    }
    b->probes = grown;
    b->room = room;
  }
  b->probes[b->n++] = *p;
}

/* Largest chunk of copies on so many GPUs at once. Each GPU has an equal part of a quarter of host
 * memory, which holds at least two chunks, and a quarter of its own memory, which holds at least
 * one. */
static hk_bytes most_copied(const hk_probe_scope *s, int gpus) {
  return hk_min(s->host_bytes / 8 / gpus, s->device_bytes / 8 * 2) / 4096 * 4096;
}

/* Most parameters of an update on a GPU: 16 bytes each in half of the device memory. State in
 * mapped host memory: 12 bytes each in a quarter of the host memory. */
static int64_t most_updated(const hk_probe_scope *s) {
  return s->device_bytes / 32 / 1024 * 1024;
}

static int64_t most_mapped(const hk_probe_scope *s) {
  return hk_min(most_updated(s), s->host_bytes / 48 / 1024 * 1024);
}

/* Most parameters of a pass of a CPU kernel. The arrays have a quarter of the host memory, 20 bytes
 * a parameter; 21 leaves room for the gaps between them. */
static int64_t most_passed(const hk_probe_scope *s) {
  return s->host_bytes / 4 / 21 / 4096 * 4096;
}

/* "64 KiB", "1 GiB", "12345 B": exact, because it becomes part of a name. */
static const char *size_text(hk_bytes bytes, char text[32]) {
  static const char *const units[] = {"B", "KiB", "MiB", "GiB"};
  size_t u = 0;
  while (u + 1 < COUNT(units) && bytes % 1024 == 0) {
    bytes /= 1024;
    u++;
  }
  snprintf(text, 32, "%lld %s", (long long)bytes, units[u]);
  return text;
}

/* "20 M", "64 Ki", "12345". */
static const char *count_text(int64_t n, char text[32]) {
  if (n % MILLION == 0) {
    snprintf(text, 32, "%lld M", (long long)(n / MILLION));
  } else if (n % HK_MIB == 0) {
    snprintf(text, 32, "%lld Mi", (long long)(n / HK_MIB));
  } else if (n % 1024 == 0) {
    snprintf(text, 32, "%lld Ki", (long long)(n / 1024));
  } else {
    snprintf(text, 32, "%lld", (long long)n);
  }
  return text;
}

/* "1 thread", "12 threads". */
static const char *threads_text(int threads, char text[32]) {
  snprintf(text, 32, "%d thread%s", threads, threads == 1 ? "" : "s");
  return text;
}

/* Different numbers of threads, in increasing order, from 1 to cores. */
typedef struct {
  int n, counts[16];
} thread_counts;

static void add_count(thread_counts *t, int count) {
  if (count > (t->n > 0 ? t->counts[t->n - 1] : 0)) t->counts[t->n++] = count;
}

static thread_counts eighths(int cores, const int *parts, size_t n) {
  thread_counts t = {0};
  for (size_t i = 0; i < n; i++) add_count(&t, cores * parts[i] / 8);
  if (t.n == 0) add_count(&t, cores);
  return t;
}

/* ---- Copies ---------------------------------------------------------------------------------- */

typedef enum { IN = 1, OUT = 2, BOTH = IN | OUT } directions;

static const char *const direction_names[] = {[IN] = "h2d", [OUT] = "d2h", [BOTH] = "h2d+d2h"};

static void load_copies(hk_probe *p, directions d, int gpus, hk_bytes chunk) {
  for (int g = 0; g < gpus; g++) {
    if (d & IN) load(p, (hk_load){.kind = HK_LOAD_H2D, .gpu = g, .chunk = chunk});
    if (d & OUT) load(p, (hk_load){.kind = HK_LOAD_D2H, .gpu = g, .chunk = chunk});
  }
}

static void add_copy(builder *b, hk_load_kind kind, hk_bytes bytes, bool quick) {
  char size[32];
  hk_probe p = named(HK_PROBE_ALONE, quick, "%s %s", hk_load_name(kind), size_text(bytes, size));
  load(&p, (hk_load){.kind = kind, .chunk = bytes});
  add(b, &p);
}

static void add_copies_alone(builder *b) {
  static const hk_bytes sizes[] = {64 * HK_KIB, 256 * HK_KIB, HK_MIB,       4 * HK_MIB,
                                   16 * HK_MIB, 64 * HK_MIB,  256 * HK_MIB, HK_GIB};
  static const hk_bytes other_sizes[] = {HK_MIB, 16 * HK_MIB, 64 * HK_MIB};
  const hk_bytes most = most_copied(b->scope, 1), large = hk_min(64 * HK_MIB, most);
  for (hk_load_kind kind = HK_LOAD_H2D; kind <= HK_LOAD_D2H; kind++) {
    for (size_t i = 0; i < COUNT(sizes); i++) {
      const bool quick = sizes[i] == 64 * HK_KIB || sizes[i] == HK_MIB;
      if (sizes[i] <= most) add_copy(b, kind, sizes[i], quick);
    }
    add_copy(b, kind, large, true);
  }
  /* Memory of other kinds is measured in pieces of a few percent of the arena's size. */
  const hk_bytes most_other = hk_min(most, b->scope->host_bytes / 64 / 4096 * 4096);
  for (hk_load_kind kind = HK_LOAD_H2D_PINNED; kind <= HK_LOAD_D2H_PAGEABLE; kind++) {
    const bool pageable = kind >= HK_LOAD_H2D_PAGEABLE;
    for (size_t i = 0; i < COUNT(other_sizes); i++) {
      if (other_sizes[i] <= most_other && (pageable || i > 0)) {
        add_copy(b, kind, other_sizes[i], false);
      }
    }
    add_copy(b, kind, hk_min(64 * HK_MIB, most_other), pageable);
  }
  static const hk_bytes cached_sizes[] = {4 * HK_MIB, 16 * HK_MIB, 32 * HK_MIB, 64 * HK_MIB,
                                          128 * HK_MIB};
  for (size_t i = 0; i < COUNT(cached_sizes); i++) {
    if (cached_sizes[i] <= most_other) add_copy(b, HK_LOAD_H2D_CACHED, cached_sizes[i], false);
  }
  add_copy(b, HK_LOAD_PULL, hk_min(HK_MIB, most), true);
  add_copy(b, HK_LOAD_PULL, hk_min(CONTENDED_COPY, most), true);
}

static void add_duplex(builder *b) {
  static const hk_bytes sizes[] = {HK_MIB, CONTENDED_COPY, 64 * HK_MIB};
  static const int ratios[][2] = {{2, 1}, {1, 2}, {4, 1}, {1, 4}};
  const hk_bytes most = most_copied(b->scope, 1);
  char size[32];
  for (size_t i = 0; i < COUNT(sizes); i++) {
    const hk_bytes chunk = hk_min(sizes[i], most);
    hk_probe p =
        named(HK_PROBE_DUPLEX, sizes[i] == CONTENDED_COPY, "h2d+d2h %s", size_text(chunk, size));
    load_copies(&p, BOTH, 1, chunk);
    add(b, &p);
  }
  const hk_bytes chunk = hk_min(CONTENDED_COPY, most);
  for (size_t i = 0; i < COUNT(ratios); i++) {
    hk_probe p = named(HK_PROBE_DUPLEX, false, "h2d+d2h %d:%d %s", ratios[i][0], ratios[i][1],
                       size_text(chunk, size));
    p.mode = HK_PROBE_WHOLE;
    load_copies(&p, BOTH, 1, chunk);
    for (int d = 0; d < 2; d++) p.loads[d].share = ratios[i][d];
    add(b, &p);
  }
}

/* ---- The CPU --------------------------------------------------------------------------------- */

/* A load of the CPU team. Its piece is the default (0) or, if that does not fit, the largest that
 * does. */
static hk_load cpu_load(const builder *b, hk_load_kind kind, int threads) {
  const int64_t most = most_passed(b->scope);
  return (hk_load){.kind = kind,
                   .threads = threads,
                   .chunk = CPU_CHUNK,
                   .piece = most < HK_PROBE_CPU_PIECE ? most : 0};
}

/* `how`: end of the name, which says what differs from the default load. */
static void add_cpu(builder *b, hk_load l, const char *how, bool quick) {
  char team[32];
  hk_probe p = named(HK_PROBE_ALONE, quick, "%s %s%s", hk_load_name(l.kind),
                     threads_text(l.threads, team), how);
  load(&p, l);
  add(b, &p);
}

static void add_chunks(builder *b, int threads) {
  static const int64_t chunks[] = {16 << 10, 256 << 10, 1 << 20};
  char count[32], how[64];
  for (size_t i = 0; i < COUNT(chunks); i++) {
    hk_load l = cpu_load(b, HK_LOAD_ADAMW_CPU, threads);
    l.chunk = chunks[i];
    snprintf(how, sizeof how, ", chunks of %s", count_text(l.chunk, count));
    if (l.chunk <= b->scope->host_bytes / 128) add_cpu(b, l, how, false);
  }
}

/* AdamW on small pieces. Compared with the default piece they show the fixed cost of an operation.
 * With one thread that cost is negligible. */
static void add_pieces(builder *b, int threads, bool quick) {
  static const int64_t pieces[] = {256 << 10, 1 << 20, 4 << 20};
  char count[32], how[64];
  for (size_t i = 0; i < COUNT(pieces); i++) {
    hk_load l = cpu_load(b, HK_LOAD_ADAMW_CPU, threads);
    if (pieces[i] > hk_load_operation(&l) / 2) continue;
    l.piece = pieces[i];
    snprintf(how, sizeof how, ", pieces of %s", count_text(l.piece, count));
    add_cpu(b, l, how, quick && i == 0);
  }
}

static void add_adamw_cpu(builder *b) {
  const int cores = b->scope->cores;
  thread_counts t = {0};
  add_count(&t, 1);
  if (cores > 1) add_count(&t, 2);
  for (int i = 1; i <= 8; i++) add_count(&t, cores * i / 8);
  for (int i = 0; i < t.n; i++) {
    const int n = t.counts[i];
    const bool quick = n == 1 || n == cores / 4 || n == cores / 2 || n == cores;
    add_cpu(b, cpu_load(b, HK_LOAD_ADAMW_CPU, n), "", quick);
  }
  add_chunks(b, cores);
  if (cores / 2 > 1) add_pieces(b, cores / 2, false);
  if (cores > 1) add_pieces(b, cores, true);
}

/* AdamW into spare memory, with numbers of threads for which AdamW in place has a probe, too. */
static void add_adamw_ahead(builder *b) {
  static const int parts[] = {4, 6, 7, 8};
  const int cores = b->scope->cores;
  const thread_counts t = eighths(cores, parts, COUNT(parts));
  for (int i = 0; i < t.n; i++) {
    add_cpu(b, cpu_load(b, HK_LOAD_ADAMW_AHEAD, t.counts[i]), "", false);
  }
}

/* DRAM loads have chunks of bytes, not parameters. Their names do not include the size. */
static void add_dram(builder *b, hk_load_kind kind, int threads) {
  char team[32];
  hk_probe p =
      named(HK_PROBE_ALONE, false, "%s %s", hk_load_name(kind), threads_text(threads, team));
  load(&p, (hk_load){.kind = kind, .threads = threads, .chunk = HK_MIB});
  add(b, &p);
}

static void add_cpu_kernels(builder *b) {
  static const int quarters[] = {2, 4, 6, 8}, halves[] = {4, 8};
  static const hk_load_kind kinds[] = {HK_LOAD_ADAMW_FP32, HK_LOAD_UNSCALE, HK_LOAD_CAST};
  const int cores = b->scope->cores;
  add_adamw_cpu(b);
  const thread_counts t = eighths(cores, quarters, COUNT(quarters));
  for (size_t k = 0; k < COUNT(kinds); k++) {
    for (int i = 0; i < t.n; i++) {
      add_cpu(b, cpu_load(b, kinds[k], t.counts[i]), "", t.counts[i] == cores);
    }
  }
  const thread_counts few = eighths(cores, halves, COUNT(halves));
  for (hk_load_kind kind = HK_LOAD_DRAM_READ; kind <= HK_LOAD_DRAM_COPY; kind++) {
    for (int i = 0; i < few.n; i++) add_dram(b, kind, few.counts[i]);
  }
}

/* ---- The GPU --------------------------------------------------------------------------------- */

static void add_update(builder *b, hk_load_kind kind, int64_t n, bool quick) {
  char count[32];
  hk_probe p = named(HK_PROBE_ALONE, quick, "%s %s", hk_load_name(kind), count_text(n, count));
  load(&p, (hk_load){.kind = kind, .chunk = n});
  add(b, &p);
}

/* Whether a product fits. The stand has the factors in the device's `in` and the product in its
 * `out`, with `room` bytes each, and fetches all of them to a quarter of host memory to verify. */
static bool has_room(const builder *b, const hk_load *matmul, hk_bytes room) {
  const hk_bytes in = 2 * matmul->k * (matmul->chunk + matmul->n);
  const hk_bytes out = 2 * matmul->chunk * matmul->n;
  return in <= room && out <= room && in + out <= b->scope->host_bytes / 4;
}

static void add_matmul(builder *b, int64_t rows, int64_t columns, int64_t depth, bool quick) {
  const hk_load l = {.kind = HK_LOAD_MATMUL, .chunk = rows, .n = columns, .k = depth};
  if (!has_room(b, &l, b->scope->device_bytes / 4)) return;
  hk_probe p = named(HK_PROBE_ALONE, quick, "matmul %lldx%lldx%lld", (long long)rows,
                     (long long)columns, (long long)depth);
  load(&p, l);
  add(b, &p);
}

static void add_gpu_kernels(builder *b) {
  static const int64_t updates[] = {MILLION, 5 * MILLION, 20 * MILLION, 100 * MILLION};
  static const int layers[][2] = {{4096, 11008}, {5120, 13824}, {8192, 28672}};
  const int64_t most = most_updated(b->scope);
  add_update(b, HK_LOAD_MAPPED, hk_min(20 * MILLION, most_mapped(b->scope)), true);
  for (size_t i = 0; i < COUNT(updates); i++) {
    if (updates[i] <= most) add_update(b, HK_LOAD_ADAMW_GPU, updates[i], false);
  }
  add_update(b, HK_LOAD_ADAMW_GPU, hk_min(20 * MILLION, most), true);
  if (b->scope->device_bytes < SMALL_DEVICE) {
    add_matmul(b, 64, 64, 64, false);
    add_matmul(b, 128, 128, 128, true);
    return;
  }
  /* Llama 7B, 13B and 70B: attention's projections and the MLP's, 2048 tokens. */
  for (size_t i = 0; i < COUNT(layers); i++) {
    add_matmul(b, 2048, layers[i][0], layers[i][0], false);
    add_matmul(b, 2048, layers[i][1], layers[i][0], i == 0);
  }
}

/* A load without a size, or with a single one. */
static void add_single(builder *b, hk_load_kind kind, int64_t chunk, bool quick) {
  hk_probe p = named(HK_PROBE_ALONE, quick, "%s", hk_load_name(kind));
  load(&p, (hk_load){.kind = kind, .chunk = chunk});
  if (hk_load_is(kind, HK_TRAIT_CPU)) p.loads[0].threads = b->scope->cores;
  add(b, &p);
}

static void add_singles(builder *b) {
  const hk_bytes eighth = b->scope->host_bytes / 8 / HK_MIB * HK_MIB;
  const hk_bytes smaller = hk_min(b->scope->host_bytes, b->scope->device_bytes);
  /* The copies of TURNS lie side by side in a quarter. */
  const hk_bytes sixteenth = smaller / 16 / 4096 * 4096;
  add_single(b, HK_LOAD_LAUNCH, 1, true);
  add_single(b, HK_LOAD_SYNC, 1, false);
  add_single(b, HK_LOAD_HOP, hk_min(HOPPING_COPY, sixteenth), true);
  add_single(b, HK_LOAD_MEMORY, 1, true);
  add_single(b, HK_LOAD_TURNS, hk_min(CONTENDED_COPY, sixteenth), true);
  add_single(b, HK_LOAD_TOUCH, hk_min(HK_GIB, eighth), false);
  add_single(b, HK_LOAD_REGISTER, hk_min(HK_GIB, eighth), false);
  add_single(b, HK_LOAD_PIN, hk_min(256 * HK_MIB, eighth), false);
  if (!b->scope->disk) return;
  add_single(b, HK_LOAD_DISK_READ, hk_min(8 * HK_MIB, eighth), false);
  add_single(b, HK_LOAD_DISK_WRITE, hk_min(8 * HK_MIB, eighth), false);
}

/* ---- Contention ------------------------------------------------------------------------------ */

/* Copies of `gpus` GPUs beside one more load, whose name is `beside`. */
static void add_beside(builder *b, directions d, int gpus, hk_load l, const char *beside,
                       bool quick) {
  char size[32], node[32] = "";
  const hk_bytes chunk = hk_min(CONTENDED_COPY, most_copied(b->scope, gpus));
  if (gpus > 1) snprintf(node, sizeof node, "%d gpus ", gpus);
  hk_probe p = named(HK_PROBE_CONTENTION, quick, "%s %s%s | %s", direction_names[d], node,
                     size_text(chunk, size), beside);
  load_copies(&p, d, gpus, chunk);
  load(&p, l);
  add(b, &p);
}

static void add_beside_cpu(builder *b, directions d, int gpus, hk_load l, bool quick) {
  char name[64], team[32];
  snprintf(name, sizeof name, "%s %s", hk_load_name(l.kind), threads_text(l.threads, team));
  add_beside(b, d, gpus, l, name, quick);
}

/* A GPU kernel that accesses host memory, beside AdamW on the CPU. */
static void add_before_cpu(builder *b, hk_load l, const char *size, int threads) {
  char team[32];
  hk_probe p = named(HK_PROBE_CONTENTION, false, "%s %s | adamw_cpu %s", hk_load_name(l.kind), size,
                     threads_text(threads, team));
  load(&p, l);
  load(&p, cpu_load(b, HK_LOAD_ADAMW_CPU, threads));
  add(b, &p);
}

/* Chunk of copies and pulls to a GPU at once. Each of the two has half of the GPU's arrays. */
static hk_bytes most_mixed(const hk_probe_scope *s) {
  const hk_bytes most = hk_min(most_copied(s, 2), s->device_bytes / 16 / 4096 * 4096);
  return hk_min(CONTENDED_COPY, most);
}

/* Everything that the engine runs at once: copies in both directions, weights pulled by a kernel,
 * AdamW on the CPU. */
static void add_engines_mix(builder *b, int threads) {
  char size[32], team[32];
  const hk_bytes chunk = most_mixed(b->scope);
  hk_probe p =
      named(HK_PROBE_CONTENTION, threads == b->scope->cores, "h2d+d2h+pull %s | adamw_cpu %s",
            size_text(chunk, size), threads_text(threads, team));
  load_copies(&p, BOTH, 1, chunk);
  load(&p, (hk_load){.kind = HK_LOAD_PULL, .chunk = chunk});
  load(&p, cpu_load(b, HK_LOAD_ADAMW_CPU, threads));
  add(b, &p);
}

/* Small GPU updates, which show the time to start a kernel, while `reads` use the GPU's link and
 * AdamW runs on 3/4 of the cores. The other cores are for the threads that queue. */
static void add_launches(builder *b, const char *reads, bool copies, bool pulls) {
  char size[32], count[32], team[32];
  const int cores = b->scope->cores, threads = cores > 1 ? cores * 3 / 4 : 1;
  const int64_t updated = hk_min(MILLION, most_updated(b->scope));
  const hk_bytes chunk = most_mixed(b->scope);
  hk_probe p =
      named(HK_PROBE_CONTENTION, false, "%s %s | update %s, adamw_cpu %s", reads,
            size_text(chunk, size), count_text(updated, count), threads_text(threads, team));
  if (copies) load(&p, (hk_load){.kind = HK_LOAD_H2D, .chunk = chunk});
  if (pulls) load(&p, (hk_load){.kind = HK_LOAD_PULL, .chunk = chunk});
  load(&p, (hk_load){.kind = HK_LOAD_UPDATE, .chunk = updated});
  load(&p, cpu_load(b, HK_LOAD_ADAMW_CPU, threads));
  add(b, &p);
}

/* A matrix product beside the loads of an update: copies in both directions and AdamW on 3/4 of the
 * cores. The other cores are for the threads that queue. It is the largest product of the probes so
 * far that fits; beside other loads it has half of the room. */
static void add_layer(builder *b) {
  hk_load product = {.kind = HK_LOAD_H2D};
  for (size_t i = 0; i < b->n; i++) {
    const hk_load *l = &b->probes[i].loads[0];
    const bool larger = product.kind != HK_LOAD_MATMUL ||
                        (double)l->chunk * (double)l->n * (double)l->k >
                            (double)product.chunk * (double)product.n * (double)product.k;
    if (l->kind == HK_LOAD_MATMUL && larger && has_room(b, l, b->scope->device_bytes / 8))
      product = *l;
  }
  if (product.kind != HK_LOAD_MATMUL) return;
  char size[32], team[32];
  const int cores = b->scope->cores, threads = cores > 1 ? cores * 3 / 4 : 1;
  const hk_bytes chunk = most_mixed(b->scope);
  hk_probe p = named(HK_PROBE_CONTENTION, false, "h2d+d2h %s | matmul %lldx%lldx%lld, adamw_cpu %s",
                     size_text(chunk, size), (long long)product.chunk, (long long)product.n,
                     (long long)product.k, threads_text(threads, team));
  load_copies(&p, BOTH, 1, chunk);
  load(&p, product);
  load(&p, cpu_load(b, HK_LOAD_ADAMW_CPU, threads));
  add(b, &p);
}

static void add_contention(builder *b) {
  /* GPU kernels that access host memory run beside AdamW on half, 3/4 and all of the cores. They
   * are slowed most where host memory begins to saturate, at about 3/4. */
  static const int parts[] = {2, 4, 6, 7}, kernels[] = {4, 6, 8};
  const int cores = b->scope->cores;
  thread_counts t = eighths(cores, parts, COUNT(parts));
  add_count(&t, cores - 1);
  add_count(&t, cores);
  for (directions d = IN; d <= BOTH; d++) {
    for (int i = 0; i < t.n; i++) {
      const int n = t.counts[i];
      const bool quick = n == cores || (d == BOTH && n == cores / 2);
      add_beside_cpu(b, d, 1, cpu_load(b, HK_LOAD_ADAMW_CPU, n), quick);
    }
  }
  add_beside_cpu(b, BOTH, 1, cpu_load(b, HK_LOAD_CAST, cores), false);
  char count[32], name[64];
  const int64_t updated = hk_min(20 * MILLION, most_updated(b->scope));
  snprintf(name, sizeof name, "adamw_gpu %s", count_text(updated, count));
  for (directions d = IN; d <= BOTH; d++) {
    add_beside(b, d, 1, (hk_load){.kind = HK_LOAD_ADAMW_GPU, .chunk = updated}, name, false);
  }
  const thread_counts few = eighths(cores, kernels, COUNT(kernels));
  const int64_t mapped = hk_min(20 * MILLION, most_mapped(b->scope));
  const hk_load updates = {.kind = HK_LOAD_MAPPED, .chunk = mapped};
  const hk_bytes pulled = hk_min(CONTENDED_COPY, most_copied(b->scope, 1));
  const hk_load pulls = {.kind = HK_LOAD_PULL, .chunk = pulled};
  for (int i = 0; i < few.n; i++) {
    add_before_cpu(b, updates, count_text(mapped, count), few.counts[i]);
    add_before_cpu(b, pulls, size_text(pulled, count), few.counts[i]);
    add_engines_mix(b, few.counts[i]);
  }
  add_launches(b, "h2d", true, false);
  add_launches(b, "pull", false, true);
  add_launches(b, "h2d+pull", true, true);
}

static void add_fabric(builder *b, int gpus) {
  char size[32];
  const hk_bytes chunk = hk_min(64 * HK_MIB, most_copied(b->scope, gpus));
  for (directions d = IN; d <= BOTH; d++) {
    hk_probe p = named(HK_PROBE_FABRIC, gpus == b->scope->gpus, "%s %d gpus %s", direction_names[d],
                       gpus, size_text(chunk, size));
    load_copies(&p, d, gpus, chunk);
    add(b, &p);
  }
}

static void add_ring(builder *b, hk_bytes bytes, bool quick) {
  char size[32];
  const int gpus = b->scope->gpus;
  const hk_bytes chunk = hk_min(bytes, most_copied(b->scope, 1));
  hk_probe p = named(HK_PROBE_FABRIC, quick, "peer %d gpus %s", gpus, size_text(chunk, size));
  for (int g = 0; g < gpus; g++) {
    load(&p, (hk_load){.kind = HK_LOAD_PEER, .gpu = g, .chunk = chunk});
  }
  add(b, &p);
}

static void add_node(builder *b) {
  static const int parts[] = {4, 6, 8};
  const int gpus = b->scope->gpus, cores = b->scope->cores;
  for (int g = 2; g < gpus; g *= 2) add_fabric(b, g);
  add_fabric(b, gpus);
  const thread_counts t = eighths(cores, parts, COUNT(parts));
  for (directions d = IN; d <= BOTH; d++) {
    for (int i = 0; i < t.n; i++) {
      const bool quick = d == BOTH && t.counts[i] == cores;
      add_beside_cpu(b, d, gpus, cpu_load(b, HK_LOAD_ADAMW_CPU, t.counts[i]), quick);
    }
  }
  if (!b->scope->peers) return;
  add_ring(b, 64 * HK_MIB, true);
  add_ring(b, HK_MIB, false);
}

/* ---- The list -------------------------------------------------------------------------------- */

static hk_status check_scope(const hk_probe_scope *s, hk_error *err) {
  if (s->gpus < 1 || s->gpus > MOST_GPUS) {
    return hk_fail(err, HK_INPUT, "probes for %d GPUs were asked for; 1 to %d are possible",
                   s->gpus, MOST_GPUS);
  }
  if (s->cores < 1) {
    return hk_fail(err, HK_INPUT, "probes for %d cores were asked for; there must be 1 or more",
                   s->cores);
  }
  if (s->host_bytes >= HK_PROBE_LEAST_HOST && s->device_bytes >= HK_PROBE_LEAST_DEVICE) {
    return HK_OK;
  }
  return hk_fail(err, HK_INPUT,
                 "probes in %lld bytes of host and %lld of device memory were asked for; they need "
                 "%lld and %lld or more",
                 (long long)s->host_bytes, (long long)s->device_bytes,
                 (long long)HK_PROBE_LEAST_HOST, (long long)HK_PROBE_LEAST_DEVICE);
}

hk_status hk_probes_list(const hk_probe_scope *scope, hk_probe **probes, size_t *n, hk_error *err) {
  *probes = NULL;
  *n = 0;
  HK_TRY(check_scope(scope, err));
  builder b = {.scope = scope};
  add_copies_alone(&b);
  add_duplex(&b);
  add_cpu_kernels(&b);
  add_gpu_kernels(&b);
  add_singles(&b);
  add_contention(&b);
  if (scope->gpus > 1) add_node(&b);
  add_adamw_ahead(&b);
  if (!scope->quick) add_layer(&b);
  if (b.failed) {
    free(b.probes);
    return hk_fail_memory(err, 2 * b.room * sizeof *b.probes, "the list of probes");
  }
  *probes = b.probes;
  *n = b.n;
  return HK_OK;
}
