"""Methods with Bernoulli gates take any estimator: by name with its options, or as an object."""

from collections.abc import Callable

import pytest
import torch

from l0arm import sparsify
from l0arm.estimators import AR, ARMS, ESTIMATORS
from l0arm.methods import Method, generalized_dropout, l0, l0_best
from l0arm.models import MLP

Factory = Callable[..., Method]
every_factory = pytest.mark.parametrize("make", [l0, l0_best, generalized_dropout])
pytestmark = pytest.mark.filterwarnings("ignore::l0arm.EmptyGroupWarning")  # small layers


@every_factory
@pytest.mark.parametrize("name", sorted(ESTIMATORS))
def test_every_estimator_trains_every_method(make: Factory, name: str) -> None:
    method = make(1e-3, estimator=name)
    assert method.estimator == ESTIMATORS[name]()
    gated = sparsify(MLP((4, 3, 2)), method=method)
    gated.loss(lambda: gated(torch.ones(2, 4)).square().sum()).backward()
    assert gated.phi.grad is not None
    assert gated.phi.grad.isfinite().all()


@every_factory
def test_options_go_to_an_estimator_given_by_name(make: Factory) -> None:
    assert make(0.1, estimator="arms", samples=8).estimator == ARMS(samples=8)
    assert make(0.1, estimator="ar", decay=0.9).estimator == AR(decay=0.9)
    assert make(0.1, estimator=ARMS(samples=3)).estimator == ARMS(samples=3)


def test_the_estimator_does_not_change_the_name_of_these_methods() -> None:
    assert l0_best(0.1, estimator="arms", samples=8).name == "l0-best"
    assert generalized_dropout(0.1, estimator="arms", samples=8).name == "generalized-dropout"


@every_factory
def test_an_unknown_option_is_refused_with_a_list_of_the_known_ones(make: Factory) -> None:
    message = "'rebar' has no option sampels, samples; it takes temperature, c, rate"
    with pytest.raises(TypeError, match=message):
        make(0.1, estimator="rebar", samples=3, sampels=2)
    with pytest.raises(TypeError, match="'disarm' has no option samples; it takes none"):
        make(0.1, estimator="disarm", samples=3)
    with pytest.raises(TypeError, match=r"samples belong to an estimator given by name.*ARMS\("):
        make(0.1, estimator=ARMS(), samples=3)


@every_factory
def test_an_unknown_estimator_is_refused_with_a_list_of_the_known_ones(make: Factory) -> None:
    with pytest.raises(ValueError, match=r"unknown estimator 'amr'; there are ar, arm, arms, "):
        make(0.1, estimator="amr")


def test_options_of_one_method_are_unknown_to_another() -> None:
    """Even if one is built from the other: a penalty would be ignored silently."""
    for option in ("l1", "l2", "name"):
        with pytest.raises(TypeError, match=f"has no option {option}"):
            l0_best(0.1, **{option: 0.1})


def test_a_typing_mistake_in_the_methods_own_option_is_found() -> None:
    with pytest.raises(TypeError, match=r"no option setle; .*; the method itself takes settle"):
        l0_best(0.1, setle=0.5)
    with pytest.raises(TypeError, match=r"setle belong to .*; the method itself takes settle"):
        l0_best(0.1, estimator=ARMS(), setle=0.5)
