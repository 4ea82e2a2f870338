#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-3.0-or-later
"""DeepSpeed ZeRO-3 with offload_optimizer on the CPU and hocket.AdamW: the plain step against
hocket.deepspeed.install, in turns in one process a GPU.

    zero3.py [--gpus N] [--size 3g] [--layers N] [--micro-batch 4] [--rounds 3] [--iterations 4]
             [--sub-group 25e6] [--prefetch 5e7] [--threads N] [--cpu-threads N] [--no-pin]
             [--rows plain,installed] [--budget 400] [--out FILE] [--device cuda]

Prints, for each row: milliseconds an iteration (median, least and most of the rounds), and the phases of
iterations that wait after each: forward, backward, step and, of the installed row, the update that
step() has left to the thread. At most the shorter of forward and update can be hidden. Then the ratio of
the rows, and whether their losses are the same; attention on the GPU need not repeat its bits.

--threads are torch's threads of a rank (casts and copies), --cpu-threads those of hocket's update;
both are by default the CPUs divided by the GPUs, less one. Needs transformers and DeepSpeed; run it with
DS_BUILD_OPS=0. --device cpu --size toy runs with gloo anywhere (DS_ACCELERATOR=cpu).
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import pathlib
import statistics
import sys
import time
from typing import Any, Dict, List

HERE = pathlib.Path(__file__).resolve().parent
WARM = 3


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("--gpus", type=int, default=2)
    parser.add_argument("--size", default="3g")
    parser.add_argument("--layers", type=int)
    parser.add_argument("--micro-batch", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--iterations", type=int, default=4)
    parser.add_argument("--sub-group", type=float, default=25e6)
    parser.add_argument("--prefetch", type=float, default=5e7)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--cpu-threads", type=int)
    parser.add_argument("--no-pin", action="store_true")
    parser.add_argument("--rows", default="plain,installed")
    parser.add_argument("--budget", type=float, default=400)
    parser.add_argument("--out")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    options = parser.parse_args()
    share = max(1, len(os.sched_getaffinity(0)) // options.gpus - 1)
    options.threads = options.threads or share
    options.cpu_threads = options.cpu_threads or share
    return options


class Row:
    """One engine, and what was measured of it."""

    def __init__(self, options: argparse.Namespace, name: str, device: Any) -> None:
        import deepspeed
        import torch

        import hocket
        import workload

        self.name, self.device, self.options = name, device, options
        of = workload.shape(options.size, options.layers)
        model = workload.build(of, device)
        self.parameters = workload.parameters(model)
        opt = hocket.AdamW(
            model.parameters(), lr=workload.LR, betas=workload.BETAS, eps=workload.EPS,
            weight_decay=workload.WEIGHT_DECAY, cpu_threads=options.cpu_threads)
        pin = device.type == "cuda" and not options.no_pin
        config = workload.deepspeed(
            3, options.micro_batch, pin, sub_group_size=int(options.sub_group),
            stage3_prefetch_bucket_size=int(options.prefetch))
        del config["optimizer"]  # hocket's instead
        config.update(zero_allow_untested_optimizer=True, zero_force_ds_cpu_optimizer=False)
        self.engine: Any = deepspeed.initialize(model=model, optimizer=opt, config=config)[0]
        if name == "installed":
            hocket.deepspeed.install(self.engine)
        self.opt = opt
        rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        every = workload.batches(of, options.micro_batch * world, device)
        first = rank * options.micro_batch
        self.batches = [batch[first:first + options.micro_batch] for batch in every]
        self.losses: List[torch.Tensor] = []
        self.rounds: List[float] = []
        self.phases: Dict[str, List[float]] = {}

    def wait(self) -> None:
        import torch

        self.opt.synchronize()
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def iterate(self, mark: Any = lambda name: None) -> None:
        import workload

        loss = workload.loss_of(self.engine, self.batches[len(self.losses)], 1.0)
        mark("forward")
        self.engine.backward(loss)
        mark("backward")
        self.engine.step()
        mark("step")
        self.losses.append(loss.detach())

    def round(self) -> None:
        """Some iterations, up to the end of the last update."""
        import torch.distributed as dist

        self.wait()
        dist.barrier()
        began = time.perf_counter()
        for _ in range(self.options.iterations):
            self.iterate()
        self.wait()
        self.rounds.append((time.perf_counter() - began) / self.options.iterations * 1e3)

    def apart(self) -> None:
        """An iteration with a wait after each phase. Forward waits for no update: the last one has
        ended before the barrier."""
        import torch
        import torch.distributed as dist

        def mark(name: str) -> None:
            nonlocal began
            if self.device.type == "cuda":
                torch.cuda.synchronize()
            now = time.perf_counter()
            self.phases.setdefault(name, []).append((now - began) * 1e3)
            began = now

        dist.barrier()
        began = time.perf_counter()
        self.iterate(mark)
        self.opt.synchronize()
        mark("update")

    def result(self) -> Dict[str, Any]:
        return {
            "row": self.name, "ms": [round(ms, 1) for ms in self.rounds],
            "phases_ms": {name: round(statistics.median(ms), 1) for name, ms in self.phases.items()},
            "losses": [float(loss) for loss in self.losses],
            "subgroups": len(self.engine.optimizer.fp16_groups)}


def rank_main(options: argparse.Namespace) -> None:
    import deepspeed
    import deepspeed.comm
    import torch
    import torch.distributed as dist

    sys.path.insert(0, str(HERE))
    gpu = options.device == "cuda"
    device = torch.device(options.device, int(os.environ["LOCAL_RANK"]) if gpu else None)
    if gpu:
        torch.cuda.set_device(device)
    else:  # otherwise it compiles a faster all-reduce first, for minutes
        sys.modules["deepspeed.comm.torch"].build_shm_op = lambda: None  # type: ignore[attr-defined]
    torch.set_num_threads(options.threads)
    began = time.monotonic()
    deepspeed.init_distributed(
        dist_backend="nccl" if gpu else "gloo", timeout=datetime.timedelta(seconds=120))
    rows = [Row(options, name, device) for name in options.rows.split(",")]
    for row in rows:
        for _ in range(WARM):
            row.iterate()
    say(f"{rows[0].parameters / 1e9:.2f} G parameters, {dist.get_world_size()} ranks, subgroups of a "
        f"rank: {len(rows[0].engine.optimizer.fp16_groups)}, torch's threads {options.threads}, "
        f"hocket's {options.cpu_threads}; ready after {time.monotonic() - began:.0f} s")
    for number in range(options.rounds):
        before = time.monotonic()
        for row in rows:
            row.round()
        for row in rows:
            row.apart()
        spent = torch.tensor([time.monotonic() - before, time.monotonic() - began], device=device)
        dist.broadcast(spent, 0)  # rank 0's clock decides for all
        if float(spent.sum()) > options.budget:
            say(f"no time for more rounds than {number + 1}")
            break
    results = [row.result() for row in rows]
    say(table(results))
    if options.out and dist.get_rank() == 0:
        pathlib.Path(options.out).write_text(json.dumps(results, indent=1), encoding="utf-8")
    for row in rows:
        row.engine.destroy()
    dist.destroy_process_group()


def say(text: str) -> None:
    if os.environ["RANK"] == "0":
        print(text, flush=True)


def table(results: List[Dict[str, Any]]) -> str:
    names = ("forward", "backward", "step", "update")
    lines = [f"{'row':10} {'ms':>8} {'least':>8} {'most':>8}  " + "".join(f"{n:>10}" for n in names)]
    for r in results:
        phases = "".join(f"{r['phases_ms'][name]:10.1f}" for name in names)
        lines.append(f"{r['row']:10} {statistics.median(r['ms']):8.1f} {min(r['ms']):8.1f} "
                     f"{max(r['ms']):8.1f}  {phases}")
    if len(results) == 2:
        first, second = (statistics.median(r["ms"]) for r in results)
        lines.append(f"{results[1]['row']} takes {second / first:.3f} of {results[0]['row']}; losses "
                     + ("the same" if results[0]["losses"] == results[1]["losses"] else
                        f"differ by up to {differ(*(r['losses'] for r in results)):.2g}"))
    return "\n".join(lines)


def differ(mine: List[float], its: List[float]) -> float:
    return max(abs(a - b) for a, b in zip(mine, its))


def main() -> None:
    options = arguments()
    if "RANK" in os.environ:
        rank_main(options)
        return
    # Otherwise torchrun sets it to one.
    os.environ["OMP_NUM_THREADS"] = str(options.threads)
    os.environ.setdefault("DS_BUILD_OPS", "0")
    os.execv(sys.executable, [
        sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node",
        str(options.gpus), __file__, *sys.argv[1:]])


if __name__ == "__main__":
    main()
