# SPDX-License-Identifier: Apache-2.0
"""What is refused, and that the message says what to do instead."""

import os
import re

import pytest
import torch
from torch import nn

import hocket
from hocket import HocketError, HocketUsageError, attach
from models import batches, make
from runs import plan_file, started


@pytest.fixture(autouse=True)
def _hooks_on_small_tensors(monkeypatch):
    monkeypatch.setattr(attach, "HOOK_NUMEL", 512)


# -- Options ---------------------------------------------------------------------------------------

LINEAR = nn.Linear(4, 4)
REFUSED = [
    (dict(amsgrad=True), "amsgrad=True is not supported"),
    (dict(maximize=True), "maximize=True is not supported"),
    (dict(capturable=True), "capturable=True is not supported"),
    (dict(differentiable=True), "differentiable=True is not supported"),
    (dict(lr=-1.0), "lr=-1.0"),
    (dict(lr=float("nan")), "lr=nan"),
    (dict(lr=float("inf")), "lr=inf"),
    (dict(betas=(0.9, 1.0)), r"betas\[1\]=1.0"),
    (dict(betas=(-0.1, 0.99)), r"betas\[0\]=-0.1"),
    (dict(eps=float("nan")), "eps=nan"),
    (dict(eps=-1e-8), "eps=-1e-08"),
    (dict(weight_decay=-1.0), "weight_decay=-1.0"),
    (dict(overlap="backward"), "overlap='backward': it is 'none', 'forward' or 'both'"),
    (dict(backend="gpu"), "backend='gpu'"),
    (dict(max_norm=0.0), "max_norm=0.0: it is above 0"),
    (dict(max_norm=float("nan")), "max_norm=nan: it is above 0"),
    (dict(accumulate=torch.float64), "accumulate=torch.float64"),
    (dict(accumulate=torch.bfloat16), "accumulate=torch.bfloat16"),
    (dict(cpu_threads=0), "cpu_threads=0"),
    (dict(cpu_threads=1.5), "cpu_threads=1.5"),
    (dict(gpu_memory=-1), "gpu_memory=-1"),
    (dict(clip_share=1.5, plan="auto"), "clip_share=1.5"),
    (dict(clip_share=0.5), 'clip_share is for plan="auto"'),
    (dict(host_memory="96GiB"), "host_memory='96GiB'"),
]


@pytest.mark.parametrize("options,message", REFUSED, ids=[str(o) for o, _ in REFUSED])
def test_refused_options(options, message):
    with pytest.raises(HocketUsageError, match=message) as error:
        hocket.AdamW(LINEAR.parameters(), **options)
    assert error.value.code == 2


SWITCHES = ["amsgrad", "maximize", "capturable", "differentiable"]


@pytest.mark.parametrize("option", SWITCHES)
def test_options_refused_in_arguments_groups_and_state(option):
    with pytest.raises(HocketUsageError, match=f"{option}=True is not supported"):
        hocket.AdamW([{"params": LINEAR.parameters(), option: True}])
    opt = hocket.AdamW(LINEAR.parameters())
    state = opt.state_dict()
    state["param_groups"][0][option] = True
    with pytest.raises(HocketUsageError, match=f"{option}=True is not supported"):
        opt.load_state_dict(state)
    opt.param_groups[0][option] = True
    with pytest.raises(HocketUsageError, match=f"{option}=True is not supported"):
        opt.bind()
    assert not opt.is_bound()


@pytest.mark.parametrize(
    "options",
    [
        dict(foreach=True),
        dict(fused=True),
        dict(lr=torch.tensor(0.1)),
        dict(amsgrad=False),
        dict(betas=(torch.tensor(0.9), 0.99)),
    ],
)
def test_accepted_options(options):
    hocket.AdamW(LINEAR.parameters(), **options)


def test_invalid_hyperparameters_after_the_first_step():
    model, opt = started()
    opt.param_groups[0]["lr"] = -1.0
    model(batches(1)[0]).backward()
    with pytest.raises(HocketError, match="lr"):
        opt.step()
    opt.param_groups[0]["lr"] = 1e-3
    opt.step()
    opt.synchronize()


def test_accumulate_and_overlap_without_attach():
    for options, kind in (
        (dict(accumulate=torch.float32), HocketUsageError),
        (dict(overlap="forward"), None),
    ):
        model = make("gpt")
        opt = hocket.AdamW(model.parameters(), cpu_threads=2, **options)
        model(batches(1)[0]).backward()
        if kind:
            with pytest.raises(kind, match="attach"):
                opt.step()
        else:
            with pytest.warns(UserWarning, match="no effect without opt.attach"):
                opt.step()


def test_backend_and_device_disagree():
    with pytest.raises(HocketUsageError, match="backend='cuda' with parameters on cpu"):
        hocket.AdamW(LINEAR.parameters(), backend="cuda").bind()


def test_too_little_host_memory_is_refused():
    model = make("gpt")
    opt = hocket.AdamW(model.parameters(), cpu_threads=2, host_memory=1000)
    model(batches(1)[0]).backward()
    with pytest.raises(HocketError, match="host"):
        opt.step()


def test_a_plan_of_another_model_is_refused(tmp_path):
    plan = plan_file(make("llama"), ["zero-offload"], tmp_path)
    model = make("gpt")
    opt = hocket.AdamW(model.parameters(), cpu_threads=2, plan=plan)
    with pytest.raises(HocketError, match="must be of one model and one rank"):
        opt.bind()
    with pytest.raises(HocketError, match="nowhere.json"):
        hocket.AdamW(model.parameters(), plan=tmp_path / "nowhere.json").bind()


# -- Parameters ------------------------------------------------------------------------------------

BAD_PARAMETERS = [
    (
        lambda: nn.Parameter(torch.zeros(4, dtype=torch.float64)),
        "float64.*bfloat16, float16 and float32",
    ),
    (lambda: nn.Parameter(torch.zeros(4, dtype=torch.complex64)), "complex"),
    (lambda: nn.Parameter(torch.zeros(4, device="meta")), "device meta"),
    (lambda: nn.Parameter(torch.zeros(8)[::2]), "strides.*make it contiguous"),
    (lambda: nn.Parameter(torch.zeros(1).expand(4)), "strides"),
]


@pytest.mark.parametrize("bad,message", BAD_PARAMETERS, ids=[m for _, m in BAD_PARAMETERS])
def test_refused_parameters(bad, message):
    with pytest.raises(HocketUsageError, match=message):
        hocket.AdamW([bad()]).bind()


def test_nothing_to_train():
    p = nn.Parameter(torch.zeros(3), requires_grad=False)
    with pytest.raises(HocketUsageError, match="no parameter requires a gradient"):
        hocket.AdamW([p]).bind()
    with pytest.raises(ValueError, match="empty parameter list"):
        hocket.AdamW([])


def test_two_parameters_in_the_same_memory():
    p = nn.Parameter(torch.zeros(8))
    q = nn.Parameter(p.detach()[2:6])
    with pytest.raises(HocketUsageError, match="same memory.*sharing one nn.Parameter"):
        hocket.AdamW([p, q]).bind()


@pytest.mark.parametrize("attached", [True, False])
@pytest.mark.parametrize(
    "change,message",
    [
        (lambda m: m.float(), "has changed its type.*load this one's state_dict"),
        (
            lambda m: setattr(m.tokens.weight, "data", m.tokens.weight.data.clone()),
            "tokens.weight|parameter 0",
        ),
        (lambda m: m.to_empty(device="cpu"), "has been given other memory"),
    ],
)
def test_parameters_moved_or_retyped(change, message, attached):
    model, opt = started(attached=attached)
    change(model)
    with pytest.raises(HocketUsageError, match=message):
        model(batches(1)[0]).backward()
        opt.step()


def test_weights_replaced_by_others_are_refused_with_advice():
    model, opt = started()
    model(batches(1)[0]).backward()
    opt.step()
    torch.nn.utils.vector_to_parameters(
        torch.nn.utils.parameters_to_vector(model.parameters()), model.parameters()
    )
    model(batches(1)[0]).backward()
    with pytest.raises(HocketError, match=r"other memory since the first step: .*copy_\(\)"):
        opt.step()


def test_parameters_added_later():
    model, opt = started()
    with pytest.raises(HocketUsageError, match="added after the first step"):
        opt.add_param_group({"params": [nn.Parameter(torch.zeros(3))]})
    opt.param_groups[0]["params"].append(nn.Parameter(torch.zeros(3)))
    model(batches(1)[0]).backward()
    with pytest.raises(HocketUsageError, match="added to a param group"):
        opt.step()


def test_a_parameter_unfrozen_later():
    model, opt = started()
    model.positions.weight.requires_grad_(True)
    model(batches(1)[0]).backward()
    with pytest.raises(HocketUsageError, match="did not require one at the first step"):
        opt.step()


# -- Gradients -------------------------------------------------------------------------------------


def test_sparse_gradients():
    model = nn.Embedding(64, 32, sparse=True)
    opt = hocket.AdamW(model.parameters(), cpu_threads=2)
    model(torch.tensor([1, 2])).sum().backward()
    with pytest.raises(HocketUsageError, match="sparse gradient"):
        opt.step()
    model, opt = nn.Embedding(64, 32, sparse=True), None
    opt = hocket.AdamW(model.parameters(), cpu_threads=2)
    opt.attach(model)
    with pytest.raises(HocketUsageError, match="sparse gradient"):
        model(torch.tensor([1, 2])).sum().backward()


def test_create_graph():
    model, opt = started()
    with pytest.raises(HocketUsageError, match="create_graph=True"):
        model(batches(1)[0]).backward(create_graph=True)


@pytest.mark.skipif(not hasattr(torch.Tensor, "grad_dtype"), reason="torch before 2.10")
def test_a_gradient_of_another_type_is_refused_with_advice_that_helps():
    def backward(model):
        model.weight.grad_dtype = torch.float32
        model(torch.ones(2, 8, dtype=torch.bfloat16)).sum().backward()

    model = nn.Linear(8, 8).bfloat16()
    opt = hocket.AdamW(model.parameters(), cpu_threads=1)
    backward(model)
    with pytest.raises(HocketUsageError, match=r"weight .*float32.*accumulate=torch.float32"):
        opt.step()
    model = nn.Linear(8, 8).bfloat16()
    opt = hocket.AdamW(model.parameters(), cpu_threads=1, accumulate=torch.float32)
    opt.attach(model)
    for _ in range(2):  # the second gradient is added to the first, in the engine
        backward(model)
    assert torch.equal(opt.read_gradient(model.weight), torch.full((8, 8), 4.0))
    opt.step()
    assert opt.last_step.step == 1


# -- Files, models and processes -------------------------------------------------------------------


def test_a_cut_file_of_groups_is_refused_by_name(tmp_path):
    model, opt = started()
    opt.bind()
    opt.save(tmp_path / "state")
    file = tmp_path / "state.json"
    file.write_text(file.read_text()[:40])
    with pytest.raises(HocketError, match=r"state.json is damaged .*remove this file"):
        opt.load(tmp_path / "state")
    file.unlink()
    opt.load(tmp_path / "state")


def test_attach_twice_or_late_or_to_another_model():
    model, opt = started()
    with pytest.raises(HocketUsageError, match="called already"):
        opt.attach(model)
    model, opt = started(attached=False)
    with pytest.raises(HocketUsageError, match="after the first step"):
        opt.attach(model)
    model = make("gpt")
    opt = hocket.AdamW([*model.parameters(), nn.Parameter(torch.zeros(3))], cpu_threads=2)
    opt.attach(model)
    with pytest.raises(HocketUsageError, match="not in the attached model.*ModuleDict"):
        model(batches(1)[0]).backward()


def test_attach_refuses_parallel_wrappers(tmp_path):
    model = nn.Linear(4, 4)
    wrapped = nn.DataParallel(model)
    with pytest.raises(HocketUsageError, match="DataParallel"):
        hocket.AdamW(model.parameters()).attach(wrapped)
    torch.distributed.init_process_group("gloo", f"file://{tmp_path}/store", world_size=1, rank=0)
    try:
        ddp = nn.parallel.DistributedDataParallel(model)
        opt = hocket.AdamW(ddp.parameters(), cpu_threads=2)  # as a drop-in it works
        ddp(torch.ones(2, 4)).sum().backward()
        opt.step()
        from torch.distributed.fsdp import FullyShardedDataParallel

        flat = FullyShardedDataParallel(
            nn.Linear(4, 4), device_id=torch.device("cpu")
        )
        with pytest.raises(HocketUsageError, match="FullyShardedDataParallel: attach a plain"):
            hocket.AdamW(flat.parameters()).attach(flat)
        opt = hocket.AdamW(flat.parameters())
        flat(torch.ones(2, 4)).sum().backward()
        with pytest.raises(HocketUsageError, match="belongs to FSDP1.*use FSDP2"):
            opt.step()
    finally:
        torch.distributed.destroy_process_group()


def test_attach_under_several_ranks_is_refused(monkeypatch):
    model = make("gpt")
    opt = hocket.AdamW(model.parameters(), cpu_threads=2)
    opt.attach(model)
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 2)
    with pytest.raises(HocketUsageError, match="group of 2 ranks"):
        model(batches(1)[0]).backward()


def test_a_forked_child_is_refused_and_changes_nothing():
    model, opt = started()
    opt.synchronize()
    before = opt.checksum()
    child = os.fork()
    if child == 0:
        try:
            opt.checksum()
        except HocketError as error:
            os._exit(7 if error.code == 2 and "forked" in str(error) else 8)
        os._exit(9)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert opt.checksum() == before


# -- The page that explains messages ---------------------------------------------------------------


def test_messages_of_the_troubleshooting_page_exist(root):
    """Each message that docs/troubleshooting.md quotes is one of the sources'."""
    sources = [*(root / "python/hocket").rglob("*.py"), *(root / "engine").rglob("*.c*")]
    # Adjacent literals are one text.
    text = "\n".join(re.sub(r'"\s*f?"', "", path.read_text()) for path in sources)
    page = (root / "docs/troubleshooting.md").read_text()
    quoted = re.findall(r"^\| `([^`]+)` \|", page, re.M)
    assert len(quoted) > 20
    assert [message for message in quoted if message not in text] == []


@pytest.mark.parametrize("change", ["replaced", "moved"])
def test_other_parameters_in_the_groups_are_refused(change):
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    groups = [{"params": list(layer.parameters())} for layer in model]
    opt = hocket.AdamW(groups, cpu_threads=1)
    for _ in range(2):
        model(torch.ones(2, 8)).sum().backward()
        opt.step()
        opt.zero_grad()
    first, second = (group["params"] for group in opt.param_groups)
    if change == "replaced":
        model[0].weight = first[0] = nn.Parameter(torch.zeros(8, 8))
    else:
        second.append(first.pop(0))
    model(torch.ones(2, 8)).sum().backward()
    with pytest.raises(HocketUsageError, match="replaced or moved to another"):
        opt.step()


def test_a_refused_state_dict_changes_no_group():
    layers = [nn.Linear(4, 4), nn.Linear(4, 4)]
    opt = hocket.AdamW([{"params": list(layer.parameters())} for layer in layers], cpu_threads=1)
    saved = opt.state_dict()
    saved["param_groups"][0]["lr"] = 0.5
    saved["param_groups"][1]["amsgrad"] = True
    with pytest.raises(HocketUsageError, match="amsgrad"):
        opt.load_state_dict(saved)
    assert [group["lr"] for group in opt.param_groups] == [1e-3, 1e-3]


def test_a_master_weight_of_another_shape_is_refused_before_anything_changes():
    layer = nn.Linear(4, 4, bias=False)
    opt = hocket.AdamW(layer.parameters(), cpu_threads=1)
    layer(torch.ones(2, 4)).sum().backward()
    opt.step()
    saved = opt.state_dict()
    saved["state"][0]["master_weight"] = torch.zeros(3)
    with pytest.raises(HocketUsageError, match="'master_weight' of shape"):
        opt.load_state_dict(saved)
    opt.step()


def test_a_timeline_before_the_first_step_says_that_nothing_is_recorded():
    opt = hocket.AdamW(nn.Linear(4, 4).parameters(), cpu_threads=1)
    with pytest.raises(HocketError, match="nothing is recorded"):
        opt.timeline()
