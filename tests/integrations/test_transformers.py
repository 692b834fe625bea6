"""A small real training run under Hugging Face's Trainer: a BERT from its configuration."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.testing import assert_close
from torch.utils.data import IterableDataset

from l0arm import Gated, certificate, sparsify
from l0arm.integrations.transformers import (
    GatedTrainerMixin,
    PruningTrainerMixin,
    gates_callback,
)
from l0arm.methods._l0_best import Decide

NEEDS = "needs pip install 'l0arm[integrations]'"
transformers = pytest.importorskip("transformers", reason=NEEDS)
pytest.importorskip("accelerate", reason=NEEDS)
pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore:.*pin_memory"),
    pytest.mark.filterwarnings("ignore:every unit of group"),  # there are two heads
]
RANDOM = torch.Generator().manual_seed(0)
IDS = torch.randint(3, 50, (48, 7), generator=RANDOM)
LABELS = (IDS[:, 0] > 25).long()


def network(method: str = "l0-arm") -> Gated:
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=50,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=24,
        max_position_embeddings=8,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        num_labels=2,
    )
    model = transformers.BertForSequenceClassification(config)
    example = {"input_ids": IDS[:2]}
    return sparsify(model, example_kwargs=example, method=method, lam=1e-4, initial=0.9)


@pytest.fixture(scope="module")
def gated() -> Gated:
    return network()


def trainer(gated: Any, folder: Path, **settings: Any) -> Any:
    class GatedTrainer(GatedTrainerMixin, transformers.Trainer):
        gate_lr = 5e-2

    arguments = transformers.TrainingArguments(
        str(folder),
        **{
            "per_device_train_batch_size": 16,
            "num_train_epochs": 2,
            "learning_rate": 5e-3,
            "lr_scheduler_type": "constant",
            "max_grad_norm": 0.0,
            "report_to": [],
            "save_strategy": "no",
            "disable_tqdm": True,
            "remove_unused_columns": False,
            "use_cpu": True,
            **settings,
        },
    )
    rows = [{"input_ids": x, "labels": y} for x, y in zip(IDS, LABELS, strict=True)]
    return GatedTrainer(gated, arguments, train_dataset=rows, eval_dataset=rows)


def test_a_run_learns_logs_the_gates_and_compacts(gated: Gated, tmp_path: Path) -> None:
    phi = gated.phi.detach().clone()
    made = trainer(gated, tmp_path, num_train_epochs=6, weight_decay=0.1)
    made.add_callback(gates_callback())
    before = made.evaluate()["eval_loss"]
    made.train()
    assert made.evaluate()["eval_loss"] < before
    assert not torch.equal(gated.phi, phi)
    logged = [line for line in made.state.log_history if "prune_rate" in line]
    assert [round(line["epoch"]) for line in logged] == [1, 2, 3, 4, 5, 6]
    gates = made.optimizer.param_groups[-1]
    assert gates["params"][0] is gated.phi
    assert (gates["lr"], gates["weight_decay"]) == (5e-2, 0.0)
    assert sum(len(group["params"]) for group in made.optimizer.param_groups) == len(
        list(gated.parameters())
    )
    small = gated.eval().compact().eval()
    with torch.no_grad():
        assert_close(small(IDS).logits, gated(IDS).logits, rtol=1e-4, atol=1e-5)


def test_a_method_with_stages_goes_through_them(tmp_path: Path) -> None:
    gated = network("l0-best")
    weights: list[float] = []
    made = trainer(gated, tmp_path, num_train_epochs=4, lr_scheduler_type="linear")

    class Watch(transformers.TrainerCallback):  # type: ignore[name-defined, misc]
        def on_pre_optimizer_step(self, *args: Any, **kwargs: Any) -> None:
            weights.append(gated.penalty_weight)

    made.add_callback(Watch())
    made.train()
    assert weights == [0.0] * 3 + [pytest.approx(0.5 / 0.9)] * 3 + [0.0] * 6  # 2 epochs settle
    assert set(gated.gates.probs.tolist()) <= {0.0, 1.0}
    assert int(gated.extras["average"].steps) == -1  # begun, and taken
    assert made.optimizer.param_groups[0]["lr"] == 0.0  # the scheduler's own, at its end


def test_a_checkpoint_goes_on_without_entering_a_stage_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {"num_train_epochs": 4, "save_strategy": "steps", "save_steps": 1}
    trainer(network("l0-best"), tmp_path, **settings).train()
    made, decide = [], Decide.__call__
    monkeypatch.setattr(Decide, "__call__", lambda *args: (made.append(1), decide(*args)))
    for step, decisions in ((6, 1), (7, 0)):  # after two whole epochs; one step into the third
        made.clear()
        again = trainer(network("l0-best"), tmp_path, **settings)
        again.train(resume_from_checkpoint=str(tmp_path / f"checkpoint-{step}"))
        assert len(made) == decisions


def test_data_without_a_length_has_no_epochs_to_lay_stages_over(tmp_path: Path) -> None:
    class Endless(IterableDataset[Any]):
        def __iter__(self) -> Any:
            while True:
                yield {"input_ids": IDS[0], "labels": LABELS[0]}

    made = trainer(network("l0-best"), tmp_path, max_steps=2)
    made.train_dataset = Endless()
    with pytest.raises(ValueError, match=r"'l0-best' has stages .*num_train_epochs"):
        made.train()


def test_a_training_after_one_that_was_interrupted_has_its_own_rates(tmp_path: Path) -> None:
    gated = network("l0-best")
    made = trainer(gated, tmp_path, num_train_epochs=4)

    class Interrupt(transformers.TrainerCallback):  # type: ignore[name-defined, misc]
        def on_epoch_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if state.epoch and state.epoch >= 2:  # the gates are fixed: their rate is 0
                raise KeyboardInterrupt

    interrupt = Interrupt()
    made.add_callback(interrupt)
    with pytest.raises(KeyboardInterrupt):
        made.train()
    made.remove_callback(interrupt)
    gated.phi.data.fill_(0.1)
    moved: list[bool] = []

    class Watch(transformers.TrainerCallback):  # type: ignore[name-defined, misc]
        def on_pre_optimizer_step(self, *args: Any, **kwargs: Any) -> None:
            self.before = gated.phi.detach().clone()

        def on_optimizer_step(self, *args: Any, **kwargs: Any) -> None:
            moved.append(not torch.equal(self.before, gated.phi))

    made.add_callback(Watch())
    made.train()
    assert moved == [True] * 6 + [False] * 6


def test_the_loss_of_a_step_is_the_objective(gated: Gated, tmp_path: Path) -> None:
    made = trainer(gated.train(), tmp_path)
    inputs = {"input_ids": IDS, "labels": LABELS}
    torch.manual_seed(5)
    total, outputs = made.compute_loss(gated, inputs, return_outputs=True)
    torch.manual_seed(5)
    assert_close(total, gated.loss(lambda: gated(**inputs).loss).total)
    assert outputs.logits.shape == (48, 2)
    assert "forward" not in vars(gated)


def test_a_loss_that_is_not_the_models_own_is_refused(gated: Gated, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="label_smoothing_factor"):
        trainer(gated, tmp_path, label_smoothing_factor=0.1)


def test_a_plain_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="expected a Gated"):
        trainer(torch.nn.Linear(2, 2), tmp_path)


def tied_network() -> Gated:
    """A GPT-2 whose output layer is its embedding."""
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        **{"vocab_size": 50, "n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 8},
        **{"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0},
    )
    model = transformers.GPT2LMHeadModel(config)
    return sparsify(model, example_kwargs={"input_ids": IDS[:2]}, lam=1e-4, initial=0.9)


def test_a_gated_model_with_tied_weights_is_saved_and_resumed(tmp_path: Path) -> None:
    def run(gated: Gated, epochs: int, **options: Any) -> Any:
        made = trainer(gated, tmp_path, num_train_epochs=epochs, save_strategy="epoch")
        made.train_dataset = [{"input_ids": x, "labels": x} for x in IDS]
        made.train(**options)
        return made

    gated = tied_network()
    made = run(gated, 2)
    made.save_model(str(tmp_path / "saved"))
    resumed = tied_network()
    run(resumed, 2, resume_from_checkpoint=str(tmp_path / "checkpoint-3"))
    from safetensors.torch import load_file

    loaded = tied_network()
    loaded.load_state_dict(load_file(tmp_path / "saved" / "model.safetensors"))
    for network in (resumed, loaded):
        assert network.model.lm_head.weight is network.model.transformer.wte.weight
        assert_close(network.state_dict(), gated.state_dict(), rtol=0, atol=0)


def test_pruning_under_trainer_meets_the_budget_with_a_certificate(tmp_path: Path) -> None:
    torch.manual_seed(0)
    sizes = {"vocab_size": 50, "hidden_size": 16, "intermediate_size": 300}
    config = transformers.BertConfig(
        **sizes, num_hidden_layers=1, num_attention_heads=2, num_labels=2
    )
    model = transformers.BertForSequenceClassification(config)
    example = {"input_ids": IDS[:2]}
    gated = sparsify(model, example_kwargs=example, budget={"flops": "70%"}, initial=0.95)

    class PruningTrainer(PruningTrainerMixin, transformers.Trainer):
        pass

    arguments = transformers.TrainingArguments(
        str(tmp_path),
        **{"per_device_train_batch_size": 16, "num_train_epochs": 20, "learning_rate": 5e-3},
        **{"report_to": [], "save_strategy": "no", "disable_tqdm": True, "use_cpu": True},
        remove_unused_columns=False,
    )
    rows = [{"input_ids": x, "labels": y} for x, y in zip(IDS, LABELS, strict=True)]
    run = PruningTrainer(gated, arguments, train_dataset=rows)
    run.train()
    assert gated.budget is not None
    z = gated.deterministic().double()
    share = float(gated.budget.cost(z)) / gated.budget.cost.dense
    assert 0.99 * 0.7 <= share <= 0.7
    assert run.small is not None
    assert certificate(run.small).passed
    assert_close(run.small.eval()(IDS).logits, gated.eval()(IDS).logits, rtol=1e-4, atol=1e-5)
    logged = [record for record in run.state.log_history if "FLOPs/realised" in record]
    assert len(logged) == 20
    assert logged[-1]["FLOPs/realised"] == pytest.approx(share)
