"""Sources of the rounding error of the built-in models: each component rounded alone."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from layerlab.known_options import study_options
from layerlab.studies.budzinskiy25.models.component_rounding import Trials
from layerlab.studies.budzinskiy25.support.components import (
    COMPONENTS,
    OTHER,
    SCORES,
    WEIGHTED,
    describe_missing,
)
from layerlab.studies.engine.pictures import gap, gaps
from layerlab.studies.engine.sampling import GivenModels, Sampler, StudyContext
from layerlab.studies.engine.scale import READ
from layerlab.studies.engine.statistics import LOOKED, Interval, bootstrap, summary, table
from layerlab.studies.engine.study import Outcome, Picture, Study, StudyVerdict
from layerlab.studies.engine.verdict import above, apart, decide, each, within
from layerlab.studies.support.passages import excerpts, overlap

TOKENS = 32
ATTENTION = (SCORES, WEIGHTED)
STEPWISE = "post-norm"
ABOUT_FUSED = (
    "The pre-norm model and the llama ask for a fused attention, whose scores and softmax "
    "stay in float32; the post-norm model computes them step by step in the format."
)
HALF = 0.5
# By how much the shares may miss 1 before they are said not to add up.
CLOSED = 0.25


def one(draw: Sampler, model: str, format: str, mode: str) -> dict[str, Tensor]:
    """Return the squared error of the logits by component, for each passage of one batch.

    The last column is of all components together.
    """
    trials = Trials(model, excerpts(draw, model, TOKENS), format, mode, draw.given)
    alone = [trials.rounding([name]) for name in components(draw.given)]
    return {"errors": torch.stack([*alone, trials.whole], 1)}


def components(given: GivenModels) -> tuple[str, ...]:
    """Return the components that are rounded; what no built-in model has comes last."""
    return (*COMPONENTS, OTHER) if given else tuple(COMPONENTS)


def run(context: StudyContext) -> Outcome:
    """Compute, judge and draw."""
    cases, parted = (
        [{"model": name, **context.options} for name in context.models],
        components(context.given),
    )
    parts = context.sample(one, cases)
    errors = {name: part["errors"] for name, part in zip(context.models, parts, strict=True)}
    found = {
        (model, name): share_of(every, [name], parted, context)
        for model, every in errors.items()
        for name in parted
        if errs(every[:, parted.index(name)])
    }
    rows = [
        summary(
            every[:, index] ** 0.5 if name == "everything" else every[:, index] / every[:, -1],
            {
                "model": model,
                "component": name,
                "quantity": "error of the logits" if name == "everything" else "share",
            },
        )
        for model, every in errors.items()
        for index, name in enumerate((*parted, "everything"))
        if errs(every[:, index])
    ]
    missing = {
        model: [one for one, column in zip(parted, every.T, strict=False) if np.isnan(column).all()]
        for model, every in errors.items()
    }
    format = context.options["format"]
    return Outcome(
        verdicts=(
            judge_attention(errors, context, format),
            *([] if context.given else [judge_stepwise(found)]),
            judge_dominant(found, context.models),
            judge_adding(errors, context),
        ),
        frames={"components": table(rows)},
        pictures=(plot(found, context.models),),
        remarks=(
            f"Each draw is a passage of {TOKENS} tokens. The model's own code runs in {format}, "
            f"{context.options['mode']}: one component is rounded at a time and all others are in "
            "float64. A share is the squared error of the logits that this gives, over that with "
            "everything rounded.",
            # Rounded flat, no kernel keeps anything.
            *([] if context.given or context.options["mode"] == "flat" else [ABOUT_FUSED]),
            f"Most is more than half. Shares within {CLOSED:g} of 1 add up to within an eighth of "
            "the error itself, which is the root.",
            LOOKED,
            overlap(TOKENS, context.given),
            *(describe_missing(name, missing[name]) for name in context.given if missing[name]),
        ),
    )


def errs(errors: np.ndarray) -> bool:
    """Return whether a component is found, and makes some error."""
    return bool(np.nan_to_num(errors).any())


def share_of(
    errors: np.ndarray, names: Sequence[str], parted: Sequence[str], context: StudyContext
) -> Interval:
    """Return the share of the squared error that some components give, each rounded alone.

    What a model has no place of gives nothing.
    """
    places = [parted.index(name) for name in names]
    return bootstrap(
        errors,
        lambda draws: float(np.nansum(draws[:, places]) / draws[:, -1].sum()),
        context.seed,
        comparisons=len(context.models),
    )


def judge_attention(
    errors: dict[str, np.ndarray], context: StudyContext, format: str
) -> StudyVerdict:
    """Judge whether the error comes from attention's core, as the source's advice supposes."""
    parted = components(context.given)
    found = {model: share_of(every, ATTENTION, parted, context) for model, every in errors.items()}
    numbers = ", ".join(f"{one} ({model})" for model, one in found.items())
    least = min(found.values(), key=lambda one: one.value)
    return StudyVerdict(
        claim=STUDY.claim,
        word=each(above(one, HALF) for one in found.values()),
        number=least.value,
        said=f"scores, softmax and weighted sum give {numbers} of the squared error of the logits "
        f"in {format}; above {HALF:g} was asked for in each model",
    )


def judge_stepwise(found: dict[tuple[str, str], Interval]) -> StudyVerdict:
    """Judge the shares where no fused kernel keeps scores and softmax in float32."""
    own = {name: one for (model, name), one in found.items() if model == STEPWISE}
    scores = own.pop(SCORES, Interval(0.0, 0.0, 0.0))
    second = max(own, key=lambda name: own[name].value)
    return StudyVerdict(
        claim="Where attention is computed step by step in the format, scores and softmax are the "
        "largest source.",
        word=apart(scores, own[second]),
        number=scores.value,
        said=f"in the {STEPWISE} model they give {scores} of the squared error, and the next, "
        f"{second}, {own[second]}; intervals apart were asked for",
        source="budzinskiy25, section 5",
    )


def judge_dominant(found: dict[tuple[str, str], Interval], models: Sequence[str]) -> StudyVerdict:
    """Judge whether one component is the largest in every model, or in the only one."""
    largest, possible = {}, []
    for model in models:
        own = {name: one for (where, name), one in found.items() if where == model}
        first, second = sorted(own, key=lambda name: -own[name].value)[:2]
        largest[model] = (first, own[first], second, own[second])
        possible.append({name for name, one in own.items() if one.high >= own[first].low})
    numbers = "; ".join(
        f"{model}: {first} {one}, then {second} {other}"
        for model, (first, one, second, other) in largest.items()
    )
    clear = each(apart(one, other) for _, one, _, other in largest.values()) == "holds"
    single = len(models) == 1
    return StudyVerdict(
        claim="One component gives a larger share than any other."
        if single
        else "One and the same component gives the largest share in every model.",
        word=decide(holds=clear, fails=not set.intersection(*possible)),
        number=max(one.value for _, one, _, _ in largest.values()),
        said=f"the two largest shares: {numbers}; intervals apart were asked for"
        if single
        else f"the two largest shares: {numbers}; one name was asked for, and intervals apart",
        source="Own",
    )


def judge_adding(errors: dict[str, np.ndarray], context: StudyContext) -> StudyVerdict:
    """Judge whether the shares add up to the whole."""
    parted = components(context.given)
    found = {model: share_of(every, parted, parted, context) for model, every in errors.items()}
    numbers = ", ".join(f"{one} ({model})" for model, one in found.items())
    return StudyVerdict(
        claim="The errors of the components are uncorrelated: their squares add up to the whole.",
        word=each(within(one, 1 - CLOSED, 1 + CLOSED) for one in found.values()),
        number=max((one.value for one in found.values()), key=lambda sum: abs(sum - 1)),
        said=f"the shares sum to {numbers}; within {CLOSED:g} of 1 was asked for",
        source="Own",
        looked=True,
    )


def plot(found: dict[tuple[str, str], Interval], models: Sequence[str]) -> Picture:
    """Plot the shares, model by model."""
    ordered = sorted(found, key=lambda key: (models.index(key[0]), -found[key].value))
    shares = [gap(f"{model}: {name}", found[model, name]) for model, name in ordered]
    return gaps(
        "shares",
        "Share of each component, rounded alone (all passages, 95 % interval)",
        shares,
        x="share of the squared error of the logits",
    )


STUDY = Study(
    name="where-noise",
    title="Where rounding noise comes from",
    source="budzinskiy25, section 5; the design is own",
    claim="Most of a model's rounding error comes from scores, softmax and weighted sum of its "
    "attention.",
    cost="30 seconds",
    draws=256,
    passage=TOKENS,
    attention=True,
    run=run,
    fast={"draws": 32},
    **READ,
    **study_options("where-noise"),
)
