#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-3.0-or-later
"""Trains the same model without and with memory borrowed from backward (hocket.AdamW(borrow=True)),
in one process. Prints one line for each run with the time of an iteration, torch's peaks and
borrowed memory, and at the end whether state and losses have the same bits.

  python3 bench/training/borrow.py --size small --deterministic      bits, a minute
  python3 bench/training/borrow.py --size 3g --micro-batch 4         speed and memory
  ... --turns 4 --plan auto                                          as planned, in turns
"""

from __future__ import annotations

import argparse
import gc
import os
import time
from typing import Any, Dict, List

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

import torch  # noqa: E402

import hocket  # noqa: E402
import workload  # noqa: E402

WARM = 4
"""Iterations before the timed ones. hocket.AdamW measures allocated memory in the second iteration,
and borrows from the third on."""
GIB = 1 << 30


def train(options: argparse.Namespace, device: torch.device, borrow: bool) -> Dict[str, Any]:
    """One run; its results."""
    shape = workload.shape(options.size, options.layers)
    model = workload.build(shape, device)
    batches = workload.batches(shape, options.micro_batch, device)
    opt = hocket.AdamW(
        model.parameters(), lr=workload.LR, betas=workload.BETAS, eps=workload.EPS,
        weight_decay=workload.WEIGHT_DECAY, max_norm=workload.MAX_NORM, overlap="both",
        plan=options.plan, gpu_memory=options.gpu_memory, borrow=borrow)
    opt.attach(model)
    losses: List[torch.Tensor] = []
    begin = 0.0
    cuda = device.type == "cuda"
    for number in range(WARM + options.iterations):
        if number == WARM:
            opt.synchronize()
            if cuda:
                torch.cuda.synchronize()
                torch.cuda.reset_peak_memory_stats()
            begin = time.perf_counter()
        factor = workload.loss_factor(options.clip, number)
        loss = workload.loss_of(model, batches[number % len(batches)], factor)
        loss.backward()
        opt.step()
        opt.zero_grad()
        losses.append(loss.detach())
        del loss
    opt.synchronize()
    if cuda:
        torch.cuda.synchronize()
    wall = (time.perf_counter() - begin) / options.iterations * 1e3
    stats = opt.stats()
    chosen = [line for line in opt.explain().splitlines() if line.startswith('plan="auto"')]
    found = {
        "wall_ms": wall, "chosen": chosen, "checksum": opt.checksum(), "losses": [float(loss) for loss in losses],
        "allocated": torch.cuda.max_memory_allocated() / GIB if cuda else 0.0,
        "reserved": torch.cuda.max_memory_reserved() / GIB if cuda else 0.0,
        "retries": torch.cuda.memory_stats()["num_alloc_retries"] if cuda else 0,
        "borrowed": stats.get("borrowed", {}), "used": stats["memory"]["lent_used_bytes"] / GIB,
        "ahead": stats["last_step"]["ahead"] / workload.parameters(model)}
    opt.binding().engine.close()
    del opt, model, batches, losses
    gc.collect()
    if cuda:
        torch.cuda.empty_cache()
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", default="toy", choices=tuple(workload.SHAPES))
    parser.add_argument("--layers", type=int)
    parser.add_argument("--micro-batch", type=int, default=4)
    parser.add_argument("--iterations", type=int, default=12)
    parser.add_argument("--clip", default="never", choices=workload.CLIPS)
    parser.add_argument("--gpu-memory", type=int)
    parser.add_argument("--plan", help="a plan file, or auto (default: no plan)")
    parser.add_argument("--turns", type=int, default=1, help="repeats both runs so many times")
    parser.add_argument("--deterministic", action="store_true")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options = parser.parse_args()
    if options.deterministic:
        torch.use_deterministic_algorithms(True)
        torch.utils.deterministic.fill_uninitialized_memory = False
    print(f"{'run':<8} {'wall ms':>8} {'peak GiB':>9} {'reserved':>9} {'retries':>7} "
          f"{'borrowed':>9} {'used':>7} {'ahead':>6}  state", flush=True)
    runs: List[Dict[str, Any]] = []
    for turn in range(2 * options.turns):
        run = train(options, torch.device(options.device), turn % 2 == 1)
        runs.append(run)
        borrowed = run["borrowed"].get("peak_bytes", 0) / GIB
        print(f"{'borrow' if turn % 2 else 'without':<8} {run['wall_ms']:8.1f} "
              f"{run['allocated']:9.3f} {run['reserved']:9.3f} {run['retries']:7} "
              f"{borrowed:9.3f} {run['used']:7.3f} {run['ahead']:6.2f}  {run['checksum']}",
              flush=True)
        for line in run["chosen"] if turn < 2 else []:
            print(f"         {line}", flush=True)
        if run["borrowed"]:
            print(f"         {run['borrowed']}", flush=True)
    same = all(run["checksum"] == runs[0]["checksum"] and run["losses"] == runs[0]["losses"]
               for run in runs)
    peaks = [max(run["allocated"] for run in runs[i::2]) for i in range(2)]
    print(f"state and losses {'are equal to the bit' if same else 'DIFFER'}"
          f"{'' if options.deterministic else ' (attention may not be deterministic)'}; "
          f"peak with borrowing: {peaks[1] - peaks[0]:+.3f} GiB")
    return 0 if same or not options.deterministic else 1


if __name__ == "__main__":
    raise SystemExit(main())
