"""Values and files that are out of all bounds: one line of error, and the right exit code."""

import io
import struct
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.helpers.cli_process import run

Cli = Callable[[str], Any]
RUN = "runs/mlp-l0-arm/seed-0"
DIGITS = "9" * 5000
HEX = "0x" + "f" * 5000
DEEP = "[" * 100_000


@pytest.mark.parametrize(
    "name", ["{outside}", "../x", "a/b", "..", ".", ".hidden", "a\\\\b", "C:x", "\\u0007"]
)
def test_the_name_of_a_recipe_is_a_plain_folder_name(cli: Cli, tmp_path: Path, name: str) -> None:
    outside = tmp_path / "outside"
    text = f'name = "{name.format(outside=outside)}"\n[model]\nname = "mlp"\n'
    text += '[data]\nname = "mnist-mini"\n[method]\nname = "l0-arm"\n'
    (tmp_path / "mine.toml").write_text(text)
    before = sorted(tmp_path.parent.iterdir())
    ended = cli("train mine.toml --runs runs {quick}")
    assert ended.refused("'name': it names the folder of a run")
    assert sorted(tmp_path.parent.iterdir()) == before
    assert [path.name for path in tmp_path.iterdir()] == ["mine.toml"]


def test_the_name_of_a_file_is_the_name_of_its_recipe(cli: Cli, tmp_path: Path) -> None:
    text = '[model]\nname = "mlp"\n[data]\nname = "mnist-mini"\n[method]\nname = "l0-arm"\n'
    (tmp_path / "...toml").write_text(text)  # named ".."
    assert cli("train ...toml --runs runs {quick}").refused("'name': it names the folder")
    (tmp_path / "my recipe (2).toml").write_text(text)
    (tmp_path / "link.toml").symlink_to("my recipe (2).toml")
    assert cli("train link.toml --runs runs {quick} --quiet").code == 0


@pytest.mark.parametrize("field", ["control", "teacher.recipe", "name"])
def test_other_names_of_recipes_are_plain_as_well(cli: Cli, field: str) -> None:
    ended = cli(f"train mlp-l0-arm {{quick}} --set {field}=../x")
    assert ended.refused(f"'{field}': it names the folder of a run")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (f"train mlp-dense --set training.epochs={DIGITS}", "'training.epochs=999"),
        (f"train mlp-dense --set training.epochs={HEX}", "got a number of 6,021 digits"),
        (f"train mlp-dense --set data.name={DIGITS}", "'data.name=999"),
        (f"train mlp-dense --set data.name={DEEP}", "'data.name=[[["),
        (f"train mlp-dense --set training.epochs={'9' * 30}", "less than 2147483648"),
        ("train mlp-dense --set training.threads=100000", "less than or equal to"),
        ("train digits.toml", "recipe 'digits' is not valid TOML: Exceeds the limit"),
        ("train deep.toml", "recipe 'deep' is not valid TOML: lists and tables are nested"),
        ("train large.toml", "large.toml: it has more than"),
        ("train /dev/zero.toml", "cannot read the recipe"),
        ("data folder:~nobodyx/x", "~nobodyx"),
        ("train mlp-dense --set data.name=folder:~nobodyx/x", "~nobodyx"),
        ("train mlp-l0-arm {quick} --method ..:x", "'..' cannot be imported"),
        ("train mlp-l0-arm {quick} --method sys:exit", "'sys:exit'"),
        ("plan sys:exit --input 1,3", "SystemExit"),
        ("plan torch.nn:Identity --input 1000000,1000000,1000", "--input 1000000,1000000,1000"),
        (f"plan torch.nn:Identity --input {DIGITS}", "expected a shape"),
        (f"plan torch.nn:Identity --input {'9' * 30}", "--input 999"),
        ("plan torch.nn:Identity --input 1,3 --dtype float32,float64", "unknown type"),
    ],
    ids=range(19),
)
def test_bad_input_is_one_line(cli: Cli, tmp_path: Path, line: str, message: str) -> None:
    (tmp_path / "digits.toml").write_text(f"[training]\nepochs = {DIGITS}\n")
    (tmp_path / "deep.toml").write_text(f"a = {DEEP}\n")
    (tmp_path / "large.toml").write_text("# comment\n" * 200_000)
    ended = cli(line)
    assert ended.refused(message), ended.err[-300:]
    assert len(ended.err) < 600
    assert not list(tmp_path.rglob("recipe.json"))


@pytest.fixture
def compacted(trained: Cli) -> Cli:
    assert trained(f"compact {RUN} --out small").code == 0
    return trained


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("export small --model sys:exit", "SystemExit"),
        (f"export small --input {'9' * 30}", "--input 999"),
        (f"export small --input {DIGITS}", "--input 999"),
        ("export small --input 100000,100000,10000", "--input 100000,100000,10000"),
        (f"bench small --quick --batch {'9' * 30}", "--batch 999"),
        ("bench small --quick --batch 100000000000", "--batch 100000000000"),
    ],
    ids=range(6),
)
def test_more_than_the_machine_has_is_refused(compacted: Cli, line: str, message: str) -> None:
    ended = compacted(line)
    assert ended.refused(message), ended.err[-300:]
    assert len(ended.err) < 600


@pytest.mark.parametrize("name", ["recipe.json", "environment.json", "result.json"])
def test_deep_json_in_a_run_is_one_line(trained: Cli, tmp_path: Path, name: str) -> None:
    (tmp_path / RUN / name).write_text(DEEP)
    commands = {
        "recipe.json": [f"evaluate {RUN}", f"report {RUN}", "table table2"],
        "environment.json": ["train mlp-l0-arm {quick} --resume"],
        "result.json": [f"compare runs {RUN}", "train mlp-l0-arm {quick} --resume"],
    }
    for line in commands[name]:
        ended = trained(line)
        assert ended.refused(f"{name} is damaged"), ended.err[-300:]


def test_deep_json_in_a_measurement(trained: Cli, tmp_path: Path) -> None:
    (tmp_path / RUN / "bench").mkdir()
    (tmp_path / RUN / "bench/bench.json").write_text(DEEP)
    assert trained(f"report {RUN}").code == 2


def test_a_full_disk_ends_compact_with_one_line_and_leaves_nothing(
    trained: Cli, tmp_path: Path
) -> None:
    """A limit on the size of files acts as a full disk does, in Python and in other packages."""
    setup = "import resource\nresource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"
    ended = run(f"compact {RUN} --out small", tmp_path, setup=setup)
    assert ended.one_line("error: File too large: small", 2), ended.err
    assert not list(tmp_path.glob("*small*"))


@pytest.mark.parametrize("asked", [lambda: torch.empty(10**15), lambda: bytearray(10**18)])
def test_too_little_memory_is_one_line(
    trained: Cli, monkeypatch: pytest.MonkeyPatch, asked: Callable[[], object]
) -> None:
    monkeypatch.setattr("l0arm.lab.cli.evaluate.use_outside", lambda name: asked())
    assert trained(f"evaluate {RUN}").refused("failed: not enough memory; use a smaller", code=1)


def test_a_number_of_threads_is_limited(cli: Cli) -> None:
    ended = cli("bench --quick --threads 1000000000 --only mlp")
    assert (ended.code, "1024" in ended.err) == (2, True)


def test_a_rate_that_grows_beyond_all_numbers_fails_the_run(cli: Cli) -> None:
    ended = cli("train mlp-dense {quick} --set schedule.factor=1e300 --set schedule.every=1 -q")
    assert ended.refused("failed: epoch 2: the ", code=1)


# Data: the loaders are tested in tests/lab/data; here, that the command line shows one line.


def test_parquet_that_is_not_cifar(cli: Cli, tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    image = pytest.importorskip("PIL.Image")
    buffer = io.BytesIO()
    image.new("RGB", (32, 32)).save(buffer, "PNG")
    black = {"bytes": buffer.getvalue(), "path": "0.png"}
    broken = pyarrow.array([b"\xff\xfe"]).view(pyarrow.string())
    tables = [
        pyarrow.table({"img": [black], "label": labels})
        for labels in (["cat"], [float("nan")], [1.7], pyarrow.array([2**64 - 1], pyarrow.uint64()))
    ]
    arrays = [pyarrow.array([black]), pyarrow.array([1]), pyarrow.array([1])]
    tables.append(pyarrow.Table.from_arrays(arrays, names=["img", "label", "label"]))
    tables.append(pyarrow.table({"img": [black], "label": broken}))
    tables.append(pyarrow.table({"img": [black], "label": [1]}))  # sound, but one row
    for table in tables:
        for part in ("train", "test"):
            parquet.write_table(table, tmp_path / f"{part}-00000-of-00001.parquet")
        assert cli(f"data cifar10 --data-dir {tmp_path}").refused("error: ")


def test_bytes_of_dds_in_a_folder_of_images(cli: Cli, tmp_path: Path) -> None:
    pytest.importorskip("PIL")
    header = struct.pack("<31I", 124, 0x1007, 4, 4, *[0] * 14, 32, 4, 0x58585858, *[0] * 10)
    for part in ("train", "test"):
        (tmp_path / "pictures" / part / "cat").mkdir(parents=True)
        (tmp_path / "pictures" / part / "cat" / "a.png").write_bytes(b"DDS " + header)
    assert cli("data folder:pictures").refused("a.png: is no readable image")


def test_a_sparse_header_in_an_archive(cli: Cli, tmp_path: Path) -> None:
    with tarfile.open(
        tmp_path / "cifar-10-binary.tar.gz", "w:gz", format=tarfile.PAX_FORMAT
    ) as tar:
        info = tarfile.TarInfo("cifar-10-batches-bin/data_batch_1.bin")
        info.size, info.pax_headers = 3, {"GNU.sparse.map": "a,b"}
        tar.addfile(info, io.BytesIO(b"abc"))
    assert cli(f"data cifar10 --data-dir {tmp_path}").refused("cifar-10-binary.tar.gz")
