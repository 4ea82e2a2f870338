/* SPDX-License-Identifier: GPL-3.0-or-later */
/* For cli/sweep_spec.c: axes from SPEC, from --set, and from a database. */
#ifndef HK_CLI_SWEEP_READ_H
#define HK_CLI_SWEEP_READ_H

#include "cli/sweep_spec.h"

/* Fills the axes of *spec, which is freed by the caller, also after a failure. */
hk_status hk_sweep_axes_read(const hk_args *args, const char *path, hk_sweep_spec *spec,
                             hk_error *err);
/* Adds an axis that hk_sweep_spec_text wrote. */
hk_status hk_sweep_axis_again(hk_sweep_spec *spec, const cJSON *axis, hk_error *err);
void hk_sweep_axis_free(hk_sweep_axis *axis);

#endif
