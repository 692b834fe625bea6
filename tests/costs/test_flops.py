"""Expected FLOPs: 2 per multiply-add of the rows and columns that are open."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from l0arm import Gated, Group, Slice, sparsify
from l0arm.costs import FlopsMeter, count_flops, expected_flops
from l0arm.methods import l0
from l0arm.models import MLP, LeNet5, WideResNet

IMAGE = torch.zeros(1, 1, 28, 28)


def flops_of_mlp(a: float, b: float, c: float) -> float:
    return 2 * (a * b + b * c + 10 * c)


def flops_of_lenet(a: float, b: float, flat: float, d: float) -> float:
    return 2 * (24 * 24 * 25 * a + 8 * 8 * 25 * a * b + flat * d + 10 * d)


def flops_of_draw(z: Tensor) -> float:
    """LeNet: a flat input counts if its filter is open too."""
    a, b, c, d = torch.split(z.double(), [20, 50, 800, 500])
    flat = (b.repeat_interleave(16) * c).sum()
    return float(flops_of_lenet(a.sum(), b.sum(), flat, d.sum()))


@pytest.fixture
def lenet() -> Gated:
    gated = sparsify(LeNet5(), method="l0-arm", lam=0.0)
    torch.nn.init.uniform_(gated.phi, -0.3, 0.3)
    return gated


@pytest.fixture
def mlp() -> Gated:
    gated = sparsify(MLP(), method="l0-ar", lam=0.0)
    torch.nn.init.uniform_(gated.phi, -0.3, 0.3)
    return gated


def test_dense_flops_of_lenet(lenet: Gated) -> None:
    assert expected_flops(lenet, IMAGE).dense == flops_of_lenet(20, 50, 800, 500) == 4_586_000


def test_dense_flops_of_the_mlp(mlp: Gated) -> None:
    assert expected_flops(mlp, IMAGE).dense == flops_of_mlp(784, 300, 100) == 532_400


@pytest.mark.parametrize("given", [{"example_inputs": IMAGE}, {"example_kwargs": {"x": IMAGE}}])
def test_without_inputs_the_stored_example_is_used(given: dict[str, Any]) -> None:
    gated = sparsify(LeNet5(), lam=0.0, **given)
    assert expected_flops(gated) == expected_flops(gated, IMAGE) == FlopsMeter(gated)()
    more = IMAGE.expand(3, -1, -1, -1)
    assert expected_flops(gated, more).dense == 3 * expected_flops(gated).dense  # given ones count


def test_without_inputs_and_example_the_error_names_the_way_out(lenet: Gated) -> None:
    with pytest.raises(ValueError, match=r"expected_flops\(gated, x\), or give example_inputs"):
        expected_flops(lenet)


def test_flops_grow_with_the_batch(lenet: Gated) -> None:
    one, three = (expected_flops(lenet, IMAGE.expand(n, -1, -1, -1)) for n in (1, 3))
    assert three.inference == pytest.approx(3 * one.inference, rel=1e-12)


def test_expected_flops_of_the_mlp_in_closed_form(mlp: Gated) -> None:
    widths = [pi.double().sum().item() for pi in mlp.per_group(mlp.gates.probs).values()]
    expected = flops_of_mlp(*widths)
    assert expected_flops(mlp, IMAGE).inference == pytest.approx(expected, rel=1e-5)


def test_expected_flops_of_lenet_in_closed_form(lenet: Gated) -> None:
    expected = flops_of_draw(lenet.gates.probs.detach())  # gates are independent: E of products
    assert expected_flops(lenet, IMAGE).inference == pytest.approx(expected, rel=1e-5)


def test_a_draw_spends_its_closed_form(lenet: Gated) -> None:
    for _ in range(20):
        z = lenet.gates.sample()
        with lenet.drawn(z), torch.no_grad(), FlopCounterMode(display=False) as counter:
            lenet(IMAGE)
        assert counter.get_total_flops() == flops_of_draw(z)


def test_expected_flops_are_the_mean_over_draws(lenet: Gated) -> None:
    draws = torch.tensor([flops_of_draw(lenet.gates.sample()) for _ in range(2000)])
    error = draws.std() / 2000**0.5
    assert abs(draws.mean() - expected_flops(lenet, IMAGE).inference) < 3 * error


def test_expected_flops_of_a_wide_resnet_in_closed_form() -> None:
    gated = sparsify(WideResNet(10, 1), method="l0-arm", lam=0.0)
    x = torch.zeros(1, 3, 8, 8)
    saved = 0.0
    means = gated.per_group(gated.gates.probs.double())
    for n, (block, side) in enumerate(zip(gated.model.blocks, (8, 4, 2), strict=True)):
        macs = side**2 * 9 * (block.conv1.weight[0, :, 0, 0].numel() + block.conv2.out_channels)
        saved += 2 * macs * (1 - means[f"blocks.{n}.conv1"]).sum().item()
    expected = expected_flops(gated, x)
    assert expected.inference == pytest.approx(expected.dense - saved, rel=1e-5)


@pytest.mark.parametrize(("method", "passes"), [("l0-ar", 1), ("l0-arm", 2), ("l0-disarm", 2)])
def test_training_costs_the_forward_passes_of_the_estimator(method: str, passes: int) -> None:
    flops = expected_flops(sparsify(LeNet5(), method=method, lam=0.0), IMAGE)
    assert flops.training == passes * flops.inference
    assert flops.step == (passes + 2) * flops.inference  # one backward, at twice a forward


def test_gates_on_single_weights_save_nothing() -> None:
    group = Group("w", 12, reads=(Slice("weight", None),))
    flops = expected_flops(sparsify(nn.Linear(4, 3), [group], lam=0.0), torch.zeros(1, 4))
    assert flops.inference == flops.dense == 24


def test_the_compact_network_spends_its_closed_form(network: Any) -> None:
    net = network("lenet5")
    z = net.gates(0)
    z[70:870] = 1.0
    a, b, _, d = (int(part.sum()) for part in torch.split(z, [20, 50, 800, 500]))
    small = net.gated(z=z).compact()
    assert count_flops(small, IMAGE.double()) == flops_of_lenet(a, b, 16 * b, d)


def test_counting_leaves_modes_statistics_and_random_numbers_alone() -> None:
    model = WideResNet(10, 1, dropout=0.3)
    gated = sparsify(model, lam=0.0)
    model.norm.eval()
    modes = [module.training for module in gated.modules()]
    before, state = model.blocks[0].norm2.running_mean.clone(), torch.get_rng_state()
    expected_flops(gated, torch.randn(2, 3, 8, 8, generator=torch.Generator()))
    count_flops(model, torch.randn(2, 3, 8, 8, generator=torch.Generator()))
    assert [module.training for module in gated.modules()] == modes
    assert torch.equal(model.blocks[0].norm2.running_mean, before)
    assert torch.equal(torch.get_rng_state(), state)


def test_a_tied_weight_is_counted_under_both_its_names() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.a, self.b = (nn.Linear(4, 4) for _ in range(3))
            self.b.weight = self.a.weight

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            hidden = self.first(x)
            return self.a(hidden) + self.b(hidden)

    made = (Slice("first.weight", 0), Slice("first.bias", 0))
    group = Group("hidden", 4, reads=(Slice("a.weight", 1),), makes=made)
    gated = sparsify(Tied(), [group], method="l0-ar", lam=0.0)
    gated.phi.data.fill_(0.0)  # half open
    assert expected_flops(gated, torch.rand(1, 4)).inference == 0.5 * 2 * 3 * 16


def test_the_exact_estimator_has_no_flops_of_a_step() -> None:
    gated = sparsify(MLP((4, 3, 2)), method=l0(0.0, estimator="exact"))
    with pytest.raises(ValueError, match="fixed number of passes"):
        expected_flops(gated, torch.rand(1, 4))


@pytest.mark.parametrize(("estimator", "passes"), [("straight-through", 1), ("rebar", 3)])
def test_an_estimator_that_cannot_drop_trains_at_the_dense_cost(
    estimator: str, passes: int
) -> None:
    gated = sparsify(LeNet5(), method=l0(0.0, estimator=estimator))
    flops = expected_flops(gated, IMAGE)
    assert flops.training == passes * flops.dense
    assert flops.inference < 0.5 * flops.dense


ESTIMATES = [("arm", {}), ("muprop", {}), ("straight-through", {}), ("relax", {})]
ESTIMATES += [("double-cv", {}), ("double-cv", {"samples": 4}), ("rebar", {"rate": 0.0})]
ESTIMATES += [("rebar", {})]


@pytest.mark.parametrize(("estimator", "options"), ESTIMATES, ids=str)
def test_the_flops_of_a_step_are_enough_for_one(estimator: str, options: dict[str, Any]) -> None:
    """A backward is counted as two forwards; the first layer needs no gradient of its input."""
    torch.manual_seed(0)
    method = l0(0.0, estimator=estimator, **options)
    gated = sparsify(MLP(), method=method, execution="masked")
    gated.phi.data.fill_(0.9)  # open: what is masked is computed
    gated.phi.data[:50] = 0.0  # so that the two draws of ARM differ
    x, y = torch.rand(10, 784), torch.randint(10, (10,))
    with FlopCounterMode(display=False) as counter:
        gated.loss(lambda: F.cross_entropy(gated(x), y)).backward()
    assert 0.6 < counter.get_total_flops() / expected_flops(gated, x).step <= 1.1
