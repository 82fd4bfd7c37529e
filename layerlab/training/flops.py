"""Cost of runs: FLOPs by formula, and how many updates fit into a time.

Two conventions of attention are in use, and both are stated. `full` counts every product of the
score matrix, as PyTorch's FlopCounterMode does; `causal` counts those that a causal mask leaves,
(T + 1) / 2 of T for each token of a block.
"""

from dataclasses import dataclass, replace

from layerlab.model.cost.cost import account
from layerlab.recipes.training import TrainingRecipe
from layerlab.system.hardware import here, matmul_peak
from layerlab.training.run_spec import design_model


@dataclass(frozen=True, kw_only=True)
class TokenFlops:
    """FLOPs of one token, forward and backward, at the length of a block.

    Attributes:
        full: with the whole square of attention.
        causal: with what a causal mask leaves of it.
    """

    full: int
    causal: int


def flops_per_token(recipe: TrainingRecipe) -> TokenFlops:
    """Return FLOPs of one token of a resolved recipe's model, forward and backward.

    A backward pass costs two forward passes.

    Unit: FLOPs per token.

    Source: Own; attention as in kaplan20, section 2.1.
    """
    found = design_model(recipe)
    block = recipe.data.block_size or found.shape.context

    def forward(tokens: int) -> int:
        return account(found.spec, replace(found.shape, context=tokens)).forward

    # What grows with the length is attention's square, and nothing else does.
    full = forward(block)
    square = forward(2 * block) - full
    return TokenFlops(full=3 * full, causal=round(3 * (full - square * (block - 1) / (2 * block))))


def utilization(flops: int | float, seconds: float, peak: float) -> float:
    """Return model FLOPs utilization (MFU): what was achieved over the measured peak.

    Example:
        >>> utilization(3e11, 2.0, 1e12)
        0.15
    """
    return flops / seconds / peak


def peak_of(recipe: TrainingRecipe) -> float | None:
    """Return the measured peak that a recipe's runs are held against.

    None where there is no such device.

    Unit: FLOPs per second.
    """
    if not here(recipe.run.device):
        return None
    return matmul_peak(recipe.run.device, recipe.train.mixed_precision, recipe.run.threads)
