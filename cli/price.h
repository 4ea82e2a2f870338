/* SPDX-License-Identifier: GPL-3.0-or-later */
/* What training costs: --price, --tokens and --steps. Costs are in the currency of the price. */
#ifndef HK_CLI_PRICE_H
#define HK_CLI_PRICE_H

#include <cjson/cJSON.h>

#include "cli/args.h"
#include "cli/setup.h"
#include "sim/forecast.h"
#include "sim/goodput.h"
#include "sim/uncertainty.h"

typedef struct {
  double per_hour; /* of the whole job; 0: no price is given */
  double tokens;   /* of the run; 0: not given */
  hk_goodput goodput;
} hk_price;

/* Whether `text` is a price: a number, then "/h" or "/node/h" (of a node) or "/gpu/h". `per_gpu`:
 * out. */
bool hk_price_parse(const char *text, double *amount, bool *per_gpu);

/* Splits "NAME=PRICE" into the name of a machine and a price. Without a price at the end `name` is
 * the whole text and *price is "". HK_INPUT: the name is too long. */
hk_status hk_price_split(const char *machine, char *name, size_t size, const char **price,
                         hk_error *err);

/* The price of a job. `price`: of its machine, "" for --price. Length of the run:
 * --tokens, or the tokens of an iteration x --steps. HK_INPUT: not a price; both --tokens and
 * --steps; failures that leave too little time (sim/goodput.h). */
hk_status hk_price_make(const hk_args *args, const char *price, const hk_setup *setup,
                        hk_price *out, hk_error *err);

/* With --mtbf both count the time that is lost. */
double hk_price_per_token(const hk_price *price, const hk_forecast *forecast);
double hk_price_hours(const hk_price *price, const hk_forecast *forecast); /* of the run */

/* "0.4120", "1.234", "12.34", "123.4", "6,180": four decimals below 1, four digits below 1000, then
 * whole. Returns `buffer`; 48 bytes are enough. */
const char *hk_format_cost(double cost, char *buffer, size_t size);

/* "costs 0.4120 per million tokens at 98.00 per hour; 15,000,000,000 tokens take 63.06 hours and
 * cost 6,180" (from 72 hours on in days), then "95 % interval: 0.81 to 1.24 times that", from the
 * interval of the iteration, if it is known (NULL: not), and with --mtbf what is lost. Prints
 * nothing without a price, a length of the run and --mtbf. */
void hk_price_print(const hk_price *price, const hk_forecast *forecast,
                    const hk_interval *iteration);
/* Adds "cost" to the object of a forecast, with --mtbf "goodput" in it; nothing without a price, a
 * length and --mtbf. */
void hk_price_json(const hk_price *price, const hk_forecast *forecast, cJSON *object, bool *ok);

#endif
