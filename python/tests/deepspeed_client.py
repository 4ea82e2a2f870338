# SPDX-License-Identifier: Apache-2.0
"""One of the ranks that test_launch.py starts: hocket.AdamW as DeepSpeed's client optimizer in
ZeRO-1 with bf16, against torch.optim.AdamW in the same place."""

from __future__ import annotations

import datetime
import os
import pathlib
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

import deepspeed  # noqa: E402
import deepspeed.comm  # noqa: E402
import torch  # noqa: E402

import hocket  # noqa: E402
from models import batches, make  # noqa: E402

STEPS = 4
CONFIG = {
    "train_micro_batch_size_per_gpu": 2,
    "zero_allow_untested_optimizer": True,
    "zero_optimization": {"stage": 1},
    "gradient_clipping": 1.0,
    "bf16": {"enabled": True},
}


def trained(kind, **options):
    model = make("gpt")
    opt = kind([p for p in model.parameters() if p.requires_grad], lr=2e-3, **options)
    engine = deepspeed.initialize(model=model, optimizer=opt, config=CONFIG)[0]
    for step in range(STEPS):
        loss = engine(batches(1, seed=100 * step + int(os.environ["RANK"]))[0])
        engine.backward(loss)
        engine.step()
    return opt, [param.detach() for param in model.parameters()]


def main() -> None:
    torch.set_num_threads(1)
    # Otherwise it compiles a faster all-reduce first, for minutes.
    sys.modules["deepspeed.comm.torch"].build_shm_op = lambda: None
    deepspeed.init_distributed(dist_backend="gloo", timeout=datetime.timedelta(seconds=50))
    opt, weights = trained(hocket.AdamW, cpu_threads=1)
    assert opt.last_step.step == STEPS
    _, others = trained(torch.optim.AdamW)
    for mine, theirs in zip(weights, others):
        assert torch.allclose(mine.float(), theirs.float(), rtol=0.01, atol=1e-5)
    print("as torch.optim.AdamW")


if __name__ == "__main__":
    main()
