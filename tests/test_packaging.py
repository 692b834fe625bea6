"""What is published agrees with itself: metadata, workflows, make targets, recipe, citation."""

import os
import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from scripts.versions import ENVIRONMENTS, PART, lower_bounds

import l0arm

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
MAKEFILE = (ROOT / "Makefile").read_text()
WORKFLOWS = {
    path.stem: yaml.safe_load(path.read_text()) for path in (ROOT / ".github/workflows").iterdir()
}


def commands(workflow: str) -> list[str]:
    jobs = WORKFLOWS[workflow]["jobs"].values()
    return [step["run"] for job in jobs for step in job["steps"] if "run" in step]


@pytest.mark.parametrize("workflow", WORKFLOWS)
def test_workflows_run_make_targets_that_exist(workflow: str) -> None:
    targets = set(re.findall(r"^([\w-]+):", MAKEFILE, re.M))
    asked = [line.split()[1] for line in commands(workflow) if line.startswith("make ")]
    assert {"check", "test", "package"} <= set(asked)
    assert set(asked) <= targets


@pytest.mark.parametrize(("tag", "code"), [(f"v{l0arm.__version__}", 0), ("v9.9.9", 1)])
def test_a_release_needs_a_tag_of_its_version(tag: str, code: int) -> None:
    (line,) = [line for line in commands("release") if not line.startswith("make ")]
    variables = {**os.environ, "GITHUB_REF_NAME": tag}
    assert subprocess.run(["bash", "-c", line], cwd=ROOT, env=variables).returncode == code


def test_only_publishing_gets_an_identity_and_no_secret_is_read() -> None:
    jobs = WORKFLOWS["release"]["jobs"]
    assert jobs["publish"]["permissions"] == {"id-token": "write"}
    assert "permissions" not in jobs["build"]
    assert "secrets." not in (ROOT / ".github/workflows/release.yml").read_text()


def test_the_matrix_has_every_environment_with_its_python() -> None:
    matrix: list[dict[str, Any]] = WORKFLOWS["ci"]["jobs"]["versions"]["strategy"]["matrix"]
    listed = {each["name"]: each["python"] for each in matrix["include"]}  # type: ignore[call-overload]
    assert listed == {name: each.python for name, each in ENVIRONMENTS.items()}


def test_pre_commit_runs_what_make_check_runs() -> None:
    (repo,) = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    recipe = MAKEFILE.split("\ncheck: ")[1].split("\n\n")[0]
    checks = re.findall(r"^\t@\$\(BIN\)/(.+)$", recipe, re.M)
    assert [hook["entry"] for hook in repo["hooks"]] == [f".venv/bin/{line}" for line in checks]
    assert not any(hook["pass_filenames"] for hook in repo["hooks"])


def test_forms_for_issues_can_be_read() -> None:
    forms = {path.stem: path for path in (ROOT / ".github/ISSUE_TEMPLATE").glob("*.yml")}
    assert set(forms) == {"bug", "request", "config"}
    for name in ("bug", "request"):
        form = yaml.safe_load(forms[name].read_text())
        assert {"name", "description", "body"} <= set(form)
        assert all(each.get("id") or each["type"] == "markdown" for each in form["body"])


def test_the_oldest_environment_is_the_minimum_of_the_metadata() -> None:
    oldest = ENVIRONMENTS["oldest"]
    assert f"torch>={oldest.torch.removesuffix('.0')}" in PROJECT["dependencies"]
    assert PROJECT["requires-python"] == f">={oldest.python}"
    assert oldest.lowest
    assert lower_bounds((ROOT / "pyproject.toml").read_text())["numpy"] == "1.26"


def test_pythons_of_the_metadata_are_those_of_environments_and_of_the_workflow() -> None:
    named = {c.rpartition(" ")[2] for c in PROJECT["classifiers"] if re.search(r":: 3\.\d+$", c)}
    assert named == {each.python for each in ENVIRONMENTS.values()}
    assert named == set(WORKFLOWS["ci"]["jobs"]["test"]["strategy"]["matrix"]["python"])


def test_the_page_of_versions_has_the_bounds_of_the_metadata() -> None:
    page = " ".join((ROOT / "docs/versions.md").read_text().split())
    bounds = lower_bounds((ROOT / "pyproject.toml").read_text())
    python, torch = ENVIRONMENTS["oldest"].python, ENVIRONMENTS["oldest"].torch.removesuffix(".0")
    first = f"Python {python} or newer, torch {torch} or newer and numpy {bounds['numpy']} or newer"
    assert first in page
    extras = [each for extra in PROJECT["optional-dependencies"].values() for each in extra]
    assert not [each for each in extras if each.startswith(("torch>", "torch="))]  # one bound


def test_the_page_of_versions_names_every_environment() -> None:
    page = (ROOT / "docs/versions.md").read_text()
    rows = re.findall(r"^\| `([\w.-]+)` \| ([\d.]+) \| ([\d.]+) \|", page, re.M)
    assert rows == [(name, each.python, each.torch) for name, each in ENVIRONMENTS.items()]


def test_the_named_part_exists() -> None:
    assert [path for path in PART if not (ROOT / path).exists()] == []


def test_recipe_and_citation_agree_with_the_metadata() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    recipe = yaml.safe_load((ROOT / "conda/recipe.yaml").read_text())
    assert citation["version"] == recipe["context"]["version"] == l0arm.__version__
    assert citation["repository-code"] == PROJECT["urls"]["Repository"]
    assert recipe["about"]["repository"] == PROJECT["urls"]["Repository"]
    needs = {f"python {PROJECT['requires-python']}"}
    needs |= {
        line.replace("torch", "pytorch").replace(">", " >") for line in PROJECT["dependencies"]
    }
    assert set(recipe["requirements"]["run"]) == needs


def test_project_addresses_name_files_that_exist() -> None:
    home = PROJECT["urls"]["Repository"] + "/blob/main/"
    named = [url.removeprefix(home) for url in PROJECT["urls"].values() if url.startswith(home)]
    assert named
    assert [path for path in named if not (ROOT / path).exists()] == []


def test_links_of_the_readme_are_absolute_and_lead_to_files() -> None:
    """A package index shows the README without the files beside it."""
    links = re.findall(r"\]\(([^)#\s]+)", (ROOT / "README.md").read_text())
    homes = tuple(f"{PROJECT['urls']['Repository']}/{kind}/main/" for kind in ("blob", "raw"))
    ours = [link for link in links if link.startswith(homes)]
    assert len(ours) > 20
    assert [link for link in links if not link.startswith("https://")] == []
    paths = [link.removeprefix(homes[0]).removeprefix(homes[1]) for link in ours]
    assert [path for path in paths if not (ROOT / path).exists()] == []
