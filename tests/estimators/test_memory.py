"""The state of estimators: buffers that are saved, moving means, and steps of Adam."""

import pytest
import torch

from l0arm.estimators import AR, Reinforce
from l0arm.estimators._memory import Memory, MovingMean, TunedParameters


def test_a_tensor_is_changed_in_place() -> None:
    memory = Memory(x=torch.zeros(2))
    held = memory["x"]
    memory["x"] = torch.ones(2)
    assert held.tolist() == [1, 1]


def test_an_empty_tensor_takes_a_saved_one_of_any_size() -> None:
    memory = Memory(x=torch.zeros(0))
    memory.load_state_dict({"x": torch.arange(6.0).view(2, 3)})
    assert memory["x"].tolist() == [[0, 1, 2], [3, 4, 5]]


def test_a_tensor_of_another_size_is_refused() -> None:
    with pytest.raises(RuntimeError, match="size mismatch for x"):
        Memory(x=torch.zeros(2)).load_state_dict({"x": torch.zeros(3)})


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_cast_to_half_precision_is_ignored(dtype: torch.dtype) -> None:
    memory = Memory(x=torch.tensor([1.0001]), n=torch.tensor(3)).to(dtype)
    assert memory["x"].dtype == torch.float32
    assert memory["x"].item() == pytest.approx(1.0001, rel=1e-7)
    assert memory["n"].dtype == torch.int64


def test_a_cast_to_double_is_followed() -> None:
    assert Memory(x=torch.zeros(1)).double()["x"].dtype == torch.float64


def test_the_mean_is_plain_at_first_and_then_moves() -> None:
    baseline = MovingMean(decay=0.75)
    assert baseline.value == 0
    for loss, mean in zip([4.0, 2.0, 9.0], [4.0, 3.0, 5.0], strict=True):
        baseline.update(torch.tensor(loss))
        assert baseline.value.item() == pytest.approx(mean)
    for _ in range(2):
        before = baseline.value.item()
        baseline.update(torch.tensor(1.0))
        assert baseline.value.item() == pytest.approx(0.75 * before + 0.25)


def test_without_a_graph_the_mean_stays() -> None:
    baseline = MovingMean(decay=0.9)
    with torch.no_grad():
        baseline.update(torch.tensor(4.0))
    assert baseline.value == 0


@pytest.mark.parametrize("decay", [-0.1, 1.0, 2.0])
@pytest.mark.parametrize("estimator", [Reinforce, AR])
def test_a_decay_is_a_share(estimator: type, decay: float) -> None:
    with pytest.raises(ValueError, match=r"must lie in \[0, 1\); got"):
        estimator(decay=decay)


@pytest.mark.parametrize("estimator", [Reinforce(decay=0.5), AR(decay=0.5)])
def test_a_constant_loss_has_no_gradient_once_it_is_known(estimator) -> None:
    pi = torch.tensor([0.3, 0.6], requires_grad=True)
    for expected in (False, True):
        (gradient,) = torch.autograd.grad(estimator(lambda z: 5 + 0 * z.sum(), pi), pi)
        assert bool((gradient == 0).all()) == expected


def test_ar_has_no_baseline_unless_asked() -> None:
    assert AR().state is None
    assert AR() == AR()
    assert AR(decay=0.9) == AR(decay=0.9) != AR()


def test_the_steps_are_those_of_adam() -> None:
    start, other = torch.tensor([1.0, -2.0]), torch.tensor(0.5)
    parameters = TunedParameters(x=start.clone(), y=other.clone())
    x, y = start.clone().requires_grad_(), other.clone().requires_grad_()
    adam = torch.optim.Adam([{"params": [x], "lr": 0.05}, {"params": [y], "lr": 0.2}])
    for _ in range(20):
        gradients = {"x": torch.randn(2), "y": torch.randn(())}
        parameters.descend(gradients, {"x": 0.05, "y": 0.2})
        x.grad, y.grad = gradients["x"], gradients["y"]
        adam.step()
    torch.testing.assert_close(parameters["x"], x.detach())
    torch.testing.assert_close(parameters["y"], y.detach())
