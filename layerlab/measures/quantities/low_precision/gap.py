"""Gap between the log-probabilities of two engines: the share of each operation."""

from collections.abc import Iterator, Mapping
from math import nan
from typing import Any

from layerlab.known_options import measure_options
from layerlab.measures.measure import Measure, MeasureContext, ModelContext, Row
from layerlab.measures.support.emulated_reruns import forward
from layerlab.numerics.profiles.gap import find_gap
from layerlab.numerics.profiles.gap_result import (
    DifferenceShare,
    RunGap,
    advise,
    list_remedies,
    tell_remedy,
    tell_settings,
)
from layerlab.numerics.profiles.operations import OPERATIONS
from layerlab.numerics.profiles.profile import NumericsProfile, load_profile

# Readings of the text, for the bar only.
READINGS = 4
WORDS, NUMBERS = (
    ("unit", "meaning", "in_a", "in_b"),
    (*("value", "share", "rms", "differs", "excess", "left", "left_rms", "left_mean"),),
)
EMPTY = {**dict.fromkeys(WORDS, ""), **dict.fromkeys(NUMBERS, nan)}


def _profiles(options: Mapping[str, Any]) -> tuple[NumericsProfile, NumericsProfile]:
    return load_profile(options["a"]), load_profile(options["b"])


def read(context: ModelContext, run: MeasureContext) -> list[Row]:
    """Read rows by operation, component and layer, and what is left when b does as a does.

    Source: Own.
    """
    a, b = _profiles(run.options)
    context.begin(READINGS)
    found = find_gap(
        context.subject.model,
        [context.sequences[0][: run.options["tokens"]]],
        a,
        b,
        call=lambda model, ids: forward(model, ids).logits,
        step=context.step,
    )
    apart = found.difference
    run.notes["difference"] = (
        f"{a.name} and {b.name}: the log-probabilities of {apart.tokens} tokens differ by"
        f" {apart.mean:.2g} nats in the mean and {apart.largest:.2g} at most"
    )
    run.notes["first"] = f"what to change first: {advise(found)}"
    run.notes["a"] = f"profile a is {a.name}: {a.summary}"
    run.notes["b"] = f"profile b is {b.name}: {b.summary}"
    if found.operations:
        run.notes["closure"] = (
            f"closure by operation and by layer: {found.closure:.2f} and {found.layer_closure:.2f}"
        )
    return [{**EMPTY, **row} for row in _rows(found)]


def _rows(found: RunGap) -> Iterator[Row]:
    for value in (*found.difference.values, *found.choices.values):
        yield {"by": "token", "part": value.name, "value": value.value, "unit": value.unit}
    for one in found.operations:
        in_a, in_b = tell_settings(found, one) or ("", "")
        meaning = OPERATIONS.get(one.name, "")
        yield {**_share("operation", one), "meaning": meaning, "in_a": in_a, "in_b": in_b}
    yield from (_share("component", one) for one in found.components)
    yield from ({**_share("layer", one), "differs": nan} for one in found.layers)
    for pair in found.pairs:
        yield {"by": "pair", "part": f"{pair.first}, {pair.second}", "excess": pair.excess}
    for left in list_remedies(found):
        yield {
            "by": "remedy",
            "part": tell_remedy(found, left),
            "left": (left.rms / found.difference.rms) ** 2,
            "left_rms": left.rms,
            "left_mean": left.mean,
        }


def _share(by: str, one: DifferenceShare) -> Row:
    differs = float(one.differs)
    return {"by": by, "part": one.name, "share": one.share, "rms": one.rms, "differs": differs}


MEASURES = (
    Measure(
        name="gap",
        title="Why two engines disagree",
        unit="share of the squared difference",
        source="Own",
        about=(
            "The model runs as two engines compute it, each described by a numerics profile, and "
            "runs beside them make the errors of the first, but those of the second at one "
            "operation, in one component or in one layer, whose share of the squared difference of "
            "the log-probabilities this gives; roundings that both do have a share, too, since any "
            "difference makes later ones come out otherwise. Then the second does one thing after "
            "another as the first does, each in a run of its own: what is left."
        ),
        equation="share_g = <d_g, d> / <d, d>,   d = log p_b - log p_a,   closure = sum_g share_g",
        per=("by", "part"),
        columns={
            "value": "of the difference of the log-probabilities by token, a less b, in its unit",
            "unit": "of the value",
            "meaning": "what the results of the operation are",
            "share": "of the squared difference of the log-probabilities of tokens",
            "rms": "root mean square of the difference that these results alone make, in nats",
            "differs": "whether the profiles set it, or an operation of it, differently",
            "in_a": "how a rounds these results, where b does otherwise; unless widened: except "
            "where the model's code casts to float32",
            "in_b": "how b rounds them",
            "excess": "share of both operations together, less the sum of their own",
            "left": "what is left of the squared difference, as a share, once b does this as a "
            "does, in a run of its own",
            "left_rms": "root mean square of what is left, in nats",
            "left_mean": "mean size of what is left, in nats",
        },
        plot=("share", "left"),
        roles={"differs": "flag", "meaning": "note"},
        typed=("operation", "pair", "remedy"),
        better=None,
        needs=frozenset({"model"}),
        read=read,
        check=_profiles,  # one that there is not is refused before a model is loaded
        **measure_options("gap"),
        default=False,
    ),
)
