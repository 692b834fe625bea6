"""The original files of a release, in a folder or in their archive, checked and parsed."""

from pathlib import Path

from l0arm.lab.data.archives import read_members
from l0arm.lab.data.cifar import parse_binary, parse_python
from l0arm.lab.data.digests import check_digest
from l0arm.lab.data.idx import parse_idx
from l0arm.lab.data.parts import Found, Part
from l0arm.lab.data.releases import DataFile, Entry, Release
from l0arm.lab.data.storage import plain_or_gz, read_content

__all__ = ["read_archive", "read_originals"]


def read_originals(release: Release, entry: Entry, base: Path) -> Found | None:
    """From the first folder that has all of the files, each plain or .gz."""
    for folder in release.homes(base):
        paths = {file: plain_or_gz(folder, file.name) for file in (*release.train, *release.test)}
        if all(path.is_file() for path in paths.values()):
            contents = {file: read_content(path) for file, path in paths.items()}
            for file, content in contents.items():
                check_digest(content, file.digest, paths[file])
            names = {file: str(path) for file, path in paths.items()}
            weak = any(file.digest.startswith("md5:") for file in paths)
            source = f"{folder} (original files, {'MD5' if weak else 'SHA-256'} verified)"
            return Found(*_parts(release, entry, contents, names), source)
    return None


def read_archive(release: Release, entry: Entry, base: Path) -> Found | None:
    """From the archive as published; nothing is unpacked to disk."""
    if release.archive is None or not (base / release.archive.name).is_file():
        return None
    path = base / release.archive.name
    check_digest(path, release.archive.digest, path)
    files = (*release.train, *release.test)
    names = {file: f"{release.folder}/{file.name}" for file in files}
    members = read_members(path, list(names.values()))
    contents = {file: members[name] for file, name in names.items()}
    for file, content in contents.items():
        check_digest(content, file.digest, f"{path}, member {names[file]}")
    # The archive's own SHA-256 was right, so the members are as strongly checked as that.
    source = f"{path} (original archive, SHA-256 verified)"
    return Found(*_parts(release, entry, contents, names), source)


def _parts(
    release: Release, entry: Entry, contents: dict[DataFile, bytes], names: dict[DataFile, str]
) -> tuple[Part, Part]:
    train, test = (
        _parse(release, entry, {names[file]: contents[file] for file in files})
        for files in (release.train, release.test)
    )
    return train, test


def _parse(release: Release, entry: Entry, contents: dict[str, bytes]) -> Part:
    if release.form == "idx":
        return parse_idx(contents, entry.classes)
    if release.form == "cifar-python":
        return parse_python(contents, entry.classes, release.label)
    return parse_binary(contents, entry.classes, release.label_bytes)
