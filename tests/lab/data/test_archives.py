"""Members come into memory by exact name; a hostile archive can neither write nor link."""

import io
import tarfile
from pathlib import Path
from types import SimpleNamespace

import pytest

from l0arm.lab.data import DataError
from l0arm.lab.data.archives import read_members


def test_the_named_members_and_no_others(formats: SimpleNamespace, tmp_path: Path) -> None:
    path = tmp_path / "sub" / "a.tar.gz"
    path.parent.mkdir()
    hostile = {"../evil": b"x", "/abs": b"x", "f/../../evil": b"x", "other": b"x"}
    path.write_bytes(formats.tar_gz({**hostile, "./f/a": b"A", "f/a": b"second", "f/b": b"B"}))
    assert read_members(path, ["f/a", "f/b"]) == {"f/a": b"A", "f/b": b"B"}
    assert list(tmp_path.rglob("*")) == [path.parent, path]  # nothing was unpacked


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE])
def test_a_member_that_is_no_plain_file_is_refused(kind: bytes, tmp_path: Path) -> None:
    path = tmp_path / "a.tar"
    with tarfile.open(path, "w") as tar:
        info = tarfile.TarInfo("wanted")
        info.type, info.linkname = kind, "/etc/passwd"
        tar.addfile(info)
    with pytest.raises(DataError, match=r"a\.tar: member wanted is not a plain file"):
        read_members(path, ["wanted"])


def test_a_member_that_is_too_big_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.tar"
    with tarfile.open(path, "w") as tar:
        info = tarfile.TarInfo("wanted")
        info.size = 11
        tar.addfile(info, io.BytesIO(bytes(11)))
    assert read_members(path, ["wanted"], limit=11) == {"wanted": bytes(11)}
    with pytest.raises(DataError, match="member wanted is not a plain file of at most 10 bytes"):
        read_members(path, ["wanted"], limit=10)


def test_missing_members_are_named(formats: SimpleNamespace, tmp_path: Path) -> None:
    path = tmp_path / "a.tar.gz"
    path.write_bytes(formats.tar_gz({"a": b""}))
    with pytest.raises(DataError, match=r"a\.tar\.gz: has no member b, c"):
        read_members(path, ["a", "b", "c"])


@pytest.mark.parametrize("keep", [0, 10, 100, -300])
def test_a_truncated_archive_is_named(keep: int, formats: SimpleNamespace, tmp_path: Path) -> None:
    path = tmp_path / "cut.tar.gz"
    noise = bytes(i * i % 251 for i in range(5000))
    path.write_bytes(formats.tar_gz({"a": noise, "b": noise[::-1]})[:keep])
    with pytest.raises(DataError, match=r"cut\.tar\.gz: "):
        read_members(path, ["a", "b"])
