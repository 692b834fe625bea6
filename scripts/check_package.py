"""Build wheel and sdist, install each into an empty environment, and try it: ``make package``."""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tarfile
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).parents[1]
CORE = """
import sys
import torch
from torch import nn
import l0arm

assert l0arm.__file__.startswith(sys.prefix), l0arm.__file__
net, x = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)), torch.rand(16, 4)
gated = l0arm.sparsify(net, example_inputs=x, lam=0.1)
gated.loss(lambda: gated(x).square().mean()).total.backward()
gated.phi.data[:5], gated.phi.data[5:] = -9.0, 9.0
small = l0arm.compact(gated)
assert small[0].out_features == 3, small
assert l0arm.certificate(small) is not None
"""
COMMANDS = (["--version"], ["recipes"], ["data", "mnist-mini"])  # recipes and digits are packaged


def build(out: Path) -> list[Path]:
    """The wheel and the sdist, built in an environment of their own."""
    shutil.rmtree(out, ignore_errors=True)
    with tempfile.TemporaryDirectory() as folder:
        pip = _environment(Path(folder))
        subprocess.run([*pip, "build>=1.2,<2"], check=True)
        subprocess.run([pip[0], "-m", "build", "--outdir", f"{out}", f"{ROOT}"], check=True)
    return sorted(out.iterdir())


def check_contents(files: list[Path]) -> None:
    """Refuse an sdist that holds more or less than the sources."""
    (sdist,) = [path for path in files if path.name.endswith(".tar.gz")]
    with tarfile.open(sdist) as tar:
        names = {name.partition("/")[2] for name in tar.getnames()}
    missing = {"LICENSE", "README.md", "pyproject.toml", "src/l0arm/py.typed"} - names
    if missing:
        raise SystemExit(f"{sdist.name}: without {', '.join(sorted(missing))}")


def check(file: Path, torch: str, index: str) -> None:
    """Install a file into an empty environment: the core alone, then the command line."""
    with tempfile.TemporaryDirectory() as folder:
        pip = _environment(Path(folder))
        extra = ["--extra-index-url", index] if index else []
        subprocess.run([*pip, *extra, torch], check=True)
        subprocess.run([*pip, f"{file}"], check=True)
        subprocess.run([pip[0], "-W", "error", "-c", CORE], check=True, cwd=folder)
        subprocess.run([*pip, f"l0arm[cli] @ {file.resolve().as_uri()}"], check=True)
        for arguments in COMMANDS:
            command = Path(pip[0]).with_name("l0arm")
            done = subprocess.run([f"{command}", *arguments], cwd=folder, stdout=subprocess.PIPE)
            if done.returncode != 0 or not done.stdout.strip():
                raise SystemExit(f"{file.name}: l0arm {arguments[0]} ended with {done.returncode}")
    print(f"{file.name}: installed into an empty environment, core and command line work")


def _environment(folder: Path) -> list[str]:
    """The command that installs into a new environment; its first word is the interpreter."""
    venv.create(folder / "env", with_pip=True)
    python = folder / "env" / "bin" / "python"
    return [f"{python}", "-m", "pip", "--disable-pip-version-check", "install", "-qq"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "dist")
    parser.add_argument("--torch", default="torch", help="requirement that is installed first")
    parser.add_argument("--index", default="", help="extra package index for torch")
    asked = parser.parse_args()
    files = build(asked.out)
    check_contents(files)
    for file in files:
        check(file, asked.torch, asked.index)
    return 0


if __name__ == "__main__":
    sys.exit(main())
