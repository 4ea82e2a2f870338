/* SPDX-License-Identifier: GPL-3.0-or-later */
/* `model list` and `machine list`: the presets of one kind, as a table or as JSON. */
#ifndef HK_CLI_LIST_H
#define HK_CLI_LIST_H

#include "cli/args.h"
#include "cli/emit.h"
#include "cli/table.h"

typedef struct {
  const char *kind;   /* folder in share/ and key of the JSON array: "models" */
  const char *schema; /* "hocket.model_list/1" */
  const hk_column *columns;
  size_t n_columns;
  /* Loads one preset and adds it to whichever of `table` and `entry` is given. */
  hk_status (*add)(const char *name, hk_table *table, cJSON *entry, bool *ok, hk_error *err);
} hk_listing;

hk_status hk_list_presets(const hk_args *args, const hk_listing *listing, hk_error *err);

#endif
