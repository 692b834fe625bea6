"""Runs whose checkpoints, records or folder are not as they were left."""

import copy
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.helpers.power_cut import Cut, CutAfter
from tests.helpers.run_states import bits, timeless

from l0arm.lab.data import Dataset
from l0arm.lab.errors import RunFailed, UserError
from l0arm.lab.recipes.recipe import Recipe
from l0arm.lab.runs.building import prepared
from l0arm.lab.runs.checkpoint import newest_checkpoint, save_checkpoint
from l0arm.lab.runs.folder import RunFolder
from l0arm.lab.runs.restoring import check_progress
from l0arm.lab.runs.session import Session, new_session
from l0arm.lab.runs.training import Callback, train

Quick = Callable[..., Recipe]
Finished = Callable[..., RunFolder]
Change = Callable[[dict[str, Any]], object]


@pytest.fixture(scope="module")
def left(
    tmp_path_factory: pytest.TempPathFactory, finished: Finished, digits: Dataset
) -> RunFolder:
    """A run of three epochs of four steps, cut after checkpoints at the steps 7 and 8."""
    folder = RunFolder(tmp_path_factory.mktemp("left") / "run")
    recipe = finished().recipe()
    with pytest.raises(Cut):
        train(folder, recipe, digits, callback=CutAfter(9), checkpoint_seconds=0.0)
    return folder


@pytest.fixture
def cut(left: RunFolder, tmp_path: Path) -> RunFolder:
    """A copy of the cut run."""
    return RunFolder(Path(shutil.copytree(left.path, tmp_path / "run")))


class Listener(Callback):
    def __init__(self) -> None:
        self.epoch, self.damaged = -1, [""]

    def on_resume(self, epoch: int, damaged: list[str]) -> None:
        self.epoch, self.damaged = epoch, damaged


def resumed(folder: RunFolder, data: Dataset) -> Listener:
    listener = Listener()
    train(folder, folder.recipe(), data, resume=True, callback=listener)
    return listener


def newest_state(folder: RunFolder) -> dict[str, Any]:
    state, _ = newest_checkpoint(folder.checkpoints)
    assert state is not None
    return state


@pytest.fixture(scope="module")
def session(left: RunFolder, digits: Dataset) -> Session:
    recipe = left.recipe()
    return new_session(recipe, prepared(digits, recipe.data))


MALFORMED: dict[str, Change] = {
    "no trainee": lambda s: s.pop("trainee"),
    "trainee a number": lambda s: s.update(trainee=1),
    "weight a text": lambda s: s["trainee"].update({"model.fc1.weight": "x"}),
    "weight of another shape": lambda s: s["trainee"].update({"phi.fc1": torch.zeros(3)}),
    "key a number": lambda s: s["trainee"].update({5: torch.zeros(3)}),
    "settings a number": lambda s: s["trainee"].update(_extra_state=3),
    "settings of bytes": lambda s: s["trainee"].update(_extra_state=torch.zeros(3)),
    "optimizer empty": lambda s: s.update(optimizer={}),
    "no groups": lambda s: s["optimizer"].update(param_groups=[]),
    "groups a number": lambda s: s["optimizer"].update(param_groups=7),
    "rate a text": lambda s: s["optimizer"]["param_groups"][0].update(lr="x"),
    "rate too large": lambda s: s["optimizer"]["param_groups"][0].update(initial_lr=10**400),
    "no first rate": lambda s: s["optimizer"]["param_groups"][0].pop("initial_lr"),
    "betas": lambda s: s["optimizer"]["param_groups"][0].update(betas=[0.9]),
    "parameters": lambda s: s["optimizer"]["param_groups"][0]["params"].reverse(),
    "moment missing": lambda s: s["optimizer"]["state"][0].pop("exp_avg"),
    "moment a number": lambda s: s["optimizer"]["state"][0].update(exp_avg=1.0),
    "moment's shape": lambda s: s["optimizer"]["state"][0].update(exp_avg=torch.zeros(2, 2)),
    "count of steps a number": lambda s: s["optimizer"]["state"][5].update(step=-1),
    "moments a list": lambda s: s["optimizer"]["state"].update({0: [1]}),
    "generator a dict": lambda s: s.update(generator={}),
    "generator of floats": lambda s: s.update(generator=s["generator"].float()),
    "generator short": lambda s: s.update(generator=s["generator"][:100]),
    "generator zero": lambda s: s.update(generator=torch.full_like(s["generator"], 255)),
    "epoch a text": lambda s: s.update(epoch="2"),
    "epoch a bool": lambda s: s.update(epoch=True),
    "step too large": lambda s: s.update(step=10**400),
    "stage a list": lambda s: s.update(stage=[]),
    "tally a list": lambda s: s.update(tally=[]),
    "tally's loss": lambda s: s["tally"].update(loss="x"),
    "tally lacks images": lambda s: s["tally"].pop("images"),
    "tally's points": lambda s: s["tally"].update(by_step=[[1.0]]),
    "tally's points a number": lambda s: s["tally"].update(by_step=3),
}


@pytest.mark.parametrize("kind", MALFORMED)
def test_a_malformed_state_is_refused_and_changes_nothing(
    session: Session, left: RunFolder, kind: str
) -> None:
    state = newest_state(left)
    MALFORMED[kind](state)
    before = copy.deepcopy(session.state())
    with pytest.raises(ValueError, match=r"^[^\n]+$"):
        session.restore(state)
    after = session.state()
    for name, value in before["trainee"].items():
        assert torch.equal(after["trainee"][name], value)
    assert after["optimizer"] == before["optimizer"]
    assert (after["epoch"], after["steps"]) == (before["epoch"], before["steps"])


@pytest.mark.parametrize(
    "change",
    [
        {"epoch": 1},
        {"epoch": -1},
        {"epoch": 4, "steps": 16},
        {"epoch": 3, "step": 1, "steps": 13},
        {"step": 5, "steps": 13},
        {"step": 1, "steps": 9},
        {"steps": 9},
    ],
)
def test_epochs_and_steps_that_do_not_agree_are_refused(change: dict[str, int]) -> None:
    state = {"epoch": 2, "step": 0, "steps": 8, "tally": {"images": 0}}
    check_progress(state, 3, 4)
    with pytest.raises(ValueError, match="it "):
        check_progress(state | change, 3, 4)


def test_a_malformed_checkpoint_is_passed_over_with_the_same_result(
    cut: RunFolder, finished: Finished, digits: Dataset
) -> None:
    state = newest_state(cut)
    state["optimizer"]["state"][0]["exp_avg"] = torch.zeros(2, 2)
    save_checkpoint(cut.checkpoints, 8, state)
    listener = resumed(cut, digits)
    assert listener.epoch == 1
    assert "its optimizer has exp_avg of shape [2, 2]" in listener.damaged[0]
    assert bits(cut) == bits(finished())
    assert timeless(cut) == timeless(finished())


def test_a_lost_record_is_made_again_from_the_checkpoint_before(
    cut: RunFolder, finished: Finished, digits: Dataset
) -> None:
    lines = cut.records.read_bytes().splitlines(keepends=True)
    assert len(lines) == 2
    cut.records.write_bytes(lines[0])
    listener = resumed(cut, digits)
    assert listener.epoch == 1
    assert "epochs.jsonl, line 2: no record of epoch 2" in listener.damaged[0]
    assert bits(cut) == bits(finished())
    assert timeless(cut) == timeless(finished())


def test_a_record_that_no_checkpoint_can_make_again_is_missed(
    cut: RunFolder, digits: Dataset
) -> None:
    lines = cut.records.read_bytes().splitlines(keepends=True)
    cut.records.write_bytes(lines[1])
    with pytest.raises(UserError) as caught:
        resumed(cut, digits)
    assert "epochs.jsonl, line 1: no record of epoch 1" in str(caught.value)
    assert "restore the file from a copy, or start in a new folder" in str(caught.value)
    assert cut.records.read_bytes() == lines[1]


def test_doubled_and_swapped_records_are_repaired(
    cut: RunFolder, finished: Finished, digits: Dataset
) -> None:
    lines = cut.records.read_bytes().splitlines(keepends=True)
    cut.records.write_bytes(lines[1] + lines[0] + lines[0])
    assert resumed(cut, digits).damaged == []
    assert timeless(cut) == timeless(finished())


def test_records_that_are_lost_during_the_run(
    cut: RunFolder, finished: Finished, digits: Dataset
) -> None:
    class Vandal(Callback):
        def on_step(self, done: int, total: int, loss: float) -> None:
            cut.records.unlink(missing_ok=True)

    with pytest.raises(RunFailed, match=r"epochs.jsonl, line 1: no record of epoch 1"):
        train(cut, cut.recipe(), digits, resume=True, callback=Vandal())
    assert not cut.finished


@pytest.mark.parametrize("seconds", [0.0, 60.0])
@pytest.mark.parametrize("replaced", [False, True])
def test_a_folder_that_is_moved_away_ends_the_run(
    cut: RunFolder, finished: Finished, digits: Dataset, replaced: bool, seconds: float
) -> None:
    aside = cut.path.with_name("aside")

    class Mover(Callback):
        def on_step(self, done: int, total: int, loss: float) -> None:
            if not aside.exists():
                cut.path.rename(aside)
                if replaced:
                    shutil.copytree(aside, cut.path)

    with pytest.raises(RunFailed, match=r"^[^\n]* was moved, deleted or replaced[^\n]*$"):
        train(
            *(cut, cut.recipe(), digits),
            **{"resume": True, "callback": Mover(), "checkpoint_seconds": seconds},
        )
    if replaced:
        assert contents(cut.path) == contents(aside)
        shutil.rmtree(cut.path)
    assert not cut.path.exists()
    aside.rename(cut.path)
    resumed(cut, digits)
    assert bits(cut) == bits(finished())
    assert timeless(cut) == timeless(finished())


def contents(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }
