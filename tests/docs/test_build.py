"""The site builds without a warning from the files of this repository. A broken link fails it."""

import importlib
import importlib.util
import re
import shutil
import subprocess
import sys
import zlib
from inspect import isclass, isroutine
from pathlib import Path
from types import ModuleType

import pytest
from tests.docs.pages import ROOT, documented_modules

NEEDED = "needs pip install 'l0arm[docs]'"


def build(source: Path, target: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(target)]
    return subprocess.run(command, cwd=source, capture_output=True, text=True, check=False)


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    for package in ("mkdocs", "material", "mkdocstrings", "latex2mathml"):
        if importlib.util.find_spec(package) is None:
            pytest.skip(NEEDED)
    source = tmp_path / "source"
    shutil.copytree(ROOT / "docs", source / "docs")
    shutil.copytree(ROOT / "scripts", source / "scripts")
    shutil.copy(ROOT / "mkdocs.yml", source)
    (source / "src").symlink_to(ROOT / "src")  # the API pages read docstrings
    return source


def entries(site: Path) -> set[str]:
    """The names that have an entry on the API pages."""
    packed = (site / "objects.inv").read_bytes().split(b"\n", 4)[4]
    return {line.split()[0] for line in zlib.decompress(packed).decode().splitlines()}


def public_names(module: str) -> list[str]:
    """The classes and functions that a module exports."""
    loaded = importlib.import_module(module)
    names = getattr(loaded, "__all__", [])
    return [name for name in names if isroutine(x := getattr(loaded, name)) or isclass(x)]


def test_the_site_is_built_strictly(copy: Path, tmp_path: Path) -> None:
    site = tmp_path / "site"
    done = build(copy, site)
    assert done.returncode == 0, done.stderr
    idea = (site / "idea.html").read_text()
    assert idea.count("<math") >= 10
    assert "arithmatex" not in idea
    assert 'src="http' not in idea
    assert (site / "search/search_index.json").exists()

    found = entries(site)
    missing = [
        f"{module}.{name}"
        for module in documented_modules()
        for name in public_names(module)
        if not {f"{module}.{name}", f"l0arm.{name}"} & found  # names of l0arm are on its page
    ]
    assert missing == []
    gates = (site / "api/gates.html").read_text()
    assert "<blockquote>" not in gates  # doctests are code
    headings = re.findall(r'<h\d id="([\w.]+)"', gates + (site / "api/l0arm.html").read_text())
    assert "l0arm.gates.Bernoulli" in headings
    assert "l0arm.HardSigmoid" in headings
    assert "l0arm.gates.HardSigmoid" not in headings  # one page for a name


def test_broken_links_fail_it(tmp_path: Path) -> None:
    """On a site of two pages, with the settings of ours but without the API reference."""
    yaml = pytest.importorskip("yaml")
    pytest.importorskip("material", reason=NEEDED)
    config = yaml.safe_load((ROOT / "mkdocs.yml").read_text())
    config |= {"plugins": ["search"], "hooks": [], "nav": ["index.md", "other.md"]}
    (tmp_path / "mkdocs.yml").write_text(yaml.safe_dump(config))
    docs = tmp_path / "docs"
    docs.mkdir()
    (docs / "other.md").write_text("# Other\n")
    (docs / "index.md").write_text("# Here\n\n[x](nowhere.md) [y](other.md#no-such-heading)\n")
    done = build(tmp_path, tmp_path / "site")
    assert done.returncode != 0
    assert "nowhere.md" in done.stderr
    assert "no-such-heading" in done.stderr


def script(name: str) -> ModuleType:
    """A module of scripts/, which is no package."""
    spec = importlib.util.spec_from_file_location(name, ROOT / f"scripts/{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_formulas_become_mathml_and_the_rest_stays() -> None:
    pytest.importorskip("latex2mathml", reason=NEEDED)
    hook = script("site_maths")
    page = (
        '<p>a <span class="arithmatex">\\(\\pi &lt; u\\)</span> b</p>'
        '<div class="arithmatex">\\[\nx^2\n\\]</div><code>\\(no\\)</code>'
    )
    made = hook.on_page_content(page, page=None)
    assert made.startswith(
        '<p>a <math xmlns="http://www.w3.org/1998/Math/MathML" display="inline">'
    )
    assert "&lt;" in made or "&#x0003C;" in made
    assert 'display="block"' in made
    assert made.endswith("<code>\\(no\\)</code>")


def test_doctests_become_code_blocks() -> None:
    pytest.importorskip("griffe", reason=NEEDED)
    shown = script("site_docstrings").shown
    bare = "Adds.\n\n>>> 1 + (\n...     1)\n2\n\nText."
    assert shown(bare) == "Adds.\n\n```pycon\n>>> 1 + (\n...     1)\n2\n```\n\nText."
    section = "Adds.\n\nExample:\n    >>> 1 + 1\n    2"
    assert shown(section) == "Adds.\n\nExamples:\n    >>> 1 + 1\n    2"
