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

hk_status hk_price_make(const hk_args *args, const char *price, const hk_job *job, hk_price *out,
                        hk_error *err) {
  const char *text = *price ? price : args->price;
  double amount;
  bool per_gpu;
  *out = (hk_price){.tokens = (double)args->tokens};
  if (args->tokens > 0 && args->steps > 0)
    return hk_fail(err, HK_INPUT, "--tokens and --steps both give the length of the run: use one");
  if (args->steps > 0) out->tokens = (double)args->steps * hk_job_tokens(job);
  if (!text) return HK_OK;
  if (!hk_price_parse(text, &amount, &per_gpu))
    return hk_fail(err, HK_INPUT,
                   "option '--price': expected a price such as 2.5/h (of a node) or 2.5/gpu/h, got "
                   "'%.60s'",
                   text);
  out->per_hour = amount * job->nodes * (per_gpu ? job->gpus : 1);
  return HK_OK;
}

/* -- Figures ----------------------------------------------------------------------------------- */

double hk_price_per_token(const hk_price *price, const hk_forecast *forecast) {
  return price->per_hour / 3600 / forecast->tokens_per_s;
}

static double hours_of(const hk_price *price, const hk_forecast *forecast) {
  return price->tokens / forecast->tokens_per_s / 3600;
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

void hk_price_print(const hk_price *price, const hk_forecast *forecast,
                    const hk_interval *iteration) {
  char a[48], b[48], c[48], run[160] = "";
  if (price->tokens > 0) {
    const double hours = hours_of(price, forecast);
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

void hk_price_json(const hk_price *price, const hk_forecast *forecast, cJSON *object, bool *ok) {
  if (price->per_hour <= 0 && price->tokens <= 0) return;
  cJSON *cost = hk_put_object(object, "cost", ok);
  const double token = hk_price_per_token(price, forecast);
  if (price->per_hour > 0) {
    hk_put_number(cost, "price_per_hour", price->per_hour, ok);
    hk_put_number(cost, "cost_per_million_tokens", 1e6 * token, ok);
  }
  if (price->tokens > 0) {
    hk_put_number(cost, "run_tokens", price->tokens, ok);
    hk_put_number(cost, "run_hours", hours_of(price, forecast), ok);
    if (price->per_hour > 0) hk_put_number(cost, "run_cost", token * price->tokens, ok);
  }
}
