"""Atoms: classes, pins and marks."""

import numpy as np

from l0arm.planning.atoms import Atoms


def test_uniting_is_transitive_and_passes_pins_on() -> None:
    atoms = Atoms()
    a, b, c = (atoms.create(name, 0, 3) for name in "abc")
    atoms.unite(a, b, "")
    atoms.pin(c[1:2], "why")
    atoms.unite(b, c, "")
    assert atoms.roots(c).tolist() == atoms.roots(a).tolist() == a.tolist()
    assert [atoms.reason(int(atom)) for atom in a] == [None, "why", None]
    assert atoms.free_roots(b).tolist() == [a[0], 0, a[2]]


def test_an_atom_united_with_one_that_is_never_cut_is_pinned() -> None:
    atoms = Atoms()
    a = atoms.create("a", 0, 3)
    atoms.unite(a, np.array([0, 0, a[2]]), "met nothing")
    assert [atoms.reason(int(atom)) for atom in a] == ["met nothing", "met nothing", None]
    assert atoms.roots(a).tolist() == a.tolist()  # pinned one by one, not united


def test_the_first_reason_is_the_one_reported() -> None:
    atoms = Atoms()
    a = atoms.create("a", 0, 1)
    atoms.pin(a, "first")
    atoms.pin(a, "second")
    assert atoms.reason(int(a[0])) == "first"


def test_uniting_along_axes() -> None:
    atoms = Atoms()
    grid = atoms.create("a", 0, 12).reshape(2, 3, 2)
    atoms.unite_along(grid, (0, 2), "")
    roots = atoms.roots(grid)
    assert len(np.unique(roots)) == 3
    assert (roots == roots[:1, :, :1]).all()


def test_a_position_may_read_and_make() -> None:
    atoms = Atoms()
    read, made, both, idle = atoms.create("a", 0, 4).tolist()
    atoms.mark_read(np.array([read, both]))
    atoms.mark_made(np.array([made, both]))
    assert [atoms.is_read(a) for a in (read, made, both, idle)] == [True, False, True, False]
    assert [atoms.is_made(a) for a in (read, made, both, idle)] == [False, True, True, True]


def test_unused_operations_unite_but_pin_nothing() -> None:
    atoms = Atoms()
    rows, columns, others = (atoms.create(name, 0, 2) for name in "abc")
    atoms.mark_read(columns)
    atoms.unite(rows, columns, "")
    atoms.pin(others[1:], "before")
    with atoms.unused():
        atoms.mark_read(others)
        atoms.pin(rows, "inside")
        atoms.unite(rows[1:], others[1:], "")
    assert atoms.reason(int(columns[0])) is None
    assert atoms.reason(int(columns[1])) == "before"  # by the pin of what it is united with
    assert atoms.free_roots(np.stack([rows, columns, others])).tolist() == [
        [int(rows[0]), 0],
        [int(rows[0]), 0],
        [int(others[0]), 0],
    ]
    assert atoms.roots_read() == {int(rows[0])}  # what only an unused operation reads is no unit
