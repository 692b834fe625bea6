"""Epoch records: one line each, and an incomplete last line does no harm."""

import gzip
import json
from dataclasses import asdict
from pathlib import Path

import pytest

from l0arm.lab.errors import UserError
from l0arm.lab.runs import records
from l0arm.lab.runs.records import EpochRecord, GroupRecord


def record(epoch: int) -> EpochRecord:
    return EpochRecord(
        epoch=epoch,
        steps=600 * epoch,
        lr=0.001,
        train_loss=0.5,
        penalty=0.01,
        train_accuracy=90.0,
        test_loss=0.4,
        test_accuracy=91.25,
        seconds=1.5,
        groups=(GroupRecord("fc1", 3, 2, (1, 0, 2)),),
        by_step=((1, 10.0, 5.0),),
    )


def test_a_record_comes_back(tmp_path: Path) -> None:
    path = tmp_path / "epochs.jsonl"
    for epoch in (1, 2):
        records.append(path, record(epoch))
    assert records.read(path) == [record(1), record(2)]


def test_the_compressed_copy_reads_the_same(tmp_path: Path) -> None:
    path = tmp_path / "epochs.jsonl"
    records.append(path, record(1))
    (tmp_path / "epochs.jsonl.gz").write_bytes(gzip.compress(path.read_bytes()))
    path.unlink()
    assert records.read(path) == [record(1)]


def test_later_epochs_and_a_torn_line_go(tmp_path: Path) -> None:
    path = tmp_path / "epochs.jsonl"
    for epoch in (1, 2, 3):
        records.append(path, record(epoch))
    path.write_bytes(path.read_bytes() + b'{"epoch": 4, "ste')
    assert records.read(path) == [record(1), record(2), record(3)]
    records.keep_until(path, 2)
    assert path.read_bytes().count(b"\n") == 2
    assert records.read(path) == [record(1), record(2)]


def test_a_field_of_a_later_version_is_no_obstacle(tmp_path: Path) -> None:
    path = tmp_path / "epochs.jsonl"
    records.append(path, record(1))
    path.write_text(path.read_text().replace('"epoch": 1', '"epoch": 1, "mood": "good"'))
    assert records.read(path) == [record(1)]


def test_a_folder_without_records_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no records in .*: is it the folder of a run\?"):
        records.read(tmp_path / "epochs.jsonl")


def lines(*epochs: int) -> list[bytes]:
    return [json.dumps(asdict(record(epoch))).encode() for epoch in epochs]


@pytest.mark.parametrize(
    "damaged",
    [
        lines(1, 1, 2, 3),
        lines(2, 1, 3),
        lines(3, 2, 1, 4),
        [*lines(1), b"\xff\x00", *lines(2, 3)],
        [*lines(1), b'{"epoch": 2, "st', *lines(2, 3)],
        [*lines(1), b"[" * 100_000, *lines(2, 3)],
        [*lines(1, 2, 3), lines(4)[0][:50]],
    ],
)
def test_what_can_be_repaired_is(tmp_path: Path, damaged: list[bytes]) -> None:
    path = tmp_path / "epochs.jsonl"
    path.write_bytes(b"\n".join(damaged))
    records.keep_until(path, 3)
    assert path.read_bytes().splitlines() == lines(1, 2, 3)


@pytest.mark.parametrize(
    ("damaged", "message"),
    [
        ([], "line 1: no record of epoch 1"),
        (lines(1, 3), "line 2: no record of epoch 2"),
        (lines(1, 2), "line 3: no record of epoch 3"),
        ([*lines(1), lines(2)[0][:50], *lines(3)], r"no record of epoch 2 \(line 2 cannot be read"),
        (
            [*lines(1, 2), lines(2)[0].replace(b"0.5", b"0.6"), *lines(3)],
            "line 3: there is another",
        ),
        ([*lines(1), lines(2)[0].replace(b"0.5", b'"x"'), *lines(3)], "no record of epoch 2"),
        ([*lines(1), b'{"epoch": 2}', *lines(3)], "no record of epoch 2"),
    ],
)
def test_what_cannot_be_repaired_is_refused(
    tmp_path: Path, damaged: list[bytes], message: str
) -> None:
    path = tmp_path / "epochs.jsonl"
    path.write_bytes(b"\n".join(damaged))
    before = path.read_bytes()
    with pytest.raises(ValueError, match=message):
        records.keep_until(path, 3)
    assert path.read_bytes() == before
