"""Saliency of tokens and channels for the next token, by layer, from one backward pass.

`|d target / d feature|` is a matrix token x channel for each layer. It is reduced while it passes
(scores per token, means over bins of channels), so nothing of that size outlives its layer; see
`recompute` for what one question costs. A gradient says what a small change would do: not what the
model would say without a token.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from layerlab.errors import NotApplicable
from layerlab.known_options import measure_options
from layerlab.loading.model import LoadedModel
from layerlab.loading.token_text import alone, token_strings
from layerlab.measures.measure import Measure, MeasureContext, ModelContext, Row, refuse_offloaded
from layerlab.measures.quantities.dimension import effective_dimension
from layerlab.measures.questions import check_saliency
from layerlab.measures.support.centring import centre, gram_eigenvalues
from layerlab.measures.support.saliency.heatmap import bin_channels, pack_bytes, room
from layerlab.measures.support.saliency.prompt import Prompt, earlier, prompt
from layerlab.measures.support.saliency.score import (
    absolute,
    alikeness,
    euclidean,
    objective,
    product,
)
from layerlab.observe.tracing.device_schedule import widen
from layerlab.observe.tracing.gradients import logits_and_gradient
from layerlab.records.layer_names import layer_name
from layerlab.validation import short_repr

BINS = 64
# Predictions that are listed.
TOLD = 3
SHARE = 0.8
USE = """\
`layerlab inspect MODEL MODEL --saliency "The name was"` asks why the models go on as they do,
and shows their answers side by side; `--target " Anna"` asks about that word instead, and
`--foil " Bob"` why not that one. A word is given with the space before it. Of a word that a
tokenizer cuts into several tokens, the first is asked about, and the report says so. Where both
words begin with the same token, there is nothing to compare, and none is reported.

Without a text the probe is asked: a name comes three times and is due a fourth time. Tokens of
the earlier occurrences are underlined in the report and have `earlier` = 1 in the frame: a model
that looks back has its saliency there.

A tokenizer may spread a character over several tokens, as those of the built-in models do with
Chinese: it stands at the last of them, and `◌` at the others. A part of a character that stands
alone, as a prediction, is written as its bytes: `⟨E6⟩`.

`--text FILE --measures 'saliency(text=None)'` takes the first sample of a file instead, as one
of WikiText-2. The Penn Treebank, which the source shows, is read from your own copy in the same
way.

*Cost.* One forward and one backward serve all layers, and each block is computed once more on
the way back: about as long as three forwards. Kept are token x width per layer, what one block
needs for its own gradient, and the logits of one position; of models that cannot be trained with
gradient checkpointing, everything between. Reported are at most `tokens` positions, those with
the largest share of a layer's saliency, and a picture of at most 262,144 cells per model, in
which channels are joined into bins.

*Reading it.* A gradient says what a small change would do; what the model would say without a
token is another question. Sizes differ from model to model with the scale of their features:
compare shares, or input x gradient, which has the unit of the target."""


@dataclass(kw_only=True)
class LayerSaliency:
    """The values kept of one layer."""

    width: int
    scores: dict[str, Tensor]
    image: Tensor
    dimension: float


@dataclass(kw_only=True)
class Saliency:
    """The readings of every layer, and what the model said at the position asked at.

    Attributes:
        logits: of the whole vocabulary, there.
    """

    prompt: Prompt
    target: int
    logits: Tensor
    layers: dict[int, LayerSaliency] = field(default_factory=dict)


def saliency(
    subject: LoadedModel,
    asked: Prompt,
    *,
    probability: bool = False,
    bins: int = BINS,
    sample: int = 512,
    again: bool = True,
) -> Saliency:
    """Return the saliency of every layer, reduced, from one forward and one backward pass.

    S_tc = |d target / d h_tc|

    Source: pangu23, section 5.2.
    Unit: that of the target, per unit of the features.

    Args:
        probability: of the logarithm of the probability instead of the logit.
        bins: of channels; no more than there are channels.
        sample: tokens, evenly spaced, whose effective dimension is read.
        again: as for `recompute.differentiated`.

    Raises:
        NotApplicable: the model has no finite gradient, or predicts the foil.
    """
    stack, found = subject.stack, dict[int, LayerSaliency]()
    assert not isinstance(stack, str)
    chosen = list(asked.target[:1])

    def ask(logits: Tensor) -> Tensor:
        if not chosen:
            chosen.append(_predict(subject, logits, asked.foil))
        return objective(logits, chosen[0], asked.foil, probability=probability)

    def keep(layer: int, stream: Tensor, gradient: Tensor) -> None:
        found[layer] = _reduce(stream, gradient, min(bins, stream.shape[1]), sample)

    logits = logits_and_gradient(
        subject.model, stack, asked.tokens, asked.position, ask, keep, again=again
    )
    layers = dict(sorted(found.items()))
    bad = [layer for layer, one in layers.items() if not one.scores["l1"].isfinite().all()]
    if bad:  # it comes from behind
        raise NotApplicable(f"the gradient behind {layer_name(bad[-1])} is not finite")
    return Saliency(prompt=asked, target=chosen[0], logits=logits.cpu(), layers=layers)


def _predict(subject: LoadedModel, logits: Tensor, foil: int | None) -> int:
    found = int(logits.argmax())
    if found == foil:
        (word,) = alone(subject, torch.tensor([found]))
        raise NotApplicable(
            f"the foil {short_repr(word)} is what {subject.name} predicts; say with --target what "
            "it is to be compared with"
        )
    return found


def _reduce(stream: Tensor, gradient: Tensor, bins: int, sample: int) -> LayerSaliency:
    dtype = torch.promote_types(gradient.dtype, torch.float32)
    wide = gradient.to(dtype)
    scores = {
        "l1": absolute(wide),
        "l2": euclidean(wide),
        "product": product(stream, wide),
        "cosine": alikeness(stream),
    }
    step = -(-len(stream) // sample)
    eigenvalues = gram_eigenvalues(centre(stream[::step]))
    return LayerSaliency(
        width=stream.shape[1],
        scores={name: score.cpu().double() for name, score in scores.items()},
        image=bin_channels(wide, bins).cpu(),
        dimension=float(effective_dimension(eigenvalues, SHARE)),
    )


def read(context: ModelContext, run: MeasureContext) -> Iterator[Row]:
    """Read one row per layer and token; the picture goes to the run.

    Source: Own.

    Raises:
        NotApplicable: the model has no finite gradient, or the question does not fit it.
        UserError: a token or a position that is not there.
    """
    subject, options = context.subject, run.options
    asked = prompt(subject, options, context.sequences)
    context.begin(1)
    context.step("one forward, one backward")
    found = saliency(
        subject,
        asked,
        probability=options["of"] == "log-probability",
        bins=options["bins"],
        sample=options["tokens"],
    )
    positions = _keep(found, options["tokens"])
    every = token_strings(subject, asked.tokens)
    tokens = [every[position] for position in positions]
    run.picture.update(_picture(subject, found, positions, tokens, options["of"]))
    run.notes.update(_remarks(asked, len(positions)))
    recurring = set(earlier(asked))
    for layer, reading in found.layers.items():
        for position, word in zip(positions, tokens, strict=True):
            row = {name: float(score[position]) for name, score in reading.scores.items()}
            yield {
                "layer": layer,
                "position": position,
                "token": word,
                **row,
                "dimension": reading.dimension,
                "earlier": float(position in recurring),
            }


def _keep(found: Saliency, most: int) -> list[int]:
    """Return the positions to keep.

    All of a short prompt, else those with the largest share of a layer's saliency.
    """
    length = len(found.prompt.tokens)
    if length <= most:
        return list(range(length))
    shares = [
        reading.scores["l1"] / reading.scores["l1"].sum() for reading in found.layers.values()
    ]
    largest = torch.stack(shares).nan_to_num().amax(0)
    largest[found.prompt.position] = torch.inf
    return sorted(largest.topk(most).indices.tolist())


def _remarks(asked: Prompt, kept: int) -> dict[str, str]:
    found = {f"word {number}": remark for number, remark in enumerate(asked.remarks)}
    if kept < len(asked.tokens):
        found["kept"] = (
            f"of {len(asked.tokens)} tokens the {kept} with the largest share of a layer's "
            "saliency are reported"
        )
    return found


def _picture(
    subject: LoadedModel, found: Saliency, positions: list[int], tokens: list[str], quantity: str
) -> dict[str, Any]:
    """Return the maps of token x bin, as bytes, with the question and the answer."""
    readings = list(found.layers.values())
    bins = min(reading.image.shape[1] for reading in readings)
    layers, bins = room(list(found.layers), len(positions), bins)
    images = [found.layers[layer].image[positions] for layer in layers]
    # Where there is no room for every bin, neighbours are joined.
    images = [bin_channels(image, bins) for image in images]
    peaks = [float(image.max()) for image in images]
    pairs = zip(images, peaks, strict=True)
    asked, logits = found.prompt, found.logits
    rivals = [
        _token(subject, logits, token, asked.words.get(kind))
        for kind, token in (("target", found.target), ("foil", asked.foil))
    ]
    likely = logits.argsort(descending=True, stable=True)[:TOLD].tolist()
    predictions = [_token(subject, logits, token) for token in likely]
    return {
        "kind": "saliency",
        "of": quantity,
        "length": len(asked.tokens),
        "position": asked.position,
        "positions": positions,
        "tokens": tokens,
        "target": rivals[0],
        "foil": rivals[1],
        "prediction": predictions[0],
        "predictions": predictions,
        "earlier": earlier(asked),
        "width": readings[0].width,
        "bins": bins,
        "layers": layers,
        "peaks": peaks,
        "maps": [pack_bytes(image, peak) for image, peak in pairs],
    }


def _token(
    subject: LoadedModel, logits: Tensor, token: int | None, text: str | None = None
) -> dict[str, Any] | None:
    """Return a token with what the model predicts of it, and the word that it begins."""
    if token is None:
        return None
    (word,) = alone(subject, torch.tensor([token]))
    return {
        "id": token,
        "token": word,
        **({} if text is None else {"word": text}),
        "probability": float(widen(logits).softmax(0)[token]),
        "logit": float(logits[token]),
        "rank": int((logits > logits[token]).sum()) + 1,
    }


MEASURES = (
    Measure(
        name="saliency",
        title="What the next token hangs on",
        unit="that of the target, per unit of the features",
        source="pangu23, section 5.2; simonyan13; shrikumar16; yin22",
        about=(
            "How much the target would move with each feature of each token, at every layer: the "
            "gradient, as large as it is. What is far from 0 is what the model looks at; a foil "
            "asks why the target and not the other."
        ),
        equation=(
            "S_tc = |d target / d h_tc|,   target = z_y, log softmax(z)_y, or z_y - z_foil\n"
            "l1_t = sum_c S_tc,   l2_t = sqrt(sum_c S_tc^2),   product_t = sum_c h_tc d target / "
            "d h_tc"
        ),
        per=("layer", "position", "token"),
        columns={
            "l1": "sum of the saliency over channels",
            "l2": "length of the token's gradient",
            "product": "input x gradient: what the target would lose, to first order, without it; "
            "0 where rounding could make it",
            "cosine": "mean cosine of the token's features with those of the others (isotropy)",
            "dimension": (
                f"directions with {SHARE:.0%} of the variance of this layer's features, at most "
                "tokens - 1; the same in all rows of a layer"
            ),
            "earlier": "1 where the token belongs to an earlier occurrence of the target",
        },
        plot=("l1", "l2", "product", "cosine", "dimension"),
        roles={"earlier": "flag"},
        better=None,
        needs=frozenset({"model"}),
        applies=refuse_offloaded,
        read=read,
        **measure_options("saliency"),
        check=check_saliency,
        default=False,
        use=USE,
    ),
)
