"""What rounding to a low precision does to the stream, to the logits and to the next token.

The model's own code runs in the format, operation by operation, and in float64 as the reference.
Nothing is trained or quantised: weights, activations and sums are rounded as they would be.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from layerlab import UserError
from layerlab.domain import Domain
from layerlab.measures.measure import Band, Bound, Measure, NotApplicable, Row, Run, Whole
from layerlab.numerics.attribution import outputs
from layerlab.numerics.emulate import Emulation
from layerlab.numerics.format import find
from layerlab.numerics.regime import exact, regime
from layerlab.shapes import Hidden

FORMATS = "bf16"
MODES = ("as-run", "flat")
QUANTILES = (0.05, 0.95)
Errors = Float[Tensor, " token"]


def error(seen: Hidden, exact: Hidden) -> Errors:
    """How far each token's features are from what they should be, relative to their norm.

    e_t = ||seen_t - exact_t||_2 / ||exact_t||_2

    0 where rounding changed nothing; 1 where the error is as large as the features.

    Source: budzinskiy25, section 4, normwise.
    Unit: none.
    """
    exact = exact.double()
    missed, size = (seen.double() - exact).norm(dim=-1), exact.norm(dim=-1)
    return torch.where(missed == 0, 0.0, missed / size)


def divergence(seen: Hidden, exact: Hidden) -> Errors:
    """KL(exact || seen) of the next-token distributions that two sets of logits give.

    Source: Own.
    Unit: nats.
    """
    truth, found = torch.log_softmax(exact.double(), -1), torch.log_softmax(seen.double(), -1)
    terms = torch.where(truth == -torch.inf, 0.0, truth.exp() * (truth - found))
    return terms.sum(-1).clamp(min=0)


def formats(run: Run) -> list[str]:
    """The formats that were asked for, by name.

    Source: Own.

    Raises:
        UserError: a name that is no format.
    """
    return listed(run.options["formats"])


def listed(given: str | Iterable[str]) -> list[str]:
    """Formats with commas, each once, each looked up.

    Source: Own.

    Raises:
        UserError: a name that is no format, or none at all.
    """
    words = given.split(",") if isinstance(given, str) else list(map(str, given))
    names = [name.strip() for name in words if name.strip()]
    if not names:
        raise UserError("no number format is named; type for example --formats bf16,fp8_e4m3")
    for name in names:
        find(name)
    return list(dict.fromkeys(names))


@dataclass(frozen=True, kw_only=True)
class Reruns:
    """One sequence through one model, in any arithmetic.

    Attributes:
        blocks: whose outputs are the stream.
        true: the stream in front of the blocks and behind each, and the logits, in float64.
    """

    model: nn.Module
    tokens: Tensor
    blocks: tuple[nn.Module, ...]
    true: list[Tensor]

    def call(self) -> Any:
        return forward(self.model, self.tokens)

    def emulated(self, format: str, mode: str) -> list[Tensor]:
        """The same as `true`, in a format."""
        run = Emulation(self.model, regime(format, mode))
        return [one[0] for one in outputs(run, self.call, self.blocks)]


def forward(model: Any, tokens: Tensor) -> Any:
    """One forward pass without a cache.

    Source: Own.
    """
    return model(input_ids=tokens[None], use_cache=False)


def reruns(whole: Whole, tokens: Tensor) -> Reruns:
    """The reference run of one sequence, ready for others beside it.

    Source: Own.

    Raises:
        NotApplicable: what its blocks pass on is not one vector per token.
    """
    model, stack = whole.subject.model, whole.subject.stack
    run = Emulation(model, exact(model.dtype))
    found = outputs(run, lambda: forward(model, tokens), stack.blocks)
    for one in found:
        if one.dim() != 3 or one.shape[:2] != (1, len(tokens)):
            shape = tuple(one.shape)
            raise NotApplicable(f"its blocks pass a tensor of shape {shape}, not one per token")
    true = [one[0] for one in found]
    return Reruns(model=model, tokens=tokens, blocks=stack.blocks, true=true)


def _rows(whole: Whole, names: Sequence[str]) -> dict[str, list[Row]]:
    """Rows of both measures: one set of runs gives the stream and the logits."""
    key = ("rounding", tuple(names))
    if key in whole.memory:
        return whole.memory[key]
    found: dict[str, list[Row]] = {"rounding": [], "logits": []}
    whole.begin(len(whole.sequences) * (1 + len(MODES) * len(names)))
    for number, tokens in enumerate(whole.sequences):
        whole.step("float64 reference")
        again = reruns(whole, tokens)
        for name in names:
            seen = {}
            for mode in MODES:
                whole.step(f"{name}, {mode}")
                seen[mode] = again.emulated(name, mode)
            where = {"sequence": number, "format": name}
            found["rounding"] += _stream(again, seen, where)
            found["logits"] += [
                {**where, "mode": mode, **_logits(again, seen[mode][-1])} for mode in MODES
            ]
    whole.memory[key] = found
    return found


def _stream(again: Reruns, seen: dict[str, list[Tensor]], where: Row) -> Iterator[Row]:
    for layer, true in enumerate(again.true[:-1]):
        every = error(seen["as-run"][layer], true)
        low, high = (float(every.quantile(share)) for share in QUANTILES)
        yield {
            **where,
            "layer": layer,
            "mean": float(every.mean()),
            "median": float(every.median()),
            "low": low,
            "high": high,
            "worst": float(every.max()),
            "worst_token": int(every.argmax()),
            "flat": float(error(seen["flat"][layer], true).mean()),
        }


def _logits(again: Reruns, seen: Tensor) -> Row:
    true = again.true[-1]
    every, apart = error(seen, true), divergence(seen, true)
    changed = seen.argmax(-1) != true.argmax(-1)
    return {
        "error": float(every.mean()),
        "worst": float(every.max()),
        "changed": float(changed.double().mean()),
        "kl": float(apart.mean()),
        "kl_worst": float(apart.max()),
        "loss": _loss(seen, again.tokens) - _loss(true, again.tokens),
    }


def _loss(logits: Tensor, tokens: Tensor) -> float:
    """Mean next-token loss in nats."""
    chances = torch.log_softmax(logits[:-1].double(), -1)
    return float(-chances.gather(-1, tokens[1:, None]).mean())


def _overflow(run: Run, rows: Iterable[Row], column: str) -> None:
    """Say which formats overflowed: their errors are not numbers."""
    for name in dict.fromkeys(row["format"] for row in rows if not isfinite(row[column])):
        run.notes[f"overflow {name}"] = (
            f"{name} overflows: what it computes is not finite, and its error is left out"
        )


def read(whole: Whole, run: Run) -> list[Row]:
    """One row per sequence, format and layer.

    Source: Own.
    """
    rows = _rows(whole, formats(run))["rounding"]
    _overflow(run, rows, "mean")
    return rows


def read_logits(whole: Whole, run: Run) -> list[Row]:
    """One row per sequence, format and mode.

    Source: Own.
    """
    rows = _rows(whole, formats(run))["logits"]
    _overflow(run, rows, "error")
    return rows


DOMAINS = {"formats": Domain(kind=str)}

MEASURES = (
    Measure(
        name="rounding",
        title="Rounding error of the stream",
        unit="none",
        source="budzinskiy25; Own",
        about=(
            "How far the residual stream is from that of exact arithmetic when the model's own "
            "code runs in a format, operation by operation. As-run keeps in float32 what the code "
            "widens to float32 (norms, softmax, rotary tables); flat rounds every result."
        ),
        equation="e_t = ||x_t in the format - x_t in float64|| / ||x_t in float64||",
        per=("sequence", "layer", "format"),
        columns={
            "mean": "observed as run, mean over the tokens",
            "median": "observed as run, the median token",
            "low": "observed as run, 5 % of the tokens are below",
            "high": "observed as run, 95 % of the tokens are below",
            "worst": "observed as run, the worst token",
            "worst_token": "position of the worst token",
            "flat": "observed, mean, every result rounded to the format",
        },
        plot=("mean", "median", "worst", "flat"),
        better="lower",
        needs=frozenset({"model"}),
        read=read,
        bound=(
            Bound(column="mean", limit="worst", side="beside", source="Own"),
            Bound(column="mean", limit="flat", side="beside", source="Own"),
        ),
        band=Band(column="mean", low="low", high="high", label="5 to 95 % of the tokens"),
        options={"formats": FORMATS},
        domains=DOMAINS,
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
            "The difference between as-run and flat is what the model's float32 islands buy."
        ),
        equation="KL = sum_v p_v (log p_v - log p'_v), p from float64 and p' from the format",
        per=("sequence", "format", "mode"),
        columns={
            "error": "mean over the tokens of ||z' - z|| / ||z||, z the logits",
            "worst": "the worst token's",
            "changed": "share of the positions where another token is the likeliest",
            "kl": "mean KL divergence in nats",
            "kl_worst": "the largest of one position",
            "loss": "change of the mean next-token loss in nats",
        },
        plot=("error",),
        better="lower",
        needs=frozenset({"model"}),
        read=read_logits,
        options={"formats": FORMATS},
        domains=DOMAINS,
        default=False,
    ),
)
