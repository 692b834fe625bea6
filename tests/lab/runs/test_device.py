"""Half precision on the CPU, and what can be tested of GPUs without one."""

import platform
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from tests.helpers.power_cut import Cut, CutAfter

from l0arm.lab.data import Dataset
from l0arm.lab.errors import RunFailed, UserError
from l0arm.lab.recipes.recipe import Recipe, TrainingSpec
from l0arm.lab.runs import records
from l0arm.lab.runs.checkpoint import newest_checkpoint
from l0arm.lab.runs.device import device_of, random_state, set_random_state
from l0arm.lab.runs.folder import RunFolder
from l0arm.lab.runs.training import train

FREED = """
import resource, torch
from l0arm.lab.runs.device import keep_freed_memory
keep_freed_memory()
def cleared():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for round in range(5):
    before = cleared()
    pieces = [torch.zeros(2**20 + 2**16 * n) for n in range(20)]
    del pieces
    print(cleared() - before)
"""

Quick = Callable[..., Recipe]
GPU = TrainingSpec(device="cuda")


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_a_run_in_half_precision_is_near_the_plain_one_and_resumes_bit_for_bit(
    tmp_path: Path,
    quick: Quick,
    finished: Callable[..., RunFolder],
    digits: Dataset,
    precision: str,
) -> None:
    plain, whole, broken = finished(), RunFolder(tmp_path / "whole"), RunFolder(tmp_path / "broken")
    recipe = quick("mlp-l0-arm", f"training.precision={precision}")
    train(whole, recipe, digits)
    losses = [records.read(folder.records)[-1].train_loss for folder in (plain, whole)]
    assert losses[0] != losses[1]
    assert losses[1] == pytest.approx(losses[0], rel=0.02)
    with pytest.raises(Cut):
        train(broken, recipe, digits, callback=CutAfter(5), checkpoint_seconds=0.0)
    train(broken, recipe, digits, resume=True)
    states = [newest_checkpoint(folder.checkpoints)[0] for folder in (whole, broken)]
    assert states[0] is not None
    assert states[1] is not None
    assert ("scaler" in states[0]) == (precision == "fp16")
    assert states[0].get("scaler") == states[1].get("scaler")
    for key, tensor in states[0]["trainee"].items():
        assert torch.equal(tensor, states[1]["trainee"][key]), key


def test_without_a_gpu_the_way_out_is_named(
    folder: RunFolder, quick: Quick, digits: Dataset
) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    with pytest.raises(UserError, match="finds no GPU; set training"):
        train(folder, quick("mlp-dense", "training.device=cuda"), digits)
    assert not folder.recipe_file.exists()


def test_each_process_takes_a_gpu_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen: list[int] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert device_of(GPU) == torch.device("cuda", 1)
    monkeypatch.setenv("LOCAL_RANK", "2")
    with pytest.raises(UserError, match="there are 2; start as many"):
        device_of(GPU)
    assert chosen == [1]


def test_random_numbers_of_a_gpu_are_part_of_the_state(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = torch.tensor([1, 2, 3], dtype=torch.uint8)
    module = SimpleNamespace(
        get_rng_state=lambda device: gpu.clone(),
        set_rng_state=lambda state, device: gpu.copy_(state),
    )
    monkeypatch.setattr(torch, "get_device_module", lambda device: module)
    saved = random_state(torch.device("cuda"))
    first = torch.rand(3)
    gpu.zero_()
    set_random_state(saved, torch.device("cuda"))
    assert torch.equal(torch.rand(3), first)
    assert gpu.tolist() == [1, 2, 3]
    gpu.zero_()
    set_random_state(saved, torch.device("cpu"))  # a checkpoint of a GPU, looked at without one
    assert torch.equal(torch.rand(3), first)
    assert gpu.tolist() == [0, 0, 0]


@pytest.mark.parametrize(
    ("recipe", "optimizer"),
    [
        ("mlp-l0-arm-control", "adam"),
        ("mlp-l0-arm-control", "sgd"),
        ("mlp-l1-filter", "sgd"),  # a new optimizer at its second stage
        # Noise on black images. Some processors take half a minute for convolutions in fp16.
        pytest.param("lenet5-sparse-vd", "adam", marks=pytest.mark.slow),
    ],
)
def test_steps_that_overflow_in_fp16_are_skipped_without_harm(
    folder: RunFolder,
    quick: Quick,
    few_digits: Dataset,
    monkeypatch: pytest.MonkeyPatch,
    recipe: str,
    optimizer: str,
) -> None:
    huge = 2.0**26
    monkeypatch.setattr(
        "l0arm.lab.runs.session.scaler_of",
        lambda training, device: torch.amp.GradScaler(device.type, init_scale=huge),
    )
    rates = ["optimizer.momentum=0.9", "optimizer.lr=0.01"] if optimizer == "sgd" else []
    weak = ["method.lam=1e-6"] if "sparse" in recipe else []
    settings = [f"optimizer.name={optimizer}", *rates, *weak, "training.precision=fp16"]
    train(folder, quick(recipe, *settings, "training.batch=25"), few_digits)
    state, _ = newest_checkpoint(folder.checkpoints)
    assert state is not None
    assert 1.0 <= state["scaler"]["scale"] < huge  # it fell, and then it stayed
    moments = [m for of_weight in state["optimizer"]["state"].values() for m in of_weight.values()]
    for tensor in (m for m in moments if isinstance(m, torch.Tensor)):
        assert tensor.isfinite().all()
        assert float(tensor.abs().max()) < 1e4
    losses = [record.train_loss for record in records.read(folder.records)]
    assert losses[-1] < losses[0]


def test_a_run_that_overflows_at_every_scale_ends_with_the_way_out(
    folder: RunFolder, quick: Quick, digits: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("l0arm.lab.runs.device.SMALLEST_SCALE", 2.0**17)
    with pytest.raises(RunFailed, match="gradients overflow in fp16"):
        train(folder, quick("mlp-l0-arm", "training.precision=fp16"), digits)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc has the setting")
def test_memory_that_is_kept_is_not_cleared_again() -> None:
    line = [sys.executable, "-c", FREED]
    done = subprocess.run(line, capture_output=True, text=True, timeout=300, check=True)
    first, _, *later = map(int, done.stdout.split())
    assert max(later) < first / 100
