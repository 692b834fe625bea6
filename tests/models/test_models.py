"""The networks of the paper: sizes as published, groups where Table 1 and Sec. 5.1 put them."""

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from l0arm import sparsify
from l0arm.gating.layout import resolve
from l0arm.models import MLP, LeNet5, WideResNet


def parameters(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


def weights(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters() if p.dim() > 1)


def test_the_mlp_has_784_300_100_10() -> None:
    assert weights(MLP()) == 784 * 300 + 300 * 100 + 100 * 10 == 266_200
    assert parameters(MLP()) - weights(MLP()) == 410


def test_lenet_is_that_of_caffe() -> None:
    assert weights(LeNet5()) == 430_500
    assert parameters(LeNet5()) == 431_080


def test_wrn_28_10_has_36_5_million_parameters() -> None:
    # 36,479,194, with two norms and no bias in each block; published as 36.5 M.
    with torch.device("meta"):
        model = WideResNet(28, 10)
    assert parameters(model) == 36_479_194
    assert [group.units for group in model.groups()] == [160] * 4 + [320] * 4 + [640] * 4


def test_multiply_adds_of_wrn_28_10_and_with_the_stride_in_the_second_convolution() -> None:
    # docs/paper.md: the authors' blocks with a shortcut halve the map in their second convolution.
    with torch.device("meta"):
        model, image = WideResNet(28, 10).eval(), torch.empty(1, 3, 32, 32)

    def multiply_adds() -> float:
        with FlopCounterMode(display=False) as counter:
            model(image)
        return counter.get_total_flops() / 2

    assert multiply_adds() == pytest.approx(5.24e9, rel=1e-3)
    for block in model.blocks:
        block.conv1.stride, block.conv2.stride = block.conv2.stride, block.conv1.stride
    assert multiply_adds() == pytest.approx(5.95e9, rel=1e-3)


@pytest.mark.parametrize(
    ("model", "shape"),
    [
        (MLP(), (2, 1, 28, 28)),
        (MLP(), (2, 784)),
        (LeNet5(), (2, 1, 28, 28)),
        (WideResNet(10, 1), (2, 3, 32, 32)),
        (WideResNet(16, 2, dropout=0.3), (2, 3, 32, 32)),
    ],
)
def test_ten_finite_logits_for_every_image(model: nn.Module, shape: tuple[int, ...]) -> None:
    logits = model(torch.rand(shape))
    assert logits.shape == (2, 10)
    assert logits.isfinite().all()


@pytest.mark.parametrize("model", [LeNet5(classes=7), WideResNet(10, 1, classes=7), MLP((4, 3, 7))])
def test_the_number_of_classes_is_free(model: nn.Module) -> None:
    assert list(model.parameters())[-1].shape == (7,)


@pytest.mark.parametrize(
    ("model", "units", "initial"),
    [
        (MLP(), [784, 300, 100], [0.8, 0.5, 0.5]),
        (LeNet5(), [20, 50, 800, 500], [0.5] * 4),
        (WideResNet(10, 2), [32, 64, 128], [0.7] * 3),
        (WideResNet(16, 1), [16, 16, 32, 32, 64, 64], [0.7] * 6),
    ],
)
def test_groups_and_their_initial_probabilities(
    model: nn.Module, units: list[int], initial: list[float]
) -> None:
    groups = model.groups()
    assert [group.units for group in groups] == units
    assert [group.initial for group in groups] == initial


@pytest.mark.parametrize("model", [MLP(), LeNet5(), WideResNet(10, 1)])
def test_groups_fit_their_model(model: nn.Module) -> None:
    assert resolve(model, model.groups()).gates == sum(group.units for group in model.groups())


def test_in_a_wide_resnet_only_inner_channels_are_gated() -> None:
    gated = sparsify(WideResNet(10, 1), lam=0.0)
    cut = {name.split(".")[2] for name in gated.layout.tensors}
    assert cut == {"conv1", "conv2", "norm2"}


@pytest.mark.parametrize("depth", [4, 9, 11, 12, 27])
def test_a_depth_that_is_not_6n_plus_4_is_refused(depth: int) -> None:
    with pytest.raises(ValueError, match=rf"depth must be 6 n \+ 4 .*; got {depth}"):
        WideResNet(depth, 1)


def test_strides_halve_the_image_twice() -> None:
    model = WideResNet(16, 1)
    assert model.blocks(model.conv1(torch.rand(1, 3, 32, 32))).shape == (1, 64, 8, 8)


def test_a_block_has_a_shortcut_only_where_the_shape_changes() -> None:
    model = WideResNet(16, 1)
    assert [block.shortcut is not None for block in model.blocks] == [
        False,
        False,
        True,
        False,
        True,
        False,
    ]


def test_he_initialisation_of_convolutions() -> None:
    weight = WideResNet(16, 4).blocks[5].conv2.weight
    assert weight.std().item() == pytest.approx((2 / (9 * 256)) ** 0.5, rel=0.01)
