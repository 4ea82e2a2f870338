#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the hand-over of gradients costs a model of 20,000 small tensors.

Usage: hand_over.py [--tensors 20000] [--iterations 8] [--device cuda|cpu]

The model is a chain of Linear(32, 32). For each overlap the table has the time of an iteration
(forward, backward, step, zero_grad; drained), the time that the hooks and the collection of
gradients take in the calling threads, and its share of the iteration. On the CPU the kernels that a
GPU would run are part of the collection and are subtracted. The hand-over should take at most 1 %.
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


def measure(overlap: str, tensors: int, iterations: int, device: torch.device) -> Tuple[float, float]:
    """Seconds of an iteration, and of its hand-over: medians; the first two are not counted."""
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
        whole, hand_over, kernels = [], [], 0.0
        for _ in range(iterations + 2):
            began, spent[0] = time.perf_counter(), 0.0
            model(x).square().mean().backward()
            opt.step()
            opt.zero_grad()
            if device.type == "cuda":
                torch.cuda.synchronize()
            whole.append(time.perf_counter() - began)
            before, kernels = kernels, opt.stats().get("callers_kernels_ms", 0.0) / 1e3
            hand_over.append(spent[0] - (kernels - before))
        return statistics.median(whole[2:]), statistics.median(hand_over[2:])
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
    print(f"{'overlap':<8} {'iteration ms':>12} {'hand-over ms':>12} {'share':>7}")
    for overlap in ("none", "forward", "both"):
        whole, hand_over = measure(overlap, given.tensors, given.iterations,
                                   torch.device(given.device))
        print(f"{overlap:<8} {whole * 1e3:12.1f} {hand_over * 1e3:12.2f} {hand_over / whole:7.2%}")


main()
