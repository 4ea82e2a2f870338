# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of the Hugging Face Trainer without a copy of the optimizer's state in memory."""

from __future__ import annotations

import os
from typing import Any, Optional

from transformers import TrainerCallback as _Base
from transformers import TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from .errors import NO, HocketError
from .optim import AdamW

FILE = "hocket.state"


class TrainerCallback(_Base):
    """Writes the state of a hocket.AdamW beside each checkpoint, and loads it on resume.

        trainer = Trainer(model, args, ..., optimizers=(opt, scheduler),
                          callbacks=[hocket.TrainerCallback(opt)])

    The Trainer's own optimizer.pt then holds the param groups only.

    Args:
        optimizer: the optimizer.
        resume_from: folder of the checkpoint to resume from, if it is not
            ``output_dir/checkpoint-STEP``.
    """

    def __init__(self, optimizer: AdamW, resume_from: Optional[str] = None) -> None:
        self._optimizer = optimizer
        self._resume_from = resume_from
        optimizer.state_in_file = True

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Resumes. HocketError if the checkpoint has no state, or of another step."""
        awaited = self._optimizer._awaited
        if awaited is None:
            return
        folder = self._resume_from or _folder(args, state)
        path = os.path.join(folder, FILE)
        if not os.path.exists(path):
            raise HocketError(
                f"{path} is missing: the checkpoint is incomplete; resume from an older one, or "
                "give TrainerCallback(resume_from=) the folder",
                NO,
            )
        self._optimizer.load(path)
        found = self._optimizer.binding().engine.step_number()
        if found != awaited:
            raise HocketError(
                f"{path} is of optimizer step {found}, its checkpoint of step {awaited}: resume "
                "from another checkpoint",
                NO,
            )

    def on_save(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Writes the state into the checkpoint that was just made."""
        if state.is_world_process_zero and self._optimizer.is_bound():
            self._optimizer.save(os.path.join(_folder(args, state), FILE))

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Waits for the last update."""
        self._optimizer.synchronize()


def _folder(args: TrainingArguments, state: TrainerState) -> str:
    return os.path.join(args.output_dir or ".", f"{PREFIX_CHECKPOINT_DIR}-{state.global_step}")
