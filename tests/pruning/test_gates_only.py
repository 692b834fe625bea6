"""``prune(train="gates")``: units are chosen by forward passes alone, and no weight is changed."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import l0arm

X = torch.randn(120, 6, generator=torch.Generator().manual_seed(0))
Y = (X[:, 0] > 0).long()
BATCHES = [(X[i : i + 30], Y[i : i + 30]) for i in range(0, 120, 30)]


def network() -> nn.Module:
    """Of 12 units, the first two decide the answer."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 12), nn.BatchNorm1d(12), nn.ReLU(), nn.Linear(12, 2))
    with torch.no_grad():
        model[0].weight[0] = torch.tensor([3.0, 0, 0, 0, 0, 0])
        model[0].weight[1] = torch.tensor([-3.0, 0, 0, 0, 0, 0])
        model[0].bias[:2] = 0.0
        model[3].weight.mul_(0.1)
        model[3].weight[:, 0] = torch.tensor([-2.0, 2.0])
        model[3].weight[:, 1] = torch.tensor([2.0, -2.0])
        model[3].bias.zero_()
    return model.eval()


def errors(model: nn.Module, batch: tuple[Tensor, Tensor]) -> float:
    return (model(batch[0]).argmax(1) != batch[1]).double().mean().item()


def accuracy(model: nn.Module) -> float:
    with torch.no_grad():
        return (model(X).argmax(1) == Y).float().mean().item()


def pruned(model: nn.Module, loss: Any = errors, **options: Any) -> l0arm.PruneResult:
    settings = {"budget": "30%", "steps": 120, "seed": 0, "quiet": True, "train": "gates"}
    return l0arm.prune(model, BATCHES, loss, **(settings | options))


def test_a_frozen_model_is_cut_by_the_number_of_errors() -> None:
    model = network().requires_grad_(False)
    result = pruned(model, validate=accuracy)
    assert result.small.parameters <= 0.3 * result.dense.parameters
    assert result.small.score == result.dense.score
    assert {row["stage"] for row in result.history} == {"learn"}
    kept = result.model[0].weight
    assert any(torch.equal(row, model[0].weight[0]) for row in kept)  # as it was, bit for bit


def test_no_graph_is_made_and_no_weight_or_statistic_changes() -> None:
    model, saved, modes = network(), list[Tensor](), set[bool]()
    state = {name: value.clone() for name, value in model.state_dict().items()}

    def pack(tensor: Tensor) -> Tensor:
        saved.append(tensor)
        return tensor

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        inner = model.model if isinstance(model, l0arm.Gated) else model
        modes.add(inner.training)
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            return F.cross_entropy(model(batch[0]), batch[1])

    result = pruned(model, loss)
    assert not saved
    assert modes == {False}
    small = result.model.state_dict()
    for name in ("1.running_mean", "1.running_var", "0.weight"):
        rows = {tuple(row.flatten().tolist()) for row in state[name]}
        assert all(tuple(row.flatten().tolist()) in rows for row in small[name])


def test_what_learn_leaves_is_tuned() -> None:
    model = network()
    result = pruned(model, F.cross_entropy, learn=0.75)
    assert [row["stage"] for row in result.history].count("tune") == 30
    rows = {tuple(row.tolist()) for row in model[0].weight}
    assert not all(tuple(row.tolist()) in rows for row in result.model[0].weight)


def test_it_resumes_bit_for_bit(tmp_path: Path) -> None:
    calls = list[int]()

    def fails(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        calls.append(1)
        if len(calls) == 100:
            raise KeyboardInterrupt
        return F.cross_entropy(model(batch[0]), batch[1])

    def whole(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        return F.cross_entropy(model(batch[0]), batch[1])

    expected = pruned(network(), whole)
    with pytest.raises(KeyboardInterrupt):
        pruned(network(), fails, checkpoint=tmp_path)
    again = pruned(network(), whole, checkpoint=tmp_path)
    assert again.history == expected.history
    for ours, theirs in zip(again.model.parameters(), expected.model.parameters(), strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"train": "weights"}, "train must be 'all' or 'gates'"),
        ({"train": "all"}, "train='gates' leaves its weights as they are"),
        ({"learn": 0.5}, "nothing can train"),
        ({"precision": "fp16"}, "no gradients to scale"),
    ],
)
def test_bad_input_is_refused(options: dict[str, Any], message: str) -> None:
    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        return F.cross_entropy(model(batch[0]), batch[1])

    with pytest.raises(ValueError, match=message):
        pruned(network().requires_grad_(False), loss, **options)


@pytest.mark.parametrize("value", [float("nan"), None, "0.5", torch.zeros(2)])
def test_a_loss_that_is_no_finite_number_is_refused(value: Any) -> None:
    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Any:
        return (model(batch[0]), value)[1]

    with pytest.raises(ValueError, match="must be a finite number"):
        pruned(network(), loss)


@pytest.fixture(scope="module")
def decoder() -> tuple[nn.Module, l0arm.Plan, Tensor]:
    """A small Llama with random weights, planned with its stream and its branches."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 4}
    config = transformers.LlamaConfig(vocab_size=32, **sizes, **heads)
    model = transformers.LlamaForCausalLM(config).eval().requires_grad_(False)
    ids = torch.randint(0, 32, (2, 8))
    kwargs = {"input_ids": ids, "use_cache": False}
    return model, l0arm.plan(model, (), kwargs, stream=True, depth=True), ids


def of_next_token(model: nn.Module, batch: Tensor) -> Tensor:
    loss: Tensor = model(input_ids=batch, labels=batch, use_cache=False).loss
    return loss


# In so few steps gates may stay undecided, or not: that depends on the order of sums.
@pytest.mark.filterwarnings("ignore:the gates are not decided:l0arm.BudgetWarning")
def test_heads_units_stream_and_depth_of_a_frozen_decoder_are_chosen_together(
    decoder: tuple[nn.Module, l0arm.Plan, Tensor],
) -> None:
    model, plan, ids = decoder
    options: dict[str, Any] = {"plan": plan, "steps": 150, "seed": 0, "quiet": True}
    options |= {"example_inputs": (), "example_kwargs": {"input_ids": ids, "use_cache": False}}
    result = l0arm.prune(model, [ids], of_next_token, budget="50%", train="gates", **options)
    assert 0.4 < result.small.parameters / result.dense.parameters <= 0.5
    kinds = {group.name for group in plan.groups}
    assert {"depth", "model.embed_tokens", "model.layers.0.mlp.gate_proj"} <= kinds
    assert result.certificate is not None
    width = result.model.model.embed_tokens.weight.shape[1]  # type: ignore[union-attr]
    kept = model.model.embed_tokens.weight.T.tolist()  # type: ignore[union-attr,operator]
    rows = result.model.model.embed_tokens.weight.T.tolist()  # type: ignore[union-attr,operator]
    assert width < 16
    assert all(row in kept for row in rows)  # no weight was changed


def test_scores_that_are_slopes_are_refused_for_a_stream(
    decoder: tuple[nn.Module, l0arm.Plan, Tensor],
) -> None:
    model, plan, ids = decoder
    trained = type(model)(model.config)
    options: dict[str, Any] = {"plan": plan, "steps": 30, "quiet": True, "example_inputs": ()}
    options["example_kwargs"] = {"input_ids": ids, "use_cache": False}
    for choice in ("scores", "gates"):
        with pytest.raises(ValueError, match=r"no slope in its gates.* scores='activation'"):
            l0arm.prune(trained, [ids], of_next_token, budget="50%", choice=choice, **options)


def test_a_plan_has_its_own_patterns() -> None:
    model = network()
    plan = l0arm.plan(model, X[:2])
    with pytest.raises(ValueError, match="its own include and exclude"):
        pruned(model, plan=plan, exclude=("0",))
    assert pruned(model, plan=plan).architecture == pruned(model).architecture


class Attention(nn.Module):
    """One number is the width of queries, keys and values."""

    def __init__(self) -> None:
        super().__init__()
        self.size, self.scale = 4, 0.5
        self.q, self.k, self.v, self.out = (nn.Linear(8, 8) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        shape = (*x.shape[:-1], -1, self.size)
        q, k, v = (p(x).view(shape).transpose(1, 2) for p in (self.q, self.k, self.v))
        y = (q @ k.mT * self.scale).softmax(-1) @ v
        return self.out(y.transpose(1, 2).flatten(2))


@pytest.mark.filterwarnings("ignore::l0arm.EmptyGroupWarning")  # there are two heads only
@pytest.mark.filterwarnings("ignore:the gates are not decided:l0arm.BudgetWarning")
def test_positions_within_heads_are_chosen_by_scores_or_gates() -> None:
    """Their slopes are known: one score per position of queries, keys and values."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 8), Attention(), nn.Linear(8, 2))
    x, y = torch.randn(16, 4, 3), torch.randn(16, 4, 2)
    found = l0arm.plan(model, x[:2], head_dims=True)
    assert "1.q#dims" in {group.name for group in found.groups}
    options: dict[str, Any] = {"plan": found, "steps": 60, "seed": 0, "quiet": True}
    for choice in ("scores", "gates"):
        result = l0arm.prune(
            model, [(x, y)], nn.functional.mse_loss, budget="50%", choice=choice, **options
        )
        assert result.small.parameters <= 0.5 * result.dense.parameters
        assert result.certificate is not None
        assert result.certificate.passed
