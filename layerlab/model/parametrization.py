"""Maximal update parametrization: how starts and rates follow the width, for any variant.

Which rule a parameter falls under is read off two models of other widths: how fast what it sums
over grows, and how fast what it writes. Nothing is known of variants or of names.
"""

import copy
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from layerlab.blocks.init import Axes, Constant, axes_of

# Times the width. From the second on no size is held at its least, as a bottleneck is at 1.
WIDER = (1, 16, 32)


@dataclass(frozen=True, kw_only=True)
class Base:
    """The widths at which muP changes nothing.

    Attributes:
        width: of the model.
        head_width: of its heads.
    """

    width: int
    head_width: int


@dataclass(frozen=True, kw_only=True)
class Growth:
    """The powers of the width with which a parameter grows.

    Attributes:
        read: of the number of features that it sums over.
        written: of the number that it writes.
        start: of the constant that it starts at; 0 where that is no power of the width.
    """

    read: float
    written: float
    start: float


@dataclass(frozen=True, kw_only=True)
class Scale:
    """The factors on what a parameter has at the base width.

    Attributes:
        std: of the standard deviation that it is drawn with, and of Muon's rate.
        start: of the constant that it starts at.
        rate: of AdamW's rate.
        epsilon: of AdamW's epsilon.
    """

    std: float = 1.0
    start: float = 1.0
    rate: float = 1.0
    epsilon: float = 1.0


PLAIN = Scale()


def scale(growth: Growth, ratio: float) -> Scale:
    """Return the factors at a width that is `ratio` times the base.

    With p the features that a parameter reads and q those that it writes, a matrix W and an update
    U of it are to have the spectral norm sqrt(q / p), so that features of size 1 give features, and
    changes, of size 1. A Gaussian W has std (sqrt(p) + sqrt(q)), an update of AdamW about
    rate sqrt(p q), and one of Muon, as it is scaled here, rate sqrt(max(p, q)). Hence

        std, Muon's rate   sqrt(q / p) / sqrt(max(p, q))
        AdamW's rate       1 / p
        AdamW's epsilon    1 / q, as the gradient

    for matrices between features both 1/sqrt(p) and 1/p; for what writes alone (embeddings, gains,
    biases) constants; for what reads alone (head, router, gates of a head) both 1/p.

    Source: yang22, tables 3 and 8; yang23, sections 3 and 4.
    """
    read, written = growth.read, growth.written
    return Scale(
        std=ratio ** ((written - read - max(read, written)) / 2),
        start=ratio**-growth.start,
        rate=ratio**-read,
        epsilon=ratio**-written,
    )


def width_ratio(config: Any) -> float:
    """Return how many times the base width a model is wide; 1 without muP."""
    base = config.mup_base_width
    return 1.0 if base is None else float(config.hidden_size / base)


def score_factor(config: Any) -> float:
    """Return the factor on scores beside 1 / sqrt(head_width): they then fall with 1 / head_width.

    Source: yang22, definition 4.1.
    """
    base = config.mup_base_head_width
    return 1.0 if base is None else float((base / config.head_dim) ** 0.5)


def scales(config: Any, make: Callable[[Any], nn.Module]) -> dict[str, Scale]:
    """Return the factors of every parameter by its name; none where all of them are 1.

    Args:
        config: of a model of ours.
        make: builds the model of a configuration.
    """
    ratio = width_ratio(config)
    if ratio == 1:
        return {}
    return {name: scale(one, ratio) for name, one in growths(config, make).items()}


def growths(config: Any, make: Callable[[Any], nn.Module]) -> dict[str, Growth]:
    """Return how each parameter grows with the width: by three models without memory.

    The feed-forward grows as the width does. Where heads are as wide as at the base, there are more
    of them; else they are wider.
    """
    with torch.device("meta"):
        models = [make(_widen(config, times)) for times in WIDER]
    given, small, large = (dict(_parameters(one)) for one in models)
    return {name: _growth(one, small[name], large[name]) for name, one in given.items()}


def _widen(config: Any, times: int) -> Any:
    wider = copy.deepcopy(config)
    heads = ["num_attention_heads", "num_key_value_heads"]
    grown = heads if config.head_dim == config.mup_base_head_width else ["head_dim"]
    for name in ("hidden_size", "intermediate_size", *grown):
        setattr(wider, name, times * getattr(config, name))
    wider.mup_base_width = wider.mup_base_head_width = None
    return wider


@dataclass(frozen=True)
class _Held:
    shape: torch.Size
    axes: Axes
    start: Any


def _parameters(model: nn.Module) -> Iterator[tuple[str, _Held]]:
    for prefix, module in model.named_modules():
        starts: Mapping[str, Any] = getattr(module, "starts", {})
        for name, one in module.named_parameters(recurse=False):
            held = _Held(one.shape, axes_of(module, name), starts.get(name))
            yield f"{prefix}.{name}", held


def _growth(given: _Held, small: _Held, large: _Held) -> Growth:
    def features(of: _Held, axes: tuple[int, ...]) -> int:
        return math.prod(of.shape[axis] for axis in axes)

    def constant(of: _Held) -> float:
        return of.start.value if isinstance(of.start, Constant) else 0.0

    near, far = WIDER[1] / WIDER[0], WIDER[2] / WIDER[1]
    power = _power(constant(small), constant(large), far)
    return Growth(
        read=_power(features(small, small.axes.read), features(large, large.axes.read), far),
        written=_power(
            features(small, small.axes.written), features(large, large.axes.written), far
        ),
        start=power if power == _power(constant(given), constant(small), near) else 0.0,
    )


def _power(small: float, large: float, times: float) -> float:
    """Return the power with which a number grows, to a half: sizes are rounded to whole numbers."""
    return round(2 * math.log(large / small, times)) / 2 if small * large > 0 else 0.0
