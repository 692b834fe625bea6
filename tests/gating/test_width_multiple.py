"""Widths rounded up re-open the most probable gates, and nothing else changes."""

from dataclasses import replace

import pytest
import torch

import l0arm
from l0arm import sparsify
from l0arm.gating import Gated
from l0arm.methods import METHODS
from l0arm.models import MLP


@pytest.fixture
def gated() -> Gated:
    torch.manual_seed(0)
    gated = l0arm.sparsify(MLP((12, 10, 9, 3)), method="l0-arm", lam=0.0)
    gated.phi.data = torch.randn(gated.phi.shape)
    return gated.eval()


def widths(gated: Gated) -> list[int]:
    return [int(n) for n in l0arm.architecture(gated).split("-")]


def test_widths_are_multiples_or_all_there_is(gated: Gated) -> None:
    before = widths(gated)
    gated.width_multiple = 4
    units = [12, 10, 9]
    assert widths(gated) == [min(-(-n // 4) * 4, u) for n, u in zip(before, units, strict=True)]
    assert widths(gated) != before


def test_the_most_probable_closed_gates_open_at_their_probability(gated: Gated) -> None:
    old = gated.deterministic()
    gated.width_multiple = 4
    new, pi = gated.deterministic(), gated.gates.open_probability.detach()
    assert torch.equal(new[old != 0], old[old != 0])
    changed = (old == 0) & (new != 0)
    assert torch.equal(new[changed], pi[changed])
    for name, part in gated.per_group(changed).items():
        still = gated.per_group(new)[name] == 0
        if part.any() and still.any():
            assert gated.per_group(pi)[name][part].min() >= gated.per_group(pi)[name][still].max()


def test_compaction_follows(gated: Gated) -> None:
    gated.width_multiple = 4
    x = torch.rand(5, 12, dtype=torch.float64)
    gated = gated.double()
    small = gated.compact()
    assert small.fc2.weight.shape == (widths(gated)[2], widths(gated)[1])  # type: ignore[union-attr]
    assert float((small(x) - gated(x)).detach().abs().max()) < 1e-12


def test_a_closed_group_stays_closed(gated: Gated) -> None:
    gated.phi.data[12:22] = -9.0
    gated.width_multiple = 4
    assert widths(gated)[1] == 0


@pytest.mark.parametrize("multiple", [0, -8, 2.5])
def test_only_a_positive_integer_will_do(gated: Gated, multiple: int) -> None:
    with pytest.raises(ValueError, match="width_multiple must be an integer >= 1"):
        gated.width_multiple = multiple


@pytest.mark.parametrize("name", METHODS)
def test_every_method_compacts_at_a_rounded_width(name: str) -> None:
    torch.manual_seed(0)
    options = {} if name in ("magnitude", "l1-filter", "random") else {"lam": 1e-4}
    gated = l0arm.sparsify(MLP((12, 10, 9, 3)), method=name, **options).double().eval()
    gated.phi.data = gated.phi.data + torch.randn(gated.phi.shape) if gated.phi.numel() else 0
    gated.width_multiple = 4
    x = torch.rand(5, 12, dtype=torch.float64)
    assert float((gated.compact()(x) - gated(x)).detach().abs().max()) < 1e-10


@pytest.mark.parametrize("floor", [0, 4])
def test_reopened_gates_of_bayesian_methods_are_the_likeliest_and_have_their_value(
    floor: int,
) -> None:
    model = MLP((6, 8, 3))
    inputs, hidden = model.groups()
    gated = sparsify(model, [inputs, replace(hidden, floor=floor)], method="bc-gnj", lam=0.0)
    gated.phi.data[:, 0] = 0.75  # mu
    gated.phi.data[:, 1] = -9.0
    gated.phi.data[6:, 1] = torch.tensor([1.0, 0.0, -1.0, -3.4, -3.3, -2.0, -3.2, -9.0])
    z = gated.deterministic(1 if floor else 4)[6:]
    assert z.tolist() == [0.0, 0.0, 0.0, 0.75, 0.75, 0.0, 0.75, 0.75]


def test_reopened_gates_of_sbp_are_the_likeliest() -> None:
    gated = sparsify(MLP((6, 8, 3)), method="sbp", lam=0.0)
    gated.phi.data[6:, 1] = torch.tensor([1.0, 4.0, 3.5, 1.5, 3.0, 2.5, 2.0, -5.0])
    z = gated.deterministic(4)[6:]
    assert z.nonzero().flatten().tolist() == [0, 3, 6, 7]
    assert float(z[0]) > float(z[3]) > float(z[6]) > 0.1
