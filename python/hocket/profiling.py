# SPDX-License-Identifier: Apache-2.0
"""Block times of a model on this machine, for the model document.

On a GPU a block of a small micro-batch often takes as long as the host needs to queue its kernels.
That time changes with the load of the CPU, the GPU's time does not, so both are measured:

1. whole passes, without observers, each begun with an idle GPU as after an optimizer step;
2. the host's time for each block: the GPU is idle before each block, so the host never waits. In
   turns, alone and beside what an update does: teams of two sizes that update optimizer state, and
   copies of gradients and weights. They slow the host's other threads;
3. the GPU's time for each block: before each block the GPU is made to wait until the host has
   queued it, so it never waits within the block.

Times 2 and 3 are scaled. A block takes the longer of both; the sum over blocks is then about the
time of a whole pass.
"""

from __future__ import annotations

import contextlib
import statistics
import time
from typing import (
    Any,
    Callable,
    Dict,
    Iterator,
    List,
    Mapping,
    NamedTuple,
    Optional,
    Sequence,
    Tuple,
)

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from . import _abi
from .blocks import Block
from .busy import BYTES, BusyTeam, Copies
from .describe import arguments, described, scalar_of, tensors_in
from .errors import MACHINE, HocketError

SECONDS = 2.0
"""Least time in seconds for which whole passes on a GPU are timed: hosts have slow moments of about
a second."""
AHEAD = 0.03
"""Blocks may add up to this much more than whole passes, see reconcile()."""
MOST_PAUSE_MS = 100.0
"""Longest time that the GPU is made to wait before a block."""
BUSY_ELEMENTS = 1 << 26
"""Parameters that a team beside launches updates: 1 GiB, more than the caches of most CPUs."""
BESIDE_SECONDS = 6.0
"""Least time in seconds of the turns alone and beside updates: single ones differ by a half."""
LEAST_KEPT = 0.01
"""Least share of launches that a model document may state."""


def profile(
    model: nn.Module,
    batch: Any,
    *,
    loss: Optional[Callable[[Any], Any]] = None,
    steps: int = 5,
    accumulate: Optional[torch.dtype] = None,
    cpu_threads: Optional[int] = None,
) -> Dict[str, Any]:
    """describe(), with measured block times: runs forward and backward of the model as it is.

    Gradients are dropped, weights stay as they are.

    Args:
        model: the model, on its device, in the mode it will be trained in.
        batch: as of describe, on the model's device.
        loss: makes a scalar of what the model returns; None: its ``loss``, or the sum of its first
            tensor.
        steps: iterations of each kind that are timed, after one that is not. On CUDA whole
            iterations are timed for at least 2 s.
        accumulate: as of hocket.AdamW.
        cpu_threads: threads of the larger team beside which launches are timed; None: as of
            hocket.AdamW with ``overlap="both"``. The smaller one has three quarters of them.

    Returns:
        describe's dict; blocks have ``forward_ms`` and ``backward_ms``, too. On CUDA these are
        times of the GPU, and ``forward_launch_ms`` and ``backward_launch_ms`` are the host's times
        to queue the kernels. ``launch_beside_update`` is the share of their rate that launches
        keep beside an update, for teams of two sizes: the lower quartile of the host's times alone
        divided by the median of its times beside the team and copies of gradients and weights.
        ``quartiles`` has the same with the quartiles of the latter. It is left out without
        libhocket, or with less than 4 GiB of free host memory.
        ``measured`` has the quartiles of whole passes, in ms, and the number of passes. Whole
        passes and host times count with their lower quartile, because the disturbances of a host
        only lengthen them; GPU times with their median.
    """
    out, blocks = described(model, batch, accumulate)
    run = _Run(model, batch, loss, blocks)
    grads = [param.grad for param in model.parameters()]
    try:
        cuda = run.device.type == "cuda"
        if cuda:
            with updates(run.device, cpu_threads) as found:
                measured = _on_gpu(run, Gpu(run.device), steps, beside=found)
        else:
            measured = _on_host(run, steps)
    finally:
        for param, grad in zip(model.parameters(), grads):
            param.grad = grad
    for number, block in enumerate(out["blocks"]):
        block.update({key: times[number] for key, times in measured.blocks.items()})
    if measured.shares:
        out["launch_beside_update"] = sorted(measured.shares, key=lambda share: share["threads"])
    out["measured"] = {"iterations": measured.iterations, **measured.quartiles}
    return out


class Measured(NamedTuple):
    """What profile() adds to a document: ms of blocks by key; quartiles by key of whole passes, in
    ms; the number of passes; shares of launches kept, by number of threads."""

    blocks: Dict[str, List[float]]
    quartiles: Dict[str, List[float]]
    iterations: int
    shares: List[Dict[str, Any]]


def quartiles(values: Sequence[float]) -> List[float]:
    """Lower quartile, median, upper quartile."""
    if len(values) < 2:
        return list(values) * 3
    return statistics.quantiles(values, n=4, method="inclusive")


def _of_blocks(rounds: Sequence[Sequence[float]], quartile: int) -> List[float]:
    """For each block, a quartile (0 to 2) over several rounds."""
    return [quartiles(times)[quartile] for times in zip(*rounds)]


# -- Passes ---------------------------------------------------------------------------------------


class Watch:
    """Cuts a pass into blocks. On the host: a cut is a moment."""

    def cut(self) -> Tuple[Any, Any]:
        """Ends a block and begins the next: the moments of both."""
        now = time.perf_counter()
        return now, now

    def ms(self, begin: Any, end: Any) -> float:
        """Time between a block's beginning and its end."""
        return float(end - begin) * 1e3


class Gpu:
    """A CUDA device's current stream."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._cycles_per_ms = 0.0

    def wait(self) -> None:
        """Until the device has done what the stream has been given."""
        torch.cuda.current_stream(self.device).synchronize()

    def now(self) -> Any:
        """A moment on the stream."""
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self.device))
        return event

    def ms(self, begin: Any, end: Any) -> float:
        """Time between two moments; waits for them."""
        end.synchronize()
        elapsed: float = begin.elapsed_time(end)
        return elapsed

    def pause(self, ms: float) -> None:
        """Queues a kernel that does nothing and takes `ms`."""
        with torch.cuda.device(self.device):
            if not self._cycles_per_ms:
                torch.cuda._sleep(1000)
                begin = self.now()
                torch.cuda._sleep(10_000_000)
                self._cycles_per_ms = 10_000_000 / self.ms(begin, self.now())
            torch.cuda._sleep(int(ms * self._cycles_per_ms))


class QueueWatch(Watch):
    """The host's time to queue each block, for an idle device."""

    def __init__(self, gpu: Gpu) -> None:
        self.gpu = gpu

    def cut(self) -> Tuple[Any, Any]:
        end = time.perf_counter()
        self.gpu.wait()
        return end, time.perf_counter()


class CopyWatch(QueueWatch):
    """As QueueWatch, beside copies of `size` bytes each way that begin with each block."""

    def __init__(self, gpu: Gpu, copies: Copies, size: int) -> None:
        super().__init__(gpu)
        self.copies, self.size = copies, size

    def cut(self) -> Tuple[Any, Any]:
        end, _ = super().cut()
        self.copies.queue(self.size)
        return end, time.perf_counter()


class KernelWatch(Watch):
    """The device's time for each block, which it begins `pause_ms` after the block before."""

    def __init__(self, gpu: Gpu, pause_ms: float) -> None:
        self.gpu, self.pause_ms = gpu, pause_ms

    def cut(self) -> Tuple[Any, Any]:
        end = self.gpu.now()
        self.gpu.pause(self.pause_ms)
        return end, self.gpu.now()

    def ms(self, begin: Any, end: Any) -> float:
        return self.gpu.ms(begin, end)


class _Uses(TorchDispatchMode):
    """Cuts when each block's first parameter is used."""

    def __init__(self, block_of: Mapping[int, int], watch: Watch) -> None:
        super().__init__()
        self.block_of, self.watch = block_of, watch
        self.first: Dict[int, Tuple[Any, Any]] = {}
        self.current = -1

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for value in tensors_in((args, kwargs)):
            block = self.block_of.get(id(value))
            if block is not None and block > self.current:
                self.current = block
                self.first[block] = self.watch.cut()
        return func(*args, **(kwargs or {}))


class _Run:
    """A model, a batch and its blocks.

    Attributes:
        arrivals: for each block, how many gradients a backward gives to its parameters. Counted by
            the first observed pass.
        bytes: of all weights.
    """

    def __init__(
        self,
        model: nn.Module,
        batch: Any,
        loss: Optional[Callable[[Any], Any]],
        blocks: Sequence[Block],
    ) -> None:
        self.model, self.loss = model, loss
        self.args, self.kwargs = arguments(batch)
        params = dict(model.named_parameters())
        self.device = next(iter(params.values())).device
        self.n_blocks = len(blocks)
        self.block_of = {
            id(params[name]): number
            for number, block in enumerate(blocks)
            for name in block.tensors
        }
        self.params = [params[name] for block in blocks for name in block.tensors]
        self.bytes = sum(param.numel() * param.element_size() for param in self.params)
        self.arrivals: List[int] = []

    def drop(self) -> None:
        """Drops gradients."""
        for param in self.model.parameters():
            param.grad = None

    def forward(self) -> Tensor:
        """The scalar to begin backward with."""
        return scalar_of(self.model(*self.args, **self.kwargs), self.loss)

    def observed(self, watch: Watch) -> Tuple[List[float], List[float]]:
        """Milliseconds of each block's forward and backward, once.

        Forward of a block lasts from the first use of its parameters to the next block's; backward
        from the end of the block before until the last of its gradients is there.
        """
        self.drop()
        uses = _Uses(self.block_of, watch)
        with uses:
            scalar = self.forward()
        forward_end, begin = watch.cut()
        forward = self._forward(uses, forward_end, watch)
        counts = [0] * self.n_blocks
        ends: List[Tuple[int, Any, Any]] = []

        def arrived(param: Tensor) -> None:
            block = self.block_of[id(param)]
            counts[block] += 1
            if self.arrivals and counts[block] == self.arrivals[block]:
                ends.append((block, *watch.cut()))

        hooks = [param.register_post_accumulate_grad_hook(arrived) for param in self.params]
        try:
            scalar.backward()
        finally:
            for hook in hooks:
                hook.remove()
        self.arrivals = self.arrivals or counts
        backward = [0.0] * self.n_blocks
        for block, end, following in ends:
            backward[block] = max(0.0, watch.ms(begin, end))
            begin = following
        return forward, backward

    def _forward(self, uses: _Uses, end: Any, watch: Watch) -> List[float]:
        times = [0.0] * self.n_blocks
        for block in sorted(uses.first, reverse=True):
            before, begin = uses.first[block]
            times[block] = watch.ms(begin, end)
            end = before
        return times


def _rounds(run: _Run, watch: Watch, steps: int, quartile: int) -> Tuple[List[float], List[float]]:
    """Block times of forward and backward over `steps` rounds."""
    rounds = [run.observed(watch) for _ in range(max(1, steps))]
    forwards, backwards = zip(*rounds)
    return _of_blocks(forwards, quartile), _of_blocks(backwards, quartile)


# -- On a host without a GPU ----------------------------------------------------------------------


def _on_host(run: _Run, steps: int) -> Measured:
    run.observed(Watch())
    parts = _rounds(run, Watch(), steps, 1)
    whole: List[Tuple[float, float]] = []
    for _ in range(max(1, steps)):
        run.drop()
        begin = time.perf_counter()
        scalar = run.forward()
        middle = time.perf_counter()
        scalar.backward()
        whole.append(((middle - begin) * 1e3, (time.perf_counter() - middle) * 1e3))
    blocks, found = {}, {}
    for key, times, totals in zip(("forward_ms", "backward_ms"), parts, zip(*whole)):
        found[key] = quartiles(totals)
        blocks[key] = scaled(times, found[key][0])
    return Measured(blocks, found, len(whole), [])


def scaled(times: Sequence[float], total: float) -> List[float]:
    """The times, in proportion, so that they add up to `total`."""
    parts = sum(times)
    return [time * (total / parts if parts > 0 else 1.0) for time in times]


# -- On a GPU -------------------------------------------------------------------------------------


def _whole(run: _Run, gpu: Gpu, steps: int, seconds: float) -> Iterator[Dict[str, float]]:
    """Whole iterations: ms of the passes on the device, and of the host until it has queued them.
    In long passes the host waits for room in the device's queue."""
    deadline = time.perf_counter() + seconds
    done = 0
    while done < steps or time.perf_counter() < deadline:
        run.drop()
        gpu.wait()
        begin, begin_host = gpu.now(), time.perf_counter()
        scalar = run.forward()
        middle, middle_host = gpu.now(), time.perf_counter()
        scalar.backward()
        end, end_host = gpu.now(), time.perf_counter()
        done += 1
        yield {
            "forward_ms": gpu.ms(begin, middle),
            "backward_ms": gpu.ms(middle, end),
            "forward_launch_ms": (middle_host - begin_host) * 1e3,
            "backward_launch_ms": (end_host - middle_host) * 1e3,
        }


class Update(NamedTuple):
    """What an update does beside launches: a team works, and copies run."""

    team: BusyTeam
    copies: Copies


@contextlib.contextmanager
def updates(device: torch.device, threads: Optional[int]) -> Iterator[List[Update]]:
    """Updates to time launches beside, that of the larger team first; none if host memory is short,
    or there is no libhocket."""
    with contextlib.ExitStack() as stack:
        found = teams(stack, threads)
        if not found:
            yield []
            return
        copies = Copies(device)
        yield [Update(team, copies) for team in found]


def teams(stack: contextlib.ExitStack, threads: Optional[int]) -> List[BusyTeam]:
    """A team of `threads` (None: as overlap="both" has) and one of three quarters of them, which
    the stack closes."""
    found: List[BusyTeam] = []
    try:
        if _abi.host_memory() < 4 * BYTES * BUSY_ELEMENTS:
            return found
        found.append(BusyTeam(BUSY_ELEMENTS, threads or 0))
        stack.callback(found[0].close)
        if found[0].threads > 1:
            found.append(BusyTeam(BUSY_ELEMENTS, 3 * found[0].threads // 4))
            stack.callback(found[1].close)
    except HocketError as error:
        if error.code != MACHINE:
            raise
    return found


def _launches(
    run: _Run, gpu: Gpu, steps: int, seconds: float, beside: Sequence[Update]
) -> Tuple[Tuple[List[float], List[float]], List[Dict[str, Any]]]:
    """The host's times for each block's forward and backward, and the shares of its rate that it
    keeps beside the updates. In an iteration all weights go in and all gradients out, a part of
    both with each block."""
    queue = QueueWatch(gpu)
    size = -(-run.bytes // (2 * run.n_blocks))
    alone: List[Tuple[List[float], List[float]]] = []
    times: List[List[float]] = [[] for _ in beside]
    deadline = time.perf_counter() + (seconds if beside else 0)
    while len(alone) < max(1, steps) or time.perf_counter() < deadline:
        alone.append(run.observed(queue))
        for update, found in zip(beside, times):
            update.team.update()
            try:
                found.append(_total(run.observed(CopyWatch(gpu, update.copies, size))))
            finally:
                update.team.pause()
                update.copies.wait()
    forwards, backwards = zip(*alone)
    least = quartiles([_total(parts) for parts in alone])[0]
    shares = []
    for update, found in zip(beside, times):
        kept = [min(1.0, max(LEAST_KEPT, least / total)) for total in reversed(quartiles(found))]
        shares.append({"threads": update.team.threads, "share": kept[1], "quartiles": kept})
    return (_of_blocks(forwards, 0), _of_blocks(backwards, 0)), shares


def _total(parts: Tuple[Sequence[float], Sequence[float]]) -> float:
    """Of forward and backward."""
    return sum(map(sum, parts))


def _on_gpu(
    run: _Run,
    gpu: Gpu,
    steps: int,
    seconds: float = SECONDS,
    beside: Sequence[Update] = (),
    beside_seconds: float = BESIDE_SECONDS,
) -> Measured:
    run.observed(Watch())
    half = (max(1, (steps + 1) // 2), seconds / 2)
    passes = list(_whole(run, gpu, *half))
    launches, shares = _launches(run, gpu, steps, beside_seconds, beside)
    pause = min(MOST_PAUSE_MS, 0.5 + 2 * max(max(times) for times in launches))
    kernels = _rounds(run, KernelWatch(gpu, pause), steps, 1)
    gpu.wait()
    passes += _whole(run, gpu, *half)
    found = {key: quartiles([times[key] for times in passes]) for key in passes[0]}
    blocks: Dict[str, List[float]] = {}
    for name, launch, kernel in zip(("forward", "backward"), launches, kernels):
        device, host = f"{name}_ms", f"{name}_launch_ms"
        blocks[device], blocks[host] = reconcile(kernel, launch, found[device][0], found[host][0])
    return Measured(blocks, found, len(passes), shares)


def reconcile(
    kernels: Sequence[float], launches: Sequence[float], whole: float, queued: float
) -> Tuple[List[float], List[float]]:
    """Makes block times agree with those of whole passes without observers.

    Args:
        kernels, launches: ms of the device and of the host for each block, observed.
        whole: ms of a whole pass on the device.
        queued: ms until the host had queued a whole pass. It is too long if the host had to wait
            for room in the queue, and then launches as observed are shorter.

    Returns:
        kernels and launches. The longer of both, summed over blocks, is `whole`, or at most 3 %
        more (the host queues a part of its launches while the device is busy with blocks before),
        as far as these limits allow: Launches are first scaled down to `queued`, because observers
        lengthen them. If the sum is too long, launches are scaled by 0.5 or more, then kernels by
        0.8 or more. If it is too short, the longer in all is scaled up: kernels by 1.25 at most, or
        launches by 2.
    """
    kernels = list(kernels)
    launches = scaled(launches, min(queued, sum(launches)))
    if sum(map(max, kernels, launches)) > (1 + AHEAD) * whole:
        launches = _fitted(launches, kernels, (1 + AHEAD) * whole, 0.5, 1)
        kernels = _fitted(kernels, launches, (1 + AHEAD) * whole, 0.8, 1)
    elif sum(kernels) >= sum(launches):
        kernels = _fitted(kernels, launches, whole, 1, 1.25)
    else:
        launches = _fitted(launches, kernels, whole, 1, 2)
    return kernels, launches


def _fitted(
    times: Sequence[float], others: Sequence[float], whole: float, low: float, high: float
) -> List[float]:
    """`times` scaled by the largest factor from `low` to `high` with which max(time, other) adds up
    to at most `whole`; by `low` if there is none."""
    for _ in range(50):
        middle = (low + high) / 2
        if sum(max(middle * a, b) for a, b in zip(times, others)) <= whole:
            low = middle
        else:
            high = middle
    return [low * time for time in times]
