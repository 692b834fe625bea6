"""Lightning: a mixin that trains a gated model, and a callback that logs the gates."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from l0arm.gating import Gated
from l0arm.methods import Course
from l0arm.metrics import architecture, prune_rate
from l0arm.pruning import Choice, Pruning, Score
from l0arm.pruning.stream import preserved_randomness

if TYPE_CHECKING:
    from lightning.pytorch import LightningModule as _Base
else:
    _Base = object  # the user's class adds LightningModule

__all__ = ["GatedTraining", "PrunedTraining", "gates_callback"]

STAGE = "l0arm_stage"


class GatedTraining(_Base):
    """A mixin for LightningModule that trains ``self.gated``.

    List it before LightningModule, set ``self.gated`` and write ``data_loss(batch)``. Lightning
    computes ``training_step`` inside its strategy's wrapper, which averages gradients over
    processes, and scales the loss for half precision. Nothing special is needed for either. The
    stages of the method are spread over the trainer's ``max_epochs``. If you override one of the
    hooks below, call ``super()``'s.

    Attributes:
        gated: The model that ``sparsify`` returned.
        lr: Learning rate of the weights.
        gate_lr: Learning rate of the gates; None: the same as ``lr``.
        weight_decay: Weight decay of the weights. Gates have none.
        course: The stages of the method, from the start of training on.

    Example:
        ```python
        class Digits(GatedTraining, lightning.LightningModule):
            gate_lr = 1e-2

            def __init__(self):
                super().__init__()
                self.gated = l0arm.sparsify(l0arm.models.LeNet5(), lam=0.1 / 60_000)

            def data_loss(self, batch):
                x, y = batch
                return F.cross_entropy(self.gated(x), y)

        lightning.Trainer(max_epochs=20, callbacks=[gates_callback()]).fit(Digits(), loader)
        ```
    """

    gated: Gated
    lr: float = 1e-3
    gate_lr: float | None = None
    weight_decay: float = 0.0
    course: Course | None = None
    _entered: int | None = None  # the stage of a loaded checkpoint

    def data_loss(self, batch: Any) -> Tensor:
        """The loss of a batch, computed from ``self.gated(...)``; called once or twice a step."""
        raise NotImplementedError(
            f"{type(self).__name__} needs a data_loss(batch) that computes the loss from "
            "self.gated(...)"
        )

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        """The objective of Eq. 8."""
        loss = self.gated.loss(lambda: self.data_loss(batch))
        self.log("train_loss", loss.data.detach(), prog_bar=True)
        self.log("penalty", loss.penalty.detach())
        return loss.total

    def on_train_start(self) -> None:
        """Spread the method's stages over the epochs."""
        super().on_train_start()
        trainer = self.trainer
        epochs = trainer.max_epochs if (trainer.max_epochs or -1) > 0 else None
        self.course = Course(self.gated, self._optimizer(trainer.optimizers), epochs)
        if trainer.global_step:  # otherwise training starts anew, perhaps with loaded weights
            self.course.stage = self._entered
        self._entered = None
        self.course.begin(self.current_epoch)

    def on_train_epoch_start(self) -> None:
        """Enter the epoch's stage if it is new, and set learning rates and penalty weight."""
        super().on_train_epoch_start()
        assert self.course is not None
        self.course.begin(self.current_epoch)

    def on_train_end(self) -> None:
        """Remove the hooks from the optimizer."""
        super().on_train_end()
        assert self.course is not None
        self.course.end()

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Save the current stage, which belongs to the state of the gates."""
        super().on_save_checkpoint(checkpoint)
        checkpoint[STAGE] = self._entered if self.course is None else self.course.stage

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Load the current stage, so that it is not entered again."""
        super().on_load_checkpoint(checkpoint)
        self._entered = checkpoint.get(STAGE)

    def _optimizer(self, optimizers: list[torch.optim.Optimizer]) -> torch.optim.Optimizer:
        """The optimizer that trains phi."""
        for optimizer in optimizers:
            trained = [p for group in optimizer.param_groups for p in group["params"]]
            if any(p is self.gated.phi for p in trained):
                return optimizer
        raise ValueError(
            "no optimizer trains phi; build one from self.gated.parameter_groups(lr) in "
            "configure_optimizers"
        )

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """AdamW, with phi in a parameter group of its own."""
        groups = self.gated.parameter_groups(self.lr, self.gate_lr, weight_decay=self.weight_decay)
        return torch.optim.AdamW(groups)


class PrunedTraining(GatedTraining):
    """A mixin for LightningModule that prunes ``self.gated`` to its budget, as ``prune`` does.

    Write it like ``GatedTraining``, with a gated network that has a budget. The number of steps is
    that of the trainer. The stages are those of ``l0arm.pruning.Pruning``: scores on the first
    batches, gates and weights under a falling target, fixed gates. ``self.small`` is the small
    network after training. The optimizer holds the weights only. Where a learning-rate scheduler
    is configured, it sets the learning rates, otherwise the schedule of ``prune`` does.

    A training that was interrupted cannot be resumed within a pruning; train anew.

    Attributes:
        learn: Share of the steps until the gates are decided; None: that of ``Pruning``.
        choice: ``"scores"`` or ``"gates"``, as for ``prune``.
        scores: How units are ranked. With ``choice="gates"`` None is possible: gates start where
            ``sparsify`` put them.
        ranked: Batches that the scores see before gates are trained.
        pruning: The stages, from the start of training on.
        small: The small network, after training.

    Example:
        ```python
        class Digits(PrunedTraining, lightning.LightningModule):
            def __init__(self, trained, x):
                super().__init__()
                self.gated = l0arm.sparsify(
                    trained, example_inputs=x, budget={"flops": "25%"}, initial=0.95
                )

            def data_loss(self, batch):
                x, y = batch
                return F.cross_entropy(self.gated(x), y)

        digits = Digits(trained, x)
        lightning.Trainer(max_epochs=8).fit(digits, loader)
        l0arm.save(digits.small, "small")
        ```
    """

    learn: float | None = None
    choice: Choice = "scores"
    scores: Score | str | None = "fisher"
    ranked: int = 30
    pruning: Pruning | None = None
    small: nn.Module | None = None

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """AdamW of the weights."""
        weights = [p for p in self.gated.model.parameters() if p.requires_grad]
        return torch.optim.AdamW(weights, lr=self.lr, weight_decay=self.weight_decay)

    def on_train_start(self) -> None:
        """Start the stages, with the number of steps that the trainer will make."""
        super(GatedTraining, self).on_train_start()
        trainer = self.trainer
        if trainer.global_step:
            raise ValueError(
                "a pruning cannot be resumed from a checkpoint of the trainer; train anew, or use "
                "l0arm.prune(checkpoint=...)"
            )
        if not float(trainer.estimated_stepping_batches) < float("inf"):
            raise ValueError(
                "the number of steps is not known; give the trainer max_steps, or max_epochs and "
                "data with a length"
            )
        scaler = getattr(trainer.precision_plugin, "scaler", None)
        if self.choice == "gates" and scaler is not None:
            raise ValueError("the gates cannot be trained with a loss scaler; use precision='bf16'")
        self.pruning = Pruning(
            self.gated,
            trainer.optimizers[0],
            int(trainer.estimated_stepping_batches),
            learn=self.learn,
            gate_lr=self.gate_lr,
            anneal=not trainer.lr_scheduler_configs,
            cuts=False,
            choice=self.choice,
            scores=self.scores or "fisher",
        )
        if self.choice == "gates" and self.scores is not None:
            loader: Any = trainer.train_dataloader
            with preserved_randomness(loader):
                few = [batch for _, batch in zip(range(self.ranked), loader, strict=False)]
                few = [trainer.strategy.batch_to_device(batch) for batch in few]
                losses = [partial(self.data_loss, batch) for batch in few]
                self.pruning.rank(losses, self.scores)

    def on_train_epoch_start(self) -> None:
        """Nothing: the stages go by steps."""
        super(GatedTraining, self).on_train_epoch_start()

    def on_train_epoch_end(self) -> None:
        """Log the figures of ``gated.status()``."""
        super().on_train_epoch_end()
        self.log_dict(self.gated.status().to_dict())

    def on_train_end(self) -> None:
        """Remove the closed units."""
        super(GatedTraining, self).on_train_end()
        assert self.pruning is not None
        self.__dict__["small"] = self.pruning.finish()  # not as a submodule: no part of checkpoints


def gates_callback() -> Any:
    """Make a Lightning callback that logs the prune rates and the open units after each epoch.

    Returns:
        A ``lightning.pytorch.Callback``. The module it is used with has a Gated as ``gated``.

    Raises:
        ImportError: Lightning is not installed.
    """
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
