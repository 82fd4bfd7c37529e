"""Principal components of token features by depth: of PanGu-pi, its ablations and Llama as twins.

Predicted: at this size no module moves the shares by a twentieth, and nothing lies along one axis.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from layerlab import builtin
from layerlab.known_options import study_options
from layerlab.studies.engine.given_models import judge_one
from layerlab.studies.engine.sampling import Arrays, Sampler, StudyContext
from layerlab.studies.engine.scale import BUILT_IN
from layerlab.studies.engine.statistics import (
    Interval,
    bootstrap,
    over_seeds,
    ratio_over_seeds,
    table,
)
from layerlab.studies.engine.study import Outcome, Study, StudyVerdict, Word
from layerlab.studies.engine.verdict import above, each
from layerlab.studies.pangu23.theory.collapse_depth import EACH, TOKENS
from layerlab.studies.pangu23.trained import effective_dimension as twins
from layerlab.studies.pangu23.trained.feature_pictures import (
    APART,
    COLUMNS,
    COSINE,
    FIRST,
    KEPT,
    SECOND,
    THIRD,
    cloud,
    cosines,
    shares,
)
from layerlab.studies.pangu23.trained.saliency_repeat import ISOTROPY
from layerlab.studies.support import small_models
from layerlab.studies.support.feature_statistics import OUTLIERS
from layerlab.studies.support.passages import PASSAGES, excerpts, for_each_layer, get_model, overlap

if TYPE_CHECKING:
    from layerlab.loading.model import LoadedModel

ARMS, FULL, VANILLA = twins.ARMS, twins.FULL, twins.VANILLA
OTHERS = tuple(arm for arm in ARMS if arm != FULL)
ABLATED = (twins.NO_SERIES, twins.NO_SHORTCUT)
# As for the dimension: a twentieth is the least that "most diverse" could mean.
EFFECT = 1.05
# What lies along one axis has most of its variance there.
AXIS = 0.5
ALONG = "The features of a trained Llama lie along one axis."
# Half as much again changes what a reader sees in the first direction: less does not take it.
OUTLIER = 1.5
# Of the source: the five most frequent tokens, in three of 29 layers.
WORDS, POINTS = 5, 60
DRAWN = (16 / 29, 21 / 29, 26 / 29)
DIGITS = 4


def read(subject: "LoadedModel", ids: Tensor) -> tuple[Tensor, dict[str, Any]]:
    """Read layer x quantity of some passages together, and where the most frequent tokens lie.

    `first`, `second` and `third` are shares of the variance, `kept` is the first of them where no
    token is left out; `cosine` is between the tokens of a passage, `apart` that of the clusters.
    """
    # Late: pictures of features bring nothing that the list of studies needs.
    from layerlab.loading.token_text import token_strings
    from layerlab.measures.quantities.diversity import cosine
    from layerlab.measures.quantities.features import Cloud, choice
    from layerlab.measures.support.centring import Pool
    from layerlab.measures.support.pca import apartness, components, coordinates

    chosen = choice(list(ids), WORDS, POINTS, OUTLIERS)
    clouds: dict[int, Cloud] = {}
    pools: dict[int, Pool] = {}
    cosines: dict[int, list[Tensor]] = {}

    def take(layer: Any) -> None:
        clouds.setdefault(layer.layer, Cloud()).add(layer, chosen, OUTLIERS)
        pools.setdefault(layer.layer, Pool()).add(layer.stream)
        cosines.setdefault(layer.layer, []).append(cosine(layer.stream[OUTLIERS:]))

    for_each_layer(subject, ids, take)
    named = token_strings(subject, torch.tensor([word for word, _ in chosen.words]))
    drawn: dict[str, Any] = {"words": named, "drawn": {}}
    places = [round(share * (len(clouds) - 1)) for share in DRAWN]
    found = []
    for index, (layer, seen) in enumerate(sorted(clouds.items())):
        axes = components(seen.pool)
        marks = torch.tensor([word for word, _ in seen.marks])
        points = coordinates(torch.cat(seen.features), axes)
        rest = [
            torch.stack(cosines[layer]).mean().cpu(),
            apartness(points, marks),
            components(pools[layer]).shares[0],
        ]
        found.append(torch.cat([axes.shares, torch.stack(rest)]))
        if index in places:
            drawn["drawn"][str(index)] = [
                [[float(f"{x:.{DIGITS}g}") for x in point] for point in points[marks == word].T]
                for word in range(len(named))
            ]
    return torch.stack(found), drawn


def ours(draw: Sampler, name: str) -> dict[str, Tensor]:
    """Return the quantities of a model by layer, for one batch."""
    ids = excerpts(draw, name, TOKENS, EACH).view(draw.count, EACH, TOKENS)
    return {"layers": torch.stack([read(get_model(name, draw.given), one)[0] for one in ids])}


def of_twin(one: small_models.Twin) -> dict[str, Any]:
    """Return the quantities of a twin by layer, on held-out text."""
    found, drawn = read(one.subject, one.held)
    return {"nats": one.nats, "layers": found.tolist(), **drawn}


READING = small_models.ModelReading(
    kind="features",
    read=of_twin,
    shapes={"nats": (), "layers": (None, len(COLUMNS))},
    asked=lambda found: f"{WORDS} {POINTS}",
)


def run(context: StudyContext) -> Outcome:
    """Train, read, judge and draw."""
    if context.given:
        return read_given(context)
    models = context.sample_models(ours, batch=10)
    built = {name: one["layers"] for name, one in models.items()}
    seeds = range(1, context.options["seeds"] + 1)
    jobs = [(arm, seed) for arm in ARMS for seed in seeds]
    found, notes = small_models.kept_readings(context, jobs, READING)
    parts = small_models.by_arm(found, ARMS, seeds)
    seen = {arm: found[arm, 1] for arm in (FULL, VANILLA)}
    return Outcome(
        verdicts=(
            judge_diverse(parts),
            judge_isotropic(parts),
            judge_spreads(parts),
            *(judge_gathers(parts, arm) for arm in ABLATED),
            judge_distinct(parts),
            judge_along(built["llama"], "the built-in llama", context.seed),
            judge_outlying(built["llama"], "the built-in llama", context.seed),
        ),
        frames={"layers": table([*rows(parts), *rows_of(built)])},
        pictures=(
            shares(parts, built),
            cosines(parts, built),
            *(cloud(arm, one, layer) for arm, one in seen.items() for layer in one["drawn"]),
        ),
        remarks=(
            small_models.ABOUT,
            small_models.PAIRED,
            f"Twins read 16 held-out passages of 128 tokens, the built-in models {EACH} for each "
            f"draw; the first token of each is left out. Clouds show the {WORDS} most frequent "
            f"tokens, up to {POINTS} of each, of one seed, in the plane of the first two of "
            "three components. The source shows PTB in layers 16, 21 and 26 of 29; here the layers "
            "at the same depth.",
            overlap(TOKENS),
            *notes,
        ),
    )


def read_given(context: StudyContext) -> Outcome:
    """Read and judge the models that the user named, without twins beside them."""
    models = context.sample_models(ours, batch=10)
    built = {name: one["layers"] for name, one in models.items()}
    clouds = []
    for number, name in enumerate(context.models, 1):
        generator = torch.Generator().manual_seed(context.seed)
        draw = Sampler(count=1, generator=generator, given=context.given)
        found, drawn = read(get_model(name, context.given), excerpts(draw, name, TOKENS, EACH))
        seen = {"layers": found.tolist(), **drawn}
        # A name may hold what no file's does, as a folder before a checkpoint.
        clouds += [cloud(name, seen, layer, f"model-{number}") for layer in seen["drawn"]]
    return Outcome(
        verdicts=tuple(
            verdict
            for name in context.models
            for verdict in judge_one(
                name,
                context.given,
                judge_along(
                    built[name], name, context.seed, f"The features of {name} lie along one axis."
                ),
                judge_outlying(built[name], name, context.seed),
            )
        ),
        frames={"layers": table(rows_of(built))},
        pictures=(shares({}, built), cosines({}, built), *clouds),
        remarks=(
            f"A draw is {EACH} passages of {TOKENS} tokens; the first token of each is left out. "
            f"Clouds show the {WORDS} most frequent tokens of one draw, up to {POINTS} of each. "
            "What the study judges of PanGu-pi and its ablations is judged on twins that it "
            "trains: type it without --model.",
            overlap(TOKENS, context.given),
        ),
    )


def three(part: Arrays) -> np.ndarray:
    """Return the share of the first three components, seed by block."""
    return np.asarray(part["layers"][:, 1:, [FIRST, SECOND, THIRD]].sum(-1))


def column(part: Arrays, number: int) -> np.ndarray:
    """Return one quantity, seed by block."""
    return np.asarray(part["layers"][:, 1:, number])


def together(found: list[Interval], asked: float, neutral: float) -> Word:
    """Judge a claim on several numbers: all have to be as claimed, and one failure refutes."""
    return each(above(one, asked, neutral) for one in found)


def seeds(parts: small_models.Parts) -> str:
    """Describe the unit of the verdicts on twins, their seeds of training."""
    return f"{len(parts[FULL]['layers'])} seeds of training"


def describe(found: list[Interval], arms: tuple[str, ...]) -> str:
    """Describe the number of each arm, one after the other."""
    return ", ".join(f"{one} in {arm}" for arm, one in zip(arms, found, strict=True))


def judge_diverse(parts: small_models.Parts) -> StudyVerdict:
    """Judge the share of the variance that three directions hold."""
    own = three(parts[FULL]).mean(1)
    found = [ratio_over_seeds(three(parts[arm]).mean(1), own, len(OTHERS)) for arm in OTHERS]
    return StudyVerdict(
        claim=STUDY.claim,
        word=together(found, EFFECT, 1),
        number=min(one.value for one in found),
        said=f"they hold {own.mean():.3f} of the variance in {FULL}, mean over layers, and "
        f"{describe(found, OTHERS)} times as much; above {EFFECT:g} was asked for in each",
        unit=seeds(parts),
    )


def judge_isotropic(parts: small_models.Parts) -> StudyVerdict:
    """Judge the mean cosine between tokens."""
    own = column(parts[FULL], COSINE).mean(1)
    cosines = [column(parts[arm], COSINE).mean(1) for arm in OTHERS]
    found = [over_seeds(one, own, len(OTHERS)) for one in cosines]
    return StudyVerdict(
        claim="PanGu-pi has the most isotropic feature space.",
        word=together(found, ISOTROPY, 0),
        number=min(one.value for one in found),
        said=f"the mean cosine between tokens is {own.mean():.3f} in {FULL}, mean over layers; "
        f"higher by {describe(found, OTHERS)}; above {ISOTROPY:g} was asked for in each",
        source="pangu23, section 5.2, Figure 5",
        unit=seeds(parts),
    )


def judge_spreads(parts: small_models.Parts) -> StudyVerdict:
    """Judge the spread of PanGu-pi's features from each block to the next, beside a Llama's."""
    found, plain = three(parts[FULL]), three(parts[VANILLA])
    count = found.shape[1] - 1
    steps = [ratio_over_seeds(found[:, at], found[:, at + 1], count) for at in range(count)]
    least = min(range(count), key=lambda at: steps[at].value)
    rises = sum((found[:, at + 1] > found[:, at]).sum() for at in range(count))
    return StudyVerdict(
        claim="The deeper the layer, the more directions the features of PanGu-pi spread into.",
        word=each(above(one, 1) for one in steps),
        number=steps[least].value,
        said=f"from block {least + 1} to {least + 2}, the step that speaks most against it, the "
        f"share of three components is divided by {steps[least]}; above 1 was asked for in each of "
        f"{count} steps, of intervals that hold together, and no size. It rises in {rises} of "
        f"{found[:, 1:].size} steps of single seeds. From the first block to the last it goes from "
        f"{found[:, 0].mean():.3f} to {found[:, -1].mean():.3f}, and in {VANILLA} from "
        f"{plain[:, 0].mean():.3f} to {plain[:, -1].mean():.3f}",
        source="pangu23, section 5.2, Figure 5",
        unit=seeds(parts),
    )


def judge_gathers(parts: small_models.Parts, arm: str) -> StudyVerdict:
    """Judge whether one axis holds most of the variance in the layer that is most one-sided."""
    found = column(parts[arm], FIRST)
    layer = int(found.mean(0).argmax())
    share = over_seeds(found[:, layer], np.zeros(len(found)), found.shape[1])
    return StudyVerdict(
        claim=f"Without one of its modules the features lie along one axis: {arm}.",
        word=above(share, AXIS),
        number=share.value,
        said=f"the first component holds {share} of the variance behind block {layer + 1}, where "
        f"it holds most; above {AXIS:g} was asked for",
        source="pangu23, section 5.2, Figure 5",
        unit=seeds(parts),
    )


def judge_distinct(parts: small_models.Parts) -> StudyVerdict:
    """Judge how far the clusters of frequent tokens lie apart."""
    own = column(parts[FULL], APART).mean(1)
    others = [column(parts[arm], APART).mean(1) for arm in ABLATED]
    found = [ratio_over_seeds(own, one, len(ABLATED)) for one in others]
    return StudyVerdict(
        claim="Without one of its modules tokens are told apart less.",
        word=together(found, EFFECT, 1),
        number=min(one.value for one in found),
        said=(
            f"of the spread of the {WORDS} most frequent tokens in three components "
            f"{own.mean():.3f} lies between them in {FULL}, mean over layers; that is "
            f"{describe(found, ABLATED)} times as much as there; above {EFFECT:g} was asked for in "
            "each"
        ),
        source="pangu23, section 5.2, Figure 5",
        unit=seeds(parts),
    )


def judge_along(found: np.ndarray, called: str, seed: int, claim: str = ALONG) -> StudyVerdict:
    """Judge the first component of a Llama that was trained longer, or of a model of a user."""
    layer = int(found[:, 1:, FIRST].mean(0).argmax()) + 1
    share = bootstrap(found[:, layer, FIRST], np.mean, seed, comparisons=found.shape[1] - 1)
    return StudyVerdict(
        scale=BUILT_IN,
        claim=claim,
        word=above(share, AXIS),
        number=share.value,
        said=f"in {called} the first component holds {share} of the variance behind "
        f"block {layer}, where it holds most (mean of {len(found)} draws); above {AXIS:g} was "
        "asked for",
        source="Own, after pangu23, section 5.2",
    )


def judge_outlying(found: np.ndarray, called: str, seed: int) -> StudyVerdict:
    """Judge how much of the first component the first token accounts for."""
    quotient = found[:, 1:, KEPT] / found[:, 1:, FIRST]
    layer = int(quotient.mean(0).argmax())
    ratio = bootstrap(quotient[:, layer], np.mean, seed, comparisons=quotient.shape[1])
    return StudyVerdict(
        scale=BUILT_IN,
        claim="Tokens at the beginning are outliers, which would take the first direction.",
        word=above(ratio, OUTLIER),
        number=ratio.value,
        said=f"with the first token of each passage the first component of {called} "
        f"holds {ratio} times as much behind block {layer + 1}, where it matters most; above "
        f"{OUTLIER:g} was asked for",
        source="pangu23, section 5.2",
    )


def rows(parts: small_models.Parts) -> list[dict[str, Any]]:
    """Return the rows of every seed of every twin, layer by layer."""
    return [
        {"model": f"{arm}, twin", "seed": seed, "layer": layer, **_name_columns(one)}
        for arm, part in parts.items()
        for seed, layers in enumerate(part["layers"])
        for layer, one in enumerate(layers)
    ]


def rows_of(built: Mapping[str, np.ndarray]) -> list[dict[str, Any]]:
    """Return the rows of a built-in model, averaged over draws."""
    return [
        {"model": name, "seed": -1, "layer": layer, **_name_columns(one)}
        for name, found in built.items()
        for layer, one in enumerate(found.mean(0))
    ]


def _name_columns(values: np.ndarray) -> dict[str, float]:
    return dict(zip(COLUMNS, values.tolist(), strict=True))


STUDY = Study(
    name="features-pca",
    title="Principal components of features",
    source="pangu23, section 5.2, Figure 5",
    claim="PanGu-pi has the most diverse feature space: the first three components hold less of "
    "its variance than without one of its modules, or of a Llama's.",
    cost="8 minutes",
    draws=60,
    models=builtin.NAMES,
    passage=TOKENS,
    unit=f"sets of {PASSAGES}",
    run=run,
    fast={"draws": 12},
    **study_options("features-pca"),
    inputs=small_models.readings,
)
