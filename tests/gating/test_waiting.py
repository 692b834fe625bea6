"""How often a step would wait for a GPU: calls that bring values to the host, counted here."""

from collections import Counter
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from l0arm import sparsify
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

    ``copy`` stands in for the copy of a draw to the host. What compares copies does not wait.
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
        held = {id(tensor) for tensor in self.copies}
        on_host = func in (torch.equal, Tensor.numpy) and held.issuperset(map(id, args))
        if (func in WAITING or moved) and not on_host:
            self.counts[func.__name__] += 1
        return func(*args, **(kwargs or {}))


def waits(method: str, phi: float, monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    torch.manual_seed(0)
    gated = sparsify(MLP((20, 12, 8, 3)), method=method, lam=1e-3)
    gated.phi.data.fill_(phi)
    optimizer = torch.optim.SGD(gated.parameter_groups(lr=1e-3))
    waited = Waits()
    monkeypatch.setattr("l0arm.gating.draw._on_host", waited.copy)
    for _ in range(2):  # what is computed once is computed now
        gated.loss(lambda: F.cross_entropy(gated(X), Y)).backward()
    waited.counts.clear()
    with waited:
        optimizer.zero_grad()
        gated.loss(lambda: F.cross_entropy(gated(X), Y)).backward()
        optimizer.step()
    return waited.counts


@pytest.mark.filterwarnings("ignore::l0arm.EmptyGroupWarning")
@pytest.mark.parametrize(
    ("method", "phi", "copies", "comparisons"),
    [
        ("l0-arm", 0.0, 2, 1),
        ("l0-disarm", 0.0, 2, 1),
        ("l0-ar", 0.0, 1, 0),
        ("l0-arm", 9.0, 1, 1),
        ("l0-disarm", 9.0, 1, 1),
        ("l0-ar", 9.0, 1, 0),
    ],
)
def test_a_step_copies_its_draws_compares_them_once_and_reads_one_number(
    method: str, phi: float, copies: int, comparisons: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Shapes depend on the draws, so each must reach the host. Nothing else may be waited for."""
    counts = waits(method, phi, monkeypatch)
    assert counts == Counter({"copy": copies, "equal": comparisons, "item": 1})
