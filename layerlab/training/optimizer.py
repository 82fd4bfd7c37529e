"""AdamW with its weight decay on matrices alone."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from layerlab.recipes.training_sections import TrainSection

DECAYED = (nn.Linear, nn.Embedding, nn.Conv1d)


def build_optimizer(model: nn.Module, train: TrainSection) -> torch.optim.AdamW:
    """Build AdamW, fused, with one group that decays and one that does not.

    Only weights of linear layers, embeddings and convolutions decay. Norms, biases, the scales and
    shifts of series activations, mixing coefficients of residual schemes, and whatever else a part
    of one's own holds as a bare parameter do not: for a scale, zero is no neutral value.
    """
    decayed = {id(one) for one in _matrices(model)}
    # Tied parameters are listed once, and stand in the group of the first that holds them.
    every = [one for one in model.parameters() if one.requires_grad]
    groups = [
        {
            "params": [one for one in every if id(one) in decayed],
            "weight_decay": train.weight_decay,
        },
        {"params": [one for one in every if id(one) not in decayed], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(
        [group for group in groups if group["params"]],
        lr=train.learning_rate,
        betas=(train.adam_beta1, train.adam_beta2),
        eps=train.adam_epsilon,
        fused=True,
    )


def allocate(optimizer: torch.optim.Optimizer) -> None:
    """Allocate the moments of AdamW for all parameters that have none yet.

    They are most of what a run still takes after its first pass. Where they are there before it,
    memory that runs out does so in a pass, which can be taken in smaller pieces.
    """
    for group in optimizer.param_groups:
        for one in group["params"]:
            if not optimizer.state[one]:
                # Of a sharded weight each process makes its part.
                moments = {name: torch.zeros_like(one) for name in ("exp_avg", "exp_avg_sq")}
                step = torch.zeros((), dtype=torch.float32, device=one.device)
                optimizer.state[one] = {"step": step, **moments}


def _matrices(model: nn.Module) -> Iterator[Tensor]:
    for module in model.modules():
        if isinstance(module, DECAYED):
            forms: Any = getattr(module, "parametrizations", {})
            found: Any = forms.weight.original if "weight" in forms else module.weight
            yield found
