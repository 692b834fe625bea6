"""A random decoder of 300 M parameters: time and memory of forward-only steps.

``python -m benchmarks.forward_only.large`` prints the time of planning, of inference and of steps,
and their peak memory. Nothing is learned: the weights are random.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F

import l0arm
from benchmarks.forward_only import network
from benchmarks.forward_only.memory import peak
from benchmarks.forward_only.text import VOCABULARY

LENGTH = 64


def timed(call: Callable[[], object], repeats: int) -> float:
    """CPU seconds of one call: the smallest of a few."""
    found = []
    for _ in range(repeats):
        start = time.process_time()
        call()
        found.append(time.process_time() - start)
    return min(found)


def main() -> None:
    """Build, plan, measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--layers", type=int, default=24)
    parser.add_argument("--repeats", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    network.WIDTH, network.LAYERS = options.width, options.layers
    network.HEADS, network.HIDDEN = options.width // 64, 4 * options.width
    model = network.Decoder().eval().requires_grad_(False)
    size = sum(p.numel() for p in model.parameters())
    ids = torch.randint(VOCABULARY, (1, LENGTH))
    start = time.process_time()
    gated = l0arm.sparsify(model, example_inputs=ids[:, :8], initial=0.9, lam=0.0)
    gates = len(gated.phi)
    print(f"{size:,} parameters, {gates:,} gates; planned in {time.process_time() - start:.0f} s")

    def data() -> torch.Tensor:
        return F.cross_entropy(gated(ids).flatten(0, 1), ids.flatten())

    def inference() -> None:
        with torch.no_grad(), gated.drawn(torch.ones(gates), writes=False):
            data()

    def step() -> None:
        gated.loss(data, backward=False).backward()
        gated.zero_grad()

    for name, call in (("inference", inference), ("step of DisARM", step)):
        used = peak(model, call)
        print(
            f"{name}: {timed(call, options.repeats):.2f} s CPU, {used / 2**20:.0f} MiB", flush=True
        )


if __name__ == "__main__":
    main()
