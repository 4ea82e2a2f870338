/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Contention: how operations that run at the same time change each other's rates.
 *
 * sim/demand.c says what one operation asks of the machine when it runs alone. Resources with a
 * capacity (host memory, links, cores) are then shared by sim/share.h. The rules here cover what
 * sharing a capacity does not: effects that lower a rate although no resource is full. They change
 * an operation's cap, its weight, or a capacity, and none of them makes an operation faster than it
 * is alone. docs/simulator.md ("Sharing") lists them with their measurements.
 *
 * Example (an H200 node, rates in GB/s): CPU AdamW alone moves 150. One GPU copies in
 * (dram.cpu_beside_h2d 0.85) and out (dram.cpu_beside_d2h 0.75). The kernel's cap becomes
 * 150 x 0.85 x 0.75 = 96. */
#ifndef HK_SIM_CONTENTION_H
#define HK_SIM_CONTENTION_H

#include "sim/sim.h"

/* Share of its cap that a CPU kernel keeps while `gpus_in` GPUs of the node copy in and `gpus_out`
 * copy out: cpu_beside_h2d ^ gpus_in x cpu_beside_d2h ^ gpus_out. Each such GPU lengthens the
 * memory latency that the kernel sees, whatever its number of threads. 1 without copies. */
double hk_cpu_kept(const hk_machine *machine, double gpus_in, double gpus_out);

/* How much a GPU whose link carries `traffic` counts in `gpus_out` above: pcie.d2h_beside_reads
 * while copies in and kernels read, beside which writes wait, else 1. 0 without writes. */
double hk_copies_out(const hk_machine *machine, unsigned traffic);

/* Share of its rate that a copy to a GPU keeps while the node's CPU kernels would move `kernels`
 * bytes of host memory a second at their caps times hk_cpu_kept. A GPU has a bounded number of
 * reads in flight, so its rate falls as memory latency rises: linearly from 1, at a load of
 * pcie.h2d_load_from, to h2d_loaded / h2d, at a load of 1 and above. Load = kernels /
 * dram.bytes_per_s. */
double hk_h2d_kept(const hk_machine *machine, double kernels);

/* Delay of a kernel's start, beyond gpu.launch_ns, while its GPU's link carries `traffic`
 * (HK_TRAFFIC_*, sim/sim.h): the kernel's code and arguments are fetched over the same link. */
hk_ns hk_launch_delay(const hk_machine *machine, unsigned traffic);

/* Share of its rate alone that forward or backward of a block keeps at most while the CPU team
 * updates, and launches keep `launches` of theirs. */
double hk_pass_kept(const hk_graph *graph, const hk_op *op, const hk_machine *machine,
                    double launches);

#endif
