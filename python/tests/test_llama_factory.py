# SPDX-License-Identifier: Apache-2.0
"""The launcher of docs/integrations.md for LLaMA-Factory."""

import importlib.util

import pytest

import launchers
from pages import code

pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(
        importlib.util.find_spec("llamafactory") is None, reason="LLaMA-Factory is not installed"
    ),
]
OPTIONS = """
model_name_or_path: model
stage: sft
do_train: true
finetuning_type: full
disable_gradient_checkpointing: true
dataset: toy
dataset_dir: .
template: default
cutoff_len: 32
output_dir: out
per_device_train_batch_size: 2
gradient_accumulation_steps: 2
learning_rate: 3.0e-3
max_steps: 4
save_steps: 2
report_to: none
use_cpu: true
"""


def trained(folder, overlap):
    launchers.prepare(folder, "toy.jsonl")
    (folder / "dataset_info.json").write_text('{"toy": {"file_name": "toy.jsonl"}}')
    (folder / "sft.yaml").write_text(OPTIONS)
    launcher = launchers.with_overlap(code("LLaMA-Factory"), overlap)
    (folder / "launch.py").write_text(launcher)
    return launchers.trained(folder, "launch.py", "sft.yaml")


def test_the_launcher_trains_with_the_same_bits(tmp_path):
    assert trained(tmp_path / "none", "none") == trained(tmp_path / "both", "both")
