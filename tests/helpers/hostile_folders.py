"""Damage and forgery of saved folders: bit flips, cut files, edited descriptions, hostile numbers.

Most forged descriptions get the right checksum again, as a forger would give them.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from l0arm.compaction.saved.description import digest
from l0arm.compaction.saved.weights import sha256_of

Mutation = Callable[[Path, random.Random], None]
HUGE = (2**20, 2**31, 2**40, 2**47, 2**62, 2**63, 2**64, 2**70, 10**18, 10**400)
JUNK: list[Any] = [
    *(None, -1, 0, 1, *HUGE, -(10**400), 1.5, -0.0, 1e308, True, "", "a" * 10**5, "\x1b[2J"),
    *("../../../etc/passwd", "__class__", "forward", "training", "\ud800", "\U0001f600"),
    *([], {}, [[]], [2**40, 2**40], [{}], {"": {}}),
]
BAD_NAMES = ["../../x", "/etc/passwd", "a\0b", "__class__", "narrow.weight.data", "", "extra"]


def flip(path: Path, chance: random.Random) -> None:
    """Flip one bit or several."""
    data = bytearray(path.read_bytes())
    for _ in range(chance.choice([1, 1, 4, 32])):
        data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    path.write_bytes(bytes(data))


def cut(path: Path, chance: random.Random) -> None:
    """Cut the end off, or replace it by zeros."""
    data = path.read_bytes()
    path.write_bytes(data[: chance.randrange(len(data))] + b"\0" * chance.choice([0, 0, 9]))


def either(mutate: Mutation) -> Mutation:
    """Apply to the description or to the tensors."""
    return lambda folder, chance: mutate(
        folder / chance.choice(["l0arm.json", "model.safetensors"]), chance
    )


def remove(folder: Path, chance: random.Random) -> None:
    """A file is missing, a folder, or the other file."""
    names = ["l0arm.json", "model.safetensors"]
    chance.shuffle(names)
    way, path = chance.randrange(4), folder / names[0]
    data = path.read_bytes()
    path.unlink()
    if way == 1:
        path.mkdir()
    elif way == 2:
        path.write_bytes((folder / names[1]).read_bytes())
    elif way == 3:
        path.write_bytes(data + data)


def place_in(tree: Any, chance: random.Random, numbers: bool = False) -> tuple[Any, Any]:
    """A random (container, key) of a JSON tree; every branch is as likely as its neighbours.

    With ``numbers``, that of a number, if the way leads to one.
    """
    while True:
        key = chance.choice(list(tree) if isinstance(tree, dict) else range(len(tree)))
        inner = tree[key]
        if not isinstance(inner, dict | list) or not inner:
            return tree, key
        if not numbers and chance.random() < 0.3:
            return tree, key
        tree = inner


def write_description(folder: Path, record: Any, chance: random.Random, share: float = 0.7) -> None:
    """Write a description, in most cases with the right checksum."""
    if isinstance(record, dict) and "sha256" in record and chance.random() < share:
        record["sha256"] = digest(record)
    (folder / "l0arm.json").write_text(json.dumps(record))


def edit(folder: Path, chance: random.Random) -> None:
    """Delete, replace, move or insert parts of the description, anywhere in its tree."""
    record = json.loads((folder / "l0arm.json").read_text())
    for _ in range(chance.choice([1, 1, 2, 5])):
        _edit_once(record, chance)
    write_description(folder, record, chance)


def edit_numbers(folder: Path, chance: random.Random) -> None:
    """Replace numbers of the description by others, mostly by huge ones."""
    record = json.loads((folder / "l0arm.json").read_text())
    for _ in range(chance.choice([1, 2, 8])):
        home, key = place_in(record, chance, numbers=True)
        if type(home[key]) in (int, float):
            n = home[key]
            home[key] = chance.choice([*HUGE, -1, 0, 1, n + 1, -n, 2 * n, -(10**400)])
    write_description(folder, record, chance, 0.9)


def swap_fields(folder: Path, chance: random.Random) -> None:
    """Exchange two parts of the description."""
    record = json.loads((folder / "l0arm.json").read_text())
    (one, a), (two, b) = place_in(record, chance), place_in(record, chance)
    one[a], two[b] = json.loads(json.dumps(two[b])), json.loads(json.dumps(one[a]))
    write_description(folder, record, chance, 0.9)


def _edit_once(record: Any, chance: random.Random) -> None:
    home, key = place_in(record, chance)
    way = chance.randrange(4)
    if way == 0:
        del home[key]
    elif way == 1:
        home[key] = chance.choice(JUNK)
    elif way == 2:
        other, place = place_in(record, chance)
        home[key] = json.loads(json.dumps(other[place]))
    elif isinstance(home, list):
        home.insert(key, chance.choice([*JUNK, home[key]]))
    else:
        home[str(chance.choice(JUNK[:5] + JUNK[-10:]))] = home.pop(key)


def repeat(folder: Path, chance: random.Random) -> None:
    """A part of the description many times, which costs the reader more than the writer."""
    record = json.loads((folder / "l0arm.json").read_text())
    group = chance.choice(record["groups"])
    times = chance.choice([1_000, 10_000, 100_000])
    way = chance.randrange(8)
    if way == 0:
        record["groups"] = [dict(group, name=f"g{n}") for n in range(times // 10)]
    elif way == 1:
        record["groups"] = [group] * (times // 10)
    elif way == 2:
        group["reads"] = group["reads"] * times
    elif way == 3:
        record["replaced"] = (record["replaced"] or ["fc1"]) * times
    elif way == 4:
        name = max(record["original"], key=lambda key: math.prod(record["original"][key]["shape"]))
        each = {"units": math.prod(record["original"][name]["shape"]), "kept": []}
        each |= {"reads": [{"tensor": name, "dim": None}]}
        record["groups"] = [{"name": f"g{n}", **each} for n in range(times // 100)]
    elif way == 5:
        group["patches"] = [{"module": "conv", "attribute": "groups", "per_unit": -(10**9)}]
    elif way == 6:
        long = chance.choice(JUNK[:3]), "x" * 50 * times
        chance.choice([group, record, group["reads"][0]])[long[1]] = long[0]
    else:
        record["attributes"] = {f"fc{n}.in_features": n for n in range(times)}
    write_description(folder, record, chance, 0.9)


def nest(folder: Path, chance: random.Random) -> None:
    """Lists and objects within each other, or a great many of them."""
    text = (folder / "l0arm.json").read_text()
    depth = chance.choice([50, 100, 1_000, 10**5, 10**6])
    opening, closing = chance.choice([("[", "]"), ('{"a":', "}"), ("[{}, ", "]")])
    deep = opening * depth + "1" + closing * depth
    flood = chance.choice(["[],", "{},", '"",', "300,", '{"a": [1]},']) * depth
    value = chance.choice([deep, f"[{flood}1]"])
    if chance.random() < 0.3:
        (folder / "l0arm.json").write_text(value)
        return
    (folder / "l0arm.json").write_text(text.replace('"metrics": {', f'"metrics": {{"x": {value},'))


def forge(change: Callable[[dict[str, torch.Tensor], random.Random], None]) -> Mutation:
    """Other tensors, and sometimes a description that vouches for them."""

    def mutate(folder: Path, chance: random.Random) -> None:
        weights = folder / "model.safetensors"
        tensors = load_file(weights)
        change(tensors, chance)
        save_file(tensors, weights)
        record = json.loads((folder / "l0arm.json").read_text())
        if chance.random() < 0.5:
            record["tensors_sha256"] = sha256_of(weights)
        write_description(folder, record, chance)

    return mutate


def swap_tensors(tensors: dict[str, torch.Tensor], chance: random.Random) -> None:
    """Two tensors under each other's name."""
    one, two = chance.sample(sorted(tensors), 2)
    tensors[one], tensors[two] = tensors[two], tensors[one]


def rename_tensor(tensors: dict[str, torch.Tensor], chance: random.Random) -> None:
    """A tensor under a hostile name."""
    tensors[chance.choice(BAD_NAMES)] = tensors.pop(chance.choice(sorted(tensors)))


def declare(folder: Path, chance: random.Random) -> None:
    """A header that declares too much."""
    path = folder / "model.safetensors"
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    entry = header[chance.choice([name for name in header if name != "__metadata__"])]
    huge = chance.choice(HUGE)
    if chance.random() < 0.5:
        entry["shape"] = [huge, *entry["shape"]]
    if chance.random() < 0.5:
        entry["data_offsets"] = chance.choice([[0, huge], [-huge, 0], [huge, 2 * huge]])
    text = json.dumps(header).encode()
    length = chance.choice([len(text), len(text), huge % 2**64])
    path.write_bytes(length.to_bytes(8, "little") + text + data[8 + length :])
    record = json.loads((folder / "l0arm.json").read_text())
    record["tensors_sha256"] = sha256_of(path)
    write_description(folder, record, chance)


def record_network(folder: Path, chance: random.Random) -> None:
    """Another original network in the metrics, from which the command line builds it."""
    record = json.loads((folder / "l0arm.json").read_text())
    number = chance.choice([0, 1, 7, 200, 4096, 6_000_004, -1, 1.5, "28", None, *HUGE])
    name = chance.choice(["mlp", "wide-resnet", "wide-resnet", "lenet5", "sys:exit"])
    fitting = [3, 32, 32] if name == "wide-resnet" else [1, 28, 28]
    network: dict[str, Any] = {
        "model": {"name": name},
        "image": chance.choice([fitting] * 4 + [[4096] * 3, [number] * 3, [number], 7]),
        "classes": chance.choice([10, 10, number]),
    }
    sizes = chance.choice([{"widen": number}, {"depth": number}, {"x": number}])
    network["model"] |= sizes if name == "wide-resnet" else chance.choice([{}, {}, sizes])
    record["metrics"]["network"] = chance.choice([network] * 6 + [number, JUNK[-1]])
    if chance.random() < 0.3:
        record["original"]["fc1.weight"] = {"shape": [300, 4096**3], "dtype": "float32"}
    write_description(folder, record, chance, 0.95)


MUTATIONS: dict[str, Mutation] = {
    "bits": either(flip),
    "cut": either(cut),
    "files": remove,
    "edit": edit,
    "numbers": edit_numbers,
    "swapped": swap_fields,
    "repeated": repeat,
    "nested": nest,
    "swapped tensors": forge(swap_tensors),
    "renamed tensor": forge(rename_tensor),
    "header": declare,
    "network": record_network,
}
