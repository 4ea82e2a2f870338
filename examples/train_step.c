/* SPDX-License-Identifier: Apache-2.0 */
/* Training with hocket.h only: a network of three layers, with forward and backward written in C,
 * learns to imitate another network.
 *
 *   train_step OVERLAP FIRST LAST [CHECKPOINT]
 *
 * takes steps FIRST to LAST - 1 of a run of 400. OVERLAP is none, forward or both; the losses are
 * the same to the last digit. With a CHECKPOINT it resumes from there unless FIRST is 0, and saves
 * there at the end.
 *
 * It runs on hocket's host backend, where device memory is ordinary memory. On a GPU, weights,
 * activations and gradients are in memory from cudaMalloc, layers are kernels on a stream, that
 * stream is passed where NULL stands here, and a loss is copied to the host before it is printed.
 * Nothing else changes. */
#include <hocket.h>
#include <inttypes.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LAYERS = 3, BATCH = 32, WIDEST = 64, RUN = 400 };
static const int width[LAYERS + 1] = {16, 64, 64, 8};

/* -- bf16: the upper half of a float ----------------------------------------------------------- */

static float from_bf16(uint16_t bits) {
  const uint32_t wide = (uint32_t)bits << 16;
  float value;
  memcpy(&value, &wide, sizeof value);
  return value;
}

/* Rounds to nearest, ties to even. Values must be finite. */
static uint16_t to_bf16(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

/* -- The model --------------------------------------------------------------------------------- */

/* One layer is one block of the model and has two tensors: 2 b its matrix, 2 b + 1 its bias. */
typedef struct {
  uint16_t weight[WIDEST * WIDEST], weight_grad[WIDEST * WIDEST]; /* [out][in], bf16 */
  float bias[WIDEST], bias_grad[WIDEST];
} layer;

typedef struct {
  layer layers[LAYERS];
  float values[LAYERS + 1][BATCH][WIDEST]; /* of each layer's neurons; 0: the input */
  float errors[BATCH][WIDEST];             /* d loss / d values of the current layer */
} network;

/* The same sequence on every machine. */
static float random_value(uint64_t *state) {
  *state = *state * 6364136223846793005u + 1442695040888963407u;
  return (float)(*state >> 40) / (float)(1 << 23) - 1; /* -1 to 1 */
}

static void initialise(network *n, uint64_t seed) {
  for (int b = 0; b < LAYERS; b++) {
    const float scale = 1.5f / sqrtf((float)width[b]);
    for (int i = 0; i < width[b + 1] * width[b]; i++) {
      n->layers[b].weight[i] = to_bf16(scale * random_value(&seed));
    }
    for (int o = 0; o < width[b + 1]; o++) n->layers[b].bias[o] = 0.1f * random_value(&seed);
  }
}

static void forward_layer(network *n, int b) {
  const layer *l = &n->layers[b];
  for (int s = 0; s < BATCH; s++) {
    for (int o = 0; o < width[b + 1]; o++) {
      float sum = l->bias[o];
      for (int i = 0; i < width[b]; i++) {
        sum += from_bf16(l->weight[o * width[b] + i]) * n->values[b][s][i];
      }
      n->values[b + 1][s][o] = b + 1 < LAYERS ? tanhf(sum) : sum;
    }
  }
}

/* From d loss / d output of the layer to its gradients, and to d loss / d input. */
static void backward_layer(network *n, int b) {
  layer *l = &n->layers[b];
  float sums[WIDEST * WIDEST] = {0}, inputs[WIDEST];
  memset(l->bias_grad, 0, sizeof l->bias_grad);
  for (int s = 0; s < BATCH; s++) {
    memset(inputs, 0, sizeof inputs);
    for (int o = 0; o < width[b + 1]; o++) {
      const float value = n->values[b + 1][s][o];
      const float error = n->errors[s][o] * (b + 1 < LAYERS ? 1 - value * value : 1);
      l->bias_grad[o] += error;
      for (int i = 0; i < width[b]; i++) {
        sums[o * width[b] + i] += error * n->values[b][s][i];
        inputs[i] += error * from_bf16(l->weight[o * width[b] + i]);
      }
    }
    memcpy(n->errors[s], inputs, sizeof inputs);
  }
  for (int i = 0; i < width[b + 1] * width[b]; i++) l->weight_grad[i] = to_bf16(sums[i]);
}

/* The batch of a step, and the teacher's outputs for it. */
static void make_batch(network *n, network *teacher, int64_t step) {
  uint64_t seed = (uint64_t)step * 7919 + 5;
  for (int s = 0; s < BATCH; s++) {
    for (int i = 0; i < width[0]; i++) n->values[0][s][i] = random_value(&seed);
  }
  memcpy(teacher->values[0], n->values[0], sizeof n->values[0]);
  for (int b = 0; b < LAYERS; b++) forward_layer(teacher, b);
}

/* The mean square error, and its gradient in `errors`. */
static double loss_of(network *n, const network *teacher) {
  const int outputs = width[LAYERS];
  double sum = 0;
  for (int s = 0; s < BATCH; s++) {
    for (int o = 0; o < outputs; o++) {
      const float difference = n->values[LAYERS][s][o] - teacher->values[LAYERS][s][o];
      n->errors[s][o] = 2 * difference / (float)(BATCH * outputs);
      sum += (double)difference * (double)difference;
    }
  }
  return sum / (BATCH * outputs);
}

/* -- Training ---------------------------------------------------------------------------------- */

/* All of these return 0 or the code of the call that failed; `message` then has the reason. */

static hocket_group group_at(int64_t step) {
  const double warm_up = fmin(1, (double)(step + 1) / 20);
  const double cosine = 0.5 * (1 + cos(3.14159265358979 * (double)step / RUN));
  return (hocket_group){.lr = 1e-2 * warm_up * (0.05 + 0.95 * cosine),
                        .beta1 = 0.9,
                        .beta2 = 0.99,
                        .eps = 1e-8,
                        .weight_decay = 1e-4};
}

static int create(network *n, const char *overlap, hocket_engine **engine, char *message) {
  hocket_tensor tensors[2 * LAYERS];
  char names[2 * LAYERS][32];
  const hocket_group group = group_at(0);
  hocket_options options = {.backend = "host", .cpu_threads = 1};
  options.overlap = strcmp(overlap, "both") == 0      ? HOCKET_OVERLAP_BOTH
                    : strcmp(overlap, "forward") == 0 ? HOCKET_OVERLAP_FORWARD
                                                      : HOCKET_OVERLAP_NONE;
  for (int b = 0; b < LAYERS; b++) {
    layer *l = &n->layers[b];
    snprintf(names[2 * b], sizeof names[0], "layer %d weight", b);
    snprintf(names[2 * b + 1], sizeof names[0], "layer %d bias", b);
    tensors[2 * b] = (hocket_tensor){.name = names[2 * b],
                                     .numel = (int64_t)width[b] * width[b + 1],
                                     .block = b,
                                     .weight = l->weight}; /* bf16, and so are gradients */
    tensors[2 * b + 1] = (hocket_tensor){.name = names[2 * b + 1],
                                         .numel = width[b + 1],
                                         .block = b,
                                         .weight_type = HOCKET_FP32,
                                         .grad_type = HOCKET_FP32,
                                         .weight = l->bias};
  }
  return hocket_create(NULL, tensors, 2 * LAYERS, &group, 1, &options, engine, message);
}

/* Each layer begins when its own weights of the last step have arrived. */
static int forward(hocket_engine *engine, network *n, char *message) {
  for (int b = 0; b < LAYERS; b++) {
    const int status = hocket_wait_weights(engine, b, NULL, -1, message);
    if (status != 0) return status;
    forward_layer(n, b);
  }
  return 0;
}

/* Gradients are handed over layer by layer, while backward goes on. */
static int backward(hocket_engine *engine, network *n, char *message) {
  for (int b = LAYERS; b-- > 0;) {
    backward_layer(n, b);
    const hocket_gradient list[] = {{2 * b, n->layers[b].weight_grad},
                                    {2 * b + 1, n->layers[b].bias_grad}};
    const int status = hocket_gradients(engine, list, 2, NULL, message);
    if (status != 0) return status;
  }
  return 0;
}

static int train(hocket_engine *engine, network *n, network *teacher, int64_t first, int64_t last,
                 char *message) {
  for (int64_t step = first; step < last; step++) {
    const hocket_group group = group_at(step);
    const hocket_step_options options = {.max_norm = 0.25};
    hocket_step_info info = {0};
    make_batch(n, teacher, step);
    int status = forward(engine, n, message);
    if (status != 0) return status;
    const double loss = loss_of(n, teacher);
    status = backward(engine, n, message);
    if (status == 0) status = hocket_set_group(engine, 0, &group, message);
    if (status == 0) status = hocket_step(engine, &options, &info, NULL, message);
    if (status != 0) return status;
    printf("step %" PRId64 ": loss %.17g, gradient norm %.17g\n", info.step, loss, info.grad_norm);
  }
  return hocket_drain(engine, -1, message);
}

/* Master weights and weights of a new run, or of a resumed one. */
static int start(hocket_engine *engine, int64_t first, const char *checkpoint, char *message) {
  if (first == 0) return hocket_masters(engine, -1, NULL, message);
  const int status = hocket_load(engine, checkpoint, message);
  return status != 0 ? status : hocket_weights_from_masters(engine, -1, NULL, message);
}

static int run(const char *overlap, int64_t first, int64_t last, const char *checkpoint,
               char *message) {
  static network student, teacher;
  hocket_engine *engine = NULL;
  initialise(&student, 1);
  initialise(&teacher, 2);
  int status = create(&student, overlap, &engine, message);
  if (status == 0) status = start(engine, first, checkpoint, message);
  if (status == 0) status = train(engine, &student, &teacher, first, last, message);
  if (status == 0 && checkpoint != NULL) status = hocket_save(engine, checkpoint, message);
  char checksum[33];
  if (status == 0) status = hocket_checksum(engine, checksum, message);
  if (status == 0) printf("checksum of the state: %s\n", checksum);
  hocket_destroy(engine);
  return status;
}

/* False unless the text is a whole number from 0 to RUN. */
static bool step_number(const char *text, int64_t *number) {
  char *end = NULL;
  *number = strtoll(text, &end, 10);
  return end != text && *end == 0 && *number >= 0 && *number <= RUN;
}

int main(int count, char **arguments) {
  int64_t first = 0, last = 0;
  const bool right = (count == 4 || count == 5) && step_number(arguments[2], &first) &&
                     step_number(arguments[3], &last) && (first == 0 || count == 5) &&
                     (strcmp(arguments[1], "none") == 0 || strcmp(arguments[1], "forward") == 0 ||
                      strcmp(arguments[1], "both") == 0);
  if (!right) {
    fprintf(stderr, "usage: %s none|forward|both FIRST LAST [CHECKPOINT]; steps are 0 to %d\n",
            arguments[0], RUN);
    return 2;
  }
  char message[HOCKET_MESSAGE];
  const int status = run(arguments[1], first, last, count == 5 ? arguments[4] : NULL, message);
  if (status != 0) fprintf(stderr, "%s\n", message);
  return status;
}
