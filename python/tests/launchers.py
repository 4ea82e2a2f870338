# SPDX-License-Identifier: Apache-2.0
"""Programs that fine-tune pages.llama() in a process of their own, as users start them."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
from typing import Any, Dict

import torch

from hocket.files import identity
from pages import llama, texts, tokenizer


def prepare(folder: pathlib.Path, rows: str) -> None:
    """Makes a folder with `model` and a file of rows, one of alpaca's a line."""
    folder.mkdir()
    llama(torch.float32).save_pretrained(folder / "model")
    tokenizer().save_pretrained(folder / "model")
    alpaca = ({"instruction": text, "input": "", "output": text} for text in texts())
    (folder / rows).write_text("\n".join(map(json.dumps, alpaca)))


def with_overlap(code: str, overlap: str) -> str:
    """The page's code, with arguments for the factory."""
    assert code.count("Factory, {})") == 1
    return code.replace("Factory, {})", f'Factory, {{"overlap": "{overlap}", "cpu_threads": 1}})')


def trained(folder: pathlib.Path, *command: str) -> Dict[str, Any]:
    """Runs a command of Python in the folder; it trains four steps into `out`. Returns what tells
    the state from others."""
    done = subprocess.run(
        [sys.executable, *command],
        capture_output=True,
        text=True,
        cwd=folder,
        env={
            **os.environ,
            "HF_HUB_OFFLINE": "1",
            "CUDA_VISIBLE_DEVICES": "",
            "AXOLOTL_DO_NOT_TRACK": "1",
            "PYTHONPATH": os.pathsep.join(["", *filter(None, map(os.path.abspath, sys.path))]),
        },
        timeout=600,
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
    groups = json.loads((folder / "out/checkpoint-4/hocket.state.json").read_text())
    assert groups["step"] == 4
    return identity(str(folder / "out/checkpoint-4/hocket.state"))
