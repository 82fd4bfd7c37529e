"""Why two engines give one model other log-probabilities: the share of each operation."""

from collections.abc import Iterator, Mapping
from math import nan
from typing import Any

from layerlab.measures.measure import Measure, MeasureContext, ModelContext, Row
from layerlab.measures.support.emulated_reruns import forward
from layerlab.numerics.profiles.gap import find_gap
from layerlab.numerics.profiles.gap_result import LARGEST, RunGap, list_steps
from layerlab.numerics.profiles.profile import NumericsProfile, load_profile
from layerlab.validation import Constraint

TOKENS = 128
# Readings of the text, for the bar only.
READINGS = 4


def _check_profiles(options: Mapping[str, Any]) -> None:
    """Refuse a profile that there is not, before a model is loaded."""
    _profiles(options)


def _profiles(options: Mapping[str, Any]) -> tuple[NumericsProfile, NumericsProfile]:
    return load_profile(options["a"]), load_profile(options["b"])


def read(whole: ModelContext, run: MeasureContext) -> list[Row]:
    """Read rows by operation, component and layer, and what is left when b does as a does.

    Source: Own.
    """
    a, b = _profiles(run.options)
    whole.begin(READINGS)
    found = find_gap(
        whole.subject.model,
        [whole.sequences[0][: run.options["tokens"]]],
        a,
        b,
        call=lambda model, ids: forward(model, ids).logits,
        step=whole.step,
    )
    apart = found.difference
    run.notes["difference"] = (
        f"{a.name} and {b.name}: the log-probabilities of {apart.tokens} tokens differ by"
        f" {apart.mean:.2g} nats in the mean and {apart.largest:.2g} at most"
    )
    run.notes["closure"] = (
        f"closure by operation and by layer: {found.closure:.2f} and {found.layer_closure:.2f}"
    )
    if (first := found.first) is not None:
        names, left, rms = ", ".join(first.operations), first.rms, apart.rms
        run.notes["first"] = f"with {names} as in a, {left:.2g} of {rms:.2g} nats are left"
    return list(_rows(found))


def _rows(found: RunGap) -> Iterator[Row]:
    tables = {
        "operation": found.operations,
        "component": found.components,
        "layer": found.layers,
    }
    for by, parts in tables.items():
        for one in parts:
            differs = nan if by == "layer" else float(one.differs)
            yield {
                "by": by,
                "part": one.name,
                "share": one.share,
                "rms": one.rms,
                "differs": differs,
            }
    whole = found.difference.rms
    for left, added in list_steps(found.remedies):
        operations, count = ", ".join(added), len(added)
        few = count < LARGEST
        yield {
            "by": "remedy",
            "part": f"and {operations} as in a" if few else f"and {count} more as in a",
            "share": (left.rms / whole) ** 2,
            "rms": left.rms,
            "differs": nan,
        }


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
            "share": "of the squared difference of the log-probabilities of tokens",
            "rms": "root mean square of the difference that these results alone make, in nats",
            "differs": "whether the profiles set it, or an operation of it, differently",
        },
        plot=("share",),
        roles={"differs": "flag"},
        better=None,
        needs=frozenset({"model"}),
        read=read,
        check=_check_profiles,
        options={"a": "torch-eager", "b": "torch-sdpa", "tokens": TOKENS},
        domains={
            "a": Constraint(kind=str),
            "b": Constraint(kind=str),
            "tokens": Constraint(kind=int, least=2),
        },
        default=False,
    ),
)
