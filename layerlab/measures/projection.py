"""Query, key, value and output weights of one attention layer, cut into heads.

Families store them apart, fused in blocks, or interleaved per head, transposed or not; everything
that reads weights gets them from here in one form. A layout that is not recognised is a
`NotApplicable`, never a guess.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from jaxtyping import Float
from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class LayerWeights:
    """Weights of one attention layer: q_h = query[h] z + query_bias[h], z the normed stream.

    Attributes:
        layer: number of this attention layer, the first is 0.
        query_bias: and the other biases: None where the family has none.
        output: the slice of the output projection that reads head h: sum_h output[h] (A_h v_h).
        gain: weight of the norm in front (Gemma's 1 + w is already added), or None: no such norm.
        shift: its bias, or None.
        norm: "layer", "rms" or None.
        rotary: factor m by which RoPE stretches q and k (YaRN, longrope), 1 for plain RoPE, None
            without RoPE.
        query_gain: weights of a norm on q and k (QK-norm), or None.
        refused: what has no reading ("query", "value", ...) and why, in one line.
        matrices: every weight matrix of the block, by its name inside the block.
    """

    layer: int
    name: str
    scaling: float
    query: Float[Tensor, "head head_width width"] | None = None
    key: Float[Tensor, "kv_head head_width width"] | None = None
    value: Float[Tensor, "kv_head value_width width"] | None = None
    output: Float[Tensor, "head width value_width"] | None = None
    query_bias: Float[Tensor, "head head_width"] | None = None
    key_bias: Float[Tensor, "kv_head head_width"] | None = None
    value_bias: Float[Tensor, "kv_head value_width"] | None = None
    output_bias: Float[Tensor, " width"] | None = None
    gain: Float[Tensor, " width"] | None = None
    shift: Float[Tensor, " width"] | None = None
    norm: str | None = None
    rotary: float | None = None
    query_gain: Tensor | None = None
    key_gain: Tensor | None = None
    query_shift: Tensor | None = None
    key_shift: Tensor | None = None
    softcap: float | None = None
    refused: Mapping[str, str] = field(default_factory=dict)
    matrices: Mapping[str, Tensor] = field(default_factory=dict)
