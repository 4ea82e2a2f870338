# SPDX-License-Identifier: Apache-2.0
"""hocket.fits: what a model needs, and what this machine has, before anything is trained."""

from __future__ import annotations

import json
import os
import tempfile
from typing import Any, Callable, Dict, List, NamedTuple, Optional

import torch
from torch import nn

from . import _abi
from .describe import describe
from .errors import HocketUsageError
from .plan import run
from .ranks import local_ranks, world_size
from .sharded import is_sharded

MOST_BATCH = 1 << 16
KEPT_FREE = 0.97
"""Share of the GPU's memory that is planned with, as `hocket plan` does: allocators leave gaps."""


class Fits(NamedTuple):
    """What :func:`fits` has found. Sizes are in bytes; None: not known. ``print`` it, or look at
    its fields."""

    parameters: int
    """Parameters that are trained, on all ranks together."""
    gpu_needed: int
    """GPU memory with the optimizer state in host memory; without a batch, no activations."""
    gpu_needed_alone: int
    """GPU memory with everything on the GPU."""
    host_needed: int
    """Host memory of the optimizer; overlap "both" uses up to ``host_wanted``."""
    host_wanted: int
    """Host memory with which overlap "both" can update all parameters before the norm."""
    gpu_there: Optional[int]
    """What this process can have of the current GPU: free memory, and what torch holds."""
    host_there: int
    """Host memory that an engine may take now."""
    micro_batch: Optional[int]
    """Sequences of the batch."""
    largest_micro_batch: Optional[int]
    """The most sequences that fit on the GPU, of the batch's length; 0: not even one."""
    fits: Optional[bool]
    """Whether model and batch fit with the optimizer state in host memory."""
    advice: List[str]
    """What to do, one sentence each."""
    ranks: int = 1
    """Ranks that share out the model (FSDP2); the other figures are those of one of them."""

    def __str__(self) -> str:
        batch = (
            "without activations (no batch was given)"
            if self.micro_batch is None
            else f"at micro-batch {self.micro_batch}"
        )
        verdict = {True: "fits", False: "does not fit", None: "is not known to fit"}[self.fits]
        lines = [
            f"{self.parameters:,} parameters: {verdict} {batch}"
            + (f"; figures of each of {self.ranks} ranks" if self.ranks > 1 else ""),
            f"  GPU memory   needed {_gib(self.gpu_needed)} with hocket, "
            f"{_gib(self.gpu_needed_alone)} with everything on the GPU; "
            + (f"there {_gib(self.gpu_there)}" if self.gpu_there is not None else "no GPU here"),
            f"  host memory  needed {_gib(self.host_needed)}, overlap \"both\" uses up to "
            f"{_gib(self.host_wanted)}; there {_gib(self.host_there)}",
        ]
        if self.largest_micro_batch is not None:
            lines.append(f"  largest micro-batch on this GPU: {self.largest_micro_batch}")
        return "\n".join(lines + [f"- {sentence}" for sentence in self.advice])

    def __repr__(self) -> str:
        return str(self)


def fits(
    model: nn.Module,
    batch: Any = None,
    *,
    accumulate: Optional[torch.dtype] = None,
    state: str = "fp32",
) -> Fits:
    """Says what training a model with hocket needs, what is there, and what to do.

    Nothing is computed and no memory is taken: a model on the "meta" device will do (one whose
    forward looks at values is run, as :func:`describe` says). The figures are those of
    ``hocket estimate`` for one GPU; where torch.distributed has several ranks, those of each of
    them, with weights, gradients and state shared out by FSDP2, and the host's memory among its
    ranks (``LOCAL_WORLD_SIZE``, which torchrun sets, or ``LOCAL_SIZE``; else all).

    Args:
        model: the model, before it is sharded. Its frozen parameters count as weights only.
        batch: what one forward gets, as of :func:`describe`: its first tensor has sequences (or
            samples) first. None: needs without activations.
        accumulate: as of hocket.AdamW: the type of summed gradients.
        state: as of hocket.AdamW: how state is kept.

    Returns:
        Needs and what is there, in bytes, and micro-batches in sequences. ``print`` shows it with
        the advice.

    Raises:
        HocketUsageError: as :func:`describe` (code 2).
        HocketError: the program ``hocket`` or the library is missing (code 3), or the program
            refuses the model (its own code).

    Example::

        found = hocket.fits(model, batch)
        print(found)
        if found.fits is False:
            batch = batch[: found.largest_micro_batch]
    """
    if is_sharded(model):
        raise HocketUsageError("fits() of a model that is sharded: call it before fully_shard()")
    ranks = world_size()
    described = describe(model, batch, accumulate=accumulate)
    with tempfile.TemporaryDirectory(prefix="hocket-") as folder:
        path = os.path.join(folder, "model.json")
        with open(path, "w", encoding="utf-8") as file:
            json.dump(described, file)

        def estimate(micro_batch: int) -> Dict[str, Any]:
            sizes = ["--gpus", str(ranks), "--micro-batch", str(micro_batch), "--state", state]
            return run(["estimate", "--model", path, *sizes])

        host = _abi.host_memory() // local_ranks(ranks)
        return _judge(described, batch is not None, estimate, _gpu_there(), host, ranks)


def _gpu_there() -> Optional[int]:
    if not torch.cuda.is_available():
        return None
    return int((torch.cuda.mem_get_info()[0] + torch.cuda.memory_reserved()) * KEPT_FREE)


def _way(estimate: Dict[str, Any], name: str) -> Dict[str, Any]:
    found: Dict[str, Any] = next(way for way in estimate["ways"] if way["way"] == name)
    return found


def _judge(
    described: Dict[str, Any],
    has_batch: bool,
    estimate: Callable[[int], Dict[str, Any]],
    gpu: Optional[int],
    host: int,
    ranks: int,
) -> Fits:
    now = estimate(described["micro_batch"])
    parameters: int = now["parameters"]
    way = "zero-3" if ranks > 1 else "one GPU"
    offload, alone = _way(now, f"{way}, offload"), _way(now, way)
    host_needed = offload["host_bytes"] // ranks
    largest = None
    if gpu is not None and has_batch:
        room = gpu
        largest = _largest(lambda n: _way(estimate(n), f"{way}, offload")["gpu_bytes"] <= room)
    gpu_fits = None if gpu is None else offload["gpu_bytes"] <= gpu
    host_fits = host_needed <= host
    verdict: Optional[bool] = gpu_fits and host_fits if host_fits else False
    if verdict and not has_batch:
        verdict = None
    found = Fits(
        parameters=parameters,
        gpu_needed=offload["gpu_bytes"],
        gpu_needed_alone=alone["gpu_bytes"],
        host_needed=host_needed,
        host_wanted=host_needed + now["spares_bytes"] // ranks,
        gpu_there=gpu,
        host_there=host,
        micro_batch=described["micro_batch"] if has_batch else None,
        largest_micro_batch=largest,
        fits=verdict,
        advice=[],
        ranks=ranks,
    )
    return found._replace(advice=_advice(found, offload["smallest_gpu_gb"]))


def _largest(fitting: Callable[[int], bool]) -> int:
    """The largest number from 0 to MOST_BATCH for which `fitting` holds; it holds up to some."""
    low, high = 0, 1
    while high <= MOST_BATCH and fitting(high):
        low, high = high, min(2 * high, MOST_BATCH + 1)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fitting(middle) else (low, middle)
    return low


def _advice(found: Fits, smallest_gpu_gb: Optional[int]) -> List[str]:
    advice = []
    if found.gpu_there is None:
        advice.append(
            "This machine has no GPU: whether the model fits on one is not known. "
            + (
                f"A GPU of {smallest_gpu_gb} GB has room."
                if smallest_gpu_gb
                else "No GPU that hocket knows has room for it."
            )
        )
    if found.micro_batch is None:
        advice.append("Give a batch: what activations take is not known without one.")
    if found.gpu_there is not None and found.gpu_needed > found.gpu_there:
        advice.append(_too_large_for_the_gpu(found))
    if found.host_needed > found.host_there:
        missing = found.host_needed - found.host_there
        advice.append(
            f"{_gib(missing)} of host memory are missing: end other programs, or keep state on the "
            "GPU (gpu_memory=), or in fewer bytes (state=)."
        )
    elif found.host_wanted > found.host_there:
        part = (found.host_there - found.host_needed) / (found.host_wanted - found.host_needed)
        advice.append(
            f'overlap="both" can update about {part:.0%} of the parameters before the norm is '
            "known; the rest follows after it."
        )
    if found.fits:
        advice.append(_what_to_do(found))
    return advice


def _too_large_for_the_gpu(found: Fits) -> str:
    assert found.gpu_there is not None
    missing = f"{_gib(found.gpu_needed - found.gpu_there)} of GPU memory are missing: "
    if found.largest_micro_batch:
        return (
            missing + f"a micro-batch of {found.largest_micro_batch} fits; add micro-steps to keep "
            "the batch, or recompute activations (gradient checkpointing)."
        )
    return missing + "recompute activations (gradient checkpointing), or train fewer parameters."


def _what_to_do(found: Fits) -> str:
    assert found.gpu_there is not None
    if found.gpu_needed_alone <= found.gpu_there:
        return (
            "Everything fits on the GPU: torch.optim.AdamW will do. hocket would free "
            f"{_gib(found.gpu_needed_alone - found.gpu_needed)} for larger batches."
        )
    room = found.gpu_there - found.gpu_needed
    return (
        f'hocket.AdamW(..., overlap="both", gpu_memory={room:_}) uses all of the GPU\'s memory; '
        "less works, too."
    )


def _gib(size: int) -> str:
    return f"{size / 2**30:.1f} GiB"
