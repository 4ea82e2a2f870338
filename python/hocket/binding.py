# SPDX-License-Identifier: Apache-2.0
"""The engine of one optimizer, and the table of tensors that both sides number alike.

Made at the first step (or the first gradient of an attached model), because until then frameworks
move models, change their types and load checkpoints.
"""

from __future__ import annotations

import array
import contextlib
import ctypes
from operator import is_
from typing import (
    Any,
    Callable,
    ContextManager,
    Dict,
    List,
    Mapping,
    NamedTuple,
    Optional,
    Sequence,
    Tuple,
)

import torch
from torch import Tensor

from . import _abi, direct, ranks
from .blocks import Block, is_dense
from .errors import HocketError, HocketUsageError
from .names import Nameless, name_in_modules

TYPES: Dict[torch.dtype, int] = {
    torch.bfloat16: _abi.BF16,
    torch.float16: _abi.FP16,
    torch.float32: _abi.FP32,
}
HYPERPARAMETERS = ("lr", "betas", "eps", "weight_decay")
BLOCK_NUMEL = 1 << 26
"""Most elements of a block where no model says what a block is; a larger tensor is a block of its
own."""


class Settings(NamedTuple):
    """What the engine is created with; see hocket.AdamW."""

    max_norm: Optional[float]
    overlap: str
    plan: Optional[str]
    backend: Optional[str]
    cpu_threads: Optional[int]
    host_memory: Optional[int]
    gpu_memory: Optional[int]
    accumulate: Optional[torch.dtype]
    accumulation_steps: Optional[int] = None
    clip: str = "norm"
    clip_share: Optional[float] = None
    state: Optional[str] = None
    seed: int = 0


class Entry(NamedTuple):
    """One tensor, before it has a number."""

    name: str
    param: Tensor
    group: int
    number: int
    """Its position among all parameters of all groups, as in torch's state_dict."""


def hyper(group: Mapping[str, Any]) -> Tuple[float, float, float, float, float]:
    """lr, beta1, beta2, eps, weight_decay of a param group; values may be tensors."""
    beta1, beta2 = group["betas"]
    return (
        float(group["lr"]),
        float(beta1),
        float(beta2),
        float(group["eps"]),
        float(group["weight_decay"]),
    )


def trainable(param_groups: Sequence[Mapping[str, Any]], names: Mapping[int, str]) -> List[Entry]:
    """The tensors that an engine takes: those that require gradients and have elements, once each.

    Args:
        param_groups: of the optimizer.
        names: id of a parameter to its name, of those whose name is known.
    """
    entries: List[Entry] = []
    seen: Dict[int, str] = {}
    number = 0
    for index, group in enumerate(param_groups):
        given = group.get("param_names")
        for place, param in enumerate(group["params"]):
            name = names.get(id(param)) or (given[place] if given else Nameless(number, param))
            number += 1
            if hasattr(param, "ds_id"):  # it has no elements now
                raise HocketUsageError(
                    f"{name} belongs to DeepSpeed ZeRO-3, which holds its values itself: pass the "
                    "optimizer to deepspeed.initialize() and call engine.step(), without attach; "
                    "for updates that overlap shard the model with FSDP2 "
                    "(torch.distributed.fsdp.fully_shard) instead"
                )
            if id(param) in seen or not param.requires_grad or ranks.local(param).numel() == 0:
                continue
            seen[id(param)] = name
            entries.append(Entry(name, param, index, number - 1))
    return entries


def check_tensor(name: str, param: Tensor) -> None:
    """Refuses what an engine cannot hold, by name."""
    if getattr(param, "_fsdp_flattened", False):
        raise HocketUsageError(
            f"{name} belongs to FSDP1, which shards without saying how: use FSDP2 "
            "(torch.distributed.fsdp.fully_shard), or DDP"
        )
    param = ranks.local(param)
    if param.is_complex():
        raise HocketUsageError(f"{name} is complex: hocket.AdamW takes real parameters only")
    if param.layout is not torch.strided:
        raise HocketUsageError(f"{name} is sparse ({param.layout}): hocket.AdamW takes dense ones")
    if param.dtype not in TYPES:
        raise HocketUsageError(
            f"{name} has type {param.dtype}: hocket.AdamW takes bfloat16, float16 and float32"
        )
    if param.device.type not in ("cpu", "cuda"):
        raise HocketUsageError(
            f"{name} is on device {param.device}: hocket.AdamW takes parameters on a CUDA device, "
            "or on the CPU for the host backend"
        )
    if not is_dense(param):
        raise HocketUsageError(
            f"{name} has strides {tuple(param.stride())} for shape {tuple(param.shape)}, which "
            "leave gaps or overlap: hocket.AdamW writes whole pieces of memory; make it contiguous"
        )


class Binding:
    """An engine and its tensors.

    Attributes:
        engine: the engine.
        params: parameter of each tensor, in the engine's order. Of a DTensor, this rank has a part.
        parts: what of each lies on this rank; of a whole parameter the parameter itself.
        names, blocks, groups: name, block number and group number of each.
        index: id of a parameter to its number.
        empty: parameters that have no element on this rank.
        block_names: name of each block.
        device: the device of all parameters.
        addresses: where each parameter lay when it was bound.
        versions: version of each parameter when read_versions() was called.
        loaded: masters of a state_dict that do not round to the weights, until the next step. The
            model's weights may be loaded after the optimizer's state.
        direct: looks at all parameters by one call; None: Python looks at each.
    """

    def __init__(
        self,
        entries: Sequence[Entry],
        blocks: Optional[Sequence[Block]],
        param_groups: Sequence[Mapping[str, Any]],
        settings: Settings,
        plan: Optional[str],
    ) -> None:
        if not entries:
            raise HocketUsageError(
                "no parameter requires a gradient: hocket.AdamW has nothing to train"
            )
        for entry in entries:
            check_tensor(entry.name, entry.param)
        ordered, numbers, self.block_names = _ordered(entries, blocks)
        self.params: List[Tensor] = [entry.param for entry in ordered]
        self.parts: List[Tensor] = list(map(ranks.local, self.params))
        self.names: List[str] = [entry.name for entry in ordered]
        self.groups: List[int] = [entry.group for entry in ordered]
        self._numbers: List[int] = [entry.number for entry in ordered]
        self.blocks: List[int] = numbers
        self.index: Dict[int, int] = {id(p): number for number, p in enumerate(self.params)}
        every = [param for group in param_groups for param in group["params"]]
        left = [param for param in every if id(param) not in self.index]
        self.empty = [p for p in left if p.requires_grad and not ranks.local(p).numel()]
        self._groups_then = [list(group["params"]) for group in param_groups]
        self._frozen = [param for param in left if ranks.local(param).numel()]
        self.device = _one_device(self.names, self.parts)
        self.backend = _backend(settings.backend, self.device)
        self.accumulate = settings.accumulate
        self.grad_types: List[torch.dtype] = [
            settings.accumulate or param.dtype for param in self.params
        ]
        self.addresses: List[int] = [part.data_ptr() for part in self.parts]
        self.types: List[torch.dtype] = [part.dtype for part in self.parts]
        self.contiguous: List[bool] = [part.is_contiguous() for part in self.parts]
        _check_apart(self.names, self.parts, self.addresses)
        self.direct = self.direct_of(range(len(self.params)))
        self.versions = self.direct.versions if self.direct else array.array("q")
        self.read_versions()
        self.loaded: Dict[int, Tensor] = {}
        self.hyper = [hyper(group) for group in param_groups]
        self.stream = self._stream_function()
        if self.device.type == "cuda":
            # The engine cannot take memory that torch's allocator keeps for later.
            torch.cuda.empty_cache()
        # Of the memory itself: when a program assigns p.data, the tensor lets go of its memory, to
        # which an update may still write.
        weights = [part.detach() for part in self.parts]
        self.engine = _abi.Engine(
            plan, self._tensors(), self._groups(), self._options(settings), weights
        )

    def block_members(self) -> List[List[str]]:
        """Names of the tensors of each block."""
        members: List[List[str]] = [[] for _ in self.block_names]
        for name, block in zip(self.names, self.blocks):
            members[block].append(name)
        return members

    @property
    def n_blocks(self) -> int:
        """Number of blocks."""
        return len(self.block_names)

    def _stream_function(self) -> Callable[[], int]:
        if self.device.type != "cuda":
            return lambda: 0
        raw: Optional[Callable[[int], int]] = getattr(torch._C, "_cuda_getCurrentRawStream", None)
        number = self.device.index
        if raw is not None:
            return lambda: raw(number)
        return lambda: torch.cuda.current_stream(number).cuda_stream

    def on(self, stream: int) -> ContextManager[Any]:
        """Makes it the current stream."""
        if stream == self.stream():
            return contextlib.nullcontext()
        own = torch.cuda.ExternalStream(stream, self.device) if stream else None
        return torch.cuda.stream(own or torch.cuda.default_stream(self.device))

    def _tensors(self) -> "ctypes.Array[_abi.Tensor]":
        """The engine's table. A tensor's name there is its position in the param groups, the same
        attached or not: by it the tensor is found in a file."""
        table = (_abi.Tensor * len(self.params))()
        for i, part in enumerate(self.parts):
            table[i] = _abi.Tensor(
                f"parameter {self._numbers[i]}".encode(),
                part.numel(),
                self.blocks[i],
                self.groups[i],
                TYPES[part.dtype],
                TYPES[self.grad_types[i]],
                self.addresses[i],
            )
        return table

    def _groups(self) -> "ctypes.Array[_abi.Group]":
        return (_abi.Group * len(self.hyper))(*(_abi.Group(*values) for values in self.hyper))

    def _options(self, settings: Settings) -> _abi.Options:
        return _abi.Options(
            self.backend.encode(),
            self.device.index or 0,
            _abi.OVERLAPS[settings.overlap],
            settings.cpu_threads or 0,
            0,
            0,
            settings.host_memory or 0,
            settings.gpu_memory or 0,
            _abi.CLIPS[settings.clip],
            None if settings.state is None else settings.state.encode(),
            settings.seed,
        )

    def sync_groups(self, param_groups: Sequence[Mapping[str, Any]]) -> None:
        """Passes on what schedulers have changed."""
        for number, group in enumerate(param_groups):
            values = hyper(group)
            if values != self.hyper[number]:
                self.engine.set_group(number, _abi.Group(*values))
                self.hyper[number] = values

    def forget_groups(self) -> None:
        """Passes all hyperparameters on at the next step, because a file has replaced them."""
        self.hyper = [(float("nan"),) * 5 for _ in self.hyper]

    def direct_of(self, numbers: Sequence[int]) -> Optional[direct.Direct]:
        """Looks at these parameters by one call; None if that is not possible."""
        found = direct.functions()
        params = [self.params[number] for number in numbers]
        plain = set(map(type, params)) <= {Tensor, torch.nn.Parameter}
        if found is None or not plain or any(map(ranks.is_shared, params)):
            return None
        types = [self.grad_types[number] for number in numbers]
        return direct.Direct(found, params, numbers, types)

    def read_versions(self) -> None:
        """Reads the versions of all parameters."""
        if self.direct is not None:
            self.direct.update()
        else:
            self.versions = array.array("q", map(ranks.version, self.params))

    def unchanged(self) -> bool:
        """Whether all parameters are where they were, and not written since read_versions()."""
        if self.direct is not None:
            return self.direct.unchanged()
        return (
            self._addresses_now() == self.addresses
            and array.array("q", map(ranks.version, self.params)) == self.versions
        )

    def _addresses_now(self) -> List[int]:
        return [ranks.local(param).data_ptr() for param in self.params]

    def check_in_place(self) -> None:
        """HocketError where a parameter has moved, or changed its type, since it was bound."""
        if self._addresses_now() == self.addresses:
            return
        parts = map(ranks.local, self.params)
        for name, param, address, dtype in zip(self.names, parts, self.addresses, self.types):
            if param.data_ptr() == address:
                continue
            what = (
                "has been moved"
                if param.device != self.device
                else (
                    "has changed its type"
                    if param.dtype != dtype
                    else "has been given other memory"
                )
            )
            now = (param.dtype, param.device)
            was = (
                f" (it was {dtype} on {self.device}, it is {now[0]} on {now[1]})"
                if now != (dtype, self.device)
                else ""
            )
            raise HocketUsageError(
                f"{name} {what} since the first step{was}: move, convert and wrap the model first, "
                "write weights in place (p.copy_() under torch.no_grad()), or make a new optimizer "
                "and load this one's state_dict()"
            )

    def has_all(self, param_groups: Sequence[Mapping[str, Any]]) -> bool:
        """Whether each group has the parameters that it had when it was bound, in that order."""
        return len(param_groups) == len(self._groups_then) and all(
            len(group["params"]) == len(then) and all(map(is_, group["params"], then))
            for group, then in zip(param_groups, self._groups_then)
        )

    def check_frozen(self) -> None:
        """HocketUsageError where a parameter that was frozen when it was bound has a gradient."""
        for param in self._frozen:
            if param.grad is not None:
                name = name_in_modules(param) or "a parameter"
                raise HocketUsageError(
                    f"{name} of shape {tuple(param.shape)} has a gradient, but did not "
                    "require one at the first step: make a new hocket.AdamW after unfreezing and "
                    "load this one's state_dict() into it"
                )

    # -- Gradients ----------------------------------------------------------------------------

    def prepared(self, numbers: Sequence[int], grads: Sequence[Tensor]) -> List[Tensor]:
        """This rank's part of each gradient, in the engine's type and the parameter's layout, for
        the current stream."""
        reads = self.device.type == "cuda" and any(
            ranks.is_shared(self.params[number]) for number in numbers
        )
        reader = torch.cuda.current_stream(self.device) if reads else None
        return [self._prepared(number, grad, reader) for number, grad in zip(numbers, grads)]

    def _prepared(self, number: int, grad: Tensor, reader: Any) -> Tensor:
        if ranks.is_shared(self.params[number]):
            grad = ranks.gradient_part(self.names[number], self.params[number], grad, reader)
        param = self.parts[number]
        if grad.layout is not torch.strided:
            raise HocketUsageError(
                f"{self.names[number]} has a sparse gradient ({grad.layout}): hocket.AdamW takes "
                "dense ones (torch.nn.Embedding(sparse=False))"
            )
        if grad.device != self.device:
            raise HocketUsageError(
                f"the gradient of {self.names[number]} is on {grad.device}, the parameter was on "
                f"{self.device} when it was bound: gradients stay beside their parameters"
            )
        if grad.shape != param.shape:
            raise HocketUsageError(
                f"the gradient of {self.names[number]} has shape {tuple(grad.shape)}, the "
                f"parameter {tuple(param.shape)}"
            )
        wanted = self.grad_types[number]
        same_layout = (
            grad.is_contiguous() if self.contiguous[number] else grad.stride() == param.stride()
        )
        if grad.dtype is wanted and same_layout:
            return grad
        if grad.dtype is not wanted and self.accumulate is None:
            self.check_in_place()  # says so if the parameter has changed its type
            raise HocketUsageError(
                f"the gradient of {self.names[number]} has type {grad.dtype}, the parameter "
                f"{param.dtype}: hocket.AdamW takes gradients of the parameter's type; leave "
                "p.grad_dtype alone (an attached hocket.AdamW with accumulate=torch.float32 adds "
                "gradients in float32)"
            )
        return torch.empty_like(param, dtype=wanted).copy_(grad)

    def read_gradient(self, number: int) -> Tensor:
        """This rank's part of a gradient as handed over so far, on the host, in the parameter's
        layout."""
        param = self.parts[number]
        out = torch.empty_strided(param.size(), param.stride(), dtype=self.grad_types[number])
        self.engine.read_gradient(number, out.data_ptr())
        return out

    # -- State --------------------------------------------------------------------------------

    def read(self, part: int, number: int) -> Tensor:
        """This rank's part of one tensor's master weights, momentum or variance: fp32 on the
        host."""
        param = self.parts[number]
        out = torch.empty_strided(param.size(), param.stride(), dtype=torch.float32)
        self.engine.read(part, number, 0, param.numel(), out.data_ptr())
        return out

    def write(self, part: int, number: int, value: Tensor) -> None:
        """The inverse of read; any real type, device and layout of the right shape."""
        param = self.parts[number]
        if tuple(value.shape) != tuple(param.shape):
            raise HocketUsageError(
                f"state of shape {tuple(value.shape)} for {self.names[number]}, which has shape "
                f"{tuple(param.shape)}: the state_dict is of another model"
            )
        if (
            value.dtype is not torch.float32
            or value.device.type != "cpu"
            or value.stride() != param.stride()
        ):
            value = torch.empty_strided(param.size(), param.stride(), dtype=torch.float32).copy_(
                value
            )
        self.engine.write(part, number, 0, param.numel(), value.data_ptr())

    def merge_master(self, number: int, master: Tensor) -> int:
        """Writes the master where it rounds to the weight, else the weight itself.

        Returns how many elements of `master` were stale.
        """
        weight = self.parts[number].detach().cpu()
        stale = master.to(weight.dtype) != weight
        count = int(stale.sum())
        if count:
            master = torch.where(stale, weight.float(), master)
        self.write(_abi.P, number, master)
        return count

    def refresh_master(self, number: int) -> int:
        """Replaces master weights that no longer round to the weights: by those of the state_dict
        loaded since the last step that do, else by the weights. Returns how many became weights."""
        loaded = self.loaded.pop(number, None)
        if loaded is not None:
            return self.merge_master(number, loaded)
        self.engine.drain()
        master = self.read(_abi.P, number)
        weight = self.parts[number].detach().cpu()
        stale = master.to(weight.dtype) != weight
        count = int(stale.sum())
        if count:
            self.write(_abi.P, number, torch.where(stale, weight.float(), master))
        return count

    def follow_weights(self) -> None:
        """Masters follow weights that were written since read_versions(): where a master does not
        round to its weight any more, it becomes the weight."""
        if self.unchanged():
            return
        for number, param in enumerate(self.params):
            if ranks.version(param) != self.versions[number]:
                self.refresh_master(number)
                self.versions[number] = ranks.version(param)


def _ordered(
    entries: Sequence[Entry], blocks: Optional[Sequence[Block]]
) -> Tuple[List[Entry], List[int], List[str]]:
    """Entries in the engine's order, block number of each, names of blocks."""
    if blocks is not None:
        by_name = {entry.name: entry for entry in entries}
        ordered = [by_name[name] for block in blocks for name in block.tensors]
        numbers = [n for n, block in enumerate(blocks) for _ in block.tensors]
        return ordered, numbers, [block.name for block in blocks]
    numbers = []
    names: List[str] = []
    room = 0
    for entry in entries:
        numel = ranks.local(entry.param).numel()
        if not names or room < numel:
            names.append(entry.name)
            room = BLOCK_NUMEL
        room -= numel
        numbers.append(len(names) - 1)
    return list(entries), numbers, names


def _one_device(names: Sequence[str], params: Sequence[Tensor]) -> torch.device:
    device = params[0].device
    for name, param in zip(names, params):
        if param.device != device:
            raise HocketUsageError(
                f"{names[0]} is on {device}, but {name} on {param.device}: one hocket.AdamW has "
                "all its parameters on one device"
            )
    return device


def _backend(wanted: Optional[str], device: torch.device) -> str:
    found = "cuda" if device.type == "cuda" else "host"
    if wanted is not None and wanted != found:
        raise HocketUsageError(
            f"backend={wanted!r} with parameters on {device}: the host backend works on CPU "
            "tensors, the cuda backend on CUDA tensors"
        )
    return found


def _check_apart(names: Sequence[str], params: Sequence[Tensor], addresses: Sequence[int]) -> None:
    spans = sorted(
        (address, address + param.numel() * param.element_size(), name)
        for address, param, name in zip(addresses, params, names)
    )
    for (_, end, name), (begin, _, other) in zip(spans, spans[1:]):
        if begin < end:
            raise HocketUsageError(
                f"{name} and {other} are different parameters in the same memory: tie weights by "
                "sharing one nn.Parameter"
            )


__all__ = ["Binding", "Entry", "Settings", "HocketError", "hyper", "trainable", "check_tensor"]


def increment_versions(tensors: List[Tensor]) -> None:
    """Raises the tensors' versions, as a write in place does, so that autograd notices the
    update."""
    try:
        torch.autograd.graph.increment_version(tensors)
    except (RuntimeError, TypeError):  # torch 2.4 takes one tensor
        for tensor in tensors:
            torch.autograd.graph.increment_version(tensor)
