/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Validation of whole iterations: predicts the steady iteration of a training run from the plan in
 * its recording, and compares it with the recorded iterations, operation by operation.
 *
 * A recording (schema hocket.spans/1, hocket_timeline) has the engine's operations and the forward
 * and backward passes of blocks, each with the number of its step.
 *
 * With an overlap, the iteration of step k is the time from the end of backward k - 1 to the end of
 * backward k; without one, the time from the end of update k - 1 to the end of update k. "End of
 * backward" is the end of the first block whose backward was recorded; the same block counts in the
 * prediction. The recorded iteration of median length is compared with the last simulated one.
 * Operations that cross an end of the iteration count with the part inside. Both timelines begin at
 * 0, and the makespan is the length of the iteration.
 *
 * Operations that only one side has: launches, which are not recorded; the flush without an
 * overlap; blocks whose passes were not recorded. They are counted, and not compared: their time
 * appears as gaps.
 *
 * Ranks of one host (FSDP2): each has a recording, all on the clock of the host. The prediction is
 * that of the first rank's plan on as many GPUs as there are ranks, with its collectives, and each
 * rank is compared with it. */
#ifndef HK_CALIB_VALIDATE_TRAINING_H
#define HK_CALIB_VALIDATE_TRAINING_H

#include <cjson/cJSON.h>

#include "core/machine/machine.h"
#include "traces/compare.h"

#define HK_MOST_DIFFERENCES 10

/* Source of the blocks' times: the plan's model, the recording, or the model `measured`. */
typedef enum { HK_BLOCKS_OF_PLAN, HK_BLOCKS_RECORDED, HK_BLOCKS_OF_MODEL } hk_block_times;

/* An operation that differs, by its wait and its duration. wait: from when its dependencies and the
 * operation before it on its lane had ended until it started. */
typedef struct {
  int32_t op; /* in the graph of the comparison */
  hk_pair wait, duration;
  bool waits;     /* the waits differ by more than the durations */
  hk_cause cause; /* of the durations: the largest cause of all operations of its kind */
} hk_op_difference;

typedef struct {
  size_t n;
  hk_ns time; /* inside the iteration */
} hk_uncompared;

typedef struct {
  hk_plan plan;
  hk_block_times block_times;
  hk_ns *periods; /* of the recorded iterations, in order of their steps */
  int64_t *steps; /* their steps */
  size_t n_periods;
  int64_t step; /* the one that is compared */
  int rank, ranks;
  hk_ns begin, end; /* of the compared iteration, as recorded */
  hk_graph graph;   /* the operations that both sides have */
  int32_t *origin;  /* of each, its number in the graph of the whole forecast */
  hk_timeline predicted, measured;
  hk_timeline_comparison comparison;
  hk_pair forward_wait; /* time without a forward pass, from the beginning of the iteration to the
                           end of its last one */
  hk_uncompared unmeasured[HK_OP_KIND_COUNT], unpredicted[HK_OP_KIND_COUNT];
  hk_op_difference differences[HK_MOST_DIFFERENCES]; /* the largest first */
  size_t n_differences;
} hk_training_validation;

/* `recording`: the document. `measured`: a listed model whose block times, measured with the run's
 * batch, count instead of the plan's; or NULL. HK_INPUT: another schema, no plan, fewer than two
 * iterations with backward passes; `measured` has no block times, or other blocks than the plan's
 * model. Free with hk_training_validation_free (zeroed: no effect). */
hk_status hk_validate_training(const cJSON *recording, const hk_model *measured,
                               const hk_machine *machine, hk_training_validation *out,
                               hk_error *err);
/* The same for one of several ranks. `first`: the validation of the first rank, whose plan, block
 * times and step count here, too; NULL for the first rank itself. */
hk_status hk_validate_rank(const cJSON *recording, const hk_training_validation *first,
                           const hk_model *measured, const hk_machine *machine,
                           hk_training_validation *out, hk_error *err);
void hk_training_validation_free(hk_training_validation *validation);

#endif
