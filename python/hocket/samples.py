# SPDX-License-Identifier: Apache-2.0
"""Notices weights that the program has written through ``p.data``, which raises no version.

A weight is the rounded master weight from the end of a step to the next one. Before gradients are
handed over, some elements of some tensors are compared; others the next time.
"""

from __future__ import annotations

import warnings
from typing import Optional

import torch
from torch import Tensor

from . import _abi
from .binding import Binding

TENSORS, ELEMENTS = 16, 16
"""How many tensors are looked at, and how many consecutive elements of each."""
EVERY = 16
"""On a GPU every so many steps only, because to look at weights there is to wait for the device."""
STRIDE = 7919
"""By which positions move on: a prime number, so that all are reached."""


class Samples:
    """The weights of one engine. No gradient may be held when they are looked at: the engine would
    begin its step again."""

    def __init__(self, binding: Binding) -> None:
        self._binding = binding
        self._next = self._looks = 0
        self._every = EVERY if binding.device.type == "cuda" else 1
        self._warned = False

    def follow(self) -> None:
        """If a weight has been written without a trace, all masters follow the weights; the first
        time a warning says so."""
        if self._binding.engine.failed or not self._binding.unchanged():
            return
        found = self._stale()
        if found is None:
            return
        for number in range(len(self._binding.params)):
            self._binding.refresh_master(number)
        if not self._warned:
            self._warned = True
            warnings.warn(
                f"hocket: {self._binding.names[found]} was written without a trace, as p.data is: "
                "this time the weights count, but such a write is seen by chance, and else "
                "overwritten by the master weight; write to p itself under torch.no_grad()"
            )

    def _stale(self) -> Optional[int]:
        """The number of a tensor with a weight that is not the rounded master; None: none was
        seen."""
        self._looks += 1
        if self._looks % self._every:
            return None
        binding, count = self._binding, len(self._binding.params)
        numbers = [(self._next + place) % count for place in range(min(TENSORS, count))]
        self._next = (self._next + TENSORS) % count
        binding.engine.drain()
        seen = torch.cat([self._weights(number).float() for number in numbers]).cpu()
        rounded = torch.cat([self._masters(number).float() for number in numbers])
        wrong = (seen != rounded) & ~(seen.isnan() & rounded.isnan())
        if not bool(wrong.any()):
            return None
        place = int(wrong.nonzero()[0])
        for number in numbers:
            place -= self._length(number)
            if place < 0:
                return number
        return None

    def _length(self, number: int) -> int:
        return min(ELEMENTS, self._binding.parts[number].numel())

    def _offset(self, number: int) -> int:
        part = self._binding.parts[number]
        return self._looks * STRIDE % (part.numel() - self._length(number) + 1)

    def _weights(self, number: int) -> Tensor:
        part = self._binding.parts[number].detach()
        # In the order of memory, as the engine has them.
        at = int(part.storage_offset()) + self._offset(number)
        return part.as_strided((self._length(number),), (1,), at)

    def _masters(self, number: int) -> Tensor:
        out = torch.empty(self._length(number))
        self._binding.engine.read(
            _abi.P, number, self._offset(number), len(out), out.data_ptr()
        )
        return out.to(self._binding.types[number])
