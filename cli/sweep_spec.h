/* SPDX-License-Identifier: GPL-3.0-or-later */
/* What a sweep is to simulate: keys with their values, whose product are its points. A file SPEC is
 * a JSON object. Its keys are long options of `plan` and `simulate`; `set` holds an object whose
 * keys are those of --set, with or without an operator:
 *
 *   { "model": "llama-2-7b", "machine": ["h200-node-16c=4/h", "polaris-a100-4x40gb=9/h"],
 *     "micro-batch": [1, 2, 4], "ratio": {"from": 0, "to": 1, "step": 0.05},
 *     "policy": "twinflow", "set": {"dram*": {"from": 1, "to": 4, "factor": 2}} }
 *
 * A value is a scalar, a list of scalars, or a range from, to, step or factor, whose end counts if
 * it is met; null leaves the option out. The policy `best`, which is also the default, is the best
 * of all. */
#ifndef HK_CLI_SWEEP_SPEC_H
#define HK_CLI_SWEEP_SPEC_H

#include <cjson/cJSON.h>

#include "cli/args.h"
#include "traces/sweep_table.h"

#define HK_SWEEP_MOST_POINTS 1000000
/* Policies beside those of sim/policy.h: the best of these, and what `plan` finds, which takes some
 * ten times as long. */
#define HK_SWEEP_BEST  "best"
#define HK_SWEEP_PLAN  "plan"
#define HK_SWEEP_UNSET "default" /* the option is not given; in JSON null */

bool hk_sweep_is_best(const char *policy); /* one of the two */

/* A key with its values. Axes are in this order: those that choose and change the machine, those
 * that choose the model, the others; in each as in the file. */
typedef struct {
  char name[112];  /* of the option, or "set.KEY" */
  hk_option_id id; /* HK_OPT_SET: of a quantity */
  hk_cell_type type;
  int line;     /* of SPEC; 0: from --set or a database */
  char **texts; /* [n]; a quantity's have the form of --set */
  hk_cell *cells;
  size_t n, text_room, cell_room;
} hk_sweep_axis;

typedef struct {
  hk_sweep_axis *axes;
  size_t n, n_machine, n_model; /* all; those that choose the machine, the model */
  int64_t points;               /* of the product; INT64_MAX: that or more */
  int64_t sample, seed;         /* sample 0: all points */
  int64_t *picked;              /* [sample] ids, ascending */
} hk_sweep_spec;

/* Reads SPEC with the overrides --set KEY=VALUE,VALUE... of `args`, --sample and --seed, and checks
 * every value by itself. HK_INPUT names the file, the line and the key. */
hk_status hk_sweep_spec_read(const hk_args *args, const char *path, hk_sweep_spec *spec,
                             hk_error *err);
void hk_sweep_spec_free(hk_sweep_spec *spec);

/* The same as text, which begins a database, and back. The caller frees *text. */
hk_status hk_sweep_spec_text(const hk_sweep_spec *spec, char **text, hk_error *err);
hk_status hk_sweep_spec_parse(const char *text, const char *name, hk_sweep_spec *spec,
                              hk_error *err);

/* Points that are simulated, and the id of the i-th: its place in the product, whose last axis
 * changes fastest. */
int64_t hk_sweep_count(const hk_sweep_spec *spec);
int64_t hk_sweep_id(const hk_sweep_spec *spec, int64_t i);
/* The number of the value that axis `a` has in point `id`, and the distance of points with
 * neighbouring values. */
size_t hk_sweep_value(const hk_sweep_spec *spec, size_t a, int64_t id);
int64_t hk_sweep_step(const hk_sweep_spec *spec, size_t a);
/* The number of a point's machine, in the product of the axes that choose and change it. */
int64_t hk_sweep_machine_of(const hk_sweep_spec *spec, int64_t id);
/* The number of its model likewise, how many there are, and the distance of points with
 * neighbouring ones. */
int64_t hk_sweep_model_of(const hk_sweep_spec *spec, int64_t id);
int64_t hk_sweep_models(const hk_sweep_spec *spec);
int64_t hk_sweep_model_step(const hk_sweep_spec *spec);
/* The axis of an option; NULL: not given. */
const hk_sweep_axis *hk_sweep_axis_of(const hk_sweep_spec *spec, hk_option_id id);
/* Says in an error of one of the axis's values where it comes from. */
hk_status hk_sweep_fail_axis(const hk_sweep_axis *axis, hk_error *err);
/* "a 2 x b 3": the axes with more than one value. Returns `buffer`. */
const char *hk_sweep_product(const hk_sweep_spec *spec, char *buffer, size_t size);

#endif
