"""``prune`` in two real processes: one network, one decision, one certificate."""

from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from tests.helpers.two import in_two_processes
from torch import Tensor, nn

import l0arm

X = torch.randn(160, 8, generator=torch.Generator().manual_seed(0))
Y = (X[:, 0] + X[:, 1] > 0).long()


def network(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(
        *(nn.Linear(8, 320), nn.BatchNorm1d(320), nn.ReLU()),
        *(nn.Linear(320, 40), nn.ReLU(), nn.Linear(40, 2)),
    )


def pruned(rank: int) -> dict[str, Any]:
    """Each process has other data, and starts from another network."""
    rows = torch.arange(rank, 160, 2)
    batches = [(X[part], Y[part]) for part in rows.split(20 - 4 * rank)]  # 4 and 5 batches
    options: Any = {"budget": {"flops": "30%"}, "epochs": 20, "seed": 0, "quiet": True}
    result = l0arm.prune(network(rank), batches, F.cross_entropy, **options)
    with torch.no_grad():
        accuracy = float((result.model(X).argmax(1) == Y).float().mean())

    calls: list[int] = []

    def step(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        """The second process gets a NaN in the middle of the training."""
        calls.append(1)
        bad = rank == 1 and len(calls) > 40
        return F.cross_entropy(model(batch[0]), batch[1]) * (float("nan") if bad else 1.0)

    try:
        l0arm.prune(network(0), batches, step, **options)
        message = "nothing was raised"
    except (RuntimeError, ValueError) as error:
        message = f"{type(error).__name__}: {error}"
    return {
        "weights": dict(result.model.state_dict()),
        "certificate": str(result.certificate),
        "history": [record["loss"] for record in result.history],
        "steps": result.history[-1]["step"],
        "share": result.small.macs / result.dense.macs,
        "accuracy": accuracy,
        "message": message,
    }


def test_two_processes_end_with_one_network(tmp_path: Path) -> None:
    one, other = in_two_processes(pruned, tmp_path)
    assert list(one["weights"]) == list(other["weights"])
    for name, tensor in one["weights"].items():
        assert torch.equal(tensor, other["weights"][name]), name
    for fact in ("certificate", "history", "steps", "share"):
        assert one[fact] == other[fact]
    assert one["steps"] == 80  # 20 epochs of the process with fewer batches
    assert 0.99 * 0.3 <= one["share"] <= 0.3
    assert one["accuracy"] > 0.85
    assert other["message"].startswith("NonFiniteLoss")
    assert "failed in another process" in one["message"]
