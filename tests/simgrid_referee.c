/* SPDX-License-Identifier: GPL-3.0-or-later */
#include "tests/simgrid_referee.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "sim/contention.h"
#include "tests/simgrid_s4u.h"

/* Largest number of times that a byte of a flow crosses a link. */
#define MOST_CROSSINGS 64

#define NONE (-1)

/* Operations of one sort have the same demand on the same rank's resources. */
typedef struct {
  int32_t rank;
  hk_demand demand;
  double bytes_per_work; /* of the flow */
  int32_t id;            /* SimGrid's */
} sort;

/* An operation. */
typedef struct {
  hk_ns latency;
  int32_t sort;     /* NONE: only latency */
  int32_t previous; /* on its lane, or NONE */
} step;

/* The graph in SimGrid's terms; prepared before anything is timed. */
typedef struct {
  const hk_graph *graph;
  const hk_machine *machine;
  sort *sorts;
  int32_t n_sorts;
  step *steps; /* numbered as the graph's operations are */
} problem;

/* -- demands ----------------------------------------------------------------------------------- */

static bool of_time(hk_resource r) {
  return strcmp(hk_resource_unit(r), "seconds_per_s") == 0;
}

static double capacity(const problem *p, hk_resource r, bool mixed) {
  return hk_resource_capacity(p->machine, r, mixed) / hk_use_count(p->graph, r);
}

static bool same_demand(const hk_demand *a, const hk_demand *b) {
  if (a->cap != b->cap || a->weight != b->weight || a->traffic != b->traffic ||
      a->n_uses != b->n_uses) {
    return false;
  }
  for (int u = 0; u < a->n_uses; u++) {
    if (a->uses[u].resource != b->uses[u].resource || a->uses[u].per_unit != b->uses[u].per_unit) {
      return false;
    }
  }
  return true;
}

/* How often a byte of the flow crosses a link; 0: not a whole number. */
static int crossings(double per_work, double bytes_per_work) {
  const double times = per_work / bytes_per_work, whole = round(times);
  return fabs(times - whole) < 1e-9 * times && whole <= MOST_CROSSINGS ? (int)whole : 0;
}

/* Sets bytes_per_work to the largest value for which each use of bytes is a whole multiple of it.
 * An operation that uses no bytes gets a flow of 10 GB/s at its cap. */
static hk_status size_flow(sort *s, hk_error *err) {
  const hk_demand *d = &s->demand;
  double least = INFINITY;
  int times = 0;
  for (int u = 0; u < d->n_uses; u++) {
    if (of_time(d->uses[u].resource)) {
      times++;
    } else {
      least = fmin(least, d->uses[u].per_unit);
    }
  }
  if (times > 1) return hk_fail(err, HK_INPUT, "an operation uses two resources of time");
  if (d->weight_crowded != d->weight) {
    return hk_fail(err, HK_INPUT, "a copy out has priority: a flow has one weight");
  }
  if (isinf(least)) {
    s->bytes_per_work = 1e10 / d->cap;
    return HK_OK;
  }
  for (int parts = 1; parts <= MOST_CROSSINGS; parts++) {
    bool whole = true;
    s->bytes_per_work = least / parts;
    for (int u = 0; u < d->n_uses; u++) {
      if (of_time(d->uses[u].resource)) continue;
      whole = whole && crossings(d->uses[u].per_unit, s->bytes_per_work) > 0;
    }
    if (whole) return HK_OK;
  }
  return hk_fail(err, HK_INPUT, "a use of %g bytes beside others that are no multiples: no route",
                 least);
}

static hk_status find_sort(problem *p, const hk_op *op, const hk_demand *demand, int32_t *found,
                           hk_error *err) {
  for (int32_t i = 0; i < p->n_sorts; i++) {
    if (p->sorts[i].rank == op->rank && same_demand(&p->sorts[i].demand, demand)) {
      *found = i;
      return HK_OK;
    }
  }
  sort *grown = realloc(p->sorts, ((size_t)p->n_sorts + 1) * sizeof *grown);
  if (grown == NULL) return hk_fail_memory(err, sizeof *grown, "a sort of operations");
  p->sorts = grown;
  *found = p->n_sorts++;
  grown[*found] = (sort){.rank = op->rank, .demand = *demand};
  return size_flow(&grown[*found], err);
}

static hk_status check_machine(const hk_machine *machine, hk_error *err) {
  if (hk_cpu_kept(machine, 1, 1) != 1) {
    return hk_fail(err, HK_INPUT, "CPU kernels are slower beside copies: a flow has one cap");
  }
  if (hk_h2d_kept(machine, INFINITY) != 1) {
    return hk_fail(err, HK_INPUT, "copies are slower beside CPU kernels: a link has one capacity");
  }
  return HK_OK;
}

static hk_status prepare(problem *p, hk_error *err) {
  const hk_graph *g = p->graph;
  int32_t *lane_last = malloc((g->n_lanes + 1) * sizeof *lane_last);
  p->steps = calloc(g->n_ops + 1, sizeof *p->steps);
  if (lane_last == NULL || p->steps == NULL) {
    free(lane_last);
    return hk_fail_memory(err, (g->n_ops + 1) * sizeof *p->steps, "the referee");
  }
  for (size_t lane = 0; lane < g->n_lanes; lane++) lane_last[lane] = NONE;
  hk_status status = HK_OK;
  for (size_t i = 0; i < g->n_ops && status == HK_OK; i++) {
    const hk_op *op = &g->ops[i];
    const hk_demand demand = hk_demand_of(g, op, p->machine);
    p->steps[i] = (step){demand.latency, NONE, lane_last[op->lane]};
    lane_last[op->lane] = (int32_t)i;
    if (op->work > 0 && isfinite(demand.cap)) {
      status = find_sort(p, op, &demand, &p->steps[i].sort, err);
    }
  }
  free(lane_last);
  return status;
}

static void release(problem *p) {
  free(p->sorts);
  free(p->steps);
}

/* -- platform ---------------------------------------------------------------------------------- */

/* The index of a sort's use of a resource; a node's resources are at rank 0. */
static size_t slot_of(const sort *s, hk_resource r) {
  return (size_t)(hk_resource_is_node(r) ? 0 : s->rank) * HK_RES_COUNT + (size_t)r;
}

static double use_of(const sort *s, size_t slot) {
  for (int u = 0; u < s->demand.n_uses; u++) {
    if (slot_of(s, s->demand.uses[u].resource) == slot) return s->demand.uses[u].per_unit;
  }
  return 0;
}

/* Adds a resource: of bytes as a link, of time as an access point, whose i-th rate is that of the
 * i-th sort's flow if it has the resource alone. Returns NONE if no sort uses the resource. */
static int32_t add_resource(const problem *p, hk_s4u *s4u, size_t slot, double *rates) {
  const hk_resource r = (hk_resource)(slot % HK_RES_COUNT);
  bool used = false;
  for (int32_t i = 0; i < p->n_sorts; i++) {
    const double use = use_of(&p->sorts[i], slot);
    rates[i] = use > 0 ? capacity(p, r, false) / use * p->sorts[i].bytes_per_work : 1;
    used = used || use > 0;
  }
  if (!used) return NONE;
  if (of_time(r)) return hk_s4u_access_point(s4u, rates, p->n_sorts);
  return hk_s4u_link(s4u, capacity(p, r, false), capacity(p, r, true));
}

static hk_s4u_side side_of(unsigned traffic) {
  if (traffic == 0) return HK_S4U_NEUTRAL;
  return traffic == HK_TRAFFIC_CPU ? HK_S4U_LEFT : HK_S4U_RIGHT;
}

static void add_sort(const problem *p, hk_s4u *s4u, int32_t i, const int32_t *ids) {
  sort *s = &p->sorts[i];
  int32_t links[HK_DEMAND_USES * MOST_CROSSINGS];
  hk_s4u_sort flow = {.cap = s->demand.cap * s->bytes_per_work,
                      .weight = s->demand.weight * s->bytes_per_work,
                      .access_point = NONE,
                      .level = i,
                      .links = links,
                      .side = side_of(s->demand.traffic)};
  for (int u = 0; u < s->demand.n_uses; u++) {
    const hk_resource r = s->demand.uses[u].resource;
    const int32_t id = ids[slot_of(s, r)];
    if (of_time(r)) {
      flow.access_point = id;
      continue;
    }
    const int times = crossings(s->demand.uses[u].per_unit, s->bytes_per_work);
    for (int c = 0; c < times; c++) links[flow.n_links++] = id;
  }
  s->id = hk_s4u_add_sort(s4u, &flow);
}

static hk_s4u *build_platform(const problem *p) {
  const size_t slots = (size_t)p->graph->ranks * HK_RES_COUNT;
  int32_t *ids = malloc(slots * sizeof *ids);
  double *rates = malloc(((size_t)p->n_sorts + 1) * sizeof *rates);
  if (ids == NULL || rates == NULL) abort(); /* as SimGrid does; this is its process */
  hk_s4u *s4u = hk_s4u_create((int32_t)p->graph->n_lanes);
  for (size_t slot = 0; slot < slots; slot++) ids[slot] = add_resource(p, s4u, slot, rates);
  for (int32_t i = 0; i < p->n_sorts; i++) add_sort(p, s4u, i, ids);
  hk_s4u_seal(s4u);
  free(ids);
  free(rates);
  return s4u;
}

/* -- operations -------------------------------------------------------------------------------- */

/* SimGrid refuses an edge that exists. */
static bool named_before(const hk_graph *g, const hk_op *op, int32_t previous, int32_t d) {
  if (g->deps[d] == previous) return true;
  for (int32_t e = op->deps_begin; e < d; e++) {
    if (g->deps[e] == g->deps[d]) return true;
  }
  return false;
}

/* SimGrid's numbers of operations are the graph's. */
static void add_operation(const problem *p, hk_s4u *s4u, int32_t i) {
  const hk_graph *g = p->graph;
  const hk_op *op = &g->ops[i];
  const step *at = &p->steps[i];
  const sort *s = at->sort != NONE ? &p->sorts[at->sort] : NULL;
  hk_s4u_operation(s4u, (double)at->latency, s != NULL ? s->id : NONE,
                   s != NULL ? (double)op->work * s->bytes_per_work : 0);
  if (at->previous != NONE) hk_s4u_after(s4u, at->previous, i);
  for (int32_t d = op->deps_begin; d < op->deps_end; d++) {
    if (!named_before(g, op, at->previous, d)) hk_s4u_after(s4u, g->deps[d], i);
  }
}

/* -- comparing --------------------------------------------------------------------------------- */

/* Processor time, because both run on one thread and a busy machine delays the longer run more. */
static double now_ms(void) {
  struct timespec t;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

static int ascending(const void *a, const void *b) {
  const double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

static double median(double *values, int n) {
  qsort(values, (size_t)n, sizeof *values, ascending);
  return n % 2 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

typedef struct {
  double hocket, created, run;
} turn;

static hk_status run_hocket(const problem *p, turn *t, hk_comparison *c, hk_error *err) {
  hk_result result = {0};
  const double begin = now_ms();
  HK_TRY(hk_simulate(p->graph, p->machine, NULL, &result, err));
  c->hocket_s = (double)result.timeline.makespan / 1e9;
  hk_result_free(&result);
  t->hocket = now_ms() - begin;
  return HK_OK;
}

static void run_simgrid(const problem *p, hk_s4u *s4u, turn *t, hk_comparison *c) {
  const double begin = now_ms();
  for (size_t i = 0; i < p->graph->n_ops; i++) add_operation(p, s4u, (int32_t)i);
  const double created = now_ms();
  c->simgrid_s = hk_s4u_run(s4u, &c->activities);
  t->created = created - begin;
  t->run = now_ms() - created;
}

#define MOST_TURNS 100

static hk_status compare(const problem *p, int repeats, hk_comparison *c, hk_error *err) {
  double hocket[MOST_TURNS], run[MOST_TURNS], whole[MOST_TURNS];
  const double begin = now_ms();
  hk_s4u *s4u = build_platform(p);
  c->platform_ms = now_ms() - begin;
  int n = 0;
  for (int i = 0; i < repeats; i++) {
    turn t;
    HK_TRY(run_hocket(p, &t, c, err));
    run_simgrid(p, s4u, &t, c);
    if (i == 1) n = 0; /* drop the first turn, with cold caches */
    hocket[n] = t.hocket;
    run[n] = t.run;
    whole[n++] = t.created + t.run;
  }
  c->hocket_ms = median(hocket, n);
  c->simgrid_run_ms = median(run, n);
  c->simgrid_ms = median(whole, n);
  c->operations = (int64_t)p->graph->n_ops;
  return HK_OK;
}

typedef struct {
  hk_status status;
  hk_error err;
  hk_comparison comparison;
} answer;

/* The child's results, or the reason why there are none. */
static hk_status receive(int from, pid_t child, hk_comparison *comparison, hk_error *err) {
  answer a;
  size_t n = 0;
  for (ssize_t got = 1; got > 0 && n < sizeof a; n += (size_t)got) {
    got = read(from, (char *)&a + n, sizeof a - n);
    if (got < 0) got = 0;
  }
  int ended = 0;
  waitpid(child, &ended, 0);
  if (n < sizeof a) {
    return hk_fail(err, HK_ENVIRONMENT, "SimGrid ended its process early, wait status %d", ended);
  }
  *comparison = a.comparison;
  if (a.status != HK_OK && err != NULL) *err = a.err;
  return a.status;
}

static hk_status compare_in_child(const problem *p, int repeats, hk_comparison *comparison,
                                  hk_error *err) {
  int ends[2];
  if (pipe(ends) != 0) return hk_fail(err, HK_ENVIRONMENT, "no pipe to a child process");
  fflush(NULL); /* else the child would write buffered output again */
  const pid_t child = fork();
  if (child == 0) {
    answer a = {0};
    close(ends[0]);
    a.status = compare(p, repeats, &a.comparison, &a.err);
    _exit(write(ends[1], &a, sizeof a) == (ssize_t)sizeof a ? 0 : 1);
  }
  close(ends[1]);
  const hk_status status = child > 0 ? receive(ends[0], child, comparison, err)
                                     : hk_fail(err, HK_ENVIRONMENT, "no child process for SimGrid");
  close(ends[0]);
  return status;
}

hk_status hk_referee_compare(const hk_graph *graph, const hk_machine *machine, int repeats,
                             hk_comparison *comparison, hk_error *err) {
  if (repeats < 1 || repeats > MOST_TURNS) {
    return hk_fail(err, HK_INPUT, "expected 1 to %d repeats, got %d", MOST_TURNS, repeats);
  }
  HK_TRY(check_machine(machine, err));
  problem p = {.graph = graph, .machine = machine};
  hk_status status = prepare(&p, err);
  if (status == HK_OK) status = compare_in_child(&p, repeats, comparison, err);
  release(&p);
  return status;
}
