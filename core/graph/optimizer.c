/* SPDX-License-Identifier: Apache-2.0 */
#include "core/graph/optimizer.h"

#include <math.h>
#include <string.h>

#include "core/graph/bytes.h"

/* State is counted for 256 parameters, because adamw8bit has an fp32 scale for each block of 256
 * values, and 8bit two windows of a byte for each block of 128. */
#define UNIT           256
#define PER_PARAM(n)   (UNIT * (n))
#define FP32           HK_BYTES_FP32
#define BF16           HK_BYTES_BF16
#define NEWTON_SCHULZS 5

/* `thread` of 8bit: measured with 15 threads on 16 cores beside an H100, 6.51 and 7.80 G
 * parameters/s (bench/results/training/formats.md), over 15 x 0.839 G, one thread's of fp32: 0.52
 * and 0.62. Since then the kernels take 2.43 and 2.50 cycles in cache where they took 3.71 and 3.80
 * (Zen 4). */
static const hk_optimizer_info optimizers[HK_OPTIMIZER_COUNT] = {
    [HK_OPTIMIZER_FP32] = {.name = "fp32",
                           .meaning = "fp32 master weight, momentum and variance",
                           .source = "AdamW, arXiv 1711.05101",
                           .held = PER_PARAM(3 * FP32),
                           .master = true,
                           .gradient_reads = 1,
                           .engine = true},
    [HK_OPTIMIZER_SPLIT] = {.name = "split",
                            .meaning = "master weight as the bf16 weight and 16 lower bits, fp32 "
                                       "momentum and variance: the bits of fp32",
                            .source = "engine/adamw/formats.h",
                            .held = PER_PARAM(3 * FP32),
                            .master = true,
                            .weight = true,
                            .gradient_reads = 1,
                            .engine = true},
    [HK_OPTIMIZER_BF16] = {.name = "bf16",
                           .meaning = "fp32 master weight, bf16 momentum and variance",
                           .source = "DeepSeek-V3, arXiv 2412.19437, section 3.3.3",
                           .held = PER_PARAM(FP32 + 2 * BF16),
                           .master = true,
                           .gradient_reads = 1,
                           .engine = true},
    [HK_OPTIMIZER_BF16_SPLIT] = {.name = "bf16+split",
                                 .meaning = "master weight as the bf16 weight and 16 lower bits, "
                                            "bf16 momentum and variance",
                                 .source = "engine/adamw/formats.h",
                                 .held = PER_PARAM(FP32 + 2 * BF16),
                                 .master = true,
                                 .weight = true,
                                 .gradient_reads = 1,
                                 .engine = true},
    [HK_OPTIMIZER_8BIT] = {.name = "8bit",
                           .meaning =
                               "fp32 master weight, 8-bit momentum and variance in blocks of "
                               "128 with 2 bytes each",
                           .source = "engine/adamw/formats.h",
                           .held = PER_PARAM(FP32 + 2) + 4,
                           .master = true,
                           .gradient_reads = 1,
                           .engine = true,
                           .thread = 0.79},
    [HK_OPTIMIZER_8BIT_SPLIT] = {.name = "8bit+split",
                                 .meaning = "master weight as the bf16 weight and 16 lower bits, "
                                            "8-bit momentum and variance",
                                 .source = "engine/adamw/formats.h",
                                 .held = PER_PARAM(FP32 + 2) + 4,
                                 .master = true,
                                 .weight = true,
                                 .gradient_reads = 1,
                                 .engine = true,
                                 .thread = 0.94},
    [HK_OPTIMIZER_ADAM_BF16] = {.name = "adam-bf16",
                                .meaning = "bf16 momentum and variance, no master weight",
                                .source = "torch.optim.AdamW on bf16 weights",
                                .held = PER_PARAM(2 * BF16),
                                .gradient_reads = 1},
    [HK_OPTIMIZER_ADAMW8BIT] = {.name = "adamw8bit",
                                .meaning =
                                    "8-bit momentum and variance with an fp32 scale for each "
                                    "256 values, no master weight",
                                .source = "bitsandbytes, arXiv 2110.02861",
                                .held = PER_PARAM(2 * 1) + 2 * FP32,
                                .gradient_reads = 1},
    [HK_OPTIMIZER_LION] = {.name = "lion",
                           .meaning = "fp32 master weight and momentum",
                           .source = "arXiv 2302.06675",
                           .held = PER_PARAM(2 * FP32),
                           .master = true,
                           .gradient_reads = 1},
    [HK_OPTIMIZER_SGD_MOMENTUM] = {.name = "sgd-momentum",
                                   .meaning = "fp32 master weight and momentum",
                                   .source = "torch.optim.SGD",
                                   .held = PER_PARAM(2 * FP32),
                                   .master = true,
                                   .gradient_reads = 1},
    [HK_OPTIMIZER_MUON] = {.name = "muon",
                           .meaning =
                               "fp32 master weight and momentum; five Newton-Schulz iterations "
                               "a matrix",
                           .source = "Jordan et al. 2024, kellerjordan.github.io/posts/muon",
                           .held = PER_PARAM(2 * FP32),
                           .master = true,
                           .gradient_reads = 1,
                           .orthogonal = true},
    /* Without momentum. The second moment is a row and a column of each matrix: it is left out. One
     * pass over the gradient sums the squares of rows and columns, another updates. */
    [HK_OPTIMIZER_ADAFACTOR] = {.name = "adafactor",
                                .meaning =
                                    "fp32 master weight; rows and columns of second moments, "
                                    "which count as nothing",
                                .source = "arXiv 1804.04235",
                                .held = PER_PARAM(FP32),
                                .master = true,
                                .gradient_reads = 2},
};

const char *const hk_optimizer_names[HK_OPTIMIZER_COUNT] = {
    "fp32",      "split",     "bf16", "bf16+split",   "8bit", "8bit+split",
    "adam-bf16", "adamw8bit", "lion", "sgd-momentum", "muon", "adafactor"};

const char *hk_optimizer_name_today(const char *name) {
  if (strcmp(name, "adamw32") == 0) return "fp32";
  return strcmp(name, "adamw16") == 0 ? "bf16" : name;
}

const hk_optimizer_info *hk_optimizer_info_of(hk_optimizer optimizer) {
  return &optimizers[optimizer];
}

hk_bytes hk_state_bytes(hk_optimizer optimizer, int64_t n) {
  const int64_t held = optimizers[optimizer].held;
  return n / UNIT * held + (n % UNIT * held + UNIT - 1) / UNIT; /* n * held may be too large */
}

hk_bytes hk_spare_bytes(hk_optimizer optimizer, int64_t n) {
  return hk_state_bytes(optimizer, n) + (optimizers[optimizer].master ? 0 : BF16 * n);
}

double hk_state_per_param(hk_optimizer optimizer) {
  return (double)optimizers[optimizer].held / UNIT;
}

double hk_update_traffic(hk_optimizer optimizer) {
  const hk_optimizer_info *o = &optimizers[optimizer];
  const double weight = o->weight ? 0 : o->master ? BF16 : 2 * BF16;
  return 2 * hk_state_per_param(optimizer) + BF16 * o->gradient_reads + weight;
}

double hk_update_speed(hk_optimizer optimizer) {
  return HK_BYTES_ADAMW / hk_update_traffic(optimizer);
}

double hk_newton_schulz_flops(int64_t rows, int64_t columns) {
  const double m = fmin((double)rows, (double)columns), n = fmax((double)rows, (double)columns);
  return NEWTON_SCHULZS * (4 * m * m * n + 2 * m * m * m);
}

double hk_model_newton_schulz_flops(const hk_model *model) {
  double flops = 0;
  for (size_t i = 0; i < model->n_tensors; i++) {
    const hk_tensor *tensor = &model->tensors[i];
    if (tensor->block < 0 || tensor->block >= model->layers || tensor->in < 1) continue;
    const int64_t out = tensor->numel / (tensor->in * tensor->matrices);
    flops += (double)tensor->matrices * hk_newton_schulz_flops(tensor->in, out);
  }
  return flops / (double)model->parameters;
}
