# SPDX-License-Identifier: Apache-2.0
"""Blocks of a model, in the order of forward. The weights of a block are waited for and uploaded
together, its gradients are copied to the host together.

Each element of a module list (or of a ``Sequential``) that has parameters is a block. An element
with over half of its list's parameters, most of them in lists of its own, is divided by those. All
other parameters form blocks between those, in the order of first use: typically the embeddings
before the layers, and the final norm and the head after them.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Dict, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Set, Tuple

import torch
from torch import nn

MAX_BLOCKS = 512
"""Most blocks of a model. More are merged with their neighbours, because each block costs a wait
and some bookkeeping a step."""


class Block(NamedTuple):
    """One block."""

    name: str
    modules: Tuple[str, ...]
    """Names of the submodules whose parameters these are; empty for what belongs to no list."""
    tensors: Tuple[str, ...]
    """Names of its parameters, in the order of first use. A tied one stands where it is used
    first."""


def find_blocks(
    model: nn.Module,
    names: Sequence[str],
    order: Optional[Mapping[str, int]] = None,
    most: Optional[int] = MAX_BLOCKS,
) -> List[Block]:
    """The blocks that hold the named parameters, in the order of forward.

    Args:
        model: the model.
        names: names of the parameters, as of ``model.named_parameters()``, in that order.
        order: position of first use of each name with a recorded use. The others, and all names if
            it is None, come in the order of registration.
        most: if there are more blocks, neighbours are merged; None: they never are.
    """
    position = _positions(names, order or {})
    lists = _list_modules(model, names)
    owner = {name: module for module, owned in lists.items() for name in owned}
    start: Dict[str, float] = {}
    for name in names:
        module = owner.get(name)
        if module is not None:
            start[module] = min(start.get(module, position[name]), position[name])
    elements = sorted(start, key=lambda module: start[module])
    starts = [start[module] for module in elements]
    members: Dict[Tuple[int, int], List[str]] = {}  # (element, 1) or (gap before element, 0)
    rank = {module: number for number, module in enumerate(elements)}
    for name in sorted(names, key=lambda name: position[name]):
        module = owner.get(name)
        if module is not None:
            key = (rank[module], 1)
        else:
            key = (bisect_left(starts, position[name]), 0)
        members.setdefault(key, []).append(name)
    blocks = [_block(key, members[key], elements) for key in sorted(members)]
    return blocks if most is None or len(blocks) <= most else _merged(blocks)


def _block(key: Tuple[int, int], tensors: List[str], elements: List[str]) -> Block:
    number, listed = key
    if listed:
        return Block(elements[number], (elements[number],), tuple(tensors))
    return Block(tensors[0].rpartition(".")[0] or tensors[0], (), tuple(tensors))


def _positions(names: Sequence[str], order: Mapping[str, int]) -> Dict[str, float]:
    """Position of each name. A name without a recorded use follows the name before it."""
    if not order:
        return {name: float(number) for number, name in enumerate(names)}
    position: Dict[str, float] = {}
    last, step = -1.0, 1.0 / (len(names) + 1)
    for name in names:
        last = float(order[name]) if name in order else last + step
        position[name] = last
    return position


def _list_modules(model: nn.Module, names: Sequence[str]) -> Dict[str, List[str]]:
    """Name of each block's module -> names of the parameters under it."""
    found: Dict[str, List[str]] = {}
    _collect(model, "", found)
    wanted = set(names)
    return {module: [name for name in owned if name in wanted] for module, owned in found.items()}


def _collect(module: nn.Module, prefix: str, found: Dict[str, List[str]]) -> None:
    children = [(name, child) for name, child in module.named_children() if _any(child)]
    is_list = isinstance(module, (nn.ModuleList, nn.Sequential))
    half = _numel(module) // 2 if is_list and len(children) > 1 else None
    for name, child in children:
        path = prefix + name
        if is_list and not (half is not None and _mostly_lists(child, half)):
            found[path] = [
                key for key, _ in child.named_parameters(prefix=path, remove_duplicate=False)
            ]
        else:
            _collect(child, path + ".", found)


def _any(module: nn.Module) -> bool:
    return next(module.parameters(), None) is not None


def _numel(module: nn.Module) -> int:
    return sum(param.numel() for param in module.parameters())


def _mostly_lists(child: nn.Module, half: int) -> bool:
    """Whether to split an element of a list: it has over half of the list's parameters, and most
    of them lie in module lists of its own."""
    mine = _numel(child)
    if mine <= half:
        return False
    nested: Set[int] = set()
    total = 0
    for inner in _containers(child):
        if id(inner) not in nested:
            nested.update(id(module) for module in inner.modules())
            total += _numel(inner)
    return 5 * total >= 4 * mine


def _containers(module: nn.Module) -> Iterator[nn.Module]:
    for inner in module.modules():
        if isinstance(inner, (nn.ModuleList, nn.Sequential)) and sum(map(_any, inner)) > 1:
            yield inner


def _merged(blocks: List[Block]) -> List[Block]:
    merged = []
    for number in range(MAX_BLOCKS):
        part = blocks[number * len(blocks) // MAX_BLOCKS : (number + 1) * len(blocks) // MAX_BLOCKS]
        merged.append(
            Block(
                part[0].name,
                tuple(module for block in part for module in block.modules),
                tuple(name for block in part for name in block.tensors),
            )
        )
    return merged


def is_dense(tensor: torch.Tensor) -> bool:
    """Whether its elements fill a contiguous piece of memory, in any order of dimensions."""
    if tensor.is_contiguous():
        return True
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.size())):
        if size == 1:
            continue
        if stride != expected:
            return False
        expected *= size
    return True
