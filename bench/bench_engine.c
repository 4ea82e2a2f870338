/* SPDX-License-Identifier: GPL-3.0-or-later */
/* The engine compared with the machine's limits, in one run. Measures ceilings (bandwidths of host
 * memory and PCIe), then the update phase of one rank by policy. Mixed plans (share of parameters
 * on the CPU, threads) are tried briefly; the best of them then takes turns with all-cpu and
 * all-staged. The cost of recording every operation's times comes last.
 *
 *   bench_engine [--params N] [--reps N] [--pairs N] [--threads N] [--piece N]
 *                [--backend cuda|host] [--json FILE]
 *
 * Two bounds:
 *   - hocket's lower bound (sim/bound.h) on a machine made of the measured ceilings, with no room
 *     for resident state. Host memory has the highest bandwidth that any mixture of loads reached;
 *   - the rate of the same kernels and copies without dependencies: the better of the best plan's
 *     own mixture and the best other mixture, in turns with that plan.
 * Prints a Markdown table. */
#include <getopt.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/ceilings.h"
#include "bench/sorted.h"
#include "core/base/json.h"
#include "engine/engine.h"
#include "engine/trial.h"
#include "sim/bound.h"

#define MOST_REPS    64
#define MOST_THREADS 1024
#define MOST_PARAMS  ((int64_t)1000000000000)
#define COPY         (12 * HK_MIB)
/* A stream takes some 1,000 operations before CUDA makes the caller wait. Long copies are few, so
 * that both directions can be queued before that. */
#define LONG_COPY (48 * HK_MIB)

static struct {
  int64_t params, piece;
  int reps, pairs, threads; /* pairs: of steps with and without a timeline; 0: reps */
  const hk_backend_ops *backend;
  const char *json;
} given = {.params = 1200000000, .piece = 5000000, .reps = 11, .threads = 16};

static hk_model model;
static hk_job job = {.nodes = 1, .tp = 1, .micro_batch = 1, .grad_accum = 1, .seq = 1024};
static hk_machine machine;

static void must(hk_status status, const hk_error *err) {
  if (status == HK_OK) return;
  fprintf(stderr, "bench_engine: %s\n", err->message);
  exit(status);
}

/* -- Mixtures ---------------------------------------------------------------------------------- */

/* Shares of parameters on the CPU (the rest is staged) and threads of 16, near the best measured
 * and the best simulated ones on H200 nodes with slow and with fast host memory. */
static const struct {
  double cpu;
  int threads;
} mixtures[] = {
    {0.62, 12}, {0.66, 14}, {0.66, 16}, {0.70, 12}, {0.70, 16},
    {0.74, 14}, {0.74, 16}, {0.76, 14}, {0.78, 14}, {0.80, 15},
};
enum { MIXES = sizeof mixtures / sizeof mixtures[0] };

static int threads_of(int mix) {
  const int part = given.threads * mixtures[mix].threads / 16;
  return part > 0 ? part : 1;
}

/* -- Subjects ---------------------------------------------------------------------------------- */

/* A plan that an engine runs or, without a plan, a mixture without dependencies. */
typedef struct {
  char name[80];
  int unhindered; /* index of that mixture; -1: a plan */
  hk_plan plan;
  hk_engine *engine;
  hk_trial *trial;
  double seconds[MOST_REPS];
  int n;
  double median, least, most; /* G params a second */
} subject;

static int64_t numel;

/* An even mixture: of every 1 / share subgroups one is on the CPU, the others are staged. */
static void assign(hk_plan *plan, double cpu_share) {
  double cpu = 0.5;
  for (size_t s = 0; s < plan->n_subgroups; s++) {
    cpu += cpu_share;
    plan->subgroups[s].route = cpu >= 1 ? HK_ROUTE_CPU : HK_ROUTE_STAGED;
    if (cpu >= 1) cpu -= 1;
  }
}

static subject *make_subject(const char *name, double cpu_share, int threads) {
  hk_error err = {0};
  subject *s = calloc(1, sizeof *s);
  if (s == NULL) exit(HK_ENVIRONMENT);
  hk_model copy = {0};
  must(hk_model_from_config(model.config, model.name, &copy, &err), &err);
  must(hk_plan_create(&copy, &job, HK_RUNTIME_HOCKET, HK_SUBGROUP_EXACT, 4 * given.piece, &s->plan,
                      &err),
       &err);
  s->unhindered = -1;
  snprintf(s->name, sizeof s->name, "%s", name);
  snprintf(s->plan.policy, sizeof s->plan.policy, "bench");
  s->plan.piece_numel = given.piece;
  s->plan.buffers = 4;
  s->plan.cpu_threads = threads;
  assign(&s->plan, cpu_share);
  numel = 0;
  for (size_t i = 0; i < s->plan.n_subgroups; i++) numel += s->plan.subgroups[i].numel;
  return s;
}

static void start(subject *s) {
  hk_error err = {0};
  const hk_engine_options options = {.backend = given.backend};
  must(hk_trial_engine(&s->plan, &options, &s->engine, &err), &err);
  must(hk_trial_open(s->engine, &(hk_trial_options){0}, &s->trial, &err), &err);
}

static void stop(subject *s) {
  hk_trial_close(s->trial);
  hk_engine_destroy(s->engine);
  s->trial = NULL;
  s->engine = NULL;
}

static double take_step(subject *s) {
  hk_error err = {0};
  hk_step_report report;
  must(hk_trial_step(s->trial, NULL, &report, &err), &err);
  return (double)report.update / 1e9;
}

static void summarise(subject *s) {
  double sorted[MOST_REPS];
  memcpy(sorted, s->seconds, (size_t)s->n * sizeof *sorted);
  sort_ascending(sorted, s->n);
  const double g = (double)numel / 1e9;
  s->median = g / median_of_sorted(sorted, s->n);
  s->least = g / sorted[s->n - 1];
  s->most = g / sorted[0];
}

/* -- The machine's limits ---------------------------------------------------------------------- */

static ceilings *open_ceilings(hk_backend **backend) {
  hk_error err = {0};
  ceilings *c = NULL;
  const hk_backend_options options = {.memory = HK_GIB, .threads = 1};
  hk_bytes host = numel * 16 < 16 * HK_GIB ? numel * 16 : 16 * HK_GIB;
  if (host < HK_GIB / 2) host = HK_GIB / 2; /* room for long copies */
  must(given.backend->open(0, &options, backend, &err), &err);
  must(ceilings_open(*backend, host, 768 * HK_MIB, given.threads, &c, &err), &err);
  return c;
}

static void close_ceilings(ceilings *c, hk_backend *backend) {
  ceilings_close(c);
  backend->ops->close(backend);
}

/* Rates of a mixture without dependencies, parameters a second. */
static void run_unhindered(ceilings *c, int mix, int rounds, double *rates) {
  hk_error err = {0};
  must(ceilings_unhindered(c, threads_of(mix), mixtures[mix].cpu, LONG_COPY, rounds, rates, &err),
       &err);
}

static subject *make_unhindered(int mix) {
  subject *s = calloc(1, sizeof *s);
  if (s == NULL) exit(HK_ENVIRONMENT);
  s->unhindered = mix;
  snprintf(s->name, sizeof s->name, "nothing waiting: cpu %.2f, %d threads", mixtures[mix].cpu,
           threads_of(mix));
  return s;
}

/* -- Turns ------------------------------------------------------------------------------------- */

#define TURN 3 /* steps of a turn that count, after one that does not */

static void take_unhindered_turn(subject *s, int rounds) {
  hk_backend *backend = NULL;
  double rates[MOST_REPS];
  ceilings *c = open_ceilings(&backend);
  run_unhindered(c, s->unhindered, rounds, rates);
  close_ceilings(c, backend);
  for (int r = 0; r < rounds; r++) s->seconds[s->n++] = (double)numel / rates[r];
}

static void take_turn(subject *s, int steps) {
  start(s);
  take_step(s);
  for (int r = 0; r < steps; r++) s->seconds[s->n++] = take_step(s);
  stop(s);
}

/* Runs the subjects in turns, with one engine at a time, so that all of them get the same memory:
 * the pages that a virtual machine hands out last can be slower. */
static void measure(subject **subjects, int n, int reps) {
  const int turn = n > 1 ? TURN : reps;
  for (int done = 0; done < reps; done += turn) {
    const int steps = reps - done < turn ? reps - done : turn;
    for (int i = 0; i < n; i++) {
      if (subjects[i]->unhindered < 0)
        take_turn(subjects[i], steps);
      else
        take_unhindered_turn(subjects[i], steps);
    }
  }
  for (int i = 0; i < n; i++) summarise(subjects[i]);
}

/* -- Recording --------------------------------------------------------------------------------- */

/* Steps of one engine with a timeline and without, in pairs of alternating order. Whole steps are
 * timed, because a timeline also takes time before the first operation and after the last. */
typedef struct {
  double with[MOST_REPS], without[MOST_REPS]; /* seconds */
  double median, low, high, least, most;      /* of with / without, pair by pair; 95 % interval of
                                                 the median by the sign test */
} recording;

static double timed_step(subject *s, hk_timeline *timeline) {
  hk_error err = {0};
  hk_step_report report;
  const hk_step_options options = {.timeline = timeline};
  must(hk_trial_gradients(s->trial, &err), &err);
  const hk_ns begin = hk_now();
  must(hk_engine_step(s->engine, &options, &report, NULL, &err), &err);
  return hk_s(hk_now() - begin);
}

static void measure_recording(subject *s, int reps, recording *out) {
  hk_error err = {0};
  hk_timeline timeline = {0};
  double ratios[MOST_REPS];
  start(s);
  must(hk_timeline_init(hk_engine_graph(s->engine), &timeline, &err), &err);
  timed_step(s, &timeline); /* does not count */
  for (int r = 0; r < reps; r++) {
    if (r % 2 == 0) out->with[r] = timed_step(s, &timeline);
    out->without[r] = timed_step(s, NULL);
    if (r % 2 != 0) out->with[r] = timed_step(s, &timeline);
    ratios[r] = out->with[r] / out->without[r];
  }
  hk_timeline_free(&timeline);
  stop(s);
  sort_ascending(ratios, reps);
  out->median = median_of_sorted(ratios, reps);
  const int rank = (int)floor((reps + 1) / 2. - 0.98 * sqrt(reps)); /* from either end */
  out->low = ratios[rank > 1 ? rank - 1 : 0];
  out->high = ratios[rank > 1 ? reps - rank : reps - 1];
  out->least = ratios[0];
  out->most = ratios[reps - 1];
}

/* -- Ceilings ---------------------------------------------------------------------------------- */

enum { MOST_MIXED = 8 };

static struct {
  ceiling dram, h2d, d2h, duplex;
  mixed_ceiling mixed[MOST_MIXED];
  int n_mixed;
  double unhindered[MIXES]; /* parameters a second, medians */
} limits;

static void measure_ceilings(void) {
  hk_error err = {0};
  hk_backend *backend = NULL;
  ceilings *c = open_ceilings(&backend);
  for (int threads = given.threads; threads >= 1 && threads > given.threads - 3; threads -= 2) {
    const ceiling dram = ceilings_dram(c, threads, given.reps);
    if (dram.rate > limits.dram.rate) limits.dram = dram;
  }
  must(ceilings_copies(c, true, false, COPY, 5, &limits.h2d, &err), &err);
  must(ceilings_copies(c, false, true, COPY, 5, &limits.d2h, &err), &err);
  must(ceilings_copies(c, true, true, COPY, given.reps, &limits.duplex, &err), &err);
  for (int eighths = 8; eighths >= 2; eighths--) {
    const int threads = given.threads * eighths / 8;
    if (threads < 1 || (limits.n_mixed > 0 && limits.mixed[limits.n_mixed - 1].threads == threads))
      continue;
    must(ceilings_mixed(c, threads, LONG_COPY, 5, &limits.mixed[limits.n_mixed++], &err), &err);
  }
  for (int i = 0; i < MIXES; i++) {
    double rates[5];
    run_unhindered(c, i, 5, rates);
    sort_ascending(rates, 5);
    limits.unhindered[i] = median_of_sorted(rates, 5);
  }
  close_ceilings(c, backend);
}

/* Lower bound of the update on a machine with these ceilings, over all assignments of routes. */
static double bound_seconds(const hk_plan *plan) {
  hk_error err = {0};
  hk_bound bound;
  double dram = limits.dram.rate;
  for (int i = 0; i < limits.n_mixed; i++) dram = fmax(dram, limits.mixed[i].all.rate);
  machine.cores.value = given.threads;
  machine.dram.value = machine.dram_with_dma.value = dram;
  machine.cpu_adamw.value = machine.cpu_adamw_fp32.value = limits.dram.rate / 28;
  machine.cpu_adamw_threads.value = 0.01;
  machine.h2d.value = machine.fabric_h2d.value = limits.h2d.rate;
  machine.d2h.value = machine.fabric_d2h.value = limits.d2h.rate;
  machine.duplex.value = machine.fabric_duplex.value = limits.duplex.rate;
  machine.mapped.value = limits.duplex.rate;
  machine.gpu_launch.value = 0;
  machine.gpu_reserved.value = 0;
  machine.gpu_memory.value = 2 * (double)numel;
  hk_plan one = *plan;
  one.job.gpus = 1; /* this rank alone is on the machine */
  must(hk_bound_physical(&one, &machine, &bound, &err), &err);
  return (double)bound.update_ns / 1e9;
}

/* -- Report ------------------------------------------------------------------------------------ */

static void print_ceiling(const char *name, const ceiling *c) {
  printf("| %s | %.1f GB/s | %.1f - %.1f | |\n", name, c->rate / 1e9, c->least / 1e9,
         c->most / 1e9);
}

static void print_subject(const subject *s, const char *of, double whole) {
  printf("| %s | %.3f G params/s | %.3f - %.3f | ", s->name, s->median, s->least, s->most);
  if (whole > 0) printf("%.3f of %s", s->median / whole, of);
  printf(" |\n");
}

static void save_json(subject *const *subjects, int n, const recording *r, double bound,
                      const subject *unhindered) {
  hk_error err = {0};
  cJSON *root = cJSON_CreateObject();
  cJSON_AddStringToObject(root, "schema", "hocket.bench_engine/1");
  cJSON_AddNumberToObject(root, "parameters", (double)numel);
  cJSON_AddNumberToObject(root, "bound_params_per_s", (double)numel / bound);
  cJSON_AddStringToObject(root, "unhindered", unhindered->name);
  cJSON_AddItemToObject(root, "unhindered_seconds",
                        cJSON_CreateDoubleArray(unhindered->seconds, unhindered->n));
  cJSON *at = cJSON_AddObjectToObject(root, "ceilings_bytes_per_s");
  cJSON_AddNumberToObject(at, "dram", limits.dram.rate);
  cJSON_AddNumberToObject(at, "h2d", limits.h2d.rate);
  cJSON_AddNumberToObject(at, "d2h", limits.d2h.rate);
  cJSON_AddNumberToObject(at, "duplex", limits.duplex.rate);
  cJSON *points = cJSON_AddArrayToObject(root, "dram_with_copies");
  for (int i = 0; i < limits.n_mixed; i++) {
    cJSON *point = cJSON_CreateObject();
    cJSON_AddNumberToObject(point, "threads", limits.mixed[i].threads);
    cJSON_AddNumberToObject(point, "cpu_bytes_per_s", limits.mixed[i].cpu.rate);
    cJSON_AddNumberToObject(point, "in_bytes_per_s", limits.mixed[i].in.rate);
    cJSON_AddNumberToObject(point, "out_bytes_per_s", limits.mixed[i].out.rate);
    cJSON_AddItemToArray(points, point);
  }
  points = cJSON_AddArrayToObject(root, "mixtures_unhindered");
  for (int i = 0; i < MIXES; i++) {
    cJSON *point = cJSON_CreateObject();
    cJSON_AddNumberToObject(point, "cpu_share", mixtures[i].cpu);
    cJSON_AddNumberToObject(point, "threads", threads_of(i));
    cJSON_AddNumberToObject(point, "params_per_s", limits.unhindered[i]);
    cJSON_AddItemToArray(points, point);
  }
  at = cJSON_AddArrayToObject(root, "subjects");
  for (int i = 0; i < n; i++) {
    cJSON *one = cJSON_CreateObject();
    cJSON_AddStringToObject(one, "name", subjects[i]->name);
    cJSON_AddItemToObject(one, "seconds",
                          cJSON_CreateDoubleArray(subjects[i]->seconds, subjects[i]->n));
    cJSON_AddItemToArray(at, one);
  }
  at = cJSON_AddObjectToObject(root, "recording");
  cJSON_AddItemToObject(at, "with_seconds", cJSON_CreateDoubleArray(r->with, given.pairs));
  cJSON_AddItemToObject(at, "without_seconds", cJSON_CreateDoubleArray(r->without, given.pairs));
  must(hk_json_save(root, given.json, &err), &err);
  cJSON_Delete(root);
}

/* -- The run ----------------------------------------------------------------------------------- */

/* The argument of an option, which also takes "1.2e9". */
static int64_t whole_number(const char *option, const char *text, int64_t most) {
  char *end = NULL;
  const double number = strtod(text, &end);
  if (end != text && *end == 0 && number >= 1 && number <= (double)most && floor(number) == number)
    return (int64_t)number;
  fprintf(stderr, "bench_engine: --%s %s is not a whole number from 1 to %lld\n", option, text,
          (long long)most);
  exit(HK_INPUT);
}

static void read_options(int argc, char **argv) {
  static const struct option options[] = {
      {"params", required_argument, NULL, 'p'}, {"reps", required_argument, NULL, 'r'},
      {"pairs", required_argument, NULL, 'q'},  {"threads", required_argument, NULL, 't'},
      {"piece", required_argument, NULL, 'i'},  {"backend", required_argument, NULL, 'b'},
      {"json", required_argument, NULL, 'j'},   {NULL, 0, NULL, 0}};
  hk_error err = {0};
  const char *backend = "cuda";
  for (int c; (c = getopt_long(argc, argv, "", options, NULL)) != -1;) {
    if (c == 'p') given.params = whole_number("params", optarg, MOST_PARAMS);
    if (c == 'r') given.reps = (int)whole_number("reps", optarg, MOST_REPS);
    if (c == 'q') given.pairs = (int)whole_number("pairs", optarg, MOST_REPS);
    if (c == 't') given.threads = (int)whole_number("threads", optarg, MOST_THREADS);
    if (c == 'i') given.piece = whole_number("piece", optarg, MOST_PARAMS);
    if (c == 'b') backend = optarg;
    if (c == 'j') given.json = optarg;
    if (c == '?') exit(HK_INPUT);
  }
  if (given.pairs == 0) given.pairs = given.reps;
  must(hk_backend_find(backend, &given.backend, &err), &err);
}

/* A rank with at least so many parameters, of a well-known model. */
static void choose_model(void) {
  hk_error err = {0};
  const bool large = given.params > 120000000;
  must(hk_model_load(large ? "llama-2-7b" : "gpt2", &model, &err), &err);
  job.gpus = (int)(model.parameters / given.params);
  if (job.gpus < 1) job.gpus = 1;
  if (job.gpus > HK_MOST_GPUS) job.gpus = HK_MOST_GPUS;
  must(hk_machine_load("h200-16c", &machine, &err), &err);
}

static void make_mixes(subject **out) {
  for (int i = 0; i < MIXES; i++) {
    const int threads = threads_of(i);
    char name[64];
    snprintf(name, sizeof name, "mixed: cpu %.2f, %d threads", mixtures[i].cpu, threads);
    out[i] = make_subject(name, mixtures[i].cpu, threads);
  }
}

int main(int argc, char **argv) {
  read_options(argc, argv);
  choose_model();
  subject *cpu = make_subject("all cpu", 1, given.threads);
  subject *staged = make_subject("all staged", 0, given.threads);
  subject *tried[MIXES];
  make_mixes(tried);
  measure_ceilings();
  const double bound = bound_seconds(&cpu->plan), most = (double)numel / 1e9 / bound;

  printf("%lld parameters, %d threads, pieces of %lld.\n\n", (long long)numel, given.threads,
         (long long)given.piece);
  printf("| what | median | least - most | ratio |\n|---|---:|---:|---|\n");
  print_ceiling("host memory, AdamW's mix of bytes", &limits.dram);
  print_ceiling("PCIe in", &limits.h2d);
  print_ceiling("PCIe out", &limits.d2h);
  print_ceiling("PCIe both ways", &limits.duplex);
  for (int i = 0; i < limits.n_mixed; i++) {
    const mixed_ceiling *m = &limits.mixed[i];
    printf(
        "| host memory, copies both ways and %d threads | %.1f GB/s | %.1f - %.1f | %.1f in, %.1f "
        "out |\n",
        m->threads, m->all.rate / 1e9, m->all.least / 1e9, m->all.most / 1e9, m->in.rate / 1e9,
        m->out.rate / 1e9);
  }
  printf("| bound by the fullest of these, whatever fills it | %.3f G params/s | | |\n", most);
  int best = 0;
  for (int i = 0; i < MIXES; i++) {
    measure(&tried[i], 1, 5);
    print_subject(tried[i], "the same with nothing waiting", limits.unhindered[i] / 1e9);
    fflush(stdout);
    if (tried[i]->median > tried[best]->median) best = i;
  }

  subject *final = make_subject(tried[best]->name, mixtures[best].cpu, threads_of(best));
  int free_best = best == 0 ? 1 : 0; /* of the others, without dependencies */
  for (int i = 0; i < MIXES; i++)
    if (i != best && limits.unhindered[i] > limits.unhindered[free_best]) free_best = i;
  subject *same = make_unhindered(best), *other = make_unhindered(free_best);
  subject *turns[] = {cpu, staged, final, same, other};
  measure(turns, 5, given.reps);
  const subject *unhindered = same->median > other->median ? same : other;
  int wins = 0;
  for (int r = 0; r < given.reps; r++) {
    wins += final->seconds[r] < cpu->seconds[r] && final->seconds[r] < staged->seconds[r];
  }
  printf("| **in turns** | | | |\n");
  print_subject(cpu, "host memory's ceiling", limits.dram.rate / 28 / 1e9);
  print_subject(staged, "PCIe both ways", limits.duplex.rate / 24 / 1e9);
  print_subject(same, NULL, 0);
  print_subject(other, NULL, 0);
  print_subject(final, "the better of these two", unhindered->median);
  printf("| the same | | | %.3f of the bound |\n", final->median / most);
  printf("| best mixed faster than both | %d of %d | | |\n", wins, given.reps);

  static recording recorded;
  measure_recording(final, given.pairs, &recorded);
  printf(
      "| time of a step with a timeline, of one without | %.4f | %.4f - %.4f | median within %.4f "
      "- %.4f |\n",
      recorded.median, recorded.least, recorded.most, recorded.low, recorded.high);

  if (given.json != NULL) {
    subject *all[3 + MIXES] = {cpu, staged, final};
    for (int i = 0; i < MIXES; i++) all[3 + i] = tried[i];
    save_json(all, 3 + MIXES, &recorded, bound, unhindered);
  }
  return 0;
}
