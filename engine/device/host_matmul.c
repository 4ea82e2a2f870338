/* SPDX-License-Identifier: Apache-2.0 */
/* The host backend's matrix product, computed tile by tile. Each element is summed in the order of
 * the depth, so results do not depend on tiles or threads. */
#include <string.h>

#include "engine/device/host_device.h"

/* Size of a tile: its sums and operands, as fp32, fit in a core's caches, and 64 columns fill a few
 * vector registers. */
enum { ROWS = 32, COLUMNS = 64, DEPTH = 128 };

typedef struct {
  float sum[ROWS][COLUMNS];
  float a[ROWS][DEPTH];
  float b[DEPTH][COLUMNS];
} tile_data;

static int64_t tiles_across(const hk_kernel *k) {
  return (k->columns + COLUMNS - 1) / COLUMNS;
}

int64_t hk_host_matmul_tiles(const hk_kernel *k) {
  return (k->rows + ROWS - 1) / ROWS * tiles_across(k);
}

hk_status hk_host_matmul_check(hk_host_device *device, const hk_kernel *k, hk_error *err) {
  HK_TRY(hk_matmul_check_sizes(k, err));
  HK_TRY(hk_host_check_range(device, "a matrix product's left side", k->a, 2 * k->rows * k->depth,
                             false, err));
  HK_TRY(hk_host_check_range(device, "a matrix product's right side", k->b,
                             2 * k->depth * k->columns, false, err));
  return hk_host_check_range(device, "a matrix product's result", k->w, 2 * k->rows * k->columns,
                             false, err);
}

/* Always a full tile of columns: with a constant count the compiler keeps the sums in registers. */
static void add_products(tile_data *t, int64_t rows, int64_t depth) {
  for (int64_t r = 0; r < rows; r++) {
    float sum[COLUMNS];
    memcpy(sum, t->sum[r], sizeof sum);
    for (int64_t d = 0; d < depth; d++) {
      for (int c = 0; c < COLUMNS; c++) sum[c] += t->a[r][d] * t->b[d][c];
    }
    memcpy(t->sum[r], sum, sizeof sum);
  }
}

void hk_host_matmul_tile(const hk_kernel *k, const hk_cpu_kernels *cpu, int64_t tile) {
  const int64_t row = tile / tiles_across(k) * ROWS, rows = hk_min(ROWS, k->rows - row);
  const int64_t column = tile % tiles_across(k) * COLUMNS;
  const int64_t columns = hk_min(COLUMNS, k->columns - column);
  tile_data t = {0}; /* columns beyond the matrix stay 0 */
  for (int64_t at = 0; at < k->depth; at += DEPTH) {
    const int64_t depth = hk_min(DEPTH, k->depth - at);
    for (int64_t r = 0; r < rows; r++) {
      cpu->cast_up(HK_GRAD_BF16, depth, k->a + (row + r) * k->depth + at, t.a[r]);
    }
    for (int64_t d = 0; d < depth; d++) {
      cpu->cast_up(HK_GRAD_BF16, columns, k->b + (at + d) * k->columns + column, t.b[d]);
    }
    add_products(&t, rows, depth);
  }
  for (int64_t r = 0; r < rows; r++) {
    cpu->cast_down(columns, t.sum[r], k->w + (row + r) * k->columns + column);
  }
}
