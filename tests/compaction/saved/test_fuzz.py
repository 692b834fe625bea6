"""300 mutated folders: refused with SavedError, or the very network that was saved.

Half of the edited descriptions get the right sum again, as a forger would give them; those must not
crash either, and what they load has the tensors of the file.
"""

import json
import random
import resource
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import l0arm
from l0arm import SavedError
from l0arm.compaction.saved.description import digest
from l0arm.compaction.saved.weights import sha256_of

FOLDERS = 300
MEMORY = 20 * 2**20  # bytes: the network has some thousand weights


class Attending(nn.Module):
    """Blocks, indices, an exchanged attention and buffers in few weights."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(2, 8, 3, groups=2, bias=False), nn.BatchNorm2d(8)
        self.inner = nn.MultiheadAttention(8, 4, batch_first=True)
        self.wide, self.narrow = nn.Linear(8, 12), nn.Linear(12, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.norm(self.conv(x))).flatten(2).transpose(1, 2)
        x = x + self.inner(x, x, x)[0]
        return self.narrow(torch.relu(self.wide(x.mean(1))))


INPUT = torch.rand(2, 2, 4, 4)
Mutation = Callable[[Path, random.Random], None]
JUNK: list[Any] = [
    None,
    -1,
    0,
    2**31,
    2**70,
    1.5,
    True,
    "",
    "../../../etc/passwd",
    "__class__",
    "forward",
    [],
    {},
    [[]],
    [2**40, 2**40],
    "\ud800",
]


def flip(path: Path, chance: random.Random) -> None:
    data = bytearray(path.read_bytes())
    for _ in range(chance.choice([1, 1, 4, 32])):
        data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    path.write_bytes(bytes(data))


def cut(path: Path, chance: random.Random) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: chance.randrange(len(data))] + b"\0" * chance.choice([0, 0, 9]))


def either(mutate: Mutation) -> Mutation:
    return lambda folder, chance: mutate(
        folder / chance.choice(["l0arm.json", "model.safetensors"]), chance
    )


def places(tree: Any) -> list[tuple[Any, Any]]:
    """Every (container, key) of a JSON tree."""
    keys = list(tree) if isinstance(tree, dict) else range(len(tree))
    found = [(tree, key) for key in keys]
    for key in keys:
        if isinstance(tree[key], dict | list):
            found += places(tree[key])
    return found


def edit_json(folder: Path, chance: random.Random) -> None:
    path = folder / "l0arm.json"
    record = json.loads(path.read_text())
    for _ in range(chance.choice([1, 1, 2, 5])):
        home, key = chance.choice(places(record))
        deed = chance.randrange(4)
        if deed == 0:
            del home[key]
        elif deed == 1:
            home[key] = chance.choice(JUNK)
        elif deed == 2:
            other, place = chance.choice(places(record))
            home[key] = json.loads(json.dumps(other[place]))
        elif isinstance(home, list):
            home.insert(key, chance.choice([*JUNK, home[key]]))
        else:
            home[str(chance.choice(JUNK))] = home.pop(key)
    resign(path, record, chance)


def resign(path: Path, record: Any, chance: random.Random) -> None:
    if isinstance(record, dict) and "sha256" in record and chance.random() < 0.7:
        record["sha256"] = digest(record)
    path.write_text(json.dumps(record))


def forge(change: Callable[[dict[str, torch.Tensor], random.Random], None]) -> Mutation:
    """Other tensors, and sometimes a description that vouches for them."""

    def mutate(folder: Path, chance: random.Random) -> None:
        weights, path = folder / "model.safetensors", folder / "l0arm.json"
        tensors = load_file(weights)
        change(tensors, chance)
        save_file(tensors, weights)
        record = json.loads(path.read_text())
        if chance.random() < 0.5:
            record["tensors_sha256"] = sha256_of(weights)
        resign(path, record, chance)

    return mutate


def swap(tensors: dict[str, torch.Tensor], chance: random.Random) -> None:
    one, two = chance.sample(sorted(tensors), 2)
    tensors[one], tensors[two] = tensors[two], tensors[one]


def rename(tensors: dict[str, torch.Tensor], chance: random.Random) -> None:
    name = chance.choice(sorted(tensors))
    bad = ["../../x", "/etc/passwd", "a\0b", "__class__", "narrow.weight.data", "", "narrow.extra"]
    tensors[chance.choice(bad)] = tensors.pop(name)


def declare(folder: Path, chance: random.Random) -> None:
    """A header that declares too much."""
    path = folder / "model.safetensors"
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    entry = header[chance.choice([name for name in header if name != "__metadata__"])]
    huge = chance.choice([2**20, 2**31, 2**40, 2**47, 2**62, 2**64])
    if chance.random() < 0.5:
        entry["shape"] = [huge, *entry["shape"]]
    if chance.random() < 0.5:
        entry["data_offsets"] = chance.choice([[0, huge], [-huge, 0], [huge, 2 * huge]])
    text = json.dumps(header).encode()
    length = chance.choice([len(text), len(text), huge % 2**64])
    path.write_bytes(length.to_bytes(8, "little") + text + data[8 + length :])
    record = json.loads((folder / "l0arm.json").read_text())
    record["tensors_sha256"] = sha256_of(path)
    resign(folder / "l0arm.json", record, chance)


MUTATIONS: list[Mutation] = [
    either(flip),
    either(cut),
    edit_json,
    edit_json,
    edit_json,
    forge(swap),
    forge(rename),
    declare,
]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, bytes], nn.Module]:
    torch.manual_seed(0)
    gated = l0arm.sparsify(Attending(), example_inputs=INPUT, method="l0-arm", lam=0.0).eval()
    gated.phi.data.uniform_(-0.4, 1.0)
    folder = l0arm.save(gated, tmp_path_factory.mktemp("fuzz") / "saved", metrics={"right": 9.5})
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    return files, l0arm.load(folder, Attending)


def mutant(number: int, files: dict[str, bytes], folder: Path) -> Path:
    folder.mkdir()
    for name, data in files.items():
        (folder / name).write_bytes(data)
    MUTATIONS[number % len(MUTATIONS)](folder, random.Random(number))
    return folder


def test_every_mutant_is_refused_or_right(
    saved: tuple[dict[str, bytes], nn.Module], tmp_path: Path
) -> None:
    files, original = saved
    reasons: list[str] = []
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    tracemalloc.start()
    for number in range(FOLDERS):
        folder = mutant(number, files, tmp_path / str(number))
        tracemalloc.reset_peak()
        try:
            model = l0arm.load(folder, Attending)
        except SavedError as error:
            reasons.append(str(error))
        else:
            check_loaded(model, original, files, folder)
        assert tracemalloc.get_traced_memory()[1] < MEMORY, number
    tracemalloc.stop()
    assert 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) < 10 * MEMORY
    assert 250 < len(reasons) < FOLDERS
    assert all(20 < len(reason) < 2000 for reason in reasons)


def check_loaded(
    model: nn.Module, original: nn.Module, files: dict[str, bytes], folder: Path
) -> None:
    """The saved network itself; or, if the file of tensors was forged whole, what it holds."""
    wanted = load_file(folder / "model.safetensors")
    found = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    assert all(torch.equal(found[name], tensor) for name, tensor in wanted.items())
    if (folder / "model.safetensors").read_bytes() == files["model.safetensors"]:
        with torch.no_grad():
            assert torch.equal(model(INPUT), original(INPUT))
