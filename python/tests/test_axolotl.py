# SPDX-License-Identifier: Apache-2.0
"""The plugin of docs/integrations.md for axolotl."""

import importlib.util

import pytest

import launchers
from pages import code

pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(
        importlib.util.find_spec("axolotl") is None, reason="axolotl is not installed"
    ),
]
OPTIONS = """
base_model: model
datasets:
  - path: toy.jsonl
    ds_type: json
    type: alpaca
dataset_prepared_path: prepared
output_dir: out
sequence_len: 64
sample_packing: false
micro_batch_size: 2
gradient_accumulation_steps: 2
max_steps: 4
save_steps: 2
num_epochs: 1
learning_rate: 3.0e-3
optimizer: adamw_torch
lr_scheduler: linear
attn_implementation: sdpa
gradient_checkpointing: false
bf16: false
fp16: false
tf32: false
use_cpu: true
val_set_size: 0
seed: 1
"""


def trained(folder, overlap):
    launchers.prepare(folder, "toy.jsonl")
    (folder / "offload.py").write_text(launchers.with_overlap(code("axolotl"), overlap))
    (folder / "sft.yaml").write_text(OPTIONS + code("axolotl", "yaml"))
    return launchers.trained(folder, "-m", "axolotl.cli.train", "sft.yaml")


def test_the_plugin_trains_with_the_same_bits(tmp_path):
    assert trained(tmp_path / "none", "none") == trained(tmp_path / "both", "both")
