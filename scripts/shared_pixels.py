"""Print how many input pixels two seeds of the MLP both keep, and how many by chance.

    python scripts/shared_pixels.py results/runs/mlp-l0-arm results/runs/mlp-l0-best ...

A pixel is the same unit in every run, whatever the initial weights. So the overlap is a positive
control for ``l0arm compare runs``: where a method learns which inputs matter, it is above chance.
"""

from __future__ import annotations

import sys
from itertools import combinations
from pathlib import Path

from l0arm.lab.runs.folder import RunFolder
from l0arm.lab.tables.survivors import overlap, survivors

PIXELS = 784


def main(folders: list[str]) -> None:
    """Print a line for each pair of seeds in each folder."""
    for folder in map(Path, folders):
        for pair in combinations(sorted(folder.glob("seed-*")), 2):
            one, other = ({"fc1": survivors(RunFolder(path))["fc1"]} for path in pair)
            found = overlap(one, other, {"fc1": PIXELS})
            kept = f"{len(one['fc1'])} and {len(other['fc1'])} kept"
            chance = f"{found.by_chance:.1f} ± {found.deviation:.1f} by chance"
            seeds = " and ".join(path.name for path in pair)
            print(f"{folder.name}, {seeds}: {kept}, {found.common} in common, {chance}", end="")
            print(f", {found.sigmas:+.1f} σ")


if __name__ == "__main__":
    main(sys.argv[1:])
