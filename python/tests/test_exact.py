# SPDX-License-Identifier: Apache-2.0
"""Given the same gradients, p, m, v and weights have the reference's bits in all configurations."""

import json
import pathlib

import pytest
import torch

import hocket
from hocket import attach
from runs import Case, assert_ran_ahead, compare, plan_file, reference, spread, train
from models import make

WAYS = [(False, "none"), (True, "none"), (True, "forward"), (True, "both")]
POLICIES = {
    "zero-offload": ["zero-offload"],
    "streamed": ["streamed"],
    "mapped": ["mapped"],
    "twinflow": ["twinflow", "--ratio", "0.5"],
    "gpu-only": ["gpu-only"],
    "interleave": ["interleave", "--stride", "2", "--ratio", "0.8"],
}


@pytest.fixture(autouse=True)
def _hooks_on_small_tensors(monkeypatch):
    monkeypatch.setattr(attach, "HOOK_NUMEL", 1024)


def test_the_case_sometimes_clips_some_steps():
    for model in ("gpt", "llama"):
        case = Case(model)
        norms = reference(case)[3]
        clipped = sum(norm > case.max_norm for norm in norms)
        assert 5 <= clipped <= len(norms) - 5, sorted(norms)


@pytest.mark.parametrize(
    "model,clip,accumulation,attached,overlap",
    spread(
        # Without --full: every way with every limit, each with one model and one accumulation.
        lambda model, clip, accumulation, way: (
            model == (clip + way) % 2 and accumulation == (clip + way // 2) % 2
        ),
        ["gpt", "llama"],
        ["never", "sometimes", "always"],
        [1, 3],
        WAYS,
    ),
)
def test_every_way(model, clip, accumulation, attached, overlap):
    compare(Case(model, clip, accumulation), attached, overlap=overlap)


CASES = {
    "llama": Case("llama"),
    "gpt": Case("gpt", accumulation=2),  # a tied and a frozen parameter
    "gpt, never clipped": Case("gpt", "never"),
    "llama, always clipped": Case("llama", "always", accumulation=3),
}


@pytest.mark.parametrize(
    "case,policy,attached,overlap",
    spread(
        lambda case, policy, way: case == (policy + way) % 4 and (policy // 2 + way) % 2 == 0,
        list(CASES),
        list(POLICIES),
        WAYS,
    ),
)
def test_every_policy(case, policy, attached, overlap, tmp_path):
    plan = plan_file(make(CASES[case].model), POLICIES[policy], tmp_path)
    _, opt = compare(CASES[case], attached, overlap=overlap, plan=plan)
    assert opt.stats()["policy"] == POLICIES[policy][0]


@pytest.mark.parametrize("overlap", ["forward", "none"])
def test_a_plan_under_another_overlap(overlap, tmp_path):
    """What a plan for overlap both stages in clipped steps, or steals, does not bind others."""
    path = plan_file(make("llama"), ["zero-offload"], tmp_path, overlap="both")
    plan = json.loads(pathlib.Path(path).read_text())
    ahead = [subgroup for subgroup in plan["subgroups"] if subgroup["ahead"]]
    assert len(ahead) > 1
    ahead[0]["held_staged"] = True
    plan["staging"]["steals"] = True
    pathlib.Path(path).write_text(json.dumps(plan))
    compare(Case("llama", steps=3), True, overlap=overlap, plan=path)


@pytest.mark.parametrize(
    "overlap,gpu_memory",
    # 60,000 bytes are enough for new weights that wait for the norm; gradients wait there, too, and
    # need fewer slots. 30 MB are enough for state of
    # the first blocks, too: the engine's plan counts 12 MiB for each resident subgroup beside its
    # elements (SLAB_WASTE in engine/default_plan.c).
    [
        ("both", 60_000),
        ("both", 30_000_000),
        ("forward", 30_000_000),
        pytest.param("none", 30_000_000, marks=pytest.mark.full),
    ],
)
def test_memory_on_the_gpu(overlap, gpu_memory):
    case = Case("gpt", "sometimes", 2)
    _, opt = compare(case, True, overlap=overlap, gpu_memory=gpu_memory)
    _, bare, _, _ = train(case, True, 1, overlap=overlap)
    parameters = opt.stats()["parameters"]
    memory, without = opt.stats()["memory"], bare.stats()["memory"]
    more = memory["device_bytes"] - without["device_bytes"]
    early = more - (memory["slots_bytes"] - without["slots_bytes"])
    if gpu_memory > 12 << 20:
        assert parameters["resident"] > 0 and more > 12 * parameters["resident"]
    else:
        assert parameters["resident"] == 0 and 0 < early <= gpu_memory >= more
    assert parameters["resident"] + parameters["cpu"] == opt.stats()["python"]["elements"]


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
@pytest.mark.parametrize("attached,overlap", WAYS)
def test_every_type(dtype, attached, overlap):
    compare(Case("llama", "sometimes", 2, dtype, steps=10), attached, overlap=overlap)


@pytest.mark.parametrize("threads", [1, 3])
def test_every_number_of_threads(threads):
    case = Case("llama")
    other, expected, losses, _ = reference(case)
    model = make("llama")
    from runs import continue_run, shape, two_groups
    from reference import assert_same

    opt = hocket.AdamW(
        two_groups(model), lr=2e-3, max_norm=case.max_norm, cpu_threads=threads, overlap="both"
    )
    opt.attach(model)
    schedule = torch.optim.lr_scheduler.LambdaLR(opt, shape)
    assert continue_run(case, model, opt, schedule, 0, case.steps) == losses
    assert_same(opt, model, expected, other)


def test_updates_run_ahead_where_nothing_is_clipped():
    """Also when the learning rate changes in every step."""
    model, opt = compare(Case("llama", "never"), True, overlap="both")
    assert_ran_ahead(opt, model)


def test_sizes_that_are_no_multiple_of_a_vector():
    from reference import ReferenceAdamW, same_bits

    sizes = [1, 5, 2**20 + 13]
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        for attached in (False, True):
            torch.manual_seed(3)
            start = [torch.randn(size).to(dtype) for size in sizes]
            model = torch.nn.ParameterList(torch.nn.Parameter(value.clone()) for value in start)
            other = torch.nn.ParameterList(torch.nn.Parameter(value.clone()) for value in start)
            opt = hocket.AdamW(
                model.parameters(), lr=1e-2, cpu_threads=2, overlap="both" if attached else "none"
            )
            expected = ReferenceAdamW(other.parameters(), lr=1e-2)
            if attached:
                opt.attach(model)
            for step in range(3):
                for params in (model, other):
                    torch.manual_seed(step)
                    loss = sum((p.float() * torch.randn(p.shape)).sum() for p in params)
                    loss.backward()
                opt.step()
                expected.step()
                opt.zero_grad()
                expected.zero_grad()
            opt.synchronize()
            for p, q in zip(model, other):
                assert same_bits(p, q)
                for key in ("master_weight", "exp_avg", "exp_avg_sq"):
                    assert same_bits(opt.state[p][key], expected.state[q][key])


def test_accumulation_in_fp32_keeps_what_bf16_rounds_away():
    model, exact, rounded = make("llama"), make("llama"), make("llama")
    opt = hocket.AdamW(model.parameters(), cpu_threads=2, accumulate=torch.float32)
    opt.attach(model)
    sums = {}
    from runs import batches

    for batch in batches(4):
        model(batch).backward()
        exact(batch).backward()
        rounded(batch).backward()  # autograd accumulates in bf16
        for name, p in exact.named_parameters():
            sums[name] = sums.get(name, 0) + p.grad.float()
            p.grad = None
    held = {n: p for n, p in model.named_parameters() if isinstance(p.grad, hocket.GradientHandle)}
    assert "layers.0.up.weight" in held
    for name, p in held.items():
        assert torch.equal(opt.read_gradient(p), sums[name])
    in_bf16 = dict(rounded.named_parameters())
    assert all(not torch.equal(sums[name], in_bf16[name].grad.float()) for name in held)
