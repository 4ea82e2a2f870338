/* SPDX-License-Identifier: GPL-3.0-or-later */
/* The probes with several loads: what copies, kernels, launches and AdamW on the CPU take from one
 * another, on one GPU and on all GPUs of the node. Also the loop of launches alone. */
#include <stdio.h>

#include "calib/probes/probe_builder.h"
#include "core/graph/graph.h"
#include "core/machine/team.h"

#define COUNT(array) (sizeof(array) / sizeof *(array))

static const char *const direction_names[] = {
    [HK_COPIES_IN] = "h2d", [HK_COPIES_OUT] = "d2h", [HK_COPIES_BOTH] = "h2d+d2h"};

/* Copies of `gpus` GPUs beside one more load, whose name is `beside`. */
static void add_beside(hk_probe_builder *b, hk_probe_copies d, int gpus, hk_load l,
                       const char *beside, bool quick) {
  char size[32], node[32] = "";
  const hk_bytes chunk = hk_min(HK_PROBE_CONTENDED_COPY, hk_probe_most_copied(b->scope, gpus));
  if (gpus > 1) snprintf(node, sizeof node, "%d gpus ", gpus);
  hk_probe p = hk_probe_named(HK_PROBE_CONTENTION, quick, "%s %s%s | %s", direction_names[d], node,
                              hk_probe_size_text(chunk, size), beside);
  hk_probe_load_copies(&p, d, gpus, chunk);
  hk_probe_load(&p, l);
  hk_probe_add(b, &p);
}

static void add_beside_cpu(hk_probe_builder *b, hk_probe_copies d, int gpus, hk_load l,
                           bool quick) {
  char name[64], team[32];
  snprintf(name, sizeof name, "%s %s", hk_load_name(l.kind),
           hk_probe_threads_text(l.threads, team));
  add_beside(b, d, gpus, l, name, quick);
}

/* A GPU kernel that accesses host memory, beside AdamW on the CPU. */
static void add_before_cpu(hk_probe_builder *b, hk_load l, const char *size, int threads) {
  char team[32];
  hk_probe p = hk_probe_named(HK_PROBE_CONTENTION, false, "%s %s | adamw_cpu %s",
                              hk_load_name(l.kind), size, hk_probe_threads_text(threads, team));
  hk_probe_load(&p, l);
  hk_probe_load(&p, hk_probe_cpu_load(b, HK_LOAD_ADAMW_CPU, threads));
  hk_probe_add(b, &p);
}

/* Chunk of copies and pulls to a GPU at once. Each of the two has half of the GPU's arrays. */
static hk_bytes most_mixed(const hk_probe_scope *s) {
  const hk_bytes most = hk_min(hk_probe_most_copied(s, 2), s->device_bytes / 16 / 4096 * 4096);
  return hk_min(HK_PROBE_CONTENDED_COPY, most);
}

/* Everything that the engine runs at once: copies in both directions, weights pulled by a kernel,
 * AdamW on the CPU. */
static void add_engines_mix(hk_probe_builder *b, int threads) {
  char size[32], team[32];
  const hk_bytes chunk = most_mixed(b->scope);
  hk_probe p = hk_probe_named(HK_PROBE_CONTENTION, threads == b->scope->cores,
                              "h2d+d2h+pull %s | adamw_cpu %s", hk_probe_size_text(chunk, size),
                              hk_probe_threads_text(threads, team));
  hk_probe_load_copies(&p, HK_COPIES_BOTH, 1, chunk);
  hk_probe_load(&p, (hk_load){.kind = HK_LOAD_PULL, .chunk = chunk});
  hk_probe_load(&p, hk_probe_cpu_load(b, HK_LOAD_ADAMW_CPU, threads));
  hk_probe_add(b, &p);
}

/* Small GPU updates, which show the time to start a kernel, while `reads` use the GPU's link and
 * AdamW runs on 3/4 of the cores. The other cores are for the threads that queue. */
static void add_launches(hk_probe_builder *b, const char *reads, bool copies, bool pulls) {
  char size[32], count[32], team[32];
  const int cores = b->scope->cores, threads = cores > 1 ? cores * 3 / 4 : 1;
  const int64_t updated = hk_min(HK_PROBE_MILLION, hk_probe_most_updated(b->scope));
  const hk_bytes chunk = most_mixed(b->scope);
  hk_probe p = hk_probe_named(HK_PROBE_CONTENTION, false, "%s %s | update %s, adamw_cpu %s", reads,
                              hk_probe_size_text(chunk, size), hk_probe_count_text(updated, count),
                              hk_probe_threads_text(threads, team));
  if (copies) hk_probe_load(&p, (hk_load){.kind = HK_LOAD_H2D, .chunk = chunk});
  if (pulls) hk_probe_load(&p, (hk_load){.kind = HK_LOAD_PULL, .chunk = chunk});
  hk_probe_load(&p, (hk_load){.kind = HK_LOAD_UPDATE, .chunk = updated});
  hk_probe_load(&p, hk_probe_cpu_load(b, HK_LOAD_ADAMW_CPU, threads));
  hk_probe_add(b, &p);
}

/* A matrix product beside the loads of an update: copies in both directions and AdamW on 3/4 of the
 * cores. The other cores are for the threads that queue. It is the largest product of the
 * probes so far that fits; beside other loads it has half of the room. */
void hk_probes_add_layer(hk_probe_builder *b) {
  hk_load product = {.kind = HK_LOAD_H2D};
  for (size_t i = 0; i < b->n; i++) {
    const hk_load *l = &b->probes[i].loads[0];
    const bool larger = product.kind != HK_LOAD_MATMUL ||
                        (double)l->chunk * (double)l->n * (double)l->k >
                            (double)product.chunk * (double)product.n * (double)product.k;
    if (l->kind == HK_LOAD_MATMUL && larger &&
        hk_probe_product_fits(b, l, b->scope->device_bytes / 8))
      product = *l;
  }
  if (product.kind != HK_LOAD_MATMUL) return;
  char size[32], team[32];
  const int cores = b->scope->cores, threads = cores > 1 ? cores * 3 / 4 : 1;
  const hk_bytes chunk = most_mixed(b->scope);
  hk_probe p = hk_probe_named(
      HK_PROBE_CONTENTION, false, "h2d+d2h %s | matmul %lldx%lldx%lld, adamw_cpu %s",
      hk_probe_size_text(chunk, size), (long long)product.chunk, (long long)product.n,
      (long long)product.k, hk_probe_threads_text(threads, team));
  hk_probe_load_copies(&p, HK_COPIES_BOTH, 1, chunk);
  hk_probe_load(&p, product);
  hk_probe_load(&p, hk_probe_cpu_load(b, HK_LOAD_ADAMW_CPU, threads));
  hk_probe_add(b, &p);
}

/* The team leaves the framework its cores, as that of overlap `both` does, and the loop's thread at
 * least one. */
void hk_probes_add_loop(hk_probe_builder *b) {
  const hk_load loop = {.kind = HK_LOAD_LAUNCH_LOOP, .chunk = HK_PROBE_LAUNCHES};
  const char *name = hk_load_name(loop.kind);
  const int cores = b->scope->cores, left = hk_framework_cores(cores);
  const int threads = cores > 1 ? cores - (left > 1 ? left : 1) : 1;
  char team[32];
  hk_probe alone = hk_probe_named(HK_PROBE_ALONE, false, "%s", name);
  hk_probe_load(&alone, loop);
  hk_probe_add(b, &alone);
  hk_probe beside = hk_probe_named(HK_PROBE_CONTENTION, false, "%s | adamw_cpu %s", name,
                                   hk_probe_threads_text(threads, team));
  hk_probe_load(&beside, loop);
  hk_probe_load(&beside, hk_probe_cpu_load(b, HK_LOAD_ADAMW_CPU, threads));
  hk_probe_add(b, &beside);
}

void hk_probes_add_contention(hk_probe_builder *b) {
  /* GPU kernels that access host memory run beside AdamW on half, 3/4 and all of the cores. They
   * are slowed most where host memory begins to saturate, at about 3/4. */
  static const int parts[] = {2, 4, 6, 7}, kernels[] = {4, 6, 8};
  const int cores = b->scope->cores;
  hk_probe_teams t = hk_probe_teams_of(cores, parts, COUNT(parts));
  hk_probe_teams_add(&t, cores - 1);
  hk_probe_teams_add(&t, cores);
  for (hk_probe_copies d = HK_COPIES_IN; d <= HK_COPIES_BOTH; d++) {
    for (int i = 0; i < t.n; i++) {
      const int n = t.counts[i];
      const bool quick = n == cores || (d == HK_COPIES_BOTH && n == cores / 2);
      add_beside_cpu(b, d, 1, hk_probe_cpu_load(b, HK_LOAD_ADAMW_CPU, n), quick);
    }
  }
  add_beside_cpu(b, HK_COPIES_BOTH, 1, hk_probe_cpu_load(b, HK_LOAD_CAST, cores), false);
  char count[32], name[64];
  const int64_t updated = hk_min(20 * HK_PROBE_MILLION, hk_probe_most_updated(b->scope));
  snprintf(name, sizeof name, "adamw_gpu %s", hk_probe_count_text(updated, count));
  for (hk_probe_copies d = HK_COPIES_IN; d <= HK_COPIES_BOTH; d++) {
    add_beside(b, d, 1, (hk_load){.kind = HK_LOAD_ADAMW_GPU, .chunk = updated}, name, false);
  }
  const hk_probe_teams few = hk_probe_teams_of(cores, kernels, COUNT(kernels));
  const int64_t mapped = hk_min(20 * HK_PROBE_MILLION, hk_probe_most_mapped(b->scope));
  const hk_load updates = {.kind = HK_LOAD_MAPPED, .chunk = mapped};
  const hk_bytes pulled = hk_min(HK_PROBE_CONTENDED_COPY, hk_probe_most_copied(b->scope, 1));
  const hk_load pulls = {.kind = HK_LOAD_PULL, .chunk = pulled};
  for (int i = 0; i < few.n; i++) {
    add_before_cpu(b, updates, hk_probe_count_text(mapped, count), few.counts[i]);
    add_before_cpu(b, pulls, hk_probe_size_text(pulled, count), few.counts[i]);
    add_engines_mix(b, few.counts[i]);
  }
  add_launches(b, "h2d", true, false);
  add_launches(b, "pull", false, true);
  add_launches(b, "h2d+pull", true, true);
}

static void add_fabric(hk_probe_builder *b, int gpus) {
  char size[32];
  const hk_bytes chunk = hk_min(64 * HK_MIB, hk_probe_most_copied(b->scope, gpus));
  for (hk_probe_copies d = HK_COPIES_IN; d <= HK_COPIES_BOTH; d++) {
    hk_probe p = hk_probe_named(HK_PROBE_FABRIC, gpus == b->scope->gpus, "%s %d gpus %s",
                                direction_names[d], gpus, hk_probe_size_text(chunk, size));
    hk_probe_load_copies(&p, d, gpus, chunk);
    hk_probe_add(b, &p);
  }
}

static void add_ring(hk_probe_builder *b, hk_bytes bytes, bool quick) {
  char size[32];
  const int gpus = b->scope->gpus;
  const hk_bytes chunk = hk_min(bytes, hk_probe_most_copied(b->scope, 1));
  hk_probe p = hk_probe_named(HK_PROBE_FABRIC, quick, "peer %d gpus %s", gpus,
                              hk_probe_size_text(chunk, size));
  for (int g = 0; g < gpus; g++) {
    hk_probe_load(&p, (hk_load){.kind = HK_LOAD_PEER, .gpu = g, .chunk = chunk});
  }
  hk_probe_add(b, &p);
}

void hk_probes_add_node(hk_probe_builder *b) {
  static const int parts[] = {4, 6, 8};
  const int gpus = b->scope->gpus, cores = b->scope->cores;
  for (int g = 2; g < gpus; g *= 2) add_fabric(b, g);
  add_fabric(b, gpus);
  const hk_probe_teams t = hk_probe_teams_of(cores, parts, COUNT(parts));
  for (hk_probe_copies d = HK_COPIES_IN; d <= HK_COPIES_BOTH; d++) {
    for (int i = 0; i < t.n; i++) {
      const bool quick = d == HK_COPIES_BOTH && t.counts[i] == cores;
      add_beside_cpu(b, d, gpus, hk_probe_cpu_load(b, HK_LOAD_ADAMW_CPU, t.counts[i]), quick);
    }
  }
  if (!b->scope->peers) return;
  add_ring(b, 64 * HK_MIB, true);
  add_ring(b, HK_MIB, false);
}
