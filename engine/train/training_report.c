/* SPDX-License-Identifier: Apache-2.0 */
/* hocket_report: plan, threads, memory and times of the last steps, as a JSON document. */
#include <stdio.h>

#include "core/base/json_write.h"
#include "engine/device/backend_host.h"
#include "engine/train/training_private.h"

static void put_memory(const hk_engine *e, cJSON *root, bool *ok) {
  const hk_engine_memory memory = hk_engine_memory_taken(e);
  cJSON *to = hk_put_object(root, "memory", ok);
  int64_t spares = 0;
  for (size_t s = 0; s < e->state.n_subgroups; s++) {
    if (e->state.subgroups[s].ahead) spares += e->state.subgroups[s].slabs;
  }
  hk_put_number(to, "device_bytes", (double)memory.device, ok);
  hk_put_number(to, "host_pinned_bytes", (double)memory.host_pinned, ok);
  hk_put_number(to, "spares_bytes", (double)(spares * e->state.shape.bytes), ok);
  hk_put_number(to, "slots_bytes", (double)hk_slot_bytes(&e->plan, &e->state), ok);
}

/* Each buffer of host or device memory in bytes. They sum to memory's host_pinned_bytes and
 * device_bytes. */
static void put_buffers(const hk_engine *e, cJSON *root, bool *ok) {
  const hk_host_layout *h = &e->host;
  const hk_device_layout *d = &e->device;
  int64_t slabs = 0;
  for (size_t s = 0; s < e->state.n_subgroups; s++) {
    const hk_state_subgroup *sub = &e->state.subgroups[s];
    if (sub->route != HK_ROUTE_RESIDENT) slabs += sub->slabs;
  }
  const hk_bytes state = slabs * e->state.shape.bytes;
  const hk_bytes spares = e->state.host_slabs * e->state.shape.bytes - state;
  const hk_bytes squares = h->bins + h->block_bins;
  cJSON *buffers = hk_put_object(root, "buffers", ok);
  cJSON *host = hk_put_object(buffers, "host", ok);
  cJSON *device = hk_put_object(buffers, "device", ok);
  hk_put_number(host, "state", (double)state, ok);
  hk_put_number(host, "spares", (double)spares, ok);
  hk_put_number(host, "gradients", (double)h->grads, ok);
  hk_put_number(host, "weights", (double)h->weights, ok);
  hk_put_number(host, "squares", (double)squares, ok);
  hk_put_number(host, "other", (double)(h->all - state - spares - h->grads - h->weights - squares),
                ok);
  hk_put_number(device, "state", (double)d->slabs, ok);
  hk_put_number(device, "staging", (double)d->staging, ok);
  hk_put_number(device, "gradients", (double)d->grads, ok);
  hk_put_number(device, "early_weights", (double)d->early, ok);
  hk_put_number(device, "gradient_slots", (double)d->slots, ok);
  hk_put_number(device, "other", (double)(d->bins + d->ticket), ok);
}

/* Sums of the gradients of several backwards. */
static void put_sums(const hk_engine *e, cJSON *root, bool *ok) {
  const struct hk_training *t = e->training;
  cJSON *to = hk_put_object(root, "sums", ok);
  hk_put_number(to, "gradients_expected", t->rounds, ok);
  hk_put_number(to, "kept_bytes", (double)(t->n_keeping * t->slot_bytes + t->home_bytes), ok);
  hk_put_number(to, "fetched", (double)t->n_fetched, ok);
  hk_put_number(to, "fetched_late", (double)t->n_late, ok);
}

static void put_routes(const hk_engine *e, cJSON *root, bool *ok) {
  int64_t totals[HK_ROUTE_COUNT], ahead = 0;
  cJSON *to = hk_put_object(root, "parameters", ok);
  hk_plan_route_totals(&e->plan, totals);
  for (int r = 0; r < HK_ROUTE_COUNT; r++)
    hk_put_number(to, hk_route_names[r], (double)totals[r], ok);
  for (size_t s = 0; s < e->state.n_subgroups; s++) {
    if (e->state.subgroups[s].ahead) ahead += e->state.subgroups[s].numel;
  }
  hk_put_number(to, "ahead", (double)ahead, ok);
  hk_put_number(to, "held_staged", (double)hk_plan_held_staged(&e->plan), ok);
}

static void put_times(const hk_engine *e, cJSON *root, bool *ok) {
  const struct hk_training *t = e->training;
  cJSON *list = hk_put_array(root, "last_steps", ok);
  for (int64_t i = hk_max(0, t->n_times - HK_KEPT_TIMES); i < t->n_times && *ok; i++) {
    const hk_step_time *time = &t->times[i % HK_KEPT_TIMES];
    cJSON *item = hk_put_element(list, ok);
    hk_put_number(item, "step", (double)time->step, ok);
    hk_put_number(item, "update_ms", hk_ms(time->update), ok);
    hk_put_number(item, "stolen", (double)time->stolen, ok);
  }
}

/* Host memory that would hold the spares of as many elements as have been updated before the norm
 * in any step. Gradients of deep subgroups arrive first. */
static hk_bytes enough_host(const hk_engine *e) {
  int64_t left = e->training->most_ahead, unused = 0;
  for (size_t s = e->state.n_subgroups; s-- > 0;) {
    const hk_state_subgroup *sub = &e->state.subgroups[s];
    if (!sub->ahead) continue;
    if (left <= 0) unused += sub->slabs;
    left -= sub->numel;
  }
  return e->host.all - unused * e->state.shape.bytes;
}

/* What the choice of the next step rests on (clip.h); 0 ms: too few steps of that kind. */
static void put_choice(const hk_engine *e, cJSON *root, bool *ok) {
  static const char *const names[HK_STEP_KINDS] = {"held", "kept", "redone"};
  const hk_clip_history *h = &e->training->clip;
  cJSON *to = hk_put_object(root, "running_ahead", ok);
  hk_put_number(to, "clip_probability", hk_clip_chance(h), ok);
  hk_put_number(to, "limit", hk_clip_limit(h), ok);
  hk_put_number(to, "most_elements", (double)e->training->most_ahead, ok);
  hk_put_number(to, "enough_host_bytes", (double)enough_host(e), ok);
  for (int kind = 0; kind < HK_STEP_KINDS; kind++) {
    char key[32];
    snprintf(key, sizeof key, "%s_steps", names[kind]);
    hk_put_number(to, key, (double)h->n_times[kind], ok);
    snprintf(key, sizeof key, "%s_ms", names[kind]);
    hk_put_number(to, key, hk_ms(hk_clip_time(h, (hk_step_kind)kind)), ok);
  }
}

static bool put_report(hk_engine *e, cJSON *root) {
  bool ok = root != NULL;
  if (!ok) return false;
  hk_put_string(root, "schema", "hocket.engine/1", &ok);
  hk_put_string(root, "backend", e->backend->ops->name, &ok);
  hk_put_string(root, "device", e->info.name, &ok);
  hk_put_string(root, "policy", e->plan.policy, &ok);
  hk_put_string(root, "overlap", hk_overlap_names[e->plan.overlap], &ok);
  hk_put_string(root, "clip", hk_clip_names[e->plan.clip], &ok);
  hk_put_string(root, "kernels", e->kernels->name, &ok);
  hk_put_string(root, "notes", e->notes, &ok);
  hk_put_number(root, "tensors", (double)e->n_params, &ok);
  hk_put_number(root, "blocks", (double)e->training->n_blocks, &ok);
  hk_put_number(root, "cpu_threads", hk_team_threads(e->team), &ok);
  hk_put_number(root, "steps", (double)hk_engine_step_number(e), &ok);
  hk_put_number(root, "operations", (double)e->graph.n_ops, &ok);
  put_routes(e, root, &ok);
  hk_put_string(root, "state", hk_optimizer_names[e->plan.optimizer], &ok);
  put_memory(e, root, &ok);
  put_buffers(e, root, &ok);
  put_sums(e, root, &ok);
  put_times(e, root, &ok);
  if (e->plan.overlap == HK_OVERLAP_BOTH) put_choice(e, root, &ok);
  if (hk_training_is_host(e)) {
    hk_put_number(root, "callers_kernels_ms", hk_ms(hk_backend_host_callers_kernels(e->backend)),
                  &ok);
  }
  return ok;
}

hk_status hk_engine_report(hk_engine *e, char **text, hk_error *err) {
  cJSON *root = cJSON_CreateObject();
  *text = put_report(e, root) ? cJSON_PrintUnformatted(root) : NULL;
  cJSON_Delete(root);
  return *text != NULL ? HK_OK : hk_fail(err, HK_ENVIRONMENT, "out of memory for the report");
}
