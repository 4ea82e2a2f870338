/* SPDX-License-Identifier: Apache-2.0 */
/* A machine profile: what one node, and the network between nodes, can do. It is a list of
 * quantities, each with its origin. HK_MACHINE_QUANTITIES is the only place that names them:
 * reading, writing, `machine show`, `--explain`, `--set` and fitting all iterate over it. */
#ifndef HK_CORE_MACHINE_MACHINE_H
#define HK_CORE_MACHINE_MACHINE_H

#include <cjson/cJSON.h>
#include <math.h>
#include <stdbool.h>

#include "core/base/error.h"
#include "core/base/units.h"

typedef enum {
  HK_ORIGIN_DEFAULT,    /* not given: hocket's guess, the same for every machine */
  HK_ORIGIN_DATA_SHEET, /* a vendor's figure, or derived from vendors' figures */
  HK_ORIGIN_FITTED,     /* adjusted until simulated runs matched measured ones */
  HK_ORIGIN_MEASURED,   /* measured by a probe of this machine */
  HK_ORIGIN_SET,        /* given by the user for a what-if (core/machine/machine_set.h) */
  HK_ORIGIN_DERIVED,    /* follows from quantities that are set (core/machine/machine_derive.h) */
} hk_origin;

typedef struct {
  double value;
  hk_origin origin;
  const char *source; /* one line: which probe, which rows, which data sheet; never NULL */
  double error;       /* relative standard error of the value; 0: the profile states none */
} hk_quantity;

/* X(field, key in the file, unit, least, most, default or NAN if the file must give it, meaning)
 *
 * The meaning is printed by `machine show`. Bandwidths are of one direction unless the meaning says
 * otherwise; "node:" marks what all GPUs of a node share. Units: B bytes, B/s bytes a second, P/s
 * parameters a second, F/s floating-point operations a second, ns nanoseconds, 1 a plain number.
 *
 * Example: pcie.h2d_bytes_per_s = 55e9 and pcie.h2d_latency_ns = 5000: one copy of 16 MiB to the
 * GPU takes 5 us + 16.8e6 / 55e9 s = 310 us if nothing else runs.
 *
 * Efficiencies are fractions of gpu.matmul_flops_per_s. It is the best rate of calibrate's matrix
 * products: 795 to 835 TFLOP/s on four H200 nodes, whose data sheet says 989. A profile that is
 * made from a data sheet multiplies the sheet's dense bf16 peak by 0.803, the least of these nodes.
 *
 * The defaults of gpu.matmul_efficiency and gpu.backward_efficiency are what whole iterations of
 * 3.0 G and 6.7 G parameters reached on H200 nodes: 0.597 and 0.645, 0.621 and 0.666 of 0.803 x the
 * data sheet's peak (bench/results/training). Calibration does not probe them.
 *
 * The default of cpu.adamw_ahead_rate is about the middle of what H200 nodes had on 2026-11-22,
 * 0.82 to 1.00 by number of threads (bench/results/training/adamw-out-of-place.txt).
 *
 * The defaults of framework.handover_ns, launch_beside_update and beside_full_team are from 3.0 G
 * parameters on H200 nodes of 16 cores (bench/results/training). Handing 198 gradients over
 * takes 10.2 ms an iteration (one H100). Launches kept 0.73 to 0.83 of their rate beside a team of
 * 13 threads that only updates (two nodes). In iterations at micro-batches 1 and 2 the predicted
 * backward equals the measured one with a share of 0.60 to 0.82 (two nodes). With 15 threads, an
 * update took 12 ms longer beside forward (45 to 100 ms of launches) than without it at micro-batch
 * 1, and 4 ms at 4: means of three nodes each, from -19 to +36 ms.
 *
 * The default of framework.layer_launch_ns is about the lower quartile of what 28 layers of 3.0 G
 * parameters took at micro-batch 1 on five H100 and H200 nodes, with nothing beside them: forward
 * 43 to 66 ms, and backward, which launches a recomputed layer twice, 94 to 144, so 1.5 to 2.6 ms
 * a layer (bench/results/training/threads.md, caps.md).
 *
 * The default of framework.fsdp_launches is from 28 layers of Llama with 9 tensors each, on a CPU
 * without communication (torch 2.15, process group "fake"): forward took 57 instead of 29 to 33 ms,
 * and backward 90 instead of 64. What FSDP2 does on a GPU besides is not in it.
 *
 * The default of framework.fsdp_step_ns is from recordings of 28 layers on two nodes of two H100
 * (bench/results/training/ranks.md, nodes ZZ and WWW). From the norm to the beginning of forward
 * hocket's GPUs were idle for 8.7 to 12 ms, 17 in the row without GPU memory on ZZ. In forward of
 * torch's own step they were idle for 9 and 4 ms on ZZ's ranks. hocket's first layer began 10 to 15
 * ms after forward where the host thread was least disturbed by updates.
 *
 * The default of framework.forward_beside_update is from twelve forwards beside updates of both
 * ranks of two H100, recorded on nodes WWW (eight, clipped) and ZZ (four): on the slower rank a
 * block took 5 to 27 ms, 15.6 in the mean, until the update ended, where launches and hooks alone
 * take 3.4. The slower of two ranks takes 1.45 times the median with ranks.spread_beside_update.
 * Why, is not known; backward, which another thread launches, is not as slow.
 *
 * The default of ranks.launch_spread is about the middle of passes that the host limited, with no
 * update beside them, on H200 nodes R, S and T: 0.09 to 0.20, with one outlier of 0.35
 * (bench/results/training/threads.md). That of ranks.spread_beside_update was fitted to
 * recordings of two H100: in one of eight blocks of backward one rank took 15 to 23 ms instead of
 * 13 (bench/results/training/ranks.md, node ZZ). On one GPU of node T it was 0.25 to 0.30.
 *
 * The defaults of nvme.* are about what one drive on PCIe 4 x4 has. Reads and writes at 6.0 GB/s
 * together are also the middle of five published runs (tests/data/nvme-runs.csv). No simulation
 * uses them: sim/nvme.h does. */
#define HK_MACHINE_QUANTITIES(X)                                                                   \
  X(gpus, "node.gpus", "1", 1, 64, NAN, "GPUs of a node")                                          \
  X(cores, "node.cores", "1", 1, 4096, NAN, "physical CPU cores of a node")                        \
  X(host_memory, "node.memory_bytes", "B", 1e9, 1e14, NAN, "host memory of a node")                \
  X(host_reserved, "node.reserved_bytes", "B", 0, 1e13, 16e9,                                      \
    "host memory that the system, CUDA contexts and frameworks use")                               \
  X(gpu_memory, "gpu.memory_bytes", "B", 1e8, 1e13, NAN,                                           \
    "GPU memory that an allocator can hand out")                                                   \
  X(gpu_reserved, "gpu.reserved_bytes", "B", 0, 1e12, 1.5e9,                                       \
    "GPU memory lost to workspaces and fragmentation")                                             \
  X(gpu_flops, "gpu.matmul_flops_per_s", "F/s", 1e9, 1e18, NAN,                                    \
    "rate of a large dense bf16 matrix product, as calibrate measures it; not a data sheet's "     \
    "peak")                                                                                        \
  X(gpu_efficiency, "gpu.matmul_efficiency", "1", 1e-3, 1, 0.62,                                   \
    "fraction of gpu.matmul_flops_per_s that forward reaches")                                     \
  X(gpu_backward_efficiency, "gpu.backward_efficiency", "1", 1e-3, 1, 0.643,                       \
    "fraction of gpu.matmul_flops_per_s that backward reaches, hooks and bucket copies included")  \
  X(collective_share, "gpu.collective_share", "1", 0, 1, 0.2,                                      \
    "fraction of the GPU that a collective's kernels use at NVLink's full rate")                   \
  X(gpu_hbm, "gpu.hbm_bytes_per_s", "B/s", 1e9, 1e15, NAN,                                         \
    "GPU memory bandwidth, reads plus writes")                                                     \
  X(gpu_launch, "gpu.launch_ns", "ns", 0, 1e9, 5000, "launch latency of a GPU kernel")             \
  X(gpu_hop, "gpu.hop_ns", "ns", 0, 1e9, 0,                                                        \
    "time from the end of an operation on one GPU queue to the start of a dependent one on "       \
    "another "                                                                                     \
    "queue")                                                                                       \
  X(launch_beside_copies, "gpu.launch_beside_copies_ns", "ns", 0, 1e9, 0,                          \
    "additional launch latency of a kernel while copies to its GPU run (it is fetched over the "   \
    "same link)")                                                                                  \
  X(launch_beside_pulls, "gpu.launch_beside_pulls_ns", "ns", 0, 1e9, 0,                            \
    "additional launch latency while a kernel of the GPU reads host memory")                       \
  X(launch_beside_reads, "gpu.launch_beside_reads_ns", "ns", 0, 1e9, 0,                            \
    "additional launch latency while copies to the GPU and a kernel that reads host memory run")   \
  X(gpu_beside_h2d, "gpu.beside_h2d", "1", 1e-2, 1, 1,                                             \
    "fraction of its rate that a GPU update keeps while a copy to the GPU runs")                   \
  X(gpu_beside_d2h, "gpu.beside_d2h", "1", 1e-2, 1, 1,                                             \
    "fraction of its rate that a GPU update keeps while a copy from the GPU runs")                 \
  X(compute_beside_update, "gpu.compute_beside_update", "1", 1e-2, 1, 1,                           \
    "fraction of its rate that forward and backward keep while an update of the same rank runs")   \
  X(layer_launch, "framework.layer_launch_ns", "ns", 0, 1e12, 1.7e6,                               \
    "time for the framework's host thread to launch one layer, forward or backward")               \
  X(fsdp_launches, "framework.fsdp_launches", "1", 1e-2, 1, 0.55,                                  \
    "FSDP2: fraction of the host's time in forward that launches kernels; its hooks take the "     \
    "rest, and as long in backward")                                                               \
  X(fsdp_step, "framework.fsdp_step_ns", "ns", 0, 1e12, 1e7,                                       \
    "FSDP2: time in which the GPU waits for the framework's host thread, in the step and again "   \
    "at the beginning of forward")                                                                 \
  X(handover, "framework.handover_ns", "ns", 0, 1e9, 5.2e4,                                        \
    "hocket: time for the framework's host thread to hand over the gradient of one tensor")        \
  X(launch_beside_update, "framework.launch_beside_update", "1", 1e-2, 1, 0.7,                     \
    "fraction of its rate at which the host thread launches while the CPU updates")                \
  X(forward_beside, "framework.forward_beside_update", "1", 1e-2, 1, 0.3,                          \
    "FSDP2: at most this fraction of its rate is kept by the host thread that launches forward "   \
    "while the CPU updates")                                                                       \
  X(beside_full_team, "framework.beside_full_team", "1", 1e-2, 1, 0.9,                             \
    "fraction of its rate that each of both keeps while the host thread launches beside a CPU "    \
    "team that leaves the framework too few cores")                                                \
  X(report, "framework.report_ns", "ns", 0, 1e12, 80e6,                                            \
    "DeepSpeed: garbage collections and memory reports at the boundary of two phases, one rank a " \
    "node")                                                                                        \
  X(report_crowding, "framework.report_crowding", "1", 0, 1, 0.15,                                 \
    "fraction by which each further rank of the node lengthens framework.report_ns")               \
  X(launch_spread, "ranks.launch_spread", "1", 0, 2, 0.2,                                          \
    "scatter of the time in which ranks launch the same pass: standard deviation of its "          \
    "logarithm")                                                                                   \
  X(spread_beside, "ranks.spread_beside_update", "1", 0, 2, 0.5, "the same while the CPU updates") \
  X(h2d, "pcie.h2d_bytes_per_s", "B/s", 1e6, 1e14, NAN, "copies from pinned memory to one GPU")    \
  X(d2h, "pcie.d2h_bytes_per_s", "B/s", 1e6, 1e14, NAN, "copies from one GPU to pinned memory")    \
  X(h2d_loaded, "pcie.h2d_loaded_bytes_per_s", "B/s", 0, 1e14, 0,                                  \
    "copies to one GPU while CPU kernels saturate host memory; 0: no slower than without load")    \
  X(h2d_load_from, "pcie.h2d_load_from", "1", 0, 0.99, 0.4,                                        \
    "load of host memory by CPU kernels, as a fraction of its bandwidth, above which copies to a " \
    "GPU slow down")                                                                               \
  X(h2d_latency, "pcie.h2d_latency_ns", "ns", 0, 1e9, 5000,                                        \
    "fixed time of a copy to a GPU, in addition to bytes / bandwidth")                             \
  X(d2h_latency, "pcie.d2h_latency_ns", "ns", 0, 1e9, 5000,                                        \
    "fixed time of a copy from a GPU, in addition to bytes / bandwidth")                           \
  X(duplex, "pcie.duplex_bytes_per_s", "B/s", 1e6, 1e14, NAN,                                      \
    "copies to and from one GPU at once, sum of both directions")                                  \
  X(pcie_d2h_priority, "pcie.d2h_priority", "1", 1, 1e3, 1,                                        \
    "weight of a copy from a GPU against a copy to it where their sum limits both")                \
  X(h2d_pageable, "pcie.h2d_pageable_bytes_per_s", "B/s", 1e6, 1e14, 6e9,                          \
    "copies from pageable memory to one GPU")                                                      \
  X(d2h_pageable, "pcie.d2h_pageable_bytes_per_s", "B/s", 1e6, 1e14, 6e9,                          \
    "copies from one GPU to pageable memory")                                                      \
  X(h2d_pageable_latency, "pcie.h2d_pageable_latency_ns", "ns", 0, 1e9, 0,                         \
    "fixed time of a copy from pageable memory, in addition to that of a pinned copy")             \
  X(d2h_pageable_latency, "pcie.d2h_pageable_latency_ns", "ns", 0, 1e9, 0,                         \
    "fixed time of a copy to pageable memory, in addition to that of a pinned copy")               \
  X(h2d_cached, "pcie.h2d_cached_bytes_per_s", "B/s", 0, 1e14, 0,                                  \
    "copies to one GPU from pageable memory that is in the CPU's caches; 0: as from any pageable " \
    "memory")                                                                                      \
  X(cached, "cpu.cached_bytes", "B", 0, 1e12, 0,                                                   \
    "largest output of a CPU kernel that the caches still hold when it is copied")                 \
  X(pull, "pcie.pull_bytes_per_s", "B/s", 0, 1e14, 0,                                              \
    "a GPU kernel that fetches weights from pinned host memory; 0: as fast as copies")             \
  X(d2h_beside_reads, "pcie.d2h_beside_reads", "1", 1e-2, 1, 1,                                    \
    "fraction of its rate that a copy from a GPU keeps while a copy to it and a kernel that "      \
    "reads "                                                                                       \
    "host memory run")                                                                             \
  X(h2d_beside_reads, "pcie.h2d_beside_reads", "1", 1e-2, 1e2, 1,                                  \
    "factor on the weight of a copy to a GPU, for each kernel of that GPU that reads host memory " \
    "at the same time")                                                                            \
  X(shared_reads, "pcie.shared_reads", "1", 1e-2, 1, 1,                                            \
    "fraction of the bandwidth to a GPU that copies and a reading kernel reach together while "    \
    "CPU "                                                                                         \
    "kernels run")                                                                                 \
  X(copies_at_once, "pcie.copies_at_once", "1", 1, 1e6, 1e6,                                       \
    "copies of one direction that a GPU runs at once; others wait in order of arrival")            \
  X(mapped, "pcie.mapped_bytes_per_s", "B/s", 1e6, 1e14, NAN,                                      \
    "a GPU kernel that reads and writes pinned host memory in place, sum of both directions")      \
  X(fabric_h2d, "fabric.h2d_bytes_per_s", "B/s", 1e6, 1e15, NAN,                                   \
    "node: copies to all GPUs at once, sum")                                                       \
  X(fabric_d2h, "fabric.d2h_bytes_per_s", "B/s", 1e6, 1e15, NAN,                                   \
    "node: copies from all GPUs at once, sum")                                                     \
  X(fabric_duplex, "fabric.duplex_bytes_per_s", "B/s", 1e6, 1e15, NAN,                             \
    "node: copies to and from all GPUs at once, sum")                                              \
  X(dram, "dram.bytes_per_s", "B/s", 1e6, 1e15, NAN,                                               \
    "node: host memory bandwidth of CPU kernels, reads plus writes")                               \
  X(dram_with_dma, "dram.with_dma_bytes_per_s", "B/s", 1e6, 1e15, NAN,                             \
    "node: host memory bandwidth while copies and CPU kernels run at once; a copied byte counts "  \
    "dram.h2d_cost or dram.d2h_cost")                                                              \
  X(h2d_cost, "dram.h2d_cost", "1", 1e-3, 1e3, 1,                                                  \
    "host memory bandwidth that a byte copied to a GPU takes; a byte of a CPU kernel takes 1")     \
  X(d2h_cost, "dram.d2h_cost", "1", 1e-3, 1e3, 1,                                                  \
    "host memory bandwidth that a byte copied from a GPU takes; a byte of a CPU kernel takes 1")   \
  X(dram_process, "dram.process_bytes_per_s", "B/s", 1e6, 1e15, 1e15,                              \
    "host memory bandwidth of one process that is not bound to cores: its pages are in few "       \
    "memory "                                                                                      \
    "domains")                                                                                     \
  X(dram_unbound, "dram.unbound_efficiency", "1", 1e-2, 1, 0.7,                                    \
    "fraction of host memory bandwidth that teams of unbound ranks reach: much of their traffic "  \
    "is remote")                                                                                   \
  X(dma_weight, "dram.dma_weight", "1", 1e-2, 1e3, 1,                                              \
    "weight of copies against CPU kernels when host memory is saturated: each gets a part in "     \
    "proportion to weight x its rate alone")                                                       \
  X(d2h_priority, "dram.d2h_priority", "1", 1e-2, 1e3, 1,                                          \
    "weight of a copy from a GPU against a copy to one when host memory is saturated")             \
  X(cpu_beside_h2d, "dram.cpu_beside_h2d", "1", 1e-2, 1, 1,                                        \
    "fraction of its own rate that a CPU kernel keeps while a GPU copies in: memory latency "      \
    "rises")                                                                                       \
  X(cpu_beside_d2h, "dram.cpu_beside_d2h", "1", 1e-2, 1, 1,                                        \
    "fraction of its own rate that a CPU kernel keeps while a GPU copies out")                     \
  X(cpu_adamw, "cpu.adamw_params_per_s", "P/s", 1e3, 1e13, NAN,                                    \
    "fused AdamW (bf16 gradient in, bf16 weight out), in the limit of many threads, not limited "  \
    "by "                                                                                          \
    "memory")                                                                                      \
  X(cpu_adamw_threads, "cpu.adamw_thread_scale", "1", 1e-2, 1e4, NAN,                              \
    "n0 in AdamW's rate on n threads: limit x (1 - exp(-n / n0))")                                 \
  X(cpu_adamw_ahead, "cpu.adamw_ahead_rate", "1", 0.3, 1.2, 0.92,                                  \
    "rate of AdamW that writes to other memory than it reads, of the rate in place")               \
  X(cpu_unscale, "cpu.unscale_params_per_s", "P/s", 1e3, 1e13, NAN,                                \
    "separate unscale pass over an fp32 gradient, in the limit of many threads")                   \
  X(cpu_unscale_threads, "cpu.unscale_thread_scale", "1", 0, 1e4, 0,                               \
    "n0 of the unscale pass; 0: AdamW's")                                                          \
  X(cpu_adamw_fp32, "cpu.adamw_fp32_params_per_s", "P/s", 1e3, 1e13, NAN,                          \
    "AdamW with fp32 gradient and no cast (DeepSpeedCPUAdam), in the limit of many threads")       \
  X(cpu_adamw_fp32_threads, "cpu.adamw_fp32_thread_scale", "1", 0, 1e4, 0,                         \
    "n0 of AdamW with fp32 gradient; 0: AdamW's")                                                  \
  X(cpu_adamw_8bit, "cpu.8bit_params_per_s", "P/s", 0, 1e13, 0,                                    \
    "AdamW on state 8bit, in the limit of many threads; 0: a fixed share of one thread's AdamW "   \
    "for each thread")                                                                             \
  X(cpu_adamw_8bit_threads, "cpu.8bit_thread_scale", "1", 0, 1e4, 0,                               \
    "n0 of AdamW on state 8bit; 0: AdamW's")                                                       \
  X(cpu_adamw_8bit_split, "cpu.8bit_split_params_per_s", "P/s", 0, 1e13, 0,                        \
    "AdamW on state 8bit+split, in the limit of many threads; 0: a fixed share of one thread's "   \
    "AdamW for each thread")                                                                       \
  X(cpu_adamw_8bit_split_threads, "cpu.8bit_split_thread_scale", "1", 0, 1e4, 0,                   \
    "n0 of AdamW on state 8bit+split; 0: AdamW's")                                                 \
  X(cpu_cast, "cpu.cast_params_per_s", "P/s", 1e3, 1e13, NAN,                                      \
    "separate cast from fp32 to bf16 or back, in the limit of many threads")                       \
  X(cpu_cast_threads, "cpu.cast_thread_scale", "1", 0, 1e4, 0, "n0 of the cast; 0: AdamW's")       \
  X(cpu_operation, "cpu.operation_ns", "ns", 0, 1e9, 0,                                            \
    "fixed time of an operation of the CPU team: waking threads, uneven ends, signalling the end") \
  X(step_overhead, "deepspeed.step_overhead_ns", "ns", 0, 1e12, 25e6,                              \
    "time of DeepSpeed's step outside its loop over subgroups")                                    \
  X(cache_release, "deepspeed.cache_release_ns", "ns", 0, 1e12, 50e6,                              \
    "time an iteration in which the interleaving prototype returns cached GPU memory")             \
  X(subgroup_overhead, "deepspeed.subgroup_overhead_ns", "ns", 0, 1e12, 1e6,                       \
    "time of DeepSpeed's step for each subgroup besides arithmetic and copies")                    \
  X(nvlink, "nvlink.bytes_per_s", "B/s", 1e6, 1e15, NAN,                                           \
    "bandwidth of a ring collective between GPUs of a node, one GPU, one direction")               \
  X(nvlink_latency, "nvlink.latency_ns", "ns", 0, 1e9, 10000,                                      \
    "latency of one step of a ring within a node")                                                 \
  X(net, "network.bytes_per_s", "B/s", 1e6, 1e15, 12.5e9,                                          \
    "node: bandwidth to other nodes, one direction")                                               \
  X(net_latency, "network.latency_ns", "ns", 0, 1e9, 20000,                                        \
    "latency of one step of a ring between nodes")                                                 \
  X(nvme_read, "nvme.read_bytes_per_s", "B/s", 1e6, 1e15, 7e9,                                     \
    "node: sequential reads from the local drives, all together, while nothing is written")        \
  X(nvme_write, "nvme.write_bytes_per_s", "B/s", 1e6, 1e15, 5e9,                                   \
    "node: sequential writes to the local drives, all together, while nothing is read")

#define HK_ONE(...) +1
enum { HK_QUANTITY_COUNT = HK_MACHINE_QUANTITIES(HK_ONE) };
#undef HK_ONE

typedef struct {
  char name[96];
  char description[256];
#define HK_FIELD(field, key, unit, least, most, fallback, meaning) hk_quantity field;
  HK_MACHINE_QUANTITIES(HK_FIELD)
#undef HK_FIELD
  double launch_change; /* of hk_machine_perturb: what a model states is larger by this fraction */
  cJSON *document;      /* owns the strings that `source` points into */
} hk_machine;

/* One line of the list, for iteration. */
typedef struct {
  const char *field, *key, *unit, *meaning;
  double least, most, fallback; /* fallback NAN: required */
  size_t offset;                /* of the hk_quantity in hk_machine */
} hk_quantity_info;

const hk_quantity_info *hk_quantity_list(size_t *n);
hk_quantity *hk_machine_quantity(hk_machine *machine, const hk_quantity_info *info);
const hk_quantity *hk_machine_quantity_const(const hk_machine *machine,
                                             const hk_quantity_info *info);

/* "measured", "fitted", "data sheet", "default", "set", "derived". */
const char *hk_origin_name(hk_origin origin);

/* Reads NAME|FILE (see hk_share_resolve). The file:
 *   { "schema": "hocket.machine/1", "name": ..., "description": ...,
 *     "quantities": { "pcie.h2d_bytes_per_s": {"value": 55e9, "origin": "measured",
 *                                              "source": "...", "error": 0.01}, ... } }
 * "error" is optional: the relative standard error, as a share of the value
 * (core/machine/machine_error.h). So is a member "residuals" beside "quantities", which is passed
 * on as it is: what predictions of the profile were compared with. [ {"against": "24 plans on node
 * 27", "figure": "update", "median_pct": 9.7, "worst_pct": 17.3, "held_out": true}, ... ] Unknown
 * quantities are errors (with the nearest key), missing ones take their default or are errors when
 * they have none. Free with hk_machine_free, safe on a zeroed machine. */
hk_status hk_machine_load(const char *name_or_file, hk_machine *machine, hk_error *err);
hk_status hk_machine_from_json(const cJSON *root, hk_machine *machine, hk_error *err);
/* The keys of a machine's document that are not known, each with the known one that is near:
 * "'residual' (is it 'residuals'?)", and "'gpu.launch_ns: sorce'" of a quantity; "" if there are
 * none. Returns `buffer`, which holds as many as fit. An unknown quantity is an error, see above.
 */
const char *hk_machine_unknown_keys(const cJSON *document, char *buffer, size_t size);
/* The same document back, every quantity with its origin. The caller owns the result; NULL when
 * out of memory. */
cJSON *hk_machine_to_json(const hk_machine *machine);
void hk_machine_free(hk_machine *machine);

/* Rate of a CPU kernel on `threads` threads, not limited by host memory, in parameters a second:
 *   saturated x (1 - exp(-threads / n0)), n0 = `scale` or, if that is 0, cpu.adamw_thread_scale.
 * Example: saturated = 6 G/s and n0 = 6.7 give 2.7 G/s on 4 threads and 5.4 G/s on 16. The curve is
 * within 4 % of one H200 node's rates on 4, 8, 12 and 16 threads (2.8, 4.3, 5.2, 5.5 G/s). */
double hk_cpu_rate(const hk_machine *machine, const hk_quantity *saturated,
                   const hk_quantity *scale, double threads);
/* The n0 of that formula. */
double hk_cpu_thread_scale(const hk_machine *machine, const hk_quantity *scale);
/* Whether the fraction of launches kept that a model states (hk_launch_share; 0: none) replaces the
 * machine's framework.launch_beside_update. A value of --set is not replaced. */
static inline bool hk_launches_stated(const hk_machine *machine, double stated) {
  return stated > 0 && machine->launch_beside_update.origin != HK_ORIGIN_SET;
}
/* The fraction that counts. */
static inline double hk_launches_kept(const hk_machine *machine, double stated) {
  if (!hk_launches_stated(machine, stated)) return machine->launch_beside_update.value;
  return fmin(stated * (1 + machine->launch_change), 1);
}
/* Bytes of a GPU and of a node's host that training may take. */
static inline double hk_gpu_capacity(const hk_machine *machine) {
  return machine->gpu_memory.value - machine->gpu_reserved.value;
}
static inline double hk_host_capacity(const hk_machine *machine) {
  return machine->host_memory.value - machine->host_reserved.value;
}
/* ranks.spread_beside_update, but at least ranks.launch_spread: an update beside a pass does not
 * make the host launch more evenly. */
static inline double hk_spread_beside(const hk_machine *machine) {
  return fmax(machine->spread_beside.value, machine->launch_spread.value);
}
/* Fixed time of an operation of the CPU team in nanoseconds: cpu.operation_ns, or 0 on one thread,
 * which has no others to wake or to wait for. */
double hk_cpu_start(const hk_machine *machine, double threads);

/* The largest value that the other quantities of the machine allow for one of them, `quantity` (a
 * member of `machine`); INFINITY if they set no limit. Reading a profile checks these limits:
 *   pcie.h2d, pcie.d2h    <= pcie.duplex               one direction is at most both
 *   pcie.duplex           <= pcie.h2d + pcie.d2h
 *   pcie.mapped           <= pcie.duplex               the same link
 *   fabric.duplex         <= fabric.h2d + fabric.d2h
 *   dram.with_dma         <= dram.bytes_per_s          only if dram.h2d_cost and dram.d2h_cost
 *                                                      are 1: else it counts weighted bytes
 * Example: with h2d and d2h of 55 GB/s each, duplex may be 55 to 110 GB/s. */
double hk_machine_limit(const hk_machine *machine, const hk_quantity *quantity);

/* Checks what reading a profile checks beyond the range of each quantity: whole numbers, reserved
 * memory, and those limits. HK_INPUT: the message names both quantities. */
hk_status hk_machine_check(const hk_machine *machine, hk_error *err);

#endif
