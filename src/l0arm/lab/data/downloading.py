"""Published files fetched over HTTP into the cache, each checked before it is there."""

import http.client
import urllib.error
import urllib.request
from pathlib import Path

from l0arm.files import replacing
from l0arm.lab.data.digests import check_digest
from l0arm.lab.data.errors import DataError
from l0arm.lab.data.progress import Progress
from l0arm.lab.data.releases import Release
from l0arm.lab.data.storage import LIMIT, read_content

__all__ = ["download_release"]

TIMEOUT = 8.0  # seconds without a connection or a byte: a machine without internet fails over fast
CHUNK = 1 << 18


def download_release(release: Release, mirror: str, folder: Path, progress: Progress) -> None:
    """Put the files of a release, or its archive, into ``folder``; nothing unchecked stays there.

    IDX files are published as .gz and kept decompressed.
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
    # http.client ends a short body without a word.
    if total is not None and done != total:
        raise DataError(f"{url}: sent {done:,} of {total:,} bytes")
