/* SPDX-License-Identifier: Apache-2.0 */
/* Each function below derives one group of quantities that depend on a base (core clock, link
 * bandwidth, ...): new value = value before x a function of (base now / base before). The functions
 * run in an order in which a base has its new value before the quantities that depend on it. */
#include "core/machine/machine_derive.h"

#include <math.h>
#include <string.h>

#include "core/graph/bytes.h"

/* A bandwidth that reaches this fraction of a limit counts as set by that limit. */
#define BOUND 0.85

/* If nvlink.bytes_per_s is at most this multiple of pcie.h2d, collectives run over PCIe. */
#define OVER_PCIE 1.05

typedef struct {
  hk_machine *now;
  const hk_machine *was;
  const bool *given;
  hk_derived *out;
  size_t n;
} derivation;

#define AT(field) offsetof(hk_machine, field)

static const hk_quantity_info *info_at(size_t offset, size_t *index) {
  size_t n;
  const hk_quantity_info *list = hk_quantity_list(&n);
  for (*index = 0; list[*index].offset != offset; ++*index) continue;
  return &list[*index];
}

static const char *key_at(size_t offset) {
  size_t index;
  return info_at(offset, &index)->key;
}

static bool is_given(const derivation *d, size_t offset) {
  size_t index;
  info_at(offset, &index);
  return d->given[index];
}

static double before(const derivation *d, size_t offset) {
  return ((const hk_quantity *)(const void *)((const char *)d->was + offset))->value;
}

static double now(const derivation *d, size_t offset) {
  return ((const hk_quantity *)(const void *)((const char *)d->now + offset))->value;
}

/* value now / value before. */
static double growth(const derivation *d, size_t offset) {
  return now(d, offset) / before(d, offset);
}

/* Sets a quantity that the user has not given, because the quantity at `base` has changed. */
static void follow(derivation *d, size_t offset, double value, size_t base) {
  size_t index, i = 0;
  const hk_quantity_info *info = info_at(offset, &index);
  hk_quantity *quantity = hk_machine_quantity(d->now, info);
  value = fmin(fmax(value, info->least), info->most);
  if (d->given[index] || value == quantity->value) return;
  while (i < d->n && d->out[i].info != info) i++;
  d->out[i] = (hk_derived){info, before(d, offset), key_at(base)};
  if (i == d->n) d->n++;
  quantity->value = value;
}

/* The same, to at most what the quantities that limit it allow. */
static void follow_limited(derivation *d, size_t offset, double value, size_t base) {
  size_t index;
  const hk_quantity *quantity = hk_machine_quantity_const(d->now, info_at(offset, &index));
  follow(d, offset, fmin(value, hk_machine_limit(d->now, quantity)), base);
}

/* -- Host memory ------------------------------------------------------------------------------- */

typedef struct {
  size_t limit, scale; /* the rate in the limit of many threads, and its n0 */
  double bytes;        /* host memory traffic a parameter */
} cpu_kernel;

static const cpu_kernel cpu_kernels[] = {
    {AT(cpu_adamw), AT(cpu_adamw_threads), HK_BYTES_ADAMW},
    {AT(cpu_unscale), AT(cpu_unscale_threads), HK_BYTES_UNSCALE},
    {AT(cpu_adamw_fp32), AT(cpu_adamw_fp32_threads), HK_BYTES_ADAMW_FP32},
    {AT(cpu_adamw_8bit), AT(cpu_adamw_8bit_threads), HK_BYTES_ADAMW_8BIT},
    {AT(cpu_adamw_8bit_split), AT(cpu_adamw_8bit_split_threads), HK_BYTES_ADAMW_8BIT_SPLIT},
    {AT(cpu_cast), AT(cpu_cast_threads), HK_BYTES_CAST},
};

enum { CPU_KERNELS = sizeof cpu_kernels / sizeof *cpu_kernels };

/* How the limit of a kernel grows with host memory that is `faster` times as fast. The kernel
 * spends the share b = limit x bytes / bandwidth of its time, at most all of it, on waiting for
 * host memory: only that share becomes shorter.
 *   time of a parameter = (1 - b + b / faster) x time before */
static double kernel_growth(const derivation *d, const cpu_kernel *kernel, double faster) {
  const double share = fmin(1, before(d, kernel->limit) * kernel->bytes / d->was->dram.value);
  return 1 / (1 - share + share / faster);
}

/* The limit grows; the rate of one thread, limit / n0, stays, because a thread waits for the
 * latency of memory. A kernel without an n0 of its own gets one if AdamW's no longer suits it. */
static void derive_kernel(derivation *d, const cpu_kernel *kernel, double faster) {
  if (is_given(d, kernel->limit) || before(d, kernel->limit) <= 0) return;
  const double grows = kernel_growth(d, kernel, faster);
  const double adamw_before = d->was->cpu_adamw_threads.value;
  const double scale = before(d, kernel->scale);
  follow(d, kernel->limit, before(d, kernel->limit) * grows, AT(dram));
  if (scale > 0)
    follow(d, kernel->scale, scale * grows, AT(dram));
  else if (!is_given(d, AT(cpu_adamw_threads)) &&
           fabs(d->now->cpu_adamw_threads.value / (adamw_before * grows) - 1) > 1e-9)
    follow(d, kernel->scale, adamw_before * grows, AT(dram));
}

static void derive_host_memory(derivation *d) {
  const double faster = growth(d, AT(dram));
  if (faster == 1) return;
  follow_limited(d, AT(dram_with_dma), d->was->dram_with_dma.value * faster, AT(dram));
  size_t index; /* the highest value means: no limit of its own */
  if (d->was->dram_process.value < info_at(AT(dram_process), &index)->most)
    follow(d, AT(dram_process), d->was->dram_process.value * faster, AT(dram));
  for (int i = 0; i < CPU_KERNELS; i++) derive_kernel(d, &cpu_kernels[i], faster);
}

/* -- The link of a GPU ------------------------------------------------------------------------- */

/* A bandwidth that the link limits grows with it; any other stays, but at most the link's. 0 stays
 * 0: it stands for another quantity. */
static void derive_beside(derivation *d, size_t offset, size_t link) {
  const double value = before(d, offset);
  if (value <= 0) return;
  const bool bound = value >= BOUND * before(d, link);
  follow(d, offset, bound ? value * growth(d, link) : fmin(value, now(d, link)), link);
}

static void derive_both_directions(derivation *d) {
  const hk_machine *was = d->was;
  const double h2d = d->now->h2d.value, d2h = d->now->d2h.value;
  const double grows = (h2d + d2h) / (was->h2d.value + was->d2h.value);
  const size_t base = h2d != was->h2d.value ? AT(h2d) : AT(d2h);
  if (grows != 1 || d->now->duplex.value < fmax(h2d, d2h))
    follow_limited(d, AT(duplex), fmax(was->duplex.value * grows, fmax(h2d, d2h)), base);
  if (d->now->duplex.value != was->duplex.value)
    follow_limited(d, AT(mapped), was->mapped.value * growth(d, AT(duplex)), AT(duplex));
}

static void derive_link(derivation *d) {
  const hk_machine *was = d->was;
  const double faster = growth(d, AT(h2d));
  if (faster != 1) {
    const double most = is_given(d, AT(duplex)) ? d->now->duplex.value : INFINITY;
    follow(d, AT(d2h), fmin(was->d2h.value * faster, most), AT(h2d));
    if (was->pull.value > 0) follow(d, AT(pull), was->pull.value * faster, AT(h2d));
    if (was->h2d_loaded.value > 0)
      follow(d, AT(h2d_loaded), was->h2d_loaded.value * faster, AT(h2d));
    derive_beside(d, AT(h2d_pageable), AT(h2d));
    derive_beside(d, AT(h2d_cached), AT(h2d));
    if (was->nvlink.value <= OVER_PCIE * was->h2d.value)
      follow(d, AT(nvlink), was->nvlink.value * faster, AT(h2d));
  }
  if (d->now->d2h.value != was->d2h.value) derive_beside(d, AT(d2h_pageable), AT(d2h));
  derive_both_directions(d);
}

/* -- The links of a node together -------------------------------------------------------------- */

/* Bandwidth of host memory for copies alone. */
static double copies_memory(const hk_machine *m) {
  return fmax(m->dram.value, m->dram_with_dma.value);
}

/* What all GPUs reach together, in one direction or in both: the sum of their links, or what host
 * memory allows (a byte takes `cost` of it), or else a limit of the host that does not change. It
 * is at least what one GPU reaches. */
static void derive_fabric(derivation *d, size_t fabric, size_t link, double cost) {
  const double value = before(d, fabric);
  const double links_before = d->was->gpus.value * before(d, link);
  const double links = d->now->gpus.value * now(d, link);
  const double memory_before = copies_memory(d->was) / cost;
  const double memory = copies_memory(d->now) / cost;
  const size_t base = now(d, link) != before(d, link) ? link : AT(gpus);
  if (value >= BOUND * links_before)
    follow(d, fabric, value * (links / links_before), base);
  else if (value >= BOUND * memory_before && memory != memory_before)
    follow(d, fabric, fmax(now(d, link), fmin(value * memory / memory_before, links)), AT(dram));
  else if (value < now(d, link))
    follow(d, fabric, now(d, link), base);
}

static void derive_fabrics(derivation *d) {
  const hk_machine *m = d->was;
  const double in = m->h2d_cost.value, out = m->d2h_cost.value;
  derive_fabric(d, AT(fabric_h2d), AT(h2d), in);
  derive_fabric(d, AT(fabric_d2h), AT(d2h), out);
  derive_fabric(d, AT(fabric_duplex), AT(duplex), (in + out) / 2);
  /* Lower directions lower their sum. */
  follow_limited(d, AT(fabric_duplex), d->now->fabric_duplex.value, AT(fabric_h2d));
}

/* -- Arbitration ------------------------------------------------------------------------------- */

/* AdamW's rate on one GPU's share of the cores: now / before the change of node.cores. */
static double team_growth(const derivation *d) {
  const hk_machine *m = d->was;
  const double gpus = m->gpus.value, before_it = m->cores.value / gpus;
  return hk_cpu_rate(m, &m->cpu_adamw, &m->cpu_adamw_threads, d->now->cores.value / gpus) /
         hk_cpu_rate(m, &m->cpu_adamw, &m->cpu_adamw_threads, before_it);
}

/* Where host memory is saturated, each operation gets a part in proportion to weight x its rate
 * alone (docs/simulator.md). The products stay as they were measured: a faster link or faster
 * kernels ask for more, but the memory controller does not treat them differently. */
static void derive_weights(derivation *d) {
  const hk_machine *was = d->was;
  const double in = growth(d, AT(h2d)), out = growth(d, AT(d2h));
  double kernels = is_given(d, AT(cpu_adamw)) ? growth(d, AT(cpu_adamw)) : 1;
  if (is_given(d, AT(cores))) kernels *= team_growth(d);
  const size_t base = in != 1 ? AT(h2d) : is_given(d, AT(cores)) ? AT(cores) : AT(cpu_adamw);
  if (kernels != in) follow(d, AT(dma_weight), was->dma_weight.value * kernels / in, base);
  if (in != out) follow(d, AT(d2h_priority), was->d2h_priority.value * in / out, AT(d2h));
}

size_t hk_machine_derive(hk_machine *machine, const hk_machine *before_it, const bool *given,
                         hk_derived *out) {
  derivation d = {.now = machine, .was = before_it, .given = given, .out = out};
  derive_host_memory(&d);
  derive_link(&d);
  derive_fabrics(&d);
  derive_weights(&d);
  return d.n;
}
