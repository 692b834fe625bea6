"""Norms over a part of their units, and everything else that groups with norms pass through."""

import itertools

import pytest
import torch
from torch import Tensor, nn

from l0arm import Group, Norm, Slice, compact, expand, shrink, sparsify
from l0arm.costs.expectation import parameter_cost
from l0arm.costs.flops import count_flops, expected_flops
from l0arm.gating.norms import FullWidthLayerNorm


class Small(nn.Module):
    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.a, self.norm, self.b = nn.Linear(3, 4), norm, nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.b(self.norm(self.a(x)))


def group(norm: nn.Module) -> Group:
    own = [f"norm.{key}" for key, _ in norm.named_parameters()]
    makes = ("a.weight", "a.bias", *own)
    epsilon = None if isinstance(norm, nn.LayerNorm) else "eps"
    return Group(
        "stream",
        4,
        reads=(Slice("b.weight", dim=1),),
        makes=tuple(Slice(name, dim=0) for name in makes),
        norms=(Norm("norm", epsilon),),
    )


NORMS = {"LayerNorm": lambda: nn.LayerNorm(4), "RMSNorm": lambda: nn.RMSNorm(4)}
named = pytest.mark.parametrize("name", NORMS)


@named
def test_expected_cost_is_the_mean_of_counted_costs(name: str) -> None:
    norm = NORMS[name]()
    gated = sparsify(Small(norm), [group(norm)], "l0-arm", lam=0.0)
    x, probability = torch.zeros(1, 3), torch.tensor([0.9, 0.6, 0.7, 0.8])
    parameters = flops = 0.0
    gated.phi.data = torch.logit(probability)
    pi = gated.gates.open_probability.detach()
    expected, expected_parameters = expected_flops(gated, x).inference, parameter_cost(gated)(pi)
    empty = float((1 - pi).prod())  # a stand-in unit stays then: counted apart
    for bits in itertools.product((0.0, 1.0), repeat=4):
        z = torch.tensor(bits)
        weight = float(torch.where(z > 0, pi, 1 - pi).prod())
        if z.any():
            gated.phi.data = torch.where(z > 0, 9.0, -9.0)
            small = compact(gated)
            parameters += weight * sum(p.numel() for p in small.parameters())
            flops += weight * count_flops(small, x)
    parameters += empty * 2  # the bias of the last layer
    assert float(expected_parameters) == pytest.approx(parameters, rel=1e-6)
    assert expected == pytest.approx(flops, rel=1e-6)


@named
def test_shrink_and_expand_compute_the_same(name: str) -> None:
    torch.manual_seed(0)
    norm = NORMS[name]().double()
    for parameter in norm.parameters():
        nn.init.normal_(parameter)
    gated = sparsify(Small(norm).double(), [group(norm)], "l0-arm", lam=0.0).double().eval()
    gated.phi.data = torch.tensor([9.0, -9.0, 9.0, 9.0]).double()
    x = torch.randn(5, 3).double()
    want = gated(x)
    smaller = shrink(gated).eval()
    assert smaller.groups[0].units == 3
    torch.testing.assert_close(smaller(x), want, rtol=0, atol=1e-12)
    smaller.phi.data[0] = gated.phi.data[0] = -9.0  # one more, of those that are left
    want = gated(x)
    torch.testing.assert_close(smaller(x), want, rtol=0, atol=1e-12)
    small = compact(smaller)
    torch.testing.assert_close(small(x), want, rtol=0, atol=1e-12)
    again = compact(gated)
    torch.testing.assert_close(expand(again, gated)(x), want, rtol=0, atol=1e-12)
    assert tuple(again.norm.normalized_shape) == (2,)


@named
def test_the_state_of_the_optimizer_is_cut_but_not_scaled(name: str) -> None:
    norm = NORMS[name]()
    gated = sparsify(Small(norm), [group(norm)], "l0-arm", lam=0.0)
    optimizer = torch.optim.Adam(gated.parameter_groups())
    gated.phi.data.fill_(9.0)
    gated(torch.randn(5, 3)).sum().backward()
    optimizer.step()
    before = optimizer.state[gated.model.norm.weight]["exp_avg"].clone()
    gated.phi.data = torch.tensor([9.0, -9.0, 9.0, 9.0])
    small = compact(gated, optimizer=optimizer)
    after = optimizer.state[small.norm.weight]["exp_avg"]
    assert torch.equal(after, before[[0, 2, 3]])


def test_half_precision_is_normalised_in_float32() -> None:
    norm = FullWidthLayerNorm(nn.LayerNorm(64).to(torch.bfloat16))
    x = torch.zeros(2, 64)
    x[:, :40] = torch.randn(2, 40) + 3.0
    x = x.to(torch.bfloat16)
    norm.weight, norm.bias = (nn.Parameter(p[:40]) for p in (norm.weight, norm.bias))
    want = nn.functional.layer_norm(x.float(), (64,))[:, :40]
    torch.testing.assert_close(norm(x[:, :40]).float(), want, rtol=1e-2, atol=1e-2)


def test_what_is_no_norm_is_refused() -> None:
    wrong = {
        "not an attribute with a float": (nn.RMSNorm(4), Norm("norm", "epsilon")),
        "not a plain nn.LayerNorm": (nn.RMSNorm(4), Norm("norm")),
        "does not have; nearest names": (nn.RMSNorm(4), Norm("morn", "eps")),
        "is no RMSNorm: it has 2 parameters": (nn.LayerNorm(4), Norm("norm", "eps")),
    }
    for message, (norm, named_norm) in wrong.items():
        model = Small(norm)
        piece = Slice("a.weight", 0), Slice("norm.weight", 0)
        bad = Group("s", 4, (Slice("b.weight", 1),), makes=piece, norms=(named_norm,))
        with pytest.raises(ValueError, match=message):
            sparsify(model, [bad], "l0-arm", lam=0.0)
        assert model.norm is norm
