# SPDX-License-Identifier: Apache-2.0
"""Steps where a framework has put fp32 master weights of its own in place of the parameters.

DeepSpeed does so, with and without ZeRO. It hands over flat partitions, in ZeRO-3 one a step; it
writes them through ``.data``, and it keeps, writes and moves the tensors in ``opt.state`` between
steps. So no engine holds this state: it lies in plain tensors in host memory, and ``step()``
updates it there in place, with the bits of an engine.
"""

from __future__ import annotations

import os
import warnings
from ctypes import byref
from functools import partial
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Mapping, MutableMapping

import torch
from torch import Tensor

from . import _abi
from .binding import TYPES, hyper, increment_versions
from .checks import check_group
from .errors import HocketUsageError
from .ranks import local_ranks, quota

if TYPE_CHECKING:
    from .binding import Settings
    from .optim import AdamW

MOMENTS = ("exp_avg", "exp_avg_sq")
PIECE = 1 << 24
"""Most elements that are copied at a time, where weights are not in host memory."""
REFUSED = {
    "max_norm": "it clips by itself ('gradient_clipping' in its configuration)",
    "accumulate": "it adds gradients by itself",
    "plan": "the CPU updates all of it",
    "gpu_memory": "the CPU updates all of it",
    "host_memory": "momentum and variance take 8 bytes an element, whatever is allowed",
}


def replaced(opt: "AdamW") -> bool:
    """Whether a framework has put fp32 tensors of its own in place of this optimizer's
    parameters."""
    if not opt._replaced and not opt._plain:
        found = False
        for param in (param for group in opt.param_groups for param in group["params"]):
            if type(param) is not Tensor or param.dtype is not torch.float32:
                return False
            found = True
        if found:
            check(opt)
        opt._replaced = found
    return opt._replaced


def check(opt: "AdamW") -> None:
    """Refuses what hocket cannot do with state that another keeps."""
    settings = opt._settings
    if opt._attachment is not None:
        raise HocketUsageError(
            "attach(model) and then DeepSpeed, which keeps fp32 weights itself and reduces "
            "gradients before hocket sees them: leave attach out; for updates that overlap shard "
            "the model with FSDP2 (fully_shard) instead"
        )
    for name, why in REFUSED.items():
        if getattr(settings, name) is not None:
            raise HocketUsageError(
                f"{name}= with DeepSpeed, which keeps fp32 weights itself: {why}; leave {name} out"
            )
    if settings.state not in (None, "fp32"):
        raise HocketUsageError(
            f"state={settings.state!r} with DeepSpeed, which reads momentum and variance as fp32 "
            "tensors: leave state out"
        )
    if settings.overlap != "none":
        warnings.warn(
            f"hocket: overlap={settings.overlap!r} has no effect with DeepSpeed: step() updates "
            "before it returns, unless hocket.deepspeed.install(engine) lets ZeRO-3 overlap"
        )


def refuse(opt: "AdamW") -> None:
    """Refuses what needs an engine."""
    if replaced(opt):
        raise HocketUsageError(
            "this needs an engine, and there is none with DeepSpeed, which keeps fp32 weights "
            "itself: its own checkpoints (engine.save_checkpoint) hold weights and state"
        )


def step(opt: "AdamW") -> None:
    """One step of all parameters that have a gradient. ``opt._later``, if set, takes the updates
    and makes them after the step."""
    threads = _threads(opt._settings)
    for group in opt.param_groups:
        check_group(group)
        constants = _abi.Group(*hyper(group))
        updated = [param for param in group["params"] if param.grad is not None]
        for param in updated:
            entry = opt.state[param]
            _check(param, entry)
            number = int(entry["step"]) + 1
            update = partial(_update, constants, number, threads, param, entry)
            (opt._later or _now)(update)
            entry["step"] = torch.tensor(float(number))
        increment_versions(updated)


def _now(update: Callable[[], None]) -> None:
    update()


def loaded(state: Mapping[Tensor, Mapping[str, Any]]) -> Dict[Tensor, Dict[str, Any]]:
    """State of a state_dict, as step() keeps it."""
    return {
        param: {
            key: value.detach().to("cpu", torch.float32).contiguous() if key in MOMENTS else value
            for key, value in entry.items()
            if key != "master_weight"  # the parameter itself
        }
        for param, entry in state.items()
    }


def _threads(settings: "Settings") -> int:
    """Threads of the update. Other ranks of this host update at the same time."""
    cpus = quota(len(os.sched_getaffinity(0)))
    return settings.cpu_threads or max(1, cpus // local_ranks(1) - 1)


def _check(param: Tensor, entry: MutableMapping[str, Any]) -> None:
    """Makes the state of a parameter's first step; refuses what the update cannot take."""
    entry.setdefault("step", torch.tensor(0.0))
    for key in MOMENTS:
        if key not in entry:
            entry[key] = torch.zeros(param.shape, dtype=torch.float32)
        if entry[key].dtype is not torch.float32 or entry[key].shape != param.shape:
            raise HocketUsageError(
                f"opt.state has '{key}' of type {entry[key].dtype} and shape "
                f"{tuple(entry[key].shape)} for fp32 weights of shape {tuple(param.shape)}: "
                "hocket.AdamW updates fp32 state of the weights' shape"
            )
    grad = param.grad
    assert grad is not None
    if grad.layout is not torch.strided or grad.dtype not in TYPES or grad.shape != param.shape:
        raise HocketUsageError(
            f"a gradient of type {grad.dtype}, layout {grad.layout} and shape "
            f"{tuple(grad.shape)} for fp32 weights of shape {tuple(param.shape)}: hocket.AdamW "
            "takes dense ones of the weights' shape in bfloat16, float16 or float32"
        )


def _update(
    group: _abi.Group, number: int, threads: int, param: Tensor, entry: Mapping[str, Any]
) -> None:
    """Updates weights, momentum and variance in place; in pieces through host memory where they, or
    the gradient, cannot be reached directly."""
    assert param.grad is not None
    tensors: List[Tensor] = [param, *(entry[key] for key in MOMENTS), param.grad]
    tensors = [tensor.detach().view(1) if not tensor.dim() else tensor.detach() for tensor in tensors]
    rows, numel = len(tensors[0]), param.numel()
    if not numel:
        return
    many = rows if all(map(_is_direct, tensors)) else max(1, PIECE * rows // numel)
    for begin in range(0, rows, many):
        parts = [tensor[begin : begin + many] for tensor in tensors]
        near = [part if _is_direct(part) else _copy(part) for part in parts]
        state = _abi.State(near[0].numel(), TYPES[near[3].dtype], *(part.data_ptr() for part in near))
        _abi.call("hocket_adamw", byref(group), number, threads, byref(state))
        for part, copy in zip(parts[:3], near[:3]):
            if copy is not part:
                part.copy_(copy)


def _is_direct(tensor: Tensor) -> bool:
    return tensor.device.type == "cpu" and tensor.is_contiguous()


def _copy(tensor: Tensor) -> Tensor:
    pinned = tensor.device.type == "cuda"
    return torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=pinned).copy_(tensor)
