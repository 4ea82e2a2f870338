#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-3.0-or-later
"""Measures the cost of the hand-over of gradients for a model of 20,000 small tensors.

Usage: hand_over.py [--tensors 20000] [--iterations 8] [--device cuda|cpu]
       hand_over.py --size 3g [--micro-batch 1] [--overlaps none,both] [--against FOLDER] ...
                    [--sharded]

With --size: what backward of that shape (workload.py) takes the host, alone and attached, and what
of it are the hooks; with --against in turns with the package in a folder of `pack`, or of
`pack -n`; with --sharded of a model that FSDP2 shards, over one rank. Medians over iterations:

  backward   from the call until it returns, the device being idle before; "to idle": until the
             device is idle again
  hooks      time in hocket's hooks on gradients and at the end of backward, and of that in calls of
             libhocket; for each of the tensors with a hook, in microseconds. Measured in iterations
             of their own, because the clocks take time, too

Without --size the model is a chain of Linear(32, 32). The table has three figures for each overlap:
the time of an iteration (forward, backward, step, zero_grad; drained), the time of the hand-over,
and its share of the iteration. The hand-over is the work of the methods collect, take and take_set
of HandOver. Its time is measured twice, on the CPU without the kernels that a GPU would run:

  CPU   processor time of the threads that call these methods. This is the cost if threads are never
        preempted. It should be at most 1 % of the iteration.
  wall  stats()["python"]["hand_over_s"], which the package measures in every run. It includes waits
        for locks, for slots and for a core.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import pathlib
import statistics
import subprocess
import sys
import time
from typing import Any, Dict, Iterator, List, Tuple

import torch
from torch import nn

import hocket
import workload
from hocket import _abi, attach, gates
from hocket.handover import HandOver
from measure import wait


def measure(
    overlap: str, tensors: int, iterations: int, device: torch.device
) -> Tuple[float, float, float]:
    """Seconds of an iteration, CPU seconds and wall seconds of its hand-over: medians; the first
    two iterations are not counted."""
    spent = [0.0]
    originals = {name: getattr(HandOver, name) for name in ("collect", "take", "take_set")}

    def timed(name: str):
        def call(*arguments):
            began = time.thread_time()
            try:
                return originals[name](*arguments)
            finally:
                spent[0] += time.thread_time() - began
        return call

    for name in originals:
        setattr(HandOver, name, timed(name))
    try:
        torch.manual_seed(1)
        model = nn.Sequential(*(nn.Linear(32, 32) for _ in range(tensors // 2))).to(device)
        x = torch.randn(64, 32, device=device)
        opt = hocket.AdamW(model.parameters(), overlap=overlap)
        opt.attach(model)
        whole, cpu, wall = [], [], []
        kernels = waited = 0.0
        for _ in range(iterations + 2):
            began, spent[0] = time.perf_counter(), 0.0
            model(x).square().mean().backward()
            opt.step()
            opt.zero_grad()
            if device.type == "cuda":
                torch.cuda.synchronize()
            whole.append(time.perf_counter() - began)
            stats = opt.stats()
            before, kernels = kernels, stats.get("callers_kernels_ms", 0.0) / 1e3
            earlier, waited = waited, stats["python"]["hand_over_s"]
            cpu.append(spent[0] - (kernels - before))
            wall.append(waited - earlier - (kernels - before))
        return (statistics.median(whole[2:]), statistics.median(cpu[2:]),
                statistics.median(wall[2:]))
    finally:
        for name, original in originals.items():
            setattr(HandOver, name, original)


# -- Backward of a large model ------------------------------------------------------------------

TIMED = ((gates.Arrival, "__call__"), (attach.Attachment, "backward_over"),
         (_abi.Engine, "gradient_list"), (_abi.Engine, "flush"))


@contextlib.contextmanager
def clocks(spent: Dict[str, List[float]]) -> Iterator[None]:
    """Adds up calls and seconds of the methods in TIMED."""
    originals = [getattr(owner, name) for owner, name in TIMED]

    def timed(name: str, method: Any) -> Any:
        def call(*arguments: Any) -> Any:
            began = time.perf_counter()
            try:
                return method(*arguments)
            finally:
                spent[name][0] += 1
                spent[name][1] += time.perf_counter() - began
        return call

    for (owner, name), method in zip(TIMED, originals):
        setattr(owner, name, timed(name, method))
    try:
        yield
    finally:
        for (owner, name), method in zip(TIMED, originals):
            setattr(owner, name, method)


def shard(model: Any, device: torch.device) -> None:
    """One rank reduces with nobody; the hooks are the same."""
    from torch import distributed
    from torch.distributed.fsdp import fully_shard

    kind = "nccl" if device.type == "cuda" else "gloo"
    distributed.init_process_group(kind, store=distributed.HashStore(), rank=0, world_size=1)
    mesh = distributed.init_device_mesh(device.type, (1,))
    for module in (*model.model.layers, model):
        fully_shard(module, mesh=mesh)


class Backward:
    """A model whose backward is timed."""

    def __init__(self, given: argparse.Namespace) -> None:
        self.given, self.device = given, torch.device(given.device)
        shape = workload.shape(given.size, given.layers)
        self.model = workload.build(shape, self.device)
        self.batches = workload.batches(shape, given.micro_batch, self.device)
        if given.sharded:
            shard(self.model, self.device)
        if given.size == "toy":
            attach.HOOK_NUMEL = 1024

    def iterate(self, n: int, optimizer: Any = None) -> List[Tuple[float, float]]:
        """Milliseconds of n backwards: until they return, until the device is idle."""
        found = []
        for number in range(n):
            loss = workload.loss_of(self.model, self.batches[number % 256], 1 / 64)
            wait(self.device)
            began = time.perf_counter()
            loss.backward()
            returned = time.perf_counter()
            wait(self.device)
            found.append(((returned - began) * 1e3, (time.perf_counter() - began) * 1e3))
            if optimizer is not None:
                optimizer.step()
                optimizer.zero_grad()
            else:
                self.model.zero_grad(set_to_none=True)
        return found

    def row(self, name: str, optimizer: Any = None) -> Dict[str, Any]:
        """Times one way; the first iterations do not count."""
        n = self.given.iterations
        self.iterate(3, optimizer)
        host, idle = zip(*self.iterate(n, optimizer))
        found: Dict[str, Any] = {"row": name, "host_ms": statistics.median(host),
                                 "idle_ms": statistics.median(idle)}
        if optimizer is not None:
            hooks, own, inside = len(optimizer._attachment._hooked), [], []
            for _ in range(n):
                spent: Dict[str, List[float]] = {name: [0, 0.0] for _, name in TIMED}
                with clocks(spent):
                    self.iterate(1, optimizer)
                own.append(spent["__call__"][1] + spent["backward_over"][1])
                inside.append(spent["gradient_list"][1] + spent["flush"][1])
            found.update(hooks=hooks, calls=spent["gradient_list"][0],
                         hooks_us=statistics.median(own) / hooks * 1e6,
                         library_us=statistics.median(inside) / hooks * 1e6)
        return found


def backward_of(given: argparse.Namespace) -> List[Dict[str, Any]]:
    """A row for the model alone and for each overlap."""
    timed = Backward(given)
    rows = [timed.row("alone")]
    for overlap in given.overlaps.split(","):
        optimizer = hocket.AdamW(timed.model.parameters(), lr=workload.LR, overlap=overlap)
        optimizer.attach(timed.model)
        rows.append(timed.row(overlap, optimizer))
        optimizer.synchronize()
        optimizer._attachment.detach()
        optimizer.binding().engine.close()
    return rows


def package_in(folder: str) -> Dict[str, str]:
    """The environment for the package in a folder of pack."""
    at = pathlib.Path(folder).resolve()
    before = {name: os.environ.get(name, "") for name in ("LD_LIBRARY_PATH", "PYTHONPATH")}
    return {**os.environ, "HOCKET_LIBRARY": f"{at}/lib/libhocket.so", "HOCKET_SHARE": f"{at}/share",
            "HOCKET_PROGRAM": f"{at}/program/hocket",
            "LD_LIBRARY_PATH": f"{at}/lib:{before['LD_LIBRARY_PATH']}",
            "PYTHONPATH": f"{at}/python:{before['PYTHONPATH']}"}


def print_row(package: str, row: Dict[str, Any]) -> None:
    hooks = (f"{row['calls']:6.0f} {row['hooks']:6} {row['hooks_us']:7.1f} {row['library_us']:10.1f}"
             f" {row['hooks_us'] * row['hooks'] / 1e3:9.2f}" if "hooks" in row else "")
    print(f"{package:<10.10} {row['row']:<8} {row['host_ms']:11.1f} {row['idle_ms']:8.1f} {hooks}",
          flush=True)


def compare(given: argparse.Namespace) -> None:
    """Each package in a process of its own, in turns."""
    print(f"{'package':<10} {'row':<8} {'backward ms':>11} {'to idle':>8} {'calls':>6} "
          f"{'hooks':>6} {'us each':>7} {'libhocket':>10} {'hooks ms':>9}")
    folders = [*given.against, ""]
    for folder in folders * given.turns:
        command = [sys.executable, os.path.abspath(__file__), "--one", *sys.argv[1:]]
        environment = package_in(folder) if folder else None
        text = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE).stdout
        for row in json.loads(text.splitlines()[-1]):
            print_row(os.path.basename(os.path.normpath(folder)) if folder else "this", row)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tensors", type=int, default=20000)
    parser.add_argument("--iterations", type=int, default=8)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--size", choices=tuple(workload.SHAPES))
    parser.add_argument("--layers", type=int)
    parser.add_argument("--micro-batch", type=int, default=1)
    parser.add_argument("--overlaps", default="none,both")
    parser.add_argument("--against", action="append", default=[], help="a folder of pack")
    parser.add_argument("--sharded", action="store_true")
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        print(json.dumps(backward_of(given)))
    elif given.size:
        compare(given)
    else:
        small_tensors(given)


def small_tensors(given: argparse.Namespace) -> None:
    print(f"{given.tensors} tensors on {given.device}")
    print(f"{'overlap':<8} {'iteration ms':>12} {'hand-over ms: CPU':>17} {'wall':>7} "
          f"{'CPU share':>10}")
    for overlap in ("none", "forward", "both"):
        whole, cpu, wall = measure(overlap, given.tensors, given.iterations,
                                   torch.device(given.device))
        print(f"{overlap:<8} {whole * 1e3:12.1f} {cpu * 1e3:17.2f} {wall * 1e3:7.2f} "
              f"{cpu / whole:10.2%}")


main()
