"""Some damaged and hostile folders of every kind. ``make test-attack`` tries many more."""

import random
import resource
from itertools import islice
from pathlib import Path

from tests.attack.saved_folders import attack
from tests.helpers.hostile_folders import MUTATIONS

CASES = 5 * len(MUTATIONS)
MEMORY = 512 * 2**20  # bytes: that of JSON with as many values as are allowed


def test_every_folder_is_refused_or_right(tmp_path: Path) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    failures = [failure for failure in islice(attack(random.Random(0), tmp_path), CASES) if failure]
    assert failures == []
    assert 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) < MEMORY
