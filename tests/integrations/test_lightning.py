"""A small real training run under Lightning's Trainer."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.testing import assert_close
from torch.utils.data import DataLoader, TensorDataset

from l0arm import Course, Gated, certificate, sparsify
from l0arm.integrations.lightning import GatedTraining, PrunedTraining, gates_callback
from l0arm.methods._l0_best import Decide
from l0arm.models import MLP

lightning = pytest.importorskip("lightning", reason="needs pip install 'l0arm[integrations]'")
pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore:.*does not have many workers"),
    pytest.mark.filterwarnings("ignore:The number of training batches"),
    pytest.mark.filterwarnings("ignore:.*LeafSpec"),
]
ROOT = str(Path(__file__).parents[2])
X = torch.rand(64, 20, generator=torch.Generator().manual_seed(0))
Y = (X[:, 0] > 0.5).long() + 2 * (X[:, 1] > 0.5).long()


def network(method: str = "l0-arm") -> Gated:
    torch.manual_seed(0)
    return sparsify(MLP((20, 16, 12, 4)), method=method, lam=1e-5, initial=0.8)


def module(method: str = "l0-arm") -> Any:
    class Digits(GatedTraining, lightning.LightningModule):
        lr, gate_lr = 1e-2, 5e-2

        def __init__(self) -> None:
            super().__init__()
            self.gated = network(method)

        def data_loss(self, batch: list[Tensor]) -> Tensor:
            x, y = batch
            return F.cross_entropy(self.gated(x), y)

    return Digits()


def trainer(folder: Path, **settings: Any) -> Any:
    quiet = {
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "enable_checkpointing": False,
        "logger": lightning.pytorch.loggers.CSVLogger(folder),
        "accelerator": "cpu",
        "max_epochs": 2,
    }
    return lightning.Trainer(**{**quiet, **settings})


def loader(size: int = 16) -> DataLoader[Any]:
    own = torch.Generator()  # else every epoch takes a number from the stream of the draws
    return DataLoader(TensorDataset(X, Y), batch_size=size, generator=own)


def by_hand(epochs: int, method: str = "l0-arm") -> Gated:
    gated = network(method)
    optimizer = torch.optim.AdamW(gated.parameter_groups(1e-2, 5e-2, weight_decay=0.0))
    course = Course(gated, optimizer, epochs)
    torch.manual_seed(3)
    for epoch in range(epochs):
        course.begin(epoch)
        for x, y in zip(X.split(16), Y.split(16), strict=True):
            optimizer.zero_grad()
            gated.loss(lambda x=x, y=y: F.cross_entropy(gated(x), y)).backward()
            optimizer.step()
    return gated


def same(one: Gated, two: Gated) -> bool:
    other = two.state_dict()
    return all(torch.equal(value, other[name]) for name, value in one.state_dict().items())


def test_a_run_is_the_plain_loop_to_the_bit(tmp_path: Path) -> None:
    fitted, fit = module(), trainer(tmp_path, callbacks=[gates_callback()])
    torch.manual_seed(3)
    fit.fit(fitted, loader())
    expected = by_hand(2)
    assert same(fitted.gated, expected)
    assert 0 <= float(fit.callback_metrics["prune_rate"]) <= 100
    is_open = expected.per_group(expected.deterministic())["fc2"].count_nonzero()
    assert float(fit.callback_metrics["open/fc2"]) == is_open
    assert float(fit.callback_metrics["penalty"]) > 0


@pytest.mark.parametrize("method", ["l0-best", "group-lasso", "sparse-vd"])
def test_a_method_with_stages_goes_through_them(tmp_path: Path, method: str) -> None:
    fitted = module(method)
    torch.manual_seed(3)
    trainer(tmp_path, max_epochs=6).fit(fitted, loader())
    assert same(fitted.gated, by_hand(6, method))
    assert fitted.course.stage == len(fitted.gated.method.stages) - 1
    if method == "l0-best":
        assert set(fitted.gated.gates.probs.tolist()) <= {0.0, 1.0}


@pytest.mark.parametrize(("stop", "decisions"), [(3, 1), (4, 0)])
def test_a_checkpoint_goes_on_without_entering_a_stage_again(
    tmp_path: Path, stop: int, decisions: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 6 epochs, l0-best decides its gates before the fourth."""

    class Stop(lightning.Callback):  # type: ignore[name-defined, misc]
        def on_train_epoch_end(self, trainer: Any, module: Any) -> None:
            trainer.should_stop = trainer.current_epoch == stop - 1

    first = trainer(tmp_path, max_epochs=6, callbacks=[Stop()])
    first.fit(module("l0-best"), loader())
    first.save_checkpoint(tmp_path / "cut.ckpt")
    made, decide = [], Decide.__call__
    monkeypatch.setattr(Decide, "__call__", lambda *args: (made.append(1), decide(*args)))
    again = module("l0-best")
    trainer(tmp_path, max_epochs=6).fit(again, loader(), ckpt_path=tmp_path / "cut.ckpt")
    assert len(made) == decisions
    assert again.course.stage == 2


def test_a_fit_from_the_start_enters_all_stages_whatever_was_loaded(tmp_path: Path) -> None:
    first, fitted = trainer(tmp_path, max_epochs=6), module("l0-best")
    first.fit(fitted, loader())
    first.save_checkpoint(tmp_path / "end.ckpt")
    checkpoint = torch.load(tmp_path / "end.ckpt", weights_only=True)
    loaded = module("l0-best")
    loaded.on_load_checkpoint(checkpoint)  # as load_from_checkpoint does
    for again in (loaded, fitted):
        with torch.no_grad():
            again.gated.phi.fill_(0.3)
        trainer(tmp_path, max_epochs=6).fit(again, loader())
        assert set(again.gated.gates.probs.tolist()) <= {0.0, 1.0}
        assert int(again.gated.extras["average"].steps) == -1


def test_without_a_number_of_epochs_stages_are_refused(tmp_path: Path) -> None:
    endless = {"max_epochs": -1, "max_steps": 3}
    trainer(tmp_path, **endless).fit(module(), loader())
    with pytest.raises(ValueError, match=r"'l0-best' has stages .* \(max_epochs, num_train"):
        trainer(tmp_path, **endless).fit(module("l0-best"), loader())


def test_an_optimizer_without_the_gates_is_refused(tmp_path: Path) -> None:
    fitted = module()
    fitted.configure_optimizers = lambda: torch.optim.SGD(fitted.gated.model.parameters(), lr=0.1)
    with pytest.raises(ValueError, match="no optimizer trains phi"):
        trainer(tmp_path).fit(fitted, loader())


def test_half_precision_accumulation_and_clipping_train_too(tmp_path: Path) -> None:
    settings = {"accumulate_grad_batches": 2, "gradient_clip_val": 0.5, "precision": "bf16-mixed"}
    fitted, fit = module(), trainer(tmp_path, max_epochs=40, **settings)
    fit.fit(fitted, loader())
    assert fit.global_step == 80
    assert float(fit.callback_metrics["train_loss"]) < 1.3  # ln 4 = 1.39 at the start
    assert fitted.gated.phi.dtype == torch.float32
    assert_close(fitted.gated.compact().eval()(X), fitted.gated.eval()(X))


def test_a_module_without_gates_or_a_loss_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NotImplementedError, match=r"needs a data_loss\(batch\)"):
        GatedTraining().data_loss(None)
    without = module()
    without.gated = MLP((20, 4))
    with pytest.raises(TypeError, match="must be a Gated"):
        trainer(tmp_path, callbacks=[gates_callback()]).fit(without, loader())


PROGRAM = """
import sys, warnings, torch, lightning
from pathlib import Path
warnings.simplefilter("ignore")
from tests.integrations.test_lightning import loader, module, trainer
if __name__ == "__main__":
    torch.set_num_threads(1)
    fitted = module()
    torch.manual_seed(int(__import__("os").environ.get("LOCAL_RANK", 0)))
    settings = {"strategy": "ddp_find_unused_parameters_true", "devices": 2, "max_epochs": 1}
    fit = trainer(Path(sys.argv[1]), **settings)
    fit.fit(fitted, loader())
    torch.save(fitted.gated.phi.detach(), f"{sys.argv[1]}/{fit.global_rank}.pt")
"""


@pytest.mark.slow
def test_two_processes_end_with_the_same_gates(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    command = [sys.executable, str(program), str(tmp_path)]
    place = {**os.environ, "PYTHONPATH": os.pathsep.join([ROOT, *sys.path])}
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=place)
    assert done.returncode == 0, done.stderr
    one, two = (torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in (0, 1))
    assert torch.equal(one, two)
    assert not torch.equal(one, network().phi)


def pruned_module(**settings: Any) -> Any:
    class Digits(PrunedTraining, lightning.LightningModule):
        lr = 1e-2

        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)  # one unit is less than 1 % of the budget
            net = torch.nn.Sequential(
                *(torch.nn.Linear(20, 320), torch.nn.ReLU()),
                *(torch.nn.Linear(320, 240), torch.nn.ReLU(), torch.nn.Linear(240, 4)),
            )
            limit = {"flops": "30%"}
            self.gated = sparsify(net, example_inputs=X[:8], budget=limit, initial=0.95)

        def data_loss(self, batch: list[Tensor]) -> Tensor:
            x, y = batch
            return F.cross_entropy(self.gated(x), y)

    made = Digits()
    for name, value in settings.items():
        setattr(made, name, value)
    return made


def test_pruning_under_lightning_meets_the_budget_with_a_certificate(tmp_path: Path) -> None:
    fitted, fit = pruned_module(), trainer(tmp_path, max_epochs=20)
    fit.fit(fitted, loader())
    assert (fitted.pruning.steps, fitted.pruning.step, fitted.pruning.stage) == (80, 80, "done")
    budget = fitted.gated.budget
    share = float(budget.cost(fitted.gated.deterministic().double())) / budget.cost.dense
    assert 0.99 * 0.3 <= share <= 0.3
    assert certificate(fitted.small).passed
    assert not any(isinstance(part, Gated) for part in fitted.small.modules())
    assert_close(fitted.small.eval()(X), fitted.gated.eval()(X))
    assert float(fit.callback_metrics["FLOPs/realised"]) == pytest.approx(share)
    accuracy = (fitted.small(X).argmax(1) == Y).float().mean()
    assert float(accuracy) > 0.6  # by chance: 0.25


def test_a_pruning_without_a_known_length_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="the number of steps is not known"):
        trainer(tmp_path, max_epochs=-1).fit(pruned_module(), loader())
