"""The file of l0arm bench is read back, and other contents are refused."""

import json
from pathlib import Path
from typing import Any

import pytest

from l0arm.lab.errors import UserError
from l0arm.lab.tables.bench_record import bench_file, read_bench

SPREAD = {"median": 1.0, "low": 0.5, "high": 3.0}
FORM = {"parameters": 10, "macs": 20, "bytes": 40, "accuracy": None, "peak_memory": None}
RESULT = {
    "quick": True,
    "forms": {"dense": FORM, "onnx": FORM | {"parameters": None}},
    "latency": [{"threads": 1, "batch": 16, "ms": {"dense": SPREAD, "onnx": SPREAD}}],
}


def written(run: Path, value: Any) -> Path:
    bench_file(run).parent.mkdir(parents=True, exist_ok=True)
    bench_file(run).write_text(json.dumps(value))
    return run


def test_it_is_read_back(tmp_path: Path) -> None:
    record = read_bench(written(tmp_path, RESULT))
    assert record is not None
    assert record.quick
    assert [(f.bytes, f.parameters) for f in record.forms.values()] == [(40, 10), (40, None)]
    (timed,) = record.latency
    assert (timed.threads, timed.batch, timed.ms["onnx"].high) == (1, 16, 3.0)


def test_a_run_that_was_not_measured_has_none(tmp_path: Path) -> None:
    assert read_bench(tmp_path) is None


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"forms": {}}, "forms: "),
        ({"forms": {"dense": {"parameters": 3}}}, "forms.dense.bytes: "),
        ({"forms": {"dense": FORM}}, "not every form was timed"),
        ({"latency": None}, "latency: "),
        ({"latency": [{"threads": 0, "batch": 1, "ms": {}}]}, "latency.0.threads: "),
        (
            {"latency": [RESULT["latency"][0] | {"ms": {"dense": SPREAD | {"low": 2.0}}}]},  # type: ignore[index]
            "the median does not lie between",
        ),
        (
            {"latency": [RESULT["latency"][0] | {"ms": {"dense": SPREAD | {"high": "inf"}}}]},  # type: ignore[index]
            "latency.0.ms.dense.high: ",
        ),
    ],
)
def test_what_bench_does_not_write_is_refused(
    tmp_path: Path, change: dict[str, Any], reason: str
) -> None:
    with pytest.raises(UserError, match=r"bench.json is not what l0arm bench writes") as error:
        read_bench(written(tmp_path, RESULT | change))
    assert reason in str(error.value)
    assert f"measure again with l0arm bench {tmp_path} --force" in str(error.value)


def test_a_damaged_file_is_refused(tmp_path: Path) -> None:
    bench_file(written(tmp_path, RESULT)).write_text("{")
    with pytest.raises(UserError, match="Invalid JSON"):
        read_bench(tmp_path)
