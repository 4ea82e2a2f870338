/* SPDX-License-Identifier: GPL-3.0-or-later */
/* What the stand's files share: its note, teams and threads, the work of an operation, lanes. */
#include <stdio.h>
#include <string.h>

#include "calib/stand/private.h"
#include "engine/device/topology.h"

void hk_stand_add_note(hk_stand *stand, const char *text) {
  if (*text == '\0' || strstr(stand->note, text) != NULL) return;
  const size_t length = strlen(stand->note);
  snprintf(stand->note + length, sizeof stand->note - length, "%s%s", length > 0 ? "; " : "", text);
}

hk_status hk_stand_team(hk_stand *stand, int threads, hk_team **team, hk_error *err) {
  if (threads < 1 || threads > stand->cores) {
    return hk_fail(err, HK_INPUT, "a team of %d threads is not possible: 1 to %d are", threads,
                   stand->cores);
  }
  if (stand->teams[threads] == NULL) {
    const hk_team_options options = {.threads = threads, .pin = true, .pci = stand->gpu[0].pci};
    HK_TRY(hk_team_open(&options, &stand->teams[threads], err));
    hk_stand_add_note(stand, hk_team_note(stand->teams[threads]));
  }
  *team = stand->teams[threads];
  return HK_OK;
}

int hk_stand_thread(const hk_stand *stand, int threads, int i, void *(*run)(void *), void *arg,
                    pthread_t *thread) {
  const int left = stand->n_cpus - threads;
  const int cpu = threads > 0 && left > 0 ? stand->cpus[threads + i % left] : -1;
  return hk_thread_start_or_anywhere(thread, cpu, run, arg);
}

hk_adamw_step hk_stand_step(int64_t op) {
  static const hk_adamw hyper = {
      .lr = 1e-6, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8, .weight_decay = 0.01};
  return hk_adamw_prepare(&hyper, 100, op % 2 == 0 ? 1 : -1);
}

int64_t hk_stand_piece(const hk_stand *stand, const hk_load *load) {
  return load->piece > 0 ? load->piece : stand->cpu.piece;
}

double hk_stand_work(const hk_stand *stand, const hk_load *load) {
  switch (load->kind) {
    case HK_LOAD_ADAMW_CPU:
    case HK_LOAD_ADAMW_AHEAD:
    case HK_LOAD_ADAMW_8BIT:
    case HK_LOAD_ADAMW_8BIT_SPLIT:
    case HK_LOAD_ADAMW_FP32:
    case HK_LOAD_UNSCALE:
    case HK_LOAD_CAST:
      return (double)hk_stand_piece(stand, load);
    case HK_LOAD_MATMUL:
      return 2 * (double)load->chunk * (double)load->n * (double)load->k;
    default:
      return (double)load->chunk;
  }
}

hk_stand_lane *hk_stand_lane_of(hk_stand *stand, const hk_load *load) {
  if (hk_load_is(load->kind, HK_TRAIT_CPU)) return NULL;
  hk_stand_lane *lanes = stand->gpu[load->gpu].lanes;
  switch (load->kind) {
    case HK_LOAD_H2D:
    case HK_LOAD_H2D_PAGEABLE:
    case HK_LOAD_H2D_CACHED:
      return &lanes[HK_STAND_LANE_IN];
    case HK_LOAD_D2H:
    case HK_LOAD_D2H_PAGEABLE:
      return &lanes[HK_STAND_LANE_OUT];
    case HK_LOAD_PULL:
      return &lanes[HK_STAND_LANE_FETCH];
    default:
      return &lanes[HK_STAND_LANE_WORK];
  }
}

hk_status hk_stand_fetch(hk_stand *stand, hk_stand_lane *lane, void *to, const void *from,
                         hk_bytes bytes, hk_error *err) {
  HK_TRY(stand->ops->copy(lane->stream, to, from, bytes, err));
  return stand->ops->stream_sync(lane->stream, err);
}

hk_status hk_stand_await(const hk_stand *stand, const hk_stand_lane *lane, hk_error *err) {
  HK_TRY(stand->ops->record(lane->stream, lane->awaited, err));
  return stand->ops->event_sync(lane->awaited, err);
}
