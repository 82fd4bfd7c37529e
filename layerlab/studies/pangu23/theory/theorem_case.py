"""Lemmas and theorems of pangu23 on one layer and on a stack: what is observed, over its bound.

At most 1 where a statement holds. Features, attention and weights are those of a model, formed
again in float64; what the source adds to it (noise, shortcuts, further terms) is random.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from layerlab.errors import NotApplicable
from layerlab.measures.quantities.diversity import diversity as d
from layerlab.measures.support.sublayers.sublayer_bounds import spectral_bound
from layerlab.numerics.theory.activations import activation
from layerlab.studies.support.passages import for_each_layer
from layerlab.studies.support.theory_block import theory_of

if TYPE_CHECKING:
    from layerlab.loading.model import LoadedModel
    from layerlab.measures.support.rounding_theory import Theory

GELU = activation("gelu")
# One statement per number; the order is that of `single` and then of `stack_statements`.
SINGLE = (
    "Lemma 1, a matrix",
    "Lemma 1, an activation",
    "Lemma 1, a sum",
    "Lemma 1, attention",
    "Lemma 2, difference from equality",
    "Theorem 1, as printed",
    "Theorem 1, without the output's norm",
    "Theorem 2",
    "Theorem 3, plain feed-forward",
    "Theorem 3, gated feed-forward",
    "Theorem 3, gated, features x 1000",
    "Theorem 4",
    "Equation 6",
    "Lemma 3",
    "Lemma 4",
    "Theorem 5, not strict",
    "Theorem 6, not strict",
    "Theorem 7, a matrix per term",
    "root lambda",
    "root lambda H, s and the output's norm",
)
STACKED = ("Theorem 2, in depth", "Theorem 3, in depth", "Theorem 8", "Theorem 9")
# These two are constants, and bounded by nothing.
CONSTANTS = SINGLE[-2:]
LEVEL = 0.1
FAR = 1000.0
NAN = torch.tensor(float("nan"), dtype=torch.float64)


@dataclass(frozen=True, kw_only=True)
class CaseLayer:
    """One layer: its maps, and the norms of its matrices.

    Attributes:
        values: spectral norm of each head's value matrix, `joint` that of all side by side.
        output: that of the output matrix.
        inward, outward: those of the feed-forward's, of the gate where there is one.
    """

    theory: "Theory"
    values: Tensor
    joint: Tensor
    output: Tensor
    inward: Tensor
    outward: Tensor

    @property
    def attention(self) -> Any:
        return self.theory.attention

    @property
    def feedforward(self) -> Any:
        return self.theory.feedforward

    @property
    def size(self) -> Tensor:
        """Return sqrt(H) s v1, a factor of the theorems' bounds."""
        return self.attention.heads**0.5 * self.values.max() * self.output

    def matrices(self, z: Tensor) -> Tensor:
        """Return the attention matrices of features z."""
        every = [self.attention.weights(z, head) for head in range(self.attention.heads)]
        return torch.stack(every)


def parts(subject: "LoadedModel", ids: Tensor) -> list[CaseLayer]:
    """Return every layer of a model, for passages of that length."""
    found: list[CaseLayer] = []

    def read(layer: Any) -> None:
        if layer.block is not None:
            layer_theory = theory_of(layer, subject)
            if layer_theory.attention is None or layer_theory.feedforward is None:
                raise NotApplicable("; ".join(dict.fromkeys(layer_theory.refused.values())))
            found.append(part(layer_theory))

    for_each_layer(subject, ids[None], read)
    plain = (one.feedforward.inward for one in found if one.feedforward.gate is None)
    if len({matrix.shape for matrix in plain}) > 1:
        raise NotApplicable("its feed-forwards are not all as wide")
    return found


def part(layer_theory: "Theory") -> CaseLayer:
    """Return a layer with the norms of its matrices."""
    attention: Any = layer_theory.attention
    forward: Any = layer_theory.feedforward
    # Heads that share a value matrix each have it: side by side it stands there as often.
    values = attention.value.repeat_interleave(attention.heads // len(attention.value), 0)
    return CaseLayer(
        theory=layer_theory,
        values=spectral_bound(values),
        joint=spectral_bound(values.flatten(0, 1)),
        output=spectral_bound(attention.joined_output()),
        inward=spectral_bound(forward.inward if forward.gate is None else forward.gate),
        outward=spectral_bound(forward.outward),
    )


@dataclass(frozen=True, kw_only=True)
class Extra:
    """The source's additions: a shortcut's matrix, another term's matrix, and a noise."""

    theta: Tensor
    term: Tensor
    noise: Tensor

    @cached_property
    def norm(self) -> Tensor:
        """Return ||Theta||."""
        return spectral_bound(self.theta)

    @cached_property
    def direction(self) -> Tensor:
        """Return the term's matrix scaled to a norm of 1."""
        return self.term / spectral_bound(self.term)

    def scale_noise(self, z: Tensor) -> Tensor:
        """Scale the noise to a tenth of the diversity of the features."""
        return self.noise * (LEVEL * d(z) / self.noise.norm())


def contraction(matrices: Tensor) -> Tensor:
    """Return sqrt(lambda) of each attention matrix."""
    return spectral_bound(matrices - matrices.mean(-2, keepdim=True))


def shortcut(z: Tensor, theta: Tensor) -> Tensor:
    """Return T(Z) = gelu(Z Theta)."""
    return torch.nn.functional.gelu(z @ theta)


def single(layer: CaseLayer, z: Tensor, f: Tensor, stream: Tensor, extra: Extra) -> Tensor:
    """Evaluate every statement on one layer: attention reads z, the feed-forward reads f."""
    a, spread = layer.matrices(z), d(z)
    root = contraction(a)
    attended = layer.attention.value_of(z)
    values = torch.stack([layer.attention.values(z, head) for head in range(len(a))])
    heads = a @ values
    joined = torch.cat(list(heads), -1)
    squares = torch.stack([d(head) ** 2 for head in heads]).sum()
    every = torch.cat(list(values), -1)
    own = torch.stack([d(head) for head in heads]) / (root.max() * layer.values.max() * spread)
    moved = torch.stack([d(one @ z) for one in a]) / (root * spread)
    factor = root.max() * layer.size
    return _gather(
        [
            d(every) / (layer.joint * spread),
            *_activate(layer, f),
            d(stream + attended) / (d(stream) + d(attended)),
            moved.max(),
            (d(joined) ** 2 / squares - 1).abs(),
            (own / layer.output).max(),
            own.max(),
            d(attended) / (factor * spread),
            *_feedforward(layer, f),
            d(attended + z + shortcut(z, extra.theta)) / (_grow(factor, extra) * spread),
            *_noisy(layer, z, attended, a, extra),
            _series(layer, f, extra),
            root.max(),
            factor,
        ]
    )


def _gather(found: Sequence[Tensor]) -> Tensor:
    """Return numbers of the model's device, and those that there are none of, on the host."""
    return torch.stack([one.cpu() for one in found])


def _grow(factor: Tensor, extra: Extra) -> Tensor:
    """Return the factor of Theorem 4."""
    return factor + 1 + GELU.lipschitz * extra.norm


def _inner(layer: CaseLayer, f: Tensor) -> Tensor:
    forward = layer.feedforward
    gated = forward.gate is not None
    matrix, bias = (
        (forward.gate, forward.gate_bias) if gated else (forward.inward, forward.inward_bias)
    )
    return torch.nn.functional.linear(f, matrix, bias)


def _activate(layer: CaseLayer, f: Tensor) -> list[Tensor]:
    kind, inner = activation(layer.feedforward.activation), _inner(layer, f)
    return [d(kind.value(inner)) / (kind.lipschitz * d(inner))]


def _feedforward(layer: CaseLayer, f: Tensor) -> list[Tensor]:
    """Evaluate Theorem 3 on a plain feed-forward, and on a gated one, which it does not cover."""
    constant = activation(layer.feedforward.activation).lipschitz
    bound = constant * layer.inward * layer.outward * d(f)
    ratio = d(layer.feedforward.value(f)) / bound
    if layer.feedforward.gate is None:
        return [ratio, NAN, NAN]
    return [NAN, ratio, d(layer.feedforward.value(FAR * f)) / (FAR * bound)]


def _noisy(layer: CaseLayer, z: Tensor, attended: Tensor, a: Tensor, extra: Extra) -> list[Tensor]:
    noise, spread, theta = extra.scale_noise(z), d(z), extra.theta
    size, norm, constant = noise.norm(), extra.norm, GELU.lipschitz
    dirty = layer.matrices(z + noise)
    change = layer.attention.value_of(z + noise) - attended
    through = contraction(dirty).max() * layer.size
    shaken = contraction(dirty - a).max() * layer.size * spread
    path = shortcut(z + noise, theta) - shortcut(z, theta)
    return [
        (d(z + noise) - spread).abs() / d(noise),
        d(change) / (through * size + shaken),
        d(noise @ theta) / (norm * size),
        d(path) / (constant * norm * size),
        d(change + noise + path) / ((1 + through + constant * norm) * size + shaken),
    ]


def _series(layer: CaseLayer, f: Tensor, extra: Extra) -> Tensor:
    """Evaluate Theorem 7 with the layer's own matrix and another of its norm as two terms."""
    if layer.feedforward.gate is not None:
        return NAN
    value, size = _sum(layer, f, extra)
    return d(value) / (size * d(f))


def _sum(layer: CaseLayer, f: Tensor, extra: Extra) -> tuple[Tensor, Tensor]:
    """Return a series of two terms, and the factor of its bound."""
    kind, forward = activation(layer.feedforward.activation), layer.feedforward
    further = f @ extra.direction * layer.inward
    inner = kind.value(_inner(layer, f)) + kind.value(further)
    size = 2 * kind.lipschitz * layer.inward * layer.outward
    return torch.nn.functional.linear(inner, forward.outward, forward.outward_bias), size


def stack_statements(layers: Sequence[CaseLayer], start: Tensor, extra: Extra) -> Tensor:
    """Evaluate the statements in depth, on the layers' own maps.

    Norms and other shortcuts are left out. The factor is that of the source: the largest of any
    layer, to the power of the layers.
    """
    gated = layers[0].feedforward.gate is not None
    spread = d(start)
    z, plain = _repeat(layers, start, None)
    above = d(z) / (plain ** len(layers) * spread)
    if gated:
        return _gather([above, NAN, NAN, NAN])
    only, alone = _forward(layers, start, None)
    below, factor = _forward(layers, z, None)
    augmented, grown = _repeat(layers, start, extra)
    series, summed = _forward(layers, augmented, extra)
    power = len(layers)
    return _gather(
        [
            above,
            d(only) / (alone**power * spread),
            d(below) / (plain**power * factor**power * spread),
            d(series) / (grown**power * summed**power * spread),
        ]
    )


def _repeat(layers: Sequence[CaseLayer], z: Tensor, extra: Extra | None) -> tuple[Tensor, Tensor]:
    """Repeat attention, augmented or not, and return the largest factor of a layer too."""
    factors = []
    for layer in layers:
        factor = contraction(layer.matrices(z)).max() * layer.size
        attended = layer.attention.value_of(z)
        if extra is None:
            z = attended
        else:
            z, factor = attended + z + shortcut(z, extra.theta), _grow(factor, extra)
        factors.append(factor)
    return z, torch.stack(factors).max()


def _forward(layers: Sequence[CaseLayer], z: Tensor, extra: Extra | None) -> tuple[Tensor, Tensor]:
    """Repeat feed-forwards, as a series or not, and return the largest factor of a layer too."""
    factors = []
    for layer in layers:
        if extra is None:
            constant = activation(layer.feedforward.activation).lipschitz
            z, factor = layer.feedforward.value(z), constant * layer.inward * layer.outward
        else:
            z, factor = _sum(layer, z, extra)
        factors.append(factor)
    return z, torch.stack(factors).max()
