"""A plan as an object: its table, its JSON, its changes."""

import json
import math
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from tests.helpers.plans import Network
from torch import nn

from l0arm import Group, Slice, sparsify
from l0arm.planning import Plan, PlannedGroup, Skipped, plan


@pytest.fixture
def found() -> Plan:
    net = nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4), nn.Flatten(), nn.Linear(4 * 36, 5), nn.Linear(5, 2)
    )
    return plan(net, torch.rand(1, 1, 8, 8))


def test_the_table(found: Plan) -> None:
    """By hand: the first group owns its filters (36 + 4), the norm (4 + 4) and fc's 720 columns;
    the second 5 rows of 145 and 10 weights that read them. MACs likewise, one image."""
    assert str(found).splitlines() == [
        "2 groups, 7 units, in a model of 785 weights, 2,026 MACs",
        "group                               units     weights            MACs  execution",
        "0                                       2         768           2,016  patched",
        "    1, 3",
        "3                                       5         735             730  as is",
        "    4",
        "",
        "not gated",
        "4",
        "    an output of the model keeps its shape",
    ]


@pytest.mark.parametrize("name", ["densenet", "attention, template", "transformer encoder"])
def test_the_table_fits_eighty_columns(name: str, network: Network) -> None:
    model, inputs = network(name)
    deep = nn.Sequential(OrderedDict({"a_name_that_is_quite_long_" * 4: model}))
    text = str(plan(deep, inputs))
    assert max(map(len, text.splitlines())) <= 80


def test_a_masked_group_says_that_it_frees_nothing(network: Network) -> None:
    found = plan(*network("attention, template"))
    masked = next(e for e in found.planned if e.execution == "masked")
    assert (masked.weights, masked.macs, masked.group.makes) == (0, 0, ())
    assert "masked: closed units are zeroed, compaction frees nothing of them" in str(found)


def test_a_masked_group_says_why(network: Network) -> None:
    found = plan(*network("attention, template"))
    (masked,) = (e for e in found.planned if e.execution == "masked")
    assert masked.reason.startswith("with fewer units 'attention' fails: RuntimeError: shape")
    assert "    masked: with fewer units 'attention' fails: RuntimeError: shape" in str(found)
    assert {e.reason for e in found.planned if e.execution != "masked"} == {""}


def test_a_reason_is_optional_in_json(network: Network) -> None:
    found = plan(*network("attention, template"))
    record = json.loads(found.to_json())
    assert [bool(entry.pop("reason", "")) for entry in record["groups"]] == [
        e.execution == "masked" for e in found.planned
    ]
    older = Plan.from_json(json.dumps(record))
    assert older.groups == found.groups
    assert {e.reason for e in older.planned} == {""}


@pytest.mark.parametrize(
    "name", ["mobilenet", "fused attention", "multi-head attention", "attention, template"]
)
def test_json_and_back(name: str, network: Network) -> None:
    found = plan(*network(name))
    assert Plan.from_json(found.to_json()) == found


def test_a_plan_edited_by_hand(found: Plan) -> None:
    record = json.loads(found.to_json())
    del record["groups"][1]
    record["groups"][0] |= {"initial": 0.9, "floor": 1, "name": "filters"}
    edited = Plan.from_json(json.dumps(record))
    assert [(g.name, g.initial, g.floor) for g in edited.groups] == [("filters", 0.9, 1)]


WRONG: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "a field misspelt": (
        lambda r: r["groups"][0].update(intial=0.5),
        r"group 0 has an unknown field 'intial'; did you mean 'initial'\?",
    ),
    "a field lost": (lambda r: r["groups"][1].pop("units"), "group 1 lacks the field 'units'"),
    "a wrong type": (
        lambda r: r["groups"][0].update(units="2"),
        "group 0: units must be int, got '2'",
    ),
    "a slice without a tensor": (
        lambda r: r["groups"][0]["reads"][0].pop("tensor"),
        r"group 0 \('0'\), reads 0 lacks the field 'tensor'",
    ),
    "a probability of 1": (
        lambda r: r["groups"][0].update(initial=1),
        "strictly between 0 and 1",
    ),
    "an index of words": (
        lambda r: r["groups"][0]["makes"][0].update(index=["a"]),
        "index lists positions for each unit, got 'a'",
    ),
    "a way unknown": (
        lambda r: r["groups"][0].update(execution="fast"),
        "execution must be one of as is, patched, replaced, skipped, masked; got 'fast'",
    ),
    "another version": (lambda r: r.update(version=2), "expected format 'l0arm-plan', version 1"),
    "another format": (lambda r: r.update(format="x"), "got 'x', version 1"),
    "no groups": (lambda r: r.pop("groups"), "the plan lacks the field 'groups'"),
    "a group that is a number": (
        lambda r: r.update(groups=[3]),
        "group 0 must be an object, got 3",
    ),
    "a patch without an attribute": (
        lambda r: r["groups"][0]["patches"][0].pop("attribute"),
        "patch 0 lacks the field 'attribute'",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_in_a_file_is_named(name: str, found: Plan) -> None:
    change, message = WRONG[name]
    record = json.loads(found.to_json())
    change(record)
    with pytest.raises(ValueError, match=message):
        Plan.from_json(json.dumps(record))


def test_text_that_is_not_json(found: Plan) -> None:
    with pytest.raises(ValueError, match="this is not JSON: Expecting"):
        Plan.from_json("groups:")


def test_a_plan_of_another_model_is_refused_before_anything_changes(found: Plan) -> None:
    other = nn.Sequential(nn.Linear(2, 2))
    with pytest.raises(ValueError, match="names the module '1', which the model does not have"):
        sparsify(other, found, lam=0.0)
    assert not other[0]._forward_pre_hooks


def test_start_and_floor(found: Plan) -> None:
    changed = found.starting_at(0.95).with_floor(0.5)
    assert [(g.initial, g.floor) for g in changed.groups] == [(0.95, 1), (0.95, 3)]
    assert [g.floor for g in found.with_floor(3).groups] == [2, 3]


def test_the_floor_holds_at_compaction(found: Plan) -> None:
    net = nn.Sequential(nn.Linear(2, 6), nn.Linear(6, 1))
    gated = sparsify(net, plan(net, torch.rand(1, 2)).with_floor(4), "l0-arm", lam=0.0)
    gated.phi.data = -torch.tensor([0.5, 0.1, 0.6, 0.3, 0.2, 0.4])
    assert gated.deterministic().nonzero().flatten().tolist() == [1, 3, 4, 5]
    assert gated.compact()[0].out_features == 4


def test_layers_are_named_once() -> None:
    reads, makes = (Slice("b.weight", 1),), (Slice("a.weight", 0), Slice("a.bias", 0))
    entry = PlannedGroup(Group("a", 2, reads=reads, makes=makes), "as is", 6, 6)
    assert entry.layers == ("a", "b")
    assert replace(entry, execution="masked").execution == "masked"
    assert str(Plan((entry,), (Skipped("b", "why"),), 6, 6)).endswith("not gated\nb\n    why")


@pytest.mark.parametrize("floor", [2.5, 1.0, 0.0, -1, True, "3", math.nan])
def test_a_floor_is_a_count_or_a_share(floor: Any, found: Plan) -> None:
    with pytest.raises(ValueError, match=r"floor is a count of units, .*below 1; got"):
        found.with_floor(floor)


def test_outputs_are_kept_in_the_file(found: Plan) -> None:
    kept = replace(found, outputs=("logits", "0"))
    assert Plan.from_json(kept.to_json()) == kept
    record = json.loads(kept.to_json())
    record["outputs"] = ["logits", 0]
    with pytest.raises(ValueError, match=r"the plan: outputs must be names, got 0"):
        Plan.from_json(json.dumps(record))
