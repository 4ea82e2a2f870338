# SPDX-License-Identifier: Apache-2.0
"""DeepSpeed ZeRO-3 with its state in host memory: the update runs beside the next forward.

DeepSpeed's own step() runs as it is, with its order of collectives. Of its loop over subgroups, what
takes time is noted instead of done: scale the gradients, update, copy to the 16-bit weights. A thread
does these calls of DeepSpeed afterwards. Nothing reads their results too early:

- The all-gather of a parameter waits for the parameter's subgroup.
- The tensors that the update writes are attributes of DeepSpeed's optimizer. Whoever looks one up
  waits for the whole update: checkpoints, tensor fragments, gradients that arrive, the next step.
"""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, Callable, Dict, Iterable, Iterator, List, Optional, Tuple

import torch
from torch import Tensor

from .errors import HocketUsageError
from .optim import AdamW

__all__ = ["install"]

TESTED = ("0.19.8",)
"""Versions of DeepSpeed whose source was read for this, and that the tests run with."""

WRITTEN = (
    "fp32_partitioned_groups_flat",
    "fp16_partitioned_groups_flat",
    "fp16_partitioned_groups",
    "lp_param_buffer",
    "param_groups_fp16_flat_cpu_memory",
)
"""Attributes of DeepSpeed's optimizer that hold what the update writes."""

Call = Callable[[], Any]


class Update:
    """The update of the last step: its calls, and the thread that makes them.

    Args:
        order: the subgroups' numbers, in the order in which forward needs their weights.
        device: of the 16-bit weights.
    """

    def __init__(self, order: List[int], device: torch.device) -> None:
        self._order = order
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="hocket-deepspeed")
        self._noted: Optional[Dict[int, List[Call]]] = None  # None: calls are made at once
        self._latest: List[Call] = []
        self._parts: Dict[int, "Future[None]"] = {}
        self._all = _done()

    @contextmanager
    def noted(self, optimizer: AdamW) -> Iterator[None]:
        """A step whose calls are made after it. If it raises, none is made."""
        self.finish()
        self._noted = {}
        optimizer._later = self._add
        try:
            yield
            noted = self._noted
        finally:
            self._noted, optimizer._later = None, None
        if noted:
            self._start(noted)

    def make(self, subgroup: int, call: Call) -> None:
        """Makes a call of a subgroup now, or in a step after it."""
        if self._noted is None:
            call()
        else:
            self._latest = self._noted.setdefault(subgroup, [])
            self._add(call)

    def _add(self, call: Call) -> None:
        self._latest.append(call)

    def _start(self, noted: Dict[int, List[Call]]) -> None:
        parts = {number: Future() for number in self._order if number in noted}  # type: ignore
        if self._stream is not None:  # earlier kernels may still read the weights
            self._stream.wait_stream(torch.cuda.current_stream(self._stream.device))
        self._parts, self._all = parts, self._thread.submit(self._run, noted, parts)

    def _run(self, noted: Dict[int, List[Call]], parts: Dict[int, "Future[None]"]) -> None:
        try:
            with ExitStack() as stack:
                stack.enter_context(torch.no_grad())
                if self._stream is not None:
                    stack.enter_context(torch.cuda.stream(self._stream))
                for number, part in parts.items():
                    for call in noted.pop(number):
                        call()
                    if self._stream is not None:  # whoever waits needs no event
                        self._stream.synchronize()
                    part.set_result(None)
        except BaseException as error:
            for part in parts.values():
                if not part.done():
                    part.set_exception(error)
            raise

    def wait(self, subgroups: Iterable[int]) -> None:
        """Returns when the weights of these subgroups are there; raises what has failed."""
        parts = self._parts
        for number in subgroups:
            if number in parts:
                parts[number].result()

    def finish(self) -> None:
        """Returns when the update is complete; raises what has failed in it."""
        self._all.result()

    def close(self) -> None:
        """Ends the thread, after the update. Nothing waits any more."""
        self._thread.shutdown()
        self._parts, self._all = {}, _done()


def _done() -> "Future[None]":
    future: "Future[None]" = Future()
    future.set_result(None)
    return future


def _awaited(name: str) -> property:
    """An attribute whose value is there when the update is complete."""

    def value(self: Any) -> Any:
        self._hocket_update.finish()
        try:
            return vars(self)[name]
        except KeyError:
            raise AttributeError(name) from None

    def replace(self: Any, value: Any) -> None:
        self._hocket_update.finish()
        vars(self)[name] = value

    return property(value, replace)


def _overlapped(base: Any) -> Any:
    """DeepSpeed's optimizer, whose update runs after its step()."""

    class Overlapped(base):  # type: ignore[misc]
        def step(self, closure: Optional[Callable[[], Any]] = None) -> None:
            with self._hocket_update.noted(self.optimizer):
                super().step(closure)

        def _hocket_call(self, name: str, subgroup: int, *args: Any) -> None:
            # An object without waits, and with the settings that are valid now.
            plain = object.__new__(base)
            vars(plain).update(vars(self))
            self._hocket_update.make(subgroup, partial(getattr(plain, name), subgroup, *args))

        def unscale_and_clip_grads(self, sub_group_id: int, total_norm: Tensor) -> None:
            self._hocket_call("unscale_and_clip_grads", sub_group_id, total_norm)

        def _reassign_or_swap_out_partitioned_parameters(self, sub_group_id: int) -> None:
            self._hocket_call("_reassign_or_swap_out_partitioned_parameters", sub_group_id)

        def _post_step(self, timer_names: Any) -> None:
            # Small weights that stay gathered would wait for all subgroups. The next forward
            # gathers them with the others.
            own: Dict[str, Any] = self.__dict__
            persistent, own["persistent_parameters"] = own["persistent_parameters"], []
            try:
                super()._post_step(timer_names)
            finally:
                own["persistent_parameters"] = persistent

        def _get_state(self) -> Any:
            self._hocket_update.finish()
            return super()._get_state()

        state = property(_get_state, base._set_state)

        def destroy(self) -> None:
            try:
                self._hocket_update.finish()
            finally:
                self._hocket_update.close()
                super().destroy()

    for name in WRITTEN:
        setattr(Overlapped, name, _awaited(name))
    return Overlapped


def _gate(param: Any, update: Update, subgroup_of: Dict[int, int]) -> None:
    """Makes the all-gathers that begin at this parameter wait."""
    gather, gather_coalesced = param.all_gather, param.all_gather_coalesced

    def wait(params: Iterable[Any]) -> None:
        update.wait(subgroup_of[id(each)] for each in params if id(each) in subgroup_of)

    def all_gather(param_list: Optional[Iterable[Any]] = None, *args: Any, **options: Any) -> Any:
        params = [param] if param_list is None else list(param_list)
        wait(params)
        return gather(params, *args, **options)

    def all_gather_coalesced(params: Iterable[Any], *args: Any, **options: Any) -> Any:
        params = list(params)
        wait(params)
        return gather_coalesced(params, *args, **options)

    param.all_gather, param.all_gather_coalesced = all_gather, all_gather_coalesced


def _refusals(engine: Any) -> Iterator[Tuple[bool, str]]:
    """What install() cannot do, in an order in which each question has an answer."""
    import deepspeed
    from deepspeed.runtime.zero.stage3 import DeepSpeedZeroOptimizer_Stage3

    version, optimizer = deepspeed.__version__, getattr(engine, "optimizer", None)
    plain = "or leave install() out, and step() updates before it returns"
    yield (
        version not in TESTED,
        f"DeepSpeed {version}: install() replaces private parts of DeepSpeed and knows those of "
        f"{', '.join(TESTED)} alone; install that version, {plain}",
    )
    yield (
        hasattr(optimizer, "_hocket_update"),
        "install() was called already for this engine: call it once, after initialize()",
    )
    yield (
        type(optimizer) is not DeepSpeedZeroOptimizer_Stage3,
        f"an engine whose optimizer is {type(optimizer).__name__}: install() needs ZeRO stage 3 "
        "without pipelines, MiCS, SuperOffload, and with an optimizer; set "
        f"zero_optimization.stage to 3, {plain}",
    )
    assert optimizer is not None
    yield (
        not isinstance(optimizer.optimizer, AdamW),
        f"an engine with {type(optimizer.optimizer).__name__}: give "
        "deepspeed.initialize() a hocket.AdamW, as optimizer=",
    )
    yield (
        not optimizer.offload_optimizer or optimizer.swap_optimizer,
        "an engine without offload_optimizer on the CPU: set "
        f'zero_optimization.offload_optimizer to {{"device": "cpu"}}, {plain}',
    )
    for unsupported, name in (
        (optimizer.zenflow, "zenflow"),
        (optimizer.params_in_nvme_and_cpu, "offload_param on NVMe"),
        (optimizer.zero_hpz_partition_size > 1, "zero_hpz_partition_size"),
        (optimizer.parameter_offload.zero_quantized_weights, "zero_quantized_weights"),
        (
            optimizer.dtype is torch.float16 or optimizer.torch_autocast_gradscaler is not None,
            "fp16 (train in bf16)",
        ),
        (engine.is_deepcompile_enabled(), "compile.deepcompile"),
    ):
        yield unsupported, f"an engine with {name}, which was not tried: turn that off, {plain}"


def install(engine: Any) -> None:
    """Makes ``engine.step()`` of DeepSpeed return while the CPU updates the weights, so that the
    update runs beside the next forward, with the same bits as without.

    ``engine.step()`` reduces, clips and decides about values that are not finite as before. Then a
    thread updates one subgroup after the other, in the order of ``module.parameters()``, and the
    all-gather of a parameter waits for its subgroup. So small subgroups overlap more: set
    ``sub_group_size`` to the elements of a rank's part of a layer, and
    ``stage3_prefetch_bucket_size`` to those of about one layer. Checkpoints, ``deepspeed.utils``'s
    calls for full weights, states and gradients, gradients that arrive in backward, and the next
    ``step()`` wait for the whole update. ``opt.synchronize()`` does so, too: call it before you read
    ``opt.state`` or ``param.ds_tensor`` directly.

    Momentum and variance stay plain fp32 tensors of the shape of a subgroup's partition, (elements,),
    in host memory. No memory is added.

    After a failure in the thread the next of these calls raises it, with the thread's traceback,
    and so do all later ones: weights are then of different steps, and training goes on from a
    checkpoint with a new engine.

    Args:
        engine: what ``deepspeed.initialize`` has returned first, with a hocket.AdamW as
            ``optimizer``, ZeRO stage 3 and ``offload_optimizer`` on the CPU, in bf16 or fp32. Call
            it once, on all ranks, before or after ``load_checkpoint``.

    Raises:
        HocketUsageError: another version of DeepSpeed than those that were tested, or an engine
            that is not supported. Nothing has been changed.

    Small weights that DeepSpeed keeps gathered between steps
    (``stage3_param_persistence_threshold``) are gathered by the next forward instead of ``step()``.

    Example::

        opt = hocket.AdamW(model.parameters(), lr=1e-4)
        engine, _, _, _ = deepspeed.initialize(model=model, optimizer=opt, config={
            "train_micro_batch_size_per_gpu": 4,
            "bf16": {"enabled": True},
            "gradient_clipping": 1.0,
            "zero_allow_untested_optimizer": True,
            "zero_force_ds_cpu_optimizer": False,
            "zero_optimization": {
                "stage": 3,
                "offload_optimizer": {"device": "cpu", "pin_memory": True},
                "sub_group_size": 25_000_000,
                "stage3_prefetch_bucket_size": 50_000_000,
            },
        })
        hocket.deepspeed.install(engine)
    """
    for refused, sentence in _refusals(engine):
        if refused:
            raise HocketUsageError(sentence)
    optimizer = engine.optimizer
    groups = optimizer.fp16_groups
    subgroup_of = {id(param): number for number, group in enumerate(groups) for param in group}
    # DeepSpeed numbers parameters in the order of module.parameters().
    order = sorted(range(len(groups)), key=lambda number: min(p.ds_id for p in groups[number]))
    update = Update(order, groups[0][0].ds_tensor.device)
    optimizer._hocket_update = optimizer.optimizer._overlapped = update
    optimizer.__class__ = _overlapped(type(optimizer))
    for param in engine.module.parameters():
        _gate(param, update, subgroup_of)
