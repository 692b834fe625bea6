"""Widths that suit BatchNorm in channels-last: closed units stand in, and change nothing."""

import pytest
import torch
import torch.nn.functional as F
from tests.helpers.planned_networks import planned_network
from torch import Tensor, nn
from torch.testing import assert_close

from l0arm import Gated, sparsify

LAST = torch.channels_last


@pytest.fixture(params=[(1, 4), (2, 8)], ids=["one thread", "two threads"])
def multiple(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """What widths of float64 are a multiple of, with so many threads."""
    threads, number = request.param
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    return int(number)


def network(memory_format: torch.memory_format = LAST) -> nn.Module:
    """Two gated convolutions of 21 and 18 filters, each with a norm."""
    layers = [
        *(nn.Conv2d(3, 21, 3, padding=1, bias=False), nn.BatchNorm2d(21), nn.ReLU()),
        *(nn.Conv2d(21, 18, 3, padding=1), nn.BatchNorm2d(18), nn.ReLU()),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(18, 4)),
    ]
    model = nn.Sequential(*layers).double().train()
    return model.to(memory_format=memory_format)  # type: ignore[call-overload,no-any-return]


def gated_network(model: nn.Module, execution: str = "sliced") -> Gated:
    gated = sparsify(model, example_inputs=images(2), method="l0-disarm", lam=1e-5)
    gated.execution = execution  # type: ignore[assignment]
    return gated


def images(count: int) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(count, 3, 8, 8, generator=generator, dtype=torch.float64)
    return x.contiguous(memory_format=LAST)


def computed(gated: Gated, z: Tensor) -> list[int]:
    """How many filters the two convolutions compute under a draw."""
    widths: list[int] = []
    handles = [
        m.register_forward_hook(lambda _m, _x, y: widths.append(y.shape[1]))
        for m in gated.model.modules()
        if isinstance(m, nn.Conv2d)
    ]
    with gated.drawn(z):
        gated.model(images(2))
    for handle in handles:
        handle.remove()
    return widths


def opened(gated: Gated, *counts: int) -> Tensor:
    """The last units of every group open, so many of each: stand-ins are among them."""
    z = torch.zeros(gated.phi.numel(), dtype=gated.phi.dtype)
    for number, count in enumerate(counts):
        z[gated.layout.span(number)][-count:] = 1.0
    return z


def left_by(gated: Gated, z: Tensor) -> dict[str, Tensor]:
    """Loss, gradients and buffers of one step."""
    with gated.drawn(z):
        loss = F.cross_entropy(gated.model(images(6)), torch.arange(6) % 4)
    loss.backward()  # type: ignore[no-untyped-call]
    gradients = {n: p.grad for n, p in gated.model.named_parameters() if p.grad is not None}
    return {"loss": loss.detach(), **gradients, **dict(gated.model.named_buffers())}


@pytest.mark.parametrize("counts", [(1, 1), (5, 7), (9, 11), (13, 16), (20, 17), (21, 3)])
def test_stand_ins_change_nothing(multiple: int, counts: tuple[int, int]) -> None:
    torch.manual_seed(0)
    model = network()
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    results = []
    for execution in ("sliced", "masked"):
        model = network()
        model.load_state_dict(state)
        gated = gated_network(model, execution)
        results.append(left_by(gated, opened(gated, *counts)))
    assert_close(*results, rtol=1e-10, atol=1e-12)


def test_closed_units_get_no_gradient(multiple: int) -> None:
    gated = gated_network(network())
    left = left_by(gated, opened(gated, 5, 7))
    for name in ("0.weight", "1.weight", "1.bias"):
        assert not left[name][:-5].any()  # exactly 0
        assert left[name][-5:].any()
    assert not left["3.weight"][:, :-5].any()


def test_widths_are_multiples_as_far_as_there_are_units(multiple: int) -> None:
    gated = gated_network(network())

    def suited(count: int, units: int) -> int:
        up = -(-count // multiple) * multiple
        return up if up <= units else count

    for counts in [(1, 1), (5, 7), (9, 11), (20, 17), (21, 18)]:
        expected = [suited(counts[0], 21), suited(counts[1], 18)]
        assert computed(gated, opened(gated, *counts)) == expected


def test_a_draw_that_follows_another_has_the_same_widths(multiple: int) -> None:
    gated = gated_network(network())
    z = opened(gated, 9, 11)
    before = computed(gated, z)
    one_more = opened(gated, 10, 11)
    assert computed(gated, one_more) == before == computed(gated, z)
    many = -(-9 // multiple) * multiple + 1  # one more than the stand-ins of before
    assert computed(gated, opened(gated, many, 11))[0] > before[0]


def test_only_training_with_binary_draws_in_channels_last_rounds(multiple: int) -> None:
    gated = gated_network(network())
    z = opened(gated, 9, 11)
    assert computed(gated, z) != [9, 11]
    assert computed(gated, z.clone().requires_grad_()) == [9, 11]
    assert computed(gated.eval(), z) == [9, 11]
    assert computed(gated_network(network(torch.contiguous_format)), z) == [9, 11]


def test_the_compact_network_has_the_open_units_alone(multiple: int) -> None:
    gated = gated_network(network())
    with torch.no_grad():
        gated.phi.copy_(opened(gated, 9, 11) * 4 - 2)
    small = gated.compact(example_inputs=images(2))
    assert [m.out_channels for m in small.modules() if isinstance(m, nn.Conv2d)] == [9, 11]


def test_layers_without_a_norm_and_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    model = network().float()
    gated = sparsify(model, example_inputs=images(2).float(), lam=0.0)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 8)
    assert gated.engine.widths.multiples() == (16, 16)
    model.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
    assert gated.engine.widths.multiples() is None
    plain = nn.Sequential(nn.Conv2d(3, 21, 3), nn.ReLU(), nn.Conv2d(21, 4, 3))
    plain.to(memory_format=LAST)  # type: ignore[call-overload]
    planned = sparsify(plain, example_inputs=images(2).float(), lam=0.0)
    assert planned.engine.widths.multiples() is None


@pytest.mark.filterwarnings("ignore::l0arm.EmptyGroupWarning")
@pytest.mark.parametrize(
    "name",
    ["post-activation resnet", "mobilenet", "resnext", "densenet", "inception", "u-net"],
)
def test_planned_networks_with_stand_ins_equal_their_masked_execution(name: str) -> None:
    model, inputs = planned_network(name)
    model.train().to(memory_format=LAST)  # type: ignore[call-overload]
    gated = sparsify(model, example_inputs=inputs, method="l0-disarm", lam=0.0)
    state = {key: tensor.clone() for key, tensor in model.state_dict().items()}
    stand_ins = 0
    for seed in range(6):
        generator = torch.Generator().manual_seed(seed)
        share = (0.3, 0.5, 0.8)[seed % 3]
        z = (torch.rand(gated.phi.shape, generator=generator) < share).to(gated.phi.dtype)
        results = []
        for execution in ("sliced", "masked"):
            model.load_state_dict(state)
            model.zero_grad()
            gated.execution = execution
            with gated.drawn(z) as draw:
                loss = gated(*inputs).square().sum()
            loss.backward()
            if execution == "sliced":
                stand_ins += sum(draw.units_kept(n) - left for n, left in enumerate(draw.counts))
            gradients = [p.grad.clone() for p in model.parameters() if p.grad is not None]
            buffers = {key: b.clone() for key, b in model.named_buffers()}
            results.append((loss.detach(), gradients, buffers))
        assert_close(*results, rtol=1e-10, atol=1e-10)
    assert stand_ins > 0
