/* SPDX-License-Identifier: Apache-2.0 */
/* Reading and writing an engine's state, wherever it lies, and its checksum. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "core/graph/bytes.h"
#include "engine/private.h"

/* Number of parameters that a thread of the team moves at a time. */
#define CHUNK ((int64_t)1 << 16)

static hk_status check_range(const hk_engine *e, int64_t offset, int64_t n, hk_error *err) {
  if (offset >= 0 && n >= 0 && n <= hk_engine_numel(e) - offset) return HK_OK;
  return hk_fail(
      err, HK_INPUT,
      "state of %lld parameters from parameter %lld on: the engine has %lld, counted from 0",
      (long long)n, (long long)offset, (long long)hk_engine_numel(e));
}

/* -- State in and out -------------------------------------------------------------------------- */

/* Consecutive parameters in one memory. */
typedef struct {
  char *data; /* of the part; split: of master weights the upper halves */
  int64_t n;
  bool on_device;
  hk_state_at at;
  int64_t
      first; /* number of the run's first parameter from `at` on: `at` begins a block of codes */
} state_run;

/* The first run at places at .. end - 1. */
static state_run run_at(const hk_engine *e, hk_state_part part, int64_t at, int64_t end) {
  const size_t s = hk_state_find(&e->state, at);
  const hk_state_subgroup *sub = &e->state.subgroups[s];
  const hk_slab_run run =
      hk_state_run(&e->state, s, at - sub->offset, hk_min(end - sub->offset, sub->numel));
  const int64_t first = run.at % e->state.unit;
  const hk_state_at a = hk_slab_at(&e->state.shape, e->state.home[run.slab], run.at - first);
  char *data = part == HK_STATE_P ? a.p : part == HK_STATE_M ? a.m : a.v;
  return (state_run){data, run.n, sub->route == HK_ROUTE_RESIDENT, a, first};
}

/* Whether state lies in memory as values are given and taken: fp32. */
static bool is_plain(const hk_engine *e) {
  return e->state.shape.format == HK_FORMAT_FP32;
}

/* A transfer of places begin .. end - 1 of one part, between the engine and other memory. */
typedef struct {
  hk_engine *e;
  hk_state_part part;
  int64_t begin, end;
  char *outside;
  bool in; /* true: into the engine */
} transfer;

/* Fails if some of the state was lost with the device. */
static hk_status check_there(const transfer *t, hk_error *err) {
  if (t->in || t->begin == t->end) return HK_OK;
  for (size_t s = hk_state_find(&t->e->state, t->begin); s < t->e->state.n_subgroups; s++) {
    const hk_state_subgroup *sub = &t->e->state.subgroups[s];
    if (sub->offset >= t->end) break;
    if (sub->step >= 0) continue;
    return hk_fail(err, HK_ENVIRONMENT,
                   "the state of parameters %lld to %lld was lost: make a new engine and load a "
                   "checkpoint",
                   (long long)sub->offset, (long long)(sub->offset + sub->numel - 1));
  }
  return HK_OK;
}

/* Reads or writes one run of values in host memory. */
static void move_run(const transfer *t, const state_run *run, hk_state_at at, char *outside) {
  const hk_format format = t->e->state.shape.format;
  if (is_plain(t->e)) {
    memcpy(t->in ? run->data : outside, t->in ? outside : run->data, 4 * (size_t)run->n);
  } else if (t->in) {
    hk_format_write(format, (int)t->part, run->first, run->n, at,
                    (const float *)(const void *)outside);
  } else {
    hk_format_read(format, (int)t->part, run->first, run->n, at, (float *)(void *)outside);
  }
}

/* Copies all arrays of a run from the device to `buffer`, or back, and waits. *at: their addresses
 * in `buffer`. */
static hk_status copy_arrays(hk_engine *e, const state_run *run, char *buffer, bool back,
                             hk_state_at *at, hk_error *err) {
  const hk_format format = e->state.shape.format;
  const int64_t n = hk_state_after(&e->state, run->first + run->n);
  char *const device[HK_SLAB_ARRAYS] = {run->at.p, run->at.low, run->at.m, run->at.v,
                                        run->at.windows};
  const hk_bytes bytes[HK_SLAB_ARRAYS] = {hk_format_size(format, 0) * n, 2 * n,
                                          hk_format_size(format, 1) * n,
                                          hk_format_size(format, 2) * n, 2 * n / HK_CODE_BLOCK};
  char *host[HK_SLAB_ARRAYS] = {NULL};
  for (int a = 0; a < HK_SLAB_ARRAYS; a++) {
    if (device[a] == NULL) continue;
    host[a] = buffer;
    buffer += bytes[a];
    HK_TRY(e->backend->ops->copy(e->stream, back ? device[a] : host[a], back ? host[a] : device[a],
                                 bytes[a], err));
  }
  *at = (hk_state_at){host[0], host[1], host[2], host[3], host[4]};
  return e->backend->ops->stream_sync(e->stream, err);
}

/* Converts the part of the transfer that lies on the device, run by run. */
static hk_status convert_device_runs(const transfer *t, hk_error *err) {
  char *buffer = NULL;
  hk_status status = HK_OK;
  for (int64_t at = t->begin; at < t->end && status == HK_OK;) {
    const state_run run = run_at(t->e, t->part, at, t->end);
    char *outside = t->outside + 4 * (at - t->begin);
    at += run.n;
    if (!run.on_device) continue;
    const size_t bytes = HK_BYTES_STATE * (size_t)t->e->state.shape.numel;
    if (buffer == NULL && (buffer = malloc(bytes)) == NULL)
      return hk_fail_memory(err, bytes, "state on its way from the device");
    hk_state_at there = {0};
    status = copy_arrays(t->e, &run, buffer, false, &there, err);
    if (status == HK_OK) move_run(t, &run, there, outside);
    if (status == HK_OK && t->in) status = copy_arrays(t->e, &run, buffer, true, &there, err);
  }
  free(buffer);
  return status;
}

/* Queues copies for the part of the transfer that lies on the device. */
static hk_status queue_device_runs(const transfer *t, bool *any, hk_error *err) {
  if (!is_plain(t->e)) return convert_device_runs(t, err);
  for (int64_t at = t->begin; at < t->end;) {
    const state_run run = run_at(t->e, t->part, at, t->end);
    char *outside = t->outside + 4 * (at - t->begin);
    at += run.n;
    if (!run.on_device) continue;
    *any = true;
    HK_TRY(t->e->backend->ops->copy(t->e->stream, t->in ? run.data : outside,
                                    t->in ? outside : run.data, 4 * run.n, err));
  }
  return HK_OK;
}

/* The first place of a thread's first chunk: no two threads write to one block of codes. */
static int64_t chunks_begin(const transfer *t) {
  return t->begin / t->e->state.unit * t->e->state.unit;
}

static void move_host_runs(void *arg, int64_t c, int thread) {
  (void)thread;
  const transfer *t = arg;
  const int64_t begin = chunks_begin(t) + c * CHUNK, end = hk_min(begin + CHUNK, t->end);
  for (int64_t at = hk_max(begin, t->begin); at < end;) {
    const state_run run = run_at(t->e, t->part, at, end);
    char *outside = t->outside + 4 * (at - t->begin);
    at += run.n;
    if (run.on_device) continue;
    move_run(t, &run, run.at, outside);
  }
}

/* Transfers what lies on the device and, with `host`, what lies in host memory at the same time. If
 * nothing lies on the device, the device is not used, so that after its failure the host's state
 * can still be read. */
static hk_status carry_out(transfer *t, bool host, hk_error *err) {
  HK_TRY(check_there(t, err));
  bool any = false;
  const hk_status queued = queue_device_runs(t, &any, err);
  if (queued == HK_OK && host) {
    hk_team_run(t->e->team, (t->end - chunks_begin(t) + CHUNK - 1) / CHUNK, move_host_runs, t);
  }
  if (!any) return HK_OK;
  hk_error late = {0};
  const hk_status done = t->e->backend->ops->stream_sync(t->e->stream, &late);
  if (queued != HK_OK || done == HK_OK) return queued;
  *err = late;
  return done;
}

hk_status hk_engine_check_values(const hk_engine *e, hk_state_part part, int64_t offset, int64_t n,
                                 const float *data, hk_error *err) {
  if (part != HK_STATE_V || hk_format_takes_sign(e->state.shape.format)) return HK_OK;
  const int64_t bad = hk_format_first_signed(n, data);
  if (bad == n) return HK_OK;
  return hk_fail(
      err, HK_INPUT,
      "v of parameter %lld is %g: state '%s' takes no variance that is negative or -0; "
      "state '%s' does",
      (long long)(offset + bad), (double)data[bad], hk_optimizer_names[e->plan.optimizer],
      hk_format_is_short(e->state.shape.format) || hk_format_is_coded(e->state.shape.format)
          ? "bf16"
          : "fp32");
}

void hk_engine_lose_state(hk_engine *e, int64_t offset, int64_t n) {
  e->failed = true;
  for (size_t s = hk_state_find(&e->state, offset); s < e->state.n_subgroups; s++) {
    if (e->state.subgroups[s].offset >= offset + n) break;
    e->state.subgroups[s].step = -1;
  }
}

/* The place of parameter `at` (flat order); returns the number of those up to `end` that follow
 * each other there. */
static int64_t places_at(const hk_engine *e, int64_t at, int64_t end, int64_t *place) {
  *place = at;
  if (e->state.numel == hk_engine_numel(e)) return end - at;
  size_t low = 0, high = e->n_params; /* the first tensor that ends behind it is low .. high - 1 */
  while (high - low > 1) {
    const size_t middle = low + (high - low) / 2;
    if (e->flat_end[middle - 1] <= at) {
      low = middle;
    } else {
      high = middle;
    }
  }
  *place = e->param_end[low] - (e->flat_end[low] - at);
  return hk_min(end, e->flat_end[low]) - at;
}

/* Between the engine and `data`, which is not changed if it goes in. */
static hk_status move_all(hk_engine *e, hk_state_part part, int64_t offset, int64_t n, char *data,
                          bool in, hk_error *err) {
  for (int64_t at = offset, here; at < offset + n; at += here) {
    int64_t place = 0;
    here = places_at(e, at, offset + n, &place);
    transfer t = {e, part, place, place + here, data + 4 * (at - offset), in};
    const hk_status status = carry_out(&t, true, err);
    if (status == HK_OK) continue;
    if (in) hk_engine_lose_state(e, place, here);
    return status;
  }
  return HK_OK;
}

hk_status hk_engine_clear_codes(hk_engine *e, hk_error *err) {
  const hk_slab_shape *shape = &e->state.shape;
  if (!hk_format_is_coded(shape->format)) return HK_OK;
  for (size_t s = 0; s < e->state.n_subgroups; s++) {
    const hk_state_subgroup *sub = &e->state.subgroups[s];
    for (int64_t k = sub->first; k < sub->first + sub->slabs; k++) {
      char *const m = (char *)e->state.home[k] + shape->m;
      const hk_bytes bytes = shape->bytes - shape->m;
      if (sub->route == HK_ROUTE_RESIDENT) {
        HK_TRY(e->backend->ops->zero(e->stream, m, bytes, err));
      } else {
        memset(m, 0, (size_t)bytes);
      }
    }
  }
  return e->backend->ops->stream_sync(e->stream, err);
}

hk_status hk_engine_write(hk_engine *e, hk_state_part part, int64_t offset, int64_t n,
                          const float *data, hk_error *err) {
  HK_TRY(hk_engine_refuse_failed(e, err));
  HK_TRY(check_range(e, offset, n, err));
  HK_TRY(hk_training_quiet(e, err));
  HK_TRY(hk_engine_check_values(e, part, offset, n, data, err));
  return move_all(e, part, offset, n, (char *)data, true, err);
}

hk_status hk_engine_read(hk_engine *e, hk_state_part part, int64_t offset, int64_t n, float *data,
                         hk_error *err) {
  HK_TRY(check_range(e, offset, n, err));
  HK_TRY(hk_training_quiet(e, err));
  return move_all(e, part, offset, n, (char *)data, false, err);
}

hk_status hk_engine_set_step(hk_engine *e, int64_t step, hk_error *err) {
  HK_TRY(hk_engine_refuse_failed(e, err));
  if (step < 0) return hk_fail(err, HK_INPUT, "steps count from 0, got %lld", (long long)step);
  e->step = step;
  for (size_t p = 0; p < e->n_params; p++) e->param_step[p] = step;
  for (size_t s = 0; s < e->state.n_subgroups; s++) e->state.subgroups[s].step = step;
  return HK_OK;
}

/* -- Checksum ---------------------------------------------------------------------------------- */

/* The checksum is the hash of the hashes of blocks, part after part. A block does not depend on the
 * plan, and a team can hash several in parallel. Each tensor is cut by itself, and the hashes are
 * in the order of the tensors' keys if all tensors have keys that occur once, else in flat order.
 */
#define BLOCK ((int64_t)1 << 17)
/* Most parameters of a part that are copied from the device at a time. */
#define SPAN (64 * BLOCK)

typedef struct {
  int64_t begin, end;
  size_t place; /* of its hash among those of a part */
} hash_block;

typedef struct {
  transfer span;            /* `outside` holds what was copied from the device, or converted */
  const hash_block *blocks; /* of the span */
  XXH128_hash_t *hashes;    /* of the part */
  XXH3_state_t **states;    /* [team threads] */
} hashing;

/* fp32 in host memory is hashed in place. */
static void hash_one(void *arg, int64_t b, int thread) {
  const hashing *h = arg;
  const transfer *t = &h->span;
  const hash_block *block = &h->blocks[b];
  XXH3_128bits_reset(h->states[thread]);
  for (int64_t at = block->begin; at < block->end;) {
    const state_run run = run_at(t->e, t->part, at, block->end);
    const char *fetched = t->outside + 4 * (at - t->begin);
    const bool here = !run.on_device && is_plain(t->e);
    XXH3_128bits_update(h->states[thread], here ? run.data : fetched, 4 * (size_t)run.n);
    at += run.n;
  }
  h->hashes[block->place] = XXH3_128bits_digest(h->states[thread]);
}

/* Number of the first block that does not fit into a span that begins with block `first`. */
static size_t span_end(const hash_block *blocks, size_t n, size_t first) {
  size_t end = first + 1;
  while (end < n && blocks[end].end - blocks[first].begin <= SPAN) end++;
  return end;
}

static hk_status hash_parts(hashing *h, const hash_block *blocks, size_t n, hk_error *err) {
  hk_engine *e = h->span.e;
  for (int part = HK_STATE_P; part <= HK_STATE_V; part++) {
    h->span.part = (hk_state_part)part;
    for (size_t first = 0, end; first < n; first = end) {
      end = span_end(blocks, n, first);
      h->blocks = blocks + first;
      h->span.begin = blocks[first].begin;
      h->span.end = blocks[end - 1].end;
      HK_TRY(carry_out(&h->span, !is_plain(e), err));
      hk_team_run(e->team, (int64_t)(end - first), hash_one, h);
    }
    h->hashes += n;
  }
  return HK_OK;
}

/* -- Blocks of a checksum ---------------------------------------------------------------------- */

typedef struct {
  uint64_t key;
  size_t param;
} keyed_param;

static int by_key(const void *a, const void *b) {
  const keyed_param *one = a, *other = b;
  if (one->key != other->key) return one->key < other->key ? -1 : 1;
  return one->param < other->param ? -1 : one->param > other->param;
}

/* Number of blocks of the parameters begin .. end - 1. */
static size_t count_blocks(int64_t begin, int64_t end) {
  return (size_t)((end - begin + BLOCK - 1) / BLOCK);
}

static int64_t tensor_begin(const hk_engine *e, size_t param) {
  return e->param_end[param] - e->params[param].numel;
}

/* Sets the place of each tensor's first block. */
static hk_status order_tensors(const hk_engine *e, size_t *places, hk_error *err) {
  const size_t n = e->n_params;
  keyed_param *list = calloc(n, sizeof *list);
  if (list == NULL) return hk_fail_memory(err, n * sizeof *list, "tensors' keys");
  for (size_t p = 0; p < n; p++) list[p] = (keyed_param){e->params[p].key, p};
  qsort(list, n, sizeof *list, by_key);
  bool distinct = list[0].key != 0;
  for (size_t i = 1; i < n; i++) distinct = distinct && list[i].key != list[i - 1].key;
  size_t place = 0;
  for (size_t i = 0; i < n; i++) {
    const size_t p = distinct ? list[i].param : i;
    places[p] = place;
    place += count_blocks(tensor_begin(e, p), e->param_end[p]);
  }
  free(list);
  return HK_OK;
}

static size_t cut(hash_block *out, int64_t begin, int64_t end, size_t place) {
  const size_t n = count_blocks(begin, end);
  for (size_t i = 0; i < n; i++) {
    const int64_t at = begin + (int64_t)i * BLOCK;
    out[i] = (hash_block){at, hk_min(at + BLOCK, end), place + i};
  }
  return n;
}

/* The blocks of one part, in flat order. The caller frees them. */
static hk_status list_blocks(const hk_engine *e, hash_block **out, size_t *n, hk_error *err) {
  const size_t tensors = e->n_params;
  const size_t most = count_blocks(0, e->state.numel) + tensors;
  hash_block *blocks = calloc(most, sizeof *blocks);
  size_t *places = calloc(tensors, sizeof *places);
  hk_status status = blocks != NULL && places != NULL
                         ? HK_OK
                         : hk_fail_memory(err, most * sizeof *blocks, "a checksum's blocks");
  if (status == HK_OK) status = order_tensors(e, places, err);
  *n = 0;
  for (size_t p = 0; p < tensors && status == HK_OK; p++) {
    *n += cut(blocks + *n, tensor_begin(e, p), e->param_end[p], places[p]);
  }
  free(places);
  if (status != HK_OK) free(blocks);
  *out = status == HK_OK ? blocks : NULL;
  return status;
}

/* -- The checksum of all blocks ---------------------------------------------------------------- */

static void free_states(XXH3_state_t **states, int n) {
  for (int i = 0; states != NULL && i < n; i++) XXH3_freeState(states[i]);
  free(states);
}

static XXH3_state_t **new_states(int n) {
  XXH3_state_t **states = calloc((size_t)n, sizeof(XXH3_state_t *));
  if (states == NULL) return NULL;
  for (int i = 0; i < n; i++) {
    if ((states[i] = XXH3_createState()) != NULL) continue;
    free_states(states, i);
    return NULL;
  }
  return states;
}

/* Uses a pinned buffer, because copies from a GPU to pageable memory take several times as long. */
static hk_status hash_state(hashing *h, const hash_block *blocks, size_t n, hk_error *err) {
  hk_engine *e = h->span.e;
  hk_arena buffer;
  HK_TRY(hk_arena_open(4 * hk_min(SPAN, e->state.numel), e->team, e->info.pci, &buffer, err));
  h->span.outside = buffer.base;
  hk_status status = hk_arena_register(&buffer, e->backend, err);
  if (status == HK_OK) status = hash_parts(h, blocks, n, err);
  hk_arena_close(&buffer);
  return status;
}

hk_status hk_engine_checksum(hk_engine *e, char hex[33], hk_error *err) {
  hash_block *blocks = NULL;
  size_t n = 0;
  HK_TRY(hk_training_quiet(e, err));
  HK_TRY(list_blocks(e, &blocks, &n, err));
  const size_t bytes = 3 * n * sizeof(XXH128_hash_t);
  const int threads = hk_team_threads(e->team);
  XXH128_hash_t *hashes = malloc(bytes);
  hashing h = {.span = {.e = e}, .hashes = hashes, .states = new_states(threads)};
  hk_status status = hashes != NULL && h.states != NULL ? hash_state(&h, blocks, n, err)
                                                        : hk_fail_memory(err, bytes, "a checksum");
  if (status == HK_OK) {
    XXH128_canonical_t canonical;
    XXH128_canonicalFromHash(&canonical, XXH3_128bits(hashes, bytes));
    for (int i = 0; i < 16; i++) snprintf(hex + 2 * i, 3, "%02x", canonical.digest[i]);
  }
  free_states(h.states, threads);
  free(hashes);
  free(blocks);
  return status;
}
