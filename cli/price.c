/* SPDX-License-Identifier: GPL-3.0-or-later */
#include "cli/price.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/print/emit.h"
#include "cli/print/screen.h"

#define MOST_PRICE 1e9

/* -- Reading ----------------------------------------------------------------------------------- */

bool hk_price_parse(const char *text, double *amount, bool *per_gpu) {
  static const struct {
    const char *unit;
    bool per_gpu;
  } units[] = {{"/h", false}, {"/node/h", false}, {"/gpu/h", true}};
  const size_t digits = strspn(text, "0123456789.");
  char *end = NULL;
  *amount = strtod(text, &end);
  if (digits == 0 || end != text + digits || !(*amount > 0 && *amount <= MOST_PRICE)) return false;
  for (size_t i = 0; i < sizeof units / sizeof *units; i++) {
    if (strcmp(end, units[i].unit) != 0) continue;
    *per_gpu = units[i].per_gpu;
    return true;
  }
  return false;
}

hk_status hk_price_split(const char *machine, char *name, size_t size, const char **price,
                         hk_error *err) {
  const char *sign = strrchr(machine, '=');
  double amount;
  bool per_gpu;
  const bool priced = sign && hk_price_parse(sign + 1, &amount, &per_gpu);
  if (sign && !priced && isdigit((unsigned char)sign[1]) && access(machine, F_OK) != 0)
    return hk_fail(err, HK_INPUT,
                   "option '--machine': expected a price such as %.*s=2.5/h (of a node) or "
                   "%.*s=2.5/gpu/h, got '%.60s'",
                   (int)(sign - machine), machine, (int)(sign - machine), machine, sign + 1);
  const size_t length = priced ? (size_t)(sign - machine) : strlen(machine);
  *price = priced ? sign + 1 : "";
  if (length >= size)
    return hk_fail(err, HK_INPUT, "option '--machine': a name of %zu characters is too long",
                   length);
  memcpy(name, machine, length);
  name[length] = '\0';
  return HK_OK;
}

hk_status hk_price_make(const hk_args *args, const char *price, const hk_setup *setup,
                        hk_price *out, hk_error *err) {
  const hk_job *job = &setup->job;
  const char *text = *price ? price : args->price;
  double amount;
  bool per_gpu;
  *out = (hk_price){.tokens = (double)args->tokens};
  if (args->tokens > 0 && args->steps > 0)
    return hk_fail(err, HK_INPUT, "--tokens and --steps both give the length of the run: use one");
  if (args->steps > 0) out->tokens = (double)args->steps * hk_job_tokens(job);
  if (args->restart > 0 && args->mtbf <= 0)
    return hk_fail(err, HK_INPUT, "--restart is a part of a failure: it needs --mtbf HOURS");
  HK_TRY(hk_goodput_make(&setup->model, &setup->machine, job, setup->settings.optimizer,
                         3600 * args->mtbf, 60 * args->restart, &out->goodput, err));
  if (!text) return HK_OK;
  if (!hk_price_parse(text, &amount, &per_gpu))
    return hk_fail(err, HK_INPUT,
                   "option '--price': expected a price such as 2.5/h (of a node) or 2.5/gpu/h, got "
                   "'%.60s'",
                   text);
  out->per_hour = amount * job->nodes * (per_gpu ? job->gpus : 1.0 / hk_job_jobs(job));
  return HK_OK;
}

/* -- Figures ----------------------------------------------------------------------------------- */

static double speed_of(const hk_price *price, const hk_forecast *forecast) {
  return forecast->tokens_per_s * (1 - price->goodput.lost);
}

double hk_price_per_token(const hk_price *price, const hk_forecast *forecast) {
  return price->per_hour / 3600 / speed_of(price, forecast);
}

double hk_price_hours(const hk_price *price, const hk_forecast *forecast) {
  return price->tokens / speed_of(price, forecast) / 3600;
}

const char *hk_format_cost(double cost, char *buffer, size_t size) {
  if (cost >= 1000 && cost < 1e15) return hk_format_count((int64_t)llround(cost), buffer, size);
  const int digits = cost >= 100 ? 1 : cost >= 10 ? 2 : cost >= 1 ? 3 : 4;
  snprintf(buffer, size, "%.*f", digits, cost);
  return buffer;
}

static void print_interval(const hk_forecast *forecast, const hk_interval *iteration) {
  if (iteration == NULL || iteration->error <= 0) return;
  const double t = (double)forecast->iteration_ns;
  hk_print_text(0, 0, "95 %% interval: %.2f to %.2f times that", (double)iteration->low / t,
                (double)iteration->high / t);
}

/* "12.3 s", "45.0 minutes", "7.5 hours". */
static const char *format_time(double seconds, char *buffer, size_t size) {
  static const struct {
    const char *name;
    double seconds;
  } units[] = {{"hours", 3600}, {"minutes", 60}, {"s", 1}};
  int i = 0;
  while (i < 2 && seconds < 2 * units[i].seconds) i++;
  snprintf(buffer, size, "%.*f %s", seconds >= 360000 ? 0 : 1, seconds / units[i].seconds,
           units[i].name);
  return buffer;
}

static void print_goodput(const hk_goodput *g) {
  char fails[48], write[48], every[48], restart[48];
  if (g->mtbf_s <= 0) return;
  hk_print_text(0, 2,
                "failures and checkpoints take %.*f %% of the time: the job fails every %s; a "
                "checkpoint of %.1f GB takes %s, best every %s; a restart takes %s",
                g->lost < 0.1 ? 2 : 1, 100 * g->lost, format_time(g->mtbf_s, fails, sizeof fails),
                g->bytes / 1e9, format_time(g->write_s, write, sizeof write),
                format_time(g->interval_s, every, sizeof every),
                format_time(g->restart_s, restart, sizeof restart));
}

static void print_cost(const hk_price *price, const hk_forecast *forecast,
                       const hk_interval *iteration) {
  char a[48], b[48], c[48], run[160] = "";
  if (price->tokens > 0) {
    const double hours = hk_price_hours(price, forecast);
    snprintf(run, sizeof run, "%s tokens take %s %s",
             hk_format_count((int64_t)price->tokens, a, sizeof a),
             hk_format_cost(hours < 72 ? hours : hours / 24, b, sizeof b),
             hours < 72 ? "hours" : "days");
  }
  if (price->per_hour <= 0) {
    if (*run) hk_print_text(0, 0, "%s", run);
    if (*run) print_interval(forecast, iteration);
    return;
  }
  const double token = hk_price_per_token(price, forecast);
  if (*run) {
    const size_t used = strlen(run);
    snprintf(run + used, sizeof run - used, " and cost %s",
             hk_format_cost(token * price->tokens, c, sizeof c));
  }
  hk_print_text(0, 0, "costs %s per million tokens at %s per hour%s%s",
                hk_format_cost(1e6 * token, a, sizeof a),
                hk_format_cost(price->per_hour, b, sizeof b), *run ? "; " : "", run);
  print_interval(forecast, iteration);
}

void hk_price_print(const hk_price *price, const hk_forecast *forecast,
                    const hk_interval *iteration) {
  print_cost(price, forecast, iteration);
  print_goodput(&price->goodput);
}

static void put_goodput(const hk_goodput *g, cJSON *cost, bool *ok) {
  if (g->mtbf_s <= 0) return;
  cJSON *object = hk_put_object(cost, "goodput", ok);
  hk_put_number(object, "mtbf_ms", 1e3 * g->mtbf_s, ok);
  hk_put_number(object, "checkpoint_bytes", g->bytes, ok);
  hk_put_number(object, "checkpoint_ms", 1e3 * g->write_s, ok);
  hk_put_number(object, "interval_ms", 1e3 * g->interval_s, ok);
  hk_put_number(object, "restart_ms", 1e3 * g->restart_s, ok);
  hk_put_number(object, "lost_pct", 100 * g->lost, ok);
}

void hk_price_json(const hk_price *price, const hk_forecast *forecast, cJSON *object, bool *ok) {
  if (price->per_hour <= 0 && price->tokens <= 0 && price->goodput.mtbf_s <= 0) return;
  cJSON *cost = hk_put_object(object, "cost", ok);
  const double token = hk_price_per_token(price, forecast);
  if (price->per_hour > 0) {
    hk_put_number(cost, "price_per_hour", price->per_hour, ok);
    hk_put_number(cost, "cost_per_million_tokens", 1e6 * token, ok);
  }
  if (price->tokens > 0) {
    hk_put_number(cost, "run_tokens", price->tokens, ok);
    hk_put_number(cost, "run_hours", hk_price_hours(price, forecast), ok);
    if (price->per_hour > 0) hk_put_number(cost, "run_cost", token * price->tokens, ok);
  }
  put_goodput(&price->goodput, cost, ok);
}
