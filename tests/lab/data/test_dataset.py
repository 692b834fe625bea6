"""A data set refuses what it does not promise; a split holds out training images only."""

import pytest
import torch

from l0arm.lab.data import DataError, Dataset

IMAGES = torch.arange(10 * 3 * 2 * 2).remainder(256).view(10, 3, 2, 2).to(torch.uint8)
LABELS = torch.arange(10)


def dataset(**changes: object) -> Dataset:
    fields = {
        "name": "small",
        "train_images": IMAGES,
        "train_labels": LABELS,
        "test_images": 255 - IMAGES[:2],
        "test_labels": LABELS[:2],
        "classes": 10,
        "source": "made up",
    }
    return Dataset(**{**fields, **changes})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"train_images": IMAGES.float()}, "small, train: images must be uint8 .* torch.float32"),
        ({"train_images": IMAGES[:, 0]}, r"small, train: images must be .* \(10, 2, 2\)"),
        ({"test_images": IMAGES[:2, :2]}, "small, test: images must be .* C = 1 or 3"),
        ({"test_images": IMAGES[:2, :1]}, r"images are \(3, 2, 2\), but test .* \(1, 2, 2\)"),
        ({"train_labels": LABELS.int()}, "small, train: labels must be int64"),
        ({"train_labels": LABELS[:9]}, r"labels must be int64 \(10,\), one for each image"),
        ({"test_labels": LABELS[9:] + torch.tensor([0, 1])}, "small, test: labels .* 9 to 10"),
        ({"test_labels": torch.tensor([0, -1])}, "small, test: labels must lie in 0 … 9"),
        ({"test_images": IMAGES[:0], "test_labels": LABELS[:0]}, "small, test: there is no image"),
    ],
)
def test_what_is_not_a_data_set_is_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(DataError, match=message):
        dataset(**changes)


def test_a_split_deals_out_the_training_images_and_nothing_else() -> None:
    tuning = dataset().split(held_out=3)
    assert (len(tuning.train_labels), len(tuning.test_labels)) == (7, 3)
    assert sorted(torch.cat([tuning.train_labels, tuning.test_labels]).tolist()) == list(range(10))
    # Label i belongs to image i of the original, in either part.
    assert torch.equal(tuning.train_images, IMAGES[tuning.train_labels])
    assert torch.equal(tuning.test_images, IMAGES[tuning.test_labels])
    assert tuning.source == "made up; 3 of its 10 training images held out (seed 0)"


def test_a_split_holds_out_the_last_of_the_permutation() -> None:
    order = torch.randperm(10, generator=torch.Generator().manual_seed(5))
    tuning = dataset().split(held_out=4, seed=5)
    assert tuning.test_labels.tolist() == order[6:].tolist()
    assert tuning.train_labels.tolist() == order[:6].tolist()


def test_a_split_follows_its_seed_alone() -> None:
    torch.manual_seed(1)
    first = dataset().split(4, seed=1).test_labels
    torch.manual_seed(2)
    assert torch.equal(first, dataset().split(4, seed=1).test_labels)
    assert not torch.equal(first, dataset().split(4, seed=2).test_labels)


@pytest.mark.parametrize("held_out", [0, 10, 11, -1])
def test_a_split_leaves_something_on_both_sides(held_out: int) -> None:
    with pytest.raises(DataError, match=f"small: held_out must be between 1 and 9.*{held_out}"):
        dataset().split(held_out)
