# SPDX-License-Identifier: Apache-2.0
"""What attach() adds to a model: gates before its weights, hooks on its gradients.

An upload of new weights may still run while the program goes on. Three gates keep the program from
reading weights before they have arrived:

1. Each module's ``_parameters`` becomes a dict that waits for a parameter's block whenever it is
   looked up (``self.weight``, ``lm_head.weight``) or iterated over (``parameters()``,
   ``state_dict()``, ``to()``, copies). Every module that reads its weights so is covered, however
   it is called.
2. Modules that are blocks wait before their forward, and so do the owners of parameters whose use
   was not seen in the first iteration (``nn.LSTM`` keeps a list of its own).
3. Compiled code looks nothing up: compiled modules wait outside, before they are entered.

Should a gradient arrive for weights that no gate has waited for, the hook raises.
"""

from __future__ import annotations

import warnings
import weakref
from typing import (
    TYPE_CHECKING,
    Any,
    Callable,
    Dict,
    List,
    Optional,
    Sequence,
    Set,
    Tuple,
)

import torch
from torch import Tensor, nn

from . import _abi, ranks
from .blocks import MAX_BLOCKS, Block, find_blocks
from .describe import Call, Costs, measure, on_fakes
from .direct import Direct
from .errors import HocketUsageError
from .gates import Arrival, CompiledCall, GatedParameters, Hook, differentiable
from .handle import handle_in, held_by_autograd
from .replicas import Replicas
from .sharded import Shards, check_model, is_known, is_sharded, named_parameters

if TYPE_CHECKING:
    from .binding import Binding
    from .handover import HandOver
    from .optim import AdamW

HOOK_NUMEL = 1 << 15
"""Least elements of a tensor with a hook. Gradients of smaller tensors leave with those of their
block, or when the whole backward is over; in models without a larger tensor in ``step()``. A copy
to the host that holds small and large gradients waits for the small ones."""
TOGETHER_BYTES = 1 << 27
"""Gradients of a block leave by one call, because a call for each takes the host longer than
autograd needs for a small matrix: when a gradient of another block comes, or as soon as they have
this many bytes. They stay allocated until then; plans count a whole block's."""
SWEEP_MOST = 4096
"""Most tensors below HOOK_NUMEL whose gradients leave during backward. If a model has more, they
are handed over in ``step()``, at a fraction of the cost; with overlap "both" they leave during
backward in any case. If they are handed over in ``step()``, clipping with torch is slow, because
large and small gradients are multiplied differently."""


MOST_OWNERS = 64
"""Most modules outside module lists that get hooks. If there are more, none of them gets one:
look-ups gate their weights, except in code that was compiled after attach, and the timeline lacks
them."""


class Attachment:
    """The hooks and gates of one optimizer in one model.

    Attributes:
        model: the model.
        busy: whether lookups of parameters matter now (a trace, or updates under way).
        waits: whether weights may be under way.
        names: id of a parameter to its name in the model.
    """

    def __init__(self, optimizer: "AdamW", model: nn.Module) -> None:
        self.replicas: Optional[Replicas] = None
        self.detached = False
        held_by_autograd()  # later a backward is under way
        if isinstance(model, nn.parallel.DistributedDataParallel):
            refuse_wrapped(model.module)
            self.replicas = Replicas(self, model)
            model = self.replicas.model
        refuse_wrapped(model)
        self.model = model
        self._optimizer = weakref.ref(optimizer)
        self.names = {id(param): name for name, param in model.named_parameters()}
        self.busy, self.waits = True, False
        self._trace: Optional[Dict[int, int]] = {}
        self._hooked: Dict[int, Any] = {}  # id of a parameter: its hook
        self._handles: List[Any] = []
        # Of each stream, the blocks that it may read; None while step() begins an update: a wait of
        # another thread, which looks up a weight just then, may return before the update has begun.
        self._passed: Optional[Dict[int, bytearray]] = {}
        self._number_of: Dict[int, int] = {}
        self._blocks: List[int] = []
        self._members: List[List[int]] = []
        self._expected: Dict[str, int] = {}
        # The block whose gradients wait for the others (-1: none), the stream that they come on,
        # how many bytes they have, and after how many more the block is over (0, -1 ...: when
        # another block's come). What is in p.grad counts, so that an interrupt loses nothing.
        self._block, self._stream, self._bytes, self._more = -1, 0, 0, 0
        self._stream_now: Callable[[], int] = lambda: 0
        self._leaving: List[List[int]] = []
        self._sizes: List[int] = []
        self._types: List[torch.dtype] = []
        self._backward = self._begun = -1  # -1 also: no gradient has come that is the first
        self._small: Dict[int, List[int]] = {}
        self._sets: Dict[int, Optional[Direct]] = {}
        self._few_small = True
        self._compiled = False
        self._ungated = bytearray()
        self.recording = False
        self._marked: Dict[int, bool] = {}
        self._marks: Optional[Tuple[Dict[str, Set[int]], Dict[str, Set[int]]]] = None
        self.keep_call = optimizer._settings.plan == "auto"
        self._call: Optional[Call] = None
        self.shards: Optional[Shards] = None
        if is_sharded(model):
            check_model(model)
        self._gate_parameters()
        self.hook_gradients(self._parameters())
        for module in model.modules():
            self._gate_compiled(module)
        # In a sharded model it comes after FSDP2's own, which makes the last changes to memory.
        first = is_sharded(model) and not is_known(model)
        self._tracer = model.register_forward_pre_hook(
            Hook(self, (), "trace"), prepend=first, with_kwargs=True
        )

    def optimizer(self) -> "AdamW":
        """The optimizer. Raises HocketUsageError if it has been deleted."""
        found = self._optimizer()
        if found is None:
            raise HocketUsageError("the hocket.AdamW attached to this model is gone")
        return found

    def _parameters(self) -> List[Tensor]:
        return [param for group in self.optimizer().param_groups for param in group["params"]]

    def _gate_parameters(self) -> None:
        me = weakref.ref(self)
        for module in self.model.modules():
            table = module.__dict__["_parameters"]
            if isinstance(table, GatedParameters):
                others = (gate for gate in table.gates if gate() not in (None, self))
                table.gates = (*others, me)
            else:
                gated = GatedParameters(table)
                gated.gates = (me,)
                module.__dict__["_parameters"] = gated

    def _ungate_parameters(self) -> None:
        """Without overlap nobody ever waits, and a look-up in a plain dict takes half the time.
        Compiled code would be compiled again, because it has checked the dict's type."""
        for module in self.model.modules():
            table = module.__dict__["_parameters"]
            if isinstance(table, GatedParameters):
                table.gates = tuple(gate for gate in table.gates if gate() not in (None, self))
                if not table.gates:
                    module.__dict__["_parameters"] = table.copy()

    def _gate_compiled(self, module: nn.Module) -> None:
        call = getattr(module, "_compiled_call_impl", None)
        if call is not None:
            self._compiled = True
            module._compiled_call_impl = CompiledCall(self, call, module)  # type: ignore
        elif type(module).__name__ == "OptimizedModule":
            self._compiled = True
            self._handles.append(module.register_forward_pre_hook(Hook(self, (-1,))))

    def detach(self) -> None:
        """Removes the hooks. The gates stay in the model and let everything pass."""
        if self.shards is not None:
            self.shards.detach()
        for handle in (*self._handles, *self._hooked.values()):
            handle.remove()
        self._tracer.remove()
        self.busy = self.waits = False
        self._trace = None
        self.detached = True

    # -- The first iteration ------------------------------------------------------------------

    def prepare(self) -> None:
        """Called before the engine is made: looks whether the model has got other parameters since
        attach(), by modules that were added, or because it has been sharded."""
        self.names = {id(p): name for name, p in named_parameters(self.model).items()}
        self._gate_parameters()
        if self.shards is None and is_sharded(self.model):
            self.shards = Shards(self)
            for handle in self._hooked.values():
                handle.remove()
            self._hooked.clear()

    def hook_gradients(self, params: List[Tensor]) -> None:
        """Registers a hook on each large parameter that requires a gradient and has no hook yet. Of
        a sharded model on each: the gradients of a block come together, when they are reduced. With
        ``accumulate=torch.float32`` on each of another type: autograd would add in that type."""
        wider = self.optimizer()._settings.accumulate
        for param in params:
            small = param.numel() < HOOK_NUMEL and wider in (None, param.dtype)
            if (
                id(param) in self._hooked
                or not param.requires_grad
                or (small and self.shards is None)
                or self.replicas is not None
                or id(param) not in self.names
            ):
                continue
            self._hooked[id(param)] = param.register_post_accumulate_grad_hook(Arrival(self))

    def begin_trace(self, args: Any, kwargs: Any) -> None:
        """The model begins a forward. Look-ups before it are forgotten, because they do not
        tell the order of use."""
        if self._trace is not None and torch.is_grad_enabled():
            if self.keep_call:
                self._call = Call(args, kwargs)
            if not self.optimizer().is_bound() and (self.replicas or is_sharded(self.model)):
                # In a forward, because all ranks are there, and early, because host memory should
                # be pinned before much communication is under way.
                self.optimizer().bind()
            self._trace.clear()

    def costs(self, blocks: Sequence[Block]) -> Optional[Costs]:
        """FLOPs and bytes of each block in the recorded forward; None if there is none."""
        if self._call is None:
            return None
        call, self._call, kept = self._call, None, self._trace
        if self.shards is not None:
            return self.shards.costs(call, blocks)
        self._trace, self.busy = None, False
        try:
            # No real forward: a backward is under way, with all its activations.
            return measure(self.model, call, blocks, on_fakes)
        except Exception as error:
            warnings.warn(
                'hocket: plan="auto" knows no FLOPs and activations, because the forward cannot '
                f"run on shapes alone ({error}); hocket.profile(model, batch) measures them, for "
                "a file of hocket plan"
            )
            return None
        finally:
            self._trace, self.busy = kept, True

    def expect_order(self, names: Sequence[str]) -> None:
        """Blocks follow this order of tensors, that of a file which is loaded next."""
        self._expected = {name: position for position, name in enumerate(names)}

    def blocks(self, names: List[str], most: Optional[int]) -> List[Block]:
        """Blocks of the parameters with these names, in the order of use in forward, as of
        find_blocks."""
        if self.shards is not None:
            return self.shards.blocks(names)
        if self._expected:
            return find_blocks(self.model, names, self._expected, most)
        trace = self._trace or {}
        order = {self.names[key]: position for key, position in trace.items() if key in self.names}
        return find_blocks(self.model, names, order, most)

    def bound(self, blocks: List[Block], binding: "Binding", handover: "HandOver") -> None:
        """Called when the engine has been made. From now on gates wait."""
        self._number_of, self._blocks = binding.index, binding.blocks
        self._members = [[] for _ in range(binding.n_blocks)]
        for number, its in enumerate(binding.blocks):
            self._members[its].append(number)
        self._ungated = bytearray(len(binding.params))
        if self.shards is not None and self.optimizer()._settings.overlap != "none":
            self.shards.gate(binding.index, binding.blocks)
        if self.replicas is not None:
            every = self.blocks(self.replicas.names(), MAX_BLOCKS)
            self.replicas.bound(every, binding.index, binding.blocks)
        self._small, self._sets = {}, {}
        self._stream_now = binding.stream
        self._types = binding.grad_types
        self._sizes = [p.numel() * t.itemsize for p, t in zip(binding.parts, self._types)]
        for number, param in enumerate(binding.params):
            if id(param) not in self._hooked:
                self._small.setdefault(binding.blocks[number], []).append(number)
        small = [number for numbers in self._small.values() for number in numbers]
        self._few_small = len(small) <= SWEEP_MOST
        if self.shards is None and self.replicas is None:
            handover.keeper = self.added
        hooked = len(small) < len(binding.params)
        swept = hooked and (self._few_small or self.optimizer().runs_ahead)
        handover.leave_to_step([] if swept else small)
        left = set() if swept else set(small)
        self._leaving = [[n for n in numbers if n not in left] for numbers in self._members]
        gates: Dict[str, Set[int]] = {}
        for number, block in enumerate(blocks):
            for module_name in block.modules:
                gates.setdefault(module_name, set()).add(number)
        owners: Dict[str, Set[int]] = {}  # of what belongs to no list: for compiled code, and marks
        for number, block in enumerate(blocks):
            for name in () if block.modules else block.tensors:
                owners.setdefault(name.rpartition(".")[0], set()).add(number)
        owners.pop("", None)
        self._marks = (gates, owners if len(owners) <= MOST_OWNERS else {})
        self._hook_modules({"": set()}, ("before",))
        if self.recording or self.optimizer()._settings.overlap != "none":
            self._hook_marks()

    def _hook_marks(self) -> None:
        """Hooks what waits before it computes, or is marked in the timeline: without overlap only
        the latter, when something is recorded for the first time."""
        if self._marks is not None:
            gates, owners = self._marks
            self._hook_modules(gates, ("before", "after"))
            self._hook_modules(owners, ("owner", "after"))
            self._marks = None

    def record(self, on: bool) -> None:
        """Starts or ends the marks for the timeline."""
        self.recording = on
        if on:
            self._hook_marks()
        if self.shards is not None:
            self.shards.record(on)

    def _hook_modules(self, gates: Dict[str, Set[int]], phases: Tuple[str, ...]) -> None:
        for name, numbers in gates.items():
            module = self.model.get_submodule(name)
            blocks = tuple(sorted(numbers))
            for phase in phases:
                register = (
                    module.register_forward_hook
                    if phase == "after"
                    else module.register_forward_pre_hook
                )
                self._handles.append(register(Hook(self, blocks, phase)))

    def end_trace(self) -> None:
        """Called at the first step. A parameter that no look-up has shown is gated before the
        forward of the module that owns it, and before that of the root, because the owner's hook
        may never run."""
        if self._trace is None:
            return
        gates: Dict[str, Set[int]] = {}
        for key, number in self._number_of.items():
            if key not in self._trace and self.shards is None:
                block = self._blocks[number]
                gates.setdefault(self.names[key].rpartition(".")[0], set()).add(block)
                gates.setdefault("", set()).add(block)
        self._hook_modules(gates, ("before",))
        self._tracer.remove()
        self._trace = self._call = None  # a later forward's batch, or of a rank that did not plan
        self.busy = self.waits
        if self.optimizer()._settings.overlap == "none" and not self._compiled:
            self._ungate_parameters()

    # -- Gates --------------------------------------------------------------------------------

    def touch(self, param: Any) -> None:
        """Called at each look-up of a parameter. Waits for its block."""
        if self._trace is not None:
            self._trace.setdefault(id(param), len(self._trace))
            return
        if self.replicas is not None and self.waits:
            self.replicas.reach(param)
        number = self._number_of.get(id(param))
        if number is not None:
            self.wait(self._blocks[number])
            self._ungated[number] = 0

    def wait(self, block: int) -> None:
        """Returns when the current stream may read a block's weights."""
        binding = self.optimizer().binding()
        stream, every = binding.stream(), self._passed
        passed = every.get(stream) if every is not None else None
        if passed is None:
            passed = bytearray(binding.n_blocks)
            if every is not None:
                every[stream] = passed
        if passed[block]:
            return
        if binding.device.type == "cuda" and torch.cuda.is_current_stream_capturing():
            raise HocketUsageError(
                "a CUDA graph is captured while weights are under way: call opt.synchronize() "
                "before the capture, and before each replay"
            )
        binding.engine.wait_weights(block, stream)
        passed[block] = 1

    def wait_for_all_of(self, block: int) -> None:
        """Waits for a block, and marks all its tensors as gated."""
        if self.replicas is not None:
            for number in self._members[block]:
                self.replicas.reach(self.optimizer().binding().params[number])
        self.wait(block)
        for number in self._members[block]:
            self._ungated[number] = 0

    def enter(self, module: nn.Module, blocks: Tuple[int, ...], args: Any, compiled: bool) -> None:
        """Called when a hooked module begins its forward."""
        if getattr(module, "_is_replica", False):
            raise HocketUsageError(
                "the attached model runs under DataParallel: use one GPU, or hocket.AdamW "
                "without attach"
            )
        if not self.waits and not self.recording:
            return
        if compiled or -1 in blocks:
            self.wait_under(module)
        for block in blocks:
            if block >= 0 and self.waits:
                self.wait_for_all_of(block)
        self.mark_begin(blocks, args)

    def wait_under(self, module: nn.Module) -> None:
        """Waits for all weights under a module."""
        if not self.waits:
            return
        for inner in module.modules():
            for param in dict.values(inner._parameters):  # type: ignore[arg-type]
                self.touch(param)

    def close_gates(self) -> None:
        """Called before step() starts an update. Gates wait until its weights have arrived. If no
        update starts, waits return at once."""
        self._passed = None
        self._ungated = bytearray(b"\1" * len(self._ungated))
        self.busy = self.waits = True
        self._block = -1

    def begun(self) -> None:
        """Called when step() has started the update, or has found that there is none."""
        self._passed = {}

    def complete(self) -> None:
        """Called when all weights have arrived, and no step() can start an update meanwhile. Gates
        let everything pass."""
        if self.replicas is not None and self.replicas.pending:
            return
        self._ungated = bytearray(len(self._ungated))
        self.waits = False
        self.busy = self._trace is not None

    def forward_of_replicas(self, phase: str) -> None:
        """Called when the forward of a model under DDP begins, when it returns ("ends"), and then,
        or when it has raised, once more ("left")."""
        if self.replicas is None or self.detached:
            return
        if phase == "begins":
            self.replicas.begins()
        elif phase == "ends":
            self.replicas.gather()
        else:
            self.replicas.inside = False

    # -- Gradients ----------------------------------------------------------------------------

    def arrived(self, param: Tensor) -> None:
        """Called when autograd has added to the gradient of a large parameter. A shared parameter
        can get its gradient in several parts."""
        grad = param.grad
        if grad is None:
            return
        if handle_in(grad) is not None:  # a further backward has added to it
            return
        optimizer = self.optimizer()
        if not optimizer.is_bound():
            optimizer.bind()
        number = self._number_of.get(id(param))
        if number is None:
            return  # step() says what is wrong
        if self.waits:
            self.check_gated((number,))
        backward: int = torch._C._current_graph_task_id()
        self._enter(number, backward)
        if backward != self._begun:
            self._begun = backward
            optimizer.before_backward()
        self._more -= 1
        if self.shards is None:
            waits = self._set(self._block) is not None
        else:
            waits = grad.dtype is self._types[number]  # sums in another type would take more memory
        if waits:
            self._bytes += self._sizes[number]
        else:
            optimizer.handover().take((number,), (grad,))
        self._leave_together()

    def added(self, number: int, grad: Tensor) -> bool:
        """Called when autograd adds to a gradient that the engine holds. Keeps the gradient until
        others of its block have come. False: it must not wait."""
        backward: int = torch._C._current_graph_task_id()
        if backward < 0 or self.detached:
            return False
        self._enter(number, backward)
        self.optimizer().handover().keep(number, grad, self._stream)
        self._more -= 1
        self._bytes += self._sizes[number]
        self._leave_together()
        return True

    def _enter(self, number: int, backward: int) -> None:
        """A gradient of this backward has come: hands over what waits if it is of another block."""
        block, stream = self._blocks[number], self._stream_now()
        if block != self._block or stream != self._stream or backward != self._backward:
            self._hand_over()
            self._block, self._stream, self._bytes = block, stream, 0
            # FSDP2 reduces a block's together; the reduction of the next block's takes the stream.
            self._more = 0 if self.shards is None else len(self._members[block])
        if backward != self._backward:
            self._backward = backward
            torch.autograd.Variable._execution_engine.queue_callback(self.backward_over)

    def _leave_together(self) -> None:
        if self._bytes >= TOGETHER_BYTES or (self._more == 0 and self._bytes):
            self._hand_over()
            self._bytes = 0

    def _hand_over(self) -> None:
        """Hands over the gradients that wait. Of a sharded model, all tensors have a hook."""
        if self._block >= 0 and (self._bytes or self.shards is None):
            self.optimizer().handover().add_kept()
            self.sweep(self._block, self._stream)

    def backward_over(self) -> None:
        """Called when a backward ends. Hands over the gradients that are left."""
        self._hand_over()
        self._backward = self._begun = self._block = -1
        stream = self._stream_now()
        if self._few_small and not self._sweep_set(-1, stream):
            for block in self._small:
                self.sweep(block, stream)
        self.optimizer().binding().engine.flush()

    def check_gated(self, numbers: Sequence[int]) -> None:
        """Raises HocketUsageError if no gate has waited for the weights of a gradient."""
        if not self.waits or 1 not in self._ungated:
            return
        for number in numbers:
            if not self._ungated[number]:
                continue
            name = self.optimizer().binding().names[number]
            raise HocketUsageError(
                f"{name} was used in forward before its update had arrived: no hook of its "
                "module ran and it was not looked up there. Call opt.synchronize() "
                "before such code (modules compiled outside the model, tensors kept from earlier)"
            )

    def sweep(self, block: int, stream: int) -> None:
        """Hands over the gradients of a block that are there, on the stream that they came on."""
        if self._sweep_set(block, stream):
            return
        params = self.optimizer().binding().params
        numbers: List[int] = []
        grads: List[Tensor] = []
        for number in self._leaving[block]:
            grad = params[number].grad
            if grad is not None and handle_in(grad) is None:
                numbers.append(number)
                grads.append(grad)
        if numbers:
            self.check_gated(numbers)
            with self.optimizer().binding().on(stream):
                self.optimizer().handover().take(numbers, grads)

    def _sweep_set(self, block: int, stream: int) -> bool:
        """sweep() of a block, or of all small tensors (-1), by one call; False if that is not
        possible now."""
        found = self._set(block)
        if found is None or (self.waits and any(map(self._ungated.__getitem__, found.numbers))):
            return False
        return self.optimizer().handover().take_set(found, stream)

    def _set(self, block: int) -> Optional[Direct]:
        """The tensors of a block, or all small ones (-1), if one call can hand them over."""
        if block not in self._sets:
            numbers = self._leaving[block] if block >= 0 else sum(self._small.values(), [])
            self._sets[block] = self.optimizer().handover().set_of(numbers)
        return self._sets[block]

    # -- Marks for the timeline ---------------------------------------------------------------

    def mark(self, kind: int, block: int, end: bool) -> None:
        binding = self.optimizer().binding()
        binding.engine.mark(kind, block, end, binding.stream())

    def mark_begin(self, blocks: Tuple[int, ...], args: Any) -> None:
        """A block begins its forward; its backward ends with its input's gradient."""
        if not self.recording or len(blocks) != 1 or blocks[0] < 0:
            return
        block = blocks[0]
        self.mark(_abi.FORWARD, block, False)
        tensor = differentiable(args)
        self._marked[block] = tensor is not None
        if tensor is not None:
            tensor.register_hook(lambda grad: self.mark(_abi.BACKWARD, block, True))

    def mark_end(self, blocks: Tuple[int, ...], output: Any) -> None:
        """A block ends its forward; its backward begins with its output's gradient."""
        if not self.recording or len(blocks) != 1 or blocks[0] < 0:
            return
        block = blocks[0]
        self.mark(_abi.FORWARD, block, True)
        tensor = differentiable(output)
        if tensor is not None and self._marked.get(block):
            tensor.register_hook(lambda grad: self.mark(_abi.BACKWARD, block, False))


def refuse_wrapped(model: nn.Module) -> None:
    """Raises HocketUsageError for a model that is wrapped for several processes or devices in a way
    that attach does not take."""
    for module in model.modules():
        name = type(module).__name__
        if isinstance(module, (nn.DataParallel, nn.parallel.DistributedDataParallel)) or name in (
            "FullyShardedDataParallel",
            "DeepSpeedEngine",
        ):
            raise HocketUsageError(
                f"attach does not take {name}: attach a plain model in one process, one that "
                "FSDP2 (fully_shard) has sharded, or a whole DistributedDataParallel"
            )


def refuse_ranks() -> None:
    """Raises HocketUsageError if this process is one of several ranks."""
    size = ranks.world_size()
    if size > 1:
        raise HocketUsageError(
            "an attached hocket.AdamW with whole parameters in a group of "
            f"{size} ranks: gradients leave before they are reduced; "
            "attach DistributedDataParallel(model), or shard the model with FSDP2 (fully_shard)"
        )
