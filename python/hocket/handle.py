# SPDX-License-Identifier: Apache-2.0
"""What stands in ``p.grad`` once the engine has the gradient: a tensor without storage.

It has the gradient's shape, type and device, and implements what training loops do to gradients
between ``backward()`` and ``step()`` without a copy: accumulation, ``zero_()``, multiplication by a
number (clipping, unscaling), 2-norms, checks for infinities. Every other operation reads the values
(materialize.py), and warns once. So does ``opt.read_gradient(p)``, which does not warn.

A handle holds its HandOver weakly: else optimizer, parameters and handles were a cycle, and the
state would stay until the garbage collector runs.
"""

from __future__ import annotations

import functools
import sys
import weakref
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Optional, Sequence, Tuple, Union

import torch
from torch import Tensor

from . import ranks
from .errors import HocketUsageError
from .materialize import compute

if TYPE_CHECKING:
    from .handover import HandOver

aten = torch.ops.aten


class GradientHandle(Tensor):
    """A gradient that the engine holds, in ``p.grad`` of an attached model: a tensor without
    storage, of the type that torch demands there (``p.grad_dtype``). Made by hocket only."""

    _owner: "weakref.ref[HandOver]"
    _number: int

    @staticmethod
    def __new__(cls, owner: "HandOver", number: int) -> "GradientHandle":
        param = owner.binding.parts[number]
        handle = torch.Tensor._make_wrapper_subclass(
            cls,
            param.size(),
            strides=param.stride(),
            dtype=getattr(owner.binding.params[number], "grad_dtype", None) or param.dtype,
            device=param.device,
            requires_grad=False,
        )
        handle._owner = weakref.ref(owner)
        handle._number = number
        return handle

    def __init__(self, owner: "HandOver", number: int) -> None:
        pass

    def owner(self) -> "HandOver":
        """Who holds the gradient. HocketUsageError if the optimizer has been deleted."""
        found = self._owner()
        if found is None:
            raise HocketUsageError(
                f"the hocket.AdamW that held this gradient of shape {tuple(self.shape)} is gone: "
                "call model.zero_grad(), or set p.grad to None"
            )
        return found

    def belongs_to(self, owner: Optional["HandOver"], number: int) -> bool:
        """Whether it stands for this gradient."""
        return self._owner() is owner and self._number == number

    def values(self) -> Tensor:
        """The gradient as it stands, in its own type, on the parameter's device."""
        return self.owner().read(self._number)

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        owner = self._owner()
        what = (
            f"{owner.binding.names[self._number]}, {owner.condition(self._number)}"
            if owner is not None
            else "the optimizer is gone"
        )
        return (
            f"GradientHandle({what}, shape={tuple(self.shape)}, dtype={self.dtype}, "
            f"device={self.device})"
        )

    def __deepcopy__(self, memo: Dict[int, Any]) -> Tensor:
        return self.values()

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self.values().__reduce_ex__(protocol)

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Tuple[Any, ...] = (),
        kwargs: Optional[Dict[str, Any]] = None,
    ) -> Any:
        special = FUNCTIONS.get(func)
        if special is not None and isinstance(args[0], GradientHandle):
            return special(*args, **(kwargs or {}))
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls,
        func: Any,
        types: Sequence[type],
        args: Tuple[Any, ...] = (),
        kwargs: Optional[Dict[str, Any]] = None,
    ) -> Any:
        operation, given = OPERATIONS.get(func), kwargs or {}
        found = operation(*args, **given) if operation is not None else NotImplemented
        return compute(cls, func, args, given) if found is NotImplemented else found


def handle_in(grad: Optional[Tensor]) -> Optional[GradientHandle]:
    """The handle that a parameter's gradient is, or is this rank's part of; None: it is none."""
    if type(grad) is GradientHandle:
        return grad
    if grad is None or not ranks.is_dtensor(grad):
        return None
    part = ranks.local(grad)
    return part if type(part) is GradientHandle else None


class _Trial:
    """Holds a gradient to which autograd adds, as a HandOver does."""

    def __init__(self, param: Tensor) -> None:
        self.binding = SimpleNamespace(params=[param], parts=[param])
        self.held = (0, 0)

    def accumulate(self, number: int, grad: Tensor, held: Tuple[int, int]) -> None:
        self.held = held


@functools.lru_cache(maxsize=None)
def held_by_autograd() -> Tuple[int, int]:
    """References to the C++ and to the Python object of a gradient in _add_(), if autograd alone
    holds it. Where there are more, the program may write to it, or autograd may add to it."""
    with torch.inference_mode(False), torch.enable_grad():
        param = torch.zeros(2, 2, device="cpu", requires_grad=True)
        trial = _Trial(param)
        param.grad = GradientHandle(trial, 0)  # type: ignore[arg-type]
        (param * torch.ones(2, 2, device="cpu")).sum().backward()  # type: ignore[no-untyped-call]
    return trial.held


# -- Without values. NotImplemented: they are needed --------------------------------------------


def _add_(self: Any, other: Any, *, alpha: float = 1) -> Any:
    plain = isinstance(other, Tensor) and not isinstance(other, GradientHandle)
    if not isinstance(self, GradientHandle) or not plain or alpha != 1:
        return NotImplemented
    if other.shape != self.shape or other.dtype != self.dtype:
        return NotImplemented
    held = other._use_count(), sys.getrefcount(other)
    self.owner().accumulate(self._number, other, held)
    return self


def _zero_(self: GradientHandle) -> GradientHandle:
    self.owner().zero(self._number)
    return self


def _is_number(other: Any) -> bool:
    return not isinstance(other, Tensor) or (
        other.numel() == 1 and not isinstance(other, GradientHandle)
    )


def _mul_(self: Any, other: Union[Tensor, float]) -> Any:
    if not isinstance(self, GradientHandle) or not _is_number(other):
        return NotImplemented
    self.owner().multiply(self._number, other)
    return self


def _div_(self: Any, other: Union[Tensor, float]) -> Any:
    if not isinstance(self, GradientHandle) or not _is_number(other):
        return NotImplemented
    if isinstance(other, Tensor):
        other = other.double()
    return _mul_(self, 1.0 / other)


def _vector_norm(
    self: GradientHandle,
    ord: float = 2,
    dim: Any = None,
    keepdim: bool = False,
    *,
    dtype: Optional[torch.dtype] = None,
) -> Any:
    if float(ord) != 2.0 or (dim is not None and len(dim) not in (0, self.dim())):
        return NotImplemented
    norm = self.owner().norm(self._number)
    if dtype is not None:
        norm = norm.to(dtype)
    return norm.reshape([1] * self.dim()) if keepdim else norm


def _norm_scalar(self: GradientHandle, p: float = 2) -> Any:
    return _vector_norm(self, p)


def _detach(self: GradientHandle) -> GradientHandle:
    return GradientHandle(self.owner(), self._number)


def _foreach_norm(
    tensors: Sequence[Tensor], ord: float = 2, dtype: Optional[torch.dtype] = None
) -> List[Tensor]:
    return [torch.linalg.vector_norm(tensor, ord, dtype=dtype) for tensor in tensors]


def _foreach_mul_(tensors: Sequence[Tensor], other: Any) -> None:
    for number, tensor in enumerate(tensors):
        tensor.mul_(other[number] if isinstance(other, (list, tuple)) else other)


def _foreach_zero_(tensors: Sequence[Tensor]) -> None:
    for tensor in tensors:
        tensor.zero_()


def _check_and_unscale(tensors: Sequence[Tensor], found_inf: Tensor, inv_scale: Tensor) -> None:
    """GradScaler: multiplies by inv_scale, sets found_inf to 1 where a value is not finite."""
    rest = [tensor for tensor in tensors if not isinstance(tensor, GradientHandle)]
    if rest:
        aten._amp_foreach_non_finite_check_and_unscale_(rest, found_inf, inv_scale)
    for owner in {
        id(owner): owner
        for owner in (t.owner() for t in tensors if isinstance(t, GradientHandle))
    }.values():
        if owner.nonfinite():
            found_inf.fill_(1.0)
    factor = inv_scale.clone()
    for tensor in tensors:
        if isinstance(tensor, GradientHandle):
            tensor.owner().multiply(tensor._number, factor)


OPERATIONS: Dict[Any, Callable[..., Any]] = {
    aten.add_.Tensor: _add_,
    aten.zero_.default: _zero_,
    aten.mul_.Tensor: _mul_,
    aten.mul_.Scalar: _mul_,
    aten.div_.Tensor: _div_,
    aten.div_.Scalar: _div_,
    aten.linalg_vector_norm.default: _vector_norm,
    aten.norm.Scalar: _norm_scalar,
    aten.detach.default: _detach,
    aten.alias.default: _detach,
    aten._foreach_norm.Scalar: _foreach_norm,
    aten._foreach_mul_.Scalar: _foreach_mul_,
    aten._foreach_mul_.ScalarList: _foreach_mul_,
    aten._foreach_mul_.Tensor: _foreach_mul_,
    aten._foreach_zero_.default: _foreach_zero_,
    aten._amp_foreach_non_finite_check_and_unscale_.default: _check_and_unscale,
}


def _isfinite(self: GradientHandle) -> Tensor:
    if self.owner().finite(self._number):
        return torch.ones((), dtype=torch.bool, device=self.device).expand(self.shape)
    return torch.isfinite(self.values())


def _isnan(self: GradientHandle) -> Tensor:
    return torch.isnan(self.values())


def _isinf(self: GradientHandle) -> Tensor:
    return torch.isinf(self.values())


def _numpy(self: GradientHandle, *args: Any, **kwargs: Any) -> Any:
    return self.values().numpy(*args, **kwargs)


def _tolist(self: GradientHandle) -> Any:
    return self.values().tolist()


def _setitem(self: GradientHandle, key: Any, value: Any) -> None:
    values = self.values()
    values[key] = value.values() if isinstance(value, GradientHandle) else value
    self.owner().replace(self._number, values)


def _set_data(self: GradientHandle, value: Tensor) -> None:
    if isinstance(value, GradientHandle) and value.belongs_to(self._owner(), self._number):
        return  # as module.to() does, also when the step is over or the optimizer is gone
    if value.shape != self.shape or value.dtype != self.dtype:
        raise HocketUsageError(
            f"p.grad.data of shape {tuple(value.shape)} and type {value.dtype} for a gradient of "
            f"shape {tuple(self.shape)} and type {self.dtype}: set p.grad instead"
        )
    values = torch.empty_strided(
        self.size(), self.stride(), dtype=self.dtype, device=self.device
    ).copy_(value)
    self.owner().replace(self._number, values)


# What reads the memory of a tensor, or has a way of its own to be fast.
FUNCTIONS: Dict[Any, Callable[..., Any]] = {
    torch.isfinite: _isfinite,
    Tensor.isfinite: _isfinite,
    torch.isnan: _isnan,
    Tensor.isnan: _isnan,
    torch.isinf: _isinf,
    Tensor.isinf: _isinf,
    Tensor.numpy: _numpy,
    Tensor.tolist: _tolist,
    Tensor.__setitem__: _setitem,
    Tensor.data.__set__: _set_data,  # type: ignore[attr-defined]
}
