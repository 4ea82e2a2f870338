# SPDX-License-Identifier: Apache-2.0
"""The hooks and tables of parameters that attach() puts into a model. They hold weak references to
their Attachment. In copies and pickles of the model they do nothing."""

from __future__ import annotations

import sys
import weakref
from typing import TYPE_CHECKING, Any, Callable, Dict, Iterator, Optional, Tuple

import torch
from torch import Tensor, nn

from .describe import tensors_in

if TYPE_CHECKING:
    from .attach import Attachment


class GatedParameters(dict[str, Any]):
    """A module's ``_parameters``. A look-up waits until the parameter's weights have arrived. Its
    copies and pickles are plain dicts."""

    __slots__ = ("gates",)
    gates: Tuple["weakref.ref[Attachment]", ...]

    def __getitem__(self, name: str) -> Any:
        param = dict.__getitem__(self, name)
        if not torch.compiler.is_compiling():
            for gate in self.gates:
                attachment = gate()
                if attachment is not None and attachment.busy:
                    attachment.touch(param)
        return param

    def get(self, name: str, default: Any = None) -> Any:
        return self[name] if name in self else default

    def items(self) -> Any:
        return self._waiting() if self._busy() else dict.items(self)

    def values(self) -> Any:
        return (param for _, param in self._waiting()) if self._busy() else dict.values(self)

    def copy(self) -> Dict[str, Any]:
        return dict(self.items())

    def __reduce_ex__(self, protocol: Any) -> Any:
        return dict, (self.copy(),)

    def _busy(self) -> bool:
        if torch.compiler.is_compiling():
            return False
        return (
            any(
                attachment is not None and attachment.waits
                for attachment in (gate() for gate in self.gates)
            )
            and not _in_zero_grad()
        )

    def _waiting(self) -> Iterator[Tuple[str, Any]]:
        for name in list(self):
            yield name, self[name]


_ZERO_GRAD = nn.Module.zero_grad.__code__


def _in_zero_grad() -> bool:
    """Whether it is ``module.zero_grad()`` that iterates over the parameters. It reads no weight,
    and often comes directly after step(), where a wait would prevent all overlap."""
    frame = sys._getframe(2)
    for _ in range(12):
        if frame is None:
            return False
        if frame.f_code is _ZERO_GRAD:
            return True
        frame = frame.f_back  # type: ignore[assignment]
    return False


class Hook:
    """A hook on a module. Copies and pickles of it belong to no optimizer and do nothing."""

    def __init__(
        self,
        attachment: Optional["Attachment"],
        blocks: Tuple[int, ...] = (),
        phase: str = "before",
    ) -> None:
        self.attachment = weakref.ref(attachment) if attachment is not None else None
        self.blocks = blocks
        self.phase = phase

    def __call__(self, module: nn.Module, args: Any, output: Any = None) -> None:
        # For "trace", `output` is the keyword arguments.
        attachment = self.attachment() if self.attachment is not None else None
        if attachment is None:
            return
        if self.phase == "before":
            # is_compiling() is a constant in compiled code; the call is a graph break.
            _enter(attachment, module, self.blocks, args, torch.compiler.is_compiling())
        elif self.phase == "trace":
            attachment.begin_trace(args, output)
        elif self.phase in ("begins", "ends", "left"):
            attachment.forward_of_replicas(self.phase)
        elif self.phase == "owner":
            _enter_owner(attachment, module, self.blocks, args)
        else:
            attachment.mark_end(self.blocks, output)

    def __deepcopy__(self, memo: Any) -> "Hook":
        return Hook(None)

    def __reduce__(self) -> Any:
        return Hook, (None,)


@torch._disable_dynamo  # type: ignore[attr-defined]
def _enter(
    attachment: "Attachment", module: nn.Module, blocks: Tuple[int, ...], args: Any, compiled: bool
) -> None:
    attachment.enter(module, blocks, args, compiled)


@torch._disable_dynamo  # type: ignore[attr-defined]
def _enter_owner(
    attachment: "Attachment", module: nn.Module, blocks: Tuple[int, ...], args: Any
) -> None:
    attachment.wait_under(module)
    attachment.mark_begin(blocks, args)


class CompiledCall:
    """Replaces the compiled call of a module: waits for its weights, then calls the code."""

    def __init__(
        self, attachment: Optional["Attachment"], call: Callable[..., Any], module: nn.Module
    ) -> None:
        self.attachment = weakref.ref(attachment) if attachment is not None else None
        self.call = call
        self.module = weakref.ref(module)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        attachment = self.attachment() if self.attachment is not None else None
        module = self.module()
        if attachment is not None and module is not None:
            attachment.wait_under(module)
        return self.call(*args, **kwargs)


class Arrival:
    """The hook on a parameter, called when autograd has added to its gradient."""

    def __init__(self, attachment: Optional["Attachment"]) -> None:
        self.attachment = weakref.ref(attachment) if attachment is not None else None

    def __call__(self, param: Tensor) -> None:
        attachment = self.attachment() if self.attachment is not None else None
        if attachment is not None:
            attachment.arrived(param)

    def __deepcopy__(self, memo: Any) -> "Arrival":
        return Arrival(None)

    def __reduce__(self) -> Any:
        return Arrival, (None,)


def differentiable(values: Any) -> Optional[Tensor]:
    """The first tensor that requires a gradient in what a module takes or returns."""
    return next((tensor for tensor in tensors_in(values) if tensor.requires_grad), None)
