# SPDX-License-Identifier: Apache-2.0
"""GPU memory is given back between steps, as in reinforcement learning while a model generates."""

import pytest
import torch

import hocket


@pytest.mark.parametrize("overlap", ["none", "forward", "both"])
def test_releasing_between_steps_changes_no_bit(overlap):
    sums = []
    for releases in (False, True):
        torch.manual_seed(0)
        model = torch.nn.Sequential(*[torch.nn.Linear(256, 256) for _ in range(3)])
        opt = hocket.AdamW(model.parameters(), lr=1e-2, overlap=overlap, cpu_threads=1)
        opt.attach(model)
        assert opt.gpu_bytes() == opt.release_gpu() == 0
        for batch in torch.randn(6, 4, 256):
            model(batch).square().mean().backward()
            held = opt.gpu_bytes()
            assert held > 0
            if releases:
                with pytest.raises(hocket.HocketError, match="no step has used"):
                    opt.release_gpu()
            opt.step()
            opt.zero_grad()
            if releases:
                assert opt.release_gpu() == held and opt.gpu_bytes() == 0
                opt.zero_grad()
                model.eval()(batch)  # generation reads the new weights
                model.train()
        sums.append(opt.checksum())
    assert sums[0] == sums[1]
