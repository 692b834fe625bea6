"""Run a part of the tests with the oldest and the newest versions: ``make test-versions``.

Each environment is made in a folder of its own, from an interpreter on the PATH (``python3.13``).
The oldest one has every direct dependency at the lower bound of pyproject.toml.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
PLANNING = (
    *("borrowed_weights", "capture", "channel_attention", "constants", "fused_projections"),
    *("networks", "plan", "rules", "sizes", "whole_experts"),
)
PART = (  # what depends most on torch and on the packages of the extras
    *("tests/gates", "tests/gating/test_gated.py", "tests/gating/test_slicing.py"),
    *("tests/gating/test_equality.py", "tests/gating/test_engine.py"),
    *("tests/gating/test_recomputation.py", "tests/gating/test_kernels.py"),
    *("tests/gating/test_threads.py", "tests/gating/test_overhead.py"),
    *("tests/compaction/test_compact.py", "tests/compaction/saved/test_folder.py"),
    *(f"tests/planning/test_{name}.py" for name in PLANNING),
    *("tests/pruning/test_prune.py", "tests/export", "tests/integrations"),
    *("tests/lab/data", "tests/lab/cli/test_verbs.py", "tests/lab/runs/test_trackers.py"),
)


@dataclass(frozen=True)
class Environment:
    """Versions that are tested together."""

    python: str
    torch: str
    lowest: bool = False  # direct dependencies at their lower bounds, or the newest ones


ENVIRONMENTS = {
    "oldest": Environment("3.11", "2.10.0", lowest=True),
    "lowest-extras": Environment("3.11", "2.13.0", lowest=True),
    "python-3.12": Environment("3.12", "2.13.0"),
    "newest": Environment("3.13", "2.15.0"),
}


def lower_bounds(text: str) -> dict[str, str]:
    """The lower bound of every package that a pyproject.toml names, but for torch.

    >>> lower_bounds('[project]\\ndependencies = ["torch>=2", "numpy>=1.26", "rich[a]>=13,<16"]')
    {'numpy': '1.26', 'rich': '13'}
    """
    project = tomllib.loads(text)["project"]
    extras = project.get("optional-dependencies", {}).values()
    asked = [*project["dependencies"], *(each for extra in extras for each in extra)]
    found = [re.match(r"([\w.-]+)(?:\[[\w,]+\])?>=([\w.]+)", each) for each in asked]
    return {match[1]: match[2] for match in found if match and match[1] != "torch"}


def run(name: str, folder: Path, index: str, tests: list[str], jobs: int) -> int:
    """Make an environment, unless it is there, and run the tests in it. Returns the exit code."""
    wanted = ENVIRONMENTS[name]
    python = shutil.which(f"python{wanted.python}")
    # What is on the PATH may be a stand-in for a version that is not chosen (pyenv).
    if python is None or subprocess.run([python, "-V"], capture_output=True).returncode != 0:
        print(f"{name}: no python{wanted.python} on the PATH", file=sys.stderr)
        return 2
    place = folder / name
    own, limits, made = place / "bin" / "python", place / "constraints.txt", place / "made"
    bounds = lower_bounds((ROOT / "pyproject.toml").read_text()) if wanted.lowest else {}
    lines = [f"torch=={wanted.torch}", *(f"{key}=={value}" for key, value in bounds.items())]
    text = "\n".join(lines) + "\n"
    if not (made.exists() and made.read_text() == text):  # new, or made for other versions
        subprocess.run([python, "-m", "venv", "--clear", f"{place}"], check=True)
        limits.write_text(text)
        pip = [f"{own}", "-m", "pip", "--disable-pip-version-check", "install", "-qq"]
        subprocess.run([*pip, "--upgrade", "pip"], check=True)
        extra = ["--extra-index-url", index] if index else []
        # torch comes first, so that the second install finds it and fetches no other build.
        subprocess.run([*pip, *extra, "torch", "-c", f"{limits}"], check=True)
        subprocess.run([*pip, "-e", f"{ROOT}[dev]", "-c", f"{limits}"], check=True)
        made.write_text(text)
    # Old packages warn of newer ones that they use: a warning is no failure here.
    line = [f"{own}", "-m", "pytest", "-q", "-n", f"{jobs}", "-W", "default"]
    line += ["--disable-warnings", *(tests or PART)]
    return subprocess.run(line, cwd=ROOT, check=False).returncode


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help=f"of {', '.join(ENVIRONMENTS)}; default: all")
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "versions")
    parser.add_argument("--index", default="", help="extra package index for torch")
    parser.add_argument("--jobs", type=int, default=0, help="test processes; 0 runs them in one")
    parser.add_argument("--tests", nargs="*", default=[], help="instead of the part named here")
    asked = parser.parse_args()
    unknown = sorted(set(asked.names) - set(ENVIRONMENTS))
    if unknown:
        parser.error(f"no environment {unknown[0]}; there are {', '.join(ENVIRONMENTS)}")
    codes = {}
    for name in asked.names or ENVIRONMENTS:
        print(f"testing: {name} ({ENVIRONMENTS[name]})", file=sys.stderr)
        codes[name] = run(name, asked.folder, asked.index, asked.tests, asked.jobs)
    for name, code in codes.items():
        wanted = ENVIRONMENTS[name]
        lowest = "lower bounds" if wanted.lowest else "newest"
        outcome = "passed" if code == 0 else f"failed ({code})"
        print(
            f"{name:<14} Python {wanted.python:<5} torch {wanted.torch:<7} {lowest:<13} {outcome}"
        )
    return max(codes.values())


if __name__ == "__main__":
    sys.exit(main())
