# SPDX-License-Identifier: Apache-2.0
"""Model documents, plans made from them, and the optimizer's stats, explanation and timeline."""

import gc
import json
import os
import subprocess
import sys
import time
import warnings
import weakref

import pytest
import torch
from torch import nn

import hocket
from hocket import HocketError, HocketUsageError, _abi, attach, plan
from hocket.__main__ import of_folder
from models import HEADS, LENGTH, VOCABULARY, WIDTH, batches, make
from runs import Case, compare


def test_blocks_tensors_and_flops():
    model = make("llama")
    document = hocket.describe(model, batches(1)[0])
    assert document["schema"] == "hocket.model/1" and document["name"] == "Llama"
    assert (document["micro_batch"], document["seq"]) == (2, LENGTH)
    names = [block["name"] for block in document["blocks"]]
    assert names == ["tokens", "layers.0", "layers.1", "layers.2", "norm"]
    assert {t["name"]: t["numel"] for t in document["tensors"]} == {
        n: p.numel() for n, p in model.named_parameters()
    }
    assert [t["block"] for t in document["tensors"]] == sorted(
        t["block"] for t in document["tensors"]
    )
    assert all(t["weight_type"] == t["grad_type"] == "bf16" for t in document["tensors"])
    tokens = 2 * LENGTH
    matrices = sum(p.numel() for n, p in model.layers[0].named_parameters() if p.dim() > 1)
    attention = 2 * 2 * 2 * HEADS * LENGTH * LENGTH * (WIDTH // HEADS)
    flops = [block["forward_flops"] for block in document["blocks"]]
    assert flops[1] == flops[2] == flops[3] == 2 * tokens * matrices + attention
    assert flops[4] == 2 * tokens * WIDTH * VOCABULARY and flops[0] == 0
    kept = [block["activation_bytes"] for block in document["blocks"]]
    assert kept[1] == kept[2] == kept[3] > 2 * tokens * WIDTH * 8


@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize("mask", [False, True])
def test_attention_is_counted(device, mask):
    """The products of query and key and of weights and value count, in any of PyTorch's kernels."""

    class Attention(nn.Linear):
        def forward(self, x):
            heads = super().forward(x).view(2, 12, 4, 8).transpose(1, 2)
            bias = torch.zeros(12, 12, device=x.device) if mask else None
            return nn.functional.scaled_dot_product_attention(heads, heads, heads, attn_mask=bias)

    model = Attention(32, 32, device=device)
    document = hocket.describe(model, torch.zeros(2, 12, 32, device=device))
    projection, attention = 2 * 24 * 32 * 32, 2 * 2 * (2 * 4 * 12 * 12 * 8)
    assert document["blocks"][0]["forward_flops"] == projection + attention


def test_activations_are_what_autograd_keeps():
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64))
    document = hocket.describe(model, torch.randn(8, 64))
    # Each layer keeps its input. The first input belongs to the caller, ReLU's output is the second
    # layer's input and counts once.
    assert sum(b["activation_bytes"] for b in document["blocks"]) == 8 * 256 * 4


def test_describing_computes_nothing_and_takes_meta_models_and_no_batch():
    with torch.device("meta"):
        model = nn.Sequential(*(nn.Linear(20000, 20000) for _ in range(20)))
    document = hocket.describe(model, torch.empty(4, 20000, device="meta"))
    assert len(document["blocks"]) == 20
    assert document["blocks"][7]["forward_flops"] == 2 * 4 * 20000**2
    bare = hocket.describe(make("gpt"))
    assert all(block["forward_flops"] == 0 for block in bare["blocks"])
    assert "positions.weight" not in {t["name"] for t in bare["tensors"]}


def test_frozen_weights_are_bytes_of_their_blocks():
    model = make("llama")
    whole = hocket.describe(model)
    assert not any("frozen_bytes" in block for block in whole["blocks"])
    model.tokens.weight.requires_grad_(False)
    model.layers[1].up.weight.requires_grad_(False)
    document = hocket.describe(model)
    frozen = {b["name"]: b["frozen_bytes"] for b in document["blocks"] if "frozen_bytes" in b}
    first = document["blocks"][0]["name"]
    assert frozen[first] >= 2 * model.tokens.weight.numel() and len(frozen) == 2
    assert frozen["layers.1"] == 2 * model.layers[1].up.weight.numel()
    assert "layers.1.up.weight" not in {t["name"] for t in document["tensors"]}


def test_transformers_models_are_described():
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        vocab_size=128,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=3,
        num_attention_heads=4,
        max_position_embeddings=64,
    )
    model = transformers.LlamaForCausalLM(config)
    ids = torch.zeros(2, 16, dtype=torch.long)
    batch = {"input_ids": ids, "labels": ids, "attention_mask": torch.ones_like(ids)}
    try:
        document = hocket.describe(model, batch)
    except HocketUsageError as error:  # older versions read the mask's values
        assert "without attention_mask" in str(error)
        del batch["attention_mask"]
        document = hocket.describe(model, batch)
    names = [block["name"] for block in document["blocks"]]
    assert names[1:4] == [f"model.layers.{n}" for n in range(3)] and len(names) == 5
    assert document["seq"] == 16 and document["blocks"][4]["forward_flops"] == 2 * 32 * 64 * 128


FOREIGN = {
    "mamba2": {
        "architectures": ["Mamba2ForCausalLM"],
        "hidden_size": 32,
        "num_hidden_layers": 3,
        "vocab_size": 96,
        "num_heads": 4,
        "head_dim": 16,
        "state_size": 8,
        "n_groups": 1,
    },
    "qwen3_next": {
        "architectures": ["Qwen3NextForCausalLM"],
        "hidden_size": 32,
        "num_hidden_layers": 4,
        "vocab_size": 96,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 16,
        "linear_num_value_heads": 2,
        "linear_num_key_heads": 2,
        "linear_key_head_dim": 8,
        "linear_value_head_dim": 8,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 16,
        "shared_expert_intermediate_size": 16,
    },
}


def folder_of(path, kind, **other):
    path.mkdir()
    (path / "config.json").write_text(json.dumps({"model_type": kind, **FOREIGN[kind], **other}))
    return path


@pytest.mark.parametrize("kind", ["mamba2", pytest.param("qwen3_next", marks=pytest.mark.full)])
def test_folders_of_kinds_that_the_program_does_not_count(kind, tmp_path):
    transformers = pytest.importorskip("transformers")
    if not hasattr(transformers, FOREIGN[kind]["architectures"][0]):
        pytest.skip(f"transformers {transformers.__version__} has no {kind}")
    folder = folder_of(tmp_path / "mine", kind)
    plain = of_folder(str(folder), 64, checkpoint=False)
    saved = of_folder(str(folder / "config.json"), 64)
    model = transformers.AutoModelForCausalLM.from_config(
        transformers.AutoConfig.from_pretrained(folder)
    )
    expected = {name: p.numel() for name, p in model.named_parameters()}
    assert {t["name"]: t["numel"] for t in plain["tensors"]} == expected
    assert (plain["name"], saved["name"]) == ("mine", "mine")
    assert (plain["micro_batch"], plain["seq"]) == (1, 64)
    assert {t["weight_type"] for t in plain["tensors"]} == {"bf16"}
    assert all(block["forward_flops"] > 0 for block in plain["blocks"][1:])
    for whole, part in zip(plain["blocks"][1:-1], saved["blocks"][1:-1]):
        assert part["activation_bytes"] == 2 * 64 * 32 < whole["activation_bytes"]
        of_both = [b["activation_bytes"] + b["workspace_bytes"] for b in (whole, part)]
        assert of_both[0] == of_both[1]


def test_what_cannot_be_described_says_why(tmp_path):
    transformers = pytest.importorskip("transformers")
    transformers.WhisperConfig(architectures=["WhisperForConditionalGeneration"]).save_pretrained(
        tmp_path / "whisper"
    )
    with pytest.raises(HocketUsageError, match="takes input_features, not tokens"):
        of_folder(str(tmp_path / "whisper"))
    for other in ("NoSuchModel", "pipeline", "AutoConfig"):
        with pytest.raises(HocketUsageError, match=f"has no {other}$"):
            of_folder(str(folder_of(tmp_path / other, "mamba2", architectures=[other])))


@pytest.mark.full
def test_the_program_asks_the_package(tmp_path, root):
    pytest.importorskip("transformers")
    folder = folder_of(tmp_path / "mine", "mamba2")
    search = f"{os.path.dirname(sys.executable)}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        [plan.program(), "plan", "--model", folder, "--machine", "h200-16c", "--json"],
        capture_output=True,
        text=True,
        env={**os.environ, "PATH": search, "PYTHONPATH": str(root / "python")},
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["best"] == 0


def shown(path, seq):
    """The output of ``hocket model show`` for a file."""
    done = subprocess.run(
        [plan.program(), "model", "show", path, "--seq", str(seq), "--json"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


SHAPE = {
    "vocab_size": 128,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
OF_EXPERTS = {"moe_intermediate_size": 32, "num_experts": 8, "num_experts_per_tok": 2}


@pytest.mark.parametrize(
    ("kind", "more"),
    [
        ("llama", {}),
        ("gemma2", {"head_dim": 16, "pad_token_id": 0}),
        ("mixtral", {"num_local_experts": 4}),
        ("qwen3_moe", OF_EXPERTS),
        ("qwen2_moe", {**OF_EXPERTS, "shared_expert_intermediate_size": 48}),
        ("gpt_neox", {}),
    ],
)
def test_a_document_and_the_config_agree(kind, more, tmp_path):
    """The program derives the same parameters and FLOPs from config.json as torch's counter."""
    transformers = pytest.importorskip("transformers", minversion="5")
    config = transformers.AutoConfig.for_model(kind, **SHAPE, **more)
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config)
        model.tie_weights()  # older versions of transformers do not tie tensors without data
        model.bfloat16()
        ids = torch.zeros(1, 32, dtype=torch.long)
    config.save_pretrained(tmp_path)
    document = tmp_path / "document.json"
    try:
        described = hocket.describe(model, {"input_ids": ids, "labels": ids})
    except HocketUsageError:
        if hasattr(torch, "_grouped_mm"):
            raise
        pytest.skip("without torch's products of groups, transformers looks for each expert's rows")
    document.write_text(json.dumps(described))
    listed, read = shown(document, 32), shown(tmp_path, 32)
    assert listed["parameters"] == read["parameters"]
    # Some versions of transformers compute rotary angles by a matrix product, which is counted.
    frequencies = [b for name, b in model.named_buffers() if name.endswith("rotary_emb.inv_freq")]
    angles = sum(2 * b.numel() for b in frequencies)
    flops = pytest.approx(read["forward_flops_per_token"])
    assert flops in [listed["forward_flops_per_token"] - n for n in (0, angles)]


def test_nothing_to_describe():
    with pytest.raises(HocketUsageError, match="nothing to train"):
        hocket.describe(nn.ReLU())
    with pytest.raises(HocketUsageError, match="float64"):
        hocket.describe(nn.Linear(2, 2).double())


def test_profile_adds_times_and_leaves_the_model_alone():
    model = make("llama")
    before = [p.detach().clone() for p in model.parameters()]
    marker = torch.ones_like(model.head.weight)
    model.head.weight.grad = marker
    document = hocket.profile(model, batches(1)[0], steps=2)
    assert all(b["forward_ms"] >= 0 and b["backward_ms"] >= 0 for b in document["blocks"])
    assert sum(b["forward_ms"] + b["backward_ms"] for b in document["blocks"]) > 0.1
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters()))
    assert model.head.weight.grad is marker and model.tokens.weight.grad is None


def test_a_described_model_with_checkpointing_can_be_freed():
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=2, vocab_size=32, use_cache=False,
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(config).train()
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    weights = [weakref.ref(param) for param in model.parameters()]
    tokens = torch.zeros(1, 8, dtype=torch.long)
    hocket.describe(model, {"input_ids": tokens, "labels": tokens, "use_cache": False})
    del model
    gc.collect()
    assert not any(weight() is not None for weight in weights)


def test_the_program_plans_with_the_document(tmp_path):
    (tmp_path / "model.json").write_text(
        json.dumps(hocket.profile(make("llama"), batches(1)[0], steps=1))
    )
    done = subprocess.run(
        [
            plan.program(),
            "plan",
            "--model",
            tmp_path / "model.json",
            "--machine",
            "h200-16c",
            "--gpus",
            "1",
            "--json",
        ],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["parameters"] == sum(
        p.numel() for p in make("llama").parameters()
    )


@pytest.mark.parametrize("overlap", ["none", "forward", "both"])
def test_plan_auto(overlap, monkeypatch):
    monkeypatch.setenv("HOCKET_MACHINE", "h200-16c")
    monkeypatch.setattr(attach, "HOOK_NUMEL", 1024)
    _, opt = compare(Case("llama", steps=10), True, overlap=overlap, plan="auto")
    assert 'plan="auto" chose: ' in opt.explain() and "no reason" not in opt.explain()


@pytest.mark.parametrize("given", [None, 10**9])
def test_plan_auto_counts_the_memory_of_this_host(given, monkeypatch):
    monkeypatch.setenv("HOCKET_MACHINE", "h200-16c")  # with 128 GiB
    monkeypatch.setattr(_abi, "host_memory", lambda: 1 << 38)
    answers, run = [], plan.run

    def noted(arguments):
        answers.append(run(arguments))
        return answers[-1]

    monkeypatch.setattr(plan, "run", noted)
    compare(Case("llama", steps=2), True, overlap="both", plan="auto", host_memory=given)
    assert answers[-1]["schedules"][0]["host_capacity_bytes"] == (given or 1 << 38)


def test_plan_auto_says_what_other_states_give(monkeypatch):
    monkeypatch.setenv("HOCKET_MACHINE", "h200-16c")
    run = plan.run
    other = [{"options": f"--{option}", "gain": gain} for option, gain in
             (("state bf16", 1.5), ("state split", 1.25), ("micro-batch 2", 2.0))]

    def answer(arguments):
        found = run(arguments)
        return {**found, "advice": other} if arguments[0] == "plan" else found

    monkeypatch.setattr(plan, "run", answer)
    _, opt = compare(Case("llama", steps=2), True, overlap="forward", plan="auto")
    lines = [line for line in opt.explain().splitlines() if "times as fast" in line]
    exact = opt.param_groups[0]["params"][0].dtype is torch.bfloat16
    assert lines[0] == "With state='bf16' it would be 1.50 times as fast."
    assert len(lines) == 1 + exact  # split is for bf16 weights


def test_plan_auto_for_clipped_steps(monkeypatch):
    monkeypatch.setenv("HOCKET_MACHINE", "h200-16c")
    asked = []
    run = plan.run
    monkeypatch.setattr(plan, "run", lambda arguments: asked.append(arguments) or run(arguments))
    compare(Case("llama", steps=4), True, overlap="both", plan="auto", clip_share=0.25)
    ranked = [arguments for arguments in asked if arguments[0] == "plan"]
    assert len(ranked) == 1
    assert ranked[0][ranked[0].index("--clip-share") + 1] == "0.25"


def test_plan_auto_says_what_it_was_not_told(monkeypatch):
    monkeypatch.setenv("HOCKET_MACHINE", "h200-16c")
    monkeypatch.setattr(attach, "HOOK_NUMEL", 1024)
    run = plan.run
    on_host = ["--policy", "zero-offload"]  # what "auto" would choose for a large model

    def answer(arguments):
        return run(arguments + on_host if arguments[0] == "plan" else arguments)

    monkeypatch.setattr(plan, "run", answer)
    case = Case("llama", "always", accumulation=3, steps=24)
    with pytest.warns(UserWarning, match=r"made for 1 backward\(s\).*accumulation_steps=3") as said:
        _, opt = compare(case, True, overlap="both", plan="auto")
    assert len([w for w in said if "backward(s)" in str(w.message)]) == 1
    assert "accumulation_steps=3" in opt.explain() and "clip_share=1" in opt.explain()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        told = dict(plan="auto", accumulation_steps=3, clip_share=1)
        _, opt = compare(case, True, overlap="both", **told)
    assert "would" not in opt.explain()


def test_plan_auto_keeps_no_batch(monkeypatch):
    """The plan is made in the first backward; forwards before the first step follow."""
    monkeypatch.setenv("HOCKET_MACHINE", "h200-16c")
    monkeypatch.setattr(attach, "HOOK_NUMEL", 1024)
    model = make("llama")
    opt = hocket.AdamW(model.parameters(), plan="auto")
    opt.attach(model)
    kept = batches(2)
    for batch in kept:
        model(batch).backward()
    opt.step()
    kept[:], batch = [weakref.ref(each) for each in kept], None
    gc.collect()
    assert [each() for each in kept] == [None, None]


def test_plan_auto_names_what_is_missing(monkeypatch, tmp_path):
    model = make("llama")
    opt = hocket.AdamW(model.parameters(), plan="auto")
    with pytest.raises(HocketUsageError, match="needs opt.attach"):
        opt.bind()
    opt.attach(model)
    monkeypatch.setenv("HOCKET_MACHINE", "no-such-machine")
    with pytest.raises(HocketError, match="no-such-machine"):
        opt.bind()
    monkeypatch.delenv("HOCKET_MACHINE")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    with pytest.raises(HocketError, match="hocket calibrate"):
        opt.bind()
    monkeypatch.setenv("HOCKET_PROGRAM", str(tmp_path / "none"))
    with pytest.raises(HocketError, match="cannot be run"):
        opt.bind()


def test_stats_and_explain():
    opt = hocket.AdamW(make("llama").parameters())
    assert opt.stats() == {} and "no engine yet" in opt.explain()
    _, opt = compare(Case("llama", steps=10), True, overlap="forward")
    stats = opt.stats()
    assert stats["schema"] == "hocket.engine/1" and stats["last_step"]["step"] == 10
    assert stats["python"]["blocks"] == 5 and stats["python"]["hand_over_s"] > 0
    for word in ("overlap forward", "5 blocks", "step 10"):
        assert word in opt.explain()


def test_timeline_has_forward_and_backward_of_blocks(monkeypatch):
    monkeypatch.setattr(attach, "HOOK_NUMEL", 1024)
    model = make("llama")
    opt = hocket.AdamW(model.parameters(), cpu_threads=2, overlap="forward")
    opt.attach(model)
    model(batches(1)[0]).backward()
    opt.step()
    opt.zero_grad()
    with pytest.raises(HocketError, match="nothing is recorded"):
        opt.timeline()
    opt.record()
    for batch in batches(3):
        model(batch).backward()
        opt.step()
        opt.zero_grad()
    timeline = opt.timeline()
    assert timeline["schema"] == "hocket.spans/1"
    found = {}
    for span in timeline["spans"]:
        found.setdefault(span["name"].split()[0], []).append(span.get("block"))
        assert span["end_ms"] >= span["start_ms"]
    assert {0, 1, 2, 3, 4} == set(found["forward"])
    assert {1, 2, 3} <= set(found["backward"])
    assert {"grad_d2h", "adamw_cpu", "weight_h2d"} <= set(found)
    opt.record(False)
