"""Every pair of a gate family and an estimator trains phi, or sparsify refuses it by name."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from l0arm import Gated, sparsify
from l0arm.contracts import Estimator, GateFamily, Gates
from l0arm.estimators import ARM, ESTIMATORS, Deterministic, DisARM, Pathwise
from l0arm.gates import (
    Bernoulli,
    Fixed,
    Gaussian,
    HardConcrete,
    HardSigmoid,
    Horseshoe,
    TruncatedLogNormal,
)
from l0arm.methods import METHODS, Method
from l0arm.models import MLP

BINARY = {"bernoulli": Bernoulli(), "bernoulli-hard": Bernoulli(HardSigmoid())}
SMOOTH = {
    "gaussian": Gaussian(),
    "hard-concrete": HardConcrete(),
    "horseshoe": Horseshoe(),
    "truncated-log-normal": TruncatedLogNormal(),
}
FAMILIES: dict[str, Any] = {**BINARY, **SMOOTH, "fixed": Fixed()}
ALL: dict[str, Callable[[], Any]] = {
    **ESTIMATORS,
    "pathwise": Pathwise,
    "deterministic": Deterministic,
}
X = torch.linspace(-1, 1, 20).sin().view(5, 4)
Y = torch.tensor([0, 1, 1, 0, 1])
pytestmark = pytest.mark.filterwarnings("ignore::l0arm.EmptyGroupWarning")  # small layers


def fits(family: str, estimator: str) -> bool:
    if estimator == "pathwise":
        return family in SMOOTH
    return family == "fixed" if estimator == "deterministic" else family in BINARY


def gated_by(gate: Any, estimator: Any) -> Gated:
    return sparsify(MLP((4, 3, 2)), method=Method("pair", gate, estimator))


def step(gated: Gated) -> Tensor | None:
    gated.loss(lambda: F.cross_entropy(gated(X), Y)).backward()
    return gated.phi.grad


@pytest.mark.parametrize("estimator", sorted(ALL))
@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_a_pair_trains_phi_or_is_refused(family: str, estimator: str) -> None:
    gate, made = FAMILIES[family], ALL[estimator]()
    if not fits(family, estimator):
        names = rf"{type(made).__name__}.* {type(gate).__name__}Gates.*; use "
        with pytest.raises(ValueError, match=names):
            gated_by(gate, made)
        return
    found = step(gated_by(gate, made))
    if family == "fixed":
        assert found is None  # what closes them is the method
    else:
        assert found is not None
        assert found.isfinite().all()


def test_a_refusal_names_a_way_out() -> None:
    with pytest.raises(ValueError, match=r"GaussianGates draws fractions; use Pathwise\(\)"):
        gated_by(Gaussian(), ARM())
    with pytest.raises(ValueError, match=r"FixedGates .* never be trained; use Deterministic\(\)"):
        gated_by(Fixed(), ARM())
    with pytest.raises(ValueError, match=r"BernoulliGates has no rsample; use .*HardConcrete\(\)"):
        gated_by(Bernoulli(), Pathwise())
    with pytest.raises(ValueError, match=r"trained; use an estimator of ESTIMATORS"):
        gated_by(Bernoulli(), Deterministic())
    with pytest.raises(ValueError, match=r"trained; use Pathwise\(\)"):
        gated_by(HardConcrete(), Deterministic())


def test_a_refused_model_is_as_it_was() -> None:
    model = MLP((4, 3, 2))
    before = model(X)
    with pytest.raises(ValueError, match="draws fractions"):
        sparsify(model, method=Method("pair", Gaussian(), ARM()))
    assert all(not m._forward_hooks and not m._forward_pre_hooks for m in model.modules())
    assert torch.equal(model(X), before)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("name", sorted(METHODS))
def test_a_pair_is_judged_by_what_it_is_and_not_by_where(name: str, mode: type) -> None:
    """Without a graph around it nothing has a gradient, and that says nothing about the pair."""
    lam = {} if name in ("l1-filter", "magnitude", "random") else {"lam": 1e-3}
    with mode():
        sparsify(MLP((4, 3, 2)), method=name, **lam)


# Parts from outside the package: they implement the contracts and know nothing else


class OutsideGates(Gates):
    @property
    def probs(self) -> Tensor:
        return torch.sigmoid(self.phi)

    @property
    def open_probability(self) -> Tensor:
        return self.probs

    def sample(self, generator: torch.Generator | None = None) -> Tensor:
        return torch.bernoulli(self.probs.detach(), generator=generator)

    def deterministic(self, tau: Tensor | float) -> Tensor:
        return (self.probs.detach() > tau).float()

    def kept_value(self) -> Tensor:
        return torch.ones_like(self.phi)


class OutsideFamily(GateFamily):
    def __call__(self, phi: Tensor) -> OutsideGates:
        return OutsideGates(phi)

    def initial(self, mean: Tensor, generator: torch.Generator | None = None) -> Tensor:
        return torch.logit(mean)


class OutsideEstimator(Estimator):
    """REINFORCE, written anew."""

    unbiased, forwards = True, 1

    def __call__(self, f: Any, gates: Any, generator: torch.Generator | None = None) -> Tensor:
        z = gates.sample(generator)
        value, pi = f(z), gates.probs
        score = (z * pi.log() + (1 - z) * (1 - pi).log()).sum()
        return value + value.detach() * (score - score.detach())


class OutsidePathwise(OutsideEstimator):
    def __call__(self, f: Any, gates: Any, generator: torch.Generator | None = None) -> Tensor:
        value: Tensor = f(gates.rsample(generator))
        return value


@pytest.mark.parametrize(
    ("gate", "estimator"),
    [
        (OutsideFamily(), DisARM()),
        (OutsideFamily(), OutsideEstimator()),
        (Bernoulli(), OutsideEstimator()),
        (HardConcrete(), OutsidePathwise()),
    ],
)
def test_parts_from_outside_need_the_contracts_only(gate: Any, estimator: Any) -> None:
    found = step(gated_by(gate, estimator))
    assert found is not None
    assert found.isfinite().all()


def test_a_family_from_outside_is_judged_too() -> None:
    with pytest.raises(ValueError, match="OutsideGates has no rsample"):
        gated_by(OutsideFamily(), Pathwise())


@pytest.mark.parametrize(("gate", "estimator"), [(Bernoulli(), print), (torch.sigmoid, DisARM())])
def test_what_implements_no_contract_is_refused_with_its_name(gate: Any, estimator: Any) -> None:
    with pytest.raises(TypeError, match=r"must be a \w+ \(subclass l0arm\.contracts\.\w+\), got "):
        Method("pair", gate, estimator)
