"""Distance of the tokens of one sequence from being all the same: three views of collapse.

`diversity` is the distance itself, in the unit of the features; `relative_residual` divides it by
the size of the features, so that layers of different scale can be compared; `cosine` looks at
directions alone. Everything is computed in float64 from differences to the first token, so a small
spread around a large mean is measured and not lost, and no feature overflows when squared.

The cosine of centred tokens is left out on purpose: centred tokens sum to zero, so with equal
lengths their mean pairwise cosine is -1/(n-1) whatever the data are.
"""

from collections.abc import Iterator

import torch

from layerlab.errors import UserError
from layerlab.measures.measure import Measure, MeasureContext, Row
from layerlab.measures.support.centring import NAN, centre, precise
from layerlab.observe.tracing.device_schedule import read_lists
from layerlab.observe.tracing.records import Layer
from layerlab.shapes import Hidden, Scalar


def diversity(h: Hidden) -> Scalar:
    """Return the distance of the token features from the nearest matrix with equal rows.

    d_M(X) = min_x ||X - 1 x^T||_F = ||X - 1 m^T||_F   with   m = mean over tokens

    0 means every token carries the same features: collapse is complete.

    Source: pangu23, section 3.
    Unit: that of `h`; not divided by the number of tokens.

    Raises:
        UserError: fewer than two tokens.

    Example:
        >>> diversity(torch.ones(3, 2)).item()
        0.0
    """
    _check_tokens(h)
    return _frobenius(centre(h))


def relative_residual(h: Hidden) -> Scalar:
    """Return the share of the features that differs between tokens.

    rho(X) = ||JX||_F / ||X||_F

    0 means that all tokens are equal; 1 that their mean is zero. A matrix of zeros has no value.

    Source: dong21, section 2 (there in the composite norm), pangu23.
    Unit: none.

    Raises:
        UserError: fewer than two tokens.

    Example:
        >>> round(relative_residual(torch.eye(4)).item() ** 2, 12)
        0.75
    """
    _check_tokens(h)
    return _frobenius(centre(h)) / _frobenius(precise(h))


def composite_residual(h: Hidden) -> Scalar:
    """Return the relative residual in the composite norm of the rank-collapse theorem.

    ||JX||_{1,inf} / ||X||_{1,inf}   with   ||M||_{1,inf} = sqrt(||M||_1 ||M||_inf)

    0 means that all tokens are equal; it is at most 2 (n-1)/n.

    Source: dong21, section 2.
    Differs: taken about the mean, as the authors' program does, and not about the minimizer, which
    has no closed form in this norm; the mean is at most 2 (n-1)/n times above it.
    Unit: none.

    Raises:
        UserError: fewer than two tokens.
    """
    _check_tokens(h)
    return _composite(centre(h)) / _composite(precise(h))


def cosine(h: Hidden) -> Scalar:
    """Return the mean cosine between two different tokens.

    cos(X) = (||sum_i x_i / |x_i| ||^2 - n) / (n (n-1))

    1 means that all tokens point the same way, 0 what random directions give; it is never below
    -1/(n-1). A token of zeros has no direction and is left out; with fewer than two others there
    is no value.

    Source: ethayarajh19, section 3.
    Unit: none.

    Raises:
        UserError: fewer than two tokens.

    Example:
        >>> cosine(torch.eye(4)).item()
        0.0
    """
    _check_tokens(h)
    wide = precise(h)
    largest = wide.abs().amax(1, keepdim=True)
    kept = largest != 0
    scaled = wide / torch.where(kept, largest, 1.0)
    lengths = torch.linalg.vector_norm(scaled, dim=1, keepdim=True)
    directions = scaled / torch.where(kept, lengths, 1.0)
    tokens = kept.sum().double()
    mean = (directions.sum(0).square().sum() - tokens) / (tokens * (tokens - 1))
    bounded = mean.clamp_max(1.0).maximum(-1 / (tokens - 1))
    return torch.where(tokens < 2, NAN, bounded)


def _frobenius(m: Hidden) -> Scalar:
    largest = m.abs().amax()
    return torch.linalg.vector_norm(m / torch.where(largest == 0, 1.0, largest)) * largest


def _composite(m: Hidden) -> Scalar:
    size = m.abs()
    return size.sum(0).amax().sqrt() * size.sum(1).amax().sqrt()


def _check_tokens(h: Hidden) -> None:
    if len(h) < 2:
        raise UserError(
            f"given {len(h)} token; tokens can only be compared when there are two: "
            "give a text of at least two tokens"
        )


_QUANTITIES = {
    "diversity": diversity,
    "relative_residual": relative_residual,
    "cosine": cosine,
    "composite_residual": composite_residual,
}


def _reading(h: Hidden) -> list[Scalar]:
    if len(h) < 2:
        return [h.new_tensor(NAN)] * len(_QUANTITIES)
    return [quantity(h) for quantity in _QUANTITIES.values()]


def _places(layer: Layer) -> Iterator[tuple[str, Hidden]]:
    yield "stream", layer.stream
    for part in ("attention", "ffn"):
        branch = layer.sublayers[part].branch if part in layer.sublayers else None
        if branch is not None:
            yield part, branch


def read(layer: Layer, run: MeasureContext) -> Iterator[Row]:
    """Read one row for the stream after the block, and one for each branch that joined it.

    Source: Own.
    """
    places = dict(_places(layer))
    read = read_lists({part: torch.stack(_reading(h)) for part, h in places.items()})
    for part, values in read.items():
        yield {
            "sequence": layer.sequence,
            "layer": layer.layer,
            "place": part,
            **dict(zip(_QUANTITIES, values, strict=True)),
        }


MEASURES = (
    Measure(
        name="diversity",
        title="Diversity of the tokens",
        unit="that of the features (diversity); none (the ratios and the cosine)",
        source="pangu23, section 3; dong21, section 2; ethayarajh19, section 3",
        about=(
            "How much the tokens of one sequence still differ from each other after each layer, in "
            "the residual stream and in what attention and feed-forward add to it. "
            "A relative residual near 0 or a cosine near 1 means that the tokens have become "
            "alike, so later layers can hardly tell them apart."
        ),
        equation=(
            "d_M(X) = ||JX||_F,  rho = ||JX||_F / ||X||_F,  "
            "cos = (||sum_i x_i/|x_i| ||^2 - n) / (n (n-1)),  JX = X - 1 mean^T"
        ),
        per=("sequence", "layer", "place"),
        columns={
            "diversity": "distance of the features from equal tokens, ||JX||_F (unit: features)",
            "relative_residual": "the diversity over ||X||_F: 0 equal tokens, 1 zero mean",
            "cosine": "mean cosine between two different tokens: 1 all point the same way",
            "composite_residual": "the relative residual in the norm sqrt(||.||_1 ||.||_inf)",
        },
        plot=("relative_residual", "cosine", "diversity"),
        better="higher",
        needs=frozenset({"stream"}),
        read=read,
    ),
)
