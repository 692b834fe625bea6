"""Compaction: a plain, smaller network that computes what the gated one computes in eval mode."""

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.testing import assert_close

from l0arm import Gated, Group, HardSigmoid, Patch, Slice, sparsify
from l0arm.compaction import InputSelection
from l0arm.models import MLP, LeNet5, WideResNet
from l0arm.models.pooled_conv import PooledConv2d
from l0arm.models.wide_resnet import Block

NETWORKS = ["mlp", "lenet5", "wrn"]
OWN = (MLP, LeNet5, PooledConv2d, WideResNet, Block, InputSelection)


def gate(model: nn.Module, *groups: Group, **options: Any) -> Gated:
    options = {"method": "l0-arm", "lam": 0.0, "gate": HardSigmoid(), **options}
    return sparsify(model.double(), groups, **options).double().eval()


def set_gates(gated: Gated, *z: float) -> None:
    """z-bar = z; a gate of 0 is closed for certain."""
    gated.phi.data = torch.tensor(z, dtype=gated.phi.dtype) - 0.5


def hooks(model: nn.Module) -> int:
    kinds = (
        "_forward_hooks",
        "_forward_pre_hooks",
        "_backward_hooks",
        "_forward_hooks_with_kwargs",
    )
    return sum(len(getattr(module, kind)) for module in model.modules() for kind in kinds)


# What comes out


@pytest.mark.parametrize("name", NETWORKS)
def test_it_consists_of_plain_modules(name: str, network: Any) -> None:
    net = network(name)
    small = net.gated(z=net.gates(0)).compact()
    ours = {type(m) for m in small.modules() if not type(m).__module__.startswith("torch.nn")}
    assert ours <= set(OWN)


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("copied", [False, True])
def test_it_has_no_hooks(copied: bool, name: str, network: Any) -> None:
    net = network(name)
    gated = net.gated(z=net.gates(0))
    small = (copy.deepcopy(gated) if copied else gated).compact()
    assert hooks(small) == 0


@pytest.mark.parametrize("name", NETWORKS)
def test_the_gated_model_is_untouched(name: str, network: Any) -> None:
    net = network(name)
    gated = net.gated(z=net.gates(0, fractional=True)).eval()
    before, output = copy.deepcopy(gated.state_dict()), gated(net.x)
    small = gated.compact()
    for parameter in small.parameters():
        parameter.data.zero_()
    assert_close(dict(gated.state_dict()), dict(before), rtol=0, atol=0)
    assert torch.equal(gated(net.x), output)


def test_the_gated_model_still_trains(network: Any) -> None:
    net = network("wrn")
    gated = net.gated()
    gated.compact()
    gated.loss(lambda: F.cross_entropy(gated(net.x), net.y)).total.backward()
    assert gated.phi.grad.abs().sum() > 0
    assert gated.model.blocks[0].norm2.num_batches_tracked.item() == 1


@pytest.mark.parametrize("training", [True, False])
def test_the_training_flag_is_kept(training: bool, network: Any) -> None:
    small = network("wrn").gated().train(training).compact()
    assert {module.training for module in small.modules()} == {training}


def test_the_training_flag_of_a_selection_is_its_readers(network: Any) -> None:
    net = network("lenet5")
    small = net.gated(z=net.gates(0)).eval().compact()
    assert isinstance(small.fc1, InputSelection)
    assert {module.training for module in small.modules()} == {False}


class Collector:
    """A user's hook: what it collects must go on arriving at the same place."""

    def __init__(self) -> None:
        self.seen: list[Tensor] = []

    def __call__(self, module: nn.Module, args: Any, output: Tensor) -> None:
        self.seen.append(output.detach())

    def collect(self, module: nn.Module, args: Any) -> None:
        self.seen.append(args[0])


def test_a_users_hooks_are_kept_by_reference(network: Any) -> None:
    net, collector = network("wrn"), Collector()
    gated = net.gated(z=net.gates(0))
    gated.model.conv1.register_forward_hook(collector)
    gated.model.blocks[0].register_forward_pre_hook(collector.collect)
    small = gated.compact()
    assert (hooks(small), len(collector.seen)) == (2, 0)
    small(net.x)
    assert len(collector.seen) == 2
    assert collector.seen[0].shape[0] == len(net.x)


def test_a_certificate_does_not_disturb_what_a_hook_collects(network: Any) -> None:
    net, collector = network("mlp"), Collector()
    gated = net.gated(z=net.gates(0))
    gated.model.fc1.register_forward_hook(collector)
    gated.compact(example_inputs=net.x)
    assert collector.seen == []


class Counts(nn.Module):
    """A module that hooks a method of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2, self.calls = nn.Linear(4, 3), nn.Linear(3, 2), 0
        self.register_forward_pre_hook(type(self).count)
        self.fc1.register_forward_hook(self.count_layer)

    def count(self, args: Any) -> None:
        self.calls += 1

    def count_layer(self, module: nn.Module, args: Any, output: Tensor) -> None:
        self.calls += 10

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(torch.relu(self.fc1(x)))


def test_a_hook_of_the_models_own_goes_with_it() -> None:
    makes = (Slice("fc1.weight", 0), Slice("fc1.bias", 0))
    model = Counts()
    gated = gate(model, Group("h", 3, reads=(Slice("fc2.weight", 1),), makes=makes))
    set_gates(gated, 1, 0, 1)
    small = gated.compact()
    small(torch.rand(2, 4).double())
    assert (small.calls, model.calls) == (11, 0)


def test_requires_grad_is_kept(network: Any) -> None:
    gated = network("lenet5").gated()
    gated.model.conv2.weight.requires_grad_(False)
    small = gated.compact()
    frozen = [name for name, p in small.named_parameters() if not p.requires_grad]
    assert frozen == ["conv2.weight"]


@pytest.mark.parametrize("name", NETWORKS)
def test_parameters_are_leaves_without_gradient(name: str, network: Any) -> None:
    small = network(name).gated().compact()
    parameters = list(small.parameters())
    assert all(type(p) is nn.Parameter and p.is_leaf and p.grad is None for p in parameters)


@pytest.mark.parametrize("name", NETWORKS)
def test_a_state_dict_goes_into_a_copy(name: str, network: Any) -> None:
    net = network(name)
    small = net.gated(z=net.gates(0, fractional=True)).eval().compact()
    other = copy.deepcopy(small)
    for tensor in [*other.parameters(), *other.buffers()]:
        tensor.data.zero_()
    other.load_state_dict(small.state_dict(), strict=True)
    assert torch.equal(other(net.x), small(net.x))


@pytest.mark.parametrize("name", NETWORKS)
def test_all_open_for_certain_is_the_network_itself(name: str, network: Any) -> None:
    net = network(name)
    small = net.gated(z=torch.ones_like(net.gates(0))).compact()
    assert_close(dict(small.state_dict()), dict(net.plain.state_dict()), rtol=0, atol=0)


def test_a_threshold_at_the_valley_is_used(network: Any) -> None:
    net = network("mlp")
    gated = net.gated(threshold="valley").eval()
    gated.phi.data = torch.rand(gated.phi.shape, generator=torch.Generator().manual_seed(0)) - 0.5
    small = gated.double().compact()
    width = int((gated.per_group(gated.deterministic())["fc2"] != 0).sum())
    assert small.fc1.module.out_features == width != 150
    assert_close(small(net.x), gated(net.x), rtol=1e-10, atol=1e-10)


# Shapes


def test_shapes_of_lenet(network: Any) -> None:
    net = network("lenet5")
    z = torch.zeros(1370)
    for start, stop in ((0, 5), (20, 27), (70, 70 + 40), (870, 879)):
        z[start:stop] = 1.0
    small = net.gated(z=z).compact()
    assert small.conv1.weight.shape == (5, 1, 5, 5)
    assert small.conv2.weight.shape == (3, 5, 5, 5)  # 40 flat inputs are of the first 3 filters
    assert small.fc1.module.weight.shape == (9, 40)
    assert small.fc2.weight.shape == (10, 9)
    assert small.fc1.index.tolist() == list(range(40))  # of the 48 that arrive


@pytest.mark.parametrize("name", NETWORKS)
def test_integer_attributes_are_true(name: str, network: Any) -> None:
    net = network(name)
    small = net.gated(z=net.gates(0)).compact()
    for module in small.modules():
        if isinstance(module, nn.Linear):
            assert (module.out_features, module.in_features) == module.weight.shape
        elif isinstance(module, nn.Conv2d):
            assert (module.out_channels, module.in_channels) == module.weight.shape[:2]
        elif isinstance(module, nn.BatchNorm2d):
            assert (module.num_features,) == module.weight.shape == module.running_var.shape


def test_no_selection_is_left_where_everything_is_read(network: Any) -> None:
    net = network("lenet5")
    z = net.gates(0)
    z[70:870] = 1.0
    small = net.gated(z=z).compact()
    assert type(small.fc1) is nn.Linear


def test_buffers_lose_their_closed_rows(network: Any) -> None:
    net = network("wrn")
    z = net.gates(0)
    small = net.gated(z=z).compact()
    for key in ("running_mean", "running_var"):
        expected = net.plain.blocks[0].norm2.get_buffer(key)[z[:16] != 0]
        assert torch.equal(small.blocks[0].norm2.get_buffer(key), expected)


@pytest.mark.parametrize("multiple", [1, 8])
def test_widths_are_rounded_up(multiple: int, network: Any) -> None:
    net = network("wrn")
    gated = net.gated(z=net.gates(0))
    z = gated.per_group(gated.deterministic())
    small = gated.compact(round_to=multiple)
    for name, part in z.items():
        width = small.get_submodule(name).out_channels
        assert width == -(-int((part != 0).sum()) // multiple) * multiple
    assert gated.width_multiple == 1
    gated.width_multiple = multiple
    assert_close(small.eval()(net.x), gated.eval()(net.x), rtol=1e-10, atol=1e-10)


def test_heads_of_a_round_size_are_not_opened_for_a_round_width() -> None:
    gated = gate(Heads(), Heads.group)
    set_gates(gated, 0, 0.7, 0, 0)
    assert gated.compact(round_to=2).num_heads == 1  # a head has 2 positions
    assert gated.compact(round_to=4).num_heads == 2
    x = torch.randn(3, 8).double()
    gated.width_multiple = 4
    assert_close(gated.compact()(x), gated(x))


@pytest.mark.parametrize("multiple", [0, 2.5])
def test_a_multiple_is_a_positive_integer(multiple: Any, network: Any) -> None:
    with pytest.raises(ValueError, match="must be an integer >= 1"):
        network("mlp").gated().compact(round_to=multiple)


# Other models


class TiedEmbedding(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(7, 6), nn.Linear(6, 7, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(torch.tanh(self.embed(tokens)))


def test_tied_weights_stay_tied() -> None:
    group = Group("d", 6, reads=(Slice("head.weight", 1),), makes=(Slice("embed.weight", 1),))
    gated = gate(TiedEmbedding(), group)
    set_gates(gated, 0.9, 0, 0, 0.6, 1, 0)
    small = gated.compact()
    assert small.head.weight is small.embed.weight
    assert small.embed.weight.shape == (7, 3)
    assert (small.embed.embedding_dim, small.head.in_features) == (3, 3)
    assert_close(small(torch.arange(7)), gated(torch.arange(7)))


class Heads(nn.Module):
    group = Group(
        "heads",
        4,
        reads=(Slice("out.weight", 1, block=2),),
        makes=(Slice("v.weight", 0, block=2), Slice("v.bias", 0, block=2)),
        patches=(Patch("", "num_heads"),),
    )

    def __init__(self) -> None:
        super().__init__()
        self.num_heads, self.v, self.out = 4, nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        heads = self.v(x).view(len(x), self.num_heads, 2)
        return self.out(torch.softmax(heads, -1).flatten(1))


def test_patched_attributes_are_set() -> None:
    gated = gate(Heads(), Heads.group)
    set_gates(gated, 0, 0.7, 0, 0.9)
    small = gated.compact()
    assert (small.num_heads, gated.model.num_heads) == (2, 4)
    x = torch.randn(3, 8).double()
    assert_close(small(x), gated(x))


def test_a_depthwise_convolution_keeps_its_count_of_groups() -> None:
    model = nn.Sequential(nn.Conv2d(2, 4, 1), nn.Conv2d(4, 4, 3, groups=4), nn.Conv2d(4, 3, 1))
    makes = tuple(Slice(f"{n}.{k}", 0) for n in (0, 1) for k in ("weight", "bias"))
    gated = gate(model, Group("c", 4, (Slice("2.weight", 1),), makes, (), None,
                              (Patch("1", "groups"),)))  # fmt: skip
    set_gates(gated, 1, 0, 0.6, 0)
    small = gated.compact()
    assert (small[1].groups, small[1].in_channels, small[1].out_channels) == (2, 2, 2)
    x = torch.randn(2, 2, 5, 5).double()
    assert_close(small(x), gated(x))


def test_the_inputs_of_a_single_layer_are_selected() -> None:
    group = Group("in", 5, reads=(Slice("weight", 1),), select=Slice("", -1))
    gated = gate(nn.Linear(5, 2), group)
    set_gates(gated, 0, 0.6, 1, 0, 0)
    small = gated.compact()
    x = torch.randn(3, 5).double()
    assert small.index.tolist() == [1, 2]
    assert_close(small(x), gated(x))


class ByKeyword(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Bilinear(4, 3, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(input2=x[:, :3], input1=x)


def test_a_selected_input_may_come_by_keyword() -> None:
    group = Group("in", 4, reads=(Slice("linear.weight", 1),), select=Slice("linear", -1))
    gated = gate(ByKeyword(), group)
    set_gates(gated, 1, 0, 0, 0.7)
    x = torch.randn(3, 4).double()
    assert_close(gated.compact()(x), gated(x))


class Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 6), nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.b(torch.tanh(self.a(self.b(torch.tanh(self.a(x))))))


def test_a_module_called_twice_is_cut_once() -> None:
    makes = (Slice("a.weight", 0), Slice("a.bias", 0))
    gated = gate(Twice(), Group("h", 6, reads=(Slice("b.weight", 1),), makes=makes))
    set_gates(gated, 1, 0, 0, 0.7, 0.6, 0)
    small, x = gated.compact(), torch.randn(3, 4).double()
    assert small.a.weight.shape == (3, 4)
    assert_close(small(x), gated(x))


def test_gates_on_single_weights_leave_zeros_and_the_shape() -> None:
    gated = gate(nn.Linear(3, 2), Group("w", 6, reads=(Slice("weight", None),)))
    set_gates(gated, 1, 0, 0, 0.7, 0.6, 0)
    small, x = gated.compact(), torch.randn(4, 3).double()
    assert small.weight.shape == (2, 3)
    assert (small.weight == 0).flatten().tolist() == [False, True, True, False, False, True]
    assert_close(small(x), gated(x))


def test_a_norm_without_parameters_counts_its_channels() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4, affine=False), nn.Linear(4, 2))
    names = ("0.weight", "0.bias", "1.running_mean", "1.running_var")
    makes = tuple(Slice(name, 0) for name in names)
    gated = gate(model, Group("h", 4, reads=(Slice("2.weight", 1),), makes=makes))
    set_gates(gated, 1, 0, 0.8, 0)
    small, x = gated.compact(), torch.randn(4, 3).double()
    assert small[1].num_features == 2
    assert_close(small(x), gated(x))


def test_attributes_of_other_layers_are_true() -> None:
    model = nn.Sequential(
        nn.ConvTranspose2d(2, 6, 1), nn.GroupNorm(6, 6), nn.PReLU(6), nn.Conv2d(6, 2, 1)
    )
    names = ("1.weight", "1.bias", "2.weight", "0.bias")
    makes = (Slice("0.weight", 1), *(Slice(name, 0) for name in names))
    reads, patches = (Slice("3.weight", 1),), (Patch("1", "num_groups"),)
    gated = gate(model, Group("c", 6, reads, makes, patches=patches))
    set_gates(gated, 1, 0, 0.8, 0, 0, 1)
    small, x = gated.compact(), torch.randn(2, 2, 5, 5).double()
    assert (small[0].in_channels, small[0].out_channels) == (2, 3)
    assert (small[1].num_channels, small[1].num_groups, small[2].num_parameters) == (3, 3, 3)
    assert_close(small(x), gated(x))
