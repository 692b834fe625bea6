"""A run is a function of its recipe. Interrupted and resumed anywhere, it ends the same."""

import math
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.helpers.power_cut import Cut, CutAfter
from tests.helpers.run_states import bits, timeless
from torch import Tensor

from l0arm.lab.data import Dataset
from l0arm.lab.errors import RunFailed, UserError
from l0arm.lab.recipes.recipe import Recipe
from l0arm.lab.runs import records
from l0arm.lab.runs.folder import RunFolder
from l0arm.lab.runs.session import new_session
from l0arm.lab.runs.training import Callback, train

Quick = Callable[..., Recipe]
Finished = Callable[..., RunFolder]


@pytest.mark.parametrize("name", ["mlp-l0-arm", "mlp-l0-ar", "lenet5-l0-arm-control", "mlp-dense"])
@pytest.mark.parametrize("cut", [1, 4, 6, 11])
def test_a_run_cut_anywhere_ends_as_if_nothing_had_happened(
    folder: RunFolder, quick: Quick, finished: Finished, digits: Dataset, name: str, cut: int
) -> None:
    recipe, whole = quick(name), finished(name)
    with pytest.raises(Cut):
        train(folder, recipe, digits, callback=CutAfter(cut), checkpoint_seconds=0.0)
    result = train(folder, recipe, digits, resume=True, checkpoint_seconds=0.0)
    assert bits(folder) == bits(whole)
    assert timeless(folder) == timeless(whole)
    expected = whole.read_result()
    assert {**result, "seconds_per_epoch": 0} == {**expected, "seconds_per_epoch": 0}


@pytest.mark.parametrize("every", [0.0, 1e9])
def test_what_a_run_gives_does_not_depend_on_when_it_is_saved(
    folder: RunFolder, quick: Quick, finished: Finished, digits: Dataset, every: float
) -> None:
    train(folder, quick(), digits, checkpoint_seconds=every)
    assert bits(folder) == bits(finished())


def test_seeds_differ(finished: Finished) -> None:
    one, two = finished(), finished("mlp-l0-arm", "training.seed=1")
    assert bits(one)["/trainee/phi.fc1"] != bits(two)["/trainee/phi.fc1"]


def test_runs_can_start_from_one_network_and_differ_in_all_else(
    quick: Quick, digits: Dataset
) -> None:
    def start(*overrides: str) -> tuple[Tensor, Tensor, Tensor]:
        trainee = new_session(quick("mlp-l0-arm", *overrides), digits).trainee
        state = trainee.state_dict()
        return state["model.fc1.weight"], state["phi.fc1"], torch.rand(3)

    alone = start("training.seed=7")
    one, two = (start(f"training.seed={n}", "training.init_seed=7") for n in (0, 1))
    for first, second, third in zip(alone[:2], one[:2], two[:2], strict=True):
        assert torch.equal(first, second)
        assert torch.equal(second, third)
    assert not torch.equal(one[2], two[2])  # what is drawn from here on


def test_a_damaged_checkpoint_is_reported_and_the_one_before_it_used(
    folder: RunFolder, quick: Quick, finished: Finished, digits: Dataset
) -> None:
    with pytest.raises(Cut):
        train(folder, quick(), digits, callback=CutAfter(10), checkpoint_seconds=0.0)
    newest = sorted(folder.checkpoints.glob("*.safetensors"))[-1]
    newest.write_bytes(newest.read_bytes()[:-1])
    messages: list[str] = []

    class Listener(Callback):
        def on_resume(self, epoch: int, damaged: list[str]) -> None:
            messages.extend([str(epoch), *damaged])

    train(folder, quick(), digits, resume=True, callback=Listener())
    assert bits(folder) == bits(finished())
    assert messages[0] == "2"  # every step was saved, and the one before the newest is used
    assert "does not match its digest" in messages[1]


def test_a_finished_run_is_not_run_again(quick: Quick, finished: Finished, digits: Dataset) -> None:
    again = train(finished(), quick(), digits, resume=True, callback=CutAfter(1))
    assert again == finished().read_result()


def test_the_record_describes_the_network(finished: Finished) -> None:
    result, last = finished().read_result(), records.read(finished().records)[-1]
    assert (last.epoch, last.steps, last.lr) == (3, 12, 0.001)
    assert [group.name for group in last.groups] == ["fc1", "fc2", "fc3"]
    assert [group.units for group in last.groups] == [784, 300, 100]
    assert all(sum(group.histogram) == group.units for group in last.groups)
    assert last.architecture == "-".join(str(group.open) for group in last.groups)
    assert last.flops_dense == 2 * (784 * 300 + 300 * 100 + 100 * 10)
    assert last.flops_training == 2 * last.flops_inference  # ARM: two forward passes
    open_now = [sum(p > 0.5 for p in part) for part in result["gates"].values()]
    assert open_now == [group.open for group in last.groups]
    assert [step for step, _, _ in last.by_step] == [9, 10, 11, 12]


def test_a_rate_halved_is_used(folder: RunFolder, quick: Quick, digits: Dataset) -> None:
    train(folder, quick("mlp-l0-arm", "schedule.every=1"), digits)
    assert [r.lr for r in records.read(folder.records)] == [0.001, 0.0005, 0.00025]


def test_tuning_never_sees_the_test_images(tmp_path: Path, quick: Quick, digits: Dataset) -> None:
    tuned = quick("mlp-dense", "data.held_out=500")
    other = replace(digits, test_images=torch.zeros_like(digits.test_images))
    one, two = RunFolder(tmp_path / "1"), RunFolder(tmp_path / "2")
    train(one, tuned, digits)
    train(two, tuned, other)
    assert timeless(one) == timeless(two)


def test_a_loss_that_is_not_finite_ends_the_run_with_what_was_saved(
    folder: RunFolder, quick: Quick, digits: Dataset
) -> None:
    recipe = quick("mlp-dense", "optimizer.name=sgd", "optimizer.lr=1e30")
    with pytest.raises(RunFailed, match=r"the data loss is (nan|inf).*nothing was saved"):
        train(folder, recipe, digits)
    assert not folder.finished


def test_a_full_disk_ends_the_run_and_loses_nothing(
    folder: RunFolder, quick: Quick, digits: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(Cut):
        train(folder, quick(), digits, callback=CutAfter(6), checkpoint_seconds=0.0)
    before = bits(folder)

    def full(*args: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("l0arm.checkpoints.write_bytes", full)
        with pytest.raises(RunFailed, match="No space left on device; saved after epoch 1"):
            train(folder, quick(), digits, resume=True, checkpoint_seconds=0.0)
    assert bits(folder) == before
    train(folder, quick(), digits, resume=True)
    assert folder.finished


def test_the_checkpoint_of_another_version_is_refused(quick: Quick, digits: Dataset) -> None:
    session = new_session(quick("mlp-dense"), digits)
    state = session.state()
    del state["stage"]
    with pytest.raises(ValueError, match="another version of l0arm: it lacks stage"):
        session.restore(state)


def test_the_checkpoint_of_another_network_is_refused(
    folder: RunFolder, quick: Quick, finished: Finished, digits: Dataset
) -> None:
    with pytest.raises(Cut):
        train(folder, quick("lenet5-dense"), digits, callback=CutAfter(1))
    shutil.copytree(finished("mlp-dense").checkpoints, folder.checkpoints, dirs_exist_ok=True)
    shutil.copy(finished("mlp-dense").records, folder.records)
    with pytest.raises(UserError, match=r"the checkpoint is of another network.*start in a new"):
        train(folder, quick("lenet5-dense"), digits, resume=True)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (("method.name=l0-amr",), "no method 'l0-amr'; did you mean"),
        (
            ("method.options.chian=1",),
            "'l0-arm' has no option 'chian'; did you mean 'chain'",
        ),
        (("method.lam=[1, 2]",), "lam has 2 entries, but there are 3 groups"),
        (("data.limit=100000",), "data.limit is 100000, but 'mnist-mini' has 8000 images"),
        (("data.shift=28",), "data.shift is 28, but images of 'mnist-mini' are 28 x 28"),
        (("model.name=wide-resnet",), "wide-resnet takes images of 3 x 32 x 32, but 'mnist-mini'"),
    ],
)
def test_a_recipe_that_cannot_be_built_leaves_no_run_behind(
    folder: RunFolder, quick: Quick, digits: Dataset, overrides: tuple[str, ...], message: str
) -> None:
    with pytest.raises(UserError) as caught:
        train(folder, quick("mlp-l0-arm", *overrides), digits)
    assert message in str(caught.value)
    assert not folder.recipe_file.exists()


def test_the_process_is_left_as_it_was(folder: RunFolder, quick: Quick, digits: Dataset) -> None:
    threads = torch.get_num_threads()
    train(folder, quick("mlp-dense", f"training.threads={threads + 1}"), digits)
    assert torch.get_num_threads() == threads
    assert float(torch.tensor(1e-310, dtype=torch.float64) * 0.5) > 0.0  # denormals again


def test_events_are_written_when_asked_for(
    folder: RunFolder, quick: Quick, digits: Dataset
) -> None:
    train(folder, quick(), digits, trackers=["tensorboard"])
    events = list((folder.path / "events").iterdir())
    assert len(events) == 1
    assert b"prune_rate_realised" in events[0].read_bytes()


def test_histograms_count_the_gates_by_probability(finished: Finished) -> None:
    result, last = finished().read_result(), records.read(finished().records)[-1]
    for group in last.groups:
        expected = [0] * 20
        for p in result["gates"][group.name]:
            expected[min(19, math.floor(p * 20))] += 1
        # Gates are rounded to four decimals in the result: a few lie on an edge.
        assert sum(abs(a - b) for a, b in zip(expected, group.histogram, strict=True)) <= 4


def test_other_images_are_refused_where_a_run_goes_on(
    tmp_path: Path, quick: Quick, digits: Dataset
) -> None:
    folder = RunFolder(tmp_path / "run")
    with pytest.raises(Cut):
        train(folder, quick(), digits, callback=CutAfter(3), checkpoint_seconds=0.0)
    images = digits.train_images.clone()
    images[0, 0, 5, 5] += 1
    with pytest.raises(UserError, match="began with other images"):
        train(folder, quick(), replace(digits, train_images=images), resume=True)
    assert train(folder, quick(), digits, resume=True)["epochs"] > 0
