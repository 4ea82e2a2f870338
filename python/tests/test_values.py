# SPDX-License-Identifier: Apache-2.0
"""Models whose forward looks at values are described and profiled by a real forward."""

import pytest
import torch
from torch import nn

import hocket
from hocket import HocketUsageError
from hocket.blocks import find_blocks
from hocket.describe import measure, on_fakes, on_reals, trace_order
from test_describe import SHAPE


class Looks(nn.Module):
    """A model whose forward looks at values, in one of the ways that shapes do not allow."""

    def __init__(self, how):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64))
        self.norm = nn.BatchNorm1d(64)
        self.how = how

    def forward(self, x):
        if self.how(x) < -1e9:
            x = x * 2
        return nn.functional.dropout(self.norm(self.layers(x)), 0.5, self.training)


LOOKS = {
    "item": lambda x: x.sum().item(),
    "bool": lambda x: -1e10 if (x == 1e30).any() else 0,
    "tolist": lambda x: min(x.detach()[0].tolist()),
    "numpy": lambda x: float(x.detach().numpy().min()),
    "nonzero": lambda x: len(x[x > 1e30].unique()),
}


def kept(document):
    """Bytes that autograd keeps. To which of two blocks that differs: real operations keep an input
    before they are seen."""
    return sum(block["activation_bytes"] for block in document["blocks"])


@pytest.mark.parametrize("how", LOOKS)
def test_a_forward_that_looks_at_values_is_run_as_it_is(how):
    model, plain = Looks(LOOKS[how]), Looks(len)
    batch = torch.randn(8, 64)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    random = torch.get_rng_state()
    document = hocket.describe(model, batch)
    assert torch.equal(torch.get_rng_state(), random)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert all(param.grad is None for param in model.parameters())
    expected = hocket.describe(plain, batch)
    for key in ("name", "forward_flops"):
        assert [b[key] for b in document["blocks"]] == [b[key] for b in expected["blocks"]]
    assert kept(document) == kept(expected) == 8 * 256 * 4 + 2 * 8 * 64 * 4 + 2 * 64 * 4
    profiled = hocket.profile(model, batch, steps=1)
    assert [{**block, "forward_ms": 0, "backward_ms": 0} for block in profiled["blocks"]] == [
        {**block, "forward_ms": 0, "backward_ms": 0} for block in document["blocks"]
    ]


def test_without_values_a_forward_that_looks_at_them_is_refused():
    with torch.device("meta"):
        model = Looks(LOOKS["item"])
    with pytest.raises(HocketUsageError, match="cannot run on shapes alone"):
        hocket.describe(model, torch.ones(2, 64))


def test_an_error_of_the_model_itself_is_not_changed():
    with pytest.raises(RuntimeError, match="shapes") as raised:
        hocket.describe(nn.Linear(4, 4), torch.ones(2, 5))
    assert not isinstance(raised.value, HocketUsageError)


def by_shapes_and_as_it_is(model, batch):
    """Costs of a model's blocks, from fake tensors and from real ones."""
    names = [name for name, _ in model.named_parameters()]
    blocks = find_blocks(model, names, trace_order(model, batch))
    return [measure(model, batch, blocks, run) for run in (on_fakes, on_reals)]


def test_whisper_is_the_same_by_shapes_and_as_it_is():
    # Before, Whisper itself looks at values, as Watched below does.
    transformers = pytest.importorskip("transformers", minversion="5")
    config = transformers.WhisperConfig(
        vocab_size=64,
        d_model=32,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=64,
        decoder_ffn_dim=64,
        num_mel_bins=8,
        max_source_positions=20,
        max_target_positions=16,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=1,
    )
    model = transformers.WhisperForConditionalGeneration(config).train()
    ids = torch.arange(16).reshape(2, 8) + 3
    batch = {"input_features": torch.randn(2, 8, 40), "labels": ids}
    shapes, real = by_shapes_and_as_it_is(model, batch)
    assert real == shapes and min(real.activations) > 0

    class Watched(nn.Module):
        """As versions do whose attention looks whether a mask masks."""

        def __init__(self):
            super().__init__()
            self.inner = model

        def forward(self, **batch):
            assert batch["input_features"].sum().item() != 0
            return self.inner(**batch)

    document = hocket.profile(Watched(), batch, steps=1)
    assert [block["forward_flops"] for block in document["blocks"]] == real.flops
    assert all(block["backward_ms"] > 0 for block in document["blocks"][:-1])


def test_mixtral_whose_experts_look_for_their_rows_is_described():
    transformers = pytest.importorskip("transformers")
    ids = torch.arange(16).reshape(2, 8)
    mask = torch.ones_like(ids)
    mask[0, :3] = 0
    batch = {"input_ids": ids, "labels": ids, "attention_mask": mask}
    config = transformers.MixtralConfig(**SHAPE, num_local_experts=4, output_router_logits=True)
    documents = []
    for kind in ("eager", "grouped_mm"):
        config._experts_implementation = kind
        torch.manual_seed(0)
        model = transformers.MixtralForCausalLM(config).train()
        documents.append(hocket.describe(model, batch))
    eager, grouped = documents
    assert [b["forward_flops"] for b in eager["blocks"]] == [
        b["forward_flops"] for b in grouped["blocks"]
    ]
    assert all(b["activation_bytes"] > 0 for b in eager["blocks"])
    if transformers.__version__ >= "5" and hasattr(torch, "_grouped_mm"):
        shapes, real = by_shapes_and_as_it_is(model, batch)
        # Only the block differs to which what lies between two blocks is given.
        assert real.flops == shapes.flops
        assert abs(sum(real.activations) - sum(shapes.activations)) <= 16
        document = hocket.profile(model, batch, steps=1)
        assert len(document["blocks"]) == 4
