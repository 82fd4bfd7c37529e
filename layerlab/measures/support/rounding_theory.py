"""The parts of a block as the theory of rounding knows them, checked on what the model computed.

Norms, attention and feed-forward are formed again from the weights, in float64, and compared with
what the model gave; what does not agree is another map, and no theorem here speaks about it.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import permutations
from typing import Any

import torch
from torch import Tensor, nn

from layerlab.errors import NotApplicable
from layerlab.numerics.theory.activations import ACTIVATIONS
from layerlab.numerics.theory.modules import TheoryAttention, TheoryBlock, TheoryFFN, TheoryNorm
from layerlab.observe.architecture import norms
from layerlab.observe.architecture.effective_weights import linear_maps
from layerlab.observe.architecture.structure import find_rotary, has_matrix
from layerlab.observe.tracing.records import Layer
from layerlab.shapes import Hidden
from layerlab.system.hardware import is_out_of_memory

# A map that is another one differs by far more; float32 and bf16 weights in float32 by far less.
SAME = 1e-3
# Parts of twenty families in bf16 were off by 1.1 machine epsilons at most, maps of others by 7.
ROUNDED = 4
# Tokens that tell feed-forward layers apart.
ROWS = 8
PARTS = ("attention_norm", "attention", "feedforward_norm", "feedforward")
_ATTENTION = re.compile("attn|attention", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class Theory:
    """One block: its parts with what each reads; None where a part is another map.

    Attributes:
        entered: the stream in front of the block, `middle` that between the sublayers.
        output: the stream behind the block.
        attended: what attention adds to the stream, `left` what the feed-forward adds.
        refused: what has no reading, and why.
        eps: machine epsilon of the features as the model stores them.
    """

    entered: Hidden
    middle: Hidden | None = None
    output: Hidden | None = None
    attended: Hidden | None = None
    left: Hidden | None = None
    attention_input: Hidden | None = None
    feedforward_input: Hidden | None = None
    attention_norm: TheoryNorm | None = None
    attention: TheoryAttention | None = None
    feedforward_norm: TheoryNorm | None = None
    feedforward: TheoryFFN | None = None
    refused: dict[str, str] = field(default_factory=dict)
    eps: float = 0.0

    def block(self) -> TheoryBlock:
        """Return the whole block, proved on what it gave.

        Raises:
            NotApplicable: a part is another map, or the block does not add up its parts as a
                pre-norm block does: what they give is scaled, or normed after.
        """
        parts = {name: getattr(self, name) for name in PARTS}
        missing = next((name for name in PARTS if parts[name] is None), None)
        if missing is not None:
            raise NotApplicable(self.refused[missing])
        block = TheoryBlock(**parts)
        if not self._adds_up(block):
            raise NotApplicable("it is no sum of the stream with what its parts give")
        return block

    def _adds_up(self, block: TheoryBlock) -> bool:
        """Return whether each part gives what is added; a small one hides beside the stream."""
        if self.attended is None or self.left is None or self.output is None:
            return False
        attended = block.attention.value_of(block.attention_norm.value(self.entered))
        left = block.feedforward.value(block.feedforward_norm.value(self.entered + attended))
        limit, stored = _limit(self.eps), self.eps * float(self.output.norm())
        return (
            _same(attended, self.attended, limit)
            and _same(left, self.left, limit)
            and _same(attended + left, self.output - self.entered, limit, stored)
        )


def theory(layer: Layer, model: nn.Module) -> Theory | None:
    """Return what the theory knows of one block on one sequence; None of the embedding output."""
    if layer.entered is None or layer.block is None:
        return None
    entered, refused = layer.entered.double(), dict[str, str]()
    stored = [layer.entered, *(one.left for one in layer.sublayers.values())]
    eps = max(torch.finfo(one.dtype).eps for one in stored)
    limit = _limit(eps)
    found: dict[str, Any] = {}
    sublayer = layer.sublayers.get("attention")
    if sublayer is not None:
        own = found["attention_input"] = sublayer.entered.double()
        found["attention"] = _attention(layer, model, own, sublayer.left.double(), limit, refused)
        found["attention_norm"] = _norm(layer.block, entered, own, limit)
        if sublayer.branch is not None:
            found["attended"] = sublayer.branch.double()
            found["middle"] = entered + found["attended"]
    sublayer = layer.sublayers.get("ffn")
    if sublayer is not None:
        own = found["feedforward_input"] = sublayer.entered.double()
        found["feedforward"] = _feedforward(layer.block, own, sublayer.left.double(), limit)
        if "middle" in found:
            found["feedforward_norm"] = _norm(layer.block, found["middle"], own, limit)
            found["left"] = None if sublayer.branch is None else sublayer.branch.double()
    for name in PARTS:
        if found.get(name) is None:
            refused.setdefault(name, _reason(name, found, layer))
    return Theory(entered=entered, output=layer.stream.double(), refused=refused, eps=eps, **found)


def _reason(name: str, found: dict[str, Any], layer: Layer) -> str:
    part, _, kind = name.partition("_")
    if kind and f"{part}_input" not in found:
        return f"no {part} is seen in it"
    if kind:
        return f"no norm in front of its {part} makes what that reads of the stream"
    sublayer = layer.sublayers.get("ffn" if part == "feedforward" else part)
    if sublayer is not None and not sublayer.left.any():
        return f"all that its {part} gives is 0, which has no relative error"
    return f"its {part} is not one that the theory of rounding knows"


def _limit(eps: float) -> float:
    return max(SAME, ROUNDED * eps)


def _same(found: Tensor, given: Tensor, limit: float = SAME, stored: float = 0.0) -> bool:
    """Return whether two differ by less than a share of their size, and what storing them does."""
    if found.shape != given.shape:
        return False
    return float((found - given).norm()) < limit * float(given.norm()) + stored


def _norm(block: nn.Module, x: Hidden, y: Hidden, limit: float) -> TheoryNorm | None:
    """Return the norm of the block that makes y of x; None where y is x."""
    if _same(x, y):
        return None
    for module in block.modules():
        if next(module.children(), None) is not None or has_matrix(module):
            continue
        read = norms.norm(module, x.shape[-1])
        if read is None:
            continue
        norm = TheoryNorm(
            kind="layer" if read.kind == "layer" else "rms",
            gain=read.gain.double().to(x.device),
            shift=None if read.shift is None else read.shift.double().to(x.device),
            eps=_epsilon(module),
        )
        if _same(norm.value(x), y, limit):
            return norm
    return None


def _epsilon(module: nn.Module) -> float:
    for name in ("eps", "variance_epsilon", "epsilon"):
        if isinstance(value := getattr(module, name, None), float):
            return value
    return 0.0


def _attention(
    layer: Layer,
    model: nn.Module,
    x: Hidden,
    y: Hidden,
    limit: float,
    refused: dict[str, str],
) -> TheoryAttention | None:
    weights, record = layer.weights, layer.attention
    if weights is None or record is None:
        return None
    missing = [n for n in ("query", "key", "value", "output") if getattr(weights, n) is None]
    if missing:
        refused["attention"] = weights.refused.get(missing[0], f"its {missing[0]} is not known")
        return None
    if not record.sums_to_one or record.softcap or weights.query_norm:
        refused["attention"] = "sinks, softcap and QK-norm are not in the theory of rounding"
        return None
    cosine, sine = _tables(model, x) if weights.rotary is not None else (None, None)
    if weights.rotary is not None and cosine is None:
        return None
    seen = record.allowed_keys()
    attention = TheoryAttention(
        query=weights.query.double(),  # type: ignore[union-attr]
        key=weights.key.double(),  # type: ignore[union-attr]
        value=weights.value.double(),  # type: ignore[union-attr]
        output=weights.output.double(),  # type: ignore[union-attr]
        query_bias=_wide(weights.query_bias),
        key_bias=_wide(weights.key_bias),
        value_bias=_wide(weights.value_bias),
        output_bias=_wide(weights.output_bias),
        scale=weights.scaling,
        cosine=cosine,
        sine=sine,
        allowed=seen[0] if seen.dim() == 3 else seen,
    )
    try:
        return attention if _same(attention.value_of(x), y, limit) else None
    except RuntimeError as error:  # rotary tables of another width than the heads
        if is_out_of_memory(error):
            raise
        return None


def _wide(value: Tensor | None) -> Tensor | None:
    return None if value is None else value.double()


def _tables(model: nn.Module, x: Hidden) -> tuple[Tensor | None, Tensor | None]:
    """Return the cosines and sines of the model's rotary positions, one row per token."""
    rotary = find_rotary(model)
    if rotary is None:
        return None, None
    places = torch.arange(len(x), device=x.device)[None]
    try:
        cosine, sine = rotary(x[None].float(), places)
    except (TypeError, ValueError, RuntimeError):
        return None, None
    return cosine[0].double(), sine[0].double()


def _feedforward(block: nn.Module, x: Hidden, y: Hidden, limit: float) -> TheoryFFN | None:
    """Return the linear maps and the activation that make y of x, with a gate or without.

    Rounding may leave room for several activations, of which it is the nearest.
    """
    linears = list(_linears(block, x.shape[-1]))
    few, given = x[:ROWS], y[:ROWS]
    for count in (2, 3):
        for maps in permutations(linears, count):
            # Of experts, one may have been given the first tokens alone.
            found = [
                one
                for one in _candidates(maps, x.shape[-1])
                if _same(one.value(few), given, limit) and _same(one.value(x), y, limit)
            ]
            if found:
                return min(found, key=lambda one: float((one.value(x) - y).norm()))
    return None


def _candidates(maps: tuple[Any, ...], width: int) -> Iterator[TheoryFFN]:
    (inward, inward_bias), *between, (outward, outward_bias) = maps
    gate, gate_bias = between[0] if between else (None, None)
    fits = inward.shape[1] == width and outward.shape[1] == inward.shape[0]
    if not fits or (gate is not None and gate.shape != inward.shape):
        return
    for name in ACTIVATIONS:
        yield TheoryFFN(
            inward=inward,
            outward=outward,
            activation=name,
            gate=gate,
            inward_bias=inward_bias,
            outward_bias=outward_bias,
            gate_bias=gate_bias,
        )


def _linears(block: nn.Module, width: int) -> Iterator[tuple[Tensor, Tensor | None]]:
    """Yield the weights (out, in) and biases of the linear maps that are not in its attention."""
    for path, weight, bias in linear_maps(block):
        if not _ATTENTION.search(path) and width in weight.shape:
            yield weight.double(), None if bias is None else bias.double()
