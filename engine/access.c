/* SPDX-License-Identifier: GPL-3.0-or-later */
/* State in and out of an engine, wherever it lives, and its checksum. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "engine/private.h"

static hk_status check_range(const hk_engine *e, int64_t offset, int64_t n, hk_error *err) {
  if (offset >= 0 && n >= 0 && n <= e->state.numel - offset) return HK_OK;
  return hk_fail(err, HK_INPUT,
                 "state of %lld parameters from number %lld on: the engine has %lld parameters",
                 (long long)n, (long long)offset, (long long)e->state.numel);
}

/* Where parameters at .. of one slab have their p, m or v. */
static float *place(const hk_engine *e, const hk_slab_run *run, hk_state_part part) {
  return hk_slab_part(&e->state.shape, e->state.home[run->slab], (int)part, run->at);
}

/* Between the caller's memory and a slab, on the host or on the device. */
static hk_status move(hk_engine *e, bool on_device, void *to, const void *from, int64_t bytes,
                      hk_error *err) {
  if (!on_device) {
    memcpy(to, from, (size_t)bytes);
    return HK_OK;
  }
  HK_TRY(e->backend->ops->copy(e->stream, to, from, bytes, err));
  return e->backend->ops->stream_sync(e->stream, err);
}

/* Calls for every run of parameters offset .. offset + n - 1 inside one slab. */
typedef hk_status (*run_visitor)(hk_engine *e, const hk_state_subgroup *sub, const hk_slab_run *run,
                                 hk_state_part part, float *data, hk_error *err);

static hk_status visit(hk_engine *e, hk_state_part part, int64_t offset, int64_t n, float *data,
                       run_visitor visitor, hk_error *err) {
  for (int64_t done = 0; done < n;) {
    const size_t s = hk_state_find(&e->state, offset + done);
    const hk_state_subgroup *sub = &e->state.subgroups[s];
    const int64_t begin = offset + done - sub->offset;
    const int64_t left = n - done < sub->numel - begin ? n - done : sub->numel - begin;
    const hk_slab_run run = hk_state_run(&e->state, s, begin, begin + left);
    HK_TRY(visitor(e, sub, &run, part, data + done, err));
    done += run.n;
  }
  return HK_OK;
}

static hk_status write_run(hk_engine *e, const hk_state_subgroup *sub, const hk_slab_run *run,
                           hk_state_part part, float *data, hk_error *err) {
  return move(e, sub->route == HK_ROUTE_RESIDENT, place(e, run, part), data, 4 * run->n, err);
}

static hk_status read_run(hk_engine *e, const hk_state_subgroup *sub, const hk_slab_run *run,
                          hk_state_part part, float *data, hk_error *err) {
  if (sub->step < 0) {
    return hk_fail(err, HK_ENVIRONMENT,
                   "the state of parameters %lld to %lld was lost: make a new engine and load a "
                   "checkpoint",
                   (long long)sub->offset, (long long)(sub->offset + sub->numel - 1));
  }
  return move(e, sub->route == HK_ROUTE_RESIDENT, data, place(e, run, part), 4 * run->n, err);
}

/* The device's bf16 weights follow the master weights. */
static hk_status write_weights(hk_engine *e, int64_t offset, int64_t n, const float *p,
                               hk_error *err) {
  enum { CHUNK = 1 << 20 };
  uint16_t *w = malloc(CHUNK * sizeof *w);
  if (w == NULL) return hk_fail_memory(err, CHUNK * sizeof *w, "weights to write");
  hk_status status = HK_OK;
  for (int64_t done = 0; done < n && status == HK_OK;) {
    const int64_t part = n - done < CHUNK ? n - done : CHUNK;
    e->kernels->cast_down(part, p + done, w);
    status = move(e, true, e->device_weights + offset + done, w, 2 * part, err);
    done += part;
  }
  free(w);
  return status;
}

hk_status hk_engine_write(hk_engine *e, hk_state_part part, int64_t offset, int64_t n,
                          const float *data, hk_error *err) {
  HK_TRY(hk_engine_refuse_failed(e, err));
  HK_TRY(check_range(e, offset, n, err));
  if (part == HK_STATE_W) {
    return hk_fail(err, HK_INPUT, "bf16 weights follow the master weights: write those");
  }
  HK_TRY(visit(e, part, offset, n, (float *)data, write_run, err));
  return part == HK_STATE_P ? write_weights(e, offset, n, data, err) : HK_OK;
}

hk_status hk_engine_read(hk_engine *e, hk_state_part part, int64_t offset, int64_t n, void *data,
                         hk_error *err) {
  HK_TRY(check_range(e, offset, n, err));
  if (part == HK_STATE_W) return move(e, true, data, e->device_weights + offset, 2 * n, err);
  return visit(e, part, offset, n, data, read_run, err);
}

hk_status hk_engine_set_step(hk_engine *e, int64_t step, hk_error *err) {
  HK_TRY(hk_engine_refuse_failed(e, err));
  if (step < 0) return hk_fail(err, HK_INPUT, "steps count from 0, got %lld", (long long)step);
  e->step = step;
  for (size_t s = 0; s < e->state.n_subgroups; s++) e->state.subgroups[s].step = step;
  return HK_OK;
}

/* -- Checksum ---------------------------------------------------------------------------------- */

static hk_status hash_part(hk_engine *e, hk_state_part part, char *buffer, int64_t most,
                           XXH3_state_t *hash, hk_error *err) {
  const int64_t size = part == HK_STATE_W ? 2 : 4;
  for (int64_t done = 0; done < e->state.numel;) {
    const int64_t n = e->state.numel - done < most ? e->state.numel - done : most;
    HK_TRY(hk_engine_read(e, part, done, n, buffer, err));
    XXH3_128bits_update(hash, buffer, (size_t)(n * size));
    done += n;
  }
  return HK_OK;
}

hk_status hk_engine_checksum(hk_engine *e, char hex[33], hk_error *err) {
  enum { MOST = 1 << 20 };
  static const hk_state_part parts[] = {HK_STATE_P, HK_STATE_M, HK_STATE_V, HK_STATE_W};
  char *buffer = malloc(4 * (size_t)MOST);
  XXH3_state_t *hash = XXH3_createState();
  hk_status status = HK_OK;
  if (buffer == NULL || hash == NULL) {
    status = hk_fail_memory(err, 4 * (size_t)MOST, "a checksum");
  } else {
    XXH3_128bits_reset(hash);
    for (size_t i = 0; i < sizeof parts / sizeof parts[0] && status == HK_OK; i++) {
      status = hash_part(e, parts[i], buffer, MOST, hash, err);
    }
  }
  if (status == HK_OK) {
    XXH128_canonical_t canonical;
    XXH128_canonicalFromHash(&canonical, XXH3_128bits_digest(hash));
    for (int i = 0; i < 16; i++) snprintf(hex + 2 * i, 3, "%02x", canonical.digest[i]);
  }
  XXH3_freeState(hash);
  free(buffer);
  return status;
}
