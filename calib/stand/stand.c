/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Opens and closes the stand. */
#include "calib/stand/stand.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "calib/stand/fingerprint.h"
#include "calib/stand/private.h"
#include "engine/device/topology.h"

#define MOST_HOST   (32 * HK_GIB)
#define MOST_CACHED 0.25 /* largest cached share of a CPU kernel's data */
#define MOST_DEVICE (4 * HK_GIB)
#define TRIAL_HOST  (256 * HK_MIB) /* pinned and filled to measure the speed */

/* ---- Opening --------------------------------------------------------------------------------- */

/* The host backend imitates any number of GPUs: 1, if no number is given. */
static hk_status count_gpus(const hk_stand_options *options, int *gpus, hk_error *err) {
  int there = 0;
  HK_TRY(options->ops->count(&there, err));
  const bool imitated = strcmp(options->ops->name, hk_backend_host.name) == 0;
  const int left = there - options->first_device;
  *gpus = options->gpus > 0 ? options->gpus : imitated ? 1 : left;
  if (options->gpus == 0 && *gpus > HK_STAND_GPUS) *gpus = HK_STAND_GPUS;
  if (options->first_device >= 0 && *gpus >= 1 && *gpus <= left && *gpus <= HK_STAND_GPUS) {
    return HK_OK;
  }
  return hk_fail(err, HK_INPUT,
                 "cannot open %d GPUs (0: all) from GPU %d on: there are %d, and probes use "
                 "at most %d",
                 options->gpus, options->first_device, there, HK_STAND_GPUS);
}

static hk_status open_backends(hk_stand *stand, const hk_stand_options *options, hk_error *err) {
  int gpus = 0;
  HK_TRY(count_gpus(options, &gpus, err));
  for (int g = 0; g < gpus; g++) {
    hk_stand_gpu *gpu = &stand->gpu[g];
    HK_TRY(stand->ops->open(options->first_device + g, &options->host, &gpu->backend, err));
    stand->gpus = g + 1;
    hk_device_info info;
    HK_TRY(stand->ops->info(gpu->backend, &info, err));
    snprintf(gpu->pci, sizeof gpu->pci, "%s", info.pci);
  }
  return HK_OK;
}

static hk_status choose_cores(hk_stand *stand, int wanted, hk_error *err) {
  if (wanted < 0)
    return hk_fail(err, HK_INPUT, "%d cores were requested; 0 (all) or more are possible", wanted);
  hk_fingerprint here;
  stand->cores = wanted;
  if (wanted == 0) {
    HK_TRY(hk_fingerprint_take(stand->gpu[0].backend, stand->gpus, "", &here, err));
    stand->cores = here.cores > 0 ? (int)here.cores : 1;
  }
  hk_error unknown = {0};
  if (hk_cpu_order(stand->gpu[0].pci, &stand->cpus, &stand->n_cpus, &unknown) != HK_OK)
    stand->n_cpus = 0;
  stand->teams = calloc((size_t)stand->cores + 1, sizeof(hk_team *));
  if (stand->teams != NULL) return HK_OK;
  return hk_fail_memory(err, ((size_t)stand->cores + 1) * sizeof(hk_team *), "teams of threads");
}

/* *size: `wanted`, or if that is 0, a quarter of `available`, at most `most`. Refuses less than
 * `least`. */
static hk_status choose_size(hk_bytes wanted, hk_bytes available, hk_bytes most, hk_bytes least,
                             const char *what, hk_bytes *size, hk_error *err) {
  const hk_bytes quarter = available / 4;
  *size = (wanted > 0 ? wanted : quarter < most ? quarter : most) / HK_MIB * HK_MIB;
  if (*size >= least) return HK_OK;
  char is[16], needs[16];
  return hk_fail(err, wanted > 0 ? HK_INPUT : HK_ENVIRONMENT,
                 "%s %s memory for probes is too little: they need %s%s",
                 hk_format_bytes(*size, is, sizeof is), what,
                 hk_format_bytes(least, needs, sizeof needs),
                 wanted > 0 ? "" : " and may use a quarter of the free memory");
}

/* Most host memory. It is so large that the last-level cache holds at most a quarter of the data of
 * each CPU kernel. The kernels' arrays have a quarter of the arena, 24 bytes a parameter; the
 * kernel with the least data (unscale) uses 4 of them. The factor is 4 * 24 / 4 / 0.25 = 96;
 * example: 512 MiB of cache need 48 GiB. */
static hk_bytes most_host(void) {
  const long cache = sysconf(_SC_LEVEL3_CACHE_SIZE); /* 0 or -1: not known */
  const hk_bytes wanted = (hk_bytes)(4 * 24 / 4.0 * (double)cache / MOST_CACHED);
  return wanted > MOST_HOST ? wanted : MOST_HOST;
}

/* Reduces `*size` to what can be pinned and filled in `fill_s` seconds, by a trial. Gigabytes can
 * take minutes on a busy machine, or on a virtual one that gets its memory when it is first used.
 */
static hk_status cut_size(hk_stand *stand, double fill_s, hk_bytes *size, hk_error *err) {
  if (fill_s <= 0 || *size <= TRIAL_HOST) return HK_OK;
  const hk_ns began = hk_now();
  HK_TRY(hk_stand_memory_open(stand, TRIAL_HOST, err));
  hk_stand_memory_close(stand);
  const double s = hk_s(hk_now() - began);
  const hk_bytes in_time = (hk_bytes)((double)TRIAL_HOST * fill_s / s) / HK_MIB * HK_MIB;
  if (in_time >= *size) return HK_OK;
  char is[16], all[16], note[120];
  const hk_bytes cut = in_time > TRIAL_HOST ? in_time : TRIAL_HOST;
  snprintf(note, sizeof note,
           "probes use %s of host memory instead of %s, which would take %.0f s to fill",
           hk_format_bytes(cut, is, sizeof is), hk_format_bytes(*size, all, sizeof all),
           s * (double)*size / (double)TRIAL_HOST);
  hk_stand_add_note(stand, note);
  *size = cut;
  return HK_OK;
}

static hk_status open_memory(hk_stand *stand, const hk_stand_options *options, hk_error *err) {
  hk_bytes host = 0, device = 0;
  HK_TRY(choose_size(options->host_bytes, hk_host_available(), most_host(), HK_PROBE_LEAST_HOST,
                     "of host", &host, err));
  if (options->host_bytes == 0) HK_TRY(cut_size(stand, options->fill_s, &host, err));
  HK_TRY(hk_stand_memory_open(stand, host, err));
  for (int g = 0; g < stand->gpus; g++) {
    hk_device_info info;
    HK_TRY(stand->ops->info(stand->gpu[g].backend, &info, err));
    HK_TRY(choose_size(options->device_bytes, info.memory_free, MOST_DEVICE, HK_PROBE_LEAST_DEVICE,
                       "of device", &device, err));
    HK_TRY(hk_stand_gpu_open(stand, g, device, err));
    HK_TRY(hk_stand_go_on(stand, err));
  }
  return HK_OK;
}

/* Enables copies in a ring, from each GPU to the next. */
static void join_peers(hk_stand *stand) {
  stand->peers = stand->gpus > 1;
  bool all_direct = true;
  for (int g = 0; g < stand->gpus && stand->peers; g++) {
    hk_backend *next = stand->gpu[(g + 1) % stand->gpus].backend;
    bool direct = false;
    hk_error why = {0};
    stand->peers = stand->ops->peer(stand->gpu[g].backend, next, &direct, &why) == HK_OK;
    if (!stand->peers) hk_stand_add_note(stand, why.message);
    all_direct &= direct;
  }
  if (stand->peers && !all_direct) {
    hk_stand_add_note(stand, "copies between GPUs pass through host memory");
  }
}

static hk_status open_all(hk_stand *stand, const hk_stand_options *options, hk_error *err) {
  HK_TRY(open_backends(stand, options, err));
  HK_TRY(choose_cores(stand, options->cores, err));
  HK_TRY(open_memory(stand, options, err));
  join_peers(stand);
  return HK_OK;
}

hk_status hk_stand_open(const hk_stand_options *options, hk_stand **out, hk_error *err) {
  *out = NULL;
  hk_stand *stand = calloc(1, sizeof *stand);
  if (stand == NULL) return hk_fail_memory(err, sizeof *stand, "the probes' stand");
  stand->ops = options->ops;
  stand->stop = options->stop;
  const hk_status status = open_all(stand, options, err);
  if (status == HK_OK) {
    *out = stand;
  } else {
    hk_stand_close(stand);
  }
  return status;
}

void hk_stand_close(hk_stand *stand) {
  if (stand == NULL) return;
  for (int g = 0; g < stand->gpus; g++) hk_stand_gpu_close(stand, &stand->gpu[g]);
  hk_stand_memory_close(stand);
  for (int g = 0; g < stand->gpus; g++) stand->ops->close(stand->gpu[g].backend);
  for (int t = 0; stand->teams != NULL && t <= stand->cores; t++) hk_team_close(stand->teams[t]);
  free(stand->teams);
  free(stand->cpus);
  free(stand->learnt);
  free(stand);
}

/* ---- Scope and arrays ------------------------------------------------------------------------ */

void hk_stand_scope(const hk_stand *stand, hk_probe_scope *scope) {
  *scope = (hk_probe_scope){.gpus = stand->gpus,
                            .cores = stand->cores,
                            .host_bytes = stand->arena.bytes,
                            .device_bytes = stand->gpu[0].bytes,
                            .peers = stand->peers};
  for (int g = 1; g < stand->gpus; g++) {
    if (stand->gpu[g].bytes < scope->device_bytes) scope->device_bytes = stand->gpu[g].bytes;
  }
}

hk_backend *hk_stand_backend(hk_stand *stand, int gpu) {
  return stand->gpu[gpu].backend;
}

const char *hk_stand_note(const hk_stand *stand) {
  return stand->note;
}
