"""Size of the residual stream, share of each branch, and spread over channels.

The norm per layer and what attention and feed-forward add to it; the largest entry with its token
and channel; how many entries count as massive activations or as outliers; and how unequal the
channels are. Products and sums are taken in float64, so nothing overflows.
"""

from collections.abc import Iterator

import torch
from jaxtyping import Bool
from torch import Tensor

from layerlab.measures.measure import Measure, MeasureContext, Row
from layerlab.measures.support.centring import NAN, precise
from layerlab.observe.tracing.device_schedule import read_numbers
from layerlab.observe.tracing.records import Layer
from layerlab.records.layer_names import EMBEDDING
from layerlab.shapes import Hidden, Scalar, TokenVector

LARGE = 100.0  # a massive activation is above this ...
TIMES_MEDIAN = 1000.0  # ... and above so many times the median of its layer
OUTLIER = 6.0


def norm(h: Hidden) -> Scalar:
    """Return the mean length of a token.

    mean_i ||x_i||_2

    Source: noci22, wortsman23.
    Unit: that of `h`.

    Example:
        >>> norm(torch.tensor([[3.0, 4.0], [0.0, 1.0]])).item()
        3.0
    """
    return _lengths(precise(h)).mean()


def share(branch: Hidden, stream: Hidden) -> Scalar:
    """Return the mean length of what a branch adds, relative to the token it is added to.

    mean_i ||b_i||_2 / ||x_i||_2

    0 means that the branch does nothing, 1 that it is as large as the stream. Tokens of zeros in
    the stream are left out; without others there is no value.

    Source: noci22, wortsman23.
    Differs: `stream` is what entered the block, for attention and feed-forward alike, so that the
    two shares of one block can be compared.
    Unit: none.

    Example:
        >>> share(torch.ones(3, 2), 2 * torch.ones(3, 2)).item()
        0.5
    """
    added, present = _lengths(precise(branch)), _lengths(precise(stream))
    return _mean(added / present, present != 0)


def alignment(branch: Hidden, stream: Hidden) -> Scalar:
    """Return the mean cosine between what a branch adds and the token it is added to.

    mean_i b_i . x_i / (||b_i||_2 ||x_i||_2)

    1 means that the branch only makes the token longer, -1 that it takes the token back, 0 that it
    adds something new. Tokens where either is zero are left out; without others there is no value.

    Source: Own.
    Unit: none.

    Example:
        >>> alignment(torch.tensor([[0.0, -2.0]]), torch.tensor([[0.0, 5.0]])).item()
        -1.0
    """
    added, present = _directions(precise(branch)), _directions(precise(stream))
    cosines = (added * present).sum(1)
    return _mean(cosines, (_lengths(added) != 0) & (_lengths(present) != 0)).clamp(-1, 1)


def kurtosis(h: Hidden) -> Scalar:
    """Return how unequal the channels are in size.

    mean_j s_j^4 / (mean_j s_j^2)^2   with   s_j^2 = mean_i x_ij^2

    1 means that all channels are equally large, the width that one channel holds everything. A
    matrix of zeros has no value.

    Source: he24, section 2.
    Unit: none.

    Example:
        >>> kurtosis(torch.tensor([[2.0, 0.0], [-2.0, 0.0]])).item()
        2.0
    """
    wide = precise(h)
    power = (wide / wide.abs().amax()).square().mean(0)
    return power.square().mean() / power.mean().square()


def median(h: Hidden) -> Scalar:
    """Return the middle size of an entry, the lower one of two.

    median_ij |x_ij|

    Source: sun24, section 2.
    Unit: that of `h`.

    Example:
        >>> median(torch.tensor([[1.0, -5.0, 2.0, 9.0]])).item()
        2.0
    """
    return precise(h).abs().median()


def massive(h: Hidden) -> Scalar:
    """Return the number of massive activations.

    |{(i, j): |x_ij| > 100 and |x_ij| > 1000 median |x|}|

    Source: sun24, section 2.
    Unit: entries.

    Example:
        >>> massive(torch.tensor([[0.1, 0.1, 0.1, 101.0]])).item()
        1.0
    """
    size = precise(h).abs()
    threshold = (TIMES_MEDIAN * size.median()).clamp_min(LARGE)
    return _count(size > threshold, size)


def outliers(h: Hidden) -> Scalar:
    """Return the number of entries that 8-bit matrix products must treat apart.

    |{(i, j): |x_ij| >= 6}|

    Source: dettmers22, section 3.2.
    Differs: every entry counts, also in a channel that has only one.
    Unit: entries.

    Example:
        >>> outliers(torch.tensor([[6.0, -7.0, 5.9]])).item()
        2.0
    """
    size = precise(h).abs()
    return _count(size >= OUTLIER, size)


def _count(chosen: Bool[Tensor, "token width"], size: Hidden) -> Scalar:
    return torch.where(size.isnan().any(), NAN, chosen.sum().double())


def _mean(values: TokenVector, kept: Bool[Tensor, " token"]) -> Scalar:
    """Return the mean of the values that are kept, NaN where none is."""
    return torch.where(kept, values, 0.0).sum() / kept.sum()


def _lengths(wide: Hidden) -> TokenVector:
    """Return the token lengths of float64 features, also of those whose squares leave the range."""
    largest = wide.abs().amax(1)
    scale = torch.where(largest == 0, 1.0, largest)
    return torch.linalg.vector_norm(wide / scale[:, None], dim=1) * scale


def _directions(wide: Hidden) -> Hidden:
    lengths = _lengths(wide)
    return wide / torch.where(lengths == 0, 1.0, lengths)[:, None]


def _branch(layer: Layer, name: str) -> dict[str, Scalar]:
    branch = layer.sublayers[name].branch if name in layer.sublayers else None
    if layer.entered is None or branch is None:
        return dict.fromkeys((f"{name}_share", f"{name}_cosine"), layer.stream.new_tensor(NAN))
    return {
        f"{name}_share": share(branch, layer.entered),
        f"{name}_cosine": alignment(branch, layer.entered),
    }


def _size(h: Hidden) -> dict[str, Scalar]:
    size = h.detach().abs()
    largest = size.argmax()
    return {
        "largest": size.amax(),
        "largest_token": largest // h.shape[1],
        "largest_channel": largest % h.shape[1],
        "median": median(h),
        "massive": massive(h),
        "outliers": outliers(h),
        "kurtosis": kurtosis(h),
    }


def _growth(layer: Layer, run: MeasureContext, length: float) -> float:
    if layer.layer == EMBEDDING:
        run.memory[layer.sequence] = length
    start = run.memory.get(layer.sequence, NAN)
    return length / start if start else NAN


def read(layer: Layer, run: MeasureContext) -> Iterator[Row]:
    """Read one row for the stream after the block.

    Source: Own.
    """
    found = read_numbers(
        {"norm": norm(layer.stream)}
        | _branch(layer, "attention")
        | _branch(layer, "ffn")
        | _size(layer.stream)
    )
    yield {
        "sequence": layer.sequence,
        "layer": layer.layer,
        "norm": found["norm"],
        "growth": _growth(layer, run, found["norm"]),
        **found,
        **{name: int(found[name]) for name in ("largest_token", "largest_channel")},
    }


MEASURES = (
    Measure(
        name="stream",
        title="Size of the residual stream",
        unit="that of the features (norm, largest, median); entries (counts); none (the rest)",
        source="noci22; wortsman23; sun24, section 2; he24, section 2; dettmers22, section 3.2",
        about=(
            "How long the tokens of the residual stream are after each layer, how much attention "
            "and feed-forward add to them, and how unevenly the entries are spread. "
            "A norm that grows without end drowns later layers, and a few entries far above the "
            "rest are what low precision and quantization stumble over."
        ),
        equation=(
            "norm = mean_i ||x_i||;  share = mean_i ||branch_i|| / ||x_i entering the block||;  "
            "massive: |x| > 100 and |x| > 1000 median |x|;  "
            "kurtosis = mean_j s_j^4 / (mean_j s_j^2)^2, s_j^2 = mean_i x_ij^2"
        ),
        per=("sequence", "layer"),
        columns={
            "norm": "mean length of a token (unit: features)",
            "growth": "norm over the norm of the embedding",
            "attention_share": "mean length of attention's branch over the stream into the block",
            "attention_cosine": "mean cosine of attention's branch with the stream into the block",
            "ffn_share": "mean length of feed-forward's branch over the stream into the block",
            "ffn_cosine": "mean cosine of feed-forward's branch with the stream into the block",
            "largest": "largest |x| (unit: features)",
            "largest_token": "position of the token that holds it, the first is 0",
            "largest_channel": "channel that holds it, the first is 0",
            "median": "median |x|, the lower one of two (unit: features)",
            "massive": "entries with |x| > 100 and |x| > 1000 times the median",
            "outliers": "entries with |x| >= 6",
            "kurtosis": "inequality of the channels: 1 all equal, the width when one holds all",
        },
        plot=("norm", "attention_share", "ffn_share", "largest", "kurtosis"),
        roles={"largest_token": "index", "largest_channel": "index"},
        better=None,
        needs=frozenset({"stream"}),
        read=read,
    ),
)
