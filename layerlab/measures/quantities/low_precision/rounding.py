"""Rounding to a low precision: errors of the stream, the logits and the next token.

The model's own code runs in the format, operation by operation, and in float64 as the reference.
Nothing is trained or quantized: weights, activations and sums are rounded as they would be.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import inf, isfinite, nan
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from layerlab.errors import NotApplicable, UserError
from layerlab.known_options import measure_options
from layerlab.measures.measure import Band, Bound, Measure, MeasureContext, ModelContext, Row
from layerlab.measures.questions import check_formats
from layerlab.measures.support.emulated_reruns import Reruns, formats, reruns
from layerlab.measures.support.rounding_theory import theory
from layerlab.numerics.emulation.arithmetic import modes
from layerlab.numerics.emulation.attribution import clear_masked
from layerlab.numerics.formats.formats import Format, find
from layerlab.numerics.theory import depth_bounds
from layerlab.numerics.theory.roundoff_model import mixed
from layerlab.observe.tracing.records import Layer
from layerlab.records.layer_names import EMBEDDING, layer_name
from layerlab.shapes import Hidden

# Of a sequence, so many tokens are read for Theorem 4.30; with more its bound can only be larger.
TOKENS = 64
SINGLE = 2.0**-24
PREDICTED: Mapping[str, str] = {
    "predicted": "sampled",
    "carried": "variance",
    "running": "bound",
}
# A relative error of 1 is as large as the features: a bound from there on says nothing.
VACUOUS = 1.0
QUANTILES = (0.05, 0.95)
Errors = Float[Tensor, " token"]
# The errors of the stream in front of the blocks and behind each, and the row of the logits.
Observed = tuple[list[Errors], Row]
# Entries of logits that are compared at once, in float64.
TOGETHER = 2**22


def error(seen: Hidden, exact: Hidden) -> Errors:
    """Return how far each token's features are from the exact ones, relative to their norm.

    e_t = ||seen_t - exact_t||_2 / ||exact_t||_2

    0 where rounding changed nothing; 1 where the error is as large as the features; infinite where
    what was computed is not finite.

    Source: budzinskiy25, section 4, normwise.
    Unit: none.
    """
    seen, exact = clear_masked(seen.double(), exact.double())
    missed, size = (seen - exact).norm(dim=-1), exact.norm(dim=-1)
    found = torch.where(missed == 0, 0.0, missed / size)
    return torch.where(missed.isfinite(), found, torch.inf)


def divergence(seen: Hidden, exact: Hidden) -> Errors:
    """Return KL(exact || seen) of the next-token distributions that two sets of logits give.

    Source: Own.
    Unit: nats.
    """
    truth, found = torch.log_softmax(exact.double(), -1), torch.log_softmax(seen.double(), -1)
    terms = torch.where(truth.exp() == 0, 0.0, truth.exp() * (truth - found))
    return terms.sum(-1).clamp(min=0)


def _predict(
    context: ModelContext, again: Reruns, name: str, reasons: dict[str, str]
) -> dict[str, list[float]]:
    """Predict and bound the errors; NaN with a reason where that is not possible."""
    found = {}
    for column, kind in PREDICTED.items():
        context.step(f"{name}, {column}")
        try:
            found[column] = again.predict(name, kind)
        except UserError as reason:
            found[column] = [nan] * len(again.true)
            reasons[f"{name} {column}"] = f"{name}, {column}: not applicable, because {reason}"
    return found


def apriori(
    context: ModelContext, tokens: Tensor, names: Sequence[str], reasons: dict[str, str]
) -> dict[str, list[float]]:
    """Return the bound of Theorem 4.30 behind each block, at the first tokens of a sequence.

    NaN in front of them, from a block on of which the theorem does not speak, and for formats that
    are no plain floating point. Weights count as exact.

    Source: budzinskiy25, Theorem 4.30; see `numerics.depth.recursion`.
    """
    plain = {name: find(name) for name in names}
    kinds = {name: mixed(f.unit, SINGLE) for name, f in plain.items() if isinstance(f, Format)}
    count = len(context.subject.stack.blocks)
    # From the first block on that is not read, nothing is known.
    found = {name: [nan] * (1 + count) for name in names}
    errors = {name: 0.0 for name in kinds}

    def read(layer: Layer) -> None:
        layer_theory = theory(layer, context.subject.model)
        if layer_theory is None or not errors:
            return
        try:
            block = layer_theory.block()
        except NotApplicable as reason:
            reasons.setdefault(
                "apriori",
                f"a-priori bound: not applicable from {layer_name(layer.layer)} on, because "
                f"{reason}",
            )
            errors.clear()
            return
        for name, error in errors.items():
            if error < inf:
                error = depth_bounds.layer(layer_theory.entered, block, kinds[name]).after(error)
            errors[name] = found[name][1 + layer.layer] = error

    context.trace(tokens[:TOKENS], read)
    return found


def _rows(context: ModelContext, names: Sequence[str]) -> dict[str, Any]:
    """Return the rows of both measures: one set of runs gives the stream and the logits."""
    key = ("rounding", tuple(names))
    if key in context.memory:
        return context.memory[key]
    found: dict[str, Any] = {"rounding": [], "logits": [], "reasons": {}}
    reasons = found["reasons"]
    each = sum(len(modes(name)) + len(PREDICTED) for name in names)
    context.begin(len(context.sequences) * (2 + each))
    for number, tokens in enumerate(context.sequences):
        context.step("float64 reference")
        again = reruns(context, tokens)
        if again.front is None:
            reasons["front"] = (
                f"{layer_name(EMBEDDING)}: neither predicted nor bounded, because no module gives "
                "the stream there"
            )
        context.step("a-priori bounds")
        before = apriori(context, tokens, names, reasons)
        for name in names:
            seen = {}
            for mode in modes(name):
                context.step(f"{name}, {mode}")
                seen[mode] = _observe(again, name, mode)
            predicted = _predict(context, again, name, reasons)
            predicted["apriori"] = before[name]
            where = {"sequence": number, "format": name}
            found["rounding"] += _stream(seen, predicted, where)
            for mode, (_, row) in seen.items():
                last = {key: predicted[key][-1] if mode == "as-run" else nan for key in PREDICTED}
                found["logits"].append({**where, "mode": mode, **row, **last})
    context.memory[key] = found
    return found


def _observe(again: Reruns, name: str, mode: str) -> Observed:
    """Run the model in a format, and keep of each stream the errors alone."""
    errors: list[Errors] = []
    row: Row = {}

    def read(index: int, seen: Tensor) -> None:
        if index < len(again.true) - 1:
            errors.append(error(seen, again.true[index]))
        else:
            row.update(_logits(again, seen))

    again.read_emulated(name, mode, read)
    return errors, row


def _stream(
    seen: Mapping[str, Observed], predicted: dict[str, list[float]], where: Row
) -> Iterator[Row]:
    flat, _ = seen["flat"]
    for layer, every in enumerate(seen["as-run"][0]):
        low, high = (float(every.quantile(share)) for share in QUANTILES)
        yield {
            **where,
            "layer": EMBEDDING + layer,
            "mean": float(every.mean()),
            "median": float(every.median()),
            "low": low,
            "high": high,
            "worst": float(every.max()),
            "worst_token": int(every.argmax()),
            **{column: values[layer] for column, values in predicted.items()},
            "flat": float(flat[layer].mean()),
        }


def _logits(again: Reruns, seen: Tensor) -> Row:
    true = again.true[-1]
    rows = max(1, TOGETHER // true.shape[-1])
    pairs = list(zip(seen.split(rows), true.split(rows), strict=True))
    every = torch.cat([error(*pair) for pair in pairs])
    apart = torch.cat([divergence(*pair) for pair in pairs])
    changed = seen.argmax(-1) != true.argmax(-1)
    return {
        "error": float(every.mean()),
        "worst": float(every.max()),
        "changed": float(changed.double().mean()),
        "kl": float(apart.mean()),
        "kl_worst": float(apart.max()),
        "loss_change": _loss(seen, again.tokens, rows) - _loss(true, again.tokens, rows),
    }


def _loss(logits: Tensor, tokens: Tensor, rows: int) -> float:
    """Return the mean next-token loss in nats."""
    parts = zip(logits[:-1].split(rows), tokens[1:, None].split(rows), strict=True)
    chances = [torch.log_softmax(part.double(), -1).gather(-1, next) for part, next in parts]
    return float(-torch.cat(chances).mean())


def _overflow(run: MeasureContext, rows: Iterable[Row], column: str) -> None:
    """Report which formats overflowed: their errors are not numbers."""
    for name in dict.fromkeys(row["format"] for row in rows if not isfinite(row[column])):
        run.notes[f"overflow {name}"] = (
            f"{name} overflows: what it computes is not finite, and its error is left out"
        )


def read(context: ModelContext, run: MeasureContext) -> list[Row]:
    """Read one row per sequence, format and layer.

    Source: Own.
    """
    found = _rows(context, formats(run))
    rows = found["rounding"]
    _overflow(run, rows, "mean")
    run.notes.update(found["reasons"])
    notes = [
        text
        for name in dict.fromkeys(row["format"] for row in rows)
        if (text := _vacuous(name, [row for row in rows if row["format"] == name]))
    ]
    if notes:
        words = "; ".join(notes)
        run.notes["vacuous"] = f"the running bound says nothing where it is 1 or more: {words}"
    return rows


def _vacuous(format: str, rows: Sequence[Row]) -> str:
    """Return from which layer on the running bound of a format says nothing."""
    empty = [row["layer"] for row in rows if row["running"] >= VACUOUS]
    endless = [row["layer"] for row in rows if row["running"] == inf]
    if not empty:
        return ""
    if endless and min(endless) == min(empty):
        return f"{format} infinite from {layer_name(min(empty))} on"
    tail = f", infinite from {layer_name(min(endless))} on" if endless else ""
    return f"{format} from {layer_name(min(empty))} on{tail}"


def read_logits(context: ModelContext, run: MeasureContext) -> list[Row]:
    """Read one row per sequence, format and mode.

    Source: Own.
    """
    rows = _rows(context, formats(run))["logits"]
    _overflow(run, rows, "error")
    return rows


MEASURES = (
    Measure(
        name="rounding",
        title="Rounding error of the stream",
        unit="none",
        source="budzinskiy25; Own",
        about=(
            "How far the residual stream is from that of exact arithmetic when the model's own "
            "code runs in a format, operation by operation: as-run keeps in float32 what the code "
            "widens to float32 (norms, softmax, rotary tables), as in a model that was loaded in "
            "the format and not as under autocast, and flat rounds every result. A plain "
            "format such as fp8_e4m3 rounds the residual stream too, without a scale, which is not "
            "fp8 inference; for that, --formats fp8_e4m3:channel or int8:channel rounds weights "
            "and factors of products, scaled, and no results."
        ),
        equation="e_t = ||x_t in the format - x_t in float64|| / ||x_t in float64||",
        per=("sequence", "layer", "format"),
        columns={
            "mean": "observed as run, mean over the tokens",
            "median": "observed as run, the median token",
            "low": "observed as run, 5 % of the tokens are below",
            "high": "observed as run, 95 % of the tokens are below",
            "worst": "the worst token observed, as run",
            "worst_token": "position of the worst token",
            "predicted": "statistical prediction from drawn errors, mean, as run",
            "carried": "statistical prediction from first-order variances carried through the "
            "model, mean, as run",
            "running": "running worst-case bound, mean, as run",
            "apriori": "a-priori bound: Theorem 4.30 at the first 64 tokens",
            "flat": "observed mean with every result rounded to the format",
        },
        plot=("mean", "predicted", "carried", "running", "apriori", "median", "worst", "flat"),
        roles={"worst_token": "index"},
        better="lower",
        needs=frozenset({"model"}),
        resumes=True,
        read=read,
        bound=(
            Bound(column="mean", limit="predicted", side="beside", source="Own"),
            Bound(column="mean", limit="carried", side="beside", source="Own"),
            Bound(column="mean", limit="running", side="upper", source="Own", vacuous=VACUOUS),
            Bound(
                column="mean",
                limit="apriori",
                side="beside",
                source="budzinskiy25, Theorem 4.30",
                vacuous=VACUOUS,
            ),
            Bound(column="mean", limit="flat", side="beside", source="Own"),
        ),
        band=Band(column="mean", low="low", high="high", label="5 to 95 % of the tokens"),
        check=check_formats,
        **measure_options("rounding"),
        default=False,
    ),
    Measure(
        name="logits",
        title="Rounding and the next token",
        unit="see the columns",
        source="Own",
        about=(
            "What the error of a format does to the model's answer: how far the logits are off, "
            "how often another token becomes the likeliest, and what the loss becomes. "
            "As-run is a model that was loaded in the format, autocast one whose parameters and "
            "residual stream are float32, as in training in bf16, and the difference between "
            "as-run and flat is what the model's float32 islands buy; in a "
            "plain format such as fp8_e4m3 every result is rounded, unscaled, which is no verdict "
            "on fp8 inference: for that, --formats fp8_e4m3:channel or int8:channel rounds weights "
            "and factors of products, scaled, and no results."
        ),
        equation="KL = sum_v p_v (log p_v - log p'_v), p from float64 and p' from the format",
        per=("sequence", "format", "mode"),
        columns={
            "error": "mean over the tokens of ||z' - z|| / ||z||, z the logits",
            "worst": "the worst token's",
            "changed": "share of the positions where another token is the likeliest",
            "kl": "mean KL divergence in nats",
            "kl_worst": "the largest of one position",
            "loss_change": "change of the mean next-token loss in nats",
            "predicted": "the error as predicted from drawn errors, as run",
            "carried": "the same from first-order variances carried through the model",
            "running": "the worst case carried along, as run; vacuous from 1 on",
        },
        plot=("error",),
        better="lower",
        needs=frozenset({"model"}),
        resumes=True,
        read=read_logits,
        check=check_formats,
        **measure_options("logits"),
        default=False,
    ),
)
