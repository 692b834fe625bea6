"""The one atomic writer: files and folders are replaced whole, or stay as they were."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from l0arm.files import (
    default_cache,
    parse_json,
    read_json,
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


NOT_SOUND: dict[str, tuple[bytes, str]] = {
    "cut off": (b'{"a": [1, 2', "Expecting ',' delimiter"),
    "a key twice": (b'{"a": 1, "a": 2}', "a key stands twice"),
    "no number": (b"[NaN]", "NaN is not a finite number"),
    "too large for a float": (b"[1e999]", "1e999 is not a finite number"),
    "too many digits": (b"[" + b"9" * 5000 + b"]", "limit .4300 digits"),
    "half a character": (b'["\\uD800"]', "surrogates not allowed"),
    "other encoding": ('{"a": 1}'.encode("utf-16"), "utf-8"),
    "nested lists": (b"[" * 100_000, "nested more than 64 deep"),
    "nested objects": (b'{"a":' * 65 + b"1" + b"}" * 65, "nested more than 64 deep"),
    "an open string": (b'"' + b"[" * 65, "nested more than 64 deep"),
    "many values": (b"[" + b"[]," * 2**22 + b"[]]", "more than 4,194,304 values"),
}


@pytest.mark.parametrize("what", NOT_SOUND)
def test_json_that_is_not_sound_is_refused(what: str, tmp_path: Path) -> None:
    data, reason = NOT_SOUND[what]
    (tmp_path / "file.json").write_bytes(data)
    with pytest.raises(ValueError, match=rf"file\.json is not sound JSON: .*{reason}"):
        read_json(tmp_path / "file.json")


def test_json_within_the_limits_is_read(tmp_path: Path) -> None:
    deep: object = "".join(["[{", "\\", '"'] * 500)  # brackets and quotes in text count nothing
    for _ in range(64):
        deep = [deep]
    write_json(tmp_path / "file.json", deep)
    assert read_json(tmp_path / "file.json") == deep
    assert parse_json('[1, 2.5, -3e2, null, true, "λ"]'.encode()) == [1, 2.5, -300, None, True, "λ"]


def test_no_more_of_a_file_is_read_than_its_size(tmp_path: Path) -> None:
    write_json(tmp_path / "file.json", list(range(1000)))
    with pytest.raises(ValueError, match=r"file\.json has more than 1,000 bytes"):
        read_json(tmp_path / "file.json", largest=1000)
    with pytest.raises(ValueError, match="/dev/zero is not sound JSON"):
        read_json(Path("/dev/zero"))
