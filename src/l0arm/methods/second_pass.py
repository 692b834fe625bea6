"""The second evaluation of a step in eval mode, as the authors' code has it.

Only with BatchNorm or dropout does it matter. The first evaluation then uses the statistics of the
minibatch, the second the running ones, and their losses differ even where both draws agree. It
exists to show what the published code does (docs/wrn.md), not as a setting to choose.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Literal

import torch

from l0arm.contracts import Extra
from l0arm.gating import Gated

SecondPass = Literal["train", "eval"]


class SecondPassInEval(Extra):
    """Puts the model into eval mode for every forward pass without a graph."""

    @contextmanager
    def active(self, gated: Gated) -> Iterator[None]:
        """The first evaluation of a step has a graph and stays in training mode."""
        modules = () if torch.is_grad_enabled() else gated.model.modules()
        training = [module for module in modules if module.training]
        for module in training:
            module.training = False
        try:
            yield
        finally:
            for module in training:
                module.training = True


def second_pass_in_eval(gated: Gated) -> Mapping[str, Extra]:
    """The extra of ``l0_arm(second_pass="eval")``."""
    return {"second_pass": SecondPassInEval()}
