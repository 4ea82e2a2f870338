# SPDX-License-Identifier: GPL-3.0-or-later
"""Shared by the cases of conditions.py: a model that trains, threads that act while it waits, and
exceptions for failed and skipped cases."""

from __future__ import annotations

import argparse
import hashlib
import json
import pathlib
import sys
import threading
import time
from typing import Any, Callable, Dict, List, NamedTuple, Optional

HERE = pathlib.Path(__file__).resolve().parent
STEPS = 8
LEARNING_RATE, MAX_NORM = 1e-3, 1.0
IN_TIME_S = 5.0
"""An interrupt or a failure must get through a wait in this time."""


class Size(NamedTuple):
    """The model and the data of the cases that compare bits."""

    width: int
    layers: int
    length: int
    batch: int
    rows: int
    """Of an embedding whose update takes longer than the computation."""


SIZES = {"toy": Size(128, 3, 32, 2, 1 << 15), "real": Size(1024, 8, 256, 4, 1 << 16)}


class Failed(Exception):
    """A case has failed."""


class Skipped(Exception):
    """A case cannot be tried here."""


def expect(holds: bool, why: str) -> None:
    """Raises Failed if the condition is false."""
    if not holds:
        raise Failed(why)


def examples() -> pathlib.Path:
    """The folder of the examples, in a checkout or in the output of `pack`."""
    for folder in (HERE.parent / "examples", HERE.parent.parent / "examples"):
        if (folder / "train_plain.py").exists():
            return folder
    raise Failed("there is no folder 'examples'")


class World:
    """A model, its optimizer and its data on one device."""

    def __init__(self, given: argparse.Namespace, device: str = "", attached: bool = True,
                 overlap: str = "both", **options: Any) -> None:
        import torch

        import hocket

        sys.path.insert(0, str(examples()))
        from train_plain import Layer

        self.torch, self.given, self.size = torch, given, SIZES[given.size]
        self.device = torch.device(device or given.device)
        size = self.size

        class Model(torch.nn.Module):
            """Predicts the next byte from all bytes before it and a hash of the last two."""

            def __init__(self) -> None:
                super().__init__()
                self.pairs = torch.nn.Embedding(size.rows, size.width)
                self.layers = torch.nn.ModuleList(
                    Layer(size.width, size.width // 32) for _ in range(size.layers))
                self.head = torch.nn.Linear(size.width, 256, bias=False)
                self.streams: List[Any] = []

            def forward(self, text: Any) -> Any:
                rows = (text[:, :-2] * 65599 + text[:, 1:-1] * 257) % size.rows
                x = self.pairs(rows)
                for number, layer in enumerate(self.layers):
                    x = self.on_stream(number, layer, x)
                logits = self.head(x).float().flatten(0, 1)
                return torch.nn.functional.cross_entropy(logits, text[:, 2:].flatten())

            def on_stream(self, number: int, layer: Any, x: Any) -> Any:
                """The layer's output, computed on a stream of its own if there are streams."""
                if not self.streams:
                    return layer(x)
                outer = torch.cuda.current_stream()
                own = self.streams[number % len(self.streams)]
                own.wait_stream(outer)
                with torch.cuda.stream(own):
                    y = layer(x)
                outer.wait_stream(own)
                return y

        torch.manual_seed(1)
        self.model = Model().to(self.device, torch.bfloat16)
        generator = torch.Generator().manual_seed(2)
        self.data = [torch.randint(0, 256, (size.batch, size.length + 2), generator=generator)
                     .to(self.device) for _ in range(STEPS)]
        self.opt = hocket.AdamW(self.model.parameters(), lr=LEARNING_RATE, max_norm=MAX_NORM,
                                cpu_threads=1, overlap=overlap if attached else "none", **options)
        if attached:
            self.opt.attach(self.model)
        self.losses: List[Any] = []

    def step(self, between: Optional[Callable[[], None]] = None) -> None:
        """One iteration on the next batch; `between` is called before step()."""
        loss = self.model(self.data[len(self.losses)])
        loss.backward()
        if between is not None:
            between()
        self.opt.step()
        self.opt.zero_grad()
        self.losses.append(loss.detach())

    def answer(self) -> Dict[str, Any]:
        """Losses and the weights' hash, once everything has arrived."""
        self.opt.synchronize()
        digest = hashlib.sha256()
        for param in self.model.parameters():
            raw = param.detach().cpu().contiguous().view(self.torch.uint8)
            digest.update(raw.numpy().tobytes())
        return {"losses": [float(loss) for loss in self.losses], "weights": digest.hexdigest()}

    def compare(self) -> None:
        """Raises Failed if losses or weights differ from those of the case `plain`."""
        expected = json.loads(plain_file(self.given).read_text())
        found = self.answer()
        for step, (mine, theirs) in enumerate(zip(found["losses"], expected["losses"])):
            expect(mine == theirs, f"loss of step {step}: {mine}, plain {theirs}")
        expect(found["weights"] == expected["weights"], "weights differ from those of plain")


def plain_file(given: argparse.Namespace) -> pathlib.Path:
    """The file with the results of the case `plain`."""
    return pathlib.Path(given.out) / "plain.json"


class Waits:
    """Tells when the main thread is inside a wait for weights.

    Attributes:
        inside: set during such a wait.
        raised: waits that have ended with an exception.
    """

    def __init__(self) -> None:
        from hocket import _abi

        self.inside, self.raised = threading.Event(), 0
        original, main = _abi.Engine.wait_weights, threading.main_thread()

        def wait_weights(engine: Any, block: int, stream: int) -> None:
            if threading.current_thread() is not main:
                original(engine, block, stream)
                return
            self.inside.set()
            try:
                original(engine, block, stream)
            except BaseException:
                self.raised += 1
                raise
            finally:
                self.inside.clear()

        _abi.Engine.wait_weights = wait_weights  # type: ignore[method-assign]


class Beside(threading.Thread):
    """Calls a function during waits of the main thread, at most `most` times."""

    def __init__(self, waits: Waits, act: Callable[[], None], most: int = 1 << 30) -> None:
        super().__init__(daemon=True)
        self.waits, self.act, self.most = waits, act, most
        self.done = 0
        self.error: Optional[BaseException] = None
        self.stopped = threading.Event()
        self.start()

    def run(self) -> None:
        while not self.stopped.is_set() and self.done < self.most:
            if not self.waits.inside.wait(0.05) or not self.waits.inside.is_set():
                continue
            self.done += 1
            try:
                self.act()
            except BaseException as error:  # the main thread reports it
                self.error = error
                return

    def stop(self) -> int:
        """Returns the number of calls; raises the exception of a failed call."""
        self.stopped.set()
        self.join(IN_TIME_S)
        expect(not self.is_alive(), "the thread beside a wait hangs")
        if self.error is not None:
            raise self.error
        return self.done
