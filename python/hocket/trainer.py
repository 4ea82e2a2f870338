# SPDX-License-Identifier: Apache-2.0
"""The Hugging Face Trainer: an optimizer that it makes itself, and checkpoints without a copy of
the optimizer's state in memory."""

from __future__ import annotations

import inspect
import os
from typing import Any, Dict, List, Optional, cast

from torch import nn
from transformers import Trainer, TrainerControl, TrainerState, TrainingArguments
from transformers import TrainerCallback as _Base
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from .errors import NO, HocketError, HocketUsageError
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


class TrainerFactory:
    """Makes an attached hocket.AdamW for a Trainer, with checkpoints.

        trainer = Trainer(model, args, train_dataset=...,
                          optimizer_cls_and_kwargs=(hocket.TrainerFactory, {"max_norm": 1.0}))

    transformers 5 calls ``TrainerFactory()(model, **kwargs)``, transformers 4.47 to 4.57
    ``TrainerFactory(groups, **kwargs)``, axolotl ``TrainerFactory()(model, args, **kwargs)``; all
    give the optimizer. Older ones have no such argument: give the Trainer ``optimizers=(opt, None)``
    and ``callbacks=[hocket.TrainerCallback(opt)]``.

    The keywords are those of hocket.AdamW, and ``resume_from`` of hocket.TrainerCallback. What is
    not given comes from the TrainingArguments: ``learning_rate``, ``weight_decay``,
    ``adam_beta1``, ``adam_beta2``, ``adam_epsilon``, ``gradient_accumulation_steps``. ``overlap`` is
    "both" unless given. Biases and norms do not decay, by the Trainer's own rule.

    The Trainer that calls is found in the stack, and gets a hocket.TrainerCallback, so that
    checkpoints hold the state and resuming loads it. Without one (a call by other code) state is
    part of ``state_dict()``.
    """

    def __new__(cls, groups: Any = None, **kwargs: Any) -> Any:
        factory = super().__new__(cls)
        if groups is None:
            return factory
        trainer = _caller()
        if trainer is None:
            raise HocketUsageError(
                "hocket.TrainerFactory was called with parameters outside a Trainer: call "
                "hocket.TrainerFactory()(model, ...), or make a hocket.AdamW"
            )
        return factory(cast(nn.Module, trainer.model), **kwargs)

    def __call__(
        self, model: nn.Module, args: Optional[TrainingArguments] = None, **kwargs: Any
    ) -> AdamW:
        """The optimizer, attached to the model.

        Args:
            model: the model.
            args: where defaults come from; None: those of the Trainer that calls.

        Raises:
            HocketUsageError: an argument that is not supported, a model that cannot be attached.
        """
        trainer = _caller()
        resume_from = kwargs.pop("resume_from", None)
        defaults: Dict[str, Any] = {"overlap": "both"}
        if args is None and trainer is not None:
            args = trainer.args
        if args is not None:
            defaults.update(
                lr=args.learning_rate,
                weight_decay=args.weight_decay,
                betas=(args.adam_beta1, args.adam_beta2),
                eps=args.adam_epsilon,
                accumulation_steps=args.gradient_accumulation_steps,
            )
        if trainer is not None:
            former = trainer.pop_callback(TrainerCallback)
            if isinstance(former, TrainerCallback):
                former._optimizer.detach()
        optimizer = AdamW(_groups(model), **{**defaults, **kwargs})
        optimizer.attach(model)
        if trainer is not None:
            trainer.add_callback(TrainerCallback(optimizer, resume_from))
        return optimizer


def _groups(model: nn.Module) -> List[Dict[str, Any]]:
    """Param groups: what decays, and biases and norms, by the Trainer's rule."""
    # The method does not use its instance.
    decaying = set(Trainer.get_decay_parameter_names(None, model))  # type: ignore[arg-type]
    decay: List[nn.Parameter] = []
    others: List[nn.Parameter] = []
    for name, param in model.named_parameters():
        if param.requires_grad:
            (decay if name in decaying else others).append(param)
    groups: List[Dict[str, Any]] = [{"params": decay}, {"params": others, "weight_decay": 0.0}]
    return [group for group in groups if group["params"]]


def _caller() -> Optional[Trainer]:
    """The Trainer that has called, directly or not; None: something else has."""
    frame = inspect.currentframe()
    while frame is not None:
        found = frame.f_locals.get("self")
        if isinstance(found, Trainer):
            return found
        frame = frame.f_back
    return None


def _folder(args: TrainingArguments, state: TrainerState) -> str:
    return os.path.join(args.output_dir or ".", f"{PREFIX_CHECKPOINT_DIR}-{state.global_step}")
