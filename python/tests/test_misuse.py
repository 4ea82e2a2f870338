# SPDX-License-Identifier: Apache-2.0
"""Misuse gives a right result or an error that says what to do."""

import re
import copy
import gc
import os
import signal
import threading
import types
from collections import OrderedDict

import pytest
import torch
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef

import hocket
from hocket import HocketError, HocketUsageError, _abi, attach
from models import batches, make
from reference import ReferenceAdamW, assert_same, same_bits


@pytest.fixture(autouse=True)
def _hooks_on_small_tensors(monkeypatch):
    monkeypatch.setattr(attach, "HOOK_NUMEL", 512)


def started(overlap="forward", attached=True, model=None, steps=2):
    model = model or make("gpt")
    opt = hocket.AdamW(model.parameters(), cpu_threads=2, overlap=overlap if attached else "none")
    if attached:
        opt.attach(model)
    for batch in batches(steps):
        model(batch).backward()
        opt.step()
        opt.zero_grad()
    return model, opt


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


def test_backend_and_device_disagree():
    with pytest.raises(HocketUsageError, match="backend='cuda' with parameters on cpu"):
        hocket.AdamW(LINEAR.parameters(), backend="cuda").bind()


@pytest.mark.parametrize("attached", [False, True])
def test_a_closure_computes_loss_and_gradients_as_in_torch(attached):
    model, other = make("gpt"), make("gpt")
    opt = hocket.AdamW(model.parameters(), cpu_threads=1, overlap="forward" if attached else "none")
    expected = ReferenceAdamW(other.parameters())
    if attached:
        opt.attach(model)
    for batch in batches(4):

        def closure():
            opt.zero_grad()
            loss = model(batch)
            loss.backward()
            return loss

        loss = opt.step(closure)
        reference = other(batch)
        reference.backward()
        expected.step()
        expected.zero_grad()
        assert float(loss) == float(reference)
    assert_same(opt, model, expected, other)


def test_frameworks_that_rebuild_mappings_keep_the_view_of_the_state():
    """Lightning's teardown does so."""
    model, opt = started("forward")
    model(batches(1)[0]).backward()
    opt.step()
    opt.zero_grad()
    for param, state in opt.state.items():
        moved = OrderedDict((key, value.to("cpu")) for key, value in state.items())
        opt.state[param] = type(state)(moved)
    before = opt.state[model.norm.weight]["exp_avg"].clone()
    model(batches(2)[1]).backward()
    opt.step()
    assert not torch.equal(opt.state[model.norm.weight]["exp_avg"], before)
    with pytest.raises(HocketUsageError, match="load_state_dict"):
        type(state)(OrderedDict(step=torch.tensor(1.0)))


@pytest.mark.parametrize("overlap", ["drop-in", "none", "forward", "both"])
def test_state_is_loaded_between_backward_and_step(overlap):
    """Gradients stay, and the step applies them to the loaded state."""
    model = make("gpt")
    opt = hocket.AdamW(
        model.parameters(), cpu_threads=1, overlap="none" if overlap == "drop-in" else overlap
    )
    if overlap != "drop-in":
        opt.attach(model)
    other = make("gpt")
    expected = hocket.AdamW(other.parameters(), cpu_threads=1)
    for m, o in ((model, opt), (other, expected)):
        for batch in batches(3):
            m(batch).backward()
            o.step()
            o.zero_grad()
    kept = opt.state_dict()
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    model(batches(4)[3]).backward()
    opt.step()
    opt.zero_grad()
    model.load_state_dict(weights)
    opt.synchronize()
    model(batches(4)[3]).backward()
    opt.load_state_dict(kept)
    opt.step()
    other(batches(4)[3]).backward()
    expected.step()
    assert opt.checksum() == expected.checksum()


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
    backward(model)
    opt.step()
    assert opt.last_step.step == 1


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


# -- Parameters that change ------------------------------------------------------------------------


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


def test_moved_and_converted_before_the_first_step():
    model, other = make("gpt", torch.float32), make("gpt", torch.float32)
    opt = hocket.AdamW(model.parameters(), cpu_threads=2, overlap="forward")
    opt.attach(model)
    model.bfloat16()
    other.bfloat16()
    model.load_state_dict(make("gpt", seed=4).state_dict())
    other.load_state_dict(make("gpt", seed=4).state_dict())
    expected = ReferenceAdamW(other.parameters())
    for batch in batches(3):
        for m, o in ((model, opt), (other, expected)):
            m(batch).backward()
            o.step()
            o.zero_grad()
    assert_same(opt, model, expected, other)


# -- attach ----------------------------------------------------------------------------------------


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
        flat = torch.distributed.fsdp.FullyShardedDataParallel(
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


def trains_as_if_nothing_had_failed(model, loss, failing):
    """Takes five steps of ``loss(model, x)``, and calls ``failing(opt, x)``, which raises KeyError,
    before the third. All steps are those of the reference."""
    other = copy.deepcopy(model)
    opt = hocket.AdamW(model.parameters(), cpu_threads=2, overlap="both")
    expected = ReferenceAdamW(other.parameters())
    opt.attach(model)
    for step in range(5):
        x = torch.randn(4, 64)
        if step == 2:
            with pytest.raises(KeyError):
                failing(opt, x)
        for m, o in ((model, opt), (other, expected)):
            loss(m, x).backward()
            o.step()
            o.zero_grad()
    assert_same(opt, model, expected, other)


def test_exception_inside_forward():
    class Fails(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(64, 64), nn.Linear(64, 64)

        def forward(self, x, fail):
            x = self.a(x)
            if fail:
                raise KeyError("mine")
            return self.b(x).square().mean()

    torch.manual_seed(1)
    mine = Fails()
    trains_as_if_nothing_had_failed(mine, lambda m, x: m(x, False), lambda opt, x: mine(x, True))


def test_exception_inside_backward():
    class Fails(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, grad):
            raise KeyError("mine")

    torch.manual_seed(1)
    mine = nn.Sequential(*(nn.Linear(64, 64) for _ in range(3)))

    def failing(opt, x):
        try:
            mine[2](mine[1](Fails.apply(mine[0](x)))).square().mean().backward()
        finally:
            opt.zero_grad()

    trains_as_if_nothing_had_failed(mine, lambda m, x: m(x).square().mean(), failing)


@pytest.mark.parametrize("overlap", ["none", "forward", "both"])
def test_a_graph_run_twice_and_steps_without_backward(overlap):
    """torch refuses the second backward. The held gradients stay, and a step without gradients does
    nothing."""
    mine, other = make("gpt"), make("gpt")
    opt = hocket.AdamW(mine.parameters(), cpu_threads=2, overlap=overlap)
    opt.attach(mine)
    expected = ReferenceAdamW(other.parameters())
    for batch in batches(4):
        loss = mine(batch)
        loss.backward()
        with pytest.raises(RuntimeError, match="second time"):
            loss.backward()
        other(batch).backward()
        opt.step()
        expected.step()
        for o in (opt, expected):
            o.zero_grad()
        for _ in range(2):
            opt.step()
        opt.zero_grad()
    assert opt.last_step.step == 4
    assert_same(opt, mine, expected, other)


@pytest.mark.parametrize("overlap", ["none", "forward", "both"])
def test_a_model_loaded_while_it_trains(overlap):
    """Masters become the loaded weights, except where they round to them. Momentum stays, as in
    torch."""

    def load(model, o):
        model.load_state_dict(changed.state_dict())
        for p, state in o.state.items() if o is expected else ():
            master = state["master_weight"]
            same = master.to(p.dtype) == p.detach()
            state["master_weight"] = torch.where(same, master, p.detach().float())

    mine, other, changed = make("gpt"), make("gpt"), make("gpt", seed=9)
    opt = hocket.AdamW(mine.parameters(), cpu_threads=2, overlap=overlap)
    opt.attach(mine)
    expected = ReferenceAdamW(other.parameters())
    for step, batch in enumerate(batches(6)):
        for model, o in ((mine, opt), (other, expected)):
            if step in (2, 4):
                load(model, o)
            model(batch).backward()
            if step == 3:  # between backward and step
                load(model, o)
            o.step()
            o.zero_grad()
    assert_same(opt, mine, expected, other)


# -- Processes, threads, signals -------------------------------------------------------------------


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


def test_data_loader_workers():
    model, opt = started()
    data = torch.utils.data.DataLoader(batches(8), batch_size=None, num_workers=2)
    for batch in data:
        model(batch).backward()
        opt.step()
        opt.zero_grad()
    opt.synchronize()
    assert opt.binding().engine.step_number() == 10


def test_two_engines_in_two_threads():
    results = {}
    models = {name: (make(name), make(name)) for name in ("gpt", "llama")}

    def work(name):
        model, other = models[name]
        opt = hocket.AdamW(model.parameters(), cpu_threads=1, overlap="both")
        opt.attach(model)
        expected = ReferenceAdamW(other.parameters())
        for batch in batches(5):
            for m, o in ((model, opt), (other, expected)):
                m(batch).backward()
                o.step()
                o.zero_grad()
        opt.synchronize()
        results[name] = all(same_bits(p, q) for p, q in zip(model.parameters(), other.parameters()))

    threads = [threading.Thread(target=work, args=(name,)) for name in models]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert results == {"gpt": True, "llama": True}


def test_reports_and_state_are_read_by_other_threads_while_one_trains():
    model, opt = started("both")
    other, expected = started("none")
    model(batches(1)[0]).backward()
    opt.step()
    opt.zero_grad()
    over, failures, counts = threading.Event(), [], [0, 0, 0]

    def look(number):
        try:
            while not over.is_set():
                report = opt.stats()
                assert report["schema"] == "hocket.engine/1" and "steps" in opt.explain()
                assert opt.state[model.norm.weight]["exp_avg"].shape == model.norm.weight.shape
                counts[number] += 1
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=look, args=(number,)) for number in range(len(counts))]
    for thread in threads:
        thread.start()
    step = 1
    while step < 20 or (min(counts) < 200 and not failures and step < 2000):
        model(batches(1)[0]).backward()
        opt.step()
        opt.zero_grad()
        step += 1
    over.set()
    for thread in threads:
        thread.join(60)
    assert not failures and min(counts) >= 200
    for _ in range(step):
        other(batches(1)[0]).backward()
        expected.step()
        expected.zero_grad()
    assert opt.checksum() == expected.checksum()


def test_ctrl_c_interrupts_training(forked):
    program = """
import signal, torch, hocket
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's "&" ignores it
model = torch.nn.Sequential(torch.nn.Linear(400, 1600), torch.nn.Linear(1600, 400))
opt = hocket.AdamW(model.parameters(), cpu_threads=1, overlap="forward")
opt.attach(model)
x = torch.randn(1, 400)
try:
    while True:
        model(x).square().mean().backward(); opt.step(); opt.zero_grad(); print("step", flush=True)
except KeyboardInterrupt:
    opt.synchronize()
    print("interrupted", flush=True)
"""
    process = forked.start("-c", program)
    for _ in range(5):
        process.stdout.readline()
    process.send_signal(signal.SIGINT)
    assert "interrupted" in process.output(timeout=60) and process.returncode == 0


def test_a_deleted_optimizer_leaves_a_usable_model():
    model, opt = started("both")
    model(batches(1)[0])
    del opt
    gc.collect()
    model.zero_grad()
    model(batches(1)[0]).backward()
    assert type(model.tokens.weight.grad) is torch.Tensor
    again = hocket.AdamW(model.parameters(), cpu_threads=2, overlap="forward")
    again.attach(model)
    again.zero_grad()
    model(batches(1)[0]).backward()
    again.step()
    again.synchronize()


@pytest.mark.parametrize("copied", [False, True])
def test_weights_stay_until_the_update_that_writes_them_has_ended(copied, monkeypatch):
    """Model and optimizer are deleted while an update may run. Attributes of a copied optimizer have
    another order, in which they are freed."""
    model = nn.Linear(8, 8)
    opt = hocket.AdamW(model.parameters(), cpu_threads=2, overlap="forward")
    if copied:
        model, opt = copy.deepcopy((model, opt))
    opt.attach(model)
    model(torch.ones(1, 8)).sum().backward()
    opt.step()
    weights = [StorageWeakRef(param.untyped_storage()) for param in model.parameters()]
    gc.collect()  # of engines of other tests
    library, gone = _abi.library(), []

    def destroy(engine):
        gone.append(sum(weight.expired() for weight in weights))
        library.hocket_destroy(engine)

    monkeypatch.setattr(_abi, "_library", types.SimpleNamespace(hocket_destroy=destroy))
    del model, opt
    gc.collect()
    assert gone == [0]
    assert all(weight.expired() for weight in weights)


def test_invalid_hyperparameters_after_the_first_step():
    model, opt = started()
    opt.param_groups[0]["lr"] = -1.0
    model(batches(1)[0]).backward()
    with pytest.raises(HocketError, match="lr"):
        opt.step()
    opt.param_groups[0]["lr"] = 1e-3
    opt.step()
    opt.synchronize()


def test_too_little_host_memory_is_refused():
    model = make("gpt")
    opt = hocket.AdamW(model.parameters(), cpu_threads=2, host_memory=1000)
    model(batches(1)[0]).backward()
    with pytest.raises(HocketError, match="host"):
        opt.step()


def test_a_plan_of_another_model_is_refused(tmp_path):
    from runs import plan_file

    plan = plan_file(make("llama"), ["zero-offload"], tmp_path)
    model = make("gpt")
    opt = hocket.AdamW(model.parameters(), cpu_threads=2, plan=plan)
    with pytest.raises(HocketError, match="must be of one model and one rank"):
        opt.bind()
    with pytest.raises(HocketError, match="nowhere.json"):
        hocket.AdamW(model.parameters(), plan=tmp_path / "nowhere.json").bind()


def test_attach_under_several_ranks_is_refused(monkeypatch):
    model = make("gpt")
    opt = hocket.AdamW(model.parameters(), cpu_threads=2)
    opt.attach(model)
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 2)
    with pytest.raises(HocketUsageError, match="group of 2 ranks"):
        model(batches(1)[0]).backward()


def test_messages_of_the_troubleshooting_page_exist(root):
    """Each message that docs/troubleshooting.md quotes is one of the sources'."""
    sources = [*(root / "python/hocket").rglob("*.py"), *(root / "engine").rglob("*.c*")]
    # Adjacent literals are one text.
    text = "\n".join(re.sub(r'"\s*f?"', "", path.read_text()) for path in sources)
    page = (root / "docs/troubleshooting.md").read_text()
    quoted = re.findall(r"^\| `([^`]+)` \|", page, re.M)
    assert len(quoted) > 20
    assert [message for message in quoted if message not in text] == []
