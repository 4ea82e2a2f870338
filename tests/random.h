/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Random numbers for tests, and random machines with plausible rates and sizes. */
#ifndef HK_TESTS_RANDOM_H
#define HK_TESTS_RANDOM_H

#include <math.h>

#include "tests/fixture.h"

/* SplitMix64 (Steele, Lea, Flood 2014). Each case has its number as seed, so that it can be
 * repeated alone. */
typedef struct {
  uint64_t state;
} random_stream;

static inline uint64_t next(random_stream *r) {
  uint64_t z = (r->state += 0x9e3779b97f4a7c15u);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

/* From 0 to just under 1. */
static inline double uniform(random_stream *r) {
  return (double)(next(r) >> 11) * 0x1p-53;
}

static inline int pick(random_stream *r, int least, int most) {
  return least + (int)(uniform(r) * ((double)most - least + 1));
}

/* Log-uniform from least to most, for rates and sizes, which differ by orders of magnitude. */
static inline double scale(random_stream *r, double least, double most) {
  return least * pow(most / least, uniform(r));
}

/* Nodes of 1, 2, 4 or 8 GPUs, from a desktop to the fastest servers: PCIe of 6 to 60 GB/s with
 * different rates each way and 60 to 100 % of their sum both ways; a fabric that may be slower than
 * all links together; host memory of 40 to 600 GB/s; CPUs slower or faster than the link. */
static inline hk_machine random_node(random_stream *r) {
  hk_machine m = ideal_machine();
  const int gpus = 1 << pick(r, 0, 3);
  m.gpus.value = gpus;
  m.gpu_hbm.value = scale(r, 1e12, 5e12);
  m.gpu_launch.value = m.h2d_latency.value = m.d2h_latency.value = 5000;
  m.h2d.value = scale(r, 6e9, 60e9);
  m.d2h.value = m.h2d.value * scale(r, 0.7, 1.4);
  m.duplex.value = (m.h2d.value + m.d2h.value) * scale(r, 0.6, 1);
  m.mapped.value = m.duplex.value * scale(r, 0.5, 1);
  const double fabric = fmax(1, scale(r, 0.5, 1) * gpus);
  m.fabric_h2d.value = m.h2d.value * fabric;
  m.fabric_d2h.value = m.d2h.value * fabric;
  m.fabric_duplex.value = m.duplex.value * fabric;
  m.dram.value = scale(r, 40e9, 600e9);
  m.dram_with_dma.value = m.dram.value * scale(r, 0.7, 1);
  m.dma_weight.value = scale(r, 0.5, 5);
  m.cpu_adamw.value = scale(r, 3e8, 2e10);
  return m;
}

/* Makes a copied byte use more or less host memory bandwidth than a kernel's byte. The bytes of
 * copies and kernels together can then exceed the memory bandwidth. */
static inline void price_copies(random_stream *r, hk_machine *m) {
  m->h2d_cost.value = scale(r, 0.8, 10);
  m->d2h_cost.value = scale(r, 0.5, 2);
  m->d2h_priority.value = scale(r, 0.7, 4);
  const double in = fmin(m->gpus.value * m->h2d.value, m->fabric_h2d.value);
  m->dram_with_dma.value += fmax(0, m->h2d_cost.value - 1) * in * scale(r, 0.4, 1);
}

/* Makes the host memory of a node slower under load: CPU kernels keep 1/2 to all of their rate
 * beside the copies of all GPUs in one direction; copies to GPUs keep 1/5 to all of theirs beside
 * kernels. In saturated memory, copies to GPUs have 0.01 to 5 times the weight of kernels, and
 * copies from GPUs 1 to 100 times the weight of copies to GPUs. */
static inline void delay_memory(random_stream *r, hk_machine *m) {
  m->cpu_beside_h2d.value = pow(scale(r, 0.5, 1), 1 / m->gpus.value);
  m->cpu_beside_d2h.value = pow(scale(r, 0.5, 1), 1 / m->gpus.value);
  m->h2d_loaded.value = m->h2d.value * scale(r, 0.2, 1);
  m->h2d_load_from.value = uniform(r) * 0.9;
  m->dma_weight.value = scale(r, 0.01, 5);
  m->d2h_priority.value = scale(r, 1, 100);
}

#endif
