#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-3.0-or-later
"""CPU AdamW: hocket's kernel compared with torch's fused one and DeepSpeed's, in one process, on
the same memory, in a new random order each round. README.md explains the rows."""

import argparse
import ctypes
import importlib.util
import json
import mmap
import os
import platform
import random
import statistics
import sys
import time
import traceback
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LIBRARY = ROOT / "build/release/bench/libbench_adamw.so"
HYPER = {"lr": 1e-4, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.01}
STEP = 1000  # both as in bench_adamw.c
HUGE_PAGE = 2 << 20
LINE = 64

# name: bytes a parameter between processor and memory, if every pass fetches and stores once
BYTES = {
    "ceiling": 28,
    "hocket": 28,
    "torch fused": 28,
    "deepspeed": 28,
    "torch step": 40,
    "deepspeed step": 40,
    "deepspeed step, scaled": 48,
}
WRITES_WEIGHTS = ("hocket", "torch step", "deepspeed step", "deepspeed step, scaled")
MIXES = ("mix", "mix, prefetch 1024", "mix, prefetch 1024, state streamed")


def say(text):
    print(text, file=sys.stderr, flush=True)


# -- hocket ---------------------------------------------------------------------------------------


class Hocket:
    """bench_adamw.c as a shared object. Its team takes its CPUs from the calling thread's
    affinity, so it is opened before OpenMP pins that thread."""

    def __init__(self, path, threads):
        self.library = ctypes.CDLL(str(path))
        pointer = ctypes.c_void_p
        self.library.hk_bench_run.argtypes = [ctypes.c_char_p, ctypes.c_int64] + [pointer] * 6
        self.library.hk_bench_run.restype = ctypes.c_bool
        self.library.hk_bench_open(threads)

    def join(self):
        self.library.hk_bench_join()

    def case(self, name, a):
        arguments = [name.encode(), a.p.numel()]
        arguments += [t.data_ptr() for t in (a.p, a.m, a.v, a.wide, a.grad, a.w)]

        def run():
            if not self.library.hk_bench_run(*arguments):
                raise LookupError(f"bench_adamw has no case {name!r}")

        return run


# -- memory ---------------------------------------------------------------------------------------


class Arrays:
    """p, m, v and the wide gradient in fp32; gradient and weights in bf16."""

    NAMES = ("p", "m", "v", "wide", "grad", "w")

    def __init__(self, params, pages):
        types = [torch.float32] * 4 + [torch.bfloat16] * 2
        before = huge_bytes()
        if pages == "huge":
            tensors = huge_tensors(params, types)
        else:
            tensors = [torch.empty(params, dtype=t) for t in types]
        for name, tensor in zip(self.NAMES, tensors):
            setattr(self, name, tensor)
        self.fill()
        total = sum(t.nbytes for t in tensors)
        self.huge = None if before is None else min(1.0, (huge_bytes() - before) / total)

    def fill(self):
        """Repeats a short run of values: drawing all would take longer than measuring."""
        generator = torch.Generator().manual_seed(1)
        grad = (torch.randn(1 << 20, generator=generator) * 1e-3).bfloat16()
        momentum = torch.randn(1 << 20, generator=generator) * 1e-4
        pattern = {"p": momentum * 200, "m": momentum, "v": grad.float() ** 2 + 1e-8}
        pattern |= {"wide": grad.float(), "grad": grad, "w": torch.zeros_like(grad)}
        for name in self.NAMES:
            for part in getattr(self, name).split(1 << 20):
                part.copy_(pattern[name][: len(part)])


def huge_tensors(params, types):
    """One mapping, laid out as the engine's arena: one array after the other."""
    sizes = [params * t.itemsize for t in types]
    memory = mmap.mmap(-1, sum(sizes) + HUGE_PAGE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    try:
        memory.madvise(mmap.MADV_HUGEPAGE)
    except OSError as refusal:
        say(f"no huge pages: {refusal}")
    at = -torch.frombuffer(memory, dtype=torch.uint8).data_ptr() % HUGE_PAGE
    tensors = []
    for size, dtype in zip(sizes, types):
        tensors.append(torch.frombuffer(memory, dtype=dtype, count=params, offset=at))
        at += size
    return tensors


def huge_bytes():
    """Bytes of huge pages of this process; None if the system does not report them."""
    rollup = Path("/proc/self/smaps_rollup")
    for line in rollup.read_text().splitlines() if rollup.exists() else ():
        if line.startswith("AnonHugePages:"):
            return int(line.split()[1]) * 1024
    return None


# -- cases ----------------------------------------------------------------------------------------


def optimizer_step(make, a, step):
    """An optimizer's step() on the given arrays, whose state exists."""
    param = torch.nn.Parameter(a.p)
    param.grad = a.wide
    optimizer = make([param])
    optimizer.state[param].update(step=step, exp_avg=a.m, exp_avg_sq=a.v)
    return optimizer.step


def whole_step(step, a, scale=False):
    """The step with the passes of training: gradients to fp32 before, weights to bf16 after."""

    def run():
        a.wide.copy_(a.grad)
        if scale:
            a.wide.mul_(1.0)
        step()
        a.w.copy_(a.p)

    return run


def all_cases(a, hocket, cpu_adam):
    cases = {"hocket": hocket.case("adamw avx512", a)}
    fused = optimizer_step(
        lambda params: torch.optim.AdamW(params, fused=True, **HYPER), a, torch.tensor(STEP - 1.0)
    )
    cases["torch fused"] = fused
    cases["torch step"] = whole_step(fused, a)
    if cpu_adam is not None:
        step = optimizer_step(lambda params: cpu_adam(params, **HYPER), a, STEP - 1)
        cases["deepspeed"] = step
        cases["deepspeed step"] = whole_step(step, a)
        cases["deepspeed step, scaled"] = whole_step(step, a, scale=True)
    return cases


def find_cpu_adam(cpus):
    """DeepSpeedCPUAdam and how it was compiled, or None and the reason. It compiles its kernel at
    first use, on all of `cpus`, although OpenMP may have pinned this thread."""
    if importlib.util.find_spec("deepspeed") is None:
        return None, "no DeepSpeed: the package is missing"
    os.sched_setaffinity(0, cpus)
    try:
        import deepspeed
        from deepspeed.ops.adam import DeepSpeedCPUAdam
        from deepspeed.ops.op_builder import CPUAdamBuilder

        builder = CPUAdamBuilder()
        flags = " ".join(builder.strip_empty_entries(builder.cxx_args()))
        say("compiling DeepSpeed's cpu_adam, unless that was done before: some minutes")
        builder.load(verbose=False)
    except Exception as failure:  # a peer that does not build here; the others are still measured
        traceback.print_exc()
        return None, f"no DeepSpeed: {type(failure).__name__}, {str(failure).splitlines()[0]}"
    return DeepSpeedCPUAdam, f"deepspeed {deepspeed.__version__}, compiled with {flags}"


def check(hocket, cpu_adam):
    """Checks that one step of each from the same state gives the same numbers, up to rounding."""
    start, want = Arrays(1 << 16, "plain"), None
    for name in all_cases(start, hocket, cpu_adam):
        a = Arrays(1 << 16, "plain")
        all_cases(a, hocket, cpu_adam)[name]()
        want = want or a  # hocket is first
        # updates are compared, because parameters would hide a missing step
        near(name, "p", a.p - start.p, want.p - start.p, 1e-8)
        near(name, "m", a.m, want.m, 1e-10)
        near(name, "v", a.v, want.v, 1e-13)
        if name in WRITES_WEIGHTS and not torch.equal(a.w, a.p.bfloat16()):
            raise SystemExit(f"{name} does not leave bf16(p) as weights")


def near(name, what, got, want, absolute):
    if not torch.allclose(got, want, rtol=1e-4, atol=absolute):
        worst = (got - want).abs().max().item()
        raise SystemExit(f"{name} differs from hocket in {what} by {worst:.3g}: not the same AdamW")


# -- measuring ------------------------------------------------------------------------------------


def measure(cases, rounds, seed=1):
    """Seconds of each case in each round. One round before them warms up."""
    seconds = {key: [] for key in cases}
    order, chance = list(cases), random.Random(seed)
    for number in range(-1, rounds):
        say(f"round {number + 1} of {rounds}")
        chance.shuffle(order)
        for key in order:
            time.sleep(0.01)  # until the threads of the previous case no longer spin
            begin = time.perf_counter()
            cases[key]()
            taken = time.perf_counter() - begin
            if number >= 0:
                seconds[key].append(taken)
    return seconds


def spread(values):
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


def rows_of(seconds, params):
    """Rates of each (pages, name), and the speed of hocket relative to it in the same round, on the
    same pages. The ceiling is the best of its mixes."""
    mixes = {key: s for key, s in seconds.items() if key[1] in MIXES}
    best = min(mixes, key=lambda key: statistics.median(mixes[key]))
    kept = {("huge", "ceiling"): mixes[best]}
    kept |= {key: s for key, s in seconds.items() if key not in mixes}
    ceiling = BYTES["ceiling"] * params / statistics.median(mixes[best])
    rows = []
    for (pages, name), taken in kept.items():
        rate = spread([params / s for s in taken])
        gain = [s / h for s, h in zip(taken, kept[pages, "hocket"])]
        rows.append(
            {
                "case": name,
                "pages": pages,
                "params_per_s": rate,
                "bytes_per_param": BYTES[name],
                "bytes_per_s": BYTES[name] * rate["median"],
                "of_ceiling": BYTES[name] * rate["median"] / ceiling,
                "hocket_is_faster_by": spread(gain),
                "seconds": taken,
            }
        )
    return rows


# -- reporting ------------------------------------------------------------------------------------


def processor():
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.machine()


def table(result):
    shares = result["huge_pages"].items()
    huge = ", ".join(f"{pages}, {'?' if s is None else f'{s:.0%}'}" for pages, s in shares)
    lines = [
        f"{result['params'] / 1e6:g} M parameters, {result['threads']} pinned threads, medians and"
        f" extremes of {result['rounds']} rounds. {result['processor']}, torch {result['torch']}"
        f" ({result['torch_simd']}); {result['deepspeed']}. On huge pages: {huge}.",
        "",
        "| what | pages | G params/s | min - max | GB/s | of ceiling | hocket is faster by |",
        "|---|---|---:|---:|---:|---:|---:|",
    ]
    for row in result["rows"]:
        rate, gain = row["params_per_s"], row["hocket_is_faster_by"]
        lines.append(
            f"| {row['case']} | {row['pages']} | {rate['median'] / 1e9:.2f}"
            f" | {rate['min'] / 1e9:.2f} - {rate['max'] / 1e9:.2f} | {row['bytes_per_s'] / 1e9:.0f}"
            f" | {row['of_ceiling']:.2f}"
            f" | {gain['median']:.2f} ({gain['min']:.2f} - {gain['max']:.2f}) |"
        )
    return "\n".join(lines)


def parse():
    parser = argparse.ArgumentParser(description=__doc__)
    cpus = len(os.sched_getaffinity(0))
    parser.add_argument("--params", type=int, default=1 << 27, help="2^27 unless given")
    parser.add_argument("--threads", type=int, default=cpus, help="as many as CPUs unless given")
    parser.add_argument("--rounds", type=int, default=9, help="9 unless given")
    parser.add_argument("--library", type=Path, default=LIBRARY, help="libbench_adamw.so")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of the table")
    parser.add_argument("-o", type=Path, metavar="FILE", help="write that object to FILE, too")
    options = parser.parse_args()
    if options.params < LINE or options.threads < 1 or options.rounds < 1:
        parser.error(f"at least {LINE} parameters, 1 thread and 1 round")
    if not options.library.exists():
        parser.error(f"no {options.library}: README.md says how to build it")
    options.params -= options.params % LINE  # whole cache lines of every array
    return options


def main():
    options = parse()
    cpus = os.sched_getaffinity(0)
    # OpenMP reads these and pins this thread when torch loads it: after hocket's team is there.
    os.environ.update(
        OMP_NUM_THREADS=str(options.threads), OMP_PROC_BIND="true", OMP_PLACES="cores"
    )
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    hocket = Hocket(options.library, options.threads)
    global torch
    import torch

    cpu_adam, deepspeed = find_cpu_adam(cpus)
    if cpu_adam is None:
        say(deepspeed)
    hocket.join()
    check(hocket, cpu_adam)
    cases, huge = {}, {}
    for pages in ("huge", "plain"):
        a = Arrays(options.params, pages)
        huge[pages] = a.huge
        if pages == "huge":
            cases |= {(pages, mix): hocket.case(mix, a) for mix in MIXES}
        cases |= {(pages, name): c for name, c in all_cases(a, hocket, cpu_adam).items()}
    result = {
        "schema": "hocket.adamw_peers/1",
        "params": options.params,
        "threads": options.threads,
        "rounds": options.rounds,
        "processor": processor(),
        "torch": torch.__version__,
        "torch_simd": torch.backends.cpu.get_cpu_capability(),
        "deepspeed": deepspeed,
        "huge_pages": huge,
        "rows": rows_of(measure(cases, options.rounds), options.params),
    }
    text = json.dumps(result, indent=1)
    if options.o:
        options.o.write_text(text + "\n")
    print(text if options.json else table(result))


if __name__ == "__main__":
    main()
