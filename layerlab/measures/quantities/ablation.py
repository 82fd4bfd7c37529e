"""Loss without one head, or without one sublayer: each ablated alone.

The stream in front of a block is that of the whole model, so that only this block and those behind
it are run again, with the heads of the block as the rows of a batch, another one taken out in each.
"""

from collections.abc import Iterator, Sequence
from math import nan, sqrt

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional

from layerlab.errors import NotApplicable
from layerlab.known_options import measure_options
from layerlab.measures.measure import Measure, MeasureContext, ModelContext, Row
from layerlab.observe.tracing.ablation import (
    SUBLAYERS,
    BlockParts,
    HeadsGiven,
    Means,
    Removal,
    find_parts,
    hearing_heads,
    removing,
    touching,
)
from layerlab.observe.tracing.aligned_head import Room
from layerlab.observe.tracing.device_schedule import widen
from layerlab.observe.tracing.readout import Answer, answer, resume, spread
from layerlab.observe.tracing.records import Layer
from layerlab.records.layer_names import EMBEDDING
from layerlab.shapes import Tokens

PROBED = 32
ZERO, MEAN = "zero", "mean"
# Logits of a batch, in bytes, at most: the rows of a batch are as many as have room.
_BYTES = 2**27
# Tokens of a batch on a CPU: with more, what a block computes leaves the cache.
_BATCH = 1024
# Rows of logits at once: what is read several times stays in the cache.
_ROWS = 16
USE = """\
Type `layerlab inspect MODEL --measures ablation`, or `--measures 'ablation(replace="mean")'` to put
the mean over all tokens read in the place of what was taken out (wang22), instead of zeros.

Each head is taken out alone, before the output projection, and so is each sublayer: what it adds
to the stream. The blocks in front are not run again, nor in most families the attention of the
block itself, and its heads are rows of a batch: each costs half of the blocks on average, and the
model's head. Of a text the first `tokens` are read, and the loss is the mean at `samples`
positions, spread evenly: by default half a text of 512 tokens. `--measures 'ablation(tokens=512,
samples=511)'` reads all of it, with 2.6 times the operations; heads that look further back than
`tokens` need it.

Heads that each change nothing may matter together, where one makes up for another. A row whose
`head` is empty is that of a whole sublayer."""


def losses(
    logits: Float[Tensor, "row place vocab"], following: Int[Tensor, " place"]
) -> Float[Tensor, " row"]:
    """Return the mean next-token loss of every row.

    -mean_t log softmax(logits_t)[next token]

    Source: Own.
    Unit: nats.
    """
    targets = following.split(_ROWS)
    return torch.stack(
        [
            sum(
                (
                    widen(functional.cross_entropy(part.float(), word, reduction="none")).sum()
                    for part, word in zip(row.split(_ROWS), targets, strict=True)
                ),
                start=widen(torch.zeros((), device=row.device)),
            )
            / len(following)
            for row in logits
        ]
    )


def read(context: ModelContext, run: MeasureContext) -> list[Row]:
    """Read one row for every head and sublayer.

    Source: michel19, section 3.2; wang22 (means in place of zeros).
    """
    model, stack = context.subject.model, context.subject.stack
    texts = [tokens[: run.options["tokens"]] for tokens in context.sequences]
    blocks = _find(context, texts[0], run)
    _note_rest(context, run)
    context.begin(len(texts) * len(blocks))
    means = _means(context, blocks, texts) if run.options["replace"] == MEAN else None
    room = Room()
    changes: dict[tuple[int, str, int | None], list[float]] = {}
    handing = set[tuple[int, int]]()
    for number, tokens in enumerate(texts):
        # The last token has no next one.
        places = spread(len(tokens) - 1, run.options["samples"]).to(tokens.device)
        with hearing_heads(stack, blocks) as heads:
            given = answer(model, stack, tokens, places)
        own = losses(given.logits[None], given.tokens[given.places + 1])
        for parts in blocks:
            context.step(f"text {number}: layer {parts.block}")
            rows = _removals(parts)
            if number == 0 and not _repeats(context, given, parts, heads.get(parts.key)):
                # Its attention may hand on more than its output, such as values to later layers.
                handing.add(parts.key)
                _check(context, given, parts)
            kept = None if parts.key in handing else heads.get(parts.key)
            found = _without(context, given, parts, rows, means, kept, room)
            for one, loss in zip(rows, found, strict=True):
                head = None if one.head is None else parts.first + one.head
                key = (parts.block, one.component, head)
                changes.setdefault(key, []).append(float(loss - own[0]))
    return [_row(*key, values) for key, values in changes.items()]


def _note_rest(context: ModelContext, run: MeasureContext) -> None:
    """Say that texts go on behind what is read of them."""
    longest, read = max(len(one) for one in context.sequences), run.options["tokens"]
    if longest > read:
        run.notes["tokens"] = (
            f"the first {read} tokens of each text are read; all of them: "
            f"ablation(tokens={longest})"
        )


def _find(context: ModelContext, tokens: Tokens, run: MeasureContext) -> list[BlockParts]:
    """Return what every block has that can be taken out, of each of its attentions."""
    found: list[BlockParts] = []

    def keep(layer: Layer) -> None:
        if layer.layer != EMBEDDING:
            found.append(find_parts(context.subject.stack, layer))

    context.trace(tokens[:PROBED], keep)
    if not found:
        raise NotApplicable("no block gives finite features")
    there = {(parts.block, name) for parts in found for name in parts.components}
    for parts in found:
        for name, reason in parts.refused.items():
            if (parts.block, name) not in there:
                run.note_layer(name, f"{name} of {{layers}}: none, because {reason}", parts.block)
    if not there:
        raise NotApplicable("its blocks expose neither heads nor sublayers to take out")
    return [parts for parts in found if parts.components]


def _removals(parts: BlockParts) -> list[Removal]:
    heads = [Removal(component="head", head=head) for head in range(parts.heads)]
    return heads + [Removal(component=name) for name in SUBLAYERS if name in parts.sublayers]


@torch.no_grad()
def _means(context: ModelContext, blocks: Sequence[BlockParts], texts: Sequence[Tokens]) -> Means:
    means = Means()
    with touching(context.subject.stack, blocks, ("head", *SUBLAYERS), means.add):
        for tokens in texts:
            context.subject.model(input_ids=tokens[None], use_cache=False)
    return means


def _without(
    context: ModelContext,
    given: Answer,
    parts: BlockParts,
    removals: Sequence[Removal],
    means: Means | None,
    heads: HeadsGiven | None,
    room: Room,
) -> Iterator[Tensor]:
    """Yield the loss without each of the removals, as many at once as there is room for."""
    model, stack = context.subject.model, context.subject.stack
    most = _most_rows(given)
    following = given.tokens[given.places + 1]
    for start in range(0, len(removals), most):
        rows = removals[start : start + most]
        with removing(stack, parts, rows, means, heads):
            logits = resume(model, stack, given, parts.block, len(rows), room)
            yield from losses(logits, following)


def _most_rows(given: Answer) -> int:
    most = _BYTES // (given.logits.numel() * given.logits.element_size())
    if given.logits.device.type == "cpu":
        most = min(most, _BATCH // len(given.tokens))
    return max(1, most)


def _check(context: ModelContext, given: Answer, parts: BlockParts) -> None:
    """Refuse a model that more than the stream leads on from block to block.

    Raises:
        NotApplicable: with nothing taken out, the later blocks do not give the model's own logits.
    """
    if not _repeats(context, given, parts, None):
        raise NotApplicable(
            f"with nothing taken out, layer {parts.block} and those behind it do not give its own "
            "logits again: more than the stream reaches them"
        )


def _repeats(
    context: ModelContext, given: Answer, parts: BlockParts, heads: HeadsGiven | None
) -> bool:
    """Return whether the later blocks give the model's own logits with nothing taken out."""
    model, stack = context.subject.model, context.subject.stack
    rows = min(2, _most_rows(given))  # what is not repeated is seen where there are several
    with removing(stack, parts, [None] * rows, heads=heads):
        again = resume(model, stack, given, parts.block, rows)
    allowed = sqrt(torch.finfo(again.dtype).eps) * float(given.logits.abs().max())
    return float((again - given.logits).abs().max()) <= allowed


def _row(block: int, component: str, head: int | None, changes: Sequence[float]) -> Row:
    values = torch.tensor(changes, dtype=torch.float64)
    spread = float(values.std(correction=1)) if len(values) > 1 else nan
    return {
        "layer": block,
        "component": component,
        "head": nan if head is None else head,
        "change": float(values.mean()),
        "error": spread / sqrt(len(values)),
        "texts": len(values),
    }


MEASURES = (
    Measure(
        name="ablation",
        title="Ablation: the loss without a head or a sublayer",
        unit="nats (change, error)",
        source="michel19; wang22",
        about=(
            "One head or sublayer at a time is taken out of the running model, and the next-token "
            "loss is compared with that of the whole model on the same tokens. "
            "Where it hardly changes, the others do without this part on this text; where it "
            "falls, the part harms; and parts that each change nothing may matter together."
        ),
        equation=(
            "change = mean over texts of  loss(A_h v_h := 0) - loss;  "
            "error = standard deviation over texts / sqrt(texts)"
        ),
        per=("layer", "component", "head"),
        columns={
            "change": "loss without it less the loss with it: above 0 it helps (nats)",
            "error": "standard error of the change, over texts (nats); empty for one text",
            "texts": "texts that were read",
        },
        plot=("change",),
        roles={"texts": "size"},
        better=None,
        needs=frozenset({"model", "attention"}),
        resumes=True,
        read=read,
        **measure_options("ablation"),
        default=False,
        use=USE,
    ),
)
