"""Noise through nonlinear and linear shortcuts of pangu23: what each lets through, and keeps."""

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from layerlab.errors import NotApplicable
from layerlab.measures.quantities.diversity import diversity
from layerlab.measures.support.sublayers.activations import ACTIVATIONS
from layerlab.studies.engine.pictures import Curve, Gap, curves, gaps
from layerlab.studies.engine.sampling import Sampler, StudyContext
from layerlab.studies.engine.scale import BUILT_IN, CASES
from layerlab.studies.engine.statistics import Interval, bootstrap_each, summary, table
from layerlab.studies.engine.study import EXACT, Outcome, Picture, Study, StudyVerdict
from layerlab.studies.engine.verdict import above, below, decide, each
from layerlab.studies.support.passages import excerpts, for_each_layer, get_model, overlap

if TYPE_CHECKING:
    from layerlab.loading.model import LoadedModel

MODEL = "llama"
TOKENS = 64
WIDTH = 64
# Of noise, as a share of the diversity of the features.
LEVELS = (0.01, 0.1, 1.0, 10.0)
SMALL = LEVELS.index(0.1)
NAMES = ("gelu", "silu", "relu")
KNOWN = {one.name: one for one in ACTIVATIONS if one.name in NAMES}
# Gaussian features, or what attention reads in a layer of a trained model.
GAUSSIAN = "Gaussian"
LAYERS = (1, 4, 8)
NOISE, SIGNAL, EVEN = range(3)
COLUMNS = ("noise over that of L Z Theta", "signal over that of L Z Theta", "equality of Eq. 6")


def one(draw: Sampler, layer: int, name: str = MODEL) -> dict[str, Tensor]:
    """Return every activation's effect on features and noise, for one batch of draws."""
    width = get_model(name, draw.given).config.hidden_size if layer else WIDTH
    features = draw.normal(TOKENS, width)
    weights = draw.normal(width, width, deviation=width**-0.5)
    noise = draw.normal(TOKENS, width)
    noise -= noise.mean(1, keepdim=True)
    if layer:
        features = attention_inputs(
            get_model(name, draw.given), excerpts(draw, name, TOKENS), layer
        )
    rows = [noise_and_signal(*parts) for parts in zip(features, weights, noise, strict=True)]
    return {"gains": torch.stack(rows)}


def attention_inputs(subject: "LoadedModel", ids: Tensor, layer: int) -> Tensor:
    """Return what attention reads in one layer, passage by passage."""
    found: list[Tensor] = []

    def read(seen: Any) -> None:
        if seen.layer == layer - 1:  # 0 stands for the drawn features
            if "attention" not in seen.sublayers:
                raise NotApplicable("what an attention reads is not seen in its block")
            found.append(seen.sublayers["attention"].entered.double().cpu())

    for_each_layer(subject, ids, read)
    return torch.stack(found)


def chosen_layers(context: StudyContext) -> dict[str, dict[str, Any]]:
    """Return the features that are read: Gaussian ones, and three layers of each model.

    Of a model of another depth than the built-in one they are the first, the middle and the last.
    """
    found: dict[str, dict[str, Any]] = {GAUSSIAN: {"layer": 0}}
    if not context.given:
        return found | {f"layer {layer}": {"layer": layer} for layer in LAYERS}
    for name in context.models:
        stack = get_model(name, context.given).stack
        assert not isinstance(stack, str), stack
        # A block may have no attention.
        numbers = sorted({1 + part.block for part in stack.attentions})
        for layer in dict.fromkeys(numbers[at] for at in (0, (len(numbers) - 1) // 2, -1)):
            found[f"{name}, layer {layer}"] = {"layer": layer, "name": name}
    return found


def noise_and_signal(z: Tensor, theta: Tensor, noise: Tensor) -> Tensor:
    """Return noise, signal and the equality of Eq. 6, by activation and noise level.

    Noise and signal are relative to those of the linear path.

    The linear path is L Z Theta, as in Lemma 4, with L the Lipschitz constant of the activation.
    """
    spread = diversity(z)
    found = torch.empty(len(NAMES), len(LEVELS), len(COLUMNS), dtype=torch.float64)
    for index, level in enumerate(LEVELS):
        moved = noise * (level * spread / noise.norm())
        even = (diversity(z + moved) - spread).abs() / moved.norm()
        for row, name in enumerate(NAMES):
            kind = KNOWN[name]
            clean, dirty = kind.function(z @ theta), kind.function((z + moved) @ theta)
            found[row, index, NOISE] = diversity(dirty - clean) / (
                kind.lipschitz * diversity(moved @ theta)
            )
            found[row, index, SIGNAL] = diversity(clean) / (kind.lipschitz * diversity(z @ theta))
            found[row, index, EVEN] = even
    return found


def noise_and_bound(z: float, noise: Tensor) -> tuple[float, float]:
    """Return the noise's diversity behind relu(z + noise) and its bound, with Theta = 1."""
    start = torch.full_like(noise, z)
    change = torch.relu(start + noise) - torch.relu(start)
    return float(diversity(change)), float(noise.norm())


def run(context: StudyContext) -> Outcome:
    """Compute, judge and draw."""
    chosen = chosen_layers(context)
    parts = context.sample(one, [*chosen.values()], batch=16)
    # features -> draw x activation x level x column
    gains = {name: found["gains"] for name, found in zip(chosen, parts, strict=True)}
    rows = [
        summary(
            found[:, row, index, column],
            {"features": features, "activation": name, "noise": level, "quantity": quantity},
        )
        for features, found in gains.items()
        for row, name in enumerate(NAMES)
        for index, level in enumerate(LEVELS)
        for column, quantity in enumerate(COLUMNS)
    ]
    ratios = robustness(gains, context.seed)
    return Outcome(
        verdicts=(
            judge_strict(gains),
            judge_condition(),
            judge_usual(gains, context.seed),
            judge_robust(ratios, len(parts[0]["gains"])),
            judge_even(gains, context.seed),
        ),
        frames={"gains": table(rows)},
        pictures=plot(gains, ratios),
        remarks=(
            f"Features are {TOKENS} Gaussian tokens of width {WIDTH}, or what attention reads in "
            f"a layer of {context.describe_all()} on as many tokens of text; Theta and the noise "
            "are Gaussian, and the noise has no mean over tokens, as the source supposes.",
            overlap(TOKENS, context.given),
            "Whether a network trains better with one or the other shortcut is another question.",
        ),
    )


def judge_strict(gains: dict[str, np.ndarray]) -> StudyVerdict:
    """Judge Theorem 5 as it stands, refuted by units that stay active."""
    noise, bound = noise_and_bound(5.0, torch.tensor([[1.0], [-1.0]], dtype=torch.float64))
    drawn = np.stack([found[..., NOISE] for found in gains.values()])
    return StudyVerdict(
        scale=CASES,
        claim=STUDY.claim,
        word=decide(fails=noise >= bound),
        number=noise / bound,
        said=f"relu at z = 5 under noise of 1 and -1: {noise:.6f} against a bound of {bound:.6f}, "
        f"equal. The inequality itself holds: in {drawn.size} random cases the largest noise is "
        f"{drawn.max():.3f} of what the linear path lets through",
        unit=EXACT,
    )


def judge_condition() -> StudyVerdict:
    """Judge the condition of Theorem 5 for equality, refuted by silent units."""
    noise, bound = noise_and_bound(-5.0, torch.tensor([[1.0], [1.0]], dtype=torch.float64))
    return StudyVerdict(
        scale=CASES,
        claim="Both sides are equal if and only if the change of the shortcut has no mean over "
        "tokens.",
        word=decide(fails=noise < bound),
        number=noise / bound,
        said=f"relu at z = -5 under noise of 1: no unit changes, so its mean is zero, and the left "
        f"side is {noise:g} of a bound of {bound:.3f}; two further equalities are needed",
        source="pangu23, Theorem 5",
        unit=EXACT,
    )


def judge_usual(gains: dict[str, np.ndarray], seed: int) -> StudyVerdict:
    """Judge what is left of the strict claim on features as they are."""
    noises = {name: values[:, :, SMALL, NOISE] for name, values in gains.items()}
    found = bootstrap_each(noises, np.median, seed)
    numbers = ", ".join(f"{one} ({name})" for name, one in found.items())
    return StudyVerdict(
        claim="In the usual case a nonlinear shortcut lets less noise through than the linear one.",
        word=each(below(one, 1) for one in found.values()),
        number=max(one.value for one in found.values()),
        said=f"noise of {LEVELS[SMALL]:g} of the features' diversity: {numbers} of that behind L Z "
        "Theta, the median over activations and draws",
        source="pangu23, Lemma 4 and Theorem 5",
    )


def robustness(gains: dict[str, np.ndarray], seed: int) -> dict[tuple[str, str], Interval]:
    """Return signal over noise behind the nonlinear path, over that behind the linear one."""
    kept = {
        (features, name): found[:, row, SMALL, SIGNAL] / found[:, row, SMALL, NOISE]
        for features, found in gains.items()
        for row, name in enumerate(NAMES)
    }
    return bootstrap_each(kept, np.median, seed)


def judge_robust(ratios: dict[tuple[str, str], Interval], draws: int) -> StudyVerdict:
    """Judge whether the nonlinear path removes more noise than signal."""
    best, worst = (choose(ratios, key=lambda key: ratios[key].value) for choose in (max, min))
    return StudyVerdict(
        claim="For the diversity that it keeps, a nonlinear shortcut lets less noise through than "
        "a linear one.",
        word=each(above(one, 1) for one in ratios.values()),
        number=ratios[best].value,
        said="diversity kept over noise let through, against the linear path, is "
        f"{ratios[worst]} ({worst[1]}, {worst[0]}) to {ratios[best]} ({best[1]}, {best[0]}); above "
        f"1 the nonlinear path would be the more robust ({draws} draws, noise of "
        f"{LEVELS[SMALL]:g}; for Gaussian features and little noise, Poincare's inequality says "
        "that it cannot be)",
        source="Own, on pangu23, section 4.1",
    )


def judge_even(gains: dict[str, np.ndarray], seed: int) -> StudyVerdict:
    """Judge Equation 6 with equality, as for noise without a mean."""
    moves = {name: values[:, 0, SMALL, EVEN] for name, values in gains.items()}
    found = bootstrap_each(moves, np.median, seed, comparisons=1)
    numbers = ", ".join(f"{one} ({name})" for name, one in found.items())
    return StudyVerdict(
        claim="Noise without a mean moves the diversity of features by all of its norm.",
        word=each(above(one, 1 - 1e-9) for one in found.values()),
        number=max(one.value for one in found.values()),
        said=f"it moves it by {numbers} of its norm (median), since noise and features are at an "
        "angle; as an upper bound the equation holds",
        source="pangu23, equation 6",
    )


def plot(
    gains: dict[str, np.ndarray], ratios: dict[tuple[str, str], Interval]
) -> tuple[Picture, ...]:
    """Plot the noise by its level, and the signal that is kept."""
    lines = []
    for kind, (features, found) in enumerate(gains.items()):
        # The activations differ alike on all features.
        for row, name in enumerate(NAMES[:1] if kind else NAMES):
            lines.append(
                Curve(
                    name=f"{name}, {features}",
                    x=LEVELS,
                    y=[float(n) for n in np.median(found[:, row, :, NOISE], axis=0)],
                    kind=kind,
                    style=("solid", "dash", "dot")[row],
                )
            )
    differences = [
        Gap(name=f"{name}, {features}", middle=one.value - 1, low=one.low - 1, high=one.high - 1)
        for (features, name), one in ratios.items()
    ]
    return (
        curves(
            "noise",
            "Noise behind the nonlinear path, over that behind L Z Theta (median)",
            lines,
            x="norm of the noise, over the diversity of the features",
            y="ratio of noise diversities",
            log="x",
        ),
        gaps(
            "kept",
            "Diversity kept for the noise let through, against the linear path; right is better",
            differences,
            x="signal over noise, relative to the linear path, less 1",
        ),
    )


STUDY = Study(
    name="shortcut-noise",
    title="Noise through nonlinear shortcuts",
    source="pangu23, Theorem 5",
    claim="The noise diversity of a nonlinear shortcut is strictly below L ||Theta|| ||noise||, "
    "the bound of the linear one.",
    cost="30 seconds",
    draws=500,
    models=(MODEL,),
    passage=TOKENS,
    attention=True,
    scale=f"features of {BUILT_IN}, and Gaussian ones",
    run=run,
    fast={"draws": 12},
)
