/* SPDX-License-Identifier: GPL-3.0-or-later */
/* A tensor of more elements than a bin set of squares takes (2^28), such as the embedding of
 * llama-3-8b: resident on the device, and on the CPU. Takes 7 GiB of memory. */
#include "world.h"

enum { EDGE = 1 << 28 };
static const int64_t n = (int64_t)EDGE + 5;

/* Gradients and weights are 1, so that the sum of squares is n and all elements stay equal. */
static void train(int64_t gpu_memory, float *after) {
  const uint16_t one = 0x3f80; /* bf16 */
  uint16_t *weights = malloc((size_t)n * 2), *gradients = malloc((size_t)n * 2);
  CHECK(weights != NULL && gradients != NULL);
  for (int64_t i = 0; i < n; i++) weights[i] = gradients[i] = one;
  const hocket_tensor large = {
      .numel = n, .weight_type = HOCKET_BF16, .grad_type = HOCKET_BF16, .weight = weights};
  const hocket_group group = {1e-2, 0.9, 0.999, 1e-8, 0};
  const hocket_options options = {.backend = "host",
                                  .overlap = HOCKET_OVERLAP_NONE,
                                  .cpu_threads = 2,
                                  .gpu_memory = gpu_memory};
  hocket_engine *engine = NULL;
  MUST(hocket_create(NULL, &large, 1, &group, 1, &options, &engine, message));
  char *report;
  MUST(hocket_report(engine, &report, message));
  CHECK((strstr(report, "\"resident\":268435461") != NULL) == (gpu_memory > 0));
  hocket_free(report);
  MUST(hocket_masters(engine, -1, NULL, message));
  for (int step = 0; step < 2; step++) {
    const hocket_gradient gradient = {.tensor = 0, .data = gradients};
    hocket_step_info info;
    double sum = 0;
    int64_t nonfinite = 0;
    MUST(hocket_gradients(engine, &gradient, 1, NULL, message));
    MUST(hocket_sum_of_squares(engine, -1, &sum, &nonfinite, message));
    CHECK(sum == (double)n);
    MUST(hocket_step(engine, NULL, &info, NULL, message));
    CHECK(info.grad_norm == sqrt((double)n) && info.tensors == 1);
  }
  const int64_t places[] = {0, EDGE - 1, EDGE, n - 1};
  for (int i = 0; i < 4; i++) {
    MUST(hocket_read(engine, HOCKET_P, 0, places[i], 1, after + i, message));
    CHECK(after[i] == after[0] && weights[places[i]] == weights[0]);
  }
  CHECK(after[0] < 0.981F && after[0] > 0.979F); /* two steps of 0.01 */
  hocket_destroy(engine);
  free(weights);
  free(gradients);
}

int main(void) {
  float resident[4], cpu[4];
  train(16 * n, resident);
  train(0, cpu);
  CHECK(resident[0] == cpu[0]);
  puts("all went well");
  return 0;
}
