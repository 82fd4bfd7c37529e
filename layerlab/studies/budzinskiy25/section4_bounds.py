"""Section 4 of budzinskiy25 as a table: rounding bounds against rounding, module by module."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from layerlab.errors import NotApplicable
from layerlab.numerics.theory.error_bounds import relative
from layerlab.studies.budzinskiy25.support.perturbed_arithmetic import worst
from layerlab.studies.budzinskiy25.support.reference_transformer import Weights
from layerlab.studies.budzinskiy25.support.rounded_modules import (
    RoundedModule,
    attentions,
    norms,
    perceptron,
)
from layerlab.studies.budzinskiy25.support.scalar_arithmetic import Exact, Strict
from layerlab.studies.engine.pictures import gap, gaps
from layerlab.studies.engine.sampling import Sampler, StudyContext
from layerlab.studies.engine.scale import CASES, READ
from layerlab.studies.engine.statistics import (
    LOOKED,
    Interval,
    bootstrap,
    bootstrap_each,
    maximum,
    summary,
    table,
)
from layerlab.studies.engine.study import EXACT, Outcome, Picture, Study, StudyVerdict
from layerlab.studies.engine.verdict import above, decide
from layerlab.studies.support.passages import excerpts, for_each_layer, get_model, overlap
from layerlab.studies.support.theory_block import theory_of

TOKENS = 10
FORMATS = {"bf16": 8, "fp16": 11, "fp32": 24}
# Entries of the last row whose worst roundings are sought.
COLUMNS = (0, 5)
ROWS = (
    "Lemma 4.6",
    "Lemma 4.10",
    "Lemma 4.11",
    "Lemma 4.14",
    "Lemma 4.17",
    "Lemma 4.19",
    "Lemma 4.19, unshifted",
    "Lemma 4.21",
    "Lemma 4.21, without range",
)
NAMES = {
    "Lemma 4.6": "RMS norm",
    "Lemma 4.10": "centring",
    "Lemma 4.11": "layer norm",
    "Lemma 4.14": "perceptron",
    "Lemma 4.17": "scores",
    "Lemma 4.19": "softmax",
    "Lemma 4.19, unshifted": "softmax by the bound of the unshifted one",
    "Lemma 4.21": "attention",
    "Lemma 4.21, without range": "attention without the range of scores",
}
CORRECT = [row for row in ROWS if "," not in row]
ATTAINED = ("Lemma 4.6", "Lemma 4.10", "Lemma 4.14", "Lemma 4.17", "Lemma 4.19")
# What a bound may be off by for float64, and for what is left of second order in eight digits.
ABOVE = 1 + 1e-6
SECOND = 1.1
SMALL = 1e-9


def one(draw: Sampler, model: str) -> dict[str, Tensor]:
    """Return the errors and bounds of all modules of a drawn block, for each passage of a batch."""
    modules = list(modules_of_blocks(draw, model))
    with torch.no_grad():
        observed = torch.stack([largest_shares(module) for module in modules], 1)
        sizes = torch.stack([size(module) for module in modules], 1)
    return {
        "observed": observed,
        "sizes": sizes,
        "worst": torch.stack([beyond(module, COLUMNS) for module in modules], 1),
    }


def modules_of_blocks(draw: Sampler, model: str) -> list[RoundedModule]:
    """Return the modules of `ROWS` on the inputs and weights of drawn blocks of a model."""
    subject = get_model(model, draw.given)
    assert not isinstance(subject.stack, str), subject.stack
    ids = excerpts(draw, model, TOKENS)
    blocks = torch.randint(len(subject.stack.blocks), (draw.count,), generator=draw.generator)
    streams, inputs, matrices = list[Tensor](), list[Tensor](), list[tuple[Tensor, ...]]()

    def read(layer: Any) -> None:
        if layer.layer != blocks[layer.sequence]:
            return
        seen = theory_of(layer, subject)
        attention, feedforward = seen.attention, seen.feedforward
        if (
            attention is None
            or feedforward is None
            or seen.middle is None
            or seen.attention_input is None
        ):
            raise NotApplicable("; ".join(dict.fromkeys(seen.refused.values())))
        # What the norm of the feed-forward reads, which every model has.
        streams.append(seen.middle)
        inputs.append(seen.attention_input)
        head = attention.head(0)
        inner = feedforward.inward if feedforward.gate is None else feedforward.gate
        matrices.append((head.query, head.key, head.value, inner, feedforward.outward))

    for_each_layer(subject, ids, read)
    if len({tuple(one.shape for one in block) for block in matrices}) > 1:
        raise NotApplicable("its blocks have matrices of different sizes")
    # A few tokens, rounded one operation after the other: a GPU would wait for each.
    x, y, *parts = (
        torch.stack([one.double().cpu() for one in part])
        for part in (streams, inputs, *zip(*matrices, strict=True))
    )
    weights = Weights(query=parts[0], key=parts[1], value=parts[2], inner=parts[3], outer=parts[4])
    # Numbers of the coarsest format, so that every arithmetic computes the same function.
    coarse = Strict(min(FORMATS.values()))
    x, y = coarse.take(x).double(), coarse.take(y).double()
    weights = weights.convert(coarse).convert(Exact())
    return [*norms(x), perceptron(y, weights), *attentions(y, weights, min(FORMATS.values()))]


def largest_shares(module: RoundedModule) -> Tensor:
    """Return the largest |error| over its bound in each format, draw x format."""
    exact = module.run(Exact())
    found = []
    for digits in FORMATS.values():
        off = (module.run(Strict(digits)).double() - exact).abs()
        limit = module.limit * 2.0**-digits
        found.append(torch.where(off == 0, 0.0, off / limit).flatten(1).amax(1))
    return torch.stack(found, 1)


def size(module: RoundedModule) -> Tensor:
    """Return each draw's bound on the largest relative error of the last row, in units of u."""
    return relative(module.limit, module.run(Exact()))[:, -1]


def beyond(module: RoundedModule, columns: tuple[int, ...]) -> Tensor:
    """Return each draw's worst rounding error over its bound, the largest of some entries."""
    return (worst(module.run, columns) / module.limit[:, -1, list(columns)]).amax(1)


def adversaries() -> dict[str, float]:
    """Return the worst error over its bound where each sum's first term carries all of it."""
    found = {}
    for module in hostile():
        last = range(module.limit.shape[-1])
        found[module.row] = max(
            float(beyond(module, (column,)))
            for column in last
            if float(module.limit[0, -1, column])
        )
    return found


def hostile() -> list[RoundedModule]:
    """Return modules with inputs and weights that attain a constant, or pass a false one."""
    row = torch.full((1, 1, 6), SMALL, dtype=torch.float64)
    row[..., 0] = 1.0
    eye = torch.full((1, 6, 6), SMALL, dtype=torch.float64)
    eye[:, 0, 0] = 1.0
    alike = Weights(query=eye, key=eye, value=eye, inner=eye, outer=eye)
    apart = torch.tensor([[[3.0, 1e-3], [-3.0, 1e-14]]], dtype=torch.float64)
    two = torch.full((1, 2, 2), SMALL, dtype=torch.float64)
    two[:, 0, 0] = 1.0
    value = torch.tensor([[[1.0, SMALL], [0.0, 1.0]]], dtype=torch.float64)
    split = Weights(query=two, key=two, value=value, inner=two, outer=two)
    scores = next(one for one in attentions(row, alike) if one.name == "scores")
    rest = [one for one in attentions(apart, split) if one.name != "scores"]
    return [*norms(row), perceptron(row, alike), scores, *rest]


def run(context: StudyContext) -> Outcome:
    """Compute, judge and draw."""
    # Every scalar operation is a tensor of its own: models of a user may be wide.
    cases, batch = [{"model": name} for name in context.models], 4 if context.given else 16
    parts = context.sample(one, cases, batch=batch)
    # passage x model x row (x format)
    observed, worsts, sizes = (
        np.stack([part[name] for part in parts], axis=1) for name in ("observed", "worst", "sizes")
    )
    hostile_ = adversaries()
    rows = []
    for position, model in enumerate(context.models):
        for index, row in enumerate(ROWS):
            labels = {"model": model, "module": NAMES[row], "row": row}
            every = {
                **{
                    f"error over bound, {format}": observed[:, position, index, digit]
                    for digit, format in enumerate(FORMATS)
                },
                "worst roundings over bound": worsts[:, position, index],
                "bound on the relative error, in u": sizes[:, position, index],
            }
            rows += [summary(found, {**labels, "quantity": name}) for name, found in every.items()]
    limits = table(
        [{"module": NAMES[row], "row": row, "worst": found} for row, found in hostile_.items()]
    )
    return Outcome(
        verdicts=(
            judge_never(observed, worsts, hostile_),
            judge_unshifted(worsts, hostile_),
            judge_ranged(worsts, hostile_),
            judge_lowered(hostile_),
            judge_near(observed, context),
            judge_speaking(sizes),
        ),
        frames={"bounds": table(rows), "constructed": limits},
        pictures=(plot(observed, worsts, context.seed),),
        remarks=(
            f"Each draw is a passage of {TOKENS} tokens and one block of each model. The "
            "modules are the source's: no eps, gain, shift, bias or rotary positions, ReLU, one "
            "head, on what the block reads and with its weights (of a gated feed-forward the gate "
            "and the way out).",
            "Every scalar operation is rounded to 8, 11 or 24 digits with unlimited exponents and "
            "sums from left to right. 'Worst roundings' are not drawn: they are the largest first-"
            "order error over all roundings of at most u, from the derivative by each of them, for "
            f"{len(COLUMNS)} entries of the last token.",
            "Constants are those that can be derived where our copy of the source cannot be read "
            "(Lemmas 4.11 and 4.21); the bound of the perceptron counts no bias.",
            f"Bounds are of first order: at 8 digits, up to {SECOND:g} of one may be second order, "
            "and worst roundings, which are of first order themselves, may pass it by what "
            "float64 adds.",
            LOOKED,
            overlap(TOKENS, context.given),
        ),
    )


def _places(rows: list[str]) -> list[int]:
    return [ROWS.index(row) for row in rows]


def judge_never(
    observed: np.ndarray, worsts: np.ndarray, hostile_: dict[str, float]
) -> StudyVerdict:
    """Judge whether any rounding passes a corrected bound."""
    kept = _places(CORRECT)
    seen, most = maximum(observed[:, :, kept]), maximum(worsts[:, :, kept])
    made = max(hostile_[row] for row in CORRECT)
    within = seen.value <= SECOND and max(most.value, made) <= ABOVE
    return StudyVerdict(
        claim=STUDY.claim,
        word=decide(holds=within),
        number=max(most.value, made),
        said=f"largest error over its bound: {seen} rounded to 8, 11 or 24 digits, where up to "
        f"{SECOND:g} was asked for; {most} at the worst roundings there are, and {made:.4f} on "
        "constructed inputs, where up to 1 was asked for and is attained",
        looked=True,
    )


def _count_exceeded(
    row: str, worsts: np.ndarray, hostile_: dict[str, float]
) -> tuple[Interval, float]:
    return maximum(worsts[:, :, ROWS.index(row)]), hostile_[row]


def judge_unshifted(worsts: np.ndarray, hostile_: dict[str, float]) -> StudyVerdict:
    """Judge the bound (t + 2) u of the unshifted softmax on the softmax that code computes."""
    found, made = _count_exceeded("Lemma 4.19, unshifted", worsts, hostile_)
    return StudyVerdict(
        claim="The bound (t + 2) u of the softmax also holds where the largest score is taken away "
        "first, as all code does.",
        word=decide(fails=max(found.value, made) > ABOVE),
        number=made,
        said=f"worst roundings over the bound: {made:.2f} for two scores that differ by 12.7, and "
        f"{found} at most on trained models; the range of the scores has to be added",
        source="budzinskiy25, Lemma 4.19",
    )


def judge_ranged(worsts: np.ndarray, hostile_: dict[str, float]) -> StudyVerdict:
    """Judge Lemma 4.21 in the form derived for the unshifted softmax."""
    found, made = _count_exceeded("Lemma 4.21, without range", worsts, hostile_)
    return StudyVerdict(
        claim="The bound on attention holds without the range of the scores.",
        word=decide(fails=max(found.value, made) > ABOVE),
        number=made,
        said=f"worst roundings over the bound: {made:.3f} on constructed scores of -6.4 and 6.4, "
        f"{found} at most on trained models; with the range {hostile_['Lemma 4.21']:.3f}",
        source="budzinskiy25, Lemma 4.21",
    )


def judge_lowered(hostile_: dict[str, float]) -> StudyVerdict:
    """Judge which constants are attained."""
    least = min(hostile_[row] for row in ATTAINED)
    numbers = ", ".join(f"{hostile_[row]:.4f} ({NAMES[row]})" for row in CORRECT)
    return StudyVerdict(
        scale=CASES,
        claim="The constants of RMS norm, centring, perceptron, scores and softmax cannot be "
        "lowered.",
        word=decide(holds=least > 0.999, fails=False),
        number=least,
        said=f"worst roundings over the bound on inputs whose sums carry all in their first term: "
        f"{numbers}; 1 is attained, and below 1 nothing is shown",
        source="budzinskiy25, Lemmas 4.6 to 4.21",
        unit=EXACT,
    )


def judge_near(observed: np.ndarray, context: StudyContext) -> StudyVerdict:
    """Judge how much of a bound rounding uses in practice."""
    shares = {
        row: observed[:, :, index, 0].max(1) for index, row in enumerate(ROWS) if row in CORRECT
    }
    found = bootstrap_each(shares, np.median, context.seed)
    numbers = ", ".join(f"{one} ({NAMES[row]})" for row, one in found.items())
    best = max(found.values(), key=lambda one: one.value)
    return StudyVerdict(
        claim="Rounding to bf16 comes within half of the bounds.",
        word=above(best, 0.5),
        number=best.value,
        said=f"largest error of a passage over its bound, in the worst of {len(context.models)} "
        f"models, median: {numbers}; above 0.5 was asked for in one",
        source="Own",
        looked=True,
    )


def judge_speaking(sizes: np.ndarray) -> StudyVerdict:
    """Judge how often a bound on the relative error is 1 or more, and so says nothing."""
    words, empty = [], 0.0
    for format, digits in FORMATS.items():
        shares = {
            row: float((sizes[:, :, ROWS.index(row)] * 2.0**-digits >= 1).mean()) for row in CORRECT
        }
        gone = [f"{NAMES[row]} {share:.0%}" for row, share in shares.items() if share]
        words.append(f"{format}: {', '.join(gone) or 'none'}")
        empty = max([empty, *shares.values()]) if format == "bf16" else empty
    return StudyVerdict(
        claim="In bf16 the bounds on relative errors leave at least one digit.",
        word=decide(holds=empty == 0, fails=empty > 0.5),
        number=empty,
        said="inputs at which the bound on the largest relative error is 1 or more, and vacuous: "
        f"{'; '.join(words)}. None was asked for in bf16; more than half of them is a failure",
        source="budzinskiy25, section 4",
        looked=True,
    )


def plot(observed: np.ndarray, worsts: np.ndarray, seed: int) -> Picture:
    """Plot how much of each bound is used."""

    def median(values: np.ndarray) -> Interval:
        return bootstrap(values, np.median, seed)

    rows = []
    for index, row in enumerate(ROWS):
        cases = {format: observed[:, :, index, digit] for digit, format in enumerate(FORMATS)}
        for name, values in {**cases, "worst roundings": worsts[:, :, index]}.items():
            one = median(values.max(1))
            rows.append(gap(f"{NAMES[row]}, {name}", one))
    return gaps(
        "used",
        "Largest error of a passage over its bound (worst model, median of passages)",
        rows,
        x="error over bound; above 1 the bound is false",
    )


STUDY = Study(
    name="bounds-table",
    title="Rounding bounds of the modules",
    source="budzinskiy25, section 4",
    claim="No module is further off than the corrected rounding bounds allow.",
    cost="1 minute",
    draws=200,
    passage=TOKENS,
    attention=True,
    run=run,
    fast={"draws": 12},
    **READ,
)
