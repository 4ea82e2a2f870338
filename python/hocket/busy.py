# SPDX-License-Identifier: Apache-2.0
"""What an update does beside other work, to measure what that costs the other work: a CPU team that
updates optimizer state of its own, and copies between the GPU and pinned memory."""

from __future__ import annotations

import os
import weakref
from ctypes import byref, c_void_p

import torch

from . import _abi

BYTES = 16
"""Host memory of an element."""
PINNED_BYTES = 1 << 26
"""Pinned memory of each direction. No CPU touches it, so that a team displaces it from caches."""
PIECE_BYTES = 1 << 25
"""One copy, at most."""


def _stop(handle: int, pid: int) -> None:
    if os.getpid() == pid:  # a forked child has no team
        _abi.library().hocket_busy_stop(handle)


class BusyTeam:
    """Threads that update AdamW state in host memory while they are let, as the CPU does in a step.

    Args:
        elements: parameters whose state is updated, 16 bytes each. Together they should be larger
            than the CPU's caches.
        threads: size of the team; 0: the default of ``overlap="both"``.

    Raises:
        HocketError: wrong arguments (2), or too little memory (3).
    """

    def __init__(self, elements: int, threads: int = 0) -> None:
        handle = c_void_p()
        _abi.call("hocket_busy_start", threads, elements, byref(handle))
        self._handle = handle
        assert handle.value is not None
        self._finalizer = weakref.finalize(self, _stop, handle.value, os.getpid())

    def update(self) -> None:
        """Begins to update. Returns when the team does so."""
        _abi.call("hocket_busy_update", self._handle, 1)

    def pause(self) -> None:
        """Returns when the team has stopped, at the end of an operation (some milliseconds)."""
        _abi.call("hocket_busy_update", self._handle, 0)

    @property
    def threads(self) -> int:
        """Size of the team."""
        found: int = _abi.library().hocket_busy_threads(self._handle)
        return found

    @property
    def updated(self) -> int:
        """Number of elements that have been updated so far."""
        found: int = _abi.library().hocket_busy_updated(self._handle)
        return found

    def close(self) -> None:
        """Ends the team and frees its memory. Later calls raise."""
        self._finalizer()
        self._handle = c_void_p()


class Copies:
    """Copies both ways between the GPU and pinned host memory of their own, each way on a stream of
    its own, as gradients leave and new weights arrive while a model trains."""

    def __init__(self, device: torch.device) -> None:
        def pinned() -> torch.Tensor:
            return torch.ones(PINNED_BYTES, dtype=torch.uint8, pin_memory=True)

        def there() -> torch.Tensor:
            return torch.empty(PIECE_BYTES, dtype=torch.uint8, device=device)

        self._ways = [(torch.cuda.Stream(device), pinned(), there()) for _ in range(2)]
        self._at = 0
        for stream, _, _ in self._ways:
            stream.wait_stream(torch.cuda.current_stream(device))

    def queue(self, size: int) -> None:
        """Queues copies of `size` bytes each way; returns at once."""
        while size > 0:
            n = min(size, PIECE_BYTES)
            for way, (stream, pinned, there) in enumerate(self._ways):
                ends = pinned[self._at : self._at + n], there[:n]
                with torch.cuda.stream(stream):
                    ends[way].copy_(ends[1 - way], non_blocking=True)
            size -= n
            self._at = (self._at + PIECE_BYTES) % PINNED_BYTES

    def wait(self) -> None:
        """Until all copies have ended."""
        for stream, _, _ in self._ways:
            stream.synchronize()
