# SPDX-License-Identifier: Apache-2.0
"""Saves state to a pair of files and loads it: PATH, which the engine writes, and PATH.json with the
param groups.

PATH.json names the PATH that it belongs to: its length and its last bytes, the hash of all values.
Both files are written as PATH.new and PATH.json.new; then the first is renamed, then the second. A
process that dies before the first rename leaves the old pair; one that dies before the second
leaves the new PATH with the old PATH.json and the new PATH.json.new, which load() finds.
"""

from __future__ import annotations

import json
import logging
import os
import threading
import warnings
from collections import defaultdict
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, Callable, Dict, Mapping, Optional

from torch import Tensor

from .binding import increment_versions
from .errors import MACHINE, NO, HocketError, HocketUsageError

if TYPE_CHECKING:
    from ._abi import Snapshot
    from .optim import AdamW

log = logging.getLogger("hocket")

TRAILER = 16
"""Last bytes of the engine's file: hash of the hashes of all values, and a constant."""


def save(opt: "AdamW", path: str, wait: bool) -> None:
    """See AdamW.save."""
    finish(opt)
    with opt._lock:  # no step() of another thread in between
        opt.bind()
        engine = opt.binding().engine
        if engine.quiet():  # else state is as the failure left it, and weights may be of either step
            opt.synchronize()
            opt.follow_weights()
        if wait:
            write_pair(engine.save, path, _groups(opt))
            return
        finish(opt)  # another thread may have begun to save
        path = os.path.abspath(path)  # the program may change its folder meanwhile
        opt._writer = Writer(engine.snapshot(), path, _groups(opt))
        opt._writer.start()


def finish(opt: "AdamW") -> None:
    """See AdamW.finish_save."""
    writer = opt._writer
    if writer is None:
        return
    writer.join()
    opt._writer = None
    if writer.error is not None:
        raise HocketError(
            f"the state of step {writer.step} was not written to {writer.path}: {writer.error}",
            MACHINE,
        ) from writer.error


def check(opt: "AdamW") -> None:
    """Refuses a step from state that has not been loaded, or not as a whole, and after a save that
    has failed in its thread."""
    if opt._broken_load is not None:
        raise HocketUsageError(
            f"loading {opt._broken_load} was interrupted, so that state and weights may be of "
            "different steps: load it again"
        )
    if opt._writer is not None and opt._writer.over():
        finish(opt)
    if opt._awaited is not None:
        raise HocketUsageError(
            f"the state of step {opt._awaited} lies in a file of its own, which has not been "
            "loaded: add hocket.TrainerCallback to the Trainer's callbacks, or call "
            "opt.load(path)"
        )


class Writer:
    """Writes a snapshot in a thread of its own.

    Attributes:
        path: the file.
        step: the step whose state is written.
        error: why it could not be written; None: it was, or is being written.
    """

    def __init__(self, snapshot: "Snapshot", path: str, groups: Dict[str, Any]) -> None:
        self.path, self.step = path, groups["step"]
        self.error: Optional[BaseException] = None
        # Not a daemon: at its end Python waits for the file.
        self._thread = threading.Thread(
            target=self._write, args=(snapshot, groups), name="hocket save"
        )

    def start(self) -> None:
        """Begins to write."""
        self._thread.start()

    def join(self) -> None:
        """Returns when the file has been written, or could not be."""
        if self._thread.ident is not None:  # else Ctrl-C came before start()
            self._thread.join()

    def over(self) -> bool:
        """Whether join() would return at once."""
        return not self._thread.is_alive()

    def _write(self, snapshot: "Snapshot", groups: Dict[str, Any]) -> None:
        try:
            write_pair(snapshot.save, self.path, groups)
        except BaseException as error:
            self.error = error
            log.error("the state of step %d was not written to %s: %s", self.step, self.path, error)
        finally:
            snapshot.free()


def _groups(opt: "AdamW") -> Dict[str, Any]:
    """What PATH.json holds of the optimizer."""
    return {
        "schema": "hocket.groups/1",
        "step": opt.binding().engine.step_number(),
        "groups": [_numbers(group) for group in opt.param_groups],
        "tensors": opt.binding().names,
    }


def _numbers(group: Mapping[str, Any]) -> Dict[str, Any]:
    """The options of a param group that JSON can hold; its parameters are left out."""
    out: Dict[str, Any] = {}
    for key, value in group.items():
        if key in ("params", "param_names"):
            continue
        if isinstance(value, Tensor):
            value = float(value)
        if isinstance(value, Integral) and not isinstance(value, bool):
            value = int(value)  # numpy's, too
        elif isinstance(value, Real) and not isinstance(value, bool):
            value = float(value)
        if isinstance(value, (tuple, list)):
            if not all(isinstance(item, (Real, Tensor)) for item in value):
                continue
            value = [float(item) for item in value]
        if value is None or isinstance(value, (bool, int, float, str, list)):
            out[key] = value
    return out


def write_pair(write: Callable[[str], None], path: str, groups: Dict[str, Any]) -> None:
    """Writes PATH by `write`, which leaves a complete, synced file or raises, and PATH.json."""
    finals = [os.path.realpath(path), os.path.realpath(path + ".json")]
    state, text = (final + ".new" for final in finals)
    try:
        write(state)
        groups["state"] = identity(state)
        with open(text, "w", encoding="utf-8") as file:
            json.dump(groups, file, indent=1)
            file.flush()
            os.fsync(file.fileno())
        os.replace(state, finals[0])
        os.replace(text, finals[1])
        _sync_folder(os.path.dirname(finals[0]))
    except BaseException as error:
        if os.path.exists(state):  # else PATH is the new one, and PATH.json.new belongs to it
            os.remove(state)
            if os.path.exists(text):
                os.remove(text)
        if isinstance(error, OSError):
            raise HocketError(f"cannot write {path} and {path}.json: {error}", MACHINE) from error
        raise


def _sync_folder(folder: str) -> None:
    number = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


def identity(path: str) -> Dict[str, Any]:
    """Tells a file of state from others."""
    with open(path, "rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - TRAILER))
        return {"bytes": size, "end": file.read().hex()}


def load(opt: "AdamW", path: str) -> None:
    """See AdamW.load."""
    finish(opt)
    with opt._lock:
        _load(opt, path, _sidecar(path))


def _load(opt: "AdamW", path: str, sidecar: Dict[str, Any]) -> None:
    opt._pending = {}  # the file counts
    if opt._attachment is not None:
        opt._attachment.expect_order(sidecar.get("tensors", []))
    opt.bind()
    opt.synchronize()
    opt.handover().discard_all()
    binding = opt.binding()
    opt._broken_load = path
    try:
        binding.engine.load(path)
    except HocketError:
        opt._broken_load = None  # nothing has been changed, or the engine has failed
        raise
    binding.engine.weights_from_masters(-1, binding.stream())
    increment_versions(binding.params)
    binding.read_versions()
    binding.loaded.clear()
    opt.state = defaultdict(dict)
    opt.steps().show(opt.state, {})
    opt._awaited = None
    _load_groups_of(opt, sidecar, path + ".json", binding.engine.step_number())
    binding.forget_groups()
    opt._broken_load = None


def _sidecar(path: str) -> Dict[str, Any]:
    """The content of PATH.json, or of PATH.json.new if that belongs to PATH instead; {}: there is
    none. HocketError if it belongs to another file."""
    try:
        belongs = identity(path)
    except OSError:
        return {}  # the engine says why
    found = _read_sidecar(path + ".json")
    if found is not None and found.get("state", belongs) == belongs:
        return found
    new = _read_sidecar(path + ".json.new")
    if new is not None and new.get("state") == belongs:
        return new
    if found is None:
        return {}
    raise HocketError(
        f"{path}.json does not belong to {path}: it was written with another state, of step "
        f"{found.get('step')}; use another checkpoint, or remove {path}.json to load the state "
        "without its learning rates and other options",
        NO,
    )


def _read_sidecar(path: str) -> Optional[Dict[str, Any]]:
    try:
        with open(path, encoding="utf-8") as file:
            sidecar: Dict[str, Any] = json.load(file)
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise HocketError(
            f"{path} is damaged ({error}): use another checkpoint, or remove this file to load the "
            "state without its learning rates and other options",
            NO,
        ) from error
    if not isinstance(sidecar, dict) or sidecar.get("schema") != "hocket.groups/1":
        raise HocketError(f"{path} is not what hocket.AdamW.save writes beside a state", NO)
    return sidecar


def _load_groups_of(opt: "AdamW", sidecar: Dict[str, Any], path: str, step: int) -> None:
    if not sidecar:
        return
    if sidecar["step"] != step or len(sidecar["groups"]) != len(opt.param_groups):
        warnings.warn(
            f"hocket: {path} is of step {sidecar['step']}, the state of step {step}: learning "
            "rates and other options stay as they are"
        )
        return
    for group, saved in zip(opt.param_groups, sidecar["groups"]):
        for key, value in saved.items():
            if isinstance(group.get(key), Tensor):
                group[key].fill_(value)
            else:
                group[key] = tuple(value) if key == "betas" else value
