/* SPDX-License-Identifier: Apache-2.0 */
/* Sizes of the CPU team. */
#include "core/machine/team.h"

int hk_team_size(const hk_graph *graph, int threads, int cores) {
  const int teams = graph->cores_unbound ? 1 : graph->ranks * graph->multiplicity;
  const bool fills = threads == cores || threads * teams == cores;
  return graph->queues_throughout && threads >= HK_LEAST_LENDER && fills ? threads - 1 : threads;
}

int hk_framework_cores(int share) {
  const int quarter = share / 4, least = share > 1 ? 1 : 0;
  if (quarter < least) return least;
  return quarter < 3 ? quarter : 3;
}

int hk_training_threads(hk_overlap overlap, int share) {
  if (overlap == HK_OVERLAP_BOTH) return share - hk_framework_cores(share);
  return share > 1 ? share - 1 : 1;
}
