"""A strength of 0 is a control: nothing is penalised. Methods that keep a share have none."""

import inspect

import pytest
import torch

from l0arm import sparsify
from l0arm.methods import METHODS
from l0arm.models import MLP

PENALISED = sorted(n for n, make in METHODS.items() if "lam" in inspect.signature(make).parameters)
WITHOUT_PENALTY = "group-lasso"  # its strength acts in the proximal step


def test_only_methods_that_keep_a_share_have_no_strength() -> None:
    assert set(METHODS) - set(PENALISED) == {"l1-filter", "magnitude", "random"}


@pytest.mark.parametrize("name", PENALISED)
@pytest.mark.parametrize("lam", [0.0, 2e-3])
def test_strengths_of_0_are_a_control(name: str, lam: float) -> None:
    gated = sparsify(MLP((12, 8, 3)), method=name, lam=lam)
    with torch.no_grad():
        assert (gated.penalty().item() == 0.0) == (lam == 0.0 or name == WITHOUT_PENALTY)
