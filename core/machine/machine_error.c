/* SPDX-License-Identifier: Apache-2.0 */
/* Reads and writes the standard errors of a profile's quantities. */
#include "core/machine/machine_error.h"

#include <math.h>

#include "core/base/json.h"

#define LEAST_ERROR   1e-6
#define MOST_ERROR    10
#define HALF_INTERVAL 1.96 /* standard errors: 95 % of a normal distribution */

static const char KEY[] = "error";

/* An error that is not positive or not finite counts as not stated. */
static double plausible(double error) {
  return error > 0 ? fmin(fmax(error, LEAST_ERROR), MOST_ERROR) : 0;
}

hk_status hk_quantity_read_error(const cJSON *object, hk_quantity *quantity, hk_error *err) {
  quantity->error = 0;
  if (cJSON_GetObjectItemCaseSensitive(object, KEY))
    return hk_json_double(object, KEY, LEAST_ERROR, MOST_ERROR, &quantity->error, err);
  if (quantity->value > 0)
    quantity->error = plausible(hk_json_number_or(object, "standard_error", NAN) / quantity->value);
  return HK_OK;
}

void hk_machine_read_intervals(const cJSON *document, hk_machine *machine) {
  const cJSON *calibration = cJSON_GetObjectItemCaseSensitive(document, "calibration");
  const cJSON *list = cJSON_GetObjectItemCaseSensitive(calibration, "quantities");
  if (!cJSON_IsObject(list)) return;
  size_t n = 0;
  const hk_quantity_info *info = hk_quantity_list(&n);
  for (size_t i = 0; i < n; i++) {
    hk_quantity *quantity = hk_machine_quantity(machine, &info[i]);
    const cJSON *interval = cJSON_GetObjectItemCaseSensitive(list, info[i].key);
    const double low = hk_json_number_or(interval, "low", NAN),
                 high = hk_json_number_or(interval, "high", NAN);
    if (quantity->origin == HK_ORIGIN_SET) continue; /* it no longer is the measured value */
    if (quantity->error == 0 && low > 0 && high > low)
      quantity->error = plausible(log(high / low) / 2 / HALF_INTERVAL);
  }
}

bool hk_quantity_write_error(const hk_quantity *quantity, const cJSON *given, cJSON *object) {
  const bool absolute = !cJSON_GetObjectItemCaseSensitive(given, KEY) &&
                        cJSON_GetObjectItemCaseSensitive(given, "standard_error");
  if (quantity->error <= 0 || absolute) return true;
  return cJSON_AddNumberToObject(object, KEY, quantity->error) != NULL;
}
