/* SPDX-License-Identifier: GPL-3.0-or-later */
/* The closed form of layer inputs in host memory. */
#include "sim/checkpoints.h"

#include <math.h>

#define STAY 2 /* layers whose inputs are on the GPU */

hk_bytes hk_checkpoints_moved(const hk_model *model, const hk_job *job) {
  hk_bytes moved = 0;
  if (!job->checkpoint_activations || job->pp > 1) return 0;
  for (int block = 0; block + STAY < (int)model->layers; block++)
    if (__builtin_add_overflow(moved, hk_job_activation_bytes(job, model, block), &moved)) return 0;
  return moved;
}

hk_machine hk_checkpoints_machine(const hk_machine *machine, const hk_job *job, hk_bytes moved) {
  hk_machine roomier = *machine;
  roomier.gpu_memory.value += (double)moved;
  roomier.host_memory.value =
      fmax(0, machine->host_memory.value - (double)moved * hk_job_ranks(job));
  return roomier;
}

static hk_ns at_least(hk_ns time, double bytes, double link, double fabric) {
  return hk_max(time, hk_ns_of(bytes / fmin(link, fabric)));
}

hk_checkpoints hk_checkpoints_of(const hk_forecast *f, const hk_machine *m) {
  const hk_job *job = &f->plan.job;
  hk_checkpoints c = {.moved = hk_checkpoints_moved(&f->plan.model, job)};
  const double bytes = (double)c.moved * job->grad_accum, ranks = hk_job_ranks(job);
  c.forward_ns = at_least(f->forward_ns, bytes, m->d2h.value, m->fabric_d2h.value / ranks);
  c.backward_ns = at_least(f->backward_ns, bytes, m->h2d.value, m->fabric_h2d.value / ranks);
  c.iteration_ns =
      f->iteration_ns + (c.forward_ns - f->forward_ns) + (c.backward_ns - f->backward_ns);
  return c;
}
