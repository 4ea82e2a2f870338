/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Probes in the simulator: the same loads as operations of a task graph, run on a machine profile,
 * read by the same hk_probe_rates. */
#ifndef HK_CALIB_PROBES_REPLAY_H
#define HK_CALIB_PROBES_REPLAY_H

#include "calib/probes/probe.h"
#include "core/machine.h"

/* Whether the simulator has an operation for every load of the probe. */
bool hk_replay_can(const hk_probe *probe);

/* The graph that stands for a probe on this many loads' worth of work: `work` of each load, cut
 * into operations of its chunk. For tests and traces. Free with hk_graph_free. */
hk_status hk_replay_graph(const hk_probe *probe, const double *work, hk_graph *graph,
                          hk_error *err);

/* Rates that the simulator predicts. `guess`: rates from which the amounts of work are chosen (the
 * measured ones), so that all loads last about as long. */
hk_status hk_replay(const hk_probe *probe, const hk_machine *machine, const double *guess,
                    double *rates, hk_error *err);

/* What the rates of a probe depend on, of those quantities of `machine` that vary from replay to
 * replay: two machines that agree in all others and give the same inputs give the same rates, to
 * the last bit. A quantity that no load of the probe uses is 0 here whatever its value is. */
#define HK_REPLAY_VARIED 16
#define HK_REPLAY_INPUTS (HK_REPLAY_VARIED + 2)
void hk_replay_inputs(const hk_probe *probe, const hk_machine *machine,
                      const hk_quantity *const *varied, size_t n, double inputs[HK_REPLAY_INPUTS]);

#endif
