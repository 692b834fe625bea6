"""The rules of single operators, and how a rule is added."""

from collections.abc import Callable, Iterator

import pytest
import torch
import torch.nn.functional as F
from tests.helpers.plans import reasons
from torch import Tensor, nn

from l0arm.planning import PlanError, plan, rule
from l0arm.planning.rules import elementwise
from l0arm.planning.rules.base import find, forget


class Between(nn.Module):
    """Two layers with something between them."""

    def __init__(self, between: Callable[[Tensor], Tensor], width: int = 8) -> None:
        super().__init__()
        self.a, self.b, self.between = nn.Linear(4, 8), nn.Linear(width, 2), between

    def forward(self, x: Tensor) -> Tensor:
        return self.b(self.between(self.a(x)))


def units(between: Callable[[Tensor], Tensor], width: int = 8) -> list[tuple[int, ...]] | str:
    """The rows of ``a`` that go together, or why none does."""
    try:
        (group,) = plan(Between(between, width), torch.rand(3, 4)).groups
    except PlanError as error:
        return str(error).splitlines()[1].strip().removeprefix("a: ")
    rows = (group.makes or group.counts)[0]  # literal sizes leave it masked
    return list(rows.positions(group.units, 8))


EACH = [(n,) for n in range(8)]
PAIRS = [(n, n + 4) for n in range(4)]
NEXT = [(2 * n, 2 * n + 1) for n in range(4)]

CASES: dict[str, tuple[Callable[[Tensor], Tensor], int, object]] = {
    "activation": (F.gelu, 8, EACH),
    "x f(x)": (lambda x: x * torch.tanh(x) + 1, 8, EACH),
    "glu": (F.glu, 4, PAIRS),
    "halves multiplied": (lambda x: x[:, :4] * x[:, 4:], 4, PAIRS),
    "halves exchanged": (lambda x: torch.cat(x.chunk(2, 1)[::-1], 1), 8, PAIRS),
    "pairs summed": (lambda x: x.view(3, 4, 2).sum(2), 4, NEXT),
    "pairs of positions normalised": (
        lambda x: F.normalize(x.view(3, 4, 2), dim=2).flatten(1),
        8,
        NEXT,
    ),
    "twice the same": (lambda x: torch.cat([x, x], 1), 16, EACH),
    "stacked": (lambda x: torch.stack([x, -x], 1).amax(1), 8, EACH),
    "padded": (lambda x: F.pad(x, (1, 2)), 11, EACH),
    "repeated": (lambda x: x.repeat_interleave(2, 1), 16, EACH),
    "there and back": (lambda x: x.t().reshape(2, 4, 3).permute(2, 0, 1).flatten(1), 8, PAIRS),
    "dimensions moved": (
        lambda x: (
            x.view(3, 2, 4).movedim(1, -1).movedim((0, 2), (2, 0)).permute(2, 0, 1).flatten(1)
        ),
        8,
        PAIRS,
    ),
    "transposed by einsum": (lambda x: torch.einsum("bc->cb", x).tanh().t(), 8, EACH),
    "summed by einsum": (lambda x: torch.einsum("bc->b", x)[:, None], 1, "einsum mixes the units"),
    "squares by einsum": (lambda x: torch.einsum("bc,bc,b->bc", x, x, x.new_ones(3)), 8, EACH),
    "patches": (lambda x: F.unfold(x[:, :, None, None], 1).squeeze(2), 8, EACH),
    "added to itself reversed": (lambda x: x + x.flip(1), 8, "flip(1) mixes the units"),
    "softmax": (lambda x: x.softmax(-1), 8, "softmax mixes the units"),
    "mean removed": (lambda x: x - x.mean(1, keepdim=True), 8, "mean(1) mixes the units"),
    "sum of all": (lambda x: x / x.sum(), 8, "sum mixes the units"),
    "sorted": (lambda x: x.sort(1).values, 8, "sort mixes the units"),
    "unknown": (lambda x: x.cummax(1).values, 8, "aten.cummax.default has no rule (cummax)"),
    "three of eight": (lambda x: x[:, 2:5], 3, "slice picks positions by number"),
    "one of eight": (lambda x: x[:, 2].unsqueeze(1), 1, "select picks a position by number"),
    "a product with itself": (
        lambda x: (x @ x.t()) @ torch.ones(3, 8),
        8,
        "matmul sums over units outside of any weight",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_what_goes_together_between_two_layers(name: str) -> None:
    between, width, expected = CASES[name]
    assert units(between, width) == expected


@pytest.fixture
def _own_rule() -> Iterator[None]:
    rule("aten.erfinv.default")(elementwise)
    yield
    forget("aten.erfinv.default")


@pytest.mark.usefixtures("_own_rule")
def test_a_rule_of_ones_own() -> None:
    assert units(lambda x: torch.erfinv(torch.tanh(x))) == EACH


def test_without_it_the_operator_is_unknown() -> None:
    reason = units(lambda x: torch.erfinv(torch.tanh(x)))
    assert reason == "aten.erfinv.default has no rule (erfinv)"


def test_rules_are_found_by_name_overload_and_in_place() -> None:
    assert find("aten.relu_.default") is find("aten.relu.default") is elementwise
    assert find("aten.mean.dim") is not find("aten.mean.default")
    assert find("aten.cummax.default") is None


@pytest.mark.parametrize("equation", ["bi,oi->bo", "bi,oi"])
def test_einsum_reads_like_a_linear_layer(equation: str) -> None:
    class Einsum(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.weight = nn.Linear(4, 8), nn.Parameter(torch.rand(5, 8))

        def forward(self, x: Tensor) -> Tensor:
            return torch.einsum(equation, self.a(x), self.weight)

    (group,) = plan(Einsum(), torch.rand(3, 4)).groups
    assert [(s.tensor, s.dim) for s in group.reads] == [("weight", 1)]


def test_heads_in_the_weights_themselves() -> None:
    """Projections of shape (in, heads, size): heads are a dimension of the weight."""

    class Heads(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.qkv = nn.Parameter(torch.randn(3, 8, 4, 2))
            self.out = nn.Parameter(torch.randn(4, 2, 8))

        def forward(self, x: Tensor) -> Tensor:
            q, k, v = (torch.einsum("bnd,dhe->bhne", x, w) for w in self.qkv.unbind(0))
            y = F.scaled_dot_product_attention(q, k, v)
            return torch.einsum("bhne,hed->bnd", y, self.out)

    (entry,) = plan(Heads(), torch.rand(2, 5, 8)).planned
    assert (entry.group.units, entry.execution) == (4, "as is")
    assert {(s.tensor, s.dim) for s in entry.group.makes} >= {("qkv", 2)}


def test_padded_channels_of_a_shortcut_are_never_cut() -> None:
    """A shortcut without weights pads its channels with zeros; what meets them stays."""

    class Padded(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 8, 3, padding=1)
            self.c = nn.Conv2d(8, 2, 1)

        def forward(self, x: Tensor) -> Tensor:
            x = F.relu(self.a(x))
            return self.c(F.relu(self.b(x) + F.pad(x, (0, 0, 0, 0, 2, 2))))

    (group,) = plan(Padded(), torch.rand(2, 3, 5, 5)).groups
    assert group.units == 4
    cut = {s.tensor: s.positions(4, 8 if s.tensor[0] in "bc" else 4) for s in group.reads[-1:]}
    assert cut == {"c.weight": ((2,), (3,), (4,), (5,))}


def test_a_bias_table_looked_up_by_position_goes_by_heads() -> None:
    """As in windowed attention: a row for every offset, a column for every head."""

    class Biased(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.qkv, self.o = nn.Linear(8, 24), nn.Linear(8, 8)
            self.table = nn.Parameter(torch.randn(9, 4))
            self.register_buffer("offsets", torch.arange(5)[:, None] - torch.arange(5) + 4)

        def forward(self, x: Tensor) -> Tensor:
            q, k, v = (t.unflatten(-1, (-1, 2)).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
            bias = self.table[self.offsets].permute(2, 0, 1)
            y = F.scaled_dot_product_attention(q, k, v, attn_mask=bias)
            return self.o(y.transpose(1, 2).flatten(2))

    (entry,) = plan(Biased(), torch.rand(2, 5, 8)).planned
    assert (entry.group.units, entry.execution) == (4, "as is")
    assert ("table", 1) in {(piece.tensor, piece.dim) for piece in entry.group.makes}


def test_a_rule_that_fails_pins_with_its_error_as_reason() -> None:
    def broken(site: object, *args: object) -> None:
        raise IndexError("no such thing")

    rule("aten.erfinv.default")(broken)  # type: ignore[type-var]
    try:
        reason = units(lambda x: torch.erfinv(torch.tanh(x)))
    finally:
        forget("aten.erfinv.default")
    assert reason == "erfinv: its rule failed (IndexError: no such thing)"


def test_an_empty_slice_is_no_obstacle() -> None:
    assert units(lambda x: torch.cat([x, x[:, 8:]], 1)) == "slice picks positions by number"
    assert units(lambda x: x[:, 0:8]) == EACH


def test_rows_of_a_table_are_never_cut() -> None:
    """Not even where a tied head makes units of them that a layer reads."""

    class Lookup(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.head = nn.Embedding(7, 6), nn.Linear(6, 7, bias=False)
            self.head.weight, self.last = self.embed.weight, nn.Linear(7, 2)

        def forward(self, ids: Tensor) -> Tensor:
            return self.last(torch.relu(self.head(torch.tanh(self.embed(ids)))))

    found = plan(Lookup(), torch.randint(7, (2, 3)))
    assert [(g.name, g.units) for g in found.groups] == [("embed", 6)]
    assert all(piece.tensor != "last.weight" for piece in found.groups[0].reads)


def test_learned_keys_and_values() -> None:
    """Their number is that of the softmax's terms and their size sets the scale: neither is cut.

    Only the size of the values is free.
    """

    class Memory(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.q, self.o = nn.Linear(4, 6), nn.Linear(5, 3)
            self.keys, self.values = (nn.Parameter(torch.randn(1, 7, n)) for n in (6, 5))

        def forward(self, x: Tensor) -> Tensor:
            return self.o(F.scaled_dot_product_attention(self.q(x), self.keys, self.values))

    found = plan(Memory(), torch.rand(2, 3, 4))
    assert [(g.name, g.units) for g in found.groups] == [("values", 5)]
    skipped = reasons(found)
    assert skipped["q"] == skipped["keys"] == "scaled_dot_product_attention mixes the units"
