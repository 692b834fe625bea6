"""Figures share colours and need matplotlib only when drawn. Saving is atomic and repeatable."""

import subprocess
import sys
from pathlib import Path

import pytest

from l0arm.lab.plots import gate_functions, save
from l0arm.lab.plots.canvas import PALETTE, label_axes, legend_below, looks, new_figure, panel_title

FIRST_BYTES = {"png": b"\x89PNG\r\n", "svg": b"<?xml", "pdf": b"%PDF"}


def test_without_matplotlib_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match=r"pip install 'l0arm\[plots\]'"):
        new_figure(height=2.0)


def test_importing_plots_and_data_imports_no_optional_package() -> None:
    optional = ["matplotlib", "pydantic", "typer", "PIL", "pyarrow"]
    modules = "l0arm.lab.data, l0arm.lab.plots.sections"
    code = f"import sys, {modules}; print(sys.modules.keys() & {optional})"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "set()"


def test_forty_runs_look_different() -> None:
    found = looks(f"run {n}" for n in range(40))
    assert len({(look.color, look.marker) for look in found.values()}) == 40


def test_a_label_has_one_look_in_the_order_of_first_appearance() -> None:
    found = looks(["b", "a", "b"])
    assert [(label, look.color) for label, look in found.items()] == [
        ("b", PALETTE[0]),
        ("a", PALETTE[1]),
    ]


def test_a_single_point_is_a_dot() -> None:
    look = looks(["a"])["a"]
    assert (look.line(1)["marker"], look.line(2)["marker"]) == ("o", "")


@pytest.mark.parametrize(
    ("text", "columns"),
    [
        ("L0-ARM", 3),
        ("L0-ARM, MMMMMMMMMMMM", 2),
        ("L0-ARM (λ = 0.1/N), seed 0, training and inference", 1),
    ],
)
def test_a_legend_below_stays_inside_the_figure(text: str, columns: int) -> None:
    figure = new_figure(height=4.0, width=5.0)
    axes = figure.subplots()
    for n in range(4):
        axes.plot([0, 1], [n, n], label=f"{n} {text}")
    legend_below(figure, [axes])
    figure.draw_without_rendering()
    box = figure.legends[0].get_window_extent()
    assert 0 <= box.x0 < box.x1 <= figure.bbox.width
    assert box.y1 <= axes.get_window_extent().y0
    assert len(figure.legends) == 1
    assert figure.legends[0]._ncols == columns


def test_a_label_in_two_panels_is_once_in_the_legend() -> None:
    figure = new_figure(height=4.0)
    panels = figure.subplots(1, 2)
    for axes in panels:
        axes.plot([0], [0], label="both")
    panels[1].plot([0], [0], label="second")
    legend_below(figure, panels)
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["both", "second"]


def test_panels_are_lettered_only_where_there_are_several() -> None:
    assert panel_title(1, "LeNet-5", 2) == "(b) LeNet-5"
    assert panel_title(0, "LeNet-5", 1) == "LeNet-5"
    assert panel_title(30, "layer 30", 31) == "layer 30"  # beyond the alphabet


def test_axes_carry_their_labels() -> None:
    axes = new_figure(height=2.0).subplots()
    label_axes(axes, "epoch", "accuracy (%)", "MLP")
    labels = (axes.get_xlabel(), axes.get_ylabel(), axes.get_title())
    assert labels == ("epoch", "accuracy (%)", "MLP")


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


def test_a_failure_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "fig.png"
    path.write_bytes(b"old")

    def full_disk(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("l0arm.files.os.fsync", full_disk)
    with pytest.raises(OSError, match="No space left"):
        save(gate_functions(), path)
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]
