"""Where a model's rounding error comes from: each component, and each layer, rounded alone."""

from collections.abc import Iterator, Sequence
from math import nan

from layerlab.domain import Domain
from layerlab.measures.measure import Measure, Row, Run, Whole
from layerlab.measures.rerun import DOMAINS, FORMATS, formats, forward
from layerlab.numerics.attribution import CLOSED, Attribution, Error, attribution
from layerlab.numerics.place import Place

TOKENS = 128
# Kinds of components that a model has, roughly, and what is run beside them: for the bar only.
COMPONENTS = 18


def read(whole: Whole, run: Run) -> list[Row]:
    """Rows by component, by layer, by pairs where the closure is off, and of all places at once.

    Source: Own.
    """
    tokens, names = whole.sequences[0][: run.options["tokens"]], formats(run)
    model, stack = whole.subject.model, whole.subject.stack
    whole.begin(len(names) * (COMPONENTS + len(stack.blocks) + 4))
    rows = list[Row]()
    for name in names:

        def step(what: str, name: str = name) -> None:
            whole.step(f"{name}: {what}")

        found = attribution(
            model,
            lambda: forward(model, tokens),
            name,
            run.options["mode"],
            last=stack.blocks[-1],
            cross=run.options["cross"],
            step=step,
        )
        rows += [{"format": name, **row} for row in _rows(found)]
        run.notes[name] = f"{name}: {_closing(found)}"
    return rows


def _closing(found: Attribution) -> str:
    """How far the table adds up, in words."""
    said = (
        f"components add up to {found.closure:.2f} of the squared error of all at once, layers to "
        f"{found.layer_closure:.2f}"
    )
    if not found.pairs:
        return f"{said}."
    return (
        f"{said}: off by more than {CLOSED:g}, so roundings interact. In rows by pair, the excess "
        "is the joint squared error less the sum of both alone, as a share of the whole."
    )


def _rows(found: Attribution) -> Iterator[Row]:
    whole = found.whole
    yield {"by": "all", "part": "every place", **_numbers(whole, whole, len(_every(found)))}
    for by, parts in (("component", found.components), ("layer", found.layers)):
        for part in parts:
            yield {"by": by, "part": part.name, **_numbers(part.error, whole, len(part.places))}
    for pair in found.pairs:
        joint = _numbers(pair.joint, whole, nan)
        excess = pair.excess.logits / whole.logits
        yield {"by": "pair", "part": f"{pair.first} with {pair.second}", **joint, "excess": excess}
    for part in found.cross:
        name = f"{part.name}, layer {part.layer}"
        yield {"by": "cross", "part": name, **_numbers(part.error, whole, len(part.places))}


def _every(found: Attribution) -> Sequence[Place]:
    return [place for part in found.components for place in part.places]


def _numbers(error: Error, whole: Error, places: float) -> Row:
    return {
        "share": error.logits / whole.logits if whole.logits > 0 else nan,
        "error": error.logits**0.5,
        "stream_share": error.stream / whole.stream if whole.stream > 0 else nan,
        "places": places,
        "excess": nan,
    }


MEASURES = (
    Measure(
        name="attribution",
        title="Where the rounding error comes from",
        unit="share of the squared error",
        source="Own",
        about=(
            "One component is rounded at a time, then one layer at a time, with everything else in "
            "exact arithmetic: its share of the squared error of the logits is what keeping it in "
            "higher precision would save. The shares need not add up to 1, and the closure says "
            "how nearly they do."
        ),
        equation="share_c = ||f_c(x) - f(x)||^2 / ||f_all(x) - f(x)||^2,   closure = sum_c share_c",
        per=("format", "by", "part"),
        columns={
            "share": "squared error of the logits over that of all places together",
            "error": "||z' - z|| / ||z|| of the logits over all tokens",
            "stream_share": "the same share in the last stream, in front of the final norm",
            "places": "modules and operations that round",
            "excess": "of a pair: its share less both alone",
        },
        plot=("share",),
        better=None,
        needs=frozenset({"model"}),
        read=read,
        options={"formats": FORMATS, "mode": "as-run", "tokens": TOKENS, "cross": False},
        domains={
            **DOMAINS,
            "mode": Domain(kind=str, choices=("as-run", "flat")),
            "tokens": Domain(kind=int, least=2),
        },
        default=False,
    ),
)
