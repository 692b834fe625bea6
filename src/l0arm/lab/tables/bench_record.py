"""The file that ``l0arm bench RUN`` writes, read back and validated."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from l0arm.lab.errors import UserError

Milliseconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=0)]


class SpreadRecord(BaseModel):
    """The median over the rounds, with the smallest and the largest."""

    median: Milliseconds
    low: Milliseconds
    high: Milliseconds

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if not self.low <= self.median <= self.high:
            raise ValueError("the median does not lie between the smallest and the largest")
        return self


class TimedRecord(BaseModel):
    """All forms at one batch size."""

    threads: Annotated[int, Field(ge=1)]
    batch: Annotated[int, Field(ge=1)]
    ms: dict[str, SpreadRecord]


class FormRecord(BaseModel):
    """One form of the network. Its other figures are not drawn."""

    model_config = ConfigDict(extra="ignore")
    bytes: Count
    parameters: Count | None = None


class BenchRecord(BaseModel):
    """The whole measurement."""

    quick: bool
    forms: Annotated[dict[str, FormRecord], Field(min_length=1)]
    latency: list[TimedRecord]

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if any(set(timed.ms) != set(self.forms) for timed in self.latency):
            raise ValueError("not every form was timed at every batch size")
        return self


def bench_file(run: Path) -> Path:
    """Where ``l0arm bench RUN`` writes its JSON."""
    return run / "bench" / "bench.json"


def read_bench(run: Path) -> BenchRecord | None:
    """The measurement of a run, or None if there is none."""
    path = bench_file(run)
    if not path.is_file():
        return None
    try:
        return BenchRecord.model_validate_json(path.read_bytes())
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise UserError(
            f"{path} is not what l0arm bench writes ({where + ': ' if where else ''}"
            f"{first['msg']}); delete it, or measure again with l0arm bench {run} --force"
        ) from None
