/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Replays probes in the simulator: the loads become operations of a task graph, which is simulated
 * on a machine profile. hk_probe_rates computes the rates, as for measured probes. */
#ifndef HK_CALIB_PROBES_REPLAY_H
#define HK_CALIB_PROBES_REPLAY_H

#include "calib/probes/probe.h"
#include "core/machine/machine.h"

/* Whether the simulator has an operation for every load of the probe. */
bool hk_replay_can(const hk_probe *probe);

/* Builds the task graph of a probe: work[i] of load i, divided into operations of
 * hk_load_operation. For tests and traces. Free with hk_graph_free. */
hk_status hk_replay_graph(const hk_probe *probe, const double *work, hk_graph *graph,
                          hk_error *err);

/* Computes the rates that the simulator predicts. `guess`: expected rates (the measured ones), by
 * which amounts of work are chosen so that all loads last about equally long. */
hk_status hk_replay(const hk_probe *probe, const hk_machine *machine, const double *guess,
                    double *rates, hk_error *err);

/* Inputs of a probe's rates, among the quantities `varied` of `machine`. If two machines are equal
 * in all other quantities and have the same inputs, the rates are equal to the last bit, and a
 * replay can be reused. The input of a quantity that no load of the probe uses is 0. */
#define HK_REPLAY_VARIED 16
#define HK_REPLAY_INPUTS (HK_REPLAY_VARIED + 2)
void hk_replay_inputs(const hk_probe *probe, const hk_machine *machine,
                      const hk_quantity *const *varied, size_t n, double inputs[HK_REPLAY_INPUTS]);

#endif
