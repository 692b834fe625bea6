"""Losses in two real processes under every setting of DDP, and in one process."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.helpers.two import in_two_processes
from tests.helpers.workers import SETTINGS, SIZES, gated_network, settings_of_ddp
from torch import Tensor, nn
from torch.testing import assert_close

from l0arm.distributed import WholeLoss, loss_through, unwrapped


@pytest.fixture(scope="module")
def facts(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    return in_two_processes(settings_of_ddp, tmp_path_factory.mktemp("two"))


@pytest.mark.parametrize("draws", ["own", "shared"])
@pytest.mark.parametrize("settings", SETTINGS)
def test_theta_and_phi_are_equal_on_all_ranks_after_every_step(
    facts: list[Any], settings: str, draws: str
) -> None:
    for fact in facts:
        assert fact[f"{settings}/{draws}"]["apart"] == 0.0
        assert fact[f"{settings}/{draws}"]["moved"] > 1e-2


@pytest.mark.parametrize("settings", SETTINGS)
def test_the_gradient_is_the_mean_over_all_examples(facts: list[Any], settings: str) -> None:
    assert all(fact[f"{settings}/own"]["wrong"] < 1e-12 for fact in facts)


@pytest.mark.parametrize("settings", SETTINGS)
def test_masks_differ_between_ranks_unless_they_are_shared(facts: list[Any], settings: str) -> None:
    own, shared = ([fact[f"{settings}/{d}"]["masks"] for fact in facts] for d in ("own", "shared"))
    assert not torch.equal(*own)
    assert torch.equal(*shared)


@pytest.mark.parametrize("settings", SETTINGS)
def test_the_reported_loss_is_that_of_the_process_or_the_mean_over_all_examples(
    facts: list[Any], settings: str
) -> None:
    own, shared = ([fact[f"{settings}/{d}"] for fact in facts] for d in ("own", "shared"))
    assert all(torch.equal(fact["reported"], fact["local"]) for fact in own)
    mean = sum(n * fact["local"] for n, fact in zip(SIZES, shared, strict=True)) / sum(SIZES)
    assert all(torch.equal(fact["reported"], shared[0]["reported"]) for fact in shared)
    assert_close(shared[0]["reported"], mean, rtol=1e-12, atol=0)


def test_buffers_follow_the_first_rank_only_if_asked(facts: list[Any]) -> None:
    # The broadcast comes before a pass; after the last one each rank has seen its own batch.
    assert facts[0]["no broadcast/own"]["buffers apart"] > 1e-6


@pytest.mark.parametrize("way", ["exact", "forward-only"])
@pytest.mark.parametrize("draws", ["own", "shared"])
def test_the_mean_over_ranks_and_noise_is_the_exact_gradient(
    facts: list[Any], draws: str, way: str
) -> None:
    for fact in facts:
        mean, exact = fact[way][draws]
        assert exact.abs().min() > 1e-3
        assert_close(mean, exact, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("case", ["unwrapped", "around the network", "another's"])
def test_a_loss_that_ddp_would_not_average_is_refused(facts: list[Any], case: str) -> None:
    for fact in facts:
        assert "gradients would not be averaged" in fact[case]
        assert "WholeLoss(gated)" in fact[case]


def test_a_loss_without_a_graph_needs_no_average(facts: list[Any]) -> None:
    assert all(fact["validation"] > 0 for fact in facts)


def test_a_loss_that_is_not_finite_on_one_rank_stops_all_and_leaves_buffers(
    facts: list[Any],
) -> None:
    assert "of another process is nan" in facts[0]["not finite"]
    assert facts[1]["not finite"].startswith("the data loss is nan")
    assert all(fact["buffers kept"] for fact in facts)


def test_no_examples_at_all_are_refused(facts: list[Any]) -> None:
    assert all("there is no example" in fact["no examples"] for fact in facts)


def test_sharded_parameters_are_refused_with_the_reason(facts: list[Any]) -> None:
    for fact in facts:
        assert "a draw cuts whole rows and columns" in fact["sharded"]


def test_a_wrapper_around_the_gated_model_averages_a_redirected_loss(facts: list[Any]) -> None:
    for fact in facts:
        apart, largest = fact["redirected"]
        assert apart == 0.0
        assert largest > 1e-4


# In one process


def test_alone_it_is_the_loss_of_the_gated_model() -> None:
    losses = []
    for call in ("gated", "whole"):
        gated = gated_network()
        x, y = torch.rand(4, 1, 6, 6, generator=torch.Generator().manual_seed(3)), torch.arange(4)

        def closure(gated: Any = gated, x: Any = x, y: Any = y) -> Tensor:
            return F.cross_entropy(gated(x), y % 3)

        torch.manual_seed(2)
        loss = gated.loss(closure) if call == "gated" else WholeLoss(gated)(closure, weight=4)
        loss.backward()
        losses.append([loss.total.detach(), *(p.grad for p in gated.parameters())])
    assert all(torch.equal(a, b) for a, b in zip(*losses, strict=True))


@pytest.mark.parametrize("weight", [-1, float("nan"), float("inf")])
def test_a_weight_is_a_number_of_examples(weight: float) -> None:
    with pytest.raises(ValueError, match="0 or more"):
        WholeLoss(gated_network())(lambda: torch.zeros(()), weight=weight)


def test_what_has_no_loss_is_refused() -> None:
    with pytest.raises(TypeError, match="sparsify it first"):
        WholeLoss(nn.Linear(2, 2))
    with pytest.raises(ValueError, match="'own' or 'shared'"):
        WholeLoss(gated_network(), "both")  # type: ignore[arg-type]


# Redirected: the loss inside a wrapper around the gated model


class Wrapper(nn.Module):
    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module, self.inside = module, False

    def forward(self, *args: Tensor) -> object:
        self.inside = True
        try:
            return self.module(*args)
        finally:
            self.inside = False


def test_the_closure_runs_inside_the_wrapper_and_gives_the_same_loss() -> None:
    gated = gated_network()
    wrapper, seen = Wrapper(gated), []
    x, y = torch.rand(4, 1, 6, 6), torch.arange(4) % 3

    def closure() -> Tensor:
        seen.append(wrapper.inside)
        return F.cross_entropy(gated(x), y)

    torch.manual_seed(1)
    loss = loss_through(wrapper, gated, closure)
    torch.manual_seed(1)
    assert torch.equal(loss.total, gated_again(x, y))
    assert seen == [True, True]
    assert not loss.data.requires_grad
    assert "forward" not in vars(gated)


def gated_again(x: Tensor, y: Tensor) -> Tensor:
    gated = gated_network()
    torch.manual_seed(1)
    return gated.loss(lambda: F.cross_entropy(gated(x), y)).total


def test_a_forward_that_a_trainer_set_is_used_and_kept() -> None:
    gated = gated_network()
    calls, original = [], gated.forward
    gated.forward = own = lambda *args: calls.append(args) or original(*args)
    x = torch.rand(4, 1, 6, 6)
    loss_through(gated, gated, lambda: gated(x).square().mean()).total.backward()
    assert len(calls) == 2
    assert vars(gated)["forward"] is own


def test_the_forward_is_restored_when_the_loss_fails() -> None:
    gated = gated_network()
    with pytest.raises(ZeroDivisionError):
        loss_through(gated, gated, lambda: 1 / 0)
    assert "forward" not in vars(gated)


def test_unwrapped_looks_inside_wrappers() -> None:
    gated = gated_network()
    assert unwrapped(Wrapper(Wrapper(gated))) is gated
    with pytest.raises(TypeError, match="expected a Gated, bare or wrapped, got Linear"):
        unwrapped(nn.Linear(1, 1))
