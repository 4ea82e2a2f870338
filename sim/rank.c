/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Ranking: lists the candidates, simulates and sorts them. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sim/accumulation.h"
#include "sim/ahead.h"
#include "sim/certificate.h"
#include "sim/flush.h"
#include "sim/forecast.h"
#include "sim/front.h"
#include "sim/held.h"
#include "sim/overlap.h"
#include "sim/prune.h"
#include "sim/rank.h"
#include "sim/rank_reason.h"
#include "sim/ratio.h"
#include "sim/search.h"

/* -- candidates --------------------------------------------------------------------------- */

#define MOST_CANDIDATES 64

typedef struct {
  hk_candidate list[MOST_CANDIDATES];
  int n;
} hk_candidates;

/* Adds a candidate, with the user's fixed options in place of its own. Policies that do not take a
 * fixed option are left out. */
static void add(hk_candidates *c, const hk_ranking_options *options, const hk_policy *policy,
                hk_runtime runtime, int stride, double ratio) {
  const hk_policy_options *fixed = &options->fixed;
  if (runtime == HK_RUNTIME_DEEPSPEED && !policy->deepspeed) return;
  if ((fixed->stride > 0 || fixed->stride_auto) && !(policy->takes & HK_TAKES_STRIDE)) return;
  if (fixed->ratio >= 0 && !(policy->takes & HK_TAKES_RATIO)) return;
  if (fixed->buffers > 0 && !(policy->takes & HK_TAKES_BUFFERS)) return;
  if (runtime == HK_RUNTIME_DEEPSPEED && (fixed->buffers > 1 || fixed->stride == 1)) return;
  if (c->n == MOST_CANDIDATES) return;
  hk_candidate *candidate = &c->list[c->n];
  candidate->policy = policy;
  candidate->runtime = runtime;
  candidate->options = *fixed;
  if (fixed->stride == 0 && policy->takes & HK_TAKES_STRIDE) {
    candidate->options.stride = stride;
    candidate->options.stride_auto = stride == 0;
  } else if (stride > 0 && fixed->stride != stride) {
    return; /* a fixed stride gives one candidate, not one for each stride of the list */
  }
  if (fixed->ratio < 0) {
    candidate->options.ratio = ratio;
  } else if (ratio >= 0 && ratio != fixed->ratio) {
    return;
  }
  c->n++;
}

static void list_policy(hk_candidates *c, const hk_ranking_options *options,
                        const hk_policy *policy, hk_runtime runtime) {
  static const double ratios[] = {0.9, 0.8, 0.6, 0.4, 0.2};
  const hk_policy_options *fixed = &options->fixed;
  const bool strides = (policy->takes & HK_TAKES_STRIDE) && fixed->stride == 0;
  const bool shares = (policy->takes & HK_TAKES_RATIO) && fixed->ratio < 0;
  if (policy == &hk_policy_twinflow && shares) {
    for (size_t i = 0; i < sizeof ratios / sizeof ratios[0]; i++) {
      add(c, options, policy, runtime, 0, ratios[i]);
    }
    return;
  }
  add(c, options, policy, runtime, fixed->stride, fixed->ratio);
  if (strides && !fixed->stride_auto) {
    for (int k = 2; k <= 5; k++) add(c, options, policy, runtime, k, fixed->ratio);
  }
  if (policy == &hk_policy_interleave && shares) {
    for (size_t i = 0; i < sizeof ratios / sizeof ratios[0]; i++) {
      add(c, options, policy, runtime, fixed->stride, ratios[i]);
    }
  }
}

/* Muon's matrix products run on the GPU. Lists the policies that use only the routes staged and
 * resident, or the one that the user chose. */
static void list_orthogonal(hk_candidates *c, const hk_ranking_options *options,
                            const hk_policy *policy) {
  hk_ranking_options on_gpu = *options;
  if (policy == &hk_policy_interleave && options->fixed.stride == 0 && !options->fixed.stride_auto)
    on_gpu.fixed.stride = 1;
  if (policy == &hk_policy_gpu_only || policy == &hk_policy_streamed ||
      policy == &hk_policy_interleave || options->only_policy != NULL)
    list_policy(c, &on_gpu, policy, HK_RUNTIME_HOCKET);
}

/* Whether DeepSpeed is left out: for listed models (its behaviour is known for transformers only)
 * and models with frozen parameters, with an overlap, with a loss in slices, with a pipeline or
 * sequence or expert parallelism, with a choice
 * of where gradients are summed, and with other optimizers. */
static bool is_hocket_only(const hk_model *model, const hk_job *job,
                           const hk_plan_settings *settings) {
  return model->arch == HK_ARCH_LISTED || model->frozen != NULL ||
         settings->overlap != HK_OVERLAP_NONE || job->loss_chunks > 1 || hk_job_pp(job) > 1 ||
         job->sequence_parallel || hk_job_ep(job) > 1 || settings->accumulate != NULL ||
         settings->optimizer != HK_OPTIMIZER_FP32;
}

static void list_candidates(hk_candidates *c, const hk_ranking_options *options,
                            const hk_model *model, const hk_job *job,
                            const hk_plan_settings *settings) {
  size_t n = 0;
  const hk_policy *const *policies = hk_policy_list(&n);
  for (int runtime = HK_RUNTIME_HOCKET; runtime <= HK_RUNTIME_DEEPSPEED; runtime++) {
    if (options->only_runtime != NULL && (int)*options->only_runtime != runtime) continue;
    if (options->only_runtime == NULL && runtime == HK_RUNTIME_DEEPSPEED &&
        is_hocket_only(model, job, settings))
      continue;
    for (size_t i = 0; i < n; i++) {
      if (options->only_policy != NULL && options->only_policy != policies[i]) continue;
      if (hk_optimizer_info_of(settings->optimizer)->orthogonal)
        list_orthogonal(c, options, policies[i]);
      else
        list_policy(c, options, policies[i], (hk_runtime)runtime);
    }
  }
}

/* -- simulating and sorting --------------------------------------------------------------- */

/* Whether two plans do the same work on the same lanes, whatever their policies. */
static bool same_schedule(const hk_plan *a, const hk_plan *b) {
  if (a->runtime != b->runtime || a->n_subgroups != b->n_subgroups || a->buffers != b->buffers) {
    return false;
  }
  for (size_t i = 0; i < a->n_subgroups; i++) {
    if (a->subgroups[i].route != b->subgroups[i].route || a->order[i] != b->order[i] ||
        a->subgroups[i].ahead != b->subgroups[i].ahead ||
        a->subgroups[i].held_staged != b->subgroups[i].held_staged)
      return false;
  }
  return a->accumulate == b->accumulate && a->flush_blocks == b->flush_blocks &&
         a->reduce_first == b->reduce_first;
}

/* Removes plans with the schedule of an earlier one. Different settings can give the same schedule:
 * stride 1 is `streamed`, `--stride auto` may choose a listed stride, ratios coincide if there are
 * few subgroups. */
static size_t drop_twins(hk_plan *plans, size_t n) {
  size_t kept = 0;
  for (size_t i = 0; i < n; i++) {
    bool twin = false;
    for (size_t j = 0; j < kept && !twin; j++) twin = same_schedule(&plans[i], &plans[j]);
    if (twin) {
      hk_plan_free(&plans[i]);
    } else {
      const hk_plan plan = plans[i];
      memset(&plans[i], 0, sizeof plans[i]);
      plans[kept++] = plan;
    }
  }
  return kept;
}

/* A total order, so that the ranking does not depend on the number of threads. */
static int compare(const void *left, const void *right) {
  const hk_forecast *a = left, *b = right;
  if (a->feasible != b->feasible) return a->feasible ? -1 : 1;
  if (!a->feasible) {
    const hk_bytes x = hk_forecast_lacks(a);
    const hk_bytes y = hk_forecast_lacks(b);
    if (x != y) return x < y ? -1 : 1;
  }
  const hk_ns x = hk_forecast_mean(a), y = hk_forecast_mean(b);
  if (x != y) return x < y ? -1 : 1;
  if (a->result.memory.peak != b->result.memory.peak) {
    return a->result.memory.peak < b->result.memory.peak ? -1 : 1;
  }
  char ta[80], tb[80];
  const int by_title =
      strcmp(hk_forecast_title(a, ta, sizeof ta), hk_forecast_title(b, tb, sizeof tb));
  return by_title != 0 ? by_title : (int)a->plan.runtime - (int)b->plan.runtime;
}

/* Forecasts all plans, ranking->n, and keeps the best way of summing gradients of each of the n. */
static hk_status forecast_best(hk_plan *plans, size_t n, const size_t *origin,
                               const hk_plan_settings *settings, const hk_machine *machine,
                               hk_ranking *ranking, hk_error *err) {
  HK_TRY(hk_forecast_all(plans, ranking->n, machine, ranking->forecasts, err));
  hk_accumulation_keep_best(ranking->forecasts, n, ranking->n, origin, compare);
  ranking->n = n;
  for (size_t i = 0; i < n; i++)
    HK_TRY(hk_flush_fit(&ranking->forecasts[i], settings->flush == NULL, machine, err));
  return HK_OK;
}

/* Whether plans that are proven slower than the best are left out. */
static bool prunes(const hk_plan_settings *settings, const hk_ranking_options *options) {
  const bool clips = settings->overlap != HK_OVERLAP_NONE && settings->clip_share > 0;
  return options->best_only && options->quick && !clips;
}

/* -- the best overlap --------------------------------------------------------------------- */

/* Whether the user fixed no policy and no option of one. */
static bool is_open(const hk_ranking_options *options) {
  const hk_policy_options *fixed = &options->fixed;
  return options->only_policy == NULL && fixed->stride == 0 && !fixed->stride_auto &&
         fixed->ratio < 0 && fixed->buffers == 0;
}

/* Whether hk_overlap_search runs. */
static bool searches(const hk_plan_settings *settings, const hk_ranking_options *options) {
  return settings->overlap != HK_OVERLAP_NONE && is_open(options) &&
         !hk_optimizer_info_of(settings->optimizer)->orthogonal &&
         (options->only_runtime == NULL || *options->only_runtime == HK_RUNTIME_HOCKET);
}

static bool is_slower(const hk_forecast *f, const hk_forecast *than) {
  return than->feasible && (!f->feasible || hk_forecast_mean(f) > hk_forecast_mean(than));
}

/* Adds the plan of hk_overlap_search, or puts it in place of a candidate with the same schedule
 * that is not faster: pieces may differ. */
static void add_searched(hk_ranking *ranking, hk_overlap_search_result *found) {
  ranking->simulations = found->simulations;
  ranking->closed_form_ns = found->closed_form_ns;
  ranking->gpu_limit = found->gpu_limit;
  size_t i = 0;
  while (i < ranking->n && !same_schedule(&ranking->forecasts[i].plan, &found->best.plan)) i++;
  const bool twin = i < ranking->n;
  if (twin && is_slower(&found->best, &ranking->forecasts[i])) {
    hk_forecast_free(&found->best);
    return;
  }
  if (twin)
    hk_forecast_free(&ranking->forecasts[i]);
  else
    ranking->n++;
  ranking->forecasts[i] = found->best;
}

/* Marks plans that keep more on a GPU than the user allows as not fitting. */
static void apply_limit(hk_ranking *ranking, const hk_plan_settings *settings) {
  for (size_t i = 0; i < ranking->n; i++) {
    hk_forecast *f = &ranking->forecasts[i];
    if (hk_plan_keeps_within(&f->plan, settings->gpu_memory)) continue;
    const hk_bytes kept = hk_plan_gpu_kept(&f->plan), over = kept - *settings->gpu_memory;
    char there[16], allowed[16];
    f->feasible = false;
    f->gpu_short = hk_max(f->gpu_short, over);
    snprintf(f->problem, sizeof f->problem,
             "keeps %s of state%s on each GPU, --gpu-memory allows %s",
             hk_format_bytes(kept, there, sizeof there),
             f->plan.overlap == HK_OVERLAP_NONE ? "" : " and gradients",
             hk_format_bytes(*settings->gpu_memory, allowed, sizeof allowed));
    snprintf(f->advice, sizeof f->advice, "try a larger --gpu-memory");
  }
}

/* Whether a plan of the ranking that fits is faster. */
static bool is_behind(const hk_ranking *ranking, const hk_forecast *f) {
  for (size_t i = 0; i < ranking->n; i++)
    if (is_slower(f, &ranking->forecasts[i])) return true;
  return false;
}

/* Whether a brief search's plan, which does not fit, is further from it than one of the ranking. */
static hk_status lacks_more(const hk_ranking *ranking, const hk_plan_settings *settings,
                            const hk_machine *machine, const hk_overlap_search_result *searched,
                            bool *more, hk_error *err) {
  hk_bytes least = INT64_MAX, lacks = 0; /* of what is ranked: 0 if something fits */
  for (size_t i = 0; i < ranking->n; i++)
    least = hk_min(least, hk_forecast_lacks(&ranking->forecasts[i]));
  HK_TRY(hk_prune_lacks(&searched->plan, settings, true, machine, &lacks, err));
  *more = lacks > least || least == 0;
  return HK_OK;
}

/* Adds what hk_overlap_search found. `known`: of a brief search's plan that fits, else NULL.
 * `leaves_out`: unless it is not the first. */
static hk_status add_found(hk_ranking *ranking, const hk_plan_settings *settings, bool leaves_out,
                           const hk_machine *machine, hk_overlap_search_result *searched,
                           const hk_forecast *known, hk_error *err) {
  bool worse = false;
  if (searched->plan.subgroups != NULL) { /* a brief search, without a forecast */
    apply_limit(ranking, settings);
    if (known == NULL)
      HK_TRY(lacks_more(ranking, settings, machine, searched, &worse, err));
    else
      worse = leaves_out && is_behind(ranking, known);
    if (!worse) HK_TRY(hk_forecast_make(&searched->plan, machine, NULL, &searched->best, err));
  }
  if (searched->best.plan.subgroups != NULL) add_searched(ranking, searched);
  return HK_OK;
}

static void sort(hk_ranking *ranking) {
  qsort(ranking->forecasts, ranking->n, sizeof *ranking->forecasts, compare);
  ranking->n_fit = 0;
  while (ranking->n_fit < ranking->n && ranking->forecasts[ranking->n_fit].feasible)
    ranking->n_fit++;
}

/* Adds clipped iterations: of all that fit if they count, else of the first. */
static hk_status add_held(hk_ranking *ranking, const hk_plan_settings *settings,
                          const hk_machine *machine, hk_error *err) {
  const size_t n = settings->clip_share > 0 ? ranking->n_fit : ranking->n_fit > 0;
  HK_TRY(hk_held_add_all(ranking->forecasts, n, settings->clip_share, machine, err));
  if (settings->clip_share > 0) sort(ranking);
  return HK_OK;
}

/* Whether hk_front runs. */
static bool improves(const hk_plan_settings *settings, const hk_ranking_options *options) {
  return !options->quick && settings->overlap == HK_OVERLAP_NONE && is_open(options);
}

/* Whether the reason compares ways to sum gradients: of plans that a search found nothing else
 * says what the other ways give. */
static bool compares_sums(const hk_ranking *ranking, const hk_plan_settings *settings,
                          const hk_ranking_options *options) {
  const hk_plan *best = &ranking->forecasts[0].plan;
  return ranking->n_fit > 0 && improves(settings, options) && settings->accumulate == NULL &&
         best->job.grad_accum > 1 && best->runtime == HK_RUNTIME_HOCKET &&
         hk_plan_on_route(best, HK_ROUTE_CPU) > 0;
}

/* Adds the first plan with its resident state in front, if it is faster so. */
static hk_status add_front(hk_ranking *ranking, const hk_machine *machine,
                           const hk_plan_settings *settings, hk_error *err) {
  hk_forecast found;
  HK_TRY(hk_front(&ranking->forecasts[0], settings->flush == NULL, settings->gpu_memory, machine,
                  &found, err));
  if (found.plan.subgroups == NULL) return HK_OK;
  ranking->forecasts[ranking->n++] = found;
  sort(ranking);
  return HK_OK;
}

/* Adds what a short search finds from the fastest plan of runtime hocket on. */
static hk_status add_near(hk_ranking *ranking, const hk_machine *machine,
                          const hk_plan_settings *settings, hk_error *err) {
  hk_forecast *start = ranking->forecasts, *end = start + ranking->n_fit, found;
  while (start < end && start->plan.runtime != HK_RUNTIME_HOCKET) start++;
  if (start == end || hk_optimizer_info_of(settings->optimizer)->orthogonal) return HK_OK;
  HK_TRY(hk_search_shortly(start, machine, settings->clip_share, settings->gpu_memory,
                           hk_forecast_mean(ranking->forecasts), &found, err));
  if (found.plan.subgroups == NULL) return HK_OK;
  ranking->forecasts[ranking->n++] = found;
  sort(ranking);
  return HK_OK;
}

/* Adds plans with ratios between those of the list: those that fit if none of the list does, else
 * the fastest. If not even the state fits under any assignment of routes (hk_bound_physical), there
 * are none. */
static hk_status add_ratios(hk_ranking *ranking, const hk_candidates *candidates,
                            const hk_model *model, const hk_machine *machine, const hk_job *job,
                            const hk_plan_settings *settings, const hk_ranking_options *options,
                            hk_error *err) {
  size_t n = 0;
  if (options->fixed.ratio >= 0 || !ranking->forecasts[0].physical.feasible ||
      (ranking->n_fit > 0 && options->quick))
    return HK_OK;
  HK_TRY(hk_ratio_search(candidates->list, candidates->n, model, machine, job, settings,
                         ranking->forecasts, ranking->n_fit, &ranking->forecasts[ranking->n], &n,
                         err));
  hk_forecast *const more = &ranking->forecasts[ranking->n];
  for (size_t i = 0; i < n; i++) { /* strides that are equal give one schedule */
    size_t twin = 0;
    while (twin < ranking->n && !same_schedule(&ranking->forecasts[twin].plan, &more[i].plan))
      twin++;
    hk_forecast new = more[i];
    memset(&more[i], 0, sizeof more[i]);
    if (twin < ranking->n)
      hk_forecast_free(&new);
    else
      ranking->forecasts[ranking->n++] = new;
  }
  sort(ranking);
  return HK_OK;
}

/* No candidate is left: names an option that the only policy does not take, and those that do. */
static hk_status refuse(const hk_ranking_options *options, hk_error *err) {
  const hk_policy_options *fixed = &options->fixed;
  const struct {
    bool given;
    unsigned bit;
    const char *name;
  } given[] = {{fixed->stride > 0 || fixed->stride_auto, HK_TAKES_STRIDE, "--stride"},
               {fixed->ratio >= 0, HK_TAKES_RATIO, "--ratio"},
               {fixed->buffers > 0, HK_TAKES_BUFFERS, "--buffers"}};
  size_t n;
  const hk_policy *const *policies = hk_policy_list(&n);
  for (size_t i = 0; i < sizeof given / sizeof *given && options->only_policy != NULL; i++) {
    char takers[200] = "";
    if (!given[i].given || options->only_policy->takes & given[i].bit) continue;
    for (size_t p = 0; p < n; p++) {
      const size_t used = strlen(takers);
      if (policies[p]->takes & given[i].bit)
        snprintf(takers + used, sizeof takers - used, "%s%s", used ? ", " : "", policies[p]->name);
    }
    return hk_fail(err, HK_INPUT, "policy %s has no %s; these have one: %s",
                   options->only_policy->name, given[i].name, takers);
  }
  return hk_fail(err, HK_INPUT,
                 "no policy takes these options together; --help says which takes what");
}

#define AS_FAST     1.001 /* a plan that may be faster by less is not looked for */
#define MOST_BEHIND 1.2   /* ... nor one that begins further behind */

/* What a ranking is of. */
typedef struct {
  const hk_model *model;
  const hk_machine *machine;
  const hk_job *job;
  const hk_plan_settings *settings;
  const hk_ranking_options *options;
} question;

/* Forecasts of the candidates and of *searched, sorted. `plans`, `origin`: room for as many as
 * there may be ways of summing gradients. */
static hk_status rank_candidates(const question *q, const hk_candidates *candidates, hk_plan *plans,
                                 size_t *origin, hk_overlap_search_result *searched,
                                 hk_ranking *ranking, hk_error *err) {
  const hk_plan_settings *settings = q->settings;
  const size_t listed = (size_t)candidates->n;
  for (size_t i = 0; i < listed; i++)
    HK_TRY(hk_candidate_plan(&candidates->list[i], q->model, q->machine, q->job, settings,
                             &plans[i], err));
  if (searches(settings, q->options))
    HK_TRY(hk_overlap_search(q->model, q->machine, q->job, settings, q->options->best_only,
                             searched, err));
  const bool leaves_out = prunes(settings, q->options);
  const bool fits = searched->plan.subgroups != NULL && searched->iteration_ns < INT64_MAX;
  const hk_forecast brief = {
      .plan = searched->plan, .feasible = true, .iteration_ns = searched->iteration_ns};
  const hk_forecast *known = fits ? &brief : NULL;
  const size_t n = drop_twins(plans, listed);
  hk_status status = hk_accumulation_candidates(plans, n, settings, origin, &ranking->n, err);
  if (status == HK_OK && leaves_out)
    status = hk_prune(plans, n, ranking->n, origin, settings, known, q->machine, compare,
                      ranking->forecasts, &ranking->n, err);
  else if (status == HK_OK)
    status = forecast_best(plans, n, origin, settings, q->machine, ranking, err);
  if (status == HK_OK)
    status = add_found(ranking, settings, leaves_out, q->machine, searched, known, err);
  else
    hk_forecast_free(&searched->best);
  hk_plan_free(&searched->plan);
  HK_TRY(status);
  apply_limit(ranking, settings);
  sort(ranking);
  return HK_OK;
}

/* Goes on from the best of the candidates. */
static hk_status improve(const question *q, const hk_candidates *candidates, hk_ranking *ranking,
                         hk_error *err) {
  const hk_plan_settings *settings = q->settings;
  const hk_ranking_options *options = q->options;
  const hk_machine *machine = q->machine;
  HK_TRY(add_ratios(ranking, candidates, q->model, machine, q->job, settings, options, err));
  if (improves(settings, options)) HK_TRY(add_front(ranking, machine, settings, err));
  if (options->best_only && settings->clip_share == 0) return HK_OK;
  return add_held(ranking, settings, machine, err);
}

/* The best of all policies, without a reason; *searched: what hk_overlap_search found, without the
 * plan. */
static hk_status rank_all(const question *q, hk_ranking *ranking,
                          hk_overlap_search_result *searched, hk_error *err) {
  hk_candidates candidates = {.n = 0};
  memset(ranking, 0, sizeof *ranking);
  list_candidates(&candidates, q->options, q->model, q->job, q->settings);
  if (candidates.n == 0) return refuse(q->options, err);
  const size_t listed = (size_t)candidates.n, most = HK_ACCUMULATE_COUNT * listed;
  hk_plan *plans = calloc(most, sizeof *plans);
  ranking->forecasts = calloc(most + 2 * listed + 8, sizeof *ranking->forecasts);
  size_t *origin = calloc(most, sizeof *origin);
  hk_status status = plans != NULL && ranking->forecasts != NULL && origin != NULL
                         ? rank_candidates(q, &candidates, plans, origin, searched, ranking, err)
                         : hk_fail_memory(err, most * sizeof *ranking->forecasts, "a ranking");
  for (size_t i = 0; plans != NULL && i < most; i++) hk_plan_free(&plans[i]);
  free(plans);
  free(origin);
  if (status == HK_OK) status = improve(q, &candidates, ranking, err);
  if (status != HK_OK) hk_ranking_free(ranking);
  return status;
}

/* With overlap `both`: adds the best plan of `forward`, in which nothing runs ahead, if it is
 * faster. *searched then says how that one was found. */
static hk_status add_forward(const question *q, hk_ranking *ranking,
                             hk_overlap_search_result *searched, hk_error *err) {
  hk_plan_settings forward = *q->settings;
  question other = *q;
  const hk_ns first = hk_forecast_mean(&ranking->forecasts[0]);
  hk_ranking ranked;
  hk_overlap_search_result how = {0};
  hk_certificate same;
  forward.overlap = HK_OVERLAP_FORWARD;
  other.settings = &forward;
  HK_TRY(hk_certify_with(&ranking->forecasts[0], HK_OVERLAP_FORWARD, q->machine, &same, err));
  if (same.made && (AS_FAST * (double)same.bound_ns >= (double)first ||
                    (double)same.iteration_ns > MOST_BEHIND * (double)first))
    return HK_OK;
  HK_TRY(rank_all(&other, &ranked, &how, err));
  hk_forecast *best = &ranked.forecasts[0];
  hk_status status = HK_OK;
  if (ranked.n_fit > 0 && best->iteration_ns < first) {
    hk_forecast *added = &ranking->forecasts[ranking->n];
    hk_plan_set_overlap(&best->plan, HK_OVERLAP_BOTH);
    status = hk_forecast_make(&best->plan, q->machine, NULL, added, err);
    memcpy(added->sums, best->sums, sizeof added->sums);
    ranking->n += status == HK_OK;
    *searched = how;
    sort(ranking);
  }
  hk_ranking_free(&ranked);
  return status;
}

/* What takes longer than the rest: plans that no policy lists, and the reason's comparisons. */
static hk_status finish(const question *q, hk_ranking *ranking, hk_overlap_search_result *searched,
                        hk_error *err) {
  if (is_open(q->options) && q->settings->overlap == HK_OVERLAP_BOTH)
    HK_TRY(add_forward(q, ranking, searched, err));
  if (is_open(q->options)) HK_TRY(add_near(ranking, q->machine, q->settings, err));
  HK_TRY(hk_ahead_enough(&ranking->forecasts[0], q->machine, err));
  if (compares_sums(ranking, q->settings, q->options))
    HK_TRY(hk_accumulation_compare(&ranking->forecasts[0], q->machine, err));
  return HK_OK;
}

hk_status hk_rank(const hk_model *model, const hk_machine *machine, const hk_job *job,
                  const hk_plan_settings *settings, const hk_ranking_options *options,
                  hk_ranking *ranking, hk_error *err) {
  const question q = {model, machine, job, settings, options};
  hk_overlap_search_result searched = {0};
  HK_TRY(rank_all(&q, ranking, &searched, err));
  if (ranking->n_fit > 0 && !options->quick) {
    const hk_status status = finish(&q, ranking, &searched, err);
    if (status != HK_OK) {
      hk_ranking_free(ranking);
      return status;
    }
  }
  if (ranking->n_fit > 0)
    hk_ranking_say_why(ranking, machine, &searched);
  else
    hk_ranking_say_why_not(ranking);
  return HK_OK;
}

hk_status hk_ranking_lead(hk_ranking *ranking, const hk_machine *machine, hk_forecast *best,
                          hk_error *err) {
  hk_forecast *first = ranking->forecasts;
  if (ranking->n_fit > 0 && strcmp(first->plan.policy, best->plan.policy) == 0) {
    hk_forecast_free(first);
  } else {
    const size_t n = ranking->n + 1;
    first = realloc(ranking->forecasts, n * sizeof *first);
    if (first == NULL) return hk_fail_memory(err, n * sizeof *first, "a ranking");
    memmove(first + 1, first, ranking->n * sizeof *first);
    ranking->forecasts = first;
    ranking->n = n;
    ranking->n_fit++;
  }
  *first = *best;
  memset(best, 0, sizeof *best);
  ranking->reason[0] = '\0';
  hk_ranking_say_why(ranking, machine, NULL);
  return HK_OK;
}

void hk_ranking_set_advice(hk_ranking *ranking, const char *advice) {
  if (ranking->n_fit > 0) return;
  snprintf(ranking->forecasts[0].advice, sizeof ranking->forecasts[0].advice, "%s", advice);
  ranking->reason[0] = '\0';
  hk_ranking_say_why_not(ranking);
}

void hk_ranking_free(hk_ranking *ranking) {
  for (size_t i = 0; i < ranking->n; i++) hk_forecast_free(&ranking->forecasts[i]);
  free(ranking->forecasts);
  memset(ranking, 0, sizeof *ranking);
}

const hk_forecast *hk_ranking_named(const hk_ranking *ranking, const hk_policy **policy) {
  hk_error unknown = {0};
  for (size_t i = 0; i < ranking->n_fit; i++)
    if (hk_policy_find(ranking->forecasts[i].plan.policy, policy, &unknown) == HK_OK)
      return &ranking->forecasts[i];
  return NULL;
}
