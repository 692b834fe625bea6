"""The Python blocks of the README and of every page run, one after the other, unchanged.

A block that needs a missing package is skipped together with the blocks that depend on it, and the
test reports it. A new page is covered automatically. CHECKS has facts about some pages.
"""

import importlib.util
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.docs.pages import (
    CORE,
    EXTRA_OF,
    PAGES,
    Fence,
    fences,
    modules,
    packages,
    python_blocks,
)
from torch import nn

from l0arm import EmptyGroupWarning
from l0arm.costs import LatencyWarning

WITH_CODE = [name for name, page in PAGES.items() if python_blocks(page)]


def run(block: Fence, name: str, namespace: dict[str, Any]) -> None:
    """Execute a block. Errors show its line in the page."""
    code = compile("\n" * block.line + block.text, name, "exec")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", EmptyGroupWarning)  # pages choose lam for all digits
        warnings.simplefilter("ignore", LatencyWarning)  # a busy machine
        if packages(block.text):
            warnings.simplefilter("ignore")  # warnings of other packages
        exec(code, namespace)


def missing(block: Fence) -> list[str]:
    """The commands that install what a block lacks."""
    absent = [name for name in packages(block.text) if importlib.util.find_spec(name) is None]
    return [f"pip install 'l0arm[{EXTRA_OF[name]}]'" for name in sorted(absent)]


def run_page(name: str) -> tuple[dict[str, Any], list[str]]:
    """Run a page. Returns its variables, and why blocks were skipped."""
    namespace: dict[str, Any] = {"__name__": name}
    skipped: list[str] = []
    for block in python_blocks(PAGES[name]):
        if absent := missing(block):
            skipped.append(f"line {block.line} needs {' and '.join(absent)}")
            continue
        try:
            run(block, name, namespace)
        except NameError as error:
            if not skipped:
                raise
            skipped.append(f"line {block.line} depends on it ({error})")
    return namespace, skipped


def readme(left: dict[str, Any], folder: Path, out: str) -> None:
    assert "% pruned" in out
    assert left["gated"].phi.numel() == 32
    assert sum(p.numel() for p in left["small"].parameters()) < 431_080


def any_model(left: dict[str, Any], folder: Path, out: str) -> None:
    (table,) = [
        fence.text for fence in fences(PAGES["docs/any-model.md"]) if fence.language == "text"
    ]
    assert table in out  # the output on the page is what the block prints
    assert "the small network equals the gated one" in out


def deployment(left: dict[str, Any], folder: Path, out: str) -> None:
    assert {"digits-small", "digits.onnx", "digits.pt2"} <= {p.name for p in folder.iterdir()}
    assert "Budget(milliseconds <= 70.0 %)" in out
    assert {"stem", "blocks.0.conv1", "fc"} <= left["table"].layers.keys()
    with torch.no_grad():
        want = left["small"](left["x_test"][:64])
    torch.testing.assert_close(torch.from_numpy(left["logits"]), want, rtol=1e-3, atol=1e-4)


def parallel(left: dict[str, Any], folder: Path, out: str) -> None:
    assert isinstance(left["small"], nn.Module)
    assert all(part.gated.phi.isfinite().all() for part in (left["digits"], left["step"]))


CHECKS: dict[str, Callable[[dict[str, Any], Path, str], None]] = {
    "README.md": readme,
    "docs/any-model.md": any_model,
    "docs/deployment.md": deployment,
    "docs/parallel.md": parallel,
}


@pytest.mark.parametrize("name", WITH_CODE)
def test_the_blocks_of_a_page_run(
    name: str, page_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    namespace, skipped = run_page(name)
    if skipped:
        pytest.skip("; ".join(skipped))
    if name in CHECKS:
        CHECKS[name](namespace, page_folder, capsys.readouterr().out)


@pytest.mark.parametrize("name", WITH_CODE)
def test_every_package_belongs_to_an_extra(name: str) -> None:
    needed = {part for block in python_blocks(PAGES[name]) for part in packages(block.text)}
    assert needed <= set(EXTRA_OF)


def test_checks_are_about_existing_pages() -> None:
    assert set(CHECKS) <= set(WITH_CODE)
    assert "l0arm" in CORE


PAGE = """
```python
one = 1
```
```python
import zzz_not_there
two = 2
```
```python
three = one + two
```
```python
import torch.nn, l0arm.export
four = one
```
"""


def test_a_block_without_its_package_is_skipped_with_its_dependents(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(PAGES, "new.md", PAGE)
    monkeypatch.setitem(EXTRA_OF, "zzz_not_there", "zzz")
    blocks = python_blocks(PAGE)
    assert [block.line for block in blocks] == [2, 5, 9, 12]
    assert modules(blocks[3].text) == {"torch.nn", "l0arm.export"}
    assert packages(blocks[3].text) == {"onnxruntime"}
    namespace, skipped = run_page("new.md")
    assert namespace["one"] == 1
    assert skipped[:2] == [
        "line 5 needs pip install 'l0arm[zzz]'",
        "line 9 depends on it (name 'two' is not defined)",
    ]


def test_an_error_in_a_block_is_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PAGES, "new.md", "```python\nundefined\n```\n")
    with pytest.raises(NameError):
        run_page("new.md")
