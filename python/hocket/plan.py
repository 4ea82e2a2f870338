# SPDX-License-Identifier: Apache-2.0
"""plan="auto": asks the ``hocket`` program which plan is best for this model on this machine."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sysconfig
import tempfile
from typing import TYPE_CHECKING, Any, Dict, List, Optional, Sequence, Tuple

from . import _abi, ranks
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
    sharing: int = 1,
) -> Tuple[Optional[str], Optional[Dict[str, Any]]]:
    """The plan for hocket_create, and for "auto" the answer of the program. sharing: ranks that
    update on this host at the same time, and divide the bandwidth of its memory."""
    if settings.plan != "auto":
        return settings.plan, None
    if blocks is None or attachment is None:
        raise HocketUsageError(
            'plan="auto" needs opt.attach(model): without it nothing says what the blocks are '
            "(or give the path of a plan file)"
        )
    tensors = [(entry.name, ranks.local(entry.param)) for entry in entries]
    if attachment.shards is not None and settings.gpu_memory is None:
        settings = settings._replace(gpu_memory=0)  # what activations leave is not known
    costs = attachment.costs(blocks)
    described = document(
        type(attachment.model).__name__, tensors, blocks, costs, settings.accumulate
    )
    with tempfile.TemporaryDirectory(prefix="hocket-") as folder:
        return _ask(described, settings, sharing, folder)


def program() -> str:
    """Path of the ``hocket`` program: $HOCKET_PROGRAM, the one of the package hocket-planner, this
    environment's, or in PATH."""
    named = os.environ.get("HOCKET_PROGRAM")
    if named:
        return named
    planner = importlib.util.find_spec("hocket_planner")
    packages = planner.submodule_search_locations or () if planner is not None else ()
    for folder in [*(os.path.join(path, "bin") for path in packages), sysconfig.get_path("scripts")]:
        installed = os.path.join(folder, "hocket")
        if os.path.exists(installed):
            return installed
    found = shutil.which("hocket")
    if found is None:
        raise HocketError(
            "the hocket program was not found: install hocket-planner, put the program into PATH, "
            "or set HOCKET_PROGRAM",
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
    described: Dict[str, Any], settings: "Settings", sharing: int, folder: str
) -> Tuple[str, Dict[str, Any]]:
    model = os.path.join(folder, "model.json")
    out = os.path.join(folder, "plan.json")
    with open(model, "w", encoding="utf-8") as file:
        json.dump(described, file)
    arguments = ["plan", "--model", model, "--machine", machine(), "--gpus", "1", "-o", out]
    if settings.overlap != "none" and _knows("--overlap"):
        arguments += ["--overlap", settings.overlap]
        if settings.clip != "norm" and _knows("--clip"):
            arguments += ["--clip", settings.clip]
        if settings.clip_share and _knows("--clip-share"):
            arguments += ["--clip-share", str(settings.clip_share)]
    if settings.state is not None:
        arguments += ["--state", settings.state]
    if settings.accumulation_steps is not None:
        arguments += ["--grad-accum", str(settings.accumulation_steps)]
    if settings.cpu_threads is not None:
        arguments += ["--cpu-threads", str(settings.cpu_threads)]
    if sharing > 1:
        arguments += ["--set", f"dram*={1 / sharing}"]
    if settings.gpu_memory is not None:
        arguments += ["--gpu-memory", str(settings.gpu_memory)]
    room = _abi.host_memory()  # the profile may be of a machine with less
    left = room - min(room, settings.host_memory or room)
    arguments += ["--set", f"node.memory_bytes={room}", "--set", f"node.reserved_bytes={left}"]
    answer = run(arguments)
    with open(out, encoding="utf-8") as file:
        return file.read(), answer


__all__ = ["resolve_plan", "program", "run", "machine", "Costs"]
