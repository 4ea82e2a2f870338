/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Machine profiles. An accepted one is within its ranges, gives rates, is printed as it was read,
 * and can be compared with another. */
#include <math.h>
#include <string.h>

#include "calib/profiles/profiles.h"
#include "core/base/json.h"
#include "sim/coverage.h"
#include "sim/forecast.h"
#include "sim/warnings.h"
#include "tests/fuzz/fuzz.h"

static void check_quantities(const hk_machine *machine) {
  size_t n = 0;
  const hk_quantity_info *info = hk_quantity_list(&n);
  for (size_t i = 0; i < n; i++) {
    const hk_quantity *q = hk_machine_quantity_const(machine, &info[i]);
    FUZZ_MUST(q->value >= info[i].least && q->value <= info[i].most);
    FUZZ_MUST(q->source != NULL && hk_origin_name(q->origin) != NULL);
  }
  const double rate =
      hk_cpu_rate(machine, &machine->cpu_cast, &machine->cpu_cast_threads, machine->cores.value);
  FUZZ_MUST(rate > 0 && rate <= machine->cpu_cast.value);
}

static void check_again(const hk_machine *machine) {
  hk_error err = {0};
  hk_machine again = {0};
  cJSON *document = hk_machine_to_json(machine), *second;
  FUZZ_MUST(document != NULL);
  if (!hk_fuzz_read(hk_machine_from_json(document, &again, &err), &err)) {
    hk_fuzz_abort(__FILE__, __LINE__, "what was printed is read", err.message);
  }
  second = hk_machine_to_json(&again);
  FUZZ_MUST(cJSON_Compare(document, second, true));
  cJSON_Delete(document);
  cJSON_Delete(second);
  hk_machine_free(&again);
}

/* Other parts of a document that commands read: the calibration and the runs it was fitted to. */
static void check_document(const hk_machine *machine) {
  hk_error err = {0};
  hk_profile_diff diff = {0};
  char trouble[320];
  const cJSON *fitted_on = NULL;
  hk_profile_trouble(machine->document, trouble, sizeof trouble);
  hk_fuzz_read(hk_coverage_of(machine, &fitted_on, &err), &err);
  if (hk_fuzz_read(hk_profiles_diff(machine->document, machine->document, &diff, &err), &err)) {
    FUZZ_MUST(diff.compared == diff.agreeing);
  }
  hk_profile_diff_free(&diff);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  cJSON_Delete(hk_fuzz_json(data, size));
  hk_error err = {0};
  hk_machine machine = {0};
  if (hk_fuzz_read(hk_machine_load(hk_fuzz_file(data, size), &machine, &err), &err)) {
    check_quantities(&machine);
    check_again(&machine);
    check_document(&machine);
  }
  hk_machine_free(&machine);
  return 0;
}
