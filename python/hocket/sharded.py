# SPDX-License-Identifier: Apache-2.0
"""An attached model that FSDP2 has sharded.

FSDP2 gathers the weights of a group of modules before their forward, from this rank's shards. So a
block is what one ``fully_shard`` call gathers, the root's first, and the gate is before the
gathering: the stream that copies the shards waits until their update has written them. Gradients
come with the hooks that FSDP2 calls on each sharded parameter when its gradient has been reduced, on
the stream that has done it.

``FSDPParamGroup.unshard`` and the context's streams are private to torch. Where they are not what is
expected, the root's forward waits for the whole update on the host: correct, and nothing overlaps
the forward.
"""

from __future__ import annotations

import contextlib
import warnings
import weakref
from typing import TYPE_CHECKING, Any, Callable, Dict, Iterator, List, Sequence, Set, Tuple

import torch
from torch import Tensor, nn

from . import _abi, ranks
from .blocks import Block
from .describe import Call, Costs, batch_size
from .errors import HocketUsageError

if TYPE_CHECKING:
    from .attach import Attachment


def is_sharded(model: nn.Module) -> bool:
    """Whether some parameter is a DTensor, or gathered from one."""
    return bool(sharded_modules(model)) or any(map(ranks.is_dtensor, model.parameters()))


def sharded_modules(model: nn.Module) -> Dict[str, nn.Module]:
    """The modules that fully_shard was called on, by name, the root first."""
    return {
        name: module
        for name, module in model.named_modules()
        if hasattr(module, "_get_fsdp_state") and hasattr(module, "unshard")
    }


def is_known(model: nn.Module) -> bool:
    """Whether FSDP2 has the private parts that are used here."""
    return all(_groups(module) is not None for module in sharded_modules(model).values())


def named_parameters(model: nn.Module) -> Dict[str, Tensor]:
    """As of the model, each parameter once; sharded ones also where FSDP2 has put the gathered ones
    into their place for the time of a forward."""
    shards: Dict[Tuple[int, str], Tensor] = {}
    for module in sharded_modules(model).values():
        for _, param in _parameters(module):
            info = param._module_info
            owners = zip([info.module, *info.shared_modules], [info.param_name, *info.shared_param_names])
            shards.update(((id(owner), name), param.sharded_param) for owner, name in owners)
    found: Dict[str, Tensor] = {}
    seen: Set[int] = set()
    for prefix, module in model.named_modules():
        for name, here in dict.items(module._parameters):  # type: ignore[arg-type]
            param = shards.get((id(module), name), here)
            if param is not None and id(param) not in seen:
                seen.add(id(param))
                found[f"{prefix}.{name}" if prefix else name] = param
    return found


def check_model(model: nn.Module) -> None:
    """Refuses sharded parameters that no gate of this file would cover."""
    owners = sharded_modules(model)
    for name, param in named_parameters(model).items():
        if not param.requires_grad:
            continue
        if not ranks.is_dtensor(param):
            raise HocketUsageError(
                f"{name} is not sharded, but other parameters are: its gradient is not reduced; "
                "call fully_shard() on the whole model, too"
            )
        if _owner(name, owners) is None:
            raise HocketUsageError(
                f"{name} is a DTensor under no module that fully_shard() was called on: call it on "
                "the whole model, too, or use hocket.AdamW without attach"
            )
        if param.device.type != torch.device(param.device_mesh.device_type).type:  # type: ignore
            raise HocketUsageError(
                f"{name} lies on the {param.device.type}: CPUOffloadPolicy beside an attached "
                "hocket.AdamW moves everything twice; leave offload_policy out"
            )


def _owner(name: str, owners: Dict[str, nn.Module]) -> Any:
    """Name of the innermost of these modules that a parameter is under; None: of none."""
    while name:
        name = name.rpartition(".")[0]
        if name in owners:
            return name
    return None


class Shards:
    """The blocks and gates of one attached, sharded model."""

    def __init__(self, attachment: "Attachment") -> None:
        self._attachment = weakref.ref(attachment)
        self._model = attachment.model
        check_model(self._model)
        self._modules = sharded_modules(self._model)
        self._gated: List[Tuple[Any, int]] = []  # groups, and the block of each
        self._handle: Any = None

    def blocks(self, names: Sequence[str]) -> List[Block]:
        """A block for each sharded module that has some of these parameters of its own, in the
        order in which the modules are registered; the root, whose forward begins first, is one."""
        members: Dict[str, List[str]] = {name: [] for name in self._modules}
        for name in names:
            members[_owner(name, self._modules)].append(name)
        return [
            Block(module or "the root", (module,), tuple(tensors))
            for module, tensors in members.items()
            if tensors
        ]

    def costs(self, call: Call, blocks: Sequence[Block]) -> Costs:
        """Without a forward, which would gather: two operations for each gathered weight and
        position, and no activations."""
        whole = named_parameters(self._model)
        micro_batch, seq = batch_size(call)
        over = {
            id(param.sharded_param): group.mesh_info.mesh
            for module in self._modules.values()
            for group, param in _parameters(module)
        }
        tensors = [[whole[name] for name in block.tensors] for block in blocks]
        numels = [sum(ranks.numel_over(p, over.get(id(p))) for p in each) for each in tensors]
        flops = [2.0 * numel * micro_batch * seq for numel in numels]
        return Costs(flops, [0] * len(blocks), [0] * len(blocks), micro_batch, seq)

    def gate(self, number_of: Dict[int, int], blocks: Sequence[int]) -> None:
        """Called when the engine has been made. number_of: id of a parameter to its number; blocks:
        block of each number."""
        if not is_known(self._model):
            self._fall_back()
            return
        seen: Set[int] = set()
        for group in (g for module in self._modules.values() for g in _groups(module)):
            if id(group) in seen:
                continue
            seen.add(id(group))
            its = {
                blocks[number_of[id(param.sharded_param)]]
                for param in group.fsdp_params
                if id(param.sharded_param) in number_of
            }
            if its:
                group.unshard = self._waiting(group, tuple(sorted(its)))
                self._gated.append((group, min(its)))
        attachment = self._attachment()
        if attachment is not None and attachment.recording:
            self.record(True)

    def _waiting(self, group: Any, blocks: Tuple[int, ...]) -> Callable[..., Any]:
        original, found = group.unshard, self._attachment

        def unshard(async_op: bool = False) -> Any:
            attachment = found()
            if attachment is not None and attachment.waits:
                with _gathering(group, async_op):
                    for block in blocks:
                        attachment.wait_for_all_of(block)
            return original(async_op)

        return unshard

    def _fall_back(self) -> None:
        warnings.warn(
            f"hocket: FSDP2 of torch {torch.__version__} is not known to this version of hocket: "
            "each forward waits for the whole update"
        )
        found = self._attachment

        def wait(module: nn.Module, args: Any) -> None:
            attachment = found()
            if attachment is not None and attachment.waits:
                attachment.optimizer().synchronize()

        self._handle = self._model.register_forward_pre_hook(wait, prepend=True)

    def record(self, on: bool) -> None:
        """Marks all-gathers and reduce-scatters in the timeline, or no more; only where FSDP2 has
        objects that make them (torch 2.9)."""
        for group, block in self._gated:
            for name, kind in (
                ("_all_gather_comm", _abi.ALL_GATHER),
                ("_reduce_scatter_comm", _abi.REDUCE_SCATTER),
            ):
                comm = getattr(group, name, None)
                if isinstance(comm, _Marked):
                    comm = comm.comm
                # torch looks whether a group has collectives of symmetric memory.
                if comm is not None and not type(comm).__name__.startswith("SymmMem"):
                    setattr(group, name, _Marked(comm, self._attachment, kind, block) if on else comm)

    def detach(self) -> None:
        """Takes the gates out."""
        self.record(False)
        for group, _ in self._gated:
            vars(group).pop("unshard", None)
        if self._handle is not None:
            self._handle.remove()


def _groups(module: nn.Module) -> Any:
    """The groups whose shards a module gathers; None: they are not what is expected."""
    state = module._get_fsdp_state()  # type: ignore[operator]
    found = getattr(state, "_fsdp_param_groups", None)
    if found is None:
        if not hasattr(state, "_fsdp_param_group"):
            return None
        found = [] if state._fsdp_param_group is None else [state._fsdp_param_group]
    for group in found:
        for name in ("unshard", "fsdp_params", "comm_ctx", "_training_state", "mesh_info"):
            if not hasattr(group, name):
                return None
        for param in group.fsdp_params:
            if not hasattr(param, "sharded_param") or not hasattr(param, "_module_info"):
                return None
        if not hasattr(group.comm_ctx, "get_all_gather_streams"):
            return None
    return found


def _parameters(module: nn.Module) -> Iterator[Tuple[Any, Any]]:
    """FSDP2's own of each sharded parameter of a module, behind its group; nothing if they are not
    what is expected."""
    for group in _groups(module) or ():
        for param in group.fsdp_params:
            yield group, param


class _Marked:
    """What FSDP2 calls for a collective of a group, between two marks on the stream that waits for
    it. One that runs on behind the call (``async_op``) is not marked."""

    def __init__(
        self, comm: Any, attachment: "weakref.ref[Attachment]", kind: int, block: int
    ) -> None:
        self.comm, self._attachment, self._kind, self._block = comm, attachment, kind, block

    def __getattr__(self, name: str) -> Any:
        return getattr(self.comm, name)

    def __call__(self, *args: Any, async_op: bool = False, **kwargs: Any) -> Any:
        attachment = None if async_op else self._attachment()
        if attachment is not None:
            attachment.mark(self._kind, self._block, False)
        work = self.comm(*args, async_op=async_op, **kwargs)
        if attachment is not None:
            attachment.mark(self._kind, self._block, True)
        return work


@contextlib.contextmanager
def _gathering(group: Any, async_op: bool) -> Iterator[None]:
    """Makes the stream current that will copy the group's shards."""
    if group.device.type != "cuda" or not hasattr(group.comm_ctx, "all_gather_copy_in_stream"):
        yield
        return
    stream = group.comm_ctx.get_all_gather_streams(async_op, group._training_state)[0]
    if getattr(group.mesh_info, "shard_mesh_size", 1) == 1:  # copied later, by the current stream
        stream = torch.cuda.current_stream()
    with torch.cuda.stream(stream):
        yield
