# SPDX-License-Identifier: Apache-2.0
"""Makes an optimizer's engine: lays out its tensors and blocks, finds its plan, fills its state.

If ranks share the parameters, all of them make their engines at the same time, or none has one.
"""

from __future__ import annotations

import warnings
from typing import Any, ContextManager, Dict, List, Mapping, Optional, Sequence, Tuple

from torch import Tensor

from . import checkpoint, ranks
from .attach import Attachment, refuse_ranks
from .binding import Binding, Entry, Settings, trainable
from .blocks import MAX_BLOCKS, Block
from .checks import check_group
from .errors import HocketUsageError
from .plan import resolve_plan
from .ranks import Ranks
from .steps import State, Steps

Answer = Optional[Dict[str, Any]]
"""What the planner has said; None: it was not asked."""


class Maker:
    """Makes the engine of one optimizer.

    Args:
        param_groups: of the optimizer.
        attachment: to the model; None: there is none.
        state: an empty ``opt.state``, which gets its entries.
        loaded: state that was loaded before there was an engine.
        lock: the optimizer's.
    """

    def __init__(
        self,
        param_groups: Sequence[Mapping[str, Any]],
        attachment: Optional[Attachment],
        state: State,
        loaded: Mapping[Tensor, Mapping[str, Any]],
        lock: ContextManager[Any],
    ) -> None:
        self._param_groups = param_groups
        self._attachment = attachment
        self._state, self._loaded, self._lock = state, loaded, lock

    def make(self, settings: Settings) -> Steps:
        """Makes the engine. If ranks share the parameters, all must call it."""
        shared = Ranks.of(self._param_groups)
        if shared is None:
            if self._attachment is not None:
                self._attachment.prepare()
                if self._attachment.shards is None:
                    refuse_ranks()
            return self._make(settings)
        with shared.together():
            settings = ranks.check_settings(settings)
            if self._attachment is not None:
                self._attachment.prepare()
        shared.meet()
        settings, answer = shared.divide(settings), None
        if settings.plan == "auto":
            settings, answer = self._plan_of_all(shared, settings)
        shared.idle()
        steps = None
        try:
            with shared.together():
                steps = self._make(settings, shared, answer)
        except BaseException:
            if steps is not None:  # another rank's engine could not be made
                steps.binding.engine.close()
            raise
        assert steps is not None
        return steps

    def _plan_of_all(self, shared: Ranks, settings: Settings) -> Tuple[Settings, Answer]:
        """The first rank decides for all. Shards of other sizes have no place in its plan: then no
        rank follows it."""
        plan = answer = failure = None
        with shared.together():
            settings, entries, blocks = self._laid_out(settings)
        if shared.decides():
            try:
                plan, answer = resolve_plan(
                    settings, entries, blocks, self._attachment, len(shared.here())
                )
            except Exception as error:  # noqa: BLE001  (raised again, on all ranks)
                failure = error
        shared.agree(failure=failure)
        sizes = [(entry.number, ranks.local(entry.param).numel()) for entry in entries]
        everyone = shared.gathered((sizes, plan, answer))
        _, plan, answer = everyone[0]
        if any(each[0] != sizes for each in everyone):
            plan = None
            answer = {
                "reason": "no plan, because the ranks' shards differ in size, and one plan is for "
                "all; the CPU updates, and the GPU where gpu_memory has room"
            }
        return settings._replace(plan=plan), answer

    def _laid_out(self, settings: Settings) -> Tuple[Settings, List[Entry], Optional[List[Block]]]:
        """What the engine will have: its settings, tensors and blocks."""
        attachment = self._attachment
        for group in self._param_groups:
            check_group(group)
        entries = trainable(self._param_groups, attachment.names if attachment else {})
        if attachment is None:
            settings = self._drop_in(settings)
            blocks: Optional[List[Block]] = None
        else:
            strangers = [e.name for e in entries if id(e.param) not in attachment.names]
            if strangers:
                raise HocketUsageError(
                    f"{strangers[0]} is in the optimizer, but not in the attached model: attach "
                    "a module that holds all (nn.ModuleDict of several, for example); after "
                    "fully_shard() the optimizer needs the model's new parameters"
                )
            attachment.hook_gradients([entry.param for entry in entries])
            names = {entry.name for entry in entries}
            known = [n for n in attachment.names.values() if n in names]
            # Norms are those of the model's own blocks, not of merged ones.
            blocks = attachment.blocks(known, None if settings.clip == "block" else MAX_BLOCKS)
        return settings, entries, blocks

    def _drop_in(self, settings: Settings) -> Settings:
        ranks.refuse_rows(self._param_groups)
        if settings.accumulate is not None:
            raise HocketUsageError(
                "accumulate= takes effect with attach(model) only: without it autograd adds "
                "gradients, in their own type"
            )
        if settings.clip == "block":
            raise HocketUsageError(
                "clip='block' needs opt.attach(model): without it nothing says what the blocks are"
            )
        if settings.overlap != "none":
            warnings.warn(
                f"hocket: overlap={settings.overlap!r} has no effect without "
                "opt.attach(model): step() updates before it returns"
            )
        return settings._replace(overlap="none")

    def _make(
        self, settings: Settings, shared: Optional[Ranks] = None, answer: Answer = None
    ) -> Steps:
        attachment = self._attachment
        settings, entries, blocks = self._laid_out(settings)
        plan, said = resolve_plan(settings, entries, blocks, attachment)
        binding = Binding(entries, blocks, self._param_groups, settings, plan)
        try:
            binding.engine.masters(-1, binding.stream())  # from the weights
            binding.read_versions()
            checkpoint.write_state(binding, self._loaded)
            steps = Steps(binding, settings, attachment, shared, said or answer, self._lock)
            steps.show(self._state, self._loaded)
            if attachment is not None and blocks is not None:
                attachment.bound(blocks, binding, steps.handover)
                binding.engine.expect(settings.accumulation_steps or 0)
            return steps
        except BaseException:
            binding.engine.close()
            raise
