"""VIBNet: gates with more noise than signal are pruned."""

import pytest
import torch

from l0arm import sparsify
from l0arm.methods import vibnet
from l0arm.models import MLP


def test_the_penalty_is_half_a_logarithm_for_every_gate_by_group() -> None:
    gated = sparsify(MLP((4, 3, 2)), method=vibnet([0.1, 0.5]))
    gates = gated.gates
    each = torch.log1p(gates.mu.double() ** 2 / gates.log_variance.double().exp()) / 2
    expected = 0.1 * each[:4].sum() + 0.5 * each[4:].sum()
    assert gated.penalty().item() == pytest.approx(expected.item(), rel=1e-5)


def test_a_gate_is_open_while_its_signal_exceeds_its_noise() -> None:
    gated = sparsify(MLP((4, 2)), method=vibnet(1.0))
    gated.phi.data[:, 0] = torch.tensor([1.0, 1.0, -0.5, 0.0])
    gated.phi.data[:, 1] = torch.tensor([-0.1, 0.1, -2.0, -9.0])
    assert gated.deterministic().tolist() == [1.0, 0.0, -0.5, 0.0]


def test_the_penalty_grows_during_the_warm_up() -> None:
    (stage,) = vibnet(1.0, warm_up=0.5).stages
    assert [stage.penalty(progress) for progress in (0.0, 0.25, 0.5, 1.0)] == [0.0, 0.5, 1.0, 1.0]


def test_the_penalty_alone_prunes_all_gates() -> None:
    gated = sparsify(MLP((4, 3, 2)), method=vibnet(1.0))
    optimizer = torch.optim.Adam([gated.phi], lr=0.05)
    for _ in range(300):
        optimizer.zero_grad()
        gated.penalty().backward()
        optimizer.step()
    assert torch.all(gated.deterministic() == 0)
