# SPDX-License-Identifier: Apache-2.0
"""The steps of an optimizer whose engine has been made.

A step collects the gradients, agrees with the other ranks, updates, and notes what it has changed:
versions of weights, entries of ``opt.state``. Ctrl-C may come when the engine has taken the step
and nothing has been noted. So settle() asks the engine for its step number before it notes the
step, and whatever depends on the notes calls settle() first.
"""

from __future__ import annotations

import warnings
from typing import (
    TYPE_CHECKING,
    Any,
    Callable,
    ContextManager,
    Dict,
    List,
    Mapping,
    Optional,
    Sequence,
    Tuple,
)

from torch import Tensor

from . import _abi, ranks
from .binding import Binding, Settings, increment_versions
from .checkpoint import StateView
from .handover import HandOver
from .ranks import Ranks
from .samples import Samples

if TYPE_CHECKING:
    from .attach import Attachment

State = Dict[Any, Any]
"""``opt.state``: an entry of ``step``, ``exp_avg`` ... for each parameter that has taken a step."""
Current = Callable[[], State]
"""Returns ``opt.state``. Called under the lock only: state_dict() replaces it for a time."""


class Steps:
    """The steps of one engine.

    Attributes:
        binding: the engine and its tensors.
        handover: the gradients' way.
        ranks: those that share the parameters; None: this process has them for itself.
        answer: what the planner has said; None: it was not asked.
        has_state: 1 for each tensor that has an entry in ``opt.state``.
    """

    def __init__(
        self,
        binding: Binding,
        settings: Settings,
        attachment: Optional["Attachment"],
        shared: Optional[Ranks],
        answer: Optional[Dict[str, Any]],
        lock: ContextManager[Any],
    ) -> None:
        self.binding = binding
        self.handover = HandOver(binding)
        self.ranks = shared
        self.answer = answer
        self.has_state = bytearray(len(binding.params))
        self._attachment = attachment
        self._overlaps = settings.overlap != "none"
        self._max_norm = settings.max_norm or 0.0
        self._counts = shared.counts(binding.params) if shared is not None else b""
        self._samples = Samples(binding)
        self._lock = lock  # of the optimizer: held by step(), and by what saves and loads
        self._taking: Optional[Tuple[int, List[int]]] = None

    # -- State that the program sees ------------------------------------------------------------

    def show(self, state: State, loaded: Mapping[Tensor, Mapping[str, Any]]) -> None:
        """Gives an empty ``opt.state`` its entries: a view of each tensor that has taken a step,
        and the step counts of parameters without elements, from the state that was loaded."""
        self.has_state = bytearray(len(self.binding.params))
        taken = self.binding.engine.tensor_step
        self._view([n for n in range(len(self.has_state)) if taken(n) > 0], state)
        for param in self.binding.empty:
            if param in loaded:
                state[param] = ranks.EmptyState(param, int(loaded[param]["step"]))

    def _view(self, numbers: Sequence[int], state: State) -> None:
        for number in numbers:
            if not self.has_state[number]:
                state[self.binding.params[number]] = StateView(self.binding, number)
                self.has_state[number] = 1

    def removed(self, state: State) -> List[int]:
        """The tensors whose entries the program has removed from ``opt.state``."""
        if len(state) >= self.has_state.count(1):
            return []
        params = self.binding.params
        return [n for n, has in enumerate(self.has_state) if has and params[n] not in state]

    # -- Weights that the program writes --------------------------------------------------------

    def follow_weights(self, state: Current) -> None:
        """Masters follow weights that the program has written since the last step."""
        with self._lock:  # a step() of another thread changes weights and masters
            self.settle(state)
            self.binding.follow_weights()

    def follow_data(self) -> None:
        """Masters follow weights that the program has written through p.data, if that is seen."""
        with self._lock:
            if 1 not in self.handover.live:
                self._samples.follow()

    # -- One step -------------------------------------------------------------------------------

    def prepare(self, param_groups: Sequence[Mapping[str, Any]], state: Current) -> List[int]:
        """Makes the engine ready for a step. Returns the tensors with gradients."""
        self.binding.check_frozen()
        if not self.binding.unchanged():
            self.binding.check_in_place()
            self.follow_weights(state)
        self.binding.loaded.clear()
        self.follow_data()
        held = self.handover.collect()
        if held:
            if self._attachment is not None:
                filled = self.handover.filled
                read = [n for n in held if n not in filled] if filled else held
                self._attachment.check_gated(read)
            self.handover.scale()
            self.binding.sync_groups(param_groups)
        return held

    def step(
        self, prepare: Callable[[], List[int]], state: Current, loss_scale: Optional[Tensor]
    ) -> bool:
        """A step, if some gradient is there. Returns whether this rank has taken one.

        Args:
            prepare: makes the engine ready, and returns the tensors with gradients. If ranks share
                the parameters and it fails on one of them, no rank takes the step.
            state: returns ``opt.state``.
            loss_scale: by which the program has multiplied the loss; None: it has not.
        """
        if self.ranks is not None:
            return self._step_of_all(self.ranks, prepare, state, loss_scale)
        held = prepare()
        if held:
            last = self._take(held, state, loss_scale)
            if last is not None and last.skipped:
                warnings.warn(
                    f"hocket: {last.nonfinite} gradient values are not finite: step() changed "
                    "nothing"
                )
        return bool(held)

    def _step_of_all(
        self,
        shared: Ranks,
        prepare: Callable[[], List[int]],
        state: Current,
        loss_scale: Optional[Tensor],
    ) -> bool:
        failure: Optional[Exception] = None
        held: List[int] = []
        words = None
        try:
            held = prepare()
            words = self.binding.engine.squares(self._counts)
        except Exception as error:  # noqa: BLE001  (raised again, on all ranks)
            failure = error
        total, holding = shared.agree(words, bool(held), failure)
        if not holding:
            return False
        squares, nonfinite = _abi.squares_value(total)
        replicas = self._attachment.replicas if self._attachment is not None else None
        later = True
        if self._attachment is not None and replicas is not None and not nonfinite:
            later = replicas.updated() and self._overlaps
            if later:
                self._attachment.close_gates()  # also where this rank has nothing to update
        last = None
        if held:
            last = self._take(held, state, loss_scale, float("inf") if nonfinite else squares)
        elif self._attachment is not None:
            self._attachment.begun()
        if not later:
            self.finish(state)
            self.gather()
        if nonfinite:
            mine = last is not None and last.nonfinite > 0
            warnings.warn(
                f"hocket: {nonfinite} gradient values are not finite, the first of them in a shard "
                f"of rank {shared.first(mine)}: step() changed nothing on any rank"
            )
        return bool(held)

    def _take(
        self,
        held: List[int],
        state: Current,
        loss_scale: Optional[Tensor],
        sum_of_squares: float = 0.0,
    ) -> Optional[_abi.StepResult]:
        """Takes the step. sum_of_squares: of the gradients of all ranks; 0: there is one."""
        scale = float(loss_scale) if loss_scale is not None else 1.0
        self._taking = (self.binding.engine.step_number(), held)
        if self._attachment is not None:
            # Closed before the update begins, so that no interrupt leaves them open.
            self._attachment.end_trace()
            if self._overlaps:
                self._attachment.close_gates()
        self.handover.step(self._max_norm, scale, sum_of_squares)
        self.settle(state)
        return self.binding.engine.last_step()

    def settle(self, state: Current) -> None:
        """Notes the last step, if the engine has taken it: at the end of step(), and again if that
        was interrupted."""
        if self._taking is None:
            return
        with self._lock:  # no step() of another thread is under way
            if self._taking is None:
                return
            before, held = self._taking
            if self.binding.engine.step_number() > before:
                self._note(held, state())
            elif self._attachment is not None:
                self._attachment.complete()  # gradients came after the end of the last update
            if self._attachment is not None:
                self._attachment.begun()
            self._taking = None

    def _note(self, held: List[int], state: State) -> None:
        params = self.binding.params
        increment_versions(
            params if len(held) == len(params) else [params[number] for number in held]
        )
        self.binding.read_versions()
        if 0 in self.has_state:
            self._view(held, state)
        for param in self.binding.empty:
            if param.grad is not None:
                steps = int(state[param]["step"]) if param in state else 0
                state[param] = ranks.EmptyState(param, steps + 1)

    # -- The end of the update ------------------------------------------------------------------

    def finish(self, state: Current) -> None:
        """Returns when this rank's part of the last step is complete."""
        with self._lock:  # no step() of another thread starts an update that gates must wait for
            self.binding.engine.drain()
            self.settle(state)
            if self._attachment is not None:
                self._attachment.complete()

    def gather(self) -> None:
        """All ranks call it, after finish(). Returns when the others' weights are there, too."""
        if self._attachment is not None and self._attachment.replicas is not None:
            self._attachment.replicas.gather()
            self._attachment.complete()
