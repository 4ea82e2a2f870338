#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-3.0-or-later
"""Trains one model in several ways in turns and measures the time of an iteration: hocket,
everything on the GPU, DeepSpeed's and torchao's offload. README.md in this folder explains the rows
and their comparison."""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import signal
import subprocess
import sys
import time
from typing import Any, Dict, List

HERE = pathlib.Path(__file__).resolve().parent
ROWS = ("model-only", "gpu", "hocket-none", "hocket-forward", "hocket-both", "hocket-dropin",
        "hocket-gpu", "hocket-run", "torchao", "adamw8bit", "adamw8bit-torchao", "deepspeed-2",
        "deepspeed-3")
BEFORE, AFTER = "bench-before", "bench-after"  # profiles of --calibrate
CLIPS = ("natural", "never", "sometimes", "always")
ALONE = ("torchao", "adamw8bit", "adamw8bit-torchao", "deepspeed-2", "deepspeed-3")
GROUPS = {
    "all": [name for name in ROWS if name not in ("hocket-dropin", "hocket-gpu", "hocket-run")],
    "hocket": ["model-only", "hocket-none", "hocket-forward", "hocket-both"],
    "bits": ["hocket-gpu", "hocket-none", "hocket-forward", "hocket-both", "hocket-dropin"],
    "peers": list(ALONE),
}


def options(arguments: List[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("--size", default="toy", choices=("toy", "small", "3g", "6.7g"))
    add("--layers", type=int, help="another number of layers")
    add("--rows", default="hocket", help="rows, or groups (%s), with commas; a row of hocket may "
        "have settings: hocket-both+plan=auto+cpu_threads=13" % ", ".join(GROUPS))
    add("--micro-batches", default="1", help="such as 4,1; in this order in each row")
    add("--accumulate", default="1", help="micro-steps of an iteration, such as 1,4,16")
    add("--clip", default="natural", help="the loss is scaled so that this holds: never, sometimes, "
        "always, or natural: as it comes, limit 1.0; several with commas")
    add("--plan", default="none", help="hocket's: none, auto, FILE, POLICY[:OPTION=VALUE...]")
    add("--cpu-threads", type=int, help="hocket's team")
    add("--iterations", type=int, default=20, help="timed, of rows that are judged")
    add("--peer-iterations", type=int, default=6)
    add("--update-iterations", type=int, default=6)
    add("--budget", type=float, default=540, help="seconds until the table must be there")
    add("--limit", type=float, default=200, help="seconds that a peer in its own process may take")
    add("--leak", type=int, default=0, help="take so many steps and watch memory instead")
    add("--bits", action="store_true", help="deterministic; compare state, weights and losses")
    add("--predict", action="store_true", help="profile the model, predict hocket's rows first")
    add("--calibrate", type=float, default=0, metavar="SECONDS", help="calibrate for so long before "
        "the first row, use that profile, calibrate again after the last one, and say how far the "
        "predictions of both profiles differ")
    add("--timeline", action="store_true", help="record operations of hocket's rows")
    add("--no-yardstick", action="store_true", help="no computation alone between rows")
    add("--device", default=None, help="cuda or cpu")
    add("--out", default="training-out", help="folder for results.json, table.txt and log.txt")
    found = parser.parse_args(arguments)
    found.micro_batches = [int(part) for part in found.micro_batches.split(",")]
    found.accumulate = [int(part) for part in found.accumulate.split(",")]
    found.clips = found.clip.split(",")
    wrong = [clip for clip in found.clips if clip not in CLIPS]
    if wrong:
        parser.error(f"--clip: '{wrong[0]}' is none of {', '.join(CLIPS)}")
    if min(found.accumulate) < 1:
        parser.error("--accumulate: numbers from 1")
    if len(found.clips) * len(found.accumulate) > 1 and (found.bits or found.leak):
        parser.error("--bits and --leak take one number of micro-steps and one --clip")
    found.clip = found.clips[0]
    names: List[str] = []
    for part in found.rows.split(","):
        names += GROUPS.get(part, [part])
    unknown = [name for name in names if name.split("+")[0] not in ROWS]
    if unknown:
        parser.error(f"--rows: '{unknown[0]}' is neither a row nor a group: "
                     f"{', '.join(ROWS)}; {', '.join(GROUPS)}")
    found.rows = names
    found.deterministic = found.bits
    if found.device is None:
        import torch

        found.device = "cuda" if torch.cuda.is_available() else "cpu"
    return found


class Run:
    """All rows of one command."""

    def __init__(self, given: argparse.Namespace) -> None:
        self.given = given
        self.out = pathlib.Path(given.out)
        self.out.mkdir(parents=True, exist_ok=True)
        self.lines = self.out / "rows.jsonl"
        self.lines.write_text("")
        (self.out / "log.txt").unlink(missing_ok=True)
        self.deadline = time.time() + given.budget

    def entries(self) -> List[Dict[str, Any]]:
        """The results of workers so far."""
        found = []
        for line in self.lines.read_text(encoding="utf-8").splitlines():
            try:
                found.append(json.loads(line))
            except ValueError:
                pass  # an incomplete line of a worker that was killed
        return found

    def say(self, **entry: Any) -> None:
        """Adds a line to the results, as a worker's Reporter does."""
        with open(self.lines, "a", encoding="utf-8") as file:
            file.write(json.dumps(entry) + "\n")

    def all(self) -> None:
        """Runs the rows that share a process, then those that have their own."""
        together = [name for name in self.given.rows if name.split("+")[0] not in ALONE]
        while together:
            ended = self.worker(together, self.deadline)
            together = together[len(ended):]
        for name in self.given.rows:
            if name.split("+")[0] in ALONE:
                self.worker([name], min(self.deadline, time.time() + self.given.limit))

    def worker(self, names: List[str], deadline: float) -> List[str]:
        """Runs a worker. Returns the rows that are not tried again: those that have ended, and the
        one that ran when the worker died."""
        if deadline - time.time() < 15:
            for name in names:
                self.say(event="skipped", row=name, why="no time left")
            return names
        before = len(self.entries())
        environment = dict(os.environ, PYTHONUNBUFFERED="1")
        environment.setdefault("HOCKET_MACHINE", "h200-16c")
        if self.given.device == "cpu":
            environment.setdefault("OMP_NUM_THREADS", "1")
        if self.given.deterministic:
            environment["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
        # A worker ends by itself before the limit, unless a row hangs.
        command = [sys.executable, str(HERE / "worker.py"), json.dumps(vars(self.given)),
                   str(self.lines), str(deadline - 8), ",".join(names)]
        with open(self.out / "log.txt", "ab") as log:
            child = subprocess.Popen(command, stdout=log, stderr=log, env=environment,
                                     start_new_session=True)
            why = self.await_child(child, deadline)
        said = self.entries()[before:]
        begun = [entry["row"] for entry in said if entry["event"] == "begin"]
        ended = [entry["row"] for entry in said if entry["event"] in ("end", "skipped")
                 and "micro_batch" not in entry]
        if why is None:
            return names
        victim = next((name for name in begun if name not in ended), None)
        self.say(event="killed", row=victim or names[0], why=why)
        done = [name for name in names if name in ended or name == victim]
        return done or names

    def await_child(self, child: "subprocess.Popen[bytes]", deadline: float) -> Any:
        """None if it succeeded, else the reason of its failure."""
        try:
            status = child.wait(max(1.0, deadline - time.time()))
        except subprocess.TimeoutExpired:
            child.send_signal(signal.SIGUSR1)  # writes the stacks of its threads to the log
            time.sleep(1)
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()
            return "out of time (where it was: log.txt)"
        if status == 0:
            return None
        return f"its process ended with {status} (log.txt)"


def calibrate(run: Run, name: str, limit: float) -> bool:
    """Measures this machine and stores the profile under the name. False if there is no profile."""
    import plans

    seconds = run.given.calibrate
    backend = "cuda" if run.given.device.startswith("cuda") else "host"
    begin = time.time()
    (run.out / f"{name}.json").unlink(missing_ok=True)
    try:
        with open(run.out / "log.txt", "ab") as log:
            done = subprocess.run(
                [plans.program(), "calibrate", "--backend", backend, "--name", name, "--budget",
                 str(seconds), "-o", str(run.out / f"{name}.json")], stdout=log, stderr=log,
                check=False, timeout=limit)
    except subprocess.TimeoutExpired:
        run.say(event="failed", row=name, why=f"calibration took more than {limit:.0f} s")
        return False
    if not (run.out / f"{name}.json").exists():
        run.say(event="failed", row=name, why="calibration gave no profile (log.txt); take more "
                f"than {seconds:g} s")
        return False
    # Exit 1: the profile is stored, but some probes were noisy.
    run.say(event="calibrated", row=name, status=done.returncode,
            seconds=round(time.time() - begin, 1))
    return True


def drift(run: Run) -> None:
    """Simulates the predicted plans with the profile that was calibrated after the rows."""
    import plans

    for entry in run.entries():
        if entry["event"] != "predicted" or not entry.get("file"):
            continue
        try:
            period = plans.period_on(str(run.out / "plans" / entry["file"]), AFTER)
        except (RuntimeError, ValueError, OSError, KeyError) as error:
            run.say(event="failed", row=entry["row"], why=f"prediction after: {error}"[:400])
            continue
        run.say(event="drift", row=entry["row"], micro_batch=entry["micro_batch"],
                before_ms=entry.get("period_ms") or entry.get("iteration_ms"), after_ms=period)


def main(arguments: List[str]) -> int:
    """Runs; prints the table last."""
    given = options(arguments)
    begin = time.time()
    run = Run(given)
    sys.path.insert(0, str(HERE))
    from table import table

    if given.calibrate:
        os.environ["HOCKET_MACHINE"] = BEFORE
        os.environ["HOCKET_STORE"] = str(run.out.resolve() / "store.db")
        if not calibrate(run, BEFORE, given.budget / 2):
            print((run.out / "log.txt").read_text(errors="replace") + run.entries()[-1]["why"])
            return 1
        # The second calibration takes as long as the first.
        run.deadline -= time.time() - begin
    run.all()
    if given.calibrate and given.predict:
        if calibrate(run, AFTER, begin + given.budget + 60 - time.time()):
            drift(run)
    entries = run.entries()
    text = table(entries)
    commit = os.environ.get("HOCKET_COMMIT", "")
    # The folder of the results is not a setting of the run.
    settings = {name: value for name, value in vars(given).items() if name != "out"}
    document = {"schema": "hocket.training-bench/1", "options": settings, "commit": commit,
                "seconds": round(time.time() - begin, 1), "entries": entries}
    (run.out / "results.json").write_text(json.dumps(document) + "\n")
    head = (f"{given.size}, clip {' '.join(given.clips)}, plan {given.plan}, {given.device}; ms an iteration, "
            f"GiB; {time.time() - begin:.0f} s; {commit}")
    (run.out / "table.txt").write_text(head + "\n" + text + "\n")
    log = run.out / "log.txt"
    if any(entry["event"] in ("failed", "killed") for entry in entries) and log.exists():
        print("\n".join(log.read_text(errors="replace").splitlines()[-25:]))
    run.lines.unlink()
    print(head)
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
