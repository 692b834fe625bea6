"""Print what a plain configuration of transformers can state, for models with random weights.

    python scripts/plain_configurations.py [name ...]

A quarter of the units of the MLPs of all layers is closed, then of the heads, then of the residual
stream, then all branches of the last layers. Each of the four is saved with ``uniform=True``.
"yes" says that ``from_pretrained`` loads the folder without l0arm, and that its logits are those of
``l0arm.load``. Otherwise the reason of the refusal is printed below the table.
"""

from __future__ import annotations

import copy
import re
import sys
import tempfile
import warnings
from pathlib import Path

import torch
import transformers
from removable_shares import MODELS, make  # type: ignore[import-not-found]
from torch import Tensor, nn

import l0arm

KINDS = ("MLPs", "heads", "stream", "layers")


def kind_of(group: l0arm.Group) -> str:
    """Which of the kinds a group is."""
    if group.branches:
        return "layers"
    if group.norms:
        return "stream"
    if not re.search(r"\.\d+\.", group.name):
        return "once"  # not in a layer, as a pooler
    return "heads" if max(piece.positions_per_unit for piece in group.makes) > 1 else "MLPs"


def closed(group: l0arm.Group, model: nn.Module) -> Tensor:
    """The gates of a group with a quarter of its units closed, or the last layer."""
    z = torch.ones(group.units)
    for unit, branch in enumerate(group.branches):
        parts = branch.modules[0].split(".")
        numbered = next(place for place, part in enumerate(parts) if part.isdigit())
        layers = model.get_submodule(".".join(parts[:numbered]))
        if int(parts[numbered]) == len(list(layers.children())) - 1:
            z[unit] = 0.0
    if not group.branches:
        z[: -(-group.units // 4)] = 0.0
    return z


def answer(name: str, kind: str, plans: dict[bool, l0arm.Plan]) -> str:
    """ "yes", "none" if there are no such groups, or the reason why not."""
    torch.manual_seed(0)
    model, inputs = make(name)
    original = copy.deepcopy(model)
    deep = kind == "layers"
    if deep not in plans:
        plans[deep] = l0arm.plan(model, (), inputs, outputs="logits", stream=not deep, depth=deep)
    gated = l0arm.sparsify(model, plans[deep], "l0-arm", lam=0.0, example_kwargs=inputs)
    parts = [
        closed(group, model) if kind_of(group) == kind else torch.ones(group.units)
        for group in gated.groups
    ]
    z = torch.cat(parts)
    if bool(z.all()):
        return "none"
    gated.phi.data = torch.where(z > 0, 9.0, -9.0)
    with tempfile.TemporaryDirectory() as home:
        try:
            folder = l0arm.save(gated.eval(), Path(home) / "saved", uniform=True)
        except l0arm.SavedError as error:
            return str(error)
        plain = type(original).from_pretrained(folder).eval()
        ours = l0arm.load(folder, lambda: original)
        with torch.no_grad():
            logits = [network(**inputs).logits for network in (plain, ours)]
    torch.testing.assert_close(*logits, rtol=1e-5, atol=1e-5)
    return "yes"


def main(names: list[str]) -> None:
    """Print the table, line by line, and the reasons."""
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    print("| model | " + " | ".join(KINDS) + " |\n|" + "---|" * (1 + len(KINDS)))
    reasons = []
    for name in names or list(MODELS):
        plans: dict[bool, l0arm.Plan] = {}
        found = {kind: answer(name, kind, plans) for kind in KINDS}
        reasons += [f"{name}, {k}: {v}" for k, v in found.items() if v not in ("yes", "none")]
        short = [v if v in ("yes", "none") else "no" for v in found.values()]
        print(f"| {name} | " + " | ".join(short) + " |", flush=True)
    print("\n" + "\n".join(reasons))


if __name__ == "__main__":
    main(sys.argv[1:])
