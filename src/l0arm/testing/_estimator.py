"""What every estimator of binary draws promises, as functions that check it."""

from __future__ import annotations

import copy
from collections.abc import Callable
from itertools import product

import torch
from torch import Tensor, nn

from l0arm.contracts import Estimator
from l0arm.gates import Bernoulli, HardSigmoid
from l0arm.testing._errors import require

MakeEstimator = Callable[[], Estimator]
DRAWS = 600
CRITICAL = 25.9  # of chi-square with 3 degrees of freedom: a false alarm has p = 1e-5


def check_estimator(make: MakeEstimator) -> None:
    """Check an estimator of binary draws.

    Args:
        make: Makes a fresh estimator: its class, or a function.

    Raises:
        ContractError: If it breaks the contract of :class:`l0arm.contracts.Estimator`.

    Example:
        >>> from l0arm.estimators import DisARM
        >>> check_estimator(DisARM)
    """
    for check in ESTIMATOR_CHECKS:
        check(make)


class _Loss:
    """f(z) = (theta z - 1)^2 + 2.3. Records the gates of every call and whether it had a graph."""

    def __init__(self, gates: int, dtype: torch.dtype = torch.float32) -> None:
        self.theta = nn.Parameter(torch.linspace(0.5, 2.0, gates, dtype=dtype))
        self.draws: list[Tensor] = []
        self.graphs: list[bool] = []

    def __call__(self, z: Tensor) -> Tensor:
        self.draws.append(z)
        self.graphs.append(torch.is_grad_enabled())
        return ((self.theta * z).sum() - 1).square() + 2.3


def value_is_the_first_evaluation(make: MakeEstimator) -> None:
    """A scalar with a graph. It equals f at the first draw, which also trains the weights."""
    f, gates = _Loss(4), torch.full((4,), 0.5, requires_grad=True)
    value = make()(f, gates)
    require(value.shape == () and value.requires_grad, "the value must be a scalar with a graph")
    require(f.graphs == sorted(f.graphs, reverse=True), "the evaluation with a graph comes first")
    if make().forwards:  # an exact sum is not one evaluation
        require(value.item() == f(f.draws[0]).item(), "the value must be f at the first draw")


def draws_are_as_announced(make: MakeEstimator) -> None:
    """At most ``forwards`` evaluations. With ``drops``, none asks for a derivative in z."""
    estimator, f = make(), _Loss(8)
    estimator(f, torch.full((8,), 0.5, requires_grad=True))
    most = estimator.forwards or 2**8
    require(len(f.draws) <= most, f"{len(f.draws)} evaluations, but forwards says {most}")
    if estimator.drops:
        require(
            not any(z.requires_grad for z in f.draws), "drops is True, but z requires a gradient"
        )
        require(
            all(bool(((z == 0) | (z == 1)).all()) for z in f.draws),
            "drops is True, but a draw is not 0 or 1",
        )


def mean_is_the_gradient(make: MakeEstimator) -> None:
    """An estimator that says ``unbiased`` passes a chi-square test against enumeration."""
    if not make().unbiased:
        return
    pi = torch.tensor([0.3, 0.6, 0.85], dtype=torch.float64)
    slope = torch.tensor([1.0, -1.5, 0.7], dtype=torch.float64)

    def f(z: Tensor) -> Tensor:
        return 2.3 + torch.exp((slope * z).sum()) + z[0] * z[1]

    leaf = pi.clone().requires_grad_()
    bits = [torch.tensor(z, dtype=pi.dtype) for z in product((0.0, 1.0), repeat=3)]
    expectation = torch.stack([torch.where(z > 0, leaf, 1 - leaf).prod() * f(z) for z in bits])
    (exact,) = torch.autograd.grad(expectation.sum(), leaf)
    estimator, random, found = make(), torch.Generator().manual_seed(7), list[Tensor]()
    for _ in range(DRAWS):
        probs = pi.clone().requires_grad_()
        (gradient,) = torch.autograd.grad(estimator(f, probs, random), probs)
        found.append(gradient)
    estimates = torch.stack(found[DRAWS // 10 :])  # what it tunes has settled by then
    error = estimates.mean(0) - exact
    covariance = torch.cov(estimates.T) / len(estimates) + 1e-24 * torch.eye(3, dtype=pi.dtype)
    distance = float(error @ torch.linalg.solve(covariance, error))
    require(
        distance < CRITICAL,
        f"unbiased is True, but the mean of {len(estimates)} estimates is {estimates.mean(0)} and "
        f"the gradient is {exact} (chi-square {distance:.1f}, at most {CRITICAL})",
    )


def saturated_gates_get_no_gradient(make: MakeEstimator) -> None:
    """Gates at exactly 0 and 1 get gradient 0; nothing is NaN or infinite."""
    for seed in range(10):
        phi = torch.tensor([-1.0, 0.1, 1.0], requires_grad=True)
        gates = Bernoulli(HardSigmoid(7))(phi)  # 0, 0.6 and 1
        make()(_Loss(3), gates, torch.Generator().manual_seed(seed)).backward()  # type: ignore[no-untyped-call]
        assert phi.grad is not None
        require(bool(phi.grad.isfinite().all()), f"the gradient is {phi.grad}")
        require(float(phi.grad[[0, 2]].abs().max()) <= 1e-15, "a saturated gate has a gradient")


def a_seed_fixes_the_estimate(make: MakeEstimator) -> None:
    """The same seed gives the same value and gradient. The global generator is not used."""
    before, found = torch.get_rng_state(), []
    for _ in range(2):
        pi = torch.linspace(0.1, 0.9, 9).requires_grad_()
        value = make()(_Loss(9), pi, torch.Generator().manual_seed(5))
        (gradient,) = torch.autograd.grad(value, pi)
        found.append(torch.cat([value.detach()[None], gradient]))
    require(torch.equal(*found), "the same seed gives another value or gradient")
    require(torch.equal(torch.get_rng_state(), before), "the global random numbers were used, too")


def half_precision_is_widened(make: MakeEstimator) -> None:
    """A loss in bfloat16 gives a value and a gradient in float32."""
    pi = torch.full((3,), 0.5, requires_grad=True)
    value = make()(lambda z: z.sum().bfloat16(), pi)
    (gradient,) = torch.autograd.grad(value, pi)
    require(
        value.dtype == gradient.dtype == torch.float32,
        f"a loss in bfloat16 gives {value.dtype} and a gradient in {gradient.dtype}",
    )


def evaluation_leaves_the_state(make: MakeEstimator) -> None:
    """Without a graph (evaluation), nothing is kept for the next step."""
    estimator, fresh, pi = make(), make(), torch.full((3,), 0.5)
    with torch.no_grad():
        estimator(_Loss(3), pi, torch.Generator().manual_seed(1))
    one, other = (e(_Loss(3), pi, torch.Generator().manual_seed(2)) for e in (estimator, fresh))
    require(torch.equal(one, other), "a call without a graph changed the estimator's state")


def state_can_be_saved(make: MakeEstimator) -> None:
    """A saved state makes another estimator continue bit for bit."""
    first, second = make(), make()
    if first.state is None or second.state is None:
        return
    random = torch.Generator().manual_seed(0)

    def steps(estimator: Estimator, random: torch.Generator) -> list[Tensor]:
        found: list[Tensor] = []
        for _ in range(3):
            pi = torch.linspace(0.1, 0.9, 9).requires_grad_()
            found += torch.autograd.grad(estimator(_Loss(9), pi, random), pi)
        return found

    steps(first, random)
    second.state.load_state_dict(copy.deepcopy(first.state.state_dict()))
    again = random.clone_state()
    pairs = zip(steps(first, random), steps(second, again), strict=True)
    require(all(torch.equal(a, b) for a, b in pairs), "a loaded state continues differently")


ESTIMATOR_CHECKS: tuple[Callable[[MakeEstimator], None], ...] = (
    value_is_the_first_evaluation,
    draws_are_as_announced,
    mean_is_the_gradient,
    saturated_gates_get_no_gradient,
    a_seed_fixes_the_estimate,
    half_precision_is_widened,
    evaluation_leaves_the_state,
    state_can_be_saved,
)
