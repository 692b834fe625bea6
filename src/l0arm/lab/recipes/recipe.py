"""A recipe: everything that decides the outcome of a run, as a TOML file that is checked."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from l0arm.lab.runs.errors import UserError, nearest

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, lt=1)]
Count = Annotated[int, Field(ge=1)]
Seed = Annotated[int, Field(ge=0, lt=2**31)]


class Part(BaseModel):
    """A table of a recipe: fixed once read, and no field is guessed."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=False)


class ModelSpec(Part):
    """The network; depth, widen and dropout are those of a Wide-ResNet."""

    name: Literal["mlp", "lenet5", "wide-resnet"]
    depth: Count = 28
    widen: Count = 10
    dropout: Share = 0.0

    @model_validator(mode="after")
    def _only_wide_resnets_have_sizes(self) -> ModelSpec:
        defaults = {"depth": 28, "widen": 10, "dropout": 0.0}  # as a saved recipe has them
        sizes = {key for key, value in defaults.items() if getattr(self, key) != value}
        if self.name != "wide-resnet" and sizes:
            raise ValueError(f"{self.name} has no {' or '.join(sorted(sizes))}; remove it")
        return self


class DataSpec(Part):
    """The images. ``held_out`` of the training images replace the test set, for tuning."""

    name: str
    augment: bool = False  # random crops and flips
    shift: Annotated[int, Field(ge=0)] = 0  # training images move by up to so many pixels
    held_out: Annotated[int, Field(ge=0)] = 0
    limit: Annotated[int, Field(ge=0)] = 0  # only so many training images; 0: all

    @model_validator(mode="after")
    def _images_move_in_one_way(self) -> DataSpec:
        if self.augment and self.shift:
            raise ValueError("augment moves images already, and flips them; remove it, or shift")
        return self


class MethodSpec(Part):
    """The method, by its name in METHODS or "dense". Strengths are the paper's: times N."""

    name: str
    lam: NotNegative | list[NotNegative] = 0.0
    options: dict[str, Any] = {}

    @model_validator(mode="after")
    def _dense_networks_have_no_settings(self) -> MethodSpec:
        if self.name == "dense" and (self.lam or self.options):
            raise ValueError("dense has neither lam nor options; remove them")
        return self


class OptimizerSpec(Part):
    """Adam, AdamW, or SGD with Nesterov momentum; phi has its own rate and no weight decay.

    The decay of ``adamw`` acts on the weights themselves, that of the others on their gradient.
    """

    name: Literal["adam", "adamw", "sgd"] = "adam"
    lr: Positive = 1e-3
    gate_lr: Positive | None = None  # that of the weights
    momentum: Share = 0.0
    weight_decay: NotNegative = 0.0

    @model_validator(mode="after")
    def _only_sgd_has_momentum(self) -> OptimizerSpec:
        if self.momentum and self.name != "sgd":
            raise ValueError(f"{self.name} has no momentum; remove it, or name sgd")
        return self


class ScheduleSpec(Part):
    """The learning rates times ``factor`` every so many epochs, or at given ones."""

    factor: Positive = 0.5
    every: Annotated[int, Field(ge=0)] = 0
    milestones: list[Count] = []

    def at(self, epoch: int) -> float:
        """What the initial rates are multiplied by in an epoch (counted from 0)."""
        passed = sum(epoch >= milestone for milestone in self.milestones)
        return self.factor ** (passed + (epoch // self.every if self.every else 0))


class TrainingSpec(Part):
    """How long, in what portions, from which seed."""

    epochs: Count = 200
    batch: Count = 100
    seed: Seed = 0
    init_seed: Seed | None = None  # of the first weights and gates alone; else they are of seed
    device: Literal["cpu", "cuda"] = "cpu"
    precision: Literal["float32", "bf16", "fp16"] = "float32"  # of forward passes (autocast)
    threads: Count = 1  # sums differ in their last bits between counts of threads
    execution: Literal["sliced", "masked"] = "sliced"
    draws: Literal["own", "shared"] = "own"  # of several processes: one u each, or one for all


class TeacherSpec(Part):
    """Trained networks to learn from: finished runs of a recipe, from the run's own seed on."""

    recipe: str
    runs: Count = 1  # the mean of so many networks' logits
    temperature: Positive = 4.0
    weight: Annotated[float, Field(gt=0, le=1)] = 0.9  # of its answers; the rest is the labels'


class PaperRow(Part):
    """What the paper prints for this row."""

    table: Literal[2, 3]
    method: str
    architecture: str
    prune_rate: float
    accuracy: float


class Recipe(Part):
    """One run."""

    name: str = ""
    title: str = ""
    control: str | None = None  # the recipe of the same run with lam = 0
    model: ModelSpec
    data: DataSpec
    method: MethodSpec
    optimizer: OptimizerSpec = OptimizerSpec()
    schedule: ScheduleSpec = ScheduleSpec()
    training: TrainingSpec = TrainingSpec()
    teacher: TeacherSpec | None = None
    paper: PaperRow | None = None

    @model_validator(mode="after")
    def _only_gates_have_a_rate(self) -> Recipe:
        if not self.gated and self.optimizer.gate_lr is not None:
            raise ValueError("a dense network has no gates; remove optimizer.gate_lr")
        return self

    @property
    def gated(self) -> bool:
        """Whether the method has gates."""
        return self.method.name != "dense"


def recipe_names() -> list[str]:
    """The recipes that come with the package."""
    folder = files("l0arm.lab.recipes")
    names = (entry.name for entry in folder.iterdir())
    return sorted(name.removesuffix(".toml") for name in names if name.endswith(".toml"))


def load_recipe(name_or_path: str, overrides: Iterable[str] = ()) -> Recipe:
    """A recipe by name or from a file, with ``table.field=value`` overrides applied.

    >>> load_recipe("mlp-l0-arm", ["training.epochs=3"]).training.epochs
    3
    """
    text, name = _read(name_or_path)
    try:
        settings = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UserError(f"recipe '{name}' is not valid TOML: {error}") from None
    settings.setdefault("name", name)
    for override in overrides:
        _apply(settings, override)
    return parse_recipe(settings, f"recipe '{name}'")


def parse_recipe(settings: dict[str, Any], where: str) -> Recipe:
    """A recipe from plain values; a mistake is told in a sentence."""
    try:
        return Recipe.model_validate(settings)
    except ValidationError as error:
        raise UserError(_sentence(error, where)) from None


def _read(name_or_path: str) -> tuple[str, str]:
    path = Path(name_or_path)
    if path.suffix == ".toml":
        try:
            return path.read_text(encoding="utf-8"), path.stem
        except OSError as error:
            raise UserError(f"cannot read the recipe {path}: {error.strerror}") from None
        except UnicodeDecodeError:
            raise UserError(f"cannot read the recipe {path}: it is not text in UTF-8") from None
    if name_or_path not in recipe_names():
        hint = nearest(name_or_path, recipe_names())
        raise UserError(f"no recipe '{name_or_path}'; {hint} (or give the path of a .toml file)")
    resource = files("l0arm.lab.recipes") / f"{name_or_path}.toml"
    return resource.read_text(encoding="utf-8"), name_or_path


def _apply(settings: dict[str, Any], override: str) -> None:
    """Set one field from ``table.field=value``; the value is TOML, else taken as text.

    Without a value, ``teacher=``, the field or table goes back to its default.
    """
    key, equals, value = override.partition("=")
    if not equals or not key:
        raise UserError(f"'{override}' sets nothing; write table.field=value, as training.epochs=3")
    try:
        parsed = tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        parsed = value
    *tables, field = key.strip().split(".")
    for name in (*tables, field):
        if not re.fullmatch(r"[\w-]+", name):
            raise UserError(f"'{override}': '{name}' is no name of a setting")
    for table in tables:
        settings = settings.setdefault(table, {})
        if not isinstance(settings, dict):
            raise UserError(f"'{table}' in '{override}' is a value, not a table of a recipe")
    if value.strip():
        settings[field] = parsed
    else:
        settings.pop(field, None)


def _sentence(error: ValidationError, where: str) -> str:
    """The first thing wrong, with the nearest field when one is unknown."""
    first = error.errors()[0]
    parts = [str(part) for part in first["loc"]]  # with the kinds of number tried: no names
    if first["type"] == "extra_forbidden":
        return f"{where} has an unknown field '{'.'.join(parts)}'; {_fields_near(parts)}"
    path = [part for part in parts if part.isidentifier() or part.isdigit()]
    if first["type"] == "missing":
        return f"{where} lacks '{'.'.join(path)}'; add it"
    came = "" if isinstance(first["input"], dict) else f"; got {first['input']!r}"
    what = first["msg"].removeprefix("Value error, ")
    place = f"'{'.'.join(path)}': " if path else ""
    return f"{where}: {place}{what[0].lower()}{what[1:]}{came}"


def _fields_near(path: list[str]) -> str:
    part: Any = Recipe
    for step in path[:-1]:
        part = part.model_fields[step].annotation
        part = next((kind for kind in get_args(part) if issubclass(kind, Part)), part)  # X | None
    return nearest(path[-1], part.model_fields)
