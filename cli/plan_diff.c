/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Differences of two plan files. The settings are those of the documents, key by key, so that a key
 * that a plan gains later is compared, too. */
#include "cli/plan_diff.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/print/emit.h"
#include "cli/print/screen.h"
#include "cli/print/table.h"
#include "core/graph/plan.h"

#define MOST_ROWS 96

typedef struct {
  char key[80], a[96], b[96];
} row;

typedef struct {
  row rows[MOST_ROWS];
  int n;
} differences;

/* -- Finding ----------------------------------------------------------------------------------- */

static void add(differences *d, const char *key, const char *a, const char *b) {
  if (d->n == MOST_ROWS || strcmp(a, b) == 0) return;
  row *r = &d->rows[d->n++];
  snprintf(r->key, sizeof r->key, "%s", key);
  snprintf(r->a, sizeof r->a, "%s", a);
  snprintf(r->b, sizeof r->b, "%s", b);
}

/* Long values are cut, so they are compared before. */
static hk_status add_values(differences *d, const char *key, const cJSON *a, const cJSON *b,
                            hk_error *err) {
  char *x = a ? cJSON_PrintUnformatted(a) : NULL, *y = b ? cJSON_PrintUnformatted(b) : NULL;
  const bool whole = (!a || x) && (!b || y);
  if (whole && !(x && y && strcmp(x, y) == 0)) {
    char left[90], right[90];
    snprintf(left, sizeof left, "%s", x ? x : "-");
    snprintf(right, sizeof right, "%s", y ? y : "-");
    if (strcmp(left, right) == 0) snprintf(right, sizeof right, "another one");
    add(d, key, left, right);
  }
  cJSON_free(x);
  cJSON_free(y);
  return whole ? HK_OK : hk_fail_memory(err, sizeof *d, "a comparison of plans");
}

static hk_status walk(differences *d, const char *above, const cJSON *a, const cJSON *b,
                      hk_error *err);

static hk_status walk_key(differences *d, const char *above, const char *name, const cJSON *a,
                          const cJSON *b, hk_error *err) {
  char key[80];
  snprintf(key, sizeof key, "%s%s%s", above, *above ? "." : "", name);
  if (!*above && (strcmp(name, "subgroups") == 0 || strcmp(name, "order") == 0)) return HK_OK;
  return cJSON_IsObject(a) || cJSON_IsObject(b) ? walk(d, key, a, b, err)
                                                : add_values(d, key, a, b, err);
}

/* The keys of a, then those that only b has. Either may be NULL. */
static hk_status walk(differences *d, const char *above, const cJSON *a, const cJSON *b,
                      hk_error *err) {
  for (const cJSON *item = a ? a->child : NULL; item; item = item->next)
    HK_TRY(walk_key(d, above, item->string, item,
                    b ? cJSON_GetObjectItemCaseSensitive(b, item->string) : NULL, err));
  for (const cJSON *item = b ? b->child : NULL; item; item = item->next)
    if (!a || !cJSON_GetObjectItemCaseSensitive(a, item->string))
      HK_TRY(walk_key(d, above, item->string, NULL, item, err));
  return HK_OK;
}

static void add_counts(differences *d, const char *key, int64_t a, int64_t b) {
  char x[32], y[32];
  add(d, key, hk_format_count(a, x, sizeof x), hk_format_count(b, y, sizeof y));
}

/* What the lists of subgroups amount to. */
static void add_subgroups(differences *d, const hk_plan *a, const hk_plan *b) {
  int64_t p[HK_ROUTE_COUNT], q[HK_ROUTE_COUNT], moved = 0;
  hk_plan_route_totals(a, p);
  hk_plan_route_totals(b, q);
  add_counts(d, "subgroups of a rank", (int64_t)a->n_subgroups, (int64_t)b->n_subgroups);
  for (int r = 0; r < HK_ROUTE_COUNT; r++) {
    char key[48];
    snprintf(key, sizeof key, "parameters, route %s", hk_route_name((hk_route)r));
    add_counts(d, key, p[r], q[r]);
  }
  add_counts(d, "parameters, ahead of the norm", hk_plan_ahead(a), hk_plan_ahead(b));
  add_counts(d, "parameters, early weights", hk_plan_early(a), hk_plan_early(b));
  add_counts(d, "parameters, staged if clipped", hk_plan_held_staged(a), hk_plan_held_staged(b));
  if (a->n_subgroups != b->n_subgroups) return;
  for (size_t i = 0; i < a->n_subgroups; i++)
    moved += a->subgroups[i].route != b->subgroups[i].route ||
             a->subgroups[i].ahead != b->subgroups[i].ahead ||
             a->subgroups[i].early != b->subgroups[i].early ||
             a->subgroups[i].held_staged != b->subgroups[i].held_staged;
  add_counts(d, "subgroups treated differently", 0, moved);
  if (memcmp(a->order, b->order, a->n_subgroups * sizeof *a->order) != 0)
    add(d, "order of updates", "a", "another one");
}

static hk_status find(const hk_plan *a, const hk_plan *b, differences *d, hk_error *err) {
  cJSON *x = hk_plan_to_json(a), *y = hk_plan_to_json(b);
  hk_status status =
      x && y ? walk(d, "", x, y, err) : hk_fail_memory(err, sizeof *d, "a comparison of plans");
  cJSON_Delete(x);
  cJSON_Delete(y);
  if (status == HK_OK) add_subgroups(d, a, b);
  return status;
}

/* -- Answer ------------------------------------------------------------------------------------ */

static hk_status print_json(const hk_args *args, const differences *d, hk_error *err) {
  bool ok = true;
  cJSON *root = hk_emit_begin("hocket.plan_diff/1", &ok);
  hk_put_string(root, "a", args->operands[0], &ok);
  hk_put_string(root, "b", args->operands[1], &ok);
  hk_put_bool(root, "same", d->n == 0, &ok);
  cJSON *array = hk_put_array(root, "differences", &ok);
  for (int i = 0; i < d->n; i++) {
    cJSON *element = hk_put_element(array, &ok);
    hk_put_string(element, "key", d->rows[i].key, &ok);
    hk_put_string(element, "a", d->rows[i].a, &ok);
    hk_put_string(element, "b", d->rows[i].b, &ok);
  }
  return hk_emit_print(root, ok, err);
}

static hk_status print_text(const differences *d, const hk_plan *a, const hk_plan *b,
                            hk_error *err) {
  static const hk_column columns[] = {{"difference", HK_WRAP}, {"a", HK_WRAP}, {"b", HK_WRAP}};
  char x[96], y[96];
  if (d->n == 0) {
    hk_print_text(0, 2, "the plans are the same: %s", hk_plan_title(a, x, sizeof x));
    return HK_OK;
  }
  hk_print_text(0, 2, "a: %s (%s); b: %s (%s)", hk_plan_title(a, x, sizeof x),
                hk_runtime_name(a->runtime), hk_plan_title(b, y, sizeof y),
                hk_runtime_name(b->runtime));
  putchar('\n');
  hk_table table = HK_TABLE(columns);
  for (int i = 0; i < d->n; i++) {
    hk_table_row(&table, "%s\t%s\t%s", d->rows[i].key, d->rows[i].a, d->rows[i].b);
  }
  HK_TRY(hk_table_print(&table, err));
  hk_print_text(0, 2, "'hocket simulate' of each, on one machine, says what that costs.");
  return HK_OK;
}

hk_status hk_plan_diff(const hk_args *args, hk_error *err) {
  hk_plan a, b;
  HK_TRY(hk_plan_load(args->operands[0], &a, err));
  hk_status status = hk_plan_load(args->operands[1], &b, err);
  if (status != HK_OK) {
    hk_plan_free(&a);
    return status;
  }
  differences *d = calloc(1, sizeof *d);
  status = d ? find(&a, &b, d, err) : hk_fail_memory(err, sizeof *d, "a comparison of plans");
  if (status == HK_OK) status = args->json ? print_json(args, d, err) : print_text(d, &a, &b, err);
  free(d);
  hk_plan_free(&a);
  hk_plan_free(&b);
  return status;
}
