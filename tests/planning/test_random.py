"""Networks drawn at random: whatever is planned, the small network computes what zeroing does."""

import warnings
from collections.abc import Callable

import pytest
import torch
from tests.helpers.closing import with_zeros
from tests.helpers.random_images import RandomNet
from tests.helpers.random_reshapes import RandomReshapes
from tests.helpers.random_sequences import RandomMixture, RandomRecurrent, RandomTransformer
from torch import Tensor, nn

from l0arm import Gated, sparsify
from l0arm.planning import PlanError, plan

SHARE = 0.85  # of the networks can lose a third of their weights, or more
KINDS: dict[str, tuple[Callable[[int], nn.Module], tuple[int, ...]]] = {
    "images": (RandomNet, (2, 3, 5, 5)),
    "transformers": (RandomTransformer, (2, 6, 5)),
    "mixtures": (RandomMixture, (2, 6, 5)),
    "recurrent": (RandomRecurrent, (2, 6, 5)),
    "reshapes": (RandomReshapes, (2, 3, 4, 4)),
}


def shaken(model: nn.Module) -> nn.Module:
    with torch.no_grad():
        for key, tensor in (*model.named_parameters(), *model.named_buffers()):
            if key.endswith("running_var"):
                tensor.uniform_(0.5, 1.5)
            elif tensor.is_floating_point():
                tensor.add_(0.2 * torch.randn_like(tensor))
    return model


def masks(gated: Gated) -> dict[str, Tensor]:
    """At random; all but the first unit of every group; the last unit of every group alone."""
    units = [group.units for group in gated.groups]
    return {
        "half": (torch.rand(sum(units)) < 0.5).double(),
        "most": torch.cat([torch.arange(n) > 0 for n in units]).double(),
        "last": torch.cat([torch.arange(n) == n - 1 for n in units]).double(),
    }


def difference(gated: Gated, x: Tensor, z: Tensor) -> tuple[float, int]:
    """Of the small network, and of sliced execution, from zeros by hand; and the weights left.

    In eval and in train mode.
    """
    gated.phi.data = torch.where(z > 0, 9.0, -9.0).to(gated.phi)
    worst = 0.0
    small = gated.compact()
    oracle = with_zeros(gated.release(), gated.groups, z)
    gated.engine.attach(gated.model)
    with torch.no_grad():
        for training in (False, True):
            want = oracle.train(training)(x)
            with gated.train(training).drawn(z):
                results = [small.train(training)(x), gated(x)]
            for got in results:
                worst = max(worst, float((want - got).abs().max() / want.abs().max()))
    return worst, sum(p.numel() for p in small.parameters())


def compacted(kind: str, seed: int) -> bool:
    """Check one network under three masks; whether a third of its weights can be removed."""
    make, shape = KINDS[kind]
    torch.manual_seed(seed)
    model, x = shaken(make(seed)).double(), torch.rand(shape, dtype=torch.float64)
    whole = sum(p.numel() for p in model.parameters())
    try:
        found = plan(model, x, stream=True, depth=True, head_dims=True)
    except PlanError:
        return False
    gated = sparsify(model, found, "l0-arm", lam=0.0).double()
    left = whole
    for name, z in masks(gated).items():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a group may be closed whole
            worst, left = difference(gated, x, z)
        assert worst < 1e-10, f"{kind}, seed {seed}, {name}"
    return left <= whole * 2 / 3


def run(counts: dict[str, int]) -> None:
    """Check so many networks of every kind, and the share of them that is compacted."""
    good = {kind: [compacted(kind, seed) for seed in range(n)] for kind, n in counts.items()}
    shares = {kind: f"{sum(each)} of {len(each)}" for kind, each in good.items()}
    every = [each for found in good.values() for each in found]
    assert sum(every) >= SHARE * len(every), shares


def test_sixty_networks() -> None:
    run({"images": 16, "transformers": 8, "mixtures": 6, "recurrent": 10, "reshapes": 20})


@pytest.mark.slow
def test_five_hundred_networks() -> None:
    run({"images": 160, "transformers": 100, "mixtures": 70, "recurrent": 70, "reshapes": 100})
