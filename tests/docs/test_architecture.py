"""docs/architecture.md shows the packages, layers and files that there are."""

import re

import pytest
from tests.docs.pages import PAGES, ROOT, fences
from tests.test_layers import LAB_LAYERS, LAYERS

PAGE = PAGES["docs/architecture.md"]
SOURCE = ROOT / "src/l0arm"


def block(start: str) -> list[str]:
    (text,) = [fence.text for fence in fences(PAGE) if fence.text.startswith(start)]
    return text.splitlines()


def test_the_layers_are_those_of_the_test() -> None:
    for first, layers in (("__main__", LAYERS), ("cli", LAB_LAYERS)):
        shown = [set(line.split(", ")) for line in block(f"{first}\n")]
        assert shown == layers[::-1]


def test_the_tree_names_every_package_and_module() -> None:
    shown = set(re.findall(r"^  ([\w.]+)/? ", "\n".join(block("src/l0arm/")), re.M))
    there = {path.name for path in SOURCE.iterdir() if path.suffix == ".py" or path.is_dir()}
    assert shown == there - {"__pycache__", "_public.py"}  # _public.py stands beside __init__.py


def test_the_step_names_files_that_exist() -> None:
    named = re.findall(r"[\w/]+\.py", "\n".join(block("gated.loss")))
    assert len(named) > 8
    assert [path for path in named if not (SOURCE / path).exists()] == []


ANSWERS = re.findall(r"^\| ([^|]+) \| ([^|]+) \|$", PAGE, re.M)


@pytest.mark.parametrize(("question", "answer"), ANSWERS, ids=[name for name, _ in ANSWERS])
def test_names_in_capitals_are_in_the_file_that_is_given(question: str, answer: str) -> None:
    """`KINDS` (`costs/budget.py`): the constant or class is defined in that file."""
    for name, path in re.findall(r"`(\w+)` \(`([\w/]+\.py)`\)", answer):
        assert re.search(rf"^(class )?{name}\b", (SOURCE / path).read_text(), re.M), (name, path)
    for name, path in re.findall(r"`([\w.]+)` in `([\w/]+\.py)`", answer):
        defined = rf"^\s*(class|def) {name.rpartition('.')[2]}\b"
        assert re.search(defined, (SOURCE / path).read_text(), re.M), (name, path)
