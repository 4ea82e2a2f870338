# SPDX-License-Identifier: Apache-2.0
"""Exceptions. Every message says what was wrong, where, and what would be right."""

from __future__ import annotations

from typing import Any, Tuple

__all__ = ["HocketError", "HocketUsageError", "NO", "USAGE", "MACHINE"]

NO = 1
"""The answer is no: it does not fit, a file does not match."""
USAGE = 2
"""Wrong input; nothing has been changed."""
MACHINE = 3
"""The machine failed (a device, a file, too little memory). The engine takes no more steps, unless
only save(), checksum() or record() lacked a file or memory."""


class HocketError(RuntimeError):
    """A call to hocket failed.

    Attributes:
        code: 1 the answer is no, 2 wrong input (nothing was changed), 3 the machine failed. After
            a 3 the engine takes no more steps, and its state can still be read and saved as far as
            it is whole; if only save(), checksum() or record() lacked a file or memory, the engine
            goes on.
    """

    def __init__(self, message: str, code: int = USAGE) -> None:
        super().__init__(message)
        self.code = code

    def __reduce__(self) -> Tuple[Any, ...]:
        return (type(self), (str(self), self.code))


class HocketUsageError(HocketError, ValueError):
    """An argument that hocket refuses; ``code`` is 2."""

    def __init__(self, message: str, code: int = USAGE) -> None:
        super().__init__(message, code)
