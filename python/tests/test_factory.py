# SPDX-License-Identifier: Apache-2.0
"""hocket.TrainerFactory: the Trainer makes the optimizer, and saves and loads it."""

import shutil

import pytest
import torch

import hocket
from test_trainer import MADE_BY_TRAINER, checkpoints_can_be_loaded

transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate")

needs_argument = pytest.mark.skipif(
    not MADE_BY_TRAINER, reason="transformers before 4.47 has no optimizer_cls_and_kwargs"
)
needs_checkpoints = pytest.mark.skipif(
    not checkpoints_can_be_loaded(), reason="this transformers loads no checkpoints with this torch"
)
FACTORY = {"cpu_threads": 1, "betas": (0.9, 0.98)}


def model():
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=64,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=16,
        attention_bias=True,
        tie_word_embeddings=False,
    )
    return transformers.LlamaForCausalLM(config).to(torch.bfloat16)


def arguments(folder):
    return transformers.TrainingArguments(
        output_dir=str(folder),
        max_steps=6,
        per_device_train_batch_size=2,
        learning_rate=3e-3,
        weight_decay=0.1,
        adam_epsilon=1e-7,
        max_grad_norm=0.5,
        save_steps=3,
        save_strategy="steps",
        logging_steps=1,
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
    )


def data():
    drawn = torch.Generator().manual_seed(1)
    ids = torch.randint(64, (24, 12), generator=drawn)
    return [{"input_ids": row, "labels": row} for row in ids]


def run(folder, resume=None, kwargs=None):
    """A Trainer that has trained, and the optimizer that it has made."""
    trainer = transformers.Trainer(
        model=model(),
        args=arguments(folder),
        train_dataset=data(),
        optimizer_cls_and_kwargs=(hocket.TrainerFactory, dict(FACTORY, **(kwargs or {}))),
    )
    trainer.train(resume_from_checkpoint=resume)
    return trainer, trainer.optimizer.optimizer


def run_given(folder, resume=None):
    """The same with an optimizer and a callback that are given, as every transformers takes."""
    own = model()
    rest = {id(p): p for n, p in own.named_parameters() if n.endswith("bias") or "norm" in n}
    opt = hocket.AdamW(
        [
            {"params": [p for p in own.parameters() if id(p) not in rest]},
            {"params": list(rest.values()), "weight_decay": 0.0},
        ],
        lr=3e-3,
        weight_decay=0.1,
        betas=(0.9, 0.98),
        eps=1e-7,
        cpu_threads=1,
    )
    opt.attach(own)
    trainer = transformers.Trainer(
        model=own,
        args=arguments(folder),
        train_dataset=data(),
        optimizers=(opt, None),
        callbacks=[hocket.TrainerCallback(opt)],
    )
    trainer.train(resume_from_checkpoint=resume)
    return trainer, opt


def losses(trainer):
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


@needs_argument
def test_the_trainer_makes_it_with_its_own_arguments(tmp_path):
    trainer, opt = run(tmp_path)
    assert isinstance(opt, hocket.AdamW) and opt.stats()["python"]["blocks"] == 4
    decay, none = opt.param_groups
    names = {id(p): n for n, p in trainer.model.named_parameters()}
    assert (decay["weight_decay"], none["weight_decay"]) == (0.1, 0.0)
    assert decay["eps"] == 1e-7 and decay["betas"] == (0.9, 0.98) and decay["initial_lr"] == 3e-3
    without = {names[id(p)] for p in none["params"]}
    assert without == {n for n in names.values() if n.endswith("bias") or "norm" in n}
    assert opt._settings.overlap == "both" and opt.last_step.step == 6


@needs_argument
def test_the_same_bits_as_an_optimizer_that_is_given(tmp_path):
    made, opt = run(tmp_path / "made")
    trainer, own = run_given(tmp_path / "given")
    assert losses(trainer) == losses(made)
    assert own.checksum() == opt.checksum()


@pytest.mark.parametrize(
    "way", [pytest.param(run, marks=needs_argument), pytest.param(run_given, marks=pytest.mark.full)]
)
@needs_checkpoints
def test_it_saves_and_resumes(tmp_path, way):
    whole, opt = way(tmp_path / "whole")
    saved = tmp_path / "whole" / "checkpoint-3"
    assert (saved / "hocket.state").exists() and (saved / "optimizer.pt").stat().st_size < 20000
    (tmp_path / "resumed").mkdir()
    shutil.copytree(saved, tmp_path / "resumed" / "checkpoint-3")
    trainer, resumed = way(tmp_path / "resumed", resume=True)
    assert resumed.checksum() == opt.checksum() and losses(trainer) == losses(whole)


@needs_argument
@needs_checkpoints
@pytest.mark.full
def test_a_checkpoint_elsewhere_is_named(tmp_path):
    _, opt = run(tmp_path / "whole")
    moved = str(shutil.copytree(tmp_path / "whole" / "checkpoint-3", tmp_path / "moved"))
    with pytest.raises(hocket.HocketError, match="resume_from"):
        run(tmp_path / "missing", resume=moved)
    _, there = run(tmp_path / "named", resume=moved, kwargs={"resume_from": moved})
    assert there.checksum() == opt.checksum()


@needs_argument
def test_a_second_optimizer_takes_the_place_of_the_first(tmp_path):
    trainer, first = run(tmp_path)
    trainer.optimizer = trainer.lr_scheduler = None
    trainer.train()
    second = trainer.optimizer.optimizer
    assert second is not first and second.last_step.step == 6
    callbacks = [
        c for c in trainer.callback_handler.callbacks if isinstance(c, hocket.TrainerCallback)
    ]
    assert len(callbacks) == 1
    with pytest.raises(hocket.HocketError, match="detached"):
        first.step()


def test_without_a_trainer_state_is_in_the_state_dict():
    own = model()
    opt = hocket.TrainerFactory()(own, lr=1e-3, cpu_threads=1)
    ids = data()[0]["input_ids"][None]
    own(input_ids=ids, labels=ids).loss.backward()
    opt.step()
    assert len(opt.state_dict()["state"]) == sum(p.requires_grad for p in own.parameters())
    with pytest.raises(hocket.HocketError, match="outside a Trainer"):
        hocket.TrainerFactory(own.parameters(), lr=1e-3)


def test_arguments_are_given_by_position_as_axolotl_does(tmp_path):
    opt = hocket.TrainerFactory()(model(), arguments(tmp_path), cpu_threads=1)
    decay, _ = opt.param_groups
    assert (decay["lr"], decay["weight_decay"], decay["eps"]) == (3e-3, 0.1, 1e-7)


@needs_argument
def test_an_option_that_is_refused_is_named(tmp_path):
    with pytest.raises(hocket.HocketError, match="overlap='sometimes'"):
        run(tmp_path, kwargs={"overlap": "sometimes"})
