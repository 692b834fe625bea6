"""What every method promises, as functions that check it on a small network."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from l0arm._sparsify import sparsify
from l0arm.contracts import Method
from l0arm.gating import EmptyGroupWarning, Gated
from l0arm.metrics import architecture
from l0arm.models import MLP
from l0arm.testing._errors import require

MakeMethod = Callable[[], Method]
CloseUnits = Callable[[Gated, Tensor], None]  # closes the gates of a boolean mask


def check_method(make: MakeMethod, close: CloseUnits | None = None) -> None:
    """Check a method on a small network.

    Args:
        make: Makes the method.
        close: Closes the gates of a mask by writing ``gated.phi``. Needed only for gate families
            whose ``initial`` does not depend on the keep probability.

    Raises:
        ContractError: If it breaks the contract of :class:`l0arm.contracts.Method`.

    Example:
        >>> from l0arm.methods import l0_disarm
        >>> check_method(lambda: l0_disarm(1e-3))
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", EmptyGroupWarning)  # layers of a few units
        for check in METHOD_CHECKS:
            check(make)
        compaction_is_exact(make, close)


def gated_mlp(make: MakeMethod) -> tuple[Gated, Tensor, Tensor]:
    """A small gated network, and a batch for it."""
    gated = sparsify(MLP((12, 9, 7, 4)), method=make())
    return gated, torch.rand(20, 12), torch.arange(20) % 4


def train_step(gated: Gated, optimizer: torch.optim.Optimizer, x: Tensor, y: Tensor) -> float:
    """One step of training as a user's loop does it; returns the loss."""
    loss = gated.loss(lambda: F.cross_entropy(gated(x), y))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if gated.method.after_step is not None:
        gated.method.after_step(gated, optimizer)
    return loss.total.item()


def enter_all_stages(gated: Gated) -> None:
    """Enter every stage of the method, without held-out images."""
    for stage in gated.method.stages:
        if stage.enter is not None:
            stage.enter(gated, None)


def method_is_a_value(make: MakeMethod) -> None:
    """Two methods with the same options are equal, so that runs can be compared."""
    require(make() == make(), "two methods with the same options differ; use frozen dataclasses")


def loss_is_data_plus_penalty(make: MakeMethod) -> None:
    """``loss.total`` is the closure's value plus the penalty, which scales with its weight."""
    gated, x, y = gated_mlp(make)
    values: list[float] = []

    def closure() -> Tensor:
        value = F.cross_entropy(gated(x), y)
        values.append(value.item())
        return value

    loss = gated.loss(closure)
    expected = values[0] + gated.penalty().item()
    require(
        abs(loss.total.item() - expected) <= 1e-5 * max(1.0, abs(expected)),
        f"the loss is {loss.total.item()}, data and penalty add up to {expected}",
    )
    gated.penalty_weight = 0.25
    quarter = gated.penalty().item()
    require(
        abs(4 * quarter - loss.penalty.item()) <= 1e-5 * max(1.0, abs(loss.penalty.item())),
        "the penalty does not scale with penalty_weight",
    )


def gradients_are_finite(make: MakeMethod) -> None:
    """After a step, also under bfloat16 autocast, every parameter and gradient is finite."""
    for autocast in (False, True):
        gated, x, y = gated_mlp(make)
        optimizer = torch.optim.Adam(gated.parameter_groups(lr=1e-2))
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            train_step(gated, optimizer, x, y)
        for name, parameter in gated.named_parameters():
            grad = parameter if parameter.grad is None else parameter.grad
            finite = bool(parameter.isfinite().all() and grad.isfinite().all())
            require(finite, f"'{name}' or its gradient is not finite after a step")


def a_seed_fixes_the_training(make: MakeMethod) -> None:
    """The same seed gives the same losses, bit for bit."""
    found = []
    for _ in range(2):
        torch.manual_seed(3)
        gated, x, y = gated_mlp(make)
        optimizer = torch.optim.Adam(gated.parameter_groups(lr=1e-2))
        found.append([train_step(gated, optimizer, x, y) for _ in range(3)])
    require(found[0] == found[1], f"the same seed gives other losses: {found}")


def checkpoint_continues_bit_for_bit(make: MakeMethod) -> None:
    """A state dict makes another network the same, in evaluation and in training."""
    gated, x, y = gated_mlp(make)
    enter_all_stages(gated)
    optimizer = torch.optim.Adam(gated.parameter_groups(lr=1e-2))
    train_step(gated, optimizer, x, y)
    twin, _, _ = gated_mlp(make)
    twin.load_state_dict(gated.state_dict())
    require(torch.equal(twin.deterministic(), gated.deterministic()), "z-bar is another one")
    found = []
    for network in (gated, twin):
        torch.manual_seed(5)
        optimizer = torch.optim.Adam(network.parameter_groups(lr=1e-2))
        found.append([train_step(network, optimizer, x, y) for _ in range(3)])
    require(found[0] == found[1], f"training continues differently: {found}")


def copies_are_independent(make: MakeMethod) -> None:
    """Training a deep copy leaves the original as it was."""
    gated, x, y = gated_mlp(make)
    twin = copy.deepcopy(gated)
    before = {key: value.clone() for key, value in gated.state_dict().items()}
    train_step(twin, torch.optim.Adam(twin.parameter_groups(lr=1e-2)), x, y)
    same = all(torch.equal(value, before[key]) for key, value in gated.state_dict().items())
    require(same, "training a copy changed the original; keep state in extras or in phi")


def release_restores_the_model(make: MakeMethod) -> None:
    """After ``release`` the user's model has no hook, no noise and no replaced forward."""
    gated, x, y = gated_mlp(make)
    keys = list(gated.model.state_dict())
    train_step(gated, torch.optim.Adam(gated.parameter_groups(lr=1e-2)), x, y)
    model = gated.release()
    require(list(model.state_dict()) == keys, "the model has other tensors than before")
    require(all("forward" not in vars(m) for m in model.modules()), "a forward was replaced")
    require(torch.equal(model(x), model(x)), "the released model is random")


METHOD_CHECKS: tuple[Callable[[MakeMethod], None], ...] = (
    method_is_a_value,
    loss_is_data_plus_penalty,
    gradients_are_finite,
    a_seed_fixes_the_training,
    checkpoint_continues_bit_for_bit,
    copies_are_independent,
    release_restores_the_model,
)


def compaction_is_exact(make: MakeMethod, close: CloseUnits | None = None) -> None:
    """The compact network equals z-bar's in float64, and has the units that are counted."""
    gated, x, _ = gated_mlp(make)
    enter_all_stages(gated)
    closed = torch.arange(gated.layout.gates) % 3 == 0
    with torch.no_grad():
        if close is None:
            mean = torch.where(closed, 0.02, 0.98)
            gated.phi.copy_(gated.method.gate.initial(mean))
        else:
            close(gated, closed)
    gated, x = gated.double().eval(), x.double()
    open_units = [
        int((part != 0).sum()) for part in gated.per_group(gated.deterministic()).values()
    ]
    require(
        architecture(gated) == "-".join(map(str, open_units)), "architecture() counts other units"
    )
    small = gated.compact().eval()
    with torch.no_grad():
        expected, found = gated(x), small(x)
    error = float((found - expected).abs().max() / expected.abs().max().clamp(min=1.0))
    require(error <= 1e-10, f"the compact network differs by {error:.1e}")
