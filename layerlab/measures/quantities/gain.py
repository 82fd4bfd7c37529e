"""By how much attention and feed-forward change the distance between tokens, beside the theorems.

`measured` is d_M(out) / d_M(in) of a sublayer, d_M the distance from equal tokens. Theorem 2 bounds
it for attention by sqrt(lambda H) s v1, Theorem 3 for a plain feed-forward layer by L s v2, Theorem
7 for one with a series of activations by the sum of their slopes in place of L. A gated one has no
such constant; what the weights allow on the range that its gate takes bounds it there.
Whether a layer is of the form a theorem speaks about is not guessed from its class: its output is
computed again from that form, and the bound is given only where this reproduces what the model
computed.
"""

from collections.abc import Iterator, Mapping
from math import inf, nan, sqrt

from torch import Tensor

from layerlab.measures.measure import Bound, Measure, MeasureContext, Row
from layerlab.measures.quantities.diversity import diversity
from layerlab.measures.support.attention_pass import heads_of
from layerlab.measures.support.sublayers.sublayer_bounds import (
    CONTRACTION,
    Constants,
    attention_bound,
    certify_constants,
    contraction,
    feedforward_bound,
    find_constants,
)
from layerlab.measures.support.sublayers.sublayer_forms import rounding
from layerlab.observe.tracing.attention.tiles import DENSE_TOKENS
from layerlab.observe.tracing.device_schedule import read_host, read_numbers, widen
from layerlab.observe.tracing.records import Layer, Sublayer
from layerlab.shapes import Hidden


def _names(layer: Layer) -> list[str]:
    return [name for name in ("attention", "ffn") if name in layer.sublayers]


def _list_open(layer: Layer, run: MeasureContext) -> list[str]:
    """Return the sublayers whose constants no sequence has brought so far."""
    return [name for name in _names(layer) if (layer.layer, name) not in run.memory]


def _keep(layer: Layer, run: MeasureContext, found: Mapping[str, Constants]) -> None:
    """Keep the constants that the first sequence brings for the others."""
    for name, constants in found.items():
        run.memory[layer.layer, name] = constants
        if (error := constants.refused) is not None:
            remark = f"bound: not applicable to {name} of {{layers}}, because {error}"
            run.note_layer(f"bound ({name})", remark, layer.layer)


def _learn(layer: Layer, run: MeasureContext) -> None:
    """Keep the constants of a record whose rows need not be read."""
    _keep(layer, run, certify_constants(layer, _list_open(layer, run)))


def _theorem(layer: Layer, constants: Constants, exact: bool) -> dict[str, Tensor]:
    """Return the columns of Theorem 2, as far as it applies."""
    attended = layer.attention
    if attended is None or not attended.sums_to_one:
        return {}
    if exact:
        contractions = contraction(attended, exact=True)
    else:
        contractions = heads_of(layer, CONTRACTION).vectors["contraction"]
    if constants.values is None or constants.output is None:
        return {"contraction": contractions.max()}
    plain, sharp = attention_bound(
        contractions.to(constants.values), constants.values, constants.output
    )
    return {"contraction": contractions.max(), "bound": plain, "sharp": sharp, "factor": plain}


def _floor(sublayer: Sublayer, found: Mapping[str, float]) -> float:
    """Return the gain that rounding alone can make, for tokens that are `entered` apart."""
    tokens, width = sublayer.entered.shape
    reach = found["weights"] * sqrt(tokens) * found["longest"]
    slack = rounding(sublayer.left.dtype, 2 * width + tokens)
    return slack * (reach + found["size"]) / found["entered"]


def _ratio(above: float, below: float) -> float:
    return above / below if below > 0 else nan


def _numbers(layer: Layer, name: str, run: MeasureContext) -> dict[str, Tensor]:
    """Return lengths of tokens and limits of a sublayer, on their device."""
    sublayer, constants = layer.sublayers[name], run.memory[layer.layer, name]
    if name == "attention":
        found = {"weights": constants.size, **_theorem(layer, constants, exact=False)}
    else:
        size = feedforward_bound(layer, constants, sublayer.entered)
        found = {"weights": size, "bound": size}
    return _lengths(sublayer) | found


def _row(layer: Layer, name: str, run: MeasureContext, found: dict[str, float]) -> Row:
    sublayer = layer.sublayers[name]
    constants: Constants = run.memory[layer.layer, name]
    attends = name == "attention"
    measured = _ratio(found["left"], found["entered"])
    slack = _floor(sublayer, found) if found["entered"] > 0 else inf
    limit = "sharp" if attends else "bound"
    violated = measured > found.get(limit, nan) + slack
    if violated and attends and len(sublayer.entered) <= DENSE_TOKENS:
        # Before a theorem is accused, its constant is computed without Lanczos.
        found |= read_numbers(_theorem(layer, constants, exact=True))
        violated = measured > found["sharp"] + slack
    columns = {key: found.get(key, nan) for key in ("bound", "sharp", "factor", "contraction")}
    return {
        "sequence": layer.sequence,
        "layer": layer.layer,
        "sublayer": name,
        "measured": measured,
        **columns,
        "ranged": constants.form is not None and not constants.form.has_constant,
        "tightness": _ratio(columns["bound"], measured),
        "violated": violated,
    }


def _lengths(sublayer: Sublayer) -> dict[str, Tensor]:
    """Return how far apart tokens are before and behind a sublayer, and how long they are."""
    entered, left = sublayer.entered, sublayer.left
    return {
        "entered": _diversity(entered),
        "left": _diversity(left),
        "longest": widen(entered).norm(dim=1).max(),
        "size": widen(left).norm(),
    }


def _diversity(h: Hidden) -> Tensor:
    return diversity(h) if len(h) > 1 else h.new_tensor(nan)


def read(layer: Layer, run: MeasureContext) -> Iterator[Row]:
    """Read one row for attention and one for feed-forward, where the block exposes them.

    Source: Own.
    """
    constants = find_constants(layer, _list_open(layer, run))
    while True:
        # As a rule the first factors certify the norms: nothing waits for them alone.
        lacking = constants.norms.factor()
        _keep(layer, run, constants.values())
        numbers = {name: _numbers(layer, name, run) for name in _names(layer)}
        asked = [number for part in numbers.values() for number in part.values()]
        read = read_host([*lacking, *asked])
        constants.norms.judge(read[: len(lacking)])
        if not constants.norms.missing:
            break
    found = iter(read[len(lacking) :])
    for name, part in numbers.items():
        yield _row(layer, name, run, {key: float(next(found)) for key in part})


MEASURES = (
    Measure(
        name="gain",
        title="Gain of diversity in attention and feed-forward",
        unit="none",
        source="pangu23, Lemma 1, Theorems 2, 3 and 7; gated feed-forward: Own",
        about=(
            "By which factor a sublayer changes the distance of its tokens from being all alike, "
            "measured on its own input and output, without the residual connection. "
            "Below 1 the sublayer brings tokens closer; the bound says what the weights and the "
            "attention matrix allow, and a large bound alone says nothing about what happens."
        ),
        equation=(
            "measured = d_M(out) / d_M(in);  attention: <= sqrt(lambda H) s v1, "
            "sqrt(lambda) = max_h ||(I - ee^T) A_h||_2;  feed-forward: <= L s v2, gated: "
            "<= v2 (max |act(g)| s + L max |mean v| s_g) for act(g) * v, g and v as they are here"
        ),
        per=("sequence", "layer", "sublayer"),
        columns={
            "measured": "distance from equal tokens behind the sublayer over that before it",
            "bound": "what Theorem 2 (attention), 3 or 7 (feed-forward) allows; where it is gated, "
            "what its weights allow on the range that the gate takes in this text",
            "sharp": "Theorem 2 with each head's own constants, sqrt(sum lambda_h s_h^2) v1",
            "factor": "sqrt(lambda H) s v1 of attention, which the source calls usually below 1",
            "contraction": "sqrt(lambda): the largest over heads of ||(I - ee^T) A_h||_2",
            "ranged": "whether the bound is one on the range of this text, which no theorem has",
            "tightness": "bound over measured; far above 1 the bound says little",
            "violated": "whether a bound is exceeded by more than rounding explains",
        },
        plot=("measured", "contraction", "tightness"),
        roles={"ranged": "flag", "violated": "flag"},
        better=None,
        needs=frozenset({"stream", "attention", "weights"}),
        resumes=True,
        read=read,
        learn=_learn,
        heads=lambda options: CONTRACTION,
        bound=(
            Bound(
                column="measured",
                limit="bound",
                side="upper",
                source="pangu23, Theorems 2, 3 and 7; gated: Own",
            ),
            Bound(column="measured", limit="sharp", side="upper", source="pangu23, Lemmas 1 and 2"),
        ),
    ),
)
