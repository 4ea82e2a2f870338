/* SPDX-License-Identifier: GPL-3.0-or-later */
/* hocket estimate: the memory of a training step, without a machine. */
#include <stdio.h>
#include <string.h>

#include "cli/command.h"
#include "cli/jobs.h"
#include "cli/print/emit.h"
#include "cli/print/report.h"
#include "cli/print/screen.h"
#include "cli/print/table.h"
#include "cli/setup.h"
#include "cli/smallest_gpu.h"
#include "sim/footprint.h"

#define DEFAULT_GPUS 8

typedef struct {
  hk_model model;
  hk_job job;
  hk_optimizer optimizer;
  hk_accumulate accumulate; /* of ways with offload */
  hk_footprint ways[HK_WAY_COUNT];
  hk_smallest_gpu gpus[HK_WAY_COUNT];
} estimate;

/* With one data-parallel rank the divided ways are those of one GPU. */
static bool is_shown(const estimate *e, hk_way way) {
  return e->ways[way].ranks > 0 && (hk_job_dp(&e->job) > 1 || !hk_way_is_divided(way));
}

/* -- Text -------------------------------------------------------------------------------------- */

/* "13.4 to 26.0" with `to` " to ", or "13.4" */
static const char *tell_peak(const hk_footprint *f, const char *to, char *buffer, size_t size) {
  snprintf(buffer, size, "%.1f", hk_gib(f->gpu_least));
  const size_t used = strlen(buffer);
  char most[32];
  snprintf(most, sizeof most, "%.1f", hk_gib(f->gpu));
  if (strcmp(most, buffer) != 0) snprintf(buffer + used, size - used, "%s%s", to, most);
  return buffer;
}

/* Of which jobs host memory is. */
static const char *tell_jobs(const estimate *e) {
  return hk_job_jobs(&e->job) > 1 ? " (all jobs)" : "";
}

/* Divided experts are on several ranks, so no way is for one. */
static void print_divided(const estimate *e) {
  const hk_way way = e->ways[HK_WAY_ZERO3].ranks > 0 ? HK_WAY_ZERO3 : HK_WAY_ZERO1;
  const hk_footprint *all = &e->ways[way], *offload = &e->ways[HK_WAY_ZERO3_OFFLOAD];
  char smallest[128], peak[64], each[32], offloaded[128] = "";
  if (offload->ranks > 0)
    snprintf(offloaded, sizeof offloaded, "%s GiB GPU + %.1f GiB host%s with offload; ",
             tell_peak(offload, " to ", peak, sizeof peak), hk_gib(offload->host), tell_jobs(e));
  hk_print_text(0, 2, "%sneeds %.1f GiB on each of %d GPUs (%s); %ssmallest GPU: %s",
                hk_jobs_each(&e->job, each, sizeof each), hk_gib(all->gpu),
                all->ranks * e->job.tp * hk_job_pp(&e->job), hk_way_name(way), offloaded,
                hk_smallest_gpu_text(&e->gpus[way], smallest, sizeof smallest));
}

static void print_answer(const estimate *e) {
  if (e->ways[HK_WAY_GPU].ranks == 0) {
    print_divided(e);
    return;
  }
  const hk_way way = e->ways[HK_WAY_OFFLOAD].ranks > 0 ? HK_WAY_OFFLOAD : HK_WAY_STREAM;
  const hk_footprint *all = &e->ways[HK_WAY_GPU], *offload = &e->ways[way];
  char alone[128], offloaded[128], peak[64], jobs[32], each[40] = "one GPU";
  const int pp = hk_job_pp(&e->job);
  if (e->job.tp * pp > 1)
    snprintf(each, sizeof each, "each of %d GPUs (%s)", e->job.tp * pp,
             pp == 1          ? "tp"
             : e->job.tp == 1 ? "pp"
                              : "tp, pp");
  hk_print_text(
      0, 2,
      "%sneeds %.1f GiB on %s; %s GiB GPU + %.1f GiB host%s with offload; smallest GPU: %s; "
      "with offload: %s",
      hk_jobs_each(&e->job, jobs, sizeof jobs), hk_gib(all->gpu), each,
      tell_peak(offload, " to ", peak, sizeof peak), hk_gib(offload->host), tell_jobs(e),
      hk_smallest_gpu_text(&e->gpus[HK_WAY_GPU], alone, sizeof alone),
      hk_smallest_gpu_text(&e->gpus[way], offloaded, sizeof offloaded));
}

static void print_heading(const estimate *e) {
  char count[32], other[32], frozen[64] = "", sums[48] = "", pipeline[96];
  const hk_job *job = &e->job;
  if (e->model.frozen_parameters > 0)
    snprintf(frozen, sizeof frozen, " trained, %s frozen",
             hk_format_count(e->model.frozen_parameters, other, sizeof other));
  if (job->grad_accum > 1)
    snprintf(sums, sizeof sums, " (with offload summed in %s memory)",
             e->accumulate == HK_ACCUMULATE_GPU ? "GPU" : "host");
  hk_print_text(
      0, 0,
      "%s: %s parameters%s, %s; micro-batch %d, seq %d, activations %s, grad-accum %d%s, tp %d%s, "
      "%d data-parallel rank%s",
      e->model.name, hk_format_count(e->model.parameters, count, sizeof count), frozen,
      hk_optimizer_names[e->optimizer], job->micro_batch, job->seq,
      job->checkpoint_activations ? "checkpointed" : "kept", job->grad_accum, sums, job->tp,
      hk_tell_pipeline(job, pipeline, sizeof pipeline), hk_job_dp(job),
      hk_job_dp(job) == 1 ? "" : "s");
  const hk_activations a = hk_activations_of(&e->model, job);
  hk_print_text(0, 0,
                "activations of a rank: %.1f GiB saved by forward, up to %.1f GiB of temporary "
                "memory in backward",
                hk_gib(a.saved), hk_gib(a.workspace));
}

static hk_status print_ways(const estimate *e, hk_error *err) {
  static const hk_column columns[] = {{"way", HK_LEFT},
                                      {"GPU GiB", HK_RIGHT},
                                      {"host GiB", HK_RIGHT},
                                      {"weights", HK_RIGHT},
                                      {"grads", HK_RIGHT},
                                      {"state", HK_RIGHT},
                                      {"rest", HK_RIGHT},
                                      {"fits on", HK_RIGHT | HK_SPARE(1)},
                                      {"meaning", HK_LEFT | HK_SPARE(2)}};
  hk_table table = HK_TABLE(columns);
  for (int way = 0; way < HK_WAY_COUNT; way++) {
    const hk_footprint *f = &e->ways[way];
    char peak[64];
    const double smallest = e->gpus[way].gib;
    if (!is_shown(e, (hk_way)way)) continue;
    hk_table_row(&table, "%s\t%s\t%.1f\t%.1f\t%.1f\t%.1f\t%.1f", hk_way_name((hk_way)way),
                 tell_peak(f, "-", peak, sizeof peak), hk_gib(f->host), hk_gib(f->weights),
                 hk_gib(f->gradients), hk_gib(f->optimizer), hk_gib(f->rest));
    if (smallest > 0)
      hk_table_cell(&table, "%g GB", smallest);
    else
      hk_table_cell(&table, "-");
    hk_table_cell(&table, "%s", hk_way_meaning((hk_way)way));
  }
  return hk_table_print(&table, err);
}

static void print_notes(const hk_model *model) {
  for (int i = 0; i < model->n_notes; i++)
    hk_print_text(0, 0, "note: %s: %s", model->name, model->notes[i]);
}

static hk_status print_text(const estimate *e, hk_error *err) {
  print_answer(e);
  putchar('\n');
  print_heading(e);
  putchar('\n');
  HK_TRY(print_ways(e, err));
  hk_print_text(0, 0,
                "GPU GiB: peak of each GPU; of a range the end if gradients leave it more slowly "
                "than backward makes them, and wait. Host memory: of all GPUs%s together. rest: "
                "activations, workspaces, gathered weights, staging buffers, waiting gradients. "
                "fits on: the smallest GPU of 'hocket machine parts gpu' with bf16.",
                hk_job_jobs(&e->job) > 1 ? " of all jobs" : "");
  print_notes(&e->model);
  return HK_OK;
}

/* -- JSON -------------------------------------------------------------------------------------- */

static void put_way(cJSON *array, const estimate *e, hk_way way, bool *ok) {
  const hk_footprint *f = &e->ways[way];
  const double smallest = e->gpus[way].gib;
  cJSON *object = hk_put_element(array, ok);
  hk_put_string(object, "way", hk_way_name(way), ok);
  hk_put_string(object, "meaning", hk_way_meaning(way), ok);
  hk_put_number(object, "gpus", f->ranks * e->job.tp, ok);
  hk_put_number(object, "gpu_bytes", (double)f->gpu, ok);
  hk_put_number(object, "gpu_least_bytes", (double)f->gpu_least, ok);
  hk_put_number(object, "host_bytes", (double)f->host, ok);
  hk_put_number(object, "weights_bytes", (double)f->weights, ok);
  hk_put_number(object, "gradients_bytes", (double)f->gradients, ok);
  hk_put_number(object, "optimizer_bytes", (double)f->optimizer, ok);
  hk_put_number(object, "rest_bytes", (double)f->rest, ok);
  hk_put_item(object, "smallest_gpu_gb",
              smallest > 0 ? cJSON_CreateNumber(smallest) : cJSON_CreateNull(), ok);
}

static hk_status print_json(const estimate *e, hk_error *err) {
  bool ok = true;
  cJSON *root = hk_emit_begin("hocket.estimate/1", &ok);
  hk_put_string(root, "model", e->model.name, &ok);
  hk_put_number(root, "parameters", (double)e->model.parameters, &ok);
  if (e->model.frozen_parameters > 0)
    hk_put_number(root, "frozen_parameters", (double)e->model.frozen_parameters, &ok);
  hk_put_string(root, "optimizer", hk_optimizer_names[e->optimizer], &ok);
  hk_put_number(root, "spares_bytes", (double)hk_spare_bytes(e->optimizer, e->model.parameters),
                &ok);
  cJSON *job = hk_put_object(root, "job", &ok);
  hk_put_number(job, "tp", e->job.tp, &ok);
  hk_put_pipeline(&e->job, job, &ok);
  hk_put_number(job, "dp", hk_job_dp(&e->job), &ok);
  hk_put_number(job, "micro_batch", e->job.micro_batch, &ok);
  hk_put_number(job, "grad_accum", e->job.grad_accum, &ok);
  hk_put_number(job, "seq", e->job.seq, &ok);
  hk_put_bool(job, "checkpoint_activations", e->job.checkpoint_activations, &ok);
  if (e->job.grad_accum > 1)
    hk_put_string(job, "accumulate", hk_accumulate_names[e->accumulate], &ok);
  const hk_activations a = hk_activations_of(&e->model, &e->job);
  cJSON *activations = hk_put_object(root, "activations", &ok);
  hk_put_number(activations, "saved_bytes", (double)a.saved, &ok);
  hk_put_number(activations, "workspace_bytes", (double)a.workspace, &ok);
  cJSON *ways = hk_put_array(root, "ways", &ok);
  for (int way = 0; way < HK_WAY_COUNT; way++)
    if (is_shown(e, (hk_way)way)) put_way(ways, e, (hk_way)way, &ok);
  cJSON *notes = hk_put_array(root, "notes", &ok);
  for (int i = 0; i < e->model.n_notes; i++)
    hk_append_item(notes, cJSON_CreateString(e->model.notes[i]), &ok);
  return hk_emit_print(root, ok, err);
}

/* -- The command ------------------------------------------------------------------------------- */

static hk_status make(const hk_args *args, estimate *e, hk_error *err) {
  HK_TRY(hk_setup_model(args, &e->model, err));
  HK_TRY(hk_setup_freeze(args, &e->model, err));
  e->job = hk_setup_job(args, &e->model, DEFAULT_GPUS);
  e->optimizer = (hk_optimizer)args->state;
  /* In host memory unless told: it needs the least of the GPU, and `plan` tries it, too. */
  e->accumulate =
      args->given & HK_OPTION(ACCUMULATE) ? (hk_accumulate)args->accumulate : HK_ACCUMULATE_HOST;
  HK_TRY(hk_footprint_make(&e->model, &e->job, e->optimizer, e->accumulate, e->ways, err));
  hk_parts parts;
  HK_TRY(hk_parts_load(&parts, err));
  hk_status status = HK_OK;
  for (int way = 0; way < HK_WAY_COUNT && status == HK_OK; way++)
    status = hk_smallest_gpu_find(&parts, e->ways[way].gpu, &e->gpus[way], err);
  hk_parts_free(&parts);
  return status;
}

static hk_status run(const hk_args *args, hk_error *err) {
  estimate e = {0};
  hk_status status = make(args, &e, err);
  if (status == HK_OK) status = args->json ? print_json(&e, err) : print_text(&e, err);
  hk_model_free(&e.model);
  return status;
}

const hk_command hk_command_estimate = {
    .name = "estimate",
    .summary = "Estimates the memory that a model needs, without a machine",
    .usage = "--model NAME|FILE [OPTIONS]",
    .details =
        "The first line is the answer: memory on one GPU, memory with the optimizer state\n"
        "in host memory, and the smallest GPU for each. A table divides the memory into\n"
        "weights, gradients, optimizer state and the rest, for one GPU and for ZeRO-1, 2\n"
        "and 3 on all GPUs (--gpus, by default 8, times --nodes, divided by --tp). With\n"
        "'offload' the CPU updates the parameters, with 'stream' the GPU does, after a\n"
        "round trip of the state.",
    .example = "hocket estimate --model llama-2-7b --micro-batch 4 --seq 4k",
    .options = HK_OPTIONS_MODEL | HK_OPTIONS_FROZEN | HK_OPTIONS_JOB | HK_OPTION(STATE) |
               HK_OPTION(ACCUMULATE) | HK_OPTION(JSON) | HK_OPTION(WIDE),
    .run = run,
};
