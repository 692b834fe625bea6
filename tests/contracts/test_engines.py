"""Mixed precision, accumulation, clipping, compilation: the loss is one like any other.

(Activation checkpointing: tests/groups/test_recomputation.py, equal to the bit.)
"""

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.testing import assert_close
from torch.utils.checkpoint import checkpoint

from l0arm import Gated, sparsify
from l0arm.models import MLP

METHODS = ["l0-arm", "l0-disarm", "l0-ar", "l0-hc"]
every_method = pytest.mark.parametrize("method", METHODS)
X, Y = torch.rand(32, 20, generator=torch.Generator().manual_seed(0)), torch.arange(32) % 4


def network(method: str = "l0-arm", **options: Any) -> Gated:
    torch.manual_seed(0)
    options = {"initial": 0.8, **options}
    gated = sparsify(MLP((20, 16, 12, 4)), method=method, lam=1e-2, **options)
    torch.manual_seed(1)
    return gated


def gradients(gated: Gated, loss: Tensor) -> dict[str, Tensor]:
    loss.backward()
    return {name: p.grad.clone() for name, p in gated.named_parameters()}


def data_loss(gated: Gated, x: Tensor = X, y: Tensor = Y) -> Tensor:
    return F.cross_entropy(gated(x), y)


@every_method
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_gives_the_plain_gradients_to_its_resolution(
    method: str, dtype: torch.dtype
) -> None:
    """Within 8 units of the half type's last place, relative to the norm of each gradient.

    phi's estimate is a difference of losses: there the loss, not the difference, sets the scale.
    """
    plain, rough = network(method), network(method)
    exact = gradients(plain, plain.loss(lambda: data_loss(plain)).total)
    torch.manual_seed(1)
    with torch.autocast("cpu", dtype):
        loss = rough.loss(lambda: data_loss(rough))
    assert loss.total.dtype == torch.float32
    resolution = 8 * torch.finfo(dtype).eps
    for name, grad in gradients(rough, loss.total).items():
        scale = exact[name].norm() + (loss.data if name == "phi" else 0.0)
        assert (grad - exact[name]).norm() <= resolution * scale


@every_method
def test_a_scaler_scales_and_unscales_the_estimate_like_any_gradient(method: str) -> None:
    plain, scaled = network(method), network(method)
    with torch.autocast("cpu", torch.bfloat16):
        expected = gradients(plain, plain.loss(lambda: data_loss(plain)).total)
        torch.manual_seed(1)
        loss = scaled.loss(lambda: data_loss(scaled))
    optimizer = torch.optim.SGD(scaled.parameter_groups(lr=0.1))
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**8)  # a power of 2 rounds nothing
    scaler.scale(loss.total).backward()
    largest = scaled.phi.grad.abs().max()
    scaler.unscale_(optimizer)
    assert_close(largest, expected["phi"].abs().max() * 2**8)
    for name, parameter in scaled.named_parameters():
        assert_close(parameter.grad, expected[name], rtol=1e-6, atol=1e-9)


def test_a_step_that_overflows_is_skipped_by_the_scaler_for_phi_too() -> None:
    gated = network()
    before = copy.deepcopy(gated.state_dict())
    optimizer = torch.optim.SGD(gated.parameter_groups(lr=0.1))
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127)
    scaler.scale(gated.loss(lambda: 1e3 * data_loss(gated)).total).backward()
    scaler.step(optimizer)
    scaler.update()
    assert scaler.get_scale() < 2.0**127
    assert all(torch.equal(gated.state_dict()[key], before[key]) for key in before)


@every_method
def test_accumulated_gradients_are_the_mean_of_those_of_the_parts(method: str) -> None:
    """Each part has a draw of its own; to the bit, given the draws."""
    apart, summed = network(method), network(method)
    parts = list(zip(X.split(8), Y.split(8), strict=True))
    each = []
    for x, y in parts:
        apart.zero_grad()
        part = apart.loss(lambda x=x, y=y: data_loss(apart, x, y)).total / len(parts)
        each.append(gradients(apart, part))
    torch.manual_seed(1)
    for x, y in parts:
        (summed.loss(lambda x=x, y=y: data_loss(summed, x, y)).total / len(parts)).backward()
    for name, parameter in summed.named_parameters():
        total = each[0][name]
        for more in each[1:]:
            total = total + more[name]
        assert torch.equal(parameter.grad, total)


def test_clipping_reaches_phi_and_keeps_the_direction() -> None:
    gated = network()
    before = gradients(gated, gated.loss(lambda: data_loss(gated)).total)
    norm = torch.nn.utils.clip_grad_norm_(gated.parameters(), 1e-3)
    by_hand = torch.stack([grad.square().sum() for grad in before.values()]).sum().sqrt()
    assert_close(norm, by_hand)
    for name, parameter in gated.named_parameters():
        assert_close(parameter.grad, before[name] * 1e-3 / by_hand, rtol=1e-4, atol=1e-10)


@pytest.mark.parametrize("execution", ["sliced", "masked"])
@every_method
def test_activation_checkpointing_changes_nothing(method: str, execution: Any) -> None:
    plain, saving = network(method, execution=execution), network(method, execution=execution)
    expected = gradients(plain, plain.loss(lambda: data_loss(plain)).total)
    torch.manual_seed(1)

    def recomputed() -> Tensor:
        return F.cross_entropy(checkpoint(saving, X, use_reentrant=False), Y)

    for name, grad in gradients(saving, saving.loss(recomputed).total).items():
        assert torch.equal(grad, expected[name])


# torch.compile, with a backend that runs the captured graph as it is

# Its tracer asks every tensor for .grad, and torch warns of those that are not leaves.
uncounted = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")


def compiled_layers(gated: Gated, backend: Any) -> None:
    for layer in (gated.model.fc1, gated.model.fc2, gated.model.fc3):
        layer.forward = torch.compile(layer.forward, backend=backend, dynamic=False)


@uncounted
def test_compiled_layers_of_a_masked_model_train_the_same_without_recompiling() -> None:
    from torch._dynamo.testing import CompileCounter

    torch._dynamo.reset()
    counter, counts, results = CompileCounter(), [], []
    for compiles in (False, True):
        gated = network(execution="masked", sharing=False, initial=0.5)  # no group opens whole
        if compiles:
            compiled_layers(gated, counter)
        optimizer = torch.optim.Adam(gated.parameter_groups(lr=1e-2))
        for _ in range(6):
            optimizer.zero_grad()
            gated.loss(lambda gated=gated: data_loss(gated)).backward()
            optimizer.step()
            counts.append(counter.frame_count)
        results.append([p.detach() for p in gated.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))
    assert counts[-6] == counts[-1] == 6  # three layers, with and without a graph


@uncounted
def test_a_compiled_model_with_gates_inside_is_refused() -> None:
    torch._dynamo.reset()
    gated = network(execution="masked")
    gated.model.forward = torch.compile(gated.model.forward, backend="eager")
    with pytest.raises(RuntimeError, match="took the gates into its graph"):
        gated.loss(lambda: data_loss(gated))


def test_a_compact_model_compiles() -> None:
    torch._dynamo.reset()
    small = network().compact().eval()
    compiled = torch.compile(small, backend="eager", fullgraph=True)
    assert_close(compiled(X), small(X))
