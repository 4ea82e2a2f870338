/* SPDX-License-Identifier: GPL-3.0-or-later */
#include "cli/print/report_state.h"

#include "cli/print/screen.h"
#include "sim/sim.h"

void hk_report_optimizer(const hk_plan *plan, const hk_machine *machine, bool explain) {
  const hk_optimizer_info *o = hk_optimizer_info_of(plan->optimizer);
  if (!explain && plan->optimizer == HK_OPTIMIZER_FP32) return;
  hk_print_text(0, 0, "optimizer %s: %s; %.4g bytes of state a parameter", o->name, o->meaning,
                hk_state_per_param(plan->optimizer));
  if (!explain) return;
  hk_print_text(0, 2,
                "source: %s. A fused update moves %.4g bytes of memory a parameter. In the limit "
                "of many threads the CPU updates %.4g G parameters/s: cpu.adamw_params_per_s x 28 "
                "/ %.4g%s. Engine: %s",
                o->source, hk_update_traffic(plan->optimizer),
                machine->cpu_adamw.value * hk_update_speed(plan->optimizer) / 1e9,
                hk_update_traffic(plan->optimizer),
                plan->optimizer == HK_OPTIMIZER_FP32 ? ""
                : hk_update_limit(machine, plan->optimizer) != NULL
                    ? "; a team's own rate, which arithmetic limits, was measured"
                : o->thread > 0
                    ? "; its arithmetic limits a thread of a full team to a part, measured on one "
                      "kind of node, of what a thread alone updates of fp32"
                    : ", which assumes that memory limits both; it was not measured",
                o->engine ? "implements it" : "does not implement it");
  if (o->orthogonal)
    hk_print_text(0, 2, "matrix products: %.4g flops a parameter, at forward's efficiency",
                  hk_model_newton_schulz_flops(&plan->model));
}

void hk_report_sums(const hk_plan *plan) {
  static const char *const ways[] = {
      "on the GPU",
      "in host memory: the GPU adds, after a copy of the sums to it, in each micro-step"};
  if (plan->job.grad_accum <= 1) return;
  if (hk_plan_hands_over(plan) && hk_plan_accumulates(plan) == HK_ACCUMULATE_HOST)
    hk_print_text(
        0, 0,
        "gradients of %d micro-steps are summed on the GPU; between micro-steps %.0f %% of "
        "the sums stay there, the others go to host memory and come back",
        plan->job.grad_accum, 100 * (1 - hk_plan_passing_share(plan)));
  else
    hk_print_text(0, 0, "gradients of %d micro-steps are summed %s", plan->job.grad_accum,
                  ways[hk_plan_accumulates(plan)]);
}

void hk_report_optimizer_json(const hk_plan *plan, cJSON *object, bool *ok) {
  const hk_optimizer_info *o = hk_optimizer_info_of(plan->optimizer);
  cJSON *optimizer = hk_put_object(object, "optimizer", ok);
  hk_put_string(optimizer, "name", o->name, ok);
  hk_put_number(optimizer, "state_bytes_per_param", hk_state_per_param(plan->optimizer), ok);
  hk_put_number(optimizer, "traffic_bytes_per_param", hk_update_traffic(plan->optimizer), ok);
  hk_put_bool(optimizer, "engine", o->engine, ok);
  if (plan->job.grad_accum <= 1) return;
  hk_put_string(object, "accumulate", hk_accumulate_names[hk_plan_accumulates(plan)], ok);
  if (hk_plan_hands_over(plan))
    hk_put_number(object, "sums_passing_share", hk_plan_passing_share(plan), ok);
}
