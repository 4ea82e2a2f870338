/* SPDX-License-Identifier: GPL-3.0-or-later */
/* hocket report: a page to look at. */
#include <stdio.h>

#include "cli/command.h"
#include "cli/page.h"
#include "cli/print/emit.h"

static hk_status read_all(const hk_args *args, cJSON *inputs, bool *ok, hk_error *err) {
  for (int i = 0; i < args->n_operands; i++) {
    cJSON *input = hk_put_element(inputs, ok);
    if (input) HK_TRY(hk_page_read(args, i, input, err));
  }
  return HK_OK;
}

static hk_status run(const hk_args *args, hk_error *err) {
  if (!args->output) return hk_fail(err, HK_INPUT, "-o FILE is needed, the page to write");
  HK_TRY(hk_emit_check_output(args->output, err));
  HK_TRY(hk_emit_check_input(args->output, args->operands, args->n_operands, err));
  bool ok = true;
  cJSON *data = hk_emit_begin("hocket.page/1", &ok);
  hk_put_string(data, "version", HK_BUILD, &ok);
  hk_status status = read_all(args, hk_put_array(data, "inputs", &ok), &ok, err);
  if (status == HK_OK) status = hk_page_check(ok, err);
  if (status == HK_OK) status = hk_page_write(data, args->output, err);
  cJSON_Delete(data);
  if (status == HK_OK && !args->quiet && !hk_emit_instead(args->output))
    printf("%s: open it in a browser\n", args->output);
  return status;
}

const hk_command hk_command_report = {
    .name = "report",
    .summary = "Makes an HTML page of plans, sweeps, validations, timelines",
    .usage = "INPUT... -o PAGE.html",
    .details =
        "An INPUT is what hocket wrote: a plan file, which is simulated; the output of\n"
        "'plan --json', 'simulate --json' or 'validate ... --json', with --explain also\n"
        "every quantity with its origin; the database of a sweep; a ranking; a recorded\n"
        "training run; or the id of a stored timeline ('hocket trace list'), shown with\n"
        "its pair.\n"
        "The page needs no network and no other file. It begins with the answer; then\n"
        "tables, the timelines of all inputs on one axis, memory and bandwidth over time,\n"
        "time against memory, and what makes predictions uncertain.",
    .example = "hocket report plan.json -o page.html",
    .output = "the page ('-': to stdout)",
    .options = HK_OPTION(OUTPUT) | HK_OPTION(QUIET),
    .least_operands = 1,
    .most_operands = 32,
    .dash = HK_DASH_INSTEAD,
    .run = run,
};
