"""Exported networks compute what the compact ones do, for batches of any size."""

import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import l0arm
from l0arm.export import ExportError, OnnxNetwork, export_onnx, export_program
from l0arm.export.parity import parity
from l0arm.models import LeNet5, WideResNet

pytest.importorskip("onnxruntime")


def compacted(model: nn.Module) -> nn.Module:
    gated = l0arm.sparsify(model, method="l0-arm", lam=0.0)
    gated.phi.data.normal_()
    return gated.compact().eval()


class Counted(nn.Module):
    """Its output depends on the size of the batch: one that is frozen would show."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(x) / x.shape[0]


@pytest.mark.parametrize(
    ("make", "shape"),
    [(LeNet5, (1, 28, 28)), (lambda: WideResNet(10, 1), (3, 16, 16))],
    ids=["lenet5", "wrn"],
)
def test_onnx_computes_the_same(
    make: Callable[[], nn.Module], shape: tuple[int, ...], tmp_path: Path
) -> None:
    small = compacted(make())
    done = export_onnx(small, torch.rand(1, *shape), tmp_path / "net.onnx", quantise=True)
    assert done.parity.differences.keys() == {1, 7, 64}
    assert done.parity.largest < 1e-5
    assert done.bytes == (tmp_path / "net.onnx").stat().st_size
    x = torch.rand(33, *shape)
    (got,) = OnnxNetwork(done.path)(x)
    with torch.no_grad():
        torch.testing.assert_close(got, small(x), rtol=1e-4, atol=1e-5)
    int8 = done.quantised
    assert int8 is not None
    assert int8.path == tmp_path / "net.int8.onnx"
    assert int8.bytes < 0.6 * done.bytes
    assert done.parity.largest < int8.parity.largest < 0.2
    assert sorted(p.name for p in tmp_path.iterdir()) == ["net.int8.onnx", "net.onnx"]


def test_the_program_computes_the_same(tmp_path: Path) -> None:
    small = compacted(LeNet5())
    done = export_program(small, torch.rand(2, 1, 28, 28), tmp_path / "net.pt2")
    x = torch.rand(5, 1, 28, 28)
    again = torch.export.load(done.path).module()
    torch.testing.assert_close(again(x), small(x), rtol=1e-5, atol=1e-6)
    assert done.parity.largest < 1e-5


def test_the_size_of_the_batch_is_not_frozen(tmp_path: Path) -> None:
    model = Counted()
    done = export_onnx(model, torch.rand(4, 3), tmp_path / "net.onnx")
    x = torch.rand(11, 3)
    with torch.no_grad():
        torch.testing.assert_close(OnnxNetwork(done.path)(x)[0], model(x))


def test_the_mode_of_the_model_stays(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(3, 2), nn.Dropout(0.5))
    export_program(model, torch.rand(2, 3), tmp_path / "net.pt2")
    assert model.training
    assert model[1].training


@pytest.mark.parametrize("export", [export_onnx, export_program])
def test_gated_models_are_refused(export: Callable[..., object], tmp_path: Path) -> None:
    gated = l0arm.sparsify(LeNet5(), method="l0-arm", lam=0.0)
    for model in (gated, nn.Sequential(gated), gated.model):
        with pytest.raises(ExportError, match=r"export what gated\.compact\(\) gives"):
            export(model, torch.rand(1, 1, 28, 28), tmp_path / "net.pt2")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("export", [export_onnx, export_program])
def test_a_file_is_not_overwritten(export: Callable[..., object], tmp_path: Path) -> None:
    path = tmp_path / "net.pt2"
    path.write_text("precious")
    with pytest.raises(FileExistsError, match=r"exists; choose another name, or .* --force"):
        export(nn.Linear(3, 2), torch.rand(2, 3), path)
    assert path.read_text() == "precious"
    export(nn.Linear(3, 2), torch.rand(2, 3), path, force=True)
    assert path.read_bytes() != b"precious"


def test_what_computes_something_else_is_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(OnnxNetwork, "__call__", lambda self, x: [torch.zeros(len(x[0]), 2)])
    with pytest.raises(ExportError, match="onnxruntime computes something else than Linear"):
        export_onnx(nn.Linear(3, 2), torch.rand(2, 3), tmp_path / "net.onnx")
    assert list(tmp_path.iterdir()) == []


def test_inputs_need_a_batch(tmp_path: Path) -> None:
    with pytest.raises(ExportError, match="whose first dimension is the batch"):
        export_onnx(nn.Linear(3, 2), torch.tensor(1.0), tmp_path / "net.onnx")


def test_a_program_has_its_ending(tmp_path: Path) -> None:
    with pytest.raises(ExportError, match=r"ends in \.pt2; got 'net\.onnx'"):
        export_program(nn.Linear(3, 2), torch.rand(2, 3), tmp_path / "net.onnx")


@pytest.mark.parametrize("package", ["onnx", "onnxscript", "onnxruntime"])
def test_a_missing_package_names_the_extra(
    package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ImportError, match=rf"export needs {package}: .*'l0arm\[export\]'"):
        export_onnx(nn.Linear(3, 2), torch.rand(2, 3), tmp_path / "net.onnx")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bert", "gpt2"])
def test_transformers(name: str, tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    from tests.helpers import tiny_transformers as tiny

    model = tiny.bert() if name == "bert" else tiny.gpt2(use_cache=False)
    inputs = {
        "input_ids": torch.randint(3, 50, (2, 7)),
        "attention_mask": torch.ones(2, 7, dtype=torch.long),
    }
    planned = l0arm.plan(model.eval(), example_kwargs={**inputs, "return_dict": False})
    gated = l0arm.sparsify(model, planned, "l0-arm", lam=0.0, initial=0.9)
    gated.phi.data.normal_(0.3, 0.5)
    small = gated.compact().eval()
    done = export_onnx(small, inputs, tmp_path / "net.onnx", quantise=True)
    assert done.parity.largest < 1e-4
    assert done.quantised is not None
    assert done.quantised.parity.largest < 0.3


def test_a_decoder_with_a_cache_is_refused_with_the_way_out(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    from tests.helpers import tiny_transformers as tiny

    ids = torch.randint(3, 50, (2, 7))
    with pytest.raises(ExportError, match=r"set model.config.use_cache = False before the export"):
        export_program(tiny.gpt2(), {"input_ids": ids}, tmp_path / "net.pt2")
    assert list(tmp_path.iterdir()) == []


class Answers(nn.Module):
    """Outputs of several kinds, none of them a plain batch of logits."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.fc, self.kind = nn.Linear(3, 4), kind

    def forward(self, x: Tensor) -> object:
        y = self.fc(x)
        if self.kind == "one number":
            return y[:, 0]
        if self.kind == "loss and choice":
            return {"loss": y.square().mean(), "y": y, "positive": y > 0}
        return y.masked_fill(torch.arange(4) > 2, -torch.inf)


@pytest.mark.parametrize("kind", ["one number", "loss and choice", "forbidden"])
def test_outputs_of_other_kinds_are_compared_too(kind: str, tmp_path: Path) -> None:
    done = export_program(Answers(kind).eval(), torch.rand(2, 3), tmp_path / "net.pt2")
    assert done.parity.largest < 1e-6
    assert done.parity.agreement == 1.0


@pytest.mark.parametrize("wrong", [torch.nan, torch.inf])
@pytest.mark.parametrize("where", [0, 1])
def test_what_is_not_finite_is_never_overlooked(wrong: float, where: int) -> None:
    model = Answers("loss and choice")

    def call(inputs: Sequence[Tensor]) -> list[Tensor]:
        with torch.no_grad():
            found = list(model(*inputs).values())
        if len(inputs[0]) == 7:
            found[where] = torch.full_like(found[where], wrong)
        return found

    assert parity(model, call, [torch.rand(2, 3)]).largest == float("inf")


def test_a_network_that_writes_into_its_input_is_compared_on_the_same_one(tmp_path: Path) -> None:
    class Centering(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(4, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.fc(x.sub_(0.5))

    x = torch.rand(3, 4)
    before = x.clone()
    made = export_program(Centering(), x, tmp_path / "network.pt2")
    assert made.parity.largest == 0.0
    assert torch.equal(x, before)


def test_a_full_disk_is_an_error_and_not_the_end_of_the_process(tmp_path: Path) -> None:
    """In a child process: torch's own writer aborts it."""
    code = (
        "import resource, sys, torch\nfrom torch import nn\n"
        "from l0arm.export import export_program\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))\n"
        "try:\n    export_program(nn.Linear(3, 2), torch.rand(4, 3), sys.argv[1])\n"
        "except OSError as error:\n    print(error.strerror)\n"
    )
    line = [sys.executable, "-W", "ignore", "-c", code, str(tmp_path / "net.pt2")]
    done = subprocess.run(line, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout.strip()) == (0, "File too large"), done.stderr[-500:]
    assert not list(tmp_path.iterdir())
