/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Presets of one kind, each loaded once. */
#include "cli/list.h"

#include "core/names.h"

static hk_status add_all(const hk_listing *listing, hk_table *table, cJSON *array, bool *ok,
                         hk_error *err) {
  char **names = NULL;
  size_t n = 0;
  HK_TRY(hk_share_list(listing->kind, &names, &n, err));
  hk_status status = HK_OK;
  for (size_t i = 0; i < n && status == HK_OK; i++) {
    cJSON *entry = array != NULL ? hk_put_element(array, ok) : NULL;
    status = listing->add(names[i], table, entry, ok, err);
  }
  hk_names_free(names, n);
  return status;
}

static hk_status print_json(const hk_listing *listing, hk_error *err) {
  bool ok = true;
  cJSON *root = hk_emit_begin(listing->schema, &ok);
  hk_status status = add_all(listing, NULL, hk_put_array(root, listing->kind, &ok), &ok, err);
  if (status == HK_OK) return hk_emit_print(root, ok, err);
  cJSON_Delete(root);
  return status;
}

hk_status hk_list_presets(const hk_args *args, const hk_listing *listing, hk_error *err) {
  if (args->json) return print_json(listing, err);
  hk_table table;
  hk_table_begin(&table, listing->columns, listing->n_columns);
  hk_status status = add_all(listing, &table, NULL, NULL, err);
  if (status == HK_OK) return hk_table_print(&table, err);
  hk_table_drop(&table);
  return status;
}
