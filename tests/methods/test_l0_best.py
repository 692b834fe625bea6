"""l0-best ends with gates that are decided, and with no unit that nothing reads."""

import pytest
import torch

from l0arm import Group, Slice, architecture, prune_rate, sparsify
from l0arm.estimators import ARM
from l0arm.methods._l0_best import Decide, l0_best
from l0arm.models import MLP, LeNet5
from l0arm.penalties import L0


def test_gates_are_decided_by_the_threshold() -> None:
    gated = sparsify(LeNet5(), method="l0-best", lam=0.0)
    torch.nn.init.uniform_(gated.phi, -0.3, 0.3)
    was_open = gated.deterministic() > 0
    Decide()(gated, None)
    pi = gated.gates.open_probability.detach()
    assert set(pi.tolist()) == {0.0, 1.0}
    assert not ((pi == 1) & ~was_open).any()
    both = [gated.method.gate(gated.phi).sample() for _ in range(5)]
    assert all(torch.equal(z, pi) for z in both)  # every draw is the network that will be kept


def test_what_lies_behind_closed_filters_closes() -> None:
    """3 filters of conv2 are left: 48 of the 800 inputs of fc1 can be read."""
    gated = sparsify(LeNet5(), method="l0-best", lam=0.0)
    gated.phi.data.fill_(5.0)
    gated.phi.data[20 + 3 : 20 + 50] = -5.0
    assert architecture(gated) == "20-3-800-500"
    before = prune_rate(gated, "realised")
    Decide()(gated, None)
    assert architecture(gated) == "20-3-48-500"
    assert prune_rate(gated, "realised") == before
    assert prune_rate(gated) == pytest.approx(before, abs=0.1)


def test_while_it_settles_only_the_weights_are_trained() -> None:
    learn, settle, end = l0_best(1e-6, settle=0.2, warm_up=0.75, settle_lr=3.0).stages
    assert [learn.share, settle.share, end.share] == pytest.approx([0.8, 0.198, 0.002])
    assert (learn.lr, settle.lr, end.lr) == (1.0, 3.0, 0.0)
    assert (learn.gate_lr, settle.gate_lr, end.gate_lr) == (1.0, 0.0, 0.0)
    assert [learn.penalty(p) for p in (0.0, 0.375, 0.75, 1.0)] == [0.0, 0.5, 1.0, 1.0]
    assert [settle.penalty(p) for p in (0.0, 1.0)] == [0.0, 0.0]
    assert [settle.anneal(p) for p in (0.0, 1.0)] == [1.0, 1.0]


def test_without_the_mean_the_rate_falls() -> None:
    method = l0_best(1e-6, average=False)
    _, settle = method.stages
    assert [settle.anneal(p) for p in (0.0, 1.0)] == [1.0, 0.0]
    assert set(sparsify(LeNet5(), method=method).extras) == {"parameter_count"}


def test_every_part_can_be_taken_away() -> None:
    bare = l0_best(1e-6, estimator="arm", price="fixed", warm_up=0, settle=0)
    assert isinstance(bare.estimator, ARM)
    assert bare.penalties == (L0(1e-6),)
    assert [stage.name for stage in bare.stages] == ["learn"]
    assert bare.stages[0].penalty(0.0) == 1.0
    assert not sparsify(LeNet5(), method=bare).extras


@pytest.mark.parametrize("option", ["settle", "warm_up"])
@pytest.mark.parametrize("share", [1.0, -0.5])
def test_shares_lie_between_0_and_1(option: str, share: float) -> None:
    with pytest.raises(ValueError, match=f"{option} is a share of the epochs, from 0 up to 1"):
        l0_best(0.0, **{option: share})


def test_an_unknown_price_is_refused() -> None:
    with pytest.raises(ValueError, match="price must be 'left' or 'fixed'; got 'cheap'"):
        l0_best(0.0, price="cheap")  # type: ignore[arg-type]


def gumbel(phi: torch.Tensor) -> torch.Tensor:
    """At phi = -100 it is 0, and its slope 0 times infinity."""
    return torch.exp(-torch.exp(-phi))


def test_gates_of_another_function_are_decided_with_slopes_that_are_numbers() -> None:
    gated = sparsify(MLP((6, 5, 3)), method=l0_best(1e-3, gate=gumbel))
    gated.phi.data[:3] = -2.0
    Decide()(gated, None)
    assert gated.gates.probs.tolist()[:3] == [0.0] * 3
    assert set(gated.gates.probs.tolist()) == {0.0, 1.0}
    gated.loss(lambda: gated(torch.rand(4, 6)).square().mean()).backward()
    assert gated.phi.grad is not None
    assert gated.phi.grad.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_decided_gates_are_exactly_0_and_1(dtype: torch.dtype) -> None:
    gated = sparsify(MLP((6, 5, 3)), method=l0_best(0.0)).to(dtype)
    Decide()(gated, None)
    assert set(gated.gates.probs.tolist()) <= {0.0, 1.0}


def test_gates_that_are_never_sure_are_refused_at_the_start() -> None:
    def cauchy(phi: torch.Tensor) -> torch.Tensor:
        return torch.atan(phi) / torch.pi + 0.5

    with pytest.raises(ValueError, match=r"never exactly 0 and 1 .* or give settle=0"):
        sparsify(MLP((6, 5, 3)), method=l0_best(0.0, gate=cauchy))
    assert sparsify(MLP((6, 5, 3)), method=l0_best(0.0, gate=cauchy, settle=0)).training


def test_gates_of_single_weights_have_no_price_in_parameters() -> None:
    weights = [Group("w", 30, reads=(Slice("fc1.weight", None),))]
    with pytest.raises(ValueError, match="no gate of this model takes a parameter off it"):
        sparsify(MLP((6, 5, 3)), weights, method=l0_best(1e-3))
    gated = sparsify(MLP((6, 5, 3)), weights, method=l0_best(1e-3, price="fixed"))
    assert gated.penalty().item() > 0
    with pytest.raises(ValueError, match=r"40 % of the parameters cannot be reached: .* 100 % rem"):
        sparsify(MLP((6, 5, 3)), weights, budget="40%")
