"""A call of ``prune`` that is interrupted goes on, and ends with the same network bit for bit."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import l0arm

pytestmark = pytest.mark.filterwarnings("ignore::l0arm.BudgetWarning")  # few steps decide little
X = torch.randn(60, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
Y = (X[:, 0] + X[:, 1] > 0).long()
STEPS = 20


def network(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    layers = (nn.Linear(6, 24), nn.BatchNorm1d(24), nn.ReLU(), nn.Dropout(0.1), nn.Linear(24, 2))
    return nn.Sequential(*layers).double()


def shuffled() -> DataLoader[Any]:
    generator = torch.Generator().manual_seed(4)
    return DataLoader(TensorDataset(X, Y), batch_size=10, shuffle=True, generator=generator)


class Stop(Exception):
    pass


def pruned(folder: Path | None, stop_at: int | None = None, **changed: Any) -> l0arm.PruneResult:
    """``stop_at`` is the call of the loss with a graph at which it is interrupted."""
    calls = 0

    def step(model: nn.Module, batch: Any) -> Tensor:
        nonlocal calls
        calls += 1
        if calls == stop_at:
            raise Stop
        return F.cross_entropy(model(batch[0]), batch[1])

    options: dict[str, Any] = {
        **{"budget": {"flops": "50%"}, "steps": STEPS, "seed": 3, "quiet": True},
        **{"checkpoint": folder, "checkpoint_every": 1},
    }
    options |= {"example_inputs": X[:8]} | changed
    model = options.pop("model", network())
    return l0arm.prune(model, shuffled(), step, **options)


def same(one: l0arm.PruneResult, other: l0arm.PruneResult) -> bool:
    a, b = one.model.state_dict(), other.model.state_dict()
    equal = list(a) == list(b) and all(torch.equal(a[key], b[key]) for key in a)
    return equal and one.history == other.history and one.certificate == other.certificate


@pytest.fixture(scope="module")
def whole() -> l0arm.PruneResult:
    return pruned(None)


@pytest.fixture(scope="module")
def whole_with_gates() -> l0arm.PruneResult:
    return pruned(None, choice="gates")


# 1 check; then one evaluation per step, of which the first 5 close units in rounds
@pytest.mark.parametrize("stop_at", [3, 5, 6, 9, 20])
def test_interrupted_anywhere_it_ends_with_the_same_network(
    stop_at: int, whole: l0arm.PruneResult, tmp_path: Path
) -> None:
    with pytest.raises(Stop):
        pruned(tmp_path / "checkpoints", stop_at)
    assert same(pruned(tmp_path / "checkpoints"), whole)


# 1 check, 6 batches to rank; then up to two evaluations per step with gates, and one without
@pytest.mark.parametrize("stop_at", [5, 9, 17, 24, 30, 34])
def test_with_gates_interrupted_anywhere_it_ends_with_the_same_network(
    stop_at: int, whole_with_gates: l0arm.PruneResult, tmp_path: Path
) -> None:
    with pytest.raises(Stop):
        pruned(tmp_path, stop_at, choice="gates")
    assert same(pruned(tmp_path, choice="gates"), whole_with_gates)


def test_a_finished_call_is_not_trained_again(whole: l0arm.PruneResult, tmp_path: Path) -> None:
    pruned(tmp_path)
    assert same(pruned(tmp_path, stop_at=2), whole)  # the first call checks the loss


def test_killed_in_a_process_it_goes_on(whole: l0arm.PruneResult, tmp_path: Path) -> None:
    code = (
        "import os, signal, sys; sys.path.insert(0, sys.argv[1])\n"
        "import test_resuming as t; from pathlib import Path\n"
        "save = t.l0arm.pruning.resuming.Checkpoints.save\n"
        "def killing(self, pruning, *rest):\n"
        "    save(self, pruning, *rest)\n"
        "    if pruning.step == 14: os.kill(os.getpid(), signal.SIGKILL)\n"
        "t.l0arm.pruning.resuming.Checkpoints.save = killing\n"
        "t.pruned(Path(sys.argv[2]))\n"
    )
    command = [sys.executable, "-c", code, str(Path(__file__).parent), str(tmp_path)]
    environment = {**os.environ, "OMP_NUM_THREADS": str(torch.get_num_threads())}
    assert subprocess.run(command, env=environment, check=False).returncode == -signal.SIGKILL
    assert sorted(path.name for path in tmp_path.glob("*.json")) == [
        "00000013.json",
        "00000014.json",
    ]
    assert same(pruned(tmp_path), whole)


def test_a_damaged_checkpoint_is_skipped_with_a_message(
    whole: l0arm.PruneResult, tmp_path: Path
) -> None:
    with pytest.raises(Stop):
        pruned(tmp_path, 15)
    newest = max(tmp_path.glob("*.safetensors"))
    data = bytearray(newest.read_bytes())
    data[-1] ^= 1
    newest.write_bytes(data)
    with pytest.warns(UserWarning, match="a checkpoint was skipped: .*damaged"):
        assert same(pruned(tmp_path), whole)


def test_another_call_is_refused_with_what_differs(tmp_path: Path) -> None:
    with pytest.raises(Stop):
        pruned(tmp_path, 12)
    with pytest.raises(ValueError, match=r"budget is \{'flops': '50%'\} there and '40%' here"):
        pruned(tmp_path, budget="40%")
    with pytest.raises(ValueError, match="steps is 20 there and 22 here"):
        pruned(tmp_path, steps=22)
    with pytest.raises(ValueError, match=r"model is Sequential \w+ there and Sequential \w+ here"):
        pruned(tmp_path, model=network(1))
