"""The features of the most frequent tokens in three dimensions, layer by layer.

Every token that is read joins the second moments of its layer; of the most frequent tokens some
occurrences are kept, to be placed along the leading directions when all is read. Which tokens and
which occurrences is known before the first layer: it follows from the text alone.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from layerlab.errors import NotApplicable
from layerlab.known_options import measure_options
from layerlab.loading.token_text import alone
from layerlab.measures.measure import Measure, MeasureContext, Row
from layerlab.measures.quantities.dimension import ENOUGH, reliable
from layerlab.measures.support.centring import NAN, Pool
from layerlab.measures.support.pca import COMPONENTS, apartness, components, coordinates
from layerlab.observe.tracing.records import Layer

WORDS, POINTS, SKIP = 8, 100, 1
DIGITS = 5
USE = """\
`layerlab inspect MODEL MODEL --features` adds, to the measures that are read, a picture of each
layer: the most frequent tokens of the text as points in the space of the three directions of most
variance, in one colour for each token, models side by side. `--text FILE --samples 16` reads more
text; the source read the test set of the Penn Treebank, which is read from your own copy in the
same way. `--figures svg` writes the pictures as files, each with two projections.

The directions are those of *all* tokens that were read, not only of those that are drawn. The first
token of each sequence is left out of both: it draws the attention of the others and lies far from
them, so that it would take the first direction for itself. The source leaves "beginning tokens" out
and does not say how many; `--measures 'features(skip=0)'` keeps them, `skip=4` leaves out four.
Other options: `words` (how many tokens are drawn; the source has 5) and `points` (occurrences of
each, evenly spread over the text).

*Cost.* No forward of its own: it shares the one of the other measures. Kept are width x width
numbers in float64 for each layer, or fewer of a short text, and the features of the occurrences
that are drawn; then the three leading eigenvectors, layer by layer.

*Reading it.* The scale of each picture is that of its layer: compare shapes, and the share of the
variance that three directions hold. A large share says that the features lie near a plane or a
line. `apart` says in a number what the colours show."""


@dataclass(kw_only=True)
class ChosenOccurrences:
    """The choice of occurrences that are kept.

    Attributes:
        words: id and number of occurrences, the most frequent first.
        places: of each word, (sequence, position) of the occurrences that are drawn.
    """

    words: list[tuple[int, int]]
    places: list[list[tuple[int, int]]]

    def of(self, sequence: int) -> list[tuple[int, int, int]]:
        """Return (word, occurrence, position) for every chosen token of a sequence."""
        return [
            (word, number, position)
            for word, places in enumerate(self.places)
            for number, (where, position) in enumerate(places)
            if where == sequence
        ]


@dataclass(kw_only=True)
class Cloud:
    """The tokens of one layer: all of them pooled, and the occurrences to draw."""

    pool: Pool = field(default_factory=Pool)
    marks: list[tuple[int, int]] = field(default_factory=list)
    features: list[Tensor] = field(default_factory=list)

    def add(self, layer: Layer, chosen: ChosenOccurrences, skip: int) -> None:
        """Take the tokens of one more sequence."""
        self.pool.add(layer.stream[skip:])
        drawn = chosen.of(layer.sequence)
        positions = [position for _, _, position in drawn]
        self.marks += [(word, number) for word, number, _ in drawn]
        self.features.append(layer.stream[positions].detach().cpu())


def choice(sequences: Sequence[Tensor], words: int, points: int, skip: int) -> ChosenOccurrences:
    """Return the most frequent tokens and a limited number of occurrences of each, evenly spread.

    Source: pangu23, section 5.2.

    Args:
        skip: tokens at the beginning of each sequence that count for nothing.

    Example:
        >>> found = choice([torch.tensor([9, 7, 5, 7])], words=1, points=10, skip=1)
        >>> found.words, found.places
        ([(7, 2)], [[(0, 1), (0, 3)]])
    """
    read = [tokens[skip:].tolist() for tokens in sequences]
    counts = Counter(token for tokens in read for token in tokens)
    most = sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:words]
    places: dict[int, list[tuple[int, int]]] = {token: [] for token, _ in most}
    for sequence, tokens in enumerate(read):
        for position, token in enumerate(tokens, skip):
            if token in places:
                places[token].append((sequence, position))
    return ChosenOccurrences(
        words=most, places=[_spread(places[token], points) for token, _ in most]
    )


def _spread(places: list[tuple[int, int]], most: int) -> list[tuple[int, int]]:
    count = min(most, len(places))
    return [places[index * len(places) // count] for index in range(count)]


def read(layer: Layer, run: MeasureContext) -> Iterator[Row]:
    """Add the tokens to the cloud of their layer; there are no rows yet.

    Source: Own.
    """
    options = run.options
    if "chosen" not in run.memory:
        given = (options["words"], options["points"], options["skip"])
        run.memory["chosen"] = choice(run.sequences, *given)
    if len(layer.tokens) > options["skip"]:
        clouds = run.memory.setdefault("clouds", {})
        cloud = clouds.setdefault(layer.layer, Cloud())
        cloud.add(layer, run.memory["chosen"], options["skip"])
    return iter(())


def close(run: MeasureContext) -> Iterator[Row]:
    """Yield one row for each layer, with its points for the picture; each cloud is then released.

    Source: Own.

    Raises:
        NotApplicable: nothing is left of any text.
    """
    clouds, skip = run.memory.pop("clouds", {}), run.options["skip"]
    if not clouds:
        raise NotApplicable(f"no text is longer than the {_first(skip)} left out")
    chosen: ChosenOccurrences = run.memory["chosen"]
    run.picture.update(_head(chosen, run))
    if skip:
        run.notes["skip"] = f"{_first(skip)} of each sequence left out, as beginnings lie far off"
    for layer in sorted(clouds):
        cloud = clouds.pop(layer)
        found = components(cloud.pool)
        width = len(found.mean)
        if not reliable(found.tokens, width):
            run.notes["tokens"] = (
                f"{found.tokens} tokens for a width of {width}: with fewer than {ENOUGH * width} "
                "the shares of the variance read too high"
            )
        points = coordinates(torch.cat(cloud.features), found)
        owners = torch.tensor([word for word, _ in cloud.marks])
        shares = found.shares.tolist()
        run.picture["layers"].append(layer)
        run.picture["shares"].append([_short(share) for share in shares])
        run.picture["points"].append(_table(cloud, points, chosen))
        yield {
            "layer": layer,
            "three": sum(shares),
            **dict(zip(("first", "second", "third"), shares, strict=True)),
            "variance": found.total,
            "apart": float(apartness(points, owners)) if len(points) else NAN,
            "tokens": found.tokens,
            "width": width,
        }


def _first(skip: int) -> str:
    return "first token" if skip == 1 else f"first {skip} tokens"


def _table(
    cloud: Cloud, points: Tensor, chosen: ChosenOccurrences
) -> list[list[list[float | None]]]:
    """Return the table by word and occurrence.

    None where this layer of its sequence was not finite.
    """
    table: list[list[list[float | None]]] = [
        [[None] * COMPONENTS for _ in places] for places in chosen.places
    ]
    for (word, number), point in zip(cloud.marks, points.tolist(), strict=True):
        table[word][number] = [_short(value) for value in point]
    return table


def _head(chosen: ChosenOccurrences, run: MeasureContext) -> dict[str, Any]:
    ids = [token for token, _ in chosen.words]
    named = alone(run.subject, torch.tensor(ids, dtype=torch.int64))
    return {
        "kind": "features",
        "skip": run.options["skip"],
        "words": [
            {"id": token, "token": word, "count": count}
            for (token, count), word in zip(chosen.words, named, strict=True)
        ],
        "places": [[list(position) for position in places] for places in chosen.places],
        "layers": [],
        "shares": [],
        "points": [],
    }


def _short(value: float) -> float | None:
    return float(f"{value:.{DIGITS}g}") if abs(value) < float("inf") else None


MEASURES = (
    Measure(
        name="features",
        title="Features of frequent tokens",
        unit="the square of that of the features (variance); tokens, features; none (the rest)",
        source="pangu23, section 5.2",
        about=(
            "Where the most frequent tokens lie in the three directions along which the tokens of "
            "this layer differ most. Clusters of one colour mean that a token is told from others, "
            "and three directions with nearly all of the variance that the features lie near a "
            "plane or a line."
        ),
        equation=(
            "S v_i = lambda_i v_i,   S = sum_t (x_t - m)(x_t - m)^T / (n - 1),   "
            "share_i = lambda_i / trace(S)\n"
            "c_ti = v_i . (x_t - m),   apart = sum_w n_w ||m_w - mean c||^2 / "
            "sum_t ||c_t - mean c||^2"
        ),
        per=("layer",),
        columns={
            "three": "share of the variance along the three directions of most variance",
            "first": "share along the first of them",
            "second": "share along the second",
            "third": "share along the third",
            "variance": "along all directions together (unit: features squared)",
            "apart": "share of the spread of the drawn points that lies between tokens",
            "tokens": "tokens of all sequences, without those left out",
            "width": "features of the residual stream",
        },
        plot=("three", "first", "second", "third", "apart"),
        roles={"tokens": "size", "width": "size"},
        better=None,
        needs=frozenset({"stream"}),
        read=read,
        close=close,
        **measure_options("features"),
        default=False,
        use=USE,
    ),
)
