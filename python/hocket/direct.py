# SPDX-License-Identifier: Apache-2.0
"""Looks at many parameters by one call of libhocket_walk (python/native/walk.h).

Reading ``p.grad`` and ``grad.data_ptr()`` from Python takes about a microsecond a tensor, which is
several per cent of the iteration of a model that has tens of thousands of small tensors:
bench/training/walk.py measures both. libhocket_walk walks over the tensors' C++ objects instead. It
calls torch's own functions, which are looked up here by name: most of them belong to torch's stable
C interface. Where one is missing, or a trial gives another answer than Python, there is no Direct,
and Python does all.
"""

from __future__ import annotations

import array
import ctypes
import functools
import pathlib
import weakref
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

import torch
from torch import Tensor

from . import _abi

# Function: the library that has it, and its name there. The first three have C++ names.
FUNCTIONS = {
    "grad": ("c10", "_ZNK3c1010TensorImpl4gradEv"),
    "requires_grad": ("c10", "_ZNK3c1010TensorImpl13requires_gradEv"),
    "version": ("torch_cpu", "_ZNK2at10TensorBase8_versionEv"),
    "data_ptr": ("torch_cpu", "aoti_torch_get_data_ptr"),
    "dtype": ("torch_cpu", "aoti_torch_get_dtype"),
    "dim": ("torch_cpu", "aoti_torch_get_dim"),
    "sizes": ("torch_cpu", "aoti_torch_get_sizes"),
    "strides": ("torch_cpu", "aoti_torch_get_strides"),
}


class Torch(ctypes.Structure):
    """hk_torch: addresses of torch's functions."""

    _fields_ = [(name, ctypes.c_void_p) for name in (*FUNCTIONS, "undefined")]


_SET = (ctypes.POINTER(Torch), ctypes.c_void_p, ctypes.c_size_t)
PROTOTYPES: Dict[str, Tuple[Any, Tuple[Any, ...]]] = {
    "hk_walk_unchanged": (ctypes.c_int32, (*_SET, ctypes.c_void_p, ctypes.c_void_p)),
    "hk_walk_versions": (None, (*_SET, ctypes.c_void_p)),
    "hk_walk_gradients": (ctypes.c_int64, (*_SET, *[ctypes.c_void_p] * 7)),
}


def _walk() -> ctypes.PyDLL:
    """libhocket_walk, which lies beside libhocket. Tensors must not change during its calls, so
    they hold the GIL."""
    beside = pathlib.Path(_abi.library()._name).with_name("libhocket_walk.so")
    loaded = ctypes.PyDLL(str(beside))
    for name, (result, arguments) in PROTOTYPES.items():
        function = getattr(loaded, name)
        function.restype, function.argtypes = result, list(arguments)
    return loaded


class Functions:
    """Torch's functions.

    Attributes:
        walk: libhocket_walk.
        table: hk_torch.
        dtypes: torch's number of each type of gradients.
    """

    def __init__(self) -> None:
        self.walk = _walk()
        folder = pathlib.Path(torch.__file__).parent / "lib"
        libraries = {
            name: ctypes.CDLL(str(folder / f"lib{name}.so")) for name in ("c10", "torch_cpu")
        }
        found = {
            key: ctypes.cast(getattr(libraries[library], name), ctypes.c_void_p).value or 0
            for key, (library, name) in FUNCTIONS.items()
        }
        cpu = libraries["torch_cpu"]
        self.delete: Callable[[int], int] = cpu.aoti_torch_delete_tensor_object
        cpu.aoti_torch_delete_tensor_object.argtypes = [ctypes.c_void_p]
        self.dtypes = {
            torch.bfloat16: int(cpu.aoti_torch_dtype_bfloat16()),
            torch.float16: int(cpu.aoti_torch_dtype_float16()),
            torch.float32: int(cpu.aoti_torch_dtype_float32()),
        }
        grad = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)(found["grad"])
        without = torch.zeros(1, requires_grad=True)
        undefined = ctypes.c_void_p.from_address(grad(without._cdata)).value
        self.table = Torch(undefined=undefined, **found)

    def hold(self, tensors: Sequence[Tensor]) -> List[int]:
        """An at::Tensor for each, which keeps its TensorImpl alive. To be deleted by `delete`."""
        capsules = torch._C._aoti.unsafe_alloc_void_ptrs_from_tensors(list(tensors))
        pointer = ctypes.pythonapi.PyCapsule_GetPointer
        pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
        return [pointer(capsule, None) for capsule in capsules]


@functools.lru_cache(maxsize=None)
def functions() -> Optional[Functions]:
    """Torch's functions; None if they cannot be used. They are tried on tensors whose state is
    known: with a gradient, without one, with one that is not contiguous."""
    try:
        found = Functions()
        return found if _answers(found) else None
    except (AttributeError, OSError, TypeError, ValueError):
        return None


def _answers(found: Functions) -> bool:
    """Whether the functions give the right answers."""
    params = [torch.zeros(3, 5, requires_grad=True) for _ in range(3)]
    params[0].grad = torch.ones(3, 5)
    params[1].grad = torch.ones(5, 3).t()
    with torch.no_grad():
        params[2].add_(1).add_(1)
    types = [torch.float32] * 3
    direct = Direct(found, params[:3], range(3), types)
    plain = Direct(found, [params[0], params[2]], (4, 7), types)
    handled = Direct(found, [params[0]], (0,), types)
    handled.handles[0] = params[0].grad._cdata
    params.append(torch.zeros(1, requires_grad=True))
    params[3].grad = torch.ones(1, requires_grad=True)
    graph = Direct(found, params[3:], (0,), types)
    other = Direct(found, [params[0]], (0,), [torch.bfloat16])
    versions = direct.unchanged() and list(direct.versions) == [p._version for p in params[:3]]
    params[2].data = torch.zeros(3, 5)
    return (
        versions
        and not direct.unchanged()
        and direct.gradients() is None
        and other.gradients() is None
        and graph.gradients() is None
        and handled.gradients() == 0
        and plain.gradients() == 1
        and plain.held == b"\1\0"
        and plain.pairs[:2].tolist() == [4, params[0].grad.data_ptr()]
    )


class Direct:
    """A set of parameters.

    Attributes:
        params, numbers: the parameters, and the engine's number of each.
        held: after gradients(), 1 for each that has one.
        pairs: after gradients(), a hocket_gradient array of those that have one.
        handle_of: each one's handle, if know_handles() has been called.
        handles: the impl (``_cdata``) of each one's handle, or 0. It counts as no gradient.
        versions: version of each when update() was called.
    """

    def __init__(
        self,
        found: Functions,
        params: Sequence[Tensor],
        numbers: Sequence[int],
        types: Sequence[torch.dtype],
    ) -> None:
        n = len(params)
        self._lib = found.walk
        self._torch = ctypes.byref(found.table)
        self.params, self.numbers = list(params), array.array("q", numbers)
        self.handle_of: List[Tensor] = []
        self.held = bytearray(n)
        self.pairs = array.array("q", bytes(16 * n))
        self.versions = array.array("q", bytes(8 * n))
        self._dtypes = array.array("i", [found.dtypes[dtype] for _, dtype in zip(params, types)])
        self._numel = array.array("q", [param.numel() for param in params])
        self._data = array.array("q", [param.data_ptr() for param in params])
        tensors = found.hold(params)
        weakref.finalize(self, _release, found.delete, tensors).atexit = False
        self._impls = array.array(
            "q", [ctypes.c_void_p.from_address(tensor).value or 0 for tensor in tensors]
        )
        self._few = (self._torch, _address(self._impls), n)
        self._grads, self.handles = array.array("q", bytes(8 * n)), array.array("q", bytes(8 * n))
        held = (ctypes.c_char * n).from_buffer(self.held)
        self._many: Tuple[Any, ...] = (
            _address(self.numbers),
            _address(self._dtypes),
            _address(self._numel),
            _address(self.handles),
            _address(self._grads),
            _address(self.pairs),
            ctypes.addressof(held),
        )
        self.update()

    def know_handles(self, handles: List[Tensor]) -> None:
        """Says which handles stand for gradients that have been handed over."""
        self.handle_of = handles
        for place, handle in enumerate(handles):
            self.handles[place] = handle._cdata

    def unchanged(self) -> bool:
        """Whether no parameter has moved, or been written since update()."""
        return bool(
            self._lib.hk_walk_unchanged(
                *self._few, _address(self._data), _address(self.versions)
            )
        )

    def update(self) -> None:
        """Reads the versions."""
        self._lib.hk_walk_versions(*self._few, _address(self.versions))

    def gradients(self) -> Optional[int]:
        """Finds the gradients. Returns how many there are; None if one cannot be handed over as it
        is."""
        found: int = self._lib.hk_walk_gradients(*self._few, *self._many)
        return found if found >= 0 else None


def _release(delete: Callable[[int], int], tensors: List[int]) -> None:
    for tensor in tensors:
        delete(tensor)


def _address(values: "array.array[int]") -> int:
    return values.buffer_info()[0]
