"""An option that an estimator cannot use is refused when it is made: by name, with a way out."""

import inspect
from typing import Any

import pytest

from l0arm.estimators import ESTIMATORS
from l0arm.methods import l0

OPTIONS = [
    (name, option)
    for name in sorted(ESTIMATORS)
    for option in inspect.signature(ESTIMATORS[name]).parameters
]
WITH_TEMPERATURE = [name for name, option in OPTIONS if option == "temperature"]
WITH_SAMPLES = [name for name, option in OPTIONS if option == "samples"]


def test_these_are_tried() -> None:
    assert WITH_TEMPERATURE == ["concrete", "rebar", "relax", "st-gumbel"]
    assert WITH_SAMPLES == ["arms", "double-cv", "reinforce-loo", "rodeo"]


@pytest.mark.parametrize("name", WITH_TEMPERATURE)
@pytest.mark.parametrize("temperature", [0, 0.0, -1.0, float("inf"), float("nan"), "a", None])
def test_a_temperature_is_a_number_above_0(name: str, temperature: Any) -> None:
    message = (
        rf"temperature must be a finite number > 0; got {temperature!r}; "
        "2/3 .* 'straight-through' needs none"
    )
    with pytest.raises(ValueError, match=message):
        ESTIMATORS[name](temperature=temperature)


@pytest.mark.parametrize("name", WITH_SAMPLES)
@pytest.mark.parametrize("samples", [1, 0, -2, 2.0, True, "a", None])
def test_samples_are_two_at_least(name: str, samples: Any) -> None:
    message = (
        f"samples must be an integer >= 2, got {samples!r}; 2 costs what ARM does, "
        "and 'reinforce' or 'ar' need one draw"
    )
    with pytest.raises(ValueError, match=message):
        ESTIMATORS[name](samples=samples)


@pytest.mark.parametrize("name", ["reinforce", "ar"])
def test_the_estimators_named_instead_need_one_draw(name: str) -> None:
    assert ESTIMATORS[name]().forwards == 1


@pytest.mark.parametrize(("name", "option"), OPTIONS)
@pytest.mark.parametrize("value", ["a", float("nan"), [1.0]])
def test_what_is_no_value_at_all_is_refused_by_the_options_name(
    name: str, option: str, value: Any
) -> None:
    with pytest.raises(ValueError, match=rf"^{option} (must be|is) "):
        ESTIMATORS[name](**{option: value})


def test_a_method_says_the_same() -> None:
    with pytest.raises(ValueError, match="temperature must be a finite number > 0; got 'a'"):
        l0(0.1, estimator="st-gumbel", temperature="a")
