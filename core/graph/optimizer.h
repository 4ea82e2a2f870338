/* SPDX-License-Identifier: Apache-2.0 */
/* Optimizers as what they are to a schedule: bytes of state a parameter, memory traffic of an
 * update, and matrix products. The engine implements fp32, split, bf16, bf16+split,
 * 8bit and 8bit+split (engine/adamw/formats.h); the others are predicted.
 *
 * Example: lion keeps a master weight and one momentum, 8 bytes. Its fused kernel reads them and a
 * 2-byte gradient, and writes them and a 2-byte weight: 20 bytes, where AdamW moves 28. If memory
 * limits both, it updates 28 / 20 as many parameters a second. */
#ifndef HK_CORE_GRAPH_OPTIMIZER_H
#define HK_CORE_GRAPH_OPTIMIZER_H

#include <stdbool.h>

#include "core/model/model.h"

typedef enum {
  HK_OPTIMIZER_FP32, /* the default */
  HK_OPTIMIZER_SPLIT,
  HK_OPTIMIZER_BF16,
  HK_OPTIMIZER_BF16_SPLIT,
  HK_OPTIMIZER_8BIT,
  HK_OPTIMIZER_8BIT_SPLIT, /* the last one that the engine implements */
  HK_OPTIMIZER_ADAM_BF16,
  HK_OPTIMIZER_ADAMW8BIT,
  HK_OPTIMIZER_LION,
  HK_OPTIMIZER_SGD_MOMENTUM,
  HK_OPTIMIZER_MUON,
  HK_OPTIMIZER_ADAFACTOR,
  HK_OPTIMIZER_COUNT
} hk_optimizer;

typedef struct {
  const char *name;    /* --state NAME */
  const char *meaning; /* what the state consists of */
  const char *source;  /* publication or implementation */
  int held;            /* bytes of state for 256 parameters: master weight, moments, their scales */
  bool master;         /* the state has an fp32 master weight; if not, the 2-byte weight is updated
                          in place, so the kernel also reads it */
  bool weight;        /* the state contains the bf16 weight: host memory needs no other copy, and an
                         update writes it once */
  int gradient_reads; /* passes over the gradient */
  bool orthogonal;    /* Newton-Schulz iterations on whole matrices (hk_newton_schulz_flops) */
  bool engine;        /* the engine implements it */
  double thread;      /* parameters that a thread of a full team updates at most, if its arithmetic
                         limits it, of those that one thread alone updates of fp32; 0: no limit */
} hk_optimizer_info;

const hk_optimizer_info *hk_optimizer_info_of(hk_optimizer optimizer);
extern const char *const hk_optimizer_names[HK_OPTIMIZER_COUNT];
/* The name that `name` had before 2026-11-25 stands for today: adamw32 is fp32, adamw16 is bf16;
 * other names are returned as they are. */
const char *hk_optimizer_name_today(const char *name);

/* Bytes of state of n parameters, rounded up: held, or copied in one direction. fp32: 12 n. */
hk_bytes hk_state_bytes(hk_optimizer optimizer, int64_t n);
/* Spare memory for the new state of n parameters while the old one is kept. Without a master weight
 * it includes the new weights. */
hk_bytes hk_spare_bytes(hk_optimizer optimizer, int64_t n);
/* The same for one parameter, not rounded. */
double hk_state_per_param(hk_optimizer optimizer);
/* Memory traffic of a fused update, in bytes a parameter: state and 2-byte weight written; state,
 * the passes over the 2-byte gradient, and without a master the weight, read. fp32: 28. */
double hk_update_traffic(hk_optimizer optimizer);
/* Parameters that a memory-bound kernel updates while AdamW updates one: 28 / traffic. */
double hk_update_speed(hk_optimizer optimizer);

/* Muon (Jordan et al., 2024): 5 Newton-Schulz iterations on a matrix of `rows` x `columns`. With m
 * the smaller and n the larger side, an iteration has products of 2 m^2 n, 2 m^3 and 2 m^2 n
 * floating-point operations. */
double hk_newton_schulz_flops(int64_t rows, int64_t columns);
/* The same for all matrices of a model's layers, divided by its parameters. */
double hk_model_newton_schulz_flops(const hk_model *model);

#endif
