/* SPDX-License-Identifier: GPL-3.0-or-later */
/* The parsed command line. One table defines the options of all subcommands, so that an option has
 * the same meaning, range and help text everywhere. */
#ifndef HK_CLI_ARGS_H
#define HK_CLI_ARGS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/base/error.h"
#include "core/graph/plan.h"

/* X(ID, name, letter, kind, field of hk_args, value as --help shows it, least, most, help)
 *
 * Kinds:
 *   TEXT    the text as typed
 *   WHOLE   a whole number
 *   COUNT   a number whose product with its suffix is whole: 100M, 1.5G; k, M, G and T are 10^3 to
 *           10^12. If the value is BYTES: also Ki, Mi, Gi and Ti (powers of 1024), and B at the end
 *   AMOUNT  the same with the suffixes k, M, G, and B for 10^9: 6.7B
 *   TOKENS  a whole number; a suffix k multiplies by 1024
 *   REAL    a number
 *   CHOICE  one of the words in the value column, stored as its index
 *   STRIDE  a whole number, or `auto`, stored as HK_STRIDE_AUTO
 *   FLAG    no value */
#define HK_CLI_OPTIONS(X)                                                                          \
  X(MODEL, "model", 0, TEXT, model, "NAME|FILE", 0, 0,                                             \
    "a preset ('hocket model list'), a config.json or its folder, or a model document")            \
  X(PARAMS, "params", 0, AMOUNT, params, "N", 1e5, 1e14,                                           \
    "instead of --model: a model of so many parameters (7G), shaped like Llama; needs --layers "   \
    "and --hidden")                                                                                \
  X(LAYERS, "layers", 0, WHOLE, layers, "N", 1, 10000, "its layers")                               \
  X(HIDDEN, "hidden", 0, WHOLE, hidden, "N", 1, 1 << 20, "its hidden size")                        \
  X(HEADS, "heads", 0, WHOLE, heads, "N", 1, 1 << 14,                                              \
    "its attention heads (default: of 128, or of 64)")                                             \
  X(VOCAB, "vocab", 0, COUNT, vocab, "N", 1, 1 << 26, "its vocabulary (default 32000)")            \
  X(MACHINE, "machine", 0, TEXT, machine, "NAME|FILE", 0, 0,                                       \
    "a profile ('hocket machine list') or a file of the same form")                                \
  X(SET, "set", 0, TEXT, set, "KEY=VALUE", 0, 0,                                                   \
    "change a quantity of the machine, as 'machine show' names it: dram=400G, pcie.h2d*=2; what "  \
    "depends on it follows; repeatable")                                                           \
  X(GPUS, "gpus", 0, WHOLE, gpus, "N", 1, HK_MOST_GPUS,                                            \
    "GPUs used on each node (default: all; estimate: 8)")                                          \
  X(JOBS, "jobs", 0, WHOLE, jobs, "N", 1, HK_MOST_GPUS,                                            \
    "equal jobs at once on each node, which share its cores, memory and links (default 1)")        \
  X(NODES, "nodes", 0, WHOLE, nodes, "N", 1, HK_MOST_NODES, "nodes (default 1)")                   \
  X(TP, "tp", 0, WHOLE, tp, "N", 1, HK_MOST_GPUS, "tensor-parallel degree (default 1)")            \
  X(PP, "pp", 0, WHOLE, pp, "N", 1, HK_MODEL_MOST_STAGES, "pipeline stages, 1F1B (default 1)")     \
  X(PP_CHUNKS, "pp-chunks", 0, WHOLE, pp_chunks, "N", 1, HK_MODEL_MOST_STAGES,                     \
    "interleaved chunks of layers that a stage has (default 1)")                                   \
  X(SEQUENCE_PARALLEL, "sequence-parallel", 0, FLAG, sequence_parallel, NULL, 0, 0,                \
    "divide what --tp leaves whole by tokens")                                                     \
  X(EP, "ep", 0, WHOLE, ep, "N", 1, HK_MODEL_MOST_EXPERT_RANKS,                                    \
    "ranks that divide the experts of a layer (default 1)")                                        \
  X(MICRO_BATCH, "micro-batch", 0, WHOLE, micro_batch, "N", 1, 65536,                              \
    "sequences per rank and micro-step (default 1)")                                               \
  X(GRAD_ACCUM, "grad-accum", 0, WHOLE, grad_accum, "N", 1, HK_MOST_GRAD_ACCUM,                    \
    "micro-steps per iteration (default 1)")                                                       \
  X(SEQ, "seq", 0, TOKENS, seq, "N", 1, HK_MOST_SEQ,                                               \
    "tokens per sequence, k for 1024 (default 2048, or the model's limit if lower)")               \
  X(LOSS_CHUNKS, "loss-chunks", 0, WHOLE, loss_chunks, "N", 1, HK_MOST_LOSS_CHUNKS,                \
    "the loss takes the tokens in N slices, one after the other (default 1)")                      \
  X(CHECKPOINT, "checkpoint-activations", 0, CHOICE, checkpoint, "yes|no", 0, 0,                   \
    "recompute activations in backward (default yes)")                                             \
  X(POLICY, "policy", 0, TEXT, policy, "NAME", 0, 0, "one of the policies listed below")           \
  X(RUNTIME, "runtime", 0, CHOICE, runtime, "hocket|deepspeed", 0, 0,                              \
    "whose operations and stalls are simulated (default hocket; 'plan': both)")                    \
  X(STRIDE, "stride", 0, STRIDE, stride, "N|auto", 1, HK_MOST_STRIDE,                              \
    "every N-th subgroup is updated on the GPU; auto: by the closed form")                         \
  X(RATIO, "ratio", 0, REAL, ratio, "X", 0, 1,                                                     \
    "share of subgroups with state in host memory, 0 to 1")                                        \
  X(SUBGROUP, "subgroup", 0, COUNT, subgroup, "NUMEL", 1, 1e12,                                    \
    "parameters per subgroup, with k, M or G (default 100M)")                                      \
  X(BUFFERS, "buffers", 0, WHOLE, buffers, "N", 1, HK_MOST_BUFFERS,                                \
    "staging buffers on the GPU (default: the policy's)")                                          \
  X(FLUSH, "flush", 0, CHOICE, flush, "async|sync", 0, 0,                                          \
    "copy gradients to the host during backward (async), or let backward wait (sync)")             \
  X(ACCUMULATE, "accumulate", 0, CHOICE, accumulate, "gpu|host", 0, 0,                             \
    "where sums of several micro-steps' gradients are (default gpu; 'plan': the best; "            \
    "'estimate': "                                                                                 \
    "host)")                                                                                       \
  X(TRAINABLE, "trainable", 0, REAL, trainable, "X", 1e-9, 1,                                      \
    "train this share of every tensor; the rest is frozen")                                        \
  X(LORA, "lora", 0, WHOLE, lora, "RANK", 1, 65536,                                                \
    "train adapters of this rank; the model is frozen")                                            \
  X(LORA_TARGETS, "lora-targets", 0, TEXT, lora_targets, "NAME,NAME...", 0, 0,                     \
    "matrices with adapters, as q_proj,v_proj (default: all of the layers but experts)")           \
  X(FROZEN_BYTES, "frozen-bytes", 0, REAL, frozen_bytes, "X", 0.125, 4,                            \
    "bytes of a frozen weight (default 2; 0.5 for 4 bits)")                                        \
  X(STATE, "state", 0, CHOICE, state,                                                              \
    "fp32|split|bf16|bf16+split|8bit|8bit+split|adam-bf16|adamw8bit|lion|sgd-momentum|muon|"       \
    "adafactor",                                                                                   \
    0, 0, "the optimizer, by its state (default fp32; 'run' takes the first six)")                 \
  X(OVERLAP, "overlap", 0, CHOICE, overlap, "none|forward|both", 0, 0,                             \
    "phases that run at the same time as the update (default none)")                               \
  X(CLIP, "clip", 0, CHOICE, clip, "norm|block", 0, 0,                                             \
    "gradients are clipped by the norm of all (default), or each block's by its own")              \
  X(CLIP_SHARE, "clip-share", 0, REAL, clip_share, "Q", 0, 1,                                      \
    "share of steps in which clipping acts; schedules are compared by the mean (default 0)")       \
  X(SEARCH, "search", 0, REAL, search, "SECONDS", 0.1, 86400,                                      \
    "search so long for a faster schedule than the policies have, from the best of them")          \
  X(GPU_MEMORY, "gpu-memory", 0, COUNT, gpu_memory, "BYTES", 0, 1e15,                              \
    "memory on each GPU for state, with --overlap also its gradients, early weights and sums; "    \
    "k, M or G (default: what is free)")                                                           \
  X(HOST_MEMORY, "host-memory", 0, COUNT, host_memory, "BYTES", 0, 1e15,                           \
    "host memory of a node for the optimizer, with k, M or G (default: the profile's)")            \
  X(CPU_THREADS, "cpu-threads", 0, WHOLE, cpu_threads, "N", 1, 4096,                               \
    "CPU threads of each rank (default: its share of the cores)")                                  \
  X(UNBOUND, "unbound", 0, FLAG, unbound, NULL, 0, 0,                                              \
    "ranks are not bound to cores: their threads share all of them")                               \
  X(FREE, "free", 0, TEXT, free_list, "KEY,KEY...", 0, 0,                                          \
    "quantities to fit, at most 13 (default: see --explain)")                                      \
  X(CROSS_VALIDATE, "cross-validate", 0, FLAG, cross_validate, NULL, 0, 0,                         \
    "also leave out each source in turn and predict it from the others")                           \
  X(BACKEND, "backend", 0, CHOICE, backend, "cuda|host", 0, 0,                                     \
    "cuda: a GPU (default); host: a device made of host memory and threads")                       \
  X(DEVICE, "device", 0, WHOLE, device, "N", 0, 63, "index of the GPU (default 0)")                \
  X(LARGEST, "largest", 0, CHOICE, largest, "batch|seq|model", 0, 0,                               \
    "find the largest micro-batch, sequence or model of the family that fits")                     \
  X(PRICE, "price", 0, TEXT, price, "N/h|N/gpu/h", 0, 0,                                           \
    "price of a node, or of a GPU, per hour: adds the cost of a million tokens")                   \
  X(TOKENS, "tokens", 0, COUNT, tokens, "N", 1, 1e15,                                              \
    "length of the run, with k, M, G or T: adds its time, and with --price its cost")              \
  X(STEPS, "steps", 0, WHOLE, steps, "N", 1, 1e6,                                                  \
    "optimizer steps (default: run 10, validate 7; plan: length of the run, as --tokens)")         \
  X(MTBF, "mtbf", 0, REAL, mtbf, "HOURS", 1e-3, 1e9,                                               \
    "mean time between failures of a node: adds what failures and checkpoints take of the run")    \
  X(RESTART, "restart", 0, REAL, restart, "MINUTES", 0, 1e6,                                       \
    "of a failure, beside reading the checkpoint (default 0)")                                     \
  X(OTHERS, "others", 0, FLAG, others, NULL, 0, 0,                                                 \
    "add rows for FSDP2, torchao, 8-bit AdamW and SuperOffload, with how far off they are")        \
  X(SEED, "seed", 0, WHOLE, seed, "N", 0, 1e15,                                                    \
    "seed of generated values and random orders (default 0)")                                      \
  X(MAX_NORM, "max-norm", 0, REAL, max_norm, "X", 0, 1e30,                                         \
    "clip the global gradient norm to this (default: no clipping)")                                \
  X(TIMELINE, "timeline", 0, TEXT, timeline, "FILE", 0, 0,                                         \
    "write a Chrome trace of the last step, for Perfetto")                                         \
  X(CHECKPOINT_FILE, "checkpoint", 0, TEXT, checkpoint_file, "FILE", 0, 0,                         \
    "continue from this state if the file exists; save the state there")                           \
  X(CHECKPOINT_EVERY, "checkpoint-every", 0, WHOLE, checkpoint_every, "STEPS", 1, 1e6,             \
    "also save after every so many steps (default: every ten minutes)")                            \
  X(NAME, "name", 0, TEXT, name, "NAME", 0, 0,                                                     \
    "name of the new profile (calibrate: by default from GPU and number of cores)")                \
  X(QUICK, "quick", 0, FLAG, quick, NULL, 0, 0,                                                    \
    "only the most important probes, less than a minute")                                          \
  X(BUDGET, "budget", 0, REAL, budget, "SECONDS", 1, 86400,                                        \
    "time for measuring (default 480, with --quick 40)")                                           \
  X(TARGET, "target", 0, REAL, target, "PCT", 0.1, 50,                                             \
    "half width of the 95 % interval that ends a probe, in % of the median (default 2, with "      \
    "--quick 5)")                                                                                  \
  X(MEMORY, "memory", 0, COUNT, memory, "BYTES", 1e6, 1e15,                                        \
    "host memory, with k, M or G; calibrate: used for measuring (default 32G, at most a quarter)") \
  X(NVME, "nvme", 0, TEXT, nvme, "FOLDER", 0, 0,                                                   \
    "also measure the drives of this folder, with a file of 4 GiB (--quick: 1) for a minute")      \
  X(GPU, "gpu", 0, TEXT, gpu, "NAME", 0, 0, "a GPU ('hocket machine parts gpu')")                  \
  X(PCIE, "pcie", 0, TEXT, pcie, "GENxLANES", 0, 0,                                                \
    "the slot of each GPU, such as 4x16 (default: the slower of GPU and CPU)")                     \
  X(DRAM, "dram", 0, TEXT, dram, "TYPExCHANNELS", 0, 0,                                            \
    "host memory of the node, such as ddr4-3200x8 (default: all channels of the CPUs)")            \
  X(CPU, "cpu", 0, TEXT, cpu, "NAME[:SOCKETS]", 0, 0, "a CPU ('hocket machine parts cpu')")        \
  X(CORES, "cores", 0, WHOLE, cores, "N", 1, 4096,                                                 \
    "physical cores of the node (default: the CPUs'); fewer: a part of a host")                    \
  X(NVLINK, "nvlink", 0, TEXT, nvlink, "yes|no", 0, 0,                                             \
    "whether GPUs are joined by NVLink (default: as the GPU is sold; bridges are not counted)")    \
  X(NETWORK, "network", 0, TEXT, network, "GBITxPORTS", 0, 0,                                      \
    "network of the node, such as 400x8 (default: 100 Gb/s)")                                      \
  X(NUMA, "numa", 0, WHOLE, numa, "N", 1, 64,                                                      \
    "memory domains of the node (default: one a socket)")                                          \
  X(WITHOUT, "without", 0, TEXT, without, "MACHINE", 0, 0,                                         \
    "transfer nothing from this machine, to test the transfer on it")                              \
  X(DESCRIPTION, "description", 0, TEXT, description, "TEXT", 0, 0,                                \
    "one line about the new profile (default: its parts)")                                         \
  X(STORE, "store", 0, FLAG, store, NULL, 0, 0, "store the new profile")                           \
  X(RESUME, "resume", 0, FLAG, resume, NULL, 0, 0, "continue the latest unfinished calibration")   \
  X(REPLACE, "replace", 0, FLAG, replace, NULL, 0, 0,                                              \
    "replace the stored profile of the same name")                                                 \
  X(UNFINISHED, "unfinished", 0, FLAG, unfinished, NULL, 0, 0,                                     \
    "delete unfinished calibrations of that name instead of a profile")                            \
  X(MAX_AGE, "max-age", 0, REAL, max_age, "DAYS", 1e-6, 1e5,                                       \
    "calibrate again if the profile is older (default 30)")                                        \
  X(MAX_ERROR, "max-error", 0, REAL, max_error, "PCT", 0, 1e9,                                     \
    "exit 1 if the error of the makespan is larger (default: no limit)")                           \
  X(FORCE, "force", 0, FLAG, force, NULL, 0, 0, "accept a profile of another machine")             \
  X(PLANS, "plans", 0, WHOLE, plans, "N", 2, 500, "plans to run (default 24)")                     \
  X(ROUNDS, "rounds", 0, WHOLE, rounds, "N", 1, 15,                                                \
    "runs of each plan, of which the median counts (default 1; 3 or more on a shared "             \
    "machine)")                                                                                    \
  X(FROM, "from", 0, TEXT, from, "FILE", 0, 0,                                                     \
    "plan what this configuration of DeepSpeed, Accelerate or FSDP runs, and what is better")      \
  X(EMIT, "emit", 0, CHOICE, emit, "deepspeed|accelerate|fsdp", 0, 0,                              \
    "write the configuration nearest to the best schedule that this framework runs")               \
  X(ROW, "row", 0, WHOLE, row, "N", 1, 1000, "emit this row of the table instead")                 \
  X(KEEP, "keep", 0, FLAG, keep, NULL, 0, 0,                                                       \
    "store the timeline and print its id ('hocket trace list')")                                   \
  X(ALONE, "alone", 0, FLAG, alone, NULL, 0, 0, "only the named timeline, not its pair")           \
  X(TABLE, "csv", 0, TEXT, table, "FILE", 0, 0, "also write all rows as a table of text")          \
  X(CSV, "csv", 0, FLAG, csv, NULL, 0, 0,                                                          \
    "a table with one row per operation; to stdout without -o")                                    \
  X(QUERY, "query", 0, CHOICE, query, "cheapest|break-even|pareto|sensitivity", 0, 0,              \
    "answer a question from the rows of a database")                                               \
  X(SAMPLE, "sample", 0, COUNT, sample, "N", 1, 1e6,                                               \
    "simulate N points of the product, drawn at random by --seed, with k or M")                    \
  X(SHARD, "shard", 0, TEXT, shard, "I/N", 0, 0,                                                   \
    "simulate every N-th point, from the I-th on (1 to N), for --merge")                           \
  X(MERGE, "merge", 0, FLAG, merge, NULL, 0, 0,                                                    \
    "put the rows of the named databases, shards of one sweep, into -o FILE")                      \
  X(TENSORS, "tensors", 0, FLAG, tensors, NULL, 0, 0, "list every parameter tensor")               \
  X(OUTPUT, "output", 'o', TEXT, output, "FILE", 0, 0, "")                                         \
  X(JSON, "json", 0, FLAG, json, NULL, 0, 0, "one JSON object on stdout, nothing else")            \
  X(WIDE, "wide", 0, FLAG, wide, NULL, 0, 0,                                                       \
    "show all columns, lines of any length (default: fit the terminal, or 80)")                    \
  X(EXPLAIN, "explain", 0, FLAG, explain, NULL, 0, 0,                                              \
    "add all quantities of the machine with origin and source")                                    \
  X(CHECK, "check", 0, FLAG, check, NULL, 0, 0,                                                    \
    "verify: the simulator's invariants; for 'run' every bit of the state")                        \
  X(QUIET, "quiet", 0, FLAG, quiet, NULL, 0, 0, "no notes and warnings (errors remain)")           \
  X(HELP, "help", 'h', FLAG, help, NULL, 0, 0, "this text")

typedef enum {
#define HK_CLI_ENUM(id, ...) HK_OPT_##id,
  HK_CLI_OPTIONS(HK_CLI_ENUM)
#undef HK_CLI_ENUM
      HK_OPT_COUNT
} hk_option_id;

/* A set of at most 128 options: bit i is option i of hk_option_id. */
__extension__ typedef unsigned __int128 hk_option_set;
#define HK_OPTION(id) ((hk_option_set)1 << HK_OPT_##id)

#define HK_STRIDE_AUTO   (-1)
#define HK_MOST_MACHINES 16 /* where --machine may be repeated */
#define HK_MOST_SETS     64 /* --set */

typedef struct {
  hk_option_set given;
  const char *model, *machine, *policy, *output; /* NULL: not given */
  const char *machines[HK_MOST_MACHINES];        /* every --machine; the last is `machine` */
  int n_machines;
  const char *set;                /* the last --set */
  const char *sets[HK_MOST_SETS]; /* every --set */
  int n_sets;
  const char *free_list;
  const char *from;                             /* NULL: not given */
  int64_t params, layers, hidden, heads, vocab; /* 0: not given */
  int64_t gpus, seq;                            /* 0: not given */
  int64_t jobs, nodes, tp, pp, pp_chunks, ep, micro_batch, grad_accum, subgroup;
  bool sequence_parallel;
  int64_t loss_chunks;                  /* 0: not given */
  int64_t stride, buffers, cpu_threads; /* 0: not given */
  double ratio;                         /* negative: not given */
  int checkpoint;                       /* 0 yes, 1 no */
  int runtime;                          /* an hk_runtime */
  int flush;                            /* an hk_flush; valid if in `given` */
  int overlap;                          /* an hk_overlap */
  int clip;                             /* an hk_clip */
  double trainable, frozen_bytes;       /* 0: not given */
  int64_t lora;                         /* 0: not given */
  const char *lora_targets;             /* NULL: not given */
  int state;                            /* an hk_optimizer */
  int accumulate;                       /* an hk_accumulate; valid if in `given` */
  int backend;                          /* 0 cuda, 1 host */
  int64_t device, steps, seed;          /* steps 0: not given */
  int largest;                          /* an hk_largest_what; valid if in `given` */
  const char *price;                    /* NULL: not given */
  int64_t tokens;                       /* 0: not given */
  int64_t checkpoint_every;             /* 0: not given */
  double mtbf, restart;                 /* hours, minutes; 0: not given */
  double clip_share;
  double search;   /* seconds; 0: not given */
  double max_norm; /* 0: no clipping */
  const char *timeline, *checkpoint_file;
  const char *name;
  const char *nvme;
  const char *gpu, *pcie, *dram, *cpu, *nvlink, *network, *without, *description;
  int64_t cores, numa;       /* 0: not given */
  double budget, target;     /* 0: not given; target in % */
  int64_t memory;            /* 0: not given */
  int64_t gpu_memory;        /* valid if in `given` */
  int64_t host_memory;       /* valid if in `given` */
  double max_age, max_error; /* days, %; valid if in `given` */
  int64_t plans, rounds;     /* 0: not given */
  bool force, unfinished, store;
  int emit;    /* an hk_framework; valid if in `given` */
  int64_t row; /* 0: not given */
  bool keep, alone, csv;
  const char *table, *shard; /* NULL: not given */
  int query;                 /* an hk_sweep_question; valid if in `given` */
  int64_t sample;            /* 0: not given */
  bool merge;
  bool others;
  bool quick, resume, replace, unbound, cross_validate, tensors, json, wide, explain, check, quiet,
      help;
  char *const *operands; /* arguments that are not options; points into argv */
  int n_operands;
} hk_args;

/* Parses argv[1..argc); argv[0] is the subcommand. May reorder argv. Accepts the options in
 * `accepted` and HELP. If an option is repeated, the last one counts; a second text is refused, but
 * all values of --machine and --set are kept. Parsing ends at --help.
 * HK_INPUT: the message names the option and its valid values, or the nearest option. */
hk_status hk_args_parse(int argc, char **argv, hk_option_set accepted, hk_args *args,
                        hk_error *err);

/* The defaults of all options, none given. */
hk_args hk_args_none(void);
/* The accepted option of that name; HK_INPUT names the nearest. */
hk_status hk_args_find(const char *name, hk_option_set accepted, hk_option_id *id, hk_error *err);
/* Gives one option the value that `text` says, as on a command line. `args` keeps the pointer of a
 * text. A flag takes "yes" or "no". */
hk_status hk_args_set(hk_option_id id, const char *text, hk_args *args, hk_error *err);

/* The options in `which` that were given, in the form in which they can be typed again:
 * " --quick --gpus 2", or "". Truncated to `size`. Returns `buffer`. */
const char *hk_args_again(const hk_args *args, hk_option_set which, char *buffer, size_t size);

/* One row of the table. */
typedef struct {
  const char *name;
  char letter; /* or 0 */
  enum {
    HK_TEXT,
    HK_WHOLE,
    HK_COUNT,
    HK_AMOUNT,
    HK_TOKENS,
    HK_REAL,
    HK_CHOICE,
    HK_STRIDE,
    HK_FLAG
  } kind;
  size_t offset;     /* of the field in hk_args */
  const char *value; /* NULL for a flag */
  double least, most;
  const char *help;
} hk_option;

const hk_option *hk_option_info(hk_option_id id);

#endif
