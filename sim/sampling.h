/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Machines that differ from a profile by the errors of its quantities.
 *
 * The standard error s of a quantity, relative, is one of these:
 *   stated    The profile states it (hk_quantity.error): calibrated and fitted quantities.
 *   scatter   Data-sheet figures, defaults, and what --set derives from them state none. s is how
 *             far such figures were from fitted values on other machines; see the table below.
 *   unknown   Measured and fitted quantities without an error. They are not varied.
 *   exact     s = 0: counts; sizes; what the user set (--set). Data-sheet figures and defaults at
 *             an end of their range, which stands for "no such effect". A matrix rate from a data
 *             sheet: it counts only as a product with efficiencies, whose errors include it.
 *
 * A varied value is value x exp(s x z) with z from a standard normal distribution. It is moved into
 * the quantity's range and below hk_machine_limit.
 *
 * Scatter: root mean square of ln(fitted / before the fit) in the two profiles that ship fitted to
 * published runs (Polaris and JLSE), outliers in brackets left out. The values are of the fits of
 * 2026-11-21; those of 2026-11-23 have 0.27, 0.39, 0.25 and 1.16:
 *   rates, data sheet      0.30   -0.36 -0.06 -0.15 -0.42 -0.31 -0.26 (network -1.79)
 *   rates, others          0.40   -0.10 -0.17 0.34 -0.84 0.05 (1.43, itself known to 110 %)
 *   fractions              0.30   0.06 0.20 -0.08 -0.38 -0.43 (collective_share 1.44)
 *   times                  1.10   1.81 0.35 1.39 -0.01 1.11
 *   launches of a layer    0.64   1.28 0.86, and -0.1 to 0.4 in PyTorch's own loop on five nodes
 * One z is common to quantities of one origin and one of these kinds whose keys begin with the same
 * word (pcie, dram, ...): the figures of one link are wrong together. Measured and fitted
 * quantities have a z each, with one exception.
 *
 * The rate R of a CPU kernel on T threads, R = r (1 - exp(-T / n0)), is known better than r and n0,
 * which are fitted together: r too large goes with n0 too large. Their z have the correlation 0.9.
 * In 21 calibrations of H200 nodes with 16 cores (2026-11-21 to 23) it is 0.905: ln r scatters by
 * 0.244, ln n0 by 0.340, and ln R by 0.118, 0.110, 0.130 and 0.146 on 4, 8, 13 and 16 threads.
 * Independent z would give 0.36, 0.32, 0.29 and 0.27. */
#ifndef HK_SIM_SAMPLING_H
#define HK_SIM_SAMPLING_H

#include "core/machine/machine.h"

typedef enum {
  HK_ERROR_EXACT,
  HK_ERROR_STATED,
  HK_ERROR_SCATTER,
  HK_ERROR_UNKNOWN,
} hk_error_kind;

const char *hk_error_kind_name(hk_error_kind kind); /* "exact", "stated", "scatter", "unknown" */

/* The kind of a quantity's error, and the error: 0 if exact or unknown. */
hk_error_kind hk_error_of(const hk_quantity_info *info, const hk_quantity *quantity, double *error);

/* Quantities with the same seed have the same z in every draw. */
uint64_t hk_error_seed(const hk_quantity_info *info, const hk_quantity *quantity);

/* The changes ln(varied / value) of all quantities for one z of each, by index in
 * hk_quantity_list. */
void hk_error_changes(const hk_machine *machine, const double *z, double *change);

#define HK_DRAWS 24 /* even: no draw is the profile itself */
/* z of each draw: a Latin hypercube. The normal distribution is cut into HK_DRAWS parts of equal
 * probability; each part's median is used once, in an order that depends on the seed. */
void hk_latin_hypercube(uint64_t seed, double z[HK_DRAWS]);

/* A copy of `machine` with every value x exp(change[i]), i: index in hk_quantity_list. What a model
 * states instead of framework.launch_beside_update changes with it (launch_change). The copy
 * borrows machine's strings and document and must not be freed. */
void hk_machine_perturb(const hk_machine *machine, const double *change, hk_machine *varied);

#endif
