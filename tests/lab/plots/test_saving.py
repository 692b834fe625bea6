"""Files of figures: their format, the same bytes twice, and whole or not there."""

from pathlib import Path

import pytest

from l0arm.lab.plots import gate_functions, save

FIRST_BYTES = {"png": b"\x89PNG\r\n", "svg": b"<?xml", "pdf": b"%PDF"}


@pytest.mark.parametrize("kind", FIRST_BYTES)
def test_the_suffix_names_the_format_and_the_bytes_repeat(tmp_path: Path, kind: str) -> None:
    one, other = tmp_path / "new" / f"one.{kind}", tmp_path / f"other.{kind}"
    for path in (one, other):
        save(gate_functions(), path)
    assert one.read_bytes().startswith(FIRST_BYTES[kind])
    assert one.read_bytes() == other.read_bytes()
    assert one.stat().st_mode & 0o777 == 0o644


def test_another_suffix_is_refused(tmp_path: Path) -> None:
    for name, came in (("fig.gif", ".gif"), ("fig", "no suffix")):
        with pytest.raises(ValueError, match=rf"\.png, \.svg or \.pdf; got {came}"):
            save(gate_functions(), tmp_path / name)
    assert list(tmp_path.iterdir()) == []


def test_what_fails_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "fig.png"
    path.write_bytes(b"old")

    def full_disk(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("l0arm.files.os.fsync", full_disk)
    with pytest.raises(OSError, match="No space left"):
        save(gate_functions(), path)
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]
