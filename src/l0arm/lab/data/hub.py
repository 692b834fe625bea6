"""A data set in the layout of the Hugging Face hub: Parquet files named train… and test…"""

from pathlib import Path

from l0arm.lab.data.decoded import decoded_once
from l0arm.lab.data.digests import file_digest
from l0arm.lab.data.parquet import parse_parquet
from l0arm.lab.data.parts import Found, Part, join
from l0arm.lab.data.progress import Progress
from l0arm.lab.data.releases import Entry, Release

__all__ = ["read_hub_copy"]


def read_hub_copy(
    release: Release, entry: Entry, base: Path, cache: Path, progress: Progress
) -> Found | None:
    """From the first folder that has both parts; what was decoded once comes from the cache."""

    def decode(path: Path, digest: str) -> Part:
        return decoded_once(
            f"{digest}-{release.label}",
            cache,
            lambda: parse_parquet(path, entry.classes, release.label, progress),
        )

    for folder in release.homes(base):
        train, test = (sorted(folder.glob(f"{part}*.parquet")) for part in ("train", "test"))
        if train and test:
            digests = {path: file_digest(path) for path in (*train, *test)}
            known = {file.digest for file in (*release.train, *release.test)}
            verified = {f"sha256:{digest}" for digest in digests.values()} == known
            return Found(
                join([decode(path, digests[path]) for path in train]),
                join([decode(path, digests[path]) for path in test]),
                f"{folder} ({_note(verified)})",
            )
    return None


def _note(verified: bool) -> str:
    if verified:
        return "the Hugging Face hub's own Parquet files, SHA-256 verified"
    return "a Parquet copy, content not verified: these are not the Hugging Face hub's own files"
