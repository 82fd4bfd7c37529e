"""Effective dimension with each module of PanGu-pi, in twins that are trained alike.

Predicted: at this size no module moves the dimension by a twentieth; the order is not to be seen.
"""

import numpy as np

from layerlab.known_options import study_options
from layerlab.studies.engine.sampling import Arrays, StudyContext
from layerlab.studies.engine.statistics import Interval, ratio_over_seeds, table
from layerlab.studies.engine.study import Outcome, Study, StudyVerdict, Word
from layerlab.studies.engine.verdict import above, each
from layerlab.studies.support import small_models
from layerlab.studies.support.feature_statistics import DIMENSION

FULL, NO_SERIES, NO_SHORTCUT, VANILLA = (
    "pangu-pi",
    "pangu-pi-no-siaf",
    "pangu-pi-no-as",
    small_models.PLAIN,
)
ARMS = (FULL, NO_SERIES, NO_SHORTCUT, VANILLA)
# The larger first, as the source has them.
ORDER = (
    (FULL, NO_SERIES),
    (FULL, NO_SHORTCUT),
    (NO_SERIES, VANILLA),
    (NO_SHORTCUT, VANILLA),
)
# The source calls its gaps extreme and significant: a twentieth is the least that could be meant.
EFFECT = 1.05


def run(context: StudyContext) -> Outcome:
    """Train, read, judge and draw."""
    parts, remarks = small_models.gather_arms(context, ARMS)
    return Outcome(
        verdicts=(
            judge_ordered(parts),
            judge_without_shortcut(parts),
            judge_every_layer(parts),
            judge_most(parts),
        ),
        frames={"layers": table(list(small_models.rows(parts)))},
        pictures=(small_models.plot(parts, DIMENSION),),
        remarks=(
            *remarks,
            "The dimension is d(0.8) of 16 held-out passages together, the first token of each "
            "left out; means are over all layers behind a block. The source shows 29 layers of "
            "4096 and 1.6 trillion tokens; a 32nd of the width is 128 there and "
            f"{max(1, context.options['width'] // 32)} here.",
        ),
    )


def by_layer(part: Arrays) -> np.ndarray:
    """Return the dimension, seed by block."""
    return np.asarray(part["layers"][:, 1:, DIMENSION])


def compare_arms(
    parts: small_models.Parts, ours: str, theirs: str, comparisons: int = 1
) -> Interval:
    """Return how many times another arm's dimension one arm has, averaged over layers."""
    left, right = (by_layer(parts[arm]).mean(1) for arm in (ours, theirs))
    return ratio_over_seeds(left, right, comparisons)


def together(found: list[Interval]) -> Word:
    """Judge a claim on several quotients: all have to be as claimed, and one failure refutes."""
    return each(above(one, EFFECT, 1) for one in found)


def judge_ordered(parts: small_models.Parts) -> StudyVerdict:
    """Judge the whole order of the arms."""
    found = [compare_arms(parts, *pair, len(ORDER)) for pair in ORDER]
    numbers = ", ".join(
        f"{ours} has {one} times that of {theirs}"
        for (ours, theirs), one in zip(ORDER, found, strict=True)
    )
    losses = ", ".join(f"{arm} {parts[arm]['nats'].mean():.3f}" for arm in ARMS)
    return StudyVerdict(
        claim=STUDY.claim,
        word=together(found),
        number=min(one.value for one in found),
        said=f"{numbers} (mean over layers, {len(parts[FULL]['nats'])} seeds); each pair has to be "
        f"above {EFFECT:g}, of intervals that hold together. Loss in nats: {losses}",
    )


def judge_without_shortcut(parts: small_models.Parts) -> StudyVerdict:
    """Judge what the augmented shortcut alone does to the dimension."""
    found = compare_arms(parts, FULL, NO_SHORTCUT)
    return StudyVerdict(
        claim="Without the augmented shortcut the effective dimension is much smaller.",
        word=above(found, EFFECT, 1),
        number=found.value,
        said=f"with it, d(0.8) is {found} times as large; above {EFFECT:g} was asked for",
        source="pangu23, section 5.2, Figure 4",
    )


def judge_every_layer(parts: small_models.Parts) -> StudyVerdict:
    """Judge the effect of the series activation, layer by layer."""
    left, right = (by_layer(parts[arm]) for arm in (FULL, NO_SERIES))
    layers = left.shape[1]
    found = [ratio_over_seeds(left[:, one], right[:, one], layers) for one in range(layers)]
    least = min(range(layers), key=lambda layer: found[layer].high)
    return StudyVerdict(
        claim="Without the series activation the effective dimension is smaller at every layer.",
        word=together(found),
        number=found[least].value,
        said=f"with it, d(0.8) is {found[least]} times as large in layer {least + 1} of {layers}, "
        f"the one that speaks most against it; above {EFFECT:g} was asked for in each, of "
        "intervals that hold together",
        source="pangu23, section 5.2, Figure 4",
    )


def judge_most(parts: small_models.Parts) -> StudyVerdict:
    """Judge which of the two modules matters more."""
    found = compare_arms(parts, NO_SERIES, NO_SHORTCUT)
    return StudyVerdict(
        claim="Leaving out the shortcut limits the dimension more than leaving out the series.",
        word=above(found, EFFECT, 1),
        number=found.value,
        said=f"without the series it is {found} times that without the shortcut; above {EFFECT:g} "
        "was asked for",
        source="pangu23, section 5.2, Figure 4",
    )


STUDY = Study(
    name="dimension-twins",
    title="Effective dimension of trained twins",
    source="pangu23, section 5.2, Figure 4",
    claim="Trained, the effective dimension of PanGu-pi is the largest, that without one of its "
    "modules is smaller, and that of the plain Llama the smallest.",
    cost="6 minutes",
    run=run,
    **small_models.DECLARED,
    **study_options("dimension-twins"),
)
