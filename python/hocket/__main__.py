# SPDX-License-Identifier: Apache-2.0
"""``python3 -m hocket describe FOLDER``: prints the model document of a Hugging Face model.

``hocket plan --model FOLDER`` calls it for the kinds of models that it does not count itself.
"""

import argparse
import contextlib
import inspect
import json
import os
import sys
from pathlib import Path
from typing import Any, Dict

import torch

from . import HocketUsageError, describe

SEQ = 2048  # as the program's default


def of_folder(path: str, seq: int = 0, checkpoint: bool = True) -> Dict[str, Any]:
    """The document of the model of a config.json, or of its folder, in bf16, for one sequence of
    `seq` tokens (0: 2048, or as many as the model takes). Nothing is downloaded, no weights are
    read, and no code of the folder is run.

    Args:
        checkpoint: blocks between the first and the last keep their input alone until backward,
            which computes the rest again.

    Raises:
        HocketUsageError: transformers is absent or lacks the model, or it does not take tokens.
    """
    os.environ["HF_HUB_OFFLINE"] = "1"
    try:
        import transformers
    except ImportError as error:
        raise HocketUsageError(f"transformers is not installed ({error})") from error
    config = transformers.AutoConfig.from_pretrained(path, trust_remote_code=False)
    text = config.get_text_config()
    text.use_cache = False
    architecture = (getattr(config, "architectures", None) or [None])[0]
    model_class = getattr(transformers, architecture, None) if architecture else None
    is_model = isinstance(model_class, type) and issubclass(
        model_class, transformers.PreTrainedModel
    )
    if architecture and not is_model:
        raise HocketUsageError(f"transformers {transformers.__version__} has no {architecture}")
    make = model_class or transformers.AutoModelForCausalLM.from_config
    with torch.device("meta"):
        model = make(config)
    model = model.to(torch.bfloat16)
    if model.main_input_name != "input_ids":
        raise HocketUsageError(
            f"{type(model).__name__} takes {model.main_input_name}, not tokens: call "
            "hocket.describe(model, batch) in Python"
        )
    length = seq or min(SEQ, getattr(text, "max_position_embeddings", None) or SEQ)
    batch = {"input_ids": torch.zeros((1, length), dtype=torch.long, device="meta")}
    if "labels" in inspect.signature(model.forward).parameters:
        batch["labels"] = batch["input_ids"]
    document = describe(model, batch)
    kept = 2 * length * getattr(text, "hidden_size", 0)
    for block in document["blocks"][1:-1] if checkpoint else []:
        recomputed = max(0, block["activation_bytes"] - kept)
        block["activation_bytes"] -= recomputed
        block["workspace_bytes"] += recomputed
    absolute = Path(path).resolve()
    document["name"] = absolute.parent.name if absolute.is_file() else absolute.name
    return document


def main() -> int:
    parser = argparse.ArgumentParser(prog="python3 -m hocket")
    describer = parser.add_subparsers(dest="command", required=True).add_parser(
        "describe", help="print the model document of a Hugging Face model"
    )
    describer.add_argument("folder", help="a folder with a config.json, or the file")
    describer.add_argument("--seq", type=int, default=0, help="tokens of the sequence")
    describer.add_argument("--checkpoint-activations", choices=("yes", "no"), default="yes")
    arguments = parser.parse_args()
    checkpoint = arguments.checkpoint_activations == "yes"
    try:
        with contextlib.redirect_stdout(sys.stderr):
            document = of_folder(arguments.folder, arguments.seq, checkpoint)
    except Exception as error:  # of many kinds: the model's own code raises them
        lines = str(error).strip().splitlines() or [""]
        kind = "" if isinstance(error, HocketUsageError) else f"{type(error).__name__}: "
        print(f"{kind}{lines[0]}", file=sys.stderr)
        return 2
    json.dump(document, sys.stdout)
    print()
    return 0


if __name__ == "__main__":
    sys.exit(main())
