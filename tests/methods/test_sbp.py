"""SBP: pruning by the signal-to-noise ratio of the gates."""

import pytest
import torch

from l0arm import sparsify
from l0arm.methods import sbp
from l0arm.models import MLP
from l0arm.penalties.kl import truncated_log_normal_kl


def test_the_penalty_is_the_divergence_of_every_gate_by_group() -> None:
    gated = sparsify(MLP((4, 3, 2)), method=sbp([0.1, 0.5]))
    each = truncated_log_normal_kl(gated.gates)
    expected = 0.1 * each[:4].sum() + 0.5 * each[4:].sum()
    assert gated.penalty().item() == pytest.approx(expected.item(), rel=1e-6)


def test_gates_do_not_learn_while_the_network_is_pretrained() -> None:
    pretrain, prune = sbp(1.0, pretrain=0.3).stages
    assert (pretrain.share, pretrain.gate_lr, pretrain.penalty(0.5)) == (0.3, 0.0, 0.0)
    assert (prune.share, prune.gate_lr, prune.penalty(0.0)) == (0.7, 1.0, 1.0)


def test_parameters_are_clamped_after_a_step() -> None:
    gated = sparsify(MLP((4, 3, 2)), method=sbp(1.0))
    gated.phi.data[0] = torch.tensor([9.0, -30.0])
    gated.method.after_step(gated, torch.optim.SGD([gated.phi], lr=0.1))
    assert gated.phi[0].tolist() == [5.0, -20.0]


def test_the_penalty_alone_prunes_all_gates() -> None:
    gated = sparsify(MLP((4, 3, 2)), method=sbp(1.0))
    optimizer = torch.optim.Adam([gated.phi], lr=0.05)
    for _ in range(300):
        optimizer.zero_grad()
        gated.penalty().backward()
        optimizer.step()
        gated.method.after_step(gated, optimizer)
    assert gated.gates.snr.max().item() < 1.0
    assert torch.all(gated.deterministic() == 0)
