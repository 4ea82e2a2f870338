/* SPDX-License-Identifier: GPL-3.0-or-later */
/* hocket run: the optimizer steps of a plan on real hardware. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "calib/probes/statistics.h"
#include "calib/stand/fingerprint.h"
#include "cli/checkpoint_due.h"
#include "cli/command.h"
#include "cli/interrupt.h"
#include "cli/lock.h"
#include "cli/print/emit.h"
#include "cli/print/screen.h"
#include "cli/print/table.h"
#include "cli/setup.h"
#include "cli/stored_timeline.h"
#include "engine/trial.h"
#include "traces/chrome.h"

#define DEFAULT_STEPS 10
#define WARM_UP       1 /* steps that are not timed: caches, page tables and clocks settle */

typedef struct {
  hk_plan plan;
  hk_engine *engine;
  hk_trial *trial;
  hk_timeline timeline; /* of the last step */
  double *update_ms;    /* [steps] */
  int steps, wanted, skipped;
  const volatile sig_atomic_t *stop;
  bool interrupted;
  hk_ns saved, save_took; /* time of the last save (at first: of the first step); its duration */
  int saved_steps;        /* steps of this run that the checkpoint includes */
  hk_error mismatch;      /* difference found by --check; HK_OK: none */
  char checksum[33];
  int64_t kept; /* id of the last step's timeline; 0: not stored */
} running;

/* -- Progress ---------------------------------------------------------------------------------- */

static void show_progress(const hk_args *args, const running *r, hk_ns begun) {
  if (args->quiet || !isatty(STDERR_FILENO)) return;
  const double left = hk_s(hk_now() - begun) / r->steps * (r->wanted - r->steps);
  hk_screen_progress("hocket run: step %d of %d, %.1f ms, about %.0f s left", r->steps, r->wanted,
                     r->update_ms[r->steps - 1], left);
}

static void end_progress(const hk_args *args) {
  if (!args->quiet && isatty(STDERR_FILENO)) hk_screen_progress_end();
}

/* -- Running ----------------------------------------------------------------------------------- */

static hk_status make_engine(const hk_args *args, running *r, hk_error *err) {
  hk_engine_options options = {.device = (int)args->device};
  HK_TRY(hk_backend_find(args->backend == 0 ? "cuda" : "host", &options.backend, err));
  HK_TRY(hk_trial_engine(&r->plan, &options, &r->engine, err));
  const bool resumes = args->checkpoint_file != NULL && access(args->checkpoint_file, F_OK) == 0;
  if (resumes) HK_TRY(hk_engine_load(r->engine, args->checkpoint_file, NULL, NULL, err));
  if (!args->quiet) {
    const char *notes = hk_engine_notes(r->engine);
    if (notes[0] != 0) fprintf(stderr, "hocket run: note: %s\n", notes);
    if (resumes) {
      fprintf(stderr, "hocket run: continuing after step %lld of %s\n",
              (long long)hk_engine_step_number(r->engine), args->checkpoint_file);
    }
  }
  return HK_OK;
}

/* -- Saving ------------------------------------------------------------------------------------ */

static hk_status save(const hk_args *args, running *r, hk_error *err) {
  const hk_ns begun = hk_now();
  HK_TRY(hk_engine_save(r->engine, args->checkpoint_file, NULL, NULL, err));
  r->saved = hk_now();
  r->save_took = r->saved - begun;
  r->saved_steps = r->steps;
  return HK_OK;
}

/* Called between two steps. A failure is noted, and the run continues: the file is unchanged, and
 * the next save may succeed. The interval starts again, so that a full disk is not tried after each
 * step. */
static void save_if_due(const hk_args *args, running *r) {
  hk_error why = {0};
  if (args->checkpoint_file == NULL || r->steps == r->wanted) return;
  if (!hk_checkpoint_is_due(args->checkpoint_every, r->steps - r->saved_steps, hk_now() - r->saved,
                            r->save_took))
    return;
  if (save(args, r, &why) == HK_OK) return;
  r->saved = hk_now();
  end_progress(args);
  if (!args->quiet) fprintf(stderr, "hocket run: note: %s; the run continues\n", why.message);
}

/* -- Steps ------------------------------------------------------------------------------------- */

static hk_status take_steps(const hk_args *args, running *r, hk_error *err) {
  const hk_trial_options trial = {
      .seed = (uint64_t)args->seed, .max_norm = args->max_norm, .check = args->check};
  if (!*r->stop) HK_TRY(hk_trial_open(r->engine, &trial, &r->trial, err));
  const hk_ns begun = r->saved = hk_now();
  while (r->steps < r->wanted && !*r->stop) {
    hk_step_report report;
    const hk_status status = hk_trial_step(r->trial, &r->timeline, &report, err);
    if (status == HK_NO) {
      r->mismatch = *err;
      break;
    }
    if (status != HK_OK) return status;
    if (report.skipped) r->skipped++;
    r->update_ms[r->steps++] = hk_ms(report.update);
    show_progress(args, r, begun);
    save_if_due(args, r);
  }
  end_progress(args);
  r->interrupted = *r->stop != 0;
  if (r->interrupted && r->steps == 0) return HK_OK;
  /* A wrong state must not replace a right one. */
  if (args->checkpoint_file != NULL && r->mismatch.status == HK_OK) HK_TRY(save(args, r, err));
  return hk_engine_checksum(r->engine, r->checksum, err);
}

/* -- Storing ----------------------------------------------------------------------------------- */

/* Opens a device of its own, beside the engine's. */
static hk_status take_fingerprint(const hk_args *args, cJSON **out, hk_error *err) {
  const hk_backend_ops *ops = NULL;
  const hk_backend_options options = {.memory = HK_MIB};
  hk_backend *device = NULL;
  hk_fingerprint here;
  HK_TRY(hk_backend_find(args->backend == 0 ? "cuda" : "host", &ops, err));
  HK_TRY(ops->open((int)args->device, &options, &device, err));
  hk_status status = hk_fingerprint_take(device, 1, HK_BUILD, &here, err);
  ops->close(device);
  HK_TRY(status);
  *out = hk_fingerprint_to_json(&here);
  return *out ? HK_OK : hk_fail_memory(err, sizeof here, "a fingerprint");
}

/* --keep: stores the last step's timeline, unless its result was wrong. */
static hk_status keep(const hk_args *args, running *r, hk_error *err) {
  if (!args->keep || r->steps == 0 || r->mismatch.status != HK_OK) return HK_OK;
  cJSON *fingerprint = NULL;
  HK_TRY(take_fingerprint(args, &fingerprint, err));
  const hk_timeline_to_store what = {.measured = true,
                                     .phases = HK_EXPAND_UPDATE,
                                     .plan = hk_engine_plan(r->engine),
                                     .graph = hk_engine_graph(r->engine),
                                     .timeline = &r->timeline,
                                     .fingerprint = fingerprint,
                                     .version = HK_BUILD};
  hk_status status = hk_stored_timeline_add(&what, &r->kept, err);
  cJSON_Delete(fingerprint);
  return status;
}

/* -- Answer ------------------------------------------------------------------------------------ */

typedef struct {
  double median, min, max, params_per_s;
  int n;
} summary;

static summary summarise(const running *r) {
  const int skip = r->steps > WARM_UP ? WARM_UP : 0, n = r->steps - skip;
  summary s = {.n = n};
  if (n == 0) return s;
  double *ms = r->update_ms + skip;
  s.median = hk_median(ms, (size_t)n); /* which sorts them */
  s.min = ms[0];
  s.max = ms[n - 1];
  s.params_per_s = s.median > 0 ? (double)hk_engine_numel(r->engine) / s.median * 1e3 : 0;
  return s;
}

/* What the engine and its tensors' weights take. */
static hk_engine_memory memory_of(const running *r) {
  hk_engine_memory memory = hk_engine_memory_taken(r->engine);
  if (r->trial != NULL) memory.device += hk_trial_weight_bytes(r->trial);
  return memory;
}

static hk_status print_json(const hk_args *args, const running *r, const summary *s,
                            hk_error *err) {
  bool ok = true;
  hk_device_info info;
  hk_engine_device_info(r->engine, &info);
  const hk_engine_memory memory = memory_of(r);
  cJSON *root = hk_emit_begin("hocket.run/1", &ok);
  hk_put_string(root, "backend", args->backend == 0 ? "cuda" : "host", &ok);
  hk_put_string(root, "device", info.name, &ok);
  hk_put_string(root, "policy", r->plan.policy, &ok);
  hk_put_string(root, "runtime", hk_runtime_name(r->plan.runtime), &ok);
  hk_put_number(root, "parameters", (double)hk_engine_numel(r->engine), &ok);
  hk_put_number(root, "steps", r->steps, &ok);
  hk_put_number(root, "step", (double)hk_engine_step_number(r->engine), &ok);
  hk_put_bool(root, "interrupted", r->interrupted, &ok);
  if (args->check) {
    hk_put_bool(root, "bitwise_equal", r->steps > 0 && r->mismatch.status == HK_OK, &ok);
  }
  hk_put_string(root, "checksum", r->checksum, &ok);
  cJSON *update = hk_put_object(root, "update_ms", &ok);
  hk_put_number(update, "median", s->median, &ok);
  hk_put_number(update, "min", s->min, &ok);
  hk_put_number(update, "max", s->max, &ok);
  hk_put_number(root, "update_params_per_s", s->params_per_s, &ok);
  hk_put_number(root, "gpu_memory_bytes", (double)memory.device, &ok);
  hk_put_number(root, "host_memory_bytes", (double)memory.host_pinned, &ok);
  if (r->kept) hk_put_number(root, "timeline", (double)r->kept, &ok);
  return hk_emit_print(root, ok, err);
}

static hk_status print_text(const hk_args *args, const running *r, const summary *s,
                            hk_error *err) {
  char count[32], device_bytes[32], host_bytes[32];
  hk_device_info info;
  hk_engine_device_info(r->engine, &info);
  const hk_engine_memory memory = memory_of(r);
  const hk_column columns[] = {{NULL, HK_LEFT}, {NULL, HK_WRAP}};
  hk_table table = HK_TABLE(columns);
  hk_table_row(&table, "plan\t%s, %s runtime, %s parameters, %zu subgroups", r->plan.policy,
               hk_runtime_name(r->plan.runtime),
               hk_format_count(hk_engine_numel(r->engine), count, sizeof count),
               r->plan.n_subgroups);
  hk_table_row(&table, "device\t%s, %s of its memory; %s of host memory; %d CPU threads", info.name,
               hk_format_bytes(memory.device, device_bytes, sizeof device_bytes),
               hk_format_bytes(memory.host_pinned, host_bytes, sizeof host_bytes),
               r->plan.cpu_threads);
  hk_table_row(&table, "update\t%.3f ms (%.3f to %.3f over %d steps), %.2f G parameters/s",
               s->median, s->min, s->max, s->n, s->params_per_s / 1e9);
  if (args->check && r->mismatch.status == HK_OK) {
    hk_table_row(
        &table,
        "check\tp, m, v and bf16 weights equal those of plain AdamW, bit for bit, in %d steps",
        r->steps);
  }
  hk_table_row(&table, "checksum\t%s", r->checksum);
  if (r->kept) {
    hk_table_row(&table, "stored\tthe last step, as timeline %lld", (long long)r->kept);
  }
  return hk_table_print(&table, err);
}

static hk_status answer(const hk_args *args, running *r, hk_error *err) {
  const summary s = summarise(r);
  HK_TRY(keep(args, r, err));
  const bool idle = r->interrupted && r->steps == 0;
  if (args->json || !idle)
    HK_TRY(args->json ? print_json(args, r, &s, err) : print_text(args, r, &s, err));
  HK_TRY(hk_emit_flush(err));
  if (args->timeline != NULL && r->steps > 0) {
    HK_TRY(hk_chrome_write(hk_engine_graph(r->engine), &r->timeline, "hocket run", args->timeline,
                           err));
    if (!args->quiet) {
      fprintf(stderr, "hocket run: wrote the last step to %s; open it in ui.perfetto.dev\n",
              args->timeline);
    }
  }
  if (r->mismatch.status != HK_OK) {
    *err = r->mismatch;
    return err->status;
  }
  if (!r->interrupted) return HK_OK;
  if (idle)
    return hk_fail(err, HK_NO, "interrupted before the first of %d steps: nothing was changed",
                   r->wanted);
  return hk_fail(err, HK_NO, "interrupted after %d of %d steps%s%s", r->steps, r->wanted,
                 args->checkpoint_file != NULL ? "; the state is in " : "",
                 args->checkpoint_file != NULL ? args->checkpoint_file : "");
}

/* Fails before the first step if a file could not be written after the last one. */
static hk_status check_outputs(const hk_args *args, hk_error *err) {
  hk_store *store = NULL;
  if (args->checkpoint_every > 0 && args->checkpoint_file == NULL)
    return hk_fail(err, HK_INPUT, "--checkpoint-every needs --checkpoint FILE");
  HK_TRY(hk_emit_check_output(args->timeline, err));
  HK_TRY(hk_emit_check_output(args->checkpoint_file, err));
  if (args->checkpoint_file) HK_TRY(hk_lock_checkpoint(args->checkpoint_file, err));
  if (args->keep) HK_TRY(hk_store_open(NULL, false, &store, err));
  hk_store_close(store);
  return HK_OK;
}

static hk_status run_plan(const hk_args *args, running *r, hk_error *err) {
  r->stop = hk_interrupt_catch();
  HK_TRY(check_outputs(args, err));
  HK_TRY(hk_setup_read_plan(args, "run", &r->plan, err));
  if (args->cpu_threads > 0) r->plan.cpu_threads = (int)args->cpu_threads;
  r->wanted = args->steps > 0 ? (int)args->steps : DEFAULT_STEPS;
  r->update_ms = calloc((size_t)r->wanted, sizeof *r->update_ms);
  if (r->update_ms == NULL) return hk_fail_memory(err, (size_t)r->wanted * 8, "step times");
  HK_TRY(make_engine(args, r, err));
  HK_TRY(hk_timeline_init(hk_engine_graph(r->engine), &r->timeline, err));
  HK_TRY(take_steps(args, r, err));
  return answer(args, r, err);
}

static hk_status run(const hk_args *args, hk_error *err) {
  running r = {0};
  const hk_status status = run_plan(args, &r, err);
  hk_trial_close(r.trial);
  hk_engine_destroy(r.engine);
  hk_timeline_free(&r.timeline);
  hk_plan_free(&r.plan);
  free(r.update_ms);
  return status;
}

const hk_command hk_command_run = {
    .name = "run",
    .summary = "Runs a plan's optimizer steps on real hardware, timed",
    .usage = "PLAN.json [--backend cuda|host] [OPTIONS]",
    .details =
        "Takes optimizer steps with generated weights and gradients: real state in host\n"
        "memory, real copies, real kernels. --check compares every bit of weights and\n"
        "state with a plain AdamW after each step. The checksum depends on model, seed\n"
        "and number of steps only, not on the policy. The first step is not timed.\n"
        "Ctrl-C, SIGTERM and SIGHUP stop the run between two steps. With --checkpoint the\n"
        "state is saved, and the same command continues.\n"
        "Exit 1: a bit differs, or the run was interrupted. Exit 3: no such device, or\n"
        "another process uses the checkpoint.",
    .example = "hocket run plan.json --backend host --steps 5 --check",
    .options = HK_OPTION(BACKEND) | HK_OPTION(DEVICE) | HK_OPTION(STEPS) | HK_OPTION(SEED) |
               HK_OPTION(MAX_NORM) | HK_OPTION(CPU_THREADS) | HK_OPTION(CHECK) |
               HK_OPTION(TIMELINE) | HK_OPTION(KEEP) | HK_OPTION(CHECKPOINT_FILE) |
               HK_OPTION(CHECKPOINT_EVERY) | HK_OPTION(JSON) | HK_OPTION(WIDE) | HK_OPTION(QUIET),
    .least_operands = 1,
    .most_operands = 1,
    .run = run,
};
