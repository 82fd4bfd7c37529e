"""Advice on precision, followed: what is left of the error when one component is kept exact."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from layerlab.known_options import study_options
from layerlab.studies.budzinskiy25.models.component_rounding import Trials
from layerlab.studies.budzinskiy25.support.components import (
    FEEDFORWARD,
    LOGITS,
    NORMS,
    SCORES,
    STORED,
    STREAM,
    describe_missing,
)
from layerlab.studies.engine.pictures import gap, gaps
from layerlab.studies.engine.sampling import Sampler, StudyContext
from layerlab.studies.engine.scale import READ
from layerlab.studies.engine.statistics import (
    LOOKED,
    Interval,
    bootstrap,
    describe_intervals,
    summary,
    table,
)
from layerlab.studies.engine.study import Outcome, Picture, Study, StudyVerdict, Word
from layerlab.studies.engine.verdict import apart, below, each
from layerlab.studies.support.passages import excerpts, overlap

TOKENS = 32
# What is kept in higher precision, with what a person calls it.
KEPT: dict[str, tuple[str, ...]] = {
    **{name: (name,) for name in (SCORES, NORMS, STREAM, LOGITS, STORED, FEEDFORWARD)},
    "scores, softmax, norms, stream": (SCORES, NORMS, STREAM),
}
ALL = "scores, softmax, norms, stream"
AS_RUN = "as the code runs"
_UNFUSED = "The post-norm model, in GPT-1's code, has none of them."
NAMES = (*KEPT, AS_RUN, "nothing")
# Of the squared error, what somebody would change code for.
WORTH = 0.25
THIRD = 1 / 3
STEPWISE = "post-norm"


def one(draw: Sampler, model: str, format: str) -> dict[str, Tensor]:
    """Return the squared error of the logits with each part kept, for each passage of one batch."""
    ids = excerpts(draw, model, TOKENS)
    trials = Trials(model, ids, format, "flat", draw.given)
    kept = [trials.keeping(*names) for names in KEPT.values()]
    run = Trials(model, ids, format, "as-run", draw.given).whole
    return {"errors": torch.stack([*kept, run, trials.whole], 1)}


def run(context: StudyContext) -> Outcome:
    """Compute, judge and draw."""
    names = context.models
    cases = [{"model": name, **context.options} for name in names]
    parts = context.sample(one, cases)
    errors = {name: part["errors"] for name, part in zip(names, parts, strict=True)}
    found = {
        (model, name): share_left(every, name, context.seed, len(names))
        for model, every in errors.items()
        for name, column in zip(NAMES[:-1], every.T, strict=False)
        if not np.isnan(column).all()
    }
    rows = [
        summary(
            every[:, index] / every[:, -1] if name != "nothing" else every[:, index] ** 0.5,
            {
                "model": model,
                "kept": name,
                "quantity": "error of the logits" if name == "nothing" else "squared error left",
            },
        )
        for model, every in errors.items()
        for index, name in enumerate(NAMES)
        if name == "nothing" or (model, name) in found
    ]
    missing = {model: [one for one in KEPT if (model, one) not in found] for model in names}
    format = context.options["format"]
    # Of a user's models none is known to compute attention step by step.
    fused = names if context.given else [name for name in names if name != STEPWISE]
    return Outcome(
        verdicts=(
            judge_advised(found, format, fused),
            *([] if context.given else [judge_stepwise(found)]),
            judge_most(found, names),
            judge_together(found),
            judge_islands(found, fused),
        ),
        frames={"kept": table(rows)},
        pictures=(plot(found, format, names),),
        remarks=(
            f"Each draw is a passage of {TOKENS} tokens. As in the source, the result of every "
            f"operation is rounded to {format}, norms, softmax and rotary tables among them; what "
            "is kept is computed exactly, which is no less than float32 would give. What is left "
            "is the squared error of the logits over that with nothing kept; above 1 an error that "
            "is gone had cancelled others.",
            f"'{AS_RUN}' keeps what transformers' code itself has in float32: a fused softmax, the "
            "inside of norms, rotary tables." + ("" if context.given else " " + _UNFUSED),
            f"{WORTH:.0%} of the squared error, 13 % of the error itself, is about what somebody "
            "would change code for; a third is 18 % of the error.",
            LOOKED,
            overlap(TOKENS, context.given),
            *(describe_missing(name, missing[name]) for name in context.given if missing[name]),
        ),
    )


def share_left(errors: np.ndarray, name: str, seed: int, models: int) -> Interval:
    """Return the share of the squared error that is left, over all passages."""
    index = NAMES.index(name)
    return bootstrap(
        errors,
        lambda draws: float(draws[:, index].sum() / draws[:, -1].sum()),
        seed,
        comparisons=models,
    )


KeptIntervals = dict[tuple[str, str], Interval]


def _of(found: KeptIntervals, kept: str) -> dict[str, Interval]:
    return {model: one for (model, name), one in found.items() if name == kept}


def judge_advised(found: KeptIntervals, format: str, fused: Sequence[str]) -> StudyVerdict:
    """Judge the source's advice on models whose attention is one fused call."""
    kept = {model: one for model, one in _of(found, SCORES).items() if model in fused}
    least = max(kept.values(), key=lambda one: one.value)
    numbers = describe_intervals(kept)
    return StudyVerdict(
        claim=STUDY.claim,
        word=_lower(kept, 1 - WORTH),
        number=least.value,
        said=f"with scores and softmax exact, of the squared error in {format} are left "
        f"{numbers}; below {1 - WORTH:g} was asked for in {_all(kept)}",
        looked=True,
    )


def judge_stepwise(found: KeptIntervals) -> StudyVerdict:
    """Judge the source's advice on the model whose scores are largest."""
    kept = found[STEPWISE, SCORES]
    return StudyVerdict(
        claim=f"They do in the {STEPWISE} model.",
        word=_lower({STEPWISE: kept}, 1 - WORTH),
        number=kept.value,
        said=f"with scores and softmax exact {kept} of the squared error is left in the {STEPWISE} "
        f"model; below {1 - WORTH:g} was asked for",
        source="budzinskiy25, section 5",
        looked=True,
    )


def judge_most(found: KeptIntervals, models: Sequence[str]) -> StudyVerdict:
    """Judge whether the part that is advised is the one that helps most."""
    best, own = {}, {}
    for model in models:
        parts = [name for name in KEPT if name not in (SCORES, ALL)]
        others = {name: found[model, name] for name in parts if (model, name) in found}
        name = min(others, key=lambda name: others[name].value)
        best[model], own[model] = (name, others[name]), found[model, SCORES]
    numbers = "; ".join(
        f"{model}: {own[model]} with scores and softmax exact, {one} with {name}"
        for model, (name, one) in best.items()
    )
    return StudyVerdict(
        claim="No other part of a model gains more from a higher precision than scores and "
        "softmax.",
        word=each(apart(one, own[model]) for model, (_, one) in best.items()),
        number=min(one.value for _, one in best.values()),
        said=f"squared error left: {numbers}",
        source="budzinskiy25, section 5",
    )


def judge_together(found: KeptIntervals) -> StudyVerdict:
    """Judge mixed precision: scores, softmax, norms and stream at once."""
    kept = _of(found, ALL)
    numbers = describe_intervals(kept)
    return StudyVerdict(
        claim="Scores, softmax, norms and residual stream, all exact, remove a third of the "
        "squared error, or more.",
        word=_lower(kept, 1 - THIRD),
        number=max(one.value for one in kept.values()),
        said=(
            f"squared error left: {numbers}; below {1 - THIRD:.3g} was asked for in each. "
            "The rest comes from weights and from products, whose results are rounded"
        ),
        source="Own",
        looked=True,
    )


def judge_islands(found: KeptIntervals, fused: Sequence[str]) -> StudyVerdict:
    """Judge what code in use gains by what it keeps in float32 already."""
    kept = {model: one for model, one in _of(found, AS_RUN).items() if model in fused}
    numbers = describe_intervals(kept)
    return StudyVerdict(
        claim="What fused code keeps in float32 by itself removes some of the squared error.",
        word=_lower(kept, 1.0),
        number=max(one.value for one in kept.values()),
        said=f"squared error of the code as it runs, over that with every result rounded: "
        f"{numbers}; below 1 was asked for in {_all(kept)}, and no size",
        source="Own",
    )


def _all(found: dict[str, Interval]) -> str:
    return "both" if len(found) == 2 else "each"


def _lower(found: dict[str, Interval], limit: float) -> Word:
    """Judge whether all shares are below a limit that the claim names."""
    return each(below(one, limit) for one in found.values())


def plot(found: KeptIntervals, format: str, models: Sequence[str]) -> Picture:
    """Plot the error that is left, part by part and model by model."""
    rows = [
        gap(f"{model}: {name}", found[model, name])
        for name in NAMES[:-1]
        for model in models
        if (model, name) in found
    ]
    return gaps(
        "left",
        f"Squared error left in {format} when a part is kept exact (95 % interval); left is better",
        rows,
        x="squared error of the logits over that with nothing kept; 1 is no help",
    )


STUDY = Study(
    name="precision-advice",
    title="What to keep in float32",
    source="budzinskiy25, section 5",
    claim="Scores and softmax in a higher precision remove a quarter of the squared rounding "
    "error, or more.",
    cost="30 seconds",
    draws=256,
    passage=TOKENS,
    attention=True,
    run=run,
    fast={"draws": 32},
    **READ,
    **study_options("precision-advice"),
)
