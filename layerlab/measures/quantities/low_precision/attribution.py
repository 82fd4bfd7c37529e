"""Sources of a model's rounding error: each component, and each layer, rounded alone."""

from collections.abc import Iterator
from math import nan

from layerlab.known_options import measure_options
from layerlab.measures.measure import Measure, MeasureContext, ModelContext, Row
from layerlab.measures.questions import check_formats
from layerlab.measures.support.emulated_reruns import formats, forward
from layerlab.numerics.emulation.attribution import CLOSED, Attribution, Error, attribution

# Kinds of components that a model has, roughly, and what is run beside them: for the bar only.
COMPONENTS = 18
INTERACTING = (
    f"where the shares of components are off 1 by more than {CLOSED:g}, roundings interact: rows "
    "by pair give what two of the largest do together, and the excess over the sum of both alone"
)


def read(context: ModelContext, run: MeasureContext) -> list[Row]:
    """Read rows by component, by layer, and by pairs where the closure is off.

    Source: Own.
    """
    tokens, names = context.sequences[0][: run.options["tokens"]], formats(run)
    model, stack = context.subject.model, context.subject.stack
    context.begin(len(names) * (COMPONENTS + len(stack.blocks) + 4))
    rows, sums, pairs = list[Row](), list[str](), False
    for name in names:

        def step(what: str, name: str = name) -> None:
            context.step(f"{name}: {what}")

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
        pairs = pairs or bool(found.pairs)
        if found.overflow:
            run.notes[f"overflow {name}"] = (
                f"{name} overflows, first in {found.overflow}: its errors are not those of "
                "rounding, so shares are left out"
            )
        else:
            sums.append(f"{name} {found.closure:.2f} and {found.layer_closure:.2f}")
    if sums:
        run.notes["closure"] = f"closure by component and by layer: {'; '.join(sums)}"
    if pairs:
        run.notes["pairs"] = INTERACTING
    return rows


def _rows(found: Attribution) -> Iterator[Row]:
    total = found.whole
    for by, parts in (("component", found.components), ("layer", found.layers)):
        for part in parts:
            yield {"by": by, "part": part.name, **_numbers(part.error, total, len(part.places))}
    for pair in found.pairs:
        joint = _numbers(pair.joint, total, nan)
        excess = pair.excess.logits / total.logits
        yield {"by": "pair", "part": f"{pair.first} with {pair.second}", **joint, "excess": excess}
    for part in found.cross:
        name = f"{part.name}, layer {part.layer}"
        yield {"by": "cross", "part": name, **_numbers(part.error, total, len(part.places))}


def _numbers(error: Error, total: Error, places: float) -> Row:
    return {
        "share": error.logits / total.logits if total.logits > 0 else nan,
        "error": error.logits**0.5,
        "whole": total.logits**0.5,
        "stream_share": error.stream / total.stream if total.stream > 0 else nan,
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
            "whole": "the same with every place rounded",
            "stream_share": "the same share in the last stream, in front of the final norm",
            "places": "modules and operations that round",
            "excess": "of a pair: its share less both alone",
        },
        plot=("share",),
        roles={"places": "size"},
        better=None,
        needs=frozenset({"model"}),
        read=read,
        check=check_formats,
        **measure_options("attribution"),
        default=False,
    ),
)
