/* SPDX-License-Identifier: GPL-3.0-or-later */
/* GPU and host memory in use over an iteration, its peaks, and its values at the ends of phases. */
#include <stdio.h>

#include "sim/state.h"

static hk_status sample(hk_sim_state *s, int counter, hk_bytes value) {
  if (!s->options.counters) return HK_OK;
  return hk_counter_add(&s->result->timeline.counters[counter], s->now, (double)value, s->err);
}

static hk_status set_gpu(hk_sim_state *s, int32_t rank, hk_bytes value) {
  hk_memory_report *report = &s->result->memory;
  if (value < 0) {
    return hk_fail(s->err, HK_NO, "invariant broken: rank %d has %lld bytes of GPU memory in use",
                   (int)rank, (long long)value);
  }
  s->gpu_memory[rank] = value;
  if (value > report->peak) {
    report->peak = value;
    report->peak_phase = s->phase;
  }
  return sample(s, s->memory_counters[rank], value);
}

static hk_status add_counter(hk_sim_state *s, int index, const char *name, hk_bytes capacity) {
  s->memory_counters[index] =
      hk_timeline_counter(&s->result->timeline, name, "bytes", (double)capacity, s->err);
  return s->memory_counters[index] < 0 ? HK_ENVIRONMENT : HK_OK;
}

hk_status hk_memory_begin(hk_sim_state *s) {
  hk_memory_report *report = &s->result->memory;
  const hk_machine *m = s->machine;
  report->capacity = (hk_bytes)hk_gpu_capacity(m);
  report->host_capacity = (hk_bytes)hk_host_capacity(m);
  report->before_forward = report->after_forward = report->after_backward = s->graph->gpu_base;
  for (int rank = 0; rank < s->graph->ranks; rank++) {
    if (s->options.counters) {
      char name[32] = "gpu memory";
      if (s->graph->ranks > 1) snprintf(name, sizeof name, "rank%d gpu memory", rank);
      HK_TRY(add_counter(s, rank, name, report->capacity));
    }
    HK_TRY(set_gpu(s, rank, s->graph->gpu_base));
  }
  if (s->options.counters) {
    HK_TRY(add_counter(s, s->graph->ranks, "host memory", report->host_capacity));
  }
  report->host_peak = s->graph->host_base;
  return sample(s, s->memory_counters[s->graph->ranks], report->host_peak);
}

hk_status hk_memory_take(hk_sim_state *s, const hk_op *op) {
  hk_memory_report *report = &s->result->memory;
  if (op->kind == HK_OP_BARRIER) report->after_backward = s->gpu_memory[0];
  /* With several iterations: at the start of the last one. */
  if (s->graph->iterations > 1 && op->kind == HK_OP_LAUNCH && op->phase == HK_PHASE_FORWARD &&
      op->block == HK_BLOCK_EMBED && op->micro == 0 && op->rank == 0)
    report->before_forward = s->gpu_memory[0];
  if (op->gpu_alloc != 0) {
    HK_TRY(set_gpu(s, op->rank, s->gpu_memory[op->rank] + op->gpu_alloc));
  }
  if (s->gpu_memory[op->rank] > report->peak_of[op->phase])
    report->peak_of[op->phase] = s->gpu_memory[op->rank];
  return HK_OK;
}

hk_status hk_memory_give(hk_sim_state *s, const hk_op *op) {
  if (op->gpu_free != 0) HK_TRY(set_gpu(s, op->rank, s->gpu_memory[op->rank] - op->gpu_free));
  if (op->kind == HK_OP_FORWARD) s->result->memory.after_forward = s->gpu_memory[0];
  return HK_OK;
}

void hk_memory_end(hk_sim_state *s) {
  const hk_device_memory *device = &s->graph->device;
  hk_memory_report *report = &s->result->memory;
  report->after_update = s->gpu_memory[0];
  if (device->outside == 0) return;
  const hk_bytes after[HK_PHASE_COUNT] = {report->after_forward, report->after_backward,
                                          report->after_update};
  for (int phase = 0; phase < HK_PHASE_COUNT; phase++) {
    report->device_peak_of[phase] =
        device->outside + report->peak_of[phase] + device->at_peak[phase];
    report->device_after[phase] = device->outside + after[phase] + device->emptied[phase];
  }
}
