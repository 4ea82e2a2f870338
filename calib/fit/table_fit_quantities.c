/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Chooses the free quantities of a table fit and sets their bounds and priors. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "calib/fit/table_fit_problem.h"
#include "core/base/names.h"

static const hk_fit_default defaults[] = {
    {"gpu.matmul_efficiency", "layers reach less than a large matrix product"},
    {"gpu.backward_efficiency", "the same in backward"},
    {"framework.layer_launch_ns", "the framework's Python on this CPU"},
    {"framework.report_ns", "the same between phases"},
    {"dram.bytes_per_s", "the share of the modules' bandwidth that CPU kernels reach"},
    {"dram.process_bytes_per_s", "where the pages of an unbound process lie"},
    {"dram.unbound_efficiency", "unbound threads migrate away from their memory"},
    {"network.bytes_per_s", "the share of the network's bandwidth that collectives reach"},
    {"pcie.d2h_bytes_per_s", "what slot, root complex and chipset leave of the line rate"},
    {"fabric.d2h_bytes_per_s", "what the host takes of the copies of all GPUs at once"},
    {"pcie.d2h_pageable_bytes_per_s", "one thread of this CPU copying, page faults included"},
    {"pcie.h2d_pageable_bytes_per_s", "the same towards the GPU"},
    {"gpu.collective_share", "the slowdown of computation by communication"},
    {"dram.with_dma_bytes_per_s", "host memory bandwidth of copies and CPU kernels together"},
    {"deepspeed.cache_release_ns", "the time in which the driver frees memory"},
    {"pcie.h2d_bytes_per_s", "what the slot leaves of the line rate"},
};

const hk_fit_default *hk_fit_defaults(size_t *n) {
  *n = sizeof defaults / sizeof *defaults;
  return defaults;
}

/* -- Bounds and priors ------------------------------------------------------------------------- */

/* Bounds are the start over and times this factor. */
#define FARTHEST_FACTOR 30.0

/* A candidate is fitted if it can change some time by this share. */
#define LEAST_EFFECT 0.01

/* Factor by which a start of this origin is typically wrong: the width of its prior. */
static double prior_factor(hk_origin origin) {
  switch (origin) {
    case HK_ORIGIN_MEASURED:
      return 1.1;
    case HK_ORIGIN_DATA_SHEET:
    case HK_ORIGIN_FITTED:
    case HK_ORIGIN_SET:
      return 2;
    case HK_ORIGIN_DERIVED:
    case HK_ORIGIN_DEFAULT:
    default:
      return 3;
  }
}

static void set_bounds(hk_fit_parameter *p, hk_origin origin) {
  p->least = fmax(p->info->least, p->start / FARTHEST_FACTOR);
  p->most = fmin(p->info->most, p->start * FARTHEST_FACTOR);
  /* A bandwidth from a data sheet is the line rate less protocol overhead, an upper bound. */
  if (origin == HK_ORIGIN_DATA_SHEET && strcmp(p->info->unit, "B/s") == 0) p->most = p->start;
  /* A share, such as an efficiency, stays below 1. */
  if (p->info->most == 1) p->most = fmin(p->most, 0.99);
}

static hk_status add_parameter(const hk_quantity_info *info, const hk_machine *start, hk_fit *fit,
                               hk_error *err) {
  const hk_quantity *quantity = hk_machine_quantity_const(start, info);
  if (fit->n == HK_FIT_MOST_FREE)
    return hk_fail(err, HK_INPUT, "more than %d free parameters", HK_FIT_MOST_FREE);
  for (size_t i = 0; i < fit->n; i++)
    if (fit->parameters[i].info == info)
      return hk_fail(err, HK_INPUT, "free parameter '%s' is named twice", info->key);
  if (!(quantity->value > 0))
    return hk_fail(err, HK_INPUT,
                   "free parameter '%s' starts at %.15g in %s: a fit works on logarithms and needs "
                   "a start above 0",
                   info->key, quantity->value, start->name);
  hk_fit_parameter *p = &fit->parameters[fit->n++];
  *p = (hk_fit_parameter){.info = info,
                          .start = quantity->value,
                          .value = quantity->value,
                          .standard_error = NAN,
                          .low = NAN,
                          .high = NAN,
                          .prior_factor = prior_factor(quantity->origin)};
  set_bounds(p, quantity->origin);
  return HK_OK;
}

/* NULL if no quantity has this key. */
static const hk_quantity_info *find(const char *key) {
  size_t n = 0;
  const hk_quantity_info *list = hk_quantity_list(&n);
  for (size_t i = 0; i < n; i++)
    if (strcmp(list[i].key, key) == 0) return &list[i];
  return NULL;
}

static bool is_zero(const char *key, const hk_machine *machine) {
  const hk_quantity_info *info = find(key);
  return info && hk_machine_quantity_const(machine, info)->value == 0;
}

static hk_status add_named(const char *key, const hk_machine *start, hk_fit *fit, hk_error *err) {
  const hk_quantity_info *info = find(key);
  if (info) return add_parameter(info, start, fit, err);
  size_t n = 0;
  const char *keys[256];
  const hk_quantity_info *list = hk_quantity_list(&n);
  for (size_t i = 0; i < n && i < 256; i++) keys[i] = list[i].key;
  const char *nearest = hk_nearest(key, keys, n < 256 ? n : 256);
  if (nearest)
    return hk_fail(err, HK_INPUT, "free parameter '%s' is not known; did you mean '%s'?", key,
                   nearest);
  return hk_fail(err, HK_INPUT,
                 "free parameter '%s' is not known; 'hocket machine show' lists the quantities",
                 key);
}

static hk_status add_listed(const char *list, const hk_machine *start, hk_fit *fit, hk_error *err) {
  for (const char *at = list;; at++) {
    char key[96];
    const size_t length = strcspn(at, ",");
    snprintf(key, sizeof key, "%.*s", (int)(length < sizeof key ? length : sizeof key - 1), at);
    HK_TRY(add_named(key, start, fit, err));
    at += length;
    if (*at == '\0') return HK_OK;
  }
}

/* Whether the parameter, moved by its prior_factor either way within its bounds, changes some time
 * of some row by LEAST_EFFECT. */
static hk_status has_effect(hk_fit_problem *problem, hk_fit_parameter *parameter, bool *effect) {
  hk_fit_problem one = *problem;
  one.parameters = parameter;
  one.n = 1;
  const double points[3] = {parameter->start,
                            fmax(parameter->start / parameter->prior_factor, parameter->least),
                            fmin(parameter->start * parameter->prior_factor, parameter->most)};
  const size_t n = one.n_residuals;
  double *values = malloc(3 * n * sizeof *values);
  if (!values) return hk_fail_memory(one.err, 3 * n * sizeof *values, "a fit");
  const hk_status status = hk_fit_evaluate(&one, points, 3, values);
  *effect = false;
  for (size_t i = 0; status == HK_OK && i < n; i++)
    *effect = *effect || fabs(values[n + i] - values[i]) >= LEAST_EFFECT ||
              fabs(values[2 * n + i] - values[i]) >= LEAST_EFFECT;
  problem->simulations = one.simulations;
  free(values);
  return status;
}

/* False: a limit of all GPUs' copies together, and every row has as many GPUs on a node. The limit
 * divided by their number then has the effect of the link's bandwidth. */
static bool told_from_link(const hk_fit_problem *problem, const char *key) {
  if (strncmp(key, "fabric.", strlen("fabric.")) != 0) return true;
  for (size_t i = 1; i < problem->n_cases; i++)
    if (problem->cases[i].plan.job.gpus != problem->cases[0].plan.job.gpus) return true;
  return false;
}

static hk_status add_defaults(hk_fit_problem *problem, hk_fit *fit) {
  for (size_t i = 0; i < sizeof defaults / sizeof *defaults && fit->n < HK_FIT_MOST_FREE; i++) {
    hk_fit one = {0};
    bool effect = false;
    if (is_zero(defaults[i].key, problem->start)) continue;
    if (!told_from_link(problem, defaults[i].key)) continue;
    HK_TRY(add_named(defaults[i].key, problem->start, &one, problem->err));
    HK_TRY(has_effect(problem, &one.parameters[0], &effect));
    if (effect) fit->parameters[fit->n++] = one.parameters[0];
  }
  return HK_OK;
}

hk_status hk_fit_choose(hk_fit_problem *problem, hk_fit *fit) {
  const char *list = problem->options->free_list;
  return list ? add_listed(list, problem->start, fit, problem->err) : add_defaults(problem, fit);
}
