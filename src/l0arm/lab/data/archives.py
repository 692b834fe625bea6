"""Members of a tar archive, read into memory by exact name: nothing is ever unpacked to disk."""

import tarfile
import zlib
from collections.abc import Collection
from pathlib import Path

from l0arm.lab.data.errors import DataError
from l0arm.lab.data.storage import LIMIT

__all__ = ["read_members"]


def read_members(archive: Path, names: Collection[str], limit: int = LIMIT) -> dict[str, bytes]:
    """The content of the named members; links, devices and every other member are left alone."""
    found: dict[str, bytes] = {}
    try:
        with tarfile.open(archive, "r:*") as tar:
            for member in tar:
                name = member.name.removeprefix("./")
                if name in names and name not in found:
                    found[name] = _content(tar, member, archive, limit)
                if len(found) == len(names):
                    break
    except (tarfile.TarError, OSError, EOFError, zlib.error) as error:
        raise DataError(
            f"{archive}: is no readable tar archive ({error}), so it is damaged or cut short; "
            "put the original archive in its place"
        ) from error
    missing = [name for name in names if name not in found]
    if missing:
        raise DataError(
            f"{archive}: has no member {', '.join(missing)}; replace it with the original archive"
        )
    return found


def _content(tar: tarfile.TarFile, member: tarfile.TarInfo, archive: Path, limit: int) -> bytes:
    file = tar.extractfile(member) if member.isreg() else None
    if file is None or member.size > limit:
        raise DataError(
            f"{archive}: member {member.name} is not a plain file of at most {limit:,} bytes; "
            "replace it with the original archive"
        )
    return file.read()
