"""Labels of values under mixing, element-wise operators and views."""

import numpy as np
import pytest

from l0arm.planning.atoms import Atoms
from l0arm.planning.rules.base import Site, Trace
from l0arm.planning.rules.pointwise import combine
from l0arm.planning.rules.views import matching, reshape
from l0arm.planning.space import Factor, Space, collapse, mixed, without


def site(shape: tuple[int, ...] = ()) -> Site:
    return Site(Trace(), "op", ("layer",), (shape,))


def labelled(here: Site, shape: tuple[int, ...], *dims: int) -> Space:
    """A value with fresh atoms over some dimensions, joint if several."""
    sizes = [shape[d] for d in dims]
    atoms = here.atoms.create(f"t{len(here.atoms.origins)}", 0, int(np.prod(sizes)))
    return Space(shape, (Factor(dims, atoms.reshape(sizes)),))


def classes(here: Site, space: Space) -> int:
    """How many units of a value are free."""
    found = np.concatenate([here.atoms.free_roots(f.atoms).ravel() for f in space.factors])
    return len(set(found.tolist()) - {0})


def test_a_joint_dimension_is_united_across_and_a_lone_one_pinned() -> None:
    here = site()
    x = labelled(here, (2, 3, 4), 1, 2)
    heads = collapse(here.atoms, x.factors[0], {2}, "mixed")
    assert (heads.dims, heads.atoms.shape) == ((1,), (3,))
    assert classes(here, x) == 3
    mixed(here.atoms, x, {1}, "then this too")
    assert here.atoms.reason(int(heads.atoms[0])) == "then this too"


def test_a_reduced_dimension_is_gone_and_the_others_move_up() -> None:
    here = site()
    x = labelled(here, (2, 3, 4), 2)
    y = without(here.atoms, x, {1}, "summed")
    assert (y.shape, y.factors[0].dims) == ((2, 4), (1,))
    assert classes(here, y) == 4


def test_equal_labels_unite_position_by_position() -> None:
    here = site()
    x, y = labelled(here, (2, 5), 1), labelled(here, (5,), 0)
    assert classes(here, combine(here, [x, y], (2, 5))) == 5
    assert here.atoms.roots(x.factors[0].atoms).tolist() == (
        here.atoms.roots(y.factors[0].atoms).tolist()
    )


def test_a_broadcast_operand_pins_nothing_but_a_full_one_without_labels_does() -> None:
    here = site()
    x = labelled(here, (2, 5), 1)
    assert classes(here, combine(here, [x, Space((2, 1))], (2, 5))) == 5
    assert classes(here, combine(here, [x, Space((2, 5), fixed="an input")], (2, 5))) == 0
    reason = here.atoms.reason(int(x.factors[0].atoms[0]))
    assert reason == "op in 'layer' meets positions that are never cut (an input)"


def test_whole_heads_win_over_positions_within() -> None:
    """Labels (heads, positions) meet a vector over positions, such as the weight of a norm."""
    here = site()
    x, weight = labelled(here, (2, 3, 4), 1, 2), labelled(here, (4,), 0)
    result = combine(here, [x, weight], (2, 3, 4))
    assert classes(here, result) == 3
    assert classes(here, weight) == 0


def test_labels_of_heads_unite_the_positions_of_each() -> None:
    here = site()
    x, scores = labelled(here, (2, 3, 4), 1, 2), labelled(here, (3, 1), 0)
    assert classes(here, combine(here, [x, scores], (2, 3, 4))) == 3
    assert classes(here, scores) == 3


@pytest.mark.parametrize(
    ("before", "after", "pieces"),
    [
        ((2, 12), (2, 3, 4), [(1, 1), (1, 2)]),
        ((2, 3, 4), (6, 4), [(2, 1), (1, 1)]),
        ((4, 6), (6, 4), [(2, 2)]),
        ((2, 1, 3), (2, 3), [(1, 1), (2, 1)]),
        ((3,), (3, 1, 1), [(1, 1), (0, 1), (0, 1)]),
    ],
)
def test_runs_of_equal_size(
    before: tuple[int, ...], after: tuple[int, ...], pieces: list[tuple[int, int]]
) -> None:
    assert [(len(a), len(b)) for a, b in matching(before, after)] == pieces


@pytest.mark.parametrize("shape", [(2, 60), (2, 3, 4, 5), (2, 20, 3), (10, 12), (2, 6, 10)])
def test_labels_follow_elements_through_a_view(shape: tuple[int, ...]) -> None:
    """Against an array that carries each element's label."""
    here = site()
    x = labelled(here, (2, 12, 5), 1)
    carried = np.broadcast_to(x.factors[0].atoms[None, :, None], x.shape).reshape(shape)
    (factor,) = reshape(here, x, shape).factors
    spread = factor.atoms.reshape([n if d in factor.dims else 1 for d, n in enumerate(shape)])
    assert (np.broadcast_to(spread, shape) == carried).all()


def test_two_labelled_dimensions_do_not_merge() -> None:
    here = site()
    x = Space((3, 4), (*labelled(here, (3, 4), 0).factors, *labelled(here, (3, 4), 1).factors))
    assert reshape(here, x, (12,)).factors == ()
    assert classes(here, x) == 0


def test_every_trace_has_its_own_atoms() -> None:
    assert Trace().atoms is not Trace().atoms
    assert isinstance(Trace().atoms, Atoms)
