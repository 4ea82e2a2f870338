/* SPDX-License-Identifier: Apache-2.0 */
/* The list of a machine's quantities (machine.h), and where each lies. */
#include <math.h>
#include <stddef.h>

#include "core/machine/machine.h"

static const hk_quantity_info quantities[] = {
#define HK_INFO(field, key, unit, least, most, fallback, meaning) \
  {#field, key, unit, meaning, least, most, fallback, offsetof(hk_machine, field)},
    HK_MACHINE_QUANTITIES(HK_INFO)
#undef HK_INFO
};

enum { QUANTITIES = sizeof quantities / sizeof *quantities };

const hk_quantity_info *hk_quantity_list(size_t *n) {
  *n = QUANTITIES;
  return quantities;
}

hk_quantity *hk_machine_quantity(hk_machine *machine, const hk_quantity_info *info) {
  return (hk_quantity *)((char *)machine + info->offset);
}

const hk_quantity *hk_machine_quantity_const(const hk_machine *machine,
                                             const hk_quantity_info *info) {
  return (const hk_quantity *)((const char *)machine + info->offset);
}
