"""Hugging Face: a mixin that makes Trainer train a gated model, and a callback for its log."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from l0arm.distributed import loss_through, unwrapped
from l0arm.methods import Course
from l0arm.metrics import architecture, prune_rate
from l0arm.pruning import Choice, Pruning, Score
from l0arm.pruning.stream import preserved_randomness

if TYPE_CHECKING:
    from transformers import Trainer as _Base
else:
    _Base = object  # the user's class adds Trainer

__all__ = ["GatedTrainerMixin", "PruningTrainerMixin", "gates_callback"]


class GatedTrainerMixin(_Base):
    """A mixin for transformers.Trainer that trains a gated model.

    The model is ``sparsify(model, ...)`` of one whose outputs have a loss. Set
    ``remove_unused_columns=False`` in the training arguments: the signature of a gated model names
    no columns. The stages of the method are spread over the epochs of the training.

    Attributes:
        gate_lr: Learning rate of the gates; None: the same as that of the weights.

    Raises:
        TypeError: The model is not gated.
        ValueError: The loss is not that of the model: ``label_smoothing_factor`` or
            ``compute_loss_func`` is set.

    Example:
        ```python
        class GatedTrainer(GatedTrainerMixin, transformers.Trainer):
            gate_lr = 1e-2

        gated = l0arm.sparsify(model, example_kwargs=batch, lam=1e-6)
        trainer = GatedTrainer(gated, arguments, train_dataset=rows)
        trainer.add_callback(gates_callback())
        trainer.train()
        ```
    """

    gate_lr: float | None = None
    optimizer: Any  # of Trainer

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        values = (*args, *kwargs.values())
        smooths = any(getattr(value, "label_smoothing_factor", 0) for value in values)
        if smooths or kwargs.get("compute_loss_func") is not None:
            raise ValueError(
                "a gated model takes the loss from its model's outputs, but label_smoothing_factor "
                "or compute_loss_func is set; compute the loss inside the model"
            )
        super().__init__(*args, **kwargs)
        inner = unwrapped(self.model).model
        if self.args.label_names is None:  # Trainer looks for them in the gated model's signature
            names = inspect.signature(inner.forward).parameters
            self.label_names = [name for name in names if "label" in name]
        self.model_accepts_loss_kwargs = False  # the loss is a mean: Trainer divides it itself
        self.add_callback(self._stages())

    def _stages(self) -> Any:
        """The callback that runs the stages of the training."""
        return _stages_callback()

    def compute_loss(
        self, model: nn.Module, inputs: Any, return_outputs: bool = False, **kwargs: Any
    ) -> Any:
        """The objective of Eq. 8; in evaluation the model's own loss under z-bar."""
        if not model.training:
            outputs = model(**inputs)
            return (outputs.loss, outputs) if return_outputs else outputs.loss
        gated, kept = unwrapped(model), []

        def closure() -> torch.Tensor:
            kept.append(gated(**inputs))
            loss: torch.Tensor = kept[-1].loss
            return loss

        total = loss_through(model, gated, closure).total
        return (total, kept[0]) if return_outputs else total

    def create_optimizer(self, *args: Any, **kwargs: Any) -> Any:
        """AdamW: the weights grouped as Trainer does, then phi without weight decay."""
        return self._adamw(unwrapped(self.model).parameter_groups(0.0, self._gate_rate())[1:])

    def _gate_rate(self) -> float:
        rate: float = self.args.learning_rate if self.gate_lr is None else self.gate_lr
        return rate

    def _adamw(self, more: list[dict[str, Any]]) -> Any:
        """The optimizer, made once: the weights grouped as Trainer does, and more groups."""
        if self.optimizer is None:
            gated, settings = unwrapped(self.model), self.args
            decaying = set(self.get_decay_parameter_names(gated.model))
            parameters = [(n, p) for n, p in gated.model.named_parameters() if p.requires_grad]
            groups = [
                {
                    "params": [p for name, p in parameters if (name in decaying) == decays],
                    "weight_decay": settings.weight_decay if decays else 0.0,
                }
                for decays in (True, False)
            ]
            betas = (settings.adam_beta1, settings.adam_beta2)
            self.optimizer = torch.optim.AdamW(
                [*groups, *more], settings.learning_rate, betas, settings.adam_epsilon
            )
        return self.optimizer

    def _save(self, output_dir: str | None = None, state_dict: Any = None) -> None:
        """Save the state dict. A tied weight is written under each of its names.

        Trainer writes safetensors, which refuses tensors that share memory.
        """
        state = dict(self.model.state_dict() if state_dict is None else state_dict)
        seen: set[int] = set()
        for name, tensor in state.items():
            place = tensor.untyped_storage().data_ptr()
            if place in seen and tensor.numel():
                state[name] = tensor.clone()
            seen.add(place)
        super()._save(output_dir, state)


class PruningTrainerMixin(GatedTrainerMixin):
    """A mixin for transformers.Trainer that prunes a gated model to its budget, as ``prune`` does.

    The model is ``sparsify(model, ..., budget=...)``, otherwise as for ``GatedTrainerMixin``. The
    number of steps is that of the trainer. The stages are those of ``l0arm.pruning.Pruning``:
    scores on the first batches, gates and weights under a falling target, fixed gates. The
    optimizer holds the weights only; their learning rate is that of Trainer's scheduler.
    ``trainer.small`` is the small network after training. The figures of ``gated.status()`` are
    in the log history after each epoch.

    A training that was interrupted cannot be resumed within a pruning; train anew.

    Attributes:
        gate_lr: Learning rate of the gates; None: that of ``Pruning``.
        learn: Share of the steps until the gates are decided; None: that of ``Pruning``.
        choice: ``"scores"`` or ``"gates"``, as for ``prune``.
        scores: How units are ranked. With ``choice="gates"`` None is possible: gates start where
            ``sparsify`` put them.
        ranked: Batches that the scores see before gates are trained.
        small: The small network, after training.

    Example:
        ```python
        class PruningTrainer(PruningTrainerMixin, transformers.Trainer):
            pass

        gated = l0arm.sparsify(model, example_kwargs=batch, budget={"flops": "50%"}, initial=0.95)
        trainer = PruningTrainer(gated, arguments, train_dataset=rows)
        trainer.train()
        l0arm.save(trainer.small, "small")
        ```
    """

    learn: float | None = None
    choice: Choice = "scores"
    scores: Score | str | None = "fisher"
    ranked: int = 30
    small: nn.Module | None = None

    def create_optimizer(self, *args: Any, **kwargs: Any) -> Any:
        """AdamW of the weights, grouped as Trainer does."""
        return self._adamw([])

    def _stages(self) -> Any:
        from transformers import TrainerCallback

        trainer = self

        class PruningCallback(TrainerCallback):
            pruning: Pruning | None = None

            def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
                if state.global_step:
                    raise ValueError(
                        "a pruning cannot be resumed from a checkpoint of Trainer; train anew, or "
                        "use l0arm.prune(checkpoint=...)"
                    )
                if args.fp16 and trainer.choice == "gates":
                    raise ValueError(
                        "the gates cannot be trained with a loss scaler; use bf16=True"
                    )
                optimizer = kwargs["optimizer"]
                inner = getattr(optimizer, "optimizer", optimizer)  # inside accelerate's wrapper
                gated = unwrapped(kwargs["model"])
                self.pruning = Pruning(
                    gated,
                    inner,
                    state.max_steps,
                    learn=trainer.learn,
                    gate_lr=trainer.gate_lr,
                    anneal=False,
                    cuts=False,
                    choice=trainer.choice,
                    scores=trainer.scores or "fisher",
                )
                if trainer.choice == "gates" and trainer.scores is not None:
                    loader = kwargs["train_dataloader"]
                    with preserved_randomness(loader):
                        few = [b for _, b in zip(range(trainer.ranked), loader, strict=False)]
                        self.pruning.rank(
                            [_loss_of(gated, trainer._prepare_inputs(batch)) for batch in few],
                            trainer.scores,
                        )

            def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
                figures = unwrapped(kwargs["model"]).status().to_dict()
                at = {"epoch": state.epoch, "step": state.global_step}
                state.log_history.append({**at, **figures})

            def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
                assert self.pruning is not None
                trainer.small = self.pruning.finish()

        return PruningCallback()


def _loss_of(gated: Any, inputs: Any) -> Callable[[], Tensor]:
    def closure() -> Tensor:
        loss: Tensor = gated(**inputs).loss
        return loss

    return closure


def _stages_callback() -> Any:
    """A transformers.TrainerCallback that spreads the method's stages over the epochs."""
    from transformers import TrainerCallback

    class StagesCallback(TrainerCallback):
        course: Course | None = None

        def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            optimizer = kwargs["optimizer"]
            inner = getattr(optimizer, "optimizer", optimizer)  # inside accelerate's wrapper
            known = state.num_train_epochs < sys.maxsize  # data without a length, and max_steps
            epochs = state.num_train_epochs if known else None
            self.course = Course(unwrapped(kwargs["model"]), inner, epochs)

        def on_epoch_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            assert self.course is not None
            self.course.begin(state.epoch or 0)

        def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            assert self.course is not None
            self.course.end()

    return StagesCallback()


def gates_callback() -> Any:
    """Make a Trainer callback that appends the prune rates to the log history after each epoch.

    Returns:
        A ``transformers.TrainerCallback``.

    Raises:
        ImportError: transformers is not installed.
    """
    try:
        from transformers import TrainerCallback
    except ImportError:
        raise ImportError(
            "transformers is not installed; pip install 'l0arm[integrations]'"
        ) from None

    class GatesCallback(TrainerCallback):
        def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            gated = unwrapped(kwargs["model"])
            figures = {"prune_rate": prune_rate(gated), "architecture": architecture(gated)}
            figures["prune_rate_realised"] = prune_rate(gated, "realised")
            state.log_history.append({"epoch": state.epoch, "step": state.global_step, **figures})

    return GatesCallback()
