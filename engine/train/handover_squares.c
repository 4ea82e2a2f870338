/* SPDX-License-Identifier: Apache-2.0 */
/* The norm of the gradients: exact sums of their squares, from the bins of segments. */
#include <string.h>

#include "engine/train/training_private.h"

/* Bin sets of one type, added word by word. That is some ten times as fast as adding each to the
 * exact sum, and words do not overflow up to HK_SQUARES_MOST values. */
typedef struct {
  uint64_t words[HK_SQUARES_MOST_WORDS];
  int64_t values;
} set_sum;

static void flush_sets(set_sum *sets, hk_grad_type type, hk_squares *sum) {
  if (sets->values > 0) hk_squares_add_set(sum, type, sets->words);
  *sets = (set_sum){.values = 0};
}

static void add_set(set_sum *sets, hk_grad_type type, const uint64_t *set, int64_t values,
                    hk_squares *sum) {
  if (sets->values + values > HK_SQUARES_MOST) flush_sets(sets, type, sum);
  const int words = hk_squares_bin_words(type);
  for (int i = 0; i < words; i++) sets->words[i] += set[i];
  sets->values += values;
}

void hk_handover_sum(const hk_engine *e, const uint64_t *bins, int32_t first, int32_t end,
                     const int32_t *given, hk_squares *sum) {
  set_sum sets[HK_GRAD_TYPES] = {0};
  memset(sum, 0, sizeof *sum);
  for (int32_t s = first; s < end; s++) {
    const hk_param_segment *segment = &e->state.segments[s];
    if (given != NULL && given[segment->param] == 0) continue;
    const hk_grad_type type = e->params[segment->param].grad_type;
    const char *set = (const char *)bins + e->training->bins_at[s];
    add_set(&sets[type], type, (const uint64_t *)(const void *)set, segment->n, sum);
  }
  for (int type = 0; type < HK_GRAD_TYPES; type++) {
    flush_sets(&sets[type], (hk_grad_type)type, sum);
  }
}

hk_status hk_handover_squares(hk_engine *e, int64_t only, hk_squares *sum, hk_error *err) {
  struct hk_training *t = e->training;
  const hk_backend_ops *ops = e->backend->ops;
  const int32_t first = only < 0 ? 0 : t->segments[only];
  const int32_t end = only < 0 ? e->state.n_segments : t->segments[only + 1];
  const hk_bytes at = t->bins_at[first], bytes = t->bins_at[end] - at;
  memset(sum, 0, sizeof *sum);
  if (e->work == NULL) return HK_OK; /* no gradients since it was given back */
  HK_TRY(hk_handover_await_streams(e, err));
  HK_TRY(ops->copy(e->stream, (char *)e->bins + at, (char *)e->device_bins + at, bytes, err));
  HK_TRY(ops->stream_sync(e->stream, err));
  hk_handover_sum(e, e->bins, first, end, t->given, sum);
  return HK_OK;
}
