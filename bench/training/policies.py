#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-3.0-or-later
"""The searched plan beside the best plan of each policy: without overlap the update alone, then
iterations.

Usage: policies.py [--size 3g] [--micro-batch 4] [--overlap none] [--gpu-memory 9.5e9] [--search 6]
                   [--rounds 2] [--steps 8] [--iterations 8] [--backend cuda] [--budget 300] [--out OUT]

1. `hocket plan --policy NAME` and `hocket plan --search SECONDS` make a plan file each for the model
   as hocket.profile measures it. Policies that do not fit are named.
2. With overlap none, `hocket run` times the update of each plan in turns, every round in a new random
   order. A plan that takes more than TOO_SLOW times as long as the searched one is not run again. With
   another overlap the times of updates alone say nothing: there nothing runs ahead or beside a forward.
3. train.py trains with the searched plan and with each policy's that is at most NEAR times as long
   by prediction, in turns.

$HOCKET_MACHINE names the profile. The last thing printed is a table each, with the ratio to the
searched plan in the same round; OUT/policies.json has all times. Exits 3 if a run failed."""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import time
from typing import Any, Dict, List

import plans

HERE = pathlib.Path(__file__).resolve().parent
SEARCHED = "searched"
TOO_SLOW = 2.0
NEAR = 1.25


def profile(given: argparse.Namespace, path: pathlib.Path) -> None:
    """Writes the model's document, as measured on the device."""
    import torch

    import workload

    device = torch.device("cuda" if given.backend == "cuda" else "cpu")
    found = plans.measured(workload.shape(given.size, None), given.micro_batch, device)
    path.write_text(json.dumps(found))


def planned(given: argparse.Namespace) -> Dict[str, Dict[str, Any]]:
    """Forecasts of the plans that fit, by name; their files are OUT/plans/NAME.json."""
    folder = pathlib.Path(given.out) / "plans"
    folder.mkdir(parents=True, exist_ok=True)
    model = folder / "model.json"
    # A process of its own, so that the model's memory is free afterwards.
    subprocess.run([sys.executable, __file__, *sys.argv[1:]], check=True,
                   env={**os.environ, "HOCKET_POLICIES_MODEL": str(model)})
    job = ["plan", "--model", str(model), "--machine", plans.machine(), "--gpus", "1",
           "--overlap", given.overlap, "--gpu-memory", str(int(given.gpu_memory)), "--quiet"]
    found: Dict[str, Dict[str, Any]] = {}
    for name in (SEARCHED, *plans.POLICIES):
        path = folder / f"{name}.json"
        path.unlink(missing_ok=True)
        how = ["--search", str(given.search)] if name == SEARCHED else [
            "--policy", name, "--runtime", "hocket"]
        plans.run([*job, *how, "-o", str(path)])
        if path.exists():
            found[name] = plans.run(["simulate", str(path)])
            print(f"{name}: update {found[name]['update_ms']:.1f} ms, iteration "
                  f"{plans.period(found[name]):.1f}", file=sys.stderr, flush=True)
        else:
            print(f"{name}: does not fit", file=sys.stderr, flush=True)
    return found


def updates(given: argparse.Namespace, names: List[str]) -> Dict[str, List[float]]:
    """Median times of the update alone, a figure a round; checks that all end with equal bits."""
    times: Dict[str, List[float]] = {name: [] for name in names}
    checksums = set()

    def left(turn: int) -> List[str]:
        return [name for name in names
                if turn == 0 or times[name][0] <= TOO_SLOW * times[SEARCHED][0]]

    for _, name in plans.turns(left, given.rounds, given.budget / 2):
        path = pathlib.Path(given.out) / "plans" / f"{name}.json"
        answer = plans.run(["run", str(path), "--backend", given.backend, "--steps",
                            str(given.steps), "--quiet"])
        times[name].append(answer["update_ms"]["median"])
        checksums.add(answer["checksum"])
        print(f"{name}: {times[name][-1]:.1f} ms", file=sys.stderr, flush=True)
    if len(checksums) > 1:
        raise RuntimeError(f"plans end with different bits: {sorted(checksums)}")
    return times


def iterations(given: argparse.Namespace, names: List[str], seconds: float) -> Dict[str, List[float]]:
    """Mean times of iterations without the first and the last, a figure a round."""
    out = pathlib.Path(given.out) / "iterations"
    files = {str((pathlib.Path(given.out) / "plans" / f"{name}.json").resolve()): name
             for name in names}
    rows = {f"hocket-{given.overlap}+plan={path}+gpu_memory={int(given.gpu_memory)}": name
            for path, name in files.items()}
    order = [row for turn in range(given.rounds) for row in list(rows)[::1 if turn % 2 == 0 else -1]]
    subprocess.run(
        [sys.executable, str(HERE / "train.py"), "--size", given.size, "--rows", ",".join(order),
         "--micro-batches", str(given.micro_batch), "--clip", "never", "--iterations",
         str(given.iterations), "--no-yardstick", "--budget", str(int(seconds)), "--out", str(out),
         *(["--device", "cpu"] if given.backend == "host" else [])],
        stdout=subprocess.DEVNULL, check=False)
    times: Dict[str, List[float]] = {name: [] for name in names}
    for entry in json.loads((out / "results.json").read_text())["entries"]:
        if entry["event"] == "row" and entry.get("each_ms"):
            middle = entry["each_ms"][1:-1] or entry["each_ms"]
            times[rows[entry["row"]]].append(sum(middle) / len(middle))
        elif entry["event"] in ("failed", "killed", "skipped"):
            print(f"{entry['row']}: {entry['event']}: {entry['why']}", file=sys.stderr)
    return times


def table(title: str, times: Dict[str, List[float]], predicted: Dict[str, float]) -> str:
    """A line a plan, the fastest by prediction first."""
    lines = [f"| {title} | ms, by rounds | predicted (error) | of the searched plan's, by rounds |",
             "|---|---:|---:|---:|"]
    for name in sorted(times, key=lambda name: predicted[name]):
        if not times[name]:
            continue
        error = predicted[name] / statistics.mean(times[name]) - 1
        ratios = ", ".join(f"{a / b:.3f}" for a, b in zip(times[name], times[SEARCHED]))
        lines.append(f"| {name} | {', '.join(f'{ms:.1f}' for ms in times[name])} | "
                     f"{predicted[name]:.1f} ({error:+.1%}) | {ratios} |")
    return "\n".join(lines)


def main(arguments: List[str]) -> int:
    """Runs, prints and writes."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", default="3g")
    parser.add_argument("--micro-batch", type=int, default=4)
    parser.add_argument("--overlap", choices=("none", "forward", "both"), default="none")
    parser.add_argument("--gpu-memory", type=float, default=9.5e9, help="bytes")
    parser.add_argument("--search", type=float, default=6, help="seconds")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--iterations", type=int, default=8, help="0: the update alone")
    parser.add_argument("--backend", choices=("cuda", "host"), default="cuda")
    parser.add_argument("--budget", type=float, default=300, help="seconds for all")
    parser.add_argument("--out", default="policies-out")
    given = parser.parse_args(arguments)
    if "HOCKET_POLICIES_MODEL" in os.environ:
        profile(given, pathlib.Path(os.environ["HOCKET_POLICIES_MODEL"]))
        return 0
    began = time.monotonic()
    result: Dict[str, Any] = {"schema": "hocket.policies/1", "options": vars(given),
                              "commit": os.environ.get("HOCKET_COMMIT", "")}
    try:
        found = planned(given)
        result["predicted"] = {name: {"update_ms": f["update_ms"], "iteration_ms": plans.period(f)}
                               for name, f in found.items()}
        result["update_ms"] = updates(given, list(found)) if given.overlap == "none" else {}
        near = [name for name in found
                if plans.period(found[name]) <= NEAR * plans.period(found[SEARCHED])]
        left = given.budget - (time.monotonic() - began)
        result["iteration_ms"] = iterations(given, near, left) if given.iterations else {}
    except (RuntimeError, subprocess.CalledProcessError) as error:
        print(error, file=sys.stderr)
        return 3
    finally:
        (pathlib.Path(given.out) / "policies.json").write_text(json.dumps(result, indent=1) + "\n")
    for key, title in (("update_ms", "update alone"), ("iteration_ms", "iteration")):
        if result[key]:
            print(table(title, result[key], {n: p[key] for n, p in result["predicted"].items()}))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
