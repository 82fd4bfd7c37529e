"""Matrix layouts of weights; groups and blocks of a format lie along the inputs."""

from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

_STACKS = ("Llama4TextExperts", "RecurrentGemmaRglru")  # which do not say it themselves
# Matrices that are multiplied from the left, besides those of Conv1D.
_RELATIVE = (
    "InklingRelativeLogits",
    "Inkling2RelativeLogits",
    "Inkling2RelativePositionBias",
    "Inkling2LoopRelativePositionBias",
)


@dataclass(frozen=True, kw_only=True)
class WeightLayout:
    """Way in which the matrices of a weight are stored.

    Attributes:
        shape: in which the weight is a matrix, or a stack of them; None for its own.
        inputs_first: whether a matrix has a row for each input, and not for each output.
    """

    shape: tuple[int, ...] | None = None
    inputs_first: bool = False

    def to_matrices(self, weight: Tensor) -> Tensor:
        """Return a stored weight as a matrix, or a stack of them, with a row for each output."""
        matrices = weight if self.shape is None else weight.reshape(self.shape)
        return matrices.mT if self.inputs_first else matrices

    def to_stored(self, matrices: Tensor, weight: Tensor) -> Tensor:
        """Return what `to_matrices` gave, or numbers in its place, in the shape of the weight."""
        return (matrices.mT if self.inputs_first else matrices).reshape(weight.shape)


def find_layout(module: nn.Module | None, name: str, weight: Tensor) -> WeightLayout:
    """Return how a module keeps a weight.

    Conv1D of transformers has a row for each input; so do stacks of some families, of which experts
    mostly say so. DBRX has its experts below each other in one matrix, and a row for each input
    in the last one, `w2`; XLNet's matrices have an axis for heads.

    Args:
        module: that holds the weight; None where it is not known.
        name: of the weight in the module.
        weight: a matrix, or a stack of them.
    """
    kind = type(module).__name__
    if kind == "DbrxExpertGLU" and weight.ndim == 2:
        experts: Any = module
        stack = (experts.moe_num_experts, -1, weight.shape[1])
        return WeightLayout(shape=stack, inputs_first=name == "w2")
    if kind == "XLNetRelativeAttention":
        return WeightLayout(shape=(len(weight), -1), inputs_first=name in ("q", "k", "v", "r"))
    if weight.ndim == 3:
        return WeightLayout(inputs_first=bool(getattr(module, "is_transposed", kind in _STACKS)))
    return WeightLayout(inputs_first=weight.ndim == 2 and kind in ("Conv1D", *_RELATIVE))
