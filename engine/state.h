/* SPDX-License-Identifier: Apache-2.0 */
/* Where each parameter's state is. A subgroup's state is a list of slabs, each holding p, m and v
 * of up to shape.numel parameters; slabs never span two pieces of a subgroup. Write-backs (staged
 * and mapped subgroups) go to spare slabs, and a subgroup's list is exchanged once all of it has
 * arrived, so that a failure never leaves half a state. As copies of one lane keep their order,
 * spares for one subgroup (two where p, m and v have a lane each) are enough: what a subgroup left
 * is where the next one goes. */
#ifndef HK_ENGINE_STATE_H
#define HK_ENGINE_STATE_H

#include "core/plan.h"
#include "engine/backend.h"

/* One tensor of the model. Tensors follow each other in the rank's flat order. */
typedef struct {
  int64_t numel;
  int32_t group; /* of hyperparameters */
  int32_t block; /* of the model, in forward order */
  hk_grad_type weight_type, grad_type;
  void *weight; /* device memory for new weights; NULL: the engine's flat bf16 array has them */
  uint64_t key; /* hash of its name, by which checkpoints find it; 0: it has no name */
} hk_param;

/* Gradients that lie in a row: those of a piece of a subgroup with route cpu, in the host's
 * gradient array, or those of a whole subgroup with another route, in the device's. */
typedef struct {
  int64_t offset, n; /* flat */
  int32_t subgroup, piece;
  hk_bytes at, bytes; /* in its array */
  bool on_device;
  int32_t segments_begin, segments_end;
} hk_grad_image;

/* The part of one tensor in one image. */
typedef struct {
  int64_t offset, n; /* flat */
  int32_t param, image;
  hk_bytes at; /* of its first gradient, in the image's array */
} hk_param_segment;

typedef struct {
  int64_t offset, numel; /* in the rank's flat order */
  hk_route route;
  bool early;           /* its new weights wait in the device\'s memory for the norm, */
  int64_t early_at;     /* there from this element on */
  bool ahead;           /* updated from `home` to spares of its own, before the norm is known */
  int64_t piece;        /* parameters; resident: all of them, else hk_state.piece */
  int64_t first, slabs; /* of hk_state.home */
  int64_t step;         /* whose state it holds; -1: lost */
  int64_t touched;   /* resident: the last attempt at a step that changed it, to the end or not */
  int64_t host_at;   /* route cpu: first element in the host's gradient and weight arrays; see
                        hk_state_host_at */
  int64_t device_at; /* other routes: first element in the device's gradient array */
} hk_state_subgroup;

/* Slabs that write-backs of one route go round in. */
typedef struct {
  void **free; /* a queue: taken at the front, given back at the end */
  int64_t n, head, count;
} hk_spares;

typedef struct {
  hk_slab_shape shape;
  int64_t piece; /* parameters of what moves at a time; the last of a subgroup has the rest */
  int64_t apart; /* from one piece to the next in the host's gradient and weight arrays: each begins
                    at a whole cache line, however odd the piece */
  int64_t slabs_a_piece;
  hk_state_subgroup *subgroups;
  size_t n_subgroups;
  int64_t numel;                       /* of all */
  int64_t early_numel;                 /* of early weights, bf16 */
  int64_t host_numel, device_numel;    /* length of the gradient arrays: route cpu, the others */
  int64_t largest_cpu, largest_device; /* subgroup, parameters: route cpu, the others */
  int64_t host_slabs, device_slabs;    /* including spares; resident ones are on the device */
  void **home;                         /* [slab] where it is */
  void **next;                         /* [slab] where the step under way puts it */
  void **other;                        /* [slab] spare of a subgroup that runs ahead, else NULL */
  hk_spares staged, mapped;
  hk_grad_image *images; /* in flat order */
  int32_t n_images;
  hk_param_segment *segments; /* in flat order */
  int32_t n_segments;
  hk_bytes host_grad_bytes, device_grad_bytes;
} hk_state;

/* Lays out the plan's subgroups for these tensors, whose elements add up to the plan's; no memory
 * yet. Free with hk_state_free, safe on a zeroed state. */
hk_status hk_state_layout(const hk_plan *plan, const hk_param *params, size_t n_params,
                          hk_state *state, hk_error *err);
/* The error for tensors whose elements do not add up to the plan's; returns HK_INPUT. */
hk_status hk_state_fail_sizes(int64_t in_tensors, int64_t in_plan, hk_error *err);
/* Gives every slab its place: `host` has host_slabs, `device` device_slabs of shape.bytes. */
void hk_state_place(hk_state *state, char *host, char *device);
void hk_state_free(hk_state *state);

/* Chooses where each write-back of a step goes, in the plan's order. */
void hk_state_relocate(const hk_plan *plan, hk_state *state);
/* All of subgroup s has arrived. */
void hk_state_commit(hk_state *state, size_t s, int64_t step);

/* A run of parameters inside one slab. */
typedef struct {
  int64_t slab; /* index into home and next */
  int64_t at;   /* first parameter inside it */
  int64_t n;
  int64_t offset; /* of the first one inside the subgroup */
} hk_slab_run;

/* The first run of parameters offset .. end - 1 of subgroup s; the next begins at run.offset +
 * run.n. */
hk_slab_run hk_state_run(const hk_state *state, size_t s, int64_t offset, int64_t end);
/* Where parameter `offset` of a subgroup with route cpu lies in the host's gradient and weight
 * arrays; those up to the end of its piece follow it. */
static inline int64_t hk_state_host_at(const hk_state *state, const hk_state_subgroup *sub,
                                       int64_t offset) {
  return sub->host_at + offset / state->piece * state->apart + offset % state->piece;
}
/* The subgroup that flat parameter `offset` is in. */
size_t hk_state_find(const hk_state *state, int64_t offset);
/* The segment that flat parameter `offset` is in. */
int32_t hk_state_segment(const hk_state *state, int64_t offset);

static inline float *hk_slab_part(const hk_slab_shape *shape, void *slab, int part, int64_t at) {
  const hk_bytes offset = part == 0 ? 0 : part == 1 ? shape->m : shape->v;
  return (float *)((char *)slab + offset) + at;
}

#endif
