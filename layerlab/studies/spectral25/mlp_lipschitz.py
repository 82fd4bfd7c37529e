"""The Lipschitz constant of the feed-forward against rank collapse: dose and response."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from layerlab import builtin
from layerlab.errors import NotApplicable
from layerlab.records.layer_names import EMBEDDING
from layerlab.studies.engine.pictures import Curve, band, curves
from layerlab.studies.engine.sampling import Arrays, Sampler, StudyContext
from layerlab.studies.engine.scale import BUILT_IN, random_networks
from layerlab.studies.engine.statistics import Interval, bootstrap, line, summary, table
from layerlab.studies.engine.study import Outcome, Picture, Study, StudyVerdict
from layerlab.studies.engine.verdict import above, each
from layerlab.studies.support.passages import (
    ALONE,
    PASSAGES,
    excerpts,
    for_each_layer,
    get_model,
    overlap,
)
from layerlab.system.hooks import temporary_hooks

if TYPE_CHECKING:
    from layerlab.loading.model import LoadedModel
    from layerlab.observe.tracing.ablation import BlockParts
    from layerlab.observe.tracing.records import Layer

TOKENS, WIDTH, INNER = 32, 16, 64
# Without a mask nothing is left to compare after more layers.
DEPTHS = {False: 2, True: 6}
# What the weights in front of the activation are multiplied by: its steepness.
DOSES = (0.25, 0.5, 1.0, 2.0, 4.0)
PLAIN, NORMED, BESIDE = "plain", "normed", "beside"
LABELS = {
    PLAIN: "without norms",
    NORMED: "norm before attention",
    BESIDE: "norm, and a skip around feed-forward",
}
TRAINED_DOSES = (0.25, 0.5, 1.0, 2.0, 4.0)
PASSAGE = 64
# Of a slope: what float64 leaves where nothing changes.
ROUNDING = 1e-9
# Of float64: tokens this near to each other cannot be told apart.
FLOOR = 1e-16
SHOWN = 1e-6


def stack(draw: Sampler, kind: str, causal: bool) -> dict[str, Tensor]:
    """Return, for one batch, the residual after some layers and the feed-forwards' constant.

    X <- f(A X V), f(y) + y where a skip stands around it; the same matrices for every dose. The
    residual is relative. The constant is the geometric mean over layers, draw x dose.
    """
    from layerlab.measures.quantities.diversity import relative_residual

    start = draw.normal(TOKENS, WIDTH)
    layers = [_matrices(draw) for _ in range(DEPTHS[causal])]
    found, constants = [], []
    for dose in DOSES:
        stream, logs = start, torch.zeros(draw.count, dtype=torch.float64)
        for matrices in layers:
            mixed = attend(stream, matrices, kind=kind, causal=causal)
            left, constant = feed(mixed, matrices, dose)
            stream = mixed + left if kind == BESIDE else left
            logs = logs + constant.log() / len(layers)
        found.append(torch.stack([relative_residual(one) for one in stream]))
        constants.append(logs.exp())
    return {"residual": torch.stack(found, 1), "lipschitz": torch.stack(constants, 1)}


def _matrices(draw: Sampler) -> dict[str, Tensor]:
    """Return random maps that preserve the size of their input."""
    return {
        "form": draw.normal(WIDTH, WIDTH) @ draw.normal(WIDTH, WIDTH) / WIDTH**1.5,
        "value": torch.linalg.qr(draw.normal(WIDTH, WIDTH)).Q,
        "inner": draw.normal(WIDTH, INNER, deviation=WIDTH**-0.5),
        "outer": draw.normal(INNER, WIDTH, deviation=INNER**-0.5),
    }


def _size(stream: Tensor) -> Tensor:
    """Return the root mean square of all entries, one number for each draw."""
    return stream.square().mean((1, 2), keepdim=True).sqrt()


def attend(stream: Tensor, matrices: Mapping[str, Tensor], *, kind: str, causal: bool) -> Tensor:
    """Apply attention without a skip; scores are held at one size, whatever the stream's."""
    length = _size(stream) if kind == PLAIN else stream.square().mean(-1, keepdim=True).sqrt()
    read = stream / length
    scores = read @ matrices["form"] @ read.mT
    if causal:
        past = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
        scores = scores.masked_fill(~past, -torch.inf)
    return torch.softmax(scores, -1) @ read @ matrices["value"]


def feed(mixed: Tensor, matrices: Mapping[str, Tensor], dose: float) -> tuple[Tensor, Tensor]:
    """Apply f(y) = c tanh(dose y W_1) W_2 at the size of y, and return its constant too.

    y is taken at size 1, and c is one number for each draw that gives f(y) the size of y, so that
    the Lipschitz constant is at most c dose ||W_1|| ||W_2||.
    """
    from layerlab.measures.support.sublayers.sublayer_bounds import spectral_bound

    size = _size(mixed)
    left = torch.tanh(dose * (mixed / size) @ matrices["inner"]) @ matrices["outer"]
    factor = 1 / _size(left)
    bound = spectral_bound(matrices["inner"]) * spectral_bound(matrices["outer"])
    return size * factor * left, dose * bound * factor[:, 0, 0]


def residual_by_dose(draw: Sampler, name: str) -> dict[str, Tensor]:
    """Return the relative residual behind the last block, by dose, for one batch."""
    ids = excerpts(draw, name, PASSAGE)
    subject = get_model(name, draw.given)
    with ALONE, torch.no_grad():
        blocks = find_feedforwards(subject, ids[:1])
        rows = [residual_at(subject, blocks, ids, dose) for dose in TRAINED_DOSES]
    return {"residual": torch.stack(rows, 1)}


def find_feedforwards(subject: "LoadedModel", ids: Tensor) -> list["BlockParts"]:
    """Return the parts of all blocks, each with a feed-forward that is seen to join the stream.

    Raises:
        NotApplicable: some block has none.
    """
    from layerlab.observe.tracing.ablation import find_parts

    assert not isinstance(subject.stack, str), subject.stack
    stack = subject.stack
    found: dict[int, BlockParts] = {}

    def read(layer: "Layer") -> None:
        if layer.layer != EMBEDDING:
            found[layer.layer] = find_parts(stack, layer)

    for_each_layer(subject, ids, read)
    for block in range(len(stack.blocks)):
        parts = found.get(block)
        if parts is None or "ffn" in parts.refused:
            why = "it passes on no features" if parts is None else parts.refused["ffn"]
            raise NotApplicable(f"the feed-forward of layer {block} cannot be scaled alone: {why}")
    return list(found.values())


def residual_at(
    subject: "LoadedModel", blocks: Sequence["BlockParts"], ids: Tensor, dose: float
) -> Tensor:
    """Return the relative residual with what each feed-forward adds to the stream scaled."""
    from layerlab.measures.quantities.diversity import relative_residual
    from layerlab.observe.architecture.structure import first_tensor
    from layerlab.observe.tracing.ablation import touching

    assert not isinstance(subject.stack, str), subject.stack
    kept: list[Tensor] = []

    def keep(module: Any, given: Any, output: Any) -> None:
        kept.append(first_tensor(output))

    def scale(parts: "BlockParts", component: str, added: Tensor) -> Sequence[int]:
        added.mul_(dose)
        return range(len(added))

    hooks = [subject.stack.blocks[-1].register_forward_hook(keep)]
    with temporary_hooks(hooks), touching(subject.stack, blocks, ["ffn"], scale, len(ids)):
        subject.model(ids.to(subject.device), use_cache=False)
    return torch.stack([relative_residual(stream) for stream in kept[0]])


def run(context: StudyContext) -> Outcome:
    """Compute, judge and draw."""
    cases = [(kind, causal) for kind in LABELS for causal in (False, True)]
    gathered = context.sample(stack, [{"kind": kind, "causal": causal} for kind, causal in cases])
    parts = dict(zip(cases, gathered, strict=True))
    passages = context.sample_models(residual_by_dose, batch=32)
    models = {name: one["residual"] for name, one in passages.items()}
    rows = [
        summary(found["residual"][:, index], {"stack": _label(case), "dose": dose})
        for case, found in parts.items()
        for index, dose in enumerate(DOSES)
    ]
    rows += [
        summary(found[:, index], {"stack": name, "dose": dose})
        for name, found in models.items()
        for index, dose in enumerate(TRAINED_DOSES)
    ]
    return Outcome(
        verdicts=(
            judge_slows(parts, [(PLAIN, False)], STUDY.claim, context.seed),
            judge_slows(
                parts, [(PLAIN, True)], "The same holds under a causal mask.", context.seed
            ),
            judge_slows(
                parts,
                [(NORMED, False), (NORMED, True)],
                "The same holds where a norm stands before attention.",
                context.seed,
            ),
            judge_slows(
                parts,
                [(BESIDE, False), (BESIDE, True)],
                "The same holds where the feed-forward has a skip of its own.",
                context.seed,
            ),
            judge_trained(models, context.seed),
        ),
        frames={"residual": table(rows)},
        pictures=(plot_stacks(parts), plot_models(models)),
        remarks=(
            f"Random stacks: {DEPTHS[True]} layers with a causal mask and {DEPTHS[False]} without "
            f"one, of attention and a feed-forward with tanh, {TOKENS} tokens of width {WIDTH}, "
            f"{INNER} hidden features, one head, no skip around attention. The dose is the "
            "steepness of the activation. What a feed-forward gives is held at the size of what it "
            "is given, and scores at theirs, so that the Lipschitz constant changes and neither "
            "the size of the stream nor the sharpness of the next attention.",
            "A factor behind a ReLU would not do: relu(c y) = c relu(y), so that it scales the "
            "stream and the scores of the next layer, and with scores held nothing is left of it.",
            "The constant is a bound, the product of the spectral norms, the steepness and the "
            "factor that holds the size; geometric mean over layers.",
            "A claim about more or less is judged by its direction: above 0 powers of ten per "
            "doubling is slower collapse, and what float64 leaves of 0 is 0. How much it is stands "
            "beside it.",
            f"In the picture, residuals below {SHOWN:g} stand at {SHOWN:g}. "
            "The relative residual is the share of the features that differs between tokens: it "
            "does not grow when all features do.",
            f"{'Models' if context.given else 'Built-in models'} keep their skips; passages of "
            f"{PASSAGE} tokens. {overlap(PASSAGE, context.given)}",
        ),
    )


def _label(case: tuple[str, bool]) -> str:
    kind, causal = case
    return f"{LABELS[kind]}, {'causal mask' if causal else 'no mask'}"


def response(residuals: np.ndarray, constants: np.ndarray) -> np.ndarray:
    """Return the powers of ten that each draw's residual gains with each doubling."""
    pairs = zip(constants, residuals.clip(FLOOR), strict=True)
    return np.array([line(np.log2(x), np.log10(y)).slope for x, y in pairs])


def _slope(residuals: np.ndarray, constants: np.ndarray, seed: int, comparisons: int) -> Interval:
    gained = response(residuals, constants)
    return bootstrap(gained, np.median, seed, comparisons=comparisons)


def _describe(slope: Interval) -> str:
    return "0 up to rounding" if max(slope.high, -slope.low) < ROUNDING else f"{slope}"


def judge_slows(
    parts: Mapping[tuple[str, bool], Arrays],
    cases: list[tuple[str, bool]],
    claim: str,
    seed: int,
) -> StudyVerdict:
    """Judge the response of some stacks to the dose."""
    found = {
        case: _slope(parts[case]["residual"], parts[case]["lipschitz"], seed, len(cases))
        for case in cases
    }
    ends = [_ends(slope, parts, case) for case, slope in found.items()]
    return StudyVerdict(
        claim=claim,
        word=each(above(one, ROUNDING) for one in found.values()),
        number=found[cases[-1]].value,
        said=f"{LABELS[cases[0][0]]}: with each doubling of the constant the relative residual "
        f"gains, in powers of ten, {'; '.join(ends)}; above 0, which is slower collapse, was "
        f"asked for, and no size ({len(parts[cases[0]]['residual'])} draws)",
        source="" if claim == STUDY.claim else "Own, after spectral25, section 1.3",
    )


def _ends(slope: Interval, parts: Mapping[tuple[str, bool], Arrays], case: tuple[str, bool]) -> str:
    first, last = np.median(parts[case]["residual"][:, [0, -1]], 0)
    least, most = np.median(parts[case]["lipschitz"][:, [0, -1]], 0)
    mask = "with a causal mask" if case[1] else "without a mask"
    return (
        f"{_describe(slope)}, {mask}, where it goes from {first:.2g} to {last:.2g} over constants "
        f"of {least:.2g} to {most:.2g}"
    )


def judge_trained(models: Mapping[str, np.ndarray], seed: int) -> StudyVerdict:
    """Judge the response of trained models to one dose of all feed-forwards, below 1 and above."""
    usual, draws = TRAINED_DOSES.index(1.0), len(next(iter(models.values())))
    weaker, stronger = (
        {
            name: _slope(one[:, part], np.tile(TRAINED_DOSES[part], (len(one), 1)), seed, count)
            for name, one in models.items()
        }
        for part in (slice(usual + 1), slice(usual, None))
        for count in [2 * len(models)]
    )
    numbers = ", ".join(f"{weaker[name]} and {stronger[name]} in {name}" for name in models)
    least = min(one.value for one in (*weaker.values(), *stronger.values()))
    middles = ", ".join(
        f"{' '.join(f'{r:.2f}' for r in np.median(one, 0))}" for one in models.values()
    )
    return StudyVerdict(
        scale=BUILT_IN,
        claim="In trained models a larger feed-forward keeps tokens further apart.",
        word=each(above(one, ROUNDING) for one in (*weaker.values(), *stronger.values())),
        number=least,
        said=f"powers of ten of the relative residual behind the last block, per doubling up to "
        f"dose 1 and from there on: {numbers}; above 0 was asked for in both, and no size: the "
        f"least is {10**least - 1:.1%} a doubling. At doses "
        f"{' '.join(f'{dose:g}' for dose in TRAINED_DOSES)} it is {middles} (median of "
        f"{draws} passages)",
        source="Own, after spectral25, section 1.3",
        unit=f"{draws} {PASSAGES}",
    )


def plot_stacks(parts: Mapping[tuple[str, bool], Arrays]) -> Picture:
    """Plot random stacks over the constant; what is below the picture's foot is drawn there."""
    lines = [
        _curve(
            _label((kind, causal)),
            np.median(found["lipschitz"], 0).tolist(),
            found["residual"].clip(SHOWN),
            kind=list(LABELS).index(kind),
            style="solid" if causal else "dash",
        )
        for (kind, causal), found in parts.items()
    ]
    depths = f"{DEPTHS[True]} layers, {DEPTHS[False]} without a mask"
    title = f"Distance to rank one after {depths} (median, 5 to 95 %)"
    x = "Lipschitz constant of the feed-forward"
    return curves("stacks", title, lines, x=x, y="relative residual", log="xy")


def plot_models(models: Mapping[str, np.ndarray]) -> Picture:
    """Plot trained models over the dose."""
    lines = [
        _curve(name, list(TRAINED_DOSES), found, kind=kind, style="solid")
        for kind, (name, found) in enumerate(models.items())
    ]
    title = "Distance to rank one behind the last block (median, 5 to 95 %)"
    x = "factor on the feed-forward of a trained model"
    return curves("models", title, lines, x=x, y="relative residual", log="x")


def _curve(name: str, x: list[float], found: np.ndarray, *, kind: int, style: str) -> Curve:
    rows = np.percentile(found.clip(FLOOR), [5, 50, 95], axis=0)
    return band(name, x, rows, kind=kind, style=style)


STUDY = Study(
    name="mlp-lipschitz",
    title="Feed-forward's Lipschitz constant and collapse",
    source="spectral25, section 1.3",
    claim="Without mask and norms, the larger the Lipschitz constant of the feed-forward, the more "
    "it slows rank collapse.",
    cost="30 seconds",
    draws=500,
    models=builtin.NAMES,
    passage=PASSAGE,
    scale=random_networks(DEPTHS[True], WIDTH),
    run=run,
    fast={"draws": 48},
)
