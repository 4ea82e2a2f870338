/* SPDX-License-Identifier: Apache-2.0 */
/* Addresses of the parameters that an operation works on: gradients, and weights in the host's
 * array and in the framework's tensors. */
#include "engine/private.h"

int64_t hk_engine_op_numel(const hk_engine *e, const hk_op *op) {
  const hk_state_subgroup *sub = hk_engine_subgroup(e, op);
  return hk_min(sub->piece, sub->numel - op->offset);
}

char *hk_engine_segment_grads(const hk_engine *e, const hk_param_segment *segment) {
  const bool on_device = e->state.images[segment->image].on_device;
  return (on_device ? e->device_grads : (char *)e->grads) + segment->at;
}

int64_t hk_engine_index_in_tensor(const hk_engine *e, int32_t param, int64_t at) {
  return at - (e->param_end[param] - e->params[param].numel);
}

char *hk_engine_weight_at(const hk_engine *e, int32_t param, int64_t at) {
  const hk_param *p = &e->params[param];
  if (p->weight == NULL) return NULL;
  const int64_t index = hk_engine_index_in_tensor(e, param, at);
  return (char *)p->weight + (size_t)index * hk_grad_size(p->weight_type);
}

hk_param_run hk_param_run_at(const hk_engine *e, int64_t at, int64_t end) {
  const int32_t number = hk_state_segment(&e->state, at);
  const hk_param_segment *s = &e->state.segments[number];
  const int64_t next = number + 1 < e->state.n_segments ? s[1].offset : e->state.numel;
  return (hk_param_run){s, &e->params[s->param], hk_min(end, s->offset + s->n) - at,
                        hk_min(end, next) - at};
}

const char *hk_param_run_grad(const hk_engine *e, const hk_param_run *run, int64_t at) {
  return hk_engine_segment_grads(e, run->segment) +
         (size_t)(at - run->segment->offset) * hk_grad_size(run->param->grad_type);
}

uint16_t *hk_engine_host_weights(const hk_engine *e, const hk_op *op) {
  if (e->weights == NULL) return NULL;
  return e->weights + hk_state_host_at(&e->state, hk_engine_subgroup(e, op), op->offset);
}
