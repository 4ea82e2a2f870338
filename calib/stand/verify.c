/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Verifies GPU kernels. After the measured operations one more is run; samples of its inputs are
 * read before it, samples of its results after it, and the results are compared with the reference
 * on the CPU. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "calib/stand/private.h"
#include "engine/adamw/convert.h"

/* ---- AdamW: bit for bit ---------------------------------------------------------------------- */

#define SAMPLE 1024 /* parameters; at the start, middle and end of an operation */

typedef struct {
  float p[SAMPLE], m[SAMPLE], v[SAMPLE];
  uint16_t grad[SAMPLE], w[SAMPLE];
} state_sample;

static hk_status fetch_state(const hk_stand_job *job, const hk_kernel *k, int64_t at, int64_t n,
                             state_sample *out, hk_error *err) {
  hk_stand *stand = job->stand;
  hk_stand_lane *lane = hk_stand_lane_of(stand, job->load);
  const char *state = (const char *)k->from + 4 * (k->first + at);
  HK_TRY(hk_stand_fetch(stand, lane, out->p, state, 4 * n, err));
  HK_TRY(hk_stand_fetch(stand, lane, out->m, state + k->shape.m, 4 * n, err));
  HK_TRY(hk_stand_fetch(stand, lane, out->v, state + k->shape.v, 4 * n, err));
  HK_TRY(hk_stand_fetch(stand, lane, out->grad, (const uint16_t *)k->grad + at, 2 * n, err));
  return hk_stand_fetch(stand, lane, out->w, k->w + at, 2 * n, err);
}

/* Overwrites a sample's weights on the device by their complement. One AdamW step changes hardly
 * any bf16 weight, so that a kernel that does not write them would leave the expected ones of an
 * earlier operation in place. */
static hk_status spoil_weights(const hk_stand_job *job, const hk_kernel *k, int64_t at, int64_t n,
                               const state_sample *before, hk_error *err) {
  uint16_t spoilt[SAMPLE];
  for (int64_t i = 0; i < n; i++) spoilt[i] = (uint16_t)~before->w[i];
  return hk_stand_fetch(job->stand, hk_stand_lane_of(job->stand, job->load), k->w + at, spoilt,
                        2 * n, err);
}

static hk_status compare_state(const state_sample *got, const state_sample *wanted, int64_t n,
                               int64_t at, hk_error *err) {
  for (int64_t i = 0; i < n; i++) {
    if (hk_bits_of(got->p[i]) == hk_bits_of(wanted->p[i]) &&
        hk_bits_of(got->m[i]) == hk_bits_of(wanted->m[i]) &&
        hk_bits_of(got->v[i]) == hk_bits_of(wanted->v[i]) && got->w[i] == wanted->w[i]) {
      continue;
    }
    const long long parameter = at + i;
    return hk_fail(err, HK_NO,
                   "AdamW of parameter %lld gave p %.9g, m %.9g, v %.9g, weight 0x%04x, not %.9g, "
                   "%.9g, %.9g, 0x%04x",
                   parameter, (double)got->p[i], (double)got->m[i], (double)got->v[i], got->w[i],
                   (double)wanted->p[i], (double)wanted->m[i], (double)wanted->v[i], wanted->w[i]);
  }
  return HK_OK;
}

static hk_status verify_update(const hk_stand_job *job, state_sample wanted[3], state_sample *got,
                               hk_error *err) {
  hk_stand_lane *lane = hk_stand_lane_of(job->stand, job->load);
  const int64_t i = job->first + job->ops, all = job->load->chunk;
  const int64_t n = all < SAMPLE ? all : SAMPLE;
  const hk_kernel k = hk_stand_kernel(job, i);
  for (int s = 0; s < 3; s++) {
    HK_TRY(fetch_state(job, &k, (all - n) * s / 2, n, &wanted[s], err));
  }
  for (int s = 0; s < 3; s++) {
    HK_TRY(spoil_weights(job, &k, (all - n) * s / 2, n, &wanted[s], err));
  }
  HK_TRY(hk_stand_queue(job, i, err));
  HK_TRY(job->stand->ops->stream_sync(lane->stream, err));
  for (int s = 0; s < 3; s++) {
    state_sample *w = &wanted[s];
    const int64_t at = (all - n) * s / 2;
    hk_adamw_scalar(&k.step, k.type, n, w->p, w->m, w->v, w->grad, w->w);
    HK_TRY(fetch_state(job, &k, at, n, got, err));
    HK_TRY(compare_state(got, w, n, at, err));
  }
  return HK_OK;
}

hk_status hk_stand_update_verify(const hk_stand_job *job, hk_error *err) {
  state_sample *samples = malloc(4 * sizeof *samples);
  if (samples == NULL) return hk_fail_memory(err, 4 * sizeof *samples, "checking AdamW");
  const hk_status status = verify_update(job, samples, samples + 3, err);
  free(samples);
  return status;
}

/* ---- Matrix products ------------------------------------------------------------------------- */

#define ENTRIES 16

/* The GPU adds the products in fp32, in an order of its own, and rounds the sum to bf16. Allowed
 * error: 2^-8 of the sum (8 significant bits) plus 2^-24 of the sum of sizes for each addition. */
static hk_status verify_entry(const hk_kernel *k, const uint16_t *a, const uint16_t *b,
                              const uint16_t *w, int64_t row, int64_t column, hk_error *err) {
  double sum = 0, size = 0;
  for (int64_t i = 0; i < k->depth; i++) {
    const double product = (double)hk_from_bf16(a[row * k->depth + i]) *
                           (double)hk_from_bf16(b[i * k->columns + column]);
    sum += product;
    size += fabs(product);
  }
  const double got = (double)hk_from_bf16(w[row * k->columns + column]);
  if (fabs(got - sum) <= 0x1p-8 * fabs(sum) + (double)k->depth * 0x1p-24 * size) return HK_OK;
  return hk_fail(err, HK_NO, "entry (%lld, %lld) of a matrix product is %.9g, not %.9g",
                 (long long)row, (long long)column, got, sum);
}

/* Compares 16 entries. Factors and product are copied to stand->out, where D2H copies end. */
hk_status hk_stand_matmul_verify(const hk_stand_job *job, hk_error *err) {
  const hk_kernel k = hk_stand_kernel(job, 0);
  const int64_t in = k.rows * k.depth + k.depth * k.columns;
  hk_stand_lane *lane = hk_stand_lane_of(job->stand, job->load);
  uint16_t *a = (uint16_t *)(void *)job->stand->out, *w = a + in;
  HK_TRY(hk_stand_fetch(job->stand, lane, a, k.a, 2 * in, err));
  HK_TRY(hk_stand_fetch(job->stand, lane, w, k.w, 2 * k.rows * k.columns, err));
  for (int64_t e = 0; e < ENTRIES; e++) {
    const int64_t row = (k.rows - 1) * e / (ENTRIES - 1);
    const int64_t column = (k.columns - 1) * (e * 7 % ENTRIES) / (ENTRIES - 1);
    HK_TRY(verify_entry(&k, a, a + k.rows * k.depth, w, row, column, err));
  }
  return HK_OK;
}
