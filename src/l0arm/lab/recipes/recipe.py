"""A recipe: all settings that determine the result of a run, read from TOML and validated."""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Iterable
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from l0arm.lab.errors import UserError, nearest, shown

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, lt=1)]
Count = Annotated[int, Field(ge=1, lt=2**31)]
CountOrNone = Annotated[int, Field(ge=0, lt=2**31)]
Seed = Annotated[int, Field(ge=0, lt=2**31)]
LARGEST_RECIPE = 2**20  # bytes of a TOML file


def _plain(name: str) -> str:
    """Refuse what would be a path, here or on another system."""
    if name.startswith(".") or not name.isprintable() or set(name) & set("/\\:"):
        raise ValueError(
            "it names the folder of a run; write a plain name, without / \\ : and no dot in front"
        )
    return name


FolderName = Annotated[str, AfterValidator(_plain)]


class Part(BaseModel):
    """A table of a recipe. It is immutable, and unknown fields are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=False)


class ModelSpec(Part):
    """The network. Only a Wide-ResNet has depth, widen and dropout, and it starts as He's."""

    name: Literal["mlp", "lenet5", "wide-resnet"]
    depth: Count = 28
    widen: Count = 10
    dropout: Share = 0.0
    init: Literal["torch", "authors"] = "torch"  # weights of MLP and LeNet-5 (docs/paper.md)

    @model_validator(mode="after")
    def _only_wide_resnets_have_sizes(self) -> ModelSpec:
        defaults = {"depth": 28, "widen": 10, "dropout": 0.0}  # a saved recipe contains them
        given = self.model_dump(include=set(defaults))
        sizes = sorted(key for key, value in defaults.items() if given[key] != value)
        if self.name != "wide-resnet" and sizes:
            raise ValueError(f"{self.name} has no {' or '.join(sizes)}; remove it")
        if self.name == "wide-resnet" and self.init != "torch":
            raise ValueError("init is for mlp and lenet5; a wide-resnet starts as published")
        return self


class DataSpec(Part):
    """The images. For tuning, ``held_out`` training images replace the test set."""

    name: str
    augment: bool = False  # random crops and flips
    shift: CountOrNone = 0  # random shift of training images, in pixels
    held_out: CountOrNone = 0
    limit: CountOrNone = 0  # number of training images, 0: all

    @model_validator(mode="after")
    def _images_move_in_one_way(self) -> DataSpec:
        if self.augment and self.shift:
            raise ValueError("augment moves images already, and flips them; remove it, or shift")
        return self


class MethodSpec(Part):
    """The method, by its name in METHODS or "dense". ``lam`` is the paper's lambda times N."""

    name: str
    lam: NotNegative | list[NotNegative] = 0.0
    initial: Annotated[float, Field(gt=0, lt=1)] | None = None  # pi at the start. None: Sec. 5.1
    options: dict[str, Any] = {}

    @model_validator(mode="after")
    def _dense_networks_have_no_settings(self) -> MethodSpec:
        if self.name == "dense" and (self.lam or self.options or self.initial):
            raise ValueError("dense has neither lam nor initial nor options; remove them")
        return self


class OptimizerSpec(Part):
    """Adam, AdamW, or SGD with Nesterov momentum. phi has its own rate and no weight decay.

    The weight decay of ``adamw`` is decoupled. That of the others is added to the gradient.
    """

    name: Literal["adam", "adamw", "sgd"] = "adam"
    lr: Positive = 1e-3
    gate_lr: Positive | None = None  # None: same as lr
    momentum: Share = 0.0
    weight_decay: NotNegative = 0.0

    @model_validator(mode="after")
    def _only_sgd_has_momentum(self) -> OptimizerSpec:
        if self.momentum and self.name != "sgd":
            raise ValueError(f"{self.name} has no momentum; remove it, or name sgd")
        return self


class ScheduleSpec(Part):
    """Learning rates are multiplied by ``factor`` at every ``every`` epochs and at milestones."""

    factor: Positive = 0.5
    every: CountOrNone = 0
    milestones: list[Count] = []

    def at(self, epoch: int) -> float:
        """The factor of the initial learning rates in an epoch (counted from 0)."""
        passed = sum(epoch >= milestone for milestone in self.milestones)
        try:
            return self.factor ** (passed + (epoch // self.every if self.every else 0))
        except OverflowError:
            return math.inf  # the loss diverges, which the run reports


class TrainingSpec(Part):
    """Epochs, batch size, seeds, device and precision."""

    epochs: Count = 200
    batch: Count = 100
    seed: Seed = 0
    init_seed: Seed | None = None  # of the initial weights and gates. None: same as seed
    device: Literal["cpu", "cuda"] = "cpu"
    precision: Literal["float32", "bf16", "fp16"] = "float32"  # of the forward pass (autocast)
    threads: Annotated[int, Field(ge=1, le=1024)] = 1  # results depend on it in their last bits
    execution: Literal["sliced", "masked"] = "sliced"
    draws: Literal["own", "shared"] = "own"  # of several processes: one u each, or the same
    shrink: bool = True  # train without the units that are closed for good:
    shrink_below: Annotated[float, Field(gt=0, lt=1)] = 1e-3  # those open with less probability


class TeacherSpec(Part):
    """Teachers for distillation: finished runs of a recipe, starting at the run's own seed."""

    recipe: FolderName
    runs: Count = 1  # number of teachers, whose logits are averaged
    temperature: Positive = 4.0
    weight: Annotated[float, Field(gt=0, le=1)] = 0.9  # of the teacher. The rest is for labels.


class PaperRow(Part):
    """The row that the paper prints."""

    table: Literal[2, 3]
    method: str
    architecture: str
    prune_rate: float
    accuracy: float


class Recipe(Part):
    """All settings of one run."""

    name: FolderName = ""
    title: str = ""
    control: FolderName | None = None  # the recipe of the same run with lam = 0
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
        """Whether the method has gates (all but "dense")."""
        return self.method.name != "dense"


def recipe_names() -> list[str]:
    """The recipes that come with the package."""
    folder = files("l0arm.lab.recipes")
    names = (entry.name for entry in folder.iterdir())
    return sorted(name.removesuffix(".toml") for name in names if name.endswith(".toml"))


def load_recipe(name_or_path: str, overrides: Iterable[str] = ()) -> Recipe:
    """Load a recipe.

    Args:
        name_or_path: A name from ``recipe_names()``, or the path of a .toml file.
        overrides: Settings to change, as ``table.field=value``.

    Raises:
        UserError: There is no such recipe, or a setting is invalid.

    Example:
        >>> load_recipe("mlp-l0-arm", ["training.epochs=3"]).training.epochs
        3
    """
    text, name = _read(name_or_path)
    try:
        settings = _parsed(text)
    except ValueError as error:
        raise UserError(f"recipe '{name}' is not valid TOML: {error}") from None
    settings.setdefault("name", name)
    for override in overrides:
        _apply(settings, override)
    return parse_recipe(settings, f"recipe '{name}'")


def parse_recipe(settings: dict[str, Any], where: str) -> Recipe:
    """Validate a recipe given as plain values. The UserError names the first mistake."""
    try:
        return Recipe.model_validate(settings)
    except ValidationError as error:
        raise UserError(_sentence(error, where)) from None


def _read(name_or_path: str) -> tuple[str, str]:
    path = Path(name_or_path)
    if path.suffix == ".toml":
        try:
            with path.open("rb") as file:
                data = file.read(LARGEST_RECIPE + 1)
            if len(data) > LARGEST_RECIPE:
                raise UserError(f"cannot read the recipe {path}: it has more than 1 MB")
            return data.decode(), path.stem
        except OSError as error:
            raise UserError(f"cannot read the recipe {path}: {error.strerror}") from None
        except UnicodeDecodeError:
            raise UserError(f"cannot read the recipe {path}: it is not text in UTF-8") from None
    if name_or_path not in recipe_names():
        hint = nearest(name_or_path, recipe_names())
        raise UserError(f"no recipe '{name_or_path}'; {hint} (or give the path of a .toml file)")
    resource = files("l0arm.lab.recipes") / f"{name_or_path}.toml"
    return resource.read_text(encoding="utf-8"), name_or_path


def _parsed(text: str) -> dict[str, Any]:
    """TOML as plain values. Raises ValueError, also where the parser gives up."""
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise ValueError("lists and tables are nested too deep") from None


def _apply(settings: dict[str, Any], override: str) -> None:
    """Set one field from ``table.field=value``. A value that is not TOML is taken as text.

    Without a value, as in ``teacher=``, the field or table is reset to its default.
    """
    key, equals, value = override.partition("=")
    if not equals or not key:
        raise UserError(f"'{override}' sets nothing; write table.field=value, as training.epochs=3")
    try:
        parsed = _parsed(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        parsed = value
    except ValueError as error:
        raise UserError(f"{shown(override)} sets nothing: {error}") from None
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
    """The first mistake, with the nearest field if a field is unknown."""
    first = error.errors()[0]
    parts = [str(part) for part in first["loc"]]  # pydantic adds the types it tried
    if first["type"] == "extra_forbidden":
        return f"{where} has an unknown field '{'.'.join(parts)}'; {_fields_near(parts)}"
    path = [part for part in parts if part.isidentifier() or part.isdigit()]
    if first["type"] == "missing":
        return f"{where} lacks '{'.'.join(path)}'; add it"
    given = "" if isinstance(first["input"], dict) else f"; got {shown(first['input'])}"
    message = first["msg"].removeprefix("Value error, ")
    place = f"'{'.'.join(path)}': " if path else ""
    return f"{where}: {place}{message[0].lower()}{message[1:]}{given}"


def _fields_near(path: list[str]) -> str:
    part: Any = Recipe
    for step in path[:-1]:
        part = part.model_fields[step].annotation
        part = next((kind for kind in get_args(part) if issubclass(kind, Part)), part)  # X | None
    return nearest(path[-1], part.model_fields)
