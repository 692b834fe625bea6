"""A run in two processes: equal to one process for a dense network, killed, refused, resumed."""

import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from tests.helpers.commands import Command
from tests.helpers.run_states import bits, timeless
from torch.testing import assert_close

from l0arm.distributed import Team
from l0arm.lab.data import Dataset
from l0arm.lab.errors import UserError
from l0arm.lab.recipes.recipe import load_recipe
from l0arm.lab.runs.checkpoint import newest_checkpoint
from l0arm.lab.runs.folder import RunFolder
from l0arm.lab.runs.processes import own_seed, share_of
from l0arm.lab.runs.records import read
from l0arm.lab.runs.training import train

# The last batch of an epoch has one image: one process is left without any.
SETTINGS = ("data.name=mnist-mini", "data.limit=201", "training.batch=40", "training.epochs=2")


def arguments(folder: RunFolder, recipe: str, *more: str) -> list[str]:
    overrides = [part for setting in SETTINGS for part in ("--set", setting)]
    return ["train", recipe, "--run-dir", str(folder.path), "--quiet", *overrides, *more]


def start_two(folder: RunFolder, recipe: str, *more: str) -> list[Command]:
    """Two processes with the environment variables of torchrun, but without its supervision."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    launched = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "TORCHELASTIC_RUN_ID": "test"}
    return [
        Command(
            [*arguments(folder, recipe, *more), *own],
            {**launched, "RANK": str(rank), "WORLD_SIZE": "2"},
        )
        for rank, own in enumerate(([], ["--seed", "7"] if recipe == "mlp-l0-ar" else []))
    ]


def ended(processes: list[Command]) -> list[tuple[int, str]]:
    return [process.ended() for process in processes]


@pytest.mark.slow
def test_torchrun_on_a_dense_network_gives_what_one_process_gives(
    tmp_path: Path, digits: Dataset
) -> None:
    """The mean gradient over all shares of a batch is the gradient of the batch."""
    one, two = RunFolder(tmp_path / "one"), RunFolder(tmp_path / "two")
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command = [*torchrun, "--nproc-per-node", "2", "-m", "l0arm", *arguments(two, "mlp-dense")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    train(one, load_recipe("mlp-dense", SETTINGS), digits)
    for ours, theirs in zip(read(one.records), read(two.records), strict=True):
        assert theirs.steps == ours.steps
        assert theirs.train_loss == pytest.approx(ours.train_loss, rel=1e-4)
        assert theirs.train_accuracy == pytest.approx(ours.train_accuracy, abs=0.6)
    states = [newest_checkpoint(folder.checkpoints)[0] for folder in (one, two)]
    for key, tensor in states[0]["trainee"].items():
        assert_close(states[1]["trainee"][key], tensor, rtol=1e-3, atol=1e-4)
    rows = states[1]["generator"]
    assert len(rows) == 2
    assert not torch.equal(*rows)  # each process has random numbers of its own


def test_a_run_killed_on_one_rank_ends_the_other_and_resumes_bit_for_bit(
    tmp_path: Path, digits: Dataset
) -> None:
    whole, broken = RunFolder(tmp_path / "whole"), RunFolder(tmp_path / "broken")
    assert ended(start_two(whole, "mlp-l0-arm")) == [(0, ""), (0, "")]
    processes = start_two(broken, "mlp-l0-arm", "--checkpoint-every", "0", "--epochs", "2")
    while not list(broken.checkpoints.glob("*.json")) and processes[1].running():
        time.sleep(0.005)
    processes[1].send(signal.SIGKILL)
    (code, errors), (killed, _) = ended(processes)
    assert killed == -signal.SIGKILL
    assert code == 1
    assert errors.startswith("failed: another process of the run is gone")
    assert errors.rstrip().endswith("go on with --resume")
    assert not broken.finished
    refuse_alone(broken, digits)
    assert ended(start_two(broken, "mlp-l0-arm", "--resume")) == [(0, ""), (0, "")]
    assert bits(broken) == bits(whole)
    assert timeless(broken) == timeless(whole)


@pytest.mark.slow
def test_two_processes_shrink_alike_and_resume_bit_for_bit(tmp_path: Path) -> None:
    """The penalty closes all inputs within the first epoch of six steps."""
    closing = ("--set", "method.lam=[5000.0, 0.1, 0.1]", "--set", "optimizer.gate_lr=0.5")
    whole, broken = RunFolder(tmp_path / "whole"), RunFolder(tmp_path / "broken")
    assert [code for code, _ in ended(start_two(whole, "mlp-l0-arm", *closing))] == [0, 0]
    processes = start_two(broken, "mlp-l0-arm", *closing, "--checkpoint-every", "0")
    while processes[1].running() and not any(
        int(file.stem) >= 8 for file in broken.checkpoints.glob("[0-9]*.json")
    ):
        time.sleep(0.005)
    processes[1].send(signal.SIGKILL)
    ended(processes)
    state, _ = newest_checkpoint(broken.checkpoints)
    assert state is not None
    assert int(state["kept"][:784].sum()) == 1
    resumed = start_two(broken, "mlp-l0-arm", *closing, "--resume")
    assert [code for code, _ in ended(resumed)] == [0, 0]
    assert bits(broken) == bits(whole)


def refuse_alone(folder: RunFolder, digits: Dataset) -> None:
    """A run of two processes cannot be resumed by one."""
    with pytest.raises(UserError, match="is one of 2 process"):
        train(folder, load_recipe("mlp-l0-arm", SETTINGS), digits, resume=True)


def test_processes_with_different_recipes_are_refused(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    for code, errors in ended(start_two(folder, "mlp-l0-ar")):
        assert code == 2
        assert "process 1 was started with another run than process 0" in errors
        assert "training.seed is 7, not 0" in errors
    assert not folder.path.exists()


def test_shares_are_a_partition_whose_sizes_differ_by_one_at_most() -> None:
    batch = torch.randperm(11)
    shares = [share_of(batch, Team(rank, 4)) for rank in range(4)]
    assert sorted(torch.cat([share for share, _ in shares]).tolist()) == list(range(11))
    assert [count for _, count in shares] == [3, 3, 3, 2]


def test_seeds_of_different_places_differ() -> None:
    places = [(0,), (1,), (0, 1), (1, 0), (0, 1, 2), (10, 2), (1, 2, 0)]
    assert len({own_seed(*place) for place in places}) == len(places)
    assert all(0 <= own_seed(*place) < 2**63 for place in places)
