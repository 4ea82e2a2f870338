/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Random bf16 matrices, and a check of a device's matrix product. */
#ifndef HK_TESTS_FIXTURE_MATMUL_H
#define HK_TESTS_FIXTURE_MATMUL_H

#include <stdlib.h>

#include "tests/random.h"

typedef struct {
  int rows, columns, depth;
  hk_bytes a_bytes, b_bytes, w_bytes;
  uint16_t *a, *b;
} matrices;

static inline float float_of_bf16(uint16_t h) {
  const uint32_t bits = (uint32_t)h << 16;
  float x;
  memcpy(&x, &bits, sizeof x);
  return x;
}

/* bf16 numbers from -2 to 2. */
static inline uint16_t *random_bf16(random_stream *r, hk_bytes bytes) {
  uint16_t *h = malloc((size_t)bytes);
  assert_non_null(h);
  for (hk_bytes i = 0; i < bytes / 2; i++) {
    const float x = (float)(4 * uniform(r) - 2);
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    h[i] = (uint16_t)(bits >> 16);
  }
  return h;
}

static inline matrices random_matrices(int rows, int columns, int depth, uint64_t seed) {
  random_stream r = {.state = seed};
  matrices m = {.rows = rows,
                .columns = columns,
                .depth = depth,
                .a_bytes = (hk_bytes)2 * rows * depth,
                .b_bytes = (hk_bytes)2 * depth * columns,
                .w_bytes = (hk_bytes)2 * rows * columns};
  m.a = random_bf16(&r, m.a_bytes);
  m.b = random_bf16(&r, m.b_bytes);
  return m;
}

static inline void free_matrices(matrices *m) {
  free(m->a);
  free(m->b);
}

/* Every element is within the error of fp32 sums in any order plus half a unit of bf16. */
static inline void check_product(const matrices *m, const uint16_t *got) {
  for (int r = 0; r < m->rows; r++) {
    for (int c = 0; c < m->columns; c++) {
      double sum = 0, size = 0;
      for (int d = 0; d < m->depth; d++) {
        const double product = (double)float_of_bf16(m->a[r * m->depth + d]) *
                               (double)float_of_bf16(m->b[d * m->columns + c]);
        sum += product;
        size += fabs(product);
      }
      const double result = (double)float_of_bf16(got[r * m->columns + c]);
      const double allowed = m->depth * size * 0x1p-23 + fabs(sum) * 0x1.01p-8;
      if (!(fabs(result - sum) <= allowed)) {
        fail_msg("%d x %d x %d at %d, %d: %.9g, expected %.9g", m->rows, m->columns, m->depth, r, c,
                 result, sum);
      }
    }
  }
}

#endif
