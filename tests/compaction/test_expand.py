"""A small network back in the dense shape computes the same."""

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.testing import assert_close

import l0arm
from l0arm import EmptyGroupWarning, Gated, expand

NETWORKS = ["mlp", "lenet5", "wrn"]


def trained(small: nn.Module, net: Any) -> nn.Module:
    """After a few more steps, so that nothing of the gated network's weights is left."""
    optimizer = torch.optim.SGD(small.parameters(), lr=0.05)
    for _ in range(3):
        optimizer.zero_grad()
        F.cross_entropy(small(net.x), net.y).backward()
        optimizer.step()
    return small


@pytest.mark.parametrize("name", NETWORKS)
def test_it_computes_what_the_small_network_computes(name: str, network: Any) -> None:
    net = network(name)
    gated = net.gated(z=net.gates(0, fractional=True))
    small = trained(gated.compact(), net)
    dense = expand(small, gated)
    shapes = [tuple(p.shape) for p in dense.parameters()]
    assert shapes == [tuple(p.shape) for p in net.plain.parameters()]
    assert {type(m) for m in dense.modules()} == {type(m) for m in net.plain.modules()}
    assert_close(dense.eval()(net.x), small.eval()(net.x), rtol=1e-10, atol=1e-10)


def test_what_was_cut_is_zero_and_the_rest_is_the_small_networks(network: Any) -> None:
    net = network("lenet5")
    z = net.gates(0) != 0
    gated = net.gated(z=z.double())
    small = gated.compact()
    dense = expand(small, gated)
    rows = dense.conv2.weight[~z[20:70]]
    assert rows.numel() > 0
    assert not rows.any()
    assert torch.equal(dense.conv2.weight[z[20:70]][:, z[:20]], small.conv2.weight)


def test_buffers_of_cut_units_are_the_gated_networks(network: Any) -> None:
    net = network("wrn")
    z = net.gates(0)
    gated = net.gated(z=z)
    small: Any = gated.compact()
    for buffer in small.buffers():
        buffer.zero_()
    dense: Any = expand(small, gated)
    old, new = gated.model.blocks[0].norm2.running_var, dense.blocks[0].norm2.running_var
    assert torch.equal(new, torch.where(z[:16] != 0, 0.0, old))


def test_both_are_left_alone_and_the_mode_is_the_small_networks(network: Any) -> None:
    net = network("lenet5")
    gated = net.gated(z=net.gates(0))
    small = gated.compact().eval()
    small.conv1.bias.requires_grad_(False)
    before = copy.deepcopy((gated.state_dict(), small.state_dict()))
    dense = expand(small, gated)
    assert not dense.training
    assert gated.training
    assert [n for n, p in dense.named_parameters() if not p.requires_grad] == ["conv1.bias"]
    for parameter in dense.parameters():
        parameter.data.fill_(7.0)
    assert_close((gated.state_dict(), small.state_dict()), before, rtol=0, atol=0)


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(9, 6), nn.Linear(6, 9, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(torch.tanh(self.embed(tokens)))


def test_tied_weights_stay_tied() -> None:
    gated = l0arm.sparsify(Tied(), example_inputs=torch.arange(9), method="l0-arm", lam=0.0)
    gated.phi.data = torch.tensor([9.0, -9, 9, -9, 9, 9])
    dense: Any = expand(gated.compact(), gated)
    assert dense.head.weight is dense.embed.weight
    assert_close(dense(torch.arange(9)), gated.eval()(torch.arange(9)))


def test_a_stand_in_goes_back_to_its_place(network: Any) -> None:
    net = network("wrn")
    gated = net.gated(z=net.gates(0, empty=["blocks.1.conv1"]))
    with pytest.warns(EmptyGroupWarning):
        small = gated.compact()
    assert_close(expand(small, gated).eval()(net.x), small.eval()(net.x), rtol=1e-10, atol=1e-10)


def test_the_input_of_a_single_layer() -> None:
    group = l0arm.Group("in", 5, reads=(l0arm.Slice("weight", 1),), select=l0arm.Slice("", -1))
    gated = l0arm.sparsify(nn.Linear(5, 2), [group], "l0-arm", lam=0.0)
    gated.phi.data = torch.tensor([9.0, -9, 9, -9, 9])
    small, x = gated.compact(), torch.rand(3, 5)
    dense: Any = expand(small, gated)
    assert type(dense) is nn.Linear
    assert_close(dense(x), small(x))


def test_another_phi_is_refused(network: Any) -> None:
    net = network("mlp")
    gated: Gated = net.gated(z=net.gates(0))
    small = gated.compact()
    gated.phi.data.neg_()
    with pytest.raises(ValueError, match=r"'fc1.weight' of the small network .* phi unchanged"):
        expand(small, gated)


def test_rounded_widths_go_back_with_the_same_rounding(network: Any) -> None:
    net = network("mlp")
    gated = net.gated(z=net.gates(0))
    small = gated.compact(round_to=32)
    with pytest.raises(ValueError, match="same round_to"):
        expand(small, gated)
    dense = expand(small, gated, round_to=32)
    assert_close(dense(net.x), small(net.x), rtol=1e-10, atol=1e-10)
