/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Makes a profile from a campaign: checks that the required probes are there, runs the parts of the
 * fit in order, and replays every probe on the result to judge it. */
#include "calib/fit/probe_fit.h"

#include <gsl/gsl_errno.h>
#include <gsl/gsl_sort.h>
#include <gsl/gsl_statistics_double.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "calib/fit/probe_fit_draft.h"

/* -- Required probes --------------------------------------------------------------------------- */

typedef struct {
  char names[600];
  size_t length;
} missing;

static void add_missing(missing *m, const char *name, const char *failure) {
  snprintf(m->names + m->length, sizeof m->names - m->length, "%s%s%s%.80s%s",
           m->length > 0 ? ", " : "", name, *failure ? " (" : "", failure, *failure ? ")" : "");
  m->length = strlen(m->names);
}

/* The message of the first failed probe of this load alone; "" if none failed. */
static const char *failure_of(const hk_campaign *campaign, hk_load_kind kind) {
  for (size_t i = 0; i < campaign->n; i++) {
    const hk_series *s = &campaign->series[i];
    if (s->failed && s->probe.n_loads == 1 && s->probe.loads[0].kind == kind) return s->failure;
  }
  return "";
}

static bool has_group(const hk_campaign *campaign, hk_probe_group group) {
  for (size_t i = 0; i < campaign->n; i++) {
    const hk_series *s = &campaign->series[i];
    if (s->probe.group == group && hk_series_counts(s) && hk_replay_can(&s->probe)) return true;
  }
  return false;
}

static hk_status check_required(const hk_draft *draft) {
  static const hk_load_kind needed[] = {HK_LOAD_H2D,        HK_LOAD_D2H,     HK_LOAD_MAPPED,
                                        HK_LOAD_ADAMW_GPU,  HK_LOAD_MEMORY,  HK_LOAD_ADAMW_CPU,
                                        HK_LOAD_ADAMW_FP32, HK_LOAD_UNSCALE, HK_LOAD_CAST};
  missing m = {0};
  for (size_t i = 0; i < sizeof needed / sizeof *needed; i++) {
    size_t at = 0;
    if (!hk_draft_alone(draft, needed[i], &at))
      add_missing(&m, hk_load_name(needed[i]), failure_of(draft->campaign, needed[i]));
  }
  if (!has_group(draft->campaign, HK_PROBE_DUPLEX)) add_missing(&m, "h2d+d2h", "");
  if (draft->fingerprint->gpus > 1 && !has_group(draft->campaign, HK_PROBE_FABRIC))
    add_missing(&m, "h2d and d2h of all GPUs", "");
  if (draft->fingerprint->memory <= 0) add_missing(&m, "the size of the host's memory", "");
  if (m.length == 0) return HK_OK;
  return hk_fail(draft->err, HK_NO, "a profile needs these probes, which are missing or failed: %s",
                 m.names);
}

/* -- Replays ----------------------------------------------------------------------------------- */

/* The simulator does not model chunks: only probes with the profile's chunk are replayed. It models
 * pieces: probes of any piece are replayed. */
static bool is_replayed(const hk_draft *draft, const hk_series *s) {
  for (int i = 0; i < s->probe.n_loads; i++) {
    const hk_load *load = &s->probe.loads[i];
    if (hk_load_is(load->kind, HK_TRAIT_CPU) && load->chunk != draft->chunk) return false;
  }
  return hk_series_counts(s) && hk_replay_can(&s->probe);
}

static hk_status replay(const hk_draft *draft, const hk_series *s, hk_replayed *out) {
  double measured[HK_PROBE_LOADS] = {0}, predicted[HK_PROBE_LOADS];
  for (int i = 0; i < s->probe.n_loads; i++) measured[i] = s->summary[i].median;
  HK_TRY(hk_replay(&s->probe, &draft->fit->machine, measured, predicted, draft->err));
  for (int i = 0; i < s->probe.n_loads; i++) {
    out[i] = (hk_replayed){.load = i,
                           .measured = measured[i],
                           .predicted = predicted[i],
                           .error_pct = 100 * (predicted[i] / measured[i] - 1)};
    memcpy(out[i].probe, s->probe.name, sizeof out[i].probe);
  }
  return HK_OK;
}

/* Whether a quantity was set from this one value. Its replay agrees by construction and does not
 * count as evidence. */
static bool sets_a_quantity(const hk_draft *draft, const hk_replayed *r) {
  const hk_series *s = hk_campaign_find(draft->campaign, r->probe);
  return s != NULL && s->probe.loads[r->load].kind == HK_LOAD_UPDATE;
}

static size_t count_once(const hk_campaign *campaign) {
  size_t n = 0;
  for (size_t i = 0; i < campaign->n; i++) n += campaign->series[i].rounds == 1;
  return n;
}

static hk_status summarise(const hk_draft *draft) {
  hk_profile_fit *fit = draft->fit;
  double *errors = malloc((fit->n_replays + 1) * sizeof *errors);
  if (!errors)
    return hk_fail_memory(draft->err, fit->n_replays * sizeof *errors, "the replays of a profile");
  size_t n = 0;
  for (size_t i = 0; i < fit->n_replays; i++)
    if (!sets_a_quantity(draft, &fit->replays[i])) errors[n++] = fabs(fit->replays[i].error_pct);
  gsl_sort(errors, 1, n);
  fit->median_error_pct = gsl_stats_median_from_sorted_data(errors, 1, n);
  fit->p90_error_pct = gsl_stats_quantile_from_sorted_data(errors, 1, n, 0.9);
  fit->worst_error_pct = errors[n - 1];
  free(errors);
  HK_TRY(hk_expected_error_of(&fit->machine, fit->p90_error_pct, &fit->expected, draft->err));
  fit->once = count_once(draft->campaign);
  fit->accepted = fit->expected.expected_pct <= HK_MOST_EXPECTED_PCT && fit->once == 0;
  return HK_OK;
}

static hk_status replay_all(const hk_draft *draft) {
  hk_profile_fit *fit = draft->fit;
  size_t room = 0;
  for (size_t i = 0; i < draft->campaign->n; i++)
    room += (size_t)draft->campaign->series[i].probe.n_loads;
  fit->replays = calloc(room, sizeof *fit->replays);
  if (!fit->replays)
    return hk_fail_memory(draft->err, room * sizeof *fit->replays, "the replays of a profile");
  for (size_t i = 0; i < draft->campaign->n; i++) {
    const hk_series *s = &draft->campaign->series[i];
    if (!is_replayed(draft, s)) continue;
    HK_TRY(replay(draft, s, fit->replays + fit->n_replays));
    fit->n_replays += (size_t)s->probe.n_loads;
  }
  return summarise(draft);
}

/* -- The fit ----------------------------------------------------------------------------------- */

static hk_status put_drive(hk_draft *draft, hk_quantity *quantity, const double *rates,
                           const char *what) {
  const hk_drive_rates *drives = draft->drives;
  hk_summary summary;
  char size[16];
  HK_TRY(hk_summarise(rates, drives->rounds, &summary, draft->err));
  hk_draft_set(draft, quantity, HK_ORIGIN_MEASURED, hk_estimate_median(&summary, 1),
               "median of %zu sequential %s of %s, direct I/O", drives->rounds, what,
               hk_format_bytes(drives->bytes, size, sizeof size));
  return HK_OK;
}

static hk_status put_drives(hk_draft *draft) {
  const hk_drive_rates *drives = draft->drives;
  if (!drives || drives->rounds == 0) return HK_OK;
  HK_TRY(put_drive(draft, &draft->machine.nvme_read, drives->read, "reads"));
  return put_drive(draft, &draft->machine.nvme_write, drives->write, "writes");
}

static hk_status make(hk_draft *draft) {
  HK_TRY(check_required(draft));
  HK_TRY(hk_draft_open(draft));
  HK_TRY(hk_draft_node(draft));
  HK_TRY(hk_draft_copies(draft));
  HK_TRY(hk_draft_links(draft));
  hk_draft_special(draft);
  HK_TRY(hk_draft_cpu(draft));
  hk_draft_ratios(draft);
  HK_TRY(hk_draft_region(draft));
  HK_TRY(put_drives(draft));
  HK_TRY(hk_draft_finish(draft));
  return replay_all(draft);
}

hk_status hk_profile_fit_make(const hk_campaign *campaign, const hk_fingerprint *fingerprint,
                              const hk_profile_fit_options *options, hk_profile_fit *fit,
                              hk_error *err) {
  hk_error local = {0};
  *fit = (hk_profile_fit){0};
  hk_draft draft = {.campaign = campaign,
                    .fingerprint = fingerprint,
                    .name = options->name,
                    .description = options->description,
                    .date = options->date,
                    .drives = options->drives,
                    .fit = fit,
                    .err = err ? err : &local};
  /* GSL's default handler aborts the program. Every status is checked instead. */
  gsl_error_handler_t *before = gsl_set_error_handler_off();
  const hk_status status = make(&draft);
  gsl_set_error_handler(before);
  hk_draft_close(&draft);
  if (status != HK_OK) hk_profile_fit_free(fit);
  return status;
}

void hk_profile_fit_free(hk_profile_fit *fit) {
  hk_machine_free(&fit->machine);
  free(fit->quantities);
  free(fit->segments);
  free(fit->replays);
  *fit = (hk_profile_fit){0};
}
