#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-3.0-or-later
"""Trains a model that FSDP2 has sharded over the GPUs of one host, with several optimizers, and
prints a table of milliseconds an iteration and of losses.

    ranks.py [--gpus N] [--size 3g] [--rows ROW,...] [--micro-batch 4] [--iterations 8]
             [--clip natural|never|always] [--budget 460] [--out FILE] [--device cuda]
             [--machine NAME [--profile]] [--record FOLDER]
    ranks.py --check [CASE,...] [--gpus N] [--device cuda]

ms: all timed iterations with the update that ends them, divided by their number. within: mean of
those that are neither first nor last, on the first GPU, and their median; predictions are of such
an iteration.

Rows: gpu (torch's fused AdamW with fp32 masters in GPU memory), offload (CPUOffloadPolicy and
the same on the CPU; offload+threads=N sets torch's threads of a rank), hocket (attached, overlap
both, gradients in bf16), hocket+gpu_memory=BYTES, hocket+plan=auto. The same with hocket-ddp: DDP
instead of FSDP2, whose ranks share out the state; hocket-ddp-alone is not attached: each rank
updates all. ddp: DDP, torch's fused AdamW, autocast to bf16. deepspeed-2 and deepspeed-3: ZeRO of
that stage with DeepSpeed's AdamW on the CPU. Rows of hocket have bf16 parameters,
the others fp32 ones that FSDP2 gathers as bf16. The bits of their gradients are the same, losses
differ by how weights are rounded.

--clip scales the loss, so that the limit of 1.0 never acts or always does; ROW@always, for one row.
--machine prints before the rows what the planner predicts on this machine, by the model's shape;
with --profile also by what hocket.profile measures of the whole model on one GPU, before sharding.

A row's "hosts" are phases of each rank's main thread: by the clock, the time in which it ran, and
how often another thread took its core. Forward is launched there, backward is not. "slowest" has
those of the slowest iteration, "gc_ms" Python's collections of garbage by generation, and
"allocations" counts what torch asked the driver for, in all timed iterations.

--record runs RECORDED more iterations of each row under torch's profiler and prints phases and kinds
of kernels of each rank, beside the prediction (rank_kinds.py). Rows of hocket then run as many once
more, and each rank writes its timeline into the folder: `hocket validate training FOLDER/ROW-rank*`.
With --profile the measured model is there, too: FOLDER/model.json, for `hocket plan --model`.

--check runs the cases of python/tests/ranks_*.py with as many ranks instead, and prints a line
for each. A row is not begun when the budget, in seconds, has less left than the longest row took.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import pathlib
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any, Dict, List, Optional

HERE = pathlib.Path(__file__).resolve().parent
WARM = 3
RECORDED = 5


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("--gpus", type=int, default=2)
    parser.add_argument("--size", default="3g")
    parser.add_argument("--layers", type=int)
    parser.add_argument("--rows", default="gpu,hocket+gpu_memory=9.5e9,hocket,offload")
    parser.add_argument("--micro-batch", type=int, default=4)
    parser.add_argument("--iterations", type=int, default=8)
    parser.add_argument("--clip", default="natural", choices=("natural", "never", "always"))
    parser.add_argument("--budget", type=float, default=460)
    parser.add_argument("--out")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--check", nargs="?", const="", metavar="CASE,...")
    parser.add_argument("--machine", help="of the planner's predictions")
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--record", metavar="FOLDER")
    return parser.parse_args()


# -- Ranks ----------------------------------------------------------------------------------------


def sharded(options: argparse.Namespace, row: str, device: Any) -> Any:
    import torch
    from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard

    import workload

    model = workload.build(workload.shape(options.size, options.layers), device)
    if row == "ddp":
        model = model.float()
    if row == "ddp" or row.startswith("hocket-ddp"):
        ids = [device.index] if device.type == "cuda" else None
        # Without the view "ddp" has its fp32 gradients twice.
        return torch.nn.parallel.DistributedDataParallel(
            model, device_ids=ids, gradient_as_bucket_view=row == "ddp")
    how: Dict[str, Any] = {}
    if not row.startswith("hocket"):
        # On the host first: fp32 of the whole model need not fit beside its bf16.
        model = model.to("cpu").float()
        how["mp_policy"] = MixedPrecisionPolicy(
            param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16)
    if row.startswith("offload"):
        how["offload_policy"] = CPUOffloadPolicy(pin_memory=device.type == "cuda")
    for part in (model.model.embed_tokens, *model.model.layers, model.lm_head):
        fully_shard(part, **how)
    return fully_shard(model, **how)


def engine(options: argparse.Namespace, row: str, device: Any) -> Any:
    """DeepSpeed's engine, which is the model and its optimizer."""
    import deepspeed

    import workload

    model = workload.build(workload.shape(options.size, options.layers), device)
    config = workload.deepspeed(int(row[-1]), options.micro_batch)
    return deepspeed.initialize(
        model=model, model_parameters=model.parameters(), config=config)[0]


def optimizer(row: str, model: Any) -> Any:
    import torch

    import hocket
    import workload

    settings = {"lr": workload.LR, "betas": workload.BETAS, "eps": workload.EPS,
                "weight_decay": workload.WEIGHT_DECAY}
    if not row.startswith("hocket"):
        return torch.optim.AdamW(model.parameters(), fused=True, **settings)
    own = dict(part.split("=") for part in row.split("+")[1:])
    own = {name: value if name == "plan" else int(float(value)) for name, value in own.items()}
    alone = row.split("+")[0].endswith("-alone")
    opt = hocket.AdamW(model.parameters(), max_norm=workload.MAX_NORM,
                       overlap="none" if alone else "both", **settings, **own)
    if not alone:
        opt.attach(model)
    return opt


def allocations(device: Any) -> int:
    """How often torch's allocator has asked the driver for memory, or had to free its own first."""
    import torch

    if device.type != "cuda":
        return 0
    stats = torch.cuda.memory_stats(device)
    return int(stats.get("num_device_alloc", 0) + stats.get("num_alloc_retries", 0))


def drain(opt: Any, device: Any) -> None:
    import torch

    if hasattr(opt, "synchronize"):
        opt.synchronize()
    if device.type == "cuda":
        torch.cuda.synchronize()


def run_row(options: argparse.Namespace, row: str, device: Any) -> Dict[str, Any]:
    """Times one row; every rank returns the same."""
    import torch
    import torch.distributed as dist

    import rank_kinds
    import workload
    from measure import Collections

    began = time.monotonic()
    name, (row, _, clip) = row, row.partition("@")
    threads = re.match(r"offload\+threads=(\d+)$", row)
    if threads:
        torch.set_num_threads(int(threads[1]))
    deepspeed = row.startswith("deepspeed")
    model = (engine if deepspeed else sharded)(options, row, device)
    opt = model if deepspeed else optimizer(row, model)
    of = workload.shape(options.size, options.layers)
    rank, world = dist.get_rank(), dist.get_world_size()
    every = workload.batches(of, options.micro_batch * world, device)
    mine = [batch[rank * options.micro_batch:(rank + 1) * options.micro_batch] for batch in every]
    factor = workload.loss_factor(clip or options.clip, 0)
    losses: List[Any] = []
    norms: List[Any] = []

    def iterate(marks: Any) -> None:
        marks.begin()
        with torch.autocast(device.type, torch.bfloat16, enabled=row == "ddp"):
            loss = workload.loss_of(model, mine[len(losses) % len(mine)], factor)
        marks.mark()
        model.backward(loss) if deepspeed else loss.backward()
        marks.mark()
        if not deepspeed and not row.startswith("hocket"):
            norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), workload.MAX_NORM))
        marks.mark()
        opt.step()
        if row.startswith("hocket"):
            norms.append(opt.grad_norm)
        if deepspeed:
            norms.append(model.get_global_grad_norm())
        opt.zero_grad()
        losses.append(loss.detach() / factor)
        marks.mark()

    for _ in range(WARM):
        iterate(rank_kinds.Marks(device))
    drain(opt, device)
    garbage = Collections()
    dist.barrier()
    allocated = allocations(device)
    marks, begin = rank_kinds.Marks(device), time.perf_counter()
    for _ in range(options.iterations):
        iterate(marks)
    drain(opt, device)
    wall = (time.perf_counter() - begin) / options.iterations
    ends = marks.gpu_ms()
    each = [after[0] - before[0] for before, after in zip(ends, ends[1:])]
    host = {"host_ms": rank_kinds.phases(marks.host_ms()), **marks.thread(),
            "gc_ms": garbage.end(), "allocations": allocations(device) - allocated,
            "slowest": rank_kinds.slowest(marks)}
    hosts: List[Any] = [None] * world
    dist.all_gather_object(hosts, host)
    answer = torch.tensor([wall], dtype=torch.float64)
    mean = torch.stack(losses).float().cpu()
    dist.all_reduce(answer, op=dist.ReduceOp.MAX)
    dist.all_reduce(mean)
    result: Dict[str, Any] = {
        "row": name, "wall_ms": round(float(answer) * 1e3, 2),
        "each_ms": [round(ms, 2) for ms in each], "phases_ms": rank_kinds.phases(ends),
        "hosts": hosts, "device": name_of(device),
        "losses": [round(float(value) / world, 5) for value in mean],
        "norms": [round(float(n.full_tensor() if hasattr(n, "full_tensor") else n), 4)
                  for n in norms],
    }
    if row.startswith("hocket"):
        report = opt.stats()
        result["update_ms"] = [round(s["update_ms"], 1) for s in report.get("last_steps", [])]
        result["ahead"] = opt.last_step.ahead
        result["threads"] = report.get("threads")
        result["gpu_bytes"] = opt.gpu_bytes()
    if row.startswith("offload"):
        result["threads"] = torch.get_num_threads()
    if device.type == "cuda":
        result["gpu_peak_gib"] = round(torch.cuda.max_memory_allocated() / 2**30, 2)
    if options.record:
        plain = {"phases": rank_kinds.phases(ends),
                 "host": rank_kinds.phases(marks.host_ms())}
        dist.barrier()
        own = {"wall_ms": round(wall * 1e3, 2), "plain": plain,
               "profiled": rank_kinds.profiled(iterate, device, RECORDED)}
        result["ranks"] = [None] * world
        dist.all_gather_object(result["ranks"], own)
        if row.startswith("hocket"):
            opt.record()
            for _ in range(RECORDED):
                iterate(rank_kinds.Marks(device))
            file = recording(options, name, rank)
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(json.dumps(opt.timeline()))
    if deepspeed:
        model.destroy()
    result["row_s"] = round(time.monotonic() - began, 1)
    return result


def recording(options: argparse.Namespace, name: str, rank: int) -> pathlib.Path:
    """Where the timeline of a rank in a row is kept."""
    file = re.sub(r"[^\w.=-]+", "-", name)
    return pathlib.Path(options.record) / f"{file}-rank{rank}.json"


def name_of(device: Any) -> str:
    import torch

    return torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"


def rank_main(options: argparse.Namespace) -> None:
    import torch
    import torch.distributed as dist

    sys.path.insert(0, str(HERE))
    from measure import collect

    rank = int(os.environ["RANK"])
    gpu = options.device == "cuda"
    if gpu:
        torch.cuda.set_device(rank)
    else:
        torch.set_num_threads(1)
    device = torch.device(options.device, rank if gpu else None)
    dist.init_process_group("cpu:gloo,cuda:nccl" if gpu else "gloo",
                            timeout=datetime.timedelta(seconds=120))
    until, longest = time.monotonic() + options.budget, 0.0
    for row in options.rows.split(","):
        # Rank 0's clock decides for all.
        left = torch.tensor([until - time.monotonic() - longest])
        dist.broadcast(left, 0)
        if float(left) < 0:
            answer: Dict[str, Any] = {"row": row, "left_out": "no time"}
        else:
            answer = run_row(options, row, device)
            longest = max(longest, answer["row_s"])
        collect(device)
        if gpu:
            torch.cuda.reset_peak_memory_stats()  # now that the row's memory is given back
        if rank == 0:
            with open(os.environ["HOCKET_RANKS_OUT"], "a", encoding="utf-8") as file:
                file.write(json.dumps(answer) + "\n")
    dist.destroy_process_group()


# -- The table ------------------------------------------------------------------------------------


def table(rows: List[Dict[str, Any]]) -> str:
    base: Optional[float] = next((r["wall_ms"] for r in rows
                                  if r["row"].startswith("gpu") and "wall_ms" in r), None)
    lines = [f"{'row':36} {'ms':>9} {'within':>9} {'median':>9} {'x gpu':>6} {'GPU GiB':>8} "
             f"{'first':>9} {'last':>9}"]
    for r in rows:
        if "wall_ms" not in r:
            lines.append(f"{r['row']:36} left out: {r['left_out']}")
            continue
        ratio = f"{r['wall_ms'] / base:6.3f}" if base else "     -"
        peak = r.get("gpu_peak_gib")
        memory = f"{peak + r.get('gpu_bytes', 0) / 2**30:8.2f}" if peak is not None else "       -"
        middle = r["each_ms"][1:] or r["each_ms"] or [r["wall_ms"]]
        within, median = statistics.mean(middle), statistics.median(middle)
        lines.append(f"{r['row']:36} {r['wall_ms']:9.1f} {within:9.1f} {median:9.1f} {ratio} "
                     f"{memory} {r['losses'][0]:9.4f} {r['losses'][-1]:9.4f}")
    return "\n".join(lines)


def predict(options: argparse.Namespace, profile: bool) -> Dict[str, Dict[str, float]]:
    """Prints what `hocket plan` says of these rows; it knows FSDP2, and the mean of steps. profile:
    with the model as measured. Returns what rank_kinds.table compares, by row."""
    import scaling
    import workload

    of = workload.shape(options.size, options.layers)
    compared: Dict[str, Dict[str, float]] = {}
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        if profile:
            subprocess.run([sys.executable, "-u", __file__, *sys.argv[1:]], check=True,
                           env={**os.environ, "HOCKET_RANKS_MODEL": file.name})
        else:
            json.dump(workload.config(of), file)
            file.flush()
        job = argparse.Namespace(model=file.name, machine=options.machine,
                                 micro_batch=options.micro_batch, node_gpus=options.gpus)
        for row in dict.fromkeys(row.partition("@")[0] for row in options.rows.split(",")):
            memory = re.search(r"gpu_memory=([^+]+)", row)
            more = ["--policy", "gpu-only"] if row == "gpu" else [
                "--overlap", "both", "--gpu-memory", str(int(float(memory[1])) if memory else 0)]
            if row == "gpu" or re.match(r"hocket(\+|$)", row):
                found = scaling.plan(job, options.gpus, "--seq", str(of.length), *more)
                clipped = (found or {}).get("clipped_ms", "the same")
                print(f"predicted {row}: {scaling.cells(found)[0]} ms, clipped {clipped}",
                      flush=True)
                if found is not None:
                    compared[row] = to_compare(found)
    return compared


def profile_main(options: argparse.Namespace) -> None:
    """Measures the whole model on the first GPU, and writes its document."""
    import torch

    import plans
    import workload

    device = torch.device(options.device, 0 if options.device == "cuda" else None)
    of = workload.shape(options.size, options.layers)
    found = plans.measured(of, options.micro_batch, device)
    pathlib.Path(os.environ["HOCKET_RANKS_MODEL"]).write_text(json.dumps(found))
    if options.record:
        folder = pathlib.Path(options.record)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "model.json").write_text(json.dumps(found))
    launches = [sum(block.get(f"{name}_launch_ms", 0) for block in found["blocks"])
                for name in ("forward", "backward")]
    gpu = [sum(block[f"{name}_ms"] for block in found["blocks"]) for name in ("forward", "backward")]
    print("one GPU, ms: forward {:.1f}, backward {:.1f}; launches {:.1f}, {:.1f}".format(
        *gpu, *launches), flush=True)


def to_compare(found: Dict[str, Any]) -> Dict[str, float]:
    """Predicted figures by the names of rank_kinds.table."""
    lanes = {name: lane["busy_ms"] for name, lane in found["lanes"].items()}
    return {"iteration": found["iteration_ms"], "forward": found["fwd_ms"],
            "backward": found["bwd_ms"], "step": found["exposed_update_ms"],
            "all: busy": lanes["gpu"] + (lanes.get("update", 0) if found["policy"] == "gpu-only"
                                         else 0),
            "all: collectives": lanes.get("net", 0), "all: launches": lanes["host"]}


def start_ranks(options: argparse.Namespace) -> int:
    predicted = predict(options, False) if options.machine else {}
    if options.machine and options.profile:
        try:
            predicted = predict(options, True)
        except subprocess.CalledProcessError as error:
            print(f"the model was not measured: {error}")
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        out = pathlib.Path(options.out or f"{folder}/rows.jsonl")
        out.unlink(missing_ok=True)
        began = time.monotonic()
        ranks = [
            subprocess.Popen(
                [sys.executable, "-u", __file__, *sys.argv[1:]],
                env={**os.environ, "RANK": str(rank), "LOCAL_RANK": str(rank),
                     "WORLD_SIZE": str(options.gpus), "LOCAL_WORLD_SIZE": str(options.gpus),
                     "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
                     "HOCKET_RANKS_OUT": str(out)})
            for rank in range(options.gpus)
        ]
        failed = wait(ranks, options.budget + 60)
        text = out.read_text().splitlines() if out.exists() else []
        rows = [json.loads(line) for line in text]
        print(f"{options.gpus} ranks on {rows[0].get('device') if rows else '-'}, {options.size}, "
              f"micro-batch {options.micro_batch} each, {time.monotonic() - began:.0f} s")
        print(table(rows))
        recorded = [(row["row"], row.pop("ranks")) for row in rows if "ranks" in row]
        for row in rows:
            print(json.dumps(row))
        if options.record:
            report(options, recorded, predicted)
    return failed


def report(options: argparse.Namespace, recorded: List[Any],
           predicted: Dict[str, Dict[str, float]]) -> None:
    """Prints what ranks did in each row, and keeps it with the names of kernels."""
    sys.path.insert(0, str(HERE))
    import rank_kinds

    folder = pathlib.Path(options.record)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "kinds.json").write_text(json.dumps(
        {"schema": "hocket.rank-kinds/1", "predicted": predicted, "rows": recorded}))
    for row, _ in recorded if options.machine else ():
        validate(options, row)
    for row, ranks in recorded:
        print(rank_kinds.table(row, ranks, predicted.get(row.partition("@")[0], {})))


def validate(options: argparse.Namespace, row: str) -> None:
    """Compares the recordings of a row of hocket with their prediction: prints what all ranks did,
    and keeps the whole."""
    files = [recording(options, row, rank) for rank in range(options.gpus)]
    if not all(file.exists() for file in files):
        return
    program = [os.environ.get("HOCKET_PROGRAM", "hocket"), "validate", "training"]
    done = subprocess.run([*program, *map(str, files), "--machine", options.machine, "--wide"],
                          capture_output=True, text=True, check=False)
    files[0].with_suffix(".txt").write_text(done.stdout + done.stderr)
    print(f"{row}, operations\n{done.stdout.partition(chr(10) * 2 + 'rank 0')[0]}{done.stderr}")


def wait(ranks: List["subprocess.Popen[bytes]"], limit_s: float) -> int:
    """Waits until all ranks have ended; if one fails, or time is over, ends the others."""
    until = time.monotonic() + limit_s
    while any(rank.poll() is None for rank in ranks):
        bad = [n for n, rank in enumerate(ranks) if rank.poll() not in (None, 0)]
        if bad or time.monotonic() > until:
            print(f"rank {bad[0]} ended with {ranks[bad[0]].returncode}" if bad else "time is over")
            for rank in ranks:
                rank.kill()
                rank.wait()
            return 1
        time.sleep(0.2)
    return int(any(rank.returncode for rank in ranks))


# -- The cases of the tests -----------------------------------------------------------------------


def check(options: argparse.Namespace) -> int:
    places = (HERE.parent / "python/tests", HERE.parent.parent / "python/tests")
    tests = next(place for place in places if place.exists())
    worker = tests / "ranks_worker.py"
    sys.path.insert(0, str(tests))
    from rank_cases import rank_cases

    every = [name for _, name in rank_cases()]
    names = options.check.split(",") if options.check else every
    if not set(names) <= set(every):
        sys.exit(f"ranks.py: cases of --check are {', '.join(every)}")
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        ranks = [
            subprocess.Popen(
                [sys.executable, str(worker), str(rank), str(options.gpus), folder,
                 options.device],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            for rank in range(options.gpus)
        ]
        for name in names:
            began = time.monotonic()
            answers = []
            for rank in ranks:
                assert rank.stdin is not None
                rank.stdin.write(name + "\n")
                rank.stdin.flush()
            for rank in ranks:
                assert rank.stdout is not None
                answers.append(rank.stdout.readline().strip())
            well = set(answers) == {"ok"}
            print(f"{'ok  ' if well else 'FAIL'} {name} {time.monotonic() - began:.1f} s",
                  flush=True)
            for number, answer in enumerate(answers):
                if answer != "ok":
                    text = json.loads(answer)[-1500:] if answer else "has ended"
                    print(f"rank {number}: {text}")
            failed += not well
            if not well and "" in answers:
                break
        # All at once: with NCCL a rank that ends waits for the others to end, too.
        for rank in ranks:
            assert rank.stdin is not None
            rank.stdin.close()
        for rank in ranks:
            try:
                rank.wait(timeout=30)
            except subprocess.TimeoutExpired:
                rank.kill()
    print(f"{len(names)} cases, {failed} failed")
    return int(failed > 0)


def main() -> int:
    options = arguments()
    if "HOCKET_RANKS_MODEL" in os.environ:
        sys.path.insert(0, str(HERE))
        profile_main(options)
        return 0
    if "HOCKET_RANKS_OUT" in os.environ:
        rank_main(options)
        return 0
    return start_ranks(options) if options.check is None else check(options)


if __name__ == "__main__":
    sys.exit(main())
