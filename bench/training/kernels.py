#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the GPU does in an iteration of each row: time of its kernels and copies, by name.

Usage: kernels.py [--iterations 3] OPTIONS-OF-train.py

Each row runs `iterations` iterations, then one more under torch's profiler, with the first number of
--accumulate and the first --clip. The table has the milliseconds of the names that differ most
between a row and the first one, the sum of all kernels, the gaps between kernels of the busiest
stream by their length, and the time from the first kernel's start to the last one's end. The
profiler makes launches slower, and now and then empties its buffers, so that the last figure and
the longest gaps are none of an iteration; kernels take as long as without it. JSON goes to
OUT/kernels.json.
"""

from __future__ import annotations

import bisect
import itertools
import json
import pathlib
import sys
from collections import defaultdict
from typing import Any, Dict, List, Tuple

import rows
import torch
import train
import worker
from torch.profiler import ProfilerActivity, profile

SHOWN = 14
GAPS_US = (10, 200, 1000)
"""Gaps are summed below and between these lengths, and above."""


def gaps(kernels: List[Tuple[float, float]]) -> List[float]:
    """Milliseconds between kernels, given by begin and end in microseconds, by length."""
    sums = [0.0] * (len(GAPS_US) + 1)
    ordered = sorted(kernels)
    ends = itertools.accumulate((end for _, end in ordered), max)
    for end, (begin, _) in zip(ends, ordered[1:]):
        if begin > end:
            sums[bisect.bisect(GAPS_US, begin - end)] += (begin - end) / 1e3
    return [round(value, 2) for value in sums]


def spans(found: Any, device: Any) -> Dict[str, Any]:
    """Milliseconds and number of the device's activities by name, gaps, and their extent."""
    names: Dict[str, List[float]] = defaultdict(lambda: [0.0, 0])
    streams: Dict[int, List[Tuple[float, float]]] = defaultdict(list)
    begin, end = float("inf"), 0.0
    for event in found.events():
        if event.device_type != device:
            continue
        name = event.name.split("<")[0].split("(")[0][:60]
        names[name][0] += event.time_range.elapsed_us() / 1e3
        names[name][1] += 1
        begin, end = min(begin, event.time_range.start), max(end, event.time_range.end)
        if not name.startswith("Mem"):
            streams[event.device_resource_id].append((event.time_range.start, event.time_range.end))
    copies = {name: v for name, v in names.items() if name.startswith("Mem")}
    return {"names": {name: [round(v[0], 3), int(v[1])] for name, v in names.items()},
            "gaps_ms": gaps(max(streams.values(), key=len, default=[])),
            "kernels_ms": round(sum(v[0] for name, v in names.items() if name not in copies), 2),
            "extent_ms": round((end - begin) / 1e3, 2)}


def measure(spec: str, given: Any, count: int) -> Dict[str, Any]:
    """One row."""
    name, settings = rows.parse(spec)
    job = rows.Job(given)
    job.spec = spec
    row = rows.ROWS[name](job, settings)
    case = worker.cases(given)[0]
    worker.iterate(row, job, case, count, 1, float("inf"))
    kind = "CUDA" if job.device.type == "cuda" else "CPU"
    with profile(activities=[getattr(ProfilerActivity, kind)]) as found:
        worker.iterate(row, job, case, 1, 0, float("inf"))  # waits for the device
    result = spans(found, getattr(torch.autograd.DeviceType, kind))
    row.close()
    return result


def table(measured: Dict[str, Dict[str, Any]]) -> str:
    """Rows are columns."""
    first = next(iter(measured.values()))["names"]
    names = sorted({name for found in measured.values() for name in found["names"]}, key=lambda n: -max(
        abs(found["names"].get(n, [0, 0])[0] - first.get(n, [0, 0])[0]) for found in measured.values()))
    lines = [f"{i}: {spec}" for i, spec in enumerate(measured)]
    for name in names[:SHOWN]:
        lines.append(f"{name:60s}" + "".join(
            "{:10.2f} x{:<5d}".format(*found["names"].get(name, [0.0, 0]))
            for found in measured.values()))
    figures = {key: [found[key] for found in measured.values()] for key in ("kernels_ms", "extent_ms")}
    limits = (*(f"gaps below {us} us, ms" for us in GAPS_US), "longer gaps, ms")
    for i, name in enumerate(limits):
        figures[name] = [found["gaps_ms"][i] for found in measured.values()]
    for name, values in figures.items():
        lines.append(f"{name:60s}" + "".join(f"{value:10.2f}       " for value in values))
    return "\n".join(lines)


def main(arguments: List[str]) -> int:
    given = train.options(arguments)
    out = pathlib.Path(given.out)
    out.mkdir(parents=True, exist_ok=True)
    measured: Dict[str, Dict[str, Any]] = {}
    for number, spec in enumerate(given.rows):
        measured[f"{spec}#{number}"] = measure(spec, given, given.iterations)
        torch.cuda.empty_cache()
        (out / "kernels.json").write_text(json.dumps(measured) + "\n")
    print(table(measured))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
