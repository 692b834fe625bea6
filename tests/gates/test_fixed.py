"""Fixed gates: phi itself, never random."""

import torch

from l0arm.gates import Fixed


def test_gates_are_phi_in_training_and_at_test_time() -> None:
    phi = torch.tensor([1.0, 0.0, 1.0], requires_grad=True)
    gates = Fixed()(phi)
    for z in (gates.sample(), gates.deterministic(0.5), gates.probs, gates.open_probability):
        assert z.tolist() == [1.0, 0.0, 1.0]
        assert not z.requires_grad


def test_changing_a_draw_does_not_change_phi() -> None:
    phi = torch.ones(2)
    Fixed()(phi).sample().zero_()
    Fixed()(phi).deterministic(0.5).zero_()
    assert phi.tolist() == [1.0, 1.0]


def test_all_are_open_at_the_start_whatever_the_mean() -> None:
    assert Fixed().initial(torch.tensor([0.2, 0.9])).tolist() == [1.0, 1.0]
