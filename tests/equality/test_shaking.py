"""Nothing of a scratch model or its input is left at the zeros and ones that hide differences."""

import torch
from torch import nn

from l0arm.equality.example import Example
from l0arm.equality.shaking import lively, shake


def test_an_input_of_zeros_is_made_lively() -> None:
    example = Example((torch.zeros(3, 4), torch.ones(2, dtype=torch.long), torch.rand(2)))
    made = lively(example, torch.Generator().manual_seed(0))
    assert float(made.args[0].std()) > 0.5
    assert made.args[1].tolist() == [1, 1]
    assert torch.equal(made.args[2], example.args[2])


def test_shaking_moves_everything_but_keeps_variances_positive() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4))
    before = {key: value.clone() for key, value in model.state_dict().items()}
    shake(model, torch.Generator().manual_seed(0))
    after = model.state_dict()
    moved = [key for key in before if not torch.equal(before[key], after[key])]
    assert moved == [key for key in before if key != "1.num_batches_tracked"]
    assert bool((after["1.running_var"] > 0).all())
