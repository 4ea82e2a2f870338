/* SPDX-License-Identifier: Apache-2.0 */
/* The CPU team: how many threads it has, which simulator and engine must agree on. */
#ifndef HK_CORE_MACHINE_TEAM_H
#define HK_CORE_MACHINE_TEAM_H

#include "core/graph/graph.h"

/* Threads that carry out the operations of lane cpu: `threads` as planned (hk_op.threads), or one
 * fewer. Simulator and engine both ask here, so that they run the same team.
 *
 * A host thread queues the GPU's copies and kernels. If the teams fill every core, this thread
 * preempts a member, and the whole team waits for that member. With a few copies this happens once,
 * at the beginning. With more copies than the engine queues ahead (HK_QUEUED_AHEAD) it happens
 * throughout the update, so the team leaves a core to the queueing thread. This is done only if
 * - graph->queues_throughout: runtime hocket, operations on the CPU, and more than
 *   HK_QUEUED_AHEAD planned staged pieces an iteration;
 * - the team has at least HK_LEAST_LENDER threads: a smaller one would lose more than it gains;
 * - the teams fill `cores`, the CPUs that the process may use (0: not known): threads == cores or,
 *   with one team for each GPU of the node, threads x GPUs == cores.
 * Example: 16 threads, 16 cores, 1120 staged pieces: 15. With 17 cores or 100 pieces: 16. */
#define HK_QUEUED_AHEAD 128
#define HK_LEAST_LENDER 8
int hk_team_size(const hk_graph *graph, int threads, int cores);

/* Cores that the framework's threads (main, autograd), the driver's and the engine's queueing
 * thread need while forward and backward run, out of a rank's `share` of the cores: 3, or a quarter
 * of the share if that is less, but at least one core of two or three. A team that has more than
 * the others preempts them and is preempted: it updates no faster than one of share - 3 threads.
 * Measured on an H200 node with 16 cores (bench/results/training): 15 threads took 600 ms of CPU
 * lane an iteration beside forward and backward, 13 took 567; with the GPU idle, 15 took 540. */
int hk_framework_cores(int share);

/* Default number of threads of a CPU team that trains with `overlap` on a rank's `share` of the
 * cores, at least 1. With `both`, where most of the update runs beside forward and backward, it
 * leaves hk_framework_cores. Otherwise it leaves one core: with `forward` 15 threads of 16 cores
 * were 0.99 to 1.045 times as fast as 13 (four pairs in turns, bench/results/training). */
int hk_training_threads(hk_overlap overlap, int share);

#endif
