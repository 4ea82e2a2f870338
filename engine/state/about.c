/* SPDX-License-Identifier: Apache-2.0 */
/* What an engine says of itself: its parts, its notes, and whether it has failed. */
#include <stdio.h>
#include <string.h>

#include "engine/private.h"

void hk_engine_add_note(hk_engine *e, const char *note) {
  const size_t used = strlen(e->notes);
  if (note == NULL || note[0] == 0 || used + 2 >= sizeof e->notes) return;
  snprintf(e->notes + used, sizeof e->notes - used, "%s%s", used > 0 ? "\n" : "", note);
}

hk_status hk_engine_refuse_failed(const hk_engine *e, hk_error *err) {
  if (!e->failed) return HK_OK;
  return hk_fail(err, HK_ENVIRONMENT,
                 "this engine has failed before: read its state, or make a new engine and load a "
                 "checkpoint");
}

int64_t hk_engine_numel(const hk_engine *e) {
  return e->flat_end[e->n_params - 1];
}
hk_status hk_engine_guard(hk_engine *e, int *previous, hk_error *err) {
  return e->backend->ops->guard(e->backend, previous, err);
}
void hk_engine_unguard(hk_engine *e, int previous) {
  e->backend->ops->unguard(e->backend, previous);
}
size_t hk_engine_params(const hk_engine *e) {
  return e->n_params;
}
const hk_param *hk_engine_param(const hk_engine *e, size_t param, int64_t *begin) {
  *begin = e->flat_end[param] - e->params[param].numel;
  return &e->params[param];
}
const hk_plan *hk_engine_plan(const hk_engine *e) {
  return &e->plan;
}
const hk_graph *hk_engine_graph(const hk_engine *e) {
  return &e->graph;
}
void hk_engine_device_info(const hk_engine *e, hk_device_info *info) {
  *info = e->info;
}
const char *hk_engine_notes(const hk_engine *e) {
  return e->notes;
}
hk_engine_memory hk_engine_memory_taken(const hk_engine *e) {
  return (hk_engine_memory){.device = e->device.all, .host_pinned = e->host.all};
}
int64_t hk_engine_subgroup_step(const hk_engine *e, size_t subgroup) {
  return e->state.subgroups[subgroup].step;
}
