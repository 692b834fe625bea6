"""Parquet as on the hub: decoded once, verified if it is the hub's own, validated if not."""

import io
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from l0arm.lab.data import DataError, Dataset, load_dataset
from l0arm.lab.data.catalogue import DataFile, Entry, Release
from l0arm.lab.data.formats import Parquet

pyarrow = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")
Image = pytest.importorskip("PIL.Image")

RELEASE = Release(Parquet("label"), train=(), test=(), folder="plain_text")
ENTRY = Entry(10, 4, 2, (RELEASE,), ("cifar10", ""))


def png(image: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(image.transpose(1, 2, 0)).save(buffer, "PNG")
    return buffer.getvalue()


def write(path: Path, images: np.ndarray, labels: np.ndarray, label: str = "label") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    encoded = [{"bytes": png(image), "path": f"{n}.png"} for n, image in enumerate(images)]
    table = pyarrow.table({"img": encoded, label: labels.tolist(), "coarse_label": labels.tolist()})
    parquet.write_table(table, path, row_group_size=1)


@pytest.fixture
def copy(cifar: Callable[..., object], tmp_path: Path) -> Callable[..., Path]:
    """Writes cifar10's made images as Parquet into a folder, the training part in two shards."""

    def make(folder: str = "cifar10", label: str = "label") -> Path:
        made = cifar(10, "cifar-binary")
        (images, labels), test = made.train, made.test
        base = tmp_path / "data" / folder
        write(base / "train-00000-of-00002.parquet", images[:3], labels[:3], label)
        write(base / "train-00001-of-00002.parquet", images[3:], labels[3:], label)
        write(base / "test-00000-of-00001.parquet", *test, label)
        return tmp_path / "data"

    return make


def load(root: Path, entry: Entry = ENTRY, **options: object) -> Dataset:
    cache = root.parent / "cache"
    return load_dataset(
        "set", root, cache=cache, download=False, catalogue={"set": entry}, **options
    )


@pytest.mark.parametrize("folder", ["", "cifar10", "plain_text", "cifar10/plain_text"])
def test_the_images_are_those_that_went_in(
    folder: str, copy: Callable[..., Path], cifar: Callable[..., object], same: Callable[..., bool]
) -> None:
    dataset = load(copy(folder))
    assert same(dataset, cifar(10, "cifar-binary"))
    assert "content not verified" in dataset.source


def test_fine_labels(copy: Callable[..., Path], cifar: Callable[..., object]) -> None:
    entry = replace(ENTRY, classes=100, releases=(replace(RELEASE, format=Parquet("fine_label")),))
    dataset = load(copy(label="fine_label"), entry)
    assert dataset.train_labels.tolist() == cifar(10, "cifar-binary").train[1].tolist()


def test_the_hubs_own_files_are_verified(
    copy: Callable[..., Path], formats: Callable[..., object]
) -> None:
    root = copy()
    files = sorted((root / "cifar10").glob("*.parquet"))
    known = tuple(DataFile(path.name, formats.sha256(path.read_bytes())) for path in files)
    entry = replace(ENTRY, releases=(replace(RELEASE, train=known[1:], test=known[:1]),))
    assert "hub's own Parquet files, SHA-256 verified" in load(root, entry).source
    one_other = (DataFile(known[1].name, "sha256:00"), known[2])
    entry = replace(ENTRY, releases=(replace(RELEASE, train=one_other, test=known[:1]),))
    assert "content not verified" in load(root, entry).source


def test_images_are_decoded_once(copy: Callable[..., Path], same: Callable[..., bool]) -> None:
    root, reports = copy(), []

    def progress(what: str, done: int, total: int | None) -> None:
        reports.append((what, done, total))

    first = load(root, progress=progress)
    assert ("decoding train-00000-of-00002.parquet", 3, 3) in reports
    reports.clear()
    second = load(root, progress=progress)
    assert reports == []
    assert all(
        np.array_equal(getattr(first, name), getattr(second, name))
        for name in ("train_images", "train_labels", "test_images", "test_labels")
    )


def test_another_file_of_the_same_name_is_decoded_anew(copy: Callable[..., Path]) -> None:
    root = copy()
    before = load(root).test_images
    write(root / "cifar10" / "test-00000-of-00001.parquet", 255 - before.numpy(), np.array([1, 2]))
    assert np.array_equal(load(root).test_images, 255 - before)


def test_a_damaged_cache_is_not_used(copy: Callable[..., Path]) -> None:
    root = copy()
    good = load(root).train_images
    for path in (root.parent / "cache" / "decoded").iterdir():
        with np.load(path) as npz:
            arrays = dict(npz)
        arrays["images"][0, 0, 0, 0] ^= 1
        np.savez(path, **arrays)
    assert np.array_equal(load(root).train_images, good)
    for path in (root.parent / "cache" / "decoded").iterdir():
        path.write_bytes(path.read_bytes()[:-100])
    assert np.array_equal(load(root).train_images, good)


def test_a_cache_that_cannot_be_written_costs_only_time(copy: Callable[..., Path]) -> None:
    root = copy()
    (root.parent / "cache").write_text("a file where the folder should be")
    assert len(load(root).train_images) == 4


def test_a_missing_shard_is_noticed(copy: Callable[..., Path]) -> None:
    root = copy()
    (root / "cifar10" / "train-00001-of-00002.parquet").unlink()
    with pytest.raises(DataError, match="4 training and 2 test images, but 3 and 2 came"):
        load(root)


def test_a_missing_part_is_no_data_set(copy: Callable[..., Path]) -> None:
    root = copy()
    (root / "cifar10" / "test-00000-of-00001.parquet").unlink()
    with pytest.raises(DataError, match=r"data_dir .*data: has no files of set"):
        load(root)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ({"img": [b""], "other": [1]}, "has the columns img, other, but 'img' and 'label'"),
        ({"img": [{"bytes": b"x"}], "label": [1]}, "row 0: is no readable image"),
        ({"img": [{"path": "a.png"}], "label": [1]}, "row 0: 'img' holds no encoded image"),
        ({"img": [{"bytes": None}], "label": [1]}, "row 0: 'img' holds no encoded image"),
        (
            {"img": [png(np.zeros((3, 32, 31), np.uint8))], "label": [1]},
            r"row 0: an image of \(3, 32, 31\)",
        ),
        (
            {"img": [png(np.zeros((3, 32, 32), np.uint8))], "label": [10]},
            "row 0: its label is 10, but must be a whole number in 0 … 9",
        ),
        (
            {"img": [png(np.zeros((3, 32, 32), np.uint8))], "label": [None]},
            "row 0: its label is None, but must be a whole number",
        ),
    ],
)
def test_bad_content_is_refused(
    rows: dict[str, list[object]], message: str, copy: Callable[..., Path]
) -> None:
    root = copy()
    path = root / "cifar10" / "test-00000-of-00001.parquet"
    parquet.write_table(pyarrow.table(rows), path)
    with pytest.raises(DataError, match=rf"test-00000-of-00001\.parquet.*{message}"):
        load(root)


@pytest.mark.parametrize("keep", [0, 100, -1])
def test_a_truncated_file_is_refused(keep: int, copy: Callable[..., Path]) -> None:
    root = copy()
    path = root / "cifar10" / "train-00001-of-00002.parquet"
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(DataError, match=r"train-00001-of-00002\.parquet: is no readable Parquet"):
        load(root)


def refused(root: Path, table: object, message: str) -> None:
    """Put the table in the place of the test part: one line must name the file and the fault."""
    path = root / "cifar10" / "test-00000-of-00001.parquet"
    parquet.write_table(table, path)
    with pytest.raises(DataError, match=rf"test-00000-of-00001\.parquet.*{message}") as error:
        load(root)
    assert "\n" not in str(error.value)


BLACK = {"bytes": png(np.zeros((3, 32, 32), np.uint8)), "path": "0.png"}
BROKEN_TEXT = pyarrow.array([b"\xff\xfe"]).view(pyarrow.string())


@pytest.mark.parametrize(
    ("labels", "shown"),
    [
        (["cat"], "'cat'"),
        (["7"], "'7'"),
        ([float("nan")], "nan"),
        ([float("inf")], "inf"),
        ([1.7], r"1\.7"),
        ([-1], "-1"),
        (pyarrow.array([2**64 - 1], pyarrow.uint64()), "18446744073709551615"),
    ],
)
def test_labels_that_are_no_class_are_refused(
    labels: object, shown: str, copy: Callable[..., Path]
) -> None:
    table = pyarrow.table({"img": [BLACK], "label": labels})
    refused(copy(), table, f"row 0: its label is {shown}, but must be a whole number in 0 … 9; che")


def test_whole_numbers_of_any_type_are_labels(copy: Callable[..., Path]) -> None:
    root = copy()
    for labels in (pyarrow.array([3.0, 4.0]), pyarrow.array([3, 4], pyarrow.uint64())):
        table = pyarrow.table({"img": [BLACK, BLACK], "label": labels})
        parquet.write_table(table, root / "cifar10" / "test-00000-of-00001.parquet")
        assert load(root).test_labels.tolist() == [3, 4]


@pytest.mark.parametrize("names", [["img", "label", "label"], ["label", "img", "img"]])
def test_a_doubled_column_is_refused(names: list[str], copy: Callable[..., Path]) -> None:
    arrays = [pyarrow.array([BLACK if name == "img" else 1]) for name in names]
    table = pyarrow.Table.from_arrays(arrays, names=names)
    refused(copy(), table, f"has 2 columns '{names[1]}', .* get the original file")


@pytest.mark.parametrize("where", ["path", "label"])
def test_invalid_utf8_is_refused(where: str, copy: Callable[..., Path]) -> None:
    content = pyarrow.array([BLACK["bytes"]])
    paths = BROKEN_TEXT if where == "path" else pyarrow.array(["0.png"])
    image = pyarrow.StructArray.from_arrays([content, paths], names=["bytes", "path"])
    table = pyarrow.table({"img": image, "label": BROKEN_TEXT if where == "label" else [1]})
    refused(copy(), table, "is no readable Parquet file .*utf-8.* get it again")


@pytest.mark.parametrize(("announced", "count"), [(0x48, 36), (0x4C, 38), (0x49, -37)])
def test_a_wrong_number_of_rows_is_refused(
    announced: int, count: int, copy: Callable[..., Path]
) -> None:
    """37 rows are 0x4a in the footer (a zigzag number), after the header of an i64 field, 0x16."""
    root = copy()
    path = root / "cifar10" / "test-00000-of-00001.parquet"
    parquet.write_table(pyarrow.table({"img": [BLACK] * 37, "label": [1] * 37}), path)
    content = path.read_bytes()
    start = len(content) - 8 - struct.unpack("<I", content[-8:-4])[0]
    at = content.index(b"\x16\x4a", start) + 1
    path.write_bytes(content[:at] + bytes([announced]) + content[at + 1 :])
    assert parquet.read_metadata(path).num_rows == count
    with pytest.raises(DataError, match=rf"announces {count} rows, but holds \d+.* get it again"):
        load(root)
