"""``l0arm bench``, of a network; the step benchmark is tested in tests/lab/bench."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Cli = Callable[[str], Any]
RUN = "runs/mlp-l0-arm/seed-0"


def test_bench_measures_all_forms_and_the_report_shows_them(trained: Cli, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    ended = trained(f"bench {RUN} --quick --threads 1 --batch 1 --batch 3")
    assert ended.code == 0, ended.err
    result = json.loads((tmp_path / RUN / "bench" / "bench.json").read_text())
    forms = result["forms"]
    assert list(forms) == ["dense", "compact", "onnx", "int8"]
    assert forms["dense"]["parameters"] == 266_610
    assert forms["dense"]["macs"] == 784 * 300 + 300 * 100 + 100 * 10
    assert forms["dense"]["bytes"] == 4 * 266_610
    assert forms["compact"]["macs"] < forms["dense"]["macs"]
    right = json.loads((tmp_path / RUN / "result.json").read_text())["test_accuracy"]
    assert forms["compact"]["accuracy"] == forms["onnx"]["accuracy"] == right
    assert forms["dense"]["accuracy"] is None
    assert abs(forms["int8"]["accuracy"] - right) < 10
    if Path("/proc/self/clear_refs").exists():
        assert all(form["peak_memory"] > form["bytes"] for form in forms.values())
    assert [(line["threads"], line["batch"]) for line in result["latency"]] == [(1, 1), (1, 3)]
    for line in result["latency"]:
        for ms in line["ms"].values():
            assert 0 < ms["low"] <= ms["median"] <= ms["high"]
    assert (tmp_path / RUN / "bench" / "bench.txt").read_text() in ended.out
    assert f"wrote {RUN}/bench/bench.txt and {RUN}/bench/bench.json" in ended.out
    assert "bench.txt exists" in trained(f"bench {RUN} --quick").err
    assert trained(f"report {RUN} --out page.html").code == 0
    html = (tmp_path / "page.html").read_text()
    assert "Bars of the latency, bytes and parameters of" in html
    assert all(f"{form['bytes']:,}</td>" in html for form in forms.values())


@pytest.mark.parametrize(
    ("folder", "home"),
    [(f"{RUN}/compact", f"{RUN}/bench"), ("small", "small-bench")],
)
def test_a_network_inside_a_run_is_measured_for_its_report(
    trained: Cli, monkeypatch: pytest.MonkeyPatch, folder: str, home: str
) -> None:
    monkeypatch.setattr("l0arm.lab.cli.bench.forms_of", lambda found, folder: {})
    result = {"quick": True, "forms": {}, "latency": []}
    monkeypatch.setattr("l0arm.lab.cli.bench.measure", lambda *args, **kwargs: result)
    assert trained(f"compact {RUN} --out {folder}").code == 0
    ended = trained(f"bench {folder} --quick")
    assert f"wrote {home}/bench.txt and {home}/bench.json" in ended.out


def test_a_part_of_the_step_benchmark_is_not_chosen_for_a_network(
    trained: Cli, tmp_path: Path
) -> None:
    ended = trained(f"bench {RUN} --only mlp")
    assert ended.refused("--only mlp chooses a part of the step benchmark")
    assert f"leave {RUN} out: l0arm bench --only mlp" in ended.err
    assert not (tmp_path / RUN / "bench").exists()


def test_report_refuses_a_measurement_that_is_none(trained: Cli, tmp_path: Path) -> None:
    (tmp_path / RUN / "bench").mkdir()
    (tmp_path / RUN / "bench" / "bench.json").write_text("{}")
    ended = trained(f"report {RUN} --out page.html")
    assert ended.code == 2
    assert f"{RUN}/bench/bench.json is not what l0arm bench writes" in ended.err
    assert not (tmp_path / "page.html").exists()
