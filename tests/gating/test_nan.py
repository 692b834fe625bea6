"""A gate whose phi is NaN is neither open nor closed: nothing is computed, cut or saved with it."""

import inspect
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

import l0arm
from l0arm import Gated, NonFiniteLoss, sparsify
from l0arm.contracts import Gates
from l0arm.methods import METHODS
from l0arm.models import MLP

MESSAGE = (
    r"phi of group 'fc2' is NaN for 2 of 5 gates, so which units are open is not known; "
    r"load an earlier checkpoint and lower gate_lr"
)
X = torch.rand(4, 6)


def with_nan(method: str | l0arm.Method = "l0-arm", **options: float) -> Gated:
    gated = sparsify(MLP((6, 5, 3)), method=method, **options)
    gated.phi.data[7:9] = torch.nan
    return gated


def save(gated: Gated) -> None:
    l0arm.save(gated, "folder")


@pytest.mark.parametrize(
    "use",
    [
        Gated.deterministic,
        l0arm.architecture,
        l0arm.prune_rate,
        lambda gated: l0arm.prune_rate(gated, "realised"),
        Gated.compact,
        save,
        lambda gated: gated.eval()(X),
        lambda gated: gated.train()(X),
        lambda gated: gated.loss(lambda: gated(X).square().mean()),
    ],
    ids=["z-bar", "architecture", "rate", "realised", "compact", "save", "eval", "train", "loss"],
)
def test_a_nan_in_phi_is_refused_with_the_name_of_the_group(
    use: Callable[[Gated], object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    gated = with_nan(lam=0.1)
    with pytest.raises(NonFiniteLoss, match=MESSAGE):
        use(gated)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("method", sorted(METHODS))
def test_the_next_loss_notices_a_nan_with_every_method(method: str) -> None:
    strength = {"lam": 0.0} if "lam" in inspect.signature(METHODS[method]).parameters else {}
    gated = with_nan(method, **strength)
    with pytest.raises(NonFiniteLoss, match=r"phi of group 'fc[12]' is NaN for . of . gates"):
        gated.loss(lambda: gated(X).square().mean())


def decay(gated: Gated, gates: Gates) -> Tensor:
    """A penalty that does not depend on phi."""
    return gated.model.fc1.weight.square().sum()


@pytest.mark.parametrize("penalties", [(), (decay,)])
def test_the_next_loss_notices_a_nan_that_no_penalty_sees(
    penalties: tuple[Callable[[Gated, Gates], Tensor], ...],
) -> None:
    method = replace(METHODS["l0-arm"](lam=0.1), penalties=penalties)
    gated = with_nan(method)
    with pytest.raises(NonFiniteLoss, match=MESSAGE):
        gated.loss(lambda: gated(X).square().mean())


def test_an_infinite_phi_is_a_decided_gate() -> None:
    gated = sparsify(MLP((6, 5, 3)), lam=0.1)
    gated.phi.data = torch.tensor([torch.inf, -torch.inf, *[1.0] * 9])
    assert l0arm.architecture(gated) == "5-5"
    assert gated.eval()(X).isfinite().all()


def test_a_gate_function_that_gives_nan_is_refused_too() -> None:
    gated = sparsify(MLP((6, 5, 3)), lam=0.1, gate=lambda phi: torch.sigmoid(phi).sqrt())
    gated.method = replace(gated.method, gate=type(gated.method.gate)(lambda phi: phi.sqrt()))
    gated.phi.data = torch.full((11,), 0.5)
    gated.phi.data[7:9] = -1.0
    with pytest.raises(NonFiniteLoss, match=MESSAGE):
        gated.deterministic()
