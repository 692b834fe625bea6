"""The public surface is small and pinned, and importing it pulls in torch and numpy only."""

import importlib
import subprocess
import sys

import pytest

import l0arm

PUBLIC = [
    "ESTIMATORS",
    "METHODS",
    "Borrow",
    "Branch",
    "BudgetWarning",
    "Certificate",
    "CertificateError",
    "ConstantObjective",
    "Course",
    "Dot",
    "EmptyGroupWarning",
    "Gated",
    "Group",
    "HardSigmoid",
    "Loss",
    "Method",
    "NonFiniteLoss",
    "Norm",
    "NotSynchronised",
    "Patch",
    "Pick",
    "Plan",
    "PlanError",
    "PruneResult",
    "Resize",
    "Route",
    "SavedError",
    "ScaledSigmoid",
    "SearchResult",
    "Slice",
    "Stage",
    "Widen",
    "architecture",
    "certificate",
    "compact",
    "contracts",
    "costs",
    "distributed",
    "estimators",
    "expand",
    "expected_flops",
    "expected_l0",
    "fit_threshold",
    "gates",
    "load",
    "methods",
    "metrics",
    "models",
    "optim",
    "penalties",
    "plan",
    "prune",
    "prune_rate",
    "save",
    "search",
    "shrink",
    "sparsify",
]
PACKAGES = [
    *("compaction", "costs", "distributed", "estimators", "gates", "gating", "lab.data"),
    *("methods", "models", "penalties", "planning", "pruning"),
]
EXTRAS = ["typer", "rich", "matplotlib", "safetensors", "pyarrow", "PIL", "onnx", "transformers"]


def test_the_public_names_are_these() -> None:
    assert l0arm.__all__ == PUBLIC


@pytest.mark.parametrize("package", ["l0arm", *(f"l0arm.{name}" for name in PACKAGES)])
def test_every_public_name_exists(package: str) -> None:
    module = importlib.import_module(package)
    assert [name for name in module.__all__ if not hasattr(module, name)] == []


def imported_with_l0arm(what: str) -> list[str]:
    """Run in a fresh interpreter: this one has imported far more."""
    code = (
        "import torch, numpy, sys; before = set(sys.modules); "
        f"import l0arm; l0arm.sparsify; print(*{what})"
    )
    command = [sys.executable, "-c", code]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()


def test_no_extra_is_imported() -> None:
    assert imported_with_l0arm(f"[m for m in {EXTRAS} if m in sys.modules]") == []


def test_beyond_torch_and_numpy_only_the_standard_library_is_imported() -> None:
    new = {name.partition(".")[0] for name in imported_with_l0arm("set(sys.modules) - before")}
    assert new - sys.stdlib_module_names - {"torch", "numpy"} == {"l0arm"}


def test_public_names_are_imported_when_the_first_is_used() -> None:
    code = (
        "import l0arm, sys; l0arm.__version__; print('torch' in sys.modules); "
        "from l0arm import *; print('torch' in sys.modules, sparsify is l0arm.sparsify)"
    )
    command = [sys.executable, "-c", code]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert printed.splitlines() == ["False", "True True"]


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'l0arm' has no attribute 'sparsfy'"):
        l0arm.sparsfy  # noqa: B018
    assert set(PUBLIC) < set(dir(l0arm))
