"""One digest for one network on one machine; whatever changes the times changes it."""

import copy
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import l0arm
from l0arm.costs.latency_key import latency_key
from l0arm.equality.example import Example
from l0arm.gating import Gated
from l0arm.models import MLP


def key(
    model: MLP | None = None,
    x: Tensor | None = None,
    change: Callable[[Gated], object] = lambda gated: None,
) -> str:
    model = MLP((6, 5, 4, 3)) if model is None else model
    gated = l0arm.sparsify(model, lam=0.0)
    change(gated)
    example = Example.of(torch.zeros(2, 6) if x is None else x)
    assert example is not None
    return latency_key(gated, example)


def test_values_do_not_matter() -> None:
    def values(gated: Gated) -> None:
        gated.phi.data.normal_()
        gated.model.fc1.weight.data.normal_()

    assert len({key(), key(x=torch.ones(2, 6)), key(change=values), key()}) == 1


def test_where_gates_start_does_not_matter() -> None:
    model = MLP((6, 5, 4, 3))
    others = [replace(group, initial=0.9) for group in model.groups()]
    gated = l0arm.sparsify(model, others, lam=0.0)
    example = Example.of(torch.zeros(2, 6))
    assert example is not None
    assert latency_key(gated, example) == key()


class Wordy(MLP):
    """Another class, and another forward."""

    def forward(self, x: Tensor) -> Tensor:
        return F.softmax(super().forward(x), 1)


def with_floor() -> str:
    model = MLP((6, 5, 4, 3))
    groups = [replace(group, floor=2) for group in model.groups()]
    gated = l0arm.sparsify(model, groups, lam=0.0)
    example = Example.of(torch.zeros(2, 6))
    assert example is not None
    return latency_key(gated, example)


def test_what_changes_the_times_changes_it() -> None:
    model = MLP((6, 5, 4, 3))
    keys = [
        key(),
        key(MLP((6, 5, 5, 3))),
        key(copy.deepcopy(model).double()),
        key(Wordy((6, 5, 4, 3))),
        key(x=torch.zeros(3, 6)),
        key(x=torch.zeros(2, 6).double()),
        key(x=torch.zeros(6, 2).t()),  # as large, but it lies otherwise in memory
        with_floor(),
    ]
    assert len(set(keys)) == len(keys)


def test_an_edited_forward_changes_it() -> None:
    def once(self: MLP, x: Tensor) -> Tensor:
        return MLP.forward(self, x)

    def doubled(self: MLP, x: Tensor) -> Tensor:
        return 2 * MLP.forward(self, x)

    def tripled(self: MLP, x: Tensor) -> Tensor:
        return 3 * MLP.forward(self, x)

    made = [type("Edited", (MLP,), {"forward": f}) for f in (once, doubled, tripled)]
    assert len({key(kind((6, 5, 4, 3))) for kind in made}) == 3


def test_settings_without_a_tensor_change_it() -> None:
    models = [MLP((6, 5, 4, 3)) for _ in range(2)]
    for stride, model in enumerate(models, 1):
        model.extra = nn.Conv2d(1, 1, 3, stride=stride)
    assert key(models[0]) != key(models[1])


@pytest.mark.parametrize(
    ("what", "value"),
    [
        ("torch.get_num_threads", lambda: 7),
        ("torch.__version__", "9.9"),
        ("torch.backends.cpu.get_cpu_capability", lambda: "none"),
        ("l0arm.costs.latency_key._processor", lambda: "another"),
        ("platform.machine", lambda: "abacus"),
    ],
)
def test_another_machine_changes_it(
    what: str, value: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = key()
    monkeypatch.setattr(what, value)
    assert key() != before
