# SPDX-License-Identifier: Apache-2.0
"""A CPU team that updates optimizer state of its own, to measure what updates cost other work."""

from __future__ import annotations

import os
import weakref
from ctypes import byref, c_void_p

from . import _abi

BYTES = 16
"""Host memory of an element."""


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
    def updated(self) -> int:
        """Number of elements that have been updated so far."""
        found: int = _abi.library().hocket_busy_updated(self._handle)
        return found

    def close(self) -> None:
        """Ends the team and frees its memory. Later calls raise."""
        self._finalizer()
        self._handle = c_void_p()
