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

from l0arm import Gated, sparsify
from l0arm.integrations.lightning import GatedTraining, gates_callback
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


def network() -> Gated:
    torch.manual_seed(0)
    return sparsify(MLP((20, 16, 12, 4)), method="l0-arm", lam=1e-5, initial=0.8)


def module() -> Any:
    class Digits(GatedTraining, lightning.LightningModule):
        lr, gate_lr = 1e-2, 5e-2

        def __init__(self) -> None:
            super().__init__()
            self.gated = network()

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


def by_hand(epochs: int) -> Gated:
    gated = network()
    optimizer = torch.optim.AdamW(gated.parameter_groups(1e-2, 5e-2, weight_decay=0.0))
    torch.manual_seed(3)
    for _ in range(epochs):
        for x, y in zip(X.split(16), Y.split(16), strict=True):
            optimizer.zero_grad()
            gated.loss(lambda x=x, y=y: F.cross_entropy(gated(x), y)).backward()
            optimizer.step()
    return gated


def test_a_run_is_the_plain_loop_to_the_bit(tmp_path: Path) -> None:
    fitted, fit = module(), trainer(tmp_path, callbacks=[gates_callback()])
    torch.manual_seed(3)
    fit.fit(fitted, loader())
    expected = by_hand(2)
    for name, parameter in fitted.gated.named_parameters():
        assert torch.equal(parameter, dict(expected.named_parameters())[name])
    assert 0 <= float(fit.callback_metrics["prune_rate"]) <= 100
    is_open = expected.per_group(expected.deterministic())["fc2"].count_nonzero()
    assert float(fit.callback_metrics["open/fc2"]) == is_open
    assert float(fit.callback_metrics["penalty"]) > 0


def test_half_precision_accumulation_and_clipping_train_too(tmp_path: Path) -> None:
    settings = {"accumulate_grad_batches": 2, "gradient_clip_val": 0.5, "precision": "bf16-mixed"}
    fitted, fit = module(), trainer(tmp_path, max_epochs=40, **settings)
    fit.fit(fitted, loader())
    assert fit.global_step == 80
    assert float(fit.callback_metrics["train_loss"]) < 1.3  # ln 4 = 1.39 at the start
    assert fitted.gated.phi.dtype == torch.float32
    assert_close(fitted.gated.compact().eval()(X), fitted.gated.eval()(X))


def test_a_module_without_gates_or_a_loss_is_told(tmp_path: Path) -> None:
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
