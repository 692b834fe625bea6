"""The one atomic writer: files and folders are replaced whole, or stay as they were."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from l0arm.files import (
    default_cache,
    remove_leftovers,
    replacing,
    replacing_folder,
    write_bytes,
    write_json,
)


@contextmanager
def umask(mask: int) -> Iterator[None]:
    old = os.umask(mask)
    try:
        yield
    finally:
        os.umask(old)


def test_the_cache_follows_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert default_cache() == Path("/somewhere/l0arm")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/home/me")
    assert default_cache() == Path("/home/me/.cache/l0arm")


def test_a_file_appears_when_it_is_whole(tmp_path: Path) -> None:
    target = tmp_path / "file.pt2"
    with replacing(target) as temporary:
        assert temporary.suffix == ".pt2"  # torch.export.save insists on it
        temporary.write_bytes(b"half")
        assert not target.exists()
    assert target.read_bytes() == b"half"
    assert list(tmp_path.iterdir()) == [target]


def test_a_failure_leaves_the_old_file_and_no_litter(tmp_path: Path) -> None:
    target = tmp_path / "file"
    write_bytes(target, b"old")

    def fail() -> None:
        with replacing(target) as temporary:
            temporary.write_bytes(b"new")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert target.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [target]


def test_every_file_is_flushed_to_the_disk_before_it_is_renamed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    real = os.fsync

    def fsync(handle: int) -> None:
        synced.append(Path(f"/proc/self/fd/{handle}").readlink().name)
        real(handle)

    monkeypatch.setattr(os, "fsync", fsync)
    write_bytes(tmp_path / "file", b"x")
    assert [name.startswith(".tmp-") for name in synced] == [True, False]
    assert synced[1] == tmp_path.name  # the rename itself


@pytest.mark.parametrize(("mask", "mode"), [(0o022, 0o644), (0o077, 0o600)])
def test_permissions_follow_the_umask_whatever_wrote_the_file(
    mask: int, mode: int, tmp_path: Path
) -> None:
    with umask(mask):
        with replacing(tmp_path / "file") as temporary:
            temporary.chmod(0o600)
        with replacing_folder(tmp_path / "folder") as new:
            (new / "one").touch()
            (new / "two").touch(0o600)
    files = [tmp_path / "file", tmp_path / "folder" / "one", tmp_path / "folder" / "two"]
    assert [file.stat().st_mode & 0o777 for file in files] == [mode] * 3


def test_a_folder_is_replaced_whole_or_stays(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    for name in ("first", "second"):
        with replacing_folder(folder) as new:
            (new / name).touch()

    def fail() -> None:
        with replacing_folder(folder) as new:
            (new / "third").touch()
            raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        fail()
    assert [path.name for path in folder.iterdir()] == ["second"]
    assert list(tmp_path.iterdir()) == [folder]


def test_json_has_no_nan(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_json(tmp_path / "file.json", {"loss": float("nan")})
    assert list(tmp_path.iterdir()) == []


def test_leftovers_of_killed_processes_are_removed(tmp_path: Path) -> None:
    (tmp_path / ".tmp-0123-checkpoint.json").touch()
    (tmp_path / "checkpoint.json").touch()
    remove_leftovers(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint.json"]
