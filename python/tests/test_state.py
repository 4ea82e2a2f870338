# SPDX-License-Identifier: Apache-2.0
"""hocket.AdamW(state=...): the bits of each format, resumed runs, and what is refused."""

import re

import hocket
import pytest
import torch

from hocket.report import PURPOSES


def network(dtype=torch.bfloat16):
    torch.manual_seed(0)
    return torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(4)]).to(dtype)


def optimizer(net, state, **arguments):
    return hocket.AdamW(net.parameters(), lr=1e-3, state=state, backend="host", **arguments)


def train(net, opt, first, last):
    for step in range(first, last):
        torch.manual_seed(100 + step)
        net(torch.randn(8, 64, dtype=torch.bfloat16)).float().square().mean().backward()
        opt.step()
        opt.zero_grad()


def weights(net):
    return [p.detach().clone() for p in net.parameters()]


def same(a, b):
    return all(torch.equal(x, y) for x, y in zip(a, b))


def trained(state, steps=6, **arguments):
    net = network()
    opt = optimizer(net, state, **arguments)
    train(net, opt, 0, steps)
    return weights(net), opt


def test_split_has_the_bits_of_fp32():
    plain, _ = trained("fp32")
    split, opt = trained("split")
    assert same(plain, split)
    assert opt.stats()["state"] == "split"


def test_bf16_differs_from_fp32_and_depends_on_the_seed():
    plain, _ = trained("fp32")
    bf16, opt = trained("bf16", seed=5)
    assert not same(plain, bf16)
    assert same(bf16, trained("bf16+split", seed=5)[0])
    assert not same(bf16, trained("bf16", seed=6, steps=6)[0])
    for state in opt.state.values():
        assert state["exp_avg_sq"].dtype is torch.float32
        assert torch.equal(state["exp_avg_sq"].bfloat16().float(), state["exp_avg_sq"])


def test_8bit_has_two_layouts_of_the_same_values():
    plain, _ = trained("fp32")
    coded, opt = trained("8bit", seed=5)
    assert not same(plain, coded)
    split, other = trained("8bit+split", seed=5)
    assert same(coded, split)
    for one, two in zip(opt.state.values(), other.state.values()):
        for name in ("exp_avg", "exp_avg_sq"):
            assert torch.equal(one[name], two[name])
            kept = one[name].view(torch.int32) & 0xFFFFF
            assert one[name].dtype is torch.float32 and not kept.any()


@pytest.mark.parametrize("state", ("split", "bf16", "bf16+split", "8bit", "8bit+split"))
@pytest.mark.parametrize("by_file", (False, True))
def test_a_resumed_run_has_the_same_bits(state, by_file, tmp_path):
    whole, _ = trained(state, seed=5)
    net = network()
    opt = optimizer(net, state, seed=5)
    train(net, opt, 0, 3)
    again = network()
    again.load_state_dict(net.state_dict())
    # A file has the seed; with state_dict it is given again.
    other = optimizer(again, state, seed=0 if by_file else 5)
    if by_file:
        opt.save(tmp_path / "state.ck")
        other.load(tmp_path / "state.ck")
    else:
        other.load_state_dict(opt.state_dict())
    train(again, other, 3, 6)
    assert same(weights(again), whole)


@pytest.mark.parametrize("state", ("fp32", "split", "bf16", "bf16+split", "8bit", "8bit+split"))
def test_buffers_are_listed(state):
    elements = 4 * (64 * 64 + 64)
    opt = trained(state, 2)[1]
    report, text = opt.stats(), opt.explain()
    host = report["buffers"]["host"]
    assert sum(host.values()) == report["memory"]["host_pinned_bytes"]
    assert sum(report["buffers"]["device"].values()) == report["memory"]["device_bytes"]
    assert host["spares"] == 0
    assert host["state"] >= elements * (6 if "8bit" in state else 8 if "bf16" in state else 12)
    assert (host["weights"] == 0) == ("split" in state)
    assert host["weights"] == 0 or host["weights"] >= 2 * elements
    assert f"state: {state}\n" in text
    assert f"pinned host memory: {report['memory']['host_pinned_bytes']:,} bytes\n" in text
    for where in ("host", "device"):
        for name, size in report["buffers"][where].items():
            line = f"  {name:15} {size:>15,}  {PURPOSES[name]}\n"
            assert (line in text) == (size > 0), name


def test_updates_ahead_of_the_norm_need_spares_in_the_format():
    spares = {}
    for state in ("fp32", "bf16"):
        net = network()
        opt = optimizer(net, state, overlap="both")
        opt.attach(net)
        train(net, opt, 0, 2)
        opt.synchronize()
        spares[state] = opt.stats()["buffers"]["host"]["spares"]
    assert 0.6 < spares["bf16"] / spares["fp32"] < 0.7


def test_spares_that_were_never_used_are_named():
    net = network()
    opt = optimizer(net, "fp32", overlap="both")
    opt.attach(net)
    most = 0
    for step in range(8):
        train(net, opt, step, step + 1)
        most = max(most, opt.last_step.ahead)
    opt.synchronize()
    report, text = opt.stats(), opt.explain()
    ahead, host = report["running_ahead"], report["memory"]["host_pinned_bytes"]
    may = report["parameters"]["ahead"]
    assert may == 3 * (64 * 64 + 64)  # of the first block the norm is known with its gradients
    assert ahead["most_elements"] == most and ahead["kept_steps"] > 0
    blocks = -(-most // (64 * 64 + 64))  # whose spares were needed
    unused = report["buffers"]["host"]["spares"] * (3 - blocks) // 3
    assert ahead["enough_host_bytes"] == host - unused
    said = f"at most {most:,} were: host_memory={host - unused:_} would do." in text
    assert said == (unused > 0)


def test_refused():
    with pytest.raises(hocket.HocketUsageError, match="it is 'fp32', 'split'"):
        optimizer(network(), "lion")
    with pytest.raises(hocket.HocketUsageError, match="seed=-1"):
        optimizer(network(), "bf16", seed=-1)
    net = network(torch.float32)
    opt = optimizer(net, "split")
    net(torch.randn(8, 64)).square().mean().backward()
    with pytest.raises(hocket.HocketError, match="keeps bf16 weights, and tensor 0 has fp32"):
        opt.step()


@pytest.mark.parametrize("bound", (False, True))
def test_a_negative_variance_is_refused_by_split(bound):
    _, opt = trained("fp32", 2)
    saved = opt.state_dict()
    saved["state"][1]["exp_avg_sq"][3] = -0.0
    net = network()
    opt = optimizer(net, "split")
    if bound:
        train(net, opt, 0, 1)
    with pytest.raises(hocket.HocketError, match="takes no variance that is negative or -0"):
        opt.load_state_dict(saved)
        train(net, opt, 1, 2)  # without an engine, state is loaded by the first step
    if bound:  # a part has been loaded
        with pytest.raises(hocket.HocketError, match="state_dict"):
            train(net, opt, 1, 2)
    saved["state"][1]["exp_avg_sq"][3] = 0.0
    opt.load_state_dict(saved)
    train(net, opt, 1, 2)


def test_a_refusal_for_lack_of_host_memory_names_the_state_that_fits():
    needs = {}
    for state in ("split", "bf16", "bf16+split", "8bit+split"):
        needs[state] = trained(state, 1)[1].stats()["memory"]["host_pinned_bytes"]
    assert needs["split"] > needs["bf16"] > needs["bf16+split"] > needs["8bit+split"]
    for state, most in needs.items():
        with pytest.raises(hocket.HocketError, match=f"or use state '{re.escape(state)}'$"):
            trained("fp32", 1, host_memory=most)
        trained(state, 1, host_memory=most)
    with pytest.raises(hocket.HocketError, match=r"\(gpu_memory\)$"):
        trained("fp32", 1, host_memory=needs["8bit+split"] - 1)
    wide = network(torch.float32)
    opt = optimizer(wide, "fp32", host_memory=needs["split"] - 1)
    wide(torch.randn(8, 64)).square().mean().backward()
    with pytest.raises(hocket.HocketError, match=r"\(gpu_memory\)(, or use state '(bf16|8bit)')?$"):
        opt.step()
