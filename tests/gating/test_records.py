"""Groups survive being written as records; a record that says something else is named."""

import json
from typing import Any

import pytest

from l0arm.gating import Dot, Group, Patch, Slice
from l0arm.gating.records import RecordError, group_of, record_of
from l0arm.models import MLP, LeNet5, WideResNet

FULL = Group(
    name="everything",
    units=2,
    reads=(Slice("a.weight", 1, index=((0, 2), (1, 3))), Slice("b.weight", -1, block=16)),
    makes=(Slice("c.bias", 0),),
    counts=(Slice("a.weight", 1, index=((0, 2), (1, 3))),),
    select=Slice("a", -1),
    patches=(Patch("a", "heads", 3),),
    dots=(Dot("a", "Attention.forward+3:20", 1, counted=True), Dot("b", "")),
    initial=0.8,
    floor=1,
)
GROUPS = [
    FULL,
    Group("single weights", 12, reads=(Slice("weight", None),)),
    *MLP().groups(),
    *LeNet5().groups(),
    *WideResNet(10, 1).groups(),
]


@pytest.mark.parametrize("group", GROUPS, ids=lambda group: group.name)
def test_round_trip(group: Group) -> None:
    assert group_of(json.loads(json.dumps(record_of(group))), "here") == group


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"select": [1]}, r"here: select must be dict, got \[1\]"),
        ({"select": {"tensor": "a"}}, r"here \('everything'\), select lacks the field 'dim'"),
        ({"reads": [{"tensor": "a", "dim": "0"}]}, "reads 0: dim must be int or null, got '0'"),
        ({"reads": [{"tensor": "a", "dim": True}]}, "dim must be int or null, got True"),
        ({"reads": []}, "group 'everything' has no reads"),
        ({"units": 2.0}, "units must be int, got 2.0"),
        ({"read": []}, "unknown field 'read'; did you mean 'reads'"),
    ],
)
def test_what_is_wrong_is_named(change: dict[str, Any], reason: str) -> None:
    with pytest.raises(RecordError, match=reason):
        group_of(record_of(FULL) | change, "here")
