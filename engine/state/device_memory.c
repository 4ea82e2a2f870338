/* SPDX-License-Identifier: Apache-2.0 */
/* The engine's device memory: state that is resident there, which is kept as long as the engine
 * exists, and memory for work (staging buffers, gradients, early weights), which a training engine
 * can give back between steps. The work memory is all 0 when it has been taken. */
#include "engine/private.h"

static hk_status take(hk_engine *e, hk_bytes bytes, char **out, hk_error *err) {
  const hk_backend_ops *ops = e->backend->ops;
  void *memory = NULL;
  if (bytes == 0) return HK_OK;
  HK_TRY(ops->alloc(e->backend, bytes, &memory, err));
  *out = memory;
  HK_TRY(ops->zero(e->stream, memory, bytes, err));
  return ops->stream_sync(e->stream, err);
}

static void give_back(hk_engine *e, char **memory) {
  if (*memory != NULL) e->backend->ops->release(e->backend, *memory);
  *memory = NULL;
}

static hk_bytes work_bytes(const hk_engine *e) {
  return e->device.all - e->device.slabs;
}

hk_status hk_engine_take_work(hk_engine *e, hk_error *err) {
  if (e->work != NULL) return HK_OK;
  const hk_status status = take(e, work_bytes(e), &e->work, err);
  if (status == HK_OK) {
    hk_engine_place_work(e);
  } else {
    give_back(e, &e->work);
  }
  return status;
}

hk_status hk_engine_take_device(hk_engine *e, hk_error *err) {
  HK_TRY(take(e, e->device.slabs, &e->memory, err));
  return hk_engine_take_work(e, err);
}

void hk_engine_give_work_back(hk_engine *e) {
  give_back(e, &e->work);
}

hk_bytes hk_engine_device_bytes(const hk_engine *e) {
  return e->device.slabs + (e->work != NULL ? work_bytes(e) : 0);
}

void hk_engine_give_device_back(hk_engine *e) {
  hk_engine_give_work_back(e);
  give_back(e, &e->memory);
}
