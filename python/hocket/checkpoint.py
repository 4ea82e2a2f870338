# SPDX-License-Identifier: Apache-2.0
"""State as a state_dict in the form of torch.optim.AdamW, and as a pickle. Files: files.py."""

from __future__ import annotations

import threading
import warnings
from collections import defaultdict
from copy import deepcopy
from itertools import chain
from typing import TYPE_CHECKING, Any, Callable, Dict, Iterator, List, Mapping, Optional, Sequence

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.utils.weak import WeakTensorKeyDictionary

from . import _abi, partitions, ranks
from .binding import Binding
from .checks import check_group
from .errors import NO, HocketError, HocketUsageError

if TYPE_CHECKING:
    from .optim import AdamW

PARTS: Dict[str, int] = {"exp_avg": _abi.M, "exp_avg_sq": _abi.V, "master_weight": _abi.P}
IN_FILE = "hocket_state_in_file"
"""Key of a state_dict whose state is elsewhere; its value is the step number."""


_SOURCES: Any = WeakTensorKeyDictionary()
"""Binding and number of each tensor that a StateView has returned. Attributes of the tensors would
be pickled with them."""


class StateView(Mapping[str, Tensor]):
    """``opt.state[p]``. Each look-up reads from the engine and returns a copy in host memory; if the
    parameter is a DTensor, a DTensor of the ranks' copies.

    ``StateView(mapping)`` of such copies is the view that they come from: frameworks that move an
    optimizer's state replace ``opt.state[p]`` by ``type(view)(OrderedDict(...))``.
    """

    def __init__(self, binding: Any, number: int = 0) -> None:
        if isinstance(binding, Mapping):
            source = next(filter(None, map(_SOURCES.get, binding.values())), None)
            if source is None:
                raise HocketUsageError(
                    "a StateView of tensors that hocket.AdamW has not returned: load other state "
                    "with load_state_dict()"
                )
            binding, number = source
        self._binding: Binding = binding
        self._number = number

    def __getitem__(self, key: str) -> Tensor:
        if key not in ("step", *PARTS):
            raise KeyError(key)
        if key == "step":
            value = torch.tensor(float(self._binding.engine.tensor_step(self._number)))
        else:
            self._binding.engine.drain()
            param = self._binding.params[self._number]
            value = ranks.shared_as(param, self._binding.read(PARTS[key], self._number))
        _SOURCES[value] = (self._binding, self._number)
        return value

    def __iter__(self) -> Iterator[str]:
        return iter(("step", *PARTS))

    def __len__(self) -> int:
        return 1 + len(PARTS)

    def __deepcopy__(self, memo: Any) -> Dict[str, Tensor]:
        return dict(self)

    def __reduce__(self) -> Any:
        return dict, (dict(self),)


# -- Dictionaries -------------------------------------------------------------------------------


def _available() -> Optional[int]:
    """Bytes of memory that this process may still take; None if the system does not say."""
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            fields = dict(line.split(":") for line in file)
        free = int(fields["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):
        return None
    try:
        with open("/sys/fs/cgroup/memory.max", encoding="ascii") as file:
            limit = int(file.read())
        with open("/sys/fs/cgroup/memory.current", encoding="ascii") as file:
            free = min(free, limit - int(file.read()))
    except (OSError, ValueError):  # no cgroup, or "max"
        pass
    return free


def _read_all(opt: "AdamW") -> "defaultdict[Any, Any]":
    """All state, as tensors in host memory."""
    out: "defaultdict[Any, Any]" = defaultdict(dict)
    if not opt.is_bound():
        kept = opt.state if opt._replaced else opt._pending
        out.update({param: dict(entry) for param, entry in kept.items()})
        return out
    opt.finish_update()
    opt.follow_weights()
    needed = 12 * sum(ranks.local(param).numel() for param in opt.state)
    free = _available()
    if free is not None and needed > free:
        raise HocketError(
            f"a state_dict of this optimizer takes {needed / 2**30:.1f} GiB, but "
            f"{free / 2**30:.1f} GiB of memory are free: opt.save(path) writes the state to a file "
            "without a copy (hocket.TrainerCallback does so for the Trainer)",
            NO,
        )
    for param, view in opt.state.items():
        out[param] = dict(view)
    return out


def state_dict(opt: "AdamW", base: Callable[[], Dict[str, Any]]) -> Dict[str, Any]:
    """See AdamW.state_dict; `base` is torch's."""
    with opt._lock:  # no step() of another thread in between
        kept = opt.state
        light = opt.state_in_file
        opt.state = defaultdict(dict) if light else _read_all(opt)
        try:
            out = base()
        finally:
            opt.state = kept
        if light:
            out[IN_FILE] = opt.binding().engine.step_number() if opt.is_bound() else 0
    return out


def load_state_dict(opt: "AdamW", given: Mapping[str, Any]) -> None:
    """See AdamW.load_state_dict. torch's own would cast state to the parameters' type and move it
    to their device."""
    loaded = dict(given)
    for hook in getattr(opt, "_optimizer_load_state_dict_pre_hooks", {}).values():
        changed = hook(opt, loaded)
        loaded = loaded if changed is None else changed
    groups: List[Dict[str, Any]] = deepcopy(loaded["param_groups"])
    if len(groups) != len(opt.param_groups):
        raise ValueError(
            f"the state_dict has {len(groups)} param groups, this optimizer {len(opt.param_groups)}"
        )
    for number, (mine, its) in enumerate(zip(opt.param_groups, groups)):
        if len(mine["params"]) != len(its["params"]):
            raise ValueError(
                f"param group {number} of the state_dict has {len(its['params'])} parameters, "
                f"this optimizer's {len(mine['params'])}"
            )
    params = dict(
        zip(
            chain.from_iterable(group["params"] for group in groups),
            chain.from_iterable(group["params"] for group in opt.param_groups),
        )
    )
    state = {params[key]: entry for key, entry in loaded["state"].items() if key in params}
    _check_state(state)
    _load_groups(opt, groups)
    if IN_FILE in loaded:
        opt._awaited = loaded[IN_FILE] or None
    elif opt.is_bound():
        _replace_state(opt, state)
    elif partitions.replaced(opt):
        opt.state = defaultdict(dict, partitions.loaded(state))
    else:
        opt._pending = state
    for hook in getattr(opt, "_optimizer_load_state_dict_post_hooks", {}).values():
        hook(opt)


def _load_groups(opt: "AdamW", groups: List[Dict[str, Any]]) -> None:
    every = []
    for mine, its in zip(opt.param_groups, groups):
        merged = {**mine, **its, "params": mine["params"]}
        if "param_names" in mine:
            merged["param_names"] = mine["param_names"]
        check_group(merged)
        every.append(merged)
    for mine, merged in zip(opt.param_groups, every):  # all of them, or none
        mine.clear()
        mine.update(merged)


def _check_state(state: Mapping[Tensor, Mapping[str, Any]]) -> None:
    for param, entry in state.items():
        if "max_exp_avg_sq" in entry:
            raise HocketUsageError(
                "the state_dict has max_exp_avg_sq: amsgrad=True is not supported by hocket.AdamW"
            )
        for key in (*partitions.MOMENTS, "master_weight"):
            if key == "master_weight" and not isinstance(entry.get(key), Tensor):
                continue  # torch's has none
            if not isinstance(entry.get(key), Tensor):
                raise HocketUsageError(
                    f"the state_dict has no '{key}' for a parameter of shape "
                    f"{tuple(param.shape)}: it takes those of hocket.AdamW and torch.optim.AdamW"
                )
            if tuple(entry[key].shape) != tuple(param.shape):
                raise HocketUsageError(
                    f"the state_dict has '{key}' of shape {tuple(entry[key].shape)} for a "
                    f"parameter of shape {tuple(param.shape)}: it is of another model"
                )


def _replace_state(opt: "AdamW", state: Dict[Tensor, Dict[str, Any]]) -> None:
    """Loads state into an engine that has been made. A parameter without an entry in `state`
    starts from zero, as in torch."""
    steps, binding = opt.steps(), opt.binding()
    opt.finish_update()
    opt._broken_load = "a state_dict"
    has = steps.has_state
    start_anew(opt, [n for n, param in enumerate(binding.params) if has[n] and param not in state])
    opt.state = defaultdict(dict)
    write_state(binding, state)
    binding.read_versions()
    steps.show(opt.state, state)
    opt._broken_load = None


def start_anew(opt: "AdamW", numbers: Sequence[int]) -> None:
    """Momentum, variance and step count of these tensors become 0, as in torch where ``opt.state``
    has no entry. Masters stay."""
    if numbers:
        opt.finish_update()
    binding = opt.binding()
    for number in numbers:
        zeros = torch.zeros(binding.parts[number].shape)
        binding.write(_abi.M, number, zeros)
        binding.write(_abi.V, number, zeros)
        binding.engine.set_tensor_step(number, 0)
        opt.steps().has_state[number] = 0


def write_state(binding: Binding, state: Mapping[Tensor, Mapping[str, Any]]) -> None:
    """Writes loaded state into an engine whose masters have just been made from the weights."""
    stale = without = 0
    binding.loaded.clear()
    for param, entry in state.items():
        number = binding.index.get(id(param))
        if number is None:
            continue  # frozen since
        binding.write(_abi.M, number, ranks.part_of(param, entry["exp_avg"]))
        binding.write(_abi.V, number, ranks.part_of(param, entry["exp_avg_sq"]))
        binding.engine.set_tensor_step(number, int(entry["step"]))
        master = entry.get("master_weight")
        if param.dtype is torch.float32:
            pass  # the weight is the master
        elif master is not None:
            master = ranks.part_of(param, master.detach())
            master = master.cpu().float()
            count = binding.merge_master(number, master)
            if count:
                binding.loaded[number] = master
            stale += count
        else:
            without += 1
    if stale:
        warnings.warn(
            f"hocket: {stale} loaded master weights do not round to the model's weights; the "
            "weights count, unless the model's checkpoint of the same step is loaded before the next "
            "step"
        )
    if without:
        warnings.warn(
            f"hocket: the state_dict has no master_weight for {without} tensors (it is of another "
            "optimizer): fp32 masters start from the rounded weights"
        )


# -- Pickles ------------------------------------------------------------------------------------


def pickled(opt: "AdamW") -> Dict[str, Any]:
    """The state from which a copy or a pickle is made. The copy has no engine and is not
    attached."""
    with opt._lock:
        return {
            "defaults": opt.defaults,
            "param_groups": opt.param_groups,
            "state": dict(_read_all(opt)),
            "settings": opt._settings,
            "awaited": opt._awaited,
            "whose": (opt._plain, opt._replaced),
        }


def unpickle(opt: "AdamW", state: Dict[str, Any]) -> None:
    """Restores what pickled() has returned."""
    Optimizer.__setstate__(
        opt,
        {
            "defaults": state["defaults"],
            "param_groups": state["param_groups"],
            "state": defaultdict(dict),
        },
    )
    opt._settings = state["settings"]
    opt._awaited = state["awaited"]
    opt._plain, opt._replaced = state.get("whose", (False, False))
    if opt._replaced:
        opt.state.update(state["state"])
    opt._pending = {} if opt._replaced else dict(state["state"])
    opt._steps = opt._attachment = opt._writer = opt._broken_load = None
    opt._lock = threading.RLock()
    opt._detached = False
    opt.state_in_file = False
