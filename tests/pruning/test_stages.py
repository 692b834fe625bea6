"""The stages of pruning in a loop of one's own: the same network as ``prune`` makes."""

from collections.abc import Iterator
from itertools import islice, pairwise

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import l0arm
from l0arm.pruning import SCORES, Choice, Pruning
from l0arm.pruning.stream import Stream

X = torch.randn(120, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
Y = (X[:, 0] + X[:, 1] * X[:, 2] > 0).long()


class Batches:
    """12 batches of 10, shuffled anew by the global random numbers at every walk."""

    def __len__(self) -> int:
        return 12

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        for rows in torch.randperm(120).split(10):
            yield X[rows], Y[rows]


def network() -> nn.Module:
    torch.manual_seed(0)
    layers = (nn.Linear(8, 40), nn.BatchNorm1d(40), nn.ReLU(), nn.Linear(40, 2))
    return nn.Sequential(*layers).double()


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9, nesterov=True)


def gated_network() -> l0arm.Gated:
    return l0arm.sparsify(network(), example_inputs=X[:8], budget={"flops": "40%"}, initial=0.95)


@pytest.mark.filterwarnings("ignore::l0arm.BudgetWarning")
@pytest.mark.parametrize("choice", ["scores", "gates"])
def test_a_loop_of_ones_own_gives_the_network_of_prune_bit_for_bit(choice: Choice) -> None:
    options = {"budget": {"flops": "40%"}, "steps": 30, "seed": 5, "quiet": True}
    options |= {"choice": choice, "learn": 0.5}
    result = l0arm.prune(network(), Batches(), F.cross_entropy, **options)

    gated = gated_network()
    optimizer = sgd(gated.model)
    pruning = Pruning(gated, optimizer, steps=30, choice=choice, learn=0.5)
    torch.manual_seed(5)
    stream = Stream(Batches())
    if choice == "gates":
        few = list(islice(stream, 12))
        pruning.rank([lambda b=b: F.cross_entropy(gated(b[0]), b[1]) for b in few])
    stages = []
    while pruning.stage != "done":
        x, y = next(stream)
        stages.append(pruning.stage)
        optimizer.zero_grad()
        model = pruning.model.train()
        pruning.loss(lambda m=model, x=x, y=y: F.cross_entropy(m(x), y)).backward()
        optimizer.step()
    small = pruning.finish()

    assert stages == ["learn"] * 15 + ["tune"] * 15
    found, wanted = small.state_dict(), result.model.state_dict()
    assert list(found) == list(wanted)
    assert all(torch.equal(found[key], wanted[key]) for key in found)
    assert l0arm.certificate(small).passed


@pytest.mark.filterwarnings("ignore::l0arm.BudgetWarning")
@pytest.mark.parametrize("choice", ["scores", "gates"])
def test_tuning_under_decided_gates_equals_tuning_the_small_network(choice: Choice) -> None:
    """Closed units get no gradient, and are cut in the end."""

    def tuned(cuts: bool) -> nn.Module:
        gated = gated_network()
        optimizer = sgd(gated.model)
        pruning = Pruning(gated, optimizer, steps=20, cuts=cuts, choice=choice, learn=0.5)
        torch.manual_seed(1)
        if choice == "gates":
            pruning.rank([lambda: F.cross_entropy(gated(X), Y)])
        while pruning.stage != "done":
            optimizer.zero_grad()
            torch.manual_seed(pruning.step)
            pruning.loss(lambda: F.cross_entropy(pruning.model(X), Y)).backward()
            optimizer.step()
        return pruning.finish()

    for one, other in zip(tuned(True).parameters(), tuned(False).parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)


def test_gates_stay_as_they_are_after_the_decision() -> None:
    gated = gated_network()
    optimizer = sgd(gated.model)
    pruning = Pruning(gated, optimizer, steps=60, learn=0.8, cuts=False, choice="gates")
    decided = None
    while pruning.stage != "done":
        optimizer.zero_grad()
        pruning.loss(lambda: F.cross_entropy(gated(X), Y)).backward()
        optimizer.step()
        if pruning.stage == "tune":
            decided = gated.phi.detach().clone() if decided is None else decided
            assert torch.equal(gated.phi, decided)
    probabilities = gated.gates.probs.detach()
    assert set(probabilities.tolist()) == {0.0, 1.0}
    assert gated.budget is not None
    assert gated.budget.fits(probabilities)


def test_rounds_close_units_for_good_and_give_the_estimator_back() -> None:
    gated = gated_network()
    estimator, optimizer = gated.estimator, sgd(gated.model)
    pruning = Pruning(gated, optimizer, steps=80, learn=0.5, cuts=False)
    open_units = []
    while pruning.stage == "learn":
        optimizer.zero_grad()
        gated.loss(lambda: F.cross_entropy(gated(X), Y)).backward()  # as trainers call it
        optimizer.step()
        open_units.append(gated.gates.probs.detach() > 0.5)
    assert gated.estimator is estimator
    for before, after in pairwise(open_units[:-1]):
        assert bool((before | ~after).all())  # nothing is opened again
    counts = [int(units.sum()) for units in open_units]
    assert len(set(counts[:-1])) == 9  # all open, and after each of eight rounds
    assert counts[:4] == [40, 40, 40, counts[3]]
    assert counts[3] < 40  # the first round takes four steps


def test_a_round_without_a_loss_of_the_gated_network_is_refused() -> None:
    gated = gated_network()
    optimizer = sgd(gated.model)
    pruning = Pruning(gated, optimizer, steps=16, learn=0.5)
    F.cross_entropy(gated(X), Y).backward()
    with pytest.raises(ValueError, match="no unit was scored; compute every loss with"):
        optimizer.step()
    assert pruning.stage == "learn"


@pytest.mark.parametrize("name", ["fisher", "first-order"])
def test_scores_of_a_round_are_those_of_its_batches(name: str) -> None:
    gated = gated_network()
    pruning = Pruning(gated, sgd(gated.model), steps=16, learn=0.5, scores=name)
    pruning.loss(lambda: F.cross_entropy(pruning.model(X), Y))
    wanted = SCORES[name](gated, [lambda: F.cross_entropy(gated(X), Y)])
    assert pruning.rounds is not None
    torch.testing.assert_close(pruning.rounds.state_dict()["slopes"], wanted, rtol=1e-6, atol=0)


def test_the_learning_rates_of_the_optimizer_are_its_own_again_after_a_step() -> None:
    gated = gated_network()
    optimizer = sgd(gated.model)
    pruning = Pruning(gated, optimizer, steps=100)
    assert pruning.factor() == pytest.approx(0.2)  # the first of 5 steps of warm-up
    before = gated.model[0].weight.detach().clone()
    optimizer.zero_grad()
    pruning.loss(lambda: F.cross_entropy(gated(X), Y)).backward()
    gradient = gated.model[0].weight.grad.clone()
    optimizer.step()
    moved = before - gated.model[0].weight.detach()
    torch.testing.assert_close(moved, 0.2 * 0.02 * 1.9 * gradient)  # Nesterov's first step
    assert optimizer.param_groups[0]["lr"] == 0.02


def test_what_cannot_be_pruned_is_refused() -> None:
    gated = gated_network()
    with pytest.raises(ValueError, match="the optimizer holds phi"):
        Pruning(gated, torch.optim.SGD(gated.parameters(), lr=0.1), steps=10)
    with pytest.raises(ValueError, match="leaves no step to tune in"):
        Pruning(gated, sgd(gated.model), steps=10, learn=1.0)
    with pytest.raises(ValueError, match="unknown scores 'x'; there are activation"):
        Pruning(gated, sgd(gated.model), steps=10, scores="x")
    with pytest.raises(ValueError, match="choice='scores' ranks by itself"):
        Pruning(gated, sgd(gated.model), steps=10).rank([])
    with pytest.raises(ValueError, match="choice must be one of scores, gates; got 'luck'"):
        Pruning(gated, sgd(gated.model), steps=10, choice="luck")
    free = l0arm.sparsify(network(), example_inputs=X[:8], lam=0.0)
    with pytest.raises(ValueError, match="no budget"):
        Pruning(free, sgd(free.model), steps=10)
