# SPDX-License-Identifier: Apache-2.0
"""libhocket through ctypes: engine/hocket.h, declaration by declaration, and one class over it.

ctypes releases the GIL during every call. Calls that may block for long are made in slices of
100 ms, so that signals (Ctrl-C) are handled between them.
"""

from __future__ import annotations

import array
import ctypes
import ctypes.util
import json
import os
import pathlib
import weakref
from ctypes import POINTER, byref, c_char_p, c_double, c_int, c_int32, c_int64, c_size_t, c_uint64, c_void_p
from typing import Any, Dict, NamedTuple, Optional, Sequence, Tuple

from .errors import MACHINE, USAGE, HocketError

ABI = 10
MESSAGE = 1024
AGAIN = 4
SQUARES = 21
SLICE_MS = 100

BF16, FP16, FP32 = range(3)
OVERLAP_PLAN, OVERLAP_NONE, OVERLAP_FORWARD, OVERLAP_BOTH = range(4)
P, M, V = range(3)
FORWARD, BACKWARD, ALL_GATHER, REDUCE_SCATTER = range(4)

OVERLAPS: Dict[str, int] = {
    "none": OVERLAP_NONE,
    "forward": OVERLAP_FORWARD,
    "both": OVERLAP_BOTH,
}
CLIPS: Dict[str, int] = {"norm": 0, "block": 1}
STATES = ("fp32", "split", "bf16", "bf16+split", "8bit", "8bit+split")


class Group(ctypes.Structure):
    """hocket_group: hyperparameters, as in torch.optim.AdamW."""

    _fields_ = [(name, c_double) for name in ("lr", "beta1", "beta2", "eps", "weight_decay")]


class Tensor(ctypes.Structure):
    """hocket_tensor: one parameter tensor."""

    _fields_ = [
        ("name", c_char_p),
        ("numel", c_int64),
        ("block", c_int32),
        ("group", c_int32),
        ("weight_type", c_int32),
        ("grad_type", c_int32),
        ("weight", c_void_p),
    ]


class Options(ctypes.Structure):
    """hocket_options: zero-initialised is the default."""

    _fields_ = [
        ("backend", c_char_p),
        ("device", c_int32),
        ("overlap", c_int32),
        ("cpu_threads", c_int32),
        ("pin_threads", c_int32),
        ("first_core", c_int32),
        ("host_memory", c_int64),
        ("gpu_memory", c_int64),
        ("clip", c_int32),
        ("state", c_char_p),
        ("seed", c_uint64),
    ]


class Gradient(ctypes.Structure):
    """hocket_gradient: number of the tensor, address of its gradient."""

    _fields_ = [("tensor", c_int64), ("data", c_void_p)]


class State(ctypes.Structure):
    """hocket_state: state that the caller keeps; addresses of p, m, v and the gradient."""

    _fields_ = [
        ("numel", c_int64),
        ("grad_type", c_int32),
        ("p", c_void_p),
        ("m", c_void_p),
        ("v", c_void_p),
        ("gradient", c_void_p),
    ]


class StepOptions(ctypes.Structure):
    """hocket_step_options."""

    _fields_ = [
        ("max_norm", c_double),
        ("loss_scale", c_double),
        ("sum_of_squares", c_double),
        ("wait", c_int32),
    ]


class StepInfo(ctypes.Structure):
    """hocket_step_info."""

    _fields_ = [
        ("step", c_int64),
        ("skipped", c_int32),
        ("nonfinite", c_int64),
        ("tensors", c_int64),
        ("grad_norm", c_double),
        ("grad_scale", c_double),
        ("ahead", c_int64),
    ]


class StepResult(NamedTuple):
    """What a step did; the fields of hocket_step_info."""

    step: int
    skipped: bool
    nonfinite: int
    tensors: int
    grad_norm: float
    grad_scale: float
    ahead: int


_ENGINE = _BUSY = _SNAPSHOT = c_void_p
# Name: (result, arguments). A result of c_int is a status; the last argument is then the message.
PROTOTYPES: Dict[str, Tuple[Any, Tuple[Any, ...]]] = {
    "hocket_create": (
        c_int,
        (
            c_char_p,
            POINTER(Tensor),
            c_size_t,
            POINTER(Group),
            c_size_t,
            POINTER(Options),
            POINTER(c_void_p),
            c_char_p,
        ),
    ),
    "hocket_destroy": (None, (_ENGINE,)),
    "hocket_version": (c_char_p, ()),
    "hocket_host_memory": (c_int64, ()),
    "hocket_abi": (c_int32, ()),
    "hocket_set_weight": (c_int, (_ENGINE, c_size_t, c_void_p, c_char_p)),
    "hocket_masters": (c_int, (_ENGINE, c_int64, c_void_p, c_char_p)),
    "hocket_wait_weights": (c_int, (_ENGINE, c_int32, c_void_p, c_int32, c_char_p)),
    "hocket_drain": (c_int, (_ENGINE, c_int32, c_char_p)),
    "hocket_gpu_bytes": (c_int64, (_ENGINE,)),
    "hocket_release_gpu": (c_int, (_ENGINE, c_char_p)),
    "hocket_gradients": (c_int, (_ENGINE, c_void_p, c_size_t, c_void_p, c_char_p)),
    "hocket_flush": (c_int, (_ENGINE, c_char_p)),
    "hocket_discard": (c_int, (_ENGINE, c_int64, c_char_p)),
    "hocket_expect": (c_int, (_ENGINE, c_int32, c_char_p)),
    "hocket_scale": (c_int, (_ENGINE, c_double, c_char_p)),
    "hocket_sum_of_squares": (
        c_int,
        (_ENGINE, c_int64, POINTER(c_double), POINTER(c_int64), c_char_p),
    ),
    "hocket_squares": (c_int, (_ENGINE, c_void_p, c_void_p, c_char_p)),
    "hocket_squares_value": (c_int, (c_void_p, POINTER(c_double), POINTER(c_int64), c_char_p)),
    "hocket_held": (c_int, (_ENGINE, c_void_p, c_char_p)),
    "hocket_read_gradient": (c_int, (_ENGINE, c_size_t, c_void_p, c_char_p)),
    "hocket_step": (c_int, (_ENGINE, POINTER(StepOptions), POINTER(StepInfo), c_void_p, c_char_p)),
    "hocket_set_group": (c_int, (_ENGINE, c_size_t, POINTER(Group), c_char_p)),
    "hocket_step_number": (c_int64, (_ENGINE,)),
    "hocket_write": (c_int, (_ENGINE, c_int, c_size_t, c_int64, c_int64, c_void_p, c_char_p)),
    "hocket_read": (c_int, (_ENGINE, c_int, c_size_t, c_int64, c_int64, c_void_p, c_char_p)),
    "hocket_weights_from_masters": (c_int, (_ENGINE, c_int64, c_void_p, c_char_p)),
    "hocket_get_tensor_step": (c_int, (_ENGINE, c_size_t, POINTER(c_int64), c_char_p)),
    "hocket_set_tensor_step": (c_int, (_ENGINE, c_size_t, c_int64, c_char_p)),
    "hocket_save": (c_int, (_ENGINE, c_char_p, c_char_p)),
    "hocket_snapshot_take": (c_int, (_ENGINE, POINTER(c_void_p), c_char_p)),
    "hocket_snapshot_save": (c_int, (_SNAPSHOT, c_char_p, c_char_p)),
    "hocket_snapshot_free": (None, (_SNAPSHOT,)),
    "hocket_load": (c_int, (_ENGINE, c_char_p, c_char_p)),
    "hocket_checksum": (c_int, (_ENGINE, c_char_p, c_char_p)),
    "hocket_adamw": (c_int, (POINTER(Group), c_int64, c_int32, POINTER(State), c_char_p)),
    "hocket_report": (c_int, (_ENGINE, POINTER(c_void_p), c_char_p)),
    "hocket_mark": (c_int, (_ENGINE, c_int32, c_int32, c_int32, c_void_p, c_char_p)),
    "hocket_record": (c_int, (_ENGINE, c_int32, c_char_p)),
    "hocket_timeline": (c_int, (_ENGINE, POINTER(c_void_p), c_char_p)),
    "hocket_free": (None, (c_void_p,)),
    "hocket_busy_start": (c_int, (c_int32, c_int64, POINTER(c_void_p), c_char_p)),
    "hocket_busy_update": (c_int, (_BUSY, c_int32, c_char_p)),
    "hocket_busy_threads": (c_int32, (_BUSY,)),
    "hocket_busy_updated": (c_int64, (_BUSY,)),
    "hocket_busy_stop": (None, (_BUSY,)),
}
_library: Optional[ctypes.CDLL] = None


def candidates() -> Sequence[str]:
    """Where the library is looked for, in order: $HOCKET_LIBRARY alone, if that is set; else
    beside this package, and the system's path."""
    named = os.environ.get("HOCKET_LIBRARY")
    if named:
        return [named]
    here = pathlib.Path(__file__).resolve().parent
    found = [str(path) for path in sorted(here.glob("lib*/libhocket.so*"))]
    system = ctypes.util.find_library("hocket")
    return found + ([system] if system else []) + [f"libhocket.so.{ABI}", "libhocket.so"]


def library() -> ctypes.CDLL:
    """libhocket, loaded once. HocketError (3) where it is missing, or of another ABI."""
    global _library
    if _library is None:
        _library = _load()
    return _library


def _load() -> ctypes.CDLL:
    reasons = []
    for name in candidates():
        try:
            loaded = ctypes.CDLL(name)
        except OSError as error:
            reasons.append(str(error))
            continue
        _declare(loaded, name)
        return loaded
    raise HocketError(
        "libhocket was not found: install the package (pip install .), or set HOCKET_LIBRARY to "
        f"the path of libhocket.so ({'; '.join(reasons)})",
        MACHINE,
    )


def _declare(loaded: ctypes.CDLL, name: str) -> None:
    try:
        loaded.hocket_abi.restype, loaded.hocket_abi.argtypes = PROTOTYPES["hocket_abi"]
        found = loaded.hocket_abi()
    except AttributeError:
        found = 1  # the first had no such call
    if found != ABI:
        raise HocketError(
            f"{name} has ABI {found}, but this package needs {ABI}: install library and package "
            "of the same version",
            MACHINE,
        )
    for function, (result, arguments) in PROTOTYPES.items():
        entry = getattr(loaded, function, None)
        if entry is None:
            raise HocketError(
                f"{name} lacks {function}: install library and package of the same version", MACHINE
            )
        entry.restype, entry.argtypes = result, list(arguments)


def version() -> str:
    """The library's version."""
    found: bytes = library().hocket_version()
    return found.decode()


def host_memory() -> int:
    """Bytes of host memory that an engine made now should take at most, so that 1/16 of what is
    available is left to the framework."""
    found: int = library().hocket_host_memory()
    return found


def gradient_list(tensors: Sequence[int], addresses: Sequence[int]) -> "array.array[int]":
    """A hocket_gradient array: number, address, number, address ..."""
    pairs = array.array("q", bytes(16 * len(tensors)))
    pairs[0::2] = array.array("q", tensors)
    pairs[1::2] = array.array("q", addresses)
    return pairs


def squares_value(words: Sequence[int]) -> Tuple[float, int]:
    """Sum of squares that words (or sums of words) of Engine.squares stand for, rounded once, and
    the number of values that are not finite."""
    table, total, nonfinite = array.array("q", words), c_double(), c_int64()
    call("hocket_squares_value", table.buffer_info()[0], byref(total), byref(nonfinite))
    return total.value, nonfinite.value


def call(name: str, *arguments: Any) -> int:
    """Calls a function whose last argument is the message. Returns 0 or AGAIN; raises HocketError
    with the message for any other status."""
    message = ctypes.create_string_buffer(MESSAGE)
    status: int = getattr(library(), name)(*arguments, message)
    if status and status != AGAIN:
        raise HocketError(message.value.decode(errors="replace"), status)
    return status


class Snapshot:
    """A copy of an engine's state, in memory of its own. Any thread may save it.

    Args:
        engine: the engine's handle.
    """

    def __init__(self, engine: int) -> None:
        handle = c_void_p()
        # Before the call, because Ctrl-C during it raises as soon as it has returned.
        self.free = weakref.finalize(self, _free_snapshot, handle)
        self._handle = handle
        call("hocket_snapshot_take", engine, byref(handle))

    def save(self, path: str) -> None:
        """Writes the file that Engine.save would have written. HocketError."""
        call("hocket_snapshot_save", self._handle, os.fsencode(path))


def _free_snapshot(handle: c_void_p) -> None:
    if _library is not None:
        _library.hocket_snapshot_free(handle)


def _destroy(handle: c_void_p, pid: int) -> None:
    if handle.value and os.getpid() == pid and _library is not None:  # a forked child has no engine
        _library.hocket_destroy(handle)


class Engine:
    """One hocket_engine. Methods raise HocketError with the library's sentence and code.

    ``stream`` is a cudaStream_t as an integer (0: the legacy default stream). State goes to and
    from host addresses. Any thread may call; calls are carried out one after the other, except
    that wait_weights and drain wait beside others.
    """

    def __init__(
        self,
        plan: Optional[str],
        tensors: "ctypes.Array[Tensor]",
        groups: "ctypes.Array[Group]",
        options: Options,
        weights: Sequence[Any],
    ) -> None:
        # An update writes them until the engine has ended, which is before this object lets go.
        self._weights = weights
        self._lib = library()
        self._pid = os.getpid()
        self._handle: Optional[int] = None
        self.failed = False  # a call has reported a failure of the machine
        self._info = StepInfo()
        handle = c_void_p()
        # Before the call, because Ctrl-C during it raises as soon as it has returned.
        self._finalizer = weakref.finalize(self, _destroy, handle, self._pid)
        try:
            call(
                "hocket_create",
                plan.encode() if plan is not None else None,
                tensors,
                len(tensors),
                groups,
                len(groups),
                byref(options),
                byref(handle),
            )
            self._handle = handle.value
        except BaseException:
            self._finalizer()
            raise

    def close(self) -> None:
        """Drains and frees the engine. Later calls raise."""
        self._finalizer()
        self._handle = None

    def _engine(self) -> int:
        # The collector ends an engine before it calls __del__ of objects that still use it.
        if self._handle is None or not self._finalizer.alive:
            raise HocketError("this optimizer's engine has been closed", USAGE)
        if os.getpid() != self._pid:
            raise HocketError(
                "a forked process cannot use its parent's optimizer: create one in the child, or "
                "start it with the spawn method",
                USAGE,
            )
        return self._handle

    def _call(self, name: str, *arguments: Any) -> int:
        engine = self._engine()
        try:
            return call(name, engine, *arguments)
        except HocketError as error:
            self.failed = self.failed or error.code == MACHINE
            raise

    # -- Weights ------------------------------------------------------------------------------

    def masters(self, tensor: int, stream: int) -> None:
        """fp32 masters from the weights of one tensor (-1: of all)."""
        self._call("hocket_masters", tensor, stream)

    def wait_weights(self, block: int, stream: int) -> None:
        """Makes the stream wait for a block's new weights (-1: all). Blocks until their upload has
        been queued; signals are handled meanwhile."""
        while self._call("hocket_wait_weights", block, stream, SLICE_MS) == AGAIN:
            pass

    def drain(self) -> None:
        """Returns when the last step is complete. Signals are handled meanwhile."""
        while self._call("hocket_drain", SLICE_MS) == AGAIN:
            pass

    def gpu_bytes(self) -> int:
        """Bytes of GPU memory that the engine holds now."""
        found: int = self._lib.hocket_gpu_bytes(self._engine())
        return found

    def release_gpu(self) -> None:
        """Gives back GPU memory except resident state, until the next gradient."""
        self._call("hocket_release_gpu")

    def quiet(self) -> bool:
        """drain(), but returns False where it would raise for a failure that an earlier call has
        reported; else True."""
        reported = self.failed
        try:
            self.drain()
        except HocketError:
            if not reported:
                raise
            return False
        return True

    def weights_from_masters(self, tensor: int, stream: int) -> None:
        """Writes rounded masters to the weights of one tensor (-1: of all)."""
        self._call("hocket_weights_from_masters", tensor, stream)

    # -- Gradients ----------------------------------------------------------------------------

    def gradients(self, tensors: Sequence[int], addresses: Sequence[int], stream: int) -> None:
        """Hands over gradients that lie, or will lie, at these addresses."""
        self.gradient_list(gradient_list(tensors, addresses), len(tensors), stream)

    def gradient_list(self, pairs: "array.array[int]", n: int, stream: int) -> None:
        """Hands over the first n gradients of a list."""
        self._call("hocket_gradients", pairs.buffer_info()[0], n, stream)

    def flush(self) -> None:
        self._call("hocket_flush")

    def discard(self, tensor: int = -1) -> None:
        """Forgets one tensor's gradient since the last step (-1: all)."""
        self._call("hocket_discard", tensor)

    def held(self, address: int) -> None:
        """Writes one byte a tensor to an address: 1 if the engine holds a gradient of it."""
        self._call("hocket_held", address)

    def expect(self, gradients: int) -> None:
        """How many gradients each tensor will have in a step (0: as in the step before)."""
        self._call("hocket_expect", gradients)

    def scale(self, factor: float) -> None:
        """Multiplies all gradients in the step to come; the last call counts."""
        self._call("hocket_scale", factor)

    def sum_of_squares(self, tensor: int = -1) -> Tuple[float, int]:
        """Exact sum of squares of the finite values of one tensor's gradient (-1: of all), before
        scale(), and how many values are not finite."""
        total, nonfinite = c_double(), c_int64()
        self._call("hocket_sum_of_squares", tensor, byref(total), byref(nonfinite))
        return total.value, nonfinite.value

    def squares(self, counts: Optional[bytes]) -> "array.array[int]":
        """The words of the sum of squares of all gradients, before scale(). counts: one byte a
        tensor, 0 leaves it out; None: all count. Words of several ranks may be added."""
        words = array.array("q", bytes(8 * SQUARES))
        self._call("hocket_squares", counts, words.buffer_info()[0])
        return words

    def read_gradient(self, tensor: int, address: int) -> None:
        """One tensor's gradient so far, in its own type, to a host address."""
        self._call("hocket_read_gradient", tensor, address)

    # -- Steps --------------------------------------------------------------------------------

    def step(
        self, max_norm: float, loss_scale: float, stream: int, sum_of_squares: float = 0.0
    ) -> None:
        """One optimizer step; max_norm 0: no clipping; sum_of_squares: over all ranks, 0: of this
        engine's own gradients. last_step() says what it did."""
        options = StepOptions(max_norm, loss_scale, sum_of_squares)
        self._call("hocket_step", byref(options), byref(self._info), stream)

    def last_step(self) -> Optional[StepResult]:
        """What the last step with gradients did, or None. The library has written it, so that it
        is there even if the program was interrupted when step() returned."""
        info = self._info
        if info.tensors == 0:
            return None
        return StepResult(
            info.step,
            bool(info.skipped),
            info.nonfinite,
            info.tensors,
            info.grad_norm,
            info.grad_scale,
            info.ahead,
        )

    def set_group(self, number: int, group: Group) -> None:
        self._call("hocket_set_group", number, byref(group))

    def step_number(self) -> int:
        step: int = self._lib.hocket_step_number(self._engine())
        return step

    # -- State --------------------------------------------------------------------------------

    def write(self, part: int, tensor: int, offset: int, n: int, address: int) -> None:
        self._call("hocket_write", part, tensor, offset, n, address)

    def read(self, part: int, tensor: int, offset: int, n: int, address: int) -> None:
        self._call("hocket_read", part, tensor, offset, n, address)

    def tensor_step(self, tensor: int) -> int:
        step = c_int64()
        self._call("hocket_get_tensor_step", tensor, byref(step))
        return step.value

    def set_tensor_step(self, tensor: int, step: int) -> None:
        self._call("hocket_set_tensor_step", tensor, step)

    def save(self, path: str) -> None:
        self._call("hocket_save", os.fsencode(path))

    def snapshot(self) -> Snapshot:
        """What save() would write, for a thread that writes it later. HocketError (3) if there is
        too little memory."""
        return Snapshot(self._engine())

    def load(self, path: str) -> None:
        self._call("hocket_load", os.fsencode(path))

    def checksum(self) -> str:
        hexadecimal = ctypes.create_string_buffer(33)
        self._call("hocket_checksum", hexadecimal)
        return hexadecimal.value.decode()

    # -- What happened ------------------------------------------------------------------------

    def report(self) -> Dict[str, Any]:
        return self._json("hocket_report")

    def timeline(self) -> Dict[str, Any]:
        return self._json("hocket_timeline")

    def _json(self, name: str) -> Dict[str, Any]:
        text = c_void_p()
        try:
            self._call(name, byref(text))
            report: Dict[str, Any] = json.loads(ctypes.string_at(text.value or 0))
            return report
        finally:
            self._lib.hocket_free(text)

    def mark(self, kind: int, block: int, end: bool, stream: int) -> None:
        self._call("hocket_mark", kind, block, int(end), stream)

    def record(self, on: bool) -> None:
        self._call("hocket_record", int(on))
