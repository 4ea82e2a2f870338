# SPDX-License-Identifier: Apache-2.0
"""What stands in ``p.grad`` once the engine has the gradient: a tensor without storage.

It has the gradient's shape, type and device, and implements what training loops do to gradients
between ``backward()`` and ``step()``: accumulation, ``zero_()``, multiplication by a number
(clipping, unscaling), 2-norms, checks for infinities. Every other operation raises, and says what
to do. A gradient can be looked at with ``opt.read_gradient(p)``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable, Dict, List, Optional, Sequence, Tuple, Union

import torch
from torch import Tensor

from . import ranks
from .errors import HocketUsageError

if TYPE_CHECKING:
    from .handover import HandOver

aten = torch.ops.aten


class GradientHandle(Tensor):
    """A gradient that the engine holds. Made by hocket only."""

    _owner: "HandOver"
    _number: int

    @staticmethod
    def __new__(cls, owner: "HandOver", number: int) -> "GradientHandle":
        param = owner.binding.parts[number]
        handle = torch.Tensor._make_wrapper_subclass(
            cls,
            param.size(),
            strides=param.stride(),
            dtype=param.dtype,
            device=param.device,
            requires_grad=False,
        )
        handle._owner = owner
        handle._number = number
        return handle

    def __init__(self, owner: "HandOver", number: int) -> None:
        pass

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return (
            f"GradientHandle({self._owner.binding.names[self._number]}, "
            f"{self._owner.condition(self._number)}, shape={tuple(self.shape)}, "
            f"dtype={self.dtype}, device={self.device})"
        )

    def __deepcopy__(self, memo: Dict[int, Any]) -> Tensor:
        return self._owner.read(self._number)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self._owner.read(self._number).__reduce_ex__(protocol)

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
            return special(args[0])
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
        operation = OPERATIONS.get(func)
        if operation is None:
            raise HocketUsageError(_refusal(func, args))
        return operation(*args, **(kwargs or {}))


def handle_in(grad: Optional[Tensor]) -> Optional[GradientHandle]:
    """The handle that a parameter's gradient is, or is this rank's part of; None: it is none."""
    if type(grad) is GradientHandle:
        return grad
    if grad is None or not ranks.is_shared(grad):
        return None
    part = ranks.local(grad)
    return part if type(part) is GradientHandle else None


def _refusal(func: Any, args: Tuple[Any, ...]) -> str:
    flat = [
        arg for given in args for arg in (given if isinstance(given, (list, tuple)) else [given])
    ]
    handle = next((arg for arg in flat if isinstance(arg, GradientHandle)), None)
    name = handle._owner.binding.names[handle._number] if handle is not None else "a parameter"
    return (
        f"{func}: the gradient of {name} has been handed over to hocket and released. Its "
        "grad can be accumulated into, set to zero or None, multiplied by a number, checked "
        "for infinities, and its 2-norm taken; opt.read_gradient(p) returns the values, and "
        "assigning a tensor to p.grad replaces it"
    )


# -- What can be done ---------------------------------------------------------------------------


def _add_(self: GradientHandle, other: Any, *, alpha: float = 1) -> GradientHandle:
    if not isinstance(other, Tensor) or isinstance(other, GradientHandle) or alpha != 1:
        raise HocketUsageError(_refusal("add_ of anything but a gradient", (self,)))
    self._owner.accumulate(self._number, other)
    return self


def _zero_(self: GradientHandle) -> GradientHandle:
    self._owner.zero(self._number)
    return self


def _mul_(self: GradientHandle, other: Union[Tensor, float]) -> GradientHandle:
    if not isinstance(self, GradientHandle):
        raise HocketUsageError(_refusal("mul_ of a tensor by a gradient", (other,)))
    if isinstance(other, Tensor) and other.numel() != 1:
        raise HocketUsageError(_refusal("mul_ by a tensor of several values", (self,)))
    self._owner.multiply(self._number, other)
    return self


def _div_(self: GradientHandle, other: Union[Tensor, float]) -> GradientHandle:
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
) -> Tensor:
    if float(ord) != 2.0 or (dim is not None and len(dim) not in (0, self.dim())):
        raise HocketUsageError(_refusal(f"norm of order {ord} over dimensions {dim}", (self,)))
    norm = self._owner.norm(self._number)
    if dtype is not None:
        norm = norm.to(dtype)
    return norm.reshape([1] * self.dim()) if keepdim else norm


def _norm_scalar(self: GradientHandle, p: float = 2) -> Tensor:
    return _vector_norm(self, p)


def _detach(self: GradientHandle) -> GradientHandle:
    return GradientHandle(self._owner, self._number)


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
        id(t._owner): t._owner for t in tensors if isinstance(t, GradientHandle)
    }.values():
        if owner.nonfinite():
            found_inf.fill_(1.0)
    factor = inv_scale.clone()
    for tensor in tensors:
        if isinstance(tensor, GradientHandle):
            tensor._owner.multiply(tensor._number, factor)


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
    if self._owner.finite(self._number):
        return torch.ones((), dtype=torch.bool, device=self.device).expand(self.shape)
    return torch.isfinite(self._owner.read(self._number))


def _isnan(self: GradientHandle) -> Tensor:
    return torch.isnan(self._owner.read(self._number))


def _isinf(self: GradientHandle) -> Tensor:
    return torch.isinf(self._owner.read(self._number))


FUNCTIONS: Dict[Any, Callable[[GradientHandle], Tensor]] = {
    torch.isfinite: _isfinite,
    Tensor.isfinite: _isfinite,
    torch.isnan: _isnan,
    Tensor.isnan: _isnan,
    torch.isinf: _isinf,
    Tensor.isinf: _isinf,
}
