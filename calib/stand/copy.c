/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Copy loads and their verification. Slot i of the source is always copied to slot i of the target,
 * so that no other operation overwrites it with different data. */
#include <stdlib.h>
#include <string.h>

#include "calib/stand/private.h"

#define SAMPLE  (64 * HK_KIB) /* bytes at the start, the middle and the end of a slot */
#define SAMPLES 3

/* ---- Source and target ----------------------------------------------------------------------- */

typedef struct {
  char *from, *to;
  hk_bytes bytes;                      /* of each of the two arrays */
  const hk_stand_gpu *source, *target; /* NULL: host memory */
} route;

static route peer_route(const hk_stand_job *job) {
  const hk_stand *stand = job->stand;
  const hk_stand_gpu *source = &stand->gpu[job->load->gpu];
  const hk_stand_gpu *target = &stand->gpu[(job->load->gpu + 1) % stand->gpus];
  return (route){source->out, target->in, hk_min(source->quarter, target->quarter), source, target};
}

static route route_of(const hk_stand_job *job) {
  hk_stand *stand = job->stand;
  const hk_load_kind kind = job->load->kind;
  if (kind == HK_LOAD_PEER) return peer_route(job);
  const hk_stand_gpu *gpu = &stand->gpu[job->load->gpu];
  hk_bytes bytes = stand->quarter / job->parts / 4096 * 4096;
  char *host = (hk_load_is(kind, HK_TRAIT_IN) ? stand->in : stand->out) + bytes * job->part;
  if (hk_load_is(kind, HK_TRAIT_PAGEABLE)) {
    host = stand->pageable;
    bytes = stand->pageable_bytes;
  }
  bytes = hk_min(bytes, gpu->quarter);
  if (job->halved) bytes = bytes / 2 / 4096 * 4096;
  if (!hk_load_is(kind, HK_TRAIT_IN)) return (route){gpu->out, host, bytes, gpu, NULL};
  const hk_bytes from = job->halved && kind == HK_LOAD_PULL ? bytes : 0;
  return (route){host + from, gpu->in + from, bytes, NULL, gpu};
}

/* The arrays from operation i's slots on. H2D_CACHED uses slot 0 only. */
static route slot_of(const hk_stand_job *job, int64_t i) {
  route r = route_of(job);
  const hk_bytes chunk = job->load->chunk;
  const bool again = job->load->kind == HK_LOAD_H2D_CACHED;
  const hk_bytes at = again ? 0 : i % (r.bytes / chunk) * chunk;
  r.from += at;
  r.to += at;
  return r;
}

hk_status hk_stand_copy_check(hk_stand_job *job, hk_error *err) {
  const hk_load *l = job->load;
  if (l->kind == HK_LOAD_PEER && !job->stand->peers) {
    return hk_fail(err, HK_INPUT, "the GPUs of this machine cannot copy to each other");
  }
  if (l->kind == HK_LOAD_PULL && l->chunk % 2 != 0) {
    return hk_fail(err, HK_INPUT, "pulls of %lld bytes: expected a multiple of 2, a bf16 weight",
                   (long long)l->chunk);
  }
  if (hk_load_is(l->kind, HK_TRAIT_PAGEABLE)) HK_TRY(hk_stand_pageable(job->stand, err));
  const hk_bytes room = route_of(job).bytes;
  if (l->chunk <= room) return HK_OK;
  return hk_fail(err, HK_INPUT, "copies of %lld bytes do not fit into the stand's %lld bytes",
                 (long long)l->chunk, (long long)room);
}

hk_status hk_stand_copy_queue(const hk_stand_job *job, int64_t i, hk_error *err) {
  const route r = slot_of(job, i);
  hk_stream *stream = hk_stand_lane_of(job->stand, job->load)->stream;
  const hk_bytes bytes = job->load->chunk;
  if (job->load->kind != HK_LOAD_PULL) {
    return job->stand->ops->copy(stream, r.to, r.from, bytes, err);
  }
  const hk_kernel pull = {.kind = HK_KERNEL_PULL,
                          .type = HK_GRAD_BF16,
                          .n = bytes / 2,
                          .grad = r.from,
                          .w = (uint16_t *)(void *)r.to};
  return job->stand->ops->launch(stream, &pull, err);
}

/* ---- Verification ---------------------------------------------------------------------------- */

typedef struct {
  hk_bytes at, bytes;
} sample;

static sample sample_of(const hk_load *l, int s) {
  const hk_bytes bytes = hk_min(l->chunk, SAMPLE);
  return (sample){(l->chunk - bytes) * s / (SAMPLES - 1), bytes};
}

static void write_pattern(const hk_stand_job *job, int s, char *to, hk_bytes bytes) {
  for (hk_bytes at = 0; at < bytes; at += 8) {
    const uint64_t word = hk_stand_pattern(job->seed + (uint64_t)s, at / 8);
    memcpy(to + at, &word, (size_t)hk_min(8, bytes - at));
  }
}

static hk_status prepare_sample(const hk_stand_job *job, int s, char *buffer, hk_error *err) {
  const route r = slot_of(job, job->first);
  const sample part = sample_of(job->load, s);
  if (r.source == NULL) {
    write_pattern(job, s, r.from + part.at, part.bytes);
    return HK_OK;
  }
  write_pattern(job, s, buffer, part.bytes);
  return hk_stand_fetch(job->stand, hk_stand_lane_of(job->stand, job->load), r.from + part.at,
                        buffer, part.bytes, err);
}

static hk_status verify_sample(const hk_stand_job *job, int s, char *buffer, hk_error *err) {
  const route r = slot_of(job, job->first);
  const sample part = sample_of(job->load, s);
  char *const wanted = buffer + SAMPLE;
  const char *got = r.to + part.at;
  if (r.target != NULL) {
    /* On a stream of the GPU that holds the data. */
    hk_stand_gpu *gpu = &job->stand->gpu[r.target - job->stand->gpu];
    HK_TRY(
        hk_stand_fetch(job->stand, &gpu->lanes[HK_STAND_LANE_WORK], buffer, got, part.bytes, err));
    got = buffer;
  }
  write_pattern(job, s, wanted, part.bytes);
  for (hk_bytes i = 0; i < part.bytes; i++) {
    if (got[i] == wanted[i]) continue;
    const long long at = part.at + i;
    return hk_fail(err, HK_NO, "byte %lld of a copy of %lld bytes arrived as 0x%02x, not 0x%02x",
                   at, (long long)job->load->chunk, (uint8_t)got[i], (uint8_t)wanted[i]);
  }
  return HK_OK;
}

/* First sample of a slot: large slots have three, which do not overlap, small ones only that at the
 * end. */
static int first_sample(const hk_load *l) {
  return l->chunk >= SAMPLES * SAMPLE ? 0 : SAMPLES - 1;
}

static hk_status with_samples(const hk_stand_job *job,
                              hk_status (*each)(const hk_stand_job *, int, char *, hk_error *),
                              hk_error *err) {
  char *buffer = malloc((size_t)(2 * SAMPLE));
  if (buffer == NULL) return hk_fail_memory(err, (size_t)(2 * SAMPLE), "checking copies");
  hk_status status = HK_OK;
  for (int s = first_sample(job->load); s < SAMPLES && status == HK_OK; s++) {
    status = each(job, s, buffer, err);
  }
  free(buffer);
  return status;
}

hk_status hk_stand_copy_prepare(const hk_stand_job *job, hk_error *err) {
  return with_samples(job, prepare_sample, err);
}

hk_status hk_stand_copy_verify(const hk_stand_job *job, hk_error *err) {
  return with_samples(job, verify_sample, err);
}
