# SPDX-License-Identifier: Apache-2.0
"""Bytes that torch has allocated on the CPU: all existing storages that operations have created,
with the interface of hocket.borrow.CudaMemory."""

from __future__ import annotations

from typing import Any, Dict, Optional, Tuple

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from hocket import GradientHandle


class Accounts(TorchDispatchMode):
    """Counts while it is entered. ``peak`` is the maximum since reset_peak(), ``most`` the maximum
    of all time, which a cache that never returns memory keeps reserved."""

    round, overhead, expandable = 1, 0, False

    def __init__(self, refuse: Optional[int] = None) -> None:
        super().__init__()
        self._storages: Dict[int, Tuple[StorageWeakRef, int]] = {}
        self.peak = self.most = 0
        self.free: Optional[int] = None
        self.retries = self.extra = 0
        self.borrowed = self.calls = 0
        self.refuse = refuse

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for value in tree_leaves(out):
            if isinstance(value, torch.Tensor) and not isinstance(value, GradientHandle):
                storage = value.untyped_storage()
                if storage._cdata not in self._storages:
                    self._storages[storage._cdata] = (StorageWeakRef(storage), storage.nbytes())
        self.now()
        return out

    def now(self) -> int:
        """Bytes allocated."""
        gone = [key for key, (storage, _) in self._storages.items() if storage.expired()]
        for key in gone:
            del self._storages[key]
        now = sum(size for _, size in self._storages.values())
        self.peak, self.most = max(self.peak, now), max(self.most, now)
        return now

    # -- As hocket.borrow.CudaMemory ----------------------------------------------------------

    def usable(self) -> bool:
        return True

    def look(self) -> Tuple[int, int, int, int]:
        now = self.now()
        return now, self.peak, self.most + self.extra, self.retries

    def reset_peak(self) -> None:
        self.peak = 0
        self.now()

    def unreserved(self) -> Optional[int]:
        return self.free

    def allocate(self, size: int) -> Optional[torch.Tensor]:
        self.calls += 1
        if self.calls == self.refuse:
            return None
        self.borrowed += size
        return torch.empty(size, dtype=torch.uint8)
