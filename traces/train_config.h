/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Configuration files of training frameworks, in and out: DeepSpeed's JSON, and the YAML or JSON of
 * `accelerate config`, for DeepSpeed or FSDP.
 *
 * Reading is strict where a key shapes the schedule: a wrong type, a value out of range and an
 * unknown key of the ZeRO section are errors, as they are in DeepSpeed. What a file asks for and
 * hocket does not simulate is kept as a note. The value "auto", which the Trainer of transformers
 * fills in, counts as absent. */
#ifndef HK_TRACES_TRAIN_CONFIG_H
#define HK_TRACES_TRAIN_CONFIG_H

#include <stdbool.h>
#include <stdio.h>

#include "core/graph/plan.h"

typedef enum {
  HK_FRAMEWORK_DEEPSPEED,
  HK_FRAMEWORK_ACCELERATE, /* Accelerate that runs DeepSpeed */
  HK_FRAMEWORK_FSDP,       /* Accelerate that runs FSDP */
  HK_FRAMEWORK_COUNT
} hk_framework;
extern const char *const hk_framework_titles[HK_FRAMEWORK_COUNT]; /* "DeepSpeed" ... */

#define HK_MOST_CONFIG_NOTES 24

typedef struct {
  hk_framework framework;
  int stage;              /* of ZeRO, 0 to 3; 3 is full sharding */
  bool offload;           /* AdamW and its state are on the host */
  bool offload_param;     /* so are the 2-byte weights (not simulated) */
  bool pinned;            /* gradients arrive in pinned host memory, and nothing waits for them */
  double ratio;           /* share of subgroups offloaded, 0 to 1, as DeepSpeed reads it */
  int64_t subgroup_numel; /* 0: the framework has no subgroups */
  int64_t micro_batch, grad_accum, global_batch; /* 0: not given */
  int64_t tp, gpus, nodes;                       /* 0: not given; gpus of one node */
  int checkpoint;                                /* activations: 1 yes, 0 no, -1 not given */
  double max_norm;                               /* 0: no clipping */
  char file[256]; /* DeepSpeed's file, which an Accelerate file names; "": none */
  char notes[HK_MOST_CONFIG_NOTES][256];
  int n_notes;
} hk_train_config;

/* A configuration in which nothing is given, with the defaults of DeepSpeed since 0.19.5, which
 * pins host memory (before: pin_memory is false). */
hk_train_config hk_train_config_default(hk_framework framework);

/* Reads a file. A DeepSpeed file that an Accelerate file names is read, too, from the working
 * directory. Messages begin with the path. */
hk_status hk_train_config_load(const char *path, hk_train_config *config, hk_error *err);
/* From a document that has been parsed. Values "auto" are removed from `root`. Reads no file. */
hk_status hk_train_config_from_json(cJSON *root, hk_train_config *config, hk_error *err);

/* The ratio with which DeepSpeed leaves the state of `on_host` subgroups on the host
 * (hk_deepspeed_on_host). It has as few digits as decide the number, whatever the rounding of
 * floating-point numbers. */
double hk_deepspeed_ratio(size_t on_host, size_t subgroups);

/* Whether a framework as its authors ship it can run this plan. FSDP can if all state is in one
 * place; the plan's runtime then stands in for FSDP's. */
bool hk_framework_runs(hk_framework framework, const hk_plan *plan);

/* The configuration nearest to a plan. State that the plan stages through the GPU or maps is
 * offloaded; FSDP offloads all state or none. */
hk_train_config hk_train_config_of(hk_framework framework, const hk_plan *plan);
/* Sentences about what `framework` cannot express of a plan, into `lost`; returns how many. */
#define HK_MOST_LOST 11
int hk_train_config_lost(hk_framework framework, const hk_plan *plan, char lost[][160]);

/* The DeepSpeed document; NULL when out of memory. */
cJSON *hk_train_config_to_json(const hk_train_config *config);
/* Writes the file of the configuration's framework: JSON for DeepSpeed, YAML for Accelerate. The
 * YAML of HK_FRAMEWORK_ACCELERATE names `file` as DeepSpeed's. */
hk_status hk_train_config_write(const hk_train_config *config, FILE *out, hk_error *err);

#endif
