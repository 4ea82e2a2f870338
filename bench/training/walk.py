#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-3.0-or-later
"""Measures how long it takes to find the gradients of 20,000 small tensors, by libhocket_walk and
by Python alone.

Usage: walk.py [--tensors 20000] [--turns 5]

Each turn measures the ways one after the other, each behind a backward of its own, so that torch's
objects are in no cache. `walk` is what the package does (python/hocket/direct.py). `Python` reads
the same by as few lines of Python as possible: map() over torch's own functions, for the gradient,
its type, whether it is contiguous or requires a gradient, and its address. `gradients only` leaves
the rest of that out. Times are processor time of the thread, on the CPU.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Callable, Dict, List, Optional

import torch
from torch import Tensor, nn

from hocket.direct import Direct, functions

GRAD, DTYPE, REQUIRES = (
    getattr(Tensor, name).__get__ for name in ("grad", "dtype", "requires_grad")
)


def in_python(params: List[Tensor]) -> Optional[List[int]]:
    grads = list(map(GRAD, params))
    plain = (
        set(map(type, grads)) == {Tensor}
        and set(map(DTYPE, grads)) == {torch.float32}
        and True not in map(REQUIRES, grads)
        and False not in map(Tensor.is_contiguous, grads)
    )
    return list(map(Tensor.data_ptr, grads)) if plain else None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tensors", type=int, default=20000)
    parser.add_argument("--turns", type=int, default=5)
    given = parser.parse_args()
    torch.set_num_threads(1)
    model = nn.Sequential(*(nn.Linear(32, 32) for _ in range(given.tensors // 2)))
    params, x = list(model.parameters()), torch.randn(64, 32)
    found = functions()
    assert found is not None, "libhocket_walk is missing, or torch's functions are"
    direct = Direct(found, params, range(len(params)), [torch.float32] * len(params))
    ways: Dict[str, Callable[[], object]] = {
        "walk": direct.gradients,
        "Python": lambda: in_python(params),
        "gradients only": lambda: list(map(GRAD, params)),
    }
    times: Dict[str, List[float]] = {name: [] for name in ways}
    for _ in range(given.turns):
        for name, way in ways.items():
            model(x).square().mean().backward()
            began = time.thread_time()
            result = way()
            times[name].append(1e3 * (time.thread_time() - began))
            assert result is not None
            model.zero_grad()
            del result
    print(f"{given.tensors} tensors, {given.turns} turns; ms")
    for name, values in times.items():
        print(f"{name:<15} median {statistics.median(values):7.2f}   from {min(values):7.2f} "
              f"to {max(values):7.2f}")


main()
