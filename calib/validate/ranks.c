/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Validates recordings of the ranks of one host together. */
#include "calib/validate/ranks.h"

#include <stdlib.h>
#include <string.h>

#include "calib/validate/recording.h"
#include "core/base/json.h"

bool hk_recording_is_of_rank(const cJSON *recording) {
  return hk_json_number_or(recording, "ranks", 1) > 1;
}

/* -- Which recording is whose ------------------------------------------------------------------ */

/* recorded[r]: what rank r has recorded; order[r]: its place in `recordings`. */
static hk_status sort(cJSON *const *recordings, size_t n, hk_recorded *recorded, size_t *order,
                      hk_error *err) {
  char host[sizeof recorded->host] = "";
  for (size_t i = 0; i < n; i++) {
    hk_recorded r = {0};
    hk_plan plan = {0};
    hk_status status = hk_recorded_read(recordings[i], &r, &plan, err);
    hk_plan_free(&plan);
    if (status == HK_OK && (size_t)r.ranks != n)
      status =
          hk_fail(err, HK_INPUT, "rank %d of %d: expected the recordings of all ranks, got %zu",
                  r.rank, r.ranks, n);
    if (status == HK_OK && recorded[r.rank].ops != NULL)
      status = hk_fail(err, HK_INPUT, "there are two recordings of rank %d", r.rank);
    if (status == HK_OK && i > 0 && strcmp(host, r.host) != 0)
      status = hk_fail(err, HK_INPUT, "hosts '%s' and '%s' have no common clock", host, r.host);
    if (status != HK_OK) {
      hk_recorded_free(&r);
      return status;
    }
    memcpy(host, r.host, sizeof host);
    recorded[r.rank] = r;
    order[r.rank] = i;
  }
  return HK_OK;
}

/* -- Waits for other ranks --------------------------------------------------------------------- */

/* When the last rank reached a collective. */
static hk_ns reached(const hk_recorded *recorded, size_t n, const hk_recorded_op *op) {
  hk_ns last = op->start;
  for (size_t r = 0; r < n; r++) {
    for (size_t i = 0; i < recorded[r].n; i++) {
      const hk_recorded_op *other = &recorded[r].ops[i];
      if (other->kind == op->kind && other->block == op->block && other->micro == op->micro &&
          other->step == op->step)
        last = hk_max(last, other->start);
    }
  }
  return last;
}

static hk_ns waits_of(const hk_recorded *recorded, size_t n, size_t rank, int64_t step) {
  hk_ns sum = 0;
  for (size_t i = 0; i < recorded[rank].n; i++) {
    const hk_recorded_op *op = &recorded[rank].ops[i];
    const bool collective = op->kind == HK_OP_ALL_GATHER || op->kind == HK_OP_REDUCE_SCATTER;
    if (collective && op->step == step)
      sum += hk_min(op->end, reached(recorded, n, op)) - op->start;
  }
  return sum;
}

/* -- Validation -------------------------------------------------------------------------------- */

static hk_status validate(cJSON *const *recordings, size_t n, const hk_recorded *recorded,
                          const size_t *order, const hk_model *measured, const hk_machine *machine,
                          hk_ranks_validation *out, hk_error *err) {
  for (size_t r = 0; r < n; r++) {
    hk_rank_validation *rank = &out->ranks[r];
    const hk_training_validation *first = r > 0 ? &out->ranks[0].validation : NULL;
    if (hk_validate_rank(recordings[order[r]], first, measured, machine, &rank->validation, err) !=
        HK_OK)
      return hk_fail_prefix(err, "rank %zu", r);
    rank->waits = waits_of(recorded, n, r, rank->validation.step);
    rank->late = rank->validation.end - out->ranks[0].validation.end;
    out->n++;
  }
  return HK_OK;
}

hk_status hk_validate_ranks(cJSON *const *recordings, size_t n, const hk_model *measured,
                            const hk_machine *machine, hk_ranks_validation *out, hk_error *err) {
  hk_recorded *recorded = calloc(n, sizeof *recorded);
  size_t *order = calloc(n, sizeof *order);
  *out = (hk_ranks_validation){.ranks = calloc(n, sizeof *out->ranks)};
  hk_status status = recorded != NULL && order != NULL && out->ranks != NULL
                         ? sort(recordings, n, recorded, order, err)
                         : hk_fail_memory(err, n * sizeof *out->ranks, "ranks");
  if (status == HK_OK)
    status = validate(recordings, n, recorded, order, measured, machine, out, err);
  for (size_t r = 0; r < n && recorded != NULL; r++) hk_recorded_free(&recorded[r]);
  free(recorded);
  free(order);
  return status;
}

/* -- One clock --------------------------------------------------------------------------------- */

/* Both comparisons have operations of one forecast, in its order. */
static void place(const hk_training_validation *first, const hk_training_validation *rank,
                  hk_timeline *layer) {
  const hk_ns shift = rank->begin - first->begin;
  size_t j = 0;
  for (size_t i = 0; i < first->graph.n_ops; i++) {
    while (j < rank->graph.n_ops && rank->origin[j] < first->origin[i]) j++;
    if (j == rank->graph.n_ops || rank->origin[j] != first->origin[i]) continue;
    const hk_span *span = &rank->measured.spans[j];
    layer->spans[i] = (hk_span){.ready = hk_max(0, span->ready + shift),
                                .start = hk_max(0, span->start + shift),
                                .end = hk_max(0, span->end + shift)};
    layer->makespan = hk_max(layer->makespan, layer->spans[i].end);
  }
}

hk_status hk_ranks_timelines(const hk_ranks_validation *v, hk_timeline *layers, hk_error *err) {
  const hk_training_validation *first = &v->ranks[0].validation;
  memset(layers, 0, (v->n + 1) * sizeof *layers);
  for (size_t i = 0; i <= v->n; i++) HK_TRY(hk_timeline_init(&first->graph, &layers[i], err));
  memcpy(layers[0].spans, first->predicted.spans, first->graph.n_ops * sizeof *layers[0].spans);
  layers[0].makespan = first->predicted.makespan;
  for (size_t r = 0; r < v->n; r++) place(first, &v->ranks[r].validation, &layers[r + 1]);
  return HK_OK;
}

void hk_ranks_validation_free(hk_ranks_validation *v) {
  for (size_t r = 0; r < v->n; r++) hk_training_validation_free(&v->ranks[r].validation);
  free(v->ranks);
  *v = (hk_ranks_validation){0};
}

size_t hk_ranks_worst(const hk_ranks_validation *v, hk_pair_finder *of, int which) {
  size_t worst = 0;
  hk_ns most = -1;
  for (size_t r = 0; r < v->n; r++) {
    const hk_pair pair = of(&v->ranks[r], which);
    const hk_ns error = llabs(pair.measured - pair.predicted);
    if (error > most) worst = r, most = error;
  }
  return worst;
}
