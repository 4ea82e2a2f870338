/* SPDX-License-Identifier: Apache-2.0 */
/* Training with hocket.h and nothing else.
 *
 *   hocket simulate --model llama-2-7b --machine h200-16c --policy streamed -o plan.json
 *   train_step plan.json 6738415616 20
 *
 * The arguments are a plan, the model's parameters on this rank, and how many steps to take. The
 * "model" is least squares: parameter i has a target t[i], the loss is the mean of
 * (w[i] - t[i])^2 / 2, so that the gradient, w[i] - t[i], is known without a framework. Forward and
 * backward use the bf16 weights that the engine keeps, as real training does; master weights,
 * momentum and variance live wherever the plan says and never pass through this program. */
#include <errno.h>
#include <hocket.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* -- bf16 is the upper half of a float --------------------------------------------------------- */

static float from_bf16(uint16_t bits) {
  const uint32_t wide = (uint32_t)bits << 16;
  float value;
  memcpy(&value, &wide, sizeof value);
  return value;
}

/* To the nearest, ties to even; no value here is infinite or not a number. */
static uint16_t to_bf16(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

/* -- The model --------------------------------------------------------------------------------- */

/* Between -1 and 1, another for every parameter. */
static float target(int64_t i) {
  const uint32_t z = (uint32_t)i * 2654435761u;
  return (float)(z >> 8) / (float)(1 << 23) - 1;
}

/* Forward and backward: gradients of all parameters at these weights. Returns the loss. */
static double backward(int64_t n, const uint16_t *weights, uint16_t *gradients) {
  double sum = 0;
  for (int64_t i = 0; i < n; i++) {
    const float error = from_bf16(weights[i]) - target(i);
    gradients[i] = to_bf16(error);
    sum += (double)error * (double)error / 2;
  }
  return sum / (double)n;
}

/* -- Training ---------------------------------------------------------------------------------- */

/* All of these return what the failing call returned, or 0; `message` then says why. */

static int take_step(hocket_engine *engine, uint16_t *weights, uint16_t *gradients, char *message) {
  const int64_t n = hocket_numel(engine);
  int status = hocket_read(engine, HOCKET_W, 0, n, weights, message);
  if (status != 0) return status;
  const double loss = backward(n, weights, gradients);

  /* A backward pass has the last layers' gradients first: in any order, each once. With gradients
   * in device memory, on_device is 1 and nothing passes through the host that need not. */
  const int64_t middle = n / 2;
  status = hocket_gradients(engine, middle, n - middle, gradients + middle, 0, message);
  if (status == 0) status = hocket_gradients(engine, 0, middle, gradients, 0, message);
  hocket_step_info info = {0};
  if (status == 0) status = hocket_step(engine, &info, message);
  if (status != 0) return status;
  printf("step %" PRId64 ": loss %.6f before, gradient norm %.3f, update %.3f ms\n", info.step,
         loss, info.grad_norm, info.update_ms);
  return 0;
}

static int train(hocket_engine *engine, int64_t steps, char *message) {
  const size_t n = (size_t)hocket_numel(engine);
  uint16_t *weights = malloc(n * sizeof *weights), *gradients = malloc(n * sizeof *gradients);
  int status = weights != NULL && gradients != NULL ? 0 : 3;
  if (status != 0) snprintf(message, HOCKET_MESSAGE, "out of memory for %zu gradients", n);
  for (int64_t step = 0; step < steps && status == 0; step++) {
    status = take_step(engine, weights, gradients, message);
  }
  free(weights);
  free(gradients);
  return status;
}

/* False unless the text is a whole number from 0 on. */
static bool whole_number(const char *text, int64_t *number) {
  char *end = NULL;
  errno = 0;
  *number = strtoll(text, &end, 10);
  return errno == 0 && end != text && *end == 0 && *number >= 0;
}

int main(int count, char **arguments) {
  int64_t parameters = 0, steps = 0;
  if (count != 4 || !whole_number(arguments[2], &parameters) ||
      !whole_number(arguments[3], &steps)) {
    fprintf(stderr, "usage: %s PLAN.json PARAMETERS STEPS\n", arguments[0]);
    return 2;
  }
  char message[HOCKET_MESSAGE];
  hocket_engine *engine = NULL;
  const hocket_group group = {
      .numel = parameters, .lr = 0.05, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8};
  /* NULL: the GPU where there is one, else the host in its place. The weights begin as zeros;
   * hocket_write would give them others. */
  int status = hocket_create(arguments[1], &group, 1, NULL, &engine, message);
  if (status == 0) status = train(engine, steps, message);
  char checksum[33];
  if (status == 0) status = hocket_checksum(engine, checksum, message);
  if (status == 0) printf("checksum of the state: %s\n", checksum);
  if (status != 0) fprintf(stderr, "%s\n", message);
  hocket_destroy(engine);
  return status;
}
