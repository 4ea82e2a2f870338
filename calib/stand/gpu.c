/* SPDX-License-Identifier: GPL-3.0-or-later */
/* The stand's GPUs: their memory, their lanes, and loads that are queued on a lane. */
#include <stdlib.h>
#include <string.h>

#include "calib/probes/statistics.h"
#include "calib/stand/private.h"
#include "core/graph/bytes.h"

/* ---- Opening --------------------------------------------------------------------------------- */

/* Opens a lane's stream and events. `urgent`: the stream has priority, as in the engine. */
static hk_status open_lane(hk_stand *stand, hk_stand_gpu *gpu, hk_stand_lane *lane, bool urgent,
                           hk_error *err) {
  HK_TRY(stand->ops->stream_open(gpu->backend, urgent, &lane->stream, err));
  for (int i = 0; i <= HK_STAND_STRETCHES; i++) {
    HK_TRY(stand->ops->event_open(gpu->backend, false, &lane->marks[i], err));
  }
  for (int i = 0; i < HK_STAND_STRETCHES; i++) {
    HK_TRY(stand->ops->event_open(gpu->backend, false, &lane->begins[i], err));
  }
  HK_TRY(stand->ops->event_open(gpu->backend, false, &lane->passing, err));
  return stand->ops->event_open(gpu->backend, true, &lane->awaited, err);
}

static void lay_out(hk_stand_gpu *gpu) {
  gpu->quarter = gpu->bytes / 4;
  gpu->in = gpu->block;
  gpu->out = gpu->block + gpu->quarter;
  gpu->state = gpu->block + 2 * gpu->quarter;
  const int64_t n = gpu->params = 2 * gpu->quarter / 16 / 128 * 128;
  gpu->shape = (hk_slab_shape){
      .numel = n, .bytes = HK_BYTES_STATE * n, .m = HK_BYTES_FP32 * n, .v = 2 * HK_BYTES_FP32 * n};
  gpu->grad = (uint16_t *)(void *)(gpu->state + HK_BYTES_STATE * n);
  gpu->w = gpu->grad + n;
}

/* Fills device memory with copies of a host array. */
static hk_status fill(hk_stand *stand, hk_stand_gpu *gpu, char *to, hk_bytes bytes,
                      const void *from, hk_bytes from_bytes, hk_error *err) {
  for (hk_bytes at = 0; at < bytes; at += from_bytes) {
    const hk_bytes n = bytes - at < from_bytes ? bytes - at : from_bytes;
    HK_TRY(hk_stand_fetch(stand, &gpu->lanes[HK_STAND_LANE_IN], to + at, from, n, err));
  }
  return HK_OK;
}

hk_status hk_stand_gpu_open(hk_stand *stand, int number, hk_bytes device_bytes, hk_error *err) {
  hk_stand_gpu *gpu = &stand->gpu[number];
  const hk_bytes bytes = device_bytes / 4096 * 4096;
  void *block = NULL;
  HK_TRY(stand->ops->alloc(gpu->backend, bytes, &block, err));
  gpu->block = block;
  gpu->bytes = bytes;
  lay_out(gpu);
  for (int i = 0; i < HK_STAND_LANES; i++) {
    HK_TRY(open_lane(stand, gpu, &gpu->lanes[i], i == HK_STAND_LANE_FETCH, err));
  }
  HK_TRY(fill(stand, gpu, gpu->block, bytes, stand->in, stand->quarter, err));
  return fill(stand, gpu, gpu->state + gpu->shape.v, 4 * gpu->params, stand->cpu.v,
              4 * stand->cpu.params, err);
}

void hk_stand_gpu_close(hk_stand *stand, hk_stand_gpu *gpu) {
  const hk_backend_ops *ops = stand->ops;
  for (int l = 0; l < HK_STAND_LANES; l++) {
    hk_stand_lane *lane = &gpu->lanes[l];
    if (lane->stream != NULL) ops->stream_close(lane->stream);
    for (int i = 0; i <= HK_STAND_STRETCHES; i++) {
      if (lane->marks[i] != NULL) ops->event_close(lane->marks[i]);
    }
    for (int i = 0; i < HK_STAND_STRETCHES; i++) {
      if (lane->begins[i] != NULL) ops->event_close(lane->begins[i]);
    }
    if (lane->passing != NULL) ops->event_close(lane->passing);
    if (lane->awaited != NULL) ops->event_close(lane->awaited);
  }
  if (gpu->block != NULL) ops->release(gpu->backend, gpu->block);
  gpu->block = NULL;
}

/* ---- Kernels --------------------------------------------------------------------------------- */

static hk_kernel update_kernel(const hk_stand_job *job, int64_t i) {
  hk_stand *stand = job->stand;
  const hk_stand_gpu *gpu = &stand->gpu[job->load->gpu];
  const bool mapped = job->load->kind == HK_LOAD_MAPPED;
  const int64_t n = job->load->chunk;
  const int64_t params =
      mapped && stand->mapped_params < gpu->params ? stand->mapped_params : gpu->params;
  const int64_t first = i % (params / n) * n;
  char *state = mapped ? stand->mapped : gpu->state;
  return (hk_kernel){.kind = HK_KERNEL_ADAMW,
                     .type = HK_GRAD_BF16,
                     .n = n,
                     .grad = gpu->grad + first,
                     .step = hk_stand_step(i),
                     .shape = mapped ? stand->mapped_shape : gpu->shape,
                     .first = first,
                     .from = state,
                     .to = state,
                     .w = gpu->w + first,
                     .mapped = mapped};
}

hk_kernel hk_stand_kernel(const hk_stand_job *job, int64_t i) {
  const hk_load *l = job->load;
  const hk_stand_gpu *gpu = &job->stand->gpu[l->gpu];
  if (l->kind == HK_LOAD_MATMUL) {
    const hk_bytes from = job->halved ? hk_stand_half(gpu) : 0;
    uint16_t *in = (uint16_t *)(void *)(gpu->in + from);
    return (hk_kernel){.kind = HK_KERNEL_MATMUL,
                       .rows = l->chunk,
                       .columns = l->n,
                       .depth = l->k,
                       .a = in,
                       .b = in + l->chunk * l->k,
                       .w = (uint16_t *)(void *)(gpu->out + from)};
  }
  if (l->kind == HK_LOAD_LAUNCH || l->kind == HK_LOAD_LAUNCH_LOOP || l->kind == HK_LOAD_HOP) {
    return (hk_kernel){.kind = HK_KERNEL_CAST_UP,
                       .type = HK_GRAD_BF16,
                       .n = 1,
                       .grad = gpu->grad,
                       .out = (float *)(void *)gpu->in};
  }
  return update_kernel(job, i);
}

hk_status hk_stand_queue(const hk_stand_job *job, int64_t i, hk_error *err) {
  if (hk_load_is(job->load->kind, HK_TRAIT_COPY)) return hk_stand_copy_queue(job, i, err);
  const hk_kernel kernel = hk_stand_kernel(job, i);
  return job->stand->ops->launch(hk_stand_lane_of(job->stand, job->load)->stream, &kernel, err);
}

/* ---- Jobs ------------------------------------------------------------------------------------ */

/* Queues each operation between two events, as the engine does in a step with a timeline. (In other
 * steps only the second event exists.) A lane idles for about 2 us between the events of two
 * operations; this is part of the cost of an operation. */
static hk_status queue_all(hk_stand_job *job, hk_stand_lane *lane, hk_error *err) {
  const hk_backend_ops *ops = job->stand->ops;
  HK_TRY(ops->record(lane->stream, lane->marks[0], err));
  for (size_t s = 0; s < job->n; s++) {
    const int64_t end = hk_stand_cut(job->ops, job->n, s + 1);
    for (int64_t i = hk_stand_cut(job->ops, job->n, s); i < end; i++) {
      const bool last = i + 1 == end;
      HK_TRY(ops->record(lane->stream, last ? lane->begins[s] : lane->passing, err));
      HK_TRY(hk_stand_queue(job, job->first + i, err));
      HK_TRY(ops->record(lane->stream, last ? lane->marks[s + 1] : lane->passing, err));
    }
  }
  return hk_stand_await(job->stand, lane, err);
}

static hk_status read_times(hk_stand_job *job, hk_stand_lane *lane, hk_error *err) {
  const hk_backend_ops *ops = job->stand->ops;
  const double work = hk_stand_work(job->stand, job->load);
  hk_ns begin = 0;
  HK_TRY(ops->event_time(lane->marks[0], &begin, err));
  for (size_t s = 0; s < job->n; s++) {
    hk_ns end = 0;
    HK_TRY(ops->event_time(lane->marks[s + 1], &end, err));
    const int64_t ops_done =
        hk_stand_cut(job->ops, job->n, s + 1) - hk_stand_cut(job->ops, job->n, s);
    job->stretches[s] = (hk_stretch){begin, end, work * (double)ops_done, 0};
    begin = end;
  }
  return HK_OK;
}

/* Rate of UPDATE, by the median time between an operation's two events, as in a timeline. The pause
 * between operations is excluded, because it also grows when events and kernels are delayed. */
static hk_status read_updates(hk_stand_job *job, const hk_stand_lane *lane, hk_error *err) {
  const hk_backend_ops *ops = job->stand->ops;
  double lasted[HK_STAND_STRETCHES];
  hk_summary summary;
  for (size_t s = 0; s < job->n; s++) {
    hk_ns begin = 0, end = 0;
    HK_TRY(ops->event_time(lane->begins[s], &begin, err));
    HK_TRY(ops->event_time(lane->marks[s + 1], &end, err));
    lasted[s] = (double)hk_max(end - begin, 1);
  }
  HK_TRY(hk_summarise(lasted, job->n, &summary, err));
  job->value = hk_stand_work(job->stand, job->load) / summary.median * 1e9;
  return HK_OK;
}

/* One operation of LAUNCH_LOOP: launches `chunk` kernels, then waits until the GPU has caught up. A
 * full queue would block the thread, and the rate would be the GPU's. Adds the time of the wait to
 * *waited. */
static hk_status launch_some(const hk_stand_job *job, const hk_stand_lane *lane, int64_t op,
                             hk_ns *waited, hk_error *err) {
  for (int64_t i = 0; i < job->load->chunk; i++) HK_TRY(hk_stand_queue(job, op, err));
  const hk_ns launched = hk_now();
  HK_TRY(hk_stand_await(job->stand, lane, err));
  *waited += hk_now() - launched;
  return HK_OK;
}

static hk_status run_loop(hk_stand_job *job, const hk_stand_lane *lane, hk_error *err) {
  const double work = hk_stand_work(job->stand, job->load);
  hk_ns begin = hk_now();
  for (size_t s = 0; s < job->n; s++) {
    const int64_t from = hk_stand_cut(job->ops, job->n, s);
    const int64_t to = hk_stand_cut(job->ops, job->n, s + 1);
    hk_ns waited = 0;
    for (int64_t i = from; i < to; i++) {
      HK_TRY(launch_some(job, lane, job->first + i, &waited, err));
    }
    const hk_ns end = hk_now();
    job->stretches[s] = (hk_stretch){begin, end, work * (double)(to - from), waited};
    begin = end;
  }
  return HK_OK;
}

static hk_status run_queue(hk_stand_job *job, hk_stand_lane *lane, hk_error *err) {
  HK_TRY(queue_all(job, lane, err));
  HK_TRY(read_times(job, lane, err));
  return job->load->kind == HK_LOAD_UPDATE ? read_updates(job, lane, err) : HK_OK;
}

void hk_stand_gpu_run(hk_stand_job *job) {
  hk_stand_lane *lane = hk_stand_lane_of(job->stand, job->load);
  const hk_status status = job->load->kind == HK_LOAD_LAUNCH_LOOP ? run_loop(job, lane, &job->err)
                                                                  : run_queue(job, lane, &job->err);
  /* What was queued before a failure must not run on into the next job. */
  if (status != HK_OK) (void)job->stand->ops->stream_sync(lane->stream, NULL);
}
