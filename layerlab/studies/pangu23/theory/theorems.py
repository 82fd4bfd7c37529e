"""Lemmas 1 to 4 and Theorems 1 to 9 of pangu23 on layers as they are: what holds, and how tight."""

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from layerlab import builtin
from layerlab.known_options import study_options
from layerlab.measures.quantities.diversity import diversity
from layerlab.studies.engine.pictures import Gap, gaps
from layerlab.studies.engine.sampling import Sampler, StudyContext
from layerlab.studies.engine.scale import BUILT_IN, CASES
from layerlab.studies.engine.statistics import bootstrap, maximum, table
from layerlab.studies.engine.study import EXACT, Outcome, Picture, Study, StudyVerdict
from layerlab.studies.engine.verdict import above, decide
from layerlab.studies.pangu23.theory.theorem_case import (
    CONSTANTS,
    SINGLE,
    STACKED,
    CaseLayer,
    Extra,
    parts,
    single,
    stack_statements,
)
from layerlab.studies.support.once import compute_once
from layerlab.studies.support.passages import (
    PASSAGES,
    excerpts,
    for_each_layer,
    get_model,
    overlap,
    tokens_of,
)

if TYPE_CHECKING:
    from layerlab.loading.model import LoadedModel
    from layerlab.studies.engine.given_models import GivenModel

# Float64 sums of a few thousand terms are that near.
ROUNDING = 1e-9
# Where the usual case is a hundredth of the bound, the bound says nothing about it.
VACUOUS = 0.01
EQUALITY = "Lemma 2, difference from equality"
PRINTED = "Theorem 1, as printed"
GATED = "Theorem 3, gated feed-forward"
FAR = "Theorem 3, gated, features x 1000"
SMALL = "root lambda H, s and the output's norm"
CaseReadings = dict[str, dict[str, np.ndarray]]


def one(draw: Sampler, model: str, trained: bool, tokens: int) -> dict[str, Tensor]:
    """Evaluate every statement on every layer, and on the stack, for one batch."""
    ids = excerpts(draw if trained else draw.built_in, model, tokens)
    if trained:
        subject = get_model(model, draw.given)
        layers = trace_layers(model, tokens, draw.given.get(model))
    else:
        subject = twin(model, int(torch.randint(2**31, (), generator=draw.generator)))
        layers = parts(subject, ids[0])
    inner, width = layers[0].feedforward.inward.shape
    theta = draw.normal(width, width, deviation=width**-0.5)
    term, noise = draw.normal(width, inner), draw.normal(tokens, width)
    noise -= noise.mean(1, keepdim=True)
    theta, term, noise = (one.to(subject.device) for one in (theta, term, noise))
    extras = [Extra(theta=a, term=b, noise=c) for a, b, c in zip(theta, term, noise, strict=True)]
    found = [state_all(subject, layers, *pair) for pair in zip(ids, extras, strict=True)]
    return {
        "single": torch.stack([layer for layer, _ in found]),
        "stacked": torch.stack([stack for _, stack in found]),
    }


@compute_once
def trace_layers(name: str, tokens: int, own: "GivenModel | None" = None) -> list[CaseLayer]:
    """Trace the layers of a model."""
    given = {} if own is None else {name: own}
    return parts(get_model(name, given), tokens_of(name, given)[:tokens])


def twin(name: str, seed: int) -> "LoadedModel":
    """Return a built-in model as it was before its training, from another seed."""
    from layerlab.loading.model import load_model
    from layerlab.studies.support.builtin_architectures import BuiltinShape, build

    return load_model(build(name, BuiltinShape(seed=seed)))


def state_all(
    subject: "LoadedModel", layers: list[CaseLayer], ids: Tensor, extra: Extra
) -> tuple[Tensor, Tensor]:
    """Evaluate every statement on one passage."""
    rows: list[Tensor] = []
    starts: list[Tensor] = []

    def read(seen: Any) -> None:
        if seen.block is None:
            starts.append(seen.stream.double())
            return
        z, f = (seen.sublayers[role].entered.double() for role in ("attention", "ffn"))
        rows.append(single(layers[seen.layer], z, f, seen.entered.double(), extra))

    for_each_layer(subject, ids[None], read)
    return torch.stack(rows), stack_statements(layers, starts[0], extra)


def run(context: StudyContext) -> Outcome:
    """Compute, judge and draw."""
    cases = [
        {"model": name, "trained": trained, **context.options}
        for trained, names in ((True, context.models), (False, builtin.NAMES))
        for name in names
    ]
    gathered = context.sample(one, cases, batch=4)
    found = {
        f"{case['model']}, {'trained' if case['trained'] else 'random'}": split(part)
        for case, part in zip(cases, gathered, strict=True)
    }
    models = " and ".join(context.given) or "the built-in models"
    shape = "the built-in models'" if context.given else "their"
    if context.given:
        context.judged = {"scale": f"{BUILT_IN}, and random models of the built-in ones' shapes"}
    # Nobody says whether those of a user were trained.
    called = {name: name.removesuffix(", trained") if context.given else name for name in found}
    rows = [row for name, ratios in found.items() for row in tightness(called[name], ratios)]
    return Outcome(
        verdicts=(
            judge_printed(found, context.seed),
            judge_corrected(found),
            *([judge_gated(found, context)] if _has(found, GATED) else []),
            judge_strict(),
            judge_scales(),
            judge_ceiling(),
            judge_usual(found, context.seed),
            judge_telling(found, context.seed, "all" if context.given else "8"),
        ),
        frames={"statements": table(rows)},
        pictures=(plot(found),),
        remarks=(
            f"Features, attention and weights are those of {models} and of random models "
            f"of {shape} shape, in float64. Shortcuts, further terms and noise are random: these "
            "models have none. Noise is a tenth of the features' diversity.",
            "In depth, the layers' own maps are stacked without norms and shortcuts, as the "
            "theorems have it; models are not built so.",
            overlap(context.options["tokens"], context.given),
        ),
    )


def split(part: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Split a result by statement, draw x layer; statements in depth have one layer."""
    found = {name: part["single"][..., index] for index, name in enumerate(SINGLE)}
    deep = {name: part["stacked"][:, None, index] for index, name in enumerate(STACKED)}
    every = {**found, **deep}
    return {name: values for name, values in every.items() if not np.isnan(values).all()}


def tightness(model: str, ratios: dict[str, np.ndarray]) -> list[dict[str, Any]]:
    """Return a row per statement: how often it holds, and how near it comes to its bound."""
    rows = []
    for name, values in ratios.items():
        limit = ROUNDING if name == EQUALITY else 1 + ROUNDING
        bounded = name not in CONSTANTS
        middle, largest = float(np.median(values)), float(values.max())
        vacuous = bounded and name != EQUALITY and middle < VACUOUS
        rows.append(
            {
                "statement": name,
                "model": model,
                "kind": "observed / bound" if bounded else "constant, and how often below 1",
                "share": float((values <= limit).mean()),
                "median": middle,
                "largest": largest,
                "vacuous": vacuous,
                "cases": values.size,
            }
        )
    return rows


def _has(found: CaseReadings, name: str) -> bool:
    """Return whether some trained model has a statement."""
    return any(name in ratios and model.endswith("trained") for model, ratios in found.items())


def pool_cases(found: CaseReadings, name: str, trained: bool | None = None) -> np.ndarray:
    """Pool all cases of a statement, draw x layer of every model that has it."""
    kinds = {None: "", True: "trained", False: "random"}
    chosen = [
        ratios[name]
        for model, ratios in found.items()
        if name in ratios and model.endswith(kinds[trained])
    ]
    return np.concatenate(chosen, axis=1)


def judge_printed(found: CaseReadings, seed: int) -> StudyVerdict:
    """Judge the literal statement: Theorem 1 has a factor too many."""
    z, output = torch.eye(4, dtype=torch.float64), 0.5
    # A = I and W = I: lambda and s are 1.
    counter = float(diversity(z) / (output * diversity(z)))
    real, random = (
        bootstrap(pool_cases(found, PRINTED, trained), _share_violated, seed)
        for trained in (True, False)
    )
    largest = float(pool_cases(found, PRINTED).max())
    return StudyVerdict(
        scale=CASES,
        claim=STUDY.claim,
        word=decide(fails=counter > 1),
        number=counter,
        said="Theorem 1 has the norm of the output matrix in its bound, and not in what it bounds: "
        f"with A = W = I and a norm of {output:g} the bound is exceeded {counter:g} times. On "
        f"layers as they are the slip does not show: exceeded in {real} of the trained and "
        f"{random} of the random ones, with at most {largest:.3f} of the bound",
        unit=EXACT,
    )


def judge_corrected(found: CaseReadings) -> StudyVerdict:
    """Judge all inequalities with the slips corrected."""
    every = {
        name: pool_cases(found, name)
        for name in (*SINGLE, *STACKED)
        if name not in (*CONSTANTS, EQUALITY, PRINTED, GATED, FAR)
    }
    worst = max(every, key=lambda name: maximum(every[name]).value)
    largest = maximum(every[worst])
    apart = float(pool_cases(found, EQUALITY).max())
    return StudyVerdict(
        claim="Without that factor, as inequalities and for plain feed-forward layers, they hold.",
        word=decide(holds=largest.value <= 1 + ROUNDING and apart < ROUNDING),
        number=largest.value,
        said=f"{len(every)} inequalities in {sum(one.size for one in every.values())} cases: the "
        f"largest observed over bound is {largest} ({worst}); the equality of Lemma 2 holds to "
        f"{apart:.1e}",
        source="pangu23, Lemmas 1 to 4 and Theorems 1 to 9, corrected",
    )


def judge_gated(found: CaseReadings, context: StudyContext) -> StudyVerdict:
    """Judge Theorem 3 for the gated feed-forward of the source's own models."""
    gated = [name for name in context.given if GATED in found[f"{name}, trained"]]
    whose = f"{' and '.join(gated)}'s" if context.given else "the trained llama's"
    near, far = (maximum(pool_cases(found, name, True)) for name in (GATED, FAR))
    return StudyVerdict(
        claim="Theorem 3 covers the gated feed-forward of the source's models.",
        word=decide(holds=False, fails=far.value > 1),
        number=far.value,
        said=f"on {whose} features, made 1000 times as large, the gain of diversity is "
        f"up to {far} times L s v2 of gate and output: a product of two linear maps has no "
        f"Lipschitz constant. Behind its norm, where features are bounded, it is up to {near}",
        source="pangu23, Theorem 3 and section 5",
    )


def judge_strict() -> StudyVerdict:
    """Judge Theorem 6 as a strict inequality, on active shortcuts and silent heads."""
    z, noise = torch.full((2, 1), 5.0), torch.tensor([[1.0], [-1.0]])
    change = noise + torch.relu(z + noise) - torch.relu(z)
    ratio = float((change - change.mean(0)).norm() / (2 * noise.norm()))
    return StudyVerdict(
        scale=CASES,
        claim="Theorem 6 is strict.",
        word=decide(fails=ratio >= 1),
        number=ratio,
        said="with Theta = 1, z = 5, noise of 1 and -1 and no attention, what a relu shortcut and "
        f"the identity let through is {ratio:.6f} of the bound",
        source="pangu23, Theorem 6",
        unit=EXACT,
    )


def judge_scales() -> StudyVerdict:
    """Judge Theorem 7 for a series with scales, as the source writes the series first."""
    z = torch.tensor([[1.0], [2.0]])
    gain = float((3 * z - (3 * z).mean()).norm() / (z - z.mean()).norm())
    return StudyVerdict(
        scale=CASES,
        claim="Theorem 7 holds for the series of equation 7, whose scales its constants leave out.",
        word=decide(fails=gain > 1),
        number=gain,
        said=f"relu(3 z) on z = 1 and 2 has {gain:.3g} times the bound; with |a_i| L_i for L_i, or "
        "with the matrices of equation 9, it holds",
        source="pangu23, equation 7 and Theorem 7",
        unit=EXACT,
    )


def judge_ceiling() -> StudyVerdict:
    """Judge whether a factor above one keeps features apart."""
    z = torch.eye(4)
    left = z + (-z) + torch.relu(z @ torch.zeros(4, 4))
    return StudyVerdict(
        scale=CASES,
        claim="Since the factor of Theorem 4 is above 1, features cannot collapse.",
        word=decide(fails=float(left.norm()) == 0),
        number=float(left.norm()),
        said="with A = I, W = -I and Theta = 0 the factor is above 1 and the diversity is 0 after "
        "one layer: an upper bound on diversity prevents nothing",
        source="pangu23, section 4.1",
        unit=EXACT,
    )


def judge_usual(found: CaseReadings, seed: int) -> StudyVerdict:
    """Judge whether attention usually contracts by its constants."""
    real = bootstrap(pool_cases(found, SMALL, trained=True), _below, seed)
    random = bootstrap(pool_cases(found, SMALL, trained=False), _below, seed)
    middle = float(np.median(pool_cases(found, SMALL, trained=True)))
    return StudyVerdict(
        claim="sqrt(lambda H) s v1 is usually below 1.",
        word=above(real, 0.5),
        number=real.value,
        said=f"it is in a share of {real} of the trained layers, where more than half was asked "
        f"for, with a median of {middle:.3g}; in {random} "
        "of the random ones, whose matrices are small",
        source="pangu23, section 3",
    )


def judge_telling(found: CaseReadings, seed: int, depth: str) -> StudyVerdict:
    """Judge whether the bounds in depth are near the observed values."""
    middle = {
        name: bootstrap(pool_cases(found, name, True), np.median, seed)
        for name in STACKED
        if _has(found, name)
    }
    numbers = ", ".join(f"{one} of the bound of {name}" for name, one in middle.items())
    best = max(one.high for one in middle.values())
    return StudyVerdict(
        claim="The bounds in depth tell how diverse the features of a stack are.",
        word=decide(holds=False, fails=best < VACUOUS),
        number=max(one.value for one in middle.values()),
        said=f"after {depth} trained layers the diversity is {numbers} (median); below {VACUOUS:g} "
        "a bound is vacuous",
        source="pangu23, Theorems 2, 3, 8 and 9",
    )


def _share_violated(values: np.ndarray) -> float:
    return float((values > 1 + ROUNDING).mean())


def _below(values: np.ndarray) -> float:
    return float((values < 1).mean())


def plot(found: CaseReadings) -> Picture:
    """Plot how near every statement comes to its bound."""
    left_out = (*CONSTANTS, EQUALITY, FAR)
    names = [name for name in SINGLE if name not in left_out and _has(found, name)]
    rows = []
    for name in names:
        values = pool_cases(found, name, trained=True)
        low, middle, high = np.quantile(values, [0, 0.5, 1])
        rows.append(Gap(name=name, middle=float(middle), low=float(low), high=float(high)))
    return gaps(
        "tightness",
        "Observed over bound on trained layers (median, smallest and largest); above 1 is violated",
        rows,
        x="observed / bound",
    )


STUDY = Study(
    name="pangu-theorems",
    title="Diversity theorems on real layers",
    source="pangu23, Lemmas 1 to 4 and Theorems 1 to 9",
    claim="Lemmas 1 to 4 and Theorems 1 to 9 hold as they are printed.",
    cost="1 minute",
    draws=64,
    models=builtin.NAMES,
    passage="tokens",
    attention=True,
    scale=f"{BUILT_IN}, and the same before training",
    unit=PASSAGES,
    run=run,
    fast={"draws": 6, "tokens": 16},
    **study_options("pangu-theorems"),
)
