"""What an estimator remembers: buffers that are saved, moving means, and steps of Adam."""

import pytest
import torch

from l0arm.estimators import AR, Reinforce
from l0arm.estimators._baseline import baseline, moving_mean, remember
from l0arm.estimators._memory import Memory
from l0arm.estimators._tuning import descend, tuned


def test_a_tensor_is_kept_in_place() -> None:
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
def test_a_cast_to_half_precision_is_not_followed(dtype: torch.dtype) -> None:
    memory = Memory(x=torch.tensor([1.0001]), n=torch.tensor(3)).to(dtype)
    assert memory["x"].dtype == torch.float32
    assert memory["x"].item() == pytest.approx(1.0001, rel=1e-7)
    assert memory["n"].dtype == torch.int64


def test_a_cast_to_double_is() -> None:
    assert Memory(x=torch.zeros(1)).double()["x"].dtype == torch.float64


def test_the_mean_is_plain_at_first_and_then_moves() -> None:
    memory = moving_mean()
    assert baseline(memory) == 0
    for loss, mean in zip([4.0, 2.0, 9.0], [4.0, 3.0, 5.0], strict=True):
        remember(memory, torch.tensor(loss), decay=0.75)
        assert baseline(memory).item() == pytest.approx(mean)
    for _ in range(2):
        before = baseline(memory).item()
        remember(memory, torch.tensor(1.0), decay=0.75)
        assert baseline(memory).item() == pytest.approx(0.75 * before + 0.25)


def test_without_a_graph_nothing_is_remembered() -> None:
    memory = moving_mean()
    with torch.no_grad():
        remember(memory, torch.tensor(4.0), decay=0.9)
    assert baseline(memory) == 0


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
    memory = tuned(x=start.clone(), y=other.clone())
    x, y = start.clone().requires_grad_(), other.clone().requires_grad_()
    adam = torch.optim.Adam([{"params": [x], "lr": 0.05}, {"params": [y], "lr": 0.2}])
    for _ in range(20):
        gradients = {"x": torch.randn(2), "y": torch.randn(())}
        descend(memory, gradients, {"x": 0.05, "y": 0.2})
        x.grad, y.grad = gradients["x"], gradients["y"]
        adam.step()
    torch.testing.assert_close(memory["x"], x.detach())
    torch.testing.assert_close(memory["y"], y.detach())
