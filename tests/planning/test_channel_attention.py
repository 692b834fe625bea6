"""Standardised weights and attention over channels: what is cut, and what pins the rest."""

import copy
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from tests.helpers.cut_networks import check_cut, described, doubled
from torch import Tensor, nn

from l0arm import Plan, PlanError, certificate, expand, load, plan, save, shrink, sparsify


class Standardised(nn.Conv2d):
    """Every filter has mean 0 and variance 1, by the kernel of batch norm and with a gain."""

    def __init__(self, inputs: int, outputs: int, groups: int = 1) -> None:
        super().__init__(inputs, outputs, 3, padding=1, groups=groups)
        self.gain = nn.Parameter(torch.ones(outputs, 1, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        rows = self.weight.reshape(1, len(self.weight), -1)
        gain = (0.3 * self.gain).view(-1)
        weight = F.batch_norm(rows, None, None, weight=gain, training=True, momentum=0.0)
        weight = weight.reshape_as(self.weight)
        return F.conv2d(x, weight, self.bias, 1, self.padding, 1, self.groups)


class ByHand(Standardised):
    """The same by mean and variance."""

    def forward(self, x: Tensor) -> Tensor:
        variance, mean = torch.var_mean(self.weight, dim=(1, 2, 3), keepdim=True)
        weight = self.gain * (self.weight - mean) * torch.rsqrt(variance + 1e-5)
        return F.conv2d(x, weight, self.bias, 1, self.padding, 1, self.groups)


@pytest.mark.parametrize("kind", [Standardised, ByHand])
def test_filters_of_standardised_weights_are_cut(kind: type[Standardised]) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(kind(3, 6), nn.ReLU(), nn.Conv2d(6, 4, 1), nn.ReLU(), nn.Flatten(1))
    model.append(nn.Linear(4 * 25, 3))
    found = check_cut(*doubled(model, torch.randn(2, 3, 5, 5)))
    assert described(found)["0"].startswith("6 ")
    assert "masked" not in " ".join(described(found).values())


def test_units_that_a_standardised_weight_reads_stay_and_say_why() -> None:
    """Without a column, its rows would have another mean and variance."""
    model = nn.Sequential(nn.Conv2d(3, 6, 1), nn.ReLU(), Standardised(6, 4), nn.Conv2d(4, 2, 5))
    found = plan(model, torch.randn(2, 3, 5, 5))
    assert [group.name for group in found.groups] == ["2"]
    reasons = {entry.layer: entry.reason for entry in found.skipped}
    assert reasons["0"] == "conv2d in '2' reads the units by a weight that is computed, not held"


class ThirdKind(Standardised):
    """The same by methods of the weight, with the numbers of a row written as one dimension."""

    def forward(self, x: Tensor) -> Tensor:
        rows = self.weight.flatten(1)
        rows = (rows - rows.mean(1, keepdim=True)) / (rows.std(1, keepdim=True) + 1e-3)
        return F.conv2d(x, self.gain * rows.view_as(self.weight), self.bias, 1, self.padding)


def standardised(kind: type[Standardised]) -> nn.Module:
    inner = [kind(3, 6), nn.SiLU(), kind(6, 5), nn.SiLU(), nn.AdaptiveAvgPool2d(1)]
    return nn.Sequential(*inner, nn.Flatten(1), nn.Linear(5, 3))


@pytest.mark.parametrize("kind", [Standardised, ByHand, ThirdKind])
def test_units_that_a_standardised_weight_reads_are_cut_where_they_are_zeros(
    kind: type[Standardised],
) -> None:
    """Closed where they are made, they are zeros. Mean and variance go on counting them as such."""
    torch.manual_seed(0)
    model, inputs = doubled(standardised(kind), torch.randn(2, 3, 5, 5))
    found = check_cut(model, inputs, plan(model, inputs, stream=True))
    units = {group.name: (group.units, group.mixing[:1]) for group in found.groups}
    assert units == {"0": (6, ("2",)), "2": (5, ())}
    assert all(entry.execution != "masked" for entry in found.planned)
    assert Plan.from_json(found.to_json()) == found


def test_units_that_are_no_zeros_when_closed_stay_and_say_why() -> None:
    model = nn.Sequential(nn.Conv2d(3, 6, 1), nn.Sigmoid(), Standardised(6, 4), nn.Conv2d(4, 2, 5))
    found = plan(model, torch.randn(2, 3, 5, 5), stream=True)
    assert [group.name for group in found.groups] == ["2"]
    (reason,) = [entry.reason for entry in found.skipped if entry.layer == "0"]
    assert reason.startswith("'2' mixes the units, and dropping its units gives other values than")


def test_a_small_network_with_standardised_weights_trains_and_is_saved(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, (x,) = doubled(standardised(Standardised), torch.randn(2, 3, 5, 5))
    found = plan(model, x, stream=True)
    gated = sparsify(model, found, "l0-disarm", lam=1e-3, example_inputs=x).double()
    gated.loss(lambda: gated(x).square().mean()).total.backward()
    assert gated.phi.grad is not None
    gated.phi.data = torch.where(torch.arange(11) % 3 > 0, 9.0, -9.0).double()
    small = gated.eval().compact()
    assert certificate(small).passed
    assert small[2].weight.shape == (3, 4, 3, 3)
    want = small(x)
    save(small, tmp_path / "small")
    for other in (
        copy.deepcopy(small),
        load(tmp_path / "small", lambda: standardised(Standardised).double()).eval(),
        torch.export.export(small, (x,)).module(),
        shrink(gated).eval(),
    ):
        assert torch.allclose(other(x), want, rtol=1e-11, atol=1e-12)
    dense = expand(small, gated).eval()
    assert dense[2].weight.shape == (5, 6, 3, 3)
    assert torch.allclose(dense(x), want, rtol=1e-11, atol=1e-12)
    small(x).sum().backward()
    assert all(p.grad is not None for p in small.parameters())
    with pytest.raises(ValueError, match="since '2' mixes them"):
        sparsify(standardised(Standardised), found, "l0-hc", lam=1e-3)


class Efficient(nn.Module):
    """Efficient channel attention: a channel's factor comes from its neighbours."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(3, 8, 3), nn.Linear(8, 6)
        self.along, self.out = nn.Conv1d(1, 1, 3, padding=1, bias=False), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        factors = self.along(x.mean((2, 3)).unsqueeze(1)).sigmoid()
        return self.out(self.last((x * factors.view(len(x), -1, 1, 1)).mean((2, 3))).relu())


def test_channels_that_a_convolution_runs_along_are_cut_where_they_are_zeros() -> None:
    """Each keeps its neighbours: the convolution goes on running over all of them."""
    torch.manual_seed(0)
    model, inputs = doubled(Efficient(), torch.randn(2, 3, 8, 8))
    found = check_cut(model, inputs, plan(model, inputs, stream=True))
    assert {g.name: (g.units, g.mixing) for g in found.groups} == {
        "first": (8, ("along",)),
        "last": (6, ()),
    }
    assert all(entry.execution != "masked" for entry in found.planned)


class NormFree(nn.Module):
    """A residual block without norms: standardised weights, and efficient channel attention."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.one, self.two = Standardised(width, 8), Standardised(8, 8, groups=2)
        self.three, self.gain = Standardised(8, width), nn.Parameter(torch.ones(()))
        self.along = nn.Conv1d(1, 1, 3, padding=1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y = F.silu(x) * 0.9
        y = self.three(F.silu(self.two(F.silu(self.one(y)))))
        factors = self.along(y.mean((2, 3)).view(len(y), 1, -1)).sigmoid().view(len(y), -1, 1, 1)
        return x + 2 * self.gain * y * factors.expand_as(y)


def test_a_residual_network_without_norms_is_cut() -> None:
    torch.manual_seed(0)
    layers = [Standardised(3, 6), NormFree(6), NormFree(6), nn.SiLU(), nn.AdaptiveAvgPool2d(1)]
    model, inputs = doubled(
        nn.Sequential(*layers, nn.Flatten(1), nn.Linear(6, 3)), torch.randn(2, 3, 5, 5)
    )
    found = check_cut(model, inputs, plan(model, inputs, stream=True))
    assert {(g.name, g.units, len(g.widens)) for g in found.groups} == {
        ("0", 6, 4),  # read by two weights and run along by two convolutions
        ("1.one", 2, 1),
        ("2.one", 2, 1),
    }
    assert all(entry.execution != "masked" for entry in found.planned)
    with pytest.raises(PlanError, match="a weight that is computed, not held"):
        plan(model, inputs)


def test_channels_that_a_convolution_runs_along_stay_and_say_why() -> None:
    """When a channel goes, others become neighbours."""
    found = plan(Efficient(), torch.randn(2, 3, 8, 8))
    assert [group.name for group in found.groups] == ["last"]
    reasons = {entry.layer: entry.reason for entry in found.skipped}
    assert reasons["first"] == "conv1d in 'along' mixes the units"


@pytest.mark.parametrize("radix", [1, 2, 3])
def test_split_attention_is_cut(radix: int) -> None:
    """A unit is the same channel of every split: they are summed over."""

    class SplitAttention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.norm = nn.Conv2d(3, 6 * radix, 3), nn.BatchNorm2d(6 * radix)
            self.squeeze, self.attend = nn.Conv2d(6, 5, 1), nn.Conv2d(5, 6 * radix, 1)
            self.out = nn.Conv2d(6, 4, 1)

        def forward(self, x: Tensor) -> Tensor:
            x = F.relu(self.norm(self.conv(x)))
            b, channels, height, width = x.shape
            x = x.reshape(b, radix, channels // radix, height, width)
            pooled = x.sum(dim=1).mean((2, 3), keepdim=True)
            scores = self.attend(self.squeeze(pooled).relu()).view(b, 1, radix, -1)
            shares = scores.transpose(1, 2).softmax(1) if radix > 1 else scores.sigmoid()
            shares = shares.reshape(b, radix, channels // radix, 1, 1)
            return self.out((x * shares).sum(dim=1)).mean((2, 3))

    torch.manual_seed(radix)
    found = check_cut(*doubled(SplitAttention(), torch.randn(3, 3, 7, 7)))
    assert described(found) == {"conv": "6 as is", "squeeze": "5 as is"}
