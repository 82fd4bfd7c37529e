"""Section 3 of budzinskiy25 as a table: condition numbers against what perturbations really do."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from layerlab.errors import NotApplicable
from layerlab.numerics.theory import condition_numbers
from layerlab.numerics.theory.modules import TheoryAttention, TheoryNorm
from layerlab.studies.budzinskiy25.support.amplification import (
    COLUMNS,
    EXACT,
    FORM,
    TYPICAL,
    UNIFORM,
    WORST,
    Module,
    measure,
)
from layerlab.studies.engine.pictures import gap, gaps, histogram
from layerlab.studies.engine.sampling import Sampler, StudyContext
from layerlab.studies.engine.scale import READ
from layerlab.studies.engine.statistics import (
    Interval,
    bins,
    bootstrap,
    bootstrap_each,
    maximum,
    summary,
    table,
)
from layerlab.studies.engine.study import Outcome, Picture, Study, StudyVerdict
from layerlab.studies.engine.verdict import above, below, decide, each
from layerlab.studies.support.passages import excerpts, for_each_layer, get_model, overlap
from layerlab.studies.support.theory_block import theory_of

if TYPE_CHECKING:
    from layerlab.measures.support.rounding_theory import Theory

TOKENS = 12
# What of float64 and of second order is left in a quotient.
ABOVE = 1 + 1e-4
TIGHT = 0.9
ROWS = (
    "RMS norm",
    "layer norm",
    "layer norm, gain and shift",
    "perceptron",
    "SwiGLU",
    "scores",
    "softmax",
    "attention",
    "rotary positions",
    "residual sum",
)
# The rows of each part of a block, of which it has one.
PARTS = {
    "norms": ("RMS norm", "layer norm"),
    "attention": ("attention",),
    "feed-forward": ("perceptron", "SwiGLU"),
}
NONE = torch.tensor(torch.nan, dtype=torch.float64)


def one(draw: Sampler, model: str) -> dict[str, Tensor]:
    """Return the conditions of every module of one drawn block, for each passage of a batch."""
    subject = get_model(model, draw.given)
    ids = excerpts(draw, model, TOKENS)
    assert not isinstance(subject.stack, str), subject.stack
    layers = torch.randint(len(subject.stack.blocks), (draw.count,), generator=draw.generator)
    found = torch.full((draw.count, len(ROWS), len(COLUMNS)), torch.nan, dtype=torch.float64)

    def read(layer: Any) -> None:
        if layer.layer != layers[layer.sequence]:
            return
        seen = theory_of(layer, subject)
        for module in modules(seen):
            row = measure(module, draw.generator)
            found[layer.sequence, ROWS.index(module.name)] = row
        if found[layer.sequence].isnan().all():
            raise NotApplicable("; ".join(dict.fromkeys(seen.refused.values())))

    for_each_layer(subject, ids, read)
    return {"conditions": found}


def modules(seen: "Theory") -> Iterator[Module]:
    """Yield the modules of a block, as seen at its last token."""
    entered = (
        (seen.attention_norm, seen.entered),
        (seen.feedforward_norm, seen.middle),
    )
    for norm, x in entered:
        if norm is not None and x is not None:
            yield from norm_modules(norm, x[-1])
            break
    if seen.feedforward is not None and seen.feedforward_input is not None:
        f, x = seen.feedforward, seen.feedforward_input[-1]
        name = "perceptron" if f.gate is None else "SwiGLU"
        form = condition_numbers.mlp(x, f)
        yield Module(name=name, f=f.value, x=x, form=form, uniform=NONE)
    if seen.attention is not None and seen.attention_input is not None:
        yield from attention_modules(seen.attention, seen.attention_input)
    if seen.attended is not None:
        x, added = seen.entered[-1], seen.attended[-1]
        yield Module(
            name="residual sum",
            f=lambda both: both.unflatten(0, (2, -1)).sum(0),
            x=torch.cat([x, added]),
            form=condition_numbers.residual(x, added),
            uniform=NONE,
        )


def norm_modules(norm: TheoryNorm, x: Tensor) -> Iterator[Module]:
    """Yield a norm as it is, and a layer norm also in the source's form."""
    form = condition_numbers.norm(x, norm)
    if norm.kind == "rms":
        two = torch.full_like(form, 2.0)
        yield Module(name="RMS norm", f=norm.value, x=x, form=form, uniform=two)
        return
    plain = TheoryNorm(kind="layer")
    last = 3 * x.abs().max() / plain.centre(x).abs().min()
    yield Module(
        name="layer norm", f=plain.value, x=x, form=condition_numbers.norm(x, plain), uniform=last
    )
    name = "layer norm, gain and shift"
    yield Module(name=name, f=norm.value, x=x, form=form, uniform=NONE)


def attention_modules(parts: TheoryAttention, x: Tensor) -> Iterator[Module]:
    """Yield the scores and softmax of the first head, all of attention, and rotary positions."""
    row = parts.scores(x, 0)[-1]
    yield Module(
        name="scores",
        f=lambda given: parts.scores(given, 0)[-1],
        x=x,
        form=condition_numbers.scores(x, parts)[-1],
        uniform=NONE,
    )
    yield Module(
        name="softmax",
        f=lambda given: torch.softmax(given, -1),
        x=row,
        form=condition_numbers.softmax(row),
        uniform=2 * row.abs().max(),
    )
    yield Module(
        name="attention",
        f=lambda given: parts.value_of(given)[-1],
        x=x,
        form=condition_numbers.attention(x, parts)[-1],
        uniform=condition_numbers.cancellation(x, parts)[-1] * uniform(x, parts),
    )
    if parts.cosine is not None:
        query = x @ parts.query[0].T
        one = torch.ones((), dtype=x.dtype)
        yield Module(
            name="rotary positions",
            f=lambda given: parts.rotate(given)[-1],
            x=query,
            form=one,
            uniform=NONE,
            normwise=True,
        )


def uniform(x: Tensor, parts: TheoryAttention) -> Tensor:
    """Return 1 + 4 s max_h ||W_q|| ||W_k|| max_i ||x_i||^2 of attention.

    Lemma 3.14 with the norms of both factors, which rotary positions between them do not change;
    biases are one more column, beside a 1.
    """
    length, largest = x.square().sum(-1).max(), x.new_zeros(())
    biased = parts.query_bias is not None or parts.key_bias is not None
    for head in map(parts.head, range(parts.heads)):
        query, key = beside(head.query, head.query_bias), beside(head.key, head.key_bias)
        largest = torch.maximum(
            largest, torch.linalg.matrix_norm(query, 2) * torch.linalg.matrix_norm(key, 2)
        )
    return 1 + 4 * abs(parts.scale) * largest * (length + int(biased))


def beside(matrix: Tensor, bias: Tensor | None) -> Tensor:
    """Append a bias to its matrix as a last column."""
    return matrix if bias is None else torch.cat([matrix, bias[:, None]], 1)


def run(context: StudyContext) -> Outcome:
    """Compute, judge and draw."""
    cases = [{"model": name} for name in context.models]
    parts = [part["conditions"] for part in context.sample(one, cases, batch=16)]
    # passage x model x module x column
    every, names = np.stack(parts, axis=1), context.models
    rows = [
        summary(
            every[:, index, row, column],
            {"model": model, "module": name, "quantity": quantity},
        )
        for index, model in enumerate(names)
        for row, name in enumerate(ROWS)
        for column, quantity in enumerate(COLUMNS)
        if np.isfinite(every[:, index, row, column]).any()
    ]
    return Outcome(
        verdicts=(
            judge_never(every),
            *([judge_norms(every, context.seed)] if _has_norms(every) else []),
            judge_attained(every, names, context.seed),
            *([judge_loose(every, names, context.seed)] if _loose(every, names) else []),
            judge_usual(every, names, context.seed),
        ),
        frames={"conditions": table(rows)},
        pictures=plot(every, names, context.seed),
        remarks=(
            f"Each draw is a passage of {TOKENS} tokens and one block of each model, at "
            "the last token; scores and softmax are those of the first head.",
            "Errors are relative in every entry, as in the source; of rotary positions in length. "
            "The worst perturbation follows the signs of the Jacobian at the entry that it can "
            "move most, and is carried out in float64.",
            *describe_parts(every, context),
            overlap(TOKENS, context.given),
        ),
    )


def _has_norms(every: np.ndarray) -> bool:
    """Return whether some model has an RMS norm, and some a layer norm."""
    norms = [ROWS.index(name) for name in ("RMS norm", "layer norm")]
    return all(np.isfinite(every[:, :, row, EXACT]).any() for row in norms)


def _loose(every: np.ndarray, names: Sequence[str]) -> dict[str, np.ndarray]:
    """Return, by model, the uniform bound on attention over what the worst perturbation does."""
    row = ROWS.index("attention")
    found = every[..., row, UNIFORM] / every[..., row, WORST]
    kept = {name: found[:, index] for index, name in enumerate(names)}
    return {name: one for name, one in kept.items() if np.isfinite(one).all()}


def describe_parts(every: np.ndarray, context: StudyContext) -> list[str]:
    """Describe what the parts of the models have that the source's have not."""
    if not context.given:
        return [
            "The built-in perceptrons have GELU and biases, norms have eps, gain and shift, "
            "attention has four heads, biases or rotary positions and an output matrix: of these "
            "the source does not speak, and the forms are derived here in its way."
        ]
    remarks = []
    for part, rows in PARTS.items():
        read = np.isfinite(every[:, :, [ROWS.index(row) for row in rows], FORM]).any(2).all(0)
        gone = [name for name, complete in zip(context.models, read, strict=True) if not complete]
        if gone:
            remarks.append(f"Not read, being none of the source's: {part}, in {', '.join(gone)}.")
    return remarks


def share(every: np.ndarray, above: int, below: int) -> np.ndarray:
    """Return one quantity over another, passage x model x module."""
    return np.asarray(every[..., above] / every[..., below])


def medians(
    every: np.ndarray, above: int, below: int, names: Sequence[str], seed: int
) -> dict[tuple[str, str], Interval]:
    """Return the median quotient of each module that has both; the intervals hold together."""
    found = share(every, above, below)
    there = {
        (model, name): kept
        for index, model in enumerate(names)
        for row, name in enumerate(ROWS)
        if len(kept := found[np.isfinite(found[:, index, row]), index, row])
    }
    return bootstrap_each(there, np.median, seed)


def judge_never(every: np.ndarray) -> StudyVerdict:
    """Judge whether any perturbation is enlarged by more than the condition number."""
    largest = maximum(share(every, WORST, FORM))
    return StudyVerdict(
        claim=STUDY.claim,
        word=decide(holds=largest.value <= ABOVE),
        number=largest.value,
        said=f"the worst perturbation of a module is enlarged by {largest.value:.6f} times its "
        "condition number at most, over "
        f"{np.isfinite(every[..., FORM]).sum()} modules and inputs; above 1 (and what float64 "
        "adds) the lemmas would be false",
    )


def judge_norms(every: np.ndarray, seed: int) -> StudyVerdict:
    """Judge whether the condition of RMS norm is at most 2, and that of layer norm unbounded."""
    rms, layer = (every[:, :, ROWS.index(name), EXACT] for name in ("RMS norm", "layer norm"))
    usual = bootstrap(np.nanmax(layer, axis=1), np.median, seed)
    models = np.isfinite(layer).any(0).sum()
    worst = {1: "one model", 2: "the worse of two models"}.get(
        models, f"the worst of {models} models"
    )
    return StudyVerdict(
        claim="RMS norm at most doubles relative errors; layer norm has no such limit.",
        word=each((decide(holds=np.nanmax(rms) <= 2 * ABOVE), above(usual, 2))),
        number=usual.value,
        said=f"condition of RMS norm: {np.nanmax(rms):.4f} at most; of layer norm ({worst}): "
        f"{usual} in the median passage, {np.nanmax(layer):.3g} at most",
        source="budzinskiy25, Lemmas 3.6 and 3.8",
    )


def judge_attained(every: np.ndarray, names: Sequence[str], seed: int) -> StudyVerdict:
    """Judge whether the closed forms are conditions, or only bounds on them."""
    found = medians(every, WORST, FORM, names, seed)
    least = min(found, key=lambda key: found[key].value)
    far = {key: one for key, one in found.items() if one.value < TIGHT}
    words = ", ".join(f"{one} of {name} ({model})" for (model, name), one in far.items())
    return StudyVerdict(
        claim="Every closed form is attained: some perturbation is enlarged by nearly as much.",
        word=each(above(one, TIGHT) for one in found.values()),
        number=found[least].value,
        said=f"the worst perturbation over the closed form is at least {TIGHT:g} in the median "
        f"passage everywhere but: {words or 'nowhere'}; there it is a bound that cannot be "
        "reached, since products of absolute values stand for absolute values of products",
        source="budzinskiy25, Lemmas 3.4 to 3.14",
    )


def judge_loose(every: np.ndarray, names: Sequence[str], seed: int) -> StudyVerdict:
    """Judge how loose the uniform form of attention is behind a norm."""
    found = bootstrap_each(_loose(every, names), np.median, seed)
    numbers = ", ".join(f"{one} ({model})" for model, one in found.items())
    return StudyVerdict(
        claim="Behind a norm the uniform bound on attention's condition tells its size within ten.",
        word=each(below(one, 10) for one in found.values()),
        number=max(one.value for one in found.values()),
        said=f"uniform bound over what the worst perturbation does: {numbers}, the median passage",
        source="budzinskiy25, Lemma 3.14 and Remark 3.15; the factor of ten is Own",
    )


def judge_usual(every: np.ndarray, names: Sequence[str], seed: int) -> StudyVerdict:
    """Judge how much random perturbations are enlarged."""
    found = medians(every, TYPICAL, FORM, names, seed)
    best, least = (choose(found, key=lambda key: found[key].value) for choose in (max, min))
    inner = {key: one for key, one in found.items() if key[1] in ("perceptron", "SwiGLU")}
    numbers = ", ".join(f"{one} ({name}, {model})" for (model, name), one in inner.items())
    numbers = numbers or "not read"
    return StudyVerdict(
        claim="Random perturbations are enlarged by at least half of the condition number.",
        word=each(above(one, 0.5) for one in found.values()),
        number=found[least].value,
        said=f"random signs, median passage: {found[least]} of the closed form ({least[1]}, "
        f"{least[0]}) to {found[best]} ({best[1]}, {best[0]}); feed-forward {numbers}",
        source="Own",
    )


def plot(every: np.ndarray, names: Sequence[str], seed: int) -> tuple[Picture, ...]:
    """Plot how tight the forms are, and how large."""
    found = medians(every, WORST, FORM, names, seed)
    keys = sorted(found, key=lambda key: (ROWS.index(key[1]), key[0]))
    tight = [gap(f"{name}, {model}", found[model, name]) for model, name in keys]
    bars = {
        name: bins(every[:, :, row, WORST].flatten(), 24)
        for row, name in enumerate(ROWS)
        if name in ("RMS norm", "layer norm", "perceptron", "SwiGLU", "scores", "attention")
    }
    return (
        gaps(
            "tightness",
            "Worst perturbation over the condition number (median passage, 95 % interval)",
            tight,
            x="enlargement over condition number; 1 is attained",
        ),
        histogram(
            "enlargement",
            "By how much the worst perturbation is enlarged",
            bars,
            {},
            "largest relative change of an entry behind a module, over that in front",
        ),
    )


STUDY = Study(
    name="condition-table",
    title="Condition numbers of the modules",
    source="budzinskiy25, section 3",
    claim="No module of a Transformer enlarges small relative errors of its input by more than "
    "its condition number.",
    cost="2 minutes",
    draws=400,
    passage=TOKENS,
    attention=True,
    run=run,
    fast={"draws": 12},
    **READ,
)
