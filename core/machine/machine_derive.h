/* SPDX-License-Identifier: Apache-2.0 */
/* What follows when a quantity of a machine is changed: the physics that binds the quantities of a
 * profile to each other, stated once. docs/machines.md explains each formula.
 *
 * Example. A user doubles pcie.h2d_bytes_per_s: the link is twice as fast. Copies out, copies in
 * both directions at once, a kernel's accesses to host memory, and a node's sum of links double
 * with it; copies from pageable memory do not, because one CPU thread limits them. */
#ifndef HK_CORE_MACHINE_MACHINE_DERIVE_H
#define HK_CORE_MACHINE_MACHINE_DERIVE_H

#include "core/machine/machine.h"

/* A quantity that has followed another. */
typedef struct {
  const hk_quantity_info *info;
  double before;
  const char *follows; /* key of the quantity that it follows */
} hk_derived;

/* `machine` is `before` with some values replaced: those i of hk_quantity_list with given[i]. Sets
 * the values of the other quantities to what follows; origins and sources stay. Writes one entry
 * for each value that has changed to out[0..HK_QUANTITY_COUNT) and returns their number.
 *
 * A derived value keeps to its range and to hk_machine_limit. Given values are not changed, so they
 * can contradict each other: check with hk_machine_check. */
size_t hk_machine_derive(hk_machine *machine, const hk_machine *before, const bool *given,
                         hk_derived *out);

#endif
