"""Trackers get every epoch record. One that fails is dropped with one warning."""

import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from l0arm.lab.data import Dataset
from l0arm.lab.errors import UserError
from l0arm.lab.recipes.recipe import Recipe
from l0arm.lab.runs import records
from l0arm.lab.runs.folder import RunFolder
from l0arm.lab.runs.records import EpochRecord, scalars
from l0arm.lab.runs.trackers import TRACKERS, TrackerWarning
from l0arm.lab.runs.training import train

Quick = Callable[..., Recipe]


class Listener:
    """Keeps the epochs it gets, and fails at one of them."""

    def __init__(self, fails_at: int = 0) -> None:
        self.heard: list[int] = []
        self.closed, self.fails_at = 0, fails_at

    def record(self, record: EpochRecord) -> None:
        self.heard.append(record.epoch)
        if record.epoch == self.fails_at:
            raise ConnectionError("no route to host")

    def close(self) -> None:
        self.closed += 1
        if self.fails_at < 0:
            raise OSError("cannot close")


def test_a_tracker_that_fails_warns_once_and_the_run_goes_on(
    folder: RunFolder, quick: Quick, digits: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad, good = Listener(fails_at=2), Listener()
    monkeypatch.setitem(TRACKERS, "bad", lambda run: bad)
    monkeypatch.setitem(TRACKERS, "good", lambda run: good)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", TrackerWarning)
        train(folder, quick(), digits, trackers=["bad", "good"])
    assert [str(w.message).partition(" and")[0] for w in caught] == [
        "the tracker 'bad' failed (ConnectionError: no route to host)"
    ]
    assert (bad.heard, bad.closed) == ([1, 2], 0)
    assert (good.heard, good.closed) == ([1, 2, 3], 1)
    assert [record.epoch for record in records.read(folder.records)] == [1, 2, 3]


def test_a_tracker_that_cannot_be_closed_warns(
    folder: RunFolder, quick: Quick, digits: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(TRACKERS, "bad", lambda run: Listener(fails_at=-1))
    with pytest.warns(TrackerWarning, match="cannot close"):
        train(folder, quick(), digits, trackers=["bad"])
    assert folder.finished


def test_an_unknown_tracker_is_refused_with_the_nearest(
    folder: RunFolder, quick: Quick, digits: Dataset
) -> None:
    with pytest.raises(UserError, match="no tracker 'tensorbord'; did you mean 'tensorboard'"):
        train(folder, quick(), digits, trackers=["tensorbord"])


@pytest.mark.parametrize(
    ("name", "package"), [("wandb", "wandb"), ("tensorboard", "torch.utils.tensorboard.writer")]
)
def test_a_missing_package_is_named_with_its_extra(
    folder: RunFolder,
    quick: Quick,
    digits: Dataset,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    package: str,
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(UserError, match=rf"pip install 'l0arm\[{name}\]'"):
        train(folder, quick(), digits, trackers=[name])


def test_wandb_is_used_offline_in_the_folder_of_the_run(
    folder: RunFolder, quick: Quick, digits: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Against a stand-in that takes the arguments of the real one."""
    calls: list[Any] = []
    run = SimpleNamespace(
        log=lambda data, step: calls.append((step, data)), finish=lambda: calls.append("finish")
    )
    stand_in = SimpleNamespace(init=lambda **settings: calls.append(settings) or run)
    monkeypatch.setitem(sys.modules, "wandb", stand_in)
    train(folder, quick(), digits, trackers=["wandb"])
    start, *epochs, end = calls
    assert (start["mode"], start["dir"], end) == ("offline", str(folder.path), "finish")
    assert start["config"]["training"]["batch"] == 50
    assert epochs == [(r.epoch, scalars(r)) for r in records.read(folder.records)]


@pytest.mark.slow
def test_wandb_itself_writes_a_run(folder: RunFolder, quick: Quick, digits: Dataset) -> None:
    pytest.importorskip("wandb", reason="needs pip install 'l0arm[wandb]'")
    train(folder, quick(), digits, trackers=["wandb"])
    assert list((folder.path / "wandb").glob("offline-run-*/*.wandb"))


def test_figures_name_every_number_of_a_record(tmp_path: Path) -> None:
    group = records.GroupRecord("fc1", 10, 7, ())
    record = EpochRecord(3, 30, 0.1, 1.0, 0.5, 80.0, 1.1, 79.0, 2.0, groups=(group,))
    named = scalars(record)
    assert named["test_accuracy"] == 79.0
    assert named["open/fc1"] == 7.0
    assert len(named) == 13
