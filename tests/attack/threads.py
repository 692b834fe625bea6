"""Several threads use one gated network at the same time: every result is that of one thread."""

from __future__ import annotations

import copy
import random
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch import Tensor

from l0arm import EmptyGroupWarning, Gated, sparsify
from l0arm.models import MLP, LeNet5

ACTIONS = 15  # of each thread in a case
SECONDS = 60.0  # after which a thread is taken to be stuck


def attack(chance: random.Random, folder: Path) -> Iterator[str]:
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        while True:
            yield _case(chance)
    finally:
        sys.setswitchinterval(interval)


def _case(chance: random.Random) -> str:
    torch.manual_seed(chance.randrange(2**31))
    execution, count = chance.choice(("sliced", "masked")), chance.randint(2, 5)
    small = chance.random() < 0.7
    model = MLP((20, 16, 12, 4)) if small else LeNet5()
    gated = sparsify(model, method="l0-arm", lam=0.1, initial=0.6, execution=execution).eval()
    x = torch.rand(3, 20) if small else torch.rand(2, 1, 28, 28)
    uses = _uses(gated, x)
    before = {name: (tensor, tensor.clone()) for name, tensor in gated.model.state_dict().items()}
    failures, numbers = list[str](), list[int]()

    def work(names: list[str]) -> None:
        for name in names:
            try:
                if not uses[name]():
                    failures.append(f"{name} is wrong")
            except Exception as error:
                failures.append(f"{name} raised {type(error).__name__}: {error}")
            numbers.extend(torch.randint(2**62, (3,)).tolist())

    plans = [[chance.choice(list(uses)) for _ in range(ACTIONS)] for _ in range(count)]
    threads = [threading.Thread(target=work, args=(plan,), daemon=True) for plan in plans]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", EmptyGroupWarning)
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(SECONDS)
    if any(thread.is_alive() for thread in threads):
        failures.append("a thread is stuck")
    if len(set(numbers)) < len(numbers):
        failures.append("a thread saw random numbers twice")
    for name, now in gated.model.state_dict().items():
        if now.data_ptr() != before[name][0].data_ptr() or not torch.equal(now, before[name][1]):
            failures.append(f"'{name}' changed")
    return f"{execution}, {count} threads: {failures[0]}" if failures else ""


def _uses(gated: Gated, x: Tensor) -> dict[str, Callable[[], bool]]:
    """What threads do, each with a comparison with what came out in a single thread."""

    def evaluated(model: torch.nn.Module) -> Tensor:
        with torch.no_grad():
            output: Tensor = model(x)
        return output

    def loss() -> Tensor:
        random_numbers = torch.Generator().manual_seed(0)
        total = gated.loss(lambda: gated(x).square().mean(), random_numbers).total
        total.backward()  # type: ignore[no-untyped-call]
        return total.detach()

    makes: dict[str, Callable[[], Tensor]] = {
        "gated.eval()(x)": lambda: evaluated(gated.eval()),
        "gated.model(x)": lambda: evaluated(gated.model),
        "loss": loss,
        "deepcopy": lambda: evaluated(copy.deepcopy(gated)),
        "compact": lambda: evaluated(gated.compact().eval()),
        "state_dict": lambda: torch.cat([t.flatten() for t in gated.state_dict().values()]),
    }
    expected = {name: make() for name, make in makes.items()}
    return {
        name: lambda make=make, right=expected[name]: torch.equal(make(), right)  # type: ignore[misc]
        for name, make in makes.items()
    }
