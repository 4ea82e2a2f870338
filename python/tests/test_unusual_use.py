# SPDX-License-Identifier: Apache-2.0
"""Programs that do more than a plain loop get right results: they load, fail, use threads."""

import copy
import gc
import signal
import threading
import types
from collections import OrderedDict, defaultdict

import pytest
import torch
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef

import hocket
from hocket import HocketUsageError, _abi, attach
from models import batches, make
from reference import ReferenceAdamW, assert_same, same_bits
from runs import started


@pytest.fixture(autouse=True)
def _hooks_on_small_tensors(monkeypatch):
    monkeypatch.setattr(attach, "HOOK_NUMEL", 512)


# -- Order of calls --------------------------------------------------------------------------------


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


@pytest.mark.parametrize("overlap", ["none", "forward", "both"])
def test_a_module_is_added_before_the_first_step(overlap):
    """After attach(), as adapters are."""
    torch.manual_seed(2)
    model, added = nn.Sequential(nn.Linear(30, 30)), nn.Linear(30, 30)
    other = copy.deepcopy(nn.Sequential(*model, added))
    opt = hocket.AdamW(model.parameters(), cpu_threads=2, overlap=overlap)
    opt.attach(model)
    model.append(added)
    opt.add_param_group({"params": list(added.parameters())})
    expected = ReferenceAdamW(other.parameters())
    for _ in range(3):
        x = torch.randn(5, 30)
        for one, optimizer in ((model, opt), (other, expected)):
            one(x).square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    assert_same(opt, model, expected, other)


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


# -- Exceptions ------------------------------------------------------------------------------------


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


# -- Processes, threads, signals -------------------------------------------------------------------


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


def test_a_weight_that_another_thread_reads_while_a_step_begins_is_waited_for_again(monkeypatch):
    model, opt = started("forward")
    engine, step, waited = opt.binding().engine, opt.handover().step, []
    wait = engine.wait_weights

    def step_after_a_look(*args):
        thread = threading.Thread(target=lambda: list(model.parameters()))
        thread.start()
        thread.join(60)
        step(*args)

    def noted(block, stream):
        waited.append(block)
        wait(block, stream)

    monkeypatch.setattr(opt.handover(), "step", step_after_a_look)
    model(batches(1)[0]).backward()
    opt.step()
    opt.zero_grad()
    monkeypatch.setattr(engine, "wait_weights", noted)
    model(batches(1)[0])
    assert sorted(waited) == list(range(opt.binding().n_blocks))


def test_a_wait_of_another_thread_opens_no_gate_of_the_next_step(monkeypatch):
    model, opt = started("forward")
    opt.record()
    engine, drained, stepped = opt.binding().engine, threading.Event(), threading.Event()
    drain = engine.drain

    def drain_and_linger():
        drain()
        drained.set()
        stepped.wait(0.5)

    monkeypatch.setattr(engine, "drain", drain_and_linger)
    model(batches(1)[0]).backward()
    reader = threading.Thread(target=opt.timeline)
    reader.start()
    assert drained.wait(60)
    opt.step()
    stepped.set()
    reader.join(60)
    assert opt._attachment.waits


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


# -- The end of an optimizer -----------------------------------------------------------------------


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


@pytest.mark.parametrize("factor", [0.0, -1.0])
def test_all_gradients_may_be_multiplied_by_zero_or_a_negative_number(factor):
    model, other = make("gpt"), make("gpt")
    opt = hocket.AdamW(model.parameters(), cpu_threads=1)
    expected = ReferenceAdamW(other.parameters())
    opt.attach(model)
    for batch in batches(2):
        for m, o in ((model, opt), (other, expected)):
            m(batch).backward()
            for p in m.parameters():
                if p.grad is not None:
                    p.grad.mul_(factor)
            o.step()
            o.zero_grad()
    assert_same(opt, model, expected, other)


@pytest.mark.parametrize("overlap", ["drop-in", "none", "forward", "both"])
@pytest.mark.parametrize("how", ["clear", "assign"])
def test_state_that_the_program_removes_starts_from_zero(overlap, how):
    model, other = make("gpt", torch.float32), make("gpt", torch.float32)
    attached = overlap != "drop-in"
    opt = hocket.AdamW(model.parameters(), cpu_threads=1, overlap=overlap if attached else "none")
    expected = ReferenceAdamW(other.parameters())
    if attached:
        opt.attach(model)
    for step, batch in enumerate(batches(5)):
        for m, o in ((model, opt), (other, expected)):
            m(batch).backward()
            if step == 3:
                if how == "clear":
                    o.state.clear()
                else:
                    o.state = defaultdict(dict) if o is opt else {}
            o.step()
            o.zero_grad()
    assert_same(opt, model, expected, other)
    assert len(opt.state_dict()["state"]) == len(expected.state)
