/* SPDX-License-Identifier: Apache-2.0 */
/* What-if machines: quantities that a user sets, and what follows from them.
 *
 * A text is KEY=VALUE, KEY*=FACTOR, KEY/=FACTOR, KEY+=VALUE or KEY-=VALUE. KEY is a key of
 * HK_MACHINE_QUANTITIES, or one without its unit: "pcie.h2d" is pcie.h2d_bytes_per_s, "dram" is
 * dram.bytes_per_s. VALUE is in the quantity's unit and may have k, M, G, T or P (10^3 to 10^15;
 * with i, as in Gi, powers of 1024) and the unit: 64G, 64GB/s, 80GiB, 20us. */
#ifndef HK_CORE_MACHINE_MACHINE_SET_H
#define HK_CORE_MACHINE_MACHINE_SET_H

#include "core/machine/machine.h"

/* Sets and derives (core/machine/machine_derive.h), all texts at once. Set quantities get the
 * origin "set", derived ones "derived", with a source that names the text or the quantity that they
 * follow. The machine's document keeps what they were as "before_set"; hk_machine_to_json writes
 * it. HK_INPUT, with the machine unchanged or fit only for hk_machine_free: no such quantity (names
 * the nearest), a value that is no number or out of range, two texts of one quantity, a result that
 * breaks hk_machine_check. */
hk_status hk_machine_set(hk_machine *machine, const char *const *texts, size_t n, hk_error *err);

/* Whether a text has that form, with a known key and, after '=', a value in its range. */
hk_status hk_machine_set_check(const char *text, hk_error *err);

/* What a set or derived quantity was before: its value, and whether the profile says so. */
bool hk_machine_before_set(const hk_machine *machine, const hk_quantity_info *info, double *value);

#endif
