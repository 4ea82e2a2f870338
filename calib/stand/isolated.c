/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Loads that run in isolation, without another load. They time a call, without the work around it
 * (mapping, unmapping), or the interval between two events of the GPU. */
#include <stdlib.h>
#include <string.h>

#include "calib/probes/statistics.h"
#include "calib/stand/private.h"

/* Value of a job: the median of its operations' values. */
static hk_status run_each(hk_stand_job *job,
                          hk_status (*each)(const hk_stand_job *, double *, hk_error *),
                          hk_error *err) {
  double *values = calloc((size_t)job->ops, sizeof *values);
  if (values == NULL) {
    return hk_fail_memory(err, (size_t)job->ops * sizeof *values, "the times of operations");
  }
  hk_status status = HK_OK;
  for (int64_t i = 0; i < job->ops && status == HK_OK; i++) status = each(job, &values[i], err);
  hk_summary summary = {0};
  if (status == HK_OK) status = hk_summarise(values, (size_t)job->ops, &summary, err);
  job->value = summary.median;
  free(values);
  return status;
}

/* The same for operations that read the GPU's clock, which is aligned first. */
static hk_status run_timed(hk_stand_job *job,
                           hk_status (*each)(const hk_stand_job *, double *, hk_error *),
                           hk_error *err) {
  hk_ns unused;
  HK_TRY(job->stand->ops->clock_align(job->stand->gpu[job->load->gpu].backend, &unused, err));
  return run_each(job, each, err);
}

/* ---- Hops between queues --------------------------------------------------------------------- */

/* A hop leads from the end of an operation to the start of one on another lane that waits for it.
 * The order is H2D copy, kernel, D2H copy, H2D copy and so on, as state passes through a staging
 * buffer. */
#define HOPS 24

static const hk_stand_lane *hop_lane(const hk_stand_job *job, int i) {
  static const hk_stand_lane_kind order[] = {HK_STAND_LANE_IN, HK_STAND_LANE_WORK,
                                             HK_STAND_LANE_OUT};
  return &job->stand->gpu[job->load->gpu].lanes[order[i % 3]];
}

/* Operation i's start and end. */
static hk_event *const *hop_marks(const hk_stand_job *job, int i) {
  return &hop_lane(job, i)->marks[i / 3 * 2];
}

static hk_status queue_hop(const hk_stand_job *job, int i, hk_error *err) {
  const hk_stand *stand = job->stand;
  const hk_stand_gpu *gpu = &stand->gpu[job->load->gpu];
  hk_stream *stream = hop_lane(job, i)->stream;
  switch (i % 3) {
    case 0:
      return stand->ops->copy(stream, gpu->in, stand->in, job->load->chunk, err);
    case 1:
      return hk_stand_queue(job, i, err);
    default:
      return stand->ops->copy(stream, stand->out, gpu->out, job->load->chunk, err);
  }
}

/* Queues all operations ahead, as the engine does. Each waits for the one before and lies between
 * two events of its own. */
static hk_status queue_hops(const hk_stand_job *job, hk_error *err) {
  const hk_backend_ops *ops = job->stand->ops;
  for (int i = 0; i <= HOPS; i++) {
    hk_stream *stream = hop_lane(job, i)->stream;
    if (i > 0) HK_TRY(ops->wait(stream, hop_marks(job, i - 1)[1], err));
    HK_TRY(ops->record(stream, hop_marks(job, i)[0], err));
    HK_TRY(queue_hop(job, i, err));
    HK_TRY(ops->record(stream, hop_marks(job, i)[1], err));
  }
  return hk_stand_await(job->stand, hop_lane(job, HOPS), err);
}

/* Median time of a hop. Each counts as 1 ns at least, because the clock is discrete. */
static hk_status read_hops(const hk_stand_job *job, double *hop, hk_error *err) {
  const hk_backend_ops *ops = job->stand->ops;
  double hops[HOPS];
  hk_summary summary;
  for (int i = 0; i < HOPS; i++) {
    hk_ns end = 0, start = 0;
    HK_TRY(ops->event_time(hop_marks(job, i)[1], &end, err));
    HK_TRY(ops->event_time(hop_marks(job, i + 1)[0], &start, err));
    hops[i] = (double)hk_max(start - end, 1);
  }
  HK_TRY(hk_summarise(hops, HOPS, &summary, err));
  *hop = summary.median;
  return HK_OK;
}

static hk_status go_round(const hk_stand_job *job, double *hop, hk_error *err) {
  hk_status status = queue_hops(job, err);
  if (status == HK_OK) status = read_hops(job, hop, err);
  if (status == HK_OK) return HK_OK;
  /* What was queued before a failure must not run on into the next job. */
  for (int i = 0; i < 3; i++) (void)job->stand->ops->stream_sync(hop_lane(job, i)->stream, NULL);
  return status;
}

/* ---- Copies at once -------------------------------------------------------------------------- */

/* Queues copies on streams of their own. All wait for one more copy, which runs while they are
 * queued, and so begin together. */
static hk_status queue_turns(const hk_stand_job *job, hk_stream *const *streams, hk_error *err) {
  const hk_backend_ops *ops = job->stand->ops;
  const hk_bytes bytes = job->load->chunk;
  const hk_stand_gpu *gpu = &job->stand->gpu[job->load->gpu];
  const hk_stand_lane *lane = &gpu->lanes[HK_STAND_LANE_IN];
  HK_TRY(ops->copy(lane->stream, gpu->in, job->stand->in, bytes, err));
  HK_TRY(ops->record(lane->stream, lane->marks[0], err));
  for (int i = 0; i < HK_STAND_TURNS; i++) {
    HK_TRY(ops->wait(streams[i], lane->marks[0], err));
    HK_TRY(ops->copy(streams[i], gpu->in + i * bytes, job->stand->in + i * bytes, bytes, err));
    HK_TRY(ops->record(streams[i], lane->marks[i + 1], err));
  }
  for (int i = 0; i < HK_STAND_TURNS; i++) HK_TRY(ops->stream_sync(streams[i], err));
  return HK_OK;
}

/* If k of n equal copies run at a time, the first ends after k / n of the total time:
 * k = n * t_first / t_last. Example: 4 copies, the first ends at 1 ms, the last at 4 ms: k = 1. */
static hk_status read_turns(const hk_stand_job *job, double *at_once, hk_error *err) {
  const hk_backend_ops *ops = job->stand->ops;
  hk_event *const *marks = job->stand->gpu[job->load->gpu].lanes[HK_STAND_LANE_IN].marks;
  hk_ns begin = 0, first = INT64_MAX, last = 0;
  HK_TRY(ops->event_time(marks[0], &begin, err));
  for (int i = 0; i < HK_STAND_TURNS; i++) {
    hk_ns end = 0;
    HK_TRY(ops->event_time(marks[i + 1], &end, err));
    if (end < first) first = end;
    if (end > last) last = end;
  }
  if (first <= begin)
    return hk_fail(err, HK_NO, "a copy of %lld bytes took no time", (long long)job->load->chunk);
  *at_once = HK_STAND_TURNS * (double)(first - begin) / (double)(last - begin);
  return HK_OK;
}

static hk_status take_turns(const hk_stand_job *job, double *at_once, hk_error *err) {
  const hk_backend_ops *ops = job->stand->ops;
  hk_backend *backend = job->stand->gpu[job->load->gpu].backend;
  hk_stream *streams[HK_STAND_TURNS] = {NULL};
  hk_status status = HK_OK;
  for (int i = 0; i < HK_STAND_TURNS && status == HK_OK; i++) {
    status = ops->stream_open(backend, false, &streams[i], err);
  }
  if (status == HK_OK) status = queue_turns(job, streams, err);
  if (status == HK_OK) status = read_turns(job, at_once, err);
  for (int i = 0; i < HK_STAND_TURNS; i++) {
    if (streams[i] != NULL) ops->stream_close(streams[i]);
  }
  return status;
}

/* ---- GPU memory ------------------------------------------------------------------------------ */

#define HALVINGS 14 /* the last step is a 16,384th of the memory */

/* Value: the stand's own memory + the GPU memory that is left. The latter is found by allocating
 * blocks of 1/2, 1/4, 1/8 ... of the total. Before each attempt less than twice the block is free,
 * so that one attempt for each size is enough. */
static hk_status run_memory(hk_stand_job *job, hk_error *err) {
  const hk_backend_ops *ops = job->stand->ops;
  const hk_stand_gpu *gpu = &job->stand->gpu[job->load->gpu];
  hk_device_info info;
  HK_TRY(ops->info(gpu->backend, &info, err));
  void *blocks[HALVINGS] = {NULL};
  hk_bytes sum = gpu->bytes;
  for (int i = 0; i < HALVINGS; i++) {
    const hk_bytes step = (info.memory >> (i + 1)) & ~(hk_bytes)511;
    if (step > 0 && ops->alloc(gpu->backend, step, &blocks[i], NULL) == HK_OK) sum += step;
  }
  for (int i = 0; i < HALVINGS; i++) {
    if (blocks[i] != NULL) ops->release(gpu->backend, blocks[i]);
  }
  job->value = (double)sum;
  return ops->info(gpu->backend, &info, err); /* fails if the device was lost */
}

/* ---- All kinds ------------------------------------------------------------------------------- */

void hk_stand_isolated_run(hk_stand_job *job) {
  switch (job->load->kind) {
    case HK_LOAD_HOP:
      job->err.status = run_timed(job, go_round, &job->err);
      break;
    case HK_LOAD_TURNS:
      job->err.status = run_timed(job, take_turns, &job->err);
      break;
    default:
      job->err.status = run_memory(job, &job->err);
  }
}
