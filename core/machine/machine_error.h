/* SPDX-License-Identifier: Apache-2.0 */
/* Private to the files of machines: the standard errors of a profile's quantities
 * (hk_quantity.error).
 *
 * A profile states the error of a quantity in one of three forms; the first that is present counts:
 *   "error": 0.014                           relative, in the quantity
 *   "standard_error": 3.5e8                  in the quantity's unit; what `hocket fit` writes
 *   "calibration": {"quantities": {KEY: {"low": 24.3e9, "high": 25.7e9}}}
 *                                            95 % interval, what `hocket calibrate` writes; the
 *                                            error is ln(high / low) / 2 / 1.96
 * A quantity of value 0 has no relative error. */
#ifndef HK_CORE_MACHINE_MACHINE_ERROR_H
#define HK_CORE_MACHINE_MACHINE_ERROR_H

#include "core/machine/machine.h"

/* Sets quantity->error from the quantity's object, after its value is read; 0 if neither of the
 * first two forms is present. HK_INPUT: "error" is not a number from 1e-6 to 10. */
hk_status hk_quantity_read_error(const cJSON *object, hk_quantity *quantity, hk_error *err);
/* Sets the errors that are still 0 from the document's calibration. A missing or damaged member is
 * no error: files may have been edited by hand. */
void hk_machine_read_intervals(const cJSON *document, hk_machine *machine);
/* Adds "error" to `object`; not if there is none, or if `given`, the quantity as it was read, has a
 * "standard_error", which is passed on instead. False: no memory. */
bool hk_quantity_write_error(const hk_quantity *quantity, const cJSON *given, cJSON *object);

#endif
