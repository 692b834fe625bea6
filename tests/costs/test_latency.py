"""Latency: a median between its quartiles, every model measured, nothing left behind."""

import torch
from torch import Tensor, nn

from l0arm import sparsify
from l0arm.costs import Latency, latency
from l0arm.models import MLP


class Recorder(nn.Module):
    def __init__(self, name: str, calls: list[str]) -> None:
        super().__init__()
        self.name, self.calls = name, calls

    def forward(self, x: Tensor) -> Tensor:
        self.calls.append(self.name)
        return x


def test_quartiles_enclose_the_median() -> None:
    assert Latency.of([1.0, 2.0, 3.0, 4.0, 5.0]) == Latency(median=3.0, low=1.5, high=4.5)


def test_every_model_is_measured_and_takes_time() -> None:
    model = MLP((20, 10, 2))
    gated = sparsify(MLP((20, 10, 2)), lam=0.0)
    measured = latency({"dense": model, "gated": gated}, torch.randn(3, 20), rounds=4, calls=1)
    assert list(measured) == ["dense", "gated"]
    assert all(0 < time.low <= time.median <= time.high for time in measured.values())


def test_rounds_are_interleaved_after_a_warm_up() -> None:
    calls: list[str] = []
    models = {name: Recorder(name, calls) for name in "ab"}
    latency(models, torch.ones(1), rounds=2, calls=3)
    assert "".join(calls) == "ab" + "aaabbb" * 2


def test_models_are_measured_in_eval_mode_and_go_back_to_their_own() -> None:
    model = nn.Sequential(nn.BatchNorm1d(2), nn.BatchNorm1d(2).eval())
    before = model[0].running_mean.clone()
    latency({"model": model}, torch.randn(4, 2), rounds=2, calls=1)
    assert torch.equal(model[0].running_mean, before)
    assert [m.training for m in (model, model[0], model[1])] == [True, True, False]
