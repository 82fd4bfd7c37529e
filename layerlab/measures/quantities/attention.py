"""Attention heads: entropy of a row, mass of its sink, size of the scores."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from layerlab.known_options import measure_options
from layerlab.measures.measure import Bound, Measure, MeasureContext, Row
from layerlab.measures.support.attention_pass import (
    End,
    HeadQuantity,
    heads_of,
    read_heads,
)
from layerlab.measures.support.products import HeadRows, RowStatistics
from layerlab.observe.tracing.attention.record import AttentionRecord
from layerlab.observe.tracing.attention.tiles import RowBlock, Watch
from layerlab.observe.tracing.device_schedule import widen
from layerlab.observe.tracing.records import Layer
from layerlab.shapes import HeadVector


@dataclass(frozen=True, kw_only=True)
class Focus:
    """One reading per head; the columns of the measure say what each is."""

    entropy: HeadVector
    entropy_bound: HeadVector
    sink_mass: HeadVector
    sink_column: Int[Tensor, " head"]
    logit_max: HeadVector
    logit_range: HeadVector


BIASED = "its scores cannot be told from the bias by position that it adds to them"
_COLUMNS = tuple(one.name for one in fields(Focus))


def focus(attended: AttentionRecord, *, dtype: torch.dtype = torch.float32) -> Focus:
    """Return the entropy, sink mass and logit extremes of every head, in one pass over row blocks.

    entropy   = mean over rows i with T_i > 1 keys of  -sum_j p_ij log p_ij / log T_i,
                p_ij = A_ij / sum_j A_ij, which is A_ij but where a learned sink takes its part
    sink_mass = mean_i A_i0
    logit_max = max |s_ij|,  logit_range = max_i (max_j s_ij - min_j s_ij),  s = scaling q_i . k_j

    Entropy is 0 where every row picks one key and 1 where it weighs all alike; it is NaN where no
    row has two keys. Logits are taken before softcap and mask, but only where a key is allowed,
    because no other logit reaches a softmax in any kernel. They are NaN where a model hands over
    scores alone that hold a bias as well.

    Source: zhai23, section 3; xiao23; dehghani23; wortsman23.
    Unit: none.
    """
    return Focus(**read_heads(attended, [replace(FOCUS, dtype=dtype)]))


class _RowReadings:
    """Readings of the rows of some heads: of blocks, each with its keys, or of all at once."""

    def __init__(self) -> None:
        self.blocks: list[tuple[slice, RowStatistics]] = []

    def __call__(self, block: RowBlock, record: AttentionRecord, scores: Tensor) -> None:
        self.blocks.append((block.keys, _rows(block, record, scores)))

    def take(self, found: RowStatistics) -> None:
        self.blocks.append((slice(None), found))


def _watch(part: AttentionRecord) -> tuple[Watch, End]:
    seen = _RowReadings()
    return seen, lambda: vars(_pool(part, seen.blocks))


# The columns of `focus`, in a pass that others share.
FOCUS = HeadQuantity(columns=_COLUMNS, watch=_watch)


def entropy_bound(spread: HeadRows, counts: HeadRows) -> HeadRows:
    """Return the least entropy of a softmax over T keys, with sigma = ||logits - their mean||_2.

    log(1 + (T - 1) b) + sigma sqrt(T (T - 1)) b / (1 + (T - 1) b)
    with   b = exp(-sigma sqrt(T / (T - 1)))

    Attained where one logit stands above T - 1 equal ones. With sigma = 0 it is log T.

    Source: zhai23, Theorem 3.1.
    Differs: sigma is measured on the row itself, where the theorem takes the norms of weights and
        input, and T is the number of keys of that row: with T = n a causal mask violates it.
    Unit: nats.

    Example:
        >>> entropy_bound(torch.zeros(1, 1), torch.full((1, 1), 4.0)).exp()
        tensor([[4.]])
    """
    others = (counts - 1).clamp_min(1)
    decay = torch.exp(-spread * (counts / others).sqrt())
    mass = 1 + others * decay
    return mass.log() + spread * (counts * others).sqrt() * decay / mass


def _rows(block: RowBlock, record: AttentionRecord, scores: Tensor) -> RowStatistics:
    allowed = record.allowed_keys()
    counts = allowed.sum(-1).to(scores.dtype).expand(record.heads, -1)
    altered = record.softcap is not None or record.bias is not None
    logits = record.logits(dtype=scores.dtype) if altered else scores
    shares = block.entries if record.sums_to_one else torch.softmax(scores, -1)
    high = (logits.masked_fill(~allowed, -torch.inf) if altered else scores).amax(-1)
    low = logits.masked_fill(~allowed, torch.inf).amin(-1)
    return RowStatistics(
        received=block.entries.sum(1),
        counts=counts,
        entropy=torch.special.entr(shares).sum(-1),
        spread=_spread(scores, allowed, counts),
        high=high,
        low=low,
    )


def _spread(scores: Tensor, allowed: Tensor, counts: Tensor) -> Tensor:
    """Return how far the allowed scores of each row lie from their mean, in the Euclidean norm."""
    finite = scores.masked_fill(~allowed, 0.0)
    mean = finite.sum(-1) / counts.clamp_min(1)
    return finite.sub_(mean[..., None]).masked_fill_(~allowed, 0.0).norm(dim=-1)


def _pool(part: AttentionRecord, seen: list[tuple[slice, RowStatistics]]) -> Focus:
    """Pool means and extremes over the rows of all blocks."""
    blocks = [block for _, block in seen]
    sums = blocks[0].received.new_zeros(part.heads, part.keys)
    for keys, block in seen:
        sums[:, keys] += block.received
    high = torch.cat([block.high for block in blocks], 1)
    low = torch.cat([block.low for block in blocks], 1)
    counts = torch.cat([block.counts for block in blocks], 1)
    spread = torch.cat([block.spread for block in blocks], 1)
    entropy = torch.cat([block.entropy for block in blocks], 1)
    unbiased = torch.nan if part.biased else 1.0
    return Focus(
        entropy=_relative(entropy, counts),
        entropy_bound=_relative(entropy_bound(spread, counts), counts),
        sink_mass=sums[:, 0] / part.tokens,
        sink_column=sums.argmax(-1),
        logit_max=unbiased * torch.maximum(high.abs(), low.abs()).amax(-1),
        logit_range=unbiased * (high - low).amax(-1),
    )


def _relative(entropy: HeadRows, counts: HeadRows) -> HeadVector:
    """Return the mean entropy of the rows in units of its largest value.

    Only rows with at least two keys count.
    """
    wide = counts > 1
    shares = torch.where(wide, widen(entropy) / widen(counts).clamp_min(2).log(), 0.0)
    return shares.sum(-1) / wide.sum(-1)


def _heads(options: Mapping[str, Any]) -> HeadQuantity:
    return replace(FOCUS, dtype=getattr(torch, options["dtype"]))


def _read(layer: Layer, run: MeasureContext) -> Iterator[Row]:
    if layer.attention is None:
        return
    if layer.attention.biased:
        remark = f"logit_max, logit_range: not applicable to {{layers}}, because {BIASED}"
        run.note_layer("logits", remark, layer.layer)
    columns = heads_of(layer, _heads(run.options)).columns
    for head in range(layer.attention.heads):
        labels = {
            "sequence": layer.sequence,
            "layer": layer.attention.layer,
            "head": layer.attention.first + head,
        }
        row = labels | {name: columns[name][head] for name in _COLUMNS}
        yield row | {"sink_column": int(row["sink_column"])}


MEASURES = (
    Measure(
        name="attention",
        title="Entropy, sinks and scores of attention",
        unit="none",
        source="zhai23",
        about=(
            "How evenly a head spreads its attention over the keys it may use, how much of it the"
            " first token takes, and how large its attention scores, the logits of its softmax,"
            " grow. Entropy near 0 together with large scores precedes unstable training."
        ),
        equation=(
            "entropy = mean_i -sum_j p_ij log p_ij / log T_i,  p_ij = A_ij / sum_j A_ij;  "
            "logit_max = max |s_ij|"
        ),
        per=("sequence", "layer", "head"),
        columns={
            "entropy": "mean entropy of a row over its largest value log T_i; 1 is uniform",
            "entropy_bound": "the least that scores of this spread allow, averaged alike",
            "sink_mass": "mean attention paid to the first token",
            "sink_column": "the token that receives most attention",
            "logit_max": "largest |attention score|, scaled, before softcap, of an allowed key",
            "logit_range": "largest difference between two allowed scores of one row",
        },
        plot=("entropy", "sink_mass", "logit_max"),
        roles={"sink_column": "index"},
        better=None,
        needs=frozenset({"attention"}),
        resumes=True,
        read=_read,
        heads=_heads,
        bound=(Bound(column="entropy", limit="entropy_bound", side="lower", source="zhai23"),),
        **measure_options("attention"),
    ),
)
