"""Standardised weights and attention over channels: what is cut, and what pins the rest."""

import pytest
import torch
import torch.nn.functional as F
from tests.helpers.cut_networks import check_cut, described, doubled
from torch import Tensor, nn

from l0arm import plan


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


def test_channels_that_a_convolution_runs_along_stay_and_say_why() -> None:
    """Efficient channel attention: a channel's factor comes from its neighbours."""

    class Efficient(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Conv2d(3, 8, 3), nn.Linear(8, 6)
            self.along, self.out = nn.Conv1d(1, 1, 3, padding=1, bias=False), nn.Linear(6, 3)

        def forward(self, x: Tensor) -> Tensor:
            x = self.first(x)
            factors = self.along(x.mean((2, 3)).unsqueeze(1)).sigmoid()
            return self.out(self.last((x * factors.view(len(x), -1, 1, 1)).mean((2, 3))).relu())

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
