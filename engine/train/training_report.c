/* SPDX-License-Identifier: Apache-2.0 */
/* hocket_report: plan, threads, memory and times of the last steps, as a JSON document. */
#include <stdio.h>

#include "core/base/json.h"
#include "engine/device/backend_host.h"
#include "engine/train/training_private.h"

static void put_number(cJSON *to, const char *key, double value, bool *ok) {
  *ok = *ok && cJSON_AddNumberToObject(to, key, value) != NULL;
}

static void put_text(cJSON *to, const char *key, const char *value, bool *ok) {
  *ok = *ok && cJSON_AddStringToObject(to, key, value) != NULL;
}

static void put_memory(const hk_engine *e, cJSON *root, bool *ok) {
  const hk_engine_memory memory = hk_engine_memory_taken(e);
  cJSON *to = cJSON_AddObjectToObject(root, "memory");
  int64_t spares = 0;
  for (size_t s = 0; s < e->state.n_subgroups; s++) {
    if (e->state.subgroups[s].ahead) spares += e->state.subgroups[s].slabs;
  }
  *ok = *ok && to != NULL;
  if (!*ok) return;
  put_number(to, "device_bytes", (double)memory.device, ok);
  put_number(to, "host_pinned_bytes", (double)memory.host_pinned, ok);
  put_number(to, "spares_bytes", (double)(spares * e->state.shape.bytes), ok);
  put_number(to, "slots_bytes", (double)hk_slot_bytes(&e->plan, &e->state), ok);
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
  cJSON *buffers = cJSON_AddObjectToObject(root, "buffers");
  cJSON *host = cJSON_AddObjectToObject(buffers, "host");
  cJSON *device = cJSON_AddObjectToObject(buffers, "device");
  *ok = *ok && host != NULL && device != NULL;
  if (!*ok) return;
  put_number(host, "state", (double)state, ok);
  put_number(host, "spares", (double)spares, ok);
  put_number(host, "gradients", (double)h->grads, ok);
  put_number(host, "weights", (double)h->weights, ok);
  put_number(host, "other", (double)(h->all - state - spares - h->grads - h->weights), ok);
  put_number(device, "state", (double)d->slabs, ok);
  put_number(device, "staging", (double)d->staging, ok);
  put_number(device, "gradients", (double)d->grads, ok);
  put_number(device, "early_weights", (double)d->early, ok);
  put_number(device, "gradient_slots", (double)d->slots, ok);
  put_number(device, "other", (double)(d->bins + d->ticket), ok);
}

/* Sums of the gradients of several backwards. */
static void put_sums(const hk_engine *e, cJSON *root, bool *ok) {
  const struct hk_training *t = e->training;
  cJSON *to = cJSON_AddObjectToObject(root, "sums");
  *ok = *ok && to != NULL;
  if (!*ok) return;
  put_number(to, "gradients_expected", t->rounds, ok);
  put_number(to, "kept_bytes", (double)(t->n_keeping * t->slot_bytes + t->home_bytes), ok);
  put_number(to, "fetched", (double)t->n_fetched, ok);
  put_number(to, "fetched_late", (double)t->n_late, ok);
}

static void put_routes(const hk_engine *e, cJSON *root, bool *ok) {
  int64_t totals[HK_ROUTE_COUNT], ahead = 0;
  cJSON *to = cJSON_AddObjectToObject(root, "parameters");
  *ok = *ok && to != NULL;
  if (!*ok) return;
  hk_plan_route_totals(&e->plan, totals);
  for (int r = 0; r < HK_ROUTE_COUNT; r++) put_number(to, hk_route_names[r], (double)totals[r], ok);
  for (size_t s = 0; s < e->state.n_subgroups; s++) {
    if (e->state.subgroups[s].ahead) ahead += e->state.subgroups[s].numel;
  }
  put_number(to, "ahead", (double)ahead, ok);
  put_number(to, "held_staged", (double)hk_plan_held_staged(&e->plan), ok);
}

static void put_times(const hk_engine *e, cJSON *root, bool *ok) {
  const struct hk_training *t = e->training;
  cJSON *list = cJSON_AddArrayToObject(root, "last_steps");
  *ok = *ok && list != NULL;
  for (int64_t i = hk_max(0, t->n_times - HK_KEPT_TIMES); i < t->n_times && *ok; i++) {
    const hk_step_time *time = &t->times[i % HK_KEPT_TIMES];
    cJSON *item = cJSON_CreateObject();
    *ok = item != NULL && cJSON_AddItemToArray(list, item);
    if (!*ok) {
      cJSON_Delete(item);
      return;
    }
    put_number(item, "step", (double)time->step, ok);
    put_number(item, "update_ms", hk_ms(time->update), ok);
  }
}

/* What the choice of the next step rests on (clip.h); 0 ms: too few steps of that kind. */
static void put_choice(const hk_engine *e, cJSON *root, bool *ok) {
  static const char *const names[HK_STEP_KINDS] = {"held", "kept", "redone"};
  const hk_clip_history *h = &e->training->clip;
  cJSON *to = cJSON_AddObjectToObject(root, "running_ahead");
  *ok = *ok && to != NULL;
  if (!*ok) return;
  put_number(to, "clip_probability", hk_clip_chance(h), ok);
  put_number(to, "limit", hk_clip_limit(h), ok);
  for (int kind = 0; kind < HK_STEP_KINDS; kind++) {
    char key[32];
    snprintf(key, sizeof key, "%s_steps", names[kind]);
    put_number(to, key, (double)h->n_times[kind], ok);
    snprintf(key, sizeof key, "%s_ms", names[kind]);
    put_number(to, key, hk_ms(hk_clip_time(h, (hk_step_kind)kind)), ok);
  }
}

static bool put_report(hk_engine *e, cJSON *root) {
  bool ok = root != NULL;
  if (!ok) return false;
  put_text(root, "schema", "hocket.engine/1", &ok);
  put_text(root, "backend", e->backend->ops->name, &ok);
  put_text(root, "device", e->info.name, &ok);
  put_text(root, "policy", e->plan.policy, &ok);
  put_text(root, "overlap", hk_overlap_names[e->plan.overlap], &ok);
  put_text(root, "clip", hk_clip_names[e->plan.clip], &ok);
  put_text(root, "kernels", e->kernels->name, &ok);
  put_text(root, "notes", e->notes, &ok);
  put_number(root, "tensors", (double)e->n_params, &ok);
  put_number(root, "blocks", (double)e->training->n_blocks, &ok);
  put_number(root, "cpu_threads", hk_team_threads(e->team), &ok);
  put_number(root, "steps", (double)hk_engine_step_number(e), &ok);
  put_number(root, "operations", (double)e->graph.n_ops, &ok);
  put_routes(e, root, &ok);
  put_text(root, "state", hk_optimizer_names[e->plan.optimizer], &ok);
  put_memory(e, root, &ok);
  put_buffers(e, root, &ok);
  put_sums(e, root, &ok);
  put_times(e, root, &ok);
  if (e->plan.overlap == HK_OVERLAP_BOTH) put_choice(e, root, &ok);
  if (hk_training_is_host(e)) {
    put_number(root, "callers_kernels_ms", hk_ms(hk_backend_host_callers_kernels(e->backend)), &ok);
  }
  return ok;
}

hk_status hk_engine_report(hk_engine *e, char **text, hk_error *err) {
  cJSON *root = cJSON_CreateObject();
  *text = put_report(e, root) ? cJSON_PrintUnformatted(root) : NULL;
  cJSON_Delete(root);
  return *text != NULL ? HK_OK : hk_fail(err, HK_ENVIRONMENT, "out of memory for the report");
}
