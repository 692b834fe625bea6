"""Where and how a run computes: device, precision, threads, random numbers.

The network follows the images: it is built on the device where the data are.
"""

from __future__ import annotations

import ctypes
import os
import platform
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace

import torch
from torch import Tensor

from l0arm.lab.data import Dataset
from l0arm.lab.errors import RunFailed, UserError
from l0arm.lab.recipes.recipe import TrainingSpec

SMALLEST_SCALE = 2.0**-10  # the scaler starts at 2^16 and halves at every overflow
HALF = {"bf16": torch.bfloat16, "fp16": torch.float16}


def device_of(training: TrainingSpec) -> torch.device:
    """The device of a recipe. Of several processes on a machine, each uses a GPU of its own."""
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
    """The whole data set on a device. 60,000 images are a few hundred megabytes."""
    if device.type == "cpu":
        return data
    return replace(
        data,
        train_images=data.train_images.to(device),
        train_labels=data.train_labels.to(device),
        test_images=data.test_images.to(device),
        test_labels=data.test_labels.to(device),
    )


def keep_freed_memory() -> None:
    """Let glibc keep memory that tensors freed, for the rest of the process.

    By default it gives large pieces back to the system and asks for them again in the next step.
    The system clears every page, which takes up to a fifth of a convolutional network's step
    (``python -m benchmarks.operators pages``). The peak of memory stays what it is.
    """
    if platform.libc_ver()[0] == "glibc":
        mallopt = ctypes.CDLL(None).mallopt
        for option, largest in ((-3, 1 << 30), (-1, (1 << 31) - 1)):  # mmap and trim threshold
            mallopt(option, largest)


@contextmanager
def process_settings(training: TrainingSpec) -> Iterator[None]:
    """Set torch's threads and arithmetic for a run, and restore them afterwards.

    Denormals are flushed to zero: the moments of closed weights decay to them, and they are slow.
    TF32 is off, because estimates are differences of losses. Freed memory is kept from then on.
    """
    keep_freed_memory()
    threads, tf32 = torch.get_num_threads(), torch.backends.cudnn.allow_tf32
    torch.set_num_threads(training.threads)
    torch.set_flush_denormal(True)
    torch.backends.cudnn.allow_tf32 = False
    try:
        yield
    finally:
        torch.backends.cudnn.allow_tf32 = tf32
        torch.set_flush_denormal(False)
        torch.set_num_threads(threads)


def precision_of(training: TrainingSpec, device: torch.device) -> AbstractContextManager[object]:
    """A context for forward passes in the recipe's precision. It can be entered repeatedly."""
    if training.precision == "float32":
        return nullcontext()
    return torch.autocast(device.type, HALF[training.precision])


def scaler_of(training: TrainingSpec, device: torch.device) -> torch.amp.GradScaler:
    """A loss scaler for fp16. In other precisions it is disabled."""
    return torch.amp.GradScaler(device.type, enabled=training.precision == "fp16")


def check_scale(scaler: torch.amp.GradScaler) -> None:
    """Fail if gradients overflow at every scale, since all steps would be skipped silently."""
    if scaler.is_enabled() and scaler.get_scale() < SMALLEST_SCALE:
        raise RunFailed(
            "gradients overflow in fp16 whatever they are scaled by; set training.precision=bf16 "
            "or float32"
        )


def random_state(device: torch.device) -> Tensor:
    """The state of torch's generators as bytes: first the CPU's, then the GPU's."""
    states = [torch.get_rng_state()]
    if device.type != "cpu":
        states.append(torch.get_device_module(device).get_rng_state(device))
    return torch.cat(states)


def set_random_state(state: Tensor, device: torch.device) -> None:
    """Restore a state. The GPU's part is ignored on the CPU."""
    length = torch.get_rng_state().numel()
    torch.set_rng_state(state[:length].clone())  # a view crashes (torch 2.13)
    if device.type != "cpu" and state.numel() > length:
        torch.get_device_module(device).set_rng_state(state[length:].clone(), device)
