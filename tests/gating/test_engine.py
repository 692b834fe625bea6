"""The engine: hooks that install a draw for the length of a call, whatever the call does."""

import copy
import io
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.testing import assert_close

from l0arm import Gated, Group, Patch, Slice, sparsify

EXECUTIONS = ["sliced", "masked"]


def gate(model: nn.Module, *groups: Group, execution: str = "sliced") -> Gated:
    return sparsify(model.double(), groups, "l0-arm", lam=0.0, execution=execution).double()


def layer(module: nn.Module) -> list[Slice]:
    return [Slice(f"{module}.weight", 0), Slice(f"{module}.bias", 0)]


class Chain(nn.Module):
    """a -> norm -> relu -> b, the six hidden units gated."""

    group = Group(
        "h",
        6,
        reads=(Slice("b.weight", 1),),
        makes=(
            *layer("a"),
            *(Slice(f"norm.{k}", 0) for k in ("weight", "bias", "running_mean", "running_var")),
        ),
        initial=0.9,
    )

    def __init__(self) -> None:
        super().__init__()
        self.a, self.norm, self.b = nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.b(F.relu(self.norm(self.a(x))))


Z = torch.tensor([1, 0, 1, 1, 0, 0]).double()
FRACTIONS = torch.tensor([0.6, 0, 0.7, 1, 0, 0.9]).double()


# After the call, the model is as it was


def breaking(error: BaseException) -> Any:
    def hook(*_: object) -> None:
        raise error

    return hook


@pytest.mark.parametrize("error", [RuntimeError("stop"), KeyboardInterrupt()])
@pytest.mark.parametrize("place", ["a", "norm", "b"])
@pytest.mark.parametrize("hook", ["register_forward_hook", "register_forward_pre_hook"])
@pytest.mark.parametrize("execution", EXECUTIONS)
def test_an_exception_leaves_the_model_whole(
    execution: str, hook: str, place: str, error: BaseException
) -> None:
    gated = gate(Chain(), Chain.group, execution=execution)
    before = copy.deepcopy(gated.state_dict())
    handle = getattr(gated.model.get_submodule(place), hook)(breaking(error))
    with pytest.raises(type(error)), gated.drawn(Z, writes=False):
        gated(torch.randn(5, 4).double())
    handle.remove()
    assert_close(dict(gated.state_dict()), dict(before), rtol=0, atol=0)


@pytest.mark.parametrize("error", [RuntimeError("stop"), KeyboardInterrupt()])
def test_after_an_exception_the_next_call_is_right(error: BaseException) -> None:
    gated = gate(Chain(), Chain.group).eval()
    x = torch.randn(5, 4).double()
    with gated.drawn(Z):
        expected = gated(x)
    handle = gated.model.b.register_forward_pre_hook(breaking(error))
    with pytest.raises(type(error)):
        gated(x)
    handle.remove()
    with gated.drawn(Z):
        assert torch.equal(gated(x), expected)


def test_a_failing_closure_leaves_no_draw_in_force() -> None:
    gated = gate(Chain(), Chain.group)
    with pytest.raises(ZeroDivisionError):
        gated.loss(lambda: 1 / 0)
    assert gated.engine.current is None


@pytest.mark.parametrize("execution", EXECUTIONS)
def test_a_call_keeps_the_parameters_themselves(execution: str) -> None:
    gated = gate(Chain(), Chain.group, execution=execution)
    before = [*map(id, gated.model.parameters()), *map(id, gated.model.buffers())]
    gated.loss(lambda: gated(torch.randn(5, 4).double()).square().mean()).total.backward()
    after = [*map(id, gated.model.parameters()), *map(id, gated.model.buffers())]
    assert after == before


# Copies


def test_a_deepcopy_trains_on_its_own() -> None:
    gated = gate(Chain(), Chain.group)
    before = copy.deepcopy(gated.state_dict())
    twin = copy.deepcopy(gated)
    optimizer = torch.optim.SGD(twin.parameters(), 0.1)
    twin.loss(lambda: twin(torch.randn(5, 4).double()).square().mean()).total.backward()
    optimizer.step()
    assert_close(dict(gated.state_dict()), dict(before), rtol=0, atol=0)
    assert not torch.equal(twin.model.b.weight, gated.model.b.weight)


def test_a_deepcopy_has_its_own_draw() -> None:
    gated = gate(Chain(), Chain.group).eval()
    twin = copy.deepcopy(gated)
    x = torch.randn(5, 4).double()
    dense = gated.model(x)
    with gated.drawn(Z):
        assert torch.equal(twin.model(x), dense)
        assert not torch.allclose(gated.model(x), dense)
    with twin.drawn(Z):
        assert torch.equal(gated.model(x), dense)
        assert not torch.allclose(twin.model(x), dense)


def test_a_deepcopy_in_the_middle_of_training_works() -> None:
    gated = gate(Chain(), Chain.group)
    x = torch.randn(5, 4).double()
    loss = gated.loss(lambda: gated(x).square().mean())
    twin = copy.deepcopy(gated)  # as an average of weights is made, before backward
    loss.total.backward()
    assert torch.equal(twin.eval()(x), gated.eval()(x))


def test_pickling_keeps_the_gates() -> None:
    gated = gate(Chain(), Chain.group).eval()
    file = io.BytesIO()
    torch.save(gated, file)
    file.seek(0)
    again = torch.load(file, weights_only=False)
    x = torch.randn(5, 4).double()
    with gated.drawn(Z), again.drawn(Z):
        assert torch.equal(again(x), gated(x))


def test_parameters_replaced_by_a_move_are_still_cut() -> None:
    gated = sparsify(Chain(), [Chain.group], lam=0.0)
    gated.load_state_dict({k: v.double() for k, v in gated.state_dict().items()}, assign=True)
    x = torch.randn(5, 4).double()
    with gated.drawn(Z):
        come = gated.eval()(x)
    assert_close(come, by_hand(gated.model, x, Z))


def by_hand(model: nn.Module, x: Tensor, z: Tensor) -> Tensor:
    """Chain with its hidden activations multiplied by z, from the parameters of a model."""
    h = F.relu(model.norm(F.linear(x, model.a.weight, model.a.bias)))
    return F.linear(h * z, model.b.weight, model.b.bias)


# Shapes of model


class Twice(nn.Module):
    """One linear layer and one norm, each called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.norm, self.b = nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.b(torch.tanh(self.norm(self.a(x))))
        return self.b(torch.tanh(self.norm(self.a(x))))


@pytest.mark.parametrize("execution", EXECUTIONS)
def test_a_module_called_twice_is_cut_and_written_twice(execution: str) -> None:
    gated = gate(Twice(), Chain.group, execution=execution)
    plain = copy.deepcopy(gated.model)
    x = torch.randn(5, 4).double()
    with gated.drawn(FRACTIONS):
        came = gated(x)
    plain.b.register_forward_pre_hook(lambda _, args: (args[0] * FRACTIONS,))
    assert_close(came, plain(x))
    rows = FRACTIONS != 0
    assert_close(gated.model.norm.running_var[rows], plain.norm.running_var[rows])
    assert gated.model.norm.num_batches_tracked.item() == 2


class TiedReaders(nn.Module):
    """Two readers with one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(4, 6), nn.Linear(6, 3), nn.Linear(6, 3)
        self.c.weight = self.b.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.b(torch.tanh(self.a(x))) + self.c(torch.sin(self.a(x)))


@pytest.mark.parametrize("execution", EXECUTIONS)
@pytest.mark.parametrize(
    "reads",
    [
        (Slice("b.weight", 1),),
        (Slice("c.weight", 1),),
        (Slice("b.weight", 1), Slice("c.weight", 1)),
        (Slice("b.weight", 1), Slice("c.weight", -1)),
    ],
)
def test_tied_readers_fold_a_gate_once(reads: tuple[Slice, ...], execution: str) -> None:
    gated = gate(TiedReaders(), Group("h", 6, reads, layer("a")), execution=execution)
    m, x = gated.model, torch.randn(5, 4).double()
    h = m.a(x)
    expected = F.linear(torch.tanh(h) * FRACTIONS, m.b.weight, m.b.bias)
    expected = expected + F.linear(torch.sin(h) * FRACTIONS, m.b.weight, m.c.bias)
    with gated.drawn(FRACTIONS):
        assert_close(gated(x), expected)


class TiedEmbedding(nn.Module):
    """A head with the embedding's weight: the width is made and read by one tensor."""

    group = Group("d", 6, reads=(Slice("head.weight", 1),), makes=(Slice("embed.weight", 1),))

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(7, 6), nn.Linear(6, 7, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(torch.tanh(self.embed(tokens)))


@pytest.mark.parametrize("execution", EXECUTIONS)
def test_a_tensor_both_made_and_read_has_a_binary_z_bar(execution: str) -> None:
    gated = gate(TiedEmbedding(), TiedEmbedding.group, execution=execution).eval()
    gated.phi.data = torch.linspace(-0.2, 0.3, 6).double()
    z = (gated.gates.probs > 0.5).double()
    assert torch.equal(gated.deterministic(), z)
    weight = gated.model.embed.weight
    assert_close(gated(torch.arange(7)), F.linear(torch.tanh(weight) * z, weight))


def test_a_fraction_on_a_tensor_both_made_and_read_is_refused() -> None:
    gated = gate(TiedEmbedding(), TiedEmbedding.group)
    message = "group 'd' reads and makes one tensor .*twice; pass gates that are 0 or 1, or untie"
    with pytest.raises(ValueError, match=message), gated.drawn(FRACTIONS):
        pass


class Concat(nn.Module):
    """Two producers, one norm and one reader of both: the second group starts at position 4."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(3, 4), nn.Linear(3, 2)
        self.norm, self.c = nn.BatchNorm1d(6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.c(F.relu(self.norm(torch.cat([self.a(x), self.b(x)], 1))))

    @staticmethod
    def groups() -> tuple[Group, ...]:
        def group(name: str, positions: range) -> Group:
            index = tuple((p,) for p in positions)
            norm = [f"norm.{k}" for k in ("weight", "bias", "running_mean", "running_var")]
            return Group(
                name,
                len(positions),
                reads=(Slice("c.weight", 1, index=index),),
                makes=(*layer(name), *(Slice(k, 0, index=index) for k in norm)),
            )

        return group("a", range(4)), group("b", range(4, 6))


@pytest.mark.parametrize("execution", EXECUTIONS)
@pytest.mark.parametrize("closed", [(1, 4), (4, 5), (0, 1, 2, 3), (5,), (0, 1, 2, 3, 4, 5)])
@pytest.mark.filterwarnings("ignore::l0arm.EmptyGroupWarning")
def test_an_index_places_a_group_behind_another(closed: tuple[int, ...], execution: str) -> None:
    gated = gate(Concat(), *Concat.groups(), execution=execution)
    plain = copy.deepcopy(gated.model)
    z = torch.ones(6).double()
    z[list(closed)] = 0
    plain.c.register_forward_pre_hook(lambda _, args: (args[0] * z,))
    x = torch.randn(5, 3).double()
    with gated.drawn(z):
        assert_close(gated(x), plain(x))
    rows = z != 0
    for key in ("running_mean", "running_var"):
        now, oracle = gated.model.norm.get_buffer(key), plain.norm.get_buffer(key)
        assert_close(now[rows], oracle[rows])
        assert (now[~rows] == (0 if key == "running_mean" else 1)).all()


class Heads(nn.Module):
    """Attention by hand: four heads of width 2, cut as wholes; num_heads counts them."""

    group = Group(
        "heads",
        4,
        reads=(Slice("out.weight", 1, block=2),),
        makes=tuple(Slice(f"{n}.{k}", 0, block=2) for n in "qkv" for k in ("weight", "bias")),
        patches=(Patch("", "num_heads"), Patch("", "width", per_unit=2)),
    )

    def __init__(self) -> None:
        super().__init__()
        self.num_heads, self.width = 4, 8
        self.q, self.k, self.v, self.out = (nn.Linear(8, 8) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        heads = [f(x).view(*x.shape[:2], self.num_heads, -1) for f in (self.q, self.k, self.v)]
        mixed = F.scaled_dot_product_attention(*(h.transpose(1, 2) for h in heads))
        return self.out(mixed.transpose(1, 2).reshape(*x.shape[:2], self.width))


@pytest.mark.parametrize("execution", EXECUTIONS)
@pytest.mark.parametrize("z", [(1, 0, 1, 1), (0, 0, 0, 1), (0.5, 0.9, 0, 0), (0, 0, 0, 0)])
@pytest.mark.filterwarnings("ignore::l0arm.EmptyGroupWarning")
def test_patched_attributes_count_whole_heads(z: tuple[float, ...], execution: str) -> None:
    gated = gate(Heads(), Heads.group, execution=execution)
    plain, gates = copy.deepcopy(gated.model), torch.tensor(z).double()
    plain.out.register_forward_pre_hook(lambda _, args: (args[0] * gates.repeat_interleave(2),))
    x = torch.randn(2, 5, 8).double()
    with gated.drawn(gates):
        assert_close(gated(x), plain(x))
    assert (gated.model.num_heads, gated.model.width) == (4, 8)


class Depthwise(nn.Module):
    """A depthwise convolution between producer and reader: its groups count the channels."""

    group = Group(
        "c",
        5,
        reads=(Slice("last.weight", 0),),  # a transposed convolution has its inputs first
        makes=(*layer("first"), *layer("deep")),
        patches=(Patch("deep", "groups"),),
    )

    def __init__(self) -> None:
        super().__init__()
        self.first, self.deep = nn.Conv2d(2, 5, 1), nn.Conv2d(5, 5, 3, groups=5)
        self.last = nn.ConvTranspose2d(5, 2, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(F.relu(self.deep(self.first(x))))


@pytest.mark.parametrize("execution", EXECUTIONS)
@pytest.mark.parametrize("z", [(1, 0, 1, 1, 0), (0, 0, 0, 0.3, 0), (0, 0, 0, 0, 0)])
@pytest.mark.filterwarnings("ignore::l0arm.EmptyGroupWarning")
def test_a_depthwise_convolution_loses_whole_channels(z: tuple[float, ...], execution: str) -> None:
    gated = gate(Depthwise(), Depthwise.group, execution=execution)
    plain, gates = copy.deepcopy(gated.model), torch.tensor(z).double()
    plain.last.register_forward_pre_hook(lambda _, args: (args[0] * gates.view(-1, 1, 1),))
    x = torch.randn(2, 2, 6, 6).double()
    with gated.drawn(gates):
        assert_close(gated(x), plain(x))


class Scaled(nn.Module):
    """A module with two arguments; its caller names them, and the input last."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 2)

    def forward(self, x: Tensor, scale: Tensor) -> Tensor:
        return self.linear(x) * scale.sum(-1, keepdim=True)


class ByKeyword(nn.Module):
    group = Group("in", 6, reads=(Slice("inner.linear.weight", 1),), select=Slice("inner", -1))

    def __init__(self, *, positional: bool) -> None:
        super().__init__()
        self.inner, self.positional = Scaled(), positional

    def forward(self, x: Tensor) -> Tensor:
        scale = torch.ones(5, 6).double()
        return self.inner(x, scale) if self.positional else self.inner(scale=scale, x=x)


@pytest.mark.parametrize("execution", EXECUTIONS)
@pytest.mark.parametrize("positional", [True, False])
def test_the_input_is_gathered_however_it_is_passed(positional: bool, execution: str) -> None:
    gated = gate(ByKeyword(positional=positional), ByKeyword.group, execution=execution)
    x = torch.randn(5, 6).double()
    expected = gated.model.inner.linear(x * FRACTIONS) * 6
    with gated.drawn(FRACTIONS):
        assert_close(gated(x), expected)


# Gates on single weights


@pytest.mark.parametrize("execution", EXECUTIONS)
@pytest.mark.parametrize("z", [Z, FRACTIONS, 0 * Z])
@pytest.mark.filterwarnings("ignore::l0arm.EmptyGroupWarning")
def test_a_gate_per_weight_multiplies_the_weight(z: Tensor, execution: str) -> None:
    group = Group("w", 6, reads=(Slice("weight", None),), counts=(Slice("weight", None),))
    gated = gate(nn.Linear(3, 2), group, execution=execution)
    x = torch.randn(5, 3).double()
    m = gated.model
    expected = F.linear(x, m.weight * z.view(2, 3), m.bias)
    expected.square().mean().backward()
    gradient, m.weight.grad = m.weight.grad, None
    with gated.drawn(z):
        came = gated(x)
    came.square().mean().backward()
    assert_close((came, m.weight.grad), (expected, gradient))


@pytest.mark.parametrize("execution", EXECUTIONS)
def test_gates_on_weights_and_on_units_multiply(execution: str) -> None:
    weights = Group("w", 18, reads=(Slice("b.weight", None),))
    gated = gate(Chain(), Chain.group, weights, execution=execution).eval()
    m, x = gated.model, torch.randn(5, 4).double()
    z = torch.rand(18).double().round()
    h = F.relu(m.norm(m.a(x))) * FRACTIONS
    with gated.drawn(torch.cat([FRACTIONS, z])):
        assert_close(gated(x), F.linear(h, m.b.weight * z.view(3, 6), m.b.bias))


# Modules with a fast path of their own


def test_an_encoder_layer_takes_no_fast_path_around_the_gates() -> None:
    layer_ = nn.TransformerEncoderLayer(8, 2, 6, 0.0, batch_first=True)
    group = Group("ff", 6, reads=(Slice("linear2.weight", 1),), makes=layer("linear1"))
    gated = gate(layer_, group).eval()
    x = torch.randn(2, 3, 8).double()
    plain = copy.deepcopy(gated.model)
    with torch.no_grad(), gated.drawn(FRACTIONS):
        came = gated(x)
    plain.linear2.weight.data *= FRACTIONS
    assert_close(came, plain(x).detach())


def test_a_recurrent_layer_reads_its_gated_weights() -> None:
    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn = nn.LSTM(3, 2, batch_first=True)

        def forward(self, x: Tensor) -> Tensor:
            return self.rnn(x)[0]

    gated = gate(Recurrent(), Group("w", 24, reads=(Slice("rnn.weight_ih_l0", None),)))
    plain, x = copy.deepcopy(gated.model), torch.randn(2, 4, 3).double()
    z = torch.rand(24).double().round()
    plain.rnn.weight_ih_l0.data *= z.view(8, 3)
    with gated.drawn(z):
        came = gated(x)
    assert_close(came, plain(x))
    assert not torch.allclose(gated.model(x), came)  # and afterwards it is dense again
