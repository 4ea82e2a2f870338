# SPDX-License-Identifier: Apache-2.0
"""Operations on handles (handle.py) that need the values: they are read from the engine, and handed
over again if the operation writes to them.

A view of the values is a GradientView: writing to it would change a copy only, and raises.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any, Dict, List, Optional, Sequence, Tuple

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_map

from .errors import HocketUsageError

if TYPE_CHECKING:
    from .handle import GradientHandle


class GradientView(Tensor):
    """A view of a copy of a gradient that the engine holds. It can be read only.

    Args:
        values: the plain view; its memory is shared.
    """

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @staticmethod
    def __new__(cls, values: Tensor) -> "GradientView":
        view: GradientView = Tensor._make_subclass(cls, values)
        return view

    def __init__(self, values: Tensor) -> None:
        pass

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls,
        func: Any,
        types: Sequence[type],
        args: Tuple[Any, ...] = (),
        kwargs: Optional[Dict[str, Any]] = None,
    ) -> Any:
        given = kwargs or {}
        if _written(func, args, given, cls):
            raise HocketUsageError(
                f"{func} writes to a view of a gradient that has been handed over to hocket, which "
                "is a copy: write to p.grad itself (p.grad.clamp_(...)), or assign a tensor to it"
            )
        with torch._C._DisableTorchDispatch():  # type: ignore[attr-defined]
            found = func(*args, **given)
        return _views(func, found)


def _views(func: Any, found: Any) -> Any:
    """The result of an operation on values, its views sealed."""
    if not any(r.alias_info is not None and not r.alias_info.is_write for r in func._schema.returns):
        return found
    return tree_map(lambda item: GradientView(item) if isinstance(item, Tensor) else item, found)


def compute(
    handle: "type[GradientHandle]", func: Any, args: Tuple[Any, ...], kwargs: Dict[str, Any]
) -> Any:
    """Carries out an operation of ATen on the values of the handles among its arguments.

    Args:
        handle: the class of handles.
        func: the overload, as __torch_dispatch__ gets it.
    """
    read: Dict[int, Tuple["GradientHandle", Tensor]] = {}

    def values(item: Any) -> Any:
        if not isinstance(item, handle):
            return item
        key = item._number
        if key not in read:
            owner = item.owner()
            _warn(owner, func, item)
            read[key] = (item, owner.read(key))
        return read[key][1]

    found = func(*tree_map(values, args), **tree_map(values, kwargs))
    for item in _written(func, args, kwargs, handle):
        item.owner().replace(item._number, values(item))
    originals = {id(tensor): item for item, tensor in read.values()}
    return _views(func, tree_map(lambda item: originals.get(id(item), item), found))


def _written(
    func: Any, args: Tuple[Any, ...], kwargs: Dict[str, Any], kind: type
) -> List[Any]:
    """The tensors of a class that an operation writes to."""
    found: List[Any] = []
    for place, argument in enumerate(func._schema.arguments):
        if argument.alias_info is None or not argument.alias_info.is_write:
            continue
        given = args[place] if place < len(args) else kwargs.get(argument.name)
        found += [item for item in tree_flatten(given)[0] if isinstance(item, kind)]
    return found


def _warn(owner: Any, func: Any, item: "GradientHandle") -> None:
    if owner.warned:
        return
    owner.warned = True
    warnings.warn(
        f"hocket: {func} reads the gradient of {owner.binding.names[item._number]}, which has been "
        "handed over: such operations wait for it and copy it (accumulation, zero_(), "
        "multiplication by a number, 2-norms and checks for infinities do not)"
    )
