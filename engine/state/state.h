/* SPDX-License-Identifier: Apache-2.0 */
/* Where the state, and the gradients, of each parameter lie.
 *
 * The state of a subgroup is a list of slabs. A slab holds p, m and v of up to shape.numel
 * parameters of one piece of the subgroup. The new state of staged and mapped subgroups is written
 * to spare slabs; when all of it has arrived, they take the place of the old slabs, so that a
 * failure never leaves a subgroup with half of each. The old slabs are then the next subgroup's
 * spares. One lane's copies keep their order, so spares for the largest subgroup suffice. */
#ifndef HK_ENGINE_STATE_STATE_H
#define HK_ENGINE_STATE_STATE_H

#include "core/graph/plan.h"
#include "engine/device/backend.h"

/* One tensor of the model. Tensors follow each other in the rank's flat order. */
typedef struct {
  int64_t numel;
  int32_t group; /* index of its hyperparameters */
  int32_t block; /* number of its block of the model, in forward order */
  hk_grad_type weight_type, grad_type;
  void *weight; /* device memory for new weights; NULL: none yet, or a flat engine */
  uint64_t key; /* hash of its name, by which checkpoints find it; 0: it has no name */
} hk_param;

/* Consecutive gradients in memory: those of one piece of a subgroup on route cpu, in the host's
 * array of gradients, or those of a whole subgroup on another route, in the device's array. */
typedef struct {
  int64_t offset, n; /* first place, number of places */
  int32_t subgroup, piece;
  hk_bytes at, bytes; /* offset in its array, size */
  bool on_device;
  hk_bytes early_at; /* offset in the array of early weights of its piece's room there, which holds
                        the gradients until they are on the host; -1: none, or too little */
  int32_t segments_begin, segments_end; /* its segments are begin .. end - 1 */
} hk_grad_image;

/* The part of one tensor in one image. */
typedef struct {
  int64_t offset, n; /* first place, number of parameters */
  int32_t param, image;
  hk_bytes at; /* offset of its first gradient in the array of its image */
} hk_param_segment;

typedef struct {
  int64_t offset, numel; /* places */
  hk_route route;
  bool early;           /* its new weights go to device memory before the norm is known */
  int64_t early_at;     /* its first element in the array of early weights; see hk_state_early_at */
  bool ahead;           /* may be updated before the norm is known, from `home` to `other` */
  bool held_staged;     /* if nothing runs ahead, updated by the GPU, also from `home` to `other` */
  bool stealable;       /* the GPU may take its pieces from the CPU (hk_plan_stealable) */
  int64_t owners_at;    /* stealable: number of its first piece among those of all such subgroups */
  int64_t piece;        /* parameters per piece; resident: all of them, else hk_state.piece */
  int64_t first, slabs; /* first slab in hk_state.home, number of slabs */
  int64_t step;         /* number of the step whose state it holds; -1: lost */
  int64_t touched;   /* resident: last attempt at a step that has changed it, completely or not */
  int64_t host_at;   /* route cpu: its first element in the host's arrays of gradients and weights;
                        see hk_state_host_at */
  int64_t device_at; /* other routes: its first element in the device's array of gradients */
} hk_state_subgroup;

/* Spare slabs of one route. */
typedef struct {
  void **free; /* [n] ring: `count` slabs from `head` on are free */
  int64_t n, head, count;
} hk_spares;

typedef struct {
  hk_slab_shape shape;
  int64_t unit;  /* hk_format_unit: tensors begin, and subgroups, pieces and slabs are cut, at
                    multiples of it. Places are counted in flat order with gaps behind tensors whose
                    size is none. Offsets here and in the graph are places. */
  int64_t piece; /* parameters per piece, the unit of copies and updates; the last piece of a
                    subgroup may have fewer */
  int64_t apart; /* elements from one piece to the next in the host's arrays of gradients and
                    weights, and in that of early weights: `piece` rounded up, so that each piece
                    begins at a cache line */
  int64_t slabs_a_piece;
  hk_state_subgroup *subgroups;
  size_t n_subgroups;
  int64_t numel;                    /* number of places */
  int64_t early_numel;              /* length of the array of early weights (bf16) */
  int64_t host_numel, device_numel; /* elements of gradients: route cpu, other routes */
  int64_t host_slabs, device_slabs; /* number, spares included; resident: on the device */
  void **home;                      /* [slab] its address */
  void **next;                      /* [slab] where the step under way writes it */
  void **other;                     /* [slab] its spare if its subgroup runs ahead, else NULL */
  bool in_place; /* nothing runs ahead in this step: subgroups that are `ahead` are updated in
                    place, too, unless they are `held_staged` */
  hk_spares staged, mapped;
  hk_grad_image *images; /* in flat order */
  int32_t n_images;
  hk_param_segment *segments; /* in flat order */
  int32_t n_segments;
  hk_bytes host_grad_bytes, device_grad_bytes;
  hk_bytes staged_grad_bytes; /* of the largest image of a subgroup that is `held_staged` or
                                 `stealable` */
  int64_t n_stealable;        /* pieces of subgroups that are */
} hk_state;

/* Bytes of a staging buffer: the state of a piece and, if subgroups are `held_staged`, behind it
 * the gradients of one; likewise if they are `stealable`. */
static inline hk_bytes hk_state_staging_bytes(const hk_state *state) {
  return state->slabs_a_piece * state->shape.bytes + state->staged_grad_bytes;
}
/* Whether the GPU updates the subgroup in this step, with the gradients that are on the host. */
static inline bool hk_state_stages(const hk_state *state, const hk_state_subgroup *sub) {
  return sub->held_staged && state->in_place;
}
/* Where the new state of a subgroup on route cpu is written in this step: `home` or `other`. */
void *const *hk_state_written(const hk_state *state, const hk_state_subgroup *sub);

/* Lays out the plan's subgroups for these tensors, without allocating memory for state. HK_INPUT:
 * the tensors' elements do not add up to the plan's. Free with hk_state_free (safe on a zeroed
 * state). */
hk_status hk_state_layout(const hk_plan *plan, const hk_param *params, size_t n_params,
                          hk_state *state, hk_error *err);
/* The first place behind a tensor that ends at place `end`. */
static inline int64_t hk_state_after(const hk_state *state, int64_t end) {
  return (end + state->unit - 1) / state->unit * state->unit;
}
/* A copy of the plan whose subgroups and pieces are cut where the state's are. */
hk_status hk_state_places(const hk_plan *plan, const hk_state *state, hk_plan *places,
                          hk_error *err);
/* The error for tensors whose elements do not add up to the plan's; returns HK_INPUT. */
hk_status hk_state_fail_sizes(int64_t in_tensors, int64_t in_plan, hk_error *err);
/* Sets the address of every slab; `host` has room for host_slabs, `device` for device_slabs, of
 * shape.bytes each. */
void hk_state_place(hk_state *state, char *host, char *device);
void hk_state_free(hk_state *state);

/* Sets `next` for a step: where each subgroup's new state goes, in the plan's order of updates. */
void hk_state_relocate(const hk_plan *plan, hk_state *state);
/* The GPU takes a piece from the CPU, parameters offset .. offset + n - 1 of its subgroup: if it
 * would be written in place, `next` becomes spare memory, its own if its subgroup is `ahead`, else
 * that of route staged. Pieces must be taken in the order in which they are written back. */
void hk_state_take(hk_state *state, size_t s, int64_t offset, int64_t n);
/* The piece is not written back after all: `next` is `home` again. */
void hk_state_untake(hk_state *state, size_t s, int64_t offset, int64_t n);
/* All new state of subgroup s has arrived: `next` becomes `home`. */
void hk_state_commit(hk_state *state, size_t s, int64_t step);

/* Consecutive parameters inside one slab. */
typedef struct {
  int64_t slab; /* index into home and next */
  int64_t at;   /* first parameter, counted in the slab */
  int64_t n;
  int64_t offset; /* first parameter, counted in the subgroup */
} hk_slab_run;

/* The first run of parameters offset .. end - 1 of subgroup s; the next one begins at run.offset +
 * run.n. */
hk_slab_run hk_state_run(const hk_state *state, size_t s, int64_t offset, int64_t end);
/* Index of parameter `offset` of a subgroup on route cpu in the host's arrays of gradients and
 * weights; the rest of its piece follows it. */
static inline int64_t hk_state_host_at(const hk_state *state, const hk_state_subgroup *sub,
                                       int64_t offset) {
  return sub->host_at + offset / state->piece * state->apart + offset % state->piece;
}
/* The same for the array of early weights. */
static inline int64_t hk_state_early_at(const hk_state *state, const hk_state_subgroup *sub,
                                        int64_t offset) {
  return sub->early_at + offset / state->piece * state->apart + offset % state->piece;
}
/* The subgroup that contains parameter `offset` (flat order). O(log n). */
size_t hk_state_find(const hk_state *state, int64_t offset);
/* The segment that contains parameter `offset` (flat order). O(log n). */
int32_t hk_state_segment(const hk_state *state, int64_t offset);

/* The format of a plan's state. HK_FORMATS: the engine has none for its optimizer. */
hk_format hk_state_format(const hk_plan *plan);

/* One array of a slab. */
typedef struct {
  hk_bytes at, size; /* offset of the first element, bytes of an element */
  int64_t each;      /* parameters of an element */
} hk_slab_array;
#define HK_SLAB_ARRAYS 5

/* The arrays of a slab: p, with a split format the lower halves, m, v, with codes the windows.
 * Returns their number. */
int hk_slab_arrays(const hk_slab_shape *shape, hk_slab_array arrays[HK_SLAB_ARRAYS]);
/* Offset of parameter `at`, which begins an element; bytes of the elements of n parameters. */
static inline hk_bytes hk_slab_array_at(const hk_slab_array *array, int64_t at) {
  return array->at + at / array->each * array->size;
}
static inline hk_bytes hk_slab_array_bytes(const hk_slab_array *array, int64_t n) {
  return (n + array->each - 1) / array->each * array->size;
}

#endif
