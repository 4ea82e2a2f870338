# SPDX-License-Identifier: Apache-2.0
"""An attached model that DDP keeps on all ranks, whose optimizer state the ranks share out.

A rank updates its rows of each parameter, in the parameter's own memory, as FSDP2 would shard them.
DDP calls a hook with each bucket of gradients: the rows of the other ranks go to them, and the sum
of one's own rows goes to the engine. Before a block's next forward its rows are gathered.

Gathering is a collective of all ranks, so it has its place and its order: within DDP's forward, the
blocks in turn, what is left at its end. Whoever reads weights between step() and that forward, on
one rank perhaps, is told to call synchronize() on all.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any, Dict, List, Sequence, Tuple

import torch
from torch import Tensor, nn

from . import ranks
from .blocks import Block
from .errors import HocketUsageError
from .gates import Hook

if TYPE_CHECKING:
    from .attach import Attachment


_CURRENT: Any = weakref.WeakKeyDictionary()
"""Whom each DDP's hook calls: DDP takes one hook, but one optimizer may follow another."""


class Replicas:
    """The hooks of one optimizer in one DistributedDataParallel.

    Attributes:
        model: the module that DDP wraps.
        reduced: whether a backward has brought gradients since the last step.
        inside: whether DDP's forward runs, on all ranks.
    """

    def __init__(self, attachment: "Attachment", ddp: nn.parallel.DistributedDataParallel) -> None:
        from torch.distributed.device_mesh import DeviceMesh

        for option in ("find_unused_parameters", "static_graph"):
            if getattr(ddp, option):
                raise HocketUsageError(
                    f"attach does not take DDP with {option}=True: gradients that no backward has "
                    "made look like zeros there; use hocket.AdamW without attach"
                )
        self.model = ddp.module
        self._attachment = weakref.ref(attachment)
        self._group = ddp.process_group
        trained = [param for param in self.model.parameters() if param.requires_grad]
        if any(param.dim() == 0 for param in trained):
            raise HocketUsageError(
                "attach does not take DDP with a parameter that has no dimensions: ranks share "
                "out rows; use hocket.AdamW without attach"
            )
        mesh = DeviceMesh.from_group(self._group, trained[0].device.type)
        for param in trained:
            ranks.share_rows(param, mesh)
        self._members: List[Tuple[List[Tensor], List[int]]] = []
        self._place_of: Dict[int, int] = {}
        self._next = 0
        self.inside = self.reduced = False
        self._backward = -1
        if ddp not in _CURRENT:
            _CURRENT[ddp] = current = [self]
            ddp.register_comm_hook(current, lambda state, bucket: state[0]._reduce(bucket))
        _CURRENT[ddp][0] = self
        ddp.register_forward_pre_hook(Hook(attachment, (), "begins"))
        ddp.register_forward_hook(Hook(attachment, (), "ends"))
        ddp.register_forward_hook(Hook(attachment, (), "left"), always_call=True)

    # -- Gradients ------------------------------------------------------------------------------

    def begins(self) -> None:
        """DDP's forward begins. Zeros that ``zero_grad(set_to_none=False)`` has left in the place
        of gradients go: backward brings new gradients of all parameters, and autograd would add
        these of a whole parameter to zeros of a rank's rows."""
        self.inside = True
        attachment = self._attachment()
        if attachment is None or not attachment.optimizer().is_bound() or self.reduced:
            return
        optimizer = attachment.optimizer()
        binding, handover = optimizer.binding(), optimizer.handover()
        left = [param for n, param in enumerate(binding.params) if handover.zeroed[n]]
        for param in (*left, *binding.empty) if torch.is_grad_enabled() else ():
            if param.grad is not None and ranks.is_dtensor(param.grad):
                param.grad = None

    def _reduce(self, bucket: Any) -> Any:
        """DDP's communication hook. Returns a future of the bucket's memory, as DDP wants it."""
        whole: Tensor = bucket.buffer()
        whole.div_(self._group.size())
        attachment = self._attachment()
        if attachment is None or attachment.detached:
            work: Any = torch.distributed.all_reduce(whole, group=self._group, async_op=True)
            return work.get_future().then(lambda future: whole)
        backward: int = torch._C._current_graph_task_id()
        if backward != self._backward:
            self._backward = backward
            attachment.optimizer().before_backward()
            _at_the_end_of_backward(self._over)
        params: List[Tensor] = bucket.parameters()
        given = packed(bucket.gradients(), self._group.size())
        mine = given[self._group.rank()]
        if given.is_cuda:
            mine = torch.empty_like(mine)
            work = torch.distributed.reduce_scatter_tensor(
                mine, given.view(-1), group=self._group, async_op=True
            )
        else:  # what gloo scatters has no future
            work = torch.distributed.all_reduce(given, group=self._group, async_op=True)

        def arrived(future: Any) -> Tensor:
            future.value()
            self._hand_over(params, mine)
            return whole

        return work.get_future().then(arrived)

    @torch.no_grad()
    def _hand_over(self, params: Sequence[Tensor], mine: Tensor) -> None:
        attachment = self._attachment()
        if attachment is None:
            return
        optimizer = attachment.optimizer()
        index = optimizer.binding().index
        numbers, grads, at = [], [], 0
        for param in params:
            part = ranks.local(param)
            if id(param) in index:
                numbers.append(index[id(param)])
                grads.append(mine[at : at + part.numel()].view(part.shape))
            at += _room(param, self._group.size())
        if numbers:
            attachment.check_gated(numbers)
            optimizer.handover().take(numbers, grads, place=False)

    def _over(self) -> None:
        _at_the_end_of_backward(self._reduced)  # behind DDP's own, which waits for all buckets

    def _reduced(self) -> None:
        """Puts the handles in the place of gradients that were never reduced."""
        self._backward, self.reduced = -1, True
        attachment = self._attachment()
        if attachment is None:
            return
        optimizer = attachment.optimizer()
        handover = optimizer.handover()
        for number, param in enumerate(optimizer.binding().params):
            if handover.live[number]:
                param.grad = handover.stand_in(number)
        for param in optimizer.binding().empty:
            if param.grad is not None:
                param.grad = ranks.shared_as(param, torch.empty_like(ranks.local(param)))
        optimizer.binding().engine.flush()

    # -- Weights --------------------------------------------------------------------------------

    def bound(self, blocks: Sequence[Block], number_of: Dict[int, int], its: Sequence[int]) -> None:
        """Called when the engine has been made. blocks: of all trained parameters, the same on all
        ranks; its: the engine's blocks, of the parameters that this rank has rows of."""
        named = dict(self.model.named_parameters())
        for place, block in enumerate(blocks):
            params = [named[name] for name in block.tensors]
            known = [its[number_of[id(param)]] for param in params if id(param) in number_of]
            self._members.append((params, sorted(set(known))))
            self._place_of.update((id(param), place) for param in params)
        self._next = len(self._members)

    def names(self) -> List[str]:
        """Of all parameters that ranks share out."""
        return [name for name, param in self.model.named_parameters() if ranks.is_shared(param)]

    @property
    def pending(self) -> bool:
        """Whether rows of other ranks are out of date."""
        return self._next < len(self._members)

    def updated(self) -> bool:
        """All ranks take a step: all rows will have to be gathered. Returns whether that may wait
        for the next forward: gradients that the program has assigned are followed by none, where
        torch makes state to load a checkpoint into."""
        self._next = 0
        waits, self.reduced = self.reduced, False
        return waits

    def reach(self, param: Tensor) -> None:
        """A weight is read: its rows are gathered now, if they have not been."""
        place = self._place_of.get(id(param), -1)
        if self._next > place:
            return
        if not self.inside:
            raise HocketUsageError(
                "weights are read whose rows other ranks have updated: between step() and the next "
                "forward call opt.synchronize() on all ranks first"
            )
        self.gather(place + 1)

    @torch.no_grad()
    def gather(self, until: int = 1 << 30) -> None:
        """All ranks call it. Gathers the first so many blocks."""
        attachment = self._attachment()
        while attachment is not None and self._next < min(until, len(self._members)):
            params, blocks = self._members[self._next]
            for block in blocks:
                attachment.wait(block)
            self._next += 1
            for dtype in dict.fromkeys(param.dtype for param in params):
                self._gather([param for param in params if param.dtype is dtype])

    def _gather(self, params: Sequence[Tensor]) -> None:
        size = self._group.size()
        room = sum(_room(param, size) for param in params)
        mine = params[0].new_zeros(room)
        at = 0
        for param in params:
            part = ranks.local(param)
            mine[at : at + part.numel()] = part.reshape(-1)
            at += _room(param, size)
        whole = mine.new_empty(size, room)
        torch.distributed.all_gather_into_tensor(whole.view(-1), mine, group=self._group)
        unpacked(whole, [param.data for param in params], self._group.rank())


def packed(grads: Sequence[Tensor], size: int) -> Tensor:
    """A line for each rank, with its rows of each gradient."""
    out = grads[0].new_zeros(size, sum(_room(grad, size) for grad in grads))
    at = 0
    for grad in grads:
        for number, chunk in enumerate(torch.chunk(grad, size)):
            out[number, at : at + chunk.numel()] = chunk.reshape(-1)
        at += _room(grad, size)
    return out


def unpacked(lines: Tensor, tensors: Sequence[Tensor], left_out: int = -1) -> None:
    """The inverse of packed(), into these tensors; without the line of one rank."""
    at = 0
    for tensor in tensors:
        for number, chunk in enumerate(torch.chunk(tensor, len(lines))):
            if number != left_out:
                chunk.copy_(lines[number, at : at + chunk.numel()].view(chunk.shape))
        at += _room(tensor, len(lines))


def _room(tensor: Tensor, size: int) -> int:
    """Elements of the largest of so many parts of a tensor's rows."""
    rows = tensor.shape[0]
    return -(-rows // size) * (tensor.numel() // rows) if rows else 0


def _at_the_end_of_backward(action: Any) -> None:
    torch.autograd.Variable._execution_engine.queue_callback(action)
