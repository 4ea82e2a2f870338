# SPDX-License-Identifier: Apache-2.0
"""hocket.AdamW: a torch.optim.Optimizer whose fp32 state lies in host memory."""

from __future__ import annotations

import os
import threading
import warnings
from collections import defaultdict
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, Callable, Dict, Iterable, List, Mapping, Optional, Tuple, Union

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from . import _abi, checkpoint, files, partitions, ranks
from .attach import Attachment
from .binding import Binding, Settings
from .checks import check_group, check_settings
from .errors import HocketUsageError
from .handle import handle_in
from .handover import HandOver
from .making import Maker
from .ranks import Ranks
from .report import explain, other_micro_steps, stats
from .steps import State, Steps

if TYPE_CHECKING:
    from .deepspeed import Update


class AdamW(Optimizer):
    r"""AdamW with fp32 master weights, momentum and variance in host memory, updated there or on
    the GPU as a plan says, with the same bits whatever the plan.

    A drop-in for :class:`torch.optim.AdamW`: ``step()`` reads ``p.grad`` and returns when the new
    weights are there (on CUDA: for work queued later on the current stream). With
    :meth:`attach`, gradients leave during backward and ``step()`` may return while the update runs.

    The engine is made at the first step (with ``attach``: at the first gradient). Until then the
    model may be moved, converted and loaded; afterwards its parameters must stay where they are.

    Args:
        params: parameters, or dicts that define groups, as of torch.optim.AdamW. bfloat16,
            float16 or float32, dense, on one device. Parameters that do not require gradients are
            left out, as are those without elements.
        lr: learning rate (a float or a tensor of one value).
        betas: decay of momentum and variance.
        eps: added to the denominator.
        weight_decay: decoupled weight decay.
        max_norm: clip the global 2-norm of all gradients to this in ``step()``, exactly; None: no
            clipping. ``clip_grad_norm_`` works, too; without ``attach`` it rounds the norm to the
            gradient's type.
        clip: "norm", or "block", with ``attach``: the 2-norm of each block's gradients is clipped
            to ``max_norm`` by itself. That is another algorithm, with other results. Norms of
            blocks are known during backward, so that with ``overlap="both"`` steps that are
            clipped are as fast as others. :meth:`blocks` says what a block is.
        clip_share: for ``plan="auto"``: the share of steps, 0 to 1, in which clipping by the norm is
            expected to act. Such steps cannot run ahead of the norm; the plan lets the GPU update
            more in them, and is compared with others by the mean of both kinds of step. None: 0. A
            wrong share costs time and changes no bit.
        overlap: with ``attach``: "none" updates in ``step()``, "forward" beside the next forward,
            "both" beside backward, too.
        plan: None updates everything on the CPU, except state that ``gpu_memory`` has room for; a
            path, or JSON text, of a plan that ``hocket plan -o`` wrote for this model (if its
            overlap is not ``overlap``, the engine itself chooses what runs ahead); "auto" plans
            for this model on this machine.
        backend: "cuda" or "host"; None: as the parameters' device says.
        cpu_threads: threads of the update; None: what the plan says; without a plan, the CPUs that
            this process may use less one, or with ``overlap="both"`` less three (a quarter of
            them if that is less, but at least one), which the framework's threads need.
        host_memory: most bytes of host memory that the engine may take (state, gradients, weights,
            spares); None: what is available.
        gpu_memory: bytes of GPU memory that weights which wait for the norm (2 an element) and
            fp32 state (12 an element and its gradient) may take. With ``plan=None``: None takes
            none. With ``plan="auto"``: None allows what activations leave. A plan file has chosen.
        accumulate: torch.float32 adds gradients of several backwards in fp32 (with ``attach``);
            None: in their own type, as autograd does.
        accumulation_steps: how many backwards a step has (with ``attach``), also for
            ``plan="auto"``; None: as many as the step before. A wrong number costs time and
            changes no bit. The attribute of the same name can be set at any time.
        state: how state is kept in memory. "fp32": 12 bytes an element, beside 2 for the bf16
            weights. "split": masters as bf16 weights and 16 lower bits, which takes those 2 bytes
            less, with the same bits; all parameters must be bfloat16, and a loaded variance must
            not be negative. "bf16": momentum and variance in bf16, 8 bytes, the variance rounded
            at random, so that its expectation is exact. "bf16+split": both. "8bit": momentum and
            variance in 8 bits, 6.02 bytes, both rounded at random. "8bit+split": with split
            masters. None: what the plan says, without a plan "fp32". ``state_dict`` has fp32
            tensors in any case.
        seed: of the random rounding. ``opt.save`` stores it, ``opt.load`` goes on with it; with
            ``state_dict`` give the same one again to go on with the same bits.
        amsgrad, maximize, capturable, differentiable: not supported, must be False.
        foreach, fused: accepted and ignored; they do not change the result.

    Raises:
        HocketUsageError: an argument that is not supported.

    A step whose gradients are not all finite changes nothing, and warns.
    """

    _later: Optional[Callable[[Callable[[], None]], None]] = None  # see partitions.step
    _overlapped: Optional["Update"] = None  # see deepspeed.install

    def __init__(
        self,
        params: Iterable[Any],
        lr: Union[float, Tensor] = 1e-3,
        betas: Tuple[Union[float, Tensor], Union[float, Tensor]] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        amsgrad: bool = False,
        *,
        max_norm: Optional[float] = None,
        clip: str = "norm",
        clip_share: Optional[float] = None,
        overlap: str = "none",
        plan: Optional[Union[str, "os.PathLike[str]"]] = None,
        backend: Optional[str] = None,
        cpu_threads: Optional[int] = None,
        host_memory: Optional[int] = None,
        gpu_memory: Optional[int] = None,
        accumulate: Optional[torch.dtype] = None,
        accumulation_steps: Optional[int] = None,
        state: Optional[str] = None,
        seed: int = 0,
        maximize: bool = False,
        foreach: Optional[bool] = None,
        capturable: bool = False,
        differentiable: bool = False,
        fused: Optional[bool] = None,
    ) -> None:
        self._settings = Settings(
            max_norm,
            overlap,
            None if plan is None else os.fspath(plan),
            backend,
            cpu_threads,
            host_memory,
            gpu_memory,
            accumulate,
            accumulation_steps,
            clip,
            clip_share,
            state,
            seed,
        )
        check_settings(self._settings)
        self._steps: Optional[Steps] = None  # None: there is no engine yet
        self._attachment: Optional[Attachment] = None
        self._detached = False
        self._plain = self._replaced = False  # see partitions.replaced
        self._pending: Dict[Tensor, Dict[str, Any]] = {}
        self._awaited: Optional[int] = None
        self._lock = threading.RLock()  # held by step(), and by what saves and loads
        self._broken_load: Optional[str] = None
        self._writer: Optional[files.Writer] = None
        self.state_in_file = False
        super().__init__(
            params,
            {
                "lr": lr,
                "betas": betas,
                "eps": eps,
                "weight_decay": weight_decay,
                "amsgrad": amsgrad,
                "maximize": maximize,
                "foreach": foreach,
                "capturable": capturable,
                "differentiable": differentiable,
                "fused": fused,
                "decoupled_weight_decay": True,
            },
        )

    # -- Groups -------------------------------------------------------------------------------

    def add_param_group(self, param_group: Dict[str, Any]) -> None:
        """As of torch.optim.Optimizer; before the first step only."""
        if self._steps is not None:
            raise HocketUsageError(
                "a param group was added after the first step: state has been laid out for the "
                "parameters of before; make a new hocket.AdamW of all and load this one's "
                "state_dict() into it"
            )
        super().add_param_group(param_group)
        group = self.param_groups[-1]
        self._plain = self._plain or any(type(param) is Tensor for param in group["params"])
        check_group(group)

    # -- Binding ------------------------------------------------------------------------------

    def is_bound(self) -> bool:
        """Whether the engine exists."""
        return self._steps is not None

    def steps(self) -> Steps:
        """The steps, with the engine; it must exist."""
        assert self._steps is not None
        return self._steps

    def binding(self) -> Binding:
        """The engine and its tensors; they must exist."""
        return self.steps().binding

    def handover(self) -> HandOver:
        """The gradients' way; the engine must exist."""
        return self.steps().handover

    @property
    def runs_ahead(self) -> bool:
        """Whether updates may begin during backward."""
        return self._settings.overlap == "both"

    @property
    def accumulation_steps(self) -> Optional[int]:
        """How many backwards a step has, as given; None: as many as the step before."""
        return self._settings.accumulation_steps

    @accumulation_steps.setter
    def accumulation_steps(self, steps: Optional[int]) -> None:
        settings = self._settings._replace(accumulation_steps=steps)
        check_settings(settings)
        self._settings = settings
        if self._steps is not None and self._attachment is not None:
            self.binding().engine.expect(steps or 0)

    def bind(self) -> None:
        """Makes the engine now: parameters must not move, or change their type, any more. If they
        are DTensors, all ranks must call it.

        Raises:
            HocketError: a parameter that cannot be held, not enough memory, a plan that does not
                fit the model; on another rank, too.
        """
        with self._lock:
            if self._steps is None:
                partitions.refuse(self)
                self.state = defaultdict(dict)
                maker = Maker(
                    self.param_groups, self._attachment, self.state, self._pending, self._lock
                )
                # After an interrupt before this is assigned, all is done again.
                self._steps = maker.make(self._settings)
                self._pending = {}

    def attach(self, model: nn.Module) -> None:
        """Hooks this optimizer into the model that its parameters belong to.

        Gradients leave during backward; ``p.grad`` becomes a handle without storage. With
        ``overlap`` "forward" or "both", ``step()`` returns while the update runs, and each block's
        forward waits for its own weights.

        Args:
            model: a plain module on one device; one that FSDP2 (``fully_shard``) has sharded, or
                will have before its first forward; or a DistributedDataParallel, whose ranks then
                share out the state. Not one wrapped by FSDP1 or DataParallel.
                Compiled modules (``torch.compile`` before or after) wait as a whole.

        Raises:
            HocketUsageError: a model that cannot be attached, attach called twice or after the
                first step.
        """
        if self._attachment is not None:
            raise HocketUsageError("attach was called already: an optimizer has one model")
        if self._steps is not None:
            raise HocketUsageError(
                "attach was called after the first step: attach first, or make a new hocket.AdamW "
                "and load this one's state_dict() into it"
            )
        self._attachment = Attachment(self, model)

    def detach(self) -> None:
        """Takes this optimizer's hooks out of the model, so that another one can be attached, for
        example after a failure. Sets all gradients to None.

        Waits for the last update, unless that has failed: then weights may be of either step, and
        the new optimizer should load a checkpoint. No further step can be taken; state can be read
        and saved.
        """
        if self._attachment is None or self._detached:
            return
        if self._steps is not None and self.binding().engine.quiet():
            self.synchronize()
        super().zero_grad()
        self._attachment.detach()
        self._detached = True

    # -- Steps --------------------------------------------------------------------------------

    @property
    def _step_supports_amp_scaling(self) -> bool:
        """GradScaler cannot unscale fp16 gradients itself. For others it can, and must, so that
        clipping between unscale_() and step() works (Lightning refuses to clip otherwise)."""
        return any(
            param.dtype is torch.float16 for group in self.param_groups for param in group["params"]
        )

    @torch.no_grad()
    def step(self, closure: Optional[Callable[[], Any]] = None) -> Any:  # type: ignore[override]
        """One step with the gradients there are; parameters without one are left alone.

        Without ``attach``, or with overlap "none", the weights are there when it returns (for
        later work on the current stream). Else the update may still run; reading a weight through
        its module waits for it. Nothing that the program can see changes before this call.

        Args:
            closure: computes loss and gradients; called once, before the step.

        Returns:
            What the closure has returned; None without one.

        Raises:
            HocketError: a parameter that has moved or was added, a gradient that cannot be used,
                or (code 3) a failure of the machine.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        with self._lock:
            self._step()
        return loss

    def _step(self) -> None:
        found_inf = getattr(self, "found_inf", None)
        if found_inf is not None and float(found_inf) != 0:
            return
        if self._steps is None and partitions.replaced(self):
            partitions.step(self)
            return
        if self._steps is None and not self._begin():
            return
        loss_scale = getattr(self, "grad_scale", None)
        taken = self.steps().step(self._prepare, self._state, loss_scale)
        last = self.last_step
        if taken and last is not None and last.step == 3:  # when the number of backwards is known
            for sentence in other_micro_steps(self, self.binding().engine.report()):
                warnings.warn(f"hocket: {sentence}")

    def _begin(self) -> bool:
        """Makes the engine at the first step. Returns whether there is one: without a gradient, on
        any rank, there is no step."""
        shared = Ranks.of(self.param_groups)
        with shared.together() if shared is not None else nullcontext():
            self._check_usable()
        mine = any(
            param.grad is not None for group in self.param_groups for param in group["params"]
        )
        if shared.any(mine) if shared is not None else mine:
            self.bind()
        return self._steps is not None

    def _prepare(self) -> List[int]:
        """Makes the engine ready for a step. Returns the tensors with gradients."""
        self._check_usable()
        steps = self.steps()
        steps.settle(self._state)
        if not steps.binding.has_all(self.param_groups) or partitions.replaced(self):
            raise HocketUsageError(
                "parameters were added to a param group, removed, replaced or moved to another "
                "group after the first step: "
                "make a new hocket.AdamW and load this one's state_dict() into it"
            )
        checkpoint.start_anew(self, steps.removed(self.state))
        return steps.prepare(self.param_groups, self._state)

    def _state(self) -> State:
        return self.state

    def _check_usable(self) -> None:
        if self._detached:
            raise HocketUsageError(
                "this optimizer has been detached from its model: make a new hocket.AdamW and load "
                "this one's state_dict(), or a file of save(), into it"
            )
        files.check(self)

    def follow_weights(self) -> None:
        """Masters follow weights that the program has written since the last step."""
        self.steps().follow_weights(self._state)

    def before_backward(self) -> None:
        """A backward of the attached model begins. What updates that run ahead assume must be as
        it will be in step(): learning rates that schedulers have changed, masters of weights that
        the program has written."""
        if self.runs_ahead:
            self.binding().sync_groups(self.param_groups)
        self.follow_weights()
        self.steps().follow_data()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """As of torch.optim.Optimizer; what was handed over since the last step is forgotten."""
        super().zero_grad(set_to_none)
        if set_to_none and self._steps is not None:
            self._steps.settle(self._state)
            self._steps.handover.discard_all()

    def synchronize(self) -> None:
        """Returns when the last step is complete: state on the host, weights on the device.

        Call it before reading weights through tensors that were taken from the model earlier. With
        DDP all ranks must call it.

        Raises:
            HocketError: the step has failed.
        """
        self.finish_update()
        if self._steps is not None:
            self._steps.gather()

    def finish_update(self) -> None:
        """Returns when this rank's part of the last step is complete."""
        if self._overlapped is not None:
            self._overlapped.finish()
        if self._steps is not None:
            self._steps.finish(self._state)

    def gpu_bytes(self) -> int:
        """GPU memory that hocket holds now, outside torch's allocator.

        Returns:
            The bytes of staging buffers, gradients on their way, weights that wait for the norm,
            and state that a plan or ``gpu_memory`` keeps there. 0 before the first gradient. On the
            host backend, of what stands for them in host memory.
        """
        return self.binding().engine.gpu_bytes() if self.is_bound() else 0

    def release_gpu(self) -> int:
        """Gives GPU memory back until the next gradient, for example while the model generates:
        staging buffers, gradients on their way, weights that wait for the norm. State that a plan
        or ``gpu_memory`` keeps on the GPU stays. Waits for the last update. No bit changes.

        Returns:
            The bytes that were given back; 0 before the first gradient. The next gradient takes
            them again: ``torch.cuda.empty_cache()`` before it returns what torch keeps for later.

        Raises:
            HocketError: gradients have been handed over that no step has used (code 2), or the
                last update has failed (code 3). The next backward raises one of code 3 if the
                memory is not there; gradients may be handed over again when there is more.

        Example::

            opt.step()
            opt.zero_grad()
            opt.release_gpu()
            answers = model.generate(prompts)  # waits for nothing: the update is complete
            torch.cuda.empty_cache()
        """
        if not self.is_bound():
            return 0
        self.finish_update()
        before = self.gpu_bytes()
        self.binding().engine.release_gpu()
        return before - self.gpu_bytes()

    def read_gradient(self, param: Tensor) -> Optional[Tensor]:
        """A parameter's gradient as it stands, in its own type, on its device; None if it has
        none. Copies what the engine holds (slow)."""
        handle = handle_in(param.grad)
        if handle is None:
            return param.grad
        return ranks.shared_as(param, handle.values())

    @property
    def grad_norm(self) -> Optional[float]:
        """2-norm of all gradients of the last step, after unscaling and before ``max_norm``; None
        before the first step."""
        last = self.last_step
        return last.grad_norm if last is not None else None

    @property
    def last_step(self) -> Optional[_abi.StepResult]:
        """What the last step did, or None."""
        return self.binding().engine.last_step() if self.is_bound() else None

    # -- What happened ------------------------------------------------------------------------

    def stats(self) -> Dict[str, Any]:
        """What the engine reports (schema hocket.engine/1), with the last step under "last_step"
        and the seconds that Python spent on gradients under "python"."""
        return stats(self)

    def explain(self) -> str:
        """In words: where state lies, what is updated where, and why."""
        return explain(self)

    def blocks(self) -> List[List[str]]:
        """Names of the parameters of each block, in the order of forward. Each element of a module
        list is a block; what lies between lists forms blocks between them. A tied parameter is of
        the block that uses it first. With ``clip="block"`` each of them is clipped by itself.

        Makes the engine: move and attach the model, and run its first forward, before.
        """
        self.bind()
        return self.binding().block_members()

    def record(self, on: bool = True) -> None:
        """Records operations from the next step on, for :meth:`timeline`."""
        self.bind()
        self.binding().engine.record(on)
        if self._attachment is not None:
            self._attachment.record(on)

    def timeline(self) -> Dict[str, Any]:
        """What was recorded (schema hocket.spans/1). With several ranks each has its own; ``rank``,
        ``ranks`` and ``host`` say whose it is."""
        self.bind()
        self.finish_update()
        return {**self.binding().engine.timeline(), **ranks.whose()}

    def checksum(self) -> str:
        """32 hexadecimal digits, equal for equal master weights, momentum and variance of the same
        parameters and param groups, attached or not."""
        with self._lock:
            self.bind()
            self.follow_weights()
            return self.binding().engine.checksum()

    # -- Checkpoints --------------------------------------------------------------------------

    def state_dict(self) -> Dict[str, Any]:
        """As of torch.optim.AdamW, with ``master_weight`` (fp32) beside ``step``, ``exp_avg`` and
        ``exp_avg_sq``: fp32 tensors in host memory, 12 bytes a parameter.

        With ``opt.state_in_file`` (which hocket.TrainerCallback sets) state is left out.

        Raises:
            HocketError: not enough memory for the copy; use :meth:`save`.
        """
        return checkpoint.state_dict(self, super().state_dict)

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:  # type: ignore[override]
        """Loads a state_dict of this class or of torch.optim.AdamW.

        Nothing is cast or moved to the parameters' device. Before the first step the tensors are
        kept, not copied, until the engine is made. A master weight counts where it rounds to the
        weight that the model has; elsewhere the weight does.

        Raises:
            ValueError: another number of groups or parameters.
            HocketUsageError: options that are not supported, state of another shape.
        """
        with self._lock:
            checkpoint.load_state_dict(self, state_dict)

    def save(self, path: Union[str, "os.PathLike[str]"], wait: bool = True) -> None:
        """Writes state and step counts to a file, directly from host memory, and param groups to
        ``path + ".json"``: the state at the end of the last ``step()``, also if another thread
        trains meanwhile. Both files are complete, or what was there before. After a failure that a
        call has reported, it writes the state if all of it is of one step.

        Args:
            path: the file, in a folder that exists. It takes 12 bytes a parameter.
            wait: False copies the state (12 bytes a parameter of host memory until the file is
                there), returns, and writes it in a thread while training goes on. If that fails,
                the next ``step()``, :meth:`save`, :meth:`load` or :meth:`finish_save` raises, and
                the log says so. One file is written at a time: a further save waits for it, as the
                end of the program does.

        Raises:
            HocketError: it cannot be written (code 3), the last step has failed half way, there
                is too little memory for the copy (code 3), or an earlier save without ``wait`` has
                failed. Training can go on in each case but the second.

        Example::

            opt.save("checkpoint/hocket.state", wait=False)
            for batch in data: ...                # trains on
            opt.finish_save()                     # the file is there
        """
        ranks.refuse_file(self.param_groups)
        files.save(self, os.fspath(path), wait)

    def finish_save(self) -> None:
        """Returns when the file of the last :meth:`save` without ``wait`` has been written.

        Raises:
            HocketError: it could not be written (code 3).
        """
        files.finish(self)

    def load(self, path: Union[str, "os.PathLike[str]"]) -> None:
        """The inverse of :meth:`save`, under any plan of the same tensors, attached or not: as in
        a state_dict, a parameter is found by its position in the param groups. The model's weights
        become the rounded masters. Makes the engine: move and attach the model before.

        Raises:
            HocketError: no such file, or of other tensors.
        """
        ranks.refuse_file(self.param_groups)
        files.load(self, os.fspath(path))

    def __getstate__(self) -> Dict[str, Any]:
        return checkpoint.pickled(self)

    def __setstate__(self, state: Dict[str, Any]) -> None:
        checkpoint.unpickle(self, state)
