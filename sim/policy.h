/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Policies: rules that choose a route for each of a plan's subgroups. One file each in
 * sim/policies/. */
#ifndef HK_SIM_POLICY_H
#define HK_SIM_POLICY_H

#include "core/graph/plan.h"
#include "core/machine/machine.h"

/* Options that the user may set. HK_POLICY_OPTIONS_NONE: none is given. */
typedef struct {
  int stride;       /* >= 1; 0: not given */
  bool stride_auto; /* `--stride auto`: by hk_stride_balance */
  double ratio;     /* 0 to 1, fraction of subgroups with state on the host; < 0: not given */
  int buffers;      /* >= 1; 0: not given */
  bool before_0_18; /* twinflow under runtime deepspeed: subgroups are placed as by DeepSpeed before
                       0.18, which made the published runs (hk_policy_keep_first) */
} hk_policy_options;
#define HK_POLICY_OPTIONS_NONE ((hk_policy_options){.ratio = -1})

#define HK_TAKES_STRIDE  1u
#define HK_TAKES_RATIO   2u
#define HK_TAKES_BUFFERS 4u

typedef struct {
  const char *name;
  const char *summary; /* one line, for --help and the table's legend */
  const char *source;  /* publication */
  unsigned takes;      /* HK_TAKES_* */
  bool deepspeed;      /* available under --runtime deepspeed */
  /* Sets routes, order and settings. `plan` comes from hk_plan_create. */
  hk_status (*assign)(const hk_policy_options *options, const hk_machine *machine, hk_plan *plan,
                      hk_error *err);
} hk_policy;

extern const hk_policy hk_policy_gpu_only, hk_policy_zero_offload, hk_policy_twinflow,
    hk_policy_interleave, hk_policy_streamed, hk_policy_mapped;

const hk_policy *const *hk_policy_list(size_t *n);
/* Unknown: HK_INPUT, suggests the nearest. */
hk_status hk_policy_find(const char *name, const hk_policy **policy, hk_error *err);

/* Checks the options against what the policy takes and the runtime, then assigns. */
hk_status hk_policy_apply(const hk_policy *policy, const hk_policy_options *options,
                          const hk_machine *machine, hk_plan *plan, hk_error *err);

/* Compares a plan's routes with those that its label (policy and settings) would give. `text`, of
 * `size`: a sentence about the difference; "" if there is none, or if the policy is not one of
 * these. */
hk_status hk_policy_check_label(const hk_plan *plan, char *text, size_t size, hk_error *err);

/* For policies: routes the last subgroups to `resident`, so that floor(ratio x subgroups) keep
 * their state on the host, and returns that number. DeepSpeed 0.12 to 0.17, the published prototype
 * (stage3.py: subgroup i is on the host if i < int(ratio * n)) and hocket's engine do so. */
size_t hk_policy_keep_resident(hk_plan *plan, double ratio);
/* The same as DeepSpeed does it since 0.18 (stage3.py): subgroup i is on the host if
 * i >= int((1 - ratio) * n). So the first subgroups are resident, and a ratio whose product
 * is not a whole number keeps one subgroup more on the host. Returns how many are resident.
 * Example: of 17 subgroups and ratio 0.8 three are resident; before, four. */
size_t hk_policy_keep_first(hk_plan *plan, double ratio);
/* Moves the resident subgroups to the front; the others keep their order. */
void hk_policy_front(hk_plan *plan);

/* The stride k at which CPU and GPU finish at the same time (docs/stride.md): one round trip to the
 * GPU takes as long as k - 1 CPU updates, contention included: k = 1 + cpu_rate / gpu_rate.
 * Real-valued, >= 1. `cpu_rate` and `gpu_rate` (out, may be NULL): parameters a second of one rank
 * on each side while both run. Example: 3.0 and 2.0 G parameters a second give k = 2.5. */
double hk_stride_balance(const hk_plan *plan, const hk_machine *machine, double *cpu_rate,
                         double *gpu_rate);
/* The best whole stride: a neighbour of that k, or an end of the range. */
int hk_stride_auto(const hk_plan *plan, const hk_machine *machine);

#endif
