# SPDX-License-Identifier: Apache-2.0
"""The examples of docs/integrations.md, run where the framework is installed."""

import pytest

import hocket
from models import batches, make


def trained_plainly(steps, accumulation):
    model = make("gpt")
    opt = hocket.AdamW(model.parameters(), lr=1e-2, cpu_threads=1)
    for number, batch in enumerate(batches(steps * accumulation), start=1):
        (model(batch) / accumulation).backward()
        if number % accumulation == 0:
            opt.step()
            opt.zero_grad()
    return opt.checksum()


def with_accelerate(tmp_path, steps, accumulation, resume_at=None):
    accelerate = pytest.importorskip("accelerate")
    accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=accumulation)
    model = make("gpt")
    opt = hocket.AdamW(model.parameters(), lr=1e-2, overlap="both", cpu_threads=1)
    opt.attach(model)
    prepared, optimizer = accelerator.prepare(model, opt)
    for number, batch in enumerate(batches(steps * accumulation)):
        if resume_at is not None and number < resume_at * accumulation:
            if number == 0:
                accelerator.load_state(str(tmp_path / "state"))
            continue
        with accelerator.accumulate(prepared):
            accelerator.backward(prepared(batch))
            optimizer.step()
            optimizer.zero_grad()
        if resume_at is None and number + 1 == 2 * accumulation:
            accelerator.save_state(str(tmp_path / "state"), safe_serialization=False)
    return opt.checksum()


def test_accelerate_accumulates_saves_and_resumes(tmp_path):
    whole = with_accelerate(tmp_path, 4, 2)
    assert whole == trained_plainly(4, 2)
    assert with_accelerate(tmp_path, 4, 2, resume_at=2) == whole


def test_the_trainer_takes_the_factory_later(tmp_path):
    pytest.importorskip("transformers")
    from test_factory import MADE_BY_TRAINER, arguments, data, losses, model, run

    import transformers

    if not MADE_BY_TRAINER:
        pytest.skip("transformers before 4.47 has no optimizer_cls_and_kwargs")
    trainer = transformers.Trainer(
        model=model(), args=arguments(tmp_path / "later"), train_dataset=data()
    )
    # As TRL, axolotl and LLaMA-Factory need it, whose trainers do not pass the argument on.
    trainer.optimizer_cls_and_kwargs = (
        hocket.TrainerFactory,
        {"cpu_threads": 1, "betas": (0.9, 0.98)},
    )
    trainer.train()
    made, opt = run(tmp_path / "made")
    assert losses(trainer) == losses(made)
    assert trainer.optimizer.optimizer.checksum() == opt.checksum()
