/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Calibrates this machine (calib/calibrate.h). Bad names and options are refused before anything is
 * measured. */
#include "calib/calibrate.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "calib/profiles/internal.h"
#include "core/base/names.h"

/* Default budget and target, least and most rounds of a probe, and length of a run (wish). */
typedef struct {
  double budget_s, target;
  size_t least, most;
  hk_ns wish;
} pace;

static const pace quick_pace = {
    .budget_s = 40, .target = 0.05, .least = 6, .most = 100, .wish = 25 * 1000000};
static const pace full_pace = {
    .budget_s = 480, .target = 0.02, .least = 8, .most = 400, .wish = 60 * 1000000};

/* Of the drives. */
#define QUICK_FILE     ((hk_bytes)1 << 30)
#define FULL_FILE      ((hk_bytes)4 << 30)
#define QUICK_DRIVES_S 15
#define FULL_DRIVES_S  60

/* Most seconds to pin and fill host memory in a quick calibration, which should take a minute in
 * all. */
#define QUICK_FILL_S 10

/* Least length of a run. Runs are shortened if the budget does not cover the least number of rounds
 * of every probe: short runs of every probe are worth more than long runs of some. */
#define LEAST_WISH ((hk_ns)2 * 1000000)
/* Share of the budget that the least number of rounds may take if each run lasts `wish`. Actual
 * runs last longer. */
#define LEAST_SHARE 0.5

typedef struct {
  hk_store *store;
  const hk_calibrate_options *options;
  hk_calibration *out;
  hk_stand *stand;
  hk_calibration_run before; /* the run that is resumed */
  hk_fingerprint was;        /* fingerprint of that run */
  char name[96];             /* of the profile; "" until it is known */
  double opening_s;          /* time to open the stand */
  hk_ns reviewed, reviewing; /* when the last review ended, and how long it took */
  bool quick;
} task;

/* -- Names ------------------------------------------------------------------------------------- */

static hk_status check_name(const char *name, hk_error *err) {
  for (const char *c = name; *c; c++)
    if (!isascii(*c) || (!isalnum((unsigned char)*c) && !strchr("-_.", *c)))
      return hk_fail(err, HK_INPUT,
                     "'%s' cannot be the name of a profile: use letters, digits, '-', '_' and "
                     "'.'",
                     name);
  return hk_profile_check_name(name, err);
}

static hk_status is_shipped(const char *name, bool *shipped, hk_error *err) {
  char **names = NULL;
  size_t n = 0;
  HK_TRY(hk_share_list("machines", &names, &n, err));
  *shipped = false;
  for (size_t i = 0; i < n; i++) *shipped |= strcmp(names[i], name) == 0;
  hk_names_free(names, n);
  return HK_OK;
}

/* Refuses the name of a shipped machine, and that of a stored profile unless it is to be replaced.
 */
static hk_status check_free(const task *t, hk_error *err) {
  bool shipped = false;
  HK_TRY(is_shipped(t->name, &shipped, err));
  if (shipped)
    return hk_fail(err, HK_INPUT,
                   "'%s' is a machine that ships with hocket: give this one another --name",
                   t->name);
  cJSON *stored = NULL;
  HK_TRY(hk_profile_read(t->store, t->name, &stored, err));
  const bool taken = stored && !t->options->replace;
  cJSON_Delete(stored);
  if (!taken) return HK_OK;
  return hk_fail(err, HK_INPUT,
                 "the store '%s' has a profile '%s' already: replace it with --replace, or give "
                 "this one another --name",
                 hk_store_name(t->store), t->name);
}

/* "NVIDIA A100-SXM4-80GB" -> "a100-sxm4-80gb" */
static void add_device(const char *device, char *name, size_t size) {
  static const char vendor[] = "NVIDIA ";
  if (strncmp(device, vendor, strlen(vendor)) == 0) device += strlen(vendor);
  size_t used = 0;
  for (; *device && used + 1 < size; device++) {
    if (isascii(*device) && isalnum((unsigned char)*device))
      name[used++] = (char)tolower((unsigned char)*device);
    else if (used > 0 && name[used - 1] != '-')
      name[used++] = '-';
  }
  while (used > 0 && name[used - 1] == '-') used--;
  name[used] = '\0';
}

/* Makes a name of GPU model, number of GPUs and cores: "h200-4x-64c", "host-2c";
 * "h200-16c-calibrated" if "h200-16c" ships. */
static hk_status make_name(task *t, hk_error *err) {
  const hk_fingerprint *f = &t->out->fingerprint;
  char device[48] = "", gpus[32] = "";
  add_device(f->gpu, device, sizeof device);
  if (f->gpus > 1) snprintf(gpus, sizeof gpus, "-%lldx", (long long)f->gpus);
  hk_probe_scope scope;
  hk_stand_scope(t->stand, &scope);
  snprintf(t->name, sizeof t->name, "%s%s-%dc", device[0] ? device : "gpu", gpus, scope.cores);
  bool shipped = false;
  HK_TRY(is_shipped(t->name, &shipped, err));
  if (shipped) snprintf(t->name + strlen(t->name), sizeof t->name - strlen(t->name), "-calibrated");
  return HK_OK;
}

/* -- Drives ------------------------------------------------------------------------------------ */

static hk_drive_options drive_options(const task *t) {
  return (hk_drive_options){.folder = t->options->nvme,
                            .bytes = t->quick ? QUICK_FILE : FULL_FILE,
                            .budget_s = t->quick ? QUICK_DRIVES_S : FULL_DRIVES_S,
                            .stop = t->options->stop};
}

/* An interruption is no error. */
static hk_status measure_drives(task *t, hk_error *err) {
  const hk_calibrate_options *o = t->options;
  const hk_drive_options options = drive_options(t);
  if (!o->nvme) return HK_OK;
  if (o->progress) o->progress(o->context, "drives", 0, options.budget_s, 0, t->out->campaign.n);
  const hk_status status = hk_drive_measure(&options, &t->out->drives, err);
  t->out->campaign.interrupted = status == HK_NO;
  return status == HK_NO ? HK_OK : status;
}

/* -- Start and resume -------------------------------------------------------------------------- */

/* Settles name, pace and the run to resume, before any device is opened. */
static hk_status settle(task *t, hk_error *err) {
  const hk_calibrate_options *o = t->options;
  t->quick = o->quick;
  if (o->name) {
    HK_TRY(check_name(o->name, err));
    snprintf(t->name, sizeof t->name, "%s", o->name);
  }
  if (o->resume) {
    HK_TRY(hk_calibration_run_unfinished(t->store, o->name, &t->before, &t->was, err));
    t->quick = t->before.quick; /* its samples belong to that campaign's probes */
    snprintf(t->name, sizeof t->name, "%s", t->before.name);
  }
  if (o->nvme) {
    const hk_drive_options drives = drive_options(t);
    HK_TRY(hk_drive_check(&drives, err));
  }
  return t->name[0] ? check_free(t, err) : HK_OK;
}

static hk_status check_same_machine(task *t, hk_error *err) {
  const hk_fingerprint *here = &t->out->fingerprint;
  char differences[600];
  hk_fingerprint was = t->was;
  memcpy(was.version, here->version, sizeof was.version);
  /* Memory and link speed may differ: the memory of a virtual machine can grow, and idle links save
   * power. */
  was.memory = here->memory;
  memcpy(was.pcie, here->pcie, sizeof was.pcie);
  if (hk_fingerprint_compare(&was, here, differences, sizeof differences) > 0)
    return hk_fail(err, HK_INPUT,
                   "the calibration '%s' of %s was started on another machine (%s): start a new "
                   "one here, without --resume",
                   t->name, t->before.started, differences);
  return HK_OK;
}

static hk_status open_campaign(task *t, hk_error *err) {
  hk_probe_scope scope;
  hk_stand_scope(t->stand, &scope);
  scope.quick = t->quick;
  hk_probe *probes = NULL;
  size_t n = 0;
  HK_TRY(hk_probes_list(&scope, &probes, &n, err));
  const hk_status status = hk_campaign_open(probes, n, &t->out->campaign, err);
  free(probes);
  return status;
}

static hk_status begin(task *t, hk_error *err) {
  if (!t->name[0]) {
    HK_TRY(make_name(t, err));
    HK_TRY(check_free(t, err));
  }
  HK_TRY(open_campaign(t, err));
  return hk_calibration_run_begin(t->store, t->name, t->quick, &t->out->fingerprint, &t->out->run,
                                  err);
}

static hk_status go_on(task *t, hk_error *err) {
  HK_TRY(check_same_machine(t, err));
  HK_TRY(open_campaign(t, err));
  t->out->resumed = true;
  t->out->run = t->before.id;
  t->out->campaign.seconds = t->before.seconds;
  return hk_calibration_run_load(t->store, t->before.id, &t->out->campaign, err);
}

/* -- Measuring --------------------------------------------------------------------------------- */

static hk_status keep(void *context, const hk_probe *probe, size_t round, const double *values,
                      hk_error *err) {
  const task *t = context;
  return hk_calibration_run_add_sample(t->store, t->out->run, probe->name, round, probe->n_loads,
                                       values, t->out->campaign.seconds, err);
}

static void progress(void *context, const char *probe, double share, double left_s, size_t narrow,
                     size_t n) {
  const hk_calibrate_options *o = ((const task *)context)->options;
  if (o->progress) o->progress(o->context, probe, share, left_s, narrow, n);
}

static hk_status run_probe(void *stand, const hk_probe *probe, hk_ns wish, bool verify,
                           double *values, hk_error *err) {
  return hk_stand_run(stand, probe, wish, verify, values, err);
}

/* A review takes at most this share of the time. */
#define REVIEW_SHARE 0.1

/* Whether the profile that the samples so far give would become no better by more of them. A sample
 * that gives no profile yet is not enough. Probes need intervals first. */
static hk_status review(void *context, bool *enough, hk_error *err) {
  task *t = context;
  const hk_campaign *campaign = &t->out->campaign;
  const hk_ns began = hk_now();
  (void)err;
  *enough = false;
  for (size_t i = 0; i < campaign->n; i++)
    if (!campaign->series[i].failed && campaign->series[i].rounds < HK_LEAST_ROUNDS) return HK_OK;
  if (hk_s(t->reviewing) > REVIEW_SHARE * hk_s(began - t->reviewed)) return HK_OK;
  const hk_profile_fit_options options = {.name = t->name, .date = ""};
  hk_profile_fit fit;
  if (hk_profile_fit_make(campaign, &t->out->fingerprint, &options, &fit, NULL) == HK_OK) {
    *enough = fit.accepted && hk_expected_error_converged(&fit.expected);
    hk_profile_fit_free(&fit);
  }
  t->reviewed = hk_now();
  t->reviewing = t->reviewed - began;
  return HK_OK;
}

static hk_ns affordable(const pace *p, double budget_s, size_t n_probes) {
  const double runs = (double)n_probes * (double)(p->least + 1);
  const double wish = LEAST_SHARE * budget_s / runs * HK_NS_PER_S;
  return wish >= (double)p->wish ? p->wish : wish <= (double)LEAST_WISH ? LEAST_WISH : (hk_ns)wish;
}

/* Time for measuring. A default budget is reduced by the time to open the stand, to half of it at
 * least; a budget that the user gave is for measuring only. */
static double budget_of(const task *t, const pace *p) {
  if (t->options->budget_s > 0) return t->options->budget_s;
  return fmax(p->budget_s - t->opening_s, p->budget_s / 2);
}

static hk_status measure(task *t, hk_error *err) {
  const hk_calibrate_options *o = t->options;
  t->reviewed = hk_now();
  const pace *p = t->quick ? &quick_pace : &full_pace;
  const double budget_s = budget_of(t, p);
  const hk_campaign_options options = {.target = o->target > 0 ? o->target : p->target,
                                       .budget_s = budget_s,
                                       .least = p->least,
                                       .most = p->most,
                                       .wish = affordable(p, budget_s, t->out->campaign.n),
                                       .seed = o->seed,
                                       .stop = o->stop,
                                       .keep = keep,
                                       .review = review,
                                       .progress = progress,
                                       .context = t,
                                       .run = run_probe,
                                       .clock = o->clock,
                                       .stand = t->stand};
  return hk_campaign_run(&t->out->campaign, &options, err);
}

static hk_status conclude(task *t, hk_error *err) {
  char date[16];
  const time_t now = time(NULL);
  struct tm utc;
  gmtime_r(&now, &utc);
  strftime(date, sizeof date, "%Y-%m-%d", &utc);
  const hk_profile_fit_options options = {.name = t->name, .date = date, .drives = &t->out->drives};
  hk_calibration *out = t->out;
  HK_TRY(hk_profile_fit_make(&out->campaign, &out->fingerprint, &options, &out->fit, err));
  return hk_profiles_save(t->store, &out->fit, &out->campaign, &out->fingerprint, out->run,
                          t->options->replace, err);
}

/* Adds to the error where the samples are stored and how to continue. */
static hk_status say_what_is_kept(const task *t, hk_status status, hk_error *err) {
  if (!err || t->out->run == 0) return status; /* no message wanted, or no run stored */
  if (status == HK_ENVIRONMENT)
    return hk_fail(err, status,
                   "%s; the samples measured so far are in '%s': continue with calibrate --resume",
                   err->message, hk_store_name(t->store));
  if (status == HK_NO && t->out->campaign.noisy > 0)
    return hk_fail(err, status, "%s; continue with calibrate --resume and a larger --budget",
                   err->message);
  return status;
}

static void take_note(task *t) {
  const hk_calibration *out = t->out;
  char version[300] = "";
  const bool other = out->resumed && strcmp(t->was.version, out->fingerprint.version) != 0;
  const char *stand = hk_stand_note(t->stand);
  if (other)
    snprintf(version, sizeof version, "begun with hocket %.40s, ended with %.40s%s", t->was.version,
             out->fingerprint.version, stand[0] ? "; " : "");
  snprintf(t->out->note, sizeof t->out->note, "%.100s%.199s", version, stand);
}

static hk_status calibrate_on(task *t, hk_error *err) {
  hk_calibration *out = t->out;
  hk_probe_scope scope;
  hk_stand_scope(t->stand, &scope);
  HK_TRY(hk_fingerprint_take(hk_stand_backend(t->stand, 0), scope.gpus, t->options->version,
                             &out->fingerprint, err));
  HK_TRY(t->options->resume ? go_on(t, err) : begin(t, err));
  hk_status status = measure_drives(t, err);
  if (status == HK_OK && !out->campaign.interrupted) status = measure(t, err);
  if (status == HK_OK && !out->campaign.interrupted) status = conclude(t, err);
  return say_what_is_kept(t, status, err);
}

hk_status hk_calibrate(hk_store *store, const hk_calibrate_options *options, hk_calibration *out,
                       hk_error *err) {
  *out = (hk_calibration){0};
  task t = {.store = store, .options = options, .out = out};
  HK_TRY(settle(&t, err));
  const hk_ns began = hk_now();
  hk_stand_options stand = options->stand;
  stand.stop = options->stop;
  if (t.quick) stand.fill_s = QUICK_FILL_S;
  HK_TRY(hk_stand_open(&stand, &t.stand, err));
  t.opening_s = hk_s(hk_now() - began);
  const hk_status status = calibrate_on(&t, err);
  take_note(&t);
  hk_stand_close(t.stand);
  return status;
}

void hk_calibration_free(hk_calibration *calibration) {
  hk_campaign_free(&calibration->campaign);
  hk_profile_fit_free(&calibration->fit);
  *calibration = (hk_calibration){0};
}
