# SPDX-License-Identifier: Apache-2.0
"""Parameters that ranks share: DTensors, as FSDP2 (``fully_shard``) and tensor parallelism make
them, and those that DDP keeps on all ranks (replicas.py), of which a rank updates some rows.

Each rank's engine holds the elements of its own shards. Only two things concern all ranks: the
gradient norm, whose exact sum of squares is added up as integers (hocket_squares), and failures,
which end the step of all ranks with the same message. Each kind of call that needs all ranks makes
the same collective, agree(), so that a rank that fails early meets the others in theirs.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
import socket
from typing import TYPE_CHECKING, Any, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from . import _abi, failures
from .errors import MACHINE, USAGE, HocketError, HocketUsageError

if TYPE_CHECKING:
    from .binding import Settings


# -- Tensors ------------------------------------------------------------------------------------


def world_size() -> int:
    """Number of ranks; 1 without torch.distributed."""
    distributed = torch.distributed
    known = distributed.is_available() and distributed.is_initialized()
    return distributed.get_world_size() if known else 1


def local_ranks(unknown: int) -> int:
    """Number of ranks of this host, as its launcher says; `unknown` if none does."""
    said = os.environ.get("LOCAL_WORLD_SIZE") or os.environ.get("LOCAL_SIZE")
    return max(1, int(said)) if said else unknown


def whose() -> Dict[str, Any]:
    """This rank, the number of all, and its host; nothing without torch.distributed."""
    size = world_size()
    if size == 1:
        return {}
    return {"rank": torch.distributed.get_rank(), "ranks": size, "host": socket.gethostname()}


_ROWS: Any = WeakTensorKeyDictionary()
"""Mesh whose ranks update the rows of a tensor that each of them has whole."""


def is_dtensor(tensor: Tensor) -> bool:
    """Whether it is a DTensor, of which this rank has a part."""
    return type(tensor).__name__ == "DTensor"


def share_rows(param: Tensor, mesh: Any) -> None:
    """From now on each rank of the mesh updates its rows of a tensor that all of them have."""
    _ROWS[param] = mesh


def is_shared(tensor: Tensor) -> bool:
    """Whether this rank updates a part of the tensor."""
    return is_dtensor(tensor) or (bool(_ROWS) and tensor in _ROWS)


def local(tensor: Tensor) -> Tensor:
    """The part of a tensor that this rank updates, in the tensor's memory."""
    if is_dtensor(tensor):
        part: Tensor = tensor._local_tensor  # type: ignore[attr-defined]
        return part
    return rows_of(tensor.detach(), _ROWS[tensor]) if is_shared(tensor) else tensor


def rows_of(value: Tensor, mesh: Any, dim: int = 0, mesh_dim: int = 0) -> Tensor:
    """This rank's part where the ranks of one dimension of the mesh share a dimension of `value`."""
    chunks = torch.chunk(value, mesh.size(mesh_dim), dim)
    coordinate = mesh.get_coordinate()[mesh_dim]
    return chunks[coordinate] if coordinate < len(chunks) else value.narrow(dim, 0, 0)


def version(tensor: Tensor) -> int:
    """Grows with every write to the tensor, or to its local part."""
    own = tensor._version
    return own + tensor._local_tensor._version if is_dtensor(tensor) else own  # type: ignore


def shared_as(param: Tensor, values: Tensor) -> Tensor:
    """This rank's values as a DTensor with the mesh and placements of `param`; values if `param` is
    no DTensor. They stay on their device, as with torch's own CPU offload: DTensor.from_local would
    move them to the mesh's."""
    if not is_shared(param):
        return values
    if is_dtensor(param):
        dtensor: Any = type(param)
        spec = param._spec  # type: ignore[attr-defined]
    else:
        dtensor, spec = _as_dtensor(param, _ROWS[param])
    meta = spec.tensor_meta
    if meta is not None and meta.dtype != values.dtype:
        spec = dataclasses.replace(spec, tensor_meta=meta._replace(dtype=values.dtype))
    found: Tensor = dtensor(values, spec, requires_grad=False)
    return found


def _as_dtensor(param: Tensor, mesh: Any) -> Tuple[Any, Any]:
    """The class, and the spec of the DTensor whose parts are the rows of `param`."""
    from torch.distributed.tensor import DTensor, Shard
    from torch.distributed.tensor._dtensor_spec import DTensorSpec, TensorMeta

    meta = TensorMeta(param.shape, param.stride(), param.dtype)
    return DTensor, DTensorSpec(mesh, (Shard(0),), tensor_meta=meta)


def part_of(param: Tensor, value: Tensor) -> Tensor:
    """This rank's part of `value`, which has the shape of `param`: a DTensor with the same
    placements, or a whole tensor."""
    if is_dtensor(value):
        if is_shared(param) and _placed_alike(param, value):
            return local(value)
        value = value.full_tensor()  # type: ignore[attr-defined]
    if not is_shared(param):
        return value
    if not is_dtensor(param):
        return rows_of(value, _ROWS[param])
    # FSDP2 shards what tensor parallelism has split before, though its dimension of the mesh is
    # first: such placements are strided.
    placements = list(enumerate(_placements(param)))
    for strided in (False, True):
        for dim, placement in placements:
            if _splits(placement) and (type(placement).__name__ == "_StridedShard") == strided:
                value = rows_of(value, _mesh(param), placement.dim, dim)
    return value


def _splits(placement: Any) -> bool:
    """Whether the ranks of this dimension of the mesh have different parts of a tensor."""
    return type(placement).__name__ in ("Shard", "_StridedShard")


def _dims(mesh: Any) -> Dict[Any, int]:
    """Sizes of the mesh's dimensions, by name; by number where they have no names."""
    names = mesh.mesh_dim_names or range(mesh.ndim)
    return {name: mesh.size(dim) for dim, name in enumerate(names)}


def _split_dims(param: Tensor) -> List[Any]:
    """The dimensions of the mesh over which the ranks have different parts of a tensor."""
    if not is_shared(param):
        return []
    return [name for name, p in zip(_dims(_mesh(param)), _placements(param)) if _splits(p)]


def numel_over(param: Tensor, mesh: Any) -> float:
    """Elements of a tensor that the ranks of `mesh` have together; all of them if it is None."""
    if mesh is None:
        return param.numel()
    sizes = _dims(_mesh(param))
    beside = [sizes[name] for name in _split_dims(param) if name not in _dims(mesh)]
    return param.numel() / math.prod(beside)


def _mesh(param: Tensor) -> Any:
    return param.device_mesh if is_dtensor(param) else _ROWS[param]  # type: ignore[attr-defined]


def _placements(param: Tensor) -> Tuple[Any, ...]:
    if is_dtensor(param):
        return tuple(param.placements)  # type: ignore[attr-defined]
    from torch.distributed.tensor import Shard

    return (Shard(0),)


def _placed_alike(param: Tensor, value: Tensor) -> bool:
    if getattr(param, "_spec", None) is value._spec:  # type: ignore[attr-defined]
        return True  # FSDP2 gives a gradient its parameter's
    return _mesh(param) == _mesh(value) and _placements(param) == _placements(value)


def gradient_part(name: str, param: Tensor, grad: Tensor, reader: Any) -> Tensor:
    """This rank's part of a gradient of a shared tensor, for the stream that reads it (None: there
    are no streams). HocketUsageError if it is placed otherwise."""
    part = grad  # what FSDP2 adds to a handle is the part alone
    if is_dtensor(grad):
        if not _placed_alike(param, grad):
            raise HocketUsageError(
                f"the gradient of {name} has placements {_placements(grad)}, the parameter "
                f"{_placements(param)}: gradients are reduced, and placed as their parameters"
            )
        part = local(grad)
    elif not is_dtensor(param) and grad.shape == param.shape:
        part = part_of(param, grad)
    elif grad.shape != local(param).shape:
        raise HocketUsageError(
            f"the gradient of {name} is no DTensor, but the parameter is: assign gradients with "
            "the parameter's placements"
        )
    if reader is not None and part.is_cuda:
        # Its memory may be of another stream than the one that reads it: the allocator waits for
        # both before it gives it away.
        part.record_stream(reader)
    return part


# -- The mesh -----------------------------------------------------------------------------------


class Ranks:
    """The ranks that share an optimizer's parameters.

    Attributes:
        rank: this rank's number in the default group.
    """

    def __init__(self, mesh: Any) -> None:
        self._mesh = mesh
        self._groups = [mesh.get_group(dim) for dim in range(mesh.ndim) if mesh.size(dim) > 1]
        self.rank: int = torch.distributed.get_rank()
        self._host = socket.gethostname()
        self._ends = failures.Ends(self.rank, self._host)
        kind = mesh.device_type
        self._device = torch.device(
            kind, torch.cuda.current_device() if kind == "cuda" else None  # type: ignore[arg-type]
        )

    @classmethod
    def of(cls, param_groups: Sequence[Mapping[str, Any]]) -> Optional["Ranks"]:
        """The ranks of these parameters; None if no parameter is a DTensor.

        Raises:
            HocketUsageError: placements that are not those of FSDP2 and tensor parallelism, or
                several meshes of which none has the others' dimensions.
        """
        params = [param for group in param_groups for param in group["params"]]
        shared = [param for param in params if is_shared(param)]
        if not shared:
            return None
        # Tensor parallelism leaves parameters on FSDP2's dimensions of the mesh alone.
        whole = max((_mesh(param) for param in shared), key=lambda mesh: mesh.ndim)
        for param in shared:
            mesh = _mesh(param)
            named = bool(mesh.mesh_dim_names and whole.mesh_dim_names)
            if mesh != whole and not (named and _dims(mesh).items() < _dims(whole).items()):
                raise HocketUsageError(
                    f"a parameter of shape {tuple(param.shape)} is on {mesh}, another on {whole}: "
                    "one hocket.AdamW has parameters of one mesh, or of some of its dimensions by "
                    "name (FSDP2, HSDP, tensor parallelism); expert parallelism is not supported"
                )
            _check_placements(param)
        return cls(whole)

    def counts(self, params: Sequence[Tensor]) -> bytes:
        """1 for each tensor that this rank counts in the norm: of replicas, the first rank does."""
        coordinate = dict(zip(_dims(self._mesh), self._mesh.get_coordinate()))
        later = {name for name, at in coordinate.items() if at}  # another rank is before this one
        return bytes(later <= set(_split_dims(param)) for param in params)

    # -- Collectives ----------------------------------------------------------------------------

    def _reduce(self, values: Tensor, maximum: bool = False) -> Tensor:
        """Adds up values over all ranks, or takes the largest; the result is on the host."""
        distributed = torch.distributed
        operation = distributed.ReduceOp.MAX if maximum else distributed.ReduceOp.SUM
        values = values.to(self._device)
        try:
            for group in self._groups:
                distributed.all_reduce(values, op=operation, group=group)
            return values.cpu()
        except RuntimeError as error:
            raise self._lost(error) from error

    def _lost(self, error: RuntimeError) -> HocketError:
        first = self._ends.first()
        return HocketError(
            f"rank {self.rank} cannot reach the other ranks in hocket.AdamW: "
            f"{first or 'one of them has failed, or has not called step()'} ({error})",
            MACHINE,
        )

    def agree(
        self,
        words: Optional[Sequence[int]] = None,
        held: bool = False,
        failure: Optional[Exception] = None,
    ) -> Tuple[List[int], bool]:
        """All ranks call it. Returns the sum of their words, and whether any rank holds a gradient.

        Raises:
            Exception: `failure`, if this rank has one; HocketError with the failing rank's name and
                message, if another has; HocketError (3), if some rank cannot be reached.
        """
        mine = [*(words or [0] * _abi.SQUARES), int(held), int(failure is not None)]
        *total, holding, failing = self._reduce(torch.tensor(mine, dtype=torch.int64)).tolist()
        if failing:
            said = self._said_by_first(failure is not None, f"{failure}")
            if failure is not None:
                raise failure
            raise HocketError(said, USAGE)
        return total, holding > 0

    def any(self, have: bool) -> bool:
        """All ranks call it. Whether `have` is true on any."""
        return self.agree(held=have)[1]

    def first(self, have: bool) -> int:
        """All ranks call it. Number of the first rank for which `have` is true; there is one."""
        last = torch.distributed.get_world_size()
        mine = torch.tensor([last - self.rank if have else 0], dtype=torch.int64)
        return last - int(self._reduce(mine, maximum=True))

    def gathered(self, mine: Any) -> List[Any]:
        """All ranks call it. What each has, in one order on all: first what the rank has that
        decides."""
        found = [mine]
        for group in self._groups:
            gathered: List[Any] = [None] * torch.distributed.get_world_size(group)
            try:
                torch.distributed.all_gather_object(gathered, found, group=group)
            except RuntimeError as error:
                raise self._lost(error) from error
            found = [entry for entries in gathered for entry in entries]
        return found

    def decides(self) -> bool:
        """Whether this rank decides for all."""
        return not any(self._mesh.get_coordinate())

    def here(self) -> List[failures.Neighbour]:
        """The ranks on this host, this one included."""
        return [n for n in self._ends.met if n.host == self._host]

    def _said_by_first(self, have: bool, text: str) -> str:
        rank = self.first(have)
        message = f"rank {rank} ({self._host}): {text}" if rank == self.rank else ""
        room = list(message.encode()[: failures.MESSAGE].ljust(failures.MESSAGE, b"\0"))
        found = self._reduce(torch.tensor(room, dtype=torch.int32)).tolist()
        return bytes(found).rstrip(b"\0").decode(errors="replace")

    @contextlib.contextmanager
    def together(self) -> Iterator[None]:
        """If the block fails on one rank, it raises on all."""
        failure: Optional[Exception] = None
        try:
            yield
        except Exception as error:  # noqa: BLE001  (raised again, on all ranks)
            failure = error
        self.agree(failure=failure)

    # -- Sharing a host -------------------------------------------------------------------------

    def meet(self) -> None:
        """All ranks call it. Learns which of them share this host."""
        failures.watch(self._ends)
        mine = failures.Neighbour(
            self.rank,
            self._host,
            os.getpid(),
            tuple(sorted(os.sched_getaffinity(0))),
            _abi.host_memory(),
        )
        self._ends.met = [failures.Neighbour(*entry) for entry in self.gathered(tuple(mine))]

    def idle(self) -> None:
        """Waits for the device, before host memory is pinned: beside a kernel of NCCL, which waits
        for other ranks, that may never end."""
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)

    def divide(self, settings: "Settings") -> "Settings":
        """What the engine of this rank is created with: its share of the host."""
        threads = settings.cpu_threads
        if not threads and settings.plan in (None, "auto"):
            threads = self._threads(settings.overlap)
        return settings._replace(
            cpu_threads=threads or None, host_memory=settings.host_memory or self._memory()
        )

    def _threads(self, overlap: str) -> Optional[int]:
        """Threads of this rank's update where others update on the same CPUs: the engine's default
        for its share of them. None: it has its CPUs for itself."""
        here = self.here()
        mine = next(n for n in here if n.rank == self.rank)
        sharing = sum(bool(set(n.cpus) & set(mine.cpus)) for n in here)
        if sharing <= 1:
            return None
        cpus = max(1, quota(len(mine.cpus)) // sharing)
        left = 1 if overlap != "both" else min(3, cpus // 4)
        return max(1, cpus - left)

    def _memory(self) -> Optional[int]:
        """This rank's share of the host's memory; None: it has the host for itself."""
        here = self.here()
        return min(n.memory for n in here) // len(here) if len(here) > 1 else None


def check_settings(settings: "Settings") -> "Settings":
    """Refuses what does not work where ranks share parameters."""
    if settings.clip == "block":
        raise HocketUsageError(
            'clip="block" with parameters that ranks share (DTensors): a block\'s norm is known to '
            'no rank alone; use clip="norm"'
        )
    return settings


def refuse_file(param_groups: Sequence[Mapping[str, Any]]) -> None:
    """Refuses save() and load() of one file where each rank has a part."""
    if any(is_shared(param) for group in param_groups for param in group["params"]):
        raise HocketUsageError(
            "save() and load() of parameters that ranks share (DTensors): one file would hold this "
            "rank's part alone; use torch.distributed.checkpoint with state_dict()"
        )


def refuse_rows(param_groups: Sequence[Mapping[str, Any]]) -> None:
    """Refuses an optimizer without attach where another one has been attached to the model in
    DDP."""
    if _ROWS and any(param in _ROWS for group in param_groups for param in group["params"]):
        raise HocketUsageError(
            "the ranks share out the state of this model, which a hocket.AdamW has been attached "
            "to in DistributedDataParallel: attach this one, too"
        )


def _check_placements(param: Tensor) -> None:
    for placement in _placements(param):
        if not _splits(placement) and not placement.is_replicate():
            raise HocketUsageError(
                f"a parameter of shape {tuple(param.shape)} has placements {_placements(param)}: "
                "hocket.AdamW takes those that split or replicate (FSDP2, HSDP, tensor parallelism)"
            )


def quota(cpus: int) -> int:
    """CPUs that the control group allows, at most `cpus`."""
    try:
        with open("/sys/fs/cgroup/cpu.max", encoding="ascii") as file:
            most, period = file.read().split()
        return min(cpus, max(1, int(most) // int(period)))
    except (OSError, ValueError):  # no such group, or "max"
        return cpus


class EmptyState(Mapping[str, Tensor]):
    """``opt.state[p]`` of a parameter of which this rank has no element. Frameworks that gather
    state need an entry on every rank."""

    def __init__(self, param: Tensor, step: int) -> None:
        self.param, self.step = param, step

    def __getitem__(self, key: str) -> Tensor:
        if key == "step":
            return torch.tensor(float(self.step))
        if key not in ("exp_avg", "exp_avg_sq", "master_weight"):
            raise KeyError(key)
        return shared_as(self.param, torch.empty(local(self.param).shape, dtype=torch.float32))

    def __iter__(self) -> Iterator[str]:
        return iter(("step", "exp_avg", "exp_avg_sq", "master_weight"))

    def __len__(self) -> int:
        return 4

    def __deepcopy__(self, memo: Any) -> Dict[str, Tensor]:
        return dict(self)

    def __reduce__(self) -> Any:
        return dict, (dict(self),)


