/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Policies: rules that turn a plan's subgroups into routes. One file each in sim/policies/. */
#ifndef HK_SIM_POLICY_H
#define HK_SIM_POLICY_H

#include "core/machine.h"
#include "core/plan.h"

/* What the user may set. Start from HK_POLICY_OPTIONS_NONE: nothing given. */
typedef struct {
  int stride;       /* >= 1; 0: not given */
  bool stride_auto; /* `--stride auto`: by hk_stride_balance */
  double ratio;     /* 0..1, share of subgroups whose state lives on the host; < 0: not given */
  int buffers;      /* >= 1; 0: not given */
} hk_policy_options;
#define HK_POLICY_OPTIONS_NONE ((hk_policy_options){.ratio = -1})

#define HK_TAKES_STRIDE  1u
#define HK_TAKES_RATIO   2u
#define HK_TAKES_BUFFERS 4u

typedef struct {
  const char *name;
  const char *summary; /* one line, for --help and the table's legend */
  const char *source;  /* where it was published */
  unsigned takes;      /* HK_TAKES_* */
  bool deepspeed;      /* makes sense under --runtime deepspeed */
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

/* Whether the label of a plan, if it is one of these policies with its settings, is what its routes
 * are: else *text, of `size`, becomes a sentence that says so. "" where there is nothing to say. */
hk_status hk_policy_check_label(const hk_plan *plan, char *text, size_t size, hk_error *err);

/* For the policies' own files: gives the last subgroups to route `resident` so that floor(ratio x
 * subgroups) keep their state on the host (DeepSpeed's rounding, read off published runs), and
 * returns that number. */
size_t hk_policy_keep_resident(hk_plan *plan, double ratio);

/* The closed-form stride (docs/stride.md): one GPU round trip takes as long as k - 1 CPU updates,
 * contention for host memory included. Real-valued, >= 1; the policy rounds it to the better
 * neighbour with hk_stride_auto. `cpu_rate` and `gpu_rate` (out, may be NULL): parameters a second
 * of one rank on each side while both run. */
double hk_stride_balance(const hk_plan *plan, const hk_machine *machine, double *cpu_rate,
                         double *gpu_rate);
int hk_stride_auto(const hk_plan *plan, const hk_machine *machine);

#endif
