/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Inside calib only: a profile in the making, and the pieces of its fit. probe_fit_line.c knows
 * latency and bandwidth, probe_fit_cpu.c threads, probe_fit_links.c what copies and GPUs say by
 * themselves, probe_fit_ratios.c rates that are shares of others, probe_fit_shared.c what only
 * replays can say, probe_fit_draft.c the profile that comes out. */
#ifndef HK_CALIB_FIT_PROBE_FIT_DRAFT_H
#define HK_CALIB_FIT_PROBE_FIT_DRAFT_H

#include "calib/fit/probe_fit.h"
#include "calib/fit/solver.h"
#include "calib/probes/replay.h"

/* No interval is narrower, relatively, on either side: two calibrations of an idle machine differ
 * by that much (clocks, pages, neighbours), however well each agrees with itself. */
#define HK_INSTRUMENT 0.005

#define HK_HALF_INTERVAL 1.96 /* standard errors: 95 % of a normal distribution */

typedef struct {
  const hk_campaign *campaign;
  const hk_fingerprint *fingerprint;
  const char *name, *description, *date; /* hk_profile_fit_options */
  hk_machine machine;        /* as far as it is known; borrows `how` of the quantities as sources */
  hk_calibrated *quantities; /* parallel to hk_quantity_list; value NAN: not known yet; interval
                                NAN: none (defaults) */
  size_t n_quantities;
  int64_t chunk, piece; /* of the CPU kernels that the profile describes; 0: not known yet */
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

/* value +- 1.96 standard errors (relative), or the instrument's. */
hk_estimate hk_estimate_fitted(double value, double error, size_t probes);
/* The interval of a median; where there are too few rounds for one, least and most. */
hk_estimate hk_estimate_median(const hk_summary *summary, double factor);

/* The mean, in logarithms, of a ratio that several probes give. Begins as {0}. */
typedef struct {
  double sum, squares, least, most;
  size_t n;
} hk_ratios;

/* `error`: standard error of the ratio, relative. */
void hk_ratios_add(hk_ratios *all, double ratio, double error);
/* The interval covers the errors and half of the range of the ratios, over sqrt(n). n >= 1. */
hk_estimate hk_ratios_mean(const hk_ratios *all);

/* `quantity` is a member of draft->machine. The format becomes its source, after "calibrate DATE:
 * ". A value outside what the list allows is moved to its edge, and says so. */
void hk_draft_set(hk_draft *draft, hk_quantity *quantity, hk_origin origin, hk_estimate estimate,
                  const char *format, ...) __attribute__((format(printf, 5, 6)));
/* A value that was not measured, with its whole source. */
void hk_draft_assume(hk_draft *draft, hk_quantity *quantity, double value, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
bool hk_draft_knows(hk_draft *draft, hk_quantity *quantity);

/* Quantities that contradict each other give way, and say so. */
void hk_draft_agree(hk_draft *draft);
/* The rest by the list's defaults, and the machine of it all. */
hk_status hk_draft_finish(hk_draft *draft);

/* Whether every load has a value. */
bool hk_series_counts(const hk_series *series);
/* Its first load of that kind, -1: none. */
int hk_series_find(const hk_series *series, hk_load_kind kind);
/* The next series from *at on that counts and has this one load; NULL at the end. */
const hk_series *hk_draft_alone(const hk_draft *draft, hk_load_kind kind, size_t *at);
/* Standard error of its load's median, relative; no less than the instrument's. */
double hk_series_error(const hk_series *series, int load);

/* "1 probe", "8 probes". */
const char *hk_probe_count(size_t n, char text[24]);

/* -- probe_fit_line.c -------------------------------------------------------------------------- */

typedef struct {
  double size, rate; /* of operations one after the other */
  double error;      /* standard error of the rate, relative */
} hk_line_point;

#define HK_LINE_SEGMENTS 3

typedef struct {
  hk_line_segment segments[HK_LINE_SEGMENTS]; /* `what` is the caller's to fill */
  size_t n;
  double latency_ns, latency_error; /* that fits all sizes best beside the last segment's rate */
  double scatter;                   /* of the segments' times, relative */
  size_t sizes;                     /* distinct ones; with one, latencies are unknown: 0 */
} hk_line;

/* n >= 1; `points` are put in order. */
hk_status hk_line_fit(hk_line_point *points, size_t n, hk_line *line, hk_error *err);
/* Bayesian information criterion of n relative residuals with `free` parameters; what lies below
 * the instrument's resolution is no better than that. */
double hk_bic(double squares, size_t n, size_t free);

/* Into the fit, under that name. */
hk_status hk_draft_segments(hk_draft *draft, const char *what, const hk_line *line);

/* -- probe_fit_replays.c ----------------------------------------------------------------------- */

/* ln(replayed / measured) of every load of some series, at machines that differ in some quantities
 * alone, which are named by their offsets in hk_machine. No replay is made twice, as long as what
 * its loads use does not vary (hk_replay_inputs). */
typedef struct hk_replays hk_replays;

/* Borrows `series`. `n_varied` is at most HK_REPLAY_VARIED. */
hk_status hk_replays_open(const hk_series *const *series, size_t n, const size_t *offsets,
                          size_t n_varied, hk_replays **out, hk_error *err);
void hk_replays_close(hk_replays *replays); /* may be NULL */
/* `variants` machines, at most HK_MOST_VARIANTS; the loads of all series for each go to `out`. */
hk_status hk_replays_at(hk_replays *replays, const hk_machine *machines, size_t variants,
                        double *out, hk_error *err);

/* -- probe_fit_shared.c ------------------------------------------------------------------------ */

/* ln(replayed / measured) of every load is what unknowns of the machine are fitted to. */
typedef struct {
  hk_draft *draft;
  hk_quantity *quantities[HK_MOST_UNKNOWNS]; /* members of draft->machine */
  hk_unknown unknowns[HK_MOST_UNKNOWNS];
  size_t n;
  const hk_series **series; /* the caller frees the list */
  size_t n_series;
  hk_replays *replays;   /* while it is fitted */
  double noise, scatter; /* out: root mean squares of the measurements' errors, of the residuals */
} hk_region;

/* Leaves the machine as it was. */
hk_status hk_region_fit(hk_region *region, bool rough);
/* "8 probes h2d+d2h 1 MiB .. h2d+d2h 64 MiB" of a list of series. */
const char *hk_region_probes(const hk_region *region, char *text, size_t size);

/* -- Each sets what it is about ---------------------------------------------------------------- */

hk_status hk_draft_node(hk_draft *draft);   /* probe_fit_links.c: fingerprint, GPU memory */
hk_status hk_draft_copies(hk_draft *draft); /* and links alone, mapped access, GPU kernels */
hk_status hk_draft_links(hk_draft *draft);  /* both directions at once, several GPUs */
void hk_draft_special(hk_draft *draft);     /* probe_fit_copies.c: probes for one quantity each */
hk_status hk_draft_cpu(hk_draft *draft);    /* probe_fit_cpu.c: kernels and host memory alone */
void hk_draft_ratios(hk_draft *draft);      /* probe_fit_ratios.c: after hk_draft_cpu */
hk_status hk_draft_region(hk_draft *draft); /* probe_fit_shared.c: both at once */
/* Whether a CPU kernel has the chunk and the piece that the profile is about. */
bool hk_draft_is_usual(const hk_draft *draft, const hk_load *load);
/* Bytes of host memory traffic a parameter of a CPU kernel (docs/architecture.md); 0: no kernel. */
double hk_kernel_bytes(hk_load_kind kind);
/* What the draft says of a kernel with nothing beside it, operation after operation, parameters a
 * second; 0: no kernel. */
double hk_kernel_alone(const hk_draft *draft, const hk_load *load);

#endif
