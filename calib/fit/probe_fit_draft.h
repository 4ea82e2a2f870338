/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Private to calib: the draft of a profile and the parts of the fit that fill it.
 *
 *   probe_fit_draft.c   quantities, intervals and sources; the finished machine
 *   probe_fit_line.c    latency and bandwidth from operations of several sizes
 *   probe_fit_links.c   counts, sizes, copies and GPU kernels alone, capacities of links
 *   probe_fit_copies.c  quantities of copies that have probes of their own
 *   probe_fit_cpu.c     CPU kernels over threads, host memory
 *   probe_fit_ratios.c  rates that are shares of other rates
 *   probe_fit_shared.c  quantities of contention, through replays
 *   probe_fit_replays.c residuals of replays, cached */
#ifndef HK_CALIB_FIT_PROBE_FIT_DRAFT_H
#define HK_CALIB_FIT_PROBE_FIT_DRAFT_H

#include "calib/fit/probe_fit.h"
#include "calib/fit/solver.h"
#include "calib/probes/replay.h"

/* Least half-width of an interval, relative. Two calibrations of an idle machine differ by that
 * much (clocks, page placement, other tenants), even if the rounds of each agree better. */
#define HK_INSTRUMENT 0.005

#define HK_HALF_INTERVAL 1.96 /* standard errors: 95 % of a normal distribution */

typedef struct {
  const hk_campaign *campaign;
  const hk_fingerprint *fingerprint;
  const char *name, *description, *date; /* hk_profile_fit_options, this and the next */
  const hk_drive_rates *drives;
  hk_machine machine;        /* values so far; its sources point to `how` of the quantities */
  hk_calibrated *quantities; /* in the order of hk_quantity_list; value NAN: not set yet;
                                interval NAN: none (defaults) */
  size_t n_quantities;
  int64_t chunk, piece; /* of the CPU kernels that the profile describes; 0: not set yet */
  hk_profile_fit *fit;  /* takes the segments */
  hk_error *err;
} hk_draft;

/* -- probe_fit_draft.c ------------------------------------------------------------------------- */

hk_status hk_draft_open(hk_draft *draft);
void hk_draft_close(hk_draft *draft);

typedef struct {
  double value, low, high; /* 95 % interval */
  size_t probes;
} hk_estimate;

/* value x exp(+-1.96 error), at least exp(+-HK_INSTRUMENT). `error`: relative standard error. */
hk_estimate hk_estimate_fitted(double value, double error, size_t probes);
/* Median and its interval, times `factor`. With too few rounds for an interval: least and most. */
hk_estimate hk_estimate_median(const hk_summary *summary, double factor);

/* The mean, in logarithms, of a ratio that several probes give. Begins as {0}. */
typedef struct {
  double sum, squares, least, most;
  size_t n;
} hk_ratios;

/* `error`: standard error of the ratio, relative. */
void hk_ratios_add(hk_ratios *all, double ratio, double error);
/* Relative standard error: sqrt((sum of error^2 + (ln(most / least) / 2)^2) / n). n >= 1. */
hk_estimate hk_ratios_mean(const hk_ratios *all);

/* Sets a member of draft->machine. Its source is "calibrate DATE: " and the formatted text. A value
 * outside hk_quantity_list's limits is moved to the limit, which the source mentions. */
void hk_draft_set(hk_draft *draft, hk_quantity *quantity, hk_origin origin, hk_estimate estimate,
                  const char *format, ...) __attribute__((format(printf, 5, 6)));
/* The default of a member of draft->machine; NAN: none. */
double hk_draft_default(hk_draft *draft, const hk_quantity *quantity);
/* Sets a value that was not measured. Its origin is "default", its source the formatted text. */
void hk_draft_assume(hk_draft *draft, hk_quantity *quantity, double value, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

/* Moves pcie.duplex_bytes_per_s, pcie.mapped_bytes_per_s and the fabric's bandwidths into the
 * ranges that other quantities set: at least one direction or one link, at most hk_machine_limit.
 * Their sources mention it. */
void hk_draft_agree(hk_draft *draft);
/* Sets the quantities that are still unknown to their defaults, and makes fit->machine. */
hk_status hk_draft_finish(hk_draft *draft);

/* Whether the series did not fail and every load has a positive median. */
bool hk_series_counts(const hk_series *series);
/* Index of the first load of that kind; -1: none. */
int hk_series_find(const hk_series *series, hk_load_kind kind);
/* The next valid series from *at on whose only load is of this kind; NULL at the end. */
const hk_series *hk_draft_alone(const hk_draft *draft, hk_load_kind kind, size_t *at);
/* Relative standard error of the load's median, at least HK_INSTRUMENT. */
double hk_series_error(const hk_series *series, int load);

/* "1 probe", "8 probes". */
const char *hk_probe_count(size_t n, char text[24]);

/* -- probe_fit_line.c -------------------------------------------------------------------------- */

typedef struct {
  double size, rate; /* of operations that run one after another */
  double error;      /* standard error of the rate, relative */
} hk_line_point;

#define HK_LINE_SEGMENTS 3

typedef struct {
  hk_line_segment segments[HK_LINE_SEGMENTS]; /* without `what` */
  size_t n;
  double latency_ns, latency_error; /* best for all sizes with the last segment's rate */
  double scatter;                   /* relative, of times about the segments */
  size_t sizes;                     /* distinct sizes; with one, latency_ns is 0: unknown */
} hk_line;

/* n >= 1. Sorts `points`. */
hk_status hk_line_fit(hk_line_point *points, size_t n, hk_line *line, hk_error *err);
/* Bayesian information criterion of n relative residuals with `free` parameters:
 *   n ln(max(squares / n, HK_INSTRUMENT^2)) + free ln n */
double hk_bic(double squares, size_t n, size_t free);

/* Appends the segments to draft->fit under the name `what`. */
hk_status hk_draft_segments(hk_draft *draft, const char *what, const hk_line *line);

/* -- probe_fit_replays.c ----------------------------------------------------------------------- */

/* ln(replayed / measured) of every load of some series, on machines that differ only in the given
 * quantities (offsets in hk_machine). Results are cached: a series is not replayed again with equal
 * values of the quantities that its loads use (hk_replay_inputs). */
typedef struct hk_replays hk_replays;

/* Borrows `series`. `n_varied` is at most HK_REPLAY_VARIED. */
hk_status hk_replays_open(const hk_series *const *series, size_t n, const size_t *offsets,
                          size_t n_varied, hk_replays **out, hk_error *err);
void hk_replays_close(hk_replays *replays); /* may be NULL */
/* At most HK_MOST_VARIANTS machines. `out`: for each machine, the loads of all series. */
hk_status hk_replays_at(hk_replays *replays, const hk_machine *machines, size_t variants,
                        double *out, hk_error *err);

/* -- probe_fit_shared.c ------------------------------------------------------------------------ */

/* A fit of quantities of the machine to series: the residuals are ln(replayed / measured) of every
 * load. */
typedef struct {
  hk_draft *draft;
  hk_quantity *quantities[HK_MOST_UNKNOWNS]; /* members of draft->machine */
  hk_unknown unknowns[HK_MOST_UNKNOWNS];
  size_t n;
  const hk_series **series; /* the caller frees the list */
  size_t n_series;
  hk_replays *replays;   /* while it is fitted */
  double noise, scatter; /* out: root mean square of the measurements' errors, of the residuals */
} hk_region;

/* Adds an unknown: a quantity of draft->machine, of which there are fewer than HK_MOST_UNKNOWNS. */
void hk_region_add(hk_region *region, hk_quantity *quantity, hk_unknown unknown);
/* Sets unknowns, noise and scatter; the machine stays as it was. `rough`: tries HK_MOST_SCOUTS
 * starts and follows with a simplex. */
hk_status hk_region_fit(hk_region *region, bool rough);
/* "8 probes h2d+d2h 1 MiB .. h2d+d2h 64 MiB": number, first and last. */
const char *hk_region_probes(const hk_region *region, char *text, size_t size);

/* -- Parts of the fit -------------------------------------------------------------------------- */

hk_status hk_draft_node(hk_draft *draft);   /* probe_fit_links.c: fingerprint, GPU memory */
hk_status hk_draft_copies(hk_draft *draft); /* one direction alone, mapped access, GPU kernels */
hk_status hk_draft_links(hk_draft *draft);  /* both directions at once, several GPUs */
void hk_draft_special(hk_draft *draft);     /* probe_fit_copies.c: probes for one quantity each */
hk_status hk_draft_cpu(hk_draft *draft);    /* probe_fit_cpu.c: kernels and host memory alone */
void hk_draft_ratios(hk_draft *draft);      /* probe_fit_ratios.c: after hk_draft_cpu */
hk_status hk_draft_region(hk_draft *draft); /* probe_fit_shared.c: copies and CPU kernels at once */
/* Whether a CPU kernel has the profile's chunk and piece. */
bool hk_draft_has_sizes(const hk_draft *draft, const hk_load *load);
/* Bytes of host memory traffic a parameter of a CPU kernel (docs/architecture.md); 0: no kernel. */
double hk_kernel_bytes(hk_load_kind kind);
/* Predicted rate of a CPU kernel with no other load, its start included, parameters a second; 0: no
 * CPU kernel. */
double hk_kernel_alone(const hk_draft *draft, const hk_load *load);

#endif
