"""Trials find groups whose units cannot be dropped, also where dropping raises nothing."""

import copy
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.equality.test_certificate import ChannelAttention
from tests.helpers.planned_networks import planned_network
from torch import Tensor, nn

from l0arm import Group, Patch, Slice
from l0arm.equality.example import Example
from l0arm.equality.scratch import ScratchModel
from l0arm.equality.trial import (
    BLIND,
    COUNTS,
    MIXES,
    Fault,
    Trial,
    perturb_weights,
    vary_constants,
)
from l0arm.planning import plan
from l0arm.planning.candidates import Candidates
from l0arm.planning.execution import UNSEEN, choose_execution

Network = Callable[[str], tuple[nn.Module, tuple[Any, ...]]]


@pytest.fixture
def network() -> Network:
    return planned_network


def heads_of(style: str, network: Network) -> tuple[Trial, Group, nn.Module, tuple[Any, ...]]:
    """Attention's group as its open view has it, on a network with another style."""
    group = replace(plan(*network("attention, open view")).groups[0], patches=())
    model, inputs = network(style)
    return Trial(model, inputs, {}, ()), group, model, inputs


def run(model: nn.Module, rows: dict[str, tuple[int, Tensor]], x: Any) -> Tensor:
    """The model with tensors cut by hand."""
    for name, (dim, keep) in rows.items():
        owner, _, key = name.rpartition(".")
        module = model.get_submodule(owner)
        module._parameters[key] = nn.Parameter(getattr(module, key).index_select(dim, keep))
    with torch.no_grad():
        return model.eval()(*x)


def test_a_view_by_heads_is_wrong_without_an_exception(network: Network) -> None:
    """view(b, n, 4, -1) after two of four heads went makes four heads of half the size."""
    trial, group, model, inputs = heads_of("attention, trap", network)
    assert not trial.agrees([group])
    assert trial.agrees([Group(**{**vars(group), "patches": (Patch("attention", "heads", 1),)})])
    half = torch.arange(4)
    rows = {f"attention.{key}.weight": (0, half) for key in "qkv"}
    rows |= {f"attention.{key}.bias": (0, half) for key in "qkv"}
    assert run(model, {**rows, "attention.o.weight": (1, half)}, inputs).shape == (2, 6, 11)


def test_group_norm_is_wrong_without_an_exception() -> None:
    """Channels 0 and 2 of four, in two groups: each group now has one channel."""
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4), nn.Flatten(), nn.Linear(16, 3))
    kinds = ("0.weight", "0.bias", "1.weight", "1.bias")
    by_channel = Group(
        "channels",
        4,
        reads=(Slice("3.weight", 1, block=4),),
        makes=tuple(Slice(key, 0) for key in kinds),
    )
    x = torch.rand(2, 1, 4, 4)
    assert not Trial(copy.deepcopy(model), (x,), {}, ()).agrees([by_channel])
    (planned,) = plan(model, x).groups
    assert planned.units == 2
    assert planned.patches == (Patch("1", "num_groups", 1),)


def test_channel_shuffle_is_wrong_without_an_exception() -> None:
    model = nn.Sequential(nn.Conv2d(1, 8, 1), nn.ChannelShuffle(2), nn.Conv2d(8, 3, 1))
    by_channel = Group(
        "channels",
        8,
        # where shuffling by (2, 4) puts each channel
        reads=(Slice("2.weight", 1, index=tuple((2 * (c % 4) + c // 4,) for c in range(8))),),
        makes=(Slice("0.weight", 0), Slice("0.bias", 0)),
    )
    x = torch.rand(2, 1, 4, 4)
    assert not Trial(copy.deepcopy(model), (x,), {}, ()).agrees([by_channel])
    (planned,) = plan(model, x).groups
    assert planned.makes[0].positions(4, 8) == ((0, 4), (1, 5), (2, 6), (3, 7))
    assert planned.reads[0].positions(4, 8) == ((0, 1), (2, 3), (4, 5), (6, 7))


def test_a_group_without_a_way_is_masked_and_the_others_are_not(network: Network) -> None:
    trial, group, _, _ = heads_of("attention, template", network)
    mlp = plan(*network("attention, template")).groups[1]
    chosen = choose_execution(trial, [group, mlp], [Candidates(), Candidates()])
    assert [choice.group.drops for choice in chosen] == [False, True]
    assert chosen[0].reason.startswith("with fewer units 'attention' fails: RuntimeError: shape")
    assert chosen[1].reason == ""
    assert chosen[0].group.reads == group.reads
    assert {piece.tensor for piece in chosen[0].group.counts} == {
        f"attention.{key}.weight" for key in "qkv"
    }


class Auxiliary(nn.Module):
    """A branch that only training takes reads the units too."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.aux = nn.Linear(4, 8), nn.Linear(8, 2), nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        hidden = F.relu(self.a(x))
        return self.b(hidden) + self.aux(hidden) if self.training else self.b(hidden)


def test_a_branch_of_training_is_not_overlooked() -> None:
    (entry,) = plan(Auxiliary(), torch.rand(3, 4)).planned
    assert entry.execution == "masked"
    reason = "in train mode with fewer units 'aux' fails: RuntimeError: (addmm: )?mat1"
    assert re.match(reason, entry.reason)


class OnlyFloat32(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 8), nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.b(F.relu(self.a(x.float())))


def test_a_model_that_runs_in_one_type_only_is_compared_in_it() -> None:
    trial = Trial(OnlyFloat32(), (torch.rand(3, 4),), {}, ())
    assert {p.dtype for p in trial.model.parameters()} == {torch.float32}
    (entry,) = plan(OnlyFloat32(), torch.rand(3, 4)).planned
    assert entry.execution == "as is"


class Centred(nn.Module):
    """The mean over units mixes them, and dropping raises nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 8), nn.Linear(8, 2)
        nn.init.zeros_(self.b.weight)

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.tanh(self.a(x))
        return self.b(hidden - hidden.mean(-1, keepdim=True))


@pytest.mark.parametrize("x", [torch.rand(3, 4), torch.zeros(3, 4)], ids=["values", "zeros"])
def test_zeros_of_a_fresh_network_hide_nothing(x: Tensor) -> None:
    """The last layer starts at zero: with these weights any group would pass."""
    makes = (Slice("a.weight", 0), Slice("a.bias", 0))
    wrong = Group("g", 8, reads=(Slice("b.weight", 1),), makes=makes)
    assert not Trial(Centred(), (x,), {}, ()).agrees([wrong])


# Evidence: an effect that no output shows proves nothing


@pytest.mark.parametrize("size", [8, 16, 24])
def test_a_saturated_softmax_hides_nothing(size: int) -> None:
    """On a large image every channel attends to itself alone, however they are split."""
    x = torch.randn(2, 3, size, size)
    (entry,) = plan(ChannelAttention(), x).planned
    assert entry.execution == "patched"
    wrong = replace(entry.group, patches=(), resizes=())  # what is left is split into other heads
    fault = Trial(ChannelAttention(), (x,), {}, ()).fault([wrong])
    assert fault is not None
    assert fault.reason == MIXES


class Pair(nn.Module):
    """Two layers; what happens in between is up to the test."""

    def __init__(self, between: Callable[[nn.Module, Tensor], Tensor]) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 8), nn.Linear(8, 2)
        self.between = between

    def forward(self, x: Tensor) -> Tensor:
        return self.b(self.between(self, F.relu(self.a(x))))


FAULTS: dict[str, tuple[Callable[[Any, Tensor], Tensor], str]] = {
    "counts units": (lambda _, h: h / h.shape[1], MIXES),
    "in training": (
        lambda net, h: h * (8 / h.shape[1]) if net.training else h,
        "in train mode " + MIXES,
    ),
    "an attribute": (lambda net, h: h / net.a.out_features**0.5, COUNTS),
    "an attribute in training": (
        lambda net, h: h * (8 / net.a.out_features) if net.training else h,
        "in train mode " + COUNTS,
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_what_goes_wrong_after_training_is_found_before(name: str) -> None:
    between, reason = FAULTS[name]
    (entry,) = plan(Pair(between), torch.randn(3, 4)).planned
    assert (entry.execution, entry.weights, entry.reason) == ("masked", 0, reason)


def test_noise_of_training_is_no_fault() -> None:
    noisy = Pair(lambda net, h: h + torch.randn_like(h) if net.training else h)
    (entry,) = plan(noisy, torch.randn(3, 4)).planned
    assert (entry.execution, entry.reason) == ("as is", "")


class Deep(nn.Module):
    """Each layer counts its units; by default weights the first ones hardly reach the output."""

    def __init__(self, counts: bool, depth: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(depth))
        self.counts = counts

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = F.relu(layer(x))
            x = x / x.shape[-1] * 16 if self.counts else x
        return x


@pytest.mark.parametrize(
    ("counts", "depth", "execution"), [(True, 25, "masked"), (False, 60, "as is")]
)
def test_the_first_layers_of_a_deep_network_are_seen(
    counts: bool, depth: int, execution: str
) -> None:
    torch.manual_seed(0)
    found = plan(Deep(counts, depth), torch.randn(3, 16))
    assert {e.execution for e in found.planned} == {execution}


class Faint(nn.Module):
    """The units matter, but by less than rounding could."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(4, 8), nn.Linear(8, 2), nn.Linear(4, 2)
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        return self.c(x) + self.factor * self.b(torch.tanh(self.a(x)))


@pytest.mark.parametrize(("factor", "execution"), [(1e-12, "masked"), (1e-3, "as is")])
def test_a_group_that_cannot_be_seen_is_masked(factor: float, execution: str) -> None:
    (entry,) = plan(Faint(factor), torch.randn(3, 4)).planned
    assert entry.execution == execution
    assert entry.reason == (UNSEEN if execution == "masked" else "")


class Decides(Pair):
    def forward(self, x: Tensor) -> Tensor:
        return (super().forward(x) > 0).float()


class Chooses(Pair):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).argmax(1)


class Tells(Pair):
    def forward(self, x: Tensor) -> Any:
        return super().forward(x).sum().item()


@pytest.mark.parametrize("kind", [Decides, Chooses, Tells])
def test_outputs_without_a_measure_show_nothing(kind: type[Pair]) -> None:
    """On inputs of 0 to 255 the bias never decides, so a wrong factor changes no decision."""
    found = plan(kind(lambda _, h: h / h.shape[1]), 255 * torch.rand(3, 4))
    assert [(e.execution, e.reason) for e in found.planned] == [("masked", BLIND)]
    assert all(entry.reason for entry in found.skipped)


class NoGraph(Pair):
    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            return super().forward(x)


@pytest.mark.parametrize("counts", [True, False])
def test_without_a_gradient_units_are_closed_to_be_seen(counts: bool) -> None:
    model = NoGraph(lambda _, h: h / (h.shape[1] if counts else 8))
    (entry,) = plan(model, torch.randn(3, 4)).planned
    assert (entry.execution, entry.reason) == (("masked", MIXES) if counts else ("as is", ""))


class Overflows(Pair):
    """Weights other than its own take it out of range."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * torch.exp(1e5 * (self.b.bias - 1.0).abs().sum())


def test_weights_stay_where_perturbed_ones_overflow() -> None:
    model = Overflows(lambda _, h: h)
    nn.init.ones_(model.b.bias)
    trial = Trial(model, (torch.randn(3, 4),), {}, ())
    assert not trial.blind
    assert model.b.bias.tolist() == [1.0, 1.0]


# Perturbation: zeros and ones of a fresh network or input would hide differences


def test_an_input_of_zeros_gets_noise() -> None:
    example = Example((torch.zeros(3, 4), torch.ones(2, dtype=torch.long), torch.rand(2)))
    made = vary_constants(example, torch.Generator().manual_seed(0))
    assert float(made.args[0].std()) > 0.5
    assert made.args[1].tolist() == [1, 1]
    assert torch.equal(made.args[2], example.args[2])


def test_perturbation_moves_everything_but_keeps_variances_positive() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4))
    before = {key: value.clone() for key, value in model.state_dict().items()}
    perturb_weights(model, torch.Generator().manual_seed(0))
    after = model.state_dict()
    moved = [key for key in before if not torch.equal(before[key], after[key])]
    assert moved == [key for key in before if key != "1.num_batches_tracked"]
    assert bool((after["1.running_var"] > 0).all())


class NormBlock(nn.Module):
    """A residual block with BatchNorm; ``centred`` also subtracts the mean of the units."""

    def __init__(self, *, centred: bool = False) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(8, 8, bias=False), nn.Linear(8, 8, bias=False)
        self.first, self.second, self.centred = nn.BatchNorm1d(8), nn.BatchNorm1d(8), centred

    def forward(self, x: Tensor) -> Tensor:
        hidden = F.relu(self.first(self.a(x)))
        if self.centred and self.training:
            hidden = hidden - hidden.mean(1, keepdim=True)
        return F.relu(x + self.second(self.b(hidden)))


def stream(seed: int, distance: float, *, centred: bool = False) -> tuple[nn.Module, Tensor]:
    """A residual network and a batch of two inputs so close that BatchNorm amplifies rounding."""
    torch.manual_seed(seed)
    blocks = [NormBlock(centred=centred), NormBlock()]
    model = nn.Sequential(nn.Linear(6, 8), *blocks, nn.Linear(8, 3)).double()
    x = torch.rand(1, 6, dtype=torch.float64)
    return model, torch.cat([x, x + distance * torch.randn_like(x)])


@pytest.mark.parametrize("distance", [1e-8, 1e-9, 1e-10])
def test_rounding_that_batch_norm_amplifies_is_no_fault(distance: float) -> None:
    """With a fixed tolerance, the seed decided which of these groups were masked."""
    for seed in range(4):
        model, x = stream(seed, distance)
        assert {entry.execution for entry in plan(model, x).planned} == {"as is"}


def test_a_fault_shows_beside_amplified_rounding() -> None:
    model, x = stream(0, 1e-9, centred=True)
    reasons = {e.group.name: e.reason for e in plan(model, x).planned if e.reason}
    assert list(reasons.values()) == ["in train mode " + MIXES]


def test_where_rounding_hides_everything_the_reason_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Half of the digits are lost: nothing can be concluded from this example."""
    model, x = stream(0, 1e-9)
    group = plan(model, x).groups[1]
    trial = Trial(model, (x,), {}, ())
    monkeypatch.setattr(ScratchModel, "rounding", lambda *_: 1e-3)
    monkeypatch.setattr(
        ScratchModel, "sliced", lambda self, *given: _moved(self.zeroed(*given), 1e-4)
    )
    fault = trial.fault([group])
    assert fault is not None
    assert fault.reason.startswith("rounding alone moves the outputs by 1e-03 on the example")


def _moved(outputs: dict[str, Tensor], step: float) -> dict[str, Tensor]:
    return {name: y * (1 + step) for name, y in outputs.items()}


def test_the_reason_is_that_of_the_option_that_passed_most() -> None:
    """One set of patches fails at once, the other only in the last comparison."""
    model, inputs = planned_network("attention, trap")
    group = replace(plan(*planned_network("attention, open view")).groups[0], patches=())
    wrong, nearly = (Patch("attention", "heads", 2),), (Patch("attention", "heads", 1),)
    faults = {wrong: Fault("fails at once", 0), nearly: Fault("fails in training", 3)}
    trial = Trial(model, inputs, {}, ())
    trial.fault = lambda groups, **_: faults[groups[-1].patches]  # type: ignore[method-assign]
    trial.agrees = lambda groups, **_: not any(g.drops for g in groups)  # type: ignore[method-assign]
    (choice,) = choose_execution(trial, [group], [Candidates((wrong, nearly))])
    assert choice.execution == "masked"
    assert choice.reason == "fails in training"
