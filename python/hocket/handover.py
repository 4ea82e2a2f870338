# SPDX-License-Identifier: Apache-2.0
"""Which gradients the engine holds, and by what step() multiplies them.

A tensor's gradient is *live* (the engine holds it, ``p.grad`` is a handle or a tensor handed over
in ``step()``), *zero* (it is not live, ``p.grad.zero_()`` was called on its handle, nothing was
added since), or neither (there is none since the last step).

Ctrl-C raises KeyboardInterrupt between any two bytecodes, for example when a call to the engine has
returned and nothing has been noted. Rules that keep every such state right:

- A change begins with ``_begin()`` and ends with ``_settled = True``. If the last one did not end,
  the next ``_begin()`` asks the engine what it holds.
- A tensor in ``p.grad`` counts for itself, whatever the engine holds. A handle is put there when
  the engine has the gradient.
- What Python alone knows (zeroed, factors) is written so that each order of two lines that an
  interrupt leaves is either the state before or the one after.
"""

from __future__ import annotations

import ctypes
import itertools
import math
import operator
import threading
import time
from typing import Callable, Dict, List, Optional, Sequence, Set, Tuple, Union

import torch
from torch import Tensor

from . import ranks
from .binding import Binding
from .direct import Direct
from .errors import HocketUsageError
from .handle import GradientHandle, handle_in, held_by_autograd

Number = Union[Tensor, float]


class HandOver:
    """Hands over the gradients of one engine.

    Attributes:
        live: 1 for each tensor whose gradient the engine holds.
        filled: tensors without a new gradient since ``p.grad.zero_()``, to which the last collect()
            has given zeros. Nothing says that forward has read them.
        seconds: wall time spent in hooks and in collecting, waits included, since the optimizer
            was bound.
    """

    def __init__(self, binding: Binding) -> None:
        n = len(binding.params)
        self.binding = binding
        self.live, self.zeroed = bytearray(n), bytearray(n)
        # Written in place: allocating arrays of this size would make malloc join all the small
        # blocks that backward has freed, which takes longer than everything else here.
        self._views, self._none = (memoryview(self.live), memoryview(self.zeroed)), bytes(n)
        self._live_at = ctypes.addressof((ctypes.c_char * n).from_buffer(self.live))
        self.filled: Set[int] = set()
        self._settled = True
        self._scaled = False  # the engine may have a factor other than 1
        self._unfinished: Optional[Tuple[int, Tensor]] = None  # of _exchange(), under way
        self.seconds = 0.0
        self.warned = False  # that an operation on a handle copies
        self._every = list(range(n))
        self._others: List[int] = []
        self._direct: Optional[Direct] = None
        self.leave_to_step(self._every)
        # keep()s the gradients that wait for others of their block. False: one must not.
        self.keeper: Optional[Callable[[int, Tensor], bool]] = None
        # These gradients of the backward that is under way, and the stream that they came on.
        self._waiting: List[Tuple[int, Tensor]] = []
        self._came_on = 0
        self._handles: Dict[int, Tensor] = {}
        self._factors: Dict[int, List[Number]] = {}
        # (id, version) of a factor -> the tensor and a copy of its value. The tensor is kept so
        # that no other one gets its id.
        self._factor_cache: Dict[Tuple[int, int], Tuple[Tensor, Tensor]] = {}
        self._norms: Optional[Tensor] = None
        self._lock = threading.RLock()

    def _begin(self) -> None:
        """A change begins. The caller holds the lock, and sets `_settled` at the end."""
        if not self._settled:
            self._norms = None
            self.binding.engine.held(self._live_at)
            self._finish_product()
            for number in [number for number in self._factors if not self.live[number]]:
                del self._factors[number]
        self._settled = False
        if self._waiting:
            # An interrupt loses what the interrupted backward has brought; it adds nothing twice.
            waiting, self._waiting = self._waiting, []
            with self.binding.on(self._came_on):
                self._give([number for number, _ in waiting], [grad for _, grad in waiting])

    def _know(self) -> None:
        """Makes `live` right after an interrupt, and adds what waits."""
        if self._waiting or not self._settled:
            with self._lock:
                self._begin()
                self._settled = True

    def leave_to_step(self, numbers: Sequence[int]) -> None:
        """Says whose gradients are handed over in ``step()`` only. They are found by one call."""
        binding = self.binding
        self._direct = None
        if numbers and all(binding.contiguous[number] for number in numbers):
            every = len(numbers) == len(self._every)
            self._direct = binding.direct if every else binding.direct_of(numbers)
        left = set(numbers) if self._direct is not None else set()
        self._others = [number for number in self._every if number not in left]

    # -- During backward ----------------------------------------------------------------------

    def take(self, numbers: Sequence[int], grads: Sequence[Tensor], place: bool = True) -> None:
        """Hands over new gradients in ``p.grad``, by one call, and puts handles in their place;
        `place` False: the caller does, when the backward is over.

        If the engine holds one already, the program has dropped it (``p.grad = None``) since.
        """
        began = time.perf_counter()
        for number, grad in zip(numbers, grads):
            if grad.requires_grad:
                raise HocketUsageError(
                    f"backward(create_graph=True) gave {self.binding.names[number]} a gradient "
                    "with a graph: an attached hocket.AdamW cannot hold it; use "
                    "torch.autograd.grad, or a hocket.AdamW that is not attached"
                )
        with self._lock:
            self._begin()
            for number in numbers:
                if self.live[number]:
                    self._forget(number)
            self._give(numbers, grads)
            for number in numbers if place else ():
                self.binding.params[number].grad = self.stand_in(number)
            self._settled = True
        self.seconds += time.perf_counter() - began

    def set_of(self, numbers: Sequence[int]) -> Optional[Direct]:
        """A set for take_set(); None if one call cannot hand over these tensors' gradients."""
        plain = numbers and all(map(self.binding.contiguous.__getitem__, numbers))
        found = self.binding.direct_of(numbers) if plain else None
        if found is not None:
            found.know_handles(list(map(self.stand_in, numbers)))
        return found

    def take_set(self, direct: Direct, stream: int) -> bool:
        """As take(), for the tensors of a set that have new gradients, which come on the stream.
        False: Python must look at each, because a gradient cannot be handed over as it is."""
        began = time.perf_counter()
        with self._lock:
            found = direct.gradients()
            if found:
                self._begin()
                places = list(itertools.compress(range(len(direct.held)), direct.held))
                numbers = [direct.numbers[place] for place in places]
                for number in filter(self.live.__getitem__, numbers):
                    self._forget(number)
                self.binding.engine.gradient_list(direct.pairs, found, stream)
                for place, number in zip(places, numbers):
                    self.live[number], self.zeroed[number] = 1, 0
                    direct.params[place].grad = direct.handle_of[place]
                self._norms = None
                self._settled = True
        self.seconds += time.perf_counter() - began
        return found is not None

    def accumulate(self, number: int, grad: Tensor, held: Tuple[int, int]) -> None:
        """Carries out ``p.grad += grad`` where p.grad is a handle. If the references to `grad`
        (held_by_autograd()) say that nobody else has it, it may be added later."""
        began = time.perf_counter()
        with self._lock:
            if not self._kept(number, grad, held):
                self._begin()
                # To one that step() has used up, nothing is added: GANs do so, and clear it before
                # use.
                if self.live[number] or self.zeroed[number]:
                    if number in self._factors:
                        self._multiply_out(number)
                    self._give([number], [grad])
                self._settled = True
        self.seconds += time.perf_counter() - began

    def _kept(self, number: int, grad: Tensor, held: Tuple[int, int]) -> bool:
        has_some = self.live[number] or self.zeroed[number]
        if self.keeper is None or not self._settled or not has_some or number in self._factors:
            return False
        if type(grad) is not Tensor or grad.layout is not torch.strided:
            return False
        sole = all(map(operator.le, held, held_by_autograd()))
        return sole and grad.device == self.binding.device and self.keeper(number, grad)

    def keep(self, number: int, grad: Tensor, stream: int) -> None:
        """Keeps a gradient that came on this stream until the next call of any other method. All
        that are kept have come on one stream."""
        self._came_on = stream
        self._waiting.append((number, grad))

    def add_kept(self) -> None:
        """Adds the gradients that have been kept, by one call."""
        if self._waiting:
            with self._lock:
                self._begin()
                self._settled = True

    def stand_in(self, number: int) -> Tensor:
        """What stands in p.grad: the handle of a tensor, or a DTensor of the handles of all ranks.
        It is made once and used in every iteration."""
        found = self._handles.get(number)
        if found is None:
            handle = GradientHandle(self, number)
            found = self._handles[number] = ranks.shared_as(self.binding.params[number], handle)
        return found

    def _give(self, numbers: Sequence[int], grads: Sequence[Tensor]) -> None:
        ready = self.binding.prepared(numbers, grads)
        self._norms = None
        self.binding.engine.gradients(
            numbers, [grad.data_ptr() for grad in ready], self.binding.stream()
        )
        for number in numbers:
            self.live[number] = 1
            self.zeroed[number] = 0

    def _forget(self, number: int, zeroed: int = 0) -> None:
        self._norms = None
        self.zeroed[number] = zeroed  # counts once the tensor is not live
        if self.live[number]:
            self.binding.engine.discard(number)
        self.live[number] = 0
        self._factors.pop(number, None)

    # -- Between backward and step ------------------------------------------------------------

    def condition(self, number: int) -> str:
        """What a message says of a tensor's gradient: held, zero or used up."""
        self._know()
        return "held" if self.live[number] else "zero" if self.zeroed[number] else "used up"

    def zero(self, number: int) -> None:
        """Carries out ``p.grad.zero_()``: the gradient is zero until a backward adds to it."""
        with self._lock:
            self._begin()
            self._forget(number, zeroed=1)
            self._settled = True

    def discard_all(self) -> None:
        """Forgets all gradients, whatever was noted of them: a call that was interrupted may have
        handed over more. Neither waits for an update that runs nor touches it."""
        with self._lock:
            self._waiting.clear()
            self._begin()
            if 1 in self.live or not self.binding.engine.failed:
                self.binding.engine.discard(-1)
            self._reset()
            self._settled = True

    def _reset(self) -> None:
        self._views[0][:] = self._views[1][:] = self._none
        self._factors.clear()
        self._factor_cache.clear()
        self._norms = None
        self._scaled = False

    def multiply(self, number: int, factor: Number) -> None:
        """Carries out ``p.grad.mul_(factor)``: step() multiplies by the factor."""
        self._need(number)
        if isinstance(factor, Tensor):
            key = (id(factor), factor._version)
            if key not in self._factor_cache:
                self._factor_cache[key] = (factor, factor.detach().clone())
            factor = self._factor_cache[key][1]
        self._factors.setdefault(number, []).append(factor)

    def _need(self, number: int) -> None:
        self._know()
        if not self.live[number] and not self.zeroed[number]:
            raise HocketUsageError(
                f"the gradient of {self.binding.names[number]} has been used up by step(): it is "
                "there from backward() to step() only"
            )

    def norm(self, number: int) -> Tensor:
        """2-norm of the gradient as it stands: fp32, no dimensions, on the parameter's device."""
        self._need(number)
        if self._norms is None:
            self._norms = (
                torch.tensor(
                    [
                        math.sqrt(self._squares(n)) if self.live[n] else 0.0
                        for n in range(len(self.live))
                    ],
                    dtype=torch.float64,
                )
                .to(torch.float32)
                .to(self.binding.device)
            )
        norm = self._norms[number]
        for factor in self._factors.get(number, []):
            norm = norm * (factor.abs() if isinstance(factor, Tensor) else abs(factor))
        return norm

    def _squares(self, number: int) -> float:
        total, nonfinite = self.binding.engine.sum_of_squares(number)
        return math.inf if nonfinite else total

    def nonfinite(self) -> int:
        """How many values handed over are not finite."""
        self._know()
        if 1 not in self.live:
            return 0
        return self.binding.engine.sum_of_squares(-1)[1]

    def finite(self, number: int) -> bool:
        """Whether all values of one tensor's gradient are finite."""
        self._need(number)
        return not self.live[number] or self.binding.engine.sum_of_squares(number)[1] == 0

    def read(self, number: int) -> Tensor:
        """The gradient as it stands, in its own type, on the parameter's device."""
        self._need(number)
        return self._read(number)

    def _read(self, number: int) -> Tensor:
        param = self.binding.parts[number]
        if not self.live[number]:
            return torch.zeros_like(param, dtype=self.binding.grad_types[number])
        values = self.binding.read_gradient(number).to(self.binding.device)
        for factor in self._factors.get(number, ()):
            values.mul_(factor)
        return values

    def _multiply_out(self, number: int) -> None:
        """Multiplies the gradient by its factors now, with the rounding of torch."""
        self._exchange(number, self._read(number))

    def _exchange(self, number: int, values: Tensor) -> None:
        self._unfinished = (number, values)
        self._forget(number)
        self._finish_product()

    def replace(self, number: int, values: Tensor) -> None:
        """Carries out a change of ``p.grad`` in place: from now on the gradient has these values.
        They belong to hocket."""
        if values.shape != self.binding.parts[number].shape:
            raise HocketUsageError(
                f"the gradient of {self.binding.names[number]} has been handed over: an operation "
                f"in place cannot give it shape {tuple(values.shape)}"
            )
        with self._lock:
            self._begin()
            self._exchange(number, values)
            self._settled = True

    def _finish_product(self) -> None:
        """Hands over the values of _exchange(), if the gradient has been forgotten for them."""
        if self._unfinished is not None:
            number, values = self._unfinished
            if not self.live[number]:
                self._factors.pop(number, None)
                self._give([number], [values])
            self._unfinished = None

    # -- In step ------------------------------------------------------------------------------

    def collect(self) -> List[int]:
        """Makes what the engine holds agree with ``p.grad``. Returns the tensors with gradients.

        A handle stands for what was handed over, a tensor for itself, None for no gradient.
        """
        began = time.perf_counter()
        with self._lock:
            self._begin()
            self.filled.clear()
            found = self._find_directly()
            fresh, grads = self._sorted_out(self._every if found is None else self._others)
            if fresh:
                addresses = [grad.data_ptr() for grad in grads]
                self.binding.engine.gradients(fresh, addresses, self.binding.stream())
                for number in fresh:
                    self.live[number] = 1
                    self.zeroed[number] = 0
            if found:
                self._give_directly(found)
            self._settled = True
        self.seconds += time.perf_counter() - began
        if 0 not in self.live:
            return self._every
        return [number for number, held in enumerate(self.live) if held]

    def _find_directly(self) -> Optional[int]:
        """How many of the gradients that are left to step() there are. None if Python must look at
        each: the engine holds one already, or one is not contiguous, or of another type."""
        direct = self._direct
        if direct is None:
            return None
        live = self.live.count(1) - sum(self.live[number] for number in self._others)
        zeroed = self.zeroed.count(1) - sum(self.zeroed[number] for number in self._others)
        return direct.gradients() if live == zeroed == 0 else None

    def _give_directly(self, found: int) -> None:
        direct = self._direct
        assert direct is not None
        self.binding.engine.gradient_list(direct.pairs, found, self.binding.stream())
        if not self._others:
            self._views[0][:] = direct.held
            return
        for number, held in zip(direct.numbers, direct.held):
            self.live[number] = held

    def _sorted_out(self, numbers: Sequence[int]) -> Tuple[List[int], List[Tensor]]:
        """Makes the engine forget gradients that the program has dropped or replaced. Returns the
        numbers and the gradients to hand over instead."""
        params = self.binding.params
        given = [params[number].grad for number in numbers]
        fresh: List[int] = []
        grads: List[Tensor] = []
        if set(map(type, given)) == {type(None)} and 1 in self.live:
            self.binding.engine.discard(-1)
            self._reset()
        for number, grad in zip(numbers, given):
            if grad is None:
                if self.live[number] or self.zeroed[number]:
                    self._forget(number)
                continue
            handle = handle_in(grad)
            if handle is not None:
                self._check_handle(number, handle)
                if not self.live[number]:
                    fresh.append(number)
                    self.filled.add(number)
                    part, dtype = self.binding.parts[number], self.binding.grad_types[number]
                    grads.append(torch.zeros_like(part, dtype=dtype))
            else:
                if self.live[number] or self.zeroed[number]:
                    self._forget(number)
                fresh.append(number)
                grads.append(grad.detach())
        return fresh, self.binding.prepared(fresh, grads)

    def _check_handle(self, number: int, grad: GradientHandle) -> None:
        if not grad.belongs_to(self, number):
            raise HocketUsageError(
                f"{self.binding.names[number]}.grad is the handle of another parameter: copy "
                "gradients with opt.read_gradient(p)"
            )
        if not self.live[number] and not self.zeroed[number]:
            raise HocketUsageError(
                f"the gradient of {self.binding.names[number]} was used up by the last step, and "
                "zero_grad() has not been called since: gradients of an attached model live until "
                "step(); call zero_grad() between step() and the next backward()"
            )

    def scale(self) -> None:
        """Passes the factors of multiply() on to the engine. They count until the step, so that an
        interrupted step() can be repeated."""
        if not self._factors and not self._scaled:
            return
        with self._lock:
            self._begin()
            values: Dict[int, float] = {}
            numbers = [n for n, held in enumerate(self.live) if held]
            products = [self._product(number, values) for number in numbers]
            self._scaled = True
            same = all(product == products[0] for product in products)
            if same and 0 < products[0] < float("inf"):  # what the engine takes
                self.binding.engine.scale(products[0])
            else:
                self.binding.engine.scale(1.0)
                for number, product in zip(numbers, products):
                    if product != 1.0:
                        self._multiply_out(number)
            self._settled = True

    def _product(self, number: int, values: Dict[int, float]) -> float:
        product = 1.0
        for factor in self._factors.get(number, ()):
            if isinstance(factor, Tensor):
                value = values.get(id(factor))
                if value is None:
                    value = values[id(factor)] = float(factor)
                product *= value
            else:
                product *= float(factor)
        return product

    def step(self, max_norm: float, loss_scale: float, sum_of_squares: float = 0.0) -> None:
        """The step, which uses up all gradients. sum_of_squares: of all ranks; 0: there is one."""
        with self._lock:
            self._begin()
            stream = self.binding.stream()
            self.binding.engine.step(max_norm, loss_scale, stream, sum_of_squares)
            self._reset()
            self._settled = True
