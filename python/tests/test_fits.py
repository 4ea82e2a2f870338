# SPDX-License-Identifier: Apache-2.0
"""hocket.fits: needs, what is there, and advice."""

import pytest
import torch

import hocket
from hocket import fitting
from models import batches, make

GIB = 2**30


def large(layers=8, width=2048):
    with torch.device("meta"):
        blocks = [torch.nn.Linear(width, width, bias=False) for _ in range(layers)]
        return torch.nn.Sequential(*blocks).to(torch.bfloat16)


def judged(model, batch, gpu, host, monkeypatch):
    monkeypatch.setattr(fitting, "_gpu_there", lambda: gpu)
    monkeypatch.setattr(fitting._abi, "host_memory", lambda: host)
    return hocket.fits(model, batch)


BATCH = torch.zeros(4, 2048, dtype=torch.bfloat16, device="meta")


def test_a_model_without_memory_on_a_machine_without_a_gpu(monkeypatch):
    model = large()
    n = sum(p.numel() for p in model.parameters())
    found = judged(model, BATCH, None, 64 * GIB, monkeypatch)
    assert found.parameters == n and found.micro_batch == 4
    assert found.fits is None and found.gpu_there is None and found.largest_micro_batch is None
    assert 16 * n <= found.host_needed + 0.05 * 16 * n < 1.1 * 16 * n
    assert found.host_wanted == found.host_needed + 12 * n
    assert found.gpu_needed_alone - found.gpu_needed > 11 * n
    text = str(found)
    assert "no GPU" in text and "is not known" in text and "A GPU of 16 GB has room" in text


def test_the_largest_micro_batch_is_the_last_that_fits(monkeypatch):
    model = large()
    need = judged(model, BATCH, None, 64 * GIB, monkeypatch).gpu_needed
    found = judged(model, BATCH, need, 64 * GIB, monkeypatch)
    assert found.fits is True and found.largest_micro_batch == 4
    assert f"gpu_memory={0:_})" in found.advice[-1]
    short = judged(model, BATCH, need - 1, 64 * GIB, monkeypatch)
    assert short.fits is False and short.largest_micro_batch == 3
    assert "a micro-batch of 3 fits" in short.advice[0]
    none = judged(model, BATCH, 1, 64 * GIB, monkeypatch)
    assert none.largest_micro_batch == 0 and "gradient checkpointing" in none.advice[0]
    all_of_it = judged(model, BATCH, found.gpu_needed_alone, 64 * GIB, monkeypatch)
    assert "torch.optim.AdamW will do" in all_of_it.advice[-1]


def test_too_little_host_memory(monkeypatch):
    model = large()
    need = judged(model, BATCH, None, 64 * GIB, monkeypatch).host_needed
    short = judged(model, BATCH, GIB * 64, need - GIB // 2, monkeypatch)
    assert short.fits is False and "0.5 GiB of host memory are missing" in short.advice[0]
    half = judged(model, BATCH, GIB * 64, need + 6 * short.parameters, monkeypatch)
    assert half.fits is True and "about 50% of the parameters" in half.advice[0]


def test_state_in_fewer_bytes_needs_less_host_memory(monkeypatch):
    monkeypatch.setattr(fitting, "_gpu_there", lambda: None)
    n = sum(p.numel() for p in large().parameters())
    found = {state: hocket.fits(large(), state=state) for state in ("fp32", "split", "bf16+split")}
    assert found["fp32"].host_needed - found["split"].host_needed == 2 * n
    assert found["fp32"].host_needed - found["bf16+split"].host_needed == 6 * n
    for state, spare in (("fp32", 12), ("split", 12), ("bf16+split", 8)):
        assert found[state].host_wanted == found[state].host_needed + spare * n
    with pytest.raises(hocket.HocketError, match="state"):
        hocket.fits(large(), state="lossy")


def test_without_a_batch_activations_are_not_known(monkeypatch):
    found = judged(large(), None, 64 * GIB, 64 * GIB, monkeypatch)
    assert found.fits is None and found.micro_batch is None and "Give a batch" in found.advice[0]
    assert found.gpu_needed < judged(large(), BATCH, None, 1, monkeypatch).gpu_needed


def test_figures_of_a_rank(monkeypatch):
    """Of two ranks of a host each has half of the state, and half of the host."""
    model = large()
    alone = judged(model, BATCH, 64 * GIB, 64 * GIB, monkeypatch)
    monkeypatch.setattr(fitting, "world_size", lambda: 2)
    found = judged(model, BATCH, 64 * GIB, 64 * GIB, monkeypatch)
    assert found.ranks == 2 and "each of 2 ranks" in str(found)
    assert found.parameters == alone.parameters and found.micro_batch == 4
    assert abs(found.host_needed - alone.host_needed // 2) < 0.01 * alone.host_needed
    assert found.host_wanted == found.host_needed + 6 * found.parameters
    assert found.host_there == 32 * GIB and found.gpu_needed_alone < alone.gpu_needed_alone
    for name in "LOCAL_SIZE", "LOCAL_WORLD_SIZE":  # a host for itself
        monkeypatch.setenv(name, "1")
        assert judged(model, BATCH, 64 * GIB, 64 * GIB, monkeypatch).host_there == 64 * GIB
        monkeypatch.setenv(name, "")  # says nothing


def test_a_real_model_on_this_machine():
    model = make("llama")
    found = hocket.fits(model, batches(1)[0])
    there = torch.cuda.is_available()
    assert found.host_there > 0 and (found.gpu_there is not None) == there
    assert found.fits is (True if there else None) and repr(found) == str(found)
    with pytest.raises(hocket.HocketError, match="nothing to train"):
        hocket.fits(model.requires_grad_(False))
