/* SPDX-License-Identifier: Apache-2.0 */
/* The C ABI: implements hocket.h with engine.h. */
#include "engine/hocket.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "engine/abi_private.h"
#include "engine/engine.h"

struct hocket_engine {
  hk_engine *engine;
  pid_t owner;
};

int hk_abi_answer(hk_status status, const hk_error *err, char *message) {
  if (message != NULL) {
    snprintf(message, HOCKET_MESSAGE, "%s", status == HK_OK ? "" : err->message);
  }
  return (int)status;
}

/* Result of a wait that has timed out. */
static int answer_again(const char *what, char *message) {
  if (message != NULL) snprintf(message, HOCKET_MESSAGE, "%s", what);
  return HOCKET_AGAIN;
}

/* -- Who may call ------------------------------------------------------------------------------ */

/* The CUDA context, the threads and the pinned memory belong to the parent of a forked child. */
static hk_status check_owner(const hocket_engine *h, hk_error *err) {
  return hk_abi_check_owner(h != NULL ? &h->owner : NULL, "engine", err);
}

/* A call in progress: keeps the calling thread's current device, to be restored by leave. */
typedef struct {
  hocket_engine *h; /* NULL: enter has failed, nothing to restore */
  int device;
  bool alone; /* no other call on the engine runs meanwhile */
} scope;

/* For calls that wait beside others. */
static hk_status enter_beside(hocket_engine *h, scope *in, hk_error *err) {
  HK_TRY(check_owner(h, err));
  HK_TRY(hk_engine_guard(h->engine, &in->device, err));
  in->h = h;
  return HK_OK;
}

static hk_status enter(hocket_engine *h, scope *in, hk_error *err) {
  HK_TRY(enter_beside(h, in, err));
  hk_engine_lock(h->engine);
  in->alone = true;
  return HK_OK;
}

static int leave(const scope *in, hk_status status, const hk_error *err, char *message) {
  if (in->alone) hk_engine_unlock(in->h->engine);
  if (in->h != NULL) hk_engine_unguard(in->h->engine, in->device);
  return hk_abi_answer(status, err, message);
}

static hk_status check_tensor(const hocket_engine *h, size_t tensor, hk_error *err) {
  HK_TRY(check_owner(h, err));
  const size_t n = hk_engine_params(h->engine);
  if (tensor < n) return HK_OK;
  return hk_fail(err, HK_INPUT, "no tensor %zu: the engine has %zu, counted from 0", tensor, n);
}

/* -- Creating ---------------------------------------------------------------------------------- */

int hocket_create(const char *plan, const hocket_tensor *tensors, size_t n_tensors,
                  const hocket_group *groups, size_t n_groups, const hocket_options *options,
                  hocket_engine **engine, char *message) {
  static const hocket_options none = {0};
  hk_error err = {0};
  hk_status status = hk_abi_given(engine, "the place for the engine", &err);
  if (status != HK_OK) return hk_abi_answer(status, &err, message);
  *engine = NULL;
  hocket_engine *h = calloc(1, sizeof *h);
  if (h == NULL) return hk_abi_answer(hk_fail_memory(&err, sizeof *h, "an engine"), &err, message);
  h->owner = getpid();
  status = hk_abi_open(plan, tensors, n_tensors, groups, n_groups,
                       options != NULL ? options : &none, &h->engine, &err);
  if (status == HK_OK) {
    *engine = h;
  } else {
    free(h);
  }
  return hk_abi_answer(status, &err, message);
}

void hocket_destroy(hocket_engine *h) {
  if (h == NULL) return;
  if (h->owner == getpid()) hk_engine_destroy(h->engine);
  free(h);
}

const char *hocket_version(void) {
  return HK_VERSION;
}

int32_t hocket_abi(void) {
  return HOCKET_ABI;
}

/* -- Weights and masters ----------------------------------------------------------------------- */

int hocket_set_weight(hocket_engine *h, size_t tensor, void *weight, char *message) {
  hk_error err = {0};
  scope in = {0};
  hk_status status = enter(h, &in, &err);
  if (status == HK_OK) status = check_tensor(h, tensor, &err);
  if (status == HK_OK) status = hk_engine_set_weight(h->engine, tensor, weight, &err);
  return leave(&in, status, &err, message);
}

int hocket_masters(hocket_engine *h, int64_t tensor, void *stream, char *message) {
  hk_error err = {0};
  scope in = {0};
  hk_status status = enter(h, &in, &err);
  if (status == HK_OK) status = hk_engine_masters(h->engine, tensor, stream, &err);
  return leave(&in, status, &err, message);
}

int hocket_weights_from_masters(hocket_engine *h, int64_t tensor, void *stream, char *message) {
  hk_error err = {0};
  scope in = {0};
  hk_status status = enter(h, &in, &err);
  if (status == HK_OK) status = hk_engine_weights_from_masters(h->engine, tensor, stream, &err);
  return leave(&in, status, &err, message);
}

int hocket_wait_weights(hocket_engine *h, int32_t block, void *stream, int32_t timeout_ms,
                        char *message) {
  hk_error err = {0};
  scope in = {0};
  bool there = true;
  hk_status status = enter_beside(h, &in, &err);
  if (status == HK_OK) {
    status = hk_engine_wait_weights(h->engine, block, stream, timeout_ms, &there, &err);
  }
  const int code = leave(&in, status, &err, message);
  if (code != 0 || there) return code;
  return answer_again("these weights are not there yet: wait again", message);
}

int hocket_drain(hocket_engine *h, int32_t timeout_ms, char *message) {
  hk_error err = {0};
  scope in = {0};
  bool there = true;
  hk_status status = enter_beside(h, &in, &err);
  if (status == HK_OK) status = hk_engine_drain(h->engine, timeout_ms, &there, &err);
  const int code = leave(&in, status, &err, message);
  if (code != 0 || there) return code;
  return answer_again("the step is still under way: wait again", message);
}

static hk_status drain(hocket_engine *h, hk_error *err) {
  bool there = true;
  HK_TRY(check_owner(h, err));
  return hk_engine_drain(h->engine, -1, &there, err);
}

int64_t hocket_gpu_bytes(hocket_engine *h) {
  hk_error ignored = {0};
  return check_owner(h, &ignored) == HK_OK ? hk_engine_gpu_bytes(h->engine) : 0;
}

int hocket_release_gpu(hocket_engine *h, char *message) {
  hk_error err = {0};
  scope in = {0};
  hk_status status = enter(h, &in, &err);
  if (status == HK_OK) status = hk_engine_release_gpu(h->engine, &err);
  return leave(&in, status, &err, message);
}

/* -- Gradients --------------------------------------------------------------------------------- */

int hocket_gradients(hocket_engine *h, const hocket_gradient *list, size_t n, void *stream,
                     char *message) {
  _Static_assert(sizeof(hocket_gradient) == sizeof(hk_gradient), "one list");
  hk_error err = {0};
  scope in = {0};
  hk_status status = enter(h, &in, &err);
  if (status == HK_OK && n > 0) status = hk_abi_given(list, "the list of gradients", &err);
  if (status == HK_OK && n > 0) {
    status =
        hk_engine_gradients(h->engine, (const hk_gradient *)(const void *)list, n, stream, &err);
  }
  return leave(&in, status, &err, message);
}

int hocket_flush(hocket_engine *h, char *message) {
  hk_error err = {0};
  scope in = {0};
  hk_status status = enter(h, &in, &err);
  if (status == HK_OK) status = hk_engine_flush(h->engine, &err);
  return leave(&in, status, &err, message);
}

int hocket_discard(hocket_engine *h, int64_t tensor, char *message) {
  hk_error err = {0};
  scope in = {0};
  hk_status status = enter(h, &in, &err);
  if (status == HK_OK) status = hk_engine_discard(h->engine, tensor, &err);
  return leave(&in, status, &err, message);
}

int hocket_expect(hocket_engine *h, int32_t gradients, char *message) {
  hk_error err = {0};
  scope in = {0};
  hk_status status = enter(h, &in, &err);
  if (status == HK_OK) status = hk_engine_expect(h->engine, gradients, &err);
  return leave(&in, status, &err, message);
}

int hocket_scale(hocket_engine *h, double factor, char *message) {
  hk_error err = {0};
  scope in = {0};
  hk_status status = enter(h, &in, &err);
  if (status == HK_OK) status = hk_engine_scale(h->engine, factor, &err);
  return leave(&in, status, &err, message);
}

int hocket_sum_of_squares(hocket_engine *h, int64_t tensor, double *sum, int64_t *nonfinite,
                          char *message) {
  hk_error err = {0};
  scope in = {0};
  hk_squares squares = {0};
  hk_status status = enter(h, &in, &err);
  if (status == HK_OK) status = hk_engine_sum_of_squares(h->engine, tensor, &squares, &err);
  if (status == HK_OK && sum != NULL) *sum = hk_squares_value(&squares);
  if (status == HK_OK && nonfinite != NULL) *nonfinite = (int64_t)squares.nonfinite;
  return leave(&in, status, &err, message);
}

_Static_assert(HOCKET_SQUARES == HK_SQUARES_PIECES, "words of a sum");

int hocket_squares(hocket_engine *h, const uint8_t *counts, int64_t words[HOCKET_SQUARES],
                   char *message) {
  hk_error err = {0};
  scope in = {0};
  hk_squares squares = {0};
  hk_status status = enter(h, &in, &err);
  if (status == HK_OK) status = hk_abi_given(words, "the place for the words", &err);
  if (status == HK_OK) status = hk_engine_squares(h->engine, counts, &squares, &err);
  if (status == HK_OK) hk_squares_to_pieces(&squares, words);
  return leave(&in, status, &err, message);
}

int hocket_squares_value(const int64_t words[HOCKET_SQUARES], double *sum, int64_t *nonfinite,
                         char *message) {
  hk_error err = {0};
  hk_squares squares = {0};
  hk_status status = hk_abi_given(words, "the words", &err);
  if (status == HK_OK) status = hk_squares_from_pieces(words, &squares, &err);
  if (status == HK_OK && sum != NULL) *sum = hk_squares_value(&squares);
  if (status == HK_OK && nonfinite != NULL) *nonfinite = (int64_t)squares.nonfinite;
  return hk_abi_answer(status, &err, message);
}

int hocket_held(hocket_engine *h, uint8_t *held, char *message) {
  hk_error err = {0};
  scope in = {0};
  hk_status status = enter(h, &in, &err);
  if (status == HK_OK) status = hk_abi_given(held, "the place for the answer", &err);
  if (status == HK_OK) hk_engine_held(h->engine, held);
  return leave(&in, status, &err, message);
}

int hocket_read_gradient(hocket_engine *h, size_t tensor, void *data, char *message) {
  hk_error err = {0};
  scope in = {0};
  hk_status status = enter(h, &in, &err);
  if (status == HK_OK) status = check_tensor(h, tensor, &err);
  if (status == HK_OK) status = hk_abi_given(data, "the place for the gradient", &err);
  if (status == HK_OK) status = hk_engine_read_gradient(h->engine, tensor, data, &err);
  return leave(&in, status, &err, message);
}

/* -- Steps ------------------------------------------------------------------------------------- */

int hocket_step(hocket_engine *h, const hocket_step_options *options, hocket_step_info *info,
                void *stream, char *message) {
  hk_error err = {0};
  scope in = {0};
  hk_step_report report = {0};
  hk_step_options inner = {0};
  if (options != NULL) {
    inner = (hk_step_options){.max_norm = options->max_norm,
                              .loss_scale = options->loss_scale,
                              .sum_of_squares = options->sum_of_squares};
  }
  hk_status status = enter(h, &in, &err);
  if (status == HK_OK) status = hk_engine_step(h->engine, &inner, &report, stream, &err);
  if (status == HK_OK && options != NULL && options->wait) status = drain(h, &err);
  if (info != NULL && status == HK_OK) {
    *info = (hocket_step_info){.step = report.step,
                               .skipped = report.skipped,
                               .nonfinite = report.nonfinite,
                               .tensors = report.params,
                               .grad_norm = report.grad_norm,
                               .grad_scale = report.grad_scale,
                               .ahead = report.ahead};
  }
  return leave(&in, status, &err, message);
}

int hocket_set_group(hocket_engine *h, size_t group, const hocket_group *hyper, char *message) {
  hk_error err = {0};
  scope in = {0};
  hk_status status = enter(h, &in, &err);
  if (status == HK_OK) status = hk_abi_given(hyper, "the group", &err);
  if (status == HK_OK) {
    const hk_adamw inner = hk_abi_hyper(hyper);
    status = hk_engine_set_group(h->engine, group, &inner, &err);
  }
  return leave(&in, status, &err, message);
}

int64_t hocket_step_number(const hocket_engine *h) {
  if (h == NULL) return 0;
  hk_engine_lock(h->engine);
  const int64_t step = hk_engine_step_number(h->engine);
  hk_engine_unlock(h->engine);
  return step;
}

/* -- State ------------------------------------------------------------------------------------- */

/* Checks the arguments. *at: a tensor's element `offset` in flat order. */
static hk_status locate(hocket_engine *h, int part, size_t tensor, int64_t offset, int64_t n,
                        int64_t *at, hk_error *err) {
  HK_TRY(check_tensor(h, tensor, err));
  if (part < HOCKET_P || part > HOCKET_V) {
    return hk_fail(err, HK_INPUT,
                   "part %d of the state is not known: expected 0 (p), 1 (m) or 2 (v)", part);
  }
  int64_t begin = 0;
  const hk_param *p = hk_engine_param(h->engine, tensor, &begin);
  if (offset < 0 || n < 0 || n > p->numel - offset) {
    return hk_fail(err, HK_INPUT,
                   "tensor %zu: %lld elements from element %lld on are outside it: it has %lld, "
                   "counted from 0",
                   tensor, (long long)n, (long long)offset, (long long)p->numel);
  }
  *at = begin + offset;
  return HK_OK;
}

int hocket_write(hocket_engine *h, int part, size_t tensor, int64_t offset, int64_t n,
                 const float *data, char *message) {
  hk_error err = {0};
  scope in = {0};
  int64_t at = 0;
  hk_status status = enter(h, &in, &err);
  if (status == HK_OK) status = locate(h, part, tensor, offset, n, &at, &err);
  if (status == HK_OK && n > 0) status = hk_abi_given(data, "the state to write", &err);
  if (status == HK_OK) {
    status = hk_engine_write(h->engine, (hk_state_part)part, at, n, data, &err);
  }
  return leave(&in, status, &err, message);
}

int hocket_read(hocket_engine *h, int part, size_t tensor, int64_t offset, int64_t n, float *data,
                char *message) {
  hk_error err = {0};
  scope in = {0};
  int64_t at = 0;
  hk_status status = enter(h, &in, &err);
  if (status == HK_OK) status = locate(h, part, tensor, offset, n, &at, &err);
  if (status == HK_OK && n > 0) status = hk_abi_given(data, "the place for state", &err);
  if (status == HK_OK) {
    status = hk_engine_read(h->engine, (hk_state_part)part, at, n, data, &err);
  }
  return leave(&in, status, &err, message);
}

int hocket_get_tensor_step(hocket_engine *h, size_t tensor, int64_t *step, char *message) {
  hk_error err = {0};
  scope in = {0};
  hk_status status = enter(h, &in, &err);
  if (status == HK_OK) status = check_tensor(h, tensor, &err);
  if (status == HK_OK) status = hk_abi_given(step, "the place for the step", &err);
  if (status == HK_OK) status = hk_engine_get_tensor_step(h->engine, tensor, step, &err);
  return leave(&in, status, &err, message);
}

int hocket_set_tensor_step(hocket_engine *h, size_t tensor, int64_t step, char *message) {
  hk_error err = {0};
  scope in = {0};
  hk_status status = enter(h, &in, &err);
  if (status == HK_OK) status = check_tensor(h, tensor, &err);
  if (status == HK_OK) status = hk_engine_set_tensor_step(h->engine, tensor, step, &err);
  return leave(&in, status, &err, message);
}

int hocket_save(hocket_engine *h, const char *path, char *message) {
  hk_error err = {0};
  scope in = {0};
  hk_status status = enter(h, &in, &err);
  if (status == HK_OK) status = hk_abi_given(path, "the file's name", &err);
  if (status == HK_OK) status = hk_engine_save(h->engine, path, NULL, NULL, &err);
  return leave(&in, status, &err, message);
}

/* A hocket_snapshot is a hk_snapshot. */
int hocket_snapshot_take(hocket_engine *h, hocket_snapshot **snapshot, char *message) {
  hk_error err = {0};
  scope in = {0};
  hk_snapshot *taken = NULL;
  hk_status status = hk_abi_given(snapshot, "the place for the snapshot", &err);
  if (status != HK_OK) return hk_abi_answer(status, &err, message);
  *snapshot = NULL;
  status = enter(h, &in, &err);
  if (status == HK_OK) status = hk_engine_snapshot(h->engine, &taken, &err);
  *snapshot = (hocket_snapshot *)taken;
  return leave(&in, status, &err, message);
}

int hocket_snapshot_save(const hocket_snapshot *snapshot, const char *path, char *message) {
  hk_error err = {0};
  hk_status status = hk_abi_given(snapshot, "the snapshot", &err);
  if (status == HK_OK) status = hk_abi_given(path, "the file's name", &err);
  if (status == HK_OK) status = hk_snapshot_save((const hk_snapshot *)snapshot, path, &err);
  return hk_abi_answer(status, &err, message);
}

void hocket_snapshot_free(hocket_snapshot *snapshot) {
  hk_snapshot_free((hk_snapshot *)snapshot);
}

int hocket_load(hocket_engine *h, const char *path, char *message) {
  hk_error err = {0};
  scope in = {0};
  hk_status status = enter(h, &in, &err);
  if (status == HK_OK) status = hk_abi_given(path, "the file's name", &err);
  if (status == HK_OK) status = hk_engine_load(h->engine, path, NULL, NULL, &err);
  return leave(&in, status, &err, message);
}

int hocket_checksum(hocket_engine *h, char hex[33], char *message) {
  hk_error err = {0};
  scope in = {0};
  hk_status status = enter(h, &in, &err);
  if (status == HK_OK) status = hk_abi_given(hex, "the place for the checksum", &err);
  if (status == HK_OK) status = hk_engine_checksum(h->engine, hex, &err);
  return leave(&in, status, &err, message);
}

/* -- What happened ----------------------------------------------------------------------------- */

int hocket_report(hocket_engine *h, char **text, char *message) {
  hk_error err = {0};
  scope in = {0};
  hk_status status = hk_abi_given(text, "the place for the text", &err);
  if (status == HK_OK) *text = NULL;
  if (status == HK_OK) status = enter(h, &in, &err);
  if (status == HK_OK) status = hk_engine_report(h->engine, text, &err);
  return leave(&in, status, &err, message);
}

int hocket_record(hocket_engine *h, int32_t on, char *message) {
  hk_error err = {0};
  scope in = {0};
  hk_status status = enter(h, &in, &err);
  if (status == HK_OK) status = hk_engine_record(h->engine, on != 0, &err);
  return leave(&in, status, &err, message);
}

int hocket_mark(hocket_engine *h, int32_t kind, int32_t block, int32_t end, void *stream,
                char *message) {
  hk_error err = {0};
  scope in = {0};
  hk_status status = enter(h, &in, &err);
  if (status == HK_OK) {
    status = hk_engine_mark(h->engine, kind, block, end != 0, stream, &err);
  }
  return leave(&in, status, &err, message);
}

int hocket_timeline(hocket_engine *h, char **text, char *message) {
  hk_error err = {0};
  scope in = {0};
  hk_status status = hk_abi_given(text, "the place for the text", &err);
  if (status == HK_OK) *text = NULL;
  if (status == HK_OK) status = enter(h, &in, &err);
  if (status == HK_OK) status = hk_engine_timeline(h->engine, text, &err);
  return leave(&in, status, &err, message);
}

void hocket_free(char *text) {
  free(text);
}
