#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-3.0-or-later
"""Trains under difficult conditions for an engine beside the framework: one hardware queue,
blocking launches, an allocator that frees its cache and allocates again, full launch queues,
signals, a failing device, many streams, a second GPU, the examples at real size.

Each case is a process of its own with a time limit. It trains the same model on the same data as
the case `plain` (hocket.AdamW not attached, overlap none) and compares all losses and the bits of
all weights with it. Prints a table at the end; exit 0 if no case failed.

    python3 bench/training/conditions.py --device cpu                 # any machine, toy size
    FOLDER/run conditions --out OUT                                   # on a node; FOLDER: see pack
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import gc
import io
import json
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time
import traceback
from typing import Any, Callable, Dict, List, NamedTuple, Optional

from conditions_world import (HERE, IN_TIME_S, SIZES, STEPS, Beside, Failed, Skipped, Waits, World,
                              examples, expect, plain_file)

# -- Cases ---------------------------------------------------------------------------------------


def need_cuda(given: argparse.Namespace) -> None:
    """Raises Skipped on the host backend."""
    if given.device == "cpu":
        raise Skipped("CUDA only")


def plain(given: argparse.Namespace) -> str:
    """The reference for the other cases."""
    world = World(given, attached=False)
    for _ in range(STEPS):
        world.step()
    plain_file(given).write_text(json.dumps(world.answer()))
    return f"{sum(p.numel() for p in world.model.parameters()) / 1e6:.1f} M parameters"


def attached(given: argparse.Namespace) -> str:
    """Trains attached; the condition is in the environment."""
    for overlap in ("forward", "both"):
        world = World(given, overlap=overlap)
        for _ in range(STEPS):
            world.step()
        world.compare()
    return "overlap forward, overlap both"


def allocator(given: argparse.Namespace) -> str:
    """The allocator frees its cache and allocates again, or its cache is emptied, in forward and
    during waits for weights."""
    need_cuda(given)
    world = World(given)
    torch, mib, lock, turn = world.torch, 1 << 20, threading.Lock(), [0]
    world.step()
    world.opt.synchronize()
    torch.cuda.synchronize()
    room = torch.cuda.memory_reserved() + 3072 * mib
    torch.cuda.set_per_process_memory_fraction(
        room / torch.cuda.get_device_properties(0).total_memory)

    def press(*_: Any) -> None:
        with lock:
            turn[0] += 1
            if turn[0] % 3 == 0:
                torch.cuda.empty_cache()
                return
            with torch.cuda.stream(torch.cuda.Stream()):
                blocks = [torch.empty(512 * mib, dtype=torch.uint8, device="cuda")
                          for _ in range(4)]
                del blocks
                torch.empty(2304 * mib, dtype=torch.uint8, device="cuda")

    before = torch.cuda.memory_stats()["num_alloc_retries"]
    beside = Beside(Waits(), press)
    handle = world.model.layers[1].register_forward_pre_hook(press)
    for _ in range(STEPS - 1):
        world.step()
    during = beside.stop()
    handle.remove()
    retries = torch.cuda.memory_stats()["num_alloc_retries"] - before
    torch.cuda.set_per_process_memory_fraction(1.0)
    world.compare()
    expect(during > 0, "no wait took long enough to act beside it")
    expect(retries > 0, "the allocator never had to free its cache and ask again")
    return f"{retries} retries; acted beside {during} waits"


def launches(given: argparse.Namespace) -> str:
    """More launches are queued than a hardware queue holds, before step() and after it."""
    world = World(given)
    torch = world.torch
    count = 4000 if given.device != "cpu" else 100
    scratch = torch.zeros(64, device=world.device)

    def queue() -> None:
        if given.device != "cpu":
            torch.cuda._sleep(100_000_000)  # cycles: some 0.05 s
        for _ in range(count):
            scratch.add_(1.0)

    for _ in range(STEPS):
        world.step(queue)
        queue()
    world.compare()
    expect(float(scratch[0]) == 2.0 * count * STEPS, "queued kernels were lost")
    return f"{2 * count} launches a step"


INTERRUPTED = 130
"""Exit status of a process that an interrupt has ended. (A KeyboardInterrupt that nobody catches
ends Python by a signal or with 1, by version.)"""


def interrupt(given: argparse.Namespace) -> str:
    """After a caught SIGINT during a wait, training continues to the same bits. A second SIGINT
    ends the process; the parent checks its exit status."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    world, waits, sent = World(given), Waits(), [0.0]

    def send() -> None:
        sent[0] = time.perf_counter()
        os.kill(os.getpid(), signal.SIGINT)

    world.step()
    world.step()
    beside, late, caught = Beside(waits, send, 1), 0.0, 0
    while len(world.losses) < STEPS:
        try:
            world.step()
        except KeyboardInterrupt:
            late, caught = time.perf_counter() - sent[0], caught + 1
            world.opt.zero_grad()
    expect(beside.stop() == 1 and caught == 1, f"{caught} interrupts, {beside.done} sent")
    expect(late < IN_TIME_S, f"the interrupt took {late:.1f} s")
    world.compare()
    report(given, "ok", f"KeyboardInterrupt after {late * 1e3:.0f} ms, then the same bits; the "
           "next one ended the process")
    Beside(waits, send, 1)
    begin = time.perf_counter()
    try:
        while time.perf_counter() - begin < 2 * IN_TIME_S:
            world.losses.clear()  # from the first batch again
            world.step()
    except KeyboardInterrupt as end:
        raise SystemExit(INTERRUPTED) from end
    raise Failed("the second interrupt had no effect")


def after_failure(world: World, said: str) -> str:
    """After a failure: steps are refused, state can be saved or is refused, nothing hangs."""
    import hocket

    for name, call in (("step", world.opt.step), ("state", world.opt.state_dict)):
        try:
            world.model.head.weight.grad = world.torch.zeros_like(world.model.head.weight)
            call()
            expect(name == "state", "step() did not fail after the failure")
        except (hocket.HocketError, RuntimeError):
            pass
    return said[:160]


def device_fails(given: argparse.Namespace) -> str:
    """The device fails while the main thread waits for weights. On CUDA: an assertion in a kernel
    that another thread launches. On the host backend: a kernel (HOCKET_HOST_FAULT)."""
    import hocket

    if given.device == "cpu":
        return host_fails(given)
    world, waits = World(given), Waits()
    torch = world.torch
    world.step()
    world.step()

    def fail() -> None:
        with torch.cuda.stream(torch.cuda.Stream()):
            one = torch.zeros(1, device="cuda")
            one[torch.full((1,), 7, device="cuda", dtype=torch.long)]

    beside = Beside(waits, fail, 1)
    begin, said = time.perf_counter(), ""
    while not said and time.perf_counter() - begin < 4 * IN_TIME_S:
        try:
            world.losses.clear()
            world.step()
        except (hocket.HocketError, RuntimeError) as error:
            said = f"{type(error).__name__}: {error}".splitlines()[0]
    expect(beside.done == 1, "there was no wait to fail beside")
    expect(said != "", "no error was raised")
    return after_failure(world, said)


def host_fails(given: argparse.Namespace) -> str:
    """Lets a later kernel fail in each try, until the main thread waits for the failing one."""
    import hocket

    waits, others = Waits(), 0
    try:
        for after in range(31, 80):
            os.environ["HOCKET_HOST_FAULT"] = f"kernel:{after}"
            world = World(given)
            try:
                while len(world.losses) < STEPS:
                    world.step()
            except hocket.HocketError as error:
                expect(error.code == 3, f"code {error.code}: {error}")
                if waits.raised:
                    return after_failure(world, str(error))
                others += 1
    finally:
        del os.environ["HOCKET_HOST_FAULT"]
    raise Failed(f"none of {others} failures was in a wait")


def streams(given: argparse.Namespace) -> str:
    """Every layer of every step computes on a stream of its own: 64 streams hand over gradients and
    wait for weights."""
    need_cuda(given)
    world = World(given)
    layers, each = len(world.model.layers), 64 // STEPS
    every = [world.torch.cuda.ExternalStream(handle) for handle in open_streams(world.torch, 64)]
    for step in range(STEPS):
        world.model.streams = every[step * each:(step + 1) * each]
        world.step()
    world.compare()
    return f"64 streams, {min(layers, each)} a step"


def open_streams(torch: Any, count: int) -> List[int]:
    """Opens streams with the CUDA runtime, because torch's own pool has 32."""
    import ctypes

    library = next((path for path in (line.split()[-1] for line in open("/proc/self/maps"))
                    if "libcudart" in path), None)
    expect(library is not None, "libcudart is not loaded")
    runtime = ctypes.CDLL(library)
    found: List[int] = []
    for _ in range(count):
        stream = ctypes.c_void_p()
        status = runtime.cudaStreamCreateWithFlags(ctypes.byref(stream), 1)  # not blocking
        expect(status == 0 and stream.value is not None, f"cudaStreamCreate: error {status}")
        found.append(int(stream.value or 0))
    torch.cuda.synchronize()
    return found


def second_gpu(given: argparse.Namespace) -> str:
    """The model is on cuda:1 while the current device is cuda:0."""
    need_cuda(given)
    import torch

    if torch.cuda.device_count() < 2:
        raise Skipped("one GPU")
    world = World(given, "cuda:1")
    for _ in range(STEPS):
        world.step()
        expect(torch.cuda.current_device() == 0, "the current device has changed")
    world.compare()
    return torch.cuda.get_device_name(1)


TAKER = """
import sys, torch
free = torch.cuda.mem_get_info()[0]
held = torch.empty(free - (64 << 20), dtype=torch.uint8, device="cuda")
print("taken", flush=True)
sys.stdin.read()
"""


def memory_taken(given: argparse.Namespace) -> str:
    """Another process takes all free GPU memory between two steps. The next forward ends with
    torch's out-of-memory error, the state can be saved, and training resumes from it to the same
    bits."""
    need_cuda(given)
    world = World(given)
    torch, half = world.torch, STEPS // 2
    for _ in range(half):
        world.step()
    world.opt.synchronize()
    torch.cuda.empty_cache()
    other = subprocess.Popen([sys.executable, "-c", TAKER], stdin=subprocess.PIPE,
                             stdout=subprocess.PIPE, text=True)
    said = ""
    try:
        expect(other.stdout.readline() == "taken\n", "the other process could not take memory")
        try:
            wide = torch.cat([world.data[half]] * 16)
            world.model(wide).backward()
        except torch.cuda.OutOfMemoryError as error:
            said = str(error)
        expect("out of memory" in said, f"no out-of-memory error, but '{said[:80]}'")
        world.opt.zero_grad()
        checkpoint = pathlib.Path(given.out) / "memory-taken.ck"
        world.opt.save(checkpoint)
    finally:
        other.communicate("")
    losses = world.losses
    world = World(given)
    world.opt.load(checkpoint)
    checkpoint.unlink()
    world.losses = losses
    for _ in range(STEPS - half):
        world.step()
    world.compare()
    return f"saved after step {half}, resumed; torch said: {said.split('. ')[0]}"


def run_example(name: str, arguments: List[str]) -> str:
    """The output of an example with these arguments."""
    import importlib

    sys.path.insert(0, str(examples()))
    sys.argv = [name + ".py", "--text", str(HERE / "conditions.py"), *arguments]
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        importlib.import_module(name).main()
    gc.collect()
    print(said.getvalue())
    return said.getvalue()


def same_lines(one: str, other: str, word: str) -> int:
    """Number of lines with the word, which must be the same in both texts."""
    mine, theirs = ([line for line in text.splitlines() if word in line] for text in (one, other))
    expect(len(mine) > 0 and mine == theirs, f"lines with '{word}': {mine[-1:]} and {theirs[-1:]}")
    return len(mine)


def plain_example(given: argparse.Namespace) -> str:
    """examples/train_plain.py with overlap none and both."""
    size = (["--width", "64", "--layers", "2", "--length", "32", "--batch", "2"]
            if given.size == "toy" else ["--width", "512", "--layers", "8"])
    texts = [run_example("train_plain", [*size, "--steps", "41", "--accumulate", "2",
                                         "--overlap", overlap]) for overlap in ("none", "both")]
    same_lines(*texts, "checksum")
    return f"{same_lines(*texts, 'loss')} losses and the checksum are those of overlap none"


def trainer_example(given: argparse.Namespace) -> str:
    """examples/finetune_trainer.py with overlap none, twice, and both. At size `real` the model has
    1.1 G parameters."""
    size = (["--width", "64", "--layers", "2", "--length", "16"] if given.size == "toy" else
            ["--width", "2048", "--layers", "20", "--length", "512"])
    texts = []
    for number, overlap in enumerate(("none", "none", "both")):
        out = str(pathlib.Path(given.out) / f"trainer-{number}")
        texts.append(run_example("finetune_trainer", [
            "--random", *size, "--steps", "5", "--save-steps", "0", "--out", out,
            "--overlap", overlap]))
    again, *texts = texts
    same_lines(again, texts[0], "checksum")  # else the model itself is not deterministic
    same_lines(*texts, "checksum")
    count = same_lines(*texts, "'grad_norm'")
    elements = next(line for line in texts[0].splitlines() if "parameters in" in line).split()[0]
    return f"{elements} parameters; {count} losses and the checksum are those of overlap none"


class Case(NamedTuple):
    """One case: its environment, its time limit, how its process ends."""

    act: Callable[[argparse.Namespace], str]
    environment: Dict[str, str] = {}
    limit_s: float = 60
    status: Optional[int] = 0
    """Its exit status; None: any, if it ends."""
    alone: bool = False
    """Whether it needs no answer of `plain`."""
    exclusive: bool = False
    """Whether no other case may run beside it."""


CASES: Dict[str, Case] = {
    "plain": Case(plain, alone=True),
    # On several GPUs the Trainer runs the model under DataParallel, which hocket refuses.
    "trainer-example": Case(trainer_example, {"CUDA_VISIBLE_DEVICES": "0"}, limit_s=110,
                            alone=True),
    "plain-example": Case(plain_example, alone=True),
    "launch-blocking": Case(attached, {"CUDA_LAUNCH_BLOCKING": "1"}),
    "one-connection": Case(attached, {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}),
    "allocator-retry": Case(allocator),
    "queued-launches": Case(launches),
    "one-connection-queued-launches": Case(launches, {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}),
    "interrupt": Case(interrupt, status=INTERRUPTED),
    "device-fails": Case(device_fails, status=None),
    "64-streams": Case(streams),
    "second-gpu": Case(second_gpu),
    "memory-taken": Case(memory_taken, exclusive=True),
}


# -- Processes -----------------------------------------------------------------------------------


def report(given: argparse.Namespace, answer: str, why: str) -> None:
    """Writes a case's answer for the parent."""
    path = pathlib.Path(given.out) / f"{given.case}.answer"
    path.write_text(json.dumps({"answer": answer, "why": why}))


def child(given: argparse.Namespace) -> int:
    """Runs one case."""
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    import workload

    workload.deterministic()
    try:
        report(given, "ok", CASES[given.case].act(given))
    except Skipped as reason:
        report(given, "skipped", str(reason))
    except Exception as error:
        traceback.print_exc()
        report(given, "FAILED", f"{type(error).__name__}: {error}".splitlines()[0][:300])
    return 0


class Started:
    """A case's process."""

    def __init__(self, name: str, given: argparse.Namespace) -> None:
        self.name, self.case, self.out = name, CASES[name], pathlib.Path(given.out)
        self.answer = self.out / f"{name}.answer"
        self.answer.unlink(missing_ok=True)
        self.log = self.out / f"{name}.log"
        environment = {**os.environ, "CUBLAS_WORKSPACE_CONFIG": ":4096:8", "PYTHONUNBUFFERED": "1",
                       "TRANSFORMERS_OFFLINE": "1", **self.case.environment}
        if given.device == "cpu":
            environment.update(OMP_NUM_THREADS="1", CUDA_VISIBLE_DEVICES="")
        command = [sys.executable, str(HERE / "conditions.py"), "--case", name, "--device",
                   given.device, "--size", given.size, "--out", given.out]
        self.begin = time.time()
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, env=environment,
                                            stdin=subprocess.DEVNULL, start_new_session=True)

    def ended(self, deadline: float) -> Optional[Dict[str, Any]]:
        """Its result, once there is one."""
        status = self.process.poll()
        seconds = time.time() - self.begin
        if status is None and seconds < self.case.limit_s and time.time() < deadline:
            return None
        if status is None:
            self.process.send_signal(signal.SIGUSR1)  # writes the stacks of its threads to its log
            time.sleep(0.5)
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        found = {"answer": "FAILED", "why": f"no answer, exit status {status}"}
        if self.answer.exists():
            found = json.loads(self.answer.read_text())
        if status is None:
            found = {"answer": "FAILED", "why": f"still running after {seconds:.0f} s"}
        elif found["answer"] == "ok" and self.case.status not in (None, status):
            found = {"answer": "FAILED",
                     "why": f"exit status {status}, {self.case.status} is right"}
        return {"case": self.name, "seconds": round(seconds, 1), **found}


def run_all(given: argparse.Namespace, names: List[str]) -> List[Dict[str, Any]]:
    """Runs all cases, several at the same time; those that compare bits after `plain`."""
    deadline = time.time() + given.budget
    waiting, running, results = list(names), [], []  # type: ignore[var-annotated]
    while waiting or running:
        there = "plain" not in names or any(entry["case"] == "plain" for entry in results)
        for name in list(waiting):
            exclusive = CASES[name].exclusive or any(started.case.exclusive for started in running)
            if running and exclusive:
                continue
            if len(running) < given.jobs and (there or CASES[name].alone):
                waiting.remove(name)
                running.append(Started(name, given))
        for started in list(running):
            entry = started.ended(deadline)
            if entry is not None:
                running.remove(started)
                results.append(entry)
                print(f"{entry['case']}: {entry['answer']} {entry['why']}", flush=True)
        time.sleep(0.05)
    return results


def main(arguments: List[str]) -> int:
    """Runs the cases; prints the table last."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--device", choices=("cuda", "cpu"))
    parser.add_argument("--size", choices=tuple(SIZES), help="real; on the CPU toy")
    parser.add_argument("--cases", help=f"some of: {', '.join(CASES)}")
    parser.add_argument("--jobs", type=int, help="cases at the same time; 3; on the CPU 1")
    parser.add_argument("--budget", type=float, default=145, help="seconds for all")
    parser.add_argument("--out", default="conditions-out", help="folder for answers and logs")
    parser.add_argument("--case", help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.device is None:
        import torch

        given.device = "cuda" if torch.cuda.is_available() else "cpu"
    given.size = given.size or ("toy" if given.device == "cpu" else "real")
    given.jobs = given.jobs or (1 if given.device == "cpu" else 3)
    if given.case:
        return child(given)
    pathlib.Path(given.out).mkdir(parents=True, exist_ok=True)
    names = given.cases.split(",") if given.cases else list(CASES)
    unknown = [name for name in names if name not in CASES]
    if unknown:
        parser.error(f"--cases: there is no case '{unknown[0]}'")
    if "plain" not in names and not plain_file(given).exists():
        names.insert(0, "plain")
    begin = time.time()
    results = run_all(given, names)
    (pathlib.Path(given.out) / "conditions.json").write_text(json.dumps(
        {"device": given.device, "size": given.size, "commit": os.environ.get("HOCKET_COMMIT", ""),
         "seconds": round(time.time() - begin, 1), "cases": results}, indent=1) + "\n")
    results.sort(key=lambda entry: names.index(entry["case"]))
    for entry in results:
        if entry["answer"] == "FAILED":
            log = pathlib.Path(given.out) / f"{entry['case']}.log"
            print(f"-- {entry['case']}", *log.read_text(errors="replace").splitlines()[-25:],
                  sep="\n")
    print(f"\n{given.device}, {given.size}, {time.time() - begin:.0f} s")
    for entry in results:
        print(f"{entry['case']:32}{entry['answer']:9}{entry['seconds']:6.1f} s  {entry['why']}")
    return 1 if any(entry["answer"] == "FAILED" for entry in results) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
