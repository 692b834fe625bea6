"""Results beside the stored ones: which rows got worse, and what a run of some sections leaves."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


def worse(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """Rows that are slower than they were, beyond their spread: a line for each.

    Ratios to the plain dense network are compared, which depend little on the machine. A row is
    slower if the best round of now is behind the worst round of then. Rows that only one of the
    results has, and quick runs, are left out.

    Args:
        before: The stored result of ``l0arm bench``, as JSON.
        now: The new one.

    Example:
        >>> def result(low: float, high: float) -> dict[str, Any]:
        ...     ratio = {"median": (low + high) / 2, "low": low, "high": high}
        ...     row = {"state": "p = 0.5", "name": "ARM sliced", "to_plain": ratio}
        ...     return {"quick": False, "steps": [{"network": "MLP", "rows": [row]}]}
        >>> worse(result(0.5, 0.6), result(0.58, 0.7))
        []
        >>> worse(result(0.5, 0.6), result(0.61, 0.7))
        ['MLP, p = 0.5, ARM sliced: 0.655 [0.61-0.70], was 0.550 [0.50-0.60]']
    """
    if before.get("quick", True) or now["quick"]:
        return []
    then, found = dict(_ratios(before)), []
    for name, ratio in _ratios(now):
        if name in then and ratio["low"] > then[name]["high"]:
            found.append(f"{name}: {_spread(ratio)}, was {_spread(then[name])}")
    return found


def merged(before: dict[str, Any], now: dict[str, Any]) -> dict[str, Any]:
    """A new result, with the sections of the stored one that were not measured this time.

    The environment is that of the new one. Quick runs are not mixed with others.

    Example:
        >>> def result(*networks: str, curve: object = None) -> dict[str, Any]:
        ...     return {"quick": False, "steps": [{"network": n} for n in networks], "curve": curve}
        >>> both = merged(result("MLP", "LeNet-5", curve=1), result("MLP", "ResNet-20"))
        >>> [section["network"] for section in both["steps"]], both["curve"]
        (['MLP', 'LeNet-5', 'ResNet-20'], 1)
    """
    if before["quick"] != now["quick"]:
        return now
    new = {section["network"]: section for section in now["steps"]}
    result = dict(now)
    result["steps"] = [new.pop(section["network"], section) for section in before["steps"]]
    result["steps"] += new.values()
    for key in ("inference", "curve"):
        result[key] = now.get(key) or before.get(key)
    return result


def _ratios(result: dict[str, Any]) -> Iterator[tuple[str, dict[str, float]]]:
    """Every ratio to a plain dense network, by the names of its row."""
    for section in result.get("steps", []):
        for row in section["rows"]:
            parts = (section["network"], row["state"], row["name"])
            yield ", ".join(part for part in parts if part), row["to_plain"]
    for row in result.get("inference", []):
        yield f"inference, {row['network']}, batch {row['batch']}", row["to_dense"]
    for row in result.get("replays", []):
        names = dict(zip(("median", "low", "high"), row["ratio"], strict=True))
        yield f"whole training, {row['network']}, {row['way']}", names


def _spread(ratio: dict[str, float]) -> str:
    return f"{ratio['median']:.3f} [{ratio['low']:.2f}-{ratio['high']:.2f}]"
