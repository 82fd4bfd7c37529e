"""Records that a trace gives: one block, and the inputs and outputs of sublayers."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from jaxtyping import Float
from torch import Tensor, nn

from layerlab.observe.architecture.head_weights import HeadWeights
from layerlab.observe.tracing.attention.record import AttentionRecord
from layerlab.shapes import Hidden, Tokens


@dataclass(frozen=True, kw_only=True)
class Sublayer:
    """The input and output of attention, a shortcut beside it, or feed-forward in one block.

    `entered` is the sublayer's own input (after the norm in a pre-norm block), `left` its own
    output, `branch` what joins the residual stream (after a norm on the branch, if there is one);
    None where no sum in the block shows that it does. `joins` is the child of the block that gives
    the branch, with the residual where it is added inside.
    """

    entered: Float[Tensor, "token read"]
    left: Hidden
    branch: Hidden | None
    joins: nn.Module | None = None


@dataclass(frozen=True, kw_only=True)
class Layer:
    """One block of the stack, on one sequence, as the model computed it.

    `layer` counts the blocks from 0; EMBEDDING is what the first one reads, with a `stream` and
    nothing else. A stream of width 0 means that only the attention is known. `heads` is what all
    measures ask of its heads, of several sequences, and which of them this one is. `attend` runs
    its attention on other features at the same places: what it gives, and how it attended.
    """

    sequence: int
    layer: int
    tokens: Tokens
    stream: Hidden
    entered: Hidden | None = None
    sublayers: Mapping[str, Sublayer] = field(default_factory=dict)
    attention: AttentionRecord | None = None
    weights: HeadWeights | None = None
    block: nn.Module | None = None
    rerun: Callable[[Any], Any] | None = None
    attend: Callable[[Hidden], tuple[Hidden, AttentionRecord]] | None = None
    gradient: Hidden | None = None
    heads: tuple[Any, int] | None = None
