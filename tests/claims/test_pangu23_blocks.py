"""PanGu-pi (pangu23), Theorems 4, 6, 7 and 9 on the blocks that layerlab builds.

The blocks are our layers and parts without norms, as the theory has them; their weights, features
and attention matrices are random and adversarial, and every constant is measured from them. Theorem
7 holds on the plain body alone: SwiGLU has no Lipschitz constant. Strictness, which the source
claims for Theorem 6, is refuted.
"""

from copy import deepcopy
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from layerlab.blocks.context import Flow
from layerlab.blocks.layer import DecoderLayer
from layerlab.blocks.shape import Shape, Site
from layerlab.blocks.spec import NONE, BlockSpec, Choice
from layerlab.measures.quantities.diversity import diversity as d
from layerlab.variants.registry import part
from tests.claims.adversary import (
    DOUBLE,
    LIPSCHITZ,
    Draw,
    contraction,
    draws,
    holds,
    msa_factor,
    spectral,
)

INNER = 7
CONSTANTS = {name: constant for name, (_, constant) in LIPSCHITZ.items()}
names = st.sampled_from(sorted(CONSTANTS))
tried = settings(max_examples=60, deadline=None)
paths = st.fixed_dictionaries(
    {
        "form": st.sampled_from(["bottleneck", "full", "circulant"]),
        "T": st.integers(1, 3),
        "r": st.sampled_from([1, 2, 32]),
        "bias": st.booleans(),
        "activation": names,
        "initial": st.just("normal"),
    }
)
series = st.fixed_dictionaries(
    {
        "form": st.sampled_from(["affine-in", "scale-out", "multi-projection"]),
        "granularity": st.sampled_from(["channel", "scalar"]),
        "bias": st.booleans(),
        "activations": st.lists(names, min_size=1, max_size=4),
        "body": st.just("mlp"),
    }
)


class Attending:
    """Attention in float64 with given matrices, or with its own; it keeps what it used."""

    def __init__(self, matrices=None):
        self.matrices = matrices

    def __call__(self, module, query, key, value, mask, *, scaling, **options):
        if self.matrices is None:
            tokens = query.shape[2]
            future = torch.ones(tokens, tokens, dtype=torch.bool).triu(1)
            scores = (query @ key.transpose(2, 3) * scaling).masked_fill(future, -torch.inf)
            self.used = torch.softmax(scores, -1)[0]
        else:
            self.used = self.matrices
        return (self.used @ value).transpose(1, 2), self.used


def site(draw, attend=None):
    shape = Shape(
        width=draw.width,
        layers=1,
        heads=draw.heads,
        kv_heads=draw.heads,
        head_width=3,
        inner=INNER,
        vocab=2,
        context=16,
    )
    return Site(shape=shape, layer=0, attend=attend)


def filled(module, draw, salt, factor=1.0):
    """The module with the draw's matrices and with vectors that are Gaussian."""
    module = module.double()
    with torch.no_grad():
        for at, (name, parameter) in enumerate(module.named_parameters()):
            if parameter.dim() == 2 and "attention." not in name:
                values = draw.weights(*parameter.shape, salt + at)
            else:
                values = draw.gaussian(*parameter.shape, salt=salt + at)
            parameter.copy_(factor * values)
    return module.requires_grad_(False)


def augmented(draw, options, matrices, salt=0):
    """A layer of ours that is AugMSA alone, and the attention inside it."""
    attend = Attending(matrices)
    block = BlockSpec(norm=NONE, ffn=NONE, shortcut=Choice("augmented", **options))
    layer = filled(DecoderLayer(block, site(draw, attend), part), draw, 100 + salt)
    values, output = draw.values(salt + 20), draw.output(salt + 40)
    layer.attention.value.weight.copy_(torch.cat([v.T for v in values]))
    layer.attention.output.weight.copy_(output.T)
    return layer, attend


def shortened(layer):
    """L times the norm of each path's linear map, summed, as Theorem 4 has it."""
    chosen = layer.attention_shortcut.chosen
    norms = [path_norm(path, layer) for path in layer.attention_shortcut.paths]
    return CONSTANTS[chosen["activation"]] * sum(norms)


def path_norm(path, layer):
    if hasattr(path, "down"):
        return spectral(path.down.weight) * spectral(path.up.weight)
    if hasattr(path, "theta"):
        return spectral(path.theta.weight)
    linear, width = deepcopy(path), layer.attention.output.weight.shape[0]
    linear.name, linear.shift = "none", None
    return spectral(linear(torch.eye(width, dtype=DOUBLE)[None])[0])


def heads(layer):
    """Values [head, width, head_width] and the output matrix, from the layer's own weights."""
    values = torch.stack(layer.attention.value.weight.split(3)).transpose(1, 2)
    return values, layer.attention.output.weight.T


def msa_norm(layer, attentions):
    return msa_factor(attentions, *heads(layer))


def after(layer, z):
    return layer.run(z[None], Flow())[0]


def weight(layer):
    """A number that no product of the layer's matrices exceeds."""
    return (1 + sum(one.square().sum() for one in layer.parameters())).square()


def size(layer):
    """It as a matrix of that norm, for `holds`."""
    return weight(layer).reshape(1, 1)


# Theorem 4


@tried
@given(draws, paths, st.booleans())
def test_theorem_4_holds_on_our_augmented_layer(draw, options, own):
    layer, attend = augmented(draw, options, None if own else draw.attentions())
    z = draw.features()
    left = d(after(layer, z))
    right = (msa_norm(layer, attend.used) + 1 + shortened(layer)) * d(z)
    assert holds(left, right, 1 + z.abs(), 1 + attend.used.abs(), size(layer))


@pytest.mark.parametrize("form", ["full", "circulant", "bottleneck"])
def test_theorem_4_is_attained_by_identities_that_agree(form):
    draw = Draw(1, 5, 5, 1, "identity", "one-hot", "gaussian")
    options = {"form": form, "r": 1, "activation": "relu", "initial": "normal", "block": 5}
    layer, _ = augmented(draw, options, torch.eye(5, dtype=DOUBLE)[None])
    layer.attention.value.weight.copy_(torch.eye(3, 5))
    layer.attention.output.weight.copy_(torch.eye(5, 3))
    for parameter in layer.attention_shortcut.parameters():
        parameter.zero_()
        square = parameter.reshape(-1, 5)
        square.copy_(torch.eye(len(square), 5))
    z = torch.zeros(5, 5, dtype=DOUBLE)
    z[:, 0] = torch.arange(5)
    right = (msa_norm(layer, torch.eye(5, dtype=DOUBLE)[None]) + 1 + shortened(layer)) * d(z)
    assert torch.isclose(d(after(layer, z)), right, rtol=1e-14, atol=0)


# Theorem 6


@tried
@given(draws, paths, st.booleans(), st.sampled_from([1e-3, 1.0, 10.0]))
def test_theorem_6_holds_on_our_augmented_layer(draw, options, own, level):
    layer, attend = augmented(draw, options, None if own else draw.attentions())
    z, noise = draw.features(), level * draw.gaussian(draw.tokens, draw.width, salt=80)
    clean = after(layer, z)
    before = attend.used
    attend.matrices = None if own else draw.attentions(salt=90)
    left = d(after(layer, z + noise) - clean)
    moved = attend.used
    right = (1 + msa_norm(layer, moved) + shortened(layer)) * torch.linalg.matrix_norm(noise)
    right = right + msa_norm(layer, moved - before) * d(z)
    parts = (1 + z.abs() + noise.abs(), 1 + moved.abs() + before.abs())
    assert holds(left, right, *parts, size(layer))


@pytest.mark.parametrize("count", [1, 3])
def test_theorem_6_strictness_is_refuted_by_active_units_and_silent_heads(count):
    draw = Draw(1, 2, 1, 1, "identity", "gaussian", "zero")
    options = {"form": "full", "activation": "relu", "initial": "normal", "T": count}
    layer, _ = augmented(draw, options, draw.attentions())
    for path in layer.attention_shortcut.paths:
        path.theta.weight.fill_(1.0)
    z = torch.full((2, 1), 5.0, dtype=DOUBLE)
    noise = torch.tensor([[1.0], [-1.0]], dtype=DOUBLE)
    left = d(after(layer, z + noise) - after(layer, z))
    assert left == (1 + shortened(layer)) * torch.linalg.matrix_norm(noise)
    assert shortened(layer) == count and msa_norm(layer, draw.attentions()) == 0


@pytest.mark.parametrize("scale", [0.5, 2.0, 8.0])
def test_a_scaled_identity_keeps_features_apart_and_lets_noise_grow_as_they_do(scale):
    draw = Draw(2, 6, 4, 2, "one column", "gaussian", "gaussian")
    block = BlockSpec(norm=NONE, ffn=NONE, shortcut=Choice("scaled-identity", scale=scale))
    layer = filled(DecoderLayer(block, site(draw, Attending(draw.attentions())), part), draw, 100)
    z, noise = draw.features(), draw.gaussian(6, 4, salt=80)
    rounding = 1e-13
    assert torch.isclose(d(after(layer, z)), scale * d(z), rtol=rounding)
    left = d(after(layer, z + noise) - after(layer, z))
    assert torch.isclose(left, scale * d(noise), rtol=rounding)


# Theorem 7


def siaf(draw, options, salt=0):
    kind = part("ffn", "siaf")
    chosen = kind.given({**options, "n": len(options["activations"])})
    return filled(kind(draw.width, site(draw).at("ffn"), **chosen), draw, 300 + salt, 2.0)


def lipschitz(made):
    """The constant of the whole part on its plain body, with the scales in it."""
    constants = [CONSTANTS[name] for name in made.chosen["activations"]]
    inside, outside = spectral(made.up.weight), spectral(made.down.weight)
    if made.chosen["form"] == "multi-projection":
        matrices = [made.up.weight, *(term.projection.weight for term in made.terms[1:])]
        own = zip(constants, matrices, strict=True)
        return sum(constant * spectral(matrix) for constant, matrix in own) * outside
    if len(constants) == 1:
        return constants[0] * inside * outside
    scales = torch.stack([term.scale.abs() for term in made.terms])
    per_channel = (scales * torch.tensor(constants, dtype=DOUBLE)[:, None]).sum(0)
    return per_channel.max() * inside * outside


def through(made, z):
    return made(z[None], Flow())[0]


@tried
@given(draws, series)
def test_theorem_7_holds_on_our_series_with_its_scales(draw, options):
    made, z = siaf(draw, options), draw.features()
    left, right = d(through(made, z)), lipschitz(made) * d(z)
    assert holds(left, right, 1 + z.abs(), size(made))


@pytest.mark.parametrize("form", ["affine-in", "scale-out", "multi-projection"])
def test_theorem_7_is_attained_by_active_units(form):
    draw = Draw(1, 5, 5, 1, "identity", "gaussian", "gaussian")
    made = siaf(draw, {"form": form, "activations": ["relu", "relu"], "body": "mlp"})
    steepest = torch.eye(INNER, dtype=DOUBLE)[2]
    for name, parameter in made.named_parameters():
        parameter.copy_(1 + steepest if "scale" in name else torch.zeros_like(parameter))
        if parameter.dim() == 2:
            parameter.copy_(torch.eye(*parameter.shape))
    z = torch.arange(5, dtype=DOUBLE)[:, None] * steepest[:5]
    assert torch.isclose(d(through(made, z)), lipschitz(made) * d(z), rtol=1e-14)


def test_theorem_7_does_not_cover_a_series_over_neighbouring_tokens():
    """Equal tokens have no diversity; a window that meets the start tells them apart."""
    draw = Draw(4, 6, 5, 1, "identity", "equal", "gaussian")
    made = siaf(draw, {"form": "convolution", "activations": ["silu"] * 3, "body": "mlp"})
    z = draw.features()
    assert d(z) == 0 and d(through(made, z)) > 0.1


@pytest.mark.parametrize("form", ["affine-in", "scale-out", "multi-projection"])
@pytest.mark.parametrize("position", ["gate", "product"])
def test_theorem_7_does_not_cover_our_series_on_a_gated_body(form, position):
    if form == "multi-projection" and position == "product":
        position = "gate"
    draw = Draw(5, 16, 6, 1, "softmax", "gaussian", "gaussian")
    options = {"form": form, "position": position, "activations": ["silu", "silu"]}
    made, z = siaf(draw, options), draw.features()
    gain = [d(through(made, s * z)) / d(s * z) for s in (1e1, 1e2, 1e3, 1e4)]
    assert all(later > 5 * earlier for earlier, later in pairwise(gain))


# Theorem 9


@pytest.mark.full
@tried
@given(draws, paths, series, st.integers(1, 2), st.integers(1, 2), st.booleans())
def test_theorem_9_holds_on_a_stack_of_our_blocks(draw, options, ours, above, below, own):
    z = start = draw.features()
    factors, whole = [], torch.linalg.matrix_norm(1 + start.abs())
    for level in range(above):
        matrices = None if own else draw.attentions(1000 * level)
        layer, attend = augmented(draw, options, matrices, salt=1000 * level)
        z = after(layer, z)
        factors.append(msa_norm(layer, attend.used) + 1 + shortened(layer))
        whole = whole * (1 + attend.used.norm()) * weight(layer)
    for level in range(below):
        made = siaf(draw, ours, salt=1000 * level)
        z = through(made, z)
        factors.append(torch.as_tensor(lipschitz(made), dtype=DOUBLE))
        whole = whole * weight(made)
    bound = torch.stack(factors).prod() * d(start)
    assert holds(d(z), bound, whole.expand(1, 20))


@pytest.mark.parametrize("attention", ["causal", "sharp causal", "two blocks"])
def test_theorem_9_is_a_ceiling_and_no_floor(attention):
    """Factors above one prove nothing: with the same factors, diversity may end at zero."""
    draw = Draw(3, 8, 4, 2, attention, "gaussian", "gaussian")
    options = {"form": "full", "activation": "relu", "initial": "normal"}
    layer, attend = augmented(draw, options, draw.attentions())
    before = msa_norm(layer, draw.attentions()) + 1 + shortened(layer)
    eye = torch.eye(4, dtype=DOUBLE)
    layer.attention.value.weight.zero_()
    layer.attention_shortcut.paths[0].theta.weight.copy_(-eye)
    z = draw.features().abs()
    assert before > 1 and contraction(attend.matrices).max() > 0
    assert torch.isclose(d(after(layer, z)), d(z))
    made = siaf(draw, {"form": "affine-in", "activations": ["relu", "relu"], "body": "mlp"})
    for term in made.terms:
        term.scale.fill_(-1.0)
        term.shift.zero_()
    made.up.weight.abs_()
    assert lipschitz(made) > 1 and d(through(made, z)) == 0
