"""The state of a run between two steps: all of it goes into a checkpoint."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.amp import GradScaler

from l0arm.distributed import Team
from l0arm.lab.data import Dataset
from l0arm.lab.recipes.recipe import Recipe
from l0arm.lab.runs.building import Trainee, build_optimizer, build_trainee
from l0arm.lab.runs.device import random_state, scaler_of, set_random_state
from l0arm.lab.runs.errors import UserError

ALONE = Team()


@dataclass
class Tally:
    """Sums over the steps of the present epoch."""

    images: int = 0
    loss: float = 0.0
    penalty: float = 0.0
    right: int = 0
    seconds: float = 0.0
    by_step: list[list[float]] = field(default_factory=list)


@dataclass
class Session:
    """What training changes."""

    trainee: Trainee
    optimizer: torch.optim.Optimizer
    epoch: int = 0  # epochs done
    step: int = 0  # steps done in the present epoch
    steps: int = 0  # steps done in the run
    stage: int = -1  # the stage of the method that was entered last
    tally: Tally = field(default_factory=Tally)
    scaler: GradScaler = field(default_factory=lambda: GradScaler(enabled=False))

    @property
    def device(self) -> torch.device:
        """Where the network is."""
        weight: Tensor = self.optimizer.param_groups[0]["params"][0]
        return weight.device

    def state(self, team: Team = ALONE) -> dict[str, Any]:
        """Everything that the next step depends on; of several processes, a row for each."""
        random = random_state(self.device)
        scaler = {"scaler": self.scaler.state_dict()} if self.scaler.is_enabled() else {}
        return scaler | {
            "trainee": self.trainee.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "generator": random if team.size == 1 else team.stacked(random),
            "epoch": self.epoch,
            "step": self.step,
            "steps": self.steps,
            "stage": self.stage,
            "tally": asdict(self.tally),
        }

    def restore(self, state: dict[str, Any], rank: int = 0) -> None:
        """Go back to a state, or refuse one of another network."""
        missing = self.state().keys() - state.keys()
        if missing:
            raise UserError(
                f"the checkpoint was written by another version of l0arm: it lacks "
                f"{', '.join(sorted(missing))}; start in a new folder"
            )
        try:
            self.trainee.load_state_dict(state["trainee"])
            self.optimizer.load_state_dict(state["optimizer"])
            self.scaler.load_state_dict(state.get("scaler", {}))
        except (RuntimeError, ValueError) as error:
            first = str(error).strip().splitlines()[-1].strip()
            raise UserError(f"the checkpoint is of another network: {first}") from None
        set_random_state(random_rows(state)[rank], self.device)
        self.epoch, self.step, self.steps = state["epoch"], state["step"], state["steps"]
        self.stage = state["stage"]
        self.tally = Tally(**state["tally"])


def random_rows(state: dict[str, Any]) -> Tensor:
    """The state of the random numbers of each process of a run."""
    rows: Tensor = state["generator"]
    return rows if rows.dim() == 2 else rows[None]


def new_session(recipe: Recipe, data: Dataset) -> Session:
    """The start of a run, where its data are: everything random comes from the recipe's seeds."""
    seed, init_seed = recipe.training.seed, recipe.training.init_seed
    torch.manual_seed(seed if init_seed is None else init_seed)
    trainee = build_trainee(recipe, data)
    if init_seed is not None:
        torch.manual_seed(seed)
    optimizer = build_optimizer(recipe, trainee)
    scaler = scaler_of(recipe.training, data.train_images.device)
    return Session(trainee, optimizer, scaler=scaler)
