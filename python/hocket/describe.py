# SPDX-License-Identifier: Apache-2.0
"""The model document (schema hocket.model/1) that ``hocket plan --model FILE`` reads.

FLOPs and bytes come from a forward on fake tensors, which have shapes and no values. Where the
forward looks at values, they come from a real one.
"""

from __future__ import annotations

import logging
import weakref
from typing import (
    Any,
    Callable,
    Dict,
    Iterator,
    List,
    Mapping,
    NamedTuple,
    Optional,
    Sequence,
    Tuple,
)

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from .blocks import Block, find_blocks
from .errors import HocketUsageError

log = logging.getLogger("hocket")

SCHEMA = "hocket.model/1"
TYPE_NAMES = {torch.bfloat16: "bf16", torch.float16: "fp16", torch.float32: "fp32"}
TENSOR_NAME, BLOCK_NAME, MODEL_NAME = 159, 71, 95  # longest, as hocket reads them


class Costs(NamedTuple):
    """For each block: FLOPs of forward, bytes kept for backward, further bytes at its peak."""

    flops: List[float]
    activations: List[int]
    workspace: List[int]
    micro_batch: int
    seq: int


def describe(
    model: nn.Module, batch: Any = None, *, accumulate: Optional[torch.dtype] = None
) -> Dict[str, Any]:
    """Describes a model for planning. Nothing is computed: shapes are propagated with fake
    tensors, so a model of any size on any device will do, "meta" included.

    A forward that looks at values (``.item()``, routing by mask) cannot run on shapes. It is run
    twice as it is, where model and batch lie; memory and time are those of a forward. Weights,
    buffers, gradients and the random state stay as they are.

    Args:
        model: the model. Parameters that do not require gradients count as "frozen_bytes" of their
            blocks only.
        batch: what one forward gets: a dict (keyword arguments), a tuple or list (positional), or
            one tensor. None: tensors and blocks only, no FLOPs and activations.
        accumulate: as of hocket.AdamW.

    Returns:
        A dict to be written as JSON: ``{"schema", "name", "blocks", "tensors", "micro_batch",
        "seq"}``. Blocks are in the order of forward; bytes and FLOPs are of one micro-batch.

    Raises:
        HocketUsageError: no parameter requires a gradient, a type that hocket cannot hold, or a
            forward that looks at values, of a model or batch on "meta".
    """
    return described(model, batch, accumulate)[0]


def described(
    model: nn.Module, batch: Any, accumulate: Optional[torch.dtype]
) -> Tuple[Dict[str, Any], List[Block]]:
    """The document of describe(), and the blocks."""
    named = [
        (name, param)
        for name, param in model.named_parameters()
        if param.requires_grad and param.numel()
    ]
    names = [name for name, _ in named]
    order, costs = {}, None
    if batch is not None:
        order = trace_order(model, batch)
    blocks = find_blocks(model, names, order)
    if batch is not None:
        costs = measure(model, batch, blocks)
    out = document(type(model).__name__, named, blocks, costs, accumulate)
    for number, size in enumerate(frozen_bytes(model, blocks)):
        if size:
            out["blocks"][number]["frozen_bytes"] = size
    return out, blocks


def frozen_bytes(model: nn.Module, blocks: Sequence[Block]) -> List[int]:
    """Bytes of parameters that do not require gradients, by block. Those of modules that belong to
    no block are the first block's."""
    sizes = [0] * len(blocks)
    for name, param in model.named_parameters():
        if param.requires_grad:
            continue
        owners = (
            number
            for number, block in enumerate(blocks)
            if any(name.startswith(module + ".") for module in block.modules)
        )
        sizes[next(owners, 0)] += param.numel() * param.element_size()
    return sizes


def document(
    name: str,
    tensors: Sequence[Tuple[str, Tensor]],
    blocks: Sequence[Block],
    costs: Optional[Costs] = None,
    accumulate: Optional[torch.dtype] = None,
) -> Dict[str, Any]:
    """The document of these tensors and blocks."""
    if not tensors:
        raise HocketUsageError("no parameter requires a gradient: there is nothing to train")
    by_name = dict(tensors)
    for key, param in tensors:
        if param.dtype not in TYPE_NAMES:
            raise HocketUsageError(
                f"{key} has type {param.dtype}: hocket takes bfloat16, float16 and float32"
            )
    return {
        "schema": SCHEMA,
        "name": _tail(name, MODEL_NAME),
        "blocks": [
            {
                "name": _tail(block.name, BLOCK_NAME),
                "forward_flops": costs.flops[number] if costs else 0,
                "activation_bytes": costs.activations[number] if costs else 0,
                "workspace_bytes": costs.workspace[number] if costs else 0,
            }
            for number, block in enumerate(blocks)
        ],
        "tensors": [
            {
                "name": _tail(key, TENSOR_NAME),
                "numel": by_name[key].numel(),
                "block": number,
                "weight_type": TYPE_NAMES[by_name[key].dtype],
                "grad_type": TYPE_NAMES[accumulate or by_name[key].dtype],
            }
            for number, block in enumerate(blocks)
            for key in block.tensors
        ],
        "micro_batch": costs.micro_batch if costs else 1,
        "seq": costs.seq if costs else 1,
    }


def _tail(text: str, most: int) -> str:
    while len(text.encode()) > most:
        text = text[1:]
    return text


# -- Running a model -----------------------------------------------------------------------------


class Call(NamedTuple):
    """A batch, as the arguments of a forward."""

    args: Tuple[Any, ...]
    kwargs: Dict[str, Any]


def arguments(batch: Any) -> Tuple[Tuple[Any, ...], Dict[str, Any]]:
    """A batch as positional and keyword arguments."""
    if isinstance(batch, Call):
        return batch.args, batch.kwargs
    if isinstance(batch, Mapping):
        return (), dict(batch)
    if isinstance(batch, (tuple, list)):
        return tuple(batch), {}
    return (batch,), {}


def batch_size(batch: Any) -> Tuple[int, int]:
    """Sequences (or samples) and positions of a batch: the first two sizes of its first tensor. If
    that is not a matrix of integers, the second is 1 (an image has no positions)."""
    args, kwargs = arguments(batch)
    for value in (*args, *kwargs.values()):
        if isinstance(value, Tensor) and value.dim() >= 1:
            sequence = value.dim() == 2 and not value.is_floating_point()
            return max(1, value.size(0)), max(1, value.size(1)) if sequence else 1
    return 1, 1


def _faked(mode: Any, value: Any) -> Any:
    if isinstance(value, Tensor):
        return _fake(mode, value)
    if isinstance(value, (list, tuple)):
        return type(value)(_faked(mode, item) for item in value)
    if isinstance(value, Mapping):
        return {key: _faked(mode, item) for key, item in value.items()}
    return value


def _fake(mode: Any, value: Tensor) -> Tensor:
    with mode:
        fake = torch.empty_strided(
            value.size(),
            value.stride(),
            dtype=value.dtype,
            device="cpu" if value.device.type == "meta" else value.device,
        )
        return fake.requires_grad_(value.requires_grad)


Around = Callable[[Callable[[], Any], Dict[str, Tensor]], Any]
"""Gets a function that runs the model, and the tensors that stand for its state, by name."""


def observed(model: nn.Module, batch: Any, around: Around) -> Any:
    """Calls `around` for a forward on fake tensors; if that fails, for a real one."""
    try:
        return on_fakes(model, batch, around)
    except Exception as error:
        # Of many kinds: what reads values says so in its own way (.item(), .tolist(), numpy(),
        # a kernel that asks for an address).
        if _without_values(model, batch):
            raise _looks_at_values(error) from error
        log.info("a real forward describes the model, because shapes alone do not: %s", error)
    return on_reals(model, batch, around)


def _without_values(model: nn.Module, batch: Any) -> bool:
    tensors = (*model.parameters(), *model.buffers(), *tensors_in(arguments(batch)))
    return any(tensor.device.type == "meta" for tensor in tensors)


def _looks_at_values(error: Exception) -> HocketUsageError:
    return HocketUsageError(
        f"the model's forward cannot run on shapes alone ({error}): give model and batch memory "
        "and values, so that a real forward is run, describe the model without a batch, or take "
        "a batch that needs no look at values (for transformers: without attention_mask)"
    )


def on_reals(model: nn.Module, batch: Any, around: Around) -> Any:
    """Calls ``around(forward, state)``; ``forward()`` runs the model as it is, with copies of its
    buffers. Neither they nor the random state change."""
    state: Dict[str, Tensor] = {}
    copies: Dict[int, Tensor] = {}
    for name, buffer in model.named_buffers(remove_duplicate=False):
        state[name] = copies.setdefault(id(buffer), buffer.detach().clone())
    state.update(model.named_parameters(remove_duplicate=False))
    args, kwargs = arguments(batch)

    def forward() -> Any:
        return torch.func.functional_call(model, state, args, kwargs, tie_weights=False)

    devices = {tensor.device for tensor in state.values() if tensor.device.type == "cuda"}
    with torch.random.fork_rng([device.index for device in devices]), torch.enable_grad():
        return around(forward, state)


def on_fakes(model: nn.Module, batch: Any, around: Around) -> Any:
    """Calls ``around(forward, fake state)`` in a fake mode; ``forward()`` runs the model."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    mode = FakeTensorMode(allow_non_fake_inputs=True)
    state: Dict[str, Tensor] = {}
    seen: Dict[int, Tensor] = {}
    for name, value in (
        *model.named_parameters(remove_duplicate=False),
        *model.named_buffers(remove_duplicate=False),
    ):
        if id(value) not in seen:
            seen[id(value)] = _fake(mode, value)
        state[name] = seen[id(value)]
    args, kwargs = arguments(batch)
    args, kwargs = _faked(mode, args), _faked(mode, kwargs)

    def forward() -> Any:
        return torch.func.functional_call(model, state, args, kwargs, tie_weights=False)

    with mode, torch.enable_grad():
        return around(forward, state)


class _Order(TorchDispatchMode):
    """Records the order in which operations first use certain tensors."""

    def __init__(self, watched: Mapping[int, str]) -> None:
        super().__init__()
        self.watched = watched
        self.order: Dict[str, int] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for value in tensors_in((args, kwargs)):
            name = self.watched.get(id(value))
            if name is not None:
                self.order.setdefault(name, len(self.order))
        return func(*args, **(kwargs or {}))


def tensors_in(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from tensors_in(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from tensors_in(item)


def trace_order(model: nn.Module, batch: Any) -> Dict[str, int]:
    """Name of a parameter -> position of its first use in forward."""
    firsts = {name for name, _ in model.named_parameters()}

    def around(forward: Callable[[], Any], state: Dict[str, Tensor]) -> Dict[str, int]:
        order = _Order({id(fake): name for name, fake in state.items() if name in firsts})
        with order:
            forward()
        return order.order

    found: Dict[str, int] = observed(model, batch, around)
    return found


class _Meter(TorchDispatchMode):
    """Counts FLOPs and the bytes of living tensors of the current block."""

    def __init__(self, n_blocks: int, block_of: Mapping[int, int]) -> None:
        super().__init__()
        from torch.utils.flop_counter import flop_registry

        self.registry = flop_registry
        self.block_of = block_of
        self.current = 0
        self.flops = [0.0] * n_blocks
        self.saved = [0] * n_blocks
        self.peak = [0] * n_blocks
        self.live = 0
        self.tail_peak = 0
        self._known: Dict[int, int] = {}
        self._saved: Dict[int, int] = {}

    def watch(self, storage: Any, counts: bool = True) -> None:
        key = storage._cdata
        if key in self._known:
            return
        self._known[key] = size = storage.nbytes() if counts else 0
        self.live += size
        self.peak[self.current] = max(self.peak[self.current], self.live)
        weakref.finalize(storage, self._gone, key)

    def _gone(self, key: int) -> None:
        self.live -= self._known.pop(key, 0)
        self._saved.pop(key, None)  # the next storage may lie at the same address

    def save(self, tensor: Tensor) -> Tensor:
        """A saved_tensors hook: a block keeps what its operations save, each storage once.

        Returns a detached tensor: an operation that saves its own output would otherwise hold
        itself, and the garbage collector does not see such a cycle.
        """
        storage = tensor.untyped_storage()
        if storage._cdata not in self._saved and self._known.get(storage._cdata):
            self._saved[storage._cdata] = self.current
            self.saved[self.current] += storage.nbytes()
        return tensor.detach()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        for value in tensors_in((args, kwargs)):
            block = self.block_of.get(id(value))
            if block is not None and block > self.current:
                self.current = block
            self.watch(value.untyped_storage(), False)  # what no operation has made is the caller's
        out = func(*args, **kwargs)
        counter = self.registry.get(func._overloadpacket)
        if counter is not None:
            self.flops[self.current] += counter(*args, **kwargs, out_val=out)
        else:
            name = func._overloadpacket.__name__
            self.flops[self.current] += _unregistered_flops(name, args, out)
        for value in tensors_in(out):
            self.watch(value.untyped_storage())
        return out


def _unregistered_flops(name: str, args: Any, out: Any) -> float:
    """FLOPs of a forward operation that torch's registry may lack; 0 for all others."""
    if name.startswith("_scaled_dot_product_") and not name.endswith("_backward"):
        # Attention: query times key, then weights times value. torch 2.4 has no counter for cuDNN's
        # operation and none for the CPU's, to which a model without memory is dispatched.
        query, key, value = args[:3]
        size: int = query.size(-1) + value.size(-1)
        rows: int = query.numel() // query.size(-1) * key.size(-2)
        return 2.0 * rows * size
    if "grouped_mm" in name and isinstance(out, Tensor):  # products of experts, rows by expert
        numel: int = args[0].numel() * out.size(-1)
        return 2.0 * numel
    return 0.0


def measure(
    model: nn.Module,
    batch: Any,
    blocks: Sequence[Block],
    run: Callable[[nn.Module, Any, Around], Any] = observed,
) -> Costs:
    """FLOPs and bytes of each block's forward.

    A block begins where one of its parameters is used for the first time.

    Args:
        run: observed, on_fakes or on_reals.
    """
    number_of = {name: n for n, block in enumerate(blocks) for name in block.tensors}

    def around(forward: Callable[[], Any], state: Dict[str, Tensor]) -> _Meter:
        meter = _Meter(
            len(blocks),
            {id(fake): number_of[name] for name, fake in state.items() if name in number_of},
        )
        for fake in state.values():
            meter._known[fake.untyped_storage()._cdata] = 0
        with meter, torch.autograd.graph.saved_tensors_hooks(meter.save, lambda saved: saved):
            try:
                scalar: Optional[Tensor] = scalar_of(forward(), None)
            except StopIteration:  # no tensor is returned
                scalar = None
        with meter:
            meter.tail_peak = tail_peak(meter, scalar, state)
        return meter

    def tail_peak(meter: _Meter, scalar: Optional[Tensor], state: Dict[str, Tensor]) -> int:
        """Most bytes that live while the loss's gradient reaches the last block's parameters, those
        gradients left out. Backward of other blocks may be recomputed, with parameters that the
        fake mode does not have any more."""
        if scalar is None:
            return 0
        last = len(blocks) - 1
        tail = [state[name] for name in blocks[last].tensors if state[name].requires_grad]
        before = (meter.peak[last], meter.flops[last])
        meter.current, meter.peak[last] = last, 0
        try:
            torch.autograd.grad(scalar, tail, allow_unused=True)
        except (RuntimeError, NotImplementedError):
            meter.peak[last] = 0  # operations without a gradient
        found = meter.peak[last] - sum(param.untyped_storage().nbytes() for param in tail)
        meter.peak[last], meter.flops[last] = before
        return max(0, found)

    meter: _Meter = run(model, batch, around)
    workspace, held = [], 0
    for number in range(len(blocks)):
        held += meter.saved[number]
        workspace.append(max(0, meter.peak[number] - held))
    workspace[-1] = max(workspace[-1], meter.tail_peak - held)
    micro_batch, seq = batch_size(batch)
    return Costs(meter.flops, meter.saved, workspace, micro_batch, seq)


def scalar_of(value: Any, loss: Optional[Callable[[Any], Any]]) -> Tensor:
    """The scalar to begin a backward with: `loss` of what a model returned; None: its ``loss``, or
    the sum of its first tensor."""
    if loss is not None:
        scalar: Tensor = loss(value)
        return scalar
    given = getattr(value, "loss", None)
    if isinstance(given, Tensor):
        return given
    values = list(value.values()) if isinstance(value, Mapping) else value
    return next(tensors_in(values)).float().sum()
