# SPDX-License-Identifier: Apache-2.0
"""hocket: AdamW for models whose optimizer state does not fit on the GPU.

::

    import hocket

    opt = hocket.AdamW(model.parameters(), lr=1e-4, weight_decay=0.1, max_norm=1.0,
                       overlap="forward")
    opt.attach(model)  # optional: gradients leave during backward, the update hides behind forward
    for batch in data:
        model(**batch).loss.backward()
        opt.step()
        opt.zero_grad()

Weights that are on their way are waited for wherever they are looked up in their module. Code that
keeps parameter tensors itself calls ``opt.synchronize()`` before it reads them after ``step()``.
Writing to ``p.data`` leaves no trace and is seen by chance: write to ``p`` under torch.no_grad().
"""

from typing import TYPE_CHECKING, Any

from . import deepspeed
from .describe import describe
from .errors import HocketError, HocketUsageError
from .fitting import Fits, fits
from .handle import GradientHandle
from .optim import AdamW
from .profiling import profile

if TYPE_CHECKING:
    from .trainer import TrainerCallback, TrainerFactory


def library_version() -> str:
    """Version of libhocket."""
    from . import _abi

    return _abi.version()


def __getattr__(name: str) -> Any:
    if name in ("TrainerCallback", "TrainerFactory"):  # need transformers
        from . import trainer

        return getattr(trainer, name)
    raise AttributeError(f"module 'hocket' has no attribute '{name}'")


__all__ = [
    "AdamW",
    "Fits",
    "GradientHandle",
    "HocketError",
    "HocketUsageError",
    "TrainerCallback",
    "TrainerFactory",
    "deepspeed",
    "describe",
    "fits",
    "library_version",
    "profile",
]
