"""Several threads and one gated model: the second waits, and every result is right."""

import _thread
import copy
import pickle
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.testing import assert_close
from torch.utils.checkpoint import checkpoint

from l0arm import Gated, Group, Slice, sparsify
from l0arm.gating import threads
from l0arm.gating.threads import Turn

NORM = ("weight", "bias", "running_mean", "running_var")
GROUP = Group(
    "h",
    6,
    reads=(Slice("b.weight", 1),),
    makes=(Slice("a.weight", 0), Slice("a.bias", 0), *(Slice(f"norm.{k}", 0) for k in NORM)),
)
PHI = torch.tensor([0.1, -0.2, 0.15, 0.05, -0.1, 0.12])
SECONDS = 20  # no thread of a test takes that long
executions = pytest.mark.parametrize("execution", ["sliced", "masked"])
checkpointings = pytest.mark.parametrize("reentrant", [False, True])


class Chain(nn.Module):
    """a -> norm -> relu -> b, the six hidden units gated; in a checkpoint or in none."""

    def __init__(self, reentrant: bool | None = None) -> None:
        super().__init__()
        self.a, self.norm, self.b = nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 3)
        self.reentrant = reentrant

    def forward(self, x: Tensor) -> Tensor:
        if self.reentrant is None:
            return self.layers(x)
        return checkpoint(self.layers, x, use_reentrant=self.reentrant)

    def layers(self, x: Tensor) -> Tensor:
        return self.b(F.relu(self.norm(self.a(x))))


def gate(execution: str = "sliced", reentrant: bool | None = None) -> Gated:
    torch.manual_seed(0)
    gated = sparsify(Chain(reentrant), [GROUP], "l0-arm", lam=0.1, execution=execution).double()
    gated.phi.data = PHI.double()
    return gated.eval()


def inputs(seed: int) -> Tensor:
    return torch.randn(5, 4, generator=torch.Generator().manual_seed(seed)).double()


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def loss(gated: Gated, x: Tensor) -> Tensor:
    return gated.loss(lambda: gated(x).square().mean(), generator()).total


class Paused:
    """A thread inside a call of the layer ``b``. It goes on when ``other`` is done, or waits."""

    def __init__(self, gated: Gated, run: Callable[[], Any]) -> None:
        self.inside, self.go_on = threading.Event(), threading.Event()
        self.thread = _Thread(run)
        self.gated = gated

    def __enter__(self) -> None:
        self.handle = self.gated.model.b.register_forward_pre_hook(self._pause)
        self.thread.start()
        assert self.inside.wait(SECONDS)

    def _pause(self, *_: object) -> None:
        if threading.current_thread() is self.thread and not self.inside.is_set():
            self.inside.set()
            self.go_on.wait(0.2)  # another thread does its work now, or it waits for this one

    def __deepcopy__(self, memo: object) -> "Paused":
        return self  # a copy of the model keeps the hook

    def __exit__(self, *_: object) -> None:
        self.go_on.set()
        self.thread.end()
        self.handle.remove()


class _Thread(threading.Thread):
    """A thread whose result or error is handed over."""

    def __init__(self, work: Callable[[], Any]) -> None:
        super().__init__(daemon=True)
        self.work, self.result, self.error = work, None, None

    def run(self) -> None:
        try:
            self.result = self.work()
        except BaseException as error:
            self.error = error

    def end(self) -> Any:
        self.join(SECONDS)
        assert not self.is_alive()
        if self.error is not None:
            raise self.error
        return self.result


def in_another_thread(work: Callable[[], Any]) -> Any:
    thread = _Thread(work)
    thread.start()
    return thread.end()


def evaluated(gated: Gated, x: Tensor) -> Tensor:
    with torch.no_grad():
        return gated(x)


# Evaluating in several threads


@executions
def test_a_second_thread_waits_for_the_first(execution: str) -> None:
    gated, x, y = gate(execution), inputs(1), inputs(2)
    expected = [evaluated(gated, x), evaluated(gated, y)]
    with Paused(gated, lambda: evaluated(gated, x)):
        came = evaluated(gated, y)
    assert torch.equal(came, expected[1])
    assert torch.equal(evaluated(gated, x), expected[0])


@executions
def test_the_dense_model_in_a_second_thread_waits_too(execution: str) -> None:
    gated, x = gate(execution), inputs(1)
    expected = gated.model(x)
    with Paused(gated, lambda: evaluated(gated, x)):
        came = gated.model(x)
    assert torch.equal(came, expected)


@executions
def test_a_dense_call_under_way_is_not_disturbed(execution: str) -> None:
    gated, x = gate(execution), inputs(1)
    expected = [evaluated(gated, x), gated.model(x)]
    paused = Paused(gated, lambda: gated.model(x))
    with paused:
        came = evaluated(gated, x)
    assert torch.equal(came, expected[0])
    assert torch.equal(paused.thread.result, expected[1])


@pytest.fixture
def frequent_switches() -> Iterator[None]:
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(interval)


@executions
@pytest.mark.usefixtures("frequent_switches")
def test_four_threads_evaluate_right_and_leave_the_weights_alone(execution: str) -> None:
    gated = gate(execution)
    before = [(p, p.detach().clone()) for p in gated.model.parameters()]
    batches = [inputs(seed) for seed in range(4)]
    expected = [evaluated(gated, x) for x in batches]

    def work(x: Tensor, right: Tensor) -> int:
        return sum(not torch.equal(evaluated(gated.eval(), x), right) for _ in range(100))

    workers = [_Thread(lambda x=x, y=y: work(x, y)) for x, y in zip(batches, expected, strict=True)]
    for worker in workers:
        worker.start()
    assert [worker.end() for worker in workers] == [0, 0, 0, 0]
    for (parameter, values), now in zip(before, gated.model.parameters(), strict=True):
        assert now is parameter
        assert torch.equal(now, values)


# Training in one thread


@executions
@pytest.mark.usefixtures("frequent_switches")
@pytest.mark.filterwarnings("ignore::l0arm.EmptyGroupWarning")
def test_training_is_not_disturbed_by_a_thread_that_evaluates(execution: str) -> None:
    def trained(gated: Gated) -> dict[str, Tensor]:
        optimizer = torch.optim.SGD(gated.parameters(), 0.001)
        for seed in range(30):
            optimizer.zero_grad()
            loss(gated, inputs(seed)).backward()
            optimizer.step()
        return gated.state_dict()

    def evaluate() -> None:
        while not done.is_set():
            evaluated(gated, inputs(0))

    alone = trained(gate(execution))
    gated, done, other = gate(execution), threading.Event(), _Thread(evaluate)
    other.start()
    try:
        together = trained(gated)
    finally:
        done.set()
    other.end()
    assert_close(together, alone, rtol=0, atol=0)


@executions
@pytest.mark.usefixtures("frequent_switches")
def test_evaluating_is_not_disturbed_by_a_thread_that_trains(execution: str) -> None:
    gated, x, done = gate(execution), inputs(1), threading.Event()
    expected = evaluated(gated, x)

    def train() -> None:
        while not done.is_set():
            loss(gated, inputs(2)).backward()  # without a step of an optimizer

    thread = _Thread(train)
    thread.start()
    try:
        wrong = sum(not torch.equal(evaluated(gated, x), expected) for _ in range(50))
    finally:
        done.set()
    thread.end()
    assert wrong == 0


@pytest.mark.parametrize(
    "use",
    [
        lambda gated: list(gated.parameters()),
        lambda gated: [p for _, p in gated.named_parameters()],
        lambda gated: [p for part in gated.parameter_groups() for p in part["params"]],
        lambda gated: list(gated.buffers()),
    ],
)
def test_an_optimizer_gets_the_whole_tensors_while_another_thread_evaluates(use: Any) -> None:
    """Those that are installed for the length of a call are cut, and nobody would train them."""
    gated, x = gate(), inputs(1)
    whole = {id(tensor) for tensor in use(gated)}
    with Paused(gated, lambda: evaluated(gated, x)):
        found = {id(tensor) for tensor in use(gated)}
    assert found == whole


def test_a_copy_and_a_state_dict_wait_for_a_call_in_another_thread() -> None:
    gated, x = gate(), inputs(1)
    shapes = {key: value.shape for key, value in gated.state_dict().items()}
    for use in (lambda: gated.state_dict(), lambda: copy.deepcopy(gated).state_dict()):
        with Paused(gated, lambda: evaluated(gated, x)):
            came = use()
        assert {key: value.shape for key, value in came.items()} == shapes


def test_compact_waits_for_a_call_in_another_thread() -> None:
    gated, x = gate(), inputs(1)
    paused = Paused(gated, lambda: evaluated(gated, x))
    with paused:
        small = gated.compact().eval()
    assert_close(small(x), paused.thread.result)


@pytest.mark.parametrize("use", [Gated.compact, Gated.release])
def test_a_thread_that_waits_to_call_the_dense_model_gives_its_turn_back(
    use: Callable[[Gated], nn.Module], monkeypatch: pytest.MonkeyPatch
) -> None:
    gated, x = gate(), inputs(1)
    expected, waiting, take = gated.model(x), threading.Event(), Turn.take
    thread = _Thread(lambda: gated.model(x))

    def announced(turn: Turn, progress: Callable[[], int]) -> None:
        if threading.current_thread() is thread:
            waiting.set()
        take(turn, progress)

    def while_it_waits() -> None:
        thread.start()
        assert waiting.wait(SECONDS)
        use(gated)

    monkeypatch.setattr(Turn, "take", announced)
    gated.engine.alone(while_it_waits)
    assert torch.equal(thread.end(), expected)
    assert gated.engine.turn.owner is None
    gated.state_dict()


def test_a_small_network_serves_several_threads_without_waiting() -> None:
    gated, x = gate(), inputs(1)
    small = gated.compact().eval()
    expected = small(x)
    with gated.drawn(torch.ones(6).double()):
        assert torch.equal(in_another_thread(lambda: small(x)), expected)


# The mode is one flag for all threads


def test_a_thread_that_trains_is_not_silently_put_into_eval_mode() -> None:
    gated = gate().train()
    loss(gated, inputs(1))
    in_another_thread(lambda: evaluated(gated.eval(), inputs(1)))
    with pytest.raises(RuntimeError, match=r"in training mode, but thread 'Thread-.* to eval mode"):
        loss(gated, inputs(1))
    gated.train()
    loss(gated, inputs(1))


def test_a_thread_that_evaluates_is_not_silently_put_into_training_mode() -> None:
    gated = gate()
    in_another_thread(lambda: loss(gated.train(), inputs(1)))
    with pytest.raises(RuntimeError, match=r"in eval mode, but thread .* to training mode"):
        evaluated(gated, inputs(1))


def test_the_mode_may_change_between_uses_by_other_threads() -> None:
    gated = gate()
    for training in (True, False, True):
        gated.train(training)
        in_another_thread(lambda: evaluated(gated, inputs(1)))
        in_another_thread(lambda: loss(gated, inputs(1)))


def test_the_mode_does_not_change_inside_a_call_of_another_thread() -> None:
    gated, x = gate(), inputs(1)
    expected, modes = evaluated(gated, x), list[bool]()
    gated.model.b.register_forward_hook(lambda *_: modes.append(gated.model.b.training))
    paused = Paused(gated, lambda: evaluated(gated, x))
    with paused:
        gated.train()
    assert torch.equal(paused.thread.result, expected)
    assert modes == [False]


# Activation checkpointing


@executions
@checkpointings
@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")  # the other thread
def test_a_recomputation_waits_for_a_call_in_another_thread(
    reentrant: bool, execution: str
) -> None:
    def gradient(disturbed: bool) -> Tensor:
        gated = gate(execution, reentrant)
        total = loss(gated, inputs(1).requires_grad_())
        if disturbed:
            with Paused(gated, lambda: evaluated(gated, inputs(2))):
                total.backward()
        else:
            total.backward()
        return gated.model.a.weight.grad

    assert_close(gradient(disturbed=True), gradient(disturbed=False), rtol=1e-12, atol=1e-12)


@executions
@checkpointings
def test_a_graph_made_in_another_thread_is_not_mistaken_for_ones_own(
    reentrant: bool, execution: str
) -> None:
    """Every thread counts its autograd nodes itself, so the numbers of both threads overlap."""

    def gradient(disturbed: bool) -> Tensor:
        def work() -> Tensor:
            gated = gate(execution, reentrant)
            total = loss(gated, inputs(1).requires_grad_())
            if disturbed:  # with a graph, and with other gates
                gated.phi.data = -gated.phi.data
                in_another_thread(lambda: [gated(inputs(2).requires_grad_()) for _ in range(20)])
            total.backward()
            return gated.model.a.weight.grad

        return in_another_thread(work)

    assert_close(gradient(disturbed=True), gradient(disturbed=False), rtol=1e-12, atol=1e-12)


def test_backward_of_a_checkpointed_pass_belongs_to_its_thread() -> None:
    gated = gate(reentrant=False)
    total = in_another_thread(lambda: loss(gated, inputs(1).requires_grad_()))
    with pytest.raises(RuntimeError, match=r"call backward\(\) in the thread that computed"):
        total.backward()


@executions
@checkpointings
def test_a_thread_of_autograd_recomputes_for_the_thread_that_waits(
    reentrant: bool, execution: str
) -> None:
    """On a GPU, backward runs in a thread that Python did not start. It may not wait for us."""

    def gradient(backward: Callable[[Tensor], None]) -> Tensor:
        gated = gate(execution, reentrant)
        with gated.drawn((PHI > 0).double()):
            backward(gated(inputs(1).requires_grad_()).square().mean())
        return gated.model.a.weight.grad

    def in_a_foreign_thread(total: Tensor) -> None:
        done = threading.Event()

        def work() -> None:
            try:
                total.backward()
            finally:
                done.set()

        _thread.start_new_thread(work, ())
        assert done.wait(SECONDS)

    expected = gradient(lambda total: total.backward())
    assert_close(gradient(in_a_foreign_thread), expected, rtol=1e-12, atol=1e-12)


# Waiting


def test_a_closure_that_waits_for_another_thread_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "PATIENCE", 0.05)
    gated, x = gate(), inputs(1)
    message = r"waited 0 seconds for thread 'MainThread', .* One thread at a time"
    with pytest.raises(RuntimeError, match=message):
        gated.loss(lambda: in_another_thread(lambda: gated(x)).square().mean())
    assert not gated.engine.turn.mine
    assert evaluated(gated, x).shape == (5, 3)


def test_a_thread_that_goes_on_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "PATIENCE", 0.05)
    gated, x, calls = gate(), inputs(1), threading.Event()
    expected = evaluated(gated, x)

    def many_calls() -> None:
        with gated.drawn(torch.ones(6).double()):
            calls.set()
            for _ in range(20):
                gated(x)
                threading.Event().wait(0.01)

    thread = _Thread(many_calls)
    thread.start()
    assert calls.wait(SECONDS)
    assert torch.equal(evaluated(gated, x), expected)
    thread.end()


def test_turns_of_other_threads_are_waited_for() -> None:
    """Copies and state dicts take turns, but call no module."""
    turn = Turn()

    class Busy:
        """A lock that another thread gets first, three times, when the main thread asks."""

        refusals = 3

        def acquire(self, timeout: float) -> bool:
            if threading.current_thread() is not threading.main_thread() or not self.refusals:
                return True
            self.refusals -= 1
            in_another_thread(lambda: (turn.take(lambda: 0), turn.give_back()))
            return False

        def _is_owned(self) -> bool:
            return False

    turn._lock = Busy()
    turn.take(lambda: 0)
    assert (turn.mine, turn._lock.refusals, turn.taken) == (True, 0, 4)


def test_an_interrupt_while_waiting_leaves_the_other_thread_alone() -> None:
    gated, x, waiting = gate(), inputs(1), threading.Event()
    expected = evaluated(gated, x)

    def hold() -> Tensor:
        with gated.drawn(torch.ones(6).double()):
            waiting.set()
            threading.Event().wait(0.1)
            _thread.interrupt_main()
            threading.Event().wait(0.1)
            return gated(x)

    def wait_for_a_turn() -> None:
        thread.start()
        assert waiting.wait(SECONDS)
        gated(x)

    thread = _Thread(hold)
    with pytest.raises(KeyboardInterrupt):
        wait_for_a_turn()
    came = thread.end()
    with gated.drawn(torch.ones(6).double()):
        assert torch.equal(gated(x), came)
    assert torch.equal(evaluated(gated, x), expected)


def test_a_training_step_takes_the_turn_once(monkeypatch: pytest.MonkeyPatch) -> None:
    gated, taken, take = gate(), list[Turn](), Turn.take
    monkeypatch.setattr(Turn, "take", lambda turn, *args: (taken.append(turn), take(turn, *args)))
    loss(gated, inputs(1)).backward()
    assert taken == [gated.engine.turn]


# Copies


def test_a_copy_is_nobodys_turn() -> None:
    gated = gate()
    with gated.drawn(torch.ones(6).double()):
        for twin in (copy.deepcopy(gated), pickle.loads(pickle.dumps(gated))):
            assert twin.engine.turn.owner is None
            in_another_thread(lambda twin=twin: twin(inputs(1)))


def test_data_parallel_is_refused() -> None:
    """It runs replicas in threads, on GPUs only; this is the method by which it makes them."""
    with pytest.raises(TypeError, match=r"DataParallel runs.*DistributedDataParallel"):
        gate()._replicate_for_data_parallel()
