/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Lists the probes of a machine and makes those with one load or with copies in both directions;
 * the others: probe_contention.c. The stand's memory limits sizes: of a series of sizes those that
 * are too large are left out; a single size is reduced. So every quantity of a profile has probes
 * on the smallest machine, too. */
#include <stdio.h>
#include <stdlib.h>

#include "calib/probes/probe_builder.h"

#define COUNT(array) (sizeof(array) / sizeof *(array))

#define HOPPING_COPY (2 * HK_MIB) /* long enough to queue the operation after it */
#define SMALL_DEVICE (2 * HK_GIB) /* with less, products are small, for the host backend */
#define MOST_GPUS    ((HK_PROBE_LOADS - 1) / 2)

/* ---- Copies ---------------------------------------------------------------------------------- */

static void add_copy(hk_probe_builder *b, hk_load_kind kind, hk_bytes bytes, bool quick) {
  char size[32];
  hk_probe p = hk_probe_named(HK_PROBE_ALONE, quick, "%s %s", hk_load_name(kind),
                              hk_probe_size_text(bytes, size));
  hk_probe_load(&p, (hk_load){.kind = kind, .chunk = bytes});
  hk_probe_add(b, &p);
}

static void add_copies_alone(hk_probe_builder *b) {
  static const hk_bytes sizes[] = {64 * HK_KIB, 256 * HK_KIB, HK_MIB,       4 * HK_MIB,
                                   16 * HK_MIB, 64 * HK_MIB,  256 * HK_MIB, HK_GIB};
  static const hk_bytes other_sizes[] = {HK_MIB, 16 * HK_MIB, 64 * HK_MIB};
  const hk_bytes most = hk_probe_most_copied(b->scope, 1), large = hk_min(64 * HK_MIB, most);
  for (hk_load_kind kind = HK_LOAD_H2D; kind <= HK_LOAD_D2H; kind++) {
    for (size_t i = 0; i < COUNT(sizes); i++) {
      const bool quick = sizes[i] == 64 * HK_KIB || sizes[i] == HK_MIB;
      if (sizes[i] <= most) add_copy(b, kind, sizes[i], quick);
    }
    add_copy(b, kind, large, true);
  }
  /* Pageable memory is measured in pieces of a few percent of the arena's size. */
  const hk_bytes most_other = hk_min(most, b->scope->host_bytes / 64 / 4096 * 4096);
  for (hk_load_kind kind = HK_LOAD_H2D_PAGEABLE; kind <= HK_LOAD_D2H_PAGEABLE; kind++) {
    for (size_t i = 0; i < COUNT(other_sizes); i++) {
      if (other_sizes[i] <= most_other) add_copy(b, kind, other_sizes[i], false);
    }
    add_copy(b, kind, hk_min(64 * HK_MIB, most_other), true);
  }
  static const hk_bytes cached_sizes[] = {4 * HK_MIB, 16 * HK_MIB, 32 * HK_MIB, 64 * HK_MIB,
                                          128 * HK_MIB};
  for (size_t i = 0; i < COUNT(cached_sizes); i++) {
    if (cached_sizes[i] <= most_other) add_copy(b, HK_LOAD_H2D_CACHED, cached_sizes[i], false);
  }
  add_copy(b, HK_LOAD_PULL, hk_min(HK_MIB, most), true);
  add_copy(b, HK_LOAD_PULL, hk_min(HK_PROBE_CONTENDED_COPY, most), true);
}

static void add_duplex(hk_probe_builder *b) {
  static const hk_bytes sizes[] = {HK_MIB, HK_PROBE_CONTENDED_COPY, 64 * HK_MIB};
  static const int ratios[][2] = {{2, 1}, {1, 2}, {4, 1}, {1, 4}};
  const hk_bytes most = hk_probe_most_copied(b->scope, 1);
  char size[32];
  for (size_t i = 0; i < COUNT(sizes); i++) {
    const hk_bytes chunk = hk_min(sizes[i], most);
    hk_probe p = hk_probe_named(HK_PROBE_DUPLEX, sizes[i] == HK_PROBE_CONTENDED_COPY, "h2d+d2h %s",
                                hk_probe_size_text(chunk, size));
    hk_probe_load_copies(&p, HK_COPIES_BOTH, 1, chunk);
    hk_probe_add(b, &p);
  }
  const hk_bytes chunk = hk_min(HK_PROBE_CONTENDED_COPY, most);
  for (size_t i = 0; i < COUNT(ratios); i++) {
    hk_probe p = hk_probe_named(HK_PROBE_DUPLEX, false, "h2d+d2h %d:%d %s", ratios[i][0],
                                ratios[i][1], hk_probe_size_text(chunk, size));
    p.mode = HK_PROBE_WHOLE;
    hk_probe_load_copies(&p, HK_COPIES_BOTH, 1, chunk);
    for (int d = 0; d < 2; d++) p.loads[d].share = ratios[i][d];
    hk_probe_add(b, &p);
  }
}

/* ---- The CPU --------------------------------------------------------------------------------- */

/* `how`: end of the name, which says what differs from the default load. */
static void add_cpu(hk_probe_builder *b, hk_load l, const char *how, bool quick) {
  char team[32];
  hk_probe p = hk_probe_named(HK_PROBE_ALONE, quick, "%s %s%s", hk_load_name(l.kind),
                              hk_probe_threads_text(l.threads, team), how);
  hk_probe_load(&p, l);
  hk_probe_add(b, &p);
}

static void add_chunks(hk_probe_builder *b, int threads) {
  static const int64_t chunks[] = {16 << 10, 256 << 10, 1 << 20};
  char count[32], how[64];
  for (size_t i = 0; i < COUNT(chunks); i++) {
    hk_load l = hk_probe_cpu_load(b, HK_LOAD_ADAMW_CPU, threads);
    l.chunk = chunks[i];
    snprintf(how, sizeof how, ", chunks of %s", hk_probe_count_text(l.chunk, count));
    if (l.chunk <= b->scope->host_bytes / 128) add_cpu(b, l, how, false);
  }
}

/* AdamW on small pieces. Compared with the default piece they show the fixed cost of an operation.
 * With one thread that cost is negligible. */
static void add_pieces(hk_probe_builder *b, int threads, bool quick) {
  static const int64_t pieces[] = {256 << 10, 1 << 20, 4 << 20};
  char count[32], how[64];
  for (size_t i = 0; i < COUNT(pieces); i++) {
    hk_load l = hk_probe_cpu_load(b, HK_LOAD_ADAMW_CPU, threads);
    if (pieces[i] > hk_load_operation(&l) / 2) continue;
    l.piece = pieces[i];
    snprintf(how, sizeof how, ", pieces of %s", hk_probe_count_text(l.piece, count));
    add_cpu(b, l, how, quick && i == 0);
  }
}

static void add_adamw_cpu(hk_probe_builder *b) {
  const int cores = b->scope->cores;
  hk_probe_teams t = {0};
  hk_probe_teams_add(&t, 1);
  if (cores > 1) hk_probe_teams_add(&t, 2);
  for (int i = 1; i <= 8; i++) hk_probe_teams_add(&t, cores * i / 8);
  for (int i = 0; i < t.n; i++) {
    const int n = t.counts[i];
    const bool quick = n == 1 || n == cores / 4 || n == cores / 2 || n == cores;
    add_cpu(b, hk_probe_cpu_load(b, HK_LOAD_ADAMW_CPU, n), "", quick);
  }
  add_chunks(b, cores);
  if (cores / 2 > 1) add_pieces(b, cores / 2, false);
  if (cores > 1) add_pieces(b, cores, true);
}

/* AdamW on codes of 8 bits: arithmetic limits small teams, memory large ones. */
static void add_adamw_8bit(hk_probe_builder *b) {
  static const int parts[] = {2, 4, 6, 7, 8};
  const int cores = b->scope->cores;
  const hk_probe_teams t = hk_probe_teams_of(cores, parts, COUNT(parts));
  for (hk_load_kind kind = HK_LOAD_ADAMW_8BIT; kind <= HK_LOAD_ADAMW_8BIT_SPLIT; kind++) {
    for (int i = 0; i < t.n; i++) {
      const int n = t.counts[i];
      const bool quick = n == cores / 4 || n == cores / 2 || n == cores;
      add_cpu(b, hk_probe_cpu_load(b, kind, n), "", quick);
    }
  }
}

/* AdamW into spare memory, with numbers of threads for which AdamW in place has a probe, too. */
static void add_adamw_ahead(hk_probe_builder *b) {
  static const int parts[] = {4, 6, 7, 8};
  const int cores = b->scope->cores;
  const hk_probe_teams t = hk_probe_teams_of(cores, parts, COUNT(parts));
  for (int i = 0; i < t.n; i++) {
    add_cpu(b, hk_probe_cpu_load(b, HK_LOAD_ADAMW_AHEAD, t.counts[i]), "", false);
  }
}

static void add_cpu_kernels(hk_probe_builder *b) {
  static const int quarters[] = {2, 4, 6, 8};
  static const hk_load_kind kinds[] = {HK_LOAD_ADAMW_FP32, HK_LOAD_UNSCALE, HK_LOAD_CAST};
  const int cores = b->scope->cores;
  add_adamw_cpu(b);
  const hk_probe_teams t = hk_probe_teams_of(cores, quarters, COUNT(quarters));
  for (size_t k = 0; k < COUNT(kinds); k++) {
    for (int i = 0; i < t.n; i++) {
      add_cpu(b, hk_probe_cpu_load(b, kinds[k], t.counts[i]), "", t.counts[i] == cores);
    }
  }
}

/* ---- The GPU --------------------------------------------------------------------------------- */

static void add_update(hk_probe_builder *b, hk_load_kind kind, int64_t n, bool quick) {
  char count[32];
  hk_probe p = hk_probe_named(HK_PROBE_ALONE, quick, "%s %s", hk_load_name(kind),
                              hk_probe_count_text(n, count));
  hk_probe_load(&p, (hk_load){.kind = kind, .chunk = n});
  hk_probe_add(b, &p);
}

static void add_matmul(hk_probe_builder *b, int64_t rows, int64_t columns, int64_t depth,
                       bool quick) {
  const hk_load l = {.kind = HK_LOAD_MATMUL, .chunk = rows, .n = columns, .k = depth};
  if (!hk_probe_product_fits(b, &l, b->scope->device_bytes / 4)) return;
  hk_probe p = hk_probe_named(HK_PROBE_ALONE, quick, "matmul %lldx%lldx%lld", (long long)rows,
                              (long long)columns, (long long)depth);
  hk_probe_load(&p, l);
  hk_probe_add(b, &p);
}

static void add_gpu_kernels(hk_probe_builder *b) {
  static const int64_t updates[] = {HK_PROBE_MILLION, 5 * HK_PROBE_MILLION, 20 * HK_PROBE_MILLION,
                                    100 * HK_PROBE_MILLION};
  static const int layers[][2] = {{4096, 11008}, {5120, 13824}, {8192, 28672}};
  const int64_t most = hk_probe_most_updated(b->scope);
  add_update(b, HK_LOAD_MAPPED, hk_min(20 * HK_PROBE_MILLION, hk_probe_most_mapped(b->scope)),
             true);
  for (size_t i = 0; i < COUNT(updates); i++) {
    if (updates[i] <= most) add_update(b, HK_LOAD_ADAMW_GPU, updates[i], false);
  }
  add_update(b, HK_LOAD_ADAMW_GPU, hk_min(20 * HK_PROBE_MILLION, most), true);
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
static void add_single(hk_probe_builder *b, hk_load_kind kind, int64_t chunk, bool quick) {
  hk_probe p = hk_probe_named(HK_PROBE_ALONE, quick, "%s", hk_load_name(kind));
  hk_probe_load(&p, (hk_load){.kind = kind, .chunk = chunk});
  hk_probe_add(b, &p);
}

static void add_singles(hk_probe_builder *b) {
  const hk_bytes smaller = hk_min(b->scope->host_bytes, b->scope->device_bytes);
  /* The copies of TURNS lie side by side in a quarter. */
  const hk_bytes sixteenth = smaller / 16 / 4096 * 4096;
  add_single(b, HK_LOAD_LAUNCH, 1, true);
  add_single(b, HK_LOAD_HOP, hk_min(HOPPING_COPY, sixteenth), true);
  add_single(b, HK_LOAD_MEMORY, 1, true);
  add_single(b, HK_LOAD_TURNS, hk_min(HK_PROBE_CONTENDED_COPY, sixteenth), true);
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
  hk_probe_builder b = {.scope = scope};
  add_copies_alone(&b);
  add_duplex(&b);
  add_cpu_kernels(&b);
  add_gpu_kernels(&b);
  add_singles(&b);
  hk_probes_add_contention(&b);
  if (scope->gpus > 1) hk_probes_add_node(&b);
  add_adamw_ahead(&b);
  if (!scope->quick) hk_probes_add_layer(&b);
  hk_probes_add_loop(&b);
  add_adamw_8bit(&b);
  if (b.failed) {
    free(b.probes);
    return hk_fail_memory(err, 2 * b.room * sizeof *b.probes, "the list of probes");
  }
  *probes = b.probes;
  *n = b.n;
  return HK_OK;
}
