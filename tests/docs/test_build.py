"""The site is built without a warning, from these files alone; a broken link fails it."""

import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from tests.docs.pages import ROOT

NEEDED = "needs pip install 'l0arm[docs]'"


def build(source: Path, target: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(target)]
    return subprocess.run(command, cwd=source, capture_output=True, text=True, check=False)


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    for package in ("mkdocs", "material", "latex2mathml"):
        if importlib.util.find_spec(package) is None:
            pytest.skip(NEEDED)
    source = tmp_path / "source"
    shutil.copytree(ROOT / "docs", source / "docs")
    shutil.copytree(ROOT / "scripts", source / "scripts")
    shutil.copy(ROOT / "mkdocs.yml", source)
    return source


def test_the_site_is_built_strictly(copy: Path, tmp_path: Path) -> None:
    done = build(copy, tmp_path / "site")
    assert done.returncode == 0, done.stderr
    idea = (tmp_path / "site/idea.html").read_text()
    assert idea.count("<math") >= 10
    assert "arithmatex" not in idea
    assert 'src="http' not in idea
    assert (tmp_path / "site/search/search_index.json").exists()


@pytest.mark.parametrize("link", ["[x](nowhere.md)", "[x](faq.md#no-such-question)"])
def test_a_broken_link_fails_it(copy: Path, tmp_path: Path, link: str) -> None:
    (copy / "docs/idea.md").write_text(f"# Idea\n\n{link}\n")
    done = build(copy, tmp_path / "site")
    assert done.returncode != 0
    assert "idea.md" in done.stderr


@pytest.fixture
def hook() -> ModuleType:
    pytest.importorskip("latex2mathml", reason=NEEDED)
    spec = importlib.util.spec_from_file_location("site_maths", ROOT / "scripts/site_maths.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_formulas_become_mathml_and_the_rest_stays(hook: ModuleType) -> None:
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
