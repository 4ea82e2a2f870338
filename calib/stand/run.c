/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Runs a probe: chooses the work of each load, starts all loads together, computes rates, verifies
 * data. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "calib/stand/private.h"
#include "core/base/grow.h"
#include "engine/device/topology.h"

#define MOST_OPERATIONS ((int64_t)1 << 22)
#define MOST_TRIES      6

/* ---- Checks ---------------------------------------------------------------------------------- */

/* `alone`: the probe has no other load. */
static hk_status check_room(const hk_stand *stand, const hk_load *l, bool alone, hk_error *err) {
  const hk_stand_gpu *gpu = &stand->gpu[l->gpu];
  int64_t most = INT64_MAX;
  if (l->kind == HK_LOAD_ADAMW_GPU || l->kind == HK_LOAD_UPDATE || l->kind == HK_LOAD_MAPPED) {
    most = gpu->params;
  }
  if (l->kind == HK_LOAD_MAPPED && stand->mapped_params < most) most = stand->mapped_params;
  if (l->kind == HK_LOAD_TURNS) most = hk_min(gpu->quarter, stand->quarter) / HK_STAND_TURNS;
  if (l->kind == HK_LOAD_HOP) most = hk_min(gpu->quarter, stand->quarter);
  if (l->kind == HK_LOAD_MATMUL) {
    const double in = 2.0 * (double)l->k * (double)(l->chunk + l->n);
    const double out = 2.0 * (double)l->chunk * (double)l->n;
    const double room = (double)(alone ? gpu->quarter : hk_stand_half(gpu));
    if (l->n < 1 || l->k < 1 || in > room || out > room || in + out > (double)stand->quarter) {
      most = 0;
    }
  }
  if (l->piece > stand->cpu.params) most = 0;
  if (l->chunk >= 1 && l->chunk <= most) return HK_OK;
  return hk_fail(err, HK_INPUT, "operations of size %lld do not fit into the stand's memory",
                 (long long)l->chunk);
}

/* Whether two loads would use the same device memory: a pull has the same half of `in` as a matrix
 * product, and copies between GPUs have all of `in` and `out`. */
static bool overlap(hk_load_kind kind, hk_load_kind other) {
  return kind == HK_LOAD_MATMUL && (other == HK_LOAD_PULL || other == HK_LOAD_PEER);
}

static hk_status check_load(hk_stand *stand, const hk_probe *probe, int i, hk_error *err) {
  const hk_load *l = &probe->loads[i];
  if (l->kind >= HK_LOAD_KINDS || l->gpu < 0 || l->gpu >= stand->gpus) {
    return hk_fail(err, HK_INPUT, "unknown load, or no GPU %d", l->gpu);
  }
  bool clash = probe->n_loads > 1 && hk_load_is(l->kind, HK_TRAIT_SOLO);
  for (int j = 0; j < i; j++) {
    const hk_load *other = &probe->loads[j];
    clash |= hk_stand_lane_of(stand, l) == hk_stand_lane_of(stand, other);
    clash |= overlap(l->kind, other->kind) || overlap(other->kind, l->kind);
  }
  if (clash)
    return hk_fail(err, HK_INPUT, "%s cannot run beside the probe's other loads",
                   hk_load_name(l->kind));
  return check_room(stand, l, probe->n_loads == 1, err);
}

/* ---- Amounts of work ------------------------------------------------------------------------- */

/* Rate that is assumed before the first run of a probe, rather too low. */
static double guess(const hk_load *l) {
  switch (*hk_load_unit(l->kind)) {
    case 'B':
      return 2e9;
    case 'P':
      return 1e8 * (l->threads > 0 ? l->threads : 1);
    case 'F':
      return 1e9;
    default:
      return 1e5; /* launches */
  }
}

/* Finds the entry of a probe's rates in earlier runs; adds an entry of zeros before its first run.
 */
static hk_status find_learnt(hk_stand *stand, const char *probe, size_t *number, hk_error *err) {
  *number = 0;
  while (*number < stand->n_learnt && strcmp(stand->learnt[*number].probe, probe) != 0) ++*number;
  if (*number < stand->n_learnt) return HK_OK;
  HK_TRY(HK_GROW(stand->learnt, stand->learnt_room, stand->n_learnt, "the rates of probes", err));
  hk_stand_learnt *new = &stand->learnt[stand->n_learnt++];
  *new = (hk_stand_learnt){0};
  memcpy(new->probe, probe, sizeof new->probe);
  return HK_OK;
}

static int64_t operations(double n) {
  return n < 1 ? 1 : n > (double)MOST_OPERATIONS ? MOST_OPERATIONS : llround(n);
}

/* Chooses the operations of each load so that it lasts about `wish` ns. The loads of WHOLE probes
 * get the same sum of work, divided in the ratio of `share`, in units that keep the ratio exact. */
static void choose_amounts(hk_stand_job *jobs, const hk_probe *probe, const double *learnt,
                           double wish) {
  double sum = 0, shares = 0, unit = 0;
  for (int i = 0; i < probe->n_loads; i++) {
    const double rate = learnt[i] > 0 ? learnt[i] : guess(jobs[i].load);
    const double work = hk_stand_work(jobs[i].stand, jobs[i].load);
    jobs[i].ops = jobs[i].load->kind == HK_LOAD_MEMORY ? 1 : operations(rate * wish / 1e9 / work);
    sum += rate * wish / 1e9;
    shares += jobs[i].load->share;
    if (work > unit) unit = work;
  }
  if (probe->mode != HK_PROBE_WHOLE || !(shares > 0)) return;
  const double units = (double)operations(sum / shares / unit);
  for (int i = 0; i < probe->n_loads; i++) {
    const hk_load *l = jobs[i].load;
    jobs[i].ops = operations(units * l->share * unit / hk_stand_work(jobs[i].stand, l));
  }
}

/* Sets each load's first operation, behind those of earlier runs, its number of stretches and its
 * seed. */
static void set_out(hk_stand *stand, hk_stand_job *jobs, int n) {
  int64_t most = 0;
  for (int i = 0; i < n; i++) {
    jobs[i].first = stand->turn;
    jobs[i].n = (size_t)(jobs[i].ops < HK_STAND_STRETCHES ? jobs[i].ops : HK_STAND_STRETCHES);
    jobs[i].seed = stand->dice += 16;
    jobs[i].err = (hk_error){0};
    if (jobs[i].ops > most) most = jobs[i].ops;
  }
  stand->turn += most + 1; /* + 1: verification may run one more */
}

/* ---- Loads at the same time ------------------------------------------------------------------ */

typedef enum { SHUT, OPEN, CALLED_OFF } gate_state;

typedef struct {
  pthread_mutex_t lock;
  pthread_cond_t changed;
  int waiting;
  gate_state state;
} gate;

typedef struct {
  hk_stand_job *job;
  gate *gate;
  pthread_t thread;
} runner;

static gate_state wait_at(gate *g) {
  pthread_mutex_lock(&g->lock);
  g->waiting++;
  pthread_cond_broadcast(&g->changed);
  while (g->state == SHUT) pthread_cond_wait(&g->changed, &g->lock);
  const gate_state state = g->state;
  pthread_mutex_unlock(&g->lock);
  return state;
}

static void open_gate(gate *g, int expected, gate_state state) {
  pthread_mutex_lock(&g->lock);
  while (g->waiting < expected) pthread_cond_wait(&g->changed, &g->lock);
  g->state = state;
  pthread_cond_broadcast(&g->changed);
  pthread_mutex_unlock(&g->lock);
}

static void *run_lane(void *argument) {
  const runner *r = argument;
  hk_thread_prompt(); /* as the engine's threads that queue */
  if (wait_at(r->gate) == OPEN) hk_stand_gpu_run(r->job);
  return NULL;
}

/* Runs all loads at once. A full queue blocks its caller, so that every GPU lane has a thread to
 * fill it. The calling thread is the first member of the CPU team. */
static hk_status run_together(hk_stand_job *jobs, int n, hk_stand_job *cpu, hk_team *team,
                              hk_error *err) {
  gate g = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};
  runner runners[HK_PROBE_LOADS];
  int started = 0, failure = 0;
  for (int i = 0; i < n && failure == 0; i++) {
    if (&jobs[i] == cpu) continue;
    runner *r = &runners[started];
    *r = (runner){.job = &jobs[i], .gate = &g};
    failure = hk_stand_thread(jobs[i].stand, cpu != NULL ? hk_team_threads(team) : 0, 1 + started,
                              run_lane, r, &r->thread);
    started += failure == 0;
  }
  if (cpu != NULL) hk_team_join(team);
  open_gate(&g, started, failure == 0 ? OPEN : CALLED_OFF);
  if (cpu != NULL && failure == 0) hk_stand_cpu_run(cpu, team);
  if (cpu != NULL) hk_cpu_unpin();
  for (int i = 0; i < started; i++) pthread_join(runners[i].thread, NULL);
  pthread_cond_destroy(&g.changed);
  pthread_mutex_destroy(&g.lock);
  if (failure == 0) return HK_OK;
  return hk_fail(err, HK_ENVIRONMENT, "cannot start a load's thread: %s", strerror(failure));
}

/* The error of the first load that failed: "h2d on GPU 1: MESSAGE". */
static hk_status first_failure(const hk_stand_job *jobs, int n, hk_error *err) {
  for (int i = 0; i < n; i++) {
    const hk_load *l = jobs[i].load;
    if (jobs[i].err.status == HK_OK) continue;
    char gpu[32] = "";
    if (!hk_load_is(l->kind, HK_TRAIT_CPU)) snprintf(gpu, sizeof gpu, " on GPU %d", l->gpu);
    return hk_fail(err, jobs[i].err.status, "%s%s: %s", hk_load_name(l->kind), gpu,
                   jobs[i].err.message);
  }
  return HK_OK;
}

static hk_status align_clocks(hk_stand *stand, const hk_probe *probe, hk_error *err) {
  bool aligned[HK_STAND_GPUS] = {false};
  for (int i = 0; i < probe->n_loads; i++) {
    const hk_load *l = &probe->loads[i];
    hk_ns unused;
    if (hk_load_is(l->kind, HK_TRAIT_CPU) || aligned[l->gpu]) continue;
    HK_TRY(stand->ops->clock_align(stand->gpu[l->gpu].backend, &unused, err));
    aligned[l->gpu] = true;
  }
  return HK_OK;
}

/* ---- One try --------------------------------------------------------------------------------- */

typedef struct {
  hk_stand *stand;
  const hk_probe *probe;
  hk_stand_job jobs[HK_PROBE_LOADS];
  hk_stand_job *cpu; /* NULL: none */
  hk_team *team;     /* of `cpu` */
  size_t learnt;     /* index of the probe's rates in stand->learnt */
} run;

static hk_status prepare_data(run *r, hk_error *err) {
  for (int i = 0; i < r->probe->n_loads; i++) {
    if (!hk_load_is(r->jobs[i].load->kind, HK_TRAIT_COPY)) continue;
    HK_TRY(hk_stand_copy_prepare(&r->jobs[i], err));
  }
  return HK_OK;
}

static hk_status verify_job(const run *r, const hk_stand_job *job, hk_error *err) {
  if (job == r->cpu) return hk_stand_cpu_verify(job, r->team, err);
  if (hk_load_is(job->load->kind, HK_TRAIT_COPY)) return hk_stand_copy_verify(job, err);
  switch (job->load->kind) {
    case HK_LOAD_ADAMW_GPU:
    case HK_LOAD_UPDATE:
    case HK_LOAD_MAPPED:
      return hk_stand_update_verify(job, err);
    case HK_LOAD_MATMUL:
      return hk_stand_matmul_verify(job, err);
    default:
      return HK_OK; /* nothing to verify */
  }
}

static hk_status rates_of(run *r, double *values, hk_error *err) {
  const hk_stretch *stretches[HK_PROBE_LOADS] = {NULL};
  size_t counts[HK_PROBE_LOADS] = {0};
  const int n = r->probe->n_loads;
  if (hk_load_is(r->jobs[0].load->kind, HK_TRAIT_CALL)) {
    values[0] = r->jobs[0].value;
    return HK_OK;
  }
  for (int i = 0; i < n; i++) {
    stretches[i] = r->jobs[i].stretches;
    counts[i] = r->jobs[i].n;
  }
  HK_TRY(hk_probe_rates(r->probe->mode, stretches, counts, n, values, err));
  for (int i = 0; i < n; i++) {
    if (r->jobs[i].load->kind == HK_LOAD_UPDATE) values[i] = r->jobs[i].value;
  }
  return HK_OK;
}

static hk_ns span_of(const hk_stand_job *job) {
  return job->stretches[job->n - 1].end - job->stretches[0].begin;
}

/* Shortest span of a load; of WHOLE probes the longest. */
static hk_ns duration(const run *r) {
  const bool whole = r->probe->mode == HK_PROBE_WHOLE;
  hk_ns found = whole ? 0 : INT64_MAX;
  for (int i = 0; i < r->probe->n_loads; i++) {
    const hk_ns span = span_of(&r->jobs[i]);
    if (whole ? span > found : span < found) found = span;
  }
  return found;
}

/* Learns the rate of each load over its whole span. The common window may be short, and a load may
 * have made no progress in it. */
static void learn(run *r) {
  double *rates = r->stand->learnt[r->learnt].rates;
  for (int i = 0; i < r->probe->n_loads; i++) {
    const hk_stand_job *job = &r->jobs[i];
    const hk_ns span = span_of(job);
    const double work = hk_stand_work(r->stand, job->load) * (double)job->ops;
    if (span > 0) rates[i] = work * 1e9 / (double)span;
  }
}

/* Runs a load that measures its own value, job->value. Its one stretch covers the whole call, setup
 * included: the next run's amount of work is chosen by that. */
static void run_call(hk_stand_job *job) {
  const hk_ns begin = hk_now();
  hk_stand_isolated_run(job);
  job->stretches[0] = (hk_stretch){.begin = begin, .end = hk_now()};
  job->n = 1;
}

static hk_status try_once(run *r, double wish, bool verify, hk_error *err) {
  const int n = r->probe->n_loads;
  choose_amounts(r->jobs, r->probe, r->stand->learnt[r->learnt].rates, wish);
  set_out(r->stand, r->jobs, n);
  if (verify) HK_TRY(prepare_data(r, err));
  if (hk_load_is(r->jobs[0].load->kind, HK_TRAIT_CALL)) {
    run_call(&r->jobs[0]);
  } else {
    HK_TRY(align_clocks(r->stand, r->probe, err));
    HK_TRY(run_together(r->jobs, n, r->cpu, r->team, err));
  }
  return first_failure(r->jobs, n, err);
}

/* ---- Running --------------------------------------------------------------------------------- */

/* Whether a load has only half of its GPU's `in` or `out`, because another load uses it, too. */
static bool shares_room(const hk_probe *probe, const hk_load *load) {
  if (load->kind == HK_LOAD_MATMUL) return probe->n_loads > 1;
  if (!hk_load_is(load->kind, HK_TRAIT_COPY)) return false;
  const bool in = hk_load_is(load->kind, HK_TRAIT_IN);
  for (int i = 0; i < probe->n_loads; i++) {
    const hk_load *other = &probe->loads[i];
    if (other == load || other->gpu != load->gpu) continue;
    if (other->kind == HK_LOAD_MATMUL || (in && hk_load_is(other->kind, HK_TRAIT_IN))) return true;
  }
  return false;
}

static hk_status set_up(run *r, hk_error *err) {
  const hk_probe *probe = r->probe;
  int gpus = 0, number[HK_STAND_GPUS];
  for (int g = 0; g < HK_STAND_GPUS; g++) number[g] = -1;
  for (int i = 0; i < probe->n_loads; i++) {
    const hk_load *l = &probe->loads[i];
    HK_TRY(check_load(r->stand, probe, i, err));
    if (hk_load_is(l->kind, HK_TRAIT_CPU)) {
      r->cpu = &r->jobs[i];
      HK_TRY(hk_stand_team(r->stand, l->threads, &r->team, err));
    } else if (number[l->gpu] < 0) {
      number[l->gpu] = gpus++;
    }
  }
  for (int i = 0; i < probe->n_loads; i++) {
    const hk_load *l = &probe->loads[i];
    r->jobs[i].part = number[l->gpu] < 0 ? 0 : number[l->gpu];
    r->jobs[i].parts = gpus > 0 ? gpus : 1;
    r->jobs[i].halved = shares_room(probe, l);
    if (hk_load_is(l->kind, HK_TRAIT_COPY)) HK_TRY(hk_stand_copy_check(&r->jobs[i], err));
  }
  return find_learnt(r->stand, probe->name, &r->learnt, err);
}

/* Repeats the run until its duration is at least a quarter of `wish`, at most MOST_TRIES times.
 * Each try uses the rates that earlier ones have learnt. If the loads had no common window, the aim
 * is multiplied by 4. */
static hk_status measure(run *r, hk_ns wish, bool verify, double *values, hk_error *err) {
  double aim = (double)wish;
  hk_status status = HK_NO;
  for (int i = 0; i < MOST_TRIES; i++) {
    HK_TRY(try_once(r, aim, verify, err));
    learn(r);
    status = rates_of(r, values, err);
    if (status == HK_OK &&
        (hk_load_is(r->jobs[0].load->kind, HK_TRAIT_CALL) || duration(r) >= wish / 4))
      break;
    if (status != HK_OK) aim *= 4;
  }
  return status;
}

static hk_status run_probe(run *r, hk_ns wish, bool verify, double *values, hk_error *err) {
  HK_TRY(set_up(r, err));
  HK_TRY(measure(r, wish > 0 ? wish : 1, verify, values, err));
  /* Copies first: verifying a matrix product overwrites the target of D2H copies. */
  for (int i = 0; verify && i < 2 * r->probe->n_loads; i++) {
    hk_stand_job *job = &r->jobs[i % r->probe->n_loads];
    const bool product = job->load->kind == HK_LOAD_MATMUL;
    if (product != (i >= r->probe->n_loads)) continue;
    if (verify_job(r, job, &job->err) != HK_OK) break;
  }
  return first_failure(r->jobs, r->probe->n_loads, err);
}

hk_status hk_stand_run(hk_stand *stand, const hk_probe *probe, hk_ns wish, bool verify,
                       double *values, hk_error *err) {
  if (probe->n_loads < 1 || probe->n_loads > HK_PROBE_LOADS) {
    return hk_fail(err, HK_INPUT, "probe %s has %d loads; 1 to %d are possible", probe->name,
                   probe->n_loads, HK_PROBE_LOADS);
  }
  run *r = calloc(1, sizeof *r);
  if (r == NULL) return hk_fail_memory(err, sizeof *r, "a probe's run");
  r->stand = stand;
  r->probe = probe;
  for (int i = 0; i < probe->n_loads; i++) {
    r->jobs[i].stand = stand;
    r->jobs[i].load = &probe->loads[i];
  }
  const hk_status status = run_probe(r, wish, verify, values, err);
  free(r);
  return status == HK_OK ? HK_OK : hk_fail_prefix(err, "probe %s", probe->name);
}
