# SPDX-License-Identifier: Apache-2.0
"""Which of several ranks has ended a run, and why.

A rank that an exception ends leaves its name and the message in the process group's store. One that
is killed leaves nothing. Ranks of its host see that its process has gone, and leave that; those of
other hosts see that it does not sign there. A rank whose collective fails reads there who was
first; torch says only that a connection was closed.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from typing import Any, Callable, List, NamedTuple, Optional, Tuple

import torch

MESSAGE = 1024
"""Most bytes of a failing rank's message that the others show."""
DYING = 5.0
"""Seconds that a rank waits for the name of the one that has ended. A process that is killed closes
its connections first, then frees its memory."""
STORE = 5.0
"""Seconds that the store may take to answer: the rank that serves it may be the one that ended."""
KEY = "hocket/ended"
LOST = "hocket/lost"
"""A rank whose collective has failed signs under this and its number."""


class Neighbour(NamedTuple):
    """What a rank says of itself."""

    rank: int
    host: str
    pid: int
    cpus: Tuple[int, ...]
    memory: int
    """Bytes of host memory that an engine may take, were it alone."""

    def __str__(self) -> str:
        return f"rank {self.rank} (process {self.pid} on {self.host})"


class Ends:
    """What one rank knows of the ends of others.

    Attributes:
        name: of this rank.
        met: the ranks that share the parameters, this one included.
    """

    def __init__(self, rank: int, host: str) -> None:
        self.name, self._rank, self._host = f"rank {rank} ({host})", rank, host
        self.met: List[Neighbour] = []

    def first(self) -> str:
        """Who has ended first, and why, or who of other hosts does not answer; "" if that does not
        become known in time."""
        until = time.monotonic() + DYING
        _store(lambda store: store.set(f"{LOST}/{self._rank}", "") or "")
        here = [n for n in self.met if n.host == self._host and n.pid != os.getpid()]
        said: Optional[str] = ""
        while True:
            gone = [n for n in here if not _alive(n.pid)]  # its words come before its end
            if said is not None:
                said = _store(lambda store: store.get(KEY).decode() if store.check([KEY]) else "")
            if said:
                return said
            if gone:
                return self.leave("; ".join(f"{n} has ended" for n in gone))
            if time.monotonic() > until:
                return self._silent()
            time.sleep(0.05)

    def _silent(self) -> str:
        """Ranks of other hosts whose collectives have not failed."""
        away = [n for n in self.met if n.host != self._host]
        text = "; ".join(f"{n} does not answer" for n in away if not _signed(n.rank))
        return self.leave(text) if text else ""

    def leave(self, text: str) -> str:
        """Leaves the text, unless a rank has left another one. Returns what is there."""
        text = text.encode()[:MESSAGE].decode(errors="ignore")
        return _store(lambda store: store.compare_set(KEY, "", text).decode()) or text

    def of(self, error: BaseException) -> str:
        """Who has ended first, where `error` ends this rank."""
        if _of_peers(error):
            return self.first()
        return self.leave(f"{self.name}: {type(error).__name__}: {error}")


def _of_peers(error: BaseException) -> bool:
    """Whether a collective has failed, because another rank has."""
    text = str(error)
    return isinstance(error, getattr(torch.distributed, "DistError", ())) or (
        isinstance(error, RuntimeError) and any(part in text for part in ("gloo", "NCCL"))
    )


def _signed(rank: int) -> bool:
    """Whether the rank's collective has failed, too; true if the store does not answer."""
    return _store(lambda store: str(store.check([f"{LOST}/{rank}"]))) != "False"


def _store(action: Callable[[Any], str]) -> Optional[str]:
    """The result of an action on the group's store; None if it fails or does not answer."""
    found: List[str] = []

    def act() -> None:
        with contextlib.suppress(Exception):
            get: Any = torch.distributed.distributed_c10d._get_default_store
            found.append(action(get()))

    thread = threading.Thread(target=act, daemon=True)
    thread.start()
    thread.join(STORE)
    return found[0] if found else None


def _alive(pid: int) -> bool:
    """Whether a process of this host runs; one that has ended and waits for its parent does not."""
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
            return file.read().rpartition(")")[2].split()[0] not in ("Z", "X")
    except (OSError, IndexError):
        return False


# -- Exceptions that end the program ------------------------------------------------------------

_mine: Optional[Ends] = None


def watch(ends: Ends) -> None:
    """From now on an exception that ends this process is left for the others; if another rank has
    ended first, a line names it."""
    global _mine
    if _mine is None:
        before = sys.excepthook

        def ended(kind: Any, error: BaseException, trace: Any) -> None:
            first = ""
            if _mine is not None and torch.distributed.is_initialized():
                with contextlib.suppress(Exception):
                    first = _mine.of(error)
            before(kind, error, trace)
            if first and _mine is not None and not first.startswith(_mine.name):
                print(f"hocket: ended first: {first}", file=sys.stderr, flush=True)

        sys.excepthook = ended
    _mine = ends
