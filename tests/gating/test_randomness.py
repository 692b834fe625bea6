"""Random numbers: every evaluation of a loss sees one state, and the stream goes on after one."""

import queue
import threading
from collections.abc import Callable
from typing import Any, Self

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from l0arm import Gated, Group, Slice, sparsify
from l0arm.gating.randomness import Noise, SharedRandomness
from l0arm.models import MLP

pytestmark = pytest.mark.filterwarnings("ignore::l0arm.EmptyGroupWarning")


@pytest.fixture
def gated() -> Gated:
    return sparsify(MLP((4, 8, 2)), method="l0-arm", lam=0.1)


def recording(gated: Gated, seen: list[float]) -> Any:
    def closure() -> Tensor:
        seen.append(torch.rand(()).item())
        return gated(torch.ones(3, 4)).square().mean()

    return closure


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def test_both_evaluations_see_the_same_numbers(gated: Gated) -> None:
    seen: list[float] = []
    gated.loss(recording(gated, seen), generator())
    assert len(seen) == 2
    assert seen[0] == seen[1]


def test_afterwards_the_stream_is_one_evaluation_further(gated: Gated) -> None:
    torch.manual_seed(7)
    torch.rand(())
    expected = torch.get_rng_state()
    torch.manual_seed(7)
    gated.loss(recording(gated, []), generator())
    assert torch.equal(torch.get_rng_state(), expected)


def test_a_second_pass_left_out_changes_nothing_in_the_stream(gated: Gated) -> None:
    states = []
    for phi in (0.0, 20.0):  # at 20, both draws are all open: one evaluation
        gated.phi.data.fill_(phi)
        seen: list[float] = []
        torch.manual_seed(7)
        gated.loss(recording(gated, seen), generator())
        states.append((torch.get_rng_state(), seen[0], len(seen)))
    assert torch.equal(states[0][0], states[1][0])
    assert states[0][1] == states[1][1]
    assert (states[0][2], states[1][2]) == (2, 1)


def test_the_next_loss_sees_new_numbers(gated: Gated) -> None:
    seen: list[float] = []
    for _ in range(2):
        gated.loss(recording(gated, seen), generator())
    assert seen[0] != seen[2]


def test_an_exception_in_a_later_evaluation_restores_the_stream() -> None:
    shared = SharedRandomness(torch.device("cpu"))
    with shared:
        torch.rand(3)
    after = torch.get_rng_state()
    with pytest.raises(RuntimeError), shared:
        torch.rand(5).view(2)
    assert torch.equal(torch.get_rng_state(), after)


def test_three_evaluations_see_the_same_numbers() -> None:
    shared = SharedRandomness(torch.device("cpu"))
    seen = []
    for _ in range(3):
        with shared:
            seen.append(torch.rand(()).item())
    assert len(set(seen)) == 1


# Several threads share the global generator


class Drawing:
    """A second thread that draws random numbers whenever it is asked to."""

    def __init__(self) -> None:
        self.numbers: list[int] = []
        self._ask: queue.Queue[int] = queue.Queue()
        self._done: queue.Queue[None] = queue.Queue()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ask.put(0)
        self._thread.join()

    def draw(self, count: int = 5) -> None:
        self._ask.put(count)
        self._done.get()

    def _run(self) -> None:
        while count := self._ask.get():
            self.numbers += torch.randint(2**62, (count,)).tolist()
            self._done.put(None)


def steps(gated: Gated, between: Callable[[], None], count: int = 4) -> list[Tensor]:
    """Losses of some steps, with a call of ``between`` before and after each forward pass."""

    def closure() -> Tensor:
        between()
        loss = gated(torch.ones(3, 4)).square().mean()
        between()
        return loss

    return [gated.loss(closure).total.detach() for _ in range(count)]


@pytest.mark.parametrize("method", ["l0-arm", "l0-disarm"])
def test_another_thread_never_sees_a_random_number_twice(method: str) -> None:
    gated = sparsify(MLP((4, 8, 2)), method=method, lam=0.1)
    with Drawing() as other:
        steps(gated, other.draw)
    assert len(other.numbers) >= 4 * 2 * 2 * 5
    assert len(set(other.numbers)) == len(other.numbers)
    assert not gated.noise.seen


def test_another_thread_that_draws_without_pause_never_sees_a_random_number_twice(
    gated: Gated,
) -> None:
    numbers, done = list[int](), threading.Event()

    def draw() -> None:
        while not done.is_set():
            numbers.extend(torch.randint(2**62, (1,)).tolist())

    thread = threading.Thread(target=draw, daemon=True)
    thread.start()
    try:
        steps(gated, lambda: None, 200)
    finally:
        done.set()
        thread.join()
    assert len(set(numbers)) == len(numbers)


class Noisy(nn.Module):
    """A network with random numbers of its own."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.fc1, self.fc2, self.kind = nn.Linear(4, 8), nn.Linear(8, 2), kind

    def forward(self, x: Tensor) -> Tensor:
        h = self.fc1(x)
        h = F.dropout(h, 0.5) if self.kind == "dropout" else h + torch.randn(3, 1)
        out: Tensor = self.fc2(h.relu())
        return out


@pytest.mark.parametrize("kind", ["dropout", "randn"])
def test_a_second_thread_changes_nothing_for_a_network_that_draws(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = Group(
        "h",
        8,
        reads=(Slice("fc2.weight", 1),),
        makes=(Slice("fc1.weight", 0), Slice("fc1.bias", 0)),
    )

    def losses(threads: int) -> tuple[list[Tensor], Tensor]:
        monkeypatch.setattr(threading, "active_count", lambda: threads)
        torch.manual_seed(3)
        gated = sparsify(Noisy(kind), [group], "l0-arm", lam=0.0)
        found = steps(gated, lambda: None)
        assert gated.noise.seen == (threads > 1)
        return found, torch.get_rng_state()

    alone, together = losses(1), losses(2)
    assert all(map(torch.equal, alone[0], together[0]))
    assert torch.equal(alone[1], together[1])


@pytest.mark.parametrize(
    ("draw", "seen"),
    [
        (lambda x: torch.rand(2), True),
        (lambda x: F.dropout(x, 0.5), True),
        (lambda x: x.clone().bernoulli_(0.5), True),
        (lambda x: torch.randperm(3), True),
        (lambda x: F.scaled_dot_product_attention(x, x, x, dropout_p=0.5), True),
        (lambda x: F.scaled_dot_product_attention(x, x, x), False),
        (lambda x: F.dropout(x, 0.5, training=False), False),
        (lambda x: torch.rand(2, generator=generator()), False),
        (lambda x: x * 2, False),
    ],
)
def test_it_is_known_which_operations_draw_random_numbers(draw: Any, seen: bool) -> None:
    noise = Noise()
    shared = SharedRandomness(torch.device("cpu"), noise)
    x = torch.rand(1, 2, 3, 4)
    with Drawing() as other:
        with shared:
            other.draw()
        with shared:
            draw(x)
    assert noise.seen == seen


def test_one_thread_alone_is_not_watched(gated: Gated, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threading, "active_count", lambda: 1)
    steps(gated, lambda: torch.rand(1))
    assert not gated.noise.seen
