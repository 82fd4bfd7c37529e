"""The saliency case of pangu23 over many texts: a name comes back, and what does its end hang on?

Predicted: the built-in models look back at the name; twins as small as these do not tell apart.
"""

from collections.abc import Mapping
from dataclasses import replace
from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from layerlab import builtin
from layerlab.known_options import study_options
from layerlab.report.figures.export import plain
from layerlab.report.views.text import token
from layerlab.studies.engine.pictures import Curve, curves, gap, gaps
from layerlab.studies.engine.sampling import Arrays, Sampler, StudyContext, digest
from layerlab.studies.engine.scale import BUILT_IN, count_models
from layerlab.studies.engine.statistics import Interval, bootstrap, bootstrap_each, table
from layerlab.studies.engine.study import Outcome, Picture, Study, StudyVerdict, Word
from layerlab.studies.engine.verdict import above, combine, each
from layerlab.studies.pangu23.trained.saliency_texts import NAMES, STORIES, case, texts
from layerlab.studies.support import small_models
from layerlab.studies.support.passages import get_model

if TYPE_CHECKING:
    from layerlab.loading.model import LoadedModel

FULL, PLAIN = "pangu-pi", small_models.PLAIN
MODELS = builtin.NAMES
# A tenth more or less is what a reader of the heat map would not see.
EFFECT = 1.1
# Nats of the logarithm of a probability.
SURER = 0.1
# Of the mean cosine between tokens.
ISOTROPY = 0.02
# Who knows that the end of a name is due, and not of which, is right once in so many texts.
CHANCE = 1 / len(NAMES)
PICTURED = (
    "The first text, token by token, in every model and the first pair of twins; its name in bold"
)
ALONE = "The first text, token by token; its name in bold"
SMALL = "Models of so few updates decide nothing."
LIFT, SURE, RIGHT, COSINE = range(4)
QUANTITIES = ("lift", "log probability", "right", "cosine")
ABOUT = (
    "A name comes three times; all of its last coming but the end is given, and the end is "
    "asked about. Lift is the share of |d logit / d feature|, summed over channels and in "
    "the mean over layers, that falls on the tokens of its first two comings, over their "
    "share of the tokens: at 1 they are looked at as any other. What has come of the last "
    "name is left out. Tokens that are near weigh more than others in any model, and the "
    "name is not near."
)
_ALONE = Lock()


def look_back(subject: "LoadedModel", text: str, name: str) -> tuple[Tensor, Tensor]:
    """Return the quantities of one text, and the saliency share of every earlier token."""
    from layerlab.measures.quantities.saliency import saliency

    asked, places, last = case(subject, text, name)
    with _ALONE:
        found = saliency(subject, asked, bins=1)
    # Behind the last block nothing but the token itself has a gradient.
    layers = [found.layers[layer].scores for layer in sorted(found.layers)]
    shares = torch.stack([one["l1"][:last] / one["l1"][:last].sum() for one in layers[:-1]]).mean(0)
    cosine = torch.stack([one["cosine"] for one in layers[1:]]).mean()
    chances = found.logits.double().log_softmax(0)
    lift = shares[places].sum() * last / len(places)
    right = (chances.argmax() == asked.target[0]).double()
    quantities = torch.stack([lift, chances[asked.target[0]], right, cosine])
    padded = torch.full((small_models.CONTEXT,), torch.nan, dtype=torch.float64)
    padded[:last] = shares
    return quantities, padded


def ours(draw: Sampler, name: str) -> dict[str, Tensor]:
    """Return the quantities of a model on one batch of texts."""
    return _read(get_model(name, draw.given), draw)


def _read(subject: "LoadedModel", draw: Sampler) -> dict[str, Tensor]:
    found = [look_back(subject, *one) for one in texts(draw)]
    return {
        "quantities": torch.stack([quantities for quantities, _ in found]),
        "shares": torch.stack([shares for _, shares in found]),
    }


def _reading(context: StudyContext) -> small_models.ModelReading:
    def read(one: small_models.Twin) -> dict[str, Any]:
        draw = Sampler(count=context.draws, generator=small_models.generator_of(context, 0))
        found = _read(one.subject, draw)
        first = found["shares"][0]
        return {
            "quantities": found["quantities"].tolist(),
            "shares": first[first.isfinite()].tolist(),
        }

    def identify_texts(found: Mapping[str, Any]) -> str:
        # What lies there is judged whole, also where the fast mode draws fewer texts.
        count = len(found["quantities"]) if context.fast else context.draws
        return digest([STORIES, NAMES, context.seed, count])

    return small_models.ModelReading(
        kind="saliency",
        read=read,
        shapes={"quantities": (None, 4), "shares": (None,)},
        asked=identify_texts,
    )


def twin_quantities(
    context: StudyContext, jobs: list[small_models.ArmSeed]
) -> tuple[list[Arrays], list[str]]:
    """Return the quantities of twins, with notes for the reader."""
    found, notes = small_models.kept_readings(context, jobs, _reading(context))
    return [
        {
            "quantities": np.array(found[job]["quantities"]),
            "shares": np.array([found[job]["shares"]]),
        }
        for job in jobs
    ], notes


def run(context: StudyContext) -> Outcome:
    """Train, ask, judge and draw."""
    if context.given:
        return ask_given(context)
    seeds = range(1, context.options["seeds"] + 1)
    jobs = [(arm, seed) for arm in (FULL, PLAIN) for seed in seeds]
    # One batch, so that every model reads the same texts.
    models = context.sample_models(ours, MODELS, batch=context.draws)
    twins, notes = twin_quantities(context, jobs)
    parts = models | {
        f"{arm}, twin {seed}": one for (arm, seed), one in zip(jobs, twins, strict=True)
    }
    others = {f"{arm}, twin {seed}" for arm, seed in jobs if seed != seeds[0]}
    lying = small_models.stored_readings(context, jobs, _reading(context))
    small = context.fast and None in lying.values()  # briefly trained models answer
    pairs = [
        np.stack([twins[at]["quantities"], twins[at + len(seeds)]["quantities"]], 1)
        for at in range(len(seeds))
    ]
    return Outcome(
        verdicts=(
            judge_looks(pairs, context.seed),
            judge_surer(pairs, context.seed),
            judge_isotropic(pairs, context.seed, decides=not small),
            judge_back(models, context.seed),
        ),
        frames={"models": table(_rows(parts, context.seed))},
        pictures=(
            plot(parts, context.seed),
            plot_text({name: parts[name] for name in parts if name not in others}, first(context)),
        ),
        remarks=(
            ABOUT,
            f"The source shows one text. Here {context.draws} are drawn of {len(STORIES)} stories "
            f"and {len(NAMES)} names, {len(seeds)} pairs of twins have read {len(pairs[0])}, and a "
            "word is said where every pair says it. Intervals are over texts.",
            f"A picture of what a model looks at decides something where the model does what is "
            f"asked: its likeliest end has to be the right one in more than {CHANCE:.0%} of the "
            "texts, which is what a guess among the names would be. Where it is not, nothing is "
            "decided.",
            f"A lift of less than {EFFECT:g} is what a reader of the heat map would not see; "
            f"{SURER:g} nats make a probability a tenth larger, and {ISOTROPY:g} is about a tenth "
            "of the mean cosine of these twins.",
            small_models.ABOUT,
            *notes,
            *[SMALL] * small,
        ),
        used=small_models.FAST if small else {},
    )


def ask_given(context: StudyContext) -> Outcome:
    """Ask and judge the models that the user named, without twins beside them."""
    parts = context.sample_models(ours, batch=context.draws)
    # Others may cut the text into other tokens.
    lone = {context.models[0]: parts[context.models[0]]}
    return Outcome(
        verdicts=(judge_back(parts, context.seed),),
        frames={"models": table(_rows(parts, context.seed))},
        pictures=(plot(parts, context.seed), plot_text(lone, first(context), ALONE)),
        remarks=(
            ABOUT,
            f"{context.draws} texts are drawn of {len(STORIES)} stories and {len(NAMES)} names. "
            "Intervals are over texts. A model decides something where its likeliest end is the "
            f"right one in more than {CHANCE:.0%} of them, which is what a guess among the names "
            "would be. What the study judges of PanGu-pi is judged on twins that it trains: type "
            "it without --model.",
        ),
    )


def _quotient(pair: np.ndarray) -> float:
    upper, lower = pair.mean(0)
    return float(upper / lower)


def able(values: np.ndarray, seed: int) -> bool:
    """Return whether a model gets the end right in more texts than a guess would."""
    return bootstrap(values[:, RIGHT], np.mean, seed).low > CHANCE


def _is_asked(pairs: list[np.ndarray], sides: tuple[int, ...], seed: int) -> bool:
    return all(able(pair[:, side], seed) for pair in pairs for side in sides)


def pair_words(found: list[Interval], asked: float, neutral: float) -> Word:
    """Combine the verdicts of all pairs of twins."""
    return combine(above(one, asked, neutral) for one in found)


def describe_unit(pairs: list[np.ndarray]) -> str:
    """Describe the unit of the verdicts on twins."""
    return f"{len(pairs)} pairs of twins, {len(pairs[0])} texts each"


def _describe(found: list[Interval]) -> str:
    return ", ".join(f"{one}" for one in found)


def _right(pairs: list[np.ndarray]) -> str:
    shares = [float(np.mean([pair[:, side, RIGHT] for pair in pairs])) for side in (0, 1)]
    return (
        f"the likeliest end is the right one in {shares[0]:.0%} of the texts, and in "
        f"{shares[1]:.0%} without them"
    )


def judge_looks(pairs: list[np.ndarray], seed: int) -> StudyVerdict:
    """Judge whether the name is looked at more."""
    found = [bootstrap(pair[:, :, LIFT], _quotient, seed) for pair in pairs]
    lifts = [float(np.mean([pair[:, side, LIFT] for pair in pairs])) for side in (0, 1)]
    word = pair_words(found, EFFECT, 1) if _is_asked(pairs, (0, 1), seed) else "not decided"
    return StudyVerdict(
        claim=STUDY.claim,
        word=word,
        number=float(np.mean([one.value for one in found])),
        said=f"the name has {_describe(found)} times the lift that it has in the twin without both "
        f"modules, pair by pair; above {EFFECT:g} was asked for. Lift: {lifts[0]:.2f} against "
        f"{lifts[1]:.2f}. With modules {_right(pairs)}; above {CHANCE:.0%} was asked for in every "
        "model before a picture decides",
        unit=describe_unit(pairs),
    )


def judge_surer(pairs: list[np.ndarray], seed: int) -> StudyVerdict:
    """Judge whether the name is predicted better."""
    found = [bootstrap(pair[:, 0, SURE] - pair[:, 1, SURE], np.mean, seed) for pair in pairs]
    return StudyVerdict(
        claim="With both modules the model is right about the name where without them it is wrong: "
        "the name gets a larger probability.",
        word=pair_words(found, SURER, 0) if _is_asked(pairs, (0,), seed) else "not decided",
        number=float(np.mean([one.value for one in found])),
        said=(
            f"its logarithm is larger by {_describe(found)} nats, pair by pair; above {SURER:g} "
            f"was asked for. With modules {_right(pairs)}; above {CHANCE:.0%} was asked for with "
            "them"
        ),
        source="pangu23, section 5.2, Figure 6",
        unit=describe_unit(pairs),
    )


def judge_isotropic(pairs: list[np.ndarray], seed: int, *, decides: bool = True) -> StudyVerdict:
    """Judge whether features point in more directions, which needs no name to be known."""
    found = [bootstrap(pair[:, 1, COSINE] - pair[:, 0, COSINE], np.mean, seed) for pair in pairs]
    cosines = [float(np.mean([pair[:, side, COSINE] for pair in pairs])) for side in (0, 1)]
    return StudyVerdict(
        claim="The features of PanGu-pi are more isotropic.",
        word=pair_words(found, ISOTROPY, 0) if decides else "not decided",
        number=float(np.mean([one.value for one in found])),
        said=(
            f"the mean cosine between tokens is smaller by {_describe(found)}, pair by pair; above "
            f"{ISOTROPY:g} was asked for. Cosine: {cosines[0]:.3f} against {cosines[1]:.3f}"
        ),
        source="pangu23, section 5.2, Figure 5",
        unit=describe_unit(pairs),
    )


def judge_back(parts: Mapping[str, Arrays], seed: int) -> StudyVerdict:
    """Judge whether the longer-trained models that know the name look back at all."""
    shares = {
        name: bootstrap(part["quantities"][:, RIGHT], np.mean, seed) for name, part in parts.items()
    }
    judges = [name for name, part in parts.items() if able(part["quantities"], seed)]
    lifts = {name: part["quantities"][:, LIFT] for name, part in parts.items()}
    found = bootstrap_each(lifts, np.mean, seed)
    word = each(above(found[name], EFFECT, 1) for name in judges) if judges else "not decided"
    numbers = ", ".join(
        f"none in {name}, which looks back at nothing"
        if np.isnan(one.value)
        else f"{one} in {name}"
        for name, one in found.items()
    )
    return StudyVerdict(
        scale=BUILT_IN,
        unit=f"{len(next(iter(lifts.values())))} texts, {count_models(len(lifts))}",
        claim="A trained model looks back at a name that is due again.",
        word=word,
        number=min(found[name].value for name in judges or found),
        said=f"the lift of its earlier comings is {numbers}; above {EFFECT:g} was asked for in "
        "each. The right end is the likeliest in "
        f"{', '.join(f'{one} of the texts in {name}' for name, one in shares.items())}; above "
        f"{CHANCE:.0%} was asked for before a model decides",
        source="Own, on pangu23, section 5.2",
    )


def _rows(parts: Mapping[str, Arrays], seed: int) -> list[dict[str, Any]]:
    found = []
    for name, part in parts.items():
        for column, quantity in enumerate(QUANTITIES):
            one = bootstrap(part["quantities"][:, column], np.mean, seed)
            found.append(
                {
                    "model": name,
                    "quantity": quantity,
                    "mean": one.value,
                    "low": one.low,
                    "high": one.high,
                    "texts": len(part["quantities"]),
                }
            )
    return found


def plot(parts: Mapping[str, Arrays], seed: int) -> Picture:
    """Plot the lift in every model, over texts."""
    found = {
        name: bootstrap(part["quantities"][:, LIFT], np.mean, seed) for name, part in parts.items()
    }
    return gaps(
        "lift",
        "How much the earlier comings of a name are looked at (mean of texts, 95 % interval)",
        [gap(name, one) for name, one in found.items()],
        x="saliency of a token of the name, over that of any token",
    )


def first(context: StudyContext) -> list[str]:
    """Return the tokens of the first text before its last name, those of the name in bold."""
    from layerlab.loading.token_text import token_strings

    subject = get_model(context.models[0], context.given)
    draw = Sampler(count=1, generator=small_models.generator_of(context, 0))
    asked, places, last = case(subject, *texts(draw)[0])
    tokens = [plain(token(word)) for word in token_strings(subject, asked.tokens[:last])]
    return [
        f"<b>{word}</b>" if position in places else word for position, word in enumerate(tokens)
    ]


def plot_text(parts: Mapping[str, Arrays], tokens: list[str], title: str = PICTURED) -> Picture:
    """Plot one text, token by token, in some models."""
    lines = []
    for kind, (name, part) in enumerate(parts.items()):
        shares = part["shares"][0]
        shares = shares[np.isfinite(shares)]
        places = list(range(len(shares)))
        lines.append(Curve(name=name, x=places, y=shares.tolist(), kind=kind))
    found = curves(
        "case",
        title,
        lines,
        x="token",
        y="share of the saliency, mean over layers",
        log="",
    )
    ticks = {"tickvals": list(range(len(tokens))), "ticktext": tokens, "tickangle": -90}
    axis = {**found.layout["xaxis"], **ticks, "tickfont": {"size": 10}, "automargin": True}
    return replace(found, layout={**found.layout, "xaxis": axis})


STUDY = Study(
    name="saliency-repeat",
    title="What the end of a repeated name hangs on",
    source="pangu23, section 5.2, Figure 6",
    claim="Asked for a name that came before, PanGu-pi looks at it more than a model without its "
    "two modules does.",
    cost="4 minutes",
    draws=48,
    most=len(STORIES) * len(NAMES),
    models=MODELS,
    unit="texts, 3 models",
    run=run,
    fast={"draws": 16},
    **study_options("saliency-repeat"),
    inputs=small_models.readings,
)
