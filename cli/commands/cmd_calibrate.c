/* SPDX-License-Identifier: GPL-3.0-or-later */
/* hocket calibrate: measures this machine and stores a profile of it. Report:
 * cli/print/print_calibration.c. */
#include <stdio.h>
#include <unistd.h>

#include "calib/calibrate.h"
#include "calib/stand/busy.h"
#include "cli/command.h"
#include "cli/interrupt.h"
#include "cli/lock.h"
#include "cli/print/emit.h"
#include "cli/print/print_calibration.h"
#include "cli/print/screen.h"
#include "core/base/json.h"

#define LOOK (3 * HK_NS_PER_S / 10) /* time in which the load of other processes is measured */

/* -- Progress ---------------------------------------------------------------------------------- */

typedef struct {
  bool watched; /* stderr is a terminal */
  bool quiet;
  hk_ns told;
  hk_busy busy; /* load since the start */
  bool looked;  /* the load of other processes was checked */
} progress;

static void end_progress(const progress *p) {
  if (p->watched) hk_screen_progress_end();
}

static void note_busy(const progress *p, const char *when) {
  int cpus = 0;
  const double others = hk_busy_others(&p->busy, &cpus);
  if (p->quiet || !hk_busy_matters(others, cpus)) return;
  end_progress(p);
  fprintf(stderr,
          "hocket calibrate: note: the machine is busy: other processes use%s %.1f of %d CPUs; "
          "the profile will be noisy and too slow\n",
          when, others, cpus);
}

static void show_progress(void *context, const char *probe, double share, double left_s,
                          size_t narrow, size_t n) {
  progress *p = context;
  const hk_ns at = hk_now();
  if (!p->looked && at - p->busy.at > LOOK) { /* early: a calibration takes minutes */
    p->looked = true;
    note_busy(p, "");
  }
  if (!p->watched || at - p->told < HK_NS_PER_S / 5) return;
  p->told = at;
  hk_screen_progress("hocket calibrate: %.0f %%, about %.0f s left, %zu of %zu probes precise; %s",
                     100 * share, left_s, narrow, n, probe);
}

/* -- Answer ------------------------------------------------------------------------------------ */

/* Options that define the measurements; a resumed calibration needs the same. */
#define SAME                                                                           \
  (HK_OPTION(BACKEND) | HK_OPTION(DEVICE) | HK_OPTION(GPUS) | HK_OPTION(CPU_THREADS) | \
   HK_OPTION(MEMORY) | HK_OPTION(QUICK) | HK_OPTION(BUDGET) | HK_OPTION(TARGET) | HK_OPTION(NVME))

static hk_status interrupted(const hk_args *args, hk_store *store, hk_error *err) {
  hk_calibration_run run;
  hk_fingerprint f;
  char again[700];
  HK_TRY(hk_calibration_run_unfinished(store, args->name, &run, &f, err));
  if (args->json) {
    bool ok = true;
    cJSON *root = hk_emit_begin("hocket.calibration/1", &ok);
    hk_put_string(root, "name", run.name, &ok);
    hk_put_bool(root, "interrupted", true, &ok);
    hk_put_number(root, "samples", (double)run.samples, &ok);
    HK_TRY(hk_emit_print(root, ok, err));
    HK_TRY(hk_emit_flush(err));
  }
  return hk_fail(
      err, HK_NO,
      "interrupted; %zu samples are stored; continue with: hocket calibrate --resume --name %s%s",
      run.samples, run.name, hk_args_again(args, SAME, again, sizeof again));
}

static hk_status answer(const hk_args *args, hk_store *store, const hk_calibration *c,
                        hk_error *err) {
  if (c->campaign.interrupted) return interrupted(args, store, err);
  cJSON *document = NULL;
  HK_TRY(hk_profiles_document(store, c->fit.machine.name, &document, err));
  hk_status status = args->json
                         ? hk_print_calibration_json(args, c, document, err)
                         : hk_print_calibration_text(args, c, document, hk_store_name(store), err);
  if (status == HK_OK) status = hk_emit_flush(err);
  if (status == HK_OK && args->output) status = hk_json_save(document, args->output, err);
  cJSON_Delete(document);
  HK_TRY(status);
  if (args->output && !args->quiet)
    fprintf(stderr, "hocket calibrate: wrote the profile to %s\n", args->output);
  return hk_judge_calibration(c, err);
}

/* -- The command ------------------------------------------------------------------------------- */

static hk_status calibrate(const hk_args *args, hk_store *store, hk_calibration *c, hk_error *err) {
  progress p = {.watched = !args->quiet && isatty(STDERR_FILENO), .quiet = args->quiet};
  hk_calibrate_options options = {
      .stand = {.first_device = (int)args->device,
                .gpus = (int)args->gpus,
                .cores = (int)args->cpu_threads,
                .host_bytes = args->memory},
      .name = args->name,
      .version = HK_BUILD,
      .quick = args->quick,
      .resume = args->resume,
      .replace = args->replace,
      .budget_s = args->budget,
      .target = args->target / 100,
      .seed = (uint64_t)args->seed,
      .nvme = args->nvme,
      .progress = show_progress,
      .context = &p,
  };
  HK_TRY(hk_backend_find(args->backend == 0 ? "cuda" : "host", &options.stand.ops, err));
  options.stop = hk_interrupt_catch();
  hk_busy_begin(&p.busy);
  const hk_status status = hk_calibrate(store, &options, c, err);
  end_progress(&p);
  if (c->campaign.seconds > 0) note_busy(&p, "d");
  HK_TRY(status);
  if (*c->note && !args->quiet) fprintf(stderr, "hocket calibrate: note: %s\n", c->note);
  return answer(args, store, c, err);
}

static hk_status run(const hk_args *args, hk_error *err) {
  hk_store *store = NULL;
  hk_calibration calibration = {0};
  HK_TRY(hk_emit_check_output(args->output, err));
  HK_TRY(hk_store_open(NULL, false, &store, err));
  hk_status status = hk_lock_calibration(hk_store_name(store), "calibrate", args->quiet, err);
  if (status == HK_OK) status = calibrate(args, store, &calibration, err);
  hk_calibration_free(&calibration);
  hk_store_close(store);
  return status;
}

const hk_command hk_command_calibrate = {
    .name = "calibrate",
    .summary = "Measures this machine and stores a profile of it",
    .usage = "[--backend cuda|host] [--name NAME] [--quick] [OPTIONS]",
    .details =
        "Measures copies, kernels and host memory, alone and together, in random order.\n"
        "It fits a profile and simulates every measurement with it. The answer is the\n"
        "error that is expected of updates predicted with the profile. Measuring ends\n"
        "when more time would not make that smaller, or when time is up.\n"
        "Duration: up to ten minutes, with --quick less than one. Every sample is stored\n"
        "when it is taken: after Ctrl-C, --resume continues.\n"
        "Exit 1: the profile is stored, but a probe failed or the expected error exceeds\n"
        "15 % (nine in ten). Exit 3: no such device, or another calibration uses the\n"
        "store.",
    .example = "hocket calibrate --name this-node",
    .output = "also write the profile to a file",
    .options = SAME | HK_OPTION(NAME) | HK_OPTION(RESUME) | HK_OPTION(REPLACE) | HK_OPTION(SEED) |
               HK_OPTION(OUTPUT) | HK_OPTION(JSON) | HK_OPTION(WIDE) | HK_OPTION(EXPLAIN) |
               HK_OPTION(QUIET),
    .run = run,
};
