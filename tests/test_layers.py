"""Imports point one way, from the command line down to the gates; siblings do not know each other.

models stands beside the layers: anything above gating may use it.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import l0arm

ROOT = Path(l0arm.__file__).parent
LAYERS = [  # from the bottom; a module may import from any layer below its own
    {"files", "precision"},
    {"checkpoints", "contracts"},
    {"gates"},
    {"gating"},
    {"equality"},
    {"costs"},
    {"estimators", "penalties"},
    {"compaction", "distributed", "export"},
    {"methods"},
    {"metrics", "planning"},
    {"_search", "_sparsify"},
    {"pruning"},
    {"_public"},  # the public names
    {"l0arm"},  # the package itself
    {"integrations", "testing"},
    {"lab"},
    {"__main__"},
]
LAB_LAYERS = [  # inside the lab, from the bottom
    {"errors"},
    {"importing"},
    {"data", "recipes"},
    {"runs"},
    {"tables"},
    {"plots"},
    {"bench"},
    {"cli"},
]
LEVEL = {name: level for level, layer in enumerate(LAYERS) for name in layer}
LAB_LEVEL = {name: level for level, layer in enumerate(LAB_LAYERS) for name in layer}
BESIDE = {"models": {"gating"}, "optim": set()}  # what each of them may import
LAZY = {  # Gated offers these verbs as methods
    ("gating/gated.py", "compaction"),
    ("gating/gated.py", "costs"),
    ("gating/gated.py", "equality"),
}

HIDDEN = {
    "compact": "compaction",
    "check": "equality",
    "status": "costs",
}  # what those methods import

FILES = [path.relative_to(ROOT) for path in sorted(ROOT.rglob("*.py"))]
LAB_FILES = [path for path in FILES if path.parts[0] == "lab" and path != Path("lab/__init__.py")]
every_file = pytest.mark.parametrize("path", FILES, ids=str)


def owner(path: Path) -> str:
    """The part of the library that a file belongs to."""
    name = path.parts[0].removesuffix(".py")
    return "l0arm" if name == "__init__" else name


def targets(node: ast.AST) -> Iterator[str]:
    """The parts of the library that a statement imports."""
    if isinstance(node, ast.ImportFrom):
        parts = (node.module or "").split(".")
        if parts == ["l0arm"]:  # from l0arm import gates, sparsify
            names = [alias.name for alias in node.names]
            yield from (name if name in LEVEL | BESIDE else "l0arm" for name in names)
        elif parts[0] == "l0arm":
            yield parts[1]
    elif isinstance(node, ast.Import):
        for alias in node.names:
            parts = alias.name.split(".")
            if parts[0] == "l0arm":
                yield parts[1] if len(parts) > 1 else "l0arm"


def imports(path: Path) -> tuple[set[str], set[str]]:
    """What a file imports when it is loaded, and what it imports inside functions."""
    tree = ast.parse((ROOT / path).read_text())
    functions = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)]
    inside = {id(node) for function in functions for node in ast.walk(function)}
    typing = [n for n in ast.walk(tree) if isinstance(n, ast.If) and _for_types_only(n)]
    never = {id(node) for block in typing for node in ast.walk(block)}
    loaded, lazy = set(), set()
    for node in (n for n in ast.walk(tree) if id(n) not in never):
        (lazy if id(node) in inside else loaded).update(targets(node))
    return loaded - {owner(path)}, lazy


def _for_types_only(block: ast.If) -> bool:
    return isinstance(block.test, ast.Name) and block.test.id == "TYPE_CHECKING"


def allowed(importer: str, imported: str) -> bool:
    if importer in BESIDE:
        return imported in BESIDE[importer]
    if imported in BESIDE:
        return LEVEL[importer] > LEVEL["gating"]
    return LEVEL[imported] < LEVEL[importer]


@every_file
def test_a_file_belongs_to_a_layer(path: Path) -> None:
    assert owner(path) in LEVEL | BESIDE


@every_file
def test_imports_point_down(path: Path) -> None:
    loaded, _ = imports(path)
    assert [name for name in sorted(loaded) if not allowed(owner(path), name)] == []


@every_file
def test_nothing_of_the_library_is_imported_inside_a_function(path: Path) -> None:
    _, lazy = imports(path)
    assert {(path.as_posix(), name) for name in lazy} - LAZY == set()


@every_file
def test_imports_are_absolute(path: Path) -> None:
    tree = ast.parse((ROOT / path).read_text())
    relative = [n.lineno for n in ast.walk(tree) if isinstance(n, ast.ImportFrom) and n.level]
    assert relative == []


def lab_imports(source: str) -> set[str]:
    """The parts of the lab that a file imports, also inside functions and for types only."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.module == "l0arm.lab":
            found.update(f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            found.add(node.module or "")
        elif isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
    return {name.split(".")[2] for name in found if name.startswith("l0arm.lab.")}


@pytest.mark.parametrize("path", LAB_FILES, ids=str)
def test_imports_inside_the_lab_point_down(path: Path) -> None:
    room = path.parts[1].removesuffix(".py")
    found = lab_imports((ROOT / path).read_text()) - {room}
    assert [name for name in sorted(found) if LAB_LEVEL[name] >= LAB_LEVEL[room]] == []


def test_all_imports_inside_the_lab_are_found() -> None:
    source = "from l0arm.lab import plots\ndef f():\n from l0arm.lab.runs.folder import RunFolder"
    assert lab_imports(source) == {"plots", "runs"}
    assert lab_imports("import l0arm.lab.data.dataset, l0arm.files") == {"data"}


def hidden(source: str) -> set[str]:
    """What is imported by calls of a Gated's methods: ``gated.compact()`` imports compaction."""
    calls = [n.func for n in ast.walk(ast.parse(source)) if isinstance(n, ast.Call)]
    methods = [f for f in calls if isinstance(f, ast.Attribute) and f.attr in HIDDEN]
    return {HIDDEN[f.attr] for f in methods if ast.unparse(f.value).endswith("gated")}


@every_file
def test_no_call_hides_an_import_that_points_up(path: Path) -> None:
    found = hidden((ROOT / path).read_text()) - {owner(path)}
    assert [name for name in sorted(found) if not allowed(owner(path), name)] == []


def test_hidden_imports_are_found() -> None:
    assert hidden("def size(gated): return count(gated.compact(certify=False))") == {"compaction"}
    assert hidden("self.gated.check(x); folder.check()") == {"equality"}


@pytest.mark.parametrize(
    ("importer", "imported", "fine"),
    [
        ("gating", "gates", True),
        ("gates", "gating", False),
        ("equality", "gating", True),
        ("gating", "equality", False),
        ("methods", "penalties", True),
        ("penalties", "estimators", False),
        ("compaction", "metrics", False),
        ("metrics", "compaction", True),
        ("lab", "l0arm", True),
        ("methods", "lab", False),
        ("_sparsify", "l0arm", False),
        ("_sparsify", "models", True),
        ("gating", "models", False),
        ("models", "gating", True),
        ("models", "gates", False),
    ],
)
def test_the_rule_itself(importer: str, imported: str, fine: bool) -> None:
    assert allowed(importer, imported) == fine


def test_the_reader_of_imports_finds_both_kinds() -> None:
    loaded, lazy = imports(Path("gating/gated.py"))
    assert (loaded, lazy) == ({"contracts"}, {"compaction", "costs", "equality"})
