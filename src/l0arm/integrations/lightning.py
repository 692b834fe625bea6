"""Lightning: a mixin that trains a gated model, and a callback that logs what the gates do."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from l0arm.gating import Gated
from l0arm.methods import Course
from l0arm.metrics import architecture, prune_rate

STAGE = "l0arm_stage"


class GatedTraining:
    """Put it before LightningModule; set ``self.gated`` and write ``data_loss(batch)``.

    Lightning computes ``training_step`` inside its strategy's wrapper, so that gradients are
    averaged over processes, and multiplies the loss for half precision: nothing is special here.
    Methods with stages have them over the trainer's ``max_epochs``. (If you write one of the hooks
    below yourself, call ``super()``'s.)
    """

    gated: Gated
    lr: float = 1e-3
    gate_lr: float | None = None
    weight_decay: float = 0.0
    course: Course
    _entered: int | None = None  # the stage that a checkpoint was in

    def data_loss(self, batch: Any) -> Tensor:
        """The loss of a batch from ``self.gated(...)``; called once or twice a step."""
        raise NotImplementedError(
            f"{type(self).__name__} needs a data_loss(batch) that computes the loss from "
            "self.gated(...)"
        )

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        """The objective of Eq. 8."""
        loss = self.gated.loss(lambda: self.data_loss(batch))
        log: Any = self.log  # type: ignore[attr-defined]
        log("train_loss", loss.data.detach(), prog_bar=True)
        log("penalty", loss.penalty.detach())
        return loss.total

    def on_train_start(self) -> None:
        """Lay the method's stages over the epochs."""
        super().on_train_start()  # type: ignore[misc]
        trainer: Any = self.trainer  # type: ignore[attr-defined]
        epochs = trainer.max_epochs if (trainer.max_epochs or -1) > 0 else None
        self.course = Course(self.gated, self._optimizer(trainer.optimizers), epochs)
        if trainer.global_step:  # else it begins anew, with the weights of a checkpoint at most
            self.course.stage = self._entered
        self._entered = None
        self.course.begin(self.current_epoch)  # type: ignore[attr-defined]

    def on_train_epoch_start(self) -> None:
        """Enter the epoch's stage if it is new; weigh rates and penalties."""
        super().on_train_epoch_start()  # type: ignore[misc]
        self.course.begin(self.current_epoch)  # type: ignore[attr-defined]

    def on_train_end(self) -> None:
        """The optimizer is without hooks again."""
        super().on_train_end()  # type: ignore[misc]
        self.course.end()

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """The stage that is entered belongs to the state of the gates."""
        super().on_save_checkpoint(checkpoint)  # type: ignore[misc]
        checkpoint[STAGE] = self.course.stage if hasattr(self, "course") else self._entered

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """A stage is not entered again."""
        super().on_load_checkpoint(checkpoint)  # type: ignore[misc]
        self._entered = checkpoint.get(STAGE)

    def _optimizer(self, optimizers: list[torch.optim.Optimizer]) -> torch.optim.Optimizer:
        """The one that trains phi."""
        for optimizer in optimizers:
            trained = [p for group in optimizer.param_groups for p in group["params"]]
            if any(p is self.gated.phi for p in trained):
                return optimizer
        raise ValueError(
            "no optimizer trains phi; build one from self.gated.parameter_groups(lr) in "
            "configure_optimizers"
        )

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """AdamW, with phi in a group of its own."""
        groups = self.gated.parameter_groups(self.lr, self.gate_lr, weight_decay=self.weight_decay)
        return torch.optim.AdamW(groups)


def gates_callback() -> Any:
    """A lightning.Callback: after each epoch it logs the prune rates and the open units."""
    try:
        from lightning.pytorch.callbacks import Callback
    except ImportError:
        raise ImportError("Lightning is not installed; pip install 'l0arm[integrations]'") from None

    class GatesCallback(Callback):
        def setup(self, trainer: Any, module: Any, stage: str) -> None:
            if not isinstance(getattr(module, "gated", None), Gated):
                raise TypeError(
                    f"{type(module).__name__}.gated must be a Gated for this callback; set it to "
                    "sparsify(model, ...)"
                )

        def on_train_epoch_end(self, trainer: Any, module: Any) -> None:
            gated: Gated = module.gated
            module.log("prune_rate", prune_rate(gated))
            module.log("prune_rate_realised", prune_rate(gated, "realised"))
            for name, z in gated.per_group(gated.deterministic()).items():
                module.log(f"open/{name}", float((z != 0).sum()))

        def on_fit_end(self, trainer: Any, module: Any) -> None:
            for logger in trainer.loggers:
                logger.log_hyperparams({"architecture": architecture(module.gated)})

    return GatesCallback()
