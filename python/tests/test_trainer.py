# SPDX-License-Identifier: Apache-2.0
"""The examples as a user runs them: the plain loop, and the Trainer of transformers with
checkpoints."""

import inspect
import re
import shutil

import pytest

import hocket

transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate")

MADE_BY_TRAINER = (
    "optimizer_cls_and_kwargs" in inspect.signature(transformers.Trainer.__init__).parameters
)


def example(forked, root, name, *arguments):
    """The output of an example that reads a text."""
    return run_example(forked, root, name, "--text", root / "README.md", *arguments)


def run_example(forked, root, name, *arguments):
    process = forked.start(root / "examples" / name, *arguments, CUDA_VISIBLE_DEVICES="")
    text = process.output()
    assert process.returncode == 0, text[-3000:]
    return text


@pytest.mark.parametrize("overlap", [pytest.param("none", marks=pytest.mark.full), "both"])
def test_the_plain_loop_learns(forked, root, tmp_path, overlap):
    out = example(
        forked,
        root,
        "train_plain.py",
        "--steps",
        41,
        "--length",
        32,
        "--width",
        128,
        "--layers",
        2,
        "--overlap",
        overlap,
        "--accumulate",
        2,
        "--checkpoint",
        tmp_path / "state",
    )
    losses = [float(value) for value in re.findall(r"loss ([\d.]+)", out)]
    assert losses[-1] < 0.75 * losses[0]
    assert f"overlap {overlap}" in out and (tmp_path / "state").exists()


def checkpoints_can_be_loaded():
    """False where a newer transformers refuses torch.load of torch before 2.6."""
    try:
        from transformers.utils.import_utils import check_torch_load_is_safe
    except ImportError:
        return True
    try:
        check_torch_load_is_safe()
    except ValueError:
        return False
    return True


SIZE = ["--random", "--length", 16, "--width", 128, "--layers", 2, "--batch", 1]


def finetune(forked, root, out, *arguments):
    text = example(forked, root, "finetune_trainer.py", *SIZE, "--out", out, *arguments)
    return re.search(r"checksum (\w+)", text).group(1), re.findall(r"'loss': '?([\d.]+)", text)


@pytest.mark.skipif(
    not checkpoints_can_be_loaded(), reason="this transformers loads no checkpoints with this torch"
)
@pytest.mark.skipif(
    not MADE_BY_TRAINER, reason="transformers before 4.47 has no optimizer_cls_and_kwargs"
)
@pytest.mark.full
@pytest.mark.parametrize("clip,workers,accumulate", [(1.0, 0, 1), (0, 4, 2)])
def test_the_trainer_resumes_bit_for_bit(forked, root, tmp_path, clip, workers, accumulate):
    options = [
        "--steps",
        6,
        "--save-steps",
        3,
        "--max-grad-norm",
        clip,
        "--workers",
        workers,
        "--accumulate",
        accumulate,
    ]
    whole, losses = finetune(forked, root, tmp_path / "whole", *options)
    assert len(losses) == 6
    saved = tmp_path / "whole" / "checkpoint-3"
    assert (saved / "hocket.state").exists() and (saved / "optimizer.pt").stat().st_size < 20000
    (tmp_path / "resumed").mkdir()
    shutil.copytree(saved, tmp_path / "resumed" / "checkpoint-3")
    resumed, rest = finetune(forked, root, tmp_path / "resumed", *options, "--resume")
    assert rest == losses[3:] and resumed == whole
    inside, same = finetune(forked, root, tmp_path / "inside", *options, "--overlap", "none")
    assert same == losses and inside == whole


def test_a_checkpoint_without_its_state_is_refused(root, tmp_path):
    from transformers import TrainerState, TrainingArguments

    from models import batches, make

    model = make("gpt")
    opt = hocket.AdamW(model.parameters(), cpu_threads=1)
    hocket.TrainerCallback(opt)  # from now on state_dict() leaves the state to its file
    model(batches(1)[0]).backward()
    opt.step()
    state = opt.state_dict()
    assert not state["state"]
    again = hocket.AdamW(make("gpt").parameters(), cpu_threads=1)
    again.load_state_dict(state)
    with pytest.raises(hocket.HocketError, match="hocket.TrainerCallback.*opt.load"):
        again.step()
    other = hocket.TrainerCallback(again)
    args = TrainingArguments(output_dir=str(tmp_path), use_cpu=True, report_to=[])
    with pytest.raises(hocket.HocketError, match="hocket.state is missing"):
        other.on_train_begin(args, TrainerState(global_step=1), None)
