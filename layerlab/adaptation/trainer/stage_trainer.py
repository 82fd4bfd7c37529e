"""The Trainers of a stage: of a model in one piece, and of one shared out among processes (FSDP2).

Trainer leaves alone a model that owns its placement, and knows no checkpoint of one: weights and
moments lie in parts, as those of a run that `layerlab train` shares out.
"""

import copy
from functools import partial
from pathlib import Path
from typing import Any

from torch import nn
from transformers import Trainer

from layerlab.errors import UserError
from layerlab.system.rng import random_state
from layerlab.system.write_errors import explain_write
from layerlab.training.checkpoints.checkpoint import (
    CheckpointManager,
    CheckpointState,
    load,
    restoring,
)
from layerlab.training.checkpoints.parts import hash_together
from layerlab.training.sharding import gather_weights, restore_state, shard_layers, without_sync

SCHEDULER = "scheduler"


class StageTrainer(Trainer):
    """A Trainer that says in a line why a checkpoint could not be written."""

    def _save_checkpoint(self, *arguments: Any, **options: Any) -> None:
        with explain_write(Path(str(self.args.output_dir))):
            super()._save_checkpoint(*arguments, **options)


class ShardedTrainer(StageTrainer):
    """A Trainer of which every process has a part of each weight, gradient and moment.

    Attributes:
        model: shared out among the processes.
        outline: the model without memory, that is filled when it is whole again.
    """

    model: Any
    lr_scheduler: Any

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.outline = _outline(self.model)
        shard_layers(self.model, self.accelerator.device.type, self.accelerator.num_processes)
        # So that accelerate makes no copies of it, and passes without an update send nothing.
        self.is_distributed_loading_by_transformers = True
        self.model._is_fsdp_managed_module = True

    def _move_model_to_device(self, model: Any, device: Any) -> None:
        """Leave it to the sharding, which moves layer by layer."""

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Leave the weights to the parts of the checkpoint."""

    def whole(self) -> Any:
        """Return the model as it was before it was shared out; elsewhere than first, its part."""
        first = self.accelerator.is_main_process
        weights = gather_weights(self.model, keep=first)
        if not first:
            return self.model
        self.outline.load_state_dict(weights, assign=True)
        self.outline.tie_weights()
        return self.outline

    def _defer_fsdp_gradient_reduction(self) -> Any:
        return without_sync(self.model)

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        learned = {name for name, one in self.model.named_parameters() if one.requires_grad}
        weights = self.model.state_dict(keep_vars=True)
        state = CheckpointState(
            weights={name: one for name, one in weights.items() if name in learned},
            optimizer=self._plain_optimizer().state_dict(),
            counters={"update": self.state.global_step},
            random=random_state(),
            extra={SCHEDULER: self.lr_scheduler.state_dict()},
        )
        manager, accelerator = CheckpointManager(Path(output_dir), 1), self.accelerator
        remark = manager.save(state, accelerator.process_index, accelerator.num_processes)
        if remark is not None:
            raise UserError(remark)

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        """Leave the weights for when there is an optimizer too."""

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        if checkpoint is None:
            return
        folder, processes = Path(checkpoint), self.accelerator.num_processes
        hasher = partial(hash_together, self.accelerator.process_index, processes)
        state, notes = load(folder, hasher=hasher)
        if state is None:
            raise UserError("; ".join(notes) or f"{folder} holds no parts of a shared-out model")
        own = {name: one for name, one in self.model.state_dict().items() if name in state.weights}
        with restoring(own, state, folder):
            restore_state(self.model, self._plain_optimizer(), state, processes)
            self.lr_scheduler.load_state_dict(state.extra[SCHEDULER])

    def _plain_optimizer(self) -> Any:
        """Return the optimizer, which accelerate may have wrapped."""
        return getattr(self.optimizer, "optimizer", self.optimizer)


def whole_model(trainer: Trainer) -> Any:
    """Return the trained model, whole in the first process; all processes have to ask at once."""
    return trainer.whole() if isinstance(trainer, ShardedTrainer) else trainer.model


def _outline(model: nn.Module) -> Any:
    """Return a copy of a model whose weights take no memory; what is tied stays tied."""
    memo = {
        id(one): nn.Parameter(one.detach().to("meta"), requires_grad=one.requires_grad)
        for one in model.parameters()
    }
    return copy.deepcopy(model, memo)
