"""l0arm.optim.Adam does what torch's fused Adam does, bit for bit."""

import copy
from collections import Counter

import pytest
import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook

import l0arm
from l0arm.models import MLP

SETTINGS = [
    {},
    {"weight_decay": 0.1},
    {"weight_decay": 0.1, "decoupled_weight_decay": True},
    {"betas": (0.5, 0.7), "eps": 1e-3},
]


def networks() -> tuple[nn.Module, nn.Module]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3))
    return model, copy.deepcopy(model)


def fill(model: nn.Module, seed: int) -> None:
    torch.manual_seed(seed)
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter)


def groups(model: nn.Module) -> list[dict]:
    first, *rest = model.parameters()
    return [{"params": [first], "lr": 0.1}, {"params": rest}]


def assert_same(ours: nn.Module, theirs: nn.Module, one, other) -> None:
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert torch.equal(a, b)
    held = one.state_dict()["state"], other.state_dict()["state"]
    assert held[0].keys() == held[1].keys()
    for number, state in held[0].items():
        for key, value in state.items():
            assert torch.equal(value, held[1][number][key])


def kernels(monkeypatch) -> Counter:
    """Counts the ways that steps take."""
    calls = Counter()
    for name in ("_update", "_torch_step"):
        original = getattr(l0arm.optim, name)

        def counted(*args, original=original, name=name):
            calls[name] += 1
            return original(*args)

        monkeypatch.setattr(l0arm.optim, name, counted)
    return calls


@pytest.mark.parametrize("settings", SETTINGS)
def test_same_as_torch(settings, monkeypatch):
    calls = kernels(monkeypatch)
    ours, theirs = networks()
    one = l0arm.optim.Adam(groups(ours), **settings)
    other = torch.optim.Adam(groups(theirs), fused=True, **settings)
    for seed in range(5):
        for model, optimizer in ((ours, one), (theirs, other)):
            optimizer.zero_grad()
            fill(model, seed)
            if seed == 3:  # a parameter that this step does not train
                model[2].bias.grad = None
            optimizer.param_groups[0]["lr"] *= 0.5
            optimizer.step()
    assert_same(ours, theirs, one, other)
    assert calls == {"_torch_step": 1, "_update": 8}  # the first step makes the state


def test_state_dicts_are_those_of_torch():
    ours, theirs = networks()
    one = l0arm.optim.Adam(ours.parameters(), weight_decay=0.1, decoupled_weight_decay=True)
    other = torch.optim.AdamW(theirs.parameters(), lr=1e-3, weight_decay=0.1, fused=True)
    fill(ours, 0)
    fill(theirs, 0)
    one.step()
    other.step()
    saved = copy.deepcopy(one.state_dict())
    assert saved["param_groups"] == other.state_dict()["param_groups"]
    one.load_state_dict(copy.deepcopy(other.state_dict()))
    other.load_state_dict(saved)
    for model, optimizer in ((ours, one), (theirs, other)):
        fill(model, 1)
        optimizer.step()
    assert_same(ours, theirs, one, other)


def other_dtype(model, optimizer):
    model[2].double()


def tensor_lr(model, optimizer):
    optimizer.param_groups[0]["lr"] = torch.tensor(0.1)


def amsgrad(model, optimizer):
    optimizer.param_groups[0]["amsgrad"] = True


def not_fused(model, optimizer):
    optimizer.param_groups[0]["fused"] = False


def new_group(model, optimizer):
    optimizer.add_param_group({"params": [nn.Parameter(torch.ones(2))]})
    optimizer.param_groups[-1]["params"][0].grad = torch.ones(2)


@pytest.mark.parametrize("change", [other_dtype, tensor_lr, amsgrad, not_fused, new_group])
def test_unusual_steps_take_the_way_of_torch(change, monkeypatch):
    ours, theirs = networks()
    one, other = l0arm.optim.Adam(groups(ours)), torch.optim.Adam(groups(theirs), fused=True)
    for model, optimizer in ((ours, one), (theirs, other)):
        change(model, optimizer)
        fill(model, 0)
        optimizer.step()
    calls = kernels(monkeypatch)
    for model, optimizer in ((ours, one), (theirs, other)):
        fill(model, 1)
        optimizer.step()
    assert_same(ours, theirs, one, other)
    expected = "_update" if change is new_group else "_torch_step"
    assert set(calls) == {expected}


def test_a_sparse_gradient_is_refused_as_torch_refuses_it():
    table = nn.Embedding(4, 2, sparse=True)
    optimizer = l0arm.optim.Adam(table.parameters())
    table(torch.tensor([1])).sum().backward()
    with pytest.raises(RuntimeError, match="sparse"):
        optimizer.step()


def test_hooks_run_once_and_a_closure_gives_its_value():
    ours, _ = networks()
    optimizer = l0arm.optim.Adam(ours.parameters())
    ran = []
    optimizer.register_step_pre_hook(lambda *_: ran.append("before"))
    handle = register_optimizer_step_post_hook(lambda *_: ran.append("after"))
    try:
        for seed in range(2):
            fill(ours, seed)
            optimizer.step()
        assert ran == ["before", "after"] * 2
        x = torch.ones(1, 6)

        def closure():
            optimizer.zero_grad()
            loss = ours(x).sum()
            loss.backward()
            return loss

        before = ours(x).sum().item()
        assert optimizer.step(closure).item() == before
        assert ours(x).sum().item() < before
    finally:
        handle.remove()


def test_gradients_are_removed_or_zeroed():
    ours, _ = networks()
    optimizer = l0arm.optim.Adam(ours.parameters())
    fill(ours, 0)
    optimizer.zero_grad(set_to_none=False)
    assert all(torch.equal(p.grad, torch.zeros_like(p)) for p in ours.parameters())
    optimizer.zero_grad()
    assert all(p.grad is None for p in ours.parameters())


def test_a_step_that_a_loss_scaler_skips_changes_nothing():
    ours, _ = networks()
    optimizer = l0arm.optim.Adam(ours.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    x = torch.ones(1, 6)
    for factor in (1.0, float("inf"), 1.0):
        before = [p.detach().clone() for p in ours.parameters()]
        optimizer.zero_grad()
        scaler.scale(ours(x).sum() * factor).backward()
        scaler.step(optimizer)
        scaler.update()
        changed = any(not torch.equal(p, b) for p, b in zip(ours.parameters(), before, strict=True))
        assert changed == (factor == 1.0)
    assert optimizer.state[ours[0].weight]["step"] == 2


def test_a_schedule_and_a_shrink_work_on_it():
    torch.manual_seed(0)
    gated = l0arm.sparsify(MLP((20, 8, 3)), method="l0-arm", lam=0.0)
    optimizer = l0arm.optim.Adam(gated.parameter_groups(lr=0.1))
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    x, y = torch.rand(4, 20), torch.tensor([0, 1, 2, 0])
    criterion = nn.CrossEntropyLoss()

    def step(network):
        optimizer.zero_grad()
        network.loss(lambda: criterion(network(x), y)).backward()
        optimizer.step()

    step(gated)
    schedule.step()
    assert optimizer.param_groups[0]["lr"] == 0.05
    with torch.no_grad():
        gated.phi[:5] = -10.0
    small = l0arm.shrink(gated, optimizer=optimizer)
    assert len(small.phi) == len(gated.phi) - 5
    before = small.model.fc2.weight.detach().clone()
    step(small)
    assert not torch.equal(small.model.fc2.weight, before)
