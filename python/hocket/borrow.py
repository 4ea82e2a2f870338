# SPDX-License-Identifier: Apache-2.0
"""Borrows memory that activations have freed, for new weights that wait for the norm.

In forward the framework's allocator fills up with activations, in backward it empties. What has
become free is lent to the engine until ``step()``, through that allocator, so that nothing else
knows of it. Copies of early weights then go to the GPU during backward instead of after the norm.

*Rule*: with what is borrowed, no more is allocated than the framework allocates anyway. The second
step is measured, with nothing borrowed: P, the most that was allocated at a time, and for each
*event* (backward leaves a block, or ends) the most that was allocated from then until the step was
over, N. Afterwards, at the same event, at most min(P, what the allocator has reserved) - N may be
borrowed. If an iteration has more allocated at an event than the measured one had, all is given
back, and the next iteration is measured.

*Fragments*: a block of borrowed memory can lie in the middle of a segment that the framework then
cannot use in one piece. Without expandable segments, memory is therefore borrowed only while the
driver has as much free as backward may still allocate, N - what is allocated now, and as a block
needs: else a block that the cache cannot serve would make the allocator free its cache.

*Plan.* If a plan says how much may be borrowed once backward has left a block, no more is.

*Requests to the driver.* If the allocator asks the driver for memory to serve a borrowed block, the
block is given back, and no more is borrowed in future than was then. If it asks for other memory
while something is borrowed, half as much is borrowed in future. If it frees its cache for want of
memory (num_alloc_retries), nothing is borrowed any more.
"""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, Any, Dict, List, Optional, Sequence, Tuple

import torch

from .errors import NO, HocketError

if TYPE_CHECKING:
    from .binding import Binding

BLOCK = 32 << 20
"""Bytes. Memory is borrowed in blocks of as many pieces of weights as fit, at least one."""
ROUND = 2 << 20
"""Bytes. CUDA's caching allocator rounds large blocks up to this."""
PAGE = 20 << 20
"""Bytes. Expandable segments give memory back to the driver in pages of this size, so that a block
may keep one more than it fills."""
DRIFT = 0.01
"""Share of P by which an iteration may have more allocated than the measured one had."""


class CudaMemory:
    """What torch's caching allocator has and gives, on one GPU."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        settings = os.environ.get("PYTORCH_CUDA_ALLOC_CONF", "") + os.environ.get(
            "PYTORCH_ALLOC_CONF", ""
        )
        self.expandable = "expandable_segments:True" in settings.replace(" ", "")
        self.round = ROUND
        self.overhead = PAGE if self.expandable else 0

    def usable(self) -> bool:
        """False while a CUDA graph is captured: its memory belongs to a pool of its own."""
        return not torch.cuda.is_current_stream_capturing()

    def look(self) -> Tuple[int, int, int, int]:
        """Bytes allocated now, and at most since reset_peak(); bytes reserved; retries."""
        stats: Dict[str, Any] = torch.cuda.memory_stats_as_nested_dict(self.device)
        allocated, reserved = stats["allocated_bytes"]["all"], stats["reserved_bytes"]["all"]
        return (
            allocated["current"],
            allocated["peak"],
            reserved["current"],
            stats["num_alloc_retries"],
        )

    def reset_peak(self) -> None:
        torch.cuda.reset_peak_memory_stats(self.device)

    def unreserved(self) -> Optional[int]:
        """Bytes that the driver has free; None: fragments do not matter."""
        return None if self.expandable else torch.cuda.mem_get_info(self.device)[0]

    def allocate(self, size: int) -> Optional[torch.Tensor]:
        """None: out of memory."""
        try:
            return torch.empty(size, dtype=torch.uint8, device=self.device)
        except torch.cuda.OutOfMemoryError:
            return None


def memory_of(device: torch.device) -> Optional[CudaMemory]:
    """The allocator of a device; None: it is not known what is allocated there."""
    return CudaMemory(device) if device.type == "cuda" else None


class Borrower:
    """Lends memory of one allocator to one engine.

    Args:
        limits: bytes that the plan allows once backward has left each block, in forward order;
            None: no limit is planned.

    Attributes:
        most: most bytes that were borrowed at a time.
        refused: blocks that could not be had.
        given_back: iterations in which all was given back before the step.
        off: why nothing is borrowed any more; None: that goes on.
    """

    def __init__(
        self, binding: "Binding", memory: Any, limits: Optional[Sequence[int]] = None
    ) -> None:
        self._binding, self._memory = binding, memory
        self.limits = limits
        self._lock = threading.RLock()
        self._blocks: List[torch.Tensor] = []
        self._stream = 0
        self._sizes = 0
        self._charged = 0
        self.most = self.refused = self.given_back = 0
        self.off: Optional[str] = None
        # The measured iteration: at each event the bytes allocated; the peaks before the first
        # event, between events, and after the last one.
        self._live: List[int] = []
        self._peaks: List[int] = []
        self._needs: Optional[List[int]] = None
        self._peak = 0
        self._cap: Optional[int] = None
        # When the first block of an iteration is borrowed.
        self._reserved = self._retries = 0
        self._events = 0
        self._measuring = False
        self._idle = True

    # -- Measuring ----------------------------------------------------------------------------

    def _measure_next(self) -> None:
        self._needs, self._cap = None, None
        self._live, self._peaks = [], []
        self._measuring = True
        self._memory.reset_peak()

    def _measured(self) -> None:
        """The iteration that was measured is over."""
        self._measuring = False
        self._peaks.append(self._memory.look()[1])
        self._peak = max(self._peaks)
        needs: List[int] = []
        for peak in reversed(self._peaks[1:]):
            needs.append(max(peak, needs[-1] if needs else 0))
        self._needs = needs[::-1]

    # -- During backward ----------------------------------------------------------------------

    def event(self, left: int) -> None:
        """Backward has left a block (-1: it has entered the first one), or has ended (0). Something
        of this iteration was handed over."""
        with self._lock:
            number = self._events
            self._events += 1
            if self._measuring:
                live, peak, _, _ = self._memory.look()
                self._live.append(live)
                self._peaks.append(peak)
                self._memory.reset_peak()
            elif self._needs is not None and not self._idle and self._memory.usable():
                self._borrow(number, self._needs, self._limit(left))

    def _limit(self, left: int) -> Optional[int]:
        """The most that may be borrowed, by the plan and by what was learned; None: no limit."""
        known = [] if self._cap is None else [self._cap]
        if self.limits is not None:
            known.append(self.limits[left] if 0 <= left < len(self.limits) else 0)
        return min(known) if known else None

    def _borrow(self, number: int, needs: List[int], limit: Optional[int]) -> None:
        now, _, reserved, retries = self._memory.look()
        live = now - self._sizes
        more = live - self._live[number] if number < len(needs) else self._peak
        if more > DRIFT * self._peak or (self._blocks and retries > self._retries):
            self._give_back_early()
            return
        if not self._blocks:
            self._reserved, self._retries = reserved, retries
        need = needs[number] + max(0, more)
        room = min(self._peak, reserved) - need - self._charged
        if limit is not None:
            room = min(room, limit - self._sizes)
        unreserved = self._memory.unreserved()
        if unreserved is not None and unreserved < need - live:
            return
        while room > 0:
            size = self._size(room)
            if size == 0 or (unreserved is not None and unreserved < size):
                return
            if not self._borrow_block(size):
                return
            room -= size + self._memory.overhead

    def _size(self, room: int) -> int:
        """Bytes of the next block; 0: none is wanted, or none fits."""
        lending = self._binding.engine.lending()
        if lending.wanted == 0:
            return 0
        piece, unit = lending.piece, self._memory.round
        size = max(1, BLOCK // piece) * piece
        size = min(size, max(piece, lending.wanted))
        size = -(-size // unit) * unit
        return size if size + self._memory.overhead <= room else 0

    def _borrow_block(self, size: int) -> bool:
        """False: no more in this iteration."""
        before = self._memory.look()
        block = self._memory.allocate(size)
        after = self._memory.look()
        if block is None or after[2] > before[2]:
            self.refused += 1
            self._cap, self._idle = self._sizes, True
            self._reserved += after[2] - before[2]
            return False
        stream = self._binding.stream()
        try:
            self._binding.engine.lend(block.data_ptr(), size, stream)
        except HocketError as error:
            if error.code != NO:
                raise
            self.refused += 1
            self._idle = True
            return False
        self._blocks.append(block)
        self._sizes += after[0] - before[0]
        self._charged += after[0] - before[0] + self._memory.overhead
        self._stream = stream
        self.most = max(self.most, self._sizes)
        return True

    # -- Giving back --------------------------------------------------------------------------

    def _give_back_early(self) -> None:
        """This iteration is not like the measured one."""
        self.given_back += 1
        self.release()
        self._needs, self._idle = None, True

    def release(self) -> None:
        """Gives everything back. The framework may use it on the stream on which it was borrowed:
        what the engine still does there comes first."""
        with self._lock:
            if not self._blocks:
                return
            _, _, reserved, retries = self._memory.look()
            if retries > self._retries:
                self.off = "the allocator had to free its cache while memory was borrowed"
            if reserved > self._reserved:
                self._cap = self._sizes // 2
            try:
                self._binding.engine.reclaim(self._stream)
            finally:
                self._blocks.clear()
                self._sizes = self._charged = 0

    def forward(self) -> None:
        """A forward begins: what is still borrowed would be in its way. It is the forward of a
        further pass (accumulation), or the gradients of the last backward were not used."""
        if self._blocks:
            self._give_back_early()

    def step_over(self) -> None:
        """The step has been taken, or given up: the next iteration begins."""
        with self._lock:
            self.release()
            if self.off is not None:
                return
            if self._measuring:
                self._measured()
            elif self._needs is None:
                self._measure_next()
            self._events, self._idle = 0, False

    def stats(self) -> Dict[str, Any]:
        """For AdamW.stats()."""
        return {
            "peak_bytes": self.most,
            "planned_bytes": max(self.limits, default=0) if self.limits is not None else None,
            "refused": self.refused,
            "given_back_early": self.given_back,
            "allocated_peak_bytes": self._peak,
            "measured": self._needs is not None,
            "off": self.off,
        }
