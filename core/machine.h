/* SPDX-License-Identifier: Apache-2.0 */
/* A machine: what one node (and the network between nodes) can do, as a list of quantities each of
 * which knows where it came from. The list below is the only place that names them: reading,
 * writing, `machine show`, `--explain` and fitting all walk it. */
#ifndef HK_CORE_MACHINE_H
#define HK_CORE_MACHINE_H

#include <cjson/cJSON.h>
#include <stdbool.h>

#include "core/error.h"
#include "core/units.h"

typedef enum {
  HK_ORIGIN_DEFAULT,    /* not given: hocket's own guess, the same for every machine */
  HK_ORIGIN_DATA_SHEET, /* a vendor's figure, or one derived from vendors' figures */
  HK_ORIGIN_FITTED,     /* adjusted until simulated runs matched measured ones */
  HK_ORIGIN_MEASURED,   /* read off a probe of this very machine */
} hk_origin;

typedef struct {
  double value;
  hk_origin origin;
  const char *source; /* one line: which probe, which rows, which sheet; never NULL */
} hk_quantity;

/* X(field, key in the file, unit, least, most, default or NAN where the file must say, meaning)
 *
 * Rates are of one direction unless the meaning says otherwise; "node" marks what all GPUs of a
 * node share. Units: B bytes, B/s, P/s parameters a second, F/s floating-point operations a
 * second, ns, 1 (a number).
 *
 * The default of cpu.adamw_ahead_rate is the middle of what H200 nodes had on 2026-11-22, 0.82 to
 * 1.00 by number of threads (bench/results/training/adamw-out-of-place.txt). */
#define HK_MACHINE_QUANTITIES(X)                                                                   \
  X(gpus, "node.gpus", "1", 1, 64, NAN, "GPUs of a node")                                          \
  X(cores, "node.cores", "1", 1, 4096, NAN, "physical CPU cores of a node")                        \
  X(host_memory, "node.memory_bytes", "B", 1e9, 1e14, NAN, "host memory of a node")                \
  X(host_reserved, "node.reserved_bytes", "B", 0, 1e13, 16e9,                                      \
    "host memory that the system, CUDA contexts and frameworks keep")                              \
  X(gpu_memory, "gpu.memory_bytes", "B", 1e8, 1e13, NAN,                                           \
    "GPU memory that an allocator can really hand out")                                            \
  X(gpu_reserved, "gpu.reserved_bytes", "B", 0, 1e12, 1.5e9,                                       \
    "GPU memory lost to workspaces and fragmentation")                                             \
  X(gpu_flops, "gpu.matmul_flops_per_s", "F/s", 1e9, 1e18, NAN, "bf16 matrix peak, dense")         \
  X(gpu_efficiency, "gpu.matmul_efficiency", "1", 1e-3, 1, 0.5,                                    \
    "share of that peak which a layer's forward reaches")                                          \
  X(gpu_backward_efficiency, "gpu.backward_efficiency", "1", 1e-3, 1, 0.45,                        \
    "the same in backward, where reduction hooks and bucket copies come on top")                   \
  X(collective_share, "gpu.collective_share", "1", 0, 1, 0.2,                                      \
    "share of the GPU that a collective's kernels take from others at NVLink's full rate")         \
  X(gpu_hbm, "gpu.hbm_bytes_per_s", "B/s", 1e9, 1e15, NAN,                                         \
    "GPU memory bandwidth, read plus write")                                                       \
  X(gpu_launch, "gpu.launch_ns", "ns", 0, 1e9, 5000, "start of a kernel or copy on a stream")      \
  X(gpu_hop, "gpu.hop_ns", "ns", 0, 1e9, 0,                                                        \
    "from the end of an operation on one queue of the GPU to the start of one on another queue "   \
    "that waits for it")                                                                           \
  X(launch_beside_copies, "gpu.launch_beside_copies_ns", "ns", 0, 1e9, 0,                          \
    "what a kernel takes longer to start beside a copy to its GPU: it is fetched over the link, "  \
    "too")                                                                                         \
  X(launch_beside_pulls, "gpu.launch_beside_pulls_ns", "ns", 0, 1e9, 0,                            \
    "the same beside a kernel that reads host memory")                                             \
  X(launch_beside_reads, "gpu.launch_beside_reads_ns", "ns", 0, 1e9, 0, "the same beside both")    \
  X(gpu_beside_h2d, "gpu.beside_h2d", "1", 1e-2, 1, 1,                                             \
    "share of its rate that an update on the GPU keeps beside a copy to it")                       \
  X(gpu_beside_d2h, "gpu.beside_d2h", "1", 1e-2, 1, 1, "the same beside a copy from it")           \
  X(compute_beside_update, "gpu.compute_beside_update", "1", 1e-2, 1, 1,                           \
    "share of its rate that computation keeps beside any part of an update of that GPU's rank")    \
  X(layer_launch, "framework.layer_launch_ns", "ns", 0, 1e12, 1e6,                                 \
    "time in which the framework's host thread issues one layer, forward or backward")             \
  X(report, "framework.report_ns", "ns", 0, 1e12, 80e6,                                            \
    "DeepSpeed: garbage collection and memory reports at the boundary of two phases")              \
  X(report_crowding, "framework.report_crowding", "1", 0, 1, 0.15,                                 \
    "share of that which each further rank of the node adds to it")                                \
  X(h2d, "pcie.h2d_bytes_per_s", "B/s", 1e6, 1e14, NAN, "pinned copies to one GPU")                \
  X(d2h, "pcie.d2h_bytes_per_s", "B/s", 1e6, 1e14, NAN, "pinned copies from one GPU")              \
  X(h2d_loaded, "pcie.h2d_loaded_bytes_per_s", "B/s", 0, 1e14, 0,                                  \
    "the same while CPU kernels take all that host memory has for them; 0: as without load")       \
  X(h2d_load_from, "pcie.h2d_load_from", "1", 0, 0.99, 0.4,                                        \
    "share of that load from which on copies to a GPU get slower")                                 \
  X(h2d_latency, "pcie.h2d_latency_ns", "ns", 0, 1e9, 5000,                                        \
    "what a copy to a GPU takes on its lane besides its bytes")                                    \
  X(d2h_latency, "pcie.d2h_latency_ns", "ns", 0, 1e9, 5000, "the same of a copy from a GPU")       \
  X(duplex, "pcie.duplex_bytes_per_s", "B/s", 1e6, 1e14, NAN, "both directions at once, sum")      \
  X(h2d_pageable, "pcie.h2d_pageable_bytes_per_s", "B/s", 1e6, 1e14, 6e9,                          \
    "copies to one GPU from unpinned memory")                                                      \
  X(d2h_pageable, "pcie.d2h_pageable_bytes_per_s", "B/s", 1e6, 1e14, 6e9,                          \
    "copies from one GPU to unpinned memory")                                                      \
  X(h2d_pageable_latency, "pcie.h2d_pageable_latency_ns", "ns", 0, 1e9, 0,                         \
    "what a copy from unpinned memory takes on top of a pinned one's latency")                     \
  X(d2h_pageable_latency, "pcie.d2h_pageable_latency_ns", "ns", 0, 1e9, 0,                         \
    "the same of a copy to unpinned memory")                                                       \
  X(h2d_cached, "pcie.h2d_cached_bytes_per_s", "B/s", 0, 1e14, 0,                                  \
    "copies from unpinned memory that the CPU's caches still hold; 0: as from any")                \
  X(cached, "cpu.cached_bytes", "B", 0, 1e12, 0,                                                   \
    "what they still hold of what CPU kernels have just written, at most")                         \
  X(pull, "pcie.pull_bytes_per_s", "B/s", 0, 1e14, 0,                                              \
    "kernel fetching weights from pinned host memory; 0: as copies")                               \
  X(d2h_beside_reads, "pcie.d2h_beside_reads", "1", 1e-2, 1, 1,                                    \
    "share of its rate that a copy from a GPU keeps beside a copy to it and a kernel that reads "  \
    "host memory")                                                                                 \
  X(h2d_beside_reads, "pcie.h2d_beside_reads", "1", 1e-2, 1e2, 1,                                  \
    "factor on the weight of a copy to a GPU for each kernel of that GPU that reads host memory")  \
  X(shared_reads, "pcie.shared_reads", "1", 1e-2, 1, 1,                                            \
    "what copies to a GPU and a kernel that reads host memory get together, of what copies get "   \
    "alone, beside CPU kernels")                                                                   \
  X(copies_at_once, "pcie.copies_at_once", "1", 1, 1e6, 1e6,                                       \
    "copies of one direction that a GPU does at once; others wait in the order they came")         \
  X(mapped, "pcie.mapped_bytes_per_s", "B/s", 1e6, 1e14, NAN,                                      \
    "kernel reading and writing pinned host memory in place, sum of both directions")              \
  X(fabric_h2d, "fabric.h2d_bytes_per_s", "B/s", 1e6, 1e15, NAN, "node: to all GPUs together")     \
  X(fabric_d2h, "fabric.d2h_bytes_per_s", "B/s", 1e6, 1e15, NAN, "node: from all GPUs together")   \
  X(fabric_duplex, "fabric.duplex_bytes_per_s", "B/s", 1e6, 1e15, NAN,                             \
    "node: all GPUs, both directions, sum")                                                        \
  X(dram, "dram.bytes_per_s", "B/s", 1e6, 1e15, NAN, "node: host memory, read plus write")         \
  X(dram_with_dma, "dram.with_dma_bytes_per_s", "B/s", 1e6, 1e15, NAN,                             \
    "node: the same while copies and CPU kernels run at once, copies counted at their costs")      \
  X(h2d_cost, "dram.h2d_cost", "1", 1e-3, 1e3, 1,                                                  \
    "of that, what a byte copied to a GPU takes; a byte of a CPU kernel takes 1")                  \
  X(d2h_cost, "dram.d2h_cost", "1", 1e-3, 1e3, 1, "the same of a byte copied from a GPU")          \
  X(dram_process, "dram.process_bytes_per_s", "B/s", 1e6, 1e15, 1e15,                              \
    "the same for one process that is not bound, whose pages crowd a few memory domains")          \
  X(dram_unbound, "dram.unbound_efficiency", "1", 1e-2, 1, 0.7,                                    \
    "share of host memory's rate that the teams of unbound ranks reach, far from their pages")     \
  X(dma_weight, "dram.dma_weight", "1", 1e-2, 1e3, 1,                                              \
    "how much more of its wish a copy gets than a CPU kernel when host memory is short")           \
  X(d2h_priority, "dram.d2h_priority", "1", 1e-2, 1e3, 1,                                          \
    "how much more of its wish a copy from a GPU gets then than a copy to one")                    \
  X(cpu_beside_h2d, "dram.cpu_beside_h2d", "1", 1e-2, 1, 1,                                        \
    "what a CPU kernel keeps of its own rate beside copies to GPUs: memory answers later")         \
  X(cpu_beside_d2h, "dram.cpu_beside_d2h", "1", 1e-2, 1, 1, "the same beside copies from GPUs")    \
  X(cpu_adamw, "cpu.adamw_params_per_s", "P/s", 1e3, 1e13, NAN,                                    \
    "fused AdamW (bf16 gradient in, bf16 weight out), threads without end, memory not in the way") \
  X(cpu_adamw_threads, "cpu.adamw_thread_scale", "1", 1e-2, 1e4, NAN,                              \
    "threads n0 of its saturation n -> 1 - exp(-n / n0)")                                          \
  X(cpu_adamw_ahead, "cpu.adamw_ahead_rate", "1", 0.3, 1.2, 0.92,                                  \
    "rate of AdamW that writes to other memory than it reads, of the rate in place")               \
  X(cpu_unscale, "cpu.unscale_params_per_s", "P/s", 1e3, 1e13, NAN,                                \
    "separate pass over an fp32 gradient, saturated")                                              \
  X(cpu_unscale_threads, "cpu.unscale_thread_scale", "1", 0, 1e4, 0,                               \
    "threads n0 of its saturation; 0: as AdamW's")                                                 \
  X(cpu_adamw_fp32, "cpu.adamw_fp32_params_per_s", "P/s", 1e3, 1e13, NAN,                          \
    "AdamW with fp32 gradient, no cast, saturated (DeepSpeedCPUAdam)")                             \
  X(cpu_adamw_fp32_threads, "cpu.adamw_fp32_thread_scale", "1", 0, 1e4, 0,                         \
    "threads n0 of its saturation; 0: as AdamW's")                                                 \
  X(cpu_cast, "cpu.cast_params_per_s", "P/s", 1e3, 1e13, NAN,                                      \
    "separate fp32 to bf16 cast, or back, saturated")                                              \
  X(cpu_cast_threads, "cpu.cast_thread_scale", "1", 0, 1e4, 0,                                     \
    "threads n0 of its saturation; 0: as AdamW's")                                                 \
  X(cpu_operation, "cpu.operation_ns", "ns", 0, 1e9, 0,                                            \
    "what an operation of the CPU team takes besides its parameters: waking, uneven ends, word "   \
    "of it")                                                                                       \
  X(step_overhead, "deepspeed.step_overhead_ns", "ns", 0, 1e12, 25e6,                              \
    "what DeepSpeed's step spends before and after its loop over subgroups")                       \
  X(cache_release, "deepspeed.cache_release_ns", "ns", 0, 1e12, 50e6,                              \
    "what the prototype spends an iteration on giving cached GPU memory back")                     \
  X(subgroup_overhead, "deepspeed.subgroup_overhead_ns", "ns", 0, 1e12, 1e6,                       \
    "what DeepSpeed's step spends on a subgroup besides arithmetic and copies")                    \
  X(nvlink, "nvlink.bytes_per_s", "B/s", 1e6, 1e15, NAN,                                           \
    "between GPUs of a node, one GPU, one direction, as a ring collective sees it")                \
  X(nvlink_latency, "nvlink.latency_ns", "ns", 0, 1e9, 10000, "one step of a ring within a node")  \
  X(net, "network.bytes_per_s", "B/s", 1e6, 1e15, 12.5e9, "node: between nodes, one direction")    \
  X(net_latency, "network.latency_ns", "ns", 0, 1e9, 20000, "one step of a ring between nodes")

typedef struct {
  char name[96];
  char description[256];
#define HK_FIELD(field, key, unit, least, most, fallback, meaning) hk_quantity field;
  HK_MACHINE_QUANTITIES(HK_FIELD)
#undef HK_FIELD
  cJSON *document; /* owns the strings that `source` points into */
} hk_machine;

/* One line of the list, for walking it. */
typedef struct {
  const char *field, *key, *unit, *meaning;
  double least, most, fallback; /* fallback NAN: required */
  size_t offset;                /* of the hk_quantity in hk_machine */
} hk_quantity_info;

const hk_quantity_info *hk_quantity_list(size_t *n);
hk_quantity *hk_machine_quantity(hk_machine *machine, const hk_quantity_info *info);
const hk_quantity *hk_machine_quantity_const(const hk_machine *machine,
                                             const hk_quantity_info *info);

/* "measured", "fitted", "data sheet", "default". */
const char *hk_origin_name(hk_origin origin);

/* Reads NAME|FILE (see hk_share_resolve). The file:
 *   { "schema": "hocket.machine/1", "name": ..., "description": ...,
 *     "quantities": { "pcie.h2d_bytes_per_s": {"value": 55e9, "origin": "measured",
 *                                              "source": "..."}, ... } }
 * Unknown quantities are errors (with the nearest key), missing ones take their default or are
 * errors when they have none. Free with hk_machine_free, safe on a zeroed machine. */
hk_status hk_machine_load(const char *name_or_file, hk_machine *machine, hk_error *err);
hk_status hk_machine_from_json(const cJSON *root, hk_machine *machine, hk_error *err);
/* The same document back, every quantity with its origin. The caller owns the result; NULL when
 * out of memory. */
cJSON *hk_machine_to_json(const hk_machine *machine);
void hk_machine_free(hk_machine *machine);

/* Rate of a CPU kernel on `threads` threads, host memory not in the way:
 *   saturated x (1 - exp(-threads / n0)), n0 = `scale` or, where that is 0,
 *   cpu.adamw_thread_scale.
 * Fits the H200 probe's 4 / 8 / 12 / 16 threads (2.8 / 4.3 / 5.2 / 5.5 G/s) within 3 %. */
double hk_cpu_rate(const hk_machine *machine, const hk_quantity *saturated,
                   const hk_quantity *scale, double threads);
/* That n0. */
double hk_cpu_thread_scale(const hk_machine *machine, const hk_quantity *scale);
/* Nanoseconds that an operation on the CPU takes besides its parameters: cpu.operation_ns, or 0 on
 * one thread, which waits for nobody. */
double hk_cpu_start(const hk_machine *machine, double threads);

/* The largest value that the other quantities of the machine allow for one of them, `quantity` (a
 * member of `machine`); INFINITY if they set no limit. Reading a profile checks these limits:
 *   pcie.h2d, pcie.d2h    <= pcie.duplex               one direction is at most both
 *   pcie.duplex           <= pcie.h2d + pcie.d2h
 *   pcie.mapped           <= pcie.duplex               the same link
 *   fabric.duplex         <= fabric.h2d + fabric.d2h
 *   dram.with_dma         <= dram.bytes_per_s          only if dram.h2d_cost and dram.d2h_cost are
 * 1: otherwise weighted bytes are no bandwidth Example: with h2d and d2h of 55 GB/s each, duplex
 * may be 55 to 110 GB/s. */
double hk_machine_limit(const hk_machine *machine, const hk_quantity *quantity);

#endif
