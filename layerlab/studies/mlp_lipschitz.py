"""The Lipschitz constant of the feed-forward against rank collapse: dose and response."""

from collections.abc import Collection, Mapping
from threading import Lock
from typing import Any

import numpy as np
import torch
from torch import Tensor

from layerlab import builtin
from layerlab.studies.excerpt import excerpts, overlap, patient
from layerlab.studies.picture import Curve, curves
from layerlab.studies.statistic import Interval, line, resampled, summary, table
from layerlab.studies.study import Outcome, Picture, Study, Verdict, Word
from layerlab.studies.work import Arrays, Draw, Work

TOKENS, WIDTH, INNER = 32, 16, 64
# Without a mask nothing is left to compare after more layers.
DEPTHS = {False: 2, True: 6}
# What the weights behind the activation are multiplied by.
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
# A trained model's feed-forward is scaled for one pass at a time.
_ALONE = Lock()


def stack(draw: Draw, kind: str, causal: bool) -> dict[str, Tensor]:
    """One batch: the relative residual after some layers, and what the feed-forward can stretch.

    X <- f(A X V) with f(y) = dose relu(y W_1) W_2, f(y) + y where a skip stands around it; the same
    matrices for every dose.
    """
    from layerlab.measures.diversity import relative_residual
    from layerlab.measures.gain import spectral_bound

    start = draw.normal(TOKENS, WIDTH)
    layers = [_matrices(draw) for _ in range(DEPTHS[causal])]
    bound = torch.stack([spectral_bound(m["inner"]) * spectral_bound(m["outer"]) for m in layers])
    found = []
    for dose in DOSES:
        stream = start
        for matrices in layers:
            stream = layer(stream, matrices, dose=dose, kind=kind, causal=causal)
        found.append(torch.stack([relative_residual(one) for one in stream]))
    return {"residual": torch.stack(found, 1), "lipschitz": bound.amax(0)}


def _matrices(draw: Draw) -> dict[str, Tensor]:
    """Random maps that keep the size of what they are given."""
    return {
        "form": draw.normal(WIDTH, WIDTH) @ draw.normal(WIDTH, WIDTH) / WIDTH**1.5,
        "value": torch.linalg.qr(draw.normal(WIDTH, WIDTH)).Q,
        "inner": draw.normal(WIDTH, INNER, deviation=(2 / WIDTH) ** 0.5),
        "outer": draw.normal(INNER, WIDTH, deviation=INNER**-0.5),
    }


def layer(
    stream: Tensor, matrices: Mapping[str, Tensor], *, dose: float, kind: str, causal: bool
) -> Tensor:
    """One layer without a skip around attention."""
    read = stream
    if kind != PLAIN:
        read = stream / stream.square().mean(-1, keepdim=True).sqrt()
    scores = read @ matrices["form"] @ read.mT
    if causal:
        past = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
        scores = scores.masked_fill(~past, -torch.inf)
    mixed = torch.softmax(scores, -1) @ read @ matrices["value"]
    left = dose * torch.relu(mixed @ matrices["inner"]) @ matrices["outer"]
    return mixed + left if kind == BESIDE else left


def scaled(draw: Draw, name: str) -> dict[str, Tensor]:
    """One batch: the relative residual behind the last block, by dose, passage by passage."""
    ids = excerpts(draw, name, PASSAGE)
    return {"residual": torch.stack([_dosed(name, ids, dose) for dose in TRAINED_DOSES], 1)}


def _dosed(name: str, ids: Tensor, dose: float) -> Tensor:
    from layerlab.measures.anatomy import first_tensor
    from layerlab.measures.diversity import relative_residual

    subject: Any = patient(name)
    kept: list[Tensor] = []

    def keep(module: Any, given: Any, output: Any) -> None:
        kept.append(first_tensor(output))

    with _ALONE, torch.no_grad():
        hooks = [
            block.mlp.register_forward_hook(lambda _, given, output: dose * output)
            for block in subject.stack.blocks
        ]
        hooks.append(subject.stack.blocks[-1].register_forward_hook(keep))
        try:
            subject.model(ids, use_cache=False)
        finally:
            for hook in hooks:
                hook.remove()
    return torch.stack([relative_residual(stream) for stream in kept[0]])


def run(work: Work) -> Outcome:
    """Compute, judge and draw."""
    cases = [(kind, causal) for kind in LABELS for causal in (False, True)]
    gathered = work.gather(stack, [{"kind": kind, "causal": causal} for kind, causal in cases])
    parts = dict(zip(cases, gathered, strict=True))
    passages = work.gather(scaled, [{"name": name} for name in builtin.NAMES], batch=32)
    models = {n: one["residual"] for n, one in zip(builtin.NAMES, passages, strict=True)}
    rows = [
        summary(found["residual"][:, place], {"stack": _label(case), "dose": dose})
        for case, found in parts.items()
        for place, dose in enumerate(DOSES)
    ]
    rows += [
        summary(found[:, place], {"stack": name, "dose": dose})
        for name, found in models.items()
        for place, dose in enumerate(TRAINED_DOSES)
    ]
    return Outcome(
        verdicts=(
            slows(parts, [(PLAIN, False)], STUDY.claim, work.seed),
            slows(parts, [(PLAIN, True)], "The same holds under a causal mask.", work.seed),
            slows(
                parts,
                [(NORMED, False), (NORMED, True)],
                "The same holds where a norm stands before attention.",
                work.seed,
            ),
            slows(
                parts,
                [(BESIDE, False), (BESIDE, True)],
                "The same holds where the feed-forward has a skip of its own.",
                work.seed,
            ),
            trained(models, work.seed),
        ),
        frames={"residual": table(rows)},
        pictures=(drawn_stacks(parts), drawn_models(models)),
        remarks=(
            f"Random stacks: {DEPTHS[True]} layers with a causal mask and {DEPTHS[False]} without "
            f"one, of attention and a ReLU feed-forward, {TOKENS} tokens of width {WIDTH}, {INNER} "
            "hidden features, one head, no skip around attention. The "
            "dose multiplies the matrix behind the activation, and so the Lipschitz constant; all "
            "else stays. At dose 1 the product of the two spectral norms is "
            f"{np.median(parts[PLAIN, False]['lipschitz']):.3g}.",
            "A claim about more or less is judged by its direction: above 0 powers of ten per "
            "doubling is slower collapse, and what float64 leaves of 0 is 0. How much it is stands "
            "beside it.",
            f"In the picture, residuals below {SHOWN:g} stand at {SHOWN:g}. "
            "The relative residual is the share of the features that differs between tokens: it "
            "does not grow when all features do.",
            f"Built-in models keep their skips; passages of {PASSAGE} tokens. {overlap(PASSAGE)}",
        ),
    )


def _label(case: tuple[str, bool]) -> str:
    kind, causal = case
    return f"{LABELS[kind]}, {'causal mask' if causal else 'no mask'}"


def response(residuals: np.ndarray, doses: tuple[float, ...]) -> np.ndarray:
    """Powers of ten that the residual of each draw gains with each doubling of the dose."""
    return np.array([line(np.log2(doses), np.log10(one)).slope for one in residuals.clip(FLOOR)])


def _slope(residuals: np.ndarray, doses: tuple[float, ...], seed: int) -> Interval:
    return resampled(response(residuals, doses), lambda draws: float(np.median(draws)), seed)


def _told(slope: Interval) -> str:
    return "0 up to rounding" if max(slope.high, -slope.low) < ROUNDING else f"{slope}"


def _word(slopes: Collection[Interval]) -> Word:
    if all(one.low > ROUNDING for one in slopes):
        return "holds"
    return "fails" if all(one.high < ROUNDING for one in slopes) else "not decided"


def slows(
    parts: Mapping[tuple[str, bool], Arrays],
    cases: list[tuple[str, bool]],
    claim: str,
    seed: int,
) -> Verdict:
    """The response of some stacks to the dose."""
    found = {case: _slope(parts[case]["residual"], DOSES, seed) for case in cases}
    told = [_ends(slope, parts, case) for case, slope in found.items()]
    return Verdict(
        claim=claim,
        word=_word(found.values()),
        number=found[cases[-1]].value,
        said=f"{LABELS[cases[0][0]]}: with each doubling of the constant the relative residual "
        f"gains, in powers of ten, {'; '.join(told)}; above 0, which is slower collapse, was "
        f"asked for ({len(parts[cases[0]]['residual'])} draws)",
        source="" if claim == STUDY.claim else "Own, after spectral25, section 1.3",
    )


def _ends(slope: Interval, parts: Mapping[tuple[str, bool], Arrays], case: tuple[str, bool]) -> str:
    first, last = np.median(parts[case]["residual"][:, [0, -1]], 0)
    mask = "with a causal mask" if case[1] else "without a mask"
    return (
        f"{_told(slope)}, {mask}, where it goes from {first:.2g} to {last:.2g} over doses of "
        f"{DOSES[0]:g} to {DOSES[-1]:g}"
    )


def trained(models: Mapping[str, np.ndarray], seed: int) -> Verdict:
    """The same dose for every feed-forward of a trained model, below its own size and above."""
    usual = TRAINED_DOSES.index(1.0)
    below = {
        n: _slope(one[:, : usual + 1], TRAINED_DOSES[: usual + 1], seed)
        for n, one in models.items()
    }
    above = {n: _slope(one[:, usual:], TRAINED_DOSES[usual:], seed) for n, one in models.items()}
    said = ", ".join(f"{below[name]} and {above[name]} in {name}" for name in models)
    middles = ", ".join(
        f"{' '.join(f'{r:.2f}' for r in np.median(one, 0))}" for one in models.values()
    )
    return Verdict(
        claim="In trained models a larger feed-forward keeps tokens further apart.",
        word=_word([*below.values(), *above.values()]),
        number=min(one.value for one in above.values()),
        said=f"powers of ten of the relative residual behind the last block, per doubling up to "
        f"dose 1 and from there on: {said}; above 0 was asked for in both. It saturates: at doses "
        f"{' '.join(f'{dose:g}' for dose in TRAINED_DOSES)} it is {middles} (median of "
        f"{len(models['pre-norm'])} passages)",
        source="Own, after spectral25, section 1.3",
    )


def drawn_stacks(parts: Mapping[tuple[str, bool], Arrays]) -> Picture:
    """Random stacks over the dose; what is below the picture's foot is drawn there."""
    lines = [
        _curve(
            _label((kind, causal)),
            list(DOSES),
            found["residual"].clip(SHOWN),
            kind=list(LABELS).index(kind),
            style="solid" if causal else "dash",
        )
        for (kind, causal), found in parts.items()
    ]
    depths = f"{DEPTHS[True]} layers, {DEPTHS[False]} without a mask"
    title = f"Distance to rank one after {depths} (median, 5 to 95 %)"
    x = "factor on the feed-forward's Lipschitz constant"
    return curves("stacks", title, lines, x=x, y="relative residual", log="xy")


def drawn_models(models: Mapping[str, np.ndarray]) -> Picture:
    """Trained models over the dose."""
    lines = [
        _curve(name, list(TRAINED_DOSES), found, kind=kind, style="solid")
        for kind, (name, found) in enumerate(models.items())
    ]
    title = "Distance to rank one behind the last block (median, 5 to 95 %)"
    x = "factor on the feed-forward of a trained model"
    return curves("models", title, lines, x=x, y="relative residual", log="x")


def _curve(name: str, x: list[float], found: np.ndarray, *, kind: int, style: str) -> Curve:
    low, middle, high = np.percentile(found.clip(FLOOR), [5, 50, 95], axis=0).tolist()
    return Curve(name=name, x=x, y=middle, low=low, high=high, kind=kind, style=style)


STUDY = Study(
    name="mlp-lipschitz",
    title="Feed-forward's Lipschitz constant and collapse",
    source="spectral25, section 1.3",
    claim="Without mask and norms, the larger the Lipschitz constant of the feed-forward, the more "
    "it slows rank collapse.",
    cost="30 seconds",
    draws=500,
    run=run,
    fast={"draws": 48},
)
STUDIES = (STUDY,)
