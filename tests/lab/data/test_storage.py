"""Compressed files are recognised by their content, and damage is named."""

import gzip
from pathlib import Path

import pytest

from l0arm.lab.data import DataError
from l0arm.lab.data.storage import plain_or_gz, read_content


@pytest.mark.parametrize("name", ["file", "file.gz"])
@pytest.mark.parametrize("compress", [False, True])
def test_gzip_is_known_by_its_first_bytes(name: str, compress: bool, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_bytes(gzip.compress(b"content") if compress else b"content")
    assert read_content(path) == b"content"


@pytest.mark.parametrize("keep", [5, 40, -1])
def test_a_truncated_gzip_file_is_named(keep: int, tmp_path: Path) -> None:
    path = tmp_path / "cut.gz"
    path.write_bytes(gzip.compress(bytes(range(256)) * 9)[:keep])
    with pytest.raises(DataError, match=r"cut\.gz: cannot be read to its end .* put the original"):
        read_content(path)


def test_a_damaged_gzip_file_is_named(tmp_path: Path) -> None:
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
