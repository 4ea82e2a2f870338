# SPDX-License-Identifier: Apache-2.0
"""Names of parameters whose optimizer was given tensors alone, for messages."""

from __future__ import annotations

import gc
import weakref
from typing import Dict, List, Optional, Set

from torch import Tensor, nn


class Nameless(str):
    """The name of a parameter by its position. A message that contains it looks for the name in the
    modules that there are: ``tokens.weight (parameter 0)``."""

    _param: "weakref.ref[Tensor]"

    def __new__(cls, number: int, param: Tensor) -> "Nameless":
        name = super().__new__(cls, f"parameter {number}")
        name._param = weakref.ref(param)
        return name

    def __str__(self) -> str:
        param = self._param()
        found = name_in_modules(param) if param is not None else None
        position = super().__str__()
        return f"{found} ({position})" if found else position

    def __format__(self, spec: str) -> str:
        return format(str(self), spec)


def name_in_modules(param: Tensor) -> Optional[str]:
    """The parameter's name in the outermost module that holds it; None: no module does. Looks at
    all objects of the program, which takes a part of a second."""
    modules: List[nn.Module] = [o for o in gc.get_objects() if issubclass(type(o), nn.Module)]
    holding: Dict[int, nn.Module] = {}
    inner: Set[int] = set()
    for module in modules:
        found = [p is param for p in dict.values(module.__dict__.get("_parameters", {}))]
        if any(found):
            holding[id(module)] = module
    grown = True
    while grown:
        grown = False
        for module in modules:
            children = [c for c in module.__dict__.get("_modules", {}).values() if id(c) in holding]
            inner.update(map(id, children))
            if children and id(module) not in holding:
                holding[id(module)] = module
                grown = True
    for key, module in holding.items():
        if key not in inner:
            return next((name for name, p in module.named_parameters() if p is param), None)
    return None
