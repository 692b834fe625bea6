"""From a trained network to a small one in one call: met budgets, exact cuts, honest refusals."""

import io
import random
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import l0arm
from l0arm.costs.budget import BudgetWarning
from l0arm.costs.tracking import follow_target
from l0arm.pruning import SCORES, decide, start_from

GENERATOR = torch.Generator().manual_seed(0)
X = torch.randn(200, 8, generator=GENERATOR)
Y = (X[:, 0] + X[:, 1] * X[:, 2] > 0).long()


class Batches:
    """20 batches of 10, shuffled anew by the global random numbers at every walk."""

    def __len__(self) -> int:
        return 20

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        for rows in torch.randperm(200).split(10):
            yield X[rows], Y[rows]


def network() -> nn.Module:
    return nn.Sequential(
        *(nn.Linear(8, 48), nn.BatchNorm1d(48), nn.ReLU()),
        *(nn.Linear(48, 32), nn.ReLU(), nn.Linear(32, 2)),
    )


def wide() -> nn.Module:
    """One unit is less than 1 % of a fifth of it."""
    return nn.Sequential(
        *(nn.Linear(8, 320), nn.ReLU(), nn.Linear(320, 240), nn.ReLU(), nn.Linear(240, 2)),
    )


def accuracy(model: nn.Module) -> float:
    with torch.no_grad():
        return 100 * (model(X).argmax(1) == Y).float().mean().item()


@pytest.fixture(scope="module")
def trained() -> nn.Module:
    torch.manual_seed(0)
    model = network()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(10):
        for x, y in Batches():
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
    return model


@pytest.fixture(scope="module")
def result(trained: nn.Module) -> l0arm.PruneResult:
    return l0arm.prune(
        *(trained, Batches(), F.cross_entropy),
        **{"budget": {"flops": "30%"}, "epochs": 6, "validate": accuracy, "seed": 0, "quiet": True},
    )


def test_the_small_network_fits_the_budget_and_still_works(result: l0arm.PruneResult) -> None:
    assert 0.29 < result.small.macs / result.dense.macs <= 0.30
    assert result.certificate.passed
    assert result.dense.score is not None
    assert result.small.score is not None
    assert result.small.score > result.dense.score - 3
    assert not result.model.training
    assert not any(isinstance(module, l0arm.Gated) for module in result.model.modules())


def test_the_users_network_is_left_as_it_was(trained: nn.Module) -> None:
    before = {key: value.clone() for key, value in trained.state_dict().items()}
    l0arm.prune(trained, Batches(), F.cross_entropy, budget="50%", steps=4, quiet=True)
    assert all(torch.equal(value, before[key]) for key, value in trained.state_dict().items())
    assert trained.training
    assert not any(module._forward_hooks for module in trained.modules())


def test_the_history_goes_through_the_stages_and_ends_at_the_target(
    result: l0arm.PruneResult,
) -> None:
    stages = [record["stage"] for record in result.history]
    assert stages == sorted(stages)  # learn, then tune
    last = next(r for r in reversed(result.history) if r["stage"] == "learn")
    assert last["FLOPs share"] == pytest.approx(0.30, abs=0.01)


def test_the_table_has_what_a_person_asks_for(result: l0arm.PruneResult) -> None:
    text = str(result)
    for word in ("parameters", "MACs", "milliseconds", "bytes", "validate", "architecture"):
        assert word in text
    assert max(map(len, text.splitlines()[:-1])) <= 80


def test_a_seed_gives_the_same_network_and_leaves_the_global_numbers_alone(
    trained: nn.Module,
) -> None:
    def pruned() -> dict[str, Tensor]:
        options: Any = {"budget": "50%", "steps": 12, "seed": 3, "quiet": True}
        return l0arm.prune(trained, Batches(), F.cross_entropy, **options).model.state_dict()

    before = torch.get_rng_state()
    one, other = pruned(), pruned()
    assert torch.equal(torch.get_rng_state(), before)
    assert list(one) == list(other)
    assert all(torch.equal(one[key], other[key]) for key in one)


@pytest.mark.parametrize("steps", [10, 50, 120])
@pytest.mark.parametrize("budget", ["60%", "20%"])
def test_the_budget_is_met_from_below_whatever_the_number_of_steps(steps: int, budget: str) -> None:
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", BudgetWarning)  # ten steps decide nothing
        found = l0arm.prune(
            wide(), Batches(), F.cross_entropy, budget={"flops": budget}, steps=steps, quiet=True
        )
    target = float(budget[:-1]) / 100
    assert 0.99 * target <= found.small.macs / found.dense.macs <= target


@pytest.mark.slow
@pytest.mark.parametrize(
    "steps", [50, 80, 130, 200, 350, 600, 1000, 2000, 4000, 8000, 20000, 50000]
)
def test_the_budget_is_met_from_50_to_50000_steps(steps: int) -> None:
    torch.manual_seed(0)
    found = l0arm.prune(
        wide(), Batches(), F.cross_entropy, budget={"flops": "35%"}, steps=steps, quiet=True
    )
    assert 0.99 * 0.35 <= found.small.macs / found.dense.macs <= 0.35


@pytest.mark.filterwarnings("ignore::l0arm.BudgetWarning")  # 20 steps decide little
def test_rounded_widths_count_in_the_budget(trained: nn.Module) -> None:
    options: Any = {"budget": {"flops": "50%"}, "steps": 40, "quiet": True, "round_to": 8}
    found = l0arm.prune(trained, Batches(), F.cross_entropy, **options)
    assert found.small.macs / found.dense.macs <= 0.5
    assert all(int(units) % 8 == 0 for units in found.architecture.split("-"))


def test_a_step_function_serves_any_kind_of_batch(trained: nn.Module) -> None:
    batches = [{"x": x, "y": y} for x, y in Batches()]

    def step(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        return F.cross_entropy(model(batch["x"]), batch["y"])

    found = l0arm.prune(
        trained, batches, step, budget="50%", steps=6, quiet=True, example_inputs=X[:4]
    )
    assert found.small.parameters <= found.dense.parameters / 2


@pytest.mark.parametrize("name", sorted(SCORES))
def test_every_score_ranks_units_that_do_nothing_last(name: str) -> None:
    """Half of the hidden units are dead: no weights in or out, scale 0."""
    torch.manual_seed(0)
    model = network()
    with torch.no_grad():
        model[0].weight[:24] = 0.0
        model[0].bias[:24] = 0.0
        model[1].weight[:24] = 0.0
        model[3].weight[:, :24] = 0.0
    gated = l0arm.sparsify(model, example_inputs=X[:4], lam=0.0)
    scores = SCORES[name](gated, [lambda: F.cross_entropy(gated(X), Y)])
    first = scores[:48]
    assert float(first[:24].max()) < float(first[24:].max())
    start_from(gated, scores)
    probs = gated.gates.probs[:48].detach()
    assert float(probs[:24].mean()) < float(probs[24:].mean())


def test_scores_change_nothing_of_the_network() -> None:
    torch.manual_seed(0)
    gated = l0arm.sparsify(network(), example_inputs=X[:4], lam=0.0)
    before = {key: value.clone() for key, value in gated.state_dict().items()}
    for score in SCORES.values():
        score(gated, [lambda: F.cross_entropy(gated(X), Y)])
    assert all(torch.equal(value, before[key]) for key, value in gated.state_dict().items())
    assert gated.training
    assert all(p.grad is None for p in gated.parameters())


def test_the_first_order_score_is_the_derivative_of_the_loss_in_the_gates() -> None:
    torch.manual_seed(0)
    model = network().double().eval()
    gated = l0arm.sparsify(model, example_inputs=X[:4].double(), lam=0.0, execution="masked")
    x = X.double()
    (score,) = (SCORES["first-order"](gated, [lambda: F.cross_entropy(gated(x), Y)]),)
    unit, step, losses = 5, 1e-4, []
    for sign in (1, -1):
        z = torch.ones(gated.layout.gates, dtype=torch.float64)
        z[unit] += sign * step
        with gated.drawn(z, writes=False), torch.no_grad():
            losses.append(F.cross_entropy(gated.eval()(x), Y).item())
    slope = abs(losses[0] - losses[1]) / (2 * step)
    assert float(score[unit]) == pytest.approx(slope, rel=1e-4)


@pytest.mark.parametrize("initial", [0.5, 0.95])
@pytest.mark.parametrize("target", ["80%", "30%"])
def test_one_shift_puts_the_expected_cost_on_the_target(initial: float, target: str) -> None:
    options: Any = {"budget": {"flops": target}, "initial": initial}
    gated = l0arm.sparsify(network(), example_inputs=X[:4], **options)
    assert gated.budget is not None
    gated.budget.warmup = 0
    order = gated.phi.argsort()
    follow_target(gated)
    share, now, end = gated.budget.shares(gated.gates.open_probability)["FLOPs"]
    assert now == pytest.approx(end)
    assert end == float(target[:-1]) / 100
    assert share == pytest.approx(end, abs=0.005)
    assert torch.equal(gated.phi.argsort(), order)


def test_undecided_gates_are_named() -> None:
    gated = l0arm.sparsify(network(), example_inputs=X[:4], budget={"flops": "30%"}, initial=0.97)
    with pytest.warns(BudgetWarning, match=r"closes \d+ units that the training held open"):
        decide(gated)


W = nn.Parameter(torch.ones(2))  # of no model


class Once:
    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        raise StopIteration


@pytest.mark.parametrize(
    ("changed", "error", "message"),
    [
        ({"batches": []}, ValueError, "batches is empty"),
        ({"batches": Once()}, ValueError, "can be walked only once; pass a DataLoader or a list"),
        ({"steps": None}, ValueError, "give either epochs= or steps="),
        ({"epochs": 3}, ValueError, "give either epochs= or steps="),
        ({"steps": 1}, ValueError, "at least 2 steps"),
        ({"learn": 1.0}, ValueError, "leaves no step to tune in"),
        ({"loss": 3}, TypeError, "loss must be a function"),
        ({"loss": lambda out, y: torch.tensor(1.0)}, ValueError, "does not depend on the model"),
        ({"loss": lambda out, y: out.sum() * float("nan")}, ValueError, "first batch is nan"),
        ({"loss": lambda out, y: out}, ValueError, "must be a scalar tensor"),
        ({"budget": {"speed": "50%"}}, ValueError, "budget must limit one of"),
        ({"budget": {"flops": "0.1%"}}, ValueError, "cannot be reached: with as few units open"),
        ({"validate": lambda model: float("nan")}, ValueError, "validate returned nan"),
        ({"scores": "taylor"}, ValueError, "unknown scores 'taylor'; there are activation"),
        ({"exclude": ["*"]}, Exception, "nothing"),
        ({"batches": 3}, TypeError, "batches must be an iterable"),
        ({"steps": None, "epochs": 0.01}, ValueError, r"at least 2 steps.*0\.01 epochs of 20"),
        ({"steps": None, "epochs": float("nan")}, ValueError, "at least 2 steps"),
        ({"validate": lambda model: "good"}, ValueError, "validate must return a number"),
        ({"precision": "int8"}, ValueError, "precision must be 'bf16', 'fp16' or None"),
        ({"loss": lambda out, y: F.mse_loss(W, W * 0)}, ValueError, "not depend on the model"),
    ],
)
def test_bad_input_is_refused_before_any_training(
    changed: dict[str, Any], error: type[Exception], message: str, trained: nn.Module
) -> None:
    before = {key: value.clone() for key, value in trained.state_dict().items()}
    modes = [module.training for module in trained.modules()]
    numbers = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()
    arguments: dict[str, Any] = {
        **{"batches": Batches(), "loss": F.cross_entropy},
        **{"budget": {"flops": "50%"}, "steps": 10, "quiet": True},
    }
    with pytest.raises(error, match=message):
        l0arm.prune(trained, **{**arguments, **changed})
    assert all(torch.equal(value, before[key]) for key, value in trained.state_dict().items())
    assert [module.training for module in trained.modules()] == modes
    assert torch.equal(torch.get_rng_state(), numbers[0])
    assert (random.getstate(), np.random.get_state()[1].tolist()) == numbers[1:]


def test_the_tuned_network_is_saved_with_the_weights_that_it_has(
    result: l0arm.PruneResult, tmp_path: Path
) -> None:
    """Loaded in a new process, the outputs are the same bit for bit."""
    result.save(tmp_path / "small")
    torch.save((X, result.model(X)), tmp_path / "outputs.pt")
    code = (
        "import torch, l0arm; from torch import nn; "
        "net = lambda: nn.Sequential(nn.Linear(8, 48), nn.BatchNorm1d(48), nn.ReLU(), "
        "nn.Linear(48, 32), nn.ReLU(), nn.Linear(32, 2)); "
        f"small = l0arm.load({str(tmp_path / 'small')!r}, net); "
        f"x, y = torch.load({str(tmp_path / 'outputs.pt')!r}, weights_only=True); "
        "print(torch.equal(small(x), y), l0arm.certificate(small).passed)"
    )
    command = [sys.executable, "-c", code]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert printed.split() == ["True", "True"]


def test_progress_is_printed_to_stderr(trained: nn.Module, capsys: Any) -> None:
    l0arm.prune(trained, Batches(), F.cross_entropy, budget="50%", steps=6)
    out, err = capsys.readouterr()
    assert out == ""
    assert "learn 1/6: loss " in err
    assert "parameters" in err
    assert "tune 6/6: loss " in err


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_half_precision_trains_float32_weights_to_the_budget(
    precision: Any, trained: nn.Module
) -> None:
    seen = set()

    def step(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        output = model(batch[0])
        seen.add(output.dtype)
        return F.cross_entropy(output, batch[1])

    options: Any = {"budget": {"flops": "30%"}, "epochs": 6, "seed": 0, "quiet": True}
    found = l0arm.prune(
        trained, Batches(), step, precision=precision, validate=accuracy, device="cpu", **options
    )
    assert {torch.bfloat16 if precision == "bf16" else torch.float16} < seen
    assert 0.29 < found.small.macs / found.dense.macs <= 0.30
    assert found.small.score is not None
    assert found.small.score > 80
    assert all(p.dtype == torch.float32 for p in found.model.parameters())


def test_keyword_and_several_inputs_are_counted_and_timed() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(4, 40), nn.Linear(4, 40)
            self.out = nn.Linear(40, 2)

        def forward(self, a: Tensor, b: Tensor) -> Tensor:
            return self.out(F.relu(self.first(a) + self.second(b)))

    torch.manual_seed(0)
    batches = [{"a": X[:, :4], "b": X[:, 4:], "y": Y}]

    def step(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        return F.cross_entropy(model(batch["a"], b=batch["b"]), batch["y"])

    found = l0arm.prune(
        *(Two(), batches, step),
        **{"budget": "50%", "steps": 80, "seed": 0, "quiet": True},
        **{"example_inputs": X[:8, :4], "example_kwargs": {"b": X[:8, 4:]}},
    )
    assert found.dense.macs == 8 * (2 * 4 * 40 + 40 * 2)
    kept = int(found.architecture)
    assert found.small.macs == 8 * (2 * 4 * kept + kept * 2)
    assert min(found.dense.milliseconds, found.small.milliseconds) > 0


def test_a_loaded_network_is_tuned_and_saved_again(
    result: l0arm.PruneResult, tmp_path: Path
) -> None:
    result.save(tmp_path / "first")
    small = l0arm.load(tmp_path / "first", network)
    optimizer = torch.optim.SGD(small.parameters(), lr=0.1)
    F.cross_entropy(small.train()(X), Y).backward()
    optimizer.step()
    l0arm.save(small, tmp_path / "second")
    again = l0arm.load(tmp_path / "second", network)
    assert torch.equal(again(X), small.eval()(X))
    assert not torch.equal(again(X), result.model(X))


@pytest.mark.parametrize("name", ["small.onnx", "small.pt2"])
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_the_small_network_is_exported_by_the_suffix(
    name: str, result: l0arm.PruneResult, tmp_path: Path
) -> None:
    pytest.importorskip("onnxruntime", reason="needs pip install 'l0arm[export]'")
    exported = result.export(tmp_path / name)
    assert (tmp_path / name).is_file()
    assert exported.parity.largest < 1e-4
    with pytest.raises(ValueError, match=r"writes \.onnx or \.pt2 files; got .*small\.pb"):
        result.export(tmp_path / "small.pb")


def test_in_a_terminal_progress_is_one_line_that_is_written_over(
    trained: nn.Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    l0arm.prune(trained, Batches(), F.cross_entropy, budget="50%", steps=6)
    text = terminal.getvalue()
    assert text.startswith("\r[###.................] learn 1/6: loss ")
    assert "\r[####################] tune 6/6: loss " in text
    assert text.count("\n") == 1
    assert text.endswith("\n")
