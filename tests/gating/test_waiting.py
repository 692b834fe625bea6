"""How often a step would wait for a GPU: calls that bring values to the host, counted here."""

from collections import Counter
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from l0arm import sparsify
from l0arm.gating.host import HOST
from l0arm.models import MLP
from l0arm.precision import at_least_float32

pytestmark = pytest.mark.usefixtures("alone")

WAITING = {
    *(Tensor.cpu, Tensor.item, Tensor.tolist, Tensor.numpy, Tensor.nonzero, torch.nonzero),
    *(Tensor.__bool__, Tensor.__float__, Tensor.__int__, torch.equal, Tensor.equal),
    *(torch.masked_select, Tensor.masked_select, torch.unique, Tensor.unique),
}
X, Y = torch.rand(5, 20), torch.randint(3, (5,))


class Waits(TorchFunctionMode):
    """Counts these calls. On the CPU they cost nothing, on a GPU each ends a queue.

    ``copy`` stands in for a copy of draws to the host. What compares copies does not wait.
    """

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()
        self.copies: list[Tensor] = []

    def copy(self, z: Tensor) -> Tensor:
        self.counts["copy"] += 1
        self.copies.append(at_least_float32(z.detach().clone()))
        return self.copies[-1]

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        moved = func is Tensor.to and any(str(part) == "cpu" for part in args[1:])
        held = {tensor.data_ptr() for tensor in self.copies}  # their rows are views
        on_host = func in (torch.equal, Tensor.numpy) and held.issuperset(
            tensor.untyped_storage().data_ptr() for tensor in args
        )
        if (func in WAITING or moved) and not on_host:
            self.counts[func.__name__] += 1
        return func(*args, **(kwargs or {}))


def waits(estimator: str, phi: float, monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    torch.manual_seed(0)
    gated = sparsify(MLP((20, 12, 8, 3)), method="l0", estimator=estimator, lam=1e-3)
    gated.phi.data.fill_(phi)
    optimizer = torch.optim.SGD(gated.parameter_groups(lr=1e-3))
    waited = Waits()
    monkeypatch.setattr(HOST, "is_here", lambda z: False)
    monkeypatch.setattr(HOST, "copied", waited.copy)
    for _ in range(2):  # what is computed once is computed now
        gated.loss(lambda: F.cross_entropy(gated(X), Y)).backward()
    waited.counts.clear()
    with waited:
        optimizer.zero_grad()
        gated.loss(lambda: F.cross_entropy(gated(X), Y)).backward()
        optimizer.step()
    return waited.counts


@pytest.mark.filterwarnings("ignore::l0arm.EmptyGroupWarning")
@pytest.mark.parametrize("estimator", ["arm", "disarm", "ar", "reinforce-loo", "arms"])
@pytest.mark.parametrize("phi", [0.0, 9.0])
def test_a_step_copies_its_draws_once_and_reads_one_number(
    estimator: str, phi: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Shapes depend on the draws, so they must reach the host. Nothing else may be waited for."""
    assert waits(estimator, phi, monkeypatch) == Counter({"copy": 1, "item": 1})


def test_a_draw_that_changed_is_copied_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(HOST, "is_here", lambda z: False)
    rows = torch.zeros(2, 3)
    one, other = rows[0], rows[1]
    assert HOST.equal(one, other)
    other[1] = 1.0
    assert not HOST.equal(one, other)
    assert HOST.values(other).tolist() == [0.0, 1.0, 0.0]
    assert HOST.values(torch.ones(6)[1::2]).tolist() == [1.0, 1.0, 1.0]
