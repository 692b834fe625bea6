"""The methods: each chooses the units to keep, with so many forward-equivalents.

All of them choose units of the same total price (``Problem.kept``), see batches of the same
text, and, if they start from scores, start from the same ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import l0arm
from benchmarks.forward_only.problem import Problem, activations, magnitudes, taylor
from l0arm._search import _Problem, _State
from l0arm.estimators import DisARMSlopes

SCORED = 8  # batches for scores
Choose = Callable[[Problem, float, int, int], Tensor]


@dataclass(frozen=True)
class Method:
    """A way to choose.

    Attributes:
        title: The name in tables.
        choose: Returns 1 for the units that stay. Called with the problem, the share of the
            parameters to leave, the seed and the number of forward-equivalents.
        backward: Whether it needs backward passes.
        ours: Whether it is a method of this library.
        searches: Whether it uses all of its forward-equivalents.
    """

    title: str
    choose: Choose
    backward: bool = False
    ours: bool = False
    searches: bool = True


def by_random(problem: Problem, left: float, seed: int, budget: int) -> Tensor:
    """Random units, the same share of each group."""
    random = torch.Generator().manual_seed(seed)
    return problem.kept(problem.by_rank(torch.rand(len(problem.price), generator=random)), left)


def by_magnitude(problem: Problem, left: float, seed: int, budget: int) -> Tensor:
    """Units with the largest weights, the same share of each group."""
    return problem.kept(problem.by_rank(magnitudes(problem)), left)


def by_activation(problem: Problem, left: float, seed: int, budget: int) -> Tensor:
    """Activation times weight, the same share of each group."""
    return problem.kept(problem.by_rank(activations(problem, SCORED)), left)


def by_taylor(problem: Problem, left: float, seed: int, budget: int) -> Tensor:
    """First-order change of the loss per parameter, over all groups."""
    return problem.kept(taylor(problem, max(1, budget // 3)) / problem.price, left)


def by_taylor_evenly(problem: Problem, left: float, seed: int, budget: int) -> Tensor:
    """First-order change of the loss, the same share of each group."""
    return problem.kept(problem.by_rank(taylor(problem, max(1, budget // 3))), left)


def leave_one_out(problem: Problem, left: float, seed: int, budget: int) -> Tensor:
    """Close each head, and each block of MLP units of neighbouring scores, and look at the loss.

    One batch for all. The blocks are as small as the budget allows.
    """
    scores = problem.by_rank(activations(problem, SCORED))
    heads = sum(n for name, n in problem.groups.items() if name.endswith("qkv"))
    free = budget - problem.spent - 1 - heads
    size = math.ceil((len(scores) - heads) / free)
    every = torch.ones(len(scores))
    before, worth, first = problem.value(every), torch.zeros(len(scores)).double(), 0
    for name, units in problem.groups.items():
        order = first + scores[first : first + units].argsort()
        for block in order.split(1 if name.endswith("qkv") else size):
            z = every.clone()
            z[block] = 0
            worth[block] = (problem.value(z) - before) / float(problem.price[block].sum())
        first += units
    return problem.kept(worth, left)


def regression(problem: Problem, left: float, seed: int, budget: int) -> Tensor:
    """Losses of random subnetworks of the final size, and a ridge regression on their masks.

    The subnetworks prefer units with high scores (as in Bonsai). Each loss is taken relative to
    that of the best units by score, on the same batch.
    """
    scores = problem.by_rank(activations(problem, SCORED))
    random = torch.Generator().manual_seed(seed)
    reference = problem.kept(scores, left)
    masks, losses = [], []
    while problem.spent + 2 <= budget:
        noise = torch.rand(len(scores), generator=random, dtype=torch.float64)
        masks.append(problem.kept(scores + noise, left))
        problem.next_batch()
        losses.append(problem.value(masks[-1]) - problem.value(reference))
    z = torch.stack(masks).double()
    z, y = z - z.mean(0), torch.tensor(losses, dtype=torch.float64)
    kernel = z @ z.T
    penalty = kernel.diagonal().mean() * torch.eye(len(y), dtype=torch.float64)
    slope = -z.T @ torch.linalg.solve(kernel + penalty, y - y.mean())
    return problem.kept(scores + slope / slope.std(), left)


def evolution(problem: Problem, left: float, seed: int, budget: int) -> Tensor:
    """(1 + 4): children exchange a few units with the closed ones; the best of a batch stays."""
    scores = problem.by_rank(activations(problem, SCORED))
    random = torch.Generator().manual_seed(seed)
    parent = problem.kept(scores, left)
    while problem.spent + 5 <= budget:
        problem.next_batch()
        children = [parent]
        for _ in range(4):
            noise = torch.rand(len(scores), generator=random, dtype=torch.float64)
            moved = noise < 0.02  # of the units, open or closed
            wish = torch.where(moved, 1 - parent.double(), parent.double())
            children.append(problem.kept(wish + 0.1 * scores, left))
        losses = [problem.value(child) for child in children]
        parent = children[min(range(5), key=losses.__getitem__)]
    return parent


def searching(
    estimator: str,
    *,
    lr: float,
    blocks: tuple[int, ...] = (1,),
    spread: float = 1.0,
    **options: Any,
) -> Choose:
    """``l0arm.search`` with an estimator of values.

    Args:
        estimator: Its name.
        lr: Learning rate of the logits.
        blocks: Units of one gate.
        spread: Of the first logits.
        **options: Of the estimator.
    """

    def choose(problem: Problem, left: float, seed: int, budget: int) -> Tensor:
        scores = problem.by_rank(activations(problem, SCORED))
        each = {"disarm": 2, "reinforce": 1}.get(estimator, options.get("samples", 4))

        def after_step(record: dict[str, float]) -> bool:
            problem.next_batch()
            return False

        found = l0arm.search(
            problem.of_masks,
            problem.groups,
            problem.share(left),
            cost={name: part[0].item() for name, part in problem.split(problem.price).items()},
            steps=(budget - problem.spent - 2) // each,
            estimator=estimator,
            lr=lr,
            scores=problem.split(scores),
            spread=spread,
            blocks=blocks,
            seed=seed,
            stop=after_step,
            **options,
        )
        return torch.cat([torch.from_numpy(found.masks[n]) for n in problem.groups]).float()

    return choose


class _WithSlopes(_Problem):
    """The problem of a search whose objective has derivatives in the masks."""

    def __call__(self, z: Tensor) -> Tensor:
        found: Tensor = self.f(z)  # type: ignore[arg-type,assignment]
        return found


def searching_with_slopes(
    estimator: Any, each: int, *, lr: float, blocks: tuple[int, ...] = (1,), spread: float = 1.0
) -> Choose:
    """The same search with an estimator that takes derivatives in the gates."""

    def choose(problem: Problem, left: float, seed: int, budget: int) -> Tensor:
        ranks = problem.by_rank(activations(problem, SCORED))
        start = spread * (2 * ranks - 1) + math.log(9)
        prices = problem.price / problem.price.sum()
        posed = _WithSlopes(problem.differentiable, problem.groups, prices, problem.share(left))  # type: ignore[arg-type]
        steps = (budget - problem.spent) // each
        state = _State(posed, estimator(), lr, seed, start, steps, blocks)
        for _ in range(steps):
            state.advance()
            problem.next_batch()
        return problem.kept(state.phi, left)

    return choose


def relu_gates(problem: Problem, left: float, seed: int, budget: int) -> Tensor:
    """Deterministic gates min(1, relu(a)), trained by backward passes; a falls to the size."""
    gates = problem.by_rank(activations(problem, SCORED)) * 0.2 + 0.9
    return _relaxed(problem, left, budget, gates, 0.05, lambda a: a.clamp(0, 1), None)


def hard_concrete(problem: Problem, left: float, seed: int, budget: int) -> Tensor:
    """Hard concrete gates, trained by backward passes through one draw."""
    random = torch.Generator().manual_seed(seed)
    start = 2 * problem.by_rank(activations(problem, SCORED)) - 1 + 2.0

    def draw(a: Tensor) -> Tensor:
        u = torch.rand(a.shape, generator=random, dtype=a.dtype).clamp(1e-6, 1 - 1e-6)
        s = ((u.log() - (-u).log1p() + a) / (2 / 3)).sigmoid()
        return (s * 1.2 - 0.1).clamp(0, 1)

    shift = 2 / 3 * math.log(0.1 / 1.1)
    return _relaxed(problem, left, budget, start, 0.2, lambda a: (a - shift).sigmoid(), draw)


def _relaxed(
    problem: Problem,
    left: float,
    budget: int,
    a: Tensor,
    lr: float,
    size: Callable[[Tensor], Tensor],
    draw: Callable[[Tensor], Tensor] | None,
) -> Tensor:
    """Adam on gates between 0 and 1, shifted after every step so that the size keeps to a target.

    The target falls as in ``l0arm.search``.
    """
    draw, prices = draw or size, problem.price / problem.price.sum()
    optimizer = torch.optim.Adam([a.requires_grad_()], lr=lr, betas=(0.9, 0.99))
    steps, goal, initial = (budget - problem.spent) // 3, problem.share(left), None
    for step in range(1, steps + 1):
        optimizer.zero_grad()
        problem.differentiable(draw(a)).backward()
        optimizer.step()
        problem.next_batch()
        with torch.no_grad():
            initial = float(prices @ size(a)) if initial is None else initial
            target = max(goal, initial + (goal - initial) * min(1.0, step / (0.6 * steps)))
            low, high = 0.0, 32.0
            for _ in range(50):
                middle = (low + high) / 2
                over = float(prices @ size(a - middle)) > target
                low, high = (middle, high) if over else (low, middle)
            a -= high if float(prices @ size(a)) > target else 0.0
    return problem.kept(a.detach(), left)


METHODS = {
    "random": Method("random", by_random, searches=False),
    "magnitude": Method("magnitude", by_magnitude, searches=False),
    "activation": Method("activation × weight (Wanda-like)", by_activation, searches=False),
    "leave-one-out": Method("leave-one-out perturbation", leave_one_out),
    "regression": Method("random subnetworks, regression (Bonsai-like)", regression),
    "evolution": Method("(1 + 4) evolution", evolution),
    "reinforce": Method("REINFORCE, moving average", searching("reinforce", lr=0.05)),
    "reinforce-4": Method(
        "REINFORCE, moving average, with the settings of DisARM, spread 4",
        searching("reinforce", lr=0.2, blocks=(32,), spread=4.0),
    ),
    "taylor": Method("first-order Taylor, per parameter", by_taylor, backward=True),
    "taylor-even": Method(
        "first-order Taylor, the same share of each group", by_taylor_evenly, backward=True
    ),
    "relu": Method("deterministic ReLU gates", relu_gates, backward=True),
    "hard-concrete": Method("hard concrete", hard_concrete, backward=True),
    "disarm-4": Method(
        "DisARM, spread 4",
        searching("disarm", lr=0.2, blocks=(32,), spread=4.0),
        ours=True,
    ),
    "disarm": Method("DisARM", searching("disarm", lr=0.1, blocks=(32,)), ours=True),
    "arms": Method("ARMS, 4 draws", searching("arms", lr=0.1, blocks=(32,), samples=4), ours=True),
    "loo": Method(
        "LOO, 4 draws", searching("reinforce-loo", lr=0.1, blocks=(32,), samples=4), ours=True
    ),
    "slopes": Method(
        "DisARM with slopes",
        searching_with_slopes(DisARMSlopes, 4, lr=0.2, blocks=(32,)),
        backward=True,
        ours=True,
    ),
}
