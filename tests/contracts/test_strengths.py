"""A strength of 0 is a control: nothing is penalised. Methods that keep a share have none."""

import inspect
import re
from typing import Any

import pytest
import torch

from l0arm import sparsify
from l0arm.methods import METHODS
from l0arm.models import MLP

PENALISED = sorted(n for n, make in METHODS.items() if "lam" in inspect.signature(make).parameters)
ONE = ["bc-ghs", "bc-gnj", "l0-best", "sparse-vd"]  # strength, of every weight
WITHOUT_PENALTY = "group-lasso"  # its strength acts in the proximal step


def test_only_methods_that_keep_a_share_have_no_strength() -> None:
    assert set(METHODS) - set(PENALISED) == {"l1-filter", "magnitude", "random"}


@pytest.mark.parametrize("name", PENALISED)
@pytest.mark.parametrize("lam", [0.0, 2e-3])
def test_strengths_of_0_are_a_control(name: str, lam: float) -> None:
    gated = sparsify(MLP((12, 8, 3)), method=name, lam=lam)
    with torch.no_grad():
        assert (gated.penalty().item() == 0.0) == (lam == 0.0 or name == WITHOUT_PENALTY)


@pytest.mark.parametrize("name", PENALISED)
@pytest.mark.parametrize("lam", [[0.1, 0.2], {"fc1": 0.1, "fc2": 0.2}], ids=["list", "mapping"])
def test_a_strength_per_group_is_taken_or_refused_by_name(name: str, lam: Any) -> None:
    if name in ONE:
        with pytest.raises(ValueError, match=rf"one (strength|number).*got {re.escape(repr(lam))}"):
            METHODS[name](lam)
    else:
        assert sparsify(MLP((12, 8, 3)), method=name, lam=lam).penalty().isfinite()


@pytest.mark.parametrize("name", ["bc-ghs", "bc-gnj", "sparse-vd"])
def test_the_refusal_names_the_method_and_a_way_out(name: str) -> None:
    message = rf"{name} takes one strength for all layers.*one number, or .* per group"
    with pytest.raises(ValueError, match=message):
        METHODS[name]([0.1, 0.2])


@pytest.mark.parametrize("name", PENALISED)
@pytest.mark.parametrize("lam", [-1.0, float("nan"), float("inf"), "a", None])
def test_what_is_no_strength_is_refused(name: str, lam: Any) -> None:
    with pytest.raises(ValueError, match="lam must be"):
        METHODS[name](lam)
