"""Along which axis a stored weight is summed: groups and blocks of a format lie along it."""

from torch import Tensor, nn

_STACKS = ("Llama4TextExperts", "RecurrentGemmaRglru")  # which do not say it themselves


def has_inputs_first(module: nn.Module | None, weight: Tensor) -> bool:
    """Return whether a module keeps a row for each input, and not for each output.

    transformers' Conv1D does, and so do stacks of some families, of which experts mostly say so.

    Args:
        module: that holds the weight; None where it is not known.
        weight: a matrix, or a stack of them.
    """
    name = type(module).__name__
    if weight.ndim == 3:
        return bool(getattr(module, "is_transposed", name in _STACKS))
    return weight.ndim == 2 and name == "Conv1D"
