# SPDX-License-Identifier: GPL-3.0-or-later
"""What a rank does in an iteration, by phase and kind: for ranks.py --record.

Phases are forward, backward, clip and step, by events on the stream that computes, and by the
host's clock at the same points; on a CPU only by the latter. Kernels are those of torch's profiler
with the GPU's activities alone, so that it hardly delays the host. A kernel of known end stands at
the beginning of the first iteration, and so phases and kernels are on one clock.

"idle" is time of a phase in which nothing runs on the stream that computes. In the part "idle,
collective" a collective's kernel runs on another stream. In the rest the stream waits for the host,
or for copies."""

from __future__ import annotations

import resource
import statistics
import time
from collections import Counter, defaultdict
from typing import Any, Callable, Dict, List, NamedTuple, Sequence, Tuple

PHASES = ("forward", "backward", "clip", "step")
COLLECTIVES = ("all-gather", "reduce-scatter", "other collectives")
KINDS = (  # the first whose word is in a name, in small letters
    ("all-gather", ("nccldevkernel_allgather",)),
    ("reduce-scatter", ("nccldevkernel_reducescatter",)),
    ("other collectives", ("nccl",)),
    ("copies, host", ("memcpy htod", "memcpy dtoh")),
    ("copies, FSDP", ("split_with_sizes", "chunk_cat", "memcpy dtod")),
    ("attention", ("flash", "fmha", "attention", "sdpa")),
    ("products", ("gemm", "nvjet", "cutlass", "xmma", "cublas")),
    ("optimizer", ("fusedadam", "lpnorm", "hk_", "adamw")),
    ("foreach", ("multi_tensor",)),
)


def kind_of(name: str) -> str:
    """Kind of a kernel or copy by its name."""
    small = name.lower()
    return next((kind for kind, words in KINDS if any(w in small for w in words)), "elementwise")


class Marks:
    """The ends of phases in some iterations, on the stream and on the host."""

    def __init__(self, device: Any) -> None:
        import torch

        self._torch = torch if device.type == "cuda" else None
        self.host: List[List[float]] = []
        self.threads: List[List[Tuple[float, int, float]]] = []
        self.events: List[List[Any]] = []

    def begin(self) -> None:
        """An iteration begins."""
        self.host.append([])
        self.threads.append([])
        self.events.append([])
        self.mark()

    def mark(self) -> None:
        """A phase ends."""
        if self._torch is not None:
            event = self._torch.cuda.Event(enable_timing=True)
            event.record()
            self.events[-1].append(event)
        self.host[-1].append(time.perf_counter())
        used = resource.getrusage(resource.RUSAGE_THREAD)
        self.threads[-1].append((used.ru_utime + used.ru_stime, used.ru_nivcsw,
                                 time.process_time()))

    def gpu_ms(self) -> List[List[float]]:
        """Milliseconds from the first mark, on the stream; on a CPU on the host."""
        if self._torch is None:
            return self.host_ms()
        first = self.events[0][0]
        return [[first.elapsed_time(event) for event in events] for events in self.events]

    def host_ms(self) -> List[List[float]]:
        """The same by the host's clock."""
        first = self.host[0][0]
        return [[1e3 * (moment - first) for moment in moments] for moments in self.host]

    def thread(self) -> Dict[str, Dict[str, float]]:
        """Of the thread that calls: milliseconds in which it ran, and how often another thread took
        its core. A phase in which it ran for less than it lasted, and was not waiting, shared its
        core; if it ran throughout, its core was slow."""
        return {name: phases([[scale * each[n] for each in moments] for moments in self.threads])
                for n, name, scale in ((0, "ran_ms", 1e3), (1, "lost_core", 1))}


def phases(ends: Sequence[Sequence[float]]) -> Dict[str, float]:
    """Medians of the phases' durations; "between": from the end of step to the next forward."""
    found = {name: statistics.median(each[n + 1] - each[n] for each in ends)
             for n, name in enumerate(PHASES)}
    gaps = [after[0] - before[-1] for before, after in zip(ends, ends[1:])]
    found["between"] = statistics.median(gaps) if gaps else 0.0
    return {name: round(value, 2) for name, value in found.items()}


def slowest(marks: Marks) -> Dict[str, Any]:
    """Phases of the slowest iteration but the last: on the stream, on the host, and the time in
    which its thread and all threads ran."""
    if len(marks.host) < 2:
        return {}
    ends = marks.gpu_ms()
    at = max(range(len(ends) - 1), key=lambda n: ends[n + 1][0] - ends[n][0])
    clocks = {"gpu_ms": ends, "host_ms": marks.host_ms(),
              **{name: [[1e3 * float(each[n]) for each in moments] for moments in marks.threads]
                 for n, name in ((0, "ran_ms"), (2, "all_threads_ms"))}}
    return {"iteration": at, **{
        name: {**phases(clock[at:at + 1]), "between": round(clock[at + 1][0] - clock[at][-1], 2)}
        for name, clock in clocks.items()}}


class Activity(NamedTuple):
    """A kernel or a copy; times in milliseconds from the first mark."""

    name: str
    stream: int
    begin: float
    end: float


def merged(spans: Sequence[Tuple[float, float]]) -> List[Tuple[float, float]]:
    """Their union, in order."""
    found: List[Tuple[float, float]] = []
    for begin, end in sorted(spans):
        if found and begin <= found[-1][1]:
            found[-1] = (found[-1][0], max(end, found[-1][1]))
        else:
            found.append((begin, end))
    return found


def inside(spans: Sequence[Tuple[float, float]], begin: float, end: float) -> float:
    """Length of the parts of disjoint spans between two times."""
    return sum(max(0.0, min(b, end) - max(a, begin)) for a, b in spans)


def both(ones: Sequence[Tuple[float, float]],
         others: Sequence[Tuple[float, float]]) -> List[Tuple[float, float]]:
    """Where two lists of disjoint spans, in order, overlap."""
    found: List[Tuple[float, float]] = []
    i = j = 0
    while i < len(ones) and j < len(others):
        begin, end = max(ones[i][0], others[j][0]), min(ones[i][1], others[j][1])
        if begin < end:
            found.append((begin, end))
        if ones[i][1] < others[j][1]:
            i += 1
        else:
            j += 1
    return found


def by_kind(activities: Sequence[Activity],
            ends: Sequence[Sequence[float]]) -> Dict[str, Dict[str, float]]:
    """For each phase: milliseconds an iteration of each kind, and of idle time. Kernels of streams
    other than the computing one, collectives and copies with the host excepted, are "beside: KIND".
    The mean of the iterations but the first."""
    if not activities or len(ends) < 2:
        return {}
    streams = Counter(a.stream for a in activities if kind_of(a.name) == "products")
    computing = (streams or Counter(a.stream for a in activities)).most_common(1)[0][0]
    groups: Dict[str, List[Tuple[float, float]]] = defaultdict(list)
    for a in activities:
        kind = kind_of(a.name)
        apart = a.stream != computing and kind not in COLLECTIVES and kind != "copies, host"
        groups[f"beside: {kind}" if apart else kind].append((a.begin, a.end))
    busy = merged([(a.begin, a.end) for a in activities if a.stream == computing])
    idle = [(before[1], after[0]) for before, after in zip(busy, busy[1:])]
    collectives = merged([span for kind in COLLECTIVES for span in groups.get(kind, [])])
    groups["idle"] = idle
    groups["idle, collective"] = both(idle, collectives)
    groups["busy"] = busy
    found: Dict[str, Dict[str, float]] = {}
    for n, name in enumerate(PHASES):
        windows = [(each[n], each[n + 1]) for each in ends[1:]]
        found[name] = {}
        for kind, spans in groups.items():
            joined = merged(spans)
            total = sum(inside(joined, *window) for window in windows) / len(windows)
            if total >= 0.005:
                found[name][kind] = round(total, 2)
    return found


def profiled(iterate: Callable[[Marks], None], device: Any, count: int) -> Dict[str, Any]:
    """Runs `iterate`, which trains one iteration and marks its phases, `count` times under the
    profiler. Returns the phases and kinds; on a CPU only the phases."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    marks = Marks(device)
    if device.type != "cuda":
        for _ in range(count):
            iterate(marks)
        return {"phases": phases(marks.gpu_ms()), "host": phases(marks.host_ms()), "kinds": {}}
    anchor = torch.zeros(1024, device=device)
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as found:
        anchor.fill_(1.0)
        for _ in range(count):
            iterate(marks)
        torch.cuda.synchronize()
    ends = marks.gpu_ms()
    try:
        activities = activities_of(found)
    except Exception as error:  # noqa: BLE001  (the rows that follow are worth more)
        print(f"nothing of the profiler: {error}", flush=True)
        activities = []
    return {"phases": phases(ends), "host": phases(marks.host_ms()),
            "kinds": by_kind(activities, ends),
            "names": longest(activities, count)}


def activities_of(found: Any) -> List[Activity]:
    """What the profiler saw on the GPU, with times from the end of the first kernel."""
    import torch

    gpu = torch.autograd.DeviceType.CUDA
    seen = sorted(((e.time_range.start / 1e3, e.time_range.end / 1e3, e.name,
                    int(getattr(e, "device_resource_id", 0))) for e in found.events()
                   if e.device_type == gpu))
    first = seen[0][1] if seen else 0.0
    return [Activity(name, stream, begin - first, end - first)
            for begin, end, name, stream in seen[1:]]


def longest(activities: Sequence[Activity], count: int) -> Dict[str, List[float]]:
    """Milliseconds and number an iteration of the names that take most."""
    names: Dict[str, List[float]] = defaultdict(lambda: [0.0, 0])
    for a in activities:
        names[a.name[:120]][0] += (a.end - a.begin) / count
        names[a.name[:120]][1] += 1 / count
    most = sorted(names, key=lambda name: -names[name][0])[:40]
    return {name: [round(value, 3) for value in names[name]] for name in most}


def table(row: str, ranks: Sequence[Dict[str, Any]], predicted: Dict[str, float]) -> str:
    """Measured against predicted of one row: all ranks, and the prediction."""
    heads = "".join(f"{f'rank {n}':>9}" for n in range(len(ranks)))
    lines = [f"{row}, ms an iteration", f"  {'':34}{heads}{'predicted':>11}"]

    def line(name: str, values: Sequence[float], key: str) -> None:
        known = f"{predicted[key]:11.1f}" if key in predicted else " " * 11
        if any(values) or key in predicted:
            lines.append(f"  {name:34}" + "".join(f"{v:9.1f}" for v in values) + known)

    line("iteration, not profiled", [r["wall_ms"] for r in ranks], "iteration")
    for name in (*PHASES, "between"):
        line(name, [r["plain"]["phases"][name] for r in ranks], name)
        line(f"  host, {name}", [r["plain"]["host"][name] for r in ranks], f"host, {name}")
    for name in PHASES:
        each = [r["profiled"]["kinds"].get(name, {}) for r in ranks]
        for kind in sorted({kind for kinds in each for kind in kinds},
                           key=lambda k: -max(kinds.get(k, 0.0) for kinds in each)):
            line(f"{name}: {kind}", [kinds.get(kind, 0.0) for kinds in each], f"{name}: {kind}")
    line("iteration under the profiler", [sum(r["profiled"]["phases"].values()) for r in ranks], "")
    sums: List[Counter[str]] = [Counter() for _ in ranks]
    for total, r in zip(sums, ranks):
        for kinds in r["profiled"]["kinds"].values():
            total.update(kinds)
        total["collectives"] = sum(total[kind] for kind in COLLECTIVES)
        host = r["plain"]["host"]
        total["launches"] = host["forward"] + host["backward"]
    for kind in ("busy", "collectives", "launches"):
        line(f"all: {kind}", [total[kind] for total in sums], f"all: {kind}")
    return "\n".join(lines)
