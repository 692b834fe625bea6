"""The certificate: equal networks pass; a mistake is refused, named, and changes nothing."""

import copy
import json
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.testing import assert_close

import l0arm
from l0arm import Certificate, CertificateError, Gated, Group, Slice, certificate

LINEAR = (Slice("a.weight", 0), Slice("a.bias", 0))
HIDDEN = Group("hidden", 6, reads=(Slice("b.weight", 1),), makes=LINEAR)
SECOND = (Slice("b.weight", 0), Slice("b.bias", 0))
SECOND_HIDDEN = Group("second", 5, reads=(Slice("c.weight", 1),), makes=SECOND)


class Net(nn.Module):
    """Three layers; what happens in between is up to the test."""

    def __init__(
        self, first: Callable[..., Tensor] = torch.tanh, second: Callable[..., Any] = torch.tanh
    ) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(4, 6), nn.Linear(6, 5), nn.Linear(5, 3)
        self.first, self.second = first, second

    def forward(self, x: Tensor) -> Tensor:
        return self.c(self.second(self.b(self.first(self.a(x)))))


def gate(model: nn.Module, groups: Any = (HIDDEN, SECOND_HIDDEN), **options: Any) -> Gated:
    gated = l0arm.sparsify(model, groups, "l0-arm", lam=0.0, **options)
    size = gated.layout.gates
    gated.phi.data = torch.where(torch.arange(size) % 3 > 0, 9.0, -9.0)
    return gated


def compared(gated: Gated, inputs: Any = None, **options: Any) -> Certificate:
    """The certificate of a compaction, whether it passes or not."""
    try:
        return certificate(gated.compact(example_inputs=inputs, **options))
    except CertificateError as error:
        return error.certificate


def centred(x: Tensor) -> Tensor:
    """Mixes units: the mean of those left is another one."""
    return x - x.mean(-1, keepdim=True)


X = torch.rand(7, 4, generator=torch.Generator().manual_seed(1))


def test_equal_networks_pass_in_float64() -> None:
    found = compared(gate(Net()), X)
    assert found.passed
    assert (found.dtype, found.tolerance) == (torch.float64, 1e-10)
    assert 0 <= found.largest < 1e-14
    assert found.inputs == 4
    assert [(j.mode, j.mask) for j in found.comparisons] == [
        (mode, mask)
        for mask in ("z-bar", "one unit of each group closed", "half of the units closed")
        for mode in ("eval", "train")
    ]
    assert "equals the gated one" in str(found)


@pytest.mark.parametrize("culprit", ["hidden", "second"])
def test_a_mistake_is_refused_and_its_group_named(culprit: str) -> None:
    model = Net(**{"first" if culprit == "hidden" else "second": centred})
    gated = gate(model)
    found = compared(gated, X)
    assert not found.passed
    assert found.largest > 1e-3
    assert found.group == culprit
    with pytest.raises(CertificateError, match=f"would differ.*because of group '{culprit}'") as no:
        gated.compact(example_inputs=X)
    assert no.value.certificate == found
    assert pickle.loads(pickle.dumps(no.value)).certificate == found


def test_refused_everything_stays_as_it_was() -> None:
    gated = gate(Net(centred))
    optimizer = torch.optim.Adam(gated.parameter_groups(lr=0.1))
    F.mse_loss(gated(X), torch.zeros(7, 3)).backward()
    optimizer.step()
    held = [[id(p) for p in group["params"]] for group in optimizer.param_groups]
    before = copy.deepcopy((gated.state_dict(), optimizer.state_dict(), torch.get_rng_state()))
    with pytest.raises(CertificateError):
        gated.compact(example_inputs=X, optimizer=optimizer)
    after = (gated.state_dict(), optimizer.state_dict(), torch.get_rng_state())
    assert_close(after, before, rtol=0, atol=0)
    assert [[id(p) for p in group["params"]] for group in optimizer.param_groups] == held
    assert {p.dtype for p in gated.parameters()} == {torch.float32}
    assert gated.training


def test_a_mistake_that_only_another_mask_shows_is_refused() -> None:
    """z-bar leaves all open, where any compaction is right."""
    gated = gate(Net(centred))
    gated.phi.data.fill_(9.0)
    gated.threshold = 0.9
    found = compared(gated, X)
    masks = {j.mask for j in found.comparisons if j.difference > found.tolerance}
    assert masks == {"one unit of each group closed"}
    assert found.group == "hidden"


def test_a_mistake_in_train_mode_alone_is_refused() -> None:
    found = compared(gate(OnlyInTraining()), X)
    wrong = {j.mode for j in found.comparisons if j.difference > 1e-10}
    assert (wrong, found.group) == ({"train"}, "hidden")


class OnlyInTraining(Net):
    def forward(self, x: Tensor) -> Tensor:
        x = self.a(x)
        return self.c(torch.tanh(self.b(centred(x) if self.training else x)))


class CountsUnits(Net):
    def forward(self, x: Tensor) -> Tensor:
        return self.c(torch.tanh(self.b(self.a(x).view(len(x), 6))))


def test_a_small_network_that_does_not_run_is_refused_with_the_reason() -> None:
    with pytest.raises(CertificateError, match=r"'hidden'.*does not run: RuntimeError: shape"):
        gate(CountsUnits()).compact(example_inputs=X)


class UsesTheWeight(Net):
    def forward(self, x: Tensor) -> Tensor:
        out = super().forward(x)
        return out + self.a.weight.sum()


def test_a_weight_read_unseen_is_refused() -> None:
    found = compared(gate(UsesTheWeight()), X)
    assert not found.passed
    assert found.group == "hidden"


# Train mode


class Drops(Net):
    """Dropout in every dress; on units, so that equal random numbers do not make it equal."""

    def __init__(self, batch_norm: bool = False) -> None:
        super().__init__()
        self.module = nn.Dropout(0.5)
        self.norm = nn.BatchNorm1d(6) if batch_norm else nn.Identity()
        self.attention_dropout = 0.5

    def forward(self, x: Tensor) -> Tensor:
        x = self.module(self.norm(self.a(x)))
        x = F.dropout(x, 0.4, self.training)
        x = F.dropout(x, p=self.attention_dropout, training=self.training)
        x = torch.dropout(x, 0.3, self.training)
        x = F.alpha_dropout(x, 0.3, self.training)
        return self.c(F.dropout(torch.tanh(self.b(x)), training=self.training))


def test_dropout_is_off_in_train_mode() -> None:
    found = compared(gate(Drops()), X)
    assert found.passed
    assert found.notes == ()
    assert {j.mode for j in found.comparisons} == {"eval", "train"}


def test_attention_drops_nothing_either() -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 12, dropout=0.3, batch_first=True)
    gated = l0arm.sparsify(layer, example_inputs=torch.randn(2, 5, 8), method="l0-arm", lam=0.0)
    gated.phi.data = torch.where(torch.arange(gated.layout.gates) % 2 > 0, 9.0, -9.0)
    found = compared(gated)
    assert (found.passed, found.notes) == (True, ())


class Noisy(Net):
    def forward(self, x: Tensor) -> Tensor:
        x = self.a(x)
        x = x + torch.randn_like(x) if self.training else x
        return self.c(torch.tanh(self.b(x)))


def test_random_train_mode_is_noted_and_not_compared() -> None:
    found = compared(gate(Noisy()), X)
    assert found.passed
    assert {j.mode for j in found.comparisons} == {"eval"}
    assert found.notes == ("train mode not compared: random even without dropout",)


def normed() -> Gated:
    norm = tuple(Slice(f"norm.{k}", 0) for k in ("weight", "bias", "running_mean", "running_var"))
    group = Group("hidden", 6, HIDDEN.reads, (*HIDDEN.makes, *norm))
    return gate(Drops(batch_norm=True), [group, SECOND_HIDDEN])


def test_batch_norm_is_compared_in_both_modes_and_keeps_its_statistics() -> None:
    gated = normed()
    before = copy.deepcopy(gated.state_dict())
    found = compared(gated, X)
    assert found.passed
    assert {j.mode for j in found.comparisons} == {"eval", "train"}
    assert_close(gated.state_dict(), before, rtol=0, atol=0)


class Remembers(Net):
    """What it computes depends on how often it was called in training."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.calls = self.calls + 1  # a new tensor in the place of the buffer
        return super().forward(x) * (1 + self.calls)


def test_every_pass_sees_the_buffers_as_they_are() -> None:
    gated = gate(Remembers())
    assert compared(gated, X).passed
    assert float(gated.model.calls) == 0


def test_train_mode_that_does_not_run_is_noted() -> None:
    found = compared(normed(), X[:1])
    assert {j.mode for j in found.comparisons} == {"eval"}
    (note,) = found.notes
    assert note.startswith("train mode not compared: ValueError: Expected more than 1 value")


# Types


def in_float32(x: Tensor) -> Tensor:
    return torch.tanh(x.float()).to(x.dtype)


def test_a_forward_that_casts_down_is_compared_in_float32() -> None:
    found = compared(gate(Net(in_float32)), X)
    assert (found.dtype, found.tolerance) == (torch.float32, 1e-5)
    assert found.passed


class OnlyFloat32(Net):
    def forward(self, x: Tensor) -> Tensor:
        assert x.dtype == torch.float32
        return super().forward(x)


@pytest.mark.parametrize("culprit", [False, True])
def test_a_model_that_cannot_be_cast_is_compared_in_float32(culprit: bool) -> None:
    found = compared(gate(OnlyFloat32(centred if culprit else torch.tanh)), X)
    assert found.dtype == torch.float32
    assert found.passed != culprit
    if not culprit:
        assert found.largest > 0  # rounding


def test_float16_weights_are_compared_in_float64() -> None:
    gated = gate(Net().half())
    small = gated.compact(example_inputs=X.half())
    found = certificate(small)
    assert (found.passed, found.dtype) == (True, torch.float64)
    assert {p.dtype for p in small.parameters()} == {torch.float16}


# The verbs


def test_the_network_carries_its_certificate() -> None:
    gated = gate(Net())
    small = gated.compact(example_inputs=X)
    assert certificate(small) == compared(gated, X)
    assert_close(small.eval()(X), gated.eval()(X))
    assert small.a.out_features == 4


def test_the_certificate_survives_copies_and_casts_and_is_not_in_the_state() -> None:
    gated = gate(Net())
    small = gated.compact(example_inputs=X)
    found = certificate(small)
    assert found.passed
    assert certificate(copy.deepcopy(small)) == found
    assert certificate(small.to(torch.float64)) == found
    assert small.state_dict().keys() == gated.model.state_dict().keys()


@pytest.mark.parametrize("options", [{}, {"example_inputs": X, "certify": False}])
def test_a_network_that_was_not_compared_has_no_certificate(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"this Net has no certificate; .*example_inputs=\(x,\)"):
        certificate(gate(Net()).compact(**options))
    with pytest.raises(ValueError, match="this Linear has no certificate"):
        certificate(nn.Linear(2, 2))


def test_a_second_compaction_does_not_keep_the_certificate_of_the_first() -> None:
    small = gate(Net()).compact(example_inputs=X)
    groups = (Group("hidden", 4, HIDDEN.reads, HIDDEN.makes),)
    gated = l0arm.sparsify(small, groups, "l0-arm", lam=0.0)
    for other in (gated.compact(), l0arm.expand(gated.compact(), gated)):
        with pytest.raises(ValueError, match="no certificate"):
            certificate(other)


def test_a_record_comes_back_as_the_same_certificate_or_not_at_all() -> None:
    found = compared(gate(Net()), X)
    record = json.loads(json.dumps(found.as_record()))
    assert Certificate.from_record(record) == found
    changes = [
        {"tolerance": 1e-3},
        {"judged": []},
        {"judged": [{"mode": "eval", "mask": "z-bar"}]},
        {"inputs": "4"},
        {"dtype": "float16"},
        {"notes": [1]},
        {"more": 1},
    ]
    assert [Certificate.from_record({**record, **change}) for change in changes] == [None] * 7
    failed = compared(gate(Net(centred)), X)
    assert Certificate.from_record(failed.as_record()) is None


def test_sparsify_keeps_the_example_and_compact_uses_it() -> None:
    gated = gate(Net(centred), example_inputs=X)
    with pytest.raises(CertificateError, match="group 'hidden'"):
        gated.compact()
    assert gated.compact(certify=False).a.out_features == 4
    gated.example = None
    assert gated.compact().a.out_features == 4


def test_the_kept_example_is_a_copy() -> None:
    x = X.clone().requires_grad_()
    gated = gate(Net(), example_inputs=x)
    x.data.zero_()
    (kept,) = gated.example.args
    assert_close(kept, X)
    assert not kept.requires_grad
    assert "example" not in " ".join(gated.state_dict())


def test_outputs_need_inputs_to_compare_on() -> None:
    with pytest.raises(ValueError, match=r"needs inputs to compare on: pass example_inputs=\(x,\)"):
        gate(Net()).compact(outputs=["logits"])


def test_inputs_that_do_not_fit_are_refused_in_one_line() -> None:
    message = "does not run on the example inputs: RuntimeError: (addmm: )?mat1"
    with pytest.raises(ValueError, match=message):
        compared(gate(Net()), torch.rand(2, 9))


def test_an_output_without_a_number_is_refused() -> None:
    gated = gate(Net())
    with pytest.raises(ValueError, match="holds no finite number to compare"):
        compared(gated, torch.full((2, 4), torch.nan))
    with pytest.raises(ValueError, match="names in outputs"):
        compared(gated, X, outputs=["logits"])


class TwoOutputs(Net):
    def forward(self, x: Tensor) -> dict[str, Tensor]:
        features = self.b(torch.tanh(self.a(x)))
        return {"logits": self.c(torch.tanh(features)), "features": features}


def test_outputs_that_do_not_count_may_lose_units() -> None:
    gated = gate(TwoOutputs())
    assert compared(gated, X).group == "second"
    assert compared(gated, X, outputs=["logits"]).passed
    gated = gate(TwoOutputs(), example_inputs=X)
    assert compared(gated).group == "second"
    assert compared(gated, outputs=["logits"]).passed


def test_the_groups_together_can_be_at_fault() -> None:
    """Only when both have closed units does the product of widths change."""
    gated = gate(Together())
    found = compared(gated, X)
    assert (found.passed, found.group) == (False, "")
    assert "because of several groups together" in str(found)


class Together(Net):
    def forward(self, x: Tensor) -> Tensor:
        first = self.a(x)
        second = self.b(first)
        lost = (6 - first.shape[1]) * (5 - second.shape[1])
        return self.c(torch.tanh(second)) + lost


def test_shrink_keeps_the_example() -> None:
    gated = gate(Net(), example_inputs=X)
    assert l0arm.shrink(gated).example is gated.example


# Evidence


class ChannelAttention(nn.Module):
    """Two heads whatever is left: without one, the channels of the other are split in two."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.out = nn.Conv2d(3, 12, 3, padding=1), nn.Conv2d(12, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.stem(x)
        b, _, h, w = hidden.shape
        q = hidden.reshape(b, 2, -1, h * w)
        return self.out(((q @ q.mT).softmax(-1) @ q).reshape(b, -1, h, w))


def test_a_saturated_example_hides_no_mistake() -> None:
    """On a large image every channel attends to itself alone, however they are split."""
    torch.manual_seed(0)
    makes = (Slice("stem.weight", 0, block=6), Slice("stem.bias", 0, block=6))
    heads = Group("heads", 2, reads=(Slice("out.weight", 1, block=6),), makes=makes)
    found = compared(gate(ChannelAttention(), [heads]), torch.randn(2, 3, 16, 16))
    assert (found.passed, found.group) == (False, "heads")


def test_a_group_that_no_output_shows_is_named() -> None:
    """Equal outputs say nothing of units whose readers are zero."""
    gated = gate(Net())
    nn.init.zeros_(gated.model.c.weight)
    found = compared(gated, X)
    assert found.passed
    (note,) = found.notes
    assert note.startswith("nothing shown for 'hidden', 'second': closing units there moves no")
    assert note in str(found)
    assert note in found.as_record()["notes"]


def test_only_what_is_hidden_is_named() -> None:
    gated = gate(Net())
    nn.init.zeros_(gated.model.b.weight)
    assert compared(gated, X).notes == (
        "nothing shown for 'hidden': closing units there moves no output visibly on these inputs",
    )


class KeepsWhatItComputed(Net):
    def forward(self, x: Tensor) -> Tensor:
        self.last = self.a(x)
        return self.c(torch.tanh(self.b(self.last)))


def test_the_search_for_evidence_leaves_no_graph_behind() -> None:
    gated = gate(KeepsWhatItComputed())
    assert compared(gated, X).passed
    assert compared(gated, X).passed
