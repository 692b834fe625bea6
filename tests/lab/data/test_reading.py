"""Gzip is recognised by content, tar members come by exact name, and damage is reported."""

import gzip
import io
import tarfile
from pathlib import Path
from types import SimpleNamespace

import pytest

from l0arm.lab.data import DataError
from l0arm.lab.data.reading import plain_or_gz, read_content, read_members


@pytest.mark.parametrize("name", ["file", "file.gz"])
@pytest.mark.parametrize("compress", [False, True])
def test_gzip_is_known_by_its_first_bytes(name: str, compress: bool, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_bytes(gzip.compress(b"content") if compress else b"content")
    assert read_content(path) == b"content"


@pytest.mark.parametrize("keep", [5, 40, -1])
def test_a_truncated_gzip_file_is_refused(keep: int, tmp_path: Path) -> None:
    path = tmp_path / "cut.gz"
    path.write_bytes(gzip.compress(bytes(range(256)) * 9)[:keep])
    with pytest.raises(DataError, match=r"cut\.gz: cannot be read to its end .* put the original"):
        read_content(path)


def test_a_damaged_gzip_file_is_refused(tmp_path: Path) -> None:
    content = bytearray(gzip.compress(bytes(range(256)) * 9))
    content[20] ^= 255
    (tmp_path / "bad.gz").write_bytes(content)
    with pytest.raises(DataError, match=r"bad\.gz: cannot be read to its end"):
        read_content(tmp_path / "bad.gz")


def test_a_gzip_bomb_is_stopped_at_the_limit(tmp_path: Path) -> None:
    path = tmp_path / "bomb.gz"
    path.write_bytes(gzip.compress(bytes(1001)))
    assert len(read_content(path, limit=1001)) == 1001
    with pytest.raises(DataError, match=r"bomb\.gz: holds more than 1,000 bytes"):
        read_content(path, limit=1000)


def test_the_plain_file_goes_before_the_compressed_one(tmp_path: Path) -> None:
    assert plain_or_gz(tmp_path, "a") == tmp_path / "a.gz"
    (tmp_path / "a").mkdir()  # a folder is no file
    assert plain_or_gz(tmp_path, "a") == tmp_path / "a.gz"
    (tmp_path / "b").touch()
    assert plain_or_gz(tmp_path, "b") == tmp_path / "b"


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
def test_a_truncated_archive_is_refused(
    keep: int, formats: SimpleNamespace, tmp_path: Path
) -> None:
    path = tmp_path / "cut.tar.gz"
    noise = bytes(i * i % 251 for i in range(5000))
    path.write_bytes(formats.tar_gz({"a": noise, "b": noise[::-1]})[:keep])
    with pytest.raises(DataError, match=r"cut\.tar\.gz: "):
        read_members(path, ["a", "b"])


@pytest.mark.parametrize(
    "headers",
    [
        {"GNU.sparse.map": "a,b"},
        {"GNU.sparse.size": "z"},
        {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.realsize": "3"},
    ],
)
def test_malformed_sparse_headers_are_refused(headers: dict[str, str], tmp_path: Path) -> None:
    path = tmp_path / "sparse.tar"
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as tar:
        info = tarfile.TarInfo("wanted")
        info.size, info.pax_headers = 3, headers
        tar.addfile(info, io.BytesIO(b"abc"))
    with pytest.raises(DataError, match=r"sparse\.tar: is no readable tar archive .* put the orig"):
        read_members(path, ["wanted"])
