"""``l0arm plan``: the table or the JSON of a user's model, or one line that says what is wrong."""

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from l0arm.planning import Plan

Cli = Callable[[str], Any]
SOURCE = """
import torch
from torch import nn

def net():
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 4, 3), nn.Flatten(),
                         nn.Linear(16, 2))

class Tokens(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.hidden, self.out = nn.Embedding(5, 6), nn.Linear(6, 7), nn.Linear(7, 2)

    def forward(self, ids, scale):
        return self.out(torch.relu(self.hidden(self.embed(ids)) * scale))

class Branches(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2, 2)

    def forward(self, x):
        return self.layer(x) if x.sum() > 0 else x

def attention():
    return nn.TransformerEncoderLayer(8, 2, 6, batch_first=True)

ready, number = net(), 7

def broken():
    raise RuntimeError("no weights here")

def text():
    return "a model"
"""


@pytest.fixture(autouse=True)
def mine(tmp_path: Path) -> Iterator[None]:
    (tmp_path / "mynets.py").write_text(SOURCE)
    (tmp_path / "wrong.py").write_text("import nowhere_to_be_found")
    path = list(sys.path)
    yield
    assert sys.path == path
    sys.modules.pop("mynets", None)


@pytest.mark.parametrize("name", ["net", "ready"])
def test_the_table_names_groups_and_reasons(cli: Cli, name: str) -> None:
    ended = cli(f"plan mynets:{name} --input 1,3,6,6")
    assert (ended.code, ended.err) == (0, "")
    head, _, *rows = ended.out.splitlines()
    assert head.startswith("2 groups, 12 units, in a model of 550 weights")
    assert [row.split()[:2] for row in rows if not row.startswith(" ")][:2] == [
        ["0", "8"],
        ["2", "4"],
    ]
    assert "not gated" in ended.out


def test_json_is_a_plan_again(cli: Cli) -> None:
    ended = cli("plan mynets:net --input 1,3,6,6 --json")
    assert len(ended.out.splitlines()) == 1
    assert [g.units for g in Plan.from_json(ended.out).groups] == [8, 4]


@pytest.mark.parametrize(("option", "units"), [("--include 0", [8]), ("--exclude 0", [4])])
def test_layers_are_chosen_by_glob(cli: Cli, option: str, units: list[int]) -> None:
    record = json.loads(cli(f"plan mynets:net --input 1,3,6,6 --json {option}").out)
    assert [group["units"] for group in record["groups"]] == units


def test_inputs_have_types_and_names(cli: Cli) -> None:
    line = "plan mynets:Tokens --input 2,4 --input scale=2,4,1 --dtype int64 --dtype float32 --json"
    record = json.loads(cli(line).out)
    assert [group["units"] for group in record["groups"]] == [6, 7]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("mynets", "expected package.module:factory, got 'mynets'"),
        ("nowhere:net", "'nowhere' cannot be imported: ModuleNotFoundError"),
        ("wrong:net", "'wrong' cannot be imported: ModuleNotFoundError: No module named 'nowhere_"),
        ("mynets:nett", "'mynets' has no 'nett'; did you mean 'net'"),
        ("mynets:number", "'mynets:number' is int, not a function that makes a model"),
        ("mynets:broken", "called without arguments raised RuntimeError: no weights here"),
        ("sys:exit", "'sys:exit' called without arguments raised SystemExit: no message"),
        ("mynets:text", "'mynets:text' made str, not an nn.Module"),
        ("mynets:Branches --input 1,2", "torch.export cannot capture the model"),
        ("mynets:net --input 1,4,6,6", "does not run on the example inputs"),
        ("mynets:net --input 1,-4", "expected a shape such as 1,3,224,224, got '1,-4'"),
        ("mynets:net --input 1,3,6,6 --dtype float33", "unknown type 'float33'; did you mean"),
        ("mynets:net --input 1,3,6,6 --dtype int64 --dtype bool", "2 types for 1 inputs"),
        ("mynets:net --input 1,3,6,6 --include layer9", "'layer9' matches no layer"),
    ],
)
def test_errors_are_one_line(cli: Cli, line: str, message: str) -> None:
    line = line if "--input" in line else f"{line} --input 1,3,6,6"
    ended = cli(f"plan {line}")
    assert (ended.code, ended.out) == (2, "")
    assert message in ended.err
    assert len(ended.err.splitlines()) == 1


def test_help_says_that_code_is_run(cli: Cli) -> None:
    text = " ".join(cli("plan --help").out.replace("│", " ").split())
    assert "it runs that code: name only code that you trust" in text


def test_positions_within_heads_are_planned_on_request(cli: Cli) -> None:
    plain, more = (
        json.loads(cli(f"plan mynets:attention --input 1,4,8 --json {flag}").out)["groups"]
        for flag in ("", "--head-dims")
    )
    assert [group["name"] for group in more[len(plain) :]] == ["self_attn#dims"]
    assert more[: len(plain)] == plain
