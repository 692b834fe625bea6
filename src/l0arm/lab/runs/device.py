"""Where a run computes, and in which precision.

The network is where the images are: whoever moves the data moves the run.
"""

from __future__ import annotations

import os
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace

import torch
from torch import Tensor

from l0arm.lab.data import Dataset
from l0arm.lab.recipes.recipe import TrainingSpec
from l0arm.lab.runs.errors import RunFailed, UserError

SMALLEST_SCALE = 2.0**-10  # every step overflows: the scaler starts at 2^16 and halves
HALF = {"bf16": torch.bfloat16, "fp16": torch.float16}


def device_of(training: TrainingSpec) -> torch.device:
    """The device of a recipe; of several processes on a machine, each has a GPU of its own."""
    if training.device == "cpu":
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise UserError(
            "training.device is 'cuda', but torch finds no GPU; set training.device=cpu, or "
            "install a build of torch for your GPU"
        )
    number, count = int(os.environ.get("LOCAL_RANK", "0")), torch.cuda.device_count()
    if number >= count:
        raise UserError(
            f"process {number} of this machine finds no GPU of its own: there are {count}; start "
            f"as many processes (torchrun --nproc-per-node {count})"
        )
    torch.cuda.set_device(number)
    return torch.device("cuda", number)


def moved(data: Dataset, device: torch.device) -> Dataset:
    """The data on a device, whole: 60,000 images are a few hundred megabytes."""
    if device.type == "cpu":
        return data
    names = ("train_images", "train_labels", "test_images", "test_labels")
    return replace(data, **{name: getattr(data, name).to(device) for name in names})


def precision_of(training: TrainingSpec, device: torch.device) -> AbstractContextManager[object]:
    """What a forward pass runs under; it can be entered again and again."""
    if training.precision == "float32":
        return nullcontext()
    return torch.autocast(device.type, HALF[training.precision])


def scaler_of(training: TrainingSpec, device: torch.device) -> torch.amp.GradScaler:
    """Gradients of half the exponent range are scaled up; of all others this does nothing."""
    return torch.amp.GradScaler(device.type, enabled=training.precision == "fp16")


def check_scale(scaler: torch.amp.GradScaler) -> None:
    """Refuse to go on if no scale suits: all steps would be skipped without a word."""
    if scaler.is_enabled() and scaler.get_scale() < SMALLEST_SCALE:
        raise RunFailed(
            "gradients overflow in fp16 whatever they are scaled by; set training.precision=bf16 "
            "or float32"
        )


def random_state(device: torch.device) -> Tensor:
    """The state of the random numbers, as bytes: of the processor, then of the GPU."""
    states = [torch.get_rng_state()]
    if device.type != "cpu":
        states.append(torch.get_device_module(device).get_rng_state(device))
    return torch.cat(states)


def set_random_state(state: Tensor, device: torch.device) -> None:
    """Go back to a state; the GPU's part is left out where there is none."""
    length = torch.get_rng_state().numel()
    torch.set_rng_state(state[:length].clone())  # of a view it crashes (torch 2.13)
    if device.type != "cpu" and state.numel() > length:
        torch.get_device_module(device).set_rng_state(state[length:].clone(), device)
