"""Inputs and weights that try to break a bound, from a seed and the names of adversaries."""

import torch
from hypothesis import assume
from hypothesis import strategies as st

from layerlab.numerics.theory import condition_numbers
from layerlab.numerics.theory.modules import TheoryAttention, TheoryBlock, TheoryFFN, TheoryNorm

DOUBLE = torch.float64
INPUTS = ("gaussian", "zeros", "huge", "tiny", "nearly equal", "offset", "outlier", "scales")


def gaussian(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=DOUBLE)


def features(kind, tokens, width, seed):
    """Rows of 24 digits or fewer."""
    noise = gaussian(tokens, width, seed=seed)
    power = torch.arange(tokens * width).view(tokens, width) % 9 - 4.0
    found = {
        "gaussian": noise,
        "zeros": torch.where(noise > 0.3, noise, 0.0),
        "huge": 1e6 * noise,
        "tiny": 1e-6 * noise,
        "nearly equal": 1 + 1e-3 * noise,
        "offset": 1e3 + noise,
        "outlier": torch.where(noise == noise.max(), 1e4, noise),
        "scales": noise * 10.0**power,
    }[kind]
    return found.float().double()


def row(kind, width, seed):
    """One token, neither 0 nor with an entry at its mean: the source divides by both."""
    x = features(kind, 1, width, seed)[0]
    assume((x - x.mean()).abs().min() > 1e-12 * x.abs().max())
    return x


def weights(*shape, seed, size=None):
    found = gaussian(*shape, seed=seed) * (shape[-1] ** -0.5 if size is None else size)
    return found.float().double()


def norm(kind, width, seed, plain=False):
    if plain:
        return TheoryNorm(kind=kind)
    return TheoryNorm(
        kind=kind,
        gain=weights(width, seed=seed, size=1.0),
        shift=weights(width, seed=seed + 1, size=1.0) if kind == "layer" else None,
        eps=1e-5,
    )


def feedforward(activation, width, inner, seed, biases=True, gated=False):
    def bias(size, salt):
        return weights(size, seed=seed + salt, size=0.3) if biases else None

    return TheoryFFN(
        inward=weights(inner, width, seed=seed + 1),
        outward=weights(width, inner, seed=seed + 2),
        gate=weights(inner, width, seed=seed + 3) if gated else None,
        activation=activation,
        inward_bias=bias(inner, 4),
        outward_bias=bias(width, 5),
        gate_bias=bias(inner, 6) if gated else None,
    )


def attention(
    width, tokens, seed, heads=1, shared=1, head_width=None, biases=False, rotary=False, size=None,
    projected=True, **changes,
):  # fmt: skip
    head_width = head_width or width
    groups = heads // shared

    def bias(rows, salt):
        return weights(rows, head_width, seed=seed + salt, size=0.3) if biases else None

    angle = torch.arange(tokens)[:, None] * 100.0 ** -torch.linspace(0, 1, head_width // 2)
    angle = torch.cat([angle, angle], -1).double()
    return TheoryAttention(**{
        "query": weights(heads, head_width, width, seed=seed + 1, size=size),
        "key": weights(groups, head_width, width, seed=seed + 2, size=size),
        "value": weights(groups, head_width, width, seed=seed + 3),
        "scale": float(torch.tensor(head_width**-0.5)),
        "output": weights(heads, width, head_width, seed=seed + 4) if projected else None,
        "query_bias": bias(heads, 5),
        "key_bias": bias(groups, 6),
        "value_bias": bias(groups, 7),
        "output_bias": weights(width, seed=seed + 8, size=0.3) if biases and projected else None,
        "cosine": angle.cos() if rotary else None,
        "sine": angle.sin() if rotary else None,
        **changes,
    })  # fmt: skip


def block(width, tokens, inner, seed, kind="rms", plain=True, size=0.2, activation="relu"):
    return TheoryBlock(
        attention_norm=norm(kind, width, seed + 10, plain),
        attention=attention(width, tokens, seed + 20, projected=False, size=size),
        feedforward_norm=norm(kind, width, seed + 30, plain),
        feedforward=feedforward(activation, width, inner, seed + 40, biases=not plain),
    )


inputs = st.sampled_from(INPUTS)
seeds = st.integers(0, 10**6)
digits = st.sampled_from([8, 11, 16, 24])


def jacobian(function, x):
    return torch.autograd.functional.jacobian(function, x)


def componentwise(function, x):
    """k_{c,c} of a function of one vector, by definition."""
    return condition_numbers.componentwise(jacobian(function, x), x, function(x)).item()
