# SPDX-License-Identifier: Apache-2.0
"""TRL's trainers: they take or are given hocket.TrainerFactory; the model generates between steps."""

import re
import shutil

import pytest

import hocket
from pages import llama, texts, tokenizer
from test_trainer import run_example

trl = pytest.importorskip("trl", reason="TRL is not installed")
datasets = pytest.importorskip("datasets")
pytestmark = pytest.mark.full


def common(folder):
    return dict(
        output_dir=str(folder),
        max_steps=4,
        gradient_accumulation_steps=2,
        learning_rate=3e-3,
        gradient_checkpointing=False,
        bf16=False,
        save_steps=2,
        logging_steps=1,
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
    )


def fine_tuned(folder, overlap, resume=None):
    trainer = trl.SFTTrainer(
        model=llama(),
        args=trl.SFTConfig(max_length=16, per_device_train_batch_size=2, **common(folder)),
        train_dataset=datasets.Dataset.from_dict({"text": texts()}),
        processing_class=tokenizer(),
        optimizer_cls_and_kwargs=(
            hocket.TrainerFactory,
            {"overlap": overlap, "cpu_threads": 1},
        ),
    )
    trainer.train(resume_from_checkpoint=resume)
    opt = trainer.optimizer.optimizer
    assert opt.last_step.step == 4
    return opt.checksum()


def test_fine_tuning_has_the_same_bits_and_resumes(tmp_path):
    sums = {fine_tuned(tmp_path / overlap, overlap) for overlap in ("none", "forward", "both")}
    assert len(sums) == 1
    (tmp_path / "resumed").mkdir()
    shutil.copytree(tmp_path / "both/checkpoint-2", tmp_path / "resumed/checkpoint-2")
    assert {fine_tuned(tmp_path / "resumed", "both", resume=True)} == sums


def learned(folder, overlap):
    trainer = trl.GRPOTrainer(
        model=llama(),
        reward_funcs=lambda completions, **_: [float(len(set(c.split()))) for c in completions],
        args=trl.GRPOConfig(
            num_generations=4,
            max_completion_length=8,
            per_device_train_batch_size=4,
            **common(folder),
        ),
        train_dataset=datasets.Dataset.from_dict({"prompt": texts()}),
        processing_class=tokenizer(),
    )
    trainer.optimizer_cls_and_kwargs = (
        hocket.TrainerFactory,
        {"overlap": overlap, "cpu_threads": 1},
    )
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert len(losses) == 4 and any(losses)
    return trainer.optimizer.optimizer.checksum(), losses


def test_generation_between_steps_reads_the_new_weights(tmp_path):
    """With an overlap the update is under way when generation begins; what is generated, and so
    rewards, losses and weights, are the same."""
    assert learned(tmp_path / "none", "none") == learned(tmp_path / "both", "both")


def test_the_example_releases_memory_between_steps_and_changes_no_bit(forked, root, tmp_path):
    options = [forked, root, "grpo_release.py", "--random", "--steps", 3, "--out", tmp_path]
    released, kept = run_example(*options), run_example(*options, "--keep")
    given = re.search(r"given back after each step: (\d+) (\d+) (\d+)$", released, re.M).groups()
    assert len(set(given)) == 1 and "held now: 0 bytes" in released
    assert f"held now: {given[0]} bytes" in kept
    sums = {re.search(r"checksum (\w+)", out).group(1) for out in (released, kept)}
    assert len(sums) == 1
