"""How the built-in models are trained: settings, and a model on its way."""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from layerlab.studies.support.builtin_architectures import BuiltinShape


@dataclass(frozen=True, kw_only=True)
class Recipe(BuiltinShape):
    """Everything that decides the outcome of a run, apart from the text and the library versions.

    Attributes:
        cooldown: steps at the end over which the rate falls to the last rate in a straight line.
        validation: the last part of the text, held out.
        interval: steps between two lines of the log, each with a checkpoint.
    """

    batch: int = 8
    steps: int = 3600
    cooldown: int = 300
    warmup: int = 300
    rate: float = 2e-3
    last_rate: float = 2e-4
    betas: tuple[float, float] = (0.9, 0.95)
    decay: float = 0.1
    clip: float = 1.0
    validation: float = 0.1
    interval: int = 300


@dataclass
class TrainedArm:
    """One model on its way: its optimizer, what it has seen and what that cost.

    Attributes:
        seen: a hash chained over all batches; equal in two arms only if they saw the same.
        losses: training loss of every step, nats per token.
        history: step and validation loss in nats per token.
    """

    name: str
    model: Any
    optimizer: torch.optim.AdamW
    seen: str = ""
    seconds: float = 0.0
    losses: list[float] = field(default_factory=list)
    history: list[tuple[int, float]] = field(default_factory=list)

    def state(self) -> dict[str, Any]:
        """Return all that is needed to continue."""
        return {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            **{key: getattr(self, key) for key in ("seen", "seconds", "losses", "history")},
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from what `state` gave."""
        state = dict(state)
        self.model.load_state_dict(state.pop("model"))
        self.optimizer.load_state_dict(state.pop("optimizer"))
        for key, value in state.items():
            setattr(self, key, value)


def optimizer_of(model: nn.Module, recipe: Recipe) -> torch.optim.AdamW:
    """Make AdamW; biases and norms are not decayed."""
    parameters = list(model.parameters())
    groups = [
        {"params": [p for p in parameters if p.dim() >= 2], "weight_decay": recipe.decay},
        {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=recipe.rate, betas=recipe.betas, fused=True)
