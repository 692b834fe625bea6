"""One run, one folder, one process."""

import subprocess
import sys
from collections.abc import Callable

import pytest

from l0arm.lab.errors import UserError
from l0arm.lab.recipes.recipe import Recipe
from l0arm.lab.runs.folder import RunFolder


def test_a_claimed_folder_gives_its_recipe_back(
    folder: RunFolder, quick: Callable[..., Recipe]
) -> None:
    with folder.locked():
        folder.check(quick(), resume=False)
        folder.claim(quick())
    assert folder.recipe() == quick()


def test_the_folder_of_another_run_is_refused(
    folder: RunFolder, quick: Callable[..., Recipe]
) -> None:
    with folder.locked():
        folder.claim(quick())
        with pytest.raises(UserError, match=r"method.lam: 0.1, not 0.2"):
            folder.check(quick("mlp-l0-arm", "method.lam=0.2"), resume=True)


def test_the_same_run_wants_resume(folder: RunFolder, quick: Callable[..., Recipe]) -> None:
    with folder.locked():
        folder.claim(quick())
        with pytest.raises(UserError, match="go on with it by --resume"):
            folder.check(quick(), resume=False)
        folder.check(quick(), resume=True)


def test_a_folder_with_something_else_in_it_is_refused(
    folder: RunFolder, quick: Callable[..., Recipe]
) -> None:
    folder.path.mkdir()
    (folder.path / "thesis.tex").write_text("x")
    with folder.locked(), pytest.raises(UserError, match="not empty and not the folder of a run"):
        folder.check(quick(), resume=False)


def test_a_damaged_recipe_is_told(folder: RunFolder, quick: Callable[..., Recipe]) -> None:
    folder.path.mkdir()
    folder.recipe_file.write_text('{"name"')
    with pytest.raises(UserError, match=r"recipe.json is damaged"):
        folder.recipe()


def test_no_second_process_gets_in(folder: RunFolder) -> None:
    code = (
        "import sys; from pathlib import Path\n"
        "from l0arm.lab.runs.folder import RunFolder\n"
        "with RunFolder(Path(sys.argv[1])).locked(): pass\n"
    )
    command = [sys.executable, "-c", code, str(folder.path)]
    with folder.locked():
        second = subprocess.run(command, capture_output=True, text=True, check=False)
    assert second.returncode == 1
    assert "is at work on" in second.stderr
    assert subprocess.run(command, check=False).returncode == 0  # the lock went with its holder


def test_what_a_killed_process_left_is_cleared_away(
    folder: RunFolder, quick: Callable[..., Recipe]
) -> None:
    folder.checkpoints.mkdir(parents=True)
    leftover = folder.checkpoints / ".tmp-abc-00000001.json"
    leftover.write_text("torn")
    folder.claim(quick())
    assert not leftover.exists()
