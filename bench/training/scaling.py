#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-3.0-or-later
"""Prints the table of docs/scaling.md: what `hocket plan` predicts for a model on 1 to 64 GPUs of a
machine, with all state in host memory, and with all of it on the GPUs.

    scaling.py --model FILE|NAME --machine NAME [--micro-batch 4] [--node-gpus 8]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
from typing import Any, Dict, List, Optional

GIB = 2**30


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("--model", required=True)
    parser.add_argument("--machine", required=True)
    parser.add_argument("--micro-batch", type=int, default=4)
    parser.add_argument("--node-gpus", type=int, default=8)
    return parser.parse_args()


def plan(options: argparse.Namespace, gpus: int, *more: str) -> Optional[Dict[str, Any]]:
    """The best schedule; None if none fits."""
    on_node = min(gpus, options.node_gpus)
    done = subprocess.run(
        [os.environ.get("HOCKET_PROGRAM", "hocket"), "plan", "--json", "--runtime", "hocket",
         "--model", options.model, "--machine", options.machine, "--gpus", str(on_node),
         "--nodes", str(gpus // on_node), "--micro-batch", str(options.micro_batch), *more],
        capture_output=True, text=True, check=False)
    if done.returncode == 1:
        return None
    if done.returncode:
        raise SystemExit(done.stderr)
    found: Dict[str, Any] = json.loads(done.stdout)
    best: Dict[str, Any] = found["schedules"][found["best"]]
    return best


def cells(schedule: Optional[Dict[str, Any]]) -> List[str]:
    """Milliseconds with their 95 % interval, and thousands of tokens a second."""
    if schedule is None:
        return ["does not fit", ""]
    errors = schedule["uncertainty"]
    interval = "" if errors is None else (
        f" ({errors['iteration_low_ms']:.0f} to {errors['iteration_high_ms']:.0f})")
    return [f"{schedule['iteration_ms']:.0f}{interval}", f"{schedule['tokens_per_s'] / 1e3:.1f}"]


def main() -> None:
    options = arguments()
    print("| GPUs | state on the host, ms | k tokens/s | GiB a GPU | GiB a host | state on the "
          "GPUs, ms | k tokens/s | GiB a GPU |")
    print("|---:|---:|---:|---:|---:|---:|---:|---:|")
    for gpus in (1, 2, 4, 8, 16, 32, 64):
        host = plan(options, gpus, "--overlap", "both", "--gpu-memory", "0")
        gpu = plan(options, gpus, "--policy", "gpu-only")
        row = [str(gpus), *cells(host)]
        row.append("" if host is None else f"{host['gpu_memory']['peak_bytes'] / GIB:.1f}")
        row.append("" if host is None else f"{host['host_peak_bytes'] / GIB:.0f}")
        row += cells(gpu)
        row.append("" if gpu is None else f"{gpu['gpu_memory']['peak_bytes'] / GIB:.1f}")
        print("| " + " | ".join(row) + " |", flush=True)


if __name__ == "__main__":
    main()
