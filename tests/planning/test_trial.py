"""The silently wrong: dropping that raises nothing and is not zeroing. Values catch each."""

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from l0arm import Group, Patch, Slice
from l0arm.groups.layout import resolve
from l0arm.planning import plan
from l0arm.planning.settle import is_masked, settle
from l0arm.planning.trial import Trial, shake

Network = Callable[[str], tuple[nn.Module, tuple[Any, ...]]]


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
    trial, group, _, _ = heads_of("attention, literal", network)
    mlp = plan(*network("attention, literal")).groups[1]
    settled = settle(trial, [group, mlp], lambda place: [()])
    assert [is_masked(one) for one in settled] == [True, False]
    assert settled[0].reads == group.reads
    assert {piece.tensor for piece in settled[0].counts} == {
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


class OnlyFloat32(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 8), nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.b(F.relu(self.a(x.float())))


def test_a_model_that_runs_in_one_type_only_is_judged_in_it() -> None:
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
    """The last layer starts at zero: unshaken, any group would pass."""
    makes = (Slice("a.weight", 0), Slice("a.bias", 0))
    wrong = Group("g", 8, reads=(Slice("b.weight", 1),), makes=makes)
    assert not Trial(Centred(), (x,), {}, ()).agrees([wrong])


def test_an_input_of_zeros_is_made_lively() -> None:
    trial = Trial(nn.Linear(4, 2), (torch.zeros(3, 4), torch.ones(2, dtype=torch.long)), {}, ())
    assert float(trial.args[0].std()) > 0.5
    assert trial.args[1].tolist() == [1, 1]


def test_shaking_moves_everything_but_keeps_variances_positive() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4))
    before = {key: value.clone() for key, value in model.state_dict().items()}
    shake(model, torch.Generator().manual_seed(0))
    after = model.state_dict()
    moved = [key for key in before if not torch.equal(before[key], after[key])]
    assert moved == [key for key in before if key != "1.num_batches_tracked"]
    assert bool((after["1.running_var"] > 0).all())


@pytest.mark.parametrize("units", [2, 5])
def test_one_mask_closes_a_single_unit(units: int) -> None:
    model = nn.Sequential(nn.Linear(2, units), nn.Linear(units, 1))
    group = Group("g", units, reads=(Slice("1.weight", 1),), makes=(Slice("0.weight", 0),))
    trial = Trial(model, (torch.rand(1, 2),), {}, ())
    layout = resolve(model, [group])
    counts = [int(z.sum()) for z in trial._masks(layout)]
    assert counts == [units - 1, units - units // 2, 1]
