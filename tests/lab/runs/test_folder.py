"""The folder of a run: one run, one process at a time."""

import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable
from types import ModuleType

import pytest

from l0arm.lab.errors import UserError
from l0arm.lab.recipes.recipe import Recipe
from l0arm.lab.runs import folder as folders
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


def test_a_damaged_recipe_is_reported(folder: RunFolder, quick: Callable[..., Recipe]) -> None:
    folder.path.mkdir()
    folder.recipe_file.write_text('{"name"')
    with pytest.raises(UserError, match=r"recipe.json is damaged"):
        folder.recipe()


SECOND = """
import sys
from pathlib import Path
from l0arm.lab.errors import UserError
from l0arm.lab.runs.folder import RunFolder

folder = RunFolder(Path(sys.argv[1]))
for attempt in range(2):
    try:
        with folder.locked():
            print("locked", flush=True)
            sys.stdin.readline()
    except UserError as error:
        print(error, flush=True)
        sys.stdin.readline()
"""


def test_a_second_process_is_refused_until_the_lock_is_released(folder: RunFolder) -> None:
    """Refused while this process has the lock, then it has the lock itself until it is killed."""
    with folder.locked():
        command = [sys.executable, "-c", SECOND, str(folder.path)]
        second = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert second.stdin is not None
        assert second.stdout is not None
        assert second.stdout.readline() == refusal(folder, os.getpid()) + "\n"
    second.stdin.write("\n")
    second.stdin.flush()
    assert second.stdout.readline() == "locked\n"
    with pytest.raises(UserError) as caught, folder.locked():
        pass
    assert str(caught.value) == refusal(folder, second.pid)
    second.kill()
    second.communicate()
    with folder.locked():  # the lock went with its process
        assert (folder.path / "lock").read_text() == str(os.getpid())


def refusal(folder: RunFolder, owner: int) -> str:
    return (
        f"process {owner} is at work on {folder.path}; wait for it, or choose another folder with "
        "--run-dir"
    )


def test_an_error_releases_the_lock(folder: RunFolder) -> None:
    with pytest.raises(OSError, match="full"), folder.locked():
        raise OSError("full")
    with folder.locked():
        pass


class FakeMsvcrt(ModuleType):
    """``msvcrt.locking`` as Windows has it: one byte at the position of the file, by handle."""

    LK_UNLCK, LK_NBLCK = 0, 2

    def __init__(self) -> None:
        super().__init__("msvcrt")
        self.owners: dict[tuple[int, int], int] = {}  # (inode, byte): handle

    def locking(self, handle: int, mode: int, count: int) -> None:
        assert count == 1
        place = os.fstat(handle).st_ino, os.lseek(handle, 0, os.SEEK_CUR)
        if mode == self.LK_NBLCK and place in self.owners:
            raise PermissionError(13, "Permission denied")
        if mode == self.LK_UNLCK:
            assert self.owners.pop(place) == handle
        else:
            self.owners[place] = handle


@pytest.fixture
def windows(monkeypatch: pytest.MonkeyPatch) -> tuple[ModuleType, FakeMsvcrt]:
    """The module of folders as it is imported on Windows, where there is no fcntl."""
    msvcrt = FakeMsvcrt()
    with monkeypatch.context() as patch:
        patch.setattr(sys, "platform", "win32")
        patch.setitem(sys.modules, "msvcrt", msvcrt)
        patch.setitem(sys.modules, "fcntl", None)
        spec = importlib.util.spec_from_file_location("windows_folder", folders.__file__)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        patch.setitem(sys.modules, "windows_folder", module)  # dataclasses look it up
        spec.loader.exec_module(module)
    return module, msvcrt


def test_the_lock_on_windows(windows: tuple[ModuleType, FakeMsvcrt], folder: RunFolder) -> None:
    module, msvcrt = windows
    one, other = module.RunFolder(folder.path), module.RunFolder(folder.path)
    with one.locked():
        ((_, byte),) = msvcrt.owners
        text = (folder.path / "lock").read_bytes()
        assert text == str(os.getpid()).encode()
        assert byte >= len(text)  # others cannot read a locked byte, but they need the text
        with pytest.raises(UserError) as caught, other.locked():
            pass
        assert str(caught.value) == refusal(folder, os.getpid())
    assert msvcrt.owners == {}
    with other.locked():
        assert (folder.path / "lock").read_bytes() == str(os.getpid()).encode()


def test_what_a_killed_process_left_is_cleared_away(
    folder: RunFolder, quick: Callable[..., Recipe]
) -> None:
    folder.checkpoints.mkdir(parents=True)
    leftover = folder.checkpoints / ".tmp-abc-00000001.json"
    leftover.write_text("torn")
    folder.claim(quick())
    assert not leftover.exists()
