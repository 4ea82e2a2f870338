#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-3.0-or-later
"""Measures the cost of the hand-over of gradients for a model of 20,000 small tensors.

Usage: hand_over.py [--tensors 20000] [--iterations 8] [--device cuda|cpu]

The model is a chain of Linear(32, 32). For each overlap the table has the time of an iteration
(forward, backward, step, zero_grad; drained), the time of the hand-over, and its share of the
iteration. The hand-over is the work of the methods collect, take and take_set of HandOver. Its time
is measured twice, on the CPU without the kernels that a GPU would run:

  CPU   processor time of the threads that call these methods. This is the cost if threads are never
        preempted. It should be at most 1 % of the iteration.
  wall  stats()["python"]["hand_over_s"], which the package measures in every run. It includes waits
        for locks, for slots and for a core.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Tuple

import torch
from torch import nn

import hocket
from hocket.handover import HandOver


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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tensors", type=int, default=20000)
    parser.add_argument("--iterations", type=int, default=8)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    given = parser.parse_args()
    print(f"{given.tensors} tensors on {given.device}")
    print(f"{'overlap':<8} {'iteration ms':>12} {'hand-over ms: CPU':>17} {'wall':>7} "
          f"{'CPU share':>10}")
    for overlap in ("none", "forward", "both"):
        whole, cpu, wall = measure(overlap, given.tensors, given.iterations,
                                   torch.device(given.device))
        print(f"{overlap:<8} {whole * 1e3:12.1f} {cpu * 1e3:17.2f} {wall * 1e3:7.2f} "
              f"{cpu / whole:10.2%}")


main()
