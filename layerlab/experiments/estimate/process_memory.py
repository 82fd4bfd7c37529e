"""Estimates the memory of each process of a run, which has the model whole or a part of it."""

from layerlab.experiments.estimate.disk_space import WEIGHT, moment_bytes
from layerlab.experiments.estimate.step_time import passed_tokens
from layerlab.model.cost.cost import Account
from layerlab.recipes.training import TrainingRecipe
from layerlab.training.run_spec import count_costs, design_model

GRADIENT = 4  # bytes of a parameter's, which lives in memory alone


def process_memory(recipe: TrainingRecipe, activations: int) -> int:
    """Return the bytes of weights, gradients, moments and activations in each process at the peak.

    Of several processes that copy the model (DDP) each holds gradients twice: what they exchange
    lies in buckets. Of those that share it (FSDP2) each holds its part of all, and what it works on
    whole.

    Unit: bytes.

    Args:
        activations: bytes that a forward pass leaves in one process.
    """
    cost, processes = count_costs(recipe), recipe.run.num_processes
    kept = WEIGHT * cost.parameters + moment_bytes(recipe)
    gradients = GRADIENT * cost.parameters
    if processes == 1:
        return kept + gradients + activations
    if recipe.run.sharding == "none":
        return kept + 2 * gradients + activations
    return kept // processes + _whole(recipe, cost, activations)


def _whole(recipe: TrainingRecipe, cost: Account, activations: int) -> int:
    """Return the most bytes beside its parts of weights and moments that a process of FSDP2 holds.

    Embedding and head are whole from the first pass on. The first layer of the backward pass has
    its weights, those of the next and its gradients; the second also what the first hands over.
    Last come the gradients of embedding and head, for a weight that is both, those of each use and
    their sum. Where layers share weights, all of the model is whole at once.
    """
    found, processes = design_model(recipe), recipe.run.num_processes
    shape, head = found.shape, GRADIENT * (cost.head or cost.embedding)
    summed = 0 if cost.head else 2 * head
    if found.spec.stack.sharing != "none":
        # Weights once as they were gathered and once to work with; or gradients of all of them.
        weights = WEIGHT * cost.parameters
        return weights + max(weights + activations, GRADIENT * cost.parameters + summed)
    layer = WEIGHT * cost.blocks // shape.layers
    edge = cost.parameters - cost.blocks
    logits = 2 * WEIGHT * shape.vocab * passed_tokens(recipe)
    inside = max(0, activations - logits)
    first = head + 3 * layer + inside
    second = head + 4 * layer + layer // processes + inside * (shape.layers - 1) // shape.layers
    last = GRADIENT * cost.blocks // processes + GRADIENT * edge + layer + summed
    return WEIGHT * edge + max(2 * layer + activations, first, second, last)
