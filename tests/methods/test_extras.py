"""The extras of methods in optimizers, compaction, shrinking and casts."""

import pytest
import torch
import torch.nn.functional as F

from l0arm import Gated, shrink, sparsify
from l0arm.methods import METHODS
from l0arm.models import MLP

WITH_NOISE = ["bc-ghs", "bc-gnj", "sparse-vd"]


def stepped(name: str) -> tuple[Gated, torch.optim.Optimizer]:
    gated = sparsify(MLP((8, 6, 4)), method=name, lam=1e-3)
    optimizer = torch.optim.Adam(gated.parameter_groups(lr=1e-2))
    gated.loss(lambda: F.cross_entropy(gated(torch.rand(5, 8)), torch.arange(5) % 4)).backward()
    optimizer.step()
    return gated, optimizer


@pytest.mark.parametrize("name", [*WITH_NOISE, "sbp", "l0-hc"])
def test_an_optimizer_continues_with_the_compact_network(name: str) -> None:
    gated, optimizer = stepped(name)
    small = gated.compact(optimizer=optimizer)
    held = [p for group in optimizer.param_groups for p in group["params"]]
    assert {id(p) for p in held} == {id(p) for p in small.parameters()}
    small(torch.rand(5, 8)).sum().backward()
    optimizer.step()


@pytest.mark.parametrize("name", [*WITH_NOISE, "magnitude", "l0-best"])
def test_shrinking_in_training_is_refused(name: str) -> None:
    options = {} if name == "magnitude" else {"lam": 1e-3}
    gated = sparsify(MLP((8, 6, 4)), method=name, **options)
    with pytest.raises(ValueError, match=r"the method's .* belong to the network at its full size"):
        shrink(gated)


def test_gates_with_several_parameters_shrink_with_their_rows() -> None:
    gated, optimizer = stepped("sbp")
    with torch.no_grad():
        gated.phi[[9, 11]] = torch.tensor([0.0, 4.0])  # pruned, because of its noise
    smaller = shrink(gated, optimizer=optimizer)
    assert smaller.phi.shape == (8 + 4, 2)
    assert optimizer.state[smaller.phi]["exp_avg"].shape == (8 + 4, 2)


@pytest.mark.parametrize("name", sorted(METHODS))
def test_phi_has_one_row_per_gate_and_is_saved_by_group(name: str) -> None:
    options = {} if name in ("l1-filter", "magnitude", "random") else {"lam": 1e-3}
    gated = sparsify(MLP((8, 6, 4)), method=name, **options)
    assert len(gated.phi) == 14
    state = gated.state_dict()
    assert (len(state["phi.fc1"]), len(state["phi.fc2"])) == (8, 6)
    z = gated.gates.sample()
    assert z.shape == gated.deterministic().shape == gated.gates.open_probability.shape == (14,)


@pytest.mark.parametrize("name", sorted(METHODS))
def test_half_precision_keeps_phi_precise(name: str) -> None:
    options = {} if name in ("l1-filter", "magnitude", "random") else {"lam": 1e-3}
    gated = sparsify(MLP((8, 6, 4)), method=name, **options).bfloat16()
    assert gated.phi.dtype == torch.float32
    loss = gated.loss(lambda: gated(torch.rand(5, 8, dtype=torch.bfloat16)).float().mean())
    loss.backward()
    assert loss.total.isfinite()
