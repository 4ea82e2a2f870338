# SPDX-License-Identifier: Apache-2.0
"""plan="auto": asks the ``hocket`` program which plan is best for this model on this machine."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sysconfig
import tempfile
from typing import TYPE_CHECKING, Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

from . import _abi
from .blocks import Block
from .describe import Costs, document
from .errors import MACHINE, HocketError, HocketUsageError

if TYPE_CHECKING:
    from .attach import Attachment
    from .binding import Entry, Settings


def resolve_plan(
    settings: "Settings",
    entries: Sequence["Entry"],
    blocks: Optional[Sequence[Block]],
    attachment: Optional["Attachment"],
) -> Tuple[Optional[str], Optional[Dict[str, Any]]]:
    """The plan for hocket_create, and for "auto" the answer of the program."""
    if settings.plan != "auto":
        return settings.plan, None
    if blocks is None or attachment is None:
        raise HocketUsageError(
            'plan="auto" needs opt.attach(model): without it nothing says what the blocks are '
            "(or give the path of a plan file)"
        )
    tensors = [(entry.name, entry.param) for entry in entries]
    costs = attachment.costs(blocks)
    described = document(
        type(attachment.model).__name__, tensors, blocks, costs, settings.accumulate
    )
    with tempfile.TemporaryDirectory(prefix="hocket-") as folder:
        return _ask(described, settings, folder)


class Lending(NamedTuple):
    """What may be borrowed for new weights that wait for the norm."""

    borrows: bool
    marks_all: bool
    """The plan does not say for which weights: the engine takes all that run ahead."""
    limits: Optional[List[int]]
    """Bytes that may be borrowed once backward has left each block; None: no limit is planned."""


def lending_of(settings: "Settings", plan: Optional[str]) -> Lending:
    """What a plan (JSON text, or a path) and ``borrow`` say together."""
    none = Lending(False, False, None)
    if settings.overlap != "both" or settings.borrow is False:
        return none
    document = _document(plan)
    lent = any(subgroup.get("lent") for subgroup in document.get("subgroups", ()))
    if lent and document.get("overlap") == "both":
        return Lending(True, False, document.get("lent_bytes_after_block"))
    if settings.plan == "auto" or not settings.borrow:
        return none
    return Lending(True, True, None)


def _document(plan: Optional[str]) -> Dict[str, Any]:
    """The plan; {} for what the engine will refuse."""
    if plan is None:
        return {}
    try:
        if not plan.startswith("{"):
            with open(plan, encoding="utf-8") as file:
                plan = file.read()
        document = json.loads(plan)
    except (OSError, ValueError):
        return {}
    return document if isinstance(document, dict) else {}


def program() -> str:
    """Path of the ``hocket`` program: $HOCKET_PROGRAM, this environment's, or in PATH."""
    named = os.environ.get("HOCKET_PROGRAM")
    if named:
        return named
    installed = os.path.join(sysconfig.get_path("scripts"), "hocket")
    found = installed if os.path.exists(installed) else shutil.which("hocket")
    if found is None:
        raise HocketError(
            "the hocket program was not found: install the package with it, put it into PATH, or "
            "set HOCKET_PROGRAM",
            MACHINE,
        )
    return found


def run(arguments: Sequence[str]) -> Dict[str, Any]:
    """Runs ``hocket ARGUMENTS --json``. HocketError with its sentence if it fails."""
    command: List[str] = [program(), *arguments, "--json"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        raise HocketError(f"{command[0]} cannot be run: {error}", MACHINE) from error
    if done.returncode:
        raise HocketError(done.stderr.strip() or f"{' '.join(command)} failed", done.returncode)
    answer: Dict[str, Any] = json.loads(done.stdout)
    return answer


def machine() -> str:
    """Name of the profile to plan with: $HOCKET_MACHINE, or the last one calibrated here."""
    named = os.environ.get("HOCKET_MACHINE")
    if named:
        return named
    stored = [
        entry
        for entry in run(["machine", "list"])["machines"]
        if entry.get("made") and entry.get("from") != "ships"
    ]
    if not stored:
        raise HocketError(
            "plan=\"auto\" needs a profile of this machine: run 'hocket calibrate --name mine' "
            "once, or set HOCKET_MACHINE to a profile's name"
        )
    latest: str = max(stored, key=lambda entry: entry["made"])["name"]
    return latest


def _knows(option: str) -> bool:
    """Whether ``hocket plan`` has an option."""
    return (
        option
        in subprocess.run(
            [program(), "plan", "--help"], capture_output=True, text=True, check=False
        ).stdout
    )


def _ask(
    described: Dict[str, Any], settings: "Settings", folder: str
) -> Tuple[str, Dict[str, Any]]:
    model = os.path.join(folder, "model.json")
    out = os.path.join(folder, "plan.json")
    with open(model, "w", encoding="utf-8") as file:
        json.dump(described, file)
    arguments = ["plan", "--model", model, "--machine", machine(), "--gpus", "1", "-o", out]
    if settings.overlap != "none" and _knows("--overlap"):
        arguments += ["--overlap", settings.overlap]
        if settings.borrow and settings.overlap == "both" and _knows("--borrow"):
            arguments.append("--borrow")
    if settings.cpu_threads is not None:
        arguments += ["--cpu-threads", str(settings.cpu_threads)]
    if settings.gpu_memory:
        arguments += ["--gpu-memory", str(settings.gpu_memory)]
    room = _abi.host_memory()
    arguments += ["--host-memory", str(min(room, settings.host_memory or room))]
    answer = run(arguments)
    with open(out, encoding="utf-8") as file:
        return file.read(), answer


__all__ = ["resolve_plan", "lending_of", "Lending", "program", "run", "machine", "Costs"]
